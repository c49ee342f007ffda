/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_type.c - Pool: one open of a pool. */
#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OPEN_SLICE_MS   250    /* SIGINT is checked between slices */
#define MAX_DAMAGES     1000   /* in verify()'s list; the report counts all */
#define NUMBERS_AT_ONCE 100000 /* in one call */

/* ---- Open and close ------------------------------------------------------------------------------------------- */

/* lmcs_pool_open in slices; false with an exception. */
static bool open_in_slices(struct core_state *state, const char *path, int mode, struct lmcs_open_options *options,
                           uint32_t wait_ms, struct lmcs_pool **handle)
{
    struct lmcs_error error = {0};
    uint64_t deadline = core_now_ms() + wait_ms;
    for (;;) {
        uint64_t now = core_now_ms();
        uint64_t left = now < deadline ? deadline - now : 0;
        options->wait_ms = left < OPEN_SLICE_MS ? (uint32_t)left : OPEN_SLICE_MS;
        enum lmcs_status status;
        Py_BEGIN_ALLOW_THREADS
        status = lmcs_pool_open(path, (enum lmcs_open_mode)mode, options, handle, &error);
        Py_END_ALLOW_THREADS
        if (status == LMCS_OK)
            return true;
        if (PyErr_CheckSignals() != 0)
            return false;
        if (status != LMCS_IN_USE || core_now_ms() >= deadline) {
            core_raise(state, &error);
            return false;
        }
    }
}

PyObject *core_open(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path",         "mode",         "limit_bytes", "wait_ms",      "threads", "flags",
                            "expect_bytes", "copy_threads", "copy_nice",   "memory_bytes", NULL};
    struct core_state *state = PyModule_GetState(module);
    PyObject *path = NULL;
    int mode;
    uint64_t limit_bytes = 0;
    uint32_t wait_ms = 10000;
    uint32_t threads = 0;
    uint32_t flags = 0;
    uint64_t expect_bytes = 0;
    uint32_t copy_threads = 0;
    uint32_t copy_nice = 0;
    uint64_t memory_bytes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&i|O&O&O&O&O&O&O&O&:open", names, PyUnicode_FSConverter, &path,
                                     &mode, core_to_uint64, &limit_bytes, core_to_uint32, &wait_ms, core_to_uint32,
                                     &threads, core_to_uint32, &flags, core_to_uint64, &expect_bytes, core_to_uint32,
                                     &copy_threads, core_to_uint32, &copy_nice, core_to_uint64, &memory_bytes))
        return NULL;
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.limit_bytes = limit_bytes;
    options.threads = threads;
    options.flags = flags;
    options.expect_bytes = expect_bytes;
    options.copy_threads = copy_threads;
    options.copy_nice = copy_nice;
    options.memory_bytes = memory_bytes;
    struct lmcs_pool *handle = NULL;
    bool opened = open_in_slices(state, PyBytes_AsString(path), mode, &options, wait_ms, &handle);
    Py_DECREF(path);
    if (!opened)
        return NULL;
    struct pool_object *self = core_object_new(state->pool_type);
    if (self == NULL) {
        (void)lmcs_pool_close(handle, NULL);
        return NULL;
    }
    self->handle = handle;
    self->owner = getpid();
    return (PyObject *)self;
}

static PyObject *pool_close(struct pool_object *self, PyObject *unused)
{
    (void)unused;
    if (self->handle == NULL || self->closing)
        Py_RETURN_NONE;
    self->closing = true;
    if (!core_pool_is_foreign(self) && !core_pool_wait(self)) {
        self->closing = false;
        return NULL;
    }
    struct lmcs_error error = {0};
    enum lmcs_status status = core_pool_close_now(self, &error);
    self->closing = false;
    return core_none(self, status, &error);
}

static void pool_dealloc(struct pool_object *self)
{
    if (self->handle != NULL) { /* unused: captures, snapshots and calls hold references */
        struct lmcs_error error = {0};
        (void)core_pool_close_now(self, &error);
    }
    core_object_free((PyObject *)self);
}

static PyObject *pool_closed(struct pool_object *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(self->handle == NULL || self->closing);
}

static PyObject *pool_is_foreign(struct pool_object *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(core_pool_is_foreign(self));
}

/* ---- About the pool ------------------------------------------------------------------------------------------- */

