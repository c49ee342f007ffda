/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/layout.h - the stored bytes of a content, in one or more parts.
 *
 * Raw payload: the tensor's bytes; with more than one block, then the blocks' hashes from the next multiple of 16 on.
 */
#ifndef LMCS_PAYLOAD_LAYOUT_H
#define LMCS_PAYLOAD_LAYOUT_H

#include "pages/pool.h"
#include "pages/space.h"
#include "records/content.h"

/* Offset of a raw payload's hashes, and its total size. */
uint64_t lmcs_raw_table_at(uint64_t raw_bytes);
uint64_t lmcs_raw_stored_bytes(uint64_t raw_bytes);

/* Allocates `bytes`, recorded as the content's parts. */
enum lmcs_status lmcs_payload_take(struct lmcs_region *region, uint64_t bytes, struct lmcs_content *content,
                                   struct lmcs_error *error);
enum lmcs_status lmcs_payload_write(struct lmcs_heap *heap, const struct lmcs_content *content, uint64_t at,
                                    const void *data, uint64_t bytes, struct lmcs_error *error);
/* Starts to write such bytes to the disk, except a last part of a page, to which more may come; does not wait. */
void lmcs_payload_start_writeback(struct lmcs_heap *heap, const struct lmcs_content *content, uint64_t at,
                                  uint64_t bytes);
enum lmcs_status lmcs_payload_read(const struct lmcs_media *media, const struct lmcs_content *content, uint64_t at,
                                   void *buffer, uint64_t bytes, struct lmcs_error *error);
enum lmcs_status lmcs_payload_read_back(const struct lmcs_media *media, const struct lmcs_content *content, uint64_t at,
                                        void *buffer, uint64_t bytes, struct lmcs_error *error);
/* Writes the block hashes of a raw payload; none with at most one block. */
enum lmcs_status lmcs_raw_write_table(struct lmcs_heap *heap, const struct lmcs_content *content,
                                      const struct lmc_hash *hashes, struct lmcs_error *error);
/* Sets the content's digest; `tensor`: dtype and shape. */
void lmcs_raw_digest(struct lmcs_content *content, const struct lmcs_tensor *tensor, const struct lmc_hash *hashes);
/* Also sets the content's digest; `tensor`: dtype and shape. */
enum lmcs_status lmcs_raw_finish(struct lmcs_heap *heap, struct lmcs_content *content, const struct lmcs_tensor *tensor,
                                 const struct lmc_hash *hashes, struct lmcs_error *error);
/* Whether payload kind and parts are equal. */
bool lmcs_same_payload(const struct lmcs_content *a, const struct lmcs_content *b);
/* Returns payload bytes in the read-only mapping; NULL: not in one part, or not in the pool. */
const void *lmcs_payload_at(const struct lmcs_media *media, const struct lmcs_content *content, uint64_t at,
                            uint64_t bytes);
enum lmcs_status lmcs_payload_pin(struct lmcs_lease *lease, const struct lmcs_content *content,
                                  struct lmcs_error *error);
void lmcs_payload_unpin(struct lmcs_lease *lease, const struct lmcs_content *content);

#endif
