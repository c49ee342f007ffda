/* SPDX-License-Identifier: BSD-3-Clause */
/* repair/scrub_scope.c - scrubs the contents of addresses and their bases, in the order of their ids. */
#include "base/order.h"
#include "repair/scrubbing.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "payload/layout.h"
#include "records/manifest.h"
#include "records/shelf.h"

static enum lmcs_status add_id(struct lmcs_scrubbing *s, uint64_t id, struct lmcs_error *error)
{
    if (!lmcs_grow(&s->ids, &s->id_capacity, s->id_count, sizeof *s->ids))
        return lmcs_fail_memory(error);
    s->ids[s->id_count++] = id;
    return LMCS_OK;
}

static void sort_ids(struct lmcs_scrubbing *s)
{
    size_t kept = 0;
    if (s->id_count > 1)
        qsort(s->ids, s->id_count, sizeof *s->ids, lmcs_by_u64);
    for (size_t i = 0; i < s->id_count; i++)
        if (kept == 0 || s->ids[kept - 1] != s->ids[i])
            s->ids[kept++] = s->ids[i];
    s->id_count = kept;
}

static enum lmcs_status add_entry(void *context, uint64_t identity, const struct lmcs_manifest_df *entry, bool *stop,
                                  struct lmcs_error *error)
{
    struct lmcs_scrubbing *s = context;
    (void)identity;
    (void)stop;
    return add_id(s, entry->content, error);
}

static enum lmcs_status add_snapshots(struct lmcs_scrubbing *s, struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                      uint64_t first, uint64_t last, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint64_t number = first - (first > 0); status == LMCS_OK;) {
        struct lmcs_record record;
        bool found = false;
        status = lmcs_record_after(txn, shelf, number, &number, error);
        if (status != LMCS_OK || number == 0 || number > last)
            break;
        status = lmcs_record_get(txn, shelf, number, &record, &found, error);
        if (status == LMCS_OK && found)
            status = lmcs_manifest_each(txn, &record.df, add_entry, s, error);
        s->report.remote += status == LMCS_OK && found && record.df.state == LMCS_SNAPSHOT_REMOTE;
        if (s->id_count > (size_t)1 << 20)
            sort_ids(s);
    }
    return status;
}

static enum lmcs_status add_address(struct lmcs_scrubbing *s, struct lmcs_txn *txn, const char *address,
                                    struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    uint64_t first = 1, last = UINT64_MAX;
    const char *at = strchr(address, '@');
    char *name = at == NULL ? strdup(address) : strndup(address, (size_t)(at - address));
    if (name == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_shelf_get(txn, name, &shelf, error);
    free(name);
    if (status == LMCS_OK && at != NULL)
        status = lmcs_shelf_resolve_range(txn, &shelf, at + 1, false, &first, &last, error);
    return status == LMCS_OK ? add_snapshots(s, txn, &shelf, first, last, error) : status;
}

struct ids {
    uint64_t *at;
    size_t count;
    size_t capacity;
};

/* Removes ids that occur twice or are listed already. */
static void only_new(const struct lmcs_scrubbing *s, struct ids *found)
{
    size_t kept = 0;
    if (found->count > 1)
        qsort(found->at, found->count, sizeof *found->at, lmcs_by_u64);
    for (size_t i = 0; i < found->count; i++) {
        bool again = kept > 0 && found->at[kept - 1] == found->at[i];
        if (!again && bsearch(&found->at[i], s->ids, s->id_count, sizeof *s->ids, lmcs_by_u64) == NULL)
            found->at[kept++] = found->at[i];
    }
    found->count = kept;
}

static enum lmcs_status add_bases_of(struct lmcs_scrubbing *s, struct lmcs_txn *txn, uint64_t id, struct ids *found,
                                     struct lmcs_error *error)
{
    struct lmcs_content content;
    bool is_there;
    enum lmcs_status status = lmcs_content_find(txn, id, &content, &is_there, error);
    if (status != LMCS_OK || !is_there)
        return lmcs_is_unusable(status) ? LMCS_OK : status; /* the scrub of the content reports it */
    s->report.bytes_total += content.df.stored_bytes;
    uint64_t link = content.df.payload == LMCS_PAYLOAD_LINKED ? content.link : 0;
    for (size_t i = 0; i < content.df.base_count + (size_t)(link != 0); i++) {
        if (!lmcs_grow(&found->at, &found->capacity, found->count, sizeof *found->at))
            return lmcs_fail_memory(error);
        found->at[found->count++] = i < content.df.base_count ? content.bases[i] : link;
    }
    return LMCS_OK;
}

static enum lmcs_status add_bases(struct lmcs_scrubbing *s, struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct ids now = {NULL, 0, 0}, next = {NULL, 0, 0};
    enum lmcs_status status = LMCS_OK;
    sort_ids(s);
    for (size_t i = 0; status == LMCS_OK && i < s->id_count; i++)
        status = add_bases_of(s, txn, s->ids[i], &now, error);
    only_new(s, &now);
    for (unsigned i = 0; status == LMCS_OK && now.count > 0 && i < LMCS_DEEPEST; i++) {
        next.count = 0;
        for (size_t k = 0; status == LMCS_OK && k < now.count; k++) {
            status = add_id(s, now.at[k], error);
            if (status == LMCS_OK)
                status = add_bases_of(s, txn, now.at[k], &next, error);
        }
        sort_ids(s);
        only_new(s, &next);
        struct ids swapped = now;
        now = next;
        next = swapped;
    }
    free(now.at);
    free(next.at);
    return status;
}

enum lmcs_status lmcs_scrub_addresses(struct lmcs_scrubbing *s, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < s->options->address_count; i++)
        status = add_address(s, &txn, s->options->addresses[i], error);
    if (status == LMCS_OK)
        status = add_bases(s, &txn, error);
    lmcs_txn_end(&txn);
    lmcs_scrub_show(s);
    for (size_t i = 0; status == LMCS_OK && i < s->id_count; i++)
        status = lmcs_scrub_content(s, s->ids[i], error);
    return status;
}
