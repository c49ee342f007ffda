/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/found.c - finds contents of an archive in the pool, by digest.
 *
 * A content is used only after it was read and verified, and only in a form on which the archive's contents can rest.
 * It may change before the snapshot is staged; that transaction checks it again (bases.c).
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/order.h"
#include "pages/tree.h"
#include "payload/read.h"
#include "records/manifest.h"
#include "transfer/stage.h"

enum lmcs_status lmcs_stage_add_unrun(struct lmcs_stage *stage, uint64_t id, struct lmcs_error *error)
{
    if (!lmcs_grow(&stage->unrun, &stage->unrun_capacity, stage->unrun_count, sizeof *stage->unrun))
        return lmcs_fail_memory(error);
    stage->unrun[stage->unrun_count++] = id;
    return LMCS_OK;
}

/* Checks the headers of the chain. */
static enum lmcs_status check_head(struct lmcs_stage *stage, const struct lmcs_chain *chain,
                                   const struct lmcs_tensor *tensor, struct lmcs_error *error)
{
    struct lmcs_reader *reader = NULL;
    enum lmcs_status status = lmcs_reader_open(stage->pool, chain, tensor, NULL, &reader, error);
    lmcs_reader_close(reader);
    return status;
}

enum lmcs_status lmcs_stage_read(struct lmcs_stage *stage, uint64_t id, const struct lmcs_tensor *tensor,
                                 bool knows_link, void *buffer, struct lmcs_error *error)
{
    struct lmcs_chain chain;
    enum lmcs_status status = lmcs_chain_hold(stage->pool, id, &chain, error);
    if (status != LMCS_OK)
        return status;
    if (knows_link && chain.links[0].df.payload == LMCS_PAYLOAD_LINKED)
        status = check_head(stage, &chain, tensor, error);
    else
        status = lmcs_chain_read(stage->pool, &chain, tensor, buffer, NULL, error);
    lmcs_chain_unpin(stage->pool, &chain);
    return status;
}

#define FIND_CHUNK 4096u /* contents listed in one transaction */

static int by_digest(const void *a, const void *b)
{
    const struct lmcs_stage_found *x = a, *y = b;
    if (x->digest.low != y->digest.low)
        return LMCS_ORDER(x->digest.low, y->digest.low);
    return LMCS_ORDER2(x->digest.high, y->digest.high, x->id, y->id);
}

static enum lmcs_status add_verified(struct lmcs_stage *stage, uint64_t id, struct lmcs_error *error)
{
    if (!lmcs_grow(&stage->verified, &stage->verified_capacity, stage->verified_count, sizeof id))
        return lmcs_fail_memory(error);
    stage->verified[stage->verified_count++] = id;
    return LMCS_OK;
}

struct noting {
    struct lmcs_stage *stage;
    struct lmcs_txn *txn;
};

/* Records the content of an entry as verified; a link instead of its outputs. A base outside every snapshot is not
 * recorded, but verified when it is found. */
static enum lmcs_status note_verified(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                      uint64_t successor, struct lmcs_error *error)
{
    struct noting *noting = context;
    struct lmcs_content content;
    bool found = false;
    (void)identity;
    (void)successor;
    enum lmcs_status status = lmcs_content_find(noting->txn, entry->content, &content, &found, error);
    if (status == LMCS_OK && found)
        status = add_verified(noting->stage, content.id, error);
    if (status == LMCS_OK && found && content.df.payload == LMCS_PAYLOAD_LINKED)
        status = add_verified(noting->stage, content.link, error);
    return status;
}

/* Records the contents of the snapshot after `*number` of a kept shelf. *number becomes 0 at the newest snapshot: it
 * may be unverified, since a snapshot is verified before the next is staged. */
