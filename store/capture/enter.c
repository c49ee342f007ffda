/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/enter.c - the transaction that makes a snapshot of a capture.
 *
 * It enters identities and contents, a changed copy of the base's manifest, the snapshot's record, tags and group. All
 * payloads are durable before it begins.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/grow.h"
#include "base/order.h"
#include "capture/state.h"
#include "pages/tree.h"
#include "records/shelf.h"

struct committing {
    struct lmcs_capture *capture;
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record base;
    struct lmcs_record record;
    struct lmcs_root_tree_df manifest;
    uint64_t base_number; /* newest snapshot; 0: none */
    bool has_base;
    bool is_overtaken; /* snapshots were committed since the capture began */
    bool refused;      /* a link or a delta may not be entered any more */
};

/*
 * Finds the name again in a base that is newer than that of the put, and shares that one's content if it is raw and has
 * the same digest. The content shared by the put is in a snapshot that pruning keeps.
 */
static enum lmcs_status find_again(struct committing *c, struct lmcs_captured *entry, struct lmcs_error *error)
{
    const struct lmcs_source source = {.tensor = &entry->tensor, .raw_bytes = entry->raw_bytes};
    struct lmcs_previous now = {.identity = 0};
    enum lmcs_status status = lmcs_previous_find(&c->txn, &c->manifest, &source, 1, &now, error);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_content_df *old = &now.content.df, *own = &entry->content.df;
    entry->identity = now.identity;
    entry->previous = now.identity != 0 ? now.content.id : 0;
    if (entry->shared == 0 && entry->same_as == 0 && now.identity != 0 && !now.is_lost &&
        old->payload == LMCS_PAYLOAD_RAW && old->raw_bytes == entry->raw_bytes && old->digest_low == own->digest_low &&
        old->digest_high == own->digest_high)
        entry->shared = now.content.id;
    return LMCS_OK;
}

/* Finds the content of the name in the base snapshot; 0: none. */
static enum lmcs_status find_previous(struct committing *c, const struct lmcs_captured *entry, uint64_t *previous,
                                      struct lmcs_error *error)
{
    struct lmcs_manifest_df old;
    bool found;
    *previous = entry->previous;
    if (entry->same_as == 0) /* the put found it, or the content is new */
        return LMCS_OK;
    enum lmcs_status status =
        lmcs_tree_get(&c->txn, LMCS_TREE_MANIFEST, &c->manifest, (struct lmcs_key_df){entry->identity, 0}, &old,
                      sizeof old, sizeof old, NULL, &found, error);
    *previous = status == LMCS_OK && found ? old.content : 0;
    return status;
}

/* Enters a name: with a new run, unless the base snapshot has the same content. */
static enum lmcs_status put_name(struct committing *c, struct lmcs_captured *entry, uint64_t content, bool is_new,
                                 struct lmcs_error *error)
{
    struct lmcs_manifest_df now = {content, c->record.df.number};
    uint64_t previous;
    enum lmcs_status status = find_previous(c, entry, &previous, error);
    if (status != LMCS_OK || previous == content)
        return status;
    if (!is_new)
        status = lmcs_content_run(&c->txn, content, entry->identity, error);
    if (status == LMCS_OK)
        status = lmcs_tree_put(&c->txn, LMCS_TREE_MANIFEST, &c->manifest, (struct lmcs_key_df){entry->identity, 0},
                               &now, sizeof now, error);
    return status;
}

static enum lmcs_status put_entry(struct committing *c, struct lmcs_captured *entry, struct lmcs_error *error)
{
    enum lmcs_status status = c->is_overtaken ? find_again(c, entry, error) : LMCS_OK;
    if (status == LMCS_OK && entry->identity == 0)
        status = lmcs_identity_make(&c->txn, &entry->tensor, &entry->identity, error);
    if (status != LMCS_OK)
        return status;
    if (entry->same_as != 0) {
        const struct lmcs_captured *origin = c->capture->entries.items[entry->same_as - 1];
        return put_name(c, entry, origin->shared != 0 ? origin->shared : origin->content.id, false, error);
    }
    if (entry->shared != 0)
        return put_name(c, entry, entry->shared, false, error);
    entry->content.id = 0;
    if (entry->form == LMCS_FORM_LINKED) {
        entry->content.link = c->capture->links[entry->link].made.id;
        entry->content.df.payload = LMCS_PAYLOAD_LINKED;
    }
    entry->content.df.identity = entry->identity;
    entry->content.df.runs = 1;
    status = lmcs_content_add(&c->txn, &entry->content, error);
    return status == LMCS_OK ? put_name(c, entry, entry->content.id, true, error) : status;
}

