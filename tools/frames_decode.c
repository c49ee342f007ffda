/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * frames_decode.c - decodes an image of a file of frames to its content.
 *
 * The image is untrusted: a frame is read only within it, and sizes in headers determine only memory requests.
 */
#include "frames.h"

#include "base/order.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Frames --------------------------------------------------------------------------------------------------- */

static enum lmcs_status bad_frame(struct cli *cli, const struct frames_image *image, uint64_t at,
                                  enum lmc_status status, const char *message)
{
    return cli_fail(cli, status == LMC_UNSUPPORTED ? LMCS_UNSUPPORTED : LMCS_DAMAGED, 0,
                    "%s: frame %zu, at byte %" PRIu64 ": %s", frames_shown(image->path), image->count + 1, at, message);
}

static enum lmcs_status cut_short(struct cli *cli, const struct frames_image *image, uint64_t at, uint64_t bytes)
{
    return cli_fail(cli, LMCS_DAMAGED, 0,
                    "%s is cut short: frame %zu, at byte %" PRIu64 ", needs %" PRIu64 " bytes, and %" PRIu64
                    " are left",
                    frames_shown(image->path), image->count + 1, at, bytes, image->memory.bytes - at);
}

/* A file that is not read yet, and a piece of it. */
struct unread {
    int fd;
    struct frames_memory piece;
};

/* Finds bytes of the image: in memory, or until the next call in the unread file. */
static enum lmcs_status find_bytes(struct cli *cli, const struct frames_image *image, struct unread *unread,
                                   uint64_t at, uint64_t bytes, const unsigned char **found)
{
    enum lmcs_status status = LMCS_OK;
    if (unread == NULL) {
        *found = image->memory.data + at;
        return LMCS_OK;
    }
    if (bytes > unread->piece.mapped_bytes) {
        frames_memory_free(&unread->piece);
        status = frames_memory_new(cli, "a header", bytes, &unread->piece);
    }
    *found = unread->piece.data;
    return status == LMCS_OK ? lmcs_st_read(unread->fd, image->path, at, unread->piece.data, (size_t)bytes, &cli->error)
                             : status;
}

static enum lmcs_status parse_frame(struct cli *cli, const struct frames_image *image, struct unread *unread,
                                    uint64_t at, struct lmc_frame *frame)
{
    const unsigned char *bytes = NULL;
    uint64_t left = image->memory.bytes - at;
    uint64_t prefix_bytes = left < LMC_FRAME_PREFIX_BYTES ? left : LMC_FRAME_PREFIX_BYTES;
    uint64_t header_bytes = 0;
    const char *message = NULL;
    enum lmcs_status found = find_bytes(cli, image, unread, at, prefix_bytes, &bytes);
    if (found != LMCS_OK)
        return found;
    enum lmc_status status = lmc_frame_header_bytes(bytes, (size_t)prefix_bytes, &header_bytes, &message);
    if (status != LMC_OK)
        return bad_frame(cli, image, at, status, message);
    if (header_bytes > left)
        return cut_short(cli, image, at, header_bytes);
    found = find_bytes(cli, image, unread, at, header_bytes, &bytes);
    if (found != LMCS_OK)
        return found;
    status = lmc_frame_parse(bytes, (size_t)header_bytes, frame, &message);
    if (status != LMC_OK)
        return bad_frame(cli, image, at, status, message);
    if (frame->frame_bytes > left)
        return cut_short(cli, image, at, frame->frame_bytes);
    return LMCS_OK;
}

/* Whether decoding needs a base: an empty frame needs none. */
static bool needs_base(const struct lmc_frame *frame)
{
    return frame->base_count != 0 && frame->raw_bytes != 0;
}

static bool append(struct frames_image *image, const struct lmc_frame *frame, uint64_t at)
{
    if (image->count == image->capacity) {
        size_t capacity = image->capacity != 0 ? 2 * image->capacity : 64;
        struct frames_frame *frames = realloc(image->frames, capacity * sizeof *frames);
        if (frames == NULL)
            return false;
        image->frames = frames;
        image->capacity = capacity;
    }
    image->frames[image->count++] = (struct frames_frame){
        .frame = *frame, .at = at, .first_block = image->block_count, .content_at = image->content_bytes};
    image->block_count += frame->block_count;
    image->base_count += needs_base(frame);
    return true;
}

