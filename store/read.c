/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * read.c - the bytes of a content, however it is stored.
 *
 * A chain is undone block by block: a block of the last link (raw, or a keyframe) is decoded, then each delta above
 * it turns it into its own, in two small buffers that change roles; only the topmost writes to the caller's memory.
 * Blocks are independent, so threads share them. Nothing is believed before its checksum: the digest in a content's
 * record vouches for the hashes of its blocks, and those for the bytes. Of a chain, the topmost block's checksum
 * vouches for all below it; where it does not match, the chain is undone again with every link's own, which names the
 * culprit.
 */
#include "read.h"

#include <stdlib.h>
#include <string.h>

#include "care.h"

struct link {
    const struct lmcs_content *content;
    unsigned char *header; /* of a frame; or the hashes of a raw payload with more than one block */
    struct lmc_frame frame;
};

struct scratch {
    struct scratch *next;
    unsigned char *coded;
    unsigned char *blocks[2];
};

struct reading {
    struct lmcs_pool *pool;
    const struct lmcs_chain *chain;
    struct link links[LMCS_CHAIN_BOUND + 1];
    uint64_t raw_bytes;
    uint32_t dtype, ndim;
    const uint64_t *shape;
    unsigned char *buffer;
    pthread_mutex_t lock; /* guards what follows */
    struct scratch *free;
    bool failed;
    bool go_on;          /* to the end, telling of each damage */
    unsigned char *lost; /* 1 for each damaged block, when nobody is told of each; NULL: none yet */
    const struct lmcs_bad_range *bad;
    struct lmcs_error error;
};

/* ---- Chains ---- */

enum lmcs_status lmcs_chain_load(struct lmcs_txn *txn, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error)
{
    chain->serial = false;
    for (chain->length = 0;; content = chain->links[chain->length - 1].bases[0]) {
        if (chain->length > LMCS_CHAIN_BOUND)
            return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a chain of deltas is longer than %u",
                             txn->pool->path, LMCS_CHAIN_BOUND);
        struct lmcs_content *link = &chain->links[chain->length++];
        enum lmcs_status status = lmcs_content_get(txn, content, link, error);
        if (status != LMCS_OK)
            return status;
        if (link->df.base_count > 1)
            return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                             "%s: content %llu rests on several bases: use a newer "
                             "lmc-store",
                             txn->pool->path, (unsigned long long)content);
        if (link->df.raw_bytes != chain->links[0].df.raw_bytes)
            return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a base has another size than its delta",
                             txn->pool->path);
        if (link->df.base_count == 0)
            return LMCS_OK;
    }
}

enum lmcs_status lmcs_chain_pin(struct lmcs_pool *pool, const struct lmcs_chain *chain, struct lmcs_error *error)
{
    for (size_t i = 0; i < chain->length; i++) {
        enum lmcs_status status = lmcs_payload_pin(pool->lease, &chain->links[i], error);
        if (status != LMCS_OK) {
            while (i-- > 0)
                lmcs_payload_unpin(pool->lease, &chain->links[i]);
            return status;
        }
    }
    return LMCS_OK;
}

void lmcs_chain_unpin(struct lmcs_pool *pool, const struct lmcs_chain *chain)
{
    for (size_t i = 0; i < chain->length; i++)
        lmcs_payload_unpin(pool->lease, &chain->links[i]);
}

/* ---- Headers ---- */

static enum lmcs_status fail_link(const struct reading *r, const char *name, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: tensor \"%s\" is damaged: %s", r->pool->path, name, why);
}

static enum lmcs_status open_frame(struct reading *r, size_t i, const char *name, struct lmcs_error *error)
{
    struct link *link = &r->links[i];
    const struct lmcs_content *content = link->content;
    const struct lmcs_media *media = r->pool->media;
    unsigned char prefix[LMC_FRAME_PREFIX_BYTES];
    const char *why = "";
    uint64_t header_bytes = 0;
    uint64_t n = content->df.stored_bytes < sizeof prefix ? content->df.stored_bytes : sizeof prefix;
    enum lmcs_status status = lmcs_payload_read(media, content, 0, prefix, n, error);
    if (status != LMCS_OK)
        return status;
    enum lmc_status coded = lmc_frame_header_bytes(prefix, n, &header_bytes, &why);
    uint64_t most = 65536 + 64 * lmc_block_count(content->df.raw_bytes);
    if (coded == LMC_OK && (header_bytes > content->df.stored_bytes || header_bytes > most))
        return fail_link(r, name, "its frame's header is impossibly long", error);
    if (coded == LMC_OK) {
        link->header = malloc(header_bytes);
        if (link->header == NULL)
            return lmcs_fail_memory(error);
        status = lmcs_payload_read(media, content, 0, link->header, header_bytes, error);
        if (status != LMCS_OK)
            return status;
        coded = lmc_frame_parse(link->header, header_bytes, &link->frame, &why);
    }
    if (coded == LMC_UNSUPPORTED)
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0, "%s: tensor \"%s\": %s", r->pool->path, name, why);
    if (coded != LMC_OK)
        return fail_link(r, name, why, error);
    const struct lmc_frame *frame = &link->frame;
    if (frame->raw_bytes != content->df.raw_bytes || frame->frame_bytes != content->df.stored_bytes ||
        frame->base_count != content->df.base_count || frame->output_count != 1)
        return fail_link(r, name, "its frame is not the one that its record describes", error);
    struct lmc_hash digest;
    if (lmc_frame_digest(frame, r->dtype, r->ndim, r->shape, &digest) != LMC_OK ||
        digest.low != content->df.digest_low || digest.high != content->df.digest_high)
        return fail_link(r, name, "its frame's digest is not the one in its record", error);
    if (frame->base_count == 1) {
        const struct lmcs_content *base = r->links[i + 1].content;
        if (frame->base_digest[0].low != base->df.digest_low || frame->base_digest[0].high != base->df.digest_high)
            return fail_link(r, name, "its frame was coded against another base", error);
    }
    return LMCS_OK;
}

