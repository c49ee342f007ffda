/* SPDX-License-Identifier: BSD-3-Clause */
/* base/map.c - a hash table. */
#include "base/map.h"

#include <stdlib.h>

#define LEAST_CAPACITY 64u

/* The key's slot, or the empty one where it belongs. */
static struct lmcs_map_slot *find(const struct lmcs_map *map, uint64_t key)
{
    uint64_t hash = (key ^ map->seed) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93u;
    size_t i = (size_t)(hash >> 32) & (map->capacity - 1);
    while (map->slots[i].value != 0 && map->slots[i].key != key)
        i = (i + 1) & (map->capacity - 1);
    return &map->slots[i];
}

static bool widen(struct lmcs_map *map)
{
    struct lmcs_map wider = *map;
    wider.capacity = map->capacity == 0 ? LEAST_CAPACITY : map->capacity * 2;
    wider.slots = calloc(wider.capacity, sizeof *wider.slots);
    if (wider.slots == NULL)
        return false;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].value != 0)
            *find(&wider, map->slots[i].key) = map->slots[i];
    free(map->slots);
    *map = wider;
    return true;
}

uint64_t lmcs_map_get(const struct lmcs_map *map, uint64_t key)
{
    return map->count == 0 ? 0 : find(map, key)->value;
}

bool lmcs_map_put(struct lmcs_map *map, uint64_t key, uint64_t value)
{
    if ((map->count + 1) * 2 > map->capacity && !widen(map))
        return false;
    struct lmcs_map_slot *slot = find(map, key);
    map->count += slot->value == 0;
    *slot = (struct lmcs_map_slot){key, value};
    return true;
}

void lmcs_map_free(struct lmcs_map *map)
{
    free(map->slots);
    *map = (struct lmcs_map){.seed = map->seed};
}
