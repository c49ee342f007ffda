/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/read.h - face of payload/, the room that reads and encodes the bytes of contents.
 *
 * Uses base, media, pages, records. `tensor` arguments: name (for messages), dtype and shape.
 */
#ifndef LMCS_PAYLOAD_READ_H
#define LMCS_PAYLOAD_READ_H

#include "payload/layout.h"
#include "records/content.h"

#define LMCS_CHAIN_MOST (1 + LMCS_LINK_BOUND + LMC_MAX_BASES)

/*
 * links[0] is the content; each further one is the base of the one before. A content that is a link, or stored by one,
 * has a line instead: then follow the links, newest first, then the arrays from which the oldest leads, each raw or a
 * keyframe.
 */
struct lmcs_chain {
    size_t length; /* 1 to LMCS_CHAIN_MOST */
    size_t line;   /* links; 0: a chain of deltas */
    bool serial;   /* use only the caller's thread */
    bool is_timed; /* count the time of decoding links[0] (speed.h) */
    bool is_new;   /* links[0] was just written: read the medium, not the page cache */
    struct lmcs_content links[LMCS_CHAIN_MOST];
};

enum lmcs_status lmcs_chain_load(struct lmcs_txn *txn, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error);
/* Whether losses are recorded of the content or of one that it rests on. */
enum lmcs_status lmcs_chain_lost(struct lmcs_txn *txn, const struct lmcs_chain *chain, bool *lost,
                                 struct lmcs_error *error);
/* The transaction that loaded the chain may end only after this call. */
enum lmcs_status lmcs_chain_pin(struct lmcs_pool *pool, const struct lmcs_chain *chain, struct lmcs_error *error);
/* Loads and pins in a transaction of its own. */
enum lmcs_status lmcs_chain_hold(struct lmcs_pool *pool, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error);
void lmcs_chain_unpin(struct lmcs_pool *pool, const struct lmcs_chain *chain);

/* Called for each damaged byte range. */
struct lmcs_bad_range {
    void (*call)(void *context, uint64_t first_byte, uint64_t bytes, const char *why);
    void *context;
};

/*
 * Reads links[0].df.raw_bytes into `buffer` with the pool's threads and verifies all checksums: coded blocks, decoded
 * blocks, digest. `buffer` NULL: only verifies, also everything below. The caller holds pins. LMCS_DAMAGED names the
 * tensor and the range; reading goes on to the end, and `bad` (may be NULL) gets every damaged range.
 */
enum lmcs_status lmcs_chain_read(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                 const struct lmcs_tensor *tensor, void *buffer, const struct lmcs_bad_range *bad,
                                 struct lmcs_error *error);

/* Reads several arrays of a link at the cost of one. `chain`: of one of them, or of the link. contents[i]: stored as
 * array i; NULL: not wanted. buffers[i]: its bytes; NULL: only verify. */
enum lmcs_status lmcs_chain_read_arrays(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                        const struct lmcs_tensor *tensor, const struct lmcs_content *const *contents,
                                        void *const *buffers, struct lmcs_error *error);

/*
 * Checks a line without decoding: all headers; that each link begins at the state to which the link before leads; the
 * stored checksums of its `links` newest links and, if these are all, of its first arrays (store/LINKS.md). `chain`: of
 * the newest link. LMCS_DAMAGED: something differs.
 */
enum lmcs_status lmcs_line_check(struct lmcs_pool *pool, const struct lmcs_chain *chain, size_t links,
                                 const struct lmcs_tensor *tensor, struct lmcs_error *error);
/* Checks by a link's header that it leads to the content. The caller holds a pin of the link. */
enum lmcs_status lmcs_link_check(struct lmcs_pool *pool, const struct lmcs_content *link,
                                 const struct lmcs_content *content, const struct lmcs_tensor *tensor,
                                 struct lmcs_error *error);

/* Computes the digest of a link's record: over the digests of all arrays after the step and before it. */
bool lmcs_link_digest(const struct lmc_frame *frame, uint32_t ndim, const uint64_t *shape, struct lmc_hash *digest);

/* Reads blocks (LMC_BLOCK_BYTES) independently, from any number of threads. Opening checks all headers. Chain, shape
 * and contents must outlive the reader. The caller holds pins. `contents` (may be NULL): as above. */
struct lmcs_reader;
enum lmcs_status lmcs_reader_open(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                  const struct lmcs_tensor *tensor, const struct lmcs_content *const *contents,
                                  struct lmcs_reader **reader, struct lmcs_error *error);
void lmcs_reader_close(struct lmcs_reader *reader);
/* Reads and checks a block into `to`: LMC_BLOCK_BYTES, or fewer at the end. */
enum lmcs_status lmcs_reader_block(struct lmcs_reader *reader, uint64_t block, void *to, struct lmcs_error *error);
/* The same for several arrays of a link. to[i]: of array i; NULL: not wanted. */
enum lmcs_status lmcs_reader_arrays(struct lmcs_reader *reader, uint64_t block, void *const *to,
                                    struct lmcs_error *error);

#endif
