/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/layout.h - what is on the media, byte by byte; store/FORMAT.md says it in words.
 *
 * All numbers are little-endian and of fixed width; places are offsets from the pool's start, never pointers. The
 * libpmemobj root object is a superblock whose last word, `root`, names the current root page. All that is reached
 * from there is written once, made durable, and only then reached: pages are never changed in place.
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
    uint64_t incompatible;         /* features without which nothing can be read */
    uint64_t read_only_compatible; /* features without which nothing may be written */
    unsigned char uuid[16];
    uint64_t created_ns;
    uint64_t reserved[7];
    uint64_t check; /* hash64 of the bytes before it, seed 0 */
    uint64_t root;  /* page number of the root page << 16 | low 16 bits of hash64 of that number; 0: not yet made */
};
static_assert(sizeof(struct lmcs_superblock_df) == 136, "superblock layout");

/* ---- Pages ---- */

/* A reference to a page: where it lies, and its checksum, so that the root vouches for every page below it. */
struct lmcs_ref_df {
    uint64_t offset; /* 0: none */
    uint64_t check;
};
static_assert(sizeof(struct lmcs_ref_df) == 16, "reference layout");

/* The trees of a pool that the root page refers to. Values are part of the format. */
enum lmcs_tree_kind {
    LMCS_TREE_SHELVES = 0,     /* (shelf, 0) -> lmcs_shelf_df */
    LMCS_TREE_SHELF_NAMES,     /* (hash of name, shelf) -> nothing */
    LMCS_TREE_IDENTITIES,      /* (identity, 0) -> lmcs_identity_df */
    LMCS_TREE_IDENTITY_NAMES,  /* (hash of kind and name, identity) -> nothing */
    LMCS_TREE_IDENTITY_COUNTS, /* (identity, 0) -> u64: runs in manifests */
    LMCS_TREE_CONTENTS,        /* (content, 0) -> lmcs_content_df */
    LMCS_TREE_DEPENDENTS,      /* (base, content) -> nothing; (0, content) -> u64 successor: unused but as a base */
    LMCS_TREE_SPACE,           /* (offset, 0) -> lmcs_space_df: which payload lies where */
    LMCS_TREE_OBJECTS,         /* (offset, 0) -> lmcs_object_df: what we have from libpmemobj */
    LMCS_TREE_FREE_PAGES,      /* (epoch in which they became free, offset) -> u64 pages that lie side by side */
    LMCS_TREE_RETIRED,         /* (epoch in which it became unreachable, offset) -> u64 bytes of payload */
    LMCS_TREE_GROUPS,          /* (group high, group low) -> u64 shelf, u64 number: prepared snapshots */
    LMCS_TREE_ORIGINS,         /* (shelf, 0) -> lmcs_origin_df: the snapshot that the shelf was forked from */
    LMCS_TREE_LIVE,            /* (shelf, live variable) -> lmcs_live_df */
    LMCS_TREE_LIVE_NAMES,      /* (hash of name, seed shelf; live variable) -> nothing */
    LMCS_TREE_SAFETY,          /* (content, 0) -> lmcs_parity_df; (content, 1 + block) -> lmcs_lost_df;
                                  (0, content) -> lmcs_wanted_df */
    LMCS_ROOT_TREES = 16,      /* places in the root page; those above are zero */
    /* The trees of a shelf, which its record refers to. */
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

/* A slot of a node: the entry is a key of 16 bytes at `offset`, its value behind it. */
struct lmcs_slot_df {
    uint16_t offset;
    uint16_t value_bytes;
};

/* A tree node: header, slots in ascending order of keys, free room, entries. Level 0 is a leaf; the value of an
 * inner entry is the lmcs_ref_df of a child, and its key is at most the child's smallest. */
struct lmcs_node_df {
    uint32_t magic;
    uint8_t level;
    uint8_t kind; /* enum lmcs_tree_kind */
    uint16_t count;
    uint64_t self;    /* its own offset */
    uint64_t epoch;   /* of the commit that wrote it */
    uint16_t low;     /* where the entries begin */
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

/* A tree. Keys from `tail_from` on are in its tail, a leaf that its pages do not refer to, when it has one. */
struct lmcs_root_tree_df {
    struct lmcs_ref_df ref;
    uint64_t count; /* entries, the tail's among them */
    struct lmcs_ref_df tail;
    struct lmcs_key_df tail_from;
};
static_assert(sizeof(struct lmcs_root_tree_df) == 56, "tree layout");

#define LMCS_PAGE_RANGE_MOST ((uint64_t)1 << 30) /* bytes */

/* Pages that lie side by side, from `next` to `end`. */
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
    struct lmcs_page_range_df fresh; /* pages of the newest slab that were never used */
    uint64_t slab_bytes;             /* all slabs */
    uint64_t extent_bytes;           /* all extents: space of the disk that they take */
    uint64_t live_bytes;             /* of them, payloads that something refers to */
    uint64_t limit_bytes;
    uint64_t snapshot_count;
    uint64_t last_snapshot_bytes;
    uint64_t free_pages;             /* in the tree of them */
    struct lmcs_page_range_df spare; /* pages that were never used, kept for removals */
    uint64_t next_live;
    uint64_t
        live_committed; /* sequence of the newest journal whose transaction this root, or one before it, committed */
    struct lmcs_page_range_df journals[LMCS_JOURNALS]; /* of live variables; 0, 0: there is none */
    uint64_t lost_contents;                            /* that have entries of what is lost */
    uint64_t parity_bytes;                             /* of live_bytes, what parity takes */
    uint64_t scrub_next;     /* the content that the next sample, or the background, begins with */
    uint64_t scrub_begun_ns; /* of the pass under way; 0: there was none */
    uint64_t scrub_bytes;    /* it has read */
    uint64_t scrub_found;    /* damages, by it */
    uint64_t scrub_repaired; /* of them */
    uint64_t scrub_done_ns;  /* end of the last whole pass; 0: there was none */
    uint64_t reserved[47];
    uint64_t check; /* hash64 of the bytes before it, seed: its offset */
};
static_assert(sizeof(struct lmcs_root_df) <= LMCS_PAGE_BYTES, "root page layout");
static_assert(sizeof(struct lmcs_root_df) == 32 + 16 * 56 + 14 * 8 + 6 * 8 + 55 * 8 + 8, "root page layout");

/* ---- Records ---- */

/* Of one for live variables, kind, bytes and first are all that is said: what lies in it, their records say. */
enum lmcs_object_kind { LMCS_OBJECT_SLAB = 1, LMCS_OBJECT_EXTENT = 2, LMCS_OBJECT_LIVE = 3 };

/* An object of libpmemobj that is ours, at key.high (its user offset). */
struct lmcs_object_df {
    uint32_t kind;
    uint32_t purpose;       /* of an extent: 0 raw captures, 1 compacted */
    uint64_t bytes;         /* of the object */
    uint64_t first;         /* offset of its first aligned byte */
    uint64_t cursor;        /* extents: payloads lie between first and here */
    uint64_t backed;        /* extents: file space is allocated up to here */
    uint64_t punched_bytes; /* ... but for so many that were given back */
    uint64_t live_bytes;    /* of payloads that something refers to */
    uint64_t retired_bytes; /* of payloads that are on the retired list */
};
static_assert(sizeof(struct lmcs_object_df) == 64, "object layout");

struct lmcs_space_df {
    uint64_t content;
    uint64_t bytes;
};

/* That the next snapshot of a shelf may be due to get. Archives take no larger one. */
#define LMCS_LARGEST_NUMBER ((uint64_t)1 << 62)

#define LMCS_SHELF_STAGING  1u /* a restore at work or left over: not visible, removed by the next writer ... */
#define LMCS_SHELF_KEPT     2u /* ... but for this: it waits for the restore to be taken up again */

struct lmcs_shelf_df {
    uint64_t id;
    uint32_t flags;
    uint32_t keep_raw;
    uint64_t next_number;
    uint64_t latest;         /* the newest committed; 0: none */
    uint64_t snapshot_count; /* committed */
    uint64_t compacted;      /* snapshots up to this number have been looked at by the compactor */
    uint64_t created_ns;
    struct lmcs_root_tree_df trees[LMCS_SHELF_TREES]; /* NUMBERS to TAGGED */
    uint64_t guarded; /* snapshots up to this number have been looked at for the parity that the policy asks for */
    uint64_t reserved[3];
    uint32_t policy_bytes;
    uint32_t name_bytes;
    /* the name follows, and then the text of the policy */
};
static_assert(sizeof(struct lmcs_shelf_df) == 56 + 5 * 56 + 40, "shelf layout");

/* Where a shelf that was forked comes from. */
struct lmcs_origin_df {
    uint64_t shelf;      /* id of the shelf it was forked from; 0: it is not in this pool any more */
    uint64_t number;     /* of the snapshot */
    uint64_t time_ns;    /* of the snapshot: tells it from another that has its number on a shelf of that name */
    uint32_t name_bytes; /* of the shelf's name, as it was when it was last known */
    uint32_t reserved;
    /* the name follows */
};
static_assert(sizeof(struct lmcs_origin_df) == 32, "origin layout");

enum lmcs_snapshot_state { LMCS_SNAPSHOT_COMMITTED = 1, LMCS_SNAPSHOT_PREPARED = 2 };

#define LMCS_META_INLINE 1200u /* longer ones go to an attachment */

struct lmcs_snapshot_df {
    uint64_t number;
    uint32_t state;
    uint32_t meta_bytes; /* of the inline JSON; UINT32_MAX: it is the attachment named LMCS_META_NAME */
    int64_t step;
    uint64_t time_ns;
    uint64_t parent;
    uint64_t epoch;   /* of the commit that made it */
    uint64_t lineage; /* snapshots of one lineage share manifest pages with their neighbours */
    struct lmcs_ref_df manifest;
    uint64_t entry_count;
    uint64_t tensor_count;
    uint64_t raw_bytes;
    unsigned char group[16];
    uint32_t links; /* enum lmcs_links: what came of links from the snapshot before to this one */
    uint32_t reserved0;
    uint64_t reserved;
    /* {"metrics": {...}, "meta": {...}} follows */
};
static_assert(sizeof(struct lmcs_snapshot_df) == 128, "snapshot layout");
#define LMCS_META_NAME "lmcstore.meta"
#define LMCS_META_MOST ((uint64_t)64 << 20)

/* Two attachments of the store's own, of snapshots whose caller said which tensors are one optimizer's state. */
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
    /* the names follow, without ends */
};
static_assert(sizeof(struct lmcs_related_df) == 16, "relation layout");

