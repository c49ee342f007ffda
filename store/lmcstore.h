/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lmcstore.h - versioned tensors in a persistent-memory pool (liblmcstore). Includes lmcstore_capture.h,
 * lmcstore_archive.h and lmcstore_check.h; lmcstore_live.h has live variables.
 *
 * A *pool* is one libpmemobj pool: a file on a local file system, a poolset, or a devdax device. Its *shelves* have
 * histories of *snapshots*: immutable, complete versions, each with a number, step, time, parent, tags, metrics,
 * metadata, and a manifest of tensors. A *capture* writes one: begin, put, commit. A snapshot is durable when commit
 * returns, and invisible before, also after a crash.
 *
 * Conventions
 *   Arguments: handle, inputs (a length directly after its pointer), outputs, then `struct lmcs_error *`, which may be
 *   NULL. `options` may be NULL: the defaults of the struct's _init function. A function that can fail returns an
 *   lmcs_status and fills in the error. After a failure outputs are unchanged unless stated otherwise.
 *   Strings are UTF-8 and NUL-terminated; functions copy them.
 *   Threads: all functions are thread-safe, but one thread at a time uses a capture or a view. No thread uses a handle
 *   during or after the call that ends it.
 *   Sizes and offsets are in bytes, times in nanoseconds since 1970 (UTC). Data is row-major and little-endian.
 *   fork: in a child its parent's pools are dead: close does nothing, every other call fails. Views stay readable, also
 *   after the parent closes or removes anything, until the child and its children have ended or called exec, or
 *   closed descriptors that are not their own.
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
#define LMCS_MAX_META_LEVELS 200  /* of objects and arrays in a snapshot's metadata; older metadata may have more */
#define LMCS_MAX_NAME        1024 /* bytes of the name of a tensor, shelf or tag, without the NUL */
#define LMCS_MAX_POLICY      400  /* bytes of a policy's text */
#define LMCS_MAX_WARNING     600  /* bytes of a warning about a policy */
#define LMCS_MAX_DIMS        32
#define LMCS_MAX_TENSORS     16777216 /* in one snapshot */
#define LMCS_MIN_POOL_BYTES  ((uint64_t)8 << 20)
#define LMCS_NO_STEP         INT64_MIN /* a snapshot without a step */
#define LMCS_MAX_NOTE        900       /* bytes of a note, and of a name that lmcs_metric_set or a reader adds */
#define LMCS_MAX_URL         500       /* bytes of the URL of remote snapshots */

/* ---- Errors --------------------------------------------------------------------------------------------------- */

enum lmcs_status {
    LMCS_OK = 0,
    LMCS_INVALID,   /* wrong use: an argument, a name, the state of a handle */
    LMCS_NOT_FOUND, /* no such pool, shelf, snapshot, tag, tensor */
    LMCS_EXISTS,
    LMCS_IN_USE,      /* held by another process, thread, live handle or transaction, or by a prepared snapshot */
    LMCS_FULL,        /* no space in the pool, its limit or its disk */
    LMCS_DAMAGED,     /* a wrong checksum or structure on the medium or in an input file */
    LMCS_UNSUPPORTED, /* a newer format, or a file system, dtype or feature that this build lacks */
    LMCS_READ_ONLY,   /* the pool is open for reading, or can't be written safely */
    LMCS_IO,          /* system error, see system_errno; after a failed sync, until the pool is opened again */
    LMCS_NO_MEMORY,
    LMCS_CANCELLED, /* a progress function asked to stop */
    LMCS_REMOTE     /* the snapshot's contents are in an object store (lmcs_snapshots_safe) */
};

struct lmcs_error {
    enum lmcs_status status;
    int system_errno;      /* 0, or the errno that caused it */
    uint64_t bytes_needed; /* LMCS_FULL: needed */
    uint64_t bytes_free;   /* LMCS_FULL: available */
    char message[1024];    /* the event, its object, and the remedy: one or two sentences, no newline */
};

/* Constant: "ok", "invalid", "not found", ... */
LMCS_API const char *lmcs_status_name(enum lmcs_status status);

/* Called during long work, from the calling thread. false: stop with LMCS_CANCELLED. */
typedef bool (*lmcs_progress_fn)(void *context, const char *what, uint64_t done, uint64_t total);

struct lmcs_progress {
    lmcs_progress_fn call; /* NULL: none */
    void *context;
};

/* ---- Pools ---------------------------------------------------------------------------------------------------- */

struct lmcs_pool;
struct lmcs_snapshot;

enum lmcs_open_mode {
    LMCS_OPEN_READ,  /* beside a writer in another process; each call sees the newest commit */
    LMCS_OPEN_WRITE, /* must exist */
    LMCS_OPEN_OR_CREATE,
    LMCS_OPEN_CREATE /* must not exist */
};

enum lmcs_open_flags {
    LMCS_NO_BACKGROUND = 1, /* no compactor thread; lmcs_compact works */
    LMCS_FORCE_NETWORK = 2  /* accept NFS, Lustre, FUSE and the like, where file locks and mmap are unreliable */
};

