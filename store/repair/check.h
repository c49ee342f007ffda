/* SPDX-License-Identifier: BSD-3-Clause */
/* repair/check.h - the structure check: compares all metadata of one root. */
#ifndef LMCS_REPAIR_CHECK_H
#define LMCS_REPAIR_CHECK_H

#include "base/error.h"

struct lmcs_pool;

typedef void (*lmcs_damage_fn)(void *context, const struct lmcs_damage *damage);

struct lmcs_known_content {
    uint64_t id;
    uint64_t identity;
    uint64_t raw_bytes;
    uint64_t runs;      /* recorded runs not yet found in a manifest */
    uint64_t number;    /* of a snapshot that contains it; 0: it is only a base */
    uint32_t shelf;     /* of that snapshot: index of shelf_names */
    uint32_t base_uses; /* recorded dependents not yet found */
    uint16_t height;
    uint8_t link_arrays; /* outputs of a link; 0: not a link */
    bool has_link;
    bool is_verified;    /* all outputs of this link are verified */
    bool parity_is_seen; /* the parity was read, or there is none */
    bool wanted;         /* in the scope */
};

struct lmcs_structure {
    struct lmcs_known_content *contents; /* by id */
    size_t content_count;
    char **shelf_names;
    size_t shelf_count;
    uint64_t snapshots; /* in the scope */
    uint64_t remote;    /* of those in the scope, skipped */
    uint64_t damages;
    uint64_t unsupported;    /* records of a newer version; no damages */
    uint64_t repaired_pages; /* from another replica; no damages */
};

/*
 * Checks all metadata of the newest root and collects the contents of `address` (NULL: all). `visit` (may be NULL) gets
 * each damage. LMCS_OK also with structure->damages > 0; else the check could not run. The caller frees the structure
 * in any case.
 */
enum lmcs_status lmcs_structure_check(struct lmcs_pool *pool, const char *address, lmcs_damage_fn visit, void *context,
                                      struct lmcs_structure *structure, struct lmcs_error *error);
/* Checks like lmcs_structure_check, and rewrites damaged pages from another replica. The pool is open for writing. */
enum lmcs_status lmcs_structure_repair(struct lmcs_pool *pool, lmcs_damage_fn visit, void *context,
                                       struct lmcs_structure *structure, struct lmcs_error *error);
void lmcs_structure_free(struct lmcs_structure *structure);

/* For tests: LMCS_DAMAGED, with the first damage as message, if there is any. */
enum lmcs_status lmcs_check_structure(struct lmcs_pool *pool, lmcs_damage_fn visit, void *context,
                                      struct lmcs_error *error);

#endif
