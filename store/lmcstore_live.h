/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lmcstore_live.h - live variables of a shelf: tensors that change in place, and small values.
 *
 * A variable has a name, a dtype, a shape, a note of the application, and one of two forms. A *tensor* has an address:
 * it is mapped, shared with the file, may be larger than memory, and is written by ordinary stores. A *value* is small
 * (a number, a string, some bytes) and has no address: functions read and write it, each write atomic and durable.
 *
 * Crashes and power failures. A function that changes a variable (create, put, write, add, erase, swap, ...) is atomic,
 * and durable when it returns LMCS_OK. After a failure nothing has changed, unless the message reports that the change
 * is durable, or that the next open decides: then the disk has failed, and all later writes fail until the pool is
 * opened again. Stores through an address are durable after lmcs_live_persist; until then a crash keeps or loses each
 * aligned word of 8 bytes independently. Stores in a transaction become durable with its commit, all or none. Bytes of
 * live tensors have no checksum, so damage there is not noticed. Values and the records of variables have checksums.
 *
 * Handles and addresses. A handle (struct lmcs_live) belongs to the bytes, not to the name: after a swap or a rename it
 * leads to the same bytes. An open handle keeps its pool open; a closed pool ends with its last handle. All handles of
 * a variable in a process have the same address, valid until the last of them is closed.
 *
 * Readers. In a pool open for reading, beside a writing process, variables can be opened and read. Their addresses are
 * read-only and show stores of the writer as they happen. A read of a value returns its newest bytes, never half of
 * them; LMCS_NOT_FOUND: the writer has erased or replaced it. A tensor's handle keeps the place and shape from its open
 * while the writer resizes (bytes that are cut off may become zero), replaces or erases it. A variable that the writer
 * has renamed, resized or replaced gets another address when it is opened again.
 *
 * Threads. All functions are thread-safe, also on one handle, except that close ends it. The caller orders stores
 * through addresses.
 *
 * Fork. A child can read through addresses but not write (on a device, or if the system had no descriptor or lock left
 * for the child, not even read); every function but close fails there. An address shows the bytes from the time of the
 * fork, with later stores while they belong to a variable. Space that the parent frees is not reused before the child
 * and its own children have ended or called exec.
 *
 * Poolsets have no live variables (LMCS_UNSUPPORTED): stores through an address would not reach the replicas.
 */
#ifndef LMCSTORE_LIVE_H
#define LMCSTORE_LIVE_H

#include "lmcstore.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LMCS_LIVE_MAX_VALUE   65536u /* bytes of a value */
#define LMCS_LIVE_MAX_NOTE    255u   /* bytes */
#define LMCS_LIVE_MAX_EXTENTS 16u    /* parts of a tensor: one per growth and per 15 GiB */

struct lmcs_live;
struct lmcs_transaction;

enum lmcs_live_form { LMCS_LIVE_TENSOR = 0, LMCS_LIVE_VALUE = 1 };

/* ---- Creating, opening, closing ------------------------------------------------------------------------------- */

enum lmcs_live_flags {
    LMCS_LIVE_UNNAMED = 1 /* no name: ends with its handle, unless lmcs_live_replace names it */
};

struct lmcs_live_options {
    uint32_t form;          /* enum lmcs_live_form */
    uint32_t flags;         /* enum lmcs_live_flags */
    uint64_t reserve_bytes; /* tensors: size to which it can grow at its address; 0: twice its size. Takes no file
                               space, except on a device */
    const void *note;       /* of the application, such as a type's name */
    size_t note_bytes;      /* at most LMCS_LIVE_MAX_NOTE */
    const void *value;      /* values: the first bytes; NULL: zeros */
    uint64_t value_bytes;   /* of `value`: as many as dtype and shape have */
};
LMCS_API void lmcs_live_options_init(struct lmcs_live_options *options);

/*
 * Creates a variable of zeros, or a value of the bytes `options->value`, and the shelf if it is missing. `tensor` has
 * name, dtype and shape; kind, strides and global_shape must be unset. `options` NULL: a tensor. `live` NULL: none.
 * LMCS_EXISTS: the name is in use; of threads that create it at once, one succeeds. LMCS_FULL; LMCS_INVALID.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_create(struct lmcs_pool *pool, const char *shelf,
                                                          const struct lmcs_tensor *tensor,
                                                          const struct lmcs_live_options *options,
                                                          struct lmcs_live **live, struct lmcs_error *error);
/* LMCS_NOT_FOUND; LMCS_DAMAGED names the variable, which can still be erased, replaced, put, or checked out. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_open(struct lmcs_pool *pool, const char *shelf, const char *name,
                                                        struct lmcs_live **live, struct lmcs_error *error);
/* Closes a handle and releases its lock. The last one of an erased, replaced or unnamed variable frees its space. */
LMCS_API void lmcs_live_close(struct lmcs_live *live);

