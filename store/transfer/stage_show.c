/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/stage_show.c - shows the staged shelves of a restore: under their last names, with their last tags. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/origin.h"
#include "shelves/shelves.h"
#include "transfer/stage.h"
#include "transfer/warn.h"

/* ---- Names ---- */

/* Returns the index of the last staged shelf that is the same as number `index`. */
static size_t last_of(const struct lmcs_stage *stage, size_t index)
{
    size_t last = index;
    for (size_t i = index; i < stage->shelf_count; i++)
        if (stage->shelves[i].first == stage->shelves[index].first)
            last = i;
    return last;
}

static enum lmcs_status set_name(struct lmcs_stage *stage, size_t first, const char *name, struct lmcs_error *error)
{
    char *copy = strdup(name);
    bool done = copy != NULL;
    for (size_t i = first; done && i < stage->shelf_count; i++) {
        struct lmcs_stage_shelf *shelf = &stage->shelves[i];
        char *own = shelf->first == first ? strdup(copy) : shelf->name;
        done = own != NULL;
        if (done && own != shelf->name) {
            free(shelf->name);
            shelf->name = own;
        }
    }
    free(copy);
    return done ? LMCS_OK : lmcs_fail_memory(error);
}

/* Leaves out shelves whose name another shelf has in a later archive: they were dropped before that was made. */
static void leave_out(struct lmcs_stage *stage, size_t first)
{
    const char *name = stage->shelves[first].name;
    size_t last = last_of(stage, first), later = stage->shelf_count;
    for (size_t i = last + 1; i < stage->shelf_count; i++)
        if (stage->shelves[i].first != first && strcmp(stage->shelves[i].name, name) == 0)
            later = i;
    if (later == stage->shelf_count)
        return;
    for (size_t i = first; i < stage->shelf_count; i++)
        stage->shelves[i].is_gone = stage->shelves[i].is_gone || stage->shelves[i].first == first;
    lmcs_transfer_warn(
        stage->report,
        "shelf \"%.200s\" of archive %zu was dropped or renamed before archive %zu, in which another has "
        "its name: it is left out; to have it, restore archive %zu alone, under another name",
        stage->shelves[first].from, stage->shelves[last].archive + 1, stage->shelves[later].archive + 1,
        stage->shelves[last].archive + 1);
}

/* Reports snapshots that were added to others by the name alone. */
static void warn_names(struct lmcs_stage *stage, size_t first, const struct lmcs_shelf *target)
{
    const struct lmcs_stage_shelf *shelf = &stage->shelves[first];
    bool joins = (target != NULL && target->df.next_number > 1) || last_of(stage, first) != first;
    bool has_match = false, has_snapshots = false;
    uint64_t copy[2];
    for (size_t i = first; i < stage->shelf_count; i++)
        if (stage->shelves[i].first == first) {
            has_match = has_match || stage->shelves[i].skipped_count > 0;
            has_snapshots = has_snapshots || stage->shelves[i].last.number != 0;
        }
    if (!joins || has_match || !has_snapshots)
        return;
    lmcs_stage_copy_identity(shelf->identity, shelf->name, copy);
    if (target != NULL && lmcs_shelf_differs(shelf->identity, target->df.identity) &&
        lmcs_shelf_differs(copy, target->df.identity))
        lmcs_transfer_warn(stage->report,
                           "shelf \"%.200s\" of the archive was added to \"%.200s\", which was begun apart from it, "
                           "since this name was asked for",
                           shelf->from, target->name);
    else if (!lmcs_shelf_is_known(shelf->identity) || shelf->by_name ||
             (target != NULL && !lmcs_shelf_is_known(target->df.identity)))
        lmcs_transfer_warn(stage->report,
                           "shelf \"%.200s\": only names were compared, because an earlier version, which records no "
                           "identity of shelves, wrote the archive or the shelf; the snapshots that came together "
                           "may be of two shelves of one name",
                           shelf->name);
}

