/* SPDX-License-Identifier: BSD-3-Clause */
/* pool/open.h - the check that an open pool's file could be opened again. */
#ifndef LMCS_POOL_OPEN_H
#define LMCS_POOL_OPEN_H

#include "pages/pool.h"

/* Whether a writer could open the file now, apart from another writer. */
enum lmcs_status lmcs_pool_look(const struct lmcs_pool *pool, struct lmcs_error *error);

#endif
