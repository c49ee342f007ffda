/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * snapshots/view.c - addresses for the tensors of a snapshot.
 *
 * Raw payloads are mapped. A read-only view points into the one shared mapping that a pool has of its file (never
 * libpmemobj's own, which would keep the pool locked). A private one maps clusters of neighbouring payloads copy on
 * write: few mappings (the kernel allows 65,530), and small tensors that share a page share its private copy. Deltas
 * are decoded into anonymous memory. Mapped payloads are pinned until the view is closed; the view holds media and
 * leases itself, so it may outlive its pool.
 *
 * Unrelated names with equal bytes may share a content, so each private name gets its own bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/order.h"
#include "payload/verified.h"
#include "records/manifest.h"
#include "records/relations.h"
#include "records/safety.h"
#include "snapshots/snapshot.h"

#define CLUSTER_GAP  ((uint64_t)1 << 20)
#define DOUBLE_BYTES ((uint64_t)256 << 10) /* of a content: from here on, further names are mapped, not copied */
#define DATA_ALIGN   64u

struct viewed {
    struct lmcs_entry entry;
    struct lmcs_part_df *parts; /* pinned */
    uint32_t part_count;
    struct lmcs_chain *chain; /* while it is to be decoded; else NULL */
    uint64_t *numbers;        /* shape, global shape, offsets; then the name */
    void *data;
};

struct mapping {
    void *at;
    size_t bytes;
};

struct lmcs_view {
    pid_t pid;
    struct lmcs_media *media;
    struct lmcs_lease *lease;
    struct viewed *items;
    size_t count;
    size_t capacity;
    struct mapping *mappings;
    size_t mapping_count;
};

static _Alignas(DATA_ALIGN) unsigned char nothing[DATA_ALIGN]; /* where empty tensors are */

/* ---- Collecting ---- */

static bool copy_identity(struct viewed *item, const struct lmcs_identity *identity)
{
    size_t ndim = identity->df.ndim, lists = identity->df.is_part ? 3 : 1, name_bytes = identity->df.name_bytes + 1u;
    item->numbers = malloc(lists * ndim * sizeof(uint64_t) + name_bytes);
    if (item->numbers == NULL)
        return false;
    memcpy(item->numbers, identity->shape, ndim * sizeof(uint64_t));
    struct lmcs_tensor *tensor = &item->entry.tensor;
    tensor->shape = item->numbers;
    if (identity->df.is_part) {
        memcpy(item->numbers + ndim, identity->global_shape, ndim * sizeof(uint64_t));
        memcpy(item->numbers + 2 * ndim, identity->offsets, ndim * sizeof(uint64_t));
        tensor->global_shape = item->numbers + ndim;
        tensor->offsets = item->numbers + 2 * ndim;
    }
    char *name = (char *)(item->numbers + lists * ndim);
    memcpy(name, identity->name, name_bytes);
    tensor->name = name;
    return true;
}

static bool must_decode(const struct lmcs_view *view, const struct lmcs_chain *chain, uint32_t flags)
{
    if (chain->links[0].df.raw_bytes == 0)
        return false;
    return (flags & LMCS_VIEW_COPY) != 0 || chain->links[0].df.payload != LMCS_PAYLOAD_RAW ||
           ((flags & LMCS_VIEW_PRIVATE) != 0 && lmcs_media_is_device(view->media));
}

/* Within the transaction; pins the entry's chain. */
static enum lmcs_status add_item(struct lmcs_view *view, struct lmcs_txn *txn, const struct lmcs_identity *identity,
                                 uint64_t content, uint32_t flags, struct lmcs_error *error)
{
    struct lmcs_chain chain;
    if (!lmcs_grow(&view->items, &view->capacity, view->count, sizeof *view->items))
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_chain_load(txn, content, &chain, error);
    if (status != LMCS_OK)
        return status;
    /* Callers read as many bytes as the shape has. */
    uint64_t expected;
    if (!lmcs_shape_bytes(identity->df.dtype, identity->df.ndim, identity->shape, &expected) ||
        expected != chain.links[0].df.raw_bytes)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: tensor \"%s\" has not the size of its shape",
                         txn->pool->path, identity->name);
    /* Raw bytes are mapped, not checked. */
    status = lmcs_lost_check(txn, &chain.links[0], identity->name, identity, error);
    if (status != LMCS_OK)
        return status;
    struct viewed *item = &view->items[view->count];
    memset(item, 0, sizeof *item);
    lmcs_entry_fill(identity, &chain, &item->entry);
    const struct lmcs_content *top = &chain.links[0];
    bool decode = must_decode(view, &chain, flags);
    size_t part_bytes = top->df.part_count * sizeof *item->parts;
    item->parts = malloc(part_bytes + 1);
    item->chain = decode ? malloc(offsetof(struct lmcs_chain, links) + chain.length * sizeof chain.links[0]) : NULL;
    if (!copy_identity(item, identity) || item->parts == NULL || (decode && item->chain == NULL)) {
        free(item->numbers);
        free(item->parts);
        free(item->chain);
        return lmcs_fail_memory(error);
    }
    memcpy(item->parts, top->parts, part_bytes);
    item->part_count = top->df.part_count;
    if (decode)
        memcpy(item->chain, &chain, offsetof(struct lmcs_chain, links) + chain.length * sizeof chain.links[0]);
    status = decode ? lmcs_chain_pin(txn->pool, &chain, error) : lmcs_payload_pin(view->lease, top, error);
    if (status != LMCS_OK) {
        free(item->numbers);
        free(item->parts);
        free(item->chain);
        return status;
    }
    view->count++;
    return LMCS_OK;
}

