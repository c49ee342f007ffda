/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * image.h - a small pool for fuzz targets: made once, changed in place, restored.
 *
 * The file in /dev/shm stays mapped, beside a copy of its data. After a writer every page is compared; after a reader
 * only changed ones. Pages are those of the trees (the superblock first) and payloads. image_seal corrects all
 * checksums from the leaves up.
 */
#ifndef LMCS_FUZZ_IMAGE_H
#define LMCS_FUZZ_IMAGE_H

#include "support.h"

#include "media/layout.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define IMAGE_ROOT_PLACE 6144 /* libpmemobj's offset of the superblock */
#define IMAGE_MOST_PAGES 2048u

struct image_piece {
    off_t at;
    size_t bytes;
    unsigned char *data;
};

static struct {
    unsigned char *map; /* of the whole file */
    off_t bytes;
    struct image_piece pieces[1024]; /* originals outside of holes */
    size_t piece_count;
    uint64_t page_at[IMAGE_MOST_PAGES];
    bool page_done[IMAGE_MOST_PAGES]; /* in this pass of sealing */
    size_t page_count;
    bool collecting;
    void (*fill)(struct lmcs_pool *pool); /* adds content; NULL: none */
} image;

/* ---- Keeping and putting back ---- */

static inline void image_keep(void)
{
    int fd = open(fuzz_place.pool, O_RDWR | O_CLOEXEC);
    struct stat info;
    REQUIRE(fd >= 0 && fstat(fd, &info) == 0, NULL);
    image.bytes = info.st_size;
    for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0;) {
        off_t end = lseek(fd, at, SEEK_HOLE);
        REQUIRE(image.piece_count < sizeof image.pieces / sizeof *image.pieces, NULL);
        struct image_piece *piece = &image.pieces[image.piece_count++];
        *piece = (struct image_piece){at, (size_t)(end - at), malloc((size_t)(end - at))};
        REQUIRE(piece->data != NULL && pread(fd, piece->data, piece->bytes, at) == (ssize_t)piece->bytes, NULL);
        at = end;
    }
    image.map = mmap(NULL, (size_t)image.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    REQUIRE(image.map != MAP_FAILED, NULL);
    close(fd);
}

/* NULL: a hole. */
static inline const unsigned char *image_original(off_t at)
{
    for (size_t i = 0; i < image.piece_count; i++)
        if (at >= image.pieces[i].at && at < image.pieces[i].at + (off_t)image.pieces[i].bytes)
            return image.pieces[i].data + (at - image.pieces[i].at);
    return NULL;
}

static inline void image_restore_page(int fd, off_t at)
{
    const unsigned char *original = image_original(at);
    if (original == NULL)
        REQUIRE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, LMCS_PAGE_BYTES) == 0, NULL);
    else if (memcmp(image.map + at, original, LMCS_PAGE_BYTES) != 0)
        memcpy(image.map + at, original, LMCS_PAGE_BYTES);
}

/* After a writer. */
static inline void image_restore_all(void)
{
    int fd = open(fuzz_place.pool, O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0 && ftruncate(fd, image.bytes) == 0, NULL);
    for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0;) {
        off_t end = lseek(fd, at, SEEK_HOLE);
        for (; at < end; at += LMCS_PAGE_BYTES)
            image_restore_page(fd, at);
    }
    for (size_t i = 0; i < image.piece_count; i++)
        for (size_t done = 0; done < image.pieces[i].bytes; done += LMCS_PAGE_BYTES)
            image_restore_page(fd, image.pieces[i].at + (off_t)done);
    close(fd);
}

/* After the target alone. (The superblock may cross a page boundary.) */
static inline void image_restore_pages(void)
{
    image_restore_page(-1, (off_t)((image.page_at[0] | (LMCS_PAGE_BYTES - 1)) + 1));
    for (size_t i = 0; i < image.page_count; i++)
        image_restore_page(-1, (off_t)(image.page_at[i] & ~(uint64_t)(LMCS_PAGE_BYTES - 1)));
}

/* ---- Sealing ---- */

