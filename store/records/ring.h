/* SPDX-License-Identifier: BSD-3-Clause */
/* records/ring.h - the ring through which other processes pass annotations to the writer (ANNOTATIONS.md). */
#ifndef LMCS_RECORDS_RING_H
#define LMCS_RECORDS_RING_H

#include "pages/txn.h"

#define LMCS_ANNOTATION_TEXT (LMCS_RING_SLOT_BYTES - sizeof(struct lmcs_annotation_df)) /* most bytes of a text */

struct lmcs_annotation {
    struct lmcs_annotation_df df;
    char text[LMCS_ANNOTATION_TEXT + 1]; /* NUL-terminated */
};

/*
 * Makes the ring of a pool that has none, if its medium, its space and its free pages permit. LMCS_DAMAGED: the root
 * names no ring.
 */
enum lmcs_status lmcs_ring_make(struct lmcs_pool *pool, struct lmcs_error *error);
/*
 * Removes the ring when a writer closes the pool: older versions may then write to it again. It stays if another
 * process is adding an annotation, or if one cannot be applied. The caller is the only thread that uses the pool.
 */
void lmcs_ring_remove(struct lmcs_pool *pool);
/* LMCS_DAMAGED: the root names no ring. For a root with one. */
enum lmcs_status lmcs_ring_check(struct lmcs_txn *txn, struct lmcs_error *error);
/*
 * Loads the annotations that the transaction's root has not applied, for the caller to free. *is_old: the root is not
 * the newest, and slots that it needs were reused; begin again. Unreadable slots count as empty.
 */
enum lmcs_status lmcs_ring_load(struct lmcs_txn *txn, struct lmcs_annotation **list, size_t *count, bool *is_old,
                                struct lmcs_error *error);
/* Reads the slot of a sequence. *is_sound: it has an annotation with a right checksum, perhaps of another sequence. */
enum lmcs_status lmcs_ring_read(struct lmcs_txn *txn, uint64_t sequence, struct lmcs_annotation *annotation,
                                bool *is_sound, struct lmcs_error *error);

/*
 * An addition, by any process that may write to the file: begin, add, end. Only one process at a time is between begin
 * and end. LMCS_IN_USE: another one has been there for seconds; LMCS_READ_ONLY: no permission.
 */
enum lmcs_status lmcs_ring_begin(struct lmcs_pool *pool, int *fd, struct lmcs_error *error);
/*
 * Stores an annotation durably behind those that lmcs_ring_load found in `txn` (`list`), which become durable, too.
 * Then waits until no policy is pruning: afterwards the caller checks that the snapshot exists. LMCS_FULL: no slot is
 * free.
 */
enum lmcs_status lmcs_ring_add(int fd, struct lmcs_txn *txn, const struct lmcs_annotation *list, size_t pending,
                               struct lmcs_annotation *annotation, struct lmcs_error *error);
enum lmcs_status lmcs_ring_wait_pruning(struct lmcs_pool *pool, int fd, struct lmcs_error *error);
void lmcs_ring_end(int fd);

/*
 * The writer prunes by a policy: annotations added from here on are not acknowledged before the end. *fd: for the end;
 * -1: there is no ring.
 */
enum lmcs_status lmcs_ring_begin_pruning(struct lmcs_pool *pool, int *fd, struct lmcs_error *error);
void lmcs_ring_end_pruning(int fd);

#endif
