/* SPDX-License-Identifier: BSD-3-Clause */
/* test_children_live.c - forked children and live variables of their parent. */
/* ctest: timeout=600 labels=no-tsan */
#include "test_children_support.h"

#define UNREADABLE 42

static void see_live(struct sight *sight, int i, struct lmcs_live *live, float first)
{
    fill(live, first);
    sight->lives[i] = lmcs_live_data(live);
    sight->floats[i] = float_count(live);
    sight->firsts[i] = first;
}

/* Each change that takes pages: erase, replace, checkout, abort. */
static void live_variables(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct sight sight = {.shown = NULL};
    struct child child;
    churn_live(pool);
    uint64_t empty = used_when_compacted(pool), number;
    struct lmcs_live *erased = new_tensor(pool, "erased", 60000), *small = new_tensor(pool, "small", 1000);
    struct lmcs_live *checked_out = new_tensor(pool, "checked out", 40000), *unnamed = new_unnamed(pool, 100000);
    fill(checked_out, 5);
    OK(lmcs_live_snapshot(pool, "run", NULL, &number, &err));
    see_live(&sight, 0, erased, 1000);
    see_live(&sight, 1, small, 2000);
    see_live(&sight, 2, checked_out, 3000);
    see_live(&sight, 3, unnamed, 4000);
    start_looking(&child, &sight);
    lmcs_live_close(unnamed);
    lmcs_live_close(small);
    lmcs_live_close(erased);
    struct lmcs_live *other = new_unnamed(pool, 1000);
    fill(other, -1);
    OK(lmcs_live_replace(other, "small", &err));
    lmcs_live_close(other);
    OK(lmcs_live_erase(pool, "run", "erased", &err));
    churn_live(pool);
    OK(lmcs_live_checkout(pool, "run", "1", &err));
    EXPECT(lmcs_live_data(checked_out) == (const void *)sight.lives[2]);
    expect_filled(checked_out, 5);
    churn_live(pool);
    expect_right(&child);
    lmcs_live_close(checked_out);
    OK(lmcs_live_erase(pool, "run", "checked out", &err));
    OK(lmcs_live_erase(pool, "run", "erased", &err));
    OK(lmcs_live_erase(pool, "run", "small", &err));
    OK(lmcs_snapshot_remove(pool, "run", number, false, NULL, &err));
    churn_live(pool);
    expect_right(&child);
    assert_true(used_when_compacted(pool) >= empty + MIB / 2);
    /* The next writer does not know the child, but respects its locks. */
    close_pool(pool);
    pool = open_quiet(place->pool);
    churn_live(pool);
    expect_right(&child);
    end_child(&child);
    churn_live(pool);
    assert_true(used_when_compacted(pool) <= empty + MIB / 2);
    verify_pool(pool);
    close_pool(pool);
}

static void live_variables_after_the_fork(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct sight sight = {.shown = NULL};
    struct child child;
    struct lmcs_live *live = new_tensor(pool, "w", 200000);
    see_live(&sight, 0, live, 1);
    start_looking(&child, &sight);
    lmcs_live_close(live);
    OK(lmcs_live_erase(pool, "run", "w", &err));
    churn_live(pool);
    uint64_t before = used_when_compacted(pool);
    for (int i = 0; i < 10; i++) {
        churn_live(pool);
        live = new_tensor(pool, "w", 200000);
        fill(live, -1);
        lmcs_live_close(live);
        OK(lmcs_live_erase(pool, "run", "w", &err));
        assert_true(used_when_compacted(pool) <= before);
    }
    expect_right(&child);
    end_child(&child);
    churn_live(pool);
    assert_true(used_when_compacted(pool) + MIB / 2 <= before);
    close_pool(pool);
}

static uint64_t questions;

#pragma GCC visibility push(default)

int fcntl(int fd, int command, ...)
{
    static int (*real)(int fd, int command, ...);
    va_list arguments;
    if (real == NULL)
        real = (int (*)(int fd, int command, ...))dlsym(RTLD_NEXT, "fcntl");
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    questions += command == F_OFD_GETLK;
    return real(fd, command, argument);
}

#pragma GCC visibility pop

