/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cpu.c - chooses the kernels that this processor can run.
 *
 * The choice is made on first use and is the library's only global: threads that race to it store the same pointer.
 * LMC_KERNELS=portable|neon|avx2|avx512 in the environment, read at that moment, names the most that may be used;
 * tests run everything once with each. Other values mean nothing. __builtin_cpu_supports also asks the system (XSAVE)
 * whether it keeps the wide registers.
 */
#include "kernels.h"
#include "lmc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum rank { PORTABLE, AVX2, AVX512 };

static enum rank most_allowed(void)
{
    const char *name = getenv("LMC_KERNELS");
    if (name && strcmp(name, "portable") == 0)
        return PORTABLE;
    if (name && strcmp(name, "avx2") == 0)
        return AVX2;
    return AVX512;
}

#if defined(__x86_64__)
static const struct lmci_kernels *choose(void)
{
    enum rank most = most_allowed();
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
    if (avx512 && most >= AVX512)
        return &lmci_kernels_avx512;
    if (avx2 && most >= AVX2)
        return &lmci_kernels_avx2;
    return &lmci_kernels_portable;
}
#elif defined(__aarch64__)
static const struct lmci_kernels *choose(void)
{
    return most_allowed() == PORTABLE ? &lmci_kernels_portable : &lmci_kernels_neon;
}
#else
static const struct lmci_kernels *choose(void)
{
    (void)most_allowed;
    return &lmci_kernels_portable;
}
#endif

const struct lmci_kernels *lmci_kernels(void)
{
    static _Atomic(const struct lmci_kernels *) chosen;
    const struct lmci_kernels *kernels = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!kernels) {
        kernels = choose();
        atomic_store_explicit(&chosen, kernels, memory_order_relaxed);
    }
    return kernels;
}

const char *lmc_kernels(void)
{
    return lmci_kernels()->name;
}
