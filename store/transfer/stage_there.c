/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/stage_there.c - shelves and snapshots of a restore that the pool, or an earlier archive, has.
 *
 * Two shelves are the same if their identities are. Without both identities names are compared, and the report warns
 * unless the two have a snapshot in common.
 *
 * A restore of some tensors leaves a snapshot with fewer. A later one of others, or of all, completes it: both parts
 * are staged together in `joined`, a staging shelf and lineage, and replace the snapshot when all is shown.
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/tree.h"
#include "records/manifest.h"
#include "shelves/shelves.h"
#include "snapshots/snapshot.h"
#include "transfer/stage.h"

/* ---- Shelves ---- */

/* Finds the newest staged shelf of an earlier archive that is the same. Returns its index + 1; 0: none. */
static size_t find_earlier(const struct lmcs_stage *stage, size_t index)
{
    const struct lmcs_stage_shelf *shelf = &stage->shelves[index];
    size_t by_identity = 0, by_name = 0;
    for (size_t i = index; i-- > 0;) {
        const struct lmcs_stage_shelf *other = &stage->shelves[i];
        const uint64_t *identity = stage->shelves[other->first].identity;
        bool is_same = lmcs_shelf_is_same(identity, shelf->identity);
        bool has_name = strcmp(other->name, shelf->name) == 0;
        if (other->archive == shelf->archive)
            continue;
        if (is_same && has_name)
            return i + 1;
        if (is_same && by_identity == 0)
            by_identity = i + 1;
        if (has_name && by_name == 0)
            by_name = i + 1;
    }
    if (by_identity != 0 || by_name == 0)
        return by_identity;
    const uint64_t *identity = stage->shelves[stage->shelves[by_name - 1].first].identity;
    return lmcs_shelf_differs(identity, shelf->identity) ? 0 : by_name;
}

enum lmcs_status lmcs_stage_fail_other(const struct lmcs_txn *txn, const char *name, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_EXISTS, 0,
                     "%s: shelf \"%.200s\" is not the archive's \"%.200s\": they were begun apart and have other "
                     "identities, so nothing was restored; rename the pool's shelf, or restore under another name "
                     "(--as, name=)",
                     txn->pool->path, name, name);
}

static enum lmcs_status list_shelves(struct lmcs_stage *stage, struct lmcs_txn *txn, struct lmcs_error *error)
{
    uint64_t id = 0;
    size_t count = 1;
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && id < UINT64_MAX) {
        struct lmcs_shelf shelf;
        status = lmcs_shelf_ids(txn, id + 1, &id, 1, &count, error);
        if (status != LMCS_OK || count == 0)
            break;
        status = lmcs_shelf_load(txn, id, &shelf, error);
        bool is_other =
            status != LMCS_OK || !lmcs_shelf_is_known(shelf.df.identity) || (shelf.df.flags & LMCS_SHELF_STAGING) != 0;
        if (lmcs_is_unusable(status)) /* a damaged shelf is found by its name only */
            status = LMCS_OK;
        if (is_other)
            continue;
        if (!lmcs_grow(&stage->known, &stage->known_capacity, stage->known_count, sizeof *stage->known))
            return lmcs_fail_memory(error);
        struct lmcs_stage_known *known = &stage->known[stage->known_count++];
        memcpy(known->identity, shelf.df.identity, sizeof known->identity);
        known->id = id;
    }
    stage->knows_shelves = status == LMCS_OK;
    return status;
}

enum lmcs_status lmcs_stage_known_shelf(struct lmcs_stage *stage, struct lmcs_txn *txn, const uint64_t identity[2],
                                        struct lmcs_shelf *shelf, bool *found, struct lmcs_error *error)
{
    enum lmcs_status status = stage->knows_shelves ? LMCS_OK : list_shelves(stage, txn, error);
    *found = false;
    for (size_t i = 0; status == LMCS_OK && !*found && i < stage->known_count; i++)
        if (lmcs_shelf_is_same(stage->known[i].identity, identity))
            status = lmcs_shelf_load_if(txn, stage->known[i].id, shelf, found, error);
    *found = *found && (shelf->df.flags & LMCS_SHELF_STAGING) == 0;
    return status;
}