/* Erasing or making a variable does not query the locks of all of a child's variables. */
static void many_live_variables(void **state)
{
    enum { COUNT = 600, MOST = 100 };
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct sight sight = {.shown = NULL};
    struct child child;
    struct lmcs_live *lives[COUNT];
    char name[16];
    churn_live(pool);
    uint64_t empty = used_when_compacted(pool);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "w%d", i);
        lives[i] = new_tensor(pool, name, 3000);
    }
    see_live(&sight, 0, lives[COUNT / 2], 1);
    start_looking(&child, &sight);
    questions = 0;
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "w%d", i);
        lmcs_live_close(lives[i]);
        OK(lmcs_live_erase(pool, "run", name, &err));
    }
    EXPECT(questions > 0 && questions < COUNT * MOST);
    questions = 0;
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "v%d", i);
        struct lmcs_live *live = new_tensor(pool, name, 3000);
        fill(live, -1);
        lmcs_live_close(live);
    }
    EXPECT(questions > 0 && questions < COUNT * MOST);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "v%d", i);
        OK(lmcs_live_erase(pool, "run", name, &err));
    }
    expect_right(&child);
    assert_true(used_when_compacted(pool) >= empty + COUNT * 3000 * sizeof(float));
    end_child(&child);
    churn_live(pool);
    assert_true(used_when_compacted(pool) <= empty + MIB / 2);
    verify_pool(pool);
    close_pool(pool);
}

static struct lmcs_live *tensor_of(struct lmcs_pool *pool, const char *name, uint64_t bytes, uint64_t reserved)
{
    struct lmcs_tensor tensor = {.name = name, .dtype = LMC_U8, .ndim = 1, .shape = &bytes};
    struct lmcs_live_options options;
    struct lmcs_live *live;
    lmcs_live_options_init(&options);
    options.reserve_bytes = reserved;
    OK(lmcs_live_create(pool, "run", &tensor, &options, &live, &err));
    return live;
}

static void make_some(struct lmcs_pool *pool, struct lmcs_live **lives, int count, uint64_t bytes)
{
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        lives[i] = tensor_of(pool, name, bytes, bytes);
    }
}

static void erase_some(struct lmcs_pool *pool, struct lmcs_live **lives, int count)
{
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        lmcs_live_close(lives[i]);
        OK(lmcs_live_erase(pool, "run", name, &err));
    }
}

static void room_of_an_ended_child(void **state)
{
    enum { MANY = 300, FEW = 8 };
    struct place *place = *state;
    struct lmcs_pool *pool = open_limited(place->pool, 32 * MIB);
    struct sight sight = {.shown = NULL};
    struct child lives_on, ended;
    struct lmcs_live *lives[MANY], *live = tensor_of(pool, "addresses", 1, 80 * MIB);
    lmcs_live_close(live);
    OK(lmcs_live_erase(pool, "run", "addresses", &err));
    make_some(pool, lives, MANY, 16 << 10);
    start_looking(&lives_on, &sight);
    erase_some(pool, lives, MANY);
    make_some(pool, lives, FEW, 2 * MIB);
    start_looking(&ended, &sight);
    erase_some(pool, lives, FEW);
    end_child(&ended);
    EXPECT(pool_info(pool).free_bytes < 14 * MIB);
    live = tensor_of(pool, "large", 22 * MIB, 22 * MIB);
    lmcs_live_close(live);
    end_child(&lives_on);
    verify_pool(pool);
    close_pool(pool);
}

