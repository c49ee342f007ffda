/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_damage.c - restore and verify refuse damaged and exchanged archives; the pool stays unchanged. */
/* ctest: timeout=600 labels=slow,no-tsan */
#include "support.h"

#include <fcntl.h>
#include <unistd.h>

#include "test_archive_seal.h"

enum { SNAPSHOTS = 6, MOST = 4 << 20 };

struct archive {
    unsigned char *data;
    size_t bytes;
};

struct scene {
    struct place *place;
    struct lmcs_pool *pool;
    struct state *states[SNAPSHOTS + 1];
    struct rng rng;
};

static int file_of(const struct scene *scene, const char *name, const struct archive *archive)
{
    char path[512];
    place_path(scene->place, name, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    if (archive != NULL)
        EXPECT(pwrite(fd, archive->data, archive->bytes, 0) == (ssize_t)archive->bytes);
    return fd;
}

static struct archive dump(const struct scene *scene, struct lmcs_dump_options *options, const char *address)
{
    struct archive archive = {malloc(MOST), 0};
    int fd = file_of(scene, "made.archive", NULL);
    options->addresses = &address;
    options->address_count = 1;
    OK(lmcs_dump_with(scene->pool, options, fd, NULL, NULL, &err));
    ssize_t bytes = pread(fd, archive.data, MOST, 0);
    EXPECT(bytes > 0 && bytes < MOST);
    archive.bytes = (size_t)bytes;
    close(fd);
    options->address_count = 0;
    return archive;
}

static void begin(struct scene *scene, struct place *place)
{
    *scene = (struct scene){.place = place, .rng = {3}};
    scene->pool = open_quiet(place->pool);
    struct state *now = state_weights(&scene->rng, 3, 2000);
    for (int i = 1; i <= SNAPSHOTS; i++) {
        scene->states[i] = state_copy(now);
        take_snapshot(scene->pool, "run", now, i);
        state_step(now, &scene->rng, 0, 2);
    }
    state_free(now);
    now = state_weights(&scene->rng, 2, 500);
    take_snapshot(scene->pool, "other", now, 1);
    state_free(now);
    OK(lmcs_compact(scene->pool, NULL, &err));
}

static void end(struct scene *scene)
{
    for (int i = 1; i <= SNAPSHOTS; i++)
        state_free(scene->states[i]);
    close_pool(scene->pool);
}

static struct lmcs_pool *empty_pool(const struct scene *scene)
{
    char path[512];
    place_path(scene->place, "into.pool", path);
    unlink(path);
    return open_quiet(path);
}

/* False: unchanged. */
static bool damage(struct scene *scene, const struct archive *archive, size_t turn, struct archive *copy)
{
    size_t at = rng_below(&scene->rng, archive->bytes), n = 1 + rng_below(&scene->rng, 4096);
    n = n > archive->bytes - at ? archive->bytes - at : n;
    memcpy(copy->data, archive->data, archive->bytes);
    copy->bytes = archive->bytes;
    if (turn % 8 < 5) {
        at = turn % 8 == 0 ? at % 2048 : turn % 8 == 1 ? archive->bytes - 1 - at % 512 : at;
        copy->data[at] ^= (unsigned char)(1u << rng_below(&scene->rng, 8));
    } else if (turn % 8 == 5) {
        memset(copy->data + at, 0, n);
    } else if (turn % 8 == 6) {
        copy->bytes = at;
    } else {
        size_t other = rng_below(&scene->rng, archive->bytes - n + 1);
        memmove(copy->data + at, archive->data + other, n);
    }
    return copy->bytes != archive->bytes || memcmp(copy->data, archive->data, copy->bytes) != 0;
}

static void expect_sentence(enum lmcs_status status)
{
    EXPECT(status == LMCS_DAMAGED || status == LMCS_NOT_FOUND || status == LMCS_UNSUPPORTED);
    EXPECT(strlen(err.message) > 20);
}

/* `before`: an archive that the pool needs first, or NULL. */
static void damage_often(struct scene *scene, const struct archive *archive, const struct archive *before, size_t count)
{
    struct archive copy = {malloc(archive->bytes + 1), 0};
    struct lmcs_pool *into = empty_pool(scene);
    uint64_t had = 0;
    if (before != NULL) {
        int fd = file_of(scene, "before.archive", before);
        OK(lmcs_restore(into, fd, NULL, NULL, &err));
        close(fd);
        had = pool_info(into).snapshot_count;
    }
    for (size_t turn = 0; turn < count; turn++) {
        if (!damage(scene, archive, turn, &copy))
            continue;
        struct lmcs_restore_options options;
        int fd = file_of(scene, "damaged.archive", &copy);
        lmcs_restore_options_init(&options);
        options.resume = turn % 3 == 0;
        expect_sentence(lmcs_restore_with(into, &fd, 1, &options, NULL, NULL, &err));
        EXPECT(pool_info(into).snapshot_count == had);
        expect_sentence(lmcs_archive_verify(fd, NULL, NULL, &err));
        close(fd);
    }
    check_pool(into);
    int fd = file_of(scene, "whole.archive", archive);
    struct lmcs_restore_options options;
    lmcs_restore_options_init(&options);
    options.resume = true;
    OK(lmcs_restore_with(into, &fd, 1, &options, NULL, NULL, &err));
    close(fd);
    EXPECT(pool_info(into).snapshot_count > had);
    expect_snapshot(into, "run", 5, scene->states[5]);
    verify_pool(into);
    close_pool(into);
    free(copy.data);
}

static void each_kind_of_archive(void **state)
{
    struct scene scene;
    struct lmcs_dump_options options;
    begin(&scene, *state);
    size_t count = scaled("LMCS_TEST_DAMAGES", 60);
    lmcs_dump_options_init(&options);
    struct archive range = dump(&scene, &options, "run@3..5"), early = dump(&scene, &options, "run@..3");
    options.canonical = true;
    struct archive canonical = dump(&scene, &options, "run");
    options.canonical = false;
    int fd = file_of(&scene, "early.archive", &early);
    options.since = &fd;
    options.since_count = 1;
    struct archive late = dump(&scene, &options, "run");
    close(fd);
    damage_often(&scene, &range, NULL, count);
    damage_often(&scene, &canonical, NULL, count);
    damage_often(&scene, &late, &early, count);
    free(range.data);
    free(early.data);
    free(canonical.data);
    free(late.data);
    end(&scene);
}

/* The record at `at`; returns the offset of the next. */
static size_t next_record(const struct archive *archive, size_t at, struct lmcs_archive_record_df *record)
{
    memcpy(record, archive->data + at, sizeof *record);
    return at + sizeof *record + record->bytes;
}

/* Frames based on an older archive can't be decoded; only records and checksums are checked. */
static void forged_parts(void **state)
{
    struct scene scene;
    struct lmcs_dump_options options;
    struct lmcs_archive_info info;
    begin(&scene, *state);
    struct state *now = state_weights(&scene.rng, 1, 60000);
    for (int i = 1; i <= 16; i++, state_step(now, &scene.rng, 0, 1))
        take_snapshot(scene.pool, "deep", now, i);
    state_free(now);
    OK(lmcs_compact(scene.pool, NULL, &err));
    lmcs_dump_options_init(&options);
    struct archive early = dump(&scene, &options, "deep@9");
    int fd = file_of(&scene, "early.archive", &early);
    options.since = &fd;
    options.since_count = 1;
    struct archive late = dump(&scene, &options, "deep@2..8"), forged = {malloc(late.bytes), late.bytes};
    close(fd);
    fd = file_of(&scene, "late.archive", &late);
    OK(lmcs_archive_verify(fd, NULL, &info, &err));
    EXPECT(info.known_contents > 0 && info.decoded_contents < info.contents - info.known_contents);
    close(fd);
    struct lmcs_archive_record_df record;
    size_t data = 0;
    for (size_t at = sizeof(struct lmcs_archive_head_df), next; at < late.bytes; at = next) {
        next = next_record(&late, at, &record);
        if (record.type != LMCS_ARCHIVE_DATA)
            continue;
        for (int i = 0; i < 3; i++, data++) {
            size_t in = i == 0 ? 8 : i == 1 ? record.bytes / 2 : record.bytes - 1;
            memcpy(forged.data, late.data, late.bytes);
            forged.data[at + sizeof record + in] ^= 0x40;
            seal(forged.data, forged.bytes);
            fd = file_of(&scene, "forged.archive", &forged);
            FAILS(LMCS_DAMAGED, lmcs_archive_verify(fd, NULL, NULL, &err));
            close(fd);
        }
    }
    EXPECT(data > 0);
    free(early.data);
    free(late.data);
    free(forged.data);
    end(&scene);
}

static void taken_up_again_over_damage(void **state)
{
    struct scene scene;
    struct lmcs_dump_options options;
    begin(&scene, *state);
    lmcs_dump_options_init(&options);
    struct archive whole = dump(&scene, &options, "run"), copy = {malloc(MOST), 0};
    size_t refused = 0;
    const char *address = "run";
    options.addresses = &address;
    options.address_count = 1;
    options.resume = true;
    for (size_t turn = 0; turn < 30; turn++) {
        size_t cut = rng_below(&scene.rng, whole.bytes), at = rng_below(&scene.rng, cut + 1);
        memcpy(copy.data, whole.data, whole.bytes);
        copy.bytes = cut;
        copy.data[at] ^= 16;
        int fd = file_of(&scene, "part.archive", &copy);
        enum lmcs_status status = lmcs_dump_with(scene.pool, &options, fd, NULL, NULL, &err);
        EXPECT(status == LMCS_OK || (strlen(err.message) > 20 && status != LMCS_IO));
        refused += status != LMCS_OK;
        if (status == LMCS_OK) {
            struct lmcs_pool *into = empty_pool(&scene);
            EXPECT(lseek(fd, 0, SEEK_SET) == 0);
            OK(lmcs_restore(into, fd, NULL, NULL, &err));
            for (uint64_t n = 1; n <= SNAPSHOTS; n++)
                expect_snapshot(into, "run", n, scene.states[n]);
            close_pool(into);
        }
        close(fd);
    }
    EXPECT(refused < 30);
    free(whole.data);
    free(copy.data);
    end(&scene);
}

static void two_archives_swapped(void **state)
{
    struct scene scene;
    struct lmcs_dump_options options;
    begin(&scene, *state);
    lmcs_dump_options_init(&options);
    struct archive early = dump(&scene, &options, "run@..3"), wrong = dump(&scene, &options, "other");
    int fd = file_of(&scene, "early.archive", &early), wrong_fd = file_of(&scene, "wrong.archive", &wrong);
    options.since = &fd;
    options.since_count = 1;
    struct archive late = dump(&scene, &options, "run");
    int late_fd = file_of(&scene, "late.archive", &late);
    const int wrong_order[] = {late_fd, fd}, wrong_one[] = {wrong_fd, late_fd}, right[] = {fd, late_fd};
    struct lmcs_pool *into = empty_pool(&scene);
    FAILS(LMCS_NOT_FOUND, lmcs_restore_with(into, wrong_order, 2, NULL, NULL, NULL, &err));
    for (size_t i = 0; i < 2; i++)
        EXPECT(lseek(right[i], 0, SEEK_SET) == 0);
    FAILS(LMCS_NOT_FOUND, lmcs_restore_with(into, wrong_one, 2, NULL, NULL, NULL, &err));
    EXPECT(lseek(late_fd, 0, SEEK_SET) == 0);
    EXPECT(pool_info(into).snapshot_count == 0);
    OK(lmcs_restore_with(into, right, 2, NULL, NULL, NULL, &err));
    for (uint64_t n = 1; n <= SNAPSHOTS; n++)
        expect_snapshot(into, "run", n, scene.states[n]);
    verify_pool(into);
    close_pool(into);
    close(fd);
    close(wrong_fd);
    close(late_fd);
    free(early.data);
    free(wrong.data);
    free(late.data);
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(each_kind_of_archive),
        IN_MEMORY(forged_parts),
        IN_MEMORY(taken_up_again_over_damage),
        IN_MEMORY(two_archives_swapped),
    };
    return cmocka_run_group_tests_name("damage to archives", tests, NULL, NULL);
}
