/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live_type.c - Live: a handle of a live variable; Transaction: changes of live variables that belong together.
 *
 * Both keep the pool open by themselves, as their C handles do, so they need no Pool and no list of them: a Live ends
 * when nobody refers to it, and that is when its address may go. Whoever sees the address holds a Buffer, which holds
 * the Live; `exports` counts the Buffers.
 *
 * Waiting (for a lock, for another transaction) is cut in slices, so that signals are heard.
 */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WAIT_SLICE_MS 100

/* Runs a call into the store without the GIL. */
#define WITHOUT_GIL(status, call)            \
    Py_BEGIN_ALLOW_THREADS(status) = (call); \
    Py_END_ALLOW_THREADS

static PyObject *none_or_raise(PyObject *self, enum lmcs_status status, const struct lmcs_error *error)
{
    if (status != LMCS_OK) {
        return core_raise(core_state_of(self), error);
    }
    Py_RETURN_NONE;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* The next slice of a wait: false when there is none, or with an exception. */
static bool next_slice(uint32_t wait_ms, uint64_t start_ms, uint32_t *slice_ms)
{
    if (PyErr_CheckSignals() != 0) {
        return false;
    }
    uint64_t waited = now_ms() - start_ms;
    if (wait_ms != UINT32_MAX && waited >= wait_ms) {
        return false;
    }
    uint64_t left = wait_ms == UINT32_MAX ? WAIT_SLICE_MS : wait_ms - waited;
    *slice_ms = left < WAIT_SLICE_MS ? (uint32_t)left : WAIT_SLICE_MS;
    return true;
}

/* ---- Live ----------------------------------------------------------------------------------------------------- */

PyObject *core_live_new(struct core_state *state, struct lmcs_live *handle, bool read_only)
{
    struct live_object *self = core_object_new(state->live_type);
    if (self == NULL) {
        Py_BEGIN_ALLOW_THREADS lmcs_live_close(handle);
        Py_END_ALLOW_THREADS return NULL;
    }
    self->handle = handle;
    self->read_only = read_only;
    return (PyObject *)self;
}

static void live_dealloc(struct live_object *self)
{
    Py_BEGIN_ALLOW_THREADS lmcs_live_close(self->handle);
    Py_END_ALLOW_THREADS core_object_free((PyObject *)self);
}

PyObject *core_live_info_dict(const struct lmcs_live_info *info)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)info->ndim);
    for (uint32_t i = 0; shape != NULL && i < info->ndim; i++) {
        PyObject *size = PyLong_FromUnsignedLongLong(info->shape[i]);
        if (size == NULL || PyTuple_SetItem(shape, (Py_ssize_t)i, size) != 0) {
            Py_CLEAR(shape);
        }
    }
    if (shape == NULL) {
        return NULL;
    }
    return Py_BuildValue("{s:s,s:I,s:I,s:N,s:K,s:K,s:K,s:K,s:K,s:I,s:i,s:y#,s:N}", "name", info->name, "form",
                         (unsigned)info->form, "dtype", (unsigned)info->dtype, "shape", shape, "bytes",
                         (unsigned long long)info->bytes, "reserved_bytes", (unsigned long long)info->reserved_bytes,
                         "created_ns", (unsigned long long)info->created_ns, "written_ns",
                         (unsigned long long)info->written_ns, "version", (unsigned long long)info->version, "handles",
                         (unsigned)info->handles, "numa_node", (int)info->numa_node, "note", (const char *)info->note,
                         (Py_ssize_t)info->note_bytes, "is_damaged", PyBool_FromLong(info->is_damaged));
}

