/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * options.c - the command line.
 *
 * A command (struct cli_command) names options of one table of names, help, and functions that store values. To add an
 * option: a field in struct cli_options, a row here, and its name in the commands.
 */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <pwd.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct option_row {
    char letter;          /* '\0': none */
    const char *name;     /* NULL: none */
    const char *argument; /* NULL: takes none */
    const char *help;
    /* Stores the value, at `offset` of struct cli_options if generic. */
    enum lmcs_status (*set)(struct cli *cli, const struct option_row *row, const char *text);
    size_t offset;
};

/* ---- Values --------------------------------------------------------------------------------------------------- */

/* Returns the bytes of a unit: powers of 1024 ("M", "MiB") or of 1000 ("MB"); 0: no unit. */
static uint64_t unit_bytes(const char *text)
{
    static const char letters[] = "kmgtp";
    if (*text == '\0' || strcasecmp(text, "b") == 0)
        return 1;
    const char *letter = strchr(letters, tolower((unsigned char)*text));
    bool is_decimal = strcasecmp(text + 1, "b") == 0;
    if (letter == NULL || (!is_decimal && text[1] != '\0' && strcasecmp(text + 1, "ib") != 0))
        return 0;
    uint64_t bytes = 1;
    for (const char *l = letters; l <= letter; l++)
        bytes *= is_decimal ? 1000 : 1024;
    return bytes;
}

/* Parses up to three digits as thousandths; false: anything else. */
static bool parse_fraction(const char **text, uint64_t *thousandths)
{
    *thousandths = 0;
    if (**text != '.')
        return true;
    uint64_t weight = 100;
    for (++*text; isdigit((unsigned char)**text); ++*text, weight /= 10)
        *thousandths += weight * (uint64_t)(**text - '0');
    return weight < 100;
}

bool cli_parse_size(const char *text, uint64_t *bytes)
{
    char *end = NULL;
    uint64_t thousandths = 0;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    uint64_t whole = strtoull(text, &end, 10);
    const char *at = end;
    if (errno != 0 || !parse_fraction(&at, &thousandths))
        return false;
    at += *at == ' ';
    uint64_t unit = unit_bytes(at);
    if (unit == 0 || __builtin_mul_overflow(whole, unit, bytes) ||
        __builtin_add_overflow(*bytes, unit * thousandths / 1000, bytes))
        return false;
    return *bytes <= INT64_MAX;
}

static bool parse_integer(const char *text, int64_t least, int64_t most, int64_t *value)
{
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || isspace((unsigned char)*text) || number < least || number > most)
        return false;
    *value = number;
    return true;
}

static enum lmcs_status set_size(struct cli *cli, const struct option_row *row, const char *text)
{
    (void)row;
    if (!cli_parse_size(text, &cli->options.size_bytes))
        return cli_wrong_use(cli, "--size: '%s' is not a size such as 8GiB, 500MB or 1073741824", text);
    if (cli->options.size_bytes < LMCS_MIN_POOL_BYTES)
        return cli_wrong_use(cli, "--size: '%s' is too small; a pool has 8 MiB at least", text);
    return LMCS_OK;
}

static enum lmcs_status set_sample(struct cli *cli, const struct option_row *row, const char *text)
{
    (void)row;
    char *end = NULL;
    double percent = strtod(text, &end);
    if (isdigit((unsigned char)*text) && strcmp(end, "%") == 0 && percent > 0 && percent <= 100) {
        cli->options.sample_share = percent / 100;
        return LMCS_OK;
    }
    if (!cli_parse_size(text, &cli->options.sample_bytes) || cli->options.sample_bytes == 0)
        return cli_wrong_use(cli, "--sample: '%s' is neither a share such as 1%% nor a size such as 10GiB", text);
    return LMCS_OK;
}

/* Accepts "100MiB" and "100MiB/s". */
static enum lmcs_status set_rate(struct cli *cli, const struct option_row *row, const char *text)
{
    (void)row;
    char size[64];
    snprintf(size, sizeof size, "%s", text);
    size_t length = strlen(size);
    if (length > 2 && strcmp(size + length - 2, "/s") == 0)
        size[length - 2] = '\0';
    if (strlen(text) >= sizeof size || !cli_parse_size(size, &cli->options.rate_bytes) || cli->options.rate_bytes == 0)
        return cli_wrong_use(cli, "--rate: '%s' is not a size such as 100MiB", text);
    return LMCS_OK;
}

static enum lmcs_status set_count(struct cli *cli, const struct option_row *row, const char *text)
{
    (void)row;
    int64_t count = 0;
    if (!parse_integer(text, 1, INT64_MAX, &count))
        return cli_wrong_use(cli, "-n: '%s' is not a number from 1 on", text);
    cli->options.count = (uint64_t)count;
    return LMCS_OK;
}

