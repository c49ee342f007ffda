/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/live.h - what the modules of live variables share.
 *
 * A variable that is in use has one *body* in the process, however many handles there are. Its record, as it is in the
 * pool, is never changed but replaced by another one: a *change* is a pair of records, old and new, of which either may
 * be missing, and one metadata transaction makes any number of changes. What only the new one has is taken before, what
 * only the old one had is given back after; if it fails, the other way round.
 *
 * Locks: live->lock for all that changes records, space and tables; it comes before the pool's `meta`. body->lock, a
 * later one, for a value's slots and a variable's version. What functions look at under body->lock alone (record,
 * transaction, is_private, pending) is changed under both: a record in one step with the slots of its cell, is_private
 * with the pages. live->lock is held while a transaction commits.
 */
#ifndef LMCS_LIVE_LIVE_H
#define LMCS_LIVE_LIVE_H

#include "lmcstore_live.h"
#include "pages/pool.h"

/* ---- Records (live_record.c) ---- */

struct lmcs_live_record {
    uint64_t shelf;
    uint64_t id;
    struct lmcs_live_df df;
    const uint64_t *shape;
    const struct lmcs_part_df *parts;
    const unsigned char *note;
    const char *name; /* NUL-terminated; "": an unnamed one, which is in no tree */
    size_t value_bytes;
    unsigned char value[]; /* as it is in the tree; the pointers point into it */
};

/* A copy of what `like` says and points to; its counts of dimensions, parts and bytes must be right. */
struct lmcs_live_record *lmcs_live_record_new(const struct lmcs_live_record *like, struct lmcs_error *error);
/* Takes its name away; that is the last thing in it. */
void lmcs_live_record_unname(struct lmcs_live_record *record);
/* Reads and checks a record; `found` false: there is none. To be freed. */
enum lmcs_status lmcs_live_record_get(struct lmcs_txn *txn, uint64_t shelf, uint64_t id,
                                      struct lmcs_live_record **record, bool *found, struct lmcs_error *error);
/* The same of a value at hand. */
enum lmcs_status lmcs_live_record_read(struct lmcs_pool *pool, struct lmcs_key_df key, const void *value, size_t bytes,
                                       struct lmcs_live_record **record, struct lmcs_error *error);
enum lmcs_status lmcs_live_record_find(struct lmcs_txn *txn, uint64_t shelf, const char *name,
                                       struct lmcs_live_record **record, bool *found, struct lmcs_error *error);
/* Records of a shelf, or of all (0), until `visit` gives something else than LMCS_OK. The record is the visit's. */
enum lmcs_status lmcs_live_record_each(struct lmcs_txn *txn, uint64_t shelf,
                                       enum lmcs_status (*visit)(void *context, struct lmcs_live_record *record,
                                                                 struct lmcs_error *error),
                                       void *context, struct lmcs_error *error);
uint64_t lmcs_live_capacity(const struct lmcs_live_record *record); /* bytes of its parts */
bool lmcs_live_is_variable_length(const struct lmcs_live_record *record);
/* Whether who has one open may be shown the other: the same form, dtype and shape, but for a length that varies. */
bool lmcs_live_same_kind(const struct lmcs_live_record *a, const struct lmcs_live_record *b);

/* Either may be NULL. */
struct lmcs_live_change {
    const struct lmcs_live_record *from;
    const struct lmcs_live_record *to;
};
/* Makes the changes within a transaction. */
enum lmcs_status lmcs_live_change_put(struct lmcs_txn *txn, const struct lmcs_live_change *changes, size_t count,
                                      struct lmcs_error *error);

/* ---- Space (live_space.c); under live->lock ---- */

struct lmcs_range {
    uint64_t offset;
    uint64_t bytes;
};
struct lmcs_ranges { /* by offset, none adjacent to another */
    struct lmcs_range *all;
    size_t count;
    size_t capacity;
};
struct lmcs_live_freed {
    struct lmcs_range range;
    uint64_t backed; /* bytes of its beginning that have file space */
    uint64_t epoch;  /* of the commit that did without it */
    bool is_cell;
};
struct lmcs_live_space {
    struct lmcs_ranges pages; /* free, without file space */
    struct lmcs_ranges cells; /* free, in pages that have it */
    struct lmcs_ranges old;   /* pages without file space that may have it, and old bytes: punching them was refused */
    bool is_old;              /* any page may be such a one: there was no memory to note which */
    struct lmcs_live_freed *freed;
    size_t freed_count;
    size_t freed_next; /* to be looked at, when there are too many to look at all */
    size_t freed_capacity;
    uint64_t object_bytes;
};

