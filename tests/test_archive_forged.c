/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_forged.c - truncated, flipped, forged and newer archives. */
/* ctest: timeout=600 labels=slow,no-tsan */
#include "test_archive_support.h"

static void set_content(int fd, const void *data, size_t bytes)
{
    EXPECT(ftruncate(fd, 0) == 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
}

static int small_archive(const struct place *place)
{
    struct lmcs_pool *pool = new_pool(place, "small.pool");
    struct lmcs_transfer_report report;
    struct run run = {.rng = {5}};
    run.state = state_weights(&run.rng, 3, 24);
    for (int step = 0; step < 3; step++) {
        state_step(run.state, &run.rng, (size_t)step, 1);
        take_snapshot(pool, "run", run.state, step);
    }
    take_rich(pool, &run, 10);
    struct state *fewer = state_copy(run.state);
    fewer->count = 2;
    take_snapshot(pool, "run", fewer, 9);
    OK(lmcs_compact(pool, NULL, &err));
    int fd = dump_file(place, pool, NULL, "small.archive", &report);
    fewer->count = 3;
    state_free(fewer);
    free_run(&run);
    close_pool(pool);
    return fd;
}

static struct lmcs_pool *small_target(const struct place *place)
{
    struct lmcs_pool *pool = new_pool(place, "target.pool");
    struct rng rng = {11};
    struct state *weights = state_weights(&rng, 2, 50);
    take_snapshot(pool, "mine", weights, 1);
    take_snapshot(pool, "mine", weights, 2);
    state_free(weights);
    return pool;
}

static void test_truncated(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    int fd = small_archive(place), cut = new_file(place, "cut.archive");
    size_t bytes;
    unsigned char *data = file_content(fd, &bytes);
    struct lmcs_pool *pool = small_target(place);
    struct counters before = counters_of(pool);
    for (size_t n = 0; n < bytes; n++) {
        set_content(cut, data, n);
        FAILS(LMCS_DAMAGED, restore_file(pool, cut, &report));
        expect_unchanged(pool, &before);
    }
    verify_pool(pool);
    set_content(cut, data, bytes);
    EXPECT(pwrite(cut, "x", 1, (off_t)bytes) == 1);
    FAILS(LMCS_DAMAGED, restore_file(pool, cut, &report));
    expect_unchanged(pool, &before);
    OK(restore_file(pool, fd, &report));
    EXPECT(report.snapshots == 5);
    verify_pool(pool);
    free(data);
    close(fd);
    close(cut);
    close_pool(pool);
}

static void test_flipped(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    int fd = small_archive(place), bad = new_file(place, "bad.archive");
    size_t bytes;
    unsigned char *data = file_content(fd, &bytes);
    struct lmcs_pool *pool = small_target(place);
    struct counters before = counters_of(pool);
    uint64_t bits = scaled("LMCS_TEST_BITS", 1);
    set_content(bad, data, bytes);
    for (size_t n = 0; n < bytes; n++)
        for (uint64_t bit = 0; bit < bits; bit++) {
            unsigned char byte = data[n] ^ (unsigned char)(1u << ((n + bit) % 8));
            EXPECT(pwrite(bad, &byte, 1, (off_t)n) == 1);
            FAILS(LMCS_DAMAGED, restore_file(pool, bad, &report));
            EXPECT(pwrite(bad, data + n, 1, (off_t)n) == 1);
            expect_unchanged(pool, &before);
        }
    verify_pool(pool);
    OK(restore_file(pool, bad, &report));
    free(data);
    close(fd);
    close(bad);
    close_pool(pool);
}

static bool try_forged(const struct place *place, struct lmcs_pool **pool, int fd, const struct counters *before)
{
    struct lmcs_transfer_report report;
    enum lmcs_status status = restore_file(*pool, fd, &report);
    if (status == LMCS_OK) {
        verify_pool(*pool);
        close_pool(*pool);
        *pool = small_target(place);
        return true;
    }
    if (status != LMCS_DAMAGED && status != LMCS_UNSUPPORTED && status != LMCS_FULL && status != LMCS_EXISTS)
        fprintf(stderr, "%s: %s\n", lmcs_status_name(status), err.message);
    EXPECT(status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED || status == LMCS_FULL || status == LMCS_EXISTS);
    expect_unchanged(*pool, before);
    return false;
}

static void test_forged(void **state)
{
    const struct place *place = *state;
    int fd = small_archive(place), bad = new_file(place, "bad.archive");
    size_t bytes, taken = 0, tried = 0;
    unsigned char *data = file_content(fd, &bytes), *forged = malloc(bytes);
    struct lmcs_pool *pool = small_target(place);
    struct counters before = counters_of(pool);
    struct rng rng = {99};
    EXPECT(forged != NULL);
    static const unsigned char masks[] = {1, 0x80, 0xff};
    const size_t step = UNDER_THREAD_SANITIZER ? 13 : 1;
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        memcpy(&record, data + at, sizeof record);
        at += sizeof record;
        for (size_t i = 0; i < record.bytes; i += step, tried++) {
            memcpy(forged, data, bytes);
            forged[at + i] ^= masks[rng_below(&rng, sizeof masks)];
            seal(forged, bytes);
            set_content(bad, forged, bytes);
            taken += try_forged(place, &pool, bad, &before);
        }
        at += record.bytes;
    }
    verify_pool(pool);
    print_message("%zu forged archives, of which %zu were sound\n", tried, taken);
    EXPECT(taken < tried / 4);
    free(data);
    free(forged);
    close(fd);
    close(bad);
    close_pool(pool);
}

