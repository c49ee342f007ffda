/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/write.c - sends the records of an archive: each identity and content once (store/ARCHIVE.md, 11).
 *
 * The compactor may change a content between two snapshots. The form sent earlier still serves as a base, unless the
 * archive's chain would become too long: then the chain is sent again. A link is sent after its bases: all are outputs
 * of one link, or none needs another content. Memory: 8 bytes for each content sent, 8 more if it is linked or only
 * named, 40 for each content known by its digest.
 */
#include "transfer/write.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/order.h"
#include "payload/layout.h"
#include "payload/scan.h"
#include "transfer/alone.h"

#define PROGRESS_BYTES ((uint64_t)4 << 20)
#define WAIT_MS        200 /* between calls of progress while a pipe is full */

/* ---- Numbers by ids ---- */

#define MAP_PAGE 64u

struct lmcs_id_page {
    uint64_t number; /* id / MAP_PAGE */
    uint64_t values[MAP_PAGE];
};

uint64_t lmcs_id_get(const struct lmcs_id_map *map, uint64_t id)
{
    uint64_t page = lmcs_map_get(&map->numbers, id / MAP_PAGE);
    return page != 0 ? map->pages[page - 1]->values[id % MAP_PAGE] : 0;
}

static enum lmcs_status add_page(struct lmcs_id_map *map, uint64_t number, struct lmcs_error *error)
{
    if (map->count == 0)
        map->numbers.seed = lmcs_now_ns() ^ (uintptr_t)map; /* a hostile pool must not choose collisions */
    struct lmcs_id_page *page = calloc(1, sizeof *page);
    if (page == NULL || !lmcs_grow(&map->pages, &map->capacity, map->count, sizeof(struct lmcs_id_page *)) ||
        !lmcs_map_put(&map->numbers, number, map->count + 1)) {
        free(page);
        return lmcs_fail_memory(error);
    }
    page->number = number;
    map->pages[map->count++] = page;
    return LMCS_OK;
}

enum lmcs_status lmcs_id_put(struct lmcs_id_map *map, uint64_t id, uint64_t value, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    uint64_t page = lmcs_map_get(&map->numbers, id / MAP_PAGE);
    if (page == 0) {
        status = add_page(map, id / MAP_PAGE, error);
        page = map->count;
    }
    if (status == LMCS_OK)
        map->pages[page - 1]->values[id % MAP_PAGE] = value;
    return status;
}

enum lmcs_status lmcs_id_list(const struct lmcs_id_map *map, uint64_t **ids, size_t *count, struct lmcs_error *error)
{
    size_t capacity = 0;
    *ids = NULL;
    *count = 0;
    for (size_t i = 0; i < map->count; i++)
        for (size_t k = 0; k < MAP_PAGE; k++) {
            if (map->pages[i]->values[k] == 0)
                continue;
            if (!lmcs_grow(ids, &capacity, *count, sizeof **ids))
                return lmcs_fail_memory(error);
            (*ids)[(*count)++] = map->pages[i]->number * MAP_PAGE + k;
        }
    if (*count > 0)
        qsort(*ids, *count, sizeof **ids, lmcs_by_u64);
    return LMCS_OK;
}

void lmcs_id_free(struct lmcs_id_map *map)
{
    for (size_t i = 0; i < map->count; i++)
        free(map->pages[i]);
    free(map->pages);
    lmcs_map_free(&map->numbers);
}

/* ---- Writing records ---- */

static enum lmcs_status fail_stopped(struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_CANCELLED, 0, "the dump was stopped: the archive is not complete");
}

static enum lmcs_status call_progress(const struct lmcs_dump *dump, struct lmcs_error *error)
{
    const struct lmcs_progress *progress = dump->progress;
    uint64_t done = dump->total != 0 && dump->bytes > dump->total ? dump->total : dump->bytes;
    return progress == NULL || progress->call == NULL || progress->call(progress->context, "dumping", done, dump->total)
               ? LMCS_OK
               : fail_stopped(error);
}

