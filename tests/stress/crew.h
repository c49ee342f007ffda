/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * crew.h - the participants: threads of the writing process, and reading processes.
 *
 * Between rounds all rest, the records can be read, and views stay open. A reading process is this program executed
 * anew; it may be stopped, or killed and replaced in the next round.
 */
#ifndef LMCS_STRESS_CREW_H
#define LMCS_STRESS_CREW_H

#include "actor.h"

enum { MOST_WRITERS = 16, MOST_READERS = 8, MOST_ACTORS = MOST_WRITERS + MOST_READERS };

struct crew_options {
    const char *path;
    uint64_t seed;
    unsigned scale;
    unsigned writers;
    unsigned readers;
};

struct crew_counts {
    uint64_t killed;
    uint64_t stopped;
    uint64_t bytes_checked;
};

struct crew;

/* At rest at first. The threads share `stage`, which changes only at rest. */
struct crew *crew_new(const struct crew_options *options, const struct stage *stage);
/* At most `ms`; less without room for records. */
void crew_round(struct crew *crew, unsigned ms);
/* At rest: participant i's records, i below crew_size; all times, which are then cleared. */
unsigned crew_size(const struct crew *crew);
const struct log *crew_log(const struct crew *crew, unsigned i);
void crew_take_spans(struct crew *crew, struct spans *into);
/* Lives as long as the crew; 0: none. */
pid_t crew_reader(const struct crew *crew);
struct crew_counts crew_counts(const struct crew *crew);
/* Compares and closes all views first. */
void crew_end(struct crew *crew);

/* crew_new passes the arguments. */
int crew_reader_main(int fd, unsigned index, uint64_t seed);

#endif
