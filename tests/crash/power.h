/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * power.h - the images that a power failure could leave of a recorded file.
 *
 * A record is followed event by event. Each line has its durable state and, in order, the stores over
 * it since, of which any one may have arrived too. At each *point* (before a fence or a sync, and around changes of
 * the file as such) every mixture of these is an *image*: only the durable state, everything, one unit alone,
 * all but one, and random mixtures. A unit is a line of the cache with DAX, and then may be torn at any multiple of 8
 * bytes; without, it is a page of the page cache, as it was at some moment, and may be torn into sectors.
 */
#ifndef LMCS_CRASH_POWER_H
#define LMCS_CRASH_POWER_H

#include "recorder.h"
#include "support.h"

struct power;

struct power_point {
    uint64_t event;     /* of the record: everything before it has happened */
    uint64_t fence;     /* how many points there were before it */
    const char *before; /* "fence", "sync", "punch", "end" */
};

/* Follows `record` from the bytes that `file` has now; images are put into `file`. */
struct power *power_new(const struct record *record, enum record_medium medium, int file);
void power_free(struct power *power);

/* Goes on to the next point at which the file is there under its name; false: there is none. */
bool power_next(struct power *power, struct power_point *point);
/* How many points a record has. */
uint64_t power_count(const struct record *record, bool shown);

/*
 * Plans at most `most` images for this point, different ones as far as `seed` and the dirty lines allow, and gives how
 * many. power_plan must be called again after power_next.
 */
size_t power_plan(struct power *power, size_t most, uint64_t seed);
/* A number that two images share only if they have the same bytes; and a description of image i. */
uint64_t power_hash(struct power *power, size_t i);
const char *power_words(struct power *power, size_t i);
/* Puts image i into the file; power_take_back restores the durable state of the file. */
void power_put(struct power *power, size_t i);
void power_take_back(struct power *power);

#endif