/* Reads the hashes of a raw payload with several blocks and checks them by the digest. */
static enum lmcs_status open_raw(struct reading *r, size_t i, const char *name, struct lmcs_error *error)
{
    struct link *link = &r->links[i];
    const struct lmcs_content *content = link->content;
    uint64_t blocks = lmc_block_count(content->df.raw_bytes);
    if (blocks <= 1)
        return LMCS_OK;
    link->header = malloc(blocks * sizeof(struct lmc_hash));
    if (link->header == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_payload_read(r->pool->media, content, lmcs_raw_table_at(content->df.raw_bytes),
                                                link->header, blocks * sizeof(struct lmc_hash), error);
    if (status != LMCS_OK)
        return status;
    struct lmc_hash digest = lmc_digest(r->dtype, r->ndim, r->shape, (const struct lmc_hash *)link->header, blocks);
    if (digest.low != content->df.digest_low || digest.high != content->df.digest_high)
        return fail_link(r, name, "the checksums of its blocks are not what was written", error);
    return LMCS_OK;
}

/* ---- Blocks ---- */

static void free_scratch(struct scratch *scratch)
{
    if (scratch == NULL)
        return;
    free(scratch->coded);
    free(scratch->blocks[0]);
    free(scratch->blocks[1]);
    free(scratch);
}

static struct scratch *get_scratch(struct reading *r)
{
    pthread_mutex_lock(&r->lock);
    struct scratch *scratch = r->free;
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
    for (int i = 0; i < 2; i++)
        scratch->blocks[i] = aligned_alloc(64, (block + 63) & ~(size_t)63);
    if (scratch->coded == NULL || scratch->blocks[0] == NULL || scratch->blocks[1] == NULL) {
        free_scratch(scratch);
        return NULL;
    }
    return scratch;
}

static void put_scratch(struct reading *r, struct scratch *scratch)
{
    pthread_mutex_lock(&r->lock);
    scratch->next = r->free;
    r->free = scratch;
    pthread_mutex_unlock(&r->lock);
}

static bool raw_block_is_right(const struct reading *r, const struct link *link, uint64_t block, const void *data,
                               uint64_t bytes)
{
    struct lmc_hash hash = lmc_hash128(data, bytes), expected;
    if (link->header != NULL) {
        memcpy(&expected, link->header + block * sizeof expected, sizeof expected);
        return hash.low == expected.low && hash.high == expected.high;
    }
    struct lmc_hash digest = lmc_digest(r->dtype, r->ndim, r->shape, &hash, 1);
    return digest.low == link->content->df.digest_low && digest.high == link->content->df.digest_high;
}

static enum lmcs_status read_raw_block(struct reading *r, const struct link *link, uint64_t block, bool checked,
                                       void *to, uint64_t bytes, const char **why, struct lmcs_error *error)
{
    enum lmcs_status status =
        lmcs_payload_read(r->pool->media, link->content, block * LMC_BLOCK_BYTES, to, bytes, error);
    if (status == LMCS_OK && checked && !raw_block_is_right(r, link, block, to, bytes)) {
        *why = "its bytes are not what was written (checksum)";
        return LMCS_DAMAGED;
    }
    return status;
}

static enum lmcs_status decode_block(struct reading *r, const struct link *link, uint64_t block, bool checked,
                                     const void *base, void *to, uint64_t bytes, struct scratch *scratch,
                                     const char **why, struct lmcs_error *error)
{
    uint64_t at;
    struct lmc_block coded = lmc_frame_block(&link->frame, block, &at);
    if (coded.coded_bytes > lmc_block_bound(bytes)) {
        *why = "a coded block is impossibly long";
        return LMCS_DAMAGED;
    }
    enum lmcs_status status =
        lmcs_payload_read(r->pool->media, link->content, at, scratch->coded, coded.coded_bytes, error);
    if (status != LMCS_OK)
        return status;
    const void *bases[1] = {base};
    enum lmc_status result = (checked ? lmc_decode_block : lmc_decode_base)(
        &link->frame, block, scratch->coded, coded.coded_bytes, base != NULL ? bases : NULL, to, bytes, why);
    if (result == LMC_NO_MEMORY)
        return lmcs_fail_memory(error);
    return result == LMC_OK ? LMCS_OK : LMCS_DAMAGED;
}

/* Undoes the chain for one block; `checked`: with every link's checksums, not the topmost one's alone. */
static enum lmcs_status undo_links(struct reading *r, uint64_t block, bool checked, void *target,
                                   struct scratch *scratch, const char **why, struct lmcs_error *error)
{
    uint64_t at = block * LMC_BLOCK_BYTES, left = r->raw_bytes - at;
    uint64_t bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    const void *base = NULL;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = r->chain->length; status == LMCS_OK && i-- > 0;) {
        const struct link *link = &r->links[i];
        void *to = i == 0 && target != NULL ? target : scratch->blocks[i & 1];
        status = link->content->df.payload == LMCS_PAYLOAD_RAW
                     ? read_raw_block(r, link, block, checked || i == 0, to, bytes, why, error)
                     : decode_block(r, link, block, checked || i == 0, base, to, bytes, scratch, why, error);
        base = to;
    }
    return status;
}

