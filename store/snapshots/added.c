/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * snapshots/added.c - the payload bytes that snapshots added: those of contents that no earlier one references.
 *
 * A content all of whose runs begin in one snapshot is that one's. Others have runs on several shelves (forks, restored
 * archives) or apart from each other; one walk over the changes of all earlier snapshots finds the first of each.
 */
#include <stdlib.h>

#include "base/grow.h"
#include "base/order.h"
#include "records/manifest.h"
#include "snapshots/snapshot.h"

/* A content that begins a run in a requested snapshot, and other runs elsewhere. */
struct shared {
    uint64_t content;
    uint64_t number;
    size_t index; /* of the request */
    uint64_t bytes;
    bool is_found;
};

struct adding {
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    uint64_t *begun; /* contents of the runs that begin in one snapshot */
    size_t begun_count, begun_capacity;
    struct shared *shared; /* by content and number */
    size_t shared_count, shared_capacity;
    size_t missing; /* contents in `shared` whose first snapshot is not found yet */
    uint64_t *new_bytes;
};

static enum lmcs_status collect(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                uint64_t successor, struct lmcs_error *error)
{
    struct adding *a = context;
    (void)identity;
    (void)successor;
    if (!lmcs_grow(&a->begun, &a->begun_capacity, a->begun_count, sizeof *a->begun))
        return lmcs_fail_memory(error);
    a->begun[a->begun_count++] = entry->content;
    return LMCS_OK;
}

/* Collects the contents of the runs that begin in a snapshot, sorted. *found false: it was removed. */
static enum lmcs_status find_begun(struct adding *a, struct lmcs_shelf *shelf, uint64_t number, bool *found,
                                   struct lmcs_error *error)
{
    struct lmcs_record record, older;
    bool has_older = false;
    a->begun_count = 0;
    enum lmcs_status status = lmcs_record_get(&a->txn, shelf, number, &record, found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_record_neighbour(&a->txn, shelf, &record.df, false, &older, &has_older, error);
    if (status == LMCS_OK && *found)
        status = lmcs_manifest_own(&a->txn, &record.df, has_older ? &older.df : NULL, NULL, false, collect, a, error);
    if (a->begun_count > 0)
        qsort(a->begun, a->begun_count, sizeof *a->begun, lmcs_by_u64);
    return status;
}

static enum lmcs_status add_content(struct adding *a, uint64_t content, size_t runs, size_t index, uint64_t number,
                                    struct lmcs_error *error)
{
    struct lmcs_chain chain;
    enum lmcs_status status = lmcs_chain_load(&a->txn, content, &chain, error);
    if (status != LMCS_OK)
        return status;
    uint64_t bytes = lmcs_chain_stored_bytes(&chain);
    if (chain.links[0].df.runs <= runs) {
        a->new_bytes[index] += bytes;
        return LMCS_OK;
    }
    if (!lmcs_grow(&a->shared, &a->shared_capacity, a->shared_count, sizeof *a->shared))
        return lmcs_fail_memory(error);
    a->shared[a->shared_count++] =
        (struct shared){.content = content, .number = number, .index = index, .bytes = bytes};
    return LMCS_OK;
}

static enum lmcs_status add_snapshot(struct adding *a, uint64_t number, size_t index, struct lmcs_error *error)
{
    bool found = false;
    size_t shared_before = a->shared_count;
    enum lmcs_status status = find_begun(a, &a->shelf, number, &found, error);
    a->new_bytes[index] = 0;
    for (size_t i = 0, end; status == LMCS_OK && found && i < a->begun_count; i = end) {
        for (end = i + 1; end < a->begun_count && a->begun[end] == a->begun[i];)
            end++;
        status = add_content(a, a->begun[i], end - i, index, number, error);
    }
    if (!lmcs_is_unusable(status))
        return status;
    a->shared_count = shared_before;
    a->new_bytes[index] = LMCS_BYTES_UNKNOWN;
    return LMCS_OK;
}

/* ---- The first snapshot of a content with several runs ---- */

static int by_content(const void *a, const void *b)
{
    const struct shared *x = a, *y = b;
    return LMCS_ORDER2(x->content, y->content, x->number, y->number);
}

static struct shared *find_shared(const struct adding *a, uint64_t content)
{
    size_t low = 0, high = a->shared_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (a->shared[middle].content < content)
            low = middle + 1;
        else
            high = middle;
    }
    return low < a->shared_count && a->shared[low].content == content ? &a->shared[low] : NULL;
}

