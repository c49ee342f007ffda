/* SPDX-License-Identifier: BSD-3-Clause */
/* test_diff.c - differences of snapshots against numbers computed here; reading parts of tensors. */
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "records/content.h"
#include "snapshots/elements.h"
#include "support.h"

struct told {
    struct lmcs_difference items[40];
    char names[40][64];
    size_t count;
    size_t stop_after; /* 0: never */
};

static bool note(void *context, const struct lmcs_difference *difference)
{
    struct told *told = context;
    EXPECT(told->count < 40);
    snprintf(told->names[told->count], 64, "%s", difference->name);
    EXPECT((difference->before == NULL) == (difference->kind == LMCS_ADDED));
    EXPECT((difference->after == NULL) == (difference->kind == LMCS_REMOVED));
    told->items[told->count] = *difference;
    told->items[told->count].name = told->names[told->count];
    told->count++;
    return told->count != told->stop_after;
}

static enum lmcs_status try_diff(struct lmcs_pool *pool, const char *before, const char *after, uint32_t flags,
                                 struct told *told, struct lmcs_diff_report *report)
{
    struct lmcs_snapshot *a, *b;
    OK(lmcs_snapshot_open(pool, before, &a, &err));
    OK(lmcs_snapshot_open(pool, after, &b, &err));
    *told = (struct told){.stop_after = told->stop_after};
    enum lmcs_status status = lmcs_snapshot_diff(a, b, flags, note, told, NULL, report, &err);
    lmcs_snapshot_close(a);
    lmcs_snapshot_close(b);
    return status;
}

static const struct lmcs_difference *told_of(const struct told *told, const char *name)
{
    for (size_t i = 0; i < told->count; i++)
        if (strcmp(told->names[i], name) == 0)
            return &told->items[i];
    fail_msg("nothing is told of %s", name);
    return NULL;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * (fabs(a) + fabs(b)) || (isnan(a) && isnan(b));
}

static void drop(struct state *state)
{
    for (size_t i = 0; i < state->count; i++)
        free(state->tensors[i].data);
    free(state->tensors);
}

static void test_kinds(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state a = {0}, b = {0};
    struct told told = {0};
    struct lmcs_diff_report report;
    const uint64_t four = 4, five = 5, pair[] = {2, 2};
    state_add(&a, "same", LMC_F32, 1, &four);
    state_add(&a, "other", LMC_F32, 1, &four)->data[0] = 1;
    state_add(&a, "gone", LMC_U8, 1, &five);
    state_add(&a, "shape", LMC_F32, 1, &four);
    state_add(&a, "dtype", LMC_F32, 1, &four);
    state_add(&b, "same", LMC_F32, 1, &four);
    state_add(&b, "other", LMC_F32, 1, &four)->data[0] = 2;
    state_add(&b, "new", LMC_U8, 1, &five);
    state_add(&b, "shape", LMC_F32, 2, pair);
    state_add(&b, "dtype", LMC_I32, 1, &four);
    take_snapshot(pool, "run", &a, 1);
    take_snapshot(pool, "eval", &b, 1); /* another shelf: equal tensors have other contents with the same digest */
    OK(try_diff(pool, "run", "eval", 0, &told, &report));
    EXPECT(told.count == 5);
    EXPECT(told_of(&told, "other")->kind == LMCS_CHANGED && told_of(&told, "other")->changed == 1);
    EXPECT(told_of(&told, "gone")->kind == LMCS_REMOVED && told_of(&told, "gone")->before_bytes == 5);
    EXPECT(told_of(&told, "new")->kind == LMCS_ADDED && told_of(&told, "new")->after_bytes == 5);
    EXPECT(told_of(&told, "shape")->kind == LMCS_RESHAPED && told_of(&told, "dtype")->kind == LMCS_RESHAPED);
    EXPECT(strcmp(told.names[4], "gone") == 0);
    EXPECT(report.same == 1 && report.changed == 1 && report.reshaped == 2 && report.added == 1 && report.removed == 1);
    EXPECT(report.bytes_compared == 16);
    OK(try_diff(pool, "eval", "run", LMCS_DIFF_SAME | LMCS_DIFF_NAMES, &told, &report));
    EXPECT(told.count == 6 && told_of(&told, "same")->kind == LMCS_SAME && told_of(&told, "same")->cosine == 1);
    EXPECT(told_of(&told, "new")->kind == LMCS_REMOVED && told_of(&told, "gone")->kind == LMCS_ADDED);
    EXPECT(told_of(&told, "other")->changed == 0 && isnan(told_of(&told, "other")->cosine));
    EXPECT(report.bytes_compared == 0);
    OK(try_diff(pool, "run", "run", 0, &told, &report));
    EXPECT(told.count == 0 && report.same == 5);
    told.stop_after = 2;
    OK(try_diff(pool, "run", "eval", 0, &told, &report));
    EXPECT(told.count == 2);
    drop(&a);
    drop(&b);
    close_pool(pool);
}

