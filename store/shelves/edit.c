/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shelves/edit.c - changes of one shelf in one transaction: its policy, its tags, the removal of a snapshot.
 * Annotations by a handle that is open for reading go through the ring (records/ring.h).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "records/annotation.h"
#include "records/busy.h"
#include "records/shelf.h"
#include "shelves/shelves.h"

#define MOST_WAIT_MS 2000u /* for a writer to take annotations, or for another process to end its change */
#define LOOK_MS      50u   /* in which it tries to become the writer, before it looks for room in the ring again */

typedef enum lmcs_status change_fn(struct lmcs_txn *txn, struct lmcs_shelf *shelf, void *context,
                                   struct lmcs_error *error);

static enum lmcs_status change_shelf(struct lmcs_pool *pool, const char *name, bool make, change_fn *change,
                                     void *context, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    bool found;
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_find(&txn, name == NULL ? "" : name, &shelf, &found, error);
    if (status == LMCS_OK && !found)
        status = make ? lmcs_shelf_make(&txn, name, 0, &shelf, error)
                      : lmcs_fail_no_shelf(&txn, name == NULL ? "" : name, error);
    if (status == LMCS_OK)
        status = change(&txn, &shelf, context, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_save(&txn, &shelf, error);
    return lmcs_txn_finish(&txn, status, error);
}

static enum lmcs_status set_policy(struct lmcs_txn *txn, struct lmcs_shelf *shelf, void *context,
                                   struct lmcs_error *error)
{
    (void)txn;
    struct lmcs_policy policy;
    lmcs_policy_init(&policy);
    enum lmcs_status status = lmcs_policy_parse_stored(shelf->policy, &policy, error);
    if (status != LMCS_OK)
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                         "a newer version set the policy of shelf \"%.100s\": change it with that version",
                         shelf->name);
    policy.keep_raw = shelf->df.keep_raw;
    const struct lmcs_policy before = policy;
    status = lmcs_policy_parse(context, &policy, error);
    if (status != LMCS_OK)
        return status;
    lmcs_policy_begin_grace(&before, &policy, lmcs_now_ns());
    status = lmcs_policy_format_stored(&policy, shelf->policy, error);
    shelf->df.keep_raw = policy.keep_raw;
    if (policy.parity_data != before.parity_data || policy.parity != before.parity ||
        policy.parity_of_bases != before.parity_of_bases)
        shelf->df.guarded = 0; /* every snapshot gets other parity */
    return status;
}

enum lmcs_status lmcs_shelf_set_policy(struct lmcs_pool *pool, const char *shelf, const char *policy,
                                       struct lmcs_error *error)
{
    enum lmcs_status status = change_shelf(pool, shelf, true, set_policy, (void *)policy, error);
    if (status == LMCS_OK) {
        lmcs_prune_soon(pool, shelf);
        lmcs_pool_wake(pool);
    }
    return status;
}

enum lmcs_status lmcs_shelf_set_keep_raw(struct lmcs_pool *pool, const char *shelf, uint32_t keep_raw,
                                         struct lmcs_error *error)
{
    char words[32];
    snprintf(words, sizeof words, "keep_raw=%u", (unsigned)keep_raw);
    return lmcs_shelf_set_policy(pool, shelf, words, error);
}

enum lmcs_status lmcs_policy_change(char policy[LMCS_MAX_POLICY + 1], const char *words, struct lmcs_error *error)
{
    struct lmcs_policy parsed;
    char text[LMCS_MAX_POLICY + 1];
    lmcs_policy_init(&parsed);
    enum lmcs_status status = lmcs_policy_parse(policy, &parsed, error);
    if (status == LMCS_OK)
        status = lmcs_policy_parse(words, &parsed, error);
    if (status == LMCS_OK)
        status = lmcs_policy_format(&parsed, text, error);
    if (status == LMCS_OK)
        memcpy(policy, text, sizeof text);
    return status;
}

struct tagging {
    const struct lmcs_tag_change *changes;
    size_t count;
};

static enum lmcs_status fail_no_tag(struct lmcs_txn *txn, const struct lmcs_shelf *shelf, const char *tag,
                                    struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: shelf \"%s\" has no tag \"%s\"", txn->pool->path, shelf->name, tag);
}

static enum lmcs_status check_tag_place(struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                        const struct lmcs_tag_change *change, uint64_t *at, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_tag_check(change->tag, error);
    if (status == LMCS_OK)
        status = lmcs_tag_find(txn, shelf, change->tag, at, error);
    if (status != LMCS_OK || change->expected == LMCS_TAG_ANYWHERE || *at == change->expected)
        return status;
    if (*at == 0)
        return fail_no_tag(txn, shelf, change->tag, error);
    return lmcs_fail(error, LMCS_EXISTS, 0,
                     "%s: the tag \"%.100s\" is on %s@%llu, where it was not expected: read it again", txn->pool->path,
                     change->tag, shelf->name, (unsigned long long)*at);
}