/* Finds the pool's shelf that gets the snapshots. *found false: there is none. */
static enum lmcs_status find_target(struct lmcs_stage *stage, struct lmcs_txn *txn, size_t first,
                                    struct lmcs_shelf *target, bool *found, struct lmcs_error *error)
{
    const struct lmcs_stage_shelf *shelf = &stage->shelves[first];
    uint64_t there = 0;
    bool several = false;
    for (size_t i = first; i < stage->shelf_count; i++)
        if (stage->shelves[i].first == first && stage->shelves[i].there != 0) {
            several = several || (there != 0 && there != stage->shelves[i].there);
            there = stage->shelves[i].there;
        }
    enum lmcs_status status = lmcs_shelf_find(txn, shelf->name, target, found, error);
    bool differs =
        status == LMCS_OK && *found && !stage->is_named && lmcs_shelf_differs(shelf->identity, target->df.identity);
    *found = *found && !differs;
    if (differs && there == 0)
        return lmcs_stage_fail_other(txn, shelf->name, error);
    if (status == LMCS_OK && (several || (*found && there != 0 && there != target->df.id)))
        return lmcs_fail(error, LMCS_EXISTS, 0,
                         "%s: the pool has two shelves that may be the archive's \"%.200s\": restore the archives one "
                         "after the other",
                         txn->pool->path, shelf->name);
    if (status == LMCS_OK && !*found && there != 0)
        status = lmcs_shelf_load_if(txn, there, target, found, error);
    return status;
}

/* Compares the snapshots with a shelf of the pool that was not known when they were staged. */
static enum lmcs_status compare_late(struct lmcs_stage *stage, size_t index, uint64_t target, struct lmcs_error *error)
{
    struct lmcs_stage_shelf *from = &stage->shelves[index];
    uint64_t number = 0;
    enum lmcs_status status = LMCS_OK;
    if (from->there == target)
        return LMCS_OK;
    from->there = target;
    while (status == LMCS_OK) {
        struct lmcs_txn txn;
        struct lmcs_shelf shelf;
        struct lmcs_record record;
        bool found = false, is_skipped = false;
        status = lmcs_txn_read(stage->pool, &txn, error);
        if (status != LMCS_OK)
            return status;
        status = lmcs_shelf_load(&txn, from->id, &shelf, error);
        if (status == LMCS_OK)
            status = lmcs_record_after(&txn, &shelf, number, &number, error);
        if (status == LMCS_OK && number != 0)
            status = lmcs_record_get(&txn, &shelf, number, &record, &found, error);
        lmcs_txn_end(&txn);
        if (status != LMCS_OK || number == 0)
            return status;
        for (size_t i = 0; i < from->skipped_count; i++)
            is_skipped = is_skipped || from->skipped[i] == number;
        if (found && !is_skipped)
            status = lmcs_stage_note_there(stage, index, &record, error);
    }
    return status;
}

