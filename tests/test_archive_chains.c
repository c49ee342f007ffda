/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_chains.c - archives restored one after another: identities of shelves, tags, parts of snapshots. */
/* ctest: timeout=600 */
#include "records/shelf.h"
#include "test_archive_files.h"
#include "test_archive_support.h"

#define HEAD sizeof(struct lmcs_archive_head_df)

static size_t record_at(const unsigned char *data, size_t at, struct lmcs_archive_record_df *record)
{
    memcpy(record, data + at, sizeof *record);
    return sizeof *record + record->bytes;
}

static int dump_since(const struct place *place, struct lmcs_pool *pool, const int *since, size_t count,
                      const char *name, struct lmcs_transfer_report *report)
{
    const struct lmcs_dump_options options = {.since = since, .since_count = count};
    int fd = new_file(place, name);
    for (size_t i = 0; i < count; i++)
        rewind_to_start(since[i]);
    OK(lmcs_dump_with(pool, &options, fd, NULL, report, &err));
    rewind_to_start(fd);
    return fd;
}

static enum lmcs_status restore_part(struct lmcs_pool *pool, int fd, const char *only,
                                     struct lmcs_transfer_report *report)
{
    const struct lmcs_restore_options options = {.only = &only, .only_count = 1};
    rewind_to_start(fd);
    return lmcs_restore_with(pool, &fd, 1, &options, NULL, report, &err);
}

/* Offset of the first record of a type. */
static size_t find_record(const unsigned char *data, size_t bytes, uint32_t type)
{
    struct lmcs_archive_record_df record;
    size_t at = HEAD;
    for (size_t step; at < bytes; at += step) {
        step = record_at(data, at, &record);
        if (record.type == type)
            return at;
    }
    fail_msg("there is no record of type %x", type);
    return 0;
}

static void write_sealed(int fd, unsigned char *data, size_t bytes)
{
    seal(data, bytes);
    set_bytes(fd, data, bytes);
}

/* Makes the archive one of an earlier version, which has no identities. */
static void strip_identities(int fd)
{
    struct lmcs_archive_record_df record;
    struct lmcs_archive_end_df end;
    size_t bytes, kept = HEAD, stripped = 0;
    unsigned char *data = bytes_of(fd, &bytes);
    for (size_t at = HEAD, step; at < bytes; at += step) {
        step = record_at(data, at, &record);
        if (record.type == LMCS_ARCHIVE_SHELF_ID) {
            stripped++;
            continue;
        }
        memmove(data + kept, data + at, step);
        kept += step;
    }
    memcpy(&end, data + kept - sizeof end, sizeof end);
    end.records -= stripped;
    memcpy(data + kept - sizeof end, &end, sizeof end);
    EXPECT(stripped > 0);
    write_sealed(fd, data, kept);
    free(data);
}

static void take(struct lmcs_pool *pool, const char *shelf, float value, int64_t step)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    const uint64_t shape = 1000;
    const struct lmcs_tensor tensors[2] = {{.name = "model.w", .dtype = LMC_F32, .ndim = 1, .shape = &shape},
                                           {.name = "opt.m", .dtype = LMC_F32, .ndim = 1, .shape = &shape}};
    float w[1000], m[1000];
    const void *data[2] = {w, m};
    uint64_t number;
    for (size_t i = 0; i < 1000; i++) {
        w[i] = value;
        m[i] = (float)i + value;
    }
    lmcs_commit_options_init(&options);
    options.step = step;
    OK(lmcs_capture_begin(pool, shelf, &capture, &err));
    OK(lmcs_capture_put(capture, tensors, data, 2, &err));
    OK(lmcs_capture_commit(capture, &options, &number, &err));
}

static float value_of(struct lmcs_pool *pool, const char *shelf, const char *which)
{
    struct lmcs_snapshot *snapshot;
    float w[1000];
    OK(lmcs_snapshot_find(pool, shelf, which, &snapshot, &err));
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, "model.w", w, sizeof w, &err));
    lmcs_snapshot_close(snapshot);
    return w[999];
}

