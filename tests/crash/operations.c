/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * operations.c - a run of random operations, functions in the weighted table at the end.
 *
 * An operation picks random arguments, calls driver_begin() and the store, changes driver_next_version() to the
 * expected state, and is acknowledged.
 */
#include "operations.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "pages/tree.h"
#include "recorder.h"
#include "records/content.h"

#define LIMIT ((uint64_t)64 << 20)

#define TIGHT ((uint64_t)8 << 20)

uint64_t driver_below(struct driver *d, uint64_t bound)
{
    return rng_below(&d->rng, bound);
}

bool driver_chance(struct driver *d, uint64_t percent)
{
    return driver_below(d, 100) < percent;
}

/* ---- Marks of an operation ---- */

uint64_t driver_begin(struct driver *d, const char *words)
{
    uint64_t operation = expected_operation(d->expected, "%s", words);
    recorder_mark(MARK_BEGIN, operation);
    return operation;
}

void driver_acknowledged(uint64_t operation)
{
    recorder_mark(MARK_ACKNOWLEDGED, operation);
}

/* The store's counts are trusted; the explorer checks their durability. */
struct shelf_version *driver_next_version(struct driver *d, const char *shelf, uint64_t operation)
{
    struct shelf_version *version = expected_next(d->expected, shelf, operation);
    struct lmcs_shelf_info info;
    OK(lmcs_shelf_info(d->pool, shelf, &info, &err));
    version->next_number = info.next_number;
    version->keep_raw = info.keep_raw;
    version->origin_number = info.origin_number;
    snprintf(version->origin_shelf, sizeof version->origin_shelf, "%.15s", info.origin_shelf);
    return version;
}

bool driver_worked(struct driver *d, enum lmcs_status status)
{
    if (status != LMCS_OK && status != LMCS_FULL) {
        fprintf(stderr, "an operation failed, %s: %s\n",
                d->expected->operations[d->expected->operation_count - 1].words, d->error.message);
        abort();
    }
    return status == LMCS_OK;
}

bool is_flying(const struct driver *d, const char *shelf)
{
    for (size_t i = 0; i < MOST_LATER; i++)
        if (d->later[i].capture != NULL && strcmp(d->later[i].shelf, shelf) == 0)
            return true;
    return false;
}

bool is_busy(const struct driver *d, const char *shelf)
{
    return is_flying(d, shelf) || expected_newest(d->expected, shelf)->prepared_count > 0;
}

const char *some_shelf_behind(struct driver *d)
{
    const char *shelf = shelf_names[driver_chance(d, 55) ? 0 : driver_below(d, SHELVES)];
    return is_flying(d, shelf) ? NULL : shelf;
}

const char *some_shelf(struct driver *d)
{
    const char *shelf = shelf_names[driver_chance(d, 55) ? 0 : driver_below(d, SHELVES)];
    return is_busy(d, shelf) ? NULL : shelf;
}

const struct expected_snapshot *some_snapshot(struct driver *d, const char *shelf)
{
    const struct shelf_version *version = expected_newest(d->expected, shelf);
    return version->snapshot_count > 0 ? version->snapshots[driver_below(d, version->snapshot_count)] : NULL;
}

/* ---- Operations without a visible effect ---- */

void compact(struct driver *d, bool finished)
{
    uint64_t operation = driver_begin(d, finished ? "compact finished" : "compact");
    if (driver_worked(d, finished ? lmcs_compact_finished(d->pool, NULL, NULL, &d->error)
                                  : lmcs_compact(d->pool, NULL, &d->error)))
        driver_acknowledged(operation);
}

static void do_compact(struct driver *d)
{
    compact(d, driver_chance(d, 20));
}

/* Gives links. */
static void do_train(struct driver *d)
{
    const char *shelf = some_shelf(d);
    for (uint64_t i = 0, steps = 3 + driver_below(d, 4); shelf != NULL && i < steps && !is_crowded(d, shelf); i++)
        capture_now_or_later(d, shelf, NULL);
    do_compact(d);
}

static bool stop_after_some(void *context, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    (void)done;
    (void)total;
    return (*(uint64_t *)context)-- > 1;
}

void compact_a_little(struct driver *d)
{
    uint64_t steps = 1 + driver_below(d, 4);
    struct lmcs_progress progress = {stop_after_some, &steps};
    uint64_t operation = driver_begin(d, "compact a little");
    enum lmcs_status status = driver_chance(d, 30) ? lmcs_compact_finished(d->pool, NULL, &progress, &d->error)
                                                   : lmcs_compact(d->pool, &progress, &d->error);
    if (status == LMCS_CANCELLED || driver_worked(d, status))
        driver_acknowledged(operation);
}

