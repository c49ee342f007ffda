/* SPDX-License-Identifier: BSD-3-Clause */
/* memory.c - allocation, alone in its file so that statically linked programs can replace it. */
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
