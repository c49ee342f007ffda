/* SPDX-License-Identifier: BSD-3-Clause */
/* lively.c - see lively.h. */
#include "lively.h"

#include "lmcstore_live.h"

enum {
    PUT,
    STORE,   /* a transaction */
    RESIZE,  /* in one */
    SWAP,    /* two values */
    DECLARE, /* a declared transaction */
    SNAPSHOT,
    WRITE, /* more than a word */
    ABORT, /* of either kind */
    REPLACE,
    CHECK_OUT,
    KINDS
};
enum { MOST_FLOATS = 20000, BYTES = 9000, MOST_VALUE = 6000, KEPT = 3 };

/* Any kind may follow any. */
static unsigned kind_of(uint64_t n)
{
    return (unsigned)(lmc_hash64(&n, sizeof n, 5) % KINDS);
}

static uint64_t floats_of(uint64_t n)
{
    return 1 + lmc_hash64(&n, sizeof n, 6) % MOST_FLOATS;
}

static uint64_t value_bytes_of(uint64_t n)
{
    return lmc_hash64(&n, sizeof n, 7) % MOST_VALUE;
}

static void fill(void *data, uint64_t bytes, uint64_t n)
{
    struct rng rng = {n};
    rng_fill(&rng, data, bytes);
}

/* ---- Steps ---- */

static struct lmcs_live *open_live(struct lmcs_pool *pool, const char *name)
{
    struct lmcs_live *live;
    OK(lmcs_live_open(pool, LIVE_SHELF, name, &live, &err));
    return live;
}

static enum lmcs_status put_value(struct lmcs_pool *pool, uint64_t n)
{
    unsigned char data[MOST_VALUE];
    fill(data, value_bytes_of(n), n);
    return lmcs_live_put(pool, LIVE_SHELF, "value", data, value_bytes_of(n), "bytes", 5, &err);
}

static enum lmcs_status make_weights(struct lmcs_pool *pool, uint64_t n)
{
    uint64_t floats = floats_of(n);
    struct lmcs_tensor tensor = {.dtype = LMC_F32, .ndim = 1, .shape = &floats};
    struct lmcs_live_options options;
    struct lmcs_live *live;
    lmcs_live_options_init(&options);
    options.flags = LMCS_LIVE_UNNAMED;
    options.reserve_bytes = (MOST_FLOATS + 1) * sizeof(float);
    enum lmcs_status status = lmcs_live_create(pool, LIVE_SHELF, &tensor, &options, &live, &err);
    if (status != LMCS_OK)
        return status;
    fill(lmcs_live_data(live), floats * sizeof(float), n);
    status = lmcs_live_replace(live, "weights", &err);
    lmcs_live_close(live);
    return status;
}

static enum lmcs_status write_bytes(struct lmcs_pool *pool, uint64_t n)
{
    unsigned char data[BYTES];
    struct lmcs_live *live = open_live(pool, "bytes");
    fill(data, sizeof data, n);
    enum lmcs_status status = lmcs_live_write(live, 0, data, sizeof data, &err);
    lmcs_live_close(live);
    return status;
}

static enum lmcs_status change_within(struct lmcs_pool *pool, struct lmcs_transaction *transaction, unsigned kind,
                                      uint64_t floats, uint64_t n)
{
    struct lmcs_live *weights = open_live(pool, "weights");
    enum lmcs_status status = LMCS_OK;
    if (kind == RESIZE) {
        floats = floats_of(n);
        status = lmcs_live_resize(weights, 1, &floats, &err);
    }
    if (status == LMCS_OK)
        status = lmcs_transaction_declare(transaction, weights, 0, floats * sizeof(float), &err);
    if (status == LMCS_OK)
        fill(lmcs_live_data(weights), floats * sizeof(float), n);
    if (status == LMCS_OK)
        status = write_bytes(pool, n);
    if (status == LMCS_OK)
        status = lmcs_live_put(pool, LIVE_SHELF, "counter", &n, sizeof n, NULL, 0, &err);
    lmcs_live_close(weights);
    return status;
}

