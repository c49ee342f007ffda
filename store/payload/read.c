/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/read.c - reads whole contents, or single blocks.
 *
 * Threads share the blocks of a content.
 */
#include "payload/reading.h"

#include <stdlib.h>
#include <string.h>

#include "records/safety.h"

/* Marks a block as damaged. False: no memory. */
static bool note_lost(struct lmcs_reading *r, uint64_t block)
{
    if (r->lost == NULL)
        r->lost = calloc(lmc_block_count(r->raw_bytes), 1);
    if (r->lost != NULL)
        r->lost[block] = 1;
    return r->lost != NULL;
}

/* Records the failure of a block. Damage does not end a read. */
static void note_failure(struct lmcs_reading *r, uint64_t block, enum lmcs_status status, const char *why,
                         const struct lmcs_error *error)
{
    uint64_t first = block * LMC_BLOCK_BYTES, left = r->raw_bytes - first;
    uint64_t bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    pthread_mutex_lock(&r->lock);
    if (!r->failed || (r->error.status == LMCS_DAMAGED && status != LMCS_DAMAGED)) {
        if (why != NULL)
            lmcs_fail(&r->error, status, 0, "%s", why);
        else
            r->error = *error;
        r->error.status = status;
    }
    r->failed = true;
    if (r->bad != NULL && status == LMCS_DAMAGED)
        r->bad->call(r->bad->context, first, bytes, why != NULL ? why : error->message);
    else if (status != LMCS_DAMAGED || !note_lost(r, block))
        r->go_on = false;
    pthread_mutex_unlock(&r->lock);
}

/* Prefixes the damaged range to the error: "rows 3 to 5 of 100 (elements 768 to 1535): ". */
static void prefix_lost(const struct lmcs_reading *r, struct lmcs_error *error)
{
    enum { MOST_LISTED = 6 };
    struct lmcs_block_range ranges[MOST_LISTED];
    size_t count = 0;
    bool more = false;
    char text[512];
    for (uint64_t i = 0; i < lmc_block_count(r->raw_bytes); i++) {
        if (r->lost[i] == 0)
            continue;
        if (count > 0 && ranges[count - 1].first + ranges[count - 1].count == i)
            ranges[count - 1].count++;
        else if (count < MOST_LISTED)
            ranges[count++] = (struct lmcs_block_range){i, 1};
        else
            more = true;
        if (more)
            break;
    }
    lmcs_describe_blocks(ranges, count, more, r->tensor.dtype, r->tensor.ndim, r->tensor.shape, text, sizeof text);
    lmcs_error_prefix(error, "%s: ", text);
}

static void read_job(void *context, uint64_t block)
{
    struct lmcs_reading *r = context;
    const char *why = NULL;
    struct lmcs_error error;
    pthread_mutex_lock(&r->lock);
    bool stop = r->failed && !r->go_on;
    pthread_mutex_unlock(&r->lock);
    if (stop)
        return;
    struct lmcs_scratch *scratch = lmcs_scratch_get(r);
    void *target = r->buffer != NULL ? r->buffer + block * LMC_BLOCK_BYTES : NULL;
    enum lmcs_status status =
        scratch == NULL ? lmcs_fail_memory(&error) : lmcs_reading_block(r, block, target, scratch, &why, &error);
    if (status != LMCS_OK)
        note_failure(r, block, status, why, &error);
    if (scratch != NULL)
        lmcs_scratch_put(r, scratch);
}

static enum lmcs_status read_all(struct lmcs_reading *r, struct lmcs_error *error)
{
    struct lmcs_pool *pool = r->pool;
    r->go_on = true;
    enum lmcs_status status = lmcs_reading_open(r, error);
    if (status == LMCS_DAMAGED && r->bad != NULL)
        r->bad->call(r->bad->context, 0, r->raw_bytes, error != NULL ? error->message : "its header is damaged");
    if (status == LMCS_OK && r->raw_bytes > 0) {
        pthread_mutex_init(&r->lock, NULL);
        lmcs_workers_run(r->chain->serial ? NULL : pool->workers, read_job, NULL, r, lmc_block_count(r->raw_bytes));
        pthread_mutex_destroy(&r->lock);
        if (r->failed) {
            status = r->error.status;
            if (status == LMCS_DAMAGED && r->lost != NULL)
                prefix_lost(r, &r->error);
            if (status == LMCS_DAMAGED)
                lmcs_error_prefix(&r->error, "%s: tensor \"%s\" is damaged: ", pool->path, r->tensor.name);
            if (status == LMCS_UNSUPPORTED) {
                const struct lmcs_error why_not = r->error;
                lmcs_reading_fail_newer(r, why_not.message, &r->error);
            }
            if (error != NULL)
                *error = r->error;
        }
    }
    lmcs_reading_end(r);
    return status;
}

