/* SPDX-License-Identifier: BSD-3-Clause */
/* link_kernels_avx2.c - for AVX2. */
#define LMCI_LINK_TABLE lmci_link_kernels_avx2
#include "kernels/link_impl.h"
