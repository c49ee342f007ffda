/* SPDX-License-Identifier: BSD-3-Clause */
/* make_pools.c - writes the other pools, the poolset and archives (README.md, make.sh). */
#include "make_support.h"

#include "live.h"
#include "parity.h"
#include "store.h"

/* ---- history: payloads, dtypes, names, times, tags, metrics, forks, policies ---- */

static void put_special(struct lmcs_capture *capture, int step)
{
    static const uint64_t whole[] = {8, 6}, part[] = {4, 3}, at[] = {4, 3}, shape[] = {600};
    static unsigned char rows[96], rng_state[600], text[] = "{\"lr\": 0.1}";
    const uint64_t text_bytes = sizeof text - 1;
    struct rng rng = {(uint64_t)step + 100};
    rng_fill(&rng, rows, sizeof rows);
    rng_fill(&rng, rng_state, sizeof rng_state);
    const struct lmcs_tensor tensors[] = {
        {.name = "shard", .dtype = LMC_F64, .ndim = 2, .shape = part, .global_shape = whole, .offsets = at},
        {.name = "rng", .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1, .shape = shape},
        {.name = "optimizer/config", .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1, .shape = &text_bytes},
    };
    const void *data[] = {rows, rng_state, text};
    struct lmcs_tensor tied = {.name = "tied.weight", .dtype = LMC_F32, .ndim = 1, .shape = (uint64_t[]){3000}};
    OK(lmcs_capture_put(capture, tensors, data, 3, &err));
    OK(lmcs_capture_put_same(capture, &tied, "t0", &err));
}

static char *long_meta(void)
{
    static char meta[4096];
    size_t n = (size_t)snprintf(meta, sizeof meta, "{\"notes\": [");
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(meta + n, sizeof meta - n, "%s\"note number %d\"", i > 0 ? ", " : "", i);
    snprintf(meta + n, sizeof meta - n, "]}");
    return meta;
}

static void set_options(struct lmcs_commit_options *options, int i)
{
    static const char *const tags[] = {"first",
                                       "ma\xc3\x9f"
                                       "stab",
                                       "v1.0"};
    static struct lmcs_metric metrics[] = {{"loss", 0}, {"acc", 0}, {"odd", 0}};
    lmcs_commit_options_init(options);
    options->step = i == 4 ? LMCS_NO_STEP : i == 7 ? 6 : i;
    options->parent = i == 6 ? 3 : i == 8 ? UINT64_MAX : 0;
    options->time_ns = (uint64_t)1700000000000000000 + (uint64_t)i * 60000000000;
    if (i <= 3) {
        options->tags = &tags[i - 1];
        options->tag_count = 1;
    }
    metrics[0].value = 1.0 / i;
    metrics[1].value = i;
    metrics[2].value = i == 2 ? NAN : i == 3 ? INFINITY : -INFINITY;
    options->metrics = metrics;
    options->metric_count = i < 4 ? 3 : 2;
    options->meta_json = i == 2 ? "{\"host\": \"a\", \"seeds\": [1, 2, 3]}" : i == 5 || i == 9 ? long_meta() : NULL;
}

/* Raw, keyframes, deltas, of one block and several; noise; empty and single ones. */
static void take_history(struct lmcs_pool *pool)
{
    enum { COUNT = 10 };
    struct rng rng = {1};
    const uint64_t table_bytes = MIB + MIB / 4 + 12, noise_bytes = 3000;
    struct state *state = state_weights(&rng, 2, 3000);
    fill_pattern(state_add(state, "table", LMC_U8, 1, &table_bytes)->data, table_bytes, 0);
    state_add(state, "noise", LMC_U8, 1, &noise_bytes);
    for (int i = 1; i <= COUNT; i++) {
        struct lmcs_capture *capture;
        struct lmcs_commit_options options;
        uint64_t number;
        state_step(state, &rng, 0, i % 3 == 0 ? 2 : 1);
        memset(state->tensors[2].data + (size_t)i * 1000, i, 200);
        rng_fill(&rng, state->tensors[3].data, noise_bytes);
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        put_state(capture, state);
        put_special(capture, i);
        set_options(&options, i);
        OK(lmcs_capture_commit(capture, &options, &number, &err));
        EXPECT(number == (uint64_t)i);
    }
    state_free(state);
    OK(lmcs_tag_set(pool, "run", "best", 3, &err));
    OK(lmcs_tag_set(pool, "run", "best", 7, &err));
}

