/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * codec_functions.c - liblmc for Python: frames from bytes, and bytes from frames.
 *
 * Threads share a tensor's blocks without the GIL; the main thread checks for signals.
 *
 * Other threads may write to buffers, which are read in place. The codec trusts no earlier read of tensors and bases,
 * so a write at worst damages the frame. A frame is checked before it is decoded: immutable bytes are used in place,
 * others are copied block by block.
 */
#include "core.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/workers.h"

/* Acquiring the GIL may wait. */
#define SIGNALS_EVERY_NS 100000000

/* ---- Blocks in threads ---------------------------------------------------------------------------------------- */

/* Shared by the threads of one call; first member of each struct that `code` gets. */
struct coding {
    enum lmc_status (*code)(struct coding *self, uint64_t index, const char **message);
    struct core_state *state;
    struct lmcs_workers *workers; /* NULL: one thread */
    PyThreadState *thread;
    pid_t main_thread; /* checks for signals; 0: it is not the caller */
    uint64_t checked_ns;
    bool interrupted; /* by a signal, whose exception is set */
    atomic_bool stop;
    pthread_mutex_t lock; /* guards the rest */
    enum lmc_status status;
    uint64_t failed; /* the first failed block */
    const char *message;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Not gettid(), which glibc has from 2.30 on: the wheel runs with 2.28. */
static pid_t own_thread(void)
{
    return (pid_t)syscall(SYS_gettid);
}

/* Only the main thread may acquire the GIL here: others would end there when Python ends. */
static void check_signals(struct coding *self)
{
    if (self->main_thread != own_thread() || now_ns() - self->checked_ns < SIGNALS_EVERY_NS)
        return;
    PyEval_RestoreThread(self->thread);
    if (PyErr_CheckSignals() != 0) {
        self->interrupted = true;
        atomic_store(&self->stop, true);
    }
    self->thread = PyEval_SaveThread();
    self->checked_ns = now_ns();
}

static void work_on_block(void *context, uint64_t index)
{
    struct coding *self = context;
    const char *message = NULL;
    if (atomic_load_explicit(&self->stop, memory_order_relaxed))
        return;
    enum lmc_status status = self->code(self, index, &message);
    if (status == LMC_OK) {
        check_signals(self);
        return;
    }
    pthread_mutex_lock(&self->lock);
    if (self->status == LMC_OK || index < self->failed) {
        self->status = status;
        self->failed = index;
        self->message = message;
    }
    pthread_mutex_unlock(&self->lock);
    atomic_store(&self->stop, true);
}

static bool coding_init(struct coding *self, struct core_state *state, uint32_t threads, uint64_t blocks)
{
    struct lmcs_error error = {0};
    self->state = state;
    self->main_thread = own_thread() == getpid() ? getpid() : 0;
    self->checked_ns = now_ns();
    atomic_init(&self->stop, false);
    pthread_mutex_init(&self->lock, NULL);
    threads = threads < blocks ? threads : (uint32_t)blocks;
    if (threads > 1 && lmcs_workers_new(threads, 0, -1, &self->workers, &error) != LMCS_OK) {
        core_raise(state, &error);
        return false;
    }
    return true;
}

static void coding_end(struct coding *self)
{
    lmcs_workers_free(self->workers);
    pthread_mutex_destroy(&self->lock);
}

/* `blocks` 0: no block failed. */
static void raise_failed(const struct coding *self, const char *what, uint64_t blocks)
{
    static const enum lmcs_status statuses[] = {
        [LMC_INVALID] = LMCS_INVALID,  [LMC_DAMAGED] = LMCS_DAMAGED,     [LMC_UNSUPPORTED] = LMCS_UNSUPPORTED,
        [LMC_NO_SPACE] = LMCS_INVALID, [LMC_NO_MEMORY] = LMCS_NO_MEMORY,
    };
    const char *message = self->message != NULL ? self->message : "there is no memory to code a block";
    char text[200];
    if (blocks > 0) {
        snprintf(text, sizeof text, "%s (block %" PRIu64 " of %" PRIu64 "): %s", what, self->failed + 1, blocks,
                 message);
    } else {
        snprintf(text, sizeof text, "%s: %s", what, message);
    }
    core_raise_status(self->state, statuses[self->status], text);
}

static bool coding_run(struct coding *self, const char *what, uint64_t blocks,
                       enum lmc_status (*code)(struct coding *self, uint64_t index, const char **message))
{
    self->code = code;
    self->thread = PyEval_SaveThread();
    if (self->workers != NULL)
        lmcs_workers_run(self->workers, work_on_block, NULL, self, blocks);
    for (uint64_t i = 0; self->workers == NULL && i < blocks; i++)
        work_on_block(self, i);
    PyEval_RestoreThread(self->thread);
    if (!self->interrupted && self->status != LMC_OK)
        raise_failed(self, what, blocks);
    return !self->interrupted && self->status == LMC_OK;
}

static size_t block_bytes(uint64_t raw_bytes, uint64_t index)
{
    uint64_t left = raw_bytes - index * LMC_BLOCK_BYTES;
    return left < LMC_BLOCK_BYTES ? (size_t)left : LMC_BLOCK_BYTES;
}

/* Huge pages of 2 MiB make the first write several times faster. The caller must be about to write all the memory. */
static void ask_for_huge_pages(void *memory, size_t bytes)
{
    const uintptr_t page = (uintptr_t)2 << 20;
    uintptr_t from = ((uintptr_t)memory + page - 1) & ~(page - 1);
    uintptr_t to = ((uintptr_t)memory + bytes) & ~(page - 1);
    if (from < to)
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
}

/* ---- Digests -------------------------------------------------------------------------------------------------- */

struct hashing {
    struct coding coding;
    const unsigned char *data;
    uint64_t raw_bytes;
    struct lmc_hash *hashes;
};

static enum lmc_status hash_block(struct coding *coding, uint64_t index, const char **message)
{
    struct hashing *self = (struct hashing *)coding;
    (void)message;
    self->hashes[index] = lmc_hash128(self->data + index * LMC_BLOCK_BYTES, block_bytes(self->raw_bytes, index));
    return LMC_OK;
}

/* The digest of bytes as an array of one dimension. */
static bool find_digest(struct core_state *state, const Py_buffer *data, uint32_t dtype, uint32_t threads,
                        struct lmc_hash *digest)
{
    uint64_t raw_bytes = (uint64_t)data->len;
    uint64_t blocks = lmc_block_count(raw_bytes);
    uint64_t elements = raw_bytes / lmc_dtype_size(dtype);
    struct hashing hashing = {.data = data->buf, .raw_bytes = raw_bytes};
    hashing.hashes = malloc((size_t)blocks * sizeof *hashing.hashes + 1);
    if (hashing.hashes == NULL) {
        PyErr_NoMemory();
        return false;
    }
    bool ok = coding_init(&hashing.coding, state, threads, blocks) &&
              coding_run(&hashing.coding, "the data can't be hashed", blocks, hash_block);
    if (ok)
        *digest = lmc_digest(dtype, 1, &elements, hashing.hashes, blocks);
    coding_end(&hashing.coding);
    free(hashing.hashes);
    return ok;
}

static bool check_dtype(struct core_state *state, const Py_buffer *data, uint32_t dtype)
{
    size_t size = lmc_dtype_size(dtype);
    if (size == 0 || (size_t)data->len % size != 0) {
        core_raise_status(state, LMCS_INVALID, "the data's size is not a multiple of its dtype's");
        return false;
    }
    return true;
}

/* The high half first, as lmc-store prints it. */
static PyObject *digest_text(struct lmc_hash digest)
{
    char text[33];
    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, digest.high, digest.low);
    return PyUnicode_FromString(text);
}

