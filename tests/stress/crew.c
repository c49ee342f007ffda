/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * crew.c - see crew.h.
 *
 * The round is a number in shared memory, odd while it runs. A resting participant stores the ended round. No locks: a
 * participant may be killed at any time.
 */
#include "crew.h"
#include "stacks.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NO_MORE_ROUNDS = 0xffffffffu, REST_US = 300, HANG_SECONDS = 180 };

struct participant {
    atomic_uint rested; /* last ended round */
    struct log log;
};

struct common {
    atomic_uint round;
    char path[512];
    unsigned scale;
    struct participant participants[MOST_ACTORS]; /* threads, then reading processes */
};

struct crew {
    struct crew_options options;
    const struct stage *stage;
    struct common *common;
    int fd;
    struct rng rng;
    pthread_t threads[MOST_WRITERS];
    struct actor *actors;
    pid_t readers[MOST_READERS];
    uint64_t started; /* for seeds */
    struct crew_counts counts;
};

/* ---- Work ---- */

static void work(struct actor *actor, struct common *common, struct participant *participant)
{
    unsigned last = 0, round;
    while ((round = atomic_load(&common->round)) != NO_MORE_ROUNDS) {
        if (round == last || round % 2 == 0) {
            if (round % 2 == 0) /* also after sleeping through a round */
                atomic_store(&participant->rested, round - 1);
            usleep(REST_US);
            continue;
        }
        if (actor->writes)
            actor->pool = actor->stage->pool;
        last = round;
        while (atomic_load_explicit(&common->round, memory_order_relaxed) == round) {
            if (actor_log_is_full(actor))
                usleep(REST_US);
            else
                actor_act(actor);
        }
        actor_look_at_held(actor);
        atomic_store(&participant->rested, round);
    }
}

struct thread_start {
    struct crew *crew;
    unsigned index;
};

static void *run_thread(void *argument)
{
    struct thread_start start = *(struct thread_start *)argument;
    free(argument);
    work(&start.crew->actors[start.index], start.crew->common, &start.crew->common->participants[start.index]);
    actor_end(&start.crew->actors[start.index]);
    return NULL;
}

int crew_reader_main(int fd, unsigned index, uint64_t seed)
{
    stacks_can_be_asked();
    struct common *common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT(common != MAP_FAILED && index < MOST_ACTORS);
    close(fd);
    struct stage stage = {.path = common->path, .content = content_new(common->scale)};
    struct actor actor;
    actor_init(&actor, &stage, &common->participants[index].log, index, seed, false);
    actor.pool = open_pool(common->path, LMCS_OPEN_READ, 0);
    work(&actor, common, &common->participants[index]);
    close_pool(actor.pool);
    actor_end(&actor);
    content_free((struct content *)stage.content);
    return 0;
}

/* ---- Beginning ---- */

static void start_reader(struct crew *crew, unsigned i)
{
    char fd[16], index[16], seed[32];
    snprintf(fd, sizeof fd, "%d", crew->fd);
    snprintf(index, sizeof index, "%u", crew->options.writers + i);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)(crew->options.seed * 1000003 + ++crew->started));
    pid_t parent = getpid(), child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        fcntl(crew->fd, F_SETFD, 0);
        execl("/proc/self/exe", "stress", "--reader", fd, index, seed, NULL);
        _exit(127);
    }
    crew->readers[i] = child;
}

static struct common *share(struct crew *crew)
{
    crew->fd = memfd_create("stress", MFD_CLOEXEC);
    EXPECT(crew->fd >= 0 && ftruncate(crew->fd, sizeof(struct common)) == 0);
    struct common *common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED, crew->fd, 0);
    EXPECT(common != MAP_FAILED);
    snprintf(common->path, sizeof common->path, "%s", crew->options.path);
    common->scale = crew->options.scale;
    return common;
}

struct crew *crew_new(const struct crew_options *options, const struct stage *stage)
{
    struct crew *crew = calloc(1, sizeof *crew);
    EXPECT(crew != NULL && options->writers <= MOST_WRITERS && options->readers <= MOST_READERS);
    crew->options = *options;
    crew->stage = stage;
    crew->rng = (struct rng){options->seed ^ 0xc4e3};
    crew->common = share(crew);
    crew->actors = calloc(options->writers, sizeof *crew->actors);
    EXPECT(crew->actors != NULL);
    for (unsigned i = 0; i < options->writers; i++) {
        struct thread_start *start = malloc(sizeof *start);
        EXPECT(start != NULL);
        *start = (struct thread_start){crew, i};
        actor_init(&crew->actors[i], stage, &crew->common->participants[i].log, i, options->seed * 31 + i, true);
        EXPECT(pthread_create(&crew->threads[i], NULL, run_thread, start) == 0);
    }
    return crew;
}

/* ---- A round ---- */

/* A reader that ended by itself has reported a finding. */
static void expect_alive(struct crew *crew)
{
    for (unsigned i = 0; i < crew->options.readers; i++) {
        int status;
        if (crew->readers[i] == 0 || waitpid(crew->readers[i], &status, WNOHANG) == 0)
            continue;
        fprintf(stderr, "a reading process ended with status %x\n", (unsigned)status);
        _exit(99);
    }
}