static inline size_t image_find_page(uint64_t at)
{
    size_t i = 0;
    while (i < image.page_count && image.page_at[i] != at)
        i++;
    if (i == image.page_count && image.collecting) {
        REQUIRE(i < IMAGE_MOST_PAGES, NULL);
        image.page_at[image.page_count++] = at;
    }
    return i;
}

static inline uint64_t image_seal_node(uint64_t at, unsigned depth);

static inline void image_seal_ref(unsigned char *ref_at, unsigned depth)
{
    struct lmcs_ref_df ref;
    memcpy(&ref, ref_at, sizeof ref);
    if (ref.offset == 0 || image_find_page(ref.offset) == image.page_count)
        return;
    ref.check = image_seal_node(ref.offset, depth + 1);
    memcpy(ref_at, &ref, sizeof ref);
}

/* Only digests cover payloads' checksums. */
static inline void image_collect_parts(const unsigned char *value, size_t bytes)
{
    struct lmcs_content_df df;
    struct lmcs_part_df part;
    memcpy(&df, value, sizeof df);
    for (size_t i = 0; i < df.part_count && sizeof df + (i + 1) * sizeof part <= bytes; i++) {
        memcpy(&part, value + sizeof df + i * sizeof part, sizeof part);
        for (uint64_t at = part.offset & ~(uint64_t)(LMCS_PAGE_BYTES - 1); at < part.offset + part.bytes;
             at += LMCS_PAGE_BYTES)
            image_find_page(at);
    }
}

static inline void image_collect_live(const unsigned char *value, size_t bytes)
{
    struct lmcs_live_df df;
    struct lmcs_part_df part;
    memcpy(&df, value, sizeof df);
    image_find_page(df.cell & ~(uint64_t)(LMCS_PAGE_BYTES - 1));
    if (df.part_count > 0 && sizeof df + df.ndim * sizeof(uint64_t) + sizeof part <= bytes) {
        memcpy(&part, value + sizeof df + df.ndim * sizeof(uint64_t), sizeof part);
        image_find_page(part.offset & ~(uint64_t)(LMCS_PAGE_BYTES - 1));
    }
}

/* Each on a page of its own. */
static inline void image_seal_journals(const unsigned char *root)
{
    struct lmcs_page_range_df range;
    struct lmcs_journal_df header;
    for (size_t i = 0; i < LMCS_JOURNALS; i++) {
        memcpy(&range, root + offsetof(struct lmcs_root_df, journals) + i * sizeof range, sizeof range);
        if (range.next == 0 || image_find_page(range.next) == image.page_count)
            continue;
        memcpy(&header, image.map + range.next, sizeof header);
        header.check = lmc_hash64(&header, offsetof(struct lmcs_journal_df, check), range.next);
        memcpy(image.map + range.next, &header, sizeof header);
    }
}

static inline void image_seal_tree(unsigned char *tree_at, unsigned depth)
{
    image_seal_ref(tree_at + offsetof(struct lmcs_root_tree_df, ref), depth);
    image_seal_ref(tree_at + offsetof(struct lmcs_root_tree_df, tail), depth);
}

static inline void image_seal_value(const struct lmcs_node_df *node, unsigned char *value, size_t bytes, unsigned depth)
{
    if (node->level > 0 && bytes >= sizeof(struct lmcs_ref_df)) {
        image_seal_ref(value, depth);
    } else if (node->kind == LMCS_TREE_SHELVES && bytes >= sizeof(struct lmcs_shelf_df)) {
        unsigned char *tree = value + offsetof(struct lmcs_shelf_df, trees);
        for (size_t i = 0; i < LMCS_SHELF_TREES; i++)
            image_seal_tree(tree + i * sizeof(struct lmcs_root_tree_df), depth);
    } else if (node->kind == LMCS_TREE_NUMBERS && bytes >= sizeof(struct lmcs_snapshot_df)) {
        image_seal_ref(value + offsetof(struct lmcs_snapshot_df, manifest), depth);
    } else if (node->kind == LMCS_TREE_CONTENTS && bytes >= sizeof(struct lmcs_content_df) && image.collecting) {
        image_collect_parts(value, bytes);
    } else if (node->kind == LMCS_TREE_LIVE && bytes >= sizeof(struct lmcs_live_df) && image.collecting) {
        image_collect_live(value, bytes);
    }
}