PyObject *core_codec_kernels(PyObject *module, PyObject *args)
{
    (void)module, (void)args;
    return PyUnicode_FromString(lmc_kernels());
}

PyObject *core_codec_digest(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    struct lmc_hash digest;
    unsigned dtype, threads;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*O&O&:digest", &data, core_to_uint32, &dtype, core_to_uint32, &threads))
        return NULL;
    bool ok = check_dtype(state, &data, dtype) && find_digest(state, &data, dtype, threads, &digest);
    PyBuffer_Release(&data);
    return ok ? digest_text(digest) : NULL;
}

/* ---- Encoding ------------------------------------------------------------------------------------------------- */

/* A multiple of every page size. */
#define SLOT_BYTES (LMC_BLOCK_BYTES + ((size_t)64 << 10))
/* Slots released together; whole huge pages. */
#define GROUP ((uint64_t)32)

/* A block's place is known once those before it are encoded. So each is encoded into its own slot, then copied; slots
 * are released as the frame grows. */
struct encoding {
    struct coding coding;
    struct lmc_encoder *encoder;
    unsigned char *slots;
    size_t slots_bytes; /* 0: one slot, from malloc */
    uint64_t raw_bytes;
    uint64_t block_count;
    struct lmc_block *blocks;
    uint64_t *places; /* in the frame */
    unsigned char *frame;
};

