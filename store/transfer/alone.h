/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/alone.h - codes a content as a frame of its own. */
#ifndef LMCS_TRANSFER_ALONE_H
#define LMCS_TRANSFER_ALONE_H

#include "payload/read.h"

/* *frame: malloc'd, the caller's; NULL: it would not be smaller than the raw bytes, or would take too much memory. */
enum lmcs_status lmcs_alone_encode(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                   const struct lmcs_tensor *tensor, unsigned char **frame, uint64_t *bytes,
                                   struct lmcs_error *error);

#endif