static PyObject *live_info(struct live_object *self, PyObject *unused)
{
    (void)unused;
    struct lmcs_live_info info;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    WITHOUT_GIL(status, lmcs_live_info(self->handle, &info, &error));
    if (status != LMCS_OK) {
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    return core_live_info_dict(&info);
}

/*
 * What it is, at a time at which no thread is resizing it; with `claim` none does until the caller has. A resize holds
 * the store's lock, for which the call waits, nearly all the time. In a child of a thread that was not the resizing one
 * the call fails, and nobody waits.
 */
static enum lmcs_status info_between_sizes(struct live_object *self, bool claim, struct lmcs_live_info *info,
                                           struct lmcs_error *error)
{
    enum lmcs_status status;
    bool was_resizing;
    do {
        was_resizing = self->is_resizing;
        if (claim && !was_resizing) {
            self->is_resizing = true;
        }
        WITHOUT_GIL(status, lmcs_live_info(self->handle, info, error));
    } while (status == LMCS_OK && was_resizing);
    if (status != LMCS_OK && claim && !was_resizing) {
        self->is_resizing = false;
    }
    return status;
}

/* The bytes in place. */
static PyObject *buffer_of(struct live_object *self)
{
    struct core_state *state = core_state_of((PyObject *)self);
    struct lmcs_live_info info;
    struct lmcs_error error = {0};
    enum lmcs_status status = info_between_sizes(self, false, &info, &error);
    if (status != LMCS_OK) {
        return core_raise(state, &error);
    }
    void *data = lmcs_live_data(self->handle);
    if (data == NULL) {
        return core_raise_status(state, LMCS_INVALID, "a live value has no address: read it with get()");
    }
    PyObject *buffer = core_buffer_new(state, (PyObject *)self, data, info.bytes, self->read_only);
    if (buffer != NULL) {
        core_buffer_count(buffer, &self->exports);
    }
    return buffer;
}

/* It counts before its size is known: from then on no thread begins to make the tensor smaller. */
static PyObject *live_buffer(struct live_object *self, PyObject *unused)
{
    (void)unused;
    self->exports++;
    PyObject *buffer = buffer_of(self);
    self->exports--;
    return buffer;
}

/* Called once for each small write, so it parses its arguments itself. */
static PyObject *live_persist(struct live_object *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t offset, bytes;
    struct lmcs_error error;
    enum lmcs_status status;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "persist(offset, bytes) takes two arguments");
        return NULL;
    }
    if (!core_uint64(args[0], "an offset", &offset) || !core_uint64(args[1], "a size", &bytes)) {
        return NULL;
    }
    WITHOUT_GIL(status, lmcs_live_persist(self->handle, offset, bytes, &error));
    return none_or_raise((PyObject *)self, status, &error);
}

static PyObject *live_write(struct live_object *self, PyObject *args)
{
    uint64_t offset;
    Py_buffer data;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "O&y*:write", core_to_uint64, &offset, &data)) {
        return NULL;
    }
    WITHOUT_GIL(status, lmcs_live_write(self->handle, offset, data.buf, (uint64_t)data.len, &error));
    PyBuffer_Release(&data);
    return none_or_raise((PyObject *)self, status, &error);
}

static PyObject *live_read(struct live_object *self, PyObject *args)
{
    uint64_t offset;
    Py_ssize_t bytes;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "O&n:read", core_to_uint64, &offset, &bytes)) {
        return NULL;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, bytes < 0 ? 0 : bytes);
    if (result == NULL) {
        return NULL;
    }
    char *buffer = PyBytes_AsString(result); /* ours alone until it is returned */
    WITHOUT_GIL(status, lmcs_live_read(self->handle, offset, buffer, bytes < 0 ? 0 : (uint64_t)bytes, &error));
    if (status != LMCS_OK) {
        Py_DECREF(result);
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    return result;
}

#define MAX_WORD 16

static bool is_word(struct live_object *self, Py_ssize_t length)
{
    if (length > MAX_WORD) {
        core_raise_status(core_state_of((PyObject *)self), LMCS_INVALID,
                          "an atomic update is of 1, 2, 4, 8 or 16 bytes");
        return false;
    }
    return true;
}

/* What was there before. */
static PyObject *live_add(struct live_object *self, PyObject *args)
{
    uint64_t offset;
    const char *operand;
    Py_ssize_t length;
    unsigned char before[MAX_WORD] = {0};
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "O&y#:add", core_to_uint64, &offset, &operand, &length) || !is_word(self, length)) {
        return NULL;
    }
    unsigned char word[MAX_WORD] = {0};
    memcpy(word, operand, (size_t)length);
    WITHOUT_GIL(status, lmcs_live_add(self->handle, offset, (uint64_t)length, word, before, &error));
    if (status != LMCS_OK) {
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    return PyBytes_FromStringAndSize((const char *)before, length);
}

