/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/pmemobj_log.c - libpmemobj's logs.
 *
 * libpmemobj trusts headers and kinds of entries before any checksum. Only remains of our own commits pass:
 *
 *   undo logs    empty: we use no transactions of libpmemobj
 *   redo logs    one, without successors. Entries set, and, or or a word: with a right checksum, our root word or a
 *                chunk's header. With a wrong one the log is incomplete or finished, and skipped.
 *
 * The pool is checked as it will be after pending entries.
 */
#include "media/pmemobj_log.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "media/layout.h"
#include "media/media.h"
#include "media/pmemobj_layout.h"

#define LANES_AT_ONCE 64u
#define CACHE_LINE    64u

static const struct {
    uint32_t at; /* in the lane */
    uint32_t room;
} logs[LMCS_LANE_LOGS] = {{0, 192}, {256, 640}, {960, 2048}};
#define UNDO_LOG 2u
static_assert(960 + sizeof(struct lmcs_log_df) + 2048 == LMCS_LANE_BYTES, "lane layout");

struct lmcs_pmemobj_log {
    size_t count;
    size_t capacity;
    struct lmcs_log_entry_df entries[]; /* in the order of application */
};

static enum lmcs_status fail_log(const struct lmcs_media *media, const char *what, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0,
                     "%s: libpmemobj's log is damaged (%s), so that nothing can be written; mode r reads what is "
                     "there: dump it, and restore it into a new pool",
                     lmcs_media_path(media), what);
}

/* Fletcher's, over words of 32 bits, the log's own checksum counted as 0. */
static uint64_t checksum_of(const unsigned char *log, uint64_t bytes)
{
    uint32_t low = 0, high = 0;
    for (uint64_t at = 0; at < bytes; at += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, log + at, sizeof word);
        low += at < sizeof(uint64_t) ? 0 : word;
        high += low;
    }
    return (uint64_t)high << 32 | low;
}

static bool is_chunk_header(const struct lmcs_media *media, uint64_t place)
{
    uint64_t zones = lmcs_media_heap(media) + LMCS_HEAP_HEADER_BYTES;
    if (place < zones || place >= lmcs_media_bytes(media))
        return false;
    uint64_t in_zone = (place - zones) % LMCS_ZONE_BYTES;
    return in_zone >= LMCS_ZONE_HEADER_BYTES &&
           in_zone < LMCS_ZONE_HEADER_BYTES + LMCS_ZONE_CHUNKS * sizeof(struct lmcs_chunk_df);
}

static bool place_is_ours(const struct lmcs_media *media, uint64_t place)
{
    return place % sizeof(uint64_t) == 0 &&
           (place == lmcs_media_superblock(media) + offsetof(struct lmcs_superblock_df, root) ||
            is_chunk_header(media, place));
}

static enum lmcs_status add_entries(struct lmcs_pmemobj_log **pending, const struct lmcs_log_entry_df *entries,
                                    size_t count, struct lmcs_error *error)
{
    size_t had = *pending == NULL ? 0 : (*pending)->count, wanted = had + count;
    if (*pending == NULL || wanted > (*pending)->capacity) {
        struct lmcs_pmemobj_log *grown = realloc(*pending, sizeof *grown + 2 * wanted * sizeof grown->entries[0]);
        if (grown == NULL)
            return lmcs_fail_memory(error);
        grown->capacity = 2 * wanted;
        *pending = grown;
    }
    memcpy((*pending)->entries + had, entries, count * sizeof *entries);
    (*pending)->count = wanted;
    return LMCS_OK;
}

static enum lmcs_status load_entries(const struct lmcs_media *media, const unsigned char *log, uint64_t capacity,
                                     struct lmcs_pmemobj_log **pending, struct lmcs_error *error)
{
    const unsigned char *data = log + sizeof(struct lmcs_log_df);
    struct lmcs_log_entry_df entries[640 / sizeof(struct lmcs_log_entry_df)];
    size_t count = 0;
    for (uint64_t at = 0; at < capacity; at += sizeof entries[0], count++) {
        memcpy(&entries[count], data + at, sizeof entries[0]);
        if (entries[count].place == 0)
            break;
        if ((entries[count].place & LMCS_LOG_OPERATION) > LMCS_LOG_OR)
            return fail_log(media, "an operation that it never has", error);
    }
    uint64_t checksum;
    memcpy(&checksum, log, sizeof checksum);
    if (count == 0 || checksum != checksum_of(log, sizeof(struct lmcs_log_df) + count * sizeof entries[0]))
        return LMCS_OK;
    for (size_t i = 0; i < count; i++)
        if (!place_is_ours(media, entries[i].place & ~LMCS_LOG_OPERATION))
            return fail_log(media, "it would change what no commit changes", error);
    return add_entries(pending, entries, count, error);
}

