/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/map.c - the addresses of live tensors.
 *
 * A tensor has one stretch of addresses, reserved for all that it can grow to in place; what it has is mapped into
 * that, its parts one behind the other, by a descriptor of our own and never by libpmemobj's (whose lock would last as
 * long). A transaction maps other pages at the same addresses: private ones, and afterwards shared ones again. The
 * kernel replaces a mapping in one step, so other threads may read meanwhile.
 *
 * Which pages of a private mapping have been written to, the kernel says: they are anonymous memory now, in
 * /proc/self/pagemap. It can be asked for these alone, or for 8 bytes on each page. Where neither can be read all of
 * the tensor is compared with the pool: slower, and right.
 *
 * A child made by fork could store to the pool through what it inherits. So all mappings are known, and a child makes
 * them read-only before fork returns in it. And it may read there, whatever its parent does with the variables: so what
 * each mapping shows is known, too, and the child leases it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/guard.h"
#include "live/live.h"

#define ENTRIES_AT_ONCE 8192u /* of pagemap */
#define PAGEMAP_FILE    (UINT64_C(1) << 61)
#define PAGEMAP_SWAPPED (UINT64_C(1) << 62)
#define PAGEMAP_PRESENT (UINT64_C(1) << 63)

/* PAGEMAP_SCAN of linux/fs.h, which headers have since 6.7. */
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

static _Alignas(LMCS_PAGE_BYTES) unsigned char nothing[LMCS_PAGE_BYTES]; /* where empty tensors are */

/* ---- What a child must not write to ---- */

static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lmcs_mapping *known;
static pthread_once_t watching = PTHREAD_ONCE_INIT;
static atomic_uint forks; /* that this process descends from, since there are pools in it */

static void before_fork(void)
{
    pthread_mutex_lock(&known_lock);
    lmcs_lease_before_fork();
    for (const struct lmcs_mapping *mapping = known; mapping != NULL; mapping = mapping->next_known)
        for (size_t i = 0; i < mapping->page_count; i++)
            lmcs_lease_bequeath(mapping->lease, mapping->pages[i].place, mapping->pages[i].bytes);
    lmcs_lease_hand_over();
}

static void after_fork(void)
{
    lmcs_lease_after_fork();
    pthread_mutex_unlock(&known_lock);
}

