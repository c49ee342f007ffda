/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_live.c - live variables: updates of values, persisted stores, transactions, creation and erasure. */
#include "bench.h"
#include "lmcstore_live.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct lmcs_error failure;

static void check(enum lmcs_status status, const char *what)
{
    bench_check(status, &failure, what);
}

static struct lmcs_live *make(struct lmcs_pool *pool, const char *name, uint64_t bytes, uint32_t form)
{
    uint64_t shape = bytes / 8;
    struct lmcs_tensor tensor = {.name = name, .dtype = LMC_I64, .ndim = 1, .shape = &shape};
    struct lmcs_live_options options;
    struct lmcs_live *live;
    lmcs_live_options_init(&options);
    options.form = form;
    options.reserve_bytes = bytes;
    check(lmcs_live_create(pool, "run", &tensor, &options, &live, &failure), "create");
    return live;
}

typedef void work_fn(struct lmcs_live *live, uint64_t round);

/* Returns the seconds of one call: the median of five means over `rounds` calls. */
static double time_of(struct lmcs_live *live, uint64_t rounds, work_fn *work)
{
    enum { TIMES = 5 };
    double seconds[TIMES];
    for (size_t i = 0; i < TIMES; i++) {
        double start = bench_now_s();
        for (uint64_t k = 0; k < rounds; k++)
            work(live, i * rounds + k);
        seconds[i] = (bench_now_s() - start) / (double)rounds;
    }
    return bench_median(seconds, TIMES);
}

static void set_value(struct lmcs_live *live, uint64_t round)
{
    check(lmcs_live_set(live, &round, sizeof round, &failure), "set");
}

static void add_one(struct lmcs_live *live, uint64_t round)
{
    const uint64_t one = 1;
    (void)round;
    check(lmcs_live_add(live, 0, sizeof one, &one, NULL, &failure), "add");
}

static uint64_t some_place(struct lmcs_live *live, uint64_t round)
{
    struct lmcs_live_info info;
    static uint64_t bytes;
    if (bytes == 0) {
        check(lmcs_live_info(live, &info, &failure), "info");
        bytes = info.bytes;
    }
    return round * 0x9e3779b97f4a7c15u % (bytes / 8) * 8;
}

static void store_and_persist(struct lmcs_live *live, uint64_t round)
{
    uint64_t at = some_place(live, round);
    memcpy((char *)lmcs_live_data(live) + at, &round, sizeof round);
    check(lmcs_live_persist(live, at, sizeof round, &failure), "persist");
}

/* Only stores, in memory that is rarely cached. */
static void store_only(struct lmcs_live *live, uint64_t round)
{
    uint64_t at = some_place(live, round);
    memcpy((char *)lmcs_live_data(live) + at, &round, sizeof round);
}

static void run_transaction(struct lmcs_pool *pool, struct lmcs_live *live, uint64_t pages, double seconds[3])
{
    struct lmcs_transaction *transaction;
    double start = bench_now_s();
    check(lmcs_transaction_begin(pool, "run", &live, 1, NULL, &transaction, &failure), "begin");
    seconds[0] = bench_now_s() - start;
    start = bench_now_s();
    for (uint64_t i = 0; i < pages; i++)
        store_only(live, i + 1);
    seconds[1] = bench_now_s() - start;
    start = bench_now_s();
    check(lmcs_transaction_commit(transaction, &failure), "commit");
    seconds[2] = bench_now_s() - start;
}

static void transactions(struct lmcs_pool *pool, struct lmcs_live *live)
{
    static const uint64_t pages[] = {1, 100, 10000};
    printf(", \"transactions\": [");
    for (size_t i = 0; i < 3; i++) {
        enum { TIMES = 5 };
        double parts[3][TIMES], one[3];
        for (size_t k = 0; k < TIMES; k++) {
            run_transaction(pool, live, pages[i], one);
            for (size_t p = 0; p < 3; p++)
                parts[p][k] = one[p];
        }
        printf("%s{\"pages\": %lu, \"begin_s\": %.9f, \"stores_s\": %.9f, \"commit_s\": %.9f}", i == 0 ? "" : ", ",
               (unsigned long)pages[i], bench_median(parts[0], TIMES), bench_median(parts[1], TIMES),
               bench_median(parts[2], TIMES));
    }
    printf("]");
}

static void make_and_erase(struct lmcs_pool *pool, uint64_t rounds)
{
    double made = 0, erased = 0;
    for (uint64_t i = 0; i < rounds; i++) {
        double start = bench_now_s();
        lmcs_live_close(make(pool, "other", 1 << 20, LMCS_LIVE_TENSOR));
        made += bench_now_s() - start;
        start = bench_now_s();
        check(lmcs_live_erase(pool, "run", "other", &failure), "erase");
        erased += bench_now_s() - start;
    }
    printf(", \"create_s\": %.9f, \"erase_s\": %.9f", made / (double)rounds, erased / (double)rounds);
}

void bench_live(const struct bench_options *options)
{
    struct lmcs_pool *pool = bench_pool(options, "bench.pool");
    struct lmcs_live *value = make(pool, "value", 8, LMCS_LIVE_VALUE);
    struct lmcs_live *tensor = make(pool, "tensor", options->bytes, LMCS_LIVE_TENSOR);
    memset(lmcs_live_data(tensor), 1, options->bytes);
    check(lmcs_live_persist(tensor, 0, options->bytes, &failure), "persist");
    printf("{\"bytes\": %lu, \"set_value_s\": %.9f", (unsigned long)options->bytes,
           time_of(value, options->rounds, set_value));
    printf(", \"add_s\": %.9f", time_of(value, options->rounds, add_one));
    printf(", \"store_s\": %.9f", time_of(tensor, options->rounds, store_only));
    printf(", \"store_and_persist_s\": %.9f", time_of(tensor, options->rounds, store_and_persist));
    transactions(pool, tensor);
    make_and_erase(pool, options->rounds < 200 ? options->rounds : 200);
    printf("}\n");
    lmcs_live_close(value);
    lmcs_live_close(tensor);
    bench_close(pool);
    char *path = bench_path(options, "bench.pool");
    unlink(path);
    free(path);
}
