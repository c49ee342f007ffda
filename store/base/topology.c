/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/topology.c - media and the processors near them.
 *
 * This file alone uses libnuma, libndctl and libdaxctl. From a path to its DIMMs:
 *
 *   path -> mount (/proc/self/fdinfo, /proc/self/mountinfo) -> block device (/sys/dev/block) -> "pmem0"
 *        -> libndctl: namespace -> region: persistence domain, NUMA node, bad blocks -> DIMMs: health, shutdowns
 *   path -> character device (/sys/dev/char) -> "dax0.0" -> libndctl as above, or libdaxctl alone (CXL, soft-reserved)
 *
 * Each stage may end the search without an error. libndctl is used for devices named pmem or dax only: an open on an
 * ordinary disk costs three small reads of /proc and /sys.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/topology.h"

#include <daxctl/libdaxctl.h>
#include <fcntl.h>
#include <limits.h>
#include <ndctl/libndctl.h>
#include <numa.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

static void copy_text(char *to, size_t to_bytes, const char *from)
{
    size_t length = strnlen(from, to_bytes - 1);
    memcpy(to, from, length);
    to[length] = '\0';
}

/* ---- File systems ---- */

bool lmcs_topology_type_is_network(const char *file_system)
{
    static const char *const types[] = {"9p",    "acfs",    "afs",      "beegfs",   "ceph",   "cifs",   "coda",
                                        "fuse",  "fuseblk", "gfs2",     "gpfs",     "kafs",   "lustre", "ncpfs",
                                        "nfs",   "nfs4",    "ocfs2",    "orangefs", "prl_fs", "pvfs2",  "smb3",
                                        "smbfs", "vboxsf",  "virtiofs", "vmhgfs",   "wekafs"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(file_system, types[i]) == 0)
            return true;
    return strncmp(file_system, "fuse.", 5) == 0;
}

/* By statfs, without /proc: the types that matter here. */
static const char *type_by_magic(uint32_t magic)
{
    static const struct {
        uint32_t magic;
        const char *type;
    } known[] = {{0x0000EF53, "ext4"},   {0x58465342, "xfs"},   {0x9123683E, "btrfs"},     {0x01021994, "tmpfs"},
                 {0x858458F6, "ramfs"},  {0x2FC12FC1, "zfs"},   {0x958458F6, "hugetlbfs"}, {0x794C7630, "overlay"},
                 {0x00006969, "nfs"},    {0xFF534D42, "cifs"},  {0xFE534D42, "smb3"},      {0x65735546, "fuse"},
                 {0x0BD00BD0, "lustre"}, {0x01021997, "9p"},    {0x00C36400, "ceph"},      {0x47504653, "gpfs"},
                 {0x5346414F, "afs"},    {0x19830326, "beegfs"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].magic == magic)
            return known[i].type;
    return "";
}

/* -1: unknown. */
static int mount_id(int fd)
{
    char path[64];
    char line[128];
    int id = -1;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    while (id < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "mnt_id:", 7) == 0)
            id = (int)strtol(line + 7, NULL, 10);
    fclose(file);
    return id;
}

/*
 * Finds a mount by its id: on btrfs and overlay, stat's device number is not the mount's. A line: "36 35 98:0 /root
 * /point options optional... - type source options".
 */
static bool find_mount(int id, char *type, size_t type_bytes, char *source, size_t source_bytes)
{
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    FILE *file = id < 0 ? NULL : fopen("/proc/self/mountinfo", "re");
    while (file != NULL && !found && getline(&line, &room, file) > 0) {
        char *dash = strtol(line, NULL, 10) == id ? strstr(line, " - ") : NULL;
        if (dash == NULL)
            continue;
        char *rest = NULL;
        const char *word = strtok_r(dash + 3, " \n", &rest);
        if (word != NULL) {
            copy_text(type, type_bytes, word);
            word = strtok_r(NULL, " \n", &rest);
            copy_text(source, source_bytes, word != NULL ? word : "");
            found = true;
        }
    }
    if (file != NULL)
        fclose(file);
    free(line);
    return found;
}

/* ---- Devices ---- */