/* This is their one list: a pool keeps a copy, pool->options. */
struct lmcs_open_options {
    uint64_t limit_bytes;  /* on creation: limit of the space on disk; 0: as the disk allows */
    uint32_t wait_ms;      /* wait for another writer; UINT32_MAX: the default, 10 s */
    uint32_t threads;      /* for copying and encoding; 0: one per processor, at most 8 */
    uint32_t flags;        /* enum lmcs_open_flags */
    uint64_t expect_bytes; /* of the next capture, for which the background prepares space; 0: unknown until one ends */
    uint32_t copy_threads; /* for the copies and encoding of promised and asynchronous captures; 0: as `threads` */
    uint32_t copy_nice;    /* the least nice value of their threads, 0 to 19 */
    uint64_t memory_bytes; /* most memory for the newest states, from which captures make links; 0: a quarter of the
                              memory that this process may use; 1: none, so that captures make no links */
};

LMCS_API void lmcs_open_options_init(struct lmcs_open_options *options);

/*
 * Opens a pool: a file, a poolset file, or a devdax device. If this process has it open for writing, returns the same
 * pool again (each open needs its close), in any mode except LMCS_OPEN_CREATE, which fails. A new file has mode 0600
 * and is sparse. Errors: LMCS_NOT_FOUND, LMCS_EXISTS, LMCS_IN_USE (with the holder's pid),
 * LMCS_FULL, LMCS_DAMAGED, LMCS_UNSUPPORTED (format, file system), LMCS_INVALID, LMCS_IO.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_pool_open(const char *path, enum lmcs_open_mode mode,
                                                        const struct lmcs_open_options *options,
                                                        struct lmcs_pool **pool, struct lmcs_error *error);
/*
 * Ends one open. End captures and snapshot handles before. The last close waits until captures are durable, stops the
 * background thread, and releases the lock; views stay valid. Returns the unreported error of an asynchronous capture;
 * the pool is closed in any case.
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
    char nvdimm_namespace[64];    /* "": none */
    int32_t numa_node;            /* -1: unknown, or one node only */
    int32_t device_health;        /* -1 unknown, 0 ok, 1 non-critical, 2 critical, 3 fatal */
    uint64_t bad_blocks;          /* of the region below the pool; 0 also if unknown */
    uint64_t unsafe_shutdowns;    /* of the device; 0 also if unknown */
    uint64_t limit_bytes;         /* 0: no limit */
    uint64_t used_bytes;          /* space on disk, by the pool's own count */
    uint64_t live_bytes;          /* of it, payloads and metadata in use */
    uint64_t free_bytes;          /* can still be written: within the limit and on the disk */
    uint64_t metadata_bytes;      /* of used_bytes; reused, never returned */
    uint64_t metadata_free_bytes; /* of it, free pages */
    uint64_t created_ns;
    uint64_t epoch; /* metadata commits since creation */
    uint64_t shelf_count;
    uint64_t snapshot_count;
    uint64_t content_count;
    uint64_t last_snapshot_bytes; /* new payload bytes of the newest capture; 0: none yet */
    uint64_t snapshots_that_fit;  /* free_bytes / last_snapshot_bytes; UINT64_MAX: unknown, or less than 64 KiB */
    uint64_t compaction_backlog;  /* snapshots not encoded yet */
    uint64_t compacted_contents;  /* by this process */
    bool compaction_running;
    bool compaction_paused;
    char compaction_error[256]; /* "", or the error that stopped the background */
    uint64_t scrubbed_ns;       /* end of the last complete pass; 0: never */
    double scrub_share;         /* of the current pass, 0 to 1 */
    uint64_t scrub_found;       /* damage in the current or the last pass */
    uint64_t scrub_repaired;    /* of it, repaired */
    uint64_t lost_contents;     /* contents with lost blocks */
    uint64_t parity_bytes;      /* of live_bytes */
    uint32_t format_version;
    uint64_t damaged_shelves;     /* unreadable; in no count of shelves, nor in the backlog */
    char damage[1024];            /* the first damage among shelves; "": none */
    uint64_t unsupported_shelves; /* of a newer version, and in no count of shelves; `damage` has the first reason */
    uint64_t remote_count;        /* of snapshot_count, remote ones (lmcs_snapshots_safe) */
    uint64_t memory_bytes;        /* memory of this process that holds the newest states (lmcs_open_options) */
};
/* A damaged shelf is counted in damaged_shelves; everything else is still reported. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_pool_info(struct lmcs_pool *pool, struct lmcs_pool_info *info,
                                                        struct lmcs_error *error);
/* 0: no limit. LMCS_INVALID: below the space in use, or above the addresses of the pool's file. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_pool_set_limit(struct lmcs_pool *pool, uint64_t limit_bytes,
                                                             struct lmcs_error *error);

/* ---- Shelves -------------------------------------------------------------------------------------------------- */