/* The parent is killed, so the next writer knows only the child's locks. */
static void a_killed_parent(void **state)
{
    struct place *place = *state;
    struct state *shown = large_state(1);
    struct sight sight = {.shown = NULL};
    struct child parent, child;
    int orders[2], answers[2];
    EXPECT(pipe(orders) == 0 && pipe(answers) == 0);
    if (!make_child(&parent)) {
        struct lmcs_pool *pool = open_quiet(place->pool);
        take_snapshot(pool, "run", shown, 0);
        see_views(&sight, pool, shown);
        see_live(&sight, 0, new_tensor(pool, "w", 60000), 9);
        see_live(&sight, 1, new_tensor(pool, "v", 500), 9);
        fflush(NULL);
        if (fork() == 0) {
            end_in_time();
            close(orders[1]);
            child = (struct child){0, orders[0], answers[1]};
            look_when_told(&child, &sight);
            _exit(0);
        }
        answer(&parent, '!');
        for (;;)
            pause();
    }
    close(orders[0]);
    close(answers[1]);
    child = (struct child){0, orders[1], answers[0]};
    EXPECT(wait_byte(parent.answers) == '!');
    EXPECT(kill(parent.pid, SIGKILL) == 0 && waitpid(parent.pid, NULL, 0) == parent.pid);
    struct lmcs_pool *pool = open_quiet(place->pool);
    expect_right(&child);
    OK(lmcs_live_erase(pool, "run", "w", &err));
    OK(lmcs_live_erase(pool, "run", "v", &err));
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    churn(pool);
    churn_live(pool);
    expect_right(&child);
    let_go(&child);
    let_go(&parent);
    verify_pool(pool);
    close_pool(pool);
    state_free(shown);
}

static void what_is_mapped_where(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 20000), *between = NULL;
    struct lmcs_transaction *transaction;
    struct sight sight = {.shown = NULL};
    struct child child;
    for (uint64_t i = 1; i <= 8; i++) {
        const uint64_t grown = 20000 + 30000 * i, shrunk = 20000 + 20000 * i;
        OK(lmcs_live_resize(live, 1, &grown, &err));
        if (i == 3)
            between = new_tensor(pool, "between", 20000);
        fill(live, (float)i);
        OK(lmcs_live_resize(live, 1, &shrunk, &err));
        OK(lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &transaction, &err));
        ((float *)lmcs_live_data(live))[7] = -1;
        OK(lmcs_live_resize(live, 1, &grown, &err));
        if (i % 2 == 0)
            OK(lmcs_transaction_commit(transaction, &err));
        else
            lmcs_transaction_abort(transaction);
        OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
        fill(live, -2);
        OK(lmcs_live_checkout(pool, "run", "latest", &err));
    }
    const struct lmcs_live_body *body = live->body;
    for (const struct lmcs_mapping *mapping = body->mappings; mapping != NULL; mapping = mapping->next) {
        uint64_t sum = 0, end = lmcs_page_up(body->record->df.bytes);
        for (size_t i = 0; i < mapping->page_count; i++) {
            const struct lmcs_mapped *pages = &mapping->pages[i];
            uint64_t bytes = pages->bytes;
            EXPECT(lmcs_live_place(body->record, pages->at, &bytes) == pages->place && bytes == pages->bytes);
            sum += bytes;
        }
        EXPECT(sum == (end < mapping->bytes ? end : mapping->bytes));
    }
    EXPECT(body->mappings != NULL);
    const struct lmcs_mapping *oldest = body->mappings;
    while (oldest->next != NULL)
        oldest = oldest->next;
    see_live(&sight, 0, live, 11);
    see_live(&sight, 1, between, 12);
    sight.lives[2] = (const float *)(const void *)oldest->at;
    sight.floats[2] = 20000;
    sight.firsts[2] = 11;
    start_looking(&child, &sight);
    lmcs_live_close(live);
    lmcs_live_close(between);
    OK(lmcs_live_erase(pool, "run", "w", &err));
    OK(lmcs_live_erase(pool, "run", "between", &err));
    churn_live(pool);
    expect_right(&child);
    end_child(&child);
    check_pool(pool);
    close_pool(pool);
}

static void end_unreadable(int number)
{
    (void)number;
    _exit(UNREADABLE);
}

