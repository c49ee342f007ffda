/* SPDX-License-Identifier: BSD-3-Clause */
/* snapshot_reading.c - methods of Snapshot that list its tensors, read ranges and compare snapshots. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

/* ---- Collecting ----------------------------------------------------------------------------------------------- */

/* A visit fills it, in the calling thread, without the GIL. */
struct collecting {
    PyObject *list;
    struct core_progress *progress; /* has the thread state; `raised`: a visit failed */
};

static void append(struct collecting *collecting, PyObject *item)
{
    if (!core_append(collecting->list, item))
        collecting->progress->raised = true;
}

static bool collect_entry(void *context, const struct lmcs_entry *entry)
{
    struct collecting *collecting = context;
    core_visit_begin(collecting->progress);
    append(collecting,
           Py_BuildValue("(sIINKKIIKK)", entry->tensor.name, (unsigned)entry->tensor.kind,
                         (unsigned)entry->tensor.dtype, core_shape_tuple(entry->tensor.ndim, entry->tensor.shape),
                         (unsigned long long)entry->raw_bytes, (unsigned long long)entry->stored_bytes,
                         (unsigned)entry->stored_as, (unsigned)entry->chain, (unsigned long long)entry->content,
                         (unsigned long long)entry->link));
    core_visit_end(collecting->progress);
    return !collecting->progress->raised;
}

PyObject *core_snapshot_entries(struct snapshot_object *self, PyObject *unused)
{
    (void)unused;
    struct core_progress progress;
    struct collecting collecting = {PyList_New(0), &progress};
    struct lmcs_error error = {0};
    if (collecting.list == NULL || !core_snapshot_enter(self)) {
        Py_XDECREF(collecting.list);
        return NULL;
    }
    core_progress_init(&progress, self->pool, Py_None);
    CORE_BEGIN_PROGRESS(&progress);
    enum lmcs_status status = lmcs_snapshot_entries(self->handle, collect_entry, &collecting, &error);
    CORE_END_PROGRESS(&progress);
    core_pool_leave(self->pool);
    if (status == LMCS_OK && !progress.raised)
        return collecting.list;
    Py_DECREF(collecting.list);
    return progress.raised ? NULL : core_fail(self, &error);
}

/* ---- Parts ---------------------------------------------------------------------------------------------------- */

PyObject *core_snapshot_read_range(struct snapshot_object *self, PyObject *args)
{
    const char *name;
    unsigned int kind;
    unsigned long long first_byte;
    Py_ssize_t bytes;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "IsKn:read_range", &kind, &name, &first_byte, &bytes))
        return NULL;
    if (bytes < 0)
        return core_fail_with(self, LMCS_INVALID, "a range can't have less than no bytes");
    PyObject *result = PyByteArray_FromStringAndSize(NULL, bytes);
    if (result == NULL || !core_snapshot_enter(self)) {
        Py_XDECREF(result);
        return NULL;
    }
    char *buffer = PyByteArray_AsString(result); /* unshared until it is returned */
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_snapshot_read_range(self->handle, kind, name, first_byte, buffer, (uint64_t)bytes, &error);
    Py_END_ALLOW_THREADS
    core_pool_leave(self->pool);
    if (status != LMCS_OK) {
        Py_DECREF(result);
        return core_fail(self, &error);
    }
    return result;
}

/* False: an exception is set. The names are of the tuples. */
static bool take_ranges(PyObject *tuples, struct lmcs_tensor_range *ranges)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuples); i++) {
        unsigned long long first_byte, bytes, address;
        PyObject *tuple = PyTuple_GetItem(tuples, i);
        if (!PyTuple_Check(tuple)) {
            PyErr_SetString(PyExc_TypeError, "a range is a tuple");
            return false;
        }
        if (!PyArg_ParseTuple(tuple, "sKKK:read_to", &ranges[i].name, &first_byte, &bytes, &address))
            return false;
        void *buffer = (void *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr): as Python knows it
        ranges[i].first_byte = first_byte;
        ranges[i].bytes = bytes;
        ranges[i].buffer = buffer;
    }
    return true;
}

