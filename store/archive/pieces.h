/* SPDX-License-Identifier: BSD-3-Clause */
/* archive/pieces.h - reads a payload of an archive's file at any offset. */
#ifndef LMCS_ARCHIVE_PIECES_H
#define LMCS_ARCHIVE_PIECES_H

#include "archive/read.h"

struct lmcs_pieces {
    int fd;
    uint64_t first;  /* file offset of the first piece's header */
    uint64_t total;  /* of the payload */
    uint64_t at;     /* payload offset of the current piece */
    uint64_t header; /* file offset of its header */
    uint32_t bytes;  /* of the current piece; 0: its header is not read yet */
};

/* `start`: the archive's offset in the file. */
void lmcs_pieces_init(struct lmcs_pieces *pieces, int fd, uint64_t start, const struct lmcs_archive_content *content);
/* Reads `count` bytes from `at`. Ascending offsets read each header once. */
enum lmcs_status lmcs_pieces_read(struct lmcs_pieces *pieces, uint64_t at, void *to, size_t count,
                                  struct lmcs_error *error);

#endif
