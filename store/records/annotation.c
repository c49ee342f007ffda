/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/annotation.c - tags, metrics and notes added to committed snapshots.
 *
 * One function applies an annotation: for the writer to its transaction, for readers to private pages, and for a
 * process that adds one to private pages, so that it is refused if it cannot be applied.
 */
#include "records/annotation.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "pages/pool.h"
#include "records/meta.h"
#include "records/safe.h"

enum lmcs_status lmcs_annotation_fill(uint32_t kind, uint64_t number, const char *text, double value,
                                      struct lmcs_annotation *annotation, struct lmcs_error *error)
{
    static const char *const whats[] = {"", "the tag", "the metric's name", "the note", "the URL"};
    size_t bytes = text == NULL ? 0 : strlen(text);
    if (kind != LMCS_ANNOTATION_NOTE && !lmcs_name_is_sound(text))
        return lmcs_fail(error, LMCS_INVALID, 0, "%s is not 1 to %d bytes of UTF-8 without control characters",
                         whats[kind], LMCS_MAX_NAME);
    if (bytes > LMCS_MAX_NOTE)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s has %zu bytes: at most %d are possible here", whats[kind], bytes,
                         LMCS_MAX_NOTE);
    memset(annotation, 0, sizeof *annotation);
    annotation->df.kind = kind;
    annotation->df.number = number;
    annotation->df.value = value;
    annotation->df.time_ns = lmcs_now_ns();
    annotation->df.text_bytes = (uint32_t)bytes;
    if (bytes > 0)
        memcpy(annotation->text, text, bytes);
    return LMCS_OK;
}

static enum lmcs_status apply_meta(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_record *record,
                                   const struct lmcs_annotation *annotation, struct lmcs_error *error)
{
    char *text = NULL;
    const unsigned long long number = record->df.number;
    if (record->df.meta_bytes == UINT32_MAX)
        return lmcs_fail(
            error, LMCS_INVALID, 0,
            "%s: metrics and metadata of %s@%llu take more than %u bytes, so nothing can be added to them; "
            "tags can",
            txn->pool->path, shelf->name, number, LMCS_META_INLINE);
    bool is_metric = annotation->df.kind == LMCS_ANNOTATION_METRIC;
    enum lmcs_status status = lmcs_meta_set(record->meta, is_metric ? annotation->text : NULL, annotation->df.value,
                                            annotation->text, &text, error);
    size_t bytes = status == LMCS_OK ? strlen(text) : 0;
    if (bytes > LMCS_META_INLINE)
        status =
            lmcs_fail(error, LMCS_INVALID, 0,
                      "%s: metrics and metadata of %s@%llu would take %zu bytes: %u are possible for a snapshot to "
                      "which some are added; shorten the note, or use tags",
                      txn->pool->path, shelf->name, number, bytes, LMCS_META_INLINE);
    if (status == LMCS_OK) {
        record->df.meta_bytes = (uint32_t)bytes;
        memcpy(record->meta, text, bytes + 1);
        status = lmcs_record_put(txn, shelf, record, error);
    }
    free(text);
    return status;
}

/* The writer notes the request, and obeys it in transactions of its own (shelves/let_go.c). */
static enum lmcs_status note_safe(struct lmcs_txn *txn, const struct lmcs_annotation *annotation,
                                  struct lmcs_error *error)
{
    struct lmcs_safe safe = {.shelf = annotation->df.shelf, .last = annotation->df.number};
    return txn->write && lmcs_safe_parse(annotation->text, &safe) ? lmcs_safe_add(txn->pool, &safe, error) : LMCS_OK;
}

static enum lmcs_status apply_to(struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                 const struct lmcs_annotation *annotation, struct lmcs_error *error)
{
    const struct lmcs_annotation_df *df = &annotation->df;
    struct lmcs_record record;
    bool found;
    uint64_t at;
    enum lmcs_status status = LMCS_OK;
    if (df->kind == LMCS_ANNOTATION_TAG && df->number == 0) {
        status = lmcs_tag_find(txn, shelf, annotation->text, &at, error);
        if (status == LMCS_OK && at == 0)
            return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: shelf \"%s\" has no tag \"%s\"", txn->pool->path,
                             shelf->name, annotation->text);
        return status == LMCS_OK ? lmcs_tag_delete(txn, shelf, annotation->text, error) : status;
    }
    status = lmcs_record_get(txn, shelf, df->number, &record, &found, error);
    if (status == LMCS_OK && (!found || !lmcs_record_is_committed(&record)))
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no snapshot %s@%llu", txn->pool->path, shelf->name,
                         (unsigned long long)df->number);
    if (status == LMCS_OK && df->kind == LMCS_ANNOTATION_TAG)
        return lmcs_tag_put(txn, shelf, annotation->text, df->number, error);
    if (status == LMCS_OK && df->kind == LMCS_ANNOTATION_SAFE)
        return note_safe(txn, annotation, error);
    return status == LMCS_OK ? apply_meta(txn, shelf, &record, annotation, error) : status;
}

