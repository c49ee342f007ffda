/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/lease.h - bytes that readers keep unchanged, visible to a writer in any process.
 *
 * A *lease* is an open-file-description lock far beyond the end of the pool's file; it ends with its holder. A
 * reader in another process leases the epoch of the root that it walks. A view, in any process, leases (*pins*) its
 * payloads. A forked child leases the bytes that its parent has pinned, or mapped of live variables.
 */
#ifndef LMCS_MEDIA_LEASE_H
#define LMCS_MEDIA_LEASE_H

#include "base/error.h"
#include "media/media.h"

struct lmcs_lease;

enum lmcs_status lmcs_lease_new(struct lmcs_media *media, struct lmcs_lease **lease, struct lmcs_error *error);
struct lmcs_lease *lmcs_lease_share(struct lmcs_lease *lease);
void lmcs_lease_release(struct lmcs_lease *lease);

enum lmcs_status lmcs_lease_epoch(struct lmcs_lease *lease, uint64_t epoch, struct lmcs_error *error);
void lmcs_lease_epoch_end(struct lmcs_lease *lease, uint64_t epoch);
/* The lowest leased epoch, or `current`: pages unreachable up to it may be reused. */
uint64_t lmcs_lease_safe_epoch(struct lmcs_lease *lease, uint64_t current);

/* Pins are counted. The range is a whole payload, or a whole part of a live tensor. */
enum lmcs_status lmcs_lease_pin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
void lmcs_lease_unpin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes);
/* Whether any process pins this payload. Below LMCS_ALIGNED_BYTES, a neighbour's pin counts. */
bool lmcs_lease_is_pinned(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes);
/*
 * Whether any process pins any of these whole pages. *first and *end: one such pin, in whole pages, among perhaps
 * others.
 */
bool lmcs_lease_find_pin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes, uint64_t *first, uint64_t *end);

/*
 * For the fork handlers, in this order; no pin changes in between. lmcs_lease_bequeath: the child will see these bytes,
 * pinned or not. lmcs_lease_is_lost: the bytes could not be locked; pins last as long as the parent's lease, and the
 * child must not read bequeathed bytes.
 */
void lmcs_lease_before_fork(void);
void lmcs_lease_bequeath(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes);
void lmcs_lease_hand_over(void);
void lmcs_lease_after_fork(void); /* in the parent */
void lmcs_lease_in_child(void);
bool lmcs_lease_is_lost(const struct lmcs_lease *lease);

#endif
