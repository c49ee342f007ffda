/* SPDX-License-Identifier: BSD-3-Clause */
/* test_topology.c - common media; unknown facts are reported as unknown. (fsdax and devdax: tests/guest.) */
#include "base/topology.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define TMPFS_MAGIC_NUMBER 0x01021994
#define EXT4_MAGIC_NUMBER  0xEF53

static long magic_of(const char *path)
{
    struct statfs volume;
    return statfs(path, &volume) == 0 ? (long)volume.f_type : -1;
}

static void assert_no_nvdimm(const struct lmcs_topology *topology)
{
    assert_false(topology->is_devdax);
    assert_false(topology->is_nvdimm);
    assert_string_equal(topology->persistence_domain, "none");
    assert_string_equal(topology->nvdimm_namespace, "");
    assert_int_equal(topology->numa_node, -1);
    assert_int_equal(topology->device_health, LMCS_HEALTH_UNKNOWN);
    assert_int_equal(topology->bad_blocks, 0);
    assert_int_equal(topology->unsafe_shutdowns, 0);
}

static void memory_file_system_is_named(void **state)
{
    (void)state;
    struct lmcs_topology topology;
    if (magic_of("/dev/shm") != TMPFS_MAGIC_NUMBER)
        skip();
    lmcs_topology_detect("/dev/shm", &topology);
    assert_string_equal(topology.file_system, "tmpfs");
    assert_true(topology.is_memory);
    assert_false(topology.is_network);
    assert_no_nvdimm(&topology);
    lmcs_topology_detect("/dev/shm/no-such-pool", &topology);
    assert_string_equal(topology.file_system, "tmpfs");
}

static void disk_file_system_is_named(void **state)
{
    (void)state;
    struct lmcs_topology topology;
    char path[] = "/var/tmp/lmcs-topology-XXXXXX";
    if (magic_of("/var/tmp") != EXT4_MAGIC_NUMBER)
        skip();
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    lmcs_topology_detect(path, &topology);
    unlink(path);
    close(fd);
    assert_string_equal(topology.file_system, "ext4");
    assert_false(topology.is_memory);
    assert_false(topology.is_network);
    if (!topology.is_nvdimm)
        assert_no_nvdimm(&topology);
}

static void relative_path_is_judged_by_the_working_directory(void **state)
{
    (void)state;
    struct lmcs_topology here;
    struct lmcs_topology there;
    lmcs_topology_detect(".", &here);
    lmcs_topology_detect("no-such-pool-here", &there);
    assert_memory_equal(here.file_system, there.file_system, sizeof here.file_system);
    assert_string_not_equal(here.file_system, "");
}

static void unknown_paths_claim_nothing(void **state)
{
    (void)state;
    static const char *const paths[] = {"/no/such/directory/pool", "", "/dev/null/pool"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct lmcs_topology topology;
        memset(&topology, 0x5a, sizeof topology);
        lmcs_topology_detect(paths[i], &topology);
        assert_false(topology.is_network);
        assert_no_nvdimm(&topology);
    }
}

static void very_long_path_is_survived(void **state)
{
    (void)state;
    struct lmcs_topology topology;
    const size_t bytes = (size_t)3 * PATH_MAX;
    char *path = malloc(bytes);
    assert_non_null(path);
    memset(path, 'x', bytes - 1);
    path[bytes - 1] = '\0';
    lmcs_topology_detect(path, &topology);
    assert_string_equal(topology.file_system, "");
    path[0] = '/';
    lmcs_topology_detect(path, &topology);
    assert_string_equal(topology.file_system, "");
    free(path);
}

static void character_device_that_is_no_dax_is_nothing(void **state)
{
    (void)state;
    struct lmcs_topology topology;
    lmcs_topology_detect("/dev/null", &topology);
    assert_string_equal(topology.file_system, "");
    assert_no_nvdimm(&topology);
}

static void network_file_systems_are_told_apart(void **state)
{
    (void)state;
    static const char *const network[] = {"nfs",  "nfs4", "lustre", "cifs",       "smb3",   "9p",
                                          "ceph", "gpfs", "fuse",   "fuse.sshfs", "fuseblk"};
    static const char *const local[] = {"ext4", "xfs",   "btrfs", "tmpfs", "overlay", "zfs",
                                        "",     "nfsd_", "fused", "ext2",  "f2fs",    "devdax"};
    for (size_t i = 0; i < sizeof network / sizeof network[0]; i++)
        assert_true(lmcs_topology_type_is_network(network[i]));
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++)
        assert_false(lmcs_topology_type_is_network(local[i]));
}

/* With empty /proc and /sys, as in a bare container. */
static int detect_without_proc_and_sys(const char *root)
{
    struct lmcs_topology topology;
    if (chroot(root) != 0 || chdir("/") != 0)
        return 77;
    lmcs_topology_detect("/pool", &topology);
    bool known = topology.file_system[0] != '\0' || magic_of("/") == -1 || magic_of("/") != EXT4_MAGIC_NUMBER;
    bool quiet = !topology.is_nvdimm && topology.numa_node == -1 && strcmp(topology.persistence_domain, "none") == 0;
    return known && quiet && !lmcs_topology_bind_thread(0) ? 0 : 1;
}

static void nothing_fails_or_prints_without_proc_and_sys(void **state)
{
    (void)state;
    int out[2];
    char root[] = "/tmp/lmcs-topology-XXXXXX";
    assert_non_null(mkdtemp(root));
    assert_int_equal(pipe(out), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(out[1], STDOUT_FILENO);
        dup2(out[1], STDERR_FILENO);
        _exit(detect_without_proc_and_sys(root));
    }
    close(out[1]);
    char printed[512] = "";
    ssize_t bytes = read(out[0], printed, sizeof printed - 1);
    close(out[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(rmdir(root), 0);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(bytes, 0);
}

static void *bind_here(void *node)
{
    cpu_set_t before;
    cpu_set_t after;
    CPU_ZERO(&before);
    CPU_ZERO(&after);
    sched_getaffinity(0, sizeof before, &before);
    bool bound = lmcs_topology_bind_thread(*(const int *)node);
    sched_getaffinity(0, sizeof after, &after);
    cpu_set_t both;
    CPU_AND(&both, &before, &after);
    bool sound = bound ? CPU_EQUAL(&both, &after) && CPU_COUNT(&after) > 0 : CPU_EQUAL(&before, &after);
    return sound ? NULL : node;
}

static void binding_never_widens_the_affinity(void **state)
{
    (void)state;
    static const int nodes[] = {-1, 0, 1, 63, 1 << 20, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++) {
        pthread_t thread;
        int node = nodes[i];
        void *failed = NULL;
        assert_int_equal(pthread_create(&thread, NULL, bind_here, &node), 0);
        pthread_join(thread, &failed);
        assert_null(failed);
    }
    assert_false(lmcs_topology_bind_thread(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_file_system_is_named),
        cmocka_unit_test(disk_file_system_is_named),
        cmocka_unit_test(relative_path_is_judged_by_the_working_directory),
        cmocka_unit_test(unknown_paths_claim_nothing),
        cmocka_unit_test(very_long_path_is_survived),
        cmocka_unit_test(character_device_that_is_no_dax_is_nothing),
        cmocka_unit_test(network_file_systems_are_told_apart),
        cmocka_unit_test(nothing_fails_or_prints_without_proc_and_sys),
        cmocka_unit_test(binding_never_widens_the_affinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
