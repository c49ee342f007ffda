/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * guest_medium.c - reports about persistent memory, and the store's reaction when it fails.
 *
 * guest_medium FSDAX PAGED DEVICE MEMORY      (folders, a devdax device, the device node below FSDAX)
 *
 * An injected machine check fails a page: the NVDIMM driver enters a bad block, reads fail with EIO, new mappings raise
 * SIGBUS.
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/guard.h"
#include "base/topology.h"
#include "records/content.h"
#include "support.h"

static const char *fsdax, *paged, *device, *memory;

/* Replaces libndctl's counter, since QEMU's NVDIMMs have none. -1: no counter. */
struct ndctl_dimm;
static long long unsafe_shutdowns = -1;
__attribute__((visibility("default"))) long long ndctl_dimm_get_dirty_shutdown(struct ndctl_dimm *dimm);
long long ndctl_dimm_get_dirty_shutdown(struct ndctl_dimm *dimm)
{
    (void)dimm;
    return unsafe_shutdowns;
}

static void pool_path(const char *folder, const char *name, char path[512])
{
    snprintf(path, 512, "%s/%s", folder, name);
    unlink(path);
}

/* ---- Information ---- */

static void fsdax_is_known(void **state)
{
    (void)state;
    char path[512];
    pool_path(fsdax, "known.pool", path);
    unsafe_shutdowns = 3;
    struct lmcs_pool *pool = open_quiet(path);
    struct lmcs_pool_info info = pool_info(pool);
    EXPECT(info.medium == LMCS_MEDIUM_FSDAX && info.is_persistent_memory && !info.forced);
    EXPECT(strcmp(info.file_system, "ext4") == 0 && strcmp(info.persistence_domain, "memory_controller") == 0);
    EXPECT(strncmp(info.nvdimm_namespace, "namespace", 9) == 0);
    EXPECT(info.numa_node == 1 && info.device_health == -1 && info.bad_blocks == 0 && info.unsafe_shutdowns == 3);
    close_pool(pool);
    unsafe_shutdowns = -1;
}

/* Without DAX stores use the page cache. */
static void pages_are_not_taken_for_dax(void **state)
{
    (void)state;
    char path[512];
    pool_path(paged, "known.pool", path);
    struct lmcs_pool *pool = open_quiet(path);
    struct lmcs_pool_info info = pool_info(pool);
    EXPECT(info.medium == LMCS_MEDIUM_FILE && !info.is_persistent_memory);
    EXPECT(info.numa_node == 1 && info.nvdimm_namespace[0] != '\0');
    close_pool(pool);
}

static void *processors_of_node(void *node)
{
    cpu_set_t set;
    if (!lmcs_topology_bind_thread(*(int *)node) || sched_getaffinity(0, sizeof set, &set) != 0)
        return NULL;
    /* Each node has one processor, of its number. */
    return CPU_COUNT(&set) == 1 && CPU_ISSET(*(int *)node, &set) ? node : NULL;
}

static void threads_run_beside_the_memory(void **state)
{
    (void)state;
    for (int node = 0; node < 2; node++) {
        pthread_t thread;
        void *right = NULL;
        EXPECT(pthread_create(&thread, NULL, processors_of_node, &node) == 0);
        pthread_join(thread, &right);
        EXPECT(right != NULL);
    }
}

/* ---- Costs ---- */

/* The first number of /proc/fs/jbd2/DEVICE-8/info. */
static unsigned long journal_transactions(void)
{
    char path[256];
    unsigned long count = 0;
    const char *name = strrchr(memory, '/') + 1;
    snprintf(path, sizeof path, "/proc/fs/jbd2/%s-8/info", name);
    FILE *file = fopen(path, "re");
    EXPECT(file != NULL && fscanf(file, "%lu", &count) == 1);
    fclose(file);
    return count;
}

static void pages_are_stored_to_without_the_journal(void **state)
{
    (void)state;
    struct rng rng = {1};
    char path[512];
    pool_path(fsdax, "journal.pool", path);
    struct state *weights = state_weights(&rng, 4, 1000000); /* 16 MB: 4,000 pages */
    unsigned long before = journal_transactions();
    struct lmcs_pool *pool = open_quiet(path);
    unsigned long created = journal_transactions();
    take_snapshot(pool, "run", weights, 1);
    unsigned long taken = journal_transactions();
    print_message("%lu transactions of the journal for a pool, %lu for 4,000 pages\n", created - before,
                  taken - created);
    EXPECT(created - before <= 20 && taken - created <= 40);
    close_pool(pool);
    state_free(weights);
}

