/* SPDX-License-Identifier: BSD-3-Clause */
/* make_identities.c - writes identities/: a chain of archives of renamed shelves, a part restored (make_later.sh). */
#include "make_support.h"

static void grow(struct lmcs_pool *pool, const char *shelf, uint64_t seed, int count)
{
    struct rng rng = {seed};
    struct state *state = state_weights(&rng, 3, 300);
    for (int step = 0; step < count; step++) {
        take_snapshot(pool, shelf, state, step);
        state_step(state, &rng, 0, state->count);
    }
    state_free(state);
}

static int dump_as(struct lmcs_pool *pool, const char *name, const int *since, size_t count)
{
    const struct lmcs_dump_options options = {.since = since, .since_count = count};
    int fd = new_file(path_in("identities", name));
    OK(lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static void write_archives(const int fds[2])
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (int i = 0; i < 2; i++) {
        EXPECT(lseek(fds[i], 0, SEEK_SET) == 0);
        OK(describe_archive(out, i == 0 ? "base.archive" : "since.archive", fds[i], &err));
    }
    fclose(out);
    write_text("identities", "archives", text);
    free(text);
}

/* After base.archive "run" becomes "first", and another "run" begins. */
static void write_chain(int fds[2])
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_pool *pool = make_pool(path_in("identities", "a.pool"));
    grow(pool, "run", 1, 4);
    OK(lmcs_tag_set(pool, "run", "best", 2, &err));
    OK(lmcs_tag_set(pool, "run", "gone", 1, &err));
    fds[0] = dump_as(pool, "base.archive", NULL, 0);
    OK(lmcs_shelf_rename(pool, "run", "first", &err));
    OK(lmcs_tag_set(pool, "first", "best", 3, &err));
    OK(lmcs_tag_remove(pool, "first", "gone", &err));
    OK(lmcs_snapshot_open(pool, "first@3", &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, "fork", &err));
    lmcs_snapshot_close(snapshot);
    grow(pool, "run", 2, 2);
    fds[1] = dump_as(pool, "since.archive", fds, 1);
    close_pool(pool);
    describe_as("identities", "a.pool", "reading", path_in("identities", "a.pool"), LMCS_OPEN_READ);
}

static void write_part(int archive)
{
    static const char *const only[] = {"t0", "t2"};
    struct lmcs_restore_options options = {.only = only, .only_count = 1};
    const char *path = path_in("identities", "part.pool");
    struct lmcs_pool *pool = make_pool(path);
    for (int i = 0; i < 2; i++, options.only = &only[1]) { /* the second completes the first */
        EXPECT(lseek(archive, 0, SEEK_SET) == 0);
        OK(lmcs_restore_with(pool, &archive, 1, &options, NULL, NULL, &err));
    }
    close_pool(pool);
    describe_as("identities", "part.pool", "reading", path, LMCS_OPEN_READ);
}

int main(int argc, char **argv)
{
    int fds[2];
    begin_program(argc, argv);
    write_chain(fds);
    write_part(fds[0]);
    write_archives(fds);
    return 0;
}
