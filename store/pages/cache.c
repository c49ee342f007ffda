/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/cache.c - pages read, checked and cached by offset and checksum. */
#include "pages/cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pages/pool.h"

#ifndef LMCS_CACHE_SLOTS /* fewer for fuzz targets, which open many pools a second */
#define LMCS_CACHE_SLOTS 4096u
#endif
#define CACHE_LOCKS 64u

struct cache_slot {
    uint64_t offset;
    uint64_t check;
    unsigned char page[LMCS_PAGE_BYTES];
};

struct lmcs_page_cache {
    pthread_mutex_t locks[CACHE_LOCKS];
    struct cache_slot *slots;
};

/* A mapping of its own, of which only used slots take memory: malloc may clear all of it, or keep it from others. */
static struct cache_slot *new_slots(void)
{
    const size_t bytes = LMCS_CACHE_SLOTS * sizeof(struct cache_slot);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    madvise(map, bytes, MADV_NOHUGEPAGE);
    return map;
}

enum lmcs_status lmcs_page_cache_new(struct lmcs_page_cache **cache, struct lmcs_error *error)
{
    struct lmcs_page_cache *c = calloc(1, sizeof *c);
    if (c == NULL || (c->slots = new_slots()) == NULL) {
        free(c);
        return lmcs_fail_memory(error);
    }
    for (size_t i = 0; i < CACHE_LOCKS; i++)
        pthread_mutex_init(&c->locks[i], NULL);
    *cache = c;
    return LMCS_OK;
}

void lmcs_page_cache_free(struct lmcs_page_cache *cache)
{
    if (cache == NULL)
        return;
    for (size_t i = 0; i < CACHE_LOCKS; i++)
        pthread_mutex_destroy(&cache->locks[i]);
    munmap(cache->slots, LMCS_CACHE_SLOTS * sizeof *cache->slots);
    free(cache);
}

static size_t cache_index(uint64_t offset)
{
    return (size_t)(offset / LMCS_PAGE_BYTES * 0x9e3779b97f4a7c15u >> 52);
}

static void copy_page(void *context, const struct lmcs_node_df *node)
{
    memcpy(context, node, LMCS_PAGE_BYTES);
}

bool lmcs_cache_show(struct lmcs_page_cache *cache, const struct lmcs_ref_df *ref, lmcs_page_look *look, void *context)
{
    size_t i = cache_index(ref->offset) % LMCS_CACHE_SLOTS;
    struct cache_slot *slot = &cache->slots[i];
    pthread_mutex_lock(&cache->locks[i % CACHE_LOCKS]);
    bool found = slot->offset == ref->offset && slot->check == ref->check;
    if (found)
        look(context, (const struct lmcs_node_df *)slot->page);
    pthread_mutex_unlock(&cache->locks[i % CACHE_LOCKS]);
    return found;
}

void lmcs_cache_put(struct lmcs_page_cache *cache, const struct lmcs_ref_df *ref, const void *page)
{
    size_t i = cache_index(ref->offset) % LMCS_CACHE_SLOTS;
    struct cache_slot *slot = &cache->slots[i];
    pthread_mutex_lock(&cache->locks[i % CACHE_LOCKS]);
    slot->offset = ref->offset;
    slot->check = ref->check;
    memcpy(slot->page, page, LMCS_PAGE_BYTES);
    pthread_mutex_unlock(&cache->locks[i % CACHE_LOCKS]);
}

uint64_t lmcs_page_check(const void *page, uint64_t offset)
{
    unsigned char copy[LMCS_PAGE_BYTES];
    memcpy(copy, page, sizeof copy);
    memset(copy + offsetof(struct lmcs_node_df, check), 0, 8);
    return lmc_hash64(copy, sizeof copy, offset);
}

bool lmcs_page_is_whole(const void *page, const struct lmcs_ref_df *ref)
{
    const struct lmcs_node_df *node = page;
    return node->check == ref->check && lmcs_page_check(page, ref->offset) == ref->check;
}

