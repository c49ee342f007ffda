/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pool/open.c - opens and closes pools.
 *
 * The registry, the only global state of the library, lists one struct lmcs_pool for each pool that this process has
 * open for writing. A new pool is created complete under another name and then opened like any other.
 *
 * registry_lock guards the registry. Creating, opening and the last close run under it, so that one pool is never
 * opened twice, and a fork waits for them.
 */
#include "pool/open.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/guard.h"
#include "base/topology.h"
#include "capture/memory.h"
#include "live/live.h"
#include "media/nvdimm.h"
#include "media/pmemobj_log.h"
#include "pages/heap_check.h"
#include "pages/space.h"
#include "pool/background.h"
#include "records/annotation.h"
#include "records/busy.h"
#include "shelves/shelves.h"

#define DEFAULT_WAIT_MS    10000u
#define WAIT_SLICE_MS      100u
#define WAIT_NAP_US        1000u
#define MAX_THREADS        8u
#define MOST_NICE          19u
#define DEFAULT_PART_BYTES ((uint64_t)15 << 30)

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lmcs_pool *registry;
static pthread_once_t watching = PTHREAD_ONCE_INIT;

void lmcs_open_options_init(struct lmcs_open_options *options)
{
    *options = (struct lmcs_open_options){.wait_ms = UINT32_MAX};
}

/* ---- Making and ending the struct ---- */

static enum lmcs_status last_close(struct lmcs_pool *pool, struct lmcs_error *error);
static enum lmcs_status as_writer(struct lmcs_pool *pool, uint32_t wait_ms, struct lmcs_pool **writer,
                                  struct lmcs_error *error);

static void free_pool(struct lmcs_pool *pool)
{
    if (pool == NULL)
        return;
    lmcs_background_free(pool);
    lmcs_live_store_free(pool);
    if (pool->later_workers != pool->workers)
        lmcs_workers_free(pool->later_workers);
    lmcs_workers_free(pool->workers);
    lmcs_space_free(pool->space);
    lmcs_page_cache_free(pool->cache);
    lmcs_lease_release(pool->lease);
    lmcs_media_release(pool->media);
    lmcs_heap_close(pool->heap); /* last: after a failed sync, mapped pages stay in the page cache */
    lmcs_memory_free(pool);
    lmcs_busy_free(pool);
    pthread_rwlock_destroy(&pool->meta);
    pthread_mutex_destroy(&pool->captures);
    pthread_cond_destroy(&pool->captures_changed);
    pthread_mutex_destroy(&pool->verified_lock);
    lmcs_map_free(&pool->verified);
    free(pool->avail);
    free(pool->slabs);
    free(pool->path);
    free(pool);
}

static void init_meta_lock(pthread_rwlock_t *lock)
{
    /* Prefers writers: a stream of readers must not delay a commit. */
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
}

static uint32_t choose_threads(uint32_t wanted)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        online = CPU_COUNT(&set);
    uint32_t threads = wanted != 0 ? wanted : online < 1 ? 1 : (uint32_t)online;
    return wanted == 0 && threads > MAX_THREADS ? MAX_THREADS : threads > 256 ? 256 : threads;
}

static enum lmcs_status make_workers(struct lmcs_pool *pool, int node, struct lmcs_error *error)
{
    const struct lmcs_open_options *options = &pool->options;
    enum lmcs_status status = lmcs_workers_new(options->threads, 0, node, &pool->workers, error);
    pool->later_workers = pool->workers;
    if (status != LMCS_OK || (options->copy_nice == 0 && options->copy_threads == options->threads))
        return status;
    return lmcs_workers_new(options->copy_threads, options->copy_nice, node, &pool->later_workers, error);
}

static struct lmcs_pool *new_pool(const char *path, const struct lmcs_open_options *options, struct lmcs_error *error)
{
    struct lmcs_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL || (pool->path = strdup(path)) == NULL) {
        free(pool);
        lmcs_fail_memory(error);
        return NULL;
    }
    atomic_init(&pool->opens, 1);
    pool->last_close = last_close;
    pool->as_writer = as_writer;
    pool->pid = getpid();
    pool->options = *options;
    pool->options.threads = choose_threads(options->threads);
    pool->options.copy_threads =
        options->copy_threads == 0 ? pool->options.threads : choose_threads(options->copy_threads);
    pool->part_bytes = DEFAULT_PART_BYTES;
    init_meta_lock(&pool->meta);
    pthread_mutex_init(&pool->captures, NULL);
    pthread_cond_init(&pool->captures_changed, NULL);
    atomic_init(&pool->copying, 0);
    pthread_mutex_init(&pool->verified_lock, NULL);
    pool->verified.seed = lmcs_now_ns() ^ (uintptr_t)pool; /* a hostile pool must not choose collisions */
    return pool;
}

