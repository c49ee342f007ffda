/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/capture.c - the writing of a snapshot, from begin to commit or abort.
 *
 * A capture has its shelf to itself from begin until it is durable, so the newest snapshot, its *base*, stays what it
 * is. While tensors are compared with the base's raw payloads the capture leases its epoch, which keeps them in place
 * even if the compactor replaces them; after that only contents are remembered, never places. New payloads go to a
 * region of the capture's own and are durable before the transaction that makes the snapshot begins. Its manifest
 * is a copy-on-write copy of the base's, changed where tensors changed.
 */
#include "capture/capture.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/grow.h"
#include "base/guard.h"
#include "pages/tree.h"
#include "records/busy.h"
#include "records/meta.h"
#include "records/relations.h"
#include "records/safety.h"
#include "records/shelf.h"

enum capture_state { OPEN, BROKEN, COMMITTING };

struct lmcs_capture {
    struct lmcs_pool *pool;
    struct lmcs_busy_shelf *busy;
    enum capture_state state;
    struct lmcs_region region;
    uint64_t base_number; /* the newest snapshot of the shelf, prepared ones included; 0: none */
    struct lmcs_captured **entries;
    size_t count;
    size_t capacity;
    size_t *names; /* open addressing: index + 1 of the entry */
    size_t name_capacity;
    uint64_t written_bytes;
    uint64_t shared_bytes;
    uint64_t raw_bytes;
    bool codes;         /* writes deltas */
    bool has_coded;     /* ... and has begun to */
    uint64_t new_bytes; /* of tensors that are not shared, decoded */
    uint64_t spent_ns;  /* on writing them and making them durable */
    struct lmcs_relations relations;
    /* commit */
    struct lmcs_commit_options options; /* its pointers are copies */
    char *meta;
    char **tags;
    uint64_t number;
    uint64_t loaded; /* of the shelf, as it was when commit was called; and how often it had been marked */
    uint64_t loads;
    bool asynchronous;
    bool detached;
    bool done;        /* under pool->captures, as all below */
    uint64_t failure; /* which of the shelf's it was; 0: it has not failed, or not asynchronously */
    pthread_t thread;
    struct lmcs_error result;
};

/* ---- Begin and end ---- */

static bool shall_code(struct lmcs_pool *pool, const struct lmcs_shelf *shelf)
{
    struct lmcs_policy policy;
    lmcs_shelf_policy(shelf, &policy);
    pthread_mutex_lock(&pool->captures);
    bool codes = lmcs_pace_codes(&pool->pace, policy.encode, lmcs_heap_method(pool->heap) != LMCS_WRITE_FILE);
    pthread_mutex_unlock(&pool->captures);
    return codes;
}

static enum lmcs_status find_base(struct lmcs_capture *capture, const char *name, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found;
    enum lmcs_status status = lmcs_txn_read(capture->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_find(&txn, name, &shelf, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_record_before(&txn, &shelf, UINT64_MAX, &capture->base_number, error);
    if (status == LMCS_OK && capture->base_number != 0)
        status = lmcs_record_get(&txn, &shelf, capture->base_number, &record, &found, error);
    if (status == LMCS_OK && capture->base_number != 0 && record.df.state == LMCS_SNAPSHOT_PREPARED)
        status =
            lmcs_fail(error, LMCS_IN_USE, 0,
                      "%s: shelf \"%s\" has a prepared snapshot that awaits its group's decision: resolve it first",
                      capture->pool->path, name);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && capture->base_number != 0)
        capture->codes = shall_code(capture->pool, &shelf);
    return status;
}

enum lmcs_status lmcs_capture_begin(struct lmcs_pool *pool, const char *shelf, struct lmcs_capture **capture,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status != LMCS_OK)
        return status;
    if (!lmcs_name_is_sound(shelf) || strchr(shelf, '@') != NULL)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "shelf name \"%.64s\": names are 1 to %d bytes of UTF-8 without control characters and @",
                         shelf == NULL ? "" : shelf, LMCS_MAX_NAME);
    struct lmcs_capture *c = calloc(1, sizeof *c);
    if (c == NULL)
        return lmcs_fail_memory(error);
    c->pool = pool;
    lmcs_region_init(&c->region, pool, 0);
    status = lmcs_shelf_take(pool, shelf, &c->busy, error);
    if (status == LMCS_OK) {
        status = find_base(c, shelf, error);
        if (status != LMCS_OK)
            lmcs_shelf_give(pool, c->busy);
    }
    if (status != LMCS_OK) {
        free(c);
        return status;
    }
    *capture = c;
    return LMCS_OK;
}

static void free_capture(struct lmcs_capture *capture)
{
    for (size_t i = 0; i < capture->count; i++) {
        struct lmcs_captured *entry = capture->entries[i];
        if (entry->reserved_aside)
            munmap(entry->reserved, entry->raw_bytes);
        free(entry->hashes);
        free(entry); /* its tensor's strings lie behind it */
    }
    free(capture->entries);
    free(capture->names);
    free(capture->meta);
    lmcs_relations_free(&capture->relations);
    for (size_t i = 0; i < capture->options.tag_count && capture->tags != NULL; i++)
        free(capture->tags[i]);
    free(capture->tags);
    free(capture);
}

static void end_capture(struct lmcs_capture *capture)
{
    if (capture->has_coded)
        lmcs_encode_gate_leave(capture->pool);
    lmcs_region_end(&capture->region);
    lmcs_shelf_give(capture->pool, capture->busy);
}