static void expect_shelf(struct lmcs_pool *pool, const char *shelf, const float *values, uint64_t first, size_t count)
{
    uint64_t numbers[64];
    char which[32];
    EXPECT(numbers_of(pool, shelf, numbers) == count);
    for (size_t i = 0; i < count; i++) {
        snprintf(which, sizeof which, "%llu", (unsigned long long)(first + i));
        EXPECT(numbers[i] == first + i && value_of(pool, shelf, which) == values[i]);
    }
}

/* "run" of one kind in the base, of another in the increment: fds[0] has snapshots 3 to 5, fds[1] 1 and 2. */
static struct lmcs_pool *make_two(const struct place *place, bool drop, int fds[2])
{
    struct lmcs_transfer_report report;
    struct lmcs_pool *pool = new_pool(place, "from.pool");
    for (int i = 0; i < 5; i++)
        take(pool, "run", (float)i, 1000 + i);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    fds[0] = dump_since(place, pool, NULL, 0, "a.archive", &report);
    EXPECT(report.warnings[0] == '\0');
    if (drop)
        OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    else
        OK(lmcs_shelf_rename(pool, "run", "zz", &err));
    take(pool, "run", 77, 0);
    take(pool, "run", 78, 1);
    fds[1] = dump_since(place, pool, fds, 1, "b.archive", &report);
    EXPECT(strstr(report.warnings, "another has its name") != NULL && report.snapshots == (drop ? 2 : 5));
    return pool;
}

static enum lmcs_status restore_all(struct lmcs_pool *pool, const int *fds, size_t count, const char *as,
                                    struct lmcs_transfer_report *report)
{
    const struct lmcs_restore_options options = {.as = as};
    for (size_t i = 0; i < count; i++)
        rewind_to_start(fds[i]);
    return lmcs_restore_with(pool, fds, count, &options, NULL, report, &err);
}

static void close_all(const int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
}

static const float olds[] = {2, 3, 4}, news[] = {77, 78}, mixed[] = {77, 78, 2, 3, 4};

static void dropped_and_begun_again(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    int fds[2];
    struct lmcs_pool *from = make_two(place, true, fds), *to = new_pool(place, "to.pool");
    for (int again = 0; again < 2; again++) {
        OK(restore_all(to, fds, 2, NULL, &report));
        EXPECT(strstr(report.warnings, "left out") != NULL && report.snapshots == (again ? 0 : 2));
        expect_shelf(to, "run", news, 1, 2);
        EXPECT(pool_info(to).shelf_count == 1 && shelf_info(to, "run").latest == 2);
    }
    struct counters before = counters_of(to);
    FAILS(LMCS_EXISTS, restore_all(to, fds, 1, NULL, &report)); /* the dropped one */
    expect_unchanged(to, &before);
    OK(restore_all(to, fds, 1, "old", &report));
    expect_shelf(to, "old", olds, 3, 3);
    verify_pool(to);
    close_pool(to);
    to = new_pool(place, "to.pool");
    OK(restore_all(to, fds, 2, "copy", &report));
    expect_shelf(to, "copy", news, 1, 2);
    close_pool(to);
    close_pool(from);
    close_all(fds, 2);
}

