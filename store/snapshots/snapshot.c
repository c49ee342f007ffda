/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * snapshots/snapshot.c - handles of snapshots: finding, entries, reading, listing, shelves.
 *
 * Each call finds its snapshot again in a transaction of its own. So handles keep nothing in place, and a removed
 * snapshot is an error.
 */
#include "snapshots/snapshot.h"
#include "base/grow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "pages/tree.h"
#include "payload/attachment.h"
#include "records/annotation.h"
#include "records/busy.h"
#include "records/manifest.h"
#include "records/origin.h"
#include "records/relations.h"

static enum lmcs_status fail_removed(const struct lmcs_snapshot *snapshot, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: snapshot %s@%llu was removed", snapshot->pool->path,
                     snapshot->shelf, (unsigned long long)snapshot->info.number);
}

enum lmcs_status lmcs_snapshot_locate(const struct lmcs_snapshot *snapshot, struct lmcs_txn *txn,
                                      struct lmcs_shelf *shelf, struct lmcs_record *record, struct lmcs_error *error)
{
    bool found;
    enum lmcs_status status = lmcs_shelf_load_if(txn, snapshot->shelf_id, shelf, &found, error);
    if (status == LMCS_OK && (!found || (shelf->df.flags & LMCS_SHELF_STAGING) != 0))
        return fail_removed(snapshot, error);
    if (status == LMCS_OK)
        status = lmcs_record_get(txn, shelf, snapshot->info.number, record, &found, error);
    if (status == LMCS_OK && !found)
        return fail_removed(snapshot, error);
    if (status == LMCS_OK && record->df.epoch != snapshot->epoch && record->df.state != LMCS_SNAPSHOT_REMOTE)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0,
                         "%s: snapshot %s@%llu was restored or completed meanwhile: open it again",
                         snapshot->pool->path, snapshot->shelf, (unsigned long long)snapshot->info.number);
    return status;
}

