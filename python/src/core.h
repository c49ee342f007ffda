/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * core.h - the face of lmcstore._core, a thin layer over store/lmcstore.h: one Python type for each handle, plain
 * tuples and dicts out, packed arrays in.
 *
 * Lifetimes. A Pool owns one open of a pool and lists its children (Captures and Snapshots), which hold the Pool and
 * must end before its close. A View, a Live and a Transaction need no Pool. The GIL guards all fields; it is released
 * around every call into the store, so a handle in use is counted first (`users`, `busy`).
 *
 * fork. In a child the parent's handles are dead: it closes its Pool and Views once and leaves the others alone.
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

/* Python 3.13 dropped the names whose "#" formats read Py_ssize_t from its headers, but Python 3.12 needs them. */
#if PY_VERSION_HEX >= 0x030D0000 && defined(Py_LIMITED_API) && Py_LIMITED_API < 0x030D0000
PyAPI_FUNC(int) _PyArg_ParseTuple_SizeT(PyObject *, const char *, ...);
PyAPI_FUNC(int) _PyArg_ParseTupleAndKeywords_SizeT(PyObject *, PyObject *, const char *, char **, ...);
PyAPI_FUNC(PyObject *) _PyObject_CallFunction_SizeT(PyObject *, const char *, ...);
PyAPI_FUNC(PyObject *) _Py_BuildValue_SizeT(const char *, ...);
#define PyArg_ParseTuple            _PyArg_ParseTuple_SizeT
#define PyArg_ParseTupleAndKeywords _PyArg_ParseTupleAndKeywords_SizeT
#define PyObject_CallFunction       _PyObject_CallFunction_SizeT
#define Py_BuildValue               _Py_BuildValue_SizeT
#endif

#define STATUS_COUNT     (LMCS_REMOTE + 1)
#define CORE_GROUP_BYTES 16

struct core_state {
    PyObject *exceptions[STATUS_COUNT]; /* by status; 0: lmcstore.Error */
    PyTypeObject *pool_type;
    PyTypeObject *capture_type;
    PyTypeObject *snapshot_type;
    PyTypeObject *view_type;
    PyTypeObject *buffer_type;
    PyTypeObject *live_type;
    PyTypeObject *transaction_type;
};

/* A thread in Python code inside a call: a progress function, or a destructor. */
struct core_callback {
    unsigned long thread;
    struct core_callback *next;
};

struct core_child;

struct core_child_kind {
    /* Ends and unlinks the child. True, with `error`: an unreported failure. */
    bool (*end)(struct core_child *child, struct lmcs_error *error);
    /* Ends the child if it is idle; true if it did. NULL: never. */
    bool (*end_idle)(struct core_child *child);
};

/* A handle that ends before its pool. */
struct core_child {
    const struct core_child_kind *kind;
    struct core_child *next, **link; /* link NULL: on no list */
};

struct pool_object {
    PyObject_HEAD struct lmcs_pool *handle; /* NULL: closed */
    pid_t owner;
    bool closing;
    unsigned users; /* calls under way */
    struct core_callback *callbacks;
    struct core_child *children;
};

/* CAPTURE_PROMISED: of a lazy snapshot, whose tensors another thread puts. */
enum capture_phase { CAPTURE_OPEN, CAPTURE_PROMISED, CAPTURE_COMMITTED, CAPTURE_ENDED };

struct capture_object {
    PyObject_HEAD struct pool_object *pool;
    struct lmcs_capture *handle; /* NULL: ended */
    enum capture_phase phase;
    bool busy;                    /* a thread is in a call */
    bool reported;                /* `error` was raised */
    unsigned rooms;               /* Buffers of reserve; while there are any, they count as one call under way */
    struct core_callback filling; /* by the thread that reserved the first */
    struct lmcs_error error;      /* of the asynchronous commit; LMCS_OK: none */
    struct core_child child;
};

struct snapshot_object {
    PyObject_HEAD struct pool_object *pool;
    struct lmcs_snapshot *handle; /* NULL: the pool was closed */
    struct core_child child;
};

