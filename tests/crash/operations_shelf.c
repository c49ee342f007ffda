/* SPDX-License-Identifier: BSD-3-Clause */
/* operations_shelf.c - tags, removals, policies, limits, forks, renames and deletions of shelves. */
#include "operations.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "pages/tree.h"
#include "recorder.h"
#include "records/annotation.h"
#include "sgd.h"

/* ---- Tags, removal, policies ---- */

/* As another process adds it: through the ring. */
static enum lmcs_status add_tag(struct driver *d, const char *shelf, const char *tag, uint64_t number)
{
    struct lmcs_annotation annotation;
    bool needs_writer;
    OK(lmcs_annotation_fill(LMCS_ANNOTATION_TAG, number, tag, 0, &annotation, &err));
    enum lmcs_status status = lmcs_annotation_add(d->pool, shelf, &annotation, &needs_writer, &d->error);
    return needs_writer ? lmcs_tag_set(d->pool, shelf, tag, number, &d->error) : status;
}

void do_tag(struct driver *d)
{
    const char *shelf = some_shelf_behind(d);
    const struct expected_snapshot *snapshot = shelf != NULL ? some_snapshot(d, shelf) : NULL;
    char words[WORDS], tag[16];
    if (snapshot == NULL)
        return;
    some_tag(d, tag);
    snprintf(words, WORDS, "tag %s@%llu %s", shelf, (unsigned long long)snapshot->number, tag);
    uint64_t operation = driver_begin(d, words);
    enum lmcs_status status = driver_chance(d, 50) ? add_tag(d, shelf, tag, snapshot->number)
                                                   : lmcs_tag_set(d->pool, shelf, tag, snapshot->number, &d->error);
    if (!driver_worked(d, status))
        return;
    driver_acknowledged(operation);
    expected_put_tag(driver_next_version(d, shelf, operation), tag, snapshot->number);
}

void do_untag(struct driver *d)
{
    const char *shelf = some_shelf(d);
    const struct shelf_version *version = shelf != NULL ? expected_newest(d->expected, shelf) : NULL;
    char words[WORDS], tag[16];
    if (version == NULL || version->tag_count == 0)
        return;
    memcpy(tag, version->tags[driver_below(d, version->tag_count)].tag, sizeof tag);
    snprintf(words, WORDS, "take tag %s off %s", tag, shelf);
    uint64_t operation = driver_begin(d, words);
    if (!driver_worked(d, lmcs_tag_remove(d->pool, shelf, tag, &d->error)))
        return;
    driver_acknowledged(operation);
    expected_drop_tag(driver_next_version(d, shelf, operation), tag);
}

void remove_snapshot(struct driver *d, const char *shelf, const struct expected_snapshot *snapshot)
{
    char words[WORDS];
    snprintf(words, WORDS, "remove %s@%llu", shelf, (unsigned long long)snapshot->number);
    uint64_t operation = driver_begin(d, words);
    if (!driver_worked(d, lmcs_snapshot_remove(d->pool, shelf, snapshot->number, false, NULL, &d->error)))
        return;
    driver_acknowledged(operation);
    struct shelf_version *version = driver_next_version(d, shelf, operation);
    size_t kept = 0;
    for (size_t i = 0; i < version->snapshot_count; i++)
        if (version->snapshots[i] != snapshot)
            version->snapshots[kept++] = version->snapshots[i];
    version->snapshot_count = kept;
    for (size_t i = version->tag_count; i-- > 0;)
        if (version->tags[i].number == snapshot->number)
            expected_drop_tag(version, version->tags[i].tag);
}

void do_remove(struct driver *d)
{
    const char *shelf = some_shelf_behind(d);
    for (uint64_t i = 1 + driver_below(d, 3); shelf != NULL && i > 0; i--) {
        const struct expected_snapshot *snapshot = some_snapshot(d, shelf);
        if (snapshot != NULL)
            remove_snapshot(d, shelf, snapshot);
    }
}

/* Other operations need the contents. */
void remove_remote(struct driver *d, const char *shelf)
{
    const struct shelf_version *version = expected_newest(d->expected, shelf);
    for (size_t i = 0; i < version->snapshot_count && version->remote != 0; i++)
        if (version->snapshots[i]->number == version->remote) {
            remove_snapshot(d, shelf, version->snapshots[i]);
            expected_newest(d->expected, shelf)->remote = 0;
            return;
        }
}

