/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * snapshot_type.c - Snapshot: the handle of a committed snapshot. Ends with its pool; every call fails then.
 *
 * It does not stop removal or compaction of its snapshot; a View does.
 */
#include "core.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void end_now(struct snapshot_object *self)
{
    struct lmcs_snapshot *handle = self->handle;
    self->handle = NULL;
    core_child_unlink(&self->child);
    if (handle != NULL) {
        Py_BEGIN_ALLOW_THREADS
        lmcs_snapshot_close(handle);
        Py_END_ALLOW_THREADS
    }
}

static bool end_child(struct core_child *child, struct lmcs_error *error)
{
    (void)error;
    end_now((struct snapshot_object *)((char *)child - offsetof(struct snapshot_object, child)));
    return false;
}

static const struct core_child_kind child_kind = {.end = end_child};

PyObject *core_snapshot_new(struct core_state *state, struct pool_object *pool, struct lmcs_snapshot *handle)
{
    struct snapshot_object *self = core_object_new(state->snapshot_type);
    if (self == NULL) {
        lmcs_snapshot_close(handle);
        return NULL;
    }
    self->pool = (struct pool_object *)Py_NewRef((PyObject *)pool);
    self->handle = handle;
    core_child_link(pool, &self->child, &child_kind);
    return (PyObject *)self;
}

static void snapshot_dealloc(struct snapshot_object *self)
{
    if (core_pool_is_foreign(self->pool))
        self->handle = NULL; /* a forked child makes no call */
    end_now(self);
    Py_CLEAR(self->pool);
    core_object_free((PyObject *)self);
}

/* ---- Properties ----------------------------------------------------------------------------------------------- */

static PyObject *metrics_dict(const struct lmcs_snapshot_info *info)
{
    PyObject *metrics = PyDict_New();
    for (size_t i = 0; metrics != NULL && i < info->metric_count; i++) {
        PyObject *value = PyFloat_FromDouble(info->metrics[i].value);
        if (value == NULL || PyDict_SetItemString(metrics, info->metrics[i].name, value) != 0)
            Py_CLEAR(metrics);
        Py_XDECREF(value);
    }
    return metrics;
}

static PyObject *snapshot_info(struct snapshot_object *self, PyObject *unused)
{
    (void)unused;
    if (!core_snapshot_enter(self))
        return NULL;
    struct core_callback callback; /* making a dict may collect garbage and run any code */
    core_callback_begin(self->pool, &callback);
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(self->handle);
    PyObject *step = info->step == LMCS_NO_STEP ? Py_NewRef(Py_None) : PyLong_FromLongLong(info->step);
    PyObject *metrics = metrics_dict(info);
    PyObject *result = NULL;
    if (step != NULL && metrics != NULL) {
        result =
            Py_BuildValue("{s:s,s:K,s:O,s:K,s:K,s:K,s:K,s:O,s:s,s:y#,s:z}", "shelf", info->shelf, "number",
                          (unsigned long long)info->number, "step", step, "time_ns", (unsigned long long)info->time_ns,
                          "parent", (unsigned long long)info->parent, "tensor_count",
                          (unsigned long long)info->tensor_count, "raw_bytes", (unsigned long long)info->raw_bytes,
                          "metrics", metrics, "meta_json", info->meta_json != NULL ? info->meta_json : "{}", "group",
                          (const char *)info->group, (Py_ssize_t)sizeof info->group, "remote", info->remote);
    }
    Py_XDECREF(step);
    Py_XDECREF(metrics);
    core_callback_end(self->pool, &callback);
    core_pool_leave(self->pool);
    return result;
}

static PyObject *snapshot_storage(struct snapshot_object *self, PyObject *unused)
{
    (void)unused;
    struct lmcs_snapshot_storage storage = {0};
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!core_snapshot_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_snapshot_storage(self->handle, &storage, &error);
    Py_END_ALLOW_THREADS
    core_pool_leave(self->pool);
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:I,s:I,s:z}", "stored_bytes", (unsigned long long)storage.stored_bytes,
                         "raw_contents", (unsigned long long)storage.raw_contents, "delta_contents",
                         (unsigned long long)storage.delta_contents, "keyframe_contents",
                         (unsigned long long)storage.keyframe_contents, "link_contents",
                         (unsigned long long)storage.link_contents, "longest_chain", (unsigned)storage.longest_chain,
                         "longest_line", (unsigned)storage.longest_line, "links_note", storage.links_note);
}