PyObject *core_snapshot_read_to(struct snapshot_object *self, PyObject *args)
{
    unsigned int kind;
    PyObject *several;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "IO:read_to", &kind, &several))
        return NULL;
    PyObject *tuples = PySequence_Tuple(several);
    if (tuples == NULL)
        return NULL;
    size_t count = (size_t)PyTuple_Size(tuples);
    struct lmcs_tensor_range *ranges = calloc(count + 1, sizeof *ranges);
    if (ranges == NULL)
        PyErr_NoMemory();
    if (ranges == NULL || !take_ranges(tuples, ranges) || !core_snapshot_enter(self)) {
        free(ranges);
        Py_DECREF(tuples);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_snapshot_read_ranges(self->handle, kind, ranges, count, &error);
    Py_END_ALLOW_THREADS
    core_pool_leave(self->pool);
    free(ranges);
    Py_DECREF(tuples);
    if (status != LMCS_OK)
        return core_fail(self, &error);
    Py_RETURN_NONE;
}

/* ---- Differences ---------------------------------------------------------------------------------------------- */

static PyObject *form_tuple(const struct lmcs_tensor *tensor, uint64_t bytes)
{
    if (tensor == NULL)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(INK)", (unsigned)tensor->dtype, core_shape_tuple(tensor->ndim, tensor->shape),
                         (unsigned long long)bytes);
}

static bool collect_difference(void *context, const struct lmcs_difference *d)
{
    struct collecting *collecting = context;
    const struct lmcs_tensor *tensor = d->after != NULL ? d->after : d->before;
    core_visit_begin(collecting->progress);
    append(collecting, Py_BuildValue("(sINNNKKKKddddd)", d->name, (unsigned)d->kind,
                                     PyBool_FromLong(tensor->kind == LMCS_ATTACHMENT),
                                     form_tuple(d->before, d->before_bytes), form_tuple(d->after, d->after_bytes),
                                     (unsigned long long)d->elements, (unsigned long long)d->changed,
                                     (unsigned long long)d->not_finite_before, (unsigned long long)d->not_finite_after,
                                     d->max_change, d->rms_change, d->rms_before, d->rms_after, d->cosine));
    core_visit_end(collecting->progress);
    return !collecting->progress->raised;
}

PyObject *core_snapshot_diff(struct snapshot_object *self, PyObject *args)
{
    PyObject *other_object, *function = Py_None;
    unsigned int flags;
    struct core_progress progress;
    struct lmcs_diff_report report = {0};
    struct lmcs_error error = {0};
    struct core_state *state = core_state_of((PyObject *)self);
    if (!PyArg_ParseTuple(args, "O!I|O:diff", state->snapshot_type, &other_object, &flags, &function))
        return NULL;
    struct snapshot_object *other = (struct snapshot_object *)other_object;
    struct collecting collecting = {PyList_New(0), &progress};
    if (collecting.list == NULL)
        return NULL;
    bool entered = core_snapshot_enter(self);
    if (!entered || !core_snapshot_enter(other)) {
        if (entered)
            core_pool_leave(self->pool);
        Py_DECREF(collecting.list);
        return NULL;
    }
    struct core_callback callback;
    core_callback_begin(other->pool, &callback); /* perhaps another open of the pool */
    core_progress_init(&progress, self->pool, function);
    CORE_BEGIN_PROGRESS(&progress);
    enum lmcs_status status = lmcs_snapshot_diff(self->handle, other->handle, flags, collect_difference, &collecting,
                                                 &progress.progress, &report, &error);
    CORE_END_PROGRESS(&progress);
    core_callback_end(other->pool, &callback);
    core_pool_leave(other->pool);
    core_pool_leave(self->pool);
    if (status != LMCS_OK || progress.raised) {
        Py_DECREF(collecting.list);
        return progress.raised ? NULL : core_raise(state, &error);
    }
    return Py_BuildValue("(N{s:K,s:K,s:K,s:K,s:K,s:K})", collecting.list, "same", (unsigned long long)report.same,
                         "changed", (unsigned long long)report.changed, "reshaped", (unsigned long long)report.reshaped,
                         "added", (unsigned long long)report.added, "removed", (unsigned long long)report.removed,
                         "bytes_compared", (unsigned long long)report.bytes_compared);
}
