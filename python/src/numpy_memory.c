/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * numpy_memory.c - memory for NumPy's arrays that the kernel may write out: see pymm.enable_transient_memory.
 *
 * NumPy gets the memory of arrays from a handler (NEP 49): a struct of functions in a capsule that its arrays keep.
 * This one maps unlinked files for large blocks and calls malloc for small ones; a header before each block records
 * which. File space is allocated at once: a full disk raises MemoryError instead of SIGBUS later.
 *
 * NumPy's headers are not needed: the struct and the indices of its function table are part of its binary interface.
 * Any thread may call the functions, with or without the GIL.
 */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { PLACES = 2, SET_HANDLER = 304 /* PyDataMem_SetHandler in NumPy's table */ };

#define CAPSULE_NAME "mem_handler"

/* PyDataMem_Handler, version 1. */
struct handler {
    char name[127];
    uint8_t version;
    void *context;
    void *(*allocate)(void *context, size_t bytes);
    void *(*allocate_zeroed)(void *context, size_t count, size_t item_bytes);
    void *(*reallocate)(void *context, void *data, size_t bytes);
    void (*release)(void *context, void *data, size_t bytes);
};

struct place {
    int folder; /* -1: none */
    uint64_t most_bytes;
    _Atomic uint64_t used_bytes;
};

struct memory {
    struct handler handler;
    size_t least_bytes; /* blocks from this size on are in files */
    struct place places[PLACES];
    _Atomic uint64_t names;
};

struct block {
    size_t bytes;        /* requested */
    size_t mapped_bytes; /* 0: from malloc */
    struct place *place;
    char padding[64 - 2 * sizeof(size_t) - sizeof(void *)]; /* aligns the data for NumPy's vectors */
};
_Static_assert(sizeof(struct block) == 64, "the data behind a header is aligned to 64");

/* ---- Blocks --------------------------------------------------------------------------------------------------- */

/* Returns 0 or an errno. First refuses blocks that can't fit: file systems allocate all free space before they report
 * that it is too little, and other writers fail meanwhile. */
static int take_space(int fd, size_t bytes)
{
    struct statvfs disk;
    if (fstatvfs(fd, &disk) == 0 && disk.f_blocks != 0 && bytes / disk.f_frsize > disk.f_bavail)
        return ENOSPC;
    return posix_fallocate(fd, 0, (off_t)bytes);
}

