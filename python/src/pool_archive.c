/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_archive.c - archives: methods of Pool that write and read them, and functions that need no pool. */
#include "core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Sequences ------------------------------------------------------------------------------------------------- */

static int *descriptors_of(PyObject *tuple, size_t *count)
{
    Py_ssize_t size = PyTuple_Size(tuple);
    if (size < 0)
        return NULL;
    int *fds = calloc((size_t)size + 1, sizeof *fds);
    if (fds == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        fds[i] = (int)PyLong_AsLong(PyTuple_GetItem(tuple, i));
        if (fds[i] == -1 && PyErr_Occurred()) {
            free(fds);
            return NULL;
        }
    }
    *count = (size_t)size;
    return fds;
}

/* ---- With a pool ----------------------------------------------------------------------------------------------- */

static PyObject *transfer_dict(const struct lmcs_transfer_report *report)
{
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N}", "snapshots", (unsigned long long)report->snapshots,
                         "snapshots_skipped", (unsigned long long)report->snapshots_skipped, "snapshots_lost",
                         (unsigned long long)report->snapshots_lost, "contents", (unsigned long long)report->contents,
                         "contents_found", (unsigned long long)report->contents_found, "bytes",
                         (unsigned long long)report->bytes, "left_out", (unsigned long long)report->left_out,
                         "warnings", core_message(report->warnings));
}

/* Calls a function of Python with memory of the store, which it must not keep. NULL: it raised. */
static PyObject *call_with_memory(struct core_progress *progress, PyObject *function, void *memory, size_t bytes,
                                  int flags)
{
    PyObject *view = progress->raised ? NULL : PyMemoryView_FromMemory(memory, (Py_ssize_t)bytes, flags);
    PyObject *answer = view == NULL ? NULL : PyObject_CallFunctionObjArgs(function, view, NULL);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace); /* also after an exception, whose traceback may keep the view */
    PyObject *released = view == NULL ? NULL : PyObject_CallMethod(view, "release", NULL);
    if (type != NULL)
        PyErr_Restore(type, value, trace);
    else if (released == NULL && view != NULL)
        Py_CLEAR(answer);
    Py_XDECREF(released);
    Py_XDECREF(view);
    progress->raised = answer == NULL;
    return answer;
}

/* A dump to, or a restore from, a function of Python. */
struct stream {
    struct core_progress *progress;
    PyObject *function;
};

static bool write_stream(void *context, const void *bytes, size_t count)
{
    const struct stream *stream = context;
    core_visit_begin(stream->progress);
    PyObject *answer =
        call_with_memory(stream->progress, stream->function, (void *)(uintptr_t)bytes, count, PyBUF_READ);
    Py_XDECREF(answer);
    core_visit_end(stream->progress);
    return answer != NULL;
}

static bool read_stream(void *context, void *to, size_t most, size_t *got)
{
    const struct stream *stream = context;
    core_visit_begin(stream->progress);
    PyObject *answer = call_with_memory(stream->progress, stream->function, to, most, PyBUF_WRITE);
    *got = answer == NULL ? 0 : PyLong_AsSize_t(answer);
    if (answer != NULL && PyErr_Occurred())
        stream->progress->raised = true;
    Py_XDECREF(answer);
    core_visit_end(stream->progress);
    return !stream->progress->raised;
}

/* Takes a descriptor, or a function. */
static bool place_of(PyObject *place, int *fd, PyObject **function)
{
    *function = PyCallable_Check(place) ? place : NULL;
    *fd = *function != NULL ? -1 : (int)PyLong_AsLong(place);
    return *fd != -1 || !PyErr_Occurred();
}

