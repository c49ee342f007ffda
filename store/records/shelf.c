/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/shelf.c - records and indexes of shelves and snapshots.
 *
 * A transaction loads a shelf's record, changes the five indexes in it, and saves it last.
 */
#include "records/shelf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/names.h"
#include "pages/pool.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/manifest.h"
#include "records/origin.h"

struct shelf_record {
    struct lmcs_shelf_df df;
    char text[LMCS_MAX_VALUE - sizeof(struct lmcs_shelf_df)]; /* the name, then the policy */
};
static_assert(sizeof(struct lmcs_shelf_df) + LMCS_MAX_NAME + LMCS_MAX_POLICY <= LMCS_MAX_VALUE,
              "room for the largest record");

static uint64_t hash_of(const char *text)
{
    return lmc_hash64(text, strlen(text), 0);
}

struct lmcs_root_tree_df *lmcs_shelf_tree(struct lmcs_shelf *shelf, uint8_t kind)
{
    return &shelf->df.trees[kind - LMCS_TREE_NUMBERS];
}

/* ---- Shelves ---- */

static enum lmcs_status fail_shelf(struct lmcs_txn *txn, uint64_t id, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the record of shelf %llu", txn->pool->path,
                     (unsigned long long)id);
}

enum lmcs_status lmcs_shelf_load_if(struct lmcs_txn *txn, uint64_t id, struct lmcs_shelf *shelf, bool *found,
                                    struct lmcs_error *error)
{
    struct shelf_record record;
    size_t bytes;
    enum lmcs_status status = lmcs_root_get(txn, LMCS_TREE_SHELVES, (struct lmcs_key_df){id, 0}, &record,
                                            sizeof record.df, sizeof record, &bytes, found, error);
    if (status != LMCS_OK || !*found)
        return status;
    const uint32_t flags = record.df.flags & ~(LMCS_SHELF_STAGING | LMCS_SHELF_KEPT);
    if (flags != 0)
        return lmcs_fail_newer(error, "%s: shelf %llu: flag %u", txn->pool->path, (unsigned long long)id, flags);
    size_t name = record.df.name_bytes, policy = record.df.policy_bytes;
    if (name > LMCS_MAX_NAME || policy > LMCS_MAX_POLICY || bytes != sizeof record.df + name + policy ||
        record.df.id != id)
        return fail_shelf(txn, id, error);
    shelf->df = record.df;
    memcpy(shelf->name, record.text, name);
    shelf->name[name] = '\0';
    memcpy(shelf->policy, record.text + name, policy);
    shelf->policy[policy] = '\0';
    return LMCS_OK;
}

enum lmcs_status lmcs_shelf_load(struct lmcs_txn *txn, uint64_t id, struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    bool found;
    enum lmcs_status status = lmcs_shelf_load_if(txn, id, shelf, &found, error);
    return status == LMCS_OK && !found ? fail_shelf(txn, id, error) : status;
}

/* Puts the shelf's name before the message. */
static void blame(struct lmcs_pool *pool, uint64_t id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    if (error == NULL || lmcs_txn_read(pool, &txn, NULL) != LMCS_OK)
        return;
    bool known = lmcs_shelf_load(&txn, id, &shelf, NULL) == LMCS_OK;
    lmcs_txn_end(&txn);
    if (known)
        lmcs_error_prefix(error, "shelf \"%.200s\": ", shelf.name);
    else
        lmcs_error_prefix(error, "shelf number %llu: ", (unsigned long long)id);
}

enum lmcs_status lmcs_shelf_pass_over(struct lmcs_pool *pool, uint64_t id, struct lmcs_passed *passed,
                                      enum lmcs_status status, struct lmcs_error *error)
{
    if (lmcs_is_unusable(status) && !passed->any) /* only the first is reported */
        blame(pool, id, error);
    return lmcs_pass_over(passed, status, error);
}

