/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * content.h - computes the bytes of a snapshot, so that every reader can check every byte.
 *
 * A snapshot has a ticket, a unique number, as its step. All its bytes follow from shelf and ticket: of some tensors
 * from a part of the ticket, so that snapshots share them with their neighbours, of others from all of it. All are
 * close to those of the same tensor in another snapshot, as deltas need.
 */
#ifndef LMCS_STRESS_CONTENT_H
#define LMCS_STRESS_CONTENT_H

#include "support.h"

/* Entries of a snapshot: tensors of their own, one that is another name of TENSOR_TWICE, and an attachment. */
enum { TENSORS = 6, TENSOR_TWICE = 3, SECOND_NAME = TENSORS, ATTACHMENT, ENTRIES };
enum { SHELVES = 2, TAGS = 4 };

struct content;

/* `scale`: how much larger than a quarter of a megabyte a snapshot is. */
struct content *content_new(unsigned scale);
void content_free(struct content *content);

const char *content_shelf(unsigned shelf);
const char *content_tag(unsigned tag);
const char *content_name(unsigned entry);
/* The entry of a name, ENTRIES when there is none. */
unsigned content_entry(const char *name);
/* Not every snapshot has the last tensor. */
bool content_has(unsigned entry, uint64_t ticket);
uint64_t content_bytes(const struct content *content, unsigned entry);
/* `shape` holds the tensor's shape. */
struct lmcs_tensor content_tensor(const struct content *content, unsigned entry, uint64_t *shape);

void content_fill(const struct content *content, unsigned shelf, unsigned entry, uint64_t ticket, void *to);
bool content_is_right(const struct content *content, unsigned shelf, unsigned entry, uint64_t ticket, const void *data);

#endif