struct collecting {
    struct lmcs_view *view;
    struct lmcs_txn *txn;
    uint32_t flags;
};

static enum lmcs_status collect_entry(void *context, uint64_t id, const struct lmcs_manifest_df *at, bool *stop,
                                      struct lmcs_error *error)
{
    struct collecting *collecting = context;
    struct lmcs_identity identity;
    (void)stop;
    enum lmcs_status status = lmcs_identity_get(collecting->txn, id, &identity, error);
    if (status != LMCS_OK || lmcs_is_own(identity.df.kind, identity.name))
        return status;
    return add_item(collecting->view, collecting->txn, &identity, at->content, collecting->flags, error);
}

static enum lmcs_status collect_named(struct collecting *collecting, const struct lmcs_snapshot *snapshot,
                                      const struct lmcs_record *record, const char *const *names, const uint32_t *kinds,
                                      size_t count, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        struct lmcs_identity identity;
        uint64_t content;
        bool found;
        status = lmcs_manifest_find(collecting->txn, &record->df, kinds == NULL ? LMCS_TENSOR : kinds[i], names[i],
                                    &identity, &content, &found, error);
        if (status == LMCS_OK && !found)
            status = lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: %s@%llu has no tensor \"%.200s\"", snapshot->pool->path,
                               snapshot->shelf, (unsigned long long)snapshot->info.number, names[i]);
        if (status == LMCS_OK)
            status = add_item(collecting->view, collecting->txn, &identity, content, collecting->flags, error);
    }
    return status;
}

/* ---- Mapping ---- */

static void *reserve_addresses(struct lmcs_view *view, size_t bytes, int protection, struct lmcs_error *error)
{
    struct mapping *grown = realloc(view->mappings, (view->mapping_count + 1) * sizeof *grown);
    if (grown == NULL) {
        lmcs_fail_memory(error);
        return NULL;
    }
    view->mappings = grown;
    void *at = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        (void)lmcs_fail_map(error, bytes, "can't map %zu bytes", bytes);
        return NULL;
    }
    view->mappings[view->mapping_count++] = (struct mapping){at, bytes};
    return at;
}

static bool is_mapped(const struct viewed *item)
{
    return item->data == NULL && item->entry.raw_bytes > 0;
}