/*
 * The part of the device's path in /sys that begins with `prefix` and a digit: a partition (.../block/pmem0/pmem0p1)
 * gives its disk. "": none.
 */
static void device_name(const char *kind, dev_t number, const char *prefix, char *name, size_t name_bytes)
{
    char link[64];
    char path[PATH_MAX];
    name[0] = '\0';
    snprintf(link, sizeof link, "/sys/dev/%s/%u:%u", kind, major(number), minor(number));
    if (realpath(link, path) == NULL)
        return;
    char *rest = NULL;
    for (char *part = strtok_r(path, "/", &rest); part != NULL; part = strtok_r(NULL, "/", &rest)) {
        size_t length = strlen(prefix);
        if (strncmp(part, prefix, length) == 0 && part[length] >= '0' && part[length] <= '9') {
            /* a dax region is named like its device without the dot; the device comes later and wins */
            copy_text(name, name_bytes, part);
            if (strcmp(kind, "block") == 0)
                return;
        }
    }
}

static void no_ndctl_log(struct ndctl_ctx *ctx, int priority, const char *file, int line, const char *function,
                         const char *format, va_list arguments)
{
    (void)ctx, (void)priority, (void)file, (void)line, (void)function, (void)format, (void)arguments;
}

static void no_daxctl_log(struct daxctl_ctx *ctx, int priority, const char *file, int line, const char *function,
                          const char *format, va_list arguments)
{
    (void)ctx, (void)priority, (void)file, (void)line, (void)function, (void)format, (void)arguments;
}

static int dimm_health(struct ndctl_dimm *dimm)
{
    int health = LMCS_HEALTH_UNKNOWN;
    struct ndctl_cmd *command = ndctl_dimm_cmd_new_smart(dimm);
    if (command == NULL)
        return health;
    if (ndctl_cmd_submit_xlat(command) >= 0 && (ndctl_cmd_smart_get_flags(command) & ND_SMART_HEALTH_VALID) != 0) {
        unsigned int state = ndctl_cmd_smart_get_health(command);
        health = (state & ND_SMART_FATAL_HEALTH) != 0          ? LMCS_HEALTH_FATAL
                 : (state & ND_SMART_CRITICAL_HEALTH) != 0     ? LMCS_HEALTH_CRITICAL
                 : (state & ND_SMART_NON_CRITICAL_HEALTH) != 0 ? LMCS_HEALTH_NON_CRITICAL
                                                               : LMCS_HEALTH_OK;
    }
    ndctl_cmd_unref(command);
    return health;
}

static void describe_region(struct ndctl_region *region, struct lmcs_topology *topology)
{
    switch (ndctl_region_get_persistence_domain(region)) {
    case PERSISTENCE_MEM_CTRL:
        copy_text(topology->persistence_domain, sizeof topology->persistence_domain, "memory_controller");
        break;
    case PERSISTENCE_CPU_CACHE:
        copy_text(topology->persistence_domain, sizeof topology->persistence_domain, "cpu_cache");
        break;
    case PERSISTENCE_NONE:
    case PERSISTENCE_UNKNOWN:
    default:
        copy_text(topology->persistence_domain, sizeof topology->persistence_domain, "unknown");
        break;
    }
    topology->numa_node = ndctl_region_get_numa_node(region);
    struct badblock *bad = NULL;
    ndctl_region_badblock_foreach(region, bad)
    {
        topology->bad_blocks += bad->len;
    }
    struct ndctl_dimm *dimm = NULL;
    ndctl_dimm_foreach_in_region(region, dimm)
    {
        int health = dimm_health(dimm);
        long long shutdowns = ndctl_dimm_get_dirty_shutdown(dimm);
        if (health > topology->device_health)
            topology->device_health = health;
        if (shutdowns > 0)
            topology->unsafe_shutdowns += (uint64_t)shutdowns;
    }
}

