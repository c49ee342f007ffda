/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/replace.c - gives one content another payload: encodes aside, verifies by decoding, switches.
 *
 * The new payload is read back and decoded. Its digest must be the content's, which detects rotten raw bytes.
 */
#include "compact/replace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "payload/encode.h"
#include "records/lines.h"
#include "records/safety.h"

#define KNOWN_NS ((uint64_t)60 * 1000000000) /* a line verified longer ago is verified again */

/* ---- Begin and end ---- */

static bool rests_on(const struct lmcs_chain *chain, uint64_t content)
{
    for (size_t i = 0; i < chain->length; i++)
        if (chain->links[i].id == content)
            return true;
    return false;
}

/* Fails for a content with recorded losses, which stays as it is until it is repaired; LMCS_NOT_FOUND, since its loss
 * was reported. */
static enum lmcs_status check_lost(const struct lmcs_replace *replace, struct lmcs_txn *txn, struct lmcs_error *error)
{
    bool lost;
    enum lmcs_status status = lmcs_chain_lost(txn, &replace->chain, &lost, error);
    return status == LMCS_OK && lost
               ? lmcs_fail(error, LMCS_NOT_FOUND, 0, "content %llu, or a content that it rests on, is lost in part",
                           (unsigned long long)replace->chain.links[0].id)
               : status;
}

static enum lmcs_status load(struct lmcs_replace *replace, struct lmcs_txn *txn, uint64_t content, uint64_t base,
                             struct lmcs_error *error)
{
    struct lmcs_content found_content;
    bool found;
    enum lmcs_status status = lmcs_content_find(txn, content, &found_content, &found, error);
    if (status == LMCS_OK && !found)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "content %llu is gone", (unsigned long long)content);
    if (status == LMCS_OK)
        status = lmcs_chain_load(txn, content, &replace->chain, error);
    if (status == LMCS_OK && replace->chain_bound == 0 && replace->chain.line == 0)
        replace->chain_bound = (uint32_t)replace->chain.length - 1 + replace->chain.links[0].df.height;
    if (status == LMCS_OK)
        status = lmcs_identity_get(txn, replace->chain.links[0].df.identity, &replace->identity, error);
    if (status == LMCS_OK)
        status = check_lost(replace, txn, error);
    bool bears = false;
    if (status == LMCS_OK && base != 0)
        status = lmcs_content_bears_links(txn, &replace->chain.links[0], &bears, error);
    base = bears ? 0 : base;
    if (status == LMCS_OK && base != 0)
        status = lmcs_content_find(txn, base, &found_content, &found, error);
    if (status == LMCS_OK && base != 0 && found) { /* a lost content may not become a base */
        bool lost = false;
        status = lmcs_lost_any(txn, base, &lost, error);
        found = !lost;
    }
    if (status == LMCS_OK && base != 0 && found) {
        status = lmcs_chain_load(txn, base, &replace->base, error);
        const struct lmcs_content_df *df = &replace->chain.links[0].df;
        /* no base if the chains on the content would become too long */
        replace->has_base = status == LMCS_OK && replace->base.links[0].link == 0 &&
                            replace->base.links[0].df.raw_bytes == df->raw_bytes &&
                            replace->base.length + df->height <= replace->chain_bound &&
                            !rests_on(&replace->base, content);
    }
    if (status == LMCS_OK)
        status = lmcs_chain_pin(replace->pool, &replace->chain, error);
    if (status == LMCS_OK && replace->has_base) {
        status = lmcs_chain_pin(replace->pool, &replace->base, error);
        if (status != LMCS_OK)
            lmcs_chain_unpin(replace->pool, &replace->chain);
    }
    return status;
}

enum lmcs_status lmcs_replace_begin(struct lmcs_replace *replace, struct lmcs_pool *pool, struct lmcs_region *region,
                                    uint64_t content, uint64_t base, bool serial, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    replace->pool = pool;
    replace->region = region;
    replace->serial = serial;
    replace->has_base = replace->worthwhile = replace->same_bytes = replace->line_is_damaged = false;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = load(replace, &txn, content, base, error);
    lmcs_txn_end(&txn);
    replace->chain.serial = replace->base.serial = serial;
    return status;
}

void lmcs_replace_alone(struct lmcs_replace *replace)
{
    if (replace->has_base)
        lmcs_chain_unpin(replace->pool, &replace->base);
    replace->has_base = false;
}

