/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture_type.c - Capture: the writing of one snapshot.
 *
 * A batch is names and packed arrays, in memory that the caller keeps. The store gets it in pieces of a few hundred
 * MiB; signals are checked between them.
 *
 * wait() raises the failure of an asynchronous commit every time, the pool's close raises it once.
 *
 * A thread fills the Buffer of reserve() outside of any call. Its room would go to other snapshots with the capture's
 * end, so none ends before its Buffers: a close waits for them, a commit and an abort are refused.
 */
#include "core.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES  ((uint64_t)256 << 20)
#define WAIT_POLL_US 200

static const struct core_child_kind child_kind;

PyObject *core_capture_new(struct core_state *state, struct pool_object *pool, struct lmcs_capture *handle)
{
    struct capture_object *self = core_object_new(state->capture_type);
    if (self == NULL) {
        lmcs_capture_abort(handle);
        return NULL;
    }
    self->pool = (struct pool_object *)Py_NewRef((PyObject *)pool);
    self->handle = handle;
    self->phase = CAPTURE_OPEN;
    core_child_link(pool, &self->child, &child_kind);
    return (PyObject *)self;
}

static struct lmcs_capture *take_handle(struct capture_object *self)
{
    struct lmcs_capture *handle = self->handle;
    self->handle = NULL;
    self->phase = CAPTURE_ENDED;
    core_child_unlink(&self->child);
    return handle;
}

/* False with an exception. A signal's handler may have ended the capture. */
static bool wait_a_moment(void)
{
    Py_BEGIN_ALLOW_THREADS
    usleep(WAIT_POLL_US);
    Py_END_ALLOW_THREADS
    return PyErr_CheckSignals() == 0;
}

static void wait_committed(struct capture_object *self)
{
    struct lmcs_capture *handle = take_handle(self);
    struct lmcs_error error = {0};
    enum lmcs_status status;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_capture_wait(handle, &error);
    Py_END_ALLOW_THREADS
    if (status != LMCS_OK) {
        self->error = error;
        self->error.status = status;
    }
}

static void abort_open(struct capture_object *self)
{
    struct lmcs_capture *handle = take_handle(self);
    Py_BEGIN_ALLOW_THREADS
    lmcs_capture_abort(handle);
    Py_END_ALLOW_THREADS
}

/* For a close of the pool: waits for a committed capture, aborts another. */
static void end_now(struct capture_object *self)
{
    self->busy = true; /* capture_wait in another thread waits for the outcome */
    if (self->phase == CAPTURE_COMMITTED) {
        wait_committed(self);
    } else if (self->phase == CAPTURE_PROMISED) {
        abort_open(self);
        self->error = (struct lmcs_error){.status = LMCS_INVALID, .message = "the store was closed before the copy"};
    } else if (self->phase == CAPTURE_OPEN) {
        abort_open(self);
    } else {
        core_child_unlink(&self->child);
    }
    self->busy = false;
}

static struct capture_object *capture_of(struct core_child *child)
{
    return (struct capture_object *)((char *)child - offsetof(struct capture_object, child));
}

static bool end_child(struct core_child *child, struct lmcs_error *error)
{
    struct capture_object *self = capture_of(child);
    Py_INCREF((PyObject *)self);
    end_now(self);
    bool failed = self->error.status != LMCS_OK && !self->reported;
    if (failed) {
        self->reported = true;
        *error = self->error;
    }
    Py_DECREF((PyObject *)self);
    return failed;
}

static bool end_idle_child(struct core_child *child)
{
    struct capture_object *self = capture_of(child);
    if (self->phase != CAPTURE_OPEN || self->busy || self->rooms > 0)
        return false;
    Py_INCREF((PyObject *)self);
    end_now(self);
    Py_DECREF((PyObject *)self);
    return true;
}

static const struct core_child_kind child_kind = {.end = end_child, .end_idle = end_idle_child};

