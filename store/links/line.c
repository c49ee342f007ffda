/* SPDX-License-Identifier: BSD-3-Clause */
/* links/line.c - the rules of lines for a new link. */
#include "links/line.h"

#include "payload/read.h"
#include "records/safety.h"

/* *may: a link may lead from the arrays, as far as they are not outputs of links. */
static enum lmcs_status may_bear(struct lmcs_txn *txn, const struct lmcs_content *before, uint32_t arrays, bool *may,
                                 struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    *may = true;
    for (uint32_t i = 0; status == LMCS_OK && *may && i < arrays; i++) {
        bool lost = false;
        status = lmcs_lost_any(txn, before[i].id, &lost, error);
        *may = !lost && before[i].df.payload != LMCS_PAYLOAD_LINK && before[i].df.base_count == 0 &&
               before[i].df.raw_bytes == before[0].df.raw_bytes;
        for (uint32_t k = 0; k < i; k++)
            *may = *may && before[k].id != before[i].id;
    }
    return status;
}

/* Loads the line that ends with a link. *usable false: it is damaged, or of a newer version. */
static enum lmcs_status load(struct lmcs_txn *txn, uint64_t link, struct lmcs_chain *chain, bool *usable,
                             struct lmcs_error *error)
{
    const enum lmcs_status status = lmcs_chain_load(txn, link, chain, error);
    *usable = status == LMCS_OK && chain->links[0].df.payload == LMCS_PAYLOAD_LINK;
    return lmcs_is_unusable(status) ? LMCS_OK : status;
}

/* Counts the links of a line and of those that lead to the arrays that it begins with: these may be raw now, and stored
 * by their links later. */
static enum lmcs_status count(struct lmcs_txn *txn, struct lmcs_chain *chain, uint32_t *links, struct lmcs_error *error)
{
    bool usable = true;
    *links = 0;
    while (*links <= LMCS_LINK_BOUND) {
        const uint32_t most_below = chain->links[chain->line - 1].df.place - 1;
        uint64_t next = 0;
        *links += (uint32_t)chain->line;
        for (size_t i = chain->line; next == 0 && i < chain->length; i++)
            next = chain->links[i].link;
        if (next == 0)
            break;
        const enum lmcs_status status = load(txn, next, chain, &usable, error);
        if (status != LMCS_OK)
            return status;
        if (!usable) {
            *links += most_below;
            break;
        }
    }
    return LMCS_OK;
}

/* *sound: nothing is lost in the line that ends with the link, so that it may be continued. *links: its length. */
static enum lmcs_status follow(struct lmcs_txn *txn, uint64_t link, bool *sound, uint32_t *links,
                               struct lmcs_error *error)
{
    struct lmcs_chain chain;
    bool lost = false;
    enum lmcs_status status = load(txn, link, &chain, sound, error);
    if (status == LMCS_OK && *sound)
        status = lmcs_chain_lost(txn, &chain, &lost, error);
    *sound = *sound && status == LMCS_OK && !lost;
    if (*sound)
        return count(txn, &chain, links, error);
    return lmcs_is_unusable(status) ? LMCS_OK : status;
}

enum lmcs_status lmcs_line_find(struct lmcs_txn *txn, const struct lmcs_content *before, uint32_t arrays,
                                struct lmcs_line_end *end, enum lmcs_links *verdict, struct lmcs_error *error)
{
    struct lmcs_content link;
    bool may, straight = true, are_raw = true;
    *verdict = LMCS_LINKS_NOT_RAW;
    *end = (struct lmcs_line_end){.place = 1, .links = 1};
    enum lmcs_status status = may_bear(txn, before, arrays, &may, error);
    if (status != LMCS_OK || !may)
        return status;
    for (uint32_t i = 0; i < arrays; i++) {
        straight &= before[i].link == before[0].link && (before[i].link == 0 || before[i].df.output == i);
        are_raw &= before[i].df.payload != LMCS_PAYLOAD_LINKED;
    }
    if (straight && before[0].link != 0) {
        uint32_t links = 0;
        status = lmcs_content_get(txn, before[0].link, &link, error);
        if (status == LMCS_OK)
            status = follow(txn, before[0].link, &straight, &links, error);
        if (status != LMCS_OK)
            return status;
        straight = straight && link.df.base_count == arrays;
        if (straight)
            *end = (struct lmcs_line_end){.place = link.df.place + 1, .links = links + 1};
    }
    end->breaks = !straight && are_raw;
    if (end->place > LMCS_LINK_BOUND || end->links > LMCS_LINK_BOUND)
        *verdict = LMCS_LINKS_FIRST;
    else if (straight || end->breaks)
        *verdict = LMCS_LINKS_MADE;
    return LMCS_OK;
}

enum lmcs_status lmcs_line_break(struct lmcs_txn *txn, const struct lmcs_content *arrays, uint32_t count,
                                 struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint32_t i = 0; status == LMCS_OK && i < count; i++)
        if (arrays[i].link != 0)
            status = lmcs_content_set_link(txn, arrays[i].id, 0, 0, error);
    return status;
}
