/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/encode.c - encodes the contents of one snapshot of each shelf: the oldest after the watermark (`compacted`)
 * that is not among the newest `keep_raw`; of a finished run, any.
 *
 * First links are made from it to the next snapshot. Then each content whose run ends with it becomes a delta against a
 * newer raw content, a keyframe, or is stored by its link (plan.c). Last, the watermark moves.
 */
#include "base/grow.h"
#include "compact/links.h"
#include "compact/round.h"
#include "pages/tree.h"
#include "records/lines.h"
#include "records/manifest.h"
#include "shelves/shelves.h"

/* Later contents of a name, nearest first. */
struct successors {
    uint32_t count;
    uint64_t ids[LMCS_DELTA_MOST_JUMP];
};

/* Adds the content of the name in a newer snapshot, if it differs. *more false: the snapshot lacks the name. */
static enum lmcs_status add_successor(struct lmcs_round *round, size_t newer, uint64_t identity, uint64_t content,
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

static enum lmcs_status find_successors(struct lmcs_round *round, uint64_t identity, uint64_t content, uint32_t wanted,
                                        struct successors *successors, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    bool more = true;
    for (size_t i = 0; status == LMCS_OK && more && successors->count < wanted && i < round->outlook.newer_count; i++)
        status = add_successor(round, i, identity, content, successors, &more, error);
    return status;
}

/* Whether `id` can be the base of `content`: it must not rest on it. *depth: deltas to undo for `id`. */
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

/* Fills the facts for the plan, and removes successors that cannot be a base. */
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

static enum lmcs_status add_link(struct lmcs_round *round, uint64_t link, struct lmcs_error *error)
{
    if (link == 0)
        return LMCS_OK;
    if (!lmcs_grow(&round->links, &round->link_capacity, round->link_count, sizeof *round->links))
        return lmcs_fail_memory(error);
    round->links[round->link_count++] = link;
    return LMCS_OK;
}

/* Adds a raw array that its link stores, or that becomes a keyframe, at the beginning of a line. */
static enum lmcs_status add_array(struct lmcs_round *round, const struct lmcs_content *content,
                                  struct lmcs_error *error)
{
    const struct lmcs_candidate candidate = {.content = content->id, .chain = round->outlook.chain};
    uint64_t above;
    enum lmcs_status status = lmcs_link_on(round->txn, content->id, &above, error);
    if (status == LMCS_OK)
        status = add_link(round, above, error);
    if (status == LMCS_OK)
        status = add_link(round, content->link, error);
    return status == LMCS_OK ? lmcs_round_add(round, &candidate, error) : status;
}

/* Adds a candidate if the content's run ends with the snapshot. `context`: a round. */
static enum lmcs_status consider(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                 uint64_t successor, struct lmcs_error *error)
{
    struct lmcs_round *round = context;
    const struct lmcs_outlook *outlook = &round->outlook;
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
    if (bears || (content.df.payload == LMCS_PAYLOAD_RAW && content.link != 0))
        return add_array(round, &content, error);
    uint32_t wanted = outlook->pattern.jumps[content.df.place % outlook->pattern.length];
    if (successor != 0)
        status = find_successors(round, identity, content.id, wanted, &successors, error);
    if (status == LMCS_OK)
        status = gather_facts(round->txn, &content, &successors, &facts, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_plan plan = lmcs_plan_content(&facts, &outlook->pattern, outlook->chain);
    struct lmcs_candidate candidate = {.content = content.id,
                                       .base = plan.action == LMCS_PLAN_DELTA ? successors.ids[plan.jump - 1] : 0,
                                       .successor = successor != content.id ? successor : 0,
                                       .place = plan.next_place,
                                       .chain = outlook->chain};
    return plan.action == LMCS_PLAN_KEEP ? LMCS_OK : lmcs_round_add(round, &candidate, error);
}

/* Under pressure all but the newest snapshot are encoded, at full speed; of a finished run, all. */
static void apply_policy(struct lmcs_round *round, const struct lmcs_shelf *shelf)
{
    struct lmcs_outlook *outlook = &round->outlook;
    lmcs_shelf_policy(shelf, &outlook->policy);
    const struct lmcs_policy policy = outlook->policy;
    bool pressed = round->urgent || lmcs_over_budget(round->txn, &policy, 0);
    outlook->chain = policy.chain;
    outlook->links = lmcs_policy_links(&policy);
    bool finished = round->finished == shelf->df.id || round->finished == LMCS_EVERY_SHELF;
    outlook->keep_raw = finished ? 0 : pressed ? 1 : policy.keep_raw;
    outlook->jump = pressed && !finished ? 1 : policy.keep_raw;
    outlook->jump = outlook->jump < LMCS_DELTA_MOST_JUMP ? outlook->jump : LMCS_DELTA_MOST_JUMP;
    outlook->rate_bytes = round->background && !pressed ? policy.rate_bytes : 0;
}

/* Finds the snapshot to encode: the first after the watermark, unless it is to stay raw. *number 0: none. */
static enum lmcs_status next_snapshot(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint32_t keep_raw,
                                      uint64_t *number, struct lmcs_error *error)
{
    uint64_t oldest_raw = UINT64_MAX;
    enum lmcs_status status = lmcs_record_after(txn, shelf, shelf->df.compacted, number, error);
    for (uint32_t i = 0; status == LMCS_OK && *number != 0 && i < keep_raw && oldest_raw != 0; i++)
        status = lmcs_record_before(txn, shelf, oldest_raw, &oldest_raw, error);
    if (*number >= oldest_raw || oldest_raw == 0 || (keep_raw == 0 && *number > shelf->df.latest)) /* prepared */
        *number = 0;
    return status;
}

/* Loads the records of the following snapshots, whose contents can be bases. */
static enum lmcs_status look_ahead(struct lmcs_round *round, struct lmcs_shelf *shelf,
                                   const struct lmcs_snapshot_df *of, struct lmcs_error *error)
{
    struct lmcs_outlook *outlook = &round->outlook;
    enum lmcs_status status = LMCS_OK;
    bool found = true;
    outlook->newer_count = 0;
    lmcs_plan_pattern(outlook->chain, outlook->jump, &outlook->pattern);
    while (status == LMCS_OK && outlook->newer_count < outlook->jump) {
        struct lmcs_record newer;
        status = lmcs_record_neighbour(round->txn, shelf, of, true, &newer, &found, error);
        if (status != LMCS_OK || !found)
            break;
        outlook->newer[outlook->newer_count] = newer.df;
        of = &outlook->newer[outlook->newer_count++];
    }
    return status;
}

static enum lmcs_status collect_snapshot(struct lmcs_round *round, uint64_t shelf_id, uint64_t *number,
                                         struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found;
    enum lmcs_status status = lmcs_shelf_load_if(round->txn, shelf_id, &shelf, &found, error);
    *number = 0;
    /* a restore may have dropped the shelf */
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

static enum lmcs_status move_watermark(struct lmcs_round *round, uint64_t shelf_id, uint64_t number,
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
        found = next == 0 || next >= number; /* else a restore added an earlier one: the watermark stays */
    } else if (status == LMCS_OK && found) { /* without this failure, the snapshot would be encoded for ever */
        status = lmcs_fail(error, LMCS_DAMAGED, 0,
                           "%s: damaged metadata: snapshot %llu of shelf \"%s\" was compacted before",
                           round->pool->path, (unsigned long long)number, shelf.name);
    }
    if (status == LMCS_OK && found) {
        shelf.df.compacted = number;
        status = lmcs_shelf_save(&txn, &shelf, error);
    }
    return lmcs_txn_finish(&txn, status, error);
}

static bool links_may_go_on(void *context, uint64_t bytes)
{
    struct lmcs_round *round = context;
    struct lmcs_error ignored;
    if (round->background)
        lmcs_round_hold(round, bytes);
    return lmcs_round_go_on(round, 0, 1, &ignored) == LMCS_OK;
}

static enum lmcs_status link_shelf(struct lmcs_round *round, uint64_t shelf_id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_links_turn turn = {.pool = round->pool,
                                   .shelf = shelf_id,
                                   .serial = round->background,
                                   .go_on = links_may_go_on,
                                   .suspect = lmcs_round_suspect,
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

static enum lmcs_status encode_shelf(struct lmcs_round *round, uint64_t shelf_id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    uint64_t number = 0;
    round->count = round->link_count = 0;
    enum lmcs_status linked = lmcs_round_pass_over_shelf(round, shelf_id, link_shelf(round, shelf_id, error), error);
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
    const struct lmcs_parity_turn turn = {.go_on = links_may_go_on,
                                          .suspect = lmcs_round_suspect,
                                          .context = round,
                                          .wait = round->background ? &round->compactor->parity : NULL};
    if (!round->urgent)
        status = lmcs_unless_full(
            lmcs_parity_before(round->pool, &turn, &round->outlook.policy, round->links, round->link_count, error));
    if (status == LMCS_OK)
        status = lmcs_round_encode(round, error);
    if (status == LMCS_OK)
        status = move_watermark(round, shelf_id, number, error);
    round->worked |= status == LMCS_OK;
    return lmcs_unless_full(status);
}

enum lmcs_status lmcs_round_encode_shelves(struct lmcs_round *round, struct lmcs_error *error)
{
    uint64_t id = 0;
    enum lmcs_status status = lmcs_shelf_next(round->pool, &id, error);
    while (status == LMCS_OK && id != 0) {
        status = lmcs_round_pass_over_shelf(round, id, encode_shelf(round, id, error), error);
        if (status == LMCS_OK)
            status = lmcs_shelf_next(round->pool, &id, error);
    }
    return status;
}
