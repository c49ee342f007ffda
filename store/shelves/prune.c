/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shelves/prune.c - removes the snapshots that a shelf's policy does not keep.
 *
 * One transaction gathers facts about all snapshots, a pure function (records/policy_keep.c) decides, and batches
 * remove, each in a transaction. The caller owns the shelf, so no capture adds to it; but tags, policies and groups
 * change without owning it, and their callers rely on the result. So each batch checks the tags again, and gathers the
 * facts again if any has changed. A snapshot that was to be kept is kept in any case. Annotations of other processes
 * that come after the decision wait for its end (records/ring.h).
 *
 * The background waits until an eighth too many have gathered: deltas that rest on several removed bases are then
 * encoded anew once.
 */
#include "shelves/shelves.h"

#include <stdlib.h>
#include <string.h>

#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/annotation.h"
#include "records/busy.h"
#include "shelves/facts.h"
#include "snapshots/snapshot.h"

#define BATCH_SNAPSHOTS 32u

struct request {
    bool is_asked_for;         /* lmcs_prune; else the background decides */
    const char *words;         /* changes to the policy (may be NULL) */
    enum lmcs_prune_when when; /* background: which shelves are due, and how many snapshots go */
    uint64_t other_bytes;      /* of pools that share the budget */
};

/* The facts on which a decision rests, and the state of the shelf then. */
struct facts {
    struct lmcs_facts of;
    const char **kept_now;   /* by index: the reason while a grace period runs; NULL: none runs */
    struct lmcs_bases bases; /* of captures in flight when the shelf was held. Set by the caller */
    size_t wanted;           /* snapshots to remove, at most */
    uint64_t shelf_id;       /* state of the shelf that the decision rests on */
    uint64_t next_number;    /* decides when the shelf is examined again */
    uint64_t latest;         /* with annotated, record_count and shelf_policy: compared before each batch */
    uint64_t annotated;      /* annotations of all snapshots of the pool */
    uint64_t record_count;
    char shelf_policy[LMCS_MAX_POLICY + 1];
    uint64_t grace_end; /* of the policy, in ns; 0: no grace period is running */
    bool has_changed;   /* during this pruning */
};

static const char since[] = "tagged, or kept by a change, since pruning began";

static void free_facts(struct facts *facts)
{
    lmcs_facts_free(&facts->of);
    free(facts->kept_now);
}

static size_t count_kept(const struct facts *facts)
{
    size_t kept = 0;
    for (size_t i = 0; i < facts->of.count; i++)
        kept += facts->of.kept[i] != NULL;
    return kept;
}

/* ---- Decisions ---- */

bool lmcs_over_budget(struct lmcs_txn *txn, const struct lmcs_policy *policy, uint64_t other_bytes)
{
    const struct lmcs_root_df *root = &txn->root;
    uint64_t wanted = root->live_bytes + root->slab_bytes + root->last_snapshot_bytes + other_bytes;
    if (policy->budget_bytes > 0 && wanted > policy->budget_bytes)
        return true;
    if (policy->budget_percent == 0)
        return false;
    uint64_t all = root->limit_bytes > 0
                       ? lmcs_space_limit(txn->pool, root)
                       : root->slab_bytes + lmcs_space_used(txn->pool) + lmcs_space_free_bytes(txn->pool);
    return wanted / policy->budget_percent > (all + other_bytes) / 100;
}

static size_t how_many(const struct facts *facts, const struct request *request)
{
    size_t kept = count_kept(facts), due = facts->of.count - kept;
    if (!request->is_asked_for && request->when == LMCS_PRUNE_BUDGETS)
        return (due + 7) / 8;
    return request->is_asked_for || request->when == LMCS_PRUNE_ALL || due > kept / 8 ? due : 0;
}

/* Whether the shelf is to be examined again: a long history not after every snapshot. */
static bool is_time(struct lmcs_pool *pool, const char *name, uint64_t next_number)
{
    pthread_mutex_lock(&pool->captures);
    const struct lmcs_busy_shelf *shelf = lmcs_busy_find(pool, name, NULL);
    bool due =
        shelf == NULL || next_number >= shelf->prune_from || (shelf->prune_at != 0 && lmcs_now_ns() >= shelf->prune_at);
    pthread_mutex_unlock(&pool->captures);
    return due;
}

/* `number`: the next number from which, `at_ns`: the time from which the shelf is examined again. */
static void set_not_before(struct lmcs_pool *pool, const char *name, uint64_t number, uint64_t at_ns)
{
    pthread_mutex_lock(&pool->captures);
    struct lmcs_busy_shelf *shelf = lmcs_busy_find(pool, name, NULL);
    if (shelf != NULL) {
        shelf->prune_from = number;
        shelf->prune_at = at_ns;
    }
    pthread_mutex_unlock(&pool->captures);
}