/* `name`: block device ("pmem0") or devdax device ("dax0.0"). */
static bool namespace_is(struct ndctl_namespace *ndns, const char *name)
{
    struct ndctl_btt *btt = ndctl_namespace_get_btt(ndns);
    struct ndctl_pfn *pfn = ndctl_namespace_get_pfn(ndns);
    struct ndctl_dax *dax = ndctl_namespace_get_dax(ndns);
    if (dax != NULL) {
        struct daxctl_region *region = ndctl_dax_get_daxctl_region(dax);
        struct daxctl_dev *device = NULL;
        if (region != NULL) {
            daxctl_dev_foreach(region, device)
            {
                if (strcmp(daxctl_dev_get_devname(device), name) == 0)
                    return true;
            }
        }
        return false;
    }
    const char *block = btt != NULL   ? ndctl_btt_get_block_device(btt)
                        : pfn != NULL ? ndctl_pfn_get_block_device(pfn)
                                      : ndctl_namespace_get_block_device(ndns);
    return block != NULL && strcmp(block, name) == 0;
}

/* False: libndctl has no device of that name. */
static bool ask_ndctl(const char *name, struct lmcs_topology *topology)
{
    struct ndctl_ctx *ctx = NULL;
    bool found = false;
    if (ndctl_new(&ctx) != 0)
        return false;
    ndctl_set_log_fn(ctx, no_ndctl_log);
    struct ndctl_bus *bus = NULL;
    ndctl_bus_foreach(ctx, bus)
    {
        struct ndctl_region *region = NULL;
        ndctl_region_foreach(bus, region)
        {
            struct ndctl_namespace *ndns = NULL;
            ndctl_namespace_foreach(region, ndns)
            {
                if (!found && namespace_is(ndns, name)) {
                    found = true;
                    copy_text(topology->nvdimm_namespace, sizeof topology->nvdimm_namespace,
                              ndctl_namespace_get_devname(ndns));
                    describe_region(region, topology);
                }
            }
        }
    }
    ndctl_unref(ctx);
    return found;
}

/* The NUMA node of a devdax device that is no NVDIMM. */
static int ask_daxctl(const char *name)
{
    struct daxctl_ctx *ctx = NULL;
    int node = -1;
    if (daxctl_new(&ctx) != 0)
        return -1;
    daxctl_set_log_fn(ctx, no_daxctl_log);
    struct daxctl_region *region = NULL;
    daxctl_region_foreach(ctx, region)
    {
        struct daxctl_dev *device = NULL;
        daxctl_dev_foreach(region, device)
        {
            if (strcmp(daxctl_dev_get_devname(device), name) == 0)
                node = daxctl_dev_get_target_node(device);
        }
    }
    daxctl_unref(ctx);
    return node;
}

/* ---- NUMA ---- */

static bool has_nodes(void)
{
    return numa_available() >= 0 && numa_max_node() > 0;
}

/* Whether the calling thread could run on a node; `cpus`: its processors there. */
static bool usable_cpus(int node, const struct bitmask *allowed, struct bitmask *cpus)
{
    if (numa_node_to_cpus(node, cpus) != 0)
        return false;
    bool any = false;
    for (unsigned int i = 0; i < cpus->size; i++) {
        if (numa_bitmask_isbitset(cpus, i) != 0) {
            if (numa_bitmask_isbitset(allowed, i) != 0) {
                any = true;
            } else {
                numa_bitmask_clearbit(cpus, i);
            }
        }
    }
    return any;
}

static bool node_has_cpus(int node, struct bitmask *cpus)
{
    return numa_node_to_cpus(node, cpus) == 0 && numa_bitmask_weight(cpus) > 0;
}

/* The node itself, or the nearest with processors. */
static int node_to_run_on(int node, struct bitmask *cpus)
{
    if (node_has_cpus(node, cpus))
        return node;
    /* not numa_all_nodes_ptr: a variable of a library that is loaded later (load/) may have two copies */
    struct bitmask *allowed = numa_get_mems_allowed();
    int best = -1;
    int best_distance = INT_MAX;
    for (int other = 0; other <= numa_max_node(); other++) {
        int distance = numa_distance(node, other);
        if (distance > 0 && distance < best_distance && numa_bitmask_isbitset(allowed, (unsigned)other) &&
            node_has_cpus(other, cpus)) {
            best = other;
            best_distance = distance;
        }
    }
    numa_bitmask_free(allowed);
    return best;
}

