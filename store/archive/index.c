/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive/index.c - shelves, snapshots and tags of an archive, and the part that addresses select.
 *
 * Addresses are those of a pool, without words that need one.
 */
#include "archive/index.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/order.h"

static enum lmcs_status note_since(void *context, const struct lmcs_archive_since_df *df, struct lmcs_error *error)
{
    struct lmcs_index *index = context;
    if (!lmcs_grow(&index->since, &index->since_capacity, index->since_count, sizeof *index->since))
        return lmcs_fail_memory(error);
    index->since[index->since_count++] = (struct lmc_hash){df->hash_low, df->hash_high};
    return LMCS_OK;
}

static enum lmcs_status note_shelf(void *context, struct lmcs_error *error)
{
    struct lmcs_index *index = context;
    if (!lmcs_grow(&index->shelves, &index->shelf_capacity, index->shelf_count, sizeof *index->shelves))
        return lmcs_fail_memory(error);
    struct lmcs_index_shelf *shelf = &index->shelves[index->shelf_count];
    *shelf = (struct lmcs_index_shelf){.name = strdup(index->reader->shelf), .df = index->reader->shelf_df};
    if (shelf->name == NULL)
        return lmcs_fail_memory(error);
    index->shelf_count++;
    return LMCS_OK;
}

static enum lmcs_status note_origin(void *context, const struct lmcs_archive_origin_df *origin, const char *name,
                                    struct lmcs_error *error)
{
    struct lmcs_index *index = context;
    (void)origin;
    (void)name;
    (void)error;
    index->shelves[index->shelf_count - 1].has_origin = true;
    return LMCS_OK;
}

static enum lmcs_status note_shelf_id(void *context, const struct lmcs_archive_shelf_id_df *id,
                                      struct lmcs_error *error)
{
    struct lmcs_index *index = context;
    (void)error;
    index->shelves[index->shelf_count - 1].has_id = true;
    index->shelves[index->shelf_count - 1].id = *id;
    return LMCS_OK;
}

static enum lmcs_status note_snapshot(void *context, struct lmcs_error *error)
{
    struct lmcs_index *index = context;
    const struct lmcs_archive_reader *reader = index->reader;
    struct lmcs_index_shelf *shelf = &index->shelves[index->shelf_count - 1];
    if (!lmcs_grow(&shelf->snapshots, &shelf->snapshot_capacity, shelf->snapshot_count, sizeof *shelf->snapshots))
        return lmcs_fail_memory(error);
    struct lmcs_index_snapshot snapshot = {.df = reader->snapshot,
                                           .meta_check = lmc_hash64(reader->meta, reader->snapshot.meta_bytes, 0),
                                           .entries = reader->present,
                                           .tensors = reader->tensors,
                                           .raw_bytes = reader->raw_bytes};
    for (size_t i = reader->first_content; i < reader->content_count; i++) {
        snapshot.new_contents += !reader->contents[i].is_known;
        snapshot.new_bytes += reader->contents[i].stored_bytes;
    }
    if (index->with_meta && reader->snapshot.meta_bytes > 0 && (snapshot.meta = strdup(reader->meta)) == NULL)
        return lmcs_fail_memory(error);
    shelf->snapshots[shelf->snapshot_count++] = snapshot;
    return LMCS_OK;
}

static enum lmcs_status note_tag(void *context, uint64_t number, const char *text, struct lmcs_error *error)
{
    struct lmcs_index *index = context;
    struct lmcs_index_shelf *shelf = &index->shelves[index->shelf_count - 1];
    if (!lmcs_grow(&shelf->tags, &shelf->tag_capacity, shelf->tag_count, sizeof *shelf->tags))
        return lmcs_fail_memory(error);
    char *copy = strdup(text);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    shelf->tags[shelf->tag_count++] = (struct lmcs_index_tag){number, copy};
    return LMCS_OK;
}

const struct lmcs_archive_visitor lmcs_index_visitor = {.since = note_since,
                                                        .shelf = note_shelf,
                                                        .shelf_id = note_shelf_id,
                                                        .origin = note_origin,
                                                        .snapshot_end = note_snapshot,
                                                        .tag = note_tag};

void lmcs_index_free(struct lmcs_index *index)
{
    for (size_t i = 0; i < index->shelf_count; i++) {
        struct lmcs_index_shelf *shelf = &index->shelves[i];
        for (size_t k = 0; k < shelf->snapshot_count; k++)
            free(shelf->snapshots[k].meta);
        for (size_t k = 0; k < shelf->tag_count; k++)
            free(shelf->tags[k].text);
        free(shelf->snapshots);
        free(shelf->tags);
        free(shelf->name);
    }
    free(index->shelves);
    free(index->since);
    memset(index, 0, sizeof *index);
}

const struct lmcs_index_shelf *lmcs_index_find(const struct lmcs_index *index, const char *shelf)
{
    for (size_t i = 0; i < index->shelf_count; i++)
        if (strcmp(index->shelves[i].name, shelf) == 0)
            return &index->shelves[i];
    return NULL;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = ((const struct lmcs_index_snapshot *)a)->df.number;
    uint64_t y = ((const struct lmcs_index_snapshot *)b)->df.number;
    return LMCS_ORDER(x, y);
}

const struct lmcs_index_snapshot *lmcs_index_number(const struct lmcs_index_shelf *shelf, uint64_t number)
{
    const struct lmcs_index_snapshot wanted = {.df = {.number = number}};
    return shelf->snapshot_count == 0
               ? NULL
               : bsearch(&wanted, shelf->snapshots, shelf->snapshot_count, sizeof *shelf->snapshots, by_number);
}