void lmcs_stage_copy_identity(const uint64_t identity[2], const char *name, uint64_t copy[2])
{
    struct lmc_hasher hasher;
    lmc_hasher_init(&hasher);
    lmc_hasher_update(&hasher, identity, 2 * sizeof identity[0]);
    lmc_hasher_update(&hasher, name, strlen(name));
    struct lmc_hash hash = lmc_hasher_final(&hasher);
    copy[0] = lmcs_shelf_is_known(identity) ? hash.low : 0;
    copy[1] = lmcs_shelf_is_known(identity) ? hash.high : 0;
}

/* Finds the shelf in the pool: by identity, else by name. */
static enum lmcs_status find_in_pool(struct lmcs_stage *stage, struct lmcs_txn *txn,
                                     const struct lmcs_stage_shelf *from, struct lmcs_shelf *shelf, bool *found,
                                     struct lmcs_error *error)
{
    struct lmcs_shelf named;
    bool has_name;
    enum lmcs_status status = lmcs_shelf_find(txn, from->name, &named, &has_name, error);
    bool differs = has_name && lmcs_shelf_differs(named.df.identity, from->identity) && !stage->is_named;
    bool is_same = has_name && lmcs_shelf_is_same(named.df.identity, from->identity);
    *found = false;
    if (status == LMCS_OK && !is_same && !stage->is_named)
        status = lmcs_stage_known_shelf(stage, txn, from->identity, shelf, found, error);
    if (status == LMCS_OK && !*found && differs && stage->is_last)
        return lmcs_stage_fail_other(txn, from->name, error);
    if (status == LMCS_OK && !*found && has_name && !differs) {
        *shelf = named;
        *found = true;
    }
    return status;
}

