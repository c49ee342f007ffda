/* SPDX-License-Identifier: BSD-3-Clause */
/* expected.c - see expected.h. */
#include "expected.h"

#include <fcntl.h>
#include <unistd.h>

#include "live/record.h"
#include "pages/tree.h"
#include "records/shelf.h"
#include "shelves/shelves.h"

/* ---- Expectations ---- */

struct expected *expected_new(void)
{
    struct expected *expected = calloc(1, sizeof *expected);
    EXPECT(expected != NULL);
    expected_operation(expected, "the beginning");
    return expected;
}

void expected_free(struct expected *expected)
{
    for (size_t i = 0; i < expected->shelf_count; i++)
        free(expected->shelves[i].versions);
    free(expected->operations);
    free(expected);
}

uint64_t expected_operation(struct expected *expected, const char *format, ...)
{
    if (expected->operation_count == expected->operation_capacity) {
        expected->operation_capacity = expected->operation_capacity == 0 ? 32 : expected->operation_capacity * 2;
        expected->operations =
            realloc(expected->operations, expected->operation_capacity * sizeof *expected->operations);
        EXPECT(expected->operations != NULL);
    }
    struct expected_operation *operation = &expected->operations[expected->operation_count];
    *operation = (struct expected_operation){.begun = false};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(operation->words, sizeof operation->words, format, arguments);
    va_end(arguments);
    return expected->operation_count++;
}

static struct shelf_version *push(struct expected_shelf *shelf, const struct shelf_version *version)
{
    if (shelf->count == shelf->capacity) {
        shelf->capacity = shelf->capacity == 0 ? 8 : shelf->capacity * 2;
        shelf->versions = realloc(shelf->versions, shelf->capacity * sizeof *shelf->versions);
        EXPECT(shelf->versions != NULL);
    }
    shelf->versions[shelf->count] = *version;
    return &shelf->versions[shelf->count++];
}

static struct expected_shelf *find_shelf(struct expected *expected, const char *name)
{
    for (size_t i = 0; i < expected->shelf_count; i++)
        if (strcmp(expected->shelves[i].name, name) == 0)
            return &expected->shelves[i];
    EXPECT(expected->shelf_count < MOST_SHELVES);
    struct expected_shelf *shelf = &expected->shelves[expected->shelf_count++];
    snprintf(shelf->name, sizeof shelf->name, "%s", name);
    push(shelf, &(struct shelf_version){.exists = false});
    return shelf;
}

struct shelf_version *expected_newest(struct expected *expected, const char *name)
{
    struct expected_shelf *shelf = find_shelf(expected, name);
    return &shelf->versions[shelf->count - 1];
}

struct shelf_version *expected_next(struct expected *expected, const char *name, uint64_t operation)
{
    struct expected_shelf *shelf = find_shelf(expected, name);
    struct shelf_version next = shelf->versions[shelf->count - 1];
    next.operation = operation;
    next.exists = true;
    return push(shelf, &next);
}

static bool is_possible(const struct expected *expected, const struct expected_shelf *shelf, size_t version)
{
    if (version > 0 && !expected->operations[shelf->versions[version].operation].begun)
        return false;
    for (size_t later = version + 1; later < shelf->count; later++)
        if (expected->operations[shelf->versions[later].operation].acknowledged)
            return false;
    return true;
}

void expected_least(const struct expected *expected, size_t least[MOST_SHELVES])
{
    for (size_t i = 0; i < expected->shelf_count; i++)
        for (least[i] = 0; !is_possible(expected, &expected->shelves[i], least[i]);)
            least[i]++;
}

struct expected *expected_from(const struct expected *expected, const size_t least[MOST_SHELVES],
                               const size_t found[MOST_SHELVES])
{
    struct expected *from = expected_new();
    for (size_t i = 0; i < expected->shelf_count; i++) {
        const struct expected_shelf *shelf = &expected->shelves[i];
        struct shelf_version *version = expected_newest(from, shelf->name);
        for (size_t k = least[i]; k <= found[i]; k++) {
            if (k > least[i])
                version = expected_next(from, shelf->name, 1);
            *version = shelf->versions[k];
            version->operation = k > least[i] ? 1 : 0;
        }
    }
    return from;
}