/* Calls progress after each write that was incomplete: a pipe was full, or a signal came, which ends polls alone. */
static enum lmcs_status write_all(const struct lmcs_dump *dump, const void *data, size_t bytes,
                                  struct lmcs_error *error)
{
    const int fd = dump->fd;
    if (dump->write != NULL)
        return bytes == 0 || dump->write(dump->write_context, data, bytes) ? LMCS_OK : fail_stopped(error);
    enum lmcs_status status = LMCS_OK;
    for (const char *at = data; status == LMCS_OK && bytes > 0;) {
        bool waits = poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, WAIT_MS) <= 0;
        ssize_t n = waits ? 0 : write(fd, at, bytes);
        if (!waits && (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)))
            return lmcs_fail_errno(error, n == 0 ? EIO : errno, "the archive can't be written");
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
        if (bytes > 0)
            status = call_progress(dump, error);
    }
    return status;
}

enum lmcs_status lmcs_dump_flush(struct lmcs_dump *dump, struct lmcs_error *error)
{
    size_t used = dump->used;
    dump->used = 0;
    return write_all(dump, dump->buffer, used, error);
}

static enum lmcs_status put_bytes(struct lmcs_dump *dump, const void *data, size_t bytes, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    dump->bytes += bytes;
    bool direct = bytes > LMCS_DUMP_BUFFER / 2;
    if (direct || dump->used + bytes > LMCS_DUMP_BUFFER)
        status = lmcs_dump_flush(dump, error);
    if (status == LMCS_OK && direct)
        return write_all(dump, data, bytes, error);
    if (status == LMCS_OK && bytes > 0) {
        memcpy(dump->buffer + dump->used, data, bytes);
        dump->used += bytes;
    }
    return status;
}

static enum lmcs_status report_progress(struct lmcs_dump *dump, struct lmcs_error *error)
{
    if (dump->bytes - dump->reported < PROGRESS_BYTES)
        return LMCS_OK;
    dump->reported = dump->bytes;
    return call_progress(dump, error);
}

