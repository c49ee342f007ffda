/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/scrub_report.c - the progress and damages of a scrub.
 *
 * Damages of contents are reported at the end, because one walk over all manifests finds their holders; those of
 * metadata at once.
 */
#include "repair/scrubbing.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/grow.h"
#include "records/holders.h"

#define MOST_FINDINGS 100000u /* damages kept for the report; the counts include all */

bool lmcs_scrub_show(struct lmcs_scrubbing *s)
{
    const struct lmcs_progress *progress = s->progress;
    uint64_t done = s->report.bytes_read, total = s->report.bytes_total;
    if (progress != NULL && progress->call != NULL &&
        !progress->call(progress->context, "scrubbing", done < total ? done : total, total))
        s->stopped = true;
    s->shown_bytes = done;
    return !s->stopped;
}

bool lmcs_scrub_pace(void *context, uint64_t bytes)
{
    struct lmcs_scrubbing *s = context;
    s->report.bytes_read += bytes;
    if (s->go_on != NULL)
        return s->go_on(s->go_on_context, bytes);
    if (s->report.bytes_read - s->shown_bytes >= 16 * LMC_BLOCK_BYTES && !lmcs_scrub_show(s))
        return false;
    double seconds = s->options->rate_bytes > 0 ? (double)s->report.bytes_read / (double)s->options->rate_bytes : 0;
    while (!s->stopped && (double)(lmcs_steady_ns() - s->started_ns) / 1e9 < seconds) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        lmcs_scrub_show(s);
    }
    return !s->stopped;
}

enum lmcs_status lmcs_scrub_add_damage(struct lmcs_scrubbing *s, const struct lmcs_scrub_finding *finding,
                                       struct lmcs_error *error)
{
    s->report.damages++;
    s->report.repaired += finding->state == LMCS_DAMAGE_REPAIRED;
    s->left += finding->state != LMCS_DAMAGE_REPAIRED;
    if (s->visit == NULL || s->finding_count == MOST_FINDINGS)
        return LMCS_OK;
    if (!lmcs_grow(&s->findings, &s->finding_capacity, s->finding_count, sizeof *s->findings))
        return lmcs_fail_memory(error);
    s->findings[s->finding_count++] = *finding;
    return LMCS_OK;
}

void lmcs_scrub_report_metadata(struct lmcs_scrubbing *s, enum lmcs_status status, const char *what, const char *shelf,
                                uint64_t number)
{
    const bool is_unsupported = status == LMCS_UNSUPPORTED;
    struct lmcs_holder holder = {.shelf = shelf, .tensor = "", .first = number, .last = number, .count = 1};
    struct lmcs_scrub_damage damage = {
        .what = what, .source = "", .holders = &holder, .holder_count = shelf[0] != '\0' && number != 0};
    if (is_unsupported)
        damage.state = LMCS_DAMAGE_UNSUPPORTED;
    s->report.damages += !is_unsupported;
    s->report.unsupported += is_unsupported;
    s->left += !is_unsupported;
    if (s->visit != NULL)
        s->visit(s->context, &damage);
}

enum lmcs_status lmcs_scrub_add_ranges(struct lmcs_scrubbing *s, const struct lmcs_content *content,
                                       const struct lmcs_scan *scan, bool known_lost,
                                       const struct lmcs_repaired *repaired, struct lmcs_error *error)
{
    struct lmcs_scrub_finding damage = {.content = content->id, .identity = content->df.identity, .what = scan->why};
    enum lmcs_status status = LMCS_OK;
    for (uint64_t i = 0, end; status == LMCS_OK && i < scan->blocks; i = end) {
        bool bad = scan->bad[i] != 0 || scan->head_is_bad;
        bool lost = bad && repaired != NULL && repaired->lost != NULL && repaired->lost[i] != 0;
        for (end = i + 1; end < scan->blocks; end++)
            if ((scan->bad[end] != 0 || scan->head_is_bad) != bad ||
                (bad && repaired != NULL && repaired->lost != NULL && (repaired->lost[end] != 0) != lost))
                break;
        if (!bad)
            continue;
        damage.first_byte = i * LMC_BLOCK_BYTES;
        damage.byte_count = (end - i) * LMC_BLOCK_BYTES;
        if (damage.byte_count > content->df.raw_bytes - damage.first_byte)
            damage.byte_count = content->df.raw_bytes - damage.first_byte;
        damage.state = repaired == NULL ? (known_lost ? LMCS_DAMAGE_LOST : LMCS_DAMAGE_FOUND)
                       : lost           ? LMCS_DAMAGE_LOST
                                        : LMCS_DAMAGE_REPAIRED;
        if (scan->head_is_bad && scan->bad_count < scan->blocks)
            damage.what = "the checksums of its blocks are damaged";
        snprintf(damage.source, sizeof damage.source, "%s",
                 damage.state == LMCS_DAMAGE_REPAIRED ? repaired->source : "");
        status = lmcs_scrub_add_damage(s, &damage, error);
    }
    return status;
}

