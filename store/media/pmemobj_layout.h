/* SPDX-License-Identifier: BSD-3-Clause */
/* media/pmemobj_layout.h - libpmemobj's format as far as the store relies on it (FORMAT.md, section 2). */
#ifndef LMCS_MEDIA_PMEMOBJ_LAYOUT_H
#define LMCS_MEDIA_PMEMOBJ_LAYOUT_H

#include <assert.h>
#include <stdint.h>

/* ---- The descriptor: places in the pool ---- */

#define LMCS_POBJ_LAYOUT_NAME 4096u
#define LMCS_POBJ_LANES       5120u /* u64 offset, u64 count */
#define LMCS_POBJ_HEAP        5136u /* u64 */
#define LMCS_POBJ_ROOT        6144u /* end of the checksum: struct lmcs_pobj_root_df */
#define LMCS_POBJ_END         8192u

struct lmcs_pobj_root_df {
    uint64_t root; /* the root object */
    uint64_t run_id;
    uint64_t root_bytes;
    uint64_t conversion; /* 0, except in pools made by a conversion tool */
    uint64_t heap_bytes;
};

/* ---- Lanes: three logs each, two redo logs and an undo log ---- */

#define LMCS_LANE_BYTES 3072u
#define LMCS_LANE_LOGS  3u

struct lmcs_log_df {
    uint64_t checksum; /* Fletcher's, of this header and the entries */
    uint64_t next;     /* a further log; 0: none */
    uint64_t capacity; /* bytes of entries */
    uint64_t generation;
    uint64_t flags;
    uint64_t unused[3];
};
static_assert(sizeof(struct lmcs_log_df) == 64, "log layout");

/* Entry of a redo log. The three highest bits of `place` are the operation. */
struct lmcs_log_entry_df {
    uint64_t place; /* 0: no more entries */
    uint64_t value;
};
#define LMCS_LOG_OPERATION (UINT64_C(7) << 61)
#define LMCS_LOG_SET       (UINT64_C(0) << 61)
#define LMCS_LOG_AND       (UINT64_C(1) << 61)
#define LMCS_LOG_OR        (UINT64_C(2) << 61)

/* ---- The heap: a header, then zones: a header, headers of chunks, chunks ---- */

#define LMCS_HEAP_HEADER_BYTES   1024u
#define LMCS_ZONE_MAGIC          0xC3F0A2D2u
#define LMCS_ZONE_HEADER_BYTES   64u
#define LMCS_ZONE_META_BYTES     ((uint64_t)512 << 10)
#define LMCS_ZONE_CHUNKS         65528u
#define LMCS_CHUNK_BYTES         ((uint64_t)256 << 10)
#define LMCS_ZONE_BYTES          (LMCS_ZONE_META_BYTES + LMCS_ZONE_CHUNKS * LMCS_CHUNK_BYTES)
#define LMCS_OBJECT_HEADER_BYTES 16u
#define LMCS_OBJECT_TYPE         1u /* of our objects */

enum lmcs_chunk_type { LMCS_CHUNK_UNKNOWN, LMCS_CHUNK_FOOTER, LMCS_CHUNK_FREE, LMCS_CHUNK_USED, LMCS_CHUNK_RUN };
#define LMCS_CHUNK_COMPACT 1u /* flags: its objects have headers of 16 bytes ... */
#define LMCS_CHUNK_FLEX    8u /* ... and its bitmap has the size that it needs */

struct lmcs_chunk_df {
    uint16_t type;
    uint16_t flags;
    uint32_t chunks;
};
static_assert(sizeof(struct lmcs_chunk_df) == 8, "chunk header layout");

struct lmcs_object_header_df {
    uint64_t bytes; /* with this header; the 16 highest bits are flags */
    uint64_t type;
};
#define LMCS_OBJECT_BYTES_MASK ((UINT64_C(1) << 48) - 1)

/* A chunk of small objects. Its bitmap of used units fills, with this header, whole cache lines. */
struct lmcs_run_df {
    uint64_t unit_bytes;
    uint64_t alignment;
    uint64_t bitmap[];
};

#endif
