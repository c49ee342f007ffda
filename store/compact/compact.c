/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/compact.c - the compactor: older snapshots become deltas, and unused space goes back.
 *
 * Work comes in rounds, each of one kind, taken in this order:
 *   release   retired ranges that no reader needs any more
 *   code      the oldest snapshot of a shelf that is not among its newest `keep_raw` and was not looked at yet: links
 *             are made from it to the next one (links.c); then the contents whose run ends with it are coded against
 *             what came after them, or stored by the links that lead to them
 *   rebase    contents that live on only as bases: they and their dependents are coded so that they can go
 *   move      what still lives in an extent that is nearly dead
 *   parity    for what policies want it of, when nothing else is left to do, nor to prune
 *   trim      file space of extents in which nothing lives, beyond a reserve that keeps captures warm
 * A round encodes outside of all locks, batch by batch, and switches each batch in one transaction that looks again at
 * what it is about to change. A crash loses at most the work of a batch. One round runs at a time, in the background
 * thread or in a caller's.
 */
#include "compact/compact.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/guard.h"
#include "base/topology.h"
#include "capture/capture.h"
#include "compact/links.h"
#include "compact/parity.h"
#include "compact/plan.h"
#include "compact/replace.h"
#include "pages/tree.h"
#include "records/lines.h"
#include "records/manifest.h"
#include "records/shelf.h"
#include "repair/scrub.h"
#include "shelves/prune.h"

#define BATCH_CONTENTS  512u
#define BATCH_BYTES     ((uint64_t)64 << 20)
#define RELEASE_AT_ONCE 4096u
#define LONGEST_SEARCH  4096
#define BACKGROUND_NICE 10
#define RETRY_SECONDS   1
#define MOST_SUSPECTS   64u
#define SCRUB_RATE      ((uint64_t)256 << 20) /* bytes a second, within a content: on the whole far fewer */

struct lmcs_compactor {
    struct lmcs_pool *pool;
    pthread_mutex_t round; /* held during a round */
    atomic_uint waiting;   /* callers who want a round while the background is in one */
    pthread_mutex_t lock;  /* guards what follows */
    pthread_cond_t wake;
    pthread_t thread;
    bool started;
    bool stop; /* somebody waits for the thread to end: who would start or stop it waits for that */
    bool notified;
    bool running;
    unsigned paused;
    uint64_t compacted_contents;
    char error[256];
    struct lmcs_scrub_turn scrub; /* the thread's own, as is ... */
    struct lmcs_parity_wait parity;
    struct lmcs_known_lines known_lines; /* under `round` */
};

struct candidate {
    uint64_t content;
    uint64_t base;
    uint64_t successor; /* gets `place`; 0: none */
    uint32_t place;
    uint32_t chain; /* deltas to undo, at most; 0: no more than now */
};

/* What the plan for the contents of one snapshot depends on. */
struct outlook {
    uint32_t chain;
    uint32_t links;
    uint32_t keep_raw;
    uint64_t rate_bytes; /* of decoded bytes that are coded in a second; 0: no limit */
    struct lmcs_plan_pattern pattern;
    size_t newer_count;
    struct lmcs_snapshot_df newer[LMCS_PLAN_MOST_JUMP]; /* the snapshots after it, the next one first */
};

struct round {
    struct lmcs_pool *pool;
    struct lmcs_compactor *compactor;
    bool background;
    const struct lmcs_progress *progress;
    uint64_t keep;    /* file space of free extents to keep */
    bool urgent;      /* a capture found no space: only the newest snapshots stay raw, and the policies' rules hold */
    const char *held; /* urgent: the shelf that this capture has */
    bool worked;      /* something was done */
    uint64_t swapped; /* contents that were written anew */
    struct candidate *candidates;
    size_t count;
    size_t capacity;
    struct lmcs_txn *txn; /* while candidates are collected */
    struct outlook outlook;
    uint64_t next_ns;                 /* when it may go on, with a limited rate */
    uint64_t suspects[MOST_SUSPECTS]; /* contents that were found damaged, they or what they rest on */
    size_t suspect_count;
    uint64_t since_ns; /* when it began, or the first of those that follow one another until nothing is left to do */
    struct lmcs_passed passed; /* what is damaged: its like had their turn */
};

/* ---- Politeness ---- */

static bool must_stop(struct lmcs_compactor *compactor)
{
    pthread_mutex_lock(&compactor->lock);
    bool stop = compactor->stop || compactor->paused > 0;
    pthread_mutex_unlock(&compactor->lock);
    return stop;
}

/* In the background: holds still while a capture copies. False: to stop, or to pause outside of a round. */
static bool may_go_on(struct round *round)
{
    struct lmcs_compactor *compactor = round->compactor;
    if (!round->background)
        return true;
    while (atomic_load(&round->pool->copying) > 0 && !must_stop(compactor))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return !must_stop(compactor);
}

