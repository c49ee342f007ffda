/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * folder.h - the folder of a run of many ranks, read as one store (store/RUNS.md).
 *
 * cli_open opens the records' pool as cli->pool and the folder as cli->folder. A snapshot of the run is a snapshot of
 * cli->pool, whose state is the *record*: which boxes of each tensor the ranks' snapshots, its *parts*, have. Records
 * may be hostile: cli_record_read checks all that these structs have. Boxes of a tensor may overlap or leave gaps.
 */
#ifndef FOLDER_H
#define FOLDER_H

#include "cli.h"

struct cli_part {
    uint64_t rank;
    unsigned char uuid[16]; /* of its pool when it was saved; a restored pool has another one */
    const char *file;       /* of its pool */
    uint64_t number;
    unsigned char group[16];
};

struct cli_box {
    size_t part;
    const char *name; /* of the stored tensor */
    const uint64_t *offsets;
    const uint64_t *sizes;
    uint64_t bytes;
};

struct cli_tensor {
    const char *name;
    uint32_t dtype;
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t raw_bytes;
    const struct cli_box *boxes;
    size_t box_count;
};

struct cli_record {
    char address[LMCS_MAX_NAME + 24];
    const char *shelf;
    struct cli_part *parts;
    size_t part_count;
    struct cli_tensor *tensors;
    size_t tensor_count;
    uint64_t raw_bytes; /* of all tensors */
    uint64_t values;
    uint64_t opaque; /* pickles */
    struct cli_box *boxes;
    size_t box_count;
    const struct cli_tensor **by_name;
    uint64_t *layout;
    json_t *state; /* owns the texts */
};

/* ---- folder.c: the pools ---- */

#define CLI_RECORDS   "records.pool"
#define CLI_RESTORING "records.restoring" /* of a restore that has not ended */

bool cli_is_folder(const char *path);
/* The path of a file in a folder, which the caller frees; NULL: no memory. */
char *cli_folder_path(const char *folder, const char *file);
/* Opens the records' pool as cli->pool, and lists the files of the ranks. */
enum lmcs_status cli_folder_open(struct cli *cli, const char *path, enum lmcs_open_mode mode);
/* Only lists the files. */
enum lmcs_status cli_folder_list(struct cli *cli, const char *path);
void cli_folder_close(struct cli_folder *folder);
/* The files of the ranks' pools; NULL: no more. */
const char *cli_folder_file(const struct cli_folder *folder, size_t i);
/* Opens the pool of a file for reading; it stays open. */
enum lmcs_status cli_folder_pool(struct cli *cli, size_t i, struct lmcs_pool **pool);
/* The same for writing, without a wait; the caller closes it. LMCS_IN_USE: another process writes to it. */
enum lmcs_status cli_folder_writable(struct cli *cli, size_t i, struct lmcs_pool **pool);
/* The pools of all files, open for writing. */
struct cli_writers {
    struct lmcs_pool **pools; /* NULL: not open */
    size_t count;
};
/* Opens all, or fails before anything is changed; cli_writers_close follows. */
enum lmcs_status cli_writers_open(struct cli *cli, struct cli_writers *writers);
/* Returns `status`, or the first failure of a close. */
enum lmcs_status cli_writers_close(struct cli *cli, struct cli_writers *writers, enum lmcs_status status);
/* Finds the file of a part's pool (store/RUNS.md, "Finding parts"). LMCS_NOT_FOUND: it is not in the folder. */
enum lmcs_status cli_part_find(struct cli *cli, const char *shelf, const struct cli_part *part, size_t *file);
/* Opens a part, prepared or committed. LMCS_NOT_FOUND: its pool is not in the folder, or lacks it. */
enum lmcs_status cli_part_open(struct cli *cli, const struct cli_record *record, const struct cli_part *part,
                               struct lmcs_pool **pool, struct lmcs_snapshot **snapshot);
/* The URL of the run that has a part which has left its pool; "": it has not. */
void cli_part_url(const struct lmcs_snapshot *part, char url[LMCS_MAX_URL + 1]);
/* LMCS_REMOTE, with the remedy, if a part has left its pool. */
enum lmcs_status cli_part_local(struct cli *cli, const char *address, const struct lmcs_snapshot *part);

/* ---- folder_decode.c: states that Python wrote ---- */

/*
 * Decodes the parts `wanted` (ends with NULL) of a snapshot's state, a dict: dicts as objects, their integer keys as
 * text; lists, tuples and sets as arrays; texts and bytes as strings, unchecked; what JSON lacks as null. Of
 * those with a '*' in front only the keys, with null. LMCS_DAMAGED: the state lacks one, or contradicts itself.
 */
enum lmcs_status cli_state_decode(struct cli *cli, struct lmcs_snapshot *snapshot, const char *const *wanted,
                                  json_t **state);

/* ---- folder_record.c: records ---- */

/* Reads a record; cli_record_free frees it, also after a failure. */
enum lmcs_status cli_record_read(struct cli *cli, struct lmcs_snapshot *snapshot, struct cli_record *record);
/* Reads its parts only. */
enum lmcs_status cli_record_head(struct cli *cli, struct lmcs_snapshot *snapshot, struct cli_record *record);
/* The same of a number, into a record that is empty. */
enum lmcs_status cli_record_at(struct cli *cli, const char *shelf, uint64_t number, struct cli_record *record);
void cli_record_free(struct cli_record *record);
/* NULL: it has no such tensor. */
const struct cli_tensor *cli_record_find(const struct cli_record *record, const char *name);

