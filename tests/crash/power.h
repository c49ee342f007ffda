/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * power.h - the images that a power failure could leave of a recorded file.
 *
 * A line may be durable or as after any later store. At each *point* (before a fence or sync, around changes of the
 * file itself) *images* are: the durable state, everything, one unit alone, all but one, random mixtures. A unit is a
 * cache line, torn at multiples of 8 bytes (DAX), or a page as of some moment, torn into sectors.
 */
#ifndef LMCS_CRASH_POWER_H
#define LMCS_CRASH_POWER_H

#include "recorder.h"
#include "support.h"

struct power;

struct power_point {
    uint64_t event;     /* of the record: earlier ones happened */
    uint64_t fence;     /* earlier points */
    const char *before; /* "fence", "sync", "punch", "end" */
};

/* Follows `record` from the bytes of `file`, which receives the images. */
struct power *power_new(const struct record *record, enum record_medium medium, int file);
void power_free(struct power *power);

/* To the next point at which the file has its name; false: none. */
bool power_next(struct power *power, struct power_point *point);
uint64_t power_count(const struct record *record, bool shown);

/*
 * Plans at most `most` images, distinct as far as `seed` and the dirty lines allow; returns the number. Repeat after
 * power_next.
 */
size_t power_plan(struct power *power, size_t most, uint64_t seed);
/* A hash of image i, and a description. */
uint64_t power_hash(struct power *power, size_t i);
const char *power_words(struct power *power, size_t i);
/* power_take_back restores the durable state. */
void power_put(struct power *power, size_t i);
void power_take_back(struct power *power);

#endif