static enum lmcs_status map_parts(struct lmcs_view *view, struct viewed *item, bool private_pages,
                                  struct lmcs_error *error)
{
    uint64_t page = LMCS_PAGE_BYTES - 1, total = (item->entry.raw_bytes + page) & ~page, done = 0;
    char *at = reserve_addresses(view, total, PROT_NONE, error);
    enum lmcs_status status = at == NULL ? LMCS_IO : LMCS_OK;
    for (uint32_t i = 0; status == LMCS_OK && i < item->part_count && done < total; i++) {
        uint64_t bytes = (item->parts[i].bytes + page) & ~page;
        bytes = bytes < total - done ? bytes : total - done;
        status = private_pages ? lmcs_media_map_private(view->media, item->parts[i].offset, bytes, at + done, error)
                               : lmcs_media_map_shared(view->media, item->parts[i].offset, bytes, at + done, error);
        done += bytes;
    }
    item->data = at;
    return status;
}

static int by_place(const void *a, const void *b)
{
    uint64_t x = (*(struct viewed *const *)a)->parts[0].offset, y = (*(struct viewed *const *)b)->parts[0].offset;
    return LMCS_ORDER(x, y);
}

static uint64_t end_of(const struct viewed *item)
{
    return item->parts[0].offset + item->entry.raw_bytes;
}

/* Maps the pages from the first item to the last, which are adjacent, privately and at once. */
static enum lmcs_status map_cluster(struct lmcs_view *view, struct viewed **items, size_t count,
                                    struct lmcs_error *error)
{
    uint64_t page = LMCS_PAGE_BYTES - 1;
    uint64_t start = items[0]->parts[0].offset & ~page;
    uint64_t end = (end_of(items[count - 1]) + page) & ~page;
    char *at = reserve_addresses(view, end - start, PROT_NONE, error);
    if (at == NULL)
        return LMCS_IO;
    enum lmcs_status status = lmcs_media_map_private(view->media, start, end - start, at, error);
    for (size_t i = 0; i < count; i++)
        items[i]->data = at + (items[i]->parts[0].offset - start);
    return status;
}

static uint64_t copied_bytes(const struct viewed *item)
{
    return item->entry.raw_bytes < DOUBLE_BYTES ? (item->entry.raw_bytes + DATA_ALIGN - 1) & ~(uint64_t)(DATA_ALIGN - 1)
                                                : 0;
}

/*
 * Maps items whose bytes another item has, all or some: large ones get mappings, small ones copies in one piece of
 * memory.
 */
static enum lmcs_status map_doubles(struct lmcs_view *view, struct viewed **doubles, size_t count,
                                    struct lmcs_error *error)
{
    uint64_t total = 0;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; i < count; i++)
        total += copied_bytes(doubles[i]);
    char *at = total > 0 ? reserve_addresses(view, total, PROT_READ | PROT_WRITE, error) : NULL;
    if (total > 0 && at == NULL)
        return LMCS_NO_MEMORY;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        struct viewed *item = doubles[i];
        if (copied_bytes(item) == 0) {
            status = map_cluster(view, &item, 1, error);
            continue;
        }
        status = lmcs_media_read(view->media, item->parts[0].offset, at, item->entry.raw_bytes, error);
        if (status != LMCS_OK)
            lmcs_error_prefix(error, "tensor \"%.200s\": ", item->entry.tensor.name);
        item->data = at;
        at += copied_bytes(item);
    }
    return status;
}

