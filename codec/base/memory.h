/* SPDX-License-Identifier: BSD-3-Clause */
/* memory.h - all allocations of the library, so that tests can make any of them fail. */
#ifndef LMC_MEMORY_H
#define LMC_MEMORY_H

#include <stddef.h>

/* Returns uninitialized memory, or NULL if there is none. */
void *lmci_allocate(size_t bytes);
void lmci_release(void *memory);

#endif