enum lmcs_status lmcs_dump_record(struct lmcs_dump *dump, uint32_t type, const void *first, size_t first_bytes,
                                  const void *rest, size_t rest_bytes, struct lmcs_error *error)
{
    struct lmcs_archive_record_df header = {.type = type, .bytes = (uint32_t)(first_bytes + rest_bytes)};
    const void *payload = first;
    if (rest_bytes > 0) {
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
    unsigned char rest[sizeof(uint64_t) * 3 * LMCS_MAX_DIMS + LMCS_MAX_NAME];
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

/* Checks the stored blocks of a frame without decoding them; restoring and verifying the archive decode them. */
static enum lmcs_status check_frame(struct lmcs_dump *dump, const struct lmcs_content *content,
                                    const struct lmcs_identity *identity, struct lmcs_error *error)
{
    struct lmcs_bytes bytes = lmcs_bytes_of_pool(dump->pool->media, content);
    struct lmcs_scan scan = {.blocks = 0};
    enum lmcs_status status = lmcs_scan(&bytes, content, identity, dump->pool->workers, &scan, error);
    if (status == LMCS_OK && !lmcs_scan_is_clean(&scan))
        status = fail_payload(dump, identity, scan.head_is_bad ? "its header is damaged" : scan.why, error);
    lmcs_scan_free(&scan);
    return status;
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

static enum lmcs_status send_piece(struct lmcs_dump *dump, size_t *fill, struct lmcs_error *error)
{
    size_t bytes = *fill;
    *fill = 0;
    return lmcs_dump_record(dump, LMCS_ARCHIVE_DATA, dump->piece, bytes, NULL, 0, error);
}

/* Gathers bytes into pieces and sends each full piece. */
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
        if (*fill == LMCS_ARCHIVE_PIECE_BYTES)
            status = send_piece(dump, fill, error);
    }
    return status;
}

/* A block fills a piece. */
static enum lmcs_status send_blocks(struct lmcs_dump *dump, struct lmcs_reader *reader, uint64_t raw_bytes,
                                    struct lmc_hash *hashes, struct lmcs_error *error)
{
    static_assert(LMC_BLOCK_BYTES == LMCS_ARCHIVE_PIECE_BYTES, "blocks are read into pieces");
    static const unsigned char zeros[16];
    uint64_t blocks = lmc_block_count(raw_bytes);
    size_t fill = 0;
    enum lmcs_status status = LMCS_OK;
    for (uint64_t i = 0; status == LMCS_OK && i < blocks; i++) {
        uint64_t left = raw_bytes - i * LMC_BLOCK_BYTES;
        fill = left < LMC_BLOCK_BYTES ? (size_t)left : LMC_BLOCK_BYTES;
        status = lmcs_reader_block(reader, i, dump->piece, error);
        hashes[i] = lmc_hash128(dump->piece, fill);
        if (status == LMCS_OK && fill == LMC_BLOCK_BYTES)
            status = send_piece(dump, &fill, error);
    }
    if (status == LMCS_OK && blocks > 1)
        status = add_bytes(dump, &fill, zeros, lmcs_raw_table_at(raw_bytes) - raw_bytes, error);
    if (status == LMCS_OK && blocks > 1)
        status = add_bytes(dump, &fill, hashes, blocks * sizeof *hashes, error);
    return status == LMCS_OK && fill > 0 ? send_piece(dump, &fill, error) : status;
}

static enum lmcs_status send_decoded(struct lmcs_dump *dump, const struct lmcs_chain *chain,
                                     const struct lmcs_identity *identity, struct lmcs_error *error)
{
    const struct lmcs_tensor tensor = lmcs_identity_tensor(identity);
    struct lmcs_reader *reader = NULL;
    uint64_t raw_bytes = chain->links[0].df.raw_bytes;
    struct lmc_hash *hashes = calloc(lmc_block_count(raw_bytes) + 1, sizeof *hashes);
    enum lmcs_status status = hashes == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    if (status == LMCS_OK)
        status = lmcs_reader_open(dump->pool, chain, &tensor, NULL, &reader, error);
    if (status == LMCS_OK && raw_bytes > 0)
        status = send_blocks(dump, reader, raw_bytes, hashes, error);
    lmcs_reader_close(reader);
    free(hashes);
    return status;
}

/* Sends a raw payload, and checks each block on its way: damage in an archive is noticed only when it is needed. */
static enum lmcs_status send_raw(struct lmcs_dump *dump, const struct lmcs_content *content,
                                 const struct lmcs_identity *identity, struct lmcs_error *error)
{
    struct lmcs_chain chain = {.length = 1};
    chain.links[0] = *content;
    enum lmcs_status status = send_decoded(dump, &chain, identity, error);
    if (status != LMCS_DAMAGED)
        return status;
    const struct lmcs_tensor tensor = lmcs_identity_tensor(identity);
    status = lmcs_chain_read(dump->pool, &chain, &tensor, NULL, NULL, error); /* lists all that is damaged */
    return status != LMCS_OK ? status                                         /* a part of the record is written */
                             : lmcs_fail(error, LMCS_DAMAGED, 0,
                                         "%s: tensor \"%s\": a block could be read only at the second try: dump again",
                                         dump->pool->path, tensor.name);
}

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
    uint64_t bases[LMC_MAX_BASES], depth = content->df.payload == LMCS_PAYLOAD_LINK ? LMCS_SENT_LINE + 1 : 0;
    for (size_t i = 0; i < df.base_count; i++) {
        uint64_t base = lmcs_id_get(&dump->contents, content->bases[i]), below = base & LMCS_SENT_MASK;
        bases[i] = base >> LMCS_SENT_BITS;
        depth = below + 1 > depth ? below + 1 : depth;
    }
    struct lmcs_identity identity;
    const bool is_raw = content->df.payload == LMCS_PAYLOAD_RAW;
    enum lmcs_status status = lmcs_identity_get(&dump->txn, content->df.identity, &identity, error);
    if (status == LMCS_OK && !is_raw)
        status = check_frame(dump, content, &identity, error);
    if (status == LMCS_OK)
        status = lmcs_dump_identity(dump, content->df.identity, &df.identity, error);
    if (status == LMCS_OK)
        status = lmcs_id_put(&dump->contents, content->id, ++dump->end.contents << LMCS_SENT_BITS | depth, error);
    if (status == LMCS_OK)
        status =
            lmcs_dump_record(dump, LMCS_ARCHIVE_CONTENT, &df, sizeof df, bases, df.base_count * sizeof *bases, error);
    if (status != LMCS_OK)
        return status;
    return is_raw ? send_raw(dump, content, &identity, error) : send_data(dump, content, error);
}