/* ---- Unsafe shutdowns ---- */

static int open_and_die(void *path)
{
    struct rng rng = {2};
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
    struct state *weights = state_weights(&rng, 2, 50000);
    take_snapshot(pool, "run", weights, 2);
    kill(getpid(), SIGKILL);
    return 0;
}

/* The report names a remedy, which works. */
static void unsafe_shutdown_while_open_is_told(void **state)
{
    (void)state;
    struct rng rng = {2};
    struct lmcs_pool *pool;
    char path[512], command[600];
    pool_path(fsdax, "shutdown.pool", path);
    unsafe_shutdowns = 7;
    struct state *weights = state_weights(&rng, 2, 50000);
    pool = open_quiet(path);
    take_snapshot(pool, "run", weights, 1);
    close_pool(pool);
    unsafe_shutdowns = 8; /* while the pool was closed */
    close_pool(open_pool(path, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND));
    int status = run_child(open_and_die, path, 60);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close_pool(open_pool(path, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND)); /* a kill is no power failure */
    status = run_child(open_and_die, path, 60);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    unsafe_shutdowns = 9;
    FAILS(LMCS_DAMAGED, lmcs_pool_open(path, LMCS_OPEN_WRITE, NULL, &pool, &err));
    print_message("%s\n", err.message);
    EXPECT(strstr(err.message, "the power failed") != NULL && strstr(err.message, "pmempool feature") != NULL);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    verify_pool(pool);
    close_pool(pool);
    snprintf(command, sizeof command, "pmempool feature -d SHUTDOWN_STATE %s", path);
    EXPECT(system(command) == 0);
    pool = open_pool(path, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
    EXPECT(shelf_info(pool, "run").latest == 3);
    close_pool(pool);
    unsafe_shutdowns = -1;
    state_free(weights);
}

/* ---- Failed memory ---- */

static unsigned long long number_in(const char *path)
{
    char text[64] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    EXPECT(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return strtoull(text, NULL, 0);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    /* The kernel removes the last character. */
    EXPECT(fd >= 0 && dprintf(fd, "%s\n", text) > 0);
    close(fd);
}

/* An uncorrected error at a physical address, as an AMD processor's fourth bank reports it. */
static void fail_memory_at(uint64_t address)
{
    static const char *const folder = "/sys/kernel/debug/mce-inject";
    char text[32];
    snprintf(text, sizeof text, "0x%llx", (unsigned long long)address);
    write_text(folder, "flags", "sw");
    write_text(folder, "status", "0xbc00000000080080");
    write_text(folder, "addr", text);
    write_text(folder, "misc", "0x8c");
    write_text(folder, "cpu", "0");
    write_text(folder, "bank", "4");
}

static uint64_t bad_sectors(void)
{
    char path[256], line[64];
    uint64_t sum = 0;
    unsigned long long first, count;
    snprintf(path, sizeof path, "/sys/block/%s/badblocks", strrchr(memory, '/') + 1);
    FILE *file = fopen(path, "re");
    EXPECT(file != NULL);
    while (fgets(line, sizeof line, file) != NULL)
        sum += sscanf(line, "%llu %llu", &first, &count) == 2 ? count : 0;
    fclose(file);
    return sum;
}

static void fail_page_of_file(const char *path, uint64_t offset)
{
    char resource[256];
    int fd = open(path, O_RDONLY | O_CLOEXEC), block = (int)(offset / 4096);
    EXPECT(fd >= 0 && ioctl(fd, FIBMAP, &block) == 0 && block > 0);
    close(fd);
    snprintf(resource, sizeof resource, "/sys/block/%s/device/resource", strrchr(memory, '/') + 1);
    uint64_t before = bad_sectors();
    fail_memory_at(number_in(resource) + (uint64_t)block * 4096);
    for (int i = 0; i < 100 && bad_sectors() == before; i++)
        usleep(20000);
    EXPECT(bad_sectors() == before + 8);
}

static uint64_t place_of(struct lmcs_pool *pool, uint64_t number, const char *tensor)
{
    struct lmcs_txn txn;
    struct lmcs_content content;
    uint64_t id = content_of(pool, "run", number, tensor);
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_content_get(&txn, id, &content, &err));
    lmcs_txn_end(&txn);
    EXPECT(content.df.payload == LMCS_PAYLOAD_RAW);
    return content.parts[0].offset;
}

struct failing {
    char path[512];
    struct state *weights;
};

struct told {
    unsigned count;
    bool right;
};

static void hear(void *context, const struct lmcs_damage *damage)
{
    struct told *told = context;
    print_message("damage: %s@%llu %s, bytes %llu to %llu: %s\n", damage->shelf, (unsigned long long)damage->number,
                  damage->tensor, (unsigned long long)damage->first_byte,
                  (unsigned long long)(damage->first_byte + damage->byte_count), damage->what);
    told->right = strcmp(damage->tensor, "t2") == 0 && damage->first_byte == 0 && damage->byte_count == 1 << 20;
    told->count++;
}

/* The error names the tensor; others are unaffected. */
static void read_what_failed(struct lmcs_pool *pool, const struct state *weights)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    struct lmcs_verify_report report;
    struct told told = {0};
    struct lmcs_transfer_report transfer;
    char *bytes = malloc(weights->tensors[2].bytes);
    OK(lmcs_snapshot_find(pool, "run", "1", &snapshot, &err));
    for (size_t i = 0; i < weights->count; i++) {
        const struct held *held = &weights->tensors[i];
        enum lmcs_status status = lmcs_snapshot_read(snapshot, LMCS_TENSOR, held->name, bytes, held->bytes, &err);
        EXPECT(status == (i == 2 ? LMCS_DAMAGED : LMCS_OK));
        EXPECT(i == 2 ? strstr(err.message, "tensor \"t2\"") != NULL : memcmp(bytes, held->data, held->bytes) == 0);
    }
    FAILS(LMCS_DAMAGED, lmcs_view_open(snapshot, NULL, NULL, 0, LMCS_VIEW_VERIFY, &view, &err));
    EXPECT(strstr(err.message, "tensor \"t2\"") != NULL);
    FAILS(LMCS_DAMAGED, lmcs_view_open(snapshot, NULL, NULL, 0, LMCS_VIEW_COPY, &view, &err));
    lmcs_snapshot_close(snapshot);
    FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, hear, &told, NULL, &report, &err));
    EXPECT(told.count == 1 && told.right && report.damages == 1);
    int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);
    FAILS(LMCS_DAMAGED, lmcs_dump(pool, NULL, sink, NULL, &transfer, &err));
    EXPECT(strstr(err.message, "t2") != NULL);
    print_message("%s\n", err.message);
    close(sink);
    free(bytes);
}

