/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * folder_restore.c - restores the dump of a run into a new folder.
 *
 * The pool of records has the name records.restoring until all is there, so a restore that was cut short has left no
 * run; the same command continues it.
 */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"

struct restore {
    struct cli *cli;
    const char *run;
    size_t dump_count;
    char **names; /* of the ranks' archives, without the end */
    size_t name_count;
    struct lmcs_progress progress;
    struct lmcs_transfer_report report; /* of the records, with the bytes and contents of all */
    char missing[900];
    uint64_t missing_parts;
};

/* ---- Folders --------------------------------------------------------------------------------------------------- */

static enum lmcs_status sync_folder(struct cli *cli, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = fd >= 0 ? fsync(fd) : -1, reason = errno;
    if (fd >= 0)
        close(fd);
    return result == 0 ? LMCS_OK : cli_fail(cli, LMCS_IO, reason, "%s can't be synced", path);
}

enum lmcs_status cli_sync_parent(struct cli *cli, const char *path)
{
    char *copy = strdup(path);
    enum lmcs_status status =
        copy != NULL ? sync_folder(cli, dirname(copy)) : cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    free(copy);
    return status;
}

void cli_missing_add(char *missing, size_t size, const char *file)
{
    size_t length = strlen(missing);
    if (strstr(missing, file) == NULL && length + strlen(file) + 3 < size)
        snprintf(missing + length, size - length, "%s%s", length > 0 ? ", " : "", file);
}

static bool has(const char *folder, const char *name)
{
    struct stat info;
    char *path = cli_folder_path(folder, name);
    bool is_there = path != NULL && lstat(path, &info) == 0;
    free(path);
    return is_there;
}

/* The name without its end, if it is one of a rank. */
static bool rank_name(const char *name, const char *end, char *stem, size_t size)
{
    size_t length = strlen(name), rest = strlen(end);
    if (strncmp(name, "rank-", 5) != 0 || length <= 5 + rest || strcmp(name + length - rest, end) != 0)
        return false;
    return snprintf(stem, size, "%.*s", (int)(length - rest), name) < (int)size;
}

