/* SPDX-License-Identifier: BSD-3-Clause */
/* archive/source.h - reads the records of an untrusted archive. */
#ifndef LMCS_ARCHIVE_SOURCE_H
#define LMCS_ARCHIVE_SOURCE_H

#include "archive/format.h"
#include "base/error.h"
#include "lmcstore.h"

/* Where an archive is read: `read`, or else the descriptor. */
struct lmcs_archive_input {
    int fd; /* -1 with `read` */
    lmcs_archive_read_fn read;
    void *context;
    const struct lmcs_progress *progress; /* also called while a pipe has no bytes; or NULL */
    const char *doing;                    /* for progress: "restoring"; or NULL */
};

struct lmcs_archive_source {
    struct lmcs_archive_input input;
    bool passes_data; /* of a file: skip payloads, read only the headers of their pieces */
    uint64_t total;   /* of the archive; 0: unknown, not a file */
    uint64_t offset;  /* read so far */
    bool is_short;    /* it ends before what the last record read announces */
    uint64_t number;  /* of the next record */
    struct lmc_hasher headers;
    struct lmc_hash hash;  /* of the headers before the current record's */
    unsigned char *buffer; /* read ahead */
    size_t buffer_at;
    size_t buffer_end;
    /* the current record: */
    uint32_t type;
    uint32_t bytes;
    unsigned char *payload; /* LMCS_ARCHIVE_PIECE_BYTES, and a NUL after `bytes` */
};

/* Calls the input's progress; LMCS_CANCELLED: it stops the read. */
enum lmcs_status lmcs_archive_source_progress(const struct lmcs_archive_source *source, struct lmcs_error *error);
/* Reads and checks the head. After a failure there is nothing to end. */
enum lmcs_status lmcs_archive_source_init(struct lmcs_archive_source *source, const struct lmcs_archive_input *input,
                                          struct lmcs_error *error);
void lmcs_archive_source_fini(struct lmcs_archive_source *source);
/* Reads the next record of a known type and its checksums. */
enum lmcs_status lmcs_archive_source_next(struct lmcs_archive_source *source, struct lmcs_error *error);
/* Checks the end of the stream. LMCS_DAMAGED: bytes follow the archive. */
enum lmcs_status lmcs_archive_source_finish(struct lmcs_archive_source *source, struct lmcs_error *error);
/* Returns `status` with a message that locates it: "record 7 (at byte 1234): ...". */
enum lmcs_status lmcs_archive_fail(const struct lmcs_archive_source *source, enum lmcs_status status,
                                   struct lmcs_error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
