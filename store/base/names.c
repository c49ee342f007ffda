/* SPDX-License-Identifier: BSD-3-Clause */
/* base/names.c - valid names and shapes. */
#include "base/names.h"

#include <ctype.h>
#include <string.h>

#include "lmc.h"

/* Length of the UTF-8 sequence at s, no control character; 0: invalid. */
static size_t sound_character(const unsigned char *s)
{
    if (s[0] < 0x80)
        return s[0] >= 0x20 && s[0] != 0x7f;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] >= 0xa0;
    bool too_large = s[0] == 0xf4 && s[1] >= 0x90;
    bool control = s[0] == 0xc2 && s[1] < 0xa0;
    return overlong || surrogate || too_large || control ? 0 : n;
}

bool lmcs_name_is_sound(const char *name)
{
    size_t length = name == NULL ? 0 : strnlen(name, LMCS_MAX_NAME + 1);
    if (length == 0 || length > LMCS_MAX_NAME)
        return false;
    for (size_t i = 0, n; i < length; i += n)
        if ((n = sound_character((const unsigned char *)name + i)) == 0)
            return false;
    return true;
}

bool lmcs_shape_bytes(uint32_t dtype, uint32_t ndim, const uint64_t *shape, uint64_t *bytes)
{
    uint64_t n = lmc_dtype_size(dtype);
    if (n == 0 || ndim > LMCS_MAX_DIMS)
        return false;
    bool empty = false;
    for (uint32_t i = 0; i < ndim; i++)
        empty |= shape[i] == 0;
    for (uint32_t i = 0; i < ndim && !empty; i++)
        if (__builtin_mul_overflow(n, shape[i], &n) || n > (uint64_t)1 << 60)
            return false;
    *bytes = empty ? 0 : n;
    return true;
}

enum lmcs_status lmcs_tensor_check(const struct lmcs_tensor *tensor, uint64_t *raw_bytes, struct lmcs_error *error)
{
    if (!lmcs_name_is_sound(tensor->name))
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "tensor name \"%.64s\": names are 1 to %d bytes of UTF-8 without control characters",
                         tensor->name == NULL ? "" : tensor->name, LMCS_MAX_NAME);
    if (tensor->kind > LMCS_ATTACHMENT)
        return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\": there is no kind %u", tensor->name, tensor->kind);
    if (lmc_dtype_size(tensor->dtype) == 0)
        return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\": there is no dtype %u", tensor->name, tensor->dtype);
    if (tensor->ndim > LMCS_MAX_DIMS || (tensor->ndim > 0 && tensor->shape == NULL))
        return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\": at most %d dimensions are possible", tensor->name,
                         LMCS_MAX_DIMS);
    if (!lmcs_shape_bytes(tensor->dtype, tensor->ndim, tensor->shape, raw_bytes))
        return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\": its shape is impossibly large", tensor->name);
    if ((tensor->global_shape == NULL) != (tensor->offsets == NULL))
        return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\": a part needs its global shape and its offsets",
                         tensor->name);
    for (uint32_t i = 0; tensor->global_shape != NULL && i < tensor->ndim; i++)
        if (tensor->offsets[i] > tensor->global_shape[i] ||
            tensor->shape[i] > tensor->global_shape[i] - tensor->offsets[i])
            return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\": the part does not lie inside its global shape",
                             tensor->name);
    return LMCS_OK;
}

/* Strides of an empty tensor are products of its other dimensions. Only a new one is refused for an overflow. */
static bool has_possible_strides(const struct lmcs_tensor *tensor)
{
    uint64_t n = lmc_dtype_size(tensor->dtype);
    for (uint32_t i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] != 0 && (__builtin_mul_overflow(n, tensor->shape[i], &n) || n > (uint64_t)1 << 60))
            return false;
    return true;
}

enum lmcs_status lmcs_tensor_check_put(const struct lmcs_tensor *tensor, uint64_t *raw_bytes, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_tensor_check(tensor, raw_bytes, error);
    if (status == LMCS_OK && !has_possible_strides(tensor))
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "tensor \"%s\": it is empty, but its other dimensions are impossibly large", tensor->name);
    return status;
}

/* ---- The nearest name ---- */

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static bool is_same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Counts letters to insert, delete, replace or swap with a neighbour (optimal string alignment), ignoring case. */
static unsigned distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    uint8_t table[MAX + 1][MAX + 1];
    size_t m = strlen(a);
    size_t n = strlen(b);
    if (m > MAX || n > MAX)
        return UINT32_MAX;
    for (size_t i = 0; i <= m; i++)
        for (size_t j = 0; j <= n; j++) {
            if (i == 0 || j == 0) {
                table[i][j] = (uint8_t)(i + j);
                continue;
            }
            unsigned replaced = table[i - 1][j - 1] + !is_same_letter(a[i - 1], b[j - 1]);
            unsigned found = least(replaced, least(table[i - 1][j], table[i][j - 1]) + 1u);
            if (i > 1 && j > 1 && is_same_letter(a[i - 1], b[j - 2]) && is_same_letter(a[i - 2], b[j - 1]))
                found = least(found, table[i - 2][j - 2] + 1u);
            table[i][j] = (uint8_t)found;
        }
    return table[m][n];
}

const char *lmcs_nearest(const char *typed, const char *const *words, size_t count)
{
    const char *best = NULL;
    unsigned best_distance = 3;
    for (size_t i = 0; i < count; i++) {
        unsigned d = distance(typed, words[i]);
        bool is_far = d >= strlen(words[i]) || d > (strlen(typed) + 1) / 2;
        if (strlen(typed) > 1 && strncmp(words[i], typed, strlen(typed)) == 0)
            d = 0;
        else if (is_far)
            continue;
        if (d < best_distance) {
            best = words[i];
            best_distance = d;
        }
    }
    return best;
}