static bool has_name(const struct restore *restore, const char *name)
{
    for (size_t i = 0; i < restore->name_count; i++)
        if (strcmp(restore->names[i], name) == 0)
            return true;
    return false;
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static enum lmcs_status list_dump(struct restore *restore, const char *folder)
{
    struct cli *cli = restore->cli;
    char stem[256];
    size_t before = restore->name_count;
    enum lmcs_status status = LMCS_OK;
    DIR *listing = opendir(folder);
    if (listing == NULL)
        return cli_fail(cli, LMCS_IO, errno, "%s can't be listed", folder);
    for (struct dirent *entry; status == LMCS_OK && (entry = readdir(listing)) != NULL;)
        if (rank_name(entry->d_name, CLI_ARCHIVE, stem, sizeof stem) && !has_name(restore, stem) &&
            !lmcs_add_text(&restore->names, &restore->name_count, stem))
            status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    closedir(listing);
    if (status == LMCS_OK && !has(folder, CLI_RECORDS_ARCHIVE))
        return restore->name_count > before
                   ? cli_fail(cli, LMCS_NOT_FOUND, 0, CLI_NO_DUMP, folder)
                   : cli_wrong_use(cli, "restore: %s is a folder, not an archive or the dump of a run", folder);
    if (restore->name_count > 0)
        qsort(restore->names, restore->name_count, sizeof *restore->names, by_text);
    return status;
}

/* Whether the folder is empty, or a restore of the same ranks has begun it. */
static bool is_free(const struct restore *restore)
{
    char stem[256];
    bool is_ours = !has(restore->run, CLI_RECORDS), is_marked = has(restore->run, CLI_RESTORING);
    DIR *listing = is_ours ? opendir(restore->run) : NULL;
    if (listing == NULL)
        return false;
    for (struct dirent *entry; is_ours && (entry = readdir(listing)) != NULL;) {
        const char *name = entry->d_name;
        bool is_marker = strncmp(name, CLI_RESTORING, strlen(CLI_RESTORING)) == 0; /* or what its creation left */
        bool is_other_rank = rank_name(name, ".pool", stem, sizeof stem) && !has_name(restore, stem);
        is_ours = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || is_marker || (is_marked && !is_other_rank);
    }
    closedir(listing);
    return is_ours;
}

static enum lmcs_status make_run(struct restore *restore)
{
    struct cli *cli = restore->cli;
    if (mkdir(restore->run, 0777) == 0)
        return cli_sync_parent(cli, restore->run);
    if (errno != EEXIST)
        return cli_fail(cli, LMCS_IO, errno, "%s can't be created", restore->run);
    if (is_free(restore))
        return LMCS_OK;
    return cli_fail(cli, LMCS_EXISTS, 0, "%s exists: restore a run into a new folder", restore->run);
}

/* ---- Pools ---------------------------------------------------------------------------------------------------- */

static enum lmcs_status open_pool(struct restore *restore, const char *name, struct lmcs_pool **pool)
{
    struct cli *cli = restore->cli;
    struct lmcs_open_options options;
    char *path = cli_folder_path(restore->run, name);
    if (path == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    lmcs_open_options_init(&options);
    options.wait_ms = cli->options.wait_ms;
    options.flags = LMCS_NO_BACKGROUND | (cli->options.force_network ? LMCS_FORCE_NETWORK : 0u);
    enum lmcs_status status = lmcs_pool_open(path, LMCS_OPEN_OR_CREATE, &options, pool, &cli->error);
    free(path);
    return status;
}

/* Restores the archives of a name of all dumps into a pool. */
static enum lmcs_status restore_pool(struct restore *restore, const char *stem, struct lmcs_pool *pool)
{
    struct cli *cli = restore->cli;
    struct lmcs_transfer_report report = {.snapshots = 0};
    struct lmcs_restore_options options;
    int fds[CLI_MAX_ARGUMENTS];
    size_t count = 0;
    char name[300];
    enum lmcs_status status = LMCS_OK;
    snprintf(name, sizeof name, "%s" CLI_ARCHIVE, stem);
    for (size_t i = 0; status == LMCS_OK && i < restore->dump_count; i++) {
        char *path = has(cli->options.arguments[i], name) ? cli_folder_path(cli->options.arguments[i], name) : NULL;
        if (path != NULL)
            status = cli_archive_open(cli, path, &fds[count++]);
        free(path);
    }
    lmcs_restore_options_init(&options);
    if (status == LMCS_OK)
        status = lmcs_restore_with(pool, fds, count, &options, &restore->progress, &report, &cli->error);
    while (count > 0)
        cli_archive_close(fds[--count]);
    if (status != LMCS_OK && status != LMCS_CANCELLED)
        cli_archive_name(cli, name);
    cli_progress_wipe(&cli->progress);
    if (status == LMCS_OK)
        cli_warn_lines(report.warnings);
    restore->report.snapshots = report.snapshots + report.snapshots_skipped; /* the records are last */
    restore->report.contents += report.contents;
    restore->report.bytes += report.bytes;
    return status;
}

static enum lmcs_status restore_ranks(struct restore *restore)
{
    struct cli *cli = restore->cli;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < restore->name_count; i++) {
        struct lmcs_pool *pool = NULL;
        struct lmcs_error error;
        char name[300];
        snprintf(name, sizeof name, "%s.pool", restore->names[i]);
        status = open_pool(restore, name, &pool);
        if (status == LMCS_OK)
            status = restore_pool(restore, restore->names[i], pool);
        if (pool != NULL && lmcs_pool_close(pool, &error) != LMCS_OK && status == LMCS_OK) {
            cli->error = error;
            status = error.status;
        }
    }
    return status;
}

/* ---- The records ---------------------------------------------------------------------------------------------- */

static enum lmcs_status check_record(struct restore *restore, const char *shelf, uint64_t number)
{
    struct cli *cli = restore->cli;
    struct cli_record record = {.parts = NULL};
    enum lmcs_status status = cli_record_at(cli, shelf, number, &record);
    for (size_t i = 0; status == LMCS_OK && i < record.part_count; i++) {
        struct lmcs_pool *pool = NULL;
        struct lmcs_snapshot *part = NULL;
        status = cli_part_open(cli, &record, &record.parts[i], &pool, &part);
        lmcs_snapshot_close(part);
        if (status != LMCS_NOT_FOUND)
            continue;
        cli_missing_add(restore->missing, sizeof restore->missing, record.parts[i].file);
        restore->missing_parts++;
        status = LMCS_OK;
    }
    cli_record_free(&record);
    return status;
}

/* Seeks the parts of all records. */
static enum lmcs_status check_parts(struct restore *restore)
{
    enum { SOME = 256 };
    struct cli *cli = restore->cli;
    struct cli_shelves shelves = {.count = 0};
    enum lmcs_status status = cli_shelves(cli, &shelves);
    for (size_t i = 0; status == LMCS_OK && i < shelves.count; i++) {
        uint64_t numbers[SOME], from = 0;
        const char *shelf = shelves.infos[i].name;
        for (size_t got = SOME; status == LMCS_OK && got == SOME; from = got > 0 ? numbers[got - 1] + 1 : 0) {
            status = lmcs_snapshot_numbers(cli->pool, shelf, from, numbers, SOME, &got, &cli->error);
            for (size_t j = 0; status == LMCS_OK && j < got; j++)
                status = check_record(restore, shelf, numbers[j]);
        }
    }
    free(shelves.infos);
    if (status != LMCS_OK || restore->missing_parts == 0)
        return status;
    if (!cli->options.allow_missing)
        return cli_fail(cli, LMCS_NOT_FOUND, 0, CLI_MISSING, cli->options.arguments[0], restore->missing_parts,
                        restore->missing);
    fprintf(stderr, "lmc-store: %" PRIu64 " parts are missing: %s\n", restore->missing_parts, restore->missing);
    return LMCS_OK;
}

/* Gives the pool of records, which is closed, its name. */
static enum lmcs_status show(struct restore *restore)
{
    struct cli *cli = restore->cli;
    char *from = cli_folder_path(restore->run, CLI_RESTORING), *to = cli_folder_path(restore->run, CLI_RECORDS);
    enum lmcs_status status = LMCS_OK;
    if (from == NULL || to == NULL)
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    else if (has(restore->run, CLI_RECORDS))
        status = cli_fail(cli, LMCS_EXISTS, 0, "%s was created meanwhile", to);
    else if (rename(from, to) != 0)
        status = cli_fail(cli, LMCS_IO, errno, "%s can't be renamed to %s", from, CLI_RECORDS);
    free(from);
    free(to);
    return status == LMCS_OK ? sync_folder(cli, restore->run) : status;
}

static void report_done(const struct restore *restore)
{
    struct cli *cli = restore->cli;
    if (cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(restore->run));
        cli_json_set(cli->json, "snapshots", cli_json_u64(restore->report.snapshots));
        cli_json_set(cli->json, "pools", cli_json_u64(restore->name_count + 1));
        cli_json_set(cli->json, "contents", cli_json_u64(restore->report.contents));
        cli_json_set(cli->json, "bytes", cli_json_u64(restore->report.bytes));
        cli_json_set(cli->json, "missing_parts", cli_json_u64(restore->missing_parts));
        return;
    }
    fputs("restored into the new run ", stdout);
    cli_print(stdout, restore->run);
    printf(": %" PRIu64 " snapshot%s in %zu pools, %" PRIu64 " contents\n", restore->report.snapshots,
           cli_s(restore->report.snapshots), restore->name_count + 1, restore->report.contents);
}

