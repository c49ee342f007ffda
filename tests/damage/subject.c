/* SPDX-License-Identifier: BSD-3-Clause */
/* subject.c - makes the pool to damage, and locates everything by its trees. */
#include "subject.h"

#include <fcntl.h>
#include <unistd.h>

#include "pages/tree.h"
#include "records/content.h"
#include "records/shelf.h"
#include "sgd.h"

/* ---- Places ---- */

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
        } else if (kind == LMCS_TREE_OBJECTS) {
            EXPECT(subject->object_count < MOST_OBJECTS);
            subject->objects[subject->object_count++] = lmcs_node_key(node, i).high;
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
    subject->kinds[subject->page_count] = kind;
    subject->pages[subject->page_count++] = ref.offset;
    OK(lmcs_page_read(txn, &ref, kind, buffer, &node, &err));
    note_children(subject, txn, kind, node);
}

static void note_payloads(struct subject *subject, struct lmcs_txn *txn)
{
    struct lmcs_cursor *cursor;
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_root_seek(cursor, txn, LMCS_TREE_CONTENTS, (struct lmcs_key_df){0, 0}, &err));
    while (lmcs_cursor_valid(cursor)) {
        struct lmcs_content content;
        struct lmcs_identity identity;
        uint64_t at = 0;
        OK(lmcs_content_get(txn, lmcs_cursor_key(cursor).high, &content, &err));
        OK(lmcs_identity_get(txn, content.df.identity, &identity, &err));
        for (size_t i = 0; i < content.df.part_count; i++) {
            EXPECT(subject->payload_count < MOST_PAYLOADS);
            struct payload *payload = &subject->payloads[subject->payload_count++];
            *payload = (struct payload){.content = content.id,
                                        .offset = content.parts[i].offset,
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

/* ---- Making it ---- */

static struct state *first_state(struct rng *rng)
{
    struct state *now = state_weights(rng, 3, 30000);
    static const struct {
        const char *name;
        uint64_t bytes;
    } others[] = {{"several", 1200000}, {"small", 100}, {"medium", 5000}, {"rare", 70000}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct held *held = state_add(now, others[i].name, LMC_U8, 1, &others[i].bytes);
        rng_fill(rng, held->data, held->bytes);
    }
    state_add(now, "notes", LMC_U8, 1, &others[2].bytes)->kind = LMCS_ATTACHMENT;
    state_add(now, "empty", LMC_F32, 1, &(uint64_t){0});
    return now;
}

/* ---- A run of an optimizer ---- */

const char *const array_names[ARRAYS] = {"m0", "w0", "m1", "w1"};

static void make_steps(struct subject *subject)
{
    static const uint64_t elements[ARRAYS] = {5000, 5000, LMC_BLOCK_BYTES / 4 + 5000, LMC_BLOCK_BYTES / 4 + 5000};
    struct rng rng = {6};
    for (size_t i = 0; i < STEPS; i++) {
        struct state *step = i == 0 ? calloc(1, sizeof *step) : state_copy(subject->steps[i - 1]);
        EXPECT(step != NULL);
        for (size_t t = 0; i == 0 && t < ARRAYS; t++) {
            struct held *held = state_add(step, array_names[t], LMC_F32, 1, &elements[t]);
            memset(held->data, 0, held->bytes);
        }
        for (size_t t = 0; t < ARRAYS; t += 2)
            sgd_step(&rng, (float *)(void *)step->tensors[t].data, (float *)(void *)step->tensors[t + 1].data,
                     elements[t]);
        subject->steps[i] = step;
    }
}

enum lmcs_status take_step(struct lmcs_pool *pool, const struct state *step, int64_t number)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    bool promised = false;
    lmcs_commit_options_init(&options);
    options.step = number;
    enum lmcs_status status = lmcs_capture_begin(pool, "trained", &capture, &err);
    if (status != LMCS_OK)
        return status;
    for (size_t t = 0; status == LMCS_OK && t < ARRAYS; t += 2) {
        const struct lmcs_relation relation = sgd_relation(array_names[t], array_names[t + 1]);
        status = lmcs_capture_relate(capture, &relation, 1, &err);
    }
    if (status == LMCS_OK && number % 2 == 0) {
        status = lmcs_capture_promise(capture, &options, NULL, &err);
        promised = status == LMCS_OK;
    }
    lmcs_capture_lend(capture, number % 4 == 1);
    for (size_t t = 0; status == LMCS_OK && t < ARRAYS; t++) {
        struct lmcs_tensor tensor;
        const void *data = step->tensors[t].data;
        held_tensor(&step->tensors[t], &tensor);
        status = lmcs_capture_put(capture, &tensor, &data, 1, &err);
    }
    if (!promised && status != LMCS_OK) {
        lmcs_capture_abort(capture);
        return status;
    }
    if (status != LMCS_OK)
        lmcs_capture_fail(capture, &err);
    else
        status = lmcs_capture_commit(capture, &options, NULL, &err);
    return promised ? lmcs_capture_wait(capture, &err) : status;
}

static void train(struct lmcs_pool *pool, struct subject *subject)
{
    make_steps(subject);
    OK(lmcs_shelf_set_policy(pool, "trained", "keep_raw=1 restore=none parity=none " WRITE_LINKS, &err));
    for (int i = 0; i < TRAINED; i++) {
        if (i == 3) /* the line has 2 links: the step becomes keyframes */
            OK(lmcs_shelf_set_policy(pool, "trained", "links=2", &err));
        OK(take_step(pool, subject->steps[i], i));
        if (i == 3)
            OK(lmcs_shelf_set_policy(pool, "trained", "links=auto", &err));
    }
    for (uint64_t n = 1; n <= TRAINED; n++)
        EXPECT(storage_of(pool, "trained", n).longest_line == (n < 4 ? n - 1 : n - 4));
}

bool rests_on(struct lmcs_txn *txn, uint64_t id, uint64_t payload)
{
    struct lmcs_content content;
    OK(lmcs_content_get(txn, id, &content, &err));
    if (id == payload)
        return true;
    if (content.df.payload == LMCS_PAYLOAD_LINKED)
        return rests_on(txn, content.link, payload);
    for (size_t i = 0; i < content.df.base_count; i++)
        if (rests_on(txn, content.bases[i], payload))
            return true;
    return false;
}

static void fill_pool(struct subject *subject)
{
    struct rng rng = {1};
    struct lmcs_pool *pool = open_quiet(subject->path);
    struct state *now = first_state(&rng);
    for (int i = 0; i < SNAPSHOTS; i++) {
        subject->states[i] = state_copy(now);
        take_snapshot(pool, "run", now, i);
        state_step(now, &rng, 0, 2);
        if (i % 3 == 2)
            rng_fill(&rng, now->tensors[3].data, 50000); /* part of its first block */
        rng_fill(&rng, now->tensors[4].data, 10);
        if (i == 3)
            rng_fill(&rng, now->tensors[6].data, 30000);
    }
    OK(lmcs_tag_set(pool, "run", "best", 2, &err));
    subject->big = calloc(1, sizeof *subject->big);
    struct held *big = state_add(subject->big, "big", LMC_U8, 1, &(uint64_t){6000000});
    rng_fill(&rng, big->data, big->bytes);
    take_snapshot(pool, "big", subject->big, 0);
    take_snapshot(pool, "other", subject->states[2], 5);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "other", 1, false, NULL, &err));
    take_snapshot(pool, "other", subject->states[3], 6);
    train(pool, subject);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

struct subject *make_subject(const char *path)
{
    struct subject *subject = calloc(1, sizeof *subject);
    snprintf(subject->path, sizeof subject->path, "%s", path);
    fill_pool(subject);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    struct lmcs_txn txn;
    OK(lmcs_txn_read(pool, &txn, &err));
    subject->root = txn.root.self;
    subject->superblock = lmcs_media_superblock(pool->media);
    subject->heap = lmcs_media_heap(pool->media);
    for (uint8_t kind = 0; kind < LMCS_TREE_NUMBERS; kind++)
        note_tree(subject, &txn, kind, &txn.root.trees[kind]);
    note_payloads(subject, &txn);
    lmcs_txn_end(&txn);
    close_pool(pool);
    EXPECT(subject->payload_count > 20 && subject->page_count > 15 && subject->object_count > 2);
    return subject;
}

void free_subject(struct subject *subject)
{
    for (int i = 0; i < SNAPSHOTS; i++)
        state_free(subject->states[i]);
    for (int i = 0; i < STEPS; i++)
        state_free(subject->steps[i]);
    state_free(subject->big);
    free(subject);
}

/* ---- Its bytes ---- */

void file_read(const char *path, uint64_t at, void *data, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    EXPECT(fd >= 0 && pread(fd, data, bytes, (off_t)at) == (ssize_t)bytes);
    close(fd);
}

void file_write(const char *path, uint64_t at, const void *data, size_t bytes)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0 && pwrite(fd, data, bytes, (off_t)at) == (ssize_t)bytes);
    close(fd);
}

