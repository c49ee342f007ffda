/* SPDX-License-Identifier: BSD-3-Clause */
/* archive/decode.h - decodes contents of an archive's file without a pool. */
#ifndef LMCS_ARCHIVE_DECODE_H
#define LMCS_ARCHIVE_DECODE_H

#include "archive/pieces.h"
#include "payload/read.h"

struct lmcs_archive_link {
    const struct lmcs_archive_content *content;
    struct lmcs_pieces pieces;
    unsigned char *header; /* header, or hashes of a raw payload of several blocks */
    struct lmc_frame frame;
};

/* links[0] is the content, each further one the base of the one before. For a link or a linked content: the links,
 * newest first, then the arrays with which the line begins. */
struct lmcs_decoding {
    const struct lmcs_archive_reader *reader;
    const struct lmcs_archive_content *content;
    const struct lmcs_tensor *tensor; /* of links[0] */
    uint64_t raw_bytes;
    int fd;
    uint64_t start;
    struct lmcs_archive_link links[LMCS_CHAIN_MOST];
    size_t length;
    size_t line;   /* links; 0: a chain of deltas */
    size_t arrays; /* of a line's state */
    unsigned char *coded;
    unsigned char *blocks[LMC_MAX_BASES]; /* two; of a line, one per array */
};

/* `reader` has read the whole archive, at `start` of the file `fd`. End it also after a failure. */
enum lmcs_status lmcs_decoding_init(struct lmcs_decoding *d, const struct lmcs_archive_reader *reader, int fd,
                                    uint64_t start, struct lmcs_error *error);
void lmcs_decoding_fini(struct lmcs_decoding *d);
/* Checks all headers. *possible false: only an older archive has a content below. Close it also after a failure. */
enum lmcs_status lmcs_decoding_open(struct lmcs_decoding *d, const struct lmcs_archive_content *content, bool *possible,
                                    struct lmcs_error *error);
/* Opens only the newest link of a link or linked content: blocks can't be decoded. */
enum lmcs_status lmcs_decoding_open_newest(struct lmcs_decoding *d, const struct lmcs_archive_content *content,
                                           bool *possible, struct lmcs_error *error);
/* Checks a content that rests on an older archive's: the digests in its header, and the stored blocks. Close it also
 * after a failure. */
enum lmcs_status lmcs_decoding_look(struct lmcs_decoding *d, const struct lmcs_archive_content *content,
                                    struct lmcs_error *error);
void lmcs_decoding_close(struct lmcs_decoding *d);
/* Decodes and checks a block, and all of a line below it. *data, of a link its first array, is valid until the next
 * call. */
enum lmcs_status lmcs_decoding_block(struct lmcs_decoding *d, uint64_t block, const void **data,
                                     struct lmcs_error *error);

#endif
