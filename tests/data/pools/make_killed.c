/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * make_killed.c - writes the pools of killed/ (README.md, make.sh).
 *
 * A child kills itself before its n-th write, sync or msync; the parent raises n until the pool has the wanted state.
 * The folder must be on a disk file system, where the store uses system calls.
 */
#include <sys/mman.h>

/* The header's msync excludes libpmemobj's calls, which count here. */
#define msync their_msync
#include "refuse.h"
#undef msync

#include "make_support.h"

#include "media.h"
#include "redo.h"
#include "txn.h"

extern int msync(void *at, size_t bytes, int flags);

static long msyncs_left = -1;

static void die(void)
{
    kill(getpid(), SIGKILL);
}

__attribute__((visibility("default"))) int msync(void *at, size_t bytes, int flags)
{
    if (msyncs_left >= 0 && msyncs_left-- == 0)
        die();
    return (int)syscall(SYS_msync, at, bytes, flags);
}

/* ---- The state of a pool after a kill ---- */

struct left {
    struct lmcs_journal_df journals[LMCS_JOURNALS]; /* 0: not begun, or done */
    uint64_t committed;                             /* that the root names */
    bool has_log;                                   /* libpmemobj's */
    uint64_t stages;                                /* invisible shelves */
    uint64_t contents, snapshots;
};

static void read_journal(struct lmcs_media *media, uint64_t at, struct lmcs_journal_df *header)
{
    OK(lmcs_media_read(media, at, header, sizeof *header, &err));
    if (header->magic != LMCS_JOURNAL_MAGIC ||
        header->check != lmc_hash64(header, offsetof(struct lmcs_journal_df, check), at))
        header->sequence = 0;
}

static struct left look(const char *path)
{
    struct left left = {.committed = 0};
    struct lmcs_media *media;
    struct lmcs_redo *redo;
    struct lmcs_txn txn;
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, LMCS_NO_BACKGROUND);
    OK(lmcs_media_open(path, &media, &err));
    OK(lmcs_redo_load(media, &redo, &err));
    left.has_log = redo != NULL;
    OK(lmcs_txn_read(pool, &txn, &err));
    for (int i = 0; i < (int)LMCS_JOURNALS; i++)
        if (txn.root.journals[i].end != 0)
            read_journal(media, txn.root.journals[i].next, &left.journals[i]);
    left.committed = txn.root.live_committed;
    left.stages = txn.root.trees[LMCS_TREE_SHELVES].count - pool_info(pool).shelf_count;
    left.contents = pool_info(pool).content_count;
    left.snapshots = txn.root.snapshot_count;
    lmcs_txn_end(&txn);
    lmcs_redo_free(redo);
    lmcs_media_release(media);
    close_pool(pool);
    return left;
}

/* ---- Killing ---- */

struct killing {
    const char *name;
    void (*prepare)(struct lmcs_pool *pool);
    void (*work)(struct lmcs_pool *pool);
    bool (*is_wanted)(const struct left *left);
    bool by_msync; /* otherwise at writes and syncs */
    int refusal;   /* WRITING or SYNCING */
    const char *path;
    long n;
};

static int work_in_child(void *argument)
{
    const struct killing *killing = argument;
    struct lmcs_pool *pool = open_quiet(killing->path);
    on_failure = die;
    if (killing->by_msync)
        msyncs_left = killing->n;
    else
        refuse((enum refusal)killing->refusal, killing->n, false);
    killing->work(pool);
    return 0;
}

static void make_killed(struct killing killing)
{
    char file[64], *made = path_in("work", "made.pool");
    snprintf(file, sizeof file, "%s.pool", killing.name);
    killing.path = path_in("killed", file);
    struct lmcs_pool *pool = make_pool(made);
    killing.prepare(pool);
    verify_pool(pool);
    close_pool(pool);
    bool found = false;
    for (killing.n = 0; !found; killing.n++) {
        copy_file(made, killing.path);
        int status = run_child(work_in_child, &killing, 60);
        if (!WIFSIGNALED(status)) {
            fprintf(stderr, "%s: no call leaves what is wanted\n", killing.name);
            exit(1);
        }
        struct left left = look(killing.path);
        found = killing.is_wanted(&left);
    }
    printf("%s: killed at call %ld\n", killing.name, killing.n);
    describe_both("killed", file);
}

