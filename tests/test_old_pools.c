/* SPDX-License-Identifier: BSD-3-Clause */
/* test_old_pools.c - pools and archives of earlier versions (tests/data/pools). Uses public functions and a clock. */
/* ctest: timeout=600 labels=no-tsan */
#include "support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "data/pools/describe.h"
#include "lmcstore_live.h"

#define POOLS LMC_TEST_DATA "/../pools/"

__attribute__((format(printf, 1, 2))) static void run(const char *format, ...)
{
    char command[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    if (system(command) != 0)
        fail_msg("%s", command);
}

static void write_set(const struct place *place)
{
    char path[512];
    place_path(place, "a.set", path);
    FILE *file = fopen(path, "w");
    EXPECT(file != NULL && fprintf(file, "PMEMPOOLSET\n24M %s/part0\n16M %s/part1\nREPLICA\n40M %s/replica\n",
                                   place->folder, place->folder, place->folder) > 0);
    EXPECT(fclose(file) == 0);
}

static void unpack(const struct place *place, const char *folder)
{
    run("tar -xJf %s%s.tar.xz -C %s", POOLS, folder, place->folder);
    if (strcmp(folder, "poolset") == 0)
        write_set(place);
}

static char *read_file(const char *path)
{
    struct stat info;
    FILE *file = fopen(path, "r");
    EXPECT(file != NULL && fstat(fileno(file), &info) == 0);
    char *text = calloc(1, (size_t)info.st_size + 1);
    EXPECT(text != NULL && fread(text, 1, (size_t)info.st_size, file) == (size_t)info.st_size);
    fclose(file);
    return text;
}

/* A section of FOLDER.txt; NULL: none. */
static char *section(const char *folder, const char *file, const char *what)
{
    char path[512], head[256];
    snprintf(path, sizeof path, "%s%s.txt", POOLS, folder);
    snprintf(head, sizeof head, "== %s%s%s\n", file, *what != '\0' ? " " : "", what);
    char *all = read_file(path), *found = strstr(all, head);
    if (found != NULL) {
        found += strlen(head);
        char *end = strstr(found, "\n== ");
        found = end == NULL ? strdup(found) : strndup(found, (size_t)(end + 1 - found));
    }
    free(all);
    return found;
}

static char *describe(struct lmcs_pool *pool)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    OK(describe_pool(out, pool, &err));
    fclose(out);
    return text;
}

static void expect_text(const char *what, const char *got, const char *expected)
{
    const char *line = expected;
    while (strcmp(got, expected) != 0) {
        size_t g = strcspn(got, "\n"), e = strcspn(expected, "\n");
        if (g != e || memcmp(got, expected, g) != 0 || got[g] == '\0')
            fail_msg("%s: there is\n  %.*s\ninstead of\n  %.*s", what, (int)g, got, (int)e, line);
        got += g + 1;
        line = expected += e + 1;
    }
}

static void expect_described(struct lmcs_pool *pool, const char *folder, const char *file, const char *what,
                             bool logical)
{
    char *expected = section(folder, file, what);
    if (expected == NULL && strcmp(what, "writing") == 0)
        expected = section(folder, file, "reading");
    char *got = describe(pool), name[256];
    snprintf(name, sizeof name, "%s/%s, %s", folder, file, what);
    EXPECT(expected != NULL);
    if (logical) {
        got = describe_logical(got);
        expected = describe_logical(expected);
    }
    expect_text(name, got, expected);
    free(got);
    free(expected);
}