/* Counts in `users` also while the pool is closing, which waits for it. */
static void capture_dealloc(struct capture_object *self)
{
    self->pool->users++;
    if (self->handle != NULL && core_pool_is_foreign(self->pool)) {
        (void)take_handle(self); /* a forked child has no captures */
    } else if (self->phase == CAPTURE_COMMITTED) {
        struct lmcs_capture *handle = take_handle(self);
        Py_BEGIN_ALLOW_THREADS
        lmcs_capture_detach(handle);
        Py_END_ALLOW_THREADS
    } else if (self->handle != NULL) {
        abort_open(self);
    }
    self->pool->users--;
    Py_CLEAR(self->pool);
    core_object_free((PyObject *)self);
}

/* Before a call that needs an open capture; end_call follows. */
static bool begin_call(struct capture_object *self)
{
    const char *why = self->phase != CAPTURE_OPEN && self->phase != CAPTURE_PROMISED ? "the capture has ended"
                      : self->busy ? "another thread is using the capture"
                                   : NULL;
    if (!core_pool_enter(self->pool))
        return false;
    if (why != NULL) {
        core_pool_leave(self->pool);
        core_fail_with(self, LMCS_INVALID, why);
        return false;
    }
    self->busy = true;
    return true;
}

static void end_call(struct capture_object *self)
{
    self->busy = false;
    core_pool_leave(self->pool);
}

/* False with an exception. */
static bool has_no_buffer(struct capture_object *self)
{
    bool has_none = self->rooms == 0;
    if (!has_none)
        core_fail_with(self, LMCS_INVALID, "a Buffer of the capture is still in use: drop it first");
    return has_none;
}

static void room_dropped(PyObject *owner)
{
    struct capture_object *self = (struct capture_object *)owner;
    if (--self->rooms == 0) {
        core_callback_end(self->pool, &self->filling);
        core_pool_leave(self->pool);
    }
}

/* Inside a call: a close can't come between. */
static PyObject *room_of(struct capture_object *self, void *data, uint64_t bytes)
{
    PyObject *buffer = core_buffer_new(core_state_of((PyObject *)self), (PyObject *)self, data, bytes, false);
    if (buffer == NULL)
        return NULL;
    if (self->rooms++ == 0) {
        self->pool->users++;
        core_callback_begin(self->pool, &self->filling);
    }
    core_buffer_on_drop(buffer, room_dropped);
    return buffer;
}

/* ---- Batches -------------------------------------------------------------------------------------------------- */

/* `names` owns the text of the tensors' names. */
struct batch {
    PyObject *names;
    struct lmcs_tensor *tensors;
    uint64_t *raw_bytes; /* of each tensor */
    size_t count;
};

static void batch_free(struct batch *batch)
{
    Py_CLEAR(batch->names);
    free(batch->tensors);
    free(batch->raw_bytes);
}

static bool batch_sizes(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        struct lmcs_tensor *tensor = &batch->tensors[i];
        uint64_t bytes = lmc_dtype_size(tensor->dtype);
        for (uint32_t axis = 0; axis < tensor->ndim; axis++) {
            if (__builtin_mul_overflow(bytes, tensor->shape[axis], &bytes)) {
                bytes = UINT64_MAX; /* the store refuses it */
                break;
            }
        }
        batch->raw_bytes[i] = bytes;
    }
    return true;
}

#define HEAD_STRIDED 0x10000u

/* Heads, u32: dtype, number of dimensions in the second byte, HEAD_STRIDED for a strided tensor (others are row-major).
 * Shapes: u64. Strides: i64, bytes; NULL: none. Then addresses. */
