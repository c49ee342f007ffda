/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/layout.h - the format on the medium, byte by byte; store/FORMAT.md describes it in words.
 *
 * Numbers are little-endian and of fixed width; places are offsets from the pool's start. The libpmemobj root object is
 * a superblock whose last word, `root`, names the current root page. Everything reached from there is written once and
 * made durable before it is reached: pages never change in place.
 */
#ifndef LMCS_MEDIA_LAYOUT_H
#define LMCS_MEDIA_LAYOUT_H

#include <assert.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "lmc-store runs on little-endian machines"
#endif

#define LMCS_LAYOUT_NAME    "lmcstore"
#define LMCS_FORMAT_VERSION 1
#define LMCS_PAGE_BYTES     4096u

/* ---- Superblock: the libpmemobj root object ---- */

#define LMCS_SUPERBLOCK_MAGIC "LMCSTORE"
#define LMCS_SUPERBLOCK_BYTES 4096u

struct lmcs_superblock_df {
    char magic[8];
    uint32_t version;
    uint32_t reserved0;
    uint64_t compatible;           /* features that a reader may ignore */
    uint64_t incompatible;         /* features required to read */
    uint64_t read_only_compatible; /* features required to write */
    unsigned char uuid[16];
    uint64_t created_ns;
    uint64_t reserved[7];
    uint64_t check; /* hash64 of the bytes before it, seed 0 */
    uint64_t root;  /* page number of the root page << 16 | low 16 bits of hash64 of that number; 0: not yet made */
};
static_assert(sizeof(struct lmcs_superblock_df) == 136, "superblock layout");

/* ---- Pages ---- */

/* A page's offset and checksum: the root vouches for every page below. */
struct lmcs_ref_df {
    uint64_t offset; /* 0: none */
    uint64_t check;
};
static_assert(sizeof(struct lmcs_ref_df) == 16, "reference layout");

/* The pool's trees. Values are part of the format. */
enum lmcs_tree_kind {
    LMCS_TREE_SHELVES = 0,     /* (shelf, 0) -> lmcs_shelf_df */
    LMCS_TREE_SHELF_NAMES,     /* (hash of name, shelf) -> nothing */
    LMCS_TREE_IDENTITIES,      /* (identity, 0) -> lmcs_identity_df */
    LMCS_TREE_IDENTITY_NAMES,  /* (hash of name, seed kind + 1; identity) -> nothing */
    LMCS_TREE_IDENTITY_COUNTS, /* (identity, 0) -> u64: contents entered under it, and runs of others */
    LMCS_TREE_CONTENTS,        /* (content, 0) -> lmcs_content_df */
    LMCS_TREE_DEPENDENTS,      /* (base, content) -> nothing; (0, content) -> u64 successor: used as a base only */
    LMCS_TREE_SPACE,           /* (offset, 0) -> lmcs_space_df: the payload at an offset */
    LMCS_TREE_OBJECTS,         /* (offset, 0) -> lmcs_object_df: our objects of libpmemobj */
    LMCS_TREE_FREE_PAGES,      /* (epoch in which they became free, offset) -> u64 adjacent pages */
    LMCS_TREE_RETIRED,         /* (epoch in which it became unreachable, offset) -> u64 bytes of payload */
    LMCS_TREE_GROUPS,          /* (group high, group low) -> u64 shelf, u64 number: prepared snapshots */
    LMCS_TREE_ORIGINS,         /* (shelf, 0) -> lmcs_origin_df: the snapshot that the shelf was forked from */
    LMCS_TREE_LIVE,            /* (shelf, live variable) -> lmcs_live_df */
    LMCS_TREE_LIVE_NAMES,      /* (hash of name, seed shelf; live variable) -> nothing */
    LMCS_TREE_SAFETY,          /* (content, 0) -> lmcs_parity_df; (content, 1 + block) -> lmcs_lost_df;
                                  (0, content) -> lmcs_wanted_df */
    LMCS_ROOT_TREES = 16,      /* of the root page; those not listed are zero */
    /* A shelf's trees, in its record. */
    LMCS_TREE_NUMBERS = 16, /* (number, 0) -> lmcs_snapshot_df */
    LMCS_TREE_STEPS,        /* (step with its sign bit flipped, number) -> nothing */
    LMCS_TREE_TIMES,        /* (time_ns, number) -> nothing */
    LMCS_TREE_TAGS,         /* (hash of tag, 0 and up on collision) -> lmcs_tag_df */
    LMCS_TREE_TAGGED,       /* (number, hash of tag) -> the tag's collision index, u64 */
    LMCS_TREE_MANIFEST,     /* (identity, 0) -> lmcs_manifest_df; one for each snapshot, pages shared */
    LMCS_TREE_KINDS
};
#define LMCS_SHELF_TREES 5