void lmcs_prune_soon(struct lmcs_pool *pool, const char *shelf)
{
    set_not_before(pool, shelf, 0, 0);
}

static bool is_due(struct lmcs_txn *txn, const struct lmcs_shelf *shelf, const struct lmcs_policy *policy,
                   const struct request *request)
{
    if (request->is_asked_for)
        return true;
    if (policy->rule_count == 0)
        return false;
    if (request->when == LMCS_PRUNE_BUDGETS)
        return lmcs_over_budget(txn, policy, request->other_bytes);
    bool has_budget = policy->budget_bytes > 0 || policy->budget_percent > 0;
    return request->when == LMCS_PRUNE_ALL || (!has_budget && is_time(txn->pool, shelf->name, shelf->df.next_number));
}

static void note_shelf(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct facts *facts)
{
    facts->annotated = txn->root.annotated;
    facts->next_number = shelf->df.next_number;
    facts->latest = shelf->df.latest;
    facts->record_count = lmcs_shelf_tree(shelf, LMCS_TREE_NUMBERS)->count;
    memcpy(facts->shelf_policy, shelf->policy, sizeof facts->shelf_policy);
}

/* Keeps the snapshots whose contents captures in flight may share. */
static void keep_bases(struct facts *facts)
{
    for (size_t i = 0; i < facts->of.count; i++)
        for (size_t k = 0; k < facts->bases.count; k++)
            if (facts->of.list[i].number == facts->bases.numbers[k] && facts->of.kept[i] == NULL)
                facts->of.kept[i] = "the base of a capture in progress";
}

/* Keeps the parts of groups, which only their coordinator removes (CAPTURES.md). */
static void keep_parts(struct facts *facts)
{
    for (size_t i = 0; i < facts->of.count; i++)
        if (facts->of.list[i].is_part && facts->of.kept[i] == NULL)
            facts->of.kept[i] = "part of a group";
}

static enum lmcs_status decide(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct request *request,
                               struct facts *facts, struct lmcs_error *error)
{
    lmcs_shelf_policy(shelf, &facts->of.policy);
    facts->shelf_id = shelf->df.id;
    note_shelf(txn, shelf, facts);
    enum lmcs_status status = lmcs_policy_parse(request->words, &facts->of.policy, error);
    facts->grace_end = lmcs_policy_grace_end(&facts->of.policy, lmcs_now_ns());
    bool must_wait = facts->grace_end != 0 && !request->is_asked_for && request->when != LMCS_PRUNE_ALL;
    if (must_wait)
        lmcs_policy_add_was(&facts->of.policy);
    if (status == LMCS_OK && is_due(txn, shelf, &facts->of.policy, request))
        status = lmcs_facts_gather(txn, shelf, &facts->of, error);
    if (status == LMCS_OK) {
        keep_bases(facts);
        if (!request->is_asked_for)
            keep_parts(facts);
        facts->wanted = how_many(facts, request);
    }
    return status;
}

/* Whether the facts still hold, except for tags. Only annotations change a snapshot's record. */
static bool is_as_it_was(const struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct facts *facts)
{
    return txn->root.annotated == facts->annotated && shelf->df.latest == facts->latest &&
           lmcs_shelf_tree(shelf, LMCS_TREE_NUMBERS)->count == facts->record_count &&
           strcmp(shelf->policy, facts->shelf_policy) == 0;
}

/* A snapshot from `at` on that is now kept stays. */
static enum lmcs_status decide_again(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct request *request,
                                     size_t at, struct facts *facts, struct lmcs_error *error)
{
    struct facts now = {.bases = facts->bases};
    enum lmcs_status status = decide(txn, shelf, request, &now, error);
    for (size_t i = at, k = 0; status == LMCS_OK && i < facts->of.count; i++) {
        while (k < now.of.count && now.of.list[k].number < facts->of.list[i].number)
            k++;
        bool goes = k < now.of.count && now.of.list[k].number == facts->of.list[i].number && now.of.kept[k] == NULL;
        if (facts->of.kept[i] == NULL && !goes)
            facts->of.kept[i] = since;
    }
    if (status == LMCS_OK) {
        note_shelf(txn, shelf, facts);
        facts->wanted = now.wanted < facts->wanted ? now.wanted : facts->wanted;
        facts->has_changed = true;
    }
    free_facts(&now);
    return status;
}

