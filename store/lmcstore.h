/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lmcstore.h - versioned tensors in a persistent-memory pool (liblmcstore).
 *
 * A *pool* is one libpmemobj pool: a file on any local file system, a poolset, or a devdax device. It holds *shelves*;
 * a shelf has a history of *snapshots*: immutable, complete versions, each with a number, a step, a time, a parent,
 * tags, metrics, metadata, and a manifest of tensors. A *capture* writes a snapshot: begin, put, commit. When commit
 * has returned, the snapshot is durable; before that nothing of it can be seen, also after a crash.
 *
 * Conventions
 *   Arguments: handle, inputs (a length right after its pointer), outputs, then `struct lmcs_error *`, which may be
 *   NULL. Every function that can fail returns an lmcs_status and fills the error; on failure outputs are untouched
 *   unless said otherwise.
 *   Strings are UTF-8 and NUL-terminated; those given to a function are copied.
 *   Threads: all functions may be called from any thread at the same time, but a capture or a view is used by one
 *   thread at a time. A handle must not be used during or after the call that ends it.
 *   Sizes and offsets are in bytes, times in nanoseconds since 1970 (UTC). Data is row-major and little-endian.
 *   fork: in a child the pools of its parent are dead: only close does anything, every other call fails. What views
 *   show can be looked at, whatever the parent closes or removes: it stays until the child, and its own children, have
 *   ended or called exec. (They hold it by a descriptor: who closes those that are not its own lets go.)
 */
#ifndef LMCSTORE_H
#define LMCSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lmc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LMCS_VERSION_MAJOR   0
#define LMCS_VERSION_MINOR   1
#define LMCS_VERSION_PATCH   0

#define LMCS_API             __attribute__((visibility("default")))
#define LMCS_NODISCARD       __attribute__((warn_unused_result))

#define LMCS_MAX_META_LEVELS 200  /* of objects and arrays in a snapshot's metadata; what is older may have more */
#define LMCS_MAX_NAME        1024 /* bytes of a tensor's, shelf's or tag's name, without the NUL */
#define LMCS_MAX_POLICY      400  /* bytes of a policy's text */
#define LMCS_MAX_DIMS        32
#define LMCS_MAX_TENSORS     16777216 /* in one snapshot */
#define LMCS_MIN_POOL_BYTES  ((uint64_t)8 << 20)
#define LMCS_NO_STEP         INT64_MIN /* a snapshot without a step */

/* ---- Errors --------------------------------------------------------------------------------------------------- */

enum lmcs_status {
    LMCS_OK = 0,
    LMCS_INVALID,     /* wrong use: an argument, a name, a state of a handle */
    LMCS_NOT_FOUND,   /* no such pool, shelf, snapshot, tag, tensor */
    LMCS_EXISTS,      /* it is there already */
    LMCS_IN_USE,      /* another process writes to the pool or locks its file, or a snapshot awaits its group */
    LMCS_FULL,        /* no space in the pool, its limit or its disk */
    LMCS_DAMAGED,     /* media or an input file are not what was written */
    LMCS_UNSUPPORTED, /* a newer format, a file system, dtype or feature that this build can't do */
    LMCS_READ_ONLY,   /* the pool was opened for reading, or can't be written safely */
    LMCS_IO,          /* the operating system said no: see system_errno; after a sync, until the pool is opened again */
    LMCS_NO_MEMORY,
    LMCS_CANCELLED /* a progress function asked to stop */
};

struct lmcs_error {
    enum lmcs_status status;
    int system_errno;      /* 0, or the errno behind it */
    uint64_t bytes_needed; /* LMCS_FULL: what was asked for ... */
    uint64_t bytes_free;   /* ... and what was there */
    char message[1024];    /* what happened, to what, and what to do; one sentence or two, no newline */
};

/* "ok", "invalid", "not found", ...: a constant string. */
LMCS_API const char *lmcs_status_name(enum lmcs_status status);

/* Called now and then during long work, from the calling thread; return false to stop with LMCS_CANCELLED. */
typedef bool (*lmcs_progress_fn)(void *context, const char *what, uint64_t done, uint64_t total);

struct lmcs_progress {
    lmcs_progress_fn call; /* NULL: none */
    void *context;
};

/* ---- Pools ---------------------------------------------------------------------------------------------------- */

struct lmcs_pool;
struct lmcs_snapshot;

enum lmcs_open_mode {
    LMCS_OPEN_READ,  /* beside a writer in another process; sees what is committed when a call is made */
    LMCS_OPEN_WRITE, /* must exist */
    LMCS_OPEN_OR_CREATE,
    LMCS_OPEN_CREATE /* must not exist */
};

enum lmcs_open_flags {
    LMCS_NO_BACKGROUND = 1, /* no compactor thread (compaction on request works) */
    LMCS_FORCE_NETWORK = 2  /* accept NFS, Lustre, FUSE and the like, where locks and mappings may lie */
};

/* The options of an open. This is their one list: a pool keeps a copy of it, pool->options. */
struct lmcs_open_options {
    uint64_t limit_bytes; /* on creation: use at most this of the disk; 0: as the disk allows. Ignored by an open */
    uint32_t wait_ms;     /* how long to wait for another writer; UINT32_MAX: the default, 10 s */
    uint32_t threads;     /* for copying and encoding; 0: the processors, 8 at most */
    uint32_t flags;       /* enum lmcs_open_flags */
};

/* Defaults for lmcs_pool_open. */
LMCS_API void lmcs_open_options_init(struct lmcs_open_options *options);

/*
 * Opens a pool. `path`: a file, a poolset file, or a devdax device. Opening a pool that this process has open for
 * writing gives the same pool again (each open needs its close), whatever the mode but LMCS_OPEN_CREATE, which fails.
 * A new file has mode 0600 and is sparse. Errors: LMCS_NOT_FOUND, LMCS_EXISTS, LMCS_IN_USE (names the holder's pid),
 * LMCS_FULL, LMCS_DAMAGED, LMCS_UNSUPPORTED (format, file system), LMCS_INVALID, LMCS_IO. `options` may be NULL.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_pool_open(const char *path, enum lmcs_open_mode mode,
                                                        const struct lmcs_open_options *options,
                                                        struct lmcs_pool **pool, struct lmcs_error *error);
/*
 * Ends one open; the last one waits for captures under way to be durable, stops the background, and drops the lock.
 * Views stay valid until they are closed. Captures and snapshot handles must have been ended before. An error is that
 * of an asynchronous capture which nobody has waited for; the pool is closed all the same.
 */
