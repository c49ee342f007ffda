/* SPDX-License-Identifier: BSD-3-Clause */
/* repair/scrub_pass.c - passes over all contents: whole, by samples, or in the background (store/REPAIR.md). */
#include "repair/scrubbing.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "pages/tree.h"
#include "payload/read.h"
#include "records/policy.h"
#include "records/shelf.h"
#include "repair/check.h"

#define AT_ONCE       256u
#define LEAST_CONTENT 4096u /* bytes that each content counts at least */
#define SAVE_NS       ((uint64_t)60 * 1000000000)

/* Lists the next contents; *count below AT_ONCE: the last ones. */
static enum lmcs_status list_contents(struct lmcs_pool *pool, uint64_t first, uint64_t ids[AT_ONCE], size_t *count,
                                      struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    *count = 0;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_open(&cursor, &txn, LMCS_TREE_CONTENTS, (struct lmcs_key_df){first, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && *count < AT_ONCE) {
        ids[(*count)++] = lmcs_cursor_key(cursor).high;
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return status;
}

struct pass {
    uint64_t next;
    uint64_t begun_ns;
    uint64_t bytes;
    uint64_t found;
    uint64_t repaired;
    bool ended;
};

static struct pass pass_of(const struct lmcs_root_df *root)
{
    struct pass pass = {root->scrub_next, root->scrub_begun_ns, root->scrub_bytes, 0, 0, false};
    if (pass.next != 0) {
        pass.found = root->scrub_found;
        pass.repaired = root->scrub_repaired;
    }
    return pass;
}

static enum lmcs_status save_pass(struct lmcs_pool *pool, const struct pass *pass, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    txn.root.scrub_next = pass->next;
    txn.root.scrub_begun_ns = pass->begun_ns;
    txn.root.scrub_bytes = pass->bytes;
    txn.root.scrub_found = pass->found;
    txn.root.scrub_repaired = pass->repaired;
    if (pass->ended)
        txn.root.scrub_done_ns = lmcs_now_ns();
    return lmcs_txn_commit(&txn, error);
}

/* Scrubs from the position of the pass on, until `most_bytes` are read. */
static enum lmcs_status scrub_from(struct lmcs_scrubbing *s, struct pass *pass, uint64_t most_bytes,
                                   struct lmcs_error *error)
{
    uint64_t ids[AT_ONCE], read_before = s->report.bytes_read;
    size_t count = AT_ONCE;
    enum lmcs_status status = LMCS_OK;
    pass->ended = false;
    for (bool wraps = false; status == LMCS_OK && count == AT_ONCE && !wraps;) {
        status = list_contents(s->pool, pass->next, ids, &count, error);
        for (size_t i = 0; status == LMCS_OK && i < count; i++) {
            if (s->report.bytes_read - read_before >= most_bytes) {
                pass->next = ids[i];
                return LMCS_OK;
            }
            status = lmcs_scrub_content(s, ids[i], error);
            if (status == LMCS_OK)
                pass->next = ids[i] + 1;
            wraps = ids[i] == UINT64_MAX;
        }
    }
    pass->ended = status == LMCS_OK;
    return status;
}

static void report_structure(void *context, const struct lmcs_damage *damage)
{
    lmcs_scrub_report_metadata(context, damage->is_unsupported ? LMCS_UNSUPPORTED : LMCS_DAMAGED, damage->what,
                               damage->shelf, damage->number);
}

static enum lmcs_status scrub_metadata(struct lmcs_scrubbing *s, struct lmcs_error *error)
{
    struct lmcs_structure structure;
    char what[96];
    enum lmcs_status status = s->sources != NULL
                                  ? lmcs_structure_repair(s->pool, report_structure, s, &structure, error)
                                  : lmcs_structure_check(s->pool, NULL, report_structure, s, &structure, error);
    snprintf(what, sizeof what, "%llu page%s of metadata %s damaged", ULL(structure.repaired_pages),
             structure.repaired_pages == 1 ? "" : "s", structure.repaired_pages == 1 ? "was" : "were");
    s->report.remote = structure.remote;
    if (structure.repaired_pages > 0) {
        struct lmcs_scrub_damage damage = {.state = LMCS_DAMAGE_REPAIRED, .what = what, .source = "the other replica"};
        s->report.damages++;
        s->report.repaired++;
        if (s->visit != NULL)
            s->visit(s->context, &damage);
    }
    lmcs_structure_free(&structure);
    return status;
}

static enum lmcs_status check_file(struct lmcs_scrubbing *s, struct lmcs_error *error)
{
    if (s->look == NULL || s->left > 0 || s->report.unsupported > 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_check_as_a_writer(s->pool, s->look, error);
    if (!lmcs_is_unusable(status))
        return status;
    char what[sizeof error->message];
    snprintf(what, sizeof what, "%s", error->message);
    lmcs_scrub_report_metadata(s, status, what, "", 0);
    return LMCS_OK;
}

enum lmcs_status lmcs_scrub_pass(struct lmcs_scrubbing *s, struct lmcs_error *error)
{
    const struct lmcs_scrub_options *options = s->options;
    struct lmcs_txn txn;
    struct lmcs_error ignored;
    bool whole = options->sample_bytes == 0 && !(options->sample_share > 0 && options->sample_share < 1);
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    struct pass pass = pass_of(&txn.root);
    uint64_t most = UINT64_MAX, contents = txn.root.next_content;
    s->report.bytes_total = txn.root.live_bytes;
    lmcs_txn_end(&txn);
    if (!whole)
        most = options->sample_bytes > 0 ? options->sample_bytes
                                         : (uint64_t)((double)s->report.bytes_total * options->sample_share) + 1;
    if (!whole && most < s->report.bytes_total)
        s->report.bytes_total = most;
    if (whole || pass.next == 0)
        pass = (struct pass){.begun_ns = lmcs_now_ns()};
    if (!whole && s->pool->heap == NULL && contents > 0) { /* a reader can't store a position: start anywhere */
        uint64_t now = lmcs_now_ns();
        pass = (struct pass){.next = lmc_hash64(&now, sizeof now, 0) % contents};
    }
    lmcs_scrub_show(s);
    if (whole)
        status = scrub_metadata(s, error);
    if (status == LMCS_OK && whole)
        status = check_file(s, error);
    if (status == LMCS_OK)
        status = scrub_from(s, &pass, most, error);
    if (status == LMCS_OK)
        lmcs_scrub_show(s);
    pass.bytes += s->report.bytes_read;
    pass.found += s->report.damages;
    pass.repaired += s->report.repaired;
    s->report.is_whole = pass.ended && (whole || s->pool->heap != NULL);
    if (pass.ended)
        pass.next = 0;
    if (s->pool->heap != NULL && (status == LMCS_OK || status == LMCS_CANCELLED)) {
        enum lmcs_status saved = save_pass(s->pool, &pass, status == LMCS_OK ? error : &ignored);
        status = status == LMCS_OK ? saved : status;
    }
    return status;
}

/* ---- In the background ---- */

/* Finds the shortest period of all policies (0: no scrubs) and the bytes of a pass. LMCS_DAMAGED: a policy is
 * unreadable; the others are used. */
static enum lmcs_status find_period(struct lmcs_pool *pool, uint64_t *seconds, uint64_t *pass_bytes,
                                    struct lmcs_error *error)
{
    struct lmcs_txn txn;
    uint64_t ids[64], first = 0;
    size_t got = 64;
    struct lmcs_passed passed = {.any = false};
    *seconds = 0;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    *pass_bytes = txn.root.live_bytes + (1 + txn.root.trees[LMCS_TREE_CONTENTS].count) * LEAST_CONTENT;
    while (status == LMCS_OK && got == 64) {
        status = lmcs_shelf_ids(&txn, first, ids, 64, &got, error);
        for (size_t i = 0; status == LMCS_OK && i < got; i++) {
            struct lmcs_shelf shelf;
            struct lmcs_policy policy = {.scrub_seconds = 0};
            status = lmcs_shelf_load(&txn, ids[i], &shelf, error);
            if (status == LMCS_OK)
                lmcs_shelf_policy(&shelf, &policy);
            if (policy.scrub_seconds > 0 && (*seconds == 0 || policy.scrub_seconds < *seconds))
                *seconds = policy.scrub_seconds;
            status = lmcs_pass_over(&passed, status, error);
        }
        first = got > 0 ? ids[got - 1] + 1 : 0;
    }
    lmcs_txn_end(&txn);
    return lmcs_passed_over(&passed, status, error);
}

static void load_turn(struct lmcs_pool *pool, struct lmcs_scrub_turn *turn, uint64_t now)
{
    pthread_rwlock_rdlock(&pool->meta);
    struct pass pass = pass_of(&pool->root);
    pthread_rwlock_unlock(&pool->meta);
    *turn = (struct lmcs_scrub_turn){.is_loaded = true,
                                     .next = pass.next,
                                     .begun_ns = pass.begun_ns,
                                     .bytes = pass.bytes,
                                     .found = pass.found,
                                     .repaired = pass.repaired,
                                     .at_ns = now,
                                     .saved_ns = now};
}

static enum lmcs_status save_turn(struct lmcs_pool *pool, struct lmcs_scrub_turn *turn, bool ended,
                                  struct lmcs_error *error)
{
    struct pass pass = {turn->next, turn->begun_ns, turn->bytes, turn->found, turn->repaired, ended};
    turn->saved_ns = lmcs_now_ns();
    return save_pass(pool, &pass, error);
}

enum lmcs_status lmcs_scrub_turn(struct lmcs_pool *pool, struct lmcs_scrub_turn *turn,
                                 bool (*go_on)(void *context, uint64_t bytes), void *context, struct lmcs_error *error)
{
    static const struct lmcs_scrub_options options = {.address_count = 0};
    uint64_t seconds, pass_bytes = 0, now = lmcs_now_ns();
    struct lmcs_passed passed = {.any = false};
    enum lmcs_status status = lmcs_pass_over(&passed, find_period(pool, &seconds, &pass_bytes, error), error);
    if (status != LMCS_OK || seconds == 0) {
        turn->is_loaded = false;
        return lmcs_passed_over(&passed, status, error);
    }
    if (!turn->is_loaded)
        load_turn(pool, turn, now);
    if (now < turn->at_ns) /* the clock was set back */
        turn->at_ns = now;
    turn->due_bytes += (double)pass_bytes / (double)seconds * ((double)(now - turn->at_ns) / 1e9);
    turn->at_ns = now;
    if (turn->due_bytes <= 0)
        return lmcs_passed_over(&passed, LMCS_OK, error);
    struct lmcs_scrubbing s = {.pool = pool,
                               .options = &options,
                               .serial = true,
                               .go_on = go_on,
                               .go_on_context = context,
                               .started_ns = lmcs_steady_ns()};
    struct pass pass = {.next = turn->next};
    uint64_t pieces = turn->next == 0; /* the pass itself counts, or an empty one would always be due */
    status = lmcs_sources_new(pool, 0, &s.sources, error);
    if (status == LMCS_OK && turn->next == 0) {
        turn->begun_ns = now;
        turn->bytes = turn->found = turn->repaired = 0;
        status = scrub_metadata(&s, error);
    }
    if (status == LMCS_OK)
        status = scrub_from(&s, &pass, (uint64_t)turn->due_bytes + 1, error);
    lmcs_sources_close(s.sources);
    pieces += s.report.contents;
    turn->due_bytes -= (double)(s.report.bytes_read + pieces * LEAST_CONTENT);
    turn->next = pass.ended ? 0 : pass.next;
    turn->bytes += s.report.bytes_read;
    turn->found += s.report.damages;
    turn->repaired += s.report.repaired;
    if (pass.ended && turn->due_bytes > 0)
        turn->due_bytes = 0;
    if (status == LMCS_OK && (pass.ended || s.report.damages > 0 || now - turn->saved_ns >= SAVE_NS))
        status = save_turn(pool, turn, pass.ended, error);
    return lmcs_passed_over(&passed, status, error);
}

enum lmcs_status lmcs_scrub_chain(struct lmcs_pool *pool, uint64_t content, struct lmcs_error *error)
{
    struct lmcs_sources *sources = NULL;
    struct lmcs_chain *chain = malloc(sizeof *chain);
    struct lmcs_txn txn;
    struct lmcs_content found_content;
    bool found = false;
    if (chain == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status == LMCS_OK) {
        status = lmcs_content_find(&txn, content, &found_content, &found, error);
        if (status == LMCS_OK && found)
            status = lmcs_chain_load(&txn, content, chain, error);
        lmcs_txn_end(&txn);
    }
    if (status == LMCS_OK && found)
        status = lmcs_sources_new(pool, 0, &sources, error);
    for (size_t i = 0; status == LMCS_OK && found && i < chain->length; i++) {
        struct lmcs_repaired repaired = {.lost = NULL};
        status = lmcs_repair(pool, sources, chain->links[i].id, &repaired, error);
        free(repaired.lost);
    }
    lmcs_sources_close(sources);
    free(chain);
    return status;
}

void lmcs_scrub_state(const struct lmcs_root_df *root, struct lmcs_pool_info *info)
{
    info->scrubbed_ns = root->scrub_done_ns;
    info->scrub_found = root->scrub_found;
    info->scrub_repaired = root->scrub_repaired;
    info->scrub_share =
        root->scrub_next == 0 || root->live_bytes == 0 ? 0 : (double)root->scrub_bytes / (double)root->live_bytes;
    if (info->scrub_share > 1)
        info->scrub_share = 1;
}
