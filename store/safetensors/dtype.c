/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * safetensors/dtype.c - the table of the format's dtypes, and progress.
 *
 * The format (version 0.8 of the library): 8 bytes of header size, little-endian; a JSON object that maps each tensor's
 * name to {"dtype", "shape", "data_offsets"} and "__metadata__" to an object of strings; then the data, which the
 * tensors cover without gaps.
 */
#include "safetensors/safetensors.h"

#include <string.h>

/* In the library's sort order. */
static const struct lmcs_st_dtype dtypes[] = {
    {"BOOL", 0, LMC_BOOL},
    {"F4", 1, LMC_F4_E2M1FN_X2},
    {"F6_E2M3", 2, 0},
    {"F6_E3M2", 3, 0},
    {"U8", 4, LMC_U8},
    {"I8", 5, LMC_I8},
    {"F8_E5M2", 6, LMC_F8_E5M2},
    {"F8_E4M3", 7, LMC_F8_E4M3FN},
    {"F8_E8M0", 8, LMC_F8_E8M0FNU},
    {"F8_E4M3FNUZ", 9, LMC_F8_E4M3FNUZ},
    {"F8_E5M2FNUZ", 10, LMC_F8_E5M2FNUZ},
    {"I16", 11, LMC_I16},
    {"U16", 12, LMC_U16},
    {"F16", 13, LMC_F16},
    {"BF16", 14, LMC_BF16},
    {"I32", 15, LMC_I32},
    {"U32", 16, LMC_U32},
    {"F32", 17, LMC_F32},
    {"C64", 18, LMC_C64},
    {"F64", 19, LMC_F64},
    {"I64", 20, LMC_I64},
    {"U64", 21, LMC_U64},
};

#define DTYPE_COUNT (sizeof dtypes / sizeof *dtypes)

const struct lmcs_st_dtype *lmcs_st_dtype_by_name(const char *name)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];

    return NULL;
}

const struct lmcs_st_dtype *lmcs_st_dtype_of(uint32_t dtype)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (dtypes[i].dtype == dtype && dtype != 0)
            return &dtypes[i];

    return NULL;
}

enum lmcs_status lmcs_st_progress(const struct lmcs_progress *progress, const char *what, uint64_t done, uint64_t total,
                                  struct lmcs_error *error)
{
    if (progress == NULL || progress->call == NULL || progress->call(progress->context, what, done, total))
        return LMCS_OK;

    return lmcs_fail(error, LMCS_CANCELLED, 0, "%s was cancelled; nothing was changed", what);
}
