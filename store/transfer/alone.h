/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/alone.h - sends a content as a frame of its own. */
#ifndef LMCS_TRANSFER_ALONE_H
#define LMCS_TRANSFER_ALONE_H

#include "payload/read.h"
#include "transfer/write.h"

/* *is_sent false: the frame would not be smaller than the raw bytes, or would take too much memory. */
enum lmcs_status lmcs_dump_alone(struct lmcs_dump *dump, const struct lmcs_chain *chain, bool *is_sent,
                                 struct lmcs_error *error);

#endif
