/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/scrub.c - reads stored bytes and compares them with their checksums.
 *
 * scrub_pass.c (all contents) and scrub_scope.c (given addresses) call scrub_content.c; scrub_report.c reports at the
 * end.
 */
#include "repair/scrub.h"

#include <stdlib.h>

#include "base/clock.h"
#include "compact/parity.h"
#include "repair/scrubbing.h"

static enum lmcs_status count_lost(struct lmcs_scrubbing *s, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    s->report.lost = txn.root.lost_contents;
    lmcs_txn_end(&txn);
    return LMCS_OK;
}

static bool show_parity(void *context, uint64_t bytes)
{
    struct lmcs_scrubbing *s = context;
    (void)bytes;
    return lmcs_scrub_show(s);
}

static enum lmcs_status make_parity(struct lmcs_scrubbing *s, struct lmcs_error *error)
{
    const struct lmcs_parity_turn turn = {.all = true, .go_on = show_parity, .context = s};
    bool worked;
    enum lmcs_status status = lmcs_parity_turn(s->pool, &turn, &worked, error);
    if (status == LMCS_OK && s->stopped)
        status = lmcs_fail(error, LMCS_CANCELLED, 0, "%s: the scrub was stopped before its end", s->pool->path);
    return status;
}

static enum lmcs_status finish(struct lmcs_scrubbing *s, enum lmcs_status status, struct lmcs_error *error)
{
    struct lmcs_error later;
    if (status == LMCS_OK && s->is_full) {
        status = LMCS_FULL;
        *error = s->full;
    }
    enum lmcs_status reported = lmcs_scrub_report_all(s, &later);
    if (reported == LMCS_OK)
        reported = count_lost(s, &later);
    if (status == LMCS_OK && reported != LMCS_OK) {
        status = reported;
        *error = later;
    }
    if (status == LMCS_OK && s->left > 0)
        status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: %llu damage%s found, %llu repaired", s->pool->path,
                           ULL(s->report.damages), s->report.damages == 1 ? "" : "s", ULL(s->report.repaired));
    if (status == LMCS_OK && s->report.unsupported > 0)
        status = lmcs_fail(error, LMCS_UNSUPPORTED, 0, "%s: no damage is left, but %llu record%s of a newer version",
                           s->pool->path, ULL(s->report.unsupported), s->report.unsupported == 1 ? "" : "s");
    return status;
}

enum lmcs_status lmcs_scrub_run(struct lmcs_pool *pool, const struct lmcs_scrub_options *options,
                                struct lmcs_sources *sources, lmcs_check_look *look,
                                void (*visit)(void *context, const struct lmcs_scrub_damage *damage), void *context,
                                const struct lmcs_progress *progress, struct lmcs_scrub_report *report,
                                struct lmcs_error *error)
{
    struct lmcs_scrubbing s = {.pool = pool,
                               .options = options,
                               .sources = sources,
                               .look = look,
                               .visit = visit,
                               .context = context,
                               .progress = progress,
                               .started_ns = lmcs_steady_ns()};
    enum lmcs_status status = options->address_count > 0 ? lmcs_scrub_addresses(&s, error) : lmcs_scrub_pass(&s, error);
    if (status == LMCS_OK && sources != NULL && options->address_count == 0 && s.report.is_whole)
        status = make_parity(&s, error);
    status = finish(&s, status, error);
    free(s.findings);
    free(s.ids);
    *report = s.report;
    return status;
}
