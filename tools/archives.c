/* SPDX-License-Identifier: BSD-3-Clause */
/* archives.c - opens, lists and verifies archives without a pool. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum lmcs_status cli_archive_open(struct cli *cli, const char *path, int *fd)
{
    struct stat info;
    if (strcmp(path, "-") == 0) {
        *fd = STDIN_FILENO;
        if (isatty(STDIN_FILENO) != 0)
            return cli_wrong_use(cli, "%s: refuses to read an archive from a terminal; use a file or a pipe",
                                 cli->command->name);
        return LMCS_OK;
    }
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (*fd < 0)
        return cli_fail(cli, errno == ENOENT ? LMCS_NOT_FOUND : LMCS_IO, errno, "%s can't be opened", path);
    if (fstat(*fd, &info) == 0 && S_ISDIR(info.st_mode))
        return cli_fail(cli, LMCS_INVALID, 0, "%s is a directory, not an archive", path);
    return LMCS_OK;
}

void cli_archive_close(int fd)
{
    if (fd > STDIN_FILENO)
        close(fd);
}

bool cli_is_archive(const char *path)
{
    char magic[8];
    struct stat info;
    if (strcmp(path, "-") == 0)
        return true;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool is_archive = fd >= 0 && read(fd, magic, sizeof magic) == sizeof magic && memcmp(magic, "LMCSARCH", 8) == 0;
    if (fd >= 0)
        close(fd);
    return is_archive;
}

void cli_archive_name(struct cli *cli, const char *path)
{
    char message[sizeof cli->error.message];
    if (strcmp(path, "-") == 0)
        return;
    memcpy(message, cli->error.message, sizeof message);
    snprintf(cli->error.message, sizeof cli->error.message, "%.200s: %.800s", path, message);
}

static json_t *id_json(struct lmc_hash id)
{
    char text[33];
    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, id.high, id.low);
    return json_string(text);
}

static void info_json(json_t *json, const struct lmcs_archive_info *info)
{
    json_t *since = json_array();
    for (size_t i = 0; i < info->since_count && i < LMCS_MAX_SINCE; i++)
        json_array_append_new(since, id_json(info->since[i]));
    cli_json_set(json, "id", id_json(info->id));
    cli_json_set(json, "since", since);
    cli_json_set(json, "bytes", cli_json_u64(info->bytes));
    cli_json_set(json, "contents", cli_json_u64(info->contents));
    cli_json_set(json, "known_contents", cli_json_u64(info->known_contents));
}

static void print_info(const struct lmcs_archive_info *info)
{
    printf("archive %016" PRIx64 "%016" PRIx64 ": %" PRIu64 " snapshot%s, %" PRIu64 " contents, %s\n", info->id.high,
           info->id.low, info->snapshots, cli_s(info->snapshots), info->contents - info->known_contents,
           cli_bytes(info->bytes).text);
    for (size_t i = 0; i < info->since_count && i < LMCS_MAX_SINCE; i++)
        printf("made since %016" PRIx64 "%016" PRIx64 "\n", info->since[i].high, info->since[i].low);
}

/* ---- ls ------------------------------------------------------------------------------------------------------- */

struct listing {
    const struct cli_options *options;
    const char *shelf; /* NULL: all */
    char last[LMCS_MAX_NAME + 1];
    json_t *rows;
    uint64_t shown;
};

static void print_row(struct listing *listing, const struct lmcs_archived *snapshot)
{
    if (strcmp(listing->last, snapshot->shelf) != 0) {
        snprintf(listing->last, sizeof listing->last, "%s", snapshot->shelf);
        cli_print(stdout, snapshot->shelf);
        printf("\n  NUMBER       STEP  TIME                         RAW        NEW  CONTENTS  TAGS  METRICS\n");
    }
    printf("%8" PRIu64 " %10s  %s  %10s %10s %9" PRIu64 "  ", snapshot->number, cli_step(snapshot->step).text,
           cli_time(snapshot->time_ns).text, cli_bytes(snapshot->raw_bytes).text, cli_bytes(snapshot->new_bytes).text,
           snapshot->new_contents);
    for (size_t i = 0; i < snapshot->tag_count; i++) {
        fputs(i != 0 ? "," : "", stdout);
        cli_print(stdout, snapshot->tags[i]);
    }
    fputs(snapshot->tag_count != 0 ? "  " : "-  ", stdout);
    for (size_t i = 0; i < snapshot->metric_count; i++) {
        fputs(i != 0 ? "," : "", stdout);
        cli_print(stdout, snapshot->metrics[i].name);
        printf("=%.6g", snapshot->metrics[i].value);
    }
    puts(snapshot->metric_count != 0 ? "" : "-");
}

