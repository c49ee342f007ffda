/* SPDX-License-Identifier: BSD-3-Clause */
/* live/body.h - live variables in use: shelves, bodies and handles. Needs live->lock unless stated otherwise. */
#ifndef LMCS_LIVE_BODY_H
#define LMCS_LIVE_BODY_H

#include "live/live.h"
#include "live/record.h"
#include "live/space.h"
#include "records/busy.h"

struct lmcs_mapping;

struct lmcs_live_shelf {
    struct lmcs_live_shelf *next;
    uint64_t id;
    bool held; /* by a transaction, snapshot or checkout */
    struct lmcs_live_holder holder;
    bool is_read;     /* by the snapshot that holds it, without live->lock: no tensor may be resized */
    uint32_t waiting; /* threads */
    struct lmcs_transaction *transaction;
    char name[];
};

struct lmcs_live_body {
    struct lmcs_live_body *next_id;
    struct lmcs_live_body *next_name;
    struct lmcs_pool *pool;
    struct lmcs_live_shelf *shelf;
    uint64_t id;
    uint32_t references; /* of handles and the transaction */
    uint32_t handles;
    bool stored;     /* its record is in the tree */
    bool named;      /* in the table of names */
    bool pinned;     /* by a reader */
    bool is_damaged; /* its cell is: it can be erased, named or replaced, not opened */
    struct lmcs_live_record *record;
    struct lmcs_transaction *transaction;
    struct lmcs_live_body *next_in;
    struct lmcs_live_record *before; /* the pool's record, if the transaction changed it */
    bool changed;
    bool erased;            /* by the transaction */
    bool is_private;        /* mapped private */
    unsigned char *pending; /* malloced value for commit */
    uint64_t pending_bytes;
    _Atomic(char *) data;          /* read without a lock, which a child must not take */
    struct lmcs_mapping *mappings; /* newest first */
    struct lmcs_mapping *moving;   /* addresses for its next record, until lmcs_live_move */
    enum lmcs_live_access access;  /* advice for all mappings */
    /* Under `lock`: the value, and the version of either form */
    pthread_mutex_t lock;
    uint64_t version;
    uint64_t written_ns;
    uint64_t value_bytes;
    uint32_t slot;  /* of the value: 0 or 1 */
    bool is_unread; /* reading the cell failed: retry */
    /* Under live->lock: locks of handles */
    uint32_t sharers;
    struct lmcs_live *owner;
};

struct lmcs_live {
    struct lmcs_pool *pool;
    struct lmcs_live_body *body;
    bool is_tensor; /* constant while open */
    bool shares;    /* has a shared lock */
};

struct lmcs_live_store {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct lmcs_live_shelf *shelves;
    struct lmcs_live_body **by_id;
    struct lmcs_live_body **by_name;
    size_t bucket_count; /* a power of two */
    size_t body_count;
    struct lmcs_live_space space;
    unsigned forks; /* lmcs_live_forks() of the creating process */
    uint64_t next_id;
    uint64_t sequence;                                 /* newest journal's */
    struct lmcs_page_range_df journals[LMCS_JOURNALS]; /* the root's; changed under `lock` */
    uint64_t journal_backed[LMCS_JOURNALS];
    struct lmcs_transaction *undoing;
    atomic_bool is_breaking; /* `broken` is being set, or is set */
    atomic_bool is_broken;   /* a journal is pending: no writes before the next open */
    char broken[256];
};

/* ---- State (state.c) ---- */

/*
 * The pool must belong to this process and be no poolset; `to_write`: open for writing, nothing broken. Writers call it
 * before locking, because a child must not lock, and again under the lock.
 */
enum lmcs_status lmcs_live_check(struct lmcs_pool *pool, bool to_write, struct lmcs_error *error);
/* Makes later writes fail until the next open. Needs live->lock or a body's. */
void lmcs_live_break(struct lmcs_pool *pool, const struct lmcs_error *why);
/* Breaks after a failed change that may have reached the medium; `error` says so. */
void lmcs_live_doubt(struct lmcs_pool *pool, struct lmcs_error *error);

/* ---- Shelves (shelf_table.c) ---- */

/* *shelf NULL: no such shelf (only without `make`). */
enum lmcs_status lmcs_live_shelf_find(struct lmcs_pool *pool, const char *name, bool make,
                                      struct lmcs_live_shelf **found, struct lmcs_error *error);
/* Waits at most wait_ms for the shelf, then LMCS_IN_USE with ETIMEDOUT. LMCS_INVALID: this thread holds it. */
enum lmcs_status lmcs_live_shelf_hold(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, uint32_t wait_ms,
                                      struct lmcs_error *error);
void lmcs_live_shelf_release(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf);
/* The time in wait_ms (UINT32_MAX: forever); waiting for live->changed until then. False: it has passed. */
struct timespec lmcs_live_deadline(uint32_t wait_ms);
bool lmcs_live_wait(struct lmcs_live_store *live, const struct timespec *until, uint32_t wait_ms);

/* ---- Bodies (body.c) ---- */

/* Opens the body of a name if needed and adds a reference. *body NULL: no such variable. */
enum lmcs_status lmcs_live_body_find(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, const char *name,
                                     struct lmcs_live_body **found, struct lmcs_error *error);
/* The same, but LMCS_NOT_FOUND if there is none. `shelf` may be NULL: not found. */
enum lmcs_status lmcs_live_body_get(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, const char *shelf_name,
                                    const char *name, struct lmcs_live_body **body, struct lmcs_error *error);
/* Makes a body. Owns the record, even on failure. */
enum lmcs_status lmcs_live_body_new(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf,
                                    struct lmcs_live_record *record, bool stored, struct lmcs_live_body **body,
                                    struct lmcs_error *error);
/* A body in use, or NULL. Adds no reference. */
struct lmcs_live_body *lmcs_live_body_of_id(const struct lmcs_live_store *live, uint64_t shelf, uint64_t id);
void lmcs_live_body_release(struct lmcs_live_body *body);
/* Enters it in the table of names under its record's name, or removes it. */
void lmcs_live_body_name(struct lmcs_live_body *body);
void lmcs_live_body_unname(struct lmcs_live_body *body);
/* Removes the name from the record, too. */
void lmcs_live_body_forget_name(struct lmcs_live_body *body);
/* Fails with LMCS_IN_USE. `action` is a participle ("erased"). */
enum lmcs_status lmcs_live_fail_in_use(struct lmcs_live_body *body, const char *action, struct lmcs_error *error);

/* ---- Handles (handle.c) ---- */

enum lmcs_status lmcs_live_handle_new(struct lmcs_live_body *body, struct lmcs_live **live, struct lmcs_error *error);

#endif
