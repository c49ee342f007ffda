/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * frames.h - files of frames (codec/FORMAT.md, 9): shared parts of compress and decompress, one section per source
 * file.
 *
 * Whole files are in memory. The number of threads doesn't change the result.
 */
#ifndef FRAMES_H
#define FRAMES_H

#include "base/workers.h"
#include "cli.h"
#include "lmc.h"
#include "safetensors/safetensors.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- frames_memory.c: large pieces of memory, and files as a whole --------------------------------------------- */

struct frames_memory {
    unsigned char *data;
    size_t bytes;        /* bytes in use */
    size_t mapped_bytes; /* 0: none */
};

/* Allocates memory. The error of LMCS_NO_MEMORY names the `use`. */
enum lmcs_status frames_memory_new(struct cli *cli, const char *use, uint64_t bytes, struct frames_memory *memory);
void frames_memory_free(struct frames_memory *memory);
/* Returns the size of a file; 0: not a regular file. */
uint64_t frames_file_bytes(const char *path);
/* Checks, by the files' sizes, that memory suffices before they are read. */
enum lmcs_status frames_check_memory(struct cli *cli);
/* Opens a file to look into it before it is read; returns its size. *fd -1: empty, a pipe, or one that frames_read
 * refuses. */
uint64_t frames_open_regular(const char *path, int *fd);
/* Whether a file may begin with these bytes (LMC_FRAME_PREFIX_BYTES, or the whole file). */
typedef bool (*frames_begins)(const unsigned char *data, size_t bytes);
/* Reads a file, a pipe, or standard input ("-"). If `begins` (NULL: any) refuses its first bytes, reads only those, for
 * the parser's error. */
enum lmcs_status frames_read(struct cli *cli, const char *path, frames_begins begins, struct frames_memory *memory);
enum lmcs_status frames_write(struct cli *cli, const struct lmcs_progress *progress, const struct lmcs_outfile *output,
                              const unsigned char *data, size_t bytes);
/* Returns the name of a path for messages. */
const char *frames_shown(const char *path);
/* `output_is`: "a file of frames". */
enum lmcs_status frames_check(struct cli *cli, const char *output_is);

/* ---- frames_work.c: threads that share work ------------------------------------------------------------------- */

struct frames_work {
    struct cli *cli;
    struct lmcs_workers *workers;
    struct lmcs_progress progress;
    pthread_t caller; /* the only thread that reports progress */
    const char *label;
    uint64_t total_bytes;
    atomic_uint_fast64_t done_bytes;
    atomic_bool is_over; /* a job failed, or the work was cancelled */
    pthread_mutex_t lock;
    uint64_t failed_at; /* lowest failed job; UINT64_MAX: none */
    enum lmc_status failure;
    const char *message;
};

/* Runs job i and counts its bytes. *message: a constant string. */
typedef enum lmc_status (*frames_job)(void *context, uint64_t i, uint64_t *bytes, const char **message);

enum lmcs_status frames_work_init(struct cli *cli, struct frames_work *work);
void frames_work_free(struct frames_work *work);
/* Runs jobs 0 to count - 1 on all threads. False: one failed, or a signal came. */
bool frames_work_run(struct frames_work *work, const char *label, uint64_t total_bytes, frames_job job, void *context,
                     uint64_t count);
/* Counts bytes of a long job. Returns whether to continue. */
bool frames_work_step(struct frames_work *work, uint64_t bytes);
void frames_work_fail(struct frames_work *work, uint64_t i, enum lmc_status status, const char *message);
/* Returns the failure of the work; its message begins with `about`. */
enum lmcs_status frames_work_error(const struct frames_work *work, const char *about);
/* Maps pages in advance. */
bool frames_work_touch(struct frames_work *work, struct frames_memory *memory);
double frames_now(void); /* seconds */

/* ---- frames_tensors.c: files as tensors, and their digests ------------------------------------------------------ */

/* A tensor of a safetensors file, or a file as one array without a name. */
struct frames_tensor {
    const char *name;
    const unsigned char *data;
    uint64_t bytes;
    uint32_t dtype; /* 0: unknown to liblmc */
    uint32_t ndim;
    const uint64_t *shape; /* NULL: the one dimension `length` */
    uint64_t length;
    bool is_wanted; /* frames_digests computes its digest */
    struct lmc_hash digest;
    const struct frames_tensor *base; /* in another file; NULL: none */
};

