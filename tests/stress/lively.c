/* SPDX-License-Identifier: BSD-3-Clause */
/* lively.c - the actors' calls on live variables. */
#include "lively.h"

#include "lmcstore_live.h"

#define REGISTERS "registers"
#define PAIR      "pair"

enum { WORDS = 3000, PLACE = 24 };

static void register_name(unsigned shelf, char name[16])
{
    snprintf(name, 16, "of %u", shelf);
}

void lively_make(struct lmcs_pool *pool)
{
    const uint64_t shape = 100, words = WORDS * 2, zero = 0;
    struct lmcs_tensor tensor = {.dtype = LMC_F32, .ndim = 1, .shape = &shape};
    char name[16];
    tensor.name = name;
    for (unsigned s = 0; s < SHELVES; s++) {
        register_name(s, name);
        if (s % 2 == 0)
            OK(lmcs_live_create(pool, REGISTERS, &tensor, NULL, NULL, &err));
        else
            OK(lmcs_live_put(pool, REGISTERS, name, (const char[32]){0}, 32, NULL, 0, &err));
    }
    tensor.name = "a";
    tensor.shape = &words;
    OK(lmcs_live_create(pool, PAIR, &tensor, NULL, NULL, &err));
    OK(lmcs_live_put(pool, PAIR, "b", &zero, sizeof zero, NULL, 0, &err));
}

/* ---- Registers ---- */

static struct lmcs_live *open_live(struct actor *actor, const char *shelf, const char *name)
{
    struct lmcs_live *live;
    OK(lmcs_live_open(actor->pool, shelf, name, &live, &err));
    return live;
}

static struct lmcs_live *open_register(struct actor *actor, unsigned shelf)
{
    char name[16];
    register_name(shelf, name);
    return open_live(actor, REGISTERS, name);
}

void lively_ask(struct actor *actor, unsigned shelf)
{
    struct lmcs_live *live = open_register(actor, shelf);
    struct event event = actor_begin(OP_LIVE_GET, shelf);
    enum lmcs_status status = lmcs_live_read(live, PLACE, &event.value, sizeof event.value, &err);
    actor_ended(actor, &event, status);
    lmcs_live_close(live);
}

void lively_change(struct actor *actor, unsigned shelf)
{
    struct lmcs_live *live = open_register(actor, shelf);
    uint64_t how = rng_below(&actor->rng, 3), word = rng_next(&actor->rng), few = rng_below(&actor->rng, 3);
    struct event event = actor_begin(how == 0 ? OP_LIVE_SET : how == 1 ? OP_LIVE_ADD : OP_LIVE_SWAP, shelf);
    enum lmcs_status status;
    bool swapped;
    if (how == 0) {
        event.value = few; /* some swaps find the expected value */
        status = lmcs_live_write(live, PLACE, &few, sizeof few, &err);
    } else if (how == 1) {
        event.number = word;
        status = lmcs_live_add(live, PLACE, sizeof word, &word, &event.value, &err);
    } else {
        event.number = few;
        event.ticket = word;
        status = lmcs_live_compare_and_swap(live, PLACE, sizeof word, &few, &word, &event.value, &swapped, &err);
        EXPECT(status != LMCS_OK || swapped == (event.value == few));
    }
    actor_ended(actor, &event, status);
    lmcs_live_close(live);
}

/* ---- The pair ---- */

static bool may_be(const struct actor *actor, enum lmcs_status status)
{
    if (status == LMCS_FULL && actor->stage->tight)
        return false;
    OK(status);
    return true;
}

void lively_transact(struct actor *actor)
{
    struct lmcs_live *lives[2] = {open_live(actor, PAIR, "a"), open_live(actor, PAIR, "b")};
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction = NULL;
    uint64_t word = rng_next(&actor->rng);
    lmcs_transaction_options_init(&options);
    options.flags = rng_below(&actor->rng, 2) == 0 ? LMCS_TRANSACTION_DECLARED : 0;
    options.limit_bytes = 1 << 20;
    options.wait_ms = UINT32_MAX;
    bool well = may_be(actor, lmcs_transaction_begin(actor->pool, PAIR, lives, 2, &options, &transaction, &err));
    if (well) {
        uint64_t *words = lmcs_live_data(lives[0]);
        well = may_be(actor, lmcs_transaction_declare(transaction, lives[0], 0, WORDS * sizeof word, &err));
        for (size_t i = 0; well && i < WORDS; i++)
            words[i] = word + i;
        well = well && may_be(actor, lmcs_live_set(lives[1], &word, sizeof word, &err));
        well = well && rng_below(&actor->rng, 4) != 0;
        if (!well || !may_be(actor, lmcs_transaction_commit(transaction, &err)))
            lmcs_transaction_abort(transaction);
    }
    lmcs_live_close(lives[0]);
    lmcs_live_close(lives[1]);
}

void lively_look(struct actor *actor)
{
    struct lmcs_snapshot *snapshot;
    uint64_t number, words[WORDS], word;
    char which[32];
    if (!may_be(actor, lmcs_live_snapshot(actor->pool, PAIR, NULL, &number, &err)))
        return;
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(actor->pool, PAIR, which, &snapshot, &err));
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, "a", words, sizeof words, &err));
    OK(lmcs_snapshot_read(snapshot, LMCS_ATTACHMENT, "b", &word, sizeof word, &err));
    lmcs_snapshot_close(snapshot);
    for (size_t i = 0; i < WORDS; i++)
        EXPECT(words[i] == (word == 0 ? 0 : word + i));
    may_be(actor, lmcs_snapshot_remove(actor->pool, PAIR, number, false, NULL, &err));
}