static enum lmc_status encode_block(struct coding *coding, uint64_t index, const char **message)
{
    struct encoding *self = (struct encoding *)coding;
    (void)message;
    return lmc_encode_block(self->encoder, index, self->slots + index * SLOT_BYTES,
                            lmc_block_bound(block_bytes(self->raw_bytes, index)), &self->blocks[index]);
}

static enum lmc_status place_blocks(struct coding *coding, uint64_t group, const char **message)
{
    struct encoding *self = (struct encoding *)coding;
    unsigned char *slots = self->slots + group * GROUP * SLOT_BYTES;
    uint64_t left = self->block_count - group * GROUP;
    uint64_t count = left < GROUP ? left : GROUP;
    (void)message;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t index = group * GROUP + i;
        memcpy(self->frame + self->places[index], slots + i * SLOT_BYTES, self->blocks[index].coded_bytes);
    }
    if (self->slots_bytes > 0)
        (void)madvise(slots, (size_t)count * SLOT_BYTES, MADV_DONTNEED);
    return LMC_OK;
}

static bool encoding_init(struct encoding *self, struct core_state *state, const struct lmc_params *params,
                          uint32_t threads)
{
    self->raw_bytes = params->raw_bytes;
    self->block_count = lmc_block_count(params->raw_bytes);
    if (!coding_init(&self->coding, state, threads, self->block_count))
        return false;
    self->coding.thread = PyEval_SaveThread();
    self->coding.status = lmc_encoder_new(params, &self->encoder, &self->coding.message);
    PyEval_RestoreThread(self->coding.thread);
    if (self->coding.status != LMC_OK) {
        raise_failed(&self->coding, "the data can't be compressed", 0);
        return false;
    }
    self->blocks = malloc((size_t)self->block_count * sizeof *self->blocks + 1);
    self->places = malloc((size_t)self->block_count * sizeof *self->places + 1);
    if (self->block_count > 1) {
        self->slots_bytes = (size_t)self->block_count * SLOT_BYTES;
        self->slots =
            mmap(NULL, self->slots_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (self->slots != MAP_FAILED)
            ask_for_huge_pages(self->slots, self->slots_bytes);
    } else {
        self->slots = malloc(lmc_block_bound((size_t)params->raw_bytes));
    }
    if (self->blocks == NULL || self->places == NULL || self->slots == NULL || self->slots == MAP_FAILED) {
        core_raise_status(state, LMCS_NO_MEMORY, "there is no memory to compress the data");
        return false;
    }
    return true;
}

static void encoding_end(struct encoding *self)
{
    if (self->slots_bytes == 0)
        free(self->slots);
    else if (self->slots != MAP_FAILED)
        (void)munmap(self->slots, self->slots_bytes);
    free(self->places);
    free(self->blocks);
    lmc_encoder_free(self->encoder);
    coding_end(&self->coding);
}

static PyObject *encode(struct encoding *self)
{
    static const char what[] = "the data can't be compressed";
    if (!coding_run(&self->coding, what, self->block_count, encode_block))
        return NULL;
    uint64_t used = lmc_encoder_header_bytes(self->encoder);
    for (uint64_t i = 0; i < self->block_count; i++) {
        self->places[i] = used;
        used += self->blocks[i].coded_bytes;
    }
    PyObject *frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)used);
    if (frame == NULL)
        return NULL;
    self->frame = (unsigned char *)PyBytes_AsString(frame); /* unshared until it is returned */
    ask_for_huge_pages(self->frame, (size_t)used);
    self->coding.status =
        lmc_encode_header(self->encoder, self->blocks, self->frame, lmc_encoder_header_bytes(self->encoder));
    if (self->coding.status != LMC_OK) {
        raise_failed(&self->coding, what, 0);
        Py_CLEAR(frame);
    } else if (!coding_run(&self->coding, what, (self->block_count + GROUP - 1) / GROUP, place_blocks)) {
        Py_CLEAR(frame);
    }
    return frame;
}

