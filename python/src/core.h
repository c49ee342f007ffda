/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * core.h - what the source files of lmcstore._core share.
 *
 * The module is a thin layer over store/lmcstore.h: one Python type a handle, plain tuples and dicts out, packed arrays
 * in. What is friendly lives in lmcstore/ (Python).
 *
 * Lifetimes. A Pool owns an open of a pool and knows its Captures and Snapshots (linked lists), because the store wants
 * them ended before the pool's close; they hold the Pool. Closing waits until no other thread is inside a call
 * (`users`). A View needs nothing but itself. All fields are guarded by the GIL, which is released around every call
 * into the store; so a handle that is in use is counted before the GIL goes.
 *
 * fork. In a child the handles of the parent are dead: its Pool is closed once, Views too, all else is left alone.
 */
#ifndef LMCSTORE_CORE_H
#define LMCSTORE_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lmcstore.h"
#include "lmcstore_live.h"

#define STATUS_COUNT (LMCS_CANCELLED + 1)

struct core_state {
    PyObject *exceptions[STATUS_COUNT]; /* by status; index 0: lmcstore.Error itself */
    PyTypeObject *pool_type;
    PyTypeObject *capture_type;
    PyTypeObject *snapshot_type;
    PyTypeObject *view_type;
    PyTypeObject *buffer_type;
    PyTypeObject *live_type;
    PyTypeObject *transaction_type;
};

extern struct PyModuleDef core_module;

struct capture_object;
struct snapshot_object;

/* A thread that runs Python code inside a call: its own, or what a collection of garbage runs. */
struct core_callback {
    unsigned long thread;
    struct core_callback *next;
};

struct pool_object {
    PyObject_HEAD struct lmcs_pool *handle; /* NULL: closed */
    pid_t owner;
    bool closing;
    unsigned users;                  /* calls into the store that are under way */
    struct core_callback *callbacks; /* threads that run Python code inside a call */
    struct capture_object *captures;
    struct snapshot_object *snapshots;
};

enum capture_phase { CAPTURE_OPEN, CAPTURE_COMMITTED, CAPTURE_ENDED };

struct capture_object {
    PyObject_HEAD struct pool_object *pool;
    struct lmcs_capture *handle; /* NULL: ended */
    enum capture_phase phase;
    bool busy;               /* a thread is in a call with it */
    bool told;               /* the failure in `error` was raised */
    struct lmcs_error error; /* of the asynchronous commit; status LMCS_OK: none */
    struct capture_object *next, **link;
};

struct snapshot_object {
    PyObject_HEAD struct pool_object *pool;
    struct lmcs_snapshot *handle; /* NULL: the pool was closed */
    struct snapshot_object *next, **link;
};

struct view_object {
    PyObject_HEAD struct lmcs_view *handle;
    bool is_private;
};

struct buffer_object {
    PyObject_HEAD PyObject *owner; /* the View or Capture that keeps `data` where it is */
    void *data;
    Py_ssize_t size_bytes;
    bool read_only;
    unsigned *counter; /* the owner's, of its Buffers, or NULL */
};

struct live_object {
    PyObject_HEAD struct lmcs_live *handle;
    unsigned exports; /* Buffers, and threads that are making one */
    bool is_resizing; /* a thread is: who wants to know its size waits */
    bool read_only;
};

struct transaction_object {
    PyObject_HEAD struct lmcs_transaction *handle; /* NULL: ended */
    pid_t owner;
    bool busy; /* a thread is in a call with it */
};

/* ---- module.c ---- */

/* The module's state, from an instance of one of its types. */
struct core_state *core_state_of(PyObject *self);
/* An instance of one of the module's types, zeroed; NULL with an exception. Its dealloc ends with the other. */
void *core_object_new(PyTypeObject *type);
void core_object_free(PyObject *self);
/* An exact int as uint64, or false with an exception that names `what`. */
bool core_uint64(PyObject *value, const char *what, uint64_t *out);
/* For "O&": an int as uint64_t or uint32_t. (The formats K and I take any int, and what does not fit they cut off.) */
int core_to_uint64(PyObject *value, void *out);
int core_to_uint32(PyObject *value, void *out);

/* ---- error.c ---- */

bool core_load_exceptions(struct core_state *state);
/* Raises the exception of an error; keeps one that is set already (by a progress function). Returns NULL. */
PyObject *core_raise(struct core_state *state, const struct lmcs_error *error);
/* The same with an attribute that says what had been done by then. */
PyObject *core_raise_with(struct core_state *state, const struct lmcs_error *error, PyObject *report);
/* The same for a status and a sentence of our own. */
PyObject *core_raise_status(struct core_state *state, enum lmcs_status status, const char *message);

/* A progress function for the store: checks for signals and calls a Python function, which may be None. */
struct core_progress {
    struct lmcs_progress progress; /* hand this to the store */
    struct pool_object *pool;
    PyObject *function; /* borrowed; NULL: none */
    PyThreadState *thread;
    struct core_callback callback;
    bool raised;
};
void core_progress_init(struct core_progress *self, struct pool_object *pool, PyObject *function);

/* Around a call into the store with a core_progress, in place of Py_BEGIN_ALLOW_THREADS and Py_END_ALLOW_THREADS. */
#define CORE_BEGIN_PROGRESS(self) (self)->thread = PyEval_SaveThread()
#define CORE_END_PROGRESS(self)   PyEval_RestoreThread((self)->thread)

/* Around Python's part of a visit by the store, which comes between those two, in the calling thread. */
void core_visit_begin(struct core_progress *self);
void core_visit_end(struct core_progress *self);

