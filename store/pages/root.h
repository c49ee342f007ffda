/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/root.h - the superblock and the root page. */
#ifndef LMCS_PAGES_ROOT_H
#define LMCS_PAGES_ROOT_H

#include "base/error.h"
#include "media/layout.h"

struct lmcs_pool;

/* Reads and checks the superblock and its root page. */
enum lmcs_status lmcs_root_read(struct lmcs_pool *pool, struct lmcs_root_df *root, struct lmcs_error *error);
/*
 * Once slabs are known, checks that a writer's free ranges are in slabs and next ids unused. (Loading live variables
 * checks theirs.)
 */
enum lmcs_status lmcs_root_check(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error);
/* LMCS_DAMAGED: the next id of a `kind` ("shelf", "content") is in use. */
enum lmcs_status lmcs_root_fail_number(struct lmcs_pool *pool, const char *kind, uint64_t number,
                                       struct lmcs_error *error);
/* Whether next ids are not 0, and without the bit that marks parity. */
bool lmcs_root_counts(const struct lmcs_root_df *root);
/* The superblock's word for a root page. */
uint64_t lmcs_root_word(uint64_t page_offset);
/* Sets time and checksum. */
void lmcs_root_seal(struct lmcs_root_df *root);

#endif