static enum lmcs_status check_options(struct cli *cli)
{
    const struct cli_options *options = &cli->options;
    if (options->size_bytes != 0 || options->only.count > 0 || options->as != NULL || options->move_tags ||
        options->resume)
        return cli_wrong_use(cli, "restore: --size, --only, --as, --move-tags and --resume are for a pool, not a run");
    return LMCS_OK;
}

enum lmcs_status cli_folder_restore(struct cli *cli)
{
    struct restore restore = {.cli = cli, .dump_count = cli->options.argument_count - 1};
    enum lmcs_status status = check_options(cli);
    restore.run = cli->options.arguments[restore.dump_count];
    for (size_t i = 0; status == LMCS_OK && i < restore.dump_count; i++)
        status = list_dump(&restore, cli->options.arguments[i]);
    if (status == LMCS_OK)
        status = make_run(&restore);
    if (status == LMCS_OK)
        status = open_pool(&restore, CLI_RESTORING, &cli->pool);
    if (status == LMCS_OK) {
        restore.progress = cli_progress_start(cli);
        cli->progress.is_bytes = true;
        status = restore_ranks(&restore);
    }
    if (status == LMCS_OK)
        status = restore_pool(&restore, "records", cli->pool);
    if (status == LMCS_OK)
        status = cli_folder_list(cli, restore.run);
    if (status == LMCS_OK)
        status = check_parts(&restore);
    status = cli_close(cli, status);
    if (status == LMCS_OK)
        status = show(&restore);
    if (status == LMCS_OK)
        report_done(&restore);
    while (restore.name_count > 0)
        free(restore.names[--restore.name_count]);
    free(restore.names);
    return status;
}
