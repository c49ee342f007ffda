/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/copy.c - the bytes of a capture: compared, copied, hashed.
 *
 * Work is cut into jobs: a block of a large tensor, or a run of small ones that lie side by side. Each job copies a
 * cache-sized piece at a time into a buffer on its stack; that buffer, not the tensor, is hashed and written, so a
 * tensor that changes meanwhile gives a torn snapshot but never one that looks damaged. Strided data is gathered
 * into the same buffer, so no tensor is ever copied whole.
 *
 * The memory of a tensor may fail too (a live tensor lies in the pool; others lie in files that are mapped): a guard
 * makes that an error of the capture. Nothing within it takes a lock when it touches the tensor.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/guard.h"
#include "capture/capture.h"

#define PIECE_BYTES ((size_t)128 << 10) /* written to a file at once */
#define STEP_BYTES  ((size_t)4 << 10)   /* copied and hashed at once; stored at once where the pool is mapped */

/* ---- Gathering ---- */

bool lmcs_strides_are_plain(const struct lmcs_tensor *tensor, const int64_t *strides)
{
    uint64_t expected = lmc_dtype_size(tensor->dtype);
    for (uint32_t i = tensor->ndim; strides != NULL && i-- > 0;) {
        if (tensor->shape[i] != 1 && strides[i] != (int64_t)expected)
            return false;
        expected *= tensor->shape[i];
    }
    return true;
}

/* Copies `count` elements of size 1, 2, 4, 8 or 16 that lie `stride` bytes apart. */
static void gather_row(char *to, const char *from, size_t size, int64_t stride, uint64_t count)
{
#define GATHER(type)                     \
    for (uint64_t i = 0; i < count; i++) \
    memcpy(to + i * sizeof(type), from + (int64_t)i * stride, sizeof(type))
    switch (size) {
    case 1:
        GATHER(uint8_t);
        break;
    case 2:
        GATHER(uint16_t);
        break;
    case 4:
        GATHER(uint32_t);
        break;
    case 8:
        GATHER(uint64_t);
        break;
    default:
        for (uint64_t i = 0; i < count; i++)
            memcpy(to + i * size, from + (int64_t)i * stride, size);
    }
#undef GATHER
}

/* Copies bytes [at, at + bytes) of the row-major form of a strided tensor; both are multiples of the element's size. */
static void gather(const struct lmcs_tensor *tensor, const int64_t *strides, const void *data, uint64_t at,
                   uint64_t bytes, void *to)
{
    size_t size = lmc_dtype_size(tensor->dtype);
    uint64_t element = at / size, left = bytes / size;
    uint32_t last = tensor->ndim - 1;
    uint64_t index[LMCS_MAX_DIMS];
    const char *from = data;
    for (uint32_t i = tensor->ndim; i-- > 0;) {
        index[i] = element % tensor->shape[i];
        element /= tensor->shape[i];
        from += (int64_t)index[i] * strides[i];
    }
    char *out = to;
    while (left > 0) {
        uint64_t n = tensor->shape[last] - index[last];
        n = n < left ? n : left;
        gather_row(out, from, size, strides[last], n);
        out += n * size;
        left -= n;
        from += (int64_t)n * strides[last];
        index[last] += n;
        for (uint32_t i = last; i > 0 && index[i] == tensor->shape[i]; i--) {
            from -= (int64_t)index[i] * strides[i];
            index[i] = 0;
            index[i - 1]++;
            from += strides[i - 1];
        }
    }
}

static void fetch(const struct lmcs_source *source, uint64_t at, uint64_t bytes, void *to)
{
    if (source->strides == NULL)
        memcpy(to, (const char *)source->data + at, bytes);
    else
        gather(&source->entry->tensor, source->strides, source->data, at, bytes, to);
}

/* All that a source may touch. */
static struct lmcs_guarded range_of(const struct lmcs_source *source)
{
    const struct lmcs_tensor *tensor = &source->entry->tensor;
    uintptr_t from = (uintptr_t)source->data, to = from;
    if (source->strides == NULL)
        return (struct lmcs_guarded){source->data, source->entry->raw_bytes};
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        uintptr_t reach = (tensor->shape[i] - 1) * (uintptr_t)source->strides[i];
        if (source->strides[i] < 0)
            from += reach;
        else
            to += reach;
    }
    return (struct lmcs_guarded){(const void *)from, to - from + lmc_dtype_size(tensor->dtype)};
}

