/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/outfile.h - an output file that appears whole, durable and under its name, or not at all.
 *
 * A file (mode 0600) is written without a name (O_TMPFILE), synced and linked; then the directory is synced. A killed
 * process leaves nothing. To replace a file, the new one is linked under a temporary name, synced and renamed. Without
 * O_TMPFILE or /proc, it is written under the temporary name.
 * Pipes and devices are written in place, symbolic links followed, pools and poolset files never replaced.
 */
#ifndef LMCS_BASE_OUTFILE_H
#define LMCS_BASE_OUTFILE_H

#include "base/error.h"

struct lmcs_outfile {
    const char *shown; /* the path for messages */
    char *target;      /* NULL: pipe, device or standard output */
    char *temporary;   /* a name in the target's directory; NULL: written in place */
    int fd;            /* -1: not open */
    bool owns_fd;
    bool is_named; /* the file has the name `temporary` */
};

/* LMCS_INVALID: a pool or poolset file; LMCS_IO: unreadable. */
enum lmcs_status lmcs_outfile_check(const char *path, struct lmcs_error *error);
/*
 * "-" (standard output), a pipe or a device opens in place, else a new file. Reserves expected_bytes (0: none): a full
 * disk fails before the work (LMCS_FULL). `path` must outlive the file.
 */
enum lmcs_status lmcs_outfile_open(const char *path, uint64_t expected_bytes, struct lmcs_outfile *file,
                                   struct lmcs_error *error);
/* Continues a file in place. If the work stops, written bytes remain. */
enum lmcs_status lmcs_outfile_resume(const char *path, struct lmcs_outfile *file, struct lmcs_error *error);
/*
 * Writes all, or what the file takes within a second: *written may be less than data_bytes after a signal, or while a
 * pipe is full. A call in a loop can so look for signals, whose handlers let a write go on.
 */
enum lmcs_status lmcs_outfile_write_some(struct lmcs_outfile *file, const void *data, size_t data_bytes,
                                         size_t *written, struct lmcs_error *error);
/* Writes all. */
enum lmcs_status lmcs_outfile_write(struct lmcs_outfile *file, const void *data, size_t data_bytes,
                                    struct lmcs_error *error);
/* Makes it durable and names it. */
enum lmcs_status lmcs_outfile_commit(struct lmcs_outfile *file, struct lmcs_error *error);
/* Removes a temporary file that is not committed. */
void lmcs_outfile_close(struct lmcs_outfile *file);

#endif
