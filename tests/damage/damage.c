/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * damage.c - damages a pool, a poolset and an archive, and checks the reports and results (README.md).
 *
 * damage [--count N] [--seed S] [--only CASE] [--kind KIND] [--verbose]
 *
 * A case's damage follows from its seed and number.
 */
/* ctest: timeout=600 labels=no-asan,no-tsan */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "damage.h"
#include "media/pmemobj_layout.h"

#define SECONDS_A_CASE 30u

#define ARCHIVE_MOST   ((size_t)64 << 20)

static const char *const outcome_names[OUTCOMES] = {"refused", "reported", "unseen", "WRONG",
                                                    "UNNAMED", "CRASHED",  "HUNG"};

/* ---- Results ---- */

static enum outcome refused(struct bench *bench)
{
    size_t length = strlen(bench->shared->what);
    snprintf(bench->shared->what + length, sizeof bench->shared->what - length, ": %s", err.message);
    return strlen(err.message) > 20 && err.status != LMCS_INVALID && err.status != LMCS_NO_MEMORY ? REFUSED : UNNAMED;
}

struct found {
    const struct damage *damage;
    unsigned damages, named;
};

static void note_damage(void *context, const struct lmcs_damage *told)
{
    struct found *found = context;
    const struct damage *damage = found->damage;
    struct shared *shared = damage->bench->shared;
    EXPECT(told->what != NULL && told->what[0] != '\0' && told->shelf != NULL && told->tensor != NULL);
    if (found->damages++ == 0) {
        size_t length = strlen(shared->what);
        snprintf(shared->what + length, sizeof shared->what - length, ": %s@%llu \"%s\": %s", told->shelf,
                 ULL(told->number), told->tensor, told->what);
    }
    if (damage->tree >= LMCS_TREE_NUMBERS) {
        found->named += told->shelf[0] != '\0' && (damage->tree != LMCS_TREE_MANIFEST || told->number != 0);
        return;
    }
    if (damage->has_byte && (damage->byte < told->first_byte || damage->byte - told->first_byte >= told->byte_count))
        return;
    found->named += damage->tensor == NULL || strcmp(told->tensor, damage->tensor) == 0 ||
                    (damage->tensor2 != NULL && strcmp(told->tensor, damage->tensor2) == 0);
}

static enum outcome look(struct damage *damage, const char *path)
{
    struct lmcs_pool *pool;
    struct lmcs_verify_report report;
    struct found found = {.damage = damage};
    if (try_open(path, LMCS_OPEN_READ, &pool) != LMCS_OK)
        return refused(damage->bench);
    enum lmcs_status status = lmcs_verify(pool, NULL, note_damage, &found, NULL, &report, &err);
    EXPECT(status == LMCS_OK || status == LMCS_DAMAGED);
    EXPECT(report.damages == found.damages && (status == LMCS_DAMAGED) == (found.damages > 0));
    close_pool(pool);
    uint64_t lost = read_what_is_left(damage->bench->subject, path, 1);
    if (lost > 0 && found.damages == 0)
        return WRONG; /* as the read did */
    return found.damages == 0 ? UNSEEN : found.named > 0 ? REPORTED : UNNAMED;
}

static struct state *new_state(struct rng *rng, uint64_t bytes)
{
    struct state *state = calloc(1, sizeof *state);
    struct held *held = state_add(state, "new", LMC_U8, 1, &bytes);
    rng_fill(rng, held->data, held->bytes);
    return state;
}

/*
 * Takes and frees room, reads everything, removes run@1 and big@1. `must_work`: the pool was accepted as sound, so
 * nothing may fail.
 */
