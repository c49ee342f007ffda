/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * crash.c - explores power failures (tests/README.md).
 *
 * A worker process per seed and medium records operations; its children open the images. A child that crashes or hangs
 * is a finding; another continues after its image.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "operations.h"
#include "power.h"

#define GENERATIONS    4u
#define IMAGE_SECONDS  20
#define LEAST_AT_POINT 4u
#define MOST_AT_POINT  64u
#define SEEN           ((size_t)1 << 17)
#define MOST_OF_A_SEED 3u /* findings */
#define MOST_FINDINGS  20u
#define READ_EVERY     8u /* first read without recovery */
#define GOES_ON_EVERY  8u /* used further */
#define WHERE_BYTES    1024

struct totals {
    atomic_uint_fast64_t images;
    atomic_uint_fast64_t points;
    atomic_uint_fast64_t same;
    atomic_uint_fast64_t runs;
    atomic_uint_fast64_t operations;
    atomic_uint_fast64_t read;
    atomic_uint_fast64_t went_on;
    atomic_uint_fast64_t findings;
    atomic_bool stop;
};

struct settings {
    uint64_t images;
    uint64_t of_a_seed; /* of the first generation; later ones have a third */
    uint64_t seconds;   /* 0: unlimited */
    uint64_t first_seed;
    unsigned jobs;
    bool media[2];
    const char *keep; /* for wrong images */
    bool until_finding;
    enum recorder_loss lose;
    uint64_t lose_every;
    uint64_t chain[GENERATIONS]; /* images at which generations end, if before `generation` */
    unsigned chain_length;       /* only images of this generation ... */
    uint64_t image;              /* ... and index; UINT64_MAX: all */
};

static struct settings settings = {.images = 20000,
                                   .of_a_seed = 900,
                                   .first_seed = 1,
                                   .media = {true, true},
                                   .keep = "build/crash",
                                   .image = UINT64_MAX};
static struct totals *totals;
static const char *const medium_names[] = {"dax", "file"};

static void *shared_memory(int fd, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    EXPECT(at != MAP_FAILED);
    return at;
}

/* ---- One seed ---- */

/* A child's report; survives the child. */
struct progress {
    uint64_t image;
    char where[WHERE_BYTES];
    bool has_next;
    uint64_t next;
    size_t next_least[MOST_SHELVES];
    size_t next_found[MOST_SHELVES];
    size_t found[MOST_SHELVES];
};

struct work {
    uint64_t seed;
    enum record_medium medium;
    unsigned generation;
    char folder[300];
    char pool[320];
    char first[320];
    char image[320];
    char next[320];
    struct record record;
    struct expected *expected;
    struct progress *progress;
    uint64_t chain[GENERATIONS];
    unsigned findings;
};

struct exploration {
    struct work *work;
    struct power *power;
    struct rng rng;
    uint64_t marks;
    uint64_t event;
    uint64_t image;
    uint64_t *seen;
    uint64_t candidates;
};

static void report(struct work *work, const char *why)
{
    char text[4096], chain[64] = "", kept[600];
    size_t n = 0;
    for (unsigned i = 0; i < work->generation; i++)
        n += (size_t)snprintf(chain + n, sizeof chain - n, "%llu,", (unsigned long long)work->chain[i]);
    snprintf(kept, sizeof kept, "%s/%s-%llu-%u-%llu.pool", settings.keep, medium_names[work->medium],
             (unsigned long long)work->seed, work->generation, (unsigned long long)work->progress->image);
    int length =
        snprintf(text, sizeof text,
                 "FINDING: %s\n    %s\n    again: %s --medium %s --seed %llu %s%.*s --image %llu%s\n    kept: %s\n",
                 why, work->progress->where, program_invocation_name, medium_names[work->medium],
                 (unsigned long long)work->seed, n > 0 ? "--chain " : "", n > 0 ? (int)n - 1 : 0, chain,
                 (unsigned long long)work->progress->image, settings.lose_every > 0 ? " (and --lose)" : "", kept);
    if (write(STDOUT_FILENO, text, (size_t)length) < 0)
        perror("crash");
    work->findings++;
    if (atomic_fetch_add(&totals->findings, 1) + 1 >= MOST_FINDINGS || settings.until_finding)
        atomic_store(&totals->stop, true);
}

