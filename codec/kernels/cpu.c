/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cpu.c - chooses the kernels that this processor can run.
 *
 * The first use stores a table in the library's only global variable; racing threads store the same pointer.
 * LMC_KERNELS=portable|neon|avx2|avx512, read then, limits the choice; other values are ignored.
 *
 * The processor is asked directly. __builtin_cpu_supports takes its answers from the compiler's runtime library, and
 * that of some compilers (zig) has none: every answer is no.
 */
#include "kernels/kernels.h"
#include "kernels/link_kernels.h"
#include "lmc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum rank { PORTABLE, NEON, AVX2 = NEON, AVX512, TABLES };

static enum rank most_allowed(void)
{
    const char *name = getenv("LMC_KERNELS");
    if (name != NULL && strcmp(name, "portable") == 0)
        return PORTABLE;
    if (name != NULL && strcmp(name, "avx2") == 0)
        return AVX2;
    return AVX512;
}

#if defined(__x86_64__)
/* XCR0: the registers that the operating system saves, by their bits: SSE, AVX; opmask, ZMM0-15 high, ZMM16-31. */
#define SAVED_YMM 0x06U
#define SAVED_ZMM 0xe6U

static unsigned saved_registers(void)
{
    unsigned low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has_all(unsigned bits, unsigned wanted)
{
    return (bits & wanted) == wanted;
}

static unsigned runnable(const struct lmci_kernels *tables[TABLES])
{
    unsigned a = 0, b1 = 0, c1 = 0, b7 = 0, c7 = 0, d = 0;
    tables[PORTABLE] = &lmci_kernels_portable;
    tables[AVX2] = &lmci_kernels_avx2;
    tables[AVX512] = &lmci_kernels_avx512;
    if (!__get_cpuid(1, &a, &b1, &c1, &d) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d) || !has_all(c1, bit_OSXSAVE))
        return PORTABLE + 1;
    const unsigned saved = saved_registers();
    bool avx2 =
        has_all(saved, SAVED_YMM) && has_all(c1, bit_AVX | bit_FMA) && has_all(b7, bit_AVX2 | bit_BMI | bit_BMI2);
    bool avx512 = avx2 && has_all(saved, SAVED_ZMM) &&
                  has_all(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) &&
                  has_all(c7, bit_AVX512VBMI | bit_AVX512VBMI2);
    return avx512 ? AVX512 + 1 : avx2 ? AVX2 + 1 : PORTABLE + 1;
}
#elif defined(__aarch64__)
static unsigned runnable(const struct lmci_kernels *tables[TABLES])
{
    tables[PORTABLE] = &lmci_kernels_portable;
    tables[NEON] = &lmci_kernels_neon;
    return NEON + 1;
}
#else
static unsigned runnable(const struct lmci_kernels *tables[TABLES])
{
    tables[PORTABLE] = &lmci_kernels_portable;
    return PORTABLE + 1;
}
#endif

static const struct lmci_kernels *choose(void)
{
    const struct lmci_kernels *tables[TABLES];
    const unsigned best = runnable(tables) - 1;
    const unsigned most = most_allowed();
    return tables[best < most ? best : most];
}

static _Atomic(const struct lmci_kernels *) chosen;

const struct lmci_kernels *lmci_kernels(void)
{
    const struct lmci_kernels *kernels = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (kernels == NULL) {
        kernels = choose();
        atomic_store_explicit(&chosen, kernels, memory_order_relaxed);
    }
    return kernels;
}

const struct lmci_link_kernels *lmci_link_kernels(void)
{
    return lmci_kernels()->link;
}

bool lmci_kernels_use(const char *name)
{
    const struct lmci_kernels *tables[TABLES];
    const struct lmci_kernels *named = NULL;
    const unsigned count = runnable(tables);
    for (unsigned i = 0; i < count && name != NULL; i++)
        named = strcmp(tables[i]->name, name) == 0 ? tables[i] : named;
    if (name != NULL && named == NULL)
        return false;
    atomic_store_explicit(&chosen, named, memory_order_relaxed);
    return true;
}

const char *lmc_kernels(void)
{
    return lmci_kernels()->name;
}
