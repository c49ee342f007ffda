/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/record.h - records of live variables: read, checked, found, replaced.
 *
 * Reading checks that sizes fit and places are inside the pool; space.c, that no place is used twice.
 */
#ifndef LMCS_LIVE_RECORD_H
#define LMCS_LIVE_RECORD_H

#include "lmcstore_live.h"
#include "pages/pool.h"

struct lmcs_live_record {
    uint64_t shelf;
    uint64_t id;
    struct lmcs_live_df df;
    const uint64_t *shape;
    const struct lmcs_part_df *parts;
    const unsigned char *note;
    const char *name; /* NUL-terminated; "": in no tree */
    size_t value_bytes;
    unsigned char value[]; /* the tree's value; the pointers above point into it */
};

typedef enum lmcs_status lmcs_live_record_visit(void *context, struct lmcs_live_record *record,
                                                struct lmcs_error *error);

/* Copies a record with its arrays; its counts of dimensions, parts and bytes must be right. */
struct lmcs_live_record *lmcs_live_record_new(const struct lmcs_live_record *like, struct lmcs_error *error);
void lmcs_live_record_unname(struct lmcs_live_record *record);
/* The caller frees the checked record. *found false: none. */
enum lmcs_status lmcs_live_record_get(struct lmcs_txn *txn, uint64_t shelf, uint64_t id,
                                      struct lmcs_live_record **record, bool *found, struct lmcs_error *error);
/* Makes a checked record from a tree value. */
enum lmcs_status lmcs_live_record_read(struct lmcs_pool *pool, struct lmcs_key_df key, const void *value, size_t bytes,
                                       struct lmcs_live_record **record, struct lmcs_error *error);
enum lmcs_status lmcs_live_record_find(struct lmcs_txn *txn, uint64_t shelf, const char *name,
                                       struct lmcs_live_record **record, bool *found, struct lmcs_error *error);
/* Visits a shelf's records (0: of all shelves) until `visit` fails. `visit` owns each record. */
enum lmcs_status lmcs_live_record_each(struct lmcs_txn *txn, uint64_t shelf, lmcs_live_record_visit *visit,
                                       void *context, struct lmcs_error *error);

uint64_t lmcs_live_capacity(const struct lmcs_live_record *record);
bool lmcs_live_is_variable_length(const struct lmcs_live_record *record);
/* Whether holders of `a` may get `b`: equal form, dtype and shape, except a length that varies. */
bool lmcs_live_same_kind(const struct lmcs_live_record *a, const struct lmcs_live_record *b);
enum lmcs_status lmcs_live_check_name(const char *name, struct lmcs_error *error);

struct lmcs_live_change {
    const struct lmcs_live_record *from; /* NULL: new */
    const struct lmcs_live_record *to;   /* NULL: erased */
};
enum lmcs_status lmcs_live_change_put(struct lmcs_txn *txn, const struct lmcs_live_change *changes, size_t count,
                                      struct lmcs_error *error);

/* Bytes of a slot for a value of `bytes`; of a cell with two. */
static inline uint32_t lmcs_slot_room(uint64_t bytes)
{
    return (uint32_t)((sizeof(struct lmcs_value_df) + bytes + LMCS_CELL_ALIGN - 1) & ~(uint64_t)(LMCS_CELL_ALIGN - 1));
}

static inline uint32_t lmcs_cell_room(uint32_t slot_bytes)
{
    return (uint32_t)sizeof(struct lmcs_cell_df) + 2 * slot_bytes;
}

#endif
