/* SPDX-License-Identifier: BSD-3-Clause */
/* repair/check_shelves.c - the structure check: shelves, their snapshots, indexes, tags and origins. */
#include "repair/checking.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/origin.h"
#include "records/safety.h"
#include "records/shelf.h"

static enum lmcs_status check_indexed(struct lmcs_checking *c, const struct lmcs_snapshot_df *df)
{
    char nothing;
    bool found = true;
    enum lmcs_status status = LMCS_OK;
    if (df->step != LMCS_NO_STEP) {
        c->stepped++;
        status = lmcs_check_has_key(c, LMCS_TREE_STEPS, lmcs_shelf_tree(c->shelf, LMCS_TREE_STEPS),
                                    (struct lmcs_key_df){lmcs_step_key(df->step), df->number}, &nothing, 0, &found);
    }
    if (status == LMCS_OK && found)
        status = lmcs_check_has_key(c, LMCS_TREE_TIMES, lmcs_shelf_tree(c->shelf, LMCS_TREE_TIMES),
                                    (struct lmcs_key_df){df->time_ns, df->number}, &nothing, 0, &found);
    if (status == LMCS_OK && !found && !c->incomplete)
        lmcs_check_report(c, c->shelf->name, df->number, "", "it is not in the indexes by step and time");
    return status;
}

static enum lmcs_status check_prepared(struct lmcs_checking *c, const struct lmcs_snapshot_df *df)
{
    struct lmcs_key_df key;
    uint64_t value[2] = {0, 0};
    bool found;
    memcpy(&key, df->group, sizeof key);
    c->prepared_count++;
    enum lmcs_status status = lmcs_check_root_has(c, LMCS_TREE_GROUPS, key, value, sizeof value, &found);
    if (status == LMCS_OK && !c->incomplete && (!found || value[0] != c->shelf->df.id || value[1] != df->number))
        lmcs_check_report(c, c->shelf->name, df->number, "", "it is prepared, but its group does not list it");
    return status;
}

static enum lmcs_status visit_record(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_record record;
    bool found;
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_record_get(&c->txn, c->shelf, key.high, &record, &found, c->error);
    if (status != LMCS_OK || !found)
        return status;
    const struct lmcs_snapshot_df *df = &record.df;
    bool committed = lmcs_record_is_committed(&record);
    if ((!committed && df->state != LMCS_SNAPSHOT_PREPARED) || df->epoch > c->txn.root.epoch)
        return lmcs_check_fail_record(c, "snapshot", key.high);
    c->highest = df->number;
    if (committed) {
        c->committed++;
        c->remote += df->state == LMCS_SNAPSHOT_REMOTE;
        c->latest = df->number;
    }
    status = committed ? check_indexed(c, df) : check_prepared(c, df);
    return status == LMCS_OK ? lmcs_check_manifest(c, &record) : status;
}

static enum lmcs_status visit_tag(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_tag_df df;
    struct lmcs_record record;
    uint64_t index;
    bool found = false, listed = false;
    if (bytes < sizeof df)
        return lmcs_check_fail_record(c, "the tag with hash", key.high);
    memcpy(&df, value, sizeof df);
    if (bytes != sizeof df + df.tag_bytes || lmc_hash64((const char *)value + sizeof df, df.tag_bytes, 0) != key.high)
        return lmcs_check_fail_record(c, "the tag with hash", key.high);
    enum lmcs_status status = lmcs_record_get(&c->txn, c->shelf, df.number, &record, &found, c->error);
    if (status == LMCS_OK)
        status = lmcs_check_has_key(c, LMCS_TREE_TAGGED, lmcs_shelf_tree(c->shelf, LMCS_TREE_TAGGED),
                                    (struct lmcs_key_df){df.number, key.high}, &index, sizeof index, &listed);
    if (status == LMCS_OK && !c->incomplete && (!found || !listed || !lmcs_record_is_committed(&record)))
        lmcs_check_report(c, c->shelf->name, df.number, "",
                          "the tag \"%.*s\" and its snapshot do not refer to each other", (int)df.tag_bytes,
                          (const char *)value + sizeof df);
    return status;
}

