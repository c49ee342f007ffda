/* SPDX-License-Identifier: BSD-3-Clause */
/* live/load.c - opening: journals are recovered, and free space is found. */
#include <stdlib.h>

#include "live/journal.h"
#include "live/space.h"

/* An id from next_live or next_shelf on would collide with the next one made. */
static enum lmcs_status use_record(void *context, struct lmcs_live_record *record, struct lmcs_error *error)
{
    const struct lmcs_txn *txn = context;
    enum lmcs_status status = LMCS_OK;
    if (record->id >= txn->root.next_live || record->shelf >= txn->root.next_shelf)
        status = lmcs_root_fail_number(txn->pool, "live variable", record->id, error);
    if (status == LMCS_OK)
        status = lmcs_live_space_use(txn->pool, record, error);
    free(record);
    return status;
}

static enum lmcs_status use_journals(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < LMCS_JOURNALS; i++) {
        struct lmcs_page_range_df range = root->journals[i];
        uint64_t bytes = range.end - range.next;
        if (bytes == 0)
            continue;
        /* No record says which pages have file space: only the first keeps it. */
        status = lmcs_live_space_use_pages(pool, range.next, bytes, bytes, error);
        if (status == LMCS_OK && pool->heap != NULL)
            lmcs_live_unback(pool, range.next + LMCS_PAGE_BYTES, bytes - LMCS_PAGE_BYTES);
        pool->live->journal_backed[i] = LMCS_PAGE_BYTES;
    }
    return status;
}

static enum lmcs_status use_records(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_record_each(&txn, 0, use_record, &txn, error);
    lmcs_txn_end(&txn);
    return status;
}

enum lmcs_status lmcs_live_store_check(struct lmcs_pool *pool, const struct lmcs_root_df *root,
                                       struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_space_begin(pool, error);
    if (status == LMCS_OK)
        status = lmcs_journal_check(pool, root, error);
    /* Before lmcs_live_store_load punches pages behind tensors. */
    if (status == LMCS_OK)
        status = use_journals(pool, root, error);
    if (status == LMCS_OK)
        status = use_records(pool, error);
    lmcs_live_space_free(&pool->live->space);
    return status;
}

enum lmcs_status lmcs_live_store_load(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_live_store *live = pool->live;
    live->next_id = pool->root.next_live > 0 ? pool->root.next_live : 1;
    enum lmcs_status status = lmcs_live_space_begin(pool, error);
    if (status == LMCS_OK)
        status = lmcs_journal_recover(pool, error);
    if (status == LMCS_OK)
        status = use_journals(pool, &pool->root, error);
    if (status == LMCS_OK)
        status = use_records(pool, error);
    return status == LMCS_OK ? lmcs_live_space_end(pool, error) : status;
}
