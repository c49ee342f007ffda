/* SPDX-License-Identifier: BSD-3-Clause */
/* base/names.h - valid names and shapes of tensors; the nearest of some names. */
#ifndef LMCS_BASE_NAMES_H
#define LMCS_BASE_NAMES_H

#include "base/error.h"

/* Checks name, kind, dtype, shape and part. *raw_bytes: the tensor's size. LMCS_INVALID. */
enum lmcs_status lmcs_tensor_check(const struct lmcs_tensor *tensor, uint64_t *raw_bytes, struct lmcs_error *error);
/* The same for a new tensor: if it is empty, the other dimensions' product must not overflow. */
enum lmcs_status lmcs_tensor_check_put(const struct lmcs_tensor *tensor, uint64_t *raw_bytes, struct lmcs_error *error);
/* 1 to LMCS_MAX_NAME bytes of UTF-8 without control characters. */
bool lmcs_name_is_sound(const char *name);
/* Size of a tensor. False: no valid dtype, or too large. */
bool lmcs_shape_bytes(uint32_t dtype, uint32_t ndim, const uint64_t *shape, uint64_t *bytes);
/* The word nearest to a mistyped one; NULL: none is near. */
const char *lmcs_nearest(const char *typed, const char *const *words, size_t count);

#endif
