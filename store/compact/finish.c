/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/finish.c - the raw contents of a shelf's newest snapshots, which are encoded once its run is finished. */
#include "base/map.h"
#include "compact/round.h"
#include "pages/pool.h"
#include "records/annotation.h"
#include "records/manifest.h"

struct counting {
    struct lmcs_txn *txn;
    struct lmcs_map seen; /* contents */
    uint64_t raw_bytes;
};

static enum lmcs_status count_content(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                      uint64_t successor, struct lmcs_error *error)
{
    struct counting *counting = context;
    struct lmcs_content content;
    (void)identity;
    (void)successor;
    if (lmcs_map_get(&counting->seen, entry->content) != 0)
        return LMCS_OK;
    if (!lmcs_map_put(&counting->seen, entry->content, 1))
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_content_get(counting->txn, entry->content, &content, error);
    if (status == LMCS_OK && content.df.payload == LMCS_PAYLOAD_RAW && (content.df.flags & LMCS_CONTENT_SETTLED) == 0 &&
        content.df.raw_bytes >= LMCS_DELTA_LEAST_BYTES)
        counting->raw_bytes += content.df.stored_bytes;
    return status;
}

/* Counts in the snapshots from number `first` to the latest. */
static enum lmcs_status count_raw(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t first, uint64_t *raw_bytes,
                                  struct lmcs_error *error)
{
    struct counting counting = {.txn = txn};
    struct lmcs_record record, older;
    uint64_t number = first - 1;
    enum lmcs_status status = LMCS_OK;
    for (bool has_older = false;;) {
        bool found;
        status = lmcs_record_after(txn, shelf, number, &number, error);
        if (status != LMCS_OK || number == 0 || number > shelf->df.latest)
            break;
        status = lmcs_record_get(txn, shelf, number, &record, &found, error);
        if (status == LMCS_OK && found) {
            bool follows = has_older && older.df.lineage == record.df.lineage;
            status = lmcs_manifest_own(txn, &record.df, follows ? &older.df : NULL, NULL, false, count_content,
                                       &counting, error);
            older = record;
            has_older = true;
        }
        if (status != LMCS_OK)
            break;
    }
    lmcs_map_free(&counting.seen);
    *raw_bytes = counting.raw_bytes;
    return status;
}

/* The first snapshot to count, at the latest the last: after removals it may have raw contents though the compactor has
 * processed it. */
static uint64_t first_raw(const struct lmcs_shelf *shelf)
{
    return shelf->df.compacted < shelf->df.latest ? shelf->df.compacted + 1 : shelf->df.latest;
}

enum lmcs_status lmcs_shelf_raw_bytes(struct lmcs_pool *pool, const char *shelf_name, uint64_t *raw_bytes,
                                      struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    uint64_t counted = 0;
    enum lmcs_status status = lmcs_shelf_read(pool, shelf_name, &txn, &shelf, error);
    if (status != LMCS_OK)
        return status;
    if (shelf.df.latest != 0)
        status = count_raw(&txn, &shelf, first_raw(&shelf), &counted, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK)
        *raw_bytes = counted;
    return status;
}

/* Lets the rounds process the latest snapshot again if it has raw contents. */
static enum lmcs_status begin_shelf(struct lmcs_txn *txn, struct lmcs_shelf *shelf, bool *changed,
                                    struct lmcs_error *error)
{
    uint64_t raw_bytes = 0;
    if (shelf->df.latest == 0 || shelf->df.compacted < shelf->df.latest || (shelf->df.flags & LMCS_SHELF_STAGING) != 0)
        return LMCS_OK;
    enum lmcs_status status = count_raw(txn, shelf, shelf->df.latest, &raw_bytes, error);
    *changed = status == LMCS_OK && raw_bytes > 0;
    if (!*changed)
        return status;
    shelf->df.compacted = shelf->df.latest - 1;
    return lmcs_shelf_save(txn, shelf, error);
}

static enum lmcs_status begin_id(struct lmcs_pool *pool, uint64_t id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    bool found, changed = false;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&txn, id, &shelf, &found, error);
    if (status == LMCS_OK && found)
        status = begin_shelf(&txn, &shelf, &changed, error);
    if (status == LMCS_OK && changed)
        return lmcs_txn_commit(&txn, error);
    lmcs_txn_end(&txn);
    return status;
}

enum lmcs_status lmcs_round_finish(struct lmcs_round *round, const char *name, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    uint64_t id = 0;
    if (name != NULL) {
        enum lmcs_status status = lmcs_shelf_read(round->pool, name, &txn, &shelf, error);
        if (status != LMCS_OK)
            return status;
        lmcs_txn_end(&txn);
        round->finished = shelf.df.id;
        return begin_id(round->pool, shelf.df.id, error);
    }
    round->finished = LMCS_EVERY_SHELF;
    enum lmcs_status status = lmcs_shelf_next(round->pool, &id, error);
    while (status == LMCS_OK && id != 0) {
        status = lmcs_round_pass_over_shelf(round, id, begin_id(round->pool, id, error), error);
        if (status == LMCS_OK)
            status = lmcs_shelf_next(round->pool, &id, error);
    }
    return status;
}
