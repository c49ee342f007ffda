/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_verify.c - damage is found, and named; where there is none, none is found, also while a writer writes.
 *
 * One byte after the other of payloads, pages of metadata, the root and the superblock is changed in a copy of a pool,
 * which is then opened, checked and read in a forked child: whatever is said, nothing crashes, and what is read is an
 * error or right. Where the bytes lie is asked of the store's own trees.
 */
/* ctest: timeout=600 labels=no-tsan */
#include "support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "content.h"
#include "shelf.h"
#include "tree.h"

enum { SNAPSHOTS = 7, MOST_PAYLOADS = 200, MOST_PAGES = 400 };

struct payload {
    char tensor[64];
    uint64_t offset, bytes; /* of a part */
    uint64_t at;            /* of its first byte in the payload */
    uint64_t raw_bytes;     /* of the tensor */
    bool is_raw;
};

/* A pool, what is in it, and where. */
struct subject {
    char path[512];
    struct state *states[SNAPSHOTS];
    struct payload payloads[MOST_PAYLOADS];
    size_t payload_count;
    uint64_t pages[MOST_PAGES]; /* of the trees that the root reaches */
    size_t page_count;
    uint64_t root, superblock;
};

/* ---- Making one ---- */

static void note_page(struct subject *subject, struct lmcs_txn *txn, uint8_t kind, struct lmcs_ref_df ref);

static void note_tree(struct subject *subject, struct lmcs_txn *txn, uint8_t kind, const struct lmcs_root_tree_df *tree)
{
    note_page(subject, txn, kind, tree->ref);
    note_page(subject, txn, kind, tree->tail);
}

static void note_children(struct subject *subject, struct lmcs_txn *txn, uint8_t kind, const struct lmcs_node_df *node)
{
    for (size_t i = 0; i < node->count; i++) {
        const void *value = lmcs_node_value(node, i);
        if (node->level > 0) {
            note_page(subject, txn, kind, lmcs_node_child(node, i));
        } else if (kind == LMCS_TREE_SHELVES) {
            struct lmcs_shelf_df shelf;
            memcpy(&shelf, value, sizeof shelf);
            for (uint8_t k = 0; k < LMCS_SHELF_TREES; k++)
                note_tree(subject, txn, (uint8_t)(LMCS_TREE_NUMBERS + k), &shelf.trees[k]);
        } else if (kind == LMCS_TREE_NUMBERS) {
            struct lmcs_snapshot_df snapshot;
            memcpy(&snapshot, value, sizeof snapshot);
            note_page(subject, txn, LMCS_TREE_MANIFEST, snapshot.manifest);
        }
    }
}

static void note_page(struct subject *subject, struct lmcs_txn *txn, uint8_t kind, struct lmcs_ref_df ref)
{
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node;
    if (ref.offset == 0)
        return;
    for (size_t i = 0; i < subject->page_count; i++)
        if (subject->pages[i] == ref.offset)
            return;
    EXPECT(subject->page_count < MOST_PAGES);
    subject->pages[subject->page_count++] = ref.offset;
    OK(lmcs_page_read(txn, &ref, kind, buffer, &node, &err));
    note_children(subject, txn, kind, node);
}

static void note_payloads(struct subject *subject, struct lmcs_txn *txn)
{
    struct lmcs_cursor *cursor;
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_cursor_seek(cursor, txn, LMCS_TREE_CONTENTS, &txn->root.trees[LMCS_TREE_CONTENTS],
                        (struct lmcs_key_df){0, 0}, &err));
    while (lmcs_cursor_valid(cursor)) {
        struct lmcs_content content;
        struct lmcs_identity identity;
        uint64_t at = 0;
        OK(lmcs_content_get(txn, lmcs_cursor_key(cursor).high, &content, &err));
        OK(lmcs_identity_get(txn, content.df.identity, &identity, &err));
        for (size_t i = 0; i < content.df.part_count; i++) {
            EXPECT(subject->payload_count < MOST_PAYLOADS);
            struct payload *payload = &subject->payloads[subject->payload_count++];
            *payload = (struct payload){.offset = content.parts[i].offset,
                                        .bytes = content.parts[i].bytes,
                                        .at = at,
                                        .raw_bytes = content.df.raw_bytes,
                                        .is_raw = content.df.payload == LMCS_PAYLOAD_RAW};
            snprintf(payload->tensor, sizeof payload->tensor, "%.60s", identity.name);
            at += content.parts[i].bytes;
        }
        OK(lmcs_cursor_next(cursor, &err));
    }
    lmcs_cursor_free(cursor);
}