enum lmcs_status lmcs_shelf_find(struct lmcs_txn *txn, const char *name, struct lmcs_shelf *shelf, bool *found,
                                 struct lmcs_error *error)
{
    *found = false;
    if (!lmcs_name_is_sound(name))
        return LMCS_OK;
    uint64_t hash = hash_of(name);
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_root_open(&cursor, txn, LMCS_TREE_SHELF_NAMES, (struct lmcs_key_df){hash, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == hash) {
        status = lmcs_shelf_load(txn, lmcs_cursor_key(cursor).low, shelf, error);
        *found = status == LMCS_OK && strcmp(shelf->name, name) == 0 && (shelf->df.flags & LMCS_SHELF_STAGING) == 0;
        if (*found || status != LMCS_OK)
            break;
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

#define MOST_NAMES    5u    /* existing shelves in the error for a missing one */
#define MOST_COMPARED 1000u /* of them, with its name */

static void append_name(char *sentence, size_t room, const char *name, unsigned listed)
{
    size_t used = strlen(sentence);
    snprintf(sentence + used, room - used, "%s\"%.60s\"", listed == 0 ? "" : ", ", name);
}

bool lmcs_shelf_append_similar(struct lmcs_txn *txn, const char *name, struct lmcs_error *error)
{
    char similar[LMCS_MAX_NAME + 1] = "";
    uint64_t snapshots = 0, ids[MOST_COMPARED];
    struct lmcs_shelf shelf;
    size_t count = 0;
    if (lmcs_shelf_ids(txn, 0, ids, MOST_COMPARED, &count, NULL) != LMCS_OK)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (lmcs_shelf_load(txn, ids[i], &shelf, NULL) != LMCS_OK || (shelf.df.flags & LMCS_SHELF_STAGING) != 0 ||
            shelf.df.latest == 0 || strcmp(shelf.name, name) == 0)
            continue;
        const char *const names[] = {similar, shelf.name};
        if (lmcs_nearest(name, names, 2) != shelf.name)
            continue;
        memcpy(similar, shelf.name, sizeof similar);
        snapshots = lmcs_shelf_tree(&shelf, LMCS_TREE_NUMBERS)->count;
    }
    if (*similar != '\0')
        lmcs_error_append(error, "; shelf \"%.200s\" has %llu snapshot%s", similar, (unsigned long long)snapshots,
                          snapshots == 1 ? "" : "s");
    return *similar != '\0';
}

enum lmcs_status lmcs_fail_no_shelf(struct lmcs_txn *txn, const char *name, struct lmcs_error *error)
{
    lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no shelf \"%.200s\"", txn->pool->path, name);
    if (lmcs_shelf_append_similar(txn, name, error))
        return LMCS_NOT_FOUND;
    char others[400] = "";
    uint64_t ids[2 * MOST_NAMES];
    struct lmcs_shelf shelf;
    size_t count = 0;
    unsigned listed = 0;
    if (lmcs_shelf_ids(txn, 0, ids, sizeof ids / sizeof *ids, &count, NULL) != LMCS_OK)
        count = 0;
    for (size_t i = 0; i < count && listed < MOST_NAMES; i++)
        if (lmcs_shelf_load(txn, ids[i], &shelf, NULL) == LMCS_OK && (shelf.df.flags & LMCS_SHELF_STAGING) == 0)
            append_name(others, sizeof others, shelf.name, listed++);
    lmcs_error_append(error, "%s%s%s", listed > 0 ? "; there is " : "; there is none yet", others,
                      txn->root.trees[LMCS_TREE_SHELVES].count > listed ? ", and more" : "");
    return LMCS_NOT_FOUND;
}

enum lmcs_status lmcs_shelf_get(struct lmcs_txn *txn, const char *name, struct lmcs_shelf *shelf,
                                struct lmcs_error *error)
{
    bool found;
    enum lmcs_status status = lmcs_shelf_find(txn, name, shelf, &found, error);
    return status == LMCS_OK && !found ? lmcs_fail_no_shelf(txn, name, error) : status;
}

static enum lmcs_status store_record(struct lmcs_txn *txn, const struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    struct shelf_record record = {.df = shelf->df};
    size_t name = shelf->df.name_bytes, policy = strlen(shelf->policy);
    record.df.policy_bytes = (uint32_t)policy;
    memcpy(record.text, shelf->name, name);
    memcpy(record.text + name, shelf->policy, policy);
    return lmcs_root_put(txn, LMCS_TREE_SHELVES, (struct lmcs_key_df){shelf->df.id, 0}, &record,
                         sizeof record.df + name + policy, error);
}

bool lmcs_shelf_is_known(const uint64_t identity[2])
{
    return (identity[0] | identity[1]) != 0;
}

bool lmcs_shelf_is_same(const uint64_t a[2], const uint64_t b[2])
{
    return lmcs_shelf_is_known(a) && a[0] == b[0] && a[1] == b[1];
}

bool lmcs_shelf_differs(const uint64_t a[2], const uint64_t b[2])
{
    return lmcs_shelf_is_known(a) && lmcs_shelf_is_known(b) && !lmcs_shelf_is_same(a, b);
}

void lmcs_shelf_identify(struct lmcs_txn *txn, struct lmcs_shelf *shelf)
{
    uint64_t *identity = shelf->df.identity;
    if (lmcs_shelf_is_known(identity))
        return;
    if (getrandom(identity, sizeof shelf->df.identity, GRND_NONBLOCK) != (ssize_t)sizeof shelf->df.identity) {
        const uint64_t seeds[4] = {lmcs_now_ns(), txn->root.epoch, shelf->df.id, (uint64_t)getpid()};
        struct lmc_hash hash = lmc_hash128(seeds, sizeof seeds);
        memcpy(identity, &hash, sizeof shelf->df.identity);
    }
    identity[0] |= !lmcs_shelf_is_known(identity);
}

enum lmcs_status lmcs_shelf_set_name(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *name,
                                     struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_root_delete(txn, LMCS_TREE_SHELF_NAMES,
                                               (struct lmcs_key_df){hash_of(shelf->name), shelf->df.id}, NULL, error);
    if (status != LMCS_OK)
        return status;
    shelf->df.name_bytes = (uint32_t)strlen(name);
    memcpy(shelf->name, name, shelf->df.name_bytes + 1);
    return lmcs_root_put(txn, LMCS_TREE_SHELF_NAMES, (struct lmcs_key_df){hash_of(name), shelf->df.id}, NULL, 0, error);
}

enum lmcs_status lmcs_shelf_check_name(const char *name, struct lmcs_error *error)
{
    if (lmcs_name_is_sound(name) && strchr(name, '@') == NULL)
        return LMCS_OK;
    return lmcs_fail(error, LMCS_INVALID, 0,
                     "shelf name \"%.64s\": names are 1 to %d bytes of UTF-8 without control characters and @",
                     name == NULL ? "" : name, LMCS_MAX_NAME);
}

enum lmcs_status lmcs_shelf_make(struct lmcs_txn *txn, const char *name, uint32_t flags, struct lmcs_shelf *shelf,
                                 struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_shelf_check_name(name, error);
    if (status != LMCS_OK)
        return status;
    memset(shelf, 0, sizeof *shelf);
    shelf->df.id = txn->root.next_shelf++;
    shelf->df.flags = flags;
    shelf->df.keep_raw = LMCS_DEFAULT_KEEP_RAW;
    shelf->df.next_number = 1;
    shelf->df.created_ns = lmcs_now_ns();
    shelf->df.name_bytes = (uint32_t)strlen(name);
    memcpy(shelf->name, name, shelf->df.name_bytes);
    status = store_record(txn, shelf, error);
    if (status == LMCS_OK)
        status = lmcs_root_put(txn, LMCS_TREE_SHELF_NAMES, (struct lmcs_key_df){hash_of(name), shelf->df.id}, NULL, 0,
                               error);
    return status;
}

enum lmcs_status lmcs_shelf_save(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint8_t i = 0; status == LMCS_OK && i < LMCS_SHELF_TREES; i++)
        status = lmcs_tree_seal(txn, (uint8_t)(LMCS_TREE_NUMBERS + i), &shelf->df.trees[i], error);
    return status == LMCS_OK ? store_record(txn, shelf, error) : status;
}

