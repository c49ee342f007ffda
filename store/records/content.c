/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/content.c - records of identities and contents.
 *
 * A content counts *runs*, the places in manifests where a name newly got it, and deltas based on it; without either it
 * is removed. One that is only a base is in the tree of dependents under base 0, for the compactor.
 *
 * A link is a content that no manifest has. It rests on the arrays before a step; those after it, stored by it or still
 * raw, rest on it. It is removed with the last of them.
 */
#include "records/content.h"

#include <stdlib.h>
#include <string.h>

#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/safety.h"

/* ---- Identities ---- */

/* Records of a newer version may be longer. */
struct identity_record {
    struct lmcs_identity_df df;
    unsigned char rest[LMCS_MAX_VALUE - sizeof(struct lmcs_identity_df)];
};
static_assert(sizeof(struct lmcs_identity_df) + 3 * LMCS_MAX_DIMS * 8 + LMCS_MAX_NAME <= LMCS_MAX_VALUE,
              "room for the largest identity");

static size_t encode_identity(const struct lmcs_tensor *tensor, struct identity_record *record)
{
    size_t name_bytes = strlen(tensor->name), dims = tensor->ndim * sizeof(uint64_t), n = 0;
    bool is_part = tensor->global_shape != NULL;
    memset(record, 0, sizeof *record);
    record->df = (struct lmcs_identity_df){.kind = (uint8_t)tensor->kind,
                                           .dtype = (uint8_t)tensor->dtype,
                                           .ndim = (uint8_t)tensor->ndim,
                                           .is_part = is_part,
                                           .name_bytes = (uint32_t)name_bytes};
    if (dims > 0) {
        memcpy(record->rest, tensor->shape, dims);
        n = dims;
        if (is_part) {
            memcpy(record->rest + n, tensor->global_shape, dims);
            memcpy(record->rest + n + dims, tensor->offsets, dims);
            n += 2 * dims;
        }
    }
    memcpy(record->rest + n, tensor->name, name_bytes);
    n += name_bytes;
    uint32_t head;
    memcpy(&head, record, sizeof head);
    record->df.hash = lmc_hash64(record->rest, n, head);
    return sizeof record->df + n;
}

static bool decode_identity(const struct identity_record *record, size_t bytes, struct lmcs_identity *identity)
{
    const struct lmcs_identity_df *df = &record->df;
    size_t dims = df->ndim * sizeof(uint64_t), lists = df->is_part ? 3 : 1;
    if (df->ndim > LMCS_MAX_DIMS || df->is_part > 1 || df->kind > LMCS_ATTACHMENT || df->name_bytes > LMCS_MAX_NAME ||
        bytes != sizeof *df + lists * dims + df->name_bytes)
        return false;
    identity->df = *df;
    memcpy(identity->shape, record->rest, dims);
    if (df->is_part) {
        memcpy(identity->global_shape, record->rest + dims, dims);
        memcpy(identity->offsets, record->rest + 2 * dims, dims);
    }
    memcpy(identity->name, record->rest + lists * dims, df->name_bytes);
    identity->name[df->name_bytes] = '\0';
    return lmcs_name_is_sound(identity->name) && strlen(identity->name) == df->name_bytes;
}

static uint64_t name_hash(uint32_t kind, const char *name)
{
    return lmc_hash64(name, strlen(name), kind + 1);
}

enum lmcs_status lmcs_identity_get(struct lmcs_txn *txn, uint64_t id, struct lmcs_identity *identity,
                                   struct lmcs_error *error)
{
    struct identity_record record;
    size_t bytes;
    bool found;
    enum lmcs_status status = lmcs_root_get(txn, LMCS_TREE_IDENTITIES, (struct lmcs_key_df){id, 0}, &record,
                                            sizeof record.df, sizeof record, &bytes, &found, error);
    if (status != LMCS_OK)
        return status;
    uint64_t raw;
    identity->id = id;
    if (found && record.df.kind > LMCS_ATTACHMENT)
        return lmcs_fail_newer(error, "%s: tensor name %llu: kind %u", txn->pool->path, (unsigned long long)id,
                               record.df.kind);
    bool sound = found && decode_identity(&record, bytes, identity);
    if (sound && identity->df.dtype >= LMC_DTYPE_END)
        return lmcs_fail_newer(error, "%s: tensor \"%.200s\": dtype %u", txn->pool->path, identity->name,
                               identity->df.dtype);
    if (!sound || !lmcs_shape_bytes(identity->df.dtype, identity->df.ndim, identity->shape, &raw))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the record of tensor name %llu",
                         txn->pool->path, (unsigned long long)id);
    return LMCS_OK;
}

