/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/body.h - live variables in use: the state of a pool's live variables, shelves, bodies and handles.
 *
 * Functions need live->lock unless stated otherwise.
 */
#ifndef LMCS_LIVE_BODY_H
#define LMCS_LIVE_BODY_H

#include "live/live.h"
#include "live/record.h"
#include "live/space.h"
#include "records/busy.h"

struct lmcs_mapping;

/* A shelf whose live variables this process has used. */
struct lmcs_live_shelf {
    struct lmcs_live_shelf *next;
    uint64_t id;
    bool held; /* by a transaction, a snapshot or a checkout */
    struct lmcs_live_holder holder;
    uint32_t waiting; /* threads that wait to hold it */
    struct lmcs_transaction *transaction;
    char name[];
};

struct lmcs_live_body {
    struct lmcs_live_body *next_id; /* in the tables */
    struct lmcs_live_body *next_name;
    struct lmcs_pool *pool;
    struct lmcs_live_shelf *shelf;
    uint64_t id;
    uint32_t references; /* of handles and of the transaction */
    uint32_t handles;
    bool stored;     /* its record is in the tree */
    bool named;      /* it is in the table of names */
    bool pinned;     /* by a reader */
    bool is_damaged; /* its cell is: the variable can be erased, named and replaced, but not opened */
    struct lmcs_live_record *record;
    /* Transactions */
    struct lmcs_transaction *transaction;
    struct lmcs_live_body *next_in;  /* of the transaction */
    struct lmcs_live_record *before; /* the pool's record, once the transaction has changed it; else NULL */
    bool changed;
    bool erased;            /* by the transaction: its record has no name */
    bool is_private;        /* its pages are mapped private */
    unsigned char *pending; /* malloced value that commit will write */
    uint64_t pending_bytes;
    /* Tensors */
    _Atomic(char *) data;          /* read without a lock, which a child must not take */
    struct lmcs_mapping *mappings; /* newest first */
    struct lmcs_mapping *moving;   /* the mapping for its next record; unused until lmcs_live_move */
    /* Under `lock`: the value, and the version of either form */
    pthread_mutex_t lock;
    uint64_t version;
    uint64_t written_ns;
    uint64_t value_bytes;
    uint32_t slot;  /* 0 or 1: the slot with the value */
    bool is_unread; /* the cell could not be read; read it before use */
    /* Locks of handles, under live->lock */
    uint32_t sharers;
    struct lmcs_live *owner;
};

struct lmcs_live {
    struct lmcs_pool *pool;
    struct lmcs_live_body *body;
    bool is_tensor; /* constant while the handle is open */
    bool shares;    /* it has a shared lock */
};

struct lmcs_live_store {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* locks of handles, and holders of shelves */
    struct lmcs_live_shelf *shelves;
    struct lmcs_live_body **by_id;
    struct lmcs_live_body **by_name;
    size_t bucket_count; /* of both tables; a power of two */
    size_t body_count;
    struct lmcs_live_space space;
    unsigned forks; /* lmcs_live_forks() of the process that made it; a child's differs */
    uint64_t next_id;
    uint64_t sequence;                                 /* of the newest journal */
    struct lmcs_page_range_df journals[LMCS_JOURNALS]; /* the root's; `lock` guards every change of them */
    uint64_t journal_backed[LMCS_JOURNALS];
    struct lmcs_transaction *undoing; /* the transaction that uses the undo journal */
    atomic_bool is_breaking;          /* a thread sets or has set `broken` */
    atomic_bool is_broken;            /* a journal is pending: nothing can be written until the pool is opened again */
    char broken[256];                 /* why */
};

/* ---- State (state.c) ---- */

/*
 * Checks that live variables of this pool can be used: the pool belongs to this process and is no poolset. `to_write`:
 * it is open for writing, and nothing is broken. A writer calls it before it takes a lock, which a child must not take,
 * and again under the lock, because another thread may have broken something meanwhile.
 */
enum lmcs_status lmcs_live_check(struct lmcs_pool *pool, bool to_write, struct lmcs_error *error);
/* Fails all later writes until the pool is opened again. Needs live->lock or a body's. */
void lmcs_live_break(struct lmcs_pool *pool, const struct lmcs_error *why);
/* Breaks after a failure that may or may not have reached the medium, and adds that to `error`. */
void lmcs_live_doubt(struct lmcs_pool *pool, struct lmcs_error *error);

/* ---- Shelves (shelf_table.c) ---- */

/* Finds a shelf, and creates it if it is missing and `make` is set. Otherwise *shelf is NULL if it is missing. */
enum lmcs_status lmcs_live_shelf_find(struct lmcs_pool *pool, const char *name, bool make,
                                      struct lmcs_live_shelf **shelf, struct lmcs_error *error);
/* Waits until no thread holds the shelf, then holds it. LMCS_IN_USE after wait_ms; LMCS_INVALID: this thread has it. */
enum lmcs_status lmcs_live_shelf_hold(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, uint32_t wait_ms,
                                      struct lmcs_error *error);
void lmcs_live_shelf_release(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf);
/* Waits for live->changed until a deadline (UINT32_MAX ms: for ever). Returns false once it has passed. */
struct timespec lmcs_live_deadline(uint32_t wait_ms);
bool lmcs_live_wait(struct lmcs_live_store *live, const struct timespec *until, uint32_t wait_ms);

/* ---- Bodies (body.c) ---- */

/* Finds the body of a name, opened if need be, and adds a reference. *body is NULL if there is no such variable. */
enum lmcs_status lmcs_live_body_find(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, const char *name,
                                     struct lmcs_live_body **body, struct lmcs_error *error);
/* The same, but returns LMCS_NOT_FOUND if there is none. `shelf` may be NULL. */
enum lmcs_status lmcs_live_body_get(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, const char *shelf_name,
                                    const char *name, struct lmcs_live_body **body, struct lmcs_error *error);
/* Makes the body of a record. It takes the record over, also when it fails. */
enum lmcs_status lmcs_live_body_new(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf,
                                    struct lmcs_live_record *record, bool stored, struct lmcs_live_body **body,
                                    struct lmcs_error *error);
/* Returns the body of a variable in use, without a reference, or NULL. */
struct lmcs_live_body *lmcs_live_body_of_id(const struct lmcs_live_store *live, uint64_t shelf, uint64_t id);
void lmcs_live_body_release(struct lmcs_live_body *body);
/* Enters a body in the table of names under its record's name, or removes it. */
void lmcs_live_body_name(struct lmcs_live_body *body);
void lmcs_live_body_unname(struct lmcs_live_body *body);
/* Removes the name for good, from the record too. */
void lmcs_live_body_forget_name(struct lmcs_live_body *body);
/* Fails with LMCS_IN_USE. `action` is a participle ("erased"). */
enum lmcs_status lmcs_live_fail_in_use(struct lmcs_live_body *body, const char *action, struct lmcs_error *error);

/* ---- Handles (handle.c) ---- */

enum lmcs_status lmcs_live_handle_new(struct lmcs_live_body *body, struct lmcs_live **live, struct lmcs_error *error);

#endif