/* ---- Removal ---- */

/* Removes the next snapshots from *at on, at most `most`. *gone counts them; `numbers` (may be NULL) gets them. */
static enum lmcs_status remove_some(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct facts *facts, size_t *at,
                                    size_t most, size_t *gone, uint64_t *numbers, struct lmcs_removal *removal,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    most = most < facts->wanted ? most : facts->wanted;
    for (; status == LMCS_OK && *at < facts->of.count && *gone < most; ++*at) {
        bool tagged = false;
        if (facts->of.kept[*at] != NULL)
            continue;
        status = lmcs_record_is_tagged(txn, shelf, facts->of.list[*at].number, &tagged, error);
        if (tagged)
            facts->of.kept[*at] = since;
        else if (status == LMCS_OK)
            status = lmcs_shelf_remove(txn, shelf, facts->of.list[*at].number, removal, error);
        if (status != LMCS_OK || tagged)
            continue;
        if (numbers != NULL)
            numbers[*gone] = facts->of.list[*at].number;
        ++*gone;
    }
    return status;
}

/* Adds to the shelf's record, unless a newer version wrote it. */
static enum lmcs_status note_removed(struct lmcs_shelf *shelf, const struct facts *facts, const uint64_t *numbers,
                                     size_t count, struct lmcs_error *error)
{
    struct lmcs_policy policy;
    char rules[LMCS_MAX_POLICY + 1];
    lmcs_policy_init(&policy);
    if (count == 0 || lmcs_policy_format_rules(&facts->of.policy, rules, NULL) != LMCS_OK ||
        lmcs_policy_parse_stored(shelf->policy, &policy, NULL) != LMCS_OK)
        return LMCS_OK;
    policy.keep_raw = shelf->df.keep_raw;
    lmcs_policy_log_add(&policy, rules, numbers, count, lmcs_now_ns());
    return lmcs_policy_format_stored(&policy, shelf->policy, error);
}

/* Removes a batch in a transaction of its own, which a dry run drops. */
static enum lmcs_status remove_batch(struct lmcs_pool *pool, const struct request *request, struct facts *facts,
                                     size_t *at, size_t most, bool dry_run, struct lmcs_prune_report *report,
                                     struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_removal counted = report->removal;
    uint64_t numbers[BATCH_SNAPSHOTS];
    size_t gone = 0;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load(&txn, facts->shelf_id, &shelf, error);
    if (status == LMCS_OK && !is_as_it_was(&txn, &shelf, facts))
        status = decide_again(&txn, &shelf, request, *at, facts, error);
    if (status == LMCS_OK)
        status = remove_some(&txn, &shelf, facts, at, most, &gone, dry_run ? NULL : numbers, &counted, error);
    if (status == LMCS_OK && !dry_run)
        status = note_removed(&shelf, facts, numbers, gone, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_save(&txn, &shelf, error);
    if (status == LMCS_OK && gone > 0 && !dry_run)
        status = lmcs_txn_commit(&txn, error);
    else
        lmcs_txn_end(&txn);
    if (status == LMCS_OK) {
        report->removal = counted;
        report->removed += gone;
        facts->wanted -= gone;
        facts->record_count -= gone;
        memcpy(facts->shelf_policy, shelf.policy, sizeof facts->shelf_policy);
    }
    return status;
}

static enum lmcs_status remove_all(struct lmcs_pool *pool, const struct request *request, struct facts *facts,
                                   const struct lmcs_progress *progress, struct lmcs_prune_report *report,
                                   struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t at = 0; status == LMCS_OK && facts->wanted > 0 && at < facts->of.count;) {
        if (progress != NULL && progress->call != NULL &&
            !progress->call(progress->context, "pruning", report->removed, report->removed + facts->wanted))
            return lmcs_fail(error, LMCS_CANCELLED, 0, "%s: pruning was stopped; what is removed stays removed",
                             pool->path);
        status = remove_batch(pool, request, facts, &at, BATCH_SNAPSHOTS, false, report, error);
    }
    return status;
}

/* ---- On request ---- */

/* Finds the snapshots that the background keeps until the end of the grace period. */
static enum lmcs_status note_grace(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct facts *facts,
                                   struct lmcs_error *error)
{
    struct lmcs_facts now = {.policy = facts->of.policy};
    lmcs_policy_add_was(&now.policy);
    enum lmcs_status status = lmcs_facts_gather(txn, shelf, &now, error);
    if (status == LMCS_OK) {
        facts->kept_now = now.kept;
        now.kept = NULL;
    }
    lmcs_facts_free(&now);
    return status;
}