static enum outcome write_on(struct damage *damage, const char *path, bool must_work)
{
    struct bench *bench = damage->bench;
    struct lmcs_pool *pool;
    enum lmcs_status status[6];
    if (try_open(path, LMCS_OPEN_WRITE, &pool) != LMCS_OK)
        return refused(bench);
    struct state *first = new_state(&damage->rng, 5000000), *second = new_state(&damage->rng, 3000000);
    status[0] = try_snapshot(pool, "new", first, 1, NULL, &err);
    status[1] = lmcs_snapshot_remove(pool, "big", 1, false, NULL, &err);
    status[2] = lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err);
    status[3] = lmcs_compact(pool, NULL, &err);
    status[4] = lmcs_tag_set(pool, "run", "new", 3, &err);
    status[5] = try_snapshot(pool, "new", second, 2, NULL, &err);
    if (must_work)
        for (size_t i = 0; i < sizeof status / sizeof status[0]; i++)
            EXPECT(status[i] == LMCS_OK);
    enum lmcs_status closed = lmcs_pool_close(pool, &err);
    EXPECT(!must_work || closed == LMCS_OK);
    uint64_t lost = read_what_is_left(bench->subject, path, 2);
    if (must_work) {
        EXPECT(lost == 0);
        pool = open_quiet(path);
        verify_pool(pool);
        expect_snapshot(pool, "new", 1, first);
        expect_snapshot(pool, "new", 2, second);
        close_pool(pool);
    }
    return UNSEEN;
}

/* The reader reports damage to our bytes. A quarter of the cases add a writer. */
static enum outcome judge_ours(struct damage *damage, void (*apply)(struct damage *damage, const char *path))
{
    struct bench *bench = damage->bench;
    copy_file(bench->whole, bench->work);
    apply(damage, bench->work);
    enum outcome outcome = look(damage, bench->work);
    if (outcome == UNSEEN)
        return WRONG;
    if (damage->turn % 4 == 0) {
        char told[sizeof bench->shared->what];
        memcpy(told, bench->shared->what, sizeof told);
        write_on(damage, bench->work, false);
        memcpy(bench->shared->what, told, sizeof told);
    }
    return outcome;
}

static enum outcome judge_cut(struct damage *damage, void (*apply)(struct damage *damage, const char *path))
{
    struct bench *bench = damage->bench;
    copy_file(bench->whole, bench->work);
    apply(damage, bench->work);
    enum outcome outcome = look(damage, bench->work);
    char told[sizeof bench->shared->what];
    memcpy(told, bench->shared->what, sizeof told);
    enum outcome written = write_on(damage, bench->work, outcome == UNSEEN);
    if (outcome != UNSEEN)
        memcpy(bench->shared->what, told, sizeof told);
    return outcome == UNSEEN ? written : outcome;
}

/* A reader doesn't need libpmemobj's bytes. A writer is refused, or loses nothing. */
static enum outcome judge_theirs(struct damage *damage, void (*apply)(struct damage *damage, const char *path))
{
    struct bench *bench = damage->bench;
    copy_file(bench->whole, bench->work);
    apply(damage, bench->work);
    char what[sizeof bench->shared->what];
    memcpy(what, bench->shared->what, sizeof what);
    enum outcome read = look(damage, bench->work);
    memcpy(bench->shared->what, what, sizeof what);
    enum outcome written = write_on(damage, bench->work, read == UNSEEN);
    if (read == WRONG || read == UNNAMED || written == WRONG || written == UNNAMED)
        return read == WRONG || written == WRONG ? WRONG : UNNAMED;
    return written == REFUSED ? REFUSED : read;
}

/* ---- A log that has not been applied ---- */

static void flip_pending(struct damage *damage, const char *path)
{
    struct bench *bench = damage->bench;
    uint64_t at = bench->pending_log + spread(damage, bench->pending_log_bytes);
    file_flip(path, at, (unsigned)rng_next(&damage->rng));
    describe(damage, "a bit of byte %llu of a pending log of %llu bytes", ULL(at - bench->pending_log),
             ULL(bench->pending_log_bytes));
}

