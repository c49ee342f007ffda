/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_names.c - methods of Pool: shelves renamed, removed, followed; tags, metrics, notes; ranges. */
#include "core.h"

#include <stdlib.h>

#define FOLLOW_SLICE_MS 60 /* the period of lmcs_snapshot_follow, so that a wait in slices checks as seldom */

PyObject *core_pool_rename(struct pool_object *self, PyObject *args)
{
    const char *shelf, *name;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ss:rename", &shelf, &name) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_shelf_rename(self->handle, shelf, name, &error));
    return core_none(self, status, &error);
}

PyObject *core_pool_drop(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    int dry_run = 0;
    struct lmcs_removal removal;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "s|p:drop", &shelf, &dry_run) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_shelf_drop(self->handle, shelf, dry_run != 0, &removal, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return core_removal_tuple(&removal);
}

PyObject *core_pool_range(struct pool_object *self, PyObject *args)
{
    const char *shelf, *range;
    uint64_t first = 0, last = 0;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ss:range", &shelf, &range) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_snapshot_range_clip(self->handle, shelf, range, &first, &last, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return Py_BuildValue("KK", (unsigned long long)first, (unsigned long long)last);
}

PyObject *core_pool_follow(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    struct lmcs_follower follower;
    uint32_t wait_ms, slice_ms = 0;
    uint64_t number = 0, start_ms = core_now_ms();
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sO&O&O&:follow", &shelf, core_to_uint64, &follower.after, core_to_uint64,
                          &follower.shelf_id, core_to_uint32, &wait_ms))
        return NULL;
    do { /* a close in another thread comes between two slices */
        if (!core_pool_enter(self))
            return NULL;
        slice_ms = slice_ms < FOLLOW_SLICE_MS ? slice_ms : FOLLOW_SLICE_MS;
        POOL_CALL(self, status, lmcs_snapshot_follow(self->handle, shelf, &follower, slice_ms, &number, &error));
    } while (status == LMCS_OK && number == 0 && core_next_slice(wait_ms, start_ms, &slice_ms));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    if (PyErr_Occurred())
        return NULL;
    return Py_BuildValue("KKK", (unsigned long long)number, (unsigned long long)follower.after,
                         (unsigned long long)follower.shelf_id);
}

PyObject *core_pool_change_tags(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    PyObject *list, *tuple = NULL, *result = NULL;
    struct lmcs_tag_change *changes = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sO:change_tags", &shelf, &list) || (tuple = PySequence_Tuple(list)) == NULL)
        return NULL;
    size_t count = (size_t)PyTuple_Size(tuple);
    changes = calloc(count + 1, sizeof *changes);
    if (changes == NULL) {
        PyErr_NoMemory();
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        unsigned long long number, expected;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tuple, (Py_ssize_t)i), "sKK", &changes[i].tag, &number, &expected))
            goto out;
        changes[i].number = number;
        changes[i].expected = expected;
    }
    if (!core_pool_enter(self))
        goto out;
    POOL_CALL(self, status, lmcs_tags_change(self->handle, shelf, changes, count, &error));
    result = status == LMCS_OK ? Py_NewRef(Py_None) : core_fail(self, &error);
out:
    free(changes);
    Py_DECREF(tuple);
    return result;
}

PyObject *core_pool_metric_set(struct pool_object *self, PyObject *args)
{
    const char *shelf, *name;
    uint64_t number;
    double value;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sO&sd:metric_set", &shelf, core_to_uint64, &number, &name, &value) ||
        !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_metric_set(self->handle, shelf, number, name, value, &error));
    return core_none(self, status, &error);
}

PyObject *core_pool_safe(struct pool_object *self, PyObject *args)
{
    const char *shelf, *url;
    uint64_t first, last, epoch;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sO&O&O&s:safe", &shelf, core_to_uint64, &first, core_to_uint64, &last, core_to_uint64,
                          &epoch, &url) ||
        !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_snapshots_safe(self->handle, shelf, first, last, epoch, url, &error));
    return core_none(self, status, &error);
}

PyObject *core_pool_note_set(struct pool_object *self, PyObject *args)
{
    const char *shelf, *note;
    uint64_t number;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sO&s:note_set", &shelf, core_to_uint64, &number, &note) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_note_set(self->handle, shelf, number, note, &error));
    return core_none(self, status, &error);
}
