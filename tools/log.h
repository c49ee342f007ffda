/* SPDX-License-Identifier: BSD-3-Clause */
/* log.h - the graph beside the log: the source of each snapshot, in characters. */
#ifndef LOG_H
#define LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct log_point {
    size_t shelf;
    uint64_t number;
    bool is_near; /* the nearest snapshot before a removed parent */
};

/* A line of the graph from a snapshot down to its source. */
struct log_lane {
    bool is_used;
    struct log_point next;
};

struct log_graph {
    struct log_lane *lanes;
    size_t count;
    size_t capacity;
};

/* Prints the graph before a snapshot's text, and records its source `from` (NULL: not shown). False: no memory. */
bool log_graph_row(struct log_graph *graph, FILE *out, const struct log_point *point, const struct log_point *from);
void log_graph_free(struct log_graph *graph);

#endif