static bool is_new(struct exploration *x, uint64_t hash)
{
    hash = lmc_hash64(&x->marks, sizeof x->marks, hash) | 1;
    size_t i = hash % SEEN;
    for (size_t tries = 0; tries < SEEN && x->seen[i] != 0; tries++, i = (i + 1) % SEEN)
        if (x->seen[i] == hash)
            return false;
    x->seen[i] = hash;
    return true;
}

/* Returns the newest begun operation. */
static uint64_t follow_marks(struct exploration *x, uint64_t event)
{
    static uint64_t newest;
    for (; x->event < event; x->event++) {
        const struct record_event *e = &x->work->record.events[x->event];
        if (e->kind != RECORD_MARK)
            continue;
        struct expected_operation *operation = &x->work->expected->operations[e->bytes];
        if (e->offset == MARK_BEGIN)
            newest = e->bytes;
        *(e->offset == MARK_BEGIN ? &operation->begun : &operation->acknowledged) = true;
        x->marks++;
    }
    return newest;
}

/* Without recovery the state must be right, and the next writer must keep it. */
static bool check_as_reader(struct exploration *x, size_t found[MOST_SHELVES], char *why, size_t why_bytes)
{
    struct lmcs_error error;
    struct lmcs_pool *pool = run_open(x->work->image, LMCS_OPEN_READ, false, 0, &error);
    if (pool == NULL) {
        snprintf(why, why_bytes, "it can't be opened for reading: %s", error.message);
        return false;
    }
    bool right = expected_check(x->work->expected, pool, found, why, why_bytes);
    if (lmcs_pool_close(pool, &error) != LMCS_OK)
        right = false;
    atomic_fetch_add(&totals->read, 1);
    return right;
}

static bool check_as_writer(struct exploration *x, char *why, size_t why_bytes)
{
    struct lmcs_error error;
    struct lmcs_pool *pool = run_open(x->work->image, LMCS_OPEN_WRITE, false, 0, &error);
    if (pool == NULL) {
        snprintf(why, why_bytes, "it can't be opened: %s", error.message);
        return false;
    }
    bool right = expected_check(x->work->expected, pool, x->work->progress->found, why, why_bytes);
    if (right && x->image % GOES_ON_EVERY == 0) {
        right = run_goes_on(pool, x->image, why, why_bytes);
        atomic_fetch_add(&totals->went_on, 1);
    }
    enum lmcs_status closed = lmcs_pool_close(pool, &error);
    if (right && closed != LMCS_OK)
        snprintf(why, why_bytes, "it can't be closed: %s", error.message);
    return right && closed == LMCS_OK;
}

static bool check_image(struct exploration *x, char *why, size_t why_bytes)
{
    size_t read[MOST_SHELVES] = {0};
    if (x->image % READ_EVERY == 1 && !check_as_reader(x, read, why, why_bytes))
        return false;
    if (!check_as_writer(x, why, why_bytes))
        return false;
    for (size_t i = 0; i < x->work->expected->shelf_count; i++)
        if (x->work->progress->found[i] < read[i]) {
            snprintf(why, why_bytes, "what a reader saw of shelf \"%s\" is gone", x->work->expected->shelves[i].name);
            return false;
        }
    return true;
}

static void keep_image(struct exploration *x, size_t i, const char *path)
{
    power_take_back(x->power);
    power_put(x->power, i);
    copy_file(x->work->image, path);
}

/* Picks uniformly, or the requested image. */
static bool is_next(struct exploration *x)
{
    if (x->work->generation < settings.chain_length)
        return settings.chain[x->work->generation] == x->image;
    return settings.image == UINT64_MAX && rng_below(&x->rng, ++x->candidates) == 0;
}