/*
 * Address of a tensor, at a page boundary, also of an empty one; NULL: a value. It changes only in lmcs_live_resize,
 * when the tensor outgrows its reserved addresses.
 */
LMCS_API void *lmcs_live_data(const struct lmcs_live *live);

/*
 * Access to a tensor's addresses, as advice to the kernel (madvise). Normal: a page fault reads up to megabytes around
 * the page. Random: it reads one page, which is faster for single rows of a tensor larger than memory. Sequential: it
 * reads only ahead.
 * The advice belongs to the variable in this process, so to all its handles, until the last of them is closed. It is
 * not stored. It stays after resizes, transactions and checkouts. It has no effect on a device. LMCS_INVALID: a value,
 * or another number.
 */
enum lmcs_live_access { LMCS_ACCESS_NORMAL = 0, LMCS_ACCESS_RANDOM = 1, LMCS_ACCESS_SEQUENTIAL = 2 };
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_advise(struct lmcs_live *live, enum lmcs_live_access access,
                                                          struct lmcs_error *error);

struct lmcs_live_info {
    char name[LMCS_MAX_NAME + 1]; /* "": unnamed, erased or replaced */
    uint32_t form;                /* enum lmcs_live_form */
    uint32_t dtype;
    uint32_t ndim;
    uint64_t shape[LMCS_MAX_DIMS];
    uint64_t bytes;          /* of its data */
    uint64_t reserved_bytes; /* size to which it can grow in place */
    uint64_t created_ns;
    uint64_t written_ns;                        /* last write or persist by a function; 0: none */
    uint64_t version;                           /* counts these from 1. After a crash both may miss the last ones */
    uint32_t handles;                           /* open ones in this process */
    int32_t numa_node;                          /* of the pool; -1: unknown, or the only node */
    unsigned char note[LMCS_LIVE_MAX_NOTE + 1]; /* and a NUL */
    uint32_t note_bytes;
    bool is_damaged; /* open fails; version, written_ns and the size of a value are unknown */
};
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_info(struct lmcs_live *live, struct lmcs_live_info *info,
                                                        struct lmcs_error *error);

struct lmcs_live_filter {
    const char *prefix;        /* of names; NULL: all */
    uint64_t written_from_ns;  /* written at this time or later ... */
    uint64_t written_until_ns; /* ... and before this one; 0: any */
};
/*
 * Visits the variables of a shelf by name (byte order) until `visit` returns false. `filter` may be NULL. A missing
 * shelf has none. Damaged variables pass every filter of times. The list is complete before the first visit, so `visit`
 * may call any function.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_list(struct lmcs_pool *pool, const char *shelf,
                                                        const struct lmcs_live_filter *filter,
                                                        bool (*visit)(void *context, const struct lmcs_live_info *info),
                                                        void *context, struct lmcs_error *error);
struct lmcs_live_usage {
    uint64_t variables;  /* of the shelf */
    uint64_t bytes;      /* of their data */
    double pool_percent; /* of the pool's capacity, in use by data of any kind */
};
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_usage(struct lmcs_pool *pool, const char *shelf,
                                                         struct lmcs_live_usage *usage, struct lmcs_error *error);

/* ---- Changing names and sizes --------------------------------------------------------------------------------- */

/* LMCS_IN_USE: this process has a handle of it. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_erase(struct lmcs_pool *pool, const char *shelf, const char *name,
                                                         struct lmcs_error *error);
/*
 * LMCS_EXISTS: `to` exists. LMCS_IN_USE: a transaction without this variable has given up that name, and gets it back
 * if it is aborted.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_rename(struct lmcs_pool *pool, const char *shelf, const char *from,
                                                          const char *to, struct lmcs_error *error);
/* Exchanges the names of two variables, of any dtype, shape and form. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_swap(struct lmcs_pool *pool, const char *shelf, const char *first,
                                                        const char *second, struct lmcs_error *error);
/*
 * Names an unnamed variable, after making its bytes durable. A variable that has the name is erased in the same step,
 * so the name always leads to one of them. Handles of the old one keep its bytes until they are closed.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_replace(struct lmcs_live *live, const char *name,
                                                           struct lmcs_error *error);
/*
 * Gives a tensor another shape, without copying: it grows by another part of the pool. New bytes are zero. Bytes that
 * are cut off are lost, and their addresses must not be used any more: LMCS_IN_USE if it would shrink and has other
 * handles in this process; threads that share a handle must coordinate. The address stays if the size is within
 * reserved_bytes. Otherwise the tensor gets another one, and the old one shows the bytes that it had until the last
 * handle is closed; stores through it are never part of a transaction. LMCS_FULL; LMCS_UNSUPPORTED on a device, past
 * reserved_bytes. Waits for a snapshot that reads the tensor.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_resize(struct lmcs_live *live, uint32_t ndim, const uint64_t *shape,
                                                          struct lmcs_error *error);
/* Waits at most wait_ms (UINT32_MAX: for ever), then fails with LMCS_IN_USE and system_errno ETIMEDOUT. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_resize_within(struct lmcs_live *live, uint32_t ndim,
                                                                 const uint64_t *shape, uint32_t wait_ms,
                                                                 struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_set_note(struct lmcs_live *live, const void *note, size_t note_bytes,
                                                            struct lmcs_error *error);

/* ---- Reading and writing -------------------------------------------------------------------------------------- */

