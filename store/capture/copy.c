/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/copy.c - allocates, copies and hashes the tensors that a snapshot adds to the pool.
 *
 * A job is a block of a large tensor, or a run of small ones with adjacent places. It copies the tensor, which may
 * change meanwhile, to a buffer on its stack, and hashes and writes the buffer: so a torn snapshot never appears
 * damaged.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/guard.h"
#include "capture/stages.h"

#define STEP_BYTES ((size_t)4 << 10) /* hashed at once; stored at once in a mapped pool */

struct copying {
    struct lmcs_pool *pool;
    const struct lmcs_copy *copies;
    struct hashes {
        struct lmc_hash *blocks; /* NULL if at most one block: its hash is `only` */
        struct lmc_hash only;
    } * hashes; /* one for each copy */
    struct lmcs_jobs jobs;
};

/* Offset of the copy in the pool. */
static uint64_t place_of(const struct lmcs_copy *copy)
{
    return copy->content->parts[0].offset;
}

/* Records a block's hash. */
static void put_hash(struct copying *copying, const struct lmcs_job *job, struct lmc_hash hash)
{
    struct hashes *hashes = &copying->hashes[job->first];
    *(hashes->blocks != NULL ? &hashes->blocks[job->block] : &hashes->only) = hash;
}

struct block_copy {
    struct copying *copying;
    const struct lmcs_job *job;
    enum lmcs_status status;
    struct lmcs_error *error;
};

/* Copies a block to memory, and hashes the copy while it is in cache. */
static void copy_to_memory(const struct lmcs_copy *copy, uint64_t at, uint64_t bytes, struct lmc_hasher *hasher)
{
    unsigned char *to = (unsigned char *)copy->memory + at;
    for (uint64_t step = 0; step < bytes; step += STEP_BYTES) {
        size_t n = bytes - step < STEP_BYTES ? (size_t)(bytes - step) : STEP_BYTES;
        lmcs_source_read(copy->source, at + step, n, to + step);
        lmc_hasher_update(hasher, to + step, n);
    }
}

static void copy_block(void *context)
{
    struct block_copy *block = context;
    struct copying *copying = block->copying;
    const struct lmcs_job *job = block->job;
    const struct lmcs_copy *copy = &copying->copies[job->first];
    struct lmcs_heap *heap = copying->pool->heap;
    _Alignas(64) unsigned char piece[LMCS_PIECE_BYTES];
    struct lmc_hasher hasher;
    uint64_t at = job->block * LMC_BLOCK_BYTES, bytes = lmcs_source_block_bytes(copy->source, job->block);
    size_t piece_bytes = lmcs_heap_method(heap) == LMCS_WRITE_FILE ? LMCS_PIECE_BYTES : STEP_BYTES;
    lmc_hasher_init(&hasher);
    if (copy->memory != NULL) {
        copy_to_memory(copy, at, bytes, &hasher);
        put_hash(copying, job, lmc_hasher_final(&hasher));
        return;
    }
    for (uint64_t done = 0; done < bytes; done += piece_bytes) {
        size_t n = bytes - done < piece_bytes ? (size_t)(bytes - done) : piece_bytes;
        for (size_t step = 0; step < n; step += STEP_BYTES) {
            size_t m = n - step < STEP_BYTES ? n - step : STEP_BYTES;
            lmcs_source_read(copy->source, at + done + step, m, piece + step);
            lmc_hasher_update(&hasher, piece + step, m);
        }
        block->status = lmcs_payload_write(heap, copy->content, at + done, piece, n, block->error);
        if (block->status != LMCS_OK)
            return;
    }
    put_hash(copying, job, lmc_hasher_final(&hasher));
    lmcs_heap_start_writeback(heap, place_of(copy) + (copy->content->df.part_count == 1 ? at : 0), bytes);
}

static enum lmcs_status copy_small(struct copying *copying, const struct lmcs_job *job, struct lmcs_error *error)
{
    _Alignas(64) unsigned char piece[LMCS_PIECE_BYTES];
    uint64_t start = place_of(&copying->copies[job->first]), end = start;
    for (size_t i = job->first; i < job->first + job->count; i++) {
        const struct lmcs_source *source = copying->copies[i].source;
        uint64_t offset = place_of(&copying->copies[i]);
        memset(piece + (end - start), 0, offset - end);
        if (!lmcs_source_read_guarded(source, 0, source->raw_bytes, piece + (offset - start)))
            return lmcs_source_fail(source->tensor, error);
        copying->hashes[i].only = lmc_hash128(piece + (offset - start), source->raw_bytes);
        end = offset + source->raw_bytes;
    }
    return lmcs_heap_write(copying->pool->heap, start, piece, end - start, error);
}

