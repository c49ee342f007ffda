/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * log_graph.c - the graph beside the log.
 *
 * Snapshots come newest first. Each lane waits for the source of the snapshot above it. Lanes that wait for the same
 * source are joined on a line of their own. A snapshot without a lane ends a branch and begins a lane. An ended lane
 * leaves its column to the next new one, so no other lane moves.
 *
 * Lanes beyond MOST_LANES are followed but not drawn: a ~ replaces them, then a * for a snapshot in one of them.
 */
#include "log.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_LANES = 20 };

static bool waits_for(const struct log_lane *lane, const struct log_point *point)
{
    return lane->is_used && lane->next.shelf == point->shelf && lane->next.number == point->number;
}

static char lane_character(const struct log_lane *lane)
{
    return !lane->is_used ? ' ' : lane->next.is_near ? ':' : '|';
}

/* Finds the first lane that waits for the snapshot, or makes a new one. */
static bool find_lane(struct log_graph *graph, const struct log_point *point, size_t *found)
{
    for (*found = 0; *found < graph->count; ++*found)
        if (waits_for(&graph->lanes[*found], point))
            return true;
    for (*found = 0; *found < graph->count && graph->lanes[*found].is_used; ++*found)
        ;
    if (*found < graph->count)
        return true;
    if (graph->count == graph->capacity) {
        size_t capacity = graph->capacity != 0 ? graph->capacity * 2 : 16;
        struct log_lane *lanes = realloc(graph->lanes, capacity * sizeof *lanes);
        if (lanes == NULL)
            return false;
        graph->lanes = lanes;
        graph->capacity = capacity;
    }
    graph->lanes[graph->count++] = (struct log_lane){false, {0, 0, false}};
    return true;
}

static void trim(struct log_graph *graph)
{
    while (graph->count != 0 && !graph->lanes[graph->count - 1].is_used)
        graph->count--;
}

/* Prints a line like "| |/" or "|_|/": lanes after `first` that wait for the point end in lane `first`. */
static bool join(struct log_graph *graph, FILE *out, const struct log_point *point, size_t first)
{
    size_t width = 2 * graph->count;
    size_t last = 0;
    for (size_t i = first + 1; i < graph->count; i++)
        if (waits_for(&graph->lanes[i], point))
            last = i;

    if (last == 0)
        return true;
    char *line = malloc(width + 1);
    if (line == NULL)
        return false;
    memset(line, ' ', width);
    line[width] = '\0';
    for (size_t i = 0; i < graph->count; i++) {
        bool ends = i > first && waits_for(&graph->lanes[i], point);
        line[2 * i] = ends ? ' ' : lane_character(&graph->lanes[i]);
        if (ends) {
            line[2 * i - 1] = '/';
            graph->lanes[i].is_used = false;
        }
    }
    for (size_t at = 2 * first + 1; at < 2 * last - 1; at++)
        if (line[at] == ' ')
            line[at] = '_';

    bool is_cut = graph->count > MOST_LANES;
    if (is_cut)
        memcpy(line + (size_t)2 * MOST_LANES, "~", 2);
    for (size_t end = strlen(line); end != 0 && line[end - 1] == ' '; end--)
        line[end - 1] = '\0';
    if (first < MOST_LANES)
        fprintf(out, "%s\n", line);
    free(line);
    trim(graph);
    return true;
}

bool log_graph_row(struct log_graph *graph, FILE *out, const struct log_point *point, const struct log_point *from)
{
    size_t own = 0;
    if (!find_lane(graph, point, &own) || !join(graph, out, point, own))
        return false;
    for (size_t i = 0; i < graph->count && i < MOST_LANES; i++)
        fprintf(out, "%c ", i == own ? '*' : lane_character(&graph->lanes[i]));
    if (graph->count > MOST_LANES)
        fputs(own < MOST_LANES ? "~ " : "~* ", out);
    graph->lanes[own].is_used = from != NULL;
    if (from != NULL)
        graph->lanes[own].next = *from;
    trim(graph);
    return true;
}

void log_graph_free(struct log_graph *graph)
{
    free(graph->lanes);
    *graph = (struct log_graph){NULL, 0, 0};
}