enum lmcs_status lmcs_shelf_delete(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint8_t i = 0; status == LMCS_OK && i < LMCS_SHELF_TREES; i++)
        status = lmcs_tree_clear(txn, (uint8_t)(LMCS_TREE_NUMBERS + i), &shelf->df.trees[i], error);
    if (status == LMCS_OK)
        status = lmcs_origin_forget(txn, shelf->df.id, shelf->name, error);
    if (status == LMCS_OK)
        status = lmcs_root_delete(txn, LMCS_TREE_SHELF_NAMES, (struct lmcs_key_df){hash_of(shelf->name), shelf->df.id},
                                  NULL, error);
    if (status == LMCS_OK)
        status = lmcs_root_delete(txn, LMCS_TREE_SHELVES, (struct lmcs_key_df){shelf->df.id, 0}, NULL, error);
    return status;
}

enum lmcs_status lmcs_shelf_ids(struct lmcs_txn *txn, uint64_t first, uint64_t *ids, size_t capacity, size_t *count,
                                struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    struct lmcs_passed passed = {.any = false};
    struct lmcs_error why;
    *count = 0;
    enum lmcs_status status = lmcs_root_open(&cursor, txn, LMCS_TREE_SHELVES, (struct lmcs_key_df){first, 0}, &why);
    while ((status = lmcs_cursor_pass(cursor, status, &passed, &why)) == LMCS_OK && lmcs_cursor_valid(cursor)) {
        uint64_t id = lmcs_cursor_key(cursor).high;
        if (id == UINT64_MAX) { /* never assigned: the next id would be 0 */
            status = lmcs_fail(&why, LMCS_DAMAGED, 0, "%s: damaged metadata: a shelf's number", txn->pool->path);
            break;
        }
        ids[(*count)++] = id;
        if (*count == capacity)
            break;
        status = lmcs_cursor_next(cursor, &why);
    }
    lmcs_cursor_free(cursor);
    if (status != LMCS_OK && error != NULL)
        *error = why;
    return lmcs_passed_over(&passed, status, error);
}

