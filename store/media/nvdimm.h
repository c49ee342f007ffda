/* SPDX-License-Identifier: BSD-3-Clause */
/* media/nvdimm.h - pools on persistent memory are written to only with libndctl. */
#ifndef LMCS_MEDIA_NVDIMM_H
#define LMCS_MEDIA_NVDIMM_H

#include "base/error.h"

/* LMCS_UNSUPPORTED: a part of the pool, or its future place, is on persistent memory, and libndctl is absent. */
enum lmcs_status lmcs_nvdimm_check(const char *path, struct lmcs_error *error);

#endif
