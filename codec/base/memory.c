/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * memory.c - the library's only way to memory, so that tests can make any allocation fail.
 *
 * These two are alone in their file: a program that defines them and links the static library gets its own.
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
