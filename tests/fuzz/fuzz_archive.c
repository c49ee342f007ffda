/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_archive.c - fuzz target for restoring forged archives.
 *
 * Checksums and dependent numbers (counts, sizes, digests) of the input are corrected; flags in byte 12, which readers
 * ignore, exclude some. A refused archive must leave the pool unchanged; an accepted one must verify, dump and restore.
 */
#include "support.h"

#include "../data/codec/seal.h"
#include "archive/format.h"
#include "media/layout.h"
#include "payload/read.h"
#include "records/meta.h"

#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t count, size_t most) __attribute__((weak));
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed);

enum { LEAVE_ALL = 1, LEAVE_SIZES = 2, LEAVE_COUNTS = 4, THROUGH_PIPE = 8 };
#define FLAGS_AT 12
#define HEAD     sizeof(struct lmcs_archive_head_df)
#define HEADER   sizeof(struct lmcs_archive_record_df)
#define MOST     1024u /* followed identities and contents */

/* ---- Making checksums and sums right ---- */

struct sealer {
    unsigned flags;
    struct lmcs_archive_end_df end;
    struct lmc_hasher headers;
    const unsigned char *identity[MOST]; /* records */
    uint64_t raw_bytes[MOST];
    bool present[MOST];
    uint64_t entries;
    struct lmc_hash digest[MOST];
    const unsigned char *link[MOST]; /* frames of links */
    size_t link_bytes[MOST];
};

static bool shape_of(const unsigned char *record, uint64_t shape[LMC_MAX_DIMS], uint64_t *raw_bytes)
{
    uint64_t n = record == NULL ? 0 : lmc_dtype_size(record[1]);
    if (n == 0 || record[2] > LMC_MAX_DIMS)
        return false;
    memcpy(shape, record + sizeof(struct lmcs_archive_identity_df), record[2] * sizeof *shape);
    for (unsigned i = 0; i < record[2]; i++)
        if (__builtin_mul_overflow(n, shape[i], &n))
            return false;
    *raw_bytes = n;
    return true;
}

static void seal_identity(struct sealer *sealer, const unsigned char *payload, uint32_t bytes)
{
    uint64_t i = ++sealer->end.identities, shape[LMC_MAX_DIMS];
    if (i >= MOST || bytes < 8 || bytes < 8 + 8 * (uint64_t)payload[2])
        return;
    sealer->identity[i] = payload;
    if (!shape_of(payload, shape, &sealer->raw_bytes[i]))
        sealer->identity[i] = NULL;
}

/* `data`: the record after the content's (a link's output: the link's). `data_bytes` 0: none or several. */
static struct lmc_hash digest_of(const struct sealer *sealer, const struct lmcs_archive_content_df *df,
                                 const unsigned char *data, uint64_t data_bytes)
{
    const unsigned char *record = sealer->identity[df->identity];
    uint64_t shape[LMC_MAX_DIMS], raw_bytes;
    struct lmc_hash digest = {df->digest_low, df->digest_high}, block;
    struct lmc_frame frame;
    if (!shape_of(record, shape, &raw_bytes))
        return digest;
    if (df->payload == LMCS_PAYLOAD_RAW && raw_bytes == data_bytes && raw_bytes <= LMC_BLOCK_BYTES) {
        block = lmc_hash128(data, raw_bytes);
        return lmc_digest(record[1], record[2], shape, &block, raw_bytes > 0);
    }
    if (df->payload == LMCS_PAYLOAD_FRAME && lmc_frame_parse(data, data_bytes, &frame, NULL) == LMC_OK &&
        lmc_frame_digest(&frame, record[1], record[2], shape, &digest) != LMC_OK)
        digest = (struct lmc_hash){0, 0};
    if (df->payload == LMCS_PAYLOAD_LINK && lmc_frame_parse(data, data_bytes, &frame, NULL) == LMC_OK &&
        frame.predictor != 0 && !lmcs_link_digest(&frame, record[2], shape, &digest))
        digest = (struct lmc_hash){0, 0};
    if (df->payload == LMCS_PAYLOAD_LINKED && lmc_frame_parse(data, data_bytes, &frame, NULL) == LMC_OK &&
        lmc_link_digest(&frame, df->output, record[2], shape, &digest) != LMC_OK)
        digest = (struct lmc_hash){0, 0};
    return digest;
}

