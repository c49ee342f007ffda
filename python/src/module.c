/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * module.c - lmcstore._core: the module, its state and its constants.
 *
 * Multi-phase initialisation, no mutable static variables, limited API of Python 3.11.
 */
#include "core.h"

#include "base/machine.h"

/* (name, bytes of an element), or None. */
static PyObject *dtype_info(PyObject *module, PyObject *arg)
{
    (void)module;
    unsigned long dtype = PyLong_AsUnsignedLong(arg);
    if (dtype == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    const char *name = dtype < LMC_DTYPE_END ? lmc_dtype_name((uint32_t)dtype) : NULL;
    if (name == NULL)
        Py_RETURN_NONE;
    return Py_BuildValue("sn", name, (Py_ssize_t)lmc_dtype_size((uint32_t)dtype));
}

static PyObject *machine_memory(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromUnsignedLongLong(lmcs_machine_memory());
}

static PyMethodDef methods[] = {
    {"open", (PyCFunction)(void (*)(void))core_open, METH_VARARGS | METH_KEYWORDS,
     "open(path, mode, limit_bytes=0, wait_ms=10000, threads=0, flags=0, expect_bytes=0, copy_threads=0, "
     "copy_nice=0, memory_bytes=0)\n--\n\nOpens a pool."},
    {"codec_compress", core_codec_compress, METH_VARARGS, "A frame: (data, base, dtype, dense, threads)."},
    {"codec_decompress", core_codec_decompress, METH_VARARGS, "A frame's content: (frame, base, out, threads)."},
    {"codec_info", core_codec_info, METH_O, "The fields of a frame's header."},
    {"difference", core_difference, METH_VARARGS,
     "difference(dtype, before, after): the numbers of two tensors of one form, as Snapshot.diff has them; None: they "
     "are equal."},
    {"archive_ls", core_archive_ls, METH_VARARGS, "archive_ls(fd): the contents of an archive, as a dict."},
    {"archive_verify", core_archive_verify, METH_VARARGS, "archive_verify(fd): the same, after checking all of it."},
    {"codec_kernels", core_codec_kernels, METH_NOARGS, "The kernels in use, as lmc_kernels() names them."},
    {"codec_digest", core_codec_digest, METH_VARARGS, "A digest as text: (data, dtype, threads)."},
    {"block_hash", core_block_hash, METH_O, "The hash of a decoded block."},
    {"block_digest", core_block_digest, METH_VARARGS, "A tensor's digest: (dtype, shape, hashes of its blocks)."},
    {"frame_table", core_frame_table, METH_VARARGS,
     "A frame by its header: (header, dtype, shape). Bytes of the header, raw bytes, bases, offsets, digests."},
    {"decode_block", core_decode_block, METH_VARARGS, "A block's outputs: (header, index, coded block, bases)."},
    {"gradient_scale", core_gradient_scale, METH_VARARGS,
     "The factor that short gradients were multiplied by: (f32 as bytes)."},
    {"policy_change", core_policy_change, METH_VARARGS, "A policy with changed keys, as text: (policy, words)."},
    {"live_is_mapped", core_live_is_mapped, METH_O, "Whether an address belongs to a live tensor."},
    {"machine_memory", machine_memory, METH_NOARGS, "Bytes of memory that this process may use."},
    {"memory", core_memory, METH_VARARGS, "A Buffer over memory: (owner, address, size_bytes)."},
    {"numpy_memory", core_numpy_memory, METH_VARARGS,
     "Sets the memory of NumPy's arrays: (table, folders, least bytes)."},
    {"dtype_info", dtype_info, METH_O, "dtype_info(dtype)\n--\n\nName and size in bytes of a dtype, or None."},
    {NULL, NULL, 0, NULL},
};

static bool add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type != NULL && PyModule_AddType(module, *type) == 0;
}

static const struct {
    const char *name;
    long value;
} constants[] = {
    {"OPEN_READ", LMCS_OPEN_READ},
    {"OPEN_WRITE", LMCS_OPEN_WRITE},
    {"OPEN_OR_CREATE", LMCS_OPEN_OR_CREATE},
    {"OPEN_CREATE", LMCS_OPEN_CREATE},
    {"NO_BACKGROUND", LMCS_NO_BACKGROUND},
    {"FORCE_NETWORK", LMCS_FORCE_NETWORK},
    {"TENSOR", LMCS_TENSOR},
    {"ATTACHMENT", LMCS_ATTACHMENT},
    {"VIEW_PRIVATE", LMCS_VIEW_PRIVATE},
    {"VIEW_VERIFY", LMCS_VIEW_VERIFY},
    {"VIEW_COPY", LMCS_VIEW_COPY},
    {"MAX_NAME", LMCS_MAX_NAME},
    {"MAX_DIMS", LMCS_MAX_DIMS},
    {"MAX_TENSORS", LMCS_MAX_TENSORS},
    {"LIVE_TENSOR", LMCS_LIVE_TENSOR},
    {"LIVE_VALUE", LMCS_LIVE_VALUE},
    {"LIVE_UNNAMED", LMCS_LIVE_UNNAMED},
    {"LIVE_MAX_VALUE", LMCS_LIVE_MAX_VALUE},
    {"LIVE_MAX_NOTE", LMCS_LIVE_MAX_NOTE},
    {"ACCESS_NORMAL", LMCS_ACCESS_NORMAL},
    {"ACCESS_RANDOM", LMCS_ACCESS_RANDOM},
    {"ACCESS_SEQUENTIAL", LMCS_ACCESS_SEQUENTIAL},
    {"TRANSACTION_DECLARED", LMCS_TRANSACTION_DECLARED},
    {"DIFF_SAME", LMCS_DIFF_SAME},
    {"DIFF_NAMES", LMCS_DIFF_NAMES},
    {"ADAM", LMC_ADAM},
    {"SGD", LMC_SGD},
    {"LINK_L2", LMC_LINK_L2},
    {"LINK_AMSGRAD", LMC_LINK_AMSGRAD},
    {"LINK_NESTEROV", LMC_LINK_NESTEROV},
};