static enum lmcs_status settle_target(struct lmcs_stage *stage, size_t first, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf target;
    bool found = false;
    enum lmcs_status status = lmcs_txn_read(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = find_target(stage, &txn, first, &target, &found, error);
    lmcs_txn_end(&txn);
    for (size_t i = 0; status == LMCS_OK && found && i < first; i++)
        if (stage->shelves[i].first != first && !stage->shelves[i].is_gone && stage->shelves[i].there == target.df.id)
            status =
                lmcs_fail(error, LMCS_EXISTS, 0,
                          "%s: the archive's shelves \"%.200s\" and \"%.200s\" may both be \"%.200s\" here: rename "
                          "it, and restore again",
                          stage->pool->path, stage->shelves[i].from, stage->shelves[first].from, target.name);
    for (size_t i = first; status == LMCS_OK && found && i < stage->shelf_count; i++)
        if (stage->shelves[i].first == first)
            status = compare_late(stage, i, target.df.id, error);
    if (status != LMCS_OK)
        return status;
    warn_names(stage, first, found ? &target : NULL);
    if (!found || strcmp(target.name, stage->shelves[first].name) == 0)
        return LMCS_OK;
    lmcs_transfer_warn(stage->report, "shelf \"%.200s\" of the archive is \"%.200s\" here, and keeps this name",
                       stage->shelves[first].name, target.name);
    return set_name(stage, first, target.name, error);
}

/* Sets the names that the shelves get: the last ones in the archives, or those of the same shelves in the pool. */
static enum lmcs_status settle_names(struct lmcs_stage *stage, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < stage->shelf_count; i++)
        status = lmcs_stage_place(stage, i, error);
    for (size_t i = 0; status == LMCS_OK && i < stage->shelf_count; i++)
        if (stage->shelves[i].first == i)
            status = set_name(stage, i, stage->shelves[last_of(stage, i)].name, error);
    for (size_t i = 0; status == LMCS_OK && i < stage->shelf_count; i++)
        if (stage->shelves[i].first == i)
            leave_out(stage, i);
    for (size_t i = 0; status == LMCS_OK && i < stage->shelf_count; i++)
        if (stage->shelves[i].first == i && !stage->shelves[i].is_gone)
            status = settle_target(stage, i, error);
    return status;
}

/* ---- Tags ---- */

/* Removes the tags that a later archive of the shelf has, or has not any more. Both lists ascend. A tag on a snapshot
 * that is newer than that archive stays. */
static void supersede_tags(struct lmcs_stage_shelf *older, const struct lmcs_stage_shelf *newer)
{
    size_t kept = 0, k = 0;
    for (size_t i = 0; i < older->tag_count; i++) {
        while (k < newer->tag_count && strcmp(newer->tags[k].text, older->tags[i].text) < 0)
            k++;
        bool is_gone = newer->has_all_tags && older->tags[i].number < newer->next_number;
        if (is_gone || (k < newer->tag_count && strcmp(newer->tags[k].text, older->tags[i].text) == 0))
            free(older->tags[i].text);
        else
            older->tags[kept++] = older->tags[i];
    }
    older->tag_count = kept;
}

static void settle_tags(struct lmcs_stage *stage)
{
    for (size_t i = 0; i < stage->shelf_count; i++)
        for (size_t k = i + 1; k < stage->shelf_count; k++)
            if (stage->shelves[k].first == stage->shelves[i].first)
                supersede_tags(&stage->shelves[i], &stage->shelves[k]);
}

/* ---- Showing ---- */

/* Removes staged snapshots that the existing shelf already has. */
static enum lmcs_status drop_skipped(struct lmcs_stage *stage, struct lmcs_stage_shelf *shelf, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && shelf->dropped < shelf->skipped_count) {
        size_t left = shelf->skipped_count - shelf->dropped, count = left < LMCS_REMOVALS ? left : LMCS_REMOVALS;
        struct lmcs_removal removal = {0};
        bool done;
        status =
            lmcs_staging_remove(stage->pool, shelf->id, shelf->skipped + shelf->dropped, count, &removal, &done, error);
        shelf->dropped += status == LMCS_OK ? count : 0;
    }
    return status;
}

/* Sets the archive's tags. `moves`: also those that the existing shelf has on another snapshot. */
static enum lmcs_status put_tags(struct lmcs_txn *txn, const struct lmcs_stage_shelf *from, struct lmcs_shelf *shelf,
                                 bool moves, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < from->tag_count; i++) {
        struct lmcs_record record;
        uint64_t number;
        bool found = false;
        status = lmcs_tag_find(txn, shelf, from->tags[i].text, &number, error);
        if (status == LMCS_OK && (number == 0 || moves))
            status = lmcs_record_get(txn, shelf, from->tags[i].number, &record, &found, error);
        if (status == LMCS_OK && found && number != from->tags[i].number)
            status = lmcs_tag_put(txn, shelf, from->tags[i].text, from->tags[i].number, error);
    }
    return status;
}

