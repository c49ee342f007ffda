/* SPDX-License-Identifier: BSD-3-Clause */
/* content.h - the records of identities (what a tensor is called and shaped) and contents (its bytes). */
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

/* The identity that equals a description. 0: there is none. */
enum lmcs_status lmcs_identity_find(struct lmcs_txn *txn, const struct lmcs_tensor *tensor, uint64_t *id,
                                    struct lmcs_error *error);
enum lmcs_status lmcs_identity_make(struct lmcs_txn *txn, const struct lmcs_tensor *tensor, uint64_t *id,
                                    struct lmcs_error *error);
enum lmcs_status lmcs_identity_get(struct lmcs_txn *txn, uint64_t id, struct lmcs_identity *identity,
                                   struct lmcs_error *error);
/* Identities of that kind and name, ascending, from the id `first` on; fewer than `capacity` at the end. */
enum lmcs_status lmcs_identity_named(struct lmcs_txn *txn, uint32_t kind, const char *name, uint64_t first,
                                     uint64_t *ids, size_t capacity, size_t *count, struct lmcs_error *error);
/* Adds to its count of runs; at 0 it is removed. */
enum lmcs_status lmcs_identity_count(struct lmcs_txn *txn, uint64_t id, int64_t add, struct lmcs_error *error);
/* The description of an identity; its pointers are into the identity. */
struct lmcs_tensor lmcs_identity_tensor(const struct lmcs_identity *identity);

struct lmcs_content {
    uint64_t id;
    struct lmcs_content_df df;
    struct lmcs_part_df parts[LMCS_MAX_PARTS];
    uint64_t bases[LMC_MAX_BASES];
    uint64_t link; /* that leads to it; 0: none */
};

/* LMCS_DAMAGED when there is none, or it is not sound. */
enum lmcs_status lmcs_content_get(struct lmcs_txn *txn, uint64_t id, struct lmcs_content *content,
                                  struct lmcs_error *error);
enum lmcs_status lmcs_content_find(struct lmcs_txn *txn, uint64_t id, struct lmcs_content *content, bool *found,
                                   struct lmcs_error *error);
enum lmcs_status lmcs_content_put(struct lmcs_txn *txn, const struct lmcs_content *content, struct lmcs_error *error);
/* Enters a new content (id 0: gets one) with its parts in the map of space. */
enum lmcs_status lmcs_content_add(struct lmcs_txn *txn, struct lmcs_content *content, struct lmcs_error *error);

/* Contents that rest on one another, at most: a line of arrays and links by turns, and what it begins with. */
#define LMCS_DEEPEST (2 * LMCS_LINK_BOUND + LMCS_CHAIN_BOUND + 2)

struct lmcs_release {
    uint64_t freed_bytes;
    uint64_t later_bytes;
    uint64_t kept_bytes;
    uint32_t depth; /* of what is let go for what is let go */
};
/* A run of a content begins under a name, which may be another than the one that it was entered with. */
enum lmcs_status lmcs_content_run(struct lmcs_txn *txn, uint64_t id, uint64_t identity, struct lmcs_error *error);
/*
 * A run of a content has ended. At its last one the content goes, with what only it used as a base; or it stays as
 * the base of others, and is noted for the compactor with `successor`, the content that came after it (0: none).
 */
enum lmcs_status lmcs_content_unrun(struct lmcs_txn *txn, uint64_t id, uint64_t identity, uint64_t successor,
                                    struct lmcs_release *release, struct lmcs_error *error);
/*
 * Replaces a content's payload: parts, bases and kind are those of `with`. The old ones are let go. `same_bytes`: it is
 * stored as it was, elsewhere, and what care.h notes of it stays; else nothing of it is lost, and new parity is wanted.
 * A link that leads to it stays what it is by now, unless `with` is a frame of its own: then it is let go, too.
 */
enum lmcs_status lmcs_content_swap(struct lmcs_txn *txn, uint64_t id, const struct lmcs_content *with, bool same_bytes,
                                   struct lmcs_error *error);
/* Whether a link rests on it: then it has to be raw, a keyframe, or linked itself. */
enum lmcs_status lmcs_content_bears_links(struct lmcs_txn *txn, const struct lmcs_content *content, bool *bears,
                                          struct lmcs_error *error);
/* Notes a link that leads to it (0: none any more), as array `output`; its payload stays what it is. */
enum lmcs_status lmcs_content_set_link(struct lmcs_txn *txn, uint64_t id, uint64_t link, uint8_t output,
                                       struct lmcs_error *error);
/* Deltas to undo to read it. LMCS_DAMAGED past the bound. */
enum lmcs_status lmcs_content_depth(struct lmcs_txn *txn, const struct lmcs_content *content, uint32_t *depth,
                                    struct lmcs_error *error);
uint64_t lmcs_content_room(const struct lmcs_content *content);

#endif
