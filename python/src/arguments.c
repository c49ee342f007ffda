/* SPDX-License-Identifier: BSD-3-Clause */
/* arguments.c - Python's numbers, texts and shapes as C values; a wrong one is an exception. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

bool core_uint64(PyObject *value, const char *what, uint64_t *out)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(value);
    if (number == (unsigned long long)-1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_Format(PyExc_ValueError, "%s is out of range: %R", what, value);
        return false;
    }
    *out = number;
    return true;
}

int core_to_uint64(PyObject *value, void *out)
{
    return core_uint64(value, "a number", out);
}

int core_to_uint32(PyObject *value, void *out)
{
    uint64_t number;
    if (!core_uint64(value, "a number", &number))
        return 0;
    if (number > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "a number is out of range: %R", value);
        return 0;
    }
    *(uint32_t *)out = (uint32_t)number;
    return 1;
}

const char *core_text_of(PyObject *value)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(value, &length);
    if (text != NULL && strlen(text) != (size_t)length) {
        PyErr_SetString(PyExc_ValueError, "a name contains a NUL character");
        return NULL;
    }
    return text;
}

const char **core_texts_of(PyObject *tuple, size_t *count)
{
    Py_ssize_t size = PyTuple_Size(tuple);
    if (size < 0)
        return NULL;
    const char **texts = calloc((size_t)size + 1, sizeof *texts);
    if (texts == NULL)
        return (const char **)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < size; i++) {
        texts[i] = core_text_of(PyTuple_GetItem(tuple, i));
        if (texts[i] == NULL) {
            free(texts);
            return NULL;
        }
    }
    *count = (size_t)size;
    return texts;
}

bool core_shape(PyObject *tuple, uint64_t *shape, uint32_t *ndim)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0)
        return false;
    if (count > LMCS_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "a tensor has %d dimensions at most, not %zd", LMCS_MAX_DIMS, count);
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (!core_uint64(PyTuple_GetItem(tuple, i), "a dimension", &shape[i]))
            return false;
    *ndim = (uint32_t)count;
    return true;
}