static enum lmcs_status move_record(struct lmcs_txn *txn, struct lmcs_shelf *from, struct lmcs_shelf *to,
                                    uint64_t number, struct lmcs_error *error)
{
    struct lmcs_record record, there;
    bool found;
    enum lmcs_status status = lmcs_record_get(txn, to, number, &there, &found, error);
    if (status == LMCS_OK && found)
        return lmcs_fail(error, LMCS_EXISTS, 0, "%s: %s@%llu was added while the archive was read", txn->pool->path,
                         to->name, (unsigned long long)number);
    if (status == LMCS_OK)
        status = lmcs_record_get(txn, from, number, &record, &found, error);
    if (status != LMCS_OK)
        return status;
    to->df.snapshot_count++;
    if (to->df.compacted >= number)
        to->df.compacted = number - 1;
    if (to->df.guarded >= number)
        to->df.guarded = number - 1;
    return lmcs_record_put(txn, to, &record, error);
}

static enum lmcs_status move_all(struct lmcs_stage *stage, struct lmcs_txn *txn, struct lmcs_shelf *from,
                                 struct lmcs_shelf *to, struct lmcs_error *error)
{
    uint64_t number = 0;
    enum lmcs_status status = LMCS_OK;
    txn->root.snapshot_count += from->df.snapshot_count;
    stage->shown += from->df.snapshot_count;
    while (status == LMCS_OK) {
        status = lmcs_record_after(txn, from, number, &number, error);
        if (status != LMCS_OK || number == 0)
            break;
        status = move_record(txn, from, to, number, error);
    }
    return status == LMCS_OK ? lmcs_shelf_delete(txn, from, error) : status;
}

struct tags {
    struct lmcs_stage_tag *items;
    size_t count;
    size_t capacity;
    uint64_t number;
    bool failed;
};

static bool note_tag(void *context, const char *text)
{
    struct tags *tags = context;
    char *copy = strdup(text);
    tags->failed = copy == NULL || !lmcs_grow(&tags->items, &tags->capacity, tags->count, sizeof *tags->items);
    if (tags->failed)
        free(copy);
    else
        tags->items[tags->count++] = (struct lmcs_stage_tag){tags->number, copy};
    return !tags->failed;
}

/* Removes the snapshots that the completed ones replace; notes their tags. */
static enum lmcs_status remove_replaced(struct lmcs_txn *txn, struct lmcs_shelf *joined, struct lmcs_shelf *shelf,
                                        struct tags *tags, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK) {
        struct lmcs_removal removal = {0};
        status = lmcs_record_after(txn, joined, tags->number, &tags->number, error);
        if (status != LMCS_OK || tags->number == 0)
            break;
        status = lmcs_tags_of(txn, shelf, tags->number, note_tag, tags, error);
        if (status == LMCS_OK && tags->failed)
            status = lmcs_fail_memory(error);
        if (status == LMCS_OK)
            status = lmcs_shelf_remove(txn, shelf, tags->number, &removal, error);
    }
    return status;
}

/* Replaces snapshots of the shelf by the completed ones. Their tags stay. All go before one comes: the removal looks
 * for neighbours of the same lineage. */
