/* SPDX-License-Identifier: BSD-3-Clause */
/* transaction_type.c - Transaction: changes of live variables that become durable together. Keeps its pool open. */
#include "core.h"

#include <stdlib.h>
#include <unistd.h>

/* The handles of a tuple of Lives, or NULL with an exception. The caller frees the array. */
static struct lmcs_live **handle_array(struct core_state *state, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    struct lmcs_live **handles = calloc((size_t)count + 1, sizeof(struct lmcs_live *));
    if (handles == NULL)
        return (struct lmcs_live **)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        if (Py_TYPE(item) != state->live_type) {
            PyErr_SetString(PyExc_TypeError, "a transaction takes Lives");
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
    uint64_t start_ms = core_now_ms();
    options->wait_ms = 0;
    do {
        if (!core_pool_enter(pool))
            return NULL;
        POOL_CALL(pool, status, lmcs_transaction_begin(pool->handle, shelf, handles, count, options, &handle, &error));
    } while (status == LMCS_IN_USE && core_next_slice(wait_ms, start_ms, &options->wait_ms));
    if (status != LMCS_OK)
        return core_raise(state, &error);
    struct transaction_object *self = core_object_new(state->transaction_type);
    if (self == NULL) {
        Py_BEGIN_ALLOW_THREADS
        lmcs_transaction_abort(handle);
        Py_END_ALLOW_THREADS
        return NULL;
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
                          &wait_ms, core_to_uint64, &options.limit_bytes))
        return NULL;
    if (lives == Py_None)
        return begin(self, shelf, NULL, 0, &options, wait_ms);
    tuple = PySequence_Tuple(lives);
    handles = tuple != NULL ? handle_array(core_state_of((PyObject *)self), tuple) : NULL;
    if (handles != NULL)
        result = begin(self, shelf, handles, (size_t)PyTuple_Size(tuple), &options, wait_ms);
    free(handles);
    Py_XDECREF(tuple);
    return result;
}

/* False with an exception. */
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
        !transaction_enter(self))
        return NULL;
    WITHOUT_GIL(status,
                lmcs_transaction_declare(self->handle, ((struct live_object *)live)->handle, offset, bytes, &error));
    self->busy = false;
    return core_none(self, status, &error);
}

static PyObject *transaction_bytes(struct transaction_object *self, PyObject *unused)
{
    (void)unused;
    uint64_t bytes = 0;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!transaction_enter(self))
        return NULL;
    WITHOUT_GIL(status, lmcs_transaction_bytes(self->handle, &bytes, &error));
    self->busy = false;
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *transaction_commit(struct transaction_object *self, PyObject *unused)
{
    (void)unused;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!transaction_enter(self))
        return NULL;
    WITHOUT_GIL(status, lmcs_transaction_commit(self->handle, &error));
    self->busy = false;
    if (status != LMCS_OK)
        return core_fail(self, &error);
    self->handle = NULL;
    Py_RETURN_NONE;
}

static PyObject *transaction_abort(struct transaction_object *self, PyObject *unused)
{
    (void)unused;
    if (self->handle == NULL)
        Py_RETURN_NONE;
    if (!transaction_enter(self))
        return NULL;
    struct lmcs_transaction *handle = self->handle;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS
    lmcs_transaction_abort(handle);
    Py_END_ALLOW_THREADS
    self->busy = false;
    Py_RETURN_NONE;
}

static void transaction_dealloc(struct transaction_object *self)
{
    struct lmcs_transaction *handle = self->handle;
    if (handle != NULL && self->owner == getpid()) { /* a forked child makes no call */
        Py_BEGIN_ALLOW_THREADS
        lmcs_transaction_abort(handle);
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
    METHOD("commit", transaction_commit, METH_NOARGS,
           "Makes all changes durable; after a failure the transaction goes on."),
    METHOD("abort", transaction_abort, METH_NOARGS, "Undoes all changes."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef transaction_properties[] = {
    {"ended", (getter)transaction_ended, NULL, "Whether it was committed or aborted.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot transaction_slots[] = {
    {Py_tp_doc, "Changes of live variables that become durable together."},
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
