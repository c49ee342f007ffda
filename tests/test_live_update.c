/* SPDX-License-Identifier: BSD-3-Clause */
/* test_live_update.c - values, and writes by functions: atomic, durable, and of the right bytes only. */
/* ctest: timeout=600 */
#include "test_live_support.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static struct lmcs_live *new_value(struct lmcs_pool *pool, const char *name, uint32_t dtype, uint64_t count)
{
    struct lmcs_tensor tensor = {.name = name, .dtype = dtype, .ndim = count == 1 ? 0 : 1, .shape = &count};
    struct lmcs_live_options options;
    struct lmcs_live *live;
    lmcs_live_options_init(&options);
    options.form = LMCS_LIVE_VALUE;
    OK(lmcs_live_create(pool, "run", &tensor, &options, &live, &err));
    return live;
}

struct counting {
    pthread_barrier_t barrier;
    struct lmcs_pool *pool;
    atomic_uint created;
};

/* Opens a value of 100, or creates it, and counts on it. */
static void *open_or_create(void *context)
{
    struct counting *counting = context;
    static const int64_t first = 100, one = 1;
    struct lmcs_tensor tensor = {.name = "n", .dtype = LMC_I64};
    struct lmcs_live_options options;
    struct lmcs_live *live;
    struct lmcs_error error;
    lmcs_live_options_init(&options);
    options.form = LMCS_LIVE_VALUE;
    options.value = &first;
    options.value_bytes = sizeof first;
    pthread_barrier_wait(&counting->barrier);
    enum lmcs_status status = lmcs_live_create(counting->pool, "run", &tensor, &options, &live, &error);
    if (status == LMCS_OK)
        atomic_fetch_add(&counting->created, 1);
    else {
        EXPECT(status == LMCS_EXISTS);
        OK(lmcs_live_open(counting->pool, "run", "n", &live, &error));
    }
    OK(lmcs_live_add(live, 0, sizeof one, &one, NULL, &error));
    lmcs_live_close(live);
    return NULL;
}