bool lmcs_range_cut(const char *range, char **first, const char **last)
{
    const char *dots = strstr(range, "..");
    *first = NULL;
    *last = dots == NULL ? NULL : dots + 2;
    if (dots != NULL)
        *first = strndup(range, (size_t)(dots - range));
    return dots != NULL;
}

static bool is_number(const char *text, uint64_t *number)
{
    char *end = NULL;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
}

/* Finds the index of the snapshot with a number or tag, "latest" or "step:N"; the count: none. */
static size_t find_point(const struct lmcs_index_shelf *shelf, const char *point)
{
    uint64_t number = 0;
    size_t none = shelf->snapshot_count;
    if (strcmp(point, "latest") == 0)
        return none == 0 ? none : none - 1;
    if (strncmp(point, "step:", 5) == 0) {
        for (size_t i = none; i-- > 0;) {
            char step[32];
            snprintf(step, sizeof step, "%lld", (long long)shelf->snapshots[i].df.step);
            if (shelf->snapshots[i].df.step != LMCS_NO_STEP && strcmp(step, point + 5) == 0)
                return i;
        }
        return none;
    }
    for (size_t i = 0; i < shelf->tag_count; i++)
        if (strcmp(shelf->tags[i].text, point) == 0)
            number = shelf->tags[i].number;
    if (number == 0 && !is_number(point, &number))
        return none;
    const struct lmcs_index_snapshot *found = lmcs_index_number(shelf, number);
    return found == NULL ? none : (size_t)(found - shelf->snapshots);
}

static enum lmcs_status find_which(const struct lmcs_index_shelf *shelf, const char *which, uint64_t *number,
                                   struct lmcs_error *error)
{
    const char *tilde = strchr(which, '~');
    uint64_t back = 0;
    char *point = tilde == NULL ? strdup(which) : strndup(which, (size_t)(tilde - which));
    if (point == NULL)
        return lmcs_fail_memory(error);
    bool sound = tilde == NULL || (tilde[1] == '\0' ? (back = 1) : is_number(tilde + 1, &back));
    size_t at = sound ? find_point(shelf, point) : shelf->snapshot_count;
    free(point);
    if (at >= shelf->snapshot_count)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "the archive has no %s@%.200s", shelf->name, which);
    if (back > at)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "the archive has no %s@%.200s: it has only %zu snapshot%s%s",
                         shelf->name, which, at + 1, at == 0 ? "" : "s",
                         at + 1 == shelf->snapshot_count ? "" : " up to there");
    *number = shelf->snapshots[at - back].df.number;
    return LMCS_OK;
}

static enum lmcs_status find_range(const struct lmcs_index_shelf *shelf, const char *which, struct lmcs_part *part,
                                   struct lmcs_error *error)
{
    char *first;
    const char *last;
    if (!lmcs_range_cut(which, &first, &last)) {
        enum lmcs_status status = find_which(shelf, which, &part->first, error);
        part->last = part->first;
        return status;
    }
    if (first == NULL)
        return lmcs_fail_memory(error);
    part->first = 1;
    enum lmcs_status status = first[0] == '\0' ? LMCS_OK : find_which(shelf, first, &part->first, error);
    if (status == LMCS_OK)
        status = find_which(shelf, last[0] == '\0' ? "latest" : last, &part->last, error);
    free(first);
    if (status == LMCS_OK && part->first > part->last)
        return lmcs_fail(error, LMCS_INVALID, 0, "the range %s@%.200s is empty: it ends before it begins", shelf->name,
                         which);
    return status;
}

static enum lmcs_status find_part(const struct lmcs_index *index, const char *address, struct lmcs_part *part,
                                  struct lmcs_error *error)
{
    const char *at = strchr(address, '@');
    part->shelf = at == NULL ? strdup(address) : strndup(address, (size_t)(at - address));
    part->first = 1;
    part->last = UINT64_MAX;
    if (part->shelf == NULL)
        return lmcs_fail_memory(error);
    const struct lmcs_index_shelf *shelf = lmcs_index_find(index, part->shelf);
    if (shelf == NULL)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "the archive has no shelf \"%.200s\"", part->shelf);
    return at == NULL ? LMCS_OK : find_range(shelf, at + 1, part, error);
}

enum lmcs_status lmcs_index_parts(const struct lmcs_index *index, const char *const *addresses, size_t count,
                                  struct lmcs_parts *parts, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    *parts = (struct lmcs_parts){NULL, 0};
    if (count > 0 && (parts->items = calloc(count, sizeof *parts->items)) == NULL)
        return lmcs_fail_memory(error);
    for (; status == LMCS_OK && parts->count < count; parts->count++)
        status = find_part(index, addresses[parts->count], &parts->items[parts->count], error);
    return status;
}

bool lmcs_parts_have_shelf(const struct lmcs_parts *parts, const char *shelf)
{
    for (size_t i = 0; i < parts->count; i++)
        if (strcmp(parts->items[i].shelf, shelf) == 0)
            return true;
    return parts->count == 0;
}

bool lmcs_parts_have(const struct lmcs_parts *parts, const char *shelf, uint64_t number)
{
    for (size_t i = 0; i < parts->count; i++) {
        const struct lmcs_part *part = &parts->items[i];
        if (strcmp(part->shelf, shelf) == 0 && part->first <= number && number <= part->last)
            return true;
    }
    return parts->count == 0;
}

void lmcs_parts_free(struct lmcs_parts *parts)
{
    for (size_t i = 0; i < parts->count; i++)
        free(parts->items[i].shelf);
    free(parts->items);
    *parts = (struct lmcs_parts){NULL, 0};
}

bool lmcs_only_has(const char *const *only, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(only[i], name) == 0 || fnmatch(only[i], name, 0) == 0)
            return true;
    return count == 0;
}
