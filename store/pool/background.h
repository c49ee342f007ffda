/* SPDX-License-Identifier: BSD-3-Clause */
/* pool/background.h - the background thread of a pool (private to pool/). */
#ifndef LMCS_POOL_BACKGROUND_H
#define LMCS_POOL_BACKGROUND_H

#include "pages/pool.h"

/* Makes the compactor, sets the hooks of struct lmcs_pool, and starts the thread unless LMCS_NO_BACKGROUND is set. */
enum lmcs_status lmcs_background_new(struct lmcs_pool *pool, struct lmcs_error *error);
void lmcs_background_free(struct lmcs_pool *pool);
void lmcs_background_state(const struct lmcs_pool *pool, struct lmcs_pool_info *info);

#endif
