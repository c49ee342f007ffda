/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/lease.h - bytes that readers keep unchanged, visible to a writer in any process.
 *
 * A *lease* is an open-file-description lock on bytes far beyond the end of the pool's file, so the kernel drops it
 * when its holder ends. A reader in another process leases the epoch of the root that it walks, for the walk. A view,
 * in any process, leases the ranges of its payloads (*pins* them) while it exists. A forked child leases the bytes that
 * its parent has pinned, or mapped of live variables, while it exists.
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
/* The lowest leased epoch, or `current`: pages that became unreachable up to it may be reused. */
uint64_t lmcs_lease_safe_epoch(struct lmcs_lease *lease, uint64_t current);

/* Pins are counted, and each needs its unpin. The range is a whole payload, or a whole part of a live tensor. */
enum lmcs_status lmcs_lease_pin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
void lmcs_lease_unpin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes);
/*
 * Whether any process pins the payload of these bytes at this offset. For a payload below LMCS_ALIGNED_BYTES, a pin of
 * a neighbour counts.
 */
bool lmcs_lease_is_pinned(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes);
/*
 * Whether any process pins any of these whole pages, by any range. *first and *end: one such pin, in whole pages; there
 * may be others before and after it.
 */
bool lmcs_lease_find_pin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes, uint64_t *first, uint64_t *end);

/*
 * Called by the fork handlers, in this order. No pin changes between the first and the last. lmcs_lease_bequeath: the
 * child will see these bytes, even if they are not pinned. Lost: the child's bytes could not be locked. Then pins last
 * as long as the parent's lease, and the child must not read bequeathed bytes.
 */
void lmcs_lease_before_fork(void);
void lmcs_lease_bequeath(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes);
void lmcs_lease_hand_over(void);
void lmcs_lease_after_fork(void); /* in the parent */
void lmcs_lease_in_child(void);
bool lmcs_lease_is_lost(const struct lmcs_lease *lease);

#endif
