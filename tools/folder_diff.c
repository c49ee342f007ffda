/* SPDX-License-Identifier: BSD-3-Clause */
/* folder_diff.c - the differences between the tensors of two snapshots of a run. */
#include "folder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "snapshots/elements.h"

struct diff {
    struct cli *cli;
    struct cli_joined sides[2];
    struct cli_stored *stored[2];
    bool (*visit)(void *context, const struct lmcs_difference *difference);
    void *context;
    const struct lmcs_progress *progress;
    struct lmcs_diff_report report;
    bool stopped;
};

static struct lmcs_tensor tensor_of(const struct cli_tensor *tensor)
{
    return (struct lmcs_tensor){
        .name = tensor->name, .dtype = tensor->dtype, .ndim = tensor->ndim, .shape = tensor->shape};
}

static bool are_equal(const uint64_t *left, const uint64_t *right, uint32_t count)
{
    return count == 0 || memcmp(left, right, count * sizeof *left) == 0;
}

static bool have_same_form(const struct cli_tensor *before, const struct cli_tensor *after)
{
    return before->dtype == after->dtype && before->ndim == after->ndim &&
           are_equal(before->shape, after->shape, after->ndim);
}

/* Whether both have the same boxes with the same digests, so that neither is read. */
static bool have_same_boxes(const struct diff *diff, const struct cli_tensor *before, const struct cli_tensor *after)
{
    const struct cli_stored *old = diff->stored[0] + (before->boxes - diff->sides[0].record.boxes);
    const struct cli_stored *new = diff->stored[1] + (after->boxes - diff->sides[1].record.boxes);
    for (size_t i = 0; i < after->box_count; i++) {
        const struct cli_box *a = &before->boxes[i], *b = &after->boxes[i];
        if (i >= before->box_count || !are_equal(a->offsets, b->offsets, after->ndim) ||
            !are_equal(a->sizes, b->sizes, after->ndim))
            return false;
        if (!old[i].is_there || !new[i].is_there || old[i].digest.low != new[i].digest.low ||
            old[i].digest.high != new[i].digest.high)
            return false;
    }
    return before->box_count == after->box_count;
}

static enum lmcs_status compare(struct diff *diff, const struct cli_tensor *before, const struct cli_tensor *after,
                                struct lmcs_difference *difference)
{
    uint64_t bytes = after->raw_bytes;
    unsigned char *data[2] = {calloc(1, bytes + 1), calloc(1, bytes + 1)};
    enum lmcs_status status = LMCS_OK;
    if (data[0] == NULL || data[1] == NULL)
        status = cli_fail(diff->cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_OK)
        status = cli_joined_read(&diff->sides[0], before, data[0]);
    if (status == LMCS_OK)
        status = cli_joined_read(&diff->sides[1], after, data[1]);
    if (status == LMCS_OK)
        lmcs_elements_difference(after->dtype, data[0], data[1], bytes, difference);
    free(data[0]);
    free(data[1]);
    diff->report.bytes_compared += status == LMCS_OK ? bytes : 0;
    return status;
}

static void report(struct diff *diff, const struct lmcs_difference *difference)
{
    struct lmcs_diff_report *report = &diff->report;
    uint64_t *counts[] = {[LMCS_SAME] = &report->same,
                          [LMCS_CHANGED] = &report->changed,
                          [LMCS_RESHAPED] = &report->reshaped,
                          [LMCS_ADDED] = &report->added,
                          [LMCS_REMOVED] = &report->removed};
    ++*counts[difference->kind];
    if (difference->kind != LMCS_SAME)
        diff->stopped = !diff->visit(diff->context, difference);
}

/* `before` or `after` NULL: only the other one is there. */
static enum lmcs_status diff_one(struct diff *diff, const struct cli_tensor *before, const struct cli_tensor *after)
{
    struct lmcs_tensor old, new;
    struct lmcs_difference difference = {.name = after != NULL ? after->name : before->name, .cosine = NAN};
    enum lmcs_status status = LMCS_OK;
    if (before != NULL) {
        old = tensor_of(before);
        difference.before = &old;
        difference.before_bytes = before->raw_bytes;
    }
    if (after != NULL) {
        new = tensor_of(after);
        difference.after = &new;
        difference.after_bytes = after->raw_bytes;
    }
    if (before == NULL || after == NULL)
        difference.kind = after != NULL ? LMCS_ADDED : LMCS_REMOVED;
    else if (!have_same_form(before, after))
        difference.kind = LMCS_RESHAPED;
    else if (have_same_boxes(diff, before, after))
        difference.kind = LMCS_SAME;
    else
        status = compare(diff, before, after, &difference);
    if (status == LMCS_OK)
        report(diff, &difference);
    return status;
}

static enum lmcs_status diff_all(struct diff *diff)
{
    const struct cli_record *before = &diff->sides[0].record, *after = &diff->sides[1].record;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && !diff->stopped && i < after->tensor_count; i++) {
        status = diff_one(diff, cli_record_find(before, after->tensors[i].name), &after->tensors[i]);
        if (status == LMCS_OK &&
            !diff->progress->call(diff->progress->context, "comparing", diff->report.bytes_compared, after->raw_bytes))
            status = cli_fail(diff->cli, LMCS_CANCELLED, 0, "the comparison was stopped");
    }
    for (size_t i = 0; status == LMCS_OK && !diff->stopped && i < before->tensor_count; i++)
        if (cli_record_find(after, before->tensors[i].name) == NULL)
            status = diff_one(diff, &before->tensors[i], NULL);
    return status;
}

enum lmcs_status cli_joined_diff(struct cli *cli, struct lmcs_snapshot *const pair[2],
                                 bool (*visit)(void *context, const struct lmcs_difference *difference), void *context,
                                 const struct lmcs_progress *progress, struct lmcs_diff_report *report)
{
    struct diff diff = {.cli = cli, .visit = visit, .context = context, .progress = progress};
    char lacks[1024];
    enum lmcs_status status = LMCS_OK;
    for (int i = 0; status == LMCS_OK && i < 2; i++) {
        status = cli_joined_open(cli, pair[i], &diff.sides[i]);
        if (status == LMCS_OK)
            status = cli_joined_stored(&diff.sides[i], &diff.stored[i], lacks);
    }
    if (status == LMCS_OK)
        status = diff_all(&diff);
    for (int i = 0; i < 2; i++) {
        free(diff.stored[i]);
        cli_joined_close(&diff.sides[i]);
    }
    *report = diff.report;
    return status;
}
