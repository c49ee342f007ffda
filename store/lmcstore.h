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
 *   fork: in a child the pools of its parent are dead: only close does anything, every other call fails.
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

#define LMCS_VERSION_MAJOR  0
#define LMCS_VERSION_MINOR  1
#define LMCS_VERSION_PATCH  0

#define LMCS_API            __attribute__((visibility("default")))
#define LMCS_NODISCARD      __attribute__((warn_unused_result))

#define LMCS_MAX_NAME       1024 /* bytes of a tensor's, shelf's or tag's name, without the NUL */
#define LMCS_MAX_DIMS       32
#define LMCS_MAX_TENSORS    16777216 /* in one snapshot */
#define LMCS_MIN_POOL_BYTES ((uint64_t)8 << 20)
#define LMCS_NO_STEP        INT64_MIN /* a snapshot without a step */

/* ---- Errors --------------------------------------------------------------------------------------------------- */

enum lmcs_status {
    LMCS_OK = 0,
    LMCS_INVALID,     /* wrong use: an argument, a name, a state of a handle */
    LMCS_NOT_FOUND,   /* no such pool, shelf, snapshot, tag, tensor */
    LMCS_EXISTS,      /* it is there already */
    LMCS_IN_USE,      /* another process has the pool open for writing, or a snapshot awaits its group's decision */
    LMCS_FULL,        /* no space in the pool, its limit or its disk */
    LMCS_DAMAGED,     /* media or an input file are not what was written */
    LMCS_UNSUPPORTED, /* a newer format, a file system, dtype or feature that this build can't do */
    LMCS_READ_ONLY,   /* the pool was opened for reading, or can't be written safely */
    LMCS_IO,          /* the operating system said no: see system_errno */
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

struct lmcs_open_options {
    uint64_t limit_bytes; /* on creation: use at most this of the disk; 0: as the disk allows. Ignored by an open */
    uint32_t wait_ms;     /* how long to wait for another writer; UINT32_MAX: the default, 10 s */
    uint32_t threads;     /* for copying and coding; 0: the processors, 8 at most */
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
    bool is_persistent_memory;   /* stores reach a persistence domain without msync */
    bool forced;                 /* PMEM_IS_PMEM_FORCE: survives a kill, not a power cut */
    char file_system[32];        /* "ext4", "tmpfs", "devdax", ... */
    char persistence_domain[32]; /* "memory_controller", "cpu_cache", "unknown", "none" */
    char nvdimm_namespace[64];   /* "" when there is none */
    int32_t numa_node;           /* -1: not known, or one node only */
    int32_t device_health;       /* -1 unknown, 0 ok, 1 non-critical, 2 critical, 3 fatal */
    uint64_t bad_blocks;         /* of the region below the pool; 0 also where not known */
    uint64_t unsafe_shutdowns;   /* of the device; 0 also where not known */
    uint64_t limit_bytes;        /* 0: no limit of our own */
    uint64_t used_bytes;         /* space of the disk that the pool takes, by our own count */
    uint64_t live_bytes;         /* ... of it, payloads and metadata that something refers to */
    uint64_t free_bytes;         /* what can still be written: under the limit and on the disk */
    uint64_t metadata_bytes;
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
    uint32_t format_version;
};
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_pool_info(struct lmcs_pool *pool, struct lmcs_pool_info *info,
                                                        struct lmcs_error *error);
/* Sets the pool's own limit; 0: none. LMCS_INVALID below what is used. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_pool_set_limit(struct lmcs_pool *pool, uint64_t limit_bytes,
                                                             struct lmcs_error *error);

/* ---- Shelves -------------------------------------------------------------------------------------------------- */

struct lmcs_shelf_info {
    char name[LMCS_MAX_NAME + 1];
    uint64_t snapshot_count; /* committed ones */
    uint64_t latest;         /* number of the newest; 0: empty */
    uint64_t next_number;
    uint32_t keep_raw; /* policy: this many of the newest snapshots stay raw */
};

/* Calls `visit` for each shelf, by name; stops when it returns false. No lmcs function may be called from within. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_list(struct lmcs_pool *pool,
                                                         bool (*visit)(void *context,
                                                                       const struct lmcs_shelf_info *info),
                                                         void *context, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_info(struct lmcs_pool *pool, const char *shelf,
                                                         struct lmcs_shelf_info *info, struct lmcs_error *error);
/* Sets how many of the newest snapshots stay raw (1 or more; 4 unless set). Makes the shelf if there is none. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_shelf_set_keep_raw(struct lmcs_pool *pool, const char *shelf,
                                                                 uint32_t keep_raw, struct lmcs_error *error);

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
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_begin(struct lmcs_pool *pool, const char *shelf,
                                                            struct lmcs_capture **capture, struct lmcs_error *error);
/*
 * Puts tensors, by value: when it returns, all `data` may change. Copies with the pool's threads. A tensor whose
 * bytes equal those that the newest snapshot of the shelf has raw under the same name, dtype and shape shares them.
 * data[i] points to the element with index (0, ..., 0); it may be NULL when the tensor is empty. A data that changes
 * while it is copied gives a torn but valid tensor. After a failure the capture can only be aborted.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_put(struct lmcs_capture *capture,
                                                          const struct lmcs_tensor *tensors, const void *const *data,
                                                          size_t count, struct lmcs_error *error);
/* Puts `tensor` as another name of one already in this capture with the same dtype and shape: one content. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_put_same(struct lmcs_capture *capture,
                                                               const struct lmcs_tensor *tensor,
                                                               const char *existing_name, struct lmcs_error *error);
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
    const char *meta_json;   /* NULL, or a JSON object: the user's own */
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
 * Opens a snapshot by address: "shelf@7", "shelf@tag", "shelf@latest", "shelf@latest~1", "shelf@best~2",
 * "shelf@step:120" (the newest of that step); "shelf" alone means its latest. LMCS_NOT_FOUND: there is none;
 * LMCS_INVALID: it could not name one. The handle is light and does not keep the snapshot from being removed: then its
 * calls fail with LMCS_NOT_FOUND. Free with lmcs_snapshot_close, before the pool is closed.
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
    uint32_t longest_chain;     /* deltas to undo, at most; 0: all raw or keyframes */
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

/* Puts a tag on a snapshot (moving it if it is elsewhere on the shelf), or takes one off the shelf. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_tag_set(struct lmcs_pool *pool, const char *shelf, const char *tag,
                                                      uint64_t number, struct lmcs_error *error);
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_tag_remove(struct lmcs_pool *pool, const char *shelf, const char *tag,
                                                         struct lmcs_error *error);

struct lmcs_removal {
    uint64_t freed_bytes; /* payloads that nothing refers to any more: free as soon as readers let go of them */
    uint64_t later_bytes; /* kept as bases of other snapshots' deltas: free after compaction */
    uint64_t removed_tags;
};
/* Removes a snapshot for ever. `removal` may be NULL. With dry_run nothing is changed. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_snapshot_remove(struct lmcs_pool *pool, const char *shelf,
                                                              uint64_t number, bool dry_run,
                                                              struct lmcs_removal *removal, struct lmcs_error *error);

/* ---- Reading -------------------------------------------------------------------------------------------------- */

