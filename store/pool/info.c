/* SPDX-License-Identifier: BSD-3-Clause */
/* pool/info.c - identity, medium and use of space of a pool. */
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/error.h"
#include "base/topology.h"
#include "capture/memory.h"
#include "live/live.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pool/background.h"
#include "records/shelf.h"
#include "repair/scrub.h"

#define LEAST_BYTES_TO_FIT ((uint64_t)64 << 10) /* of a smaller snapshot, metadata take more */

static void fill_medium(const struct lmcs_pool *pool, struct lmcs_pool_info *info)
{
    struct lmcs_topology topology;
    lmcs_topology_detect(pool->path, &topology);
    snprintf(info->file_system, sizeof info->file_system, "%s", topology.file_system);
    snprintf(info->persistence_domain, sizeof info->persistence_domain, "%s", topology.persistence_domain);
    snprintf(info->nvdimm_namespace, sizeof info->nvdimm_namespace, "%s", topology.nvdimm_namespace);
    info->numa_node = topology.numa_node;
    info->device_health = topology.device_health;
    info->bad_blocks = topology.bad_blocks;
    info->unsafe_shutdowns = topology.unsafe_shutdowns;
    info->medium = topology.is_devdax   ? LMCS_MEDIUM_DEVDAX
                   : topology.is_memory ? LMCS_MEDIUM_MEMORY_FILE
                                        : LMCS_MEDIUM_FILE;
    if (pool->heap != NULL) {
        info->is_persistent_memory = lmcs_heap_is_persistent(pool->heap);
        info->forced = lmcs_heap_is_forced(pool->heap);
    } else {
        info->is_persistent_memory = topology.is_dax || topology.is_devdax;
    }
    if (info->is_persistent_memory && !info->forced && info->medium == LMCS_MEDIUM_FILE)
        info->medium = LMCS_MEDIUM_FSDAX;
}

/* Free bytes of a pool that another process may write. */
static uint64_t free_for_reader(const struct lmcs_pool *pool, const struct lmcs_root_df *root)
{
    struct statvfs fs;
    uint64_t used = root->slab_bytes + root->extent_bytes;
    uint64_t limit = lmcs_space_limit(pool, root), left = limit > used ? limit - used : 0;
    uint64_t available = lmcs_media_is_device(pool->media) ? left
                         : statvfs(pool->path, &fs) == 0   ? (uint64_t)fs.f_bavail * fs.f_frsize
                                                           : 0;
    return available < left ? available : left;
}

static void count_shelf(const struct lmcs_shelf *shelf, struct lmcs_pool_info *info)
{
    if ((shelf->df.flags & LMCS_SHELF_STAGING) != 0)
        return;
    info->shelf_count++;
    info->remote_count += shelf->df.remote;
    uint64_t raw = shelf->df.latest > shelf->df.keep_raw ? shelf->df.latest - shelf->df.keep_raw : 0;
    if (raw > shelf->df.compacted)
        info->compaction_backlog += raw - shelf->df.compacted;
}

/* Counts damaged shelves apart. A damaged list of shelves counts as one. */
static enum lmcs_status count_shelves(struct lmcs_txn *txn, struct lmcs_pool_info *info, struct lmcs_error *error)
{
    uint64_t ids[64], first = 0;
    size_t got;
    struct lmcs_passed passed = {.any = false};
    struct lmcs_error why;
    enum lmcs_status status;
    bool list_is_damaged = false;
    do {
        enum lmcs_status listed = lmcs_shelf_ids(txn, first, ids, 64, &got, &why);
        list_is_damaged |= listed == LMCS_DAMAGED;
        status = lmcs_pass_over(&passed, listed, &why);
        for (size_t i = 0; status == LMCS_OK && i < got; i++) {
            struct lmcs_shelf shelf;
            enum lmcs_status loaded = lmcs_shelf_load(txn, ids[i], &shelf, &why);
            info->damaged_shelves += loaded == LMCS_DAMAGED;
            info->unsupported_shelves += loaded == LMCS_UNSUPPORTED;
            status = lmcs_pass_over(&passed, loaded, &why);
            if (loaded == LMCS_OK)
                count_shelf(&shelf, info);
        }
        first = got > 0 ? ids[got - 1] + 1 : 0;
    } while (status == LMCS_OK && got == 64);
    info->damaged_shelves += list_is_damaged;
    if (passed.any)
        snprintf(info->damage, sizeof info->damage, "%s", passed.first.message);
    if (status != LMCS_OK && error != NULL)
        *error = why;
    return status;
}

