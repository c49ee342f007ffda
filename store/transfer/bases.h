/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/bases.h - provides bases in the pool for a content of an archive that is restored. */
#ifndef LMCS_TRANSFER_BASES_H
#define LMCS_TRANSFER_BASES_H

#include "transfer/stage.h"

/* Allocates a payload; makes room if the pool is full. */
enum lmcs_status lmcs_stage_room(struct lmcs_stage *stage, struct lmcs_content *content, uint64_t bytes,
                                 struct lmcs_error *error);
/*
 * Prepares the bases of content `index`, which is to be written. A base that the pool has in an unsuitable form gets a
 * raw copy, pending before the content. instead[i]: the copy's index among the pending contents + 1; 0: none.
 */
enum lmcs_status lmcs_stage_bases(struct lmcs_stage *stage, size_t index, size_t *instead, struct lmcs_error *error);
/*
 * Sets the bases of a content, or its link, within the transaction that enters it; for a link also its place in the
 * line. Checks all of them again, since a content found in the pool may be gone or stored in another form.
 */
enum lmcs_status lmcs_stage_tie(struct lmcs_stage *stage, struct lmcs_txn *txn, struct lmcs_stage_pending *pending,
                                struct lmcs_error *error);
/* LMCS_NOT_FOUND: a content found in the pool has changed meanwhile (see restore.c). */
enum lmcs_status lmcs_stage_fail_overtaken(struct lmcs_stage *stage, const struct lmcs_archive_content *content,
                                           struct lmcs_error *error);

#endif
