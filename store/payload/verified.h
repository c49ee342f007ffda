/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/verified.h - raw payloads that this process has compared with their checksums.
 *
 * Each block of a raw payload is compared once per open pool (pool->verified): bytes read by address would otherwise be
 * hashed at each read. An entry holds for one content at one place. Numbers of contents are never used again, so bytes
 * that are freed and used again, also by another process, are compared again. A forked child opens a pool of its own.
 */
#ifndef LMCS_PAYLOAD_VERIFIED_H
#define LMCS_PAYLOAD_VERIFIED_H

#include "payload/read.h"

/* A raw payload, whole or a block of it. */
#define LMCS_ALL_BLOCKS UINT64_MAX
bool lmcs_verified_has(struct lmcs_pool *pool, uint64_t content, const struct lmcs_part_df *parts, uint64_t block);
/* Without memory, nothing is noted. */
void lmcs_verified_note(struct lmcs_pool *pool, uint64_t content, const struct lmcs_part_df *parts, uint64_t block);

/* A raw payload, or an empty one. The caller holds pins. */
struct lmcs_raw {
    const struct lmcs_entry *entry;
    const struct lmcs_part_df *parts;
    uint32_t part_count;
};
/* Compares raw payloads, in the mapping and with the pool's threads, and notes them. Changes the order of `raws`.
 * LMCS_DAMAGED names the tensor. */
enum lmcs_status lmcs_raw_verify(struct lmcs_pool *pool, struct lmcs_raw *raws, size_t count, struct lmcs_error *error);

#endif