/* In the background, with a limit: waits until so many bytes more may have been coded. */
static void hold_rate(struct round *round, uint64_t bytes)
{
    uint64_t rate = round->outlook.rate_bytes, now = lmcs_now_ns();
    if (rate == 0)
        return;
    if (round->next_ns < now)
        round->next_ns = now;
    round->next_ns += (uint64_t)((double)bytes / (double)rate * 1e9);
    while (lmcs_now_ns() < round->next_ns && !must_stop(round->compactor) && round->compactor->waiting == 0)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

static enum lmcs_status go_on(struct round *round, uint64_t done, uint64_t total, struct lmcs_error *error)
{
    const struct lmcs_progress *progress = round->progress;
    if (!may_go_on(round))
        return LMCS_CANCELLED;
    if (progress != NULL && progress->call != NULL && !progress->call(progress->context, "compacting", done, total))
        return lmcs_fail(error, LMCS_CANCELLED, 0, "%s: compaction was stopped; what is done stays done",
                         round->pool->path);
    return LMCS_OK;
}

/* ---- Damage ---- */

static void suspect(void *context, uint64_t content)
{
    struct round *round = context;
    for (size_t i = 0; i < round->suspect_count; i++)
        if (round->suspects[i] == content)
            return;
    if (round->suspect_count < MOST_SUSPECTS)
        round->suspects[round->suspect_count++] = content;
}

/* Damage in one content must not keep the others from being compacted: it is left as it is, and looked at later. */
static bool is_of_one_content(struct round *round, uint64_t content, enum lmcs_status status)
{
    if (status == LMCS_DAMAGED)
        suspect(round, content);
    return status == LMCS_DAMAGED || status == LMCS_NOT_FOUND;
}

/* Nor must damaged metadata of one shelf, base or extent keep the others from their turn: it is said at the end. */
static enum lmcs_status unless_damaged(struct round *round, enum lmcs_status status, const struct lmcs_error *error)
{
    return lmcs_pass_over(&round->passed, status, error);
}

static enum lmcs_status unless_shelf_damaged(struct round *round, uint64_t shelf_id, enum lmcs_status status,
                                             struct lmcs_error *error)
{
    return lmcs_shelf_pass_over(round->pool, shelf_id, &round->passed, status, error);
}

/* ---- Release ---- */

static enum lmcs_status release_round(struct round *round, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    size_t done = 0;
    enum lmcs_status status = lmcs_txn_write(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_space_release(&txn, RELEASE_AT_ONCE, &done, error);
    if (status == LMCS_OK && done > 0)
        status = lmcs_txn_commit(&txn, error);
    else
        lmcs_txn_end(&txn);
    round->worked |= status == LMCS_OK && done > 0;
    return status;
}

/* ---- Finding what to code ---- */

static enum lmcs_status add_candidate(struct round *round, const struct candidate *candidate, struct lmcs_error *error)
{
    if (!lmcs_grow(&round->candidates, &round->capacity, round->count, sizeof *round->candidates))
        return lmcs_fail_memory(error);
    round->candidates[round->count++] = *candidate;
    return LMCS_OK;
}

/* The contents that came after one under the same name, as far as they may be raw still. */
struct successors {
    uint32_t count;
    uint64_t ids[LMCS_PLAN_MOST_JUMP];
};

/* Adds what a newer snapshot has under that name, when it is another. *more false: it has nothing. */
static enum lmcs_status add_successor(struct round *round, size_t newer, uint64_t identity, uint64_t content,
                                      struct successors *successors, bool *more, struct lmcs_error *error)
{
    const struct lmcs_snapshot_df *df = &round->outlook.newer[newer];
    struct lmcs_root_tree_df tree = {.ref = df->manifest, .count = df->entry_count};
    struct lmcs_manifest_df entry;
    enum lmcs_status status = lmcs_tree_get(round->txn, LMCS_TREE_MANIFEST, &tree, (struct lmcs_key_df){identity, 0},
                                            &entry, sizeof entry, sizeof entry, NULL, more, error);
    uint64_t last = successors->count > 0 ? successors->ids[successors->count - 1] : content;
    if (status == LMCS_OK && *more && entry.content != last)
        successors->ids[successors->count++] = entry.content;
    return status;
}

static enum lmcs_status find_successors(struct round *round, uint64_t identity, uint64_t content, uint32_t wanted,
                                        struct successors *successors, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    bool more = true;
    for (size_t i = 0; status == LMCS_OK && more && successors->count < wanted && i < round->outlook.newer_count; i++)
        status = add_successor(round, i, identity, content, successors, &more, error);
    return status;
}

/* Whether `content` may rest on one that came after it, which may rest on `content` itself. */
static enum lmcs_status can_be_base(struct lmcs_txn *txn, const struct lmcs_content *content, uint64_t id,
                                    uint32_t *depth, bool *possible, struct lmcs_error *error)
{
    struct lmcs_content base;
    *depth = 0;
    enum lmcs_status status = lmcs_content_find(txn, id, &base, possible, error);
    if (status != LMCS_OK || !*possible)
        return status;
    *possible = id != content->id && base.df.raw_bytes == content->df.raw_bytes && base.link == 0;
    while (status == LMCS_OK && *possible && base.df.base_count > 0) {
        *possible = base.bases[0] != content->id && ++*depth <= LMCS_CHAIN_BOUND;
        status = lmcs_content_get(txn, base.bases[0], &base, error);
    }
    return status;
}

/* What the plan needs to know of a content and of those that came after it; takes those off that it can't rest on. */
static enum lmcs_status gather_facts(struct lmcs_txn *txn, const struct lmcs_content *content,
                                     struct successors *successors, struct lmcs_plan_facts *facts,
                                     struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    *facts = (struct lmcs_plan_facts){.raw_bytes = content->df.raw_bytes,
                                      .is_raw = content->df.payload == LMCS_PAYLOAD_RAW,
                                      .is_settled = (content->df.flags & LMCS_CONTENT_SETTLED) != 0,
                                      .height = content->df.height,
                                      .place = content->df.place};
    for (uint32_t i = 0; status == LMCS_OK && i < successors->count; i++) {
        uint32_t depth;
        bool possible;
        status = can_be_base(txn, content, successors->ids[i], &depth, &possible, error);
        if (status == LMCS_OK && possible) {
            successors->ids[facts->successor_count] = successors->ids[i];
            facts->successor_depths[facts->successor_count++] = depth;
        }
    }
    return status;
}

/* `context`: a round. A content whose run ends with the snapshot that is looked at. */
static enum lmcs_status consider(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                 uint64_t successor, struct lmcs_error *error)
{
    struct round *round = context;
    const struct outlook *outlook = &round->outlook;
    struct successors successors = {.count = successor != 0, .ids = {successor}};
    struct lmcs_content content;
    struct lmcs_plan_facts facts;
    bool found;
    enum lmcs_status status = lmcs_content_find(round->txn, entry->content, &content, &found, error);
    if (status != LMCS_OK || !found)
        return status;
    bool bears = false;
    if (content.df.payload == LMCS_PAYLOAD_RAW)
        status = lmcs_content_bears_links(round->txn, &content, &bears, error);
    if (status != LMCS_OK)
        return status;
    if (bears || (content.df.payload == LMCS_PAYLOAD_RAW && content.link != 0)) /* stored by its link, or a keyframe */
        return add_candidate(round, &(struct candidate){.content = content.id, .chain = outlook->chain}, error);
    uint32_t wanted = outlook->pattern.jumps[content.df.place % outlook->pattern.length];
    if (successor != 0)
        status = find_successors(round, identity, content.id, wanted, &successors, error);
    if (status == LMCS_OK)
        status = gather_facts(round->txn, &content, &successors, &facts, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_plan plan = lmcs_plan_content(&facts, &outlook->pattern, outlook->chain);
    struct candidate candidate = {.content = content.id,
                                  .base = plan.action == LMCS_PLAN_DELTA ? successors.ids[plan.jump - 1] : 0,
                                  .successor = successor != content.id ? successor : 0,
                                  .place = plan.next_place,
                                  .chain = outlook->chain};
    return plan.action == LMCS_PLAN_KEEP ? LMCS_OK : add_candidate(round, &candidate, error);
}

/* What the shelf's policy asks for, and when there is too little space. */
static void apply_policy(struct round *round, const struct lmcs_shelf *shelf)
{
    struct lmcs_policy policy;
    struct outlook *outlook = &round->outlook;
    lmcs_shelf_policy(shelf, &policy);
    bool pressed = round->urgent || lmcs_over_budget(round->txn, &policy);
    outlook->chain = policy.chain;
    outlook->links = policy.links;
    outlook->keep_raw = pressed ? 1 : policy.keep_raw;
    outlook->rate_bytes = round->background && !pressed ? policy.rate_bytes : 0;
}

/* The oldest snapshot to look at: behind the watermark, and not among the newest that stay raw. 0: none. */
static enum lmcs_status next_snapshot(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint32_t keep_raw,
                                      uint64_t *number, struct lmcs_error *error)
{
    uint64_t oldest_raw = UINT64_MAX;
    enum lmcs_status status = lmcs_record_after(txn, shelf, shelf->df.compacted, number, error);
    for (uint32_t i = 0; status == LMCS_OK && *number != 0 && i < keep_raw && oldest_raw != 0; i++)
        status = lmcs_record_before(txn, shelf, oldest_raw, &oldest_raw, error);
    if (*number >= oldest_raw || oldest_raw == 0)
        *number = 0;
    return status;
}

/* The snapshots after one in its lineage, as far as they stay raw. */
static enum lmcs_status look_ahead(struct round *round, struct lmcs_shelf *shelf, const struct lmcs_snapshot_df *of,
                                   struct lmcs_error *error)
{
    struct outlook *outlook = &round->outlook;
    uint32_t most = outlook->keep_raw < LMCS_PLAN_MOST_JUMP ? outlook->keep_raw : LMCS_PLAN_MOST_JUMP;
    enum lmcs_status status = LMCS_OK;
    bool found = true;
    outlook->newer_count = 0;
    lmcs_plan_pattern(outlook->chain, most, &outlook->pattern);
    while (status == LMCS_OK && outlook->newer_count < most) {
        struct lmcs_record newer;
        status = lmcs_record_neighbour(round->txn, shelf, of, true, &newer, &found, error);
        if (status != LMCS_OK || !found)
            break;
        outlook->newer[outlook->newer_count] = newer.df;
        of = &outlook->newer[outlook->newer_count++];
    }
    return status;
}

/* Collects the candidates of one snapshot of one shelf, if there is one. */
static enum lmcs_status collect_snapshot(struct round *round, uint64_t shelf_id, uint64_t *number,
                                         struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found;
    enum lmcs_status status = lmcs_shelf_load_if(round->txn, shelf_id, &shelf, &found, error);
    *number = 0;
    /* One that a restore made and dropped may be gone since the shelves were listed. */
    if (status != LMCS_OK || !found || (shelf.df.flags & LMCS_SHELF_STAGING) != 0)
        return status;
    apply_policy(round, &shelf);
    status = next_snapshot(round->txn, &shelf, round->outlook.keep_raw, number, error);
    if (status != LMCS_OK || *number == 0)
        return status;
    status = lmcs_record_get(round->txn, &shelf, *number, &record, &found, error);
    if (status == LMCS_OK)
        status = look_ahead(round, &shelf, &record.df, error);
    const struct lmcs_snapshot_df *newer = round->outlook.newer_count > 0 ? &round->outlook.newer[0] : NULL;
    return status == LMCS_OK ? lmcs_manifest_own(round->txn, &record.df, NULL, newer, false, consider, round, error)
                             : status;
}

/* ---- Coding candidates ---- */

struct batch {
    struct lmcs_region region;
    struct lmcs_replace *items[BATCH_CONTENTS];
    size_t count;
    uint64_t bytes;
};

static void end_batch(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        lmcs_replace_end(batch->items[i]);
        free(batch->items[i]);
    }
    batch->count = 0;
    batch->bytes = 0;
    lmcs_region_end(&batch->region);
}

/* *bad gets the index of the item whose records are damaged, when LMCS_DAMAGED is of one. */
static enum lmcs_status try_swap(struct round *round, struct batch *batch, size_t *bad, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    uint64_t swapped = 0;
    enum lmcs_status status = lmcs_txn_write(round->pool, &txn, error);
    *bad = SIZE_MAX;
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < batch->count; i++) {
        bool done;
        status = lmcs_replace_swap(&txn, batch->items[i], &done, error);
        swapped += done && batch->items[i]->worthwhile;
        if (status == LMCS_DAMAGED)
            *bad = i;
    }
    if (status == LMCS_OK)
        status = lmcs_region_commit(&txn, &batch->region, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    status = lmcs_txn_commit(&txn, error);
    round->swapped += status == LMCS_OK ? swapped : 0;
    pthread_mutex_lock(&round->compactor->lock);
    round->compactor->compacted_contents += status == LMCS_OK ? swapped : 0;
    pthread_mutex_unlock(&round->compactor->lock);
    return status;
}

/* Switches to what was made, in one transaction: without those that can't be, or (`whole`) all or nothing. */
static enum lmcs_status swap_batch(struct round *round, struct batch *batch, bool whole, struct lmcs_error *error)
{
    size_t bad = SIZE_MAX;
    enum lmcs_status status = lmcs_heap_sync(round->pool->heap, error);
    if (status == LMCS_OK)
        status = try_swap(round, batch, &bad, error);
    while (status == LMCS_DAMAGED && bad != SIZE_MAX) {
        (void)is_of_one_content(round, batch->items[bad]->made.id, status);
        if (whole)
            return LMCS_OK;
        lmcs_replace_end(batch->items[bad]);
        free(batch->items[bad]);
        batch->items[bad] = batch->items[--batch->count];
        status = try_swap(round, batch, &bad, error);
    }
    return status;
}

/*
 * What was found damaged is repaired, or entered as lost: then it is left alone from now on, instead of being tried at
 * each round.
 */
static enum lmcs_status look_at_suspects(struct round *round, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < round->suspect_count; i++) {
        status = lmcs_scrub_chain(round->pool, round->suspects[i], error);
        if (status == LMCS_DAMAGED || status == LMCS_FULL) /* a record is damaged; no room to repair it in */
            status = LMCS_OK;
    }
    round->suspect_count = 0;
    return status;
}

/* Something of it is damaged. Its newest link goes when nothing comes to be stored by it; what is below is scanned. */
static void suspect_line(struct round *round, const struct lmcs_chain *line)
{
    const size_t count = line->line > 1 ? 2 : line->length;
    for (size_t i = 0; i < count; i++)
        suspect(round, line->links[i].id);
}

static enum lmcs_status code_one(struct round *round, struct batch *batch, const struct candidate *candidate,
                                 struct lmcs_error *error)
{
    struct lmcs_replace *replace = calloc(1, sizeof *replace);
    if (replace == NULL)
        return lmcs_fail_memory(error);
    replace->chain_bound = candidate->chain;
    replace->successor = candidate->successor;
    replace->place = candidate->place;
    replace->known = &round->compactor->known_lines;
    replace->known_since_ns = round->since_ns;
    enum lmcs_status status = lmcs_replace_begin(replace, round->pool, &batch->region, candidate->content,
                                                 candidate->base, round->background, error);
    if (status != LMCS_OK) {
        free(replace);
        return is_of_one_content(round, candidate->content, status) ? LMCS_OK : status;
    }
    bool linked = false;
    status = replace->has_base ? LMCS_OK : lmcs_replace_linked(replace, &linked, error);
    if (replace->line_is_damaged)
        suspect_line(round, &replace->base);
    if (status == LMCS_OK && !linked)
        status = lmcs_replace_encode(replace, error);
    if (status == LMCS_DAMAGED && replace->has_base) { /* it may be the base: what it would rest on must be sound */
        (void)is_of_one_content(round, candidate->base, status);
        lmcs_replace_alone(replace);
        status = lmcs_replace_encode(replace, error);
    }
    if (status != LMCS_OK) {
        lmcs_replace_end(replace);
        free(replace);
        return is_of_one_content(round, candidate->content, status) ? LMCS_OK : status;
    }
    batch->items[batch->count++] = replace;
    batch->bytes += replace->made.df.raw_bytes;
    return LMCS_OK;
}

/* What can't rest on its base any more, for another content of the batch has come to, is coded alone. */
static enum lmcs_status code_refused_alone(struct round *round, const struct batch *batch, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < batch->count; i++) {
        const struct lmcs_replace *replace = batch->items[i];
        const struct candidate alone = {.content = replace->made.id,
                                        .successor = replace->successor,
                                        .place = replace->place,
                                        .chain = replace->chain_bound};
        if (replace->is_refused && replace->made.df.base_count > 0)
            status = add_candidate(round, &alone, error);
    }
    return status;
}