/* The last commit took an extent; it is applied or absent. Every eighth turn is undamaged: applied. */
static enum outcome judge_pending(struct damage *damage, void (*apply)(struct damage *damage, const char *path))
{
    struct bench *bench = damage->bench;
    struct lmcs_pool *pool;
    copy_file(bench->pending, bench->work);
    if (damage->turn % 8 != 0)
        apply(damage, bench->work);
    if (try_open(bench->work, LMCS_OPEN_WRITE, &pool) != LMCS_OK) {
        EXPECT(damage->turn % 8 != 0 && read_what_is_left(bench->subject, bench->work, 1) == 0);
        return refused(bench);
    }
    EXPECT(damage->turn % 8 != 0 || pool_info(pool).epoch == bench->pending_epoch);
    verify_pool(pool);
    close_pool(pool);
    EXPECT(read_what_is_left(bench->subject, bench->work, 1) == 0);
    return write_on(damage, bench->work, true);
}

/* ---- Poolsets ---- */

static void damage_parts(struct damage *damage, const char *path)
{
    struct bench *bench = damage->bench;
    struct stat st;
    (void)path;
    uint64_t how = damage->turn % 4, part = rng_below(&damage->rng, 2);
    EXPECT(stat(bench->parts[part], &st) == 0);
    if (how == 0) {
        char other[420];
        snprintf(other, sizeof other, "%s.other", bench->parts[0]);
        EXPECT(rename(bench->parts[0], other) == 0 && rename(bench->parts[1], bench->parts[0]) == 0 &&
               rename(other, bench->parts[1]) == 0);
        describe(damage, "the two parts of a poolset, swapped");
    } else if (how == 1) {
        uint64_t bytes = rng_below(&damage->rng, (uint64_t)st.st_size);
        EXPECT(truncate(bench->parts[part], (off_t)bytes) == 0);
        describe(damage, "part %llu of a poolset, cut to %llu bytes", ULL(part), ULL(bytes));
    } else if (how == 2) {
        EXPECT(unlink(bench->parts[part]) == 0);
        describe(damage, "part %llu of a poolset, lost", ULL(part));
    } else {
        uint64_t at = rng_below(&damage->rng, LMCS_PAGE_BYTES);
        file_flip(bench->parts[part], at, (unsigned)rng_next(&damage->rng));
        describe(damage, "a bit of byte %llu of part %llu of a poolset", ULL(at), ULL(part));
    }
}

static enum outcome judge_set(struct damage *damage, void (*apply)(struct damage *damage, const char *path))
{
    struct bench *bench = damage->bench;
    struct lmcs_pool *pool;
    for (int i = 0; i < 2; i++)
        copy_file(bench->whole_parts[i], bench->parts[i]);
    apply(damage, bench->set);
    bool readable = try_open(bench->set, LMCS_OPEN_READ, &pool) == LMCS_OK;
    if (readable) {
        struct found found = {.damage = damage};
        char told[sizeof bench->shared->what];
        memcpy(told, bench->shared->what, sizeof told);
        enum lmcs_status status = lmcs_verify(pool, NULL, note_damage, &found, NULL, NULL, &err);
        if (status == LMCS_OK)
            expect_snapshot(pool, "run", 1, bench->set_state);
        close_pool(pool);
        if (status != LMCS_OK)
            return REPORTED;
        memcpy(bench->shared->what, told, sizeof told);
    }
    if (try_open(bench->set, LMCS_OPEN_WRITE, &pool) != LMCS_OK)
        return refused(bench);
    EXPECT(readable);
    take_snapshot(pool, "new", bench->set_state, 1);
    expect_snapshot(pool, "run", 1, bench->set_state);
    expect_snapshot(pool, "new", 1, bench->set_state);
    verify_pool(pool);
    close_pool(pool);
    return UNSEEN;
}

/* ---- Archives ---- */