static void fork_from(struct lmcs_pool *pool, const char *address, const char *name)
{
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, name, &err));
    lmcs_snapshot_close(snapshot);
}

static void take_several(struct lmcs_pool *pool, const char *shelf, uint64_t seed, int count)
{
    struct rng rng = {seed};
    struct state *state = state_weights(&rng, 2, 1500);
    for (int i = 1; i <= count; i++) {
        state_step(state, &rng, 0, 1);
        take_snapshot(pool, shelf, state, 10 * i);
    }
    state_free(state);
}

static void take_mixed(struct lmcs_pool *pool)
{
    struct rng rng = {4};
    struct state *mixed = state_mixed(&rng, 66, 400);
    take_snapshot(pool, "mixed", mixed, 1);
    for (size_t i = 0; i < mixed->count; i += 2)
        if (mixed->tensors[i].bytes > 0)
            mixed->tensors[i].data[0] ^= 1;
    take_snapshot(pool, "mixed", mixed, 2);
    state_free(mixed);
}

static void take_parts(struct lmcs_pool *pool)
{
    const uint64_t bytes = 5 * MIB + 100;
    struct state *state = calloc(1, sizeof *state);
    uint64_t usual = pool->part_bytes;
    pool->part_bytes = 2 * MIB;
    fill_pattern(state_add(state, "long", LMC_U8, 1, &bytes)->data, bytes, 3);
    take_snapshot(pool, "parts", state, 1);
    state->tensors[0].data[3 * MIB] = 255;
    take_snapshot(pool, "parts", state, 2);
    pool->part_bytes = usual;
    state_free(state);
}

/* Every key; except under a budget, no rule depends on a later run's date. */
static void set_policies(struct lmcs_pool *pool)
{
    set_policy(pool, "run", "keep_raw=2 chain=3");
    set_policy(pool, "mixed", "keep_raw=1");
    set_policy(pool, "parts", "keep_raw=1 chain=0");
    set_policy(pool, "written", "encode=always keep_raw=1");
    set_policy(pool, "rules", "keep=last:2,every:30,every:20/4,each:1h,best:loss keep_raw=1 chain=7");
    set_policy(pool, "keys",
               "keep_raw=3 chain=5 links=12 keep=last:3,every:100/50,each:1h/7d,best:loss:2:max budget=50% rate=100M "
               "encode=auto scrub=30d parity=16+2");
    set_policy(pool, "sized", "keep=all budget=100M links=off encode=never");
}

static void expect_kinds(struct lmcs_pool *pool)
{
    uint64_t keyframes = 0, deltas = 0, raw = 0;
    uint32_t chain = 0;
    for (uint64_t n = 1; n <= 10; n += n == 4 ? 2 : 1) {
        struct lmcs_snapshot_storage storage = storage_of(pool, "run", n);
        keyframes += storage.keyframe_contents;
        deltas += storage.delta_contents;
        raw += storage.raw_contents;
        chain = storage.longest_chain > chain ? storage.longest_chain : chain;
        printf("run@%d: %d raw, %d keyframes, %d deltas, chain %u\n", (int)n, (int)storage.raw_contents,
               (int)storage.keyframe_contents, (int)storage.delta_contents, storage.longest_chain);
    }
    EXPECT(keyframes > 0 && deltas > 0 && raw > 0 && chain == 3);
    EXPECT((record_of(pool, "run", 1, "noise").df.flags & LMCS_CONTENT_SETTLED) != 0);
    EXPECT(record_of(pool, "parts", 2, "long").df.part_count == 3);
    EXPECT(storage_of(pool, "written", 4).delta_contents > 0);
}

static void make_history(void)
{
    struct lmcs_pool *pool = make_pool(path_in("history", "a.pool"));
    set_policies(pool);
    take_several(pool, "gone", 7, 2);
    take_history(pool);
    take_mixed(pool);
    take_parts(pool);
    take_several(pool, "written", 8, 4);
    take_several(pool, "rules", 9, 9);
    take_several(pool, "keys", 10, 3);
    take_several(pool, "was", 11, 2);
    fork_from(pool, "run@best", "tune");
    fork_from(pool, "tune@1", "tune/more");
    fork_from(pool, "gone@2", "orphan");
    take_several(pool, "tune", 12, 2);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "run", 5, false, NULL, &err));
    OK(lmcs_shelf_drop(pool, "gone", false, NULL, &err));
    OK(lmcs_shelf_rename(pool, "was", "renamed", &err));
    fork_from(pool, "renamed@1", "of-renamed");
    expect_kinds(pool);
    EXPECT(shelf_info(pool, "rules").snapshot_count < 9);
    verify_pool(pool);
    close_pool(pool);
    describe_both("history", "a.pool");
}

