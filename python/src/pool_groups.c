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

/* A visit fills it, in the calling thread, without the GIL. */
struct collecting {
    PyObject *list;
    struct core_progress *progress; /* has the thread state; `raised`: a visit failed */
};

static bool collect_prepared(void *context, const struct lmcs_prepared *prepared)
{
    struct collecting *collecting = context;
    core_visit_begin(collecting->progress);
    PyObject *item = Py_BuildValue("(y#sK)", (const char *)prepared->group, (Py_ssize_t)sizeof prepared->group,
                                   prepared->shelf, (unsigned long long)prepared->number);
    if (!core_append(collecting->list, item))
        collecting->progress->raised = true;
    core_visit_end(collecting->progress);
    return !collecting->progress->raised;
}

PyObject *core_pool_groups(struct pool_object *self, PyObject *unused)
{
    (void)unused;
    struct core_progress progress;
    struct collecting collecting = {PyList_New(0), &progress};
    struct lmcs_error error = {0};
    if (collecting.list == NULL || !core_pool_enter(self)) {
        Py_XDECREF(collecting.list);
        return NULL;
    }
    core_progress_init(&progress, self, Py_None);
    CORE_BEGIN_PROGRESS(&progress);
    enum lmcs_status status = lmcs_group_list(self->handle, collect_prepared, &collecting, &error);
    CORE_END_PROGRESS(&progress);
    core_pool_leave(self);
    if (status == LMCS_OK && !progress.raised)
        return collecting.list;
    Py_DECREF(collecting.list);
    return progress.raised ? NULL : core_fail(self, &error);
}

PyObject *core_pool_find_group(struct pool_object *self, PyObject *args)
{
    const char *shelf, *bytes;
    Py_ssize_t count;
    int verify = 1;
    unsigned char group[CORE_GROUP_BYTES];
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sy#|p:find_group", &shelf, &bytes, &count, &verify) ||
        !core_group(self, bytes, count, group) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_group_open(self->handle, shelf, group, &snapshot, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    lmcs_snapshot_set_verify(snapshot, verify != 0);
    return core_snapshot_new(core_state_of((PyObject *)self), self, snapshot);
}