static enum lmcs_status copy_small_to_memory(struct copying *copying, const struct lmcs_job *job,
                                             struct lmcs_error *error)
{
    for (size_t i = job->first; i < job->first + job->count; i++) {
        const struct lmcs_copy *copy = &copying->copies[i];
        if (!lmcs_source_read_guarded(copy->source, 0, copy->source->raw_bytes, copy->memory))
            return lmcs_source_fail(copy->source->tensor, error);
        copying->hashes[i].only = lmc_hash128(copy->memory, copy->source->raw_bytes);
    }
    return LMCS_OK;
}

static enum lmcs_status copy_job(void *context, uint64_t i, struct lmcs_error *error)
{
    struct copying *copying = context;
    const struct lmcs_job *job = &copying->jobs.items[i];
    if (job->count > 0 && copying->copies[job->first].memory != NULL)
        return copy_small_to_memory(copying, job, error);
    if (job->count > 0)
        return copy_small(copying, job, error);
    struct block_copy block = {copying, job, LMCS_OK, error};
    const struct lmcs_source *source = copying->copies[job->first].source;
    struct lmcs_guarded range = lmcs_source_range(source);
    return lmcs_guard(&range, 1, copy_block, &block) ? block.status : lmcs_source_fail(source->tensor, error);
}

static void drain_thread(void *context)
{
    lmcs_heap_drain(((struct copying *)context)->pool->heap);
}

/* Whether copy i is small and continues the run from `first`. */
static bool joins(const struct lmcs_copy *copies, size_t first, size_t i)
{
    uint64_t bytes = copies[i].source->raw_bytes;
    if (bytes == 0 || bytes >= LMCS_ALIGNED_BYTES || (copies[i].memory != NULL) != (copies[first].memory != NULL))
        return false;
    if (copies[i].memory != NULL)
        return (i - first + 1) * bytes <= LMCS_PIECE_BYTES;
    uint64_t before = place_of(&copies[i - 1]), offset = place_of(&copies[i]);
    return offset >= before && offset - before < LMCS_ALIGNED_BYTES &&
           offset + bytes - place_of(&copies[first]) <= LMCS_PIECE_BYTES &&
           offset == before + lmcs_room(copies[i - 1].source->raw_bytes);
}

static bool plan_copy(struct copying *copying, size_t count)
{
    const struct lmcs_copy *copies = copying->copies;
    for (size_t i = 0; i < count;) {
        uint64_t bytes = copies[i].source->raw_bytes;
        size_t next = i + 1;
        if (bytes >= LMCS_ALIGNED_BYTES) {
            for (uint64_t block = 0; block < lmc_block_count(bytes); block++)
                if (!lmcs_jobs_add(&copying->jobs, (struct lmcs_job){i, 0, block}))
                    return false;
        } else if (bytes > 0) {
            while (next < count && joins(copies, i, next))
                next++;
            if (!lmcs_jobs_add(&copying->jobs, (struct lmcs_job){i, next - i, 0}))
                return false;
        }
        i = next;
    }
    return true;
}

static enum lmcs_status allocate(struct lmcs_region *region, const struct lmcs_copy *copy, struct hashes *hashes,
                                 struct lmcs_error *error)
{
    uint64_t bytes = copy->source->raw_bytes, blocks = lmc_block_count(bytes);
    if (blocks > 1 && (hashes->blocks = calloc(blocks, sizeof *hashes->blocks)) == NULL)
        return lmcs_fail_memory(error);
    copy->content->df.raw_bytes = bytes;
    copy->content->df.payload = LMCS_PAYLOAD_RAW;
    if (copy->memory != NULL)
        return LMCS_OK;
    return lmcs_payload_take(region, lmcs_raw_stored_bytes(bytes), copy->content, error);
}

/* Allocates all copies together, so that the region grows once and small copies are adjacent. */
static enum lmcs_status allocate_all(struct copying *copying, struct lmcs_region *region, size_t count,
                                     struct lmcs_error *error)
{
    uint64_t total = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        if (copying->copies[i].memory != NULL)
            continue;
        uint64_t room = lmcs_room(lmcs_raw_stored_bytes(copying->copies[i].source->raw_bytes));
        total += room;
        largest = room > largest ? room : largest;
    }
    lmcs_region_expect(region, total, largest);
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = allocate(region, &copying->copies[i], &copying->hashes[i], error);
    return status;
}

