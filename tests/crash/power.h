/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * power.h - the images that a power failure could leave of a recorded file.
 *
 * Each line has its durable state and the later stores, any one of which may have arrived. At each *point* (before a
 * fence or sync, and around changes of the file itself) every mixture is an *image*: only the durable state,
 * everything, one unit alone, all but one, and random mixtures. With DAX a unit is a cache line, torn at multiples of 8
 * bytes; without, a page as of some moment, torn into sectors.
 */
#ifndef LMCS_CRASH_POWER_H
#define LMCS_CRASH_POWER_H

#include "recorder.h"
#include "support.h"

struct power;

struct power_point {
    uint64_t event;     /* of the record: earlier ones have happened */
    uint64_t fence;     /* earlier points */
    const char *before; /* "fence", "sync", "punch", "end" */
};

/* Follows `record` from the current bytes of `file`, which also receives the images. */
struct power *power_new(const struct record *record, enum record_medium medium, int file);
void power_free(struct power *power);

/* Advances to the next point at which the file has its name; false: none. */
bool power_next(struct power *power, struct power_point *point);
uint64_t power_count(const struct record *record, bool shown);

/*
 * Plans at most `most` images, distinct as far as `seed` and the dirty lines allow; returns the number. Call it again
 * after power_next.
 */
size_t power_plan(struct power *power, size_t most, uint64_t seed);
/* A hash of the image's bytes; and a description of image i. */
uint64_t power_hash(struct power *power, size_t i);
const char *power_words(struct power *power, size_t i);
/* Puts image i into the file; power_take_back restores the durable state. */
void power_put(struct power *power, size_t i);
void power_take_back(struct power *power);

#endif
