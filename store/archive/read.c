/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive/read.c - reads an archive and checks it record by record, without a pool.
 *
 * Nothing is trusted, and memory grows with arrived records, never by a number in one. A complete list of entries gets
 * a new number, a list of changes keeps the number of the list that it changes; an identity is in the list if it has
 * the list's number.
 */
#include "archive/read.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/grow.h"
#include "base/order.h"
#include "payload/layout.h"
#include "records/content.h"
#include "records/meta.h"
#include "records/shelf.h"

#define PROGRESS_BYTES  ((uint64_t)4 << 20)
#define MOST_IDENTITIES LMCS_MAX_TENSORS
#define MOST_CONTENTS   (UINT32_MAX - 1)
#define MOST_ENTRIES    ((uint64_t)LMCS_MAX_TENSORS + 1) /* the tensors and the metadata */
#define MOST_TAGS       LMCS_MAX_TENSORS

#define FAIL            LMCS_ARCHIVE_DAMAGED
#define UNSUPPORTED     LMCS_ARCHIVE_UNSUPPORTED

#define CALL(reader, error, what, ...) \
    ((reader)->visitor->what == NULL ? LMCS_OK : (reader)->visitor->what((reader)->context, __VA_ARGS__ error))

/* Converts an argument error of a shared check into damage. */
static enum lmcs_status as_damage(struct lmcs_archive_reader *reader, enum lmcs_status status,
                                  const struct lmcs_error *why, struct lmcs_error *error)
{
    if (status == LMCS_INVALID || status == LMCS_DAMAGED)
        return FAIL(reader, error, "%.300s", why->message);
    if (status != LMCS_OK && error != NULL)
        *error = *why;
    return status;
}

/* Copies the fixed part of the record. False: the record is too short. */
static bool take_fixed(const struct lmcs_archive_reader *reader, void *fixed, size_t bytes)
{
    if (reader->source.bytes < bytes)
        return false;
    memcpy(fixed, reader->source.payload, bytes);
    return true;
}

/* Returns the rest of the record as text; NULL: it is empty or contains a NUL. */
static const char *take_text(const struct lmcs_archive_reader *reader, size_t at, size_t bytes)
{
    const char *text = (const char *)reader->source.payload + at;
    return at + bytes == reader->source.bytes && strlen(text) == bytes ? text : NULL;
}

/* ---- Shelves and tags ---- */

static enum lmcs_status read_shelf(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_shelf_df df;
    const char *name = NULL;
    if (take_fixed(reader, &df, sizeof df))
        name = take_text(reader, sizeof df, df.name_bytes);
    if (name == NULL || !lmcs_name_is_sound(name) || strchr(name, '@') != NULL)
        return FAIL(reader, error, "the name of a shelf is not valid");
    if (reader->shelf != NULL && strcmp(reader->shelf, name) >= 0)
        return FAIL(reader, error, "shelf \"%.64s\" is out of order, or repeated", name);
    if (df.next_number == 0 || df.next_number > LMCS_LARGEST_NUMBER || df.keep_raw == 0)
        return FAIL(reader, error, "shelf \"%.64s\" has impossible settings", name);
    char *copy = strdup(name);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    free(reader->shelf);
    free(reader->tag);
    reader->shelf = copy;
    reader->tag = NULL;
    reader->shelf_df = df;
    reader->shelf_count++;
    reader->has_origin = reader->has_id = false;
    reader->number_count = 0;
    reader->list++;
    reader->place = LMCS_ARCHIVE_IN_SHELF;
    return CALL(reader, error, shelf, );
}

static enum lmcs_status read_shelf_id(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_shelf_id_df df;
    if (reader->source.bytes != sizeof df || !take_fixed(reader, &df, sizeof df))
        return FAIL(reader, error, "the identity of a shelf has the wrong size");
    reader->has_id = true;
    return CALL(reader, error, shelf_id, &df, );
}

/* Reads the origin of a shelf. Its source need not be in the archive. */
static enum lmcs_status read_origin(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_origin_df df;
    const char *name = NULL;
    if (take_fixed(reader, &df, sizeof df) && df.reserved == 0)
        name = take_text(reader, sizeof df, df.name_bytes);
    if (name == NULL || !lmcs_name_is_sound(name) || strchr(name, '@') != NULL || df.number == 0 ||
        df.number > LMCS_LARGEST_NUMBER)
        return FAIL(reader, error, "the source of a fork is not valid");
    reader->has_origin = true;
    return CALL(reader, error, origin, &df, name, );
}

