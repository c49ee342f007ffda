/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_pool.c - fuzz target for pools whose own pages were changed.
 *
 * Two bytes of flags, then changes as in image.h; checksums are corrected unless excluded. Calls may be refused, but
 * must not crash, hang or read out of bounds.
 */
#include "image.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/*
 * First byte: the writer's actions (none: all). Highest bits: whether to write, whether wrong checksums stay; both
 * rare, because a writer takes ten times as long and wrong checksums are found at once.
 */
enum { WRITE_CAPTURE = 1, WRITE_PRUNE = 2, WRITE_COMPACT = 4, WRITE_VERIFY = 8, WRITE = 64, LEAVE = 128 };
#define MODE      (WRITE | LEAVE)
#define WRITE_ALL (WRITE_CAPTURE | WRITE_PRUNE | WRITE_COMPACT | WRITE_VERIFY)
/* Second byte: a way of reading, or with the second highest bit all; the first shelf, or with the highest all. */
enum { READ_VIEWS, READ_TENSORS, READ_DIGESTS, READ_LISTS, READ_VERIFY, READ_DUMP, READ_EXPORT, READ_NOTHING };
enum { READ_EVERY_WAY = 64, READ_ALL_SHELVES = 128 };
#define HEADER_BYTES 2u

/* ---- Reading ---- */

static bool reads(unsigned ways, unsigned way)
{
    return (ways & READ_EVERY_WAY) != 0 || ways % 8 == way;
}

static bool is_fine(enum lmcs_status status, const struct lmcs_error *error)
{
    REQUIRE(status != LMCS_IO && status != LMCS_CANCELLED && status <= LMCS_CANCELLED, error);
    REQUIRE(status == LMCS_OK || strnlen(error->message, sizeof error->message) - 1 < sizeof error->message - 1, error);
    return status == LMCS_OK;
}

struct names {
    char names[16][LMCS_MAX_NAME + 1];
    size_t count;
};

static bool add_name(void *context, const struct lmcs_shelf_info *info)
{
    struct names *names = context;
    memcpy(names->names[names->count++], info->name, sizeof info->name);
    return names->count < 16;
}

static bool visit_tag(void *context, const char *tag)
{
    return ++*(size_t *)context < 100 && strlen(tag) > 0;
}

static uint64_t sum_of(const unsigned char *data, uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes; i += 61)
        sum += data[i];
    return sum + (bytes > 0 ? data[bytes - 1] : 0);
}

struct entries {
    struct {
        char name[64];
        uint32_t kind;
        uint64_t bytes;
    } few[8];
    size_t count;
    uint64_t sum;
};

static bool visit_entry(void *context, const struct lmcs_entry *entry)
{
    struct entries *entries = context;
    entries->sum += strlen(entry->tensor.name) + entry->raw_bytes;
    for (uint32_t i = 0; i < entry->tensor.ndim; i++)
        entries->sum += entry->tensor.shape[i];
    if (entries->count < 8 && strlen(entry->tensor.name) < 64 && entry->raw_bytes < (1u << 20)) {
        strcpy(entries->few[entries->count].name, entry->tensor.name);
        entries->few[entries->count].kind = entry->tensor.kind;
        entries->few[entries->count++].bytes = entry->raw_bytes;
    }
    return true;
}

static void read_view(struct lmcs_snapshot *snapshot, uint32_t flags)
{
    struct lmcs_view *view;
    struct lmcs_error error;
    uint64_t sum = 0;
    if (!is_fine(lmcs_view_open(snapshot, NULL, NULL, 0, flags, &view, &error), &error))
        return;
    for (size_t i = 0; i < lmcs_view_count(view); i++)
        sum += sum_of(lmcs_view_data(view, i), lmcs_view_entry(view, i)->raw_bytes);
    lmcs_view_close(view);
    REQUIRE(sum != 0xfeedbeef, NULL);
}

static void read_tensors(struct lmcs_snapshot *snapshot)
{
    struct entries entries = {.count = 0};
    struct lmcs_error error;
    if (!is_fine(lmcs_snapshot_entries(snapshot, visit_entry, &entries, &error), &error))
        return;
    for (size_t i = 0; i < entries.count; i++) {
        unsigned char *room = malloc(entries.few[i].bytes + 1);
        REQUIRE(room != NULL, NULL);
        is_fine(
            lmcs_snapshot_read(snapshot, entries.few[i].kind, entries.few[i].name, room, entries.few[i].bytes, &error),
            &error);
        free(room);
    }
}

static void read_snapshot(struct lmcs_pool *pool, const char *shelf, uint64_t number, unsigned ways)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_snapshot_storage storage;
    struct lmcs_error error;
    struct lmc_hash digest;
    char which[32];
    size_t tags = 0;
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    if (!is_fine(lmcs_snapshot_find(pool, shelf, which, &snapshot, &error), &error))
        return;
    if (reads(ways, READ_LISTS)) {
        is_fine(lmcs_snapshot_tags(snapshot, visit_tag, &tags, &error), &error);
        is_fine(lmcs_snapshot_storage(snapshot, &storage, &error), &error);
    }
    if (reads(ways, READ_DIGESTS))
        is_fine(lmcs_snapshot_digest(snapshot, &digest, &error), &error);
    if (reads(ways, READ_VIEWS))
        read_view(snapshot, number % 2 == 0 ? 0 : LMCS_VIEW_VERIFY | LMCS_VIEW_PRIVATE);
    if (reads(ways, READ_TENSORS))
        read_tensors(snapshot);
    if (reads(ways, READ_EXPORT))
        is_fine(lmcs_export_safetensors(snapshot, NULL, fuzz_place.file, NULL, NULL, &error), &error);
    lmcs_snapshot_close(snapshot);
}