PyObject *core_pool_dump(struct pool_object *self, PyObject *args)
{
    int fd, canonical, resume, skip_lost, as_stored = 0, alone = 0;
    PyObject *place, *addresses, *since, *function, *result = NULL;
    struct core_progress progress;
    struct stream stream = {&progress, NULL};
    struct lmcs_transfer_report report = {0};
    struct lmcs_error error = {0};
    struct lmcs_dump_options options;
    if (!PyArg_ParseTuple(args, "OO!O!pppO|pp:dump", &place, &PyTuple_Type, &addresses, &PyTuple_Type, &since,
                          &canonical, &resume, &skip_lost, &function, &as_stored, &alone) ||
        !place_of(place, &fd, &stream.function))
        return NULL;
    lmcs_dump_options_init(&options);
    const char **texts = core_texts_of(addresses, &options.address_count);
    int *fds = texts == NULL ? NULL : descriptors_of(since, &options.since_count);
    if (fds != NULL && core_pool_enter(self)) {
        options.addresses = texts;
        options.since = fds;
        options.canonical = canonical;
        options.resume = resume;
        options.skip_lost = skip_lost;
        options.as_stored = as_stored;
        options.alone = alone;
        core_progress_init(&progress, self, function);
        CORE_BEGIN_PROGRESS(&progress);
        enum lmcs_status status =
            stream.function != NULL
                ? lmcs_dump_to(self->handle, &options, write_stream, &stream, &progress.progress, &report, &error)
                : lmcs_dump_with(self->handle, &options, fd, &progress.progress, &report, &error);
        CORE_END_PROGRESS(&progress);
        core_pool_leave(self);
        result = status != LMCS_OK || progress.raised ? core_fail(self, &error) : transfer_dict(&report);
    }
    free(fds);
    free(texts);
    return result;
}

PyObject *core_pool_restore(struct pool_object *self, PyObject *args)
{
    int move_tags, resume;
    size_t count = 0;
    PyObject *files, *addresses, *only, *function, *result = NULL;
    struct core_progress progress;
    struct stream stream = {&progress, NULL};
    struct lmcs_transfer_report report = {0};
    struct lmcs_error error = {0};
    struct lmcs_restore_options options;
    lmcs_restore_options_init(&options);
    if (!PyArg_ParseTuple(args, "OO!O!zppO:restore", &files, &PyTuple_Type, &addresses, &PyTuple_Type, &only,
                          &options.as, &move_tags, &resume, &function))
        return NULL;
    if (PyCallable_Check(files))
        stream.function = files;
    int *fds = stream.function != NULL ? calloc(1, sizeof *fds) : descriptors_of(files, &count);
    if (fds == NULL && !PyErr_Occurred())
        PyErr_NoMemory();
    const char **texts = fds == NULL ? NULL : core_texts_of(addresses, &options.address_count);
    const char **names = texts == NULL ? NULL : core_texts_of(only, &options.only_count);
    if (names != NULL && core_pool_enter(self)) {
        options.addresses = texts;
        options.only = names;
        options.move_tags = move_tags;
        options.resume = resume;
        core_progress_init(&progress, self, function);
        CORE_BEGIN_PROGRESS(&progress);
        enum lmcs_status status =
            stream.function != NULL
                ? lmcs_restore_from(self->handle, read_stream, &stream, &options, &progress.progress, &report, &error)
                : lmcs_restore_with(self->handle, fds, count, &options, &progress.progress, &report, &error);
        CORE_END_PROGRESS(&progress);
        core_pool_leave(self);
        result = status != LMCS_OK || progress.raised ? core_fail(self, &error) : transfer_dict(&report);
    }
    free(names);
    free(texts);
    free(fds);
    return result;
}

/* ---- Without one ----------------------------------------------------------------------------------------------- */

struct listing {
    PyObject *rows;
    struct core_progress progress;
};