/* ---- links ---- */

static void take_line(struct lmcs_pool *pool, const char *shelf, struct lmc_link_hints hints, enum gradients kind,
                      bool related, const char *policy)
{
    static const size_t sizes[PARAMETERS] = {300, 1000, 1500};
    struct run run;
    set_policy(pool, shelf, policy);
    run_begin(&run, hints, kind, sizes);
    for (int i = 0; i < 6; i++) {
        run_step(&run);
        run_snapshot(&run, pool, shelf, related, 0);
    }
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(storage_of(pool, shelf, 5).link_contents > 0);
    EXPECT(record_of(pool, shelf, 5, "p2.weight").df.payload == LMCS_PAYLOAD_LINKED);
    expect_run(&run, pool, shelf);
    run_end(&run);
}

static void make_links(void)
{
    struct lmcs_pool *pool = make_pool(path_in("links", "a.pool"));
    struct lmc_link_hints amsgrad = adamw_hints(), nesterov = sgd_hints();
    amsgrad.flags = LMC_LINK_AMSGRAD | LMC_LINK_L2;
    nesterov.flags = LMC_LINK_NESTEROV;
    take_line(pool, "adamw", adamw_hints(), BF16, true, "keep_raw=1");
    take_line(pool, "amsgrad", amsgrad, ANY, true, "keep_raw=1");
    take_line(pool, "sgd", sgd_hints(), BF16, true, "keep_raw=1 parity=4+2");
    take_line(pool, "nesterov", nesterov, SUMMED, true, "keep_raw=1 links=2");
    OK(lmcs_snapshot_remove(pool, "adamw", 3, false, NULL, &err));
    fork_from(pool, "adamw@4", "fork");
    verify_pool(pool);
    close_pool(pool);
    describe_both("links", "a.pool");
}

static void make_found_links(void)
{
    static const size_t sizes[PARAMETERS] = {1024, 2048, 300};
    struct lmcs_pool *pool = make_pool(path_in("links", "found.pool"));
    struct run run;
    set_policy(pool, "run", "keep_raw=1");
    run_begin(&run, adamw_hints(), BF16, sizes);
    for (int i = 0; i < 4; i++) {
        run_step(&run);
        run_snapshot(&run, pool, "run", false, 0);
    }
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(storage_of(pool, "run", 3).link_contents > 0);
    run_end(&run);
    verify_pool(pool);
    close_pool(pool);
    describe_both("links", "found.pool");
}

/* ---- parity, and scrubs under way ---- */

static void make_parity(void)
{
    struct lmcs_pool *pool = make_pool(path_in("safety", "parity.pool"));
    struct lmcs_scrub_options options;
    struct lmcs_scrub_report report;
    struct lmcs_txn txn;
    struct lmcs_wanted_df wanted;
    bool found;
    set_policy(pool, "run", "parity=4+2 keep_raw=1");
    take_several(pool, "run", 20, 5);
    take_several(pool, "later", 21, 2);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(pool_info(pool).parity_bytes > 0);
    lmcs_scrub_options_init(&options);
    OK(lmcs_scrub(pool, &options, NULL, NULL, NULL, &report, &err)); /* and a part of the next */
    options.sample_bytes = 20000;
    OK(lmcs_scrub(pool, &options, NULL, NULL, NULL, &report, &err));
    EXPECT(pool_info(pool).scrub_share > 0 && pool_info(pool).scrubbed_ns > 0);
    uint64_t id = content_of(pool, "later", 1, "t0");
    OK(lmcs_txn_write(pool, &txn, &err)); /* before the parity is made */
    OK(lmcs_parity_want(&txn, id, 8, 1, &err));
    OK(lmcs_txn_commit(&txn, &err));
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_parity_wanted(&txn, id, &wanted, &found, &err));
    lmcs_txn_end(&txn);
    EXPECT(found && wanted.data == 8);
    verify_pool(pool);
    close_pool(pool);
    describe_both("safety", "parity.pool");
}

/* ---- damage ---- */

