/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/safety.h - what is noted of single contents for their safety: blocks that are lost, and parity.
 *
 * All of it is in one tree, beside the content's record, so that a pool in which nothing was ever lost and nobody asked
 * for parity has none of it.
 */
#ifndef LMCS_RECORDS_SAFETY_H
#define LMCS_RECORDS_SAFETY_H

#include "records/content.h"

struct lmcs_block_range {
    uint64_t first; /* block */
    uint64_t count;
};

/* Whether blocks of a content's own payload are lost. Costs nothing while nothing is. */
enum lmcs_status lmcs_lost_any(struct lmcs_txn *txn, uint64_t content, bool *any, struct lmcs_error *error);
/* LMCS_DAMAGED, with what is lost of tensor `name` in the message, when something is. */
enum lmcs_status lmcs_lost_check(struct lmcs_txn *txn, const struct lmcs_content *content, const char *name,
                                 const struct lmcs_identity *identity, struct lmcs_error *error);
/* Notes that just the blocks with bad[i] != 0 are lost (NULL: none is); *changed, which may be NULL: it was otherwise.
 */
enum lmcs_status lmcs_lost_set(struct lmcs_txn *txn, uint64_t content, const unsigned char *bad, uint64_t blocks,
                               bool *changed, struct lmcs_error *error);

/* Contents of which something is lost, ascending; *ids is to be freed. */
enum lmcs_status lmcs_lost_list(struct lmcs_txn *txn, uint64_t **ids, size_t *count, struct lmcs_error *error);

/* Parity: its record, and where it lies. */
struct lmcs_parity_record {
    struct lmcs_parity_df df;
    struct lmcs_part_df parts[LMCS_MAX_PARTS];
};
enum lmcs_status lmcs_parity_find(struct lmcs_txn *txn, uint64_t content, struct lmcs_parity_record *parity,
                                  bool *found, struct lmcs_error *error);
/* Enters parity that has been written, in the place of what was there. */
enum lmcs_status lmcs_parity_put(struct lmcs_txn *txn, uint64_t content, const struct lmcs_parity_record *parity,
                                 struct lmcs_error *error);
enum lmcs_status lmcs_parity_drop(struct lmcs_txn *txn, uint64_t content, bool *found, struct lmcs_error *error);
/* Asks the background for parity of a content; data 0: no longer. */
enum lmcs_status lmcs_parity_want(struct lmcs_txn *txn, uint64_t content, uint32_t data, uint32_t parity,
                                  struct lmcs_error *error);

/* Whether it is asked for. */
enum lmcs_status lmcs_parity_wanted(struct lmcs_txn *txn, uint64_t content, struct lmcs_wanted_df *wanted, bool *found,
                                    struct lmcs_error *error);

/* The content gets another payload: what is noted of the old one goes; if it had parity, that is wanted again. */
enum lmcs_status lmcs_safety_renew(struct lmcs_txn *txn, uint64_t content, struct lmcs_error *error);
/* The content goes. */
enum lmcs_status lmcs_safety_end(struct lmcs_txn *txn, uint64_t content, struct lmcs_error *error);

/* "rows 3 to 5 of 100 (elements 768 to 1535)" of blocks, into text; the elements alone where there are no rows. */
void lmcs_describe_blocks(const struct lmcs_block_range *ranges, size_t count, bool more, uint32_t dtype, uint32_t ndim,
                          const uint64_t *shape, char *text, size_t text_bytes);

#endif
