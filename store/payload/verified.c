/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/verified.c - compares raw payloads with their checksums, once per open pool. */
#include "payload/verified.h"

#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "base/order.h"

#define UNIT_BITS   19u               /* of a key: 0 for all blocks, else block + 1 */
#define MOST_NOTED  ((size_t)1 << 20) /* entries; then all are forgotten */
#define GROUP_BYTES LMC_BLOCK_BYTES   /* of small payloads in one job ... */
#define GROUP_COUNT 64u               /* ... and their number */

/* ---- The table ---- */

/* False: such a key is never noted. */
static bool key_of(uint64_t content, uint64_t block, uint64_t *key)
{
    uint64_t unit = block + 1; /* LMCS_ALL_BLOCKS: 0 */
    *key = content << UNIT_BITS | unit;
    return unit >> UNIT_BITS == 0 && content >> (64 - UNIT_BITS) == 0;
}

static bool has(struct lmcs_pool *pool, uint64_t content, uint64_t place, uint64_t block)
{
    uint64_t key;
    return place != 0 && key_of(content, block, &key) && lmcs_map_get(&pool->verified, key) == place;
}

bool lmcs_verified_has(struct lmcs_pool *pool, uint64_t content, const struct lmcs_part_df *parts, uint64_t block)
{
    pthread_mutex_lock(&pool->verified_lock);
    bool found = has(pool, content, parts[0].offset, LMCS_ALL_BLOCKS) || has(pool, content, parts[0].offset, block);
    pthread_mutex_unlock(&pool->verified_lock);
    return found;
}

static void note(struct lmcs_pool *pool, uint64_t content, uint64_t place, uint64_t block)
{
    uint64_t key;
    if (!key_of(content, block, &key))
        return;
    if (pool->verified.count == MOST_NOTED)
        lmcs_map_free(&pool->verified);
    (void)lmcs_map_put(&pool->verified, key, place);
}

void lmcs_verified_note(struct lmcs_pool *pool, uint64_t content, const struct lmcs_part_df *parts, uint64_t block)
{
    pthread_mutex_lock(&pool->verified_lock);
    note(pool, content, parts[0].offset, block);
    pthread_mutex_unlock(&pool->verified_lock);
}

/* ---- Comparing ---- */

struct verifying {
    struct lmcs_pool *pool;
    const struct lmcs_raw *raws;
    size_t *firsts; /* of each job: small payloads together, a large one alone */
    size_t jobs;
};

static bool is_small(const struct lmcs_raw *raw)
{
    return raw->entry->raw_bytes <= LMC_BLOCK_BYTES && raw->part_count <= 1;
}

struct group {
    const struct lmcs_raw *raws;
    const void *mapped[GROUP_COUNT];
    size_t count;
    bool is_right;
};

/* A payload of one block has no table of hashes: its digest covers the hash. */
static void hash_group(void *context)
{
    struct group *group = context;
    for (size_t i = 0; group->is_right && i < group->count; i++) {
        const struct lmcs_entry *entry = group->raws[i].entry;
        struct lmc_hash hash = lmc_hash128(group->mapped[i], entry->raw_bytes);
        struct lmc_hash digest = lmc_digest(entry->tensor.dtype, entry->tensor.ndim, entry->tensor.shape, &hash,
                                            lmc_block_count(entry->raw_bytes));
        group->is_right = digest.low == entry->digest.low && digest.high == entry->digest.high;
    }
}

/* False: one of them is damaged or unreadable, or the mapping can't be used. */
static bool are_right(struct lmcs_pool *pool, const struct lmcs_raw *raws, size_t count)
{
    struct group group = {.raws = raws, .count = count, .is_right = true};
    struct lmcs_guarded ranges[GROUP_COUNT];
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = raws[i].entry->raw_bytes;
        group.mapped[i] = bytes == 0 ? "" : lmcs_media_at(pool->media, raws[i].parts[0].offset, bytes);
        if (group.mapped[i] == NULL || (bytes > 0 && raws[i].parts[0].bytes < bytes))
            return false;
        ranges[i] = (struct lmcs_guarded){group.mapped[i], bytes};
        if (bytes >= LMCS_ALIGNED_BYTES)
            lmcs_media_bring(group.mapped[i], bytes);
    }
    return lmcs_guard(ranges, count, hash_group, &group) && group.is_right;
}