static PyObject *pool_info(struct pool_object *self, PyObject *unused)
{
    (void)unused;
    static const char *const media[] = {"file", "memory file", "fsdax", "devdax"};
    struct lmcs_pool_info info;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_pool_info(self->handle, &info, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
#define U64(field) #field, (unsigned long long)info.field
    return Py_BuildValue(
        "{s:N,s:y#,s:N,s:s,s:N,s:N,s:s,s:s,s:s,s:i,s:i,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,"
        "s:K,s:K,s:N,s:N,s:N,s:K,s:d,s:K,s:K,s:K,s:K,s:I,s:K,s:K,s:K,s:K,s:N}",
        "path", PyUnicode_DecodeFSDefault(info.path), "uuid", info.uuid, (Py_ssize_t)sizeof info.uuid, "writable",
        PyBool_FromLong(info.writable), "medium", (unsigned)info.medium < 4 ? media[info.medium] : "unknown",
        "is_persistent_memory", PyBool_FromLong(info.is_persistent_memory), "forced", PyBool_FromLong(info.forced),
        "file_system", info.file_system, "persistence_domain", info.persistence_domain, "nvdimm_namespace",
        info.nvdimm_namespace, "numa_node", (int)info.numa_node, "device_health", (int)info.device_health,
        U64(bad_blocks), U64(unsafe_shutdowns), U64(limit_bytes), U64(used_bytes), U64(live_bytes), U64(free_bytes),
        U64(metadata_bytes), U64(metadata_free_bytes), U64(created_ns), U64(epoch), U64(shelf_count),
        U64(snapshot_count), U64(content_count), U64(last_snapshot_bytes), U64(snapshots_that_fit),
        U64(compaction_backlog), U64(compacted_contents), "compaction_running",
        PyBool_FromLong(info.compaction_running), "compaction_paused", PyBool_FromLong(info.compaction_paused),
        "compaction_error", core_message(info.compaction_error), U64(scrubbed_ns), "scrub_share", info.scrub_share,
        U64(scrub_found), U64(scrub_repaired), U64(lost_contents), U64(parity_bytes), "format_version",
        (unsigned)info.format_version, U64(damaged_shelves), U64(unsupported_shelves), U64(memory_bytes),
        U64(remote_count), "damage", core_message(info.damage));
#undef U64
}

static PyObject *pool_set_limit(struct pool_object *self, PyObject *arg)
{
    uint64_t limit_bytes;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!core_uint64(arg, "limit_bytes", &limit_bytes) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_pool_set_limit(self->handle, limit_bytes, &error));
    return core_none(self, status, &error);
}

/* ---- Shelves -------------------------------------------------------------------------------------------------- */

struct shelf_list {
    struct lmcs_shelf_info *items;
    size_t count, capacity;
    bool no_memory;
};

static bool collect_shelf(void *context, const struct lmcs_shelf_info *info)
{
    struct shelf_list *list = context;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
        struct lmcs_shelf_info *items = realloc(list->items, capacity * sizeof *items);
        if (items == NULL) {
            list->no_memory = true;
            return false;
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = *info;
    return true;
}

static PyObject *pool_shelves(struct pool_object *self, PyObject *unused)
{
    (void)unused;
    struct shelf_list list = {0};
    struct lmcs_error error = {0};
    enum lmcs_status status;
    PyObject *result = NULL;
    if (!core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_shelf_list(self->handle, collect_shelf, &list, &error));
    if (status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED) { /* the other shelves are listed */
        if (!core_warn_of(&error))
            goto out;
    } else if (status != LMCS_OK) {
        core_fail(self, &error);
        goto out;
    }
    if (list.no_memory) {
        PyErr_NoMemory();
        goto out;
    }
    result = PyList_New((Py_ssize_t)list.count);
    for (size_t i = 0; result != NULL && i < list.count; i++) {
        PyObject *item = core_shelf_dict(&list.items[i]);
        if (item == NULL || PyList_SetItem(result, (Py_ssize_t)i, item) != 0)
            Py_CLEAR(result);
    }
out:
    free(list.items);
    return result;
}

static PyObject *pool_shelf_info(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    struct lmcs_shelf_info info;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "s:shelf_info", &shelf) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_shelf_info(self->handle, shelf, &info, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return core_shelf_dict(&info);
}

static PyObject *pool_raw_bytes(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    uint64_t bytes = 0;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "s:raw_bytes", &shelf) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_shelf_raw_bytes(self->handle, shelf, &bytes, &error));
    return status == LMCS_OK ? PyLong_FromUnsignedLongLong(bytes) : core_fail(self, &error);
}

