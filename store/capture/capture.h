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

#endif
