/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_archive_resume.c - resumed restores: contents that are found unread were verified before.
 *
 * The first attempt is killed or refused memory at each of its allocations, so also between the commit of a staged
 * snapshot and the end of its verification.
 */
/* ctest: timeout=600 labels=no-asan,no-tsan */
#include <signal.h>
#include <sys/wait.h>

#include "refuse.h"
#include "test_archive_files.h"
#include "test_archive_seal.h"
#include "test_scrub_support.h"
#include "transfer/stage.h"

enum { SNAPSHOTS = 3 };

struct scene {
    const struct place *place;
    char pool[512];
    struct state *states[SNAPSHOTS + 1];
    int whole, bad;
    size_t bytes;
    unsigned char *data;
};

static int file_of(const struct scene *scene, const char *name)
{
    char path[512];
    place_path(scene->place, name, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    return fd;
}

/* Dumps a run of unrelated snapshots; `coded`: all but the last are frames. */
static void begin(struct scene *scene, const struct place *place, bool coded)
{
    struct rng rng = {3};
    char path[512];
    *scene = (struct scene){.place = place};
    place_path(place, "to.pool", scene->pool);
    place_path(place, "from.pool", path);
    struct lmcs_pool *from = open_quiet(path);
    OK(lmcs_shelf_set_keep_raw(from, "run", 1, &err));
    for (int i = 1; i <= SNAPSHOTS; i++) {
        scene->states[i] = state_weights(&rng, 2, 20000);
        take_snapshot(from, "run", scene->states[i], i);
    }
    if (coded)
        OK(lmcs_compact(from, NULL, &err));
    scene->whole = file_of(scene, "whole.archive");
    scene->bad = file_of(scene, "bad.archive");
    OK(lmcs_dump(from, NULL, scene->whole, NULL, NULL, &err));
    scene->data = bytes_of(scene->whole, &scene->bytes);
    close_pool(from);
}

static void end(struct scene *scene)
{
    for (int i = 1; i <= SNAPSHOTS; i++)
        state_free(scene->states[i]);
    close(scene->whole);
    close(scene->bad);
    free(scene->data);
}

static unsigned char *last_payload(struct scene *scene, uint8_t kind)
{
    struct lmcs_archive_record_df record;
    struct lmcs_archive_content_df content = {.payload = 255};
    unsigned char *found = NULL;
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < scene->bytes; at += sizeof record + record.bytes) {
        memcpy(&record, scene->data + at, sizeof record);
        if (record.type == LMCS_ARCHIVE_CONTENT)
            memcpy(&content, scene->data + at + sizeof record, sizeof content);
        else if (record.type == LMCS_ARCHIVE_DATA && content.payload == kind)
            found = scene->data + at + sizeof record;
    }
    EXPECT(found != NULL);
    return found;
}

static enum lmcs_status take_up(struct lmcs_pool *pool, int fd, struct lmcs_transfer_report *report)
{
    const struct lmcs_restore_options resume = {.resume = true};
    rewind_to_start(fd);
    return lmcs_restore_with(pool, &fd, 1, &resume, NULL, report, &err);
}

static void expect_nothing(struct lmcs_pool *pool)
{
    EXPECT(pool_info(pool).shelf_count == 0 && pool_info(pool).snapshot_count == 0);
}

static void expect_all(struct scene *scene, struct lmcs_pool *pool, const char *shelf)
{
    for (uint64_t n = 1; n <= SNAPSHOTS; n++)
        expect_snapshot(pool, shelf, n, scene->states[n]);
    verify_pool(pool);
}

static bool dies; /* the first attempt is killed; else it fails */

static void die(void)
{
    kill(getpid(), SIGKILL);
}

struct attempt {
    struct scene *scene;
    long n;
};

static int attempt_in_child(void *argument)
{
    const struct attempt *attempt = argument;
    struct lmcs_pool *pool = open_quiet(attempt->scene->pool);
    on_failure = dies ? die : NULL;
    refuse(MEMORY, attempt->n, false);
    enum lmcs_status status = take_up(pool, attempt->scene->bad, NULL);
    refuse_no_more();
    EXPECT(status == LMCS_DAMAGED || fits(MEMORY, status));
    bool failed = atomic_load(&failures) > 0;
    close_pool(pool);
    return failed ? 2 : 0;
}