static void renamed_and_begun_again(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    int fds[2];
    struct lmcs_pool *from = make_two(place, false, fds), *to = new_pool(place, "to.pool");
    for (int again = 0; again < 2; again++) {
        OK(restore_all(to, fds, 2, NULL, &report));
        EXPECT(report.warnings[0] == '\0' && report.snapshots == (again ? 0 : 5));
        expect_same_shelf(from, to, "run");
        expect_same_shelf(from, to, "zz");
        EXPECT(pool_info(to).shelf_count == 2);
    }
    verify_pool(to);
    OK(lmcs_snapshot_remove(to, "zz", 4, false, NULL, &err));
    OK(restore_all(to, fds, 1, NULL, &report)); /* the base alone: its "run" is found under its new name */
    EXPECT(report.snapshots == 1 && strstr(report.warnings, "keeps this name") != NULL);
    expect_same_shelf(from, to, "run");
    expect_same_shelf(from, to, "zz");
    close_pool(to);
    to = new_pool(place, "to.pool");
    OK(restore_all(to, fds, 1, NULL, &report));
    struct counters before = counters_of(to);
    FAILS(LMCS_EXISTS, restore_all(to, fds + 1, 1, NULL, &report));
    EXPECT(strstr(err.message, "begun apart") != NULL);
    expect_unchanged(to, &before);
    FAILS(LMCS_EXISTS, restore_all(to, fds, 2, NULL, &report));
    expect_unchanged(to, &before);
    OK(lmcs_shelf_rename(to, "run", "zz", &err));
    OK(restore_all(to, fds + 1, 1, NULL, &report));
    expect_same_shelf(from, to, "run");
    expect_same_shelf(from, to, "zz");
    verify_pool(to);
    close_pool(to);
    close_pool(from);
    close_all(fds, 2);
}

/* Archives of earlier versions are compared by name, with a warning unless a snapshot is in both. */
static void without_identities(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    int fds[3];
    struct lmcs_pool *from = make_two(place, true, fds);
    for (int which = 0; which < 3; which++) {
        struct lmcs_pool *to = new_pool(place, "to.pool");
        if (which > 0)
            strip_identities(fds[which - 1]); /* the first, then both */
        OK(restore_all(to, fds, 2, NULL, &report));
        expect_shelf(to, "run", which == 0 ? news : mixed, 1, which == 0 ? 2 : 5);
        EXPECT(strstr(report.warnings, which == 0 ? "left out" : "only names were compared") != NULL);
        OK(restore_all(to, fds, 2, NULL, &report));
        EXPECT((report.warnings[0] != '\0') == (which == 0) && report.snapshots == 0);
        verify_pool(to);
        close_pool(to);
    }
    fds[2] = dump_since(place, from, fds, 1, "c.archive", &report);
    EXPECT(strstr(report.warnings, "no snapshot in common") != NULL);
    close_pool(from);
    close_all(fds, 3);
}

static void read_identity(struct lmcs_pool *pool, const char *name, uint64_t identity[2])
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, name, &shelf, &err));
    memcpy(identity, shelf.df.identity, sizeof shelf.df.identity);
    lmcs_txn_end(&txn);
}

static void identities(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    uint64_t source[2], own[2];
    int fds[2];
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to = new_pool(place, "to.pool");
    take(from, "run", 1, 1);
    fds[0] = dump_since(place, from, NULL, 0, "a.archive", &report);
    strip_identities(fds[0]);
    take(from, "run", 2, 2);
    fds[1] = dump_since(place, from, fds, 1, "b.archive", &report);
    EXPECT(report.snapshots == 1 && report.warnings[0] == '\0'); /* snapshot 1 is in both */
    read_identity(from, "run", source);
    OK(restore_all(to, fds, 1, NULL, &report));
    read_identity(to, "run", own);
    EXPECT(own[0] == 0 && own[1] == 0); /* unknown */
    OK(restore_all(to, fds + 1, 1, NULL, &report));
    EXPECT(strstr(report.warnings, "only names were compared") != NULL);
    read_identity(to, "run", own);
    EXPECT(memcmp(own, source, sizeof own) == 0);
    OK(restore_all(to, fds + 1, 1, "copy", &report));
    read_identity(to, "copy", own);
    EXPECT(memcmp(own, source, sizeof own) != 0 && (own[0] | own[1]) != 0);
    OK(lmcs_shelf_drop(to, "run", false, NULL, &err));
    OK(restore_all(to, fds + 1, 1, "copy", &report)); /* the copy is still a copy */
    EXPECT(report.warnings[0] == '\0' && report.snapshots == 0);
    OK(restore_all(to, fds, 2, NULL, &report));
    EXPECT(strstr(report.warnings, "only names") != NULL && report.snapshots == 2);
    OK(restore_all(to, fds, 1, "before", &report));
    take(to, "before", 5, 5); /* a capture gives it an identity */
    read_identity(to, "before", own);
    EXPECT(memcmp(own, source, sizeof own) != 0 && (own[0] | own[1]) != 0);
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_find(from, "run", "1", &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, "fork", &err));
    lmcs_snapshot_close(snapshot);
    read_identity(from, "fork", own);
    EXPECT(memcmp(own, source, sizeof own) != 0 && (own[0] | own[1]) != 0);
    OK(lmcs_shelf_rename(from, "run", "name", &err));
    read_identity(from, "name", own);
    EXPECT(memcmp(own, source, sizeof own) == 0);
    close_pool(to);
    close_pool(from);
    close_all(fds, 2);
}