static void seal_content(struct sealer *sealer, unsigned char *payload, uint32_t bytes, const unsigned char *end)
{
    uint64_t i = ++sealer->end.contents, base = 0, stored_bytes = 0;
    struct lmcs_archive_content_df df;
    const unsigned char *frame;
    struct lmcs_archive_record_df next;
    unsigned char *data = payload + bytes;
    size_t data_bytes = 0, records = 0;
    if (bytes < sizeof df || i >= MOST || (sealer->flags & LEAVE_SIZES))
        return;
    memcpy(&df, payload, sizeof df);
    for (unsigned char *at = data; (size_t)(end - at) >= HEADER; at += HEADER + next.bytes, records++) {
        memcpy(&next, at, sizeof next);
        if (next.type != LMCS_ARCHIVE_DATA || next.bytes > (size_t)(end - at) - HEADER)
            break;
        stored_bytes += next.bytes;
        data_bytes = next.bytes;
    }
    df.stored_bytes = stored_bytes;
    if (records != 1)
        data_bytes = 0;
    data += data_bytes > 0 ? HEADER : 0;
    bool is_frame = df.payload == LMCS_PAYLOAD_FRAME || df.payload == LMCS_PAYLOAD_LINK;
    for (size_t k = 0; k < df.base_count && bytes >= sizeof df + (k + 1) * sizeof base; k++) {
        memcpy(&base, payload + sizeof df + k * sizeof base, sizeof base);
        if (is_frame && data_bytes >= 64 + 16 * (k + 1) && base > 0 && base < i)
            memcpy(data + 64 + 16 * k, &sealer->digest[base], sizeof *sealer->digest);
    }
    if (is_frame && data_bytes >= 80)
        seal_frame(data, data_bytes);
    sealer->link[i] = df.payload == LMCS_PAYLOAD_LINK && data_bytes > 0 ? data : NULL;
    sealer->link_bytes[i] = data_bytes;
    frame = data;
    if (df.payload == LMCS_PAYLOAD_LINKED && base > 0 && base < i && sealer->link[base] != NULL) {
        frame = sealer->link[base];
        data_bytes = sealer->link_bytes[base];
    }
    if (df.identity > 0 && df.identity <= sealer->end.identities && df.identity < MOST) {
        df.raw_bytes = sealer->raw_bytes[df.identity];
        struct lmc_hash digest = digest_of(sealer, &df, frame, data_bytes);
        df.digest_low = digest.low;
        df.digest_high = digest.high;
    }
    sealer->digest[i] = (struct lmc_hash){df.digest_low, df.digest_high};
    memcpy(payload, &df, sizeof df);
}

/* The size follows from the identity. */
static void seal_known(struct sealer *sealer, unsigned char *payload, uint32_t bytes)
{
    uint64_t i = ++sealer->end.contents;
    struct lmcs_archive_known_df df;
    if (bytes < sizeof df || i >= MOST || (sealer->flags & LEAVE_SIZES))
        return;
    memcpy(&df, payload, sizeof df);
    if (df.identity > 0 && df.identity <= sealer->end.identities && df.identity < MOST)
        df.raw_bytes = sealer->raw_bytes[df.identity];
    sealer->digest[i] = (struct lmc_hash){df.digest_low, df.digest_high};
    memcpy(payload, &df, sizeof df);
}

static void seal_snapshot(struct sealer *sealer, const unsigned char *payload, uint32_t bytes)
{
    struct lmcs_archive_snapshot_df df;
    sealer->end.snapshots++;
    if (bytes < sizeof df)
        return;
    memcpy(&df, payload, sizeof df);
    if ((df.flags & LMCS_ARCHIVE_CHANGES) == 0) {
        memset(sealer->present, 0, sizeof sealer->present);
        sealer->entries = 0;
    }
}

static void seal_entries(struct sealer *sealer, const unsigned char *payload, uint32_t bytes)
{
    struct lmcs_archive_entry_df entry;
    for (uint32_t at = 0; at + sizeof entry <= bytes; at += sizeof entry) {
        memcpy(&entry, payload + at, sizeof entry);
        if (entry.identity >= MOST)
            continue;
        sealer->entries += (uint64_t)(entry.content != 0) - sealer->present[entry.identity];
        sealer->present[entry.identity] = entry.content != 0;
    }
}

