/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * guest_train.c - a training loop whose machine is killed.
 *
 * guest_train ACKS LINE NAME=POOL...
 *
 * Checks all earlier acknowledgements, then snapshots every step and acknowledges it on LINE, a serial port; its bytes
 * have left the machine when tcdrain returns. ACKS is the host's copy. A state follows from its step. Captures write
 * links, and every second one is promised before its tensors are put.
 */
#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include "sgd.h"
#include "support.h"

#define KEPT   5u
#define STEPS  64u
#define MOST   4u
#define POLICY "keep_raw=3 links=8 restore=none " WRITE_LINKS

struct run {
    const char *name;
    const char *path;
    struct lmcs_pool *pool;
    uint64_t acknowledged; /* also the step; 0: none */
};

static const size_t floats[] = {16, 300, 5000, 40000, 270000, 1, 20000, 64};
#define TENSORS (sizeof floats / sizeof floats[0])

static float *weights[TENSORS]; /* at first */
static struct sgd_run trained;

static void make_weights(void)
{
    for (size_t i = 0; i < TENSORS; i++) {
        struct rng rng = {i};
        weights[i] = malloc(floats[i] * sizeof *weights[i]);
        EXPECT(weights[i] != NULL);
        for (size_t k = 0; k < floats[i]; k++)
            weights[i][k] = (float)rng_below(&rng, 1 << 20) / 1e9f;
    }
    trained = sgd_run(1, 30000, STEPS);
}

static void add_array(struct state *state, const char *name, const float *steps, uint64_t step)
{
    struct held *held = state_add(state, name, LMC_F32, 1, &trained.elements);
    memcpy(held->data, steps + step % STEPS * trained.elements, held->bytes);
}

/* Tensor i changes a little in every (i + 1)-th step; two follow an optimizer. */
static struct state *state_at(uint64_t step)
{
    struct state *state = calloc(1, sizeof *state);
    EXPECT(state != NULL);
    for (size_t i = 0; i < TENSORS; i++) {
        char name[32];
        uint64_t shape = floats[i], changed = step - step % (i + 1);
        snprintf(name, sizeof name, "layer.%zu", i);
        struct held *held = state_add(state, name, LMC_F32, 1, &shape);
        for (size_t k = 0; k < floats[i]; k++) {
            float weight = weights[i][k] * (1 + (float)(changed % 9973) / 65536);
            memcpy(held->data + k * sizeof weight, &weight, sizeof weight);
        }
    }
    add_array(state, "momentum", trained.momenta, step);
    add_array(state, "weight", trained.weights, step);
    return state;
}

static void say(int line, const char *text)
{
    EXPECT(write(line, text, strlen(text)) == (ssize_t)strlen(text));
    tcdrain(line);
}

static void acknowledge(int line, struct run *run, uint64_t number)
{
    char text[64];
    snprintf(text, sizeof text, "ack %s %llu\n", run->name, (unsigned long long)number);
    say(line, text);
    run->acknowledged = number;
}

/* Returns the highest number. A line without a newline doesn't count. */
static void read_acks(const char *path, struct run *runs, size_t count)
{
    char line[256], name[64];
    unsigned long long number;
    FILE *file = fopen(path, "re");
    EXPECT(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strchr(line, '\n') == NULL || sscanf(line, "ack %63s %llu", name, &number) != 2)
            continue;
        for (size_t i = 0; i < count; i++)
            if (strcmp(name, runs[i].name) == 0 && runs[i].acknowledged < number)
                runs[i].acknowledged = number;
    }
    fclose(file);
}

/* May be missing only without acknowledged snapshots. */
static void open_run(struct run *run)
{
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    OK(lmcs_pool_open(run->path, run->acknowledged > 0 ? LMCS_OPEN_WRITE : LMCS_OPEN_OR_CREATE, &options, &run->pool,
                      &err));
    OK(lmcs_shelf_set_policy(run->pool, "run", POLICY, &err));
}

