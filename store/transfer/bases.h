/* SPDX-License-Identifier: BSD-3-Clause */
/* archive_bases.h - what a content of an archive comes to rest on in the pool that it is restored into. */
#ifndef LMCS_TRANSFER_BASES_H
#define LMCS_TRANSFER_BASES_H

#include "transfer/stage.h"

/* Takes room for a payload; a full pool is compacted first. */
enum lmcs_status lmcs_stage_room(struct lmcs_stage *stage, struct lmcs_content *content, uint64_t bytes,
                                 struct lmcs_error *error);
/*
 * Sees to what content `index`, which is to be written, rests on: where the pool has a base in a form on which it can't
 * be put, a raw copy is made, and is pending before it. instead[i]: the copy in place of base i, its place among the
 * pending ones + 1; 0: none.
 */
enum lmcs_status lmcs_stage_bases(struct lmcs_stage *stage, size_t index, size_t *instead, struct lmcs_error *error);
/*
 * In the transaction that enters a content: its bases, or its link, and with a link its place in the line. Looks at all
 * of them once more, for what the pool had may have gone, or be stored in another form by now.
 */
enum lmcs_status lmcs_stage_tie(struct lmcs_stage *stage, struct lmcs_txn *txn, struct lmcs_stage_pending *pending,
                                struct lmcs_error *error);
/* What the archive's content rests on, or is, is no longer in the pool as it was found: LMCS_NOT_FOUND. */
enum lmcs_status lmcs_stage_fail_overtaken(struct lmcs_stage *stage, const struct lmcs_archive_content *content,
                                           struct lmcs_error *error);

#endif