static void seal_payload(struct sealer *sealer, uint32_t type, unsigned char *payload, uint32_t bytes,
                         const unsigned char *end)
{
    switch (type) {
    case LMCS_ARCHIVE_SHELF:
        sealer->end.shelves++;
        break;
    case LMCS_ARCHIVE_SNAPSHOT:
        seal_snapshot(sealer, payload, bytes);
        break;
    case LMCS_ARCHIVE_IDENTITY:
        seal_identity(sealer, payload, bytes);
        break;
    case LMCS_ARCHIVE_CONTENT:
        seal_content(sealer, payload, bytes, end);
        break;
    case LMCS_ARCHIVE_KNOWN:
        seal_known(sealer, payload, bytes);
        break;
    case LMCS_ARCHIVE_ENTRIES:
        seal_entries(sealer, payload, bytes);
        break;
    case LMCS_ARCHIVE_SNAPSHOT_END:
        if (bytes == sizeof sealer->entries && (sealer->flags & LEAVE_COUNTS) == 0)
            memcpy(payload, &sealer->entries, sizeof sealer->entries);
        break;
    case LMCS_ARCHIVE_TAG:
        sealer->end.tags++;
        break;
    case LMCS_ARCHIVE_END:
        if (bytes == sizeof sealer->end && (sealer->flags & LEAVE_COUNTS) == 0) {
            struct lmc_hash hash = lmc_hasher_final(&sealer->headers);
            sealer->end.hash_low = hash.low;
            sealer->end.hash_high = hash.high;
            memcpy(payload, &sealer->end, sizeof sealer->end);
        }
        break;
    default:
        break;
    }
}

static void seal_archive(unsigned char *data, size_t bytes)
{
    struct sealer *sealer = aligned_alloc(64, (sizeof *sealer + 63) & ~(size_t)63);
    struct lmcs_archive_head_df head;
    REQUIRE(sealer != NULL, NULL);
    memset(sealer, 0, sizeof *sealer);
    sealer->flags = data[FLAGS_AT];
    memcpy(&head, data, sizeof head);
    head.check = lmc_hash64(&head, offsetof(struct lmcs_archive_head_df, check), 0);
    memcpy(data, &head, sizeof head);
    lmc_hasher_init(&sealer->headers);
    lmc_hasher_update(&sealer->headers, data, sizeof head);
    for (size_t at = sizeof head; bytes - at >= HEADER;) {
        struct lmcs_archive_record_df record;
        memcpy(&record, data + at, sizeof record);
        unsigned char *payload = data + at + sizeof record;
        uint64_t number = sealer->end.records, left = bytes - at - sizeof record;
        if (record.bytes <= left) {
            seal_payload(sealer, record.type, payload, record.bytes, data + bytes);
            record.payload_check = lmc_hash64(payload, record.bytes, number);
        }
        record.check = lmc_hash64(&record, offsetof(struct lmcs_archive_record_df, check), number);
        memcpy(data + at, &record, sizeof record);
        lmc_hasher_update(&sealer->headers, &record, sizeof record);
        sealer->end.records++;
        if (record.bytes > left)
            break;
        at += sizeof record + record.bytes;
    }
    free(sealer);
}

/* ---- Changing records, so that the rest of the archive stays in place ---- */

struct spots {
    size_t at[MOST + 1]; /* starts of records, and the end */
    size_t count;
};

static void find_records(const uint8_t *bytes, size_t count, struct spots *spots)
{
    struct lmcs_archive_record_df record;
    spots->count = 0;
    spots->at[0] = HEAD;
    for (size_t at = HEAD; count - at >= HEADER && spots->count < MOST;) {
        memcpy(&record, bytes + at, sizeof record);
        if (record.bytes > count - at - HEADER)
            return;
        at += HEADER + record.bytes;
        spots->at[++spots->count] = at;
    }
}

/* Replaces the bytes from `at` to `end`; returns the new size, or `count` if there is no room. */
static size_t replace(uint8_t *bytes, size_t count, size_t most, size_t at, size_t end, const uint8_t *from,
                      size_t from_bytes)
{
    size_t now = count - (end - at) + from_bytes;
    if (now > most)
        return count;
    memmove(bytes + at + from_bytes, bytes + end, count - end);
    memcpy(bytes + at, from, from_bytes);
    return now;
}

#define PAYLOAD_BYTES 4096u

