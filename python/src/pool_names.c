/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pool_names.c - what Pool does with names: shelves forked, renamed, removed; tags; ranges.
 */
#include "core.h"

#include <stdlib.h>

/* Runs a call into the store, without the GIL, with the pool counted as in use. */
#define POOL_CALL(pool, status, call)               \
    do {                                            \
        Py_BEGIN_ALLOW_THREADS(status) = (call);    \
        Py_END_ALLOW_THREADS core_pool_leave(pool); \
    } while (0)

#define NUMBERS_AT_ONCE 100000 /* the most that newest() gives in one call */

PyObject *core_shelf_dict(const struct lmcs_shelf_info *info)
{
    PyObject *origin = info->origin_number == 0
                           ? Py_NewRef(Py_None)
                           : Py_BuildValue("(sKN)", info->origin_shelf, (unsigned long long)info->origin_number,
                                           PyBool_FromLong(info->origin_is_there));
    if (origin == NULL) {
        return NULL;
    }
    return Py_BuildValue("{s:s,s:K,s:K,s:K,s:I,s:s,s:K,s:N}", "name", info->name, "snapshot_count",
                         (unsigned long long)info->snapshot_count, "latest", (unsigned long long)info->latest,
                         "next_number", (unsigned long long)info->next_number, "keep_raw", (unsigned)info->keep_raw,
                         "policy", info->policy, "created_ns", (unsigned long long)info->created_ns, "origin", origin);
}

PyObject *core_removal_tuple(const struct lmcs_removal *removal)
{
    return Py_BuildValue("KKK", (unsigned long long)removal->freed_bytes, (unsigned long long)removal->later_bytes,
                         (unsigned long long)removal->removed_tags);
}

PyObject *core_pool_rename(struct pool_object *self, PyObject *args)
{
    const char *shelf, *name;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ss:rename", &shelf, &name) || !core_pool_enter(self)) {
        return NULL;
    }
    POOL_CALL(self, status, lmcs_shelf_rename(self->handle, shelf, name, &error));
    if (status != LMCS_OK) {
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    Py_RETURN_NONE;
}

PyObject *core_pool_drop(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    int dry_run = 0;
    struct lmcs_removal removal;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "s|p:drop", &shelf, &dry_run) || !core_pool_enter(self)) {
        return NULL;
    }
    POOL_CALL(self, status, lmcs_shelf_drop(self->handle, shelf, dry_run != 0, &removal, &error));
    if (status != LMCS_OK) {
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    return core_removal_tuple(&removal);
}

PyObject *core_pool_range(struct pool_object *self, PyObject *args)
{
    const char *shelf, *range;
    uint64_t first = 0, last = 0;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ss:range", &shelf, &range) || !core_pool_enter(self)) {
        return NULL;
    }
    POOL_CALL(self, status, lmcs_snapshot_range(self->handle, shelf, range, &first, &last, &error));
    if (status != LMCS_OK) {
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    return Py_BuildValue("KK", (unsigned long long)first, (unsigned long long)last);
}

PyObject *core_pool_newest(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    unsigned long long before;
    Py_ssize_t capacity;
    size_t count = 0;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sKn:newest", &shelf, &before, &capacity)) {
        return NULL;
    }
    size_t room = capacity < 0 ? 0 : capacity > NUMBERS_AT_ONCE ? NUMBERS_AT_ONCE : (size_t)capacity;
    uint64_t *numbers = calloc(room + 1, sizeof *numbers);
    if (numbers == NULL) {
        return PyErr_NoMemory();
    }
    if (!core_pool_enter(self)) {
        free(numbers);
        return NULL;
    }
    POOL_CALL(self, status, lmcs_snapshot_newest(self->handle, shelf, before, numbers, room, &count, &error));
    PyObject *result =
        status == LMCS_OK ? PyList_New((Py_ssize_t)count) : core_raise(core_state_of((PyObject *)self), &error);
    for (size_t i = 0; result != NULL && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number == NULL || PyList_SetItem(result, (Py_ssize_t)i, number) != 0) {
            Py_CLEAR(result);
        }
    }
    free(numbers);
    return result;
}

PyObject *core_pool_change_tags(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    PyObject *list, *tuple = NULL, *result = NULL;
    struct lmcs_tag_change *changes = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sO:change_tags", &shelf, &list) || (tuple = PySequence_Tuple(list)) == NULL) {
        return NULL;
    }
    size_t count = (size_t)PyTuple_Size(tuple);
    changes = calloc(count + 1, sizeof *changes);
    if (changes == NULL) {
        PyErr_NoMemory();
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        unsigned long long number, expected;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tuple, (Py_ssize_t)i), "sKK", &changes[i].tag, &number, &expected)) {
            goto out;
        }
        changes[i].number = number;
        changes[i].expected = expected;
    }
    if (!core_pool_enter(self)) {
        goto out;
    }
    POOL_CALL(self, status, lmcs_tags_change(self->handle, shelf, changes, count, &error));
    result = status == LMCS_OK ? Py_NewRef(Py_None) : core_raise(core_state_of((PyObject *)self), &error);
out:
    free(changes);
    Py_DECREF(tuple);
    return result;
}