enum lmcs_status lmcs_shelf_next(struct lmcs_pool *pool, uint64_t *id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    size_t count;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_ids(&txn, *id + 1, id, 1, &count, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && count == 1)
        return LMCS_OK;
    *id = 0;
    return status;
}

void lmcs_shelf_policy(const struct lmcs_shelf *shelf, struct lmcs_policy *policy)
{
    lmcs_policy_init(policy);
    if (lmcs_policy_parse_stored(shelf->policy, policy, NULL) != LMCS_OK)
        policy->rule_count = 0;
    policy->keep_raw = shelf->df.keep_raw > 0 ? shelf->df.keep_raw : 1;
}

/* ---- Records of snapshots ---- */

bool lmcs_url_is_sound(const char *url)
{
    return url != NULL && lmcs_name_is_sound(url) && strlen(url) <= LMCS_MAX_URL && strchr(url, ' ') == NULL &&
           strstr(url, "://") != NULL;
}

enum lmcs_status lmcs_record_check_local(struct lmcs_txn *txn, const struct lmcs_shelf *shelf,
                                         const struct lmcs_record *record, struct lmcs_error *error)
{
    const unsigned long long number = record->df.number;
    if (record->df.state != LMCS_SNAPSHOT_REMOTE)
        return LMCS_OK;
    return lmcs_fail(error, LMCS_REMOTE, 0, "%s: %s@%llu is remote, at %s: fetch it by lmc-store pull %s %s %s@%llu",
                     txn->pool->path, shelf->name, number, record->url, record->url, txn->pool->path, shelf->name,
                     number);
}

enum lmcs_status lmcs_record_read(struct lmcs_txn *txn, const struct lmcs_shelf *shelf, uint64_t number,
                                  const void *value, size_t bytes, struct lmcs_record *record, struct lmcs_error *error)
{
    const unsigned long long n = number;
    size_t meta = 0, url = 0;
    record->url[0] = '\0';
    if (bytes >= sizeof record->df) {
        memcpy(&record->df, value, sizeof record->df);
        meta = record->df.meta_bytes == UINT32_MAX ? 0 : record->df.meta_bytes;
        if (record->df.state > LMCS_SNAPSHOT_REMOTE)
            return lmcs_fail_newer(error, "%s: %s@%llu: state %u", txn->pool->path, shelf->name, n, record->df.state);
    }
    const bool is_remote = bytes >= sizeof record->df && record->df.state == LMCS_SNAPSHOT_REMOTE;
    if (is_remote && bytes - sizeof record->df > meta)
        url = bytes - sizeof record->df - meta;
    bool fits = bytes >= sizeof record->df && meta <= LMCS_META_INLINE && url <= LMCS_MAX_URL &&
                bytes == sizeof record->df + meta + url && record->df.number == number;
    if (fits && is_remote) {
        memcpy(record->url, (const char *)value + sizeof record->df + meta, url);
        record->url[url] = '\0';
        fits = strlen(record->url) == url && lmcs_url_is_sound(record->url) && record->df.meta_bytes != UINT32_MAX &&
               record->df.manifest.offset == 0 && record->df.entry_count == 0 && record->df.lineage == 0;
    }
    if (!fits)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the record of %s@%llu", txn->pool->path,
                         shelf->name, n);
    memcpy(record->meta, (const char *)value + sizeof record->df, meta);
    record->meta[meta] = '\0';
    return LMCS_OK;
}