static inline uint64_t image_seal_node(uint64_t at, unsigned depth)
{
    unsigned char *page = image.map + at;
    size_t index = image_find_page(at);
    struct lmcs_node_df node;
    memcpy(&node, page, sizeof node);
    if (image.page_done[index] || depth > 16)
        return node.check;
    image.page_done[index] = true;
    for (size_t i = 0; i < node.count && sizeof node + (i + 1) * sizeof(struct lmcs_slot_df) <= LMCS_PAGE_BYTES; i++) {
        struct lmcs_slot_df slot;
        memcpy(&slot, page + sizeof node + i * sizeof slot, sizeof slot);
        size_t value_at = slot.offset + sizeof(struct lmcs_key_df);
        if (value_at + slot.value_bytes <= LMCS_PAGE_BYTES)
            image_seal_value(&node, page + value_at, slot.value_bytes, depth);
    }
    memset(page + offsetof(struct lmcs_node_df, check), 0, sizeof node.check);
    node.check = lmc_hash64(page, LMCS_PAGE_BYTES, at);
    memcpy(page + offsetof(struct lmcs_node_df, check), &node.check, sizeof node.check);
    return node.check;
}

static inline void image_seal(void)
{
    uint64_t at, root_at;
    struct lmcs_superblock_df super;
    memset(image.page_done, 0, sizeof image.page_done);
    memcpy(&at, image.map + IMAGE_ROOT_PLACE, sizeof at);
    memcpy(&super, image.map + at, sizeof super);
    super.check = lmc_hash64(&super, offsetof(struct lmcs_superblock_df, check), 0);
    root_at = (super.root >> 16) * LMCS_PAGE_BYTES;
    uint64_t number = super.root >> 16;
    super.root = number << 16 | (lmc_hash64(&number, sizeof number, 0) & 0xffff);
    memcpy(image.map + at, &super, sizeof super);
    image_find_page(at);
    if (image_find_page(root_at) == image.page_count)
        return;
    unsigned char *page = image.map + root_at;
    for (size_t i = 0; i < LMCS_ROOT_TREES; i++)
        image_seal_tree(page + offsetof(struct lmcs_root_df, trees) + i * sizeof(struct lmcs_root_tree_df), 0);
    image_seal_journals(page);
    uint64_t check = lmc_hash64(page, offsetof(struct lmcs_root_df, check), root_at);
    memcpy(page + offsetof(struct lmcs_root_df, check), &check, sizeof check);
}

/* ---- Making it ---- */