/*
 * A policy is a text of words KEY=VALUE separated by spaces. Without a policy, nothing is ever removed.
 *
 *   keep_raw=N     newest N snapshots stay raw (1 or more; default 4), unless captures write links or deltas
 *   chain=N        most deltas to undo to read a tensor (0 to 7; default 3). 0: no deltas. More: smaller and slower
 *   links=N        most links to undo to read a tensor (0 to 64): where relations describe an optimizer's state
 *                  (lmcs_capture_relate), consecutive steps are stored by links. off: none are made. auto (the
 *                  default): 24, and in lines that captures write as many as "restore" allows
 *   keep=RULE,...  snapshots that pruning keeps: those that any rule picks, tagged and prepared ones, and the latest.
 *                  "all" (the default): every snapshot. Parts of groups go only by lmcs_prune and
 *                  lmcs_snapshot_remove
 *                    last:N           newest N
 *                    every:K          one of every K steps: the first that was taken (of those of one step, the
 *                                     newest). A snapshot without a step counts by its number
 *                    every:K/M        the same among the newest M snapshots
 *                    each:T  each:T/U one of every hour (T: 30s, 10m, 1h, 7d, 2w); not older than U
 *                    best:M  best:M:N  best:M:N:max   the N (1) with the least, or greatest, value of the metric M.
 *                                     While no snapshot has a number for M, every snapshot is kept
 *   budget=SIZE    most space after the next snapshot (200G), or a share of the pool's limit or disk (50%). Over it,
 *                  the compactor keeps only the newest snapshot raw, then prunes by the rules, oldest first. Below it,
 *                  a policy with a budget prunes nothing. A budget never refuses a snapshot
 *   rate=SIZE      most bytes a second that the background encodes (100M). none: no limit
 *   write=HOW      the form in which a capture writes changed tensors. raw: copies of them, so that the newest keep_raw
 *                  snapshots are readable by pointer. link: links from the previous state where possible, deltas where
 *                  not. auto (the default): the form that is durable sooner on this medium with this state, as
 *                  measured, where raw counts one and a half times; raw on DAX and in memory
 *   scrub=T        the background reads the whole pool once in T (30d; the shortest of all shelves), and repairs damage
 *                  if it can (lmcs_scrub)
 *   parity=bases   the default: parity of compacted contents that others rest on (keyframes, links, bases of deltas).
 *                  It repairs a flipped bit or a bad page of 4 KiB of each, and gives way when the pool is full
 *   parity=K+M     M bytes of parity for K stored bytes (16+2; K to 128, M to 16): restores any M lost of K + M units
 *                  of at most 4 KiB, far apart. Made in the background for fully compacted snapshots, after pruning for
 *                  a budget, as far as there is room; and by a scrub with repair. "none": no new parity; existing stays
 *
 *   grace=T        after a change of keep or budget, nothing is pruned for T (10m) that was not due before; the time of
 *                  the change is stored. "none": no such period
 *   local=last:N   newest N snapshots that stay in the pool, at least keep_raw. Others that a push has confirmed at a
 *                  URL leave it (lmcs_snapshots_safe). The rules of "keep" come first: what they do not keep is pruned,
 *                  also if it has left. all (the default): nothing leaves the pool
 *   restore=T      most time for each GiB of state to restore the whole newest snapshot, on all cores of this machine
 *                  (1s; at most 1h): bounds the mean length of the lines of links that captures write, so that a single
 *                  tensor may take longer for its bytes. "none": only "links" bounds them
 *
 * The background and lmcs_compact prune when the snapshots that the rules don't keep are more than an eighth of those
 * that they do; all of them when space runs out, also in a grace period. lmcs_prune prunes on request, at once.
 */
struct lmcs_policy_key {
    const char *name;    /* "keep_raw" */
    const char *value;   /* placeholder of a value in help: "N" */
    const char *values;  /* all values: "1 or more" */
    const char *initial; /* default: "4" */
    const char *help;    /* one sentence, without a full stop */
};
/* The keys in the order in which they are printed; NULL: there are no more. Constant. */
LMCS_API const struct lmcs_policy_key *lmcs_policy_key(size_t index);

struct lmcs_shelf_info {
    char name[LMCS_MAX_NAME + 1];
    uint64_t snapshot_count; /* committed ones */
    uint64_t remote_count;   /* of these, remote ones */
    uint64_t latest;         /* number of the newest snapshot; 0: empty */
    uint64_t next_number;
    uint32_t keep_raw;
    char policy[LMCS_MAX_POLICY + 1];
    uint64_t created_ns;
    uint64_t origin_number;               /* snapshot that it was forked from; 0: none */
    uint64_t origin_time_ns;              /* that snapshot's time */
    bool origin_is_there;                 /* the pool still has it */
    char origin_shelf[LMCS_MAX_NAME + 1]; /* current or last name of its shelf */
};

