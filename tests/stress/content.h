/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * content.h - computes the bytes of a snapshot, so that every reader can check every byte.
 *
 * They follow from shelf and ticket, a snapshot's unique step; some tensors use part of the ticket, so neighbours share
 * them. All are close to each other, as deltas need. Two tensors are a parameter and its momentum, at one of STEPS
 * steps of SGD; links lead from one step to the next.
 */
#ifndef LMCS_STRESS_CONTENT_H
#define LMCS_STRESS_CONTENT_H

#include "support.h"

/* One tensor has a second name; one entry is an attachment. */
enum { TENSORS = 8, TENSOR_TWICE = 3, MOMENTUM = 6, WEIGHT, SECOND_NAME = TENSORS, ATTACHMENT, ENTRIES };
enum { STEPS = 32 };
enum { RELATIONS = 2 }; /* hidden attachments */
enum { SHELVES = 2, TAGS = 4 };

struct content;

/* `scale`: quarters of a megabyte a snapshot. */
struct content *content_new(unsigned scale);
void content_free(struct content *content);

const char *content_shelf(unsigned shelf);
const char *content_tag(unsigned tag);
const char *content_name(unsigned entry);
/* ENTRIES: none. */
unsigned content_entry(const char *name);
/* Unique by writer and count. */
uint64_t content_ticket(unsigned writer, uint64_t count, unsigned step);
/* Some snapshots lack one tensor. */
bool content_has(unsigned entry, uint64_t ticket);
uint64_t content_bytes(const struct content *content, unsigned entry);
/* `shape` holds the tensor's shape. */
struct lmcs_tensor content_tensor(const struct content *content, unsigned entry, uint64_t *shape);

void content_fill(const struct content *content, unsigned shelf, unsigned entry, uint64_t ticket, void *to);
bool content_is_right(const struct content *content, unsigned shelf, unsigned entry, uint64_t ticket, const void *data);

#endif
