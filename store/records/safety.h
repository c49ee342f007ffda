/* SPDX-License-Identifier: BSD-3-Clause */
/* records/safety.h - lost blocks and parity of single contents. */
#ifndef LMCS_RECORDS_SAFETY_H
#define LMCS_RECORDS_SAFETY_H

#include "records/content.h"

struct lmcs_block_range {
    uint64_t first; /* block */
    uint64_t count;
};

/* Whether blocks of a content's own payload are lost. Costs nothing without losses in the pool. */
enum lmcs_status lmcs_lost_any(struct lmcs_txn *txn, uint64_t content, bool *any, struct lmcs_error *error);
/* LMCS_DAMAGED, with tensor `name` and the lost range, if there is one. */
enum lmcs_status lmcs_lost_check(struct lmcs_txn *txn, const struct lmcs_content *content, const char *name,
                                 const struct lmcs_identity *identity, struct lmcs_error *error);
/* Records exactly the blocks with bad[i] != 0 (NULL: none). *changed (or NULL): the record was another. */
enum lmcs_status lmcs_lost_set(struct lmcs_txn *txn, uint64_t content, const unsigned char *bad, uint64_t blocks,
                               bool *changed, struct lmcs_error *error);

/* Contents with lost blocks, ascending. The caller frees *ids. */
enum lmcs_status lmcs_lost_list(struct lmcs_txn *txn, uint64_t **ids, size_t *count, struct lmcs_error *error);

struct lmcs_parity_record {
    struct lmcs_parity_df df;
    struct lmcs_part_df parts[LMCS_MAX_PARTS];
};
enum lmcs_status lmcs_parity_find(struct lmcs_txn *txn, uint64_t content, struct lmcs_parity_record *parity,
                                  bool *found, struct lmcs_error *error);
/* Replaces earlier parity. */
enum lmcs_status lmcs_parity_put(struct lmcs_txn *txn, uint64_t content, const struct lmcs_parity_record *parity,
                                 struct lmcs_error *error);
enum lmcs_status lmcs_parity_drop(struct lmcs_txn *txn, uint64_t content, bool *found, struct lmcs_error *error);
/*
 * The geometry that the policy parity=bases has for a payload: one bad page of 4 KiB, wherever it begins, can be
 * repaired. 128+1 above 512 KiB, down to 2+2, a copy, for a few KiB.
 */
struct lmcs_wanted_df lmcs_parity_by_size(uint64_t stored_bytes);
/* Requests parity from the background; `data` 0: withdraws the request. */
enum lmcs_status lmcs_parity_want(struct lmcs_txn *txn, uint64_t content, uint32_t data, uint32_t parity,
                                  struct lmcs_error *error);

/* Drops parity whose geometry was chosen by size, and requests it again. */
enum lmcs_status lmcs_parity_give_way(struct lmcs_txn *txn, uint64_t content, bool *gone, struct lmcs_error *error);
enum lmcs_status lmcs_parity_wanted(struct lmcs_txn *txn, uint64_t content, struct lmcs_wanted_df *wanted, bool *found,
                                    struct lmcs_error *error);

/* The payload is replaced by one of new_bytes: drops the records; if there was parity, requests it again. A geometry
 * that was chosen by size follows the size. */
enum lmcs_status lmcs_safety_renew(struct lmcs_txn *txn, uint64_t content, uint64_t old_bytes, uint64_t new_bytes,
                                   struct lmcs_error *error);
/* Requests for `heir` the parity that `content` has or wants, unless it has any itself; a geometry that was asked for
 * replaces one that was chosen by size. `by_size`: only if the content's geometry was chosen by size. */
enum lmcs_status lmcs_parity_hand_on(struct lmcs_txn *txn, const struct lmcs_content *content,
                                     const struct lmcs_content *heir, bool by_size, struct lmcs_error *error);
/* The content is removed: drops the records. */
enum lmcs_status lmcs_safety_end(struct lmcs_txn *txn, uint64_t content, struct lmcs_error *error);

/* Writes "rows 3 to 5 of 100 (elements 768 to 1535)"; without rows, the elements alone. */
void lmcs_describe_blocks(const struct lmcs_block_range *ranges, size_t count, bool more, uint32_t dtype, uint32_t ndim,
                          const uint64_t *shape, char *text, size_t text_bytes);

#endif
