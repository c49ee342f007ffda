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

/* Slot size of a value of variable length. */
uint32_t lmcs_slot_roomy(uint64_t bytes);
/* Writes a new cell; durable with the next sync. */
enum lmcs_status lmcs_cell_init(struct lmcs_pool *pool, const struct lmcs_live_record *record, uint64_t version,
                                const void *value, uint64_t bytes, struct lmcs_error *error);

/* Copies a value despite concurrent writes. `buffer`: LMCS_LIVE_MAX_VALUE bytes, or NULL. LMCS_DAMAGED. */
enum lmcs_status lmcs_cell_read(struct lmcs_pool *pool, const struct lmcs_live_record *record, void *buffer,
                                struct lmcs_cell_state *state, struct lmcs_error *error);
/*
 * Reads the cell at its present place, in a reader. *now (or NULL): the present record, to be freed. LMCS_NOT_FOUND and
 * *now NULL: the variable is gone or a value of another kind.
 */
enum lmcs_status lmcs_cell_follow(const struct lmcs_live_body *body, void *buffer, struct lmcs_cell_state *state,
                                  struct lmcs_live_record **now, struct lmcs_error *error);

/* The functions below need body->lock. */

/* Reads version and value slot. LMCS_DAMAGED. */
enum lmcs_status lmcs_cell_load(struct lmcs_live_body *body, struct lmcs_error *error);
/* Fills `image` (lmcs_slot_room(bytes)) for the other slot with `data`. */
void lmcs_slot_image(const struct lmcs_live_body *body, const void *data, uint64_t bytes, uint64_t now_ns,
                     unsigned char *image, uint64_t *place, uint64_t *image_bytes);
/* Makes the other slot, now durable, the value. */
void lmcs_slot_switch(struct lmcs_live_body *body, uint64_t bytes, uint64_t now_ns);
/* Sets the value, which fits the slot: durable, or, in a transaction (then also under live->lock), pending. */
enum lmcs_status lmcs_value_put(struct lmcs_live_body *body, const void *data, uint64_t bytes,
                                struct lmcs_error *error);
/* Copies the value, the pending one if any. */
enum lmcs_status lmcs_value_read(struct lmcs_live_body *body, void *buffer, struct lmcs_error *error);
/* Records a tensor's write; durable with the next sync. */
void lmcs_cell_stamp(struct lmcs_live_body *body);

#endif