static double value_of(uint32_t dtype, const unsigned char *at)
{
    union {
        uint32_t u32;
        float f32;
        double f64;
        int8_t i8;
        int16_t i16;
        int32_t i32;
        int64_t i64;
        uint16_t u16;
        uint64_t u64;
    } v = {.u64 = 0};
    memcpy(&v, at, lmc_dtype_size(dtype));
    switch (dtype) {
    case LMC_F32:
        return v.f32;
    case LMC_F64:
        return v.f64;
    case LMC_BF16:
        v.u32 = (uint32_t)v.u16 << 16;
        return v.f32;
    case LMC_I8:
        return v.i8;
    case LMC_I16:
        return v.i16;
    case LMC_I32:
        return v.i32;
    case LMC_I64:
        return (double)v.i64;
    case LMC_U16:
        return v.u16;
    case LMC_U32:
        return v.u32;
    case LMC_U64:
        return (double)v.u64;
    default:
        return at[0];
    }
}

static void expect_numbers(uint32_t dtype, const unsigned char *a, const unsigned char *b, uint64_t bytes,
                           const struct lmcs_difference *told)
{
    size_t size = lmc_dtype_size(dtype);
    uint64_t changed = 0, finite = 0, wild[2] = {0, 0};
    long double most = 0, sum = 0, aa = 0, bb = 0, ab = 0;
    for (uint64_t at = 0; at < bytes; at += size) {
        double x = value_of(dtype, a + at), y = value_of(dtype, b + at);
        changed += memcmp(a + at, b + at, size) != 0;
        wild[0] += !isfinite(x);
        wild[1] += !isfinite(y);
        if (!isfinite(x) || !isfinite(y))
            continue;
        finite++;
        most = fabsl((long double)y - x) > most ? fabsl((long double)y - x) : most;
        sum += ((long double)y - x) * ((long double)y - x);
        aa += (long double)x * x;
        bb += (long double)y * y;
        ab += (long double)x * y;
    }
    EXPECT(told->elements == bytes / size && told->changed == changed);
    EXPECT(told->not_finite_before == wild[0] && told->not_finite_after == wild[1]);
    EXPECT(near(told->max_change, (double)most));
    EXPECT(near(told->rms_change, finite > 0 ? sqrt((double)(sum / finite)) : 0));
    EXPECT(near(told->rms_before, finite > 0 ? sqrt((double)(aa / finite)) : 0));
    EXPECT(near(told->rms_after, finite > 0 ? sqrt((double)(bb / finite)) : 0));
    EXPECT(near(told->cosine, aa > 0 && bb > 0 ? (double)(ab / sqrtl(aa) / sqrtl(bb)) : NAN));
}

static void fill_numbers(struct rng *rng, struct held *held)
{
    for (size_t i = 0; i < held->bytes; i += lmc_dtype_size(held->dtype)) {
        float value = (float)((double)(rng_next(rng) >> 11) * 0x1p-53 - 0.5);
        double wide = value * 1e3;
        uint32_t word;
        memcpy(&word, &value, sizeof word);
        if (held->dtype == LMC_F32)
            memcpy(held->data + i, &value, 4);
        else if (held->dtype == LMC_F64)
            memcpy(held->data + i, &wide, 8);
        else if (held->dtype == LMC_BF16)
            memcpy(held->data + i, (char *)&word + 2, 2);
        else
            rng_fill(rng, held->data + i, lmc_dtype_size(held->dtype) > 4 ? 6 : lmc_dtype_size(held->dtype));
    }
}