struct lmcs_constants_df {
    uint32_t optimizer; /* as in codec/lmc.h */
    uint32_t flags;
    double constants[9]; /* step, lr, weight_decay, beta1, beta2, eps, momentum, dampening, scale */
};
static_assert(sizeof(struct lmcs_constants_df) == 80, "constants layout");

/* What came of links from the snapshot before to one. */
enum lmcs_links {
    LMCS_LINKS_UNKNOWN = 0, /* not looked at, or there is nothing that changed together */
    LMCS_LINKS_MADE,
    LMCS_LINKS_FIRST,       /* the line was as long as the policy lets it be: this one begins the next */
    LMCS_LINKS_GAP,         /* the step before it is missing */
    LMCS_LINKS_UNEXPLAINED, /* no arithmetic that is known made it */
    LMCS_LINKS_LARGE,       /* a link is not smaller than deltas */
    LMCS_LINKS_OFF,         /* the policy says so */
    LMCS_LINKS_UNFIT,       /* the tensors that were named are not there, or not alike */
    LMCS_LINKS_NOT_RAW,     /* they, or those before, were coded already, or something rests on them */
    LMCS_LINKS_NOT_FOUND,   /* nobody said what belongs together, and the data show no optimizer's step */
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
    uint64_t birth; /* number of the snapshot at which this run of the content under this name began */
};

