/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * memory.c - allocation.
 *
 * These functions have a file of their own so that a program which defines them and links the static library replaces
 * both.
 */
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