void expected_digest(struct expected_tensor *tensor)
{
    struct lmc_hash hashes[16];
    uint64_t blocks = lmc_block_count(tensor->bytes);
    EXPECT(blocks <= 16);
    hashes[0] = lmc_hash128(tensor->data, 0);
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t left = tensor->bytes - i * LMC_BLOCK_BYTES;
        hashes[i] = lmc_hash128(tensor->data + i * LMC_BLOCK_BYTES, left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES);
    }
    tensor->digest = lmc_digest(tensor->dtype, tensor->ndim, tensor->shape, hashes, blocks);
}

void expected_drop_tag(struct shelf_version *version, const char *tag)
{
    for (size_t i = 0; i < version->tag_count; i++)
        if (strcmp(version->tags[i].tag, tag) == 0) {
            version->tag_count--;
            memmove(&version->tags[i], &version->tags[i + 1], (version->tag_count - i) * sizeof version->tags[0]);
            return;
        }
}

void expected_add(struct shelf_version *version, const struct expected_snapshot *snapshot)
{
    size_t at = version->snapshot_count++;
    for (; at > 0 && version->snapshots[at - 1]->number > snapshot->number; at--)
        version->snapshots[at] = version->snapshots[at - 1];
    version->snapshots[at] = snapshot;
}

void expected_put_tag(struct shelf_version *version, const char *tag, uint64_t number)
{
    expected_drop_tag(version, tag);
    EXPECT(version->tag_count < MOST_TAGS);
    size_t i = version->tag_count++;
    for (; i > 0 && strcmp(version->tags[i - 1].tag, tag) > 0; i--)
        version->tags[i] = version->tags[i - 1];
    version->tags[i].number = number;
    snprintf(version->tags[i].tag, sizeof version->tags[i].tag, "%s", tag);
}

/* ---- Findings ---- */

struct looking {
    struct lmcs_pool *pool;
    const char *shelf;
    const struct shelf_version *version;
    const struct expected_snapshot *snapshot;
    char *why;
    size_t why_bytes;
    size_t seen;
    uint64_t *contents; /* compared already, at most 64 */
    size_t content_count;
    uint64_t fresh[MOST_TENSORS];
};