/* Notes a damaged block for the message at the end. False: without memory. */
static bool note_lost(struct reading *r, uint64_t block)
{
    if (r->lost == NULL)
        r->lost = calloc(lmc_block_count(r->raw_bytes), 1);
    if (r->lost != NULL)
        r->lost[block] = 1;
    return r->lost != NULL;
}

/*
 * One block, into `target`; NULL: only verify it, and all that it rests on. On LMCS_DAMAGED *why may hold a reason;
 * else the error does.
 */
static enum lmcs_status undo_block(struct reading *r, uint64_t block, void *target, struct scratch *scratch,
                                   const char **why, struct lmcs_error *error)
{
    bool checked = target == NULL || r->chain->length == 1;
    enum lmcs_status status = undo_links(r, block, checked, target, scratch, why, error);
    if (status != LMCS_DAMAGED || checked)
        return status;
    *why = NULL;
    return undo_links(r, block, true, target, scratch, why, error);
}

/* Damage does not end it: who asked is told of all that is lost. */
static void note_failure(struct reading *r, uint64_t block, enum lmcs_status status, const char *why,
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

/* "rows 3 to 5 of 100 (elements 768 to 1535): " before the message. */
static void tell_lost(const struct reading *r, struct lmcs_error *error)
{
    enum { MOST_TOLD = 6 };
    struct lmcs_block_range ranges[MOST_TOLD];
    size_t count = 0;
    bool more = false;
    char text[512];
    for (uint64_t i = 0; i < lmc_block_count(r->raw_bytes); i++) {
        if (r->lost[i] == 0)
            continue;
        if (count > 0 && ranges[count - 1].first + ranges[count - 1].count == i)
            ranges[count - 1].count++;
        else if (count < MOST_TOLD)
            ranges[count++] = (struct lmcs_block_range){i, 1};
        else
            more = true;
        if (more)
            break;
    }
    lmcs_describe_blocks(ranges, count, more, r->dtype, r->ndim, r->shape, text, sizeof text);
    lmcs_error_prefix(error, "%s: ", text);
}

static void read_job(void *context, uint64_t block)
{
    struct reading *r = context;
    const char *why = NULL;
    struct lmcs_error error;
    pthread_mutex_lock(&r->lock);
    bool stop = r->failed && !r->go_on;
    pthread_mutex_unlock(&r->lock);
    if (stop)
        return;
    struct scratch *scratch = get_scratch(r);
    void *target = r->buffer != NULL ? r->buffer + block * LMC_BLOCK_BYTES : NULL;
    enum lmcs_status status =
        scratch == NULL ? lmcs_fail_memory(&error) : undo_block(r, block, target, scratch, &why, &error);
    if (status != LMCS_OK)
        note_failure(r, block, status, why, &error);
    if (scratch != NULL)
        put_scratch(r, scratch);
}

static enum lmcs_status check_empty(const struct reading *r, const char *name, struct lmcs_error *error)
{
    struct lmc_hash digest = lmc_digest(r->dtype, r->ndim, r->shape, NULL, 0);
    const struct lmcs_content_df *df = &r->chain->links[0].df;
    return digest.low == df->digest_low && digest.high == df->digest_high
               ? LMCS_OK
               : fail_link(r, name, "its digest is not what was written", error);
}

/* Reads and checks the headers of all links. */
static enum lmcs_status open_links(struct reading *r, const char *name, struct lmcs_error *error)
{
    const struct lmcs_chain *chain = r->chain;
    uint64_t expected;
    if (!lmcs_shape_bytes(r->dtype, r->ndim, r->shape, &expected) || expected != r->raw_bytes)
        return fail_link(r, name, "its size is not that of its shape", error);
    if (r->raw_bytes == 0)
        return check_empty(r, name, error);
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; i < chain->length; i++)
        r->links[i].content = &chain->links[i];
    for (size_t i = 0; status == LMCS_OK && i < chain->length; i++)
        status = chain->links[i].df.payload == LMCS_PAYLOAD_RAW ? open_raw(r, i, name, error)
                                                                : open_frame(r, i, name, error);
    return status;
}

