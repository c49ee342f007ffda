/* SPDX-License-Identifier: BSD-3-Clause */
/* link_kernels_neon.c - for NEON. */
#define LMCI_LINK_TABLE lmci_link_kernels_neon
#include "kernels/link_impl.h"
