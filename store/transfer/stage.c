/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/stage.c - stages the snapshots of a restore in shelves that no listing contains, and shows them at the end.
 *
 * One transaction stages a snapshot: contents, identities, and its manifest, a copy-on-write copy of the one before. So
 * every content belongs to a staged snapshot or is the base of a delta, and removing the snapshots removes everything,
 * after a failure or at the next open after a crash (shelves/drop.c). Uncommitted payloads are beyond the recorded ends
 * of their extents; a crash frees that space.
 *
 * The manifests of a staging shelf form a lineage, so one transaction shows them unchanged: it clears the shelf's mark,
 * or moves the records to the existing shelf. It also records contents that are only bases as unused; earlier, the
 * compactor could remove them while deltas against them still arrive.
 */
#include "transfer/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/tree.h"
#include "payload/read.h"
#include "records/manifest.h"
#include "records/meta.h"
#include "records/origin.h"
#include "shelves/shelves.h"
#include "snapshots/snapshot.h"
#include "transfer/bases.h"

#define WARM_BYTES     ((uint64_t)64 << 20)
#define RELEASE_RANGES 4096u

static struct lmcs_stage_shelf *current(struct lmcs_stage *stage)
{
    return &stage->shelves[stage->shelf_count - 1];
}

void lmcs_stage_init(struct lmcs_stage *stage, struct lmcs_pool *pool)
{
    memset(stage, 0, sizeof *stage);
    stage->pool = pool;
    lmcs_region_init(&stage->raw, pool, 0);
    lmcs_region_init(&stage->coded, pool, 1);
}

/* Ends the regions and begins new ones. */
static void renew_regions(struct lmcs_stage *stage)
{
    lmcs_region_end(&stage->raw);
    lmcs_region_end(&stage->coded);
    lmcs_region_init(&stage->raw, stage->pool, 0);
    lmcs_region_init(&stage->coded, stage->pool, 1);
}

static void end_shelf(struct lmcs_stage *stage, struct lmcs_stage_shelf *shelf)
{
    if (shelf->busy != NULL)
        lmcs_shelf_give(stage->pool, shelf->busy);
    if (shelf->also != NULL)
        lmcs_shelf_give(stage->pool, shelf->also);
    for (size_t i = 0; i < shelf->tag_count; i++)
        free(shelf->tags[i].text);
    free(shelf->tags);
    for (size_t i = 0; i < shelf->meta_count; i++)
        free(shelf->metas[i].text);
    free(shelf->metas);
    free(shelf->skipped);
    free(shelf->origin);
    free(shelf->name);
    free(shelf->from);
}

void lmcs_stage_fini(struct lmcs_stage *stage)
{
    lmcs_region_end(&stage->raw);
    lmcs_region_end(&stage->coded);
    for (size_t i = 0; i < stage->shelf_count; i++)
        end_shelf(stage, &stage->shelves[i]);
    free(stage->shelves);
    free(stage->found);
    free(stage->known);
    free(stage->verified);
    free(stage->unrun);
    free(stage->pending);
    free(stage->entries);
}

/* ---- Shelves ---- */