static void one_of_many_threads_creates(void **state)
{
    struct place *place = *state;
    struct counting counting = {.pool = open_quiet(place->pool)};
    pthread_t threads[8];
    EXPECT(pthread_barrier_init(&counting.barrier, NULL, 8) == 0);
    for (unsigned round = 1; round <= 50; round++) {
        for (size_t i = 0; i < 8; i++)
            EXPECT(pthread_create(&threads[i], NULL, open_or_create, &counting) == 0);
        for (size_t i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
        EXPECT(counting.created == round);
        if (round == 50)
            counting.pool = reopen(counting.pool, place);
        struct lmcs_live *live;
        int64_t number;
        OK(lmcs_live_open(counting.pool, "run", "n", &live, &err));
        OK(lmcs_live_read(live, 0, &number, sizeof number, &err));
        EXPECT(number == 108);
        lmcs_live_close(live);
        OK(lmcs_live_erase(counting.pool, "run", "n", &err));
    }
    pthread_barrier_destroy(&counting.barrier);
    check_pool(counting.pool);
    close_pool(counting.pool);
}

static void first_bytes_of_another_size_are_refused(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static const char bytes[10];
    static const uint64_t shape[] = {10};
    struct lmcs_tensor tensor = {.name = "v", .dtype = LMC_U8, .ndim = 1, .shape = shape};
    struct lmcs_live_options options;
    struct lmcs_live *live;
    lmcs_live_options_init(&options);
    options.value = bytes;
    options.value_bytes = 10;
    FAILS(LMCS_INVALID, lmcs_live_create(pool, "run", &tensor, &options, &live, &err));
    options.form = LMCS_LIVE_VALUE;
    options.value_bytes = 9;
    FAILS(LMCS_INVALID, lmcs_live_create(pool, "run", &tensor, &options, &live, &err));
    options.value_bytes = 10;
    OK(lmcs_live_create(pool, "run", &tensor, &options, &live, &err));
    lmcs_live_close(live);
    close_pool(pool);
}

static void values_of_any_length(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static char text[LMCS_LIVE_MAX_VALUE], got[LMCS_LIVE_MAX_VALUE];
    struct rng rng = {5};
    struct lmcs_live *live = NULL;
    uint64_t length = 0;
    put_text(pool, "t", "");
    for (int i = 0; i < 300; i++) {
        if (live == NULL)
            OK(lmcs_live_open(pool, "run", "t", &live, &err));
        length = rng_below(&rng, i % 10 == 0 ? LMCS_LIVE_MAX_VALUE + 1 : 300);
        rng_fill(&rng, text, length);
        if (i % 3 == 0)
            OK(lmcs_live_set(live, text, length, &err));
        else
            OK(lmcs_live_put(pool, "run", "t", text, length, "str", 3, &err));
        uint64_t bytes;
        OK(lmcs_live_get(live, got, sizeof got, &bytes, &err));
        EXPECT(bytes == length && memcmp(got, text, length) == 0);
        struct lmcs_live_info info;
        OK(lmcs_live_info(live, &info, &err));
        EXPECT(info.version == (uint64_t)i + 2 && info.bytes == length && info.shape[0] == length &&
               info.note_bytes == 3 && memcmp(info.note, "str", 4) == 0);
        if (i % 50 == 49) {
            lmcs_live_close(live);
            live = NULL;
            pool = reopen(pool, place);
            OK(lmcs_live_open(pool, "run", "t", &live, &err));
            OK(lmcs_live_get(live, got, sizeof got, &bytes, &err));
            EXPECT(bytes == length && memcmp(got, text, length) == 0);
            check_pool(pool);
        }
    }
    lmcs_live_close(live);
    close_pool(pool);
}

static void put_replaces_anything(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *tensor = new_tensor(pool, "x", 5000);
    fill(tensor, 2);
    put_text(pool, "x", "a text now");
    expect_filled(tensor, 2);
    expect_text(pool, "x", "a text now");
    OK(lmcs_live_put(pool, "run", "x", "12", 2, "int", 3, &err));
    struct lmcs_live *live;
    struct lmcs_live_info info;
    OK(lmcs_live_open(pool, "run", "x", &live, &err));
    OK(lmcs_live_info(live, &info, &err));
    EXPECT(info.bytes == 2 && strcmp((char *)info.note, "int") == 0);
    OK(lmcs_live_set_note(live, "long note", 9, &err));
    OK(lmcs_live_info(live, &info, &err));
    EXPECT(strcmp((char *)info.note, "long note") == 0);
    expect_handle_text(live, "12");
    lmcs_live_close(live);
    lmcs_live_close(tensor);
    pool = reopen(pool, place);
    expect_text(pool, "x", "12");
    expect_names(pool, "x");
    check_pool(pool);
    close_pool(pool);
}

static void writes_go_where_they_should(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static unsigned char model[2][20000], data[LMCS_LIVE_MAX_VALUE], got[20000];
    struct lmcs_live *lives[2] = {new_tensor(pool, "w", 5000), new_value(pool, "v", LMC_U8, 20000)};
    struct rng rng = {8};
    for (int i = 0; i < 600; i++) {
        size_t which = rng_below(&rng, 2);
        static const uint64_t sizes[] = {1, 2, 4, 8, 16, 3, 100, 5000};
        uint64_t bytes = sizes[rng_below(&rng, 8)], offset = rng_below(&rng, 20000 - bytes + 1);
        if (rng_below(&rng, 2) == 0 && bytes <= 16)
            offset = offset / 16 * 16;
        rng_fill(&rng, data, bytes);
        OK(lmcs_live_write(lives[which], offset, data, bytes, &err));
        memcpy(model[which] + offset, data, bytes);
        OK(lmcs_live_read(lives[which], offset, got, bytes, &err));
        EXPECT(memcmp(got, data, bytes) == 0);
    }
    lmcs_live_close(lives[0]);
    lmcs_live_close(lives[1]);
    pool = reopen(pool, place);
    for (size_t i = 0; i < 2; i++) {
        uint64_t bytes;
        OK(lmcs_live_open(pool, "run", i == 0 ? "w" : "v", &lives[i], &err));
        OK(lmcs_live_get(lives[i], got, sizeof got, &bytes, &err));
        EXPECT(bytes == 20000 && memcmp(got, model[i], 20000) == 0);
        lmcs_live_close(lives[i]);
    }
    check_pool(pool);
    close_pool(pool);
}

static void integers(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *lives[2] = {new_tensor(pool, "w", 8), new_value(pool, "v", LMC_U8, 32)};
    for (size_t i = 0; i < 2; i++)
        for (uint64_t bytes = 1; bytes <= 16; bytes *= 2) {
            unsigned char one[16] = {1}, all[16], before[16], zero[16] = {0};
            bool swapped;
            memset(all, 255, sizeof all);
            OK(lmcs_live_write(lives[i], 16, all, bytes, &err));
            OK(lmcs_live_add(lives[i], 16, bytes, one, before, &err));
            EXPECT(memcmp(before, all, bytes) == 0);
            OK(lmcs_live_compare_and_swap(lives[i], 16, bytes, one, all, before, &swapped, &err));
            EXPECT(!swapped && memcmp(before, zero, bytes) == 0);
            OK(lmcs_live_compare_and_swap(lives[i], 16, bytes, zero, one, NULL, &swapped, &err));
            EXPECT(swapped);
            OK(lmcs_live_read(lives[i], 16, before, bytes, &err));
            EXPECT(memcmp(before, one, bytes) == 0);
        }
    lmcs_live_close(lives[0]);
    lmcs_live_close(lives[1]);
    check_pool(pool);
    close_pool(pool);
}

struct adder {
    struct lmcs_live *live;
    uint64_t bytes;
};

static void *add_many(void *argument)
{
    const struct adder *adder = argument;
    const unsigned char one[16] = {1};
    for (int i = 0; i < 1000; i++)
        OK(lmcs_live_add(adder->live, 0, adder->bytes, one, NULL, &err));
    return NULL;
}

static void adds_of_many_threads_all_count(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct adder adders[] = {{new_tensor(pool, "w", 4), 8}, {new_value(pool, "v", LMC_U8, 16), 16}, {NULL, 16}};
    adders[2].live = new_tensor(pool, "x", 4);
    for (size_t i = 0; i < 3; i++) {
        pthread_t threads[3];
        uint64_t sum;
        for (int k = 0; k < 3; k++)
            EXPECT(pthread_create(&threads[k], NULL, add_many, &adders[i]) == 0);
        for (int k = 0; k < 3; k++)
            pthread_join(threads[k], NULL);
        OK(lmcs_live_read(adders[i].live, 0, &sum, sizeof sum, &err));
        EXPECT(sum == 3000);
        lmcs_live_close(adders[i].live);
    }
    close_pool(pool);
}

struct user {
    struct lmcs_live *live;
    atomic_bool stops;
    long wrong;
};

/* Equal bytes except the first: a put or a write. */
static bool is_whole(const unsigned char *bytes, uint64_t count)
{
    return count > 2 && bytes[1] >= 'A' && bytes[1] <= 'Z' && memcmp(bytes + 1, bytes + 2, count - 2) == 0;
}

static void *get_all_the_time(void *argument)
{
    struct user *user = argument;
    static unsigned char got[LMCS_LIVE_MAX_VALUE];
    struct lmcs_error error;
    for (uint64_t bytes = 0; !user->stops;) {
        user->wrong += lmcs_live_get(user->live, got, sizeof got, &bytes, &error) != LMCS_OK || !is_whole(got, bytes);
        user->wrong += lmcs_live_data(user->live) != NULL;
    }
    return NULL;
}

static void *write_all_the_time(void *argument)
{
    struct user *user = argument;
    struct lmcs_error error;
    while (!user->stops)
        user->wrong += lmcs_live_write(user->live, 0, "!", 1, &error) != LMCS_OK;
    return NULL;
}

static void values_move_under_their_users(void **state)
{
    struct place *place = *state;
    static void *(*const uses[])(void *) = {get_all_the_time, write_all_the_time};
    static unsigned char text[2000], got[LMCS_LIVE_MAX_VALUE];
    enum { OTHERS = 20, TIMES = 300 };
    struct lmcs_pool *pool = open_quiet(place->pool);
    char name[16];
    memset(text, 'A', sizeof text);
    for (int i = 0; i < OTHERS; i++) {
        snprintf(name, sizeof name, "n%d", i);
        OK(lmcs_live_put(pool, "run", name, text, 1000, NULL, 0, &err));
    }
    for (int i = 0; i < OTHERS; i += 2) {
        snprintf(name, sizeof name, "n%d", i);
        OK(lmcs_live_erase(pool, "run", name, &err));
    }
    OK(lmcs_live_put(pool, "run", "v", text, 1000, NULL, 0, &err));
    for (size_t use = 0; use < 2; use++) {
        struct user user = {.stops = false};
        pthread_t thread;
        OK(lmcs_live_open(pool, "run", "v", &user.live, &err));
        EXPECT(pthread_create(&thread, NULL, uses[use], &user) == 0);
        for (int i = 0; i < TIMES; i++) {
            uint64_t bytes = 1000 + (uint64_t)(i % 3) * 500, count;
            memset(text, 'A' + i % 26, sizeof text);
            OK(lmcs_live_put(pool, "run", "v", text, bytes, i % 2 == 0 ? "a" : "b", 1, &err));
            OK(lmcs_live_get(user.live, got, sizeof got, &count, &err));
            EXPECT(count == bytes && memcmp(got + 1, text + 1, bytes - 1) == 0);
            if (i % 2 == 0)
                OK(lmcs_live_set(user.live, text, bytes, &err));
        }
        user.stops = true;
        pthread_join(thread, NULL);
        EXPECT(user.wrong == 0);
        lmcs_live_close(user.live);
    }
    pool = reopen(pool, place);
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
}

static void expect_part(struct lmcs_live *live, uint64_t offset, const char *part)
{
    char got[64];
    OK(lmcs_live_read(live, offset, got, strlen(part), &err));
    EXPECT(memcmp(got, part, strlen(part)) == 0);
}

static void move_values(struct lmcs_pool *pool, struct lmcs_live *seen, char text[static 6000], int i)
{
    char name[16];
    memset(text, 'a' + i % 26, 6000);
    text[i * 100] = '\0';
    put_text(pool, "t", text);
    for (int k = 0; k < 20; k++) {
        snprintf(name, sizeof name, "u%d.%d", i % 7, k);
        text[(i - 1) * 100] = '\0';
        put_text(pool, name, text);
        put_text(pool, name, text);
    }
    memset(text, 'a' + i % 26, (size_t)i * 100);
    expect_handle_text(seen, text);
}

static void values_move_under_a_reader(void **state)
{
    struct place *place = *state;
    static char text[6000], got[100];
    struct lmcs_pool *pool = open_quiet(place->pool), *reader;
    struct lmcs_live *seen, *number, *again;
    struct lmcs_live_info info;
    uint64_t bytes;
    put_text(pool, "t", "short");
    lmcs_live_close(new_value(pool, "n", LMC_I64, 1));
    close_pool(pool);
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_READ, NULL, &reader, &err));
    OK(lmcs_live_open(reader, "run", "t", &seen, &err));
    OK(lmcs_live_open(reader, "run", "n", &number, &err));
    pool = open_quiet(place->pool);
    for (int i = 1; i < 60; i++) {
        move_values(pool, seen, text, i);
        OK(lmcs_live_info(seen, &info, &err));
        EXPECT(info.bytes == (uint64_t)i * 100 && strcmp(info.name, "t") == 0 && !info.is_damaged);
    }
    FAILS(LMCS_INVALID, lmcs_live_get(seen, got, sizeof got, &bytes, &err));
    EXPECT(bytes == 5900);
    expect_part(seen, 5890, "hhhhhhhhhh");
    FAILS(LMCS_INVALID, lmcs_live_read(seen, 5890, got, 11, &err));
    OK(lmcs_live_rename(pool, "run", "t", "s", &err));
    put_text(pool, "s", "by another name");
    expect_handle_text(seen, "by another name");
    expect_part(seen, 3, "another");
    OK(lmcs_live_info(seen, &info, &err));
    EXPECT(strcmp(info.name, "s") == 0 && info.bytes == 15);
    OK(lmcs_live_open(reader, "run", "s", &again, &err));
    expect_handle_text(again, "by another name");
    OK(lmcs_live_erase(pool, "run", "s", &err));
    OK(lmcs_live_erase(pool, "run", "n", &err));
    put_text(pool, "s", "a new one");
    put_text(pool, "n", "no number");
    FAILS(LMCS_NOT_FOUND, lmcs_live_get(seen, got, sizeof got, &bytes, &err));
    EXPECT(strstr(err.message, "erased or replaced") != NULL);
    FAILS(LMCS_NOT_FOUND, lmcs_live_read(again, 0, got, 1, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_live_read(number, 0, got, 8, &err));
    OK(lmcs_live_info(seen, &info, &err));
    EXPECT(info.name[0] == '\0' && !info.is_damaged);
    lmcs_live_close(seen);
    lmcs_live_close(again);
    lmcs_live_close(number);
    expect_text(reader, "s", "a new one");
    close_pool(reader);
    verify_pool(pool);
    close_pool(pool);
}