static PyObject *row_of(const struct lmcs_archived *snapshot)
{
    static const unsigned char none[sizeof snapshot->group];
    char group[2 * sizeof snapshot->group + 1];
    PyObject *tags = PyList_New(0), *metrics = PyDict_New();
    bool good = tags != NULL && metrics != NULL;
    for (size_t i = 0; i < sizeof snapshot->group; i++)
        snprintf(group + 2 * i, 3, "%02x", snapshot->group[i]);
    for (size_t i = 0; good && i < snapshot->tag_count; i++)
        good = core_append(tags, PyUnicode_FromString(snapshot->tags[i]));
    for (size_t i = 0; good && i < snapshot->metric_count; i++) {
        PyObject *value = PyFloat_FromDouble(snapshot->metrics[i].value);
        good = value != NULL && PyDict_SetItemString(metrics, snapshot->metrics[i].name, value) == 0;
        Py_XDECREF(value);
    }
    PyObject *step = !good                            ? NULL
                     : snapshot->step == LMCS_NO_STEP ? Py_NewRef(Py_None)
                                                      : PyLong_FromLongLong(snapshot->step);
    if (step == NULL) {
        Py_XDECREF(tags);
        Py_XDECREF(metrics);
        return NULL;
    }
    return Py_BuildValue(
        "{s:s,s:K,s:N,s:K,s:K,s:K,s:K,s:K,s:K,s:N,s:N,s:z}", "shelf", snapshot->shelf, "number",
        (unsigned long long)snapshot->number, "step", step, "time_ns", (unsigned long long)snapshot->time_ns, "parent",
        (unsigned long long)snapshot->parent, "tensor_count", (unsigned long long)snapshot->tensor_count, "raw_bytes",
        (unsigned long long)snapshot->raw_bytes, "new_contents", (unsigned long long)snapshot->new_contents,
        "new_bytes", (unsigned long long)snapshot->new_bytes, "tags", tags, "metrics", metrics, "group",
        memcmp(snapshot->group, none, sizeof none) != 0 ? group : NULL);
}

/* Runs without the GIL. */
static bool add_row(void *context, const struct lmcs_archived *snapshot)
{
    struct listing *listing = context;
    core_visit_begin(&listing->progress);
    PyObject *row = row_of(snapshot);
    listing->progress.raised = !core_append(listing->rows, row);
    core_visit_end(&listing->progress);
    return !listing->progress.raised;
}

static PyObject *info_dict(const struct lmcs_archive_info *info, PyObject *rows)
{
    char id[33];
    PyObject *since = PyList_New(0);
    snprintf(id, sizeof id, "%016" PRIx64 "%016" PRIx64, info->id.high, info->id.low);
    for (size_t i = 0; since != NULL && i < info->since_count && i < LMCS_MAX_SINCE; i++) {
        char text[33];
        snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, info->since[i].high, info->since[i].low);
        if (!core_append(since, PyUnicode_FromString(text)))
            Py_CLEAR(since);
    }
    if (since == NULL) {
        Py_DECREF(rows);
        return NULL;
    }
    return Py_BuildValue("{s:s,s:N,s:K,s:K,s:K,s:K,s:N}", "id", id, "since", since, "bytes",
                         (unsigned long long)info->bytes, "contents", (unsigned long long)info->contents,
                         "known_contents", (unsigned long long)info->known_contents, "decoded_contents",
                         (unsigned long long)info->decoded_contents, "snapshots", rows);
}

PyObject *core_archive_ls(PyObject *module, PyObject *args)
{
    int fd;
    struct lmcs_archive_info info;
    struct lmcs_error error = {0};
    struct listing listing = {0};
    if (!PyArg_ParseTuple(args, "i:archive_ls", &fd) || (listing.rows = PyList_New(0)) == NULL)
        return NULL;
    core_progress_init(&listing.progress, NULL, Py_None);
    CORE_BEGIN_PROGRESS(&listing.progress);
    enum lmcs_status status = lmcs_archive_list(fd, add_row, &listing, &listing.progress.progress, &info, &error);
    CORE_END_PROGRESS(&listing.progress);
    if (status != LMCS_OK || listing.progress.raised) {
        Py_DECREF(listing.rows);
        return core_raise(PyModule_GetState(module), &error);
    }
    return info_dict(&info, listing.rows);
}

PyObject *core_archive_verify(PyObject *module, PyObject *args)
{
    int fd;
    struct lmcs_archive_info info;
    struct lmcs_error error = {0};
    struct core_progress progress;
    if (!PyArg_ParseTuple(args, "i:archive_verify", &fd))
        return NULL;
    core_progress_init(&progress, NULL, Py_None);
    CORE_BEGIN_PROGRESS(&progress);
    enum lmcs_status status = lmcs_archive_verify(fd, &progress.progress, &info, &error);
    CORE_END_PROGRESS(&progress);
    if (status != LMCS_OK || progress.raised)
        return core_raise(PyModule_GetState(module), &error);
    return info_dict(&info, PyLong_FromUnsignedLongLong(info.snapshots));
}
