/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_names.c - methods of Pool that rename and remove shelves, move tags, and resolve ranges. */
#include "core.h"

#include <stdlib.h>

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
    POOL_CALL(self, status, lmcs_snapshot_range(self->handle, shelf, range, &first, &last, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return Py_BuildValue("KK", (unsigned long long)first, (unsigned long long)last);
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
