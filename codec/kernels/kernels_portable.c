/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_portable.c - for the architecture's baseline. */
#define LMCI_KERNELS_TABLE lmci_kernels_portable
#define LMCI_LINK_TABLE    lmci_link_kernels_portable
#define LMCI_KERNELS_NAME  "portable"
#include "kernels/kernels_impl.h"