void lmcs_capture_abort(struct lmcs_capture *capture)
{
    if (capture == NULL)
        return;
    if (lmcs_pool_check(capture->pool, true, NULL) == LMCS_OK)
        end_capture(capture);
    free_capture(capture);
}

void lmcs_capture_stats(const struct lmcs_capture *capture, uint64_t *written_bytes, uint64_t *shared_bytes)
{
    *written_bytes = capture->written_bytes;
    *shared_bytes = capture->shared_bytes;
}

/* ---- Putting ---- */

static size_t name_slot(const struct lmcs_capture *capture, uint32_t kind, const char *name)
{
    size_t i = (size_t)lmc_hash64(name, strlen(name), kind) & (capture->name_capacity - 1);
    while (capture->names[i] != 0) {
        const struct lmcs_tensor *tensor = &capture->entries[capture->names[i] - 1]->tensor;
        if (tensor->kind == kind && strcmp(tensor->name, name) == 0)
            break;
        i = (i + 1) & (capture->name_capacity - 1);
    }
    return i;
}

static bool make_name_room(struct lmcs_capture *capture, size_t more)
{
    size_t wanted = capture->name_capacity == 0 ? 64 : capture->name_capacity;
    while ((capture->count + more) * 2 > wanted)
        wanted *= 2;
    if (wanted == capture->name_capacity)
        return true;
    size_t *names = calloc(wanted, sizeof *names);
    if (names == NULL)
        return false;
    free(capture->names);
    capture->names = names;
    capture->name_capacity = wanted;
    for (size_t i = 0; i < capture->count; i++)
        names[name_slot(capture, capture->entries[i]->tensor.kind, capture->entries[i]->tensor.name)] = i + 1;
    return true;
}

/* A copy of the description, with what it points to behind it in one allocation. */
static struct lmcs_captured *new_entry(const struct lmcs_tensor *tensor, uint64_t raw_bytes)
{
    size_t dims = tensor->ndim * sizeof(uint64_t), lists = tensor->global_shape != NULL ? 3 : 1;
    size_t name_bytes = strlen(tensor->name) + 1;
    struct lmcs_captured *entry = calloc(1, sizeof *entry + lists * dims + name_bytes);
    if (entry == NULL)
        return NULL;
    uint64_t *numbers = (uint64_t *)(entry + 1);
    entry->tensor = *tensor;
    entry->tensor.strides = NULL;
    entry->tensor.shape = numbers;
    if (dims > 0)
        memcpy(numbers, tensor->shape, dims);
    if (tensor->global_shape != NULL) {
        entry->tensor.global_shape = numbers + tensor->ndim;
        entry->tensor.offsets = numbers + 2 * (size_t)tensor->ndim;
        if (dims > 0) {
            memcpy(numbers + tensor->ndim, tensor->global_shape, dims);
            memcpy(numbers + 2 * (size_t)tensor->ndim, tensor->offsets, dims);
        }
    }
    char *name = (char *)numbers + lists * dims;
    memcpy(name, tensor->name, name_bytes);
    entry->tensor.name = name;
    entry->raw_bytes = raw_bytes;
    return entry;
}

static enum lmcs_status add_entry(struct lmcs_capture *capture, const struct lmcs_tensor *tensor,
                                  struct lmcs_captured **added, struct lmcs_error *error)
{
    uint64_t raw_bytes;
    enum lmcs_status status = lmcs_tensor_check_put(tensor, &raw_bytes, error);
    if (status != LMCS_OK)
        return status;
    if (capture->count >= LMCS_MAX_TENSORS)
        return lmcs_fail(error, LMCS_INVALID, 0, "a snapshot may have at most %d tensors", LMCS_MAX_TENSORS);
    if (!make_name_room(capture, 1))
        return lmcs_fail_memory(error);
    size_t slot = name_slot(capture, tensor->kind, tensor->name);
    if (capture->names[slot] != 0)
        return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\" is in the capture twice", tensor->name);
    if (!lmcs_grow(&capture->entries, &capture->capacity, capture->count, sizeof *capture->entries))
        return lmcs_fail_memory(error);
    struct lmcs_captured *entry = new_entry(tensor, raw_bytes);
    if (entry == NULL)
        return lmcs_fail_memory(error);
    capture->entries[capture->count++] = entry;
    capture->names[slot] = capture->count;
    capture->raw_bytes += raw_bytes;
    *added = entry;
    return LMCS_OK;
}

static enum lmcs_status check_open(struct lmcs_capture *capture, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(capture->pool, true, error);
    if (status == LMCS_OK && capture->state != OPEN)
        return lmcs_fail(error, LMCS_INVALID, 0, "the capture has failed or was committed: it can only be ended");
    return status;
}

enum lmcs_status lmcs_capture_place(struct lmcs_capture *capture, struct lmcs_pool **pool, const char **shelf,
                                    struct lmcs_error *error)
{
    *pool = capture->pool;
    *shelf = capture->busy->name;
    return check_open(capture, error);
}

void lmcs_capture_waits(struct lmcs_capture *capture, bool waits)
{
    pthread_mutex_lock(&capture->pool->captures);
    capture->busy->waits = waits;
    pthread_cond_broadcast(&capture->pool->captures_changed);
    pthread_mutex_unlock(&capture->pool->captures);
}