/* ---- Live variables ---- */

static void prepare_live(struct lmcs_pool *pool)
{
    struct lmcs_live *a = new_live(pool, "run", "a", LMC_F32, 1, (uint64_t[]){4000});
    struct lmcs_live *b = new_live(pool, "run", "b", LMC_U8, 1, (uint64_t[]){1000});
    fill_live(a, 1);
    fill_live(b, 2);
    put_value(pool, "run", "text", "before");
    put_value(pool, "run", "gone", "erased by the transaction");
    OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    lmcs_live_close(a);
    lmcs_live_close(b);
}

static void change_bytes(struct lmcs_pool *pool, uint32_t flags, bool records, bool commit)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction;
    struct lmcs_live *a, *b;
    uint64_t more = 2000;
    lmcs_transaction_options_init(&options);
    options.flags = flags;
    OK(lmcs_transaction_begin(pool, "run", NULL, 0, &options, &transaction, &err));
    OK(lmcs_live_open(pool, "run", "a", &a, &err));
    OK(lmcs_live_open(pool, "run", "b", &b, &err));
    OK(lmcs_transaction_declare(transaction, a, 4096, 8192, &err));
    memset((char *)lmcs_live_data(a) + 4096, 7, 8192);
    OK(lmcs_transaction_declare(transaction, b, 10, 100, &err));
    memset((char *)lmcs_live_data(b) + 10, 9, 100);
    put_value(pool, "run", "text", "after!");
    if (records) {
        OK(lmcs_live_erase(pool, "run", "gone", &err));
        put_value(pool, "run", "new", "made by the transaction");
        OK(lmcs_live_resize(b, 1, &more, &err));
    }
    if (!commit) {
        OK(lmcs_live_persist(a, 0, 16000, &err));
        die();
    }
    OK(lmcs_transaction_commit(transaction, &err));
}

static void commit_bytes(struct lmcs_pool *pool)
{
    change_bytes(pool, 0, false, true);
}

static void commit_records(struct lmcs_pool *pool)
{
    change_bytes(pool, 0, true, true);
}

static void declare_bytes(struct lmcs_pool *pool)
{
    change_bytes(pool, LMCS_TRANSACTION_DECLARED, false, false);
}

static void commit_declared(struct lmcs_pool *pool)
{
    change_bytes(pool, LMCS_TRANSACTION_DECLARED, true, true);
}

static bool is_sealed(const struct left *left)
{
    const struct lmcs_journal_df *redo = &left->journals[LMCS_JOURNAL_REDO];
    return redo->sequence != 0 && (redo->flags & LMCS_JOURNAL_ROOT) == 0 && redo->entries > 0;
}

static bool is_sealed_by_root(const struct left *left)
{
    const struct lmcs_journal_df *redo = &left->journals[LMCS_JOURNAL_REDO];
    return redo->sequence != 0 && (redo->flags & LMCS_JOURNAL_ROOT) != 0 && left->committed == redo->sequence;
}

static bool is_not_sealed(const struct left *left)
{
    const struct lmcs_journal_df *redo = &left->journals[LMCS_JOURNAL_REDO];
    return redo->sequence != 0 && (redo->flags & LMCS_JOURNAL_ROOT) != 0 && left->committed < redo->sequence;
}

static bool is_undo(const struct left *left)
{
    const struct lmcs_journal_df *undo = &left->journals[LMCS_JOURNAL_UNDO];
    return undo->sequence != 0 && left->committed < undo->sequence;
}

static bool is_undo_ended_by_root(const struct left *left)
{
    const struct lmcs_journal_df *undo = &left->journals[LMCS_JOURNAL_UNDO];
    return undo->sequence != 0 && left->committed == undo->sequence;
}

