/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cmd_restore.c - lmc-store restore: reads an archive, from a file or a pipe, into a pool.
 *
 * A pool that was not there is created, and removed again when the archive turns out to be no good.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum lmcs_status open_archive(struct cli *cli, const char *path, int *fd)
{
    struct stat info;
    if (strcmp(path, "-") == 0) {
        *fd = STDIN_FILENO;
        if (isatty(STDIN_FILENO))
            return cli_wrong_use(cli, "restore: not reading an archive from a terminal; give a file or a pipe");
        return LMCS_OK;
    }
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (*fd < 0)
        return cli_fail(cli, errno == ENOENT ? LMCS_NOT_FOUND : LMCS_IO, errno, "%s can't be opened", path);
    if (fstat(*fd, &info) == 0 && S_ISDIR(info.st_mode))
        return cli_fail(cli, LMCS_INVALID, 0, "%s is a directory, not an archive", path);
    return LMCS_OK;
}

static void report_done(struct cli *cli, const struct lmcs_transfer_report *report)
{
    if (cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[1]));
        cli_json_set(cli->json, "snapshots", cli_json_u64(report->snapshots));
        cli_json_set(cli->json, "snapshots_skipped", cli_json_u64(report->snapshots_skipped));
        cli_json_set(cli->json, "contents", cli_json_u64(report->contents));
        cli_json_set(cli->json, "bytes", cli_json_u64(report->bytes));
        return;
    }
    fputs("restored into ", stdout);
    cli_print(stdout, cli->options.arguments[1]);
    printf(": %" PRIu64 " snapshot%s, %" PRIu64 " contents", report->snapshots, cli_s(report->snapshots),
           report->contents);
    if (report->snapshots_skipped)
        printf("; %" PRIu64 " snapshot%s there already", report->snapshots_skipped,
               report->snapshots_skipped == 1 ? " was" : "s were");
    putchar('\n');
}

/* A message that does not name the pool is about the archive. */
static void name_archive(struct cli *cli)
{
    const char *archive = cli->options.arguments[0];
    char message[sizeof cli->error.message];
    if (strstr(cli->error.message, cli->options.arguments[1]) != NULL || strcmp(archive, "-") == 0)
        return;
    memcpy(message, cli->error.message, sizeof message);
    snprintf(cli->error.message, sizeof cli->error.message, "%.200s: %.800s", archive, message);
}

static enum lmcs_status restore(struct cli *cli, int fd)
{
    const char *path = cli->options.arguments[1];
    struct lmcs_transfer_report report;
    struct stat info;
    bool is_new = lstat(path, &info) != 0;
    if (!is_new && cli->options.size_bytes)
        fprintf(stderr, "lmc-store: the pool is there already: --size is ignored\n");
    struct lmcs_progress progress = cli_progress_start(cli);
    enum lmcs_status status = cli_open_path(cli, path, is_new ? LMCS_OPEN_CREATE : LMCS_OPEN_OR_CREATE);
    if (status != LMCS_OK)
        return status;
    status = lmcs_restore(cli->pool, fd, &progress, &report, &cli->error);
    if (status != LMCS_OK && status != LMCS_CANCELLED)
        name_archive(cli);
    cli_progress_wipe(&cli->progress);
    status = cli_close(cli, status);
    if (status == LMCS_OK)
        report_done(cli, &report);
    else if (is_new)
        unlink(path);
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    int fd = -1;
    enum lmcs_status status = open_archive(cli, cli->options.arguments[0], &fd);
    if (status == LMCS_OK)
        status = restore(cli, fd);
    if (fd > STDIN_FILENO)
        close(fd);
    return status;
}

const struct cli_command cmd_restore = {
    .name = "restore",
    .synopsis = "ARCHIVE|- POOL [--size 8GiB] [--json]",
    .summary = "Reads an archive into a pool",
    .help =
        "Every checksum is verified before anything is committed; on failure the pool is as it was. POOL is created\n"
        "if it is not there (--size: its limit). Snapshots that a shelf of the pool has already are skipped; a\n"
        "number that stands for something else there is refused.",
    .options = "swfj",
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run,
};