/* Recorded: a block of a large tensor, a small tensor, a base of deltas. Not recorded: one that parity can repair. */
static void make_damage(void)
{
    char *path = path_in("safety", "damage.pool");
    const uint64_t shape[] = {640, 1024}, small = 700;
    struct lmcs_pool *pool = make_pool(path);
    struct state *state = calloc(1, sizeof *state);
    struct telling telling;
    struct rng rng = {30};
    take_several(pool, "run", 31, 8);
    fill_pattern(state_add(state, "rows", LMC_U32, 2, shape)->data, 640 * 4096, 9);
    rng_fill(&rng, state_add(state, "small", LMC_U8, 1, &small)->data, small);
    take_snapshot(pool, "rows", state, 1);
    state_free(state);
    set_policy(pool, "safe", "parity=4+2");
    take_several(pool, "safe", 32, 2);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_content rows = record_of(pool, "rows", 1, "rows"), tiny = record_of(pool, "rows", 1, "small");
    struct lmcs_content base, safe = record_of(pool, "safe", 2, "t0"), delta = record_of(pool, "run", 1, "t0");
    EXPECT(delta.df.base_count == 1);
    base = content_record(pool, delta.bases[0]);
    damage_content(path, &rows, MIB + 5000, 3);
    damage_content(path, &tiny, 100, 1);
    damage_content(path, &base, base.df.stored_bytes - 10, 4);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 3 && telling.report.mended == 0 && pool_info(pool).lost_contents == 3);
    close_pool(pool);
    damage_content(path, &safe, 40, 20);
    describe_both("safety", "damage.pool");
    char *copy = path_in("work", "repaired.pool");
    copy_file(path, copy);
    pool = open_quiet(copy);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    EXPECT(telling.report.mended == 1);
    close_pool(pool);
    describe_as("safety", "damage.pool", "repaired", copy, LMCS_OPEN_WRITE);
}

/* ---- live: variables of every form, and snapshots of them ---- */

static void make_all_dtypes(struct lmcs_pool *pool)
{
    static const uint64_t shape[] = {3, 5}, empty[] = {0, 7};
    char name[64];
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END; dtype++) {
        snprintf(name, sizeof name, "all.%s", lmc_dtype_name(dtype));
        struct lmcs_live *live = new_live(pool, "live", name, dtype, 2, shape);
        fill_live(live, dtype);
        lmcs_live_close(live);
    }
    lmcs_live_close(new_live(pool, "live", "all.empty", LMC_F32, 2, empty));
    struct lmcs_live *scalar = new_live(pool, "live", "all.scalar", LMC_F64, 0, NULL);
    fill_live(scalar, 40);
    lmcs_live_close(scalar);
}

/* In several stretches: others were made after it before each growth. */
static void make_grown(struct lmcs_pool *pool)
{
    struct lmcs_live *grown = new_live(pool, "live", "grown", LMC_F32, 1, (uint64_t[]){2000});
    fill_live(grown, 50);
    for (uint64_t i = 1; i <= 4; i++) {
        char name[16];
        uint64_t elements = 2000 + i * 3000;
        snprintf(name, sizeof name, "between%d", (int)i);
        struct lmcs_live *between = new_live(pool, "live", name, LMC_U8, 1, &(uint64_t){5000});
        fill_live(between, 60 + i);
        lmcs_live_close(between);
        OK(lmcs_live_resize(grown, 1, &elements, &err));
        fill_live(grown, 50 + i);
    }
    EXPECT(grown->body->record->df.part_count >= 3);
    lmcs_live_close(grown);
    OK(lmcs_live_erase(pool, "live", "between2", &err));
}

static void make_values(struct lmcs_pool *pool)
{
    struct lmcs_tensor fixed = {.name = "value.matrix", .dtype = LMC_I32, .ndim = 2, .shape = (uint64_t[]){4, 3}};
    struct lmcs_live_options options;
    struct lmcs_live *live;
    static unsigned char large[LMCS_LIVE_MAX_VALUE];
    struct rng rng = {70};
    put_value(pool, "live", "value.text", "first");
    put_value(pool, "live", "value.text", "second");
    put_value(pool, "live", "value.empty", "");
    put_value(pool, "live", "value.a", "a text of its own");
    put_value(pool, "live", "value.b", "b");
    OK(lmcs_live_swap(pool, "live", "value.a", "value.b", &err));
    put_value(pool, "live", "value.old", "renamed");
    OK(lmcs_live_rename(pool, "live", "value.old", "value.new", &err));
    rng_fill(&rng, large, 6000);
    OK(lmcs_live_put(pool, "live", "value.large", large, 6000, NULL, 0, &err));
    lmcs_live_options_init(&options);
    options.form = LMCS_LIVE_VALUE;
    options.note = "i32 by rows";
    options.note_bytes = 11;
    OK(lmcs_live_create(pool, "live", &fixed, &options, &live, &err));
    for (uint32_t i = 0; i < 12; i++)
        OK(lmcs_live_write(live, 4 * i, &i, 4, &err));
    OK(lmcs_live_add(live, 8, 4, &(uint32_t){5}, NULL, &err));
    lmcs_live_close(live);
}

