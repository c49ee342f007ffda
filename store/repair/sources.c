/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/sources.c - other copies of a content, or of a block of it (store/REPAIR.md).
 *
 * A block from a copy is checked against the digest of its source, and against the known hash of the block. Another
 * content of the same name (a neighbour) may contain the same block, as the hashes in its header show.
 */
#include "repair/sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archive/decode.h"
#include "archive/index.h"
#include "base/grow.h"
#include "base/order.h"
#include "pages/pool.h"
#include "pages/tree.h"
#include "payload/read.h"
#include "payload/scan.h"

#define MOST_COPIES     8u
#define MOST_NEIGHBOURS 32u
#define NAME_BYTES      160

struct listed {
    struct lmc_hash digest;
    uint64_t content;
    uint64_t identity;
    uint64_t raw_bytes;
};

struct source {
    char name[NAME_BYTES];
    struct lmcs_pool *pool; /* NULL: an archive */
    bool is_own;            /* the repaired pool */
    struct listed *list;    /* by digest */
    size_t count;
    size_t capacity;
    int fd;
    uint64_t start;
    struct lmcs_archive_reader reader;
    bool has_reader;
    struct lmcs_index index;
};

struct copy {
    struct source *source;
    struct lmcs_chain chain; /* of a pool; pinned */
    struct lmcs_identity identity;
    struct lmcs_reader *reader;
    struct lmcs_scan head;
    struct lmcs_decoding decoding; /* of an archive */
};

struct lmcs_sources {
    struct lmcs_pool *pool;
    struct source *sources; /* first: the repaired pool */
    size_t source_count;
    bool is_listed;
    uint64_t content;
    uint64_t identity;
    uint64_t raw_bytes;
    struct copy *copies[MOST_COPIES];
    size_t copy_count;
    struct copy *neighbours[MOST_NEIGHBOURS];
    size_t neighbour_count;
    bool has_neighbours;
    struct lmc_hash *hashes;
    const char *name;
};

/* ---- Lists ---- */

static int by_digest(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    return LMCS_ORDER2(x->digest.low, y->digest.low, x->digest.high, y->digest.high);
}

static bool add(struct source *source, const struct listed *item)
{
    if (!lmcs_grow(&source->list, &source->capacity, source->count, sizeof *source->list))
        return false;
    source->list[source->count++] = *item;
    return true;
}

static void sort(struct source *source)
{
    if (source->count > 1)
        qsort(source->list, source->count, sizeof *source->list, by_digest);
}

