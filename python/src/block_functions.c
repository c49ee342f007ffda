/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * block_functions.c - single blocks of frames and links for Python, which fetches them from object stores.
 *
 * All arguments are immutable bytes, so they are used in place, without the GIL.
 */
#include "core.h"

#include <string.h>

#include "lmc.h"

static PyObject *fail(PyObject *module, enum lmc_status status, const char *message)
{
    enum lmcs_status code = status == LMC_UNSUPPORTED ? LMCS_UNSUPPORTED
                            : status == LMC_NO_MEMORY ? LMCS_NO_MEMORY
                                                      : LMCS_DAMAGED;
    return core_raise_status(PyModule_GetState(module), code, message != NULL ? message : "it is damaged");
}

static PyObject *hash_bytes(struct lmc_hash hash)
{
    return PyBytes_FromStringAndSize((const char *)&hash, sizeof hash);
}

PyObject *core_block_hash(PyObject *module, PyObject *block)
{
    (void)module;
    Py_buffer data;
    if (PyObject_GetBuffer(block, &data, PyBUF_SIMPLE) != 0)
        return NULL;
    struct lmc_hash hash;
    Py_BEGIN_ALLOW_THREADS
    hash = lmc_hash128(data.buf, (size_t)data.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return hash_bytes(hash);
}

PyObject *core_block_digest(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned dtype;
    uint32_t ndim;
    uint64_t shape[LMC_MAX_DIMS];
    PyObject *dims, *hashes;
    if (!PyArg_ParseTuple(args, "O&O!S:block_digest", core_to_uint32, &dtype, &PyTuple_Type, &dims, &hashes) ||
        !core_shape(dims, shape, &ndim))
        return NULL;
    return hash_bytes(lmc_digest(dtype, ndim, shape, (const struct lmc_hash *)(const void *)PyBytes_AsString(hashes),
                                 (uint64_t)PyBytes_Size(hashes) / sizeof(struct lmc_hash)));
}

static enum lmc_status parse(PyObject *header, struct lmc_frame *frame, const char **message)
{
    return lmc_frame_parse(PyBytes_AsString(header), (size_t)PyBytes_Size(header), frame, message);
}

static PyObject *place_list(const struct lmc_frame *frame)
{
    PyObject *places = PyList_New(0);
    for (uint64_t i = 0; places != NULL && i < frame->block_count; i++) {
        uint64_t offset;
        (void)lmc_frame_block(frame, i, &offset);
        if (!core_append(places, PyLong_FromUnsignedLongLong(offset)))
            Py_CLEAR(places);
    }
    if (places != NULL && !core_append(places, PyLong_FromUnsignedLongLong(frame->frame_bytes)))
        Py_CLEAR(places);
    return places;
}

PyObject *core_frame_table(PyObject *module, PyObject *args)
{
    unsigned dtype;
    uint32_t ndim;
    uint64_t shape[LMC_MAX_DIMS];
    const char *message = NULL;
    struct lmc_frame frame;
    PyObject *header, *dims;
    if (!PyArg_ParseTuple(args, "SO&O!:frame_table", &header, core_to_uint32, &dtype, &PyTuple_Type, &dims) ||
        !core_shape(dims, shape, &ndim))
        return NULL;
    enum lmc_status status = parse(header, &frame, &message);
    if (status != LMC_OK)
        return fail(module, status, message);
    PyObject *places = place_list(&frame), *digests = PyList_New(0);
    for (uint32_t i = 0; digests != NULL && i < frame.output_count; i++) {
        struct lmc_hash digest = {0};
        status = frame.predictor == 0 ? lmc_frame_digest(&frame, dtype, ndim, shape, &digest)
                                      : lmc_link_digest(&frame, i, ndim, shape, &digest);
        if (status != LMC_OK || !core_append(digests, hash_bytes(digest)))
            Py_CLEAR(digests);
    }
    PyObject *table = NULL;
    if (places != NULL && digests != NULL) {
        table = Py_BuildValue("KKIOO", (unsigned long long)frame.header_bytes, (unsigned long long)frame.raw_bytes,
                              frame.base_count, places, digests);
    } else if (!PyErr_Occurred()) {
        (void)fail(module, status, NULL);
    }
    Py_XDECREF(places);
    Py_XDECREF(digests);
    return table;
}

/* One frame's or link's block. `bases` and `outs`: as many as the frame has. */
static enum lmc_status decode(const struct lmc_frame *frame, uint64_t index, PyObject *coded, const void *const *bases,
                              void *const *outs, size_t bytes, const char **message)
{
    const struct lmc_link_step step = {frame, PyBytes_AsString(coded), (size_t)PyBytes_Size(coded)};
    if (step.coded_bytes != lmc_frame_block(frame, index, NULL).coded_bytes) {
        *message = "a block has another size than its header says";
        return LMC_DAMAGED;
    }
    if (frame->predictor == 0)
        return lmc_decode_block(frame, index, step.coded, step.coded_bytes, bases, outs[0], bytes, message);
    for (uint32_t i = 0; i < frame->base_count; i++)
        memcpy(outs[i], bases[i], bytes);
    return lmc_link_decode_block(&step, 1, index, outs, bytes, NULL, message);
}

PyObject *core_decode_block(PyObject *module, PyObject *args)
{
    struct lmc_frame frame;
    uint64_t index;
    const char *message = NULL;
    PyObject *header, *coded, *given;
    const void *bases[LMC_MAX_BASES] = {NULL};
    void *outs[LMC_MAX_BASES];
    if (!PyArg_ParseTuple(args, "SO&SO!:decode_block", &header, core_to_uint64, &index, &coded, &PyTuple_Type, &given))
        return NULL;
    enum lmc_status status = parse(header, &frame, &message);
    if (status != LMC_OK)
        return fail(module, status, message);
    if (index >= frame.block_count || frame.base_count != (uint64_t)PyTuple_Size(given))
        return fail(module, LMC_DAMAGED, "a frame has other bases or blocks than its content");
    uint64_t left = frame.raw_bytes - index * LMC_BLOCK_BYTES;
    size_t bytes = left < LMC_BLOCK_BYTES ? (size_t)left : LMC_BLOCK_BYTES;
    for (uint32_t i = 0; i < frame.base_count; i++) {
        PyObject *base = PyTuple_GetItem(given, (Py_ssize_t)i);
        if (!PyBytes_Check(base) || (size_t)PyBytes_Size(base) != bytes)
            return fail(module, LMC_DAMAGED, "a base has another size than its frame");
        bases[i] = PyBytes_AsString(base);
    }
    PyObject *made = PyTuple_New((Py_ssize_t)frame.output_count);
    for (uint32_t i = 0; made != NULL && i < frame.output_count; i++) {
        PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes); /* unshared until it is returned */
        if (out == NULL || PyTuple_SetItem(made, (Py_ssize_t)i, out) != 0)
            Py_CLEAR(made);
        else
            outs[i] = PyBytes_AsString(out);
    }
    if (made == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = decode(&frame, index, coded, bases, outs, bytes, &message);
    Py_END_ALLOW_THREADS
    if (status != LMC_OK) {
        Py_DECREF(made);
        return fail(module, status, message);
    }
    return made;
}
