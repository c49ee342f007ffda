/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive_write.c - lmcs_dump: shelves as an archive, to a descriptor that may be a pipe.
 *
 * One look at the pool says which snapshots there are. Then each is written by itself: its root is held by a lease of
 * its epoch, as a reader in another process holds it, so that no lock is held while a pipe is slow, and everything
 * that the snapshot refers to, pages and payloads, stays in place until it is written. A snapshot that was removed
 * before its turn is left out. What neighbours share is written once: a snapshot has its whole list of entries, or
 * the changes against the one before it, and a content travels with the first snapshot that needs it.
 *
 * The compactor may change how a content is stored between two snapshots. A base that was sent in an older form is
 * a base all the same, unless the chain in the archive would become too long: then the chain is sent again as it is
 * now. In memory are the numbers of the snapshots, the tags of one shelf, and 8 bytes for each content sent.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archive_format.h"
#include "manifest.h"
#include "payload.h"
#include "read.h"
#include "shelf.h"
#include "snapshot.h"
#include "store.h"
#include "tree.h"

#define BUFFER_BYTES   ((size_t)256 << 10)
#define PROGRESS_BYTES ((uint64_t)4 << 20)

/* ---- Sent ids: pool id -> archive id and depth, in pages that exist where something was sent ---- */

#define MAP_PAGE 8192u

struct id_map {
    uint64_t **pages;
    size_t count;
};

static uint64_t map_get(const struct id_map *map, uint64_t id)
{
    size_t page = (size_t)(id / MAP_PAGE);
    return page < map->count && map->pages[page] != NULL ? map->pages[page][id % MAP_PAGE] : 0;
}

static enum lmcs_status map_put(struct id_map *map, uint64_t id, uint64_t value, struct lmcs_error *error)
{
    size_t page = (size_t)(id / MAP_PAGE);
    if (page >= map->count) {
        size_t wanted = map->count * 2 > page ? map->count * 2 : page + 16;
        uint64_t **grown = realloc(map->pages, wanted * sizeof *grown);
        if (grown == NULL)
            return lmcs_fail_memory(error);
        memset(grown + map->count, 0, (wanted - map->count) * sizeof *grown);
        map->pages = grown;
        map->count = wanted;
    }
    if (map->pages[page] == NULL && (map->pages[page] = calloc(MAP_PAGE, sizeof **map->pages)) == NULL)
        return lmcs_fail_memory(error);
    map->pages[page][id % MAP_PAGE] = value;
    return LMCS_OK;
}

static void map_free(struct id_map *map)
{
    for (size_t i = 0; i < map->count; i++)
        free(map->pages[i]);
    free(map->pages);
}

/* ---- Writing records ---- */

struct dump {
    struct lmcs_pool *pool;
    int fd;
    const struct lmcs_progress *progress;
    uint64_t total; /* bytes, about; 0: not known */
    uint64_t reported;
    unsigned char *buffer; /* what is not yet written */
    size_t used;
    unsigned char *piece; /* of a payload */
    uint64_t bytes;
    struct lmc_hasher headers;
    struct lmcs_archive_end_df end;
    struct id_map identities;
    struct id_map contents; /* archive id << 3 | depth of its chain in the archive */
    /* the snapshot at work */
    struct lmcs_txn txn;
    struct lmcs_archive_entry_df pairs[LMCS_ARCHIVE_PAIRS];
    size_t pair_count;
};

/* A descriptor that does not block is waited for. */
static enum lmcs_status write_all(int fd, const void *data, size_t bytes, struct lmcs_error *error)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t n = write(fd, at, bytes);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            struct pollfd wait = {.fd = fd, .events = POLLOUT};
            poll(&wait, 1, 1000);
        } else if (n == 0 || errno != EINTR) {
            return lmcs_fail_errno(error, n == 0 ? EIO : errno, "the archive can't be written");
        }
    }
    return LMCS_OK;
}

static enum lmcs_status flush(struct dump *dump, struct lmcs_error *error)
{
    size_t used = dump->used;
    dump->used = 0;
    return write_all(dump->fd, dump->buffer, used, error);
}

