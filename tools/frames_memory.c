/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * frames_memory.c - large allocations, and whole files in memory.
 *
 * A request above the available memory is refused: the kernel would grant it, and kill a process later.
 */
#include "frames.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_PAGE       ((size_t)2 << 20)
#define PIECE_BYTES     ((size_t)4 << 20)  /* between two checks for signals */
#define WAIT_MS         100                /* the same for a pipe */
#define STREAM_BYTES    ((size_t)64 << 20) /* initial memory for a pipe */
#define BEGINNING_BYTES ((size_t)LMC_FRAME_PREFIX_BYTES)

/* ---- Memory --------------------------------------------------------------------------------------------------- */

/* Reads the first number after `key` in a file; false: none. */
static bool read_number(const char *path, const char *key, uint64_t *value)
{
    char text[4096];
    FILE *file = fopen(path, "re");
    size_t bytes = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    text[bytes] = '\0';
    const char *at = strstr(text, key);
    return at != NULL && sscanf(at + strlen(key), "%" SCNu64, value) == 1;
}

/* Returns the memory available without swapping. */
static uint64_t available_bytes(void)
{
    static const char *const cgroups[] = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    uint64_t kib = 0;
    uint64_t limit = 0;
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (read_number("/proc/meminfo", "MemAvailable:", &kib) && kib < bytes / 1024)
        bytes = kib * 1024;
    for (size_t i = 0; i < sizeof cgroups / sizeof *cgroups; i++)
        if (read_number(cgroups[i], "", &limit) && limit < bytes)
            bytes = limit;
    return bytes;
}

static enum lmcs_status no_memory(struct cli *cli, const char *use, uint64_t bytes, uint64_t available)
{
    return cli_fail(cli, LMCS_NO_MEMORY, 0, "%s takes %s of memory, and %s are available; use a machine with more", use,
                    cli_bytes(bytes).text, cli_bytes(available).text);
}

/* Maps whole huge pages. */
static unsigned char *map_aligned(size_t bytes)
{
    unsigned char *at = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)at % HUGE_PAGE) % HUGE_PAGE;
    if (before != 0)
        munmap(at, before);
    munmap(at + before + bytes, HUGE_PAGE - before);
    madvise(at + before, bytes, MADV_HUGEPAGE);
    return at + before;
}

enum lmcs_status frames_memory_new(struct cli *cli, const char *use, uint64_t bytes, struct frames_memory *memory)
{
    uint64_t available = available_bytes();
    *memory = (struct frames_memory){0};
    if (bytes > available || bytes > PTRDIFF_MAX - 2 * HUGE_PAGE)
        return no_memory(cli, use, bytes, available);
    size_t mapped_bytes = (bytes / HUGE_PAGE + 1) * HUGE_PAGE;
    unsigned char *data = map_aligned(mapped_bytes);
    if (data == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, errno, "the system refused %s of memory for %s; see ulimit -v",
                        cli_bytes(bytes).text, use);
    *memory = (struct frames_memory){data, (size_t)bytes, mapped_bytes};
    return LMCS_OK;
}

uint64_t frames_file_bytes(const char *path)
{
    struct stat info;
    bool known = path != NULL && stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
    return known ? (uint64_t)info.st_size : 0;
}

enum lmcs_status frames_check_memory(struct cli *cli)
{
    uint64_t available = available_bytes();
    uint64_t bytes = 2 * frames_file_bytes(cli->options.arguments[0]) + frames_file_bytes(cli->options.base);
    return bytes <= available ? LMCS_OK : no_memory(cli, "holding the file, its base and the result", bytes, available);
}

/* Doubles the memory. */
static enum lmcs_status grow(struct cli *cli, const char *use, struct frames_memory *memory)
{
    size_t wanted = 2 * memory->mapped_bytes;
    uint64_t available = available_bytes();
    void *data = memory->mapped_bytes <= available ? mremap(memory->data, memory->mapped_bytes, wanted, MREMAP_MAYMOVE)
                                                   : MAP_FAILED;
    if (data == MAP_FAILED)
        return no_memory(cli, use, wanted, memory->mapped_bytes + available);
    madvise(data, wanted, MADV_HUGEPAGE);
    memory->data = data;
    memory->mapped_bytes = wanted;
    return LMCS_OK;
}

void frames_memory_free(struct frames_memory *memory)
{
    if (memory->mapped_bytes != 0)
        munmap(memory->data, memory->mapped_bytes);
    *memory = (struct frames_memory){0};
}

/* ---- Files ---------------------------------------------------------------------------------------------------- */