static void make_transactions(struct lmcs_pool *pool, uint32_t flags, const char *name)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction;
    struct lmcs_live *live = new_live(pool, "live", name, LMC_F32, 1, (uint64_t[]){3000});
    fill_live(live, 80 + flags);
    lmcs_transaction_options_init(&options);
    options.flags = flags;
    OK(lmcs_transaction_begin(pool, "live", NULL, 0, &options, &transaction, &err));
    OK(lmcs_transaction_declare(transaction, live, 0, 12000, &err));
    memset(lmcs_live_data(live), 1, 6000);
    put_value(pool, "live", "value.text", "third");
    OK(lmcs_transaction_commit(transaction, &err));
    lmcs_live_close(live);
}

static void make_live(void)
{
    struct lmcs_pool *pool = make_pool(path_in("live", "a.pool"));
    struct lmcs_commit_options options;
    struct lmcs_live *live;
    lmcs_commit_options_init(&options);
    make_all_dtypes(pool);
    make_grown(pool);
    make_values(pool);
    make_transactions(pool, 0, "private");
    make_transactions(pool, LMCS_TRANSACTION_DECLARED, "declared");
    options.step = 1;
    OK(lmcs_live_snapshot(pool, "live", &options, NULL, &err));
    OK(lmcs_live_open(pool, "live", "private", &live, &err));
    fill_live(live, 90);
    lmcs_live_close(live);
    options.step = 2;
    OK(lmcs_live_snapshot(pool, "live", &options, NULL, &err));
    OK(lmcs_live_checkout(pool, "live", "1", &err));
    put_value(pool, "live", "value.after", "made after the checkout");
    put_value(pool, "other", "value.text", "a shelf without snapshots");
    fork_from(pool, "live@2", "forked");
    OK(lmcs_live_checkout(pool, "forked", "1", &err));
    verify_pool(pool);
    close_pool(pool);
    describe_both("live", "a.pool");
}

/* ---- prepared: snapshots that await a decision ---- */

static void prepare(struct lmcs_pool *pool, const char *shelf, uint64_t seed, unsigned char group)
{
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    struct rng rng = {seed};
    struct state *state = state_weights(&rng, 2, 1500);
    lmcs_commit_options_init(&options);
    options.step = 77;
    options.prepare = true;
    memset(options.group, group, sizeof options.group);
    OK(lmcs_capture_begin(pool, shelf, &capture, &err));
    put_state(capture, state);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    state_free(state);
}

static void resolve(const char *section, bool commit)
{
    char *copy = path_in("work", "resolved.pool");
    copy_file(path_in("prepared", "a.pool"), copy);
    struct lmcs_pool *pool = open_quiet(copy);
    for (unsigned char group = 1; group <= 3; group++) {
        unsigned char id[16];
        memset(id, group, sizeof id);
        OK(lmcs_group_resolve(pool, id, commit, &err));
    }
    close_pool(pool);
    describe_as("prepared", "a.pool", section, copy, LMCS_OPEN_WRITE);
}

/* Groups 1, 2 and 3: a shelf with a history, a new one, one with live variables. */
static void make_prepared(void)
{
    struct lmcs_pool *pool = make_pool(path_in("prepared", "a.pool"));
    take_several(pool, "run", 100, 3);
    prepare(pool, "run", 101, 1);
    prepare(pool, "new", 102, 2);
    put_value(pool, "lively", "value", "text");
    OK(lmcs_live_snapshot(pool, "lively", NULL, NULL, &err));
    prepare(pool, "lively", 103, 3);
    verify_pool(pool);
    close_pool(pool);
    describe_both("prepared", "a.pool");
    resolve("committed", true);
    resolve("dropped", false);
}

/* ---- poolset ---- */

/* The test writes a.set, which contains the path. */
static void make_poolset(void)
{
    char *path = path_in("poolset", "a.set");
    FILE *file = fopen(path, "w");
    EXPECT(file != NULL && fprintf(file, "PMEMPOOLSET\n24M %s\n16M %s\nREPLICA\n40M %s\n", path_in("poolset", "part0"),
                                   path_in("poolset", "part1"), path_in("poolset", "replica")) > 0);
    EXPECT(fclose(file) == 0);
    struct lmcs_pool *pool = open_quiet(path);
    set_policy(pool, "run", "keep_raw=1");
    take_several(pool, "run", 110, 4);
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
    describe_as("poolset", "a.set", "reading", path, LMCS_OPEN_READ);
    unlink(path);
}