static enum lmcs_status put_bytes(struct dump *dump, const void *data, size_t bytes, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    dump->bytes += bytes;
    bool direct = bytes > BUFFER_BYTES / 2;
    if (direct || dump->used + bytes > BUFFER_BYTES)
        status = flush(dump, error);
    if (status == LMCS_OK && direct)
        return write_all(dump->fd, data, bytes, error);
    if (status == LMCS_OK && bytes > 0) {
        memcpy(dump->buffer + dump->used, data, bytes);
        dump->used += bytes;
    }
    return status;
}

static enum lmcs_status report_progress(struct dump *dump, struct lmcs_error *error)
{
    if (dump->progress == NULL || dump->progress->call == NULL || dump->bytes - dump->reported < PROGRESS_BYTES)
        return LMCS_OK;
    dump->reported = dump->bytes;
    uint64_t done = dump->total != 0 && dump->bytes > dump->total ? dump->total : dump->bytes;
    return dump->progress->call(dump->progress->context, "dumping", done, dump->total)
               ? LMCS_OK
               : lmcs_fail(error, LMCS_CANCELLED, 0, "the dump was stopped: the archive is not complete");
}

/* A record whose payload is `first`, then `rest`. */
static enum lmcs_status put_record(struct dump *dump, uint32_t type, const void *first, size_t first_bytes,
                                   const void *rest, size_t rest_bytes, struct lmcs_error *error)
{
    struct lmcs_archive_record_df header = {.type = type, .bytes = (uint32_t)(first_bytes + rest_bytes)};
    const void *payload = first;
    if (rest_bytes > 0) { /* small: put together */
        unsigned char *together = dump->piece;
        memcpy(together, first, first_bytes);
        memcpy(together + first_bytes, rest, rest_bytes);
        payload = together;
    }
    header.payload_check = lmc_hash64(payload, header.bytes, dump->end.records);
    header.check = lmc_hash64(&header, offsetof(struct lmcs_archive_record_df, check), dump->end.records);
    dump->end.records++;
    lmc_hasher_update(&dump->headers, &header, sizeof header);
    enum lmcs_status status = put_bytes(dump, &header, sizeof header, error);
    if (status == LMCS_OK)
        status = put_bytes(dump, payload, header.bytes, error);
    return status == LMCS_OK ? report_progress(dump, error) : status;
}

/* ---- Roots that are held ---- */

/* Like a read transaction, but a lease and no lock keeps what it sees in place. */
static enum lmcs_status hold_root(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_txn_read(pool, txn, error);
    if (status != LMCS_OK || txn->leased)
        return status;
    struct lmcs_root_df root = txn->root;
    status = lmcs_lease_epoch(pool->lease, root.epoch, error);
    lmcs_txn_end(txn);
    *txn = (struct lmcs_txn){.pool = pool, .leased = true, .root = root}; /* its end drops the lease */
    return status;
}

/* ---- Identities and contents ---- */

static enum lmcs_status send_identity(struct dump *dump, uint64_t id, uint64_t *sent, struct lmcs_error *error)
{
    struct lmcs_identity identity;
    *sent = map_get(&dump->identities, id);
    if (*sent != 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_identity_get(&dump->txn, id, &identity, error);
    if (status != LMCS_OK)
        return status;
    unsigned char rest[3 * LMCS_MAX_DIMS * sizeof(uint64_t) + LMCS_MAX_NAME];
    size_t dims = identity.df.ndim * sizeof(uint64_t), n = dims;
    struct lmcs_archive_identity_df df = {identity.df.kind, identity.df.dtype, identity.df.ndim, identity.df.is_part,
                                          identity.df.name_bytes};
    memcpy(rest, identity.shape, dims);
    if (df.is_part) {
        memcpy(rest + n, identity.global_shape, dims);
        memcpy(rest + n + dims, identity.offsets, dims);
        n += 2 * dims;
    }
    memcpy(rest + n, identity.name, df.name_bytes);
    n += df.name_bytes;
    *sent = ++dump->end.identities;
    status = map_put(&dump->identities, id, *sent, error);
    return status == LMCS_OK ? put_record(dump, LMCS_ARCHIVE_IDENTITY, &df, sizeof df, rest, n, error) : status;
}

static enum lmcs_status fail_payload(struct dump *dump, const struct lmcs_identity *identity, const char *why,
                                     struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: tensor \"%s\" is damaged (%s) and can't be dumped: see 'verify'",
                     dump->pool->path, identity->name, why);
}