/* ---- Snapshots ---- */

static void take_some(struct lmcs_pool *pool, const char *shelf, uint64_t seed, int count)
{
    struct rng rng = {seed};
    struct state *state = state_weights(&rng, 2, 1500);
    for (int i = 1; i <= count; i++) {
        state_step(state, &rng, 0, 1);
        take_snapshot(pool, shelf, state, i);
    }
    state_free(state);
}

static void prepare_history(struct lmcs_pool *pool)
{
    take_some(pool, "run", 3, 5);
    take_some(pool, "other", 4, 2);
}

/* Large: the commit takes room from libpmemobj, which writes a log. */
static void capture(struct lmcs_pool *pool)
{
    const uint64_t bytes = 12 * MIB;
    struct state *state = calloc(1, sizeof *state);
    fill_pattern(state_add(state, "large", LMC_U8, 1, &bytes)->data, bytes, 5);
    take_snapshot(pool, "run", state, 6);
}

/* Commits nothing; the payload is in the pool. */
static void capture_and_die(struct lmcs_pool *pool)
{
    struct lmcs_capture *capture;
    struct rng rng = {6};
    struct state *state = state_weights(&rng, 2, 1500);
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, state);
    die();
}

static void drop(struct lmcs_pool *pool)
{
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
}

static void compact(struct lmcs_pool *pool)
{
    OK(lmcs_shelf_set_policy(pool, "run", "keep_raw=1", &err));
    OK(lmcs_compact(pool, NULL, &err));
}

static int archive = -1;

static void restore(struct lmcs_pool *pool)
{
    EXPECT(lseek(archive, 0, SEEK_SET) == 0); /* shared by children */
    OK(lmcs_restore(pool, archive, NULL, NULL, &err));
}

/* Of shelves outside prepare_history. */
static void make_archive(void)
{
    struct lmcs_pool *pool = make_pool(path_in("work", "archived.pool"));
    take_some(pool, "archived", 7, 3);
    archive = new_file(path_in("work", "some.archive"));
    OK(lmcs_dump(pool, NULL, archive, NULL, NULL, &err));
    close_pool(pool);
}

static bool has_log(const struct left *left)
{
    return left->has_log && left->snapshots == 7;
}

static bool is_anything(const struct left *left)
{
    return left->stages == 0;
}

static bool has_stage(const struct left *left)
{
    return left->stages > 0;
}

static bool has_arrived(const struct left *left)
{
    return left->stages > 0 && left->contents > 9 + 2;
}

static long compactions_left = 35; /* when two of four deltas are committed */

static bool is_within(const struct left *left)
{
    return left->stages == 0 && compactions_left-- == 0;
}

int main(int argc, char **argv)
{
    begin_program(argc, argv);
    make_archive();
    const struct killing all[] = {
        {"redo", prepare_live, commit_bytes, is_sealed, false, SYNCING, NULL, 0},
        {"redo-by-root", prepare_live, commit_records, is_sealed_by_root, false, WRITING, NULL, 0},
        {"redo-not-committed", prepare_live, commit_records, is_not_sealed, false, SYNCING, NULL, 0},
        {"undo", prepare_live, declare_bytes, is_undo, false, NOTHING, NULL, 0},
        {"undo-ended-by-root", prepare_live, commit_declared, is_undo_ended_by_root, false, SYNCING, NULL, 0},
        {"log", prepare_history, capture, has_log, true, NOTHING, NULL, 0},
        {"capture", prepare_history, capture_and_die, is_anything, false, NOTHING, NULL, 0},
        {"drop", prepare_history, drop, has_stage, false, WRITING, NULL, 0},
        {"restore", prepare_history, restore, has_arrived, false, WRITING, NULL, 0},
        {"compaction", prepare_history, compact, is_within, false, WRITING, NULL, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        make_killed(all[i]);
    return 0;
}