/* Makes the parts that reading metadata needs. */
static enum lmcs_status attach(struct lmcs_pool *pool, enum lmcs_status opened, struct lmcs_error *error)
{
    enum lmcs_status status = opened;
    if (status == LMCS_OK)
        status = lmcs_lease_new(pool->media, &pool->lease, error);
    if (status == LMCS_OK)
        status = lmcs_page_cache_new(&pool->cache, error);
    if (status == LMCS_OK)
        status = lmcs_live_store_new(pool, error);
    return status;
}

/* ---- Creation ---- */

/* The file is sparse: a large size costs nothing, and allows a limit to be raised or a disk to grow. */
static uint64_t virtual_bytes(const char *path, uint64_t limit)
{
    const uint64_t least = (uint64_t)16 << 30, most = (uint64_t)8 << 40;
    char folder[4096];
    struct statvfs fs;
    uint64_t budget = limit;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder] = '\0';
    if (limit == 0 && statvfs(slash != NULL ? folder : ".", &fs) == 0)
        budget = (uint64_t)fs.f_blocks * fs.f_frsize / 2;
    uint64_t bytes = least;
    while (bytes < most && bytes / 8 < budget)
        bytes *= 2;
    return bytes;
}

static void fill_superblock(struct lmcs_superblock_df *super)
{
    memset(super, 0, sizeof *super);
    memcpy(super->magic, LMCS_SUPERBLOCK_MAGIC, sizeof super->magic);
    super->version = LMCS_FORMAT_VERSION;
    super->created_ns = lmcs_now_ns();
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, super->uuid, sizeof super->uuid) != (ssize_t)sizeof super->uuid) {
        struct lmc_hash hash = lmc_hash128(&super->created_ns, sizeof super->created_ns);
        memcpy(super->uuid, &hash, sizeof super->uuid);
    }
    if (fd >= 0)
        close(fd);
    super->check = lmc_hash64(super, offsetof(struct lmcs_superblock_df, check), 0);
}

static enum lmcs_status write_first_root(struct lmcs_pool *pool, uint64_t limit, struct lmcs_error *error)
{
    struct lmcs_superblock_df super;
    uint64_t at;
    fill_superblock(&super);
    enum lmcs_status status = lmcs_heap_superblock(pool->heap, &at, error);
    if (status == LMCS_OK)
        status = lmcs_heap_write(pool->heap, at, &super, sizeof super, error);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(pool->heap, error);
    if (status == LMCS_OK)
        status = attach(pool, lmcs_media_open(lmcs_heap_path(pool->heap), &pool->media, error), error);
    return status == LMCS_OK ? lmcs_root_create(pool, limit, error) : status;
}

static enum lmcs_status create(const char *path, const struct lmcs_open_options *options, struct lmcs_error *error)
{
    if (options->limit_bytes != 0 && options->limit_bytes < LMCS_MIN_POOL_BYTES)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: a pool needs at least %llu bytes, the limit is %llu", path,
                         (unsigned long long)LMCS_MIN_POOL_BYTES, (unsigned long long)options->limit_bytes);
    struct lmcs_pool *pool = new_pool(path, options, error);
    if (pool == NULL)
        return LMCS_NO_MEMORY;
    enum lmcs_status status = lmcs_heap_create(path, virtual_bytes(path, options->limit_bytes), &pool->heap, error);
    if (status == LMCS_OK)
        status = write_first_root(pool, options->limit_bytes, error);
    if (status == LMCS_OK)
        status = lmcs_heap_show(pool->heap, error);
    free_pool(pool);
    return status;
}

/* ---- Opening ---- */