static void damage_is_not_taken_up(void **state)
{
    struct scene scene;
    begin(&scene, *state, false);
    last_payload(&scene, LMCS_PAYLOAD_RAW)[100] ^= 1;
    seal(scene.data, scene.bytes);
    set_bytes(scene.bad, scene.data, scene.bytes);
    for (int k = 0; k < 2; k++) {
        bool stopped = true;
        uint64_t most = 0;
        dies = k == 1;
        for (long n = 0; stopped; n += 1 + n / 50) {
            struct attempt attempt = {&scene, n};
            unlink(scene.pool);
            close_pool(open_quiet(scene.pool));
            int status = run_child(attempt_in_child, &attempt, 60);
            stopped = dies ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 2;
            EXPECT(stopped || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
            struct lmcs_pool *pool = open_quiet(scene.pool);
            expect_nothing(pool);
            uint64_t kept = pool_info(pool).content_count;
            most = kept > most ? kept : most;
            for (int i = 0; i < 2; i++) {
                FAILS(LMCS_DAMAGED, take_up(pool, scene.bad, NULL));
                expect_nothing(pool);
            }
            verify_pool(pool);
            OK(take_up(pool, scene.whole, NULL));
            expect_all(&scene, pool, "run");
            close_pool(pool);
        }
        EXPECT(most == 2 * (SNAPSHOTS - 1)); /* the damaged one is not committed */
    }
    end(&scene);
}

static void unsupported_is_not_taken_up(void **state)
{
    struct scene scene;
    uint32_t newer = 0x4000;
    begin(&scene, *state, true);
    unsigned char *frame = last_payload(&scene, LMCS_PAYLOAD_FRAME);
    memcpy(frame + 8, &newer, sizeof newer);
    uint64_t check = lmc_hash64(frame, 56, 0);
    memcpy(frame + 56, &check, sizeof check);
    seal(scene.data, scene.bytes);
    set_bytes(scene.bad, scene.data, scene.bytes);
    struct lmcs_pool *pool = open_quiet(scene.pool);
    for (int i = 0; i < 3; i++) {
        FAILS(LMCS_UNSUPPORTED, take_up(pool, scene.bad, NULL));
        expect_nothing(pool);
    }
    OK(take_up(pool, scene.whole, NULL));
    expect_all(&scene, pool, "run");
    close_pool(pool);
    end(&scene);
}

/* Contents elsewhere in the pool may have rotted: they are read, and replaced if damaged. */
static void what_has_gone_bad_is_not_shared(void **state)
{
    struct scene scene;
    const struct lmcs_restore_options again = {.resume = true, .as = "again"};
    struct lmcs_transfer_report report;
    begin(&scene, *state, false);
    struct lmcs_pool *pool = open_quiet(scene.pool);
    OK(take_up(pool, scene.whole, NULL));
    struct lmcs_content content = record_of(pool, "run", 2, "t1");
    close_pool(pool);
    damage_content(scene.pool, &content, 5000, 16);
    pool = open_quiet(scene.pool);
    rewind_to_start(scene.whole);
    OK(lmcs_restore_with(pool, &scene.whole, 1, &again, NULL, &report, &err));
    EXPECT(report.contents_found == report.contents - 1);
    for (uint64_t n = 1; n <= SNAPSHOTS; n++)
        expect_snapshot(pool, "again", n, scene.states[n]);
    close_pool(pool);
    end(&scene);
}

static void what_was_verified_is_not_read_again(void **state)
{
    struct scene scene;
    struct lmcs_stage stage;
    struct lmcs_archive_reader reader;
    begin(&scene, *state, false);
    set_bytes(scene.bad, scene.data, scene.bytes - 80);
    struct lmcs_pool *pool = open_quiet(scene.pool);
    FAILS(LMCS_DAMAGED, take_up(pool, scene.bad, NULL));
    for (int keeps = 0; keeps < 2; keeps++) {
        lmcs_stage_init(&stage, pool);
        stage.keeps = keeps;
        OK(lmcs_stage_begin(&stage, &reader, &err));
        EXPECT(stage.found_count == 2 * SNAPSHOTS && stage.verified_count == (keeps ? 2 * (SNAPSHOTS - 1) : 0));
        for (size_t i = 0; i < stage.verified_count; i++)
            EXPECT(stage.verified[i] == stage.verified[0] + i);
        for (size_t i = 0; keeps && i < stage.found_count; i++)
            EXPECT(stage.found[i].id >= stage.verified[0]);
        lmcs_stage_fini(&stage);
    }
    struct lmcs_transfer_report report;
    OK(take_up(pool, scene.whole, &report));
    EXPECT(report.contents_found == 2 * SNAPSHOTS);
    expect_all(&scene, pool, "run");
    close_pool(pool);
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(damage_is_not_taken_up),
        IN_MEMORY(unsupported_is_not_taken_up),
        ON_BOTH(what_has_gone_bad_is_not_shared),
        IN_MEMORY(what_was_verified_is_not_read_again),
    };
    return cmocka_run_group_tests_name("restores that are taken up again", tests, NULL, NULL);
}