static void test_numbers(void **state)
{
    static const uint32_t dtypes[] = {LMC_F32, LMC_F64, LMC_BF16, LMC_I8,  LMC_I16, LMC_I32,
                                      LMC_I64, LMC_U8,  LMC_U16,  LMC_U32, LMC_U64, LMC_BOOL};
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {11};
    struct state a = {0}, b = {0};
    struct told told = {0};
    struct lmcs_diff_report report;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        const uint64_t shape = 1 + rng_below(&rng, 700000);
        struct held *x = state_add(&a, lmc_dtype_name(dtypes[i]), dtypes[i], 1, &shape);
        fill_numbers(&rng, x);
        struct held *y = state_add(&b, lmc_dtype_name(dtypes[i]), dtypes[i], 1, &shape);
        memcpy(y->data, a.tensors[a.count - 1].data, y->bytes);
        for (size_t k = 0; k < y->bytes; k += lmc_dtype_size(dtypes[i]) * (1 + rng_below(&rng, 5)))
            y->data[k] ^= (unsigned char)(1 + rng_below(&rng, 7));
    }
    take_snapshot(pool, "run", &a, 1);
    take_snapshot(pool, "run", &b, 2);
    OK(try_diff(pool, "run@1", "run@2", 0, &told, &report));
    EXPECT(told.count == a.count && report.changed == a.count);
    for (size_t i = 0; i < a.count; i++)
        expect_numbers(a.tensors[i].dtype, a.tensors[i].data, b.tensors[i].data, a.tensors[i].bytes,
                       told_of(&told, a.tensors[i].name));
    /* As deltas: equal to the last bit. */
    struct told again = {0};
    OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
    OK(lmcs_compact(pool, NULL, &err));
    OK(try_diff(pool, "run@1", "run@2", 0, &again, &report));
    for (size_t i = 0; i < again.count; i++)
        EXPECT(again.items[i].cosine == told.items[i].cosine && again.items[i].rms_change == told.items[i].rms_change);
    drop(&a);
    drop(&b);
    close_pool(pool);
}

static void test_numbers_that_are_none(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct told told = {0};
    struct state a = {0}, b = {0};
    const uint64_t shape = 6, none = 0;
    const float x[] = {1, NAN, INFINITY, 3, 0, -0.0f}, y[] = {2, NAN, 1, -INFINITY, 0, 0.0f};
    memcpy(state_add(&a, "x", LMC_F32, 1, &shape)->data, x, sizeof x);
    memcpy(state_add(&b, "x", LMC_F32, 1, &shape)->data, y, sizeof y);
    state_add(&a, "empty", LMC_F32, 1, &none);
    state_add(&b, "empty", LMC_F32, 1, &none);
    state_add(&a, "nan", LMC_F32, 1, &shape);
    memcpy(state_add(&b, "nan", LMC_F32, 1, &shape)->data, y, sizeof y);
    for (size_t i = 0; i < 6; i++)
        ((float *)(void *)a.tensors[2].data)[i] = NAN;
    take_snapshot(pool, "run", &a, 1);
    take_snapshot(pool, "run", &b, 2);
    OK(try_diff(pool, "run@1", "run@2", 0, &told, NULL));
    const struct lmcs_difference *d = told_of(&told, "x");
    EXPECT(d->changed == 4); /* NaNs of the same bits are equal; -0 is not 0 */
    EXPECT(d->not_finite_before == 2 && d->not_finite_after == 2 && d->max_change == 1);
    EXPECT(near(d->rms_change, sqrt(1.0 / 3)) && near(d->cosine, 1));
    d = told_of(&told, "nan");
    EXPECT(d->not_finite_before == 6 && d->rms_change == 0 && d->max_change == 0 && isnan(d->cosine));
    EXPECT(told.count == 2);
    drop(&a);
    drop(&b);
    close_pool(pool);
}