static enum lmcs_status check_place(const char *path, enum lmcs_open_mode mode, uint32_t flags, int *node,
                                    struct lmcs_error *error)
{
    struct lmcs_topology topology;
    lmcs_topology_detect(path, &topology);
    *node = topology.numa_node;
    if (topology.is_network && (flags & LMCS_FORCE_NETWORK) == 0)
        return lmcs_fail(
            error, LMCS_UNSUPPORTED, 0,
            "%s: is on %s, where file locks and mmap are unreliable; use a local file system or --force-network", path,
            topology.file_system);
    return mode == LMCS_OPEN_READ ? LMCS_OK : lmcs_nvdimm_check(path, error);
}

static enum lmcs_status open_for_reading(struct lmcs_pool *pool, int node, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = attach(pool, lmcs_media_open(pool->path, &pool->media, error), error);
    if (status == LMCS_OK)
        status = make_workers(pool, node, error);
    if (status == LMCS_OK)
        status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    pool->root = txn.root;
    pool->epoch = txn.root.epoch;
    lmcs_txn_end(&txn);
    return LMCS_OK;
}

/* Checks metadata: libpmemobj would follow any, damaged or hostile. */
static enum lmcs_status look_before_opening(void *context, struct lmcs_error *error)
{
    struct lmcs_pool *pool = context;
    struct lmcs_root_df root;
    struct lmcs_pmemobj_log *redo = NULL;
    enum lmcs_status status = lmcs_root_read(pool, &root, error);
    if (status == LMCS_OK)
        status = lmcs_pmemobj_log_load(pool->media, &redo, error);
    if (status == LMCS_OK) {
        lmcs_media_overlay(pool->media, lmcs_pmemobj_log_apply, redo);
        status = lmcs_root_read(pool, &root, error); /* the root after that log is applied */
        if (status == LMCS_OK)
            status = lmcs_check_heap(pool, error);
        if (status == LMCS_OK)
            status = lmcs_live_store_check(pool, &root, error);
        lmcs_media_overlay(pool->media, NULL, NULL);
        lmcs_pmemobj_log_free(redo);
    }
    pool->superblock.check = 0;
    return status;
}

/*
 * libpmemobj writes a root word to one replica after the other, without its log if the word is the only change, so a
 * power failure may leave different roots. Readers have seen that of the first replica. After a failed sync it may be
 * in the page cache only; for a pool in one file, media/heap_open.c has written it again.
 */
static enum lmcs_status align_replicas(struct lmcs_pool *pool, struct lmcs_error *error)
{
    uint64_t word_at = lmcs_media_superblock(pool->media) + offsetof(struct lmcs_superblock_df, root);
    return lmcs_media_is_poolset(pool->media)
               ? lmcs_heap_publish(pool->heap, NULL, 0, word_at, lmcs_root_word(pool->root.self), error)
               : LMCS_OK;
}

static enum lmcs_status open_for_writing(struct lmcs_pool *pool, int node, uint32_t wait_ms, struct lmcs_error *error)
{
    enum lmcs_status status = attach(pool, lmcs_media_open(pool->path, &pool->media, error), error);
    if (status == LMCS_OK)
        status = lmcs_heap_open(pool->media, wait_ms, look_before_opening, pool, &pool->heap, error);
    /* A file without its name would lose all writes. Reported as in use, so that a waiting open tries again. */
    if (status == LMCS_OK && !lmcs_media_is_in_place(pool->media))
        status = lmcs_fail(error, LMCS_IN_USE, 0, "%s: was replaced or removed while it was opened; open it again",
                           pool->path);
    if (status == LMCS_OK)
        status = make_workers(pool, node, error);
    if (status == LMCS_OK)
        status = lmcs_root_read(pool, &pool->root, error);
    if (status == LMCS_OK)
        pool->epoch = pool->root.epoch;
    if (status == LMCS_OK)
        status = lmcs_check_heap(pool, error);
    if (status == LMCS_OK)
        status = align_replicas(pool, error);
    if (status == LMCS_OK)
        status = lmcs_space_load(pool, error);
    if (status == LMCS_OK)
        status = lmcs_live_store_load(pool, error);
    if (status == LMCS_OK)
        status = lmcs_ring_make(pool, error);
    if (status == LMCS_OK) {
        pool->fold = lmcs_annotations_fold;
        status = pool->fold(pool, error);
        status = lmcs_is_unusable(status) ? LMCS_OK : status; /* what is sound stays usable */
    }
    if (status == LMCS_OK)
        status = lmcs_staging_drop_left(pool, error);
    if (status == LMCS_OK)
        lmcs_space_expect(pool, pool->options.expect_bytes);
    if (status == LMCS_OK)
        status = lmcs_background_new(pool, error);
    pool->writable = status == LMCS_OK;
    return status;
}

