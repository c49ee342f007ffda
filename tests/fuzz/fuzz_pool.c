/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_pool.c - fuzz target for pools whose own pages someone has changed.
 *
 * A small pool is made once. An input is a list of changes, each of 14 bytes: a page (u16, by its place in a walk of
 * the trees), a place in it (u16), what to do (u8: set, add or flip), how many bytes (u8) and a value (u64). Checksums
 * are then made right from the leaves up to the root, unless the first byte of the input says otherwise, so that what
 * stands in the pages is what has to be checked. The pool is opened and everything is read. It may be refused anywhere,
 * but nothing may crash, hang or read outside. With another bit of the first byte it is opened for writing, too.
 *
 * What is libpmemobj's own stays as it is: that its log and heap are sound is for libpmemobj to check.
 */
#include "support.h"

#include "layout.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

enum { LEAVE_CHECKS = 1, WRITE = 2 };
#define CHANGE_BYTES 14u
#define ROOT_PLACE   6144 /* where libpmemobj says where the superblock is */

/* ---- The pool as it was made: what of its file is not a hole ---- */

struct piece {
    off_t at;
    size_t bytes;
    unsigned char *data;
};

static struct piece pieces[1024];
static size_t piece_count;
static off_t file_bytes;

static void keep_file(void)
{
    int fd = open(fuzz_place.pool, O_RDONLY | O_CLOEXEC);
    struct stat info;
    REQUIRE(fd >= 0 && fstat(fd, &info) == 0, NULL);
    file_bytes = info.st_size;
    for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0;) {
        off_t end = lseek(fd, at, SEEK_HOLE);
        REQUIRE(piece_count < sizeof pieces / sizeof *pieces, NULL);
        struct piece *piece = &pieces[piece_count++];
        *piece = (struct piece){at, (size_t)(end - at), malloc((size_t)(end - at))};
        REQUIRE(piece->data != NULL && pread(fd, piece->data, piece->bytes, at) == (ssize_t)piece->bytes, NULL);
        at = end;
    }
    close(fd);
}

static void write_file(bool anew)
{
    if (anew)
        unlink(fuzz_place.pool);
    int fd = open(fuzz_place.pool, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0 && ftruncate(fd, file_bytes) == 0, NULL);
    for (size_t i = 0; i < piece_count; i++)
        REQUIRE(pwrite(fd, pieces[i].data, pieces[i].bytes, pieces[i].at) == (ssize_t)pieces[i].bytes, NULL);
    close(fd);
}

/* ---- Its pages ---- */

#define MOST_PAGES 2048u

struct pages {
    unsigned char *map; /* of the whole file */
    uint64_t at[MOST_PAGES];
    bool done[MOST_PAGES]; /* in this pass */
    size_t count;
    bool collecting;
};

static struct pages pages;

static size_t find_page(uint64_t at)
{
    size_t i = 0;
    while (i < pages.count && pages.at[i] != at)
        i++;
    if (i == pages.count && pages.collecting) {
        REQUIRE(i < MOST_PAGES, NULL);
        pages.at[pages.count++] = at;
    }
    return i;
}

static uint64_t seal_node(uint64_t at, unsigned depth);

static void seal_ref(unsigned char *ref_at, unsigned depth)
{
    struct lmcs_ref_df ref;
    memcpy(&ref, ref_at, sizeof ref);
    if (ref.offset == 0 || find_page(ref.offset) == pages.count)
        return;
    ref.check = seal_node(ref.offset, depth + 1);
    memcpy(ref_at, &ref, sizeof ref);
}

/* Payloads are pages to change, too; nothing refers to their checksums but their digests. */
static void collect_parts(const unsigned char *value, size_t bytes)
{
    struct lmcs_content_df df;
    struct lmcs_part_df part;
    memcpy(&df, value, sizeof df);
    for (size_t i = 0; i < df.part_count && sizeof df + (i + 1) * sizeof part <= bytes; i++) {
        memcpy(&part, value + sizeof df + i * sizeof part, sizeof part);
        for (uint64_t at = part.offset & ~(uint64_t)(LMCS_PAGE_BYTES - 1); at < part.offset + part.bytes;
             at += LMCS_PAGE_BYTES)
            find_page(at);
    }
}

static void seal_tree(unsigned char *tree_at, unsigned depth)
{
    seal_ref(tree_at + offsetof(struct lmcs_root_tree_df, ref), depth);
    seal_ref(tree_at + offsetof(struct lmcs_root_tree_df, tail), depth);
}