/* Lists the identities of the base's manifest that are not `wanted` (sorted). The caller frees *drop. */
static enum lmcs_status list_dropped(struct committing *c, const uint64_t *wanted, size_t count, uint64_t **drop,
                                     size_t *drops, struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    size_t capacity = 0, w = 0;
    enum lmcs_status status =
        lmcs_cursor_open(&cursor, &c->txn, LMCS_TREE_MANIFEST, &c->manifest, (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        uint64_t identity = lmcs_cursor_key(cursor).high;
        while (w < count && wanted[w] < identity)
            w++;
        if (w == count || wanted[w] != identity) {
            if (!lmcs_grow(drop, &capacity, *drops, sizeof **drop)) {
                status = lmcs_fail_memory(error);
                break;
            }
            (*drop)[(*drops)++] = identity;
        }
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

/* Removes names that the capture lacks. Does not allocate by the count in the base's record, which may be damaged. */
static enum lmcs_status drop_names(struct committing *c, struct lmcs_error *error)
{
    const struct lmcs_capture *capture = c->capture;
    size_t count = capture->entries.count, drops = 0;
    uint64_t *drop = NULL;
    if (c->manifest.count == count)
        return LMCS_OK;
    uint64_t *wanted = malloc((count + 1) * sizeof *wanted);
    if (wanted == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < count; i++)
        wanted[i] = capture->entries.items[i]->identity;
    qsort(wanted, count, sizeof *wanted, lmcs_by_u64);
    enum lmcs_status status = list_dropped(c, wanted, count, &drop, &drops, error);
    if (status == LMCS_OK && c->manifest.count - count != drops)
        status = lmcs_fail(error, LMCS_DAMAGED, 0,
                           "%s: damaged metadata: the record of %s@%llu has another number of names than its manifest",
                           capture->pool->path, capture->busy->name, (unsigned long long)c->base_number);
    for (size_t i = 0; status == LMCS_OK && i < drops; i++)
        status =
            lmcs_tree_delete(&c->txn, LMCS_TREE_MANIFEST, &c->manifest, (struct lmcs_key_df){drop[i], 0}, NULL, error);
    free(wanted);
    free(drop);
    return status;
}

static enum lmcs_status load_shelf(struct committing *c, struct lmcs_error *error)
{
    struct lmcs_capture *capture = c->capture;
    bool found;
    enum lmcs_status status = lmcs_shelf_find(&c->txn, capture->busy->name, &c->shelf, &found, error);
    if (status == LMCS_OK)
        status = found ? lmcs_shelf_check_next(&c->txn, &c->shelf, error)
                       : lmcs_shelf_make(&c->txn, capture->busy->name, 0, &c->shelf, error);
    if (status == LMCS_OK && capture->ticket.number >= LMCS_LARGEST_NUMBER)
        status =
            lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                      "%s: shelf \"%.200s\" has no numbers left (an archive may have set them so): fork it, and go "
                      "on there",
                      capture->pool->path, capture->busy->name);
    if (status == LMCS_OK && found)
        status = lmcs_record_before(&c->txn, &c->shelf, UINT64_MAX, &c->base_number, error);
    c->is_overtaken = c->base_number > capture->ticket.base;
    if (status != LMCS_OK || (c->base_number == 0 && capture->ticket.base == 0))
        return status;
    status = lmcs_record_get(&c->txn, &c->shelf, c->base_number, &c->base, &c->has_base, error);
    if (status == LMCS_OK && (!c->has_base || c->base_number < capture->ticket.base))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: the newest snapshot has gone while a capture was under way",
                         capture->pool->path);
    c->manifest = (struct lmcs_root_tree_df){.ref = c->base.df.manifest, .count = c->base.df.entry_count};
    return status;
}

/* Enters the links, before the arrays that they lead to. */
static enum lmcs_status enter_links(struct committing *c, struct lmcs_error *error)
{
    const struct lmcs_capture *capture = c->capture;
    enum lmcs_status status = lmcs_capture_check_forms(c->capture, &c->txn, &c->refused, error);
    for (size_t i = 0; status == LMCS_OK && !c->refused && i < capture->link_count; i++) {
        capture->links[i].made.id = 0;
        if (capture->links[i].arrays > 0)
            status = lmcs_content_add(&c->txn, &capture->links[i].made, error);
    }
    return status;
}

static void fill_record(struct committing *c)
{
    struct lmcs_capture *capture = c->capture;
    const struct lmcs_commit_options *options = &capture->options;
    struct lmcs_snapshot_df *df = &c->record.df;
    size_t meta_bytes = strlen(capture->meta);
    df->number = capture->ticket.number;
    df->state = options->prepare ? LMCS_SNAPSHOT_PREPARED : LMCS_SNAPSHOT_COMMITTED;
    df->step = options->step;
    df->time_ns = options->time_ns != 0 ? options->time_ns : lmcs_now_ns();
    df->parent = options->parent;
    if (options->parent == UINT64_MAX)
        df->parent = 0;
    else if (options->parent == 0)
        df->parent = capture->ticket.loaded != 0 ? capture->ticket.loaded : c->shelf.df.latest;
    df->epoch = c->txn.root.epoch;
    df->lineage = c->base.df.lineage != 0 ? c->base.df.lineage : c->txn.root.epoch; /* 0: none, or remote */
    df->raw_bytes = capture->raw_bytes;
    df->links = capture->note;
    memcpy(df->group, options->group, sizeof df->group);
    df->meta_bytes = meta_bytes <= LMCS_META_INLINE ? (uint32_t)meta_bytes : UINT32_MAX;
    if (meta_bytes <= LMCS_META_INLINE)
        memcpy(c->record.meta, capture->meta, meta_bytes);
    for (size_t i = 0; i < capture->entries.count; i++)
        df->tensor_count += capture->entries.items[i]->tensor.kind == LMCS_TENSOR;
}

static enum lmcs_status enter_snapshot(struct committing *c, struct lmcs_error *error)
{
    struct lmcs_capture *capture = c->capture;
    enum lmcs_status status = lmcs_tree_seal(&c->txn, LMCS_TREE_MANIFEST, &c->manifest, error);
    if (status != LMCS_OK)
        return status;
    c->record.df.manifest = c->manifest.ref;
    c->record.df.entry_count = c->manifest.count;
    status = lmcs_record_put(&c->txn, &c->shelf, &c->record, error);
    const size_t tags = capture->options.prepare ? 0 : capture->options.tag_count; /* else an attachment has them */
    for (size_t i = 0; status == LMCS_OK && i < tags; i++)
        status = lmcs_tag_put(&c->txn, &c->shelf, capture->tags[i], c->record.df.number, error);
    if (capture->options.prepare && status == LMCS_OK) {
        struct lmcs_key_df key;
        uint64_t value[2] = {c->shelf.df.id, c->record.df.number};
        memcpy(&key, capture->options.group, sizeof key);
        status = lmcs_root_put(&c->txn, LMCS_TREE_GROUPS, key, value, sizeof value, error);
    } else {
        c->shelf.df.latest = c->record.df.number;
        c->shelf.df.snapshot_count++;
        c->txn.root.snapshot_count++;
    }
    c->shelf.df.next_number = c->record.df.number + 1;
    lmcs_shelf_identify(&c->txn, &c->shelf);
    if (capture->written_bytes > 0)
        c->txn.root.last_snapshot_bytes = capture->written_bytes;
    return status == LMCS_OK ? lmcs_shelf_save(&c->txn, &c->shelf, error) : status;
}

static enum lmcs_status check_group(struct committing *c, struct lmcs_error *error)
{
    const struct lmcs_commit_options *options = &c->capture->options;
    struct lmcs_key_df key;
    uint64_t value[2];
    bool found = false;
    memcpy(&key, options->group, sizeof key);
    enum lmcs_status status = LMCS_OK;
    if (options->prepare)
        status = lmcs_root_get(&c->txn, LMCS_TREE_GROUPS, key, value, sizeof value, sizeof value, NULL, &found, error);
    if (status == LMCS_OK && found)
        return lmcs_fail(error, LMCS_EXISTS, 0, "%s: the group has a prepared snapshot here already",
                         c->capture->pool->path);
    return status;
}

/* Syncs large payloads before the metadata lock; small ones are synced with the metadata. */
static enum lmcs_status finish_payloads(struct lmcs_capture *capture, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < capture->entries.count; i++)
        if (capture->entries.items[i]->reserved.data != NULL)
            status = lmcs_reserved_finish(capture->pool, capture->entries.items[i], error);
    uint64_t began = lmcs_steady_ns();
    if (status == LMCS_OK && capture->written_bytes > LMC_BLOCK_BYTES)
        status = lmcs_heap_sync(capture->pool->heap, error);
    lmcs_heap_drain(capture->pool->heap);
    capture->spent_ns += lmcs_steady_ns() - began;
    return status;
}

