/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_guard.c - unreadable bytes of the medium are errors, not SIGBUS, in all reads by the store.
 *
 * An empty file mapped in place of a page raises a true SIGBUS. (guest/guest_medium.c tests failed memory and devdax.)
 */
/* ctest: labels=no-tsan */
#include "test_links_support.h"

#include <fenv.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/guard.h"
#include "live/map.h"
#include "media/layout.h"
#include "payload/encode.h"
#include "records/content.h"

/* cmocka installs a SIGBUS handler for each test after ours: each needs its own process. */
#define IN_CHILD(test)                                  \
    static void test(void **state)                      \
    {                                                   \
        expect_child(start_child(test##_here, *state)); \
    }

static void break_page(const void *at)
{
    void *page = (void *)((uintptr_t)at & ~(uintptr_t)(LMCS_PAGE_BYTES - 1));
    int fd = memfd_create("empty", MFD_CLOEXEC);
    EXPECT(fd >= 0 && mmap(page, LMCS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == page);
    close(fd);
}

static char *two_pages(void)
{
    char *pages = mmap(NULL, 2 * LMCS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(pages != MAP_FAILED);
    memset(pages, 7, 2 * LMCS_PAGE_BYTES);
    return pages;
}

static int whole_bytes_are_copied_and_broken_ones_are_told_here(void *argument)
{
    char *pages = two_pages(), *to = malloc(2 * LMCS_PAGE_BYTES);
    (void)argument;
    EXPECT(lmcs_guard_copy(to, pages, 2 * LMCS_PAGE_BYTES) && memcmp(to, pages, 2 * LMCS_PAGE_BYTES) == 0);
    break_page(pages + LMCS_PAGE_BYTES);
    EXPECT(lmcs_guard_copy(to, pages, LMCS_PAGE_BYTES));
    for (int again = 0; again < 3; again++)
        EXPECT(!lmcs_guard_copy(to, pages, LMCS_PAGE_BYTES + 1));
    free(to);
    munmap(pages, 2 * LMCS_PAGE_BYTES);
    return 0;
}
IN_CHILD(whole_bytes_are_copied_and_broken_ones_are_told)

struct nested {
    char *pages, *to;
    bool inner;
};

static void copy_within(void *context)
{
    struct nested *nested = context;
    nested->inner = lmcs_guard_copy(nested->to, nested->pages + LMCS_PAGE_BYTES, 1);
    nested->to[0] = nested->pages[0];
}

static int inner_guard_gives_way_to_the_outer_here(void *argument)
{
    struct nested nested = {two_pages(), malloc(16), true};
    struct lmcs_guarded all = {nested.pages, 2 * LMCS_PAGE_BYTES};
    (void)argument;
    break_page(nested.pages);
    break_page(nested.pages + LMCS_PAGE_BYTES);
    EXPECT(!lmcs_guard(&all, 1, copy_within, &nested));
    EXPECT(!nested.inner);
    free(nested.to);
    munmap(nested.pages, 2 * LMCS_PAGE_BYTES);
    return 0;
}
IN_CHILD(inner_guard_gives_way_to_the_outer)

/* A fault has no effect on the caller's arithmetic: signals begin with the default one. */
static int arithmetic_stays_here(void *argument)
{
    char *pages = two_pages(), byte;
    (void)argument;
    break_page(pages);
    fesetround(FE_UPWARD);
    EXPECT(!lmcs_guard_copy(&byte, pages, 1));
    EXPECT(fegetround() == FE_UPWARD);
    munmap(pages, 2 * LMCS_PAGE_BYTES);
    return 0;
}
IN_CHILD(arithmetic_stays)

static void *copy_broken(void *pages)
{
    char byte;
    return lmcs_guard_copy(&byte, pages, 1) ? NULL : pages;
}

static int threads_of_the_store_are_guarded_too_here(void *argument)
{
    pthread_t thread;
    sigset_t blocked, before;
    void *told = NULL;
    char *pages = two_pages();
    (void)argument;
    break_page(pages);
    lmcs_guard_signals(&blocked);
    EXPECT(sigismember(&blocked, SIGINT) == 1 && sigismember(&blocked, SIGBUS) == 0);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    EXPECT(pthread_create(&thread, NULL, copy_broken, pages) == 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_join(thread, &told);
    EXPECT(told == pages);
    munmap(pages, 2 * LMCS_PAGE_BYTES);
    return 0;
}
IN_CHILD(threads_of_the_store_are_guarded_too)

static void touch(void *byte)
{
    *(volatile char *)byte;
}

/* A foreign SIGBUS ends the process, with or without a guard. */
static int touch_other_bytes(void *inside)
{
    char *pages = two_pages(), byte;
    struct lmcs_guarded first = {pages, LMCS_PAGE_BYTES};
    signal(SIGBUS, SIG_DFL);
    break_page(pages);
    EXPECT(!lmcs_guard_copy(&byte, pages, 1));
    break_page(pages + LMCS_PAGE_BYTES);
    if (*(bool *)inside)
        (void)lmcs_guard(&first, 1, touch, pages + LMCS_PAGE_BYTES);
    else
        touch(pages + LMCS_PAGE_BYTES);
    return 1;
}

static void others_keep_their_signal(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool inside = i == 1;
        int status = run_child(touch_other_bytes, &inside, 20);
        EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    }
}

static void say_so(int number)
{
    (void)number;
    _exit(42);
}

/* The handler is installed once a process, over the present one. */
static int handler_from_before(void *argument)
{
    char *pages = two_pages(), byte;
    (void)argument;
    signal(SIGBUS, say_so);
    break_page(pages);
    if (lmcs_guard_copy(&byte, pages, 1))
        return 1;
    return ((volatile char *)pages)[0];
}

static void handler_of_the_application_is_asked(void **state)
{
    (void)state;
    int status = run_child(handler_from_before, NULL, 20);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

static struct sigaction forwarded_to;

static void forward(int number, siginfo_t *info, void *context)
{
    forwarded_to.sa_sigaction(number, info, context);
}

/* Without SA_NODEFER the kernel blocks SIGBUS in the handler, which a jump leaves. */
static int handler_that_forwards_here(void *argument)
{
    char *pages = two_pages(), byte;
    struct sigaction action = {.sa_sigaction = forward, .sa_flags = SA_SIGINFO};
    sigset_t blocked;
    (void)argument;
    EXPECT(lmcs_guard_copy(&byte, pages, 1));
    sigfillset(&action.sa_mask);
    sigaction(SIGBUS, &action, &forwarded_to);
    break_page(pages);
    for (int i = 0; i < 3; i++)
        EXPECT(!lmcs_guard_copy(&byte, pages, 1));
    EXPECT(pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0 && sigismember(&blocked, SIGTERM) == 0);
    return 0;
}
IN_CHILD(handler_that_forwards)

static void break_stored(struct lmcs_pool *pool, uint64_t number, const char *tensor, uint32_t payload, uint64_t at)
{
    struct lmcs_txn txn;
    struct lmcs_content content;
    uint64_t id = content_of(pool, "run", number, tensor);
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_content_get(&txn, id, &content, &err));
    if (payload == LMCS_PAYLOAD_LINK)
        OK(lmcs_content_get(&txn, content.link, &content, &err));
    lmcs_txn_end(&txn);
    EXPECT(content.df.payload == payload);
    break_page(lmcs_media_at(pool->media, content.parts[0].offset + at, 1));
}

static void break_tensor(struct lmcs_pool *pool, uint64_t number, const char *tensor)
{
    break_stored(pool, number, tensor, LMCS_PAYLOAD_RAW, 0);
}

static int snapshot_writes_anew_what_cannot_be_compared_here(void *argument)
{
    const struct place *place = argument;
    struct rng rng = {1};
    struct state *weights = state_weights(&rng, 4, 500000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    break_tensor(pool, 1, "t2");
    uint64_t number = take_snapshot(pool, "run", weights, 2);
    EXPECT(content_of(pool, "run", 1, "t1") == content_of(pool, "run", number, "t1"));
    EXPECT(content_of(pool, "run", 1, "t2") != content_of(pool, "run", number, "t2"));
    expect_snapshot(pool, "run", number, weights);
    close_pool(pool);
    state_free(weights);
    return 0;
}
IN_CHILD(snapshot_writes_anew_what_cannot_be_compared)

static int compactor_leaves_what_it_cannot_read_here(void *argument)
{
    const struct place *place = argument;
    struct rng rng = {2};
    struct state *first = state_weights(&rng, 4, 300000), *second = state_copy(first);
    struct lmcs_pool *pool = open_quiet(place->pool);
    state_step(second, &rng, 0, 4);
    OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
    take_snapshot(pool, "run", first, 1);
    break_tensor(pool, 1, "t2");
    take_snapshot(pool, "run", second, 2);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_snapshot_storage storage = storage_of(pool, "run", 1);
    EXPECT(storage.raw_contents == 1 && storage.delta_contents == 3);
    expect_snapshot(pool, "run", 1, first);
    expect_snapshot(pool, "run", 2, second);
    close_pool(pool);
    state_free(first);
    state_free(second);
    return 0;
}
IN_CHILD(compactor_leaves_what_it_cannot_read)

static int capture_codes_nothing_on_what_it_cannot_read_here(void *argument)
{
    const struct place *place = argument;
    struct rng rng = {4};
    struct state *first = state_weights(&rng, 4, 300000), *second = state_copy(first);
    struct lmcs_pool *pool = open_quiet(place->pool);
    state_step(second, &rng, 0, 4);
    set_policy(pool, "run", "write=link");
    take_snapshot(pool, "run", first, 1);
    break_tensor(pool, 1, "t2");
    take_snapshot(pool, "run", second, 2);
    struct lmcs_snapshot_storage storage = storage_of(pool, "run", 2);
    EXPECT(storage.raw_contents == 1 && storage.delta_contents == 3);
    EXPECT(record_of(pool, "run", 2, "t2").df.payload == LMCS_PAYLOAD_RAW);
    expect_snapshot(pool, "run", 2, second);
    close_pool(pool);
    state_free(first);
    state_free(second);
    return 0;
}
IN_CHILD(capture_codes_nothing_on_what_it_cannot_read)

/* A parameter with an unreadable array gets no link; the others do, if relations name them. */
static int links_leave_what_they_cannot_read_here(void *argument)
{
    const struct place *place = argument;
    const size_t sizes[PARAMETERS] = {30000, 5000, 40000};
    for (int told = 0; told < 2; told++) {
        struct run run;
        char path[512];
        place_path(place, told ? "told" : "found", path);
        struct lmcs_pool *pool = open_quiet(path);
        run_begin(&run, adamw_hints(), ANY, sizes);
        set_policy(pool, "run", "keep_raw=2");
        for (int i = 0; i < 3; i++) {
            run_step(&run);
            run_snapshot(&run, pool, "run", told, 0);
        }
        break_tensor(pool, 2, "p0.exp_avg");
        OK(lmcs_compact(pool, NULL, &err));
        struct lmcs_content whole = record_of(pool, "run", 2, "p2.weight"),
                            broken = record_of(pool, "run", 2, "p0.weight");
        EXPECT((whole.link != 0) == (told == 1) && broken.link == 0);
        check_pool(pool);
        EXPECT(storage_of(pool, "run", 1).raw_contents == (told ? 4 : 2));
        expect_run(&run, pool, "run");
        close_pool(pool);
        run_end(&run);
    }
    return 0;
}
IN_CHILD(links_leave_what_they_cannot_read)

static int delta_is_read_from_the_file_then_here(void *argument)
{
    const struct place *place = argument;
    struct rng rng = {3};
    struct state *first = state_weights(&rng, 3, 400000), *second = state_copy(first);
    struct lmcs_pool *pool = open_quiet(place->pool);
    state_step(second, &rng, 0, 3);
    OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
    take_snapshot(pool, "run", first, 1);
    take_snapshot(pool, "run", second, 2);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(lmcs_guard_holds());
    break_stored(pool, 1, "t0", LMCS_PAYLOAD_FRAME, 65536);
    break_stored(pool, 2, "t1", LMCS_PAYLOAD_RAW, 65536);
    expect_snapshot(pool, "run", 1, first);
    verify_pool(pool);
    /* Under a foreign handler the store touches no page that may fail. */
    signal(SIGBUS, SIG_DFL);
    EXPECT(!lmcs_guard_holds());
    expect_snapshot(pool, "run", 1, first);
    close_pool(pool);
    state_free(first);
    state_free(second);
    return 0;
}
IN_CHILD(delta_is_read_from_the_file_then)

/* A line with two broken links is read from the file; the caller's floating-point environment stays. */
static int line_is_read_from_the_file_then_here(void *argument)
{
    const struct place *place = argument;
    const size_t sizes[PARAMETERS] = {400000, 5000, 300};
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), ANY, sizes);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 2);
    OK(lmcs_compact(pool, NULL, &err));
    run_on(&run, pool, "run", 4);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(lmcs_guard_holds());
    break_stored(pool, 3, "p0.weight", LMCS_PAYLOAD_LINK, 65536);
    break_stored(pool, 5, "p0.exp_avg", LMCS_PAYLOAD_LINK, 65536);
    fesetround(FE_UPWARD);
    expect_run(&run, pool, "run");
    EXPECT(fegetround() == FE_UPWARD);
    fesetround(FE_TONEAREST);
    verify_pool(pool);
    signal(SIGBUS, SIG_DFL);
    expect_run(&run, pool, "run");
    close_pool(pool);
    run_end(&run);
    return 0;
}
IN_CHILD(line_is_read_from_the_file_then)

static struct lmcs_live *broken_live(struct lmcs_pool *pool, const char *name, bool in_pool)
{
    const uint64_t floats = 4000;
    struct lmcs_tensor tensor = {.name = name, .dtype = LMC_F32, .ndim = 1, .shape = &floats};
    struct lmcs_live *live = NULL;
    OK(lmcs_live_create(pool, "run", &tensor, NULL, &live, &err));
    OK(lmcs_live_write(live, LMCS_PAGE_BYTES, &(float){5}, sizeof(float), &err));
    OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    uint64_t bytes = 1, place = lmcs_live_place(live->body->record, LMCS_PAGE_BYTES, &bytes);
    break_page(in_pool ? (const char *)lmcs_media_at(pool->media, place, 1)
                       : (char *)lmcs_live_data(live) + LMCS_PAGE_BYTES);
    return live;
}

static int transactions_tell_what_fails_here(void *argument)
{
    const struct place *place = argument;
    const unsigned char bytes[3 * LMCS_PAGE_BYTES] = {1};
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (int declared = 0; declared < 2; declared++) {
        char name[] = {(char)('a' + declared), '\0'};
        struct lmcs_transaction_options options;
        struct lmcs_transaction *transaction;
        struct lmcs_live *live = broken_live(pool, name, false);
        lmcs_transaction_options_init(&options);
        options.flags = LMCS_TRANSACTION_DECLARED;
        if (declared) {
            OK(lmcs_transaction_begin(pool, "run", NULL, 0, &options, &transaction, &err));
            FAILS(LMCS_DAMAGED, lmcs_transaction_declare(transaction, live, 0, 8192, &err));
        } else {
            OK(lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &transaction, &err));
            break_page((char *)lmcs_live_data(live) + LMCS_PAGE_BYTES);
            FAILS(LMCS_IO, lmcs_live_write(live, 0, bytes, 8192, &err));
            EXPECT(*(const unsigned char *)lmcs_live_data(live) == 0);
        }
        EXPECT(strstr(err.message, name) != NULL);
        lmcs_transaction_abort(transaction);
        lmcs_live_close(live);
    }
    close_pool(pool);
    return 0;
}
IN_CHILD(transactions_tell_what_fails)

static int growth_tells_what_fails_here(void *argument)
{
    const struct place *place = argument;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = broken_live(pool, "a", false);
    break_page((char *)lmcs_live_data(live) + 3 * LMCS_PAGE_BYTES);
    FAILS(LMCS_IO, lmcs_live_resize(live, 1, &(uint64_t){4096}, &err));
    OK(lmcs_live_resize(live, 1, &(uint64_t){8192}, &err));
    lmcs_live_close(live);
    close_pool(pool);
    return 0;
}
IN_CHILD(growth_tells_what_fails)

static int checkout_writes_anew_what_fails_here(void *argument)
{
    const struct place *place = argument;
    float number = 0;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = broken_live(pool, "a", true);
    OK(lmcs_live_checkout(pool, "run", "1", &err));
    OK(lmcs_live_read(live, LMCS_PAGE_BYTES, &number, sizeof number, &err));
    EXPECT(number == 5);
    OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    lmcs_live_close(live);
    close_pool(pool);
    return 0;
}
IN_CHILD(checkout_writes_anew_what_fails)

static int snapshot_tells_of_a_live_tensor_that_fails_here(void *argument)
{
    const struct place *place = argument;
    for (int changed = 0; changed < 2; changed++) {
        char path[512];
        place_path(place, changed ? "changed" : "unchanged", path);
        struct lmcs_pool *pool = open_quiet(path);
        struct lmcs_live *live = broken_live(pool, "weights", true);
        if (changed)
            OK(lmcs_live_write(live, 0, &(float){6}, sizeof(float), &err));
        FAILS(LMCS_IO, lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
        EXPECT(strstr(err.message, "\"weights\"") != NULL);
        check_pool(pool);
        lmcs_live_close(live);
        OK(lmcs_live_erase(pool, "run", "weights", &err));
        OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
        close_pool(pool);
    }
    return 0;
}
IN_CHILD(snapshot_tells_of_a_live_tensor_that_fails)

struct failing {
    uint64_t shape[2];
    int64_t strides[2];
    bool is_strided;
};

static void put_failing(struct lmcs_pool *pool, const struct failing *failing)
{
    struct lmcs_tensor tensors[] = {
        {.name = "whole", .dtype = LMC_U8, .ndim = 1, .shape = &(uint64_t){100}},
        {.name = "failing", .dtype = LMC_U8, .ndim = 2, .shape = failing->shape},
    };
    uint64_t count = failing->shape[0] * failing->shape[1], number = 0;
    const size_t bytes = 2 * (size_t)count + 2 * LMCS_PAGE_BYTES;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    struct rng rng = {5};
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (char)rng_below(&rng, 8);
    const char *data = memory;
    if (failing->is_strided) {
        tensors[1].strides = failing->strides;
        data += failing->strides[0] < 0 ? (failing->shape[0] - 1) * (uint64_t)-failing->strides[0] : 0;
        data += failing->strides[1] < 0 ? (failing->shape[1] - 1) * (uint64_t)-failing->strides[1] : 0;
    }
    for (int round = 0; round < 2; round++) {
        struct lmcs_capture *capture;
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        if (round == 0) {
            OK(lmcs_capture_put(capture, tensors, (const void *[]){memory, data}, 2, &err));
            OK(lmcs_capture_commit(capture, NULL, &number, &err));
            break_page(memory + (failing->is_strided ? 2 * count - 1 : count - 1));
        } else {
            FAILS(LMCS_IO, lmcs_capture_put(capture, tensors, (const void *[]){memory, data}, 2, &err));
            EXPECT(strstr(err.message, "\"failing\"") != NULL);
            FAILS(LMCS_INVALID, lmcs_capture_commit(capture, NULL, &number, &err));
        }
    }
    struct lmcs_shelf_info info;
    OK(lmcs_shelf_info(pool, "run", &info, &err));
    EXPECT(info.latest == number);
    check_pool(pool);
    munmap(memory, bytes);
}

static int put_tells_of_memory_that_fails_here(void *argument)
{
    const struct place *place = argument;
    const struct failing failing[] = {
        {.shape = {5, 1000}},
        {.shape = {3, LMC_BLOCK_BYTES}},
        {.shape = {5, 1000}, .strides = {2000, 2}, .is_strided = true},
        {.shape = {5, 1000}, .strides = {-2000, 2}, .is_strided = true},
        {.shape = {3, LMC_BLOCK_BYTES}, .strides = {2 * LMC_BLOCK_BYTES, -2}, .is_strided = true},
    };
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (int coded = 0; coded < 2; coded++) {
        set_policy(pool, "run", coded ? "write=link" : "write=raw");
        for (size_t i = 0; i < sizeof failing / sizeof *failing; i++)
            put_failing(pool, &failing[i]);
    }
    close_pool(pool);
    return 0;
}
IN_CHILD(put_tells_of_memory_that_fails)

static int commit_tells_of_reserved_memory_that_fails_here(void *argument)
{
    const struct place *place = argument;
    const uint64_t shape[] = {3 * LMC_BLOCK_BYTES};
    const struct lmcs_tensor tensor = {.name = "reserved", .dtype = LMC_U8, .ndim = 1, .shape = shape};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *capture;
    void *data;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    OK(lmcs_capture_reserve(capture, &tensor, &data, &err));
    memset(data, 1, shape[0]);
    break_page((char *)data + shape[0] - 1);
    FAILS(LMCS_IO, lmcs_capture_commit(capture, NULL, NULL, &err));
    EXPECT(strstr(err.message, "\"reserved\"") != NULL);
    check_pool(pool);
    close_pool(pool);
    return 0;
}
IN_CHILD(commit_tells_of_reserved_memory_that_fails)

/* A large payload's room is taken before it is encoded. */
static int room_is_given_back_here(void *argument)
{
    const struct place *place = argument;
    const uint64_t bytes = (uint64_t)65 << 20, shape[] = {bytes};
    struct lmcs_region region;
    struct lmcs_pool *pool = open_quiet(place->pool);
    uint64_t at;
    char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(data != MAP_FAILED);
    lmcs_region_init(&region, pool, 1);
    struct lmcs_encoding encoding = {.pool = pool,
                                     .region = &region,
                                     .tensor = {.name = "t", .dtype = LMC_U8, .ndim = 1, .shape = shape},
                                     .raw_bytes = bytes,
                                     .data = data};
    encoding.made.df.raw_bytes = bytes;
    break_page(data + ((uint64_t)40 << 20));
    EXPECT(lmcs_encoding_run(&encoding, &err) == LMCS_DAMAGED);
    EXPECT(encoding.made.df.part_count == 0);
    OK(lmcs_region_take(&region, LMCS_ALIGNED_BYTES, &at, &err));
    EXPECT(at == encoding.made.parts[0].offset);
    lmcs_region_end(&region);
    close_pool(pool);
    munmap(data, bytes);
    return 0;
}
IN_CHILD(room_is_given_back)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(handler_of_the_application_is_asked, set_up_on_disk, tear_down),
        cmocka_unit_test_setup_teardown(handler_that_forwards, set_up_on_disk, tear_down),
        cmocka_unit_test_setup_teardown(whole_bytes_are_copied_and_broken_ones_are_told, set_up_on_disk, tear_down),
        cmocka_unit_test_setup_teardown(inner_guard_gives_way_to_the_outer, set_up_on_disk, tear_down),
        cmocka_unit_test_setup_teardown(arithmetic_stays, set_up_on_disk, tear_down),
        cmocka_unit_test_setup_teardown(threads_of_the_store_are_guarded_too, set_up_on_disk, tear_down),
        cmocka_unit_test_setup_teardown(others_keep_their_signal, set_up_on_disk, tear_down),
        ON_BOTH(snapshot_writes_anew_what_cannot_be_compared),
        ON_DISK(compactor_leaves_what_it_cannot_read),
        ON_DISK(capture_codes_nothing_on_what_it_cannot_read),
        ON_DISK(transactions_tell_what_fails),
        ON_DISK(growth_tells_what_fails),
        ON_DISK(checkout_writes_anew_what_fails),
        ON_BOTH(snapshot_tells_of_a_live_tensor_that_fails),
        ON_BOTH(put_tells_of_memory_that_fails),
        ON_BOTH(commit_tells_of_reserved_memory_that_fails),
        ON_DISK(links_leave_what_they_cannot_read),
        ON_DISK(delta_is_read_from_the_file_then),
        ON_DISK(line_is_read_from_the_file_then),
        ON_DISK(room_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
