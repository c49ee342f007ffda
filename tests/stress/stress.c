/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * stress.c - many threads and processes on one pool at the same time, every answer checked (tests/README.md).
 *
 * stress [--seconds N] [--seed S] [--in FOLDER] [--threads N] [--readers N] [--scale N] [--round-ms N] [--csv FILE]
 *
 * --csv writes a line of resources every few seconds. In every eighth rest the structure and all checksums are
 * verified. A finding is printed on stderr and keeps the pool.
 */
/* ctest: timeout=600 */
#include <inttypes.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "lively.h"
#include "records/busy.h"
#include "sample.h"
#include "stacks.h"

#define MOST_STATES ((uint64_t)3000000)

struct options {
    uint64_t seconds;
    uint64_t seed;
    uint64_t threads;
    uint64_t readers;
    uint64_t scale;
    uint64_t round_ms;
    uint64_t sample_seconds;
    const char *in;
    const char *csv;
};

/* All answers must be equal. */
struct known_digest {
    uint64_t ticket;
    uint64_t digest;
};

struct totals {
    uint64_t rounds;
    uint64_t calls;
    uint64_t changes;
    uint64_t states;
    uint64_t most_at_once;
    uint64_t undecided;
};

struct driver {
    struct options options;
    struct place place;
    struct stage stage;
    struct crew *crew;
    struct sampler *sampler;
    struct model models[SHELVES];
    struct known_digest *digests;
    size_t digest_count;
    struct event *events; /* of one shelf in a round */
    struct actor asking;
    struct log *asked;
    struct totals totals;
};

static void finding(const struct driver *driver, const char *what)
{
    fprintf(stderr, "FINDING in round %" PRIu64 ", seed %" PRIu64 ": %s\nthe pool is left in %s\n",
            driver->totals.rounds, driver->options.seed, what, driver->place.folder);
    _exit(99);
}

/* ---- A history of a round ---- */

static size_t gather(struct driver *driver, unsigned shelf)
{
    size_t count = 0;
    for (unsigned i = 0; i <= crew_size(driver->crew); i++) {
        const struct log *log = i < crew_size(driver->crew) ? crew_log(driver->crew, i) : driver->asked;
        unsigned logged = atomic_load(&log->count);
        for (unsigned k = 0; k < logged; k++)
            if (log->events[k].shelf == shelf)
                driver->events[count++] = log->events[k];
    }
    return count;
}

