/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_heap.c - fuzz target for pools whose libpmemobj data was changed.
 *
 * A byte of flags, then changes to the pool's header, lanes, heap header, chunk headers, the root object's run and
 * object headers; checksums are corrected unless excluded. A writer must be refused, or every bit survive captures,
 * pruning and compaction.
 */
#include "image.h"

#include "media/pmemobj_layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

enum { LEAVE_CHECKS = 1, LARGE = 2 /* takes a larger object */ };

/* ---- libpmemobj's places and checksums ---- */

struct part {
    uint64_t at;
    uint64_t bytes;
};

static struct part parts[64];
static size_t part_count;
static uint64_t heap_at, lanes_at;
static struct lmc_hash digests[2]; /* of snapshots that stay */
static const char *const kept[2] = {"run@4", "wide@1"};

#define HEADER_SUMMED  2048u /* of the pool's header; later bytes change while open */
#define HEADER_CHECK   4088u
#define DESCRIPTOR     4096u
#define DESCRIPTOR_SUM 2048u
#define HEAP_CHECK     (LMCS_HEAP_HEADER_BYTES - 8)
#define LANES_CHANGED  4u /* the used ones */
#define CHUNKS_CHANGED 64u
static const uint32_t log_at[LMCS_LANE_LOGS] = {0, 256, 960};

/* 32-bit words; the one at `check` and all from `summed` on count as zero. */
static uint64_t fletcher(uint64_t at, uint64_t bytes, uint64_t check, uint64_t summed)
{
    uint32_t low = 0, high = 0;
    for (uint64_t i = 0; i < bytes; i += 4) {
        uint32_t word;
        memcpy(&word, image.map + at + i, 4);
        low += (i >= check && i < check + 8) || i >= summed ? 0 : word;
        high += low;
    }
    return (uint64_t)high << 32 | low;
}

static void seal_at(uint64_t at, uint64_t bytes, uint64_t check)
{
    uint64_t sum = fletcher(at, bytes, check, at == 0 ? HEADER_SUMMED : bytes);
    memcpy(image.map + at + check, &sum, sizeof sum);
}

/* Covers the entries. */
static void seal_log(uint64_t at, uint64_t room)
{
    uint64_t bytes = sizeof(struct lmcs_log_df), place;
    for (; bytes < sizeof(struct lmcs_log_df) + room; bytes += sizeof(struct lmcs_log_entry_df)) {
        memcpy(&place, image.map + at + bytes, sizeof place);
        if (place == 0)
            break;
    }
    if (bytes > sizeof(struct lmcs_log_df))
        seal_at(at, bytes, 0);
}

static void seal_all(void)
{
    seal_at(0, LMCS_PAGE_BYTES, HEADER_CHECK);
    seal_at(DESCRIPTOR, DESCRIPTOR_SUM, DESCRIPTOR_SUM - 8);
    seal_at(heap_at, LMCS_HEAP_HEADER_BYTES, HEAP_CHECK);
    for (unsigned lane = 0; lane < LANES_CHANGED; lane++) {
        seal_log(lanes_at + lane * LMCS_LANE_BYTES + log_at[0], 192);
        seal_log(lanes_at + lane * LMCS_LANE_BYTES + log_at[1], 640);
    }
}

static void add_part(uint64_t at, uint64_t bytes)
{
    REQUIRE(part_count < sizeof parts / sizeof *parts, NULL);
    parts[part_count++] = (struct part){at, bytes};
}

static uint64_t word_at(uint64_t at)
{
    uint64_t word;
    memcpy(&word, image.map + at, sizeof word);
    return word;
}

static void find_parts(void)
{
    heap_at = word_at(LMCS_POBJ_HEAP);
    lanes_at = word_at(LMCS_POBJ_LANES);
    uint64_t zone = heap_at + LMCS_HEAP_HEADER_BYTES;
    add_part(0, HEADER_SUMMED);
    add_part(DESCRIPTOR + 1024, 64);
    add_part(LMCS_POBJ_ROOT, sizeof(struct lmcs_pobj_root_df));
    add_part(heap_at, 64);
    add_part(zone, 16);
    add_part(zone + LMCS_ZONE_HEADER_BYTES, CHUNKS_CHANGED * sizeof(struct lmcs_chunk_df));
    for (unsigned lane = 0; lane < LANES_CHANGED; lane++)
        for (unsigned log = 0; log < LMCS_LANE_LOGS; log++)
            add_part(lanes_at + lane * LMCS_LANE_BYTES + log_at[log], 160);
    for (uint32_t i = 0; i < LMCS_ZONE_CHUNKS && part_count < sizeof parts / sizeof *parts;) {
        struct lmcs_chunk_df chunk;
        uint64_t at = zone + LMCS_ZONE_META_BYTES + i * LMCS_CHUNK_BYTES;
        memcpy(&chunk, image.map + zone + LMCS_ZONE_HEADER_BYTES + i * sizeof chunk, sizeof chunk);
        if (chunk.type == LMCS_CHUNK_RUN)
            add_part(at, 512);
        else if (chunk.type == LMCS_CHUNK_USED)
            add_part(at, LMCS_OBJECT_HEADER_BYTES);
        i += chunk.chunks > 0 ? chunk.chunks : LMCS_ZONE_CHUNKS;
    }
    add_part(word_at(LMCS_POBJ_ROOT) - LMCS_OBJECT_HEADER_BYTES, LMCS_OBJECT_HEADER_BYTES);
}