static enum lmcs_status fill_holders(struct lmcs_scrubbing *s, const struct lmcs_holders *found, size_t first,
                                     size_t count, struct lmcs_holder *holders, char (*names)[LMCS_MAX_NAME + 1],
                                     struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        const struct lmcs_found_holder *item = &found->items[first + i];
        struct lmcs_identity identity;
        struct lmcs_error ignored;
        bool known = lmcs_identity_get(&txn, item->identity, &identity, &ignored) == LMCS_OK;
        snprintf(names[i], sizeof names[i], "%s", known ? identity.name : "");
        holders[i] = (struct lmcs_holder){.shelf = found->shelf_names[item->shelf],
                                          .tensor = names[i],
                                          .kind = known ? identity.df.kind : LMCS_TENSOR,
                                          .first = item->first,
                                          .last = item->last,
                                          .count = item->count};
    }
    lmcs_txn_end(&txn);
    return LMCS_OK;
}

/* `whole` false: there may be more holders. */
static enum lmcs_status report_finding(struct lmcs_scrubbing *s, const struct lmcs_scrub_finding *damage,
                                       const struct lmcs_holder *holders, size_t holder_count, bool whole,
                                       struct lmcs_error *error)
{
    char what[256];
    struct lmcs_identity identity;
    struct lmcs_tensor tensor;
    struct lmcs_txn txn;
    struct lmcs_error ignored;
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    bool known = lmcs_identity_get(&txn, damage->identity, &identity, &ignored) == LMCS_OK;
    lmcs_txn_end(&txn);
    snprintf(what, sizeof what, "%s; more snapshots may need it: not all could be examined", damage->what);
    struct lmcs_scrub_damage out = {.state = damage->state,
                                    .what = whole ? damage->what : what,
                                    .source = damage->source,
                                    .content = damage->content,
                                    .first_byte = damage->first_byte,
                                    .byte_count = damage->byte_count,
                                    .holders = holders,
                                    .holder_count = holder_count};
    if (known) {
        tensor = lmcs_identity_tensor(&identity);
        uint64_t size = lmc_dtype_size(tensor.dtype), raw = 0, end = damage->first_byte + damage->byte_count;
        lmcs_shape_bytes(tensor.dtype, tensor.ndim, tensor.shape, &raw);
        uint64_t row = tensor.ndim > 0 && tensor.shape[0] > 0 ? raw / tensor.shape[0] : 0;
        out.tensor = &tensor;
        out.first_element = damage->first_byte / size;
        out.element_count = damage->byte_count > 0 ? (end - 1) / size - out.first_element + 1 : 0;
        out.first_row = row > 0 ? damage->first_byte / row : 0;
        out.row_count = row > 0 && damage->byte_count > 0 ? (end - 1) / row - out.first_row + 1 : 0;
    }
    s->visit(s->context, &out);
    return LMCS_OK;
}

enum lmcs_status lmcs_scrub_report_all(struct lmcs_scrubbing *s, struct lmcs_error *error)
{
    struct lmcs_holders found = {0};
    size_t unique = 0;
    bool whole;
    if (s->finding_count == 0)
        return LMCS_OK;
    uint64_t *contents = malloc(s->finding_count * sizeof *contents);
    if (contents == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < s->finding_count; i++)
        if (unique == 0 || contents[unique - 1] != s->findings[i].content) /* one content's damages are adjacent */
            contents[unique++] = s->findings[i].content;
    enum lmcs_status status = lmcs_holders_find(s->pool, contents, unique, &found, &whole, error);
    for (size_t i = 0, root = 0, at = 0; status == LMCS_OK && i < s->finding_count; i++) {
        root += contents[root] != s->findings[i].content;
        while (at < found.count && found.items[at].root < root)
            at++;
        size_t count = 0;
        while (at + count < found.count && found.items[at + count].root == root)
            count++;
        struct lmcs_holder *holders = malloc((count + 1) * sizeof *holders);
        char(*names)[LMCS_MAX_NAME + 1] = malloc((count + 1) * sizeof *names);
        status = holders == NULL || names == NULL ? lmcs_fail_memory(error)
                                                  : fill_holders(s, &found, at, count, holders, names, error);
        if (status == LMCS_OK)
            status = report_finding(s, &s->findings[i], holders, count, whole, error);
        free(holders);
        free(names);
    }
    lmcs_holders_free(&found);
    free(contents);
    return status;
}
