/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/cache.h - pages read and checked, and a cache of their copies. */
#ifndef LMCS_PAGES_CACHE_H
#define LMCS_PAGES_CACHE_H

#include "base/error.h"
#include "media/layout.h"

struct lmcs_pool;
struct lmcs_page_cache;

enum lmcs_status lmcs_page_cache_new(struct lmcs_page_cache **cache, struct lmcs_error *error);
void lmcs_page_cache_free(struct lmcs_page_cache *cache);

/* Called under a lock of the cache: must be brief and read no pages. */
typedef void lmcs_page_look(void *context, const struct lmcs_node_df *node);
/* Calls `look` for a cached page. False: it is not cached. */
bool lmcs_cache_show(struct lmcs_page_cache *cache, const struct lmcs_ref_df *ref, lmcs_page_look *look, void *context);
void lmcs_cache_put(struct lmcs_page_cache *cache, const struct lmcs_ref_df *ref, const void *page);

/* Checksum of a page at an offset, its own field counted as 0. */
uint64_t lmcs_page_check(const void *page, uint64_t offset);
/* Whether the page, and its own field, have the reference's checksum. */
bool lmcs_page_is_whole(const void *page, const struct lmcs_ref_df *ref);
/* Reads a page from a replica. False: none has it whole. */
bool lmcs_page_from_replica(const struct lmcs_pool *pool, const struct lmcs_ref_df *ref, void *buffer);
/* Copies a page to `buffer` (LMCS_PAGE_BYTES), from the cache or, checked, from the medium. */
enum lmcs_status lmcs_page_load(struct lmcs_pool *pool, const struct lmcs_ref_df *ref, uint8_t kind, void *buffer,
                                struct lmcs_error *error);
/* LMCS_DAMAGED with page and reason. */
enum lmcs_status lmcs_page_fail(const struct lmcs_pool *pool, const struct lmcs_ref_df *ref, const char *why,
                                struct lmcs_error *error);

#endif
