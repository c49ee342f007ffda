/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive_write.c - the records of an archive, on their way to a descriptor.
 *
 * The compactor may change how a content is stored between two snapshots. A base that was sent in an older form is
 * a base all the same, unless the chain in the archive would become too long: then the chain is sent again as it is
 * now. A content that an older archive has is only named. A base that nothing selected has travels along, unless that
 * takes more than sending what rests on it whole. In memory are 8 bytes for each content sent, and 40 for each one that
 * is known by its digest.
 */
#include "archive_write.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "payload.h"

#define PROGRESS_BYTES ((uint64_t)4 << 20)

/* ---- Numbers by ids ---- */

#define MAP_PAGE 8192u

uint64_t lmcs_id_get(const struct lmcs_id_map *map, uint64_t id)
{
    size_t page = (size_t)(id / MAP_PAGE);
    return page < map->count && map->pages[page] != NULL ? map->pages[page][id % MAP_PAGE] : 0;
}

enum lmcs_status lmcs_id_put(struct lmcs_id_map *map, uint64_t id, uint64_t value, struct lmcs_error *error)
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

void lmcs_id_free(struct lmcs_id_map *map)
{
    for (size_t i = 0; i < map->count; i++)
        free(map->pages[i]);
    free(map->pages);
}

/* ---- Writing records ---- */

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

enum lmcs_status lmcs_dump_flush(struct lmcs_dump *dump, struct lmcs_error *error)
{
    size_t used = dump->used;
    dump->used = 0;
    return write_all(dump->fd, dump->buffer, used, error);
}

static enum lmcs_status put_bytes(struct lmcs_dump *dump, const void *data, size_t bytes, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    dump->bytes += bytes;
    bool direct = bytes > LMCS_DUMP_BUFFER / 2;
    if (direct || dump->used + bytes > LMCS_DUMP_BUFFER)
        status = lmcs_dump_flush(dump, error);
    if (status == LMCS_OK && direct)
        return write_all(dump->fd, data, bytes, error);
    if (status == LMCS_OK && bytes > 0) {
        memcpy(dump->buffer + dump->used, data, bytes);
        dump->used += bytes;
    }
    return status;
}

static enum lmcs_status report_progress(struct lmcs_dump *dump, struct lmcs_error *error)
{
    if (dump->progress == NULL || dump->progress->call == NULL || dump->bytes - dump->reported < PROGRESS_BYTES)
        return LMCS_OK;
    dump->reported = dump->bytes;
    uint64_t done = dump->total != 0 && dump->bytes > dump->total ? dump->total : dump->bytes;
    return dump->progress->call(dump->progress->context, "dumping", done, dump->total)
               ? LMCS_OK
               : lmcs_fail(error, LMCS_CANCELLED, 0, "the dump was stopped: the archive is not complete");
}

enum lmcs_status lmcs_dump_record(struct lmcs_dump *dump, uint32_t type, const void *first, size_t first_bytes,
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

enum lmcs_status lmcs_dump_hold(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error)
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

enum lmcs_status lmcs_dump_identity(struct lmcs_dump *dump, uint64_t id, uint64_t *sent, struct lmcs_error *error)
{
    struct lmcs_identity identity;
    *sent = lmcs_id_get(&dump->identities, id);
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
    status = lmcs_id_put(&dump->identities, id, *sent, error);
    return status == LMCS_OK ? lmcs_dump_record(dump, LMCS_ARCHIVE_IDENTITY, &df, sizeof df, rest, n, error) : status;
}

static enum lmcs_status fail_payload(struct lmcs_dump *dump, const struct lmcs_identity *identity, const char *why,
                                     struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0,
                     "%s: tensor \"%s\" is damaged (%s) and can't be dumped: see 'lmc-store scrub --repair'",
                     dump->pool->path, identity->name, why);
}

