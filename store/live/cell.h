/* SPDX-License-Identifier: BSD-3-Clause */
/* live/cell.h - cells: the version of a variable, and the bytes of a value. */
#ifndef LMCS_LIVE_CELL_H
#define LMCS_LIVE_CELL_H

#include "live/body.h"

struct lmcs_cell_state {
    uint64_t version;
    uint64_t written_ns;
    uint64_t bytes;
    uint32_t slot;
};

/* Returns the slot size for a value that may change in length. */
uint32_t lmcs_slot_roomy(uint64_t bytes);
/* Writes a new cell with its first value. The next sync makes it durable. */
enum lmcs_status lmcs_cell_init(struct lmcs_pool *pool, const struct lmcs_live_record *record, uint64_t version,
                                const void *value, uint64_t bytes, struct lmcs_error *error);

/* Copies the value out of a cell while other threads or processes write to it. `buffer` has LMCS_LIVE_MAX_VALUE bytes,
 * or is NULL. LMCS_DAMAGED names the variable. */
enum lmcs_status lmcs_cell_read(struct lmcs_pool *pool, const struct lmcs_live_record *record, void *buffer,
                                struct lmcs_cell_state *state, struct lmcs_error *error);
/*
 * Reads the cell in a process that only reads, at its present place. *now, unless NULL, gets the present record, to be
 * freed. LMCS_NOT_FOUND, and *now NULL: the variable is gone, or is now a value of another kind.
 */
enum lmcs_status lmcs_cell_follow(const struct lmcs_live_body *body, void *buffer, struct lmcs_cell_state *state,
                                  struct lmcs_live_record **now, struct lmcs_error *error);

/* The functions below need body->lock. */

/* Reads the version of a body, and the slot of its value, from the cell. LMCS_DAMAGED names the variable. */
enum lmcs_status lmcs_cell_load(struct lmcs_live_body *body, struct lmcs_error *error);
/* Fills `image`, of lmcs_slot_room(bytes), with the contents for the other slot that make `data` the value. */
void lmcs_slot_image(const struct lmcs_live_body *body, const void *data, uint64_t bytes, uint64_t now_ns,
                     unsigned char *image, uint64_t *place, uint64_t *image_bytes);
/* Makes the other slot, which is durable now, the value. */
void lmcs_slot_switch(struct lmcs_live_body *body, uint64_t bytes, uint64_t now_ns);
/* Gives a value other bytes, which must fit its slot: durably, or pending if it is in a transaction (then under
 * live->lock, too). */
enum lmcs_status lmcs_value_put(struct lmcs_live_body *body, const void *data, uint64_t bytes,
                                struct lmcs_error *error);
/* Copies the value, or the pending one. */
enum lmcs_status lmcs_value_read(struct lmcs_live_body *body, void *buffer, struct lmcs_error *error);
/* Records a write to a tensor. The next sync makes the record durable. */
void lmcs_cell_stamp(struct lmcs_live_body *body);

#endif