static void end_reading(struct reading *r)
{
    for (struct scratch *s = r->free, *next; s != NULL; s = next) {
        next = s->next;
        free_scratch(s);
    }
    for (size_t i = 0; i < r->chain->length; i++)
        free(r->links[i].header);
    free(r->lost);
}

enum lmcs_status lmcs_chain_read(struct lmcs_pool *pool, const struct lmcs_chain *chain, const char *name,
                                 uint32_t dtype, uint32_t ndim, const uint64_t *shape, void *buffer,
                                 const struct lmcs_bad_range *bad, struct lmcs_error *error)
{
    struct reading r = {.pool = pool,
                        .chain = chain,
                        .raw_bytes = chain->links[0].df.raw_bytes,
                        .dtype = dtype,
                        .ndim = ndim,
                        .shape = shape,
                        .buffer = buffer,
                        .go_on = true,
                        .bad = bad};
    enum lmcs_status status = open_links(&r, name, error);
    if (status == LMCS_DAMAGED && bad != NULL)
        bad->call(bad->context, 0, r.raw_bytes, error != NULL ? error->message : "its header is damaged");
    if (status == LMCS_OK && r.raw_bytes > 0) {
        pthread_mutex_init(&r.lock, NULL);
        for (uint64_t i = 0; chain->serial && i < lmc_block_count(r.raw_bytes); i++)
            read_job(&r, i);
        if (!chain->serial)
            lmcs_workers_run(pool->workers, read_job, NULL, &r, lmc_block_count(r.raw_bytes));
        pthread_mutex_destroy(&r.lock);
        if (r.failed) {
            status = r.error.status;
            if (status == LMCS_DAMAGED && r.lost != NULL)
                tell_lost(&r, &r.error);
            if (status == LMCS_DAMAGED)
                lmcs_error_prefix(&r.error, "%s: tensor \"%s\" is damaged: ", pool->path, name);
            if (error != NULL)
                *error = r.error;
        }
    }
    end_reading(&r);
    return status;
}

/* ---- Block by block ---- */

struct lmcs_reader {
    struct reading r;
    char *name;
};

enum lmcs_status lmcs_reader_open(struct lmcs_pool *pool, const struct lmcs_chain *chain, const char *name,
                                  uint32_t dtype, uint32_t ndim, const uint64_t *shape, struct lmcs_reader **reader,
                                  struct lmcs_error *error)
{
    struct lmcs_reader *made = calloc(1, sizeof *made);
    char *copy = strdup(name);
    if (made == NULL || copy == NULL) {
        free(made);
        free(copy);
        return lmcs_fail_memory(error);
    }
    made->name = copy;
    made->r = (struct reading){.pool = pool,
                               .chain = chain,
                               .raw_bytes = chain->links[0].df.raw_bytes,
                               .dtype = dtype,
                               .ndim = ndim,
                               .shape = shape};
    pthread_mutex_init(&made->r.lock, NULL);
    enum lmcs_status status = open_links(&made->r, name, error);
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
    end_reading(&reader->r);
    pthread_mutex_destroy(&reader->r.lock);
    free(reader->name);
    free(reader);
}

enum lmcs_status lmcs_reader_block(struct lmcs_reader *reader, uint64_t block, void *to, struct lmcs_error *error)
{
    struct reading *r = &reader->r;
    const char *why = NULL;
    struct scratch *scratch = get_scratch(r);
    if (scratch == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = undo_block(r, block, to, scratch, &why, error);
    put_scratch(r, scratch);
    if (status == LMCS_DAMAGED && why != NULL) {
        const struct lmcs_block_range range = {block, 1};
        char text[256];
        lmcs_describe_blocks(&range, 1, false, r->dtype, r->ndim, r->shape, text, sizeof text);
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: tensor \"%s\" is damaged: %s: %s", r->pool->path, reader->name,
                         text, why);
    }
    return status;
}
