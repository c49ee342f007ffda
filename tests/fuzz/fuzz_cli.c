/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_cli.c - fuzz target for the command line: lmc-store's main, in this process.
 *
 * Arguments end with a byte below 3; a byte above 0xEF is a word of the table (without --rate, which waits). The exit
 * code must be documented, a failure have one message, and no control sequence be printed. New files in its folder are
 * removed; '/' is never passed on.
 */
/* cli: links the command */
#include "support.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
int lmc_store_main(int argc, char **argv); /* tools/lmc-store.c */

static const char *const words[] = {
    "create",
    "info",
    "ls",
    "import",
    "export",
    "verify",
    "compact",
    "tag",
    "note",
    "metric",
    "loss=0.5",
    "rm",
    "dump",
    "restore",
    "compress",
    "decompress",
    "help",
    "--json",
    "--help",
    "--finished",
    "--size",
    "-n",
    "--step",
    "--tag",
    "-o",
    "--output",
    "--part",
    "--base",
    "--dtype",
    "--level",
    "--threads",
    "--delete",
    "--dry-run",
    "--wait",
    "--force-network",
    "--",
    "a.pool",
    "a.lmc",
    "a.safetensors",
    "an.archive",
    "raw",
    "new.pool",
    "-",
    "run",
    "run@1",
    "run@latest~1",
    "run@step:3",
    "run@best",
    "wide",
    "8MiB",
    "1",
    "18446744073709551616",
    "bf16",
    "f32",
    "dense",
    "default",
    "policy",
    "model",
    "1.5GiB",
    "-1",
    "0",
    "none",
    ".",
    "..",
    "\xff\xfe",
    "\x1b[2J",
    "\xe2\x80\xae",
    "%s%n",
    "",
    "log",
    "diff",
    "fork",
    "mv",
    "scrub",
    "--all",
    "--shelf",
    "--expect",
    "--since",
    "--canonical",
    "--resume",
    "--skip-lost",
    "--only",
    "--as",
    "--move-tags",
    "--prune",
    "--sample",
    "--repair",
    "--from",
    "keep=last:1",
    "1..2",
    "1%",
    "completion",
    "fish",
    "man",
    "a.run",
    "--metrics",
    "tensorboard",
    "--force",
};
#define WORDS (sizeof words / sizeof *words)

static const char *const kept[] = {"a.pool", "a.lmc", "a.safetensors", "an.archive", "raw", "a.run"};
#define TEMPORARY ".lmc-store-"
static bool is_asked_for; /* like a temporary file */
static char *said[2];     /* on standard output, on standard error */
static size_t said_bytes[2];

/* ---- The folder ---- */

/* Removes a file, or a folder of files. */
static void drop(const char *name)
{
    DIR *folder = unlink(name) != 0 ? opendir(name) : NULL;
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder != NULL)
        closedir(folder);
    rmdir(name);
}

static void tidy(bool all)
{
    DIR *folder = opendir(".");
    REQUIRE(folder != NULL, NULL);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        bool keep = entry->d_name[0] == '.' && (entry->d_name[1] == '\0' || strcmp(entry->d_name, "..") == 0);
        for (size_t i = 0; !all && i < sizeof kept / sizeof *kept; i++)
            keep = keep || strcmp(entry->d_name, kept[i]) == 0;
        REQUIRE(all || keep || is_asked_for || strncmp(entry->d_name, TEMPORARY, strlen(TEMPORARY)) != 0, NULL);
        if (!keep)
            drop(entry->d_name);
    }
    closedir(folder);
}

static void end(void)
{
    tidy(true);
}

static int run(int argc, const char *const *arguments)
{
    char *argv[40];
    FILE *streams[2] = {stdout, stderr};
    for (int i = 0; i <= argc; i++)
        argv[i] = i < argc ? strdup(arguments[i]) : NULL;
    char *owned[40];
    memcpy(owned, argv, sizeof argv);
    stdout = open_memstream(&said[0], &said_bytes[0]);
    stderr = open_memstream(&said[1], &said_bytes[1]);
    optind = 0; /* restarts getopt */
    int code = lmc_store_main(argc, argv);
    fclose(stdout);
    fclose(stderr);
    stdout = streams[0];
    stderr = streams[1];
    for (int i = 0; i < argc; i++)
        free(owned[i]);
    return code;
}

static void forget(void)
{
    for (int i = 0; i < 2; i++)
        free(said[i]);
}

