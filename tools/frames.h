/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * frames.h - files of frames (codec/FORMAT.md, 9): what compress and decompress share, one section a source file.
 *
 * Whole files are held in memory. What takes time is cut into jobs for threads, none of which changes the result.
 */
#ifndef FRAMES_H
#define FRAMES_H

#include "cli.h"
#include "lmc.h"
#include "safetensors/safetensors.h"
#include "base/workers.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- frames_memory.c: large pieces of memory, and files as a whole --------------------------------------------- */

struct frames_memory {
    unsigned char *data;
    size_t bytes;        /* in use */
    size_t mapped_bytes; /* 0: none is held */
};

/* LMCS_NO_MEMORY, with a message that says `what` it was for, when the machine has not so much to give. */
enum lmcs_status frames_memory_new(struct cli *cli, const char *what, uint64_t bytes, struct frames_memory *memory);
void frames_memory_free(struct frames_memory *memory);
/* The size of a file as it is now; 0: it is empty, or no regular file. */
uint64_t frames_file_bytes(const char *path);
/* Whether there is memory to compress a file, as far as the sizes of files tell: before they are read. */
enum lmcs_status frames_check_memory(struct cli *cli);
/* Whether what is wanted may begin with these bytes, 8 of them if there are so many. */
typedef bool (*frames_begins)(const unsigned char *data, size_t bytes);
/* Reads all of a file, a pipe, or standard input ("-"); of one that does not begin as it must (NULL: as it likes) only
 * the beginning, which says to who parses it what is wrong. */
enum lmcs_status frames_read(struct cli *cli, const char *path, frames_begins begins, struct frames_memory *memory);
enum lmcs_status frames_write(struct cli *cli, const struct lmcs_progress *progress, const struct cli_output *output,
                              const unsigned char *data, size_t bytes);
/* The path, for messages. */
const char *frames_shown(const char *path);
/* Refuses what the command line can't mean. `what` goes to standard output, if that is where -o says. */
enum lmcs_status frames_check(struct cli *cli, const char *what);

/* ---- frames_work.c: threads that share work, and what became of it --------------------------------------------- */

struct frames_work {
    struct cli *cli;
    struct lmcs_workers *workers;
    struct lmcs_progress progress;
    pthread_t caller; /* the only thread that reports progress */
    const char *what;
    uint64_t total_bytes;
    atomic_uint_fast64_t done_bytes;
    atomic_bool is_over; /* failed, or cancelled */
    pthread_mutex_t lock;
    uint64_t failed_at; /* the first job that failed, whatever thread was the first to fail; UINT64_MAX: none */
    enum lmc_status failure;
    const char *message;
};

/* A job, with its share of the bytes. `message` is constant, as the codec's are. */
typedef enum lmc_status (*frames_job)(void *context, uint64_t i, uint64_t *bytes, const char **message);

/* Makes the threads that --threads asks for. */
enum lmcs_status frames_work_init(struct cli *cli, struct frames_work *work);
void frames_work_free(struct frames_work *work);
/* Runs jobs 0 to count - 1. False: one failed, or the user has had enough. */
bool frames_work_run(struct frames_work *work, const char *what, uint64_t total_bytes, frames_job job, void *context,
                     uint64_t count);
/* For jobs that are long: counts bytes that are done, and says whether to go on. */
bool frames_work_step(struct frames_work *work, uint64_t bytes);
void frames_work_fail(struct frames_work *work, uint64_t i, enum lmc_status status, const char *message);
/* The status and the message for work that went wrong. `about` begins the message. */
enum lmcs_status frames_work_error(const struct frames_work *work, const char *about);
/* Maps pages before they are needed. */
bool frames_work_touch(struct frames_work *work, struct frames_memory *memory);
double frames_now(void); /* seconds */

/* ---- frames_tensors.c: files as tensors, and their digests ------------------------------------------------------ */

/* A tensor of a safetensors file; or a file as one array, without a name. */
struct frames_tensor {
    const char *name; /* NULL: none */
    const unsigned char *data;
    uint64_t bytes;
    uint32_t dtype; /* 0: one that liblmc does not know */
    uint32_t ndim;
    const uint64_t *shape; /* NULL: `length` is all of it */
    uint64_t length;
    bool is_wanted; /* frames_digests is to find its digest */
    struct lmc_hash digest;
    const struct frames_tensor *base; /* its like in another file; NULL: none */
};

