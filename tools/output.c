/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * output.c - a new file that appears whole, durable and under its name, or not at all.
 *
 * It is written under a temporary name in the same directory (mode 0600), synced, renamed, and the directory synced.
 * Pipes and devices can't be replaced like that and are written in place; a symbolic link is followed, not replaced.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool cli_output_is_stdout(const struct cli *cli)
{
    return !cli->options.output || strcmp(cli->options.output, "-") == 0;
}

/* An export over its own pool would replace it; a base that is replaced can't be found again. */
static bool is_same_file(const char *left, const char *right)
{
    struct stat l;
    struct stat r;
    return stat(left, &l) == 0 && stat(right, &r) == 0 && l.st_dev == r.st_dev && l.st_ino == r.st_ino;
}

/* What would be lost with another pool is more than a file: whoever means that removes it first. */
static enum lmcs_status refuse_pool(struct cli *cli, const char *option, const char *path)
{
    static const char file[] = "PMEMOBJ", set[] = "PMEMPOOLSET";
    char magic[sizeof set - 1];
    struct stat info;
    const char *command = cli->command->name;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return LMCS_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t got = fd >= 0 ? pread(fd, magic, sizeof magic, 0) : -1;
    int reason = errno;
    if (fd >= 0)
        close(fd);
    if (got < 0)
        return cli_fail(cli, LMCS_IO, reason, "%s: whether %s %s is a pool can't be seen; remove it first", command,
                        option, path);
    bool is_pool = (got >= (ssize_t)sizeof file - 1 && memcmp(magic, file, sizeof file - 1) == 0) ||
                   (got == (ssize_t)sizeof magic && memcmp(magic, set, sizeof magic) == 0);
    return is_pool ? cli_wrong_use(cli,
                                   "%s: %s %s is a pool, or a poolset file, and would be replaced; remove it first "
                                   "if that is meant",
                                   command, option, path)
                   : LMCS_OK;
}

enum lmcs_status cli_output_check_path(struct cli *cli, const char *option, const char *path, const char *input,
                                       const char *input_is)
{
    if (is_same_file(path, input))
        return cli_wrong_use(cli, "%s: %s %s is %s itself", cli->command->name, option, path, input_is);
    return refuse_pool(cli, option, path);
}

enum lmcs_status cli_output_check(struct cli *cli, const char *what, const char *input, const char *input_is)
{
    const char *command = cli->command->name;
    if (!cli_output_is_stdout(cli))
        return cli_output_check_path(cli, "-o", cli->options.output, input, input_is);
    if (isatty(STDOUT_FILENO))
        return cli_wrong_use(cli, "%s: not writing %s to a terminal; give -o FILE or a pipe", command, what);
    if (cli->options.json)
        return cli_wrong_use(cli, "%s: --json needs -o FILE, for %s goes to standard output", command, what);
    return LMCS_OK;
}

/* Opening a FIFO waits for its reader: signals are not caught yet, so that the first one ends that. */
static enum lmcs_status open_in_place(struct cli *cli, const char *path, struct cli_output *output)
{
    output->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    output->owns_fd = true;
    return output->fd >= 0 ? LMCS_OK : cli_fail(cli, LMCS_IO, errno, "%s can't be opened for writing", path);
}

/* "x/y" -> "x/.lmc-store-XXXXXX", for mkostemp. */
static char *temporary_name(const char *target)
{
    static const char name[] = ".lmc-store-XXXXXX";
    const char *slash = strrchr(target, '/');
    size_t directory_bytes = slash ? (size_t)(slash + 1 - target) : 0;
    char *temporary = malloc(directory_bytes + sizeof name);
    if (temporary) {
        memcpy(temporary, target, directory_bytes);
        memcpy(temporary + directory_bytes, name, sizeof name);
    }
    return temporary;
}

static enum lmcs_status open_temporary(struct cli *cli, const char *target, struct cli_output *output)
{
    output->target = strdup(target);
    output->temporary = temporary_name(target);
    if (!output->target || !output->temporary)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    cli_catch_signals(); /* before there is a temporary file */
    output->fd = mkostemp(output->temporary, O_CLOEXEC);
    if (output->fd < 0) {
        int reason = errno;
        output->temporary[0] = '\0';
        return cli_fail(cli, LMCS_IO, reason, "no file can be made in the directory of %s", target);
    }
    output->owns_fd = true;
    return LMCS_OK;
}

static enum lmcs_status open_over(struct cli *cli, const char *path, struct cli_output *output)
{
    struct stat info;
    char *target = realpath(path, NULL);
    enum lmcs_status status = LMCS_OK;
    if (!target || stat(target, &info))
        status = cli_fail(cli, LMCS_IO, errno, "%s can't be written", path);
    else if (S_ISDIR(info.st_mode))
        status = cli_fail(cli, LMCS_INVALID, 0, "%s is a directory", path);
    else if (S_ISREG(info.st_mode))
        status = open_temporary(cli, target, output);
    else
        status = open_in_place(cli, path, output);
    free(target);
    return status;
}

enum lmcs_status cli_output_open(struct cli *cli, const char *path, struct cli_output *output)
{
    struct stat info;
    *output = (struct cli_output){.fd = -1};
    if (!path || strcmp(path, "-") == 0) {
        output->fd = STDOUT_FILENO;
        return LMCS_OK;
    }
    return lstat(path, &info) ? open_temporary(cli, path, output) : open_over(cli, path, output);
}

/* The rename is durable once its directory is. */
static int sync_directory(const char *target)
{
    const char *slash = strrchr(target, '/');
    char *directory = slash == target ? strdup("/") : slash ? strndup(target, (size_t)(slash - target)) : strdup(".");
    int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int result = fd >= 0 ? fsync(fd) : -1;
    int reason = errno;
    if (fd >= 0)
        close(fd);
    free(directory);
    errno = reason;
    return result;
}

enum lmcs_status cli_output_open_begun(struct cli *cli, const char *path, struct cli_output *output)
{
    *output = (struct cli_output){.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600), .owns_fd = true};
    if (output->fd < 0)
        return cli_fail(cli, LMCS_IO, errno, "%s can't be opened for writing", path);
    output->target = realpath(path, NULL);
    return output->target ? LMCS_OK : cli_fail(cli, LMCS_IO, errno, "%s can't be written", path);
}

enum lmcs_status cli_output_commit(struct cli *cli, struct cli_output *output)
{
    if (!output->target)
        return LMCS_OK;
    enum lmcs_status status = output->temporary ? refuse_pool(cli, "-o", output->target) : LMCS_OK; /* made meanwhile */
    if (status != LMCS_OK)
        return status;
    if (fsync(output->fd) || (output->temporary && rename(output->temporary, output->target)))
        return cli_fail(cli, errno == ENOSPC ? LMCS_FULL : LMCS_IO, errno, "%s can't be written", output->target);
    if (output->temporary)
        output->temporary[0] = '\0';
    if (sync_directory(output->target))
        return cli_fail(cli, LMCS_IO, errno, "the directory of %s can't be synced", output->target);
    return LMCS_OK;
}

void cli_output_close(struct cli_output *output)
{
    if (output->owns_fd && output->fd >= 0)
        close(output->fd);
    if (output->temporary && output->temporary[0])
        unlink(output->temporary);
    free(output->temporary);
    free(output->target);
    *output = (struct cli_output){.fd = -1};
}
