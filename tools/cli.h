/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cli.h - shared parts of the commands of lmc-store, one section per source file.
 *
 * A command prints its result, or leaves a JSON object in cli->json, and returns a status; on failure cli->error has
 * the reason. main prints errors and JSON, closes the pool and returns the exit code. store/README.md lists the places
 * of a new command.
 */
#ifndef CLI_H
#define CLI_H

#include "lmc.h"
#include "lmcstore.h"

#include "base/names.h"
#include "base/outfile.h"

#include <jansson.h>
#include <stdio.h>
#include <sys/types.h>

enum cli_exit { CLI_DONE = 0, CLI_FAILED = 1, CLI_WRONG_USE = 2, CLI_SIGNAL = 128 /* plus its number */ };

#define CLI_MAX_ARGUMENTS 64
#define CLI_MAX_LIST      64
#define CLI_MAX_THREADS   256

struct cli;

struct cli_command {
    const char *name;
    const char *synopsis; /* the arguments, for help */
    const char *summary;
    const char *help;
    void (*print_more)(FILE *out); /* NULL, or prints more */
    const char *options;           /* names (options.c), separated by spaces */
    const char *values;            /* the words of the first argument, separated by spaces; NULL: it is a path */
    int min_arguments;
    int max_arguments;
    uint64_t other_paths;  /* bits: arguments that are paths, like the first */
    const char *no_folder; /* what to do instead with the folder of a run; NULL: it is taken like a pool */
    enum lmcs_status (*run)(struct cli *cli);
};

struct cli_list {
    const char *items[CLI_MAX_LIST];
    size_t count;
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
    bool finished;
    bool prune;
    bool force;
    bool force_network;
    uint64_t size_bytes; /* 0: not given */
    uint64_t count;      /* 0: not given */
    int64_t step;
    uint32_t wait_ms;
    struct cli_list tags;
    struct cli_list since;
    struct cli_list only;
    struct cli_list from;
    double sample_share;   /* 0: not given */
    uint64_t sample_bytes; /* 0: not given */
    uint64_t rate_bytes;   /* 0: not given */
    bool repair;
    bool skip_lost;
    bool allow_missing;
    const char *as;
    bool canonical;
    bool resume;
    bool move_tags;
    const char *output;
    const char *part;
    const char *metrics;
    const char *base;
    const char *expect;
    uint32_t dtype; /* 0: not given */
    enum lmc_level level;
    uint32_t threads; /* 0: not given */
};

struct cli_progress {
    bool is_shown; /* standard error is a terminal */
    bool is_drawn;
    bool is_bytes; /* show the rate */
    int64_t started_ns;
    int64_t drawn_ns;
};

struct cli {
    const struct cli_command *command;
    struct cli_options options;
    struct lmcs_pool *pool;
    struct cli_folder *folder; /* folder.h; of a run, whose records are `pool`. NULL: none */
    json_t *json;
    bool shows_hint; /* mention --help */
    struct cli_progress progress;
    struct lmcs_error error;
};

extern const struct cli_command cmd_create, cmd_info, cmd_ls, cmd_import, cmd_export, cmd_verify, cmd_compact, cmd_tag,
    cmd_rm, cmd_dump, cmd_restore, cmd_compress, cmd_decompress, cmd_log, cmd_diff, cmd_fork, cmd_mv, cmd_policy,
    cmd_scrub, cmd_note, cmd_metric, cmd_completion;

/* ---- lmc-store.c: the commands -------------------------------------------------------------------------------- */

extern const struct cli_command *const cli_commands[]; /* ends with NULL */
/* Commands that are other executables: for the list of commands, and for the error if one is not installed. */
struct cli_external {
    const char *name;
    const char *synopsis;
    const char *summary;
    const char *install;
};
extern const struct cli_external cli_externals[]; /* ends with a name of NULL */
void cli_print_usage(FILE *out);

/* ---- options.c: the command line ------------------------------------------------------------------------------ */

enum lmcs_status cli_parse(struct cli *cli, int argc, char **argv);
void cli_print_help(const struct cli_command *command, FILE *out);
struct cli_option {
    char letter;          /* '\0': none */
    const char *name;     /* NULL: none */
    const char *argument; /* NULL: takes none */
    const char *help;
    bool is_path;
};
/* Finds the command's first option from *row of the table on (NULL: any command's); false: there is none. */
bool cli_next_option(const struct cli_command *command, size_t *row, struct cli_option *option);
/* Parses a size like "8GiB"; false: not a size. */
bool cli_parse_size(const char *text, uint64_t *bytes);

/* ---- support.c: errors ---------------------------------------------------------------------------------------- */