LMCS_API enum lmcs_status lmcs_pool_close(struct lmcs_pool *pool, struct lmcs_error *error);

enum lmcs_medium { LMCS_MEDIUM_FILE, LMCS_MEDIUM_MEMORY_FILE, LMCS_MEDIUM_FSDAX, LMCS_MEDIUM_DEVDAX };

struct lmcs_pool_info {
    char path[4096];
    unsigned char uuid[16];
    bool writable;
    enum lmcs_medium medium;
    bool is_persistent_memory;    /* stores reach a persistence domain without msync */
    bool forced;                  /* PMEM_IS_PMEM_FORCE: survives a kill, not a power cut */
    char file_system[32];         /* "ext4", "tmpfs", "devdax", ... */
    char persistence_domain[32];  /* "memory_controller", "cpu_cache", "unknown", "none" */
    char nvdimm_namespace[64];    /* "" when there is none */
    int32_t numa_node;            /* -1: not known, or one node only */
    int32_t device_health;        /* -1 unknown, 0 ok, 1 non-critical, 2 critical, 3 fatal */
    uint64_t bad_blocks;          /* of the region below the pool; 0 also where not known */
    uint64_t unsafe_shutdowns;    /* of the device; 0 also where not known */
    uint64_t limit_bytes;         /* 0: no limit of our own */
    uint64_t used_bytes;          /* space of the disk that the pool takes, by our own count */
    uint64_t live_bytes;          /* ... of it, payloads and metadata that something refers to */
    uint64_t free_bytes;          /* what can still be written: under the limit and on the disk */
    uint64_t metadata_bytes;      /* of used_bytes; it is used again, and not given back */
    uint64_t metadata_free_bytes; /* ... of it, pages that are free */
    uint64_t created_ns;
    uint64_t epoch; /* metadata commits since creation */
    uint64_t shelf_count;
    uint64_t snapshot_count;
    uint64_t content_count;
    uint64_t last_snapshot_bytes; /* new payload bytes of the newest capture; 0: none yet */
    uint64_t snapshots_that_fit;  /* free_bytes over the above, UINT64_MAX when unknown */
    uint64_t compaction_backlog;  /* snapshots that wait for the compactor */
    uint64_t compacted_contents;  /* by this process */
    bool compaction_running;
    bool compaction_paused;
    char compaction_error[256]; /* "" or why the background stopped */
    uint64_t scrubbed_ns;       /* when everything had last been read; 0: never */
    double scrub_share;         /* of the pass under way, 0 to 1 */
    uint64_t scrub_found;       /* damages found by it, or by the last one ... */
    uint64_t scrub_repaired;    /* ... and repaired */
    uint64_t lost_contents;     /* of which something is lost */
    uint64_t parity_bytes;      /* of live_bytes */
    uint32_t format_version;
    uint64_t
        damaged_shelves; /* whose records, or place in the list, can't be read: they are in no count of shelves ... */
    char damage[1024];   /* ... nor in the backlog; "" or what the first one's damage is */
    uint64_t
        unsupported_shelves; /* whose records are of a newer version: likewise; `damage` is then the first reason */
};
/* A damaged shelf keeps nothing else from being told. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_pool_info(struct lmcs_pool *pool, struct lmcs_pool_info *info,
                                                        struct lmcs_error *error);
/* Sets the pool's own limit; 0: none. LMCS_INVALID below what is used. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_pool_set_limit(struct lmcs_pool *pool, uint64_t limit_bytes,
                                                             struct lmcs_error *error);

/* ---- Shelves -------------------------------------------------------------------------------------------------- */

/*
 * A shelf's policy is text: words KEY=VALUE with spaces between them. Without one, nothing is ever deleted.
 *
 *   keep_raw=N     the newest N snapshots stay raw (1 or more; 4)
 *   chain=N        to read a tensor, N deltas are undone at most (0 to 7; 3). 0: no deltas. More: smaller, and slower
 *   links=N        where relations say what an optimizer's state is (lmcs_capture_relate), consecutive steps are stored
 *                  by links, of which N are undone at most (0 to 64; 24) to read a tensor; off: none are made
 *   keep=RULE,...  what is kept when the compactor prunes: what any rule says; "all" (as it is without the word): no
 *                  snapshot is ever removed. What is tagged or prepared, and the latest, is always kept.
 *                    last:N           the newest N
 *                    every:K          of every K steps, one: the first that was taken (and of those of one step, the
 *                                     newest). A snapshot without a step counts by its number
 *                    every:K/M        the same among the newest M snapshots
 *                    each:T  each:T/U of every hour (T: 30s, 10m, 1h, 7d, 2w), one; not older than U
 *                    best:M  best:M:N  best:M:N:max   the N (1) with the least, or greatest, value of the metric M
 *   budget=SIZE    the pool should hold no more than this (200G), or than this share of its limit or disk (50%), when
 *                  the next snapshot has come. Over it, the compactor leaves the newest snapshot alone raw, and then
 *                  prunes by the rules, the oldest first; below it, a policy with a budget prunes nothing. A budget
 *                  refuses no snapshot.
 *   rate=SIZE      the background codes no more than this a second (100M); none: as fast as it can
 *   encode=WHEN    whether a capture writes what changed as deltas: never, auto (where the medium was measured to be
 *                  slower than the codec; never with DAX), always
 *   scrub=T        the background reads all that the pool holds once in T (30d), and repairs what it can: a scrub that
 *                  never ends (lmcs_scrub). Of several shelves the shortest time counts
 *   parity=K+M     for K bytes that are stored, M of parity (16+2: K to 128, M to 16), from which the background, once
 *                  the compactor is done with a snapshot, or a scrub with repair can compute anew what was lost: any M
 *                  of K + M units of at most 4 KiB, which lie far apart. What has parity keeps it under "none". It is
 *                  made after what is to be pruned for a budget has gone, as far as there is room
 *
 * Snapshots are pruned in the background and by lmcs_compact, when those that the rules don't keep are more than an
 * eighth of those that they do; all of them when space runs out, and by lmcs_prune.
 */
struct lmcs_shelf_info {
    char name[LMCS_MAX_NAME + 1];
    uint64_t snapshot_count; /* committed ones */
    uint64_t latest;         /* number of the newest; 0: empty */
    uint64_t next_number;
    uint32_t keep_raw; /* policy: this many of the newest snapshots stay raw */
    char policy[LMCS_MAX_POLICY + 1];
    uint64_t created_ns;
    uint64_t origin_number;               /* the snapshot that it was forked from; 0: it was not forked ... */
    uint64_t origin_time_ns;              /* ... the time of that one ... */
    bool origin_is_there;                 /* ... whether the pool has it still ... */
    char origin_shelf[LMCS_MAX_NAME + 1]; /* ... and its shelf, as it is or was called */
};

