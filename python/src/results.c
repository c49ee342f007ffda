/* SPDX-License-Identifier: BSD-3-Clause */
/* results.c - structs and arrays of the store as Python objects; NULL with an exception. */
#include "core.h"

#include <string.h>

PyObject *core_message(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *core_shape_tuple(uint32_t ndim, const uint64_t *shape)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)ndim);
    for (uint32_t i = 0; tuple != NULL && i < ndim; i++) {
        PyObject *size = PyLong_FromUnsignedLongLong(shape[i]);
        if (size == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, size) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *core_number_list(const uint64_t *numbers, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number == NULL || PyList_SetItem(list, (Py_ssize_t)i, number) != 0)
            Py_CLEAR(list);
    }
    return list;
}

bool core_append(PyObject *list, PyObject *item)
{
    bool appended = item != NULL && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return appended;
}

PyObject *core_shelf_dict(const struct lmcs_shelf_info *info)
{
    PyObject *origin = info->origin_number == 0
                           ? Py_NewRef(Py_None)
                           : Py_BuildValue("(sKN)", info->origin_shelf, (unsigned long long)info->origin_number,
                                           PyBool_FromLong(info->origin_is_there));
    if (origin == NULL)
        return NULL;
    return Py_BuildValue("{s:s,s:K,s:K,s:K,s:K,s:I,s:s,s:K,s:N}", "name", info->name, "snapshot_count",
                         (unsigned long long)info->snapshot_count, "remote_count",
                         (unsigned long long)info->remote_count, "latest", (unsigned long long)info->latest,
                         "next_number", (unsigned long long)info->next_number, "keep_raw", (unsigned)info->keep_raw,
                         "policy", info->policy, "created_ns", (unsigned long long)info->created_ns, "origin", origin);
}

PyObject *core_removal_tuple(const struct lmcs_removal *removal)
{
    return Py_BuildValue("KKK", (unsigned long long)removal->freed_bytes, (unsigned long long)removal->later_bytes,
                         (unsigned long long)removal->removed_tags);
}