/* Readers and writers find the content; writers complete or undo unfinished changes. */
static void expect_whole(const struct place *place, const char *folder, const char *file)
{
    char path[512];
    place_path(place, file, path);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    expect_described(pool, folder, file, "reading", false);
    close_pool(pool);
    for (int i = 0; i < 2; i++) {
        pool = open_pool(path, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
        expect_described(pool, folder, file, "writing", false);
        close_pool(pool);
    }
}

struct names {
    char items[DESCRIBED_SHELVES][LMCS_MAX_NAME + 1];
    size_t count;
};

static bool add_shelf(void *context, const struct lmcs_shelf_info *info)
{
    struct names *names = context;
    snprintf(names->items[names->count++], sizeof names->items[0], "%s", info->name);
    return names->count < DESCRIBED_SHELVES;
}

static struct names *shelves_of(struct lmcs_pool *pool)
{
    struct names *names = calloc(1, sizeof *names);
    OK(lmcs_shelf_list(pool, add_shelf, names, &err));
    return names;
}

static void put_changed(struct lmcs_capture *capture, struct lmcs_view *view, size_t i)
{
    const struct lmcs_entry *entry = lmcs_view_entry(view, i);
    unsigned char *data = lmcs_view_data(view, i);
    const void *from = data;
    if (entry->raw_bytes > 0)
        data[entry->raw_bytes / 2] ^= 1;
    OK(lmcs_capture_put(capture, &entry->tensor, &from, 1, &err));
}

static void capture_next(struct lmcs_pool *pool, const char *shelf)
{
    const uint64_t shape[] = {100, 7};
    static unsigned char data[700 * 8];
    struct lmcs_tensor added = {.name = "added", .dtype = LMC_F64, .ndim = 2, .shape = shape};
    const void *from = data;
    struct lmcs_snapshot *snapshot;
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    struct described_entries *entries = calloc(1, sizeof *entries);
    enum lmcs_status status = lmcs_snapshot_find(pool, shelf, "latest", &snapshot, &err);
    EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
    OK(lmcs_capture_begin(pool, shelf, &capture, &err));
    if (status == LMCS_OK)
        OK(lmcs_snapshot_entries(snapshot, describe_keep_entry, entries, &err));
    for (size_t i = 0; i < entries->count; i++) {
        const struct lmcs_tensor *tensor = &entries->items[i].tensor;
        struct lmcs_view *view;
        if (strncmp(tensor->name, "lmcstore.", 9) != 0 && strcmp(tensor->name, "added") != 0 &&
            lmcs_view_open(snapshot, &tensor->name, &tensor->kind, 1, LMCS_VIEW_PRIVATE, &view, &err) == LMCS_OK) {
            put_changed(capture, view, 0);
            lmcs_view_close(view);
        }
    }
    OK(lmcs_capture_put(capture, &added, &from, 1, &err));
    lmcs_commit_options_init(&options);
    options.step = 1000;
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    free_entries(entries);
    if (status == LMCS_OK)
        lmcs_snapshot_close(snapshot);
}

/* `after` has each block of `before` from "snapshot ..." lines on, except those of pruned shelves. */
static void expect_blocks(const char *before, const char *after, const char *pruned)
{
    char block[1 << 16];
    for (const char *at = strstr(before, "\nsnapshot "); at != NULL; at = strstr(at + 1, "\nsnapshot ")) {
        const char *end = strchrnul(at + 1, '\n');
        while (end[0] == '\n' && end[1] == ' ')
            end = strchrnul(end + 1, '\n');
        EXPECT((size_t)(end - at) < sizeof block);
        snprintf(block, sizeof block, "%.*s", (int)(end - at), at);
        if (strstr(after, block) == NULL && (pruned == NULL || strncmp(at + 10, pruned, strlen(pruned)) != 0))
            fail_msg("there is no longer%s", block);
    }
}

static void expect_kept(struct lmcs_pool *pool, const char *before)
{
    char *now = describe_logical(describe(pool));
    expect_blocks(before, now, "rules@");
    free(now);
}

struct lives {
    struct lmcs_live_info items[64];
    size_t count;
};

static bool add_live(void *context, const struct lmcs_live_info *info)
{
    struct lives *lives = context;
    lives->items[lives->count++] = *info;
    return lives->count < 64;
}

static void expect_first(struct lmcs_pool *pool, const char *shelf, const char *name, unsigned char byte)
{
    struct lmcs_live *live;
    unsigned char first;
    OK(lmcs_live_open(pool, shelf, name, &live, &err));
    OK(lmcs_live_read(live, 0, &first, 1, &err));
    EXPECT(first == byte);
    lmcs_live_close(live);
}

static void write_first(struct lmcs_pool *pool, const char *shelf, const struct lmcs_live_info *info,
                        unsigned char byte)
{
    struct lmcs_live *live;
    if (info->form == LMCS_LIVE_VALUE && info->dtype == LMC_U8) {
        OK(lmcs_live_put(pool, shelf, info->name, &byte, 1, info->note, info->note_bytes, &err));
    } else {
        OK(lmcs_live_open(pool, shelf, info->name, &live, &err));
        OK(lmcs_live_write(live, 0, &byte, 1, &err));
        lmcs_live_close(live);
    }
}

static void change_lives(struct lmcs_pool *pool, const char *shelf)
{
    struct lives *lives = calloc(1, sizeof *lives);
    OK(lmcs_live_list(pool, shelf, NULL, add_live, lives, &err));
    if (lives->count > 0)
        OK(lmcs_live_snapshot(pool, shelf, NULL, NULL, &err));
    for (unsigned char round = 1; lives->count > 0 && round <= 3; round++) {
        struct lmcs_transaction_options options;
        struct lmcs_transaction *transaction;
        lmcs_transaction_options_init(&options);
        options.flags = round == 2 ? LMCS_TRANSACTION_DECLARED : 0;
        OK(lmcs_transaction_begin(pool, shelf, NULL, 0, &options, &transaction, &err));
        for (size_t i = 0; i < lives->count; i++)
            if (lives->items[i].bytes > 0)
                write_first(pool, shelf, &lives->items[i], round);
        if (round < 3)
            OK(lmcs_transaction_commit(transaction, &err));
        else
            lmcs_transaction_abort(transaction);
        for (size_t i = 0; i < lives->count; i++)
            if (lives->items[i].bytes > 0)
                expect_first(pool, shelf, lives->items[i].name, round < 3 ? round : 2);
        OK(lmcs_live_snapshot(pool, shelf, NULL, NULL, &err));
    }
    if (lives->count > 0)
        OK(lmcs_live_checkout(pool, shelf, "latest~2", &err));
    for (size_t i = 0; i < lives->count; i++)
        if (lives->items[i].bytes > 0)
            expect_first(pool, shelf, lives->items[i].name, 1);
    free(lives);
}

static void expect_verified(struct lmcs_pool *pool, enum lmcs_status whole)
{
    struct lmcs_verify_report report;
    check_pool(pool);
    FAILS(whole, lmcs_verify(pool, NULL, NULL, NULL, NULL, &report, &err));
}

static void scrub_pool(struct lmcs_pool *pool, enum lmcs_status whole)
{
    struct lmcs_scrub_options options;
    struct lmcs_scrub_report report;
    lmcs_scrub_options_init(&options);
    options.repair = true;
    FAILS(whole, lmcs_scrub(pool, &options, NULL, NULL, NULL, &report, &err));
    EXPECT(whole == LMCS_DAMAGED || (report.damages == 0 && report.lost == 0));
}

static void dump_and_restore(const struct place *place, struct lmcs_pool *pool, enum lmcs_status whole)
{
    char path[512];
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.skip_lost = whole != LMCS_OK;
    place_path(place, "all.archive", path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    OK(lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    OK(lmcs_archive_verify(fd, NULL, NULL, &err));
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    place_path(place, "restored.pool", path);
    unlink(path);
    struct lmcs_pool *restored = open_quiet(path);
    OK(lmcs_restore(restored, fd, NULL, NULL, &err));
    close(fd);
    verify_pool(restored);
    char *before = describe_logical(describe(whole == LMCS_OK ? pool : restored));
    char *after = describe_logical(describe(whole == LMCS_OK ? restored : pool));
    expect_blocks(before, after, NULL);
    free(before);
    free(after);
    close_pool(restored);
}

static void thin_out(struct lmcs_pool *pool)
{
    struct names *names = shelves_of(pool);
    for (size_t i = 0; i < names->count; i++) {
        struct lmcs_prune_report report;
        struct lmcs_snapshot *snapshot;
        char fork[LMCS_MAX_NAME + 16];
        OK(lmcs_prune(pool, names->items[i], "keep=last:2", false, NULL, NULL, NULL, &report, &err));
        EXPECT(report.kept >= 1);
        snprintf(fork, sizeof fork, "%s/fork", names->items[i]);
        OK(lmcs_snapshot_find(pool, names->items[i], "latest", &snapshot, &err));
        OK(lmcs_shelf_fork(snapshot, fork, &err));
        lmcs_snapshot_close(snapshot);
        if (i % 2 == 0)
            OK(lmcs_shelf_drop(pool, names->items[i], false, NULL, &err));
        check_pool(pool);
    }
    free(names);
}

/* `whole`: LMCS_DAMAGED with recorded damage that has no other copy. */
static void go_on(const struct place *place, const char *path, enum lmcs_status whole)
{
    struct lmcs_pool *pool = open_quiet(path);
    char *before = describe_logical(describe(pool));
    struct names *names = shelves_of(pool);
    for (size_t i = 0; i < names->count; i++) {
        capture_next(pool, names->items[i]);
        change_lives(pool, names->items[i]);
        capture_next(pool, names->items[i]);
    }
    expect_verified(pool, whole);
    OK(lmcs_compact(pool, NULL, &err));
    expect_verified(pool, whole);
    expect_kept(pool, before);
    close_pool(pool);
    pool = open_quiet(path);
    scrub_pool(pool, whole);
    expect_kept(pool, before);
    dump_and_restore(place, pool, whole);
    thin_out(pool);
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    close_pool(pool);
    pool = open_pool(path, LMCS_OPEN_WRITE, 0);
    close_pool(pool);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    expect_verified(pool, LMCS_OK);
    close_pool(pool);
    free(names);
    free(before);
}

static void read_and_go_on(const struct place *place, const char *folder, const char *file)
{
    char path[512];
    place_path(place, file, path);
    expect_whole(place, folder, file);
    go_on(place, path, LMCS_OK);
}

static void history(void **state)
{
    unpack(*state, "history");
    read_and_go_on(*state, "history", "a.pool");
}

static void links(void **state)
{
    unpack(*state, "links");
    read_and_go_on(*state, "links", "a.pool");
    read_and_go_on(*state, "links", "found.pool");
}

static void live_variables(void **state)
{
    unpack(*state, "live");
    read_and_go_on(*state, "live", "a.pool");
}

static void a_poolset(void **state)
{
    char path[512];
    struct place *place = *state;
    unpack(place, "poolset");
    place_path(place, "a.set", path);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    expect_described(pool, "poolset", "a.set", "reading", false);
    close_pool(pool);
    go_on(place, path, LMCS_OK);
}

static void writers_that_were_killed(void **state)
{
    static const char *const names[] = {
        "redo", "redo-by-root", "redo-not-committed", "undo", "undo-ended-by-root", "log", "capture",
        "drop", "restore",      "compaction"};
    char file[64];
    unpack(*state, "killed");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(file, sizeof file, "%s.pool", names[i]);
        read_and_go_on(*state, "killed", file);
    }
}

static void prepared_snapshots(void **state)
{
    struct place *place = *state;
    char copy[512];
    place_path(place, "copy.pool", copy);
    unpack(place, "prepared");
    expect_whole(place, "prepared", "a.pool");
    for (int commit = 0; commit < 2; commit++) {
        copy_file(place->pool, copy);
        struct lmcs_pool *pool = open_quiet(copy);
        for (unsigned char group = 1; group <= 3; group++) {
            unsigned char id[16];
            memset(id, group, sizeof id);
            OK(lmcs_group_resolve(pool, id, commit == 1, &err));
            FAILS(LMCS_NOT_FOUND, lmcs_group_resolve(pool, id, commit == 1, &err));
        }
        expect_described(pool, "prepared", "a.pool", commit == 1 ? "committed" : "dropped", true);
        close_pool(pool);
        go_on(place, copy, LMCS_OK);
    }
}

static void parity(void **state)
{
    unpack(*state, "safety");
    read_and_go_on(*state, "safety", "parity.pool");
}

/* Deltas and links made before parity was the default. */
static void parity_of_old_bases(void **state)
{
    static const char *const folders[] = {"history", "links"};
    struct place *place = *state;
    struct lmcs_verify_report report;
    for (int i = 0; i < 2; i++) {
        char path[512];
        unpack(place, folders[i]);
        place_path(place, "a.pool", path);
        struct lmcs_pool *pool = open_quiet(path);
        struct lmcs_pool_info before, after;
        OK(lmcs_pool_info(pool, &before, &err));
        OK(lmcs_compact(pool, NULL, &err));
        OK(lmcs_pool_info(pool, &after, &err));
        EXPECT(after.parity_bytes > before.parity_bytes);
        OK(lmcs_verify(pool, NULL, NULL, NULL, NULL, &report, &err));
        close_pool(pool);
        EXPECT(unlink(path) == 0);
    }
}

static void noted_damage(void **state)
{
    struct place *place = *state;
    char path[512];
    place_path(place, "damage.pool", path);
    unpack(place, "safety");
    expect_whole(place, "safety", "damage.pool");
    struct lmcs_pool *pool = open_quiet(path);
    scrub_pool(pool, LMCS_DAMAGED);
    expect_described(pool, "safety", "damage.pool", "repaired", true);
    close_pool(pool);
    go_on(place, path, LMCS_DAMAGED);
}

static int open_file(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0);
    return fd;
}

static void expect_archives(const struct place *place, const char *folder, const char *const *names, size_t count)
{
    char *text = NULL, *expected = section(folder, "archives", "");
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (size_t i = 0; i < count; i++) {
        int fd = open_file(place, names[i]);
        enum lmcs_status status = describe_archive(out, names[i], fd, &err);
        EXPECT(status == (strcmp(names[i], "cut.archive") == 0 ? LMCS_DAMAGED : LMCS_OK));
        close(fd);
    }
    fclose(out);
    EXPECT(expected != NULL);
    expect_text(folder, text, expected);
    free(text);
    free(expected);
}

static void expect_restored(const struct place *place, const char *folder, const char *const *names, size_t count)
{
    char path[512];
    int fds[2];
    place_path(place, "new.pool", path);
    unlink(path);
    struct lmcs_pool *pool = open_quiet(path);
    for (size_t i = 0; i < count; i++)
        fds[i] = open_file(place, names[i]);
    OK(lmcs_restore_with(pool, fds, count, NULL, NULL, NULL, &err));
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    verify_pool(pool);
    char *expected = describe_logical(section(folder, "a.pool", "reading")), *got = describe_logical(describe(pool));
    expect_blocks(expected, got, NULL);
    expect_blocks(got, expected, NULL);
    free(expected);
    free(got);
    close_pool(pool);
    go_on(place, path, LMCS_OK);
}

static void archives(void **state)
{
    static const char *const names[] = {"full.archive", "canonical.archive", "part.archive", "since.archive",
                                        "cut.archive"};
    static const char *const of_links[] = {"links.archive"};
    struct place *place = *state;
    unpack(place, "history");
    expect_archives(place, "history", names, 5);
    expect_restored(place, "history", &names[0], 1);
    expect_restored(place, "history", &names[1], 1);
    expect_restored(place, "history", &names[2], 2);
    unpack(place, "links");
    expect_archives(place, "links", of_links, 1);
    expect_restored(place, "links", of_links, 1);
}

static void dumps_go_on(void **state)
{
    struct place *place = *state;
    struct lmcs_dump_options options;
    unpack(place, "history");
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    lmcs_dump_options_init(&options);
    options.resume = true;
    int fd = open_file(place, "cut.archive");
    OK(lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
    close(fd);
    lmcs_dump_options_init(&options);
    options.canonical = true;
    run(": >%s/new.archive", place->folder);
    fd = open_file(place, "new.archive");
    OK(lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
    close(fd);
    close_pool(pool);
    run("cmp %s/cut.archive %s/full.archive", place->folder, place->folder);
    run("cmp %s/new.archive %s/canonical.archive", place->folder, place->folder);
}

static void restores_go_on(void **state)
{
    struct place *place = *state;
    const struct lmcs_restore_options resume = {.resume = true};
    struct lmcs_transfer_report report;
    char path[512], copy[512];
    place_path(place, "staged.pool", path);
    place_path(place, "copy.pool", copy);
    unpack(place, "history");
    expect_whole(place, "history", "staged.pool");
    copy_file(path, copy);
    int fd = open_file(place, "full.archive");
    struct lmcs_pool *pool = open_quiet(path);
    OK(lmcs_restore_with(pool, &fd, 1, &resume, NULL, &report, &err));
    EXPECT(report.contents_found > 20);
    char *expected = describe_logical(section("history", "a.pool", "reading")), *got = describe_logical(describe(pool));
    expect_blocks(expected, got, NULL);
    close_pool(pool);
    go_on(place, path, LMCS_OK);
    pool = open_quiet(copy);
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    OK(lmcs_restore(pool, fd, NULL, &report, &err));
    close(fd);
    expect_kept(pool, expected);
    close_pool(pool);
    go_on(place, copy, LMCS_OK);
    free(expected);
    free(got);
}

static void files_of_the_command(void **state)
{
    struct place *place = *state;
    const char *in = place->folder;
    unpack(place, "history");
    run("cd %s && %s decompress one.lmc -o one && cmp one one.safetensors", in, LMC_STORE_COMMAND);
    run("cd %s && %s decompress two.lmc --base one.safetensors -o two && cmp two two.safetensors", in,
        LMC_STORE_COMMAND);
    run("cd %s && %s verify a.pool >verified && grep -q 'no damage' verified", in, LMC_STORE_COMMAND);
    run("cd %s && %s verify full.archive >verified && grep -q 'no damage' verified", in, LMC_STORE_COMMAND);
    run("cd %s && %s export a.pool run@10 -o new && cmp new two.safetensors", in, LMC_STORE_COMMAND);
    run("cd %s && %s export a.pool mixed@2 -o new --force && cmp new mixed.safetensors", in, LMC_STORE_COMMAND);
    run("cd %s && %s import a.pool imported mixed.safetensors >/dev/null", in, LMC_STORE_COMMAND);
    run("cd %s && %s log a.pool run >log && grep -q v1.0 log", in, LMC_STORE_COMMAND);
}

struct waiting {
    uint64_t kept, now, later, due_ns;
};

static bool add_waiting(void *context, const struct lmcs_pruned *snapshot)
{
    struct waiting *waiting = context;
    waiting->kept += snapshot->why != NULL;
    waiting->now += snapshot->why == NULL && snapshot->due_ns == 0;
    waiting->later += snapshot->due_ns != 0;
    waiting->due_ns = snapshot->due_ns != 0 ? snapshot->due_ns : waiting->due_ns;
    return true;
}

static bool add_event(void *context, const struct lmcs_prune_event *event)
{
    FILE *out = context;
    fprintf(out, "%s %llu:", event->policy, (unsigned long long)event->count);
    for (size_t i = 0; i < event->range_count; i++)
        fprintf(out, " %llu-%llu", (unsigned long long)event->ranges[i].first,
                (unsigned long long)event->ranges[i].last);
    fprintf(out, "\n");
    return true;
}

static void expect_events(struct lmcs_pool *pool, const char *shelf, const char *expected)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    OK(lmcs_prune_log(pool, shelf, add_event, out, &err));
    fclose(out);
    assert_string_equal(text, expected);
    free(text);
}

/* A grace period goes on where it was, and the record of removals is continued. */
static void policies(void **state)
{
    const uint64_t hour = 3600 * (uint64_t)1000000000, changed = 1800000100 * (uint64_t)1000000000;
    struct place *place = *state;
    struct waiting waiting = {0};
    uint64_t numbers[32];
    size_t count;
    unpack(place, "policies");
    expect_whole(place, "policies", "a.pool");
    struct lmcs_pool *pool = open_quiet(place->pool);
    expect_events(pool, "removed", "keep=every:5 6: 13-15 17-19\nkeep=last:9 11: 1-11\n");
    lmcs_clock_set(changed + hour / 2);
    OK(lmcs_prune(pool, "waiting", NULL, true, add_waiting, &waiting, NULL, NULL, &err));
    assert_int_equal(waiting.kept, 3);
    assert_int_equal(waiting.later, 9);
    assert_in_range((waiting.due_ns - changed) / 1000000000, 3600, 3700);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_snapshot_numbers(pool, "waiting", 0, numbers, 32, &count, &err));
    assert_int_equal(count, 12);
    lmcs_clock_set(changed + 2 * hour);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_snapshot_numbers(pool, "waiting", 0, numbers, 32, &count, &err));
    assert_int_equal(count, 3);
    expect_events(pool, "waiting", "keep=last:3 9: 9-17\nkeep=last:12 8: 1-8\n");
    verify_pool(pool);
    close_pool(pool);
}