/* What could not be leased might become another variable's: better no bytes than those. */
static void in_child(void)
{
    atomic_fetch_add(&forks, 1);
    for (const struct lmcs_mapping *mapping = known; mapping != NULL; mapping = mapping->next_known)
        mprotect(mapping->at, mapping->bytes, lmcs_lease_is_lost(mapping->lease) ? PROT_NONE : PROT_READ);
    lmcs_lease_in_child();
    pthread_mutex_unlock(&known_lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

unsigned lmcs_live_forks(void)
{
    pthread_once(&watching, watch_forks);
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

static void enter_known(struct lmcs_mapping *mapping)
{
    pthread_mutex_lock(&known_lock);
    mapping->next_known = known;
    mapping->at_known = &known;
    if (known != NULL)
        known->at_known = &mapping->next_known;
    known = mapping;
    pthread_mutex_unlock(&known_lock);
}

/* In one step for a fork, whose child would have what is not known any more and still there. */
static void unmap(struct lmcs_mapping *mapping)
{
    pthread_mutex_lock(&known_lock);
    munmap(mapping->at, mapping->bytes);
    *mapping->at_known = mapping->next_known;
    if (mapping->next_known != NULL)
        mapping->next_known->at_known = mapping->at_known;
    pthread_mutex_unlock(&known_lock);
    free(mapping->pages);
    free(mapping);
}

/* Before pages of a pool are mapped: a fork that comes in between may find either. */
static bool enter_pages(struct lmcs_mapping *mapping, struct lmcs_mapped pages)
{
    size_t i = 0;
    pthread_mutex_lock(&known_lock);
    for (; i < mapping->page_count; i++) {
        struct lmcs_mapped *known_pages = &mapping->pages[i];
        uint64_t inner = pages.at - known_pages->at;
        if (pages.at < known_pages->at || inner > known_pages->bytes || pages.place != known_pages->place + inner)
            continue;
        if (known_pages->bytes < inner + pages.bytes) /* it grows */
            known_pages->bytes = inner + pages.bytes;
        break;
    }
    bool entered = i < mapping->page_count ||
                   lmcs_grow(&mapping->pages, &mapping->page_capacity, mapping->page_count, sizeof *mapping->pages);
    if (entered && i == mapping->page_count)
        mapping->pages[mapping->page_count++] = pages;
    pthread_mutex_unlock(&known_lock);
    return entered;
}

/* After something else was mapped from `from` to `end`: `now`, which is entered, or nothing of the pool. */
static void leave_pages(struct lmcs_mapping *mapping, uint64_t from, uint64_t end, const struct lmcs_mapped *now)
{
    pthread_mutex_lock(&known_lock);
    for (size_t i = mapping->page_count; i-- > 0;) {
        struct lmcs_mapped pages = mapping->pages[i];
        uint64_t last = pages.at + pages.bytes;
        if (last <= from || end <= pages.at || (now != NULL && pages.place - pages.at == now->place - now->at))
            continue;
        if (from <= pages.at && last <= end) {
            mapping->pages[i] = mapping->pages[--mapping->page_count];
        } else if (from <= pages.at) {
            mapping->pages[i] = (struct lmcs_mapped){end, last - end, pages.place + (end - pages.at)};
        } else if (last <= end) {
            mapping->pages[i].bytes = from - pages.at;
        } else if (lmcs_grow(&mapping->pages, &mapping->page_capacity, mapping->page_count, sizeof pages)) {
            mapping->pages[i].bytes = from - pages.at;
            mapping->pages[mapping->page_count++] =
                (struct lmcs_mapped){end, last - end, pages.place + (end - pages.at)};
        } /* else a child leases more than it sees */
    }
    pthread_mutex_unlock(&known_lock);
}

/* ---- Mapping ---- */

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

static enum lmcs_status map_pages(struct lmcs_live_body *body, const struct lmcs_live_record *record,
                                  struct lmcs_mapping *mapping, uint64_t from, uint64_t end, bool private_pages,
                                  struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint64_t n; status == LMCS_OK && from < end; from += n) {
        n = end - from;
        uint64_t place = lmcs_live_place(record, from, &n);
        char *at = mapping->at + from;
        struct lmcs_mapped now = {from, n, place};
        if (!enter_pages(mapping, now))
            return lmcs_fail_memory(error);
        status = body->pool->heap == NULL ? lmcs_media_map_shared(body->pool->media, place, n, at, error)
                                          : lmcs_heap_map(body->pool->heap, place, n, at, private_pages, error);
        if (status == LMCS_OK)
            leave_pages(mapping, from, from + n, &now);
    }
    return status;
}

/* Addresses for all that it can grow to. */
static enum lmcs_status reserve(struct lmcs_live_body *body, const struct lmcs_live_record *record,
                                struct lmcs_error *error)
{
    struct lmcs_mapping *mapping = calloc(1, sizeof *mapping);
    if (mapping == NULL)
        return lmcs_fail_memory(error);
    mapping->bytes = lmcs_live_capacity(record);
    void *at = mmap(NULL, mapping->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        free(mapping);
        return lmcs_fail_errno(error, errno, "%s: can't map live tensor \"%.200s\"", body->pool->path, record->name);
    }
    mapping->at = at;
    mapping->lease = body->pool->lease;
    body->moving = mapping;
    enter_known(mapping);
    return LMCS_OK;
}

static enum lmcs_status map_on_device(struct lmcs_live_body *body, const struct lmcs_live_record *record,
                                      struct lmcs_error *error)
{
    if (record->df.part_count > 1)
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                         "%s: live tensor \"%.200s\" lies in pieces, which a device can't map", body->pool->path,
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
        unmap(body->moving);
    else
        lmcs_live_unmap_tail(body, mapped_bytes, bytes);
    body->moving = NULL;
}

/* Whoever still looks there sees zeros: an array that was made before an abort must not end the process. */
void lmcs_live_unmap_tail(struct lmcs_live_body *body, uint64_t bytes, uint64_t mapped_bytes)
{
    uint64_t from = lmcs_page_up(bytes), end = lmcs_page_up(mapped_bytes);
    if (is_device(body))
        return;
    for (struct lmcs_mapping *mapping = body->mappings; mapping != NULL; mapping = mapping->next) {
        uint64_t last = end < mapping->bytes ? end : mapping->bytes;
        if (from < last && mmap(mapping->at + from, last - from, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED)
            leave_pages(mapping, from, last, NULL);
    }
}

/* Private ones are at the newest addresses only; those that a tensor had before it grew are always shared. */
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
        (void)madvise(m->at, end < m->bytes ? end : m->bytes, MADV_DONTNEED); /* takes no mapping more */
    lmcs_live_break(body->pool, &why);
    return false;
}

void lmcs_live_unmap_all(struct lmcs_live_body *body)
{
    for (struct lmcs_mapping *mapping; (mapping = body->mappings) != NULL;) {
        body->mappings = mapping->next;
        unmap(mapping);
    }
    body->data = NULL;
}

void *lmcs_live_data(const struct lmcs_live *live)
{
    char *data = live->body->data;
    if (!live->is_tensor)
        return NULL;
    return data != NULL ? data : (void *)nothing;
}

/* ---- Which pages are private ---- */

struct page_scan {
    struct lmcs_live_body *body;
    enum lmcs_status (*visit)(void *context, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
    void *context;
    uint64_t from; /* of the stretch under way */
    uint64_t end;
    uint64_t met; /* pages */
    bool has_equal;
};

/* The private copy of a page, or a page of zeros where the kernel has mapped one, may have what the pool has. */
static bool is_changed(struct page_scan *scan, uint64_t offset)
{
    uint64_t bytes = LMCS_PAGE_BYTES;
    unsigned char copy[LMCS_PAGE_BYTES];
    struct lmcs_heap *heap = scan->body->pool->heap;
    uint64_t place = lmcs_live_place(scan->body->record, offset, &bytes);
    if (!lmcs_guard_copy(copy, lmcs_heap_at(heap, place), bytes) || memcmp(copy, scan->body->data + offset, bytes) != 0)
        return true;
    lmcs_heap_flush(heap, place, bytes);
    scan->has_equal = true;
    return false;
}

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

/* Entries of pagemap for pages from `at` on; false: it can't be read, or pages are of another size. */
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

/* By reading an entry for each page. */
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

/* By asking for those that may be private, which Linux can since 6.7. *asked: it could be. */
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
        status = lmcs_fail(error, LMCS_IO, 0, "the kernel does not say which pages of \"%.200s\" have been written to",
                           body->record->name);
    if (status == LMCS_OK)
        status = end_stretch(&scan, error);
    *has_equal |= scan.has_equal;
    if (fd >= 0)
        close(fd);
    return status;
}
