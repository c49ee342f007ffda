/* SPDX-License-Identifier: BSD-3-Clause */
/* error.c - a status of the store as an exception of lmcstore/errors.py. */
#include "core.h"

#include <string.h>

/* Attributes of lmcstore.errors. */
static const char *const class_names[STATUS_COUNT] = {
    [LMCS_OK] = "Error",
    [LMCS_INVALID] = "InvalidError",
    [LMCS_NOT_FOUND] = "NotFoundError",
    [LMCS_EXISTS] = "ExistsError",
    [LMCS_IN_USE] = "InUseError",
    [LMCS_FULL] = "FullError",
    [LMCS_DAMAGED] = "DamagedError",
    [LMCS_UNSUPPORTED] = "UnsupportedError",
    [LMCS_READ_ONLY] = "ReadOnlyError",
    [LMCS_IO] = "InputOutputError",
    [LMCS_NO_MEMORY] = "OutOfMemoryError",
    [LMCS_CANCELLED] = "CancelledError",
    [LMCS_REMOTE] = "RemoteError",
};

bool core_load_exceptions(struct core_state *state)
{
    PyObject *errors = PyImport_ImportModule("lmcstore.errors");
    if (errors == NULL)
        return false;
    for (size_t i = 0; i < STATUS_COUNT; i++) {
        state->exceptions[i] = PyObject_GetAttrString(errors, class_names[i]);
        if (state->exceptions[i] == NULL) {
            Py_DECREF(errors);
            return false;
        }
    }
    Py_DECREF(errors);
    return true;
}

/* Releases `value`; false on failure. */
static bool set_attribute(PyObject *object, const char *name, PyObject *value)
{
    if (value == NULL)
        return false;
    int failed = PyObject_SetAttrString(object, name, value);
    Py_DECREF(value);
    return failed == 0;
}

PyObject *core_raise(struct core_state *state, const struct lmcs_error *error)
{
    return core_raise_with(state, error, NULL);
}

PyObject *core_raise_with(struct core_state *state, const struct lmcs_error *error, PyObject *report)
{
    if (PyErr_Occurred())
        return NULL;
    unsigned status = (unsigned)error->status < STATUS_COUNT ? (unsigned)error->status : 0;
    size_t length = strnlen(error->message, sizeof error->message);
    PyObject *message = length > 0 ? PyUnicode_DecodeUTF8(error->message, (Py_ssize_t)length, "replace")
                                   : PyUnicode_FromString(lmcs_status_name(error->status));
    if (message == NULL)
        return NULL;
    PyObject *exception = PyObject_CallFunctionObjArgs(state->exceptions[status], message, NULL);
    Py_DECREF(message);
    if (exception == NULL)
        return NULL;
    if (set_attribute(exception, "errno", PyLong_FromLong(error->system_errno)) &&
        set_attribute(exception, "bytes_needed", PyLong_FromUnsignedLongLong(error->bytes_needed)) &&
        set_attribute(exception, "bytes_free", PyLong_FromUnsignedLongLong(error->bytes_free)) &&
        (report == NULL || PyObject_SetAttrString(exception, "report", report) == 0))
        PyErr_SetObject(state->exceptions[status], exception);
    Py_DECREF(exception);
    return NULL;
}

bool core_warn_of(const struct lmcs_error *error)
{
    size_t length = strnlen(error->message, sizeof error->message);
    PyObject *message = PyUnicode_DecodeUTF8(error->message, (Py_ssize_t)length, "replace");
    bool went_on = message != NULL && PyErr_WarnFormat(PyExc_UserWarning, 2, "%U", message) == 0;
    Py_XDECREF(message);
    return went_on;
}

PyObject *core_raise_status(struct core_state *state, enum lmcs_status status, const char *message)
{
    struct lmcs_error error = {.status = status};
    strncpy(error.message, message, sizeof error.message - 1);
    return core_raise(state, &error);
}

PyObject *core_fail(void *self, const struct lmcs_error *error)
{
    return core_raise(core_state_of(self), error);
}

PyObject *core_fail_with(void *self, enum lmcs_status status, const char *message)
{
    return core_raise_status(core_state_of(self), status, message);
}

enum lmcs_status core_status_of(void *self, PyObject *exception)
{
    struct core_state *state = core_state_of(self);
    for (size_t i = LMCS_OK + 1; i < STATUS_COUNT; i++)
        if (PyErr_GivenExceptionMatches(exception, state->exceptions[i]))
            return (enum lmcs_status)i;
    return LMCS_INVALID;
}

PyObject *core_none(void *self, enum lmcs_status status, const struct lmcs_error *error)
{
    return status == LMCS_OK ? Py_NewRef(Py_None) : core_fail(self, error);
}
