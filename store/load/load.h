/* SPDX-License-Identifier: BSD-3-Clause */
/* load/load.h - libnuma, libndctl and libdaxctl, linked or (LMCS_LOAD_LIBRARIES) loaded when first used. */
#ifndef LMCS_LOAD_LOAD_H
#define LMCS_LOAD_LOAD_H

#include <stdbool.h>

/* False: nothing here knows the bad blocks and unsafe shutdowns of persistent memory. */
bool lmcs_load_has_ndctl(void);

#endif