/* SGD with momentum: two arrays linked to the previous snapshot. */
static inline void image_step(struct lmcs_capture *capture, unsigned step)
{
    static float buffer[400], weight[400];
    static const struct lmcs_relation relation = {
        .names = {"sgd.buffer", "sgd.weight"}, .name_count = 2, .optimizer = LMC_SGD, .lr = 0.5, .momentum = 0.5};
    static const uint64_t shape = sizeof buffer / sizeof *buffer;
    static const struct lmcs_tensor tensors[] = {{.name = "sgd.buffer", .dtype = LMC_F32, .ndim = 1, .shape = &shape},
                                                 {.name = "sgd.weight", .dtype = LMC_F32, .ndim = 1, .shape = &shape}};
    const void *const both[] = {buffer, weight};
    struct lmcs_error error;
    for (unsigned i = 0; i < shape; i++) { /* few bits: no rounding */
        buffer[i] = buffer[i] * 0.5F + (float)((i * 37 + step * 11) % 64) / 64;
        weight[i] -= buffer[i] * 0.5F;
    }
    REQUIRE(lmcs_capture_relate(capture, &relation, 1, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_capture_put(capture, tensors, both, 2, &error) == LMCS_OK, &error);
}

/* Two larger tensors, `parts` small ones, an attachment; partly deltas. */
static inline void image_snapshot(struct lmcs_pool *pool, const char *shelf, unsigned step, unsigned parts)
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
    if (strcmp(shelf, "run") == 0)
        image_step(capture, step);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "w%u", i);
        REQUIRE(lmcs_capture_put(capture, &tensor, &pointer, 1, &error) == LMCS_OK, &error);
        data[100 + i]++;
    }
    tensor.ndim = 2;
    tensor.global_shape = (const uint64_t[2]){8, 1};
    tensor.offsets = (const uint64_t[2]){1, 0};
    for (unsigned i = 0; i < parts; i++) {
        snprintf(name, sizeof name, "part.%u", i);
        shape[0] = i % 4;
        REQUIRE(lmcs_capture_put(capture, &tensor, &pointer, 1, &error) == LMCS_OK, &error);
    }
    tensor = (struct lmcs_tensor){.name = "large", .dtype = LMC_U8, .ndim = 1, .shape = shape};
    shape[0] = sizeof large;
    pointer = large;
    if (step > 2)
        REQUIRE(lmcs_capture_put(capture, &tensor, &pointer, 1, &error) == LMCS_OK, &error);
    tensor.kind = LMCS_ATTACHMENT;
    shape[0] = 5;
    REQUIRE(lmcs_capture_put(capture, &tensor, &pointer, 1, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_capture_commit(capture, &options, NULL, &error) == LMCS_OK, &error);
}

/* "run": deltas, links, a removed snapshot; "wide": a manifest of several pages. */
static inline void image_make(void)
{
    struct lmcs_error error;
    struct lmcs_pool *pool = fuzz_new_pool();
    REQUIRE(lmcs_shelf_set_keep_raw(pool, "run", 1, &error) == LMCS_OK, &error);
    for (unsigned step = 0; step < 4; step++)
        image_snapshot(pool, "run", step, 3);
    image_snapshot(pool, "wide", 5, 120);
    REQUIRE(lmcs_compact(pool, NULL, &error) == LMCS_OK, &error);
    struct lmcs_snapshot *snapshot;
    struct lmcs_snapshot_storage storage;
    REQUIRE(lmcs_snapshot_open(pool, "run@3", &snapshot, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_snapshot_storage(snapshot, &storage, &error) == LMCS_OK && storage.longest_line == 2, &error);
    lmcs_snapshot_close(snapshot);
    REQUIRE(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &error) == LMCS_OK, &error);
    if (image.fill != NULL)
        image.fill(pool);
    fuzz_verify(pool);
    fuzz_close(pool);
    image_keep();
    image.collecting = true;
    image_seal();
    image.collecting = false;
    pool = fuzz_open(LMCS_OPEN_READ); /* sealing changed nothing */
    fuzz_verify(pool);
    fuzz_close(pool);
}

/* ---- Changes ---- */

#define IMAGE_CHANGE_BYTES 14u

/* Numbers that expose wrong comparisons. */
static inline uint64_t image_number(uint64_t which)
{
    static const uint64_t numbers[] = {
        0,
        1,
        2,
        63,
        64,
        255,
        256,
        4095,
        4096,
        65535,
        65536,
        INT32_MAX,
        1u << 31,
        UINT32_MAX,
        1ull << 32,
        INT64_MAX,
        1ull << 63,
        UINT64_MAX,
        UINT64_MAX - 1,
        UINT64_MAX - 4095,
        1ull << 48,
        (1ull << 48) - 1,
        1ull << 62,
        1ull << 61,
    };
    const size_t count = sizeof numbers / sizeof *numbers;
    which %= count + image.page_count + 2;
    return which < count                       ? numbers[which]
           : which < count + image.page_count  ? image.page_at[which - count]
           : which == count + image.page_count ? (uint64_t)image.bytes
                                               : (uint64_t)image.bytes - LMCS_PAGE_BYTES;
}