static PyObject *compress(struct core_state *state, const Py_buffer *data, const Py_buffer *base, uint32_t dtype,
                          enum lmc_level level, uint32_t threads)
{
    struct lmc_params params = {.dtype = dtype, .level = level, .raw_bytes = (uint64_t)data->len, .data = data->buf};
    struct encoding encoding = {.block_count = 0};
    if (!check_dtype(state, data, dtype))
        return NULL;
    if (base != NULL) {
        params.base = base->buf;
        if (!find_digest(state, base, dtype, threads, &params.base_digest))
            return NULL;
    }
    PyObject *frame = encoding_init(&encoding, state, &params, threads) ? encode(&encoding) : NULL;
    encoding_end(&encoding);
    return frame;
}

/* None leaves `buf` NULL. */
static bool get_optional(PyObject *object, int flags, Py_buffer *view)
{
    memset(view, 0, sizeof *view);
    return object == Py_None || PyObject_GetBuffer(object, view, flags) == 0;
}

PyObject *core_codec_compress(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *base_object, *frame = NULL;
    unsigned dtype, dense, threads;
    Py_buffer data, base;
    if (!PyArg_ParseTuple(args, "y*OO&O&O&:compress", &data, &base_object, core_to_uint32, &dtype, core_to_uint32,
                          &dense, core_to_uint32, &threads))
        return NULL;
    if (get_optional(base_object, PyBUF_SIMPLE, &base)) {
        if (base_object != Py_None && base.len != data.len) {
            core_raise_status(state, LMCS_INVALID, "the base has another size than the data");
        } else {
            frame = compress(state, &data, base.len > 0 ? &base : NULL, dtype,
                             dense ? LMC_LEVEL_DENSE : LMC_LEVEL_DEFAULT, threads);
        }
        PyBuffer_Release(&base);
    }
    PyBuffer_Release(&data);
    return frame;
}

/* ---- Decoding ------------------------------------------------------------------------------------------------- */

struct decoding {
    struct coding coding;
    struct lmc_frame frame;
    const unsigned char *bytes; /* of the frame */
    bool can_change;            /* by another thread: copy them */
    unsigned char *header;      /* a copy, or NULL */
    const unsigned char *base;  /* NULL: none */
    unsigned char *out;
};

static enum lmc_status parse_header(struct decoding *self, size_t size, const char **message)
{
    unsigned char prefix[LMC_FRAME_PREFIX_BYTES];
    uint64_t header_bytes;
    if (!self->can_change)
        return lmc_frame_parse(self->bytes, size, &self->frame, message);
    size_t prefix_bytes = size < sizeof prefix ? size : sizeof prefix;
    if (prefix_bytes > 0)
        memcpy(prefix, self->bytes, prefix_bytes);
    enum lmc_status status = lmc_frame_header_bytes(prefix, prefix_bytes, &header_bytes, message);
    if (status != LMC_OK)
        return status;
    size_t copied = header_bytes < size ? (size_t)header_bytes : size;
    self->header = malloc(copied);
    if (self->header == NULL) {
        *message = "there is no memory for its header";
        return LMC_NO_MEMORY;
    }
    memcpy(self->header, self->bytes, copied);
    return lmc_frame_parse(self->header, copied, &self->frame, message);
}

static bool read_header(struct decoding *self, struct core_state *state, PyObject *owner, const Py_buffer *bytes)
{
    self->bytes = bytes->buf;
    self->can_change = !PyBytes_Check(owner);
    self->coding.state = state;
    self->coding.status = parse_header(self, (size_t)bytes->len, &self->coding.message);
    if (self->coding.status != LMC_OK) {
        raise_failed(&self->coding, "the frame can't be read", 0);
        return false;
    }
    return true;
}