static struct lmcs_transfer_report restore_base(const struct place *place, struct lmcs_pool *pool)
{
    struct lmcs_transfer_report report;
    int fd = open_file(place, "base.archive");
    OK(lmcs_restore(pool, fd, NULL, &report, &err));
    close(fd);
    return report;
}

/* A pool and a chain of archives have the same identities of shelves; restores of parts continue. */
static void identities(void **state)
{
    static const char *const names[] = {"base.archive", "since.archive"};
    struct place *place = *state;
    struct lmcs_snapshot *snapshot;
    char path[512];
    unpack(place, "identities");
    expect_whole(place, "identities", "a.pool");
    expect_whole(place, "identities", "part.pool");
    expect_archives(place, "identities", names, 2);
    expect_restored(place, "identities", names, 2);
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_snapshot_remove(pool, "first", 2, false, NULL, &err));
    struct lmcs_transfer_report report = restore_base(place, pool);
    EXPECT(report.snapshots == 1 && report.snapshots_skipped == 3);
    EXPECT(strstr(report.warnings, "is \"first\" here") != NULL);
    verify_pool(pool);
    close_pool(pool);
    place_path(place, "part.pool", path);
    pool = open_quiet(path);
    report = restore_base(place, pool);
    EXPECT(report.snapshots == 4 && report.snapshots_skipped == 0 && report.warnings[0] == '\0');
    OK(lmcs_snapshot_open(pool, "run@best", &snapshot, &err));
    EXPECT(lmcs_snapshot_info(snapshot)->number == 2 && lmcs_snapshot_info(snapshot)->tensor_count == 3);
    lmcs_snapshot_close(snapshot);
    verify_pool(pool);
    close_pool(pool);
    go_on(place, path, LMCS_OK);
}