/* Reads which objects there are; then the records say what is not free, and the end enters what is. */
enum lmcs_status lmcs_live_space_begin(struct lmcs_pool *pool, struct lmcs_error *error);
/* Between the two, before anything is used: whether bytes lie in one of the objects. */
bool lmcs_live_space_has(const struct lmcs_pool *pool, uint64_t offset, uint64_t bytes);
enum lmcs_status lmcs_live_space_use(struct lmcs_pool *pool, const struct lmcs_live_record *record,
                                     struct lmcs_error *error);
enum lmcs_status lmcs_live_space_use_pages(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, uint64_t backed,
                                           struct lmcs_error *error);
enum lmcs_status lmcs_live_space_end(struct lmcs_pool *pool, struct lmcs_error *error);
void lmcs_live_space_free(struct lmcs_live_space *space);

/* Whole pages, side by side, without file space. */
enum lmcs_status lmcs_live_take(struct lmcs_pool *pool, uint64_t bytes, uint64_t *offset, struct lmcs_error *error);
/* The same at a place; false: it is not free. */
bool lmcs_live_take_at(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes);
/* Gives pages back, of which the first `backed` bytes have file space: they are used again once no reader needs them.
 */
void lmcs_live_give(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, uint64_t backed);
/* File space for pages, zeroed; and none. */
enum lmcs_status lmcs_live_back(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
void lmcs_live_unback(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes);
enum lmcs_status lmcs_live_take_cell(struct lmcs_pool *pool, uint32_t bytes, uint64_t *offset,
                                     struct lmcs_error *error);
void lmcs_live_give_cell(struct lmcs_pool *pool, uint64_t offset, uint32_t bytes);
/* Gives back all that `from` has and `keep`, which may be NULL, has not. */
void lmcs_live_give_difference(struct lmcs_pool *pool, const struct lmcs_live_record *from,
                               const struct lmcs_live_record *keep);

/* ---- Bodies (live.c) ---- */

struct lmcs_live_shelf {
    struct lmcs_live_shelf *next;
    uint64_t id;
    bool held;        /* by a transaction, a snapshot or a checkout */
    uint32_t waiting; /* threads that want to hold it */
    pthread_t holder;
    struct lmcs_transaction *transaction;
    char name[];
};

struct lmcs_mapped {
    uint64_t at; /* in the mapping */
    uint64_t bytes;
    uint64_t place; /* in the pool */
};
struct lmcs_mapping {
    struct lmcs_mapping *next; /* of the body */
    char *at;
    uint64_t bytes;            /* of addresses */
    struct lmcs_lease *lease;  /* of the pool */
    struct lmcs_mapped *pages; /* what is mapped there, or about to be; for fork */
    size_t page_count;         /* of stretches */
    size_t page_capacity;
    struct lmcs_mapping *next_known; /* of the process, for fork */
    struct lmcs_mapping **at_known;
};

struct lmcs_live_body {
    struct lmcs_live_body *next_id; /* in the tables */
    struct lmcs_live_body *next_name;
    struct lmcs_pool *pool;
    struct lmcs_live_shelf *shelf;
    uint64_t id;
    uint32_t references; /* handles, and the transaction */
    uint32_t handles;
    bool stored;     /* its record is in the tree */
    bool named;      /* it is in the table of names */
    bool pinned;     /* of a reader */
    bool is_damaged; /* its cell: it can be erased, named and replaced, but not opened */
    struct lmcs_live_record *record;
    /* in a transaction */
    struct lmcs_transaction *transaction;
    struct lmcs_live_body *next_in;  /* of it */
    struct lmcs_live_record *before; /* the record that the transaction found, when it has changed; or NULL: see made */
    bool changed;
    bool made;              /* by the transaction */
    bool erased;            /* by the transaction: its record has no name */
    bool is_private;        /* its pages are */
    unsigned char *pending; /* the value that commit will write; malloced; changed under both locks */
    uint64_t pending_bytes;
    /* a tensor */
    _Atomic(char *) data;          /* asked for without a lock, which a child must not take */
    struct lmcs_mapping *mappings; /* the newest first */
    struct lmcs_mapping *moving;   /* where it will be with its next record: nobody looks there before */
    /* a value, and the version of either: under `lock` */
    pthread_mutex_t lock;
    uint64_t version;
    uint64_t written_ns;
    uint64_t value_bytes;
    uint32_t slot;  /* 0 or 1: where the value is */
    bool is_unread; /* the cell could not be read: before it is used */
    /* locks, under live->lock */
    uint32_t sharers;
    struct lmcs_live *owner;
};

struct lmcs_live {
    struct lmcs_pool *pool;
    struct lmcs_live_body *body;
    bool is_tensor; /* which nothing changes while it is open */
    bool shares;    /* has a shared lock */
};

struct lmcs_live_store {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* locks, and what holds shelves */
    struct lmcs_live_shelf *shelves;
    struct lmcs_live_body **by_id;
    struct lmcs_live_body **by_name;
    size_t bucket_count; /* of both; a power of two */
    size_t body_count;
    struct lmcs_live_space space;
    unsigned forks; /* lmcs_live_forks when it was made: another one later means that this is a child */
    uint64_t next_id;
    uint64_t sequence;                                 /* of the next journal */
    struct lmcs_page_range_df journals[LMCS_JOURNALS]; /* the root's, which are changed under `lock` alone */
    uint64_t journal_backed[LMCS_JOURNALS];
    struct lmcs_transaction *undoing; /* the one whose undo journal is in use */
    atomic_bool is_breaking;          /* somebody says why, or has said it */
    atomic_bool is_broken;            /* a journal is pending: nothing can be written until the pool is opened anew */
    char broken[256];                 /* why */
};

/* Made with a pool; the second part, of writers, brings it up to date after a crash. */
enum lmcs_status lmcs_live_store_new(struct lmcs_pool *pool, struct lmcs_error *error);
enum lmcs_status lmcs_live_store_load(struct lmcs_pool *pool, struct lmcs_error *error);
/* Before a pool is opened for writing, after lmcs_check_heap: whether what a crash has left can be completed. */
enum lmcs_status lmcs_live_store_look(struct lmcs_pool *pool, const struct lmcs_root_df *root,
                                      struct lmcs_error *error);
void lmcs_live_store_free(struct lmcs_pool *pool);

/*
 * Whether a pool of this process can be worked on: its own, and no poolset; to write: and nothing is broken. Who writes
 * asks before it takes a lock, which a child must not, and again under it: meanwhile something may have been broken.
 */
enum lmcs_status lmcs_live_check(struct lmcs_pool *pool, bool to_write, struct lmcs_error *error);
void lmcs_live_break(struct lmcs_pool *pool, const struct lmcs_error *why); /* under live->lock, or a body's */
/* The same after a failure of which nobody knows what of it reached the medium: `error` says so, too. */
void lmcs_live_doubt(struct lmcs_pool *pool, struct lmcs_error *error);
enum lmcs_status lmcs_live_check_name(const char *name, struct lmcs_error *error);
/* `make`: the shelf is made if it is not there. Without: *shelf is NULL then. */
enum lmcs_status lmcs_live_shelf_find(struct lmcs_pool *pool, const char *name, bool make,
                                      struct lmcs_live_shelf **shelf, struct lmcs_error *error);

/* ---- Shelves (live_shelf.c) ---- */

/*
 * Around the change of a shelf's name, or its removal from sight: in between nobody holds, or can open, any of its
 * variables. LMCS_IN_USE: somebody of this process holds one. `gone`: the name is no longer that shelf's.
 */
enum lmcs_status lmcs_live_shelf_begin(struct lmcs_pool *pool, const char *name, const char *what,
                                       struct lmcs_error *error);
void lmcs_live_shelf_end(struct lmcs_pool *pool, const char *name, bool gone);
/* What the variables of a shelf take is added to what a removal frees. */
enum lmcs_status lmcs_live_count_removal(struct lmcs_txn *txn, uint64_t shelf, struct lmcs_removal *removal,
                                         struct lmcs_error *error);
/* Erases all variables of a shelf that is out of sight, some at a time. */
enum lmcs_status lmcs_live_drop(struct lmcs_pool *pool, uint64_t shelf, struct lmcs_removal *removal,
                                struct lmcs_error *error);

/* The body of a name, with one more reference; NULL: there is none. */
enum lmcs_status lmcs_live_body_find(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, const char *name,
                                     struct lmcs_live_body **body, struct lmcs_error *error);
/* The same, but LMCS_NOT_FOUND when there is none. */
enum lmcs_status lmcs_live_body_get(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, const char *shelf_name,
                                    const char *name, struct lmcs_live_body **body, struct lmcs_error *error);
/* A body for a record, which it takes over also when it fails. */
enum lmcs_status lmcs_live_body_new(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf,
                                    struct lmcs_live_record *record, bool stored, struct lmcs_live_body **body,
                                    struct lmcs_error *error);
/* The body of a record, as it is; NULL: there is none. */
struct lmcs_live_body *lmcs_live_body_of_id(const struct lmcs_live_store *live, uint64_t shelf, uint64_t id);
void lmcs_live_body_release(struct lmcs_live_body *body);
/* Enters it in the table of names, under its record's; or takes it out. */
void lmcs_live_body_name(struct lmcs_live_body *body);
void lmcs_live_body_unname(struct lmcs_live_body *body);
/* It has lost its name for good: no record that is made of the one that it has brings it back. */
void lmcs_live_body_forget_name(struct lmcs_live_body *body);
enum lmcs_status lmcs_live_handle_new(struct lmcs_live_body *body, struct lmcs_live **live, struct lmcs_error *error);
enum lmcs_status lmcs_live_fail_in_use(struct lmcs_live_body *body, const char *what, struct lmcs_error *error);
/* Waits until nobody holds the shelf, and holds it. LMCS_IN_USE after wait_ms; LMCS_INVALID: this thread has it. */
enum lmcs_status lmcs_live_hold(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, uint32_t wait_ms,
                                struct lmcs_error *error);
void lmcs_live_let_go(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf);
/* The names of shelves that this thread holds, `most` at most; they stay as long as it does. Takes live->lock. */
size_t lmcs_live_held(struct lmcs_pool *pool, const char **names, size_t most);
/* Waits for live->changed until a moment; false: it has passed. */
struct timespec lmcs_live_deadline(uint32_t wait_ms);
bool lmcs_live_wait(struct lmcs_live_store *live, const struct timespec *until, uint32_t wait_ms);

/* ---- Changes (live_change.c) ---- */

/*
 * Gives bodies (at most two) other records, NULL erases, by one step: now, or with the transaction that they are in.
 * The records are taken over in any case; what only they had is given back on failure.
 */
enum lmcs_status lmcs_live_change_bodies(struct lmcs_live_body *const *bodies, struct lmcs_live_record *const *records,
                                         size_t count, struct lmcs_error *error);
/* One metadata transaction; `sequence`: of the journal that it commits, or 0. */
enum lmcs_status lmcs_live_commit_changes(struct lmcs_pool *pool, const struct lmcs_live_change *changes, size_t count,
                                          uint64_t sequence, struct lmcs_error *error);
/*
 * Puts another record in place of a body's, which is the caller's then. With another cell its value comes, in one step:
 * the one that it had, that of a transaction included, is nothing any more.
 */
struct lmcs_live_record *lmcs_live_body_set(struct lmcs_live_body *body, struct lmcs_live_record *record);
/* Makes bytes of a tensor durable, at its address. */
enum lmcs_status lmcs_live_persist_range(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes,
                                         struct lmcs_error *error);
/*
 * Takes and initializes what a new variable needs. Of `like` name, note, dtype, shape, form, size and slot are given,
 * and an id, or 0 for a new one; `value`, of value_bytes, may be NULL: zeros.
 */
enum lmcs_status lmcs_live_make(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, struct lmcs_live_record *like,
                                uint64_t reserve_bytes, uint64_t version, const void *value, uint64_t value_bytes,
                                struct lmcs_live_record **record, struct lmcs_error *error);
uint32_t lmcs_live_roomy_slot(uint64_t bytes); /* for a value that may change in length */

/* ---- Cells (live_cell.c) ---- */

uint32_t lmcs_slot_room(uint64_t bytes);
uint32_t lmcs_cell_room(uint32_t slot_bytes);
/* Writes a new cell, with its first value; durable with the next sync. */
enum lmcs_status lmcs_cell_init(struct lmcs_pool *pool, const struct lmcs_live_record *record, uint64_t version,
                                const void *value, uint64_t bytes, struct lmcs_error *error);
/* Reads the cell of a body: its version and which slot is its value. LMCS_DAMAGED names the variable. Under body->lock.
 */
enum lmcs_status lmcs_cell_load(struct lmcs_live_body *body, struct lmcs_error *error);
/* Copies a value out of a record's cell, whoever writes to it; `buffer` has LMCS_LIVE_MAX_VALUE bytes, or is NULL. */
struct lmcs_cell_state {
    uint64_t version;
    uint64_t written_ns;
    uint64_t bytes;
    uint32_t slot;
};
enum lmcs_status lmcs_cell_read(struct lmcs_pool *pool, const struct lmcs_live_record *record, void *buffer,
                                struct lmcs_cell_state *state, struct lmcs_error *error);
/*
 * The same in a process that only reads, wherever the writer has put the cell by now. *now, which may be NULL, gets the
 * record, to be freed; NULL: it is gone, LMCS_NOT_FOUND. That is also a value which has become one of another kind.
 */
enum lmcs_status lmcs_cell_follow(const struct lmcs_live_body *body, void *buffer, struct lmcs_cell_state *state,
                                  struct lmcs_live_record **now, struct lmcs_error *error);
/* What belongs in a value's other slot to make it `data`: `image` has room for lmcs_slot_room(bytes). */
void lmcs_slot_image(const struct lmcs_live_body *body, const void *data, uint64_t bytes, uint64_t now_ns,
                     unsigned char *image, uint64_t *place, uint64_t *image_bytes);
/* After that has been made durable: the other slot is the value. */
void lmcs_slot_switch(struct lmcs_live_body *body, uint64_t bytes, uint64_t now_ns);
/* Writes a value and makes it durable; under body->lock. It must fit. */
enum lmcs_status lmcs_value_write(struct lmcs_live_body *body, const void *data, uint64_t bytes,
                                  struct lmcs_error *error);
/* The value as it is now, that of a transaction included; under body->lock. */
enum lmcs_status lmcs_value_read(struct lmcs_live_body *body, void *buffer, struct lmcs_error *error);
/* A tensor has been written to: durable with the next sync. Under body->lock. */
void lmcs_cell_stamp(struct lmcs_live_body *body);

/* ---- Addresses (live_map.c) ---- */

/* Maps a tensor as its record, or its next one, says: all of it at new addresses, body->moving, when it has none or has
 * outgrown them; else what is added to `mapped_bytes`. */
enum lmcs_status lmcs_live_map(struct lmcs_live_body *body, const struct lmcs_live_record *record,
                               uint64_t mapped_bytes, struct lmcs_error *error);
/* Its new addresses, if there are any, are those that it has; under body->lock, with the record. */
void lmcs_live_move(struct lmcs_live_body *body);
/* Takes away what lmcs_live_map has mapped, for a record of `bytes`, behind the first `mapped_bytes`. */
void lmcs_live_unmap_growth(struct lmcs_live_body *body, uint64_t mapped_bytes, uint64_t bytes);
/* Takes the pages from `bytes` on away. */
void lmcs_live_unmap_tail(struct lmcs_live_body *body, uint64_t bytes, uint64_t mapped_bytes);
/* The same addresses, private or shared; or on another record's parts. */
enum lmcs_status lmcs_live_remap(struct lmcs_live_body *body, const struct lmcs_live_record *record, bool private_pages,
                                 struct lmcs_error *error);
/*
 * The same, shared, behind a change that is done. When the system refuses it, what is stored there reaches nobody: the
 * addresses show what the pool has, and nothing can be written until the pool is opened again (lmcs_live_break, and its
 * locks). False then.
 */
bool lmcs_live_share(struct lmcs_live_body *body, const struct lmcs_live_record *record);
/* How often fork has made a process on the way to this one. */
unsigned lmcs_live_forks(void);
void lmcs_live_unmap_all(struct lmcs_live_body *body);
/*
 * Calls `visit` for each stretch of pages that a private mapping has of its own and that differ from the pool's.
 * *has_equal is set when there are others: what the pool has of those is flushed, and wants a sync, for it may have
 * been stored and never persisted.
 */
enum lmcs_status lmcs_live_private_pages(struct lmcs_live_body *body,
                                         enum lmcs_status (*visit)(void *context, uint64_t offset, uint64_t bytes,
                                                                   struct lmcs_error *error),
                                         void *context, bool *has_equal, struct lmcs_error *error);
/* Where byte `offset` of a tensor lies, and how many of `bytes` lie there side by side. */
uint64_t lmcs_live_place(const struct lmcs_live_record *record, uint64_t offset, uint64_t *bytes);

/* ---- Journals (live_journal.c) ---- */

struct lmcs_journaled {
    uint64_t place;
    uint64_t bytes;
    const void *data;
};
/*
 * Whether what the journals still have to be applied is whole, and leads to places of live variables alone; writes
 * nothing. After lmcs_live_space_begin.
 */
enum lmcs_status lmcs_journal_check(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error);
/* Brings the pool to what its journals say, before anything else is done to it; checks all of it first. */
enum lmcs_status lmcs_journal_recover(struct lmcs_pool *pool, struct lmcs_error *error);
/* Writes a redo journal, durably. `with_root`: the root that names its sequence commits it. *sequence 0: a new one. */
enum lmcs_status lmcs_journal_write(struct lmcs_pool *pool, const struct lmcs_journaled *entries, size_t count,
                                    bool with_root, uint64_t *sequence, struct lmcs_error *error);
/* Writes the bytes where they belong, durably, and is done with the journal. */
enum lmcs_status lmcs_journal_finish(struct lmcs_pool *pool, const struct lmcs_journaled *entries, size_t count,
                                     struct lmcs_error *error);
/* Done with a journal: durably. */
enum lmcs_status lmcs_journal_clear(struct lmcs_pool *pool, enum lmcs_journal_kind kind, struct lmcs_error *error);
/* After a failure: what may have been sealed is not to be applied. Where that fails too, `error` says so. */
void lmcs_journal_take_back(struct lmcs_pool *pool, struct lmcs_error *error);
enum lmcs_status lmcs_undo_begin(struct lmcs_pool *pool, uint64_t limit_bytes, uint64_t *sequence,
                                 struct lmcs_error *error);
/* Keeps what is at a place now. *at: where the next entry goes. */
enum lmcs_status lmcs_undo_add(struct lmcs_pool *pool, uint64_t sequence, const struct lmcs_journaled *entry,
                               uint64_t *at, struct lmcs_error *error);
/* Puts everything back, durably, and is done. */
enum lmcs_status lmcs_undo_roll_back(struct lmcs_pool *pool, uint64_t sequence, struct lmcs_error *error);

/* ---- Transactions (live_txn.c) ---- */

/*
 * A body that has just been opened, or made, joins a transaction: one that has all variables of its shelf, or that the
 * variable which it is to replace is in. NULL: none.
 */
enum lmcs_status lmcs_transaction_join(struct lmcs_live_body *body, struct lmcs_transaction *transaction, bool made,
                                       struct lmcs_error *error);
/* Whether one of its variables has this name in the pool, and another one, or none, until it commits. NULL: no. */
bool lmcs_transaction_gave_up(const struct lmcs_transaction *transaction, const char *name);
/* Declares, where that is needed, what a function is about to store to. Under live->lock. */
enum lmcs_status lmcs_transaction_will_store(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes,
                                             struct lmcs_error *error);

#endif
