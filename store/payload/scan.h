/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/scan.h - checks the stored bytes of a content, without its base and without decoding (store/REPAIR.md). */
#ifndef LMCS_PAYLOAD_SCAN_H
#define LMCS_PAYLOAD_SCAN_H

#include "records/content.h"

/* Stored bytes to scan: in a pool, or in memory. */
struct lmcs_bytes {
    enum lmcs_status (*read)(const struct lmcs_bytes *bytes, uint64_t at, void *to, uint64_t count,
                             struct lmcs_error *error);
    const struct lmcs_media *media; /* of a pool ... */
    const struct lmcs_content *content;
    const unsigned char *memory;                  /* ... or the bytes themselves */
    bool (*go_on)(void *context, uint64_t bytes); /* may be NULL; gets bytes read; false: stop with LMCS_CANCELLED */
    void *context;
};
struct lmcs_bytes lmcs_bytes_of_pool(const struct lmcs_media *media, const struct lmcs_content *content);
struct lmcs_bytes lmcs_bytes_of_memory(const unsigned char *memory);

struct lmcs_scan {
    uint64_t blocks; /* of the decoded form; 0: empty tensor */
    uint64_t bad_count;
    unsigned char *bad;      /* 1 for each bad block */
    bool head_is_bad;        /* the header or the table of hashes is bad */
    bool knows_hashes;       /* `hashes` are right, even if the head is bad */
    struct lmc_hash *hashes; /* of decoded blocks */
    unsigned char *header;   /* the header of a sound frame; else NULL */
    struct lmc_frame frame;
    const char *why; /* of the last bad block */
};

struct lmcs_workers;
/* Scans all blocks. `workers` NULL: in this thread. Damage is no failure. LMCS_DAMAGED: the record is not credible.
 * LMCS_UNSUPPORTED: a newer frame. The caller frees the scan in any case, and holds a pin. */
enum lmcs_status lmcs_scan(const struct lmcs_bytes *bytes, const struct lmcs_content *content,
                           const struct lmcs_identity *identity, struct lmcs_workers *workers, struct lmcs_scan *scan,
                           struct lmcs_error *error);
/* Finds only the hashes of decoded blocks, if stored bytes confirm them (scan->knows_hashes). */
enum lmcs_status lmcs_scan_head(const struct lmcs_bytes *bytes, const struct lmcs_content *content,
                                const struct lmcs_identity *identity, struct lmcs_scan *scan, struct lmcs_error *error);
void lmcs_scan_free(struct lmcs_scan *scan);
static inline bool lmcs_scan_is_clean(const struct lmcs_scan *scan)
{
    return scan->bad_count == 0 && !scan->head_is_bad;
}
/* Finds the stored place of a block. False: unknown. */
bool lmcs_scan_place(const struct lmcs_scan *scan, const struct lmcs_content *content, uint64_t block, uint64_t *at,
                     uint64_t *bytes);
/* Decoded bytes of the block. */
uint64_t lmcs_block_bytes(uint64_t raw_bytes, uint64_t block);

#endif