#define LMCS_NODE_MAGIC  0x4e434d4cu /* "LMCN" */
#define LMCS_MAX_LEVEL   10u
#define LMCS_MAX_VALUE   1900u

/* The entry at `offset`: a key of 16 bytes and its value. */
struct lmcs_slot_df {
    uint16_t offset;
    uint16_t value_bytes;
};

/*
 * Header, slots ascending by key, free bytes, entries. Level 0 is a leaf. An inner entry's value is a child's
 * lmcs_ref_df; its key is at most the child's smallest.
 */
struct lmcs_node_df {
    uint32_t magic;
    uint8_t level;
    uint8_t kind; /* enum lmcs_tree_kind */
    uint16_t count;
    uint64_t self;    /* its own offset */
    uint64_t epoch;   /* of the commit that wrote it */
    uint16_t low;     /* first byte of the entries */
    uint16_t garbage; /* bytes of removed entries among them */
    uint32_t reserved;
    uint64_t check; /* hash64 of the page with this word 0, seed: its offset */
    struct lmcs_slot_df slots[];
};
static_assert(sizeof(struct lmcs_node_df) == 40, "node layout");

struct lmcs_key_df {
    uint64_t high;
    uint64_t low;
};

#define LMCS_FREE_RANGE_MOST 4096u /* free pages in one entry */

#define LMCS_JOURNALS        2u
enum lmcs_journal_kind { LMCS_JOURNAL_REDO = 0, LMCS_JOURNAL_UNDO = 1 };

#define LMCS_ROOT_MAGIC 0x52434d4cu /* "LMCR" */

/* A tree. Keys from `tail_from` on are in its tail, if any: a leaf outside of the tree's pages. */
struct lmcs_root_tree_df {
    struct lmcs_ref_df ref;
    uint64_t count; /* entries, the tail's included */
    struct lmcs_ref_df tail;
    struct lmcs_key_df tail_from;
};
static_assert(sizeof(struct lmcs_root_tree_df) == 56, "tree layout");

#define LMCS_PAGE_RANGE_MOST ((uint64_t)1 << 30) /* bytes */

/* Adjacent pages, from `next` to `end`. */
struct lmcs_page_range_df {
    uint64_t next;
    uint64_t end;
};

struct lmcs_root_df {
    uint32_t magic;
    uint32_t version;
    uint64_t self;
    uint64_t epoch;
    uint64_t time_ns;
    struct lmcs_root_tree_df trees[LMCS_ROOT_TREES];
    uint64_t next_shelf;
    uint64_t next_identity;
    uint64_t next_content;
    struct lmcs_page_range_df fresh; /* unused pages of the newest slab */
    uint64_t slab_bytes;             /* all slabs */
    uint64_t extent_bytes;           /* all extents' file space */
    uint64_t live_bytes;             /* of referenced payloads */
    uint64_t limit_bytes;
    uint64_t snapshot_count;
    uint64_t last_snapshot_bytes;
    uint64_t free_pages;             /* in the tree of free pages */
    struct lmcs_page_range_df spare; /* unused pages, reserved for removals */
    uint64_t next_live;
    uint64_t live_committed; /* sequence of the newest journal committed by this root or an earlier one */
    struct lmcs_page_range_df journals[LMCS_JOURNALS]; /* of live variables; 0, 0: none */
    uint64_t lost_contents;                            /* with records of lost blocks */
    uint64_t parity_bytes;                             /* the parity part of live_bytes */
    uint64_t scrub_next;                               /* content where the next sample, or the background, begins */
    uint64_t scrub_begun_ns;                           /* of the current pass; 0: none */
    uint64_t scrub_bytes;                              /* read by it */
    uint64_t scrub_found;                              /* damages that it found */
    uint64_t scrub_repaired;                           /* of these, repaired */
    uint64_t scrub_done_ns;                            /* end of the last complete pass; 0: none */
    uint64_t ring;                                     /* offset of the object with the ring of annotations; 0: none */
    uint64_t ring_applied;                             /* sequence of the last annotation taken from it */
    uint64_t ring_check;                               /* that annotation's check */
    uint64_t annotated;    /* annotations taken from it; metrics and notes that a writer set */
    uint64_t ring_dropped; /* of those in the ring: their snapshot had gone */
    uint64_t reserved[42];
    uint64_t check; /* hash64 of the bytes before it, seed: its offset */
};
static_assert(sizeof(struct lmcs_root_df) <= LMCS_PAGE_BYTES, "root page layout");
static_assert(sizeof(struct lmcs_root_df) == 32 + 16 * 56 + 14 * 8 + 6 * 8 + 55 * 8 + 8, "root page layout");

