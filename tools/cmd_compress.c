/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_compress.c - lmc-store compress: encodes a file of tensors as a file of frames (codec/FORMAT.md, 9). */
#include "frames.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A frame takes 104 bytes, so smaller tensors join their neighbours in a frame of bytes. */
#define LEAST_FRAME_BYTES 512

struct compression {
    struct cli *cli;
    struct frames_work work;
    struct frames_source file;
    struct frames_source base;
    struct frames_plan plan;
    struct frames_memory image;
    struct frames_report report;
};

static enum lmcs_status with_advice(struct cli *cli, enum lmcs_status status, const char *advice)
{
    size_t length = strlen(cli->error.message);
    if (status == LMCS_DAMAGED)
        snprintf(cli->error.message + length, sizeof cli->error.message - length, "; %s", advice);
    return status;
}

/* ---- Pieces for frames ----------------------------------------------------------------------------------------- */

static enum lmcs_status add_piece(struct compression *c, const struct frames_tensor *tensor)
{
    struct frames_plan *plan = &c->plan;
    if (plan->count == plan->capacity) {
        size_t capacity = plan->capacity != 0 ? 2 * plan->capacity : 64;
        struct frames_piece *pieces = realloc(plan->pieces, capacity * sizeof *pieces);
        if (pieces == NULL)
            return cli_fail(c->cli, LMCS_NO_MEMORY, 0, "out of memory");
        plan->pieces = pieces;
        plan->capacity = capacity;
    }
    plan->pieces[plan->count++] = (struct frames_piece){.data = tensor->data,
                                                        .bytes = tensor->bytes,
                                                        .dtype = tensor->dtype != 0 ? tensor->dtype : LMC_U8,
                                                        .base = tensor->bytes != 0 ? tensor->base : NULL};
    return LMCS_OK;
}

static enum lmcs_status add_bytes(struct compression *c, uint64_t from, uint64_t to)
{
    struct frames_tensor bytes = {.data = c->file.memory.data + from, .bytes = to - from, .dtype = LMC_U8};
    return from == to ? LMCS_OK : add_piece(c, &bytes);
}

/* Cuts a safetensors file into pieces. Its tensors have no gaps, so neighbours are adjacent. */
static enum lmcs_status cut_tensors(struct compression *c)
{
    const struct frames_source *file = &c->file;
    uint64_t small_from = 0;
    uint64_t at = file->header.data_at;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < file->count; i++) {
        const struct frames_tensor *tensor = &file->tensors[i];
        if (tensor->bytes >= LEAST_FRAME_BYTES) {
            status = add_bytes(c, small_from, at);
            if (status == LMCS_OK)
                status = add_piece(c, tensor);
            small_from = at + tensor->bytes;
        }
        at += tensor->bytes;
    }
    return status == LMCS_OK ? add_bytes(c, small_from, at) : status;
}

/* Cuts a file that is one array. Bytes after the last whole element become a frame of bytes. */
static enum lmcs_status cut_array(struct compression *c)
{
    const struct frames_tensor *array = &c->file.tensors[0];
    enum lmcs_status status = array->bytes != 0 || c->file.memory.bytes == 0 ? add_piece(c, array) : LMCS_OK;
    return status == LMCS_OK ? add_bytes(c, array->bytes, c->file.memory.bytes) : status;
}

/* ---- Files ---------------------------------------------------------------------------------------------------- */

static frames_begins beginning(const struct compression *c)
{
    return c->cli->options.dtype != 0 ? NULL : frames_source_begins;
}

static enum lmcs_status look(struct compression *c, const char *path, const char *advice)
{
    struct frames_source source = {.path = path};
    if (c->cli->options.dtype != 0 || path == NULL)
        return LMCS_OK;
    enum lmcs_status status = with_advice(c->cli, frames_source_look(c->cli, &source), advice);
    frames_source_free(&source);
    return status;
}

static enum lmcs_status parse_file(struct compression *c)
{
    uint32_t dtype = c->cli->options.dtype;
    double start = frames_now();
    enum lmcs_status status =
        dtype != 0 ? frames_source_add_array(c->cli, &c->file, dtype)
                   : with_advice(c->cli, frames_source_parse(c->cli, &c->file), "use --dtype for a raw array");
    c->report.seconds += frames_now() - start;
    c->report.tensor_count = c->file.count;
    return status;
}

static enum lmcs_status check_base_size(struct compression *c, uint64_t bytes)
{
    if (bytes == c->file.memory.bytes)
        return LMCS_OK;
    return cli_fail(c->cli, LMCS_INVALID, 0,
                    "%s has %" PRIu64 " bytes and %s has %zu; the base of a raw array must have the same size",
                    frames_shown(c->base.path), bytes, frames_shown(c->file.path), c->file.memory.bytes);
}

static enum lmcs_status match_array(struct compression *c)
{
    enum lmcs_status status = check_base_size(c, c->base.memory.bytes);
    if (status != LMCS_OK)
        return status;
    status = frames_source_add_array(c->cli, &c->base, c->cli->options.dtype);
    if (status != LMCS_OK)
        return status;
    c->base.tensors[0].is_wanted = true;
    c->file.tensors[0].base = &c->base.tensors[0];
    return LMCS_OK;
}

static enum lmcs_status match_tensors(struct compression *c)
{
    enum lmcs_status status =
        with_advice(c->cli, frames_source_parse(c->cli, &c->base), "the base of a safetensors file must be one, too");
    return status == LMCS_OK ? frames_source_match(c->cli, &c->file, &c->base, LEAST_FRAME_BYTES) : status;
}