static enum lmcs_status read_tag(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_tag_df df;
    struct lmcs_error why;
    const char *text = NULL;
    if (take_fixed(reader, &df, sizeof df) && df.reserved == 0)
        text = take_text(reader, sizeof df, df.tag_bytes);
    if (text == NULL)
        return FAIL(reader, error, "a tag is not valid");
    enum lmcs_status status = lmcs_tag_check(text, &why);
    if (status != LMCS_OK)
        return as_damage(reader, status, &why, error);
    if (reader->tag != NULL && strcmp(reader->tag, text) >= 0)
        return FAIL(reader, error, "tag \"%.64s\" is out of order, or repeated", text);
    bool is_here = reader->number_count > 0 &&
                   bsearch(&df.number, reader->numbers, reader->number_count, sizeof df.number, lmcs_by_u64) != NULL;
    bool may_be_older = reader->since_count > 0 && df.number > 0 && df.number < reader->shelf_df.next_number;
    if (!is_here && !may_be_older)
        return FAIL(reader, error, "tag \"%.64s\" is of a snapshot that the archive does not have", text);
    if (reader->tag_count++ >= MOST_TAGS)
        return UNSUPPORTED(reader, error, "it has too many tags");
    char *copy = strdup(text);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    free(reader->tag);
    reader->tag = copy;
    reader->place = LMCS_ARCHIVE_IN_TAGS;
    return CALL(reader, error, tag, df.number, copy, );
}

/* ---- Identities ---- */

/* Returns the key of a name in reader->names: its hash, or the next key that no other name has. */
static uint64_t name_key(const struct lmcs_archive_reader *reader, uint32_t kind, const char *name)
{
    uint64_t key = lmc_hash64(name, strlen(name), kind), leader;
    for (; (leader = lmcs_map_get(&reader->names, key)) != 0; key++) {
        const struct lmcs_tensor *tensor = &reader->identities[leader - 1]->tensor;
        if (tensor->kind == kind && strcmp(tensor->name, name) == 0)
            break;
    }
    return key;
}