/*
 * Calls `visit` for each shelf, by name, until it returns false. `visit` must not call lmcs functions. LMCS_DAMAGED,
 * LMCS_UNSUPPORTED: a shelf is unreadable, or of a newer version; the others were visited.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_list(struct lmcs_pool *pool,
                                                         bool (*visit)(void *context,
                                                                       const struct lmcs_shelf_info *info),
                                                         void *context, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_info(struct lmcs_pool *pool, const char *shelf,
                                                         struct lmcs_shelf_info *info, struct lmcs_error *error);
/* Sets keep_raw alone. Creates the shelf if needed. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_set_keep_raw(struct lmcs_pool *pool, const char *shelf,
                                                                 uint32_t keep_raw, struct lmcs_error *error);
/*
 * Changes the keys in `policy`; others keep their values. Creates the shelf if needed. The new rules prune nothing
 * before this returns, nor in the grace period, except when space runs out; a snapshot that they keep is not pruned
 * afterwards. LMCS_INVALID: the message names the wrong word.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_set_policy(struct lmcs_pool *pool, const char *shelf,
                                                               const char *policy, struct lmcs_error *error);
/* Changes keys in the text of a policy, as lmcs_shelf_set_policy would. After an error the text is as before. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_policy_change(char policy[LMCS_MAX_POLICY + 1], const char *words,
                                                            struct lmcs_error *error);
/*
 * Writes a warning about the policy's rules, without a newline, or "": no snapshot has the metric of a rule, which
 * therefore keeps all, or only some have it. Reads the metadata of all snapshots if a rule needs a metric.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_policy_warning(struct lmcs_pool *pool, const char *shelf,
                                                             char warning[LMCS_MAX_WARNING + 1],
                                                             struct lmcs_error *error);

/*
 * Creates shelf `name`, whose snapshot 1 has the contents, step, time, metrics, metadata and tags of the given
 * snapshot, and no parent. It inherits keep_raw, scrub and parity, but no rule that prunes. Contents are shared, not
 * copied, until the last snapshot with them is removed, on any shelf. One commit, in time and metadata proportional to
 * the snapshot's entries. Afterwards the shelves are independent, except for the origin in lmcs_shelf_info.
 * LMCS_EXISTS: a shelf has that name. LMCS_IN_USE: the snapshot is prepared.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_fork(struct lmcs_snapshot *snapshot, const char *name,
                                                         struct lmcs_error *error);
/* Snapshot handles stay valid. LMCS_EXISTS: a shelf has that name. LMCS_IN_USE: a live variable of it is open here. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_rename(struct lmcs_pool *pool, const char *shelf, const char *name,
                                                           struct lmcs_error *error);
struct lmcs_removal;
/*
 * Removes a shelf with all snapshots and live variables. The first commit hides it; its contents then go. After a crash
 * or on a full disk, the next open for writing that has room removes the rest. Forks keep shared contents. `removal`
 * may be NULL. dry_run: changes nothing. LMCS_IN_USE: one of its live variables is open in this process.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_drop(struct lmcs_pool *pool, const char *shelf, bool dry_run,
                                                         struct lmcs_removal *removal, struct lmcs_error *error);

/* ---- Tensors -------------------------------------------------------------------------------------------------- */

/*
 * A tensor's name is unique within a snapshot and kind: 1 to LMCS_MAX_NAME bytes of valid UTF-8 without control
 * characters. All pointers are the caller's.
 */
enum lmcs_kind {
    LMCS_TENSOR = 0,
    LMCS_ATTACHMENT = 1 /* bytes of the application (dtype u8, one dimension), not listed among the tensors */
};

struct lmcs_tensor {
    const char *name;
    uint32_t kind;                /* enum lmcs_kind */
    uint32_t dtype;               /* enum lmc_dtype */
    uint32_t ndim;                /* 0 to LMCS_MAX_DIMS */
    const uint64_t *shape;        /* elements; may be NULL if ndim is 0 */
    const int64_t *strides;       /* put only: bytes, may be negative or 0; NULL: row-major */
    const uint64_t *global_shape; /* shape of the larger tensor of which this is a part; NULL: whole */
    const uint64_t *offsets;      /* of the part, in elements */
};

#include "lmcstore_capture.h" /* begin, put, commit */

/* ---- Snapshots ------------------------------------------------------------------------------------------------ */

/*
 * Addresses, as in Python and on the command line:
 *
 *   address = shelf [ "@" which ]             "run", "run@7": the shelf alone means its latest
 *   which   = point [ "~" [ count ] ]         "latest~2", "best~": so many before it (1), by number, of those there are
 *   point   = number | tag | "latest"
 *           | "step:" step                    the newest of that step
 *           | "{" time "}"                    the newest that was taken by then
 *   range   = [ which ] ".." [ which ]        "5..9", "step:100..latest", "..best": both ends included; without one,
 *                                             from the first or to the latest
 *   time    = "now" | "yesterday"             (24 hours ago)
 *           | count unit "ago"                seconds, minutes, hours, days, weeks; or s, min, h, d, w
 *           | date [ hh:mm [ :ss ] ] [ zone ] "2026-11-20", "2026-11-20 13:00", "2026-11-20T13:00:30+02:00": by the end
 *                                             of that day, minute or second; without a zone ("Z", "+02:00") in UTC
 *
 * A tag has 1 to LMCS_MAX_NAME bytes of UTF-8, none of them a control character or one of @ ~ : { }, and no "..". It is
 * not a number and not "latest".
 */