static enum lmcs_status prepare_base(struct compression *c)
{
    if (c->base.path == NULL)
        return LMCS_OK;
    uint64_t bytes = frames_file_bytes(c->base.path);
    enum lmcs_status status = c->cli->options.dtype != 0 && bytes != 0 ? check_base_size(c, bytes) : LMCS_OK;
    if (status == LMCS_OK)
        status = frames_read(c->cli, c->base.path, beginning(c), &c->base.memory);
    if (status != LMCS_OK)
        return status;
    double start = frames_now();
    status = c->cli->options.dtype != 0 ? match_array(c) : match_tensors(c);
    if (status == LMCS_OK)
        status = frames_digests(&c->work, &c->base);
    c->report.base_seconds = frames_now() - start;
    return status;
}

/* ---- The command ---------------------------------------------------------------------------------------------- */

static enum lmcs_status encode(struct compression *c)
{
    double start = frames_now();
    enum lmcs_status status = c->cli->options.dtype != 0 ? cut_array(c) : cut_tensors(c);
    c->report.seconds += frames_now() - start;
    if (status == LMCS_OK)
        status = frames_memory_new(c->cli, "the result", frames_image_bound(&c->plan), &c->image);
    if (status == LMCS_OK && !frames_work_touch(&c->work, &c->image))
        status = frames_work_error(&c->work, "");
    if (status == LMCS_OK)
        status = frames_encode(&c->work, &c->plan, &c->image, &c->report);
    c->report.raw_bytes = c->file.memory.bytes;
    c->report.stored_bytes = c->image.bytes;
    c->report.frame_count = c->plan.count;
    c->report.threads = c->work.workers != NULL ? lmcs_workers_count(c->work.workers) : 0;
    return status;
}

static void report_done(struct compression *c)
{
    struct cli *cli = c->cli;
    size_t matched = 0;
    for (size_t i = 0; i < c->file.count; i++)
        matched += c->file.tensors[i].base != NULL;
    if (cli->options.json) {
        cli->json = frames_report_json(cli, &c->report);
        cli_json_set(cli->json, "level", json_string(c->plan.level == LMC_LEVEL_DENSE ? "dense" : "default"));
        cli_json_set(cli->json, "tensors", cli_json_u64(c->report.tensor_count));
        cli_json_set(cli->json, "tensors_in_base", cli_json_u64(matched));
    } else if (!cli_output_is_stdout(cli)) {
        frames_report_print(cli, &c->report, "tensor", c->report.tensor_count, c->report.raw_bytes,
                            c->report.stored_bytes);
    }
}

static enum lmcs_status compress(struct compression *c, struct lmcs_outfile *output)
{
    enum lmcs_status status = look(c, c->file.path, "use --dtype for a raw array");
    if (status == LMCS_OK)
        status = look(c, c->base.path, "the base of a safetensors file must be one, too");
    if (status == LMCS_OK)
        status = frames_check_memory(c->cli);
    if (status == LMCS_OK)
        status = frames_work_init(c->cli, &c->work);
    if (status == LMCS_OK)
        status = frames_read(c->cli, c->file.path, beginning(c), &c->file.memory);
    if (status == LMCS_OK)
        status = parse_file(c);
    if (status == LMCS_OK)
        status = prepare_base(c);
    if (status == LMCS_OK)
        status = encode(c);
    if (status == LMCS_OK)
        status = frames_write(c->cli, &c->work.progress, output, c->image.data, c->image.bytes);
    if (status == LMCS_OK)
        status = lmcs_outfile_commit(output, &c->cli->error);
    cli_progress_wipe(&c->cli->progress);
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    struct lmcs_outfile output = {.fd = -1};
    struct compression c = {.cli = cli, .plan.level = cli->options.level};
    c.file.path = cli->options.arguments[0];
    c.base.path = cli->options.base;
    enum lmcs_status status = frames_check(cli, "a file of frames");
    if (status == LMCS_OK)
        status = cli_output_open(cli, &output);
    if (status == LMCS_OK)
        status = compress(&c, &output);
    if (status == LMCS_OK)
        report_done(&c);
    lmcs_outfile_close(&output);
    frames_work_free(&c.work);
    frames_source_free(&c.file);
    frames_source_free(&c.base);
    frames_memory_free(&c.image);
    free(c.plan.pieces);
    return status;
}

const struct cli_command cmd_compress = {
    .name = "compress",
    .synopsis = "FILE -o OUT [--base B] [--dtype D] [--level L] [--json]",
    .summary = "Compresses a safetensors file, or a raw array",
    .help =
        "Lossless: 'lmc-store decompress' restores the identical file. FILE is a safetensors file, or with --dtype a\n"
        "raw little-endian array of that dtype. -: standard input.\n\n"
        "With --base, differences to another file are stored where they are smaller: to a safetensors file, by\n"
        "tensors of the same name, dtype and shape, or to a raw array of the same size. Decompressing needs the base\n"
        "again. OUT has mode 0600 and appears whole or not at all; -: standard output. It does not depend on the\n"
        "number of threads. Both files and the result are held in memory. GB/s are 10^9 bytes of FILE per second,\n"
        "from memory to memory, including checksums, excluding the digests of the base.",
    .options = "output force base dtype level threads json",
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
