/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/stage_meta.c - metadata of snapshots that the pool, or an earlier archive, has with other annotations.
 *
 * Metrics and notes may have been added to either copy. The pool keeps its own and gets those that it has not; of two
 * archives the later one wins.
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "records/meta.h"
#include "transfer/stage.h"

static bool is_equal(const struct lmcs_record *a, const struct lmcs_record *b)
{
    return a->df.meta_bytes == b->df.meta_bytes &&
           (a->df.meta_bytes == UINT32_MAX || memcmp(a->meta, b->meta, a->df.meta_bytes) == 0);
}

enum lmcs_status lmcs_stage_compare_meta(const struct lmcs_record *staged, const struct lmcs_record *there, bool *fits,
                                         struct lmcs_error *error)
{
    char *merged = NULL;
    *fits = is_equal(staged, there);
    if (*fits || staged->df.meta_bytes == UINT32_MAX || there->df.meta_bytes == UINT32_MAX)
        return LMCS_OK;
    enum lmcs_status status = lmcs_meta_merge(there->meta, staged->meta, &merged, error);
    *fits = merged != NULL;
    free(merged);
    return status;
}

enum lmcs_status lmcs_stage_note_meta(struct lmcs_stage_shelf *shelf, const struct lmcs_record *staged,
                                      const struct lmcs_record *there, bool wins, struct lmcs_error *error)
{
    if (is_equal(staged, there))
        return LMCS_OK;
    if (!lmcs_grow(&shelf->metas, &shelf->meta_capacity, shelf->meta_count, sizeof *shelf->metas))
        return lmcs_fail_memory(error);
    struct lmcs_stage_meta meta = {.number = staged->df.number, .wins = wins, .text = strdup(staged->meta)};
    if (meta.text == NULL)
        return lmcs_fail_memory(error);
    shelf->metas[shelf->meta_count++] = meta;
    return LMCS_OK;
}

static enum lmcs_status put_meta(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_stage_meta *meta,
                                 struct lmcs_record *record, struct lmcs_error *error)
{
    char *merged = NULL;
    enum lmcs_status status =
        lmcs_meta_merge(meta->wins ? meta->text : record->meta, meta->wins ? record->meta : meta->text, &merged, error);
    if (status == LMCS_OK && merged != NULL && strlen(merged) <= LMCS_META_INLINE) {
        record->df.meta_bytes = (uint32_t)strlen(merged);
        memcpy(record->meta, merged, record->df.meta_bytes + 1);
        status = lmcs_record_put(txn, shelf, record, error);
    }
    free(merged);
    return status;
}

enum lmcs_status lmcs_stage_put_metas(struct lmcs_txn *txn, const struct lmcs_stage_shelf *from,
                                      struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < from->meta_count; i++) {
        struct lmcs_record record;
        bool found;
        status = lmcs_record_get(txn, shelf, from->metas[i].number, &record, &found, error);
        if (status == LMCS_OK && found && record.df.meta_bytes != UINT32_MAX)
            status = put_meta(txn, shelf, &from->metas[i], &record, error);
    }
    return status;
}