struct fetching {
    const struct lmcs_source *source;
    uint64_t at;
    uint64_t bytes;
    void *to;
};

static void fetch_all(void *context)
{
    const struct fetching *f = context;
    fetch(f->source, f->at, f->bytes, f->to);
}

static bool fetch_guarded(const struct lmcs_source *source, uint64_t at, uint64_t bytes, void *to)
{
    struct fetching fetching = {source, at, bytes, to};
    struct lmcs_guarded range = range_of(source);
    return lmcs_guard(&range, 1, fetch_all, &fetching);
}

static enum lmcs_status fail_source(const struct lmcs_captured *entry, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_IO, EIO,
                     "tensor \"%s\": its memory can't be read (a page that failed, or a mapped file that was cut)",
                     entry->tensor.name);
}

/* ---- Jobs ---- */

struct job {
    size_t first; /* source */
    size_t count; /* of small ones; 0: one block of a large one */
    uint64_t block;
};

struct copying {
    struct lmcs_pool *pool;
    struct lmcs_source *sources;
    struct job *jobs;
    size_t job_count;
    size_t job_capacity;
    atomic_bool *differs; /* for each source, when comparing */
    pthread_mutex_t lock; /* guards the first error */
    atomic_bool failed;
    struct lmcs_error error;
};

static void fail_job(struct copying *copying, const struct lmcs_error *error)
{
    pthread_mutex_lock(&copying->lock);
    if (!atomic_load(&copying->failed))
        copying->error = *error;
    atomic_store(&copying->failed, true);
    pthread_mutex_unlock(&copying->lock);
}

static bool add_job(struct copying *copying, struct job job)
{
    if (!lmcs_grow(&copying->jobs, &copying->job_capacity, copying->job_count, sizeof *copying->jobs))
        return false;
    copying->jobs[copying->job_count++] = job;
    return true;
}

static uint64_t block_bytes(const struct lmcs_captured *entry, uint64_t block)
{
    uint64_t left = entry->raw_bytes - block * LMC_BLOCK_BYTES;
    return left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
}

static enum lmcs_status run_jobs(struct copying *copying, void (*work)(void *context, uint64_t i),
                                 void (*finish)(void *context), struct lmcs_error *error)
{
    atomic_fetch_add(&copying->pool->copying, 1);
    lmcs_workers_run(copying->pool->workers, work, finish, copying, copying->job_count);
    atomic_fetch_sub(&copying->pool->copying, 1);
    if (!atomic_load(&copying->failed))
        return LMCS_OK;
    if (error != NULL)
        *error = copying->error;
    return copying->error.status;
}

/* ---- Copying ---- */

struct block_copy {
    struct copying *copying;
    const struct job *job;
};

static void copy_block(void *context)
{
    struct copying *copying = ((const struct block_copy *)context)->copying;
    const struct job *job = ((const struct block_copy *)context)->job;
    struct lmcs_source *source = &copying->sources[job->first];
    struct lmcs_captured *entry = source->entry;
    _Alignas(64) unsigned char piece[PIECE_BYTES];
    struct lmcs_error error;
    struct lmc_hasher hasher;
    uint64_t at = job->block * LMC_BLOCK_BYTES, bytes = block_bytes(entry, job->block);
    size_t piece_bytes = lmcs_heap_method(copying->pool->heap) == LMCS_WRITE_FILE ? PIECE_BYTES : STEP_BYTES;
    lmc_hasher_init(&hasher);
    for (uint64_t done = 0; done < bytes; done += piece_bytes) {
        size_t n = bytes - done < piece_bytes ? (size_t)(bytes - done) : piece_bytes;
        for (size_t step = 0; step < n; step += STEP_BYTES) {
            size_t m = n - step < STEP_BYTES ? n - step : STEP_BYTES;
            fetch(source, at + done + step, m, piece + step);
            lmc_hasher_update(&hasher, piece + step, m);
        }
        if (lmcs_payload_write(copying->pool->heap, &entry->content, at + done, piece, n, &error) != LMCS_OK) {
            fail_job(copying, &error);
            return;
        }
    }
    struct lmc_hash hash = lmc_hasher_final(&hasher);
    if (entry->hashes != NULL)
        entry->hashes[job->block] = hash;
    else
        entry->only_hash = hash;
    lmcs_heap_start_writeback(copying->pool->heap,
                              entry->content.parts[0].offset + (entry->content.df.part_count == 1 ? at : 0), bytes);
}

