/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/stages.h - the stages of a tensor on its way into a snapshot: one struct and a few functions each. */
#ifndef LMCS_CAPTURE_STAGES_H
#define LMCS_CAPTURE_STAGES_H

#include "pages/pool.h"
#include "pages/space.h"
#include "payload/layout.h"
#include "records/content.h"
#include "records/policy.h"

#define LMCS_PIECE_BYTES ((size_t)128 << 10) /* compared or written at once, through a buffer on the stack */

/* ---- Put: a tensor in the caller's memory (source.c) ---- */

struct lmcs_source {
    const struct lmcs_tensor *tensor; /* the capture's copy */
    const void *data;
    const int64_t *strides; /* in bytes; NULL: row-major */
    uint64_t raw_bytes;
};
/* True when the strides, where they matter, are those of row-major data. */
bool lmcs_strides_are_plain(const struct lmcs_tensor *tensor, const int64_t *strides);
uint64_t lmcs_source_block_bytes(const struct lmcs_source *source, uint64_t block);
/* All the memory that reading the source may touch. */
struct lmcs_guarded lmcs_source_range(const struct lmcs_source *source);
/* Copies bytes [at, at + bytes) of the row-major form. Both are multiples of the element's size. */
void lmcs_source_read(const struct lmcs_source *source, uint64_t at, uint64_t bytes, void *to);
/* The same under a guard of its own. False: the memory can't be read. */
bool lmcs_source_read_guarded(const struct lmcs_source *source, uint64_t at, uint64_t bytes, void *to);
enum lmcs_status lmcs_source_fail(const struct lmcs_tensor *tensor, struct lmcs_error *error);

/* Runs `work` for each job on the pool's workers. The compactor pauses meanwhile. */
struct lmcs_jobs {
    struct lmcs_pool *pool;
    size_t count;
    size_t capacity;
    struct lmcs_job {
        size_t first; /* source */
        size_t count; /* of small sources; 0: one block of a large one */
        uint64_t block;
    } * items;
};
bool lmcs_jobs_add(struct lmcs_jobs *jobs, struct lmcs_job job);
void lmcs_jobs_run(const struct lmcs_jobs *jobs, void (*work)(void *context, uint64_t i), void (*finish)(void *context),
                   void *context);

/* ---- Compare: the same tensor in the base snapshot (compare.c) ---- */

struct lmcs_previous {
    uint64_t identity; /* 0: the base snapshot has no such tensor */
    bool is_lost;      /* part of it can't be read: nothing new may rest on it */
    bool may_encode;   /* a delta against *base is possible */
    uint32_t distance; /* contents from the new one to *base */
    struct lmcs_content content;
    struct lmcs_content *base; /* gets a raw content: this one, or the base of its delta. NULL: not wanted */
};
/* Looks up sources in a manifest, in a read transaction. */
enum lmcs_status lmcs_previous_find(struct lmcs_txn *txn, const struct lmcs_root_tree_df *manifest,
                                    const struct lmcs_source *sources, size_t count, struct lmcs_previous *previous,
                                    struct lmcs_error *error);
/* Sets equal[i] where all bytes of a source equal those of its raw content. The caller holds a lease on the epoch. */
enum lmcs_status lmcs_compare_sources(struct lmcs_pool *pool, const struct lmcs_source *sources,
                                      const struct lmcs_previous *previous, size_t count, bool *equal,
                                      struct lmcs_error *error);

/* ---- Encode: deltas (delta.c) ---- */

/*
 * Returns whether a capture is to write deltas. Pure. LMCS_ENCODE_AUTO: never where the medium is stored to directly
 * (DAX, files in memory); else where encoding was measured to be faster than copying. Both ways are measured first, and
 * the slower one is measured again at times.
 */
bool lmcs_pace_codes(const struct lmcs_pace *pace, enum lmcs_encode_on_capture when, bool is_stored_to);
void lmcs_pace_measured(struct lmcs_pace *pace, bool coded, uint64_t bytes, uint64_t ns);

struct lmcs_delta {
    const struct lmcs_source *source;
    const struct lmcs_previous *previous; /* may_encode */
    struct lmcs_content content;          /* of the delta; id: of the previous content, where all bytes are equal */
    bool is_made;
    bool is_equal;
};
/*
 * Writes deltas: sets is_made or is_equal. Sources that have neither are to be copied. The caller holds a lease on the
 * epoch of the look-up and has entered the encode gate.
 */
enum lmcs_status lmcs_delta_write(struct lmcs_pool *pool, struct lmcs_region *region, struct lmcs_delta *deltas,
                                  size_t count, struct lmcs_error *error);

/* ---- Copy: into the pool (copy.c) ---- */

struct lmcs_copy {
    const struct lmcs_source *source;
    struct lmcs_content *content; /* gets its place, size and digest */
};
/* Allocates, copies and hashes. Payloads are in the pool, but not durable, afterwards. */
enum lmcs_status lmcs_copy_sources(struct lmcs_pool *pool, struct lmcs_region *region, const struct lmcs_copy *copies,
                                   size_t count, struct lmcs_error *error);

/* ---- Commit: the entries of a snapshot (entries.c) ---- */

/* Memory for a caller to fill, in place in the pool where that is possible. */
struct lmcs_reserved {
    void *data; /* NULL: the entry is not reserved */
    bool aside; /* in anonymous memory; copied to the pool at commit */
};

/* One tensor or attachment of a capture. */
struct lmcs_captured {
    struct lmcs_tensor tensor; /* a copy; strides NULL */
    uint64_t raw_bytes;
    uint64_t identity; /* 0: not known yet */
    uint64_t previous; /* the content that the base snapshot has under this identity; 0: none, or not known */
    uint64_t shared;   /* the content that it shares with the base snapshot; 0: none */
    size_t same_as;    /* index + 1 of the entry whose content it takes; 0: its own */
    bool is_coded;     /* `content` is a delta that has been written */
    struct lmcs_content content;
    struct lmcs_reserved reserved;
};
/* Takes room for an entry that the caller fills in place. */
enum lmcs_status lmcs_reserve(struct lmcs_region *region, struct lmcs_captured *entry, struct lmcs_error *error);
/* Hashes, and writes or flushes, an entry that was filled in place. */
enum lmcs_status lmcs_reserved_finish(struct lmcs_pool *pool, struct lmcs_captured *entry, struct lmcs_error *error);

struct lmcs_entries {
    struct lmcs_captured **items;
    size_t count;
    size_t capacity;
    size_t *names; /* open addressing: index + 1 */
    size_t name_capacity;
};
/* Adds a tensor, checked. LMCS_INVALID: its name is there already, or it is not sound. */
enum lmcs_status lmcs_entries_add(struct lmcs_entries *entries, const struct lmcs_tensor *tensor,
                                  struct lmcs_captured **added, struct lmcs_error *error);
/* Returns index + 1 of a name; 0: there is none. */
size_t lmcs_entries_find(const struct lmcs_entries *entries, uint32_t kind, const char *name);
void lmcs_entries_free(struct lmcs_entries *entries);

#endif