enum lmcs_stored_as { LMCS_STORED_RAW, LMCS_STORED_KEYFRAME, LMCS_STORED_DELTA };

/* One tensor of a snapshot. Pointers are valid during the visit, or as long as the view that gave it. */
struct lmcs_entry {
    struct lmcs_tensor tensor; /* strides NULL */
    struct lmc_hash digest;
    uint64_t content; /* equal numbers: the same stored content */
    uint64_t raw_bytes;
    uint64_t stored_bytes;
    enum lmcs_stored_as stored_as;
    uint32_t chain; /* deltas to undo to read it */
};

/*
 * Visits the entries of a snapshot in the order in which names were first put, tensors and attachments. Stops when
 * `visit` returns false. No lmcs function may be called from within.
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
 * A view gives addresses for tensors of a snapshot: raw payloads are mapped (no copy, no check unless asked for),
 * others are decoded with the pool's threads into memory that the view owns. It holds its bytes in place until it is
 * closed, also after the pool's close, the snapshot's removal and its compaction. Memory that fails is an error for
 * every function here, but touching it through the address of a raw payload is a SIGBUS: LMCS_VIEW_COPY avoids that.
 */
struct lmcs_view;

enum lmcs_view_flags {
    LMCS_VIEW_PRIVATE = 1, /* writable, copy on write: what is written is seen by this view alone. Default: read-only */
    LMCS_VIEW_VERIFY = 2,  /* check the checksums of mapped payloads too, before returning */
    LMCS_VIEW_COPY = 4     /* anonymous memory for all: nothing of the file stays mapped */
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

/* ---- Compaction ----------------------------------------------------------------------------------------------- */

/* Compacts until nothing is left to do, and gives unused file space back. */
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
};

struct lmcs_verify_report {
    uint64_t snapshots;
    uint64_t contents;
    uint64_t bytes_read;
    uint64_t damages;
};

/*
 * Reads everything (address NULL), a shelf ("run") or one snapshot ("run@7"), and checks all checksums and the
 * structure; `visit` (may be NULL) is called for each damage. Returns LMCS_DAMAGED when there was any.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_verify(struct lmcs_pool *pool, const char *address,
                                                     void (*visit)(void *context, const struct lmcs_damage *damage),
                                                     void *context, const struct lmcs_progress *progress,
                                                     struct lmcs_verify_report *report, struct lmcs_error *error);

/* ---- Archives and safetensors --------------------------------------------------------------------------------- */

struct lmcs_transfer_report {
    uint64_t snapshots;         /* written, or added */
    uint64_t snapshots_skipped; /* were there already */
    uint64_t contents;
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
