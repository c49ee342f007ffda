/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * snapshot_export.c - methods of Snapshot that write safetensors files, and the difference of two tensors. Of a run of
 * many ranks, Python joins the tensors.
 */
#include "core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "safetensors/safetensors.h"
#include "snapshots/elements.h"

static PyObject *report_dict(const struct lmcs_transfer_report *report)
{
    return Py_BuildValue("{s:K,s:K,s:K,s:N}", "contents", (unsigned long long)report->contents, "bytes",
                         (unsigned long long)report->bytes, "left_out", (unsigned long long)report->left_out,
                         "left_out_names", core_message(report->left_out_names));
}

PyObject *core_snapshot_export(struct snapshot_object *self, PyObject *args)
{
    const char *part;
    PyObject *path = NULL, *function = Py_None;
    struct core_progress progress;
    struct lmcs_transfer_report report = {0};
    struct lmcs_error error = {0};
    if (!PyArg_ParseTuple(args, "zO&|O:export", &part, PyUnicode_FSConverter, &path, &function))
        return NULL;
    if (!core_snapshot_enter(self)) {
        Py_DECREF(path);
        return NULL;
    }
    const char *path_bytes = PyBytes_AsString(path);
    core_progress_init(&progress, self->pool, function);
    CORE_BEGIN_PROGRESS(&progress);
    enum lmcs_status status =
        lmcs_export_safetensors(self->handle, part, path_bytes, &progress.progress, &report, &error);
    CORE_END_PROGRESS(&progress);
    core_pool_leave(self->pool);
    Py_DECREF(path);
    return status != LMCS_OK || progress.raised ? core_fail(self, &error) : report_dict(&report);
}

/* ---- Tensors that Python joins --------------------------------------------------------------------------------- */

struct joined {
    struct core_progress progress; /* has the thread state; `raised`: Python code has failed */
    PyObject *forms, *read;        /* borrowed */
    struct lmcs_entry *entries;
    size_t count;
    uint64_t shapes[][LMCS_MAX_DIMS];
};

static bool take_form(PyObject *form, struct lmcs_entry *entry, uint64_t *shape)
{
    PyObject *sizes;
    struct lmcs_tensor *tensor = &entry->tensor;
    if (!PyArg_ParseTuple(form, "O&O!:form", core_to_uint32, &tensor->dtype, &PyTuple_Type, &sizes) ||
        !core_shape(sizes, shape, &tensor->ndim))
        return false;
    tensor->kind = LMCS_TENSOR;
    tensor->shape = shape;
    if (lmcs_shape_bytes(tensor->dtype, tensor->ndim, shape, &entry->raw_bytes))
        return true;
    PyErr_SetString(PyExc_ValueError, "no tensor has this dtype and shape");
    return false;
}

static void free_joined(struct joined *joined)
{
    if (joined != NULL)
        free(joined->entries);
    free(joined);
}

/* `forms`: {name: (dtype, shape)}. */
static struct joined *make_joined(PyObject *forms, PyObject *read)
{
    size_t count = (size_t)PyDict_Size(forms);
    struct joined *joined = calloc(1, sizeof *joined + (count + 1) * sizeof joined->shapes[0]);
    PyObject *name, *form;
    Py_ssize_t at = 0;
    if (joined == NULL || (joined->entries = calloc(count + 1, sizeof *joined->entries)) == NULL) {
        free_joined(joined);
        PyErr_NoMemory();
        return NULL;
    }
    joined->forms = forms;
    joined->read = read;
    for (size_t i = 0; i < count && PyDict_Next(forms, &at, &name, &form); i++, joined->count++) {
        struct lmcs_entry *entry = &joined->entries[i];
        if ((entry->tensor.name = core_text_of(name)) == NULL || !take_form(form, entry, joined->shapes[i])) {
            free_joined(joined);
            return NULL;
        }
    }
    return joined;
}

