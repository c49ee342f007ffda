/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/turns.c - which parameters get keyframes in a link capture.
 *
 * Turns are chosen by the lengths of lines alone. So failed captures, forks, parameters that do not change, and speeds
 * that are measured anew need no care.
 */
#include <stdlib.h>

#include "base/order.h"
#include "capture/state.h"

static int longest_first(const void *a, const void *b)
{
    const struct lmcs_turn *x = a, *y = b;
    if (x->links != y->links)
        return LMCS_ORDER(y->links, x->links);
    return x->bytes != y->bytes ? LMCS_ORDER(x->bytes, y->bytes) : LMCS_ORDER(x->job, y->job);
}

void lmcs_turns_choose(struct lmcs_turn *turns, size_t count, const struct lmcs_turns *all)
{
    uint64_t bytes = 0, to_undo = all->unchanged_to_undo, longer = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += turns[i].bytes;
        to_undo += turns[i].bytes * turns[i].links;
    }
    const double most = all->mean * (double)(bytes + all->unchanged_bytes);
    if (count > 0)
        qsort(turns, count, sizeof *turns, longest_first);
    for (size_t i = 0; i < count; i++) {
        struct lmcs_turn *turn = &turns[i];
        const uint64_t bound = (((uint64_t)all->bound + 1) * (bytes - longer) - 1) / bytes;
        turn->is_due = turn->links > bound || (double)to_undo > most;
        if (turn->is_due)
            to_undo -= turn->bytes * turn->links;
        else
            longer += turn->bytes;
    }
}