/* ---- Records ---- */

/* LMCS_OBJECT_LIVE and _RING use kind, bytes and first only; records of variables, and the root, describe the rest. */
enum lmcs_object_kind { LMCS_OBJECT_SLAB = 1, LMCS_OBJECT_EXTENT = 2, LMCS_OBJECT_LIVE = 3, LMCS_OBJECT_RING = 4 };

/* Our object of libpmemobj at user offset key.high. */
struct lmcs_object_df {
    uint32_t kind;
    uint32_t purpose;       /* of an extent: 0 raw captures, 1 compacted */
    uint64_t bytes;         /* of the object */
    uint64_t first;         /* its first aligned byte */
    uint64_t cursor;        /* extents: payloads are between first and here */
    uint64_t backed;        /* extents: file space is allocated up to here */
    uint64_t punched_bytes; /* ... except these bytes, given back */
    uint64_t live_bytes;    /* of referenced payloads */
    uint64_t retired_bytes; /* of retired payloads */
};
static_assert(sizeof(struct lmcs_object_df) == 64, "object layout");

struct lmcs_space_df {
    uint64_t content;
    uint64_t bytes;
};

/* The largest next number of a shelf; archives accept none above. */
#define LMCS_LARGEST_NUMBER ((uint64_t)1 << 62)

#define LMCS_SHELF_STAGING  1u /* an unfinished restore: invisible, removed by the next writer ... */
#define LMCS_SHELF_KEPT     2u /* ... except with this flag: the restore can be resumed */

struct lmcs_shelf_df {
    uint64_t id;
    uint32_t flags;
    uint32_t keep_raw;
    uint64_t next_number;
    uint64_t latest;         /* the newest committed; 0: none */
    uint64_t snapshot_count; /* committed */
    uint64_t compacted;      /* the compactor has processed snapshots up to this number */
    uint64_t created_ns;
    struct lmcs_root_tree_df trees[LMCS_SHELF_TREES]; /* NUMBERS to TAGGED */
    uint64_t guarded;     /* snapshots up to this number have been checked for the policy's parity */
    uint64_t remote;      /* of snapshot_count: those whose contents are in an object store */
    uint64_t identity[2]; /* random; restores keep it. 0, 0: unknown, made by an earlier version */
    uint32_t policy_bytes;
    uint32_t name_bytes;
    /* the name follows, then the text of the policy */
};
static_assert(sizeof(struct lmcs_shelf_df) == 56 + 5 * 56 + 40, "shelf layout");

struct lmcs_origin_df {
    uint64_t shelf; /* the original's id; 0: no longer in this pool */
    uint64_t number;
    uint64_t time_ns;    /* distinguishes it from another of that number on a shelf of that name */
    uint32_t name_bytes; /* of the shelf's last known name */
    uint32_t reserved;
    /* the name follows */
};
static_assert(sizeof(struct lmcs_origin_df) == 32, "origin layout");

/* Remote: committed, and its contents are in an object store; no entries, lineage 0. */
enum lmcs_snapshot_state { LMCS_SNAPSHOT_COMMITTED = 1, LMCS_SNAPSHOT_PREPARED = 2, LMCS_SNAPSHOT_REMOTE = 3 };

#define LMCS_META_INLINE 1200u /* longer metadata is an attachment */

