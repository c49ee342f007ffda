/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * block.c - encodes and decodes one block. One allocation has the planes, as long as the block, and scratch of four
 * times the length of one plane: together 5 MiB for bytes, 2 MiB for f32.
 */
#include "block/block.h"

#include "base/bytes.h"
#include "base/memory.h"
#include "block/classes.h"
#include "block/copies.h"
#include "block/keyed.h"
#include "block/plane.h"
#include "block/shifts.h"
#include "kernels/kernels.h"

struct workspace {
    unsigned char *memory;
    unsigned char *piece; /* LMCI_OUT_BYTES */
    unsigned char *scratch;
    unsigned char *planes[LMCI_MAX_WORD];
};

static bool workspace_init(struct workspace *work, const struct lmci_block_shape *shape)
{
    size_t plane_bytes = shape->bytes / shape->word;
    size_t stride = plane_bytes + LMCI_PLANE_PAD;
    work->memory = lmci_allocate(LMCI_OUT_BYTES + shape->word * stride + lmci_plane_scratch(plane_bytes));
    if (work->memory == NULL)
        return false;
    for (unsigned p = 0; p < shape->word; p++)
        work->planes[p] = work->memory + LMCI_OUT_BYTES + p * stride;
    work->piece = work->memory;
    work->scratch = work->memory + LMCI_OUT_BYTES + shape->word * stride;
    return true;
}

/* Hashed and split together in the first-level cache. */
#define SPLIT_BYTES ((size_t)4 << 10)
#define RAW_LEAST   ((size_t)16 << 10)

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

static size_t encode_raw(const struct lmci_block_shape *shape, const unsigned char *data, unsigned char *dst)
{
    dst[0] = LMCI_METHOD_RAW;
    memcpy(dst + 1, data, shape->bytes);
    return 1 + shape->bytes;
}

/* Encodes the planes; the first `raw` ones are already in place. Returns 0 if the result exceeds a raw block. */
static size_t encode_planes(const struct lmci_block_shape *shape, enum lmci_transform transform, unsigned raw,
                            const struct workspace *work, unsigned char *dst)
{
    const struct lmci_plane_coder coder = {work->scratch, shape->dense, true, shape->pairs};
    size_t room = 1 + shape->bytes;
    size_t used = 2;
    if (room < used)
        return 0;
    dst[0] = LMCI_METHOD_PLANES;
    dst[1] = (unsigned char)transform;
    for (unsigned p = 0; p < raw; p++, used += 1 + shape->bytes / shape->word)
        dst[used] = LMCI_PLANE_RAW;
    for (unsigned p = raw; p < shape->word; p++) {
        size_t written =
            lmci_plane_encode(work->planes[p], shape->bytes / shape->word, &coder, dst + used, room - used);
        if (written == 0)
            return 0;
        used += written;
    }
    return used;
}

/* Splits words into planes and hashes them, piece by piece. `hasher` may be NULL. */
static void split_pieces(const struct lmci_block_shape *shape, enum lmci_transform transform, const unsigned char *data,
                         const unsigned char *base, struct lmc_hasher *hasher, unsigned char *const *planes)
{
    unsigned char *at[LMCI_MAX_WORD];
    for (size_t done = 0; done < shape->bytes; done += SPLIT_BYTES) {
        size_t bytes = shape->bytes - done < SPLIT_BYTES ? shape->bytes - done : SPLIT_BYTES;
        if (hasher != NULL)
            lmc_hasher_update(hasher, data + done, bytes);
        for (unsigned p = 0; p < shape->word; p++)
            at[p] = planes[p] + done / shape->word;
        lmci_kernels()->split(transform, shape->word, data + done, base != NULL ? base + done : NULL,
                              bytes / shape->word, at);
    }
}

/* Splits planes of noise directly to their destination; if one is not noise, moves them all back. Returns the planes in
 * place. */
static unsigned split_in_place(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                               const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                               const struct workspace *work, unsigned char *dst)
{
    unsigned char *planes[LMCI_MAX_WORD];
    size_t plane_bytes = shape->bytes / shape->word;
    unsigned raw = scheme->noise < shape->word && plane_bytes >= RAW_LEAST ? scheme->noise : 0;
    bool noise = true;
    for (unsigned p = 0; p < shape->word; p++)
        planes[p] = p < raw ? dst + 3 + p * (1 + plane_bytes) : work->planes[p];
    split_pieces(shape, scheme->transform, data, base, hasher, planes);
    for (unsigned p = 0; !scheme->noisy && p < raw; p++)
        noise = noise && lmci_plane_is_noise(planes[p], plane_bytes);
    for (unsigned p = 0; !noise && p < raw; p++)
        memcpy(work->planes[p], planes[p], plane_bytes);
    return noise ? raw : 0;
}

