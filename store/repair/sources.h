/* SPDX-License-Identifier: BSD-3-Clause */
/* repair/sources.h - repair sources: other copies of a content, or of a block of it, in pools and archives. */
#ifndef LMCS_REPAIR_SOURCES_H
#define LMCS_REPAIR_SOURCES_H

#include "records/content.h"

struct lmcs_sources;

/* Makes a list of the repaired pool alone. `capacity`: sources to add. */
enum lmcs_status lmcs_sources_new(struct lmcs_pool *pool, size_t capacity, struct lmcs_sources **sources,
                                  struct lmcs_error *error);
/* Adds `pool`, opened for reading. The list closes it, also on failure. LMCS_INVALID: the repaired pool itself. */
enum lmcs_status lmcs_sources_add_pool(struct lmcs_sources *sources, const char *name, struct lmcs_pool *pool,
                                       struct lmcs_error *error);
/* Adds an archive from the position of `fd` on. The list closes `fd`, also on failure. */
enum lmcs_status lmcs_sources_add_archive(struct lmcs_sources *sources, const char *name, int fd,
                                          struct lmcs_error *error);
void lmcs_sources_close(struct lmcs_sources *sources);

/* Finds copies of a content, which stay open until the release or the next find. Finding none is no error. */
enum lmcs_status lmcs_sources_find(struct lmcs_sources *sources, const struct lmcs_content *content,
                                   const struct lmcs_identity *identity, struct lmcs_error *error);
void lmcs_sources_release(struct lmcs_sources *sources);
/* The content's block hashes, valid until the release; NULL: no copy, or one block only. */
const struct lmc_hash *lmcs_sources_hashes(struct lmcs_sources *sources);
/* Decodes a block from a copy or, if its hash is known, from a neighbour. False: no source; `to` is undefined. */
bool lmcs_sources_block(struct lmcs_sources *sources, uint64_t block, const struct lmc_hash *hash, void *to);
/* Reads the `which`-th other frame of a link between the same states. False: no more. */
bool lmcs_sources_link(struct lmcs_sources *sources, const struct lmcs_content *link, size_t which, void *to,
                       size_t bytes);
/* Returns the name of the source of the last result. */
const char *lmcs_sources_name(const struct lmcs_sources *sources);

#endif
