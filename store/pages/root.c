/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/root.c - the superblock and the root page. */
#include "pages/root.h"

#include <string.h>

#include "pages/dirty.h"
#include "pages/pool.h"
#include "pages/tree.h"

uint64_t lmcs_root_word(uint64_t page_offset)
{
    uint64_t page = page_offset / LMCS_PAGE_BYTES;
    return page << 16 | (lmc_hash64(&page, sizeof page, 0) & 0xffff);
}

static enum lmcs_status fail_root(struct lmcs_pool *pool, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged: %s", pool->path, why);
}

static enum lmcs_status check_superblock(struct lmcs_pool *pool, const struct lmcs_superblock_df *super,
                                         struct lmcs_error *error)
{
    if (memcmp(super->magic, LMCS_SUPERBLOCK_MAGIC, 8) != 0)
        return fail_root(pool, "no lmc-store superblock: creation was interrupted, or another program made this pool",
                         error);
    if (super->check != lmc_hash64(super, offsetof(struct lmcs_superblock_df, check), 0))
        return fail_root(pool, "the superblock's checksum is wrong", error);
    if (super->version != LMCS_FORMAT_VERSION || super->incompatible != 0)
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                         "%s: has format version %u (features %llx), this lmc-store knows version %u: use a newer one",
                         pool->path, super->version, (unsigned long long)super->incompatible, LMCS_FORMAT_VERSION);
    if (super->read_only_compatible != 0 && pool->heap != NULL)
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                         "%s: was written by a newer lmc-store; this one can read it (mode r) but not write it",
                         pool->path);
    return LMCS_OK;
}

static bool range_is_sound(const struct lmcs_page_range_df *range)
{
    return range->next <= range->end && range->end - range->next <= LMCS_PAGE_RANGE_MOST &&
           range->next % LMCS_PAGE_BYTES == 0 && range->end % LMCS_PAGE_BYTES == 0;
}

enum lmcs_status lmcs_root_read(struct lmcs_pool *pool, struct lmcs_root_df *root, struct lmcs_error *error)
{
    struct lmcs_superblock_df *super = &pool->superblock;
    uint64_t at = lmcs_media_superblock(pool->media);
    struct lmcs_superblock_df fresh;
    enum lmcs_status status = lmcs_media_read(pool->media, at, &fresh, sizeof fresh, error);
    if (status == LMCS_OK && super->check == 0) {
        status = check_superblock(pool, &fresh, error);
        if (status == LMCS_OK)
            memcpy(super, &fresh, sizeof fresh);
    }
    if (status != LMCS_OK)
        return status;
    uint64_t offset = (fresh.root >> 16) * LMCS_PAGE_BYTES;
    if (fresh.root == 0 || fresh.root != lmcs_root_word(offset))
        return fail_root(pool, "the reference to its root page is wrong", error);
    status = lmcs_media_read(pool->media, offset, root, sizeof *root, error);
    if (status != LMCS_OK)
        return status;
    if (root->magic != LMCS_ROOT_MAGIC || root->self != offset ||
        root->check != lmc_hash64(root, offsetof(struct lmcs_root_df, check), offset))
        return fail_root(pool, "its root page has a wrong checksum", error);
    if (root->version > LMCS_FORMAT_VERSION)
        return lmcs_fail_newer(error, "%s: version %u of its root page", pool->path, root->version);
    if (!range_is_sound(&root->fresh) || !range_is_sound(&root->spare))
        return fail_root(pool, "its root page refers to impossible pages", error);
    return LMCS_OK;
}

void lmcs_root_seal(struct lmcs_root_df *root)
{
    root->time_ns = lmcs_now_ns();
    root->check = lmc_hash64(root, offsetof(struct lmcs_root_df, check), root->self);
}

/* A used-up range names no page. */
static bool range_is_ours(const struct lmcs_pool *pool, const struct lmcs_page_range_df *range)
{
    uint64_t pages = lmcs_range_pages(range);
    return pages == 0 || lmcs_slabs_hold(pool, range->next, pages);
}

bool lmcs_root_counts(const struct lmcs_root_df *root)
{
    return ((root->next_shelf | root->next_identity | root->next_content | root->next_live) & LMCS_SPACE_PARITY) == 0 &&
           root->next_shelf != 0 && root->next_identity != 0 && root->next_content != 0;
}

enum lmcs_status lmcs_root_fail_number(struct lmcs_pool *pool, const char *kind, uint64_t number,
                                       struct lmcs_error *error)
{
    return lmcs_fail(
        error, LMCS_DAMAGED, 0,
        "%s: damaged metadata: the next %s id is already in use (%llu), so nothing may be written; mode r still reads "
        "the pool, and 'lmc-store dump' saves its contents",
        pool->path, kind, (unsigned long long)number);
}

/* Checks that no id is `next` or higher. */
static enum lmcs_status check_number(struct lmcs_txn *txn, uint8_t kind, uint64_t next, const char *what,
                                     struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_root_open(&cursor, txn, kind, (struct lmcs_key_df){next, 0}, error);
    if (status == LMCS_OK && lmcs_cursor_valid(cursor))
        status = lmcs_root_fail_number(txn->pool, what, lmcs_cursor_key(cursor).high, error);
    else if (status == LMCS_DAMAGED)
        status = LMCS_OK; /* an unreadable tree gets no records */
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_root_check(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error)
{
    if (!lmcs_root_counts(root))
        return fail_root(pool, "its root page has impossible next ids", error);
    if (!lmcs_slabs_hold(pool, root->self, 1) || !range_is_ours(pool, &root->fresh) ||
        !range_is_ours(pool, &root->spare))
        return fail_root(pool, "its root page refers to impossible pages", error);
    struct lmcs_txn txn = {.pool = pool, .root = *root};
    enum lmcs_status status = check_number(&txn, LMCS_TREE_SHELVES, root->next_shelf, "shelf", error);
    if (status == LMCS_OK)
        status = check_number(&txn, LMCS_TREE_IDENTITIES, root->next_identity, "identity", error);
    return status == LMCS_OK ? check_number(&txn, LMCS_TREE_CONTENTS, root->next_content, "content", error) : status;
}