/*
 * Opens a snapshot by its address. LMCS_NOT_FOUND: there is none. LMCS_INVALID: wrong address. The handle does not keep
 * the snapshot from being removed; its calls then fail with LMCS_NOT_FOUND. Close it before the pool.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_open(struct lmcs_pool *pool, const char *address,
                                                            struct lmcs_snapshot **snapshot, struct lmcs_error *error);
/* The same with shelf and `which` apart; `which` NULL or "": the latest. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_find(struct lmcs_pool *pool, const char *shelf,
                                                            const char *which, struct lmcs_snapshot **snapshot,
                                                            struct lmcs_error *error);
LMCS_API void lmcs_snapshot_close(struct lmcs_snapshot *snapshot);

/* Constant for a snapshot handle. Pointers are valid until the handle is closed. */
struct lmcs_snapshot_info {
    const char *shelf;
    uint64_t number;
    int64_t step;
    uint64_t time_ns;
    uint64_t parent;       /* 0: none. May have been removed */
    uint64_t tensor_count; /* without attachments */
    uint64_t raw_bytes;    /* decoded tensors and attachments */
    const struct lmcs_metric *metrics;
    size_t metric_count;
    const char *meta_json; /* "{}": none */
    unsigned char group[16];
    const char *remote; /* URL that has the contents; NULL: the pool has them */
};
LMCS_API const struct lmcs_snapshot_info *lmcs_snapshot_info(const struct lmcs_snapshot *snapshot);

/* How a snapshot is stored now; all 0: it is remote. Walks the manifest. */
struct lmcs_snapshot_storage {
    uint64_t stored_bytes; /* payloads of all contents, each once; shared ones in full, bases not included */
    uint64_t raw_contents;
    uint64_t delta_contents;    /* stored as a delta */
    uint64_t keyframe_contents; /* stored as a frame of its own */
    uint64_t link_contents;     /* stored_bytes includes their share */
    uint32_t longest_chain;     /* most deltas to undo */
    uint32_t longest_line;      /* most links to undo */
    const char *links_note;     /* why no links lead from the step before; NULL: they do, or none were wanted */
};
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_storage(struct lmcs_snapshot *snapshot,
                                                               struct lmcs_snapshot_storage *storage,
                                                               struct lmcs_error *error);
#define LMCS_BYTES_UNKNOWN UINT64_MAX
/* Counts the payload bytes that snapshots added: of contents, as stored now, that no earlier one of the shelf or of an
 * older shelf references; each content once. A removed snapshot: 0; a damaged one: LMCS_BYTES_UNKNOWN. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_new_bytes(struct lmcs_pool *pool, const char *shelf,
                                                                 const uint64_t *numbers, size_t count,
                                                                 uint64_t *new_bytes, struct lmcs_error *error);
/* Hash of tensors, attachments, step, time, parent, metrics and metadata, independent of the stored form. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_digest(struct lmcs_snapshot *snapshot, struct lmc_hash *digest,
                                                              struct lmcs_error *error);
/* Visits the current tags. `visit` must not call lmcs functions. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_tags(struct lmcs_snapshot *snapshot,
                                                            bool (*visit)(void *context, const char *tag),
                                                            void *context, struct lmcs_error *error);
/* Makes it the default parent of this process's next capture on the shelf. */
LMCS_API void lmcs_snapshot_mark_loaded(struct lmcs_snapshot *snapshot);