struct lmcs_snapshot_df {
    uint64_t number;
    uint32_t state;
    uint32_t meta_bytes; /* of the inline JSON; UINT32_MAX: in the attachment LMCS_META_NAME */
    int64_t step;
    uint64_t time_ns;
    uint64_t parent;
    uint64_t epoch;   /* of the commit that made it */
    uint64_t lineage; /* neighbours of one lineage share manifest pages */
    struct lmcs_ref_df manifest;
    uint64_t entry_count;
    uint64_t tensor_count;
    uint64_t raw_bytes;
    unsigned char group[16];
    uint32_t links; /* enum lmcs_links */
    uint32_t reserved0;
    uint64_t reserved;
    /* {"metrics": {...}, "meta": {...}} follows; of a remote one then the URL */
};
static_assert(sizeof(struct lmcs_snapshot_df) == 128, "snapshot layout");
#define LMCS_META_NAME "lmcstore.meta"
#define LMCS_TAGS_NAME "lmcstore.tags" /* the tags of a snapshot that was prepared, each with its NUL */
#define LMCS_TAGS_MOST 65536u
#define LMCS_META_MOST ((uint64_t)64 << 20)

/* Attachments of snapshots with declared relations. */
#define LMCS_RELATIONS_MAGIC 0x58434d4cu /* "LMCX" */
#define LMCS_CONSTANTS_MAGIC 0x43434d4cu /* "LMCC" */

struct lmcs_relations_df {
    uint32_t magic;
    uint32_t version; /* 1 */
    uint64_t count;
};
static_assert(sizeof(struct lmcs_relations_df) == 16, "relations layout");

struct lmcs_related_df {
    uint32_t group; /* of constants */
    uint8_t name_count;
    uint8_t reserved[3];
    uint16_t name_bytes[4];
    /* the names follow, not terminated */
};
static_assert(sizeof(struct lmcs_related_df) == 16, "relation layout");

struct lmcs_constants_df {
    uint32_t optimizer; /* as in codec/lmc.h */
    uint32_t flags;
    double constants[9]; /* step, lr, weight_decay, beta1, beta2, eps, momentum, dampening, scale */
};
static_assert(sizeof(struct lmcs_constants_df) == 80, "constants layout");

/* Results of linking a snapshot to its predecessor. */
enum lmcs_links {
    LMCS_LINKS_UNKNOWN = 0, /* not tried, or nothing changed together */
    LMCS_LINKS_MADE,
    LMCS_LINKS_FIRST,       /* lines were as long as the policy allows: begins the next */
    LMCS_LINKS_GAP,         /* the step before is missing */
    LMCS_LINKS_UNEXPLAINED, /* no known arithmetic explains the step */
    LMCS_LINKS_LARGE,       /* a link is not smaller than deltas */
    LMCS_LINKS_OFF,         /* disabled by the policy */
    LMCS_LINKS_UNFIT,       /* declared tensors are missing or differ in form */
    LMCS_LINKS_NOT_RAW,     /* declared or previous tensors are coded, or have dependents */
    LMCS_LINKS_NOT_FOUND,   /* no relations are declared, and the data show no optimizer step */
    LMCS_LINKS_COUNT
};

struct lmcs_tag_df {
    uint64_t number;
    uint32_t tag_bytes;
    uint32_t reserved;
    /* the tag follows */
};

struct lmcs_manifest_df {
    uint64_t content;
    uint64_t birth; /* snapshot where this run of the content under this name began */
};

struct lmcs_identity_df {
    uint8_t kind;
    uint8_t dtype;
    uint8_t ndim;
    uint8_t is_part; /* 1: global shape and offsets follow the shape */
    uint32_t name_bytes;
    uint64_t hash; /* hash64 of the rest, seed: the first four bytes */
    /* shape, [global shape, offsets], name */
};
static_assert(sizeof(struct lmcs_identity_df) == 16, "identity layout");

/*
 * A link is a content without a tensor. Its payload, a link frame, leads from its bases, the arrays before a step, to
 * the contents that name it. A linked one of those has no payload: the link stores it.
 */
enum lmcs_payload_kind { LMCS_PAYLOAD_RAW = 0, LMCS_PAYLOAD_FRAME = 1, LMCS_PAYLOAD_LINK = 2, LMCS_PAYLOAD_LINKED = 3 };
#define LMCS_CONTENT_SETTLED  1u /* encoding was tried: a frame is not smaller */
#define LMCS_CONTENT_HAS_LINK 2u /* raw or linked: produced by a link, whose id follows the bases */

struct lmcs_part_df {
    uint64_t offset;
    uint64_t bytes;
};