static bool wrong(struct looking *looking, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(struct looking *looking, const char *format, ...)
{
    int n = snprintf(looking->why, looking->why_bytes, "%s@%llu: ", looking->shelf,
                     (unsigned long long)(looking->snapshot != NULL ? looking->snapshot->number : 0));
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(looking->why + n, looking->why_bytes - (size_t)n, format, arguments);
    va_end(arguments);
    return false;
}

static bool compared(const struct looking *looking, uint64_t content)
{
    for (size_t i = 0; i < looking->content_count; i++)
        if (looking->contents[i] == content)
            return true;
    return false;
}

static bool look_at_entry(void *context, const struct lmcs_entry *entry)
{
    struct looking *looking = context;
    const struct expected_snapshot *snapshot = looking->snapshot;
    const struct lmcs_tensor *tensor = &entry->tensor;
    size_t i = 0;
    while (i < snapshot->count &&
           (snapshot->tensors[i].kind != tensor->kind || strcmp(snapshot->tensors[i].name, tensor->name) != 0))
        i++;
    if (i == snapshot->count)
        return wrong(looking, "there is a tensor \"%s\"", tensor->name);
    const struct expected_tensor *expected = &snapshot->tensors[i];
    if (expected->dtype != tensor->dtype || expected->ndim != tensor->ndim || expected->bytes != entry->raw_bytes ||
        memcmp(expected->shape, tensor->shape, expected->ndim * sizeof expected->shape[0]) != 0)
        return wrong(looking, "tensor \"%s\" is of another dtype or shape", tensor->name);
    if (memcmp(&expected->digest, &entry->digest, sizeof entry->digest) != 0)
        return wrong(looking, "tensor \"%s\" has another digest", tensor->name);
    looking->fresh[i] = compared(looking, entry->content) ? 0 : entry->content;
    looking->seen++;
    return true;
}

static bool look_at_bytes(struct looking *looking, struct lmcs_snapshot *snapshot)
{
    struct lmcs_error error;
    for (size_t i = 0; i < looking->snapshot->count; i++) {
        const struct expected_tensor *expected = &looking->snapshot->tensors[i];
        if (looking->fresh[i] == 0)
            continue;
        unsigned char *bytes = malloc(expected->bytes + 1);
        EXPECT(bytes != NULL);
        enum lmcs_status status =
            lmcs_snapshot_read(snapshot, expected->kind, expected->name, bytes, expected->bytes, &error);
        bool same = status == LMCS_OK && memcmp(bytes, expected->data, expected->bytes) == 0;
        free(bytes);
        if (status != LMCS_OK)
            return wrong(looking, "tensor \"%s\" can't be read: %s", expected->name, error.message);
        if (!same)
            return wrong(looking, "tensor \"%s\" has other bytes", expected->name);
        if (looking->content_count < 64)
            looking->contents[looking->content_count++] = looking->fresh[i];
    }
    return true;
}

static bool look_at_open_snapshot(struct looking *looking, struct lmcs_snapshot *snapshot)
{
    const struct expected_snapshot *expected = looking->snapshot;
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    struct lmcs_error error;
    size_t metrics = expected->loss >= 0 ? 1 : 0;
    if (info->step != expected->step || info->time_ns != expected->time_ns || info->parent != expected->parent)
        return wrong(looking, "another step, time or parent: %lld, %llu, %llu", (long long)info->step,
                     (unsigned long long)info->time_ns, (unsigned long long)info->parent);
    if (strcmp(info->meta_json, expected->meta) != 0)
        return wrong(looking, "other metadata: %.100s, not %.100s", info->meta_json, expected->meta);
    if (info->metric_count != metrics || (metrics > 0 && info->metrics[0].value != expected->loss))
        return wrong(looking, "other metrics");
    if (info->remote != NULL || looking->version->remote == expected->number)
        return (info->remote != NULL && looking->version->remote == expected->number) ||
               wrong(looking, "it (not) left");
    looking->seen = 0;
    looking->why[0] = '\0';
    enum lmcs_status status = lmcs_snapshot_entries(snapshot, look_at_entry, looking, &error);
    if (status != LMCS_OK)
        return wrong(looking, "its entries can't be read: %s", error.message);
    if (looking->why[0] != '\0')
        return false;
    if (looking->seen != expected->count)
        return wrong(looking, "%zu tensors, not %zu", looking->seen, expected->count);
    return look_at_bytes(looking, snapshot);
}

static bool look_at_snapshot(struct looking *looking, const struct expected_snapshot *expected)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_error error;
    char which[32];
    looking->snapshot = expected;
    snprintf(which, sizeof which, "%llu", (unsigned long long)expected->number);
    if (lmcs_snapshot_find(looking->pool, looking->shelf, which, &snapshot, &error) != LMCS_OK)
        return wrong(looking, "can't be opened: %s", error.message);
    bool right = look_at_open_snapshot(looking, snapshot);
    lmcs_snapshot_close(snapshot);
    return right;
}

static bool look_at_tags(struct looking *looking)
{
    const struct shelf_version *version = looking->version;
    struct lmcs_error error;
    looking->snapshot = NULL;
    for (size_t i = 0; i < version->tag_count; i++) {
        struct lmcs_snapshot *snapshot;
        if (lmcs_snapshot_find(looking->pool, looking->shelf, version->tags[i].tag, &snapshot, &error) != LMCS_OK)
            return wrong(looking, "tag %s: %s", version->tags[i].tag, error.message);
        uint64_t number = lmcs_snapshot_info(snapshot)->number;
        lmcs_snapshot_close(snapshot);
        if (number != version->tags[i].number)
            return wrong(looking, "tag %s is at %llu", version->tags[i].tag, (unsigned long long)number);
    }
    return true;
}

/* No call counts a shelf's tags. */
static bool count_tag(void *context, const char *tag)
{
    (void)tag;
    ++*(size_t *)context;
    return true;
}

static bool look_at_tag_count(struct looking *looking)
{
    size_t count = 0;
    for (size_t i = 0; i < looking->version->snapshot_count; i++) {
        struct lmcs_snapshot *snapshot = NULL;
        char which[32];
        struct lmcs_error error;
        snprintf(which, sizeof which, "%llu", (unsigned long long)looking->version->snapshots[i]->number);
        if (lmcs_snapshot_find(looking->pool, looking->shelf, which, &snapshot, &error) != LMCS_OK)
            return wrong(looking, "%s", error.message);
        enum lmcs_status status = lmcs_snapshot_tags(snapshot, count_tag, &count, &error);
        lmcs_snapshot_close(snapshot);
        if (status != LMCS_OK)
            return wrong(looking, "%s", error.message);
    }
    return count == looking->version->tag_count ||
           wrong(looking, "%zu tags, not %zu", count, looking->version->tag_count);
}