/* Whether it left; else it is the newest, has a tag, ... */
static bool let_go(struct driver *d, const char *shelf, uint64_t number)
{
    struct lmcs_snapshot *now;
    struct lmcs_pool_info info;
    char words[WORDS], which[24];
    OK(lmcs_pool_info(d->pool, &info, &err));
    snprintf(words, WORDS, "let %s@%llu go", shelf, (unsigned long long)number);
    uint64_t operation = driver_begin(d, words);
    if (!driver_worked(d, lmcs_snapshots_safe(d->pool, shelf, number, number, info.epoch, "s3://bucket", &d->error)))
        return false;
    driver_acknowledged(operation);
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(d->pool, shelf, which, &now, &err));
    const bool is_remote = lmcs_snapshot_info(now)->remote != NULL;
    lmcs_snapshot_close(now);
    if (is_remote)
        driver_next_version(d, shelf, operation)->remote = number;
    return is_remote;
}

void do_let_go(struct driver *d)
{
    const char *shelf = some_shelf(d);
    const struct shelf_version *version = shelf != NULL ? expected_newest(d->expected, shelf) : NULL;
    bool is_remote = false;
    if (version == NULL || version->snapshot_count < 2 || d->run->tight || d->run->threaded)
        return; /* a thread would obey later */
    set_policy(d, shelf, "local=last:1 keep_raw=1");
    for (size_t i = 0; !is_remote && i + 1 < expected_newest(d->expected, shelf)->snapshot_count; i++)
        is_remote = let_go(d, shelf, expected_newest(d->expected, shelf)->snapshots[i]->number);
    if (is_remote && driver_chance(d, 50))
        compact_a_little(d);
    if (is_remote)
        remove_remote(d, shelf);
}

void set_policy(struct driver *d, const char *shelf, const char *policy)
{
    char words[WORDS];
    snprintf(words, sizeof words, "set the policy of %s to %s", shelf, policy);
    uint64_t operation = driver_begin(d, words);
    if (!driver_worked(d, lmcs_shelf_set_policy(d->pool, shelf, policy, &d->error)))
        return;
    driver_acknowledged(operation);
    driver_next_version(d, shelf, operation);
}

void do_policy(struct driver *d)
{
    const char *shelf = some_shelf(d);
    char policy[96];
    if (shelf == NULL)
        return;
    snprintf(policy, sizeof policy, "keep_raw=%d chain=%d links=%d %s restore=%s parity=%s",
             1 + (int)driver_below(d, 3), (int)driver_below(d, 5), (int)driver_below(d, 7),
             driver_below(d, 2) == 0 ? WRITE_LINKS : WRITE_RAW, driver_below(d, 2) == 0 ? "1s" : "none",
             driver_below(d, 2) == 0 ? "3+1" : "none");
    set_policy(d, shelf, policy);
}

void do_limit(struct driver *d)
{
    struct lmcs_pool_info info;
    OK(lmcs_pool_info(d->pool, &info, &err));
    uint64_t limit = info.used_bytes + info.metadata_bytes + ((uint64_t)4 << 20) + 4096 * driver_below(d, 8000);
    uint64_t operation = driver_begin(d, "set the pool's limit");
    enum lmcs_status status = lmcs_pool_set_limit(d->pool, limit, &d->error);
    if (status == LMCS_INVALID || !driver_worked(d, status))
        return;
    driver_acknowledged(operation);
    expected_next(d->expected, "", operation)->limit = limit;
}

/* ---- Whole shelves ---- */

/* Not in use or preparation; NULL: none. */
static const char *missing_shelf(struct driver *d)
{
    size_t first = driver_below(d, SHELVES);
    for (size_t i = 0; i < SHELVES; i++) {
        const char *shelf = shelf_names[(first + i) % SHELVES];
        if (!expected_newest(d->expected, shelf)->exists && !is_busy(d, shelf))
            return shelf;
    }
    return NULL;
}

