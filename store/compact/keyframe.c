/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/keyframe.c - puts keyframes into the lines behind the newest snapshots of shelves.
 *
 * Captures make these lines one link longer with each step. A parameter of which the line is due is decoded once, and
 * all its arrays get payloads of their own in one transaction: later links begin there. The link that led to them is
 * freed if nothing else needs it. The longest lines come first.
 *
 * A finished run, of which the watermark has reached the newest snapshot, is left as it is: its links were asked for.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "base/grow.h"
#include "base/map.h"
#include "compact/round.h"
#include "payload/speed.h"
#include "records/lines.h"
#include "records/manifest.h"

#define BATCH_BYTES ((uint64_t)8 << 20)  /* decoded: a capture's sync also waits for these */
#define TURN_BYTES  ((uint64_t)64 << 20) /* decoded, before the round plans anew and looks for other work */

/* The line to one parameter's arrays in the newest snapshot. */
struct line {
    uint64_t link;
    uint64_t before; /* bytes of the contents before it in the manifest */
    size_t links;
};

struct plan {
    struct lmcs_round *round;
    struct lmcs_map seen; /* links */
    struct line *lines;
    size_t count, capacity;
    uint64_t bytes; /* of all contents */
    uint32_t bound;
};

/* ---- Which lines ---- */

/*
 * The turns of parameters are spread over the steps of a period, by their place among the snapshot's bytes. So each
 * step has as much work, and a parameter keeps its turn when others were cut. A line is due in its turn, unless that
 * was before it began; and in any case when it is nearly as long as the bound. A step in sixteen, and one more, are
 * left for the work.
 */
static bool is_due(const struct plan *plan, uint64_t number, const struct line *line)
{
    const uint64_t left = 1 + plan->bound / 16, period = plan->bound > left ? plan->bound - left : 1;
    const uint64_t turn = line->before / (plan->bytes / period + 1);
    return line->links + left >= plan->bound || (number + period - turn) % period < line->links;
}

/* Keeps the lines that are due, and in which nothing is lost. */
static enum lmcs_status keep_due(struct plan *plan, uint64_t number, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    size_t count = 0;
    for (size_t i = 0; status == LMCS_OK && i < plan->count; i++) {
        const struct line line = plan->lines[i];
        struct lmcs_chain chain;
        bool lost = false;
        if (!is_due(plan, number, &line))
            continue;
        status = lmcs_chain_load(plan->round->txn, line.link, &chain, error);
        if (status == LMCS_OK)
            status = lmcs_chain_lost(plan->round->txn, &chain, &lost, error);
        if (status == LMCS_OK && !lost)
            plan->lines[count++] = line;
        status = lmcs_round_pass_over(plan->round, status, error);
    }
    plan->count = count;
    return status;
}

/* Adds the line to the link. */
static enum lmcs_status add_line(struct plan *plan, const struct lmcs_content *content, struct lmcs_error *error)
{
    struct lmcs_chain chain;
    enum lmcs_status status = lmcs_chain_load(plan->round->txn, content->link, &chain, error);
    if (status != LMCS_OK)
        return status;
    if (!lmcs_grow(&plan->lines, &plan->capacity, plan->count, sizeof *plan->lines))
        return lmcs_fail_memory(error);
    plan->lines[plan->count++] = (struct line){content->link, plan->bytes, chain.line};
    return LMCS_OK;
}

static enum lmcs_status consider(void *context, uint64_t identity, const struct lmcs_manifest_df *entry, bool *stop,
                                 struct lmcs_error *error)
{
    struct plan *plan = context;
    struct lmcs_content content;
    (void)identity;
    *stop = false;
    enum lmcs_status status = lmcs_content_get(plan->round->txn, entry->content, &content, error);
    if (status == LMCS_OK && content.df.payload == LMCS_PAYLOAD_LINKED &&
        lmcs_map_get(&plan->seen, content.link) == 0) {
        if (!lmcs_map_put(&plan->seen, content.link, 1))
            return lmcs_fail_memory(error);
        status = add_line(plan, &content, error);
    }
    if (status == LMCS_OK)
        plan->bytes += content.df.raw_bytes;
    return lmcs_round_pass_over(plan->round, status, error);
}

static int longest_first(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    return (x->links < y->links) - (x->links > y->links);
}

