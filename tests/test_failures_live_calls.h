/* SPDX-License-Identifier: BSD-3-Clause */
/* test_failures_live_calls.h - the failing calls of test_failures_live.c, and the digest of all variables. */
#ifndef LMCS_TEST_FAILURES_LIVE_CALLS_H
#define LMCS_TEST_FAILURES_LIVE_CALLS_H

#include "test_live_support.h"

struct scene {
    struct place *place;
    struct lmcs_pool *pool;
    uint64_t kept;
};

struct digest {
    struct lmcs_pool *pool;
    uint64_t hash;
};

static bool add_to_digest(void *context, const struct lmcs_live_info *info)
{
    struct digest *digest = context;
    unsigned char *data = malloc(info->bytes + 1);
    uint64_t bytes, words[] = {digest->hash, info->form, info->dtype, info->ndim, info->shape[0], info->note_bytes};
    struct lmcs_live *live;
    OK(lmcs_live_open(digest->pool, "run", info->name, &live, &err));
    OK(lmcs_live_get(live, data, info->bytes, &bytes, &err));
    EXPECT(bytes == info->bytes);
    lmcs_live_close(live);
    digest->hash = lmc_hash64(words, sizeof words, lmc_hash64(info->name, strlen(info->name), 1));
    digest->hash = lmc_hash64(data, bytes, digest->hash);
    free(data);
    return true;
}

static uint64_t digest_of(struct lmcs_pool *pool)
{
    struct digest digest = {pool, 0};
    OK(lmcs_live_list(pool, "run", NULL, add_to_digest, &digest, &err));
    return digest.hash;
}

static enum lmcs_status with(struct scene *scene, const char *name, struct lmcs_live **live)
{
    return lmcs_live_open(scene->pool, "run", name, live, &err);
}

static enum lmcs_status call_make(struct scene *scene)
{
    uint64_t floats = 50000;
    struct lmcs_tensor tensor = {.name = "new", .dtype = LMC_F32, .ndim = 1, .shape = &floats};
    struct lmcs_live *live;
    enum lmcs_status status = lmcs_live_create(scene->pool, "run", &tensor, NULL, &live, &err);
    if (status == LMCS_OK)
        lmcs_live_close(live);
    return status;
}

static enum lmcs_status call_put(struct scene *scene)
{
    return lmcs_live_put(scene->pool, "run", "short", "longer than it was, by far: another cell for it, in this place",
                         62, "str", 3, &err);
}

static enum lmcs_status call_write(struct scene *scene)
{
    static const unsigned char bytes[5000] = {1, 2, 3};
    struct lmcs_live *live;
    enum lmcs_status status = with(scene, "weights", &live);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_write(live, 4090, bytes, sizeof bytes, &err);
    lmcs_live_close(live);
    return status;
}

static enum lmcs_status call_add(struct scene *scene)
{
    struct lmcs_live *live;
    enum lmcs_status status = with(scene, "weights", &live);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_add(live, 16, 8, &(uint64_t){3}, NULL, &err);
    lmcs_live_close(live);
    return status;
}

static enum lmcs_status call_set(struct scene *scene)
{
    struct lmcs_live *live;
    enum lmcs_status status = with(scene, "short", &live);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_set(live, "just as long", 12, &err);
    lmcs_live_close(live);
    return status;
}

static enum lmcs_status call_resize(struct scene *scene)
{
    struct lmcs_live *live;
    enum lmcs_status status = with(scene, "weights", &live);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_resize(live, 1, &(uint64_t){90000}, &err);
    lmcs_live_close(live);
    return status;
}

static enum lmcs_status call_shrink(struct scene *scene)
{
    struct lmcs_live *live;
    enum lmcs_status status = with(scene, "weights", &live);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_resize(live, 1, &(uint64_t){100}, &err);
    lmcs_live_close(live);
    return status;
}

static enum lmcs_status call_names(struct scene *scene)
{
    return lmcs_live_swap(scene->pool, "run", "weights", "short", &err);
}

static enum lmcs_status call_rename(struct scene *scene)
{
    return lmcs_live_rename(scene->pool, "run", "bias", "slope", &err);
}

static enum lmcs_status call_erase(struct scene *scene)
{
    return lmcs_live_erase(scene->pool, "run", "weights", &err);
}

