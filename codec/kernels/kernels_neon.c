/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_neon.c - for NEON, which every arm64 processor has. */
#define LMCI_NEON
#define LMCI_KERNELS_TABLE lmci_kernels_neon
#define LMCI_LINK_TABLE    lmci_link_kernels_neon
#define LMCI_KERNELS_NAME  "neon"
#include "kernels/kernels_impl.h"