static enum lmcs_status enter_all(struct committing *c, struct lmcs_error *error)
{
    struct lmcs_capture *capture = c->capture;
    enum lmcs_status status = load_shelf(c, error);
    if (status == LMCS_OK)
        status = check_group(c, error);
    if (status == LMCS_OK)
        fill_record(c);
    if (status == LMCS_OK)
        status = enter_links(c, error);
    if (status != LMCS_OK || c->refused)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < capture->entries.count; i++)
        status = put_entry(c, capture->entries.items[i], error);
    if (status == LMCS_OK)
        status = drop_names(c, error);
    if (status == LMCS_OK)
        status = enter_snapshot(c, error);
    if (status == LMCS_OK)
        lmcs_space_expect_again(&capture->region);
    return status == LMCS_OK ? lmcs_region_commit(&c->txn, &capture->region, error) : status;
}

/* Makes this snapshot the parent of the next one, also of those in flight, unless another was loaded meanwhile. */
static void follow(struct lmcs_capture *capture, const struct committing *c)
{
    const struct lmcs_ticket *own = &capture->ticket;
    pthread_mutex_lock(&capture->pool->captures);
    struct lmcs_loaded *loaded = lmcs_loaded_find(capture->pool, c->shelf.df.id);
    if (loaded != NULL && loaded->loads == own->loads)
        loaded->number = own->number;
    for (struct lmcs_ticket *after = own->next; loaded != NULL && after != NULL; after = after->next)
        if (after->loads == own->loads)
            after->loaded = own->number;
    lmcs_capture_measured(capture);
    pthread_mutex_unlock(&capture->pool->captures);
}

/* Runs the transaction once. *again: something was refused, and nothing has changed. */
static enum lmcs_status try_to_enter(struct lmcs_capture *capture, bool *again, struct lmcs_error *error)
{
    struct committing c = {.capture = capture};
    enum lmcs_status status = lmcs_capture_encode(capture, error);
    if (status == LMCS_OK)
        status = finish_payloads(capture, error);
    if (status == LMCS_OK)
        status = lmcs_txn_write(capture->pool, &c.txn, error);
    if (status != LMCS_OK)
        return status;
    c.txn.only_allocates = true;
    status = enter_all(&c, error);
    *again = status == LMCS_OK && c.refused;
    if (status != LMCS_OK || *again) {
        lmcs_txn_end(&c.txn);
        return status;
    }
    status = lmcs_txn_commit(&c.txn, error);
    if (status == LMCS_OK) {
        lmcs_capture_keep_memory(capture, true);
        follow(capture, &c);
    }
    return status;
}

enum lmcs_status lmcs_capture_enter(struct lmcs_capture *capture, struct lmcs_error *error)
{
    enum lmcs_status status;
    bool again = false;
    do
        status = try_to_enter(capture, &again, error);
    while (status == LMCS_OK && again);
    return status;
}