/* ---- folder_tensors.c: joined tensors ---- */

/* A record with its parts, which are opened when a tensor needs them. */
struct cli_joined {
    struct cli *cli;
    struct cli_record record;
    struct lmcs_snapshot **parts;
};
/* cli_joined_close closes it, also after a failure. */
enum lmcs_status cli_joined_open(struct cli *cli, struct lmcs_snapshot *snapshot, struct cli_joined *joined);
void cli_joined_close(struct cli_joined *joined);
/* Reads and verifies a tensor into `buffer`, of its raw bytes. Of a forged record, boxes may leave gaps in it. */
enum lmcs_status cli_joined_read(struct cli_joined *joined, const struct cli_tensor *tensor, void *buffer);

/* How the boxes of a record are stored, in their order; those of parts that are missing are not there. */
struct cli_stored {
    bool is_there;
    struct lmc_hash digest;
    uint64_t bytes;
    enum lmcs_stored_as as;
    uint32_t chain;
};
/* The caller frees *stored. `lacks`: the first part that is not in the folder; "": none. */
enum lmcs_status cli_joined_stored(struct cli_joined *joined, struct cli_stored **stored, char lacks[1024]);
/* Sums up how a tensor is stored. Its content is 0, as is the digest unless one box is the tensor. */
struct lmcs_entry cli_joined_entry(const struct cli_joined *joined, const struct cli_tensor *tensor,
                                   const struct cli_stored *stored);

/* ---- folder_diff.c: differences ---- */

/* lmcs_snapshot_diff of two snapshots of a run: of their tensors only, each in memory as a whole. */
enum lmcs_status cli_joined_diff(struct cli *cli, struct lmcs_snapshot *const pair[2],
                                 bool (*visit)(void *context, const struct lmcs_difference *difference), void *context,
                                 const struct lmcs_progress *progress, struct lmcs_diff_report *report);

/* ---- folder_sweep.c: parts whose records are gone ---- */

struct cli_named;
struct cli_named_list {
    struct cli_named *items; /* to be freed */
    size_t count;
    size_t capacity;
};
/* Adds the parts that the record of a snapshot names. */
enum lmcs_status cli_named_add(struct cli *cli, struct cli_named_list *list, const char *shelf, uint64_t number);

struct cli_sweep_options {
    struct cli_named_list *gone; /* of records that were removed */
    const uint64_t *numbers;     /* with dry_run: of records that would be */
    size_t number_count;
    bool dry_run;
};
struct cli_swept {
    struct lmcs_removal sum;
    uint64_t parts; /* that were removed, or would be */
    uint64_t left;  /* pools in which parts may stay */
    char why[1024]; /* of the first of them */
};
/* Removes the parts from the pools of the ranks. A pool that can't be written is passed over. */
enum lmcs_status cli_sweep(struct cli *cli, const char *shelf, const struct cli_sweep_options *options,
                           struct cli_swept *swept);
/* Warns of pools that were passed over. */
void cli_swept_print(const struct cli_swept *swept);

/* ---- folder_shelf.c: shelves ---- */

/* Forks the parts of a record, then the record. What a fork of the same snapshot has left is part of it. */
enum lmcs_status cli_run_fork(struct cli *cli, struct lmcs_snapshot *snapshot, const char *name);
/* Removes a shelf of the records, then those of the ranks, also if only these have it. Adds to *sum. */
enum lmcs_status cli_run_drop(struct cli *cli, const char *shelf, struct lmcs_removal *sum);

/* ---- folder_places.c: addresses of a run in the pools of its ranks ---- */

struct cli_place {
    size_t file; /* of the pool */
    char address[LMCS_MAX_NAME + 24];
};
struct cli_places {
    struct cli_place *items; /* to be freed */
    size_t count;
    size_t capacity;
};
/* Adds the parts of a shelf, snapshot or range, which the records have; keeps failures like cli_pass. */
enum lmcs_status cli_places_add(struct cli *cli, const char *address, struct cli_places *places,
                                struct cli_passed *passed);

/* ---- folder_policy.c: policies ---- */

/* Sets words in the records and in all pools of the ranks. LMCS_IN_USE: one can't be written; nothing is changed. */
enum lmcs_status cli_run_policy_set(struct cli *cli, const char *shelf, const char *words);
/* Replaces the records' words by those of a rank's pool, but for the records' own. */
void cli_run_policy_show(struct cli *cli, struct lmcs_shelf_info *info);

/* ---- folder_dump.c, folder_restore.c: dumps of runs ---- */

#define CLI_ARCHIVE         ".archive"
#define CLI_RECORDS_ARCHIVE "records" CLI_ARCHIVE
#define CLI_NO_DUMP         "%.400s lacks " CLI_RECORDS_ARCHIVE ": it is no dump of a run, or the dump did not end"
#define CLI_MISSING                                                                                          \
    "%.200s lacks %" PRIu64 " parts of snapshots: %.600s. Copy what is missing there, or leave it out with " \
    "--allow-missing"

/* Runs the command on a run. A failure leaves nothing. */
enum lmcs_status cli_folder_dump(struct cli *cli);
/* Runs the command with folders. A failure leaves a folder without records, which the same command completes. */
enum lmcs_status cli_folder_restore(struct cli *cli);
/* Makes a new folder durable. */
enum lmcs_status cli_sync_parent(struct cli *cli, const char *path);
/* Adds a file to a list for messages, once, if there is room. */
void cli_missing_add(char *missing, size_t size, const char *file);

#endif
