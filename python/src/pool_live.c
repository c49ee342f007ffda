/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_live.c - methods of Pool for live variables by name, and for checking out their snapshots. */
#include "core.h"

#include <string.h>

static bool is_read_only(struct lmcs_pool *pool)
{
    struct lmcs_pool_info info;
    struct lmcs_error error;
    return lmcs_pool_info(pool, &info, &error) != LMCS_OK || !info.writable;
}

PyObject *core_pool_live_create(struct pool_object *self, PyObject *args)
{
    const char *shelf, *name, *note, *value = NULL;
    Py_ssize_t note_bytes, value_bytes = 0;
    PyObject *shape_tuple;
    uint64_t shape[LMCS_MAX_DIMS];
    struct lmcs_tensor tensor = {.shape = shape};
    struct lmcs_live_options options;
    struct lmcs_live *handle = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    lmcs_live_options_init(&options);
    if (!PyArg_ParseTuple(args, "ssO&O!O&O&O&y#|z#:live_create", &shelf, &name, core_to_uint32, &tensor.dtype,
                          &PyTuple_Type, &shape_tuple, core_to_uint32, &options.form, core_to_uint32, &options.flags,
                          core_to_uint64, &options.reserve_bytes, &note, &note_bytes, &value, &value_bytes) ||
        !core_shape(shape_tuple, shape, &tensor.ndim) || !core_pool_enter(self))
        return NULL;
    tensor.name = name;
    options.note = note;
    options.note_bytes = (size_t)note_bytes;
    options.value = value;
    options.value_bytes = (uint64_t)value_bytes;
    POOL_CALL(self, status, lmcs_live_create(self->handle, shelf, &tensor, &options, &handle, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return core_live_new(core_state_of((PyObject *)self), handle, false);
}

PyObject *core_pool_live_open(struct pool_object *self, PyObject *args)
{
    const char *shelf, *name;
    struct lmcs_live *handle = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ss:live_open", &shelf, &name) || !core_pool_enter(self))
        return NULL;
    bool read_only = false;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_live_open(self->handle, shelf, name, &handle, &error);
    read_only = status == LMCS_OK && is_read_only(self->handle);
    Py_END_ALLOW_THREADS
    core_pool_leave(self);
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return core_live_new(core_state_of((PyObject *)self), handle, read_only);
}

/* ---- Listing -------------------------------------------------------------------------------------------------- */

struct live_listing {
    struct core_progress progress; /* `raised`: a visit failed */
    PyObject *list;
    bool names_only;
};

static bool collect_live(void *context, const struct lmcs_live_info *info)
{
    struct live_listing *listing = context;
    core_visit_begin(&listing->progress);
    PyObject *item = listing->names_only ? PyUnicode_FromString(info->name) : core_live_info_dict(info);
    listing->progress.raised = !core_append(listing->list, item);
    core_visit_end(&listing->progress);
    return !listing->progress.raised;
}

PyObject *core_pool_live_list(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    int names_only;
    struct lmcs_live_filter filter = {0};
    struct lmcs_error error = {0};
    if (!PyArg_ParseTuple(args, "szO&O&p:live_list", &shelf, &filter.prefix, core_to_uint64, &filter.written_from_ns,
                          core_to_uint64, &filter.written_until_ns, &names_only))
        return NULL;
    struct live_listing listing = {.list = PyList_New(0), .names_only = names_only != 0};
    if (listing.list == NULL || !core_pool_enter(self)) {
        Py_XDECREF(listing.list);
        return NULL;
    }
    core_progress_init(&listing.progress, self, Py_None);
    CORE_BEGIN_PROGRESS(&listing.progress);
    enum lmcs_status status = lmcs_live_list(self->handle, shelf, &filter, collect_live, &listing, &error);
    CORE_END_PROGRESS(&listing.progress);
    core_pool_leave(self);
    if (status == LMCS_OK && !listing.progress.raised)
        return listing.list;
    Py_DECREF(listing.list);
    return listing.progress.raised ? NULL : core_fail(self, &error);
}

PyObject *core_live_is_mapped(PyObject *module, PyObject *address)
{
    (void)module;
    void *at = PyLong_AsVoidPtr(address);
    return at == NULL && PyErr_Occurred() ? NULL : PyBool_FromLong(lmcs_live_is_mapped(at));
}

PyObject *core_pool_live_is_held(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    bool held;
    if (!PyArg_ParseTuple(args, "s:live_is_held", &shelf) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, held, lmcs_live_is_held(self->handle, shelf));
    return PyBool_FromLong(held);
}

PyObject *core_pool_live_usage(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    struct lmcs_live_usage usage = {0};
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "s:live_usage", &shelf) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_live_usage(self->handle, shelf, &usage, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return Py_BuildValue("{s:K,s:K,s:d}", "variables", (unsigned long long)usage.variables, "bytes",
                         (unsigned long long)usage.bytes, "pool_percent", usage.pool_percent);
}

/* ---- Names ---------------------------------------------------------------------------------------------------- */

PyObject *core_pool_live_erase(struct pool_object *self, PyObject *args)
{
    const char *shelf, *name;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ss:live_erase", &shelf, &name) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_live_erase(self->handle, shelf, name, &error));
    return core_none(self, status, &error);
}

PyObject *core_pool_live_rename(struct pool_object *self, PyObject *args)
{
    const char *shelf, *from, *to;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sss:live_rename", &shelf, &from, &to) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_live_rename(self->handle, shelf, from, to, &error));
    return core_none(self, status, &error);
}

PyObject *core_pool_live_swap(struct pool_object *self, PyObject *args)
{
    const char *shelf, *first, *second;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sss:live_swap", &shelf, &first, &second) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_live_swap(self->handle, shelf, first, second, &error));
    return core_none(self, status, &error);
}

PyObject *core_pool_live_put(struct pool_object *self, PyObject *args)
{
    const char *shelf, *name, *note;
    Py_ssize_t note_bytes;
    Py_buffer data;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ssy*y#:live_put", &shelf, &name, &data, &note, &note_bytes))
        return NULL;
    if (!core_pool_enter(self)) {
        PyBuffer_Release(&data);
        return NULL;
    }
    POOL_CALL(self, status,
              lmcs_live_put(self->handle, shelf, name, data.buf, (uint64_t)data.len, note, (size_t)note_bytes, &error));
    PyBuffer_Release(&data);
    return core_none(self, status, &error);
}

PyObject *core_pool_live_checkout(struct pool_object *self, PyObject *args)
{
    const char *shelf, *which;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    uint32_t slice_ms = 0;
    if (!PyArg_ParseTuple(args, "ss:live_checkout", &shelf, &which))
        return NULL;
    do {
        if (!core_pool_enter(self))
            return NULL;
        POOL_CALL(self, status, lmcs_live_checkout_within(self->handle, shelf, which, slice_ms, &error));
    } while (core_waits_on(status, &error, &slice_ms));
    return core_none(self, status, &error);
}