static size_t change_payload(uint8_t *bytes, size_t count, size_t most, size_t at, size_t end)
{
    uint8_t record[HEADER + PAYLOAD_BYTES];
    size_t payload_bytes = end - at - HEADER;
    if (payload_bytes > PAYLOAD_BYTES)
        return LLVMFuzzerMutate(bytes, count, most);
    memcpy(record, bytes + at, end - at);
    uint32_t now = (uint32_t)LLVMFuzzerMutate(record + HEADER, payload_bytes, PAYLOAD_BYTES);
    memcpy(record + offsetof(struct lmcs_archive_record_df, bytes), &now, sizeof now);
    return replace(bytes, count, most, at, end, record, HEADER + now);
}

/* Ids and sizes are small. */
static size_t nudge(uint8_t *bytes, size_t count, size_t at, size_t end, unsigned random)
{
    size_t width = random & 64 ? 8 : 4, places = (end - at - HEADER) / width;
    uint64_t field = 0;
    if (places == 0)
        return count;
    uint8_t *place = bytes + at + HEADER + width * (random / 256 % places);
    memcpy(&field, place, width);
    field += (uint64_t)(random % 7) - 3;
    memcpy(place, &field, width);
    return count;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed)
{
    static struct spots spots;
    uint8_t copy[HEADER + PAYLOAD_BYTES];
    if (count <= HEAD)
        return LLVMFuzzerMutate(bytes, count, most);
    find_records(bytes, count, &spots);
    unsigned random = seed * 2654435761u >> 8;
    if (spots.count == 0 || seed % 16 == 0)
        return LLVMFuzzerMutate(bytes, count, most);
    size_t i = random % spots.count, k = random / 4099 % spots.count, at = spots.at[i], end = spots.at[i + 1];
    size_t bytes_k = spots.at[k + 1] - spots.at[k];
    switch (seed % 16) {
    case 1:
        bytes[FLAGS_AT] ^= (uint8_t)(1u << random % 4);
        return count;
    case 2:
        return replace(bytes, count, most, at, end, copy, 0);
    case 3:
    case 4: /* in front, or in its place */
        if (bytes_k > sizeof copy)
            return count;
        memcpy(copy, bytes + spots.at[k], bytes_k);
        return replace(bytes, count, most, at, seed % 16 == 3 ? at : end, copy, bytes_k);
    case 5:
        bytes[at] = (uint8_t)(random / 64 % (LMCS_ARCHIVE_TYPES + 2));
        return count;
    case 6:
    case 7:
    case 8:
    case 9:
        return nudge(bytes, count, at, end, random);
    default:
        return change_payload(bytes, count, most, at, end);
    }
}

/* ---- Restoring ---- */

static int file_of(const uint8_t *bytes, size_t count, bool through_pipe)
{
    int ends[2];
    if (through_pipe && count <= 65536) {
        REQUIRE(pipe(ends) == 0 && write(ends[1], bytes, count) == (ssize_t)count, NULL);
        close(ends[1]);
        return ends[0];
    }
    int fd = memfd_create("archive", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, bytes, count) == (ssize_t)count && lseek(fd, 0, SEEK_SET) == 0, NULL);
    return fd;
}

