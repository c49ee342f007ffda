/* SPDX-License-Identifier: BSD-3-Clause */
/* archive_decode.h - contents of an archive's file, decoded without a pool. */
#ifndef LMCS_ARCHIVE_DECODE_H
#define LMCS_ARCHIVE_DECODE_H

#include "archive/pieces.h"
#include "payload/read.h"

struct lmcs_archive_link {
    const struct lmcs_archive_content *content;
    struct lmcs_pieces pieces;
    unsigned char *header; /* of a frame; or the hashes of a raw payload with more than one block */
    struct lmc_frame frame;
};

/*
 * A content at work, and what it rests on: links[0] is the content, each further one the base of the one before. Of a
 * link, or what one leads to, these are the links, the newest first, and then the arrays that the line begins with.
 */
struct lmcs_decoding {
    const struct lmcs_archive_reader *reader;
    const struct lmcs_archive_content *content;
    const struct lmcs_tensor *tensor; /* of the content at work */
    uint64_t raw_bytes;
    int fd;
    uint64_t start;
    struct lmcs_archive_link links[LMCS_CHAIN_MOST];
    size_t length;
    size_t line;   /* links in the line; 0: these are deltas */
    size_t arrays; /* of its state */
    unsigned char *coded;
    unsigned char *blocks[LMC_MAX_BASES]; /* two; of a line as many as there are arrays */
};

/* `reader` has read all of the archive, which begins at `start` of the file `fd`. To be ended also after a failure. */
enum lmcs_status lmcs_decoding_init(struct lmcs_decoding *d, const struct lmcs_archive_reader *reader, int fd,
                                    uint64_t start, struct lmcs_error *error);
void lmcs_decoding_fini(struct lmcs_decoding *d);
/* Takes up a content: checks all headers. *possible false: it rests on what only an older archive has. To be closed
 * also after a failure. */
enum lmcs_status lmcs_decoding_open(struct lmcs_decoding *d, const struct lmcs_archive_content *content, bool *possible,
                                    struct lmcs_error *error);
/* The same of a link, or what one leads to, with no more than that link's header: no block of it can be decoded. */
enum lmcs_status lmcs_decoding_open_newest(struct lmcs_decoding *d, const struct lmcs_archive_content *content,
                                           bool *possible, struct lmcs_error *error);
/*
 * Looks at one that rests on what only an older archive has: at its frame's header, which has the digests of it and of
 * that, and at the blocks as they are stored. To be closed also after a failure.
 */
enum lmcs_status lmcs_decoding_look(struct lmcs_decoding *d, const struct lmcs_archive_content *content,
                                    struct lmcs_error *error);
void lmcs_decoding_close(struct lmcs_decoding *d);
/*
 * Decodes and checks a block of it, and of a line all that comes before it; of a link, *data is its first array. The
 * data stay until the next call.
 */
enum lmcs_status lmcs_decoding_block(struct lmcs_decoding *d, uint64_t block, const void **data,
                                     struct lmcs_error *error);

#endif