/*
 * Calls `visit` for each shelf, by name; stops when it returns false. No lmcs function may be called from within.
 * LMCS_DAMAGED when one can't be read, after the others were visited.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_list(struct lmcs_pool *pool,
                                                         bool (*visit)(void *context,
                                                                       const struct lmcs_shelf_info *info),
                                                         void *context, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_info(struct lmcs_pool *pool, const char *shelf,
                                                         struct lmcs_shelf_info *info, struct lmcs_error *error);
/* Sets how many of the newest snapshots stay raw (1 or more; 4 unless set). Makes the shelf if there is none. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_set_keep_raw(struct lmcs_pool *pool, const char *shelf,
                                                                 uint32_t keep_raw, struct lmcs_error *error);
/*
 * Changes what the words of `policy` name; the other words stay. Makes the shelf if there is none. Nothing is pruned by
 * them before this has returned, and nothing after it that they keep. LMCS_INVALID says which word is wrong.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_set_policy(struct lmcs_pool *pool, const char *shelf,
                                                               const char *policy, struct lmcs_error *error);

/*
 * Forks a shelf from a snapshot: a new shelf whose snapshot 1 has the contents of that one, its step, time, metrics,
 * metadata and tags, and no parent. It inherits how many stay raw, but no rule that prunes. Nothing is copied: all
 * contents are shared, until the last snapshot that has them is removed, on whatever shelf. One commit, which takes
 * time and metadata in proportion to the snapshot's entries. From then on the two shelves know nothing of one another
 * but the origin that lmcs_shelf_info tells. LMCS_EXISTS: there is a shelf of that name.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_fork(struct lmcs_snapshot *snapshot, const char *name,
                                                         struct lmcs_error *error);
/*
 * Gives a shelf another name; snapshot handles go on. LMCS_EXISTS: there is one of that name; LMCS_IN_USE: somebody in
 * this process has one of its live variables open.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_rename(struct lmcs_pool *pool, const char *shelf, const char *name,
                                                           struct lmcs_error *error);
struct lmcs_removal;
/*
 * Removes a shelf with all its snapshots and live variables for ever. The first commit takes it out of sight as a
 * whole; then these go, and what a crash, or a full disk, leaves of them goes when the pool is next opened for writing
 * and has room for that. Forks of it keep what they share. `removal` may be NULL. With dry_run nothing is changed.
 * LMCS_IN_USE: somebody in this process has one of its live variables open.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_drop(struct lmcs_pool *pool, const char *shelf, bool dry_run,
                                                         struct lmcs_removal *removal, struct lmcs_error *error);

/* ---- Tensors -------------------------------------------------------------------------------------------------- */

/*
 * What a tensor is; its name is unique within a snapshot and its kind. `name`: 1 to LMCS_MAX_NAME bytes of valid
 * UTF-8 without control characters. All pointers are the caller's.
 */
enum lmcs_kind {
    LMCS_TENSOR = 0,
    LMCS_ATTACHMENT = 1 /* bytes of the application's own (dtype u8, one dimension): not listed among the tensors */
};

struct lmcs_tensor {
    const char *name;
    uint32_t kind;                /* enum lmcs_kind */
    uint32_t dtype;               /* enum lmc_dtype */
    uint32_t ndim;                /* 0 to LMCS_MAX_DIMS */
    const uint64_t *shape;        /* elements; NULL allowed when ndim is 0 */
    const int64_t *strides;       /* bytes, may be negative or 0; NULL: row-major. Only read by put */
    const uint64_t *global_shape; /* NULL, or: this tensor is the part of a larger one of this shape (ndim) ... */
    const uint64_t *offsets;      /* ... at these element offsets (ndim) */
};

/* ---- Capture -------------------------------------------------------------------------------------------------- */

struct lmcs_capture;
struct lmcs_snapshot;

/*
 * Begins a capture on a shelf, which is made if need be (at commit). One capture at a time has a shelf: waits for
 * the one before it, an asynchronous one included, and fails with its error if that failed and nobody was told.
 * LMCS_IN_USE: the thread that has the shelf waits for one that this thread has.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_begin(struct lmcs_pool *pool, const char *shelf,
                                                            struct lmcs_capture **capture, struct lmcs_error *error);
/*
 * Puts tensors, by value: when it returns, all `data` may change. Copies with the pool's threads. A tensor whose
 * bytes equal those that the newest snapshot of the shelf has raw under the same name, dtype and shape shares them.
 * data[i] points to the element with index (0, ..., 0); it may be NULL when the tensor is empty. A data that changes
 * while it is copied gives a torn but valid tensor. LMCS_IO names a tensor whose memory can't be read (a page that
 * failed, or a mapped file that was cut). After a failure the capture can only be aborted.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_put(struct lmcs_capture *capture,
                                                          const struct lmcs_tensor *tensors, const void *const *data,
                                                          size_t count, struct lmcs_error *error);
/*
 * Puts `tensor` as another name of one already in this capture with the same dtype and shape: one content. That says
 * nothing of memory: who wants two names to be one tensor again has to note it (tensors of equal bytes may get to share
 * a content too, when they are restored from an archive).
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_put_same(struct lmcs_capture *capture,
                                                               const struct lmcs_tensor *tensor,
                                                               const char *existing_name, struct lmcs_error *error);
/*
 * Which of a capture's tensors are the state of one parameter under an optimizer, in the order of a link's arrays
 * (lmc.h): exp_avg, exp_avg_sq, the parameter, and with amsgrad max_exp_avg_sq; or momentum_buffer, the parameter. The
 * constants are those of the step that led to this state, as in struct lmc_link_hints; lmc_link_gradient_scale finds
 * the scale in gradients. When the step before is a snapshot as well, the compactor can store this one for little more
 * than the gradient (the policy's `links`).
 */
