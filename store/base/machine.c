/* SPDX-License-Identifier: BSD-3-Clause */
/* base/machine.c - reads how much memory this process may use. */
#include "base/machine.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Reads a number from a file; UINT64_MAX: there is none. */
static uint64_t read_limit(const char *folder, const char *group, const char *name)
{
    char path[PATH_MAX + 64];
    uint64_t limit;
    if ((size_t)snprintf(path, sizeof path, "%s%s/%s", folder, group, name) >= sizeof path)
        return UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &limit) != 1)
        limit = UINT64_MAX;
    fclose(file);
    return limit;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The limit of the group that a line of /proc/self/cgroup names. In a container its own files are at the root. */
static uint64_t limit_of(const char *line)
{
    const char *controllers = strchr(line, ':');
    const char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (group == NULL)
        return UINT64_MAX;
    if (group == controllers + 1)
        return less(read_limit("/sys/fs/cgroup", group + 1, "memory.max"),
                    read_limit("/sys/fs/cgroup", "", "memory.max"));
    if (strncmp(controllers, ":memory:", 8) != 0)
        return UINT64_MAX;
    return less(read_limit("/sys/fs/cgroup/memory", group + 1, "memory.limit_in_bytes"),
                read_limit("/sys/fs/cgroup/memory", "", "memory.limit_in_bytes"));
}

uint64_t lmcs_machine_memory(void)
{
    char line[PATH_MAX];
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t most = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        most = less(most, limit_of(line));
    }
    if (file != NULL)
        fclose(file);
    return most;
}