static enum lmcs_status change_tag(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_tag_change *change,
                                   struct lmcs_error *error)
{
    struct lmcs_record record;
    uint64_t at;
    bool found;
    enum lmcs_status status = check_tag_place(txn, shelf, change, &at, error);
    if (status != LMCS_OK)
        return status;
    if (change->number == 0)
        return at == 0 ? fail_no_tag(txn, shelf, change->tag, error) : lmcs_tag_delete(txn, shelf, change->tag, error);
    status = lmcs_record_get(txn, shelf, change->number, &record, &found, error);
    if (status == LMCS_OK && (!found || !lmcs_record_is_committed(&record)))
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no snapshot %s@%llu", txn->pool->path, shelf->name,
                         (unsigned long long)change->number);
    return status == LMCS_OK ? lmcs_tag_put(txn, shelf, change->tag, change->number, error) : status;
}

static enum lmcs_status change_tags(struct lmcs_txn *txn, struct lmcs_shelf *shelf, void *context,
                                    struct lmcs_error *error)
{
    const struct tagging *tagging = context;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < tagging->count; i++)
        status = change_tag(txn, shelf, &tagging->changes[i], error);
    return status;
}

static enum lmcs_status annotate(struct lmcs_txn *txn, struct lmcs_shelf *shelf, void *context,
                                 struct lmcs_error *error)
{
    struct lmcs_annotation *annotation = context;
    annotation->df.shelf = shelf->df.id;
    enum lmcs_status status = lmcs_annotation_apply(txn, annotation, error);
    txn->root.annotated++;
    return status == LMCS_OK ? lmcs_shelf_load(txn, shelf->df.id, shelf, error) : status;
}

/* For a change that only a writer can make, by a handle that is open for reading. */
static enum lmcs_status change_as_writer(struct lmcs_pool *pool, const char *shelf, change_fn *change, void *context,
                                         struct lmcs_error *error)
{
    struct lmcs_pool *writer;
    uint64_t count;
    enum lmcs_status status = pool->as_writer(pool, LOOK_MS, &writer, error);
    if (status != LMCS_OK)
        return status;
    status = change_shelf(writer, shelf, false, change, context, error);
    if (status == LMCS_OK)
        status = lmcs_let_go(writer, NULL, &count, error);
    enum lmcs_status closed = lmcs_pool_close(writer, status == LMCS_OK ? error : NULL);
    return status == LMCS_OK ? closed : status;
}

static enum lmcs_status add_annotation(struct lmcs_pool *pool, const char *shelf, struct lmcs_annotation *annotation,
                                       struct lmcs_error *error)
{
    bool needs_writer;
    uint64_t count;
    const char *name = shelf == NULL ? "" : shelf;
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status != LMCS_OK)
        return status;
    if (pool->writable) {
        status = change_shelf(pool, name, false, annotate, annotation, error);
        if (status == LMCS_OK)
            lmcs_prune_soon(pool, name);
        if (status == LMCS_OK && annotation->df.kind == LMCS_ANNOTATION_SAFE)
            status = lmcs_let_go(pool, NULL, &count, error);
        return status;
    }
    bool is_full = false;
    for (unsigned waited = 0;; waited += LOOK_MS) {
        status = lmcs_annotation_add(pool, name, annotation, &needs_writer, error);
        if (!needs_writer)
            return status;
        is_full = status == LMCS_FULL;
        status = change_as_writer(pool, name, annotate, annotation, error);
        if (status != LMCS_IN_USE || waited >= MOST_WAIT_MS)
            break;
    }
    if (status == LMCS_IN_USE && is_full)
        lmcs_error_prefix(error,
                          "%u tags, metrics and notes, the most that can, wait for the process that writes: let it go "
                          "on, or end it, and try again; ",
                          LMCS_RING_SLOTS);
    else if (status == LMCS_IN_USE)
        lmcs_error_prefix(error,
                          "the pool has no room for tags, metrics and notes beside its writer (an older version, "
                          "or a full disk); ");
    return status;
}

static enum lmcs_status change_annotation(struct lmcs_pool *pool, const char *shelf, uint32_t kind, uint64_t number,
                                          const char *text, double value, struct lmcs_error *error)
{
    struct lmcs_annotation annotation;
    enum lmcs_status status = lmcs_annotation_fill(kind, number, text, value, &annotation, error);
    return status == LMCS_OK ? add_annotation(pool, shelf, &annotation, error) : status;
}