static enum lmcs_status code_candidates(struct round *round, struct lmcs_error *error)
{
    struct batch batch = {.count = 0};
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < round->count;) {
        lmcs_region_init(&batch.region, round->pool, 1);
        while (status == LMCS_OK && i < round->count && batch.count < BATCH_CONTENTS && batch.bytes < BATCH_BYTES) {
            status = go_on(round, i, round->count, error);
            if (status == LMCS_OK)
                status = code_one(round, &batch, &round->candidates[i], error);
            if (status == LMCS_OK && batch.count > 0)
                hold_rate(round, batch.items[batch.count - 1]->made.df.raw_bytes);
            i += status == LMCS_OK;
        }
        if (status == LMCS_FULL && batch.count > 0)
            status = LMCS_OK; /* what the batch frees is room for the next one */
        if (batch.count > 0 && (status == LMCS_OK || status == LMCS_CANCELLED)) {
            const uint64_t before = round->swapped;
            enum lmcs_status swapped = swap_batch(round, &batch, false, error);
            round->worked |= round->swapped > before; /* which may have made room for what found none */
            if (swapped == LMCS_OK)
                swapped = code_refused_alone(round, &batch, error);
            status = swapped != LMCS_OK ? swapped : status;
        }
        end_batch(&batch);
    }
    return status;
}