static enum lmcs_status map_private(struct lmcs_view *view, struct lmcs_error *error)
{
    struct viewed **items = malloc((view->count + 1) * 2 * sizeof(struct viewed *));
    if (items == NULL)
        return lmcs_fail_memory(error);
    struct viewed **doubles = items + view->count;
    size_t all = 0, count = 0, double_count = 0;
    for (size_t i = 0; i < view->count; i++)
        if (is_mapped(&view->items[i]) && view->items[i].part_count == 1)
            items[all++] = &view->items[i];
    qsort(items, all, sizeof(struct viewed *), by_place);
    for (size_t i = 0; i < all; i++) /* those of one content, and those that only a forged pool lets overlap */
        if (count > 0 && items[i]->parts[0].offset < end_of(items[count - 1]))
            doubles[double_count++] = items[i];
        else
            items[count++] = items[i];
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0, first = 0; status == LMCS_OK && i < count; i++) {
        bool last = i + 1 == count || items[i + 1]->parts[0].offset > end_of(items[i]) + CLUSTER_GAP;
        if (!last)
            continue;
        status = map_cluster(view, items + first, i + 1 - first, error);
        first = i + 1;
    }
    if (status == LMCS_OK)
        status = map_doubles(view, doubles, double_count, error);
    free(items);
    return status;
}

/* A truncated file gives an error here instead of a SIGBUS later. */
static enum lmcs_status check_size(const struct lmcs_view *view, const struct viewed *item, uint64_t file_bytes,
                                   struct lmcs_error *error)
{
    for (uint32_t i = 0; i < item->part_count; i++)
        if (item->parts[i].offset + item->parts[i].bytes > file_bytes)
            return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: the file was cut short: tensor \"%.200s\" is missing",
                             lmcs_media_path(view->media), item->entry.tensor.name);
    return LMCS_OK;
}

static enum lmcs_status map_all(struct lmcs_view *view, uint32_t flags, struct lmcs_error *error)
{
    struct stat st;
    uint64_t file_bytes = UINT64_MAX;
    bool plain_file = !lmcs_media_is_device(view->media) && !lmcs_media_is_poolset(view->media);
    if (plain_file && fstat(lmcs_media_fd(view->media), &st) == 0)
        file_bytes = (uint64_t)st.st_size;
    bool private_pages = (flags & LMCS_VIEW_PRIVATE) != 0;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < view->count; i++) {
        struct viewed *item = &view->items[i];
        if (!is_mapped(item))
            continue;
        status = check_size(view, item, file_bytes, error);
        if (status == LMCS_OK && item->part_count > 1)
            status = map_parts(view, item, private_pages, error);
        else if (status == LMCS_OK && !private_pages)
            item->data = (void *)lmcs_media_at(view->media, item->parts[0].offset, item->entry.raw_bytes);
        if (status == LMCS_OK && item->data == NULL && (!private_pages || item->part_count != 1))
            status =
                lmcs_fail(error, LMCS_DAMAGED, 0, "%s: a payload is outside the pool", lmcs_media_path(view->media));
    }
    return status == LMCS_OK && private_pages ? map_private(view, error) : status;
}

/* ---- Decoding ---- */

struct decoding {
    struct lmcs_pool *pool;
    struct viewed **items; /* arrays of one link are adjacent ... */
    size_t *firsts;        /* ... and each group, or single item, begins at one of these */
    size_t count;
};

/* The link that decodes the item; 0: none. */
static uint64_t link_of(const struct viewed *item)
{
    return item->chain->line > 0 && item->entry.tensor.dtype == LMC_F32 ? item->chain->links[0].link : 0;
}

static int by_link(const void *a, const void *b)
{
    uint64_t x = link_of(*(struct viewed *const *)a), y = link_of(*(struct viewed *const *)b);
    return LMCS_ORDER(x, y);
}

static enum lmcs_status decode_job(void *context, uint64_t i, struct lmcs_error *error)
{
    struct decoding *decoding = context;
    size_t first = decoding->firsts[i], end = decoding->firsts[i + 1];
    const struct viewed *item = decoding->items[first];
    const struct lmcs_tensor *tensor = &item->entry.tensor;
    void *buffers[LMC_MAX_BASES] = {NULL};
    const struct lmcs_content *contents[LMC_MAX_BASES] = {NULL};
    for (size_t k = first; link_of(item) != 0 && k < end; k++) {
        const struct lmcs_content *top = &decoding->items[k]->chain->links[0];
        contents[top->df.output] = top;
        buffers[top->df.output] = decoding->items[k]->data;
    }
    return link_of(item) != 0 ? lmcs_chain_read_arrays(decoding->pool, item->chain, tensor, contents, buffers, error)
                              : lmcs_chain_read(decoding->pool, item->chain, tensor, item->data, NULL, error);
}