/* The values of the formats' definitions; tests/python compares all bit patterns with PyTorch's. */
static void test_small_floats(void **state)
{
    static const struct {
        uint32_t dtype;
        unsigned bits;
        double value;
    } cases[] = {
        {LMC_F8_E4M3FN, 0x7e, 448},     {LMC_F8_E4M3FN, 0x01, 0x1p-9}, {LMC_F8_E4M3FNUZ, 0x7f, 240},
        {LMC_F8_E5M2, 0x7b, 57344},     {LMC_F8_E5M2, 0x01, 0x1p-16},  {LMC_F8_E5M2FNUZ, 0x7f, 57344},
        {LMC_F8_E8M0FNU, 0x80, 2},      {LMC_F16, 0x7bff, 65504},      {LMC_F16, 0x0001, 0x1p-24},
        {LMC_F16, 0x8400, -0x1p-14},    {LMC_F4_E2M1FN_X2, 0x07, 6},   {LMC_F4_E2M1FN_X2, 0x01, 0.5},
        {LMC_F4_E2M1FN_X2, 0x09, -0.5}, {LMC_F8_E4M3FN, 0x80, 0},      {LMC_BF16, 0x3f80, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lmcs_compared compared = {0};
        uint16_t zero = 0, bits = (uint16_t)cases[i].bits; /* e8m0 has no zero: 2^-127 is nearest */
        size_t bytes = lmc_dtype_size(cases[i].dtype);
        lmcs_elements_compare(cases[i].dtype, &zero, &bits, bytes, &compared);
        if (!near(compared.most, fabs(cases[i].value)))
            fail_msg("%s 0x%x: %g, not %g", lmc_dtype_name(cases[i].dtype), cases[i].bits, compared.most,
                     cases[i].value);
        EXPECT(compared.elements == (cases[i].dtype == LMC_F4_E2M1FN_X2 ? 2 : 1));
    }
    struct lmcs_compared compared = {0};
    const unsigned char nans[] = {0x7f, 0xff, 0x00}, zeros[] = {0, 0, 0};
    lmcs_elements_compare(LMC_F8_E4M3FN, zeros, nans, 3, &compared);
    EXPECT(compared.not_finite_after == 2 && compared.not_finite_before == 0 && compared.changed == 2);
    const float c[] = {3, 4}, nothing[] = {0, 0};
    compared = (struct lmcs_compared){0};
    lmcs_elements_compare(LMC_C64, nothing, c, 8, &compared);
    EXPECT(compared.elements == 1 && near(compared.most, 5) && near(compared.change, 25));
    /* One NaN half makes the whole NaN. */
    const double first[] = {1, 2, INFINITY, 4, 5, 6}, second[] = {1, NAN, 3, 4, 5, 8};
    compared = (struct lmcs_compared){0};
    lmcs_elements_compare(LMC_C128, first, second, sizeof first, &compared);
    EXPECT(compared.elements == 3 && compared.changed == 3 && compared.finite == 1 && near(compared.most, 2));
    EXPECT(compared.not_finite_before == 1 && compared.not_finite_after == 1);
}

struct stopping {
    uint64_t calls, last_done, total;
    uint64_t stop_at; /* the call that cancels; 0: none */
};

static bool stop_then(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct stopping *stopping = context;
    EXPECT(what[0] != '\0' && done >= stopping->last_done && done <= total);
    stopping->last_done = done;
    stopping->total = total;
    return ++stopping->calls != stopping->stop_at;
}

static void test_long_diffs_can_be_stopped(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {7};
    struct state *held = state_weights(&rng, 3, 700000);
    struct lmcs_snapshot *a, *b;
    struct stopping stopping = {0};
    const struct lmcs_progress progress = {stop_then, &stopping};
    struct told told = {0};
    struct lmcs_diff_report report;
    take_snapshot(pool, "run", held, 1);
    state_step(held, &rng, 0, 3);
    take_snapshot(pool, "run", held, 2);
    OK(lmcs_snapshot_open(pool, "run@1", &a, &err));
    OK(lmcs_snapshot_open(pool, "run@2", &b, &err));
    OK(lmcs_snapshot_diff(a, b, 0, note, &told, &progress, &report, &err));
    EXPECT(told.count == 3 && stopping.calls >= 3 && stopping.total == report.bytes_compared);
    for (uint64_t i = 1; i <= 2; i++) {
        told.count = 0;
        stopping = (struct stopping){.stop_at = i};
        FAILS(LMCS_CANCELLED, lmcs_snapshot_diff(a, b, 0, note, &told, &progress, &report, &err));
        EXPECT(stopping.calls == i && told.count < 3);
    }
    lmcs_snapshot_close(a);
    lmcs_snapshot_close(b);
    state_free(held);
    close_pool(pool);
}

/* The diff fails and names the damaged tensor; a diff of names alone succeeds. */
static void test_damage_is_no_difference(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {8};
    struct state *held = state_weights(&rng, 3, 300000);
    struct lmcs_txn txn;
    struct lmcs_content content;
    struct told told = {0};
    take_snapshot(pool, "run", held, 1);
    state_step(held, &rng, 0, 3);
    take_snapshot(pool, "run", held, 2);
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_content_get(&txn, content_of(pool, "run", 2, "t1"), &content, &err));
    lmcs_txn_end(&txn);
    int fd = open(place->pool, O_RDWR | O_CLOEXEC);
    const uint64_t noise = 0x0123456789abcdef;
    EXPECT(pwrite(fd, &noise, sizeof noise, (off_t)content.parts[0].offset + 80) == sizeof noise);
    close(fd);
    FAILS(LMCS_DAMAGED, try_diff(pool, "run@1", "run@2", 0, &told, NULL));
    EXPECT(strstr(err.message, "\"t1\"") != NULL);
    for (size_t i = 0; i < told.count; i++)
        EXPECT(strcmp(told.names[i], "t1") != 0);
    OK(try_diff(pool, "run@1", "run@2", LMCS_DIFF_NAMES, &told, NULL));
    EXPECT(told.count == 3);
    state_free(held);
    close_pool(pool);
}