/* A history with shared, raw, compressed and delta contents, of one block and of several, tags and metadata. */
static struct subject *make_subject(const struct place *place)
{
    struct rng rng = {1};
    struct subject *subject = calloc(1, sizeof *subject);
    snprintf(subject->path, sizeof subject->path, "%s", place->pool);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 3, 30000);
    uint64_t several = 1200000, small = 100, medium = 5000, rare = 70000;
    struct held *held = state_add(now, "several", LMC_U8, 1, &several);
    rng_fill(&rng, held->data, held->bytes);
    held = state_add(now, "small", LMC_U8, 1, &small);
    rng_fill(&rng, held->data, held->bytes);
    held = state_add(now, "medium", LMC_U8, 1, &medium);
    rng_fill(&rng, held->data, held->bytes);
    held = state_add(now, "rare", LMC_U8, 1, &rare);
    rng_fill(&rng, held->data, held->bytes);
    held = state_add(now, "notes", LMC_U8, 1, &medium);
    held->kind = LMCS_ATTACHMENT;
    state_add(now, "empty", LMC_F32, 1, &(uint64_t){0});
    for (int i = 0; i < SNAPSHOTS; i++) {
        subject->states[i] = state_copy(now);
        take_snapshot(pool, "run", now, i);
        state_step(now, &rng, 0, 2);
        rng_fill(&rng, now->tensors[3].data, 50000); /* a part of its first block */
        rng_fill(&rng, now->tensors[4].data, 10);
        if (i == 3)
            rng_fill(&rng, now->tensors[6].data, 30000);
    }
    OK(lmcs_tag_set(pool, "run", "best", 2, &err));
    take_snapshot(pool, "other", subject->states[2], 5);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "other", 1, false, NULL, &err));
    take_snapshot(pool, "other", subject->states[3], 6);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    struct lmcs_txn txn;
    OK(lmcs_txn_read(pool, &txn, &err));
    subject->root = txn.root.self;
    subject->superblock = lmcs_media_superblock(pool->media);
    for (uint8_t kind = 0; kind < LMCS_TREE_NUMBERS; kind++)
        note_tree(subject, &txn, kind, &txn.root.trees[kind]);
    note_payloads(subject, &txn);
    lmcs_txn_end(&txn);
    close_pool(pool);
    assert_true(subject->payload_count > 20 && subject->page_count > 15);
    return subject;
}

static void free_subject(struct subject *subject)
{
    for (int i = 0; i < SNAPSHOTS; i++)
        state_free(subject->states[i]);
    free(subject);
}

/* ---- Damage ---- */

static void file_read(const char *path, uint64_t at, void *data, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    EXPECT(fd >= 0 && pread(fd, data, bytes, (off_t)at) == (ssize_t)bytes);
    close(fd);
}

static void file_write(const char *path, uint64_t at, const void *data, size_t bytes)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0 && pwrite(fd, data, bytes, (off_t)at) == (ssize_t)bytes);
    close(fd);
}

static void flip(const char *path, uint64_t at, unsigned bit)
{
    unsigned char byte = 0;
    file_read(path, at, &byte, 1);
    byte ^= (unsigned char)(1u << bit % 8);
    file_write(path, at, &byte, 1);
}

struct found {
    const char *tensor; /* wanted */
    uint64_t at;
    unsigned damages, of_tensor, covering;
};

static void note_damage(void *context, const struct lmcs_damage *damage)
{
    struct found *found = context;
    EXPECT(damage->what != NULL && damage->what[0] != '\0' && damage->shelf != NULL && damage->tensor != NULL);
    found->damages++;
    if (found->tensor == NULL || strcmp(damage->tensor, found->tensor) != 0)
        return;
    found->of_tensor++;
    found->covering += found->at >= damage->first_byte && found->at < damage->first_byte + damage->byte_count;
}

/* Opens for reading and verifies. An opening that fails is a finding too. */
static enum lmcs_status verify_file(const char *path, const char *address, struct found *found)
{
    struct lmcs_pool *pool;
    struct lmcs_verify_report report;
    enum lmcs_status status = lmcs_pool_open(path, LMCS_OPEN_READ, NULL, &pool, &err);
    if (status != LMCS_OK)
        return status;
    status = lmcs_verify(pool, address, note_damage, found, NULL, &report, &err);
    EXPECT(status == LMCS_OK || status == LMCS_DAMAGED);
    EXPECT(report.damages == found->damages && (status == LMCS_DAMAGED) == (found->damages > 0));
    close_pool(pool);
    return status;
}