static int by_number_and_op(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    if ((x->op == OP_COMMIT) != (y->op == OP_COMMIT))
        return x->op == OP_COMMIT ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

/* Commits of a shelf are durable in order, so a detached one ends before the next that was waited for. */
static void end_detached(struct event *events, size_t count, uint64_t rest_ns)
{
    qsort(events, count, sizeof *events, by_number_and_op);
    size_t commits = 0;
    while (commits < count && events[commits].op == OP_COMMIT)
        commits++;
    for (size_t i = commits; i-- > 0;)
        if (events[i].behind)
            events[i].ended_ns = i + 1 == commits ? rest_ns : events[i + 1].ended_ns;
}

static uint64_t digest_of(struct driver *driver, const struct event *event)
{
    for (size_t i = 0; i < driver->digest_count; i++)
        if (driver->digests[i].ticket == event->ticket)
            return driver->digests[i].digest;
    driver->digests[driver->digest_count++] = (struct known_digest){event->ticket, event->value};
    return event->value;
}

static bool is_present(const struct driver *driver, uint64_t ticket)
{
    for (unsigned s = 0; s < SHELVES; s++)
        for (size_t i = 0; i < driver->models[s].count; i++)
            if (driver->models[s].present[i].ticket == ticket)
                return true;
    return false;
}

static void check_digests(struct driver *driver, const struct event *events, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (events[i].op == OP_LOOK && events[i].value != 0 && digest_of(driver, &events[i]) != events[i].value)
            finding(driver, "a snapshot's digest has changed");
}

static void forget_digests(struct driver *driver)
{
    size_t kept = 0;
    for (size_t i = 0; i < driver->digest_count; i++)
        if (is_present(driver, driver->digests[i].ticket))
            driver->digests[kept++] = driver->digests[i];
    driver->digest_count = kept;
}

static void check_shelf(struct driver *driver, unsigned shelf, uint64_t rest_ns)
{
    struct verdict_report report;
    size_t count = gather(driver, shelf);
    end_detached(driver->events, count, rest_ns);
    enum verdict verdict = history_check(&driver->models[shelf], driver->events, count, MOST_STATES, &report);
    for (size_t i = 0; i < count; i++)
        driver->totals.changes += driver->events[i].op <= OP_KEEP_RAW;
    driver->totals.calls += count;
    driver->totals.states += report.states;
    if (report.most_at_once > driver->totals.most_at_once)
        driver->totals.most_at_once = report.most_at_once;
    if (verdict == LINEARISABLE) {
        check_digests(driver, driver->events, count);
        return;
    }
    fprintf(stderr, "%s\n", report.text);
    if (verdict == NOT_LINEARISABLE)
        finding(driver, "no order of the calls explains what they answered");
    finding(driver, "the history could not be decided");
}

/* ---- At rest ---- */

/* Waits for captures in flight, which the begin of a capture does not. */
static uint64_t settle(struct driver *driver)
{
    for (unsigned s = 0; s < SHELVES; s++) {
        struct lmcs_busy_shelf *busy;
        OK(lmcs_shelf_take(driver->stage.pool, content_shelf(s), &busy, &err));
        lmcs_shelf_give(driver->stage.pool, busy);
    }
    return monotonic_ns();
}

static void ask_everything(struct driver *driver)
{
    atomic_store(&driver->asked->count, 0);
    driver->asking.pool = driver->stage.pool;
    for (unsigned s = 0; s < SHELVES; s++)
        actor_ask_everything(&driver->asking, s);
}

/* Restarts a compactor without room in a tight round. */
static void choose_limit(struct driver *driver)
{
    struct lmcs_pool_info info;
    OK(lmcs_pool_info(driver->stage.pool, &info, &err));
    driver->stage.tight = (driver->totals.rounds + 1) % 3 == 0;
    uint64_t limit = info.used_bytes + (driver->stage.tight ? 4 << 20 : driver->stage.room_bytes);
    OK(lmcs_pool_set_limit(driver->stage.pool, limit < LMCS_MIN_POOL_BYTES ? LMCS_MIN_POOL_BYTES : limit, &err));
    if (driver->stage.tight)
        return;
    lmcs_compactor_stop(driver->stage.pool);
    OK(lmcs_compactor_start(driver->stage.pool, &err));
}

static void rest(struct driver *driver)
{
    uint64_t rest_ns = settle(driver);
    ask_everything(driver);
    for (unsigned s = 0; s < SHELVES; s++)
        check_shelf(driver, s, rest_ns);
    forget_digests(driver);
    if (driver->totals.rounds % 5 == 0) {
        close_pool(driver->stage.pool);
        driver->stage.pool = open_pool(driver->place.pool, LMCS_OPEN_WRITE, 0);
    }
    if (driver->totals.rounds % 8 == 0) {
        check_pool(driver->stage.pool);
        verify_pool(driver->stage.pool);
    }
}

/* ---- All of it ---- */

static void begin_all(struct driver *driver)
{
    const struct options *o = &driver->options;
    struct crew_options crew = {driver->place.pool, o->seed, (unsigned)o->scale, (unsigned)o->threads,
                                (unsigned)o->readers};
    snprintf(driver->place.folder, sizeof driver->place.folder, "%.200s/lmcs-stress-XXXXXX", o->in);
    EXPECT(mkdtemp(driver->place.folder) != NULL);
    snprintf(driver->place.pool, sizeof driver->place.pool, "%s/a.pool", driver->place.folder);
    driver->stage = (struct stage){.path = driver->place.pool,
                                   .content = content_new((unsigned)o->scale),
                                   .room_bytes = o->scale * ((uint64_t)64 << 20),
                                   .pool = open_pool(driver->place.pool, LMCS_OPEN_CREATE, 0)};
    lively_make(driver->stage.pool);
    for (unsigned s = 0; s < SHELVES; s++)
        model_init(&driver->models[s]);
    size_t most = (size_t)(MOST_ACTORS + 1) * LOG_EVENTS;
    driver->events = malloc(most * sizeof *driver->events);
    driver->digests = malloc(most * sizeof *driver->digests);
    driver->asked = calloc(1, sizeof *driver->asked);
    EXPECT(driver->events != NULL && driver->digests != NULL && driver->asked != NULL);
    actor_init(&driver->asking, &driver->stage, driver->asked, MOST_ACTORS, 1, false);
    driver->crew = crew_new(&crew, &driver->stage);
    driver->sampler = sampler_new(o->csv);
}

static void end_all(struct driver *driver)
{
    crew_end(driver->crew);
    sampler_end(driver->sampler);
    OK(lmcs_compact(driver->stage.pool, NULL, &err));
    check_pool(driver->stage.pool);
    close_pool(driver->stage.pool);
    struct lmcs_pool *pool = open_pool(driver->place.pool, LMCS_OPEN_READ, 0);
    verify_pool(pool);
    close_pool(pool);
    actor_end(&driver->asking);
    content_free((struct content *)driver->stage.content);
    free(driver->events);
    free(driver->digests);
    free(driver->asked);
    unlink(driver->place.pool);
    rmdir(driver->place.folder);
}

static void say_where(const struct driver *driver, uint64_t seconds)
{
    const struct totals *t = &driver->totals;
    struct crew_counts counts = crew_counts(driver->crew);
    printf("%" PRIu64 " s: %" PRIu64 " rounds, %" PRIu64 " calls (%" PRIu64 " changes, %" PRIu64
           " at once at most), %" PRIu64 " states searched, %.1f GB checked, readers killed %" PRIu64
           " stopped %" PRIu64 "\n",
           seconds, t->rounds, t->calls, t->changes, t->most_at_once, t->states, (double)counts.bytes_checked / 1e9,
           counts.killed, counts.stopped);
    fflush(stdout);
}

static int run(struct driver *driver)
{
    const struct options *o = &driver->options;
    uint64_t start = monotonic_ns(), said = 0, sampled = 0, seconds = 0;
    printf("seed %" PRIu64 ", %" PRIu64 " threads, %" PRIu64 " reading processes, in %s\n", o->seed, o->threads,
           o->readers, o->in);
    begin_all(driver);
    for (; seconds < o->seconds; seconds = (monotonic_ns() - start) / 1000000000u) {
        choose_limit(driver);
        driver->totals.rounds++;
        crew_round(driver->crew, (unsigned)o->round_ms);
        rest(driver);
        if (seconds >= sampled + o->sample_seconds) {
            sampler_take(driver->sampler, driver->crew, driver->stage.pool, driver->totals.rounds,
                         driver->totals.calls);
            sampled = seconds;
        }
        if (seconds >= said + 20) {
            say_where(driver, seconds);
            said = seconds;
        }
    }
    say_where(driver, seconds);
    end_all(driver);
    printf("no findings\n");
    return 0;
}

/* libpmem reads the variable when loaded. */
static void force_in_memory(const char *in, char **words)
{
    struct statfs fs;
    if (statfs(in, &fs) != 0 || fs.f_type != TMPFS_MAGIC || getenv("PMEM_IS_PMEM_FORCE") != NULL)
        return;
    setenv("PMEM_IS_PMEM_FORCE", "1", 1);
    execv("/proc/self/exe", words);
}

static bool take_option(struct options *o, const char *word, const char *value)
{
    const struct {
        const char *word;
        uint64_t *to;
    } numbers[] = {{"--seconds", &o->seconds},
                   {"--seed", &o->seed},
                   {"--threads", &o->threads},
                   {"--readers", &o->readers},
                   {"--scale", &o->scale},
                   {"--round-ms", &o->round_ms},
                   {"--sample-seconds", &o->sample_seconds}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (strcmp(word, numbers[i].word) == 0)
            return (*numbers[i].to = strtoull(value, NULL, 10)) > 0 || numbers[i].to == &o->readers;
    if (strcmp(word, "--in") == 0)
        o->in = value;
    else if (strcmp(word, "--csv") == 0)
        o->csv = value;
    else
        return false;
    return true;
}

int main(int count, char **words)
{
    static struct driver driver;
    const char *temporary = getenv("TMPDIR");
    if (count == 5 && strcmp(words[1], "--reader") == 0)
        return crew_reader_main(atoi(words[2]), (unsigned)atoi(words[3]), strtoull(words[4], NULL, 10));
    driver.options = (struct options){.seconds = 60,
                                      .seed = monotonic_ns() / 1000 % 1000000,
                                      .threads = 6,
                                      .readers = 2,
                                      .scale = 1,
                                      .round_ms = 400,
                                      .sample_seconds = 5,
                                      .in = temporary != NULL && *temporary != '\0' ? temporary : "/tmp"};
    for (int i = 1; i < count; i += 2)
        if (i + 1 == count || !take_option(&driver.options, words[i], words[i + 1]) ||
            driver.options.threads > MOST_WRITERS || driver.options.readers > MOST_READERS) {
            fprintf(stderr,
                    "stress [--seconds N] [--seed S] [--in FOLDER] [--threads 1..%d] [--readers 0..%d] "
                    "[--scale N] [--round-ms N] [--csv FILE] [--sample-seconds N]\n",
                    MOST_WRITERS, MOST_READERS);
            return 2;
        }
    signal(SIGPIPE, SIG_IGN);
    stacks_can_be_asked();
    force_in_memory(driver.options.in, words);
    return run(&driver);
}