static bool is_wanted(const struct exploration *x)
{
    if (x->work->generation < settings.chain_length)
        return settings.chain[x->work->generation] == x->image;
    return settings.image == UINT64_MAX || settings.image == x->image;
}

static bool look_at_image(struct exploration *x, size_t i)
{
    struct work *work = x->work;
    char why[2048] = "";
    struct itimerval limit = {.it_value = {IMAGE_SECONDS, 0}}, none = {.it_value = {0, 0}};
    setitimer(ITIMER_REAL, &limit, NULL);
    power_put(x->power, i);
    bool right = check_image(x, why, sizeof why);
    setitimer(ITIMER_REAL, &none, NULL);
    atomic_fetch_add(&totals->images, 1);
    if (!right) {
        char kept[600];
        mkdir(settings.keep, 0777);
        snprintf(kept, sizeof kept, "%s/%s-%llu-%u-%llu.pool", settings.keep, medium_names[work->medium],
                 (unsigned long long)work->seed, work->generation, (unsigned long long)x->image);
        keep_image(x, i, kept);
        report(work, why);
    } else if (is_next(x)) {
        keep_image(x, i, work->next);
        work->progress->has_next = true;
        work->progress->next = x->image;
        expected_least(work->expected, work->progress->next_least);
        memcpy(work->progress->next_found, work->progress->found, sizeof work->progress->found);
    }
    power_take_back(x->power);
    return right;
}

static void say_where(struct exploration *x, const struct power_point *point, uint64_t operation, size_t i)
{
    const struct expected *expected = x->work->expected;
    snprintf(x->work->progress->where, WHERE_BYTES,
             "seed %llu, %s, generation %u, image %llu: before %s %llu, in operation %llu (%s%s), %s",
             (unsigned long long)x->work->seed, medium_names[x->work->medium], x->work->generation,
             (unsigned long long)x->image, point->before, (unsigned long long)point->fence,
             (unsigned long long)operation, expected->operations[operation].words,
             expected->operations[operation].acknowledged ? ", acknowledged" : "", power_words(x->power, i));
}

static bool explore(struct exploration *x, uint64_t start)
{
    struct work *work = x->work;
    struct power_point point;
    uint64_t budget = work->generation == 0 ? settings.of_a_seed : settings.of_a_seed / 3;
    uint64_t count = power_count(&work->record, work->generation > 0);
    uint64_t most = budget / count;
    most = most < LEAST_AT_POINT ? LEAST_AT_POINT : most > MOST_AT_POINT ? MOST_AT_POINT : most;
    struct rng pick = {work->seed * GENERATIONS + work->generation};
    while (power_next(x->power, &point)) {
        uint64_t operation = follow_marks(x, point.event), seed = rng_next(&pick);
        if (rng_below(&pick, count * most) >= budget)
            continue;
        size_t images = power_plan(x->power, most, seed);
        if (start == 0)
            atomic_fetch_add(&totals->points, 1);
        for (size_t i = 0; i < images; i++, x->image++) {
            bool fresh = is_new(x, power_hash(x->power, i));
            if (x->image < start || !is_wanted(x))
                continue;
            if (!fresh) {
                atomic_fetch_add(&totals->same, 1);
                continue;
            }
            if (atomic_load(&totals->stop))
                return true;
            work->progress->image = x->image;
            say_where(x, &point, operation, i);
            if (!look_at_image(x, i))
                return false;
        }
    }
    return true;
}

static int explore_in_child(struct work *work, uint64_t start)
{
    int file = open(work->image, O_RDWR | O_CLOEXEC);
    EXPECT(file >= 0);
    struct exploration x = {.work = work, .rng = {work->seed + 77}};
    x.seen = calloc(SEEN, sizeof *x.seen);
    EXPECT(x.seen != NULL);
    x.power = power_new(&work->record, work->medium, file);
    return explore(&x, start) ? 0 : 1;
}