static enum lmc_status decode_block(struct coding *coding, uint64_t index, const char **message)
{
    struct decoding *self = (struct decoding *)coding;
    uint64_t place;
    struct lmc_block block = lmc_frame_block(&self->frame, index, &place);
    size_t at = (size_t)index * LMC_BLOCK_BYTES;
    const unsigned char *coded = self->bytes + place;
    const void *bases[LMC_MAX_BASES] = {self->base != NULL ? self->base + at : NULL};
    unsigned char *copy = NULL;
    if (self->can_change) {
        copy = malloc(block.coded_bytes);
        if (copy == NULL)
            return LMC_NO_MEMORY;
        coded = memcpy(copy, coded, block.coded_bytes);
    }
    enum lmc_status status = lmc_decode_block(&self->frame, index, coded, block.coded_bytes, bases, self->out + at,
                                              block_bytes(self->frame.raw_bytes, index), message);
    free(copy);
    return status;
}

static bool overlap(const Py_buffer *a, const Py_buffer *b)
{
    uintptr_t first = (uintptr_t)a->buf;
    uintptr_t second = (uintptr_t)b->buf;
    return a->len > 0 && b->len > 0 && first < second + (uintptr_t)b->len && second < first + (uintptr_t)a->len;
}

/* Raises a sentence with two numbers; false. */
static bool refuse(struct core_state *state, enum lmcs_status status, const char *format, uint64_t first,
                   uint64_t second)
{
    char text[200];
    snprintf(text, sizeof text, format, first, second);
    core_raise_status(state, status, text);
    return false;
}

static bool check_frame(struct core_state *state, const struct lmc_frame *frame, const Py_buffer *bytes,
                        const Py_buffer *base)
{
    uint64_t size = (uint64_t)bytes->len;
    const struct lmc_hash *digest = &frame->base_digest[0];
    if (size < frame->frame_bytes) {
        return refuse(state, LMCS_DAMAGED, "the frame is cut short: %" PRIu64 " of its %" PRIu64 " bytes are there",
                      size, frame->frame_bytes);
    }
    if (size > frame->frame_bytes) {
        return refuse(state, LMCS_DAMAGED, "the frame has %" PRIu64 " bytes, and %" PRIu64 " more follow it",
                      frame->frame_bytes, size - frame->frame_bytes);
    }
    if (frame->base_count > 0 && frame->raw_bytes > 0 && base->obj == NULL) {
        return refuse(
            state, LMCS_INVALID,
            "the frame is a delta: give the base that it was made against, by base=; its digest is %016" PRIx64
            "%016" PRIx64,
            digest->high, digest->low);
    }
    if (frame->base_count > 0 && base->obj != NULL && (uint64_t)base->len != frame->raw_bytes) {
        return refuse(state, LMCS_INVALID, "the base has %" PRIu64 " bytes and the frame's content %" PRIu64,
                      (uint64_t)base->len, frame->raw_bytes);
    }
    return true;
}

static bool check_out(struct core_state *state, const struct lmc_frame *frame, const Py_buffer *bytes,
                      const Py_buffer *base, const Py_buffer *out)
{
    if ((uint64_t)out->len != frame->raw_bytes) {
        return refuse(state, LMCS_INVALID, "out has %" PRIu64 " bytes and the frame's content %" PRIu64,
                      (uint64_t)out->len, frame->raw_bytes);
    }
    if (overlap(out, bytes) || (frame->base_count > 0 && overlap(out, base))) {
        core_raise_status(state, LMCS_INVALID, "out shares memory with the frame or the base");
        return false;
    }
    return true;
}

static PyObject *new_bytes(struct core_state *state, uint64_t size)
{
    PyObject *bytes = size <= PY_SSIZE_T_MAX ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size) : PyErr_NoMemory();
    if (bytes == NULL && (PyErr_ExceptionMatches(PyExc_MemoryError) || PyErr_ExceptionMatches(PyExc_OverflowError))) {
        PyErr_Clear();
        refuse(state, LMCS_NO_MEMORY, "the frame's content has %" PRIu64 " bytes, and there is no memory for them",
               size, 0);
    }
    if (bytes != NULL)
        ask_for_huge_pages(PyBytes_AsString(bytes), (size_t)size);
    return bytes;
}