/* Checks the blocks of a frame as they are stored; what they decode to is for restore, or verify, to check. */
static enum lmcs_status check_frame(struct lmcs_dump *dump, const struct lmcs_content *content,
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
static enum lmcs_status check_payload(struct lmcs_dump *dump, const struct lmcs_content *content,
                                      struct lmcs_error *error)
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

static enum lmcs_status send_data(struct lmcs_dump *dump, const struct lmcs_content *content, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint64_t at = 0; status == LMCS_OK && at < content->df.stored_bytes;) {
        uint64_t left = content->df.stored_bytes - at;
        size_t n = left < LMCS_ARCHIVE_PIECE_BYTES ? (size_t)left : LMCS_ARCHIVE_PIECE_BYTES;
        status = lmcs_payload_read(dump->pool->media, content, at, dump->piece, n, error);
        if (status == LMCS_OK)
            status = lmcs_dump_record(dump, LMCS_ARCHIVE_DATA, dump->piece, n, NULL, 0, error);
        at += n;
    }
    return status;
}

/* Sends one content, whose bases have been sent. */
static enum lmcs_status send_content(struct lmcs_dump *dump, const struct lmcs_content *content,
                                     struct lmcs_error *error)
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
        uint64_t base = lmcs_id_get(&dump->contents, content->bases[i]);
        bases[i] = base >> 3;
        depth = (base & 7) + 1 > depth ? (base & 7) + 1 : depth;
    }
    enum lmcs_status status = check_payload(dump, content, error);
    if (status == LMCS_OK)
        status = lmcs_dump_identity(dump, content->df.identity, &df.identity, error);
    if (status == LMCS_OK)
        status = lmcs_id_put(&dump->contents, content->id, ++dump->end.contents << 3 | depth, error);
    if (status == LMCS_OK)
        status =
            lmcs_dump_record(dump, LMCS_ARCHIVE_CONTENT, &df, sizeof df, bases, df.base_count * sizeof *bases, error);
    return status == LMCS_OK ? send_data(dump, content, error) : status;
}

/* ---- Contents that are known, and bases that are outside ---- */

static int by_digest(const void *a, const void *b)
{
    const struct lmcs_known *x = a, *y = b;
    if (x->digest.low != y->digest.low)
        return x->digest.low < y->digest.low ? -1 : 1;
    return (x->digest.high > y->digest.high) - (x->digest.high < y->digest.high);
}

void lmcs_dump_sort_known(struct lmcs_dump *dump)
{
    size_t kept = 0;
    if (dump->known_count > 1)
        qsort(dump->known, dump->known_count, sizeof *dump->known, by_digest);
    for (size_t i = 0; i < dump->known_count; i++) /* each digest once */
        if (kept == 0 || by_digest(&dump->known[kept - 1], &dump->known[i]) != 0)
            dump->known[kept++] = dump->known[i];
        else if (dump->known[kept - 1].sent == 0)
            dump->known[kept - 1] = dump->known[i];
    dump->known_count = kept;
}

struct lmcs_known *lmcs_dump_known(const struct lmcs_dump *dump, const struct lmc_hash *digest)
{
    const struct lmcs_known wanted = {.digest = *digest};
    return dump->known_count == 0 ? NULL
                                  : bsearch(&wanted, dump->known, dump->known_count, sizeof *dump->known, by_digest);
}

static struct lmcs_known *known_of(const struct lmcs_dump *dump, const struct lmcs_content *content)
{
    const struct lmc_hash digest = {content->df.digest_low, content->df.digest_high};
    return lmcs_dump_known(dump, &digest);
}

/* Whether the archive can refer to a content without sending it, and how many deltas that takes to read. */
static bool is_there(const struct lmcs_dump *dump, const struct lmcs_content *content, uint64_t *depth)
{
    uint64_t sent = lmcs_id_get(&dump->contents, content->id);
    const struct lmcs_known *known = sent == 0 ? known_of(dump, content) : NULL;
    *depth = known != NULL ? known->depth : sent & 7;
    return sent != 0 || (known != NULL && (!known->is_new || known->sent != 0));
}