static bool batch_init(struct batch *batch, PyObject *names, const Py_buffer *heads, const Py_buffer *shapes,
                       const Py_buffer *strides)
{
    memset(batch, 0, sizeof *batch);
    batch->names = PySequence_Tuple(names);
    if (batch->names == NULL)
        return false;
    batch->count = (size_t)PyTuple_Size(batch->names);
    batch->tensors = calloc(batch->count + 1, sizeof *batch->tensors);
    batch->raw_bytes = calloc(batch->count + 1, sizeof *batch->raw_bytes);
    if (batch->tensors == NULL || batch->raw_bytes == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    size_t dims = (size_t)shapes->len / sizeof(uint64_t), used = 0;
    size_t stride_dims = strides != NULL ? (size_t)strides->len / sizeof(int64_t) : 0, strides_used = 0;
    bool sizes_fit = (size_t)heads->len == batch->count * sizeof(uint32_t);
    for (size_t i = 0; sizes_fit && i < batch->count; i++) {
        struct lmcs_tensor *tensor = &batch->tensors[i];
        uint32_t head = ((const uint32_t *)heads->buf)[i];
        bool is_strided = (head & HEAD_STRIDED) != 0;
        tensor->name = core_text_of(PyTuple_GetItem(batch->names, (Py_ssize_t)i));
        if (tensor->name == NULL)
            goto failed;
        tensor->kind = LMCS_TENSOR;
        tensor->dtype = head & 0xff;
        tensor->ndim = head >> 8 & 0xff;
        if (tensor->ndim > dims - used ||
            (is_strided && (strides == NULL || tensor->ndim > stride_dims - strides_used))) {
            sizes_fit = false;
            break;
        }
        tensor->shape = (const uint64_t *)shapes->buf + used;
        used += tensor->ndim;
        if (is_strided) {
            tensor->strides = (const int64_t *)strides->buf + strides_used;
            strides_used += tensor->ndim;
        }
    }
    if (!sizes_fit || used != dims || strides_used != stride_dims) {
        PyErr_SetString(PyExc_ValueError, "the arrays of a batch don't fit each other");
        goto failed;
    }
    return batch_sizes(batch);
failed:
    batch_free(batch);
    return false;
}

static size_t piece_length(const struct batch *batch, size_t first)
{
    uint64_t bytes = 0;
    size_t next = first;
    while (next < batch->count && (next == first || bytes < PIECE_BYTES)) {
        bytes = bytes + batch->raw_bytes[next] < bytes ? UINT64_MAX : bytes + batch->raw_bytes[next];
        next++;
    }
    return next - first;
}

static PyObject *put_batch(struct capture_object *self, const struct batch *batch, const void *const *data)
{
    struct lmcs_error error = {0};
    enum lmcs_status status = LMCS_OK;
    if (!begin_call(self))
        return NULL;
    for (size_t first = 0; first < batch->count && status == LMCS_OK;) {
        size_t length = piece_length(batch, first);
        Py_BEGIN_ALLOW_THREADS
        status = lmcs_capture_put(self->handle, batch->tensors + first, data + first, length, &error);
        Py_END_ALLOW_THREADS
        first += length;
        end_call(self); /* a signal's handler may close the store */
        if (PyErr_CheckSignals() != 0 || !begin_call(self))
            return NULL;
    }
    end_call(self);
    return core_none(self, status, &error);
}

static PyObject *capture_put(struct capture_object *self, PyObject *args)
{
    PyObject *names, *result = NULL;
    Py_buffer heads, shapes, strides, addresses;
    if (!PyArg_ParseTuple(args, "Oy*y*y*y*:put", &names, &heads, &shapes, &strides, &addresses))
        return NULL;
    struct batch batch;
    if (!batch_init(&batch, names, &heads, &shapes, &strides))
        goto out;
    if ((size_t)addresses.len != batch.count * sizeof(uint64_t))
        PyErr_SetString(PyExc_ValueError, "there must be one address for each name");
    else
        result = put_batch(self, &batch, (const void *const *)addresses.buf); /* pointers have 64 bits */
    batch_free(&batch);
out:
    PyBuffer_Release(&heads);
    PyBuffer_Release(&shapes);
    PyBuffer_Release(&strides);
    PyBuffer_Release(&addresses);
    return result;
}
_Static_assert(sizeof(void *) == sizeof(uint64_t), "addresses travel as 64-bit numbers");

static PyObject *capture_lend(struct capture_object *self, PyObject *lends)
{
    if (!begin_call(self))
        return NULL;
    lmcs_capture_lend(self->handle, lends == Py_True);
    end_call(self);
    Py_RETURN_NONE;
}

static PyObject *capture_put_same(struct capture_object *self, PyObject *args)
{
    PyObject *names, *existing, *result = NULL;
    Py_buffer heads, shapes;
    if (!PyArg_ParseTuple(args, "OOy*y*:put_same", &names, &existing, &heads, &shapes))
        return NULL;
    struct batch batch;
    PyObject *sources = PySequence_Tuple(existing);
    const char **source_names = NULL;
    size_t source_count = 0;
    if (sources == NULL || !batch_init(&batch, names, &heads, &shapes, NULL))
        goto out;
    source_names = core_texts_of(sources, &source_count);
    if (source_names == NULL)
        goto out_batch;
    if (source_count != batch.count) {
        PyErr_SetString(PyExc_ValueError, "there must be one existing name for each name");
        goto out_batch;
    }
    if (!begin_call(self))
        goto out_batch;
    struct lmcs_error error = {0};
    enum lmcs_status status = LMCS_OK;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < batch.count && status == LMCS_OK; i++)
        status = lmcs_capture_put_same(self->handle, &batch.tensors[i], source_names[i], &error);
    Py_END_ALLOW_THREADS
    end_call(self);
    result = core_none(self, status, &error);
out_batch:
    free(source_names);
    batch_free(&batch);
out:
    Py_XDECREF(sources);
    PyBuffer_Release(&heads);
    PyBuffer_Release(&shapes);
    return result;
}