static enum lmcs_status make_staging(struct lmcs_stage *stage, struct lmcs_stage_shelf *shelf, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf staging, there;
    bool found = false;
    enum lmcs_status status = lmcs_txn_write(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_find(&txn, shelf->name, &there, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_shelf_check_unprepared(&txn, &there, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_make(&txn, shelf->name, LMCS_SHELF_STAGING | (stage->keeps ? LMCS_SHELF_KEPT : 0), &staging,
                                 error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    status = lmcs_txn_commit(&txn, error);
    if (status == LMCS_OK)
        shelf->id = staging.df.id;
    return status;
}

/* Whether an earlier archive of this restore has acquired the newest one's name. */
static bool is_taken(const struct lmcs_stage *stage, const char *name)
{
    bool taken = false;
    for (size_t i = 0; i + 1 < stage->shelf_count; i++)
        taken = taken || strcmp(stage->shelves[i].name, name) == 0 ||
                (stage->shelves[i].also != NULL && strcmp(stage->shelves[i].also->name, name) == 0);
    return taken;
}

enum lmcs_status lmcs_stage_shelf(struct lmcs_stage *stage, const char *name, const char *from, uint64_t next_number,
                                  uint32_t keep_raw, struct lmcs_error *error)
{
    if (!lmcs_grow(&stage->shelves, &stage->shelf_capacity, stage->shelf_count, sizeof *stage->shelves))
        return lmcs_fail_memory(error);
    struct lmcs_stage_shelf *shelf = &stage->shelves[stage->shelf_count];
    *shelf = (struct lmcs_stage_shelf){.name = strdup(name),
                                       .from = strdup(from),
                                       .next_number = next_number,
                                       .keep_raw = keep_raw,
                                       .archive = stage->archive};
    stage->shelf_count++;
    if (shelf->name == NULL || shelf->from == NULL)
        return lmcs_fail_memory(error);
    stage->shelves[stage->shelf_count - 1].first = stage->shelf_count - 1;
    enum lmcs_status status = is_taken(stage, name) ? LMCS_OK : lmcs_shelf_take(stage->pool, name, &shelf->busy, error);
    if (status != LMCS_OK)
        return status;
    status = make_staging(stage, shelf, error);
    if (status == LMCS_FULL && lmcs_pool_make_room(stage->pool, NULL))
        status = make_staging(stage, shelf, error);
    return status;
}

enum lmcs_status lmcs_stage_tag(struct lmcs_stage *stage, uint64_t number, const char *text, struct lmcs_error *error)
{
    struct lmcs_stage_shelf *shelf = current(stage);
    if (!lmcs_grow(&shelf->tags, &shelf->tag_capacity, shelf->tag_count, sizeof *shelf->tags))
        return lmcs_fail_memory(error);
    char *copy = strdup(text);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    shelf->tags[shelf->tag_count++] = (struct lmcs_stage_tag){number, copy};
    return LMCS_OK;
}

/* ---- A snapshot: within its transaction ---- */

struct staging {
    struct lmcs_stage *stage;
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_root_tree_df manifest;
};

static enum lmcs_status find_identity(struct staging *s, size_t index, uint64_t *id, struct lmcs_error *error)
{
    struct lmcs_archive_identity *identity = s->stage->reader->identities[index];
    enum lmcs_status status = LMCS_OK;
    if (identity->pool_id == 0) {
        status = lmcs_identity_make(&s->txn, &identity->tensor, &identity->pool_id, error);
        identity->attempt = s->stage->attempt;
    }
    *id = identity->pool_id;
    return status;
}

static enum lmcs_status remove_entry(struct staging *s, const struct lmcs_archive_entry_df *entry,
                                     struct lmcs_error *error)
{
    uint64_t identity;
    enum lmcs_status status = find_identity(s, (size_t)entry->identity - 1, &identity, error);
    return status == LMCS_OK ? lmcs_tree_delete(&s->txn, LMCS_TREE_MANIFEST, &s->manifest,
                                                (struct lmcs_key_df){identity, 0}, NULL, error)
                             : status;
}

/* Checks, within the transaction, that a content found in the pool still exists. */
static enum lmcs_status check_found(struct staging *s, const struct lmcs_archive_content *content,
                                    struct lmcs_error *error)
{
    struct lmcs_content there;
    bool found = true;
    if (!content->is_found)
        return LMCS_OK;
    enum lmcs_status status = lmcs_content_find(&s->txn, content->pool_id, &there, &found, error);
    return status == LMCS_OK && !found ? lmcs_stage_fail_overtaken(s->stage, content, error) : status;
}

static enum lmcs_status add_content(struct staging *s, struct lmcs_stage_pending *pending, struct lmcs_error *error)
{
    struct lmcs_archive_content *entry = &s->stage->reader->contents[pending->index];
    struct lmcs_content *content = &pending->content;
    content->id = 0;
    content->df.runs = content->df.base_uses = content->df.height = 0;
    enum lmcs_status status = find_identity(s, entry->identity, &content->df.identity, error);
    if (status == LMCS_OK)
        status = lmcs_stage_tie(s->stage, &s->txn, pending, error);
    if (status == LMCS_OK)
        status = lmcs_content_add(&s->txn, content, error);
    if (!pending->is_copy)
        entry->pool_id = content->id;
    return status;
}

/* Makes a new run unless the snapshot before has the same content. */
static enum lmcs_status put_entry(struct staging *s, const struct lmcs_archive_entry_df *entry,
                                  struct lmcs_error *error)
{
    struct lmcs_archive_content *content = &s->stage->reader->contents[entry->content - 1];
    struct lmcs_manifest_df old, now = {content->pool_id, s->stage->record.df.number};
    struct lmcs_key_df key = {0, 0};
    bool found = false;
    enum lmcs_status status = find_identity(s, (size_t)entry->identity - 1, &key.high, error);
    if (status == LMCS_OK && s->stage->is_changes)
        status = lmcs_tree_get(&s->txn, LMCS_TREE_MANIFEST, &s->manifest, key, &old, sizeof old, sizeof old, NULL,
                               &found, error);
    if (status != LMCS_OK || (found && old.content == now.content))
        return status;
    status = check_found(s, content, error);
    if (status == LMCS_OK && content->is_found) /* until now it may have been only a base */
        status =
            lmcs_root_delete(&s->txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){0, content->pool_id}, &found, error);
    if (status == LMCS_OK)
        status = lmcs_content_run(&s->txn, content->pool_id, key.high, error);
    return status == LMCS_OK ? lmcs_tree_put(&s->txn, LMCS_TREE_MANIFEST, &s->manifest, key, &now, sizeof now, error)
                             : status;
}

static enum lmcs_status put_entries(struct staging *s, struct lmcs_error *error)
{
    struct lmcs_stage *stage = s->stage;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < stage->entry_count; i++)
        if (stage->entries[i].content == 0)
            status = remove_entry(s, &stage->entries[i], error);
    /* Identities get ids in the order of the entries, which listings keep. */
    for (size_t i = 0; status == LMCS_OK && i < stage->entry_count; i++) {
        uint64_t id;
        if (stage->entries[i].content != 0)
            status = find_identity(s, (size_t)stage->entries[i].identity - 1, &id, error);
    }
    for (size_t i = 0; status == LMCS_OK && i < stage->pending_count; i++)
        status = add_content(s, &stage->pending[i], error);
    for (size_t i = 0; status == LMCS_OK && i < stage->entry_count; i++)
        if (stage->entries[i].content != 0)
            status = put_entry(s, &stage->entries[i], error);
    return status;
}

static enum lmcs_status put_record(struct staging *s, struct lmcs_error *error)
{
    struct lmcs_stage_shelf *shelf = current(s->stage);
    struct lmcs_snapshot_df *df = &s->stage->record.df;
    enum lmcs_status status = lmcs_tree_seal(&s->txn, LMCS_TREE_MANIFEST, &s->manifest, error);
    if (status != LMCS_OK)
        return status;
    if (s->manifest.count != df->entry_count)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "the archive is damaged: a snapshot has two entries of one name");
    df->state = LMCS_SNAPSHOT_COMMITTED;
    df->epoch = s->txn.root.epoch;
    df->lineage = shelf->lineage != 0 ? shelf->lineage : s->txn.root.epoch;
    df->manifest = s->manifest.ref;
    status = lmcs_record_put(&s->txn, &s->shelf, &s->stage->record, error);
    s->shelf.df.latest = df->number;
    s->shelf.df.next_number = df->number + 1;
    s->shelf.df.snapshot_count++;
    return status == LMCS_OK ? lmcs_shelf_save(&s->txn, &s->shelf, error) : status;
}

static enum lmcs_status commit_snapshot(struct lmcs_stage *stage, struct lmcs_error *error)
{
    struct staging s = {.stage = stage};
    stage->attempt++;
    enum lmcs_status status = lmcs_txn_write(stage->pool, &s.txn, error);
    if (status != LMCS_OK)
        return status;
    s.txn.only_allocates = true;
    if (stage->is_changes)
        s.manifest =
            (struct lmcs_root_tree_df){.ref = current(stage)->last.manifest, .count = current(stage)->last.entry_count};
    status = lmcs_shelf_load(&s.txn, current(stage)->id, &s.shelf, error);
    if (status == LMCS_OK)
        status = put_entries(&s, error);
    if (status == LMCS_OK)
        status = put_record(&s, error);
    if (status == LMCS_OK)
        status = lmcs_region_commit(&s.txn, &stage->raw, error);
    if (status == LMCS_OK)
        status = lmcs_region_commit(&s.txn, &stage->coded, error);
    return lmcs_txn_finish(&s.txn, status, error);
}

static void forget_attempt(struct lmcs_stage *stage, size_t index)
{
    struct lmcs_archive_identity *identity = stage->reader->identities[index];
    if (identity->attempt == stage->attempt)
        identity->pool_id = 0;
}

/* Forgets ids that a failed transaction gave. */
static void forget_attempts(struct lmcs_stage *stage)
{
    for (size_t i = 0; i < stage->entry_count; i++)
        forget_attempt(stage, (size_t)stage->entries[i].identity - 1);
    for (size_t i = 0; i < stage->pending_count; i++)
        forget_attempt(stage, stage->reader->contents[stage->pending[i].index].identity);
}

/* ---- A snapshot: verification ---- */

const struct lmcs_tensor *lmcs_stage_tensor(const struct lmcs_stage *stage, size_t pending)
{
    const struct lmcs_archive_content *content = &stage->reader->contents[stage->pending[pending].index];
    return &stage->reader->identities[content->identity]->tensor;
}

bool lmcs_stage_stands_alone(const struct lmcs_stage *stage, size_t pending)
{
    const struct lmcs_archive_content *content = &stage->reader->contents[stage->pending[pending].index];
    return content->base_count == 0 && content->payload <= LMCS_PAYLOAD_FRAME;
}

enum lmcs_status lmcs_stage_verified(struct lmcs_stage *stage, size_t pending, enum lmcs_status status,
                                     struct lmcs_error *error)
{
    stage->pending[pending].is_verified = status == LMCS_OK;
    if (status != LMCS_DAMAGED && status != LMCS_UNSUPPORTED)
        return status;
    lmcs_error_prefix(error,
                      "the archive %s: content %llu: ", status == LMCS_DAMAGED ? "is damaged" : "can't be restored",
                      (unsigned long long)stage->pending[pending].index + 1);
    stage->keeps = false; /* a second attempt would fail again: keep nothing */
    return status;
}

/* Verifies the contents that arrived. A link is read with all its outputs, and before them. */
static enum lmcs_status verify_contents(struct lmcs_stage *stage, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < stage->pending_count; i++) {
        const struct lmcs_stage_pending *pending = &stage->pending[i];
        if (pending->is_verified)
            continue;
        status = lmcs_stage_read(stage, pending->content.id, lmcs_stage_tensor(stage, i), true, NULL, error);
        status = lmcs_stage_verified(stage, i, status, error);
    }
    return status;
}