/* Opens an unlinked file; -1 with errno. */
static int unnamed_file(struct memory *memory, int folder, size_t bytes)
{
    char name[64];
    snprintf(name, sizeof name, ".pymm-%ld-%llu", (long)getpid(),
             (unsigned long long)atomic_fetch_add(&memory->names, 1));
    int fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    int error = unlinkat(folder, name, 0) != 0 ? errno : take_space(fd, bytes);
    if (error != 0) {
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static void *map_at(struct memory *memory, struct place *place, size_t bytes)
{
    if (place->folder < 0)
        return NULL;
    if (atomic_fetch_add(&place->used_bytes, bytes) + bytes <= place->most_bytes) {
        int fd = unnamed_file(memory, place->folder, bytes);
        if (fd >= 0) {
            struct block *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            close(fd);
            if (block != MAP_FAILED) {
                block->mapped_bytes = bytes;
                block->place = place;
                return block;
            }
        }
    }
    atomic_fetch_sub(&place->used_bytes, bytes);
    return NULL;
}

static struct block *map_block(struct memory *memory, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), all = (bytes + page - 1) / page * page;
    struct block *block = NULL;
    for (size_t i = 0; i < PLACES && block == NULL; i++)
        block = map_at(memory, &memory->places[i], all);
    return block;
}

static void *new_block(struct memory *memory, size_t bytes, bool zeroed)
{
    if (bytes > PTRDIFF_MAX - sizeof(struct block) - 65536)
        return NULL;
    size_t all = bytes + sizeof(struct block);
    struct block *block;
    if (bytes >= memory->least_bytes)
        block = map_block(memory, all); /* zeros, as in every new file */
    else if (posix_memalign((void **)&block, sizeof *block, all) == 0)
        memset(block, 0, zeroed ? all : sizeof *block);
    else
        block = NULL;
    if (block == NULL)
        return NULL;
    block->bytes = bytes;
    return block + 1;
}

static void *allocate(void *context, size_t bytes)
{
    return new_block(context, bytes, false);
}

static void *allocate_zeroed(void *context, size_t count, size_t item_bytes)
{
    size_t bytes;
    return __builtin_mul_overflow(count, item_bytes, &bytes) ? NULL : new_block(context, bytes, true);
}

/* Uses the header's size, not NumPy's. */
static void release(void *context, void *data, size_t bytes)
{
    (void)context;
    (void)bytes;
    if (data == NULL)
        return;
    struct block *block = (struct block *)data - 1;
    if (block->mapped_bytes == 0) {
        free(block);
        return;
    }
    struct place *place = block->place;
    size_t mapped_bytes = block->mapped_bytes;
    munmap(block, mapped_bytes);
    atomic_fetch_sub(&place->used_bytes, mapped_bytes);
}

static void *reallocate(void *context, void *data, size_t bytes)
{
    void *made = new_block(context, bytes, false);
    if (made != NULL && data != NULL) {
        size_t before = ((struct block *)data - 1)->bytes;
        memcpy(made, data, before < bytes ? before : bytes);
        release(context, data, 0);
    }
    return made;
}

/* ---- The handler ---------------------------------------------------------------------------------------------- */

static void free_memory(struct memory *memory)
{
    for (size_t i = 0; i < PLACES; i++)
        if (memory->places[i].folder >= 0)
            close(memory->places[i].folder);
    free(memory);
}

static void capsule_gone(PyObject *capsule)
{
    struct memory *memory = PyCapsule_GetPointer(capsule, CAPSULE_NAME);
    if (memory != NULL)
        free_memory(memory);
}

/* Opens a folder and makes a file in it as a test; false with an OSError. */
static bool open_place(struct memory *memory, struct place *place, PyObject *path)
{
    place->folder = open(PyBytes_AsString(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = place->folder >= 0 ? unnamed_file(memory, place->folder, 1) : -1;
    if (fd < 0) {
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
        return false;
    }
    close(fd);
    return true;
}

static bool open_places(struct memory *memory, PyObject *folders)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(folders) && i < PLACES; i++) {
        struct place *place = &memory->places[i];
        PyObject *path;
        if (!PyArg_ParseTuple(PyTuple_GetItem(folders, i), "SO&", &path, core_to_uint64, &place->most_bytes) ||
            !open_place(memory, place, path))
            return false;
    }
    return true;
}

static PyObject *new_capsule(PyObject *folders, uint64_t least_bytes)
{
    struct memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return PyErr_NoMemory();
    memory->handler = (struct handler){.name = "lmcstore_files",
                                       .version = 1,
                                       .context = memory,
                                       .allocate = allocate,
                                       .allocate_zeroed = allocate_zeroed,
                                       .reallocate = reallocate,
                                       .release = release};
    memory->least_bytes = least_bytes;
    for (size_t i = 0; i < PLACES; i++)
        memory->places[i].folder = -1;
    PyObject *capsule = open_places(memory, folders) ? PyCapsule_New(memory, CAPSULE_NAME, capsule_gone) : NULL;
    if (capsule == NULL)
        free_memory(memory);
    return capsule;
}

PyObject *core_numpy_memory(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *table, *folders, *capsule = NULL;
    uint64_t least_bytes;
    if (!PyArg_ParseTuple(args, "OO!O&:numpy_memory", &table, &PyTuple_Type, &folders, core_to_uint64, &least_bytes))
        return NULL;
    void **functions = PyCapsule_GetPointer(table, NULL);
    if (functions == NULL)
        return NULL;
    if (PyTuple_Size(folders) > 0) {
        capsule = new_capsule(folders, least_bytes);
        if (capsule == NULL)
            return NULL;
    }
    PyObject *(*set_handler)(PyObject *);
    memcpy(&set_handler, &functions[SET_HANDLER], sizeof set_handler);
    PyObject *before = set_handler(capsule); /* NULL: NumPy's own */
    Py_XDECREF(capsule);
    if (before == NULL)
        return NULL;
    Py_DECREF(before);
    Py_RETURN_NONE;
}