/* The source of a fork is found by its identity, also where it has another name than in the archive. */
static void origins(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct lmcs_snapshot *snapshot;
    struct lmcs_shelf_info info;
    int fds[2];
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to = new_pool(place, "to.pool");
    take(from, "base", 1, 1);
    OK(lmcs_snapshot_find(from, "base", "1", &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, "tune", &err));
    lmcs_snapshot_close(snapshot);
    fds[0] = dump_since(place, from, NULL, 0, "a.archive", &report);
    OK(lmcs_shelf_rename(from, "base", "old", &err));
    take(from, "base", 77, 0);
    take(from, "tune", 2, 2);
    fds[1] = dump_since(place, from, fds, 1, "b.archive", &report);
    OK(restore_all(to, fds, 2, NULL, &report));
    info = shelf_info(to, "tune");
    EXPECT(strcmp(info.origin_shelf, "old") == 0 && info.origin_number == 1 && info.origin_is_there);
    OK(lmcs_shelf_drop(to, "tune", false, NULL, &err));
    OK(lmcs_snapshot_remove(to, "base", 1, false, NULL, &err));
    OK(restore_all(to, fds, 1, NULL, &report)); /* alone: the pool has the source as "old" */
    info = shelf_info(to, "tune");
    EXPECT(strcmp(info.origin_shelf, "old") == 0 && info.origin_is_there);
    verify_pool(to);
    close_pool(to);
    close_pool(from);
    close_all(fds, 2);
}

/* A shelf without a snapshot, which a policy began, gets the identity of the archive's. */
static void into_a_policy(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    uint64_t source[2], own[2];
    struct lmcs_shelf_info info;
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to = new_pool(place, "to.pool");
    take(from, "run", 1, 1);
    int fd = dump_since(place, from, NULL, 0, "a.archive", &report);
    read_identity(from, "run", source);
    OK(lmcs_shelf_set_policy(to, "run", "keep=last:10", &err));
    read_identity(to, "run", own);
    EXPECT(own[0] == 0 && own[1] == 0);
    OK(restore_all(to, &fd, 1, NULL, &report));
    EXPECT(report.snapshots == 1 && report.warnings[0] == '\0');
    read_identity(to, "run", own);
    EXPECT(memcmp(own, source, sizeof own) == 0);
    OK(lmcs_shelf_info(to, "run", &info, &err));
    EXPECT(strstr(info.policy, "keep=last:10") != NULL);
    verify_pool(to);
    close_pool(to);
    close_pool(from);
    close(fd);
}

