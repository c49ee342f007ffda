/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * load/functions.h - functions of libnuma, libndctl and libdaxctl that base/topology.c, libpmem and libpmemobj call.
 *
 *   VALUE(LIBRARY, type of the result, result without the library, name, parameters, arguments)
 *   VOID(LIBRARY, name, parameters, arguments)
 *
 * The parameters are compared with the library's header by the compiler.
 */
#ifndef LMCS_LOAD_FUNCTIONS_H
#define LMCS_LOAD_FUNCTIONS_H

#include <daxctl/libdaxctl.h>
#include <errno.h>
#include <limits.h>
#include <ndctl/libndctl.h>
#include <numa.h>
#include <stdarg.h>
#include <stddef.h>

typedef void lmcs_ndctl_log(struct ndctl_ctx *, int, const char *, int, const char *, const char *, va_list);
typedef void lmcs_daxctl_log(struct daxctl_ctx *, int, const char *, int, const char *, const char *, va_list);

/* clang-format off */
#define LMCS_LOADED_FUNCTIONS(VALUE, VOID) \
    VALUE(NUMA, int, -1, numa_available, (void), ()) \
    VALUE(NUMA, int, 0, numa_max_node, (void), ()) \
    VALUE(NUMA, int, 0, numa_distance, (int a, int b), (a, b)) \
    VALUE(NUMA, int, -1, numa_node_to_cpus, (int a, struct bitmask *b), (a, b)) \
    VALUE(NUMA, struct bitmask *, NULL, numa_get_mems_allowed, (void), ()) \
    VALUE(NUMA, struct bitmask *, NULL, numa_allocate_cpumask, (void), ()) \
    VALUE(NUMA, int, 0, numa_bitmask_isbitset, (const struct bitmask *a, unsigned int b), (a, b)) \
    VALUE(NUMA, struct bitmask *, a, numa_bitmask_clearbit, (struct bitmask *a, unsigned int b), (a, b)) \
    VALUE(NUMA, unsigned int, 0, numa_bitmask_weight, (const struct bitmask *a), (a)) \
    VALUE(NUMA, int, -1, numa_sched_getaffinity, (pid_t a, struct bitmask *b), (a, b)) \
    VALUE(NUMA, int, -1, numa_sched_setaffinity, (pid_t a, struct bitmask *b), (a, b)) \
    VOID(NUMA, numa_bitmask_free, (struct bitmask *a), (a)) \
    VALUE(DAXCTL, int, -ENOENT, daxctl_new, (struct daxctl_ctx **a), (a)) \
    VALUE(DAXCTL, struct daxctl_region *, NULL, daxctl_region_get_first, (struct daxctl_ctx *a), (a)) \
    VALUE(DAXCTL, struct daxctl_region *, NULL, daxctl_region_get_next, (struct daxctl_region *a), (a)) \
    VALUE(DAXCTL, struct daxctl_dev *, NULL, daxctl_dev_get_first, (struct daxctl_region *a), (a)) \
    VALUE(DAXCTL, struct daxctl_dev *, NULL, daxctl_dev_get_next, (struct daxctl_dev *a), (a)) \
    VALUE(DAXCTL, const char *, "", daxctl_dev_get_devname, (struct daxctl_dev *a), (a)) \
    VALUE(DAXCTL, int, -1, daxctl_dev_get_target_node, (struct daxctl_dev *a), (a)) \
    VOID(DAXCTL, daxctl_set_log_fn, (struct daxctl_ctx *a, lmcs_daxctl_log *b), (a, b)) \
    VOID(DAXCTL, daxctl_unref, (struct daxctl_ctx *a), (a)) \
    VALUE(NDCTL, int, lmcs_no_ndctl(a), ndctl_new, (struct ndctl_ctx **a), (a)) \
    VALUE(NDCTL, struct ndctl_ctx *, NULL, ndctl_unref, (struct ndctl_ctx *a), (a)) \
    VOID(NDCTL, ndctl_set_log_fn, (struct ndctl_ctx *a, lmcs_ndctl_log *b), (a, b)) \
    VALUE(NDCTL, struct ndctl_bus *, NULL, ndctl_bus_get_first, (struct ndctl_ctx *a), (a)) \
    VALUE(NDCTL, struct ndctl_bus *, NULL, ndctl_bus_get_next, (struct ndctl_bus *a), (a)) \
    VALUE(NDCTL, const char *, "", ndctl_bus_get_provider, (struct ndctl_bus *a), (a)) \
    VALUE(NDCTL, struct ndctl_cmd *, NULL, ndctl_bus_cmd_new_ars_cap, \
          (struct ndctl_bus *a, unsigned long long b, unsigned long long c), (a, b, c)) \
    VALUE(NDCTL, struct ndctl_cmd *, NULL, ndctl_bus_cmd_new_clear_error, \
          (unsigned long long a, unsigned long long b, struct ndctl_cmd *c), (a, b, c)) \
    VALUE(NDCTL, int, -ENOENT, ndctl_cmd_ars_cap_get_range, (struct ndctl_cmd *a, struct ndctl_range *b), (a, b)) \
    VALUE(NDCTL, unsigned long long, 0, ndctl_cmd_clear_error_get_cleared, (struct ndctl_cmd *a), (a)) \
    VALUE(NDCTL, unsigned int, 0, ndctl_cmd_smart_get_flags, (struct ndctl_cmd *a), (a)) \
    VALUE(NDCTL, unsigned int, 0, ndctl_cmd_smart_get_health, (struct ndctl_cmd *a), (a)) \
    VALUE(NDCTL, int, -ENOENT, ndctl_cmd_submit, (struct ndctl_cmd *a), (a)) \
    VALUE(NDCTL, int, -ENOENT, ndctl_cmd_submit_xlat, (struct ndctl_cmd *a), (a)) \
    VOID(NDCTL, ndctl_cmd_unref, (struct ndctl_cmd *a), (a)) \
    VALUE(NDCTL, struct ndctl_region *, NULL, ndctl_region_get_first, (struct ndctl_bus *a), (a)) \
    VALUE(NDCTL, struct ndctl_region *, NULL, ndctl_region_get_next, (struct ndctl_region *a), (a)) \
    VALUE(NDCTL, struct ndctl_bus *, NULL, ndctl_region_get_bus, (struct ndctl_region *a), (a)) \
    VALUE(NDCTL, unsigned int, 0, ndctl_region_get_id, (struct ndctl_region *a), (a)) \
    VALUE(NDCTL, int, -1, ndctl_region_get_numa_node, (struct ndctl_region *a), (a)) \
    VALUE(NDCTL, unsigned long long, ULLONG_MAX, ndctl_region_get_resource, (struct ndctl_region *a), (a)) \
    VALUE(NDCTL, enum ndctl_persistence_domain, PERSISTENCE_UNKNOWN, ndctl_region_get_persistence_domain, \
          (struct ndctl_region *a), (a)) \
    VALUE(NDCTL, struct badblock *, NULL, ndctl_region_get_first_badblock, (struct ndctl_region *a), (a)) \
    VALUE(NDCTL, struct badblock *, NULL, ndctl_region_get_next_badblock, (struct ndctl_region *a), (a)) \
    VALUE(NDCTL, struct ndctl_dimm *, NULL, ndctl_region_get_first_dimm, (struct ndctl_region *a), (a)) \
    VALUE(NDCTL, struct ndctl_dimm *, NULL, ndctl_region_get_next_dimm, \
          (struct ndctl_region *a, struct ndctl_dimm *b), (a, b)) \
    VALUE(NDCTL, struct ndctl_cmd *, NULL, ndctl_dimm_cmd_new_smart, (struct ndctl_dimm *a), (a)) \
    VALUE(NDCTL, long long, -ENOENT, ndctl_dimm_get_dirty_shutdown, (struct ndctl_dimm *a), (a)) \
    VALUE(NDCTL, const char *, NULL, ndctl_dimm_get_unique_id, (struct ndctl_dimm *a), (a)) \
    VALUE(NDCTL, struct ndctl_namespace *, NULL, ndctl_namespace_get_first, (struct ndctl_region *a), (a)) \
    VALUE(NDCTL, struct ndctl_namespace *, NULL, ndctl_namespace_get_next, (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, struct badblock *, NULL, ndctl_namespace_get_first_badblock, (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, struct badblock *, NULL, ndctl_namespace_get_next_badblock, (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, const char *, "", ndctl_namespace_get_devname, (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, const char *, "", ndctl_namespace_get_block_device, (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, enum ndctl_namespace_mode, NDCTL_NS_MODE_UNKNOWN, ndctl_namespace_get_mode, \
          (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, unsigned long long, ULLONG_MAX, ndctl_namespace_get_resource, (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, unsigned long long, ULLONG_MAX, ndctl_namespace_get_size, (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, struct ndctl_btt *, NULL, ndctl_namespace_get_btt, (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, struct ndctl_pfn *, NULL, ndctl_namespace_get_pfn, (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, struct ndctl_dax *, NULL, ndctl_namespace_get_dax, (struct ndctl_namespace *a), (a)) \
    VALUE(NDCTL, const char *, "", ndctl_btt_get_block_device, (struct ndctl_btt *a), (a)) \
    VALUE(NDCTL, const char *, "", ndctl_pfn_get_block_device, (struct ndctl_pfn *a), (a)) \
    VALUE(NDCTL, unsigned long long, ULLONG_MAX, ndctl_pfn_get_resource, (struct ndctl_pfn *a), (a)) \
    VALUE(NDCTL, unsigned long long, ULLONG_MAX, ndctl_pfn_get_size, (struct ndctl_pfn *a), (a)) \
    VALUE(NDCTL, unsigned long, 0, ndctl_dax_get_align, (struct ndctl_dax *a), (a)) \
    VALUE(NDCTL, unsigned long long, ULLONG_MAX, ndctl_dax_get_resource, (struct ndctl_dax *a), (a)) \
    VALUE(NDCTL, unsigned long long, ULLONG_MAX, ndctl_dax_get_size, (struct ndctl_dax *a), (a)) \
    VALUE(NDCTL, struct daxctl_region *, NULL, ndctl_dax_get_daxctl_region, (struct ndctl_dax *a), (a))
/* clang-format on */

#endif
