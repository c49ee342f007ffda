/* SPDX-License-Identifier: BSD-3-Clause */
/* archive/pieces.h - reads a payload of an archive's file at any offset without the records before it. */
#ifndef LMCS_ARCHIVE_PIECES_H
#define LMCS_ARCHIVE_PIECES_H

#include "archive/read.h"

struct lmcs_pieces {
    int fd;
    uint64_t first;  /* offset in the file of the first piece's header */
    uint64_t total;  /* bytes of the payload */
    uint64_t at;     /* offset in the payload of the current piece */
    uint64_t header; /* offset in the file of its header */
    uint32_t bytes;  /* of the current piece; 0: not read yet */
};

/* `start`: offset of the archive in the file. */
void lmcs_pieces_init(struct lmcs_pieces *pieces, int fd, uint64_t start, const struct lmcs_archive_content *content);
/* Reads `count` bytes from `at` on. Ascending offsets read each header once. */
enum lmcs_status lmcs_pieces_read(struct lmcs_pieces *pieces, uint64_t at, void *to, size_t count,
                                  struct lmcs_error *error);

#endif
