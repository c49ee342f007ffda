/* SPDX-License-Identifier: BSD-3-Clause */
/* log.h - the graph beside the log: which snapshot comes from which, in characters. */
#ifndef LOG_H
#define LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A snapshot of one of the shelves that are shown. */
struct log_point {
    size_t shelf; /* its index */
    uint64_t number;
    bool is_near; /* its parent is not there any more, and this is the nearest before that */
};

/* A column of the graph goes down from a snapshot to what it comes from. */
struct log_lane {
    bool is_used;
    struct log_point next;
};

struct log_graph {
    struct log_lane *lanes;
    size_t count;
    size_t capacity;
};

/* Prints what is before the text of a snapshot's line, and remembers `from` (NULL: it comes from nothing that is
 * shown). False without memory. */
bool log_graph_row(struct log_graph *graph, FILE *out, const struct log_point *point, const struct log_point *from);
void log_graph_free(struct log_graph *graph);

#endif