static void *use_all(void *argument)
{
    struct user *user = argument;
    struct lmcs_error error;
    const uint32_t one = 1;
    float number;
    while (!atomic_load(&user->stops)) {
        OK(lmcs_live_read(user->live, 4, &number, sizeof number, &error));
        EXPECT(number == 2);
        OK(lmcs_live_persist(user->live, 0, 4096, &error));
        OK(lmcs_live_add(user->live, 64, 4, &one, NULL, &error));
        OK(lmcs_live_write(user->live, 128, &number, 4, &error));
    }
    return NULL;
}

static void growth_while_in_use(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (int k = 0; k < 20; k++) {
        char name[32];
        snprintf(name, sizeof name, "w%d", k);
        struct user user = {.live = new_tensor(pool, name, 1024)};
        pthread_t threads[2];
        fill(user.live, 1);
        const float *first = lmcs_live_data(user.live);
        for (int i = 0; i < 2; i++)
            EXPECT(pthread_create(&threads[i], NULL, use_all, &user) == 0);
        for (uint64_t floats = 2048; floats < 20000; floats += 1024)
            OK(lmcs_live_resize(user.live, 1, &floats, &err));
        atomic_store(&user.stops, true);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        EXPECT(first != lmcs_live_data(user.live) && first[1] == 2 && first[1023] == 1024);
        lmcs_live_close(user.live);
    }
    close_pool(pool);
}