/* ---- Known contents, bases outside ---- */

static int by_digest(const void *a, const void *b)
{
    const struct lmcs_known *x = a, *y = b;
    return LMCS_ORDER2(x->digest.low, y->digest.low, x->digest.high, y->digest.high);
}

void lmcs_dump_sort_known(struct lmcs_dump *dump)
{
    size_t kept = 0;
    if (dump->known_count > 1)
        qsort(dump->known, dump->known_count, sizeof *dump->known, by_digest);
    for (size_t i = 0; i < dump->known_count; i++)
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

/* Whether the archive can refer to the content. *depth: deltas or links to undo there. */
static bool is_there(const struct lmcs_dump *dump, const struct lmcs_content *content, uint64_t *depth)
{
    uint64_t sent = lmcs_id_get(&dump->contents, content->id);
    const struct lmcs_known *known = sent == 0 ? known_of(dump, content) : NULL;
    *depth = known != NULL ? known->depth : sent & LMCS_SENT_MASK;
    return sent != 0 || (known != NULL && (!known->is_new || known->sent != 0));
}

/* Refers to a content by its digest alone, if an older archive has it. */
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
        known->sent = ++dump->end.contents << LMCS_SENT_BITS | known->depth;
        dump->known_sent++;
        if (status == LMCS_OK)
            status = lmcs_id_put(&dump->forms, dump->end.contents, LMCS_FORM_KNOWN, error);
    }
    return status == LMCS_OK ? lmcs_id_put(&dump->contents, content->id, known->sent, error) : status;
}

/* Whether a base outside of the part, with the deltas against it, costs as much as these contents sent whole. */
static bool is_too_dear(const struct lmcs_dump *dump, const struct lmcs_content *base)
{
    uint64_t index = lmcs_id_get(&dump->outside, base->id);
    if (!dump->is_part || lmcs_id_get(&dump->inside, base->id) != 0 || index == 0)
        return false;
    const struct lmcs_outside *cost = &dump->costs[index - 1];
    return cost->whole_bytes <= cost->base_bytes + cost->delta_bytes;
}

/* ---- Payloads made raw ---- */

/* Sends the content of a chain decoded, block by block. */
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
        status = lmcs_id_put(&dump->contents, content->id, ++dump->end.contents << LMCS_SENT_BITS, error);
    struct lmcs_known *known = known_of(dump, content);
    if (known != NULL)
        known->sent = dump->end.contents << LMCS_SENT_BITS;
    if (status == LMCS_OK)
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_CONTENT, &df, sizeof df, NULL, 0, error);
    return status == LMCS_OK ? send_decoded(dump, chain, &identity, error) : status;
}