static void run_well(int argc, const char *const *arguments)
{
    REQUIRE(run(argc, arguments) == 0, NULL);
    forget();
}
#define RUN(...) \
    run_well((int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(const char *)), (const char *[]){__VA_ARGS__})

/* Three snapshots, and a file of each kind. */
static void make(void)
{
    static const unsigned char zeros[4096];
    fuzz_place_init();
    atexit(end); /* before the folder */
    REQUIRE(chdir(fuzz_place.folder) == 0, NULL);
    REQUIRE(setenv("PATH", "/dev/null", 1) == 0, NULL); /* else `report` may replace this process */
    int fd = open("raw", O_WRONLY | O_CREAT | O_CLOEXEC, 0600), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, zeros, sizeof zeros) == (ssize_t)sizeof zeros && close(fd) == 0, NULL);
    REQUIRE(dup2(null, STDIN_FILENO) >= 0 && dup2(null, STDOUT_FILENO) >= 0 && close(null) == 0, NULL);
    const char *header = "{\"model.w\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64]}}      ";
    uint64_t length = strlen(header);
    fd = open("a.safetensors", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0 && write(fd, &length, 8) == 8 && write(fd, header, length) == (ssize_t)length &&
                write(fd, zeros, 64) == 64 && close(fd) == 0,
            NULL);
    RUN("lmc-store", "create", "a.pool", "--size", "16MiB");
    RUN("lmc-store", "import", "a.pool", "run", "a.safetensors", "--step", "3", "--tag", "best");
    RUN("lmc-store", "import", "a.pool", "run", "a.safetensors");
    RUN("lmc-store", "import", "a.pool", "wide", "a.safetensors");
    RUN("lmc-store", "dump", "a.pool", "-o", "an.archive");
    RUN("lmc-store", "compress", "a.safetensors", "-o", "a.lmc");
    REQUIRE(mkdir("a.run", 0700) == 0, NULL); /* of a run; the records are none */
    RUN("lmc-store", "create", "a.run/records.pool", "--size", "16MiB");
    RUN("lmc-store", "import", "a.run/records.pool", "run", "a.safetensors");
    RUN("lmc-store", "create", "a.run/rank-00000.pool", "--size", "16MiB");
}

/* ---- Output ---- */

/* UTF-8 without controls (except newlines), C1 controls or marks of direction. */
static void check_text(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i], next = i + 1 < bytes ? (unsigned char)text[i + 1] : 0;
        REQUIRE(c == '\n' || (c >= 0x20 && (c != 0x7f || text[0] == '{')), NULL); /* JSON may have it */
        REQUIRE(c < 0xf8 && c != 0xc0 && c != 0xc1, NULL);
        REQUIRE(c != 0xc2 || next >= 0xa0, NULL);
        REQUIRE(c != 0xe2 || next != 0x80 || i + 2 >= bytes || (unsigned char)text[i + 2] < 0xa8 ||
                    (unsigned char)text[i + 2] > 0xae,
                NULL);
    }
}

static void check(int code)
{
    REQUIRE(code == 0 || code == 1 || code == 2, NULL);
    check_text(said[0], said_bytes[0]);
    check_text(said[1], said_bytes[1]);
    REQUIRE(code == 0 || said_bytes[1] > 0 || said_bytes[0] > 0, NULL);
    REQUIRE(said_bytes[1] < 8192, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static bool made;
    char room[4096];
    const char *argv[34] = {"lmc-store"};
    int argc = 1;
    size_t used = 0;
    if (!made)
        make();
    made = true;
    for (size_t i = 0; i < count && argc < 32 && used + 40 < sizeof room; argc++) {
        argv[argc] = room + used;
        for (; i < count && bytes[i] > 2 && used + 40 < sizeof room; i++) {
            const char *word = bytes[i] >= 0xf0 && i + 1 < count ? words[bytes[++i] % WORDS] : NULL;
            if (word != NULL)
                used += (size_t)sprintf(room + used, "%s", word);
            else
                room[used++] = bytes[i] == '/' ? '_' : (char)bytes[i];
        }
        i++;
        room[used++] = '\0';
    }
    is_asked_for = false;
    for (int i = 1; i < argc; i++)
        is_asked_for |= strstr(argv[i], TEMPORARY) != NULL;
    check(run(argc, argv));
    forget();
    tidy(false);
    return 0;
}