/* Marks an entry's bytes. False: another entry uses some of them. */
static bool take_bytes(uint64_t taken[LMCS_PAGE_BYTES / 64], size_t from, size_t bytes)
{
    for (size_t end = from + bytes, next; from < end; from = next) {
        next = (from | 63) + 1 < end ? (from | 63) + 1 : end;
        uint64_t mask = (next - from == 64 ? UINT64_MAX : ((uint64_t)1 << (next - from)) - 1) << from % 64;
        if ((taken[from / 64] & mask) != 0)
            return false;
        taken[from / 64] |= mask;
    }
    return true;
}

/*
 * A forged page may have a right checksum. tree.c relies on the sums: entries, with the removed ones, fill all bytes
 * from `low` on without overlap.
 */
static bool node_is_sound(const struct lmcs_node_df *node, uint8_t kind, uint64_t offset)
{
    if (node->magic != LMCS_NODE_MAGIC || node->kind != kind || node->self != offset || node->level > LMCS_MAX_LEVEL ||
        node->count == 0 || node->low > LMCS_PAGE_BYTES ||
        sizeof *node + (size_t)node->count * sizeof(struct lmcs_slot_df) > node->low)
        return false;
    uint64_t taken[LMCS_PAGE_BYTES / 64] = {0};
    size_t sum = node->garbage;
    for (size_t i = 0; i < node->count; i++) {
        struct lmcs_slot_df slot = node->slots[i];
        size_t bytes = sizeof(struct lmcs_key_df) + slot.value_bytes;
        if (slot.offset < node->low || slot.offset + bytes > LMCS_PAGE_BYTES || slot.value_bytes > LMCS_MAX_VALUE ||
            (node->level > 0 && slot.value_bytes != sizeof(struct lmcs_ref_df)) ||
            !take_bytes(taken, slot.offset, bytes))
            return false;
        sum += bytes;
    }
    return sum == (size_t)LMCS_PAGE_BYTES - node->low;
}

enum lmcs_status lmcs_page_fail(const struct lmcs_pool *pool, const struct lmcs_ref_df *ref, const char *why,
                                struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: the metadata page at offset %llu is damaged (%s)", pool->path,
                     (unsigned long long)ref->offset, why);
}

bool lmcs_page_from_replica(const struct lmcs_pool *pool, const struct lmcs_ref_df *ref, void *buffer)
{
    struct lmcs_error ignored;
    for (size_t i = 0; i < lmcs_media_replicas(pool->media); i++)
        if (lmcs_media_read(lmcs_media_replica(pool->media, i), ref->offset, buffer, LMCS_PAGE_BYTES, &ignored) ==
                LMCS_OK &&
            lmcs_page_is_whole(buffer, ref))
            return true;
    return false;
}

enum lmcs_status lmcs_page_load(struct lmcs_pool *pool, const struct lmcs_ref_df *ref, uint8_t kind, void *buffer,
                                struct lmcs_error *error)
{
    if (ref->offset % LMCS_PAGE_BYTES != 0 || ref->offset == 0)
        return lmcs_page_fail(pool, ref, "its offset is impossible", error);
    if (!lmcs_cache_show(pool->cache, ref, copy_page, buffer)) {
        enum lmcs_status status = lmcs_media_read(pool->media, ref->offset, buffer, LMCS_PAGE_BYTES, error);
        bool whole = status == LMCS_OK && lmcs_page_is_whole(buffer, ref);
        if (!whole && !lmcs_page_from_replica(pool, ref, buffer))
            return status != LMCS_OK ? status : lmcs_page_fail(pool, ref, "its checksum is wrong", error);
        if (!node_is_sound(buffer, kind, ref->offset))
            return lmcs_page_fail(pool, ref, "its content does not match the reference to it", error);
        lmcs_cache_put(pool->cache, ref, buffer);
    } else if (((const struct lmcs_node_df *)buffer)->kind != kind) {
        return lmcs_page_fail(pool, ref, "it belongs to another tree", error);
    }
    return LMCS_OK;
}