enum lmcs_status lmcs_identity_named(struct lmcs_txn *txn, uint32_t kind, const char *name, uint64_t first,
                                     uint64_t *ids, size_t capacity, size_t *count, struct lmcs_error *error)
{
    uint64_t hash = name_hash(kind, name);
    struct lmcs_cursor *cursor;
    *count = 0;
    enum lmcs_status status =
        lmcs_root_open(&cursor, txn, LMCS_TREE_IDENTITY_NAMES, (struct lmcs_key_df){hash, first}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == hash &&
           *count < capacity) {
        struct lmcs_identity identity;
        status = lmcs_identity_get(txn, lmcs_cursor_key(cursor).low, &identity, error);
        if (status == LMCS_OK && identity.df.kind == kind && strcmp(identity.name, name) == 0)
            ids[(*count)++] = identity.id;
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_identity_find(struct lmcs_txn *txn, const struct lmcs_tensor *tensor, uint64_t *id,
                                    struct lmcs_error *error)
{
    struct identity_record wanted, record;
    size_t wanted_bytes = encode_identity(tensor, &wanted), bytes;
    uint64_t hash = name_hash(tensor->kind, tensor->name);
    struct lmcs_cursor *cursor;
    *id = 0;
    enum lmcs_status status =
        lmcs_root_open(&cursor, txn, LMCS_TREE_IDENTITY_NAMES, (struct lmcs_key_df){hash, 0}, error);
    while (status == LMCS_OK && *id == 0 && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == hash) {
        uint64_t candidate = lmcs_cursor_key(cursor).low;
        bool found;
        status = lmcs_root_get(txn, LMCS_TREE_IDENTITIES, (struct lmcs_key_df){candidate, 0}, &record, 0, sizeof record,
                               &bytes, &found, error);
        if (status == LMCS_OK && found && bytes == wanted_bytes && memcmp(&record, &wanted, bytes) == 0)
            *id = candidate;
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_identity_make(struct lmcs_txn *txn, const struct lmcs_tensor *tensor, uint64_t *id,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_identity_find(txn, tensor, id, error);
    if (status != LMCS_OK || *id != 0)
        return status;
    struct identity_record record;
    size_t bytes = encode_identity(tensor, &record);
    *id = txn->root.next_identity++;
    status = lmcs_root_put(txn, LMCS_TREE_IDENTITIES, (struct lmcs_key_df){*id, 0}, &record, bytes, error);
    if (status == LMCS_OK)
        status = lmcs_root_put(txn, LMCS_TREE_IDENTITY_NAMES,
                               (struct lmcs_key_df){name_hash(tensor->kind, tensor->name), *id}, NULL, 0, error);
    return status;
}

enum lmcs_status lmcs_identity_count(struct lmcs_txn *txn, uint64_t id, int64_t add, struct lmcs_error *error)
{
    struct lmcs_key_df key = {id, 0};
    uint64_t count = 0;
    bool found;
    enum lmcs_status status = lmcs_root_get(txn, LMCS_TREE_IDENTITY_COUNTS, key, &count, 8, 8, NULL, &found, error);
    if (status != LMCS_OK)
        return status;
    count += (uint64_t)add;
    if (count > 0)
        return lmcs_root_put(txn, LMCS_TREE_IDENTITY_COUNTS, key, &count, sizeof count, error);
    struct lmcs_identity identity;
    status = lmcs_identity_get(txn, id, &identity, error);
    if (status == LMCS_OK)
        status = lmcs_root_delete(txn, LMCS_TREE_IDENTITY_COUNTS, key, NULL, error);
    if (status == LMCS_OK)
        status = lmcs_root_delete(txn, LMCS_TREE_IDENTITIES, key, NULL, error);
    if (status == LMCS_OK)
        status = lmcs_root_delete(txn, LMCS_TREE_IDENTITY_NAMES,
                                  (struct lmcs_key_df){name_hash(identity.df.kind, identity.name), id}, NULL, error);
    return status;
}

struct lmcs_tensor lmcs_identity_tensor(const struct lmcs_identity *identity)
{
    return (struct lmcs_tensor){.name = identity->name,
                                .kind = identity->df.kind,
                                .dtype = identity->df.dtype,
                                .ndim = identity->df.ndim,
                                .shape = identity->shape,
                                .global_shape = identity->df.is_part ? identity->global_shape : NULL,
                                .offsets = identity->df.is_part ? identity->offsets : NULL};
}

/* ---- Contents ---- */

struct content_record {
    struct lmcs_content_df df;
    unsigned char rest[LMCS_MAX_VALUE - sizeof(struct lmcs_content_df)];
};
static_assert(sizeof(struct lmcs_content_df) + LMCS_MAX_PARTS * sizeof(struct lmcs_part_df) + LMC_MAX_BASES * 8 + 8 <=
                  LMCS_MAX_VALUE,
              "room for the largest content");

uint64_t lmcs_content_room(const struct lmcs_content *content)
{
    uint64_t room = 0;
    for (size_t i = 0; i < content->df.part_count; i++)
        room += lmcs_room(content->parts[i].bytes);
    return room;
}

static bool links_are_sound(const struct lmcs_content *content)
{
    const struct lmcs_content_df *df = &content->df;
    switch (df->payload) {
    case LMCS_PAYLOAD_LINK:
        return df->base_count >= 2 && content->link == 0 && df->runs == 0 && df->output == 0 && df->place >= 1 &&
               df->place <= LMCS_LINK_BOUND;
    case LMCS_PAYLOAD_LINKED:
        return df->base_count == 0 && content->link != 0 && df->part_count == 0 && df->output < LMC_MAX_BASES;
    case LMCS_PAYLOAD_RAW:
        return content->link != 0 ? df->output < LMC_MAX_BASES : df->output == 0;
    default:
        return content->link == 0 && df->base_count <= 1 && df->output == 0;
    }
}

static bool content_is_sound(struct lmcs_txn *txn, const struct lmcs_content *content)
{
    const struct lmcs_content_df *df = &content->df;
    uint64_t sum = 0, end = lmcs_media_bytes(txn->pool->media);
    for (size_t i = 0; i < df->part_count; i++) {
        const struct lmcs_part_df *part = &content->parts[i];
        if (part->bytes == 0 || part->offset > end || part->bytes > end - part->offset)
            return false;
        sum += part->bytes;
    }
    uint64_t blocks = lmc_block_count(df->raw_bytes);
    bool raw_fits =
        df->payload != LMCS_PAYLOAD_RAW || (df->base_count == 0 && df->raw_bytes <= sum &&
                                            sum >= df->raw_bytes + (blocks > 1 ? blocks * sizeof(struct lmc_hash) : 0));
    /* A frame has at least 33 bytes for each block: no sum of sizes can overflow. */
    bool is_frame = df->payload == LMCS_PAYLOAD_FRAME || df->payload == LMCS_PAYLOAD_LINK;
    bool frame_fits = !is_frame || blocks <= sum / 33;
    return sum == df->stored_bytes && raw_fits && frame_fits && links_are_sound(content);
}

/* LMCS_UNSUPPORTED: length and other fields may mean anything. */
static enum lmcs_status check_version(struct lmcs_txn *txn, uint64_t id, const struct lmcs_content_df *df,
                                      struct lmcs_error *error)
{
    const unsigned long long number = id;
    const unsigned flags = df->flags & ~(LMCS_CONTENT_SETTLED | LMCS_CONTENT_HAS_LINK);
    if (df->payload > LMCS_PAYLOAD_LINKED)
        return lmcs_fail_newer(error, "%s: content %llu: payload kind %u", txn->pool->path, number, df->payload);
    if (flags != 0)
        return lmcs_fail_newer(error, "%s: content %llu: flag %u", txn->pool->path, number, flags);
    if (df->payload == LMCS_PAYLOAD_FRAME && df->base_count > 1)
        return lmcs_fail_newer(error, "%s: content %llu: a frame against %u bases", txn->pool->path, number,
                               df->base_count);
    return LMCS_OK;
}

enum lmcs_status lmcs_content_find(struct lmcs_txn *txn, uint64_t id, struct lmcs_content *content, bool *found,
                                   struct lmcs_error *error)
{
    struct content_record record;
    size_t bytes;
    enum lmcs_status status = lmcs_root_get(txn, LMCS_TREE_CONTENTS, (struct lmcs_key_df){id, 0}, &record,
                                            sizeof record.df, sizeof record, &bytes, found, error);
    if (status != LMCS_OK || !*found)
        return status;
    const struct lmcs_content_df *df = &record.df;
    status = check_version(txn, id, df, error);
    if (status != LMCS_OK)
        return status;
    size_t parts = df->part_count * sizeof(struct lmcs_part_df), bases = df->base_count * sizeof(uint64_t);
    size_t link = (df->flags & LMCS_CONTENT_HAS_LINK) != 0 ? sizeof(uint64_t) : 0;
    bool sound = df->part_count <= LMCS_MAX_PARTS && df->base_count <= LMC_MAX_BASES &&
                 bytes == sizeof *df + parts + bases + link;
    if (sound) {
        content->id = id;
        content->df = *df;
        content->link = 0;
        memcpy(content->parts, record.rest, parts);
        memcpy(content->bases, record.rest + parts, bases);
        memcpy(&content->link, record.rest + parts + bases, link);
        sound = (content->link != 0) == (link != 0) && content_is_sound(txn, content);
    }
    if (!sound)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the record of content %llu", txn->pool->path,
                         (unsigned long long)id);
    return LMCS_OK;
}

enum lmcs_status lmcs_content_get(struct lmcs_txn *txn, uint64_t id, struct lmcs_content *content,
                                  struct lmcs_error *error)
{
    bool found;
    enum lmcs_status status = lmcs_content_find(txn, id, content, &found, error);
    if (status == LMCS_OK && !found)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: there is no content %llu", txn->pool->path,
                         (unsigned long long)id);
    return status;
}

enum lmcs_status lmcs_content_put(struct lmcs_txn *txn, const struct lmcs_content *content, struct lmcs_error *error)
{
    struct content_record record;
    size_t parts = content->df.part_count * sizeof(struct lmcs_part_df);
    size_t bases = content->df.base_count * sizeof(uint64_t), link = content->link != 0 ? sizeof content->link : 0;
    record.df = content->df;
    record.df.flags &= (uint8_t)~LMCS_CONTENT_HAS_LINK;
    record.df.flags |= link != 0 ? LMCS_CONTENT_HAS_LINK : 0;
    memcpy(record.rest, content->parts, parts);
    memcpy(record.rest + parts, content->bases, bases);
    memcpy(record.rest + parts + bases, &content->link, link);
    return lmcs_root_put(txn, LMCS_TREE_CONTENTS, (struct lmcs_key_df){content->id, 0}, &record,
                         sizeof record.df + parts + bases + link, error);
}

static enum lmcs_status add_parts(struct lmcs_txn *txn, const struct lmcs_content *content, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < content->df.part_count; i++)
        status = lmcs_space_add(txn, content->parts[i].offset, content->parts[i].bytes, content->id, error);
    return status;
}

/* Raises the height of a base, and of its bases: a chain of `height` deltas rests on it. */
static enum lmcs_status raise_height(struct lmcs_txn *txn, uint64_t id, uint32_t height, uint32_t uses,
                                     struct lmcs_error *error)
{
    struct lmcs_content base;
    for (; id != 0; height++, uses = 0) {
        if (height > LMCS_CHAIN_BOUND)
            return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: a chain of deltas would be longer than %u", txn->pool->path,
                             LMCS_CHAIN_BOUND);
        enum lmcs_status status = lmcs_content_get(txn, id, &base, error);
        if (status != LMCS_OK)
            return status;
        base.df.base_uses += uses;
        if (base.df.height < height)
            base.df.height = (uint16_t)height;
        status = lmcs_content_put(txn, &base, error);
        if (status != LMCS_OK)
            return status;
        id = base.df.base_count > 0 ? base.bases[0] : 0;
    }
    return LMCS_OK;
}