struct lmcs_relation {
    const char *names[4];
    uint32_t name_count;
    uint32_t optimizer; /* enum lmc_optimizer */
    uint32_t flags;     /* LMC_LINK_* */
    double step, lr, weight_decay, beta1, beta2, eps, momentum, dampening, scale;
};
/*
 * May be called several times, before or after the tensors are put. Relations are hints: tensors that are not there,
 * are not f32 or have not one shape, and constants that are wrong, cost space and nothing else. LMCS_INVALID: they make
 * no sense by themselves; then none of this call is taken, and the capture goes on.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_relate(struct lmcs_capture *capture,
                                                             const struct lmcs_relation *relations, size_t count,
                                                             struct lmcs_error *error);
/*
 * Reserves room for a row-major tensor and gives a pointer to fill it in place (zeroed or not: unspecified), valid
 * until commit or abort. It is hashed and made durable at commit; nothing else may write to it meanwhile.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_reserve(struct lmcs_capture *capture,
                                                              const struct lmcs_tensor *tensor, void **data,
                                                              struct lmcs_error *error);

struct lmcs_metric {
    const char *name;
    double value;
};

struct lmcs_commit_options {
    int64_t step;            /* LMCS_NO_STEP: none */
    uint64_t parent;         /* number of the parent; 0: the default (the one last loaded for training or committed by
                             this process on the shelf, else the latest); UINT64_MAX: no parent */
    uint64_t time_ns;        /* 0: now */
    const char *const *tags; /* moved to this snapshot if they are elsewhere */
    size_t tag_count;
    const struct lmcs_metric *metrics; /* names are unique */
    size_t metric_count;
    const char *meta_json;   /* NULL, or a JSON object of at most LMCS_MAX_META_LEVELS: the user's own */
    bool asynchronous;       /* return when captured; see lmcs_capture_wait */
    bool prepare;            /* leave it prepared, to be resolved with its group by lmcs_group_resolve */
    unsigned char group[16]; /* all zero: no group (needed with prepare) */
};
LMCS_API void lmcs_commit_options_init(struct lmcs_commit_options *options);

/*
 * Commits: all or nothing. Synchronous: when it returns LMCS_OK the snapshot is durable; the capture is freed in any
 * case. Asynchronous: the capture stays, to be ended by lmcs_capture_wait; the snapshot can't be seen until it is
 * durable. `number`, which may be NULL, gets the snapshot's number in both cases. A failed commit leaves nothing.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_commit(struct lmcs_capture *capture,
                                                             const struct lmcs_commit_options *options,
                                                             uint64_t *number, struct lmcs_error *error);
/* Waits until an asynchronously committed capture is durable, or has failed, and frees it. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_wait(struct lmcs_capture *capture, struct lmcs_error *error);
/* True when lmcs_capture_wait would not block. */
LMCS_API bool lmcs_capture_done(struct lmcs_capture *capture);
/*
 * Frees an asynchronously committed capture without waiting. If it fails, the next begin on the shelf, or close,
 * reports it.
 */
LMCS_API void lmcs_capture_detach(struct lmcs_capture *capture);
/* Ends a capture that is not committed; nothing of it remains. */
LMCS_API void lmcs_capture_abort(struct lmcs_capture *capture);

/* Payload bytes that this capture wrote anew so far, and the bytes of tensors that it shares with earlier ones. */
LMCS_API void lmcs_capture_stats(const struct lmcs_capture *capture, uint64_t *written_bytes, uint64_t *shared_bytes);

/* Commits or drops the prepared snapshot of a group. LMCS_NOT_FOUND: the pool has none of that group. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_group_resolve(struct lmcs_pool *pool, const unsigned char group[16],
                                                            bool commit, struct lmcs_error *error);

/* ---- Snapshots ------------------------------------------------------------------------------------------------ */

/*
 * Addresses. In C, in Python and on the command line they are the same:
 *
 *   address = shelf [ "@" which ]             "run", "run@7": the shelf alone means its latest
 *   which   = point [ "~" [ count ] ]         "latest~2", "best~": so many before it (1), by number, of those there are
 *   point   = number | tag | "latest"
 *           | "step:" step                    the newest of that step
 *           | "{" time "}"                    the newest that was taken by then
 *   range   = [ which ] ".." [ which ]        "5..9", "step:100..latest", "..best": from the first to the latest, where
 *                                             one is left out; both ends belong to it
 *   time    = "now" | "yesterday"             (24 hours ago)
 *           | count unit "ago"                seconds, minutes, hours, days, weeks; or s, min, h, d, w
 *           | date [ hh:mm [ :ss ] ] [ zone ] "2026-11-20", "2026-11-20 13:00", "2026-11-20T13:00:30+02:00": by the end
 *                                             of that day, minute or second; without a zone ("Z", "+02:00") in UTC
 *
 * A tag has 1 to LMCS_MAX_NAME bytes of UTF-8, none of them a control character or one of @ ~ : { }, and no "..". It is
 * not a number and not "latest".
 */

/*
 * Opens a snapshot by its address. LMCS_NOT_FOUND: there is none; LMCS_INVALID: it could not name one. The handle is
 * light and does not keep the snapshot from being removed: then its calls fail with LMCS_NOT_FOUND. Free with
 * lmcs_snapshot_close, before the pool is closed.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_open(struct lmcs_pool *pool, const char *address,
                                                            struct lmcs_snapshot **snapshot, struct lmcs_error *error);
/* The same with the shelf and what stands after the @ apart; `which` NULL or "": the latest. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_find(struct lmcs_pool *pool, const char *shelf,
                                                            const char *which, struct lmcs_snapshot **snapshot,
                                                            struct lmcs_error *error);
LMCS_API void lmcs_snapshot_close(struct lmcs_snapshot *snapshot);

/* Constant for a snapshot handle; pointers are valid until it is closed. */
struct lmcs_snapshot_info {
    const char *shelf;
    uint64_t number;
    int64_t step;
    uint64_t time_ns;
    uint64_t parent;       /* 0: none. The parent may have been removed */
    uint64_t tensor_count; /* attachments not counted */
    uint64_t raw_bytes;    /* of its tensors and attachments, decoded */
    const struct lmcs_metric *metrics;
    size_t metric_count;
    const char *meta_json; /* "{}" when none was given */
    unsigned char group[16];
};
LMCS_API const struct lmcs_snapshot_info *lmcs_snapshot_info(const struct lmcs_snapshot *snapshot);

/* How a snapshot is stored now. Walks its manifest. */
struct lmcs_snapshot_storage {
    uint64_t stored_bytes; /* payloads of all its contents, each once, shared ones in full, bases not */
    uint64_t raw_contents;
    uint64_t delta_contents;    /* coded against a base */
    uint64_t keyframe_contents; /* compressed, alone */
    uint64_t link_contents;     /* stored by a link, of which stored_bytes has their share */
    uint32_t longest_chain;     /* deltas to undo, at most; 0: all raw or keyframes */
    uint32_t longest_line;      /* links to undo, at most */
    const char *links_note;     /* why the step before does not lead to it by links; NULL: it does, or nobody asked */
};
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_storage(struct lmcs_snapshot *snapshot,
                                                               struct lmcs_snapshot_storage *storage,
                                                               struct lmcs_error *error);