/* Checks the blocks of a frame as they are stored; what they decode to is for restore, or verify, to check. */
static enum lmcs_status check_frame(struct dump *dump, const struct lmcs_content *content,
                                    const struct lmcs_identity *identity, struct lmcs_error *error)
{
    unsigned char prefix[LMC_FRAME_PREFIX_BYTES];
    const struct lmcs_media *media = dump->pool->media;
    uint64_t header_bytes, stored = content->df.stored_bytes;
    const char *why = "its header is cut short";
    struct lmc_frame frame;
    if (stored < sizeof prefix)
        return fail_payload(dump, identity, why, error);
    enum lmcs_status status = lmcs_payload_read(media, content, 0, prefix, sizeof prefix, error);
    if (status != LMCS_OK)
        return status;
    if (lmc_frame_header_bytes(prefix, sizeof prefix, &header_bytes, &why) != LMC_OK || header_bytes > stored)
        return fail_payload(dump, identity, why, error);
    unsigned char *header = malloc((size_t)header_bytes), *block = NULL;
    if (header == NULL || (block = malloc(LMC_BLOCK_BYTES + 1)) == NULL)
        status = lmcs_fail_memory(error);
    if (status == LMCS_OK)
        status = lmcs_payload_read(media, content, 0, header, header_bytes, error);
    if (status == LMCS_OK &&
        (lmc_frame_parse(header, (size_t)header_bytes, &frame, &why) != LMC_OK || frame.frame_bytes != stored))
        status = fail_payload(dump, identity, why, error);
    for (uint64_t i = 0; status == LMCS_OK && i < frame.block_count; i++) {
        uint64_t at;
        struct lmc_block coded = lmc_frame_block(&frame, i, &at);
        status = lmcs_payload_read(media, content, at, block, coded.coded_bytes, error);
        if (status == LMCS_OK && lmc_hash64(block, coded.coded_bytes, i) != coded.coded_hash)
            status = fail_payload(dump, identity, "a block's checksum is wrong", error);
    }
    free(block);
    free(header);
    return status;
}

/* An archive of damaged bytes would be found out only when it is needed. */
static enum lmcs_status check_payload(struct dump *dump, const struct lmcs_content *content, struct lmcs_error *error)
{
    struct lmcs_identity identity;
    struct lmcs_chain chain = {.length = 1};
    enum lmcs_status status = lmcs_identity_get(&dump->txn, content->df.identity, &identity, error);
    if (status != LMCS_OK)
        return status;
    if (content->df.payload == LMCS_PAYLOAD_FRAME)
        return check_frame(dump, content, &identity, error);
    chain.links[0] = *content;
    return lmcs_chain_read(dump->pool, &chain, identity.name, identity.df.dtype, identity.df.ndim, identity.shape, NULL,
                           NULL, error);
}

static enum lmcs_status send_data(struct dump *dump, const struct lmcs_content *content, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint64_t at = 0; status == LMCS_OK && at < content->df.stored_bytes;) {
        uint64_t left = content->df.stored_bytes - at;
        size_t n = left < LMCS_ARCHIVE_PIECE_BYTES ? (size_t)left : LMCS_ARCHIVE_PIECE_BYTES;
        status = lmcs_payload_read(dump->pool->media, content, at, dump->piece, n, error);
        if (status == LMCS_OK)
            status = put_record(dump, LMCS_ARCHIVE_DATA, dump->piece, n, NULL, 0, error);
        at += n;
    }
    return status;
}