/* Lists the lines to cut behind the newest snapshot, of this number; 0: none. */
static enum lmcs_status make_plan(struct plan *plan, uint64_t shelf_id, uint64_t *number, struct lmcs_error *error)
{
    struct lmcs_round *round = plan->round;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found;
    enum lmcs_status status = lmcs_shelf_load_if(round->txn, shelf_id, &shelf, &found, error);
    *number = 0;
    if (status != LMCS_OK || !found || (shelf.df.flags & LMCS_SHELF_STAGING) != 0 ||
        shelf.df.latest <= shelf.df.compacted)
        return status;
    lmcs_round_apply_policy(round, &shelf);
    const struct lmcs_policy *policy = &round->outlook.policy;
    plan->bound = lmcs_policy_line_bound(policy, lmcs_links_within(round->pool, policy->restore_seconds));
    const struct lmcs_seen_shelf *seen = &round->compactor->seen[shelf_id % LMCS_SHELVES_SEEN];
    if (seen->shelf == shelf_id && seen->number == shelf.df.latest && seen->bound == plan->bound)
        return LMCS_OK;
    status = lmcs_record_get(round->txn, &shelf, shelf.df.latest, &record, &found, error);
    if (status != LMCS_OK || !found)
        return status;
    *number = shelf.df.latest;
    status = lmcs_manifest_each(round->txn, &record.df, consider, plan, error);
    if (status == LMCS_OK)
        status = keep_due(plan, *number, error);
    if (plan->count > 0)
        qsort(plan->lines, plan->count, sizeof *plan->lines, longest_first);
    return status;
}

/* ---- Cutting ---- */

/* One parameter's arrays after a step, decoded. */
struct cut {
    struct lmcs_chain chain; /* of the link; pinned */
    struct lmcs_content arrays[LMC_MAX_BASES];
    struct lmcs_identity identities[LMC_MAX_BASES];
    size_t count; /* 0: nothing is to be done */
    char *map;
    size_t map_bytes;
};

static enum lmcs_status load_cut(struct cut *cut, struct lmcs_pool *pool, uint64_t link, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_link_outputs(&txn, link, cut->arrays, &cut->count, error);
    for (size_t i = 0; status == LMCS_OK && i < cut->count; i++) {
        if (cut->arrays[i].df.payload != LMCS_PAYLOAD_LINKED) /* the run is being finished */
            cut->count = 0;
        else
            status = lmcs_identity_get(&txn, cut->arrays[i].df.identity, &cut->identities[i], error);
    }
    if (status == LMCS_OK && cut->count > 0)
        status = lmcs_chain_load(&txn, link, &cut->chain, error);
    if (status == LMCS_OK && cut->count > 0)
        status = lmcs_chain_pin(pool, &cut->chain, error);
    cut->count = status == LMCS_OK ? cut->count : 0;
    lmcs_txn_end(&txn);
    return status;
}

/* A content's decoded bytes. A link may store two contents as the same array. */
static char *at(const struct cut *cut, size_t i)
{
    return cut->map + cut->arrays[i].df.output * cut->arrays[i].df.raw_bytes;
}

static enum lmcs_status decode(struct cut *cut, struct lmcs_round *round, struct lmcs_error *error)
{
    const struct lmcs_content *contents[LMC_MAX_BASES] = {NULL};
    void *buffers[LMC_MAX_BASES] = {NULL};
    const uint64_t bytes = cut->arrays[0].df.raw_bytes;
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&cut->identities[0]);
    cut->map_bytes = bytes * LMC_MAX_BASES;
    cut->map = mmap(NULL, cut->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cut->map == MAP_FAILED) {
        cut->map = NULL;
        return lmcs_fail_map(error, cut->map_bytes, "can't map %zu bytes", cut->map_bytes);
    }
    for (size_t i = 0; i < cut->count; i++) {
        contents[cut->arrays[i].df.output] = &cut->arrays[i];
        buffers[cut->arrays[i].df.output] = at(cut, i);
    }
    cut->chain.serial = round->background;
    return lmcs_chain_read_arrays(round->pool, &cut->chain, &tensor, contents, buffers, error);
}

static enum lmcs_status encode(const struct cut *cut, struct lmcs_round *round, struct lmcs_batch *batch,
                               struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < cut->count; i++) {
        struct lmcs_replace *replace = malloc(sizeof *replace);
        if (replace == NULL)
            return lmcs_fail_memory(error);
        lmcs_replace_begin_linked(replace, round->pool, &batch->region, &cut->arrays[i], &cut->identities[i],
                                  round->background);
        batch->items[batch->count++] = replace;
        batch->bytes += cut->arrays[i].df.raw_bytes;
        status = lmcs_round_go_on(round, 0, 1, error);
        if (status == LMCS_OK)
            status = lmcs_replace_by(replace, at(cut, i), error);
    }
    return status;
}

