/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pool_policy.c - Pool's methods that set policies and prune by them.
 */
#include "core.h"

#include <stdlib.h>

PyObject *core_pool_set_policy(struct pool_object *self, PyObject *args)
{
    const char *shelf, *words;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ss:set_policy", &shelf, &words) || !core_pool_enter(self)) {
        return NULL;
    }
    POOL_CALL(self, status, lmcs_shelf_set_policy(self->handle, shelf, words, &error));
    if (status != LMCS_OK) {
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    Py_RETURN_NONE;
}

struct removed {
    uint64_t *numbers;
    size_t count, capacity;
    bool no_memory;
};

/* Without the GIL. */
static bool collect_removed(void *context, const struct lmcs_pruned *snapshot)
{
    struct removed *removed = context;
    if (snapshot->why != NULL) {
        return true;
    }
    if (removed->count == removed->capacity) {
        size_t capacity = removed->capacity == 0 ? 64 : 2 * removed->capacity;
        uint64_t *numbers = realloc(removed->numbers, capacity * sizeof *numbers);
        if (numbers == NULL) {
            removed->no_memory = true;
            return false;
        }
        removed->numbers = numbers;
        removed->capacity = capacity;
    }
    removed->numbers[removed->count++] = snapshot->number;
    return true;
}

PyObject *core_pool_prune(struct pool_object *self, PyObject *args)
{
    const char *shelf, *words;
    int dry_run;
    struct removed removed = {0};
    struct lmcs_prune_report report = {0};
    struct lmcs_error error = {0};
    enum lmcs_status status;
    PyObject *list = NULL, *result = NULL;
    if (!PyArg_ParseTuple(args, "szp:prune", &shelf, &words, &dry_run) || !core_pool_enter(self)) {
        return NULL;
    }
    POOL_CALL(self, status,
              lmcs_prune(self->handle, shelf, words, dry_run, collect_removed, &removed, NULL, &report, &error));
    if (status != LMCS_OK) {
        core_raise(core_state_of((PyObject *)self), &error);
        goto out;
    }
    if (removed.no_memory) {
        PyErr_NoMemory();
        goto out;
    }
    list = PyList_New((Py_ssize_t)removed.count);
    for (size_t i = 0; list != NULL && i < removed.count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(removed.numbers[i]);
        if (number == NULL || PyList_SetItem(list, (Py_ssize_t)i, number) != 0) {
            Py_CLEAR(list);
        }
    }
    if (list != NULL) {
        result = Py_BuildValue(
            "(KNKKK)", (unsigned long long)report.kept, list, (unsigned long long)report.removal.freed_bytes,
            (unsigned long long)report.removal.later_bytes, (unsigned long long)report.removal.removed_tags);
    }
out:
    free(removed.numbers);
    return result;
}
