/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/layout.h - the stored bytes of a content, which may lie in several parts.
 *
 * A raw payload is the tensor's bytes; when there is more than one block, the hashes of the blocks follow at the next
 * multiple of 16. The digest in the content's record vouches for the hashes, and they for the blocks.
 */
#ifndef LMCS_PAYLOAD_LAYOUT_H
#define LMCS_PAYLOAD_LAYOUT_H

#include "pages/pool.h"
#include "pages/space.h"
#include "records/content.h"

/* Where the hashes of a raw payload begin, and how long it is in all. */
uint64_t lmcs_raw_table_at(uint64_t raw_bytes);
uint64_t lmcs_raw_stored_bytes(uint64_t raw_bytes);

/* Takes room for `bytes` and notes it as the content's parts. */
enum lmcs_status lmcs_payload_take(struct lmcs_region *region, uint64_t bytes, struct lmcs_content *content,
                                   struct lmcs_error *error);
enum lmcs_status lmcs_payload_write(struct lmcs_heap *heap, const struct lmcs_content *content, uint64_t at,
                                    const void *data, uint64_t bytes, struct lmcs_error *error);
enum lmcs_status lmcs_payload_read(const struct lmcs_media *media, const struct lmcs_content *content, uint64_t at,
                                   void *buffer, uint64_t bytes, struct lmcs_error *error);
/* The same with lmcs_media_read_back. */
enum lmcs_status lmcs_payload_read_back(const struct lmcs_media *media, const struct lmcs_content *content, uint64_t at,
                                        void *buffer, uint64_t bytes, struct lmcs_error *error);
/* Writes the table of block hashes behind the data of a raw payload. With at most one block there is none. */
enum lmcs_status lmcs_raw_write_table(struct lmcs_heap *heap, const struct lmcs_content *content,
                                      const struct lmc_hash *hashes, struct lmcs_error *error);
/* The same, and sets the digest of the content; `tensor` has its dtype and shape. */
enum lmcs_status lmcs_raw_finish(struct lmcs_heap *heap, struct lmcs_content *content, const struct lmcs_tensor *tensor,
                                 const struct lmc_hash *hashes, struct lmcs_error *error);
/* Returns whether two versions of a content's record have the same payload: its kind and its parts. */
bool lmcs_same_payload(const struct lmcs_content *a, const struct lmcs_content *b);
/* Address in the read-only mapping; NULL when the bytes are not in one part, or not in the pool. */
const void *lmcs_payload_at(const struct lmcs_media *media, const struct lmcs_content *content, uint64_t at,
                            uint64_t bytes);
enum lmcs_status lmcs_payload_pin(struct lmcs_lease *lease, const struct lmcs_content *content,
                                  struct lmcs_error *error);
void lmcs_payload_unpin(struct lmcs_lease *lease, const struct lmcs_content *content);

#endif
