/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/check_contents.c - the structure check: identities, contents, parity and lost blocks.
 *
 * A first walk collects all records. Each found reference then decrements a count of its record, so that correct counts
 * end at zero.
 */
#include "repair/checking.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/origin.h"
#include "records/safety.h"
#include "records/shelf.h"

/* ---- Identities ---- */

enum lmcs_status lmcs_check_identity(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_identity identity;
    struct lmcs_checked_identity known = {.id = key.high};
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_identity_get(&c->txn, key.high, &identity, c->error);
    if (status != LMCS_OK)
        return status;
    lmcs_shape_bytes(identity.df.dtype, identity.df.ndim, identity.shape, &known.raw_bytes);
    known.is_tensor = identity.df.kind == LMCS_TENSOR;
    if (key.high >= c->txn.root.next_identity)
        REPORT(c, "tensor name %llu is not below the next number", ULL(key.high));
    if (!lmcs_grow(&c->identities, &c->identity_capacity, c->identity_count, sizeof known))
        return lmcs_fail_memory(c->error);
    c->identities[c->identity_count++] = known;
    return LMCS_OK;
}

static enum lmcs_status visit_identity_name(struct lmcs_checking *c, struct lmcs_key_df key, const void *value,
                                            size_t bytes)
{
    struct lmcs_identity identity;
    (void)value;
    (void)bytes;
    if (lmcs_check_find_identity(c, key.low) == NULL) /* reported before */
        return c->incomplete ? LMCS_OK : lmcs_check_fail_record(c, "tensor name", key.low);
    enum lmcs_status status = lmcs_identity_get(&c->txn, key.low, &identity, c->error);
    if (status == LMCS_OK && key.high != lmc_hash64(identity.name, strlen(identity.name), identity.df.kind + 1u))
        REPORT(c, "tensor \"%.200s\" is indexed under a wrong hash", identity.name);
    return status;
}

static enum lmcs_status visit_identity_count(struct lmcs_checking *c, struct lmcs_key_df key, const void *value,
                                             size_t bytes)
{
    struct lmcs_checked_identity *known = lmcs_check_find_identity(c, key.high);
    uint64_t uses = 0;
    if (known == NULL && c->incomplete)
        return LMCS_OK;
    if (known == NULL || bytes != sizeof uses)
        return lmcs_check_fail_record(c, "tensor name", key.high);
    memcpy(&uses, value, sizeof uses);
    if (!c->incomplete && uses != known->uses)
        REPORT(c, "tensor name %llu has %llu uses, but %llu are recorded", ULL(key.high), ULL(known->uses), ULL(uses));
    return LMCS_OK;
}

enum lmcs_status lmcs_check_identity_uses(struct lmcs_checking *c)
{
    enum lmcs_status status = lmcs_check_root_tree(c, LMCS_TREE_IDENTITY_NAMES, visit_identity_name);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_IDENTITY_COUNTS, visit_identity_count);
    lmcs_check_total(c, "tensor names with a hash", c->txn.root.trees[LMCS_TREE_IDENTITY_NAMES].count,
                     c->identity_count);
    lmcs_check_total(c, "tensor names with a count", c->txn.root.trees[LMCS_TREE_IDENTITY_COUNTS].count,
                     c->identity_count);
    return status;
}

/* ---- Contents ---- */

enum lmcs_status lmcs_check_content(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_content content;
    struct lmcs_structure *out = c->out;
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_content_get(&c->txn, key.high, &content, c->error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_checked_identity *identity = lmcs_check_find_identity(c, content.df.identity);
    if (identity != NULL)
        identity->uses++;
    bool fits = identity != NULL ? identity->raw_bytes == content.df.raw_bytes : c->incomplete;
    if (!fits || key.high >= c->txn.root.next_content)
        REPORT(c, "content %llu does not match its tensor", ULL(key.high));
    if (!lmcs_grow(&out->contents, &c->content_capacity, out->content_count, sizeof *out->contents))
        return lmcs_fail_memory(c->error);
    uint8_t arrays = content.df.payload == LMCS_PAYLOAD_LINK ? content.df.base_count : 0;
    out->contents[out->content_count++] = (struct lmcs_known_content){.id = key.high,
                                                                      .identity = content.df.identity,
                                                                      .raw_bytes = content.df.raw_bytes,
                                                                      .runs = content.df.runs,
                                                                      .base_uses = content.df.base_uses,
                                                                      .height = content.df.height,
                                                                      .link_arrays = arrays,
                                                                      .has_link = content.link != 0,
                                                                      .wanted = c->want_all};
    return LMCS_OK;
}

static enum lmcs_status check_parts(struct lmcs_checking *c, const struct lmcs_content *content)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < content->df.part_count; i++, c->part_count++) {
        struct lmcs_space_df df = {0, 0};
        bool found;
        status = lmcs_check_root_has(c, LMCS_TREE_SPACE, (struct lmcs_key_df){content->parts[i].offset, 0}, &df,
                                     sizeof df, &found);
        if (status == LMCS_OK && !c->incomplete &&
            (!found || df.content != content->id || df.bytes != lmcs_room(content->parts[i].bytes)))
            REPORT(c, "the payload of content %llu at offset %llu is not in the map of space", ULL(content->id),
                   ULL(content->parts[i].offset));
    }
    return status;
}

