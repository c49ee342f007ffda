/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/parity.h - parity of a payload's stored bytes, from which damaged ones are computed. */
#ifndef LMCS_COMPACT_PARITY_H
#define LMCS_COMPACT_PARITY_H

#include "pages/pool.h"
#include "records/policy.h"
#include "records/safety.h"

/* Bytes of the parity with its tables. */
uint64_t lmcs_parity_bytes(const struct lmcs_parity_record *parity);
enum lmcs_status lmcs_parity_pin(struct lmcs_pool *pool, const struct lmcs_parity_record *parity,
                                 struct lmcs_error *error);
void lmcs_parity_unpin(struct lmcs_pool *pool, const struct lmcs_parity_record *parity);

/* Makes parity of the content's payload, in place of earlier parity. *made false: the payload is damaged, empty, or was
 * replaced meanwhile. */
enum lmcs_status lmcs_parity_make(struct lmcs_pool *pool, uint64_t content, uint32_t data, uint32_t parity, bool *made,
                                  struct lmcs_error *error);
/* Makes the content's parity again elsewhere if it is stored from `first` to `end`; *moved counts it. */
enum lmcs_status lmcs_parity_move(struct lmcs_pool *pool, uint64_t content, uint64_t first, uint64_t end, size_t *moved,
                                  struct lmcs_error *error);
/* Whether the parity itself is sound. The caller holds pins. */
enum lmcs_status lmcs_parity_look(struct lmcs_pool *pool, uint64_t content, const struct lmcs_parity_record *parity,
                                  bool *sound, struct lmcs_error *error);
/* Computes damaged units of stored bytes in memory as far as parity suffices; *units counts them. The caller holds
 * pins. */
enum lmcs_status lmcs_parity_repair(struct lmcs_pool *pool, uint64_t content, const struct lmcs_parity_record *parity,
                                    unsigned char *stored, uint64_t *units, struct lmcs_error *error);

/* Delays attempts until there is more room or time has passed. Zeros at first. */
struct lmcs_parity_wait {
    uint64_t wait_ns; /* 0: nothing was left */
    uint64_t since_ns;
    uint64_t free_bytes; /* at since_ns; UINT64_MAX: wait even if there is more */
};

struct lmcs_parity_turn {
    bool all;                                         /* of all snapshots; else of those that the compactor finished */
    bool (*go_on)(void *context, uint64_t bytes);     /* false: stop; may be NULL */
    void (*suspect)(void *context, uint64_t content); /* damaged contents; may be NULL */
    void *context;
    struct lmcs_parity_wait *wait; /* of the background, which does a part; NULL: try everything */
    uint64_t leave_bytes;          /* with less free space, none is made */
};

/*
 * Marks the contents of new snapshots as wanted, as policies ask, then makes wanted parity in the room that captures
 * may take. *worked: it did something. Damaged contents and those without room stay wanted; the result is then
 * LMCS_DAMAGED (metadata) or LMCS_FULL.
 */
enum lmcs_status lmcs_parity_turn(struct lmcs_pool *pool, const struct lmcs_parity_turn *turn, bool *worked,
                                  struct lmcs_error *error);
/*
 * Makes parity of links, each given once or more, before arrays that they store or rest on give up their raw bytes: as
 * the policy asks, where it is missing and as far as there is room. Changes the order of `links`.
 */
enum lmcs_status lmcs_parity_before(struct lmcs_pool *pool, const struct lmcs_parity_turn *turn,
                                    const struct lmcs_policy *policy, uint64_t *links, size_t count,
                                    struct lmcs_error *error);
/* The pool is full: drops the parity of parity=bases. The background makes it again after the longest wait, if there is
 * room then. */
void lmcs_parity_make_way(struct lmcs_pool *pool, struct lmcs_parity_wait *wait);

#endif
