/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lmcstore_live.h - variables of a shelf that live in the pool: tensors that are worked on in place, and small values.
 *
 * A shelf has snapshots, which never change, and *live variables*, which do. A variable has a name, a dtype and a
 * shape, a note of the application's own, and one of two forms. A *tensor* has an address: it is mapped, shared with
 * the file, may be larger than memory, and is written to with ordinary stores. A *value* is small (a number, a string,
 * some bytes), has no address, and is read and written by functions; each write is atomic and durable at once.
 *
 * What survives a crash or a power cut
 *   A function that changes a variable (create, put, write, add, erase, swap, ...) has done all of it, durably, when it
 *   returns LMCS_OK. Cut short it has done all of it or nothing. What fails has changed nothing, but where the message
 *   says that it is durable, or that this will be known: then the disk has failed, and nothing more is written.
 *   Stores through an address are durable after lmcs_live_persist. Until then they may be there after a crash or not,
 *   each aligned word of 8 bytes by itself; those in a transaction are there after its commit, all or none of them.
 *   What is in a live tensor has no checksum, for it changes at any time: damage there can't be noticed. Values, and
 *   what describes a variable, have checksums.
 *
 * Handles and addresses
 *   A handle (struct lmcs_live) is one holder of a variable. It goes with the bytes and not with the name: after a swap
 *   or a rename it is a handle of the same bytes under another name. An open handle keeps the pool open: a pool that
 *   was closed really closes with its last handle. An address is the same for all handles of a variable in a process,
 *   and valid until the last of them is closed.
 *   In a pool that is open for reading (beside the process that writes) variables can be opened, and read. Addresses
 *   are read-only there and show what the writer stores, as it stores it; reading a value gives a whole one, the
 *   newest. A handle there keeps a tensor where it was, and of the shape that it had, when it was opened, also when the
 *   writer resizes (what is cut off may become zero), replaces or erases it; a value that the writer has erased or
 *   replaced is LMCS_NOT_FOUND. What the writer has named anew, resized or replaced gets another address when it is
 *   opened again.
 *
 * Threads: all functions may be called by any thread at any time, also with the same handle, but for close, which ends
 * it. Stores through addresses are the caller's to order. fork: in a child an address can be read, not written to (on
 * a device, or where the system had no descriptor or lock left for the child: not even read), and every function but
 * close fails. It shows the bytes that it showed when the child was made, with what is stored to them as long as they
 * are a variable's: the space of what the parent closes, erases, replaces or checks out is used again only when the
 * child, and its own children, have ended or called exec.
 *
 * Not on poolsets, whose replicas stores through an address would not reach: LMCS_UNSUPPORTED.
 */
#ifndef LMCSTORE_LIVE_H
#define LMCSTORE_LIVE_H

#include "lmcstore.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LMCS_LIVE_MAX_VALUE   65536u /* bytes of a value */
#define LMCS_LIVE_MAX_NOTE    255u   /* bytes */
#define LMCS_LIVE_MAX_EXTENTS 16u    /* stretches of the pool that a tensor may lie in: its growths, and each 15 GiB */

struct lmcs_live;
struct lmcs_transaction;

enum lmcs_live_form { LMCS_LIVE_TENSOR = 0, LMCS_LIVE_VALUE = 1 };

/* ---- Making, opening, closing --------------------------------------------------------------------------------- */

enum lmcs_live_flags {
    LMCS_LIVE_UNNAMED = 1 /* the variable has no name, and is gone with its handle, until lmcs_live_replace names it */
};

struct lmcs_live_options {
    uint32_t form;          /* enum lmcs_live_form */
    uint32_t flags;         /* enum lmcs_live_flags */
    uint64_t reserve_bytes; /* tensors: addresses kept free, so that it can grow to this size where it is; 0: twice its
                               size. Takes no file space (on a device, where there are no holes: takes it) */
    const void *note;       /* kept with it, for whatever it is good for: a type's name, say */
    size_t note_bytes;      /* at most LMCS_LIVE_MAX_NOTE */
};
LMCS_API void lmcs_live_options_init(struct lmcs_live_options *options);

