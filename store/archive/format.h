/* SPDX-License-Identifier: BSD-3-Clause */
/* archive/format.h - structs of the archive format, which store/ARCHIVE.md specifies. */
#ifndef LMCS_ARCHIVE_FORMAT_H
#define LMCS_ARCHIVE_FORMAT_H

#include <assert.h>
#include <stdint.h>

#define LMCS_ARCHIVE_MAGIC       "LMCSARCH"
#define LMCS_ARCHIVE_VERSION     1u
#define LMCS_ARCHIVE_PIECE_BYTES ((size_t)1 << 20)
#define LMCS_ARCHIVE_PAIRS       4096u /* most entries the writer puts into a record */

struct lmcs_archive_head_df {
    char magic[8];
    uint32_t version;
    uint32_t reserved;
    uint64_t incompatible;
    uint64_t compatible;
    uint64_t check;
};
static_assert(sizeof(struct lmcs_archive_head_df) == 40, "archive head layout");

enum lmcs_archive_type {
    LMCS_ARCHIVE_SHELF = 1,
    LMCS_ARCHIVE_SNAPSHOT,
    LMCS_ARCHIVE_IDENTITY,
    LMCS_ARCHIVE_CONTENT,
    LMCS_ARCHIVE_DATA,
    LMCS_ARCHIVE_ENTRIES,
    LMCS_ARCHIVE_SNAPSHOT_END,
    LMCS_ARCHIVE_TAG,
    LMCS_ARCHIVE_END,
    LMCS_ARCHIVE_ORIGIN,
    LMCS_ARCHIVE_SINCE,
    LMCS_ARCHIVE_KNOWN,
    LMCS_ARCHIVE_TYPES
};
#define LMCS_ARCHIVE_IGNORABLE 0x80000000u /* readers may ignore types from here on */
#define LMCS_ARCHIVE_SHELF_ID  0x80000001u

struct lmcs_archive_record_df {
    uint32_t type;
    uint32_t bytes; /* of the payload, which follows */
    uint64_t payload_check;
    uint64_t check;
};
static_assert(sizeof(struct lmcs_archive_record_df) == 24, "archive record layout");

struct lmcs_archive_shelf_df {
    uint64_t next_number;
    uint32_t keep_raw;
    uint32_t name_bytes;
    /* the name follows */
};
static_assert(sizeof(struct lmcs_archive_shelf_df) == 16, "archive shelf layout");

#define LMCS_ARCHIVE_ALL_TAGS 1u /* the shelf's tags that the archive lacks were removed, or are on newer snapshots */

struct lmcs_archive_shelf_id_df {
    uint64_t identity[2]; /* 0, 0: unknown */
    uint32_t flags;       /* readers ignore unknown ones */
    uint32_t reserved;
};
static_assert(sizeof(struct lmcs_archive_shelf_id_df) == 24, "archive shelf identity layout");

#define LMCS_ARCHIVE_CHANGES       1u /* entries are changes to the previous snapshot's */
#define LMCS_ARCHIVE_META_ATTACHED 2u /* metadata is the attachment LMCS_META_NAME */

struct lmcs_archive_snapshot_df {
    uint64_t number;
    int64_t step;
    uint64_t time_ns;
    uint64_t parent;
    unsigned char group[16];
    uint32_t flags;
    uint32_t meta_bytes;
    /* the metadata follows */
};
static_assert(sizeof(struct lmcs_archive_snapshot_df) == 56, "archive snapshot layout");

struct lmcs_archive_identity_df {
    uint8_t kind;
    uint8_t dtype;
    uint8_t ndim;
    uint8_t is_part;
    uint32_t name_bytes;
    /* shape, [global shape, offsets], name */
};
static_assert(sizeof(struct lmcs_archive_identity_df) == 8, "archive identity layout");

struct lmcs_archive_content_df {
    uint64_t identity;
    uint64_t digest_low;
    uint64_t digest_high;
    uint64_t raw_bytes;
    uint64_t stored_bytes;
    uint8_t payload; /* enum lmcs_payload_kind */
    uint8_t flags;   /* LMCS_CONTENT_SETTLED */
    uint8_t base_count;
    uint8_t output; /* of a linked content */
    uint8_t reserved[4];
    /* bases (u64 content each) follow; linked: the link */
};
static_assert(sizeof(struct lmcs_archive_content_df) == 48, "archive content layout");

struct lmcs_archive_known_df {
    uint64_t identity;
    uint64_t digest_low;
    uint64_t digest_high;
    uint64_t raw_bytes;
};
static_assert(sizeof(struct lmcs_archive_known_df) == 32, "archive known content layout");

struct lmcs_archive_since_df {
    uint64_t hash_low;
    uint64_t hash_high;
};
static_assert(sizeof(struct lmcs_archive_since_df) == 16, "archive since layout");

struct lmcs_archive_entry_df {
    uint64_t identity;
    uint64_t content; /* 0: the identity is gone since the previous snapshot */
};
static_assert(sizeof(struct lmcs_archive_entry_df) == 16, "archive entry layout");

struct lmcs_archive_snapshot_end_df {
    uint64_t entry_count;
};

struct lmcs_archive_tag_df {
    uint64_t number;
    uint32_t tag_bytes;
    uint32_t reserved;
    /* the tag follows */
};
static_assert(sizeof(struct lmcs_archive_tag_df) == 16, "archive tag layout");

struct lmcs_archive_origin_df {
    uint64_t number;
    uint64_t time_ns;
    uint32_t name_bytes; /* of the source shelf */
    uint32_t reserved;
    /* the name follows */
};
static_assert(sizeof(struct lmcs_archive_origin_df) == 24, "archive origin layout");

struct lmcs_archive_end_df {
    uint64_t shelves;
    uint64_t snapshots;
    uint64_t identities;
    uint64_t contents;
    uint64_t tags;
    uint64_t records; /* before this one */
    uint64_t hash_low;
    uint64_t hash_high;
};
static_assert(sizeof(struct lmcs_archive_end_df) == 64, "archive end layout");

#endif