struct lmcs_content_df {
    uint64_t digest_low;
    uint64_t digest_high;
    uint64_t raw_bytes;
    uint64_t stored_bytes; /* payload: raw bytes and table, or frame; without padding */
    uint64_t identity;     /* the first with this content */
    uint64_t runs;         /* in manifests */
    uint32_t base_uses;    /* deltas based on it */
    uint16_t height;       /* at least the longest chain of deltas based on it */
    uint8_t payload;       /* enum lmcs_payload_kind */
    uint8_t flags;
    uint16_t part_count;
    uint8_t base_count;
    uint8_t output; /* with a link: its index among the link's arrays */
    /*
     * Contents of its name encoded since the last keyframe: a hint. A link: links to undo to read its outputs, with
     * itself.
     */
    uint32_t place;
    /* parts, then bases (u64 content each), then the link (u64 content) */
};
static_assert(sizeof(struct lmcs_content_df) == 64, "content layout");

/* Unreadable blocks that could not be repaired. */
struct lmcs_lost_df {
    uint64_t blocks; /* from the key's block on */
    uint64_t found_ns;
};
static_assert(sizeof(struct lmcs_lost_df) == 16, "lost blocks layout");

/* Parity of a payload's stored bytes (compact/parity.c). Its parts are in the tree of space, with LMCS_SPACE_PARITY. */
struct lmcs_parity_df {
    uint64_t stored_bytes; /* of the protected payload */
    uint64_t table_check;  /* hash64 of the table of units, seed: the content */
    uint32_t unit_bytes;
    uint8_t data;   /* columns of data ... */
    uint8_t parity; /* ... and of parity */
    uint16_t part_count;
    /* parts (lmcs_part_df) follow */
};
static_assert(sizeof(struct lmcs_parity_df) == 24, "parity layout");

struct lmcs_wanted_df {
    uint32_t data; /* wanted parity: columns of data ... */
    uint32_t parity;
};

#define LMCS_SPACE_PARITY ((uint64_t)1 << 63) /* in lmcs_space_df.content: parity, not the payload */

/*
 * In place of a successor: the compactor has nothing more to do for this base, which is freed with its last dependent.
 */
#define LMCS_BASE_SETTLED UINT64_MAX
#define LMCS_MAX_PARTS    16u /* of a payload */
#define LMCS_CHAIN_BOUND  7u  /* most deltas to undo to read a content */
#define LMCS_LINK_BOUND   64u /* most links to undo */

/* ---- Annotations (ANNOTATIONS.md) ---- */

/* The ring is slots from the object's first page on; sequence s is in slot s % LMCS_RING_SLOTS. */
#define LMCS_RING_SLOTS      128u
#define LMCS_RING_SLOT_BYTES 1024u

enum lmcs_annotation_kind {
    LMCS_ANNOTATION_TAG = 1,
    LMCS_ANNOTATION_METRIC = 2,
    LMCS_ANNOTATION_NOTE = 3,
    LMCS_ANNOTATION_SAFE = 4 /* snapshots are safe at a URL: they may leave the pool */
};

struct lmcs_annotation_df {
    uint64_t check; /* hash64 of the rest, the text included, seed: its offset */
    uint64_t sequence;
    uint64_t previous; /* the check of the annotation before it */
    uint64_t shelf;
    uint64_t number; /* of the snapshot; 0: the tag is removed */
    uint64_t time_ns;
    double value;  /* of a metric */
    uint32_t kind; /* enum lmcs_annotation_kind */
    uint32_t text_bytes;
    /* the text follows: a note, the name of a tag or metric, or "FIRST EPOCH URL" */
};
static_assert(sizeof(struct lmcs_annotation_df) == 64, "annotation layout");

/* ---- Live variables ---- */

/* A tensor's parts are whole pages; pages with its bytes have file space. */
struct lmcs_live_df {
    uint64_t created_ns;
    uint64_t bytes; /* of its data; of a value of variable length (u8, one dimension): see its slots */
    uint64_t cell;  /* offset of its lmcs_cell_df */
    uint32_t cell_bytes;
    uint32_t slot_bytes; /* a value: each of its two slots with header; a tensor: 0 */
    uint8_t form;        /* enum lmcs_live_form */
    uint8_t dtype;
    uint8_t ndim;
    uint8_t part_count;
    uint16_t note_bytes;
    uint16_t name_bytes;
    uint64_t reserved[2];
    /* shape (u64 each), parts (lmcs_part_df), note, name follow */
};
static_assert(sizeof(struct lmcs_live_df) == 56, "live variable layout");

