/* SPDX-License-Identifier: BSD-3-Clause */
/* sources.h - other copies of a content, or of a block of it: in the pool, in other pools, in archives. */
#ifndef LMCS_REPAIR_SOURCES_H
#define LMCS_REPAIR_SOURCES_H

#include "records/content.h"

struct lmcs_sources;

/* Paths that are no source: of what kind the first one's error is, and what there is to say of all. */
struct lmcs_unread {
    size_t count;
    struct lmcs_error error;
};

/*
 * Opens archives and pools by their paths. Those that can't be read are passed over, for the others may have what is
 * asked for, and are in lmcs_sources_unread; when none can be read, that is the error.
 */
enum lmcs_status lmcs_sources_open(struct lmcs_pool *pool, const char *const *from, size_t from_count,
                                   struct lmcs_sources **sources, struct lmcs_error *error);
void lmcs_sources_close(struct lmcs_sources *sources);
const struct lmcs_unread *lmcs_sources_unread(const struct lmcs_sources *sources);

/* Looks for copies of a content, until it is released or another one is asked for. None is no failure. */
enum lmcs_status lmcs_sources_ask(struct lmcs_sources *sources, const struct lmcs_content *content,
                                  const struct lmcs_identity *identity, struct lmcs_error *error);
void lmcs_sources_release(struct lmcs_sources *sources);
/* The hashes of its blocks, from a copy; NULL: there is none, or it has one block. They stay until the release. */
const struct lmc_hash *lmcs_sources_hashes(struct lmcs_sources *sources);
/*
 * Decodes a block into `to`, from a copy of the content, or from a neighbour that has the same block when its hash is
 * known. False: nobody has it; then what is in `to` means nothing.
 */
bool lmcs_sources_block(struct lmcs_sources *sources, uint64_t block, const struct lmc_hash *hash, void *to);
/*
 * The frame of the link that is asked for, `bytes` long, as another pool or an archive has it: one that leads between
 * the same states. `which`: 0 for the first, and so on. False: there are no more.
 */
bool lmcs_sources_link(struct lmcs_sources *sources, const struct lmcs_content *link, size_t which, void *to,
                       size_t bytes);
/* Who was the last to give something, in words. */
const char *lmcs_sources_name(const struct lmcs_sources *sources);

#endif
