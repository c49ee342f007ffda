/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/nvdimm.c - no writing to persistent memory without libndctl.
 *
 * libpmemobj asks libndctl for bad blocks, and notes the device's unsafe shutdowns in the pool. Without libndctl
 * (load/) it finds none. It would store to bad blocks, and take the next opening with libndctl for a power failure.
 */
#include "media/nvdimm.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/topology.h"
#include "load/load.h"
#include "media/files.h"

static enum lmcs_status check_part(const char *path, const char *part, struct lmcs_error *error)
{
    struct lmcs_topology topology;
    lmcs_topology_detect(part, &topology);
    if (!topology.is_nvdimm && !topology.is_dax)
        return LMCS_OK;
    return lmcs_fail(
        error, LMCS_UNSUPPORTED, 0,
        "%s: is on persistent memory, and libndctl, which knows its bad blocks and unsafe shutdowns, is not "
        "installed: install it (Debian: libndctl6, Fedora: ndctl-libs), or open the pool for reading",
        path);
}

enum lmcs_status lmcs_nvdimm_check(const char *path, struct lmcs_error *error)
{
    if (lmcs_load_has_ndctl())
        return LMCS_OK;
    FILE *file = lmcs_path_is_poolset(path) ? fopen(path, "re") : NULL;
    if (file == NULL)
        return check_part(path, path, error);
    char line[PATH_MAX + 256], size[64], part[PATH_MAX + 1];
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%63s %4096[^\r\n\t #]", size, part) == 2 && part[0] == '/')
            status = check_part(path, part, error);
    fclose(file);
    return status;
}
