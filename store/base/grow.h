/* SPDX-License-Identifier: BSD-3-Clause */
/* base/grow.h - arrays that grow at their end. */
#ifndef LMCS_BASE_GROW_H
#define LMCS_BASE_GROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * Makes room for an item in an array of `count` items of `item` bytes. `array`: address of the pointer to the items,
 * which are to be freed. False: out of memory; unchanged.
 */
static inline bool lmcs_grow(void *array, size_t *capacity, size_t count, size_t item)
{
    void *items;
    if (count < *capacity)
        return true;
    if (*capacity > SIZE_MAX / 2 / item)
        return false;
    size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    memcpy(&items, array, sizeof items); /* the pointer may have any type */
    items = realloc(items, wanted * item);
    if (items == NULL)
        return false;
    memcpy(array, &items, sizeof items);
    *capacity = wanted;
    return true;
}

/*
 * Like calloc, for types whose alignment exceeds that of calloc, such as those that hold a struct lmc_hasher. The
 * caller frees it. NULL: out of memory.
 */
static inline void *lmcs_calloc_aligned(size_t align, size_t count, size_t item)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, item, &bytes) || bytes > SIZE_MAX - align)
        return NULL;
    bytes = (bytes + align - 1) / align * align;
    void *memory = aligned_alloc(align, bytes);
    return memory == NULL ? NULL : memset(memory, 0, bytes);
}

/* Appends a copy of `text` to a short array. False: out of memory; unchanged. */
static inline bool lmcs_add_text(char ***texts, size_t *count, const char *text)
{
    char **grown = realloc(*texts, (*count + 1) * sizeof *grown);
    if (grown == NULL)
        return false;
    *texts = grown;
    grown[*count] = strdup(text);
    if (grown[*count] == NULL)
        return false;
    (*count)++;
    return true;
}

#endif