/* Finds the identities of new entries, and what the base snapshot has under them. */
static enum lmcs_status look_up(struct lmcs_capture *capture, struct lmcs_txn *txn, struct lmcs_source *sources,
                                size_t count, struct lmcs_content *contents, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record base;
    bool found;
    enum lmcs_status status = lmcs_shelf_get(txn, capture->busy->name, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_record_get(txn, &shelf, capture->base_number, &base, &found, error);
    if (status != LMCS_OK || !found)
        return status;
    struct lmcs_root_tree_df manifest = {.ref = base.df.manifest, .count = base.df.entry_count};
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        struct lmcs_captured *entry = sources[i].entry;
        struct lmcs_manifest_df old;
        status = lmcs_identity_find(txn, &entry->tensor, &entry->identity, error);
        if (status != LMCS_OK || entry->identity == 0)
            continue;
        status = lmcs_tree_get(txn, LMCS_TREE_MANIFEST, &manifest, (struct lmcs_key_df){entry->identity, 0}, &old,
                               sizeof old, sizeof old, NULL, &entry->in_base, error);
        if (!entry->in_base)
            entry->identity = 0; /* nothing of this shelf holds it: it may be gone before the commit */
        if (status != LMCS_OK || !entry->in_base)
            continue;
        status = lmcs_content_get(txn, old.content, &contents[i], error);
        bool lost = false; /* its bytes may be right and its checksums not: what is new is not to rest on that */
        if (status == LMCS_OK)
            status = lmcs_lost_any(txn, old.content, &lost, error);
        if (status == LMCS_OK && contents[i].df.payload == LMCS_PAYLOAD_RAW && !lost &&
            contents[i].df.raw_bytes == entry->raw_bytes)
            sources[i].before = &contents[i];
    }
    return status;
}

/* Works in batches, so that what is looked up takes little memory. */
#define COMPARE_BATCH 512

static enum lmcs_status compare(struct lmcs_capture *capture, struct lmcs_source *sources, size_t count,
                                struct lmcs_error *error)
{
    struct lmcs_pool *pool = capture->pool;
    if (capture->base_number == 0 || count == 0)
        return LMCS_OK;
    size_t batch = count < COMPARE_BATCH ? count : COMPARE_BATCH;
    struct lmcs_content *contents = malloc(batch * sizeof *contents);
    if (contents == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i += batch) {
        size_t n = count - i < batch ? count - i : batch;
        struct lmcs_txn txn;
        status = lmcs_txn_read(pool, &txn, error);
        if (status != LMCS_OK)
            break;
        uint64_t epoch = txn.root.epoch;
        status = look_up(capture, &txn, sources + i, n, contents, error);
        enum lmcs_status leased = status == LMCS_OK ? lmcs_lease_epoch(pool->lease, epoch, error) : LMCS_INVALID;
        lmcs_txn_end(&txn);
        /* A stranger's lock keeps nobody from saving: all is new then. */
        if (status == LMCS_OK && leased != LMCS_IN_USE)
            status = leased;
        if (status == LMCS_OK && leased == LMCS_OK)
            status = lmcs_compare_sources(pool, sources + i, n, error);
        if (leased == LMCS_OK)
            lmcs_lease_epoch_end(pool->lease, epoch);
        for (size_t k = i; k < i + n; k++)
            sources[k].before = NULL;
    }
    free(contents);
    return status;
}

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

/* Adds to the error of a full pool, after compaction has not freed enough, which snapshots could be removed. */
static void explain_full(struct lmcs_capture *capture, struct lmcs_error *error)
{
    uint64_t count = error != NULL ? count_snapshots(capture->pool, capture->busy->name) : 0;
    if (count < 2)
        return;
    size_t length = strlen(error->message);
    snprintf(error->message + length, sizeof error->message - length,
             "; nothing of this snapshot was kept; older ones can be pruned: \"%.100s\" has %llu (see 'lmc-store ls', "
             "'lmc-store rm'), or open it with a larger size, or free disk space",
             capture->busy->name, (unsigned long long)count);
}

static enum lmcs_status copy_changed(struct lmcs_capture *capture, struct lmcs_source *sources, size_t count,
                                     struct lmcs_error *error)
{
    struct lmcs_error first;
    enum lmcs_status status = lmcs_copy_sources(capture->pool, &capture->region, sources, count, &first);
    if (status == LMCS_FULL && capture->written_bytes == 0) {
        /* What it took so far is room for the compactor. */
        lmcs_region_end(&capture->region);
        lmcs_region_init(&capture->region, capture->pool, 0);
    }
    if (status == LMCS_FULL && lmcs_pool_make_room(capture->pool, capture->busy->name)) {
        for (size_t i = 0; i < count; i++) {
            free(sources[i].entry->hashes);
            sources[i].entry->hashes = NULL;
        }
        status = lmcs_copy_sources(capture->pool, &capture->region, sources, count, &first);
    }
    if (status == LMCS_FULL)
        explain_full(capture, &first);
    if (status != LMCS_OK && error != NULL)
        *error = first;
    return status;
}

/* Leaves those in the list that have to be written; gives how many. */
static size_t leave_out_shared(struct lmcs_capture *capture, struct lmcs_source *sources, size_t count)
{
    size_t changed = 0;
    for (size_t i = 0; i < count; i++) {
        if (sources[i].entry->shared != 0)
            capture->shared_bytes += sources[i].entry->raw_bytes;
        else if (!sources[i].entry->is_coded)
            sources[changed++] = sources[i];
    }
    return changed;
}