static bool look_at_prepared(void *context, const struct lmcs_prepared *prepared)
{
    struct looking *looking = context;
    const struct shelf_version *version = looking->version;
    if (strcmp(prepared->shelf, looking->shelf) != 0)
        return true;
    looking->seen++;
    for (size_t i = 0; i < version->prepared_count; i++)
        if (version->prepared[i]->number == prepared->number &&
            memcmp(version->prepared[i]->group, prepared->group, sizeof prepared->group) == 0)
            return true;
    return wrong(looking, "snapshot %llu is prepared", (unsigned long long)prepared->number);
}

/* They have all that they should have, and are read by their groups. */
static bool look_at_all_prepared(struct looking *looking)
{
    const struct shelf_version *version = looking->version;
    struct lmcs_error error;
    looking->seen = 0;
    looking->why[0] = '\0';
    if (lmcs_group_list(looking->pool, look_at_prepared, looking, &error) != LMCS_OK)
        return wrong(looking, "%s", error.message);
    if (looking->why[0] != '\0')
        return false;
    if (looking->seen != version->prepared_count)
        return wrong(looking, "%zu snapshots are prepared, not %zu", looking->seen, version->prepared_count);
    for (size_t i = 0; i < version->prepared_count; i++) {
        struct lmcs_snapshot *snapshot;
        looking->snapshot = version->prepared[i];
        if (lmcs_group_open(looking->pool, looking->shelf, version->prepared[i]->group, &snapshot, &error) != LMCS_OK)
            return wrong(looking, "can't be opened by its group: %s", error.message);
        bool right = look_at_open_snapshot(looking, snapshot);
        lmcs_snapshot_close(snapshot);
        if (!right)
            return false;
    }
    looking->snapshot = NULL;
    return true;
}

static bool look_at_shelf(struct looking *looking)
{
    const struct shelf_version *version = looking->version;
    struct lmcs_shelf_info info;
    struct lmcs_error error;
    uint64_t numbers[MOST_SNAPSHOTS + 1];
    size_t count = 0;
    looking->snapshot = NULL;
    enum lmcs_status status = lmcs_shelf_info(looking->pool, looking->shelf, &info, &error);
    if (!version->exists)
        return status == LMCS_NOT_FOUND || wrong(looking, "it is there");
    if (status != LMCS_OK)
        return wrong(looking, "%s", error.message);
    if (info.next_number != version->next_number || info.keep_raw != version->keep_raw ||
        info.snapshot_count != version->snapshot_count)
        return wrong(looking, "%llu snapshots, next %llu, %u raw; not %zu, %llu, %u",
                     (unsigned long long)info.snapshot_count, (unsigned long long)info.next_number, info.keep_raw,
                     version->snapshot_count, (unsigned long long)version->next_number, version->keep_raw);
    if (info.origin_number != version->origin_number ||
        (info.origin_number != 0 && strcmp(info.origin_shelf, version->origin_shelf) != 0))
        return wrong(looking, "it was forked from %s@%llu, not %s@%llu", info.origin_shelf,
                     (unsigned long long)info.origin_number, version->origin_shelf,
                     (unsigned long long)version->origin_number);
    if (lmcs_snapshot_numbers(looking->pool, looking->shelf, 0, numbers, MOST_SNAPSHOTS + 1, &count, &error) != LMCS_OK)
        return wrong(looking, "%s", error.message);
    if (count != version->snapshot_count)
        return wrong(looking, "%zu snapshots, not %zu", count, version->snapshot_count);
    for (size_t i = 0; i < count; i++)
        if (numbers[i] != version->snapshots[i]->number)
            return wrong(looking, "snapshot %llu is there", (unsigned long long)numbers[i]);
    if (!look_at_all_prepared(looking) || !look_at_tags(looking) || !look_at_tag_count(looking))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!look_at_snapshot(looking, version->snapshots[i]))
            return false;
    return true;
}

