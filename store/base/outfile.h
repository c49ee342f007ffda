/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/outfile.h - an output file that appears whole, durable and under its name, or not at all.
 *
 * It is written under a temporary name in the same directory (mode 0600), synced and renamed; then the directory is
 * synced. Pipes and devices are written in place. A symbolic link is followed, not replaced. Pools and poolset files
 * are never replaced.
 */
#ifndef LMCS_BASE_OUTFILE_H
#define LMCS_BASE_OUTFILE_H

#include "base/error.h"

struct lmcs_outfile {
    const char *shown; /* the path for messages */
    char *target;      /* NULL: a pipe, a device or standard output */
    char *temporary;   /* NULL: written in place; "": renamed */
    int fd;            /* -1: not open */
    bool owns_fd;
};

/* Returns LMCS_INVALID if a regular file is a pool or a poolset file, LMCS_IO if it can't be read. */
enum lmcs_status lmcs_outfile_check(const char *path, struct lmcs_error *error);
/*
 * Opens "-" (standard output), a pipe or device in place, or a new temporary file. Reserves expected_bytes (0: none) of
 * disk space, so that a full disk fails before the work (LMCS_FULL). `path` must outlive the file.
 */
enum lmcs_status lmcs_outfile_open(const char *path, uint64_t expected_bytes, struct lmcs_outfile *file,
                                   struct lmcs_error *error);
/* Opens a file to continue it in place. If the work stops, the file keeps what was written. */
enum lmcs_status lmcs_outfile_resume(const char *path, struct lmcs_outfile *file, struct lmcs_error *error);
enum lmcs_status lmcs_outfile_write(struct lmcs_outfile *file, const void *data, size_t data_bytes,
                                    struct lmcs_error *error);
/* Makes the file durable and gives it its name. */
enum lmcs_status lmcs_outfile_commit(struct lmcs_outfile *file, struct lmcs_error *error);
/* Closes the file, and removes it if it is temporary and not committed. */
void lmcs_outfile_close(struct lmcs_outfile *file);

#endif