static enum lmcs_status run_transaction(struct lmcs_pool *pool, const struct lively *lively, unsigned kind, uint64_t n)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction = NULL;
    lmcs_transaction_options_init(&options);
    options.flags = kind == DECLARE || (kind == ABORT && n % 2 == 0) ? LMCS_TRANSACTION_DECLARED : 0;
    options.limit_bytes = 1 << 20;
    enum lmcs_status status = lmcs_transaction_begin(pool, LIVE_SHELF, NULL, 0, &options, &transaction, &err);
    if (status != LMCS_OK)
        return status;
    status = change_within(pool, transaction, kind, lively->now.floats, n);
    if (status == LMCS_OK && kind != ABORT)
        status = lmcs_transaction_commit(transaction, &err);
    if (status != LMCS_OK || kind == ABORT)
        lmcs_transaction_abort(transaction);
    return status == LMCS_UNSUPPORTED ? LMCS_FULL : status; /* exceeds its reserve: another address */
}

static enum lmcs_status take_snapshot_of_all(struct lmcs_pool *pool)
{
    uint64_t numbers[KEPT + 2];
    size_t count;
    enum lmcs_status status = lmcs_live_snapshot(pool, LIVE_SHELF, NULL, NULL, &err);
    if (status != LMCS_OK)
        return status;
    OK(lmcs_snapshot_numbers(pool, LIVE_SHELF, 1, numbers, KEPT + 2, &count, &err));
    if (count > KEPT && lmcs_snapshot_remove(pool, LIVE_SHELF, numbers[0], false, NULL, &err) != LMCS_OK)
        EXPECT(err.status == LMCS_FULL);
    return LMCS_OK;
}

enum lmcs_status lively_step(struct lmcs_pool *pool, const struct lively *lively, uint64_t n)
{
    unsigned kind = kind_of(n);
    switch (kind) {
    case PUT:
        return put_value(pool, n);
    case SWAP:
        return lmcs_live_swap(pool, LIVE_SHELF, "a", "b", &err);
    case SNAPSHOT:
        return take_snapshot_of_all(pool);
    case WRITE:
        return write_bytes(pool, n);
    case REPLACE:
        return make_weights(pool, n);
    case CHECK_OUT:
        return lively->has_saved ? lmcs_live_checkout(pool, LIVE_SHELF, "latest", &err) : LMCS_OK;
    default:
        return run_transaction(pool, lively, kind, n);
    }
}

void lively_apply(struct lively *lively, uint64_t n)
{
    struct lively_variables *now = &lively->now;
    switch (kind_of(n)) {
    case PUT:
        now->value = n;
        break;
    case SWAP:
        now->swapped = !now->swapped;
        break;
    case SNAPSHOT:
        lively->saved = *now;
        lively->has_saved = true;
        break;
    case WRITE:
        now->bytes = n;
        break;
    case REPLACE:
        now->weights = n;
        now->floats = floats_of(n);
        break;
    case CHECK_OUT:
        *now = lively->has_saved ? lively->saved : *now;
        break;
    case ABORT:
        break;
    default:
        now->floats = kind_of(n) == RESIZE ? floats_of(n) : now->floats;
        now->weights = now->bytes = now->counter = n;
    }
}

void lively_set_up(struct lmcs_pool *pool, struct lively *lively)
{
    uint64_t bytes = BYTES, none = 0;
    struct lmcs_tensor tensor = {.name = "bytes", .dtype = LMC_U8, .ndim = 1, .shape = &bytes};
    *lively = (struct lively){.now.floats = floats_of(0)};
    OK(lmcs_live_create(pool, LIVE_SHELF, &tensor, NULL, NULL, &err));
    OK(write_bytes(pool, 0));
    OK(make_weights(pool, 0));
    OK(put_value(pool, 0));
    OK(lmcs_live_put(pool, LIVE_SHELF, "counter", &none, sizeof none, NULL, 0, &err));
    OK(lmcs_live_put(pool, LIVE_SHELF, "a", "first", 5, NULL, 0, &err));
    OK(lmcs_live_put(pool, LIVE_SHELF, "b", "the second", 10, NULL, 0, &err));
}