static enum lmcs_status set_wait(struct cli *cli, const struct option_row *row, const char *text)
{
    (void)row;
    int64_t seconds = 0;
    if (!parse_integer(text, 0, 1000000, &seconds))
        return cli_wrong_use(cli, "--wait: '%s' is not a number of seconds", text);
    cli->options.wait_ms = (uint32_t)seconds * 1000;
    return LMCS_OK;
}

static enum lmcs_status set_step(struct cli *cli, const struct option_row *row, const char *text)
{
    (void)row;
    if (!parse_integer(text, LMCS_NO_STEP + 1, INT64_MAX, &cli->options.step))
        return cli_wrong_use(cli, "--step: '%s' is not a whole number", text);
    return LMCS_OK;
}

/* Stores a dtype. The error lists all of them. */
static enum lmcs_status set_dtype(struct cli *cli, const struct option_row *row, const char *text)
{
    (void)row;
    char names[512] = "";
    size_t used = 0;
    cli->options.dtype = lmc_dtype_from_name(text);
    if (cli->options.dtype != 0)
        return LMCS_OK;
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END && used < sizeof names; dtype++)
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s%s", used != 0 ? ", " : "", lmc_dtype_name(dtype));
    return cli_wrong_use(cli, "--dtype: '%.100s' is none of %s", text, names);
}

static enum lmcs_status set_level(struct cli *cli, const struct option_row *row, const char *text)
{
    (void)row;
    bool is_dense = strcmp(text, "dense") == 0;
    if (!is_dense && strcmp(text, "default") != 0)
        return cli_wrong_use(cli, "--level: '%s' is neither default nor dense", text);
    cli->options.level = is_dense ? LMC_LEVEL_DENSE : LMC_LEVEL_DEFAULT;
    return LMCS_OK;
}

static enum lmcs_status set_threads(struct cli *cli, const struct option_row *row, const char *text)
{
    (void)row;
    int64_t threads = 0;
    if (!parse_integer(text, 1, CLI_MAX_THREADS, &threads))
        return cli_wrong_use(cli, "--threads: '%s' is not a number from 1 to %d", text, CLI_MAX_THREADS);
    cli->options.threads = (uint32_t)threads;
    return LMCS_OK;
}

struct expanded {
    struct expanded *next;
    char path[];
};

/*
 * Replaces a leading ~ or ~user by the home folder: the shell leaves it in --base=~/x and within quotes. The result
 * lasts until the end of the process.
 */
static const char *expand_home(const char *path)
{
    static struct expanded *all;
    char user[64] = "";
    size_t length = strcspn(path, "/");
    if (*path != '~' || length > sizeof user)
        return path;
    memcpy(user, path + 1, length - 1);
    const char *home = *user == '\0' ? getenv("HOME") : NULL;
    const struct passwd *entry = home != NULL ? NULL : *user == '\0' ? getpwuid(getuid()) : getpwnam(user);
    if (entry != NULL)
        home = entry->pw_dir;
    struct expanded *made = home != NULL ? malloc(sizeof *made + strlen(home) + strlen(path)) : NULL;
    if (made == NULL)
        return path;
    made->next = all;
    all = made;
    sprintf(made->path, "%s%s", home, path + length);
    return made->path;
}

static enum lmcs_status set_flag(struct cli *cli, const struct option_row *row, const char *text)
{
    (void)text;
    *(bool *)((char *)&cli->options + row->offset) = true;
    return LMCS_OK;
}

static enum lmcs_status set_text(struct cli *cli, const struct option_row *row, const char *text)
{
    if (*text == '\0')
        return cli_wrong_use(cli, "--%s: the value is empty", row->name);
    *(const char **)((char *)&cli->options + row->offset) = text;
    return LMCS_OK;
}

static enum lmcs_status set_path(struct cli *cli, const struct option_row *row, const char *text)
{
    return set_text(cli, row, expand_home(text));
}

static enum lmcs_status add_text(struct cli *cli, const struct option_row *row, const char *text)
{
    struct cli_list *list = (struct cli_list *)((char *)&cli->options + row->offset);
    if (*text == '\0')
        return cli_wrong_use(cli, "--%s: the value is empty", row->name);
    if (list->count == CLI_MAX_LIST)
        return cli_wrong_use(cli, "--%s: may be given at most %d times", row->name, CLI_MAX_LIST);
    list->items[list->count++] = text;
    return LMCS_OK;
}

static enum lmcs_status add_path(struct cli *cli, const struct option_row *row, const char *text)
{
    return add_text(cli, row, expand_home(text));
}

/* ---- The table ------------------------------------------------------------------------------------------------ */

