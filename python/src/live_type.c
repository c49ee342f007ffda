/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live_type.c - Live: a handle of a live variable.
 *
 * The C handle keeps the pool open. A Live ends with its last reference; only then may its address go. An array over
 * the bytes holds a Buffer, which holds the Live; `exports` counts the Buffers.
 */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Live ----------------------------------------------------------------------------------------------------- */

PyObject *core_live_new(struct core_state *state, struct lmcs_live *handle, bool read_only)
{
    struct live_object *self = core_object_new(state->live_type);
    if (self == NULL) {
        Py_BEGIN_ALLOW_THREADS
        lmcs_live_close(handle);
        Py_END_ALLOW_THREADS
        return NULL;
    }
    self->handle = handle;
    self->read_only = read_only;
    return (PyObject *)self;
}

static void live_dealloc(struct live_object *self)
{
    Py_BEGIN_ALLOW_THREADS
    lmcs_live_close(self->handle);
    Py_END_ALLOW_THREADS
    core_object_free((PyObject *)self);
}

PyObject *core_live_info_dict(const struct lmcs_live_info *info)
{
    return Py_BuildValue("{s:s,s:I,s:I,s:N,s:K,s:K,s:K,s:K,s:K,s:I,s:i,s:y#,s:N}", "name", info->name, "form",
                         (unsigned)info->form, "dtype", (unsigned)info->dtype, "shape",
                         core_shape_tuple(info->ndim, info->shape), "bytes", (unsigned long long)info->bytes,
                         "reserved_bytes", (unsigned long long)info->reserved_bytes, "created_ns",
                         (unsigned long long)info->created_ns, "written_ns", (unsigned long long)info->written_ns,
                         "version", (unsigned long long)info->version, "handles", (unsigned)info->handles, "numa_node",
                         (int)info->numa_node, "note", (const char *)info->note, (Py_ssize_t)info->note_bytes,
                         "is_damaged", PyBool_FromLong(info->is_damaged));
}

static PyObject *live_info(struct live_object *self, PyObject *unused)
{
    (void)unused;
    struct lmcs_live_info info;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    WITHOUT_GIL(status, lmcs_live_info(self->handle, &info, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return core_live_info_dict(&info);
}

/*
 * Reads the info while no thread is resizing the tensor; with `claim`, no thread begins to until the caller is done.
 * The call waits for a resize on the store's lock. Waiting readers come before the next claim, which would starve them.
 * A forked child lacks the resizing thread, so there the call fails instead.
 */
static enum lmcs_status info_between_sizes(struct live_object *self, bool claim, struct lmcs_live_info *info,
                                           struct lmcs_error *error)
{
    enum lmcs_status status;
    bool was_resizing, waits = false;
    do {
        was_resizing = self->is_resizing || (claim && self->readers > 0);
        if (claim && !was_resizing)
            self->is_resizing = true;
        if (!claim && was_resizing && !waits) {
            waits = true;
            self->readers++;
        }
        WITHOUT_GIL(status, lmcs_live_info(self->handle, info, error));
    } while (status == LMCS_OK && was_resizing);
    if (waits)
        self->readers--;
    if (status != LMCS_OK && claim && !was_resizing)
        self->is_resizing = false;
    return status;
}

static void buffer_dropped(PyObject *owner)
{
    ((struct live_object *)owner)->exports--;
}

static PyObject *buffer_of(struct live_object *self)
{
    struct core_state *state = core_state_of((PyObject *)self);
    struct lmcs_live_info info;
    struct lmcs_error error = {0};
    enum lmcs_status status = info_between_sizes(self, false, &info, &error);
    if (status != LMCS_OK)
        return core_raise(state, &error);
    void *data = lmcs_live_data(self->handle);
    if (data == NULL)
        return core_raise_status(state, LMCS_INVALID, "a live value has no address: read it with get()");
    PyObject *buffer = core_buffer_new(state, (PyObject *)self, data, info.bytes, self->read_only);
    if (buffer != NULL) {
        self->exports++;
        core_buffer_on_drop(buffer, buffer_dropped);
    }
    return buffer;
}

/* Counts before it reads the size: from then on no thread begins to shrink the tensor. */
static PyObject *live_buffer(struct live_object *self, PyObject *unused)
{
    (void)unused;
    self->exports++;
    PyObject *buffer = buffer_of(self);
    self->exports--;
    return buffer;
}

/* Parses its arguments itself: called for each small write. */
static PyObject *live_persist(struct live_object *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t offset, bytes;
    struct lmcs_error error;
    enum lmcs_status status;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "persist(offset, bytes) takes two arguments");
        return NULL;
    }
    if (!core_uint64(args[0], "an offset", &offset) || !core_uint64(args[1], "a size", &bytes))
        return NULL;
    WITHOUT_GIL(status, lmcs_live_persist(self->handle, offset, bytes, &error));
    return core_none(self, status, &error);
}