/* Makes stores to these bytes of a tensor durable. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_persist(struct lmcs_live *live, uint64_t offset, uint64_t bytes,
                                                           struct lmcs_error *error);
/*
 * Writes bytes of a tensor or value, atomically and durably, at most LMCS_LIVE_MAX_VALUE. Fastest for 1, 2, 4 or 8
 * aligned bytes of a tensor.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_write(struct lmcs_live *live, uint64_t offset, const void *data,
                                                         uint64_t bytes, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_read(struct lmcs_live *live, uint64_t offset, void *buffer,
                                                        uint64_t bytes, struct lmcs_error *error);
/*
 * Adds to an integer of 1, 2, 4, 8 or 16 bytes, aligned to its size (two's complement, wrapping around), durably, and
 * atomically among threads that use these functions. `before` (may be NULL) gets the old number.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_add(struct lmcs_live *live, uint64_t offset, uint64_t bytes,
                                                       const void *operand, void *before, struct lmcs_error *error);
/* Writes `desired` if the present bytes, which `found` (may be NULL) gets, are `expected`. Sizes as for add. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_compare_and_swap(struct lmcs_live *live, uint64_t offset,
                                                                    uint64_t bytes, const void *expected,
                                                                    const void *desired, void *found, bool *swapped,
                                                                    struct lmcs_error *error);

/*
 * Gives a name a value of these bytes (dtype u8, one dimension), in one step; replaces a variable of any form. Fast if
 * the present value has a similar size and the same note. `note` NULL: none.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_put(struct lmcs_pool *pool, const char *shelf, const char *name,
                                                       const void *data, uint64_t bytes, const void *note,
                                                       size_t note_bytes, struct lmcs_error *error);
/* Sets a value (dtype u8 with one dimension, or of exactly its size). It keeps its note. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_set(struct lmcs_live *live, const void *data, uint64_t bytes,
                                                       struct lmcs_error *error);
/* Copies a whole value or tensor. *bytes gets its size, also with LMCS_INVALID: it exceeds `capacity`. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_get(struct lmcs_live *live, void *buffer, uint64_t capacity,
                                                       uint64_t *bytes, struct lmcs_error *error);

/* ---- Locks ---------------------------------------------------------------------------------------------------- */

/*
 * Advisory locks between handles of this process; no other function checks them. A handle has at most one. `wait_ms`: 0
 * tries, UINT32_MAX waits for ever. LMCS_IN_USE: other handles have the lock.
 */
