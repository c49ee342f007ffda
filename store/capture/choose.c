/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/choose.c - whether a capture makes links, and whether a link may be. */
#include "base/clock.h"
#include "capture/state.h"
#include "payload/speed.h"
#include "records/manifest.h"

#define TRY_AGAIN_AFTER 200u /* captures */
#define LEAST_MEASURED  ((uint64_t)4 << 20)
#define WORTH           1.5 /* raw captures count as slower: the compactor codes their contents later */

bool lmcs_pace_links(const struct lmcs_pace *pace)
{
    if (pace->raw == 0)
        return false;
    bool linked_is_faster = pace->linked == 0 || pace->linked * WORTH > pace->raw;
    return pace->since >= TRY_AGAIN_AFTER ? !linked_is_faster : linked_is_faster;
}

void lmcs_pace_measured(struct lmcs_pace *pace, bool linked, uint64_t bytes, uint64_t ns)
{
    double *mean = linked ? &pace->linked : &pace->raw;
    bool linked_was_faster = pace->linked * WORTH > pace->raw;
    if (bytes < LEAST_MEASURED || ns == 0)
        return;
    double now = (double)bytes * 1e9 / (double)ns;
    *mean = *mean == 0 ? now : (*mean + now) / 2;
    pace->since = linked == linked_was_faster ? pace->since + 1 : 0;
}

/* Whether lines begin with most of its bytes, which is slower than links, and rare. */
static bool is_beginning(const struct lmcs_capture *capture)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < capture->entries.count; i++)
        if (capture->entries.items[i]->is_keyframe)
            bytes += capture->entries.items[i]->raw_bytes;
    return bytes > capture->new_bytes / 2;
}

void lmcs_capture_measured(struct lmcs_capture *capture)
{
    if (is_beginning(capture))
        return;
    lmcs_pace_measured(&capture->busy->pace, capture->makes_links, capture->new_bytes, capture->spent_ns);
    capture->pool->pace = capture->busy->pace;
}

enum lmcs_status lmcs_capture_choose(struct lmcs_capture *capture, struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                     const struct lmcs_record *base, struct lmcs_error *error)
{
    struct lmcs_policy policy;
    struct lmcs_identity identity;
    uint64_t content;
    bool related = false;
    enum lmcs_status status = LMCS_OK;
    lmcs_shelf_policy(shelf, &policy);
    capture->line_mean = lmcs_links_within(capture->pool, policy.restore_seconds);
    capture->line_bound = capture->line_mean > 0 ? lmcs_policy_line_bound(&policy) : 0;
    capture->makes_links = capture->searches = policy.write == LMCS_WRITE_AS_LINK;
    if (policy.write != LMCS_WRITE_AS_AUTO || lmcs_heap_method(capture->pool->heap) != LMCS_WRITE_FILE)
        return LMCS_OK;
    pthread_mutex_lock(&capture->pool->captures);
    capture->makes_links = lmcs_pace_links(&capture->busy->pace);
    pthread_mutex_unlock(&capture->pool->captures);
    if (capture->makes_links && base != NULL) /* a state without relations has no links */
        status = lmcs_manifest_find(txn, &base->df, LMCS_ATTACHMENT, LMCS_RELATIONS_NAME, &identity, &content, &related,
                                    error);
    capture->makes_links = capture->makes_links && status == LMCS_OK && related;
    return status;
}

enum lmcs_status lmcs_capture_may_link(const struct lmcs_capture *capture, struct lmcs_txn *txn, const uint64_t *ids,
                                       uint32_t arrays, uint64_t raw_bytes, struct lmcs_content *before,
                                       struct lmcs_line_end *end, enum lmcs_links *verdict, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    bool found = true;
    *verdict = LMCS_LINKS_NOT_RAW;
    for (uint32_t i = 0; status == LMCS_OK && found && i < arrays; i++) {
        status = lmcs_content_find(txn, ids[i], &before[i], &found, error);
        found = status == LMCS_OK && found && before[i].df.raw_bytes == raw_bytes;
    }
    if (status == LMCS_OK && found)
        status = lmcs_line_find(txn, before, arrays, end, verdict, error);
    if (status == LMCS_OK && *verdict == LMCS_LINKS_MADE && end->links > capture->line_bound)
        *verdict = LMCS_LINKS_FIRST;
    if (lmcs_is_unusable(status)) { /* damaged records: the arrays are written without a link */
        *verdict = LMCS_LINKS_NOT_RAW;
        return LMCS_OK;
    }
    return status;
}