static void forged_identities(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct lmcs_archive_shelf_id_df id;
    struct lmcs_archive_record_df record;
    size_t bytes;
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to = new_pool(place, "to.pool");
    take(from, "run", 1, 1);
    int fd = dump_since(place, from, NULL, 0, "a.archive", &report);
    unsigned char *data = bytes_of(fd, &bytes), *copy = malloc(bytes + 100);
    size_t at = find_record(data, bytes, LMCS_ARCHIVE_SHELF_ID), step = record_at(data, at, &record);
    size_t after = find_record(data, bytes, LMCS_ARCHIVE_SNAPSHOT_END);
    after += record_at(data, after, &record);
    for (int which = 0; which < 4; which++) { /* repeated, late, too short, with unknown flags */
        size_t to_place = which == 1 ? after : at, more = which < 2 ? step : 0;
        memcpy(copy, data, bytes);
        memmove(copy + to_place + more, copy + to_place, bytes - to_place);
        memcpy(copy + to_place, data + at, step);
        struct lmcs_archive_end_df end;
        memcpy(&end, copy + bytes + more - sizeof end, sizeof end);
        end.records += more > 0;
        memcpy(copy + bytes + more - sizeof end, &end, sizeof end);
        if (which == 2) {
            record_at(copy, at, &record);
            record.bytes -= 8;
            memcpy(copy + at, &record, sizeof record);
            memmove(copy + at + step - 8, copy + at + step, bytes - at - step);
        }
        memcpy(&id, copy + at + sizeof record, sizeof id);
        id.flags |= which == 3 ? 0xfffffff0u : 0;
        id.reserved = which == 3 ? 7 : 0;
        if (which == 3)
            memcpy(copy + at + sizeof record, &id, sizeof id);
        write_sealed(fd, copy, which == 2 ? bytes - 8 : bytes + more);
        enum lmcs_status status = restore_all(to, &fd, 1, NULL, &report);
        EXPECT(status == (which == 3 ? LMCS_OK : LMCS_DAMAGED));
    }
    expect_same_shelf(from, to, "run");
    free(copy);
    free(data);
    close(fd);
    close_pool(to);
    close_pool(from);
}

static void expect_completed(struct lmcs_pool *from, struct lmcs_pool *to)
{
    for (uint64_t number = 1; number <= 6; number++) {
        struct lmc_hash a = digest_of(from, "run", number), b = digest_of(to, "run", number);
        EXPECT(a.low == b.low && a.high == b.high);
    }
    EXPECT(snapshot_tagged(to, "best") == 2 && snapshot_tagged(to, "mine") == 4 &&
           shelf_info(to, "run").next_number == 7);
    OK(lmcs_compact(to, NULL, &err));
    verify_pool(to);
    take(to, "run", 9, 9);
    for (uint64_t number = 7; number > 0; number--)
        OK(lmcs_snapshot_remove(to, "run", number, false, NULL, &err));
    OK(lmcs_compact(to, NULL, &err));
    EXPECT(pool_info(to).content_count == 0);
    verify_pool(to);
}

/* The last archive has the tags, but not those of snapshots that are newer than it. */
static void tags_of_the_last(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct lmcs_pool *from = new_pool(place, "from.pool");
    for (int i = 0; i < 3; i++)
        take(from, "run", (float)i, i);
    OK(lmcs_tag_set(from, "run", "best", 1, &err));
    OK(lmcs_tag_set(from, "run", "gone", 2, &err));
    int older = dump_since(place, from, NULL, 0, "a.archive", &report);
    take(from, "run", 4, 4);
    OK(lmcs_tag_set(from, "run", "best", 3, &err));
    OK(lmcs_tag_set(from, "run", "new", 4, &err));
    OK(lmcs_tag_remove(from, "run", "gone", &err));
    int newer = dump_since(place, from, NULL, 0, "b.archive", &report);
    for (int swapped = 0; swapped < 2; swapped++) {
        const int fds[2] = {swapped ? newer : older, swapped ? older : newer};
        struct lmcs_pool *to = new_pool(place, "to.pool");
        OK(restore_all(to, fds, 2, NULL, &report));
        EXPECT(report.snapshots == 4 && snapshot_tagged(to, "new") == 4);
        EXPECT(snapshot_tagged(to, "best") == (swapped ? 1 : 3) && snapshot_tagged(to, "gone") == (swapped ? 2 : 0));
        close_pool(to);
    }
    close(older);
    close(newer);
    close_pool(from);
}

