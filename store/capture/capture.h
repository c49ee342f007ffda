/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/capture.h - face of capture/, the room that writes a snapshot: put, compare, copy, commit.
 *
 * Uses base, media, pages, records, payload, links. A capture compares with the newest snapshot at its begin, its
 * *base*. Asynchronous ones are committed in order while later ones begin (CAPTURES.md). The path of a tensor, with
 * structs of stages.h:
 *
 * - put (put.c, entries.c) checks and copies the description, and looks the tensor up in the base: struct lmcs_source;
 * - compare (compare.c) compares it with the base: struct lmcs_previous;
 * - copy (copy.c) copies and hashes all that differs, into the pool or, in a link capture, to memory: struct lmcs_copy;
 * - encode (encode.c, step.c, search.c, delta.c) writes copies in memory as links, as deltas or raw: struct
 *   lmcs_made_link;
 * - commit (commit.c, enter.c) enters names, contents and the snapshot: struct lmcs_captured.
 *
 * While a capture compares, it leases the epoch of the look-up, which keeps raw payloads of the base in place.
 * Afterwards it keeps only ids of contents, never their places. New payloads, in a region of its own, are durable
 * before the transaction that makes the snapshot.
 */
#ifndef LMCS_CAPTURE_CAPTURE_H
#define LMCS_CAPTURE_CAPTURE_H

#include "pages/pool.h"

/* Fails unless tensors can be put into the capture. */
enum lmcs_status lmcs_capture_place(struct lmcs_capture *capture, struct lmcs_pool **pool, const char **shelf,
                                    struct lmcs_error *error);
/* lmcs_capture_put of data that end with the call: they are never lent. */
enum lmcs_status lmcs_capture_put_copies(struct lmcs_capture *capture, const struct lmcs_tensor *tensors,
                                         const void *const *data, size_t count, struct lmcs_error *error);
/* Marks a capture that may wait for a transaction of live variables: the thread of that transaction cannot acquire the
 * shelf. */
void lmcs_capture_waits(struct lmcs_capture *capture, bool waits);

#endif
