/* SPDX-License-Identifier: BSD-3-Clause */
/* safetensors/safetensors.h - shared by importer and exporter. The room uses only base/ and lmcstore.h. */
#ifndef LMCS_SAFETENSORS_SAFETENSORS_H
#define LMCS_SAFETENSORS_SAFETENSORS_H

#include "base/error.h"
#include "lmcstore.h"

#include <jansson.h>

/* The format's limit on the JSON header, and ours on its "__metadata__". */
#define LMCS_ST_MAX_HEADER_BYTES     ((uint64_t)100000000)
#define LMCS_ST_MAX_METADATA_BYTES   ((size_t)16 << 20)
#define LMCS_ST_MAX_METADATA_ENTRIES ((size_t)65536)
/* Bytes between two calls of the progress function. */
#define LMCS_ST_PIECE_BYTES ((size_t)4 << 20)

/* ---- dtype.c: dtypes and progress ---- */

/* The format's name of a dtype, and its rank: files are ordered by descending rank, which aligns offsets. */
struct lmcs_st_dtype {
    const char *name;
    int rank;
    uint32_t dtype; /* enum lmc_dtype; 0: not supported here */
};

/* NULL: the format has no such dtype. */
const struct lmcs_st_dtype *lmcs_st_dtype_by_name(const char *name);
const struct lmcs_st_dtype *lmcs_st_dtype_of(uint32_t dtype);

/* Calls the progress function. LMCS_CANCELLED: it asks to stop. */
enum lmcs_status lmcs_st_progress(const struct lmcs_progress *progress, const char *what, uint64_t done, uint64_t total,
                                  struct lmcs_error *error);

/* ---- export.c: writing a file ---- */

/* A snapshot whose tensors another room reads, instead of the store. */
struct lmcs_st_source {
    const struct lmcs_snapshot_info *info;
    /* As lmcs_snapshot_entries. */
    enum lmcs_status (*entries)(void *context, bool (*visit)(void *to, const struct lmcs_entry *entry), void *to,
                                struct lmcs_error *error);
    /* Reads and verifies a tensor into `buffer`, of its raw bytes and zero. */
    enum lmcs_status (*read)(void *context, const char *name, void *buffer, struct lmcs_error *error);
    void *context;
};

/* lmcs_export_safetensors of a source; the file does not have the snapshot's digest. */
enum lmcs_status lmcs_st_export(const struct lmcs_st_source *source, const char *part, const char *path,
                                const struct lmcs_progress *progress, struct lmcs_transfer_report *report,
                                struct lmcs_error *error);

/* ---- header.c: reading an untrusted header ---- */

struct lmcs_st_tensor {
    uint64_t begin; /* offset in the data section */
    uint64_t end;
    const char *name;
    uint32_t dtype; /* enum lmc_dtype */
    uint32_t ndim;
    uint64_t shape[]; /* as in lmcstore.h */
};

struct lmcs_st_header {
    struct lmcs_st_tensor **tensors; /* by offset; they cover the data section without gap or overlap */
    size_t count;
    size_t capacity;
    json_t *metadata; /* an object of strings; NULL: none */
    uint64_t data_at; /* offset of the data section in the file */
    uint64_t data_bytes;
};

/* Reads `bytes` bytes at `offset`. LMCS_DAMAGED: the file ends before. */
enum lmcs_status lmcs_st_read(int fd, const char *path, uint64_t offset, void *buffer, size_t bytes,
                              struct lmcs_error *error);
/* Reads and checks the whole header. `path`: for messages; `takes_any`: as below. After a failure `header` is empty. */
enum lmcs_status lmcs_st_header_read(int fd, const char *path, bool takes_any, struct lmcs_st_header *header,
                                     struct lmcs_error *error);
/*
 * The same for a file in memory, of any version of the format. A tensor that this library can't hold (dtype, name, too
 * many dimensions, half bytes) gets dtype 0 and no shape.
 */
enum lmcs_status lmcs_st_header_parse(const void *file, uint64_t file_bytes, const char *path,
                                      struct lmcs_st_header *header, struct lmcs_error *error);
void lmcs_st_header_free(struct lmcs_st_header *header);

#endif