static enum lmc_status encode_transformed(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                                          const unsigned char *data, const unsigned char *base,
                                          struct lmc_hasher *hasher, unsigned char *dst, size_t *coded_bytes)
{
    struct workspace work;
    if (!workspace_init(&work, shape))
        return LMC_NO_MEMORY;
    unsigned raw = split_in_place(shape, scheme, data, base, hasher, &work, dst);
    *coded_bytes = encode_planes(shape, scheme->transform, raw, &work, dst);
    lmci_release(work.memory);
    return LMC_OK;
}

static enum lmc_status encode_classes(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                      const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                                      unsigned char *dst, size_t *coded_bytes)
{
    struct lmci_classes own = *classes;
    dst[0] = base != NULL ? LMCI_METHOD_CLASSES : LMCI_METHOD_VALUES;
    if (base != NULL && !own.fitted)
        lmci_plan_shifts(shape->word, data, base, shape->bytes, &own);
    enum lmc_status status = lmci_classes_encode(shape, &own, data, base, hasher, dst + 1, shape->bytes, coded_bytes);
    *coded_bytes += *coded_bytes != 0 ? 1 : 0;
    return status;
}

static enum lmc_status encode_keyed(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                                    const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                                    unsigned char *dst, size_t *coded_bytes)
{
    dst[0] = LMCI_METHOD_KEYED;
    lmc_hasher_update(hasher, data, shape->bytes);
    enum lmc_status status =
        lmci_keyed_encode(shape, &scheme->classes, scheme->low, data, base, dst + 1, shape->bytes, coded_bytes);
    *coded_bytes += *coded_bytes != 0 ? 1 : 0;
    return status;
}

static enum lmc_status encode_lines(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                                    const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                                    unsigned char *dst, size_t *coded_bytes)
{
    bool by_classes = scheme->method != LMCI_METHOD_PLANES;
    enum lmc_status status = LMC_OK;
    *coded_bytes = 0;
    if (scheme->method == LMCI_METHOD_KEYED)
        status = encode_keyed(shape, scheme, data, base, hasher, dst, coded_bytes);
    else if (by_classes)
        status = encode_classes(shape, &scheme->classes, data, scheme->method == LMCI_METHOD_CLASSES ? base : NULL,
                                hasher, dst, coded_bytes);
    if (status == LMC_OK && *coded_bytes == 0)
        status = encode_transformed(shape, scheme, data, base, by_classes ? NULL : hasher, dst, coded_bytes);
    if (status == LMC_OK && *coded_bytes == 0)
        *coded_bytes = encode_raw(shape, data, dst);
    return status;
}

#define COPIES_SAVE 2 /* runs must save this many times their own size */
#define SPARSE_BITS 2 /* bits a byte; below, repeated lines (of zeros) may cost no more without runs */

/* Encodes the runs and the rest of the block. Leaves *coded_bytes at 0 if not smaller. *uncertain: the block may be
 * smaller without runs. */
static enum lmc_status encode_rest(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                                   const struct lmci_copies *copies, unsigned char *dst, size_t *coded_bytes,
                                   bool *uncertain)
{
    struct lmc_hasher unused;
    struct lmci_block_shape rest = *shape;
    const size_t head = 1 + lmci_copies_bytes(copies);
    size_t written;
    rest.bytes = copies->rest_bytes;
    lmc_hasher_init(&unused);
    dst[0] = copies->unit == LMCI_LINE ? LMCI_METHOD_LINES : LMCI_METHOD_COPIES;
    lmci_copies_put(copies, dst + 1);
    enum lmc_status status = encode_lines(&rest, scheme, copies->rest, copies->base, &unused, dst + head, &written);
    const uint64_t saved = (uint64_t)(shape->bytes - rest.bytes) * written / rest.bytes;
    if (status == LMC_OK && saved > COPIES_SAVE * lmci_copies_bytes(copies))
        *coded_bytes = head + written;
    *uncertain = 8 * written < SPARSE_BITS * rest.bytes;
    return status;
}

static enum lmc_status encode_smaller(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                                      const unsigned char *data, const unsigned char *base, unsigned char *dst,
                                      size_t *coded_bytes)
{
    struct lmc_hasher unused;
    size_t written;
    unsigned char *other = lmci_allocate(lmc_block_bound(shape->bytes));
    if (other == NULL)
        return LMC_NO_MEMORY;
    lmc_hasher_init(&unused);
    enum lmc_status status = encode_lines(shape, scheme, data, base, &unused, other, &written);
    if (status == LMC_OK && written < *coded_bytes) {
        memcpy(dst, other, written);
        *coded_bytes = written;
    }
    lmci_release(other);
    return status;
}