bool lmcs_topology_bind_thread(int node)
{
    if (node < 0 || !has_nodes() || node > numa_max_node())
        return false;
    bool bound = false;
    struct bitmask *allowed = numa_allocate_cpumask();
    struct bitmask *cpus = numa_allocate_cpumask();
    if (allowed != NULL && cpus != NULL && numa_sched_getaffinity(0, allowed) >= 0) {
        int run_on = node_to_run_on(node, cpus);
        bound = run_on >= 0 && usable_cpus(run_on, allowed, cpus) && numa_sched_setaffinity(0, cpus) == 0;
    }
    if (allowed != NULL)
        numa_bitmask_free(allowed);
    if (cpus != NULL)
        numa_bitmask_free(cpus);
    return bound;
}

/* Opens `path` or its directory, for stat alone; -1: none. */
static int open_nearest(const char *path)
{
    char directory[PATH_MAX];
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd >= 0 || strlen(path) >= sizeof directory)
        return fd;
    copy_text(directory, sizeof directory, path);
    char *slash = strrchr(directory, '/');
    if (slash == NULL) {
        copy_text(directory, sizeof directory, ".");
    } else {
        slash[slash == directory ? 1 : 0] = '\0';
    }
    return open(directory, O_PATH | O_CLOEXEC);
}

static void detect_devdax(dev_t number, struct lmcs_topology *topology)
{
    char name[64];
    device_name("char", number, "dax", name, sizeof name);
    if (name[0] == '\0')
        return;
    topology->is_devdax = true;
    topology->is_nvdimm = true;
    copy_text(topology->file_system, sizeof topology->file_system, "devdax");
    copy_text(topology->persistence_domain, sizeof topology->persistence_domain, "unknown");
    if (!ask_ndctl(name, topology))
        topology->numa_node = ask_daxctl(name);
}

static void detect_file(int fd, dev_t device, struct lmcs_topology *topology)
{
    char source[PATH_MAX] = "";
    char name[64];
    struct statfs volume;
    struct stat status;
    if (!find_mount(mount_id(fd), topology->file_system, sizeof topology->file_system, source, sizeof source) &&
        fstatfs(fd, &volume) == 0) {
        copy_text(topology->file_system, sizeof topology->file_system, type_by_magic((uint32_t)volume.f_type));
    }
    const char *type = topology->file_system;
    topology->is_network = lmcs_topology_type_is_network(type);
    topology->is_memory = strcmp(type, "tmpfs") == 0 || strcmp(type, "ramfs") == 0 || strcmp(type, "hugetlbfs") == 0;
    if (topology->is_network || topology->is_memory)
        return;
    if (major(device) == 0 && source[0] == '/' && stat(source, &status) == 0 && S_ISBLK(status.st_mode)) {
        device = status.st_rdev; /* btrfs has no device number of its own */
    }
    device_name("block", device, "pmem", name, sizeof name);
    if (name[0] != '\0') {
        topology->is_nvdimm = true;
        copy_text(topology->persistence_domain, sizeof topology->persistence_domain, "unknown");
        ask_ndctl(name, topology);
    }
}

void lmcs_topology_detect(const char *path, struct lmcs_topology *topology)
{
    *topology =
        (struct lmcs_topology){.persistence_domain = "none", .numa_node = -1, .device_health = LMCS_HEALTH_UNKNOWN};
    int fd = open_nearest(path);
    if (fd < 0)
        return;
    struct stat status;
    if (fstat(fd, &status) == 0) {
        if (S_ISCHR(status.st_mode)) {
            detect_devdax(status.st_rdev, topology);
        } else {
            struct statx more;
            detect_file(fd, status.st_dev, topology);
            topology->is_dax = S_ISREG(status.st_mode) && statx(fd, "", AT_EMPTY_PATH, STATX_TYPE, &more) == 0 &&
                               (more.stx_attributes & STATX_ATTR_DAX) != 0;
        }
    }
    close(fd);
    if (topology->numa_node >= 0 && !has_nodes())
        topology->numa_node = -1;
}
