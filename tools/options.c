/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * options.c - the command line: one table of options, of which each command names those it has.
 */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

struct option_spec {
    char id;
    bool is_short; /* -i works too */
    const char *name;
    const char *argument; /* NULL: takes none */
    const char *help;
};

static const struct option_spec specs[] = {
    {'s', false, "size", "SIZE",
     "use at most this much of the disk, like 8GiB; without it the pool grows with the disk"},
    {'n', true, NULL, "N", "at most N of them: the newest snapshots, or the first tensors"},
    {'S', false, "step", "N", "the training step that the snapshot is of"},
    {'t', false, "tag", "NAME", "put a tag on the snapshot; may be given again"},
    {'o', true, "output", "FILE", "write to FILE, which appears whole or not at all; -: standard output"},
    {'p', false, "part", "PREFIX", "only tensors under this dotted prefix, which is stripped from their names"},
    {'b', false, "base", "FILE", "the file that FILE is compressed, or was compressed, against"},
    {'y', false, "dtype", "NAME", "take FILE for a raw array of bf16, f32, ... and not for a safetensors file"},
    {'l', false, "level", "LEVEL", "default, or dense: slower and smaller"},
    {'T', false, "threads", "N", "use this many threads; without it as many as there are processors"},
    {'a', false, "all", NULL, "all shelves"},
    {'H', false, "shelf", NULL, "remove the whole shelf"},
    {'e', false, "expect", "WHICH", "only if the tag is there now, like best~1 or 7; none: on no snapshot"},
    {'G', false, "png", "FILE", "draw a picture, too, or alone without -o; needs matplotlib"},
    {'d', false, "delete", NULL, "take the tag off instead"},
    {'I', false, "since", "ARCHIVE", "leave out what this older archive has; may be given again"},
    {'C', false, "canonical", NULL, "the same archive for the same content, however it is stored"},
    {'R', false, "resume", NULL, "go on with what is there of it"},
    {'K', false, "skip-lost", NULL, "leave out snapshots of which a scrub found something lost"},
    {'O', false, "only", "WHAT", "only this: a part like run@5..9, or tensors like model.*; may be given again"},
    {'W', false, "as", "SHELF", "restore the shelf under this name"},
    {'M', false, "move-tags", NULL, "tags that are elsewhere move to where the archive has them"},
    {'u', false, "prune", NULL, "remove now what the policy does not keep"},
    {'A', false, "sample", "SHARE", "read only so much of it, like 1% or 10GiB, from where the last sample ended"},
    {'x', false, "rate", "SIZE", "read no more than this a second, like 100MiB"},
    {'E', false, "repair", NULL, "repair what there is another copy of; note what is lost"},
    {'F', false, "from", "FILE", "an archive or pool that may have what is damaged; may be given again"},
    {'D', false, "dry-run", NULL, "change nothing, say what would be freed"},
    {'w', false, "wait", "SECONDS", "wait this long for another writer of the pool (10)"},
    {'f', false, "force-network", NULL, "accept NFS, Lustre, FUSE and the like, where locks and mappings may lie"},
    {'j', false, "json", NULL, "one JSON object on standard output"},
    {'h', true, "help", NULL, "this text"},
};

#define SPEC_COUNT (sizeof specs / sizeof *specs)

/* Every command has --help. */
static bool has_option(const struct cli_command *command, char id)
{
    return id == 'h' || strchr(command->options, id);
}

void cli_print_help(const struct cli_command *command)
{
    printf("usage: lmc-store %s %s\n\n%s.\n\n%s\n\n", command->name, command->synopsis, command->summary,
           command->help);
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        const struct option_spec *spec = &specs[i];
        char shown[48];
        if (!has_option(command, spec->id))
            continue;
        snprintf(shown, sizeof shown, "%c%c%s%s%s%s%s", spec->is_short ? '-' : ' ', spec->is_short ? spec->id : ' ',
                 spec->is_short && spec->name ? ", "
                 : spec->name                 ? "  "
                                              : "",
                 spec->name ? "--" : "", spec->name ? spec->name : "", spec->argument ? " " : "",
                 spec->argument ? spec->argument : "");
        printf("  %-22s %s\n", shown, spec->help);
    }
}