static int read_failed_file(void *argument)
{
    struct failing *failing = argument;
    struct lmcs_pool *pool = open_pool(failing->path, LMCS_OPEN_READ, 0);
    EXPECT(pool_info(pool).bad_blocks >= 8);
    read_what_failed(pool, failing->weights);
    close_pool(pool);
    return 0;
}

/* Raises SIGBUS. */
static int touch_failed_view(void *argument)
{
    struct failing *failing = argument;
    struct lmcs_pool *pool = open_pool(failing->path, LMCS_OPEN_READ, 0);
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    const char *name = "t2";
    signal(SIGBUS, SIG_DFL);
    OK(lmcs_snapshot_find(pool, "run", "1", &snapshot, &err));
    OK(lmcs_view_open(snapshot, &name, NULL, 1, 0, &view, &err));
    return ((volatile char *)lmcs_view_data(view, 0))[8192];
}

/* libpmemobj may refuse known bad blocks; no process dies, and no data is lost. */
static int write_where_memory_failed(void *argument)
{
    struct failing *failing = argument;
    struct lmcs_pool *pool;
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    signal(SIGBUS, SIG_DFL);
    enum lmcs_status status = lmcs_pool_open(failing->path, LMCS_OPEN_WRITE, &options, &pool, &err);
    if (status != LMCS_OK) {
        print_message("%s\n", err.message);
        return status == LMCS_DAMAGED ? 0 : 1;
    }
    uint64_t number = take_snapshot(pool, "run", failing->weights, 2);
    EXPECT(content_of(pool, "run", 1, "t1") == content_of(pool, "run", number, "t1"));
    EXPECT(content_of(pool, "run", 1, "t2") != content_of(pool, "run", number, "t2"));
    expect_snapshot(pool, "run", number, failing->weights);
    struct rng rng = {9};
    OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
    state_step(failing->weights, &rng, 0, failing->weights->count);
    number = take_snapshot(pool, "run", failing->weights, 3);
    OK(lmcs_compact(pool, NULL, &err));
    expect_snapshot(pool, "run", number, failing->weights);
    close_pool(pool);
    return 0;
}

