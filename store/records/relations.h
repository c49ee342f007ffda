/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/relations.h - which tensors of a snapshot are one optimizer's state of one parameter, as its caller said.
 *
 * Stored as two attachments of the store's own, which nobody sees: the grouping, which all steps of a run share, for it
 * stays the same; and the constants of each group of parameters, some hundred bytes a snapshot.
 */
#ifndef LMCS_RECORDS_RELATIONS_H
#define LMCS_RECORDS_RELATIONS_H

#include "pages/pool.h"
#include "records/content.h"
#include "records/shelf.h"

#define LMCS_RELATIONS_NAME       "lmcstore.relations"
#define LMCS_CONSTANTS_NAME       "lmcstore.constants"
#define LMCS_RELATIONS_MOST_BYTES ((uint64_t)1 << 30) /* of an attachment */

/* Attachments of the store's own, metadata that is long among them: no reader is shown them. */
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
    char **texts; /* that the names point to: one block for each call, or for all when they were read */
    size_t text_count;
    size_t text_capacity;
};

/* Adds what a caller says, checked. On failure nothing is added. */
enum lmcs_status lmcs_relations_add(struct lmcs_relations *relations, const struct lmcs_relation *relation,
                                    struct lmcs_error *error);
void lmcs_relations_free(struct lmcs_relations *relations);

/* As they are stored: what `*grouping` and `*constants` get is malloced. */
enum lmcs_status lmcs_relations_encode(const struct lmcs_relations *relations, void **grouping,
                                       uint64_t *grouping_bytes, void **constants, uint64_t *constants_bytes,
                                       struct lmcs_error *error);
/* LMCS_DAMAGED when they are not what encode makes; `relations` is to be freed only after LMCS_OK. */
enum lmcs_status lmcs_relations_decode(const void *grouping, uint64_t grouping_bytes, const void *constants,
                                       uint64_t constants_bytes, struct lmcs_relations *relations,
                                       struct lmcs_error *error);

#endif
