/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/state.h - a capture, from begin to commit or abort. */
#ifndef LMCS_CAPTURE_STATE_H
#define LMCS_CAPTURE_STATE_H

#include "capture/stages.h"
#include "records/busy.h"
#include "records/relations.h"

struct lmcs_capture {
    struct lmcs_ticket ticket; /* the first member */
    struct lmcs_pool *pool;
    struct lmcs_workers *workers; /* of its jobs */
    struct lmcs_busy_shelf *busy;
    enum { LMCS_CAPTURE_OPEN, LMCS_CAPTURE_BROKEN, LMCS_CAPTURE_COMMITTING } state;
    struct lmcs_region region;
    bool began_behind;             /* others in flight, so the base may be older than the newest snapshot */
    struct lmcs_root_tree_df base; /* manifest of ticket.base, kept while the ticket is valid */
    struct lmcs_entries entries;
    struct lmcs_relations relations;
    uint64_t written_bytes;
    uint64_t shared_bytes;
    uint64_t raw_bytes;

    /* write= */
    bool encodes;
    bool in_encode_gate;
    uint64_t new_bytes; /* decoded size of tensors not shared */
    uint64_t spent_ns;  /* time to write and sync them */

    /* commit */
    struct lmcs_commit_options options; /* pointers are copies */
    char *meta;
    char **tags;
    bool promised; /* lmcs_capture_promise: freed by a wait or detach alone */
    bool asynchronous;
    bool hands_on; /* asynchronous: gives the shelf to the next capture at once */
    bool detached;
    bool done;                      /* guarded by pool->captures, like all below */
    struct lmcs_failure *to_report; /* allocated at the begin, for an asynchronous failure; NULL: used */
    uint64_t failure;               /* its id; 0: none */
    struct lmcs_error result;
};

/* Fails with LMCS_INVALID if the capture failed or was committed. */
enum lmcs_status lmcs_capture_check(const struct lmcs_capture *capture, struct lmcs_error *error);
void lmcs_capture_free(struct lmcs_capture *capture);
/* Commits one transaction (enter.c). LMCS_OK: durable. */
enum lmcs_status lmcs_capture_enter(struct lmcs_capture *capture, struct lmcs_error *error);

#endif