/* Notes the contents that a snapshot begins; those that it is the first to reference are its own. */
static void note_begun(struct adding *a, const struct lmcs_shelf *shelf, uint64_t number)
{
    for (size_t i = 0; i < a->begun_count; i++) {
        struct shared *first = find_shared(a, a->begun[i]), *end = a->shared + a->shared_count;
        if (first == NULL || first->is_found)
            continue;
        first->is_found = true;
        a->missing--;
        for (struct shared *at = first; at < end && at->content == first->content; at++)
            if (shelf->df.id == a->shelf.df.id && at->number == number)
                a->new_bytes[at->index] += at->bytes;
    }
}

static enum lmcs_status search_shelf(struct adding *a, uint64_t id, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    bool found;
    uint64_t number = 0;
    enum lmcs_status status = lmcs_shelf_load_if(&a->txn, id, &shelf, &found, error);
    if (status != LMCS_OK || !found || (shelf.df.flags & LMCS_SHELF_STAGING) != 0)
        return status;
    while (a->missing > 0) {
        status = lmcs_record_after(&a->txn, &shelf, number, &number, error);
        if (status != LMCS_OK || number == 0)
            return status;
        status = find_begun(a, &shelf, number, &found, error);
        if (status == LMCS_OK && found)
            note_begun(a, &shelf, number);
        if (status != LMCS_OK && !lmcs_is_unusable(status))
            return status;
    }
    return LMCS_OK;
}

/* Searches this shelf and those with lower ids; damaged ones are passed over. */
static enum lmcs_status search(struct adding *a, struct lmcs_error *error)
{
    uint64_t ids[64], first = 0;
    size_t got = 64;
    enum lmcs_status status = LMCS_OK;
    if (a->shared_count > 0)
        qsort(a->shared, a->shared_count, sizeof *a->shared, by_content);
    for (size_t i = 0; i < a->shared_count; i++)
        a->missing += i == 0 || a->shared[i].content != a->shared[i - 1].content;
    while (status == LMCS_OK && a->missing > 0 && got == 64 && first <= a->shelf.df.id) {
        status = lmcs_shelf_ids(&a->txn, first, ids, 64, &got, error);
        status = lmcs_is_unusable(status) ? LMCS_OK : status;
        for (size_t i = 0; status == LMCS_OK && i < got && ids[i] <= a->shelf.df.id; i++) {
            status = search_shelf(a, ids[i], error);
            status = lmcs_is_unusable(status) ? LMCS_OK : status;
        }
        first = got > 0 ? ids[got - 1] + 1 : 0;
    }
    return status;
}

enum lmcs_status lmcs_snapshot_new_bytes(struct lmcs_pool *pool, const char *shelf, const uint64_t *numbers,
                                         size_t count, uint64_t *new_bytes, struct lmcs_error *error)
{
    struct adding a = {.new_bytes = new_bytes};
    struct lmcs_error why;
    enum lmcs_status status = lmcs_pool_check(pool, false, &why);
    if (status == LMCS_OK)
        status = lmcs_txn_hold(pool, &a.txn, &why);
    if (status == LMCS_OK) {
        status = lmcs_shelf_get(&a.txn, shelf == NULL ? "" : shelf, &a.shelf, &why);
        for (size_t i = 0; status == LMCS_OK && i < count; i++)
            status = add_snapshot(&a, numbers[i], i, &why);
        if (status == LMCS_OK)
            status = search(&a, &why);
        lmcs_txn_end(&a.txn);
    }
    free(a.begun);
    free(a.shared);
    if (status != LMCS_OK && error != NULL)
        *error = why;
    return status;
}
