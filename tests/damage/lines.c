/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lines.c - damages lines of links, and checks that exactly the steps that rest on the damage are reported, and no
 * other is lost.
 *
 * A capture may not rest on damage that a scrub has recorded.
 */
#include "damage.h"
#include "records/content.h"

/* Tensors of the shelf "trained", by number and array. */
struct table {
    bool at[STEPS + 1][ARRAYS];
};

struct found {
    struct table reported;
    unsigned others; /* elsewhere */
};

static void note(void *context, const struct lmcs_damage *told)
{
    struct found *found = context;
    bool known = false;
    for (size_t t = 0; t < ARRAYS; t++)
        if (strcmp(told->tensor, array_names[t]) == 0 && told->number <= STEPS)
            found->reported.at[told->number][t] = known = true;
    found->others += !known || (told->number > 0 && strcmp(told->shelf, "trained") != 0);
}

static const struct payload *payload_of_a_line(struct damage *damage)
{
    const struct subject *subject = damage->bench->subject;
    const struct payload *all[MOST_PAYLOADS];
    size_t count = 0;
    for (size_t i = 0; i < subject->payload_count; i++)
        for (size_t t = 0; t < ARRAYS; t++)
            if (strcmp(subject->payloads[i].tensor, array_names[t]) == 0)
                all[count++] = &subject->payloads[i];
    EXPECT(count >= 4 * (size_t)ARRAYS / 2);
    return all[spread(damage, count)];
}

static void flip(struct damage *damage, const struct payload *payload, const char *path)
{
    const uint64_t places[3] = {0, payload->bytes - 1, rng_below(&damage->rng, payload->bytes)};
    const uint64_t at = places[rng_below(&damage->rng, 8) % 3];
    file_flip(path, payload->offset + at, (unsigned)rng_next(&damage->rng));
    damage->content = payload->content;
    describe(damage, "a bit of byte %llu of content %llu, of the line of \"%s\" (%llu bytes)", ULL(at),
             ULL(payload->content), payload->tensor, ULL(payload->bytes));
}

void flip_line(struct damage *damage, const char *path)
{
    flip(damage, payload_of_a_line(damage), path);
}

/* Returns the arrays that rest on the damaged content, of snapshots up to `last`. */
static struct table resting(struct lmcs_pool *pool, uint64_t payload, uint64_t last)
{
    struct table table = {0};
    struct lmcs_txn txn;
    uint64_t contents[STEPS + 1][ARRAYS];
    for (uint64_t n = 1; n <= last; n++)
        for (size_t t = 0; t < ARRAYS; t++)
            contents[n][t] = content_of(pool, "trained", n, array_names[t]);
    OK(lmcs_txn_read(pool, &txn, &err));
    for (uint64_t n = 1; n <= last; n++)
        for (size_t t = 0; t < ARRAYS; t++)
            table.at[n][t] = rests_on(&txn, contents[n][t], payload);
    lmcs_txn_end(&txn);
    return table;
}

/*
 * Reads snapshots of the shelf: only those in the table may be lost. Some of them may be right, since a read compares
 * the state at the end of its line, and rounding can hide a small change of momentum below.
 */
static bool reads_as(struct lmcs_pool *pool, const struct subject *subject, const uint64_t *steps, uint64_t last,
                     const struct table *lost)
{
    bool right = true;
    for (uint64_t n = 1; n <= last; n++) {
        struct lmcs_snapshot *snapshot;
        char which[32];
        snprintf(which, sizeof which, "%llu", ULL(n));
        OK(lmcs_snapshot_find(pool, "trained", which, &snapshot, &err));
        for (size_t t = 0; t < ARRAYS; t++)
            if (read_tensor(snapshot, &subject->steps[steps[n]]->tensors[t]) != 0 && !lost->at[n][t]) {
                fprintf(stderr, "trained@%llu %s is lost\n", ULL(n), array_names[t]);
                right = false;
            }
        lmcs_snapshot_close(snapshot);
    }
    return right;
}