/* Small tensors that lie side by side are put together in the buffer and written at once. */
static void copy_small(struct copying *copying, const struct job *job)
{
    _Alignas(64) unsigned char piece[PIECE_BYTES];
    struct lmcs_error error;
    uint64_t start = copying->sources[job->first].entry->content.parts[0].offset, end = start;
    for (size_t i = job->first; i < job->first + job->count; i++) {
        struct lmcs_source *source = &copying->sources[i];
        struct lmcs_captured *entry = source->entry;
        uint64_t offset = entry->content.parts[0].offset;
        memset(piece + (end - start), 0, offset - end);
        if (!fetch_guarded(source, 0, entry->raw_bytes, piece + (offset - start))) {
            fail_source(entry, &error);
            fail_job(copying, &error);
            return;
        }
        entry->only_hash = lmc_hash128(piece + (offset - start), entry->raw_bytes);
        end = offset + entry->raw_bytes;
    }
    if (lmcs_heap_write(copying->pool->heap, start, piece, end - start, &error) != LMCS_OK)
        fail_job(copying, &error);
}

static void copy_job(void *context, uint64_t i)
{
    struct copying *copying = context;
    const struct job *job = &copying->jobs[i];
    if (atomic_load_explicit(&copying->failed, memory_order_relaxed))
        return;
    if (job->count > 0) {
        copy_small(copying, job);
        return;
    }
    struct block_copy block = {copying, job};
    struct lmcs_guarded range = range_of(&copying->sources[job->first]);
    struct lmcs_error error;
    if (!lmcs_guard(&range, 1, copy_block, &block)) {
        fail_source(copying->sources[job->first].entry, &error);
        fail_job(copying, &error);
    }
}

static void drain_thread(void *context)
{
    lmcs_heap_drain(((struct copying *)context)->pool->heap);
}

/* Whether source i can join a run of small ones that starts at `first`. */
static bool joins(const struct lmcs_source *sources, size_t first, size_t i)
{
    const struct lmcs_captured *a = sources[first].entry, *b = sources[i].entry, *last = sources[i - 1].entry;
    if (b->raw_bytes == 0 || b->raw_bytes >= LMCS_ALIGNED_BYTES)
        return false;
    uint64_t start = a->content.parts[0].offset, offset = b->content.parts[0].offset;
    return offset >= last->content.parts[0].offset && offset - last->content.parts[0].offset < LMCS_ALIGNED_BYTES &&
           offset + b->raw_bytes - start <= PIECE_BYTES &&
           offset == last->content.parts[0].offset + lmcs_room(last->raw_bytes);
}

static bool plan_copy(struct copying *copying, size_t count)
{
    struct lmcs_source *sources = copying->sources;
    for (size_t i = 0; i < count;) {
        struct lmcs_captured *entry = sources[i].entry;
        size_t next = i + 1;
        if (entry->raw_bytes == 0) {
            entry->only_hash = lmc_hash128(NULL, 0);
        } else if (entry->raw_bytes < LMCS_ALIGNED_BYTES) {
            while (next < count && joins(sources, i, next))
                next++;
            if (!add_job(copying, (struct job){i, next - i, 0}))
                return false;
        } else {
            for (uint64_t block = 0; block < lmc_block_count(entry->raw_bytes); block++)
                if (!add_job(copying, (struct job){i, 0, block}))
                    return false;
        }
        i = next;
    }
    return true;
}