static void test_diffs_that_are_refused(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool), *other;
    struct rng rng = {3};
    struct state *held = state_weights(&rng, 2, 100);
    struct lmcs_snapshot *a, *b;
    char path[512];
    place_path(place, "other", path);
    other = open_quiet(path);
    take_snapshot(pool, "run", held, 1);
    take_snapshot(other, "run", held, 1);
    OK(lmcs_snapshot_open(pool, "run", &a, &err));
    OK(lmcs_snapshot_open(other, "run", &b, &err));
    FAILS(LMCS_INVALID, lmcs_snapshot_diff(a, b, 0, NULL, NULL, NULL, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_diff(a, a, 0, NULL, NULL, NULL, NULL, &err));
    lmcs_snapshot_close(a);
    lmcs_snapshot_close(b);
    state_free(held);
    close_pool(pool);
    close_pool(other);
}

static void test_read_range(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {5};
    struct state *held[3];
    const uint64_t floats = 1000003;
    held[0] = state_weights(&rng, 1, floats);
    for (int i = 0; i < 3; i++) {
        if (i > 0) {
            held[i] = state_copy(held[i - 1]);
            state_step(held[i], &rng, 0, 1);
        }
        take_snapshot(pool, "run", held[i], i);
    }
    for (int compacted = 0; compacted < 2; compacted++) {
        struct lmcs_snapshot *snapshot;
        const uint64_t all = 4 * floats, block = LMC_BLOCK_BYTES;
        const uint64_t edges[] = {0, 1, 63, block - 1, block, block + 1, 2 * block, 3 * block, all - 1, all};
        unsigned char *buffer = malloc(all + 1);
        OK(lmcs_snapshot_open(pool, "run@1", &snapshot, &err));
        for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
            for (size_t k = i; k < sizeof edges / sizeof *edges; k++) {
                uint64_t bytes = edges[k] - edges[i];
                buffer[bytes] = 0x5a;
                OK(lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, "t0", edges[i], buffer, bytes, &err));
                EXPECT(memcmp(buffer, held[0]->tensors[0].data + edges[i], bytes) == 0 && buffer[bytes] == 0x5a);
            }
        FAILS(LMCS_INVALID, lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, "t0", all, buffer, 1, &err));
        FAILS(LMCS_INVALID, lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, "t0", all + 1, buffer, 0, &err));
        FAILS(LMCS_INVALID, lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, "t0", 8, buffer, UINT64_MAX, &err));
        FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, "t1", 0, buffer, 1, &err));
        FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read_range(snapshot, LMCS_ATTACHMENT, "t0", 0, buffer, 1, &err));
        free(buffer);
        lmcs_snapshot_close(snapshot);
        OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
        OK(lmcs_compact(pool, NULL, &err));
    }
    EXPECT(storage_of(pool, "run", 1).longest_chain > 0);
    for (int i = 0; i < 3; i++)
        state_free(held[i]);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(test_kinds),
        IN_MEMORY(test_numbers),
        IN_MEMORY(test_numbers_that_are_none),
        IN_MEMORY(test_small_floats),
        IN_MEMORY(test_long_diffs_can_be_stopped),
        IN_MEMORY(test_damage_is_no_difference),
        IN_MEMORY(test_diffs_that_are_refused),
        IN_MEMORY(test_read_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