static bool look_at_limit(struct looking *looking)
{
    struct lmcs_pool_info info;
    struct lmcs_error error;
    looking->shelf = "the pool";
    looking->snapshot = NULL;
    if (lmcs_pool_info(looking->pool, &info, &error) != LMCS_OK)
        return wrong(looking, "%s", error.message);
    return info.limit_bytes == looking->version->limit ||
           wrong(looking, "its limit is %llu, not %llu", (unsigned long long)info.limit_bytes,
                 (unsigned long long)looking->version->limit);
}

/* ---- Live variables ---- */

static bool count_live(void *context, const struct lmcs_live_info *info)
{
    (void)info;
    ++*(size_t *)context;
    return true;
}

static bool same_words(const struct expected_live *live, const unsigned char *got)
{
    if (live->mixed == NULL)
        return memcmp(got, live->data, live->bytes) == 0;
    for (uint64_t at = 0, n; at < live->bytes; at += n) {
        n = live->bytes - at < 8 ? live->bytes - at : 8;
        if (memcmp(got + at, live->data + at, n) != 0 && memcmp(got + at, live->mixed + at, n) != 0)
            return false;
    }
    return true;
}

static bool look_at_variable(struct looking *looking, const struct expected_live *expected)
{
    struct lmcs_error error;
    struct lmcs_live *live;
    if (lmcs_live_open(looking->pool, LIVE_SHELF, expected->name, &live, &error) != LMCS_OK)
        return wrong(looking, "live variable \"%s\": %s", expected->name, error.message);
    unsigned char *got = malloc(expected->bytes + 1);
    uint64_t bytes = 0;
    EXPECT(got != NULL);
    enum lmcs_status status = lmcs_live_get(live, got, expected->bytes, &bytes, &error);
    struct lmcs_live_info info;
    if (status == LMCS_OK)
        status = lmcs_live_info(live, &info, &error);
    bool right = status == LMCS_OK && bytes == expected->bytes && same_words(expected, got) &&
                 (info.form == LMCS_LIVE_VALUE) == expected->is_value;
    free(got);
    lmcs_live_close(live);
    return right || wrong(looking, "live variable \"%s\" has %llu bytes, which are not those expected: %s",
                          expected->name, (unsigned long long)bytes, status == LMCS_OK ? "" : error.message);
}

static bool look_at_live(struct looking *looking)
{
    const struct shelf_version *version = looking->version;
    struct lmcs_error error;
    size_t count = 0;
    looking->snapshot = NULL;
    if (lmcs_live_list(looking->pool, LIVE_SHELF, NULL, count_live, &count, &error) != LMCS_OK)
        return wrong(looking, "%s", error.message);
    if (count != version->live_count)
        return wrong(looking, "%zu live variables, not %zu", count, version->live_count);
    for (size_t i = 0; i < count; i++)
        if (!look_at_variable(looking, &version->live[i]))
            return false;
    return true;
}

/* ---- Which version a shelf has ---- */

static bool find_version(const struct expected *expected, const struct expected_shelf *shelf, struct looking *looking,
                         size_t *found)
{
    char *why = looking->why;
    size_t why_bytes = looking->why_bytes, used = 0;
    /* Only a writer completes a pending journal. */
    for (*found = 0; shelf->name[0] == '=' && !looking->pool->writable; ++*found)
        if (is_possible(expected, shelf, *found))
            return true;
    for (size_t i = shelf->count; i-- > 0;) {
        if (!is_possible(expected, shelf, i))
            continue;
        looking->shelf = shelf->name;
        looking->version = &shelf->versions[i];
        looking->why = why + used;
        looking->why_bytes = why_bytes - used;
        bool right = shelf->name[0] == '\0'  ? look_at_limit(looking)
                     : shelf->name[0] == '=' ? look_at_live(looking)
                                             : look_at_shelf(looking);
        *found = i;
        if (right) {
            looking->why = why;
            looking->why_bytes = why_bytes;
            return true;
        }
        used = strlen(why);
        used += (size_t)snprintf(why + used, why_bytes - used, " (if it is as after \"%.60s\"); ",
                                 expected->operations[shelf->versions[i].operation].words);
        used = used < why_bytes ? used : why_bytes - 1;
    }
    return false;
}

struct names {
    const struct expected *expected;
    const size_t *found;
    const char *stranger;
    char name[64];
};