/* ---- pool_type.c ---- */

extern PyType_Spec pool_spec;
PyObject *core_open(PyObject *module, PyObject *args, PyObject *kwargs);
/* Before and after a call into the store; enter fails with an exception when the pool is closed. */
bool core_pool_enter(struct pool_object *pool);
void core_pool_leave(struct pool_object *pool);
/* Around what may run Python code between them: a close there is refused, as it would wait for its own thread. */
void core_callback_begin(struct pool_object *pool, struct core_callback *callback);
void core_callback_end(struct pool_object *pool, struct core_callback *callback);
/* True in a forked child of the process that opened the pool. */
bool core_pool_is_foreign(const struct pool_object *pool);

/* ---- pool_names.c ---- */

PyObject *core_shelf_dict(const struct lmcs_shelf_info *info);
PyObject *core_removal_tuple(const struct lmcs_removal *removal);
PyObject *core_pool_rename(struct pool_object *self, PyObject *args);
PyObject *core_pool_drop(struct pool_object *self, PyObject *args);
PyObject *core_pool_range(struct pool_object *self, PyObject *args);
PyObject *core_pool_newest(struct pool_object *self, PyObject *args);
PyObject *core_pool_change_tags(struct pool_object *self, PyObject *args);

/* ---- snapshot_reading.c ---- */

PyObject *core_snapshot_entries(struct snapshot_object *self, PyObject *unused);
PyObject *core_snapshot_read_range(struct snapshot_object *self, PyObject *args);
PyObject *core_snapshot_diff(struct snapshot_object *self, PyObject *args);

/* ---- capture_type.c ---- */

extern PyType_Spec capture_spec;
PyObject *core_capture_new(struct core_state *state, struct pool_object *pool, struct lmcs_capture *handle);
/* Ends a capture because its pool is being closed: waits if it is committed, else aborts. */
void core_capture_end(struct capture_object *capture);

/* ---- snapshot_type.c ---- */

extern PyType_Spec snapshot_spec;
PyObject *core_snapshot_new(struct core_state *state, struct pool_object *pool, struct lmcs_snapshot *handle);
/* Before a call with the handle, with core_pool_leave(self->pool) after it; fails with an exception. */
bool core_snapshot_enter(struct snapshot_object *self);
/* Ends a snapshot's handle because its pool is being closed. */
void core_snapshot_end(struct snapshot_object *snapshot);

/* ---- codec_functions.c ---- */

PyObject *core_codec_compress(PyObject *module, PyObject *args);
PyObject *core_codec_decompress(PyObject *module, PyObject *args);
PyObject *core_codec_info(PyObject *module, PyObject *owner);
PyObject *core_codec_digest(PyObject *module, PyObject *args);
PyObject *core_gradient_scale(PyObject *module, PyObject *args);

/* ---- pool_archive.c ---- */

/* The texts of a tuple of str, which are borrowed from it; NULL with an exception. To be freed. */
const char **core_texts_of(PyObject *tuple, size_t *count);
PyObject *core_pool_dump(struct pool_object *self, PyObject *args);
PyObject *core_pool_restore(struct pool_object *self, PyObject *args);
PyObject *core_archive_ls(PyObject *module, PyObject *args);
PyObject *core_archive_verify(PyObject *module, PyObject *args);
/* A Buffer over memory that an object keeps in place; it is the caller's business that it does. */
PyObject *core_memory(PyObject *module, PyObject *args);

/* ---- view_type.c ---- */

extern PyType_Spec view_spec;
extern PyType_Spec buffer_spec;
PyObject *core_view_new(struct core_state *state, struct lmcs_view *handle, bool is_private);
PyObject *core_buffer_new(struct core_state *state, PyObject *owner, void *data, uint64_t size_bytes, bool read_only);

/* Counts the Buffer in its owner's counter as long as it is there. */
void core_buffer_count(PyObject *buffer, unsigned *counter);

/* ---- live_type.c ---- */

extern PyType_Spec live_spec;
extern PyType_Spec transaction_spec;
PyObject *core_live_new(struct core_state *state, struct lmcs_live *handle, bool read_only);
PyObject *core_live_info_dict(const struct lmcs_live_info *info);
/* The numbers of a tuple, LMCS_MAX_DIMS at most; false with an exception. */
bool core_shape(PyObject *tuple, uint64_t *shape, uint32_t *ndim);
PyObject *core_pool_transaction(struct pool_object *self, PyObject *args);

/* ---- pool_live.c: methods of Pool ---- */

PyObject *core_pool_live_create(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_open(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_list(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_usage(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_erase(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_rename(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_swap(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_put(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_checkout(struct pool_object *self, PyObject *args);

/* Runs a call into the store, without the GIL, with the pool counted as in use. */
#define POOL_CALL(pool, status, call)               \
    do {                                            \
        Py_BEGIN_ALLOW_THREADS(status) = (call);    \
        Py_END_ALLOW_THREADS core_pool_leave(pool); \
    } while (0)

/* ---- pool_policy.c: methods of Pool ---- */

PyObject *core_pool_set_policy(struct pool_object *self, PyObject *args);
PyObject *core_pool_prune(struct pool_object *self, PyObject *args);

/* ---- numpy_memory.c ---- */

/* (NumPy's table of functions, ((folder, most bytes), ...), least bytes): sets where its arrays are; (): as it was. */
PyObject *core_numpy_memory(PyObject *module, PyObject *args);

/* ---- pool_scrub.c: a method of Pool --------------------------------------------------------------------------- */

PyObject *core_pool_scrub(struct pool_object *self, PyObject *args);

#endif