static enum lmcs_status take_room(struct lmcs_region *region, struct lmcs_captured *entry, struct lmcs_error *error)
{
    uint64_t blocks = lmc_block_count(entry->raw_bytes);
    if (blocks > 1) {
        entry->hashes = calloc(blocks, sizeof *entry->hashes);
        if (entry->hashes == NULL)
            return lmcs_fail_memory(error);
    }
    entry->content.df.raw_bytes = entry->raw_bytes;
    entry->content.df.payload = LMCS_PAYLOAD_RAW;
    return lmcs_payload_take(region, lmcs_raw_stored_bytes(entry->raw_bytes), &entry->content, error);
}

enum lmcs_status lmcs_finish_content(struct lmcs_pool *pool, struct lmcs_captured *entry, struct lmcs_error *error)
{
    uint64_t blocks = lmc_block_count(entry->raw_bytes);
    const struct lmc_hash *hashes = blocks > 1 ? entry->hashes : &entry->only_hash;
    struct lmc_hash digest = lmc_digest(entry->tensor.dtype, entry->tensor.ndim, entry->tensor.shape, hashes, blocks);
    entry->content.df.digest_low = digest.low;
    entry->content.df.digest_high = digest.high;
    enum lmcs_status status = LMCS_OK;
    if (blocks > 1) {
        uint64_t at = lmcs_raw_table_at(entry->raw_bytes);
        static const unsigned char zeros[16];
        status = lmcs_payload_write(pool->heap, &entry->content, entry->raw_bytes, zeros, at - entry->raw_bytes, error);
        if (status == LMCS_OK)
            status = lmcs_payload_write(pool->heap, &entry->content, at, entry->hashes, blocks * sizeof *entry->hashes,
                                        error);
    }
    free(entry->hashes);
    entry->hashes = NULL;
    return status;
}

enum lmcs_status lmcs_copy_sources(struct lmcs_pool *pool, struct lmcs_region *region, struct lmcs_source *sources,
                                   size_t count, struct lmcs_error *error)
{
    struct copying copying = {.pool = pool, .sources = sources};
    pthread_mutex_init(&copying.lock, NULL);
    enum lmcs_status status = LMCS_OK;
    uint64_t total = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t room = lmcs_room(lmcs_raw_stored_bytes(sources[i].entry->raw_bytes));
        total += room;
        largest = room > largest ? room : largest;
    }
    lmcs_region_expect(region, total, largest);
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = take_room(region, sources[i].entry, error);
    if (status == LMCS_OK && !plan_copy(&copying, count))
        status = lmcs_fail_memory(error);
    if (status == LMCS_OK)
        status = run_jobs(&copying, copy_job, drain_thread, error);
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = lmcs_finish_content(pool, sources[i].entry, error);
    lmcs_heap_drain(pool->heap); /* the commit may be another thread's, which can't drain what this one wrote */
    free(copying.jobs);
    pthread_mutex_destroy(&copying.lock);
    return status;
}

/* ---- Comparing ---- */

/*
 * What the pool has and can't give any more is not equal to anything: the tensor is written anew. Where the tensor
 * can't be read either, copying it will say so.
 */
static bool equals_stored(const void *before, const void *now, size_t bytes)
{
    return before != NULL && lmcs_guard_equal(before, now, bytes, 2);
}

static bool block_equals(const struct copying *copying, const struct lmcs_source *source, uint64_t block)
{
    _Alignas(64) unsigned char piece[PIECE_BYTES];
    uint64_t at = block * LMC_BLOCK_BYTES, bytes = block_bytes(source->entry, block);
    for (uint64_t done = 0; done < bytes; done += PIECE_BYTES) {
        size_t n = bytes - done < PIECE_BYTES ? (size_t)(bytes - done) : PIECE_BYTES;
        const void *before = lmcs_payload_at(copying->pool->media, source->before, at + done, n);
        const void *now = (const char *)source->data + at + done;
        if (source->strides != NULL) {
            if (!fetch_guarded(source, at + done, n, piece))
                return false;
            now = piece;
        }
        if (!equals_stored(before, now, n))
            return false;
    }
    return true;
}

