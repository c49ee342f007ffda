/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_avx512.c - for AVX-512 (F, BW, VL, DQ, VBMI, VBMI2) and BMI2. */
#define LMCI_KERNELS_TABLE lmci_kernels_avx512
#define LMCI_LINK_TABLE    lmci_link_kernels_avx512
#define LMCI_KERNELS_NAME  "avx512"
#include "kernels/kernels_impl.h"