const char *frames_shown(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

enum lmcs_status frames_check(struct cli *cli, const char *output_is)
{
    const char *command = cli->command->name;
    const char *base = cli->options.base;
    if (cli->options.output == NULL)
        return cli_wrong_use(cli, "%s: -o FILE is missing", command);
    if (base != NULL && strcmp(base, "-") == 0 && strcmp(cli->options.arguments[0], "-") == 0)
        return cli_wrong_use(cli, "%s: file and base can't both come from standard input", command);
    enum lmcs_status status = cli_output_check(cli, output_is, cli->options.arguments[0], "the file to read");
    if (status == LMCS_OK && base != NULL)
        status = cli_output_check(cli, output_is, base, "the base");
    return status == LMCS_OK ? cli_output_check_new(cli) : status;
}

static enum lmcs_status interrupted(struct cli *cli)
{
    return cli_fail(cli, LMCS_CANCELLED, 0, "%s was cancelled; nothing was changed", cli->command->name);
}

/* Reads `bytes` bytes; *got is fewer only at the end of the file. */
static enum lmcs_status read_some(struct cli *cli, int fd, const char *shown, void *buffer, size_t bytes, size_t *got)
{
    *got = 0;
    while (*got < bytes) {
        size_t piece = bytes - *got < PIECE_BYTES ? bytes - *got : PIECE_BYTES;
        if (cli_signal() != 0)
            return interrupted(cli);
        if (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, WAIT_MS) <= 0)
            continue; /* an empty pipe, perhaps without a writer: check for signals meanwhile */
        ssize_t n = read(fd, (char *)buffer + *got, piece);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return cli_fail(cli, LMCS_IO, errno, "%s can't be read", shown);
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return LMCS_OK;
}

static enum lmcs_status read_file(struct cli *cli, int fd, const char *shown, frames_begins begins, uint64_t bytes,
                                  struct frames_memory *memory)
{
    unsigned char first[BEGINNING_BYTES];
    size_t first_bytes = bytes < sizeof first ? (size_t)bytes : sizeof first;
    size_t got = 0;
    size_t rest = 0;
    enum lmcs_status status = read_some(cli, fd, shown, first, first_bytes, &got);
    bool is_wanted = begins == NULL || begins(first, got);
    if (status == LMCS_OK)
        status = frames_memory_new(cli, shown, is_wanted ? bytes : got, memory);
    if (status != LMCS_OK)
        return status;
    memcpy(memory->data, first, got);
    if (is_wanted && got == first_bytes)
        status = read_some(cli, fd, shown, memory->data + got, memory->bytes - got, &rest);
    if (status == LMCS_OK && got + rest < memory->bytes)
        status = cli_fail(cli, LMCS_IO, 0, "%s became shorter while it was read; try again", shown);
    return status;
}

static enum lmcs_status read_stream(struct cli *cli, int fd, const char *shown, frames_begins begins,
                                    struct frames_memory *memory)
{
    size_t got = 0;
    enum lmcs_status status = frames_memory_new(cli, shown, STREAM_BYTES, memory);
    if (status == LMCS_OK)
        status = read_some(cli, fd, shown, memory->data, BEGINNING_BYTES, &got);
    memory->bytes = got;
    bool is_wanted = status == LMCS_OK && (begins == NULL || begins(memory->data, got));
    for (; status == LMCS_OK && is_wanted; memory->bytes += got) {
        if (memory->bytes == memory->mapped_bytes && (status = grow(cli, shown, memory)) != LMCS_OK)
            break;
        size_t room = memory->mapped_bytes - memory->bytes;
        status = read_some(cli, fd, shown, memory->data + memory->bytes, room, &got);
        if (status == LMCS_OK && got == 0)
            break;
    }
    return status;
}

static enum lmcs_status open_file(struct cli *cli, const char *path, int *fd)
{
    if (strcmp(path, "-") == 0) {
        *fd = STDIN_FILENO;
        if (isatty(STDIN_FILENO) != 0)
            return cli_wrong_use(cli, "%s: refuses to read from a terminal; use a file or a pipe", cli->command->name);
        return LMCS_OK;
    }
    /* Does not wait for a FIFO's writer, as read_some does, which checks for signals. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (*fd < 0)
        return cli_fail(cli, errno == ENOENT ? LMCS_NOT_FOUND : LMCS_IO, errno, "%s can't be opened", path);
    return LMCS_OK;
}

uint64_t frames_open_regular(const char *path, int *fd)
{
    uint64_t bytes = strcmp(path, "-") != 0 ? frames_file_bytes(path) : 0;
    *fd = bytes > 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK) : -1;
    return bytes;
}

enum lmcs_status frames_read(struct cli *cli, const char *path, frames_begins begins, struct frames_memory *memory)
{
    int fd = -1;
    struct stat info;
    const char *shown = frames_shown(path);
    enum lmcs_status status = open_file(cli, path, &fd);
    *memory = (struct frames_memory){0};
    if (status != LMCS_OK)
        return status;
    if (fstat(fd, &info) != 0)
        status = cli_fail(cli, LMCS_IO, errno, "%s can't be read", shown);
    else if (S_ISDIR(info.st_mode))
        status = cli_fail(cli, LMCS_INVALID, 0, "%s is a directory", shown);
    else if (S_ISREG(info.st_mode) && fd != STDIN_FILENO)
        status = read_file(cli, fd, shown, begins, (uint64_t)info.st_size, memory);
    else
        status = read_stream(cli, fd, shown, begins, memory);
    if (fd != STDIN_FILENO)
        close(fd);
    return status;
}

enum lmcs_status frames_write(struct cli *cli, const struct lmcs_progress *progress, const struct lmcs_outfile *output,
                              const unsigned char *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        if (!progress->call(progress->context, "writing", done, bytes))
            return interrupted(cli);
        ssize_t n = write(output->fd, data + done, bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES);
        if (n < 0 && errno == EAGAIN)
            poll(&(struct pollfd){.fd = output->fd, .events = POLLOUT}, 1, WAIT_MS);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return cli_fail(cli, errno == ENOSPC ? LMCS_FULL : LMCS_IO, errno, "%s can't be written",
                            cli_output_is_stdout(cli) ? "standard output" : cli->options.output);
        done += (size_t)n;
    }
    return LMCS_OK;
}
