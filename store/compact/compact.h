/* SPDX-License-Identifier: BSD-3-Clause */
/* compact.h - what the rest of the store knows of the compactor. */
#ifndef LMCS_COMPACT_COMPACT_H
#define LMCS_COMPACT_COMPACT_H

#include "pages/pool.h"

enum lmcs_status lmcs_compactor_new(struct lmcs_pool *pool, struct lmcs_error *error);
void lmcs_compactor_free(struct lmcs_pool *pool);
/* There may be work: a snapshot was committed or removed. */
void lmcs_compactor_notify(struct lmcs_pool *pool);
/*
 * Compacts harder, prunes by the policies and gives all unused space back, for a capture that found none and has the
 * shelf `held`. True when it may now find some.
 */
bool lmcs_compact_for_space(struct lmcs_pool *pool, const char *held);
void lmcs_compactor_state(struct lmcs_pool *pool, struct lmcs_pool_info *info);

#endif