static enum lmcs_status decide_by_name(struct lmcs_pool *pool, const char *name, const struct request *request,
                                       struct facts *facts, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    enum lmcs_status status = lmcs_annotated_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_get(&txn, name, &shelf, error);
    if (status == LMCS_OK)
        status = decide(&txn, &shelf, request, facts, error);
    bool is_own = request->words == NULL || request->words[strspn(request->words, " ")] == '\0';
    if (status == LMCS_OK && is_own && facts->grace_end != 0)
        status = note_grace(&txn, &shelf, facts, error);
    lmcs_txn_end(&txn);
    return status;
}

/* Visits all snapshots, or (`again`) those that stay after they were to go. */
static bool show(const struct facts *facts, bool again,
                 bool (*visit)(void *context, const struct lmcs_pruned *snapshot), void *context)
{
    for (size_t i = 0; visit != NULL && i < facts->of.count; i++) {
        bool waits = facts->kept_now != NULL && facts->kept_now[i] != NULL && facts->of.kept[i] == NULL;
        struct lmcs_pruned snapshot = {facts->of.list[i].number, facts->of.list[i].step, facts->of.kept[i],
                                       waits ? facts->grace_end : 0};
        if ((!again || facts->of.kept[i] == since) && !visit(context, &snapshot))
            return false;
    }
    return true;
}

enum lmcs_status lmcs_prune(struct lmcs_pool *pool, const char *shelf, const char *words, bool dry_run,
                            bool (*visit)(void *context, const struct lmcs_pruned *snapshot), void *context,
                            const struct lmcs_progress *progress, struct lmcs_prune_report *report,
                            struct lmcs_error *error)
{
    struct lmcs_busy_shelf *busy = NULL;
    struct lmcs_prune_report counted = {0};
    const struct request request = {.is_asked_for = true, .words = words};
    struct facts facts = {.of.names_metrics = report != NULL};
    int guard = -1;
    const char *name = shelf == NULL ? "" : shelf;
    enum lmcs_status status = lmcs_pool_check(pool, !dry_run, error);
    if (status == LMCS_OK && pool->writable)
        status = lmcs_shelf_take(pool, name, &busy, error);
    if (status == LMCS_OK && !dry_run)
        status = lmcs_ring_begin_pruning(pool, &guard, error);
    if (status == LMCS_OK)
        status = decide_by_name(pool, name, &request, &facts, error);
    if (status == LMCS_OK && report != NULL)
        lmcs_facts_warn(&facts.of, counted.warning);
    if (status == LMCS_OK && show(&facts, false, visit, context)) {
        size_t at = 0;
        if (!dry_run)
            status = remove_all(pool, &request, &facts, progress, &counted, error);
        else if (pool->writable && facts.wanted > 0)
            status = remove_batch(pool, &request, &facts, &at, facts.of.count, true, &counted, error);
        else /* a reader cannot compute the space */
            counted.removed = facts.wanted;
        counted.kept = count_kept(&facts);
        if (status == LMCS_OK)
            show(&facts, true, visit, context);
    }
    lmcs_ring_end_pruning(guard);
    free_facts(&facts);
    if (busy != NULL)
        lmcs_shelf_give(pool, busy);
    if (report != NULL)
        *report = counted;
    if (counted.removed > 0 && !dry_run)
        lmcs_pool_wake(pool);
    return status;
}

enum lmcs_status lmcs_prune_log(struct lmcs_pool *pool, const char *shelf,
                                bool (*visit)(void *context, const struct lmcs_prune_event *event), void *context,
                                struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf loaded;
    struct lmcs_policy policy;
    struct lmcs_prune_event event;
    enum lmcs_status status = lmcs_shelf_read(pool, shelf, &txn, &loaded, error);
    if (status != LMCS_OK)
        return status;
    lmcs_txn_end(&txn);
    lmcs_shelf_policy(&loaded, &policy);
    for (const char *at = policy.log; lmcs_policy_log_next(&at, &event) && visit(context, &event);)
        ;
    return LMCS_OK;
}

/* ---- By itself ---- */

static enum lmcs_status decide_by_id(struct lmcs_pool *pool, uint64_t id, const struct request *request,
                                     struct facts *facts, char name[LMCS_MAX_NAME + 1], struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    bool found;
    name[0] = '\0';
    enum lmcs_status status = lmcs_annotated_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&txn, id, &shelf, &found, error);
    if (status == LMCS_OK && found && (shelf.df.flags & LMCS_SHELF_STAGING) == 0) {
        memcpy(name, shelf.name, sizeof shelf.name);
        status = decide(&txn, &shelf, request, facts, error);
    }
    lmcs_txn_end(&txn);
    return status;
}

