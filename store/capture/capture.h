/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/capture.h - writing a snapshot: put, compare, copy, commit. May use base, media, pages, records, payload.
 *
 * A capture holds its shelf from begin until it is durable, so the newest snapshot, its *base*, cannot change. The path
 * of a tensor, with one struct a stage (stages.h):
 *
 *   put      put.c, entries.c   checks the description, keeps a copy of it         struct lmcs_source
 *   compare  compare.c          looks it up in the base, once; finds equal bytes   struct lmcs_previous
 *   encode   delta.c            policies with encode= only: writes a delta         struct lmcs_previous
 *   copy     copy.c             allocates, copies and hashes all that differs      struct lmcs_copy
 *   commit   commit.c, enter.c  enters names, contents and the snapshot            struct lmcs_captured
 *
 * While tensors are compared, the capture leases the epoch of its look-up, which keeps raw payloads of the base in
 * place even if the compactor replaces them. Afterwards it remembers ids of contents, never their places. New payloads
 * go to a region of the capture's own and are durable before the transaction that makes the snapshot begins. The
 * manifest is a copy-on-write copy of the base's, changed where tensors changed.
 */
#ifndef LMCS_CAPTURE_CAPTURE_H
#define LMCS_CAPTURE_CAPTURE_H

#include "pages/pool.h"

/* The pool and shelf of a capture. Fails unless tensors can be put into it. */
enum lmcs_status lmcs_capture_place(struct lmcs_capture *capture, struct lmcs_pool **pool, const char **shelf,
                                    struct lmcs_error *error);
/*
 * Records that the capture may wait for a transaction of live variables (true), or no longer does (false). Meanwhile
 * the thread of that transaction cannot take the shelf.
 */
void lmcs_capture_waits(struct lmcs_capture *capture, bool waits);

#endif
