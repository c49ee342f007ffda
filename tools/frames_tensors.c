/* SPDX-License-Identifier: BSD-3-Clause */
/* frames_tensors.c - tensors of files, and the digests that identify them as bases. */
#include "frames.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Files ---------------------------------------------------------------------------------------------------- */

/* Adds a zeroed tensor. */
static struct frames_tensor *add(struct frames_source *source)
{
    if (source->count == source->capacity) {
        size_t capacity = source->capacity != 0 ? 2 * source->capacity : 16;
        struct frames_tensor *tensors = realloc(source->tensors, capacity * sizeof *tensors);
        if (tensors == NULL)
            return NULL;
        source->tensors = tensors;
        source->capacity = capacity;
    }
    struct frames_tensor *tensor = &source->tensors[source->count++];
    memset(tensor, 0, sizeof *tensor);
    return tensor;
}

bool frames_source_begins(const unsigned char *data, size_t bytes)
{
    uint64_t header_bytes = 0;
    memcpy(&header_bytes, data, bytes < sizeof header_bytes ? bytes : sizeof header_bytes);
    return header_bytes >= sizeof "{}" - 1 && header_bytes <= LMCS_ST_MAX_HEADER_BYTES;
}

/* Adds the tensors of the header. */
static enum lmcs_status add_tensors(struct cli *cli, struct frames_source *source)
{
    const struct lmcs_st_header *header = &source->header;
    for (size_t i = 0; i < header->count; i++) {
        const struct lmcs_st_tensor *from = header->tensors[i];
        struct frames_tensor *to = add(source);
        if (to == NULL)
            return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
        to->name = from->name;
        if (source->memory.data != NULL)
            to->data = source->memory.data + header->data_at + from->begin;
        to->bytes = from->end - from->begin;
        to->dtype = from->dtype;
        to->ndim = from->ndim;
        to->shape = from->shape;
    }
    return LMCS_OK;
}

enum lmcs_status frames_source_look(struct cli *cli, struct frames_source *source)
{
    int fd = -1;
    uint64_t bytes = frames_open_regular(source->path, &fd);
    if (fd < 0)
        return LMCS_OK; /* frames_read reports it */
    source->memory.bytes = (size_t)bytes;
    enum lmcs_status status = lmcs_st_header_read(fd, source->path, true, &source->header, &cli->error);
    close(fd);
    return status == LMCS_OK ? add_tensors(cli, source) : status;
}

enum lmcs_status frames_source_parse(struct cli *cli, struct frames_source *source)
{
    enum lmcs_status status = lmcs_st_header_parse(source->memory.data, source->memory.bytes,
                                                   frames_shown(source->path), &source->header, &cli->error);
    return status == LMCS_OK ? add_tensors(cli, source) : status;
}

