/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/checking.h - the state of a structure check (private to repair/).
 *
 * A damaged page sets `incomplete`: totals are then not compared, so that one damage is not reported a thousand times.
 */
#ifndef LMCS_REPAIR_CHECKING_H
#define LMCS_REPAIR_CHECKING_H

#include "base/map.h"
#include "pages/pool.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/shelf.h"
#include "repair/check.h"

enum lmcs_page_use { LMCS_PAGE_UNKNOWN, LMCS_PAGE_REACHED, LMCS_PAGE_FREE, LMCS_PAGE_NEVER_USED };

struct lmcs_checked_object {
    uint64_t offset;
    struct lmcs_object_df df;
    uint64_t live_bytes; /* bytes found, to compare with the record */
    uint64_t retired_bytes;
    unsigned char *pages; /* of a slab: an lmcs_page_use for each page */
    size_t page_count;
};

struct lmcs_checked_identity {
    uint64_t id;
    uint64_t raw_bytes;
    uint64_t uses; /* found uses by contents and runs */
    bool is_tensor;
};

struct lmcs_checked_range {
    uint64_t offset;
    uint64_t bytes;
};

struct lmcs_checked_page; /* of a manifest: check_manifests.c */

struct lmcs_checking {
    struct lmcs_pool *pool;
    struct lmcs_txn txn;
    lmcs_damage_fn visit;
    void *context;
    struct lmcs_structure *out;
    bool incomplete;                     /* a page or record is unreadable */
    bool repairs;                        /* rewrite pages from replicas */
    struct lmcs_checked_object *objects; /* by offset */
    size_t object_count;
    size_t object_capacity;
    struct lmcs_checked_range *retired; /* by offset, once sorted */
    size_t retired_count;
    size_t retired_capacity;
    size_t retired_next;
    struct lmcs_checked_identity *identities; /* by id */
    size_t identity_count;
    size_t identity_capacity;
    size_t content_capacity;
    struct lmcs_checked_page *manifest_pages;
    size_t manifest_page_count;
    size_t manifest_page_capacity;
    struct lmcs_map manifest_places; /* offset of a page: 1 + index in manifest_pages */
    uint64_t snapshot_count;         /* of visible shelves */
    uint64_t prepared_count;
    uint64_t free_pages;
    uint64_t live_bytes;
    uint64_t slab_bytes;
    uint64_t part_count;
    uint64_t base_count;
    uint64_t idle_count; /* contents without runs */
    uint64_t lost_count; /* contents with lost blocks */
    uint64_t last_lost;
    uint64_t parity_bytes;
    bool staging;                    /* a staging shelf exists */
    uint64_t space_end;              /* end of the ranges checked so far */
    struct lmcs_checked_range *live; /* parts, cells and journals */
    size_t live_count;
    size_t live_capacity;
    /* the scope */
    bool want_all;
    uint64_t want_shelf;  /* id; 0: all */
    uint64_t want_number; /* 0: all */
    /* current shelf; NULL between shelves */
    struct lmcs_shelf *shelf;
    uint32_t shelf_index;
    uint64_t committed;
    uint64_t remote;
    uint64_t stepped;
    uint64_t highest;
    uint64_t latest;
    struct lmcs_error *error;
};

/* Checks one entry of a tree. If it returns damage, the walk reports it and continues. */
typedef enum lmcs_status (*lmcs_check_fn)(struct lmcs_checking *c, struct lmcs_key_df key, const void *value,
                                          size_t bytes);

/* ---- check_pages.c ---- */

void lmcs_check_report(struct lmcs_checking *c, const char *shelf, uint64_t number, const char *tensor,
                       const char *format, ...) __attribute__((format(printf, 5, 6)));
#define REPORT(c, ...)       lmcs_check_report(c, "", 0, "", __VA_ARGS__)
#define REPORT_SHELF(c, ...) lmcs_check_report(c, (c)->shelf->name, 0, "", __VA_ARGS__)
#define ULL(n)               ((unsigned long long)(n))

