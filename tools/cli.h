/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cli.h - what the commands of lmc-store share, one section a source file.
 *
 * A command gets a struct cli with the parsed command line, does its work through lmcstore.h, prints what a person
 * wants to know (or leaves a JSON object in cli->json) and returns a status; on failure cli->error says why. main
 * prints errors and JSON, closes the pool and makes the exit code.
 */
#ifndef CLI_H
#define CLI_H

#include "lmc.h"
#include "lmcstore.h"

#include <jansson.h>
#include <stdio.h>
#include <sys/types.h>

enum cli_exit { CLI_DONE = 0, CLI_FAILED = 1, CLI_WRONG_USE = 2, CLI_SIGNAL = 128 /* plus its number */ };

#define CLI_MAX_ARGUMENTS 64
#define CLI_MAX_LIST      64
#define CLI_MAX_TAGS      16
#define CLI_MAX_THREADS   256

struct cli;

struct cli_command {
    const char *name;
    const char *synopsis; /* what follows the name */
    const char *summary;  /* a line for the list of commands */
    const char *help;     /* paragraphs for --help */
    const char *options;  /* ids of the options it has: options.c */
    int min_arguments;
    int max_arguments;
    enum lmcs_status (*run)(struct cli *cli);
};

struct cli_options {
    const char *arguments[CLI_MAX_ARGUMENTS]; /* NULL: not given */
    size_t argument_count;
    bool json;
    bool help;
    bool delete_tag;
    bool dry_run;
    bool all;
    bool whole_shelf;
    bool prune;
    bool force_network;
    uint64_t size_bytes; /* 0: not given */
    uint64_t count;      /* 0: not given */
    int64_t step;
    uint32_t wait_ms;
    const char *tags[CLI_MAX_TAGS];
    size_t tag_count;
    const char *since[CLI_MAX_LIST];
    size_t since_count;
    const char *only[CLI_MAX_LIST];
    size_t only_count;
    const char *from[CLI_MAX_LIST];
    size_t from_count;
    double sample_share;   /* 0: not given */
    uint64_t sample_bytes; /* 0: not given */
    uint64_t rate_bytes;   /* 0: not given */
    bool repair;
    bool skip_lost;
    const char *as;
    bool canonical;
    bool resume;
    bool move_tags;
    const char *output;
    const char *part;
    const char *base;
    const char *expect;
    const char *png;
    uint32_t dtype; /* 0: not given */
    enum lmc_level level;
    uint32_t threads; /* 0: not given */
};

struct cli_progress {
    bool is_shown; /* standard error is a terminal */
    bool is_drawn; /* there is something to wipe */
    bool is_bytes; /* what is done is bytes: the rate is shown */
    int64_t started_ns;
    int64_t drawn_ns;
};

struct cli {
    const struct cli_command *command;
    struct cli_options options;
    struct lmcs_pool *pool;
    json_t *json;
    bool shows_hint; /* the error is about the command line: point to --help */
    struct cli_progress progress;
    struct lmcs_error error;
};

extern const struct cli_command cmd_create, cmd_info, cmd_ls, cmd_import, cmd_export, cmd_verify, cmd_compact, cmd_tag,
    cmd_rm, cmd_dump, cmd_restore, cmd_compress, cmd_decompress, cmd_log, cmd_diff, cmd_fork, cmd_mv, cmd_report,
    cmd_policy, cmd_scrub;

/* ---- options.c: the command line ------------------------------------------------------------------------------ */

/* Parses what follows the command's name. */
enum lmcs_status cli_parse(struct cli *cli, int argc, char **argv);
void cli_print_help(const struct cli_command *command);
/* "8GiB" -> bytes. False: not a size. */
bool cli_parse_size(const char *text, uint64_t *bytes);
/* The likeliest of some words for a mistyped one; NULL: none is near. */
const char *cli_nearest(const char *typed, const char *const *words, size_t count);

/* ---- support.c: errors, pools, snapshots ---------------------------------------------------------------------- */

__attribute__((format(printf, 4, 5))) enum lmcs_status cli_fail(struct cli *cli, enum lmcs_status status,
                                                                int system_errno, const char *format, ...);
/* LMCS_INVALID with a pointer to --help. */
__attribute__((format(printf, 2, 3))) enum lmcs_status cli_wrong_use(struct cli *cli, const char *format, ...);
/* Opens arguments[0] into cli->pool, without background work. */
enum lmcs_status cli_open(struct cli *cli, enum lmcs_open_mode mode);
enum lmcs_status cli_open_path(struct cli *cli, const char *path, enum lmcs_open_mode mode);
/* Closes cli->pool; an error of it is kept unless there was one before. */
enum lmcs_status cli_close(struct cli *cli, enum lmcs_status status);
/* All shelves of the pool, by name; `infos` to be freed, also after a failure. */
struct cli_shelves {
    struct lmcs_shelf_info *infos;
    size_t count;
    size_t capacity;
    bool is_out_of_memory;
};
enum lmcs_status cli_shelves(struct cli *cli, struct cli_shelves *shelves);
/* Opens an address that must name one snapshot ("run" alone is refused when `is_explicit`). */
enum lmcs_status cli_snapshot(struct cli *cli, const char *address, bool is_explicit, struct lmcs_snapshot **snapshot);

