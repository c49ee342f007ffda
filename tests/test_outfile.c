/* SPDX-License-Identifier: BSD-3-Clause */
/* test_outfile.c - output files: kills, targets that exist or appear, and a system without /proc. */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/outfile.h"
#include "support.h"

#define CAN_NOT_MOUNT 77

struct work {
    const struct place *place;
    char path[512];
    bool is_export;
    int calls; /* of the progress callback, until the child kills itself */
};

static struct work work_on(const struct place *place)
{
    struct work work = {.place = place, .calls = 3};
    place_path(place, "out", work.path);
    return work;
}

/* Counts the names that begin like this in the folder. */
static int count_names(const struct place *place, const char *prefix)
{
    int count = 0;
    DIR *folder = opendir(place->folder);
    EXPECT(folder != NULL);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(folder);
    return count;
}

static void require_unnamed_files(const struct place *place)
{
    int fd = open(place->folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        skip();
    close(fd);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    EXPECT(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void expect_text(const char *path, const char *text)
{
    char got[64] = "";
    FILE *file = fopen(path, "re");
    EXPECT(file != NULL);
    size_t bytes = fread(got, 1, sizeof got - 1, file);
    fclose(file);
    EXPECT(bytes == strlen(text) && memcmp(got, text, bytes) == 0);
}

static void open_with(const struct work *work, const char *text, struct lmcs_outfile *file)
{
    OK(lmcs_outfile_open(work->path, 1 << 20, file, &err));
    OK(lmcs_outfile_write(file, text, strlen(text), &err));
}

/* ---- Kills ---------------------------------------------------------------------------------------------------- */

static bool kill_at(void *context, const char *what, uint64_t done, uint64_t total)
{
    int *calls = context;
    (void)what;
    (void)done;
    (void)total;
    if (--*calls == 0)
        raise(SIGKILL);
    return true;
}

static int write_until_killed(void *argument)
{
    struct work *work = argument;
    struct lmcs_pool *pool = open_quiet(work->place->pool);
    const struct lmcs_progress progress = {kill_at, &work->calls};
    struct lmcs_snapshot *snapshot;
    struct lmcs_outfile file;
    if (work->is_export) {
        OK(lmcs_snapshot_open(pool, "run", &snapshot, &err));
        OK(lmcs_export_safetensors(snapshot, NULL, work->path, &progress, NULL, &err));
    } else {
        open_with(work, "", &file);
        OK(lmcs_dump(pool, NULL, file.fd, &progress, NULL, &err));
    }
    return 1;
}

static void kills_leave_nothing(void **state)
{
    const struct place *place = *state;
    require_unnamed_files(place);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *held = state_of_noise(1, 24 << 20);
    take_snapshot(pool, "run", held, 0);
    state_free(held);
    close_pool(pool);
    for (int i = 0; i < 4; i++) {
        struct work work = work_on(place);
        work.is_export = i % 2 != 0;
        if (i == 2)
            write_text(work.path, "old");
        int names = count_names(place, "");
        int status = run_child(write_until_killed, &work, 120);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_equal(count_names(place, ""), names);
        if (i >= 2)
            expect_text(work.path, "old");
    }
}

/* ---- Targets -------------------------------------------------------------------------------------------------- */

static void targets_are_replaced_whole(void **state)
{
    const struct place *place = *state;
    const struct work work = work_on(place);
    for (int i = 0; i < 3; i++) { /* no target, a target, a target that appears */
        struct lmcs_outfile file;
        struct stat st;
        unlink(work.path);
        if (i == 1)
            write_text(work.path, "old");
        open_with(&work, "new content", &file);
        if (i == 2)
            write_text(work.path, "old");
        if (i >= 1)
            expect_text(work.path, "old");
        OK(lmcs_outfile_commit(&file, &err));
        lmcs_outfile_close(&file);
        expect_text(work.path, "new content");
        assert_int_equal(stat(work.path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        assert_int_equal(st.st_nlink, 1);
        assert_int_equal(count_names(place, ".lmc-store-"), 0);
    }
}

static void a_failed_commit_leaves_nothing(void **state)
{
    const struct place *place = *state;
    const struct work work = work_on(place);
    struct lmcs_outfile file;
    open_with(&work, "new", &file);
    assert_int_equal(mkdir(work.path, 0700), 0);
    FAILS(LMCS_IO, lmcs_outfile_commit(&file, &err));
    lmcs_outfile_close(&file);
    assert_int_equal(count_names(place, ".lmc-store-"), 0);
    assert_int_equal(rmdir(work.path), 0);
    open_with(&work, "new", &file);
    write_text(work.path, "PMEMOBJ");
    FAILS(LMCS_INVALID, lmcs_outfile_commit(&file, &err));
    lmcs_outfile_close(&file);
    expect_text(work.path, "PMEMOBJ");
    assert_int_equal(count_names(place, ".lmc-store-"), 0);
}

/* ---- No /proc ------------------------------------------------------------------------------------------------- */

static int write_without_proc(void *argument)
{
    const struct work *work = argument;
    struct lmcs_outfile file;
    if ((unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("none", "/proc", "tmpfs", 0, NULL) != 0)
        return CAN_NOT_MOUNT;
    open_with(work, "new", &file);
    EXPECT(count_names(work->place, ".lmc-store-") == 1);
    lmcs_outfile_close(&file);
    EXPECT(count_names(work->place, "") == 2); /* . and .. */
    for (int i = 0; i < 2; i++) {
        open_with(work, "new content", &file);
        OK(lmcs_outfile_commit(&file, &err));
        lmcs_outfile_close(&file);
        expect_text(work->path, "new content");
        EXPECT(count_names(work->place, "") == 3);
    }
    return 0;
}

static void without_proc_files_have_a_temporary_name(void **state)
{
    struct work work = work_on(*state);
    int status = run_child(write_without_proc, &work, 120);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CAN_NOT_MOUNT)
        skip();
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_DISK(kills_leave_nothing),
        ON_BOTH(targets_are_replaced_whole),
        ON_BOTH(a_failed_commit_leaves_nothing),
        ON_BOTH(without_proc_files_have_a_temporary_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