/* Writes deltas of what can be coded; *count gets what is left to be copied. */
static enum lmcs_status code(struct lmcs_capture *capture, struct lmcs_source *sources, size_t *count,
                             struct lmcs_error *error)
{
    struct lmcs_code_from from = {capture->pool, capture->busy->name, capture->base_number};
    if (!capture->has_coded)
        lmcs_encode_gate_enter(capture->pool);
    capture->has_coded = true;
    atomic_fetch_add(&capture->pool->copying, 1);
    enum lmcs_status status = lmcs_code_sources(&from, &capture->region, sources, *count, error);
    atomic_fetch_sub(&capture->pool->copying, 1);
    for (size_t i = 0; i < *count; i++)
        if (sources[i].entry->is_coded) {
            capture->written_bytes += sources[i].entry->content.df.stored_bytes;
            capture->new_bytes += sources[i].entry->raw_bytes;
        }
    *count = leave_out_shared(capture, sources, *count);
    return status == LMCS_FULL ? LMCS_OK : status; /* copying will say so, and have the compactor look for room */
}

static enum lmcs_status put_all(struct lmcs_capture *capture, const struct lmcs_tensor *tensors,
                                const void *const *data, size_t count, struct lmcs_error *error)
{
    struct lmcs_source *sources = calloc(count, sizeof *sources);
    if (sources == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        status = add_entry(capture, &tensors[i], &sources[i].entry, error);
        if (status != LMCS_OK)
            break;
        sources[i].data = data[i];
        if (!lmcs_strides_are_plain(&tensors[i], tensors[i].strides) && sources[i].entry->raw_bytes > 0)
            sources[i].strides = tensors[i].strides;
        if (data[i] == NULL && sources[i].entry->raw_bytes > 0)
            status = lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\": no data", tensors[i].name);
    }
    if (status == LMCS_OK)
        status = compare(capture, sources, count, error);
    uint64_t began = lmcs_now_ns();
    size_t changed = status == LMCS_OK ? leave_out_shared(capture, sources, count) : 0;
    if (status == LMCS_OK && capture->codes)
        status = code(capture, sources, &changed, error);
    if (status == LMCS_OK)
        status = copy_changed(capture, sources, changed, error);
    for (size_t i = 0; status == LMCS_OK && i < changed; i++) {
        capture->written_bytes += sources[i].entry->raw_bytes;
        capture->new_bytes += sources[i].entry->raw_bytes;
    }
    capture->spent_ns += lmcs_now_ns() - began;
    free(sources);
    return status;
}

enum lmcs_status lmcs_capture_put(struct lmcs_capture *capture, const struct lmcs_tensor *tensors,
                                  const void *const *data, size_t count, struct lmcs_error *error)
{
    enum lmcs_status status = check_open(capture, error);
    if (status != LMCS_OK || count == 0)
        return status;
    status = put_all(capture, tensors, data, count, error);
    if (status != LMCS_OK)
        capture->state = BROKEN;
    return status;
}

enum lmcs_status lmcs_capture_relate(struct lmcs_capture *capture, const struct lmcs_relation *relations, size_t count,
                                     struct lmcs_error *error)
{
    enum lmcs_status status = check_open(capture, error);
    size_t before = capture->relations.count;
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = lmcs_relations_add(&capture->relations, &relations[i], error);
    if (status != LMCS_OK)
        capture->relations.count = before;
    return status;
}

enum lmcs_status lmcs_capture_put_same(struct lmcs_capture *capture, const struct lmcs_tensor *tensor,
                                       const char *existing_name, struct lmcs_error *error)
{
    enum lmcs_status status = check_open(capture, error);
    if (status != LMCS_OK)
        return status;
    if (existing_name == NULL || capture->count == 0)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "tensor \"%s\" is not in the capture",
                         existing_name == NULL ? "" : existing_name);
    size_t index = capture->names[name_slot(capture, tensor->kind, existing_name)];
    if (index == 0)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "tensor \"%s\" is not in the capture", existing_name);
    const struct lmcs_tensor *existing = &capture->entries[index - 1]->tensor;
    if (existing->dtype != tensor->dtype || existing->ndim != tensor->ndim ||
        (tensor->ndim > 0 && memcmp(existing->shape, tensor->shape, tensor->ndim * sizeof(uint64_t)) != 0))
        return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\" has another dtype or shape than \"%s\"", tensor->name,
                         existing_name);
    struct lmcs_captured *entry;
    status = add_entry(capture, tensor, &entry, error);
    if (status != LMCS_OK)
        return status;
    size_t origin = capture->entries[index - 1]->same_as;
    entry->same_as = origin != 0 ? origin : index;
    capture->shared_bytes += entry->raw_bytes;
    return LMCS_OK;
}

