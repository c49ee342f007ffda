/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/stage.h - face of transfer/, the room of dump and restore: stages the snapshots of a restore.
 *
 * Uses base, media, pages, records, payload, snapshots, shelves, archive. The functions of the room are public
 * (lmcstore.h): dump.c, restore.c. stage.c describes staging.
 *
 * Each shelf of the archive gets a staging shelf. restore.c fills in checked records.
 */
#ifndef LMCS_TRANSFER_STAGE_H
#define LMCS_TRANSFER_STAGE_H

#include "archive/read.h"
#include "pages/space.h"
#include "records/busy.h"
#include "records/content.h"
#include "records/shelf.h"

/* A content that arrived with the current snapshot. */
struct lmcs_stage_pending {
    size_t index;                  /* of the content */
    bool is_copy;                  /* a raw copy of a content that the pool has in an unsuitable form */
    size_t instead[LMC_MAX_BASES]; /* copies used as bases: index among the pending + 1; 0: the archive's base */
    struct lmcs_content content;   /* the record, without ids */
};

/* A content to find in the pool. */
struct lmcs_stage_wanted {
    struct lmc_hash digest;
    const struct lmcs_tensor *tensor;
    uint32_t depth;  /* deltas allowed to read it */
    uint32_t arrays; /* of a link; 0: not a link */
    uint32_t line;   /* a link: longest line allowed */
    uint64_t link;   /* the link that must lead to it; 0: any form */
    uint8_t output;  /* its index among the outputs of `link` */
};

struct lmcs_stage_tag {
    uint64_t number;
    char *text;
};

struct lmcs_stage_shelf {
    char *name;                   /* name once it is visible */
    char *from;                   /* name in the archive */
    struct lmcs_busy_shelf *busy; /* NULL: an earlier archive has one of that name */
    uint64_t id;                  /* of the staging shelf; 0: none yet */
    uint64_t lineage;
    uint64_t next_number;
    uint32_t keep_raw;
    char *origin; /* name of the shelf it was forked from; NULL: none */
    uint64_t origin_number;
    uint64_t origin_time_ns;
    struct lmcs_snapshot_df last; /* the last one staged */
    uint64_t *skipped;            /* numbers that the shelf has already, ascending */
    size_t skipped_count;
    size_t skipped_capacity;
    size_t dropped; /* number of `skipped` whose copies are removed */
    struct lmcs_stage_tag *tags;
    size_t tag_count;
    size_t tag_capacity;
};

/* A content of the pool. */
struct lmcs_stage_found {
    struct lmc_hash digest;
    uint64_t id;
};

struct lmcs_stage {
    struct lmcs_pool *pool;
    struct lmcs_archive_reader *reader; /* of the current archive */
    bool keeps;                         /* staged snapshots stay when the restore fails */
    bool moves_tags;
    bool is_overtaken;              /* it failed because a content found in the pool had changed */
    struct lmcs_stage_found *found; /* by digest */
    size_t found_count;
    size_t found_capacity;
    uint64_t *verified; /* ids of contents that earlier attempts have verified, ascending */
    size_t verified_count;
    size_t verified_capacity;
    uint64_t *unrun; /* ids of contents that are only bases */
    size_t unrun_count;
    size_t unrun_capacity;
    struct lmcs_region raw;           /* payloads written as a capture would */
    struct lmcs_region coded;         /* payloads written as the compactor would */
    struct lmcs_stage_shelf *shelves; /* the last one is the current one */
    size_t shelf_count;
    size_t shelf_capacity;
    uint64_t attempt;
    uint64_t snapshots; /* staged */
    uint64_t skipped;
    uint64_t shown;
    /* the current snapshot: */
    struct lmcs_record record; /* manifest, epoch and lineage are filled in by lmcs_stage_snapshot */
    bool is_changes;           /* its entries are changes to the snapshot before it */
    struct lmcs_stage_pending *pending;
    size_t pending_count;
    size_t pending_capacity;
    uint64_t pending_bytes;
    struct lmcs_archive_entry_df *entries; /* ids are those of the archive */
    size_t entry_count;
    size_t entry_capacity;
};

void lmcs_stage_init(struct lmcs_stage *stage, struct lmcs_pool *pool);
/* Begins an archive: lists the contents of the pool. */
enum lmcs_status lmcs_stage_begin(struct lmcs_stage *stage, struct lmcs_archive_reader *reader,
                                  struct lmcs_error *error);
/* Ends an archive that has been read to its end. The reader may go. */
enum lmcs_status lmcs_stage_end(struct lmcs_stage *stage, struct lmcs_error *error);
/*
 * Finds a wanted content in the pool, and reads and verifies it. *id 0: none. It may be gone before the snapshot is
 * staged; then staging fails.
 */
enum lmcs_status lmcs_stage_find(struct lmcs_stage *stage, const struct lmcs_stage_wanted *wanted, uint64_t *id,
                                 struct lmcs_error *error);
void lmcs_stage_fini(struct lmcs_stage *stage);
/* Acquires the shelf of that name, so that captures wait, and makes its staging shelf. */
enum lmcs_status lmcs_stage_shelf(struct lmcs_stage *stage, const char *name, const char *from, uint64_t next_number,
                                  uint32_t keep_raw, struct lmcs_error *error);
/* Adds a tag to the current shelf. */
enum lmcs_status lmcs_stage_tag(struct lmcs_stage *stage, uint64_t number, const char *text, struct lmcs_error *error);
/*
 * Commits the current snapshot to its staging shelf, verifies every content that arrived with it, and compares it with
 * the one of its number in the existing shelf.
 */
enum lmcs_status lmcs_stage_snapshot(struct lmcs_stage *stage, struct lmcs_error *error);
/* Makes all staged snapshots visible in one transaction. */
enum lmcs_status lmcs_stage_show(struct lmcs_stage *stage, struct lmcs_error *error);
/* Removes the staging shelves with all contents. The next open removes the rest. */
void lmcs_stage_drop(struct lmcs_stage *stage);
/*
 * Reads a content in full, into `buffer` unless that is NULL. `knows_link`: the link that leads to it has been
 * verified.
 */
enum lmcs_status lmcs_stage_read(struct lmcs_stage *stage, uint64_t id, const struct lmcs_tensor *tensor,
                                 bool knows_link, void *buffer, struct lmcs_error *error);
/* Records a base that no staged snapshot has, for lmcs_stage_show. */
enum lmcs_status lmcs_stage_add_unrun(struct lmcs_stage *stage, uint64_t id, struct lmcs_error *error);

#endif