/* An annotation in the ring may be of any origin. */
static enum lmcs_status check_fields(const struct lmcs_txn *txn, const struct lmcs_annotation *annotation,
                                     struct lmcs_error *error)
{
    const struct lmcs_annotation_df *df = &annotation->df;
    bool fits = df->text_bytes <= LMCS_MAX_NOTE && memchr(annotation->text, '\0', df->text_bytes) == NULL;
    if (fits && df->kind == LMCS_ANNOTATION_TAG)
        return lmcs_tag_check(annotation->text, error);
    struct lmcs_safe safe;
    if (fits && df->kind == LMCS_ANNOTATION_SAFE)
        fits = lmcs_safe_parse(annotation->text, &safe) && safe.first <= df->number;
    fits = fits && (df->kind == LMCS_ANNOTATION_NOTE || df->kind == LMCS_ANNOTATION_SAFE ||
                    (df->kind == LMCS_ANNOTATION_METRIC && lmcs_name_is_sound(annotation->text)));
    return fits ? LMCS_OK : lmcs_fail(error, LMCS_INVALID, 0, "%s: an impossible annotation", txn->pool->path);
}

enum lmcs_status lmcs_annotation_apply(struct lmcs_txn *txn, const struct lmcs_annotation *annotation,
                                       struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    bool found;
    const struct lmcs_annotation_df *df = &annotation->df;
    enum lmcs_status status = check_fields(txn, annotation, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(txn, df->shelf, &shelf, &found, error);
    if (status == LMCS_OK && (!found || (shelf.df.flags & LMCS_SHELF_STAGING) != 0))
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: the shelf was removed", txn->pool->path);
    if (status == LMCS_OK)
        status = apply_to(txn, &shelf, annotation, error);
    return status == LMCS_OK ? lmcs_shelf_save(txn, &shelf, error) : status;
}

static bool is_dropped(enum lmcs_status status)
{
    return status == LMCS_NOT_FOUND || status == LMCS_INVALID || lmcs_is_unusable(status);
}

/* ---- Readers ---- */

/* `list`: for the caller to free. */
static enum lmcs_status apply_privately(struct lmcs_txn *txn, struct lmcs_annotation **list, size_t *count,
                                        bool *is_old, struct lmcs_error *error)
{
    struct lmcs_error ignored;
    enum lmcs_status status = lmcs_ring_load(txn, list, count, is_old, error);
    if (status != LMCS_OK || *is_old || *count == 0)
        return status;
    status = lmcs_txn_make_private(txn, error);
    for (size_t i = 0; status == LMCS_OK && i < *count; i++) {
        status = lmcs_annotation_apply(txn, &(*list)[i], &ignored);
        if (is_dropped(status))
            status = LMCS_OK;
        else if (status != LMCS_OK && error != NULL)
            *error = ignored;
    }
    return status;
}

typedef enum lmcs_status begin_fn(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error);

static enum lmcs_status begin(begin_fn *begin_txn, struct lmcs_pool *pool, struct lmcs_txn *txn,
                              struct lmcs_annotation **list, size_t *count, struct lmcs_error *error)
{
    for (bool is_old = true; is_old;) {
        enum lmcs_status status = begin_txn(pool, txn, error);
        if (status != LMCS_OK)
            return status;
        status = apply_privately(txn, list, count, &is_old, error);
        if (status == LMCS_OK && !is_old)
            return LMCS_OK;
        lmcs_txn_end(txn);
        free(*list);
        *list = NULL;
        if (status != LMCS_OK)
            return status;
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_annotated_read(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct lmcs_annotation *list = NULL;
    size_t count;
    enum lmcs_status status = begin(lmcs_txn_read, pool, txn, &list, &count, error);
    free(list);
    return status;
}

enum lmcs_status lmcs_annotated_hold(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct lmcs_annotation *list = NULL;
    size_t count;
    enum lmcs_status status = begin(lmcs_txn_hold, pool, txn, &list, &count, error);
    free(list);
    return status;
}

enum lmcs_status lmcs_shelf_read(struct lmcs_pool *pool, const char *name, struct lmcs_txn *txn,
                                 struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status == LMCS_OK)
        status = lmcs_annotated_read(pool, txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_get(txn, name == NULL ? "" : name, shelf, error);
    if (status != LMCS_OK)
        lmcs_txn_end(txn);
    return status;
}

/* ---- The writer ---- */

/* Applies annotations in a commit, up to one whose shelf is unusable: nothing of it may be committed. */
static enum lmcs_status fold_some(struct lmcs_pool *pool, size_t *most, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_annotation *list;
    size_t count, i = 0;
    bool is_old;
    enum lmcs_status status = lmcs_txn_write_only(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_ring_load(&txn, &list, &count, &is_old, error);
    for (; status == LMCS_OK && i < count && i < *most; i++) {
        status = lmcs_annotation_apply(&txn, &list[i], error);
        if (lmcs_is_unusable(status))
            break;
        txn.root.ring_dropped += is_dropped(status);
        if (is_dropped(status))
            status = LMCS_OK;
    }
    bool is_stopped = lmcs_is_unusable(status);
    if (is_stopped && i == 0) { /* drop it alone */
        lmcs_txn_end(&txn);
        status = lmcs_txn_write_only(pool, &txn, error);
        if (status != LMCS_OK) {
            free(list);
            return status;
        }
        txn.root.ring_dropped++;
        i = 1;
        is_stopped = false;
    }
    if (status == LMCS_OK && i > 0) {
        txn.root.ring_applied += i;
        txn.root.ring_check = list[i - 1].df.check;
        txn.root.annotated += i;
        status = lmcs_txn_commit(&txn, error);
    } else if (txn.pool != NULL) {
        lmcs_txn_end(&txn);
    }
    *most = is_stopped ? i : i < count ? LMCS_RING_SLOTS : 0; /* of the next commit */
    free(list);
    return is_stopped ? LMCS_OK : status;
}

enum lmcs_status lmcs_annotations_fold(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_annotation *list;
    size_t count, most = LMCS_RING_SLOTS;
    bool is_old;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_ring_load(&txn, &list, &count, &is_old, error);
    lmcs_txn_end(&txn);
    free(list);
    if (status != LMCS_OK || count == 0)
        return status;
    while (status == LMCS_OK && most > 0)
        status = fold_some(pool, &most, error);
    return status == LMCS_FULL ? LMCS_OK : status;
}

/* ---- Other processes ---- */

static enum lmcs_status check_exists(struct lmcs_pool *pool, const struct lmcs_annotation *annotation,
                                     struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found = true;
    if (annotation->df.number == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&txn, annotation->df.shelf, &shelf, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_record_get(&txn, &shelf, annotation->df.number, &record, &found, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && !found)
        status = lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: snapshot %llu was removed meanwhile", pool->path,
                           (unsigned long long)annotation->df.number);
    return status;
}

static enum lmcs_status add_in(int fd, struct lmcs_txn *txn, const char *name, const struct lmcs_annotation *list,
                               size_t count, struct lmcs_annotation *annotation, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    enum lmcs_status status = lmcs_shelf_get(txn, name, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_txn_make_private(txn, error);
    if (status != LMCS_OK)
        return status;
    annotation->df.shelf = shelf.df.id;
    status = lmcs_annotation_apply(txn, annotation, error);
    return status == LMCS_OK ? lmcs_ring_add(fd, txn, list, count, annotation, error) : status;
}

enum lmcs_status lmcs_annotation_add(struct lmcs_pool *pool, const char *shelf, struct lmcs_annotation *annotation,
                                     bool *needs_writer, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_annotation *list = NULL;
    size_t count;
    int fd;
    *needs_writer = false;
    enum lmcs_status status = lmcs_ring_begin(pool, &fd, error);
    if (status != LMCS_OK)
        return status;
    status = begin(lmcs_txn_read, pool, &txn, &list, &count, error);
    if (status == LMCS_OK) {
        *needs_writer = txn.root.ring == 0 || count == LMCS_RING_SLOTS;
        status = *needs_writer ? lmcs_fail(error, count > 0 ? LMCS_FULL : LMCS_IN_USE, 0,
                                           "%s: the ring of annotations is missing or full", pool->path)
                               : add_in(fd, &txn, shelf, list, count, annotation, error);
        lmcs_txn_end(&txn);
        free(list);
    }
    if (status == LMCS_OK)
        status = lmcs_ring_wait_pruning(pool, fd, error);
    if (status == LMCS_OK)
        status = check_exists(pool, annotation, error);
    lmcs_ring_end(fd);
    return status;
}
