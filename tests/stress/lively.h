/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lively.h - the actors' calls on live variables.
 *
 * Each shelf of the history has a *register*, a live variable of eight bytes in a tensor or as a value. Its calls (set,
 * add, compare and swap, read) must be linearisable together with the shelf's other calls. A *pair* is a tensor and a
 * value that transactions change together: every snapshot must show both changed, or neither.
 */
#ifndef LMCS_STRESS_LIVELY_H
#define LMCS_STRESS_LIVELY_H

#include "actor.h"

void lively_make(struct lmcs_pool *pool);
/* Reads or changes a shelf's register. */
void lively_ask(struct actor *actor, unsigned shelf);
void lively_change(struct actor *actor, unsigned shelf);
/* Changes the pair, or takes a snapshot of it and checks it. */
void lively_transact(struct actor *actor);
void lively_look(struct actor *actor);

#endif
