/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/search.c - finds the steps of optimizers in a capture without relations, from the data. */
#include <stdlib.h>

#include "base/grow.h"
#include "base/guard.h"
#include "capture/state.h"
#include "payload/read.h"

/* A changed tensor. */
struct changed {
    size_t entry;
    struct lmcs_content before;
    bool pinned;
    struct lmcs_search_array array;
};

struct search {
    struct lmcs_capture *capture;
    struct changed *items;
    size_t count, capacity;
    struct lmcs_search_array *arrays;
    struct lmcs_search_match *matches;
    size_t found;
    enum lmcs_status status;
    struct lmcs_error error;
};

/* Lists the entry, unless its bytes before are not at hand. */
static enum lmcs_status consider(struct search *s, struct lmcs_txn *txn, size_t index, struct lmcs_error *error)
{
    const struct lmcs_captured *entry = s->capture->entries.items[index];
    struct changed item = {.entry = index};
    bool found = false;
    if (!lmcs_capture_may_step(entry) || entry->raw_bytes < LMCS_SEARCH_LEAST_ELEMENTS * sizeof(float))
        return LMCS_OK;
    if (!lmcs_grow(&s->items, &s->capacity, s->count, sizeof *s->items))
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_content_find(txn, entry->previous, &item.before, &found, error);
    if (status == LMCS_OK && found && item.before.df.raw_bytes == entry->raw_bytes)
        status = lmcs_capture_before(s->capture, &entry->tensor, &item.before, &item.array.before, &item.pinned, error);
    item.array.after = lmcs_captured_bytes(entry);
    item.array.elements = entry->raw_bytes / sizeof(float);
    if (status == LMCS_OK && item.array.before != NULL)
        s->items[s->count++] = item;
    return lmcs_is_unusable(status) ? LMCS_OK : status;
}

static void find(void *context)
{
    struct search *s = context;
    s->status = lmcs_optimizer_search(s->arrays, s->count, &s->matches, &s->found, &s->error);
}

static enum lmcs_status find_matches(struct search *s, struct lmcs_error *error)
{
    struct lmcs_guarded *ranges = calloc(2 * s->count, sizeof *ranges);
    s->arrays = calloc(s->count, sizeof *s->arrays);
    enum lmcs_status status = ranges == NULL || s->arrays == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < s->count; i++) {
        s->arrays[i] = s->items[i].array;
        ranges[2 * i] = (struct lmcs_guarded){s->arrays[i].before, s->items[i].before.df.raw_bytes};
        ranges[2 * i + 1] = (struct lmcs_guarded){s->arrays[i].after, s->items[i].before.df.raw_bytes};
    }
    if (status == LMCS_OK && !lmcs_guard(ranges, 2 * s->count, find, s)) {
        s->found = 0; /* the medium does not deliver raw bytes of the base snapshot, or what is lent is unreadable */
    } else if (status == LMCS_OK && s->status != LMCS_OK) {
        *error = s->error;
        status = s->status;
    }
    free(ranges);
    return status;
}

enum lmcs_status lmcs_capture_search(struct lmcs_capture *capture, struct lmcs_search_match **matches, size_t *found,
                                     struct lmcs_error *error)
{
    struct search s = {.capture = capture};
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(capture->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < capture->entries.count; i++)
        status = consider(&s, &txn, i, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && s.count > 1)
        status = find_matches(&s, error);
    for (size_t i = 0; i < s.found; i++)
        for (uint32_t k = 0; k < s.matches[i].count; k++)
            s.matches[i].arrays[k] = s.items[s.matches[i].arrays[k]].entry;
    for (size_t i = 0; i < s.count; i++)
        if (s.items[i].pinned)
            lmcs_payload_unpin(capture->pool->lease, &s.items[i].before);
    free(s.items);
    free(s.arrays);
    *matches = s.matches;
    *found = s.found;
    return status;
}
