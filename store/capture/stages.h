/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/stages.h - the stages of a tensor on its way into a snapshot. */
#ifndef LMCS_CAPTURE_STAGES_H
#define LMCS_CAPTURE_STAGES_H

#include "base/map.h"
#include "base/workers.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "payload/layout.h"
#include "records/content.h"
#include "records/policy.h"

#define LMCS_PIECE_BYTES ((size_t)128 << 10) /* read at once into a buffer on the stack */

/* ---- Put: the caller's memory (source.c) ---- */

struct lmcs_source {
    const struct lmcs_tensor *tensor; /* the capture's copy */
    const void *data;
    const int64_t *strides; /* bytes; NULL: row-major */
    uint64_t raw_bytes;
};
/* Whether the strides are row-major, apart from dimensions of 1. */
bool lmcs_strides_are_plain(const struct lmcs_tensor *tensor, const int64_t *strides);
uint64_t lmcs_source_block_bytes(const struct lmcs_source *source, uint64_t block);
struct lmcs_guarded lmcs_source_range(const struct lmcs_source *source);
/* Copies a range of the row-major form; `at` and `bytes` are multiples of the element's size. */
void lmcs_source_read(const struct lmcs_source *source, uint64_t at, uint64_t bytes, void *to);
/* Reads like lmcs_source_read, under a guard. False: unreadable memory. */
bool lmcs_source_read_guarded(const struct lmcs_source *source, uint64_t at, uint64_t bytes, void *to);
enum lmcs_status lmcs_source_fail(const struct lmcs_tensor *tensor, struct lmcs_error *error);

/* Jobs for a capture's workers, during which the compactor pauses. */
struct lmcs_jobs {
    struct lmcs_pool *pool;
    struct lmcs_workers *workers;
    size_t count;
    size_t capacity;
    struct lmcs_job {
        size_t first; /* source */
        size_t count; /* small sources; 0: a block of a large one */
        uint64_t block;
    } * items;
};
bool lmcs_jobs_add(struct lmcs_jobs *jobs, struct lmcs_job job);
enum lmcs_status lmcs_jobs_run(const struct lmcs_jobs *jobs, lmcs_workers_job *work, void (*finish)(void *context),
                               void *context, struct lmcs_error *error);

/* ---- Compare: the base snapshot (compare.c) ---- */

struct lmcs_previous {
    uint64_t identity; /* 0: not in the base snapshot */
    bool is_lost;      /* partly unreadable: nothing new may rest on it */
    struct lmcs_content content;
    const void *memory; /* its bytes, in the memory state; NULL: not there. The caller sets it */
};
enum lmcs_status lmcs_previous_find(struct lmcs_txn *txn, const struct lmcs_root_tree_df *manifest,
                                    const struct lmcs_source *sources, size_t count, struct lmcs_previous *previous,
                                    struct lmcs_error *error);
/* Sets equal[i] if all bytes equal those of the content, raw or in memory. The caller leases the epoch. */
enum lmcs_status lmcs_compare_sources(struct lmcs_pool *pool, struct lmcs_workers *workers,
                                      const struct lmcs_source *sources, const struct lmcs_previous *previous,
                                      size_t count, bool *equal, struct lmcs_error *error);

/* ---- Copy: into the pool, or to memory (copy.c) ---- */

struct lmcs_copy {
    const struct lmcs_source *source;
    struct lmcs_content *content; /* gets place, size and digest */
    void *memory;                 /* copied to here, and not to the pool; NULL: to the pool */
    struct lmc_hash **hashes;     /* with memory: gets its blocks' hashes, if several */
};
/* Copies sources into the region, or to memory. Payloads are not yet durable afterwards. */
enum lmcs_status lmcs_copy_sources(struct lmcs_pool *pool, struct lmcs_workers *workers, struct lmcs_region *region,
                                   const struct lmcs_copy *copies, size_t count, struct lmcs_error *error);

/* ---- Commit: the entries of a snapshot (entries.c) ---- */

/* Memory that a caller fills, in the pool where possible. */
struct lmcs_reserved {
    void *data; /* NULL: not reserved */
    bool aside; /* in anonymous memory; copied at commit */
};

/* What a capture has written of a tensor that it copied to memory. */
enum lmcs_form { LMCS_FORM_NONE, LMCS_FORM_LINKED, LMCS_FORM_FRAME, LMCS_FORM_RAW };

/* A tensor or attachment. */
struct lmcs_captured {
    struct lmcs_tensor tensor; /* copy; strides NULL */
    uint64_t raw_bytes;
    uint64_t identity; /* 0: unknown */
    uint64_t previous; /* content of the identity in the base snapshot; 0: none or unknown */
    uint64_t shared;   /* content shared with the base snapshot; 0: none */
    size_t same_as;    /* entry whose content it takes, index + 1; 0: its own */
    bool may_share;    /* `previous` is sound: with an equal digest, its content is shared */
    bool differs;      /* from `previous`: all bytes were compared */
    struct lmc_hash previous_digest;
    void *memory;            /* a copy of the tensor, from which the commit encodes; NULL: copied to the pool */
    struct lmc_hash *hashes; /* of the blocks in memory; NULL: not kept */
    const void *lent;        /* the caller's bytes, row-major, neither copied nor hashed yet; NULL: none */
    bool links_lent;         /* a link is encoded from them */
    bool is_array;           /* of a step that may become a link */
    enum lmcs_form form;
    bool is_keyframe; /* to be written as a keyframe, from which the next step's link leads */
    size_t link;      /* LMCS_FORM_LINKED: the capture's link */
    struct lmcs_content content;
    struct lmcs_reserved reserved;
};
enum lmcs_status lmcs_reserve(struct lmcs_region *region, struct lmcs_captured *entry, struct lmcs_error *error);
/* Hashes a filled entry, and writes or flushes it. */
enum lmcs_status lmcs_reserved_finish(struct lmcs_pool *pool, struct lmcs_captured *entry, struct lmcs_error *error);

struct lmcs_entries {
    struct lmcs_captured **items;
    size_t count;
    size_t capacity;
    struct lmcs_map names; /* by hash: index + 1 */
};
/* Adds a tensor. LMCS_INVALID: the name is taken, or the tensor is not valid. */
enum lmcs_status lmcs_entries_add(struct lmcs_entries *entries, const struct lmcs_tensor *tensor,
                                  struct lmcs_captured **added, struct lmcs_error *error);
/* Finds a name; returns index + 1, or 0. */
size_t lmcs_entries_find(const struct lmcs_entries *entries, uint32_t kind, const char *name);
void lmcs_entries_free(struct lmcs_entries *entries);

#endif