static void failed_page_of_a_file(void **state)
{
    (void)state;
    struct rng rng = {3};
    struct failing failing = {.weights = state_weights(&rng, 4, 400000)};
    pool_path(fsdax, "failing.pool", failing.path);
    struct lmcs_pool *pool = open_quiet(failing.path);
    take_snapshot(pool, "run", failing.weights, 1);
    uint64_t at = place_of(pool, 1, "t2") + 8192;
    close_pool(pool);
    fail_page_of_file(failing.path, at);
    expect_child(start_child(read_failed_file, &failing));
    int status = run_child(touch_failed_view, &failing, 60);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    expect_child(start_child(write_where_memory_failed, &failing));
    state_free(failing.weights);
}

/* Mappings of a device have no bad blocks: the page fails in the mapping. */
static int read_failed_device(void *weights)
{
    signal(SIGBUS, SIG_DFL);
    struct lmcs_pool *pool = open_pool(device, LMCS_OPEN_READ, 0);
    uint64_t at = place_of(pool, 1, "t2") + 8192;
    void *page = (void *)((uintptr_t)lmcs_media_at(pool->media, at, 1) & ~(uintptr_t)0x1fffff);
    int empty = memfd_create("empty", MFD_CLOEXEC);
    /* Mappings can be cut only at the alignment: replaces 2 MiB. */
    EXPECT(empty >= 0 && mmap(page, 2 << 20, PROT_READ, MAP_SHARED | MAP_FIXED, empty, 0) == page);
    struct lmcs_snapshot *snapshot;
    char *bytes = malloc(((struct state *)weights)->tensors[2].bytes);
    OK(lmcs_snapshot_find(pool, "run", "1", &snapshot, &err));
    FAILS(LMCS_DAMAGED,
          lmcs_snapshot_read(snapshot, LMCS_TENSOR, "t2", bytes, ((struct state *)weights)->tensors[2].bytes, &err));
    print_message("%s\n", err.message);
    EXPECT(strstr(err.message, "tensor \"t2\"") != NULL && strstr(err.message, "can't be read") != NULL);
    return 0;
}

static void failed_page_of_a_device(void **state)
{
    (void)state;
    struct rng rng = {4};
    struct state *weights = state_weights(&rng, 4, 2000000);
    char command[256];
    snprintf(command, sizeof command, "pmempool rm -f %s", device);
    EXPECT(system(command) == 0);
    struct lmcs_pool *pool = open_quiet(device);
    take_snapshot(pool, "run", weights, 1);
    close_pool(pool);
    expect_child(start_child(read_failed_device, weights));
    state_free(weights);
}

static void *poisoned;

static void poison(void *context)
{
    (void)context;
    /* The kernel unmaps the page and signals the caller. */
    (void)madvise(poisoned, 4096, MADV_HWPOISON);
    *(volatile char *)poisoned;
}

static int meet_poison(void *path)
{
    signal(SIGBUS, SIG_DFL);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    poisoned = (void *)((uintptr_t)lmcs_media_at(pool->media, place_of(pool, 1, "t2") + 8192, 1) & ~(uintptr_t)4095);
    *(volatile char *)poisoned;
    struct lmcs_guarded range = {poisoned, 4096};
    EXPECT(!lmcs_guard(&range, 1, poison, NULL));
    return 0;
}

/* The signal states the failed size. */
static void poison_is_met_by_a_guard(void **state)
{
    (void)state;
    struct rng rng = {5};
    struct state *weights = state_weights(&rng, 4, 400000);
    char path[512];
    pool_path(fsdax, "poison.pool", path);
    struct lmcs_pool *pool = open_quiet(path);
    take_snapshot(pool, "run", weights, 1);
    close_pool(pool);
    expect_child(start_child(meet_poison, path));
    state_free(weights);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fsdax_is_known, set_up_in_memory, tear_down),
        cmocka_unit_test_setup_teardown(pages_are_not_taken_for_dax, set_up_in_memory, tear_down),
        cmocka_unit_test_setup_teardown(threads_run_beside_the_memory, set_up_in_memory, tear_down),
        cmocka_unit_test_setup_teardown(pages_are_stored_to_without_the_journal, set_up_in_memory, tear_down),
        cmocka_unit_test_setup_teardown(unsafe_shutdown_while_open_is_told, set_up_in_memory, tear_down),
        cmocka_unit_test_setup_teardown(poison_is_met_by_a_guard, set_up_in_memory, tear_down),
        cmocka_unit_test_setup_teardown(failed_page_of_a_file, set_up_in_memory, tear_down),
        cmocka_unit_test_setup_teardown(failed_page_of_a_device, set_up_in_memory, tear_down),
    };
    if (argc != 5)
        return fprintf(stderr, "usage: guest_medium FSDAX PAGED DEVICE MEMORY\n"), 2;
    fsdax = argv[1];
    paged = argv[2];
    device = argv[3];
    memory = argv[4];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