static void take_names(struct lmcs_pool *pool, const char *const *names, size_t count, float value)
{
    struct lmcs_capture *capture;
    const uint64_t shape = 1000;
    float data[1000];
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    for (size_t i = 0; i < count; i++) {
        const struct lmcs_tensor tensor = {.name = names[i], .dtype = LMC_F32, .ndim = 1, .shape = &shape};
        const void *from = data;
        for (size_t k = 0; k < 1000; k++)
            data[k] = i == 0 ? -1 : value + (float)i; /* the first never changes */
        OK(lmcs_capture_put(capture, &tensor, &from, 1, &err));
    }
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
}

/* Completed snapshots whose tensors come and go. */
static void completing_changes(void **state)
{
    static const char *const names[] = {"model.w", "model.b", "opt.m", "opt.n"};
    static const size_t counts[] = {2, 4, 3, 1, 4, 1};
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to = new_pool(place, "to.pool");
    for (size_t i = 0; i < 6; i++)
        take_names(from, names, counts[i], (float)i);
    int fd = dump_since(place, from, NULL, 0, "a.archive", &report);
    OK(restore_part(to, fd, "opt.*", &report));
    OK(restore_part(to, fd, "*.[wm]", &report));
    OK(lmcs_snapshot_remove(to, "run", 3, false, NULL, &err));
    OK(lmcs_tag_set(from, "run", "mine", 5, &err));
    OK(lmcs_tag_set(to, "run", "mine", 5, &err));
    OK(restore_part(to, fd, "model.*", &report)); /* 3 comes back, the others are completed */
    OK(restore_file(to, fd, &report));
    expect_same_shelf(from, to, "run");
    EXPECT(pool_info(to).snapshot_count == 6);
    verify_pool(to);
    take_names(to, names, 4, 9);
    for (uint64_t number = 2; number <= 6; number++) {
        OK(lmcs_snapshot_remove(to, "run", number, false, NULL, &err));
        verify_pool(to);
    }
    OK(restore_file(to, fd, &report));
    EXPECT(report.snapshots == 5 && report.snapshots_skipped == 1);
    verify_pool(to);
    close(fd);
    close_pool(to);
    close_pool(from);
}

/* A restore that fails while it completes snapshots leaves the pool as it was. */
static void completing_fails(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    size_t bytes;
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to = new_pool(place, "to.pool");
    for (int i = 0; i < 6; i++)
        take(from, "run", (float)i, i);
    OK(lmcs_tag_set(from, "run", "best", 2, &err));
    int fd = dump_since(place, from, NULL, 0, "a.archive", &report), cut = new_file(place, "cut.archive");
    unsigned char *data = bytes_of(fd, &bytes);
    OK(restore_part(to, fd, "model.*", &report));
    OK(lmcs_tag_set(to, "run", "mine", 4, &err));
    OK(lmcs_compact(to, NULL, &err));
    struct counters before = counters_of(to);
    EXPECT(pwrite(cut, data, bytes - 1, 0) == (ssize_t)bytes - 1);
    for (int resume = 0; resume < 2; resume++) {
        const struct lmcs_restore_options options = {.resume = resume == 1};
        rewind_to_start(cut);
        FAILS(LMCS_DAMAGED, lmcs_restore_with(to, &cut, 1, &options, NULL, &report, &err));
        before.contents += resume == 1 ? counters_of(to).contents - before.contents : 0; /* kept for the next one */
        expect_unchanged(to, &before);
        verify_pool(to);
    }
    char path[512];
    place_path(place, "to.pool", path);
    close_pool(to);
    to = open_quiet(path);
    struct lmcs_snapshot *early;
    float w[1000];
    OK(lmcs_snapshot_find(to, "run", "3", &early, &err));
    OK(restore_part(to, fd, "opt.*", &report));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read(early, LMCS_TENSOR, "model.w", w, sizeof w, &err));
    EXPECT(strstr(err.message, "open it again") != NULL);
    lmcs_snapshot_close(early);
    EXPECT(report.snapshots == 6 && report.snapshots_skipped == 0);
    OK(restore_file(to, fd, &report)); /* attachments */
    expect_completed(from, to);
    free(data);
    close(fd);
    close(cut);
    close_pool(to);
    close_pool(from);
}