static void do_verify(struct driver *d)
{
    uint64_t operation = driver_begin(d, "verify");
    if (driver_worked(d, lmcs_verify(d->pool, NULL, NULL, NULL, NULL, NULL, &d->error)))
        driver_acknowledged(operation);
}

/* Content and place of a payload with parity; false: none. */
static bool some_protected(struct driver *d, uint64_t *place, uint64_t *bytes)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    struct lmcs_content content;
    uint64_t found = 0, met = 0;
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_txn_read(d->pool, &txn, &err));
    OK(lmcs_root_seek(cursor, &txn, LMCS_TREE_SAFETY, (struct lmcs_key_df){1, 0}, &err));
    while (lmcs_cursor_valid(cursor)) {
        if (lmcs_cursor_key(cursor).low == 0 && driver_below(d, ++met) == 0)
            found = lmcs_cursor_key(cursor).high;
        OK(lmcs_cursor_next(cursor, &err));
    }
    if (found != 0) {
        OK(lmcs_content_get(&txn, found, &content, &err));
        uint64_t at = driver_below(d, content.df.stored_bytes), unit = at / 64 * 64 + 64;
        *place = content.parts[0].offset + at;
        *bytes = 1 + driver_below(d, (unit < content.df.stored_bytes ? unit : content.df.stored_bytes) - at);
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return found != 0;
}

static void turn_bytes(struct driver *d, uint64_t place, uint64_t bytes)
{
    unsigned char data[64];
    int fd = open(d->run->pool_path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0 && bytes <= sizeof data && pread(fd, data, bytes, (off_t)place) == (ssize_t)bytes);
    for (uint64_t i = 0; i < bytes; i++)
        data[i] ^= 0x5a;
    EXPECT(pwrite(fd, data, bytes, (off_t)place) == (ssize_t)bytes);
    close(fd);
}

static void do_repair(struct driver *d)
{
    struct lmcs_scrub_options options;
    uint64_t place, bytes;
    lmcs_scrub_options_init(&options);
    options.repair = true;
    if (d->run->tight)
        return;
    uint64_t operation = driver_begin(d, EXPECTED_REPAIR);
    enum lmcs_status status = lmcs_scrub(d->pool, &options, NULL, NULL, NULL, NULL, &d->error);
    if (status == LMCS_OK && some_protected(d, &place, &bytes)) {
        turn_bytes(d, place, bytes);
        status = lmcs_scrub(d->pool, &options, NULL, NULL, NULL, NULL, &d->error);
        if (status == LMCS_FULL) /* unrepaired: restored */
            turn_bytes(d, place, bytes);
    }
    (void)driver_worked(d, status);
    driver_acknowledged(operation);
}

static void repair_what_is_left(struct driver *d)
{
    struct lmcs_scrub_options options;
    lmcs_scrub_options_init(&options);
    options.repair = true;
    uint64_t operation = driver_begin(d, EXPECTED_REPAIR_LEFT);
    EXPECT(driver_worked(d, lmcs_scrub(d->pool, &options, NULL, NULL, NULL, NULL, &d->error)));
    driver_acknowledged(operation);
}

void open_again(struct driver *d)
{
    wait_for_all(d);
    uint64_t operation = driver_begin(d, "close and open");
    OK(lmcs_pool_close(d->pool, &err));
    d->pool = run_open(d->run->pool_path, LMCS_OPEN_WRITE, d->run->threaded, 0, &err);
    OK(d->pool != NULL ? LMCS_OK : err.status);
    driver_acknowledged(operation);
}

/* ---- All of them ---- */

static const struct {
    void (*work)(struct driver *d);
    unsigned weight;
} operations[] = {
    {do_capture, 30},  {do_capture_later, 10}, {do_abort, 4},   {do_prepare, 5},       {do_resolve, 8},
    {do_tag, 7},       {do_untag, 3},          {do_remove, 9},  {do_policy, 4},        {do_limit, 2},
    {do_compact, 10},  {compact_a_little, 5},  {do_verify, 1},  {open_again, 3},       {do_dump, 5},
    {do_restore, 9},   {do_export, 1},         {do_import, 3},  {do_fork, 6},          {do_rename, 3},
    {do_drop, 3},      {do_repair, 4},         {do_train, 9},   {do_restore_parts, 5}, {live_operation, 45},
    {do_in_flight, 6}, {do_links, 9},          {do_let_go, 12},
};