/*
 * Makes a variable, all zeros. `tensor`: name, dtype, shape (kind, strides and parts of larger ones are not for it).
 * The shelf is made if need be. `options` NULL: a tensor. `live` NULL: no handle is wanted. LMCS_EXISTS: there is one
 * of that name; LMCS_FULL; LMCS_INVALID.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_create(struct lmcs_pool *pool, const char *shelf,
                                                          const struct lmcs_tensor *tensor,
                                                          const struct lmcs_live_options *options,
                                                          struct lmcs_live **live, struct lmcs_error *error);
/*
 * LMCS_NOT_FOUND; LMCS_DAMAGED names the variable: it can be erased, or put or replaced anew, and a checkout makes it
 * what it was in a snapshot.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_open(struct lmcs_pool *pool, const char *shelf, const char *name,
                                                        struct lmcs_live **live, struct lmcs_error *error);
/* Ends a handle, and lets go of its lock. The last one of an erased, replaced or unnamed variable frees its space. */
LMCS_API void lmcs_live_close(struct lmcs_live *live);

/*
 * The tensor's first byte, on a page; NULL for a value. Not NULL for an empty tensor. It changes only in
 * lmcs_live_resize, and only when the tensor outgrows the addresses reserved for it.
 */
LMCS_API void *lmcs_live_data(const struct lmcs_live *live);

struct lmcs_live_info {
    char name[LMCS_MAX_NAME + 1]; /* "": unnamed, erased or replaced */
    uint32_t form;                /* enum lmcs_live_form */
    uint32_t dtype;
    uint32_t ndim;
    uint64_t shape[LMCS_MAX_DIMS];
    uint64_t bytes;          /* of its data */
    uint64_t reserved_bytes; /* size to which it can grow in place */
    uint64_t created_ns;
    uint64_t written_ns; /* when a function last wrote to it, or persisted it; 0: not yet */
    uint64_t version;    /* how often: counts from 1. Both may lag behind by writes that a crash cut short */
    uint32_t handles;    /* open ones, in this process */
    int32_t numa_node;   /* of the pool; -1: not known, or one node only */
    unsigned char note[LMCS_LIVE_MAX_NOTE + 1]; /* and a NUL */
    uint32_t note_bytes;
    bool is_damaged; /* opening it fails, and version and written_ns are not known; nor is a value's size */
};
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_info(struct lmcs_live *live, struct lmcs_live_info *info,
                                                        struct lmcs_error *error);

struct lmcs_live_filter {
    const char *prefix;        /* NULL: all names */
    uint64_t written_from_ns;  /* written to at this time or later ... */
    uint64_t written_until_ns; /* ... and before this one; 0: any */
};
/*
 * Visits the variables of a shelf by name (byte order), until `visit` returns false. `filter` may be NULL. A shelf that
 * is not there has none. One that is damaged is among them whenever it was written to. All are looked up before the
 * first visit, so `visit` may call any function.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_list(struct lmcs_pool *pool, const char *shelf,
                                                        const struct lmcs_live_filter *filter,
                                                        bool (*visit)(void *context, const struct lmcs_live_info *info),
                                                        void *context, struct lmcs_error *error);
struct lmcs_live_usage {
    uint64_t variables;  /* of the shelf */
    uint64_t bytes;      /* of their data */
    double pool_percent; /* of what the pool can hold is used, by whatever */
};
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_usage(struct lmcs_pool *pool, const char *shelf,
                                                         struct lmcs_live_usage *usage, struct lmcs_error *error);

/* ---- Changing names and sizes --------------------------------------------------------------------------------- */