static void check_run(struct run *run, int line)
{
    struct lmcs_shelf_info shelf = shelf_info(run->pool, "run");
    uint32_t longest_line = 0;
    printf("%s: acknowledged %llu, found %llu, %llu snapshots\n", run->name, (unsigned long long)run->acknowledged,
           (unsigned long long)shelf.latest, (unsigned long long)shelf.snapshot_count);
    /* At most one snapshot is unacknowledged. */
    EXPECT(shelf.latest >= run->acknowledged && shelf.latest <= run->acknowledged + 1);
    /* A kill before a removal leaves one more. */
    uint64_t least = shelf.latest < KEPT ? shelf.latest : KEPT;
    EXPECT(shelf.snapshot_count >= least && shelf.snapshot_count <= least + 1);
    for (uint64_t number = shelf.latest; number > 0 && number + least > shelf.latest; number--) {
        struct state *state = state_at(number);
        expect_snapshot(run->pool, "run", number, state);
        state_free(state);
        const uint32_t links = storage_of(run->pool, "run", number).longest_line;
        longest_line = links > longest_line ? links : longest_line;
    }
    printf("%s: at most %u links\n", run->name, longest_line);
    verify_pool(run->pool);
    if (shelf.latest > 0)
        acknowledge(line, run, shelf.latest);
}

static void remove_old(struct run *run, uint64_t step)
{
    for (uint64_t old = step > KEPT + 1 ? step - KEPT - 1 : 1; old + KEPT <= step; old++) {
        enum lmcs_status status = lmcs_snapshot_remove(run->pool, "run", old, false, NULL, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
    }
}

static uint64_t capture(struct run *run, const struct state *state, uint64_t step)
{
    const struct lmcs_relation relation = sgd_relation("momentum", "weight");
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    uint64_t number = 0;
    const bool promised = step % 2 == 0;
    lmcs_commit_options_init(&options);
    options.step = (int64_t)step;
    OK(lmcs_capture_begin(run->pool, "run", &capture, &err));
    OK(lmcs_capture_relate(capture, &relation, 1, &err));
    if (promised)
        OK(lmcs_capture_promise(capture, &options, &number, &err));
    put_state(capture, state);
    OK(lmcs_capture_commit(capture, &options, promised ? NULL : &number, &err));
    if (promised)
        OK(lmcs_capture_wait(capture, &err));
    return number;
}

static void step_run(struct run *run, int line)
{
    uint64_t step = run->acknowledged + 1;
    struct state *state = state_at(step);
    uint64_t number = capture(run, state, step);
    EXPECT(number == step);
    acknowledge(line, run, number);
    state_free(state);
    remove_old(run, step);
    struct lmcs_pool_info info = pool_info(run->pool);
    if (info.compaction_error[0] != '\0')
        fprintf(stderr, "compaction: %s\n", info.compaction_error);
    EXPECT(info.compaction_error[0] == '\0');
}

int main(int argc, char **argv)
{
    struct run runs[MOST] = {0};
    size_t count = 0;
    for (int i = 3; i < argc && count < MOST; i++) {
        char *equals = strchr(argv[i], '=');
        EXPECT(equals != NULL);
        *equals = '\0';
        runs[count++] = (struct run){.name = argv[i], .path = equals + 1};
    }
    if (count == 0)
        return fprintf(stderr, "usage: guest_train ACKS LINE NAME=POOL...\n"), 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int line = open(argv[2], O_WRONLY | O_NOCTTY | O_CLOEXEC);
    EXPECT(line >= 0);
    read_acks(argv[1], runs, count);
    make_weights();
    say(line, "begun\n");
    for (size_t i = 0; i < count; i++)
        open_run(&runs[i]);
    for (size_t i = 0; i < count; i++)
        check_run(&runs[i], line);
    say(line, "checked\n");
    for (;;)
        for (size_t i = 0; i < count; i++)
            step_run(&runs[i], line);
}