/* Hash of what a snapshot is (tensors, attachments, step, time, parent, metrics, metadata), not of how it is stored. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_digest(struct lmcs_snapshot *snapshot, struct lmc_hash *digest,
                                                              struct lmcs_error *error);
/* Tags of a snapshot now. Calls visit for each; no lmcs function may be called from within. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_tags(struct lmcs_snapshot *snapshot,
                                                            bool (*visit)(void *context, const char *tag),
                                                            void *context, struct lmcs_error *error);
/* Remembers this snapshot as the default parent of this process's next capture on the shelf. */
LMCS_API void lmcs_snapshot_mark_loaded(struct lmcs_snapshot *snapshot);

/*
 * Numbers of a shelf's snapshots, ascending. Fills up to `capacity` numbers that are >= first; `count` gets how many
 * were filled, less than capacity at the end.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_numbers(struct lmcs_pool *pool, const char *shelf,
                                                               uint64_t first, uint64_t *numbers, size_t capacity,
                                                               size_t *count, struct lmcs_error *error);
/* The same for the snapshots of one step, ascending by number. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_steps(struct lmcs_pool *pool, const char *shelf, int64_t step,
                                                             uint64_t first, uint64_t *numbers, size_t capacity,
                                                             size_t *count, struct lmcs_error *error);

/*
 * The snapshots that a range names are those with numbers from `first` to `last`, of which both are there. A `which`
 * that is no range gives its number twice. LMCS_NOT_FOUND: an end is not there; LMCS_INVALID: no range, or a reversed
 * one.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_range(struct lmcs_pool *pool, const char *shelf,
                                                             const char *range, uint64_t *first, uint64_t *last,
                                                             struct lmcs_error *error);
/* Numbers below `before` (UINT64_MAX: all), descending; as lmcs_snapshot_numbers otherwise. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_newest(struct lmcs_pool *pool, const char *shelf,
                                                              uint64_t before, uint64_t *numbers, size_t capacity,
                                                              size_t *count, struct lmcs_error *error);

/* Puts a tag on a snapshot (moving it if it is elsewhere on the shelf), or takes one off the shelf. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_tag_set(struct lmcs_pool *pool, const char *shelf, const char *tag,
                                                      uint64_t number, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_tag_remove(struct lmcs_pool *pool, const char *shelf, const char *tag,
                                                         struct lmcs_error *error);

#define LMCS_TAG_ANYWHERE UINT64_MAX

struct lmcs_tag_change {
    const char *tag;
    uint64_t number;   /* of the snapshot that it is put on; 0: it is taken off */
    uint64_t expected; /* where it must be now: a number, 0 for nowhere, or LMCS_TAG_ANYWHERE */
};
/*
 * Changes several tags in one commit: all of them or none. LMCS_EXISTS: a tag is not where it was expected, and the
 * error says where it is; LMCS_NOT_FOUND: a snapshot, or a tag that is to be taken off, is not there.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_tags_change(struct lmcs_pool *pool, const char *shelf,
                                                          const struct lmcs_tag_change *changes, size_t count,
                                                          struct lmcs_error *error);

struct lmcs_removal {
    uint64_t freed_bytes; /* payloads that nothing refers to any more: free as soon as readers let go of them */
    uint64_t later_bytes; /* kept as bases of other snapshots' deltas: free after compaction */
    uint64_t removed_tags;
    uint64_t kept_bytes; /* of its links, on which those of later steps rest: they go with the last of these */
};
/* Removes a snapshot for ever. `removal` may be NULL. With dry_run nothing is changed. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_remove(struct lmcs_pool *pool, const char *shelf,
                                                              uint64_t number, bool dry_run,
                                                              struct lmcs_removal *removal, struct lmcs_error *error);

struct lmcs_pruned {
    uint64_t number;
    int64_t step;    /* LMCS_NO_STEP: none */
    const char *why; /* it is kept; NULL: it goes */
};

struct lmcs_prune_report {
    uint64_t kept;
    uint64_t removed; /* or would be */
    struct lmcs_removal removal;
};

/*
 * Removes the snapshots of a shelf that its policy's rules don't keep, whatever its budget says. `words` (may be NULL)
 * change the policy for this call alone. `visit` (may be NULL) is called for each snapshot, the oldest first, before
 * anything is removed; when it returns false, nothing is. With dry_run nothing is changed, and words may be tried.
 * Stopped or failed on the way, what is removed stays removed. What is tagged meanwhile, or kept by a policy that is
 * set meanwhile, stays, unless it has gone already: it is visited once more, at the end, with why it is kept.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_prune(struct lmcs_pool *pool, const char *shelf, const char *words,
                                                    bool dry_run,
                                                    bool (*visit)(void *context, const struct lmcs_pruned *snapshot),
                                                    void *context, const struct lmcs_progress *progress,
                                                    struct lmcs_prune_report *report, struct lmcs_error *error);

/* ---- Reading -------------------------------------------------------------------------------------------------- */

enum lmcs_stored_as { LMCS_STORED_RAW, LMCS_STORED_KEYFRAME, LMCS_STORED_DELTA, LMCS_STORED_LINK };

/* One tensor of a snapshot. Pointers are valid during the visit, or as long as the view that gave it. */
struct lmcs_entry {
    struct lmcs_tensor tensor; /* strides NULL */
    struct lmc_hash digest;
    uint64_t content; /* equal numbers: the same stored content */
    uint64_t raw_bytes;
    uint64_t stored_bytes; /* of a link its share */
    enum lmcs_stored_as stored_as;
    uint32_t chain; /* deltas or links to undo to read it */
};