static enum lmcs_status note_kept_snapshot(struct lmcs_stage *stage, uint64_t id, uint64_t *number,
                                           struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record, older;
    struct noting noting = {stage, &txn};
    uint64_t at = 0, next = 0;
    bool found = false, has_older = false;
    enum lmcs_status status = lmcs_txn_read(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&txn, id, &shelf, &found, error);
    if (status == LMCS_OK && found && (shelf.df.flags & LMCS_SHELF_KEPT) != 0)
        status = lmcs_record_after(&txn, &shelf, *number, &at, error);
    if (status == LMCS_OK && at != 0)
        status = lmcs_record_after(&txn, &shelf, at, &next, error);
    *number = next != 0 ? at : 0;
    if (status == LMCS_OK && next != 0)
        status = lmcs_record_get(&txn, &shelf, at, &record, &found, error);
    if (status == LMCS_OK && next != 0 && found)
        status = lmcs_record_neighbour(&txn, &shelf, &record.df, false, &older, &has_older, error);
    if (status == LMCS_OK && next != 0 && found)
        status = lmcs_manifest_own(&txn, &record.df, has_older ? &older.df : NULL, NULL, false, note_verified, &noting,
                                   error);
    lmcs_txn_end(&txn);
    return status;
}

static enum lmcs_status note_kept(struct lmcs_stage *stage, struct lmcs_error *error)
{
    uint64_t id = 0, number = 0;
    enum lmcs_status status = lmcs_shelf_next(stage->pool, &id, error);
    while (status == LMCS_OK && id != 0) {
        do
            status = note_kept_snapshot(stage, id, &number, error);
        while (status == LMCS_OK && number != 0);
        number = 0;
        if (lmcs_is_unusable(status)) /* contents not recorded here are read and verified */
            status = LMCS_OK;
        if (status == LMCS_OK)
            status = lmcs_shelf_next(stage->pool, &id, error);
    }
    if (status == LMCS_DAMAGED)
        status = LMCS_OK;
    if (stage->verified_count > 1)
        qsort(stage->verified, stage->verified_count, sizeof *stage->verified, lmcs_by_u64);
    return status;
}

static bool was_verified(const struct lmcs_stage *stage, uint64_t id)
{
    return stage->verified_count > 0 &&
           bsearch(&id, stage->verified, stage->verified_count, sizeof id, lmcs_by_u64) != NULL;
}

