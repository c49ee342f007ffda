/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recode.c - giving a content another payload: encode aside, verify by decoding, switch.
 *
 * The raw bytes are encoded where they lie, through a mapping; a content or base that is itself coded is decoded into
 * memory first. Then the new payload is read back and decoded (coding.c). The frame's digest must be the content's:
 * bytes that rotted while they were raw are found here, and left alone.
 */
#include "recode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "care.h"
#include "coding.h"

#define KNOWN_NS ((uint64_t)60 * 1000000000) /* what was looked at longer ago may have changed */

/* ---- Begin and end ---- */

static bool rests_on(const struct lmcs_chain *chain, uint64_t content)
{
    for (size_t i = 0; i < chain->length; i++)
        if (chain->links[i].id == content)
            return true;
    return false;
}

/* What is lost is left alone until it is mended. As if it had gone, for it has been told. */
static enum lmcs_status check_lost(const struct lmcs_recode *recode, struct lmcs_txn *txn, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    bool lost = false;
    for (size_t i = 0; status == LMCS_OK && !lost && i < recode->chain.length; i++)
        status = lmcs_lost_any(txn, recode->chain.links[i].id, &lost, error);
    return status == LMCS_OK && lost
               ? lmcs_fail(error, LMCS_NOT_FOUND, 0, "content %llu, or what it rests on, is lost in part",
                           (unsigned long long)recode->chain.links[0].id)
               : status;
}

static enum lmcs_status load(struct lmcs_recode *recode, struct lmcs_txn *txn, uint64_t content, uint64_t base,
                             struct lmcs_error *error)
{
    struct lmcs_content found_content;
    bool found;
    enum lmcs_status status = lmcs_content_find(txn, content, &found_content, &found, error);
    if (status == LMCS_OK && !found)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "content %llu has gone", (unsigned long long)content);
    if (status == LMCS_OK)
        status = lmcs_chain_load(txn, content, &recode->chain, error);
    if (status == LMCS_OK && recode->chain_bound == 0 && recode->chain.line == 0)
        recode->chain_bound = (uint32_t)recode->chain.length - 1 + recode->chain.links[0].df.height;
    if (status == LMCS_OK)
        status = lmcs_identity_get(txn, recode->chain.links[0].df.identity, &recode->identity, error);
    if (status == LMCS_OK)
        status = check_lost(recode, txn, error);
    bool bears = false;
    if (status == LMCS_OK && base != 0)
        status = lmcs_content_bears_links(txn, &recode->chain.links[0], &bears, error);
    base = bears ? 0 : base;
    if (status == LMCS_OK && base != 0)
        status = lmcs_content_find(txn, base, &found_content, &found, error);
    if (status == LMCS_OK && base != 0 && found) { /* nothing may come to rest on what is lost */
        bool lost = false;
        status = lmcs_lost_any(txn, base, &lost, error);
        found = !lost;
    }
    if (status == LMCS_OK && base != 0 && found) {
        status = lmcs_chain_load(txn, base, &recode->base, error);
        const struct lmcs_content_df *df = &recode->chain.links[0].df;
        /* Coded alone, then, if the chain of those that rest on it would become too long. */
        recode->has_base = status == LMCS_OK && recode->base.links[0].link == 0 &&
                           recode->base.links[0].df.raw_bytes == df->raw_bytes &&
                           recode->base.length + df->height <= recode->chain_bound && !rests_on(&recode->base, content);
    }
    if (status == LMCS_OK)
        status = lmcs_chain_pin(recode->pool, &recode->chain, error);
    if (status == LMCS_OK && recode->has_base) {
        status = lmcs_chain_pin(recode->pool, &recode->base, error);
        if (status != LMCS_OK)
            lmcs_chain_unpin(recode->pool, &recode->chain);
    }
    return status;
}

enum lmcs_status lmcs_recode_begin(struct lmcs_recode *recode, struct lmcs_pool *pool, struct lmcs_region *region,
                                   uint64_t content, uint64_t base, bool serial, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    recode->pool = pool;
    recode->region = region;
    recode->serial = serial;
    recode->has_base = recode->worthwhile = recode->same_bytes = recode->line_is_damaged = false;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = load(recode, &txn, content, base, error);
    lmcs_txn_end(&txn);
    recode->chain.serial = recode->base.serial = serial;
    return status;
}

void lmcs_recode_alone(struct lmcs_recode *recode)
{
    if (recode->has_base)
        lmcs_chain_unpin(recode->pool, &recode->base);
    recode->has_base = false;
}

void lmcs_recode_end(struct lmcs_recode *recode)
{
    lmcs_chain_unpin(recode->pool, &recode->chain);
    if (recode->has_base)
        lmcs_chain_unpin(recode->pool, &recode->base);
}