static bool look_at_name(void *context, const struct lmcs_shelf_info *info)
{
    struct names *names = context;
    for (size_t i = 0; i < names->expected->shelf_count; i++)
        if (strcmp(names->expected->shelves[i].name, info->name) == 0)
            return true;
    snprintf(names->name, sizeof names->name, "%.60s", info->name);
    names->stranger = names->name;
    return false;
}

static bool is_same(const struct shelf_version *a, const struct shelf_version *b)
{
    if (a->exists != b->exists || a->keep_raw != b->keep_raw || a->next_number != b->next_number ||
        a->snapshot_count != b->snapshot_count || a->tag_count != b->tag_count ||
        a->prepared_count != b->prepared_count || a->origin_number != b->origin_number ||
        strcmp(a->origin_shelf, b->origin_shelf) != 0 || a->live_count != b->live_count)
        return false;
    for (size_t i = 0; i < a->tag_count; i++)
        if (a->tags[i].number != b->tags[i].number || strcmp(a->tags[i].tag, b->tags[i].tag) != 0)
            return false;
    return memcmp(a->snapshots, b->snapshots, a->snapshot_count * sizeof a->snapshots[0]) == 0 &&
           memcmp(a->prepared, b->prepared, a->prepared_count * sizeof a->prepared[0]) == 0;
}

/* All or none of the shelves changed. A reader doesn't see live variables (find_version). */
static bool is_joint(const struct expected *expected, bool is_reader, const size_t found[MOST_SHELVES], char *why,
                     size_t why_bytes)
{
    for (uint64_t operation = 1; operation < expected->operation_count; operation++) {
        int with = 0, without = 0;
        for (size_t i = 0; i < expected->shelf_count; i++)
            for (size_t k = 1; k < expected->shelves[i].count; k++)
                if (!(is_reader && expected->shelves[i].name[0] == '=') &&
                    expected->shelves[i].versions[k].operation == operation &&
                    !is_same(&expected->shelves[i].versions[k], &expected->shelves[i].versions[k - 1]))
                    ++*(k <= found[i] ? &with : &without);
        if (with > 0 && without > 0) {
            snprintf(why, why_bytes, "\"%s\" is there on some shelves and not on others",
                     expected->operations[operation].words);
            return false;
        }
    }
    return true;
}

/* ---- Beneath the shelves ---- */

struct damages {
    char *why;
    size_t why_bytes;
    unsigned count;
};

static void keep_first_damages(void *context, const struct lmcs_damage *damage)
{
    struct damages *damages = context;
    size_t used = strlen(damages->why);
    if (damages->count++ < 3)
        snprintf(damages->why + used, damages->why_bytes - used, "damage: %s@%llu %s: %s; ", damage->shelf,
                 (unsigned long long)damage->number, damage->tensor, damage->what);
}

static uint64_t allocated_bytes(int fd, uint64_t from, uint64_t end)
{
    uint64_t bytes = 0;
    while (from < end) {
        off_t data = lseek(fd, (off_t)from, SEEK_DATA);
        if (data < 0 || (uint64_t)data >= end)
            break;
        off_t hole = lseek(fd, data, SEEK_HOLE);
        from = (uint64_t)hole < end ? (uint64_t)hole : end;
        bytes += from - (uint64_t)data;
    }
    return bytes;
}

static bool wrong_space(char *why, size_t why_bytes, const struct lmcs_object_df *df, uint64_t is, uint64_t should)
{
    snprintf(
        why, why_bytes,
        "the %s at offset %llu has file space for %llu bytes, not for %llu (backed %llu, punched %llu, cursor %llu of "
        "%llu, live %llu, retired %llu)",
        df->kind == LMCS_OBJECT_SLAB ? "slab" : "extent", (unsigned long long)df->first, (unsigned long long)is,
        (unsigned long long)should, (unsigned long long)(df->backed - df->first), (unsigned long long)df->punched_bytes,
        (unsigned long long)(df->cursor - df->first), (unsigned long long)df->bytes, (unsigned long long)df->live_bytes,
        (unsigned long long)df->retired_bytes);
    return false;
}