/* Acquires the pool's shelf, which has another name than the staged one. */
static enum lmcs_status take_also(struct lmcs_stage *stage, size_t index, const struct lmcs_shelf *there,
                                  struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf now;
    bool found = false;
    for (size_t i = 0; i < stage->shelf_count; i++) {
        const struct lmcs_stage_shelf *other = &stage->shelves[i];
        if ((other->busy != NULL && strcmp(other->busy->name, there->name) == 0) ||
            (other->also != NULL && strcmp(other->also->name, there->name) == 0))
            return LMCS_OK;
    }
    enum lmcs_status status = lmcs_shelf_take(stage->pool, there->name, &stage->shelves[index].also, error);
    if (status == LMCS_OK)
        status = lmcs_txn_read(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_find(&txn, there->name, &now, &found, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && (!found || now.df.id != there->df.id))
        return lmcs_fail(error, LMCS_IN_USE, 0, "%s: shelf \"%.200s\" was renamed or removed meanwhile: restore again",
                         stage->pool->path, there->name);
    return status;
}

enum lmcs_status lmcs_stage_place(struct lmcs_stage *stage, size_t index, struct lmcs_error *error)
{
    struct lmcs_stage_shelf *shelf = &stage->shelves[index];
    struct lmcs_txn txn;
    struct lmcs_shelf there;
    bool found = false;
    if (shelf->is_placed)
        return LMCS_OK;
    size_t earlier = find_earlier(stage, index);
    shelf->first = earlier != 0 ? stage->shelves[earlier - 1].first : index;
    uint64_t *identity = stage->shelves[shelf->first].identity;
    stage->shelves[shelf->first].by_name |=
        earlier != 0 && (!lmcs_shelf_is_known(identity) || !lmcs_shelf_is_known(shelf->identity));
    memcpy(lmcs_shelf_is_known(identity) ? shelf->identity : identity,
           lmcs_shelf_is_known(identity) ? identity : shelf->identity, sizeof shelf->identity);
    enum lmcs_status status = lmcs_txn_read(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = find_in_pool(stage, &txn, shelf, &there, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_shelf_check_unprepared(&txn, &there, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && found && strcmp(there.name, shelf->name) != 0)
        status = take_also(stage, index, &there, error);
    shelf->there = found ? there.df.id : 0;
    shelf->is_placed = status == LMCS_OK;
    return status;
}

enum lmcs_status lmcs_stage_identify(struct lmcs_stage *stage, const struct lmcs_archive_shelf_id_df *id,
                                     struct lmcs_error *error)
{
    struct lmcs_stage_shelf *shelf = &stage->shelves[stage->shelf_count - 1];
    memcpy(shelf->identity, id->identity, sizeof shelf->identity);
    shelf->has_all_tags = (id->flags & LMCS_ARCHIVE_ALL_TAGS) != 0;
    return lmcs_stage_place(stage, stage->shelf_count - 1, error);
}

/* ---- Snapshots ---- */

enum match { ABSENT, SAME, FEWER /* the one that is there has not all tensors of the staged one */ };

struct comparing {
    struct lmcs_txn *txn;
    const struct lmcs_snapshot_df *there;
    bool fits;
    bool has_more;
};

static enum lmcs_status compare_contents(struct comparing *c, uint64_t staged, uint64_t there, struct lmcs_error *error)
{
    struct lmcs_content a, b;
    if (staged == there)
        return LMCS_OK;
    enum lmcs_status status = lmcs_content_get(c->txn, staged, &a, error);
    if (status == LMCS_OK)
        status = lmcs_content_get(c->txn, there, &b, error);
    c->fits = status == LMCS_OK && a.df.digest_low == b.df.digest_low && a.df.digest_high == b.df.digest_high;
    return status;
}

static enum lmcs_status find_entry(struct lmcs_txn *txn, const struct lmcs_snapshot_df *of, uint64_t id,
                                   struct lmcs_manifest_df *entry, bool *found, struct lmcs_error *error)
{
    struct lmcs_root_tree_df manifest = {.ref = of->manifest, .count = of->entry_count};
    return lmcs_tree_get(txn, LMCS_TREE_MANIFEST, &manifest, (struct lmcs_key_df){id, 0}, entry, sizeof *entry,
                         sizeof *entry, NULL, found, error);
}

static enum lmcs_status compare_entry(void *context, uint64_t id, const struct lmcs_manifest_df *entry, bool *stop,
                                      struct lmcs_error *error)
{
    struct comparing *c = context;
    struct lmcs_manifest_df there;
    struct lmcs_identity identity, other;
    uint64_t content;
    bool found = false;
    enum lmcs_status status = find_entry(c->txn, c->there, id, &there, &found, error);
    if (status == LMCS_OK && found)
        status = compare_contents(c, entry->content, there.content, error);
    if (status == LMCS_OK && !found) {
        c->has_more = true;
        status = lmcs_identity_get(c->txn, id, &identity, error);
        if (status == LMCS_OK) /* of another dtype or shape? */
            status =
                lmcs_manifest_find(c->txn, c->there, identity.df.kind, identity.name, &other, &content, &found, error);
        c->fits = !found;
    }
    *stop = !c->fits;
    return status;
}

static bool has_same_head(const struct lmcs_record *a, const struct lmcs_record *b)
{
    return lmcs_record_is_committed(a) == lmcs_record_is_committed(b) && a->df.step == b->df.step &&
           a->df.time_ns == b->df.time_ns && a->df.parent == b->df.parent &&
           memcmp(a->df.group, b->df.group, sizeof a->df.group) == 0;
}

/* Compares the staged snapshot with the same number of a shelf. LMCS_EXISTS: they contradict each other. */
static enum lmcs_status compare(struct lmcs_txn *txn, uint64_t shelf_id, const struct lmcs_record *record,
                                struct lmcs_record *there, enum match *match, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    bool found = false;
    *match = ABSENT;
    enum lmcs_status status = lmcs_shelf_load(txn, shelf_id, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_record_get(txn, &shelf, record->df.number, there, &found, error);
    if (status != LMCS_OK || !found)
        return status;
    struct comparing c = {.txn = txn, .there = &there->df, .fits = has_same_head(record, there)};
    if (there->df.state == LMCS_SNAPSHOT_REMOTE) /* comes back whole, or not */
        c.fits =
            c.fits && record->df.tensor_count == there->df.tensor_count && record->df.raw_bytes == there->df.raw_bytes;
    if (c.fits)
        status = lmcs_stage_compare_meta(record, there, &c.fits, error);
    if (status == LMCS_OK && c.fits)
        status = lmcs_manifest_each(txn, &record->df, compare_entry, &c, error);
    *match = c.has_more ? FEWER : SAME;
    if (status != LMCS_OK || c.fits)
        return status;
    return lmcs_fail(error, LMCS_EXISTS, 0,
                     "%s: %s@%llu exists and differs from the archive's: nothing was restored; restore into another "
                     "pool, or under another name",
                     txn->pool->path, shelf.name, (unsigned long long)record->df.number);
}

/* ---- Completed snapshots ---- */

struct joining {
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    const struct lmcs_snapshot_df *staged;
    const struct lmcs_snapshot_df *there;
    struct lmcs_record record;
    struct lmcs_root_tree_df manifest;
};

/* Makes a new run unless the joined snapshot before has the same content. */
static enum lmcs_status put_joined(struct joining *j, uint64_t id, uint64_t content, struct lmcs_error *error)
{
    const struct lmcs_key_df key = {id, 0};
    struct lmcs_manifest_df old, now = {content, j->record.df.number};
    bool found;
    enum lmcs_status status = lmcs_tree_get(&j->txn, LMCS_TREE_MANIFEST, &j->manifest, key, &old, sizeof old,
                                            sizeof old, NULL, &found, error);
    if (status != LMCS_OK || (found && old.content == content))
        return status;
    status = lmcs_content_run(&j->txn, content, id, error);
    return status == LMCS_OK ? lmcs_tree_put(&j->txn, LMCS_TREE_MANIFEST, &j->manifest, key, &now, sizeof now, error)
                             : status;
}

static enum lmcs_status add_staged(void *context, uint64_t id, const struct lmcs_manifest_df *entry, bool *stop,
                                   struct lmcs_error *error)
{
    (void)stop;
    return put_joined(context, id, entry->content, error);
}

static enum lmcs_status add_missing(void *context, uint64_t id, const struct lmcs_manifest_df *entry, bool *stop,
                                    struct lmcs_error *error)
{
    struct joining *j = context;
    struct lmcs_manifest_df staged;
    struct lmcs_identity identity;
    struct lmcs_content content;
    bool found;
    (void)stop;
    enum lmcs_status status = find_entry(&j->txn, j->staged, id, &staged, &found, error);
    if (status != LMCS_OK || found)
        return status;
    status = lmcs_identity_get(&j->txn, id, &identity, error);
    if (status == LMCS_OK)
        status = lmcs_content_get(&j->txn, entry->content, &content, error);
    if (status != LMCS_OK)
        return status;
    j->record.df.tensor_count += identity.df.kind == LMCS_TENSOR;
    if (__builtin_add_overflow(j->record.df.raw_bytes, content.df.raw_bytes, &j->record.df.raw_bytes))
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0, "a completed snapshot is impossibly large");
    return put_joined(j, id, entry->content, error);
}

/* Removes an entry of the joined snapshot before that neither record has. */
static enum lmcs_status drop_absent(void *context, uint64_t id, const struct lmcs_manifest_df *entry, bool *stop,
                                    struct lmcs_error *error)
{
    struct joining *j = context;
    struct lmcs_manifest_df have;
    bool found;
    (void)entry;
    (void)stop;
    enum lmcs_status status = find_entry(&j->txn, j->staged, id, &have, &found, error);
    if (status == LMCS_OK && !found)
        status = find_entry(&j->txn, j->there, id, &have, &found, error);
    if (status != LMCS_OK || found)
        return status;
    return lmcs_tree_delete(&j->txn, LMCS_TREE_MANIFEST, &j->manifest, (struct lmcs_key_df){id, 0}, NULL, error);
}

static enum lmcs_status join_entries(struct joining *j, const struct lmcs_snapshot_df *last, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    if (last->number != 0) {
        j->manifest = (struct lmcs_root_tree_df){.ref = last->manifest, .count = last->entry_count};
        status = lmcs_manifest_each(&j->txn, last, drop_absent, j, error);
    }
    if (status == LMCS_OK)
        status = lmcs_manifest_each(&j->txn, j->staged, add_staged, j, error);
    if (status == LMCS_OK)
        status = lmcs_manifest_each(&j->txn, j->there, add_missing, j, error);
    return status == LMCS_OK ? lmcs_tree_seal(&j->txn, LMCS_TREE_MANIFEST, &j->manifest, error) : status;
}

/* Stages the tensors of both records as one snapshot. */
static enum lmcs_status join_once(struct lmcs_stage *stage, struct lmcs_stage_shelf *shelf,
                                  const struct lmcs_record *staged, const struct lmcs_record *there,
                                  struct lmcs_error *error)
{
    struct joining j = {.staged = &staged->df, .there = &there->df, .record = *staged};
    struct lmcs_snapshot_df *df = &j.record.df;
    enum lmcs_status status = lmcs_txn_write(stage->pool, &j.txn, error);
    if (status != LMCS_OK)
        return status;
    j.txn.only_allocates = true;
    if (there->df.meta_bytes != UINT32_MAX) { /* lmcs_stage_put_metas adds the staged metadata */
        df->meta_bytes = there->df.meta_bytes;
        memcpy(j.record.meta, there->meta, sizeof j.record.meta);
    }
    status = shelf->joined == 0 ? lmcs_shelf_make(&j.txn, shelf->name, LMCS_SHELF_STAGING, &j.shelf, error)
                                : lmcs_shelf_load(&j.txn, shelf->joined, &j.shelf, error);
    if (status == LMCS_OK)
        status = join_entries(&j, &shelf->joined_last, error);
    df->epoch = j.txn.root.epoch;
    df->lineage = shelf->joined_last.number != 0 ? shelf->joined_last.lineage : df->epoch;
    df->manifest = j.manifest.ref;
    df->entry_count = j.manifest.count;
    if (status == LMCS_OK)
        status = lmcs_record_put(&j.txn, &j.shelf, &j.record, error);
    j.shelf.df.latest = df->number;
    j.shelf.df.next_number = df->number + 1;
    j.shelf.df.snapshot_count++;
    if (status == LMCS_OK)
        status = lmcs_shelf_save(&j.txn, &j.shelf, error);
    status = lmcs_txn_finish(&j.txn, status, error);
    if (status == LMCS_OK) {
        shelf->joined = j.shelf.df.id;
        shelf->joined_last = *df;
    }
    return status;
}

static enum lmcs_status join(struct lmcs_stage *stage, struct lmcs_stage_shelf *shelf, const struct lmcs_record *staged,
                             const struct lmcs_record *there, struct lmcs_error *error)
{
    enum lmcs_status status = join_once(stage, shelf, staged, there, error);
    if (status == LMCS_FULL && lmcs_pool_make_room(stage->pool, NULL))
        status = join_once(stage, shelf, staged, there, error);
    return status;
}

enum lmcs_status lmcs_stage_note_there(struct lmcs_stage *stage, size_t index, const struct lmcs_record *record,
                                       struct lmcs_error *error)
{
    struct lmcs_stage_shelf *shelf = &stage->shelves[index];
    struct lmcs_txn txn;
    struct lmcs_record there;
    enum match match = ABSENT;
    enum lmcs_status status = lmcs_stage_place(stage, index, error);
    if (status == LMCS_OK)
        status = lmcs_txn_read(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && match == ABSENT && i < index; i++)
        if (stage->shelves[i].first == shelf->first)
            status = compare(&txn, stage->shelves[i].id, record, &there, &match, error);
    if (status == LMCS_OK && match == FEWER)
        status = lmcs_fail(error, LMCS_EXISTS, 0,
                           "%s: two archives have other tensors of %s@%llu: restore one after the other",
                           stage->pool->path, shelf->name, (unsigned long long)record->df.number);
    const bool wins = match != ABSENT;
    if (status == LMCS_OK && match == ABSENT && shelf->there != 0)
        status = compare(&txn, shelf->there, record, &there, &match, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && match == FEWER)
        status = join(stage, shelf, record, &there, error);
    if (status == LMCS_OK && match != ABSENT)
        status = lmcs_stage_note_meta(shelf, record, &there, wins, error);
    if (status != LMCS_OK || match == ABSENT)
        return status;
    if (!lmcs_grow(&shelf->skipped, &shelf->skipped_capacity, shelf->skipped_count, sizeof *shelf->skipped))
        return lmcs_fail_memory(error);
    shelf->skipped[shelf->skipped_count++] = record->df.number;
    stage->skipped += match == SAME;
    return LMCS_OK;
}