/* Enters a content as a dependent of its base. */
static enum lmcs_status tie(struct lmcs_txn *txn, const struct lmcs_content *content, uint64_t base, uint32_t height,
                            struct lmcs_error *error)
{
    enum lmcs_status status = raise_height(txn, base, height, 1, error);
    return status == LMCS_OK
               ? lmcs_root_put(txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){base, content->id}, NULL, 0, error)
               : status;
}

/* Ties a content to its bases. A link is no delta: it adds no height. */
static enum lmcs_status tie_bases(struct lmcs_txn *txn, const struct lmcs_content *content, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    uint32_t height = content->df.payload == LMCS_PAYLOAD_LINK ? 0 : content->df.height + 1u;
    for (size_t i = 0; status == LMCS_OK && i < content->df.base_count; i++)
        status = tie(txn, content, content->bases[i], height, error);
    return status;
}

static enum lmcs_status let_go(struct lmcs_txn *txn, struct lmcs_content *content, struct lmcs_release *release,
                               struct lmcs_error *error);

/* Ends a use of a base, which is removed with the last one. */
static enum lmcs_status untie(struct lmcs_txn *txn, const struct lmcs_content *content, uint64_t base_id,
                              struct lmcs_release *release, struct lmcs_error *error)
{
    struct lmcs_content base;
    enum lmcs_status status =
        lmcs_root_delete(txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){base_id, content->id}, NULL, error);
    if (status == LMCS_OK)
        status = lmcs_content_get(txn, base_id, &base, error);
    if (status != LMCS_OK)
        return status;
    base.df.base_uses--;
    if (base.df.base_uses == 0)
        base.df.height = 0;
    return base.df.base_uses == 0 && base.df.runs == 0 ? let_go(txn, &base, release, error)
                                                       : lmcs_content_put(txn, &base, error);
}