static void do_something(struct driver *d)
{
    unsigned total = 0;
    if (d->run->lively && driver_chance(d, 75)) {
        live_operation(d);
        return;
    }
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        total += operations[i].weight;
    uint64_t at = driver_below(d, total);
    size_t i = 0;
    for (; at >= operations[i].weight; i++)
        at -= operations[i].weight;
    operations[i].work(d);
}

struct lmcs_pool *run_open(const char *path, enum lmcs_open_mode mode, bool threaded, uint64_t limit_bytes,
                           struct lmcs_error *error)
{
    struct lmcs_open_options options;
    struct lmcs_pool *pool = NULL;
    lmcs_open_options_init(&options);
    options.limit_bytes = limit_bytes;
    options.flags = threaded ? 0 : LMCS_NO_BACKGROUND;
    options.threads = threaded ? 3 : 1;
    options.wait_ms = 0;
    return lmcs_pool_open(path, mode, &options, &pool, error) == LMCS_OK ? pool : NULL;
}

void run_operations(const struct run *run, struct expected *expected)
{
    struct driver d = {.run = run, .expected = expected, .rng = {run->seed}, .archive = {.fd = -1}};
    uint64_t limit = run->tight ? TIGHT : LIMIT;
    d.serial = run->seed % 1000 * 1000;
    bool made = access(run->pool_path, F_OK) != 0;
    if (made)
        expected_newest(expected, "")->limit = limit;
    uint64_t operation = driver_begin(&d, made ? "make the pool" : "open the pool after the power failure");
    d.pool = run_open(run->pool_path, made ? LMCS_OPEN_CREATE : LMCS_OPEN_WRITE, run->threaded, limit, &err);
    OK(d.pool != NULL ? LMCS_OK : err.status);
    driver_acknowledged(operation);
    if (!made && !run->tight)
        repair_what_is_left(&d);
    for (size_t i = 0; i < SHELVES; i++)
        remove_remote(&d, shelf_names[i]);
    live_begin(&d);
    /* For rare states: hashes by a thread that does not commit. */
    d.wants_large = run->large;
    if (made && run->large)
        capture_now_or_later(&d, shelf_names[0], &d.later[0]);
    for (size_t i = 0; i < run->operations; i++)
        do_something(&d);
    wait_for_all(&d);
    operation = driver_begin(&d, "close the pool");
    OK(lmcs_pool_close(d.pool, &err));
    driver_acknowledged(operation);
    if (d.archive.fd >= 0)
        close(d.archive.fd);
}

/* ---- After a power failure ---- */

static enum lmcs_status take_one(struct lmcs_pool *pool, uint64_t seed, struct lmcs_error *error)
{
    struct rng rng = {seed};
    static unsigned char data[70000];
    static const uint64_t shape = sizeof data, short_shape = 700;
    static const void *const both[] = {data, data + 1};
    static const struct lmcs_tensor tensors[] = {{.name = "after.long", .dtype = LMC_U8, .ndim = 1, .shape = &shape},
                                                 {.name = "after", .dtype = LMC_U8, .ndim = 1, .shape = &short_shape}};
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    rng_fill(&rng, data, sizeof data);
    lmcs_commit_options_init(&options);
    enum lmcs_status status = lmcs_capture_begin(pool, "run", &capture, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_capture_put(capture, tensors, both, 2, error);
    if (status == LMCS_OK)
        return lmcs_capture_commit(capture, &options, NULL, error);
    lmcs_capture_abort(capture);
    return status;
}

bool run_goes_on(struct lmcs_pool *pool, uint64_t seed, char *why, size_t why_bytes)
{
    struct lmcs_error error;
    enum lmcs_status status = LMCS_OK;
    for (uint64_t i = 0; i < 2 && status == LMCS_OK; i++)
        status = take_one(pool, seed + i, &error);
    if (status == LMCS_OK)
        status = links_go_on(pool, seed, &error);
    if (status == LMCS_OK || status == LMCS_FULL)
        status = lmcs_compact(pool, NULL, &error);
    if (status == LMCS_OK)
        status = lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &error);
    if (status != LMCS_OK)
        snprintf(why, why_bytes, "it does not go on: %s", error.message);
    return status == LMCS_OK && expected_space(pool, true, why, why_bytes);
}