/* Gives a content that is there an id in this archive. */
static enum lmcs_status name_content(struct lmcs_dump *dump, const struct lmcs_content *content,
                                     struct lmcs_error *error)
{
    struct lmcs_known *known = known_of(dump, content);
    if (lmcs_id_get(&dump->contents, content->id) != 0 || known == NULL)
        return LMCS_OK;
    enum lmcs_status status = LMCS_OK;
    if (known->sent == 0) {
        struct lmcs_archive_known_df df = {.digest_low = content->df.digest_low,
                                           .digest_high = content->df.digest_high,
                                           .raw_bytes = content->df.raw_bytes};
        status = lmcs_dump_identity(dump, content->df.identity, &df.identity, error);
        if (status == LMCS_OK)
            status = lmcs_dump_record(dump, LMCS_ARCHIVE_KNOWN, &df, sizeof df, NULL, 0, error);
        known->sent = ++dump->end.contents << 3 | known->depth;
        dump->known_sent++;
    }
    return status == LMCS_OK ? lmcs_id_put(&dump->contents, content->id, known->sent, error) : status;
}

/* Whether what rests on this base, which nothing selected has, is better sent without it. */
static bool is_too_dear(const struct lmcs_dump *dump, const struct lmcs_content *base)
{
    uint64_t index = lmcs_id_get(&dump->outside, base->id);
    if (!dump->is_part || lmcs_id_get(&dump->inside, base->id) != 0 || index == 0)
        return false;
    const struct lmcs_outside *cost = &dump->costs[index - 1];
    return cost->whole_bytes <= cost->base_bytes + cost->delta_bytes;
}

/* ---- Payloads that are made raw ---- */

/* Adds bytes to the piece at hand, and sends it when it is full. */
static enum lmcs_status add_bytes(struct lmcs_dump *dump, size_t *fill, const void *bytes, size_t count,
                                  struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (const unsigned char *from = bytes; status == LMCS_OK && count > 0;) {
        size_t room = LMCS_ARCHIVE_PIECE_BYTES - *fill, n = count < room ? count : room;
        memcpy(dump->piece + *fill, from, n);
        *fill += n;
        from += n;
        count -= n;
        if (*fill == LMCS_ARCHIVE_PIECE_BYTES) {
            status = lmcs_dump_record(dump, LMCS_ARCHIVE_DATA, dump->piece, *fill, NULL, 0, error);
            *fill = 0;
        }
    }
    return status;
}

static enum lmcs_status send_blocks(struct lmcs_dump *dump, struct lmcs_reader *reader, uint64_t raw_bytes,
                                    unsigned char *block, struct lmc_hash *hashes, struct lmcs_error *error)
{
    static const unsigned char zeros[16];
    uint64_t blocks = lmc_block_count(raw_bytes);
    size_t fill = 0;
    enum lmcs_status status = LMCS_OK;
    for (uint64_t i = 0; status == LMCS_OK && i < blocks; i++) {
        uint64_t left = raw_bytes - i * LMC_BLOCK_BYTES;
        size_t n = left < LMC_BLOCK_BYTES ? (size_t)left : LMC_BLOCK_BYTES;
        status = lmcs_reader_block(reader, i, block, error);
        hashes[i] = lmc_hash128(block, n);
        if (status == LMCS_OK)
            status = add_bytes(dump, &fill, block, n, error);
    }
    if (status == LMCS_OK && blocks > 1)
        status = add_bytes(dump, &fill, zeros, lmcs_raw_table_at(raw_bytes) - raw_bytes, error);
    if (status == LMCS_OK && blocks > 1)
        status = add_bytes(dump, &fill, hashes, blocks * sizeof *hashes, error);
    return status == LMCS_OK && fill > 0 ? lmcs_dump_record(dump, LMCS_ARCHIVE_DATA, dump->piece, fill, NULL, 0, error)
                                         : status;
}

static enum lmcs_status send_decoded(struct lmcs_dump *dump, const struct lmcs_chain *chain,
                                     const struct lmcs_identity *identity, struct lmcs_error *error)
{
    struct lmcs_reader *reader = NULL;
    uint64_t raw_bytes = chain->links[0].df.raw_bytes;
    unsigned char *block = aligned_alloc(64, LMC_BLOCK_BYTES);
    struct lmc_hash *hashes = calloc(lmc_block_count(raw_bytes) + 1, sizeof *hashes);
    enum lmcs_status status = block == NULL || hashes == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    if (status == LMCS_OK)
        status = lmcs_reader_open(dump->pool, chain, identity->name, identity->df.dtype, identity->df.ndim,
                                  identity->shape, &reader, error);
    if (status == LMCS_OK && raw_bytes > 0)
        status = send_blocks(dump, reader, raw_bytes, block, hashes, error);
    lmcs_reader_close(reader);
    free(hashes);
    free(block);
    return status;
}