static void damage_archive(struct damage *damage, const char *path)
{
    struct bench *bench = damage->bench;
    size_t bytes = bench->archive_bytes;
    unsigned char *copy = malloc(bytes);
    EXPECT(copy != NULL);
    memcpy(copy, bench->archive, bytes);
    uint64_t how = damage->turn % 8, at = rng_below(&damage->rng, bytes), n = 1 + rng_below(&damage->rng, 4096);
    if (n > bytes - at)
        n = bytes - at;
    if (how < 5) {
        /* The front has more headers; the last ones cover all. */
        at = how == 0 ? rng_below(&damage->rng, 4096) : how == 1 ? bytes - 1 - rng_below(&damage->rng, 256) : at;
        copy[at] ^= (unsigned char)(1u << rng_below(&damage->rng, 8));
        describe(damage, "a bit of byte %llu of an archive of %zu", ULL(at), bytes);
    } else if (how == 5) {
        memset(copy + at, 0, n);
        describe(damage, "%llu bytes at %llu of an archive, zeroed", ULL(n), ULL(at));
    } else if (how == 6) {
        bytes = at;
        describe(damage, "an archive, cut to %zu bytes", bytes);
    } else {
        uint64_t other = rng_below(&damage->rng, bytes - n);
        memmove(copy + at, bench->archive + other, n);
        memcpy(copy + other, bench->archive + at, n);
        describe(damage, "%llu bytes of an archive at %llu and %llu, swapped", ULL(n), ULL(at), ULL(other));
    }
    bool same = bytes == bench->archive_bytes && memcmp(copy, bench->archive, bytes) == 0;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0 && (bytes == 0 || write(fd, copy, bytes) == (ssize_t)bytes));
    if (same) /* no change */
        EXPECT(ftruncate(fd, (off_t)bytes - 1) == 0);
    close(fd);
    free(copy);
}

/* Nothing is visible, and the pool usable. */
static enum outcome judge_archive(struct damage *damage, void (*apply)(struct damage *damage, const char *path))
{
    struct bench *bench = damage->bench;
    apply(damage, bench->work);
    int fd = open(bench->work, O_RDONLY | O_CLOEXEC);
    struct lmcs_pool *pool = open_quiet(bench->restored);
    enum lmcs_status status = lmcs_restore(pool, fd, NULL, NULL, &err);
    enum outcome outcome = status == LMCS_OK ? WRONG : refused(bench);
    close(fd);
    check_pool(pool);
    EXPECT(pool_info(pool).snapshot_count == 0);
    close_pool(pool);
    return outcome;
}

/* ---- Kinds ---- */

static const struct kind {
    const char *name;
    unsigned share; /* thousandths of all cases */
    void (*apply)(struct damage *damage, const char *path);
    enum outcome (*judge)(struct damage *damage, void (*apply)(struct damage *damage, const char *path));
} kinds[] = {
    {"superblock: a bit", 15, flip_superblock, judge_ours},
    {"root page: a bit", 15, flip_root, judge_ours},
    {"tree pages: a bit", 280, flip_tree, judge_ours},
    {"tree pages: overwritten", 30, overwrite_page, judge_ours},
    {"tree pages: two swapped", 30, swap_pages, judge_ours},
    {"payloads: a bit", 100, flip_payload, judge_ours},
    {"payloads: overwritten", 30, overwrite_payload, judge_ours},
    {"payloads: two swapped", 30, swap_payloads, judge_ours},
    {"lines of links: a bit", 50, flip_line, judge_line},
    {"the file: cut", 20, cut_file, judge_cut},
    {"a poolset: parts", 20, damage_parts, judge_set},
    {"archives", 120, damage_archive, judge_archive},
    {"libpmemobj: header, a bit", 40, flip_header, judge_theirs},
    {"libpmemobj: log, a bit", 40, flip_log, judge_theirs},
    {"libpmemobj: pending log", 20, flip_pending, judge_pending},
    {"libpmemobj: heap, a bit", 40, flip_heap, judge_theirs},
    {"libpmemobj: chunks, a bit", 50, flip_chunk, judge_theirs},
    {"libpmemobj: objects, a bit", 40, flip_object, judge_theirs},
    {"libpmemobj: overwritten", 30, overwrite_heap, judge_theirs},
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Returns case n's kind and index within it. Kinds alternate by share. */
static size_t kind_of(uint64_t n, uint64_t *turn)
{
    uint64_t in_cycle = n % 1000, cycle = n / 1000;
    uint64_t step = in_cycle * 7 % 1000; /* mixed, so that few cases cover all */
    uint64_t first = 0;
    for (size_t i = 0; i < KINDS; i++) {
        if (step < first + kinds[i].share) {
            *turn = cycle * kinds[i].share + step - first;
            return i;
        }
        first += kinds[i].share;
    }
    abort();
}

/* ---- Running cases ---- */

static void run_case(struct bench *bench, uint64_t n)
{
    struct damage damage = {.bench = bench, .rng = {bench->seed * 0x9e3779b97f4a7c15u + n}};
    const struct kind *kind = &kinds[kind_of(n, &damage.turn)];
    alarm(SECONDS_A_CASE);
    bench->shared->outcome = kind->judge(&damage, kind->apply);
    _exit(0);
}

static enum outcome try_case(struct bench *bench, uint64_t n)
{
    int status = 0;
    *bench->shared = (struct shared){.outcome = WRONG};
    fflush(NULL);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0)
        run_case(bench, n);
    EXPECT(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status))
        return WTERMSIG(status) == SIGALRM ? HUNG : CRASHED;
    return WEXITSTATUS(status) == 0 ? bench->shared->outcome : WRONG;
}

