/* SPDX-License-Identifier: BSD-3-Clause */
/* driver.h - the state and helpers that the operations of a run share. */
#ifndef LMCS_CRASH_DRIVER_H
#define LMCS_CRASH_DRIVER_H

#include "operations.h"

#define SHELVES    3u
#define WORDS      160
#define MOST_LATER 2u /* not durable yet */

struct later {
    struct lmcs_capture *capture;
    uint64_t operation;
    const char *shelf;
    struct expected_snapshot *snapshot;
    char tag[16];
};

struct archive {
    int fd;
    size_t shelf_count;
    char names[SHELVES][16];
    struct shelf_version shelves[SHELVES];
};

struct driver {
    const struct run *run;
    struct expected *expected;
    struct lmcs_pool *pool;
    struct rng rng;
    uint64_t serial;  /* for unique names */
    bool wants_large; /* next tensor exceeds a block */
    struct later later[MOST_LATER];
    struct archive archive;
    struct lmcs_error error;
};

uint64_t driver_below(struct driver *d, uint64_t bound);
bool driver_chance(struct driver *d, uint64_t percent);
/* The first returns the operation's number. */
uint64_t driver_begin(struct driver *d, const char *words);
void driver_acknowledged(uint64_t operation);
/* The shelf's version after this operation. */
struct shelf_version *driver_next_version(struct driver *d, const char *shelf, uint64_t operation);
/* LMCS_FULL is not a finding. */
bool driver_worked(struct driver *d, enum lmcs_status status);

static const char *const shelf_names[SHELVES] = {"run", "eval", "ema"};

bool is_flying(const struct driver *d, const char *shelf); /* it has a pending capture */
bool is_busy(const struct driver *d, const char *shelf);   /* or a prepared snapshot */
/* Not busy; NULL: none, or by chance. */
const char *some_shelf(struct driver *d);
/* Without a pending capture. */
const char *some_shelf_behind(struct driver *d);
const struct expected_snapshot *some_snapshot(struct driver *d, const char *shelf);
unsigned char *some_bytes(struct driver *d, uint64_t bytes);
void committed(struct driver *d, const char *shelf, uint64_t operation, struct expected_snapshot *snapshot,
               const char *tag);
void some_tag(struct driver *d, char tag[16]);
bool is_crowded(struct driver *d, const char *shelf);
/* `later` not NULL: an asynchronous capture. */
void capture_now_or_later(struct driver *d, const char *shelf, struct later *later);
void wait_for(struct driver *d, struct later *later);
void wait_for_all(struct driver *d);
void do_capture(struct driver *d);
void do_capture_later(struct driver *d);
void do_in_flight(struct driver *d);
void abort_capture(struct driver *d, const char *shelf);
void do_abort(struct driver *d);
void do_prepare(struct driver *d);
void do_resolve(struct driver *d);
void do_tag(struct driver *d);
void do_untag(struct driver *d);
void remove_snapshot(struct driver *d, const char *shelf, const struct expected_snapshot *snapshot);
void do_remove(struct driver *d);
/* A snapshot leaves for a URL, and is then removed. */
void do_let_go(struct driver *d);
void remove_remote(struct driver *d, const char *shelf);
void set_policy(struct driver *d, const char *shelf, const char *policy);
void do_policy(struct driver *d);
void do_limit(struct driver *d);
/* NULL: there is none. */
const char *fork_shelf(struct driver *d, const char *shelf, const struct expected_snapshot *from);
void do_fork(struct driver *d);
void do_rename(struct driver *d);
void do_drop(struct driver *d);
void do_dump(struct driver *d);
void forget_archive(struct driver *d);
/* Into the pool of origin, which has lost some snapshots. */
void do_restore(struct driver *d);
void do_restore_parts(struct driver *d);
void do_export(struct driver *d);
void do_import(struct driver *d);
/* Steps of an optimizer, captured as links. */
void do_links(struct driver *d);
/* Three captures after a power failure. */
enum lmcs_status links_go_on(struct lmcs_pool *pool, uint64_t seed, struct lmcs_error *error);
void compact(struct driver *d, bool finished);
void compact_a_little(struct driver *d);
void open_again(struct driver *d);

/* Live variables: an operation, and a run's preparation. */
void live_begin(struct driver *d);
void live_operation(struct driver *d);

#endif