static void flip(const char *path, uint64_t place)
{
    unsigned char byte = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0 && pread(fd, &byte, 1, (off_t)place) == 1);
    byte ^= 0x10;
    EXPECT(pwrite(fd, &byte, 1, (off_t)place) == 1);
    close(fd);
}

/* The text's place in a sparse file; 0: none. */
static uint64_t find_text(const char *path, const char *text, uint64_t from)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    static char block[1 << 20];
    size_t length = strlen(text);
    for (off_t data; (data = lseek(fd, (off_t)from, SEEK_DATA)) >= 0;) {
        ssize_t n = pread(fd, block, sizeof block, data);
        char *at = n > 0 ? memmem(block, (size_t)n, text, length) : NULL;
        if (at != NULL) {
            close(fd);
            return (uint64_t)data + (uint64_t)(at - block);
        }
        from = (uint64_t)data + (uint64_t)n - length;
    }
    close(fd);
    return 0;
}

static void keep_tensor(void *context, const struct lmcs_damage *damage)
{
    snprintf(context, 64, "%s/%s", damage->shelf, damage->tensor);
}

static void damage_is_named(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    put_text(pool, "healthy", "something else");
    put_text(pool, "secret", "an older text");
    put_text(pool, "secret", "needle in the haystack");
    close_pool(pool);
    uint64_t place_of_it = find_text(place->pool, "needle in", 0);
    EXPECT(place_of_it != 0);
    flip(place->pool, place_of_it + 3);
    pool = open_quiet(place->pool);
    expect_text(pool, "healthy", "something else");
    struct lmcs_live *live;
    FAILS(LMCS_DAMAGED, lmcs_live_open(pool, "run", "secret", &live, &err));
    EXPECT(strstr(err.message, "\"secret\"") != NULL);
    char named[64] = "";
    FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, keep_tensor, named, NULL, NULL, &err));
    EXPECT(strcmp(named, "run/secret") == 0);
    put_text(pool, "healthy", "still works");
    close_pool(pool);
    /* The cell's own identity. */
    flip(place->pool, place_of_it + 3);
    pool = open_quiet(place->pool);
    verify_pool(pool);
    struct lmcs_live_info info;
    OK(lmcs_live_open(pool, "run", "secret", &live, &err));
    OK(lmcs_live_info(live, &info, &err));
    lmcs_live_close(live);
    close_pool(pool);
}