static struct bench *make_bench(const char *folder, uint64_t seed)
{
    struct bench *bench = calloc(1, sizeof *bench);
    EXPECT(bench != NULL);
    bench->seed = seed;
    snprintf(bench->folder, sizeof bench->folder, "%s", folder);
    snprintf(bench->whole, sizeof bench->whole, "%s/whole.pool", folder);
    snprintf(bench->work, sizeof bench->work, "%s/work", folder);
    snprintf(bench->set, sizeof bench->set, "%s/pool.set", folder);
    snprintf(bench->pending, sizeof bench->pending, "%s/pending.pool", folder);
    snprintf(bench->restored, sizeof bench->restored, "%s/restored.pool", folder);
    bench->shared = mmap(NULL, sizeof *bench->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(bench->shared != MAP_FAILED);
    bench->subject = make_subject(bench->whole);
    return bench;
}

static void make_set(struct bench *bench)
{
    struct rng rng = {4};
    FILE *file = fopen(bench->set, "w");
    EXPECT(file != NULL);
    fprintf(file, "PMEMPOOLSET\n");
    for (int i = 0; i < 2; i++) {
        snprintf(bench->parts[i], sizeof bench->parts[i], "%s/part%d", bench->folder, i);
        snprintf(bench->whole_parts[i], sizeof bench->whole_parts[i], "%s/part%d.whole", bench->folder, i);
        fprintf(file, "%dM %s\n", i == 0 ? 16 : 24, bench->parts[i]);
    }
    fclose(file);
    bench->set_state = state_weights(&rng, 3, 100000);
    struct lmcs_pool *pool = open_quiet(bench->set);
    take_snapshot(pool, "run", bench->set_state, 1);
    close_pool(pool);
    for (int i = 0; i < 2; i++)
        copy_file(bench->parts[i], bench->whole_parts[i]);
}

/* Restores a word's old value; logs the new one. */
static void put_back(struct bench *bench, uint64_t at, struct lmcs_log_entry_df *entries, size_t *count)
{
    uint64_t before, after;
    file_read(bench->work, at, &before, sizeof before);
    file_read(bench->pending, at, &after, sizeof after);
    if (before == after)
        return;
    EXPECT(*count < 16);
    entries[(*count)++] = (struct lmcs_log_entry_df){LMCS_LOG_SET | at, after};
    file_write(bench->pending, at, &before, sizeof before);
}

static uint64_t fletcher(const void *log, size_t bytes)
{
    uint32_t low = 0, high = 0, word;
    for (size_t at = 0; at < bytes; at += sizeof word) {
        memcpy(&word, (const unsigned char *)log + at, sizeof word);
        low += word;
        high += low;
    }
    return (uint64_t)high << 32 | low;
}

/* As after a kill just after libpmemobj's log is durable, for a commit that took an extent. */
static void make_pending(struct bench *bench)
{
    struct rng rng = {5};
    struct {
        struct lmcs_log_df header;
        struct lmcs_log_entry_df entries[17];
    } log = {0};
    const struct subject *subject = bench->subject;
    uint64_t zone = subject->heap + LMCS_HEAP_HEADER_BYTES, lanes;
    size_t count = 0;
    char after[sizeof bench->pending + 8];
    copy_file(bench->whole, bench->pending);
    struct lmcs_pool *pool = open_quiet(bench->pending);
    OK(lmcs_compact(pool, NULL, &err)); /* no space to release first */
    close_pool(pool);
    pool = open_quiet(bench->pending);
    copy_file(bench->pending, bench->work); /* one commit before the copy below: opening and closing commit, too */
    struct lmcs_capture *capture;
    struct state *large = new_state(&rng, 9000000);
    uint64_t before = pool_info(pool).epoch;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, large);
    lmcs_capture_abort(capture);
    state_free(large);
    bench->pending_epoch = pool_info(pool).epoch;
    EXPECT(bench->pending_epoch == before + 1);
    snprintf(after, sizeof after, "%s.after", bench->pending);
    copy_file(bench->pending, after);
    close_pool(pool);
    EXPECT(rename(after, bench->pending) == 0);
    struct lmcs_chunk_df chunk;
    for (uint64_t i = 0; i < LMCS_ZONE_CHUNKS; i += chunk.chunks) {
        uint64_t at = zone + LMCS_ZONE_HEADER_BYTES + i * sizeof chunk;
        file_read(bench->pending, at, &chunk, sizeof chunk);
        put_back(bench, at, log.entries, &count);
    }
    EXPECT(count > 0);
    put_back(bench, subject->superblock + offsetof(struct lmcs_superblock_df, root), log.entries, &count);
    size_t bytes = sizeof log.header + count * sizeof log.entries[0];
    log.header.capacity = (count * sizeof log.entries[0] + sizeof(uint64_t) + LINE - 1) / LINE * LINE;
    log.header.checksum = fletcher(&log, bytes);
    file_read(bench->pending, LMCS_POBJ_LANES, &lanes, sizeof lanes);
    bench->pending_log = lanes + LMCS_LANE_BYTES + 256; /* the second lane's larger redo log */
    bench->pending_log_bytes = bytes;
    file_write(bench->pending, bench->pending_log, &log, bytes + sizeof log.entries[0]);
}