/* Returns a list of integers, None where unknown. */
static PyObject *bytes_list(const uint64_t *bytes, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = bytes[i] != LMCS_BYTES_UNKNOWN ? PyLong_FromUnsignedLongLong(bytes[i]) : Py_NewRef(Py_None);
        if (item == NULL || PyList_SetItem(list, i, item) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *pool_new_bytes(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    PyObject *numbers, *result = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sO!:new_bytes", &shelf, &PyList_Type, &numbers))
        return NULL;
    Py_ssize_t count = PyList_Size(numbers);
    uint64_t *asked = PyMem_Malloc(2 * (size_t)(count + 1) * sizeof *asked);
    if (asked == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        asked[i] = PyLong_AsUnsignedLongLong(PyList_GetItem(numbers, i));
        if (PyErr_Occurred() != NULL)
            goto out;
    }
    if (!core_pool_enter(self))
        goto out;
    POOL_CALL(self, status, lmcs_snapshot_new_bytes(self->handle, shelf, asked, (size_t)count, asked + count, &error));
    result = status == LMCS_OK ? bytes_list(asked + count, count) : core_fail(self, &error);
out:
    PyMem_Free(asked);
    return result;
}

static PyObject *pool_set_keep_raw(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    uint32_t keep_raw;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sO&:set_keep_raw", &shelf, core_to_uint32, &keep_raw) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_shelf_set_keep_raw(self->handle, shelf, keep_raw, &error));
    return core_none(self, status, &error);
}

/* ---- Snapshots ------------------------------------------------------------------------------------------------ */

static PyObject *pool_would_wait(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    bool waits;
    if (!PyArg_ParseTuple(args, "s:would_wait", &shelf) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, waits, lmcs_capture_would_wait(self->handle, shelf));
    return PyBool_FromLong(waits);
}

static PyObject *pool_begin(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    struct lmcs_capture *capture = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "s:begin", &shelf) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_capture_begin(self->handle, shelf, &capture, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return core_capture_new(core_state_of((PyObject *)self), self, capture);
}

static PyObject *pool_find(struct pool_object *self, PyObject *args)
{
    const char *shelf, *which;
    int verify = 1;
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ss|p:find", &shelf, &which, &verify) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_snapshot_find(self->handle, shelf, which, &snapshot, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    lmcs_snapshot_set_verify(snapshot, verify != 0);
    return core_snapshot_new(core_state_of((PyObject *)self), self, snapshot);
}

struct query {
    enum { ALL, OF_STEP, NEWEST } kind;
    const char *shelf;
    long long step;
    uint64_t bound; /* the first number; of NEWEST, the number that all are below */
    Py_ssize_t capacity;
};

static PyObject *number_list(struct pool_object *self, const struct query *query)
{
    struct lmcs_pool *pool = self->handle;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    size_t count = SIZE_MAX;
    PyObject *result = NULL;
    size_t room = query->capacity < 0                 ? 0
                  : query->capacity > NUMBERS_AT_ONCE ? NUMBERS_AT_ONCE
                                                      : (size_t)query->capacity;
    uint64_t *numbers = malloc((room + 1) * sizeof *numbers);
    if (numbers == NULL)
        return PyErr_NoMemory();
    if (!core_pool_enter(self))
        goto out;
    Py_BEGIN_ALLOW_THREADS
    if (query->kind == ALL)
        status = lmcs_snapshot_numbers(pool, query->shelf, query->bound, numbers, room, &count, &error);
    else if (query->kind == OF_STEP)
        status = lmcs_snapshot_steps(pool, query->shelf, query->step, query->bound, numbers, room, &count, &error);
    else
        status = lmcs_snapshot_newest(pool, query->shelf, query->bound, numbers, room, &count, &error);
    Py_END_ALLOW_THREADS
    core_pool_leave(self);
    if (status == LMCS_OK || (count != SIZE_MAX && core_warn_of(&error))) /* others are listed beside damage */
        result = core_number_list(numbers, count);
    else
        core_fail(self, &error);
out:
    free(numbers);
    return result;
}

static PyObject *pool_numbers(struct pool_object *self, PyObject *args)
{
    struct query query = {.kind = ALL};
    if (!PyArg_ParseTuple(args, "sO&n:numbers", &query.shelf, core_to_uint64, &query.bound, &query.capacity))
        return NULL;
    return number_list(self, &query);
}

static PyObject *pool_steps(struct pool_object *self, PyObject *args)
{
    struct query query = {.kind = OF_STEP};
    if (!PyArg_ParseTuple(args, "sLO&n:steps", &query.shelf, &query.step, core_to_uint64, &query.bound,
                          &query.capacity))
        return NULL;
    return number_list(self, &query);
}

static PyObject *pool_newest(struct pool_object *self, PyObject *args)
{
    struct query query = {.kind = NEWEST};
    if (!PyArg_ParseTuple(args, "sO&n:newest", &query.shelf, core_to_uint64, &query.bound, &query.capacity))
        return NULL;
    return number_list(self, &query);
}

static PyObject *pool_remove(struct pool_object *self, PyObject *args)
{
    const char *shelf;
    uint64_t number;
    int dry_run = 0;
    struct lmcs_removal removal;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "sO&|p:remove", &shelf, core_to_uint64, &number, &dry_run) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_snapshot_remove(self->handle, shelf, number, dry_run != 0, &removal, &error));
    if (status != LMCS_OK)
        return core_fail(self, &error);
    return core_removal_tuple(&removal);
}