static void make_first(struct work *work)
{
    struct stat st;
    EXPECT(stat(work->pool, &st) == 0);
    int fd = open(work->first, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0 && ftruncate(fd, st.st_size) == 0);
    close(fd);
}

static void explore_record(struct work *work)
{
    uint64_t start = 0;
    work->progress->has_next = false;
    while (work->findings < MOST_OF_A_SEED && !atomic_load(&totals->stop)) {
        work->progress->image = start;
        copy_file(work->first, work->image);
        fflush(NULL);
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0)
            _exit(explore_in_child(work, start));
        int status;
        EXPECT(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            return;
        if (WIFSIGNALED(status)) {
            char why[64];
            snprintf(why, sizeof why, WTERMSIG(status) == SIGALRM ? "it hangs" : "it crashes (signal %d)",
                     WTERMSIG(status));
            report(work, why);
        } else if (WEXITSTATUS(status) != 1) {
            report(work, "the checker gave up");
        } else {
            work->findings++;
        }
        start = work->progress->image + 1;
    }
}

static void remove_folder(struct work *work)
{
    char path[600];
    unlink(work->pool);
    unlink(work->first);
    unlink(work->image);
    unlink(work->next);
    snprintf(path, sizeof path, "%s/one.safetensors", work->folder);
    unlink(path);
    rmdir(work->folder);
}

static int work_on_seed(uint64_t seed, enum record_medium medium, const char *base)
{
    struct work work = {.seed = seed, .medium = medium};
    snprintf(work.folder, sizeof work.folder, "%s/%s-%llu", base, medium_names[medium], (unsigned long long)seed);
    snprintf(work.pool, sizeof work.pool, "%s/a.pool", work.folder);
    snprintf(work.first, sizeof work.first, "%s/first.pool", work.folder);
    snprintf(work.image, sizeof work.image, "%s/image.pool", work.folder);
    snprintf(work.next, sizeof work.next, "%s/next.pool", work.folder);
    EXPECT(mkdir(work.folder, 0700) == 0);
    work.progress = shared_memory(-1, sizeof *work.progress);
    work.expected = expected_new();
    recorder_lose(settings.lose, settings.lose_every);
    for (; work.generation < GENERATIONS && !atomic_load(&totals->stop); work.generation++) {
        struct run run = {.seed = seed * GENERATIONS + work.generation,
                          .folder = work.folder,
                          .pool_path = work.pool,
                          .large = seed % 3 == 0,
                          .threaded = seed % 4 == 2,
                          .tight = seed % 5 == 4,
                          .lively = seed % 5 == 0,
                          .operations = work.generation == 0 ? 24 : 8};
        if (work.generation > 0) {
            copy_file(work.next, work.pool);
            EXPECT(rename(work.next, work.first) == 0);
        }
        recorder_begin(work.pool, medium);
        run_operations(&run, work.expected);
        work.record = recorder_end();
        if (work.generation == 0)
            make_first(&work);
        atomic_fetch_add(&totals->runs, 1);
        atomic_fetch_add(&totals->operations, work.expected->operation_count - 1);
        explore_record(&work);
        if (!work.progress->has_next)
            break;
        work.chain[work.generation] = work.progress->next;
        struct expected *next = expected_from(work.expected, work.progress->next_least, work.progress->next_found);
        expected_free(work.expected);
        work.expected = next;
    }
    remove_folder(&work);
    return 0;
}

/* ---- All of them ---- */

struct job {
    pid_t pid; /* 0: none */
    uint64_t seed;
    enum record_medium medium;
};

static char *self;
static char base[200];
static int totals_fd;