static void drop_items(struct lmcs_batch *batch, size_t count)
{
    while (batch->count > count) {
        struct lmcs_replace *replace = batch->items[--batch->count];
        batch->bytes -= replace->chain.links[0].df.raw_bytes;
        lmcs_replace_end(replace);
        free(replace);
    }
}

/* Adds all arrays of a parameter to the batch, or none. */
static enum lmcs_status add_parameter(struct lmcs_round *round, struct lmcs_batch *batch, uint64_t link,
                                      struct lmcs_error *error)
{
    const size_t before = batch->count;
    struct cut *cut = calloc(1, sizeof *cut);
    if (cut == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = load_cut(cut, round->pool, link, error);
    if (status == LMCS_OK && cut->count > 0) {
        status = decode(cut, round, error);
        if (status == LMCS_OK)
            status = encode(cut, round, batch, error);
        lmcs_chain_unpin(round->pool, &cut->chain);
    }
    if (cut->map != NULL)
        munmap(cut->map, cut->map_bytes);
    free(cut);
    if (status != LMCS_OK)
        drop_items(batch, before);
    return lmcs_round_skips(round, link, status) ? LMCS_OK : status;
}

/* Cuts lines from *next on, up to a batch. */
static enum lmcs_status cut_some(const struct plan *plan, size_t *next, uint64_t *bytes, struct lmcs_error *error)
{
    struct lmcs_round *round = plan->round;
    struct lmcs_batch batch = {.count = 0};
    uint64_t written_ns = 0;
    const bool is_late = plan->lines[*next].links >= plan->bound;
    enum lmcs_status status = LMCS_OK;
    lmcs_region_init(&batch.region, round->pool, 1);
    while (status == LMCS_OK && *next < plan->count && batch.bytes < BATCH_BYTES &&
           batch.count + LMC_MAX_BASES <= LMCS_BATCH_CONTENTS) {
        const uint64_t had = batch.bytes;
        status = lmcs_round_go_on(round, *next, plan->count, error);
        if (status == LMCS_OK)
            status = add_parameter(round, &batch, plan->lines[*next].link, error);
        if (status == LMCS_OK && round->outlook.rate_bytes > 0) /* else without rests: lines have a bound */
            lmcs_round_hold(round, batch.bytes - had);
        *next += status == LMCS_OK;
    }
    *bytes += batch.bytes;
    if (batch.count > 0 && (status == LMCS_OK || status == LMCS_FULL || status == LMCS_CANCELLED)) {
        const uint64_t before = round->swapped;
        const uint64_t begin_ns = lmcs_steady_ns();
        const enum lmcs_status swapped = lmcs_batch_swap(round, &batch, false, error);
        written_ns = lmcs_steady_ns() - begin_ns;
        round->worked |= round->swapped > before;
        status = swapped != LMCS_OK ? swapped : status;
    }
    lmcs_batch_end(&batch);
    if (status == LMCS_OK && !is_late)
        lmcs_throttle_rest(&round->throttle, written_ns);
    return status;
}

static enum lmcs_status cut_shelf(struct lmcs_round *round, uint64_t shelf_id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct plan plan = {.round = round};
    uint64_t number, bytes = 0;
    size_t next = 0;
    enum lmcs_status status = lmcs_txn_read(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    round->txn = &txn;
    status = make_plan(&plan, shelf_id, &number, error);
    lmcs_txn_end(&txn);
    while (status == LMCS_OK && next < plan.count && bytes < TURN_BYTES)
        status = cut_some(&plan, &next, &bytes, error);
    if (status == LMCS_OK && number != 0 && next == plan.count)
        round->compactor->seen[shelf_id % LMCS_SHELVES_SEEN] = (struct lmcs_seen_shelf){shelf_id, number, plan.bound};
    lmcs_map_free(&plan.seen);
    free(plan.lines);
    return lmcs_unless_full(status);
}

enum lmcs_status lmcs_round_keyframes(struct lmcs_round *round, struct lmcs_error *error)
{
    uint64_t id = 0;
    enum lmcs_status status = lmcs_shelf_next(round->pool, &id, error);
    while (status == LMCS_OK && id != 0) {
        const bool finished = round->finished == id || round->finished == LMCS_EVERY_SHELF;
        if (!finished)
            status = lmcs_round_pass_over_shelf(round, id, cut_shelf(round, id, error), error);
        if (status == LMCS_OK)
            status = lmcs_shelf_next(round->pool, &id, error);
    }
    return status;
}