/* Checks a reference to a base or link. *known: its record; NULL: it is missing. */
static enum lmcs_status check_tie(struct lmcs_checking *c, const struct lmcs_content *content, uint64_t base_id,
                                  const struct lmcs_known_content **known)
{
    struct lmcs_known_content *base = lmcs_check_find_content(c, base_id);
    char nothing;
    bool found;
    *known = base;
    c->base_count++;
    if (base == NULL) {
        if (!c->incomplete)
            REPORT(c, "content %llu depends on content %llu, which does not exist", ULL(content->id), ULL(base_id));
        return LMCS_OK;
    }
    if (base->base_uses == 0)
        REPORT(c, "content %llu has more dependents than are recorded", ULL(base->id));
    else
        base->base_uses--;
    if (base->raw_bytes != content->df.raw_bytes)
        REPORT(c, "content %llu does not fit its base %llu", ULL(content->id), ULL(base->id));
    enum lmcs_status status =
        lmcs_check_root_has(c, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){base->id, content->id}, &nothing, 0, &found);
    if (status == LMCS_OK && !found && !c->incomplete)
        REPORT(c, "content %llu is not listed as a dependent of %llu", ULL(content->id), ULL(base->id));
    return status;
}

/* Checks that the bases of a link are all outputs of another link, in order, or need no other content. Some outputs may
 * have a payload of their own by now. */
static enum lmcs_status check_link(struct lmcs_checking *c, const struct lmcs_content *link)
{
    struct lmcs_content base, before = {.df = {.place = 0}};
    enum lmcs_status status = LMCS_OK;
    uint64_t from = 0;
    for (size_t i = 0; status == LMCS_OK && i < link->df.base_count; i++) {
        status = lmcs_content_get(&c->txn, link->bases[i], &base, c->error);
        if (status != LMCS_OK)
            break;
        from = from == 0 ? base.link : from;
        if (base.df.base_count > 0 || base.df.payload == LMCS_PAYLOAD_LINK ||
            (base.link != 0 && (base.link != from || base.df.output != i)))
            REPORT(c, "the bases of link %llu do not belong together", ULL(link->id));
    }
    if (status == LMCS_OK && from != 0)
        status = lmcs_content_get(&c->txn, from, &before, c->error);
    if (status == LMCS_OK && link->df.place <= before.df.place)
        REPORT(c, "link %llu has place %u in its line, but follows place %u", ULL(link->id), link->df.place,
               before.df.place);
    return status;
}

static enum lmcs_status check_bases(struct lmcs_checking *c, const struct lmcs_content *content)
{
    const struct lmcs_known_content *base;
    bool is_link = content->df.payload == LMCS_PAYLOAD_LINK;
    enum lmcs_status status = LMCS_OK;
    if (content->df.height > LMCS_CHAIN_BOUND)
        REPORT(c, "the chain of %u deltas on content %llu is too long", content->df.height, ULL(content->id));
    for (size_t i = 0; status == LMCS_OK && i < content->df.base_count; i++) {
        status = check_tie(c, content, content->bases[i], &base);
        if (status == LMCS_OK && base != NULL && !is_link && (base->height <= content->df.height || base->has_link))
            REPORT(c, "content %llu does not fit its base %llu", ULL(content->id), ULL(base->id));
    }
    if (status == LMCS_OK && content->link != 0) {
        status = check_tie(c, content, content->link, &base);
        if (status == LMCS_OK && base != NULL && content->df.output >= base->link_arrays)
            REPORT(c, "content %llu is recorded as an output that link %llu does not have", ULL(content->id),
                   ULL(base->id));
    }
    return status == LMCS_OK && is_link ? check_link(c, content) : status;
}

static enum lmcs_status visit_content_again(struct lmcs_checking *c, struct lmcs_key_df key, const void *value,
                                            size_t bytes)
{
    struct lmcs_content content;
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_content_get(&c->txn, key.high, &content, c->error);
    if (status == LMCS_OK)
        status = check_parts(c, &content);
    if (status == LMCS_OK)
        status = check_bases(c, &content);
    if (status != LMCS_OK || content.df.runs > 0)
        return status;
    if (content.df.payload == LMCS_PAYLOAD_LINK) { /* a link is freed with its last output */
        if (!c->incomplete && content.df.base_uses == 0)
            REPORT(c, "link %llu is unused and not listed for removal", ULL(key.high));
        return status;
    }
    uint64_t successor;
    bool found;
    c->idle_count++;
    status = lmcs_check_root_has(c, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){0, key.high}, &successor,
                                 sizeof successor, &found);
    if (status == LMCS_OK && !found && c->staging && content.df.base_uses > 0) {
        c->idle_count--; /* a restore records unused bases when its snapshots become visible */
        return status;
    }
    if (status == LMCS_OK && !c->incomplete && (!found || content.df.base_uses == 0))
        REPORT(c, "content %llu is unused and not listed for removal", ULL(key.high));
    return status;
}