static PyObject *capture_put_attachment(struct capture_object *self, PyObject *args)
{
    const char *name;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(args, "sy*:put_attachment", &name, &bytes))
        return NULL;
    uint64_t shape = (uint64_t)bytes.len;
    struct lmcs_tensor tensor = {.name = name, .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1, .shape = &shape};
    const void *data = bytes.buf;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!begin_call(self)) {
        PyBuffer_Release(&bytes);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_capture_put(self->handle, &tensor, &data, 1, &error);
    Py_END_ALLOW_THREADS
    end_call(self);
    PyBuffer_Release(&bytes);
    return core_none(self, status, &error);
}

static PyObject *capture_relate(struct capture_object *self, PyObject *args)
{
    PyObject *names;
    struct lmcs_relation relation = {0};
    if (!PyArg_ParseTuple(args, "O!O&O&(ddddddddd):relate", &PyTuple_Type, &names, core_to_uint32, &relation.optimizer,
                          core_to_uint32, &relation.flags, &relation.step, &relation.lr, &relation.weight_decay,
                          &relation.beta1, &relation.beta2, &relation.eps, &relation.momentum, &relation.dampening,
                          &relation.scale))
        return NULL;
    Py_ssize_t count = PyTuple_Size(names);
    if (count < 0 || (size_t)count > sizeof relation.names / sizeof relation.names[0]) {
        PyErr_SetString(PyExc_ValueError, "a relation has 2 to 4 names");
        return NULL;
    }
    relation.name_count = (uint32_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        relation.names[i] = core_text_of(PyTuple_GetItem(names, i));
        if (relation.names[i] == NULL)
            return NULL;
    }
    struct lmcs_error error = {0};
    if (!begin_call(self))
        return NULL;
    enum lmcs_status status = lmcs_capture_relate(self->handle, &relation, 1, &error);
    end_call(self);
    return core_none(self, status, &error);
}