/* ---- Values --------------------------------------------------------------------------------------------------- */

/* Bytes of a unit: powers of 1024, but of 1000 where it is written with a B alone ("MB"); 0: no unit. */
static uint64_t unit_bytes(const char *text)
{
    static const char letters[] = "kmgtp";
    if (*text == '\0' || strcasecmp(text, "b") == 0)
        return 1;
    const char *letter = strchr(letters, tolower((unsigned char)*text));
    bool is_decimal = strcasecmp(text + 1, "b") == 0;
    if (!letter || (!is_decimal && text[1] && strcasecmp(text + 1, "ib") != 0))
        return 0;
    uint64_t bytes = 1;
    for (const char *l = letters; l <= letter; l++)
        bytes *= is_decimal ? 1000 : 1024;
    return bytes;
}

/* Up to three digits behind a point, in thousandths. False: something else is there. */
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
    if (errno || !parse_fraction(&at, &thousandths))
        return false;
    at += *at == ' ';
    uint64_t unit = unit_bytes(at);
    if (unit == 0 || __builtin_mul_overflow(whole, unit, bytes) ||
        __builtin_add_overflow(*bytes, unit * thousandths / 1000, bytes))
        return false;
    return *bytes <= INT64_MAX;
}

/* A whole number from `least` to `most`. */
static bool parse_integer(const char *text, int64_t least, int64_t most, int64_t *value)
{
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end || isspace((unsigned char)*text) || number < least || number > most)
        return false;
    *value = number;
    return true;
}

static enum lmcs_status set_size(struct cli *cli, const char *text)
{
    if (!cli_parse_size(text, &cli->options.size_bytes))
        return cli_wrong_use(cli, "--size: '%s' is not a size such as 8GiB, 500MB or 1073741824", text);
    if (cli->options.size_bytes < LMCS_MIN_POOL_BYTES)
        return cli_wrong_use(cli, "--size: '%s' is too small; a pool has 8 MiB at least", text);
    return LMCS_OK;
}

