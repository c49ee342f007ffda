/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * actor.h - one thread that makes random calls of all kinds on a pool and records each.
 *
 * In a reading process it makes a reader's calls. It compares every byte, and held views repeatedly. A wrong answer
 * ends the process.
 */
#ifndef LMCS_STRESS_ACTOR_H
#define LMCS_STRESS_ACTOR_H

#include <stdatomic.h>

#include "history.h"
#include "spans.h"

enum { LOG_EVENTS = 12000, LOG_SPARE = 8, HELD_VIEWS = 4, KNOWN = 32 };

/* In shared memory; complete when its process is killed. */
struct log {
    atomic_uint count;
    atomic_uint_fast64_t bytes_checked;
    struct spans spans;
    struct event events[LOG_EVENTS];
};

/* Shared by a process's actors. */
struct stage {
    struct lmcs_pool *pool;
    const char *path;
    const struct content *content;
    uint64_t room_bytes; /* least room under the limit */
    bool tight;          /* little: a full pool is no finding */
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
    uint64_t epoch;
    struct rng rng;
    struct held_view held[HELD_VIEWS];
    struct {
        uint64_t number;
        uint64_t ticket;
    } known[SHELVES][KNOWN]; /* known snapshots */
    void *buffers[ENTRIES];
};

uint64_t monotonic_ns(void);
void actor_init(struct actor *actor, const struct stage *stage, struct log *log, unsigned index, uint64_t seed,
                bool writes);
bool actor_log_is_full(const struct actor *actor);
/* Record the time before and after a call. `found`: not LMCS_NOT_FOUND. Other errors are findings. */
struct event actor_begin(enum op op, unsigned shelf);
bool actor_ended(struct actor *actor, struct event *event, enum lmcs_status status);
void actor_act(struct actor *actor);
/* Compares the kept views, and closes some. */
void actor_look_at_held(struct actor *actor);
void actor_end(struct actor *actor);

/* Reads everything in the model; at rest each call has one right answer. */
void actor_ask_everything(struct actor *actor, unsigned shelf);

enum { KEEP_ABOUT = 20, KEEP_AT_MOST = 40, LIST_MOST = 64 };

bool act_chance(struct actor *actor, uint64_t one_in);
struct event act_begin(enum op op, unsigned shelf);
/* Counts once complete. */
void act_write_down(struct actor *actor, const struct event *event);
/* After success, or nothing found. */
bool act_end(struct actor *actor, struct event *event, enum lmcs_status status);
void act_took(struct actor *actor, enum span span, const struct event *event);
void act_know(struct actor *actor, unsigned shelf, uint64_t number, uint64_t ticket);
void act_check(struct actor *actor, unsigned shelf, unsigned entry, uint64_t ticket, const void *data);
void act_check_entry(struct actor *actor, const struct lmcs_entry *entry, uint64_t ticket);
void act_check_view(struct actor *actor, const struct lmcs_view *view, unsigned shelf, uint64_t ticket);
size_t act_entries_of(uint64_t ticket);
uint64_t act_some_number(struct actor *actor, unsigned shelf);
void act_close_held(struct held_view *held);
void act_look(struct actor *actor, unsigned shelf);

#endif
