/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/stage.h - what a restore has brought into the pool so far, where nobody sees it.
 *
 * Each shelf of the archive has a staging shelf. archive_restore.c fills in what it has read and checked; the functions
 * here bring it into the pool, verify it there, and at the end show it all or drop it all.
 */
#ifndef LMCS_TRANSFER_STAGE_H
#define LMCS_TRANSFER_STAGE_H

#include "archive/read.h"
#include "pages/space.h"
#include "records/busy.h"
#include "records/content.h"
#include "records/shelf.h"

/* A content that arrived with the snapshot at work. */
struct lmcs_stage_pending {
    size_t index;                  /* of the content */
    bool is_copy;                  /* the pool has it in a form that something here can't rest on */
    size_t instead[LMC_MAX_BASES]; /* copies that it rests on: their places here + 1; 0: what the archive says */
    struct lmcs_content content;   /* what goes to the pool, but for its ids */
};

/* What is looked for in the pool. */
struct lmcs_stage_wanted {
    struct lmc_hash digest;
    const struct lmcs_tensor *tensor;
    uint32_t depth;  /* deltas that it may take to read it */
    uint32_t arrays; /* of a link; 0: it is none ... */
    uint32_t line;   /* ... of a line that is no longer */
    uint64_t link;   /* that must lead to it ... */
    uint8_t output;  /* ... as this array; 0: none needs to */
};

struct lmcs_stage_tag {
    uint64_t number;
    char *text;
};

struct lmcs_stage_shelf {
    char *name;                   /* under which it will be seen */
    char *from;                   /* its name in the archive */
    struct lmcs_busy_shelf *busy; /* NULL: an earlier archive has one of that name */
    uint64_t id;                  /* of the staging shelf; 0: none yet */
    uint64_t lineage;
    uint64_t next_number;
    uint32_t keep_raw;
    char *origin; /* name of the shelf it was forked from; NULL: it was not */
    uint64_t origin_number;
    uint64_t origin_time_ns;
    struct lmcs_snapshot_df last; /* the last one staged */
    uint64_t *skipped;            /* numbers that the shelf has already, ascending */
    size_t skipped_count;
    size_t skipped_capacity;
    size_t dropped; /* of them, those whose copies have gone */
    struct lmcs_stage_tag *tags;
    size_t tag_count;
    size_t tag_capacity;
};

/* A content that the pool has. */
struct lmcs_stage_found {
    struct lmc_hash digest;
    uint64_t id;
};

struct lmcs_stage {
    struct lmcs_pool *pool;
    struct lmcs_archive_reader *reader; /* of the archive at work */
    bool keeps;                         /* what has arrived stays when the restore fails */
    bool moves_tags;
    bool is_overtaken;              /* it failed since something that was found in the pool had gone */
    struct lmcs_stage_found *found; /* by digest */
    size_t found_count;
    size_t found_capacity;
    uint64_t *verified; /* ids of those that earlier attempts have left and had verified, ascending */
    size_t verified_count;
    size_t verified_capacity;
    uint64_t *unrun; /* ids of contents that no staged snapshot has: they are bases */
    size_t unrun_count;
    size_t unrun_capacity;
    struct lmcs_region raw;           /* where payloads go: as a capture would write them ... */
    struct lmcs_region coded;         /* ... or the compactor */
    struct lmcs_stage_shelf *shelves; /* the last one is at work */
    size_t shelf_count;
    size_t shelf_capacity;
    uint64_t attempt;
    uint64_t snapshots; /* staged */
    uint64_t skipped;
    uint64_t shown;
    /* the snapshot at work */
    struct lmcs_record record; /* its manifest, epoch and lineage are filled in here */
    bool is_changes;           /* its entries are changes against the snapshot before it */
    struct lmcs_stage_pending *pending;
    size_t pending_count;
    size_t pending_capacity;
    uint64_t pending_bytes;
    struct lmcs_archive_entry_df *entries; /* ids are those of the archive */
    size_t entry_count;
    size_t entry_capacity;
};

void lmcs_stage_init(struct lmcs_stage *stage, struct lmcs_pool *pool);
/* Begins an archive: learns which contents the pool has by now. */
enum lmcs_status lmcs_stage_begin(struct lmcs_stage *stage, struct lmcs_archive_reader *reader,
                                  struct lmcs_error *error);
/* Ends one that has been read to its end; the reader may go. */
enum lmcs_status lmcs_stage_end(struct lmcs_stage *stage, struct lmcs_error *error);
/* The content of the pool that is wanted; it has been read and verified. *id 0: there is none. What was found may go
 * before it is staged; then staging fails. */
enum lmcs_status lmcs_stage_find(struct lmcs_stage *stage, const struct lmcs_stage_wanted *wanted, uint64_t *id,
                                 struct lmcs_error *error);
void lmcs_stage_fini(struct lmcs_stage *stage);
/* Takes the shelf of that name, so that captures wait, and makes its staging shelf. */
enum lmcs_status lmcs_stage_shelf(struct lmcs_stage *stage, const char *name, const char *from, uint64_t next_number,
                                  uint32_t keep_raw, struct lmcs_error *error);
/* A tag of it. */
enum lmcs_status lmcs_stage_tag(struct lmcs_stage *stage, uint64_t number, const char *text, struct lmcs_error *error);
/* Commits the snapshot at work to its staging shelf, verifies every content that came with it, and compares it with
 * the one of its number in the shelf that is there. */
enum lmcs_status lmcs_stage_snapshot(struct lmcs_stage *stage, struct lmcs_error *error);
/* One transaction makes all staged snapshots visible. */
enum lmcs_status lmcs_stage_show(struct lmcs_stage *stage, struct lmcs_error *error);
/* Removes the staging shelves and all that is in them. What can't be removed now goes at the next open. */
void lmcs_stage_drop(struct lmcs_stage *stage);
/* Reads a content in full, into `buffer` unless that is NULL. `knows_link`: that which leads to it has been read. */
enum lmcs_status lmcs_stage_read(struct lmcs_stage *stage, uint64_t id, const struct lmcs_tensor *tensor,
                                 bool knows_link, void *buffer, struct lmcs_error *error);
/* Records a base that no staged snapshot has, for lmcs_stage_show. */
enum lmcs_status lmcs_stage_add_unrun(struct lmcs_stage *stage, uint64_t id, struct lmcs_error *error);

#endif
