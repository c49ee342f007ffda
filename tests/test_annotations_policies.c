/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_annotations_policies.c - annotations beside a policy that prunes, and beside other annotators.
 *
 * This program interposes the naps of an annotator, to change the pool in them.
 */
/* ctest: labels=no-tsan */
#include "test_annotations_support.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int add_for_policies(void *argument)
{
    const bool is_best = argument != NULL;
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    if (is_best)
        OK(lmcs_metric_set(pool, "run", 3, "loss", 0.25, &err));
    else
        OK(lmcs_tag_set(pool, "run", "good", 2, &err));
    close_pool(pool);
    return 0;
}

/* The annotations are still in the ring when the policy decides. */
static void policies_see_annotations(void **state)
{
    struct lmcs_prune_report report;
    path = ((struct place *)*state)->pool;
    struct lmcs_pool *writer = open_quiet(path);
    train(writer, 8);
    for (uint64_t i = 1; i <= 8; i++)
        OK(lmcs_metric_set(writer, "run", i, "loss", 1, &err));
    expect_child(start_child(add_for_policies, NULL));
    expect_child(start_child(add_for_policies, writer));
    EXPECT(writer->root.ring_applied == 0);
    OK(lmcs_prune(writer, "run", "keep=last:1,best:loss:1", true, NULL, NULL, NULL, &report, &err));
    EXPECT(report.removed == 5);
    OK(lmcs_prune(writer, "run", "keep=last:1,best:loss:1", false, NULL, NULL, NULL, &report, &err));
    EXPECT(report.removed == 5 && snapshot_tagged(writer, "good") == 2 && metric_of(writer, 3, "loss") == 0.25);
    verify_pool(writer);
    close_pool(writer);
}

enum { FREE_NAP = 100 };

static struct lmcs_pool *pruning; /* NULL: naps take time */
static int guard, naps, busy_lock = -1;
static uint64_t removed_in_nap;

int nanosleep(const struct timespec *time, struct timespec *left)
{
    if (busy_lock < 0)
        return (int)syscall(SYS_nanosleep, time, left);
    naps++;
    return flock(busy_lock, naps % FREE_NAP == 0 ? LOCK_UN : LOCK_EX);
}

int usleep(useconds_t us)
{
    if (pruning == NULL)
        return nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
    if (++naps == 3) { /* the policy goes on and ends */
        if (removed_in_nap != 0)
            OK(lmcs_snapshot_remove(pruning, "run", removed_in_nap, false, NULL, &err));
        lmcs_ring_end_pruning(guard);
    }
    return 0;
}

static enum lmcs_status tag_while_pruning(uint64_t number, const char *tag, int naps_before)
{
    struct lmcs_annotation annotation;
    bool needs_writer;
    OK(lmcs_ring_begin_pruning(pruning, &guard, &err));
    OK(lmcs_annotation_fill(LMCS_ANNOTATION_TAG, number, tag, 0, &annotation, &err));
    naps = naps_before;
    return lmcs_annotation_add(pruning, "run", &annotation, &needs_writer, &err);
}

/* An annotation that comes after a policy has decided waits for the end, and is refused if its snapshot went. */
static void wait_for_a_policy(void **state)
{
    path = ((struct place *)*state)->pool;
    pruning = open_quiet(path);
    train(pruning, 3);
    EXPECT(tag_while_pruning(3, "kept", 0) == LMCS_OK && naps == 3 && snapshot_tagged(pruning, "kept") == 3);
    removed_in_nap = 2;
    EXPECT(tag_while_pruning(2, "late", 0) == LMCS_NOT_FOUND && naps == 3 && snapshot_tagged(pruning, "late") == 0);
    EXPECT(tag_while_pruning(1, "stuck", 100) == LMCS_IN_USE && naps > 200);
    EXPECT(strstr(err.message, "has been pruning for seconds") != NULL);
    lmcs_ring_end_pruning(guard);
    close_pool(pruning);
    pruning = NULL;
}

/* Other annotators leave the pool free for moments only. */
static void wait_for_a_free_moment(void **state)
{
    path = ((struct place *)*state)->pool;
    struct lmcs_pool *pool = open_quiet(path);
    train(pool, SNAPSHOTS);
    close_pool(pool);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    EXPECT((busy_lock = open(path, O_RDWR)) >= 0 && flock(busy_lock, LOCK_EX) == 0);
    naps = 0;
    OK(lmcs_metric_set(pool, "run", 1, "m", 1, &err));
    EXPECT(naps == FREE_NAP && metric_of(pool, 1, "m") == 1);
    close(busy_lock);
    busy_lock = -1;
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(policies_see_annotations),
        IN_MEMORY(wait_for_a_policy),
        IN_MEMORY(wait_for_a_free_moment),
    };
    return cmocka_run_group_tests_name("annotations beside policies", tests, NULL, NULL);
}
