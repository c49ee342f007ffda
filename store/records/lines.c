/* SPDX-License-Identifier: BSD-3-Clause */
/* records/lines.c - the links of a line. */
#include "records/lines.h"

#include "pages/tree.h"

/* Dependents of one content, at most this many. */
struct dependents {
    struct lmcs_content all[LMC_MAX_BASES + 1];
    size_t count;
};

static enum lmcs_status list(struct lmcs_txn *txn, struct lmcs_cursor *cursor, uint64_t of,
                             struct dependents *dependents, struct lmcs_error *error)
{
    const size_t most = sizeof dependents->all / sizeof dependents->all[0];
    dependents->count = 0;
    enum lmcs_status status = lmcs_root_seek(cursor, txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){of, 0}, error);
    while (status == LMCS_OK && dependents->count < most && lmcs_cursor_valid(cursor) &&
           lmcs_cursor_key(cursor).high == of) {
        status = lmcs_content_get(txn, lmcs_cursor_key(cursor).low, &dependents->all[dependents->count], error);
        dependents->count += status == LMCS_OK;
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    return status;
}

/* Finds the link that rests on an unused array. *found false: none does, or not alone. */
static enum lmcs_status link_above(struct lmcs_txn *txn, struct lmcs_cursor *cursor, uint64_t array,
                                   struct lmcs_content *link, bool *found, struct lmcs_error *error)
{
    struct dependents dependents;
    enum lmcs_status status = list(txn, cursor, array, &dependents, error);
    *found = status == LMCS_OK && dependents.count == 1 && dependents.all[0].df.payload == LMCS_PAYLOAD_LINK;
    if (*found)
        *link = dependents.all[0];
    return status;
}

/* Whether an array is kept for one link alone and stored by another. */
static bool is_ghost(const struct lmcs_content *array)
{
    return array->df.payload == LMCS_PAYLOAD_LINKED && array->df.runs == 0 && array->df.base_uses == 1;
}

/* Counts a link with the links below that only it needs. */
static enum lmcs_status count_down(struct lmcs_txn *txn, struct lmcs_content *link, struct lmcs_line_heir *heir,
                                   struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    bool goes_on = true;
    for (unsigned i = 0; status == LMCS_OK && goes_on && i < LMCS_LINK_BOUND; i++) {
        struct lmcs_content array;
        uint64_t below = 0;
        heir->link_bytes += lmcs_content_room(link);
        for (size_t k = 0; status == LMCS_OK && goes_on && k < link->df.base_count; k++) {
            status = lmcs_content_get(txn, link->bases[k], &array, error);
            goes_on = status == LMCS_OK && is_ghost(&array);
            below = array.link;
        }
        if (goes_on)
            status = lmcs_content_get(txn, below, link, error);
    }
    return status;
}

static enum lmcs_status find(struct lmcs_txn *txn, struct lmcs_cursor *cursor, uint64_t unused,
                             struct lmcs_line_heir *heir, struct lmcs_error *error)
{
    struct dependents arrays;
    struct lmcs_content link;
    bool found = true, used = false;
    enum lmcs_status status = LMCS_OK;
    for (unsigned i = 0; status == LMCS_OK && found && !used && i < LMCS_LINK_BOUND; i++) {
        status = link_above(txn, cursor, unused, &link, &found, error);
        if (status != LMCS_OK || !found)
            break;
        status = list(txn, cursor, link.id, &arrays, error);
        found = status == LMCS_OK && arrays.count > 0 && arrays.count <= LMC_MAX_BASES;
        for (size_t k = 0; found && k < arrays.count; k++) {
            used |= arrays.all[k].df.runs > 0;
            found = arrays.all[k].df.payload == LMCS_PAYLOAD_LINKED; /* raw: not encoded yet */
        }
        unused = found ? arrays.all[0].id : 0;
    }
    if (status != LMCS_OK || !found || !used)
        return status;
    for (size_t k = 0; k < arrays.count; k++) {
        heir->arrays[heir->count++] = arrays.all[k].id;
        heir->raw_bytes += arrays.all[k].df.raw_bytes;
    }
    return count_down(txn, &link, heir, error);
}

enum lmcs_status lmcs_line_find_heir(struct lmcs_txn *txn, uint64_t unused, struct lmcs_line_heir *heir,
                                     struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    *heir = (struct lmcs_line_heir){.count = 0};
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = find(txn, cursor, unused, heir, error);
    lmcs_cursor_free(cursor);
    return status;
}

/* Finds the link that rests on an array, among deltas. */
static enum lmcs_status find_link_on(struct lmcs_txn *txn, struct lmcs_cursor *cursor, uint64_t array,
                                     struct lmcs_content *link, bool *found, struct lmcs_error *error)
{
    *found = false;
    enum lmcs_status status = lmcs_root_seek(cursor, txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){array, 0}, error);
    while (status == LMCS_OK && !*found && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == array) {
        status = lmcs_content_get(txn, lmcs_cursor_key(cursor).low, link, error);
        *found = status == LMCS_OK && link->df.payload == LMCS_PAYLOAD_LINK;
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    return status;
}

/* The place after the links that lead to a link's bases. */
static enum lmcs_status place_above(struct lmcs_txn *txn, const struct lmcs_content *link, uint32_t *place,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    *place = 1;
    for (size_t i = 0; status == LMCS_OK && i < link->df.base_count; i++) {
        struct lmcs_content base, below = {.df = {.place = 0}};
        status = lmcs_content_get(txn, link->bases[i], &base, error);
        if (status == LMCS_OK && base.link != 0)
            status = lmcs_content_get(txn, base.link, &below, error);
        if (status == LMCS_OK && below.df.place >= *place)
            *place = below.df.place + 1;
    }
    return status;
}

static enum lmcs_status renumber(struct lmcs_txn *txn, struct lmcs_cursor *cursor, uint64_t array,
                                 struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (unsigned i = 0; status == LMCS_OK && i < LMCS_LINK_BOUND; i++) {
        struct lmcs_content link;
        struct dependents arrays;
        uint32_t place;
        bool found;
        status = find_link_on(txn, cursor, array, &link, &found, error);
        if (status == LMCS_OK && found)
            status = place_above(txn, &link, &place, error);
        if (status != LMCS_OK || !found || place >= link.df.place)
            break;
        link.df.place = place;
        status = lmcs_content_put(txn, &link, error);
        if (status == LMCS_OK)
            status = list(txn, cursor, link.id, &arrays, error);
        if (status != LMCS_OK || arrays.count == 0)
            break;
        array = arrays.all[0].id;
        for (size_t k = 1; k < arrays.count; k++) /* one on which the next link rests */
            array = arrays.all[k].df.base_uses > 0 ? arrays.all[k].id : array;
    }
    return status;
}

enum lmcs_status lmcs_line_renumber(struct lmcs_txn *txn, uint64_t array, struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = renumber(txn, cursor, array, error);
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_link_on(struct lmcs_txn *txn, uint64_t array, uint64_t *link, struct lmcs_error *error)
{
    struct lmcs_content above;
    struct lmcs_cursor *cursor;
    bool found = false;
    *link = 0;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = find_link_on(txn, cursor, array, &above, &found, error);
    lmcs_cursor_free(cursor);
    *link = status == LMCS_OK && found ? above.id : 0;
    return status;
}