static void test_forged_order(void **state)
{
    const struct place *place = *state;
    int fd = small_archive(place), bad = new_file(place, "bad.archive");
    size_t bytes, count = 0, starts[512], length;
    unsigned char *data = file_content(fd, &bytes), *forged = malloc(2 * bytes);
    struct lmcs_pool *pool = small_target(place);
    struct counters before = counters_of(pool);
    EXPECT(forged != NULL);
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes; count++) {
        struct lmcs_archive_record_df record;
        memcpy(&record, data + at, sizeof record);
        EXPECT(count < 511);
        starts[count] = at;
        at += sizeof record + record.bytes;
    }
    starts[count] = bytes;
    for (size_t i = 0; i < count; i++)
        for (size_t copies = 0; copies <= 2; copies += 2) {
            memcpy(forged, data, starts[i]);
            length = starts[i];
            for (size_t k = 0; k < copies; k++) {
                memcpy(forged + length, data + starts[i], starts[i + 1] - starts[i]);
                length += starts[i + 1] - starts[i];
            }
            memcpy(forged + length, data + starts[i + 1], bytes - starts[i + 1]);
            length += bytes - starts[i + 1];
            seal(forged, length);
            set_content(bad, forged, length);
            try_forged(place, &pool, bad, &before);
        }
    for (size_t i = 0; i + 1 < count; i++) {
        size_t first = starts[i + 1] - starts[i], second = starts[i + 2] - starts[i + 1];
        memcpy(forged, data, bytes);
        memcpy(forged + starts[i], data + starts[i + 1], second);
        memcpy(forged + starts[i] + second, data + starts[i], first);
        seal(forged, bytes);
        set_content(bad, forged, bytes);
        try_forged(place, &pool, bad, &before);
    }
    verify_pool(pool);
    free(data);
    free(forged);
    close(fd);
    close(bad);
    close_pool(pool);
}

static void test_newer(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    int fd = small_archive(place);
    size_t bytes;
    unsigned char *data = file_content(fd, &bytes);
    struct lmcs_pool *pool = small_target(place);
    struct lmcs_archive_head_df head;
    memcpy(&head, data, sizeof head);
    head.version = 2;
    memcpy(data, &head, sizeof head);
    seal(data, bytes);
    set_content(fd, data, bytes);
    FAILS(LMCS_UNSUPPORTED, restore_file(pool, fd, &report));
    set_content(fd, "PK\3\4 this is something else altogether, and long", 48);
    FAILS(LMCS_DAMAGED, restore_file(pool, fd, &report));
    set_content(fd, "", 0);
    FAILS(LMCS_DAMAGED, restore_file(pool, fd, &report));
    verify_pool(pool);
    free(data);
    close(fd);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(test_truncated),    IN_MEMORY(test_flipped), IN_MEMORY(test_forged),
        IN_MEMORY(test_forged_order), IN_MEMORY(test_newer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