/* `reads`: needs the contents. */
static enum lmcs_status enter(struct lmcs_snapshot *snapshot, struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                              struct lmcs_record *record, bool reads, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(snapshot->pool, false, error);
    if (status == LMCS_OK)
        status = lmcs_annotated_read(snapshot->pool, txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_snapshot_locate(snapshot, txn, shelf, record, error);
    if (status == LMCS_OK && reads)
        status = lmcs_record_check_local(txn, shelf, record, error);
    if (status != LMCS_OK)
        lmcs_txn_end(txn);
    return status;
}

enum lmcs_status lmcs_snapshot_enter(struct lmcs_snapshot *snapshot, struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                     struct lmcs_record *record, struct lmcs_error *error)
{
    return enter(snapshot, txn, shelf, record, true, error);
}

uint64_t lmcs_chain_stored_bytes(const struct lmcs_chain *chain)
{
    const struct lmcs_content *top = &chain->links[0], *link = &chain->links[1];
    if (top->df.payload != LMCS_PAYLOAD_LINKED)
        return top->df.stored_bytes;
    uint64_t share = link->df.stored_bytes / link->df.base_count;
    return top->df.output == 0 ? link->df.stored_bytes - share * (link->df.base_count - 1u) : share;
}

static uint32_t to_undo(const struct lmcs_chain *chain)
{
    return (uint32_t)(chain->line > 0 ? chain->line : chain->length - 1);
}

static const char *links_note(uint32_t links)
{
    static const char *const notes[LMCS_LINKS_COUNT] = {
        [LMCS_LINKS_FIRST] = "it begins lines of links: those before are as long as links= and restore= allow",
        [LMCS_LINKS_GAP] = "the step before it is missing",
        [LMCS_LINKS_UNEXPLAINED] = "no arithmetic that is known leads to it from the step before",
        [LMCS_LINKS_LARGE] = "a link would not be smaller than deltas",
        [LMCS_LINKS_OFF] = "the policy says links=off",
        [LMCS_LINKS_UNFIT] = "the tensors that its relations name are not there, or not f32 of one shape",
        [LMCS_LINKS_NOT_RAW] = "it, or the step before, was coded already, or is damaged",
        [LMCS_LINKS_NOT_FOUND] = "no optimizer's step was found in its tensors (relations would say where it is)",
    };
    return links < LMCS_LINKS_COUNT ? notes[links] : NULL;
}

void lmcs_entry_fill(const struct lmcs_identity *identity, const struct lmcs_chain *chain, struct lmcs_entry *entry)
{
    const struct lmcs_content_df *df = &chain->links[0].df;
    memset(entry, 0, sizeof *entry);
    entry->tensor = lmcs_identity_tensor(identity);
    entry->digest = (struct lmc_hash){df->digest_low, df->digest_high};
    entry->content = chain->links[0].id;
    entry->raw_bytes = df->raw_bytes;
    entry->stored_bytes = lmcs_chain_stored_bytes(chain);
    entry->stored_as = df->payload == LMCS_PAYLOAD_RAW      ? LMCS_STORED_RAW
                       : df->payload == LMCS_PAYLOAD_LINKED ? LMCS_STORED_LINK
                       : df->base_count > 0                 ? LMCS_STORED_DELTA
                                                            : LMCS_STORED_KEYFRAME;
    entry->chain = to_undo(chain);
    entry->link = chain->links[0].link;
}

/* ---- Handles ---- */

static enum lmcs_status fill_snapshot(struct lmcs_txn *txn, const struct lmcs_shelf *shelf,
                                      const struct lmcs_record *record, struct lmcs_snapshot *s,
                                      struct lmcs_error *error)
{
    char *long_meta = NULL;
    enum lmcs_status status = LMCS_OK;
    s->pool = txn->pool;
    s->shelf_id = shelf->df.id;
    s->epoch = record->df.epoch;
    s->shelf = strdup(shelf->name);
    if (s->shelf == NULL)
        return lmcs_fail_memory(error);
    if (record->df.meta_bytes == UINT32_MAX)
        status = lmcs_record_long_meta(txn, record, &long_meta, error);
    if (status == LMCS_OK)
        status = lmcs_meta_decode(long_meta != NULL ? long_meta : record->meta, &s->meta, error);
    free(long_meta);
    s->info = (struct lmcs_snapshot_info){.shelf = s->shelf,
                                          .number = record->df.number,
                                          .step = record->df.step,
                                          .time_ns = record->df.time_ns,
                                          .parent = record->df.parent,
                                          .tensor_count = record->df.tensor_count,
                                          .raw_bytes = record->df.raw_bytes,
                                          .metrics = s->meta.metrics,
                                          .metric_count = s->meta.metric_count,
                                          .meta_json = s->meta.json};
    memcpy(s->info.group, record->df.group, sizeof s->info.group);
    if (status == LMCS_OK && record->df.state == LMCS_SNAPSHOT_REMOTE) {
        s->info.remote = s->remote = strdup(record->url);
        return s->remote != NULL ? LMCS_OK : lmcs_fail_memory(error);
    }
    return status;
}

/* Finds the group's snapshot on the shelf: among those that are prepared, then from the newest on. *number 0: none. */
static enum lmcs_status find_group(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const unsigned char group[16],
                                   uint64_t *number, struct lmcs_error *error)
{
    struct lmcs_key_df key;
    struct lmcs_record record;
    uint64_t value[2];
    bool found;
    memcpy(&key, group, sizeof key);
    enum lmcs_status status =
        lmcs_root_get(txn, LMCS_TREE_GROUPS, key, value, sizeof value, sizeof value, NULL, &found, error);
    *number = status == LMCS_OK && found && value[0] == shelf->df.id ? value[1] : 0;
    if (status != LMCS_OK || *number != 0)
        return status;
    for (*number = UINT64_MAX; status == LMCS_OK && *number != 0;) {
        status = lmcs_record_before(txn, shelf, *number, number, error);
        if (status != LMCS_OK || *number == 0)
            break;
        status = lmcs_record_get(txn, shelf, *number, &record, &found, error);
        if (status == LMCS_OK && memcmp(record.df.group, group, sizeof record.df.group) == 0)
            break;
        status = lmcs_is_unusable(status) ? LMCS_OK : status;
    }
    return status;
}

/* Resolves `which`, or finds the snapshot of a group. */
static enum lmcs_status find_number(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *which,
                                    const unsigned char *group, uint64_t *number, struct lmcs_error *error)
{
    if (group == NULL)
        return lmcs_shelf_resolve(txn, shelf, which, number, error);
    enum lmcs_status status = find_group(txn, shelf, group, number, error);
    if (status == LMCS_OK && *number == 0)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: shelf \"%.200s\" has no snapshot of this group",
                         txn->pool->path, shelf->name);
    return status;
}

