/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * actor.h - one thread that does whatever can be done with a pool, at random, and writes down each call.
 *
 * Actors of the writing process do everything; one that reads, in a process of its own, what a reader may. Every byte
 * that is read is compared with what the snapshot's ticket says; views are kept for a while and compared again. An
 * answer that is none of those allowed ends the process.
 */
#ifndef LMCS_STRESS_ACTOR_H
#define LMCS_STRESS_ACTOR_H

#include <stdatomic.h>

#include "history.h"
#include "spans.h"

enum { LOG_EVENTS = 12000, LOG_SPARE = 8, HELD_VIEWS = 4, KNOWN = 32 };

/* What an actor has done in this round; in memory that processes share, and whole when its process is killed. */
struct log {
    atomic_uint count;
    atomic_uint_fast64_t bytes_checked;
    struct spans spans;
    struct event events[LOG_EVENTS];
};

/* What the actors of a process have in common. */
struct stage {
    struct lmcs_pool *pool; /* of a writer */
    const char *path;
    const struct content *content;
    uint64_t room_bytes; /* that the limit leaves above what is used, at least */
    bool tight;          /* ... this round only a little: a full pool is no finding */
};

struct held_view {
    struct lmcs_view *view;
    unsigned shelf;
    uint64_t ticket;
};

struct actor {
    const struct stage *stage;
    struct log *log;
    struct lmcs_pool *pool;
    bool writes;
    unsigned index;
    uint64_t tickets;
    uint64_t epoch; /* that it has seen */
    struct rng rng;
    struct held_view held[HELD_VIEWS];
    struct {
        uint64_t number;
        uint64_t ticket;
    } known[SHELVES][KNOWN]; /* snapshots that it met */
    void *buffers[ENTRIES];
};

uint64_t monotonic_ns(void);
void actor_init(struct actor *actor, const struct stage *stage, struct log *log, unsigned index, uint64_t seed,
                bool writes);
bool actor_log_is_full(const struct actor *actor);
/* Before and after a call; `found`: that is not LMCS_NOT_FOUND. Anything else than these two is a finding. */
struct event actor_begin(enum op op, unsigned shelf);
bool actor_ended(struct actor *actor, struct event *event, enum lmcs_status status);
/* Does one thing. */
void actor_act(struct actor *actor);
/* Compares the views that it keeps, and closes some of them. */
void actor_look_at_held(struct actor *actor);
/* Closes what it has open. */
void actor_end(struct actor *actor);

/* Asks for all that the model has of a shelf, one call after the other: at rest there is one answer to each. */
void actor_ask_everything(struct actor *actor, unsigned shelf);

#endif