enum lmcs_status lmcs_metric_set(struct lmcs_pool *pool, const char *shelf, uint64_t number, const char *name,
                                 double value, struct lmcs_error *error)
{
    return change_annotation(pool, shelf, LMCS_ANNOTATION_METRIC, number, name, value, error);
}

enum lmcs_status lmcs_note_set(struct lmcs_pool *pool, const char *shelf, uint64_t number, const char *note,
                               struct lmcs_error *error)
{
    return change_annotation(pool, shelf, LMCS_ANNOTATION_NOTE, number, note, 0, error);
}

enum lmcs_status lmcs_snapshots_safe(struct lmcs_pool *pool, const char *shelf, uint64_t first, uint64_t last,
                                     uint64_t epoch, const char *url, struct lmcs_error *error)
{
    char text[LMCS_MAX_URL + 64];
    if (!lmcs_url_is_sound(url) || first > last)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "\"%.100s\" is no URL of 1 to %d bytes without spaces, or the numbers are no range",
                         url == NULL ? "" : url, LMCS_MAX_URL);
    snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %s", first, epoch, url);
    return change_annotation(pool, shelf, LMCS_ANNOTATION_SAFE, last, text, 0, error);
}

enum lmcs_status lmcs_tags_change(struct lmcs_pool *pool, const char *shelf, const struct lmcs_tag_change *changes,
                                  size_t count, struct lmcs_error *error)
{
    struct tagging tagging = {changes, count};
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status != LMCS_OK || pool->writable)
        return status == LMCS_OK ? change_shelf(pool, shelf, false, change_tags, &tagging, error) : status;
    if (count != 1 || changes->expected != LMCS_TAG_ANYWHERE) { /* only a commit makes these at once */
        status = change_as_writer(pool, shelf, change_tags, &tagging, error);
        if (status == LMCS_IN_USE)
            lmcs_error_prefix(error, "beside a writer, tags are set one at a time and without an expected place; ");
        return status;
    }
    status = lmcs_tag_check(changes->tag, error);
    return status == LMCS_OK
               ? change_annotation(pool, shelf, LMCS_ANNOTATION_TAG, changes->number, changes->tag, 0, error)
               : status;
}

enum lmcs_status lmcs_tag_set(struct lmcs_pool *pool, const char *shelf, const char *tag, uint64_t number,
                              struct lmcs_error *error)
{
    const struct lmcs_tag_change change = {tag, number, LMCS_TAG_ANYWHERE};
    if (number == 0)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no snapshot 0: numbers start at 1", pool->path);
    return lmcs_tags_change(pool, shelf, &change, 1, error);
}

enum lmcs_status lmcs_tag_remove(struct lmcs_pool *pool, const char *shelf, const char *tag, struct lmcs_error *error)
{
    const struct lmcs_tag_change change = {tag, 0, LMCS_TAG_ANYWHERE};
    return lmcs_tags_change(pool, shelf, &change, 1, error);
}

static enum lmcs_status remove_in(struct lmcs_txn *txn, const char *name, uint64_t number, struct lmcs_removal *removal,
                                  struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found;
    enum lmcs_status status = lmcs_shelf_get(txn, name, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_record_get(txn, &shelf, number, &record, &found, error);
    if (status == LMCS_OK && found && record.df.state == LMCS_SNAPSHOT_PREPARED)
        return lmcs_fail(error, LMCS_IN_USE, 0, "%s: snapshot %s@%llu is prepared and awaits its group's decision",
                         txn->pool->path, name, (unsigned long long)number);
    if (status == LMCS_OK)
        status = lmcs_shelf_remove(txn, &shelf, number, removal, error);
    return status == LMCS_OK ? lmcs_shelf_save(txn, &shelf, error) : status;
}

enum lmcs_status lmcs_snapshot_remove(struct lmcs_pool *pool, const char *shelf, uint64_t number, bool dry_run,
                                      struct lmcs_removal *removal, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_busy_shelf *busy;
    struct lmcs_removal counted = {0};
    const char *name = shelf == NULL ? "" : shelf;
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_take(pool, name, &busy, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_txn_write(pool, &txn, error);
    if (status == LMCS_OK) {
        status = remove_in(&txn, name, number, &counted, error);
        if (status == LMCS_OK && !dry_run)
            status = lmcs_txn_commit(&txn, error);
        else
            lmcs_txn_end(&txn);
    }
    lmcs_shelf_give(pool, busy);
    if (status != LMCS_OK)
        return status;
    if (removal != NULL)
        *removal = counted;
    if (!dry_run)
        lmcs_pool_wake(pool);
    return LMCS_OK;
}
