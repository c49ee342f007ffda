/* SPDX-License-Identifier: BSD-3-Clause */
/* records/manifest.h - the entries of manifests, and those that only one of neighbouring snapshots has. */
#ifndef LMCS_RECORDS_MANIFEST_H
#define LMCS_RECORDS_MANIFEST_H

#include "pages/txn.h"
#include "records/content.h"

/*
 * Visits entries of `of` whose run ends with it: not inherited by `older` and `newer` (NULL: none), its neighbours in
 * the lineage. `free_pages`: frees pages that only `of` has. The visit may change only trees of contents, identities
 * and space.
 */
enum lmcs_status lmcs_manifest_own(struct lmcs_txn *txn, const struct lmcs_snapshot_df *of,
                                   const struct lmcs_snapshot_df *older, const struct lmcs_snapshot_df *newer,
                                   bool free_pages,
                                   enum lmcs_status (*visit)(void *context, uint64_t identity,
                                                             const struct lmcs_manifest_df *entry, uint64_t successor,
                                                             struct lmcs_error *error),
                                   void *context, struct lmcs_error *error);

/* Visits entries in order of identity, until *stop. */
enum lmcs_status lmcs_manifest_each(struct lmcs_txn *txn, const struct lmcs_snapshot_df *of,
                                    enum lmcs_status (*visit)(void *context, uint64_t identity,
                                                              const struct lmcs_manifest_df *entry, bool *stop,
                                                              struct lmcs_error *error),
                                    void *context, struct lmcs_error *error);
/* Identity and content of a name. *found false: the snapshot lacks it. */
enum lmcs_status lmcs_manifest_find(struct lmcs_txn *txn, const struct lmcs_snapshot_df *of, uint32_t kind,
                                    const char *name, struct lmcs_identity *identity, uint64_t *content, bool *found,
                                    struct lmcs_error *error);

#endif