/* A content that several names share is decoded for each of them. */
static void find_groups(struct decoding *decoding, size_t items)
{
    uint32_t seen = 0;
    for (size_t i = 0; i < items; i++) {
        uint64_t link = link_of(decoding->items[i]);
        uint32_t bit = link != 0 ? 1u << decoding->items[i]->chain->links[0].df.output : 0;
        bool same = i > 0 && link != 0 && link == link_of(decoding->items[i - 1]) && (seen & bit) == 0;
        if (!same)
            decoding->firsts[decoding->count++] = i;
        seen = same ? seen | bit : bit;
    }
    decoding->firsts[decoding->count] = items;
}

/* Decodes the items that have a chain. */
static enum lmcs_status run_decoding(struct lmcs_view *view, struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct decoding decoding = {.pool = pool,
                                .items = malloc((view->count + 1) * sizeof(struct viewed *)),
                                .firsts = malloc((view->count + 1) * sizeof(size_t))};
    if (decoding.items == NULL || decoding.firsts == NULL) {
        free(decoding.items);
        free(decoding.firsts);
        return lmcs_fail_memory(error);
    }
    size_t count = 0;
    for (size_t i = 0; i < view->count; i++)
        if (view->items[i].chain != NULL)
            decoding.items[count++] = &view->items[i];
    if (count > 1)
        qsort(decoding.items, count, sizeof *decoding.items, by_link);
    find_groups(&decoding, count);
    enum lmcs_status status =
        lmcs_workers_try(pool->workers, decode_job, NULL, &decoding, count > 0 ? decoding.count : 0, error);
    free(decoding.items);
    free(decoding.firsts);
    return status;
}

static enum lmcs_status place_decoded(struct lmcs_view *view, struct lmcs_error *error)
{
    uint64_t total = 0;
    for (size_t i = 0; i < view->count; i++) {
        const struct viewed *item = &view->items[i];
        if (item->chain != NULL)
            total += (item->entry.raw_bytes + DATA_ALIGN - 1) & ~(uint64_t)(DATA_ALIGN - 1);
        if (total > SIZE_MAX / 4)
            return lmcs_fail_memory(error);
    }
    if (total == 0)
        return LMCS_OK;
    char *at = reserve_addresses(view, total, PROT_READ | PROT_WRITE, error);
    if (at == NULL)
        return LMCS_NO_MEMORY;
    madvise(at, total, MADV_HUGEPAGE);
    for (size_t i = 0; i < view->count; i++) {
        struct viewed *item = &view->items[i];
        if (item->chain == NULL)
            continue;
        item->data = at;
        at += (item->entry.raw_bytes + DATA_ALIGN - 1) & ~(uint64_t)(DATA_ALIGN - 1);
    }
    return LMCS_OK;
}

/* Unpins the chains that only decoding needed. */
static void release_chains(struct lmcs_view *view, struct lmcs_pool *pool)
{
    for (size_t i = 0; i < view->count; i++) {
        struct viewed *item = &view->items[i];
        if (item->chain == NULL)
            continue;
        lmcs_chain_unpin(pool, item->chain);
        item->part_count = 0;
        free(item->chain);
        item->chain = NULL;
    }
}

/* Compares the mapped payloads that were not compared before. */
static enum lmcs_status verify_mapped(struct lmcs_view *view, struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_raw *raws = malloc((view->count + 1) * sizeof *raws);
    size_t count = 0;
    if (raws == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < view->count; i++) {
        const struct viewed *item = &view->items[i];
        bool was_decoded = item->part_count == 0 && item->entry.raw_bytes > 0;
        if (!was_decoded &&
            (item->part_count == 0 || !lmcs_verified_has(pool, item->entry.content, item->parts, LMCS_ALL_BLOCKS)))
            raws[count++] = (struct lmcs_raw){&item->entry, item->parts, item->part_count};
    }
    enum lmcs_status status = count > 0 ? lmcs_raw_verify(pool, raws, count, error) : LMCS_OK;
    free(raws);
    return status;
}