static enum lmcs_status untie_bases(struct lmcs_txn *txn, const struct lmcs_content *content,
                                    struct lmcs_release *release, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < content->df.base_count; i++)
        status = untie(txn, content, content->bases[i], release, error);
    return status;
}

static enum lmcs_status retire_parts(struct lmcs_txn *txn, const struct lmcs_content *content, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < content->df.part_count; i++)
        status = lmcs_space_retire(txn, content->parts[i].offset, content->parts[i].bytes, error);
    return status;
}

/* The content's share of its link; 0: no link stores it. */
static enum lmcs_status link_share(struct lmcs_txn *txn, const struct lmcs_content *content, uint64_t *share,
                                   struct lmcs_error *error)
{
    struct lmcs_content link;
    *share = 0;
    if (content->df.payload != LMCS_PAYLOAD_LINKED)
        return LMCS_OK;
    enum lmcs_status status = lmcs_content_get(txn, content->link, &link, error);
    if (status == LMCS_OK)
        *share = lmcs_content_room(&link) / link.df.base_count;
    return status;
}

/* Removes a content with its payload and uses of bases. */
static enum lmcs_status let_go(struct lmcs_txn *txn, struct lmcs_content *content, struct lmcs_release *release,
                               struct lmcs_error *error)
{
    bool found;
    if (release->depth == LMCS_DEEPEST)
        return lmcs_fail(error, LMCS_DAMAGED, 0,
                         "%s: damaged metadata: content %llu rests on more than is ever made to rest on another",
                         txn->pool->path, (unsigned long long)content->id);
    release->depth++;
    release->freed_bytes += lmcs_content_room(content);
    enum lmcs_status status = retire_parts(txn, content, error);
    if (status == LMCS_OK)
        status = lmcs_safety_end(txn, content->id, error);
    if (status == LMCS_OK)
        status = lmcs_root_delete(txn, LMCS_TREE_CONTENTS, (struct lmcs_key_df){content->id, 0}, NULL, error);
    if (status == LMCS_OK)
        status = lmcs_root_delete(txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){0, content->id}, &found, error);
    if (status == LMCS_OK && found) { /* counted when it was recorded */
        uint64_t room = lmcs_content_room(content), share = 0;
        release->later_bytes -= room < release->later_bytes ? room : release->later_bytes;
        status = link_share(txn, content, &share, error);
        release->kept_bytes -= share < release->kept_bytes ? share : release->kept_bytes;
    }
    if (status == LMCS_OK)
        status = lmcs_identity_count(txn, content->df.identity, -1, error);
    if (status == LMCS_OK)
        status = untie_bases(txn, content, release, error);
    if (status == LMCS_OK && content->link != 0)
        status = untie(txn, content, content->link, release, error);
    release->depth--;
    return status;
}