static enum lmcs_status move_watermark(struct round *round, uint64_t shelf_id, uint64_t number,
                                       struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    uint64_t next = 0;
    bool found = false;
    enum lmcs_status status = lmcs_txn_write(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&txn, shelf_id, &shelf, &found, error);
    if (status == LMCS_OK && found && shelf.df.compacted < number) {
        status = lmcs_record_after(&txn, &shelf, shelf.df.compacted, &next, error);
        found = next == 0 || next >= number; /* else a restore has put one before it, whose turn is first */
    } else if (status == LMCS_OK && found) { /* its turn would come again for ever */
        status = lmcs_fail(error, LMCS_DAMAGED, 0,
                           "%s: damaged metadata: snapshot %llu of shelf \"%s\" was compacted before",
                           round->pool->path, (unsigned long long)number, shelf.name);
    }
    if (status == LMCS_OK && found) {
        shelf.df.compacted = number;
        status = lmcs_shelf_save(&txn, &shelf, error);
    }
    if (status == LMCS_OK)
        return lmcs_txn_commit(&txn, error);
    lmcs_txn_end(&txn);
    return status;
}

static bool links_may_go_on(void *context, uint64_t bytes)
{
    struct round *round = context;
    struct lmcs_error ignored;
    if (round->background)
        hold_rate(round, bytes);
    return go_on(round, 0, 1, &ignored) == LMCS_OK;
}

/*
 * What there is no room to write anew stays as it is, and its turn comes again: others may be small enough, and what is
 * moved, pruned or given back may be room for it.
 */
static enum lmcs_status unless_full(enum lmcs_status status)
{
    return status == LMCS_FULL ? LMCS_OK : status;
}