/* LMCS_IN_USE while anyone in this process has a handle of it: nothing is done then. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_erase(struct lmcs_pool *pool, const char *shelf, const char *name,
                                                         struct lmcs_error *error);
/*
 * LMCS_EXISTS when `to` is there; LMCS_IN_USE when a transaction that this variable is not in has given up that name,
 * which it gets back when it is aborted.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_rename(struct lmcs_pool *pool, const char *shelf, const char *from,
                                                          const char *to, struct lmcs_error *error);
/* Each gets what the other was: bytes, dtype, shape, form and note. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_swap(struct lmcs_pool *pool, const char *shelf, const char *first,
                                                        const char *second, struct lmcs_error *error);
/*
 * Gives a variable that was made unnamed its name; one that has it already is erased by the same step, so that there is
 * always one or the other. Its bytes are made durable first. Holders of the old one keep its bytes until they close it.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_replace(struct lmcs_live *live, const char *name,
                                                           struct lmcs_error *error);
/*
 * Gives a tensor another shape. What it grows by is zero; what is cut off is lost, and its addresses must not be used
 * any more. So LMCS_IN_USE when it would get smaller and has other handles in this process; those who share one handle
 * tell each other. Nothing is copied: it grows by another stretch of the pool. Its address stays when
 * the size is within its reserved_bytes; otherwise it gets another one, and the old one shows the same bytes (those
 * that it had) until the last handle is closed; but what is stored through the old one is never part of a transaction.
 * LMCS_FULL; LMCS_UNSUPPORTED on a device, past what was reserved.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_resize(struct lmcs_live *live, uint32_t ndim, const uint64_t *shape,
                                                          struct lmcs_error *error);
/* Replaces the note. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_set_note(struct lmcs_live *live, const void *note, size_t note_bytes,
                                                            struct lmcs_error *error);

/* ---- Reading and writing -------------------------------------------------------------------------------------- */

/* Makes what was stored to these bytes of a tensor durable. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_persist(struct lmcs_live *live, uint64_t offset, uint64_t bytes,
                                                           struct lmcs_error *error);
/*
 * Writes bytes of a tensor or value: atomically and durably. In a tensor: at most LMCS_LIVE_MAX_VALUE bytes, and
 * fastest when they are 1, 2, 4 or 8 aligned ones.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_write(struct lmcs_live *live, uint64_t offset, const void *data,
                                                         uint64_t bytes, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_read(struct lmcs_live *live, uint64_t offset, void *buffer,
                                                        uint64_t bytes, struct lmcs_error *error);
/*
 * Adds to an integer of 1, 2, 4, 8 or 16 bytes, aligned to its size (two's complement, wrapping around), and gives what
 * it was in `before`, which may be NULL. Atomic among threads that use these functions, and durable.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_add(struct lmcs_live *live, uint64_t offset, uint64_t bytes,
                                                       const void *operand, void *before, struct lmcs_error *error);
/* Writes `desired` if there is `expected`; `found`, which may be NULL, gets what was there. Sizes as for add. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_compare_and_swap(struct lmcs_live *live, uint64_t offset,
                                                                    uint64_t bytes, const void *expected,
                                                                    const void *desired, void *found, bool *swapped,
                                                                    struct lmcs_error *error);

/*
 * Gives the name a value of these bytes (dtype u8, one dimension): what there was is replaced, in one step, whatever
 * its form. Fast where a value of about that size and this note is there already. `note` NULL: none.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_put(struct lmcs_pool *pool, const char *shelf, const char *name,
                                                       const void *data, uint64_t bytes, const void *note,
                                                       size_t note_bytes, struct lmcs_error *error);
/* The same through a handle of a value (dtype u8, one dimension, or of the very size), which keeps its note. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_set(struct lmcs_live *live, const void *data, uint64_t bytes,
                                                       struct lmcs_error *error);
/*
 * Copies all of a value, or a tensor, to `buffer`; *bytes gets its size. LMCS_INVALID when it has more than `capacity`:
 * then *bytes says how many.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_get(struct lmcs_live *live, void *buffer, uint64_t capacity,
                                                       uint64_t *bytes, struct lmcs_error *error);

/* ---- Locks ---------------------------------------------------------------------------------------------------- */

/*
 * Locks are between those who ask for them, handles of this process: nothing else heeds them. A handle has one lock at
 * most. `wait_ms`: 0 tries, UINT32_MAX waits for ever. LMCS_IN_USE: others have it.
 */