/* The newest snapshots are links, deltas and raw contents, as their captures wrote them. A run goes on. */
static void captures(void **state)
{
    struct place *place = *state;
    unpack(place, "captures");
    expect_whole(place, "captures", "a.pool");
    struct lmcs_pool *pool = open_quiet(place->pool);
    assert_true(storage_of(pool, "adam", 6).link_contents > 0 && storage_of(pool, "sgd", 6).longest_line <= 3);
    struct lmcs_snapshot *newest;
    struct rng rng = {3};
    struct state *next = state_weights(&rng, 2, 3000);
    take_snapshot(pool, "adam", next, 7);
    expect_state(pool, "adam", "latest", next);
    OK(lmcs_snapshot_open(pool, "adam@6", &newest, &err));
    OK(lmcs_shelf_fork(newest, "fork", &err));
    lmcs_snapshot_close(newest);
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
    state_free(next);
}

/* Some annotations are in the records, others wait in the ring of a killed writer. */
static void annotations(void **state)
{
    struct place *place = *state;
    unpack(place, "annotations");
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    EXPECT(pool->root.ring != 0 && pool->root.ring_applied == 0 && pool->root.annotated == 2);
    verify_pool(pool);
    OK(lmcs_note_set(pool, "run", 5, "later", &err));
    OK(lmcs_note_set(pool, "run", 5, "", &err));
    close_pool(pool);
    expect_whole(place, "annotations", "a.pool");
    pool = open_quiet(place->pool);
    EXPECT(pool->root.annotated == 109 && pool->root.ring_applied == 107 && pool->root.ring_dropped == 0);
    verify_pool(pool);
    close_pool(pool);
    go_on(place, place->pool, LMCS_OK);
}

static void remote(void **state)
{
    unpack(*state, "remote");
    struct lmcs_pool *pool = open_quiet(((struct place *)*state)->pool);
    expect_described(pool, "remote", "a.pool", "reading", false);
    EXPECT(lmcs_compact(pool, NULL, &err) == LMCS_OK && pool_info(pool).remote_count == 5); /* two by a request */
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(history),
        IN_MEMORY(links),
        ON_BOTH(live_variables),
        IN_MEMORY(writers_that_were_killed),
        IN_MEMORY(prepared_snapshots),
        IN_MEMORY(parity),
        IN_MEMORY(parity_of_old_bases),
        IN_MEMORY(noted_damage),
        ON_DISK(a_poolset),
        IN_MEMORY(archives),
        ON_DISK(dumps_go_on),
        IN_MEMORY(restores_go_on),
        ON_DISK(files_of_the_command),
        IN_MEMORY(policies),
        IN_MEMORY(identities),
        IN_MEMORY(annotations),
        IN_MEMORY(captures),
        IN_MEMORY(remote),
    };
    return cmocka_run_group_tests_name("pools and archives of earlier versions", tests, NULL, NULL);
}
