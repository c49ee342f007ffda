/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_groups.c - methods of Pool for prepared snapshots, whose group's decision commits or drops them. */
#include "core.h"

#include <string.h>

bool core_group(void *self, const char *bytes, Py_ssize_t count, unsigned char *group)
{
    if (count != CORE_GROUP_BYTES) {
        core_fail_with(self, LMCS_INVALID, "a group has 16 bytes");
        return false;
    }
    memcpy(group, bytes, CORE_GROUP_BYTES);
    return true;
}

PyObject *core_pool_resolve(struct pool_object *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t count;
    int commit;
    unsigned char group[CORE_GROUP_BYTES];
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "y#p:resolve", &bytes, &count, &commit) || !core_group(self, bytes, count, group) ||
        !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_group_resolve(self->handle, group, commit != 0, &error));
    return core_none(self, status, &error);
}