/* Has a snapshot on a shelf of the corpus. */
static struct lmcs_pool *make_pool(void)
{
    const uint64_t shape = 3;
    const struct lmcs_tensor tensor = {.name = "x", .dtype = LMC_U8, .ndim = 1, .shape = &shape};
    const void *data = "\1\2\3";
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    struct lmcs_error error;
    struct lmcs_pool *pool = fuzz_new_pool();
    lmcs_commit_options_init(&options);
    options.step = 7;
    options.parent = UINT64_MAX;
    options.time_ns = 1700000000000000000u;
    REQUIRE(lmcs_capture_begin(pool, "s", &capture, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_capture_put(capture, &tensor, &data, 1, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_capture_commit(capture, &options, NULL, &error) == LMCS_OK, &error);
    return pool;
}

struct names {
    char names[64][LMCS_MAX_NAME + 1];
    size_t count;
};

static bool add_name(void *context, const struct lmcs_shelf_info *info)
{
    struct names *names = context;
    memcpy(names->names[names->count++], info->name, sizeof info->name);
    return names->count < 64;
}

/* As if captured. */
static void expect_valid(struct lmcs_snapshot *snapshot)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    struct lmcs_commit_options options;
    struct lmcs_error error;
    char *text = NULL;
    lmcs_commit_options_init(&options);
    options.meta_json = info->meta_json;
    options.metrics = info->metrics;
    options.metric_count = info->metric_count;
    REQUIRE(lmcs_meta_encode(&options, &text, &error) == LMCS_OK, &error);
    free(text);
}

static void expect_all_valid(struct lmcs_pool *pool)
{
    static struct names names;
    struct lmcs_snapshot *snapshot;
    struct lmcs_error error;
    char which[32];
    names.count = 0;
    REQUIRE(lmcs_shelf_list(pool, add_name, &names, &error) == LMCS_OK, &error);
    for (size_t i = 0; i < names.count; i++) {
        uint64_t numbers[64];
        size_t count;
        REQUIRE(lmcs_snapshot_numbers(pool, names.names[i], 1, numbers, 64, &count, &error) == LMCS_OK, &error);
        for (size_t k = 0; k < count; k++) {
            snprintf(which, sizeof which, "%llu", (unsigned long long)numbers[k]);
            REQUIRE(lmcs_snapshot_find(pool, names.names[i], which, &snapshot, &error) == LMCS_OK, &error);
            expect_valid(snapshot);
            lmcs_snapshot_close(snapshot);
        }
    }
}

/* Also after compaction, and another pool accepts its archive. */
static void expect_sound(struct lmcs_pool *pool)
{
    struct lmcs_transfer_report report, again;
    struct lmcs_pool_info info;
    struct lmcs_error error;
    fuzz_verify(pool);
    expect_all_valid(pool);
    int fd = memfd_create("archive", MFD_CLOEXEC);
    REQUIRE(fd >= 0, NULL);
    REQUIRE(lmcs_dump(pool, NULL, fd, NULL, &report, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_compact(pool, NULL, &error) == LMCS_OK, &error);
    fuzz_verify(pool);
    fuzz_close(pool);
    pool = fuzz_new_pool();
    REQUIRE(lseek(fd, 0, SEEK_SET) == 0, NULL);
    REQUIRE(lmcs_restore(pool, fd, NULL, &again, &error) == LMCS_OK, &error);
    REQUIRE(again.snapshots == report.snapshots && again.contents == report.contents, NULL);
    fuzz_verify(pool);
    REQUIRE(lmcs_pool_info(pool, &info, &error) == LMCS_OK && info.snapshot_count == report.snapshots, &error);
    close(fd);
    fuzz_close(pool);
}

/* A whole archive must restore, except metadata, which a list doesn't need. */
static bool is_whole(int fd)
{
    struct lmcs_error error;
    enum lmcs_status status = lmcs_archive_verify(fd, NULL, NULL, &error);
    REQUIRE(status == LMCS_OK || status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED, &error);
    REQUIRE(lseek(fd, 0, SEEK_SET) == 0, NULL);
    return status == LMCS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static struct lmcs_pool *pool;
    struct lmcs_pool_info before, after;
    struct lmcs_error error = {.message = ""};
    unsigned flags = count > FLAGS_AT ? bytes[FLAGS_AT] : LEAVE_ALL;
    unsigned char *copy = malloc(count + 1);
    REQUIRE(copy != NULL, NULL);
    memcpy(copy, bytes, count);
    if (count >= HEAD && (flags & LEAVE_ALL) == 0)
        seal_archive(copy, count);
    if (pool == NULL)
        pool = make_pool();
    REQUIRE(lmcs_pool_info(pool, &before, &error) == LMCS_OK, &error);
    int fd = file_of(copy, count, flags & THROUGH_PIPE);
    bool verified = (flags & THROUGH_PIPE) == 0 && is_whole(fd);
    enum lmcs_status status = lmcs_restore(pool, fd, NULL, NULL, &error);
    close(fd);
    REQUIRE(status != LMCS_DAMAGED || !verified || strstr(error.message, "meta") != NULL, &error);
    free(copy);
    if (status == LMCS_OK) {
        expect_sound(pool);
        pool = NULL;
        return 0;
    }
    REQUIRE(status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED || status == LMCS_FULL || status == LMCS_EXISTS ||
                status == LMCS_NOT_FOUND,
            &error);
    REQUIRE(lmcs_pool_info(pool, &after, &error) == LMCS_OK, &error);
    REQUIRE(after.shelf_count == before.shelf_count && after.snapshot_count == before.snapshot_count &&
                after.content_count == before.content_count,
            NULL);
    if (after.epoch > 10000) {
        fuzz_verify(pool);
        fuzz_close(pool);
        pool = NULL;
    }
    return 0;
}