enum lmcs_status frames_source_add_array(struct cli *cli, struct frames_source *source, uint32_t dtype)
{
    size_t element = lmc_dtype_size(dtype);
    struct frames_tensor *tensor = add(source);
    if (tensor == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    tensor->data = source->memory.data;
    tensor->bytes = source->memory.bytes / element * element;
    tensor->dtype = dtype;
    tensor->ndim = 1;
    tensor->length = source->memory.bytes / element;
    return LMCS_OK;
}

void frames_source_free(struct frames_source *source)
{
    lmcs_st_header_free(&source->header);
    frames_memory_free(&source->memory);
    free(source->tensors);
}

/* ---- By name -------------------------------------------------------------------------------------------------- */

static int by_name(const void *left, const void *right)
{
    const struct frames_tensor *const *l = left;
    const struct frames_tensor *const *r = right;
    return strcmp((*l)->name, (*r)->name);
}

static bool is_alike(const struct frames_tensor *left, const struct frames_tensor *right)
{
    if (left->dtype == 0 || left->dtype != right->dtype || left->ndim != right->ndim)
        return false;
    for (uint32_t d = 0; d < left->ndim; d++)
        if (left->shape[d] != right->shape[d])
            return false;
    return true;
}

enum lmcs_status frames_source_match(struct cli *cli, struct frames_source *source, struct frames_source *base,
                                     uint64_t least_bytes)
{
    struct frames_tensor **sorted = malloc((base->count + 1) * sizeof(void *));
    if (sorted == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    for (size_t i = 0; i < base->count; i++)
        sorted[i] = &base->tensors[i];
    qsort(sorted, base->count, sizeof(void *), by_name);
    for (size_t i = 0; i < source->count; i++) {
        struct frames_tensor *tensor = &source->tensors[i];
        struct frames_tensor **found = bsearch(&tensor, sorted, base->count, sizeof(void *), by_name);
        if (found == NULL || !is_alike(*found, tensor) || tensor->bytes < least_bytes)
            continue;
        tensor->base = *found;
        (*found)->is_wanted = true;
    }
    free(sorted);
    return LMCS_OK;
}

/* ---- Digests -------------------------------------------------------------------------------------------------- */

/* A wanted tensor, and the position of its blocks among all hashes. */
struct wanted {
    struct frames_tensor *tensor;
    uint64_t first_block;
};

struct digesting {
    struct wanted *wanted;
    size_t count;
    uint64_t block_count;
    uint64_t bytes;
    struct lmc_hash *hashes;
};

static struct wanted *owner_of(const struct digesting *digesting, uint64_t block)
{
    size_t low = 0;
    size_t high = digesting->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (digesting->wanted[middle].first_block <= block)
            low = middle;
        else
            high = middle;
    }
    return &digesting->wanted[low];
}

static enum lmc_status hash_block(void *context, uint64_t i, uint64_t *bytes, const char **message)
{
    struct digesting *digesting = context;
    const struct wanted *wanted = owner_of(digesting, i);
    uint64_t at = (i - wanted->first_block) * LMC_BLOCK_BYTES;
    uint64_t left = wanted->tensor->bytes - at;
    *message = NULL;
    *bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    digesting->hashes[i] = lmc_hash128(wanted->tensor->data + at, (size_t)*bytes);
    return LMC_OK;
}

/* Lists wanted tensors. Skips empty ones, which no frame needs. */
static bool collect(struct digesting *digesting, struct frames_source *source)
{
    digesting->wanted = malloc((source->count + 1) * sizeof *digesting->wanted);
    for (size_t i = 0; digesting->wanted != NULL && i < source->count; i++) {
        struct frames_tensor *tensor = &source->tensors[i];
        if (!tensor->is_wanted || tensor->bytes == 0)
            continue;
        digesting->wanted[digesting->count++] = (struct wanted){tensor, digesting->block_count};
        digesting->block_count += lmc_block_count(tensor->bytes);
        digesting->bytes += tensor->bytes;
    }
    digesting->hashes = malloc((digesting->block_count + 1) * sizeof *digesting->hashes);
    return digesting->wanted != NULL && digesting->hashes != NULL;
}

enum lmcs_status frames_digests(struct frames_work *work, struct frames_source *source)
{
    struct digesting digesting = {0};
    enum lmcs_status status = LMCS_OK;
    if (!collect(&digesting, source))
        status = cli_fail(work->cli, LMCS_NO_MEMORY, 0, "out of memory");
    else if (!frames_work_run(work, "hashing", digesting.bytes, hash_block, &digesting, digesting.block_count))
        status = frames_work_error(work, frames_shown(source->path));
    for (size_t i = 0; status == LMCS_OK && i < digesting.count; i++) {
        const struct wanted *wanted = &digesting.wanted[i];
        struct frames_tensor *tensor = wanted->tensor;
        const uint64_t *shape = tensor->shape != NULL ? tensor->shape : &tensor->length;
        tensor->digest = lmc_digest(tensor->dtype, tensor->ndim, shape, digesting.hashes + wanted->first_block,
                                    lmc_block_count(tensor->bytes));
    }
    free(digesting.wanted);
    free(digesting.hashes);
    return status;
}