/* Sends one content, whose bases have been sent. */
static enum lmcs_status send_content(struct dump *dump, const struct lmcs_content *content, struct lmcs_error *error)
{
    struct lmcs_archive_content_df df = {
        .digest_low = content->df.digest_low,
        .digest_high = content->df.digest_high,
        .raw_bytes = content->df.raw_bytes,
        .stored_bytes = content->df.stored_bytes,
        .payload = content->df.payload,
        .flags = content->df.payload == LMCS_PAYLOAD_RAW ? content->df.flags & LMCS_CONTENT_SETTLED : 0,
        .base_count = content->df.base_count};
    uint64_t bases[LMC_MAX_BASES], depth = 0;
    for (size_t i = 0; i < df.base_count; i++) {
        uint64_t base = map_get(&dump->contents, content->bases[i]);
        bases[i] = base >> 3;
        depth = (base & 7) + 1 > depth ? (base & 7) + 1 : depth;
    }
    enum lmcs_status status = check_payload(dump, content, error);
    if (status == LMCS_OK)
        status = send_identity(dump, content->df.identity, &df.identity, error);
    if (status == LMCS_OK)
        status = map_put(&dump->contents, content->id, ++dump->end.contents << 3 | depth, error);
    if (status == LMCS_OK)
        status = put_record(dump, LMCS_ARCHIVE_CONTENT, &df, sizeof df, bases, df.base_count * sizeof *bases, error);
    return status == LMCS_OK ? send_data(dump, content, error) : status;
}