/*
 * Lists up to `capacity` numbers of snapshots that are >= first, ascending. *count is less than `capacity` at the end.
 * LMCS_DAMAGED with *count set: some of these numbers are unreadable, and the others were listed.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_numbers(struct lmcs_pool *pool, const char *shelf,
                                                               uint64_t first, uint64_t *numbers, size_t capacity,
                                                               size_t *count, struct lmcs_error *error);
/* The same for one step. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_steps(struct lmcs_pool *pool, const char *shelf, int64_t step,
                                                             uint64_t first, uint64_t *numbers, size_t capacity,
                                                             size_t *count, struct lmcs_error *error);

/*
 * Resolves a range to its first and last number, which both exist; a `which` that is no range gives its number twice.
 * LMCS_NOT_FOUND: an end does not exist. LMCS_INVALID: the range is wrong or reversed.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_range(struct lmcs_pool *pool, const char *shelf,
                                                             const char *range, uint64_t *first, uint64_t *last,
                                                             struct lmcs_error *error);
/*
 * The same for reading what is there: an end without a snapshot (a number, a step, a time, too many before a point) is
 * clipped to the next one inside the range. Of steps, that is the newest of the next step. If *first is above *last,
 * the range has no snapshots: "6.." where 5 is the latest, or any range of a shelf without snapshots. LMCS_NOT_FOUND:
 * no such tag or shelf.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_range_clip(struct lmcs_pool *pool, const char *shelf,
                                                                  const char *range, uint64_t *first, uint64_t *last,
                                                                  struct lmcs_error *error);
/* Like lmcs_snapshot_numbers for numbers below `before` (UINT64_MAX: all), descending. Slow if some are unreadable. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_newest(struct lmcs_pool *pool, const char *shelf,
                                                              uint64_t before, uint64_t *numbers, size_t capacity,
                                                              size_t *count, struct lmcs_error *error);

#define LMCS_FROM_NOW UINT64_MAX

/* The place of a follower of one shelf. Set `after`, and the rest to 0; lmcs_snapshot_follow changes both. */
struct lmcs_follower {
    uint64_t after;    /* the last number that it got; 0: none; LMCS_FROM_NOW: the latest at its first call */
    uint64_t shelf_id; /* 0: it has not seen the shelf */
};
/*
 * Waits for the shelf's next snapshot after follower->after, in any process, and stores its number there, too. Returns
 * within 60 ms of its commit and checks 17 times a second. *number 0: there was none within wait_ms (UINT32_MAX: no
 * limit). The shelf need not exist yet. Removed snapshots are passed over, as are older numbers that a restore adds.
 * LMCS_NOT_FOUND: the shelf was removed or renamed meanwhile, or the pool's file deleted. The snapshot is durable;
 * LMCS_IO: the disk reports that it may not be.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_follow(struct lmcs_pool *pool, const char *shelf,
                                                              struct lmcs_follower *follower, uint32_t wait_ms,
                                                              uint64_t *number, struct lmcs_error *error);

/*
 * Any process that may write to the file adds metrics, notes and tags to committed snapshots, durably on return, also
 * beside a writer, or a stopped one (store/ANNOTATIONS.md). A handle that is open for reading may fail with
 * LMCS_READ_ONLY (no permission) or LMCS_IN_USE (128 wait for the writer, or it is of an older version). A note is
 * "message" in the metadata; "" removes it. LMCS_INVALID: no UTF-8, more than LMCS_MAX_NOTE bytes, or metrics and
 * metadata would take more than 1200.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_metric_set(struct lmcs_pool *pool, const char *shelf, uint64_t number,
                                                         const char *name, double value, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_note_set(struct lmcs_pool *pool, const char *shelf, uint64_t number,
                                                       const char *note, struct lmcs_error *error);
/* Puts a tag on a snapshot (moving it within the shelf); lmcs_tag_remove removes it from the shelf. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_tag_set(struct lmcs_pool *pool, const char *shelf, const char *tag,
                                                      uint64_t number, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_tag_remove(struct lmcs_pool *pool, const char *shelf, const char *tag,
                                                         struct lmcs_error *error);

/*
 * Lets snapshots from `first` to `last` (which exists) leave the pool, as the policy's "local" allows: the caller has
 * verified that `url` has them whole, and keeps them; of a part of a group, the whole group. Those that were committed
 * after the commit `epoch` (lmcs_pool_info) stay, and so do tagged and prepared ones, those with more than 1200 bytes
 * of metadata, and contents that others need. A snapshot that left is *remote*: it is listed, its tags and metrics can
 * change, and reading it is LMCS_REMOTE. A restore of an archive with it brings it back. A handle that is open for
 * reading leaves the request to the writer, which may lose it if it is killed: ask again for what is still in the pool.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshots_safe(struct lmcs_pool *pool, const char *shelf, uint64_t first,
                                                             uint64_t last, uint64_t epoch, const char *url,
                                                             struct lmcs_error *error);

#define LMCS_TAG_ANYWHERE UINT64_MAX

struct lmcs_tag_change {
    const char *tag;
    uint64_t number;   /* of its snapshot; 0: remove the tag */
    uint64_t expected; /* required present place: a number, 0 for nowhere, or LMCS_TAG_ANYWHERE */
};
/* Changes several tags in one commit, all or none. LMCS_EXISTS: a tag is not at its expected place, which the error
 * names. LMCS_NOT_FOUND: no such snapshot or tag. LMCS_IN_USE: several tags, or an expected place, beside a writer. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_tags_change(struct lmcs_pool *pool, const char *shelf,
                                                          const struct lmcs_tag_change *changes, size_t count,
                                                          struct lmcs_error *error);

struct lmcs_removal {
    uint64_t freed_bytes; /* payloads without a reference: free once readers release them */
    uint64_t later_bytes; /* bases of other snapshots' deltas: free after compaction */
    uint64_t removed_tags;
    uint64_t kept_bytes; /* links on which those of later steps rest: go with these, or if compaction begins a line */
};
/* `removal` may be NULL. dry_run: changes nothing. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_remove(struct lmcs_pool *pool, const char *shelf,
                                                              uint64_t number, bool dry_run,
                                                              struct lmcs_removal *removal, struct lmcs_error *error);

#define LMCS_PRUNE_RANGES 8

struct lmcs_number_range {
    uint64_t first, last;
};

/* Snapshots that one list of rules removed. */
struct lmcs_prune_event {
    char policy[LMCS_MAX_POLICY + 1]; /* the rules: "keep=last:10" */
    uint64_t first_ns;                /* the first removal, in whole seconds ... */
    uint64_t last_ns;                 /* ... and the last one */
    uint64_t count;                   /* snapshots */
    size_t range_count;
    struct lmcs_number_range ranges[LMCS_PRUNE_RANGES]; /* ascending; with fewer snapshots than these span, others of
                                                           them were not removed by these rules */
};

/* Visits the record of the snapshots that policies and lmcs_prune removed from the shelf, newest first, until `visit`
 * returns false. The record is bounded: it is a part of the shelf's, and the oldest events are dropped. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_prune_log(struct lmcs_pool *pool, const char *shelf,
                                                        bool (*visit)(void *context,
                                                                      const struct lmcs_prune_event *event),
                                                        void *context, struct lmcs_error *error);

struct lmcs_pruned {
    uint64_t number;
    int64_t step;    /* LMCS_NO_STEP: none */
    const char *why; /* reason that it is kept; NULL: it is removed */
    uint64_t due_ns; /* if the shelf's grace period still keeps it: when that ends; 0: it does not */
};

