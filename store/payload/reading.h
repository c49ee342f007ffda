/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/reading.h - a content that is being read (private to payload/). */
#ifndef LMCS_PAYLOAD_READING_H
#define LMCS_PAYLOAD_READING_H

#include "payload/read.h"

struct lmcs_reading_link {
    const struct lmcs_content *content;
    unsigned char *header; /* header, or hashes of a raw payload of several blocks */
    struct lmc_frame frame;
};

/* Buffers of one thread. */
struct lmcs_scratch {
    struct lmcs_scratch *next;
    unsigned char *coded;
    unsigned char *blocks[LMC_MAX_BASES]; /* two; of a line, one per array */
    unsigned char *line;                  /* coded blocks of a line */
    size_t line_bytes;
};

struct lmcs_reading {
    struct lmcs_pool *pool;
    const struct lmcs_chain *chain;
    struct lmcs_reading_link links[LMCS_CHAIN_MOST];
    size_t newest; /* of a line: index of its newest link */
    size_t arrays; /* of a line's state; 0: no line */
    uint64_t raw_bytes;
    struct lmcs_tensor tensor;
    unsigned char *buffer;                              /* NULL: only verify */
    unsigned char *buffers[LMC_MAX_BASES];              /* of a line: one for each array */
    const struct lmcs_content *contents[LMC_MAX_BASES]; /* stored as it; NULL: unknown */
    bool in_place;                                      /* use mapped bytes: a guard is available */
    bool only_stored;                                   /* compare stored bytes with checksums; do not decode */
    size_t stored_links;  /* only_stored: number of newest links; if all, also the beginning */
    pthread_mutex_t lock; /* guards the rest */
    struct lmcs_scratch *free;
    bool failed;
    bool go_on;          /* continue after damage */
    unsigned char *lost; /* 1 for each damaged block if `bad` is NULL; NULL: none yet */
    const struct lmcs_bad_range *bad;
    struct lmcs_error error;
};

/* ---- reading.c ---- */

void lmcs_reading_end(struct lmcs_reading *r);
/* LMCS_DAMAGED, with the tensor's name. */
enum lmcs_status lmcs_reading_fail(const struct lmcs_reading *r, const char *why, struct lmcs_error *error);
/* LMCS_UNSUPPORTED: a sound frame has a feature that the codec lacks. */
enum lmcs_status lmcs_reading_fail_newer(const struct lmcs_reading *r, const char *why, struct lmcs_error *error);
/* Copies stored bytes of a link. */
enum lmcs_status lmcs_reading_copy(const struct lmcs_reading *r, const struct lmcs_reading_link *link, uint64_t at,
                                   void *to, uint64_t bytes, struct lmcs_error *error);
/* Whether to read a link from the medium, not the page cache. */
bool lmcs_reading_is_new(const struct lmcs_reading *r, const struct lmcs_reading_link *link);

/* NULL: no memory. */
struct lmcs_scratch *lmcs_scratch_get(struct lmcs_reading *r);
void lmcs_scratch_put(struct lmcs_reading *r, struct lmcs_scratch *scratch);
void lmcs_scratch_free(struct lmcs_scratch *scratch);

/* ---- headers.c, block.c ---- */

/* Reads and checks all links' headers. */
enum lmcs_status lmcs_reading_open(struct lmcs_reading *r, struct lmcs_error *error);
/* `target` NULL: verifies the block and everything below. LMCS_DAMAGED: *why or the error has the reason. */
enum lmcs_status lmcs_reading_block(struct lmcs_reading *r, uint64_t block, void *target, struct lmcs_scratch *scratch,
                                    const char **why, struct lmcs_error *error);
/* The same for a block of several arrays of a line; without any, verifies. */
enum lmcs_status lmcs_reading_arrays(struct lmcs_reading *r, uint64_t block, void *const *targets,
                                     struct lmcs_scratch *scratch, const char **why, struct lmcs_error *error);

#endif