const char *fork_shelf(struct driver *d, const char *shelf, const struct expected_snapshot *from)
{
    const char *name = missing_shelf(d);
    struct lmcs_snapshot *snapshot;
    struct expected_tag tags[MOST_TAGS];
    size_t tag_count = 0;
    char words[WORDS], which[32];
    if (name == NULL)
        return NULL;
    snprintf(which, sizeof which, "%llu", (unsigned long long)from->number);
    snprintf(words, WORDS, "fork %s@%s as %s", shelf, which, name);
    const struct shelf_version *there = expected_newest(d->expected, shelf);
    for (size_t i = 0; i < there->tag_count; i++)
        if (there->tags[i].number == from->number)
            tags[tag_count++] = there->tags[i];
    OK(lmcs_snapshot_find(d->pool, shelf, which, &snapshot, &err));
    uint64_t operation = driver_begin(d, words);
    bool forked = driver_worked(d, lmcs_shelf_fork(snapshot, name, &d->error));
    lmcs_snapshot_close(snapshot);
    if (!forked)
        return NULL;
    driver_acknowledged(operation);
    struct expected_snapshot *first = malloc(sizeof *first);
    EXPECT(first != NULL);
    *first = *from;
    first->number = 1;
    first->parent = 0;
    memset(first->group, 0, sizeof first->group);
    struct shelf_version *version = driver_next_version(d, name, operation);
    version->snapshots[version->snapshot_count++] = first;
    for (size_t i = 0; i < tag_count; i++)
        expected_put_tag(version, tags[i].tag, 1);
    return name;
}

void do_fork(struct driver *d)
{
    const char *shelf = some_shelf(d);
    const struct expected_snapshot *from = shelf != NULL ? some_snapshot(d, shelf) : NULL;
    if (from != NULL)
        (void)fork_shelf(d, shelf, from);
}

/* Forks record their origin's new name, or the name at the fork. */
static void rename_origins(struct driver *d, const char *from, uint64_t operation)
{
    for (size_t i = 0; i < SHELVES; i++) {
        const struct shelf_version *version = expected_newest(d->expected, shelf_names[i]);
        struct lmcs_shelf_info info;
        if (!version->exists || strcmp(version->origin_shelf, from) != 0)
            continue;
        OK(lmcs_shelf_info(d->pool, shelf_names[i], &info, &err));
        if (strcmp(info.origin_shelf, from) != 0)
            driver_next_version(d, shelf_names[i], operation);
    }
}

static void leave_none(struct driver *d, const char *shelf, uint64_t operation)
{
    struct shelf_version *version = expected_next(d->expected, shelf, operation);
    *version = (struct shelf_version){.operation = operation};
}

/* A restore would bring the snapshots into the renamed shelf, which has the identity. */
static void forget_archive_of(struct driver *d, const char *shelf)
{
    for (size_t i = 0; d->archive.fd >= 0 && i < d->archive.shelf_count; i++)
        if (strcmp(d->archive.names[i], shelf) == 0)
            forget_archive(d);
}

void do_rename(struct driver *d)
{
    const char *shelf = some_shelf(d), *name = missing_shelf(d);
    char words[WORDS];
    if (shelf == NULL || name == NULL || !expected_newest(d->expected, shelf)->exists)
        return;
    snprintf(words, WORDS, "rename %s to %s", shelf, name);
    uint64_t operation = driver_begin(d, words);
    if (!driver_worked(d, lmcs_shelf_rename(d->pool, shelf, name, &d->error)))
        return;
    driver_acknowledged(operation);
    struct shelf_version was = *expected_newest(d->expected, shelf),
                         *version = expected_next(d->expected, name, operation);
    *version = was;
    version->operation = operation;
    leave_none(d, shelf, operation);
    forget_archive_of(d, shelf);
    rename_origins(d, shelf, operation);
}

void do_drop(struct driver *d)
{
    const char *shelf = some_shelf(d);
    char words[WORDS];
    if (shelf == NULL || !expected_newest(d->expected, shelf)->exists)
        return;
    snprintf(words, WORDS, "remove shelf %s", shelf);
    uint64_t operation = driver_begin(d, words);
    if (!driver_worked(d, lmcs_shelf_drop(d->pool, shelf, false, NULL, &d->error)))
        return;
    driver_acknowledged(operation);
    leave_none(d, shelf, operation);
}