struct lmcs_prune_report {
    uint64_t kept;
    uint64_t removed; /* or would be */
    struct lmcs_removal removal;
    char warning[LMCS_MAX_WARNING + 1]; /* as lmcs_policy_warning, about the state before; "": none */
};

/*
 * Removes the snapshots that the shelf's rules do not keep, regardless of the budget. `words` (may be NULL) change the
 * policy for this call alone. `visit` (may be NULL) is called for each snapshot, oldest first, before anything is
 * removed; false: nothing is. dry_run: changes nothing. After a failure or a stop, removed snapshots stay removed. A
 * snapshot that is tagged meanwhile, or kept by a policy set meanwhile, stays unless already removed; it is visited
 * again at the end, with the reason.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_prune(struct lmcs_pool *pool, const char *shelf, const char *words,
                                                    bool dry_run,
                                                    bool (*visit)(void *context, const struct lmcs_pruned *snapshot),
                                                    void *context, const struct lmcs_progress *progress,
                                                    struct lmcs_prune_report *report, struct lmcs_error *error);

/*
 * Prunes a shelf by the budget of its policy, as the background does: if this pool and `other_bytes` of others that
 * share the budget exceed it, removes an eighth of the snapshots that the rules do not keep, oldest first. Does nothing
 * if it does not exceed the budget, or a capture owns the shelf. For a run of many ranks, whose records decide.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_prune_budget(struct lmcs_pool *pool, const char *shelf,
                                                           uint64_t other_bytes, uint64_t *removed,
                                                           struct lmcs_error *error);

/* ---- Reading -------------------------------------------------------------------------------------------------- */

enum lmcs_stored_as { LMCS_STORED_RAW, LMCS_STORED_KEYFRAME, LMCS_STORED_DELTA, LMCS_STORED_LINK };

/* Pointers are valid during the visit, or as long as the view that returned it. */
struct lmcs_entry {
    struct lmcs_tensor tensor; /* strides NULL */
    struct lmc_hash digest;
    uint64_t content; /* equal numbers: the same stored content */
    uint64_t raw_bytes;
    uint64_t stored_bytes; /* of a link its share */
    enum lmcs_stored_as stored_as;
    uint32_t chain; /* deltas or links to undo */
    uint64_t link;  /* equal numbers: arrays of one link, which are read at the cost of one; 0: of none */
};

/*
 * Visits tensors and attachments, in the order in which names were first put, until `visit` returns false. `visit` must
 * not call lmcs functions. It should be quick: until the last visit, the pool can't reuse space, and a writing process
 * can't commit.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_entries(struct lmcs_snapshot *snapshot,
                                                               bool (*visit)(void *context,
                                                                             const struct lmcs_entry *entry),
                                                               void *context, struct lmcs_error *error);

/*
 * Copies or decodes one tensor or attachment into `buffer`, of exactly its raw bytes (lmcs_snapshot_entries and views
 * report them), and verifies all checksums; blocks of raw payloads once per open pool (LMCS_VIEW_VERIFY). LMCS_DAMAGED
 * names the tensor, the snapshot and the one before it.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_read(struct lmcs_snapshot *snapshot, uint32_t kind,
                                                            const char *name, void *buffer, uint64_t buffer_bytes,
                                                            struct lmcs_error *error);

/* The same for `bytes` from `first_byte` on, such as rows of a tensor. Reads, decodes and verifies only the blocks of 1
 * MiB that contain them, along the whole chain. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_read_range(struct lmcs_snapshot *snapshot, uint32_t kind,
                                                                  const char *name, uint64_t first_byte, void *buffer,
                                                                  uint64_t bytes, struct lmcs_error *error);

struct lmcs_tensor_range {
    const char *name;
    uint64_t first_byte;
    uint64_t bytes;
    void *buffer;
};

/* The same for several ranges. The same bytes of arrays of one link are read at the cost of one, if the ranges follow
 * each other. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_read_ranges(struct lmcs_snapshot *snapshot, uint32_t kind,
                                                                   const struct lmcs_tensor_range *ranges, size_t count,
                                                                   struct lmcs_error *error);

/* false: lmcs_snapshot_read and lmcs_snapshot_read_range return the bytes of raw payloads through this handle without
 * comparing them. Set it before other threads use the handle. Export always compares. */
LMCS_API void lmcs_snapshot_set_verify(struct lmcs_snapshot *snapshot, bool verify);

/*
 * A view gives addresses of a snapshot's tensors. Raw payloads are mapped without a copy, and UNVERIFIED unless
 * LMCS_VIEW_VERIFY is given: a flipped bit is returned without an error. The pool's threads decode and verify others,
 * into memory of the view. It holds its bytes until it is closed, also after the close of the pool, and the snapshot's
 * removal or compaction. Failing memory is an error of every function here, but a SIGBUS when read through a mapped
 * address; LMCS_VIEW_COPY avoids that.
 */
struct lmcs_view;

enum lmcs_view_flags {
    /* writable, copy on write: only this view sees changes, under this name. Default: read-only */
    LMCS_VIEW_PRIVATE = 1,
    /* compare mapped payloads with their checksums before returning, each once per open pool */
    LMCS_VIEW_VERIFY = 2,
    LMCS_VIEW_COPY = 4 /* anonymous memory for all: no part of the file stays mapped */
};

