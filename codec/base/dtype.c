/* SPDX-License-Identifier: BSD-3-Clause */
/* dtype.c - properties derived from LMC_DTYPES. A complex element is two words; numbers below a byte share one. */
#include "base/dtype.h"

#include "lmc.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

struct dtype {
    const char *name;
    unsigned char kind, numbers, bits, exponent_bits;
};

#define ROW(constant, value, name, kind, numbers, bits, exponent_bits) \
    [constant] = {name, kind, numbers, bits, exponent_bits},
static const struct dtype dtypes[LMC_DTYPE_END] = {LMC_DTYPES(ROW)};

#define CHECK(constant, value, name, kind, numbers, bits, exponent_bits)                     \
    static_assert((value) < LMC_DTYPE_END, "values have no gaps");                           \
    static_assert((numbers) * (bits) % 8 == 0 && (bits) <= 64 && ((bits) & ((bits)-1)) == 0, \
                  "bytes split into words");                                                 \
    static_assert(((kind) >= LMC_KIND_FLOAT) == ((exponent_bits) > 0), "floats have exponents");
LMC_DTYPES(CHECK)

static const struct dtype *find(uint32_t dtype)
{
    return dtype < LMC_DTYPE_END && dtypes[dtype].name != NULL ? &dtypes[dtype] : NULL;
}

size_t lmc_dtype_size(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found == NULL ? 0 : (size_t)found->numbers * found->bits / 8;
}

unsigned lmc_dtype_numbers(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found == NULL ? 0 : found->numbers;
}

unsigned lmc_dtype_kind(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found == NULL ? 0 : found->kind;
}

const char *lmc_dtype_name(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found == NULL ? NULL : found->name;
}

uint32_t lmc_dtype_from_name(const char *name)
{
    for (uint32_t dtype = 1; name != NULL && dtype < LMC_DTYPE_END; dtype++)
        if (dtypes[dtype].name != NULL && strcmp(dtypes[dtype].name, name) == 0)
            return dtype;
    return 0;
}

unsigned lmci_dtype_word(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found == NULL ? 0 : (found->bits + 7u) / 8;
}

bool lmci_dtype_is_float(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found != NULL && found->exponent_bits > 0 && found->bits >= 16;
}

bool lmci_dtype_has_exponent(uint32_t dtype)
{
    const struct dtype *found = find(dtype);
    return found != NULL && found->exponent_bits > 0 && found->exponent_bits < found->bits && found->bits >= 8;
}
