/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/check.h - looking for damage: in libpmemobj's heap (check_heap.c), in our metadata (check_structure.c), and in
 * the bytes of tensors (check.c, lmcs_verify).
 */
#ifndef LMCS_REPAIR_CHECK_H
#define LMCS_REPAIR_CHECK_H

#include "base/error.h"

struct lmcs_pool;

typedef void (*lmcs_damage_fn)(void *context, const struct lmcs_damage *damage);

/*
 * Compares libpmemobj's map of its heap with the objects that we know, and the pages that the root would hand out with
 * the slabs among them, which are then known to the pool. To be called when a pool has been opened for writing, after
 * libpmemobj's recovery and before anything is allocated. LMCS_DAMAGED when they don't match. Given a heap, what is
 * free by that map gives back the file space that it has.
 */
enum lmcs_status lmcs_check_heap(struct lmcs_pool *pool, struct lmcs_error *error);

/* A content that the check of the structure has met. */
struct lmcs_known_content {
    uint64_t id;
    uint64_t identity;
    uint64_t raw_bytes;
    uint64_t runs;      /* that its record counts and no manifest has shown yet */
    uint64_t number;    /* a snapshot that has it; 0: none, it is only a base */
    uint32_t shelf;     /* ... of this shelf: an index of shelf_names */
    uint32_t base_uses; /* that its record counts and no other content has shown yet */
    uint16_t height;
    uint8_t link_arrays; /* of a link; 0: it is none */
    bool has_link;       /* one leads to it */
    bool is_verified;    /* of a link: all that it leads to */
    bool parity_is_seen; /* all of it, or that it has none */
    bool wanted;         /* it belongs to what is to be checked */
};

struct lmcs_structure {
    struct lmcs_known_content *contents; /* by id */
    size_t content_count;
    char **shelf_names;
    size_t shelf_count;
    uint64_t snapshots; /* that were to be checked */
    uint64_t damages;
    uint64_t repaired_pages; /* lmcs_structure_repair: that another replica had; they are no damages */
};

/*
 * Checks all metadata of one moment, and finds the contents of what `address` names (NULL: everything). `visit` (NULL:
 * nobody) is told of each damage. LMCS_OK also when there was some: see structure->damages; other results say that
 * it could not be checked. The caller frees the structure in any case.
 */
enum lmcs_status lmcs_structure_check(struct lmcs_pool *pool, const char *address, lmcs_damage_fn visit, void *context,
                                      struct lmcs_structure *structure, struct lmcs_error *error);
/* The same of a pool that is open for writing, of which pages are repaired that the other replica has. */
enum lmcs_status lmcs_structure_repair(struct lmcs_pool *pool, lmcs_damage_fn visit, void *context,
                                       struct lmcs_structure *structure, struct lmcs_error *error);
void lmcs_structure_free(struct lmcs_structure *structure);

/* The same for tests: LMCS_DAMAGED, with the first damage as message, when there is any. */
enum lmcs_status lmcs_check_structure(struct lmcs_pool *pool, lmcs_damage_fn visit, void *context,
                                      struct lmcs_error *error);

#endif