static enum lmcs_status visit_joined(void *context, bool (*visit)(void *to, const struct lmcs_entry *entry), void *to,
                                     struct lmcs_error *error)
{
    (void)error;
    const struct joined *joined = context;
    for (size_t i = 0; i < joined->count && visit(to, &joined->entries[i]); i++)
        continue;
    return LMCS_OK;
}

/* Copies a buffer of Python; false with an exception. */
static bool copy_bytes(PyObject *form, PyObject *read, void *buffer)
{
    Py_buffer data;
    struct lmcs_entry entry = {0};
    uint64_t shape[LMCS_MAX_DIMS];
    if (form == NULL || read == NULL || !take_form(form, &entry, shape) ||
        PyObject_GetBuffer(read, &data, PyBUF_C_CONTIGUOUS) != 0)
        return false;
    bool fits = (uint64_t)data.len == entry.raw_bytes;
    if (fits && data.len > 0)
        memcpy(buffer, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "a tensor was read with another size");
    return fits;
}

static enum lmcs_status read_joined(void *context, const char *name, void *buffer, struct lmcs_error *error)
{
    struct joined *joined = context;
    core_visit_begin(&joined->progress);
    PyObject *read = PyObject_CallFunction(joined->read, "s", name);
    joined->progress.raised = !copy_bytes(PyDict_GetItemString(joined->forms, name), read, buffer);
    Py_XDECREF(read);
    core_visit_end(&joined->progress);
    return joined->progress.raised ? lmcs_fail(error, LMCS_CANCELLED, 0, "%s can't be read", name) : LMCS_OK;
}

PyObject *core_snapshot_export_joined(struct snapshot_object *self, PyObject *args)
{
    const char *part;
    PyObject *path = NULL, *forms, *read, *function = Py_None, *result = NULL;
    struct lmcs_transfer_report report = {0};
    struct lmcs_error error = {0};
    if (!PyArg_ParseTuple(args, "zO&O!O|O:export_joined", &part, PyUnicode_FSConverter, &path, &PyDict_Type, &forms,
                          &read, &function))
        return NULL;
    struct joined *joined = make_joined(forms, read);
    if (joined != NULL && core_snapshot_enter(self)) {
        const char *path_bytes = PyBytes_AsString(path);
        const struct lmcs_st_source source = {lmcs_snapshot_info(self->handle), visit_joined, read_joined, joined};
        core_progress_init(&joined->progress, self->pool, function);
        CORE_BEGIN_PROGRESS(&joined->progress);
        enum lmcs_status status =
            lmcs_st_export(&source, part, path_bytes, &joined->progress.progress, &report, &error);
        CORE_END_PROGRESS(&joined->progress);
        core_pool_leave(self->pool);
        result = status != LMCS_OK || joined->progress.raised ? core_fail(self, &error) : report_dict(&report);
    }
    free_joined(joined);
    Py_DECREF(path);
    return result;
}

PyObject *core_difference(PyObject *module, PyObject *args)
{
    (void)module;
    uint32_t dtype;
    Py_buffer before, after;
    struct lmcs_difference d = {.cosine = NAN};
    if (!PyArg_ParseTuple(args, "O&y*y*:difference", core_to_uint32, &dtype, &before, &after))
        return NULL;
    size_t size = lmc_dtype_size(dtype);
    bool fits = size > 0 && before.len == after.len && (size_t)after.len % size == 0;
    Py_BEGIN_ALLOW_THREADS
    if (fits)
        lmcs_elements_difference(dtype, before.buf, after.buf, (uint64_t)after.len, &d);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&before);
    PyBuffer_Release(&after);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "the buffers are no two tensors of one form");
    if (d.kind == LMCS_SAME)
        Py_RETURN_NONE;
    return Py_BuildValue("(KKKKddddd)", (unsigned long long)d.elements, (unsigned long long)d.changed,
                         (unsigned long long)d.not_finite_before, (unsigned long long)d.not_finite_after, d.max_change,
                         d.rms_change, d.rms_before, d.rms_after, d.cosine);
}
