/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * view_type.c - View: addresses for tensors of a snapshot; Buffer: one of them, by the buffer protocol.
 *
 * A memoryview, NumPy array or torch tensor holds its Buffer, and a Buffer its View: the bytes stay in place while they
 * are visible, also after the store's close.
 */
#include "core.h"

/* ---- View ----------------------------------------------------------------------------------------------------- */

PyObject *core_view_new(struct core_state *state, struct lmcs_view *handle, bool is_private)
{
    struct view_object *self = core_object_new(state->view_type);
    if (self == NULL) {
        lmcs_view_close(handle);
        return NULL;
    }
    self->handle = handle;
    self->is_private = is_private;
    return (PyObject *)self;
}

static void view_dealloc(struct view_object *self)
{
    struct lmcs_view *handle = self->handle;
    Py_BEGIN_ALLOW_THREADS
    lmcs_view_close(handle);
    Py_END_ALLOW_THREADS
    core_object_free((PyObject *)self);
}

static Py_ssize_t view_length(struct view_object *self)
{
    return (Py_ssize_t)lmcs_view_count(self->handle);
}

/* Releases `item`; false if it is NULL. */
static bool set_item(PyObject *list, size_t i, PyObject *item)
{
    return item != NULL && PyList_SetItem(list, (Py_ssize_t)i, item) == 0;
}

/* All entries at once; kinds and dtypes as bytes. */
static PyObject *view_unpack(struct view_object *self, PyObject *unused)
{
    (void)unused;
    struct core_state *state = core_state_of((PyObject *)self);
    size_t count = lmcs_view_count(self->handle);
    PyObject *names = PyList_New((Py_ssize_t)count);
    PyObject *shapes = PyList_New((Py_ssize_t)count);
    PyObject *buffers = PyList_New((Py_ssize_t)count);
    PyObject *kinds = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count);
    PyObject *dtypes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count);
    bool ok = names != NULL && shapes != NULL && buffers != NULL && kinds != NULL && dtypes != NULL;
    char *kind_bytes = ok ? PyBytes_AsString(kinds) : NULL; /* unshared until it is returned */
    char *dtype_bytes = ok ? PyBytes_AsString(dtypes) : NULL;
    for (size_t i = 0; ok && i < count; i++) {
        const struct lmcs_entry *entry = lmcs_view_entry(self->handle, i);
        kind_bytes[i] = (char)entry->tensor.kind;
        dtype_bytes[i] = (char)entry->tensor.dtype;
        ok = set_item(names, i, PyUnicode_FromString(entry->tensor.name)) &&
             set_item(shapes, i, core_shape_tuple(entry->tensor.ndim, entry->tensor.shape)) &&
             set_item(buffers, i,
                      core_buffer_new(state, (PyObject *)self, lmcs_view_data(self->handle, i), entry->raw_bytes,
                                      !self->is_private));
    }
    PyObject *result = ok ? PyTuple_Pack(5, names, kinds, dtypes, shapes, buffers) : NULL;
    Py_XDECREF(names);
    Py_XDECREF(shapes);
    Py_XDECREF(buffers);
    Py_XDECREF(kinds);
    Py_XDECREF(dtypes);
    return result;
}

static PyMethodDef view_methods[] = {
    {"unpack", (PyCFunction)(void (*)(void))view_unpack, METH_NOARGS,
     "(names, kinds, dtypes, shapes, buffers) of all entries, in order."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot view_slots[] = {
    {Py_tp_doc, "Addresses for tensors of a snapshot."},
    {Py_tp_dealloc, (void *)view_dealloc},
    {Py_tp_methods, view_methods},
    {Py_sq_length, (void *)view_length},
    {0, NULL},
};

PyType_Spec view_spec = {
    .name = "lmcstore._core.View",
    .basicsize = sizeof(struct view_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = view_slots,
};

/* ---- Buffer --------------------------------------------------------------------------------------------------- */

PyObject *core_buffer_new(struct core_state *state, PyObject *owner, void *data, uint64_t size_bytes, bool read_only)
{
    struct buffer_object *self = core_object_new(state->buffer_type);
    if (self == NULL)
        return NULL;
    self->owner = Py_NewRef(owner);
    self->data = data;
    self->size_bytes = (Py_ssize_t)size_bytes;
    self->read_only = read_only;
    return (PyObject *)self;
}

void core_buffer_on_drop(PyObject *buffer, void (*dropped)(PyObject *owner))
{
    ((struct buffer_object *)buffer)->dropped = dropped;
}

static void buffer_dealloc(struct buffer_object *self)
{
    if (self->dropped != NULL)
        self->dropped(self->owner);
    Py_CLEAR(self->owner);
    core_object_free((PyObject *)self);
}

static int buffer_get(struct buffer_object *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)self, self->data, self->size_bytes, self->read_only, flags);
}

static Py_ssize_t buffer_length(struct buffer_object *self)
{
    return self->size_bytes;
}

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc, "The bytes of one tensor."},
    {Py_tp_dealloc, (void *)buffer_dealloc},
    {Py_bf_getbuffer, (void *)buffer_get},
    {Py_sq_length, (void *)buffer_length},
    {0, NULL},
};

PyType_Spec buffer_spec = {
    .name = "lmcstore._core.Buffer",
    .basicsize = sizeof(struct buffer_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = buffer_slots,
};