struct view_object {
    PyObject_HEAD struct lmcs_view *handle;
    bool is_private;
};

struct buffer_object {
    PyObject_HEAD PyObject *owner; /* View, Capture or Live that keeps `data` in place */
    void *data;
    Py_ssize_t size_bytes;
    bool read_only;
    void (*dropped)(PyObject *owner); /* called when the Buffer goes; or NULL */
};

struct live_object {
    PyObject_HEAD struct lmcs_live *handle;
    unsigned exports; /* Buffers, and threads making one */
    unsigned readers; /* threads waiting to read its size */
    bool is_resizing; /* others wait to read the size */
    bool read_only;
};

struct transaction_object {
    PyObject_HEAD struct lmcs_transaction *handle; /* NULL: ended */
    pid_t owner;
    bool busy; /* a thread is in a call */
};

#define METHOD(name, function, flags, doc)                        \
    {                                                             \
        name, (PyCFunction)(void (*)(void))(function), flags, doc \
    }

/* ---- object.c ---- */

struct core_state *core_state_of(PyObject *self);
/* A zeroed instance; NULL with an exception. */
void *core_object_new(PyTypeObject *type);
void core_object_free(PyObject *self);

/* ---- arguments.c: each is false, 0 or NULL with an exception ---- */

/* The exception names it. */
bool core_uint64(PyObject *value, const char *what, uint64_t *out);
/* For "O&". (The formats K and I cut off larger ints.) */
int core_to_uint64(PyObject *value, void *out);
int core_to_uint32(PyObject *value, void *out);
/* UTF-8 without NUL, borrowed. */
const char *core_text_of(PyObject *value);
/* Texts borrowed from a tuple. The caller frees the array. */
const char **core_texts_of(PyObject *tuple, size_t *count);
/* At most LMCS_MAX_DIMS numbers. */
bool core_shape(PyObject *tuple, uint64_t *shape, uint32_t *ndim);

/* ---- error.c: all return NULL ---- */

bool core_load_exceptions(struct core_state *state);
/* Keeps an exception that is set already (by a progress function). */
PyObject *core_raise(struct core_state *state, const struct lmcs_error *error);
/* With the attribute `report`. */
PyObject *core_raise_with(struct core_state *state, const struct lmcs_error *error, PyObject *report);
/* Whether a check found damage or newer records: its report states them, so nothing is raised. */
static inline bool core_is_report(enum lmcs_status status, uint64_t damages, uint64_t unsupported)
{
    return (status == LMCS_DAMAGED && damages > 0) || (status == LMCS_UNSUPPORTED && unsupported > 0);
}
PyObject *core_raise_status(struct core_state *state, enum lmcs_status status, const char *message);
/* Warns that a list lacks damaged or newer records; false with an exception, if warnings are errors. */
bool core_warn_of(const struct lmcs_error *error);
/* `self`: an instance of one of the module's types. */
PyObject *core_fail(void *self, const struct lmcs_error *error);
PyObject *core_fail_with(void *self, enum lmcs_status status, const char *message);
/* The status whose class the exception has; LMCS_INVALID: none. */
enum lmcs_status core_status_of(void *self, PyObject *exception);
/* None, or core_fail unless LMCS_OK. */
PyObject *core_none(void *self, enum lmcs_status status, const struct lmcs_error *error);

/* ---- results.c ---- */

/* A message of the store, with U+FFFD for what is no UTF-8: bytes of a path, or half a character at its end. */
PyObject *core_message(const char *text);
PyObject *core_shape_tuple(uint32_t ndim, const uint64_t *shape);
PyObject *core_number_list(const uint64_t *numbers, size_t count);
PyObject *core_shelf_dict(const struct lmcs_shelf_info *info);
PyObject *core_removal_tuple(const struct lmcs_removal *removal);
/* Releases `item`; false with an exception, also if it is NULL. */
bool core_append(PyObject *list, PyObject *item);

/* ---- gate.c ---- */

