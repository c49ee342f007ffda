/* SPDX-License-Identifier: BSD-3-Clause */
/* test_live_support.h - f32 tensors of known numbers, and texts as values. */
#ifndef LMCS_TEST_LIVE_SUPPORT_H
#define LMCS_TEST_LIVE_SUPPORT_H

#include "lmcstore_live.h"
#include "support.h"

#define ON_MEMORY_ONLY(test) IN_MEMORY(test)

static inline struct lmcs_live *new_tensor(struct lmcs_pool *pool, const char *name, uint64_t floats)
{
    struct lmcs_tensor tensor = {.name = name, .dtype = LMC_F32, .ndim = 1, .shape = &floats};
    struct lmcs_live *live = NULL;
    OK(lmcs_live_create(pool, "run", &tensor, NULL, &live, &err));
    return live;
}

static inline struct lmcs_live *new_unnamed(struct lmcs_pool *pool, uint64_t floats)
{
    struct lmcs_tensor tensor = {.name = NULL, .dtype = LMC_F32, .ndim = 1, .shape = &floats};
    struct lmcs_live_options options;
    struct lmcs_live *live = NULL;
    lmcs_live_options_init(&options);
    options.flags = LMCS_LIVE_UNNAMED;
    OK(lmcs_live_create(pool, "run", &tensor, &options, &live, &err));
    return live;
}

static inline uint64_t float_count(struct lmcs_live *live)
{
    struct lmcs_live_info info;
    OK(lmcs_live_info(live, &info, &err));
    return info.bytes / sizeof(float);
}

/* Element i is first + i; durable, outside of transactions. */
static inline void fill(struct lmcs_live *live, float first)
{
    float *data = lmcs_live_data(live);
    uint64_t count = float_count(live);
    for (uint64_t i = 0; i < count; i++)
        data[i] = first + (float)i;
    OK(lmcs_live_persist(live, 0, count * sizeof *data, &err));
}

static inline void expect_filled(struct lmcs_live *live, float first)
{
    const float *data = lmcs_live_data(live);
    uint64_t count = float_count(live);
    for (uint64_t i = 0; i < count; i++)
        EXPECT(data[i] == first + (float)i);
}

static inline void put_text(struct lmcs_pool *pool, const char *name, const char *text)
{
    OK(lmcs_live_put(pool, "run", name, text, strlen(text), "str", 3, &err));
}

static inline void expect_handle_text(struct lmcs_live *live, const char *text)
{
    static _Thread_local char got[LMCS_LIVE_MAX_VALUE];
    uint64_t bytes = 0;
    OK(lmcs_live_get(live, got, sizeof got, &bytes, &err));
    EXPECT(bytes == strlen(text) && memcmp(got, text, bytes) == 0);
}

static inline void expect_text(struct lmcs_pool *pool, const char *name, const char *text)
{
    struct lmcs_live *live;
    OK(lmcs_live_open(pool, "run", name, &live, &err));
    expect_handle_text(live, text);
    lmcs_live_close(live);
}

static inline bool add_name(void *context, const struct lmcs_live_info *info)
{
    char *names = context;
    size_t used = strlen(names);
    snprintf(names + used, 1024 - used, "%s%s", used > 0 ? " " : "", info->name);
    return true;
}

static inline void expect_names(struct lmcs_pool *pool, const char *expected)
{
    char names[1024] = "";
    OK(lmcs_live_list(pool, "run", NULL, add_name, names, &err));
    if (strcmp(names, expected) != 0)
        fprintf(stderr, "there is \"%s\", not \"%s\"\n", names, expected);
    EXPECT(strcmp(names, expected) == 0);
}

static inline struct lmcs_pool *reopen(struct lmcs_pool *pool, const struct place *place)
{
    close_pool(pool);
    return open_quiet(place->pool);
}

#endif