/* All that can be read is an error or right. */
static void read_all(const struct subject *subject)
{
    struct lmcs_pool *pool;
    if (lmcs_pool_open(subject->path, LMCS_OPEN_READ, NULL, &pool, &err) != LMCS_OK)
        return;
    uint64_t numbers[SNAPSHOTS + 1];
    size_t count;
    if (lmcs_snapshot_numbers(pool, "run", 0, numbers, SNAPSHOTS + 1, &count, &err) == LMCS_OK) {
        EXPECT(count == SNAPSHOTS);
        for (size_t i = 0; i < count; i++)
            EXPECT(numbers[i] == i + 1);
    }
    for (int n = 0; n < SNAPSHOTS; n++) {
        char which[16];
        struct lmcs_snapshot *snapshot;
        snprintf(which, sizeof which, "%d", n + 1);
        if (lmcs_snapshot_find(pool, "run", which, &snapshot, &err) != LMCS_OK)
            continue;
        EXPECT(lmcs_snapshot_info(snapshot)->number == (uint64_t)n + 1 && lmcs_snapshot_info(snapshot)->step == n);
        for (size_t i = 0; i < subject->states[n]->count; i++) {
            const struct held *held = &subject->states[n]->tensors[i];
            struct lmcs_view *view;
            const char *name = held->name;
            unsigned char *buffer = malloc(held->bytes + 1);
            if (lmcs_snapshot_read(snapshot, held->kind, name, buffer, held->bytes, &err) == LMCS_OK)
                EXPECT(memcmp(buffer, held->data, held->bytes) == 0);
            if (lmcs_view_open(snapshot, &name, &held->kind, 1, LMCS_VIEW_VERIFY, &view, &err) == LMCS_OK) {
                EXPECT(memcmp(lmcs_view_data(view, 0), held->data, held->bytes) == 0);
                lmcs_view_close(view);
            }
            free(buffer);
        }
        lmcs_snapshot_close(snapshot);
    }
    close_pool(pool);
}

/* A child works through a list of damages; if it ends badly, `doing` says at which. */
struct work {
    const struct subject *subject;
    uint64_t seed;
    char doing[128];
};

