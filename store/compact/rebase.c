/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/rebase.c - frees bases that no snapshot contains.
 *
 * The tree of dependents records unused bases under base 0 (content.c), each with its next content. Dependents are
 * encoded against another content (the heir) or alone, if that costs less than the base. Links are not made again, but
 * the oldest remaining step of a line may begin one. A base that must stay is settled: it is not considered again, and
 * stays until its last dependent is freed.
 */
#include <string.h>

#include "compact/round.h"
#include "pages/tree.h"
#include "records/lines.h"

#define LONGEST_SEARCH  4096
#define MOST_DEPENDENTS 32u /* in a turn */

struct unused_base {
    uint64_t id;
    uint64_t successor;
    uint64_t heir; /* new base of the dependents; 0: none */
    struct lmcs_content content;
    uint64_t dependents[MOST_DEPENDENTS];
    size_t dependent_count;
    bool bears_links;
};

/* Lists the deltas against the base; only notes that links rest on it. */
static enum lmcs_status list_dependents(struct lmcs_txn *txn, struct lmcs_cursor *cursor, struct unused_base *base,
                                        struct lmcs_error *error)
{
    base->dependent_count = 0;
    base->bears_links = false;
    enum lmcs_status status =
        lmcs_root_seek(cursor, txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){base->id, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == base->id &&
           base->dependent_count < MOST_DEPENDENTS) {
        struct lmcs_content dependent;
        status = lmcs_content_get(txn, lmcs_cursor_key(cursor).low, &dependent, error);
        bool is_link = status == LMCS_OK && dependent.df.payload == LMCS_PAYLOAD_LINK;
        base->bears_links |= is_link;
        if (status == LMCS_OK && !is_link)
            base->dependents[base->dependent_count++] = dependent.id;
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    return status;
}

/* Reads the recorded next content of an unused base; 0: none, settled, or not recorded. */
static enum lmcs_status noted_successor(struct lmcs_txn *txn, uint64_t id, uint64_t *successor,
                                        struct lmcs_error *error)
{
    bool found;
    enum lmcs_status status = lmcs_root_get(txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){0, id}, successor,
                                            sizeof *successor, sizeof *successor, NULL, &found, error);
    if (status == LMCS_OK && (!found || *successor == LMCS_BASE_SETTLED))
        *successor = 0;
    return status;
}

/* Finds the nearest later content that a snapshot contains, along the recorded successors, or else in the base's own
 * chain; 0: none. An unused heir would have to be freed next: pruning leaves many. */
static enum lmcs_status find_heir(struct lmcs_txn *txn, const struct unused_base *base, uint64_t *heir,
                                  struct lmcs_error *error)
{
    struct lmcs_content content = base->content;
    enum lmcs_status status = LMCS_OK;
    bool found = true;
    uint64_t id = base->successor;
    *heir = 0;
    for (int i = 0; status == LMCS_OK && id != 0 && i < LONGEST_SEARCH; i++) {
        status = lmcs_content_find(txn, id, &content, &found, error);
        if (status != LMCS_OK || !found)
            break;
        if (content.df.runs > 0) {
            *heir = id;
            return LMCS_OK;
        }
        status = noted_successor(txn, id, &id, error);
    }
    uint32_t depth;
    if (status == LMCS_OK) /* a forged chain may have no end */
        status = lmcs_content_depth(txn, &base->content, &depth, error);
    for (content = base->content; status == LMCS_OK && content.df.base_count > 0;) {
        status = lmcs_content_get(txn, content.bases[0], &content, error);
        if (status == LMCS_OK && content.df.runs > 0) {
            *heir = content.id;
            break;
        }
    }
    return status;
}

/*
 * Finds the next unused base from id `from` on that is not settled. base->id: the last one examined, also on failure.
 */
static enum lmcs_status find_unused(struct lmcs_pool *pool, uint64_t from, struct unused_base *base, bool *found,
                                    struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    *found = false;
    base->id = 0;
    base->successor = LMCS_BASE_SETTLED;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_open(&cursor, &txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){0, from}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == 0) {
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        base->id = lmcs_cursor_key(cursor).low;
        if (bytes == sizeof base->successor)
            memcpy(&base->successor, value, sizeof base->successor);
        if (base->successor != LMCS_BASE_SETTLED)
            break;
        status = lmcs_cursor_next(cursor, error);
    }
    if (status == LMCS_OK && base->successor != LMCS_BASE_SETTLED) {
        status = lmcs_content_get(&txn, base->id, &base->content, error);
        if (status == LMCS_OK)
            status = list_dependents(&txn, cursor, base, error);
        if (status == LMCS_OK)
            status = find_heir(&txn, base, &base->heir, error);
        *found = status == LMCS_OK;
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return status;
}