#define FLAG(field)  set_flag, offsetof(struct cli_options, field)
#define TEXT(field)  set_text, offsetof(struct cli_options, field)
#define LIST(field)  add_text, offsetof(struct cli_options, field)
#define PATH(field)  set_path, offsetof(struct cli_options, field)
#define PATHS(field) add_path, offsetof(struct cli_options, field)

static const struct option_row rows[] = {
    {0, "size", "SIZE", "use at most this much of the disk, like 8GiB (default: grow with the disk)", set_size, 0},
    {'n', NULL, "N", "at most N: the newest snapshots, or the first tensors", set_count, 0},
    {0, "step", "N", "training step of the snapshot", set_step, 0},
    {0, "tag", "NAME", "put a tag on the snapshot; repeatable", LIST(tags)},
    {'o', "output", "FILE", "write to FILE, which appears whole or not at all; -: standard output", PATH(output)},
    {0, "force", NULL, "replace the output if it exists, which is an error otherwise", FLAG(force)},
    {0, "part", "PREFIX", "only tensors under this dotted prefix, which is stripped from their names", TEXT(part)},
    {0, "metrics", "FORM", "write the metrics of a shelf instead; FORM: tensorboard", TEXT(metrics)},
    {0, "base", "FILE", "the file that FILE is compressed against", PATH(base)},
    {0, "dtype", "NAME", "read FILE as a raw array of bf16, f32, ..., not as a safetensors file", set_dtype, 0},
    {0, "level", "LEVEL", "default, or dense: slower and smaller", set_level, 0},
    {0, "threads", "N", "use N threads (default: one per processor)", set_threads, 0},
    {0, "all", NULL, "all shelves", FLAG(all)},
    {0, "shelf", NULL, "remove the whole shelf", FLAG(whole_shelf)},
    {0, "finished", NULL, "encode the newest snapshots, too", FLAG(finished)},
    {0, "expect", "WHICH", "only if the tag is on WHICH now, like best~1 or 7; none: on no snapshot", TEXT(expect)},
    {0, "delete", NULL, "remove it", FLAG(delete_tag)},
    {0, "since", "ARCHIVE", "leave out contents of this older archive; repeatable", PATHS(since)},
    {0, "canonical", NULL, "the same archive for the same content, however it is stored", FLAG(canonical)},
    {0, "resume", NULL, "continue where an earlier run stopped", FLAG(resume)},
    {0, "skip-lost", NULL, "leave out snapshots with contents that a scrub found lost", FLAG(skip_lost)},
    {0, "allow-missing", NULL, "of a run: leave out parts that are missing, and say so", FLAG(allow_missing)},
    {0, "only", "PART", "only a part like run@5..9, or tensors like model.*; repeatable", LIST(only)},
    {0, "as", "SHELF", "restore the shelf under this name", TEXT(as)},
    {0, "move-tags", NULL, "move existing tags to where the archive has them", FLAG(move_tags)},
    {0, "prune", NULL, "remove the snapshots that the policy does not keep, now", FLAG(prune)},
    {0, "sample", "SHARE", "read only a share, like 1% or 10GiB, from where the last sample ended", set_sample, 0},
    {0, "rate", "SIZE", "read at most this much per second, like 100MiB", set_rate, 0},
    {0, "repair", NULL, "repair damage from other copies; record losses", FLAG(repair)},
    {0, "from", "FILE", "an archive or pool to repair from; repeatable", PATHS(from)},
    {0, "dry-run", NULL, "change nothing; report the bytes that would be freed", FLAG(dry_run)},
    {0, "wait", "SECONDS", "wait this long for another writer of the pool (default: 10)", set_wait, 0},
    {0, "force-network", NULL, "accept network file systems, where locks and mmap are unreliable", FLAG(force_network)},
    {0, "json", NULL, "print one JSON object on standard output", FLAG(json)},
    {'h', "help", NULL, "print this text", FLAG(help)},
};

#define ROW_COUNT (sizeof rows / sizeof *rows)

/* Whether the command has the option: its list has words separated by spaces; all commands have --help. */
static bool has_option(const struct cli_command *command, const struct option_row *row)
{
    const char letter[] = {row->letter, '\0'};
    const char *word = row->name != NULL ? row->name : letter;
    size_t length = strlen(word);
    if (row->letter == 'h')
        return true;
    for (const char *at = command->options; (at = strstr(at, word)) != NULL; at += length)
        if ((at == command->options || at[-1] == ' ') && (at[length] == '\0' || at[length] == ' '))
            return true;
    return false;
}

