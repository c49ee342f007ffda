/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_avx2.c - for AVX2 and BMI2. */
#define LMCI_KERNELS_TABLE lmci_kernels_avx2
#define LMCI_LINK_TABLE    lmci_link_kernels_avx2
#define LMCI_KERNELS_NAME  "avx2"
#include "kernels/kernels_impl.h"