static PyObject *snapshot_digest(struct snapshot_object *self, PyObject *unused)
{
    (void)unused;
    struct lmc_hash digest = {0};
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!core_snapshot_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_snapshot_digest(self->handle, &digest, &error);
    Py_END_ALLOW_THREADS
    core_pool_leave(self->pool);
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return Py_BuildValue("y#", (const char *)&digest, (Py_ssize_t)sizeof digest); /* low, high: little-endian */
}

/* Strings collected without the GIL. */
struct string_list {
    char *bytes; /* each with its NUL */
    size_t used, capacity, count;
    bool no_memory;
};

static bool collect_string(void *context, const char *string)
{
    struct string_list *list = context;
    size_t length = strlen(string) + 1;
    if (list->capacity - list->used < length) {
        size_t capacity = 2 * (list->capacity + length) + 256;
        char *bytes = realloc(list->bytes, capacity);
        if (bytes == NULL) {
            list->no_memory = true;
            return false;
        }
        list->bytes = bytes;
        list->capacity = capacity;
    }
    memcpy(list->bytes + list->used, string, length);
    list->used += length;
    list->count++;
    return true;
}

static PyObject *string_list_object(const struct string_list *list)
{
    if (list->no_memory)
        return PyErr_NoMemory();
    PyObject *result = PyList_New((Py_ssize_t)list->count);
    const char *next = list->bytes;
    for (size_t i = 0; result != NULL && i < list->count; i++) {
        PyObject *item = PyUnicode_FromString(next);
        next += strlen(next) + 1;
        if (item == NULL || PyList_SetItem(result, (Py_ssize_t)i, item) != 0)
            Py_CLEAR(result);
    }
    return result;
}

static PyObject *snapshot_tags(struct snapshot_object *self, PyObject *unused)
{
    (void)unused;
    struct string_list list = {0};
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!core_snapshot_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_snapshot_tags(self->handle, collect_string, &list, &error);
    Py_END_ALLOW_THREADS
    core_pool_leave(self->pool);
    PyObject *result = status == LMCS_OK ? string_list_object(&list) : core_fail(self, &error);
    free(list.bytes);
    return result;
}

static bool collect_tensor_name(void *context, const struct lmcs_entry *entry)
{
    return entry->tensor.kind != LMCS_TENSOR || collect_string(context, entry->tensor.name);
}

/* Each digest in hexadecimal digits, with its name; tensors and attachments may have the same. */
static bool collect_digest(void *context, const struct lmcs_entry *entry)
{
    char text[2 * 16 + 2 + LMCS_MAX_NAME + 1];
    snprintf(text, sizeof text, "%016llx%016llx %s", (unsigned long long)entry->digest.high,
             (unsigned long long)entry->digest.low, entry->tensor.name);
    return collect_string(context, text);
}

static PyObject *list_entries(struct snapshot_object *self,
                              bool (*visit)(void *context, const struct lmcs_entry *entry))
{
    struct string_list list = {0};
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!core_snapshot_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_snapshot_entries(self->handle, visit, &list, &error);
    Py_END_ALLOW_THREADS
    core_pool_leave(self->pool);
    PyObject *result = status == LMCS_OK ? string_list_object(&list) : core_fail(self, &error);
    free(list.bytes);
    return result;
}

static PyObject *snapshot_digests(struct snapshot_object *self, PyObject *unused)
{
    (void)unused;
    return list_entries(self, collect_digest);
}

static PyObject *snapshot_names(struct snapshot_object *self, PyObject *unused)
{
    (void)unused;
    return list_entries(self, collect_tensor_name);
}

static PyObject *snapshot_fork(struct snapshot_object *self, PyObject *args)
{
    const char *name;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "s:fork", &name) || !core_snapshot_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_shelf_fork(self->handle, name, &error);
    Py_END_ALLOW_THREADS
    core_pool_leave(self->pool);
    return core_none(self, status, &error);
}

