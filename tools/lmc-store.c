/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lmc-store.c - the command: finds the subcommand, runs it, reports errors and returns the exit code.
 *
 * Exit codes: 0 done; 1 failed, or damage was found; 2 wrong use; 128 plus the number of SIGINT, SIGTERM or SIGHUP,
 * which stopped it. No work is left half done. With --json exactly one object goes to standard output, {"error": {...}}
 * on failure.
 *
 * As in git, `lmc-store NAME` runs lmc-store-NAME, beside this executable or on PATH, if NAME is not a command here.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

const struct cli_command *const cli_commands[] = {
    &cmd_create, &cmd_info,   &cmd_ls,      &cmd_import,   &cmd_export,     &cmd_verify,     &cmd_compact, &cmd_tag,
    &cmd_rm,     &cmd_dump,   &cmd_restore, &cmd_compress, &cmd_decompress, &cmd_log,        &cmd_diff,    &cmd_fork,
    &cmd_mv,     &cmd_policy, &cmd_scrub,   &cmd_note,     &cmd_metric,     &cmd_completion, NULL,
};
enum { COMMAND_COUNT = sizeof cli_commands / sizeof *cli_commands - 1 };

/* Names of these commands in other tools. */
static const char *const synonyms[][2] = {
    {"list", "ls"},      {"history", "log"}, {"remove", "rm"},    {"delete", "rm"},
    {"branch", "fork"},  {"rename", "mv"},   {"check", "verify"}, {"init", "create"},
    {"repair", "scrub"}, {"show", "info"},   {"prune", "policy"},
};

const struct cli_external cli_externals[] = {
    {"report", "POOL [SHELF...] [-o FILE] [--png FILE]", "Writes a page about the history: sizes, drift, metrics",
     "install the Python package lmcstore (pip install ./python)"},
    {"push", "POOL URL [RANGE...] [--follow] [--repair] [--json]", "Sends snapshots to an object store",
     "install the Python package lmcstore with obstore (pip install './python[remote]')"},
    {"pull", "URL POOL [RANGE...] [--rate SIZE] [--json]", "Restores snapshots from an object store",
     "install the Python package lmcstore with obstore (pip install './python[remote]')"},
    {NULL, NULL, NULL, NULL},
};
enum { EXTERNAL_COUNT = sizeof cli_externals / sizeof *cli_externals - 1 };

void cli_print_usage(FILE *out)
{
    fprintf(out, "usage: lmc-store COMMAND ... | --help | --version\n\n"
                 "A versioned tensor store for training runs.\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %-55s %s\n", cli_commands[i]->name, cli_commands[i]->synopsis, cli_commands[i]->summary);
    for (size_t i = 0; i < EXTERNAL_COUNT; i++)
        fprintf(out, "  %-10s %-55s %s\n", cli_externals[i].name, cli_externals[i].synopsis, cli_externals[i].summary);
    fprintf(
        out,
        "\n"
        "POOL is a file, a poolset, a devdax device, or the folder of a run of many ranks. ADDRESS names a snapshot:\n"
        "run@7 (its number), run@best (a tag), run@latest, run@latest~1 (one before), run@step:120,\n"
        "'run@{2 hours ago}', 'run@{2026-11-20 13:00}' (UTC), or run alone: its latest. RANGE includes both ends:\n"
        "5..9, step:100.., ..best.\n"
        "lmc-store COMMAND --help describes a command. Other names NAME run the executable lmc-store-NAME.\n"
        "Exit codes: 0 done, 1 failed or damaged, 2 wrong use, 128 + N stopped by signal N.\n");
}

/* Commands that lmc-store-remote runs, or refuses, if an argument is a URL. */
static const char *const of_urls[] = {"ls",   "log",  "info", "verify", "rm",     "diff",   "export", "scrub",
                                      "dump", "fork", "tag",  "note",   "metric", "policy", "compact"};

static bool is_url(const char *text)
{
    size_t scheme = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");
    return scheme > 0 && *text != '-' && strncmp(text + scheme, "://", 3) == 0;
}

/* Commands whose later arguments are texts, which may look like URLs. */
static const char *const of_texts[] = {"tag", "note", "metric", "policy"};