static struct work *new_work(const struct subject *subject, uint64_t seed)
{
    struct work *work = mmap(NULL, sizeof *work, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(work != MAP_FAILED);
    *work = (struct work){.subject = subject, .seed = seed};
    return work;
}

static void run_work(int (*function)(void *), struct work *work)
{
    int status = run_child(function, work, 500);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        print_error("%s: the child ended with status %x\n", work->doing, (unsigned)status);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    munmap(work, sizeof *work);
}

static int flip_payloads(void *argument)
{
    struct work *work = argument;
    const struct subject *subject = work->subject;
    struct rng rng = {work->seed};
    for (size_t i = 0; i < subject->payload_count; i++) {
        const struct payload *payload = &subject->payloads[i];
        uint64_t places[4] = {0, payload->bytes - 1, rng_below(&rng, payload->bytes), rng_below(&rng, payload->bytes)};
        for (size_t k = 0; k < (i % 4 == 0 ? 4 : 1); k++) {
            uint64_t place = i % 4 == 0 ? places[k] : places[i % 4];
            struct found found = {.tensor = payload->tensor, .at = payload->at + place};
            unsigned bit = (unsigned)rng_next(&rng);
            snprintf(work->doing, sizeof work->doing, "byte %llu of a payload of \"%s\"", (unsigned long long)found.at,
                     payload->tensor);
            flip(subject->path, payload->offset + place, bit);
            EXPECT(verify_file(subject->path, NULL, &found) == LMCS_DAMAGED);
            EXPECT(found.of_tensor > 0);
            if (payload->is_raw && found.at < payload->raw_bytes)
                EXPECT(found.covering > 0);
            if (k == 0 && i % 5 == 0)
                read_all(subject);
            flip(subject->path, payload->offset + place, bit);
        }
    }
    struct found found = {.tensor = NULL};
    EXPECT(verify_file(subject->path, NULL, &found) == LMCS_OK); /* all is as it was */
    return 0;
}

static void every_payload(void **state)
{
    struct subject *subject = make_subject(*state);
    run_work(flip_payloads, new_work(subject, 2));
    free_subject(subject);
}

/* A byte of a page that means something, mostly: of its entries, of what stands before them, or any. */
static size_t used_byte(const unsigned char page[LMCS_PAGE_BYTES], struct rng *rng)
{
    struct lmcs_node_df node;
    memcpy(&node, page, sizeof node);
    uint64_t what = rng_below(rng, 8), head = sizeof node + node.count * sizeof(struct lmcs_slot_df);
    return what == 0   ? rng_below(rng, LMCS_PAGE_BYTES)
           : what == 1 ? rng_below(rng, head)
                       : node.low + rng_below(rng, LMCS_PAGE_BYTES - node.low);
}

static void damage_page(const struct subject *subject, size_t i, int how, struct rng *rng, unsigned char *save)
{
    unsigned char page[LMCS_PAGE_BYTES], other[LMCS_PAGE_BYTES];
    uint64_t at = subject->pages[i];
    file_read(subject->path, at, save, LMCS_PAGE_BYTES);
    memcpy(page, save, sizeof page);
    if (how <= 0)
        page[used_byte(page, rng)] ^= (unsigned char)(1u << rng_below(rng, 8));
    else if (how == 1)
        memset(page, 0, sizeof page);
    else if (how == 2)
        rng_fill(rng, page + rng_below(rng, 2048), 2048);
    else { /* another one of its kind, or any */
        file_read(subject->path, subject->pages[(i + 1) % subject->page_count], other, sizeof other);
        memcpy(page, other, sizeof page);
    }
    file_write(subject->path, at, page, sizeof page);
}

static int damage_pages(void *argument)
{
    struct work *work = argument;
    const struct subject *subject = work->subject;
    struct rng rng = {work->seed};
    unsigned char save[LMCS_PAGE_BYTES];
    for (size_t i = 0; i < subject->page_count; i++)
        for (int how = -3; how < 4; how++) {
            struct found found = {.tensor = NULL};
            snprintf(work->doing, sizeof work->doing, "page %zu at %llu, damage %d", i,
                     (unsigned long long)subject->pages[i], how);
            damage_page(subject, i, how, &rng, save);
            EXPECT(verify_file(subject->path, NULL, &found) == LMCS_DAMAGED);
            if (how < 2)
                read_all(subject);
            file_write(subject->path, subject->pages[i], save, sizeof save);
        }
    struct found found = {.tensor = NULL};
    EXPECT(verify_file(subject->path, NULL, &found) == LMCS_OK);
    return 0;
}

static void every_page(void **state)
{
    struct subject *subject = make_subject(*state);
    run_work(damage_pages, new_work(subject, 3));
    free_subject(subject);
}

/* Two pages that have changed places, each whole. */
static int swap_pages(void *argument)
{
    struct work *work = argument;
    const struct subject *subject = work->subject;
    struct rng rng = {work->seed};
    for (int round = 0; round < 60; round++) {
        unsigned char a[LMCS_PAGE_BYTES], b[LMCS_PAGE_BYTES];
        size_t i = rng_below(&rng, subject->page_count), k = rng_below(&rng, subject->page_count);
        struct found found = {.tensor = NULL};
        if (i == k)
            continue;
        snprintf(work->doing, sizeof work->doing, "pages %zu and %zu", i, k);
        file_read(subject->path, subject->pages[i], a, sizeof a);
        file_read(subject->path, subject->pages[k], b, sizeof b);
        file_write(subject->path, subject->pages[i], b, sizeof b);
        file_write(subject->path, subject->pages[k], a, sizeof a);
        EXPECT(verify_file(subject->path, NULL, &found) == LMCS_DAMAGED);
        if (round % 10 == 0)
            read_all(subject);
        file_write(subject->path, subject->pages[i], a, sizeof a);
        file_write(subject->path, subject->pages[k], b, sizeof b);
    }
    return 0;
}

static void swapped_pages(void **state)
{
    struct subject *subject = make_subject(*state);
    run_work(swap_pages, new_work(subject, 4));
    free_subject(subject);
}

static int flip_root(void *argument)
{
    struct work *work = argument;
    const struct subject *subject = work->subject;
    struct rng rng = {work->seed};
    struct lmcs_pool *pool;
    size_t root_bytes = sizeof(struct lmcs_root_df), super_bytes = sizeof(struct lmcs_superblock_df);
    for (size_t i = 0; i < root_bytes + super_bytes; i += i < 64 || i >= root_bytes - 32 ? 1 : 5) {
        uint64_t at = i < root_bytes ? subject->root + i : subject->superblock + i - root_bytes;
        unsigned bit = (unsigned)rng_next(&rng);
        snprintf(work->doing, sizeof work->doing, "byte %zu of the root and the superblock", i);
        flip(subject->path, at, bit);
        FAILS(LMCS_DAMAGED, lmcs_pool_open(subject->path, LMCS_OPEN_READ, NULL, &pool, &err));
        FAILS(LMCS_DAMAGED, lmcs_pool_open(subject->path, LMCS_OPEN_WRITE, NULL, &pool, &err));
        flip(subject->path, at, bit);
    }
    struct found found = {.tensor = NULL};
    EXPECT(verify_file(subject->path, NULL, &found) == LMCS_OK);
    return 0;
}

static void root_and_superblock(void **state)
{
    struct subject *subject = make_subject(*state);
    run_work(flip_root, new_work(subject, 5));
    free_subject(subject);
}

/* A root page with a right checksum that speaks of pages which can't be: a writer would hand them out. */
static void impossible_ranges_of_pages(void **state)
{
    struct subject *subject = make_subject(*state);
    struct lmcs_root_df root, forged;
    file_read(subject->path, subject->root, &root, sizeof root);
    const struct lmcs_page_range_df ranges[] = {{root.fresh.end, root.fresh.next - LMCS_PAGE_BYTES},
                                                {0, UINT64_MAX - LMCS_PAGE_BYTES + 1},
                                                {0, LMCS_PAGE_RANGE_MOST + LMCS_PAGE_BYTES},
                                                {root.fresh.next + 1, root.fresh.end + 1},
                                                {root.fresh.next, root.fresh.end - 8}};
    for (size_t i = 0; i < 2 * sizeof ranges / sizeof ranges[0]; i++) {
        struct lmcs_pool *pool;
        forged = root;
        *(i % 2 ? &forged.spare : &forged.fresh) = ranges[i / 2];
        forged.check = lmc_hash64(&forged, offsetof(struct lmcs_root_df, check), subject->root);
        file_write(subject->path, subject->root, &forged, sizeof forged);
        FAILS(LMCS_DAMAGED, lmcs_pool_open(subject->path, LMCS_OPEN_READ, NULL, &pool, &err));
        FAILS(LMCS_DAMAGED, lmcs_pool_open(subject->path, LMCS_OPEN_WRITE, NULL, &pool, &err));
    }
    file_write(subject->path, subject->root, &root, sizeof root);
    struct found found = {.tensor = NULL};
    assert_int_equal(verify_file(subject->path, NULL, &found), LMCS_OK);
    /* What verify alone can tell: as many free pages as are recorded. */
    forged = root;
    forged.free_pages++;
    forged.check = lmc_hash64(&forged, offsetof(struct lmcs_root_df, check), subject->root);
    file_write(subject->path, subject->root, &forged, sizeof forged);
    assert_int_equal(verify_file(subject->path, NULL, &found), LMCS_DAMAGED);
    free_subject(subject);
}

/* A writer that meets damage fails, or does its work; what it leaves can be read or is an error. */
static int write_to_damaged(void *argument)
{
    struct work *work = argument;
    const struct subject *subject = work->subject;
    struct lmcs_pool *pool;
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    if (lmcs_pool_open(subject->path, LMCS_OPEN_WRITE, &options, &pool, &err) != LMCS_OK)
        return 0;
    uint64_t number = 0;
    bool taken = try_snapshot(pool, "run", subject->states[0], 0, &number, &err) == LMCS_OK;
    (void)!lmcs_tag_set(pool, "run", "new", 3, &err);
    (void)!lmcs_tag_remove(pool, "run", "best", &err);
    (void)!lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err);
    (void)!lmcs_compact(pool, NULL, &err);
    (void)!try_snapshot(pool, "other", subject->states[1], 0, NULL, &err);
    (void)!lmcs_snapshot_remove(pool, "other", 2, false, NULL, &err);
    if (taken) {
        struct lmcs_snapshot *snapshot;
        char which[32];
        snprintf(which, sizeof which, "%llu", (unsigned long long)number);
        if (lmcs_snapshot_find(pool, "run", which, &snapshot, &err) == LMCS_OK) {
            const struct held *held = &subject->states[0]->tensors[3];
            unsigned char *buffer = malloc(held->bytes);
            if (lmcs_snapshot_read(snapshot, LMCS_TENSOR, held->name, buffer, held->bytes, &err) == LMCS_OK)
                EXPECT(memcmp(buffer, held->data, held->bytes) == 0);
            free(buffer);
            lmcs_snapshot_close(snapshot);
        }
    }
    (void)lmcs_pool_close(pool, &err);
    return 0;
}