/* ---- The decoded bytes of a chain, at an address ---- */

static enum lmcs_status stitch(struct lmcs_pool *pool, const struct lmcs_content *content, struct lmcs_bytes_at *at,
                               struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    uint64_t done = 0;
    at->map_bytes = (content->df.stored_bytes + LMCS_PAGE_BYTES - 1) & ~(size_t)(LMCS_PAGE_BYTES - 1);
    at->map = mmap(NULL, at->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at->map == MAP_FAILED) {
        at->map = NULL;
        return lmcs_fail_memory(error);
    }
    for (size_t i = 0; status == LMCS_OK && i < content->df.part_count; i++) {
        status = lmcs_media_map_shared(pool->media, content->parts[i].offset, content->parts[i].bytes,
                                       (char *)at->map + done, error);
        done += content->parts[i].bytes;
    }
    at->data = at->map;
    return status;
}

enum lmcs_status lmcs_bytes_map(struct lmcs_pool *pool, const struct lmcs_content *content, struct lmcs_bytes_at *at,
                                struct lmcs_error *error)
{
    *at = (struct lmcs_bytes_at){lmcs_payload_at(pool->media, content, 0, content->df.raw_bytes), NULL, 0};
    return at->data != NULL ? LMCS_OK : stitch(pool, content, at, error);
}

void lmcs_bytes_unmap(struct lmcs_bytes_at *at)
{
    if (at->map != NULL)
        munmap(at->map, at->map_bytes);
    at->map = NULL;
}

static enum lmcs_status get_bytes(struct lmcs_recode *recode, const struct lmcs_chain *chain, struct lmcs_bytes_at *at,
                                  struct lmcs_error *error)
{
    const struct lmcs_content *top = &chain->links[0];
    const struct lmcs_identity *identity = &recode->identity;
    *at = (struct lmcs_bytes_at){NULL, NULL, 0};
    if (top->df.payload == LMCS_PAYLOAD_RAW)
        return lmcs_bytes_map(recode->pool, top, at, error);
    at->map_bytes = top->df.raw_bytes;
    at->map = mmap(NULL, at->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at->map == MAP_FAILED) {
        at->map = NULL;
        return lmcs_fail_memory(error);
    }
    at->data = at->map;
    return lmcs_chain_read(recode->pool, chain, identity->name, identity->df.dtype, identity->df.ndim, identity->shape,
                           at->map, NULL, error);
}

/* ---- The new payload ---- */

static struct lmcs_coding coding_of(struct lmcs_recode *recode)
{
    struct lmcs_coding coding = {.pool = recode->pool,
                                 .region = recode->region,
                                 .serial = recode->serial,
                                 .raw_bytes = recode->chain.links[0].df.raw_bytes,
                                 .base_chain = &recode->base,
                                 .made = recode->chain.links[0]};
    lmcs_identity_tensor(&recode->identity, &coding.tensor);
    return coding;
}

static struct lmcs_known_line *known_line(const struct lmcs_recode *recode, uint64_t link)
{
    return recode->known != NULL ? &recode->known->lines[link % LMCS_LINES_KNOWN] : NULL;
}

/* Whether the line up to a link is known to be whole; *at_ns: since when. */
static bool is_known(const struct lmcs_recode *recode, uint64_t link, uint64_t now, uint64_t *at_ns)
{
    const struct lmcs_known_line *known = known_line(recode, link);
    if (known == NULL || known->link != link || known->at_ns < recode->known_since_ns || now - known->at_ns >= KNOWN_NS)
        return false;
    *at_ns = known->at_ns;
    return true;
}

/* How many of the newest links are not known to be whole; *at_ns: since when the others are. */
static size_t unknown_links(const struct lmcs_recode *recode, uint64_t *at_ns)
{
    const struct lmcs_chain *line = &recode->base;
    const uint64_t now = *at_ns = lmcs_now_ns();
    for (size_t i = 0; i < line->line; i++)
        if (is_known(recode, line->links[i].id, now, at_ns))
            return i;
    return line->line;
}

/* Whether the newest link of the line, which is pinned, leads to the content. */
static enum lmcs_status link_is_right(struct lmcs_recode *recode, struct lmcs_error *error)
{
    const struct lmcs_identity *identity = &recode->identity;
    return lmcs_link_check(recode->pool, &recode->base.links[0], &recode->made, identity->name, identity->df.dtype,
                           identity->df.ndim, identity->shape, error);
}