static PyObject *capture_reserve(struct capture_object *self, PyObject *args)
{
    const char *name;
    uint32_t dtype;
    Py_buffer shape;
    if (!PyArg_ParseTuple(args, "sO&y*:reserve", &name, core_to_uint32, &dtype, &shape))
        return NULL;
    struct lmcs_tensor tensor = {.name = name,
                                 .kind = LMCS_TENSOR,
                                 .dtype = dtype,
                                 .ndim = (uint32_t)((size_t)shape.len / sizeof(uint64_t)),
                                 .shape = shape.buf};
    uint64_t bytes = lmc_dtype_size(dtype);
    for (uint32_t axis = 0; axis < tensor.ndim; axis++) {
        if (__builtin_mul_overflow(bytes, tensor.shape[axis], &bytes)) {
            PyErr_SetString(PyExc_ValueError, "a tensor's size is out of range");
            PyBuffer_Release(&shape);
            return NULL;
        }
    }
    void *data = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!begin_call(self)) {
        PyBuffer_Release(&shape);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_capture_reserve(self->handle, &tensor, &data, &error);
    Py_END_ALLOW_THREADS
    PyObject *buffer = status == LMCS_OK ? room_of(self, data, bytes) : NULL;
    end_call(self);
    PyBuffer_Release(&shape);
    return status == LMCS_OK ? buffer : core_fail(self, &error);
}

static PyObject *capture_put_live(struct capture_object *self, PyObject *unused)
{
    (void)unused;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    uint32_t slice_ms = 0;
    do { /* a close of the pool may end the capture between slices */
        if (!begin_call(self))
            return NULL;
        Py_BEGIN_ALLOW_THREADS
        status = lmcs_capture_put_live_within(self->handle, slice_ms, &error);
        Py_END_ALLOW_THREADS
        end_call(self);
    } while (core_waits_on(status, &error, &slice_ms));
    return core_none(self, status, &error);
}

/* ---- Commit --------------------------------------------------------------------------------------------------- */

static struct lmcs_metric *metric_array(PyObject *names, PyObject *values)
{
    Py_ssize_t count = PyTuple_Size(names);
    if (PyTuple_Size(values) != count) {
        PyErr_SetString(PyExc_ValueError, "there must be one value for each metric");
        return NULL;
    }
    struct lmcs_metric *metrics = calloc((size_t)count + 1, sizeof *metrics);
    if (metrics == NULL)
        return (struct lmcs_metric *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        metrics[i].name = core_text_of(PyTuple_GetItem(names, i));
        if (metrics[i].name != NULL)
            metrics[i].value = PyFloat_AsDouble(PyTuple_GetItem(values, i));
        if (PyErr_Occurred()) {
            free(metrics);
            return NULL;
        }
    }
    return metrics;
}

/* Begins the last call of the capture's own thread. */
static bool begin_commit(struct capture_object *self, enum capture_phase phase)
{
    if (!begin_call(self))
        return false;
    if (self->phase == phase && self->rooms == 0)
        return true;
    end_call(self);
    if (has_no_buffer(self))
        core_fail_with(self, LMCS_INVALID, phase == CAPTURE_OPEN ? "the capture is promised" : "it is not promised");
    return false;
}

/* Ends the handle unless an asynchronous commit was accepted. */
static PyObject *commit(struct capture_object *self, const struct lmcs_commit_options *options)
{
    struct lmcs_error error = {0};
    enum lmcs_status status;
    uint64_t number = 0;
    if (!begin_commit(self, CAPTURE_OPEN))
        return NULL;
    struct lmcs_capture *handle = self->handle;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_capture_commit(handle, options, &number, &error);
    Py_END_ALLOW_THREADS
    if (status == LMCS_OK && options->asynchronous)
        self->phase = CAPTURE_COMMITTED;
    else
        (void)take_handle(self);
    end_call(self);
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return PyLong_FromUnsignedLongLong(number);
}

static PyObject *promise(struct capture_object *self, const struct lmcs_commit_options *options)
{
    struct lmcs_error error = {0};
    enum lmcs_status status;
    uint64_t number = 0;
    if (!begin_commit(self, CAPTURE_OPEN))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_capture_promise(self->handle, options, &number, &error);
    Py_END_ALLOW_THREADS
    if (status == LMCS_OK)
        self->phase = CAPTURE_PROMISED;
    end_call(self);
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return PyLong_FromUnsignedLongLong(number);
}

