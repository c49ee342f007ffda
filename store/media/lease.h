/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/lease.h - what readers hold in place, seen by a writer in any process.
 *
 * A lease is an open-file-description lock on bytes far past the end of the pool's file, so the kernel drops it when
 * its holder dies. A reader in another process leases the epoch of the root that it walks (pages), for as long as it
 * walks. A view, in whatever process, leases the ranges of the payloads that it shows, for as long as it lives. A child
 * made by fork leases what its parent has pinned, and has mapped of live variables, for as long as it lives.
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
/* The lowest epoch that anyone leases, `current` when nobody does: what became unreachable up to it may be reused. */
uint64_t lmcs_lease_safe_epoch(struct lmcs_lease *lease, uint64_t current);

/* Pins count: as many unpins end it. The range is a payload's, or a part's of a live tensor, as a whole. */
enum lmcs_status lmcs_lease_pin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
void lmcs_lease_unpin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes);
/*
 * Whether anyone, in any process, pins the payload of these bytes at this place. Of one below LMCS_ALIGNED_BYTES: or
 * another one close to it.
 */
bool lmcs_lease_is_pinned(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes);
/*
 * Whether anyone, in any process, pins any of these whole pages, by whatever range; *first and *end get where one such
 * pin lies among them, in whole pages. There may be others before it and behind it.
 */
bool lmcs_lease_find_pin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes, uint64_t *first, uint64_t *end);

/*
 * At a fork, by its handlers, in this order. Between the first and the last nobody pins or unpins anything. To
 * bequeath: the child will see these bytes, also if they are not pinned. Lost: what was to be handed over could not be
 * locked; what is pinned stays so as long as the lease of the parent, but what was bequeathed must not be looked at.
 */
void lmcs_lease_before_fork(void);
void lmcs_lease_bequeath(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes);
void lmcs_lease_hand_over(void);
void lmcs_lease_after_fork(void); /* in the parent */
void lmcs_lease_in_child(void);
bool lmcs_lease_is_lost(const struct lmcs_lease *lease);

#endif
