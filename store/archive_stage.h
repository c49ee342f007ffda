/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive_stage.h - what a restore has brought into the pool so far, where nobody sees it.
 *
 * Each shelf of the archive has a staging shelf. archive_restore.c fills in what it has read and checked; the functions
 * here bring it into the pool, verify it there, and at the end show it all or drop it all.
 */
#ifndef LMCS_ARCHIVE_STAGE_H
#define LMCS_ARCHIVE_STAGE_H

#include "archive_format.h"
#include "capture.h"
#include "shelf.h"

/* An identity of the archive; its index + 1 is its id there. */
struct lmcs_stage_identity {
    struct lmcs_tensor tensor; /* its own copy; strides NULL */
    uint64_t raw_bytes;
    uint64_t pool_id;    /* 0: the pool has none yet, as far as is known */
    uint64_t attempt;    /* the transaction that gave it its pool_id */
    size_t leader;       /* index of the first one of this kind and name */
    uint64_t present;    /* the list of entries that has it */
    uint64_t touched;    /* the snapshot that last named it */
    uint64_t name_list;  /* of a leader: the list of entries that the next field speaks of ... */
    uint64_t name_count; /* ... and how many of this name it has */
};

/* A content of the archive; its index + 1 is its id there. */
struct lmcs_stage_content {
    uint64_t pool_id;
    uint32_t identity; /* index */
    uint8_t depth;     /* deltas to undo to read it */
    bool is_used;      /* by an entry, or as a base */
    bool has_run;      /* some snapshot has it */
};

/* A content that arrived with the snapshot at work. */
struct lmcs_stage_pending {
    size_t index;    /* of the content */
    uint64_t record; /* of the archive, for messages */
    uint8_t base_count;
    size_t base;                 /* index */
    struct lmcs_content content; /* what goes to the pool, but for its ids */
};

struct lmcs_stage_tag {
    uint64_t number;
    char *text;
};

struct lmcs_stage_shelf {
    char *name;
    struct lmcs_busy_shelf *busy;
    uint64_t id; /* of the staging shelf; 0: none yet */
    uint64_t lineage;
    uint64_t next_number;
    uint32_t keep_raw;
    struct lmcs_snapshot_df last; /* the last one staged */
    uint64_t *skipped;            /* numbers that the shelf has already, ascending */
    size_t skipped_count;
    size_t skipped_capacity;
    size_t dropped; /* of them, those whose copies have gone */
    struct lmcs_stage_tag *tags;
    size_t tag_count;
    size_t tag_capacity;
};

struct lmcs_stage {
    struct lmcs_pool *pool;
    struct lmcs_region raw;           /* where payloads go: as a capture would write them ... */
    struct lmcs_region coded;         /* ... or the compactor */
    struct lmcs_stage_shelf *shelves; /* the last one is at work */
    size_t shelf_count;
    size_t shelf_capacity;
    struct lmcs_stage_identity **identities;
    size_t identity_count;
    size_t identity_capacity;
    struct lmcs_stage_content *contents;
    size_t content_count;
    size_t content_capacity;
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
    struct lmcs_archive_entry_df *entries; /* of the archive, ids and all */
    size_t entry_count;
    size_t entry_capacity;
};

/* Makes room for one more item; false without memory. */
bool lmcs_stage_grow(void *array, size_t *capacity, size_t count, size_t item_bytes);

void lmcs_stage_init(struct lmcs_stage *stage, struct lmcs_pool *pool);
void lmcs_stage_fini(struct lmcs_stage *stage);
/* Takes the shelf of that name, so that captures wait, and makes its staging shelf. */
enum lmcs_status lmcs_stage_shelf(struct lmcs_stage *stage, const char *name, uint64_t next_number, uint32_t keep_raw,
                                  struct lmcs_error *error);
/* Takes room for a payload; a full pool is compacted first. */
enum lmcs_status lmcs_stage_room(struct lmcs_stage *stage, struct lmcs_content *content, uint64_t bytes,
                                 struct lmcs_error *error);
/* Commits the snapshot at work to its staging shelf, verifies every content that came with it, and compares it with
 * the one of its number in the shelf that is there. */
enum lmcs_status lmcs_stage_snapshot(struct lmcs_stage *stage, struct lmcs_error *error);
/* One transaction makes all staged snapshots visible. */
enum lmcs_status lmcs_stage_show(struct lmcs_stage *stage, struct lmcs_error *error);
/* Removes the staging shelves and all that is in them. What can't be removed now goes at the next open. */
void lmcs_stage_drop(struct lmcs_stage *stage);

#endif