void cli_print_help(const struct cli_command *command, FILE *out)
{
    fprintf(out, "usage: lmc-store %s %s\n\n%s.\n\n%s\n\n", command->name, command->synopsis, command->summary,
            command->help);
    if (command->print_more != NULL)
        command->print_more(out);
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const struct option_row *row = &rows[i];
        char letter[] = {'-', row->letter, '\0'};
        char shown[48];
        if (!has_option(command, row))
            continue;
        snprintf(shown, sizeof shown, "%s%s%s%s%s%s", row->letter != '\0' ? letter : "  ",
                 row->name == NULL     ? ""
                 : row->letter != '\0' ? ", "
                                       : "  ",
                 row->name != NULL ? "--" : "", row->name != NULL ? row->name : "", row->argument != NULL ? " " : "",
                 row->argument != NULL ? row->argument : "");
        fprintf(out, "  %-22s %s\n", shown, row->help);
    }
}

bool cli_next_option(const struct cli_command *command, size_t *row, struct cli_option *option)
{
    while (*row < ROW_COUNT && command != NULL && !has_option(command, &rows[*row]))
        ++*row;
    if (*row == ROW_COUNT)
        return false;
    const struct option_row *at = &rows[*row];
    *option =
        (struct cli_option){at->letter, at->name, at->argument, at->help, at->set == set_path || at->set == add_path};
    return true;
}

/* ---- Parsing -------------------------------------------------------------------------------------------------- */

enum { FIRST_ROW = 256 }; /* getopt's value: FIRST_ROW plus the row, or a short option's letter */

static void make_tables(const struct cli_command *command, char *short_options, struct option *long_options)
{
    *short_options++ = ':';
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const struct option_row *row = &rows[i];
        if (!has_option(command, row))
            continue;
        if (row->letter != '\0')
            *short_options++ = row->letter;
        if (row->letter != '\0' && row->argument != NULL)
            *short_options++ = ':';
        if (row->name != NULL)
            *long_options++ = (struct option){row->name, row->argument != NULL ? required_argument : no_argument, NULL,
                                              FIRST_ROW + (int)i};
    }
    *short_options = '\0';
    *long_options = (struct option){0};
}

static const struct option_row *find_row(int value)
{
    size_t i = value >= FIRST_ROW ? (size_t)(value - FIRST_ROW) : 0;
    while (value < FIRST_ROW && rows[i].letter != (char)value)
        i++;
    return &rows[i];
}

static enum lmcs_status unknown_option(struct cli *cli, const char *typed)
{
    const char *names[ROW_COUNT];
    size_t count = 0;
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (rows[i].name != NULL && has_option(cli->command, &rows[i]))
            names[count++] = rows[i].name;
    const char *near = strncmp(typed, "--", 2) == 0 ? lmcs_nearest(typed + 2, names, count) : NULL;
    return cli_wrong_use(cli, "%s has no option '%s'%s%s%s", cli->command->name, typed,
                         near != NULL ? "; did you mean '--" : "", near != NULL ? near : "", near != NULL ? "'?" : "");
}

static enum lmcs_status take_arguments(struct cli *cli, int argc, char **argv)
{
    const struct cli_command *command = cli->command;
    if (cli->options.help)
        return LMCS_OK;
    if (argc > command->max_arguments)
        return cli_wrong_use(cli, "%s: unexpected '%s'", command->name, argv[command->max_arguments]);
    if (argc < command->min_arguments)
        return cli_wrong_use(cli, "%s: arguments are missing: %s %s", command->name, command->name, command->synopsis);
    for (int i = 0; i < argc; i++) {
        if (*argv[i] == '\0')
            return cli_wrong_use(cli, "%s: an argument is empty", command->name);
        bool is_path = i == 0 || (command->other_paths >> i & 1) != 0;
        cli->options.arguments[i] = is_path ? expand_home(argv[i]) : argv[i];
    }
    cli->options.argument_count = (size_t)argc;
    return LMCS_OK;
}

enum lmcs_status cli_parse(struct cli *cli, int argc, char **argv)
{
    char short_options[2 * ROW_COUNT + 2];
    struct option long_options[ROW_COUNT + 1];
    make_tables(cli->command, short_options, long_options);
    cli->options.step = LMCS_NO_STEP;
    cli->options.wait_ms = UINT32_MAX;
    enum lmcs_status status = LMCS_OK;
    int value = 0;
    opterr = 0;
    while (status == LMCS_OK && (value = getopt_long(argc, argv, short_options, long_options, NULL)) != -1) {
        const char *typed = argv[optind - 1];
        char letter[] = {'-', (char)optopt, '\0'};
        if (value == ':')
            status = cli_wrong_use(cli, "%s needs a value", typed);
        else if (value == '?')
            status = unknown_option(cli, optopt != 0 && strncmp(typed, "--", 2) != 0 ? letter : typed);
        else
            status = find_row(value)->set(cli, find_row(value), optarg);
    }
    return status == LMCS_OK ? take_arguments(cli, argc - optind, argv + optind) : status;
}