static void seal_value(const struct lmcs_node_df *node, unsigned char *value, size_t bytes, unsigned depth)
{
    if (node->level > 0 && bytes >= sizeof(struct lmcs_ref_df)) {
        seal_ref(value, depth);
    } else if (node->kind == LMCS_TREE_SHELVES && bytes >= sizeof(struct lmcs_shelf_df)) {
        for (size_t i = 0; i < LMCS_SHELF_TREES; i++)
            seal_tree(value + offsetof(struct lmcs_shelf_df, trees) + i * sizeof(struct lmcs_root_tree_df), depth);
    } else if (node->kind == LMCS_TREE_NUMBERS && bytes >= sizeof(struct lmcs_snapshot_df)) {
        seal_ref(value + offsetof(struct lmcs_snapshot_df, manifest), depth);
    } else if (node->kind == LMCS_TREE_CONTENTS && bytes >= sizeof(struct lmcs_content_df) && pages.collecting) {
        collect_parts(value, bytes);
    }
}

static uint64_t seal_node(uint64_t at, unsigned depth)
{
    unsigned char *page = pages.map + at;
    size_t index = find_page(at);
    struct lmcs_node_df node;
    memcpy(&node, page, sizeof node);
    if (pages.done[index] || depth > 16)
        return node.check;
    pages.done[index] = true;
    for (size_t i = 0; i < node.count && sizeof node + (i + 1) * sizeof(struct lmcs_slot_df) <= LMCS_PAGE_BYTES; i++) {
        struct lmcs_slot_df slot;
        memcpy(&slot, page + sizeof node + i * sizeof slot, sizeof slot);
        size_t value_at = slot.offset + sizeof(struct lmcs_key_df);
        if (value_at + slot.value_bytes <= LMCS_PAGE_BYTES)
            seal_value(&node, page + value_at, slot.value_bytes, depth);
    }
    memset(page + offsetof(struct lmcs_node_df, check), 0, sizeof node.check);
    node.check = lmc_hash64(page, LMCS_PAGE_BYTES, at);
    memcpy(page + offsetof(struct lmcs_node_df, check), &node.check, sizeof node.check);
    return node.check;
}

/* Makes all checksums right; the first time, it finds all pages. */
static void seal_pool(void)
{
    uint64_t at, root_at;
    struct lmcs_superblock_df super;
    memset(pages.done, 0, sizeof pages.done);
    memcpy(&at, pages.map + ROOT_PLACE, sizeof at);
    memcpy(&super, pages.map + at, sizeof super);
    super.check = lmc_hash64(&super, offsetof(struct lmcs_superblock_df, check), 0);
    root_at = (super.root >> 16) * LMCS_PAGE_BYTES;
    uint64_t number = super.root >> 16;
    super.root = number << 16 | (lmc_hash64(&number, sizeof number, 0) & 0xffff);
    memcpy(pages.map + at, &super, sizeof super);
    find_page(at);
    if (find_page(root_at) == pages.count)
        return;
    unsigned char *page = pages.map + root_at;
    for (size_t i = 0; i < LMCS_ROOT_TREES; i++)
        seal_tree(page + offsetof(struct lmcs_root_df, trees) + i * sizeof(struct lmcs_root_tree_df), 0);
    uint64_t check = lmc_hash64(page, offsetof(struct lmcs_root_df, check), root_at);
    memcpy(page + offsetof(struct lmcs_root_df, check), &check, sizeof check);
}

