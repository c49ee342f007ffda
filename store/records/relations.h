/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/relations.h - the tensors of a snapshot that are one optimizer's state of one parameter.
 *
 * Two hidden attachments: the grouping, constant over a run and shared by its steps, and the constants of each group,
 * some hundred bytes a snapshot.
 */
#ifndef LMCS_RECORDS_RELATIONS_H
#define LMCS_RECORDS_RELATIONS_H

#include "pages/pool.h"
#include "records/content.h"
#include "records/shelf.h"

#define LMCS_RELATIONS_NAME       "lmcstore.relations"
#define LMCS_CONSTANTS_NAME       "lmcstore.constants"
#define LMCS_RELATIONS_MOST_BYTES ((uint64_t)1 << 30) /* of an attachment */

/* Whether the store made an attachment for itself; readers don't list it. */
bool lmcs_is_own(uint32_t kind, const char *name);

struct lmcs_related {
    uint32_t group; /* of constants */
    uint8_t name_count;
    const char *names[LMC_MAX_BASES]; /* in the order of a link's arrays */
};

struct lmcs_relations {
    struct lmcs_related *items;
    size_t count;
    size_t capacity;
    struct lmc_link_hints *groups;
    size_t group_count;
    size_t group_capacity;
    char **texts; /* own the names: a block for each call, or one for all when read */
    size_t text_count;
    size_t text_capacity;
};

/* Adds a checked relation, or on failure nothing. */
enum lmcs_status lmcs_relations_add(struct lmcs_relations *relations, const struct lmcs_relation *relation,
                                    struct lmcs_error *error);
void lmcs_relations_free(struct lmcs_relations *relations);

/* The caller frees *grouping and *constants. */
enum lmcs_status lmcs_relations_encode(const struct lmcs_relations *relations, void **grouping,
                                       uint64_t *grouping_bytes, void **constants, uint64_t *constants_bytes,
                                       struct lmcs_error *error);
/* LMCS_DAMAGED. The caller frees `relations` only after LMCS_OK. */
enum lmcs_status lmcs_relations_decode(const void *grouping, uint64_t grouping_bytes, const void *constants,
                                       uint64_t constants_bytes, struct lmcs_relations *relations,
                                       struct lmcs_error *error);

#endif
