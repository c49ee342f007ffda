/* SPDX-License-Identifier: BSD-3-Clause */
/* archive_decode.h - contents of an archive's file, decoded without a pool. */
#ifndef LMCS_ARCHIVE_DECODE_H
#define LMCS_ARCHIVE_DECODE_H

#include "archive_pieces.h"

struct lmcs_archive_link {
    const struct lmcs_archive_content *content;
    struct lmcs_pieces pieces;
    unsigned char *header; /* of a frame; or the hashes of a raw payload with more than one block */
    struct lmc_frame frame;
};

/* A content at work, and what it rests on. */
struct lmcs_decoding {
    const struct lmcs_archive_reader *reader;
    const struct lmcs_tensor *tensor; /* of the content at work */
    uint64_t raw_bytes;
    int fd;
    uint64_t start;
    struct lmcs_archive_link links[LMCS_CHAIN_BOUND + 1];
    size_t length;
    unsigned char *coded;
    unsigned char *blocks[2];
};

/* `reader` has read all of the archive, which begins at `start` of the file `fd`. To be ended also after a failure. */
enum lmcs_status lmcs_decoding_init(struct lmcs_decoding *d, const struct lmcs_archive_reader *reader, int fd,
                                    uint64_t start, struct lmcs_error *error);
void lmcs_decoding_fini(struct lmcs_decoding *d);
/* Takes up a content: checks all headers. *possible false: it rests on what only an older archive has. To be closed
 * also after a failure. */
enum lmcs_status lmcs_decoding_open(struct lmcs_decoding *d, const struct lmcs_archive_content *content, bool *possible,
                                    struct lmcs_error *error);
void lmcs_decoding_close(struct lmcs_decoding *d);
/* Decodes and checks a block of it. The data stay until the next call. */
enum lmcs_status lmcs_decoding_block(struct lmcs_decoding *d, uint64_t block, const void **data,
                                     struct lmcs_error *error);

#endif