enum lmcs_status lmcs_pool_info(struct lmcs_pool *pool, struct lmcs_pool_info *info, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status == LMCS_OK)
        status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_pool_info filled = {.writable = pool->writable};
    const struct lmcs_root_df *root = &txn.root;
    snprintf(filled.path, sizeof filled.path, "%s", pool->path);
    memcpy(filled.uuid, pool->superblock.uuid, sizeof filled.uuid);
    filled.created_ns = pool->superblock.created_ns;
    filled.format_version = pool->superblock.version;
    filled.epoch = root->epoch;
    filled.limit_bytes = root->limit_bytes;
    filled.metadata_bytes = root->slab_bytes;
    filled.metadata_free_bytes = root->free_pages * LMCS_PAGE_BYTES + (root->fresh.end - root->fresh.next) +
                                 (root->spare.end - root->spare.next);
    filled.live_bytes = root->live_bytes + root->slab_bytes;
    filled.snapshot_count = root->snapshot_count;
    filled.content_count = root->trees[LMCS_TREE_CONTENTS].count;
    filled.last_snapshot_bytes = root->last_snapshot_bytes;
    filled.lost_contents = root->lost_contents;
    filled.parity_bytes = root->parity_bytes;
    lmcs_scrub_state(root, &filled);
    status = count_shelves(&txn, &filled, error);
    filled.used_bytes = root->slab_bytes + (pool->space != NULL ? lmcs_space_used(pool) : root->extent_bytes);
    filled.free_bytes = pool->space != NULL ? lmcs_space_free_bytes(pool) : free_for_reader(pool, root);
    lmcs_txn_end(&txn);
    if (status != LMCS_OK)
        return status;
    filled.snapshots_that_fit =
        filled.last_snapshot_bytes < LEAST_BYTES_TO_FIT ? UINT64_MAX : filled.free_bytes / filled.last_snapshot_bytes;
    fill_medium(pool, &filled);
    lmcs_background_state(pool, &filled);
    filled.memory_bytes = lmcs_memory_bytes(pool);
    *info = filled;
    return LMCS_OK;
}

enum lmcs_status lmcs_live_usage(struct lmcs_pool *pool, const char *shelf, struct lmcs_live_usage *usage,
                                 struct lmcs_error *error)
{
    uint64_t variables, bytes;
    struct lmcs_pool_info info;
    enum lmcs_status status = lmcs_live_count(pool, shelf, &variables, &bytes, error);
    if (status == LMCS_OK)
        status = lmcs_pool_info(pool, &info, error);
    if (status != LMCS_OK)
        return status;
    double whole = (double)info.used_bytes + (double)info.free_bytes;
    *usage = (struct lmcs_live_usage){
        .variables = variables, .bytes = bytes, .pool_percent = whole > 0 ? 100 * (double)info.used_bytes / whole : 0};
    return LMCS_OK;
}

enum lmcs_status lmcs_pool_set_limit(struct lmcs_pool *pool, uint64_t limit_bytes, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    uint64_t used = txn.root.slab_bytes + lmcs_space_used(pool);
    if (limit_bytes != 0 && (limit_bytes < used || limit_bytes < LMCS_MIN_POOL_BYTES)) {
        lmcs_txn_end(&txn);
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%s: uses %llu bytes: the limit can't be %llu (compact or prune first)", pool->path,
                         (unsigned long long)used, (unsigned long long)limit_bytes);
    }
    const uint64_t most = lmcs_space_most(pool);
    if (limit_bytes > most && limit_bytes != txn.root.limit_bytes) {
        lmcs_txn_end(&txn);
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%s: was made for at most %llu bytes: the limit can't be %llu; 'lmc-store dump' it, and "
                         "'lmc-store restore' it into a new pool with this --size",
                         pool->path, (unsigned long long)most, (unsigned long long)limit_bytes);
    }
    txn.root.limit_bytes = limit_bytes;
    return lmcs_txn_commit(&txn, error);
}
