/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/memory.c - buffers of memory states, and the lists of them. */
#include "capture/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/grow.h"
#include "base/machine.h"
#include "base/order.h"
#include "capture/state.h"
#include "payload/layout.h"
#include "payload/read.h"

#define MAPPED_BYTES ((uint64_t)128 << 10) /* a buffer from this size on is a mapping of its own */

static uint64_t bound(const struct lmcs_pool *pool)
{
    return pool->options.memory_bytes != 0 ? pool->options.memory_bytes : lmcs_machine_memory() / 4;
}

static void free_buffer(struct lmcs_pool *pool, void *data, uint64_t bytes)
{
    if (data == NULL) /* stolen */
        return;
    if (bytes >= MAPPED_BYTES)
        munmap(data, bytes);
    else
        free(data);
    atomic_fetch_sub(&pool->memory_bytes, bytes);
}

static void *new_buffer(uint64_t bytes)
{
    if (bytes < MAPPED_BYTES)
        return aligned_alloc(64, (bytes + 63) & ~(uint64_t)63);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    madvise(map, bytes, MADV_HUGEPAGE); /* encoding and decoding read all arrays at once: fewer walks of page tables */
    return map;
}

static void free_state(struct lmcs_pool *pool, struct lmcs_memory *memory)
{
    for (size_t i = 0; i < memory->count; i++)
        free_buffer(pool, memory->items[i].data, memory->items[i].bytes);
    for (size_t i = 0; i < memory->spare_count; i++)
        free_buffer(pool, memory->spare[i].data, memory->spare[i].bytes);
    free(memory->items);
    free(memory->spare);
}

/* Takes a memory state out of its shelf. Under pool->captures. */
static struct lmcs_memory take_state(struct lmcs_busy_shelf *busy)
{
    struct lmcs_memory state = {.count = 0};
    if (busy->memory != NULL) {
        state = *busy->memory;
        *busy->memory = (struct lmcs_memory){.count = 0};
    }
    return state;
}

/* Frees the memory state of a shelf that nobody holds. False: there is none. */
static bool free_another(struct lmcs_pool *pool, const struct lmcs_busy_shelf *own)
{
    struct lmcs_memory state = {.count = 0};
    pthread_mutex_lock(&pool->captures);
    for (struct lmcs_busy_shelf *busy = pool->busy; busy != NULL && state.count + state.spare_count == 0;
         busy = busy->next)
        if (busy != own && !busy->busy)
            state = take_state(busy);
    pthread_mutex_unlock(&pool->captures);
    const bool found = state.count + state.spare_count > 0;
    free_state(pool, &state);
    return found;
}

void *lmcs_memory_take(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy, uint64_t bytes)
{
    struct lmcs_memory *memory = busy->memory;
    for (size_t i = 0; memory != NULL && i < memory->spare_count; i++)
        if (memory->spare[i].bytes == bytes) {
            void *data = memory->spare[i].data;
            memory->spare[i] = memory->spare[--memory->spare_count];
            return data;
        }
    const uint64_t most = bound(pool);
    while (atomic_fetch_add(&pool->memory_bytes, bytes) + bytes > most) {
        atomic_fetch_sub(&pool->memory_bytes, bytes);
        if (!free_another(pool, busy))
            return NULL;
    }
    void *data = new_buffer(bytes);
    if (data == NULL)
        atomic_fetch_sub(&pool->memory_bytes, bytes);
    return data;
}

/* The shelf's memory state, made if needed; NULL: no memory. */
static struct lmcs_memory *state_of(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy)
{
    pthread_mutex_lock(&pool->captures);
    if (busy->memory == NULL)
        busy->memory = calloc(1, sizeof *busy->memory);
    pthread_mutex_unlock(&pool->captures);
    return busy->memory;
}

void lmcs_memory_give(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy, void *data, uint64_t bytes)
{
    struct lmcs_memory *memory = state_of(pool, busy);
    if (memory != NULL &&
        lmcs_grow(&memory->spare, &memory->spare_capacity, memory->spare_count, sizeof *memory->spare))
        memory->spare[memory->spare_count++] = (struct lmcs_memory_item){.bytes = bytes, .data = data};
    else
        free_buffer(pool, data, bytes);
}

static int by_content(const void *a, const void *b)
{
    const struct lmcs_memory_item *x = a, *y = b;
    return LMCS_ORDER(x->content, y->content);
}

static struct lmcs_memory_item *find(const struct lmcs_memory *memory, uint64_t content)
{
    const struct lmcs_memory_item key = {.content = content};
    return memory == NULL || memory->count == 0 ? NULL
                                                : bsearch(&key, memory->items, memory->count, sizeof key, by_content);
}

const void *lmcs_memory_find(const struct lmcs_busy_shelf *busy, uint64_t content, uint64_t bytes)
{
    const struct lmcs_memory_item *item = content != 0 ? find(busy->memory, content) : NULL;
    return item != NULL && item->bytes == bytes ? item->data : NULL;
}

void *lmcs_memory_steal(struct lmcs_busy_shelf *busy, uint64_t content)
{
    struct lmcs_memory_item *item = find(busy->memory, content);
    void *data = item->data;
    item->data = NULL;
    return data;
}