struct frames_source {
    const char *path;
    struct frames_memory memory;
    struct lmcs_st_header header;  /* empty for an array */
    struct frames_tensor *tensors; /* by offset */
    size_t count;
    size_t capacity;
};

/* Whether a safetensors file may begin so. */
bool frames_source_begins(const unsigned char *data, size_t bytes);
/* Takes the memory for a safetensors file. */
enum lmcs_status frames_source_parse(struct cli *cli, struct frames_source *source);
/* Adds all of the memory, as far as it holds whole elements, as an array. */
enum lmcs_status frames_source_add_array(struct cli *cli, struct frames_source *source, uint32_t dtype);
/* Gives each tensor its base, the one of the same name, dtype and shape, whose digest is then wanted. */
enum lmcs_status frames_source_match(struct cli *cli, struct frames_source *source, struct frames_source *base,
                                     uint64_t least_bytes);
/* Finds the digests that are wanted. */
enum lmcs_status frames_digests(struct frames_work *work, struct frames_source *source);
void frames_source_free(struct frames_source *source);

/* ---- frames_report.c: what is told of it ------------------------------------------------------------------------ */

/* What a command tells of its work. */
struct frames_report {
    uint64_t raw_bytes;
    uint64_t stored_bytes;
    double seconds;      /* from memory to memory */
    double base_seconds; /* for the base's digests */
    size_t frame_count;
    size_t delta_count; /* frames that need their base */
    size_t tensor_count;
    uint32_t threads;
};

json_t *frames_report_json(const struct cli *cli, const struct frames_report *report);
/* "wrote FILE: 12.3 MiB from 24.6 MiB (2.00x), 3 of 4 tensors against the base, 5.1 GB/s on 2 threads" */
void frames_report_print(const struct cli *cli, const struct frames_report *report, const char *parts,
                         uint64_t part_count, uint64_t from_bytes, uint64_t to_bytes);

/* ---- frames_encode.c: from tensors to an image of the file ------------------------------------------------------ */

/* What becomes one frame. */
struct frames_piece {
    const unsigned char *data;
    uint64_t bytes;
    uint32_t dtype;
    const struct frames_tensor *base; /* NULL: none is offered */
    struct lmc_encoder *encoder;
    uint64_t first_block; /* counted over all pieces */
    uint64_t at;          /* where its frame begins in the image */
};

struct frames_plan {
    struct frames_piece *pieces;
    size_t count;
    size_t capacity;
    enum lmc_level level;
};

/* The most that the image can take. */
uint64_t frames_image_bound(const struct frames_plan *plan);
/* Fills the image, which has room for that, and sets its bytes. */
enum lmcs_status frames_encode(struct frames_work *work, const struct frames_plan *plan, struct frames_memory *image,
                               struct frames_report *report);

/* ---- frames_decode.c: and back ---------------------------------------------------------------------------------- */

struct frames_frame {
    struct lmc_frame frame;
    uint64_t at; /* in the image */
    uint64_t first_block;
    uint64_t content_at;
    const unsigned char *base; /* NULL: not found yet, or none is needed */
};

struct frames_image {
    const char *path;
    struct frames_memory memory;
    struct frames_frame *frames;
    size_t count;
    size_t capacity;
    size_t base_count; /* frames that need one */
    uint64_t block_count;
    uint64_t content_bytes;
};

/* Whether a file of frames begins so. */
bool frames_image_begins(const unsigned char *data, size_t bytes);
/* Finds and checks the frames of the memory. */
enum lmcs_status frames_image_parse(struct cli *cli, struct frames_image *image);
/* Finds the bases that frames need among a file's tensors, or the file as an array. */
enum lmcs_status frames_image_match(struct frames_work *work, struct frames_image *image, struct frames_source *base);
enum lmcs_status frames_decode(struct frames_work *work, const struct frames_image *image,
                               struct frames_memory *content, struct frames_report *report);
void frames_image_free(struct frames_image *image);

#endif
