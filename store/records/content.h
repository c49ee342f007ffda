/* SPDX-License-Identifier: BSD-3-Clause */
/* records/content.h - records of identities (names, dtypes and shapes of tensors) and contents (their bytes). */
#ifndef LMCS_RECORDS_CONTENT_H
#define LMCS_RECORDS_CONTENT_H

#include "base/names.h"
#include "pages/txn.h"

struct lmcs_identity {
    uint64_t id;
    struct lmcs_identity_df df;
    uint64_t shape[LMCS_MAX_DIMS];
    uint64_t global_shape[LMCS_MAX_DIMS];
    uint64_t offsets[LMCS_MAX_DIMS];
    char name[LMCS_MAX_NAME + 1];
};

/* The identity equal to a description; 0: none. */
enum lmcs_status lmcs_identity_find(struct lmcs_txn *txn, const struct lmcs_tensor *tensor, uint64_t *id,
                                    struct lmcs_error *error);
enum lmcs_status lmcs_identity_make(struct lmcs_txn *txn, const struct lmcs_tensor *tensor, uint64_t *id,
                                    struct lmcs_error *error);
enum lmcs_status lmcs_identity_get(struct lmcs_txn *txn, uint64_t id, struct lmcs_identity *identity,
                                   struct lmcs_error *error);
/* Lists identities of a name, ascending from id `first` on; fewer than `capacity` at the end. */
enum lmcs_status lmcs_identity_named(struct lmcs_txn *txn, uint32_t kind, const char *name, uint64_t first,
                                     uint64_t *ids, size_t capacity, size_t *count, struct lmcs_error *error);
/* Adds to the count of runs; the identity is removed at 0. */
enum lmcs_status lmcs_identity_count(struct lmcs_txn *txn, uint64_t id, int64_t add, struct lmcs_error *error);
/* Its pointers are into the identity. */
struct lmcs_tensor lmcs_identity_tensor(const struct lmcs_identity *identity);

struct lmcs_content {
    uint64_t id;
    struct lmcs_content_df df;
    struct lmcs_part_df parts[LMCS_MAX_PARTS];
    uint64_t bases[LMC_MAX_BASES];
    uint64_t link; /* of which it is an output; 0: none */
};

/* LMCS_DAMAGED: none, or unsound. */
enum lmcs_status lmcs_content_get(struct lmcs_txn *txn, uint64_t id, struct lmcs_content *content,
                                  struct lmcs_error *error);
enum lmcs_status lmcs_content_find(struct lmcs_txn *txn, uint64_t id, struct lmcs_content *content, bool *found,
                                   struct lmcs_error *error);
enum lmcs_status lmcs_content_put(struct lmcs_txn *txn, const struct lmcs_content *content, struct lmcs_error *error);
/* Enters a new content (id 0: assigns one) and its parts in the tree of space. */
enum lmcs_status lmcs_content_add(struct lmcs_txn *txn, struct lmcs_content *content, struct lmcs_error *error);

/* Most contents resting on one another: arrays and links of a line by turns, and its beginning. */
#define LMCS_DEEPEST (2 * LMCS_LINK_BOUND + LMCS_CHAIN_BOUND + 2)

struct lmcs_release {
    uint64_t freed_bytes;
    uint64_t later_bytes;
    uint64_t kept_bytes;
    uint32_t depth; /* of the recursion */
};
/* Begins a run under a name that may differ from its first one. */
enum lmcs_status lmcs_content_run(struct lmcs_txn *txn, uint64_t id, uint64_t identity, struct lmcs_error *error);
/*
 * With its last run a content is removed, with bases that only it used. If others rest on it, it is recorded for the
 * compactor with `successor`, the content after it (0: none).
 */
enum lmcs_status lmcs_content_unrun(struct lmcs_txn *txn, uint64_t id, uint64_t identity, uint64_t successor,
                                    struct lmcs_release *release, struct lmcs_error *error);
/*
 * Replaces payload, bases and kind by those of `with`. `same_bytes`: the payload is the same, stored elsewhere: records
 * of safety.h stay; else losses are cleared and parity is requested again. The link stays, unless `with` is a frame of
 * its own.
 */
enum lmcs_status lmcs_content_swap(struct lmcs_txn *txn, uint64_t id, const struct lmcs_content *with, bool same_bytes,
                                   struct lmcs_error *error);
/* Whether a link rests on a content, which then must be raw, a keyframe, or linked itself. */
enum lmcs_status lmcs_content_bears_links(struct lmcs_txn *txn, const struct lmcs_content *content, bool *bears,
                                          struct lmcs_error *error);
/* Sets the link that leads to a content (0: none), and its output; the payload stays. */
enum lmcs_status lmcs_content_set_link(struct lmcs_txn *txn, uint64_t id, uint64_t link, uint8_t output,
                                       struct lmcs_error *error);
/* Deltas to undo. LMCS_DAMAGED: more than the bound. */
enum lmcs_status lmcs_content_depth(struct lmcs_txn *txn, const struct lmcs_content *content, uint32_t *depth,
                                    struct lmcs_error *error);
uint64_t lmcs_content_room(const struct lmcs_content *content);

#endif
