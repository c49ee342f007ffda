/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * frame.h - a frame's header (FORMAT.md, 3 and 4), and whole frames.
 *
 * Offsets, never structs, describe bytes on media.
 */
#ifndef LMC_FRAME_H
#define LMC_FRAME_H

#include "lmc.h"

#define LMCI_VERSION       2 /* the newest */
#define LMCI_VERSION_FIRST 1
#define LMCI_BLOCK_LOG2    20

/* Offsets of blocks have 56 bits. */
#define LMCI_MAX_FRAME_BYTES (UINT64_C(1) << 56)
#define LMCI_MAX_RAW_BYTES   (UINT64_C(1) << 55)

enum lmci_prefix_offset {
    LMCI_AT_MAGIC = 0,         /* "LMCF" */
    LMCI_AT_VERSION = 4,       /* u32 */
    LMCI_AT_INCOMPATIBLE = 8,  /* u32: unknown flags are rejected */
    LMCI_AT_COMPATIBLE = 12,   /* u32: unknown flags are ignored */
    LMCI_AT_RAW_BYTES = 16,    /* u64 */
    LMCI_AT_FRAME_BYTES = 24,  /* u64 */
    LMCI_AT_DTYPE = 32,        /* u16 */
    LMCI_AT_PREDICTOR = 34,    /* u16 */
    LMCI_AT_BASE_COUNT = 36,   /* u8 */
    LMCI_AT_OUTPUT_COUNT = 37, /* u8 */
    LMCI_AT_BLOCK_LOG2 = 38,   /* u8 */
    LMCI_AT_RESERVED_8 = 39,   /* u8, 0 */
    LMCI_AT_CONSTANTS = 40,    /* u32: bytes */
    LMCI_AT_TABLES = 44,       /* u32: bytes */
    LMCI_AT_EXTENSIONS = 48,   /* u32: bytes to ignore */
    LMCI_AT_RESERVED_32 = 52,  /* u32, 0 */
    LMCI_AT_CHECKSUM = 56      /* u64: hash64 of the bytes before, seed 0 */
};

enum lmci_entry_offset {
    LMCI_AT_PLACE = 0,      /* u64: low 56 bits offset in the frame, high 8 mode */
    LMCI_AT_CODED_HASH = 8, /* u64 */
    LMCI_AT_RAW_HASH = 16,  /* low u64, high u64; one for each output */
    LMCI_ENTRY_BYTES = 32
};

struct lmci_header {
    uint32_t version; /* the oldest that has what the blocks use */
    uint32_t dtype;
    uint32_t flags;
    uint32_t base_count; /* at most 1; of a link its arrays */
    uint64_t raw_bytes;
    const struct lmc_hash *base_digest; /* base_count */
    uint64_t block_count;
    const struct lmc_block *blocks;           /* or NULL */
    const struct lmc_link_rule *rule;         /* or NULL */
    const struct lmc_link_block *link_blocks; /* or NULL */
};

/* Bytes without constants, tables and extensions. */
uint64_t lmci_header_bytes(uint32_t base_count, uint64_t block_count);
uint64_t lmci_link_header_bytes(uint32_t array_count, uint64_t block_count);
struct lmc_hash lmci_frame_raw_hash(const struct lmc_frame *frame, uint64_t index, uint32_t output);
/* `output` exists. LMC_INVALID: too many dimensions, or no shape. */
enum lmc_status lmci_frame_digest(const struct lmc_frame *frame, uint32_t output, uint32_t dtype, uint32_t ndim,
                                  const uint64_t *shape, struct lmc_hash *digest);
void lmci_header_write(const struct lmci_header *header, unsigned char *dst);

/* ---- Whole frames ---------------------------------------------------------------------------------------------- */

/* Encodes blocks and header of a tensor or a link. */
struct lmci_frame_encoder {
    const void *encoder;
    uint64_t block_count;
    size_t header_bytes;
    size_t entry_bytes; /* of struct lmc_block or lmc_link_block, which begin with coded_bytes */
    enum lmc_status (*encode_block)(const void *encoder, uint64_t index, void *dst, size_t dst_bytes, void *entry);
    enum lmc_status (*encode_header)(const void *encoder, const void *entries, void *dst, size_t dst_bytes);
};

/* Encodes all blocks, then the header. */
enum lmc_status lmci_compress(const struct lmci_frame_encoder *frame, unsigned char *dst, size_t dst_bytes,
                              size_t *frame_bytes, const char **message);

#endif
