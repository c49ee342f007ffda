/* SPDX-License-Identifier: BSD-3-Clause */
/* lmcstore_capture.h - captures: the writing of snapshots. Part of lmcstore.h, which includes it. */
#ifndef LMCSTORE_CAPTURE_H
#define LMCSTORE_CAPTURE_H

#ifndef LMCSTORE_H
#error "include lmcstore.h, which includes this header"
#endif

struct lmcs_capture;
struct lmcs_snapshot;

/*
 * Begins a capture on a shelf, which the commit creates if needed. One capture at a time owns a shelf. Asynchronous
 * commits give it up at once; a begin waits for them only if 16, or 16 MiB, are in flight. Fails with the first
 * unreported error of earlier ones. LMCS_IN_USE: waiting would be a deadlock, since the owner waits for a shelf of this
 * thread.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_begin(struct lmcs_pool *pool, const char *shelf,
                                                            struct lmcs_capture **capture, struct lmcs_error *error);
/*
 * Copies tensors with the pool's threads; afterwards all `data` may change, unless lent (lmcs_capture_lend). A tensor
 * shares the newest snapshot's content if that is raw under the same name, dtype and shape, with equal bytes (in a
 * capture that writes links, also a coded content of equal digest). data[i] points to the element with index (0, ...,
 * 0); may be NULL for an empty tensor. Data that changes during the copy gives a torn but valid tensor. LMCS_IO: the
 * memory of the named tensor is unreadable (a failed page, or a mapped file that was cut). After a failure the capture
 * can only be aborted.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_put(struct lmcs_capture *capture,
                                                          const struct lmcs_tensor *tensors, const void *const *data,
                                                          size_t count, struct lmcs_error *error);
/*
 * Lends the data of all puts from now on, or of none: they stay readable and unchanged until the commit has returned,
 * or the capture is aborted. A capture that writes links encodes them without a copy, and keeps one copy of the state
 * in memory instead of two. The commit fails with LMCS_IO as a put would. lmcs_capture_promise copies what was lent.
 */
LMCS_API void lmcs_capture_lend(struct lmcs_capture *capture, bool lends);
/* Puts `tensor` as another name of a tensor of this capture with the same dtype and shape, sharing one content. The
 * caller records that the two share memory, if needed: a restore may also give equal tensors one content. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_put_same(struct lmcs_capture *capture,
                                                               const struct lmcs_tensor *tensor,
                                                               const char *existing_name, struct lmcs_error *error);
/*
 * The tensors of a capture that are one parameter's state under an optimizer, in the order of a link's arrays (lmc.h):
 * exp_avg, exp_avg_sq, the parameter, and with amsgrad max_exp_avg_sq; or momentum_buffer, the parameter. The constants
 * are those of the step that led to this state, as in struct lmc_link_hints (lmc_link_gradient_scale finds the scale),
 * or, if a scheduler has changed them since, those of the next one; with an lr of 0 they are found in the data.
 * If the step before is a snapshot too, the capture or the compactor can store this one for little more than the
 * gradient (policies `write` and `links`).
 */
struct lmcs_relation {
    const char *names[4];
    uint32_t name_count;
    uint32_t optimizer; /* enum lmc_optimizer */
    uint32_t flags;     /* LMC_LINK_* */
    double step, lr, weight_decay, beta1, beta2, eps, momentum, dampening, scale;
};
/*
 * Adds relations, in one call or several, before or after the tensors are put. They are hints: missing tensors, tensors
 * that are not f32 or differ in shape, and wrong constants only cost space. LMCS_INVALID: the relations are
 * inconsistent; none of this call is recorded, and the capture continues.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_relate(struct lmcs_capture *capture,
                                                             const struct lmcs_relation *relations, size_t count,
                                                             struct lmcs_error *error);
/*
 * Returns space for a row-major tensor to fill in place (initial bytes are unspecified), valid until commit or abort.
 * The commit hashes it and makes it durable; nothing else may write to it meanwhile. It is never compared with the
 * newest snapshot, so an unchanged tensor is stored again.
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
    uint64_t parent;         /* 0: the snapshot that this process last loaded for training or committed on the shelf,
                                else the latest; UINT64_MAX: none */
    uint64_t time_ns;        /* 0: now */
    const char *const *tags; /* moved here from other snapshots of the shelf */
    size_t tag_count;
    const struct lmcs_metric *metrics; /* with unique names */
    size_t metric_count;
    const char *meta_json;   /* NULL, or a JSON object of at most LMCS_MAX_META_LEVELS */
    bool asynchronous;       /* return before it is durable; see lmcs_capture_wait */
    bool prepare;            /* durable, but invisible until lmcs_group_resolve; the tags move then */
    unsigned char group[16]; /* all zero: none; required with prepare */
};
LMCS_API void lmcs_commit_options_init(struct lmcs_commit_options *options);