/* (swapped, what was found). */
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
        !is_word(self, length)) {
        return NULL;
    }
    if (length != other) {
        return core_raise_status(core_state_of((PyObject *)self), LMCS_INVALID,
                                 "what is expected and what is desired must have the same size");
    }
    memcpy(words[0], expected, (size_t)length);
    memcpy(words[1], desired, (size_t)length);
    WITHOUT_GIL(status, lmcs_live_compare_and_swap(self->handle, offset, (uint64_t)length, words[0], words[1], words[2],
                                                   &swapped, &error));
    if (status != LMCS_OK) {
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    return Py_BuildValue("(Ny#)", PyBool_FromLong(swapped), (const char *)words[2], length);
}

static PyObject *live_set(struct live_object *self, PyObject *arg)
{
    Py_buffer data;
    struct lmcs_error error;
    enum lmcs_status status;
    if (PyObject_GetBuffer(arg, &data, PyBUF_SIMPLE) != 0) {
        return NULL;
    }
    WITHOUT_GIL(status, lmcs_live_set(self->handle, data.buf, (uint64_t)data.len, &error));
    PyBuffer_Release(&data);
    return none_or_raise((PyObject *)self, status, &error);
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
        if (status != LMCS_INVALID || bytes <= capacity) {
            break;
        }
        capacity = bytes; /* another thread may make it longer still */
        if (buffer != small) {
            free(buffer);
        }
        buffer = malloc(capacity);
        if (buffer == NULL) {
            return PyErr_NoMemory();
        }
    }
    PyObject *result = status == LMCS_OK ? PyBytes_FromStringAndSize(buffer, (Py_ssize_t)bytes)
                                         : core_raise(core_state_of((PyObject *)self), &error);
    if (buffer != small) {
        free(buffer);
    }
    return result;
}

bool core_shape(PyObject *tuple, uint64_t *shape, uint32_t *ndim)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0) {
        return false;
    }
    if (count > LMCS_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "a tensor has %d dimensions at most, not %zd", LMCS_MAX_DIMS, count);
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!core_uint64(PyTuple_GetItem(tuple, i), "a dimension", &shape[i])) {
            return false;
        }
    }
    *ndim = (uint32_t)count;
    return true;
}

/* Whether a shape has fewer bytes than the tensor; one that is too large for any has not. */
static bool is_smaller(const struct lmcs_live_info *info, const uint64_t *shape, uint32_t ndim)
{
    uint64_t bytes = lmc_dtype_size((enum lmc_dtype)info->dtype);
    bool fits = true;
    for (uint32_t i = 0; i < ndim; i++) {
        if (shape[i] == 0) {
            return info->bytes > 0;
        }
        fits = fits && bytes <= UINT64_MAX / shape[i];
        bytes *= fits ? shape[i] : 1;
    }
    return fits && bytes < info->bytes;
}

/* Views of it would see what is cut off. The store looks for other handles. */
static PyObject *live_resize(struct live_object *self, PyObject *arg)
{
    uint64_t shape[LMCS_MAX_DIMS];
    uint32_t ndim;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!core_shape(arg, shape, &ndim)) {
        return NULL;
    }
    struct lmcs_live_info info;
    status = info_between_sizes(self, true, &info, &error);
    if (status != LMCS_OK) {
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    if (self->exports > 0 && is_smaller(&info, shape, ndim)) { /* under the GIL, and who counts from now on waits */
        self->is_resizing = false;
        char message[LMCS_MAX_NAME + 128];
        snprintf(message, sizeof message,
                 "live tensor '%s' can't be made smaller: arrays or tensors over its bytes are there; drop them first",
                 info.name);
        return core_raise_status(core_state_of((PyObject *)self), LMCS_IN_USE, message);
    }
    WITHOUT_GIL(status, lmcs_live_resize(self->handle, ndim, shape, &error));
    self->is_resizing = false;
    return none_or_raise((PyObject *)self, status, &error);
}

