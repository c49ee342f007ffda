/* SPDX-License-Identifier: BSD-3-Clause */
/* topology.h - what a pool's file lies on, and where its threads should run (internal). */
#ifndef LMCS_BASE_TOPOLOGY_H
#define LMCS_BASE_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

enum lmcs_device_health {
    LMCS_HEALTH_UNKNOWN = -1,
    LMCS_HEALTH_OK = 0,
    LMCS_HEALTH_NON_CRITICAL = 1,
    LMCS_HEALTH_CRITICAL = 2,
    LMCS_HEALTH_FATAL = 3
};

/* Where nothing is known, a field keeps the value that is named first. */
struct lmcs_topology {
    char file_system[32]; /* "": unknown; "ext4", "xfs", "tmpfs", "fuse.sshfs", ...; "devdax" */
    bool is_network;      /* NFS, Lustre, FUSE and the like: locks and shared mappings may lie there */
    bool is_memory;       /* tmpfs, ramfs, hugetlbfs: gone with the machine's power */
    bool is_devdax;
    bool is_dax;                 /* a file whose bytes the processor addresses directly */
    bool is_nvdimm;              /* on an NVDIMM namespace or a devdax device, of whatever make */
    char persistence_domain[32]; /* "none"; on NVDIMMs "memory_controller", "cpu_cache" or "unknown" */
    char nvdimm_namespace[64];   /* ""; "namespace0.0" */
    int numa_node;               /* -1: unknown, or the machine has one node only */
    int device_health;           /* enum lmcs_device_health; the worst of the region's DIMMs */
    uint64_t bad_blocks;         /* 0; of the region */
    uint64_t unsafe_shutdowns;   /* 0; the sum over the region's DIMMs */
};

/*
 * Finds out what `path` lies on: a file, a directory or a devdax device; where there is none yet, the directory that
 * it would be made in. Never fails and never prints: what can't be found out stays unknown.
 */
void lmcs_topology_detect(const char *path, struct lmcs_topology *topology);

/* True for the types of file system (as /proc/self/mountinfo names them) that are remote, or made by a program. */
bool lmcs_topology_type_is_network(const char *file_system);

/*
 * Keeps the calling thread on the processors of a NUMA node (of the nearest node that has some, for memory without
 * processors), as far as its affinity allows that now. Without NUMA, and for node -1, nothing is changed. True when
 * the thread was bound.
 */
bool lmcs_topology_bind_thread(int node);

#endif