/* With the highest bit, within the n-th entry, because most of a page may be empty. */
static inline size_t image_place(const unsigned char *page, uint16_t where, size_t most)
{
    struct lmcs_node_df node;
    struct lmcs_slot_df slot;
    memcpy(&node, page, sizeof node);
    if ((where & 0x8000) == 0 || most < LMCS_PAGE_BYTES - 8 || node.magic != LMCS_NODE_MAGIC || node.count == 0 ||
        sizeof node + node.count * sizeof slot > LMCS_PAGE_BYTES)
        return where % most;
    memcpy(&slot, page + sizeof node + where / 256 % 128u % node.count * sizeof slot, sizeof slot);
    size_t place = slot.offset + (size_t)where % 256 % (sizeof(struct lmcs_key_df) + slot.value_bytes);
    return place < most ? place : most - 1;
}

/*
 * Page (u16, in walk order), place in it (u16), operation (u8: set, add, flip, a number above, or copy from another
 * page), number of bytes (u8), value (u64).
 */
static inline void image_change(const uint8_t *bytes)
{
    uint16_t which, where;
    uint64_t value, old = 0;
    memcpy(&which, bytes, 2);
    memcpy(&where, bytes + 2, 2);
    memcpy(&value, bytes + 6, 8);
    size_t page = which % image.page_count, width = 1 + bytes[5] % 8u;
    /* The superblock is not a page. */
    size_t most = page == 0 ? sizeof(struct lmcs_superblock_df) : LMCS_PAGE_BYTES;
    unsigned char *start = image.map + image.page_at[page];
    unsigned char *at = start + image_place(start, where, most - width + 1);
    memcpy(&old, at, width);
    const unsigned char *other = image.map + image.page_at[1 + value % (image.page_count - 1)];
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
    case 4:
        memcpy(&value, other + image_place(other, (uint16_t)(value >> 16), LMCS_PAGE_BYTES - 7), sizeof value);
        break;
    case 5: /* a whole reference, key or record start */
        width = 16 + bytes[5] % 64u;
        width = (size_t)(start + most - at) < width ? (size_t)(start + most - at) : width;
        memmove(at, other + image_place(other, (uint16_t)(value >> 16), LMCS_PAGE_BYTES - width), width);
        return;
    default:
        break;
    }
    memcpy(at, &value, width);
}

/* ---- Mutations ---- */

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed);

static inline uint64_t image_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    return lmc_hash64(state, sizeof *state, 0);
}

/* A header of `header` bytes, then whole changes. Adds, removes, remakes or alters one, or alters the header. */
static inline size_t image_mutate(uint8_t *bytes, size_t count, size_t most, size_t header, uint64_t seed)
{
    size_t changes = count < header ? 0 : (count - header) / IMAGE_CHANGE_BYTES;
    size_t room = most < header ? 0 : (most - header) / IMAGE_CHANGE_BYTES;
    uint64_t what = image_random(&seed) % 8, value = image_random(&seed);
    if (room == 0)
        return count;
    for (size_t i = count; i < header; i++)
        bytes[i] = 0;
    uint8_t *one = bytes + header + (changes > 0 ? image_random(&seed) % changes : 0) * IMAGE_CHANGE_BYTES;
    if (changes == 0 || (what == 0 && changes < room)) {
        one = bytes + header + changes++ * IMAGE_CHANGE_BYTES;
        what = 1;
    }
    if (what <= 1) {
        uint64_t words[2] = {image_random(&seed), image_random(&seed) >> image_random(&seed) % 64};
        memcpy(one, (uint8_t *)words + 2, IMAGE_CHANGE_BYTES);
    } else if (what == 2 && changes > 1) {
        memmove(one, bytes + header + --changes * IMAGE_CHANGE_BYTES, IMAGE_CHANGE_BYTES);
    } else if (what == 3) {
        bytes[value % header] = (uint8_t)(value >> 8);
    } else {
        uint8_t *byte = one + value % IMAGE_CHANGE_BYTES;
        *byte = (uint8_t)(what < 6 ? value >> 8 : what == 6 ? *byte + 1u : *byte ^ 1u << (value >> 8) % 8);
    }
    return header + changes * IMAGE_CHANGE_BYTES;
}

#endif
