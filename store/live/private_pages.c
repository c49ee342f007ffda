/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/private_pages.c - which pages of a private mapping have been written to.
 *
 * /proc/self/pagemap reports anonymous memory: Linux 6.7 and newer list such pages, older ones 8 bytes for each page.
 * Otherwise the whole tensor is compared.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/guard.h"
#include "live/map.h"

#define ENTRIES_AT_ONCE 8192u
#define PAGEMAP_FILE    (UINT64_C(1) << 61)
#define PAGEMAP_SWAPPED (UINT64_C(1) << 62)
#define PAGEMAP_PRESENT (UINT64_C(1) << 63)

/* linux/fs.h has these since 6.7. */
#define REGIONS_AT_ONCE       64u
#define PAGE_CATEGORY_FILE    (UINT64_C(1) << 2)
#define PAGE_CATEGORY_PRESENT (UINT64_C(1) << 3)
#define PAGE_CATEGORY_SWAPPED (UINT64_C(1) << 4)

struct page_query {
    uint64_t size;
    uint64_t flags;
    uint64_t start;
    uint64_t end;
    uint64_t walked_to;
    uint64_t regions;
    uint64_t region_count;
    uint64_t most_pages;
    uint64_t inverted;
    uint64_t all_of;
    uint64_t any_of;
    uint64_t wanted;
};
struct page_region {
    uint64_t start;
    uint64_t end;
    uint64_t categories;
};
#define PAGE_QUERY _IOWR('f', 16, struct page_query)

struct page_scan {
    struct lmcs_live_body *body;
    enum lmcs_status (*visit)(void *context, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
    void *context;
    uint64_t from;
    uint64_t end;
    uint64_t met;
    bool has_equal;
};

/*
 * A private copy, or the kernel's page of zeros, may equal the pool's page. That one may be in the page cache only, and
 * count as clean after a failed sync of a dead process (REPAIR.md): so it is written again.
 */
static bool is_changed(struct page_scan *scan, uint64_t offset)
{
    uint64_t bytes = LMCS_PAGE_BYTES;
    unsigned char copy[LMCS_PAGE_BYTES];
    struct lmcs_heap *heap = scan->body->pool->heap;
    uint64_t place = lmcs_live_place(scan->body->record, offset, &bytes);
    if (!lmcs_guard_copy(copy, lmcs_heap_at(heap, place), bytes) || memcmp(copy, scan->body->data + offset, bytes) != 0)
        return true;
    if (lmcs_heap_method(heap) != LMCS_WRITE_FILE)
        lmcs_heap_flush(heap, place, bytes);
    else if (lmcs_heap_write(heap, place, copy, bytes, NULL) != LMCS_OK)
        return true;
    scan->has_equal = true;
    return false;
}

/* Visits the run of written pages collected so far. */
static enum lmcs_status end_stretch(struct page_scan *scan, struct lmcs_error *error)
{
    uint64_t from = scan->from, end = scan->end;
    scan->from = scan->end = 0;
    return end > from ? scan->visit(scan->context, from, end - from, error) : LMCS_OK;
}

static enum lmcs_status add_page(struct page_scan *scan, uint64_t offset, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    scan->met++;
    if (!is_changed(scan, offset))
        return LMCS_OK;
    if (scan->end != offset || scan->end == 0) {
        status = end_stretch(scan, error);
        scan->from = offset;
    }
    scan->end = offset + LMCS_PAGE_BYTES;
    return status;
}

/* False: the file can't be read, or pages have another size. */
static bool read_pagemap(int fd, const char *at, uint64_t *entries, size_t count)
{
    off_t offset = (off_t)((uintptr_t)at / LMCS_PAGE_BYTES * sizeof *entries);
    return fd >= 0 && sysconf(_SC_PAGESIZE) == LMCS_PAGE_BYTES &&
           pread(fd, entries, count * sizeof *entries, offset) == (ssize_t)(count * sizeof *entries);
}

static bool may_be_private(uint64_t entry)
{
    return (entry & PAGEMAP_SWAPPED) != 0 || ((entry & PAGEMAP_PRESENT) != 0 && (entry & PAGEMAP_FILE) == 0);
}

static enum lmcs_status scan_entries(struct page_scan *scan, int fd, uint64_t end, struct lmcs_error *error)
{
    uint64_t *entries = malloc(ENTRIES_AT_ONCE * sizeof *entries);
    enum lmcs_status status = entries == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (uint64_t at = 0; status == LMCS_OK && at < end;) {
        uint64_t left = (end - at) / LMCS_PAGE_BYTES;
        size_t count = left < ENTRIES_AT_ONCE ? (size_t)left : ENTRIES_AT_ONCE;
        bool known_pages = read_pagemap(fd, scan->body->data + at, entries, count);
        for (size_t i = 0; status == LMCS_OK && i < count; i++, at += LMCS_PAGE_BYTES)
            if (!known_pages || may_be_private(entries[i]))
                status = add_page(scan, at, error);
    }
    free(entries);
    return status;
}

/* *asked: the query worked. */
static enum lmcs_status scan_regions(struct page_scan *scan, int fd, uint64_t end, bool *asked,
                                     struct lmcs_error *error)
{
    struct page_region regions[REGIONS_AT_ONCE];
    uintptr_t base = (uintptr_t)scan->body->data;
    enum lmcs_status status = LMCS_OK;
    *asked = sysconf(_SC_PAGESIZE) == LMCS_PAGE_BYTES;
    for (uint64_t from = base; *asked && status == LMCS_OK && from < base + end;) {
        struct page_query query = {.size = sizeof query,
                                   .start = from,
                                   .end = base + end,
                                   .regions = (uintptr_t)regions,
                                   .region_count = REGIONS_AT_ONCE,
                                   .inverted = PAGE_CATEGORY_FILE,
                                   .all_of = PAGE_CATEGORY_FILE,
                                   .any_of = PAGE_CATEGORY_PRESENT | PAGE_CATEGORY_SWAPPED,
                                   .wanted = PAGE_CATEGORY_PRESENT};
        int count = ioctl(fd, PAGE_QUERY, &query);
        *asked = count >= 0 && query.walked_to > from;
        for (int i = 0; *asked && i < count; i++)
            for (uint64_t at = regions[i].start; status == LMCS_OK && at < regions[i].end; at += LMCS_PAGE_BYTES)
                status = add_page(scan, at - base, error);
        from = query.walked_to;
    }
    return status;
}

enum lmcs_status lmcs_live_private_pages(struct lmcs_live_body *body,
                                         enum lmcs_status (*visit)(void *context, uint64_t offset, uint64_t bytes,
                                                                   struct lmcs_error *error),
                                         void *context, bool *has_equal, struct lmcs_error *error)
{
    struct page_scan scan = {.body = body, .visit = visit, .context = context};
    uint64_t end = lmcs_page_up(body->record->df.bytes);
    bool asked = end == 0;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    enum lmcs_status status = fd >= 0 ? scan_regions(&scan, fd, end, &asked, error) : LMCS_OK;
    if (status == LMCS_OK && !asked && scan.met == 0)
        status = scan_entries(&scan, fd, end, error);
    else if (status == LMCS_OK && !asked)
        status =
            lmcs_fail(error, LMCS_IO, 0, "the kernel stopped reporting which pages of \"%.200s\" have been written to",
                      body->record->name);
    if (status == LMCS_OK)
        status = end_stretch(&scan, error);
    *has_equal |= scan.has_equal;
    if (fd >= 0)
        close(fd);
    return status;
}
