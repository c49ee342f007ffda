/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_scrub_support.h - tensors with rows and several blocks, flipped bits in chosen places, and reports of a scrub.
 */
#ifndef LMCS_TEST_SCRUB_SUPPORT_H
#define LMCS_TEST_SCRUB_SUPPORT_H

#include <fcntl.h>
#include <unistd.h>

#include "records/content.h"
#include "records/safety.h"
#include "support.h"

enum { ROWS = 576, COLUMNS = 1024, ROW_BYTES = COLUMNS * 4, BLOCK_ROWS = 256 };

/* "moving" changes with every step, "still" never, "table" in one row; all have 2.25 MiB in 576 rows. */
static inline struct state *make_rows(struct rng *rng)
{
    struct state *state = calloc(1, sizeof *state);
    static const char *const names[] = {"moving", "still", "table"};
    const uint64_t shape[] = {ROWS, COLUMNS}, small = 700;
    for (int i = 0; i < 3; i++) {
        struct held *held = state_add(state, names[i], LMC_F32, 2, shape);
        rng_fill(rng, held->data, held->bytes);
        for (size_t k = 3; k < held->bytes; k += 4) {
            held->data[k] = 0x3f;
            held->data[k - 1] &= 0xbf;
        }
    }
    rng_fill(rng, state_add(state, "small", LMC_U8, 1, &small)->data, small);
    return state;
}

static inline void step_rows(struct state *state, struct rng *rng, int step)
{
    state_step(state, rng, 0, 1);
    rng_fill(rng, state->tensors[2].data + (size_t)(step % BLOCK_ROWS) * ROW_BYTES, 64);
    rng_fill(rng, state->tensors[3].data, 8);
}

static inline void take_rows(struct lmcs_pool *pool, struct state **states, int count, struct rng *rng)
{
    for (int i = 0; i < count; i++) {
        states[i] = i == 0 ? make_rows(rng) : state_copy(states[i - 1]);
        if (i > 0)
            step_rows(states[i], rng, i);
        EXPECT(take_snapshot(pool, "run", states[i], i) == (uint64_t)i + 1);
    }
}

static inline void free_rows(struct state **states, int count)
{
    for (int i = 0; i < count; i++)
        state_free(states[i]);
}

static inline struct lmcs_content content_record(struct lmcs_pool *pool, uint64_t id)
{
    struct lmcs_txn txn;
    struct lmcs_content content;
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_content_get(&txn, id, &content, &err));
    lmcs_txn_end(&txn);
    return content;
}

static inline struct lmcs_content record_of(struct lmcs_pool *pool, const char *shelf, uint64_t number,
                                            const char *tensor)
{
    return content_record(pool, content_of(pool, shelf, number, tensor));
}

static inline void turn_bytes(const char *path, uint64_t offset, size_t bytes)
{
    unsigned char data[4096];
    int fd = open(path, O_RDWR | O_CLOEXEC);
    for (size_t n; bytes > 0; bytes -= n, offset += n) {
        n = bytes < sizeof data ? bytes : sizeof data;
        EXPECT(fd >= 0 && pread(fd, data, n, (off_t)offset) == (ssize_t)n);
        for (size_t i = 0; i < n; i++)
            data[i] ^= 0x55;
        EXPECT(pwrite(fd, data, n, (off_t)offset) == (ssize_t)n);
    }
    close(fd);
}

/* Turns bytes of the content's stored form from `at` on. */
static inline void damage_content(const char *path, const struct lmcs_content *content, uint64_t at, size_t bytes)
{
    EXPECT(content->df.part_count == 1 && at + bytes <= content->df.stored_bytes);
    turn_bytes(path, content->parts[0].offset + at, bytes);
}

enum { MOST_TOLD = 64 };

struct told {
    enum lmcs_damage_state state;
    char what[256];
    char tensor[64];
    char source[128];
    char holders[512]; /* "run@1..4 moving; fork@1 moving; " */
    uint64_t first_byte, byte_count, first_element, element_count, first_row, row_count, content;
};

struct telling {
    struct told items[MOST_TOLD];
    size_t count;
    struct lmcs_scrub_report report;
};

static inline void note_told(void *context, const struct lmcs_scrub_damage *damage)
{
    struct telling *telling = context;
    EXPECT(telling->count < MOST_TOLD && damage->what != NULL && damage->what[0] != '\0' && damage->source != NULL);
    struct told *told = &telling->items[telling->count++];
    *told = (struct told){.state = damage->state,
                          .first_byte = damage->first_byte,
                          .byte_count = damage->byte_count,
                          .first_element = damage->first_element,
                          .element_count = damage->element_count,
                          .first_row = damage->first_row,
                          .row_count = damage->row_count,
                          .content = damage->content};
    snprintf(told->what, sizeof told->what, "%s", damage->what);
    snprintf(told->tensor, sizeof told->tensor, "%s", damage->tensor != NULL ? damage->tensor->name : "");
    snprintf(told->source, sizeof told->source, "%s", damage->source);
    size_t used = 0;
    for (size_t i = 0; i < damage->holder_count && used < sizeof told->holders; i++) {
        const struct lmcs_holder *holder = &damage->holders[i];
        used += (size_t)snprintf(told->holders + used, sizeof told->holders - used, "%s@%llu..%llu %s; ", holder->shelf,
                                 (unsigned long long)holder->first, (unsigned long long)holder->last, holder->tensor);
    }
}

static inline enum lmcs_status scrub_with(struct lmcs_pool *pool, const struct lmcs_scrub_options *options,
                                          struct telling *telling)
{
    telling->count = 0;
    enum lmcs_status status = lmcs_scrub(pool, options, note_told, telling, NULL, &telling->report, &err);
    EXPECT(telling->report.damages == telling->count);
    return status;
}

static inline enum lmcs_status repair_from(struct lmcs_pool *pool, const char *from, struct telling *telling)
{
    struct lmcs_scrub_options options;
    lmcs_scrub_options_init(&options);
    options.repair = true;
    options.from = &from;
    options.from_count = from != NULL;
    return scrub_with(pool, &options, telling);
}

static inline void expect_clean(struct lmcs_pool *pool)
{
    struct telling telling;
    OK(scrub_with(pool, NULL, &telling));
    EXPECT(telling.count == 0 && telling.report.is_whole);
    verify_pool(pool);
}

static inline enum lmcs_status read_tensor(struct lmcs_pool *pool, const char *address, const struct held *held,
                                           uint64_t first, uint64_t bytes)
{
    struct lmcs_snapshot *snapshot;
    unsigned char *buffer = malloc(bytes + 1);
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    enum lmcs_status status = lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, held->name, first, buffer, bytes, &err);
    if (status == LMCS_OK)
        EXPECT(memcmp(buffer, held->data + first, bytes) == 0);
    lmcs_snapshot_close(snapshot);
    free(buffer);
    return status;
}

static inline enum lmcs_status view_tensor(struct lmcs_pool *pool, const char *address, const char *name)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    enum lmcs_status status = lmcs_view_open(snapshot, &name, NULL, 1, 0, &view, &err);
    if (status == LMCS_OK)
        lmcs_view_close(view);
    lmcs_snapshot_close(snapshot);
    return status;
}

#endif
