/* SPDX-License-Identifier: BSD-3-Clause */
/* memory.h - all allocations; tests make any of them fail. */
#ifndef LMC_MEMORY_H
#define LMC_MEMORY_H

#include <stddef.h>

/* Uninitialized memory, or NULL. */
void *lmci_allocate(size_t bytes);
void lmci_release(void *memory);

#endif
