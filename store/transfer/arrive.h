/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/arrive.h - writes and verifies the payloads that arrive, in a thread, while the archive is read on. */
#ifndef LMCS_TRANSFER_ARRIVE_H
#define LMCS_TRANSFER_ARRIVE_H

#include "transfer/stage.h"

/* A piece of a payload. */
struct lmcs_arrival {
    size_t pending;              /* index of its content in the stage */
    struct lmcs_content content; /* a copy: the stage's may move */
    uint64_t at;
    size_t bytes;
    bool is_last; /* of a content that is verified at once */
};

struct lmcs_arrivals;
/* `pool` outlives it. */
enum lmcs_status lmcs_arrivals_new(struct lmcs_pool *pool, struct lmcs_arrivals **arrivals, struct lmcs_error *error);
/* Waits for the thread's work, and ends it. */
void lmcs_arrivals_free(struct lmcs_arrivals *arrivals);
/*
 * Writes a piece once the one before is written. Large ones are written by the thread: *payload, of
 * LMCS_ARCHIVE_PIECE_BYTES and 1, is replaced by other memory of that size. Fails with the failure of an earlier piece,
 * too.
 */
enum lmcs_status lmcs_arrivals_add(struct lmcs_arrivals *arrivals, struct lmcs_stage *stage,
                                   const struct lmcs_arrival *arrival, unsigned char **payload,
                                   struct lmcs_error *error);
/* Waits until all pieces are written and verified. */
enum lmcs_status lmcs_arrivals_wait(struct lmcs_arrivals *arrivals, struct lmcs_stage *stage, struct lmcs_error *error);

#endif