static enum lmcs_status verify_one(struct lmcs_pool *pool, const struct lmcs_raw *raw, struct lmcs_error *error)
{
    struct lmcs_chain *chain = calloc(1, sizeof *chain);
    if (chain == NULL)
        return lmcs_fail_memory(error);
    struct lmcs_content *content = &chain->links[0];
    chain->length = 1;
    content->id = raw->entry->content;
    content->df.digest_low = raw->entry->digest.low;
    content->df.digest_high = raw->entry->digest.high;
    content->df.raw_bytes = raw->entry->raw_bytes;
    content->df.stored_bytes = raw->entry->stored_bytes;
    content->df.payload = LMCS_PAYLOAD_RAW;
    content->df.part_count = (uint16_t)raw->part_count;
    memcpy(content->parts, raw->parts, raw->part_count * sizeof *raw->parts);
    enum lmcs_status status = lmcs_chain_read(pool, chain, &raw->entry->tensor, NULL, NULL, error);
    free(chain);
    return status;
}

static enum lmcs_status verify_job(void *context, uint64_t i, struct lmcs_error *error)
{
    const struct verifying *verifying = context;
    size_t first = verifying->firsts[i], end = verifying->firsts[i + 1];
    enum lmcs_status status = LMCS_OK;
    if (is_small(&verifying->raws[first]) && lmcs_guard_holds() &&
        are_right(verifying->pool, verifying->raws + first, end - first))
        return LMCS_OK;
    for (size_t k = first; status == LMCS_OK && k < end; k++)
        status = verify_one(verifying->pool, &verifying->raws[k], error);
    return status;
}

static void find_groups(struct verifying *verifying, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        const struct lmcs_raw *raw = &verifying->raws[i];
        bytes += raw->entry->raw_bytes;
        bool joins = i > 0 && is_small(raw) && is_small(raw - 1) && bytes <= GROUP_BYTES &&
                     i - verifying->firsts[verifying->jobs - 1] < GROUP_COUNT;
        if (joins)
            continue;
        verifying->firsts[verifying->jobs++] = i;
        bytes = raw->entry->raw_bytes;
    }
    verifying->firsts[verifying->jobs] = count;
}

static int by_content(const void *a, const void *b)
{
    uint64_t x = ((const struct lmcs_raw *)a)->entry->content, y = ((const struct lmcs_raw *)b)->entry->content;
    return LMCS_ORDER(x, y);
}

/* Sorts payloads and drops repeated contents; returns how many are left. */
static size_t drop_doubles(struct lmcs_raw *raws, size_t count)
{
    size_t kept = 0;
    if (count > 1)
        qsort(raws, count, sizeof *raws, by_content);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || raws[i].entry->content != raws[kept - 1].entry->content)
            raws[kept++] = raws[i];
    return kept;
}

enum lmcs_status lmcs_raw_verify(struct lmcs_pool *pool, struct lmcs_raw *raws, size_t count, struct lmcs_error *error)
{
    count = drop_doubles(raws, count);
    struct verifying verifying = {.pool = pool, .raws = raws, .firsts = malloc((count + 1) * sizeof(size_t))};
    if (verifying.firsts == NULL)
        return lmcs_fail_memory(error);
    find_groups(&verifying, count);
    enum lmcs_status status = lmcs_workers_try(pool->workers, verify_job, NULL, &verifying, verifying.jobs, error);
    free(verifying.firsts);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->verified_lock);
    for (size_t i = 0; i < count; i++)
        if (raws[i].part_count > 0)
            note(pool, raws[i].entry->content, raws[i].parts[0].offset, LMCS_ALL_BLOCKS);
    pthread_mutex_unlock(&pool->verified_lock);
    return LMCS_OK;
}