enum lmcs_status lmcs_pool_look(const struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_open_options options;
    bool busy;
    lmcs_open_options_init(&options);
    struct lmcs_pool *looking = new_pool(pool->path, &options, error);
    if (looking == NULL)
        return LMCS_NO_MEMORY;
    enum lmcs_status status = attach(looking, lmcs_media_open_again(pool->media, &looking->media, error), error);
    if (status == LMCS_OK)
        status = lmcs_heap_look_first(lmcs_media_lock_fd(looking->media), look_before_opening, looking, &busy, error);
    free_pool(looking);
    return status;
}

static struct lmcs_pool *find_open(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return NULL;
    struct lmcs_pool *pool = registry;
    while (pool != NULL && (pool->pid != getpid() || pool->device != st.st_dev || pool->inode != st.st_ino))
        pool = pool->next;
    return pool;
}

static void before_fork(void)
{
    pthread_mutex_lock(&registry_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&registry_lock);
}

/*
 * A fork waits for other threads that create, open or close: the child would inherit this lock, and those of
 * libpmemobj, taken for ever. The lock of live mappings is acquired after this one, so its handler is registered first
 * (fork runs handlers in reverse order).
 */
static void watch_forks(void)
{
    (void)lmcs_live_forks();
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* In a forked child: keeps new mappings away from the addresses of the parent's pools. */
static void keep_parents_places(void)
{
    pthread_mutex_lock(&registry_lock);
    for (const struct lmcs_pool *pool = registry; pool != NULL; pool = pool->next)
        if (pool->pid != getpid() && pool->heap != NULL)
            lmcs_heap_keep_place(pool->heap);
    pthread_mutex_unlock(&registry_lock);
}

static void enter_registry(struct lmcs_pool *pool)
{
    struct stat st;
    if (fstat(lmcs_media_fd(pool->media), &st) == 0) {
        pool->device = st.st_dev;
        pool->inode = st.st_ino;
    }
    pool->next = registry;
    registry = pool;
}

/* Whether there is no file, a poolset without its parts, or a blank device. */
static bool is_absent(const char *path)
{
    struct lmcs_media *media;
    struct lmcs_error error;
    enum lmcs_status status = lmcs_media_open(path, &media, &error);
    if (status == LMCS_OK)
        lmcs_media_release(media);
    return status == LMCS_NOT_FOUND || (status == LMCS_DAMAGED && lmcs_media_is_blank_device(path));
}

static enum lmcs_status open_once(const char *path, enum lmcs_open_mode mode, const struct lmcs_open_options *options,
                                  uint32_t wait_ms, int node, struct lmcs_pool **pool, struct lmcs_error *error)
{
    pthread_mutex_lock(&registry_lock);
    struct lmcs_pool *found = find_open(path);
    enum lmcs_status status = LMCS_OK;
    if (found != NULL && mode == LMCS_OPEN_CREATE)
        status = lmcs_fail(error, LMCS_EXISTS, 0, "%s: exists already", path);
    else if (found != NULL)
        lmcs_pool_keep(found);
    if (found != NULL && status == LMCS_OK)
        *pool = found;
    if (found != NULL && status == LMCS_OK && found->space != NULL && options->expect_bytes > 0) {
        lmcs_space_expect(found, options->expect_bytes);
        lmcs_pool_wake(found);
    }
    if (found == NULL) {
        struct lmcs_pool *p = new_pool(path, options, error);
        if (p != NULL)
            p->numa_node = node;
        status = p == NULL                ? LMCS_NO_MEMORY
                 : mode == LMCS_OPEN_READ ? open_for_reading(p, node, error)
                                          : open_for_writing(p, node, wait_ms, error);
        if (status != LMCS_OK) {
            free_pool(p);
        } else {
            if (p->writable)
                enter_registry(p);
            *pool = p;
        }
    }
    pthread_mutex_unlock(&registry_lock);
    return status;
}

/* Holds the registry's lock for one slice of the wait at a time, so that other threads can open the pool or fork. */
static enum lmcs_status open_patiently(const char *path, enum lmcs_open_mode mode,
                                       const struct lmcs_open_options *options, int node, struct lmcs_pool **pool,
                                       struct lmcs_error *error)
{
    uint32_t left = options->wait_ms == UINT32_MAX ? DEFAULT_WAIT_MS : options->wait_ms;
    for (;;) {
        uint32_t slice = left < WAIT_SLICE_MS ? left : WAIT_SLICE_MS;
        enum lmcs_status status = open_once(path, mode, options, slice, node, pool, error);
        left -= slice;
        if (status != LMCS_IN_USE || left == 0)
            return status;
        usleep(WAIT_NAP_US);
    }
}

enum lmcs_status lmcs_pool_open(const char *path, enum lmcs_open_mode mode, const struct lmcs_open_options *options,
                                struct lmcs_pool **pool, struct lmcs_error *error)
{
    struct lmcs_open_options defaults;
    struct lmcs_error local;
    int node;
    lmcs_open_options_init(&defaults);
    if (options == NULL)
        options = &defaults;
    if (error == NULL)
        error = &local;
    if (path == NULL || *path == '\0' || strlen(path) >= 4096)
        return lmcs_fail(error, LMCS_INVALID, 0, "the pool's path is empty or too long");
    if (options->copy_nice > MOST_NICE)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: copy_nice is %u; it is a nice value of 0 to %u", path,
                         options->copy_nice, MOST_NICE);
    lmcs_guard_install();
    pthread_once(&watching, watch_forks);
    keep_parents_places();
    enum lmcs_status status = check_place(path, mode, options->flags, &node, error);
    if (status != LMCS_OK)
        return status;
    struct stat st;
    bool exists = lstat(path, &st) == 0;
    if (exists && S_ISLNK(st.st_mode))
        exists = stat(path, &st) == 0;
    bool absent = !exists || ((mode == LMCS_OPEN_OR_CREATE || mode == LMCS_OPEN_CREATE) && is_absent(path));
    if (mode == LMCS_OPEN_CREATE && !absent)
        return lmcs_fail(error, LMCS_EXISTS, 0, "%s: exists already", path);
    if (absent && (mode == LMCS_OPEN_CREATE || mode == LMCS_OPEN_OR_CREATE)) {
        pthread_mutex_lock(&registry_lock);
        status = create(path, options, error);
        pthread_mutex_unlock(&registry_lock);
        if (status != LMCS_OK && !(status == LMCS_EXISTS && mode == LMCS_OPEN_OR_CREATE))
            return status;
        mode = LMCS_OPEN_OR_CREATE;
    }
    return open_patiently(path, mode, options, node, pool, error);
}