static enum lmcs_status call_replace(struct scene *scene)
{
    uint64_t floats = 3000;
    struct lmcs_tensor tensor = {.dtype = LMC_F32, .ndim = 1, .shape = &floats};
    struct lmcs_live_options options;
    struct lmcs_live *live;
    lmcs_live_options_init(&options);
    options.flags = LMCS_LIVE_UNNAMED;
    enum lmcs_status status = lmcs_live_create(scene->pool, "run", &tensor, &options, &live, &err);
    if (status != LMCS_OK)
        return status;
    for (uint64_t i = 0; i < floats; i++)
        ((float *)lmcs_live_data(live))[i] = (float)i;
    status = lmcs_live_replace(live, "weights", &err);
    lmcs_live_close(live);
    return status;
}

static enum lmcs_status change_in(struct scene *scene, struct lmcs_transaction *transaction, struct lmcs_live *live)
{
    float *data = lmcs_live_data(live);
    enum lmcs_status status = lmcs_transaction_declare(transaction, live, 0, 40000, &err);
    for (size_t i = 0; status == LMCS_OK && i < 10000; i += 100)
        data[i] += 1;
    if (status == LMCS_OK)
        status = call_put(scene);
    if (status == LMCS_OK)
        status = call_make(scene);
    if (status == LMCS_OK)
        status = call_set(scene);
    return status == LMCS_OK ? lmcs_live_erase(scene->pool, "run", "bias", &err) : status;
}

static enum lmcs_status run_transaction(struct scene *scene, uint32_t flags, bool commits)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction = NULL;
    struct lmcs_live *live;
    enum lmcs_status status = with(scene, "weights", &live);
    if (status != LMCS_OK)
        return status;
    lmcs_transaction_options_init(&options);
    options.flags = flags;
    status = lmcs_transaction_begin(scene->pool, "run", NULL, 0, &options, &transaction, &err);
    if (status == LMCS_OK) {
        status = change_in(scene, transaction, live);
        if (status == LMCS_OK && commits && (status = lmcs_transaction_commit(transaction, &err)) == LMCS_OK)
            transaction = NULL;
        struct lmcs_error first = err;
        lmcs_transaction_abort(transaction);
        err = first;
    }
    lmcs_live_close(live);
    return status;
}

static enum lmcs_status call_transaction(struct scene *scene)
{
    return run_transaction(scene, 0, true);
}
static enum lmcs_status call_declared(struct scene *scene)
{
    return run_transaction(scene, LMCS_TRANSACTION_DECLARED, true);
}
static enum lmcs_status call_abort(struct scene *scene)
{
    return run_transaction(scene, 0, false);
}
static enum lmcs_status call_abort_declared(struct scene *scene)
{
    return run_transaction(scene, LMCS_TRANSACTION_DECLARED, false);
}

static enum lmcs_status call_snapshot(struct scene *scene)
{
    struct lmcs_shelf_info info;
    enum lmcs_status status = lmcs_shelf_info(scene->pool, "run", &info, &err);
    if (status != LMCS_OK)
        return status;
    if (info.snapshot_count > 4)
        return lmcs_snapshot_remove(scene->pool, "run", info.latest, false, NULL, &err);
    return lmcs_live_snapshot(scene->pool, "run", NULL, NULL, &err);
}

static enum lmcs_status call_checkout(struct scene *scene)
{
    return lmcs_live_checkout(scene->pool, "run", "2", &err);
}

static bool visit_nothing(void *context, const struct lmcs_live_info *info)
{
    return *(bool *)context && info->bytes < UINT64_MAX;
}

static enum lmcs_status call_ask(struct scene *scene)
{
    struct lmcs_live_usage usage;
    bool all = true;
    enum lmcs_status status = lmcs_live_list(scene->pool, "run", NULL, visit_nothing, &all, &err);
    if (status == LMCS_OK)
        status = lmcs_live_usage(scene->pool, "run", &usage, &err);
    return status == LMCS_OK ? lmcs_verify(scene->pool, NULL, NULL, NULL, NULL, NULL, &err) : status;
}

static const struct step {
    const char *name;
    enum lmcs_status (*call)(struct scene *scene);
} steps[] = {
    {"make", call_make},
    {"put", call_put},
    {"write", call_write},
    {"add", call_add},
    {"set", call_set},
    {"resize", call_resize},
    {"shrink", call_shrink},
    {"swap", call_names},
    {"rename", call_rename},
    {"erase", call_erase},
    {"replace", call_replace},
    {"transaction", call_transaction},
    {"declared transaction", call_declared},
    {"aborted transaction", call_abort},
    {"aborted declared transaction", call_abort_declared},
    {"snapshot", call_snapshot},
    {"checkout", call_checkout},
    {"ask", call_ask},
};
enum { STEPS = sizeof steps / sizeof steps[0] };

#endif