/* ---- Changes ---- */

static void change(const uint8_t *bytes)
{
    uint16_t where;
    uint64_t value, old = 0;
    memcpy(&where, bytes + 2, 2);
    memcpy(&value, bytes + 6, 8);
    const struct part *part = &parts[bytes[0] % part_count];
    size_t width = (size_t)1 << bytes[5] % 4u;
    unsigned char *at = image.map + part->at + where % (part->bytes / width) * width;
    memcpy(&old, at, width);
    const struct part *other = &parts[(value >> 32) % part_count];
    switch (bytes[4] % 6) {
    case 1:
        value += old;
        break;
    case 2:
        value ^= old;
        break;
    case 3:
        value = image_number(value);
        break;
    case 4: /* of libpmemobj or the root word, with a log operation */
        value = (bytes[1] & 1 ? word_at(LMCS_POBJ_ROOT) + offsetof(struct lmcs_superblock_df, root)
                              : other->at + value % other->bytes / 8 * 8) |
                (uint64_t)(bytes[1] >> 5) << 61;
        break;
    case 5:
        memcpy(&value, image.map + other->at + value % (other->bytes - 7), sizeof value);
        break;
    default:
        break;
    }
    memcpy(at, &value, width);
}

/* ---- The right result ---- */

static void digest_of(struct lmcs_pool *pool, const char *address, struct lmc_hash *digest)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_error error;
    REQUIRE(lmcs_snapshot_open(pool, address, &snapshot, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_snapshot_digest(snapshot, digest, &error) == LMCS_OK, &error);
    lmcs_snapshot_close(snapshot);
}

static void require_all(struct lmcs_pool *pool)
{
    struct lmc_hash digest;
    fuzz_verify(pool);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        digest_of(pool, kept[i], &digest);
        REQUIRE(memcmp(&digest, &digests[i], sizeof digest) == 0, NULL);
    }
}

/* Only lack of room or snapshots. */
static void require_done(enum lmcs_status status, const struct lmcs_error *error)
{
    REQUIRE(status == LMCS_OK || status == LMCS_FULL || status == LMCS_NOT_FOUND, error);
}

static void write_much(struct lmcs_pool *pool, bool large)
{
    static unsigned char data[3 << 20];
    const uint64_t shape = large ? sizeof data : 100000;
    const struct lmcs_tensor tensor = {.name = "new", .dtype = LMC_U8, .ndim = 1, .shape = &shape};
    struct lmcs_capture *capture;
    struct lmcs_error error;
    for (unsigned i = 0; i < 2; i++) {
        const void *pointer = data;
        data[i] = (unsigned char)(i + 1);
        REQUIRE(lmcs_capture_begin(pool, "new", &capture, &error) == LMCS_OK, &error);
        enum lmcs_status status = lmcs_capture_put(capture, &tensor, &pointer, 1, &error);
        require_done(status, &error);
        if (status == LMCS_OK)
            require_done(lmcs_capture_commit(capture, NULL, NULL, &error), &error);
        else
            lmcs_capture_abort(capture);
    }
    require_done(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &error), &error);
    require_done(lmcs_snapshot_remove(pool, "new", 1, false, NULL, &error), &error);
    require_done(lmcs_compact(pool, NULL, &error), &error);
}

static void make(void)
{
    image_make();
    find_parts();
    struct lmcs_pool *pool = fuzz_open(LMCS_OPEN_READ);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        digest_of(pool, kept[i], &digests[i]);
    fuzz_close(pool);
    seal_all(); /* no change */
    REQUIRE(memcmp(image.map, image_original(0), 2 * LMCS_PAGE_BYTES) == 0, NULL);
    REQUIRE(memcmp(image.map + heap_at, image_original((off_t)heap_at), LMCS_HEAP_HEADER_BYTES) == 0, NULL);
}

static bool open_to_write(struct lmcs_pool **pool)
{
    struct lmcs_open_options options;
    struct lmcs_error error;
    lmcs_open_options_init(&options);
    options.threads = 1;
    options.flags = LMCS_NO_BACKGROUND;
    enum lmcs_status status = lmcs_pool_open(fuzz_place.pool, LMCS_OPEN_WRITE, &options, pool, &error);
    REQUIRE(status == LMCS_OK || status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED, &error);
    return status == LMCS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct lmcs_pool *pool;
    struct lmcs_error error;
    if (image.map == NULL)
        make();
    unsigned flags = count > 0 ? bytes[0] : 0;
    for (size_t at = 1; at + IMAGE_CHANGE_BYTES <= count; at += IMAGE_CHANGE_BYTES)
        change(bytes + at);
    if ((flags & LEAVE_CHECKS) == 0)
        seal_all();
    if (open_to_write(&pool)) {
        write_much(pool, flags & LARGE);
        require_all(pool);
        fuzz_close(pool);
        pool = fuzz_open(LMCS_OPEN_READ);
        require_all(pool);
        REQUIRE(lmcs_pool_close(pool, &error) == LMCS_OK, &error);
    }
    image_restore_all();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed)
{
    return image_mutate(bytes, count, most, 1, seed);
}