static enum lmcs_status load_log(const struct lmcs_media *media, const unsigned char *lane, size_t i,
                                 struct lmcs_pmemobj_log **pending, struct lmcs_error *error)
{
    const unsigned char *log = lane + logs[i].at;
    struct lmcs_log_df header;
    uint64_t first;
    memcpy(&header, log, sizeof header);
    memcpy(&first, log + sizeof header, sizeof first);
    if (header.next != 0 || header.flags != 0 || (header.unused[0] | header.unused[1] | header.unused[2]) != 0)
        return fail_log(media, "its header", error);
    if (header.capacity > logs[i].room || header.capacity % CACHE_LINE != 0)
        return fail_log(media, "its size", error);
    if (i == UNDO_LOG)
        return first == 0 ? LMCS_OK : fail_log(media, "an undo log that is not empty", error);
    return load_entries(media, log, header.capacity, pending, error);
}

static enum lmcs_status find_lanes(const struct lmcs_media *media, uint64_t *at, uint64_t *count,
                                   struct lmcs_error *error)
{
    uint64_t lanes[2], heap = lmcs_media_heap(media);
    enum lmcs_status status = lmcs_media_read(media, LMCS_POBJ_LANES, lanes, sizeof lanes, error);
    if (status != LMCS_OK)
        return status;
    if (lanes[0] < LMCS_POBJ_END || lanes[0] >= heap || lanes[0] % CACHE_LINE != 0 || lanes[1] == 0 ||
        lanes[1] > (heap - lanes[0]) / LMCS_LANE_BYTES)
        return fail_log(media, "it is not where it should be", error);
    *at = lanes[0];
    *count = lanes[1];
    return LMCS_OK;
}

/* `place`: of the lane. */
typedef enum lmcs_status lane_work(const struct lmcs_media *media, const unsigned char *lane, uint64_t place,
                                   void *context, struct lmcs_error *error);

static enum lmcs_status each_lane(const struct lmcs_media *media, lane_work *work, void *context,
                                  struct lmcs_error *error)
{
    uint64_t at = 0, count = 0;
    enum lmcs_status status = find_lanes(media, &at, &count, error);
    unsigned char *lanes = status == LMCS_OK ? malloc(LANES_AT_ONCE * LMCS_LANE_BYTES) : NULL;
    if (status == LMCS_OK && lanes == NULL)
        status = lmcs_fail_memory(error);
    for (uint64_t i = 0, n; status == LMCS_OK && i < count; i += n) {
        const uint64_t place = at + i * LMCS_LANE_BYTES;
        n = count - i < LANES_AT_ONCE ? count - i : LANES_AT_ONCE;
        status = lmcs_media_read(media, place, lanes, n * LMCS_LANE_BYTES, error);
        for (size_t k = 0; status == LMCS_OK && k < n; k++)
            status = work(media, lanes + k * LMCS_LANE_BYTES, place + k * LMCS_LANE_BYTES, context, error);
    }
    free(lanes);
    return status;
}

static enum lmcs_status load_lane(const struct lmcs_media *media, const unsigned char *lane, uint64_t place,
                                  void *context, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    (void)place;
    for (size_t i = 0; status == LMCS_OK && i < LMCS_LANE_LOGS; i++)
        status = load_log(media, lane, i, context, error);
    return status;
}

enum lmcs_status lmcs_pmemobj_log_load(const struct lmcs_media *media, struct lmcs_pmemobj_log **pending,
                                       struct lmcs_error *error)
{
    *pending = NULL;
    enum lmcs_status status = each_lane(media, load_lane, pending, error);
    if (status != LMCS_OK) {
        lmcs_pmemobj_log_free(*pending);
        *pending = NULL;
    }
    return status;
}

/* A log that was ever used has an entry, which stays when libpmemobj ends the log. */
static enum lmcs_status rewrite_lane(const struct lmcs_media *media, const unsigned char *lane, uint64_t place,
                                     void *context, struct lmcs_error *error)
{
    const int *fd = context;
    for (size_t i = 0; i < UNDO_LOG; i++) {
        uint64_t first;
        memcpy(&first, lane + logs[i].at + sizeof(struct lmcs_log_df), sizeof first);
        if (first != 0 && pwrite(*fd, lane, LMCS_LANE_BYTES, (off_t)place) != (ssize_t)LMCS_LANE_BYTES)
            return lmcs_fail_errno(error, errno, "%s: can't write", lmcs_media_path(media));
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_pmemobj_log_rewrite(const struct lmcs_media *media, int fd, struct lmcs_error *error)
{
    return each_lane(media, rewrite_lane, &fd, error);
}

void lmcs_pmemobj_log_free(struct lmcs_pmemobj_log *pending)
{
    free(pending);
}

void lmcs_pmemobj_log_apply(const void *context, uint64_t offset, void *buffer, uint64_t bytes)
{
    const struct lmcs_pmemobj_log *pending = context;
    unsigned char *copy = buffer;
    for (size_t i = 0; i < pending->count; i++) {
        uint64_t place = pending->entries[i].place & ~LMCS_LOG_OPERATION, value = pending->entries[i].value;
        uint64_t operation = pending->entries[i].place & LMCS_LOG_OPERATION;
        /* no reader reads half of these words */
        if (place < offset || place - offset >= bytes || bytes - (place - offset) < sizeof value)
            continue;
        uint64_t word;
        memcpy(&word, copy + (place - offset), sizeof word);
        word = operation == LMCS_LOG_SET ? value : operation == LMCS_LOG_AND ? word & value : word | value;
        memcpy(copy + (place - offset), &word, sizeof word);
    }
}