/* Returns None after decoding into `out`, else new bytes. */
static PyObject *decompress(struct decoding *self, struct core_state *state, const Py_buffer *bytes,
                            const Py_buffer *base, const Py_buffer *out, uint32_t threads)
{
    const struct lmc_frame *frame = &self->frame;
    PyObject *result;
    if (!check_frame(state, frame, bytes, base))
        return NULL;
    if (out->obj != NULL) {
        result = check_out(state, frame, bytes, base, out) ? Py_NewRef(Py_None) : NULL;
        self->out = out->buf;
    } else {
        result = new_bytes(state, frame->raw_bytes);
        self->out = result != NULL ? (unsigned char *)PyBytes_AsString(result) : NULL;
    }
    self->base = base->buf;
    if (result == NULL)
        return NULL;
    if (!coding_init(&self->coding, state, threads, frame->block_count) ||
        !coding_run(&self->coding, "the frame can't be decompressed", frame->block_count, decode_block))
        Py_CLEAR(result);
    coding_end(&self->coding);
    return result;
}

PyObject *core_codec_decompress(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    struct decoding decoding = {.header = NULL};
    PyObject *owner, *base_object, *out_object, *result = NULL;
    Py_buffer bytes, base, out = {.obj = NULL};
    unsigned threads;
    if (!PyArg_ParseTuple(args, "OOOO&:decompress", &owner, &base_object, &out_object, core_to_uint32, &threads) ||
        PyObject_GetBuffer(owner, &bytes, PyBUF_SIMPLE) != 0)
        return NULL;
    if (get_optional(base_object, PyBUF_SIMPLE, &base)) {
        if (get_optional(out_object, PyBUF_WRITABLE, &out) && read_header(&decoding, state, owner, &bytes))
            result = decompress(&decoding, state, &bytes, &base, &out, threads);
        free(decoding.header);
        PyBuffer_Release(&out);
        PyBuffer_Release(&base);
    }
    PyBuffer_Release(&bytes);
    return result;
}

PyObject *core_codec_info(PyObject *module, PyObject *owner)
{
    struct core_state *state = PyModule_GetState(module);
    struct decoding decoding = {.header = NULL};
    const struct lmc_frame *frame = &decoding.frame;
    PyObject *info = NULL;
    Py_buffer bytes;
    if (PyObject_GetBuffer(owner, &bytes, PyBUF_SIMPLE) != 0)
        return NULL;
    if (read_header(&decoding, state, owner, &bytes)) {
        PyObject *base = frame->base_count > 0 ? digest_text(frame->base_digest[0]) : Py_NewRef(Py_None);
        info = Py_BuildValue("IIKKKNi", frame->dtype, frame->version, (unsigned long long)frame->raw_bytes,
                             (unsigned long long)frame->frame_bytes, (unsigned long long)frame->block_count, base,
                             (frame->flags & LMC_FRAME_CONTINUES) != 0);
    }
    free(decoding.header);
    PyBuffer_Release(&bytes);
    return info;
}

/* ---- Memory ----------------------------------------------------------------------------------------- */

PyObject *core_memory(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *owner, *address_object;
    uint64_t address;
    Py_ssize_t size_bytes;
    if (!PyArg_ParseTuple(args, "OO!n:memory", &owner, &PyLong_Type, &address_object, &size_bytes) ||
        !core_uint64(address_object, "an address", &address))
        return NULL;
    return core_buffer_new(state, owner, (void *)(uintptr_t)address, (uint64_t)size_bytes, false);
}

PyObject *core_gradient_scale(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer data;
    double scale;
    if (!PyArg_ParseTuple(args, "y*:gradient_scale", &data))
        return NULL;
    float *gradients = malloc((size_t)data.len + 1); /* aligned, unlike the buffer */
    enum lmc_status status = LMC_NO_MEMORY;
    if (gradients != NULL) {
        memcpy(gradients, data.buf, (size_t)data.len);
        status = lmc_link_gradient_scale(gradients, (size_t)data.len / sizeof *gradients, &scale);
    }
    free(gradients);
    PyBuffer_Release(&data);
    return status == LMC_OK ? PyFloat_FromDouble(scale) : PyErr_NoMemory();
}
