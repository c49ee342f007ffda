/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * dtype.c - the element types: sizes, names, and the words that their bytes are grouped by.
 *
 * A complex number is two floats, so its bytes are grouped by the float. `is_float` marks the types whose sign bit
 * sits above an exponent that shares bytes with it, which is what rotation by one bit is good for (transform.h).
 */
#include "base/dtype.h"

#include "lmc.h"

#include <string.h>

struct dtype {
    const char *name;
    unsigned char size;
    unsigned char word;
    unsigned char is_float;
};

static const struct dtype dtypes[LMC_DTYPE_END] = {
    [LMC_BOOL] = {"bool", 1, 1, 0},
    [LMC_U8] = {"u8", 1, 1, 0},
    [LMC_U16] = {"u16", 2, 2, 0},
    [LMC_U32] = {"u32", 4, 4, 0},
    [LMC_U64] = {"u64", 8, 8, 0},
    [LMC_I8] = {"i8", 1, 1, 0},
    [LMC_I16] = {"i16", 2, 2, 0},
    [LMC_I32] = {"i32", 4, 4, 0},
    [LMC_I64] = {"i64", 8, 8, 0},
    [LMC_F16] = {"f16", 2, 2, 1},
    [LMC_BF16] = {"bf16", 2, 2, 1},
    [LMC_F32] = {"f32", 4, 4, 1},
    [LMC_F64] = {"f64", 8, 8, 1},
    [LMC_C32] = {"c32", 4, 2, 1},
    [LMC_C64] = {"c64", 8, 4, 1},
    [LMC_C128] = {"c128", 16, 8, 1},
    [LMC_F8_E4M3FN] = {"f8_e4m3fn", 1, 1, 0},
    [LMC_F8_E4M3FNUZ] = {"f8_e4m3fnuz", 1, 1, 0},
    [LMC_F8_E5M2] = {"f8_e5m2", 1, 1, 0},
    [LMC_F8_E5M2FNUZ] = {"f8_e5m2fnuz", 1, 1, 0},
    [LMC_F8_E8M0FNU] = {"f8_e8m0fnu", 1, 1, 0},
    [LMC_F4_E2M1FN_X2] = {"f4_e2m1fn_x2", 1, 1, 0},
};

static const struct dtype *find(uint32_t dtype)
{
    return dtype < LMC_DTYPE_END && dtypes[dtype].name ? &dtypes[dtype] : NULL;
}

size_t lmc_dtype_size(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found ? found->size : 0;
}

const char *lmc_dtype_name(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found ? found->name : NULL;
}

uint32_t lmc_dtype_from_name(const char *name)
{
    for (uint32_t dtype = 1; name && dtype < LMC_DTYPE_END; dtype++)
        if (dtypes[dtype].name && strcmp(dtypes[dtype].name, name) == 0)
            return dtype;
    return 0;
}

unsigned lmci_dtype_word(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found ? found->word : 0;
}

bool lmci_dtype_is_float(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found && found->is_float;
}

bool lmci_dtype_has_exponent(uint32_t dtype)
{
    return lmci_dtype_is_float(dtype) || (dtype >= LMC_F8_E4M3FN && dtype <= LMC_F8_E5M2FNUZ);
}
