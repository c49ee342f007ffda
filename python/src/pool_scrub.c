/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_scrub.c - the method of Pool that scrubs. */
#include "core.h"

#include <stdlib.h>

#define MAX_DAMAGES 1000 /* in the list; the report counts all */

struct damage_list {
    struct core_progress *progress; /* has the thread state for Python objects */
    PyObject *list;
};

static PyObject *holders_of(const struct lmcs_scrub_damage *damage)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < damage->holder_count; i++) {
        const struct lmcs_holder *holder = &damage->holders[i];
        PyObject *item = Py_BuildValue("{s:s,s:s,s:K,s:K,s:K}", "shelf", holder->shelf, "tensor", holder->tensor,
                                       "first", (unsigned long long)holder->first, "last",
                                       (unsigned long long)holder->last, "count", (unsigned long long)holder->count);
        if (!core_append(list, item))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *damage_dict(const struct lmcs_scrub_damage *damage)
{
    static const char *const states[] = {"found", "repaired", "lost", "unsupported"};
    PyObject *holders = holders_of(damage);
    return holders == NULL
               ? NULL
               : Py_BuildValue(
                     "{s:s,s:N,s:N,s:z,s:K,s:K,s:K,s:K,s:K,s:K,s:N}", "state", states[damage->state], "what",
                     core_message(damage->what), "source", PyUnicode_DecodeFSDefault(damage->source), "tensor",
                     damage->tensor != NULL ? damage->tensor->name : NULL, "first_byte",
                     (unsigned long long)damage->first_byte, "byte_count", (unsigned long long)damage->byte_count,
                     "first_element", (unsigned long long)damage->first_element, "element_count",
                     (unsigned long long)damage->element_count, "first_row", (unsigned long long)damage->first_row,
                     "row_count", (unsigned long long)damage->row_count, "holders", holders);
}

static void collect_damage(void *context, const struct lmcs_scrub_damage *damage)
{
    struct damage_list *damages = context;
    if (damages->progress->raised)
        return;
    core_visit_begin(damages->progress);
    if (PyList_Size(damages->list) < MAX_DAMAGES) {
        PyObject *item = damage_dict(damage);
        if (!core_append(damages->list, item))
            damages->progress->raised = true;
    }
    core_visit_end(damages->progress);
}

/* Borrowed from a tuple of bytes objects; the caller frees the array. NULL with an exception. */
static const char **paths_of(PyObject *tuple, size_t *count)
{
    Py_ssize_t size = PyTuple_Size(tuple);
    const char **paths = calloc((size_t)size + 1, sizeof *paths);
    if (paths == NULL)
        return (const char **)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < size; i++) {
        char *path;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &path, NULL) != 0) {
            free(paths);
            return NULL;
        }
        paths[i] = path;
    }
    *count = (size_t)size;
    return paths;
}

static PyObject *report_dict(const struct lmcs_scrub_report *report, PyObject *list)
{
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N,s:O}", "remote", (unsigned long long)report->remote, "contents",
        (unsigned long long)report->contents, "bytes_read", (unsigned long long)report->bytes_read, "bytes_total",
        (unsigned long long)report->bytes_total, "damages", (unsigned long long)report->damages, "repaired",
        (unsigned long long)report->repaired, "lost", (unsigned long long)report->lost, "unsupported",
        (unsigned long long)report->unsupported, "sources_unread", (unsigned long long)report->sources_unread,
        "is_whole", PyBool_FromLong(report->is_whole), "list", list);
}

PyObject *core_pool_scrub(struct pool_object *self, PyObject *args)
{
    unsigned long long sample_bytes, rate_bytes;
    int repair;
    PyObject *addresses, *from, *function, *result = NULL;
    struct core_progress progress;
    struct lmcs_scrub_report report = {0};
    struct lmcs_error error = {0};
    struct lmcs_scrub_options options;
    lmcs_scrub_options_init(&options);
    if (!PyArg_ParseTuple(args, "O!dKKpO!O:scrub", &PyTuple_Type, &addresses, &options.sample_share, &sample_bytes,
                          &rate_bytes, &repair, &PyTuple_Type, &from, &function))
        return NULL;
    struct damage_list damages = {.progress = &progress, .list = PyList_New(0)};
    const char **texts = damages.list == NULL ? NULL : core_texts_of(addresses, &options.address_count);
    const char **paths = texts == NULL ? NULL : paths_of(from, &options.from_count);
    if (paths != NULL && core_pool_enter(self)) {
        options.addresses = texts;
        options.from = paths;
        options.sample_bytes = sample_bytes;
        options.rate_bytes = rate_bytes;
        options.repair = repair;
        core_progress_init(&progress, self, function);
        CORE_BEGIN_PROGRESS(&progress);
        enum lmcs_status status =
            lmcs_scrub(self->handle, &options, collect_damage, &damages, &progress.progress, &report, &error);
        CORE_END_PROGRESS(&progress);
        core_pool_leave(self);
        bool failed = status != LMCS_OK &&
                      (!core_is_report(status, report.damages, report.unsupported) || report.sources_unread > 0);
        result = progress.raised ? NULL : report_dict(&report, damages.list);
        if (result != NULL && failed) { /* the exception carries the report */
            core_raise_with(core_state_of((PyObject *)self), &error, result);
            Py_CLEAR(result);
        }
    }
    Py_XDECREF(damages.list);
    free(paths);
    free(texts);
    return result;
}
