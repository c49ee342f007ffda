/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_pool_heap.c - libpmemobj's log and free ranges at the opening of a pool.
 *
 * This program interposes pwrite, fdatasync and pmemobj_open.
 */
#include "test_pool_support.h"

#include <dlfcn.h>
#include <libpmemobj.h>
#include <sys/syscall.h>

/* Words that the page cache alone may have, until they are written again and synced. */
enum { MOST_WORDS = 64, WRITTEN = 1, DURABLE = 2 };
static struct {
    uint64_t at[MOST_WORDS];
    int state[MOST_WORDS];
    size_t count;
    bool opened;
} lost;

#pragma GCC visibility push(default)
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    for (size_t i = 0; i < lost.count; i++)
        if (lost.state[i] == 0 && (uint64_t)offset <= lost.at[i] && lost.at[i] + 8 <= (uint64_t)offset + bytes)
            lost.state[i] = WRITTEN;
    return syscall(SYS_pwrite64, fd, data, bytes, offset);
}
int fdatasync(int fd)
{
    for (size_t i = 0; i < lost.count; i++)
        lost.state[i] *= DURABLE;
    return (int)syscall(SYS_fdatasync, fd);
}
PMEMobjpool *pmemobj_open(const char *path, const char *layout)
{
    PMEMobjpool *(*real)(const char *, const char *) =
        (PMEMobjpool * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "pmemobj_open");
    for (size_t i = 0; i < lost.count; i++)
        EXPECT(lost.state[i] >= DURABLE);
    lost.opened = true;
    return real(path, layout);
}
#pragma GCC visibility pop

/* libpmemobj's chunk headers, of the pool's first zone (store/media/pmemobj_layout.h). */
enum { HEAP_AT = 5136, CHUNK_HEADERS = 1024 + 64, FOOTER = 1, FREE_RANGE = 2 };

struct chunk {
    uint16_t type;
    uint16_t flags;
    uint32_t count;
};

static off_t chunk_at(int fd, uint32_t i)
{
    uint64_t heap;
    EXPECT(pread(fd, &heap, sizeof heap, HEAP_AT) == sizeof heap);
    return (off_t)(heap + CHUNK_HEADERS + i * sizeof(struct chunk));
}

static struct chunk get_chunk(int fd, uint32_t i)
{
    struct chunk chunk;
    EXPECT(pread(fd, &chunk, sizeof chunk, chunk_at(fd, i)) == sizeof chunk);
    return chunk;
}

static void set_chunk(int fd, uint32_t i, uint16_t type, uint32_t count)
{
    const struct chunk chunk = {type, 0, count};
    EXPECT(pwrite(fd, &chunk, sizeof chunk, chunk_at(fd, i)) == sizeof chunk);
}

/* As after a death while libpmemobj splits the free range at the end: the first part has its header, and the footer of
 * an earlier range, another part of which is free again. */
static void leave_old_footer(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint32_t hole = 0, last = 0, i = 0;
    struct chunk chunk;
    EXPECT(fd >= 0);
    for (; (chunk = get_chunk(fd, i)).count > 0; i += chunk.count) {
        if (hole == 0 && chunk.type == FREE_RANGE && chunk.count > 10)
            hole = i;
        last = i;
    }
    chunk = get_chunk(fd, last);
    EXPECT(hole > 0 && hole < last && chunk.type == FREE_RANGE && chunk.count > 100);
    set_chunk(fd, last, FREE_RANGE, 12);
    set_chunk(fd, last + 12, FREE_RANGE, chunk.count - 12);
    set_chunk(fd, last + 11, FOOTER, last + 12 - hole);
    close(fd);
}