static enum lmcs_status open_snapshot(struct lmcs_pool *pool, const char *shelf_name, const char *which,
                                      const unsigned char *group, struct lmcs_snapshot **snapshot,
                                      struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    uint64_t number;
    bool found;
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_snapshot *s = calloc(1, sizeof *s);
    if (s == NULL)
        return lmcs_fail_memory(error);
    status = lmcs_annotated_read(pool, &txn, error);
    if (status != LMCS_OK) {
        free(s);
        return status;
    }
    status = lmcs_shelf_get(&txn, shelf_name == NULL ? "" : shelf_name, &shelf, error);
    if (status == LMCS_OK)
        status = find_number(&txn, &shelf, which, group, &number, error);
    if (status == LMCS_OK)
        status = lmcs_record_get(&txn, &shelf, number, &record, &found, error);
    if (status == LMCS_OK && !found)
        status = lmcs_fail(error, LMCS_DAMAGED, 0,
                           "%s: damaged metadata: a tag or index names %s@%llu, which is "
                           "not there",
                           pool->path, shelf.name, (unsigned long long)number);
    if (status == LMCS_OK)
        status = fill_snapshot(&txn, &shelf, &record, s, error);
    lmcs_txn_end(&txn);
    if (status != LMCS_OK) {
        lmcs_snapshot_close(s);
        return status;
    }
    *snapshot = s;
    return LMCS_OK;
}

enum lmcs_status lmcs_snapshot_find(struct lmcs_pool *pool, const char *shelf, const char *which,
                                    struct lmcs_snapshot **snapshot, struct lmcs_error *error)
{
    return open_snapshot(pool, shelf, which, NULL, snapshot, error);
}

enum lmcs_status lmcs_group_open(struct lmcs_pool *pool, const char *shelf, const unsigned char group[16],
                                 struct lmcs_snapshot **snapshot, struct lmcs_error *error)
{
    return open_snapshot(pool, shelf, NULL, group, snapshot, error);
}

enum lmcs_status lmcs_snapshot_open(struct lmcs_pool *pool, const char *address, struct lmcs_snapshot **snapshot,
                                    struct lmcs_error *error)
{
    char name[LMCS_MAX_NAME + 1];
    size_t length = address == NULL ? 0 : strcspn(address, "@");
    if (length == 0 || length > LMCS_MAX_NAME)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "\"%.64s\" is no address: it looks like run@7, run@latest~1, run@step:120 or run@tag",
                         address == NULL ? "" : address);
    memcpy(name, address, length);
    name[length] = '\0';
    return lmcs_snapshot_find(pool, name, address[length] == '@' ? address + length + 1 : NULL, snapshot, error);
}

void lmcs_snapshot_close(struct lmcs_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    lmcs_meta_free(&snapshot->meta);
    free(snapshot->shelf);
    free(snapshot->remote);
    free(snapshot);
}

const struct lmcs_snapshot_info *lmcs_snapshot_info(const struct lmcs_snapshot *snapshot)
{
    return &snapshot->info;
}

