/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/fork.c - mappings of live tensors across a fork.
 *
 * A child makes all listed mappings read-only before fork returns, and leases their pages: the parent may erase
 * variables.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/grow.h"
#include "live/map.h"

static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lmcs_mapping *known;
static pthread_once_t watching = PTHREAD_ONCE_INIT;
static atomic_uint forks;

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

/* Pages without a lease may be reused: the child must not read them. */
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

void lmcs_mapping_enter(struct lmcs_mapping *mapping)
{
    pthread_mutex_lock(&known_lock);
    mapping->next_known = known;
    mapping->at_known = &known;
    if (known != NULL)
        known->at_known = &mapping->next_known;
    known = mapping;
    pthread_mutex_unlock(&known_lock);
}

bool lmcs_live_is_mapped(const void *address)
{
    pthread_mutex_lock(&known_lock);
    const struct lmcs_mapping *mapping = known;
    while (mapping != NULL && (uintptr_t)address - (uintptr_t)mapping->at >= mapping->bytes)
        mapping = mapping->next_known;
    pthread_mutex_unlock(&known_lock);
    return mapping != NULL;
}

/* Under the lock: a fork in between would leave an unlisted mapping. */
void lmcs_mapping_unmap(struct lmcs_mapping *mapping)
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

bool lmcs_mapping_add_pages(struct lmcs_mapping *mapping, struct lmcs_mapped pages)
{
    size_t i = 0;
    pthread_mutex_lock(&known_lock);
    for (; i < mapping->page_count; i++) {
        struct lmcs_mapped *known_pages = &mapping->pages[i];
        uint64_t inner = pages.at - known_pages->at;
        if (pages.at < known_pages->at || inner > known_pages->bytes || pages.place != known_pages->place + inner)
            continue;
        if (known_pages->bytes < inner + pages.bytes) /* the run grows */
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

void lmcs_mapping_drop_pages(struct lmcs_mapping *mapping, uint64_t from, uint64_t end, const struct lmcs_mapped *now)
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
        } /* without memory, a child leases more */
    }
    pthread_mutex_unlock(&known_lock);
}
