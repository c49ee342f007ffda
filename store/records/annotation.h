/* SPDX-License-Identifier: BSD-3-Clause */
/* records/annotation.h - tags, metrics and notes that are added to committed snapshots (ANNOTATIONS.md). */
#ifndef LMCS_RECORDS_ANNOTATION_H
#define LMCS_RECORDS_ANNOTATION_H

#include "records/ring.h"
#include "records/shelf.h"

/* Fills all but the shelf. LMCS_INVALID: a wrong name, or too long a text. */
enum lmcs_status lmcs_annotation_fill(uint32_t kind, uint64_t number, const char *text, double value,
                                      struct lmcs_annotation *annotation, struct lmcs_error *error);
/*
 * Changes the records of the annotation's shelf. LMCS_NOT_FOUND: the snapshot, or a tag to remove, does not exist.
 * LMCS_INVALID: the metadata would be too long. In a write transaction, or a private one.
 */
enum lmcs_status lmcs_annotation_apply(struct lmcs_txn *txn, const struct lmcs_annotation *annotation,
                                       struct lmcs_error *error);
/*
 * lmcs_txn_read and lmcs_txn_hold, in which annotations that wait in the ring are applied (in private pages). For all
 * that reads tags or metadata.
 */
enum lmcs_status lmcs_annotated_read(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error);
enum lmcs_status lmcs_annotated_hold(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error);
/* lmcs_annotated_read, and finds a shelf; name NULL: "". After a failure there is nothing to end. */
enum lmcs_status lmcs_shelf_read(struct lmcs_pool *pool, const char *name, struct lmcs_txn *txn,
                                 struct lmcs_shelf *shelf, struct lmcs_error *error);
/*
 * Applies the annotations in the ring to the pool, in one commit if no record is damaged. Those that can't be applied
 * are dropped and counted. Without space they stay in the ring. For pool->fold.
 */
enum lmcs_status lmcs_annotations_fold(struct lmcs_pool *pool, struct lmcs_error *error);
/*
 * Adds an annotation to the ring, durably, for a handle that is open for reading. `shelf`: its name. *needs_writer,
 * with a failure: the pool has no ring, or it is full, so only a writer can add it.
 */
enum lmcs_status lmcs_annotation_add(struct lmcs_pool *pool, const char *shelf, struct lmcs_annotation *annotation,
                                     bool *needs_writer, struct lmcs_error *error);

#endif
