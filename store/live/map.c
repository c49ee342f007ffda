/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/map.c - addresses of live tensors.
 *
 * Parts are mapped through our own descriptor: libpmemobj's would keep its lock as long as the mapping. The kernel
 * replaces mappings in one step, so other threads may read.
 */
#include "live/map.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

static _Alignas(LMCS_PAGE_BYTES) unsigned char nothing[LMCS_PAGE_BYTES];

static bool is_device(const struct lmcs_live_body *body)
{
    return lmcs_media_is_device(body->pool->media);
}

uint64_t lmcs_live_place(const struct lmcs_live_record *record, uint64_t offset, uint64_t *bytes)
{
    size_t i = 0;
    while (i + 1u < record->df.part_count && offset >= record->parts[i].bytes)
        offset -= record->parts[i++].bytes;
    if (*bytes > record->parts[i].bytes - offset)
        *bytes = record->parts[i].bytes - offset;
    return record->parts[i].offset + offset;
}

/* The system may refuse: it is only advice. */
static void advise(const struct lmcs_live_body *body, char *at, uint64_t bytes)
{
    static const int advice[] = {
        [LMCS_ACCESS_NORMAL] = MADV_NORMAL,
        [LMCS_ACCESS_RANDOM] = MADV_RANDOM,
        [LMCS_ACCESS_SEQUENTIAL] = MADV_SEQUENTIAL,
    };
    (void)madvise(at, bytes, advice[body->access]);
}

static enum lmcs_status map_pages(struct lmcs_live_body *body, const struct lmcs_live_record *record,
                                  struct lmcs_mapping *mapping, uint64_t from, uint64_t end, bool private_pages,
                                  struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint64_t n; from < end; from += n) {
        n = end - from;
        uint64_t place = lmcs_live_place(record, from, &n);
        char *at = mapping->at + from;
        struct lmcs_mapped now = {from, n, place};
        if (!lmcs_mapping_add_pages(mapping, now))
            return lmcs_fail_memory(error);
        status = body->pool->heap == NULL ? lmcs_media_map_shared(body->pool->media, place, n, at, error)
                                          : lmcs_heap_map(body->pool->heap, place, n, at, private_pages, error);
        if (status != LMCS_OK)
            break;
        lmcs_mapping_drop_pages(mapping, from, from + n, &now);
        if (body->access != LMCS_ACCESS_NORMAL) /* new pages have none */
            advise(body, at, n);
    }
    return status;
}

static enum lmcs_status reserve(struct lmcs_live_body *body, const struct lmcs_live_record *record,
                                struct lmcs_error *error)
{
    struct lmcs_mapping *mapping = calloc(1, sizeof *mapping);
    if (mapping == NULL)
        return lmcs_fail_memory(error);
    mapping->bytes = lmcs_live_capacity(record);
    void *at = mmap(NULL, mapping->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        enum lmcs_status status = lmcs_fail_map(error, mapping->bytes, "%s: can't map live tensor \"%.200s\"",
                                                body->pool->path, record->name);
        free(mapping);
        return status;
    }
    mapping->at = at;
    mapping->lease = body->pool->lease;
    body->moving = mapping;
    lmcs_mapping_enter(mapping);
    return LMCS_OK;
}

static enum lmcs_status map_on_device(struct lmcs_live_body *body, const struct lmcs_live_record *record,
                                      struct lmcs_error *error)
{
    if (record->df.part_count > 1)
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                         "%s: live tensor \"%.200s\" has several parts, which a device can't map", body->pool->path,
                         record->name);
    body->data = body->pool->heap != NULL
                     ? lmcs_heap_at(body->pool->heap, record->parts[0].offset)
                     : (char *)(uintptr_t)lmcs_media_at(body->pool->media, record->parts[0].offset, record->df.bytes);
    return LMCS_OK;
}

enum lmcs_status lmcs_live_map(struct lmcs_live_body *body, const struct lmcs_live_record *record,
                               uint64_t mapped_bytes, struct lmcs_error *error)
{
    uint64_t from = lmcs_page_up(mapped_bytes), end = lmcs_page_up(record->df.bytes);
    struct lmcs_mapping *mapping = body->mappings;
    if (record->df.form != LMCS_LIVE_TENSOR || end == 0)
        return LMCS_OK;
    if (is_device(body))
        return map_on_device(body, record, error);
    if (mapping == NULL || mapping->bytes < end) {
        enum lmcs_status status = reserve(body, record, error);
        if (status != LMCS_OK)
            return status;
        mapping = body->moving;
        from = 0;
    }
    enum lmcs_status status = map_pages(body, record, mapping, from, end, false, error);
    if (status != LMCS_OK)
        lmcs_live_unmap_growth(body, mapped_bytes, record->df.bytes);
    return status;
}

