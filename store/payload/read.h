/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/read.h - reads the bytes of a content, however it is stored. The face of the room payload, which may use
 * base, media, pages and records.
 *
 * A `tensor` argument gives the name (for messages), dtype and shape of a content, from its identity.
 */
#ifndef LMCS_PAYLOAD_READ_H
#define LMCS_PAYLOAD_READ_H

#include "payload/layout.h"
#include "records/content.h"

#define LMCS_CHAIN_MOST (1 + LMCS_LINK_BOUND + LMC_MAX_BASES)

/*
 * A content and all that it rests on: links[0] is the content, each further one the base of the one before. A content
 * that is a link, or is stored by one, has a line instead: after it come the links, newest first, then the arrays from
 * which the oldest link leads, each raw or a keyframe.
 */
struct lmcs_chain {
    size_t length; /* 1 to LMCS_CHAIN_MOST */
    size_t line;   /* links in the line; 0: a chain of deltas */
    bool serial;   /* read in the caller's thread alone */
    bool is_new;   /* links[0] was written just now, through the page cache: read it from the medium */
    struct lmcs_content links[LMCS_CHAIN_MOST];
};

enum lmcs_status lmcs_chain_load(struct lmcs_txn *txn, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error);
/* Pins the payloads. The transaction that loaded the chain must not have ended; afterwards it may. */
enum lmcs_status lmcs_chain_pin(struct lmcs_pool *pool, const struct lmcs_chain *chain, struct lmcs_error *error);
/* Loads and pins in a transaction of its own. */
enum lmcs_status lmcs_chain_hold(struct lmcs_pool *pool, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error);
void lmcs_chain_unpin(struct lmcs_pool *pool, const struct lmcs_chain *chain);

/* Receives each damaged byte range. */
struct lmcs_bad_range {
    void (*call)(void *context, uint64_t first_byte, uint64_t bytes, const char *why);
    void *context;
};

/*
 * Reads a whole content into `buffer`, of links[0].df.raw_bytes, with the pool's threads. Verifies all checksums:
 * encoded blocks, decoded blocks and the digest. `buffer` NULL: only verifies, also all that the content rests on. The
 * caller holds pins. LMCS_DAMAGED names the tensor and the range. `bad`, which may be NULL, receives every damaged
 * range; reading goes on to the end.
 */
enum lmcs_status lmcs_chain_read(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                 const struct lmcs_tensor *tensor, void *buffer, const struct lmcs_bad_range *bad,
                                 struct lmcs_error *error);

/*
 * Reads several arrays of one link at once, at the cost of one. `chain` is that of one of them, or the link's.
 * contents[i] is stored as array i (NULL: not wanted); buffers[i] receives it (NULL: only verify).
 */
enum lmcs_status lmcs_chain_read_arrays(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                        const struct lmcs_tensor *tensor, const struct lmcs_content *const *contents,
                                        void *const *buffers, struct lmcs_error *error);

/*
 * Checks that a line of links still is as it was written, without decoding: all headers, that each link leads from the
 * state that the one before leads to, and the stored checksums of its `links` newest links; if these are all, also of
 * the arrays that it begins with. Each link was decoded when it was made, between states whose digests its header has,
 * so it gives the same result while this holds. `chain` is that of the newest link. LMCS_DAMAGED: something differs.
 */
enum lmcs_status lmcs_line_check(struct lmcs_pool *pool, const struct lmcs_chain *chain, size_t links,
                                 const struct lmcs_tensor *tensor, struct lmcs_error *error);
/* Checks by a link's header that a content is the array that it leads to. The caller holds a pin of the link. */
enum lmcs_status lmcs_link_check(struct lmcs_pool *pool, const struct lmcs_content *link,
                                 const struct lmcs_content *content, const struct lmcs_tensor *tensor,
                                 struct lmcs_error *error);

/* Computes the digest of a link's record: of the digests of all arrays, after the step and before it. */
bool lmcs_link_digest(const struct lmc_frame *frame, uint32_t ndim, const uint64_t *shape, struct lmc_hash *digest);

/*
 * Reads a content block by block (LMC_BLOCK_BYTES), each independently, from any number of threads. Opening checks all
 * headers. The chain and the tensor's shape must outlive the reader. The caller holds pins.
 */
struct lmcs_reader;
enum lmcs_status lmcs_reader_open(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                  const struct lmcs_tensor *tensor, struct lmcs_reader **reader,
                                  struct lmcs_error *error);
void lmcs_reader_close(struct lmcs_reader *reader);
/* Reads and checks a block. `to` has room for its bytes: LMC_BLOCK_BYTES, or fewer at the end. */
enum lmcs_status lmcs_reader_block(struct lmcs_reader *reader, uint64_t block, void *to, struct lmcs_error *error);

#endif