static PyObject *snapshot_mark_loaded(struct snapshot_object *self, PyObject *unused)
{
    (void)unused;
    if (!core_snapshot_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    lmcs_snapshot_mark_loaded(self->handle);
    Py_END_ALLOW_THREADS
    core_pool_leave(self->pool);
    Py_RETURN_NONE;
}

/* ---- Views ---------------------------------------------------------------------------------------------------- */

static PyObject *open_view(struct snapshot_object *self, const char *const *names, const uint32_t *kinds, size_t count,
                           uint32_t flags)
{
    struct lmcs_view *view = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!core_snapshot_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_view_open(self->handle, names, kinds, count, flags, &view, &error);
    Py_END_ALLOW_THREADS
    core_pool_leave(self->pool);
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return core_view_new(core_state_of((PyObject *)self), view, (flags & LMCS_VIEW_PRIVATE) != 0);
}

static PyObject *snapshot_view(struct snapshot_object *self, PyObject *args)
{
    PyObject *names, *tuple = NULL, *result = NULL;
    uint32_t kind, flags;
    const char **array = NULL;
    uint32_t *kinds = NULL;
    if (!PyArg_ParseTuple(args, "OO&O&:view", &names, core_to_uint32, &kind, core_to_uint32, &flags))
        return NULL;
    if (names == Py_None)
        return open_view(self, NULL, NULL, 0, flags);
    tuple = PySequence_Tuple(names);
    size_t count = 0;
    array = tuple != NULL ? core_texts_of(tuple, &count) : NULL;
    if (array == NULL)
        goto out;
    kinds = calloc(count + 1, sizeof *kinds);
    if (kinds == NULL) {
        PyErr_NoMemory();
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        kinds[i] = kind;
    result = open_view(self, array, kinds, count, flags);
out:
    free(kinds);
    free(array);
    Py_XDECREF(tuple);
    return result;
}

static PyMethodDef methods[] = {
    METHOD("info", snapshot_info, METH_NOARGS, "What never changes about it, as a dict."),
    METHOD("storage", snapshot_storage, METH_NOARGS, "How it is stored now, as a dict."),
    METHOD("digest", snapshot_digest, METH_NOARGS, "Hash of what it is: 16 bytes."),
    METHOD("tags", snapshot_tags, METH_NOARGS, "Its tags now."),
    METHOD("digests", snapshot_digests, METH_NOARGS, "Of tensors and attachments: \"DIGEST NAME\"."),
    METHOD("names", snapshot_names, METH_NOARGS, "The names of its tensors."),
    METHOD("entries", core_snapshot_entries, METH_NOARGS,
           "(name, kind, dtype, shape, raw_bytes, stored_bytes, stored_as, chain, content, link) of all."),
    METHOD("fork", snapshot_fork, METH_VARARGS, "fork(name): a new shelf whose first snapshot it is."),
    METHOD("read_range", core_snapshot_read_range, METH_VARARGS,
           "read_range(kind, name, first_byte, bytes): a bytearray."),
    METHOD("read_to", core_snapshot_read_to, METH_VARARGS,
           "read_to(kind, [(name, first_byte, bytes, address)]): into the caller's memory."),
    METHOD("diff", core_snapshot_diff, METH_VARARGS,
           "diff(after, flags, progress=None): a list of differences, and a report."),
    METHOD("mark_loaded", snapshot_mark_loaded, METH_NOARGS, "Makes it the default parent of the next capture."),
    METHOD("view", snapshot_view, METH_VARARGS, "view(names or None for all, kind, flags): a View."),
    METHOD("export", core_snapshot_export, METH_VARARGS, "export(part or None, path, progress=None): a report."),
    METHOD("export_joined", core_snapshot_export_joined, METH_VARARGS,
           "export_joined(part or None, path, {name: (dtype, shape)}, read, progress=None): the same of tensors "
           "that read(name) returns as buffers."),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The handle of a committed snapshot."},
    {Py_tp_dealloc, (void *)snapshot_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec snapshot_spec = {
    .name = "lmcstore._core.Snapshot",
    .basicsize = sizeof(struct snapshot_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
