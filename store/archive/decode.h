/* SPDX-License-Identifier: BSD-3-Clause */
/* archive/decode.h - decodes contents of an archive's file without a pool. */
#ifndef LMCS_ARCHIVE_DECODE_H
#define LMCS_ARCHIVE_DECODE_H

#include "archive/pieces.h"
#include "payload/read.h"

struct lmcs_archive_link {
    const struct lmcs_archive_content *content;
    struct lmcs_pieces pieces;
    unsigned char *header; /* of a frame; or the hashes of a raw payload of more than one block */
    struct lmc_frame frame;
};

/*
 * A content being decoded, and those below it: links[0] is the content, each further one the base of the one before. Of
 * a link or a linked content: the links, newest first, then the arrays with which the line begins.
 */
struct lmcs_decoding {
    const struct lmcs_archive_reader *reader;
    const struct lmcs_archive_content *content;
    const struct lmcs_tensor *tensor; /* of the open content */
    uint64_t raw_bytes;
    int fd;
    uint64_t start;
    struct lmcs_archive_link links[LMCS_CHAIN_MOST];
    size_t length;
    size_t line;   /* links in the line; 0: a chain of deltas */
    size_t arrays; /* of its state */
    unsigned char *coded;
    unsigned char *blocks[LMC_MAX_BASES]; /* two; of a line one for each array */
};

/* `reader` has read the whole archive, which begins at `start` of the file `fd`. End it also after a failure. */
enum lmcs_status lmcs_decoding_init(struct lmcs_decoding *d, const struct lmcs_archive_reader *reader, int fd,
                                    uint64_t start, struct lmcs_error *error);
void lmcs_decoding_fini(struct lmcs_decoding *d);
/*
 * Opens a content and checks all headers. *possible false: it rests on a content that only an older archive has. Close
 * it also after a failure.
 */
enum lmcs_status lmcs_decoding_open(struct lmcs_decoding *d, const struct lmcs_archive_content *content, bool *possible,
                                    struct lmcs_error *error);
/* The same for a link or a linked content, but opens only the newest link: its blocks can't be decoded. */
enum lmcs_status lmcs_decoding_open_newest(struct lmcs_decoding *d, const struct lmcs_archive_content *content,
                                           bool *possible, struct lmcs_error *error);
/*
 * Checks a content that rests on one of an older archive: the digests in its frame's header, and the stored blocks.
 * Close it also after a failure.
 */
enum lmcs_status lmcs_decoding_look(struct lmcs_decoding *d, const struct lmcs_archive_content *content,
                                    struct lmcs_error *error);
void lmcs_decoding_close(struct lmcs_decoding *d);
/*
 * Decodes and checks a block, and of a line all below it. Of a link, *data is its first array. The data stay valid
 * until the next call.
 */
enum lmcs_status lmcs_decoding_block(struct lmcs_decoding *d, uint64_t block, const void **data,
                                     struct lmcs_error *error);

#endif