enum lmcs_status lmcs_capture_reserve(struct lmcs_capture *capture, const struct lmcs_tensor *tensor, void **data,
                                      struct lmcs_error *error)
{
    static _Alignas(64) unsigned char nothing[64];
    struct lmcs_captured *entry;
    enum lmcs_status status = check_open(capture, error);
    if (status == LMCS_OK)
        status = add_entry(capture, tensor, &entry, error);
    if (status != LMCS_OK)
        return status;
    uint64_t blocks = lmc_block_count(entry->raw_bytes);
    entry->reserved = nothing;
    entry->content.df.raw_bytes = entry->raw_bytes;
    entry->hashes = blocks > 1 ? calloc(blocks, sizeof *entry->hashes) : NULL;
    if (blocks > 1 && entry->hashes == NULL)
        status = lmcs_fail_memory(error);
    for (int tries = 0; status == LMCS_OK; tries++) {
        status = lmcs_payload_take(&capture->region, lmcs_raw_stored_bytes(entry->raw_bytes), &entry->content, error);
        if (status != LMCS_FULL || tries > 0 || !lmcs_pool_make_room(capture->pool, capture->busy->name))
            break;
        status = LMCS_OK;
    }
    if (status == LMCS_FULL)
        explain_full(capture, error);
    struct lmcs_heap *heap = capture->pool->heap;
    bool whole = entry->content.df.part_count == 1 && lmcs_heap_method(heap) != LMCS_WRITE_LIBRARY;
    if (status == LMCS_OK && entry->raw_bytes > 0 && whole) {
        entry->reserved = lmcs_heap_at(heap, entry->content.parts[0].offset);
    } else if (status == LMCS_OK && entry->raw_bytes > 0) {
        /* In several parts, or in several replicas: filled aside, and copied at commit. */
        entry->reserved =
            mmap(NULL, entry->raw_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        entry->reserved_aside = entry->reserved != MAP_FAILED;
        if (!entry->reserved_aside)
            status = lmcs_fail_memory(error);
    }
    if (status != LMCS_OK) {
        capture->state = BROKEN;
        return status;
    }
    capture->written_bytes += entry->raw_bytes;
    *data = entry->reserved;
    return LMCS_OK;
}

/* ---- Commit: within the transaction ---- */

struct committing {
    struct lmcs_capture *capture;
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record base;
    struct lmcs_record record;
    struct lmcs_root_tree_df manifest;
    bool has_base;
};

/* Puts one name into the manifest, as a new run unless the base has the same. */
static enum lmcs_status put_name(struct committing *c, struct lmcs_captured *entry, uint64_t content, bool is_new,
                                 struct lmcs_error *error)
{
    struct lmcs_key_df key = {entry->identity, 0};
    struct lmcs_manifest_df old, now = {content, c->record.df.number};
    enum lmcs_status status = LMCS_OK;
    bool found = false;
    if (entry->in_base || entry->same_as != 0)
        status = lmcs_tree_get(&c->txn, LMCS_TREE_MANIFEST, &c->manifest, key, &old, sizeof old, sizeof old, NULL,
                               &found, error);
    if (status != LMCS_OK || (found && old.content == content))
        return status;
    if (!is_new)
        status = lmcs_content_run(&c->txn, content, entry->identity, error);
    if (status == LMCS_OK)
        status = lmcs_tree_put(&c->txn, LMCS_TREE_MANIFEST, &c->manifest, key, &now, sizeof now, error);
    return status;
}

static enum lmcs_status put_entry(struct committing *c, struct lmcs_captured *entry, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    if (entry->identity == 0)
        status = lmcs_identity_make(&c->txn, &entry->tensor, &entry->identity, error);
    if (status != LMCS_OK)
        return status;
    if (entry->same_as != 0) {
        const struct lmcs_captured *origin = c->capture->entries[entry->same_as - 1];
        return put_name(c, entry, origin->shared != 0 ? origin->shared : origin->content.id, false, error);
    }
    if (entry->shared != 0)
        return put_name(c, entry, entry->shared, false, error);
    entry->content.id = 0;
    entry->content.df.identity = entry->identity;
    entry->content.df.runs = 1;
    status = lmcs_content_add(&c->txn, &entry->content, error);
    return status == LMCS_OK ? put_name(c, entry, entry->content.id, true, error) : status;
}

static int by_identity(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/*
 * Takes names off the manifest that the base has and this capture has not. The base's record says how many it has:
 * nothing is measured by that, and a manifest with more of them, or fewer, is damage.
 */
static enum lmcs_status drop_names(struct committing *c, struct lmcs_error *error)
{
    struct lmcs_capture *capture = c->capture;
    if (c->manifest.count == capture->count)
        return LMCS_OK;
    uint64_t *wanted = malloc((capture->count + 1) * sizeof *wanted), *drop = NULL;
    struct lmcs_cursor *cursor = NULL;
    enum lmcs_status status = wanted == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < capture->count; i++)
        wanted[i] = capture->entries[i]->identity;
    if (status == LMCS_OK) {
        qsort(wanted, capture->count, sizeof *wanted, by_identity);
        status = lmcs_cursor_new(&cursor, error);
    }
    if (status == LMCS_OK)
        status = lmcs_cursor_seek(cursor, &c->txn, LMCS_TREE_MANIFEST, &c->manifest, (struct lmcs_key_df){0, 0}, error);
    size_t drops = 0, capacity = 0, w = 0;
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        uint64_t identity = lmcs_cursor_key(cursor).high;
        while (w < capture->count && wanted[w] < identity)
            w++;
        if (w == capture->count || wanted[w] != identity) {
            if (!lmcs_grow(&drop, &capacity, drops, sizeof *drop)) {
                status = lmcs_fail_memory(error);
                break;
            }
            drop[drops++] = identity;
        }
        status = lmcs_cursor_next(cursor, error);
    }
    if (status == LMCS_OK && c->manifest.count - capture->count != drops)
        status = lmcs_fail(error, LMCS_DAMAGED, 0,
                           "%s: damaged metadata: the record of %s@%llu has another number of names than its manifest",
                           capture->pool->path, capture->busy->name, (unsigned long long)capture->base_number);
    for (size_t i = 0; status == LMCS_OK && i < drops; i++)
        status =
            lmcs_tree_delete(&c->txn, LMCS_TREE_MANIFEST, &c->manifest, (struct lmcs_key_df){drop[i], 0}, NULL, error);
    lmcs_cursor_free(cursor);
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
    if (status == LMCS_OK && c->shelf.df.next_number >= LMCS_LARGEST_NUMBER)
        status =
            lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                      "%s: shelf \"%.200s\" has no numbers left (an archive may have set them so): fork it, and go "
                      "on there",
                      capture->pool->path, capture->busy->name);
    if (status != LMCS_OK || capture->base_number == 0)
        return status;
    status = lmcs_record_get(&c->txn, &c->shelf, capture->base_number, &c->base, &c->has_base, error);
    if (status == LMCS_OK && !c->has_base)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: the newest snapshot has gone while a capture was under way",
                         capture->pool->path);
    c->manifest = (struct lmcs_root_tree_df){.ref = c->base.df.manifest, .count = c->base.df.entry_count};
    return status;
}