enum lmcs_status lmcs_content_add(struct lmcs_txn *txn, struct lmcs_content *content, struct lmcs_error *error)
{
    if (content->id == 0)
        content->id = txn->root.next_content++;
    enum lmcs_status status = lmcs_content_put(txn, content, error);
    if (status == LMCS_OK)
        status = add_parts(txn, content, error);
    if (status == LMCS_OK)
        status = tie_bases(txn, content, error);
    if (status == LMCS_OK && content->link != 0)
        status = tie(txn, content, content->link, 0, error);
    return status == LMCS_OK ? lmcs_identity_count(txn, content->df.identity, 1, error) : status;
}

enum lmcs_status lmcs_content_run(struct lmcs_txn *txn, uint64_t id, uint64_t identity, struct lmcs_error *error)
{
    struct lmcs_content content;
    enum lmcs_status status = lmcs_content_get(txn, id, &content, error);
    if (status != LMCS_OK)
        return status;
    content.df.runs++;
    status = lmcs_content_put(txn, &content, error);
    return status == LMCS_OK && content.df.identity != identity ? lmcs_identity_count(txn, identity, 1, error) : status;
}

enum lmcs_status lmcs_content_unrun(struct lmcs_txn *txn, uint64_t id, uint64_t identity, uint64_t successor,
                                    struct lmcs_release *release, struct lmcs_error *error)
{
    struct lmcs_content content;
    enum lmcs_status status = lmcs_content_get(txn, id, &content, error);
    if (status == LMCS_OK && content.df.identity != identity)
        status = lmcs_identity_count(txn, identity, -1, error);
    if (status != LMCS_OK)
        return status;
    if (content.df.runs == 0)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: content %llu has too few runs", txn->pool->path,
                         (unsigned long long)id);
    content.df.runs--;
    if (content.df.runs == 0 && content.df.base_uses == 0)
        return let_go(txn, &content, release, error);
    if (content.df.runs == 0) {
        uint64_t share;
        release->later_bytes += lmcs_content_room(&content);
        status = link_share(txn, &content, &share, error);
        release->kept_bytes += share;
        if (status == LMCS_OK)
            status = lmcs_root_put(txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){0, id}, &successor, sizeof successor,
                                   error);
    }
    return status == LMCS_OK ? lmcs_content_put(txn, &content, error) : status;
}

