/* SPDX-License-Identifier: BSD-3-Clause */
/* capture.h - what the modules of a capture share: gathering and copying (copy.c), and committing (capture.c). */
#ifndef LMCS_CAPTURE_CAPTURE_H
#define LMCS_CAPTURE_CAPTURE_H

#include "pages/pool.h"
#include "pages/space.h"
#include "payload/layout.h"
#include "records/content.h"
#include "records/policy.h"

/* One tensor or attachment of a capture. */
struct lmcs_captured {
    struct lmcs_tensor tensor; /* its own copy; strides NULL */
    uint64_t identity;         /* 0: not known yet */
    uint64_t raw_bytes;
    uint64_t shared;             /* the content that it shares with the base snapshot; 0: none */
    bool in_base;                /* the base snapshot has this identity */
    bool is_coded;               /* the content is a frame that has been written */
    size_t same_as;              /* index + 1 of the entry whose content it takes; 0: its own */
    void *reserved;              /* filled by the caller: to be hashed at commit */
    bool reserved_aside;         /* ... in memory of ours, to be copied at commit */
    struct lmc_hash *hashes;     /* of its blocks; NULL with at most one */
    struct lmc_hash only_hash;   /* of its one block */
    struct lmcs_content content; /* when it is new */
};

/* Copies `count` entries' data into the pool, or finds that they share what the base snapshot has. */
struct lmcs_source {
    struct lmcs_captured *entry;
    const void *data;
    const int64_t *strides;            /* NULL: row-major */
    const struct lmcs_content *before; /* raw content of the base snapshot to compare with, or NULL */
};
enum lmcs_status lmcs_copy_sources(struct lmcs_pool *pool, struct lmcs_region *region, struct lmcs_source *sources,
                                   size_t count, struct lmcs_error *error);
/* Hashes an entry whose payload was filled in place. */
enum lmcs_status lmcs_hash_reserved(struct lmcs_pool *pool, struct lmcs_captured *entry, struct lmcs_error *error);
/* Compares the sources that have a `before`: sets entry->shared where all bytes are equal. */
enum lmcs_status lmcs_compare_sources(struct lmcs_pool *pool, struct lmcs_source *sources, size_t count,
                                      struct lmcs_error *error);
/* Computes the digest from the hashes, and writes the table behind the data. */
enum lmcs_status lmcs_finish_content(struct lmcs_pool *pool, struct lmcs_captured *entry, struct lmcs_error *error);
/* True when the strides, as they matter, are those of row-major data. */
bool lmcs_strides_are_plain(const struct lmcs_tensor *tensor, const int64_t *strides);

/* ---- Captures that write deltas (capture_code.c) ---- */

/*
 * Whether a capture is to write deltas: pure. `automatic` asks the medium: never where it is stored to (DAX, files in
 * memory), else the way that was measured to be faster; both are measured first, and the slower one again at times.
 */
bool lmcs_pace_codes(const struct lmcs_pace *pace, enum lmcs_encode_on_capture when, bool is_stored_to);
void lmcs_pace_measured(struct lmcs_pace *pace, bool coded, uint64_t bytes, uint64_t ns);

/* A capture that codes; meanwhile the compactor lets no base go. */
void lmcs_code_begin(struct lmcs_pool *pool);
void lmcs_code_end(struct lmcs_pool *pool);
/* For the compactor: false while a capture codes. */
bool lmcs_code_keep_out(struct lmcs_pool *pool);
void lmcs_code_let_in(struct lmcs_pool *pool);

struct lmcs_code_from {
    struct lmcs_pool *pool;
    const char *shelf;
    uint64_t number; /* the snapshot before */
};
/*
 * Codes the sources that have something to be coded against: sets entry->is_coded, with its content, or entry->shared.
 * The others are left to be copied.
 */
enum lmcs_status lmcs_code_sources(const struct lmcs_code_from *from, struct lmcs_region *region,
                                   struct lmcs_source *sources, size_t count, struct lmcs_error *error);

/* Whose capture it is, while it can be put to. */
enum lmcs_status lmcs_capture_place(struct lmcs_capture *capture, struct lmcs_pool **pool, const char **shelf,
                                    struct lmcs_error *error);
/* From here until false it may wait for a transaction of live variables: whose thread can't take the shelf then. */
void lmcs_capture_waits(struct lmcs_capture *capture, bool waits);

/* A shelf as this process uses it: who captures on it, and what is to be told. */
struct lmcs_busy_shelf {
    struct lmcs_busy_shelf *next;
    char *name;
    bool busy;
    bool has_owner; /* a capture that is not committed yet, begun by `owner` */
    pthread_t owner;
    bool waits;        /* its capture waits for a transaction of the shelf's live variables to end */
    uint64_t failures; /* of asynchronous captures, counted */
    uint64_t untold;   /* which of them nobody has been told of; 0: none */
    struct lmcs_error failure;
    uint64_t prune_from; /* the shelf's next number from which on the compactor looks at what its policy keeps */
};
/*
 * Takes a shelf for a capture, a removal or a restore: waits for the one before. LMCS_INVALID: that one is this
 * thread's, or waits for a transaction of this thread's to end. LMCS_IN_USE: its thread waits for a
 * shelf that this thread has.
 */
enum lmcs_status lmcs_shelf_take(struct lmcs_pool *pool, const char *name, struct lmcs_busy_shelf **busy,
                                 struct lmcs_error *error);
/* The same for the background: false when it would have to wait. */
bool lmcs_shelf_try(struct lmcs_pool *pool, const char *name, struct lmcs_busy_shelf **busy);
void lmcs_shelf_give(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy);
struct lmcs_busy_shelf *lmcs_busy_find(struct lmcs_pool *pool, const char *name, struct lmcs_error *error);

/* What this process goes on from on a shelf. By the shelf's id, which no other one ever gets: names are given anew. */
struct lmcs_loaded {
    struct lmcs_loaded *next;
    uint64_t shelf;
    uint64_t number;         /* last loaded for training or committed by this process; 0: none */
    uint64_t loads;          /* how often one was marked as loaded ... */
    uint64_t prepared_loads; /* ... and how often before the last prepared snapshot */
};
/* Under pool->captures; NULL: no memory. */
struct lmcs_loaded *lmcs_loaded_find(struct lmcs_pool *pool, uint64_t shelf);
/* The shelf has gone. */
void lmcs_loaded_forget(struct lmcs_pool *pool, uint64_t shelf);

#endif