/* From the snapshot whose turn it is to the next one. */
static enum lmcs_status link_shelf(struct round *round, uint64_t shelf_id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_links_turn turn = {.pool = round->pool,
                                   .shelf = shelf_id,
                                   .serial = round->background,
                                   .go_on = links_may_go_on,
                                   .suspect = suspect,
                                   .context = round};
    bool found;
    enum lmcs_status status = lmcs_txn_read(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    round->txn = &txn;
    status = lmcs_shelf_load_if(&txn, shelf_id, &shelf, &found, error);
    if (status == LMCS_OK && found && (shelf.df.flags & LMCS_SHELF_STAGING) == 0) {
        apply_policy(round, &shelf);
        turn.bound = round->outlook.links;
        status = next_snapshot(&txn, &shelf, round->outlook.keep_raw, &turn.number, error);
    }
    lmcs_txn_end(&txn);
    return status == LMCS_OK && turn.number != 0 ? lmcs_links_make(&turn, error) : status;
}

static enum lmcs_status code_shelf(struct round *round, uint64_t shelf_id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    uint64_t number = 0;
    round->count = 0;
    enum lmcs_status linked = unless_shelf_damaged(round, shelf_id, link_shelf(round, shelf_id, error), error);
    if (linked != LMCS_OK)
        return linked;
    enum lmcs_status status = lmcs_txn_read(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    round->txn = &txn;
    status = collect_snapshot(round, shelf_id, &number, error);
    lmcs_txn_end(&txn);
    if (status != LMCS_OK || number == 0)
        return status;
    status = code_candidates(round, error);
    if (status == LMCS_OK)
        status = move_watermark(round, shelf_id, number, error);
    round->worked |= status == LMCS_OK;
    return unless_full(status);
}

static enum lmcs_status code_round(struct round *round, struct lmcs_error *error)
{
    uint64_t ids[64], first = 0;
    size_t got = 0;
    enum lmcs_status status;
    do {
        struct lmcs_txn txn;
        status = lmcs_txn_read(round->pool, &txn, error);
        if (status != LMCS_OK)
            return status;
        status = lmcs_shelf_ids(&txn, first, ids, 64, &got, error);
        lmcs_txn_end(&txn);
        for (size_t i = 0; status == LMCS_OK && i < got; i++)
            status = unless_shelf_damaged(round, ids[i], code_shelf(round, ids[i], error), error);
        first = got > 0 ? ids[got - 1] + 1 : 0;
    } while (status == LMCS_OK && got == 64);
    return status;
}

/* ---- Bases that nothing else needs ---- */

struct unused_base {
    uint64_t id;
    uint64_t successor; /* as it is noted */
    uint64_t heir;      /* what its dependents are to be coded against; 0: nothing */
    struct lmcs_content content;
    uint64_t dependents[32];
    size_t dependent_count;
    bool bears_links; /* links are among what rests on it: they are not made again */
};

static enum lmcs_status list_dependents(struct lmcs_txn *txn, struct lmcs_cursor *cursor, struct unused_base *base,
                                        struct lmcs_error *error)
{
    base->dependent_count = 0;
    base->bears_links = false;
    enum lmcs_status status =
        lmcs_cursor_seek(cursor, txn, LMCS_TREE_DEPENDENTS, &txn->root.trees[LMCS_TREE_DEPENDENTS],
                         (struct lmcs_key_df){base->id, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == base->id &&
           base->dependent_count < 32) {
        struct lmcs_content dependent;
        status = lmcs_content_get(txn, lmcs_cursor_key(cursor).low, &dependent, error);
        bool is_link = status == LMCS_OK && dependent.df.payload == LMCS_PAYLOAD_LINK;
        base->bears_links |= is_link;
        if (status == LMCS_OK && !is_link)
            base->dependents[base->dependent_count++] = dependent.id;
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    return status;
}

/* The note of a content that is unused but as a base; 0: there is none, or nothing more can be done for it. */
static enum lmcs_status noted_successor(struct lmcs_txn *txn, uint64_t id, uint64_t *successor,
                                        struct lmcs_error *error)
{
    bool found;
    enum lmcs_status status =
        lmcs_tree_get(txn, LMCS_TREE_DEPENDENTS, &txn->root.trees[LMCS_TREE_DEPENDENTS], (struct lmcs_key_df){0, id},
                      successor, sizeof *successor, sizeof *successor, NULL, &found, error);
    if (status == LMCS_OK && (!found || *successor == LMCS_BASE_SETTLED))
        *successor = 0;
    return status;
}

/*
 * What the dependents of an unused base are to be coded against: the nearest content after it that a snapshot has, as
 * far as the notes lead there, else the nearest below it; 0: there is none. Many are unused at once after pruning, and
 * what is only noted as well would have to go next.
 */
static enum lmcs_status find_heir(struct lmcs_txn *txn, const struct unused_base *base, uint64_t *heir,
                                  struct lmcs_error *error)
{
    struct lmcs_content content = base->content;
    enum lmcs_status status = LMCS_OK;
    bool found = true;
    uint64_t id = base->successor;
    *heir = 0;
    for (int i = 0; status == LMCS_OK && id != 0 && i < LONGEST_SEARCH; i++) {
        status = lmcs_content_find(txn, id, &content, &found, error);
        if (status != LMCS_OK || !found)
            break;
        if (content.df.runs > 0) {
            *heir = id;
            return LMCS_OK;
        }
        status = noted_successor(txn, id, &id, error);
    }
    uint32_t depth;
    if (status == LMCS_OK) /* a forged chain may have no end */
        status = lmcs_content_depth(txn, &base->content, &depth, error);
    for (content = base->content; status == LMCS_OK && content.df.base_count > 0;) {
        status = lmcs_content_get(txn, content.bases[0], &content, error);
        if (status == LMCS_OK && content.df.runs > 0) {
            *heir = content.id;
            break;
        }
    }
    return status;
}

/*
 * The first content, from an id on, that is noted as unused but as a base, and not settled. *found false: none.
 * base->id gets that of the last one that was looked at, also when it is damaged.
 */
static enum lmcs_status find_unused(struct lmcs_pool *pool, uint64_t from, struct unused_base *base, bool *found,
                                    struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    *found = false;
    base->id = 0;
    base->successor = LMCS_BASE_SETTLED;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK) {
        lmcs_cursor_free(cursor);
        return status;
    }
    status = lmcs_cursor_seek(cursor, &txn, LMCS_TREE_DEPENDENTS, &txn.root.trees[LMCS_TREE_DEPENDENTS],
                              (struct lmcs_key_df){0, from}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == 0) {
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        base->id = lmcs_cursor_key(cursor).low;
        if (bytes == sizeof base->successor)
            memcpy(&base->successor, value, sizeof base->successor);
        if (base->successor != LMCS_BASE_SETTLED)
            break;
        status = lmcs_cursor_next(cursor, error);
    }
    if (status == LMCS_OK && base->successor != LMCS_BASE_SETTLED) {
        status = lmcs_content_get(&txn, base->id, &base->content, error);
        if (status == LMCS_OK)
            status = list_dependents(&txn, cursor, base, error);
        if (status == LMCS_OK)
            status = find_heir(&txn, base, &base->heir, error);
        *found = status == LMCS_OK;
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return status;
}

/* Codes one dependent against the base's heir (or alone), if that costs less than keeping the base. */
static enum lmcs_status rebase_one(struct round *round, const struct unused_base *base, uint64_t dependent,
                                   struct lmcs_error *error)
{
    struct batch batch = {.count = 0};
    struct candidate candidate = {.content = dependent, .base = base->heir};
    lmcs_region_init(&batch.region, round->pool, 1);
    enum lmcs_status status = code_one(round, &batch, &candidate, error);
    if (status == LMCS_OK && batch.count == 1) {
        struct lmcs_replace *replace = batch.items[0];
        const struct lmcs_content *old = &replace->chain.links[0];
        if (replace->worthwhile && lmcs_plan_rebase(old->df.stored_bytes, replace->made.df.stored_bytes,
                                                    base->content.df.stored_bytes, base->content.df.base_uses))
            status = swap_batch(round, &batch, false, error);
    }
    end_batch(&batch);
    return status;
}

/*
 * Has the step that inherits an unused one of its line begin a line of its own, if that costs less than the links that
 * are kept for it: as after pruning to every tenth step.
 */
static enum lmcs_status restart_line(struct round *round, uint64_t unused, struct lmcs_error *error)
{
    struct batch batch = {.count = 0};
    struct lmcs_line_heir heir;
    struct lmcs_txn txn;
    uint64_t stored = 0;
    enum lmcs_status status = lmcs_txn_read(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_line_find_heir(&txn, unused, &heir, error);
    lmcs_txn_end(&txn);
    if (status != LMCS_OK || heir.count == 0 || !lmcs_plan_restart(heir.link_bytes, heir.raw_bytes))
        return status;
    lmcs_region_init(&batch.region, round->pool, 1);
    for (size_t i = 0; status == LMCS_OK && i < heir.count; i++)
        status = code_one(round, &batch, &(struct candidate){.content = heir.arrays[i]}, error);
    bool all = batch.count == heir.count; /* of a line, part of a step can't begin another */
    for (size_t i = 0; i < batch.count; i++) {
        all = all && batch.items[i]->worthwhile;
        stored += batch.items[i]->made.df.stored_bytes;
    }
    if (status == LMCS_OK && all && stored < heir.link_bytes)
        status = swap_batch(round, &batch, true, error);
    end_batch(&batch);
    return status;
}

/* What could be done for it has been done: it stays until its last dependent goes. */
static enum lmcs_status settle_unused(struct round *round, uint64_t id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_root_tree_df *tree;
    struct lmcs_key_df key = {0, id};
    uint64_t value = LMCS_BASE_SETTLED, old;
    bool found;
    enum lmcs_status status = lmcs_txn_write(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    tree = &txn.root.trees[LMCS_TREE_DEPENDENTS];
    status = lmcs_tree_get(&txn, LMCS_TREE_DEPENDENTS, tree, key, &old, sizeof old, sizeof old, NULL, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_tree_put(&txn, LMCS_TREE_DEPENDENTS, tree, key, &value, sizeof value, error);
    if (status == LMCS_OK && found) {
        status = lmcs_txn_commit(&txn, error);
        round->worked |= status == LMCS_OK;
        return status;
    }
    lmcs_txn_end(&txn);
    return status;
}

/* Under lmcs_code_keep_out. */
static enum lmcs_status rebase_dependents(struct round *round, struct unused_base *base, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < base->dependent_count; i++)
        status = rebase_one(round, base, base->dependents[i], error);
    return status == LMCS_OK && base->bears_links ? restart_line(round, base->id, error) : status;
}

/* If it has to stay, it need not stay raw. */
static enum lmcs_status code_unused(struct round *round, const struct unused_base *base, struct lmcs_error *error)
{
    round->count = 0;
    if (base->content.df.payload != LMCS_PAYLOAD_RAW || base->content.df.raw_bytes < LMCS_PLAN_LEAST_BYTES)
        return LMCS_OK;
    enum lmcs_status status = add_candidate(round, &(struct candidate){.content = base->id}, error);
    return status == LMCS_OK ? code_candidates(round, error) : status;
}

/* Under lmcs_code_keep_out, which it ends. */
static enum lmcs_status rebase(struct round *round, struct unused_base *base, struct lmcs_error *error)
{
    enum lmcs_status status = rebase_dependents(round, base, error);
    lmcs_code_let_in(round->pool);
    if (status == LMCS_OK)
        status = code_unused(round, base, error);
    return status == LMCS_OK ? settle_unused(round, base->id, error) : status;
}

/* A base for which there is no room, or that is damaged, keeps its turn, and the others come to theirs. */
static enum lmcs_status rebase_round(struct round *round, struct lmcs_error *error)
{
    struct unused_base base;
    enum lmcs_status status = LMCS_OK;
    bool found = true;
    for (uint64_t from = 0; status == LMCS_OK; from = base.id + 1) {
        status = find_unused(round->pool, from, &base, &found, error);
        if (base.id < from || (status == LMCS_OK && !found)) /* at the end, or at a page that can't be read */
            return unless_damaged(round, status, error);
        const uint64_t before = round->swapped;
        if (status == LMCS_OK)
            status = go_on(round, 0, 1, error);
        if (status == LMCS_OK && !lmcs_code_keep_out(round->pool))
            return LMCS_OK;
        if (status == LMCS_OK)
            status = rebase(round, &base, error);
        round->worked |= round->swapped > before;
        status = unless_full(unless_damaged(round, status, error));
        if (base.id == UINT64_MAX)
            break;
    }
    return status;
}

/* ---- Nearly dead extents ---- */

static enum lmcs_status collect_living(struct round *round, uint64_t first, uint64_t end, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    round->count = 0;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_txn_read(round->pool, &txn, error);
    if (status == LMCS_OK) {
        status = lmcs_cursor_seek(cursor, &txn, LMCS_TREE_SPACE, &txn.root.trees[LMCS_TREE_SPACE],
                                  (struct lmcs_key_df){first, 0}, error);
        while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high < end) {
            struct lmcs_space_df df;
            size_t bytes;
            const void *value = lmcs_cursor_value(cursor, &bytes);
            if (bytes != sizeof df) {
                status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the payload at offset %llu",
                                   round->pool->path, (unsigned long long)lmcs_cursor_key(cursor).high);
                break;
            }
            memcpy(&df, value, sizeof df);
            status = add_candidate(round, &(struct candidate){.content = df.content}, error);
            if (status == LMCS_OK)
                status = lmcs_cursor_next(cursor, error);
        }
        lmcs_txn_end(&txn);
    }
    lmcs_cursor_free(cursor);
    return status;
}

/* What the map of space only says to be there would be moved for ever: `first` and `end` are where it must lie. */
static enum lmcs_status move_one(struct round *round, struct batch *batch, uint64_t content, uint64_t first,
                                 uint64_t end, struct lmcs_error *error)
{
    struct lmcs_replace *replace = calloc(1, sizeof *replace);
    if (replace == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status =
        lmcs_replace_begin(replace, round->pool, &batch->region, content, 0, round->background, error);
    bool begun = status == LMCS_OK;
    /* One in several parts would leave the rest of its parts behind in other extents, which would then be sparse. */
    bool movable = begun && replace->chain.links[0].df.part_count == 1 &&
                   replace->chain.links[0].parts[0].offset >= first && replace->chain.links[0].parts[0].offset < end;
    if (movable)
        status = lmcs_replace_copy(replace, error);
    if (!movable || status != LMCS_OK) {
        if (begun)
            lmcs_replace_end(replace);
        free(replace);
        return is_of_one_content(round, content, status) ? LMCS_OK : status;
    }
    batch->items[batch->count++] = replace;
    return LMCS_OK;
}

/* Moves what lives in one nearly dead extent; *moved gets how many contents. */
static enum lmcs_status empty_extent(struct round *round, uint64_t first, uint64_t end, size_t *moved,
                                     struct lmcs_error *error)
{
    enum lmcs_status status = collect_living(round, first, end, error);
    struct batch batch = {.count = 0};
    *moved = 0;
    for (size_t i = 0; status == LMCS_OK && i < round->count;) {
        lmcs_region_init(&batch.region, round->pool, 1);
        for (; status == LMCS_OK && i < round->count && batch.count < BATCH_CONTENTS; i++) {
            uint64_t content = round->candidates[i].content;
            status = (content & LMCS_SPACE_PARITY) != 0
                         ? lmcs_parity_move(round->pool, content & ~LMCS_SPACE_PARITY, first, end, moved, error)
                         : move_one(round, &batch, content, first, end, error);
        }
        const uint64_t before = round->swapped;
        if (status == LMCS_OK && batch.count > 0)
            status = swap_batch(round, &batch, false, error);
        *moved += round->swapped - before;
        end_batch(&batch);
    }
    return status;
}

static enum lmcs_status move_round(struct round *round, struct lmcs_error *error)
{
    uint64_t first, end = 0;
    size_t moved = 0;
    enum lmcs_status status = LMCS_OK;
    /* From one of which nothing can be moved on to the next. */
    while (status == LMCS_OK && moved == 0 && lmcs_space_sparse(round->pool, end, &first, &end))
        status = unless_damaged(round, empty_extent(round, first, end, &moved, error), error);
    round->worked |= status == LMCS_OK && moved > 0;
    return status;
}

/* ---- Parity ---- */

static bool parity_may_go_on(void *context, uint64_t bytes)
{
    struct round *round = context;
    struct lmcs_error ignored;
    hold_rate(round, bytes);
    return round->compactor->waiting == 0 && go_on(round, 0, 1, &ignored) == LMCS_OK;
}

/* For what is not about to be stored otherwise: when nothing else is left to do. */
static enum lmcs_status make_parity(struct round *round, struct lmcs_error *error)
{
    const struct lmcs_parity_turn turn = {.go_on = parity_may_go_on,
                                          .suspect = suspect,
                                          .context = round,
                                          .wait = round->background ? &round->compactor->parity : NULL};
    bool worked = false;
    enum lmcs_status status = lmcs_parity_turn(round->pool, &turn, &worked, error);
    round->worked |= worked;
    return status;
}

/* ---- Rounds ---- */

static void begin_round(struct round *round)
{
    round->compactor->waiting += !round->background;
    pthread_mutex_lock(&round->compactor->round);
    round->compactor->waiting -= !round->background;
}

static void end_round(struct round *round)
{
    pthread_mutex_unlock(&round->compactor->round);
    free(round->candidates);
    round->candidates = NULL;
    round->count = round->capacity = 0;
}

static enum lmcs_status run_round(struct round *round, struct lmcs_error *error)
{
    begin_round(round);
    enum lmcs_status status = unless_damaged(round, release_round(round, error), error);
    if (status == LMCS_OK)
        status = code_round(round, error);
    if (status == LMCS_OK)
        status = rebase_round(round, error);
    if (status == LMCS_OK && !round->worked)
        status = unless_full(move_round(round, error));
    if (status == LMCS_OK)
        status = look_at_suspects(round, error);
    end_round(round);
    return status;
}

/* When nothing is left to code or to prune: what is over a budget is to go before parity is made of it. */
static enum lmcs_status run_last_round(struct round *round, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    begin_round(round);
    if (!round->urgent)
        status = unless_full(unless_damaged(round, make_parity(round, error), error));
    if (status == LMCS_OK)
        status = look_at_suspects(round, error);
    if (status == LMCS_OK && !round->worked && lmcs_space_waste(round->pool, round->keep) > 0)
        status = unless_damaged(round, lmcs_space_trim(round->pool, round->keep, error), error);
    end_round(round);
    return status;
}

/* Outside of the round's lock: shelves are taken first. */
static enum lmcs_status prune(struct round *round, enum lmcs_prune_when when, struct lmcs_error *error)
{
    uint64_t removed;
    enum lmcs_status status =
        lmcs_prune_pool(round->pool, round->urgent ? LMCS_PRUNE_ALL : when, round->held, &removed, error);
    round->worked |= removed > 0;
    return unless_damaged(round, status, error);
}

static enum lmcs_status run_until_idle(struct round *round, struct lmcs_error *error)
{
    enum lmcs_status status;
    round->compactor = round->pool->compactor;
    round->since_ns = lmcs_now_ns();
    do {
        round->worked = false;
        status = round->urgent ? LMCS_OK : prune(round, LMCS_PRUNE_SURPLUS, error);
        if (status == LMCS_OK)
            status = run_round(round, error);
        if (status == LMCS_OK && !round->worked)
            status = prune(round, LMCS_PRUNE_BUDGETS, error);
        if (status == LMCS_OK && !round->worked)
            status = run_last_round(round, error);
        if (status == LMCS_OK)
            status = go_on(round, 1, 1, error);
    } while (status == LMCS_OK && round->worked);
    return lmcs_passed_over(&round->passed, status, error);
}

enum lmcs_status lmcs_compact(struct lmcs_pool *pool, const struct lmcs_progress *progress, struct lmcs_error *error)
{
    struct round round = {.pool = pool, .progress = progress};
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    return status == LMCS_OK ? run_until_idle(&round, error) : status;
}

bool lmcs_compact_for_space(struct lmcs_pool *pool, const char *held)
{
    struct lmcs_error error;
    struct round round = {.pool = pool, .urgent = true, .held = held};
    uint64_t free_before = lmcs_space_free_bytes(pool), used_before = lmcs_space_used(pool);
    run_until_idle(&round, &error);
    /* Free extents that did not fit count as free before and after; given back, their space is of use to others. */
    return lmcs_space_free_bytes(pool) > free_before || lmcs_space_used(pool) < used_before;
}

/* ---- The background thread ---- */

static uint64_t reserve(struct lmcs_pool *pool)
{
    pthread_rwlock_rdlock(&pool->meta);
    uint64_t last = pool->root.last_snapshot_bytes;
    pthread_rwlock_unlock(&pool->meta);
    return lmcs_plan_reserve(last);
}

/* This thread alone: behind others for the processor and, where the disk's scheduler knows of it, for the disk. */
static void be_polite(void)
{
    enum { WHO_PROCESS = 1, BEST_EFFORT_LAST = 2 << 13 | 7 }; /* linux/ioprio.h is not everywhere */
    id_t thread = (id_t)syscall(SYS_gettid);
    setpriority(PRIO_PROCESS, thread, BACKGROUND_NICE);
    syscall(SYS_ioprio_set, WHO_PROCESS, thread, BEST_EFFORT_LAST);
}

static bool scrub_may_go_on(void *context, uint64_t bytes)
{
    struct round *round = context;
    round->outlook.rate_bytes = SCRUB_RATE;
    hold_rate(round, bytes);
    return may_go_on(round);
}

/* What a policy wants read from time to time. Not within a round: who waits for one need not wait for this. */
static enum lmcs_status scrub_a_little(struct lmcs_compactor *compactor, struct lmcs_error *error)
{
    struct round round = {.pool = compactor->pool, .compactor = compactor, .background = true};
    enum lmcs_status status = lmcs_scrub_turn(compactor->pool, &compactor->scrub, scrub_may_go_on, &round, error);
    return status == LMCS_FULL ? LMCS_OK
                               : status; /* no room to repair in is said by the next scrub that is asked for */
}

static void *background(void *argument)
{
    struct lmcs_compactor *compactor = argument;
    struct lmcs_pool *pool = compactor->pool;
    be_polite();
    pthread_mutex_lock(&compactor->lock);
    while (!compactor->stop) {
        struct lmcs_error error = {.message = ""};
        if (compactor->paused > 0) {
            pthread_cond_wait(&compactor->wake, &compactor->lock);
            continue;
        }
        compactor->notified = false;
        compactor->running = true;
        pthread_mutex_unlock(&compactor->lock);
        struct round round = {.pool = pool, .background = true, .keep = reserve(pool)};
        enum lmcs_status status = run_until_idle(&round, &error);
        if (status == LMCS_OK || status == LMCS_DAMAGED) { /* which others than what is scrubbed may be */
            struct lmcs_error other = {.message = ""};
            enum lmcs_status scrubbed = scrub_a_little(compactor, &other);
            error = status == LMCS_OK ? other : error;
            status = status == LMCS_OK ? scrubbed : status;
        }
        pthread_mutex_lock(&compactor->lock);
        compactor->running = false;
        bool failed = status != LMCS_OK && status != LMCS_CANCELLED;
        snprintf(compactor->error, sizeof compactor->error, "%.250s", failed ? error.message : "");
        /* Leases and views that hold retired space end without telling us: look again after a while. */
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += RETRY_SECONDS;
        while (!compactor->stop && !compactor->notified)
            if (pthread_cond_timedwait(&compactor->wake, &compactor->lock, &until) == ETIMEDOUT)
                break;
    }
    pthread_mutex_unlock(&compactor->lock);
    return NULL;
}

void lmcs_compactor_notify(struct lmcs_pool *pool)
{
    struct lmcs_compactor *compactor = pool->compactor;
    if (compactor == NULL)
        return;
    pthread_mutex_lock(&compactor->lock);
    compactor->notified = true;
    pthread_cond_broadcast(&compactor->wake);
    pthread_mutex_unlock(&compactor->lock);
}

void lmcs_compactor_pause(struct lmcs_pool *pool)
{
    if (lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return;
    pthread_mutex_lock(&pool->compactor->lock);
    pool->compactor->paused++;
    pthread_mutex_unlock(&pool->compactor->lock);
}

void lmcs_compactor_resume(struct lmcs_pool *pool)
{
    if (lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return;
    pthread_mutex_lock(&pool->compactor->lock);
    if (pool->compactor->paused > 0)
        pool->compactor->paused--;
    pthread_cond_broadcast(&pool->compactor->wake);
    pthread_mutex_unlock(&pool->compactor->lock);
}

/* Under the lock: waits for who is stopping the thread. */
static void wait_stopped(struct lmcs_compactor *compactor)
{
    while (compactor->stop)
        pthread_cond_wait(&compactor->wake, &compactor->lock);
}

enum lmcs_status lmcs_compactor_start(struct lmcs_pool *pool, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_compactor *compactor = pool->compactor;
    pthread_mutex_lock(&compactor->lock);
    wait_stopped(compactor);
    if (!compactor->started) {
        sigset_t all, old;
        lmcs_guard_signals(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        int failure = pthread_create(&compactor->thread, NULL, background, compactor);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        compactor->started = failure == 0;
        compactor->error[0] = '\0'; /* it was of the thread before */
        if (failure != 0)
            status = lmcs_fail_errno(error, failure, "%s: can't start the compactor's thread", pool->path);
    }
    pthread_mutex_unlock(&compactor->lock);
    return status;
}

void lmcs_compactor_stop(struct lmcs_pool *pool)
{
    if (pool->compactor == NULL || lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return;
    struct lmcs_compactor *compactor = pool->compactor;
    pthread_mutex_lock(&compactor->lock);
    wait_stopped(compactor);
    if (compactor->started) {
        compactor->stop = true;
        pthread_cond_broadcast(&compactor->wake);
        pthread_mutex_unlock(&compactor->lock);
        pthread_join(compactor->thread, NULL);
        pthread_mutex_lock(&compactor->lock);
        compactor->stop = compactor->started = false;
        pthread_cond_broadcast(&compactor->wake);
    }
    pthread_mutex_unlock(&compactor->lock);
}

enum lmcs_status lmcs_compactor_new(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_compactor *compactor = calloc(1, sizeof *compactor);
    if (compactor == NULL)
        return lmcs_fail_memory(error);
    compactor->pool = pool;
    pthread_mutex_init(&compactor->round, NULL);
    pthread_mutex_init(&compactor->lock, NULL);
    pthread_cond_init(&compactor->wake, NULL);
    pool->compactor = compactor;
    pool->wake = lmcs_compactor_notify;
    pool->make_room = lmcs_compact_for_space;
    return (pool->flags & LMCS_NO_BACKGROUND) != 0 ? LMCS_OK : lmcs_compactor_start(pool, error);
}

void lmcs_compactor_free(struct lmcs_pool *pool)
{
    struct lmcs_compactor *compactor = pool->compactor;
    if (compactor == NULL)
        return;
    lmcs_compactor_stop(pool);
    pthread_mutex_destroy(&compactor->round);
    pthread_mutex_destroy(&compactor->lock);
    pthread_cond_destroy(&compactor->wake);
    free(compactor);
    pool->compactor = NULL;
}

void lmcs_compactor_state(struct lmcs_pool *pool, struct lmcs_pool_info *info)
{
    struct lmcs_compactor *compactor = pool->compactor;
    if (compactor == NULL)
        return;
    pthread_mutex_lock(&compactor->lock);
    info->compaction_running = compactor->running;
    info->compaction_paused = compactor->paused > 0;
    info->compacted_contents = compactor->compacted_contents;
    snprintf(info->compaction_error, sizeof info->compaction_error, "%s", compactor->error);
    pthread_mutex_unlock(&compactor->lock);
}
