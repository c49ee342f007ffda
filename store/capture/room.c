/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/room.c - room for a capture on a full pool, and the message if there is none. */
#include "capture/state.h"

static uint64_t count_snapshots(struct lmcs_pool *pool, const char *name)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    if (lmcs_txn_read(pool, &txn, NULL) != LMCS_OK)
        return 0;
    bool found = lmcs_shelf_get(&txn, name, &shelf, NULL) == LMCS_OK;
    lmcs_txn_end(&txn);
    return found ? shelf.df.snapshot_count : 0;
}

void lmcs_capture_explain_full(const struct lmcs_capture *capture, struct lmcs_error *error)
{
    uint64_t count = error != NULL ? count_snapshots(capture->pool, capture->busy->name) : 0;
    lmcs_error_append(error, "; nothing of this snapshot was kept");
    if (count >= 2)
        lmcs_error_append(error, "; older ones can be pruned: \"%.100s\" has %llu", capture->busy->name,
                          (unsigned long long)count);
}

/* Whether the capture shares contents of its base. */
static bool shares(const struct lmcs_capture *capture)
{
    for (size_t i = 0; i < capture->entries.count; i++)
        if (capture->entries.items[i]->shared != 0)
            return true;
    return false;
}

bool lmcs_capture_make_room(struct lmcs_capture *capture)
{
    bool others = lmcs_ticket_wait(capture->pool, capture->busy, &capture->ticket);
    if (capture->began_behind && !shares(capture)) {
        pthread_mutex_lock(&capture->pool->captures);
        capture->ticket.base = 0; /* the turn finds all names again */
        pthread_mutex_unlock(&capture->pool->captures);
        for (size_t i = 0; i < capture->entries.count; i++)
            capture->entries.items[i]->identity = capture->entries.items[i]->previous = 0;
    }
    return lmcs_pool_make_room(capture->pool, capture->busy->name) || others;
}