/* Without a descriptor for the child's leases, views stay valid and live addresses are unreadable in the child. */
static void without_descriptors(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *shown = large_state(1);
    struct sight sight = {.shown = NULL}, live_sight = {.shown = NULL};
    struct child child, other;
    struct rlimit limit, none;
    take_snapshot(pool, "run", shown, 0);
    see_views(&sight, pool, shown);
    struct lmcs_live *live = new_tensor(pool, "w", 50000);
    see_live(&live_sight, 0, live, 1);
    int orders[2][2], answers[2][2];
    for (int i = 0; i < 2; i++)
        EXPECT(pipe(orders[i]) == 0 && pipe(answers[i]) == 0);
    fflush(NULL);
    EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    none = limit;
    none.rlim_cur = 3;
    EXPECT(setrlimit(RLIMIT_NOFILE, &none) == 0);
    for (int i = 0; i < 2; i++) {
        struct child *made = i == 0 ? &child : &other;
        *made = (struct child){fork(), orders[i][1], answers[i][0]};
        EXPECT(made->pid >= 0);
        if (made->pid == 0) {
            struct child self = {0, orders[i][0], answers[i][1]};
            end_in_time();
            for (int k = 0; k < 2; k++)
                close(orders[k][1]);
            signal(SIGSEGV, end_unreadable);
            look_when_told(&self, i == 0 ? &sight : &live_sight);
            _exit(0);
        }
    }
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int i = 0; i < 2; i++) {
        close(orders[i][0]);
        close(answers[i][1]);
    }
    close_views(&sight);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    churn(pool);
    expect_right(&child);
    lmcs_live_close(live);
    OK(lmcs_live_erase(pool, "run", "w", &err));
    churn_live(pool);
    EXPECT(write(other.orders, "?", 1) == 1);
    int status;
    EXPECT(waitpid(other.pid, &status, 0) == other.pid && WIFEXITED(status) && WEXITSTATUS(status) == UNREADABLE);
    let_go(&other);
    close_pool(pool);
    pool = open_quiet(place->pool);
    churn(pool);
    expect_right(&child);
    end_child(&child);
    uint64_t used = used_when_compacted(pool);
    assert_true(used <= 4 * MIB);
    close_pool(pool);
    state_free(shown);
}

struct bustle {
    struct lmcs_pool *pool;
    atomic_bool ends;
};

static void *open_and_close(void *context)
{
    struct bustle *bustle = context;
    while (!atomic_load(&bustle->ends)) {
        lmcs_view_close(view_of(bustle->pool, "1", LMCS_VIEW_PRIVATE));
        struct lmcs_pool *reader = open_pool(bustle->pool->path, LMCS_OPEN_READ, LMCS_NO_BACKGROUND);
        lmcs_view_close(view_of(reader, "1", 0));
        close_pool(reader);
    }
    return NULL;
}

static void *replace_and_grow(void *context)
{
    struct bustle *bustle = context;
    while (!atomic_load(&bustle->ends)) {
        struct lmcs_live *live = new_unnamed(bustle->pool, 3000);
        OK(lmcs_live_replace(live, "v", &err));
        OK(lmcs_live_resize(live, 1, (const uint64_t[]){60000}, &err));
        lmcs_live_close(live);
    }
    return NULL;
}

/* Forks during all kinds of work end, and children see the bytes of the fork. */
static void forks_beside_threads(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_OR_CREATE, 0);
    struct state *shown = large_state(1);
    struct sight sight = {.shown = NULL};
    struct bustle bustle = {.pool = pool};
    pthread_t threads[2];
    take_snapshot(pool, "run", shown, 0);
    see_views(&sight, pool, shown);
    struct lmcs_live *live = new_tensor(pool, "w", 20000);
    see_live(&sight, 0, live, 1);
    end_in_time();
    EXPECT(pthread_create(&threads[0], NULL, open_and_close, &bustle) == 0);
    EXPECT(pthread_create(&threads[1], NULL, replace_and_grow, &bustle) == 0);
    for (int i = 0; i < 60; i++) {
        fflush(NULL);
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            end_in_time();
            pid_t grandchild = fork();
            int status = 0;
            if (grandchild > 0)
                waitpid(grandchild, &status, 0);
            _exit(is_right(&sight) && status == 0 ? 0 : 1);
        }
        expect_child(child);
    }
    atomic_store(&bustle.ends, true);
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    alarm(0);
    EXPECT(is_right(&sight));
    close_views(&sight);
    lmcs_live_close(live);
    verify_pool(pool);
    close_pool(pool);
    state_free(shown);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(live_variables),        IN_MEMORY(live_variables_after_the_fork),
        IN_MEMORY(many_live_variables), IN_MEMORY(room_of_an_ended_child),
        ON_BOTH(a_killed_parent),       IN_MEMORY(what_is_mapped_where),
        IN_MEMORY(without_descriptors), IN_MEMORY(forks_beside_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
