/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/bases.c - provides bases in the pool for a restored content.
 *
 * A delta can't rest on a linked content or on a chain of full length; a link needs all outputs of another link, in
 * order, or arrays that rest on nothing. An unsuitable base gets a raw copy, on which anything can rest. No snapshot
 * contains the copy, so the compactor removes it later. A known content, whose form the archive does not have, may be
 * suitable for the first delta or link on it, but not for all that follow: then the next attempt copies it.
 */
#include "transfer/bases.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "payload/layout.h"
#include "payload/read.h"

enum lmcs_status lmcs_stage_room(struct lmcs_stage *stage, struct lmcs_content *content, uint64_t bytes,
                                 struct lmcs_error *error)
{
    struct lmcs_region *region = content->df.payload == LMCS_PAYLOAD_RAW ? &stage->raw : &stage->coded;
    enum lmcs_status status = lmcs_payload_take(region, bytes, content, error);
    if (status == LMCS_FULL && lmcs_pool_make_room(stage->pool, NULL))
        status = lmcs_payload_take(region, bytes, content, error);
    return status;
}

/* The bases of one content as the pool stores them; id 0: this restore writes the base. */
struct ground {
    struct lmcs_content bases[LMC_MAX_BASES];
    uint32_t depths[LMC_MAX_BASES]; /* deltas to undo */
    struct lmcs_content link;       /* leads to the first base; id 0: none */
    size_t count;
};

/* Adds a base and, from the first one, the link that leads to it. */
static enum lmcs_status add_ground(struct lmcs_txn *txn, struct ground *ground, const struct lmcs_content *base,
                                   struct lmcs_error *error)
{
    size_t i = ground->count++;
    enum lmcs_status status = LMCS_OK;
    ground->bases[i] = *base;
    ground->depths[i] = 0;
    if (base->df.payload == LMCS_PAYLOAD_FRAME)
        status = lmcs_content_depth(txn, base, &ground->depths[i], error);
    if (status == LMCS_OK && i == 0 && base->link != 0)
        status = lmcs_content_get(txn, base->link, &ground->link, error);
    return status;
}

/* Whether the bases are all outputs of one link whose line may become longer. */
static bool goes_on(const struct ground *ground)
{
    bool all =
        ground->link.id != 0 && ground->link.df.base_count == ground->count && ground->link.df.place < LMCS_LINK_BOUND;
    for (size_t i = 0; i < ground->count; i++)
        all = all && ground->bases[i].link == ground->link.id && ground->bases[i].df.output == i;
    return all;
}

/* Whether base i may begin a line: it rests on nothing and is none of the bases before it. */
static bool may_begin(const struct ground *ground, size_t i)
{
    const struct lmcs_content *base = &ground->bases[i];
    bool other = true;
    for (size_t k = 0; k < i; k++)
        other = other && (base->id == 0 || base->id != ground->bases[k].id);
    return other && base->link == 0 && base->df.base_count == 0 && base->df.payload < LMCS_PAYLOAD_LINK;
}

static bool may_bear_delta(const struct ground *ground)
{
    return ground->bases[0].link == 0 && ground->bases[0].df.payload < LMCS_PAYLOAD_LINK &&
           ground->depths[0] < LMCS_CHAIN_BOUND;
}

static enum lmcs_status write_blocks(struct lmcs_stage *stage, struct lmcs_reader *reader,
                                     const struct lmcs_content *copy, struct lmcs_error *error)
{
    uint64_t raw_bytes = copy->df.raw_bytes, blocks = lmc_block_count(raw_bytes);
    struct lmcs_heap *heap = stage->pool->heap;
    unsigned char *block = aligned_alloc(64, LMC_BLOCK_BYTES);
    struct lmc_hash *hashes = calloc(blocks + 1, sizeof *hashes);
    enum lmcs_status status = block == NULL || hashes == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (uint64_t i = 0; status == LMCS_OK && i < blocks; i++) {
        uint64_t at = i * LMC_BLOCK_BYTES, left = raw_bytes - at, n = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
        status = lmcs_reader_block(reader, i, block, error);
        if (status == LMCS_OK)
            status = lmcs_payload_write(heap, copy, at, block, n, error);
        hashes[i] = lmc_hash128(block, n);
    }
    if (status == LMCS_OK)
        status = lmcs_raw_write_table(heap, copy, hashes, error);
    free(hashes);
    free(block);
    return status;
}

