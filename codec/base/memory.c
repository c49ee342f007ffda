/* SPDX-License-Identifier: BSD-3-Clause */
/* memory.c - allocation. A file of its own: a program linked statically can replace both functions. */
#include "base/memory.h"

#include <stdlib.h>

void *lmci_allocate(size_t bytes)
{
    return malloc(bytes);
}

void lmci_release(void *memory)
{
    free(memory);
}