/* ---- Checking ---- */

struct look {
    struct lmcs_pool *pool;
    struct lmcs_snapshot *snapshot; /* NULL: live */
};

static bool has(const struct look *look, const char *name, uint32_t kind, const void *wanted, uint64_t bytes)
{
    unsigned char *got = malloc(bytes + 1);
    uint64_t there = bytes;
    enum lmcs_status status;
    EXPECT(got != NULL);
    if (look->snapshot != NULL) {
        status = lmcs_snapshot_read(look->snapshot, kind, name, got, bytes, &err);
    } else {
        struct lmcs_live *live = open_live(look->pool, name);
        status = lmcs_live_get(live, got, bytes, &there, &err);
        lmcs_live_close(live);
    }
    /* Another size is LMCS_INVALID. */
    EXPECT(status == LMCS_OK || status == LMCS_INVALID);
    bool right = status == LMCS_OK && there == bytes && memcmp(got, wanted, bytes) == 0;
    free(got);
    return right;
}

static bool has_filled(const struct look *look, const char *name, uint32_t kind, uint64_t bytes, uint64_t n)
{
    unsigned char *wanted = malloc(bytes + 1);
    EXPECT(wanted != NULL);
    fill(wanted, bytes, n);
    bool right = has(look, name, kind, wanted, bytes);
    free(wanted);
    return right;
}

static bool is_right(const struct look *look, const struct lively_variables *v)
{
    const char *a = v->swapped ? "the second" : "first", *b = v->swapped ? "first" : "the second";
    return has_filled(look, "weights", LMCS_TENSOR, v->floats * sizeof(float), v->weights) &&
           has_filled(look, "bytes", LMCS_TENSOR, BYTES, v->bytes) &&
           has_filled(look, "value", LMCS_ATTACHMENT, value_bytes_of(v->value), v->value) &&
           has(look, "counter", LMCS_ATTACHMENT, &v->counter, sizeof v->counter) &&
           has(look, "a", LMCS_ATTACHMENT, a, strlen(a)) && has(look, "b", LMCS_ATTACHMENT, b, strlen(b));
}

static bool count_one(void *context, const struct lmcs_live_info *info)
{
    ++*(size_t *)context;
    return info != NULL;
}

bool lively_is_right(struct lmcs_pool *pool, const struct lively *lively)
{
    struct look look = {pool, NULL};
    size_t count = 0;
    OK(lmcs_live_list(pool, LIVE_SHELF, NULL, count_one, &count, &err));
    EXPECT(count == 6);
    if (!is_right(&look, &lively->now))
        return false;
    enum lmcs_status status = lmcs_snapshot_find(pool, LIVE_SHELF, "latest", &look.snapshot, &err);
    EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
    if (status != LMCS_OK)
        return !lively->has_saved;
    bool right = lively->has_saved && is_right(&look, &lively->saved);
    lmcs_snapshot_close(look.snapshot);
    return right;
}

void lively_print(FILE *file, const char *what, const struct lively *lively)
{
    const struct lively_variables *v[] = {&lively->now, &lively->saved};
    fprintf(file, "%s, step %llu:", what, (unsigned long long)lively->step);
    for (size_t i = 0; i < (lively->has_saved ? 2 : 1); i++)
        fprintf(file, "%s %llu floats, weights %llu, bytes %llu, value %llu, counter %llu%s", i == 0 ? "" : "; saved",
                (unsigned long long)v[i]->floats, (unsigned long long)v[i]->weights, (unsigned long long)v[i]->bytes,
                (unsigned long long)v[i]->value, (unsigned long long)v[i]->counter, v[i]->swapped ? ", swapped" : "");
    fprintf(file, "\n");
}