enum lmcs_status lmcs_chain_read(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                 const struct lmcs_tensor *tensor, void *buffer, const struct lmcs_bad_range *bad,
                                 struct lmcs_error *error)
{
    struct lmcs_reading r = {.pool = pool,
                             .chain = chain,
                             .raw_bytes = chain->links[0].df.raw_bytes,
                             .tensor = *tensor,
                             .buffer = buffer,
                             .bad = bad};
    return read_all(&r, error);
}

enum lmcs_status lmcs_chain_read_arrays(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                        const struct lmcs_tensor *tensor, const struct lmcs_content *const *contents,
                                        void *const *buffers, struct lmcs_error *error)
{
    struct lmcs_reading r = {
        .pool = pool, .chain = chain, .raw_bytes = chain->links[0].df.raw_bytes, .tensor = *tensor};
    r.tensor.dtype = LMC_F32; /* the arrays of links are f32 */
    for (size_t i = 0; i < LMC_MAX_BASES; i++) {
        r.contents[i] = contents[i];
        r.buffers[i] = buffers[i];
    }
    return read_all(&r, error);
}

enum lmcs_status lmcs_line_check(struct lmcs_pool *pool, const struct lmcs_chain *chain, size_t links,
                                 const struct lmcs_tensor *tensor, struct lmcs_error *error)
{
    struct lmcs_reading r = {.pool = pool,
                             .chain = chain,
                             .raw_bytes = chain->links[0].df.raw_bytes,
                             .tensor = *tensor,
                             .only_stored = true,
                             .stored_links = links};
    return read_all(&r, error);
}

struct lmcs_reader {
    struct lmcs_reading r;
    char *name;
};

enum lmcs_status lmcs_reader_open(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                  const struct lmcs_tensor *tensor, const struct lmcs_content *const *contents,
                                  struct lmcs_reader **reader, struct lmcs_error *error)
{
    struct lmcs_reader *made = calloc(1, sizeof *made);
    char *copy = strdup(tensor->name);
    if (made == NULL || copy == NULL) {
        free(made);
        free(copy);
        return lmcs_fail_memory(error);
    }
    made->name = copy;
    made->r = (struct lmcs_reading){
        .pool = pool, .chain = chain, .raw_bytes = chain->links[0].df.raw_bytes, .tensor = *tensor};
    made->r.tensor.name = copy;
    for (size_t i = 0; contents != NULL && i < LMC_MAX_BASES; i++)
        made->r.contents[i] = contents[i];
    pthread_mutex_init(&made->r.lock, NULL);
    enum lmcs_status status = lmcs_reading_open(&made->r, error);
    if (status == LMCS_OK)
        *reader = made;
    else
        lmcs_reader_close(made);
    return status;
}

void lmcs_reader_close(struct lmcs_reader *reader)
{
    if (reader == NULL)
        return;
    lmcs_reading_end(&reader->r);
    pthread_mutex_destroy(&reader->r.lock);
    free(reader->name);
    free(reader);
}

/* Describes the failure of a block. */
static enum lmcs_status end_block(const struct lmcs_reading *r, uint64_t block, enum lmcs_status status,
                                  const char *why, struct lmcs_error *error)
{
    if (status == LMCS_UNSUPPORTED && why != NULL)
        return lmcs_reading_fail_newer(r, why, error);
    if (status == LMCS_DAMAGED && why != NULL) {
        const struct lmcs_block_range range = {block, 1};
        char text[256];
        lmcs_describe_blocks(&range, 1, false, r->tensor.dtype, r->tensor.ndim, r->tensor.shape, text, sizeof text);
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: tensor \"%s\" is damaged: %s: %s", r->pool->path, r->tensor.name,
                         text, why);
    }
    return status;
}

enum lmcs_status lmcs_reader_block(struct lmcs_reader *reader, uint64_t block, void *to, struct lmcs_error *error)
{
    struct lmcs_reading *r = &reader->r;
    const char *why = NULL;
    struct lmcs_scratch *scratch = lmcs_scratch_get(r);
    if (scratch == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_reading_block(r, block, to, scratch, &why, error);
    lmcs_scratch_put(r, scratch);
    return end_block(r, block, status, why, error);
}

enum lmcs_status lmcs_reader_arrays(struct lmcs_reader *reader, uint64_t block, void *const *to,
                                    struct lmcs_error *error)
{
    struct lmcs_reading *r = &reader->r;
    const char *why = NULL;
    struct lmcs_scratch *scratch = lmcs_scratch_get(r);
    if (scratch == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_reading_arrays(r, block, to, scratch, &why, error);
    lmcs_scratch_put(r, scratch);
    return end_block(r, block, status, why, error);
}
