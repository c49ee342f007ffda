/* SPDX-License-Identifier: BSD-3-Clause */
/* load/load.h - libnuma, libndctl and libdaxctl, linked or (LMCS_LOAD_LIBRARIES) loaded when first used. */
#ifndef LMCS_LOAD_LOAD_H
#define LMCS_LOAD_LOAD_H

#include <stdbool.h>

/* Without libndctl nothing knows the bad blocks and unsafe shutdowns of persistent memory. */
#ifdef LMCS_LOAD_LIBRARIES
bool lmcs_load_has_ndctl(void);
#else
static inline bool lmcs_load_has_ndctl(void)
{
    return true;
}
#endif

#endif