/* ---- Advice --------------------------------------------------------------------------------------------------- */

/* Bytes from `at` on whose mappings have this flag ("rr", "sr"); without `at`, of all of the process. */
static uint64_t advised_bytes(const void *at, uint64_t bytes, const char *flag)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    EXPECT(maps != NULL);
    unsigned long from = 0, end = 0, first = (unsigned long)at, last = at == NULL ? ULONG_MAX : first + bytes, low,
                  high;
    uint64_t sum = 0;
    char line[4096], word[8];
    snprintf(word, sizeof word, " %s ", flag);
    while (fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%lx-%lx ", &low, &high) == 2) {
            from = low > first ? low : first;
            end = high < last ? high : last;
        }
        if (strncmp(line, "VmFlags:", 8) == 0 && from < end && strstr(line, word) != NULL)
            sum += end - from;
    }
    fclose(maps);
    return sum;
}

static void expect_advice(struct lmcs_live *live, const char *flag)
{
    const uint64_t bytes = (float_count(live) * sizeof(float) + 4095) / 4096 * 4096;
    EXPECT(advised_bytes(lmcs_live_data(live), bytes, "rr") == (strcmp(flag, "rr") == 0 ? bytes : 0));
    EXPECT(advised_bytes(lmcs_live_data(live), bytes, "sr") == (strcmp(flag, "sr") == 0 ? bytes : 0));
}