struct lmcs_identity_df {
    uint8_t kind;
    uint8_t dtype;
    uint8_t ndim;
    uint8_t is_part; /* 1: global shape and offsets follow the shape */
    uint32_t name_bytes;
    uint64_t hash; /* hash64 of all that follows and the four bytes above, to find an equal one */
    /* shape, [global shape, offsets], name */
};
static_assert(sizeof(struct lmcs_identity_df) == 16, "identity layout");

/*
 * A content that is a link is no tensor's: its payload is a link frame, which leads from its bases, the arrays before
 * a step, to the contents that name it. Of those, one that is linked has no payload: the link's is how it is stored.
 */
enum lmcs_payload_kind { LMCS_PAYLOAD_RAW = 0, LMCS_PAYLOAD_FRAME = 1, LMCS_PAYLOAD_LINK = 2, LMCS_PAYLOAD_LINKED = 3 };
#define LMCS_CONTENT_SETTLED  1u /* tried: a frame is no smaller than the raw bytes */
#define LMCS_CONTENT_HAS_LINK 2u /* raw or linked: a link leads to it, whose id follows the bases */

struct lmcs_part_df {
    uint64_t offset;
    uint64_t bytes;
};

struct lmcs_content_df {
    uint64_t digest_low;
    uint64_t digest_high;
    uint64_t raw_bytes;
    uint64_t stored_bytes; /* of the payload: raw bytes and table, or the frame; without padding */
    uint64_t identity;     /* the first that had it */
    uint64_t runs;         /* in manifests */
    uint32_t base_uses;    /* deltas that have it as a base */
    uint16_t height;       /* at least the length of the longest chain of deltas that rests on it */
    uint8_t payload;       /* enum lmcs_payload_kind */
    uint8_t flags;
    uint16_t part_count;
    uint8_t base_count;
    uint8_t output; /* with a link: which of its arrays this is */
    uint32_t place; /* contents of its name that were coded since the last keyframe: a hint for the compactor; of a link
                       the links to undo to read what it leads to, itself included */
    /* parts, then bases (u64 content each), then the link (u64 content) */
};
static_assert(sizeof(struct lmcs_content_df) == 64, "content layout");