enum mode { SYNCHRONOUS, ASYNCHRONOUS, PROMISE };

static PyObject *capture_commit(struct capture_object *self, PyObject *args)
{
    PyObject *step, *tags, *metric_names, *metric_values, *result = NULL;
    uint64_t parent, time_ns;
    const char *meta_json, *group = NULL;
    Py_ssize_t group_bytes = 0;
    int mode;
    if (!PyArg_ParseTuple(args, "OO&O&O!O!O!zi|z#:commit", &step, core_to_uint64, &parent, core_to_uint64, &time_ns,
                          &PyTuple_Type, &tags, &PyTuple_Type, &metric_names, &PyTuple_Type, &metric_values, &meta_json,
                          &mode, &group, &group_bytes))
        return NULL;
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.prepare = group != NULL;
    if (group != NULL && !core_group(self, group, group_bytes, options.group))
        return NULL;
    options.step = LMCS_NO_STEP;
    if (step != Py_None) {
        options.step = PyLong_AsLongLong(step);
        if (options.step == -1 && PyErr_Occurred())
            return NULL;
    }
    const char **tag_names = core_texts_of(tags, &options.tag_count);
    struct lmcs_metric *metrics = tag_names != NULL ? metric_array(metric_names, metric_values) : NULL;
    if (metrics != NULL) {
        options.parent = parent;
        options.time_ns = time_ns;
        options.tags = tag_names;
        options.metrics = metrics;
        options.metric_count = (size_t)PyTuple_Size(metric_names);
        options.meta_json = meta_json;
        options.asynchronous = mode == ASYNCHRONOUS;
        result = mode == PROMISE ? promise(self, &options) : commit(self, &options);
    }
    free(metrics);
    free(tag_names);
    return result;
}

/* False: it has failed, and wait() raises that. */
static PyObject *capture_finish(struct capture_object *self, PyObject *unused)
{
    (void)unused;
    if (!begin_commit(self, CAPTURE_PROMISED))
        return NULL;
    struct lmcs_capture *handle = self->handle;
    enum lmcs_status status;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_capture_commit(handle, NULL, NULL, NULL);
    Py_END_ALLOW_THREADS
    self->phase = CAPTURE_COMMITTED;
    end_call(self);
    return PyBool_FromLong(status == LMCS_OK);
}

static PyObject *capture_fail(struct capture_object *self, PyObject *exception)
{
    struct lmcs_error reason = {.status = core_status_of(self, exception)};
    PyObject *text = PyObject_Str(exception);
    const char *message = text != NULL ? core_text_of(text) : NULL;
    if (message == NULL) /* the promise ends all the same */
        PyErr_Clear();
    strncpy(reason.message, message != NULL ? message : "the tensors can't be copied", sizeof reason.message - 1);
    Py_XDECREF(text);
    if (!begin_commit(self, CAPTURE_PROMISED))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    lmcs_capture_fail(self->handle, &reason);
    Py_END_ALLOW_THREADS
    self->phase = CAPTURE_COMMITTED;
    end_call(self);
    Py_RETURN_NONE;
}

/* Uses the capture and the pool only between waits: other threads may wait or close the store. */
static PyObject *capture_wait(struct capture_object *self, PyObject *unused)
{
    (void)unused;
    while (!core_pool_is_foreign(self->pool) && /* a forked child has no thread that would end it */
           (self->busy || self->phase == CAPTURE_PROMISED ||
            (self->phase == CAPTURE_COMMITTED && !lmcs_capture_done(self->handle))))
        if (!wait_a_moment())
            return NULL;
    if (self->phase == CAPTURE_OPEN)
        return core_fail_with(self, LMCS_INVALID, "the capture is not committed");
    if (self->phase != CAPTURE_ENDED) { /* the pool is open, or its close waits for this call */
        self->pool->users++;
        self->busy = true;
        wait_committed(self);
        end_call(self);
    }
    if (self->error.status != LMCS_OK) {
        self->reported = true;
        return core_fail(self, &self->error);
    }
    Py_RETURN_NONE;
}