/* Whether each link of the line, which was decoded when it was made, is still what was written. Lets go of them. */
static enum lmcs_status line_is_whole(struct lmcs_recode *recode, bool *whole, struct lmcs_error *error)
{
    const struct lmcs_identity *identity = &recode->identity;
    const struct lmcs_content *link = &recode->base.links[0];
    uint64_t at_ns;
    const size_t count = unknown_links(recode, &at_ns);
    enum lmcs_status status = link_is_right(recode, error);
    recode->base.serial = recode->serial;
    if (status == LMCS_OK && count > 0)
        status = lmcs_line_check(recode->pool, &recode->base, count, identity->name, identity->df.dtype,
                                 identity->df.ndim, identity->shape, error);
    if (status == LMCS_OK && recode->known != NULL)
        *known_line(recode, link->id) = (struct lmcs_known_line){link->id, at_ns};
    lmcs_chain_unpin(recode->pool, &recode->base);
    *whole = status == LMCS_OK;
    recode->line_is_damaged = status == LMCS_DAMAGED || status == LMCS_IO;
    return recode->line_is_damaged || status == LMCS_UNSUPPORTED ? LMCS_OK : status;
}

/*
 * The other arrays of a step whose line has just been looked at need no more than their link's header, unless something
 * was found to be lost. False: it takes the whole line to tell.
 */
static bool is_right_by_known_line(struct lmcs_recode *recode, struct lmcs_txn *txn)
{
    struct lmcs_chain *line = &recode->base;
    uint64_t at_ns;
    if (txn->root.lost_contents > 0 || !is_known(recode, recode->made.link, lmcs_now_ns(), &at_ns))
        return false;
    line->length = line->line = 1;
    line->serial = line->is_new = false;
    if (lmcs_content_get(txn, recode->made.link, &line->links[0], NULL) != LMCS_OK ||
        line->links[0].df.payload != LMCS_PAYLOAD_LINK || lmcs_chain_pin(recode->pool, line, NULL) != LMCS_OK)
        return false;
    const bool right = link_is_right(recode, NULL) == LMCS_OK;
    lmcs_chain_unpin(recode->pool, line);
    return right;
}