void lmcs_live_move(struct lmcs_live_body *body)
{
    struct lmcs_mapping *mapping = body->moving;
    if (mapping == NULL)
        return;
    mapping->next = body->mappings;
    body->mappings = mapping;
    body->data = mapping->at;
    body->moving = NULL;
}

void lmcs_live_unmap_growth(struct lmcs_live_body *body, uint64_t mapped_bytes, uint64_t bytes)
{
    if (body->moving != NULL)
        lmcs_mapping_unmap(body->moving);
    else
        lmcs_live_unmap_tail(body, mapped_bytes, bytes);
    body->moving = NULL;
}

/* Maps zeros: an array from before an abort must not crash the process. */
void lmcs_live_unmap_tail(struct lmcs_live_body *body, uint64_t bytes, uint64_t mapped_bytes)
{
    uint64_t from = lmcs_page_up(bytes), end = lmcs_page_up(mapped_bytes);
    if (is_device(body))
        return;
    for (struct lmcs_mapping *mapping = body->mappings; mapping != NULL; mapping = mapping->next) {
        uint64_t last = end < mapping->bytes ? end : mapping->bytes;
        if (from < last && mmap(mapping->at + from, last - from, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED)
            lmcs_mapping_drop_pages(mapping, from, last, NULL);
    }
}

/* Only the newest addresses get private pages. */
enum lmcs_status lmcs_live_remap(struct lmcs_live_body *body, const struct lmcs_live_record *record, bool private_pages,
                                 struct lmcs_error *error)
{
    uint64_t end = lmcs_page_up(record->df.bytes);
    enum lmcs_status status = LMCS_OK;
    if (record->df.form != LMCS_LIVE_TENSOR)
        return LMCS_OK;
    for (struct lmcs_mapping *m = body->mappings; status == LMCS_OK && m != NULL; m = private_pages ? NULL : m->next)
        status = map_pages(body, record, m, 0, end < m->bytes ? end : m->bytes, private_pages, error);
    return status;
}

bool lmcs_live_share(struct lmcs_live_body *body, const struct lmcs_live_record *record)
{
    struct lmcs_error why;
    if (lmcs_live_remap(body, record, false, &why) == LMCS_OK)
        return true;
    uint64_t end = lmcs_page_up(record->df.bytes);
    for (struct lmcs_mapping *m = body->mappings; m != NULL; m = m->next)
        (void)madvise(m->at, end < m->bytes ? end : m->bytes, MADV_DONTNEED);
    lmcs_live_break(body->pool, &why);
    return false;
}

void lmcs_live_unmap_all(struct lmcs_live_body *body)
{
    for (struct lmcs_mapping *mapping; (mapping = body->mappings) != NULL;) {
        body->mappings = mapping->next;
        lmcs_mapping_unmap(mapping);
    }
    body->data = NULL;
}

enum lmcs_status lmcs_live_persist_range(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes,
                                         struct lmcs_error *error)
{
    return bytes == 0 || body->record->df.form != LMCS_LIVE_TENSOR
               ? LMCS_OK
               : lmcs_heap_persist(body->pool->heap, body->data + offset, bytes, error);
}

void *lmcs_live_data(const struct lmcs_live *live)
{
    char *data = live->body->data;
    if (!live->is_tensor)
        return NULL;
    return data != NULL ? data : (void *)nothing;
}

enum lmcs_status lmcs_live_advise(struct lmcs_live *live, enum lmcs_live_access access, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_check(live->pool, false, error);
    if (status != LMCS_OK)
        return status;
    if (!live->is_tensor)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: a live value has no addresses to advise on", live->pool->path);
    if (access != LMCS_ACCESS_NORMAL && access != LMCS_ACCESS_RANDOM && access != LMCS_ACCESS_SEQUENTIAL)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%s: %d is no access to a live tensor: it is 0 (normal), 1 (random) or 2 (sequential)",
                         live->pool->path, (int)access);
    pthread_mutex_lock(&live->pool->live->lock);
    struct lmcs_live_body *body = live->body;
    body->access = access;
    for (struct lmcs_mapping *mapping = body->mappings; mapping != NULL; mapping = mapping->next)
        advise(body, mapping->at, mapping->bytes);
    pthread_mutex_unlock(&live->pool->live->lock);
    return LMCS_OK;
}
