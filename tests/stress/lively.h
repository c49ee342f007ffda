/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lively.h - the actors' calls on live variables.
 *
 * Each shelf has a *register*, a live variable of eight bytes, linearisable with its other calls. Transactions change a
 * *pair*, a tensor and a value: a snapshot must show both changes or neither.
 */
#ifndef LMCS_STRESS_LIVELY_H
#define LMCS_STRESS_LIVELY_H

#include "actor.h"

void lively_make(struct lmcs_pool *pool);
void lively_ask(struct actor *actor, unsigned shelf);
void lively_change(struct actor *actor, unsigned shelf);
/* Changes the pair, or snapshots and checks it. */
void lively_transact(struct actor *actor);
void lively_look(struct actor *actor);

#endif