static enum lmcs_status check_shelf_trees(struct lmcs_checking *c)
{
    static const lmcs_check_fn visits[LMCS_SHELF_TREES] = {visit_record, lmcs_check_no_value, lmcs_check_no_value,
                                                           visit_tag, lmcs_check_no_value};
    enum lmcs_status status = LMCS_OK;
    for (uint8_t i = 0; status == LMCS_OK && i < LMCS_SHELF_TREES; i++)
        status = lmcs_check_tree(c, (uint8_t)(LMCS_TREE_NUMBERS + i), &c->shelf->df.trees[i], visits[i]);
    return status;
}

static void check_shelf_totals(struct lmcs_checking *c)
{
    const struct lmcs_shelf_df *df = &c->shelf->df;
    if (c->incomplete)
        return;
    const struct lmcs_root_tree_df *trees = df->trees;
    if (c->committed != df->snapshot_count || c->latest != df->latest || c->highest >= df->next_number)
        REPORT_SHELF(c, "it has %llu snapshots up to %llu, but %llu up to %llu are recorded", ULL(c->committed),
                     ULL(c->latest), ULL(df->snapshot_count), ULL(df->latest));
    if (c->remote != df->remote)
        REPORT_SHELF(c, "it has %llu remote snapshots, but %llu are recorded", ULL(c->remote), ULL(df->remote));
    if (df->compacted >= df->next_number || df->guarded >= df->next_number)
        REPORT_SHELF(
            c,
            "snapshots are recorded as compacted up to %llu and as scanned for parity up to %llu, but %llu is the next",
            ULL(df->compacted), ULL(df->guarded), ULL(df->next_number));
    if (trees[LMCS_TREE_STEPS - LMCS_TREE_NUMBERS].count != c->stepped ||
        trees[LMCS_TREE_TIMES - LMCS_TREE_NUMBERS].count != c->committed ||
        trees[LMCS_TREE_TAGS - LMCS_TREE_NUMBERS].count != trees[LMCS_TREE_TAGGED - LMCS_TREE_NUMBERS].count)
        REPORT_SHELF(c, "its indexes do not list exactly its snapshots");
}

static enum lmcs_status add_shelf_name(struct lmcs_checking *c, const char *name)
{
    struct lmcs_structure *out = c->out;
    c->shelf_index = (uint32_t)out->shelf_count;
    return lmcs_add_text(&out->shelf_names, &out->shelf_count, name) ? LMCS_OK : lmcs_fail_memory(c->error);
}

enum lmcs_status lmcs_check_shelf(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_shelf shelf;
    char nothing;
    bool found;
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_shelf_load(&c->txn, key.high, &shelf, c->error);
    if (status == LMCS_OK)
        status = add_shelf_name(c, shelf.name);
    if (status != LMCS_OK)
        return status;
    c->shelf = &shelf;
    c->committed = c->remote = c->stepped = c->highest = c->latest = 0;
    status = lmcs_check_root_has(c, LMCS_TREE_SHELF_NAMES,
                                 (struct lmcs_key_df){lmc_hash64(shelf.name, strlen(shelf.name), 0), key.high},
                                 &nothing, 0, &found);
    if (status == LMCS_OK && !c->incomplete && (!found || key.high >= c->txn.root.next_shelf))
        REPORT_SHELF(c, "it is not in the index of names");
    if (status == LMCS_OK)
        status = check_shelf_trees(c);
    if (status == LMCS_OK)
        check_shelf_totals(c);
    if ((shelf.df.flags & LMCS_SHELF_STAGING) == 0)
        c->snapshot_count += c->committed;
    else
        c->staging = true;
    c->shelf = NULL;
    return status;
}

enum lmcs_status lmcs_check_origin(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_origin origin;
    struct lmcs_shelf shelf;
    bool found = false;
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_origin_get(&c->txn, key.high, &origin, &found, c->error);
    if (status == LMCS_OK)
        status = lmcs_shelf_load_if(&c->txn, key.high, &shelf, &found, c->error);
    if (status == LMCS_OK && !c->incomplete && !found)
        REPORT(c, "an origin record without a shelf names \"%s\"", origin.name);
    if (status == LMCS_OK && found && origin.df.shelf != 0) {
        status = lmcs_shelf_load_if(&c->txn, origin.df.shelf, &shelf, &found, c->error);
        if (status == LMCS_OK && !c->incomplete && !found)
            REPORT(c, "the shelf \"%s\" is recorded as an origin, but does not exist", origin.name);
    }
    return lmcs_check_absorb(c, status, "", 0);
}