static PyObject *live_write(struct live_object *self, PyObject *args)
{
    uint64_t offset;
    Py_buffer data;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "O&y*:write", core_to_uint64, &offset, &data))
        return NULL;
    WITHOUT_GIL(status, lmcs_live_write(self->handle, offset, data.buf, (uint64_t)data.len, &error));
    PyBuffer_Release(&data);
    return core_none(self, status, &error);
}

static PyObject *live_read(struct live_object *self, PyObject *args)
{
    uint64_t offset;
    Py_ssize_t bytes;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "O&n:read", core_to_uint64, &offset, &bytes))
        return NULL;
    PyObject *result = PyBytes_FromStringAndSize(NULL, bytes < 0 ? 0 : bytes);
    if (result == NULL)
        return NULL;
    char *buffer = PyBytes_AsString(result); /* unshared until it is returned */
    WITHOUT_GIL(status, lmcs_live_read(self->handle, offset, buffer, bytes < 0 ? 0 : (uint64_t)bytes, &error));
    if (status != LMCS_OK) {
        Py_DECREF(result);
        return core_fail(self, &error);
    }
    return result;
}

#define MAX_WORD 16

static bool is_word(struct live_object *self, Py_ssize_t length)
{
    if (length > MAX_WORD) {
        core_fail_with(self, LMCS_INVALID, "an atomic update takes 1, 2, 4, 8 or 16 bytes");
        return false;
    }
    return true;
}

/* Returns the bytes before. */
static PyObject *live_add(struct live_object *self, PyObject *args)
{
    uint64_t offset;
    const char *operand;
    Py_ssize_t length;
    unsigned char before[MAX_WORD] = {0};
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "O&y#:add", core_to_uint64, &offset, &operand, &length) || !is_word(self, length))
        return NULL;
    unsigned char word[MAX_WORD] = {0};
    memcpy(word, operand, (size_t)length);
    WITHOUT_GIL(status, lmcs_live_add(self->handle, offset, (uint64_t)length, word, before, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return PyBytes_FromStringAndSize((const char *)before, length);
}

/* Returns (swapped, the bytes before). */
static PyObject *live_compare_and_swap(struct live_object *self, PyObject *args)
{
    uint64_t offset;
    const char *expected, *desired;
    Py_ssize_t length, other;
    unsigned char words[3][MAX_WORD] = {{0}};
    bool swapped = false;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "O&y#y#:compare_and_swap", core_to_uint64, &offset, &expected, &length, &desired,
                          &other) ||
        !is_word(self, length))
        return NULL;
    if (length != other)
        return core_fail_with(self, LMCS_INVALID, "the expected and the desired bytes must have the same size");
    memcpy(words[0], expected, (size_t)length);
    memcpy(words[1], desired, (size_t)length);
    WITHOUT_GIL(status, lmcs_live_compare_and_swap(self->handle, offset, (uint64_t)length, words[0], words[1], words[2],
                                                   &swapped, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return Py_BuildValue("(Ny#)", PyBool_FromLong(swapped), (const char *)words[2], length);
}

static PyObject *live_set(struct live_object *self, PyObject *arg)
{
    Py_buffer data;
    struct lmcs_error error;
    enum lmcs_status status;
    if (PyObject_GetBuffer(arg, &data, PyBUF_SIMPLE) != 0)
        return NULL;
    WITHOUT_GIL(status, lmcs_live_set(self->handle, data.buf, (uint64_t)data.len, &error));
    PyBuffer_Release(&data);
    return core_none(self, status, &error);
}

static PyObject *live_get(struct live_object *self, PyObject *unused)
{
    (void)unused;
    char small[512];
    char *buffer = small;
    uint64_t bytes = 0, capacity = sizeof small;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    for (;;) {
        WITHOUT_GIL(status, lmcs_live_get(self->handle, buffer, capacity, &bytes, &error));
        if (status != LMCS_INVALID || bytes <= capacity)
            break;
        capacity = bytes; /* another thread may grow it again */
        if (buffer != small)
            free(buffer);
        buffer = malloc(capacity);
        if (buffer == NULL)
            return PyErr_NoMemory();
    }
    PyObject *result =
        status == LMCS_OK ? PyBytes_FromStringAndSize(buffer, (Py_ssize_t)bytes) : core_fail(self, &error);
    if (buffer != small)
        free(buffer);
    return result;
}

/* False for a shape whose size overflows. */
static bool is_smaller(const struct lmcs_live_info *info, const uint64_t *shape, uint32_t ndim)
{
    uint64_t bytes = lmc_dtype_size((enum lmc_dtype)info->dtype);
    bool fits = true;
    for (uint32_t i = 0; i < ndim; i++) {
        if (shape[i] == 0)
            return info->bytes > 0;
        fits = fits && bytes <= UINT64_MAX / shape[i];
        bytes *= fits ? shape[i] : 1;
    }
    return fits && bytes < info->bytes;
}

/* Resizes between sizes. Checks for Buffers over bytes that would be cut off; the store checks for other handles. */
static enum lmcs_status resize_within(struct live_object *self, const uint64_t *shape, uint32_t ndim, uint32_t wait_ms,
                                      struct lmcs_error *error)
{
    struct lmcs_live_info info;
    enum lmcs_status status = info_between_sizes(self, true, &info, error);
    if (status != LMCS_OK)
        return status;
    if (self->exports > 0 &&
        is_smaller(&info, shape, ndim)) { /* under the GIL; a thread that counts from now on waits */
        error->status = status = LMCS_IN_USE;
        error->system_errno = 0;
        snprintf(
            error->message, sizeof error->message,
            "live tensor '%.200s' can't be made smaller: arrays or tensors over its bytes are there; drop them first",
            info.name);
    } else {
        WITHOUT_GIL(status, lmcs_live_resize_within(self->handle, ndim, shape, wait_ms, error));
    }
    self->is_resizing = false;
    return status;
}

static PyObject *live_resize(struct live_object *self, PyObject *arg)
{
    uint64_t shape[LMCS_MAX_DIMS];
    uint32_t ndim, slice_ms = 0;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!core_shape(arg, shape, &ndim))
        return NULL;
    do {
        status = resize_within(self, shape, ndim, slice_ms, &error);
    } while (core_waits_on(status, &error, &slice_ms));
    return core_none(self, status, &error);
}