static void take_steps(struct lmcs_pool *pool, struct run *run, int count)
{
    for (int i = 0; i < count; i++) {
        state_step(run->state, &run->rng, 0, 2);
        uint64_t number = take_snapshot(pool, "run", run->state, i);
        if (run->kept[number] == NULL) /* of the first pool */
            run->kept[number] = state_copy(run->state);
    }
}

struct piping {
    int fd;
    const unsigned char *data;
    size_t bytes;
};

static void *pipe_thread(void *argument)
{
    const struct piping *piping = argument;
    ssize_t written = 1;
    for (size_t at = 0; at < piping->bytes && written > 0; at += (size_t)written)
        written = write(piping->fd, piping->data + at, piping->bytes - at);
    close(piping->fd);
    return NULL;
}

/* The pool stores the base of the archive's deltas as a delta, so that the chain would become too long. */
static void known_bases_below_deltas(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run = {.rng = {9}};
    int ends[2];
    pthread_t thread;
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to = new_pool(place, "to.pool");
    run.state = state_weights(&run.rng, 2, 30000);
    OK(lmcs_shelf_set_policy(from, "run", "keep_raw=1 chain=7 write=raw", &err));
    take_steps(from, &run, 8);
    const char *addresses[] = {"run@8", "run@1..7"};
    struct lmcs_dump_options options = {.addresses = &addresses[0], .address_count = 1};
    int older = new_file(place, "a.archive"), newer = new_file(place, "b.archive");
    OK(lmcs_dump_with(from, &options, older, NULL, NULL, &err));
    take_steps(from, &run, 1);
    OK(lmcs_compact(from, NULL, &err));
    options =
        (struct lmcs_dump_options){.addresses = &addresses[1], .address_count = 1, .since = &older, .since_count = 1};
    rewind_to_start(older);
    OK(lmcs_dump_with(from, &options, newer, NULL, NULL, &err));
    OK(restore_file(to, older, &report));
    OK(lmcs_shelf_set_policy(to, "run", "keep_raw=1 chain=7 write=raw", &err));
    take_steps(to, &run, 4);
    OK(lmcs_compact(to, NULL, &err));
    EXPECT(storage_of(from, "run", 1).longest_chain == 7 && storage_of(to, "run", 8).longest_chain == 4);
    EXPECT(pipe(ends) == 0);
    size_t bytes;
    unsigned char *data = bytes_of(newer, &bytes);
    struct piping piping = {ends[1], data, bytes};
    EXPECT(pthread_create(&thread, NULL, pipe_thread, &piping) == 0);
    FAILS(LMCS_NOT_FOUND, lmcs_restore(to, ends[0], NULL, NULL, &err)); /* can't be read again */
    EXPECT(strstr(err.message, "from a file") != NULL);
    close(ends[0]);
    EXPECT(pthread_join(thread, NULL) == 0);
    OK(restore_file(to, newer, &report));
    EXPECT(report.snapshots == 7);
    for (uint64_t n = 1; n <= 8; n++)
        expect_snapshot(to, "run", n, run.kept[n]);
    verify_pool(to);
    OK(lmcs_shelf_drop(to, "run", false, NULL, &err));
    OK(lmcs_compact(to, NULL, &err));
    EXPECT(pool_info(to).content_count == 0);
    verify_pool(to);
    free(data);
    close(older);
    close(newer);
    close_pool(to);
    close_pool(from);
    free_run(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(dropped_and_begun_again),
        IN_MEMORY(renamed_and_begun_again),
        IN_MEMORY(without_identities),
        IN_MEMORY(identities),
        IN_MEMORY(into_a_policy),
        IN_MEMORY(origins),
        IN_MEMORY(forged_identities),
        IN_MEMORY(tags_of_the_last),
        IN_MEMORY(completing_changes),
        ON_BOTH(completing_fails),
        IN_MEMORY(known_bases_below_deltas),
    };
    return cmocka_run_group_tests_name("chains of archives", tests, NULL, NULL);
}
