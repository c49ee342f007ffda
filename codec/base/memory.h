/* SPDX-License-Identifier: BSD-3-Clause */
/* memory.h - the library's only way to memory, so that tests can make any allocation fail. */
#ifndef LMC_MEMORY_H
#define LMC_MEMORY_H

#include <stddef.h>

/* Zeroed memory is not promised. NULL when there is none. */
void *lmci_allocate(size_t bytes);
/* NULL is fine. */
void lmci_release(void *memory);

#endif
