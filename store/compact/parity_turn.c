/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/parity_turn.c - makes the parity that policies ask for. */
#include <stdlib.h>
#include <string.h>

#include "compact/parity_batch.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/manifest.h"
#include "records/policy.h"
#include "records/shelf.h"

#define SHORTEST_WAIT_NS ((uint64_t)2 * 1000000000) /* for room */
#define LONGEST_WAIT_NS  ((uint64_t)64 * 1000000000)
#define MOST_EXAMINED    64u   /* snapshots in a transaction ... */
#define MOST_NOTED       4096u /* ... or records, without those of its last snapshot */

struct noting {
    struct lmcs_txn *txn;
    const struct lmcs_policy *policy;
    bool is_spoilt; /* a record was not written: do not commit */
    size_t wanted;  /* new records */
};

/* Marks a content as wanted unless it has the parity that the policy asks for. With parity=bases, any will do. */
static enum lmcs_status want(struct noting *noting, const struct lmcs_content *content, struct lmcs_error *error)
{
    const struct lmcs_policy *policy = noting->policy;
    struct lmcs_wanted_df wanted = {policy->parity_data, policy->parity};
    struct lmcs_parity_record now;
    bool found, known = false;
    enum lmcs_status status = lmcs_parity_find(noting->txn, content->id, &now, &found, error);
    if (status == LMCS_OK && policy->parity_of_bases) {
        struct lmcs_wanted_df before;
        if (!found)
            status = lmcs_parity_wanted(noting->txn, content->id, &before, &known, error);
        wanted = lmcs_parity_by_size(content->df.stored_bytes);
    }
    bool is_right =
        found && (policy->parity_of_bases || (now.df.data == wanted.data && now.df.parity == wanted.parity));
    if (status != LMCS_OK || is_right || known)
        return status;
    status = lmcs_parity_want(noting->txn, content->id, wanted.data, wanted.parity, error);
    noting->is_spoilt = status != LMCS_OK;
    noting->wanted++;
    return status;
}

/* Replaces a content that a link stores by the link. */
static enum lmcs_status find_stored(struct lmcs_txn *txn, struct lmcs_content *content, struct lmcs_error *error)
{
    return content->df.payload == LMCS_PAYLOAD_LINKED ? lmcs_content_get(txn, content->link, content, error) : LMCS_OK;
}

/*
 * Marks the bases of the content. A base that snapshots contain marks its own bases when these snapshots are examined;
 * the walk goes on below one that none contains, unless it was marked before. `depth` bounds forged chains.
 */
static enum lmcs_status note_bases(struct noting *noting, const struct lmcs_content *content, uint32_t depth,
                                   struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < content->df.base_count; i++) {
        const size_t before = noting->wanted;
        struct lmcs_content base;
        status = lmcs_content_get(noting->txn, content->bases[i], &base, error);
        bool is_unused = status == LMCS_OK && base.df.runs == 0;
        if (status == LMCS_OK)
            status = find_stored(noting->txn, &base, error);
        if (status == LMCS_OK && base.df.stored_bytes > 0)
            status = want(noting, &base, error);
        if (status == LMCS_OK && is_unused && noting->wanted > before && depth < LMCS_DEEPEST)
            status = note_bases(noting, &base, depth + 1, error);
    }
    return status;
}

/* Marks an entry's content; with parity=bases, only if others rest on it, and its bases. */
static enum lmcs_status note_content(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                     uint64_t successor, struct lmcs_error *error)
{
    struct noting *noting = context;
    struct lmcs_content content;
    (void)identity;
    (void)successor;
    enum lmcs_status status = lmcs_content_get(noting->txn, entry->content, &content, error);
    if (status == LMCS_OK)
        status = find_stored(noting->txn, &content, error);
    if (status != LMCS_OK)
        return status;
    bool is_base = content.df.base_uses > 0 && content.df.stored_bytes > 0;
    if (is_base || !noting->policy->parity_of_bases)
        status = want(noting, &content, error);
    return status == LMCS_OK && noting->policy->parity_of_bases ? note_bases(noting, &content, 0, error) : status;
}

/* Marks the contents that the snapshot added; all if the snapshot before is unreadable. */
static enum lmcs_status note_snapshot(struct noting *noting, const struct lmcs_snapshot_df *df,
                                      const struct lmcs_snapshot_df *older, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_manifest_own(noting->txn, df, older, NULL, false, note_content, noting, error);
    if (lmcs_is_unusable(status) && !noting->is_spoilt && older != NULL)
        status = lmcs_manifest_own(noting->txn, df, NULL, NULL, false, note_content, noting, error);
    return status;
}

