/* SPDX-License-Identifier: BSD-3-Clause */
/* links/line.h - whether a link may lead from contents, and where in a line it is (store/LINKS.md). */
#ifndef LMCS_LINKS_LINE_H
#define LMCS_LINKS_LINE_H

#include "records/content.h"

struct lmcs_line_end {
    /* The new link's place for its record: above that of the link below, and too large once a keyframe was put into the
     * line. At most LMCS_LINK_BOUND. */
    uint32_t place;
    /* Links that reading its outputs may apply, itself included. A raw array with a link counts as stored by that. */
    uint32_t links;
    bool breaks; /* the arrays are raw and don't continue one line: before the link is added, lmcs_line_break */
};

/*
 * Finds where a link from `before`, the arrays before a step in the order of its roles, would be. They may be raw,
 * keyframes or linked. The caller holds policies against `end`, and checks the arrays after the step.
 *
 * *verdict     LMCS_LINKS_MADE: it may be; LMCS_LINKS_FIRST: no place is left in the line; LMCS_LINKS_NOT_RAW: the
 *              arrays, or what they rest on, are deltas, are lost in part, or don't continue one line
 */
enum lmcs_status lmcs_line_find(struct lmcs_txn *txn, const struct lmcs_content *before, uint32_t arrays,
                                struct lmcs_line_end *end, enum lmcs_links *verdict, struct lmcs_error *error);

/* Removes the links that lead to raw arrays, so that a new line begins there. */
enum lmcs_status lmcs_line_break(struct lmcs_txn *txn, const struct lmcs_content *arrays, uint32_t count,
                                 struct lmcs_error *error);

#endif
