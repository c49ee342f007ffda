/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/chain.c - loads and pins chains. */
#include "payload/read.h"
#include "records/safety.h"

static enum lmcs_status fail_chain(const struct lmcs_txn *txn, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: %s", txn->pool->path, why);
}

/* Adds a link, and the arrays before it if the line begins there. *next: the link before, or 0. */
static enum lmcs_status add_link(struct lmcs_txn *txn, uint64_t id, struct lmcs_chain *chain, uint64_t *next,
                                 struct lmcs_error *error)
{
    struct lmcs_content *link = &chain->links[chain->length], base;
    if (chain->line == LMCS_LINK_BOUND)
        return fail_chain(txn, "a line of links is too long", error);
    enum lmcs_status status = lmcs_content_get(txn, id, link, error);
    if (status != LMCS_OK)
        return status;
    if (link->df.payload != LMCS_PAYLOAD_LINK || link->df.raw_bytes != chain->links[0].df.raw_bytes)
        return fail_chain(txn, "what should be a link is none", error);
    chain->length++;
    chain->line++;
    *next = 0;
    for (size_t i = 0; status == LMCS_OK && *next == 0 && i < link->df.base_count; i++) {
        /* some outputs of a link may have their own payloads */
        status = lmcs_content_get(txn, link->bases[i], &base, error);
        if (status == LMCS_OK && base.df.payload == LMCS_PAYLOAD_LINKED)
            *next = base.link;
    }
    for (size_t i = 0; status == LMCS_OK && *next == 0 && i < link->df.base_count; i++) {
        struct lmcs_content *start = &chain->links[chain->length++];
        status = lmcs_content_get(txn, link->bases[i], start, error);
        if (status == LMCS_OK && (start->df.payload > LMCS_PAYLOAD_FRAME || start->df.base_count > 0 ||
                                  start->df.raw_bytes != link->df.raw_bytes))
            return fail_chain(txn, "a line of links begins with what is neither raw nor a keyframe", error);
    }
    return status;
}

static enum lmcs_status load_line(struct lmcs_txn *txn, struct lmcs_chain *chain, struct lmcs_error *error)
{
    const struct lmcs_content *top = &chain->links[0];
    uint64_t next = top->link;
    enum lmcs_status status = LMCS_OK;
    if (top->df.payload == LMCS_PAYLOAD_LINK) {
        next = top->id;
        chain->length = 0;
    }
    while (status == LMCS_OK && next != 0)
        status = add_link(txn, next, chain, &next, error);
    return status;
}

enum lmcs_status lmcs_chain_load(struct lmcs_txn *txn, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error)
{
    chain->serial = chain->is_timed = chain->is_new = false;
    chain->line = 0;
    for (chain->length = 0;; content = chain->links[chain->length - 1].bases[0]) {
        if (chain->length > LMCS_CHAIN_BOUND)
            return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a chain of deltas is longer than %u",
                             txn->pool->path, LMCS_CHAIN_BOUND);
        struct lmcs_content *link = &chain->links[chain->length++];
        enum lmcs_status status = lmcs_content_get(txn, content, link, error);
        if (status != LMCS_OK)
            return status;
        if (link->df.payload >= LMCS_PAYLOAD_LINK)
            return chain->length == 1 ? load_line(txn, chain, error)
                                      : fail_chain(txn, "a delta rests on what a link leads to", error);
        if (link->df.raw_bytes != chain->links[0].df.raw_bytes)
            return fail_chain(txn, "a base has another size than its delta", error);
        if (link->df.base_count == 0)
            return LMCS_OK;
    }
}

enum lmcs_status lmcs_chain_lost(struct lmcs_txn *txn, const struct lmcs_chain *chain, bool *lost,
                                 struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    *lost = false;
    for (size_t i = 0; status == LMCS_OK && !*lost && i < chain->length; i++)
        status = lmcs_lost_any(txn, chain->links[i].id, lost, error);
    return status;
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

enum lmcs_status lmcs_chain_hold(struct lmcs_pool *pool, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_chain_load(&txn, content, chain, error);
    if (status == LMCS_OK)
        status = lmcs_chain_pin(pool, chain, error);
    lmcs_txn_end(&txn);
    return status;
}

void lmcs_chain_unpin(struct lmcs_pool *pool, const struct lmcs_chain *chain)
{
    for (size_t i = 0; i < chain->length; i++)
        lmcs_payload_unpin(pool->lease, &chain->links[i]);
}