/* Blocks of a content that can't be read from its payload, and could not be repaired. */
struct lmcs_lost_df {
    uint64_t blocks; /* from the key's on */
    uint64_t found_ns;
};
static_assert(sizeof(struct lmcs_lost_df) == 16, "lost blocks layout");

/* Parity of a payload's stored bytes: parity.c. Its own parts are in the map of space, under LMCS_SPACE_PARITY. */
struct lmcs_parity_df {
    uint64_t stored_bytes; /* of the payload that it belongs to */
    uint64_t table_check;  /* hash64 of the table of units, seed: the content */
    uint32_t unit_bytes;
    uint8_t data;   /* columns of it ... */
    uint8_t parity; /* ... and of parity */
    uint16_t part_count;
    /* parts (lmcs_part_df) follow */
};
static_assert(sizeof(struct lmcs_parity_df) == 24, "parity layout");

struct lmcs_wanted_df {
    uint32_t data; /* parity is to be made for a content: columns of its data ... */
    uint32_t parity;
};

#define LMCS_SPACE_PARITY ((uint64_t)1 << 63) /* in lmcs_space_df.content: not the payload itself, but its parity */

/* Instead of a successor: the compactor can do no more for this base, which goes with its last dependent. */
#define LMCS_BASE_SETTLED UINT64_MAX
#define LMCS_MAX_PARTS    16u /* of a payload */
#define LMCS_CHAIN_BOUND  7u  /* deltas to undo, at most, to read a content */
#define LMCS_LINK_BOUND   64u /* links to undo, at most */