/* Checks metadata too long for the record: an attachment, as a capture writes it. */
static enum lmcs_status verify_meta(struct lmcs_stage *stage, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_identity identity;
    struct lmcs_tensor tensor;
    struct lmcs_meta meta;
    uint64_t content = 0, bytes = 0;
    bool found = false;
    if (stage->record.df.meta_bytes != UINT32_MAX)
        return LMCS_OK;
    enum lmcs_status status = lmcs_txn_read(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_manifest_find(&txn, &stage->record.df, LMCS_ATTACHMENT, LMCS_META_NAME, &identity, &content, &found,
                                error);
    lmcs_txn_end(&txn);
    if (status != LMCS_OK)
        return status;
    if (!found || !lmcs_shape_bytes(identity.df.dtype, identity.df.ndim, identity.shape, &bytes) ||
        bytes > LMCS_META_MOST)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "the archive is damaged: the metadata of %s@%llu is missing",
                         current(stage)->name, (unsigned long long)stage->record.df.number);
    char *text = malloc((size_t)bytes + 1);
    if (text == NULL)
        return lmcs_fail_memory(error);
    tensor = lmcs_identity_tensor(&identity);
    status = lmcs_stage_read(stage, content, &tensor, false, text, error);
    text[bytes] = '\0';
    if (status == LMCS_OK && strlen(text) != bytes)
        status = lmcs_fail(error, LMCS_DAMAGED, 0, "the metadata of a snapshot is damaged");
    if (status == LMCS_OK && (status = lmcs_meta_decode(text, &meta, error)) == LMCS_OK)
        lmcs_meta_free(&meta);
    if (status == LMCS_DAMAGED)
        lmcs_error_prefix(error, "the archive is damaged: %s@%llu: ", current(stage)->name,
                          (unsigned long long)stage->record.df.number);
    free(text);
    return status;
}