/* Marks the contents of the next snapshots of a shelf. *noted: there was one. Unreadable parts are reported once and
 * skipped. */
static enum lmcs_status note_snapshots(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_policy *policy,
                                       bool all, struct lmcs_passed *passed, bool *noted, struct lmcs_error *error)
{
    struct noting noting = {.txn = txn, .policy = policy};
    enum lmcs_status status = LMCS_OK;
    *noted = false;
    /* raw contents of newer snapshots may gain dependents later */
    all = all && !policy->parity_of_bases;
    for (unsigned i = 0; status == LMCS_OK && i < MOST_EXAMINED && noting.wanted < MOST_NOTED; i++) {
        struct lmcs_record record, older;
        uint64_t number;
        bool found, has_older = false;
        status = lmcs_record_after(txn, shelf, shelf->df.guarded, &number, error);
        if (status != LMCS_OK || number == 0 || (!all && number > shelf->df.compacted))
            break;
        status = lmcs_record_get(txn, shelf, number, &record, &found, error);
        if (status == LMCS_OK && found)
            status = lmcs_record_neighbour(txn, shelf, &record.df, false, &older, &has_older, error);
        if (status == LMCS_OK && found) {
            status = note_snapshot(&noting, &record.df, has_older ? &older.df : NULL, error);
            if (lmcs_is_unusable(status) && !noting.is_spoilt) {
                if (error != NULL)
                    lmcs_error_prefix(error, "%s@%llu: ", shelf->name, (unsigned long long)number);
                status = lmcs_pass_over(passed, status, error);
            }
        }
        shelf->df.guarded = number;
        *noted = true;
    }
    return status;
}

static enum lmcs_status note_shelf(struct lmcs_pool *pool, uint64_t id, bool all, struct lmcs_passed *passed,
                                   bool *worked, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_policy policy;
    uint64_t number = 0;
    bool found = false;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error); /* usually nothing to do */
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&txn, id, &shelf, &found, error);
    if (status == LMCS_OK && found) {
        lmcs_shelf_policy(&shelf, &policy);
        all = all && !policy.parity_of_bases;
        found = lmcs_policy_has_parity(&policy) && (shelf.df.flags & LMCS_SHELF_STAGING) == 0;
    }
    if (status == LMCS_OK && found)
        status = lmcs_record_after(&txn, &shelf, shelf.df.guarded, &number, error);
    found = found && number != 0 && (all || number <= shelf.df.compacted);
    lmcs_txn_end(&txn);
    if (status != LMCS_OK || !found)
        return status;
    status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&txn, id, &shelf, &found, error);
    if (status == LMCS_OK && found) {
        lmcs_shelf_policy(&shelf, &policy);
        found = lmcs_policy_has_parity(&policy);
        if (found)
            status = note_snapshots(&txn, &shelf, &policy, all, passed, &found, error);
    }
    if (status == LMCS_OK && found)
        status = lmcs_shelf_save(&txn, &shelf, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    status = lmcs_txn_commit(&txn, error);
    *worked = status == LMCS_OK;
    return status;
}

/* The background examines one batch of each shelf in a turn: other work waits. */
static enum lmcs_status note_all(struct lmcs_pool *pool, const struct lmcs_parity_turn *turn,
                                 struct lmcs_passed *passed, bool *worked, struct lmcs_error *error)
{
    uint64_t id = 0;
    enum lmcs_status status = lmcs_shelf_next(pool, &id, error);
    while (status == LMCS_OK && id != 0) {
        for (bool more = true; status == LMCS_OK && more;) {
            more = false;
            status = note_shelf(pool, id, turn->all, passed, &more, error);
            *worked |= more;
            more = more && turn->wait == NULL;
        }
        status = lmcs_shelf_pass_over(pool, id, passed, status, error);
        if (status == LMCS_OK)
            status = lmcs_shelf_next(pool, &id, error);
    }
    return status;
}