static void fill_record(struct committing *c)
{
    struct lmcs_capture *capture = c->capture;
    const struct lmcs_commit_options *options = &capture->options;
    struct lmcs_snapshot_df *df = &c->record.df;
    size_t meta_bytes = strlen(capture->meta);
    df->number = c->shelf.df.next_number;
    df->state = options->prepare ? LMCS_SNAPSHOT_PREPARED : LMCS_SNAPSHOT_COMMITTED;
    df->step = options->step;
    df->time_ns = options->time_ns != 0 ? options->time_ns : lmcs_now_ns();
    df->parent = options->parent;
    if (options->parent == UINT64_MAX)
        df->parent = 0;
    else if (options->parent == 0)
        df->parent = capture->loaded != 0 ? capture->loaded : c->shelf.df.latest;
    df->epoch = c->txn.root.epoch;
    df->lineage = c->has_base ? c->base.df.lineage : c->txn.root.epoch;
    df->raw_bytes = capture->raw_bytes;
    memcpy(df->group, options->group, sizeof df->group);
    df->meta_bytes = meta_bytes <= LMCS_META_INLINE ? (uint32_t)meta_bytes : UINT32_MAX;
    if (meta_bytes <= LMCS_META_INLINE)
        memcpy(c->record.meta, capture->meta, meta_bytes);
    for (size_t i = 0; i < capture->count; i++)
        df->tensor_count += capture->entries[i]->tensor.kind == LMCS_TENSOR;
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
    for (size_t i = 0; status == LMCS_OK && i < capture->options.tag_count && !capture->options.prepare; i++)
        status = lmcs_tag_put(&c->txn, &c->shelf, capture->tags[i], c->record.df.number, error);
    if (capture->options.prepare && status == LMCS_OK) {
        struct lmcs_key_df key;
        uint64_t value[2] = {c->shelf.df.id, c->record.df.number};
        memcpy(&key, capture->options.group, sizeof key);
        status = lmcs_tree_put(&c->txn, LMCS_TREE_GROUPS, &c->txn.root.trees[LMCS_TREE_GROUPS], key, value,
                               sizeof value, error);
    } else {
        c->shelf.df.latest = c->record.df.number;
        c->shelf.df.snapshot_count++;
        c->txn.root.snapshot_count++;
    }
    c->shelf.df.next_number = c->record.df.number + 1;
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
        status = lmcs_tree_get(&c->txn, LMCS_TREE_GROUPS, &c->txn.root.trees[LMCS_TREE_GROUPS], key, value,
                               sizeof value, sizeof value, NULL, &found, error);
    if (status == LMCS_OK && found)
        return lmcs_fail(error, LMCS_EXISTS, 0, "%s: the group has a prepared snapshot here already",
                         c->capture->pool->path);
    return status;
}

static enum lmcs_status commit_now(struct lmcs_capture *capture, struct lmcs_error *error)
{
    struct lmcs_pool *pool = capture->pool;
    struct committing c = {.capture = capture};
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < capture->count; i++)
        if (capture->entries[i]->reserved != NULL)
            status = lmcs_hash_reserved(pool, capture->entries[i], error);
    /* Large payloads are synced before the metadata lock is taken; small ones together with the metadata. */
    uint64_t began = lmcs_now_ns();
    if (status == LMCS_OK && capture->written_bytes > LMC_BLOCK_BYTES)
        status = lmcs_heap_sync(pool->heap, error);
    lmcs_heap_drain(pool->heap);
    capture->spent_ns += lmcs_now_ns() - began;
    if (status == LMCS_OK)
        status = lmcs_txn_write(pool, &c.txn, error);
    if (status != LMCS_OK)
        return status;
    c.txn.only_allocates = true;
    status = load_shelf(&c, error);
    if (status == LMCS_OK)
        status = check_group(&c, error);
    if (status == LMCS_OK)
        fill_record(&c);
    for (size_t i = 0; status == LMCS_OK && i < capture->count; i++)
        status = put_entry(&c, capture->entries[i], error);
    if (status == LMCS_OK)
        status = drop_names(&c, error);
    if (status == LMCS_OK)
        status = enter_snapshot(&c, error);
    if (status == LMCS_OK)
        status = lmcs_region_commit(&c.txn, &capture->region, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&c.txn);
        return status;
    }
    status = lmcs_txn_commit(&c.txn, error);
    pthread_mutex_lock(&pool->captures);
    bool is_followed = status == LMCS_OK && !capture->options.prepare;
    struct lmcs_loaded *loaded = is_followed ? lmcs_loaded_find(pool, c.shelf.df.id) : NULL;
    if (loaded != NULL && loaded->loads == capture->loads) /* what was loaded since is what goes on from here */
        loaded->number = c.record.df.number;
    if (status == LMCS_OK)
        lmcs_pace_measured(&pool->pace, capture->has_coded, capture->new_bytes, capture->spent_ns);
    pthread_mutex_unlock(&pool->captures);
    return status;
}