/* *identity NULL after a failure. */
static enum lmcs_status parse_identity(struct lmcs_archive_reader *reader, struct lmcs_archive_identity **identity,
                                       struct lmcs_error *error)
{
    struct lmcs_archive_identity_df df;
    const char *name = NULL;
    size_t dims = 0, lists = 1;
    *identity = NULL;
    if (take_fixed(reader, &df, sizeof df) && df.ndim <= LMCS_MAX_DIMS && df.is_part <= 1) {
        lists = df.is_part ? 3 : 1;
        dims = lists * df.ndim * sizeof(uint64_t);
        if (sizeof df + dims <= reader->source.bytes && df.name_bytes <= LMCS_MAX_NAME)
            name = take_text(reader, sizeof df + dims, df.name_bytes);
    }
    if (name == NULL)
        return FAIL(reader, error, "the description of a tensor is not valid");
    struct lmcs_archive_identity *made = calloc(1, sizeof *made + dims + df.name_bytes + 1u);
    if (made == NULL)
        return lmcs_fail_memory(error);
    uint64_t *numbers = (uint64_t *)(made + 1);
    memcpy(numbers, reader->source.payload + sizeof df, dims);
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

static enum lmcs_status check_identity(struct lmcs_archive_reader *reader, struct lmcs_archive_identity *identity,
                                       struct lmcs_error *error)
{
    struct lmcs_error why;
    const struct lmcs_tensor *tensor = &identity->tensor;
    if (tensor->dtype >= LMC_DTYPE_END)
        return UNSUPPORTED(reader, error, "tensor \"%.64s\" has dtype %u, which this lmc-store does not know",
                           tensor->name, tensor->dtype);
    enum lmcs_status status = lmcs_tensor_check(tensor, &identity->raw_bytes, &why);
    return as_damage(reader, status, &why, error);
}

static enum lmcs_status read_identity(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_identity *identity;
    if (reader->identity_count >= MOST_IDENTITIES)
        return UNSUPPORTED(reader, error, "it has too many names of tensors");
    if (!lmcs_grow(&reader->identities, &reader->identity_capacity, reader->identity_count,
                   sizeof(struct lmcs_archive_identity *)))
        return lmcs_fail_memory(error);
    enum lmcs_status status = parse_identity(reader, &identity, error);
    if (status != LMCS_OK || identity == NULL)
        return status;
    status = check_identity(reader, identity, error);
    if (status != LMCS_OK) {
        free(identity);
        return status;
    }
    uint64_t key = name_key(reader, identity->tensor.kind, identity->tensor.name);
    uint64_t leader = lmcs_map_get(&reader->names, key);
    if (leader == 0 && !lmcs_map_put(&reader->names, key, reader->identity_count + 1)) {
        free(identity);
        return lmcs_fail_memory(error);
    }
    identity->leader = leader == 0 ? reader->identity_count : leader - 1;
    reader->identities[reader->identity_count++] = identity;
    return LMCS_OK;
}

static struct lmcs_archive_identity *identity_of(struct lmcs_archive_reader *reader, uint64_t id)
{
    return id == 0 || id > reader->identity_count ? NULL : reader->identities[id - 1];
}

/* ---- Contents ---- */

static bool size_is_possible(const struct lmcs_archive_content_df *df)
{
    switch (df->payload) {
    case LMCS_PAYLOAD_RAW:
        return df->base_count == 0 && df->stored_bytes == lmcs_raw_stored_bytes(df->raw_bytes);
    case LMCS_PAYLOAD_FRAME:
        return df->flags == 0 && df->stored_bytes >= LMC_FRAME_PREFIX_BYTES && df->raw_bytes <= (uint64_t)1 << 55 &&
               df->stored_bytes <= lmc_frame_bound(df->raw_bytes);
    case LMCS_PAYLOAD_LINK:
        return df->flags == 0 && df->stored_bytes >= LMC_FRAME_PREFIX_BYTES && df->base_count >= 2 &&
               df->raw_bytes > 0 && df->raw_bytes <= (uint64_t)1 << 53 &&
               df->stored_bytes <= lmc_link_bound(df->base_count, df->raw_bytes);
    default:
        return df->flags == 0 && df->stored_bytes == 0 && df->raw_bytes > 0 && df->base_count == 1;
    }
}

static enum lmcs_status check_stored(struct lmcs_archive_reader *reader, const struct lmcs_archive_content_df *df,
                                     struct lmcs_error *error)
{
    struct lmcs_archive_source *source = &reader->source;
    static const uint8_t none[sizeof df->reserved];
    if (df->payload > LMCS_PAYLOAD_LINKED || df->base_count > LMC_MAX_BASES ||
        memcmp(df->reserved, none, sizeof none) != 0 || (df->flags & ~LMCS_CONTENT_SETTLED) != 0 ||
        (df->output != 0 && df->payload != LMCS_PAYLOAD_LINKED))
        return UNSUPPORTED(reader, error, "this lmc-store does not know the form in which a content is stored");
    if (!size_is_possible(df))
        return FAIL(reader, error, "a content has an impossible size");
    if (df->base_count > 1 && df->payload != LMCS_PAYLOAD_LINK)
        return UNSUPPORTED(reader, error, "a content rests on several bases");
    /* allocate no more than can still arrive */
    source->is_short =
        source->total != 0 && df->stored_bytes > (source->total > source->offset ? source->total - source->offset : 0);
    if (source->is_short)
        return FAIL(reader, error, "a content claims %llu bytes, more than the archive has",
                    (unsigned long long)df->stored_bytes);
    return LMCS_OK;
}

const struct lmcs_archive_content *lmcs_archive_link_before(const struct lmcs_archive_reader *reader,
                                                            const struct lmcs_archive_content *link)
{
    const struct lmcs_archive_content *base = &reader->contents[link->bases[0] - 1];
    return base->payload == LMCS_PAYLOAD_LINKED ? &reader->contents[base->bases[0] - 1] : NULL;
}

/* Checks that the base is raw or a frame, in a chain of bounded length. */
static enum lmcs_status check_delta(struct lmcs_archive_reader *reader, struct lmcs_archive_content *content,
                                    struct lmcs_error *error)
{
    const struct lmcs_archive_content *base = &reader->contents[content->bases[0] - 1];
    if (base->payload >= LMCS_PAYLOAD_LINK)
        return FAIL(reader, error, "a delta has a linked content as its base");
    if (base->depth >= LMCS_CHAIN_BOUND)
        return FAIL(reader, error, "a chain of deltas is longer than %u", LMCS_CHAIN_BOUND);
    content->depth = (uint8_t)(base->depth + 1);
    return LMCS_OK;
}

/* Checks that the bases are all outputs of another link, in order, or rest on nothing. */
static enum lmcs_status check_link(struct lmcs_archive_reader *reader, struct lmcs_archive_content *content,
                                   struct lmcs_error *error)
{
    const struct lmcs_archive_content *before = lmcs_archive_link_before(reader, content);
    if (reader->identities[content->identity]->tensor.dtype != LMC_F32)
        return FAIL(reader, error, "a link is of another dtype than f32");
    for (uint32_t i = 0; i < content->base_count; i++) {
        const struct lmcs_archive_content *base = &reader->contents[content->bases[i] - 1];
        bool follows = before != NULL && base->payload == LMCS_PAYLOAD_LINKED && base->output == i &&
                       &reader->contents[base->bases[0] - 1] == before;
        for (uint32_t k = 0; k < i; k++)
            if (content->bases[k] == content->bases[i])
                return FAIL(reader, error, "a link has a base twice");
        if (before != NULL ? !follows : base->payload >= LMCS_PAYLOAD_LINK || base->depth > 0)
            return FAIL(reader, error, "the bases of a link don't belong together");
    }
    if (before == NULL) {
        content->line = 1;
        return LMCS_OK;
    }
    if (before->base_count != content->base_count)
        return FAIL(reader, error, "the bases of a link are not all outputs of another one");
    if (before->line >= LMCS_LINK_BOUND)
        return FAIL(reader, error, "a line of links is longer than %u", LMCS_LINK_BOUND);
    content->line = (uint8_t)(before->line + 1);
    reader->contents[before - reader->contents].is_gone_from = true;
    return LMCS_OK;
}

static enum lmcs_status check_linked(struct lmcs_archive_reader *reader, struct lmcs_archive_content *content,
                                     struct lmcs_error *error)
{
    const struct lmcs_archive_content *link = &reader->contents[content->bases[0] - 1];
    if (link->payload != LMCS_PAYLOAD_LINK || content->output >= link->base_count)
        return FAIL(reader, error, "a content is an output that its link does not have");
    content->line = link->line;
    return LMCS_OK;
}

static enum lmcs_status check_bases(struct lmcs_archive_reader *reader, const struct lmcs_archive_content_df *df,
                                    struct lmcs_archive_content *content, struct lmcs_error *error)
{
    const struct lmcs_tensor *tensor = &reader->identities[content->identity]->tensor;
    if (reader->source.bytes != sizeof *df + df->base_count * sizeof(uint64_t))
        return FAIL(reader, error, "the record of a content has the wrong size");
    for (uint32_t i = 0; i < df->base_count; i++) {
        uint64_t id;
        memcpy(&id, reader->source.payload + sizeof *df + i * sizeof id, sizeof id);
        if (id == 0 || id > reader->content_count)
            return FAIL(reader, error, "a content has a base that has not arrived");
        struct lmcs_archive_content *base = &reader->contents[id - 1];
        if (!lmcs_archive_same_form(&reader->identities[base->identity]->tensor, tensor))
            return FAIL(reader, error, "a content has a base of another dtype or shape");
        base->is_used = true;
        content->bases[i] = (uint32_t)id;
    }
    content->base_count = df->base_count;
    if (df->payload == LMCS_PAYLOAD_LINK)
        return check_link(reader, content, error);
    if (df->payload == LMCS_PAYLOAD_LINKED)
        return check_linked(reader, content, error);
    return df->base_count > 0 ? check_delta(reader, content, error) : LMCS_OK;
}

static enum lmcs_status add_content(struct lmcs_archive_reader *reader, const struct lmcs_archive_content *content,
                                    struct lmcs_error *error)
{
    if (reader->content_count >= MOST_CONTENTS)
        return UNSUPPORTED(reader, error, "it has too many contents");
    if (!lmcs_grow(&reader->contents, &reader->content_capacity, reader->content_count, sizeof *content))
        return lmcs_fail_memory(error);
    reader->contents[reader->content_count++] = *content;
    return CALL(reader, error, content, );
}

/* Expects records of the snapshot again once all data of the content arrived. */
static void end_content(struct lmcs_archive_reader *reader)
{
    if (reader->data_at == reader->contents[reader->content_count - 1].stored_bytes)
        reader->place = LMCS_ARCHIVE_IN_SNAPSHOT;
}

static enum lmcs_status read_content(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_content_df df;
    if (!take_fixed(reader, &df, sizeof df))
        return FAIL(reader, error, "the record of a content is too short");
    struct lmcs_archive_identity *identity = identity_of(reader, df.identity);
    if (identity == NULL || identity->raw_bytes != df.raw_bytes)
        return FAIL(reader, error, "a content does not fit its tensor");
    struct lmcs_archive_content content = {.digest = {df.digest_low, df.digest_high},
                                           .stored_bytes = df.stored_bytes,
                                           .at = reader->source.offset,
                                           .identity = (uint32_t)(df.identity - 1),
                                           .payload = df.payload,
                                           .flags = df.flags,
                                           .output = df.output};
    enum lmcs_status status = check_stored(reader, &df, error);
    if (status == LMCS_OK)
        status = check_bases(reader, &df, &content, error);
    if (status == LMCS_OK)
        status = add_content(reader, &content, error);
    if (status != LMCS_OK)
        return status;
    reader->data_at = 0;
    reader->place = LMCS_ARCHIVE_IN_CONTENT;
    end_content(reader);
    return LMCS_OK;
}

static enum lmcs_status read_known(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_known_df df;
    if (reader->source.bytes != sizeof df || !take_fixed(reader, &df, sizeof df))
        return FAIL(reader, error, "the record of a known content has the wrong size");
    struct lmcs_archive_identity *identity = identity_of(reader, df.identity);
    if (identity == NULL || identity->raw_bytes != df.raw_bytes)
        return FAIL(reader, error, "a content does not fit its tensor");
    if (reader->since_count == 0)
        return FAIL(reader, error, "a content is said to be in an older archive, but the archive names none");
    const struct lmcs_archive_content content = {
        .digest = {df.digest_low, df.digest_high}, .identity = (uint32_t)(df.identity - 1), .is_known = true};
    return add_content(reader, &content, error);
}

static enum lmcs_status read_since(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_since_df df;
    if (reader->source.bytes != sizeof df || !take_fixed(reader, &df, sizeof df))
        return FAIL(reader, error, "the record of an older archive has the wrong size");
    reader->since_count++;
    return CALL(reader, error, since, &df, );
}

static enum lmcs_status read_data(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    const struct lmcs_archive_content *content = &reader->contents[reader->content_count - 1];
    uint32_t bytes = reader->source.bytes;
    if (bytes == 0 || bytes > content->stored_bytes - reader->data_at)
        return FAIL(reader, error, "a content has more bytes than it should");
    enum lmcs_status status = CALL(reader, error, data, reader->source.payload, bytes, );
    reader->data_at += bytes;
    end_content(reader);
    return status;
}

/* ---- Snapshots ---- */

static enum lmcs_status check_meta(struct lmcs_archive_reader *reader, const char *text, struct lmcs_error *error)
{
    struct lmcs_meta meta;
    struct lmcs_error why;
    bool sound = true;
    enum lmcs_status status = lmcs_meta_decode(text, &meta, &why);
    if (status != LMCS_OK)
        return as_damage(reader, status, &why, error);
    for (size_t i = 0; i < meta.metric_count; i++)
        sound = sound && lmcs_name_is_sound(meta.metrics[i].name);
    lmcs_meta_free(&meta);
    return sound ? LMCS_OK : FAIL(reader, error, "the name of a metric is not valid");
}

static enum lmcs_status check_snapshot(struct lmcs_archive_reader *reader, const struct lmcs_archive_snapshot_df *df,
                                       struct lmcs_error *error)
{
    uint64_t last = reader->number_count == 0 ? 0 : reader->numbers[reader->number_count - 1];
    if (df->flags & ~(LMCS_ARCHIVE_CHANGES | LMCS_ARCHIVE_META_ATTACHED))
        return UNSUPPORTED(reader, error, "a snapshot has features that this lmc-store does not know");
    if (df->number <= last || df->number >= reader->shelf_df.next_number)
        return FAIL(reader, error, "snapshot number %llu is out of order", (unsigned long long)df->number);
    if ((df->flags & LMCS_ARCHIVE_CHANGES) && last == 0)
        return FAIL(reader, error, "the first snapshot of a shelf is stored as changes");
    if (df->parent >= LMCS_LARGEST_NUMBER)
        return FAIL(reader, error, "the parent of a snapshot has an impossible number");
    return LMCS_OK;
}

static enum lmcs_status read_snapshot(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_snapshot_df df;
    const char *meta = NULL;
    bool attached = false;
    if (take_fixed(reader, &df, sizeof df) && df.meta_bytes <= LMCS_META_INLINE) {
        meta = take_text(reader, sizeof df, df.meta_bytes);
        attached = (df.flags & LMCS_ARCHIVE_META_ATTACHED) != 0;
    }
    if (meta == NULL || attached != (df.meta_bytes == 0))
        return FAIL(reader, error, "the metadata of a snapshot is not valid");
    enum lmcs_status status = check_snapshot(reader, &df, error);
    if (status == LMCS_OK && !attached)
        status = check_meta(reader, meta, error);
    if (status != LMCS_OK)
        return status;
    if (!lmcs_grow(&reader->numbers, &reader->number_capacity, reader->number_count, sizeof df.number))
        return lmcs_fail_memory(error);
    reader->numbers[reader->number_count++] = df.number;
    reader->snapshot = df;
    memcpy(reader->meta, meta, df.meta_bytes + 1u);
    if ((df.flags & LMCS_ARCHIVE_CHANGES) == 0) {
        reader->list++;
        reader->present = reader->tensors = reader->raw_bytes = 0;
    }
    reader->entry_count = 0;
    reader->first_content = reader->content_count;
    reader->serial++;
    reader->place = LMCS_ARCHIVE_IN_SNAPSHOT;
    return CALL(reader, error, snapshot, );
}

bool lmcs_archive_same_form(const struct lmcs_tensor *a, const struct lmcs_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           (a->ndim == 0 || memcmp(a->shape, b->shape, a->ndim * sizeof(uint64_t)) == 0);
}

/* Adds an identity to the current list (`on`) or removes it. False: the total overflows. */
static bool change_list(struct lmcs_archive_reader *reader, struct lmcs_archive_identity *identity, bool on)
{
    struct lmcs_archive_identity *leader = reader->identities[identity->leader];
    uint64_t one = on ? 1 : UINT64_MAX;
    if (leader->name_list != reader->list) {
        leader->name_list = reader->list;
        leader->name_count = 0;
    }
    identity->present = on ? reader->list : 0;
    leader->name_count += one;
    reader->present += one;
    reader->tensors += identity->tensor.kind == LMCS_TENSOR ? one : 0;
    if (on)
        return !__builtin_add_overflow(reader->raw_bytes, identity->raw_bytes, &reader->raw_bytes);
    reader->raw_bytes -= identity->raw_bytes;
    return true;
}

/* Checks an entry of a snapshot and applies it to the current list. */
static enum lmcs_status take_entry(struct lmcs_archive_reader *reader, const struct lmcs_archive_entry_df *entry,
                                   struct lmcs_error *error)
{
    struct lmcs_archive_identity *identity = identity_of(reader, entry->identity);
    if (identity == NULL || entry->content > reader->content_count)
        return FAIL(reader, error, "an entry of a snapshot refers to a record that has not arrived");
    if (identity->touched == reader->serial)
        return FAIL(reader, error, "tensor \"%.64s\" is in a snapshot twice", identity->tensor.name);
    identity->touched = reader->serial;
    bool present = identity->present == reader->list;
    if (entry->content == 0 && !((reader->snapshot.flags & LMCS_ARCHIVE_CHANGES) && present))
        return FAIL(reader, error, "tensor \"%.64s\" is removed from a list that does not have it",
                    identity->tensor.name);
    if (entry->content != 0) {
        struct lmcs_archive_content *content = &reader->contents[entry->content - 1];
        if (content->payload == LMCS_PAYLOAD_LINK)
            return FAIL(reader, error, "tensor \"%.64s\" has a link as its content", identity->tensor.name);
        if (!lmcs_archive_same_form(&reader->identities[content->identity]->tensor, &identity->tensor))
            return FAIL(reader, error, "tensor \"%.64s\" has a content of another dtype or shape",
                        identity->tensor.name);
        content->is_used = true;
        identity->content = entry->content;
    }
    if (present != (entry->content != 0) && !change_list(reader, identity, !present))
        return FAIL(reader, error, "a snapshot is impossibly large");
    if (reader->present > MOST_ENTRIES)
        return UNSUPPORTED(reader, error, "a snapshot has too many tensors");
    if (!lmcs_grow(&reader->entries, &reader->entry_capacity, reader->entry_count, sizeof *entry))
        return lmcs_fail_memory(error);
    reader->entries[reader->entry_count++] = *entry;
    return LMCS_OK;
}

static enum lmcs_status read_entries(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_entry_df entry;
    enum lmcs_status status = LMCS_OK;
    if (reader->source.bytes == 0 || reader->source.bytes % sizeof entry != 0)
        return FAIL(reader, error, "the record of entries has the wrong size");
    for (size_t at = 0; status == LMCS_OK && at < reader->source.bytes; at += sizeof entry) {
        memcpy(&entry, reader->source.payload + at, sizeof entry);
        status = take_entry(reader, &entry, error);
    }
    return status;
}

/* Checks that all contents of a snapshot are used: an unused one could never be removed from a pool. */
static enum lmcs_status check_complete(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    for (size_t i = 0; i < reader->entry_count; i++) {
        const struct lmcs_archive_identity *identity = reader->identities[reader->entries[i].identity - 1];
        if (reader->identities[identity->leader]->name_count > 1)
            return FAIL(reader, error, "tensor \"%.64s\" is in a snapshot twice", identity->tensor.name);
    }
    for (size_t i = reader->first_content; i < reader->content_count; i++)
        if (!reader->contents[i].is_used)
            return FAIL(reader, error, "a content that arrived with a snapshot is unused");
    return LMCS_OK;
}

static enum lmcs_status read_snapshot_end(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    struct lmcs_archive_snapshot_end_df df;
    if (reader->source.bytes != sizeof df || !take_fixed(reader, &df, sizeof df) || df.entry_count != reader->present)
        return FAIL(reader, error, "a snapshot has the wrong number of entries");
    enum lmcs_status status = check_complete(reader, error);
    if (status != LMCS_OK)
        return status;
    reader->snapshot_count++;
    reader->place = LMCS_ARCHIVE_IN_SHELF;
    return CALL(reader, error, snapshot_end, );
}

/* ---- The whole ---- */

static enum lmcs_status read_end(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    const struct lmcs_archive_source *source = &reader->source;
    struct lmcs_archive_end_df df;
    if (source->bytes != sizeof df || !take_fixed(reader, &df, sizeof df))
        return FAIL(reader, error, "the end record has the wrong size");
    if (df.shelves != reader->shelf_count || df.snapshots != reader->snapshot_count ||
        df.identities != reader->identity_count || df.contents != reader->content_count ||
        df.tags != reader->tag_count || df.records != source->number - 1)
        return FAIL(reader, error, "the end record disagrees with the records before it");
    if (df.hash_low != source->hash.low || df.hash_high != source->hash.high)
        return FAIL(reader, error, "the checksum of the whole archive is wrong");
    reader->hash = source->hash;
    reader->place = LMCS_ARCHIVE_AT_END;
    return lmcs_archive_source_finish(&reader->source, error);
}

static enum lmcs_status read_record(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    enum lmcs_archive_place place = reader->place;
    bool between = place == LMCS_ARCHIVE_IN_SHELF || place == LMCS_ARCHIVE_IN_TAGS;
    switch (reader->source.type) {
    case LMCS_ARCHIVE_SHELF:
        if (place == LMCS_ARCHIVE_AT_START || between)
            return read_shelf(reader, error);
        break;
    case LMCS_ARCHIVE_SNAPSHOT:
        if (place == LMCS_ARCHIVE_IN_SHELF)
            return read_snapshot(reader, error);
        break;
    case LMCS_ARCHIVE_IDENTITY:
        if (place == LMCS_ARCHIVE_IN_SNAPSHOT)
            return read_identity(reader, error);
        break;
    case LMCS_ARCHIVE_CONTENT:
        if (place == LMCS_ARCHIVE_IN_SNAPSHOT)
            return read_content(reader, error);
        break;
    case LMCS_ARCHIVE_DATA:
        if (place == LMCS_ARCHIVE_IN_CONTENT)
            return read_data(reader, error);
        break;
    case LMCS_ARCHIVE_ENTRIES:
        if (place == LMCS_ARCHIVE_IN_SNAPSHOT)
            return read_entries(reader, error);
        break;
    case LMCS_ARCHIVE_SNAPSHOT_END:
        if (place == LMCS_ARCHIVE_IN_SNAPSHOT)
            return read_snapshot_end(reader, error);
        break;
    case LMCS_ARCHIVE_TAG:
        if (between)
            return read_tag(reader, error);
        break;
    case LMCS_ARCHIVE_ORIGIN:
        if (place == LMCS_ARCHIVE_IN_SHELF && reader->number_count == 0 && !reader->has_origin)
            return read_origin(reader, error);
        break;
    case LMCS_ARCHIVE_SHELF_ID:
        if (place == LMCS_ARCHIVE_IN_SHELF && reader->number_count == 0 && !reader->has_id)
            return read_shelf_id(reader, error);
        break;
    case LMCS_ARCHIVE_SINCE:
        if (place == LMCS_ARCHIVE_AT_START)
            return read_since(reader, error);
        break;
    case LMCS_ARCHIVE_KNOWN:
        if (place == LMCS_ARCHIVE_IN_SNAPSHOT)
            return read_known(reader, error);
        break;
    default:
        if (place == LMCS_ARCHIVE_AT_START || between)
            return read_end(reader, error);
    }
    return FAIL(reader, error, "it is of a type (%u) that is not allowed here", reader->source.type);
}

static enum lmcs_status report_progress(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    if (reader->source.offset - reader->reported < PROGRESS_BYTES)
        return LMCS_OK;
    reader->reported = reader->source.offset;
    return lmcs_archive_source_progress(&reader->source, error);
}

enum lmcs_status lmcs_archive_reader_next(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_archive_source_next(&reader->source, error);
    if (status == LMCS_OK)
        status = read_record(reader, error);
    return status == LMCS_OK ? report_progress(reader, error) : status;
}

enum lmcs_status lmcs_archive_reader_run(struct lmcs_archive_reader *reader, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && reader->place != LMCS_ARCHIVE_AT_END)
        status = lmcs_archive_reader_next(reader, error);
    return status;
}

enum lmcs_status lmcs_archive_reader_init_from(struct lmcs_archive_reader *reader,
                                               const struct lmcs_archive_input *input, struct lmcs_error *error)
{
    static const struct lmcs_archive_visitor none;
    memset(reader, 0, sizeof *reader);
    reader->visitor = &none;
    reader->names.seed = lmcs_now_ns() ^ (uintptr_t)reader; /* a hostile archive must not choose collisions */
    return lmcs_archive_source_init(&reader->source, input, error);
}

enum lmcs_status lmcs_archive_reader_init(struct lmcs_archive_reader *reader, int fd, struct lmcs_error *error)
{
    const struct lmcs_archive_input input = {.fd = fd};
    return lmcs_archive_reader_init_from(reader, &input, error);
}

void lmcs_archive_reader_fini(struct lmcs_archive_reader *reader)
{
    lmcs_archive_source_fini(&reader->source);
    for (size_t i = 0; i < reader->identity_count; i++)
        free(reader->identities[i]);
    free(reader->identities);
    free(reader->contents);
    lmcs_map_free(&reader->names);
    free(reader->shelf);
    free(reader->tag);
    free(reader->numbers);
    free(reader->entries);
}