/* Sends a content and what it rests on, as far as they have not been sent. */
static enum lmcs_status send_chain(struct dump *dump, uint64_t id, uint64_t *sent, struct lmcs_error *error)
{
    struct lmcs_chain chain;
    *sent = map_get(&dump->contents, id) >> 3;
    if (*sent != 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_chain_load(&dump->txn, id, &chain, error);
    if (status != LMCS_OK)
        return status;
    size_t first = 1; /* the nearest link that was sent before */
    while (first < chain.length && map_get(&dump->contents, chain.links[first].id) == 0)
        first++;
    if (first < chain.length && first + (map_get(&dump->contents, chain.links[first].id) & 7) > LMCS_CHAIN_BOUND)
        first = chain.length;
    while (status == LMCS_OK && first-- > 0)
        status = send_content(dump, &chain.links[first], error);
    *sent = map_get(&dump->contents, id) >> 3;
    return status;
}

/* ---- Snapshots ---- */

static enum lmcs_status flush_pairs(struct dump *dump, struct lmcs_error *error)
{
    size_t count = dump->pair_count;
    dump->pair_count = 0;
    return count == 0
               ? LMCS_OK
               : put_record(dump, LMCS_ARCHIVE_ENTRIES, dump->pairs, count * sizeof *dump->pairs, NULL, 0, error);
}

static enum lmcs_status add_pair(struct dump *dump, uint64_t identity, uint64_t content, struct lmcs_error *error)
{
    dump->pairs[dump->pair_count++] = (struct lmcs_archive_entry_df){identity, content};
    return dump->pair_count == LMCS_ARCHIVE_PAIRS ? flush_pairs(dump, error) : LMCS_OK;
}

static enum lmcs_status send_entry(struct dump *dump, uint64_t identity, uint64_t content, struct lmcs_error *error)
{
    uint64_t sent_identity = 0, sent_content = 0;
    enum lmcs_status status = send_identity(dump, identity, &sent_identity, error);
    if (status == LMCS_OK)
        status = send_chain(dump, content, &sent_content, error);
    return status == LMCS_OK ? add_pair(dump, sent_identity, sent_content, error) : status;
}

static enum lmcs_status visit_all(void *context, uint64_t identity, const struct lmcs_manifest_df *entry, bool *stop,
                                  struct lmcs_error *error)
{
    (void)stop;
    return send_entry(context, identity, entry->content, error);
}

static enum lmcs_status visit_gone(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                   uint64_t successor, struct lmcs_error *error)
{
    struct dump *dump = context;
    (void)entry;
    return successor != 0 ? LMCS_OK : add_pair(dump, map_get(&dump->identities, identity), 0, error);
}

static enum lmcs_status visit_new(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                  uint64_t successor, struct lmcs_error *error)
{
    (void)successor;
    return send_entry(context, identity, entry->content, error);
}

/* The record of the snapshot that was sent before, if it is still there: then only changes need be sent. */
static enum lmcs_status find_previous(struct dump *dump, struct lmcs_shelf *shelf, const struct lmcs_record *record,
                                      const struct lmcs_snapshot_df *previous, bool *related, struct lmcs_error *error)
{
    struct lmcs_record still;
    *related = false;
    if (previous->number == 0 || previous->lineage != record->df.lineage)
        return LMCS_OK;
    enum lmcs_status status = lmcs_record_get(&dump->txn, shelf, previous->number, &still, related, error);
    *related = *related && still.df.epoch == previous->epoch;
    return status;
}

static enum lmcs_status send_manifest(struct dump *dump, const struct lmcs_record *record,
                                      const struct lmcs_snapshot_df *previous, bool related, struct lmcs_error *error)
{
    if (!related)
        return lmcs_manifest_each(&dump->txn, record, visit_all, dump, error);
    enum lmcs_status status =
        lmcs_manifest_own(&dump->txn, previous, NULL, &record->df, false, visit_gone, dump, error);
    if (status == LMCS_OK)
        status = lmcs_manifest_own(&dump->txn, &record->df, previous, NULL, false, visit_new, dump, error);
    return status;
}

static enum lmcs_status send_snapshot(struct dump *dump, const struct lmcs_record *record,
                                      const struct lmcs_snapshot_df *previous, bool related, struct lmcs_error *error)
{
    const struct lmcs_snapshot_df *from = &record->df;
    bool attached = from->meta_bytes == UINT32_MAX;
    struct lmcs_archive_snapshot_df df = {.number = from->number,
                                          .step = from->step,
                                          .time_ns = from->time_ns,
                                          .parent = from->parent,
                                          .flags = (related ? LMCS_ARCHIVE_CHANGES : 0) |
                                                   (attached ? LMCS_ARCHIVE_META_ATTACHED : 0),
                                          .meta_bytes = attached ? 0 : from->meta_bytes};
    struct lmcs_archive_snapshot_end_df end = {from->entry_count};
    memcpy(df.group, from->group, sizeof df.group);
    enum lmcs_status status =
        put_record(dump, LMCS_ARCHIVE_SNAPSHOT, &df, sizeof df, record->meta, df.meta_bytes, error);
    if (status == LMCS_OK)
        status = send_manifest(dump, record, previous, related, error);
    if (status == LMCS_OK)
        status = flush_pairs(dump, error);
    if (status == LMCS_OK)
        status = put_record(dump, LMCS_ARCHIVE_SNAPSHOT_END, &end, sizeof end, NULL, 0, error);
    dump->end.snapshots++;
    return status;
}

/* ---- Shelves ---- */

struct shelf_plan {
    struct lmcs_shelf_df df;
    char *name;
    uint64_t *numbers;
    size_t count;
    size_t capacity;
};

/* Room for one more: what a tree says of its size is not relied upon. */
static bool grow(void *array, size_t *capacity, size_t count, size_t item_bytes)
{
    void *old;
    if (count < *capacity)
        return true;
    size_t wanted = *capacity == 0 ? 16 : *capacity * 2;
    memcpy(&old, array, sizeof old);
    void *grown = realloc(old, wanted * item_bytes);
    if (grown == NULL)
        return false;
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

/* Sends the snapshot `number` unless it is gone; *previous is that of the one before, and becomes this one's. */
static enum lmcs_status dump_snapshot(struct dump *dump, struct shelf_plan *plan, size_t index,
                                      struct lmcs_snapshot_df *previous, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found, related = false;
    enum lmcs_status status = hold_root(dump->pool, &dump->txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load(&dump->txn, plan->df.id, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_record_get(&dump->txn, &shelf, plan->numbers[index], &record, &found, error);
    if (status == LMCS_OK && !found)
        plan->numbers[index] = 0;
    if (status == LMCS_OK && found)
        status = find_previous(dump, &shelf, &record, previous, &related, error);
    if (status == LMCS_OK && found) {
        status = send_snapshot(dump, &record, previous, related, error);
        *previous = record.df;
    }
    lmcs_txn_end(&dump->txn);
    return status;
}

struct tag {
    uint64_t number;
    char *text;
};

struct tags {
    struct tag *items;
    size_t count;
    size_t capacity;
    uint64_t number;
    bool failed;
};

static bool add_tag(void *context, const char *text)
{
    struct tags *tags = context;
    if (tags->count == tags->capacity) {
        size_t wanted = tags->capacity == 0 ? 16 : tags->capacity * 2;
        struct tag *grown = realloc(tags->items, wanted * sizeof *grown);
        tags->failed = grown == NULL;
        if (grown == NULL)
            return false;
        tags->items = grown;
        tags->capacity = wanted;
    }
    char *copy = strdup(text);
    tags->failed = copy == NULL;
    if (copy != NULL)
        tags->items[tags->count++] = (struct tag){tags->number, copy};
    return copy != NULL;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct tag *)a)->text, ((const struct tag *)b)->text);
}

/* The tags of the snapshots that were sent, all as they are at one moment. */
static enum lmcs_status collect_tags(struct dump *dump, const struct shelf_plan *plan, struct tags *tags,
                                     struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    enum lmcs_status status = hold_root(dump->pool, &dump->txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load(&dump->txn, plan->df.id, &shelf, error);
    bool any = status == LMCS_OK && lmcs_shelf_tree(&shelf, LMCS_TREE_TAGGED)->count > 0;
    for (size_t i = 0; any && status == LMCS_OK && i < plan->count; i++) {
        tags->number = plan->numbers[i];
        if (tags->number != 0)
            status = lmcs_tags_of(&dump->txn, &shelf, tags->number, add_tag, tags, error);
        if (status == LMCS_OK && tags->failed)
            status = lmcs_fail_memory(error);
    }
    lmcs_txn_end(&dump->txn);
    return status;
}

static enum lmcs_status dump_tags(struct dump *dump, const struct shelf_plan *plan, struct lmcs_error *error)
{
    struct tags tags = {0};
    enum lmcs_status status = collect_tags(dump, plan, &tags, error);
    if (status == LMCS_OK && tags.count > 1)
        qsort(tags.items, tags.count, sizeof *tags.items, by_text);
    for (size_t i = 0; status == LMCS_OK && i < tags.count; i++) {
        struct lmcs_archive_tag_df df = {tags.items[i].number, (uint32_t)strlen(tags.items[i].text), 0};
        status = put_record(dump, LMCS_ARCHIVE_TAG, &df, sizeof df, tags.items[i].text, df.tag_bytes, error);
        dump->end.tags++;
    }
    for (size_t i = 0; i < tags.count; i++)
        free(tags.items[i].text);
    free(tags.items);
    return status;
}

static enum lmcs_status dump_shelf(struct dump *dump, struct shelf_plan *plan, struct lmcs_error *error)
{
    struct lmcs_archive_shelf_df df = {plan->df.next_number, plan->df.keep_raw, (uint32_t)strlen(plan->name)};
    struct lmcs_snapshot_df previous = {0};
    enum lmcs_status status = put_record(dump, LMCS_ARCHIVE_SHELF, &df, sizeof df, plan->name, df.name_bytes, error);
    dump->end.shelves++;
    for (size_t i = 0; status == LMCS_OK && i < plan->count; i++)
        status = dump_snapshot(dump, plan, i, &previous, error);
    return status == LMCS_OK ? dump_tags(dump, plan, error) : status;
}

/* ---- The whole ---- */

static enum lmcs_status plan_shelf(struct dump *dump, const struct lmcs_shelf *from, struct shelf_plan *plan,
                                   struct lmcs_error *error)
{
    struct lmcs_shelf shelf = *from;
    *plan = (struct shelf_plan){.df = shelf.df, .name = strdup(shelf.name)};
    enum lmcs_status status = plan->name == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (uint64_t number = 0; status == LMCS_OK;) {
        struct lmcs_record record;
        bool found = false;
        status = lmcs_record_after(&dump->txn, &shelf, number, &number, error);
        if (status != LMCS_OK || number == 0)
            break;
        status = lmcs_record_get(&dump->txn, &shelf, number, &record, &found, error);
        if (status != LMCS_OK || !found || record.df.state != LMCS_SNAPSHOT_COMMITTED)
            continue;
        if (!grow(&plan->numbers, &plan->capacity, plan->count, sizeof *plan->numbers))
            return lmcs_fail_memory(error);
        plan->numbers[plan->count++] = number;
    }
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct shelf_plan *)a)->name, ((const struct shelf_plan *)b)->name);
}