/* ---- Commit: around the transaction ---- */

void lmcs_commit_options_init(struct lmcs_commit_options *options)
{
    *options = (struct lmcs_commit_options){.step = LMCS_NO_STEP};
}

/* An attachment of the store's own. */
static enum lmcs_status attach(struct lmcs_capture *capture, const char *name, const void *data, uint64_t bytes,
                               struct lmcs_error *error)
{
    struct lmcs_tensor tensor = {.name = name, .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1, .shape = &bytes};
    return lmcs_capture_put(capture, &tensor, &data, 1, error);
}

static enum lmcs_status attach_relations(struct lmcs_capture *capture, struct lmcs_error *error)
{
    void *grouping, *constants;
    uint64_t grouping_bytes, constants_bytes;
    enum lmcs_status status =
        lmcs_relations_encode(&capture->relations, &grouping, &grouping_bytes, &constants, &constants_bytes, error);
    if (status != LMCS_OK)
        return status;
    status = attach(capture, LMCS_RELATIONS_NAME, grouping, grouping_bytes, error);
    if (status == LMCS_OK)
        status = attach(capture, LMCS_CONSTANTS_NAME, constants, constants_bytes, error);
    free(grouping);
    free(constants);
    return status;
}

static enum lmcs_status take_options(struct lmcs_capture *capture, const struct lmcs_commit_options *options,
                                     struct lmcs_error *error)
{
    static const unsigned char no_group[16];
    capture->options = *options;
    capture->options.tag_count = 0;
    if (options->prepare && (memcmp(options->group, no_group, sizeof no_group) == 0 || options->tag_count > 0))
        return lmcs_fail(error, LMCS_INVALID, 0, "a prepared snapshot needs a group, and gets its tags when resolved");
    if (options->parent >= LMCS_LARGEST_NUMBER && options->parent != UINT64_MAX)
        return lmcs_fail(error, LMCS_INVALID, 0, "parent %llu: no snapshot has such a number",
                         (unsigned long long)options->parent);
    capture->tags = calloc(options->tag_count + 1, sizeof *capture->tags);
    if (capture->tags == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < options->tag_count; i++) {
        enum lmcs_status status = lmcs_tag_check(options->tags[i], error);
        if (status == LMCS_OK && (capture->tags[i] = strdup(options->tags[i])) == NULL)
            status = lmcs_fail_memory(error);
        if (status != LMCS_OK)
            return status;
        capture->options.tag_count++;
    }
    enum lmcs_status status = lmcs_meta_encode(options, &capture->meta, error);
    if (status == LMCS_OK && strlen(capture->meta) > LMCS_META_INLINE)
        status = attach(capture, LMCS_META_NAME, capture->meta, strlen(capture->meta), error);
    return status == LMCS_OK && capture->relations.count > 0 ? attach_relations(capture, error) : status;
}

/* Tells what became of a capture, and gives the shelf to the next. */
static void finish(struct lmcs_capture *capture, enum lmcs_status status, const struct lmcs_error *error)
{
    struct lmcs_pool *pool = capture->pool;
    lmcs_region_end(&capture->region);
    if (capture->has_coded)
        lmcs_encode_gate_leave(pool);
    if (status == LMCS_OK)
        lmcs_pool_wake(pool);
    pthread_mutex_lock(&pool->captures);
    struct lmcs_busy_shelf *busy = capture->busy;
    bool free_it = capture->detached;
    capture->result.status = status;
    if (status != LMCS_OK) {
        capture->result = *error;
        capture->result.status = status;
        if (capture->asynchronous) {
            busy->failure = capture->result;
            busy->untold = capture->failure = ++busy->failures;
        }
    }
    capture->done = true;
    busy->busy = busy->has_owner = false;
    pthread_cond_broadcast(&pool->captures_changed);
    pthread_mutex_unlock(&pool->captures);
    if (free_it)
        free_capture(capture);
}

static void *commit_thread(void *argument)
{
    struct lmcs_capture *capture = argument;
    struct lmcs_error error;
    enum lmcs_status status = commit_now(capture, &error);
    finish(capture, status, &error);
    return NULL;
}

static enum lmcs_status start_commit(struct lmcs_capture *capture, struct lmcs_error *error)
{
    pthread_attr_t attributes;
    sigset_t all, old;
    lmcs_guard_signals(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&capture->pool->captures);
    capture->busy->has_owner = false;
    pthread_mutex_unlock(&capture->pool->captures);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failure = pthread_create(&capture->thread, &attributes, commit_thread, capture);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return failure == 0 ? LMCS_OK : lmcs_fail_errno(error, failure, "can't start a thread");
}