static bool look_at_space(int fd, uint64_t offset, const struct lmcs_object_df *df, bool exactly, char *why,
                          size_t why_bytes)
{
    uint64_t page = LMCS_PAGE_BYTES - 1, end = (offset + df->bytes) & ~page;
    if (df->kind == LMCS_OBJECT_LIVE || df->kind == LMCS_OBJECT_RING)
        return true;
    if (df->kind == LMCS_OBJECT_SLAB) {
        uint64_t is = allocated_bytes(fd, df->first, end);
        return is >= end - df->first || wrong_space(why, why_bytes, df, is, end - df->first);
    }
    uint64_t backed = df->backed < end ? df->backed & ~page : end, should = backed - df->first;
    should -= df->punched_bytes < should ? df->punched_bytes : should;
    uint64_t is = allocated_bytes(fd, df->first, backed);
    bool refilled = df->live_bytes == 0 && df->retired_bytes == 0 && df->punched_bytes > 0;
    if (is < should && !refilled)
        return wrong_space(why, why_bytes, df, is, should);
    return is <= should || !exactly || wrong_space(why, why_bytes, df, is, should);
}

struct live_space {
    int fd;
    bool right;
    char *why;
    size_t why_bytes;
};

static bool has_space(int fd, uint64_t from, uint64_t bytes)
{
    uint64_t first = from & ~(uint64_t)(LMCS_PAGE_BYTES - 1), end = lmcs_page_up(from + bytes);
    return allocated_bytes(fd, first, end) >= end - first;
}

static enum lmcs_status look_at_record(void *context, struct lmcs_live_record *record, struct lmcs_error *error)
{
    struct live_space *space = context;
    bool right = has_space(space->fd, record->df.cell, record->df.cell_bytes);
    uint64_t left = lmcs_page_up(record->df.bytes);
    (void)error;
    for (size_t i = 0; i < record->df.part_count && left > 0; i++) {
        uint64_t bytes = left < record->parts[i].bytes ? left : record->parts[i].bytes;
        right = right && has_space(space->fd, record->parts[i].offset, bytes);
        left -= bytes;
    }
    if (!right)
        snprintf(space->why, space->why_bytes, "live variable \"%s\" has not the file space that it should have",
                 record->name);
    space->right = space->right && right;
    free(record);
    return LMCS_OK;
}

/*
 * A store to space recorded as backed must not kill the process on a full disk. Empty extents with holes are excluded:
 * they are punched whole and allocated again before a store. `exactly`: space recorded as holes has none, as after full
 * compaction. (A new extent may have an earlier object's space past its backed part.)
 */
bool expected_space(struct lmcs_pool *pool, bool exactly, char *why, size_t why_bytes)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    bool right = true;
    int fd = open(pool->path, O_RDONLY | O_CLOEXEC);
    EXPECT(fd >= 0);
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_root_seek(cursor, &txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){0, 0}, &err));
    while (right && lmcs_cursor_valid(cursor)) {
        struct lmcs_object_df df;
        memcpy(&df, lmcs_cursor_value(cursor, NULL), sizeof df);
        right = look_at_space(fd, lmcs_cursor_key(cursor).high, &df, exactly, why, why_bytes);
        OK(lmcs_cursor_next(cursor, &err));
    }
    struct live_space space = {fd, right, why, why_bytes};
    OK(lmcs_live_record_each(&txn, 0, look_at_record, &space, &err));
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    close(fd);
    return space.right;
}

static bool resolve_one(struct looking *looking, const struct expected_snapshot *prepared)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_error error;
    looking->snapshot = prepared;
    if (lmcs_group_resolve(looking->pool, prepared->group, true, &error) != LMCS_OK)
        return wrong(looking, "a prepared snapshot can't be resolved: %s", error.message);
    if (!look_at_snapshot(looking, prepared))
        return false;
    if (prepared->tag[0] == '\0')
        return true;
    if (lmcs_snapshot_find(looking->pool, looking->shelf, prepared->tag, &snapshot, &error) != LMCS_OK)
        return wrong(looking, "its tag %s: %s", prepared->tag, error.message);
    uint64_t number = lmcs_snapshot_info(snapshot)->number;
    lmcs_snapshot_close(snapshot);
    return number >= prepared->number ||
           wrong(looking, "its tag %s is at %llu", prepared->tag, (unsigned long long)number);
}