static void make_archive(struct bench *bench)
{
    struct lmcs_transfer_report report;
    struct lmcs_pool *pool = open_pool(bench->whole, LMCS_OPEN_READ, 0);
    int fd = open(bench->work, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    OK(lmcs_dump(pool, "run", fd, NULL, &report, &err));
    bench->archive_bytes = report.bytes;
    bench->archive = malloc(report.bytes);
    EXPECT(report.bytes <= ARCHIVE_MOST && bench->archive != NULL);
    EXPECT(pread(fd, bench->archive, report.bytes, 0) == (ssize_t)report.bytes);
    close(fd);
    close_pool(pool);
}

static void free_bench(struct bench *bench)
{
    const char *files[] = {
        bench->whole,          bench->work,           bench->set,      bench->parts[0], bench->parts[1],
        bench->whole_parts[0], bench->whole_parts[1], bench->restored, bench->pending,  NULL};
    for (size_t i = 0; files[i] != NULL; i++)
        unlink(files[i]);
    rmdir(bench->folder);
    free_subject(bench->subject);
    state_free(bench->set_state);
    free(bench->archive);
    munmap(bench->shared, sizeof *bench->shared);
    free(bench);
}

static void print_table(uint64_t counts[KINDS][OUTCOMES])
{
    uint64_t sums[OUTCOMES] = {0}, all = 0;
    printf("\n%-28s %8s", "damage", "cases");
    for (size_t k = 0; k < OUTCOMES; k++)
        printf(" %8s", outcome_names[k]);
    for (size_t i = 0; i < KINDS; i++) {
        uint64_t cases = 0;
        for (size_t k = 0; k < OUTCOMES; k++) {
            cases += counts[i][k];
            sums[k] += counts[i][k];
        }
        all += cases;
        printf("\n%-28s %8llu", kinds[i].name, ULL(cases));
        for (size_t k = 0; k < OUTCOMES; k++)
            printf(" %8llu", ULL(counts[i][k]));
    }
    printf("\n%-28s %8llu", "all", ULL(all));
    for (size_t k = 0; k < OUTCOMES; k++)
        printf(" %8llu", ULL(sums[k]));
    printf("\n");
}

struct wishes {
    uint64_t count, seed, only;
    const char *kind;
    bool verbose;
};

static volatile sig_atomic_t asked_to_stop;

static void ask_to_stop(int number)
{
    (void)number;
    asked_to_stop = 1;
}

static uint64_t run_cases(struct bench *bench, const struct wishes *wishes)
{
    static uint64_t counts[KINDS][OUTCOMES];
    uint64_t findings = 0, done = 0;
    time_t start = time(NULL), shown = start;
    uint64_t first = wishes->only == UINT64_MAX ? 0 : wishes->only;
    signal(SIGTERM, ask_to_stop);
    signal(SIGINT, ask_to_stop);
    for (uint64_t n = first; done < wishes->count && !asked_to_stop; n++) {
        uint64_t turn;
        size_t kind = kind_of(n, &turn);
        if (wishes->kind != NULL && strstr(kinds[kind].name, wishes->kind) == NULL)
            continue;
        enum outcome outcome = try_case(bench, n);
        counts[kind][outcome]++;
        done++;
        if (outcome >= WRONG || wishes->verbose)
            printf("%s: %s: %s (again: --seed %llu --only %llu)\n", outcome_names[outcome], kinds[kind].name,
                   bench->shared->what, ULL(wishes->seed), ULL(n));
        findings += outcome >= WRONG;
        if (time(NULL) - shown >= 10) {
            shown = time(NULL);
            printf("%llu of %llu cases, %llu findings, %lld s\n", ULL(done), ULL(wishes->count), ULL(findings),
                   (long long)(shown - start));
        }
        fflush(stdout);
    }
    print_table(counts);
    printf("%llu cases, seed %llu, %lld s: %llu findings\n", ULL(done), ULL(wishes->seed),
           (long long)(time(NULL) - start), ULL(findings));
    return findings;
}

static bool parse(int count, char **words, struct wishes *wishes)
{
    *wishes = (struct wishes){.count = 10000, .seed = 1, .only = UINT64_MAX};
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : NULL;
        if (strcmp(words[i], "--verbose") == 0) {
            wishes->verbose = true;
            continue;
        }
        if (value == NULL)
            return false;
        if (strcmp(words[i], "--count") == 0)
            wishes->count = strtoull(value, NULL, 10);
        else if (strcmp(words[i], "--seed") == 0)
            wishes->seed = strtoull(value, NULL, 10);
        else if (strcmp(words[i], "--only") == 0)
            wishes->only = strtoull(value, NULL, 10);
        else if (strcmp(words[i], "--kind") == 0)
            wishes->kind = value;
        else
            return false;
        i++;
    }
    if (wishes->only != UINT64_MAX) {
        wishes->count = 1;
        wishes->verbose = true;
    }
    return true;
}

int main(int count, char **words)
{
    struct wishes wishes;
    char folder[] = "/dev/shm/lmcs-damage-XXXXXX";
    if (!parse(count, words, &wishes)) {
        fprintf(stderr, "usage: damage [--count N] [--seed S] [--only CASE] [--kind PART-OF-A-NAME] [--verbose]\n");
        return 2;
    }
    EXPECT(mkdtemp(folder) != NULL);
    struct bench *bench = make_bench(folder, wishes.seed);
    make_set(bench);
    make_archive(bench);
    make_pending(bench);
    uint64_t findings = run_cases(bench, &wishes);
    free_bench(bench);
    return findings > 0;
}