static void writers_of_damaged_pools(void **state)
{
    struct place *place = *state;
    struct subject *subject = make_subject(place);
    struct rng rng = {6};
    unsigned char save[LMCS_PAGE_BYTES];
    struct work *work = new_work(subject, 0);
    char whole[512];
    place_path(place, "whole.pool", whole);
    assert_int_equal(rename(subject->path, whole), 0);
    for (size_t i = 0; i < subject->page_count + 12; i++) {
        copy_file(whole, subject->path);
        if (i < subject->page_count) {
            damage_page(subject, i, (int)rng_below(&rng, 4), &rng, save);
        } else {
            const struct payload *payload = &subject->payloads[rng_below(&rng, subject->payload_count)];
            flip(subject->path, payload->offset + rng_below(&rng, payload->bytes), 3);
        }
        snprintf(work->doing, sizeof work->doing, "damage %zu of %zu", i, subject->page_count);
        int status = run_child(write_to_damaged, work, 200);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            print_error("%s: status %x\n", work->doing, (unsigned)status);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    munmap(work, sizeof *work);
    free_subject(subject);
}

/* ---- What is asked for ---- */

static bool stop(void *context, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    assert_true(done <= total);
    return ++*(int *)context < 1;
}

static void parts_of_a_pool(void **state)
{
    struct subject *subject = make_subject(*state);
    struct lmcs_pool *pool = open_pool(subject->path, LMCS_OPEN_READ, 0);
    struct lmcs_verify_report all, one, shelf;
    OK(lmcs_verify(pool, NULL, NULL, NULL, NULL, &all, &err));
    OK(lmcs_verify(pool, "run", NULL, NULL, NULL, &shelf, &err));
    OK(lmcs_verify(pool, "run@7", NULL, NULL, NULL, &one, &err));
    assert_int_equal(all.snapshots, SNAPSHOTS + 1);
    assert_int_equal(shelf.snapshots, SNAPSHOTS);
    assert_int_equal(one.snapshots, 1);
    assert_int_equal(one.contents, subject->states[6]->count);
    assert_true(one.contents < shelf.contents && shelf.contents < all.contents);
    assert_true(one.bytes_read < shelf.bytes_read && shelf.bytes_read < all.bytes_read);
    FAILS(LMCS_NOT_FOUND, lmcs_verify(pool, "run@8", NULL, NULL, NULL, &one, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_verify(pool, "walk", NULL, NULL, NULL, &one, &err));
    FAILS(LMCS_INVALID, lmcs_verify(pool, "run@latest~x", NULL, NULL, NULL, &one, &err));
    int calls = 0;
    struct lmcs_progress progress = {stop, &calls};
    FAILS(LMCS_CANCELLED, lmcs_verify(pool, NULL, NULL, NULL, &progress, &one, &err));
    close_pool(pool);
    /* Damage in a payload of the newest snapshot alone is none of the others'. */
    size_t i = 0;
    uint64_t content;
    pool = open_pool(subject->path, LMCS_OPEN_READ, 0);
    content = content_of(pool, "run", 7, "several");
    assert_true(content != content_of(pool, "run", 6, "several"));
    struct lmcs_txn txn;
    struct lmcs_content found_content;
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_content_get(&txn, content, &found_content, &err));
    lmcs_txn_end(&txn);
    close_pool(pool);
    while (subject->payloads[i].offset != found_content.parts[0].offset)
        i++;
    flip(subject->path, subject->payloads[i].offset + 1100000, 0); /* in its second block */
    static const struct {
        const char *address;
        enum lmcs_status expected;
    } looks[] = {{NULL, LMCS_DAMAGED}, {"run", LMCS_DAMAGED}, {"run@7", LMCS_DAMAGED}, {"run@latest", LMCS_DAMAGED},
                 {"run@4", LMCS_OK},   {"run@1", LMCS_OK},    {"run@best", LMCS_OK},   {"other", LMCS_OK}};
    for (size_t k = 0; k < sizeof looks / sizeof looks[0]; k++) {
        struct found found = {.tensor = "several", .at = 1100000};
        assert_int_equal(verify_file(subject->path, looks[k].address, &found), looks[k].expected);
        assert_true((looks[k].expected == LMCS_OK) == (found.covering == 0));
    }
    free_subject(subject);
}

/* ---- No damage where there is none ---- */

struct beside {
    const char *path;
    int to_child[2];
};

static int keep_verifying(void *argument)
{
    struct beside *beside = argument;
    unsigned rounds = 0;
    char byte;
    close(beside->to_child[1]);
    struct lmcs_pool *kept = open_pool(beside->path, LMCS_OPEN_READ, 0);
    do {
        struct lmcs_pool *pool = rounds % 2 == 0 ? kept : open_pool(beside->path, LMCS_OPEN_READ, 0);
        struct lmcs_snapshot *snapshot;
        verify_pool(pool);
        check_pool(pool);
        if (lmcs_snapshot_find(pool, "run", "latest~1", &snapshot, &err) == LMCS_OK) {
            struct lmcs_view *view;
            enum lmcs_status status = lmcs_view_open(snapshot, NULL, NULL, 0, LMCS_VIEW_VERIFY, &view, &err);
            EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
            if (status == LMCS_OK)
                lmcs_view_close(view);
            lmcs_snapshot_close(snapshot);
        }
        if (rounds % 2 == 1)
            close_pool(pool);
        rounds++;
    } while (rounds < 4 || read(beside->to_child[0], &byte, 1) != 0); /* EAGAIN until the parent closes its end */
    close_pool(kept);
    return 0;
}

static void none_beside_a_writer(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_mixed(&rng, 30, 20000), *weights = state_weights(&rng, 4, 30000);
    take_snapshot(pool, "run", weights, 0);
    close_pool(pool);
    struct beside beside = {.path = place->pool};
    assert_int_equal(pipe2(beside.to_child, O_CLOEXEC | O_NONBLOCK), 0);
    pid_t child = start_child(keep_verifying, &beside);
    close(beside.to_child[0]);
    pool = open_pool(place->pool, LMCS_OPEN_WRITE, 0);
    for (uint64_t i = 0; i < scaled("LMCS_TEST_SNAPSHOTS", 150); i++) {
        state_step(weights, &rng, 0, 3);
        take_snapshot(pool, "run", weights, (int64_t)i);
        if (i % 5 == 0) {
            rng_fill(&rng, now->tensors[i % 30].data, now->tensors[i % 30].bytes);
            take_snapshot(pool, "mixed", now, (int64_t)i);
        }
        struct lmcs_shelf_info info = shelf_info(pool, "run");
        uint64_t oldest;
        size_t count;
        OK(lmcs_snapshot_numbers(pool, "run", 1 + rng_below(&rng, info.latest), &oldest, 1, &count, &err));
        if (info.snapshot_count > 8)
            OK(lmcs_snapshot_remove(pool, "run", oldest, false, NULL, &err));
        if (i % 20 == 10)
            OK(lmcs_compact(pool, NULL, &err));
        OK(lmcs_tag_set(pool, "run", "newest", shelf_info(pool, "run").latest, &err));
    }
    close(beside.to_child[1]);
    expect_child(child);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
    state_free(weights);
}

static void none_in_healthy_pools(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_verify_report report;
    OK(lmcs_verify(pool, NULL, NULL, NULL, NULL, &report, &err)); /* an empty one */
    assert_int_equal(report.snapshots + report.contents + report.bytes_read + report.damages, 0);
    OK(lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, NULL));
    OK(lmcs_shelf_set_keep_raw(pool, "run", 3, &err)); /* an empty shelf */
    verify_pool(pool);
    OK(lmcs_verify(pool, "run", NULL, NULL, NULL, &report, &err));
    assert_int_equal(report.snapshots, 0);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(every_payload),
        IN_MEMORY(every_page),
        IN_MEMORY(swapped_pages),
        ON_BOTH(root_and_superblock),
        ON_BOTH(impossible_ranges_of_pages),
        IN_MEMORY(writers_of_damaged_pools),
        ON_BOTH(parts_of_a_pool),
        ON_BOTH(none_beside_a_writer),
        ON_BOTH(none_in_healthy_pools),
    };
    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}