/*
 * Commits all or nothing. Synchronous: after LMCS_OK the snapshot is durable; the capture is freed in any case.
 * Asynchronous: returns when the tensors are copied and, for links, encoded. The capture stays until lmcs_capture_wait;
 * the snapshot is invisible until it is durable, which it is after its predecessors. *number (may be NULL) is the
 * snapshot's number; a failure may leave a gap.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_commit(struct lmcs_capture *capture,
                                                             const struct lmcs_commit_options *options,
                                                             uint64_t *number, struct lmcs_error *error);
/* Waits until an asynchronous commit is durable or has failed, and frees the capture. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_wait(struct lmcs_capture *capture, struct lmcs_error *error);
/* Whether lmcs_capture_wait would return at once. */
LMCS_API bool lmcs_capture_done(struct lmcs_capture *capture);
/* Frees an asynchronously committed capture without waiting. The shelf's next begin, or close, reports a failure. */
LMCS_API void lmcs_capture_detach(struct lmcs_capture *capture);
/* Ends a capture without a commit; nothing remains. */
LMCS_API void lmcs_capture_abort(struct lmcs_capture *capture);

/*
 * For a *lazy* capture, whose tensors are copied after the call that takes it (store/CAPTURES.md). Takes the options of
 * an asynchronous commit, and decides the snapshot's number and parent now. Then another thread puts the rest, and ends
 * the capture by lmcs_capture_commit, whose options and *number are ignored, or by lmcs_capture_fail. Until then the
 * shelf is in use: other captures of it wait. Any thread may call lmcs_capture_wait from now on, beside the puts; it
 * alone, or lmcs_capture_detach, frees the capture. lmcs_capture_abort is possible before the first of these calls.
 * LMCS_INVALID: it was promised already. After a failure it can only be aborted.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_capture_promise(struct lmcs_capture *capture,
                                                              const struct lmcs_commit_options *options,
                                                              uint64_t *number, struct lmcs_error *error);
/* Ends a promised capture as one whose commit failed: nothing remains, and `reason` is reported like that failure. */
LMCS_API void lmcs_capture_fail(struct lmcs_capture *capture, const struct lmcs_error *reason);
/* Whether a capture that begins now would wait for others of the shelf. */
LMCS_API bool lmcs_capture_would_wait(struct lmcs_pool *pool, const char *shelf);

/* Payload bytes written by this capture, and bytes of tensors shared with earlier snapshots. Of a capture that writes
 * links, until it is committed, bytes copied to memory count as written. */
LMCS_API void lmcs_capture_stats(const struct lmcs_capture *capture, uint64_t *written_bytes, uint64_t *shared_bytes);

/* ---- Prepared snapshots (store/RUNS.md) ---- */

/*
 * Commits or drops the prepared snapshot of a group, whose tags then move to it unless a later snapshot has them. Those
 * of a shelf may be resolved in any order; each is visible at once. A drop waits for captures in flight that began when
 * this snapshot was the shelf's newest. LMCS_NOT_FOUND: the group has no prepared snapshot. LMCS_INVALID, LMCS_IN_USE:
 * such a capture is this thread's, or its thread waits for this one.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_group_resolve(struct lmcs_pool *pool, const unsigned char group[16],
                                                            bool commit, struct lmcs_error *error);
struct lmcs_prepared {
    unsigned char group[16];
    const char *shelf;
    uint64_t number;
    int64_t step;
    uint64_t time_ns;
};
/* Calls `visit` for each prepared snapshot of the pool, by group, until it returns false. It must not call lmcs
 * functions. LMCS_DAMAGED, LMCS_UNSUPPORTED: one is unreadable; the others were visited. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_group_list(struct lmcs_pool *pool,
                                                         bool (*visit)(void *context,
                                                                       const struct lmcs_prepared *prepared),
                                                         void *context, struct lmcs_error *error);
/* Opens a group's snapshot on a shelf, whether it is prepared or committed: for readers who know that the group has
 * committed. LMCS_NOT_FOUND: there is none. Once it is committed, the newest snapshots are searched first. */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_group_open(struct lmcs_pool *pool, const char *shelf,
                                                         const unsigned char group[16], struct lmcs_snapshot **snapshot,
                                                         struct lmcs_error *error);

#endif
