/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive_restore.c - lmcs_restore: what an archive says, checked record by record, on its way into the pool.
 *
 * Nothing in an archive is believed: every id must be that of an earlier record, every size must follow from a shape,
 * every name must be sound and unique where it stands, everything that arrives must be used, and what is a count is
 * counted again. Memory grows with the records that really arrived, never with what one of them claims. What passes
 * goes to a staging shelf (archive_stage.c), where the payloads are verified; only the end record lets it be shown.
 *
 * Which names a snapshot has is followed by numbering the lists: a list of entries that is given in full has a new
 * number, one of changes keeps that of the list it changes, and an identity is present when it bears the number.
 */
#include <stdlib.h>
#include <string.h>

#include "archive_source.h"
#include "archive_stage.h"
#include "content.h"
#include "meta.h"
#include "store.h"

#define PROGRESS_BYTES  ((uint64_t)4 << 20)
#define LARGEST_NUMBER  ((uint64_t)1 << 62)
#define MOST_IDENTITIES LMCS_MAX_TENSORS
#define MOST_ENTRIES    ((uint64_t)LMCS_MAX_TENSORS + 1) /* and the metadata */
#define MOST_TAGS       LMCS_MAX_TENSORS

enum place { OUTSIDE, IN_SHELF, IN_TAGS, IN_SNAPSHOT, IN_CONTENT };

struct restore {
    struct lmcs_pool *pool;
    const struct lmcs_progress *progress;
    uint64_t reported;
    struct lmcs_archive_source source;
    struct lmcs_stage stage;
    enum place place;
    uint64_t tags;
    size_t *names; /* of leaders, open addressing: index + 1 */
    size_t name_capacity;
    uint64_t *numbers; /* of the shelf at work, ascending */
    size_t number_count;
    size_t number_capacity;
    uint64_t list;    /* number of the list of entries */
    uint64_t serial;  /* of the snapshot */
    uint64_t entries; /* of the list */
    uint64_t tensors;
    uint64_t raw_bytes;
    uint64_t data_at; /* of the content at work: bytes that have come */
};

#define FAIL(restore, error, ...)        lmcs_archive_fail(&(restore)->source, LMCS_DAMAGED, error, __VA_ARGS__)
#define UNSUPPORTED(restore, error, ...) lmcs_archive_fail(&(restore)->source, LMCS_UNSUPPORTED, error, __VA_ARGS__)

/* What our own checks call a wrong argument is, in an archive, damage. */
static enum lmcs_status as_damage(struct restore *restore, enum lmcs_status status, const struct lmcs_error *why,
                                  struct lmcs_error *error)
{
    if (status == LMCS_INVALID || status == LMCS_DAMAGED)
        return FAIL(restore, error, "%.300s", why->message);
    if (status != LMCS_OK && error != NULL)
        *error = *why;
    return status;
}

/* Copies the fixed part of the record; false when it is too short. */
static bool take_fixed(const struct restore *restore, void *fixed, size_t bytes)
{
    if (restore->source.bytes < bytes)
        return false;
    memcpy(fixed, restore->source.payload, bytes);
    return true;
}

/* A text that is the rest of the record, from `at`; NULL when it is not, or holds a NUL. */
static const char *take_text(const struct restore *restore, size_t at, size_t bytes)
{
    const char *text = (const char *)restore->source.payload + at;
    return at + bytes == restore->source.bytes && strlen(text) == bytes ? text : NULL;
}

/* ---- Shelves and tags ---- */