static bool takes_url(int argc, char **argv)
{
    bool has_url = false, is_remote = false, has_texts = false;
    for (size_t i = 0; i < sizeof of_texts / sizeof *of_texts; i++)
        has_texts = has_texts || strcmp(argv[1], of_texts[i]) == 0;
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++) {
        has_url = has_url || is_url(argv[i]);
        if (has_texts && *argv[i] != '-' && strcmp(argv[i - 1], "--wait") != 0 && strcmp(argv[i - 1], "--expect") != 0)
            break;
    }
    for (size_t i = 0; i < sizeof of_urls / sizeof *of_urls; i++)
        is_remote = is_remote || strcmp(argv[1], of_urls[i]) == 0;
    return has_url && is_remote;
}

static const struct cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(cli_commands[i]->name, name) == 0)
            return cli_commands[i];

    return NULL;
}

static const char *suggest(const char *typed)
{
    const char *names[COMMAND_COUNT + EXTERNAL_COUNT];
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
        if (strcmp(synonyms[i][0], typed) == 0)
            return synonyms[i][1];

    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = cli_commands[i]->name;
    for (size_t i = 0; i < EXTERNAL_COUNT; i++)
        names[COMMAND_COUNT + i] = cli_externals[i].name;
    return lmcs_nearest(typed, names, COMMAND_COUNT + EXTERNAL_COUNT);
}

static enum lmcs_status unknown_command(struct cli *cli, const char *typed)
{
    for (size_t i = 0; i < EXTERNAL_COUNT; i++)
        if (strcmp(cli_externals[i].name, typed) == 0)
            return cli_fail(cli, LMCS_NOT_FOUND, 0, "lmc-store-%s is neither beside lmc-store nor on PATH; %s", typed,
                            cli_externals[i].install);
    const char *near = suggest(typed);
    return cli_wrong_use(cli, "there is no command '%s'%s%s%s", typed, near != NULL ? "; did you mean '" : "",
                         near != NULL ? near : "", near != NULL ? "'?" : "");
}

/* Runs lmc-store-NAME: NAME is arguments[0], and NULL ends the arguments. Returns only if it can't be run. */
static void run_external(char **arguments)
{
    char path[PATH_MAX];
    char *name = arguments[0];
    if (*name == '-' || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(name))
        return;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(path, '/');
    char *file = slash != NULL ? slash + 1 : path;
    size_t room = sizeof path - (size_t)(file - path);
    if (snprintf(file, room, "lmc-store-%s", name) >= (int)room)
        return;
    arguments[0] = path;
    execv(path, arguments);
    arguments[0] = file;
    execvp(file, arguments);
    arguments[0] = name;
}

/* Runs lmc-store-remote with the command and its arguments. Returns only if it can't be run. */
static void run_remote(char **argv)
{
    char remote[] = "remote", *program = argv[0];
    argv[0] = remote;
    run_external(argv);
    argv[0] = program;
}

/* ---- The end -------------------------------------------------------------------------------------------------- */

static void print_error(const struct cli *cli)
{
    bool is_interrupted = cli->error.status == LMCS_CANCELLED && cli_signal() != 0;
    fputs(is_interrupted ? "lmc-store: interrupted: " : "lmc-store: ", stderr);
    cli_print(stderr, cli->error.message);
    if (cli->shows_hint)
        fprintf(stderr, " (try lmc-store %s%s--help)", cli->command != NULL ? cli->command->name : "",
                cli->command != NULL ? " " : "");
    fputc('\n', stderr);
}

/* Writes JSON with DEL escaped: terminals obey it, and jansson doesn't escape it. It occurs only within strings. */
static int write_json(const char *text, size_t bytes, void *context)
{
    FILE *out = context;
    for (const char *del; (del = memchr(text, 0x7F, bytes)) != NULL; bytes -= (size_t)(del + 1 - text), text = del + 1)
        if (fwrite(text, 1, (size_t)(del - text), out) != (size_t)(del - text) || fputs("\\u007f", out) < 0)
            return -1;

    return fwrite(text, 1, bytes, out) == bytes ? 0 : -1;
}

