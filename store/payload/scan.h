/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/scan.h - are the stored bytes of a content what was written? Without its base, and without decoding.
 *
 * The blocks of a raw payload and the coded blocks of a frame have checksums of their own, so damage is found where it
 * is, and not in all that rests on it. lmcs_verify decodes as well; it finds what a codec did wrong.
 */
#ifndef LMCS_PAYLOAD_SCAN_H
#define LMCS_PAYLOAD_SCAN_H

#include "records/content.h"

/* Where a payload's stored bytes come from: the pool, a copy of it, or memory. */
struct lmcs_bytes {
    enum lmcs_status (*read)(const struct lmcs_bytes *bytes, uint64_t at, void *to, uint64_t count,
                             struct lmcs_error *error);
    const struct lmcs_media *media; /* of a pool ... */
    const struct lmcs_content *content;
    const unsigned char *memory;                  /* ... or the bytes themselves */
    bool (*go_on)(void *context, uint64_t bytes); /* NULL, or: so much was read; false: stop, with LMCS_CANCELLED */
    void *context;
};
struct lmcs_bytes lmcs_bytes_of_pool(const struct lmcs_media *media, const struct lmcs_content *content);
struct lmcs_bytes lmcs_bytes_of_memory(const unsigned char *memory);

/* What is said of a payload. */
struct lmcs_scan {
    uint64_t blocks;         /* of its decoded form; 0: the tensor is empty */
    uint64_t bad_count;      /* blocks that can't be had from it */
    unsigned char *bad;      /* 1 for each of them */
    bool head_is_bad;        /* what comes before the blocks, or the hashes behind them, is damaged ... */
    bool knows_hashes;       /* ... and whether what it should say is known all the same: */
    struct lmc_hash *hashes; /* of the decoded blocks */
    unsigned char *header;   /* of a frame that is well; NULL: it is not, or it is raw */
    struct lmc_frame frame;
    const char *why; /* of the last one that is bad */
};

struct lmcs_workers;
/*
 * Looks at all of it; `workers` NULL: in this thread alone. Damage is not a failure. LMCS_DAMAGED: the record can't be
 * believed; LMCS_UNSUPPORTED: a frame of a newer version. The caller frees the scan, also after a failure, and holds a
 * pin.
 */
enum lmcs_status lmcs_scan(const struct lmcs_bytes *bytes, const struct lmcs_content *content,
                           const struct lmcs_identity *identity, struct lmcs_workers *workers, struct lmcs_scan *scan,
                           struct lmcs_error *error);
/* The hashes of the decoded blocks alone, when what is stored vouches for them (scan->knows_hashes). */
enum lmcs_status lmcs_scan_head(const struct lmcs_bytes *bytes, const struct lmcs_content *content,
                                const struct lmcs_identity *identity, struct lmcs_scan *scan, struct lmcs_error *error);
void lmcs_scan_free(struct lmcs_scan *scan);
static inline bool lmcs_scan_is_clean(const struct lmcs_scan *scan)
{
    return scan->bad_count == 0 && !scan->head_is_bad;
}
/* Where the stored bytes of a block are; false: that is not known. */
bool lmcs_scan_place(const struct lmcs_scan *scan, const struct lmcs_content *content, uint64_t block, uint64_t *at,
                     uint64_t *bytes);
/* Decoded bytes of block `block` of `raw_bytes`. */
uint64_t lmcs_block_bytes(uint64_t raw_bytes, uint64_t block);

#endif
