/* SPDX-License-Identifier: BSD-3-Clause */
/* folder.c - the folder of a run: finds and opens its pools. */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/grow.h"

struct file {
    char *name;
    struct lmcs_pool *pool; /* NULL: not open */
    unsigned char uuid[16];
    struct lmcs_error error; /* of its open */
};

struct cli_folder {
    char *path;
    struct file *files; /* by name */
    size_t count;
    size_t capacity;
};

static bool is_rank_file(const char *name)
{
    size_t length = strlen(name);
    return strncmp(name, "rank-", 5) == 0 && length > 10 && strcmp(name + length - 5, ".pool") == 0;
}

char *cli_folder_path(const char *folder, const char *name)
{
    size_t length = strlen(folder);
    char *path = malloc(length + strlen(name) + 2);
    if (path != NULL)
        sprintf(path, "%s%s%s", folder, length > 0 && folder[length - 1] == '/' ? "" : "/", name);
    return path;
}

static bool has(const char *path, const char *name)
{
    struct stat info;
    char *records = cli_folder_path(path, name);
    bool has = records != NULL && lstat(records, &info) == 0;
    free(records);
    return has;
}

bool cli_is_folder(const char *path)
{
    struct stat info;
    bool is_folder = false;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return false;
    if (has(path, CLI_RECORDS) || has(path, CLI_RESTORING))
        return true;
    DIR *listing = opendir(path);
    for (struct dirent *entry; listing != NULL && !is_folder && (entry = readdir(listing)) != NULL;)
        is_folder = is_rank_file(entry->d_name);
    if (listing != NULL)
        closedir(listing);
    return is_folder;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct file *)left)->name, ((const struct file *)right)->name);
}

static enum lmcs_status list_files(struct cli *cli, struct cli_folder *folder)
{
    enum lmcs_status status = LMCS_OK;
    DIR *listing = opendir(folder->path);
    if (listing == NULL)
        return cli_fail(cli, LMCS_IO, errno, "%s can't be listed", folder->path);
    for (struct dirent *entry; status == LMCS_OK && (entry = readdir(listing)) != NULL;) {
        if (!is_rank_file(entry->d_name))
            continue;
        char *name = strdup(entry->d_name);
        if (name == NULL || !lmcs_grow(&folder->files, &folder->capacity, folder->count, sizeof *folder->files)) {
            free(name);
            status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
        } else {
            folder->files[folder->count++] = (struct file){.name = name};
        }
    }
    closedir(listing);
    if (folder->count > 0)
        qsort(folder->files, folder->count, sizeof *folder->files, by_name);
    return status;
}

