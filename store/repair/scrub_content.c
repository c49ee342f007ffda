/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/scrub_content.c - the scrub of one content and its parity.
 *
 * The content is pinned in a short transaction and scanned outside of it, so captures and the compactor continue.
 */
#include "repair/scrubbing.h"

#include <stdio.h>
#include <stdlib.h>

#include "compact/parity.h"
#include "payload/layout.h"
#include "records/safety.h"

struct held {
    struct lmcs_content content;
    struct lmcs_identity identity;
    struct lmcs_parity_record parity;
    bool has_parity;
    bool is_lost;
};

static void release(struct lmcs_scrubbing *s, const struct held *held)
{
    lmcs_payload_unpin(s->pool->lease, &held->content);
    if (held->has_parity)
        lmcs_parity_unpin(s->pool, &held->parity);
}

static enum lmcs_status hold(struct lmcs_scrubbing *s, uint64_t id, struct held *held, bool *found,
                             struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_content_find(&txn, id, &held->content, found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_identity_get(&txn, held->content.df.identity, &held->identity, error);
    if (status == LMCS_OK && *found)
        status = lmcs_lost_any(&txn, id, &held->is_lost, error);
    if (status == LMCS_OK && *found)
        status = lmcs_parity_find(&txn, id, &held->parity, &held->has_parity, error);
    if (status == LMCS_OK && *found)
        status = lmcs_payload_pin(s->pool->lease, &held->content, error);
    if (status == LMCS_OK && *found && held->has_parity) {
        status = lmcs_parity_pin(s->pool, &held->parity, error);
        if (status != LMCS_OK)
            lmcs_payload_unpin(s->pool->lease, &held->content);
    }
    lmcs_txn_end(&txn);
    return status;
}

/* Records that a repair lacked room. The scrub continues: smaller contents may find room. */
static enum lmcs_status record_full(struct lmcs_scrubbing *s, const struct lmcs_error *error)
{
    s->full = *error;
    s->is_full = true;
    return LMCS_OK;
}

static enum lmcs_status repair(struct lmcs_scrubbing *s, const struct held *held, const struct lmcs_scan *scan,
                               bool *is_whole, struct lmcs_error *error)
{
    struct lmcs_repaired repaired = {.is_whole = false, .lost = NULL};
    enum lmcs_status status = LMCS_OK;
    bool tried = s->sources != NULL;
    if (tried)
        status = lmcs_repair(s->pool, s->sources, held->content.id, &repaired, error);
    if (status == LMCS_FULL) {
        status = record_full(s, error);
        tried = false;
    }
    if (status == LMCS_UNSUPPORTED) { /* its chain has a newer version; report only this damage */
        status = LMCS_OK;
        tried = false;
    }
    if (status == LMCS_OK)
        status = lmcs_scrub_add_ranges(s, &held->content, scan, held->is_lost, tried ? &repaired : NULL, error);
    *is_whole = status == LMCS_OK && tried && repaired.is_whole;
    free(repaired.lost);
    return status;
}

/* Checks the parity; makes damaged parity again. */
static enum lmcs_status check_parity(struct lmcs_scrubbing *s, const struct held *held, struct lmcs_error *error)
{
    bool sound = true;
    struct lmcs_scrub_finding damage = {.content = held->content.id,
                                        .identity = held->content.df.identity,
                                        .what = "its parity is damaged; the tensor itself is not"};
    enum lmcs_status status =
        held->has_parity ? lmcs_parity_look(s->pool, held->content.id, &held->parity, &sound, error) : LMCS_OK;
    if (held->has_parity)
        lmcs_scrub_pace(s, lmcs_parity_bytes(&held->parity));
    if (status != LMCS_OK || sound)
        return status;
    if (s->sources != NULL) {
        bool made = false;
        status =
            lmcs_parity_make(s->pool, held->content.id, held->parity.df.data, held->parity.df.parity, &made, error);
        if (status == LMCS_FULL)
            status = record_full(s, error);
        damage.state = made ? LMCS_DAMAGE_REPAIRED : LMCS_DAMAGE_FOUND;
        snprintf(damage.source, sizeof damage.source, "%s", made ? "the tensor" : "");
    }
    return status == LMCS_OK ? lmcs_scrub_add_damage(s, &damage, error) : status;
}

/* Checks the parity of a repaired content, which may be damaged too. */
static enum lmcs_status check_remaining_parity(struct lmcs_scrubbing *s, struct held *held, struct lmcs_error *error)
{
    bool found = false;
    enum lmcs_status status = hold(s, held->content.id, held, &found, error);
    if (status != LMCS_OK || !found)
        return status;
    status = check_parity(s, held, error);
    release(s, held);
    return status;
}

static enum lmcs_status check_content(struct lmcs_scrubbing *s, uint64_t id, bool *found, struct lmcs_error *error)
{
    struct held *held = malloc(sizeof *held);
    struct lmcs_scan scan = {.blocks = 0};
    if (held == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = hold(s, id, held, found, error);
    if (status != LMCS_OK || !*found) {
        free(held);
        return status;
    }
    struct lmcs_bytes bytes = lmcs_bytes_of_pool(s->pool->media, &held->content);
    bool serial = s->serial || s->options->rate_bytes > 0;
    bytes.go_on = serial ? lmcs_scrub_pace : NULL;
    bytes.context = s;
    status = lmcs_scan(&bytes, &held->content, &held->identity, serial ? NULL : s->pool->workers, &scan, error);
    if (status == LMCS_OK && !serial)
        lmcs_scrub_pace(s, held->content.df.stored_bytes);
    if (status == LMCS_OK && lmcs_scan_is_clean(&scan))
        status = check_parity(s, held, error);
    release(s, held);
    bool is_whole = false;
    if (status == LMCS_OK && (!lmcs_scan_is_clean(&scan) || (held->is_lost && s->sources != NULL)))
        status = repair(s, held, &scan, &is_whole, error);
    if (status == LMCS_OK && is_whole && !lmcs_scan_is_clean(&scan))
        status = check_remaining_parity(s, held, error);
    s->report.contents += status == LMCS_OK;
    lmcs_scan_free(&scan);
    free(held);
    return status;
}

enum lmcs_status lmcs_scrub_content(struct lmcs_scrubbing *s, uint64_t id, struct lmcs_error *error)
{
    bool found = false;
    enum lmcs_status status = check_content(s, id, &found, error);
    if (lmcs_is_unusable(status)) {
        char what[1024];
        snprintf(what, sizeof what, "%s", error->message);
        lmcs_scrub_report_metadata(s, status, what, "", 0);
        status = LMCS_OK;
    }
    if (status == LMCS_OK && s->stopped)
        status = lmcs_fail(error, LMCS_CANCELLED, 0, "%s: the scrub was stopped before its end", s->pool->path);
    return status;
}