struct frames_source {
    const char *path;
    struct frames_memory memory;
    struct lmcs_st_header header;  /* empty for an array */
    struct frames_tensor *tensors; /* by offset */
    size_t count;
    size_t capacity;
};

/* As frames_begins. */
bool frames_source_begins(const unsigned char *data, size_t bytes);
/* Checks a safetensors file's header before its data are read: the tensors get no data. A pipe passes with a size of
 * 0: its beginning is checked. */
enum lmcs_status frames_source_look(struct cli *cli, struct frames_source *source);
enum lmcs_status frames_source_parse(struct cli *cli, struct frames_source *source);
/* Adds the file as one array, of whole elements only. */
enum lmcs_status frames_source_add_array(struct cli *cli, struct frames_source *source, uint32_t dtype);
/* Finds for each tensor the base of the same name, dtype and shape, and marks its digest as wanted. */
enum lmcs_status frames_source_match(struct cli *cli, struct frames_source *source, struct frames_source *base,
                                     uint64_t least_bytes);
enum lmcs_status frames_digests(struct frames_work *work, struct frames_source *source);
void frames_source_free(struct frames_source *source);

/* ---- frames_report.c: reports ------------------------------------------------------------------------------------ */

struct frames_report {
    uint64_t raw_bytes;
    uint64_t stored_bytes;
    double seconds;      /* from memory to memory */
    double base_seconds; /* time for the base's digests */
    size_t frame_count;
    size_t delta_count; /* frames that need their base */
    size_t tensor_count;
    uint32_t threads;
};

json_t *frames_report_json(const struct cli *cli, const struct frames_report *report);
/* Prints "wrote FILE: 12.3 MiB from 24.6 MiB (2.00x), 3 of 4 tensors against the base, 5.1 GB/s on 2 threads". */
void frames_report_print(const struct cli *cli, const struct frames_report *report, const char *parts,
                         uint64_t part_count, uint64_t from_bytes, uint64_t to_bytes);

/* ---- frames_encode.c: from tensors to an image of the file ------------------------------------------------------ */

struct frames_piece {
    const unsigned char *data;
    uint64_t bytes;
    uint32_t dtype;
    const struct frames_tensor *base;
    struct lmc_encoder *encoder;
    uint64_t first_block; /* counted over all pieces */
    uint64_t at;          /* start in the image */
};

struct frames_plan {
    struct frames_piece *pieces;
    size_t count;
    size_t capacity;
    enum lmc_level level;
};

uint64_t frames_image_bound(const struct frames_plan *plan);
/* Encodes all pieces into the image, which has frames_image_bound bytes; sets its size. */
enum lmcs_status frames_encode(struct frames_work *work, const struct frames_plan *plan, struct frames_memory *image,
                               struct frames_report *report);

/* ---- frames_decode.c: and back ---------------------------------------------------------------------------------- */

struct frames_frame {
    struct lmc_frame frame;
    uint64_t at;
    uint64_t first_block;
    uint64_t content_at;
    const unsigned char *base; /* NULL: not found, or not needed */
};

struct frames_image {
    const char *path;
    struct frames_memory memory;
    struct frames_frame *frames;
    size_t count;
    size_t capacity;
    size_t base_count; /* frames that need a base */
    uint64_t block_count;
    uint64_t content_bytes;
};

/* As frames_begins. */
bool frames_image_begins(const unsigned char *data, size_t bytes);
/* Checks the headers of all frames before the file is read. A pipe passes: its beginning is checked. */
enum lmcs_status frames_image_look(struct cli *cli, const char *path);
/* Finds and checks the frames. */
enum lmcs_status frames_image_parse(struct cli *cli, struct frames_image *image);
/* Checks before a base is read that it has, by its size and header, a tensor of the dtype and size of each base that
 * the frames need. A pipe passes. */
enum lmcs_status frames_image_look_at_base(struct cli *cli, struct frames_image *image, const char *path);
/* Finds bases among a file's tensors, or in the file as one array. */
enum lmcs_status frames_image_match(struct frames_work *work, struct frames_image *image, struct frames_source *base);
enum lmcs_status frames_decode(struct frames_work *work, const struct frames_image *image,
                               struct frames_memory *content, struct frames_report *report);
void frames_image_free(struct frames_image *image);

#endif