static enum lmcs_status open_in(struct cli *cli, const char *folder, const char *name, enum lmcs_open_mode mode,
                                uint32_t wait_ms, struct lmcs_pool **pool)
{
    struct lmcs_open_options options;
    char *path = cli_folder_path(folder, name);
    if (path == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    lmcs_open_options_init(&options);
    options.wait_ms = wait_ms;
    options.flags = LMCS_NO_BACKGROUND | (cli->options.force_network ? LMCS_FORCE_NETWORK : 0u);
    enum lmcs_status status = lmcs_pool_open(path, mode, &options, pool, &cli->error);
    free(path);
    return status;
}

enum lmcs_status cli_folder_list(struct cli *cli, const char *path)
{
    cli->folder = calloc(1, sizeof *cli->folder);
    if (cli->folder != NULL)
        cli->folder->path = strdup(path);
    if (cli->folder == NULL || cli->folder->path == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    return list_files(cli, cli->folder);
}

enum lmcs_status cli_folder_open(struct cli *cli, const char *path, enum lmcs_open_mode mode)
{
    if (!has(path, CLI_RECORDS) && has(path, CLI_RESTORING))
        return cli_fail(cli, LMCS_NOT_FOUND, 0,
                        "%s is not whole: the restore of the run did not end. Repeat the command", path);
    if (!has(path, CLI_RECORDS))
        return cli_fail(cli, LMCS_NOT_FOUND, 0,
                        "%s has pools of ranks, but lacks the records of the run: copy %s into it", path, CLI_RECORDS);
    enum lmcs_status status = cli_folder_list(cli, path);
    return status == LMCS_OK ? open_in(cli, path, CLI_RECORDS, mode, cli->options.wait_ms, &cli->pool) : status;
}

void cli_folder_close(struct cli_folder *folder)
{
    if (folder == NULL)
        return;
    for (size_t i = 0; i < folder->count; i++) {
        if (folder->files[i].pool != NULL)
            (void)lmcs_pool_close(folder->files[i].pool, NULL); /* nothing was written */
        free(folder->files[i].name);
    }
    free(folder->files);
    free(folder->path);
    free(folder);
}

const char *cli_folder_file(const struct cli_folder *folder, size_t i)
{
    return i < folder->count ? folder->files[i].name : NULL;
}

enum lmcs_status cli_folder_pool(struct cli *cli, size_t i, struct lmcs_pool **pool)
{
    struct file *file = &cli->folder->files[i];
    struct lmcs_pool_info info;
    *pool = file->pool;
    if (file->pool != NULL)
        return LMCS_OK;
    if (file->error.status != LMCS_OK) {
        cli->error = file->error;
        return file->error.status;
    }
    enum lmcs_status status = open_in(cli, cli->folder->path, file->name, LMCS_OPEN_READ, UINT32_MAX, pool);
    if (status == LMCS_OK)
        status = lmcs_pool_info(*pool, &info, &cli->error);
    if (status == LMCS_OK) {
        file->pool = *pool;
        memcpy(file->uuid, info.uuid, sizeof file->uuid);
        return LMCS_OK;
    }
    file->error = cli->error;
    if (*pool != NULL)
        (void)lmcs_pool_close(*pool, NULL);
    *pool = NULL;
    return status;
}

enum lmcs_status cli_folder_writable(struct cli *cli, size_t i, struct lmcs_pool **pool)
{
    struct file *file = &cli->folder->files[i];
    if (file->pool != NULL)
        (void)lmcs_pool_close(file->pool, NULL);
    file->pool = NULL;
    return open_in(cli, cli->folder->path, file->name, LMCS_OPEN_WRITE, 0, pool);
}

enum lmcs_status cli_writers_open(struct cli *cli, struct cli_writers *writers)
{
    *writers = (struct cli_writers){.count = cli->folder->count};
    writers->pools = calloc(writers->count + 1, sizeof(struct lmcs_pool *));
    if (writers->pools == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < writers->count; i++)
        status = cli_folder_writable(cli, i, &writers->pools[i]);
    return status;
}

enum lmcs_status cli_writers_close(struct cli *cli, struct cli_writers *writers, enum lmcs_status status)
{
    for (size_t i = 0; writers->pools != NULL && i < writers->count; i++) {
        struct lmcs_error error;
        if (writers->pools[i] != NULL && lmcs_pool_close(writers->pools[i], &error) != LMCS_OK && status == LMCS_OK) {
            cli->error = error;
            status = error.status;
        }
    }
    free(writers->pools);
    return status;
}

/* ---- Parts ---------------------------------------------------------------------------------------------------- */

enum { BY_UUID = 1, BY_GROUP = 2 };

/* LMCS_NOT_FOUND: the file is not the pool of the part. */
static enum lmcs_status match(struct cli *cli, size_t i, const char *shelf, const struct cli_part *part, int by)
{
    struct lmcs_pool *pool;
    struct lmcs_snapshot *snapshot = NULL;
    enum lmcs_status status = cli_folder_pool(cli, i, &pool);
    if (status != LMCS_OK)
        return status;
    if ((by & BY_UUID) != 0 && memcmp(cli->folder->files[i].uuid, part->uuid, sizeof part->uuid) == 0)
        return LMCS_OK;
    if ((by & BY_GROUP) == 0)
        return LMCS_NOT_FOUND;
    status = lmcs_group_open(pool, shelf, part->group, &snapshot, &cli->error);
    lmcs_snapshot_close(snapshot);
    return status;
}

/* Seeks the file by its name first, since all files before the right one are opened. */
enum lmcs_status cli_part_find(struct cli *cli, const char *shelf, const struct cli_part *part, size_t *file)
{
    static const int by[] = {BY_UUID | BY_GROUP, BY_UUID, BY_GROUP};
    struct cli_folder *folder = cli->folder;
    struct lmcs_error unusable = {.status = LMCS_OK};
    for (size_t pass = 0; pass < sizeof by / sizeof *by; pass++)
        for (size_t i = 0; i < folder->count; i++) {
            if ((strcmp(folder->files[i].name, part->file) == 0) != (pass == 0))
                continue;
            enum lmcs_status status = match(cli, i, shelf, part, by[pass]);
            if (status == LMCS_OK) {
                *file = i;
                return LMCS_OK;
            }
            if (pass == 0 && status != LMCS_NOT_FOUND)
                unusable = cli->error;
        }
    if (unusable.status != LMCS_OK) {
        cli->error = unusable;
        return unusable.status;
    }
    return cli_fail(cli, LMCS_NOT_FOUND, 0, "%.200s lacks the pool of rank %llu, %.200s: copy it into the folder",
                    folder->path, (unsigned long long)part->rank, part->file);
}

enum lmcs_status cli_part_open(struct cli *cli, const struct cli_record *record, const struct cli_part *part,
                               struct lmcs_pool **pool, struct lmcs_snapshot **snapshot)
{
    size_t file = 0;
    enum lmcs_status status = cli_part_find(cli, record->shelf, part, &file);
    if (status != LMCS_OK)
        return status;
    *pool = cli->folder->files[file].pool;
    status = lmcs_group_open(*pool, record->shelf, part->group, snapshot, &cli->error);
    if (status == LMCS_NOT_FOUND)
        return cli_fail(cli, status, 0, "%.200s lacks rank %llu's part of %.200s", cli->folder->files[file].name,
                        (unsigned long long)part->rank, record->address);
    return status;
}

void cli_part_url(const struct lmcs_snapshot *part, char url[LMCS_MAX_URL + 1])
{
    const char *remote = lmcs_snapshot_info(part)->remote;
    const char *end = remote != NULL ? strrchr(remote, '/') : NULL; /* the name of the sub-run */
    snprintf(url, LMCS_MAX_URL + 1, "%.*s", end != NULL ? (int)(end - remote) : 0, end != NULL ? remote : "");
}

enum lmcs_status cli_part_local(struct cli *cli, const char *address, const struct lmcs_snapshot *part)
{
    char url[LMCS_MAX_URL + 1];
    cli_part_url(part, url);
    if (*url == '\0')
        return LMCS_OK;
    return cli_fail(cli, LMCS_REMOTE, 0,
                    "%.200s has parts that are remote, at %.400s: fetch it by lmc-store pull %s %s", address,
                    lmcs_snapshot_info(part)->remote, url, cli->folder->path);
}