/* Sends the content of a chain as a frame of its own, if that is worth it. */
static enum lmcs_status send_alone(struct lmcs_dump *dump, const struct lmcs_chain *chain, bool *is_sent,
                                   struct lmcs_error *error)
{
    const struct lmcs_content *content = &chain->links[0];
    struct lmcs_identity identity;
    unsigned char *frame;
    uint64_t bytes;
    *is_sent = false;
    enum lmcs_status status = lmcs_identity_get(&dump->txn, content->df.identity, &identity, error);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&identity);
    status = lmcs_alone_encode(dump->pool, chain, &tensor, &frame, &bytes, error);
    if (status != LMCS_OK || frame == NULL)
        return status;
    *is_sent = true;
    struct lmcs_archive_content_df df = {.digest_low = content->df.digest_low,
                                         .digest_high = content->df.digest_high,
                                         .raw_bytes = content->df.raw_bytes,
                                         .stored_bytes = bytes,
                                         .payload = LMCS_PAYLOAD_FRAME};
    status = lmcs_dump_identity(dump, content->df.identity, &df.identity, error);
    if (status == LMCS_OK)
        status = lmcs_id_put(&dump->contents, content->id, ++dump->end.contents << LMCS_SENT_BITS, error);
    if (status == LMCS_OK)
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_CONTENT, &df, sizeof df, NULL, 0, error);
    for (uint64_t at = 0; status == LMCS_OK && at < bytes; at += LMCS_ARCHIVE_PIECE_BYTES) {
        uint64_t left = bytes - at;
        size_t n = left < LMCS_ARCHIVE_PIECE_BYTES ? (size_t)left : LMCS_ARCHIVE_PIECE_BYTES;
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_DATA, frame + at, n, NULL, 0, error);
    }
    free(frame);
    return status;
}

/* ---- Lines of links ---- */

/* How the archive stores a content, or would name it. */
struct form {
    bool is_there;
    uint64_t sent; /* id; 0: not named yet */
    uint64_t link; /* id of the link that leads to it; 0: none, or in an older archive */
    uint32_t arrays, output;
    uint32_t deltas; /* to undo, in this archive */
    uint32_t line;   /* links to undo */
    struct lmc_hash digest;
};

static struct form form_of(const struct lmcs_dump *dump, const struct lmcs_content *content)
{
    struct form form = {.digest = {content->df.digest_low, content->df.digest_high}};
    const struct lmcs_known *known = known_of(dump, content);
    uint64_t depth, sent = lmcs_id_get(&dump->contents, content->id);
    form.is_there = is_there(dump, content, &depth);
    if (sent == 0 && form.is_there)
        sent = known->sent;
    form.sent = sent >> LMCS_SENT_BITS;
    uint64_t how = form.sent != 0 ? lmcs_id_get(&dump->forms, form.sent) : form.is_there ? LMCS_FORM_KNOWN : 0;
    form.line = depth >= LMCS_SENT_LINE ? (uint32_t)(depth - LMCS_SENT_LINE) : 0;
    if (how == LMCS_FORM_KNOWN)
        return form;
    form.deltas = form.line == 0 ? (uint32_t)depth : 0;
    form.link = how >> 8;
    form.arrays = how >> 4 & 15;
    form.output = how & 15;
    return form;
}

struct before {
    struct lmcs_content contents[LMC_MAX_BASES];
    struct form forms[LMC_MAX_BASES];
    size_t count;
    uint64_t older; /* in the pool: the link that stores one of these contents; 0: none */
};

/* Loads the bases of a link and their forms in the archive. */
static enum lmcs_status load_before(struct lmcs_dump *dump, const struct lmcs_content *link, struct before *before,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    before->older = 0;
    before->count = link->df.base_count;
    for (size_t i = 0; status == LMCS_OK && i < before->count; i++) {
        status = lmcs_content_get(&dump->txn, link->bases[i], &before->contents[i], error);
        if (status != LMCS_OK)
            return status;
        before->forms[i] = form_of(dump, &before->contents[i]);
        if (before->contents[i].df.payload == LMCS_PAYLOAD_LINKED)
            before->older = before->contents[i].link;
    }
    return LMCS_OK;
}

/* Whether array i rests on nothing in this archive and is unlike the others. */
static bool may_begin(const struct before *before, size_t i)
{
    const struct form *form = &before->forms[i], *other = before->forms;
    for (; other < form; other++)
        if (other->sent == form->sent &&
            (form->sent != 0 || (other->digest.low == form->digest.low && other->digest.high == form->digest.high)))
            return false;
    return form->is_there && form->link == 0 && form->deltas == 0 && form->line < LMCS_LINK_BOUND;
}