enum lmcs_live_lock { LMCS_LOCK_SHARED, LMCS_LOCK_EXCLUSIVE };
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_lock(struct lmcs_live *live, enum lmcs_live_lock lock,
                                                        uint32_t wait_ms, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_unlock(struct lmcs_live *live, struct lmcs_error *error);

/* ---- Transactions --------------------------------------------------------------------------------------------- */

/*
 * Between begin and commit the variables of a transaction are changed for this process only; commit makes all changes
 * durable, abort undoes them, and a crash is an abort. That holds for stores through addresses as for functions, for
 * creating, erasing, naming and resizing as for bytes, and for what any thread does to these variables: a transaction
 * belongs to its variables, not to a thread. No thread may store to them during begin, commit or abort.
 *
 * A tensor's pages are private to the process meanwhile: each page that is written to takes one of memory, and at
 * commit one of the pool, whatever the tensor's size. At most limit_bytes of pages can be committed: LMCS_FULL says
 * how many there were, and the transaction is as it was, to be aborted (or reverted by its user, and committed).
 *
 * On a device pages can't be private. There, and with LMCS_TRANSACTION_DECLARED anywhere, what is to be stored to must
 * be declared before, range by range; what was there is kept in the pool, and put back by abort, or after a crash.
 *
 * A shelf has one transaction at a time; declared ones, a pool. A variable that is created in a transaction, or named
 * by lmcs_live_replace, belongs to it.
 */
enum lmcs_transaction_flags { LMCS_TRANSACTION_DECLARED = 1 };

struct lmcs_transaction_options {
    uint32_t flags;
    uint32_t wait_ms;     /* for another transaction, a snapshot or a checkout of the shelf to end; UINT32_MAX: ever */
    uint64_t limit_bytes; /* 0: 1 GiB, or a quarter of the pool's limit when that is less */
};
LMCS_API void lmcs_transaction_options_init(struct lmcs_transaction_options *options);

/*
 * `lives` NULL: all variables of the shelf, those that are opened later included. LMCS_INVALID: this thread has begun
 * one on this shelf already (they don't nest); LMCS_IN_USE: another one has not ended in time. Not for pools that are
 * open for reading. `options` may be NULL: waits for ever.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_transaction_begin(struct lmcs_pool *pool, const char *shelf,
                                                                struct lmcs_live *const *lives, size_t count,
                                                                const struct lmcs_transaction_options *options,
                                                                struct lmcs_transaction **transaction,
                                                                struct lmcs_error *error);
/* Declares that these bytes of a tensor will be stored to. Does nothing where that needs no declaration. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_transaction_declare(struct lmcs_transaction *transaction,
                                                                  struct lmcs_live *live, uint64_t offset,
                                                                  uint64_t bytes, struct lmcs_error *error);
/* Bytes of pages that commit would have to write now. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_transaction_bytes(struct lmcs_transaction *transaction, uint64_t *bytes,
                                                                struct lmcs_error *error);
/*
 * LMCS_OK: all of it is durable, and the transaction has ended. Otherwise it goes on, and can be aborted; but where the
 * message says that it is committed, or that this is known when the pool is opened again, aborting it undoes nothing.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_transaction_commit(struct lmcs_transaction *transaction,
                                                                 struct lmcs_error *error);
/* Ends it. Handles of variables that it made are handles of unnamed ones now. */
LMCS_API void lmcs_transaction_abort(struct lmcs_transaction *transaction);

/* ---- Snapshots ------------------------------------------------------------------------------------------------ */

/*
 * Puts all live variables of its shelf into a capture, as they are when they are copied: tensors as tensors, values as
 * attachments, and the attachment "lmcstore.live", which says what each was. What has not changed since the newest
 * snapshot is shared, not copied: bytes are compared. Waits for a transaction of the shelf to end (LMCS_INVALID: it is
 * this thread's). Nothing may be stored to tensors meanwhile, nor any be resized, or they are torn, as for
 * lmcs_capture_put.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_put_live(struct lmcs_capture *capture, struct lmcs_error *error);
/* Begin, put and commit in one. `options` and `number` may be NULL; not for asynchronous ones. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_snapshot(struct lmcs_pool *pool, const char *shelf,
                                                            const struct lmcs_commit_options *options, uint64_t *number,
                                                            struct lmcs_error *error);
/*
 * Makes the shelf's live variables those of a snapshot (`which` as for lmcs_snapshot_find), in one step: variables that
 * it does not have are erased. They may be held: a tensor of the same dtype and shape gets its bytes under the address
 * that it has. LMCS_IN_USE when a held one would be erased, or would change form, dtype or shape; on a device, when a
 * held tensor would change at all. Needs room for all that differs, beside what is there. LMCS_INVALID: the snapshot
 * was not taken of live variables.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_checkout(struct lmcs_pool *pool, const char *shelf,
                                                            const char *which, struct lmcs_error *error);

#ifdef __cplusplus
}
#endif

#endif