static enum lmcs_status add_wanted(struct lmcs_txn *txn, struct lmcs_cursor *cursor, struct lmcs_parity_batch *batch,
                                   struct lmcs_error *error)
{
    struct lmcs_wanted_df df;
    uint64_t content = lmcs_cursor_key(cursor).low;
    size_t bytes;
    bool lost = false;
    const void *value = lmcs_cursor_value(cursor, &bytes);
    if (bytes != sizeof df)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: wanted parity", txn->pool->path);
    memcpy(&df, value, bytes);
    enum lmcs_status status = lmcs_lost_any(txn, content, &lost, error); /* may be repaired later */
    if (status != LMCS_OK || lost || df.data == 0 || df.data > LMCS_MAX_PARITY_DATA || df.parity == 0 ||
        df.parity > LMCS_MAX_PARITY)
        return status;
    batch->contents[batch->count] = content;
    batch->wanted[batch->count++] = df;
    return LMCS_OK;
}

/* Lists wanted contents from id `from` on; skips damaged records. */
static enum lmcs_status list_wanted(struct lmcs_pool *pool, uint64_t from, struct lmcs_parity_batch *batch,
                                    struct lmcs_passed *passed, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    batch->count = 0;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_open(&cursor, &txn, LMCS_TREE_SAFETY, (struct lmcs_key_df){0, from}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == 0 &&
           batch->count < LMCS_PARITY_BATCH) {
        status = lmcs_pass_over(passed, add_wanted(&txn, cursor, batch, error), error);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return status;
}

/* Whether the last attempt failed recently, and the room has not grown since. */
static bool must_wait(struct lmcs_pool *pool, const struct lmcs_parity_wait *wait)
{
    uint64_t passed_ns = lmcs_steady_ns() - wait->since_ns;
    return wait->wait_ns > passed_ns && lmcs_space_free_bytes(pool) <= wait->free_bytes;
}

/* Sets the wait before the next attempt if contents are left; doubles it if nothing was made. */
static void note_wait(struct lmcs_pool *pool, bool is_left, bool made, struct lmcs_parity_wait *wait)
{
    uint64_t next = made || wait->wait_ns == 0 ? SHORTEST_WAIT_NS : 2 * wait->wait_ns;
    *wait = (struct lmcs_parity_wait){.wait_ns = 0};
    if (is_left)
        *wait = (struct lmcs_parity_wait){.wait_ns = next < LONGEST_WAIT_NS ? next : LONGEST_WAIT_NS,
                                          .since_ns = lmcs_steady_ns(),
                                          .free_bytes = lmcs_space_free_bytes(pool)};
}

static enum lmcs_status make_wanted(struct lmcs_pool *pool, const struct lmcs_parity_turn *turn,
                                    struct lmcs_parity_batch *batch, struct lmcs_passed *passed, bool *worked,
                                    struct lmcs_error *error)
{
    uint64_t from = 0;
    enum lmcs_status status;
    do {
        status = list_wanted(pool, from, batch, passed, error);
        if (status != LMCS_OK || batch->count == 0 || (turn->go_on != NULL && !turn->go_on(turn->context, 0)))
            return status;
        status = lmcs_parity_make_batch(pool, batch, turn->go_on, turn->context, error);
        for (size_t i = 0; i < batch->done; i++) {
            if (batch->is_damaged[i] && turn->suspect != NULL)
                turn->suspect(turn->context, batch->contents[i]);
            *worked |= status == LMCS_OK && !batch->is_damaged[i] && !batch->has_no_room[i];
            batch->is_any_left |= batch->is_damaged[i] || batch->has_no_room[i];
            from = batch->contents[i] + 1;
        }
    } while (status == LMCS_OK && batch->done > 0 && from != 0);
    return status;
}

/* Adds a link that has no parity, nor losses. */
static enum lmcs_status add_without(struct lmcs_txn *txn, const struct lmcs_policy *policy, uint64_t link,
                                    struct lmcs_parity_batch *batch, struct lmcs_error *error)
{
    struct lmcs_content content;
    struct lmcs_parity_record now;
    bool found, has = true, lost = false;
    enum lmcs_status status = lmcs_content_find(txn, link, &content, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_parity_find(txn, link, &now, &has, error);
    if (status == LMCS_OK && !has)
        status = lmcs_lost_any(txn, link, &lost, error);
    if (status != LMCS_OK || has || lost)
        return status;
    batch->contents[batch->count] = link;
    batch->wanted[batch->count++] = policy->parity_of_bases
                                        ? lmcs_parity_by_size(content.df.stored_bytes)
                                        : (struct lmcs_wanted_df){policy->parity_data, policy->parity};
    return LMCS_OK;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

enum lmcs_status lmcs_parity_before(struct lmcs_pool *pool, const struct lmcs_parity_turn *turn,
                                    const struct lmcs_policy *policy, uint64_t *links, size_t count,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    bool gave_way = turn->wait != NULL && turn->wait->free_bytes == UINT64_MAX && must_wait(pool, turn->wait);
    if (count == 0 || !lmcs_policy_has_parity(policy) || gave_way) /* contents that were left delay only themselves */
        return LMCS_OK;
    qsort(links, count, sizeof *links, by_number);
    for (size_t next = 0; status == LMCS_OK && next < count;) {
        struct lmcs_parity_batch batch = {.leaves_share = true, .too_large = UINT64_MAX};
        struct lmcs_txn txn;
        status = lmcs_txn_read(pool, &txn, error);
        if (status != LMCS_OK)
            return status;
        for (; status == LMCS_OK && next < count && batch.count < LMCS_PARITY_BATCH; next++)
            if (next == 0 || links[next] != links[next - 1])
                status = add_without(&txn, policy, links[next], &batch, error);
        lmcs_txn_end(&txn);
        if (status == LMCS_OK && batch.count > 0)
            status = lmcs_parity_make_batch(pool, &batch, turn->go_on, turn->context, error);
        for (size_t i = 0; i < batch.done; i++)
            if (batch.is_damaged[i] && turn->suspect != NULL)
                turn->suspect(turn->context, batch.contents[i]);
        if (batch.is_stopped)
            break;
        while (batch.done < batch.count && next > 0 && links[next - 1] >= batch.contents[batch.done])
            next--;
    }
    return status;
}

/* Drops parity with geometry by size from content id *from on, and requests it again, in one transaction. *from 0 on
 * return: there is no more. */
static enum lmcs_status drop_some(struct lmcs_pool *pool, uint64_t *from, size_t *dropped, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    uint64_t contents[LMCS_PARITY_BATCH];
    size_t count = 0;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_open(&cursor, &txn, LMCS_TREE_SAFETY, (struct lmcs_key_df){*from, 0}, error);
    *from = 0;
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        const struct lmcs_key_df key = lmcs_cursor_key(cursor);
        if (count == LMCS_PARITY_BATCH) {
            *from = key.high;
            break;
        }
        if (key.high != 0 && key.low == 0)
            contents[count++] = key.high;
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        bool gone = false;
        status = lmcs_parity_give_way(&txn, contents[i], &gone, error);
        *dropped += gone;
    }
    return lmcs_txn_finish(&txn, status, error);
}

void lmcs_parity_make_way(struct lmcs_pool *pool, struct lmcs_parity_wait *wait)
{
    struct lmcs_error ignored;
    uint64_t from = 1;
    size_t dropped = 0;
    while (from != 0 && drop_some(pool, &from, &dropped, &ignored) == LMCS_OK)
        continue;
    if (dropped > 0)
        *wait = (struct lmcs_parity_wait){
            .wait_ns = LONGEST_WAIT_NS, .since_ns = lmcs_steady_ns(), .free_bytes = UINT64_MAX};
}

enum lmcs_status lmcs_parity_turn(struct lmcs_pool *pool, const struct lmcs_parity_turn *turn, bool *worked,
                                  struct lmcs_error *error)
{
    struct lmcs_parity_batch batch = {.leaves_share = true, .too_large = UINT64_MAX};
    struct lmcs_passed passed = {.any = false};
    bool made = false;
    *worked = false;
    enum lmcs_status status = note_all(pool, turn, &passed, worked, error);
    bool has_room = turn->leave_bytes == 0 || lmcs_space_free_bytes(pool) >= turn->leave_bytes;
    bool waits = turn->wait != NULL && must_wait(pool, turn->wait) &&
                 (!*worked || turn->wait->free_bytes == UINT64_MAX); /* new contents may fit, unless parity gave way */
    if (status == LMCS_OK && has_room && !waits) {
        status = make_wanted(pool, turn, &batch, &passed, &made, error);
        if (turn->wait != NULL)
            note_wait(pool, batch.is_any_left || status == LMCS_FULL, made, turn->wait);
        *worked |= made;
    }
    return lmcs_parity_unless_full(&batch, lmcs_passed_over(&passed, status, error), error);
}
