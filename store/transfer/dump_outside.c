/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/dump_outside.c - bases outside of the dumped part.
 *
 * A base that no snapshot of the part contains is sent only if it and the deltas against it cost less than these
 * contents sent whole.
 */
#include <stdlib.h>

#include "base/grow.h"
#include "transfer/dump.h"

static enum lmcs_status note_inside(struct lmcs_dump *dump, uint64_t identity, uint64_t content,
                                    struct lmcs_error *error)
{
    (void)identity;
    return content == 0 ? LMCS_OK : lmcs_id_put(&dump->inside, content, 1, error);
}

static enum lmcs_status note_snapshot(struct lmcs_dump *dump, struct lmcs_dump_order *order,
                                      const struct lmcs_record *record, const struct lmcs_snapshot_df *previous,
                                      bool related, struct lmcs_error *error)
{
    struct lmcs_dump_walk walk = {dump, note_inside};
    (void)order;
    return lmcs_dump_walk_manifest(&walk, record, previous, related && !dump->options->canonical, error);
}

static bool all_inside(const struct lmcs_dump *dump, const struct lmcs_content *link)
{
    bool all = true;
    for (size_t i = 0; i < link->df.base_count; i++)
        all = all && lmcs_id_get(&dump->inside, link->bases[i]) != 0;
    return all;
}

/* Stored bytes of the base and of the contents below it, down to the first one inside of the part. */
static uint64_t outside_bytes(const struct lmcs_dump *dump, const struct lmcs_chain *chain)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < chain->length && lmcs_id_get(&dump->inside, chain->links[i].id) == 0; i++) {
        bytes += chain->links[i].df.stored_bytes;
        if (chain->links[i].df.payload == LMCS_PAYLOAD_LINK && all_inside(dump, &chain->links[i]))
            break;
    }
    return bytes;
}

/* The base that would be sent only for the content; 0: none. */
static enum lmcs_status find_outside(struct lmcs_dump *dump, const struct lmcs_content *content, uint64_t *base,
                                     struct lmcs_error *error)
{
    struct lmcs_content link;
    *base = content->df.base_count > 0 ? content->bases[0] : 0;
    if (content->df.payload != LMCS_PAYLOAD_LINKED) {
        *base = lmcs_id_get(&dump->inside, *base) == 0 ? *base : 0;
        return LMCS_OK;
    }
    enum lmcs_status status = lmcs_content_get(&dump->txn, content->link, &link, error);
    *base = status == LMCS_OK && !all_inside(dump, &link) ? link.id : 0;
    return status;
}

/* Adds the content to the costs of its base, if the base is outside of the part. */
static enum lmcs_status note_base(struct lmcs_dump *dump, const struct lmcs_content *content, struct lmcs_error *error)
{
    struct lmcs_chain chain;
    uint64_t base;
    enum lmcs_status status = find_outside(dump, content, &base, error);
    if (status != LMCS_OK || base == 0)
        return status;
    uint64_t index = lmcs_id_get(&dump->outside, base);
    if (index == 0) {
        status = lmcs_chain_load(&dump->txn, base, &chain, error);
        if (status != LMCS_OK)
            return status;
        struct lmcs_outside cost = {.base_bytes = outside_bytes(dump, &chain)};
        if (!lmcs_grow(&dump->costs, &dump->cost_capacity, dump->cost_count, sizeof cost))
            return lmcs_fail_memory(error);
        dump->costs[dump->cost_count++] = cost;
        index = dump->cost_count;
        status = lmcs_id_put(&dump->outside, base, index, error);
    }
    dump->costs[index - 1].delta_bytes += content->df.stored_bytes;
    dump->costs[index - 1].whole_bytes += lmcs_raw_stored_bytes(content->df.raw_bytes);
    return status;
}

/* Visits each content of the part once: records its base or, for a canonical archive, its digest. */
static enum lmcs_status note_contents(struct lmcs_dump *dump, struct lmcs_error *error)
{
    uint64_t *ids;
    size_t count;
    enum lmcs_status status = lmcs_id_list(&dump->inside, &ids, &count, error);
    if (status == LMCS_OK)
        status = lmcs_txn_hold(dump->pool, &dump->txn, error);
    if (status != LMCS_OK) {
        free(ids);
        return status;
    }
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        struct lmcs_content content;
        bool found = false;
        status = lmcs_content_find(&dump->txn, ids[i], &content, &found, error);
        const struct lmcs_known known = {.digest = {content.df.digest_low, content.df.digest_high}, .is_new = true};
        if (status == LMCS_OK && found)
            status =
                dump->options->canonical ? lmcs_dump_add_known(dump, &known, error) : note_base(dump, &content, error);
    }
    free(ids);
    lmcs_txn_end(&dump->txn);
    return status;
}

enum lmcs_status lmcs_dump_find_outside(struct lmcs_dump *dump, struct lmcs_dump_plans *plans, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < plans->count; i++) {
        struct lmcs_dump_shelf *plan = &plans->items[i];
        struct lmcs_snapshot_df previous = {0};
        for (size_t k = 0; status == LMCS_OK && k < plan->count; k++) {
            uint64_t number = plan->numbers[k];
            status = lmcs_dump_visit(dump, plan, NULL, &number, &previous, note_snapshot, error);
        }
    }
    return status == LMCS_OK ? note_contents(dump, error) : status;
}
