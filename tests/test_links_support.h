/* SPDX-License-Identifier: BSD-3-Clause */
/* test_links_support.h - an optimizer's run of a few parameters, its snapshots and relations. */
#ifndef LMCS_TEST_LINKS_SUPPORT_H
#define LMCS_TEST_LINKS_SUPPORT_H

#include "test_scrub_support.h"

/* The codec's tests have a `state`, too. */
#define state       trained_state
#define state_new   trained_new
#define state_copy  trained_copy
#define state_free  trained_free
#define state_equal trained_equal
#define link        codec_link
#include "test_codec_link_support.h"
#undef state
#undef state_new
#undef state_copy
#undef state_free
#undef state_equal
#undef link

#define PARAMETERS 3
#define MOST_STEPS 70

static const char *const adam_roles[] = {"exp_avg", "exp_avg_sq", "weight", "max_exp_avg_sq"};
static const char *const sgd_roles[] = {"momentum_buffer", "weight"};

struct run {
    struct lmc_link_hints hints;
    enum gradients kind;
    struct trained_state parameters[PARAMETERS];
    struct rng rng;
    struct state *states[MOST_STEPS + 1];
    bool there[MOST_STEPS + 1];
    size_t count;
    size_t turned; /* parameters whose relations name a wrong weight */
};

static inline const char *role(const struct run *run, unsigned k)
{
    return run->hints.optimizer == LMC_ADAM ? adam_roles[k] : sgd_roles[k];
}

static inline void run_begin(struct run *run, struct lmc_link_hints hints, enum gradients kind, const size_t *sizes)
{
    *run = (struct run){.hints = hints, .kind = kind, .rng = {17}};
    for (size_t p = 0; p < PARAMETERS; p++) {
        struct lmc_link_hints own = hints;
        run->parameters[p] = trained(&own, sizes[p], kind, 2);
        run->hints.step = own.step;
    }
}

static inline void run_end(struct run *run)
{
    for (size_t p = 0; p < PARAMETERS; p++)
        trained_free(&run->parameters[p]);
    for (size_t i = 1; i <= run->count; i++)
        state_free(run->states[i]);
}

static inline void run_step(struct run *run)
{
    for (size_t p = 0; p < PARAMETERS; p++)
        optimizer_step(&run->parameters[p], &run->hints, run->kind, 0.3f, rng_next(&run->rng));
    run->hints.step++;
}

/* All arrays, a tensor that changes independently, and a constant one. */
static inline struct state *state_of_run(struct run *run)
{
    struct state *made = calloc(1, sizeof *made);
    assert_non_null(made);
    for (size_t p = 0; p < PARAMETERS; p++)
        for (unsigned k = 0; k < run->parameters[p].arrays; k++) {
            char name[64];
            snprintf(name, sizeof name, "p%zu.%s", p, role(run, k));
            const uint64_t shape[] = {run->parameters[p].elements};
            struct held *held = state_add(made, name, LMC_F32, 1, shape);
            memcpy(held->data, run->parameters[p].array[k], held->bytes);
        }
    const uint64_t shape[] = {3000};
    rng_fill(&run->rng, state_add(made, "noise", LMC_U8, 1, shape)->data, 3000);
    memset(state_add(made, "constant", LMC_U8, 1, shape)->data, 7, 3000);
    return made;
}

/* `step`: of the constants; 0: the run's. */
static inline void relate(struct lmcs_capture *capture, const struct run *run, double step)
{
    const struct lmc_link_hints *h = &run->hints;
    for (size_t p = 0; p < PARAMETERS; p++) {
        char names[4][64];
        struct lmcs_relation relation = {.name_count = run->parameters[p].arrays,
                                         .optimizer = h->optimizer,
                                         .flags = h->flags,
                                         .step = step > 0 ? step : h->step - 1,
                                         .lr = h->lr,
                                         .weight_decay = h->weight_decay,
                                         .beta1 = h->beta1,
                                         .beta2 = h->beta2,
                                         .eps = h->eps,
                                         .momentum = h->momentum,
                                         .dampening = h->dampening,
                                         .scale = h->scale};
        for (unsigned k = 0; k < relation.name_count; k++) {
            const bool weight = k == (h->optimizer == LMC_ADAM ? 2 : 1);
            snprintf(names[k], sizeof names[k], "p%zu.%s", weight ? (p + run->turned) % PARAMETERS : p, role(run, k));
            relation.names[k] = names[k];
        }
        OK(lmcs_capture_relate(capture, &relation, 1, &err));
    }
}

static inline uint64_t run_snapshot(struct run *run, struct lmcs_pool *pool, const char *shelf, bool related,
                                    double step)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    uint64_t number;
    struct state *now = state_of_run(run);
    lmcs_commit_options_init(&options);
    options.step = (int64_t)run->hints.step - 1;
    OK(lmcs_capture_begin(pool, shelf, &capture, &err));
    if (related)
        relate(capture, run, step);
    lmcs_capture_lend(capture, run->count % 2 == 1);
    put_state(capture, now);
    OK(lmcs_capture_commit(capture, &options, &number, &err));
    assert_true(number <= MOST_STEPS);
    run->states[number] = now;
    run->there[number] = true;
    run->count = number;
    return number;
}

static inline void run_on(struct run *run, struct lmcs_pool *pool, const char *shelf, size_t steps)
{
    for (size_t i = 0; i < steps; i++) {
        run_step(run);
        run_snapshot(run, pool, shelf, true, 0);
    }
}

static inline void expect_run(const struct run *run, struct lmcs_pool *pool, const char *shelf)
{
    for (size_t n = 1; n <= run->count; n++)
        if (run->there[n])
            expect_snapshot(pool, shelf, n, run->states[n]);
}

static const size_t small[PARAMETERS] = {300, 5000, 20000};
static const size_t large[PARAMETERS] = {4096, 70000, LMC_BLOCK_BYTES / 4 + 40000};

static inline void set_policy(struct lmcs_pool *pool, const char *shelf, const char *words)
{
    OK(lmcs_shelf_set_policy(pool, shelf, words, &err));
}

static inline void dump_to(struct lmcs_pool *pool, const char *path)
{
    struct lmcs_transfer_report report;
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    OK(lmcs_dump(pool, NULL, fd, NULL, &report, &err));
    assert_int_equal(close(fd), 0);
}

static inline void restore_from(struct lmcs_pool *pool, const char *path)
{
    struct lmcs_transfer_report report;
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    OK(lmcs_restore(pool, fd, NULL, &report, &err));
    assert_int_equal(close(fd), 0);
}

#endif
