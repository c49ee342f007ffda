/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/source.c - reads tensors in the caller's memory.
 *
 * Live tensors are in the pool's mapping; others may be in mapped files that are truncated meanwhile. A guard makes a
 * fault an error of the capture. Guarded code takes no locks.
 */
#include <errno.h>
#include <string.h>

#include "base/grow.h"
#include "base/guard.h"
#include "capture/stages.h"

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

uint64_t lmcs_source_block_bytes(const struct lmcs_source *source, uint64_t block)
{
    uint64_t left = source->raw_bytes - block * LMC_BLOCK_BYTES;
    return left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
}

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

static void gather(const struct lmcs_source *source, uint64_t at, uint64_t bytes, void *to)
{
    const struct lmcs_tensor *tensor = source->tensor;
    size_t size = lmc_dtype_size(tensor->dtype);
    uint64_t element = at / size, left = bytes / size;
    uint32_t last = tensor->ndim - 1;
    uint64_t index[LMCS_MAX_DIMS];
    const char *from = source->data;
    for (uint32_t i = tensor->ndim; i-- > 0;) {
        index[i] = element % tensor->shape[i];
        element /= tensor->shape[i];
        from += (int64_t)index[i] * source->strides[i];
    }
    char *out = to;
    while (left > 0) {
        uint64_t n = tensor->shape[last] - index[last];
        n = n < left ? n : left;
        gather_row(out, from, size, source->strides[last], n);
        out += n * size;
        left -= n;
        from += (int64_t)n * source->strides[last];
        index[last] += n;
        for (uint32_t i = last; i > 0 && index[i] == tensor->shape[i]; i--) {
            from -= (int64_t)index[i] * source->strides[i];
            index[i] = 0;
            index[i - 1]++;
            from += source->strides[i - 1];
        }
    }
}

void lmcs_source_read(const struct lmcs_source *source, uint64_t at, uint64_t bytes, void *to)
{
    if (source->strides == NULL)
        memcpy(to, (const char *)source->data + at, bytes);
    else
        gather(source, at, bytes, to);
}

struct lmcs_guarded lmcs_source_range(const struct lmcs_source *source)
{
    const struct lmcs_tensor *tensor = source->tensor;
    uintptr_t from = (uintptr_t)source->data, to = from;
    if (source->strides == NULL)
        return (struct lmcs_guarded){source->data, source->raw_bytes};
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        uintptr_t reach = (tensor->shape[i] - 1) * (uintptr_t)source->strides[i];
        if (source->strides[i] < 0)
            from += reach;
        else
            to += reach;
    }
    return (struct lmcs_guarded){(const void *)from, to - from + lmc_dtype_size(tensor->dtype)};
}

struct guarded_read {
    const struct lmcs_source *source;
    uint64_t at;
    uint64_t bytes;
    void *to;
};

static void read_under_guard(void *context)
{
    const struct guarded_read *read = context;
    lmcs_source_read(read->source, read->at, read->bytes, read->to);
}

bool lmcs_source_read_guarded(const struct lmcs_source *source, uint64_t at, uint64_t bytes, void *to)
{
    struct guarded_read read = {source, at, bytes, to};
    struct lmcs_guarded range = lmcs_source_range(source);
    return lmcs_guard(&range, 1, read_under_guard, &read);
}

enum lmcs_status lmcs_source_fail(const struct lmcs_tensor *tensor, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_IO, EIO,
                     "tensor \"%s\": its memory can't be read (a page that failed, or a mapped file that was cut)",
                     tensor->name);
}

bool lmcs_jobs_add(struct lmcs_jobs *jobs, struct lmcs_job job)
{
    if (!lmcs_grow(&jobs->items, &jobs->capacity, jobs->count, sizeof *jobs->items))
        return false;
    jobs->items[jobs->count++] = job;
    return true;
}

enum lmcs_status lmcs_jobs_run(const struct lmcs_jobs *jobs, lmcs_workers_job *work, void (*finish)(void *context),
                               void *context, struct lmcs_error *error)
{
    atomic_fetch_add(&jobs->pool->copying, 1);
    enum lmcs_status status = lmcs_workers_try(jobs->workers, work, finish, context, jobs->count, error);
    atomic_fetch_sub(&jobs->pool->copying, 1);
    return status;
}
