/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cmd_report.c - lmc-store report: finds a Python that has the package lmcstore, and lets it write the report.
 *
 * The page is made by python/lmcstore/report. Which Python: what $LMC_STORE_PYTHON says; else the one beside this
 * command, then that of the checkout that it was built in, then the one in $PATH. It runs with -P: without that, `-c`
 * and `-m` import what lies in the working directory, which may be a folder that came from a stranger. -I would be too
 * much: with it, PYTHONPATH and the user's own site-packages, where the package may be, are not looked at.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MOST_WORDS = 12 };

/* Whether that Python can be run and has the package. */
static bool has_report(const char *python)
{
    const char *const words[] = {python, "-P", "-c", "import lmcstore.report", NULL};
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    int result = -1;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return false;
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    bool is_started = posix_spawnp(&child, python, &actions, NULL, (char *const *)words, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    while (is_started && waitpid(child, &result, 0) < 0 && errno == EINTR)
        ;
    return is_started && WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

/* A path that begins where this command lies. */
static bool beside(const char *rest, char path[PATH_BYTES])
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_BYTES - 1);
    if (length <= 0)
        return false;
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash + 1 - path) + strlen(rest) >= PATH_BYTES)
        return false;
    strcpy(slash + 1, rest);
    return true;
}

static enum lmcs_status find_python(struct cli *cli, char path[PATH_BYTES])
{
    static const char *const places[] = {"python3", "../../../.venv/bin/python"};
    const char *wanted = getenv("LMC_STORE_PYTHON");
    if (wanted && *wanted) {
        snprintf(path, PATH_BYTES, "%s", wanted);
        return has_report(path)
                   ? LMCS_OK
                   : cli_fail(cli, LMCS_NOT_FOUND, 0,
                              "report: LMC_STORE_PYTHON is %s, which is no Python with the package lmcstore", wanted);
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (beside(places[i], path) && has_report(path))
            return LMCS_OK;
    }
    snprintf(path, PATH_BYTES, "python3");
    return has_report(path) ? LMCS_OK
                            : cli_fail(cli, LMCS_NOT_FOUND, 0,
                                       "report: it is written by the Python package lmcstore, which no python3 here "
                                       "has: pip install ./python, or let LMC_STORE_PYTHON name a Python that has it");
}

/* The page is written to report.html unless something else is said; Python looks again just before it writes. */
static enum lmcs_status check_outputs(struct cli *cli)
{
    const char *pool = cli->options.arguments[0];
    const char *page = cli->options.output ? cli->options.output : cli->options.png ? NULL : "report.html";
    enum lmcs_status status = page ? cli_output_check_path(cli, "-o", page, pool, "the pool") : LMCS_OK;
    if (status == LMCS_OK && cli->options.png)
        status = cli_output_check_path(cli, "--png", cli->options.png, pool, "the pool");
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    const struct cli_options *options = &cli->options;
    char python[PATH_BYTES];
    const char *words[MOST_WORDS] = {python, "-P", "-m", "lmcstore.report"};
    size_t count = 4;
    if (options->output && strcmp(options->output, "-") == 0)
        return cli_wrong_use(cli, "report: -o names a file; a page is not for a pipe");
    enum lmcs_status status = check_outputs(cli);
    if (status == LMCS_OK)
        status = cli_open(cli, LMCS_OPEN_READ); /* what is wrong with the pool is better said from here */
    if (status == LMCS_OK)
        status = cli_close(cli, LMCS_OK);
    if (status == LMCS_OK)
        status = find_python(cli, python);
    if (status != LMCS_OK)
        return status;
    if (options->output) {
        words[count++] = "-o";
        words[count++] = options->output;
    }
    if (options->png) {
        words[count++] = "--png";
        words[count++] = options->png;
    }
    if (options->force_network)
        words[count++] = "--force-network";
    words[count++] = "--";
    words[count++] = options->arguments[0];
    if (options->arguments[1])
        words[count++] = options->arguments[1];
    execvp(python, (char *const *)words);
    return cli_fail(cli, LMCS_IO, errno, "%s can't be run", python);
}

const struct cli_command cmd_report = {
    .name = "report",
    .synopsis = "POOL [SHELF] [-o FILE] [--png FILE]",
    .summary = "Writes a page about the history: sizes, drift, metrics",
    .help = "One HTML page (report.html without -o) that needs nothing else: the history's size raw and stored, how\n"
            "each snapshot is stored, drift of tensors, metrics, and the time to restore, which is measured. --png\n"
            "draws it with matplotlib. It is written by the Python package lmcstore: LMC_STORE_PYTHON names a Python\n"
            "that has it, else the one beside this command, the checkout's .venv, or python3 is taken. Works while\n"
            "another process writes to the pool, and takes half a minute at most, about, for a shelf.",
    .options = "oGf",
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
