/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lively.h - what actors do with live variables.
 *
 * Each shelf of the history has a *register* beside it, a live variable of eight bytes, in a tensor or as a value: what
 * is set, added, compared and swapped, and read must be linearisable together with the shelf's other calls. And there
 * is a *pair*, a tensor and a value which transactions change together: every snapshot of it must show both changed, or
 * neither.
 */
#ifndef LMCS_STRESS_LIVELY_H
#define LMCS_STRESS_LIVELY_H

#include "actor.h"

void lively_make(struct lmcs_pool *pool);
/* Asks for, or changes, a shelf's register. */
void lively_ask(struct actor *actor, unsigned shelf);
void lively_change(struct actor *actor, unsigned shelf);
/* Changes the pair, or takes a snapshot of it and looks at that. */
void lively_transact(struct actor *actor);
void lively_look(struct actor *actor);

#endif