static enum lmcs_status show_joined(struct lmcs_stage *stage, struct lmcs_txn *txn, const struct lmcs_stage_shelf *from,
                                    struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    struct lmcs_shelf joined;
    struct tags tags = {.count = 0};
    if (from->joined == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_shelf_load(txn, from->joined, &joined, error);
    if (status == LMCS_OK)
        status = remove_replaced(txn, &joined, shelf, &tags, error);
    if (status == LMCS_OK)
        status = move_all(stage, txn, &joined, shelf, error);
    for (size_t i = 0; i < tags.count; i++) {
        if (status == LMCS_OK)
            status = lmcs_tag_put(txn, shelf, tags.items[i].text, tags.items[i].number, error);
        free(tags.items[i].text);
    }
    free(tags.items);
    return status;
}

/* Gives a shelf that of the archive; a copy, under another name, one that derives from it; a new one if the pool
 * has these already. */
static enum lmcs_status give_identity(struct lmcs_stage *stage, struct lmcs_txn *txn,
                                      const struct lmcs_stage_shelf *from, struct lmcs_shelf *shelf,
                                      struct lmcs_error *error)
{
    struct lmcs_shelf other;
    uint64_t identities[2][2];
    bool is_copy = stage->is_named && strcmp(from->name, from->from) != 0, is_taken = true;
    enum lmcs_status status = LMCS_OK;
    memcpy(identities[0], from->identity, sizeof from->identity);
    lmcs_stage_copy_identity(from->identity, from->name, identities[1]);
    for (size_t i = is_copy ? 1 : 0; status == LMCS_OK && is_taken && i < 2; i++) {
        status = lmcs_stage_known_shelf(stage, txn, identities[i], &other, &is_taken, error);
        if (!is_taken)
            memcpy(shelf->df.identity, identities[i], sizeof identities[i]);
    }
    if (is_taken)
        lmcs_shelf_identify(txn, shelf);
    return status;
}

static enum lmcs_status merge_shelf(struct lmcs_stage *stage, struct lmcs_txn *txn, struct lmcs_stage_shelf *from,
                                    struct lmcs_shelf *staging, struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    enum lmcs_status status = show_joined(stage, txn, from, shelf, error);
    if (status == LMCS_OK)
        status = move_all(stage, txn, staging, shelf, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_find_latest(txn, shelf, error);
    if (shelf->df.next_number < from->next_number)
        shelf->df.next_number = from->next_number;
    if (status == LMCS_OK && !lmcs_shelf_is_known(shelf->df.identity))
        status = give_identity(stage, txn, from, shelf, error);
    if (status == LMCS_OK)
        status = lmcs_stage_put_metas(txn, from, shelf, error);
    if (status == LMCS_OK)
        status = put_tags(txn, from, shelf, stage->moves_tags, error);
    return status == LMCS_OK ? lmcs_shelf_save(txn, shelf, error) : status;
}

/* Finds the shelf of the archive that has the name there. NULL: the archive has none. */
static const struct lmcs_stage_shelf *find_in_archive(const struct lmcs_stage *stage, size_t archive, const char *name)
{
    for (size_t i = 0; i < stage->shelf_count; i++)
        if (stage->shelves[i].archive == archive && strcmp(stage->shelves[i].from, name) == 0)
            return &stage->shelves[i];
    return NULL;
}

/* Records the origin of a fork once all shelves are visible; keeps one that the pool has. */
static enum lmcs_status put_origin(const struct lmcs_stage *stage, struct lmcs_txn *txn,
                                   const struct lmcs_stage_shelf *from, struct lmcs_error *error)
{
    const struct lmcs_stage_shelf *source = find_in_archive(stage, from->archive, from->origin);
    const char *name = source != NULL ? source->name : from->origin;
    struct lmcs_shelf shelf, there;
    struct lmcs_record record;
    struct lmcs_origin origin;
    bool found;
    enum lmcs_status status = lmcs_shelf_get(txn, from->name, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_origin_get(txn, shelf.df.id, &origin, &found, error);
    if (status != LMCS_OK || found)
        return status;
    origin.df = (struct lmcs_origin_df){.number = from->origin_number, .time_ns = from->origin_time_ns};
    snprintf(origin.name, sizeof origin.name, "%s", name);
    status = lmcs_shelf_find(txn, name, &there, &found, error);
    if (status == LMCS_OK && found && there.df.id != shelf.df.id) {
        status = lmcs_record_get(txn, &there, from->origin_number, &record, &found, error);
        bool is_source = found ? record.df.time_ns == from->origin_time_ns : source != NULL;
        origin.df.shelf = is_source ? there.df.id : 0;
    }
    return status == LMCS_OK ? lmcs_origin_put(txn, shelf.df.id, &origin, error) : status;
}

static enum lmcs_status show_shelf(struct lmcs_stage *stage, struct lmcs_txn *txn, struct lmcs_stage_shelf *from,
                                   struct lmcs_error *error)
{
    struct lmcs_shelf staging, shelf;
    bool found = false;
    enum lmcs_status status = lmcs_shelf_load(txn, from->id, &staging, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_find(txn, from->name, &shelf, &found, error);
    if (status != LMCS_OK)
        return status;
    if (found)
        return merge_shelf(stage, txn, from, &staging, &shelf, error);
    txn->root.snapshot_count += staging.df.snapshot_count;
    stage->shown += staging.df.snapshot_count;
    status = give_identity(stage, txn, from, &staging, error);
    if (status == LMCS_OK && strcmp(staging.name, from->name) != 0)
        status = lmcs_shelf_set_name(txn, &staging, from->name, error);
    if (status != LMCS_OK)
        return status;
    staging.df.flags &= ~(LMCS_SHELF_STAGING | LMCS_SHELF_KEPT);
    staging.df.next_number = from->next_number;
    staging.df.keep_raw = from->keep_raw;
    status = put_tags(txn, from, &staging, stage->moves_tags, error);
    return status == LMCS_OK ? lmcs_shelf_save(txn, &staging, error) : status;
}

/* Records contents that only deltas need as unused, so that the compactor may remove them. */
static enum lmcs_status note_bases(struct lmcs_stage *stage, struct lmcs_txn *txn, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < stage->unrun_count; i++) {
        struct lmcs_content content;
        const uint64_t none = 0;
        uint64_t successor;
        bool found = false, noted = true;
        status = lmcs_content_find(txn, stage->unrun[i], &content, &found, error);
        /* A link is freed with its last output. */
        if (status == LMCS_OK && found && content.df.runs == 0 && content.df.payload != LMCS_PAYLOAD_LINK)
            status = lmcs_root_get(txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){0, content.id}, &successor,
                                   sizeof successor, sizeof successor, NULL, &noted, error);
        if (status == LMCS_OK && !noted)
            status = lmcs_root_put(txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){0, content.id}, &none, sizeof none,
                                   error);
    }
    return status;
}

static enum lmcs_status show_all(struct lmcs_stage *stage, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    stage->shown = 0;
    enum lmcs_status status = lmcs_txn_write(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < stage->shelf_count; i++)
        if (!stage->shelves[i].is_gone)
            status = show_shelf(stage, &txn, &stage->shelves[i], error);
    for (size_t i = stage->shelf_count; status == LMCS_OK && i-- > 0;) /* the latest archive's first */
        if (stage->shelves[i].origin != NULL && !stage->shelves[i].is_gone)
            status = put_origin(stage, &txn, &stage->shelves[i], error);
    if (status == LMCS_OK)
        status = note_bases(stage, &txn, error);
    return lmcs_txn_finish(&txn, status, error);
}

static enum lmcs_status drop_gone(struct lmcs_stage *stage, struct lmcs_stage_shelf *shelf, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_stage_drop_id(stage, &shelf->id, error);
    return status == LMCS_OK ? lmcs_stage_drop_id(stage, &shelf->joined, error) : status;
}

static enum lmcs_status drop_and_show(struct lmcs_stage *stage, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < stage->shelf_count; i++)
        status = stage->shelves[i].is_gone ? drop_gone(stage, &stage->shelves[i], error)
                                           : drop_skipped(stage, &stage->shelves[i], error);
    return status == LMCS_OK ? show_all(stage, error) : status;
}

enum lmcs_status lmcs_stage_show(struct lmcs_stage *stage, struct lmcs_error *error)
{
    enum lmcs_status status = settle_names(stage, error);
    if (status != LMCS_OK)
        return status;
    settle_tags(stage);
    status = drop_and_show(stage, error);
    if (status == LMCS_FULL && lmcs_pool_make_room(stage->pool, NULL))
        status = drop_and_show(stage, error);
    if (status == LMCS_OK)
        lmcs_pool_wake(stage->pool);
    return status;
}