static enum lmcs_status read_shelf(struct restore *restore, struct lmcs_error *error)
{
    struct lmcs_stage *stage = &restore->stage;
    struct lmcs_archive_shelf_df df;
    const char *name = NULL;
    if (take_fixed(restore, &df, sizeof df))
        name = take_text(restore, sizeof df, df.name_bytes);
    if (name == NULL || !lmcs_name_is_sound(name) || strchr(name, '@') != NULL)
        return FAIL(restore, error, "the name of a shelf is not valid");
    if (stage->shelf_count > 0 && strcmp(stage->shelves[stage->shelf_count - 1].name, name) >= 0)
        return FAIL(restore, error, "shelf \"%.64s\" is out of order, or there twice", name);
    if (df.next_number == 0 || df.next_number > LARGEST_NUMBER || df.keep_raw == 0)
        return FAIL(restore, error, "shelf \"%.64s\" has impossible settings", name);
    restore->number_count = 0;
    restore->list++;
    restore->place = IN_SHELF;
    return lmcs_stage_shelf(stage, name, df.next_number, df.keep_raw, error);
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static enum lmcs_status read_tag(struct restore *restore, struct lmcs_error *error)
{
    struct lmcs_stage_shelf *shelf = &restore->stage.shelves[restore->stage.shelf_count - 1];
    struct lmcs_archive_tag_df df;
    struct lmcs_error why;
    const char *text = NULL;
    if (take_fixed(restore, &df, sizeof df) && df.reserved == 0)
        text = take_text(restore, sizeof df, df.tag_bytes);
    if (text == NULL)
        return FAIL(restore, error, "a tag is not valid");
    enum lmcs_status status = lmcs_tag_check(text, &why);
    if (status != LMCS_OK)
        return as_damage(restore, status, &why, error);
    if (shelf->tag_count > 0 && strcmp(shelf->tags[shelf->tag_count - 1].text, text) >= 0)
        return FAIL(restore, error, "tag \"%.64s\" is out of order, or there twice", text);
    if (restore->number_count == 0 ||
        bsearch(&df.number, restore->numbers, restore->number_count, sizeof df.number, by_number) == NULL)
        return FAIL(restore, error, "tag \"%.64s\" is of a snapshot that the archive does not have", text);
    if (restore->tags++ >= MOST_TAGS)
        return UNSUPPORTED(restore, error, "it has too many tags");
    if (!lmcs_stage_grow(&shelf->tags, &shelf->tag_capacity, shelf->tag_count, sizeof *shelf->tags))
        return lmcs_fail_memory(error);
    char *copy = strdup(text);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    shelf->tags[shelf->tag_count++] = (struct lmcs_stage_tag){df.number, copy};
    restore->place = IN_TAGS;
    return LMCS_OK;
}

/* ---- Identities ---- */

static size_t name_slot(const struct restore *restore, uint32_t kind, const char *name)
{
    size_t i = (size_t)lmc_hash64(name, strlen(name), kind) & (restore->name_capacity - 1);
    while (restore->names[i] != 0) {
        const struct lmcs_tensor *tensor = &restore->stage.identities[restore->names[i] - 1]->tensor;
        if (tensor->kind == kind && strcmp(tensor->name, name) == 0)
            break;
        i = (i + 1) & (restore->name_capacity - 1);
    }
    return i;
}

static bool make_name_room(struct restore *restore)
{
    if ((restore->stage.identity_count + 1) * 2 <= restore->name_capacity)
        return true;
    size_t wanted = restore->name_capacity == 0 ? 256 : restore->name_capacity * 2;
    size_t *names = calloc(wanted, sizeof *names);
    if (names == NULL)
        return false;
    free(restore->names);
    restore->names = names;
    restore->name_capacity = wanted;
    for (size_t i = 0; i < restore->stage.identity_count; i++) {
        const struct lmcs_stage_identity *identity = restore->stage.identities[i];
        if (identity->leader == i)
            names[name_slot(restore, identity->tensor.kind, identity->tensor.name)] = i + 1;
    }
    return true;
}

/* The identity of the record, in one allocation with its lists and its name; *identity is NULL when it is not one. */
static enum lmcs_status parse_identity(struct restore *restore, struct lmcs_stage_identity **identity,
                                       struct lmcs_error *error)
{
    struct lmcs_archive_identity_df df;
    const char *name = NULL;
    size_t dims = 0, lists = 1;
    *identity = NULL;
    if (take_fixed(restore, &df, sizeof df) && df.ndim <= LMCS_MAX_DIMS && df.is_part <= 1) {
        lists = df.is_part ? 3 : 1;
        dims = lists * df.ndim * sizeof(uint64_t);
        if (sizeof df + dims <= restore->source.bytes && df.name_bytes <= LMCS_MAX_NAME)
            name = take_text(restore, sizeof df + dims, df.name_bytes);
    }
    if (name == NULL)
        return FAIL(restore, error, "the description of a tensor is not valid");
    struct lmcs_stage_identity *made = calloc(1, sizeof *made + dims + df.name_bytes + 1u);
    if (made == NULL)
        return lmcs_fail_memory(error);
    uint64_t *numbers = (uint64_t *)(made + 1);
    memcpy(numbers, restore->source.payload + sizeof df, dims);
    memcpy((char *)numbers + dims, name, df.name_bytes);
    made->tensor = (struct lmcs_tensor){
        .name = (char *)numbers + dims, .kind = df.kind, .dtype = df.dtype, .ndim = df.ndim, .shape = numbers};
    if (df.is_part) {
        made->tensor.global_shape = numbers + df.ndim;
        made->tensor.offsets = numbers + 2 * (size_t)df.ndim;
    }
    *identity = made;
    return LMCS_OK;
}

static enum lmcs_status check_identity(struct restore *restore, struct lmcs_stage_identity *identity,
                                       struct lmcs_error *error)
{
    struct lmcs_error why;
    const struct lmcs_tensor *tensor = &identity->tensor;
    if (tensor->dtype >= LMC_DTYPE_END)
        return UNSUPPORTED(restore, error, "tensor \"%.64s\" has dtype %u, which this lmc-store does not know",
                           tensor->name, tensor->dtype);
    enum lmcs_status status = lmcs_tensor_check(tensor, &identity->raw_bytes, &why);
    return as_damage(restore, status, &why, error);
}

static enum lmcs_status read_identity(struct restore *restore, struct lmcs_error *error)
{
    struct lmcs_stage *stage = &restore->stage;
    struct lmcs_stage_identity *identity;
    if (stage->identity_count >= MOST_IDENTITIES)
        return UNSUPPORTED(restore, error, "it has too many names of tensors");
    if (!make_name_room(restore) || !lmcs_stage_grow(&stage->identities, &stage->identity_capacity,
                                                     stage->identity_count, sizeof(struct lmcs_stage_identity *)))
        return lmcs_fail_memory(error);
    enum lmcs_status status = parse_identity(restore, &identity, error);
    if (status == LMCS_OK)
        status = check_identity(restore, identity, error);
    if (status != LMCS_OK) {
        free(identity);
        return status;
    }
    size_t slot = name_slot(restore, identity->tensor.kind, identity->tensor.name);
    if (restore->names[slot] == 0)
        restore->names[slot] = stage->identity_count + 1;
    identity->leader = restore->names[slot] - 1;
    stage->identities[stage->identity_count++] = identity;
    return LMCS_OK;
}

static struct lmcs_stage_identity *identity_of(struct restore *restore, uint64_t id)
{
    return id == 0 || id > restore->stage.identity_count ? NULL : restore->stage.identities[id - 1];
}

/* ---- Contents ---- */

static enum lmcs_status check_stored(struct restore *restore, const struct lmcs_archive_content_df *df,
                                     struct lmcs_error *error)
{
    const struct lmcs_archive_source *source = &restore->source;
    static const uint8_t none[sizeof df->reserved];
    if (df->payload > LMCS_PAYLOAD_FRAME || df->base_count > LMC_MAX_BASES ||
        memcmp(df->reserved, none, sizeof none) != 0 || (df->flags & ~LMCS_CONTENT_SETTLED) != 0)
        return UNSUPPORTED(restore, error, "a content is stored in a way that this lmc-store does not know");
    if (df->payload == LMCS_PAYLOAD_RAW &&
        (df->base_count != 0 || df->stored_bytes != lmcs_raw_stored_bytes(df->raw_bytes)))
        return FAIL(restore, error, "a raw content has the wrong size");
    if (df->payload == LMCS_PAYLOAD_FRAME &&
        (df->flags != 0 || df->stored_bytes < LMC_FRAME_PREFIX_BYTES || df->raw_bytes > (uint64_t)1 << 55 ||
         df->stored_bytes > lmc_frame_bound(df->raw_bytes)))
        return FAIL(restore, error, "a coded content has an impossible size");
    if (df->base_count > 1)
        return UNSUPPORTED(restore, error, "a content rests on several bases");
    /* A file says how much can still come: no space is taken for more. */
    if (source->total != 0 && df->stored_bytes > (source->total > source->offset ? source->total - source->offset : 0))
        return FAIL(restore, error, "a content claims %llu bytes, more than the archive has",
                    (unsigned long long)df->stored_bytes);
    return LMCS_OK;
}

/* Finds the base and notes that it is used; *depth gets the deltas to undo. */
static enum lmcs_status check_base(struct restore *restore, const struct lmcs_archive_content_df *df, size_t *base,
                                   uint8_t *depth, struct lmcs_error *error)
{
    struct lmcs_stage *stage = &restore->stage;
    uint64_t id;
    *depth = 0;
    *base = 0;
    if (restore->source.bytes != sizeof *df + df->base_count * sizeof id)
        return FAIL(restore, error, "the record of a content has the wrong size");
    if (df->base_count == 0)
        return LMCS_OK;
    memcpy(&id, restore->source.payload + sizeof *df, sizeof id);
    if (id == 0 || id > stage->content_count)
        return FAIL(restore, error, "a content rests on one that has not come");
    struct lmcs_stage_content *content = &stage->contents[id - 1];
    if (stage->identities[content->identity]->raw_bytes != df->raw_bytes)
        return FAIL(restore, error, "a content rests on one of another size");
    if (content->depth >= LMCS_CHAIN_BOUND)
        return FAIL(restore, error, "a chain of deltas is longer than %u", LMCS_CHAIN_BOUND);
    content->is_used = true;
    *depth = (uint8_t)(content->depth + 1);
    *base = (size_t)id - 1;
    return LMCS_OK;
}

static void end_content(struct restore *restore)
{
    const struct lmcs_stage_pending *pending = &restore->stage.pending[restore->stage.pending_count - 1];
    if (restore->data_at == pending->content.df.stored_bytes)
        restore->place = IN_SNAPSHOT;
}

static enum lmcs_status read_content(struct restore *restore, struct lmcs_error *error)
{
    struct lmcs_stage *stage = &restore->stage;
    struct lmcs_archive_content_df df;
    if (!take_fixed(restore, &df, sizeof df))
        return FAIL(restore, error, "the record of a content is too short");
    struct lmcs_stage_identity *identity = identity_of(restore, df.identity);
    if (identity == NULL || identity->raw_bytes != df.raw_bytes)
        return FAIL(restore, error, "a content does not fit the tensor that it is of");
    struct lmcs_stage_content content = {.identity = (uint32_t)(df.identity - 1)};
    size_t base;
    enum lmcs_status status = check_stored(restore, &df, error);
    if (status == LMCS_OK)
        status = check_base(restore, &df, &base, &content.depth, error);
    if (status != LMCS_OK)
        return status;
    if (!lmcs_stage_grow(&stage->contents, &stage->content_capacity, stage->content_count, sizeof content) ||
        !lmcs_stage_grow(&stage->pending, &stage->pending_capacity, stage->pending_count, sizeof *stage->pending))
        return lmcs_fail_memory(error);
    struct lmcs_stage_pending *pending = &stage->pending[stage->pending_count];
    *pending = (struct lmcs_stage_pending){
        .index = stage->content_count, .record = restore->source.number - 1, .base_count = df.base_count, .base = base};
    pending->content.df = (struct lmcs_content_df){.digest_low = df.digest_low,
                                                   .digest_high = df.digest_high,
                                                   .raw_bytes = df.raw_bytes,
                                                   .payload = df.payload,
                                                   .flags = df.flags};
    status = lmcs_stage_room(stage, &pending->content, df.stored_bytes, error);
    if (status != LMCS_OK)
        return status;
    stage->contents[stage->content_count++] = content;
    stage->pending_count++;
    stage->pending_bytes += df.stored_bytes;
    restore->data_at = 0;
    restore->place = IN_CONTENT;
    end_content(restore);
    return LMCS_OK;
}

static enum lmcs_status read_data(struct restore *restore, struct lmcs_error *error)
{
    const struct lmcs_content *content = &restore->stage.pending[restore->stage.pending_count - 1].content;
    uint32_t bytes = restore->source.bytes;
    if (bytes == 0 || bytes > content->df.stored_bytes - restore->data_at)
        return FAIL(restore, error, "a content has more bytes than it should");
    enum lmcs_status status =
        lmcs_payload_write(restore->pool->heap, content, restore->data_at, restore->source.payload, bytes, error);
    restore->data_at += bytes;
    end_content(restore);
    return status;
}

/* ---- Snapshots ---- */

static enum lmcs_status check_meta(struct restore *restore, const char *text, struct lmcs_error *error)
{
    struct lmcs_meta meta;
    struct lmcs_error why;
    bool sound = true;
    enum lmcs_status status = lmcs_meta_decode(text, &meta, &why);
    if (status != LMCS_OK)
        return as_damage(restore, status, &why, error);
    for (size_t i = 0; i < meta.metric_count; i++)
        sound = sound && lmcs_name_is_sound(meta.metrics[i].name);
    lmcs_meta_free(&meta);
    return sound ? LMCS_OK : FAIL(restore, error, "the name of a metric is not valid");
}

static enum lmcs_status check_snapshot(struct restore *restore, const struct lmcs_archive_snapshot_df *df,
                                       struct lmcs_error *error)
{
    const struct lmcs_stage_shelf *shelf = &restore->stage.shelves[restore->stage.shelf_count - 1];
    uint64_t last = restore->number_count == 0 ? 0 : restore->numbers[restore->number_count - 1];
    if (df->flags & ~(LMCS_ARCHIVE_CHANGES | LMCS_ARCHIVE_META_ATTACHED))
        return UNSUPPORTED(restore, error, "a snapshot has features that this lmc-store does not know");
    if (df->number <= last || df->number >= shelf->next_number)
        return FAIL(restore, error, "snapshot number %llu is out of order", (unsigned long long)df->number);
    if ((df->flags & LMCS_ARCHIVE_CHANGES) && last == 0)
        return FAIL(restore, error, "the first snapshot of a shelf has nothing to change");
    if (df->parent >= LARGEST_NUMBER)
        return FAIL(restore, error, "the parent of a snapshot has an impossible number");
    return LMCS_OK;
}

static enum lmcs_status read_snapshot(struct restore *restore, struct lmcs_error *error)
{
    struct lmcs_stage *stage = &restore->stage;
    struct lmcs_archive_snapshot_df df;
    const char *meta = NULL;
    bool attached = false;
    if (take_fixed(restore, &df, sizeof df) && df.meta_bytes <= LMCS_META_INLINE) {
        meta = take_text(restore, sizeof df, df.meta_bytes);
        attached = (df.flags & LMCS_ARCHIVE_META_ATTACHED) != 0;
    }
    if (meta == NULL || attached != (df.meta_bytes == 0))
        return FAIL(restore, error, "the metadata of a snapshot is not valid");
    enum lmcs_status status = check_snapshot(restore, &df, error);
    if (status == LMCS_OK && !attached)
        status = check_meta(restore, meta, error);
    if (status != LMCS_OK)
        return status;
    if (!lmcs_stage_grow(&restore->numbers, &restore->number_capacity, restore->number_count, sizeof df.number))
        return lmcs_fail_memory(error);
    restore->numbers[restore->number_count++] = df.number;
    stage->record.df = (struct lmcs_snapshot_df){.number = df.number,
                                                 .step = df.step,
                                                 .time_ns = df.time_ns,
                                                 .parent = df.parent,
                                                 .meta_bytes = attached ? UINT32_MAX : df.meta_bytes};
    memcpy(stage->record.df.group, df.group, sizeof df.group);
    memcpy(stage->record.meta, meta, df.meta_bytes + 1u);
    stage->is_changes = (df.flags & LMCS_ARCHIVE_CHANGES) != 0;
    if (!stage->is_changes) {
        restore->list++;
        restore->entries = restore->tensors = restore->raw_bytes = 0;
    }
    restore->serial++;
    restore->place = IN_SNAPSHOT;
    return LMCS_OK;
}

/* Whether two tensors can have one content. */
static bool same_form(const struct lmcs_tensor *a, const struct lmcs_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           (a->ndim == 0 || memcmp(a->shape, b->shape, a->ndim * sizeof(uint64_t)) == 0);
}

/* Takes an identity on the list, or off it. */
static bool change_list(struct restore *restore, struct lmcs_stage_identity *identity, bool on)
{
    struct lmcs_stage_identity *leader = restore->stage.identities[identity->leader];
    uint64_t one = on ? 1 : UINT64_MAX;
    if (leader->name_list != restore->list) {
        leader->name_list = restore->list;
        leader->name_count = 0;
    }
    identity->present = on ? restore->list : 0;
    leader->name_count += one;
    restore->entries += one;
    restore->tensors += identity->tensor.kind == LMCS_TENSOR ? one : 0;
    if (on)
        return !__builtin_add_overflow(restore->raw_bytes, identity->raw_bytes, &restore->raw_bytes);
    restore->raw_bytes -= identity->raw_bytes;
    return true;
}

static enum lmcs_status take_entry(struct restore *restore, const struct lmcs_archive_entry_df *entry,
                                   struct lmcs_error *error)
{
    struct lmcs_stage *stage = &restore->stage;
    struct lmcs_stage_identity *identity = identity_of(restore, entry->identity);
    if (identity == NULL || entry->content > stage->content_count)
        return FAIL(restore, error, "an entry of a snapshot is of something that has not come");
    if (identity->touched == restore->serial)
        return FAIL(restore, error, "tensor \"%.64s\" is in a snapshot twice", identity->tensor.name);
    identity->touched = restore->serial;
    bool present = identity->present == restore->list;
    if (entry->content == 0 && !(stage->is_changes && present))
        return FAIL(restore, error, "tensor \"%.64s\" is taken off a list that does not have it",
                    identity->tensor.name);
    if (entry->content != 0) {
        struct lmcs_stage_content *content = &stage->contents[entry->content - 1];
        if (!same_form(&stage->identities[content->identity]->tensor, &identity->tensor))
            return FAIL(restore, error, "tensor \"%.64s\" has a content of another dtype or shape",
                        identity->tensor.name);
        content->is_used = true;
    }
    if (present != (entry->content != 0) && !change_list(restore, identity, !present))
        return FAIL(restore, error, "a snapshot is impossibly large");
    if (restore->entries > MOST_ENTRIES)
        return UNSUPPORTED(restore, error, "a snapshot has too many tensors");
    if (!lmcs_stage_grow(&stage->entries, &stage->entry_capacity, stage->entry_count, sizeof *entry))
        return lmcs_fail_memory(error);
    stage->entries[stage->entry_count++] = *entry;
    return LMCS_OK;
}

static enum lmcs_status read_entries(struct restore *restore, struct lmcs_error *error)
{
    struct lmcs_archive_entry_df entry;
    enum lmcs_status status = LMCS_OK;
    if (restore->source.bytes == 0 || restore->source.bytes % sizeof entry != 0)
        return FAIL(restore, error, "the record of entries has the wrong size");
    for (size_t at = 0; status == LMCS_OK && at < restore->source.bytes; at += sizeof entry) {
        memcpy(&entry, restore->source.payload + at, sizeof entry);
        status = take_entry(restore, &entry, error);
    }
    return status;
}

/* Names are unique, and everything that came is used: what nothing refers to could never be removed again. */
static enum lmcs_status check_complete(struct restore *restore, struct lmcs_error *error)
{
    const struct lmcs_stage *stage = &restore->stage;
    for (size_t i = 0; i < stage->entry_count; i++) {
        const struct lmcs_stage_identity *identity = stage->identities[stage->entries[i].identity - 1];
        if (stage->identities[identity->leader]->name_count > 1)
            return FAIL(restore, error, "tensor \"%.64s\" is in a snapshot twice", identity->tensor.name);
    }
    for (size_t i = 0; i < stage->pending_count; i++)
        if (!stage->contents[stage->pending[i].index].is_used)
            return FAIL(restore, error, "a content that came with a snapshot is used by nothing");
    return LMCS_OK;
}

static enum lmcs_status read_snapshot_end(struct restore *restore, struct lmcs_error *error)
{
    struct lmcs_stage *stage = &restore->stage;
    struct lmcs_archive_snapshot_end_df df;
    if (restore->source.bytes != sizeof df || !take_fixed(restore, &df, sizeof df) ||
        df.entry_count != restore->entries)
        return FAIL(restore, error, "a snapshot does not have as many entries as it should");
    enum lmcs_status status = check_complete(restore, error);
    if (status != LMCS_OK)
        return status;
    stage->record.df.entry_count = restore->entries;
    stage->record.df.tensor_count = restore->tensors;
    stage->record.df.raw_bytes = restore->raw_bytes;
    restore->place = IN_SHELF;
    return lmcs_stage_snapshot(stage, error);
}

/* ---- The whole ---- */

static enum lmcs_status read_end(struct restore *restore, struct lmcs_error *error)
{
    const struct lmcs_archive_source *source = &restore->source;
    const struct lmcs_stage *stage = &restore->stage;
    struct lmcs_archive_end_df df;
    if (source->bytes != sizeof df || !take_fixed(restore, &df, sizeof df))
        return FAIL(restore, error, "the end record has the wrong size");
    if (df.shelves != stage->shelf_count || df.snapshots != stage->snapshots ||
        df.identities != stage->identity_count || df.contents != stage->content_count || df.tags != restore->tags ||
        df.records != source->number - 1)
        return FAIL(restore, error, "the end record does not agree with what came before it");
    if (df.hash_low != source->hash.low || df.hash_high != source->hash.high)
        return FAIL(restore, error, "the checksum of the whole is wrong");
    return lmcs_archive_source_finish(&restore->source, error);
}

static enum lmcs_status read_record(struct restore *restore, struct lmcs_error *error)
{
    enum place place = restore->place;
    bool between = place == IN_SHELF || place == IN_TAGS;
    switch (restore->source.type) {
    case LMCS_ARCHIVE_SHELF:
        if (place == OUTSIDE || between)
            return read_shelf(restore, error);
        break;
    case LMCS_ARCHIVE_SNAPSHOT:
        if (place == IN_SHELF)
            return read_snapshot(restore, error);
        break;
    case LMCS_ARCHIVE_IDENTITY:
        if (place == IN_SNAPSHOT)
            return read_identity(restore, error);
        break;
    case LMCS_ARCHIVE_CONTENT:
        if (place == IN_SNAPSHOT)
            return read_content(restore, error);
        break;
    case LMCS_ARCHIVE_DATA:
        if (place == IN_CONTENT)
            return read_data(restore, error);
        break;
    case LMCS_ARCHIVE_ENTRIES:
        if (place == IN_SNAPSHOT)
            return read_entries(restore, error);
        break;
    case LMCS_ARCHIVE_SNAPSHOT_END:
        if (place == IN_SNAPSHOT)
            return read_snapshot_end(restore, error);
        break;
    case LMCS_ARCHIVE_TAG:
        if (between)
            return read_tag(restore, error);
        break;
    default:
        if (place == OUTSIDE || between)
            return read_end(restore, error);
    }
    return FAIL(restore, error, "it is of a type (%u) that can't stand here", restore->source.type);
}

static enum lmcs_status report_progress(struct restore *restore, struct lmcs_error *error)
{
    const struct lmcs_progress *progress = restore->progress;
    uint64_t done = restore->source.offset;
    if (progress == NULL || progress->call == NULL || done - restore->reported < PROGRESS_BYTES)
        return LMCS_OK;
    restore->reported = done;
    return progress->call(progress->context, "restoring", done, restore->source.total)
               ? LMCS_OK
               : lmcs_fail(error, LMCS_CANCELLED, 0, "the restore was stopped: the pool is as it was");
}

static enum lmcs_status read_all(struct restore *restore, struct lmcs_error *error)
{
    enum lmcs_status status;
    do {
        status = lmcs_archive_source_next(&restore->source, error);
        if (status == LMCS_OK)
            status = read_record(restore, error);
        if (status == LMCS_OK)
            status = report_progress(restore, error);
    } while (status == LMCS_OK && restore->source.type != LMCS_ARCHIVE_END);
    return status;
}

static void fill_report(const struct restore *restore, struct lmcs_transfer_report *report)
{
    const struct lmcs_stage *stage = &restore->stage;
    *report = (struct lmcs_transfer_report){.snapshots = stage->shown,
                                            .snapshots_skipped = stage->skipped,
                                            .contents = stage->content_count,
                                            .bytes = restore->source.offset};
}

enum lmcs_status lmcs_restore(struct lmcs_pool *pool, int fd, const struct lmcs_progress *progress,
                              struct lmcs_transfer_report *report, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status != LMCS_OK)
        return status;
    struct restore *restore = aligned_alloc(64, (sizeof *restore + 63) & ~(size_t)63);
    if (restore == NULL)
        return lmcs_fail_memory(error);
    memset(restore, 0, sizeof *restore);
    restore->pool = pool;
    restore->progress = progress;
    status = lmcs_archive_source_init(&restore->source, fd, error);
    if (status == LMCS_OK) {
        lmcs_stage_init(&restore->stage, pool);
        status = read_all(restore, error);
        if (status == LMCS_OK)
            status = lmcs_stage_show(&restore->stage, error);
        if (status != LMCS_OK)
            lmcs_stage_drop(&restore->stage);
        else if (report != NULL)
            fill_report(restore, report);
        lmcs_stage_fini(&restore->stage);
        lmcs_archive_source_fini(&restore->source);
    }
    free(restore->names);
    free(restore->numbers);
    free(restore);
    return status;
}