/* Around a call into the store; enter fails with an exception when the pool is closed. */
bool core_pool_enter(struct pool_object *pool);
void core_pool_leave(struct pool_object *pool);
/* The same with a snapshot's handle, which ends with its pool; core_pool_leave(self->pool) follows. */
bool core_snapshot_enter(struct snapshot_object *self);
/* Around Python code between them. A close in there is refused: it would wait for its own thread. */
void core_callback_begin(struct pool_object *pool, struct core_callback *callback);
void core_callback_end(struct pool_object *pool, struct core_callback *callback);
/* True in a forked child of the process that opened the pool. */
bool core_pool_is_foreign(const struct pool_object *pool);
void core_child_link(struct pool_object *pool, struct core_child *child, const struct core_child_kind *kind);
/* Does nothing for an unlisted child. */
void core_child_unlink(struct core_child *child);
/* Waits until no thread is inside the store; false with an exception (a signal, or a wait for the own thread). */
bool core_pool_wait(struct pool_object *self);
/* Ends the children and the pool. Returns the status of a capture's unreported failure, else that of the close. */
enum lmcs_status core_pool_close_now(struct pool_object *self, struct lmcs_error *error);

/* A call into the store without the GIL. */
#define WITHOUT_GIL(status, call) \
    do {                          \
        Py_BEGIN_ALLOW_THREADS    \
        status = (call);          \
        Py_END_ALLOW_THREADS      \
    } while (0)

/* The same; ends a core_pool_enter. */
#define POOL_CALL(pool, status, call) \
    do {                              \
        WITHOUT_GIL(status, call);    \
        core_pool_leave(pool);        \
    } while (0)

/* ---- progress.c ---- */

/* Checks for signals and calls a Python function. */
struct core_progress {
    struct lmcs_progress progress;
    struct pool_object *pool;
    PyObject *function; /* borrowed; NULL: none */
    PyThreadState *thread;
    struct core_callback callback;
    bool raised;
};
void core_progress_init(struct core_progress *self, struct pool_object *pool, PyObject *function);

/* Around a call into the store, in place of Py_BEGIN_ALLOW_THREADS and Py_END_ALLOW_THREADS. */
#define CORE_BEGIN_PROGRESS(self) (self)->thread = PyEval_SaveThread()
#define CORE_END_PROGRESS(self)   PyEval_RestoreThread((self)->thread)

/* Around Python code in a visit by the store, between those two, in the calling thread. */
void core_visit_begin(struct core_progress *self);
void core_visit_end(struct core_progress *self);

/* ---- wait.c ---- */

/* Monotonic. */
uint64_t core_now_ms(void);
/* The next slice of a wait of wait_ms (UINT32_MAX: for ever) since start_ms; false at its end, or with a signal's
 * exception. */
bool core_next_slice(uint32_t wait_ms, uint64_t start_ms, uint32_t *slice_ms);
/* The same for a wait for ever, if a call failed because its slice ended. */
bool core_waits_on(enum lmcs_status status, const struct lmcs_error *error, uint32_t *slice_ms);

/* ---- Types and their constructors; a constructor that fails ends the handle ---- */