/* Encodes repeated bytes as runs, of lines for version 1. Leaves *coded_bytes at 0 if too few repeat. */
static enum lmc_status encode_copies(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                                     const unsigned char *data, const unsigned char *base, unsigned char *dst,
                                     size_t *coded_bytes)
{
    struct lmci_copies copies;
    const struct lmci_searched in = {data, base, shape->bytes, shape->word};
    const unsigned unit = shape->pairs ? shape->word : LMCI_LINE;
    bool uncertain = false;
    if (!lmci_copies_likely(&in, unit))
        return LMC_OK;
    enum lmc_status status = lmci_copies_take(&in, unit, &copies);
    if (status == LMC_OK && copies.count > 0)
        status = encode_rest(shape, scheme, &copies, dst, coded_bytes, &uncertain);
    lmci_release(copies.memory);
    if (status == LMC_OK && *coded_bytes != 0 && uncertain)
        status = encode_smaller(shape, scheme, data, base, dst, coded_bytes);
    return status;
}

enum lmc_status lmci_block_encode(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                                  const unsigned char *data, const unsigned char *base, unsigned char *dst,
                                  size_t *coded_bytes, struct lmc_hash *content)
{
    struct lmc_hasher hasher;
    enum lmc_status status = LMC_OK;
    lmc_hasher_init(&hasher);
    *coded_bytes = 0;
    if (scheme->copies)
        status = encode_copies(shape, scheme, data, base, dst, coded_bytes);
    if (status == LMC_OK && *coded_bytes != 0)
        lmc_hasher_update(&hasher, data, shape->bytes);
    else if (status == LMC_OK)
        status = encode_lines(shape, scheme, data, base, &hasher, dst, coded_bytes);
    *content = lmc_hasher_final(&hasher);
    return status;
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

static enum lmc_status decode_raw(const struct lmci_block_shape *shape, struct lmci_reader *in, unsigned char *dst,
                                  struct lmc_hasher *hasher, const char **message)
{
    if (lmci_left(in) != shape->bytes)
        return lmci_damaged(message, "the length of a raw block differs from its content");
    memcpy(dst, in->at, shape->bytes);
    lmci_hash_decoded(hasher, dst, shape->bytes);
    return LMC_OK;
}

static void merge_pieces(const struct lmci_block_shape *shape, enum lmci_transform transform,
                         const unsigned char *const *planes, const unsigned char *base, unsigned char *piece,
                         unsigned char *dst, struct lmc_hasher *hasher)
{
    const unsigned char *at[LMCI_MAX_WORD];
    for (size_t done = 0; done < shape->bytes; done += LMCI_OUT_BYTES) {
        size_t bytes = shape->bytes - done < LMCI_OUT_BYTES ? shape->bytes - done : LMCI_OUT_BYTES;
        for (unsigned p = 0; p < shape->word; p++)
            at[p] = planes[p] + done / shape->word;
        lmci_kernels()->merge(transform, shape->word, at, base != NULL ? base + done : NULL, bytes / shape->word,
                              piece);
        lmci_deliver(shape, piece, bytes, dst + done, hasher);
    }
}

static enum lmc_status decode_planes(const struct lmci_block_shape *shape, unsigned transform, struct lmci_reader *in,
                                     const unsigned char *base, struct workspace *work, unsigned char *dst,
                                     struct lmc_hasher *hasher, const char **message)
{
    const unsigned char *planes[LMCI_MAX_WORD];
    size_t count = shape->bytes / shape->word;
    for (unsigned p = 0; p < shape->word; p++) {
        enum lmc_status status = lmci_plane_decode(in, count, work->scratch, work->planes[p], &planes[p], message);
        if (status != LMC_OK)
            return status;
    }
    if (lmci_left(in) != 0)
        return lmci_damaged(message, "bytes follow the last plane of a block");
    merge_pieces(shape, (enum lmci_transform)transform, planes, base, work->piece, dst, hasher);
    return LMC_OK;
}

static enum lmc_status decode_transformed(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                          const unsigned char *base, unsigned char *dst, struct lmc_hasher *hasher,
                                          const char **message)
{
    struct workspace work;
    const unsigned char *transform = lmci_take(in, 1);
    if (transform == NULL)
        return lmci_damaged(message, "a block has no transform");
    if (*transform >= LMCI_TRANSFORM_END)
        return lmci_unsupported(message, "a block has a transform unknown to this version");
    if (lmci_transform_needs_base(*transform) != 0 && base == NULL)
        return lmci_damaged(message, "a block needs a base, and the frame has none");
    if (!workspace_init(&work, shape))
        return lmci_fail(LMC_NO_MEMORY, message, "no memory to decode a block");
    enum lmc_status status = decode_planes(shape, *transform, in, base, &work, dst, hasher, message);
    lmci_release(work.memory);
    return status;
}

static enum lmc_status decode_classes(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                      const unsigned char *base, unsigned char *dst, struct lmc_hasher *hasher,
                                      const char **message)
{
    if (!lmci_has_classes(shape->word))
        return lmci_damaged(message, "a block of words without an exponent has classes");
    enum lmc_status status = lmci_classes_decode(shape, in, base, dst, hasher, message);
    if (status == LMC_OK && lmci_left(in) != 0)
        return lmci_damaged(message, "bytes follow the last plane of a block");
    return status;
}

static enum lmc_status decode_keyed(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                    const unsigned char *base, unsigned char *dst, struct lmc_hasher *hasher,
                                    const char **message)
{
    if (!lmci_has_keys(shape->word))
        return lmci_damaged(message, "a block of words that cannot have keys has some");
    enum lmc_status status = lmci_keyed_decode(shape, in, base, dst, message);
    if (status == LMC_OK && lmci_left(in) != 0)
        return lmci_damaged(message, "bytes follow the last plane of a block");
    if (status == LMC_OK)
        lmci_hash_decoded(hasher, dst, shape->bytes);
    return status;
}

static enum lmc_status decode_method(unsigned method, const struct lmci_block_shape *shape, struct lmci_reader *in,
                                     const unsigned char *base, unsigned char *dst, struct lmc_hasher *hasher,
                                     const char **message)
{
    switch (method) {
    case LMCI_METHOD_RAW:
        return decode_raw(shape, in, dst, hasher, message);
    case LMCI_METHOD_PLANES:
        return decode_transformed(shape, in, base, dst, hasher, message);
    case LMCI_METHOD_CLASSES:
        if (base == NULL)
            return lmci_damaged(message, "a block needs a base, and the frame has none");
        return decode_classes(shape, in, base, dst, hasher, message);
    case LMCI_METHOD_VALUES:
        return decode_classes(shape, in, NULL, dst, hasher, message);
    case LMCI_METHOD_KEYED:
        if (base == NULL)
            return lmci_damaged(message, "a block needs a base, and the frame has none");
        return decode_keyed(shape, in, base, dst, hasher, message);
    default:
        return lmci_unsupported(message, "a block has a method unknown to this version");
    }
}

static enum lmc_status decode_copies(const struct lmci_block_shape *shape, unsigned unit, struct lmci_reader *in,
                                     const unsigned char *base, unsigned char *dst, struct lmc_hasher *hasher,
                                     const char **message)
{
    struct lmci_copies copies;
    struct lmci_block_shape rest = *shape;
    enum lmc_status status = lmci_copies_get(in, unit, base, shape->bytes, &copies, message);
    if (status != LMC_OK)
        return status;
    rest.bytes = copies.rest_bytes;
    rest.stream = false;
    const unsigned char *method = lmci_take(in, 1);
    if (method == NULL || *method == LMCI_METHOD_LINES || *method == LMCI_METHOD_COPIES)
        status = lmci_damaged(message, "a block's copies are not well formed");
    else
        status = decode_method(*method, &rest, in, copies.base, copies.rest, NULL, message);
    if (status == LMC_OK) {
        lmci_copies_fill(&copies, dst, shape->bytes);
        lmci_hash_decoded(hasher, dst, shape->bytes);
    }
    lmci_release(copies.memory);
    return status;
}

enum lmc_status lmci_block_decode(const struct lmci_block_shape *shape, const unsigned char *coded, size_t coded_bytes,
                                  const unsigned char *base, unsigned char *dst, struct lmc_hash *content,
                                  const char **message)
{
    struct lmci_reader in = {coded, coded + coded_bytes};
    struct lmc_hasher hasher, *wanted = content != NULL ? &hasher : NULL;
    const unsigned char *method = lmci_take(&in, 1);
    if (method == NULL)
        return lmci_damaged(message, "a block is empty");
    if (wanted != NULL)
        lmc_hasher_init(wanted);
    enum lmc_status status;
    if (*method == LMCI_METHOD_LINES || *method == LMCI_METHOD_COPIES)
        status = decode_copies(shape, *method == LMCI_METHOD_LINES ? LMCI_LINE : shape->word, &in, base, dst, wanted,
                               message);
    else
        status = decode_method(*method, shape, &in, base, dst, wanted, message);
    if (shape->stream)
        lmci_kernels()->fence();
    if (wanted != NULL)
        *content = lmc_hasher_final(wanted);
    return status;
}