/* A policy was changed while the clock was ahead. */
static enum lmcs_status renew_grace(struct lmcs_pool *pool, uint64_t id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_policy policy;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    lmcs_policy_init(&policy);
    status = lmcs_shelf_load(&txn, id, &shelf, error);
    if (status != LMCS_OK || lmcs_policy_parse_stored(shelf.policy, &policy, NULL) != LMCS_OK ||
        !lmcs_policy_renew_grace(&policy, lmcs_now_ns())) {
        lmcs_txn_end(&txn);
        return status;
    }
    policy.keep_raw = shelf.df.keep_raw;
    status = lmcs_policy_format_stored(&policy, shelf.policy, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_save(&txn, &shelf, error);
    lmcs_prune_soon(pool, shelf.name);
    return lmcs_txn_finish(&txn, status, error);
}

static enum lmcs_status prune_shelf(struct lmcs_pool *pool, uint64_t id, const struct request *request,
                                    const char *held, uint64_t *removed, struct lmcs_error *error)
{
    char name[LMCS_MAX_NAME + 1], now[LMCS_MAX_NAME + 1] = "";
    struct lmcs_prune_report report = {0};
    struct lmcs_busy_shelf *busy = NULL;
    struct facts facts = {0};
    int guard = -1;
    enum lmcs_status status = decide_by_id(pool, id, request, &facts, name, error);
    if (status == LMCS_OK && request->when != LMCS_PRUNE_ALL && facts.grace_end != 0 &&
        lmcs_policy_renew_grace(&facts.of.policy, lmcs_now_ns())) {
        free_facts(&facts);
        facts = (struct facts){0};
        status = renew_grace(pool, id, error);
        if (status == LMCS_OK)
            status = decide_by_id(pool, id, request, &facts, name, error);
    }
    bool mine = held != NULL && strcmp(held, name) == 0, is_held = true;
    size_t wanted = facts.wanted;
    if (status == LMCS_OK && wanted > 0 && (mine || lmcs_shelf_try(pool, name, &busy))) {
        /* Again, as the owner of the shelf. */
        free_facts(&facts);
        facts = (struct facts){0};
        lmcs_busy_bases(pool, name, &facts.bases);
        status = lmcs_ring_begin_pruning(pool, &guard, error);
        if (status == LMCS_OK)
            status = decide_by_id(pool, id, request, &facts, now, error);
        wanted = facts.wanted;
        is_held = strcmp(name, now) == 0; /* else it was renamed in between */
        if (status == LMCS_OK && is_held)
            status = remove_all(pool, request, &facts, NULL, &report, error);
        lmcs_ring_end_pruning(guard);
    }
    bool is_done = is_held && !facts.has_changed && (wanted == 0 || report.removed > 0);
    if (status == LMCS_OK && facts.of.kept != NULL && is_done)
        set_not_before(pool, name, facts.next_number + count_kept(&facts) / 64, facts.grace_end);
    free_facts(&facts);
    if (busy != NULL)
        lmcs_shelf_give(pool, busy);
    *removed += report.removed;
    return status;
}

enum lmcs_status lmcs_prune_pool(struct lmcs_pool *pool, enum lmcs_prune_when when, const char *held, uint64_t *removed,
                                 struct lmcs_error *error)
{
    struct lmcs_passed passed = {.any = false};
    const struct request request = {.when = when};
    uint64_t id = 0;
    enum lmcs_status status = lmcs_shelf_next(pool, &id, error);
    *removed = 0;
    while (status == LMCS_OK && id != 0) {
        status = prune_shelf(pool, id, &request, held, removed, error);
        status = lmcs_shelf_pass_over(pool, id, &passed, status, error);
        if (status == LMCS_OK)
            status = lmcs_shelf_next(pool, &id, error);
    }
    return lmcs_passed_over(&passed, status, error);
}

enum lmcs_status lmcs_prune_budget(struct lmcs_pool *pool, const char *shelf, uint64_t other_bytes, uint64_t *removed,
                                   struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf found;
    const struct request request = {.when = LMCS_PRUNE_BUDGETS, .other_bytes = other_bytes};
    uint64_t count = 0;
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_read(pool, shelf, &txn, &found, error);
    if (status != LMCS_OK)
        return status;
    lmcs_txn_end(&txn);
    status = prune_shelf(pool, found.df.id, &request, NULL, &count, error);
    if (removed != NULL)
        *removed = count;
    if (count > 0)
        lmcs_pool_wake(pool);
    return status;
}