/*
 * Visits the entries of a snapshot in the order in which names were first put, tensors and attachments. Stops when
 * `visit` returns false. No lmcs function may be called from within. Let it be quick, and not wait for anyone: until
 * the last visit is over, no place that dies in the pool can be used again, and a process that writes can't commit.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_entries(struct lmcs_snapshot *snapshot,
                                                               bool (*visit)(void *context,
                                                                             const struct lmcs_entry *entry),
                                                               void *context, struct lmcs_error *error);

/*
 * Copies or decodes one tensor or attachment into `buffer`, which has exactly its raw bytes, and verifies every
 * checksum on the way. To learn the size: a view, or lmcs_snapshot_entries.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_read(struct lmcs_snapshot *snapshot, uint32_t kind,
                                                            const char *name, void *buffer, uint64_t buffer_bytes,
                                                            struct lmcs_error *error);

/*
 * The same for `bytes` from `first_byte` on: only the blocks of 1 MiB in which they lie are read, decoded and verified,
 * along the whole chain. Rows of a tensor are such a range.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_read_range(struct lmcs_snapshot *snapshot, uint32_t kind,
                                                                  const char *name, uint64_t first_byte, void *buffer,
                                                                  uint64_t bytes, struct lmcs_error *error);

/*
 * A view gives addresses for tensors of a snapshot: raw payloads are mapped (no copy, no check unless asked for),
 * others are decoded with the pool's threads into memory that the view owns. It holds its bytes in place until it is
 * closed, also after the pool's close, the snapshot's removal and its compaction. Memory that fails is an error for
 * every function here, but touching it through the address of a raw payload is a SIGBUS: LMCS_VIEW_COPY avoids that.
 */
struct lmcs_view;

enum lmcs_view_flags {
    /* Writable, copy on write: what is written is seen by this view, under this name, alone. Default: read-only. */
    LMCS_VIEW_PRIVATE = 1,
    LMCS_VIEW_VERIFY = 2, /* check the checksums of mapped payloads too, before returning */
    LMCS_VIEW_COPY = 4    /* anonymous memory for all: nothing of the file stays mapped */
};

/*
 * Views `count` tensors by name and kind LMCS_TENSOR or LMCS_ATTACHMENT (kinds NULL: all tensors); names NULL: every
 * entry of the snapshot, in the order of lmcs_snapshot_entries. LMCS_NOT_FOUND names the first that is not there.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_view_open(struct lmcs_snapshot *snapshot, const char *const *names,
                                                        const uint32_t *kinds, size_t count, uint32_t flags,
                                                        struct lmcs_view **view, struct lmcs_error *error);
LMCS_API size_t lmcs_view_count(const struct lmcs_view *view);
/* Entry i (below the count) and its address (aligned to 64 bytes; not NULL, for empty tensors too). */
LMCS_API const struct lmcs_entry *lmcs_view_entry(const struct lmcs_view *view, size_t i);
LMCS_API void *lmcs_view_data(const struct lmcs_view *view, size_t i);
LMCS_API void lmcs_view_close(struct lmcs_view *view);

/* ---- Differences ---------------------------------------------------------------------------------------------- */

enum lmcs_difference_kind {
    LMCS_SAME,     /* the same bytes, dtype and shape */
    LMCS_CHANGED,  /* other bytes */
    LMCS_RESHAPED, /* another dtype or shape, or another part of a larger tensor */
    LMCS_ADDED,    /* only the second snapshot has it */
    LMCS_REMOVED   /* only the first one has it */
};

/*
 * What became of one tensor or attachment. The numbers are there for LMCS_CHANGED, and of elements that are finite in
 * both snapshots; of NaN and infinities it is told how many there are. Elements are compared as doubles (integers above
 * 2^53 are rounded; complex numbers are taken by their absolute value), but which have changed is told by their bytes.
 */
struct lmcs_difference {
    const char *name;
    enum lmcs_difference_kind kind;
    const struct lmcs_tensor *before; /* NULL: added */
    const struct lmcs_tensor *after;  /* NULL: removed */
    uint64_t before_bytes;
    uint64_t after_bytes;
    uint64_t elements;
    uint64_t changed;           /* of them, whose bytes differ */
    uint64_t not_finite_before; /* NaN or infinite */
    uint64_t not_finite_after;
    double max_change; /* largest |after - before| */
    double rms_change; /* root of the mean of its square */
    double rms_before; /* root of the mean of |before|^2, to see rms_change beside it */
    double rms_after;
    double cosine; /* of the angle between the two; NaN where one of them has no length */
};

struct lmcs_diff_report {
    uint64_t same;
    uint64_t changed;
    uint64_t reshaped;
    uint64_t added;
    uint64_t removed;
    uint64_t bytes_compared; /* of each of the two */
};

enum lmcs_diff_flags {
    LMCS_DIFF_SAME = 1, /* visit what is the same, too */
    LMCS_DIFF_NAMES = 2 /* read no tensor: tell which have changed, without numbers (they are 0, the cosine NaN) */
};

/*
 * Compares two snapshots of one pool, on any shelves: calls `visit` for what differs, in the order of names of `after`,
 * what was removed last. What shares a content, or has the same digest, is not read; of the rest a block of 1 MiB of
 * each at a time and thread. `visit` returns false to stop; it may call functions of lmcstore.h. The same snapshots
 * give the same numbers, however they are stored.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_diff(
    struct lmcs_snapshot *before, struct lmcs_snapshot *after, uint32_t flags,
    bool (*visit)(void *context, const struct lmcs_difference *difference), void *context,
    const struct lmcs_progress *progress, struct lmcs_diff_report *report, struct lmcs_error *error);

/* ---- Compaction ----------------------------------------------------------------------------------------------- */

/*
 * Compacts until nothing is left to do, and gives unused file space back. What there is no room to write anew in a full
 * pool stays as it is, for the next time: lmcs_pool_info has the backlog. Damaged metadata of a shelf or a content
 * keeps nothing else from being compacted: LMCS_DAMAGED says so in the end.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_compact(struct lmcs_pool *pool, const struct lmcs_progress *progress,
                                                      struct lmcs_error *error);
/* The background thread holds still between pause and resume (they nest); compaction on request is not affected. */
LMCS_API void lmcs_compactor_pause(struct lmcs_pool *pool);
LMCS_API void lmcs_compactor_resume(struct lmcs_pool *pool);
/* Starts or stops the background thread; both are idempotent. stop waits for the job under way. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_compactor_start(struct lmcs_pool *pool, struct lmcs_error *error);
LMCS_API void lmcs_compactor_stop(struct lmcs_pool *pool);

/* ---- Checking ------------------------------------------------------------------------------------------------- */

struct lmcs_damage {
    const char *what;    /* a sentence */
    const char *shelf;   /* "" when not known */
    uint64_t number;     /* one snapshot that has it; 0: not known */
    const char *tensor;  /* "" when it is not in a tensor */
    uint64_t first_byte; /* of the tensor */
    uint64_t byte_count;
    bool is_unsupported; /* no damage: its checksum is right, and a newer version wrote it */
};