/* Makes a read-only view's own memory read-only, too. */
static void protect(struct lmcs_view *view, uint32_t flags)
{
    for (size_t i = 0; (flags & LMCS_VIEW_PRIVATE) == 0 && i < view->mapping_count; i++)
        mprotect(view->mappings[i].at, view->mappings[i].bytes, PROT_READ);
}

/* ---- The interface ---- */

static enum lmcs_status collect(struct lmcs_snapshot *snapshot, const char *const *names, const uint32_t *kinds,
                                size_t count, uint32_t flags, struct lmcs_view *view, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    enum lmcs_status status = lmcs_snapshot_enter(snapshot, &txn, &shelf, &record, error);
    if (status != LMCS_OK)
        return status;
    struct collecting collecting = {view, &txn, flags};
    status = names == NULL ? lmcs_manifest_each(&txn, &record.df, collect_entry, &collecting, error)
                           : collect_named(&collecting, snapshot, &record, names, kinds, count, error);
    lmcs_txn_end(&txn);
    return status;
}

enum lmcs_status lmcs_view_open(struct lmcs_snapshot *snapshot, const char *const *names, const uint32_t *kinds,
                                size_t count, uint32_t flags, struct lmcs_view **view, struct lmcs_error *error)
{
    struct lmcs_pool *pool = snapshot->pool;
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_view *v = calloc(1, sizeof *v);
    if (v == NULL)
        return lmcs_fail_memory(error);
    v->pid = getpid();
    v->media = lmcs_media_share(pool->media);
    v->lease = lmcs_lease_share(pool->lease);
    status = collect(snapshot, names, kinds, count, flags, v, error);
    if (status == LMCS_OK)
        status = place_decoded(v, error);
    if (status == LMCS_OK)
        status = run_decoding(v, pool, error);
    release_chains(v, pool);
    if (status == LMCS_OK)
        status = map_all(v, flags, error);
    if (status == LMCS_OK && (flags & LMCS_VIEW_VERIFY) != 0)
        status = verify_mapped(v, pool, error);
    if (status != LMCS_OK) {
        lmcs_snapshot_explain_damage(snapshot, status == LMCS_DAMAGED ? error : NULL);
        lmcs_view_close(v);
        return status;
    }
    protect(v, flags);
    *view = v;
    return LMCS_OK;
}

size_t lmcs_view_count(const struct lmcs_view *view)
{
    return view->count;
}
const struct lmcs_entry *lmcs_view_entry(const struct lmcs_view *view, size_t i)
{
    return &view->items[i].entry;
}

void *lmcs_view_data(const struct lmcs_view *view, size_t i)
{
    return view->items[i].data != NULL ? view->items[i].data : nothing;
}

void lmcs_view_close(struct lmcs_view *view)
{
    if (view == NULL)
        return;
    for (size_t i = 0; i < view->mapping_count; i++)
        munmap(view->mappings[i].at, view->mappings[i].bytes);
    /* The leases of a child are its parent's (shared description), and its locks may be held for ever. */
    bool own = view->pid == getpid();
    for (size_t i = 0; i < view->count; i++) {
        struct viewed *item = &view->items[i];
        for (uint32_t k = 0; own && k < item->part_count; k++)
            lmcs_lease_unpin(view->lease, item->parts[k].offset, item->parts[k].bytes);
        free(item->parts);
        free(item->numbers);
        free(item->chain);
    }
    if (own) {
        lmcs_lease_release(view->lease);
        lmcs_media_release(view->media);
    }
    free(view->items);
    free(view->mappings);
    free(view);
}