/* Changes the pool. Commits all, the newest first; those that the last one shares contents with are dropped. */
static bool resolve_prepared(const struct expected *expected, const size_t found[MOST_SHELVES], struct looking *looking)
{
    for (size_t i = 0; i < expected->shelf_count; i++) {
        const struct shelf_version *version = &expected->shelves[i].versions[found[i]];
        struct lmcs_error error;
        looking->shelf = expected->shelves[i].name;
        for (size_t k = version->prepared_count; k-- > 0;) {
            const bool drops = k + 1 < version->prepared_count && version->prepared[k]->number % 2 == 0;
            if (!drops && !resolve_one(looking, version->prepared[k]))
                return false;
            if (drops && lmcs_group_resolve(looking->pool, version->prepared[k]->group, false, &error) != LMCS_OK)
                return wrong(looking, "a prepared snapshot can't be dropped: %s", error.message);
        }
        if (version->prepared_count > 0 && !look_at_snapshot(looking, version->prepared[version->prepared_count - 1]))
            return false;
    }
    return true;
}

/* Opening for writing removes a restore's staging, and contents kept for it that no restore needs. */
static bool no_staging(const struct expected *expected, struct lmcs_pool *pool, const size_t found[MOST_SHELVES],
                       struct looking *looking)
{
    size_t shelves = 0;
    for (size_t i = 0; i < expected->shelf_count; i++)
        shelves += expected->shelves[i].name[0] != '\0' && expected->shelves[i].name[0] != '=' &&
                   expected->shelves[i].versions[found[i]].exists;
    struct lmcs_error error;
    looking->shelf = "the pool";
    looking->snapshot = NULL;
    if (lmcs_staging_drop_kept(pool, &error) != LMCS_OK)
        return wrong(looking, "what a restore has kept can't be removed: %s", error.message);
    uint64_t there = pool->root.trees[LMCS_TREE_SHELVES].count;
    return there == shelves ||
           wrong(looking, "%llu shelves, of which %zu can be seen", (unsigned long long)there, shelves);
}

static bool is_damage_meant(const struct expected *expected)
{
    for (size_t i = 0; i < expected->operation_count; i++) {
        const struct expected_operation *operation = &expected->operations[i];
        bool begun = operation->begun && strcmp(operation->words, EXPECTED_REPAIR) == 0;
        if (!operation->acknowledged && (begun || strcmp(operation->words, EXPECTED_REPAIR_LEFT) == 0))
            return true;
    }
    return false;
}

static enum lmcs_status repair_what_is_meant(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_scrub_options options;
    lmcs_scrub_options_init(&options);
    options.repair = true;
    return lmcs_scrub(pool, &options, NULL, NULL, NULL, NULL, error);
}

bool expected_check(const struct expected *expected, struct lmcs_pool *pool, size_t found[MOST_SHELVES], char *why,
                    size_t why_bytes)
{
    uint64_t contents[64];
    struct looking looking = {.pool = pool, .contents = contents, .why = why, .why_bytes = why_bytes};
    struct names names = {.expected = expected, .found = found};
    struct damages damages = {why, why_bytes, 0};
    struct lmcs_error error;
    why[0] = '\0';
    if (is_damage_meant(expected) && !pool->writable) { /* a reader can't repair */
        memset(found, 0, MOST_SHELVES * sizeof *found);
        return true;
    }
    if (is_damage_meant(expected) && repair_what_is_meant(pool, &error) != LMCS_OK) {
        snprintf(why, why_bytes, "a repair that power failed in can't be taken up again: %s", error.message);
        return false;
    }
    enum lmcs_status status = lmcs_verify(pool, NULL, keep_first_damages, &damages, NULL, NULL, &error);
    if (status != LMCS_OK) {
        size_t used = strlen(why);
        snprintf(why + used, why_bytes - used, "lmcs_verify: %s", error.message);
        return false;
    }
    for (size_t i = 0; i < expected->shelf_count; i++)
        if (!find_version(expected, &expected->shelves[i], &looking, &found[i]))
            return false;
    if (lmcs_shelf_list(pool, look_at_name, &names, &error) != LMCS_OK || names.stranger != NULL) {
        snprintf(why, why_bytes, "there is a shelf \"%s\"", names.stranger != NULL ? names.stranger : error.message);
        return false;
    }
    if (!is_joint(expected, !pool->writable, found, why, why_bytes) || !expected_space(pool, false, why, why_bytes))
        return false;
    return !pool->writable ||
           (no_staging(expected, pool, found, &looking) && resolve_prepared(expected, found, &looking));
}