static PyObject *live_replace(struct live_object *self, PyObject *args)
{
    const char *name;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "s:replace", &name)) {
        return NULL;
    }
    WITHOUT_GIL(status, lmcs_live_replace(self->handle, name, &error));
    return none_or_raise((PyObject *)self, status, &error);
}

static PyObject *live_set_note(struct live_object *self, PyObject *args)
{
    const char *note;
    Py_ssize_t length;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "y#:set_note", &note, &length)) {
        return NULL;
    }
    WITHOUT_GIL(status, lmcs_live_set_note(self->handle, note, (size_t)length, &error));
    return none_or_raise((PyObject *)self, status, &error);
}

static PyObject *live_lock(struct live_object *self, PyObject *args)
{
    int exclusive;
    uint32_t wait_ms, slice_ms = 0;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "pO&:lock", &exclusive, core_to_uint32, &wait_ms)) {
        return NULL;
    }
    uint64_t start_ms = now_ms();
    do {
        WITHOUT_GIL(status,
                    lmcs_live_lock(self->handle, exclusive ? LMCS_LOCK_EXCLUSIVE : LMCS_LOCK_SHARED, slice_ms, &error));
    } while (status == LMCS_IN_USE && next_slice(wait_ms, start_ms, &slice_ms));
    return none_or_raise((PyObject *)self, status, &error);
}

static PyObject *live_unlock(struct live_object *self, PyObject *unused)
{
    (void)unused;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    WITHOUT_GIL(status, lmcs_live_unlock(self->handle, &error));
    return none_or_raise((PyObject *)self, status, &error);
}

static PyObject *live_address(struct live_object *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(lmcs_live_data(self->handle));
}

#define METHOD(name, function, flags, doc)                        \
    {                                                             \
        name, (PyCFunction)(void (*)(void))(function), flags, doc \
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

/* ---- Transaction ---------------------------------------------------------------------------------------------- */

/* The handles of a tuple of Lives, or NULL with an exception. Free the array. */
static struct lmcs_live **handle_array(struct core_state *state, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    struct lmcs_live **handles = calloc((size_t)count + 1, sizeof(struct lmcs_live *));
    if (handles == NULL) {
        return (struct lmcs_live **)PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        if (Py_TYPE(item) != state->live_type) {
            PyErr_SetString(PyExc_TypeError, "a transaction is of Lives");
            free(handles);
            return NULL;
        }
        handles[i] = ((struct live_object *)item)->handle;
    }
    return handles;
}

static PyObject *begin(struct pool_object *pool, const char *shelf, struct lmcs_live **handles, size_t count,
                       struct lmcs_transaction_options *options, uint32_t wait_ms)
{
    struct core_state *state = core_state_of((PyObject *)pool);
    struct lmcs_transaction *handle = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    uint64_t start_ms = now_ms();
    options->wait_ms = 0;
    do {
        if (!core_pool_enter(pool)) {
            return NULL;
        }
        POOL_CALL(pool, status, lmcs_transaction_begin(pool->handle, shelf, handles, count, options, &handle, &error));
    } while (status == LMCS_IN_USE && next_slice(wait_ms, start_ms, &options->wait_ms));
    if (status != LMCS_OK) {
        return core_raise(state, &error);
    }
    struct transaction_object *self = core_object_new(state->transaction_type);
    if (self == NULL) {
        Py_BEGIN_ALLOW_THREADS lmcs_transaction_abort(handle);
        Py_END_ALLOW_THREADS return NULL;
    }
    self->handle = handle;
    self->owner = getpid();
    return (PyObject *)self;
}

PyObject *core_pool_transaction(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    PyObject *lives, *tuple = NULL, *result = NULL;
    uint32_t wait_ms;
    struct lmcs_live **handles = NULL;
    struct lmcs_transaction_options options;
    lmcs_transaction_options_init(&options);
    if (!PyArg_ParseTuple(args, "sOO&O&O&:transaction", &shelf, &lives, core_to_uint32, &options.flags, core_to_uint32,
                          &wait_ms, core_to_uint64, &options.limit_bytes)) {
        return NULL;
    }
    if (lives == Py_None) {
        return begin(self, shelf, NULL, 0, &options, wait_ms);
    }
    tuple = PySequence_Tuple(lives);
    handles = tuple != NULL ? handle_array(core_state_of((PyObject *)self), tuple) : NULL;
    if (handles != NULL) {
        result = begin(self, shelf, handles, (size_t)PyTuple_Size(tuple), &options, wait_ms);
    }
    free(handles);
    Py_XDECREF(tuple);
    return result;
}

/* Before a call; false with an exception. */
static bool transaction_enter(struct transaction_object *self)
{
    struct core_state *state = core_state_of((PyObject *)self);
    if (self->handle == NULL) {
        core_raise_status(state, LMCS_INVALID, "the transaction has ended");
        return false;
    }
    if (self->busy) {
        core_raise_status(state, LMCS_INVALID, "another thread is using the transaction");
        return false;
    }
    self->busy = true;
    return true;
}

static PyObject *transaction_declare(struct transaction_object *self, PyObject *args)
{
    struct core_state *state = core_state_of((PyObject *)self);
    PyObject *live;
    uint64_t offset, bytes;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "O!O&O&:declare", state->live_type, &live, core_to_uint64, &offset, core_to_uint64,
                          &bytes) ||
        !transaction_enter(self)) {
        return NULL;
    }
    WITHOUT_GIL(status,
                lmcs_transaction_declare(self->handle, ((struct live_object *)live)->handle, offset, bytes, &error));
    self->busy = false;
    return none_or_raise((PyObject *)self, status, &error);
}