/* Reports c->error of LMCS_DAMAGED or LMCS_UNSUPPORTED and returns LMCS_OK; returns other statuses. */
enum lmcs_status lmcs_check_absorb(struct lmcs_checking *c, enum lmcs_status status, const char *shelf,
                                   uint64_t number);
/* Reports a total that differs from the recorded one, unless the check is incomplete. */
void lmcs_check_total(struct lmcs_checking *c, const char *things, uint64_t found, uint64_t recorded);
/* Finds by id, or by an offset in the object; NULL: unknown. */
struct lmcs_checked_identity *lmcs_check_find_identity(struct lmcs_checking *c, uint64_t id);
struct lmcs_known_content *lmcs_check_find_content(struct lmcs_checking *c, uint64_t id);
struct lmcs_checked_object *lmcs_check_find_object(struct lmcs_checking *c, uint64_t offset);
/* Records a page's use. False: an impossible use, reported; the page must not be read. */
bool lmcs_check_use_page(struct lmcs_checking *c, uint64_t offset, enum lmcs_page_use use);
/* Reads past the cache. `number`: snapshot of the manifest, or 0. `level`: as expected, or -1. *node NULL: damaged,
 * reported. */
enum lmcs_status lmcs_check_read_page(struct lmcs_checking *c, uint8_t kind, struct lmcs_ref_df ref, uint64_t number,
                                      int level, void *buffer, const struct lmcs_node_df **node);
/* Checks all pages, and each entry by `visit`. */
enum lmcs_status lmcs_check_tree(struct lmcs_checking *c, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                 lmcs_check_fn visit);
enum lmcs_status lmcs_check_root_tree(struct lmcs_checking *c, uint8_t kind, lmcs_check_fn visit);
enum lmcs_status lmcs_check_no_value(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes);
/* Returns LMCS_DAMAGED, with c->error naming the record of `kind` `key`. */
enum lmcs_status lmcs_check_fail_record(struct lmcs_checking *c, const char *kind, uint64_t key);
/* Finds a key in a tree; its value must have `bytes` bytes. */
enum lmcs_status lmcs_check_has_key(struct lmcs_checking *c, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                    struct lmcs_key_df key, void *value, size_t bytes, bool *found);
enum lmcs_status lmcs_check_root_has(struct lmcs_checking *c, uint8_t kind, struct lmcs_key_df key, void *value,
                                     size_t bytes, bool *found);

/* ---- check_space.c ---- */

/* Collects all objects. Runs first: page uses need the slabs. */
enum lmcs_status lmcs_check_load_objects(struct lmcs_checking *c);
/* The ring of annotations; after lmcs_check_load_objects. */
enum lmcs_status lmcs_check_ring(struct lmcs_checking *c);
enum lmcs_status lmcs_check_free_page(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes);
/* Reports slab pages without a use. */
void lmcs_check_leaks(struct lmcs_checking *c);
enum lmcs_status lmcs_check_space(struct lmcs_checking *c);
enum lmcs_status lmcs_check_live(struct lmcs_checking *c);

/* ---- check_contents.c ---- */

enum lmcs_status lmcs_check_identity(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes);
enum lmcs_status lmcs_check_identity_uses(struct lmcs_checking *c);
enum lmcs_status lmcs_check_content(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes);
/* Compares contents with each other and with the map of space. */
enum lmcs_status lmcs_check_contents(struct lmcs_checking *c);
/* Checks the records of parity and lost blocks. */
enum lmcs_status lmcs_check_safety(struct lmcs_checking *c);

/* ---- check_manifests.c, check_shelves.c ---- */

enum lmcs_status lmcs_check_manifest(struct lmcs_checking *c, const struct lmcs_record *record);
enum lmcs_status lmcs_check_shelf(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes);
enum lmcs_status lmcs_check_origin(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes);

#endif