/* Encodes a dependent against the heir or alone, if that costs less than keeping the base. */
static enum lmcs_status rebase_one(struct lmcs_round *round, const struct unused_base *base, uint64_t dependent,
                                   struct lmcs_error *error)
{
    struct lmcs_batch batch = {.count = 0};
    struct lmcs_candidate candidate = {.content = dependent, .base = base->heir};
    lmcs_region_init(&batch.region, round->pool, 1);
    enum lmcs_status status = lmcs_batch_encode(round, &batch, &candidate, error);
    if (status == LMCS_OK && batch.count == 1) {
        struct lmcs_replace *replace = batch.items[0];
        const struct lmcs_content *old = &replace->chain.links[0];
        if (replace->worthwhile && lmcs_plan_rebase(old->df.stored_bytes, replace->made.df.stored_bytes,
                                                    base->content.df.stored_bytes, base->content.df.base_uses))
            status = lmcs_batch_swap(round, &batch, false, error);
    }
    lmcs_batch_end(&batch);
    return status;
}

/* Begins a new line at the oldest remaining step, if that costs less than the links kept for it, as after pruning to
 * every tenth step. */
static enum lmcs_status restart_line(struct lmcs_round *round, uint64_t unused, struct lmcs_error *error)
{
    struct lmcs_batch batch = {.count = 0};
    struct lmcs_line_heir heir;
    struct lmcs_txn txn;
    uint64_t stored = 0;
    enum lmcs_status status = lmcs_txn_read(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_line_find_heir(&txn, unused, &heir, error);
    lmcs_txn_end(&txn);
    if (status != LMCS_OK || heir.count == 0 || !lmcs_plan_restart(heir.link_bytes, heir.raw_bytes))
        return status;
    lmcs_region_init(&batch.region, round->pool, 1);
    for (size_t i = 0; status == LMCS_OK && i < heir.count; i++)
        status = lmcs_batch_encode(round, &batch, &(struct lmcs_candidate){.content = heir.arrays[i]}, error);
    bool all = batch.count == heir.count; /* a line begins with a whole step */
    for (size_t i = 0; i < batch.count; i++) {
        all = all && batch.items[i]->worthwhile;
        stored += batch.items[i]->made.df.stored_bytes;
    }
    if (status == LMCS_OK && all && stored < heir.link_bytes)
        status = lmcs_batch_swap(round, &batch, true, error);
    lmcs_batch_end(&batch);
    return status;
}

/* Records that the base stays. */
static enum lmcs_status settle_unused(struct lmcs_round *round, uint64_t id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_key_df key = {0, id};
    uint64_t value = LMCS_BASE_SETTLED, old;
    bool found;
    enum lmcs_status status = lmcs_txn_write(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_get(&txn, LMCS_TREE_DEPENDENTS, key, &old, sizeof old, sizeof old, NULL, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_root_put(&txn, LMCS_TREE_DEPENDENTS, key, &value, sizeof value, error);
    if (status == LMCS_OK && found) {
        status = lmcs_txn_commit(&txn, error);
        round->worked |= status == LMCS_OK;
        return status;
    }
    lmcs_txn_end(&txn);
    return status;
}

static enum lmcs_status rebase_dependents(struct lmcs_round *round, struct unused_base *base, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < base->dependent_count; i++) {
        status = rebase_one(round, base, base->dependents[i], error);
        if (status == LMCS_OK && i + 1 < base->dependent_count)
            status = lmcs_round_go_on(round, 0, 1, error);
    }
    return status == LMCS_OK && base->bears_links ? restart_line(round, base->id, error) : status;
}

/* Encodes an unused base that is still raw. */
static enum lmcs_status encode_unused(struct lmcs_round *round, const struct unused_base *base,
                                      struct lmcs_error *error)
{
    round->count = 0;
    if (base->content.df.payload != LMCS_PAYLOAD_RAW || base->content.df.raw_bytes < LMCS_DELTA_LEAST_BYTES)
        return LMCS_OK;
    enum lmcs_status status = lmcs_round_add(round, &(struct lmcs_candidate){.content = base->id}, error);
    return status == LMCS_OK ? lmcs_round_encode(round, error) : status;
}

static enum lmcs_status rebase(struct lmcs_round *round, struct unused_base *base, struct lmcs_error *error)
{
    enum lmcs_status status = rebase_dependents(round, base, error);
    if (status == LMCS_OK)
        status = encode_unused(round, base, error);
    return status == LMCS_OK ? settle_unused(round, base->id, error) : status;
}

/* A damaged base, or one without room, is tried again in a later round. */
enum lmcs_status lmcs_round_rebase(struct lmcs_round *round, struct lmcs_error *error)
{
    struct unused_base base;
    enum lmcs_status status = LMCS_OK;
    bool found = true;
    for (uint64_t from = 0; status == LMCS_OK; from = base.id + 1) {
        status = find_unused(round->pool, from, &base, &found, error);
        if (base.id < from || (status == LMCS_OK && !found)) /* the end, or an unreadable page */
            return lmcs_round_pass_over(round, status, error);
        const uint64_t before = round->swapped;
        if (status == LMCS_OK)
            status = lmcs_round_go_on(round, 0, 1, error);
        if (status == LMCS_OK)
            status = rebase(round, &base, error);
        round->worked |= round->swapped > before;
        status = lmcs_unless_full(lmcs_round_pass_over(round, status, error));
        if (base.id == UINT64_MAX)
            break;
    }
    return status;
}