static void print_json(struct cli *cli, enum lmcs_status status)
{
    if (status != LMCS_OK && cli->json == NULL)
        cli->json = json_object();
    if (status != LMCS_OK)
        cli_json_set(cli->json, "error", cli_json_error(&cli->error));
    /* ASCII only: terminals obey some characters, such as direction marks. */
    if (json_dump_callback(cli->json, write_json, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_ENSURE_ASCII) ==
        0)
        fputc('\n', stdout);
}

/* A failed write fails the command; a closed pipe does so without a message. */
static enum lmcs_status flush_output(struct cli *cli, enum lmcs_status status)
{
    errno = 0;
    bool is_bad = fflush(stdout) != 0 || ferror(stdout) != 0;
    if (!is_bad || status != LMCS_OK)
        return status;
    int reason = errno;
    cli_fail(cli, LMCS_IO, reason, "standard output can't be written");
    if (reason != EPIPE)
        print_error(cli);
    return LMCS_IO;
}

static int exit_code(enum lmcs_status status)
{
    if (status == LMCS_OK)
        return CLI_DONE;
    if (status == LMCS_CANCELLED && cli_signal() != 0)
        return CLI_SIGNAL + cli_signal();
    return status == LMCS_INVALID ? CLI_WRONG_USE : CLI_FAILED;
}

static int finish(struct cli *cli, enum lmcs_status status)
{
    status = cli_close(cli, status);
    cli_progress_wipe(&cli->progress);
    if (status != LMCS_OK)
        print_error(cli);
    if (cli->options.json && !cli->options.help)
        print_json(cli, status);
    status = flush_output(cli, status);
    json_decref(cli->json);
    return exit_code(status);
}

/* Whether --json is among the arguments, even if parsing them fails: errors are then in JSON, too. */
static bool asks_for_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;

    return false;
}

static enum lmcs_status run(struct cli *cli, int argc, char **argv)
{
    cli->command = find_command(argv[1]);
    if (cli->command == NULL)
        return unknown_command(cli, argv[1]);
    if (takes_url(argc, argv))
        return cli_fail(cli, LMCS_NOT_FOUND, 0,
                        "%s: a URL needs lmc-store-remote beside lmc-store or on PATH; install the Python package "
                        "lmcstore with obstore (pip install './python[remote]')",
                        argv[1]);
    enum lmcs_status status = cli_parse(cli, argc - 1, argv + 1);
    if (status != LMCS_OK)
        return status;
    if (cli->options.help) {
        cli_print_help(cli->command, stdout);
        return LMCS_OK;
    }
    return cli->command->run(cli);
}

static bool is_one_of(const char *text, const char *a, const char *b, const char *c)
{
    return strcmp(text, a) == 0 || strcmp(text, b) == 0 || strcmp(text, c) == 0;
}

/* Opens closed standard streams. Otherwise a pool could get the descriptor number of one, and messages would be written
 * into it. */
static void hold_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    struct cli cli = {.options.json = asks_for_json(argc, argv)};
    hold_standard_streams();
    if (argc > 1 && find_command(argv[1]) == NULL)
        run_external(argv + 1);
    if (argc > 1 && takes_url(argc, argv))
        run_remote(argv);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write above the shell's limit fails */
    if (argc < 2) {
        cli_print_usage(stderr);
        return CLI_WRONG_USE;
    }
    if (is_one_of(argv[1], "--version", "-V", "version")) {
        printf("lmc-store %d.%d.%d, kernels %s\n", LMCS_VERSION_MAJOR, LMCS_VERSION_MINOR, LMCS_VERSION_PATCH,
               lmc_kernels());
        return flush_output(&cli, LMCS_OK) == LMCS_OK ? CLI_DONE : CLI_FAILED;
    }
    if (is_one_of(argv[1], "--help", "-h", "help")) {
        char help[] = "--help";
        const struct cli_command *command = argc > 2 ? find_command(argv[2]) : NULL;
        if (argc > 2 && command == NULL)
            run_external((char *[]){argv[2], help, NULL});
        command != NULL ? cli_print_help(command, stdout) : cli_print_usage(stdout);
        return flush_output(&cli, LMCS_OK) == LMCS_OK ? CLI_DONE : CLI_FAILED;
    }
    return finish(&cli, run(&cli, argc, argv));
}