/* Lists some contents of the pool, from id *next on. *next becomes the id after them; 0: the end. */
static enum lmcs_status note_contents(struct lmcs_stage *stage, struct lmcs_cursor *cursor, uint64_t *next,
                                      struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_content_df df;
    size_t bytes;
    enum lmcs_status status = lmcs_txn_read(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_seek(cursor, &txn, LMCS_TREE_CONTENTS, (struct lmcs_key_df){*next, 0}, error);
    *next = 0;
    for (size_t i = 0; status == LMCS_OK && lmcs_cursor_valid(cursor); i++) {
        uint64_t id = lmcs_cursor_key(cursor).high;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        if (i == FIND_CHUNK) {
            *next = id;
            break;
        }
        memcpy(&df, value, bytes < sizeof df ? 0 : sizeof df);
        if (bytes >= sizeof df) {
            if (!lmcs_grow(&stage->found, &stage->found_capacity, stage->found_count, sizeof *stage->found))
                status = lmcs_fail_memory(error);
            else
                stage->found[stage->found_count++] = (struct lmcs_stage_found){{df.digest_low, df.digest_high}, id};
        }
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_txn_end(&txn);
    return status;
}

enum lmcs_status lmcs_stage_begin(struct lmcs_stage *stage, struct lmcs_archive_reader *reader,
                                  struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    stage->reader = reader;
    stage->found_count = stage->verified_count = 0;
    if (stage->keeps)
        status = note_kept(stage, error);
    for (uint64_t next = 1; status == LMCS_OK && next != 0;)
        status = note_contents(stage, cursor, &next, error);
    if (stage->found_count > 1)
        qsort(stage->found, stage->found_count, sizeof *stage->found, by_digest);
    lmcs_cursor_free(cursor);
    return status;
}

/* Records the bases of a link, which its chain omits if another link leads to them. */
static enum lmcs_status add_unrun_bases(struct lmcs_stage *stage, struct lmcs_txn *txn, const struct lmcs_content *link,
                                        struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < link->df.base_count; i++) {
        struct lmcs_content base;
        status = lmcs_content_get(txn, link->bases[i], &base, error);
        if (status == LMCS_OK && base.df.runs == 0)
            status = lmcs_stage_add_unrun(stage, base.id, error);
    }
    return status;
}

/* Records the bases of a found content: an earlier restore may have left them without recording them as unused. A
 * content that is only a base may be gone by now. */
static enum lmcs_status add_found_bases(struct lmcs_stage *stage, uint64_t id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_content content;
    struct lmcs_chain chain = {.length = 0};
    bool found = false;
    enum lmcs_status status = lmcs_txn_read(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_content_find(&txn, id, &content, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_chain_load(&txn, id, &chain, error);
    for (size_t i = 0; status == LMCS_OK && i < chain.length; i++)
        if (chain.links[i].df.payload == LMCS_PAYLOAD_LINK)
            status = add_unrun_bases(stage, &txn, &chain.links[i], error);
        else if (i > 0 && chain.links[i].df.runs == 0)
            status = lmcs_stage_add_unrun(stage, chain.links[i].id, error);
    lmcs_txn_end(&txn);
    return status;
}

enum lmcs_status lmcs_stage_end(struct lmcs_stage *stage, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < stage->reader->content_count; i++) {
        const struct lmcs_archive_content *content = &stage->reader->contents[i];
        if (content->is_found)
            status = add_found_bases(stage, content->pool_id, error);
        if (status == LMCS_OK && !content->has_run && content->pool_id != 0)
            status = lmcs_stage_add_unrun(stage, content->pool_id, error);
    }
    stage->reader = NULL;
    return status;
}

/* Whether the content has the wanted form; compares all but the digest. */
static enum lmcs_status has_form(struct lmcs_txn *txn, const struct lmcs_content *content,
                                 const struct lmcs_stage_wanted *wanted, bool *yes, struct lmcs_error *error)
{
    struct lmcs_identity identity;
    struct lmcs_tensor there;
    uint32_t deltas = 0;
    enum lmcs_status status = lmcs_identity_get(txn, content->df.identity, &identity, error);
    if (status != LMCS_OK)
        return status;
    there = lmcs_identity_tensor(&identity);
    bool is_link = content->df.payload == LMCS_PAYLOAD_LINK;
    *yes = lmcs_archive_same_form(&there, wanted->tensor) && is_link == (wanted->arrays > 0);
    if (!*yes || is_link) {
        *yes = *yes && content->df.base_count == wanted->arrays && content->df.place <= wanted->line;
        return LMCS_OK;
    }
    if (wanted->link != 0) {
        *yes = content->link == wanted->link && content->df.output == wanted->output;
        return LMCS_OK;
    }
    status = lmcs_content_depth(txn, content, &deltas, error);
    /* A delta of the archive may rest on it, but not on a linked content. */
    *yes = deltas <= wanted->depth && (content->link == 0 || wanted->depth == LMCS_CHAIN_BOUND);
    return status;
}

/* Whether content `id` has the wanted digest and form. */
static enum lmcs_status fits(struct lmcs_stage *stage, uint64_t id, const struct lmcs_stage_wanted *wanted, bool *yes,
                             struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_content content;
    *yes = false;
    enum lmcs_status status = lmcs_txn_read(stage->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_content_find(&txn, id, &content, yes, error);
    *yes = status == LMCS_OK && *yes && content.df.digest_low == wanted->digest.low &&
           content.df.digest_high == wanted->digest.high;
    if (*yes)
        status = has_form(&txn, &content, wanted, yes, error);
    lmcs_txn_end(&txn);
    return status;
}

enum lmcs_status lmcs_stage_find(struct lmcs_stage *stage, const struct lmcs_stage_wanted *wanted, uint64_t *id,
                                 struct lmcs_error *error)
{
    const struct lmcs_stage_found first = {wanted->digest, 0};
    const struct lmc_hash *digest = &wanted->digest;
    size_t low = 0, high = stage->found_count;
    *id = 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (by_digest(&stage->found[middle], &first) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < stage->found_count && stage->found[low].digest.low == digest->low &&
           stage->found[low].digest.high == digest->high;
         low++) {
        bool yes;
        enum lmcs_status status = fits(stage, stage->found[low].id, wanted, &yes, error);
        if (status == LMCS_OK && yes && !was_verified(stage, stage->found[low].id))
            status = lmcs_stage_read(stage, stage->found[low].id, wanted->tensor, wanted->link != 0, NULL, error);
        if (lmcs_is_unusable(status)) /* skip an unreadable content: the archive has a copy */
            continue;
        if (status != LMCS_OK)
            return status;
        if (yes) {
            *id = stage->found[low].id;
            return LMCS_OK;
        }
    }
    return LMCS_OK;
}
