/* SPDX-License-Identifier: BSD-3-Clause */
/* parity.h - parity of a payload's stored bytes, by which damaged ones are computed anew. */
#ifndef LMCS_COMPACT_PARITY_H
#define LMCS_COMPACT_PARITY_H

#include "pages/pool.h"
#include "records/safety.h"

/* What parity takes. */
uint64_t lmcs_parity_bytes(const struct lmcs_parity_record *parity);
enum lmcs_status lmcs_parity_pin(struct lmcs_pool *pool, const struct lmcs_parity_record *parity,
                                 struct lmcs_error *error);
void lmcs_parity_unpin(struct lmcs_pool *pool, const struct lmcs_parity_record *parity);

/*
 * Makes parity for a content whose payload is sound, and enters it, instead of what there was. *made false: the payload
 * is damaged, empty, or has been replaced meanwhile.
 */
enum lmcs_status lmcs_parity_make(struct lmcs_pool *pool, uint64_t content, uint32_t data, uint32_t parity, bool *made,
                                  struct lmcs_error *error);
/* Makes the parity of a content anew in another place, if it has some that lies from `first` to `end`; counted. */
enum lmcs_status lmcs_parity_move(struct lmcs_pool *pool, uint64_t content, uint64_t first, uint64_t end, size_t *moved,
                                  struct lmcs_error *error);
/* Whether parity itself is what was written. The caller holds pins. */
enum lmcs_status lmcs_parity_look(struct lmcs_pool *pool, uint64_t content, const struct lmcs_parity_record *parity,
                                  bool *sound, struct lmcs_error *error);
/*
 * Repairs stored bytes in memory: computes the units anew that are not what they were, as far as parity suffices.
 * *units gets how many. The caller holds pins.
 */
enum lmcs_status lmcs_parity_repair(struct lmcs_pool *pool, uint64_t content, const struct lmcs_parity_record *parity,
                                    unsigned char *stored, uint64_t *units, struct lmcs_error *error);

/* What is left is not tried again before there is more room, or some time has passed. All zeros at first. */
struct lmcs_parity_wait {
    uint64_t wait_ns; /* 0: all found room, and none was damaged */
    uint64_t since_ns;
    uint64_t free_bytes; /* then */
};

struct lmcs_parity_turn {
    bool all;                                     /* of all snapshots; else of those that the compactor is done with */
    bool (*go_on)(void *context, uint64_t bytes); /* may be NULL; false: to stop */
    void (*suspect)(void *context, uint64_t content); /* told of what is damaged; may be NULL */
    void *context;
    struct lmcs_parity_wait *wait; /* NULL: everything is tried */
};

/*
 * What policies ask for: notes the contents of snapshots that were not looked at yet, and makes parity for what is
 * noted, out of the room that captures may take. *worked: something was done. What is damaged, a shelf or a content,
 * and what there is no room for, is passed over, and wanted on: then LMCS_DAMAGED, where metadata is, or LMCS_FULL.
 */
enum lmcs_status lmcs_parity_turn(struct lmcs_pool *pool, const struct lmcs_parity_turn *turn, bool *worked,
                                  struct lmcs_error *error);

#endif