static enum lmcs_status hand_on_from(struct lmcs_txn *txn, uint64_t id, const struct lmcs_content *heir,
                                     struct lmcs_error *error)
{
    struct lmcs_content from;
    enum lmcs_status status = lmcs_content_get(txn, id, &from, error);
    return status == LMCS_OK ? lmcs_parity_hand_on(txn, &from, heir, true, error) : status;
}

/*
 * Requests parity for contents that take over from others with parity: the link that now stores the content; a content
 * with dependents that a link stored; under the policy parity=bases also a new base, since its snapshot may have been
 * examined when nothing rested on it.
 */
static enum lmcs_status hand_on_parity(struct lmcs_txn *txn, const struct lmcs_content *old,
                                       const struct lmcs_content *changed, struct lmcs_error *error)
{
    struct lmcs_content heir;
    enum lmcs_status status = LMCS_OK;
    if (txn->root.trees[LMCS_TREE_SAFETY].count == 0)
        return LMCS_OK;
    if (changed->df.payload == LMCS_PAYLOAD_LINKED) {
        status = lmcs_content_get(txn, changed->link, &heir, error);
        return status == LMCS_OK ? lmcs_parity_hand_on(txn, old, &heir, false, error) : status;
    }
    if (old->df.payload == LMCS_PAYLOAD_LINKED && changed->df.base_uses > 0)
        status = hand_on_from(txn, old->link, changed, error);
    bool rebased = old->df.base_count == 1 && changed->df.base_count == 1 && old->bases[0] != changed->bases[0];
    if (status != LMCS_OK || !rebased)
        return status;
    status = lmcs_content_get(txn, changed->bases[0], &heir, error);
    return status == LMCS_OK ? hand_on_from(txn, old->bases[0], &heir, error) : status;
}