enum lmcs_status lmcs_stage_snapshot(struct lmcs_stage *stage, struct lmcs_error *error)
{
    struct lmcs_stage_shelf *shelf = current(stage);
    enum lmcs_status status = LMCS_OK;
    /* Syncs large payloads before the metadata lock; small ones with the metadata. */
    if (stage->pending_bytes > LMC_BLOCK_BYTES)
        status = lmcs_heap_sync(stage->pool->heap, error);
    lmcs_heap_drain(stage->pool->heap);
    for (int tries = 0; status == LMCS_OK; tries++) {
        status = commit_snapshot(stage, error);
        if (status == LMCS_OK)
            break;
        forget_attempts(stage);
        if (status == LMCS_FULL && tries == 0 && lmcs_pool_make_room(stage->pool, NULL))
            status = LMCS_OK;
    }
    if (status != LMCS_OK)
        return status;
    renew_regions(stage);
    for (size_t i = 0; i < stage->entry_count; i++)
        if (stage->entries[i].content != 0)
            stage->reader->contents[stage->entries[i].content - 1].has_run = true;
    for (size_t i = 0; status == LMCS_OK && i < stage->pending_count; i++)
        if (stage->pending[i].is_copy)
            status = lmcs_stage_add_unrun(stage, stage->pending[i].content.id, error);
    shelf->lineage = stage->record.df.lineage;
    shelf->last = stage->record.df;
    stage->snapshots++;
    if (status == LMCS_OK)
        status = verify_contents(stage, error);
    if (status == LMCS_OK)
        status = verify_meta(stage, error);
    if (status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED) /* a second attempt would fail again: keep nothing */
        stage->keeps = false;
    if (status == LMCS_OK)
        status = lmcs_stage_note_there(stage, stage->shelf_count - 1, &stage->record, error);
    stage->pending_count = stage->entry_count = 0;
    stage->pending_bytes = 0;
    return status;
}

