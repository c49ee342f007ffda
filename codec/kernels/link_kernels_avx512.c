/* SPDX-License-Identifier: BSD-3-Clause */
/* link_kernels_avx512.c - for AVX-512. */
#define LMCI_LINK_TABLE lmci_link_kernels_avx512
#include "kernels/link_impl.h"