/* ---- Live variables ---- */

/* The record of a variable. A tensor's parts are whole pages; file space is there for the pages of its bytes. */
struct lmcs_live_df {
    uint64_t created_ns;
    uint64_t bytes; /* of its data; of a value of variable length (u8, one dimension): see its slots */
    uint64_t cell;  /* place of its lmcs_cell_df */
    uint32_t cell_bytes;
    uint32_t slot_bytes; /* a value: of each of its two slots, the header included; a tensor: 0 */
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

/* What changes of a variable without its record: written in place. A value's two slots follow. */
struct lmcs_cell_df {
    uint64_t identity;     /* hash64 of u64 shelf, u64 variable, seed: its place */
    uint64_t version;      /* tensors; a value's is its sequence */
    uint64_t written_ns;   /* likewise */
    uint64_t acknowledged; /* values: a slot of this sequence, or of a later one, is whole */
    uint64_t reserved[4];
};
static_assert(sizeof(struct lmcs_cell_df) == 64, "cell layout");

/* The slot with the higher sequence, of those that are whole, is the value. */
struct lmcs_value_df {
    uint64_t check; /* hash64 of what follows, the data included, seed: its place */
    uint64_t sequence;
    uint64_t written_ns;
    uint32_t bytes;
    uint32_t reserved;
    /* the data follow */
};
static_assert(sizeof(struct lmcs_value_df) == 32, "slot layout");

/* The attachment of a snapshot of live variables: a header, then one entry for each of them. */
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
#define LMCS_JOURNAL_ROOT  1u          /* committed when root.live_committed is its sequence, not by itself */

/* A journal's first page begins with this; it is done with when sequence is 0. */
struct lmcs_journal_df {
    uint32_t magic;
    uint32_t flags;
    uint64_t sequence;
    uint64_t entries;     /* redo: a table of so many stands on the next page; undo: 0, they follow one another there */
    uint64_t table_check; /* redo: hash64 of the table, seed: sequence */
    uint64_t last;        /* the greatest sequence that was ever given out */
    uint64_t reserved[2];
    uint64_t check; /* hash64 of the bytes before it, seed: its place */
};
static_assert(sizeof(struct lmcs_journal_df) == 64, "journal layout");

/* Bytes that belong at a place. Redo: its data follow the table, in order, each from a multiple of 64 on. Undo: they
 * follow it, and the next entry begins at a multiple of 64. */
struct lmcs_journal_entry_df {
    uint64_t place;
    uint64_t bytes;
    uint64_t sequence;
    uint64_t check; /* hash64 of the data, seed: hash64 of the three words before, seed 0 */
};
static_assert(sizeof(struct lmcs_journal_entry_df) == 32, "journal entry layout");

/* Payloads of this size and more start and end on a page; smaller ones on LMCS_PACK_ALIGN. */
#define LMCS_ALIGNED_BYTES 65536u
#define LMCS_PACK_ALIGN    64u

static inline uint64_t lmcs_page_up(uint64_t bytes)
{
    return (bytes + LMCS_PAGE_BYTES - 1) & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
}

/* File space that a payload takes, up to where the next one may begin. */
static inline uint64_t lmcs_room(uint64_t bytes)
{
    return bytes >= LMCS_ALIGNED_BYTES ? lmcs_page_up(bytes)
                                       : (bytes + LMCS_PACK_ALIGN - 1) & ~(uint64_t)(LMCS_PACK_ALIGN - 1);
}

/* Bytes of locks, far past the end of any file: see lease.c. */
#define LMCS_LEASE_EPOCHS ((uint64_t)1 << 61)
#define LMCS_LEASE_RANGES ((uint64_t)1 << 62)
#define LMCS_LEASE_BLOCKS (((uint64_t)1 << 62) + ((uint64_t)1 << 61))
#define LMCS_LEASE_BLOCK  ((uint64_t)1 << 20) /* bytes */

#endif