static enum lmcs_status add_frame(struct cli *cli, struct frames_image *image, struct unread *unread, uint64_t at)
{
    struct lmc_frame frame;
    uint64_t content_bytes = 0;
    enum lmcs_status status = parse_frame(cli, image, unread, at, &frame);
    if (status != LMCS_OK)
        return status;
    if (__builtin_add_overflow(image->content_bytes, frame.raw_bytes, &content_bytes))
        return bad_frame(cli, image, at, LMC_DAMAGED, "the file claims an impossible size");
    if (!append(image, &frame, at))
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    image->content_bytes = content_bytes;
    return LMCS_OK;
}

static bool has_magic(const unsigned char *data, size_t bytes)
{
    return bytes >= 4 && memcmp(data, "LMCF", 4) == 0;
}

bool frames_image_begins(const unsigned char *data, size_t bytes)
{
    uint64_t header_bytes = 0;
    size_t prefix_bytes = bytes < LMC_FRAME_PREFIX_BYTES ? bytes : LMC_FRAME_PREFIX_BYTES;
    return has_magic(data, bytes) && lmc_frame_header_bytes(data, prefix_bytes, &header_bytes, NULL) == LMC_OK;
}

static enum lmcs_status parse(struct cli *cli, struct frames_image *image, struct unread *unread)
{
    const char *shown = frames_shown(image->path);
    const unsigned char *begin = NULL;
    size_t begin_bytes = image->memory.bytes < LMC_FRAME_PREFIX_BYTES ? image->memory.bytes : LMC_FRAME_PREFIX_BYTES;
    bool continues = true;
    uint64_t at = 0;
    enum lmcs_status status = find_bytes(cli, image, unread, 0, begin_bytes, &begin);
    if (status == LMCS_OK && !has_magic(begin, begin_bytes))
        status = cli_fail(cli, LMCS_DAMAGED, 0, "%s is not a file of 'lmc-store compress'", shown);
    if (status != LMCS_OK)
        return status;
    while (continues && at < image->memory.bytes) {
        status = add_frame(cli, image, unread, at);
        if (status != LMCS_OK)
            return status;
        const struct lmc_frame *frame = &image->frames[image->count - 1].frame;
        continues = frame->flags & LMC_FRAME_CONTINUES;
        at += frame->frame_bytes;
    }
    if (continues)
        return cli_fail(cli, LMCS_DAMAGED, 0, "%s is cut short: more frames should follow its %zu", shown,
                        image->count);
    if (at < image->memory.bytes)
        return cli_fail(cli, LMCS_DAMAGED, 0, "%s has %" PRIu64 " bytes behind its last frame, which ends at %" PRIu64,
                        shown, image->memory.bytes - at, at);
    return LMCS_OK;
}

enum lmcs_status frames_image_look(struct cli *cli, const char *path)
{
    struct unread unread = {.fd = -1};
    struct frames_image image = {.path = path, .memory.bytes = frames_open_regular(path, &unread.fd)};
    enum lmcs_status status = unread.fd >= 0 ? parse(cli, &image, &unread) : LMCS_OK;
    if (unread.fd >= 0)
        close(unread.fd);
    frames_memory_free(&unread.piece);
    frames_image_free(&image);
    return status;
}

enum lmcs_status frames_image_parse(struct cli *cli, struct frames_image *image)
{
    return parse(cli, image, NULL);
}

void frames_image_free(struct frames_image *image)
{
    frames_memory_free(&image->memory);
    free(image->frames);
}

/* ---- Bases ---------------------------------------------------------------------------------------------------- */

/* Orders frames by dtype and size, which their bases share. */
static int by_size(const void *left, const void *right)
{
    const struct frames_frame *l = *(const struct frames_frame *const *)left;
    const struct frames_frame *r = *(const struct frames_frame *const *)right;
    return LMCS_ORDER2(l->frame.dtype, r->frame.dtype, l->frame.raw_bytes, r->frame.raw_bytes);
}

