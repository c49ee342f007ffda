/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/parity_turn.c - makes the parity that policies ask for. */
#include <string.h>

#include "compact/parity_batch.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/manifest.h"
#include "records/policy.h"
#include "records/shelf.h"

#define SHORTEST_WAIT_NS ((uint64_t)2 * 1000000000) /* for room */
#define LONGEST_WAIT_NS  ((uint64_t)64 * 1000000000)

struct noting {
    struct lmcs_txn *txn;
    uint32_t data;
    uint32_t parity;
    bool is_spoilt; /* a record was not written: do not commit */
};

/* Marks the content of an entry as wanted unless it has the parity that the policy asks for. */
static enum lmcs_status note_content(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                     uint64_t successor, struct lmcs_error *error)
{
    struct noting *noting = context;
    struct lmcs_parity_record now;
    struct lmcs_content content;
    bool found;
    (void)identity;
    (void)successor;
    enum lmcs_status status = lmcs_content_get(noting->txn, entry->content, &content, error);
    if (status != LMCS_OK)
        return status;
    uint64_t id = content.df.payload == LMCS_PAYLOAD_LINKED ? content.link : content.id;
    status = lmcs_parity_find(noting->txn, id, &now, &found, error);
    if (status != LMCS_OK || (found && now.df.data == noting->data && now.df.parity == noting->parity))
        return status;
    status = lmcs_parity_want(noting->txn, id, noting->data, noting->parity, error);
    noting->is_spoilt = status != LMCS_OK;
    return status;
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
    struct noting noting = {txn, policy->parity_data, policy->parity, false};
    enum lmcs_status status = LMCS_OK;
    *noted = false;
    for (unsigned i = 0; status == LMCS_OK && i < LMCS_PARITY_BATCH; i++) {
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
        found = policy.parity > 0 && (shelf.df.flags & LMCS_SHELF_STAGING) == 0;
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
        status = policy.parity > 0 ? note_snapshots(&txn, &shelf, &policy, all, passed, &found, error) : LMCS_OK;
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

static enum lmcs_status note_all(struct lmcs_pool *pool, bool all, struct lmcs_passed *passed, bool *worked,
                                 struct lmcs_error *error)
{
    uint64_t id = 0;
    enum lmcs_status status = lmcs_shelf_next(pool, &id, error);
    while (status == LMCS_OK && id != 0) {
        for (bool more = true; status == LMCS_OK && more;) {
            more = false;
            status = note_shelf(pool, id, all, passed, &more, error);
            *worked |= more;
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

enum lmcs_status lmcs_parity_turn(struct lmcs_pool *pool, const struct lmcs_parity_turn *turn, bool *worked,
                                  struct lmcs_error *error)
{
    struct lmcs_parity_batch batch = {.leaves_share = true, .too_large = UINT64_MAX};
    struct lmcs_passed passed = {.any = false};
    bool made = false;
    *worked = false;
    enum lmcs_status status = note_all(pool, turn->all, &passed, worked, error);
    if (status == LMCS_OK && (*worked || turn->wait == NULL || !must_wait(pool, turn->wait))) {
        status = make_wanted(pool, turn, &batch, &passed, &made, error);
        if (turn->wait != NULL)
            note_wait(pool, batch.is_any_left || status == LMCS_FULL, made, turn->wait);
        *worked |= made;
    }
    return lmcs_parity_unless_full(&batch, lmcs_passed_over(&passed, status, error), error);
}
