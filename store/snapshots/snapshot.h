/* SPDX-License-Identifier: BSD-3-Clause */
/* snapshot.h - a snapshot as its readers hold it. */
#ifndef LMCS_SNAPSHOTS_SNAPSHOT_H
#define LMCS_SNAPSHOTS_SNAPSHOT_H

#include "pages/pool.h"
#include "payload/read.h"
#include "records/meta.h"
#include "records/shelf.h"

struct lmcs_snapshot {
    struct lmcs_pool *pool;
    uint64_t shelf_id;
    uint64_t epoch; /* of its commit: tells it from another of the same number in a shelf made anew */
    char *shelf;
    struct lmcs_meta meta;
    struct lmcs_snapshot_info info;
};

/* Begins a read transaction and finds the snapshot again; LMCS_NOT_FOUND when it was removed. */
enum lmcs_status lmcs_snapshot_enter(struct lmcs_snapshot *snapshot, struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                     struct lmcs_record *record, struct lmcs_error *error);
/* The same within a transaction that has begun, and goes on whatever comes. */
enum lmcs_status lmcs_snapshot_locate(const struct lmcs_snapshot *snapshot, struct lmcs_txn *txn,
                                      struct lmcs_shelf *shelf, struct lmcs_record *record, struct lmcs_error *error);
/* What a snapshot is, however and wherever it is stored. */
enum lmcs_status lmcs_record_digest(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_record *record,
                                    struct lmc_hash *digest, struct lmcs_error *error);
/* The content of a name in a manifest; *found false when it is not there. */
enum lmcs_status lmcs_manifest_find(struct lmcs_txn *txn, const struct lmcs_record *record, uint32_t kind,
                                    const char *name, struct lmcs_identity *identity, uint64_t *content, bool *found,
                                    struct lmcs_error *error);
/* Calls visit for each entry of a manifest, in order of identity. */
enum lmcs_status lmcs_manifest_each(struct lmcs_txn *txn, const struct lmcs_record *record,
                                    enum lmcs_status (*visit)(void *context, uint64_t identity,
                                                              const struct lmcs_manifest_df *entry, bool *stop,
                                                              struct lmcs_error *error),
                                    void *context, struct lmcs_error *error);
/* An attachment of the store's own, at most `most` bytes of it: *data is malloced. *found false: there is none. */
enum lmcs_status lmcs_attachment_read(struct lmcs_txn *txn, const struct lmcs_record *record, const char *name,
                                      uint64_t most, void **data, uint64_t *bytes, bool *found,
                                      struct lmcs_error *error);
/* Metadata that is an attachment; *text is malloced. */
enum lmcs_status lmcs_record_long_meta(struct lmcs_txn *txn, const struct lmcs_record *record, char **text,
                                       struct lmcs_error *error);
/* Fills an entry from a loaded chain; its tensor points into the identity. */
void lmcs_entry_fill(const struct lmcs_identity *identity, const struct lmcs_chain *chain, struct lmcs_entry *entry);

#endif