/* What there is at one moment: the shelves by name, with the numbers of their committed snapshots. */
static enum lmcs_status make_plan(struct dump *dump, const char *name, struct shelf_plan **plans, size_t *count,
                                  struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    size_t capacity = 0, got = 1;
    uint64_t id = 0;
    enum lmcs_status status = LMCS_OK;
    *plans = NULL;
    for (*count = 0; status == LMCS_OK && got > 0 && id < UINT64_MAX;) {
        if (!grow(plans, &capacity, *count, sizeof **plans))
            return lmcs_fail_memory(error);
        if (name != NULL) {
            status = lmcs_shelf_get(&dump->txn, name, &shelf, error);
            return status == LMCS_OK ? plan_shelf(dump, &shelf, &(*plans)[(*count)++], error) : status;
        }
        status = lmcs_shelf_ids(&dump->txn, id + 1, &id, 1, &got, error);
        if (status == LMCS_OK && got > 0)
            status = lmcs_shelf_load(&dump->txn, id, &shelf, error);
        if (status == LMCS_OK && got > 0 && (shelf.df.flags & LMCS_SHELF_STAGING) == 0)
            status = plan_shelf(dump, &shelf, &(*plans)[(*count)++], error);
    }
    if (status == LMCS_OK && *count > 0)
        qsort(*plans, *count, sizeof **plans, by_name);
    return status;
}