struct lmcs_verify_report {
    uint64_t snapshots;
    uint64_t contents;
    uint64_t bytes_read;
    uint64_t damages;
    uint64_t unsupported; /* records and payloads of a newer version: not checked, and no damage */
};

/*
 * Reads everything (address NULL), a shelf ("run") or one snapshot ("run@7"), and checks all checksums and the
 * structure; `visit` (may be NULL) is called for each damage, and for each record or payload of a newer version.
 * Returns LMCS_DAMAGED when there was damage, else LMCS_UNSUPPORTED when there was anything of a newer version.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_verify(struct lmcs_pool *pool, const char *address,
                                                     void (*visit)(void *context, const struct lmcs_damage *damage),
                                                     void *context, const struct lmcs_progress *progress,
                                                     struct lmcs_verify_report *report, struct lmcs_error *error);

/*
 * A scrub reads what is stored, and compares it with its checksums: without decoding, so it costs what reading does. A
 * damage is found where it is, and named with all that it hits: every snapshot, and the elements. What there is
 * another copy of is repaired; the rest is entered as lost, so that everything else stays in use: other tensors, other
 * rows of the same one, and compaction, which leaves it alone. Reading what is lost fails and says which rows those
 * are, until a later scrub finds a copy.
 */

/* Snapshots that follow one another on a shelf and have the damage under one name. */
struct lmcs_holder {
    const char *shelf;
    const char *tensor; /* its name there */
    uint32_t kind;      /* enum lmcs_kind */
    uint64_t first;     /* numbers */
    uint64_t last;
    uint64_t count;
};

enum lmcs_damage_state {
    LMCS_DAMAGE_FOUND,      /* it was not tried to repair it */
    LMCS_DAMAGE_REPAIRED,   /* it is gone: what is stored is again what was written */
    LMCS_DAMAGE_LOST,       /* there is no other copy, as far as was looked */
    LMCS_DAMAGE_UNSUPPORTED /* no damage: a newer version wrote it, and it stays as it is */
};

/* Pointers are valid during the visit. */
struct lmcs_scrub_damage {
    enum lmcs_damage_state state;
    const char *what;                 /* a sentence */
    const char *source;               /* what it was repaired from; "" when it was not */
    const struct lmcs_tensor *tensor; /* one that has it; NULL: it is in the metadata */
    uint64_t content;                 /* as in struct lmcs_entry */
    uint64_t first_byte;              /* of the tensor */
    uint64_t byte_count;
    uint64_t first_element;
    uint64_t element_count;
    uint64_t first_row; /* along the first dimension; of a tensor without one: 0 */
    uint64_t row_count;
    const struct lmcs_holder *holders; /* all that need it, deltas that rest on it among them */
    size_t holder_count;
};

struct lmcs_scrub_options {
    const char *const *addresses; /* only what these need: "run", "run@7", "run@5..9". None: everything */
    size_t address_count;
    double sample_share;     /* read only so much of it, 0 to 1, from where the last one ended; 0: all */
    uint64_t sample_bytes;   /* the same in bytes; a content is read as a whole */
    uint64_t rate_bytes;     /* a second, at most; 0: no limit */
    bool repair;             /* repair; needs a pool that is open for writing */
    const char *const *from; /* with repair: archives (files) and pools that may have what is damaged */
    size_t from_count;
};
/* Defaults: everything, as fast as it can, without repair. */
LMCS_API void lmcs_scrub_options_init(struct lmcs_scrub_options *options);

struct lmcs_scrub_report {
    uint64_t contents;
    uint64_t bytes_read; /* of payloads and parity, as they are stored */
    uint64_t bytes_total;
    uint64_t damages;
    uint64_t repaired;
    uint64_t lost;        /* contents of which something is lost, in the whole pool, with what was known before */
    uint64_t unsupported; /* records and payloads of a newer version: not checked, not changed, and no damage */
    bool is_whole;        /* everything has been read since the pass was begun, in this call or in samples before it */
    uint64_t sources_unread; /* of options->from: those that are no archive or pool, or damaged */
};

/*
 * Scrubs. `visit` (may be NULL) is told of each damage when all has been read; it may not call the store. Of the
 * metadata all is checked, unless addresses or a sample are given. Sources for repair, in this order: parity; the
 * other replica of a poolset; what stands in the pool a second time (the same tensor, or the same block in a
 * neighbour); options->from. Nothing is written that does not have the checksum that was recorded when it was saved,
 * and it is written to new room and switched to by a commit, like everything else.
 * A pool that is open for writing remembers where a sample ended; for reading, samples begin anywhere. Progress is in
 * bytes. LMCS_OK: nothing is damaged, any more. LMCS_DAMAGED: something is, and was not repaired. LMCS_READ_ONLY:
 * repair, and the pool is not open for writing. LMCS_FULL: no room to write what could be repaired; what was, stays so.
 * A source that can't be read is passed over while there are others, and ends a scrub that is otherwise OK or DAMAGED
 * with its own status (that of the first: NOT_FOUND, DAMAGED, ...; sources_unread > 0), when all is done; when none can
 * be read, nothing is done.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_scrub(struct lmcs_pool *pool, const struct lmcs_scrub_options *options,
                                                    void (*visit)(void *context,
                                                                  const struct lmcs_scrub_damage *damage),
                                                    void *context, const struct lmcs_progress *progress,
                                                    struct lmcs_scrub_report *report, struct lmcs_error *error);

/* ---- Archives and safetensors --------------------------------------------------------------------------------- */

struct lmcs_transfer_report {
    uint64_t snapshots;         /* written, or added */
    uint64_t snapshots_skipped; /* were there already */
    uint64_t snapshots_lost;    /* dump: left out, for something of them is lost */
    uint64_t contents;
    uint64_t contents_found;  /* restore: of them, those that the pool had already; dump: that older archives have */
    uint64_t bytes;           /* of the archive or file */
    uint64_t left_out;        /* export: entries that a safetensors file can't hold */
    char left_out_names[512]; /* the first of them, comma-separated */
};

