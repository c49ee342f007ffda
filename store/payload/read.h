/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/read.h - the bytes of a content, however it is stored.
 */
#ifndef LMCS_PAYLOAD_READ_H
#define LMCS_PAYLOAD_READ_H

#include "payload/layout.h"
#include "records/content.h"

#define LMCS_CHAIN_MOST (1 + LMCS_LINK_BOUND + LMC_MAX_BASES)

/*
 * A content and what it rests on: links[0] is the content, each further one the base of the one before. Where it is a
 * link, or stored by one, that is a line: then come the links, the newest first, and behind them the arrays from which
 * the oldest one leads, each raw or a keyframe.
 */
struct lmcs_chain {
    size_t length; /* 1 to LMCS_CHAIN_MOST */
    size_t line;   /* links in the line; 0: these are deltas */
    bool serial;   /* read in the caller's thread alone */
    bool is_new;   /* links[0] was written just now, through the page cache */
    struct lmcs_content links[LMCS_CHAIN_MOST];
};

/* Of a link, what leads to it and itself. */
enum lmcs_status lmcs_chain_load(struct lmcs_txn *txn, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error);
/* Pins the payloads, within the transaction that loaded the chain; after that it may end. */
enum lmcs_status lmcs_chain_pin(struct lmcs_pool *pool, const struct lmcs_chain *chain, struct lmcs_error *error);
/* Loads and pins it, in a transaction of its own. */
enum lmcs_status lmcs_chain_hold(struct lmcs_pool *pool, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error);
void lmcs_chain_unpin(struct lmcs_pool *pool, const struct lmcs_chain *chain);

/* What is known of a content from its identity: dtype and shape (raw_bytes follows from them). */
struct lmcs_bad_range {
    void (*call)(void *context, uint64_t first_byte, uint64_t bytes, const char *why);
    void *context;
};

/*
 * Decodes (or copies) the whole content into `buffer` (links[0].df.raw_bytes; NULL: only verify, and all that it rests
 * on), with the pool's threads, verifying every checksum: coded blocks, decoded blocks, and the digest. The caller
 * holds pins. LMCS_DAMAGED names the tensor by `name` and the range; `bad`, which may be NULL, is told of every damaged
 * range, and then reading goes on to the end.
 */
enum lmcs_status lmcs_chain_read(struct lmcs_pool *pool, const struct lmcs_chain *chain, const char *name,
                                 uint32_t dtype, uint32_t ndim, const uint64_t *shape, void *buffer,
                                 const struct lmcs_bad_range *bad, struct lmcs_error *error);

/*
 * The same for the arrays of one link at once, which costs as much as one of them: `chain` is that of one of them, or
 * the link's. contents[i] is what is stored as array i, and buffers[i] where it goes (NULL: only verify); NULL: it is
 * not wanted.
 */
enum lmcs_status lmcs_chain_read_arrays(struct lmcs_pool *pool, const struct lmcs_chain *chain, const char *name,
                                        uint32_t ndim, const uint64_t *shape,
                                        const struct lmcs_content *const *contents, void *const *buffers,
                                        struct lmcs_error *error);

/*
 * Whether a line of links still is what was written, without decoding any of it: all headers, that each link leads from
 * where the one before it leads to, and the checksums of what is stored of its `links` newest links; of all of them:
 * also of the arrays that it begins with. A link was decoded when it was made, between bytes with the digests that its
 * header names; as long as this holds, it gives the same again. `chain` is that of the newest link. LMCS_DAMAGED: no.
 */
enum lmcs_status lmcs_line_check(struct lmcs_pool *pool, const struct lmcs_chain *chain, size_t links, const char *name,
                                 uint32_t dtype, uint32_t ndim, const uint64_t *shape, struct lmcs_error *error);
/* Whether a content is the array that a link leads to, by the link's header, of which the caller holds a pin. */
enum lmcs_status lmcs_link_check(struct lmcs_pool *pool, const struct lmcs_content *link,
                                 const struct lmcs_content *content, const char *name, uint32_t dtype, uint32_t ndim,
                                 const uint64_t *shape, struct lmcs_error *error);

/* What a link's record has as its digest: of those of all arrays, after the step and before it. */
bool lmcs_link_digest(const struct lmc_frame *frame, uint32_t ndim, const uint64_t *shape, struct lmc_hash *digest);

/*
 * A content that is read block by block (LMC_BLOCK_BYTES), each by itself: by any number of threads, and only those
 * that are wanted. All headers have been checked when it is open. The chain and the shape must outlive it, and the
 * caller holds pins.
 */
struct lmcs_reader;
enum lmcs_status lmcs_reader_open(struct lmcs_pool *pool, const struct lmcs_chain *chain, const char *name,
                                  uint32_t dtype, uint32_t ndim, const uint64_t *shape, struct lmcs_reader **reader,
                                  struct lmcs_error *error);
void lmcs_reader_close(struct lmcs_reader *reader);
/* Decodes and checks a block into `to`, which has room for its bytes: a block's, or what is left at the end. */
enum lmcs_status lmcs_reader_block(struct lmcs_reader *reader, uint64_t block, void *to, struct lmcs_error *error);

#endif