static void map_file(void)
{
    int fd = open(fuzz_place.pool, O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0, NULL);
    pages.map = mmap(NULL, (size_t)file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    REQUIRE(pages.map != MAP_FAILED, NULL);
    close(fd);
}

static void change(const uint8_t *bytes)
{
    uint16_t which, where;
    uint64_t value, old = 0;
    memcpy(&which, bytes, 2);
    memcpy(&where, bytes + 2, 2);
    memcpy(&value, bytes + 6, 8);
    size_t page = which % pages.count, width = 1 + bytes[5] % 8u;
    /* The superblock is not a page of its own. */
    size_t most = page == 0 ? sizeof(struct lmcs_superblock_df) : LMCS_PAGE_BYTES;
    unsigned char *at = pages.map + pages.at[page] + where % (most - width + 1);
    memcpy(&old, at, width);
    value = bytes[4] % 3 == 0 ? value : bytes[4] % 3 == 1 ? old + value : old ^ value;
    memcpy(at, &value, width);
}

/* ---- Making it ---- */

static void take_snapshot(struct lmcs_pool *pool, const char *shelf, unsigned step)
{
    static unsigned char large[70000], data[4096];
    static const char *const tags[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    const struct lmcs_metric metric = {"loss", 0.5};
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    struct lmcs_error error;
    char name[32], meta[3000];
    uint64_t shape[2] = {sizeof data / 4, 1};
    struct lmcs_tensor tensor = {.name = name, .dtype = LMC_F32, .ndim = 1, .shape = shape};
    const void *pointer = data;
    data[step] = (unsigned char)(step + 1);
    large[step] = 1;
    lmcs_commit_options_init(&options);
    snprintf(meta, sizeof meta, "{\"long\":\"%0*d\"}", step == 2 ? 2000 : 3, 1);
    options.step = step;
    options.time_ns = 1700000000000000000u + step;
    options.tags = &tags[step % 8];
    options.tag_count = 1;
    options.metrics = &metric;
    options.metric_count = 1;
    options.meta_json = meta;
    REQUIRE(lmcs_capture_begin(pool, shelf, &capture, &error) == LMCS_OK, &error);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "w%u", i);
        REQUIRE(lmcs_capture_put(capture, &tensor, &pointer, 1, &error) == LMCS_OK, &error);
        data[100 + i]++;
    }
    tensor.ndim = 2; /* small ones, so many that a manifest has several pages */
    tensor.global_shape = (const uint64_t[2]){8, 1};
    tensor.offsets = (const uint64_t[2]){1, 0};
    for (unsigned i = 0; i < 70; i++) {
        snprintf(name, sizeof name, "part.%u", i);
        shape[0] = i % 4;
        REQUIRE(lmcs_capture_put(capture, &tensor, &pointer, 1, &error) == LMCS_OK, &error);
    }
    tensor = (struct lmcs_tensor){.name = "large", .dtype = LMC_U8, .ndim = 1, .shape = shape};
    shape[0] = sizeof large;
    pointer = large;
    if (step > 3)
        REQUIRE(lmcs_capture_put(capture, &tensor, &pointer, 1, &error) == LMCS_OK, &error);
    tensor.kind = LMCS_ATTACHMENT;
    shape[0] = 5;
    REQUIRE(lmcs_capture_put(capture, &tensor, &pointer, 1, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_capture_commit(capture, &options, NULL, &error) == LMCS_OK, &error);
}

static void make_pool(void)
{
    struct lmcs_error error;
    struct lmcs_pool *pool = fuzz_new_pool();
    REQUIRE(lmcs_shelf_set_keep_raw(pool, "run", 1, &error) == LMCS_OK, &error);
    for (unsigned step = 0; step < 5; step++)
        take_snapshot(pool, "run", step);
    take_snapshot(pool, "other", 5);
    REQUIRE(lmcs_compact(pool, NULL, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &error) == LMCS_OK, &error);
    fuzz_verify(pool);
    fuzz_close(pool);
    keep_file();
    map_file();
    pages.collecting = true;
    seal_pool();
    pages.collecting = false;
    munmap(pages.map, (size_t)file_bytes);
    write_file(true);
    pool = fuzz_open(LMCS_OPEN_READ); /* sealing has changed nothing */
    fuzz_verify(pool);
    fuzz_close(pool);
}

/* ---- Reading everything ---- */

/* What may be said of a damaged pool. */
static bool is_fine(enum lmcs_status status, const struct lmcs_error *error)
{
    REQUIRE(status == LMCS_OK || status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED || status == LMCS_NOT_FOUND ||
                status == LMCS_FULL || status == LMCS_READ_ONLY || status == LMCS_EXISTS || status == LMCS_IN_USE ||
                status == LMCS_NO_MEMORY || status == LMCS_INVALID,
            error);
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

static bool visit_entry(void *context, const struct lmcs_entry *entry)
{
    *(uint64_t *)context += strlen(entry->tensor.name) + entry->raw_bytes;
    for (uint32_t i = 0; i < entry->tensor.ndim; i++)
        *(uint64_t *)context += entry->tensor.shape[i];
    return true;
}

static unsigned sum_of(const unsigned char *data, uint64_t bytes)
{
    unsigned sum = 0;
    for (uint64_t i = 0; i < bytes; i += 61)
        sum += data[i];
    return sum + (bytes > 0 ? data[bytes - 1] : 0);
}

static void read_view(struct lmcs_snapshot *snapshot, uint32_t flags)
{
    struct lmcs_view *view;
    struct lmcs_error error;
    unsigned sum = 0;
    if (!is_fine(lmcs_view_open(snapshot, NULL, NULL, 0, flags, &view, &error), &error))
        return;
    for (size_t i = 0; i < lmcs_view_count(view); i++)
        sum += sum_of(lmcs_view_data(view, i), lmcs_view_entry(view, i)->raw_bytes);
    lmcs_view_close(view);
    REQUIRE(sum != 0xfeedbeef, NULL); /* so that the reading is not left out */
}

static void read_snapshot(struct lmcs_pool *pool, const char *shelf, uint64_t number)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_snapshot_storage storage;
    struct lmcs_error error;
    struct lmc_hash digest;
    char which[32];
    size_t tags = 0;
    uint64_t sum = 0;
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    if (!is_fine(lmcs_snapshot_find(pool, shelf, which, &snapshot, &error), &error))
        return;
    is_fine(lmcs_snapshot_tags(snapshot, visit_tag, &tags, &error), &error);
    is_fine(lmcs_snapshot_storage(snapshot, &storage, &error), &error);
    is_fine(lmcs_snapshot_digest(snapshot, &digest, &error), &error);
    is_fine(lmcs_snapshot_entries(snapshot, visit_entry, &sum, &error), &error);
    read_view(snapshot, number % 2 == 0 ? 0 : LMCS_VIEW_VERIFY | LMCS_VIEW_PRIVATE);
    lmcs_snapshot_close(snapshot);
}

static void read_pool(struct lmcs_pool *pool)
{
    static struct names names;
    struct lmcs_pool_info info;
    struct lmcs_verify_report report;
    struct lmcs_error error;
    uint64_t numbers[16];
    size_t count;
    names.count = 0;
    is_fine(lmcs_pool_info(pool, &info, &error), &error);
    is_fine(lmcs_shelf_list(pool, add_name, &names, &error), &error);
    for (size_t i = 0; i < names.count; i++) {
        struct lmcs_snapshot *snapshot;
        if (is_fine(lmcs_snapshot_find(pool, names.names[i], "a", &snapshot, &error), &error))
            lmcs_snapshot_close(snapshot);
        is_fine(lmcs_snapshot_steps(pool, names.names[i], 3, 1, numbers, 16, &count, &error), &error);
        if (is_fine(lmcs_snapshot_numbers(pool, names.names[i], 1, numbers, 16, &count, &error), &error))
            for (size_t k = 0; k < count; k++)
                read_snapshot(pool, names.names[i], numbers[k]);
    }
    is_fine(lmcs_verify(pool, NULL, NULL, NULL, NULL, &report, &error), &error);
    int fd = memfd_create("archive", MFD_CLOEXEC);
    is_fine(lmcs_dump(pool, NULL, fd, NULL, NULL, &error), &error);
    close(fd);
}

static bool try_open(enum lmcs_open_mode mode, struct lmcs_pool **pool)
{
    struct lmcs_open_options options;
    struct lmcs_error error;
    lmcs_open_options_init(&options);
    options.threads = 1;
    options.flags = LMCS_NO_BACKGROUND;
    return is_fine(lmcs_pool_open(fuzz_place.pool, mode, &options, pool, &error), &error);
}

static void write_pool(struct lmcs_pool *pool)
{
    const uint64_t shape = 9000;
    const struct lmcs_tensor tensor = {.name = "w0", .dtype = LMC_U8, .ndim = 1, .shape = &shape};
    static const unsigned char zeros[9000];
    const void *data = zeros;
    struct lmcs_capture *capture;
    struct lmcs_error error;
    if (is_fine(lmcs_capture_begin(pool, "run", &capture, &error), &error)) {
        if (is_fine(lmcs_capture_put(capture, &tensor, &data, 1, &error), &error))
            is_fine(lmcs_capture_commit(capture, NULL, NULL, &error), &error);
        else
            lmcs_capture_abort(capture);
    }
    is_fine(lmcs_snapshot_remove(pool, "run", 4, false, NULL, &error), &error);
    is_fine(lmcs_tag_set(pool, "run", "new", 3, &error), &error);
    is_fine(lmcs_compact(pool, NULL, &error), &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct lmcs_pool *pool;
    if (piece_count == 0)
        make_pool();
    unsigned flags = count > 0 ? bytes[0] : 0;
    map_file();
    for (size_t at = 1; count >= CHANGE_BYTES && at <= count - CHANGE_BYTES; at += CHANGE_BYTES)
        change(bytes + at);
    if ((flags & LEAVE_CHECKS) == 0)
        seal_pool();
    munmap(pages.map, (size_t)file_bytes);
    if (try_open(LMCS_OPEN_READ, &pool)) {
        read_pool(pool);
        fuzz_close(pool);
    }
    if ((flags & WRITE) != 0 && try_open(LMCS_OPEN_WRITE, &pool)) {
        write_pool(pool);
        lmcs_pool_close(pool, NULL);
    }
    write_file((flags & WRITE) != 0);
    return 0;
}
