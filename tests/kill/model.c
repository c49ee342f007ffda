/* SPDX-License-Identifier: BSD-3-Clause */
/* model.c - see model.h. */
#include "model.h"

#include <pthread.h>

#include "sgd.h"

enum { STEPS = 64 };

const char *const call_names[CALLS] = {
    "capture", "tag", "untag", "remove", "prepare", "resolve", "restore", "policy", "step of live variables"};
/* As the store prints them. */
#define POLICY(keep_raw, links, write) "keep_raw=" keep_raw " chain=3 keep=all links=" links " " write " restore=none"
const char *const policies[POLICIES] = {POLICY("2", "4", WRITE_LINKS), POLICY("1", "6", WRITE_LINKS),
                                        POLICY("3", "5", WRITE_LINKS), POLICY("2", "4", WRITE_RAW)};

static void add(struct model *model, uint64_t number)
{
    size_t at = model->count;
    EXPECT(at < MOST_SNAPSHOTS);
    while (at > 0 && model->numbers[at - 1] > number) {
        model->numbers[at] = model->numbers[at - 1];
        at--;
    }
    model->numbers[at] = number;
    model->count++;
}

static void take_out(struct model *model, uint64_t number)
{
    size_t kept = 0;
    for (size_t i = 0; i < model->count; i++)
        if (model->numbers[i] != number)
            model->numbers[kept++] = model->numbers[i];
    model->count = kept;
    for (size_t i = 0; i < TAGS; i++)
        if (model->tags[i] == number)
            model->tags[i] = 0;
}

void model_apply(struct model *model, const struct record *record)
{
    switch (record->call) {
    case CAPTURE:
        add(model, record->number);
        if (record->tag != NO_TAG)
            model->tags[record->tag] = record->number;
        break;
    case TAG:
        model->tags[record->tag] = record->number;
        break;
    case UNTAG:
        model->tags[record->tag] = 0;
        break;
    case REMOVE:
        take_out(model, record->number);
        break;
    case PREPARE:
        model->prepared = record->number;
        break;
    case SET_POLICY:
        model->policy = record->tag;
        break;
    case RESOLVE:
        if (record->commit)
            add(model, model->prepared);
        model->prepared = 0;
        break;
    default:
        for (uint64_t n = 1; n <= ARCHIVE_SNAPSHOTS; n++)
            if (!model_has(model, n))
                add(model, n);
    }
}

bool model_has(const struct model *model, uint64_t number)
{
    for (size_t i = 0; i < model->count; i++)
        if (model->numbers[i] == number)
            return true;
    return false;
}

bool model_same(const struct model *a, const struct model *b)
{
    return a->count == b->count && memcmp(a->numbers, b->numbers, a->count * sizeof a->numbers[0]) == 0 &&
           memcmp(a->tags, b->tags, sizeof a->tags) == 0 && a->prepared == b->prepared && a->policy == b->policy;
}

void model_print(FILE *file, const char *what, const struct model *model)
{
    fprintf(file, "%s: snapshots", what);
    for (size_t i = 0; i < model->count; i++)
        fprintf(file, " %llu", (unsigned long long)model->numbers[i]);
    fprintf(file, "; tags");
    for (size_t i = 0; i < TAGS; i++)
        fprintf(file, " %llu", (unsigned long long)model->tags[i]);
    fprintf(file, "; prepared %llu; policy %u\n", (unsigned long long)model->prepared, model->policy);
}

void shelf_name(uint32_t shelf, char name[16])
{
    snprintf(name, 16, "shelf%u", shelf);
}

void tag_name(uint32_t tag, char name[16])
{
    snprintf(name, 16, "tag-%c", (int)('a' + tag));
}

void group_of(uint32_t shelf, uint64_t number, unsigned char group[16])
{
    memset(group, 0x5a, 16);
    memcpy(group, &shelf, sizeof shelf);
    memcpy(group + 4, &number, sizeof number);
}

/* ---- States ---- */