static void compare_job(void *context, uint64_t i)
{
    struct copying *copying = context;
    const struct job *job = &copying->jobs[i];
    for (size_t s = job->first; s < job->first + (job->count == 0 ? 1 : job->count); s++)
        if (!atomic_load_explicit(&copying->differs[s], memory_order_relaxed) &&
            !block_equals(copying, &copying->sources[s], job->block))
            atomic_store_explicit(&copying->differs[s], true, memory_order_relaxed);
}

/* First the first block of each, many small ones to a job; then the other blocks of those that are still equal. */
static bool plan_compare(struct copying *copying, size_t count, bool first_blocks)
{
    copying->job_count = 0;
    for (size_t i = 0; i < count; i++) {
        const struct lmcs_source *source = &copying->sources[i];
        uint64_t blocks = lmc_block_count(source->entry->raw_bytes);
        if (source->before == NULL || atomic_load_explicit(&copying->differs[i], memory_order_relaxed))
            continue;
        if (!first_blocks) {
            for (uint64_t block = 1; block < blocks; block++)
                if (!add_job(copying, (struct job){i, 0, block}))
                    return false;
            continue;
        }
        struct job *last = copying->job_count > 0 ? &copying->jobs[copying->job_count - 1] : NULL;
        if (last != NULL && last->first + last->count == i && last->count < 64 &&
            source->entry->raw_bytes < LMCS_ALIGNED_BYTES)
            last->count++;
        else if (!add_job(copying, (struct job){i, 1, 0}))
            return false;
    }
    return true;
}

enum lmcs_status lmcs_compare_sources(struct lmcs_pool *pool, struct lmcs_source *sources, size_t count,
                                      struct lmcs_error *error)
{
    struct copying copying = {.pool = pool, .sources = sources};
    pthread_mutex_init(&copying.lock, NULL);
    copying.differs = calloc(count + 1, sizeof *copying.differs);
    enum lmcs_status status = copying.differs == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (int pass = 0; status == LMCS_OK && pass < 2; pass++) {
        if (!plan_compare(&copying, count, pass == 0))
            status = lmcs_fail_memory(error);
        else if (copying.job_count > 0)
            status = run_jobs(&copying, compare_job, NULL, error);
    }
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        if (sources[i].before != NULL && !atomic_load(&copying.differs[i]))
            sources[i].entry->shared = sources[i].before->id;
    free(copying.differs);
    free(copying.jobs);
    pthread_mutex_destroy(&copying.lock);
    return status;
}

/* ---- Filled in place ---- */

struct reserved_block {
    struct lmcs_pool *pool;
    struct lmcs_captured *entry;
    uint64_t block;
    enum lmcs_status status;
    struct lmcs_error *error;
};

/* Writes what was filled aside, or flushes what was filled in place, and hashes it. */
static void finish_block(void *context)
{
    struct reserved_block *r = context;
    struct lmcs_captured *entry = r->entry;
    const char *data = (const char *)entry->reserved + r->block * LMC_BLOCK_BYTES;
    uint64_t bytes = block_bytes(entry, r->block);
    if (entry->reserved_aside)
        r->status =
            lmcs_payload_write(r->pool->heap, &entry->content, r->block * LMC_BLOCK_BYTES, data, bytes, r->error);
    else
        lmcs_heap_flush(r->pool->heap, entry->content.parts[0].offset + r->block * LMC_BLOCK_BYTES, bytes);
    struct lmc_hash hash = lmc_hash128(data, bytes);
    if (entry->hashes != NULL)
        entry->hashes[r->block] = hash;
    else
        entry->only_hash = hash;
}

enum lmcs_status lmcs_hash_reserved(struct lmcs_pool *pool, struct lmcs_captured *entry, struct lmcs_error *error)
{
    struct lmcs_guarded range = {entry->reserved, entry->raw_bytes};
    struct reserved_block reserved = {pool, entry, 0, LMCS_OK, error};
    uint64_t blocks = lmc_block_count(entry->raw_bytes);
    for (; reserved.block < blocks; reserved.block++) {
        if (!lmcs_guard(&range, 1, finish_block, &reserved))
            return fail_source(entry, error);
        if (reserved.status != LMCS_OK)
            return reserved.status;
    }
    if (blocks == 0)
        entry->only_hash = lmc_hash128(NULL, 0);
    return lmcs_finish_content(pool, entry, error);
}
