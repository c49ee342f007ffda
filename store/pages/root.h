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
 * Of a root that a writer has read, once slabs are known: whether the pages that it would hand out lie in them, and the
 * numbers are those of nothing that is there. (Live variables are asked when all of them are looked at: live.c.)
 */
enum lmcs_status lmcs_root_check(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error);
/* LMCS_DAMAGED: the next one that is made would take the place of `what` of this number. */
enum lmcs_status lmcs_root_fail_number(struct lmcs_pool *pool, const char *what, uint64_t number,
                                       struct lmcs_error *error);
/* Whether next numbers of shelves, contents and so on are possible: the bit that tells parity from payloads is free. */
bool lmcs_root_counts(const struct lmcs_root_df *root);
uint64_t lmcs_root_word(uint64_t page_offset);
/* Sets the root's time and checksum, before it is written. */
void lmcs_root_seal(struct lmcs_root_df *root);

#endif