static enum lmcs_status as_writer(struct lmcs_pool *pool, uint32_t wait_ms, struct lmcs_pool **writer,
                                  struct lmcs_error *error)
{
    struct lmcs_open_options options;
    if (!lmcs_media_is_in_place(pool->media))
        return lmcs_fail(error, LMCS_IO, 0, "%s: the pool was replaced or removed; open it again", pool->path);
    lmcs_open_options_init(&options);
    options.wait_ms = wait_ms;
    options.flags |= LMCS_NO_BACKGROUND | (pool->options.flags & LMCS_FORCE_NETWORK);
    return lmcs_pool_open(pool->path, LMCS_OPEN_WRITE, &options, writer, error);
}

/* ---- Closing ---- */

/* The last open counts until captures are settled: another thread may open the pool meanwhile. */
static enum lmcs_status last_close(struct lmcs_pool *pool, struct lmcs_error *error)
{
    enum lmcs_status status = pool->heap != NULL ? lmcs_busy_settle(pool, error) : LMCS_OK;
    pthread_mutex_lock(&registry_lock);
    if (atomic_fetch_sub(&pool->opens, 1) == 1) {
        for (struct lmcs_pool **at = &registry; *at != NULL; at = &(*at)->next)
            if (*at == pool) {
                *at = pool->next;
                break;
            }
        if (pool->writable) {
            struct lmcs_error ignored; /* space that stays is free space */
            lmcs_compactor_stop(pool);
            (void)lmcs_space_give_back(pool, &ignored);
            lmcs_ring_remove(pool);
        }
        free_pool(pool);
    }
    pthread_mutex_unlock(&registry_lock);
    return status;
}
