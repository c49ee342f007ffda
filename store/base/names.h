/* SPDX-License-Identifier: BSD-3-Clause */
/* base/names.h - which names and shapes a tensor may have. */
#ifndef LMCS_BASE_NAMES_H
#define LMCS_BASE_NAMES_H

#include "base/error.h"

/* Checks a caller's description: name, dtype, shape, part. *raw_bytes gets its size. */
enum lmcs_status lmcs_tensor_check(const struct lmcs_tensor *tensor, uint64_t *raw_bytes, struct lmcs_error *error);
/* The same, for a tensor that is new: an older one may be empty and have other dimensions whose product overflows. */
enum lmcs_status lmcs_tensor_check_put(const struct lmcs_tensor *tensor, uint64_t *raw_bytes, struct lmcs_error *error);
/* 1 to LMCS_MAX_NAME bytes of UTF-8 without control characters. */
bool lmcs_name_is_sound(const char *name);
/* The size of a tensor; false when it is out of range. */
bool lmcs_shape_bytes(uint32_t dtype, uint32_t ndim, const uint64_t *shape, uint64_t *bytes);

#endif