/* Made once. */
static const struct sgd_run *train(uint32_t shelf, unsigned parameter)
{
    static const uint64_t elements[PARAMETERS] = {5000, 300};
    static struct sgd_run all[SHELVES][PARAMETERS];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct sgd_run *run = &all[shelf][parameter];
    pthread_mutex_lock(&lock);
    if (run->weights == NULL)
        *run = sgd_run(shelf * PARAMETERS + parameter + 1, elements[parameter], STEPS);
    pthread_mutex_unlock(&lock);
    return run;
}

static const char *const momentum_names[PARAMETERS] = {"m0", "m1"}, *const weight_names[PARAMETERS] = {"w0", "w1"};

void relation_of(unsigned parameter, struct lmcs_relation *relation)
{
    *relation = sgd_relation(momentum_names[parameter], weight_names[parameter]);
}

static void add_trained(struct state *state, uint32_t shelf, uint64_t number)
{
    for (unsigned p = 0; p < PARAMETERS; p++) {
        const struct sgd_run *run = train(shelf, p);
        const uint64_t at = number % STEPS * run->elements;
        struct held *momentum = state_add(state, momentum_names[p], LMC_F32, 1, &run->elements);
        memcpy(momentum->data, run->momenta + at, momentum->bytes);
        struct held *weight = state_add(state, weight_names[p], LMC_F32, 1, &run->elements);
        memcpy(weight->data, run->weights + at, weight->bytes);
    }
}

/*
 * Weights that change a little, some every third time; a constant; small ones; every eighth time a large one, for
 * growth and extents of several sizes; two parameters under an optimizer.
 */
struct state *state_of(uint32_t shelf, uint64_t number)
{
    struct rng start = {42 + shelf}, now = {number * 0x9e3779b97f4a7c15u + shelf};
    struct state *state = state_weights(&start, 3, 9000);
    add_trained(state, shelf, number);
    for (size_t i = 0; i < 2; i++) {
        struct held *held = &state->tensors[i];
        uint64_t time = i == 0 ? number : number - number % 3;
        for (size_t k = 0; k < held->bytes; k += sizeof(float)) {
            float value;
            memcpy(&value, held->data + k, sizeof value);
            value += (float)(time % 97) * 0.0001f * (float)(k % 11);
            memcpy(held->data + k, &value, sizeof value);
        }
        memcpy(held->data, &time, sizeof time);
    }
    for (size_t i = 0; i < 5; i++) {
        char name[32];
        uint64_t bytes = 1 + rng_below(&now, 3000);
        snprintf(name, sizeof name, "small%zu", i);
        struct held *held = state_add(state, name, LMC_U8, 1, &bytes);
        rng_fill(&now, held->data, held->bytes);
    }
    if (number % 8 == 7) {
        struct held *held = state_add(state, "large", LMC_U8, 1, &(uint64_t){1500000 + number % 5 * 700000});
        rng_fill(&now, held->data, held->bytes);
    }
    return state;
}

/* Exactly one of the policies. */
static uint32_t policy_of(struct lmcs_pool *pool, const char *name)
{
    const struct lmcs_shelf_info info = shelf_info(pool, name);
    uint32_t policy = 0;
    while (policy < POLICIES && strcmp(info.policy, policies[policy]) != 0)
        policy++;
    if (policy == POLICIES)
        fprintf(stderr, "shelf %s has the policy \"%s\"\n", name, info.policy);
    EXPECT(policy < POLICIES);
    return policy;
}

void model_of_pool(struct lmcs_pool *pool, uint32_t shelf, struct model *model)
{
    char name[16], tag[16];
    shelf_name(shelf, name);
    *model = (struct model){.policy = shelf < WRITERS ? policy_of(pool, name) : 0};
    enum lmcs_status status = lmcs_snapshot_numbers(pool, name, 1, model->numbers, MOST_SNAPSHOTS, &model->count, &err);
    EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
    for (uint32_t i = 0; status == LMCS_OK && i < TAGS; i++) {
        struct lmcs_snapshot *snapshot;
        tag_name(i, tag);
        enum lmcs_status found = lmcs_snapshot_find(pool, name, tag, &snapshot, &err);
        EXPECT(found == LMCS_OK || found == LMCS_NOT_FOUND);
        if (found == LMCS_OK) {
            model->tags[i] = lmcs_snapshot_info(snapshot)->number;
            lmcs_snapshot_close(snapshot);
        }
    }
}
