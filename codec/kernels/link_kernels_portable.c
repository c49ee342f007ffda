/* SPDX-License-Identifier: BSD-3-Clause */
/* link_kernels_portable.c - in portable C. */
#define LMCI_LINK_TABLE lmci_link_kernels_portable
#include "kernels/link_impl.h"