static enum lmcs_status set_sample(struct cli *cli, const char *text)
{
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

/* "100MiB", "100MiB/s" */
static enum lmcs_status set_rate(struct cli *cli, const char *text)
{
    char size[64];
    snprintf(size, sizeof size, "%s", text);
    size_t length = strlen(size);
    if (length > 2 && strcmp(size + length - 2, "/s") == 0)
        size[length - 2] = '\0';
    if (strlen(text) >= sizeof size || !cli_parse_size(size, &cli->options.rate_bytes) || cli->options.rate_bytes == 0)
        return cli_wrong_use(cli, "--rate: '%s' is not a size such as 100MiB", text);
    return LMCS_OK;
}

static enum lmcs_status add_from(struct cli *cli, const char *path)
{
    if (cli->options.from_count == CLI_MAX_LIST)
        return cli_wrong_use(cli, "--from: more than %d files", CLI_MAX_LIST);
    cli->options.from[cli->options.from_count++] = path;
    return LMCS_OK;
}

static enum lmcs_status set_count(struct cli *cli, const char *text)
{
    int64_t count = 0;
    if (!parse_integer(text, 1, INT64_MAX, &count))
        return cli_wrong_use(cli, "-n: '%s' is not a number from 1 on", text);
    cli->options.count = (uint64_t)count;
    return LMCS_OK;
}

static enum lmcs_status set_wait(struct cli *cli, const char *text)
{
    int64_t seconds = 0;
    if (!parse_integer(text, 0, 1000000, &seconds))
        return cli_wrong_use(cli, "--wait: '%s' is not a number of seconds", text);
    cli->options.wait_ms = (uint32_t)seconds * 1000;
    return LMCS_OK;
}

static enum lmcs_status set_step(struct cli *cli, const char *text)
{
    if (!parse_integer(text, LMCS_NO_STEP + 1, INT64_MAX, &cli->options.step))
        return cli_wrong_use(cli, "--step: '%s' is not a whole number", text);
    return LMCS_OK;
}

static enum lmcs_status add_tag(struct cli *cli, const char *text)
{
    if (cli->options.tag_count == CLI_MAX_TAGS)
        return cli_wrong_use(cli, "--tag: more than %d tags", CLI_MAX_TAGS);
    cli->options.tags[cli->options.tag_count++] = text;
    return LMCS_OK;
}

static enum lmcs_status add_since(struct cli *cli, const char *text)
{
    if (cli->options.since_count == CLI_MAX_LIST)
        return cli_wrong_use(cli, "--since: more than %d archives", CLI_MAX_LIST);
    cli->options.since[cli->options.since_count++] = text;
    return LMCS_OK;
}

static enum lmcs_status add_only(struct cli *cli, const char *text)
{
    if (cli->options.only_count == CLI_MAX_LIST)
        return cli_wrong_use(cli, "--only: more than %d of them", CLI_MAX_LIST);
    if (*text == '\0')
        return cli_wrong_use(cli, "--only: it is empty");
    cli->options.only[cli->options.only_count++] = text;
    return LMCS_OK;
}

/* Lists the names when it is none of them. */
static enum lmcs_status set_dtype(struct cli *cli, const char *text)
{
    char names[512] = "";
    size_t used = 0;
    cli->options.dtype = lmc_dtype_from_name(text);
    if (cli->options.dtype)
        return LMCS_OK;
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END && used < sizeof names; dtype++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", lmc_dtype_name(dtype));
    return cli_wrong_use(cli, "--dtype: '%.100s' is none of %s", text, names);
}

static enum lmcs_status set_level(struct cli *cli, const char *text)
{
    bool is_dense = strcmp(text, "dense") == 0;
    if (!is_dense && strcmp(text, "default") != 0)
        return cli_wrong_use(cli, "--level: '%s' is neither default nor dense", text);
    cli->options.level = is_dense ? LMC_LEVEL_DENSE : LMC_LEVEL_DEFAULT;
    return LMCS_OK;
}

static enum lmcs_status set_threads(struct cli *cli, const char *text)
{
    int64_t threads = 0;
    if (!parse_integer(text, 1, CLI_MAX_THREADS, &threads))
        return cli_wrong_use(cli, "--threads: '%s' is not a number from 1 to %d", text, CLI_MAX_THREADS);
    cli->options.threads = (uint32_t)threads;
    return LMCS_OK;
}

static enum lmcs_status set_base(struct cli *cli, const char *text)
{
    cli->options.base = text;
    return *text ? LMCS_OK : cli_wrong_use(cli, "--base: the name of the file is empty");
}

/* ---- Parsing -------------------------------------------------------------------------------------------------- */

static enum lmcs_status apply(struct cli *cli, int id, const char *value)
{
    struct cli_options *options = &cli->options;
    switch (id) {
    case 's':
        return set_size(cli, value);
    case 'n':
        return set_count(cli, value);
    case 'S':
        return set_step(cli, value);
    case 't':
        return add_tag(cli, value);
    case 'w':
        return set_wait(cli, value);
    case 'b':
        return set_base(cli, value);
    case 'y':
        return set_dtype(cli, value);
    case 'l':
        return set_level(cli, value);
    case 'T':
        return set_threads(cli, value);
    case 'I':
        return add_since(cli, value);
    case 'O':
        return add_only(cli, value);
    case 'A':
        return set_sample(cli, value);
    case 'x':
        return set_rate(cli, value);
    case 'F':
        return add_from(cli, value);
    case 'E':
        options->repair = true;
        break;
    case 'K':
        options->skip_lost = true;
        break;
    case 'W':
        options->as = value;
        break;
    case 'C':
        options->canonical = true;
        break;
    case 'R':
        options->resume = true;
        break;
    case 'M':
        options->move_tags = true;
        break;
    case 'o':
        options->output = value;
        break;
    case 'p':
        options->part = value;
        break;
    case 'G':
        options->png = value;
        break;
    case 'a':
        options->all = true;
        break;
    case 'H':
        options->whole_shelf = true;
        break;
    case 'e':
        options->expect = value;
        break;
    case 'd':
        options->delete_tag = true;
        break;
    case 'u':
        options->prune = true;
        break;
    case 'D':
        options->dry_run = true;
        break;
    case 'f':
        options->force_network = true;
        break;
    case 'j':
        options->json = true;
        break;
    default:
        options->help = true;
        break;
    }
    return LMCS_OK;
}

/* getopt's tables of what the command has. */
static void make_tables(const struct cli_command *command, char *short_options, struct option *long_options)
{
    *short_options++ = ':';
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        const struct option_spec *spec = &specs[i];
        if (!has_option(command, spec->id))
            continue;
        if (spec->is_short)
            *short_options++ = spec->id;
        if (spec->is_short && spec->argument)
            *short_options++ = ':';
        if (spec->name)
            *long_options++ = (struct option){spec->name, spec->argument ? required_argument : no_argument, NULL,
                                              (unsigned char)spec->id};
    }
    *short_options = '\0';
    *long_options = (struct option){0};
}

