/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/state.h - a capture, from begin to commit or abort. */
#ifndef LMCS_CAPTURE_STATE_H
#define LMCS_CAPTURE_STATE_H

#include "capture/stages.h"
#include "links/line.h"
#include "links/search.h"
#include "records/busy.h"
#include "records/relations.h"
#include "records/shelf.h"

/* A link that is written, and not yet entered. */
struct lmcs_made_link {
    uint32_t arrays;
    uint64_t before[LMC_MAX_BASES];             /* contents */
    struct lmcs_captured *after[LMC_MAX_BASES]; /* their form is LMCS_FORM_LINKED */
    struct lmcs_content made;                   /* its id: once it is entered */
};

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

    /* link captures (step.c, turns.c, delta.c, encode.c) */
    bool searches;         /* without relations, searches the data for steps */
    bool makes_links;      /* copies tensors to memory, and writes links, keyframes and deltas */
    bool lends;            /* data of puts stay unchanged until the commit returns */
    uint32_t line_bound;   /* most links in a line */
    double line_mean;      /* and on average over bytes */
    uint64_t memory_bytes; /* lent, or copied to memory */
    uint64_t new_bytes;    /* decoded size of tensors not shared */
    uint64_t spent_ns;     /* time to copy, encode, write and sync them */
    struct lmcs_made_link *links;
    size_t link_count;
    bool has_encoded;
    bool has_changed_memory; /* the shelf's memory state is that of no snapshot, unless this one is committed */
    enum lmcs_links note;    /* whether links were made, or why not */

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
/* Makes room, also of what captures in flight need, and of the base that this one does not share (room.c). False: there
 * is no more than before. */
bool lmcs_capture_make_room(struct lmcs_capture *capture);
/* Adds to an error, which may be NULL, which snapshots could be removed. */
void lmcs_capture_explain_full(const struct lmcs_capture *capture, struct lmcs_error *error);
/* Whether the entry is in memory alone, and is to be written. */
static inline bool lmcs_captured_waits(const struct lmcs_captured *entry)
{
    return (entry->memory != NULL || entry->lent != NULL) && entry->shared == 0 && entry->form == LMCS_FORM_NONE;
}
/* The bytes of an entry that waits. */
static inline const void *lmcs_captured_bytes(const struct lmcs_captured *entry)
{
    return entry->lent != NULL ? entry->lent : entry->memory;
}
/* Copies tensors that are lent to memory, or without room there to the pool: all, or those that no link is encoded
 * from. */
enum lmcs_status lmcs_capture_take_lent(struct lmcs_capture *capture, bool all, struct lmcs_error *error);
/* Whether the entry may be an array of a step: an f32 tensor in memory that has changed. */
static inline bool lmcs_capture_may_step(const struct lmcs_captured *entry)
{
    return lmcs_captured_waits(entry) && entry->previous != 0 && entry->tensor.dtype == LMC_F32;
}
/* Whether a capture begins as one that makes links (store/POLICIES.md), and its bounds. base NULL: none is durable yet.
 * The caller holds the shelf. */
enum lmcs_status lmcs_capture_choose(struct lmcs_capture *capture, struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                     const struct lmcs_record *base, struct lmcs_error *error);
/* Writes the tensors that are in memory: as links, as frames, or raw. Payloads are not yet durable afterwards. */
enum lmcs_status lmcs_capture_encode(struct lmcs_capture *capture, struct lmcs_error *error);
/* Checks in the transaction of the commit whether links and deltas may still be entered. Those that may not get the
 * form LMCS_FORM_NONE, and *refused is true: the caller ends the transaction and encodes again, which writes them
 * raw. */
enum lmcs_status lmcs_capture_check_forms(struct lmcs_capture *capture, struct lmcs_txn *txn, bool *refused,
                                          struct lmcs_error *error);
/* Keeps the copies as the memory state, after the commit; else frees them. */
void lmcs_capture_keep_memory(struct lmcs_capture *capture, bool committed);
/*
 * Finds the contents before a step, in order, and where in a line their link would be. *verdict: LMCS_LINKS_MADE, if it
 * may be and is within the capture's bound.
 */
enum lmcs_status lmcs_capture_may_link(const struct lmcs_capture *capture, struct lmcs_txn *txn, const uint64_t *ids,
                                       uint32_t arrays, uint64_t raw_bytes, struct lmcs_content *before,
                                       struct lmcs_line_end *end, enum lmcs_links *verdict, struct lmcs_error *error);
/* Whether links are durable sooner, or not much later, by what was measured. Pure. */
bool lmcs_pace_links(const struct lmcs_pace *pace);
void lmcs_pace_measured(struct lmcs_pace *pace, bool linked, uint64_t bytes, uint64_t ns);
/* Records how long the capture took until durable. The caller holds pool->captures. */
void lmcs_capture_measured(struct lmcs_capture *capture);

/* Finds the bytes of a tensor's content in the base snapshot: in the memory state, or raw in the pool, then pinned and
 * verified. *data NULL: neither has them in one part. */
enum lmcs_status lmcs_capture_before(struct lmcs_capture *capture, const struct lmcs_tensor *tensor,
                                     const struct lmcs_content *content, const void **data, bool *pinned,
                                     struct lmcs_error *error);
/* search.c: finds steps whose arrays are entries, by index. The caller frees *matches. */
enum lmcs_status lmcs_capture_search(struct lmcs_capture *capture, struct lmcs_search_match **matches, size_t *found,
                                     struct lmcs_error *error);
/* step.c: encodes links of tensors in memory, and of no others. Marks those that are to be keyframes. */
enum lmcs_status lmcs_capture_write_links(struct lmcs_capture *capture, struct lmcs_error *error);
/* delta.c: encodes keyframes, and deltas, of tensors in memory that have no form. */
enum lmcs_status lmcs_capture_write_frames(struct lmcs_capture *capture, struct lmcs_error *error);

/* A parameter that a step has changed. */
struct lmcs_turn {
    uint64_t bytes; /* of its arrays */
    uint32_t links; /* to undo for it, with that of the step */
    size_t job;     /* the caller's */
    bool is_due;    /* it gets no link: its arrays become keyframes */
};
struct lmcs_turns {
    uint32_t bound;             /* most links to undo for a parameter */
    double mean;                /* and on average over the bytes of all */
    uint64_t unchanged_bytes;   /* of the parameters that the step has not changed */
    uint64_t unchanged_to_undo; /* their bytes, each by its links */
};
/*
 * turns.c: chooses the parameters whose turn it is, and sorts the turns. Pure.
 *
 * The longest lines end first, until the mean holds. So it holds after every capture. And a line has fewer links than
 * bound + 1 times the share of bytes whose lines are not longer. So lines that began together do not end together.
 */
void lmcs_turns_choose(struct lmcs_turn *turns, size_t count, const struct lmcs_turns *all);
/* Whether a delta of the entry may rest on content `id`, which *base receives. */
enum lmcs_status lmcs_delta_may_rest(struct lmcs_txn *txn, const struct lmcs_captured *entry, uint64_t id,
                                     struct lmcs_content *base, bool *may, struct lmcs_error *error);

/* Commits one transaction (enter.c). LMCS_OK: durable. */
enum lmcs_status lmcs_capture_enter(struct lmcs_capture *capture, struct lmcs_error *error);

#endif