enum lmcs_status lmcs_copy_sources(struct lmcs_pool *pool, struct lmcs_workers *workers, struct lmcs_region *region,
                                   const struct lmcs_copy *copies, size_t count, struct lmcs_error *error)
{
    struct copying copying = {.pool = pool, .copies = copies, .jobs = {.pool = pool, .workers = workers}};
    copying.hashes = calloc(count + 1, sizeof *copying.hashes);
    if (copying.hashes == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = allocate_all(&copying, region, count, error);
    if (status == LMCS_OK && !plan_copy(&copying, count))
        status = lmcs_fail_memory(error);
    if (status == LMCS_OK)
        status = lmcs_jobs_run(&copying.jobs, copy_job, drain_thread, &copying, error);
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        const struct lmc_hash *hashes =
            copying.hashes[i].blocks != NULL ? copying.hashes[i].blocks : &copying.hashes[i].only;
        if (copies[i].memory != NULL) {
            lmcs_raw_digest(copies[i].content, copies[i].source->tensor, hashes);
            free(*copies[i].hashes);
            *copies[i].hashes = copying.hashes[i].blocks;
            copying.hashes[i].blocks = NULL;
        } else
            status = lmcs_raw_finish(pool->heap, copies[i].content, copies[i].source->tensor, hashes, error);
    }
    lmcs_heap_drain(pool->heap); /* another thread may commit, and can't drain this one's writes */
    for (size_t i = 0; i < count; i++)
        free(copying.hashes[i].blocks);
    free(copying.hashes);
    free(copying.jobs.items);
    return status;
}

enum lmcs_status lmcs_reserve(struct lmcs_region *region, struct lmcs_captured *entry, struct lmcs_error *error)
{
    static _Alignas(64) unsigned char nothing[64];
    struct lmcs_heap *heap = region->pool->heap;
    entry->reserved.data = nothing;
    entry->content.df.raw_bytes = entry->raw_bytes;
    enum lmcs_status status =
        lmcs_payload_take(region, lmcs_raw_stored_bytes(entry->raw_bytes), &entry->content, error);
    if (status != LMCS_OK || entry->raw_bytes == 0)
        return status;
    if (entry->content.df.part_count == 1 && lmcs_heap_method(heap) != LMCS_WRITE_LIBRARY) {
        entry->reserved.data = lmcs_heap_at(heap, entry->content.parts[0].offset);
        return LMCS_OK;
    }
    /* With several parts or replicas, the caller fills memory aside, which the commit copies. */
    void *aside =
        mmap(NULL, entry->raw_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (aside == MAP_FAILED)
        return lmcs_fail_map(error, entry->raw_bytes, "can't map %llu bytes", (unsigned long long)entry->raw_bytes);
    entry->reserved = (struct lmcs_reserved){aside, true};
    return LMCS_OK;
}

struct finishing {
    struct lmcs_pool *pool;
    const struct lmcs_captured *entry;
    uint64_t block;
    struct lmc_hash *hashes;
    enum lmcs_status status;
    struct lmcs_error *error;
};

static void finish_block(void *context)
{
    struct finishing *f = context;
    const struct lmcs_captured *entry = f->entry;
    uint64_t at = f->block * LMC_BLOCK_BYTES, left = entry->raw_bytes - at;
    uint64_t bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    const char *data = (const char *)entry->reserved.data + at;
    if (entry->reserved.aside)
        f->status = lmcs_payload_write(f->pool->heap, &entry->content, at, data, bytes, f->error);
    else
        lmcs_heap_flush(f->pool->heap, entry->content.parts[0].offset + at, bytes);
    f->hashes[f->block] = lmc_hash128(data, bytes);
}

enum lmcs_status lmcs_reserved_finish(struct lmcs_pool *pool, struct lmcs_captured *entry, struct lmcs_error *error)
{
    struct lmcs_guarded range = {entry->reserved.data, entry->raw_bytes};
    uint64_t blocks = lmc_block_count(entry->raw_bytes);
    struct finishing f = {.pool = pool, .entry = entry, .status = LMCS_OK, .error = error};
    f.hashes = calloc(blocks + 1, sizeof *f.hashes);
    if (f.hashes == NULL)
        return lmcs_fail_memory(error);
    for (; f.status == LMCS_OK && f.block < blocks; f.block++)
        if (!lmcs_guard(&range, 1, finish_block, &f))
            f.status = lmcs_source_fail(&entry->tensor, error);
    if (f.status == LMCS_OK)
        f.status = lmcs_raw_finish(pool->heap, &entry->content, &entry->tensor, f.hashes, error);
    free(f.hashes);
    return f.status;
}