static enum lmcs_status fill_copy(struct lmcs_stage *stage, uint64_t id, const struct lmcs_tensor *tensor,
                                  const struct lmcs_content *copy, struct lmcs_error *error)
{
    struct lmcs_chain chain;
    struct lmcs_reader *reader = NULL;
    enum lmcs_status status = lmcs_chain_hold(stage->pool, id, &chain, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_reader_open(stage->pool, &chain, tensor, NULL, &reader, error);
    if (status == LMCS_OK)
        status = write_blocks(stage, reader, copy, error);
    lmcs_reader_close(reader);
    lmcs_chain_unpin(stage->pool, &chain);
    return status;
}

/* Whether the pool no longer contains the content. */
static bool has_gone(struct lmcs_stage *stage, uint64_t id)
{
    struct lmcs_txn txn;
    struct lmcs_content content;
    bool found = true;
    if (lmcs_txn_read(stage->pool, &txn, NULL) != LMCS_OK)
        return false;
    bool known = lmcs_content_find(&txn, id, &content, &found, NULL) == LMCS_OK;
    lmcs_txn_end(&txn);
    return known && !found;
}

static enum lmcs_status add_copy(struct lmcs_stage *stage, size_t index, struct lmcs_error *error)
{
    const struct lmcs_archive_content *from = &stage->reader->contents[index];
    const struct lmcs_archive_identity *identity = stage->reader->identities[from->identity];
    if (!lmcs_grow(&stage->pending, &stage->pending_capacity, stage->pending_count, sizeof *stage->pending))
        return lmcs_fail_memory(error);
    struct lmcs_stage_pending *pending = &stage->pending[stage->pending_count];
    *pending = (struct lmcs_stage_pending){.index = index, .is_copy = true};
    pending->content.df = (struct lmcs_content_df){.digest_low = from->digest.low,
                                                   .digest_high = from->digest.high,
                                                   .raw_bytes = identity->raw_bytes,
                                                   .payload = LMCS_PAYLOAD_RAW};
    uint64_t bytes = lmcs_raw_stored_bytes(identity->raw_bytes);
    enum lmcs_status status = lmcs_stage_room(stage, &pending->content, bytes, error);
    if (status == LMCS_OK && bytes > 0)
        status = fill_copy(stage, from->pool_id, &identity->tensor, &pending->content, error);
    if (status == LMCS_DAMAGED && has_gone(stage, from->pool_id))
        status = lmcs_stage_fail_overtaken(stage, from, error);
    if (status != LMCS_OK)
        return status;
    stage->pending_count++;
    stage->pending_bytes += bytes;
    return LMCS_OK;
}

/* Adds base `id` of the archive to `ground` as the pool stores it now. *there false: the pool lacks it. */
static enum lmcs_status look_at(struct lmcs_stage *stage, struct lmcs_txn *txn, uint32_t id, struct ground *ground,
                                bool *there, struct lmcs_error *error)
{
    const struct lmcs_archive_content *base = &stage->reader->contents[id - 1];
    struct lmcs_content content = {.id = 0};
    enum lmcs_status status = LMCS_OK;
    if (base->is_found)
        status = lmcs_content_find(txn, base->pool_id, &content, there, error);
    else if (base->payload == LMCS_PAYLOAD_LINKED) { /* an output of a found link, like other bases */
        content.link = stage->reader->contents[base->bases[0] - 1].pool_id;
        content.df.payload = LMCS_PAYLOAD_LINKED;
        content.df.output = base->output;
    }
    return status == LMCS_OK && *there ? add_ground(txn, ground, &content, error) : status;
}

enum lmcs_status lmcs_stage_bases(struct lmcs_stage *stage, size_t index, size_t *instead, struct lmcs_error *error)
{
    const struct lmcs_archive_content *content = &stage->reader->contents[index];
    struct ground ground = {.count = 0};
    struct lmcs_txn txn;
    bool there = true, found = false, copies = false;
    memset(instead, 0, LMC_MAX_BASES * sizeof *instead);
    for (size_t i = 0; i < content->base_count; i++) {
        found = found || stage->reader->contents[content->bases[i] - 1].is_found;
        copies = copies || (stage->copies_known && stage->reader->contents[content->bases[i] - 1].is_known);
    }
    /* bases that this restore wrote are suitable */
    if (!found || content->payload == LMCS_PAYLOAD_LINKED)
        return LMCS_OK;
    enum lmcs_status status = lmcs_txn_read(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && there && i < content->base_count; i++)
        status = look_at(stage, &txn, content->bases[i], &ground, &there, error);
    lmcs_txn_end(&txn);
    bool is_link = content->payload == LMCS_PAYLOAD_LINK;
    if (status != LMCS_OK || !there || (is_link && !copies && goes_on(&ground))) /* missing bases are reported later */
        return status;
    for (size_t i = 0; status == LMCS_OK && i < ground.count; i++) {
        if (ground.bases[i].id == 0 || may_begin(&ground, i) || (!is_link && !copies && may_bear_delta(&ground)))
            continue;
        status = add_copy(stage, content->bases[i] - 1, error);
        instead[i] = stage->pending_count;
    }
    return status;
}

enum lmcs_status lmcs_stage_fail_overtaken(struct lmcs_stage *stage, const struct lmcs_archive_content *content,
                                           struct lmcs_error *error)
{
    stage->is_overtaken = true;
    return lmcs_fail(error, LMCS_NOT_FOUND, 0,
                     "%s: a content of tensor \"%.64s\" that the archive needs was removed from the pool or replaced "
                     "while the archive was read: restore again",
                     stage->pool->path, stage->reader->identities[content->identity]->tensor.name);
}

/* A base that this restore wrote bears no more. */
static enum lmcs_status fail_too_long(struct lmcs_stage *stage, const struct lmcs_archive_content *content,
                                      struct lmcs_error *error)
{
    stage->is_too_long = true;
    return lmcs_fail(error, LMCS_NOT_FOUND, 0,
                     "%s: contents of tensor \"%.64s\" would rest on too many others, since those of an older archive "
                     "have become deltas or links in the pool: restore the archive from a file, not from a pipe",
                     stage->pool->path, stage->reader->identities[content->identity]->tensor.name);
}

/* Sets the link of a content that a link stores. */
static enum lmcs_status tie_linked(struct lmcs_stage *stage, struct lmcs_txn *txn,
                                   const struct lmcs_archive_content *from, struct lmcs_content *content,
                                   struct lmcs_error *error)
{
    const struct lmcs_archive_content *link = &stage->reader->contents[from->bases[0] - 1];
    struct lmcs_content there;
    bool found;
    enum lmcs_status status = lmcs_content_find(txn, link->pool_id, &there, &found, error);
    if (status != LMCS_OK)
        return status;
    if (!found || there.df.payload != LMCS_PAYLOAD_LINK || there.df.base_count != link->base_count ||
        there.df.raw_bytes != content->df.raw_bytes)
        return lmcs_stage_fail_overtaken(stage, link, error);
    content->link = there.id;
    content->df.output = from->output;
    return LMCS_OK;
}

enum lmcs_status lmcs_stage_tie(struct lmcs_stage *stage, struct lmcs_txn *txn, struct lmcs_stage_pending *pending,
                                struct lmcs_error *error)
{
    const struct lmcs_archive_content *from = &stage->reader->contents[pending->index];
    struct lmcs_content *content = &pending->content, base;
    struct ground ground = {.count = 0};
    enum lmcs_status status = LMCS_OK;
    bool found = true, fits = true;
    content->df.base_count = 0;
    if (pending->is_copy || from->base_count == 0)
        return LMCS_OK;
    if (from->payload == LMCS_PAYLOAD_LINKED)
        return tie_linked(stage, txn, from, content, error);
    for (size_t i = 0; status == LMCS_OK && found && i < from->base_count; i++) {
        size_t copy = pending->instead[i];
        content->bases[i] =
            copy != 0 ? stage->pending[copy - 1].content.id : stage->reader->contents[from->bases[i] - 1].pool_id;
        status = lmcs_content_find(txn, content->bases[i], &base, &found, error);
        if (status == LMCS_OK && found)
            status = add_ground(txn, &ground, &base, error);
    }
    if (status != LMCS_OK)
        return status;
    content->df.base_count = from->base_count;
    if (from->payload == LMCS_PAYLOAD_LINK) {
        bool on = found && goes_on(&ground);
        content->df.place = on ? ground.link.df.place + 1 : 1;
        for (size_t i = 0; found && !on && i < ground.count; i++)
            fits = fits && may_begin(&ground, i);
    } else {
        fits = found && may_bear_delta(&ground);
    }
    if (found && fits)
        return LMCS_OK;
    bool is_own = found && pending->instead[0] == 0 && !stage->reader->contents[from->bases[0] - 1].is_found;
    return is_own ? fail_too_long(stage, from, error) : lmcs_stage_fail_overtaken(stage, from, error);
}