static void start(struct job *job, char **arguments, int count)
{
    char worker[64], text[32];
    char **all = calloc((size_t)count + 6, sizeof *all);
    EXPECT(all != NULL);
    memcpy(all, arguments, (size_t)count * sizeof *all);
    snprintf(worker, sizeof worker, "--worker=%llu:%d:%d", (unsigned long long)job->seed, (int)job->medium, totals_fd);
    snprintf(text, sizeof text, "%d", (int)job->medium);
    all[count] = worker;
    all[count + 1] = base;
    fflush(NULL);
    job->pid = fork();
    EXPECT(job->pid >= 0);
    if (job->pid == 0) {
        setenv("PMEM_IS_PMEM_FORCE", job->medium == RECORD_DAX ? "1" : "0", 1);
        execv("/proc/self/exe", all);
        _exit(127);
    }
    free(all);
}

static void ended(struct job *job, int status)
{
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        printf(
            "FINDING: the run of seed %llu, %s, ended by itself (status %x)\n    again: %s --medium %s --seed %llu\n",
            (unsigned long long)job->seed, medium_names[job->medium], (unsigned)status, self, medium_names[job->medium],
            (unsigned long long)job->seed);
        fflush(stdout);
        if (atomic_fetch_add(&totals->findings, 1) + 1 >= MOST_FINDINGS || settings.until_finding)
            atomic_store(&totals->stop, true);
    }
    job->pid = 0;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double processor_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void say(double begin, bool last)
{
    double seconds = seconds_now() - begin;
    printf(
        "%s%llu images (%llu more were the same as others) at %llu points of %llu runs of %llu operations; "
        "%llu were also read before recovery, %llu worked on after it; %llu findings; %.0f s, %.0f images a second%s",
        last ? "" : "... ", (unsigned long long)totals->images, (unsigned long long)totals->same,
        (unsigned long long)totals->points, (unsigned long long)totals->runs, (unsigned long long)totals->operations,
        (unsigned long long)totals->read, (unsigned long long)totals->went_on, (unsigned long long)totals->findings,
        seconds, (double)totals->images / (seconds > 0 ? seconds : 1), last ? "" : "\n");
    if (last)
        printf(", %.1f ms of a processor each\n", processor_seconds() * 1000 / (double)(totals->images + 1));
    fflush(stdout);
}

