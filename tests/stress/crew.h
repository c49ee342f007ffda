/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * crew.h - the participants: threads of the writing process, and reading processes.
 *
 * They work in rounds. Between two rounds all of them rest, and the records of the round can be read; their views stay
 * open. A reading process is this program once more, so it inherits nothing; it may be stopped for a part of a round,
 * or killed, and another one takes its place in the next.
 */
#ifndef LMCS_STRESS_CREW_H
#define LMCS_STRESS_CREW_H

#include "actor.h"

enum { MOST_WRITERS = 16, MOST_READERS = 8, MOST_ACTORS = MOST_WRITERS + MOST_READERS };

struct crew_options {
    const char *path; /* of the pool */
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

/* Starts the threads and the processes; they rest. `stage` is the threads', and changes at rest only. */
struct crew *crew_new(const struct crew_options *options, const struct stage *stage);
/* Runs one round of at most this time; less if a participant has no room for more records. */
void crew_round(struct crew *crew, unsigned ms);
/* At rest: the records of participant i, up to crew_size, and the times of all, which are then cleared. */
unsigned crew_size(const struct crew *crew);
const struct log *crew_log(const struct crew *crew, unsigned i);
void crew_take_spans(struct crew *crew, struct spans *into);
/* A reading process that lives as long as the crew; 0: there is none. */
pid_t crew_reader(const struct crew *crew);
struct crew_counts crew_counts(const struct crew *crew);
/* Ends all participants after comparing and closing their views. */
void crew_end(struct crew *crew);

/* The main function of a reading process; crew_new gives the arguments. */
int crew_reader_main(int fd, unsigned index, uint64_t seed);

#endif