/* Whether a link may rest on these arrays: they continue a line or may begin one. */
static bool can_bear(const struct before *before)
{
    bool goes_on = true, begins = true;
    for (size_t i = 0; i < before->count; i++) {
        const struct form *form = &before->forms[i];
        goes_on = goes_on && form->is_there && form->link != 0 && form->link == before->forms[0].link &&
                  form->arrays == before->count && form->output == i && form->line < LMCS_LINK_BOUND;
        begins = begins && may_begin(before, i);
    }
    return goes_on || begins;
}

/* Sends a content as output `output` of a sent link. */
static enum lmcs_status send_array(struct lmcs_dump *dump, const struct lmcs_content *content,
                                   const struct lmcs_content *link, uint32_t output, struct lmcs_error *error)
{
    uint64_t sent = lmcs_id_get(&dump->contents, link->id), id = sent >> LMCS_SENT_BITS;
    struct lmcs_archive_content_df df = {.digest_low = content->df.digest_low,
                                         .digest_high = content->df.digest_high,
                                         .raw_bytes = content->df.raw_bytes,
                                         .payload = LMCS_PAYLOAD_LINKED,
                                         .base_count = 1,
                                         .output = (uint8_t)output};
    enum lmcs_status status = lmcs_dump_identity(dump, content->df.identity, &df.identity, error);
    if (status == LMCS_OK)
        status = lmcs_id_put(&dump->contents, content->id,
                             ++dump->end.contents << LMCS_SENT_BITS | (sent & LMCS_SENT_MASK), error);
    if (status == LMCS_OK)
        status =
            lmcs_id_put(&dump->forms, dump->end.contents, lmcs_form_linked(id, link->df.base_count, output), error);
    return status == LMCS_OK ? lmcs_dump_record(dump, LMCS_ARCHIVE_CONTENT, &df, sizeof df, &id, sizeof id, error)
                             : status;
}

/* Sends an array with which a line begins, so that it rests on nothing. */
static enum lmcs_status send_first(struct lmcs_dump *dump, const struct lmcs_content *content, struct lmcs_error *error)
{
    struct lmcs_chain chain;
    if (content->df.payload < LMCS_PAYLOAD_LINK && content->df.base_count == 0)
        return send_content(dump, content, error);
    enum lmcs_status status = lmcs_chain_load(&dump->txn, content->id, &chain, error);
    return status == LMCS_OK ? send_whole(dump, &chain, error) : status;
}

/* Sends a link, after those of its bases that are missing or unsuitable. */
static enum lmcs_status send_link(struct lmcs_dump *dump, const struct lmcs_content *link, struct lmcs_error *error)
{
    struct before before;
    struct lmcs_content older;
    struct form form = {.is_there = false};
    enum lmcs_status status = load_before(dump, link, &before, error);
    bool can = status == LMCS_OK && can_bear(&before);
    if (status == LMCS_OK && !can && before.older != 0) {
        status = lmcs_content_get(&dump->txn, before.older, &older, error);
        if (status == LMCS_OK)
            form = form_of(dump, &older);
    }
    bool goes_on = form.is_there && form.line < LMCS_LINK_BOUND;
    for (size_t i = 0; status == LMCS_OK && i < before.count; i++) {
        const struct form *now = &before.forms[i];
        if (!can && goes_on && (now->link != form.sent || now->output != i))
            status = send_array(dump, &before.contents[i], &older, (uint32_t)i, error);
        else if (!can && !goes_on && !may_begin(&before, i))
            status = send_first(dump, &before.contents[i], error);
        else
            status = name_content(dump, &before.contents[i], error);
    }
    return status == LMCS_OK ? send_content(dump, link, error) : status;
}