static PyObject *pool_tag_set(struct pool_object *self, PyObject *args)
{
    const char *shelf, *tag;
    uint64_t number;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ssO&:tag_set", &shelf, &tag, core_to_uint64, &number) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_tag_set(self->handle, shelf, tag, number, &error));
    return core_none(self, status, &error);
}

static PyObject *pool_tag_remove(struct pool_object *self, PyObject *args)
{
    const char *shelf, *tag;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!PyArg_ParseTuple(args, "ss:tag_remove", &shelf, &tag) || !core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_tag_remove(self->handle, shelf, tag, &error));
    return core_none(self, status, &error);
}

/* ---- Compaction ----------------------------------------------------------------------------------------------- */

static PyObject *pool_compact(struct pool_object *self, PyObject *args)
{
    PyObject *function = Py_None;
    int finished = 0;
    const char *shelf = NULL;
    struct core_progress progress;
    struct lmcs_error error = {0};
    if (!PyArg_ParseTuple(args, "|Opz:compact", &function, &finished, &shelf) || !core_pool_enter(self))
        return NULL;
    core_progress_init(&progress, self, function);
    CORE_BEGIN_PROGRESS(&progress);
    enum lmcs_status status = finished ? lmcs_compact_finished(self->handle, shelf, &progress.progress, &error)
                                       : lmcs_compact(self->handle, &progress.progress, &error);
    CORE_END_PROGRESS(&progress);
    core_pool_leave(self);
    if (status != LMCS_OK || progress.raised)
        return core_fail(self, &error);
    Py_RETURN_NONE;
}