/* Otherwise libpmemobj takes all between the two free ranges as free and overwrites data. */
static void old_footer_of_a_free_range(void **state)
{
    const struct place *place = *state;
    struct rng rng = {43};
    struct state *gone = state_weights(&rng, 1, 1300000), *kept = state_weights(&rng, 1, 700000),
                 *later = state_weights(&rng, 2, 1500000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "gone", gone, 1);
    take_snapshot(pool, "kept", kept, 1);
    OK(lmcs_snapshot_remove(pool, "gone", 1, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    close_pool(pool);
    leave_old_footer(place->pool);
    pool = open_quiet(place->pool);
    take_snapshot(pool, "later", later, 1);
    close_pool(pool);
    pool = open_quiet(place->pool);
    expect_snapshot(pool, "kept", 1, kept);
    expect_snapshot(pool, "later", 1, later);
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    state_free(gone);
    state_free(kept);
    state_free(later);
}

enum { LANES_AT = 5120, ROOT_AT = 6144, REDO_LOG = 256, LOG_HEADER = 64, CHUNKS_COMPARED = 4096 };

struct entry {
    uint64_t place;
    uint64_t value;
};

static uint64_t get_word(int fd, uint64_t at)
{
    uint64_t word;
    EXPECT(pread(fd, &word, sizeof word, (off_t)at) == sizeof word);
    return word;
}

static void set_word(int fd, uint64_t at, uint64_t word)
{
    EXPECT(pwrite(fd, &word, sizeof word, (off_t)at) == sizeof word);
}

/* A complete log in the first lane, as after a kill before its application. */
static void leave_log(int fd, const struct entry *entries, size_t count)
{
    uint32_t words[(LOG_HEADER + 640) / 4] = {0}, low = 0, high = 0;
    const uint64_t capacity = 640;
    EXPECT(count < 40);
    memcpy(words + 4, &capacity, sizeof capacity);
    memcpy(words + LOG_HEADER / 4, entries, count * sizeof *entries);
    for (size_t i = 0; i < LOG_HEADER / 4 + count * 4; i++) { /* Fletcher's checksum */
        low += words[i];
        high += low;
    }
    words[0] = low;
    words[1] = high;
    EXPECT(pwrite(fd, words, sizeof words, (off_t)(get_word(fd, LANES_AT) + REDO_LOG)) == sizeof words);
}

/* The words that a commit changes by libpmemobj's log: the reference to the root page, and chunk headers. */
static size_t list_words(int fd, struct entry *words)
{
    words[0].place = get_word(fd, ROOT_AT) + offsetof(struct lmcs_superblock_df, root);
    for (uint64_t i = 0; i < CHUNKS_COMPARED; i++)
        words[i + 1].place = (uint64_t)chunk_at(fd, (uint32_t)i);
    for (size_t i = 0; i <= CHUNKS_COMPARED; i++)
        words[i].value = get_word(fd, words[i].place);
    return CHUNKS_COMPARED + 1;
}

/* Opening for writing applies it; mode r shows the state before. */
static void log_that_is_yet_to_be_done(void **state)
{
    struct place *place = *state;
    struct rng rng = {44};
    static struct entry before[CHUNKS_COMPARED + 1], after[CHUNKS_COMPARED + 1];
    struct entry entries[40];
    struct state *first = state_weights(&rng, 1, 1000), *second = state_copy(first);
    char path[512];
    size_t count = 0;
    place_path(place, "killed.pool", path);
    struct lmcs_pool *pool = open_quiet(place->pool);
    int fd = open(place->pool, O_RDONLY | O_CLOEXEC);
    take_snapshot(pool, "run", first, 1);
    size_t words = list_words(fd, before);
    state_step(second, &rng, 0, 1);
    take_snapshot(pool, "run", second, 2);
    list_words(fd, after);
    copy_file(place->pool, path);
    close(fd);
    close_pool(pool);
    fd = open(path, O_RDWR | O_CLOEXEC);
    for (size_t i = 0; i < words; i++)
        if (before[i].value != after[i].value) {
            EXPECT(count < 40);
            entries[count++] = after[i];
            set_word(fd, before[i].place, before[i].value);
        }
    EXPECT(count >= 1);
    leave_log(fd, entries, count);
    close(fd);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    assert_int_equal(shelf_info(pool, "run").latest, 1);
    expect_snapshot(pool, "run", 1, first);
    close_pool(pool);
    pool = open_quiet(path);
    assert_int_equal(shelf_info(pool, "run").latest, 2);
    expect_snapshot(pool, "run", 1, first);
    expect_snapshot(pool, "run", 2, second);
    verify_pool(pool);
    close_pool(pool);
    state_free(first);
    state_free(second);
}

/* A log that would free space in use or replace the root is refused first. */
static void log_that_does_harm(void **state)
{
    struct place *place = *state;
    struct rng rng = {45};
    static struct entry words[CHUNKS_COMPARED + 1];
    struct state *weights = state_weights(&rng, 2, 3000000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    close_pool(pool);
    int fd = open(place->pool, O_RDWR | O_CLOEXEC);
    list_words(fd, words);
    size_t used = 1;
    struct chunk chunk;
    for (uint32_t i = 0; (chunk = get_chunk(fd, i)).count > 0; i += chunk.count)
        if (chunk.type == 3 && chunk.count > 10)
            used = i + 1;
    const uint64_t set = 0, and = (uint64_t)1 << 61, or = (uint64_t)2 << 61;
    const struct entry cases[] = {
        {set | words[used].place, (words[used].value & ~(uint64_t)0xffff) | FREE_RANGE},
        {and | words[used].place, ~(uint64_t)1},
        { or | words[used].place, (uint64_t)1 << 40},
        {set | words[0].place, words[0].value + ((uint64_t)1 << 16)},
        {set | (words[0].place - 8), 0},
        {(uint64_t)3 << 61 | words[used].place, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        leave_log(fd, &cases[i], 1);
        FAILS(LMCS_DAMAGED, try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
        assert_true(get_word(fd, words[0].place) == words[0].value);
        assert_true(get_word(fd, words[used].place) == words[used].value);
        pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        expect_snapshot(pool, "run", 1, weights);
        close_pool(pool);
    }
    leave_log(fd, cases, 0);
    close(fd);
    pool = open_quiet(place->pool);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

/* After a failed sync, the root's word or a log may be in the page cache only, in a page that counts as clean. */
static void what_the_disk_may_lack_is_written_again(void **state)
{
    const struct place *place = *state;
    struct rng rng = {46};
    struct state *weights = state_weights(&rng, 1, 700000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (int i = 1; i <= 3; i++)
        take_snapshot(pool, "run", weights, i);
    close_pool(pool);
    int fd = open(place->pool, O_RDONLY | O_CLOEXEC);
    EXPECT(fd >= 0);
    lost.at[lost.count++] = get_word(fd, ROOT_AT) + offsetof(struct lmcs_superblock_df, root);
    for (uint64_t i = 0, lanes = get_word(fd, LANES_AT); i < get_word(fd, LANES_AT + 8); i++) {
        const uint64_t log = lanes + i * 3072 + REDO_LOG;
        if (get_word(fd, log + LOG_HEADER) != 0) {
            EXPECT(lost.count + 2 <= MOST_WORDS);
            lost.at[lost.count++] = log;
            lost.at[lost.count++] = log + LOG_HEADER + 640 - 8;
        }
    }
    close(fd);
    EXPECT(lost.count >= 3);
    lost.opened = false;
    pool = open_quiet(place->pool);
    lost.count = 0;
    EXPECT(lost.opened);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(old_footer_of_a_free_range),
        IN_MEMORY(log_that_is_yet_to_be_done),
        IN_MEMORY(log_that_does_harm),
        ON_DISK(what_the_disk_may_lack_is_written_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
