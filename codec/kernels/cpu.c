/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cpu.c - chooses the kernels that this processor can run.
 *
 * The first use stores a table in the library's only global variable; racing threads store the same pointer.
 * LMC_KERNELS=portable|neon|avx2|avx512, read then, limits the choice; other values are ignored. __builtin_cpu_supports
 * also checks that the operating system preserves wide registers (XSAVE).
 */
#include "kernels/kernels.h"
#include "kernels/link_kernels.h"
#include "lmc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

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
static unsigned runnable(const struct lmci_kernels *tables[TABLES])
{
    tables[PORTABLE] = &lmci_kernels_portable;
    tables[AVX2] = &lmci_kernels_avx2;
    tables[AVX512] = &lmci_kernels_avx512;
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
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