void lmcs_memory_set(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy, const struct lmcs_memory_item *items,
                     size_t count)
{
    struct lmcs_memory *memory = state_of(pool, busy);
    struct lmcs_memory now = {.items = malloc((count + 1) * sizeof *now.items)};
    if (memory == NULL || now.items == NULL) {
        free(now.items);
        for (size_t i = 0; i < count; i++)
            if (lmcs_memory_find(busy, items[i].content, items[i].bytes) != items[i].data)
                free_buffer(pool, items[i].data, items[i].bytes);
        lmcs_memory_drop(pool, busy);
        return;
    }
    if (count > 0)
        memcpy(now.items, items, count * sizeof *items);
    qsort(now.items, count, sizeof *now.items, by_content);
    now.count = 0;
    for (size_t i = 0; i < count; i++) {
        const struct lmcs_memory_item *last = now.count > 0 ? &now.items[now.count - 1] : NULL;
        if (last == NULL || last->content != now.items[i].content)
            now.items[now.count++] = now.items[i];
        else if (last->data != now.items[i].data && /* not that of the old state, which is given below */
                 lmcs_memory_find(busy, last->content, last->bytes) != now.items[i].data)
            lmcs_memory_give(pool, busy, now.items[i].data, now.items[i].bytes);
    }
    struct lmcs_memory old = *memory;
    memory->items = now.items;
    memory->count = now.count;
    while (memory->spare_count > 0) { /* this capture did not need them */
        const struct lmcs_memory_item *item = &memory->spare[--memory->spare_count];
        free_buffer(pool, item->data, item->bytes);
    }
    for (size_t i = 0; i < old.count; i++)
        if (lmcs_memory_find(busy, old.items[i].content, old.items[i].bytes) != old.items[i].data)
            lmcs_memory_give(pool, busy, old.items[i].data, old.items[i].bytes);
    free(old.items);
}

void lmcs_memory_drop(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy)
{
    pthread_mutex_lock(&pool->captures);
    struct lmcs_memory state = take_state(busy);
    pthread_mutex_unlock(&pool->captures);
    free_state(pool, &state);
}

void lmcs_memory_free(struct lmcs_pool *pool)
{
    for (struct lmcs_busy_shelf *busy = pool->busy; busy != NULL; busy = busy->next) {
        struct lmcs_memory state = take_state(busy); /* without the lock: no other thread uses the pool */
        free_state(pool, &state);
        free(busy->memory);
        busy->memory = NULL;
    }
}

uint64_t lmcs_memory_bytes(struct lmcs_pool *pool)
{
    return atomic_load(&pool->memory_bytes);
}

/* ---- Of a capture ---- */

/* A link from damaged bytes no longer fits them once they are repaired. */
static enum lmcs_status check_raw(struct lmcs_pool *pool, const struct lmcs_content *content,
                                  const struct lmcs_tensor *tensor, struct lmcs_error *error)
{
    struct lmcs_chain chain = {.length = 1};
    chain.links[0] = *content;
    return lmcs_chain_read(pool, &chain, tensor, NULL, NULL, error);
}

enum lmcs_status lmcs_capture_before(struct lmcs_capture *capture, const struct lmcs_tensor *tensor,
                                     const struct lmcs_content *content, const void **data, bool *pinned,
                                     struct lmcs_error *error)
{
    const uint64_t raw_bytes = content->df.raw_bytes;
    *pinned = false;
    *data = lmcs_memory_find(capture->busy, content->id, raw_bytes);
    if (*data != NULL || content->df.payload != LMCS_PAYLOAD_RAW)
        return LMCS_OK;
    *data = lmcs_payload_at(capture->pool->media, content, 0, raw_bytes);
    if (*data == NULL)
        return LMCS_OK;
    enum lmcs_status status = lmcs_payload_pin(capture->pool->lease, content, error);
    if (status == LMCS_OK) {
        status = check_raw(capture->pool, content, tensor, error);
        *pinned = status == LMCS_OK;
        if (!*pinned)
            lmcs_payload_unpin(capture->pool->lease, content);
    }
    if (status == LMCS_IN_USE || lmcs_is_unusable(status)) { /* another program holds a lock; scrub reports damage */
        *data = NULL;
        return LMCS_OK;
    }
    return status;
}

void lmcs_capture_keep_memory(struct lmcs_capture *capture, bool committed)
{
    struct lmcs_entries *entries = &capture->entries;
    struct lmcs_memory_item *items =
        committed && capture->makes_links ? malloc((entries->count + 1) * sizeof *items) : NULL;
    size_t count = 0;
    for (size_t i = 0; i < entries->count; i++) {
        struct lmcs_captured *entry = entries->items[i];
        const uint64_t content = entry->shared != 0 ? entry->shared : entry->content.id;
        void *data = entry->memory;
        if (data == NULL && items != NULL && entry->shared != 0)
            data = (void *)(uintptr_t)lmcs_memory_find(capture->busy, entry->shared, entry->raw_bytes);
        if (data != NULL && items != NULL)
            items[count++] = (struct lmcs_memory_item){content, entry->raw_bytes, data};
        else if (entry->memory != NULL)
            lmcs_memory_give(capture->pool, capture->busy, entry->memory, entry->raw_bytes);
        entry->memory = NULL;
    }
    if (items != NULL)
        lmcs_memory_set(capture->pool, capture->busy, items, count);
    else if (committed || capture->has_changed_memory)
        lmcs_memory_drop(capture->pool, capture->busy);
    capture->has_changed_memory = false;
    free(items);
}