/* ---- archives ---- */

static void dump_as(struct lmcs_pool *pool, const char *folder, const char *name,
                    const struct lmcs_dump_options *options)
{
    int fd = new_file(path_in(folder, name));
    OK(lmcs_dump_with(pool, options, fd, NULL, NULL, &err));
    close(fd);
}

static void describe_archives(const char *folder, const char *const *names, size_t count)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (size_t i = 0; i < count; i++) {
        int fd = open(path_in(folder, names[i]), O_RDONLY | O_CLOEXEC);
        EXPECT(fd >= 0);
        enum lmcs_status status = describe_archive(out, names[i], fd, &err);
        EXPECT(status == (strncmp(names[i], "cut", 3) == 0 ? LMCS_DAMAGED : LMCS_OK));
        close(fd);
    }
    fclose(out);
    write_text(folder, "archives", text);
    free(text);
}

static int cut_archive(const char *to, uint64_t hundredths)
{
    copy_file(path_in("history", "full.archive"), to);
    int fd = open(to, O_RDWR | O_CLOEXEC);
    struct stat info;
    EXPECT(fd >= 0 && fstat(fd, &info) == 0 && ftruncate(fd, info.st_size * (off_t)hundredths / 100) == 0);
    return fd;
}

static void export_as(struct lmcs_pool *pool, const char *address, const char *name)
{
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    OK(lmcs_export_safetensors(snapshot, NULL, path_in("history", name), NULL, NULL, &err));
    lmcs_snapshot_close(snapshot);
}

/* cut.archive is the beginning of an interrupted dump of history/a.pool. */
static void make_archives(void)
{
    static const char *const names[] = {"full.archive", "canonical.archive", "part.archive", "since.archive",
                                        "cut.archive"};
    static const char *const part[] = {"run@3..7", "mixed"}, *const of_links = "links.archive";
    struct lmcs_dump_options options;
    struct lmcs_pool *pool = open_pool(path_in("history", "a.pool"), LMCS_OPEN_READ, 0);
    lmcs_dump_options_init(&options);
    dump_as(pool, "history", "full.archive", &options);
    options.canonical = true;
    dump_as(pool, "history", "canonical.archive", &options);
    options = (struct lmcs_dump_options){.addresses = part, .address_count = 2};
    dump_as(pool, "history", "part.archive", &options);
    int since = open(path_in("history", "part.archive"), O_RDONLY | O_CLOEXEC);
    options = (struct lmcs_dump_options){.since = &since, .since_count = 1};
    dump_as(pool, "history", "since.archive", &options);
    close(since);
    close(cut_archive(path_in("history", "cut.archive"), 55));
    export_as(pool, "mixed@2", "mixed.safetensors");
    export_as(pool, "run@9", "one.safetensors");
    export_as(pool, "run@10", "two.safetensors");
    close_pool(pool);
    describe_archives("history", names, sizeof names / sizeof names[0]);
    pool = open_pool(path_in("links", "a.pool"), LMCS_OPEN_READ, 0);
    lmcs_dump_options_init(&options);
    dump_as(pool, "links", of_links, &options);
    close_pool(pool);
    describe_archives("links", &of_links, 1);
}

/* ---- staged: a restore with `resume` whose archive ended too early ---- */

static void make_staged(void)
{
    const struct lmcs_restore_options resume = {.resume = true};
    char *path = path_in("history", "staged.pool"), *archive = path_in("work", "staged.archive");
    struct lmcs_pool *pool = make_pool(path);
    take_several(pool, "before", 120, 2);
    int fd = cut_archive(archive, 70);
    FAILS(LMCS_DAMAGED, lmcs_restore_with(pool, &fd, 1, &resume, NULL, NULL, &err));
    close(fd);
    EXPECT(pool_info(pool).shelf_count == 1 && pool_info(pool).content_count > 20);
    verify_pool(pool);
    close_pool(pool);
    describe_both("history", "staged.pool");
}

int main(int argc, char **argv)
{
    begin_program(argc, argv);
    make_history();
    make_links();
    make_found_links();
    make_parity();
    make_damage();
    make_live();
    make_prepared();
    make_poolset();
    make_archives();
    make_staged();
    return 0;
}