enum lmcs_status lmcs_record_get(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number,
                                 struct lmcs_record *record, bool *found, struct lmcs_error *error)
{
    unsigned char value[LMCS_MAX_VALUE];
    size_t bytes;
    enum lmcs_status status =
        lmcs_tree_get(txn, LMCS_TREE_NUMBERS, lmcs_shelf_tree(shelf, LMCS_TREE_NUMBERS),
                      (struct lmcs_key_df){number, 0}, value, sizeof record->df, sizeof value, &bytes, found, error);
    return status == LMCS_OK && *found ? lmcs_record_read(txn, shelf, number, value, bytes, record, error) : status;
}

enum lmcs_status lmcs_record_is_prepared(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number,
                                         bool *prepared, struct lmcs_error *error)
{
    struct lmcs_record record;
    bool found = false;
    enum lmcs_status status = lmcs_record_get(txn, shelf, number, &record, &found, error);
    *prepared = status == LMCS_OK && found && record.df.state == LMCS_SNAPSHOT_PREPARED;
    return lmcs_is_unusable(status) ? LMCS_OK : status;
}

enum lmcs_status lmcs_record_put(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_record *record,
                                 struct lmcs_error *error)
{
    const struct lmcs_snapshot_df *df = &record->df;
    size_t bytes = sizeof *df + (df->meta_bytes == UINT32_MAX ? 0 : df->meta_bytes), url = 0;
    unsigned char value[LMCS_MAX_VALUE];
    memcpy(value, record, bytes);
    if (df->state == LMCS_SNAPSHOT_REMOTE)
        memcpy(value + bytes, record->url, url = strlen(record->url));
    enum lmcs_status status = lmcs_tree_put(txn, LMCS_TREE_NUMBERS, lmcs_shelf_tree(shelf, LMCS_TREE_NUMBERS),
                                            (struct lmcs_key_df){df->number, 0}, value, bytes + url, error);
    if (status != LMCS_OK || !lmcs_record_is_committed(record))
        return status;
    if (df->step != LMCS_NO_STEP)
        status = lmcs_tree_put(txn, LMCS_TREE_STEPS, lmcs_shelf_tree(shelf, LMCS_TREE_STEPS),
                               (struct lmcs_key_df){lmcs_step_key(df->step), df->number}, NULL, 0, error);
    if (status == LMCS_OK)
        status = lmcs_tree_put(txn, LMCS_TREE_TIMES, lmcs_shelf_tree(shelf, LMCS_TREE_TIMES),
                               (struct lmcs_key_df){df->time_ns, df->number}, NULL, 0, error);
    return status;
}

