/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/headers.c - opens a content for reading: headers of frames and links, tables of raw payloads.
 *
 * A header must match its record: digest, sizes and the bases' digests.
 */
#include "payload/reading.h"

#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "base/names.h"

#define HEADER_AT_ONCE ((uint64_t)4 << 10) /* longest header of few blocks */

/* Reads and parses the header of link `i`. The caller compares it with the records. */
static enum lmcs_status read_header(struct lmcs_reading *r, size_t i, struct lmcs_error *error)
{
    struct lmcs_reading_link *link = &r->links[i];
    const struct lmcs_content *content = link->content;
    const char *why = "";
    uint64_t header_bytes = 0;
    uint64_t n = content->df.stored_bytes < HEADER_AT_ONCE ? content->df.stored_bytes : HEADER_AT_ONCE;
    link->header = malloc(n);
    if (link->header == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_reading_copy(r, link, 0, link->header, n, error);
    if (status == LMCS_DAMAGED && n > LMC_FRAME_PREFIX_BYTES) { /* the unreadable part may be after the header */
        n = LMC_FRAME_PREFIX_BYTES;
        status = lmcs_reading_copy(r, link, 0, link->header, n, error);
    }
    if (status != LMCS_OK)
        return status;
    enum lmc_status coded = lmc_frame_header_bytes(link->header, n, &header_bytes, &why);
    uint64_t most = 65536 + 128 * lmc_block_count(content->df.raw_bytes);
    if (coded == LMC_OK && (header_bytes > content->df.stored_bytes || header_bytes > most))
        return lmcs_reading_fail(r, "its frame's header is impossibly long", error);
    if (coded == LMC_OK && header_bytes > n) {
        unsigned char *whole = realloc(link->header, header_bytes);
        if (whole == NULL)
            return lmcs_fail_memory(error);
        link->header = whole;
        status = lmcs_reading_copy(r, link, n, whole + n, header_bytes - n, error);
        if (status != LMCS_OK)
            return status;
    }
    if (coded == LMC_OK)
        coded = lmc_frame_parse(link->header, header_bytes, &link->frame, &why);
    if (coded == LMC_UNSUPPORTED)
        return lmcs_reading_fail_newer(r, why, error);
    if (coded != LMC_OK)
        return lmcs_reading_fail(r, why, error);
    const struct lmc_frame *frame = &link->frame;
    if (frame->raw_bytes != content->df.raw_bytes || frame->frame_bytes != content->df.stored_bytes ||
        frame->base_count != content->df.base_count ||
        (frame->predictor != 0) != (content->df.payload == LMCS_PAYLOAD_LINK))
        return lmcs_reading_fail(r, "its frame is not the one that its record describes", error);
    return LMCS_OK;
}

static enum lmcs_status open_frame(struct lmcs_reading *r, size_t i, struct lmcs_error *error)
{
    const struct lmcs_content *content = r->links[i].content;
    const struct lmc_frame *frame = &r->links[i].frame;
    struct lmc_hash digest;
    enum lmcs_status status = read_header(r, i, error);
    if (status != LMCS_OK)
        return status;
    if (frame->output_count != 1)
        return lmcs_reading_fail(r, "its frame is not the one that its record describes", error);
    if (lmc_frame_digest(frame, r->tensor.dtype, r->tensor.ndim, r->tensor.shape, &digest) != LMC_OK ||
        digest.low != content->df.digest_low || digest.high != content->df.digest_high)
        return lmcs_reading_fail(r, "its frame's digest is not the one in its record", error);
    if (frame->base_count == 1) {
        const struct lmcs_content *base = r->links[i + 1].content;
        if (frame->base_digest[0].low != base->df.digest_low || frame->base_digest[0].high != base->df.digest_high)
            return lmcs_reading_fail(r, "its frame was coded against another base", error);
    }
    return LMCS_OK;
}

bool lmcs_link_digest(const struct lmc_frame *frame, uint32_t ndim, const uint64_t *shape, struct lmc_hash *digest)
{
    struct lmc_hash all[2 * LMC_MAX_BASES];
    uint32_t n = frame->base_count;
    for (uint32_t i = 0; i < n; i++) {
        if (lmc_link_digest(frame, i, ndim, shape, &all[i]) != LMC_OK)
            return false;
        all[n + i] = frame->base_digest[i];
    }
    *digest = lmc_hash128(all, 2 * n * sizeof all[0]);
    return true;
}

static bool is_digest_of(const struct lmc_hash *digest, const struct lmcs_content *content)
{
    return digest->low == content->df.digest_low && digest->high == content->df.digest_high;
}

/* Whether link `i` leads from the link before, or from the line's first arrays. */
static bool leads_from(const struct lmcs_reading *r, size_t i)
{
    const struct lmc_frame *frame = &r->links[i].frame;
    bool oldest = i + 1 == r->newest + r->chain->line, sound = true;
    for (uint32_t k = 0; k < r->arrays && sound; k++) {
        struct lmc_hash digest;
        sound = oldest
                    ? is_digest_of(&frame->base_digest[k], &r->chain->links[i + 1 + k])
                    : lmc_link_digest(&r->links[i + 1].frame, k, r->tensor.ndim, r->tensor.shape, &digest) == LMC_OK &&
                          digest.low == frame->base_digest[k].low && digest.high == frame->base_digest[k].high;
    }
    return sound;
}

static enum lmcs_status open_one_link(struct lmcs_reading *r, size_t i, struct lmcs_error *error)
{
    const struct lmc_frame *frame = &r->links[i].frame;
    struct lmc_hash digest;
    enum lmcs_status status = read_header(r, i, error);
    if (status == LMCS_OK && (frame->output_count != r->arrays || frame->base_count != r->arrays ||
                              !lmcs_link_digest(frame, r->tensor.ndim, r->tensor.shape, &digest) ||
                              !is_digest_of(&digest, r->links[i].content)))
        return lmcs_reading_fail(r, "a link is not the one that its record describes", error);
    return status;
}

/* Whether the content stored as array `i` is that output of the newest link. */
static bool is_led_to(const struct lmcs_reading *r, size_t i)
{
    struct lmc_hash digest;
    return i < r->arrays && r->tensor.dtype == LMC_F32 &&
           lmc_link_digest(&r->links[r->newest].frame, (uint32_t)i, r->tensor.ndim, r->tensor.shape, &digest) ==
               LMC_OK &&
           is_digest_of(&digest, r->contents[i]);
}

static enum lmcs_status open_line(struct lmcs_reading *r, struct lmcs_error *error)
{
    const struct lmcs_content *top = &r->chain->links[0];
    enum lmcs_status status = LMCS_OK;
    size_t end = r->newest + r->chain->line;
    for (size_t i = r->newest; status == LMCS_OK && i < end; i++)
        status = open_one_link(r, i, error);
    for (size_t i = r->newest; status == LMCS_OK && i < end; i++)
        if (!leads_from(r, i))
            return lmcs_reading_fail(r, "a link leads from another state than the one before it", error);
    if (top->df.payload == LMCS_PAYLOAD_LINKED && top->df.output < LMC_MAX_BASES)
        r->contents[top->df.output] = top;
    for (size_t i = 0; status == LMCS_OK && i < LMC_MAX_BASES; i++)
        if (r->contents[i] != NULL && !is_led_to(r, i))
            return lmcs_reading_fail(r, "its link's digest is not the one in its record", error);
    return status;
}

/* Reads the block hashes of a raw payload and checks them by the digest. */
static enum lmcs_status open_raw(struct lmcs_reading *r, size_t i, struct lmcs_error *error)
{
    struct lmcs_reading_link *link = &r->links[i];
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
    struct lmc_hash digest =
        lmc_digest(r->tensor.dtype, r->tensor.ndim, r->tensor.shape, (const struct lmc_hash *)link->header, blocks);
    if (digest.low != content->df.digest_low || digest.high != content->df.digest_high)
        return lmcs_reading_fail(r, "the checksums of its blocks are not what was written", error);
    return LMCS_OK;
}

static enum lmcs_status check_empty(const struct lmcs_reading *r, struct lmcs_error *error)
{
    struct lmc_hash digest = lmc_digest(r->tensor.dtype, r->tensor.ndim, r->tensor.shape, NULL, 0);
    const struct lmcs_content_df *df = &r->chain->links[0].df;
    return digest.low == df->digest_low && digest.high == df->digest_high
               ? LMCS_OK
               : lmcs_reading_fail(r, "its digest is not what was written", error);
}

enum lmcs_status lmcs_reading_open(struct lmcs_reading *r, struct lmcs_error *error)
{
    const struct lmcs_chain *chain = r->chain;
    uint64_t expected;
    if (!lmcs_shape_bytes(r->tensor.dtype, r->tensor.ndim, r->tensor.shape, &expected) || expected != r->raw_bytes)
        return lmcs_reading_fail(r, "its size is not that of its shape", error);
    if (r->raw_bytes == 0)
        return check_empty(r, error);
    enum lmcs_status status = LMCS_OK;
    r->in_place = lmcs_guard_holds();
    for (size_t i = 0; i < chain->length; i++)
        r->links[i].content = &chain->links[i];
    if (chain->line > 0) {
        r->newest = chain->links[0].df.payload == LMCS_PAYLOAD_LINK ? 0 : 1;
        r->arrays = chain->length - chain->line - r->newest;
        status = open_line(r, error);
    }
    for (size_t i = r->newest + chain->line; status == LMCS_OK && i < chain->length; i++)
        status = chain->links[i].df.payload == LMCS_PAYLOAD_RAW ? open_raw(r, i, error) : open_frame(r, i, error);
    return status;
}

enum lmcs_status lmcs_link_check(struct lmcs_pool *pool, const struct lmcs_content *link,
                                 const struct lmcs_content *content, const struct lmcs_tensor *tensor,
                                 struct lmcs_error *error)
{
    struct lmcs_chain *chain = calloc(1, sizeof *chain);
    uint64_t expected;
    if (chain == NULL)
        return lmcs_fail_memory(error);
    chain->length = chain->line = 1;
    chain->links[0] = *link;
    struct lmcs_reading r = {.pool = pool,
                             .chain = chain,
                             .arrays = link->df.base_count,
                             .raw_bytes = link->df.raw_bytes,
                             .tensor = *tensor};
    r.links[0].content = &chain->links[0];
    enum lmcs_status status = LMCS_OK;
    if (!lmcs_shape_bytes(tensor->dtype, tensor->ndim, tensor->shape, &expected) || expected != r.raw_bytes ||
        content->df.raw_bytes != r.raw_bytes)
        status = lmcs_reading_fail(&r, "its size is not that of its shape", error);
    else
        status = open_one_link(&r, 0, error);
    if (content->df.output < LMC_MAX_BASES)
        r.contents[content->df.output] = content;
    if (status == LMCS_OK && !is_led_to(&r, content->df.output))
        status = lmcs_reading_fail(&r, "its link's digest is not the one in its record", error);
    lmcs_reading_end(&r);
    free(chain);
    return status;
}