static PyObject *transaction_bytes(struct transaction_object *self, PyObject *unused)
{
    (void)unused;
    uint64_t bytes = 0;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!transaction_enter(self)) {
        return NULL;
    }
    WITHOUT_GIL(status, lmcs_transaction_bytes(self->handle, &bytes, &error));
    self->busy = false;
    if (status != LMCS_OK) {
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *transaction_commit(struct transaction_object *self, PyObject *unused)
{
    (void)unused;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!transaction_enter(self)) {
        return NULL;
    }
    WITHOUT_GIL(status, lmcs_transaction_commit(self->handle, &error));
    self->busy = false;
    if (status != LMCS_OK) {
        return core_raise(core_state_of((PyObject *)self), &error);
    }
    self->handle = NULL;
    Py_RETURN_NONE;
}

static PyObject *transaction_abort(struct transaction_object *self, PyObject *unused)
{
    (void)unused;
    if (self->handle == NULL) {
        Py_RETURN_NONE;
    }
    if (!transaction_enter(self)) {
        return NULL;
    }
    struct lmcs_transaction *handle = self->handle;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS lmcs_transaction_abort(handle);
    Py_END_ALLOW_THREADS self->busy = false;
    Py_RETURN_NONE;
}

static void transaction_dealloc(struct transaction_object *self)
{
    struct lmcs_transaction *handle = self->handle;
    if (handle != NULL && self->owner == getpid()) { /* a forked child lets go of it without a call */
        Py_BEGIN_ALLOW_THREADS lmcs_transaction_abort(handle);
        Py_END_ALLOW_THREADS
    }
    core_object_free((PyObject *)self);
}

static PyObject *transaction_ended(struct transaction_object *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(self->handle == NULL);
}

static PyMethodDef transaction_methods[] = {
    METHOD("declare", transaction_declare, METH_VARARGS, "declare(live, offset, bytes)."),
    METHOD("bytes", transaction_bytes, METH_NOARGS, "Bytes of pages that commit would write now."),
    METHOD("commit", transaction_commit, METH_NOARGS, "Makes all of it durable; after a failure it goes on."),
    METHOD("abort", transaction_abort, METH_NOARGS, "Undoes all of it."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef transaction_properties[] = {
    {"ended", (getter)transaction_ended, NULL, "Whether it was committed or aborted.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot transaction_slots[] = {
    {Py_tp_doc, "Changes of live variables that belong together."},
    {Py_tp_dealloc, (void *)transaction_dealloc},
    {Py_tp_methods, transaction_methods},
    {Py_tp_getset, transaction_properties},
    {0, NULL},
};

PyType_Spec transaction_spec = {
    .name = "lmcstore._core.Transaction",
    .basicsize = sizeof(struct transaction_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = transaction_slots,
};