static PyObject *capture_abort(struct capture_object *self, PyObject *unused)
{
    (void)unused;
    if (self->phase != CAPTURE_OPEN && self->phase != CAPTURE_PROMISED)
        Py_RETURN_NONE;
    if (self->busy)
        return core_fail_with(self, LMCS_INVALID, "another thread is using the capture");
    if (!has_no_buffer(self))
        return NULL;
    self->pool->users++; /* also while closing: the closing thread may wait for one that waits for the shelf */
    self->busy = true;
    abort_open(self);
    end_call(self);
    Py_RETURN_NONE;
}

static PyObject *capture_done(struct capture_object *self, void *unused)
{
    (void)unused;
    bool done = core_pool_is_foreign(self->pool) || (self->phase == CAPTURE_ENDED && !self->busy);
    if (self->phase == CAPTURE_COMMITTED && !self->busy)
        done = lmcs_capture_done(self->handle);
    return PyBool_FromLong(done);
}

static PyObject *capture_stats(struct capture_object *self, PyObject *unused)
{
    (void)unused;
    uint64_t written = 0, shared = 0;
    if (self->phase == CAPTURE_ENDED)
        return core_fail_with(self, LMCS_INVALID, "the capture has ended");
    if (self->busy) /* the commit may free it */
        return core_fail_with(self, LMCS_INVALID, "another thread is using the capture");
    lmcs_capture_stats(self->handle, &written, &shared);
    return Py_BuildValue("KK", (unsigned long long)written, (unsigned long long)shared);
}

static PyMethodDef methods[] = {
    METHOD("put", capture_put, METH_VARARGS,
           "put(names, heads, shapes, strides, addresses): see the file's opening comment."),
    METHOD("lend", capture_lend, METH_O, "lend(bool): whether later puts lend their data until commit() returns."),
    METHOD("put_same", capture_put_same, METH_VARARGS, "put_same(names, existing, heads, shapes)."),
    METHOD("put_attachment", capture_put_attachment, METH_VARARGS, "put_attachment(name, bytes)."),
    METHOD("put_live", capture_put_live, METH_NOARGS, "Puts all live variables of the shelf."),
    METHOD("relate", capture_relate, METH_VARARGS,
           "relate(names, optimizer, flags, constants): one parameter and its moments."),
    METHOD("reserve", capture_reserve, METH_VARARGS,
           "reserve(name, dtype, shape): a writable Buffer, to be filled and dropped before the commit."),
    METHOD("commit", capture_commit, METH_VARARGS,
           "commit(step, parent, time_ns, tags, metric_names, metric_values, meta_json, mode, group=None): the number. "
           "mode: 0 waits until it is durable, 1 returns at once, 2 only promises the number; finish() or fail() end "
           "that. With a group it is prepared until Pool.resolve."),
    METHOD("finish", capture_finish, METH_NOARGS, "Commits a promised capture; false: wait() raises why not."),
    METHOD("fail", capture_fail, METH_O, "fail(exception): ends a promised capture; wait() raises it."),
    METHOD("wait", capture_wait, METH_NOARGS, "Waits until an asynchronous commit is durable; raises its failure."),
    METHOD("abort", capture_abort, METH_NOARGS, "Ends a capture that is not committed."),
    METHOD("stats", capture_stats, METH_NOARGS, "(bytes written anew, bytes shared) so far."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"done", (getter)capture_done, NULL, "Whether wait() would return at once.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The writing of one snapshot."},
    {Py_tp_dealloc, (void *)capture_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec capture_spec = {
    .name = "lmcstore._core.Capture",
    .basicsize = sizeof(struct capture_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
