/* SPDX-License-Identifier: BSD-3-Clause */
/* driver.h - what the operations of a run share. */
#ifndef LMCS_CRASH_DRIVER_H
#define LMCS_CRASH_DRIVER_H

#include "operations.h"

#define SHELVES    3u
#define WORDS      160
#define MOST_LATER 2u /* captures that are not durable yet */

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
    uint64_t serial;  /* for names and numbers that must be unique */
    bool wants_large; /* the next tensor is of more than a block */
    struct later later[MOST_LATER];
    struct archive archive;
    struct lmcs_error error;
};

uint64_t driver_below(struct driver *d, uint64_t bound);
bool driver_chance(struct driver *d, uint64_t percent);
/* Gives the number of an operation that begins now, and says when it has been acknowledged. */
uint64_t driver_begin(struct driver *d, const char *words);
void driver_acknowledged(uint64_t operation);
/* The version that an operation has made of a shelf, to be changed. */
struct shelf_version *driver_next_version(struct driver *d, const char *shelf, uint64_t operation);
/* A full pool is no fault. */
bool driver_worked(struct driver *d, enum lmcs_status status);

/* Live variables: an operation, and what is to be done before the first of a run. */
void live_begin(struct driver *d);
void live_operation(struct driver *d);

#endif