/* Opens a view of `count` tensors by name and kind (kinds NULL: all LMCS_TENSOR). names NULL: every entry, in the order
 * of lmcs_snapshot_entries. LMCS_NOT_FOUND names the first missing one. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_view_open(struct lmcs_snapshot *snapshot, const char *const *names,
                                                        const uint32_t *kinds, size_t count, uint32_t flags,
                                                        struct lmcs_view **view, struct lmcs_error *error);
LMCS_API size_t lmcs_view_count(const struct lmcs_view *view);
/* Entry i (below the count), and its address (aligned to 64 bytes, never NULL), unverified as stated above. */
LMCS_API const struct lmcs_entry *lmcs_view_entry(const struct lmcs_view *view, size_t i);
LMCS_API void *lmcs_view_data(const struct lmcs_view *view, size_t i);
LMCS_API void lmcs_view_close(struct lmcs_view *view);

/* ---- Differences ---------------------------------------------------------------------------------------------- */

enum lmcs_difference_kind {
    LMCS_SAME,     /* the same bytes, dtype and shape */
    LMCS_CHANGED,  /* other bytes */
    LMCS_RESHAPED, /* other dtype, shape, or part of a larger tensor */
    LMCS_ADDED,    /* only in the second snapshot */
    LMCS_REMOVED   /* only in the first */
};

/*
 * The difference of one tensor or attachment. The numbers are set for LMCS_CHANGED and cover elements that are finite
 * in both snapshots. Elements are compared as doubles (integers above 2^53 are rounded; of complex numbers the absolute
 * value is used); `changed` compares their bytes.
 */
struct lmcs_difference {
    const char *name;
    enum lmcs_difference_kind kind;
    const struct lmcs_tensor *before; /* NULL: added */
    const struct lmcs_tensor *after;  /* NULL: removed */
    uint64_t before_bytes;
    uint64_t after_bytes;
    uint64_t elements;
    uint64_t changed;           /* elements with different bytes */
    uint64_t not_finite_before; /* NaN or infinite */
    uint64_t not_finite_after;
    double max_change; /* largest |after - before| */
    double rms_change; /* root mean square of the change */
    double rms_before; /* the same of before, for comparison */
    double rms_after;
    double cosine; /* of the angle between the two; NaN if either has length 0 */
};

struct lmcs_diff_report {
    uint64_t same;
    uint64_t changed;
    uint64_t reshaped;
    uint64_t added;
    uint64_t removed;
    uint64_t bytes_compared; /* of each snapshot */
};

enum lmcs_diff_flags {
    LMCS_DIFF_SAME = 1, /* visit equal tensors, too */
    LMCS_DIFF_NAMES = 2 /* read no tensor: numbers are 0, the cosine NaN */
};

/*
 * Compares two snapshots of one pool, on any shelves. Visits differences in the order of names of `after`, removed ones
 * last; `visit` returns false to stop, and may call functions of lmcstore.h. Tensors that share a content or digest are
 * not read; of others each thread reads a block of 1 MiB at a time. The numbers do not depend on the stored form.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_diff(
    struct lmcs_snapshot *before, struct lmcs_snapshot *after, uint32_t flags,
    bool (*visit)(void *context, const struct lmcs_difference *difference), void *context,
    const struct lmcs_progress *progress, struct lmcs_diff_report *report, struct lmcs_error *error);

/* ---- Compaction ----------------------------------------------------------------------------------------------- */

/*
 * Compacts until nothing is left to do, and returns unused file space. Contents without room for their new form stay
 * until the next time (backlog in lmcs_pool_info). Damaged shelves and contents, and those of a newer version, are
 * skipped; then returns LMCS_DAMAGED or LMCS_UNSUPPORTED.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_compact(struct lmcs_pool *pool, const struct lmcs_progress *progress,
                                                      struct lmcs_error *error);
/* The same for a finished run: of `shelf` (NULL: all) no snapshot stays raw. Snapshots taken later do again, and the
 * next one is stored in full, since unchanged tensors are shared only if raw. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_compact_finished(struct lmcs_pool *pool, const char *shelf,
                                                               const struct lmcs_progress *progress,
                                                               struct lmcs_error *error);
/* Counts the payload bytes of the newest snapshots that lmcs_compact_finished would encode. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_raw_bytes(struct lmcs_pool *pool, const char *shelf,
                                                              uint64_t *raw_bytes, struct lmcs_error *error);
/* Between pause and resume (they nest) the background rests, not lmcs_compact. It yields by itself (LOCKS.md). */
LMCS_API void lmcs_compactor_pause(struct lmcs_pool *pool);
LMCS_API void lmcs_compactor_resume(struct lmcs_pool *pool);
/* Starts or stops the background thread; idempotent. stop waits until it has ended. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_compactor_start(struct lmcs_pool *pool, struct lmcs_error *error);
LMCS_API void lmcs_compactor_stop(struct lmcs_pool *pool);

#ifdef __cplusplus
}
#endif

#include "lmcstore_archive.h"
#include "lmcstore_check.h"

#endif