__attribute__((format(printf, 4, 5))) enum lmcs_status cli_fail(struct cli *cli, enum lmcs_status status,
                                                                int system_errno, const char *format, ...);
/* Returns LMCS_INVALID; the message mentions --help. */
/* Damage of some shelves or snapshots among many, which are left out; the first is reported at the end. */
struct cli_passed {
    enum lmcs_status status;
    struct lmcs_error first;
};
/* LMCS_OK for LMCS_DAMAGED and LMCS_UNSUPPORTED, which it keeps. */
enum lmcs_status cli_pass(struct cli *cli, struct cli_passed *passed, enum lmcs_status status);
/* The kept failure, if all else went well. */
enum lmcs_status cli_passed(struct cli *cli, const struct cli_passed *passed, enum lmcs_status status);
__attribute__((format(printf, 2, 3))) enum lmcs_status cli_wrong_use(struct cli *cli, const char *format, ...);

/* ---- pools.c: pools, folders, snapshots ----------------------------------------------------------------------- */

/* Opens arguments[0] as cli->pool, without background work; the folder of a run also as cli->folder. */
enum lmcs_status cli_open(struct cli *cli, enum lmcs_open_mode mode);
/* Opens it for writing, without a wait; for reading if that fails, as when another process writes. */
enum lmcs_status cli_open_any(struct cli *cli);
enum lmcs_status cli_open_path(struct cli *cli, const char *path, enum lmcs_open_mode mode);
/* Returns `status`, or the close's error if `status` is LMCS_OK. */
enum lmcs_status cli_close(struct cli *cli, enum lmcs_status status);
/* The shelves, by name. The caller frees `infos`, also after a failure. */
struct cli_shelves {
    struct lmcs_shelf_info *infos;
    size_t count;
    size_t capacity;
    bool is_out_of_memory;
};
enum lmcs_status cli_shelves(struct cli *cli, struct cli_shelves *shelves);
/* Opens the snapshot of an address. `is_explicit`: refuses a shelf alone ("run"). */
enum lmcs_status cli_snapshot(struct cli *cli, const char *address, bool is_explicit, struct lmcs_snapshot **snapshot);

/* ---- archives.c: archives instead of pools ----------------------------------------------------------------------- */

/* Opens an archive for reading; "-": standard input, unless it is a terminal. */
enum lmcs_status cli_archive_open(struct cli *cli, const char *path, int *fd);
void cli_archive_close(int fd);
/* Whether the path is an archive, by its first bytes; "-" is. */
bool cli_is_archive(const char *path);
/* Adds the archive's path to an error without it. */
void cli_archive_name(struct cli *cli, const char *path);
enum lmcs_status cli_archive_ls(struct cli *cli);
enum lmcs_status cli_archive_verify(struct cli *cli);

/* ---- pushed.c -------------------------------------------------------------------------------------------------- */

/* Shows the newest snapshot that was pushed, and how many follow; in JSON as "pushed". */
void cli_show_pushed(struct cli *cli, const char *path);

/* ---- text.c: for people --------------------------------------------------------------------------------------- */

struct cli_text {
    char text[32];
};
struct cli_text cli_bytes(uint64_t bytes);                /* "1.25 GiB" */
struct cli_text cli_new_bytes(uint64_t bytes);            /* the same, "?" for LMCS_BYTES_UNKNOWN */
struct cli_text cli_time(uint64_t ns);                    /* "2026-11-21T12:00:00Z" */
struct cli_text cli_step(int64_t step);                   /* "120", "-" */
struct cli_text cli_ratio(uint64_t raw, uint64_t stored); /* "1.82x", "-" */
struct cli_text cli_remote(uint64_t count);               /* "; 3 remote", "" */
/* Prints text; escapes control characters, invalid UTF-8 and direction marks. */
void cli_print(FILE *out, const char *text);
/* Text collected during a walk and shown afterwards: a pager must not block the walk, during which freed space cannot
 * be reused. */
struct cli_held {
    FILE *stream;
    char *text;
    size_t bytes;
};
enum lmcs_status cli_hold(struct cli *cli, struct cli_held *held);
/* Shows the text if `status` is LMCS_OK, and frees it. Returns the status. */
enum lmcs_status cli_show(struct cli *cli, struct cli_held *held, enum lmcs_status status);
/* Prints each line on standard error, as a warning. */
void cli_warn_lines(const char *lines);
/* Returns the plural's ending: "" for 1, else "s". */
const char *cli_s(uint64_t count);

/* ---- folder_sizes.c: sizes of snapshots ------------------------------------------------------------------------ */