static PyObject *live_advise(struct live_object *self, PyObject *args)
{
    uint32_t access;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "O&:advise", core_to_uint32, &access))
        return NULL;
    WITHOUT_GIL(status, lmcs_live_advise(self->handle, (enum lmcs_live_access)access, &error));
    return core_none(self, status, &error);
}

static PyObject *live_replace(struct live_object *self, PyObject *args)
{
    const char *name;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "s:replace", &name))
        return NULL;
    WITHOUT_GIL(status, lmcs_live_replace(self->handle, name, &error));
    return core_none(self, status, &error);
}

static PyObject *live_set_note(struct live_object *self, PyObject *args)
{
    const char *note;
    Py_ssize_t length;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "y#:set_note", &note, &length))
        return NULL;
    WITHOUT_GIL(status, lmcs_live_set_note(self->handle, note, (size_t)length, &error));
    return core_none(self, status, &error);
}

static PyObject *live_lock(struct live_object *self, PyObject *args)
{
    int exclusive;
    uint32_t wait_ms, slice_ms = 0;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "pO&:lock", &exclusive, core_to_uint32, &wait_ms))
        return NULL;
    uint64_t start_ms = core_now_ms();
    do {
        WITHOUT_GIL(status,
                    lmcs_live_lock(self->handle, exclusive ? LMCS_LOCK_EXCLUSIVE : LMCS_LOCK_SHARED, slice_ms, &error));
    } while (status == LMCS_IN_USE && core_next_slice(wait_ms, start_ms, &slice_ms));
    return core_none(self, status, &error);
}

static PyObject *live_unlock(struct live_object *self, PyObject *unused)
{
    (void)unused;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    WITHOUT_GIL(status, lmcs_live_unlock(self->handle, &error));
    return core_none(self, status, &error);
}

static PyObject *live_address(struct live_object *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(lmcs_live_data(self->handle));
}

static PyMethodDef live_methods[] = {
    METHOD("info", live_info, METH_NOARGS, "What it is, as a dict."),
    METHOD("buffer", live_buffer, METH_NOARGS, "A tensor's bytes in place, as a Buffer."),
    METHOD("persist", live_persist, METH_FASTCALL, "persist(offset, bytes)."),
    METHOD("write", live_write, METH_VARARGS, "write(offset, data)."),
    METHOD("read", live_read, METH_VARARGS, "read(offset, bytes): bytes."),
    METHOD("add", live_add, METH_VARARGS, "add(offset, operand): what was there before."),
    METHOD("compare_and_swap", live_compare_and_swap, METH_VARARGS,
           "compare_and_swap(offset, expected, desired): whether it did, and what was there."),
    METHOD("set", live_set, METH_O, "set(data): another value."),
    METHOD("get", live_get, METH_NOARGS, "The value, or all of a tensor, as bytes."),
    METHOD("advise", live_advise, METH_VARARGS, "advise(access): ACCESS_NORMAL, ACCESS_RANDOM or ACCESS_SEQUENTIAL."),
    METHOD("resize", live_resize, METH_O, "resize(shape)."),
    METHOD("replace", live_replace, METH_VARARGS, "replace(name): gives an unnamed one its name."),
    METHOD("set_note", live_set_note, METH_VARARGS, "set_note(note)."),
    METHOD("lock", live_lock, METH_VARARGS, "lock(exclusive, wait_ms)."),
    METHOD("unlock", live_unlock, METH_NOARGS, "Lets go of the lock."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef live_properties[] = {
    {"address", (getter)live_address, NULL, "Where a tensor is; 0 for a value.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot live_slots[] = {
    {Py_tp_doc, "A handle of a live variable."},
    {Py_tp_dealloc, (void *)live_dealloc},
    {Py_tp_methods, live_methods},
    {Py_tp_getset, live_properties},
    {0, NULL},
};

PyType_Spec live_spec = {
    .name = "lmcstore._core.Live",
    .basicsize = sizeof(struct live_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = live_slots,
};