static json_t *row_json(const struct lmcs_archived *snapshot)
{
    json_t *row = json_object(), *tags = json_array(), *metrics = json_object();
    for (size_t i = 0; i < snapshot->tag_count; i++)
        json_array_append_new(tags, cli_json_text(snapshot->tags[i]));
    for (size_t i = 0; i < snapshot->metric_count; i++)
        cli_json_set(metrics, snapshot->metrics[i].name, cli_json_real(snapshot->metrics[i].value));
    cli_json_set(row, "shelf", cli_json_text(snapshot->shelf));
    cli_json_set(row, "number", cli_json_u64(snapshot->number));
    cli_json_set(row, "step", snapshot->step == LMCS_NO_STEP ? NULL : json_integer(snapshot->step));
    cli_json_set(row, "time_ns", cli_json_u64(snapshot->time_ns));
    cli_json_set(row, "parent", snapshot->parent != 0 ? cli_json_u64(snapshot->parent) : NULL);
    cli_json_set(row, "tensor_count", cli_json_u64(snapshot->tensor_count));
    cli_json_set(row, "raw_bytes", cli_json_u64(snapshot->raw_bytes));
    cli_json_set(row, "new_contents", cli_json_u64(snapshot->new_contents));
    cli_json_set(row, "new_bytes", cli_json_u64(snapshot->new_bytes));
    cli_json_set(row, "tags", tags);
    cli_json_set(row, "metrics", metrics);
    return row;
}

static bool add_row(void *context, const struct lmcs_archived *snapshot)
{
    struct listing *listing = context;
    if (listing->shelf != NULL && strcmp(listing->shelf, snapshot->shelf) != 0)
        return true;
    if (listing->options->json)
        json_array_append_new(listing->rows, row_json(snapshot));
    else
        print_row(listing, snapshot);
    listing->shown++;
    return ferror(stdout) == 0;
}

enum lmcs_status cli_archive_ls(struct cli *cli)
{
    struct listing listing = {.options = &cli->options, .shelf = cli->options.arguments[1], .rows = json_array()};
    struct lmcs_archive_info info;
    const char *path = cli->options.arguments[0];
    int fd = -1;
    if (listing.shelf != NULL && strchr(listing.shelf, '@') != NULL) {
        json_decref(listing.rows);
        return cli_wrong_use(cli, "ls: an archive can list the snapshots of a shelf, not the tensors of '%s'",
                             listing.shelf);
    }
    enum lmcs_status status = cli_archive_open(cli, path, &fd);
    struct lmcs_progress progress = cli_progress_start(cli);
    if (status == LMCS_OK) {
        status = lmcs_archive_list(fd, add_row, &listing, &progress, &info, &cli->error);
        cli_progress_wipe(&cli->progress);
        if (status != LMCS_OK)
            cli_archive_name(cli, path);
    }
    if (status == LMCS_OK && listing.shelf != NULL && listing.shown == 0)
        status =
            cli_fail(cli, LMCS_NOT_FOUND, 0, "%s: the archive has no snapshot of a shelf \"%s\"", path, listing.shelf);
    if (status == LMCS_OK && cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "archive", cli_json_text(path));
        info_json(cli->json, &info);
        cli_json_set(cli->json, "snapshots", json_incref(listing.rows));
    } else if (status == LMCS_OK) {
        print_info(&info);
    }
    json_decref(listing.rows);
    cli_archive_close(fd);
    return status;
}

/* ---- verify --------------------------------------------------------------------------------------------------- */

enum lmcs_status cli_archive_verify(struct cli *cli)
{
    struct lmcs_archive_info info;
    const char *path = cli->options.arguments[0];
    int fd = -1;
    if (cli->options.arguments[1] != NULL)
        return cli_wrong_use(cli, "verify: an archive is verified as a whole");
    enum lmcs_status status = cli_archive_open(cli, path, &fd);
    struct lmcs_progress progress = cli_progress_start(cli);
    if (status == LMCS_OK) {
        status = lmcs_archive_verify(fd, &progress, &info, &cli->error);
        cli_progress_wipe(&cli->progress);
        if (status != LMCS_OK)
            cli_archive_name(cli, path);
    }
    if (status == LMCS_OK && cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "archive", cli_json_text(path));
        cli_json_set(cli->json, "ok", json_true());
        info_json(cli->json, &info);
        cli_json_set(cli->json, "decoded_contents", cli_json_u64(info.decoded_contents));
    } else if (status == LMCS_OK) {
        print_info(&info);
        printf("no damage: %" PRIu64 " of %" PRIu64 " contents decoded%s\n", info.decoded_contents,
               info.contents - info.known_contents,
               info.decoded_contents == info.contents - info.known_contents ? ""
               : info.since_count > 0 ? "; the others depend on older archives, or came through a pipe"
                                      : "; through a pipe only the records are checked");
    }
    cli_archive_close(fd);
    return status;
}