/* (name, value, values, initial, help): struct lmcs_policy_key. */
static int add_policy_keys(PyObject *module)
{
    PyObject *keys = PyList_New(0);
    const struct lmcs_policy_key *key;
    for (size_t i = 0; keys != NULL && (key = lmcs_policy_key(i)) != NULL; i++)
        if (!core_append(keys, Py_BuildValue("(sssss)", key->name, key->value, key->values, key->initial, key->help)))
            Py_CLEAR(keys);
    PyObject *tuple = keys != NULL ? PyList_AsTuple(keys) : NULL;
    int failed = tuple != NULL ? PyModule_AddObjectRef(module, "POLICY_KEYS", tuple) : -1;
    Py_XDECREF(tuple);
    Py_XDECREF(keys);
    return failed;
}

static int add_version(PyObject *module)
{
    PyObject *version = PyUnicode_FromFormat("%d.%d.%d", LMCS_VERSION_MAJOR, LMCS_VERSION_MINOR, LMCS_VERSION_PATCH);
    int failed = version != NULL ? PyModule_AddObjectRef(module, "VERSION", version) : -1;
    Py_XDECREF(version);
    return failed;
}

static int execute(PyObject *module)
{
    struct core_state *state = PyModule_GetState(module);
    if (!core_load_exceptions(state) || !add_type(module, &pool_spec, &state->pool_type) ||
        !add_type(module, &capture_spec, &state->capture_type) ||
        !add_type(module, &snapshot_spec, &state->snapshot_type) || !add_type(module, &view_spec, &state->view_type) ||
        !add_type(module, &buffer_spec, &state->buffer_type) || !add_type(module, &live_spec, &state->live_type) ||
        !add_type(module, &transaction_spec, &state->transaction_type))
        return -1;
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) != 0)
            return -1;
    PyObject *dtypes = PyDict_New(); /* name -> number */
    if (dtypes == NULL)
        return -1;
    for (uint32_t dtype = 0; dtype < LMC_DTYPE_END; dtype++) {
        const char *name = lmc_dtype_name(dtype);
        PyObject *number = name != NULL ? PyLong_FromUnsignedLong(dtype) : NULL;
        if (name != NULL && (number == NULL || PyDict_SetItemString(dtypes, name, number) != 0)) {
            Py_XDECREF(number);
            Py_DECREF(dtypes);
            return -1;
        }
        Py_XDECREF(number);
    }
    int failed = PyModule_AddObjectRef(module, "DTYPES", dtypes);
    Py_DECREF(dtypes);
    return failed != 0 || add_version(module) != 0 ? -1 : add_policy_keys(module);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    struct core_state *state = PyModule_GetState(module);
    for (size_t i = 0; i < STATUS_COUNT; i++)
        Py_VISIT(state->exceptions[i]);
    Py_VISIT(state->pool_type);
    Py_VISIT(state->capture_type);
    Py_VISIT(state->snapshot_type);
    Py_VISIT(state->view_type);
    Py_VISIT(state->buffer_type);
    Py_VISIT(state->live_type);
    Py_VISIT(state->transaction_type);
    return 0;
}

static int clear(PyObject *module)
{
    struct core_state *state = PyModule_GetState(module);
    for (size_t i = 0; i < STATUS_COUNT; i++)
        Py_CLEAR(state->exceptions[i]);
    Py_CLEAR(state->pool_type);
    Py_CLEAR(state->capture_type);
    Py_CLEAR(state->snapshot_type);
    Py_CLEAR(state->view_type);
    Py_CLEAR(state->buffer_type);
    Py_CLEAR(state->live_type);
    Py_CLEAR(state->transaction_type);
    return 0;
}

static void free_state(void *module)
{
    (void)clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
    {0, NULL},
};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "lmcstore._core",
    .m_doc = "Private: liblmcstore as Python types. Use lmcstore.",
    .m_size = sizeof(struct core_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = free_state,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