/* Sends the first content of the chain by itself, raw, block by block. */
static enum lmcs_status send_whole(struct lmcs_dump *dump, const struct lmcs_chain *chain, struct lmcs_error *error)
{
    const struct lmcs_content *content = &chain->links[0];
    struct lmcs_archive_content_df df = {.digest_low = content->df.digest_low,
                                         .digest_high = content->df.digest_high,
                                         .raw_bytes = content->df.raw_bytes,
                                         .stored_bytes = lmcs_raw_stored_bytes(content->df.raw_bytes),
                                         .payload = LMCS_PAYLOAD_RAW};
    struct lmcs_identity identity;
    enum lmcs_status status = lmcs_identity_get(&dump->txn, content->df.identity, &identity, error);
    if (status == LMCS_OK)
        status = lmcs_dump_identity(dump, dump->name != 0 ? dump->name : identity.id, &df.identity, error);
    if (status == LMCS_OK)
        status = lmcs_id_put(&dump->contents, content->id, ++dump->end.contents << 3, error);
    struct lmcs_known *known = known_of(dump, content);
    if (known != NULL)
        known->sent = dump->end.contents << 3;
    if (status == LMCS_OK)
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_CONTENT, &df, sizeof df, NULL, 0, error);
    return status == LMCS_OK ? send_decoded(dump, chain, &identity, error) : status;
}

/* ---- Contents with what they rest on ---- */

/* Cuts the chain in front of what need not be sent. *whole: its last link is to be sent by itself. */
static size_t links_to_send(const struct lmcs_dump *dump, const struct lmcs_chain *chain, bool *whole)
{
    size_t first = 1;
    uint64_t depth = 0;
    *whole = dump->options->canonical;
    if (*whole)
        return 1;
    while (first < chain->length && !is_there(dump, &chain->links[first], &depth)) {
        *whole = is_too_dear(dump, &chain->links[first]);
        if (*whole)
            return first;
        first++;
    }
    return first < chain->length && first + depth > LMCS_CHAIN_BOUND ? chain->length : first;
}

enum lmcs_status lmcs_dump_content(struct lmcs_dump *dump, uint64_t id, uint64_t *sent, struct lmcs_error *error)
{
    struct lmcs_chain chain, rest;
    uint64_t depth;
    bool whole;
    *sent = lmcs_id_get(&dump->contents, id) >> 3;
    if (*sent != 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_chain_load(&dump->txn, id, &chain, error);
    if (status != LMCS_OK)
        return status;
    bool there = is_there(dump, &chain.links[0], &depth);
    size_t count = there ? 0 : links_to_send(dump, &chain, &whole);
    if (there)
        status = name_content(dump, &chain.links[0], error);
    else if (!whole && count < chain.length)
        status = name_content(dump, &chain.links[count], error);
    if (status == LMCS_OK && count > 0 && whole) {
        rest = chain;
        rest.length = chain.length - --count;
        memmove(rest.links, chain.links + count, rest.length * sizeof *rest.links);
        status = send_whole(dump, &rest, error);
    }
    while (status == LMCS_OK && count-- > 0)
        status = send_content(dump, &chain.links[count], error);
    *sent = lmcs_id_get(&dump->contents, id) >> 3;
    return status;
}

enum lmcs_status lmcs_dump_head(struct lmcs_dump *dump, struct lmcs_error *error)
{
    struct lmcs_archive_head_df head = {.version = LMCS_ARCHIVE_VERSION};
    memcpy(head.magic, LMCS_ARCHIVE_MAGIC, sizeof head.magic);
    head.check = lmc_hash64(&head, offsetof(struct lmcs_archive_head_df, check), 0);
    lmc_hasher_init(&dump->headers);
    lmc_hasher_update(&dump->headers, &head, sizeof head);
    return put_bytes(dump, &head, sizeof head, error);
}