enum lmcs_status lmcs_content_swap(struct lmcs_txn *txn, uint64_t id, const struct lmcs_content *with, bool same_bytes,
                                   struct lmcs_error *error)
{
    struct lmcs_content old, changed;
    struct lmcs_release release = {0};
    enum lmcs_status status = lmcs_content_get(txn, id, &old, error);
    if (status != LMCS_OK)
        return status;
    changed = old;
    changed.df.payload = with->df.payload;
    changed.df.stored_bytes = with->df.stored_bytes;
    changed.df.part_count = with->df.part_count;
    changed.df.base_count = with->df.base_count;
    changed.df.flags = with->df.flags;
    changed.df.output = with->df.payload == LMCS_PAYLOAD_FRAME ? 0 : old.df.output;
    changed.link = with->df.payload == LMCS_PAYLOAD_FRAME ? 0 : old.link;
    memcpy(changed.parts, with->parts, sizeof changed.parts);
    memcpy(changed.bases, with->bases, sizeof changed.bases);
    status = retire_parts(txn, &old, error);
    if (status == LMCS_OK && !same_bytes)
        status = hand_on_parity(txn, &old, &changed, error);
    if (status == LMCS_OK && !same_bytes)
        status = lmcs_safety_renew(txn, id, old.df.stored_bytes, changed.df.stored_bytes, error);
    if (status == LMCS_OK)
        status = lmcs_content_put(txn, &changed, error);
    if (status == LMCS_OK)
        status = add_parts(txn, &changed, error);
    /* New uses come first: old bases may be the same. */
    bool same = old.df.base_count == with->df.base_count &&
                memcmp(old.bases, with->bases, old.df.base_count * sizeof old.bases[0]) == 0;
    if (status == LMCS_OK && !same)
        status = tie_bases(txn, &changed, error);
    if (status == LMCS_OK && changed.link != old.link && changed.link != 0)
        status = tie(txn, &changed, changed.link, 0, error);
    if (status == LMCS_OK && !same)
        status = untie_bases(txn, &old, &release, error);
    return status == LMCS_OK && changed.link != old.link && old.link != 0 ? untie(txn, &old, old.link, &release, error)
                                                                          : status;
}

enum lmcs_status lmcs_content_set_link(struct lmcs_txn *txn, uint64_t id, uint64_t link, uint8_t output,
                                       struct lmcs_error *error)
{
    struct lmcs_content content;
    struct lmcs_release release = {0};
    enum lmcs_status status = lmcs_content_get(txn, id, &content, error);
    if (status != LMCS_OK)
        return status;
    uint64_t old = content.link;
    content.link = link;
    content.df.output = output;
    status = lmcs_content_put(txn, &content, error);
    if (status == LMCS_OK && link != 0)
        status = tie(txn, &content, link, 0, error);
    return status == LMCS_OK && old != 0 ? untie(txn, &content, old, &release, error) : status;
}

enum lmcs_status lmcs_content_bears_links(struct lmcs_txn *txn, const struct lmcs_content *content, bool *bears,
                                          struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    *bears = false;
    if (content->df.base_uses == 0)
        return LMCS_OK;
    enum lmcs_status status =
        lmcs_root_open(&cursor, txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){content->id, 0}, error);
    while (status == LMCS_OK && !*bears && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == content->id) {
        struct lmcs_content dependent;
        status = lmcs_content_get(txn, lmcs_cursor_key(cursor).low, &dependent, error);
        *bears = status == LMCS_OK && dependent.df.payload == LMCS_PAYLOAD_LINK;
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_content_depth(struct lmcs_txn *txn, const struct lmcs_content *content, uint32_t *depth,
                                    struct lmcs_error *error)
{
    struct lmcs_content base = *content;
    *depth = 0;
    while (base.df.base_count > 0) {
        if (++*depth > LMCS_CHAIN_BOUND)
            return lmcs_fail(error, LMCS_DAMAGED, 0,
                             "%s: damaged metadata: content %llu rests on a chain that is "
                             "too long",
                             txn->pool->path, (unsigned long long)content->id);
        enum lmcs_status status = lmcs_content_get(txn, base.bases[0], &base, error);
        if (status != LMCS_OK)
            return status;
    }
    return LMCS_OK;
}