static int by_digest(const void *left, const void *right)
{
    const struct frames_tensor *l = *(const struct frames_tensor *const *)left;
    const struct frames_tensor *r = *(const struct frames_tensor *const *)right;
    return LMCS_ORDER2(l->digest.high, r->digest.high, l->digest.low, r->digest.low);
}

/* Returns the frames that need a base, by dtype and size; NULL: no memory. */
static struct frames_frame **needy_frames(struct frames_image *image)
{
    struct frames_frame **needy = malloc((image->base_count + 1) * sizeof(void *));
    size_t count = 0;
    for (size_t i = 0; needy != NULL && i < image->count; i++)
        if (needs_base(&image->frames[i].frame))
            needy[count++] = &image->frames[i];
    if (needy != NULL)
        qsort(needy, count, sizeof(void *), by_size);
    return needy;
}

/* Adds the base file as an array, once for each dtype of a frame of its size. */
static enum lmcs_status add_arrays(struct cli *cli, struct frames_source *base, struct frames_frame *const *needy,
                                   size_t count)
{
    uint32_t added = 0;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        const struct lmc_frame *frame = &needy[i]->frame;
        size_t element = lmc_dtype_size(frame->dtype);
        if (frame->dtype == added || frame->raw_bytes != base->memory.bytes / element * element)
            continue;
        added = frame->dtype;
        status = frames_source_add_array(cli, base, frame->dtype);
    }
    return status;
}

/* Marks the tensors that a frame may need. */
static void want_some(struct frames_source *base, struct frames_frame *const *needy, size_t count)
{
    for (size_t i = 0; i < base->count; i++) {
        struct frames_tensor *tensor = &base->tensors[i];
        struct frames_frame like = {.frame = {.dtype = tensor->dtype, .raw_bytes = tensor->bytes}};
        const struct frames_frame *key = &like;
        tensor->is_wanted = tensor->dtype != 0 && bsearch(&key, needy, count, sizeof(void *), by_size) != NULL;
    }
}

/* Returns the tensors with digests, by digest; NULL: no memory. */
static struct frames_tensor **digested_tensors(struct frames_source *base, size_t *count)
{
    struct frames_tensor **digested = malloc((base->count + 1) * sizeof(void *));
    *count = 0;
    for (size_t i = 0; digested != NULL && i < base->count; i++)
        if (base->tensors[i].is_wanted)
            digested[(*count)++] = &base->tensors[i];
    if (digested != NULL)
        qsort(digested, *count, sizeof(void *), by_digest);
    return digested;
}

static enum lmcs_status no_base(struct cli *cli, const struct frames_image *image, const struct frames_source *base,
                                const struct frames_frame *frame)
{
    return cli_fail(cli, LMCS_NOT_FOUND, 0,
                    "%s is not the base that %s was compressed against: frame %zu needs a tensor (%s, %s) with the"
                    " digest %016" PRIx64 "%016" PRIx64 ", which it does not have",
                    base->path, frames_shown(image->path), (size_t)(frame - image->frames) + 1,
                    lmc_dtype_name(frame->frame.dtype), cli_bytes(frame->frame.raw_bytes).text,
                    frame->frame.base_digest[0].high, frame->frame.base_digest[0].low);
}

/* Orders tensors like by_size. */
static int tensor_by_size(const void *left, const void *right)
{
    const struct frames_tensor *l = left;
    const struct frames_tensor *r = right;
    return LMCS_ORDER2(l->dtype, r->dtype, l->bytes, r->bytes);
}

enum lmcs_status frames_image_look_at_base(struct cli *cli, struct frames_image *image, const char *path)
{
    struct frames_source base = {.path = path};
    struct frames_frame **needy = needy_frames(image);
    enum lmcs_status status = needy != NULL ? frames_source_look(cli, &base) : LMCS_NO_MEMORY;
    if (needy == NULL)
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_NO_MEMORY || base.memory.bytes == 0)
        goto out;
    status = add_arrays(cli, &base, needy, image->base_count);
    if (status == LMCS_OK && base.count > 0)
        qsort(base.tensors, base.count, sizeof *base.tensors, tensor_by_size);
    for (size_t i = 0; status == LMCS_OK && i < image->count; i++) {
        const struct frames_frame *frame = &image->frames[i];
        const struct frames_tensor like = {.dtype = frame->frame.dtype, .bytes = frame->frame.raw_bytes};
        if (needs_base(&frame->frame) &&
            (base.count == 0 || bsearch(&like, base.tensors, base.count, sizeof like, tensor_by_size) == NULL))
            status = no_base(cli, image, &base, frame);
    }
