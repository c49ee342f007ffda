/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/bases.h - provides bases in the pool for a restored content. */
#ifndef LMCS_TRANSFER_BASES_H
#define LMCS_TRANSFER_BASES_H

#include "transfer/stage.h"

/* Allocates `bytes` for the content; makes room if the pool is full. */
enum lmcs_status lmcs_stage_room(struct lmcs_stage *stage, struct lmcs_content *content, uint64_t bytes,
                                 struct lmcs_error *error);
/* Gives each unsuitable base of content `index` a raw copy, pending before the content. instead[i]: the copy's index
 * among the pending + 1; 0: none. */
enum lmcs_status lmcs_stage_bases(struct lmcs_stage *stage, size_t index, size_t *instead, struct lmcs_error *error);
/* Within the transaction that enters a content: sets its bases or link, and the link's place in its line. Checks the
 * bases again, since a content found in the pool may be gone or stored otherwise. */
enum lmcs_status lmcs_stage_tie(struct lmcs_stage *stage, struct lmcs_txn *txn, struct lmcs_stage_pending *pending,
                                struct lmcs_error *error);
/* LMCS_NOT_FOUND: a found content has changed (see restore.c). */
enum lmcs_status lmcs_stage_fail_overtaken(struct lmcs_stage *stage, const struct lmcs_archive_content *content,
                                           struct lmcs_error *error);

#endif