/* What the snapshot follows from is what it is now, not what it will be when an asynchronous commit comes to it. */
static enum lmcs_status expect_number(struct lmcs_capture *capture, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    bool found;
    enum lmcs_status status = lmcs_txn_read(capture->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_find(&txn, capture->busy->name, &shelf, &found, error);
    capture->number = status == LMCS_OK && found ? shelf.df.next_number : 1;
    lmcs_txn_end(&txn);
    pthread_mutex_lock(&capture->pool->captures);
    struct lmcs_loaded *loaded = status == LMCS_OK && found ? lmcs_loaded_find(capture->pool, shelf.df.id) : NULL;
    capture->loaded = loaded != NULL ? loaded->number : 0;
    capture->loads = loaded != NULL ? loaded->loads : 0;
    if (loaded != NULL && capture->options.prepare)
        loaded->prepared_loads = loaded->loads;
    pthread_mutex_unlock(&capture->pool->captures);
    return status;
}

enum lmcs_status lmcs_capture_commit(struct lmcs_capture *capture, const struct lmcs_commit_options *options,
                                     uint64_t *number, struct lmcs_error *error)
{
    struct lmcs_commit_options defaults;
    struct lmcs_error local;
    lmcs_commit_options_init(&defaults);
    enum lmcs_status status = check_open(capture, &local);
    if (status == LMCS_OK)
        status = take_options(capture, options != NULL ? options : &defaults, &local);
    if (status == LMCS_OK)
        status = expect_number(capture, &local);
    uint64_t expected = capture->number;
    capture->asynchronous = status == LMCS_OK && options != NULL && options->asynchronous;
    if (capture->asynchronous) {
        capture->state = COMMITTING;
        status = start_commit(capture, &local);
        if (status == LMCS_OK) {
            if (number != NULL)
                *number = expected;
            return LMCS_OK;
        }
        capture->asynchronous = false;
    }
    if (status == LMCS_OK)
        status = commit_now(capture, &local);
    if (lmcs_pool_check(capture->pool, true, NULL) == LMCS_OK)
        finish(capture, status, &local);
    free_capture(capture);
    if (status == LMCS_OK && number != NULL)
        *number = expected;
    if (status != LMCS_OK && error != NULL)
        *error = local;
    return status;
}

enum lmcs_status lmcs_capture_wait(struct lmcs_capture *capture, struct lmcs_error *error)
{
    struct lmcs_pool *pool = capture->pool;
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->captures);
    while (!capture->done)
        pthread_cond_wait(&pool->captures_changed, &pool->captures);
    status = capture->result.status;
    if (status != LMCS_OK) {
        if (capture->busy->untold == capture->failure) /* and not that of a later one */
            capture->busy->untold = 0;
        if (error != NULL)
            *error = capture->result;
    }
    pthread_mutex_unlock(&pool->captures);
    free_capture(capture);
    return status;
}

bool lmcs_capture_done(struct lmcs_capture *capture)
{
    if (lmcs_pool_check(capture->pool, true, NULL) != LMCS_OK)
        return true; /* in a child, where waiting fails at once, and the lock may be held for ever */
    pthread_mutex_lock(&capture->pool->captures);
    bool done = capture->done;
    pthread_mutex_unlock(&capture->pool->captures);
    return done;
}

void lmcs_capture_detach(struct lmcs_capture *capture)
{
    struct lmcs_pool *pool = capture->pool;
    if (lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return;
    pthread_mutex_lock(&pool->captures);
    bool free_it = capture->done;
    capture->detached = true;
    pthread_mutex_unlock(&pool->captures);
    if (free_it)
        free_capture(capture);
}

/* ---- Groups ---- */

/* `value` gets the shelf and number of the group's snapshot. */
static enum lmcs_status resolve(struct lmcs_txn *txn, const struct lmcs_key_df *key, bool commit, uint64_t value[2],
                                struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    struct lmcs_removal removal = {0};
    bool found;
    const size_t bytes = 2 * sizeof *value;
    enum lmcs_status status = lmcs_tree_get(txn, LMCS_TREE_GROUPS, &txn->root.trees[LMCS_TREE_GROUPS], *key, value,
                                            bytes, bytes, NULL, &found, error);
    if (status == LMCS_OK && !found)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no prepared snapshot of this group", txn->pool->path);
    if (status == LMCS_OK)
        status = lmcs_shelf_load(txn, value[0], &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_record_get(txn, &shelf, value[1], &record, &found, error);
    if (status == LMCS_OK && (!found || record.df.state != LMCS_SNAPSHOT_PREPARED))
        status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a prepared snapshot", txn->pool->path);
    if (status != LMCS_OK)
        return status;
    if (commit) {
        record.df.state = LMCS_SNAPSHOT_COMMITTED;
        status = lmcs_record_put(txn, &shelf, &record, error);
        shelf.df.latest = record.df.number;
        shelf.df.snapshot_count++;
        txn->root.snapshot_count++;
    } else {
        status = lmcs_shelf_remove(txn, &shelf, value[1], &removal, error);
    }
    if (status == LMCS_OK)
        status = lmcs_tree_delete(txn, LMCS_TREE_GROUPS, &txn->root.trees[LMCS_TREE_GROUPS], *key, NULL, error);
    return status == LMCS_OK ? lmcs_shelf_save(txn, &shelf, error) : status;
}

/* The next snapshot follows from this one, unless one was loaded, or a later one committed, since it was captured. */
static void follow_resolved(struct lmcs_pool *pool, uint64_t shelf, uint64_t number)
{
    pthread_mutex_lock(&pool->captures);
    struct lmcs_loaded *loaded = lmcs_loaded_find(pool, shelf);
    if (loaded != NULL && loaded->loads == loaded->prepared_loads && loaded->number < number)
        loaded->number = number;
    pthread_mutex_unlock(&pool->captures);
}

enum lmcs_status lmcs_group_resolve(struct lmcs_pool *pool, const unsigned char group[16], bool commit,
                                    struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_key_df key;
    uint64_t value[2];
    memcpy(&key, group, sizeof key);
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = resolve(&txn, &key, commit, value, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    status = lmcs_txn_commit(&txn, error);
    if (status == LMCS_OK && commit)
        follow_resolved(pool, value[0], value[1]);
    return status;
}