out:
    free(needy);
    frames_source_free(&base);
    return status;
}

static enum lmcs_status assign(struct cli *cli, struct frames_image *image, const struct frames_source *base,
                               struct frames_tensor *const *digested, size_t count)
{
    for (size_t i = 0; i < image->count; i++) {
        struct frames_frame *frame = &image->frames[i];
        if (!needs_base(&frame->frame))
            continue;
        const struct frames_tensor like = {.digest = frame->frame.base_digest[0]};
        const struct frames_tensor *key = &like;
        struct frames_tensor *const *found = bsearch(&key, digested, count, sizeof(void *), by_digest);
        if (found == NULL || (*found)->bytes != frame->frame.raw_bytes)
            return no_base(cli, image, base, frame);
        frame->base = (*found)->data;
    }
    return LMCS_OK;
}

enum lmcs_status frames_image_match(struct frames_work *work, struct frames_image *image, struct frames_source *base)
{
    struct cli *cli = work->cli;
    size_t count = 0;
    struct frames_tensor **digested = NULL;
    struct frames_frame **needy = needy_frames(image);
    enum lmcs_status status = LMCS_OK;
    if (needy == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    status = add_arrays(cli, base, needy, image->base_count);
    want_some(base, needy, image->base_count);
    free(needy);
    if (status == LMCS_OK)
        status = frames_digests(work, base);
    if (status == LMCS_OK && (digested = digested_tensors(base, &count)) == NULL)
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_OK)
        status = assign(cli, image, base, digested, count);
    free(digested);
    return status;
}

/* ---- Blocks --------------------------------------------------------------------------------------------------- */

struct decoding {
    const struct frames_image *image;
    unsigned char *content;
};

static const struct frames_frame *frame_of(const struct frames_image *image, uint64_t block)
{
    size_t low = 0;
    size_t high = image->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (image->frames[middle].first_block <= block)
            low = middle;
        else
            high = middle;
    }
    return &image->frames[low];
}

static enum lmc_status decode_block(void *context, uint64_t i, uint64_t *bytes, const char **message)
{
    const struct decoding *decoding = context;
    const struct frames_frame *frame = frame_of(decoding->image, i);
    uint64_t index = i - frame->first_block;
    uint64_t at = index * LMC_BLOCK_BYTES;
    uint64_t left = frame->frame.raw_bytes - at;
    uint64_t offset = 0;
    struct lmc_block block = lmc_frame_block(&frame->frame, index, &offset);
    const void *bases[LMC_MAX_BASES] = {frame->base ? frame->base + at : NULL};
    *bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    return lmc_decode_block(&frame->frame, index, decoding->image->memory.data + frame->at + offset, block.coded_bytes,
                            bases, decoding->content + frame->content_at + at, (size_t)*bytes, message);
}

static enum lmcs_status bad_block(const struct frames_work *work, const struct frames_image *image)
{
    char about[512];
    if (work->failed_at == UINT64_MAX)
        return frames_work_error(work, "");
    const struct frames_frame *frame = frame_of(image, work->failed_at);
    snprintf(about, sizeof about, "%.400s: frame %zu, block %" PRIu64, frames_shown(image->path),
             (size_t)(frame - image->frames) + 1, work->failed_at - frame->first_block + 1);
    return frames_work_error(work, about);
}

enum lmcs_status frames_decode(struct frames_work *work, const struct frames_image *image,
                               struct frames_memory *content, struct frames_report *report)
{
    struct decoding decoding = {image, content->data};
    double start = frames_now();
    bool is_done =
        frames_work_run(work, "decompressing", image->content_bytes, decode_block, &decoding, image->block_count);
    report->seconds += frames_now() - start;
    return is_done ? LMCS_OK : bad_block(work, image);
}