static bool somebody_is_full(const struct crew *crew)
{
    for (unsigned i = 0; i < crew_size(crew); i++)
        if (atomic_load_explicit(&crew->common->participants[i].log.count, memory_order_relaxed) + LOG_SPARE >
            LOG_EVENTS)
            return true;
    return false;
}

static void kill_reader(struct crew *crew, unsigned i)
{
    kill(crew->readers[i], SIGKILL);
    EXPECT(waitpid(crew->readers[i], NULL, 0) == crew->readers[i]);
    crew->readers[i] = 0;
    crew->counts.killed++;
}

/* Kills and stops in a round; the first reader is never killed. */
struct fate {
    unsigned at_ms;
    unsigned killed;  /* 0: none */
    unsigned stopped; /* MOST_READERS: none */
};

static struct fate draw_fate(struct crew *crew, unsigned ms)
{
    unsigned readers = crew->options.readers;
    struct fate fate = {.at_ms = (unsigned)rng_below(&crew->rng, ms + 1), .stopped = MOST_READERS};
    if (readers > 1 && rng_below(&crew->rng, 3) == 0)
        fate.killed = 1 + (unsigned)rng_below(&crew->rng, readers - 1);
    if (readers > 0 && rng_below(&crew->rng, 2) == 0)
        fate.stopped = (unsigned)rng_below(&crew->rng, readers);
    return fate;
}

static void befall(struct crew *crew, const struct fate *fate)
{
    if (fate->stopped < MOST_READERS && kill(crew->readers[fate->stopped], SIGSTOP) == 0)
        crew->counts.stopped++;
    if (fate->killed != 0)
        kill_reader(crew, fate->killed);
}

static void say_where_all_are(const struct crew *crew)
{
    stacks_say(getpid());
    for (unsigned i = 0; i < crew->options.readers; i++) {
        if (crew->readers[i] == 0)
            continue;
        fprintf(stderr, "-- reading process %u:\n", crew->options.writers + i);
        stacks_say(crew->readers[i]);
    }
}

static void wait_for_rest(struct crew *crew, unsigned round)
{
    uint64_t start = monotonic_ns();
    for (unsigned i = 0; i < crew_size(crew);) {
        bool dead = i >= crew->options.writers && crew->readers[i - crew->options.writers] == 0;
        if (dead || atomic_load(&crew->common->participants[i].rested) == round) {
            i++;
            continue;
        }
        expect_alive(crew);
        if (monotonic_ns() - start > (uint64_t)HANG_SECONDS * 1000000000u) {
            fprintf(stderr, "%s %u hangs\n", i < crew->options.writers ? "thread" : "reading process", i);
            say_where_all_are(crew);
            _exit(99);
        }
        usleep(REST_US);
    }
}

void crew_round(struct crew *crew, unsigned ms)
{
    struct fate fate = draw_fate(crew, ms);
    for (unsigned i = 0; i < crew_size(crew); i++)
        atomic_store(&crew->common->participants[i].log.count, 0);
    for (unsigned i = 0; i < crew->options.readers; i++)
        if (crew->readers[i] == 0)
            start_reader(crew, i);
    unsigned round = atomic_fetch_add(&crew->common->round, 1) + 1;
    uint64_t start = monotonic_ns(), elapsed_ms = 0;
    for (bool fallen = false; elapsed_ms < ms; elapsed_ms = (monotonic_ns() - start) / 1000000) {
        usleep(2000);
        expect_alive(crew);
        if (!fallen && elapsed_ms >= fate.at_ms) {
            befall(crew, &fate);
            fallen = true;
        }
        if (somebody_is_full(crew))
            break;
    }
    atomic_fetch_add(&crew->common->round, 1);
    for (unsigned i = 0; i < crew->options.readers; i++)
        if (crew->readers[i] != 0)
            kill(crew->readers[i], SIGCONT);
    wait_for_rest(crew, round);
}

/* ---- At rest ---- */

unsigned crew_size(const struct crew *crew)
{
    return crew->options.writers + crew->options.readers;
}

const struct log *crew_log(const struct crew *crew, unsigned i)
{
    return &crew->common->participants[i].log;
}

void crew_take_spans(struct crew *crew, struct spans *into)
{
    for (unsigned i = 0; i < crew_size(crew); i++) {
        struct spans *spans = &crew->common->participants[i].log.spans;
        spans_merge(into, spans);
        memset(spans, 0, sizeof *spans);
    }
}

pid_t crew_reader(const struct crew *crew)
{
    return crew->options.readers > 0 ? crew->readers[0] : 0;
}

struct crew_counts crew_counts(const struct crew *crew)
{
    struct crew_counts counts = crew->counts;
    for (unsigned i = 0; i < crew_size(crew); i++)
        counts.bytes_checked += atomic_load(&crew->common->participants[i].log.bytes_checked);
    return counts;
}

void crew_end(struct crew *crew)
{
    atomic_store(&crew->common->round, NO_MORE_ROUNDS);
    for (unsigned i = 0; i < crew->options.writers; i++)
        pthread_join(crew->threads[i], NULL);
    for (unsigned i = 0; i < crew->options.readers; i++) {
        int status = 0;
        if (crew->readers[i] != 0)
            EXPECT(waitpid(crew->readers[i], &status, 0) == crew->readers[i] && status == 0);
    }
    munmap(crew->common, sizeof *crew->common);
    close(crew->fd);
    free(crew->actors);
    free(crew);
}