enum lmcs_live_lock { LMCS_LOCK_SHARED, LMCS_LOCK_EXCLUSIVE };
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_lock(struct lmcs_live *live, enum lmcs_live_lock lock,
                                                        uint32_t wait_ms, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_unlock(struct lmcs_live *live, struct lmcs_error *error);

/* ---- Transactions --------------------------------------------------------------------------------------------- */

/*
 * Until commit, changes of a transaction's variables are visible in this process only. Commit makes all durable, abort
 * undoes them, and a crash is an abort. This includes stores through addresses, writes by functions, creating, erasing,
 * naming and resizing, by any thread: a transaction belongs to its variables, not to a thread. No thread may store to
 * them during begin, commit or abort.
 *
 * Each written page of a tensor takes a page of memory, and of the pool at commit, at any size of the tensor. At most
 * limit_bytes of pages can be committed: LMCS_FULL reports the written ones, and leaves the transaction as it was, to
 * be aborted (or to be committed after the caller reverts stores).
 *
 * On a device, whose pages can't be private, and with LMCS_TRANSACTION_DECLARED, each range must be declared before a
 * store to it. Its old bytes are kept in the pool; abort, or the next open after a crash, restores them.
 *
 * A shelf has at most one transaction at a time, a pool at most one declared one. A variable created in a transaction,
 * or named by lmcs_live_replace, belongs to it.
 */
enum lmcs_transaction_flags { LMCS_TRANSACTION_DECLARED = 1 };

struct lmcs_transaction_options {
    uint32_t flags;
    uint32_t wait_ms;     /* for another transaction, snapshot or checkout of the shelf; UINT32_MAX: for ever */
    uint64_t limit_bytes; /* 0: 1 GiB, or a quarter of the pool's limit if that is less */
};
LMCS_API void lmcs_transaction_options_init(struct lmcs_transaction_options *options);

/*
 * `lives` NULL: all variables of the shelf, also those opened later. `options` NULL: waits for ever. LMCS_INVALID: this
 * thread has one on this shelf already (they don't nest). LMCS_READ_ONLY: the pool is open for reading. LMCS_IN_USE:
 * another one has not ended in time.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_transaction_begin(struct lmcs_pool *pool, const char *shelf,
                                                                struct lmcs_live *const *lives, size_t count,
                                                                const struct lmcs_transaction_options *options,
                                                                struct lmcs_transaction **transaction,
                                                                struct lmcs_error *error);
/* Declares a range of a tensor for stores; does nothing where that is not needed. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_transaction_declare(struct lmcs_transaction *transaction,
                                                                  struct lmcs_live *live, uint64_t offset,
                                                                  uint64_t bytes, struct lmcs_error *error);
/* Bytes of pages that a commit would write now. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_transaction_bytes(struct lmcs_transaction *transaction, uint64_t *bytes,
                                                                struct lmcs_error *error);
/*
 * Ends the transaction. After a failure it goes on and can be aborted; but if the message reports that it is committed,
 * or that the next open decides, abort undoes nothing.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_transaction_commit(struct lmcs_transaction *transaction,
                                                                 struct lmcs_error *error);
/* Undoes all changes and ends the transaction. Variables that it created are unnamed from now on. NULL is allowed. */
LMCS_API void lmcs_transaction_abort(struct lmcs_transaction *transaction);

/* ---- Snapshots ------------------------------------------------------------------------------------------------ */

/*
 * Puts all live variables of the shelf into a capture: tensors, values as attachments, and the attachment
 * "lmcstore.live", which describes each. Tensors are shared as by lmcs_capture_put. Waits for a transaction of the
 * shelf to end (LMCS_INVALID: it is this thread's). A tensor that is stored to meanwhile is torn; a resize waits.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_put_live(struct lmcs_capture *capture, struct lmcs_error *error);
/*
 * Waits at most wait_ms (UINT32_MAX: for ever), then fails with LMCS_IN_USE and system_errno ETIMEDOUT: nothing was
 * put, and it can be called again.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_put_live_within(struct lmcs_capture *capture, uint32_t wait_ms,
                                                                      struct lmcs_error *error);

/* Whether a byte belongs to a live tensor that is mapped in this process, of any pool. */
LMCS_API bool lmcs_live_is_mapped(const void *address);
/* Whether the shelf's live variables are in a transaction, snapshot or checkout of this process. */
LMCS_API bool lmcs_live_is_held(struct lmcs_pool *pool, const char *shelf);
/* Begins, puts and commits. `number` may be NULL. Asynchronous options are LMCS_INVALID. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_snapshot(struct lmcs_pool *pool, const char *shelf,
                                                            const struct lmcs_commit_options *options, uint64_t *number,
                                                            struct lmcs_error *error);
/*
 * Makes the shelf's live variables those of a snapshot (`which` as for lmcs_snapshot_find), in one step, and erases all
 * others. Variables may be open: a tensor of the same dtype and shape gets the bytes at its present address.
 * No thread may store to them meanwhile. LMCS_IN_USE: an open variable would be erased, or would change its form, dtype
 * or shape, or, on a device, its bytes. Needs free space for all bytes that differ. LMCS_INVALID: the snapshot has no
 * live variables.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_checkout(struct lmcs_pool *pool, const char *shelf,
                                                            const char *which, struct lmcs_error *error);
/*
 * Waits at most wait_ms for a transaction or snapshot of the shelf, then fails with LMCS_IN_USE and system_errno
 * ETIMEDOUT. The function above waits for ever.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_live_checkout_within(struct lmcs_pool *pool, const char *shelf,
                                                                   const char *which, uint32_t wait_ms,
                                                                   struct lmcs_error *error);

#ifdef __cplusplus
}
#endif

#endif