void file_flip(const char *path, uint64_t at, unsigned bit)
{
    unsigned char byte = 0;
    file_read(path, at, &byte, 1);
    byte ^= (unsigned char)(1u << bit % 8);
    file_write(path, at, &byte, 1);
}

/* ---- Reading it ---- */

uint64_t read_tensor(struct lmcs_snapshot *snapshot, const struct held *held)
{
    struct lmcs_view *view;
    const char *name = held->name;
    unsigned char *buffer = malloc(held->bytes + 1);
    uint64_t lost = 1;
    EXPECT(buffer != NULL);
    if (lmcs_snapshot_read(snapshot, held->kind, name, buffer, held->bytes, &err) == LMCS_OK) {
        EXPECT(memcmp(buffer, held->data, held->bytes) == 0);
        lost = 0;
    }
    if (lmcs_view_open(snapshot, &name, &held->kind, 1, LMCS_VIEW_VERIFY, &view, &err) == LMCS_OK) {
        EXPECT(memcmp(lmcs_view_data(view, 0), held->data, held->bytes) == 0);
        lmcs_view_close(view);
    } else {
        lost = 1;
    }
    free(buffer);
    return lost;
}

static uint64_t read_snapshot(struct lmcs_pool *pool, const char *shelf, uint64_t number, int64_t step,
                              const struct state *state)
{
    char which[32];
    struct lmcs_snapshot *snapshot;
    uint64_t lost = 0;
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    if (lmcs_snapshot_find(pool, shelf, which, &snapshot, &err) != LMCS_OK)
        return state->count;
    EXPECT(lmcs_snapshot_info(snapshot)->number == number && lmcs_snapshot_info(snapshot)->step == step);
    for (size_t i = 0; i < state->count; i++)
        lost += read_tensor(snapshot, &state->tensors[i]);
    lmcs_snapshot_close(snapshot);
    return lost;
}

enum lmcs_status try_open(const char *path, enum lmcs_open_mode mode, struct lmcs_pool **pool)
{
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    options.threads = 1;
    return lmcs_pool_open(path, mode, &options, pool, &err);
}

uint64_t read_what_is_left(const struct subject *subject, const char *path, uint64_t first)
{
    struct lmcs_pool *pool;
    uint64_t lost = 0;
    if (try_open(path, LMCS_OPEN_READ, &pool) != LMCS_OK)
        return UINT64_MAX;
    for (uint64_t n = first; n <= SNAPSHOTS; n++)
        lost += read_snapshot(pool, "run", n, (int64_t)n - 1, subject->states[n - 1]);
    for (uint64_t n = 1; n <= TRAINED; n++)
        lost += read_snapshot(pool, "trained", n, (int64_t)n - 1, subject->steps[n - 1]);
    lost += read_snapshot(pool, "other", 2, 6, subject->states[3]);
    if (first == 1)
        lost += read_snapshot(pool, "big", 1, 0, subject->big);
    close_pool(pool);
    return lost;
}
