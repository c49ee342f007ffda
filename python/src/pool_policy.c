/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_policy.c - methods of Pool that set policies and prune by them. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>

PyObject *core_pool_set_policy(struct pool_object *self, PyObject *args)
{
    const char *shelf, *words;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ss:set_policy", &shelf, &words) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_shelf_set_policy(self->handle, shelf, words, &error));
    return core_none(self, status, &error);
}

PyObject *core_pool_policy_warning(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    char warning[LMCS_MAX_WARNING + 1];
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "s:policy_warning", &shelf) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_policy_warning(self->handle, shelf, warning, &error));
    return status == LMCS_OK ? core_message(warning) : core_fail(self, &error);
}

PyObject *core_policy_change(PyObject *module, PyObject *args)
{
    const char *policy, *words;
    char text[LMCS_MAX_POLICY + 1];
    struct lmcs_error error = {0};
    if (!PyArg_ParseTuple(args, "ss:policy_change", &policy, &words))
        return NULL;
    snprintf(text, sizeof text, "%s", policy);
    return lmcs_policy_change(text, words, &error) == LMCS_OK ? core_message(text)
                                                              : core_raise(PyModule_GetState(module), &error);
}

struct candidate {
    uint64_t number;
    uint64_t due_ns; /* end of the grace period that keeps it; 0: none does */
    bool stays;      /* the store kept it after all */
};

struct removed {
    struct candidate *list; /* ascending */
    size_t count, capacity;
    bool no_memory;
};

static int by_number(const void *a, const void *b)
{
    uint64_t x = ((const struct candidate *)a)->number, y = ((const struct candidate *)b)->number;
    return (x > y) - (x < y);
}

/* Runs without the GIL. A snapshot that the store keeps after all is visited twice. */
static bool collect_removed(void *context, const struct lmcs_pruned *snapshot)
{
    struct removed *removed = context;
    if (snapshot->why != NULL) {
        struct candidate key = {snapshot->number, 0, true};
        struct candidate *found =
            removed->count == 0 ? NULL : bsearch(&key, removed->list, removed->count, sizeof key, by_number);
        if (found != NULL)
            found->stays = true;
        return true;
    }
    if (removed->count == removed->capacity) {
        size_t capacity = removed->capacity == 0 ? 64 : 2 * removed->capacity;
        struct candidate *list = realloc(removed->list, capacity * sizeof *list);
        if (list == NULL) {
            removed->no_memory = true;
            return false;
        }
        removed->list = list;
        removed->capacity = capacity;
    }
    removed->list[removed->count++] = (struct candidate){snapshot->number, snapshot->due_ns, false};
    return true;
}

/* [(number, due_ns), ...] */
static PyObject *list_removed(const struct removed *removed)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < removed->count; i++) {
        const struct candidate *one = &removed->list[i];
        PyObject *item =
            one->stays ? NULL : Py_BuildValue("(KK)", (unsigned long long)one->number, (unsigned long long)one->due_ns);
        if (!one->stays && (item == NULL || PyList_Append(list, item) != 0))
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
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
    if (!PyArg_ParseTuple(args, "szp:prune", &shelf, &words, &dry_run) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status,
              lmcs_prune(self->handle, shelf, words, dry_run, collect_removed, &removed, NULL, &report, &error));
    if (status != LMCS_OK) {
        core_fail(self, &error);
        goto out;
    }
    if (removed.no_memory) {
        PyErr_NoMemory();
        goto out;
    }
    list = list_removed(&removed);
    if (list != NULL) {
        result = Py_BuildValue("(KNNKKK)", (unsigned long long)report.kept, list, core_message(report.warning),
                               (unsigned long long)report.removal.freed_bytes,
                               (unsigned long long)report.removal.later_bytes,
                               (unsigned long long)report.removal.removed_tags);
    }
out:
    free(removed.list);
    return result;
}

PyObject *core_pool_prune_budget(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    uint64_t other_bytes, removed = 0;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sO&:prune_budget", &shelf, core_to_uint64, &other_bytes) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_prune_budget(self->handle, shelf, other_bytes, &removed, &error));
    return status == LMCS_OK ? PyLong_FromUnsignedLongLong(removed) : core_fail(self, &error);
}

struct events {
    struct lmcs_prune_event *list;
    size_t count, capacity;
    bool no_memory;
};

/* Runs without the GIL. */
static bool collect_event(void *context, const struct lmcs_prune_event *event)
{
    struct events *events = context;
    if (events->count == events->capacity) {
        size_t capacity = events->capacity == 0 ? 8 : 2 * events->capacity;
        struct lmcs_prune_event *list = realloc(events->list, capacity * sizeof *list);
        events->no_memory = list == NULL;
        if (list == NULL)
            return false;
        events->list = list;
        events->capacity = capacity;
    }
    events->list[events->count++] = *event;
    return true;
}

static PyObject *event_tuple(const struct lmcs_prune_event *event)
{
    PyObject *ranges = PyList_New(0);
    for (size_t i = 0; ranges != NULL && i < event->range_count; i++) {
        PyObject *range = Py_BuildValue("(KK)", (unsigned long long)event->ranges[i].first,
                                        (unsigned long long)event->ranges[i].last);
        if (range == NULL || PyList_Append(ranges, range) != 0)
            Py_CLEAR(ranges);
        Py_XDECREF(range);
    }
    return ranges == NULL ? NULL
                          : Py_BuildValue("(sKKKN)", event->policy, (unsigned long long)event->first_ns,
                                          (unsigned long long)event->last_ns, (unsigned long long)event->count, ranges);
}

PyObject *core_pool_prune_log(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    struct events events = {0};
    struct lmcs_error error = {0};
    enum lmcs_status status;
    PyObject *list = NULL;
    if (!PyArg_ParseTuple(args, "s:prune_log", &shelf) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_prune_log(self->handle, shelf, collect_event, &events, &error));
    if (status != LMCS_OK)
        core_fail(self, &error);
    else if (events.no_memory)
        PyErr_NoMemory();
    else
        list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < events.count; i++) {
        PyObject *item = event_tuple(&events.list[i]);
        if (item == NULL || PyList_Append(list, item) != 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    free(events.list);
    return list;
}