/* Lists some contents of a pool, from id `first` on. *next: the id after them; 0: the end. */
static enum lmcs_status list_some(struct source *source, uint64_t first, uint64_t *next, struct lmcs_error *error)
{
    enum { AT_ONCE = 4096 };
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    *next = 0;
    enum lmcs_status status = lmcs_txn_read(source->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_open(&cursor, &txn, LMCS_TREE_CONTENTS, (struct lmcs_key_df){first, 0}, error);
    for (size_t i = 0; status == LMCS_OK && lmcs_cursor_valid(cursor); i++) {
        struct lmcs_content_df df;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        uint64_t id = lmcs_cursor_key(cursor).high;
        *next = i == AT_ONCE ? id : 0;
        if (i == AT_ONCE)
            break;
        if (bytes >= sizeof df) {
            memcpy(&df, value, sizeof df);
            struct listed item = {{df.digest_low, df.digest_high}, id, df.identity, df.raw_bytes};
            if (!add(source, &item))
                status = lmcs_fail_memory(error);
        }
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return status;
}

/* Lists the contents of a pool; after an unreadable record, keeps those listed so far. */
static enum lmcs_status list_pool(struct source *source, struct lmcs_error *error)
{
    uint64_t next = 1;
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && next != 0)
        status = list_some(source, next, &next, error);
    sort(source);
    return lmcs_is_unusable(status) ? LMCS_OK : status;
}

static enum lmcs_status list_archive(struct source *source, struct lmcs_error *error)
{
    for (size_t i = 0; i < source->reader.content_count; i++) {
        const struct lmcs_archive_content *content = &source->reader.contents[i];
        struct listed item = {content->digest, i, content->identity,
                              source->reader.identities[content->identity]->raw_bytes};
        if (!content->is_known && !add(source, &item))
            return lmcs_fail_memory(error);
    }
    sort(source);
    return LMCS_OK;
}

/* ---- Opening ---- */

static enum lmcs_status open_archive(struct source *source, struct lmcs_error *error)
{
    off_t start = lseek(source->fd, 0, SEEK_CUR);
    source->start = (uint64_t)start;
    enum lmcs_status status = lmcs_archive_reader_init(&source->reader, source->fd, error);
    if (status != LMCS_OK)
        return status;
    source->has_reader = true;
    source->index.reader = &source->reader;
    source->reader.source.passes_data = true;
    source->reader.visitor = &lmcs_index_visitor;
    source->reader.context = &source->index;
    status = lmcs_archive_reader_run(&source->reader, error);
    return status == LMCS_OK ? list_archive(source, error) : status;
}

static void close_source(struct source *source)
{
    if (source->pool != NULL && !source->is_own)
        (void)!lmcs_pool_close(source->pool, NULL);
    if (source->has_reader) {
        lmcs_index_free(&source->index);
        lmcs_archive_reader_fini(&source->reader);
    }
    if (source->fd >= 0)
        close(source->fd);
    free(source->list);
}

enum lmcs_status lmcs_sources_new(struct lmcs_pool *pool, size_t capacity, struct lmcs_sources **sources,
                                  struct lmcs_error *error)
{
    struct lmcs_sources *made = calloc(1, sizeof *made);
    if (made != NULL)
        made->sources = lmcs_calloc_aligned(_Alignof(struct source), capacity + 1, sizeof *made->sources);
    if (made == NULL || made->sources == NULL) {
        free(made);
        return lmcs_fail_memory(error);
    }
    made->pool = pool;
    made->name = "";
    made->sources[0] = (struct source){.name = "a copy in the pool", .pool = pool, .is_own = true, .fd = -1};
    made->source_count = 1;
    *sources = made;
    return LMCS_OK;
}

/* Keeps an opened source, or closes it after a failure. */
static enum lmcs_status keep_source(struct lmcs_sources *sources, struct source *source, enum lmcs_status status)
{
    if (status == LMCS_OK)
        sources->source_count++;
    else
        close_source(source);
    return status;
}

enum lmcs_status lmcs_sources_add_pool(struct lmcs_sources *sources, const char *name, struct lmcs_pool *pool,
                                       struct lmcs_error *error)
{
    struct source *source = &sources->sources[sources->source_count];
    *source = (struct source){.pool = pool, .fd = -1};
    snprintf(source->name, sizeof source->name, "%s", name);
    enum lmcs_status status =
        pool == sources->pool
            ? lmcs_fail(error, LMCS_INVALID, 0, "%s: is the pool to be repaired; give another one", name)
            : list_pool(source, error);
    return keep_source(sources, source, status);
}

enum lmcs_status lmcs_sources_add_archive(struct lmcs_sources *sources, const char *name, int fd,
                                          struct lmcs_error *error)
{
    struct source *source = &sources->sources[sources->source_count];
    *source = (struct source){.fd = fd};
    snprintf(source->name, sizeof source->name, "%s", name);
    enum lmcs_status status = open_archive(source, error);
    if (status != LMCS_OK && error != NULL)
        lmcs_error_prefix(error, "%s: ", name);
    return keep_source(sources, source, status);
}

void lmcs_sources_close(struct lmcs_sources *sources)
{
    if (sources == NULL)
        return;
    lmcs_sources_release(sources);
    for (size_t i = 0; i < sources->source_count; i++)
        close_source(&sources->sources[i]);
    free(sources->sources);
    free(sources);
}

/* ---- Copies ---- */

static void close_copy(struct copy *copy)
{
    if (copy == NULL)
        return;
    lmcs_reader_close(copy->reader);
    lmcs_scan_free(&copy->head);
    if (copy->source->pool != NULL && copy->chain.length > 0)
        lmcs_chain_unpin(copy->source->pool, &copy->chain);
    if (copy->source->pool == NULL)
        lmcs_decoding_fini(&copy->decoding);
    free(copy);
}

/* Loads and pins the chain of a copy. */
static bool hold(struct copy *copy, uint64_t content)
{
    struct lmcs_txn txn;
    struct lmcs_error ignored;
    struct lmcs_pool *pool = copy->source->pool;
    if (lmcs_txn_read(pool, &txn, &ignored) != LMCS_OK)
        return false;
    bool found = false;
    bool held = lmcs_content_find(&txn, content, &copy->chain.links[0], &found, &ignored) == LMCS_OK && found &&
                lmcs_chain_load(&txn, content, &copy->chain, &ignored) == LMCS_OK &&
                lmcs_identity_get(&txn, copy->chain.links[0].df.identity, &copy->identity, &ignored) == LMCS_OK &&
                lmcs_chain_pin(pool, &copy->chain, &ignored) == LMCS_OK;
    lmcs_txn_end(&txn);
    if (!held)
        copy->chain.length = 0;
    return held;
}

static bool open_in_pool(struct copy *copy, const struct listed *item)
{
    struct lmcs_error ignored;
    if (!hold(copy, item->content))
        return false;
    struct lmcs_bytes bytes = lmcs_bytes_of_pool(copy->source->pool->media, &copy->chain.links[0]);
    return lmcs_scan_head(&bytes, &copy->chain.links[0], &copy->identity, &copy->head, &ignored) == LMCS_OK;
}

static bool open_in_archive(struct copy *copy, const struct listed *item)
{
    struct source *source = copy->source;
    struct lmcs_error ignored;
    bool possible;
    return lmcs_decoding_init(&copy->decoding, &source->reader, source->fd, source->start, &ignored) == LMCS_OK &&
           lmcs_decoding_open(&copy->decoding, &source->reader.contents[item->content], &possible, &ignored) ==
               LMCS_OK &&
           possible;
}

/* NULL: unreadable. */
static struct copy *open_copy(struct source *source, const struct listed *item)
{
    struct copy *copy = calloc(1, sizeof *copy);
    if (copy == NULL)
        return NULL;
    copy->source = source;
    if (source->pool != NULL ? open_in_pool(copy, item) : open_in_archive(copy, item))
        return copy;
    close_copy(copy);
    return NULL;
}

/* Opens the copies of the wanted content in one source. */
static void ask_source(struct lmcs_sources *sources, struct source *source, const struct listed *wanted)
{
    size_t low = 0, high = source->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (by_digest(&source->list[middle], wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < source->count && by_digest(&source->list[low], wanted) == 0 && sources->copy_count < MOST_COPIES;
         low++) {
        const struct listed *item = &source->list[low];
        if (item->raw_bytes != wanted->raw_bytes || (source->is_own && item->content == wanted->content))
            continue;
        struct copy *copy = open_copy(source, item);
        if (copy != NULL)
            sources->copies[sources->copy_count++] = copy;
    }
}

enum lmcs_status lmcs_sources_find(struct lmcs_sources *sources, const struct lmcs_content *content,
                                   const struct lmcs_identity *identity, struct lmcs_error *error)
{
    struct listed wanted = {
        {content->df.digest_low, content->df.digest_high}, content->id, identity->id, content->df.raw_bytes};
    enum lmcs_status status = LMCS_OK;
    lmcs_sources_release(sources);
    if (!sources->is_listed)
        status = list_pool(&sources->sources[0], error);
    sources->is_listed |= status == LMCS_OK;
    if (content->df.payload == LMCS_PAYLOAD_LINK)
        return status;
    sources->content = content->id;
    sources->identity = content->df.identity;
    sources->raw_bytes = content->df.raw_bytes;
    for (size_t i = 0; status == LMCS_OK && i < sources->source_count; i++)
        ask_source(sources, &sources->sources[i], &wanted);
    return status;
}

void lmcs_sources_release(struct lmcs_sources *sources)
{
    for (size_t i = 0; i < sources->copy_count; i++)
        close_copy(sources->copies[i]);
    for (size_t i = 0; i < sources->neighbour_count; i++)
        close_copy(sources->neighbours[i]);
    free(sources->hashes);
    sources->hashes = NULL;
    sources->copy_count = sources->neighbour_count = 0;
    sources->has_neighbours = false;
    sources->name = "";
}

const char *lmcs_sources_name(const struct lmcs_sources *sources)
{
    return sources->name;
}

/* ---- Reading ---- */

/* Reads the block hashes of a copy in an archive. False: they do not match the digest. */
static bool hashes_in_archive(const struct copy *copy, struct lmc_hash *hashes, uint64_t blocks)
{
    const struct lmcs_archive_link *link = &copy->decoding.links[0];
    const struct lmcs_tensor *tensor = copy->decoding.tensor;
    uint64_t at;
    if (link->header == NULL || copy->decoding.line > 0) /* a link's header has all arrays' hashes */
        return false;
    for (uint64_t i = 0; i < blocks; i++)
        if (link->content->payload == LMCS_PAYLOAD_RAW)
            memcpy(&hashes[i], link->header + i * sizeof hashes[i], sizeof hashes[i]);
        else
            hashes[i] = lmc_frame_block(&link->frame, i, &at).raw_hash;
    struct lmc_hash digest = lmc_digest(tensor->dtype, tensor->ndim, tensor->shape, hashes, blocks);
    return digest.low == link->content->digest.low && digest.high == link->content->digest.high;
}

const struct lmc_hash *lmcs_sources_hashes(struct lmcs_sources *sources)
{
    uint64_t blocks = lmc_block_count(sources->raw_bytes);
    if (sources->hashes != NULL || blocks < 2)
        return sources->hashes;
    sources->hashes = malloc(blocks * sizeof *sources->hashes);
    for (size_t i = 0; sources->hashes != NULL && i < sources->copy_count; i++) {
        const struct copy *copy = sources->copies[i];
        bool known =
            copy->source->pool != NULL ? copy->head.knows_hashes : hashes_in_archive(copy, sources->hashes, blocks);
        if (!known)
            continue;
        if (copy->source->pool != NULL)
            memcpy(sources->hashes, copy->head.hashes, blocks * sizeof *sources->hashes);
        sources->name = copy->source->name;
        return sources->hashes;
    }
    free(sources->hashes);
    sources->hashes = NULL;
    return NULL;
}

static bool read_copy(struct copy *copy, uint64_t block, const struct lmc_hash *hash, uint64_t bytes, void *to)
{
    struct lmcs_error ignored;
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&copy->identity);
    const void *data;
    if (copy->source->pool == NULL) {
        if (lmcs_decoding_block(&copy->decoding, block, &data, &ignored) != LMCS_OK)
            return false;
        memcpy(to, data, bytes);
    } else {
        if (copy->reader == NULL &&
            lmcs_reader_open(copy->source->pool, &copy->chain, &tensor, NULL, &copy->reader, &ignored) != LMCS_OK) {
            copy->reader = NULL;
            return false;
        }
        if (lmcs_reader_block(copy->reader, block, to, &ignored) != LMCS_OK)
            return false;
    }
    struct lmc_hash found = lmc_hash128(to, bytes);
    return hash == NULL || (found.low == hash->low && found.high == hash->high);
}

/* Opens the other contents of the name with the nearest ids. */
static void find_neighbours(struct lmcs_sources *sources)
{
    const struct source *own = &sources->sources[0];
    const struct listed *nearest[MOST_NEIGHBOURS];
    size_t count = 0;
    sources->has_neighbours = true;
    for (size_t i = 0; i < own->count; i++) {
        const struct listed *item = &own->list[i];
        if (item->identity != sources->identity || item->raw_bytes != sources->raw_bytes ||
            item->content == sources->content)
            continue;
        uint64_t far =
            item->content > sources->content ? item->content - sources->content : sources->content - item->content;
        size_t at = count < MOST_NEIGHBOURS ? count++ : MOST_NEIGHBOURS;
        for (; at > 0; at--) {
            uint64_t other = nearest[at - 1]->content;
            uint64_t other_far = other > sources->content ? other - sources->content : sources->content - other;
            if (other_far <= far)
                break;
            if (at < MOST_NEIGHBOURS)
                nearest[at] = nearest[at - 1];
        }
        if (at < MOST_NEIGHBOURS)
            nearest[at] = item;
    }
    for (size_t i = 0; i < count; i++) {
        struct copy *copy = open_copy(&sources->sources[0], nearest[i]);
        if (copy != NULL)
            sources->neighbours[sources->neighbour_count++] = copy;
    }
}

bool lmcs_sources_block(struct lmcs_sources *sources, uint64_t block, const struct lmc_hash *hash, void *to)
{
    uint64_t bytes = lmcs_block_bytes(sources->raw_bytes, block);
    for (size_t i = 0; i < sources->copy_count; i++)
        if (read_copy(sources->copies[i], block, hash, bytes, to)) {
            sources->name = sources->copies[i]->source->name;
            return true;
        }
    if (hash == NULL || lmc_block_count(sources->raw_bytes) < 2)
        return false;
    if (!sources->has_neighbours)
        find_neighbours(sources);
    for (size_t i = 0; i < sources->neighbour_count; i++) {
        struct copy *copy = sources->neighbours[i];
        if (copy->head.knows_hashes && copy->head.hashes[block].low == hash->low &&
            copy->head.hashes[block].high == hash->high && read_copy(copy, block, hash, bytes, to)) {
            sources->name = "a neighbour that has the same block";
            return true;
        }
    }
    return false;
}

/* ---- Links ---- */

static bool read_link(struct source *source, const struct listed *item, void *to, size_t bytes)
{
    struct lmcs_error ignored;
    struct lmcs_pieces pieces;
    if (source->pool == NULL) {
        const struct lmcs_archive_content *content = &source->reader.contents[item->content];
        lmcs_pieces_init(&pieces, source->fd, source->start, content);
        return content->payload == LMCS_PAYLOAD_LINK && content->stored_bytes == bytes &&
               lmcs_pieces_read(&pieces, 0, to, bytes, &ignored) == LMCS_OK;
    }
    struct copy *copy = calloc(1, sizeof *copy);
    if (copy == NULL)
        return false;
    copy->source = source;
    const struct lmcs_content *content = &copy->chain.links[0];
    bool read = hold(copy, item->content) && content->df.payload == LMCS_PAYLOAD_LINK &&
                content->df.stored_bytes == bytes &&
                lmcs_payload_read(source->pool->media, content, 0, to, bytes, &ignored) == LMCS_OK;
    close_copy(copy);
    return read;
}

bool lmcs_sources_link(struct lmcs_sources *sources, const struct lmcs_content *link, size_t which, void *to,
                       size_t bytes)
{
    const struct listed wanted = {.digest = {link->df.digest_low, link->df.digest_high}};
    for (size_t i = 0; i < sources->source_count; i++) {
        struct source *source = &sources->sources[i];
        for (size_t k = 0; k < source->count; k++) {
            const struct listed *item = &source->list[k];
            if (by_digest(item, &wanted) != 0 || (source->is_own && item->content == link->id) || which-- > 0)
                continue;
            sources->name = source->name;
            if (read_link(source, item, to, bytes))
                return true;
            which = 0;
        }
    }
    return false;
}
