/* SPDX-License-Identifier: BSD-3-Clause */
/* base/topology.h - the medium of a pool's file, and the processors near it. */
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

/* Unknown facts keep the value named first. */
struct lmcs_topology {
    char file_system[32]; /* "": unknown; "ext4", "xfs", "tmpfs", "fuse.sshfs", ...; "devdax" */
    bool is_network;      /* NFS, Lustre, FUSE and the like: file locks and shared mappings are unreliable */
    bool is_memory;       /* tmpfs, ramfs, hugetlbfs: lost with power */
    bool is_devdax;
    bool is_dax;                 /* a file that the processor addresses directly */
    bool is_nvdimm;              /* on an NVDIMM namespace or any devdax device */
    char persistence_domain[32]; /* "none"; on NVDIMMs "memory_controller", "cpu_cache" or "unknown" */
    char nvdimm_namespace[64];   /* ""; "namespace0.0" */
    int numa_node;               /* -1: unknown, or only one node */
    int device_health;           /* enum lmcs_device_health: the worst of the region's DIMMs */
    uint64_t bad_blocks;         /* 0; of the region */
    uint64_t unsafe_shutdowns;   /* 0; sum over the region's DIMMs */
};

/* Describes a file, directory or devdax device, or the directory of a file to be created. Never fails or prints. */
void lmcs_topology_detect(const char *path, struct lmcs_topology *topology);

/* Whether a type (as in /proc/self/mountinfo) is remote or served by a program. */
bool lmcs_topology_type_is_network(const char *file_system);

/*
 * Binds the thread to the processors of a NUMA node, or of the nearest with some, within its affinity. Does nothing
 * without NUMA or for node -1. True: it was bound.
 */
bool lmcs_topology_bind_thread(int node);

#endif