/* ---- archives.c: archives instead of pools ----------------------------------------------------------------------- */

/* Opens an archive for reading; "-": standard input, which may not be a terminal. */
enum lmcs_status cli_archive_open(struct cli *cli, const char *path, int *fd);
void cli_archive_close(int fd);
/* Whether what the first argument names is an archive, as far as its first bytes tell; "-" is one. */
bool cli_is_archive(const char *path);
/* A message that does not name the archive gets its name. */
void cli_archive_name(struct cli *cli, const char *path);
enum lmcs_status cli_archive_ls(struct cli *cli);
enum lmcs_status cli_archive_verify(struct cli *cli);

/* ---- text.c: for people --------------------------------------------------------------------------------------- */

struct cli_text {
    char text[32];
};
struct cli_text cli_bytes(uint64_t bytes);                /* "1.25 GiB" */
struct cli_text cli_time(uint64_t ns);                    /* "2026-11-21T12:00:00Z" */
struct cli_text cli_step(int64_t step);                   /* "120", "-" */
struct cli_text cli_ratio(uint64_t raw, uint64_t stored); /* "1.82x", "-" */
/* Prints text of others: control characters, invalid UTF-8 and direction marks are escaped. */
void cli_print(FILE *out, const char *text);
/*
 * Text that is made while the store is walked, and shown afterwards. A pager that nobody scrolls must not stop a walk:
 * until its end nothing that dies in the pool can be used again.
 */
struct cli_held {
    FILE *stream;
    char *text;
    size_t bytes;
};
enum lmcs_status cli_hold(struct cli *cli, struct cli_held *held);
/* Ends it: shows what was held if `status` is LMCS_OK, and passes the status on. */
enum lmcs_status cli_show(struct cli *cli, struct cli_held *held, enum lmcs_status status);
/* The singular or the plural: cli_s(1) is "", cli_s(2) is "s". */
const char *cli_s(uint64_t count);

/* ---- json.c: for scripts -------------------------------------------------------------------------------------- */

/* A string; bytes that are not UTF-8 become U+FFFD. */
json_t *cli_json_text(const char *text);
/* NaN and infinities, which JSON lacks, become strings. */
json_t *cli_json_real(double value);
/* null for a value that an int64 can't hold. */
json_t *cli_json_u64(uint64_t value);
/* Stores `value` (NULL: out of memory) under the key and takes it over. */
void cli_json_set(json_t *object, const char *key, json_t *value);
/* What a snapshot is: without how it is stored, which takes a walk of its manifest. */
enum lmcs_status cli_json_snapshot_head(struct cli *cli, struct lmcs_snapshot *snapshot, json_t **json);
/* All about a snapshot but its tensors. */
enum lmcs_status cli_json_snapshot(struct cli *cli, struct lmcs_snapshot *snapshot, json_t **json);
json_t *cli_json_error(const struct lmcs_error *error);

/* ---- progress.c: a bar, and signals --------------------------------------------------------------------------- */

/* From here on SIGINT, SIGTERM and SIGHUP are noted, so that nothing half made is left behind; a second one kills. */
void cli_catch_signals(void);
/* The same, and the first of them stops the work in an orderly way. */
struct lmcs_progress cli_progress_start(struct cli *cli);
void cli_progress_wipe(struct cli_progress *progress);
/* The signal that came; 0: none. */
int cli_signal(void);

/* ---- output.c: a file that appears whole or not at all -------------------------------------------------------- */

struct cli_output {
    int fd;
    char *target;    /* NULL: a pipe, a device */
    char *temporary; /* NULL: written in place; "" once it has its name */
    bool owns_fd;
};
/* Whether -o, or its absence, means standard output. */
bool cli_output_is_stdout(const struct cli *cli);
/* Refuses to write over an input (by its inode: whatever its name), over any pool, and over a poolset file. */
enum lmcs_status cli_output_check_path(struct cli *cli, const char *option, const char *path, const char *input,
                                       const char *input_is);
/*
 * That, for -o; and a terminal, and --json beside output on standard output. `what`: "an archive"; `input_is`: "the
 * pool".
 */
enum lmcs_status cli_output_check(struct cli *cli, const char *what, const char *input, const char *input_is);
/* NULL or "-": standard output. A new file has mode 0600. */
enum lmcs_status cli_output_open(struct cli *cli, const char *path, struct cli_output *output);
/* A file that is written in place, so that what is cut short stays. The commit makes it and its name durable. */
enum lmcs_status cli_output_open_begun(struct cli *cli, const char *path, struct cli_output *output);
enum lmcs_status cli_output_commit(struct cli *cli, struct cli_output *output);
void cli_output_close(struct cli_output *output);

#endif