void lmcs_replace_end(struct lmcs_replace *replace)
{
    lmcs_chain_unpin(replace->pool, &replace->chain);
    if (replace->has_base)
        lmcs_chain_unpin(replace->pool, &replace->base);
}

/* ---- The decoded bytes of a chain, at an address ---- */

/* Maps the parts of a payload at adjacent addresses. */
static enum lmcs_status stitch(struct lmcs_pool *pool, const struct lmcs_content *content, struct lmcs_bytes_at *at,
                               struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    uint64_t done = 0;
    at->map_bytes = (content->df.stored_bytes + LMCS_PAGE_BYTES - 1) & ~(size_t)(LMCS_PAGE_BYTES - 1);
    at->map = mmap(NULL, at->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at->map == MAP_FAILED) {
        at->map = NULL;
        return lmcs_fail_map(error, at->map_bytes, "can't map %zu bytes", at->map_bytes);
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

/* Maps the raw content of a chain, or decodes it into memory. */
static enum lmcs_status get_bytes(struct lmcs_replace *replace, const struct lmcs_chain *chain,
                                  struct lmcs_bytes_at *at, struct lmcs_error *error)
{
    const struct lmcs_content *top = &chain->links[0];
    const struct lmcs_identity *identity = &replace->identity;
    *at = (struct lmcs_bytes_at){NULL, NULL, 0};
    if (top->df.payload == LMCS_PAYLOAD_RAW)
        return lmcs_bytes_map(replace->pool, top, at, error);
    at->map_bytes = top->df.raw_bytes;
    at->map = mmap(NULL, at->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at->map == MAP_FAILED) {
        at->map = NULL;
        return lmcs_fail_map(error, at->map_bytes, "can't map %zu bytes", at->map_bytes);
    }
    at->data = at->map;
    const struct lmcs_tensor tensor = lmcs_identity_tensor(identity);
    return lmcs_chain_read(replace->pool, chain, &tensor, at->map, NULL, error);
}

/* ---- The new payload ---- */

static struct lmcs_encoding encoding_of(struct lmcs_replace *replace)
{
    struct lmcs_encoding encoding = {.pool = replace->pool,
                                     .region = replace->region,
                                     .serial = replace->serial,
                                     .raw_bytes = replace->chain.links[0].df.raw_bytes,
                                     .base_chain = &replace->base,
                                     .made = replace->chain.links[0]};
    encoding.tensor = lmcs_identity_tensor(&replace->identity);
    return encoding;
}

static struct lmcs_known_line *known_line(const struct lmcs_replace *replace, uint64_t link)
{
    return replace->known != NULL ? &replace->known->lines[link % LMCS_LINES_KNOWN] : NULL;
}

/* Whether the line up to the link was verified recently; *at_ns: when. */
static bool is_known(const struct lmcs_replace *replace, uint64_t link, uint64_t now, uint64_t *at_ns)
{
    const struct lmcs_known_line *known = known_line(replace, link);
    if (known == NULL || known->link != link || known->at_ns < replace->known_since_ns ||
        now - known->at_ns >= KNOWN_NS)
        return false;
    *at_ns = known->at_ns;
    return true;
}

/* Counts the newest links to verify again. *at_ns: when the other links were verified. */
static size_t unknown_links(const struct lmcs_replace *replace, uint64_t *at_ns)
{
    const struct lmcs_chain *line = &replace->base;
    const uint64_t now = *at_ns = lmcs_steady_ns();
    for (size_t i = 0; i < line->line; i++)
        if (is_known(replace, line->links[i].id, now, at_ns))
            return i;
    return line->line;
}

static enum lmcs_status link_is_right(struct lmcs_replace *replace, struct lmcs_error *error)
{
    const struct lmcs_identity *identity = &replace->identity;
    const struct lmcs_tensor tensor = lmcs_identity_tensor(identity);
    return lmcs_link_check(replace->pool, &replace->base.links[0], &replace->made, &tensor, error);
}

/* Checks the line that leads to the content, except links verified recently. Unpins it. */
static enum lmcs_status line_is_whole(struct lmcs_replace *replace, bool *whole, struct lmcs_error *error)
{
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&replace->identity);
    const struct lmcs_content *link = &replace->base.links[0];
    uint64_t at_ns;
    const size_t count = unknown_links(replace, &at_ns);
    enum lmcs_status status = link_is_right(replace, error);
    replace->base.serial = replace->serial;
    if (status == LMCS_OK && count > 0)
        status = lmcs_line_check(replace->pool, &replace->base, count, &tensor, error);
    if (status == LMCS_OK && replace->known != NULL)
        *known_line(replace, link->id) = (struct lmcs_known_line){link->id, at_ns};
    lmcs_chain_unpin(replace->pool, &replace->base);
    *whole = status == LMCS_OK;
    replace->line_is_damaged = status == LMCS_DAMAGED || status == LMCS_IO;
    return replace->line_is_damaged || status == LMCS_UNSUPPORTED ? LMCS_OK : status;
}

/* If another array of the step was just verified, checks only the link's header, unless something is lost. False: the
 * whole line must be verified. */
static bool is_right_by_known_line(struct lmcs_replace *replace, struct lmcs_txn *txn)
{
    struct lmcs_chain *line = &replace->base;
    uint64_t at_ns;
    if (txn->root.lost_contents > 0 || !is_known(replace, replace->made.link, lmcs_steady_ns(), &at_ns))
        return false;
    line->length = line->line = 1;
    line->serial = line->is_timed = line->is_new = false;
    if (lmcs_content_get(txn, replace->made.link, &line->links[0], NULL) != LMCS_OK ||
        line->links[0].df.payload != LMCS_PAYLOAD_LINK || lmcs_chain_pin(replace->pool, line, NULL) != LMCS_OK)
        return false;
    const bool right = link_is_right(replace, NULL) == LMCS_OK;
    lmcs_chain_unpin(replace->pool, line);
    return right;
}

enum lmcs_status lmcs_replace_linked(struct lmcs_replace *replace, bool *possible, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    const struct lmcs_content *top = &replace->chain.links[0];
    *possible = top->link != 0 && top->df.payload == LMCS_PAYLOAD_RAW;
    if (!*possible)
        return LMCS_OK;
    replace->made = *top;
    replace->made.df.payload = LMCS_PAYLOAD_LINKED;
    replace->made.df.part_count = 0;
    replace->made.df.stored_bytes = 0;
    replace->worthwhile = true;
    enum lmcs_status status = lmcs_txn_read(replace->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    if (is_right_by_known_line(replace, &txn)) {
        lmcs_txn_end(&txn);
        return LMCS_OK;
    }
    status = lmcs_chain_load(&txn, top->link, &replace->base, error);
    bool lost = false;
    if (status == LMCS_OK)
        status = lmcs_chain_lost(&txn, &replace->base, &lost, error);
    *possible = !lost;
    if (status == LMCS_OK && *possible)
        status = lmcs_chain_pin(replace->pool, &replace->base, error);
    lmcs_txn_end(&txn);
    return status == LMCS_OK && *possible ? line_is_whole(replace, possible, error) : status;
}

enum lmcs_status lmcs_replace_encode(struct lmcs_replace *replace, struct lmcs_error *error)
{
    struct lmcs_encoding encoding = encoding_of(replace);
    struct lmcs_bytes_at data = {0}, base = {0};
    enum lmcs_status status = get_bytes(replace, &replace->chain, &data, error);
    if (status == LMCS_OK && replace->has_base)
        status = get_bytes(replace, &replace->base, &base, error);
    if (status == LMCS_OK) {
        encoding.data = data.data;
        encoding.base = replace->has_base ? base.data : NULL;
        status = lmcs_encoding_run(&encoding, error);
    }
    lmcs_bytes_unmap(&data);
    lmcs_bytes_unmap(&base);
    replace->made = encoding.made;
    replace->worthwhile = encoding.worthwhile;
    return status;
}

enum lmcs_status lmcs_replace_copy(struct lmcs_replace *replace, struct lmcs_error *error)
{
    const struct lmcs_content *from = &replace->chain.links[0];
    enum { PIECE = 1 << 20 };
    void *piece = malloc(PIECE);
    if (piece == NULL)
        return lmcs_fail_memory(error);
    replace->made = *from;
    replace->worthwhile = replace->same_bytes = true;
    enum lmcs_status status = lmcs_payload_take(replace->region, from->df.stored_bytes, &replace->made, error);
    for (uint64_t at = 0; status == LMCS_OK && at < from->df.stored_bytes; at += PIECE) {
        uint64_t n = from->df.stored_bytes - at < PIECE ? from->df.stored_bytes - at : PIECE;
        status = lmcs_payload_read(replace->pool->media, from, at, piece, n, error);
        if (status == LMCS_OK)
            status = lmcs_payload_write(replace->pool->heap, &replace->made, at, piece, n, error);
    }
    free(piece);
    if (status != LMCS_OK)
        return status;
    if (from->df.payload == LMCS_PAYLOAD_LINK) {
        lmcs_heap_drain(replace->pool->heap);
        replace->base = replace->chain;
        replace->base.links[0] = replace->made;
        replace->base.is_new = !lmcs_heap_is_persistent(replace->pool->heap);
        const struct lmcs_tensor tensor = lmcs_identity_tensor(&replace->identity);
        return lmcs_chain_read(replace->pool, &replace->base, &tensor, NULL, NULL, error);
    }
    if (from->df.base_count > 0) { /* verification needs the base */
        replace->base.length = replace->chain.length - 1;
        replace->base.line = 0;
        memcpy(replace->base.links, replace->chain.links + 1, replace->base.length * sizeof replace->base.links[0]);
    }
    struct lmcs_encoding encoding = encoding_of(replace);
    encoding.made = replace->made;
    return lmcs_encoding_verify(&encoding, error);
}

/* ---- Switching ---- */

/* right: the base exists, its chain is short enough, and it does not rest on the content: two names that swap contents
 * may each be the other's base. */
static enum lmcs_status base_is_right(struct lmcs_txn *txn, const struct lmcs_replace *replace,
                                      const struct lmcs_content *now, bool *right, struct lmcs_error *error)
{
    struct lmcs_content base;
    uint32_t depth = 0;
    uint64_t wanted = replace->made.df.base_count > 0 ? replace->made.bases[0] : 0;
    bool bears = false;
    *right = replace->made.df.payload != LMCS_PAYLOAD_LINKED || now->link == replace->made.link;
    if (!*right || wanted == 0 || wanted == (now->df.base_count > 0 ? now->bases[0] : 0))
        return LMCS_OK;
    enum lmcs_status status = lmcs_content_find(txn, wanted, &base, right, error);
    *right = status == LMCS_OK && *right && base.link == 0;
    while (status == LMCS_OK && *right && base.df.base_count > 0) {
        *right = base.bases[0] != now->id && ++depth + 1 + now->df.height <= replace->chain_bound;
        status = lmcs_content_get(txn, base.bases[0], &base, error);
    }
    if (status == LMCS_OK && *right)
        status = lmcs_content_bears_links(txn, now, &bears, error);
    *right = *right && !bears && depth + 1 + now->df.height <= replace->chain_bound;
    return status;
}

/* Records the place of the next content in the pattern, if that is still raw. */
static enum lmcs_status place_successor(struct lmcs_txn *txn, const struct lmcs_replace *replace,
                                        struct lmcs_error *error)
{
    struct lmcs_content next;
    bool found = false;
    enum lmcs_status status =
        replace->successor != 0 ? lmcs_content_find(txn, replace->successor, &next, &found, error) : LMCS_OK;
    if (status != LMCS_OK || !found || next.df.payload != LMCS_PAYLOAD_RAW || next.df.place == replace->place)
        return status;
    next.df.place = replace->place;
    return lmcs_content_put(txn, &next, error);
}

enum lmcs_status lmcs_replace_swap(struct lmcs_txn *txn, struct lmcs_replace *replace, bool *done,
                                   struct lmcs_error *error)
{
    struct lmcs_content now;
    bool found, right = true;
    *done = false;
    enum lmcs_status status = lmcs_content_find(txn, replace->made.id, &now, &found, error);
    const struct lmcs_content *old = &replace->chain.links[0];
    const bool was_linked = old->df.payload == LMCS_PAYLOAD_LINKED;
    if (status != LMCS_OK || !found || !lmcs_same_payload(&now, old) || (was_linked && now.link != old->link))
        return status;
    if (replace->worthwhile)
        status = base_is_right(txn, replace, &now, &right, error);
    replace->is_refused = !right;
    if (status == LMCS_OK && right)
        status = place_successor(txn, replace, error);
    if (status != LMCS_OK || !right)
        return status;
    *done = true;
    if (!replace->worthwhile) {
        now.df.flags |= LMCS_CONTENT_SETTLED;
        return lmcs_content_put(txn, &now, error);
    }
    replace->made.df.flags = now.df.flags;
    const bool leaves = was_linked && replace->made.df.payload != LMCS_PAYLOAD_LINKED;
    status = lmcs_content_swap(txn, now.id, &replace->made, replace->same_bytes, error);
    return status == LMCS_OK && leaves ? lmcs_line_renumber(txn, now.id, error) : status;
}