static enum lmcs_status delete_tags(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number, uint64_t *count,
                                    struct lmcs_error *error)
{
    struct lmcs_root_tree_df *tagged = lmcs_shelf_tree(shelf, LMCS_TREE_TAGGED);
    struct lmcs_root_tree_df *tags = lmcs_shelf_tree(shelf, LMCS_TREE_TAGS);
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    while (status == LMCS_OK) {
        status = lmcs_cursor_seek(cursor, txn, LMCS_TREE_TAGGED, tagged, (struct lmcs_key_df){number, 0}, error);
        if (status != LMCS_OK || !lmcs_cursor_valid(cursor) || lmcs_cursor_key(cursor).high != number)
            break;
        struct lmcs_key_df key = lmcs_cursor_key(cursor);
        uint64_t index = 0;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        if (bytes == sizeof index)
            memcpy(&index, value, sizeof index);
        status = lmcs_tree_delete(txn, LMCS_TREE_TAGS, tags, (struct lmcs_key_df){key.low, index}, NULL, error);
        if (status == LMCS_OK)
            status = lmcs_tree_delete(txn, LMCS_TREE_TAGGED, tagged, key, NULL, error);
        ++*count;
    }
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_record_delete(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_record *record,
                                    uint64_t *tags, struct lmcs_error *error)
{
    const struct lmcs_snapshot_df *df = &record->df;
    enum lmcs_status status = lmcs_tree_delete(txn, LMCS_TREE_NUMBERS, lmcs_shelf_tree(shelf, LMCS_TREE_NUMBERS),
                                               (struct lmcs_key_df){df->number, 0}, NULL, error);
    if (status != LMCS_OK || !lmcs_record_is_committed(record))
        return status;
    if (df->step != LMCS_NO_STEP)
        status = lmcs_tree_delete(txn, LMCS_TREE_STEPS, lmcs_shelf_tree(shelf, LMCS_TREE_STEPS),
                                  (struct lmcs_key_df){lmcs_step_key(df->step), df->number}, NULL, error);
    if (status == LMCS_OK)
        status = lmcs_tree_delete(txn, LMCS_TREE_TIMES, lmcs_shelf_tree(shelf, LMCS_TREE_TIMES),
                                  (struct lmcs_key_df){df->time_ns, df->number}, NULL, error);
    return status == LMCS_OK ? delete_tags(txn, shelf, df->number, tags, error) : status;
}

enum lmcs_status lmcs_record_before(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number, uint64_t *before,
                                    struct lmcs_error *error)
{
    struct lmcs_key_df key;
    bool found;
    enum lmcs_status status = lmcs_tree_before(txn, LMCS_TREE_NUMBERS, lmcs_shelf_tree(shelf, LMCS_TREE_NUMBERS),
                                               (struct lmcs_key_df){number, 0}, &key, &found, error);
    *before = status == LMCS_OK && found ? key.high : 0;
    return status;
}

enum lmcs_status lmcs_record_after(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number, uint64_t *after,
                                   struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    *after = 0;
    if (number == UINT64_MAX) /* only a forged number; nothing follows it */
        return LMCS_OK;
    enum lmcs_status status =
        lmcs_cursor_open(&cursor, txn, LMCS_TREE_NUMBERS, lmcs_shelf_tree(shelf, LMCS_TREE_NUMBERS),
                         (struct lmcs_key_df){number + 1, 0}, error);
    if (status == LMCS_OK && lmcs_cursor_valid(cursor))
        *after = lmcs_cursor_key(cursor).high;
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_shelf_check_next(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    uint64_t next = shelf->df.next_number, after = 0;
    enum lmcs_status status = next > 0 ? lmcs_record_after(txn, shelf, next - 1, &after, error) : LMCS_OK;
    if (status == LMCS_OK && (next == 0 || after != 0))
        return lmcs_fail(
            error, LMCS_DAMAGED, 0,
            "%s: damaged metadata: the next snapshot of shelf \"%.200s\" would be number %llu, and %llu is "
            "there: fork the shelf, and go on there",
            txn->pool->path, shelf->name, (unsigned long long)next, (unsigned long long)after);
    return status;
}

enum lmcs_status lmcs_shelf_find_latest(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    uint64_t number = UINT64_MAX;
    for (;;) {
        enum lmcs_status status = lmcs_record_before(txn, shelf, number, &number, error);
        if (status != LMCS_OK)
            return status;
        struct lmcs_record record = {.df = {.state = LMCS_SNAPSHOT_COMMITTED}};
        bool found;
        if (number != 0)
            status = lmcs_record_get(txn, shelf, number, &record, &found, error);
        if (status != LMCS_OK)
            return status;
        if (lmcs_record_is_committed(&record))
            break;
    }
    shelf->df.latest = number;
    return LMCS_OK;
}

/* ---- Tags ---- */

static bool all_digits(const char *text)
{
    return *text != '\0' && strspn(text, "0123456789") == strlen(text);
}

enum lmcs_status lmcs_tag_check(const char *tag, struct lmcs_error *error)
{
    const char *shown = tag == NULL ? "" : tag;
    if (!lmcs_name_is_sound(tag) || strpbrk(tag, "@~:{}") != NULL || strstr(tag, "..") != NULL)
        return lmcs_fail(
            error, LMCS_INVALID, 0,
            "tag \"%.64s\": tags are 1 to %d bytes of UTF-8 and hold no control characters and none of @ ~ : { } ..",
            shown, LMCS_MAX_NAME);
    if (all_digits(tag) || strcmp(tag, "latest") == 0)
        return lmcs_fail(error, LMCS_INVALID, 0, "tag \"%.64s\": a tag can't be a number or \"latest\"", shown);
    return LMCS_OK;
}

struct tag_record {
    struct lmcs_tag_df df;
    char tag[LMCS_MAX_NAME];
};

/* Finds a tag, or the first free collision index; record->df.number is then 0. */
static enum lmcs_status probe_tag(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *tag, uint64_t *index,
                                  struct tag_record *record, struct lmcs_error *error)
{
    size_t length = strlen(tag), bytes;
    bool found = true;
    for (*index = 0; *index < 1024; ++*index) {
        enum lmcs_status status = lmcs_tree_get(txn, LMCS_TREE_TAGS, lmcs_shelf_tree(shelf, LMCS_TREE_TAGS),
                                                (struct lmcs_key_df){hash_of(tag), *index}, record, sizeof record->df,
                                                sizeof *record, &bytes, &found, error);
        if (status != LMCS_OK)
            return status;
        if (found && bytes == sizeof record->df + length && memcmp(record->tag, tag, length) == 0)
            return LMCS_OK;
        if (!found)
            break;
    }
    record->df = (struct lmcs_tag_df){0, 0, 0};
    return LMCS_OK;
}

enum lmcs_status lmcs_tag_find(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *tag, uint64_t *number,
                               struct lmcs_error *error)
{
    struct tag_record record;
    uint64_t index;
    enum lmcs_status status = probe_tag(txn, shelf, tag, &index, &record, error);
    *number = status == LMCS_OK ? record.df.number : 0;
    return status;
}

enum lmcs_status lmcs_tag_delete(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *tag,
                                 struct lmcs_error *error)
{
    struct tag_record record;
    uint64_t index;
    enum lmcs_status status = probe_tag(txn, shelf, tag, &index, &record, error);
    if (status != LMCS_OK || record.df.number == 0)
        return status;
    status = lmcs_tree_delete(txn, LMCS_TREE_TAGS, lmcs_shelf_tree(shelf, LMCS_TREE_TAGS),
                              (struct lmcs_key_df){hash_of(tag), index}, NULL, error);
    if (status == LMCS_OK)
        status = lmcs_tree_delete(txn, LMCS_TREE_TAGGED, lmcs_shelf_tree(shelf, LMCS_TREE_TAGGED),
                                  (struct lmcs_key_df){record.df.number, hash_of(tag)}, NULL, error);
    return status;
}

enum lmcs_status lmcs_tag_put(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *tag, uint64_t number,
                              struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_tag_check(tag, error);
    if (status == LMCS_OK)
        status = lmcs_tag_delete(txn, shelf, tag, error);
    struct tag_record record;
    uint64_t index = 0;
    if (status == LMCS_OK)
        status = probe_tag(txn, shelf, tag, &index, &record, error);
    if (status != LMCS_OK)
        return status;
    size_t length = strlen(tag);
    record.df = (struct lmcs_tag_df){number, (uint32_t)length, 0};
    memcpy(record.tag, tag, length);
    status = lmcs_tree_put(txn, LMCS_TREE_TAGS, lmcs_shelf_tree(shelf, LMCS_TREE_TAGS),
                           (struct lmcs_key_df){hash_of(tag), index}, &record, sizeof record.df + length, error);
    if (status == LMCS_OK)
        status = lmcs_tree_put(txn, LMCS_TREE_TAGGED, lmcs_shelf_tree(shelf, LMCS_TREE_TAGGED),
                               (struct lmcs_key_df){number, hash_of(tag)}, &index, sizeof index, error);
    return status;
}

enum lmcs_status lmcs_tags_of(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number,
                              bool (*visit)(void *context, const char *tag), void *context, struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_open(&cursor, txn, LMCS_TREE_TAGGED, lmcs_shelf_tree(shelf, LMCS_TREE_TAGGED),
                                               (struct lmcs_key_df){number, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == number) {
        struct tag_record record;
        size_t bytes;
        bool found;
        uint64_t index = 0;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        if (bytes == sizeof index)
            memcpy(&index, value, sizeof index);
        status = lmcs_tree_get(txn, LMCS_TREE_TAGS, lmcs_shelf_tree(shelf, LMCS_TREE_TAGS),
                               (struct lmcs_key_df){lmcs_cursor_key(cursor).low, index}, &record, sizeof record.df,
                               sizeof record, &bytes, &found, error);
        if (status != LMCS_OK)
            break;
        char text[LMCS_MAX_NAME + 1];
        size_t length = found ? bytes - sizeof record.df : 0;
        memcpy(text, record.tag, length);
        text[length] = '\0';
        if (length > 0 && !visit(context, text))
            break;
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_record_is_tagged(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number, bool *tagged,
                                       struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_open(&cursor, txn, LMCS_TREE_TAGGED, lmcs_shelf_tree(shelf, LMCS_TREE_TAGGED),
                                               (struct lmcs_key_df){number, 0}, error);
    *tagged = status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == number;
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_tags_each(struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                bool (*visit)(void *context, const char *tag), void *context, struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_open(&cursor, txn, LMCS_TREE_TAGS, lmcs_shelf_tree(shelf, LMCS_TREE_TAGS),
                                               (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        char tag[LMCS_MAX_NAME + 1];
        size_t bytes;
        const char *value = lmcs_cursor_value(cursor, &bytes);
        size_t length = bytes > sizeof(struct lmcs_tag_df) ? bytes - sizeof(struct lmcs_tag_df) : 0;
        length = length < LMCS_MAX_NAME ? length : LMCS_MAX_NAME;
        memcpy(tag, value + sizeof(struct lmcs_tag_df), length);
        tag[length] = '\0';
        if (length > 0 && !visit(context, tag))
            break;
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

/* ---- Removal ---- */

struct removing {
    struct lmcs_txn *txn;
    struct lmcs_release release;
};

static enum lmcs_status end_run(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                uint64_t successor, struct lmcs_error *error)
{
    struct removing *removing = context;
    return lmcs_content_unrun(removing->txn, entry->content, identity, successor, &removing->release, error);
}

enum lmcs_status lmcs_record_neighbour(struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                       const struct lmcs_snapshot_df *of, bool newer, struct lmcs_record *record,
                                       bool *found, struct lmcs_error *error)
{
    uint64_t number = of->number;
    *found = false;
    if (of->lineage == 0) /* remote */
        return LMCS_OK;
    for (;;) {
        enum lmcs_status status = newer ? lmcs_record_after(txn, shelf, number, &number, error)
                                        : lmcs_record_before(txn, shelf, number, &number, error);
        if (status != LMCS_OK || number == 0)
            return status;
        bool there;
        status = lmcs_record_get(txn, shelf, number, record, &there, error);
        *found = status == LMCS_OK && there && record->df.lineage == of->lineage;
        if (status != LMCS_OK || *found)
            return status;
    }
}

/* Ends the runs of a snapshot that no neighbour has, and frees its pages. */
static enum lmcs_status drop_entries(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number,
                                     struct lmcs_record *record, struct lmcs_removal *removal, struct lmcs_error *error)
{
    struct lmcs_record older, newer;
    struct removing removing = {.txn = txn};
    bool found, has_older = false, has_newer = false;
    enum lmcs_status status = lmcs_record_get(txn, shelf, number, record, &found, error);
    if (status == LMCS_OK && !found)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no snapshot %s@%llu", txn->pool->path, shelf->name,
                         (unsigned long long)number);
    if (status == LMCS_OK)
        status = lmcs_record_neighbour(txn, shelf, &record->df, false, &older, &has_older, error);
    if (status == LMCS_OK)
        status = lmcs_record_neighbour(txn, shelf, &record->df, true, &newer, &has_newer, error);
    if (status == LMCS_OK)
        status = lmcs_manifest_own(txn, &record->df, has_older ? &older.df : NULL, has_newer ? &newer.df : NULL, true,
                                   end_run, &removing, error);
    if (status == LMCS_OK) {
        removal->freed_bytes += removing.release.freed_bytes;
        removal->later_bytes += removing.release.later_bytes;
        removal->kept_bytes += removing.release.kept_bytes;
    }
    return status;
}

enum lmcs_status lmcs_shelf_let_go(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number, const char *url,
                                   struct lmcs_removal *removal, struct lmcs_error *error)
{
    struct lmcs_record record;
    enum lmcs_status status = drop_entries(txn, shelf, number, &record, removal, error);
    if (status != LMCS_OK)
        return status;
    shelf->df.remote += record.df.state != LMCS_SNAPSHOT_REMOTE;
    record.df.state = LMCS_SNAPSHOT_REMOTE;
    record.df.manifest = (struct lmcs_ref_df){0, 0};
    record.df.entry_count = record.df.lineage = 0;
    record.df.epoch = txn->root.epoch; /* handles and dumps find that it changed */
    memcpy(record.url, url, strlen(url) + 1);
    return lmcs_record_put(txn, shelf, &record, error);
}

enum lmcs_status lmcs_shelf_remove(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number,
                                   struct lmcs_removal *removal, struct lmcs_error *error)
{
    struct lmcs_record record;
    enum lmcs_status status = drop_entries(txn, shelf, number, &record, removal, error);
    if (status == LMCS_OK)
        status = lmcs_record_delete(txn, shelf, &record, &removal->removed_tags, error);
    if (status != LMCS_OK)
        return status;
    if (lmcs_record_is_committed(&record)) {
        shelf->df.snapshot_count--;
        shelf->df.remote -= record.df.state == LMCS_SNAPSHOT_REMOTE;
        if ((shelf->df.flags & LMCS_SHELF_STAGING) == 0)
            txn->root.snapshot_count--;
    }
    return shelf->df.latest == number ? lmcs_shelf_find_latest(txn, shelf, error) : LMCS_OK;
}