enum lmcs_status lmcs_recode_linked(struct lmcs_recode *recode, bool *possible, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    const struct lmcs_content *top = &recode->chain.links[0];
    *possible = top->link != 0 && top->df.payload == LMCS_PAYLOAD_RAW;
    if (!*possible)
        return LMCS_OK;
    recode->made = *top;
    recode->made.df.payload = LMCS_PAYLOAD_LINKED;
    recode->made.df.part_count = 0;
    recode->made.df.stored_bytes = 0;
    recode->worthwhile = true;
    enum lmcs_status status = lmcs_txn_read(recode->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    if (is_right_by_known_line(recode, &txn)) {
        lmcs_txn_end(&txn);
        return LMCS_OK;
    }
    status = lmcs_chain_load(&txn, top->link, &recode->base, error);
    for (size_t i = 0; status == LMCS_OK && *possible && i < recode->base.length; i++) {
        bool lost = false;
        status = lmcs_lost_any(&txn, recode->base.links[i].id, &lost, error);
        *possible = !lost;
    }
    if (status == LMCS_OK && *possible)
        status = lmcs_chain_pin(recode->pool, &recode->base, error);
    lmcs_txn_end(&txn);
    return status == LMCS_OK && *possible ? line_is_whole(recode, possible, error) : status;
}

enum lmcs_status lmcs_recode_encode(struct lmcs_recode *recode, struct lmcs_error *error)
{
    struct lmcs_coding coding = coding_of(recode);
    struct lmcs_bytes_at data = {0}, base = {0};
    enum lmcs_status status = get_bytes(recode, &recode->chain, &data, error);
    if (status == LMCS_OK && recode->has_base)
        status = get_bytes(recode, &recode->base, &base, error);
    if (status == LMCS_OK) {
        coding.data = data.data;
        coding.base = recode->has_base ? base.data : NULL;
        status = lmcs_coding_run(&coding, error);
    }
    lmcs_bytes_unmap(&data);
    lmcs_bytes_unmap(&base);
    recode->made = coding.made;
    recode->worthwhile = coding.worthwhile;
    return status;
}

enum lmcs_status lmcs_recode_copy(struct lmcs_recode *recode, struct lmcs_error *error)
{
    const struct lmcs_content *from = &recode->chain.links[0];
    enum { PIECE = 1 << 20 };
    void *piece = malloc(PIECE);
    if (piece == NULL)
        return lmcs_fail_memory(error);
    recode->made = *from;
    recode->worthwhile = recode->same_bytes = true;
    enum lmcs_status status = lmcs_payload_take(recode->region, from->df.stored_bytes, &recode->made, error);
    for (uint64_t at = 0; status == LMCS_OK && at < from->df.stored_bytes; at += PIECE) {
        uint64_t n = from->df.stored_bytes - at < PIECE ? from->df.stored_bytes - at : PIECE;
        status = lmcs_payload_read(recode->pool->media, from, at, piece, n, error);
        if (status == LMCS_OK)
            status = lmcs_payload_write(recode->pool->heap, &recode->made, at, piece, n, error);
    }
    free(piece);
    if (status != LMCS_OK)
        return status;
    if (from->df.payload == LMCS_PAYLOAD_LINK) {
        lmcs_heap_drain(recode->pool->heap);
        recode->base = recode->chain;
        recode->base.links[0] = recode->made;
        recode->base.is_new = !lmcs_heap_is_persistent(recode->pool->heap);
        return lmcs_chain_read(recode->pool, &recode->base, recode->identity.name, recode->identity.df.dtype,
                               recode->identity.df.ndim, recode->identity.shape, NULL, NULL, error);
    }
    if (from->df.base_count > 0) { /* to verify, its base is wanted */
        recode->base.length = recode->chain.length - 1;
        recode->base.line = 0;
        memcpy(recode->base.links, recode->chain.links + 1, recode->base.length * sizeof recode->base.links[0]);
    }
    struct lmcs_coding coding = coding_of(recode);
    coding.made = recode->made;
    return lmcs_coding_verify(&coding, error);
}

/* ---- Switching ---- */

static bool same_payload(const struct lmcs_content *a, const struct lmcs_content *b)
{
    return a->df.part_count == b->df.part_count && a->df.payload == b->df.payload &&
           memcmp(a->parts, b->parts, a->df.part_count * sizeof a->parts[0]) == 0;
}

/*
 * Whether what was made can be put in place: whether its base is still there, the chain short enough, and nothing of
 * the chain rests on the content itself by now. (Of two names that swap their contents, each may be the other's base.)
 */
static enum lmcs_status base_is_right(struct lmcs_txn *txn, const struct lmcs_recode *recode,
                                      const struct lmcs_content *now, bool *right, struct lmcs_error *error)
{
    struct lmcs_content base;
    uint32_t depth = 0;
    uint64_t wanted = recode->made.df.base_count > 0 ? recode->made.bases[0] : 0;
    bool bears = false;
    *right = recode->made.df.payload != LMCS_PAYLOAD_LINKED || now->link == recode->made.link;
    if (!*right || wanted == 0 || wanted == (now->df.base_count > 0 ? now->bases[0] : 0))
        return LMCS_OK;
    enum lmcs_status status = lmcs_content_find(txn, wanted, &base, right, error);
    *right = status == LMCS_OK && *right && base.link == 0;
    while (status == LMCS_OK && *right && base.df.base_count > 0) {
        *right = base.bases[0] != now->id && ++depth + 1 + now->df.height <= recode->chain_bound;
        status = lmcs_content_get(txn, base.bases[0], &base, error);
    }
    if (status == LMCS_OK && *right)
        status = lmcs_content_bears_links(txn, now, &bears, error);
    *right = *right && !bears && depth + 1 + now->df.height <= recode->chain_bound;
    return status;
}

static enum lmcs_status place_successor(struct lmcs_txn *txn, const struct lmcs_recode *recode,
                                        struct lmcs_error *error)
{
    struct lmcs_content next;
    bool found = false;
    enum lmcs_status status =
        recode->successor != 0 ? lmcs_content_find(txn, recode->successor, &next, &found, error) : LMCS_OK;
    if (status != LMCS_OK || !found || next.df.payload != LMCS_PAYLOAD_RAW || next.df.place == recode->place)
        return status;
    next.df.place = recode->place;
    return lmcs_content_put(txn, &next, error);
}

enum lmcs_status lmcs_recode_swap(struct lmcs_txn *txn, struct lmcs_recode *recode, bool *done,
                                  struct lmcs_error *error)
{
    struct lmcs_content now;
    bool found, right = true;
    *done = false;
    enum lmcs_status status = lmcs_content_find(txn, recode->made.id, &now, &found, error);
    if (status != LMCS_OK || !found || !same_payload(&now, &recode->chain.links[0]))
        return status;
    if (recode->worthwhile)
        status = base_is_right(txn, recode, &now, &right, error);
    recode->is_refused = !right;
    if (status == LMCS_OK && right)
        status = place_successor(txn, recode, error);
    if (status != LMCS_OK || !right)
        return status;
    *done = true;
    if (!recode->worthwhile) {
        now.df.flags |= LMCS_CONTENT_SETTLED;
        return lmcs_content_put(txn, &now, error);
    }
    recode->made.df.flags = now.df.flags;
    return lmcs_content_swap(txn, now.id, &recode->made, recode->same_bytes, error);
}
