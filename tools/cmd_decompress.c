/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_decompress.c - lmc-store decompress: restores the file from a file of frames. */
#include "frames.h"

#include <inttypes.h>

struct decompression {
    struct cli *cli;
    struct frames_work work;
    struct frames_image image;
    struct frames_source base;
    struct frames_memory content;
    struct frames_report report;
};

static enum lmcs_status parse(struct decompression *d)
{
    double start = frames_now();
    enum lmcs_status status = frames_image_parse(d->cli, &d->image);
    d->report.seconds += frames_now() - start;
    return status;
}

/* Finds bases among the tensors of a safetensors file, or in another file as one array. */
static enum lmcs_status find_bases(struct decompression *d)
{
    if (d->image.base_count == 0)
        return LMCS_OK;
    if (d->base.path == NULL)
        return cli_wrong_use(d->cli,
                             "%s: %zu of its %zu frames need the file that it was compressed against; use --base",
                             frames_shown(d->image.path), d->image.base_count, d->image.count);
    enum lmcs_status status = frames_image_look_at_base(d->cli, &d->image, d->base.path);
    if (status == LMCS_OK)
        status = frames_read(d->cli, d->base.path, NULL, &d->base.memory);
    if (status != LMCS_OK)
        return status;
    double start = frames_now();
    status = frames_source_parse(d->cli, &d->base);
    if (status != LMCS_NO_MEMORY)
        status = frames_image_match(&d->work, &d->image, &d->base);
    d->report.base_seconds = frames_now() - start;
    return status;
}

static enum lmcs_status decode(struct decompression *d)
{
    enum lmcs_status status = frames_memory_new(d->cli, "the result", d->image.content_bytes, &d->content);
    if (status == LMCS_OK && !frames_work_touch(&d->work, &d->content))
        status = frames_work_error(&d->work, "");
    if (status == LMCS_OK)
        status = frames_decode(&d->work, &d->image, &d->content, &d->report);
    d->report.raw_bytes = d->image.content_bytes;
    d->report.stored_bytes = d->image.memory.bytes;
    d->report.frame_count = d->image.count;
    d->report.delta_count = d->image.base_count;
    d->report.threads = lmcs_workers_count(d->work.workers);
    return status;
}

static enum lmcs_status decompress(struct decompression *d, struct lmcs_outfile *output)
{
    enum lmcs_status status = frames_image_look(d->cli, d->image.path);
    if (status == LMCS_OK)
        status = frames_work_init(d->cli, &d->work);
    if (status == LMCS_OK)
        status = frames_read(d->cli, d->image.path, frames_image_begins, &d->image.memory);
    if (status == LMCS_OK)
        status = parse(d);
    if (status == LMCS_OK)
        status = find_bases(d);
    if (status == LMCS_OK)
        status = decode(d);
    if (status == LMCS_OK)
        status = frames_write(d->cli, &d->work.progress, output, d->content.data, d->content.bytes);
    if (status == LMCS_OK)
        status = lmcs_outfile_commit(output, &d->cli->error);
    cli_progress_wipe(&d->cli->progress);
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    struct lmcs_outfile output = {.fd = -1};
    struct decompression d = {.cli = cli, .image.path = cli->options.arguments[0], .base.path = cli->options.base};
    enum lmcs_status status = frames_check(cli, "a file");
    if (status == LMCS_OK)
        status = cli_output_open(cli, &output);
    if (status == LMCS_OK)
        status = decompress(&d, &output);
    if (status == LMCS_OK && cli->options.json)
        cli->json = frames_report_json(cli, &d.report);
    else if (status == LMCS_OK && !cli_output_is_stdout(cli))
        frames_report_print(cli, &d.report, "frame", d.report.frame_count, d.report.stored_bytes, d.report.raw_bytes);
    lmcs_outfile_close(&output);
    frames_work_free(&d.work);
    frames_image_free(&d.image);
    frames_source_free(&d.base);
    frames_memory_free(&d.content);
    return status;
}

const struct cli_command cmd_decompress = {
    .name = "decompress",
    .synopsis = "FILE -o OUT [--base B] [--json]",
    .summary = "Restores a compressed file",
    .help =
        "FILE is an output of 'lmc-store compress'; -: standard input. Every checksum is verified. If it was\n"
        "compressed with --base, the same base is needed again, under any name. OUT has mode 0600 and appears whole\n"
        "or not at all; -: standard output.",
    .options = "output force base threads json",
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