/* ---- Dropping ---- */

/* Releases retired ranges and trims free extents. */
static void give_space_back(struct lmcs_pool *pool)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t done = RELEASE_RANGES; status == LMCS_OK && done == RELEASE_RANGES;) {
        struct lmcs_txn txn;
        status = lmcs_txn_write(pool, &txn, NULL);
        if (status != LMCS_OK)
            break;
        status = lmcs_space_release(&txn, RELEASE_RANGES, &done, NULL);
        if (status == LMCS_OK && done > 0)
            status = lmcs_txn_commit(&txn, NULL);
        else
            lmcs_txn_end(&txn);
    }
    if (status == LMCS_OK)
        status = lmcs_space_trim(pool, WARM_BYTES, NULL);
    lmcs_pool_wake(pool);
}

enum lmcs_status lmcs_stage_drop_id(struct lmcs_stage *stage, uint64_t *id, struct lmcs_error *error)
{
    struct lmcs_removal removal = {0};
    enum lmcs_status status = *id == 0 ? LMCS_OK : lmcs_staging_drop(stage->pool, *id, &removal, error);
    *id = status == LMCS_OK ? 0 : *id;
    return status;
}

void lmcs_stage_drop(struct lmcs_stage *stage, bool only_joined)
{
    if (!only_joined)
        renew_regions(stage);
    for (size_t i = 0; i < stage->shelf_count; i++) {
        (void)lmcs_stage_drop_id(stage, &stage->shelves[i].joined, NULL);
        if (!only_joined)
            (void)lmcs_stage_drop_id(stage, &stage->shelves[i].id, NULL);
    }
    if (!only_joined)
        give_space_back(stage->pool);
}
