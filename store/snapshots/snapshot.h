/* SPDX-License-Identifier: BSD-3-Clause */
/* snapshots/snapshot.h - handles of snapshots; face of snapshots/, which reads, lists, views and compares them. */
#ifndef LMCS_SNAPSHOTS_SNAPSHOT_H
#define LMCS_SNAPSHOTS_SNAPSHOT_H

#include "pages/pool.h"
#include "payload/read.h"
#include "records/meta.h"
#include "records/shelf.h"

struct lmcs_snapshot {
    struct lmcs_pool *pool;
    uint64_t shelf_id;
    uint64_t epoch; /* of its commit: distinguishes it from one with the same number in a shelf made again */
    char *shelf;
    char *remote; /* its URL then; NULL: the pool had it */
    struct lmcs_meta meta;
    struct lmcs_snapshot_info info;
    bool trusts_raw; /* lmcs_snapshot_set_verify(false) */
};

/* Begins a read transaction and finds the snapshot again. LMCS_NOT_FOUND: it was removed. LMCS_REMOTE: it left. */
enum lmcs_status lmcs_snapshot_enter(struct lmcs_snapshot *snapshot, struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                     struct lmcs_record *record, struct lmcs_error *error);
/* The same within a running transaction, which stays open after a failure. */
enum lmcs_status lmcs_snapshot_locate(const struct lmcs_snapshot *snapshot, struct lmcs_txn *txn,
                                      struct lmcs_shelf *shelf, struct lmcs_record *record, struct lmcs_error *error);
/* Appends the snapshot and the remedy to the message of LMCS_DAMAGED. `error` may be NULL. Outside a transaction. */
void lmcs_snapshot_explain_damage(struct lmcs_snapshot *snapshot, struct lmcs_error *error);
/* The digest does not depend on how the snapshot is stored. */
enum lmcs_status lmcs_record_digest(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_record *record,
                                    struct lmc_hash *digest, struct lmcs_error *error);
/* Payload bytes; of an output of a link its share. */
uint64_t lmcs_chain_stored_bytes(const struct lmcs_chain *chain);
/* The entry's tensor points into the identity. */
void lmcs_entry_fill(const struct lmcs_identity *identity, const struct lmcs_chain *chain, struct lmcs_entry *entry);

#endif
