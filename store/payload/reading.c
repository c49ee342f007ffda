/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/reading.c - stored bytes, threads' buffers and failures of a read. */
#include "payload/reading.h"

#include <stdlib.h>

bool lmcs_reading_is_new(const struct lmcs_reading *r, const struct lmcs_reading_link *link)
{
    return r->chain->is_new && link == &r->links[0];
}

enum lmcs_status lmcs_reading_copy(const struct lmcs_reading *r, const struct lmcs_reading_link *link, uint64_t at,
                                   void *to, uint64_t bytes, struct lmcs_error *error)
{
    return (lmcs_reading_is_new(r, link) ? lmcs_payload_read_back : lmcs_payload_read)(r->pool->media, link->content,
                                                                                       at, to, bytes, error);
}

enum lmcs_status lmcs_reading_fail(const struct lmcs_reading *r, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: tensor \"%s\" is damaged: %s", r->pool->path, r->tensor.name, why);
}

enum lmcs_status lmcs_reading_fail_newer(const struct lmcs_reading *r, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                     "%s: tensor \"%s\": %s; a newer lmc-store wrote it; upgrade to read it", r->pool->path,
                     r->tensor.name, why);
}

void lmcs_scratch_free(struct lmcs_scratch *scratch)
{
    if (scratch == NULL)
        return;
    free(scratch->coded);
    for (size_t i = 0; i < LMC_MAX_BASES; i++)
        free(scratch->blocks[i]);
    free(scratch->line);
    free(scratch);
}

struct lmcs_scratch *lmcs_scratch_get(struct lmcs_reading *r)
{
    pthread_mutex_lock(&r->lock);
    struct lmcs_scratch *scratch = r->free;
    if (scratch != NULL)
        r->free = scratch->next;
    pthread_mutex_unlock(&r->lock);
    if (scratch != NULL)
        return scratch;
    size_t block = r->raw_bytes < LMC_BLOCK_BYTES ? (size_t)r->raw_bytes : LMC_BLOCK_BYTES;
    scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL)
        return NULL;
    scratch->coded = aligned_alloc(64, (lmc_block_bound(block) + 63) & ~(size_t)63);
    bool whole = scratch->coded != NULL;
    for (size_t i = 0; i < (r->arrays > 0 ? r->arrays : 2); i++) {
        scratch->blocks[i] = aligned_alloc(64, (block + 63) & ~(size_t)63);
        whole = whole && scratch->blocks[i] != NULL;
    }
    if (whole)
        return scratch;
    lmcs_scratch_free(scratch);
    return NULL;
}

void lmcs_scratch_put(struct lmcs_reading *r, struct lmcs_scratch *scratch)
{
    pthread_mutex_lock(&r->lock);
    scratch->next = r->free;
    r->free = scratch;
    pthread_mutex_unlock(&r->lock);
}

void lmcs_reading_end(struct lmcs_reading *r)
{
    for (struct lmcs_scratch *s = r->free, *next; s != NULL; s = next) {
        next = s->next;
        lmcs_scratch_free(s);
    }
    for (size_t i = 0; i < r->chain->length; i++)
        free(r->links[i].header);
    free(r->lost);
}