static enum lmcs_status put_head(struct dump *dump, struct lmcs_error *error)
{
    struct lmcs_archive_head_df head = {.version = LMCS_ARCHIVE_VERSION};
    memcpy(head.magic, LMCS_ARCHIVE_MAGIC, sizeof head.magic);
    head.check = lmc_hash64(&head, offsetof(struct lmcs_archive_head_df, check), 0);
    lmc_hasher_init(&dump->headers);
    lmc_hasher_update(&dump->headers, &head, sizeof head);
    return put_bytes(dump, &head, sizeof head, error);
}

static enum lmcs_status put_end(struct dump *dump, struct lmcs_error *error)
{
    struct lmc_hash hash = lmc_hasher_final(&dump->headers);
    struct lmcs_archive_end_df end = dump->end;
    end.hash_low = hash.low;
    end.hash_high = hash.high;
    enum lmcs_status status = put_record(dump, LMCS_ARCHIVE_END, &end, sizeof end, NULL, 0, error);
    return status == LMCS_OK ? flush(dump, error) : status;
}

static enum lmcs_status dump_all(struct dump *dump, const char *name, struct lmcs_error *error)
{
    struct shelf_plan *plans = NULL;
    size_t count = 0;
    enum lmcs_status status = hold_root(dump->pool, &dump->txn, error);
    if (status != LMCS_OK)
        return status;
    status = make_plan(dump, name, &plans, &count, error);
    if (name == NULL || count == dump->txn.root.trees[LMCS_TREE_SHELVES].count)
        dump->total = dump->txn.root.live_bytes;
    lmcs_txn_end(&dump->txn);
    if (status == LMCS_OK)
        status = put_head(dump, error);
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = dump_shelf(dump, &plans[i], error);
    if (status == LMCS_OK)
        status = put_end(dump, error);
    for (size_t i = 0; i < count && plans != NULL; i++) {
        free(plans[i].name);
        free(plans[i].numbers);
    }
    free(plans);
    return status;
}

enum lmcs_status lmcs_dump(struct lmcs_pool *pool, const char *shelf, int fd, const struct lmcs_progress *progress,
                           struct lmcs_transfer_report *report, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status != LMCS_OK)
        return status;
    struct dump *dump = aligned_alloc(64, (sizeof *dump + 63) & ~(size_t)63);
    if (dump == NULL)
        return lmcs_fail_memory(error);
    memset(dump, 0, sizeof *dump);
    dump->pool = pool;
    dump->fd = fd;
    dump->progress = progress;
    dump->buffer = malloc(BUFFER_BYTES);
    dump->piece = malloc(LMCS_ARCHIVE_PIECE_BYTES);
    status = dump->buffer == NULL || dump->piece == NULL ? lmcs_fail_memory(error) : dump_all(dump, shelf, error);
    if (status == LMCS_OK && report != NULL)
        *report = (struct lmcs_transfer_report){
            .snapshots = dump->end.snapshots, .contents = dump->end.contents, .bytes = dump->bytes};
    map_free(&dump->identities);
    map_free(&dump->contents);
    free(dump->piece);
    free(dump->buffer);
    free(dump);
    return status;
}