extern PyType_Spec pool_spec;
extern PyType_Spec capture_spec;
extern PyType_Spec snapshot_spec;
extern PyType_Spec view_spec;
extern PyType_Spec buffer_spec;
extern PyType_Spec live_spec;
extern PyType_Spec transaction_spec;
PyObject *core_open(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *core_capture_new(struct core_state *state, struct pool_object *pool, struct lmcs_capture *handle);
PyObject *core_snapshot_new(struct core_state *state, struct pool_object *pool, struct lmcs_snapshot *handle);
PyObject *core_view_new(struct core_state *state, struct lmcs_view *handle, bool is_private);
PyObject *core_buffer_new(struct core_state *state, PyObject *owner, void *data, uint64_t size_bytes, bool read_only);
void core_buffer_on_drop(PyObject *buffer, void (*dropped)(PyObject *owner));
PyObject *core_live_new(struct core_state *state, struct lmcs_live *handle, bool read_only);
PyObject *core_live_info_dict(const struct lmcs_live_info *info);

/* ---- Functions of the module ---- */

PyObject *core_codec_compress(PyObject *module, PyObject *args);
PyObject *core_codec_decompress(PyObject *module, PyObject *args);
PyObject *core_codec_info(PyObject *module, PyObject *owner);
PyObject *core_codec_kernels(PyObject *module, PyObject *args);
PyObject *core_codec_digest(PyObject *module, PyObject *args);

/* ---- block_functions.c ---- */

PyObject *core_policy_change(PyObject *module, PyObject *args);
PyObject *core_block_hash(PyObject *module, PyObject *block);
PyObject *core_block_digest(PyObject *module, PyObject *args);
PyObject *core_frame_table(PyObject *module, PyObject *args);
PyObject *core_decode_block(PyObject *module, PyObject *args);
PyObject *core_gradient_scale(PyObject *module, PyObject *args);
PyObject *core_difference(PyObject *module, PyObject *args);
PyObject *core_archive_ls(PyObject *module, PyObject *args);
PyObject *core_archive_verify(PyObject *module, PyObject *args);
/* The caller ensures that `owner` keeps the memory in place. */
PyObject *core_memory(PyObject *module, PyObject *args);
/* Sets the memory of NumPy's arrays: (NumPy's table of functions, ((folder, most bytes), ...), least bytes). Without
 * folders it restores NumPy's own. */
PyObject *core_numpy_memory(PyObject *module, PyObject *args);

/* ---- pool_groups.c ---- */

/* Copies the bytes of a group; false with an exception. */
bool core_group(void *self, const char *bytes, Py_ssize_t count, unsigned char *group);

/* ---- Methods of Pool and Snapshot in other files ---- */

PyObject *core_pool_rename(struct pool_object *self, PyObject *args);
PyObject *core_pool_drop(struct pool_object *self, PyObject *args);
PyObject *core_pool_range(struct pool_object *self, PyObject *args);
PyObject *core_pool_follow(struct pool_object *self, PyObject *args);
PyObject *core_pool_change_tags(struct pool_object *self, PyObject *args);
PyObject *core_pool_metric_set(struct pool_object *self, PyObject *args);
PyObject *core_pool_note_set(struct pool_object *self, PyObject *args);
PyObject *core_pool_safe(struct pool_object *self, PyObject *args);
PyObject *core_pool_resolve(struct pool_object *self, PyObject *args);
PyObject *core_pool_groups(struct pool_object *self, PyObject *unused);
PyObject *core_pool_find_group(struct pool_object *self, PyObject *args);
PyObject *core_pool_set_policy(struct pool_object *self, PyObject *args);
PyObject *core_pool_prune_log(struct pool_object *self, PyObject *args);
PyObject *core_pool_policy_warning(struct pool_object *self, PyObject *args);
PyObject *core_pool_prune(struct pool_object *self, PyObject *args);
PyObject *core_pool_prune_budget(struct pool_object *self, PyObject *args);
PyObject *core_pool_scrub(struct pool_object *self, PyObject *args);
PyObject *core_pool_dump(struct pool_object *self, PyObject *args);
PyObject *core_pool_restore(struct pool_object *self, PyObject *args);
PyObject *core_pool_transaction(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_create(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_open(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_list(struct pool_object *self, PyObject *args);
PyObject *core_live_is_mapped(PyObject *module, PyObject *address);
PyObject *core_pool_live_is_held(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_usage(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_erase(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_rename(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_swap(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_put(struct pool_object *self, PyObject *args);
PyObject *core_pool_live_checkout(struct pool_object *self, PyObject *args);
PyObject *core_snapshot_entries(struct snapshot_object *self, PyObject *unused);
PyObject *core_snapshot_read_range(struct snapshot_object *self, PyObject *args);
PyObject *core_snapshot_read_to(struct snapshot_object *self, PyObject *args);
PyObject *core_snapshot_diff(struct snapshot_object *self, PyObject *args);
PyObject *core_snapshot_export(struct snapshot_object *self, PyObject *args);
PyObject *core_snapshot_export_joined(struct snapshot_object *self, PyObject *args);

#endif