static enum outcome look(struct damage *damage, const char *path, const uint64_t *steps)
{
    struct lmcs_pool *pool;
    struct found found = {.others = 0};
    OK(try_open(path, LMCS_OPEN_READ, &pool));
    const struct table lost = resting(pool, damage->content, TRAINED);
    const enum lmcs_status status = lmcs_verify(pool, NULL, note, &found, NULL, NULL, &err);
    const bool right = reads_as(pool, damage->bench->subject, steps, TRAINED, &lost);
    close_pool(pool);
    if (status != LMCS_DAMAGED || !right)
        return WRONG;
    bool same = found.others == 0;
    for (size_t n = 1; n <= TRAINED; n++)
        for (size_t t = 0; t < ARRAYS; t++)
            same &= found.reported.at[n][t] == lost.at[n][t];
    return same ? REPORTED : UNNAMED;
}

/* Damages a payload below an array of the snapshot, and lets a scrub record it. */
static void damage_again(struct damage *damage, struct lmcs_pool *pool, const char *path, uint64_t number)
{
    struct lmcs_txn txn;
    struct lmcs_content content;
    struct lmcs_scrub_options options;
    const size_t t = rng_below(&damage->rng, ARRAYS);
    const uint64_t id = content_of(pool, "trained", number, array_names[t]);
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_content_get(&txn, id, &content, &err));
    if (content.df.payload == LMCS_PAYLOAD_LINKED)
        OK(lmcs_content_get(&txn, content.link, &content, &err));
    lmcs_txn_end(&txn);
    file_flip(path, content.parts[0].offset + rng_below(&damage->rng, content.parts[0].bytes), 3);
    lmcs_scrub_options_init(&options);
    options.repair = true; /* there is no other copy: the loss is recorded */
    FAILS(LMCS_DAMAGED, lmcs_scrub(pool, &options, NULL, NULL, NULL, NULL, &err));
    damage->content = content.id;
}

/*
 * Training goes on: two steps and one that is equal to the last. Then a payload below the newest step is damaged, and
 * again two equal steps and a new one follow: none rests on the damage.
 */
static void go_on(struct damage *damage, const char *path, uint64_t *steps)
{
    const struct subject *subject = damage->bench->subject;
    struct lmcs_pool *pool;
    OK(try_open(path, LMCS_OPEN_WRITE, &pool));
    struct table lost = resting(pool, damage->content, TRAINED);
    const uint64_t second = TRAINED + 2;
    steps[TRAINED + 1] = TRAINED;
    steps[second] = steps[second + 1] = TRAINED + 1;
    for (uint64_t n = TRAINED + 1; n <= second + 1; n++)
        OK(take_step(pool, subject->steps[steps[n]], (int64_t)n));
    EXPECT(storage_of(pool, "trained", second).longest_line == 1);
    EXPECT(reads_as(pool, subject, steps, second + 1, &lost));
    damage_again(damage, pool, path, TRAINED + 1 + rng_below(&damage->rng, 2));
    const struct table more = resting(pool, damage->content, second + 1);
    for (uint64_t n = 1; n <= second + 1; n++)
        for (size_t t = 0; t < ARRAYS; t++)
            lost.at[n][t] |= more.at[n][t];
    steps[second + 2] = TRAINED + 1;
    steps[second + 3] = TRAINED + 2;
    for (uint64_t n = second + 2; n <= second + 3; n++)
        OK(take_step(pool, subject->steps[steps[n]], (int64_t)n));
    EXPECT(reads_as(pool, subject, steps, second + 3, &lost));
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(reads_as(pool, subject, steps, second + 3, &lost));
    close_pool(pool);
}

enum outcome judge_line(struct damage *damage, void (*apply)(struct damage *damage, const char *path))
{
    struct bench *bench = damage->bench;
    uint64_t steps[STEPS + 1];
    for (uint64_t n = 1; n <= TRAINED; n++)
        steps[n] = n - 1;
    copy_file(bench->whole, bench->work);
    apply(damage, bench->work);
    const enum outcome outcome = look(damage, bench->work, steps);
    if (outcome == REPORTED && damage->turn % 2 == 0)
        go_on(damage, bench->work, steps);
    return outcome;
}
