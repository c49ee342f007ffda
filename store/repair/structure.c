/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/structure.c - the structure check: compares all metadata of one root.
 *
 * A lease keeps the pages of the root, so writers continue.
 */
#include "repair/checking.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "live/cell.h"
#include "live/record.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/origin.h"
#include "records/safety.h"
#include "records/shelf.h"

static enum lmcs_status find_wanted(struct lmcs_checking *c, const char *address)
{
    char name[LMCS_MAX_NAME + 1];
    struct lmcs_shelf shelf;
    c->want_all = address == NULL || *address == '\0';
    if (c->want_all)
        return LMCS_OK;
    size_t length = strcspn(address, "@");
    if (length > LMCS_MAX_NAME)
        return lmcs_fail(c->error, LMCS_INVALID, 0, "the address is too long");
    memcpy(name, address, length);
    name[length] = '\0';
    enum lmcs_status status = lmcs_shelf_get(&c->txn, name, &shelf, c->error);
    if (status == LMCS_OK && address[length] == '@')
        status = lmcs_shelf_resolve(&c->txn, &shelf, address + length + 1, &c->want_number, c->error);
    if (status == LMCS_OK)
        c->want_shelf = shelf.df.id;
    return status;
}

static void check_never_used(struct lmcs_checking *c, const struct lmcs_page_range_df *range)
{
    for (uint64_t at = range->next; at < range->end && lmcs_check_use_page(c, at, LMCS_PAGE_NEVER_USED);
         at += LMCS_PAGE_BYTES)
        continue;
}

static enum lmcs_status check_root(struct lmcs_checking *c)
{
    const struct lmcs_root_df *root = &c->txn.root;
    enum lmcs_status status = lmcs_check_load_objects(c);
    if (!lmcs_root_counts(root))
        REPORT(c, "a next number in the root is impossible");
    lmcs_check_use_page(c, root->self, LMCS_PAGE_REACHED);
    check_never_used(c, &root->fresh);
    check_never_used(c, &root->spare);
    if (status == LMCS_OK)
        status = lmcs_check_ring(c);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_OBJECTS, lmcs_check_no_value);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_FREE_PAGES, lmcs_check_free_page);
    if (status == LMCS_OK)
        status = lmcs_check_space(c);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_IDENTITIES, lmcs_check_identity);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_CONTENTS, lmcs_check_content);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_DEPENDENTS, lmcs_check_no_value);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_GROUPS, lmcs_check_no_value);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_ORIGINS, lmcs_check_origin);
    if (status == LMCS_OK)
        status = lmcs_check_live(c);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_SHELF_NAMES, lmcs_check_no_value);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_SHELVES, lmcs_check_shelf);
    return status;
}

static enum lmcs_status check_totals(struct lmcs_checking *c)
{
    const struct lmcs_root_df *root = &c->txn.root;
    enum lmcs_status status = lmcs_check_safety(c);
    if (status == LMCS_OK)
        status = lmcs_check_contents(c);
    if (status == LMCS_OK)
        status = lmcs_check_identity_uses(c);
    lmcs_check_total(c, "shelves", root->trees[LMCS_TREE_SHELF_NAMES].count, root->trees[LMCS_TREE_SHELVES].count);
    lmcs_check_total(c, "snapshots", c->snapshot_count, root->snapshot_count);
    lmcs_check_total(c, "prepared snapshots", c->prepared_count, root->trees[LMCS_TREE_GROUPS].count);
    lmcs_check_total(c, "free pages", c->free_pages, root->free_pages);
    if (status == LMCS_OK && !c->incomplete)
        lmcs_check_leaks(c);
    return status;
}

static enum lmcs_status check(struct lmcs_pool *pool, const char *address, bool repairs, lmcs_damage_fn visit,
                              void *context, struct lmcs_structure *structure, struct lmcs_error *error)
{
    struct lmcs_error local;
    *structure = (struct lmcs_structure){0};
    struct lmcs_checking c = {
        .pool = pool, .visit = visit, .context = context, .out = structure, .repairs = repairs, .error = &local};
    enum lmcs_status status = lmcs_txn_hold(pool, &c.txn, &local);
    if (status == LMCS_OK) {
        status = find_wanted(&c, address);
        if (status == LMCS_OK)
            status = check_root(&c);
        if (status == LMCS_OK)
            status = check_totals(&c);
        lmcs_txn_end(&c.txn);
    }
    for (size_t i = 0; i < c.object_count; i++)
        free(c.objects[i].pages);
    free(c.objects);
    free(c.retired);
    free(c.live);
    free(c.identities);
    free(c.manifest_pages);
    lmcs_map_free(&c.manifest_places);
    if (status != LMCS_OK && error != NULL)
        *error = local;
    return status;
}

enum lmcs_status lmcs_structure_check(struct lmcs_pool *pool, const char *address, lmcs_damage_fn visit, void *context,
                                      struct lmcs_structure *structure, struct lmcs_error *error)
{
    return check(pool, address, false, visit, context, structure, error);
}

enum lmcs_status lmcs_structure_repair(struct lmcs_pool *pool, lmcs_damage_fn visit, void *context,
                                       struct lmcs_structure *structure, struct lmcs_error *error)
{
    return check(pool, NULL, true, visit, context, structure, error);
}

void lmcs_structure_free(struct lmcs_structure *structure)
{
    for (size_t i = 0; i < structure->shelf_count; i++)
        free(structure->shelf_names[i]);
    free(structure->shelf_names);
    free(structure->contents);
    *structure = (struct lmcs_structure){0};
}

struct first_damage {
    lmcs_damage_fn visit;
    void *context;
    struct lmcs_error *error;
    bool any;
};

/* Keeps the first damage as the error, and passes each on. */
static void keep_first(void *context, const struct lmcs_damage *damage)
{
    struct first_damage *first = context;
    if (!first->any)
        lmcs_fail(first->error, LMCS_DAMAGED, 0, "%s%s%s: %s", damage->shelf, *damage->tensor != '\0' ? " " : "",
                  damage->tensor, damage->what);
    first->any = true;
    if (first->visit != NULL)
        first->visit(first->context, damage);
}

enum lmcs_status lmcs_check_structure(struct lmcs_pool *pool, lmcs_damage_fn visit, void *context,
                                      struct lmcs_error *error)
{
    struct lmcs_structure structure;
    struct lmcs_error local;
    struct first_damage first = {.visit = visit, .context = context, .error = error};
    enum lmcs_status status = lmcs_structure_check(pool, NULL, keep_first, &first, &structure, &local);
    if (status != LMCS_OK && error != NULL)
        *error = local;
    if (status == LMCS_OK && structure.damages > 0)
        status = LMCS_DAMAGED;
    lmcs_structure_free(&structure);
    return status;
}