void lmcs_snapshot_mark_loaded(struct lmcs_snapshot *snapshot)
{
    struct lmcs_pool *pool = snapshot->pool;
    if (lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return;
    pthread_mutex_lock(&pool->captures);
    struct lmcs_loaded *loaded = lmcs_loaded_find(pool, snapshot->shelf_id);
    if (loaded != NULL) {
        loaded->number = snapshot->info.number;
        loaded->loads++;
    }
    pthread_mutex_unlock(&pool->captures);
}

/* ---- Entries ---- */

struct visiting {
    struct lmcs_txn *txn;
    bool (*visit)(void *context, const struct lmcs_entry *entry);
    void *context;
    struct lmc_hash sum;
};

static enum lmcs_status visit_entry(void *context, uint64_t id, const struct lmcs_manifest_df *at, bool *stop,
                                    struct lmcs_error *error)
{
    struct visiting *visiting = context;
    struct lmcs_identity identity;
    struct lmcs_chain chain;
    struct lmcs_entry entry;
    enum lmcs_status status = lmcs_identity_get(visiting->txn, id, &identity, error);
    if (status == LMCS_OK)
        status = lmcs_chain_load(visiting->txn, at->content, &chain, error);
    if (status != LMCS_OK || lmcs_is_own(identity.df.kind, identity.name))
        return status;
    lmcs_entry_fill(&identity, &chain, &entry);
    *stop = !visiting->visit(visiting->context, &entry);
    return LMCS_OK;
}

enum lmcs_status lmcs_snapshot_entries(struct lmcs_snapshot *snapshot,
                                       bool (*visit)(void *context, const struct lmcs_entry *entry), void *context,
                                       struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    struct visiting visiting = {.txn = &txn, .visit = visit, .context = context};
    enum lmcs_status status = lmcs_snapshot_enter(snapshot, &txn, &shelf, &record, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_manifest_each(&txn, &record.df, visit_entry, &visiting, error);
    lmcs_txn_end(&txn);
    return status;
}

/* Contents in the order of the manifest; shared ones repeat. */
struct contents {
    uint64_t *ids;
    size_t count;
    size_t capacity;
};

static enum lmcs_status collect_content(void *context, uint64_t id, const struct lmcs_manifest_df *at, bool *stop,
                                        struct lmcs_error *error)
{
    struct contents *contents = context;
    (void)id;
    (void)stop;
    if (!lmcs_grow(&contents->ids, &contents->capacity, contents->count, sizeof *contents->ids))
        return lmcs_fail_memory(error);
    contents->ids[contents->count++] = at->content;
    return LMCS_OK;
}

static enum lmcs_status count_storage(struct lmcs_txn *txn, uint64_t content, struct lmcs_snapshot_storage *storage,
                                      struct lmcs_error *error)
{
    struct lmcs_chain chain;
    enum lmcs_status status = lmcs_chain_load(txn, content, &chain, error);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_content_df *df = &chain.links[0].df;
    storage->stored_bytes += lmcs_chain_stored_bytes(&chain);
    storage->link_contents += df->payload == LMCS_PAYLOAD_LINKED;
    storage->raw_contents += df->payload == LMCS_PAYLOAD_RAW;
    storage->delta_contents += df->base_count > 0;
    storage->keyframe_contents += df->payload == LMCS_PAYLOAD_FRAME && df->base_count == 0;
    if (chain.line > 0)
        storage->longest_line = chain.line > storage->longest_line ? (uint32_t)chain.line : storage->longest_line;
    else if (storage->longest_chain < chain.length - 1)
        storage->longest_chain = (uint32_t)(chain.length - 1);
    return LMCS_OK;
}

enum lmcs_status lmcs_snapshot_storage(struct lmcs_snapshot *snapshot, struct lmcs_snapshot_storage *storage,
                                       struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    struct lmcs_snapshot_storage counted = {0};
    struct contents contents = {0};
    enum lmcs_status status = enter(snapshot, &txn, &shelf, &record, false, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_manifest_each(&txn, &record.df, collect_content, &contents, error);
    if (contents.count > 0)
        qsort(contents.ids, contents.count, sizeof *contents.ids, lmcs_by_u64);
    for (size_t i = 0; status == LMCS_OK && i < contents.count; i++)
        if (i == 0 || contents.ids[i] != contents.ids[i - 1])
            status = count_storage(&txn, contents.ids[i], &counted, error);
    lmcs_txn_end(&txn);
    free(contents.ids);
    counted.links_note = links_note(record.df.links);
    if (status == LMCS_OK)
        *storage = counted;
    return status;
}

/* The sum of the entries' hashes does not depend on their order. */
static enum lmcs_status add_to_digest(void *context, uint64_t id, const struct lmcs_manifest_df *at, bool *stop,
                                      struct lmcs_error *error)
{
    struct visiting *visiting = context;
    struct lmcs_identity identity;
    struct lmcs_content content;
    (void)stop;
    enum lmcs_status status = lmcs_identity_get(visiting->txn, id, &identity, error);
    if (status == LMCS_OK)
        status = lmcs_content_get(visiting->txn, at->content, &content, error);
    if (status != LMCS_OK)
        return status;
    const uint32_t head[4] = {identity.df.kind, identity.df.dtype, identity.df.ndim, identity.df.is_part};
    const uint64_t digest[2] = {content.df.digest_low, content.df.digest_high};
    size_t dims = identity.df.ndim * sizeof(uint64_t);
    struct lmc_hasher hasher;
    lmc_hasher_init(&hasher);
    lmc_hasher_update(&hasher, head, sizeof head);
    lmc_hasher_update(&hasher, identity.shape, dims);
    if (identity.df.is_part) {
        lmc_hasher_update(&hasher, identity.global_shape, dims);
        lmc_hasher_update(&hasher, identity.offsets, dims);
    }
    lmc_hasher_update(&hasher, digest, sizeof digest);
    lmc_hasher_update(&hasher, identity.name, strlen(identity.name));
    struct lmc_hash hash = lmc_hasher_final(&hasher);
    visiting->sum.low += hash.low;
    visiting->sum.high += hash.high;
    return LMCS_OK;
}

enum lmcs_status lmcs_record_digest(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_record *record,
                                    struct lmc_hash *digest, struct lmcs_error *error)
{
    struct visiting visiting = {.txn = txn};
    (void)shelf;
    enum lmcs_status status = lmcs_manifest_each(txn, &record->df, add_to_digest, &visiting, error);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_snapshot_df *df = &record->df;
    const uint64_t head[6] = {(uint64_t)df->step, df->time_ns,      df->parent,
                              df->entry_count,    visiting.sum.low, visiting.sum.high};
    struct lmc_hasher hasher;
    lmc_hasher_init(&hasher);
    lmc_hasher_update(&hasher, head, sizeof head);
    lmc_hasher_update(&hasher, df->group, sizeof df->group);
    lmc_hasher_update(&hasher, record->meta, df->meta_bytes == UINT32_MAX ? 0 : df->meta_bytes);
    *digest = lmc_hasher_final(&hasher);
    return LMCS_OK;
}

enum lmcs_status lmcs_snapshot_digest(struct lmcs_snapshot *snapshot, struct lmc_hash *digest, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    enum lmcs_status status = lmcs_snapshot_enter(snapshot, &txn, &shelf, &record, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_record_digest(&txn, &shelf, &record, digest, error);
    lmcs_txn_end(&txn);
    return status;
}

/* ---- Lists ---- */

struct listing {
    uint8_t kind;
    struct lmcs_key_df from;
    uint64_t before; /* numbers below */
    uint64_t *numbers;
    size_t capacity;
    size_t count;
    bool newest; /* keeps the last ones: number i is at i % capacity */
    struct lmcs_passed passed;
};

static bool is_committed(const struct lmcs_cursor *cursor)
{
    size_t bytes;
    const struct lmcs_snapshot_df *df = lmcs_cursor_value(cursor, &bytes);
    uint32_t state = LMCS_SNAPSHOT_COMMITTED;
    if (bytes >= sizeof *df)
        memcpy(&state, (const char *)df + offsetof(struct lmcs_snapshot_df, state), sizeof state);
    return state == LMCS_SNAPSHOT_COMMITTED || state == LMCS_SNAPSHOT_REMOTE;
}

/* Lists the numbers in readable pages. */
static enum lmcs_status list(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct listing *l,
                             struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_open(&cursor, txn, l->kind, lmcs_shelf_tree(shelf, l->kind), l->from, error);
    while ((l->newest || l->count < l->capacity) &&
           (status = lmcs_cursor_pass(cursor, status, &l->passed, error)) == LMCS_OK && lmcs_cursor_valid(cursor)) {
        struct lmcs_key_df key = lmcs_cursor_key(cursor);
        if (l->kind == LMCS_TREE_STEPS ? key.high != l->from.high : key.high >= l->before)
            break;
        if (l->kind == LMCS_TREE_STEPS || is_committed(cursor))
            l->numbers[l->count++ % l->capacity] = l->kind == LMCS_TREE_STEPS ? key.low : key.high;
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return l->count == l->capacity && lmcs_is_unusable(status) ? LMCS_OK : status; /* the next call reports it */
}

/* Ends a list; `error` says which shelf's it is. */
static enum lmcs_status end_list(struct lmcs_txn *txn, const struct lmcs_shelf *shelf, const struct listing *l,
                                 enum lmcs_status status, size_t *count, struct lmcs_error *error)
{
    lmcs_txn_end(txn);
    if (status != LMCS_OK)
        return status;
    *count = l->count;
    status = lmcs_passed_over(&l->passed, LMCS_OK, error);
    if (status != LMCS_OK && error != NULL)
        lmcs_error_prefix(error, "shelf \"%.200s\": not all snapshots can be listed: ", shelf->name);
    return status;
}

static enum lmcs_status list_from(struct lmcs_pool *pool, const char *shelf_name, struct listing *l, size_t *count,
                                  struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_error why;
    enum lmcs_status status = lmcs_shelf_read(pool, shelf_name, &txn, &shelf, error);
    if (status != LMCS_OK)
        return status;
    status = list(&txn, &shelf, l, &why);
    if (status != LMCS_OK && error != NULL)
        *error = why;
    return end_list(&txn, &shelf, l, status, count, error);
}

enum lmcs_status lmcs_snapshot_numbers(struct lmcs_pool *pool, const char *shelf, uint64_t first, uint64_t *numbers,
                                       size_t capacity, size_t *count, struct lmcs_error *error)
{
    struct listing l = {
        .kind = LMCS_TREE_NUMBERS, .from = {first, 0}, .before = UINT64_MAX, .numbers = numbers, .capacity = capacity};
    return list_from(pool, shelf, &l, count, error);
}

static enum lmcs_status list_down(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t before, uint64_t *numbers,
                                  size_t capacity, size_t *count, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (*count = 0; status == LMCS_OK && *count < capacity;) {
        struct lmcs_record record;
        bool found = false;
        status = lmcs_record_before(txn, shelf, before, &before, error);
        if (status != LMCS_OK || before == 0)
            break;
        if (before > shelf->df.latest) /* prepared */
            continue;
        status = lmcs_record_get(txn, shelf, before, &record, &found, error);
        if (status == LMCS_OK && found && lmcs_record_is_committed(&record))
            numbers[(*count)++] = before;
    }
    return status;
}

static void reverse(uint64_t *numbers, size_t from, size_t end)
{
    for (; from + 1 < end; from++) {
        uint64_t swapped = numbers[from];
        numbers[from] = numbers[--end];
        numbers[end] = swapped;
    }
}

/* Lists from the other end, which can skip damaged pages. */
static enum lmcs_status list_up(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct listing *l,
                                struct lmcs_error *error)
{
    if (l->capacity == 0)
        return LMCS_OK;
    enum lmcs_status status = list(txn, shelf, l, error);
    size_t oldest = l->count % l->capacity;
    l->count = l->count < l->capacity ? l->count : l->capacity;
    reverse(l->numbers, 0, oldest);
    reverse(l->numbers, oldest, l->count);
    return status;
}

enum lmcs_status lmcs_snapshot_newest(struct lmcs_pool *pool, const char *shelf_name, uint64_t before,
                                      uint64_t *numbers, size_t capacity, size_t *count, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_error why;
    struct listing l = {
        .kind = LMCS_TREE_NUMBERS, .before = before, .numbers = numbers, .capacity = capacity, .newest = true};
    enum lmcs_status status = lmcs_shelf_read(pool, shelf_name, &txn, &shelf, error);
    if (status != LMCS_OK)
        return status;
    status = list_down(&txn, &shelf, before, numbers, capacity, &l.count, &why);
    if (lmcs_is_unusable(status)) {
        (void)!lmcs_pass_over(&l.passed, status, &why);
        l.count = 0;
        status = list_up(&txn, &shelf, &l, &why);
    }
    if (status != LMCS_OK && error != NULL)
        *error = why;
    return end_list(&txn, &shelf, &l, status, count, error);
}

static enum lmcs_status find_range(struct lmcs_pool *pool, const char *shelf_name, const char *range, bool clip,
                                   uint64_t *first, uint64_t *last, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    uint64_t from = 0, to = 0;
    enum lmcs_status status = lmcs_shelf_read(pool, shelf_name, &txn, &shelf, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_resolve_range(&txn, &shelf, range, clip, &from, &to, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK) {
        *first = from;
        *last = to;
    }
    return status;
}

enum lmcs_status lmcs_snapshot_range(struct lmcs_pool *pool, const char *shelf, const char *range, uint64_t *first,
                                     uint64_t *last, struct lmcs_error *error)
{
    return find_range(pool, shelf, range, false, first, last, error);
}

enum lmcs_status lmcs_snapshot_range_clip(struct lmcs_pool *pool, const char *shelf, const char *range, uint64_t *first,
                                          uint64_t *last, struct lmcs_error *error)
{
    return find_range(pool, shelf, range, true, first, last, error);
}

enum lmcs_status lmcs_snapshot_steps(struct lmcs_pool *pool, const char *shelf, int64_t step, uint64_t first,
                                     uint64_t *numbers, size_t capacity, size_t *count, struct lmcs_error *error)
{
    struct listing l = {
        .kind = LMCS_TREE_STEPS, .from = {lmcs_step_key(step), first}, .numbers = numbers, .capacity = capacity};
    return list_from(pool, shelf, &l, count, error);
}

/* Finds whether the origin of a fork still exists, and the current name of its shelf. */
static enum lmcs_status fill_origin(struct lmcs_txn *txn, const struct lmcs_origin *origin,
                                    struct lmcs_shelf_info *info, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found = false;
    info->origin_number = origin->df.number;
    info->origin_time_ns = origin->df.time_ns;
    memcpy(info->origin_shelf, origin->name, sizeof info->origin_shelf);
    if (origin->df.shelf == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_shelf_load_if(txn, origin->df.shelf, &shelf, &found, error);
    if (status != LMCS_OK || !found || (shelf.df.flags & LMCS_SHELF_STAGING) != 0)
        return status;
    memcpy(info->origin_shelf, shelf.name, sizeof info->origin_shelf);
    status = lmcs_record_get(txn, &shelf, origin->df.number, &record, &found, error);
    info->origin_is_there = status == LMCS_OK && found && record.df.time_ns == origin->df.time_ns;
    return status;
}

static enum lmcs_status fill_shelf_info(struct lmcs_txn *txn, const struct lmcs_shelf *shelf,
                                        struct lmcs_shelf_info *info, struct lmcs_error *error)
{
    struct lmcs_origin origin;
    struct lmcs_policy policy;
    bool found;
    *info = (struct lmcs_shelf_info){.snapshot_count = shelf->df.snapshot_count,
                                     .remote_count = shelf->df.remote,
                                     .latest = shelf->df.latest,
                                     .next_number = shelf->df.next_number,
                                     .keep_raw = shelf->df.keep_raw,
                                     .created_ns = shelf->df.created_ns};
    memcpy(info->name, shelf->name, sizeof info->name);
    lmcs_shelf_policy(shelf, &policy);
    if (lmcs_policy_format(&policy, info->policy, NULL) != LMCS_OK)
        info->policy[0] = '\0';
    enum lmcs_status status = lmcs_origin_get(txn, shelf->df.id, &origin, &found, error);
    return status == LMCS_OK && found ? fill_origin(txn, &origin, info, error) : status;
}

enum lmcs_status lmcs_shelf_info(struct lmcs_pool *pool, const char *name, struct lmcs_shelf_info *info,
                                 struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_shelf_info found;
    enum lmcs_status status = lmcs_shelf_read(pool, name, &txn, &shelf, error);
    if (status != LMCS_OK)
        return status;
    status = fill_shelf_info(&txn, &shelf, &found, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK)
        *info = found;
    return status;
}

static int by_name(const void *a, const void *b)
{
    const struct lmcs_shelf_info *x = a, *y = b;
    return strcmp(x->name, y->name);
}

enum lmcs_status lmcs_shelf_list(struct lmcs_pool *pool,
                                 bool (*visit)(void *context, const struct lmcs_shelf_info *info), void *context,
                                 struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf_info *infos = NULL;
    size_t count = 0, got = 0;
    uint64_t first = 0;
    struct lmcs_error why = {.status = LMCS_OK};
    struct lmcs_passed passed = {.any = false};
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status == LMCS_OK)
        status = lmcs_annotated_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    do {
        uint64_t ids[64];
        status = lmcs_shelf_ids(&txn, first, ids, 64, &got, &why);
        if (lmcs_is_unusable(status))
            lmcs_error_prefix(&why, "not all shelves can be listed: ");
        status = lmcs_pass_over(&passed, status, &why);
        struct lmcs_shelf_info *grown = status == LMCS_OK ? realloc(infos, (count + got + 1) * sizeof *infos) : NULL;
        if (status == LMCS_OK && grown == NULL)
            status = lmcs_fail_memory(&why);
        if (grown != NULL)
            infos = grown;
        for (size_t i = 0; status == LMCS_OK && i < got; i++) {
            struct lmcs_shelf shelf;
            status = lmcs_shelf_load(&txn, ids[i], &shelf, &why);
            if (status == LMCS_OK && (shelf.df.flags & LMCS_SHELF_STAGING) != 0)
                continue;
            if (status == LMCS_OK && (status = fill_shelf_info(&txn, &shelf, &infos[count], &why)) != LMCS_OK)
                lmcs_error_prefix(&why, "shelf \"%.200s\": ", shelf.name);
            count += status == LMCS_OK;
            status = lmcs_pass_over(&passed, status, &why);
        }
        first = got > 0 ? ids[got - 1] + 1 : 0;
    } while (status == LMCS_OK && got == 64 && first > 0);
    lmcs_txn_end(&txn);
    if (status != LMCS_OK && error != NULL)
        *error = why;
    if (status == LMCS_OK && count > 0)
        qsort(infos, count, sizeof *infos, by_name);
    for (size_t i = 0; status == LMCS_OK && i < count && visit(context, &infos[i]); i++)
        ;
    free(infos);
    return lmcs_passed_over(&passed, status, error);
}

enum lmcs_status lmcs_snapshot_tags(struct lmcs_snapshot *snapshot, bool (*visit)(void *context, const char *tag),
                                    void *context, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    enum lmcs_status status = enter(snapshot, &txn, &shelf, &record, false, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_tags_of(&txn, &shelf, snapshot->info.number, visit, context, error);
    lmcs_txn_end(&txn);
    return status;
}