static PyObject *pool_pause(struct pool_object *self, PyObject *unused)
{
    (void)unused;
    if (!core_pool_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    lmcs_compactor_pause(self->handle);
    Py_END_ALLOW_THREADS
    core_pool_leave(self);
    Py_RETURN_NONE;
}

static PyObject *pool_resume(struct pool_object *self, PyObject *unused)
{
    (void)unused;
    if (!core_pool_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    lmcs_compactor_resume(self->handle);
    Py_END_ALLOW_THREADS
    core_pool_leave(self);
    Py_RETURN_NONE;
}

static PyObject *pool_start(struct pool_object *self, PyObject *unused)
{
    (void)unused;
    struct lmcs_error error = {0};
    enum lmcs_status status;
    if (!core_pool_enter(self))
        return NULL;
    POOL_CALL(self, status, lmcs_compactor_start(self->handle, &error));
    return core_none(self, status, &error);
}

static PyObject *pool_stop(struct pool_object *self, PyObject *unused)
{
    (void)unused;
    if (!core_pool_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    lmcs_compactor_stop(self->handle);
    Py_END_ALLOW_THREADS
    core_pool_leave(self);
    Py_RETURN_NONE;
}

/* ---- Checking and moving -------------------------------------------------------------------------------------- */

struct damage_list {
    struct core_progress *progress; /* has the thread state for Python objects */
    PyObject *list;
};

static void collect_damage(void *context, const struct lmcs_damage *damage)
{
    struct damage_list *damages = context;
    if (damages->progress->raised)
        return;
    core_visit_begin(damages->progress);
    if (PyList_Size(damages->list) < MAX_DAMAGES) {
        PyObject *item =
            Py_BuildValue("{s:N,s:s,s:K,s:s,s:K,s:K,s:N}", "what", core_message(damage->what), "shelf", damage->shelf,
                          "number", (unsigned long long)damage->number, "tensor", damage->tensor, "first_byte",
                          (unsigned long long)damage->first_byte, "byte_count", (unsigned long long)damage->byte_count,
                          "is_unsupported", PyBool_FromLong(damage->is_unsupported));
        if (!core_append(damages->list, item))
            damages->progress->raised = true;
    }
    core_visit_end(damages->progress);
}

static PyObject *pool_verify(struct pool_object *self, PyObject *args)
{
    const char *address = NULL;
    PyObject *function = Py_None;
    struct core_progress progress;
    struct lmcs_verify_report report = {0};
    struct lmcs_error error = {0};
    if (!PyArg_ParseTuple(args, "|zO:verify", &address, &function))
        return NULL;
    struct damage_list damages = {.progress = &progress, .list = PyList_New(0)};
    if (damages.list == NULL || !core_pool_enter(self)) {
        Py_XDECREF(damages.list);
        return NULL;
    }
    core_progress_init(&progress, self, function);
    CORE_BEGIN_PROGRESS(&progress);
    enum lmcs_status status =
        lmcs_verify(self->handle, address, collect_damage, &damages, &progress.progress, &report, &error);
    CORE_END_PROGRESS(&progress);
    core_pool_leave(self);
    if (progress.raised || (status != LMCS_OK && !core_is_report(status, report.damages, report.unsupported))) {
        Py_DECREF(damages.list);
        return core_fail(self, &error);
    }
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:N}", "snapshots", (unsigned long long)report.snapshots, "remote",
                         (unsigned long long)report.remote, "contents", (unsigned long long)report.contents,
                         "bytes_read", (unsigned long long)report.bytes_read, "damages",
                         (unsigned long long)report.damages, "unsupported", (unsigned long long)report.unsupported,
                         "list", damages.list);
}

/* ---- The type ------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    METHOD("close", pool_close, METH_NOARGS, "Ends this open; waits for captures under way."),
    METHOD("info", pool_info, METH_NOARGS, "Properties and contents of the pool, as a dict."),
    METHOD("set_limit", pool_set_limit, METH_O, "Sets the pool's own limit in bytes; 0: none."),
    METHOD("shelves", pool_shelves, METH_NOARGS, "A dict for each shelf."),
    METHOD("shelf_info", pool_shelf_info, METH_VARARGS, "shelf_info(shelf): a dict."),
    METHOD("raw_bytes", pool_raw_bytes, METH_VARARGS, "raw_bytes(shelf): of its newest snapshots."),
    METHOD("new_bytes", pool_new_bytes, METH_VARARGS, "new_bytes(shelf, numbers): of each, None where unknown."),
    METHOD("set_keep_raw", pool_set_keep_raw, METH_VARARGS, "set_keep_raw(shelf, count)."),
    METHOD("set_policy", core_pool_set_policy, METH_VARARGS, "set_policy(shelf, words)."),
    METHOD("prune_log", core_pool_prune_log, METH_VARARGS,
           "prune_log(shelf) -> [(policy, first_ns, last_ns, count, ranges), ...], newest first."),
    METHOD("policy_warning", core_pool_policy_warning, METH_VARARGS, "policy_warning(shelf) -> str, empty: none."),
    METHOD("prune", core_pool_prune, METH_VARARGS,
           "prune(shelf, words or None, dry_run) -> (kept, removed numbers, freed, later, tags)."),
    METHOD("prune_budget", core_pool_prune_budget, METH_VARARGS,
           "prune_budget(shelf, other_bytes): the number of snapshots that it removed."),
    METHOD("begin", pool_begin, METH_VARARGS, "begin(shelf): a Capture."),
    METHOD("resolve", core_pool_resolve, METH_VARARGS,
           "resolve(group, commit): commits or drops the prepared snapshot of a group."),
    METHOD("groups", core_pool_groups, METH_NOARGS, "[(group, shelf, number), ...] of the prepared snapshots."),
    METHOD("find_group", core_pool_find_group, METH_VARARGS,
           "find_group(shelf, group, verify=True): a group's Snapshot, prepared or committed."),
    METHOD("would_wait", pool_would_wait, METH_VARARGS, "would_wait(shelf): whether begin would wait for others."),
    METHOD("live_is_held", core_pool_live_is_held, METH_VARARGS, "live_is_held(shelf): by a transaction or the like."),
    METHOD("find", pool_find, METH_VARARGS, "find(shelf, which, verify=True): a Snapshot."),
    METHOD("numbers", pool_numbers, METH_VARARGS, "numbers(shelf, first, capacity): ascending, from first on."),
    METHOD("steps", pool_steps, METH_VARARGS, "steps(shelf, step, first, capacity): numbers of a step, ascending."),
    METHOD("remove", pool_remove, METH_VARARGS, "remove(shelf, number, dry_run=False): (freed, later, tags)."),
    METHOD("tag_set", pool_tag_set, METH_VARARGS, "tag_set(shelf, tag, number)."),
    METHOD("tag_remove", pool_tag_remove, METH_VARARGS, "tag_remove(shelf, tag)."),
    METHOD("metric_set", core_pool_metric_set, METH_VARARGS, "metric_set(shelf, number, name, value)."),
    METHOD("note_set", core_pool_note_set, METH_VARARGS, "note_set(shelf, number, note)."),
    METHOD("safe", core_pool_safe, METH_VARARGS, "safe(shelf, first, last, epoch, url): they may leave the pool."),
    METHOD("change_tags", core_pool_change_tags, METH_VARARGS, "change_tags(shelf, [(tag, number, expected), ...])."),
    METHOD("rename", core_pool_rename, METH_VARARGS, "rename(shelf, name)."),
    METHOD("drop", core_pool_drop, METH_VARARGS, "drop(shelf, dry_run=False): (freed, later, tags)."),
    METHOD("range", core_pool_range, METH_VARARGS, "range(shelf, range): its first and last number, clipped."),
    METHOD("follow", core_pool_follow, METH_VARARGS,
           "follow(shelf, after, shelf_id, wait_ms): the next number, or 0, and the two arguments for the next call."),
    METHOD("newest", pool_newest, METH_VARARGS, "newest(shelf, before, capacity): numbers, descending."),
    METHOD("compact", pool_compact, METH_VARARGS,
           "compact(progress=None, finished=False, shelf=None for all): compacts until nothing is left to do."),
    METHOD("pause", pool_pause, METH_NOARGS, "Pauses the background compactor."),
    METHOD("resume", pool_resume, METH_NOARGS, "Resumes the background compactor."),
    METHOD("start", pool_start, METH_NOARGS, "Starts the background compactor."),
    METHOD("stop", pool_stop, METH_NOARGS, "Stops the background compactor."),
    METHOD("verify", pool_verify, METH_VARARGS, "verify(address=None, progress=None): a report with its damages."),
    METHOD("scrub", core_pool_scrub, METH_VARARGS,
           "scrub(addresses, sample_share, sample_bytes, rate_bytes, repair, paths, progress): a report."),
    METHOD(
        "dump", core_pool_dump, METH_VARARGS,
        "dump(fd, addresses, since, canonical, resume, skip_lost, progress, as_stored=False, alone=False): a report."),
    METHOD("live_create", core_pool_live_create, METH_VARARGS,
           "live_create(shelf, name, dtype, shape, form, flags, reserve_bytes, note): a Live."),
    METHOD("live_open", core_pool_live_open, METH_VARARGS, "live_open(shelf, name): a Live."),
    METHOD("live_list", core_pool_live_list, METH_VARARGS,
           "live_list(shelf, prefix or None, from_ns, until_ns, names_only): names, or dicts."),
    METHOD("live_usage", core_pool_live_usage, METH_VARARGS, "live_usage(shelf): a dict."),
    METHOD("live_erase", core_pool_live_erase, METH_VARARGS, "live_erase(shelf, name)."),
    METHOD("live_rename", core_pool_live_rename, METH_VARARGS, "live_rename(shelf, from, to)."),
    METHOD("live_swap", core_pool_live_swap, METH_VARARGS, "live_swap(shelf, first, second)."),
    METHOD("live_put", core_pool_live_put, METH_VARARGS, "live_put(shelf, name, data, note)."),
    METHOD("live_checkout", core_pool_live_checkout, METH_VARARGS, "live_checkout(shelf, which)."),
    METHOD("transaction", core_pool_transaction, METH_VARARGS,
           "transaction(shelf, lives or None, flags, wait_ms, limit_bytes): a Transaction."),
    METHOD("restore", core_pool_restore, METH_VARARGS,
           "restore(fds, addresses, only, name or None, move_tags, resume, progress): a report."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"closed", (getter)pool_closed, NULL, "Whether close was called.", NULL},
    {"is_foreign", (getter)pool_is_foreign, NULL, "Whether this is a forked child of the opener.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "One open of a pool."},
    {Py_tp_dealloc, (void *)pool_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec pool_spec = {
    .name = "lmcstore._core.Pool",
    .basicsize = sizeof(struct pool_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
