/* SPDX-License-Identifier: BSD-3-Clause */
/* archive_pieces.h - a payload in an archive's file, read at any place without the records before it. */
#ifndef LMCS_ARCHIVE_PIECES_H
#define LMCS_ARCHIVE_PIECES_H

#include "archive/read.h"

struct lmcs_pieces {
    int fd;
    uint64_t first;  /* in the file: the header of the first piece */
    uint64_t total;  /* bytes of the payload */
    uint64_t at;     /* of the payload: where the piece at hand begins ... */
    uint64_t header; /* ... and in the file, its header */
    uint32_t bytes;  /* of it; 0: not known yet */
};

/* `start`: where the archive begins in the file. */
void lmcs_pieces_init(struct lmcs_pieces *pieces, int fd, uint64_t start, const struct lmcs_archive_content *content);
/* Reads `count` bytes from `at` on. Places that ascend take no more than one look at each header. */
enum lmcs_status lmcs_pieces_read(struct lmcs_pieces *pieces, uint64_t at, void *to, size_t count,
                                  struct lmcs_error *error);

#endif
