/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/recovery.c - journals after a crash.
 *
 * A damaged sealed journal, whose change is half done, prevents opening for writing; so does an entry that leads
 * elsewhere than to live variables.
 */
#include <string.h>

#include "live/journal.h"

#define MOST_SEQUENCE ((uint64_t)1 << 62)

enum lmcs_status lmcs_journal_check(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error)
{
    struct lmcs_journal_df header;
    bool sealed;
    memcpy(pool->live->journals, root->journals, sizeof pool->live->journals);
    if (!lmcs_journal_range_is_sound(pool, LMCS_JOURNAL_REDO) || !lmcs_journal_range_is_sound(pool, LMCS_JOURNAL_UNDO))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the range of a journal", pool->path);
    enum lmcs_status status = lmcs_journal_load_header(pool, LMCS_JOURNAL_REDO, &header, &sealed, error);
    if (status == LMCS_OK && sealed &&
        ((header.flags & LMCS_JOURNAL_ROOT) == 0 || root->live_committed == header.sequence))
        status = lmcs_journal_each(pool, &header, lmcs_journal_check_entry, error);
    if (status == LMCS_OK)
        status = lmcs_journal_load_header(pool, LMCS_JOURNAL_UNDO, &header, &sealed, error);
    if (status == LMCS_OK && sealed && root->live_committed != header.sequence)
        status = lmcs_undo_check(pool, header.sequence, error);
    return status;
}

static enum lmcs_status redo(struct lmcs_pool *pool, const struct lmcs_journal_df *header, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_journal_write_again(pool, header, error);
    if (status == LMCS_OK)
        status = lmcs_journal_each(pool, header, lmcs_journal_apply_entry, error);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(pool->heap, error);
    return status == LMCS_OK ? lmcs_journal_clear(pool, LMCS_JOURNAL_REDO, error) : status;
}

/*
 * A journal with a torn header was not sealed yet, or was being ended. Even the end of one may be in the page cache
 * only (REPAIR.md), and the disk's would undo later changes.
 */
static enum lmcs_status recover(struct lmcs_pool *pool, enum lmcs_journal_kind kind, struct lmcs_error *error)
{
    struct lmcs_journal_df header;
    bool sealed;
    enum lmcs_status status = lmcs_journal_load_header(pool, kind, &header, &sealed, error);
    if (status != LMCS_OK)
        return status;
    if (pool->live->sequence < header.last && header.last < MOST_SEQUENCE)
        pool->live->sequence = header.last; /* never reused, even after a torn header */
    bool committed = pool->root.live_committed == header.sequence;
    if (sealed && kind == LMCS_JOURNAL_UNDO && !committed)
        return lmcs_undo_roll_back(pool, header.sequence, error);
    if (sealed && kind == LMCS_JOURNAL_REDO && (committed || (header.flags & LMCS_JOURNAL_ROOT) == 0))
        return redo(pool, &header, error);
    return lmcs_journal_range(pool, kind).end != 0 ? lmcs_journal_clear(pool, kind, error) : LMCS_OK;
}

/* All checks come before the first write. */
enum lmcs_status lmcs_journal_recover(struct lmcs_pool *pool, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_journal_check(pool, &pool->root, error);
    pool->live->sequence = pool->root.live_committed;
    if (status == LMCS_OK)
        status = recover(pool, LMCS_JOURNAL_REDO, error);
    return status == LMCS_OK ? recover(pool, LMCS_JOURNAL_UNDO, error) : status;
}