/* Sizes of a snapshot; of a run's, the sums of its parts. */
struct cli_sizes {
    uint64_t tensor_count;
    uint64_t raw_bytes;
    uint64_t new_bytes;
    struct lmcs_snapshot_storage storage;
    char lacks[1024];              /* the first part that is not in the folder; "": none */
    char remote[LMCS_MAX_URL + 1]; /* the URL to which it has left, or a part of it; "": none */
};
/* Takes new_bytes over unless the snapshot is a run's. Walks the manifests. */
enum lmcs_status cli_sizes(struct cli *cli, struct lmcs_snapshot *snapshot, uint64_t new_bytes,
                           struct cli_sizes *sizes);
/* The same without the storage; of a pool's snapshot without a walk. */
enum lmcs_status cli_sizes_head(struct cli *cli, struct lmcs_snapshot *snapshot, uint64_t new_bytes,
                                struct cli_sizes *sizes);

/* ---- json.c: for scripts -------------------------------------------------------------------------------------- */

/* Bytes that are not UTF-8 become U+FFFD. */
json_t *cli_json_text(const char *text);
/* Lines that each end with a newline, as a list. */
json_t *cli_json_lines(const char *lines);
/* NaN and infinities, which JSON lacks, become strings. */
json_t *cli_json_real(double value);
/* null above INT64_MAX. */
json_t *cli_json_u64(uint64_t value); /* above INT64_MAX: null */
/* Takes over `value`; NULL: out of memory. */
void cli_json_set(json_t *object, const char *key, json_t *value);
/* Describes a snapshot without its tensors; ... */
enum lmcs_status cli_json_snapshot(struct cli *cli, struct lmcs_snapshot *snapshot, json_t **json);
/* ... with sizes that are known; ... */
enum lmcs_status cli_json_sized(struct cli *cli, struct lmcs_snapshot *snapshot, const struct cli_sizes *sizes,
                                json_t **json);
/* ... without its storage. */
enum lmcs_status cli_json_snapshot_head(struct cli *cli, struct lmcs_snapshot *snapshot, const struct cli_sizes *sizes,
                                        json_t **json);
json_t *cli_json_error(const struct lmcs_error *error);

/* ---- due.c: what a policy is about to remove -------------------------------------------------------------------- */

/* Snapshots that the background may remove now, and later at `at_ns`, when the grace period ends. */
struct cli_due {
    json_t *now, *later; /* numbers */
    uint64_t at_ns;
    bool has_budget; /* removes them only when it is exceeded */
};
struct cli_due cli_due_new(const struct lmcs_shelf_info *info);
void cli_due_free(struct cli_due *due);
/* For a dry run of lmcs_prune; `context`: struct cli_due. */
bool cli_due_note(void *context, const struct lmcs_pruned *snapshot);
bool cli_due_is_empty(const struct cli_due *due);
/* Prints up to two lines, each after `before`. */
void cli_due_print(const struct cli_due *due, const char *before);
json_t *cli_due_json(const struct cli_due *due);

/* ---- tensorboard.c: metrics ------------------------------------------------------------------------------------ */

/* Runs 'export --metrics tensorboard'. */
enum lmcs_status cli_export_tensorboard(struct cli *cli);

/* ---- progress.c: a bar, and signals --------------------------------------------------------------------------- */

/* Catches SIGINT, SIGTERM and SIGHUP. A second signal kills. */
void cli_catch_signals(void);
/* Catches signals, and returns the progress function, which cancels after the first. */
struct lmcs_progress cli_progress_start(struct cli *cli);
void cli_progress_wipe(struct cli_progress *progress);
/* The caught signal; 0: none. */
int cli_signal(void);

/* ---- output.c: the output of -o, checked and opened -------------------------------------------------------- */

/* Whether -o or its absence means standard output. */
bool cli_output_is_stdout(const struct cli *cli);
/* Refuses the input (by inode), a pool or a poolset file. `option`: "-o". */
enum lmcs_status cli_output_check_path(struct cli *cli, const char *option, const char *path, const char *input,
                                       const char *input_is);
/*
 * Also refuses a terminal, and --json with output on standard output. `output_is`: "an archive"; `input_is`: "the
 * pool".
 */
enum lmcs_status cli_output_check(struct cli *cli, const char *output_is, const char *input, const char *input_is);
/* Refuses to replace a file that has content, unless --force is given. */
enum lmcs_status cli_output_check_new(struct cli *cli);
/* Opens the file of -o, or standard output. */
enum lmcs_status cli_output_open(struct cli *cli, struct lmcs_outfile *output);

#endif