static bool next_job(struct job *job, uint64_t *next)
{
    for (;; ++*next) {
        uint64_t seed = settings.first_seed + *next / 2;
        if ((settings.image != UINT64_MAX || settings.chain_length > 0) && seed != settings.first_seed)
            return false;
        *job = (struct job){0, seed, *next % 2 == 0 ? RECORD_DAX : RECORD_FILE};
        if (settings.media[job->medium])
            break;
    }
    ++*next;
    return true;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

static void stop_all(int signal)
{
    (void)signal;
    atomic_store(&totals->stop, true);
}

static int work_on_all(char **arguments, int count)
{
    struct job jobs[64] = {0};
    uint64_t next = 0;
    double begin = seconds_now(), shown = begin;
    bool more = true, any = true;
    snprintf(base, sizeof base, "/dev/shm/lmcs-crash-XXXXXX");
    EXPECT(mkdtemp(base) != NULL);
    signal(SIGINT, stop_all);
    signal(SIGTERM, stop_all);
    while (any) {
        any = false;
        more = more && !atomic_load(&totals->stop) && totals->images < settings.images;
        if (totals->images >= settings.images ||
            (settings.seconds > 0 && seconds_now() - begin > (double)settings.seconds))
            atomic_store(&totals->stop, true);
        for (unsigned i = 0; i < settings.jobs; i++) {
            int status;
            if (jobs[i].pid != 0 && waitpid(jobs[i].pid, &status, WNOHANG) == jobs[i].pid)
                ended(&jobs[i], status);
            if (jobs[i].pid == 0 && more && (more = next_job(&jobs[i], &next)))
                start(&jobs[i], arguments, count);
            any |= jobs[i].pid != 0;
        }
        usleep(20000);
        if (seconds_now() - shown > 10) {
            say(begin, false);
            shown = seconds_now();
        }
    }
    nftw(base, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    say(begin, true);
    return totals->findings == 0 ? 0 : 1;
}

static void usage(void)
{
    fputs("usage: crash [--images N] [--seconds N] [--of-a-seed N] [--jobs N] [--seed FIRST] [--medium dax|file]\n"
          "             [--keep FOLDER] [--until-finding] [--lose flushes|fences|syncs:EVERY]\n"
          "       crash --medium MEDIUM --seed SEED [--chain IMAGE,...] --image IMAGE\n",
          stderr);
    exit(2);
}

static void parse_chain(const char *text)
{
    char *end;
    for (settings.chain_length = 0; settings.chain_length < GENERATIONS && *text != '\0';) {
        settings.chain[settings.chain_length++] = strtoull(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
    }
}

static void parse_loss(const char *text)
{
    static const char *const names[] = {"flushes", "fences", "syncs"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(names[i]);
        if (strncmp(text, names[i], n) == 0 && text[n] == ':') {
            settings.lose = (enum recorder_loss)i;
            settings.lose_every = strtoull(text + n + 1, NULL, 10);
        }
    }
    if (settings.lose_every == 0)
        usage();
}

/* Returns the argument of --worker, or NULL. */
static const char *parse_options(int argc, char **argv)
{
    static const struct option options[] = {
        {"images", 1, 0, 'n'}, {"seconds", 1, 0, 's'},       {"of-a-seed", 1, 0, 'o'}, {"jobs", 1, 0, 'j'},
        {"seed", 1, 0, 'f'},   {"medium", 1, 0, 'm'},        {"keep", 1, 0, 'k'},      {"chain", 1, 0, 'c'},
        {"image", 1, 0, 'i'},  {"until-finding", 0, 0, 'u'}, {"lose", 1, 0, 'l'},      {"worker", 1, 0, 'w'},
        {NULL, 0, 0, 0}};
    const char *worker = NULL;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'n':
            settings.images = strtoull(optarg, NULL, 10);
            break;
        case 's':
            settings.seconds = strtoull(optarg, NULL, 10);
            break;
        case 'o':
            settings.of_a_seed = strtoull(optarg, NULL, 10);
            break;
        case 'j':
            settings.jobs = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'f':
            settings.first_seed = strtoull(optarg, NULL, 10);
            break;
        case 'm':
            settings.media[0] = strcmp(optarg, "dax") == 0;
            settings.media[1] = strcmp(optarg, "file") == 0;
            break;
        case 'k':
            settings.keep = optarg;
            break;
        case 'c':
            parse_chain(optarg);
            break;
        case 'i':
            settings.image = strtoull(optarg, NULL, 10);
            break;
        case 'u':
            settings.until_finding = true;
            break;
        case 'l':
            parse_loss(optarg);
            break;
        case 'w':
            worker = optarg;
            break;
        default:
            usage();
        }
    }
    if (settings.jobs < 1 || settings.jobs > 64 || (!settings.media[0] && !settings.media[1]))
        usage();
    return worker;
}

static int work_as(const char *worker, int argc, char **argv)
{
    unsigned long long seed;
    int medium;
    if (sscanf(worker, "%llu:%d:%d", &seed, &medium, &totals_fd) != 3 || optind != argc - 1)
        usage();
    totals = shared_memory(totals_fd, sizeof *totals);
    /* Avoids zeroing large blocks at each open. */
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 28);
    mallopt(M_TOP_PAD, 1 << 24);
    return work_on_seed(seed, (enum record_medium)medium, argv[optind]);
}

int main(int argc, char **argv)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    self = argv[0];
    settings.jobs = processors < 1 ? 1 : processors > 64 ? 64 : (unsigned)processors;
    const char *worker = parse_options(argc, argv);
    if (worker != NULL)
        return work_as(worker, argc, argv);
    totals_fd = memfd_create("totals", 0);
    EXPECT(totals_fd >= 0 && ftruncate(totals_fd, sizeof *totals) == 0);
    totals = shared_memory(totals_fd, sizeof *totals);
    return work_on_all(argv, argc);
}