/* Sends a link after the links below it. *possible false: nothing was sent, since that costs more than the content. */
static enum lmcs_status send_line(struct lmcs_dump *dump, struct lmcs_content *link, bool *possible,
                                  struct lmcs_error *error)
{
    struct before before;
    uint64_t ids[LMCS_LINK_BOUND], next = link->id;
    size_t count = 0;
    enum lmcs_status status = LMCS_OK;
    bool is_there = false;
    while (status == LMCS_OK && next != 0 && count < LMCS_LINK_BOUND) {
        status = lmcs_content_get(&dump->txn, next, link, error);
        is_there = status == LMCS_OK && form_of(dump, link).is_there;
        if (is_there)
            status = name_content(dump, link, error);
        if (status != LMCS_OK || is_there)
            break;
        status = load_before(dump, link, &before, error);
        bool can = status == LMCS_OK && can_bear(&before);
        if (status != LMCS_OK || (!can && is_too_dear(dump, link)))
            break;
        ids[count++] = next;
        next = can ? 0 : before.older;
    }
    *possible = is_there || count > 0;
    while (status == LMCS_OK && count > 0) {
        status = lmcs_content_get(&dump->txn, ids[--count], link, error);
        if (status == LMCS_OK)
            status = send_link(dump, link, error);
    }
    return status;
}

/* ---- Contents with those below ---- */

/*
 * Returns how many contents of the chain are to be sent. *whole: the last of these is sent decoded, without its base.
 */
static size_t links_to_send(const struct lmcs_dump *dump, const struct lmcs_chain *chain, bool *whole)
{
    size_t first = 1;
    uint64_t depth = 0;
    *whole = dump->options->canonical || (dump->options->alone && chain->length > 1);
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

static enum lmcs_status send_chain(struct lmcs_dump *dump, struct lmcs_chain *chain, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    bool whole;
    size_t count = links_to_send(dump, chain, &whole);
    if (whole) {
        struct lmcs_chain rest = *chain;
        rest.length = chain->length - --count;
        memmove(rest.links, chain->links + count, rest.length * sizeof *rest.links);
        status = send_whole(dump, &rest, error);
    } else if (count < chain->length) {
        status = name_content(dump, &chain->links[count], error);
    }
    while (status == LMCS_OK && count-- > 0)
        status = send_content(dump, &chain->links[count], error);
    return status;
}

static bool is_frame_alone(const struct lmcs_content *content)
{
    return content->df.payload == LMCS_PAYLOAD_FRAME && content->df.base_count == 0;
}

enum lmcs_status lmcs_dump_content(struct lmcs_dump *dump, uint64_t id, uint64_t *sent, struct lmcs_error *error)
{
    struct lmcs_content content, link;
    struct lmcs_chain chain;
    uint64_t depth;
    *sent = lmcs_id_get(&dump->contents, id) >> LMCS_SENT_BITS;
    if (*sent != 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_content_get(&dump->txn, id, &content, error);
    bool there = status == LMCS_OK && is_there(dump, &content, &depth), possible = false;
    bool alone = dump->options->alone || dump->options->canonical;
    if (there)
        status = name_content(dump, &content, error);
    if (status == LMCS_OK && !there && content.df.payload == LMCS_PAYLOAD_LINKED && !alone) {
        link.id = content.link;
        status = send_line(dump, &link, &possible, error);
        if (status == LMCS_OK && possible)
            status = send_array(dump, &content, &link, content.df.output, error);
    }
    if (status == LMCS_OK && !there && !possible)
        status = lmcs_chain_load(&dump->txn, id, &chain, error);
    if (status == LMCS_OK && !there && dump->options->alone && !is_frame_alone(&content))
        status = send_alone(dump, &chain, &possible, error);
    if (status == LMCS_OK && !there && !possible)
        status = chain.line > 0 ? send_whole(dump, &chain, error) : send_chain(dump, &chain, error);
    *sent = lmcs_id_get(&dump->contents, id) >> LMCS_SENT_BITS;
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

enum lmcs_status lmcs_dump_add_known(struct lmcs_dump *dump, const struct lmcs_known *known, struct lmcs_error *error)
{
    if (!lmcs_grow(&dump->known, &dump->known_capacity, dump->known_count, sizeof *known))
        return lmcs_fail_memory(error);
    dump->known[dump->known_count++] = *known;
    return LMCS_OK;
}