#define LMCS_CELL_ALIGN 64u

/* Changes in place, without the record. A value's two slots follow. */
struct lmcs_cell_df {
    uint64_t identity;     /* hash64 of u64 shelf, u64 variable, seed: its offset */
    uint64_t version;      /* tensors; a value's version is its sequence */
    uint64_t written_ns;   /* likewise */
    uint64_t acknowledged; /* values: a slot of this or a later sequence is whole */
    uint64_t reserved[4];
};
static_assert(sizeof(struct lmcs_cell_df) == 64, "cell layout");

/* The value is the whole slot with the highest sequence. */
struct lmcs_value_df {
    uint64_t check; /* hash64 of the rest, data included, seed: its offset */
    uint64_t sequence;
    uint64_t written_ns;
    uint32_t bytes;
    uint32_t reserved;
    /* the data follow */
};
static_assert(sizeof(struct lmcs_value_df) == 32, "slot layout");

/* The attachment of live variables: a header, then an entry for each. */
#define LMCS_LIVE_NAME  "lmcstore.live"
#define LMCS_LIVE_MAGIC 0x4c434d4cu /* "LMCL" */

struct lmcs_live_table_df {
    uint32_t magic;
    uint32_t version; /* 1 */
    uint64_t count;
};

struct lmcs_live_entry_df {
    uint64_t reserve_bytes;
    uint8_t form;
    uint8_t dtype;
    uint8_t ndim;
    uint8_t reserved;
    uint16_t note_bytes;
    uint16_t name_bytes;
    /* shape (u64 each), note, name follow, without padding */
};
static_assert(sizeof(struct lmcs_live_entry_df) == 16, "live table layout");

#define LMCS_JOURNAL_MAGIC 0x4a434d4cu /* "LMCJ" */
#define LMCS_JOURNAL_ROOT  1u          /* committed by a root whose live_committed is its sequence, not by itself */

/* The start of a journal's first page. Sequence 0: finished. */
struct lmcs_journal_df {
    uint32_t magic;
    uint32_t flags;
    uint64_t sequence;
    uint64_t entries;     /* redo: entries in the table on the next page; undo: 0, entries are there */
    uint64_t table_check; /* redo: hash64 of the table, seed: sequence */
    uint64_t last;        /* the greatest sequence ever used */
    uint64_t reserved[2];
    uint64_t check; /* hash64 of the bytes before it, seed: its offset */
};
static_assert(sizeof(struct lmcs_journal_df) == 64, "journal layout");

/*
 * Bytes for an offset. Redo: data follow the table in order, each at a multiple of 64. Undo: data follow the entry; the
 * next entry begins at a multiple of 64.
 */
struct lmcs_journal_entry_df {
    uint64_t place;
    uint64_t bytes;
    uint64_t sequence;
    uint64_t check; /* hash64 of the data, seed: hash64 of the three words before, seed 0 */
};
static_assert(sizeof(struct lmcs_journal_entry_df) == 32, "journal entry layout");

/* Payloads of this size or more begin and end on a page; smaller ones on LMCS_PACK_ALIGN. */
#define LMCS_ALIGNED_BYTES 65536u
#define LMCS_PACK_ALIGN    64u

static inline uint64_t lmcs_page_up(uint64_t bytes)
{
    return (bytes + LMCS_PAGE_BYTES - 1) & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
}

/* Bytes of a payload up to the earliest start of the next. */
static inline uint64_t lmcs_room(uint64_t bytes)
{
    return bytes >= LMCS_ALIGNED_BYTES ? lmcs_page_up(bytes)
                                       : (bytes + LMCS_PACK_ALIGN - 1) & ~(uint64_t)(LMCS_PACK_ALIGN - 1);
}

/* Offsets of locks, beyond any file's end (FORMAT.md, section 11). */
#define LMCS_LOCK_PRUNING ((uint64_t)1 << 59)
#define LMCS_LOCK_ADDING  ((uint64_t)1 << 60)
#define LMCS_LEASE_EPOCHS ((uint64_t)1 << 61)
#define LMCS_LEASE_RANGES ((uint64_t)1 << 62)
#define LMCS_LEASE_BLOCKS (((uint64_t)1 << 62) + ((uint64_t)1 << 61))
#define LMCS_LEASE_BLOCK  ((uint64_t)1 << 20) /* bytes */

#endif