static enum lmcs_status unknown_option(struct cli *cli, const char *typed)
{
    const char *names[SPEC_COUNT];
    size_t count = 0;
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        if (specs[i].name && has_option(cli->command, specs[i].id))
            names[count++] = specs[i].name;
    }
    const char *near = strncmp(typed, "--", 2) == 0 ? cli_nearest(typed + 2, names, count) : NULL;
    return cli_wrong_use(cli, "%s has no option '%s'%s%s%s", cli->command->name, typed,
                         near ? "; did you mean '--" : "", near ? near : "", near ? "'?" : "");
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
        if (!*argv[i])
            return cli_wrong_use(cli, "%s: an argument is empty", command->name);
        cli->options.arguments[i] = argv[i];
    }
    cli->options.argument_count = (size_t)argc;
    return LMCS_OK;
}

enum lmcs_status cli_parse(struct cli *cli, int argc, char **argv)
{
    char short_options[2 * SPEC_COUNT + 2];
    struct option long_options[SPEC_COUNT + 1];
    make_tables(cli->command, short_options, long_options);
    cli->options.step = LMCS_NO_STEP;
    cli->options.wait_ms = UINT32_MAX;
    enum lmcs_status status = LMCS_OK;
    int id = 0;
    opterr = 0;
    while (status == LMCS_OK && (id = getopt_long(argc, argv, short_options, long_options, NULL)) != -1) {
        const char *typed = argv[optind - 1];
        char letter[] = {'-', (char)optopt, '\0'};
        if (id == ':')
            status = cli_wrong_use(cli, "%s needs a value", typed);
        else if (id == '?')
            status = unknown_option(cli, optopt && strncmp(typed, "--", 2) != 0 ? letter : typed);
        else
            status = apply(cli, id, optarg);
    }
    return status == LMCS_OK ? take_arguments(cli, argc - optind, argv + optind) : status;
}

/* ---- Did you mean --------------------------------------------------------------------------------------------- */

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Letters to insert, delete, replace or swap with their neighbour (optimal string alignment). */
static unsigned distance(const char *a, const char *b)
{
    enum { MAX = 24 };
    unsigned table[MAX + 1][MAX + 1];
    size_t m = strlen(a);
    size_t n = strlen(b);
    if (m > MAX || n > MAX)
        return UINT32_MAX;
    for (size_t i = 0; i <= m; i++) {
        for (size_t j = 0; j <= n; j++) {
            if (i == 0 || j == 0) {
                table[i][j] = (unsigned)(i + j);
                continue;
            }
            unsigned replaced = table[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            table[i][j] = least(replaced, least(table[i - 1][j], table[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                table[i][j] = least(table[i][j], table[i - 2][j - 2] + 1);
        }
    }
    return table[m][n];
}

const char *cli_nearest(const char *typed, const char *const *words, size_t count)
{
    const char *best = NULL;
    unsigned best_distance = 3;
    for (size_t i = 0; i < count; i++) {
        unsigned d = distance(typed, words[i]);
        bool is_far = d >= strlen(words[i]) || d > (strlen(typed) + 1) / 2;
        if (strlen(typed) > 1 && strncmp(words[i], typed, strlen(typed)) == 0)
            d = 0;
        else if (is_far)
            continue;
        if (d < best_distance) {
            best = words[i];
            best_distance = d;
        }
    }
    return best;
}