enum lmcs_status lmcs_check_contents(struct lmcs_checking *c)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < c->out->content_count; i++)
        status = lmcs_check_absorb(c, visit_content_again(c, (struct lmcs_key_df){c->out->contents[i].id, 0}, NULL, 0),
                                   "", 0);
    lmcs_check_total(c, "parts of payloads", c->part_count, c->txn.root.trees[LMCS_TREE_SPACE].count);
    lmcs_check_total(c, "bases and idle contents", c->base_count + c->idle_count,
                     c->txn.root.trees[LMCS_TREE_DEPENDENTS].count);
    for (size_t i = 0; i < c->out->content_count && !c->incomplete; i++) {
        const struct lmcs_known_content *known = &c->out->contents[i];
        if (known->base_uses != 0)
            REPORT(c, "content %llu has %u fewer dependents than are recorded", ULL(known->id), known->base_uses);
        if (known->runs != 0)
            REPORT(c, "content %llu has %llu fewer runs than are recorded", ULL(known->id), ULL(known->runs));
    }
    return status;
}

/* ---- Parity and lost blocks ---- */

static enum lmcs_status check_parity(struct lmcs_checking *c, uint64_t content)
{
    struct lmcs_parity_record parity;
    bool found;
    struct lmcs_content of;
    bool is_there = false;
    enum lmcs_status status = lmcs_parity_find(&c->txn, content, &parity, &found, c->error);
    if (status == LMCS_OK && found)
        status = lmcs_content_find(&c->txn, content, &of, &is_there, c->error);
    if (status == LMCS_OK && is_there && of.df.stored_bytes != parity.df.stored_bytes)
        REPORT(c, "the parity of content %llu covers %llu bytes, but the content has %llu", ULL(content),
               ULL(parity.df.stored_bytes), ULL(of.df.stored_bytes));
    for (size_t i = 0; status == LMCS_OK && found && i < parity.df.part_count; i++, c->part_count++) {
        struct lmcs_space_df df = {0, 0};
        bool mapped;
        c->parity_bytes += lmcs_room(parity.parts[i].bytes);
        status = lmcs_check_root_has(c, LMCS_TREE_SPACE, (struct lmcs_key_df){parity.parts[i].offset, 0}, &df,
                                     sizeof df, &mapped);
        if (status == LMCS_OK && !c->incomplete &&
            (!mapped || df.content != (content | LMCS_SPACE_PARITY) || df.bytes != lmcs_room(parity.parts[i].bytes)))
            REPORT(c, "the parity of content %llu at offset %llu is not in the map of space", ULL(content),
                   ULL(parity.parts[i].offset));
    }
    return status;
}

static enum lmcs_status visit_safety(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    uint64_t content = key.high != 0 ? key.high : key.low;
    const struct lmcs_known_content *known = lmcs_check_find_content(c, content);
    struct lmcs_lost_df lost;
    if (known == NULL && !c->incomplete)
        REPORT(c, "there is a safety record of content %llu, which does not exist", ULL(content));
    if (key.high == 0)
        return bytes == sizeof(struct lmcs_wanted_df) ? LMCS_OK
                                                      : lmcs_check_fail_record(c, "wanted parity of content", content);
    if (key.low == 0)
        return check_parity(c, content);
    if (bytes != sizeof lost)
        return lmcs_check_fail_record(c, "lost blocks of content", content);
    memcpy(&lost, value, sizeof lost);
    uint64_t blocks = known != NULL ? lmc_block_count(known->raw_bytes) : UINT64_MAX;
    if (lost.blocks == 0 || (known != NULL && (key.low - 1 >= blocks || lost.blocks > blocks - (key.low - 1))))
        REPORT(c, "more blocks of content %llu are recorded as lost than it has", ULL(content));
    c->lost_count += c->last_lost != content;
    c->last_lost = content;
    return LMCS_OK;
}

enum lmcs_status lmcs_check_safety(struct lmcs_checking *c)
{
    enum lmcs_status status = lmcs_check_root_tree(c, LMCS_TREE_SAFETY, visit_safety);
    lmcs_check_total(c, "contents with lost blocks", c->lost_count, c->txn.root.lost_contents);
    lmcs_check_total(c, "bytes of parity", c->parity_bytes, c->txn.root.parity_bytes);
    return status;
}