static void advice_is_of_one_tensor(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *before = new_tensor(pool, "a", 1500), *live = new_tensor(pool, "b", 5000), *again;
    struct lmcs_live *after = new_tensor(pool, "c", 1500), *value;
    struct lmcs_live_info info;
    const uint64_t others = advised_bytes(NULL, 0, "rr");
    OK(lmcs_live_info(live, &info, &err));
    OK(lmcs_live_advise(live, LMCS_ACCESS_RANDOM, &err));
    expect_advice(live, "rr");
    expect_advice(before, "");
    expect_advice(after, "");
    EXPECT(advised_bytes(NULL, 0, "rr") - others == (info.reserved_bytes + 4095) / 4096 * 4096);
    OK(lmcs_live_open(pool, "run", "b", &again, &err));
    expect_advice(again, "rr");
    OK(lmcs_live_advise(again, LMCS_ACCESS_SEQUENTIAL, &err));
    expect_advice(live, "sr");
    put_text(pool, "value", "text");
    OK(lmcs_live_open(pool, "run", "value", &value, &err));
    FAILS(LMCS_INVALID, lmcs_live_advise(value, LMCS_ACCESS_RANDOM, &err));
    FAILS(LMCS_INVALID, lmcs_live_advise(live, (enum lmcs_live_access)3, &err));
    expect_advice(live, "sr");
    OK(lmcs_live_advise(live, LMCS_ACCESS_NORMAL, &err));
    expect_advice(live, "");
    OK(lmcs_live_advise(live, LMCS_ACCESS_RANDOM, &err));
    lmcs_live_close(value);
    lmcs_live_close(live);
    lmcs_live_close(again);
    EXPECT(advised_bytes(NULL, 0, "rr") == others);
    OK(lmcs_live_open(pool, "run", "b", &live, &err));
    expect_advice(live, "");
    lmcs_live_close(before);
    lmcs_live_close(live);
    lmcs_live_close(after);
    close_pool(pool);
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_READ, NULL, &pool, &err));
    OK(lmcs_live_open(pool, "run", "b", &live, &err));
    OK(lmcs_live_advise(live, LMCS_ACCESS_RANDOM, &err));
    expect_advice(live, "rr");
    lmcs_live_close(live);
    close_pool(pool);
}

static void advice_stays(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 0), *other;
    struct lmcs_transaction *transaction;
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    static const uint64_t sizes[] = {3000, 5000, 20000, 4000000, 1000, 70000};
    OK(lmcs_live_advise(live, LMCS_ACCESS_RANDOM, &err));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) { /* in place, to other addresses, in several parts */
        OK(lmcs_live_resize(live, 1, &sizes[i], &err));
        expect_advice(live, "rr");
        other = new_tensor(pool, names[i], 9);
        expect_advice(other, "");
        lmcs_live_close(other);
    }
    fill(live, 1);
    OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    for (int commits = 0; commits < 2; commits++) {
        OK(lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &transaction, &err));
        expect_advice(live, "rr");
        ((float *)lmcs_live_data(live))[2000] = 7;
        if (commits != 0)
            OK(lmcs_transaction_commit(transaction, &err));
        else
            lmcs_transaction_abort(transaction);
        expect_advice(live, "rr");
    }
    OK(lmcs_live_checkout(pool, "run", "latest", &err));
    expect_advice(live, "rr");
    expect_filled(live, 1);
    lmcs_live_close(live);
    check_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(one_of_many_threads_creates),
        ON_BOTH(first_bytes_of_another_size_are_refused),
        ON_BOTH(values_of_any_length),
        ON_BOTH(put_replaces_anything),
        ON_BOTH(writes_go_where_they_should),
        ON_BOTH(integers),
        ON_MEMORY_ONLY(adds_of_many_threads_all_count),
        ON_MEMORY_ONLY(values_move_under_their_users),
        ON_BOTH(values_move_under_a_reader),
        ON_BOTH(growth_while_in_use),
        ON_BOTH(damage_is_named),
        ON_BOTH(advice_is_of_one_tensor),
        ON_BOTH(advice_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
