/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/root.h - the superblock and the root page. */
#ifndef LMCS_PAGES_ROOT_H
#define LMCS_PAGES_ROOT_H

#include "base/error.h"
#include "media/layout.h"

struct lmcs_pool;

/* Reads and checks the superblock and the root page that it names. */
enum lmcs_status lmcs_root_read(struct lmcs_pool *pool, struct lmcs_root_df *root, struct lmcs_error *error);
/*
 * Checks a root that a writer has read, once slabs are known: its free ranges are in slabs, and its next ids are
 * unused. (The next id of live variables is checked when they are loaded.)
 */
enum lmcs_status lmcs_root_check(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error);
/* Returns LMCS_DAMAGED: the root's next id of a `kind` ("shelf", "content") is in use already. */
enum lmcs_status lmcs_root_fail_number(struct lmcs_pool *pool, const char *kind, uint64_t number,
                                       struct lmcs_error *error);
/* Whether next ids are possible: without the bit that marks parity, and not 0. */
bool lmcs_root_counts(const struct lmcs_root_df *root);
uint64_t lmcs_root_word(uint64_t page_offset);
/* Sets the root's time and checksum, before it is written. */
void lmcs_root_seal(struct lmcs_root_df *root);

#endif
