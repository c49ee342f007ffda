/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/map.h - a hash table from numbers to numbers.
 *
 * Values are 1 or more (an index plus one, or 1 for a set): 0 marks an empty slot, and zeroed memory is an empty map.
 * Maps keyed by names use a hash and step to the next key while the entry found has another name.
 */
#ifndef LMCS_BASE_MAP_H
#define LMCS_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lmcs_map_slot {
    uint64_t key;
    uint64_t value; /* 0: empty */
};

struct lmcs_map {
    struct lmcs_map_slot *slots;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
    uint64_t seed; /* set before the first key, if keys are untrusted */
};

/* The key's value, or 0. */
uint64_t lmcs_map_get(const struct lmcs_map *map, uint64_t key);
/* False: out of memory; unchanged. */
bool lmcs_map_put(struct lmcs_map *map, uint64_t key, uint64_t value);
/* Empties the map. */
void lmcs_map_free(struct lmcs_map *map);

#endif