/*
 * Writes a shelf (NULL: all of them) as an archive to a descriptor, which may be a pipe. Payloads travel as they are
 * stored, bases first. The archive format is in store/ARCHIVE.md.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_dump(struct lmcs_pool *pool, const char *shelf, int fd,
                                                   const struct lmcs_progress *progress,
                                                   struct lmcs_transfer_report *report, struct lmcs_error *error);
/*
 * Reads an archive from a descriptor, which may be a pipe, into a pool. Every checksum is verified before the one
 * commit that shows it all; on failure the pool is as it was. Where a shelf of that name is there already, snapshots
 * that it has (same number, same digest) are skipped and missing ones added; LMCS_EXISTS, before anything is
 * changed, when a number stands for something else.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_restore(struct lmcs_pool *pool, int fd,
                                                      const struct lmcs_progress *progress,
                                                      struct lmcs_transfer_report *report, struct lmcs_error *error);

struct lmcs_dump_options {
    const char *const *addresses; /* only these parts: "run", "run@7", "run@best", "run@5..9". None: everything */
    size_t address_count;
    const int *since; /* older archives, files: what they have is left out, and is needed to restore this one */
    size_t since_count;
    bool canonical; /* the same archive for the same content, however it is stored: entries by name, payloads raw */
    bool resume;    /* the descriptor is a file that may hold the beginning of this archive: check it, and go on */
    bool skip_lost; /* leave snapshots out of which a scrub found something lost, instead of failing at them */
};
/* Defaults: everything. */
LMCS_API void lmcs_dump_options_init(struct lmcs_dump_options *options);
/*
 * The same for a part, or for what older archives lack. Bases that are outside of the part travel along, unless it
 * takes less to send what rests on them whole. With `resume`, what is whole in the file is kept, up to the end of a
 * snapshot, and the rest comes from the pool as it is by now; what was taken on a shelf since it was begun waits for
 * another archive. A complete one that has what is wanted is left alone, but for what follows its end, which is cut
 * off. LMCS_INVALID: it was begun as another part, or without something that is wanted and would stand before what it
 * has. `options` may be NULL.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_dump_with(struct lmcs_pool *pool, const struct lmcs_dump_options *options,
                                                        int fd, const struct lmcs_progress *progress,
                                                        struct lmcs_transfer_report *report, struct lmcs_error *error);

struct lmcs_restore_options {
    const char *const *addresses; /* only these parts: "run", "run@7", "run@best", "run@5..9". None: everything */
    size_t address_count;
    const char *const *only; /* only these tensors: names, or patterns with * and ?; no attachments. None: all */
    size_t only_count;
    const char *as; /* a name for the shelf, of which there is one then. NULL: its own */
    bool move_tags; /* tags that the shelf has elsewhere move to where the archive has them; else they stay */
    bool resume;    /* on failure, and after a crash, what has arrived stays, unseen, for the next one with this; one
                       without it begins by giving the room back */
};
/* Defaults: everything, under its own name. */
LMCS_API void lmcs_restore_options_init(struct lmcs_restore_options *options);
/*
 * The same with several archives, in this order, and one commit for all of them: an archive that was made since others
 * needs what those have, here or in the pool; LMCS_NOT_FOUND says what is missing, and of which. Contents that the pool
 * has already are shared, not written again; when such a one is removed while they are read, they are read anew from
 * where they began, or, where one is a pipe, it is LMCS_NOT_FOUND. For a part (addresses, only), there is one archive
 * and it is a file, of which nothing else is read. With `resume`, the whole archive is read again; what arrived is not
 * written again, nor decoded, but for what came last on a shelf. Of an archive that is not what it says nothing is
 * kept, and a restore without `resume` removes what was. A restore has its shelves until it ends, and waits for
 * captures on them. LMCS_IN_USE: the thread that has one of them waits for another, which this thread has. `options`
 * may be NULL.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_restore_with(struct lmcs_pool *pool, const int *fds, size_t count,
                                                           const struct lmcs_restore_options *options,
                                                           const struct lmcs_progress *progress,
                                                           struct lmcs_transfer_report *report,
                                                           struct lmcs_error *error);

#define LMCS_MAX_SINCE 8 /* older archives that lmcs_archive_info tells of */

struct lmcs_archive_info {
    struct lmc_hash id; /* of this archive: what one that is made since it calls it */
    uint64_t bytes;
    uint64_t shelves;
    uint64_t snapshots;
    uint64_t tags;
    uint64_t contents;
    uint64_t known_contents;   /* of them, those that older archives have */
    uint64_t decoded_contents; /* verify: of them, those that could be decoded, and were */
    size_t since_count;        /* older archives that it needs ... */
    struct lmc_hash since[LMCS_MAX_SINCE];
};

/* A snapshot in an archive. Pointers are valid during the visit. */
struct lmcs_archived {
    const char *shelf;
    uint64_t number;
    int64_t step;
    uint64_t time_ns;
    uint64_t parent;
    uint64_t tensor_count;
    uint64_t raw_bytes;
    uint64_t new_contents; /* that come with it ... */
    uint64_t new_bytes;    /* ... as they are stored in the archive */
    const char *const *tags;
    size_t tag_count;
    const struct lmcs_metric *metrics; /* none where the metadata is so long that it is an attachment */
    size_t metric_count;
};
/*
 * Lists the snapshots of an archive, without a pool; `visit` returns false to stop. It is called when all has been
 * read: a file without its payloads, a pipe to its end. `visit` and `info` may be NULL.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_archive_list(
    int fd, bool (*visit)(void *context, const struct lmcs_archived *snapshot), void *context,
    const struct lmcs_progress *progress, struct lmcs_archive_info *info, struct lmcs_error *error);
/*
 * Reads all of an archive, without a pool, and checks every record; of a file, decodes every content that does not rest
 * on an older archive, and compares its digest; of those that do, the frames are looked at: their headers, which name
 * the digests, and the checksums of their blocks. LMCS_DAMAGED says where the first damage is. `info` may be NULL.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_archive_verify(int fd, const struct lmcs_progress *progress,
                                                             struct lmcs_archive_info *info, struct lmcs_error *error);
/* Makes a snapshot of a safetensors file. `options` may be NULL. The file's metadata becomes {"safetensors": {...}}. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_import_safetensors(struct lmcs_pool *pool, const char *shelf,
                                                                 const char *path,
                                                                 const struct lmcs_commit_options *options,
                                                                 const struct lmcs_progress *progress, uint64_t *number,
                                                                 struct lmcs_error *error);
/*
 * Writes a snapshot as a safetensors file (mode 0600; it appears whole, by rename, after fsync; "-": standard
 * output). `part`: NULL, or only the tensors under this dotted prefix, with the prefix stripped. The metadata has
 * "format": "pt" and where it came from. Attachments are left out.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_export_safetensors(struct lmcs_snapshot *snapshot, const char *part,
                                                                 const char *path, const struct lmcs_progress *progress,
                                                                 struct lmcs_transfer_report *report,
                                                                 struct lmcs_error *error);

#ifdef __cplusplus
}
#endif

#endif