static void read_shelf(struct lmcs_pool *pool, const char *shelf, unsigned ways)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_error error;
    uint64_t numbers[16];
    size_t count;
    if (is_fine(lmcs_snapshot_find(pool, shelf, "a", &snapshot, &error), &error))
        lmcs_snapshot_close(snapshot);
    is_fine(lmcs_snapshot_steps(pool, shelf, 3, 1, numbers, 16, &count, &error), &error);
    if (is_fine(lmcs_snapshot_numbers(pool, shelf, 1, numbers, 16, &count, &error), &error))
        for (size_t i = 0; i < count; i++)
            read_snapshot(pool, shelf, numbers[i], ways);
}

static void read_pool(struct lmcs_pool *pool, unsigned ways)
{
    static struct names names;
    struct lmcs_pool_info info;
    struct lmcs_error error;
    names.count = 0;
    if (reads(ways, READ_LISTS))
        is_fine(lmcs_pool_info(pool, &info, &error), &error);
    is_fine(lmcs_shelf_list(pool, add_name, &names, &error), &error);
    for (size_t i = 0; i < ((ways & READ_ALL_SHELVES) ? names.count : names.count > 0); i++)
        read_shelf(pool, names.names[i], ways);
    if (reads(ways, READ_VERIFY))
        is_fine(lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &error), &error);
    if (reads(ways, READ_DUMP)) {
        int fd = memfd_create("archive", MFD_CLOEXEC);
        is_fine(lmcs_dump(pool, NULL, fd, NULL, NULL, &error), &error);
        close(fd);
    }
}

/* ---- Writing ---- */

static bool try_open(enum lmcs_open_mode mode, struct lmcs_pool **pool)
{
    struct lmcs_open_options options;
    struct lmcs_error error;
    lmcs_open_options_init(&options);
    options.threads = 1;
    options.flags = LMCS_NO_BACKGROUND;
    return is_fine(lmcs_pool_open(fuzz_place.pool, mode, &options, pool, &error), &error);
}

static void capture(struct lmcs_pool *pool, const char *shelf)
{
    const uint64_t shape = 9000;
    const struct lmcs_tensor tensor = {.name = "w0", .dtype = LMC_U8, .ndim = 1, .shape = &shape};
    static const unsigned char zeros[9000];
    const void *data = zeros;
    struct lmcs_capture *capture;
    struct lmcs_error error;
    if (!is_fine(lmcs_capture_begin(pool, shelf, &capture, &error), &error))
        return;
    if (is_fine(lmcs_capture_put(capture, &tensor, &data, 1, &error), &error))
        is_fine(lmcs_capture_commit(capture, NULL, NULL, &error), &error);
    else
        lmcs_capture_abort(capture);
}

static void write_pool(struct lmcs_pool *pool, unsigned flags)
{
    struct lmcs_error error;
    unsigned what = flags & WRITE_ALL ? flags : WRITE_ALL;
    if (what & WRITE_CAPTURE)
        capture(pool, "run");
    if (what & WRITE_PRUNE) {
        is_fine(lmcs_snapshot_remove(pool, "run", 3, false, NULL, &error), &error);
        is_fine(lmcs_tag_set(pool, "run", "new", 4, &error), &error);
    }
    if (what & WRITE_COMPACT)
        is_fine(lmcs_compact(pool, NULL, &error), &error);
    if (what & WRITE_CAPTURE)
        capture(pool, "new");
    if (what & WRITE_VERIFY)
        is_fine(lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &error), &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct lmcs_pool *pool;
    if (image.map == NULL)
        image_make();
    unsigned flags = count >= HEADER_BYTES ? bytes[0] : 0, ways = count >= HEADER_BYTES ? bytes[1] : 0;
    for (size_t at = HEADER_BYTES; at + IMAGE_CHANGE_BYTES <= count; at += IMAGE_CHANGE_BYTES)
        image_change(bytes + at);
    if ((flags & MODE) != LEAVE)
        image_seal();
    bool writes = (flags & MODE) == WRITE;
    if (!(writes && reads(ways, READ_NOTHING)) && try_open(LMCS_OPEN_READ, &pool)) {
        read_pool(pool, ways);
        fuzz_close(pool);
    }
    if (!writes) {
        image_restore_pages();
        return 0;
    }
    if (try_open(LMCS_OPEN_WRITE, &pool)) {
        write_pool(pool, flags);
        lmcs_pool_close(pool, NULL);
    }
    image_restore_all();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed)
{
    return image_mutate(bytes, count, most, HEADER_BYTES, seed);
}
