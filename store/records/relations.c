/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/relations.c - optimizers' states.
 *
 * Relations name tensors, to survive dump and restore. Input may be hostile: lengths are checked, and names end within
 * their attachment.
 */
#include "records/relations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

#define GROUPS_TO_TRY  64u /* newest ones, when searching a relation's group */
#define CONSTANT_COUNT 9u

bool lmcs_is_own(uint32_t kind, const char *name)
{
    return kind == LMCS_ATTACHMENT &&
           (strcmp(name, LMCS_META_NAME) == 0 || strcmp(name, LMCS_TAGS_NAME) == 0 ||
            strcmp(name, LMCS_RELATIONS_NAME) == 0 || strcmp(name, LMCS_CONSTANTS_NAME) == 0);
}

static struct lmc_link_hints hints_of(const struct lmcs_relation *relation)
{
    return (struct lmc_link_hints){.optimizer = relation->optimizer,
                                   .flags = relation->flags,
                                   .step = relation->step,
                                   .lr = relation->lr,
                                   .weight_decay = relation->weight_decay,
                                   .beta1 = relation->beta1,
                                   .beta2 = relation->beta2,
                                   .eps = relation->eps,
                                   .momentum = relation->momentum,
                                   .dampening = relation->dampening,
                                   .scale = relation->scale};
}

static void constants_of(const struct lmc_link_hints *hints, double constants[CONSTANT_COUNT])
{
    const double all[CONSTANT_COUNT] = {hints->step, hints->lr,       hints->weight_decay, hints->beta1, hints->beta2,
                                        hints->eps,  hints->momentum, hints->dampening,    hints->scale};
    memcpy(constants, all, sizeof all);
}

static bool same_hints(const struct lmc_link_hints *a, const struct lmc_link_hints *b)
{
    double x[CONSTANT_COUNT], y[CONSTANT_COUNT];
    constants_of(a, x);
    constants_of(b, y);
    return a->optimizer == b->optimizer && a->flags == b->flags && memcmp(x, y, sizeof x) == 0;
}

static enum lmcs_status check(const struct lmcs_relation *relation, struct lmcs_error *error)
{
    struct lmc_link_hints hints = hints_of(relation);
    double constants[CONSTANT_COUNT];
    uint32_t arrays = lmc_link_arrays(relation->optimizer, relation->flags);
    if (arrays == 0)
        return lmcs_fail(error, LMCS_INVALID, 0, "a relation: there is no optimizer %u with flags %u",
                         relation->optimizer, relation->flags);
    if (relation->name_count != arrays)
        return lmcs_fail(error, LMCS_INVALID, 0, "a relation of this optimizer has %u tensors, not %u", arrays,
                         relation->name_count);
    for (uint32_t i = 0; i < arrays; i++)
        if (!lmcs_name_is_sound(relation->names[i]))
            return lmcs_fail(error, LMCS_INVALID, 0, "a relation: tensor %u has no name that a tensor may have", i);
    constants_of(&hints, constants);
    for (size_t i = 0; i < CONSTANT_COUNT; i++)
        if (!isfinite(constants[i]))
            return lmcs_fail(error, LMCS_INVALID, 0, "a relation: its constants must be finite numbers");
    return LMCS_OK;
}

static enum lmcs_status find_group(struct lmcs_relations *relations, const struct lmc_link_hints *hints,
                                   uint32_t *group, struct lmcs_error *error)
{
    for (size_t i = relations->group_count; i-- > 0 && relations->group_count - i <= GROUPS_TO_TRY;)
        if (same_hints(&relations->groups[i], hints)) {
            *group = (uint32_t)i;
            return LMCS_OK;
        }
    if (relations->group_count == UINT32_MAX ||
        !lmcs_grow(&relations->groups, &relations->group_capacity, relations->group_count, sizeof *relations->groups))
        return lmcs_fail_memory(error);
    *group = (uint32_t)relations->group_count;
    relations->groups[relations->group_count++] = *hints;
    return LMCS_OK;
}

static enum lmcs_status keep_names(struct lmcs_relations *relations, const struct lmcs_relation *relation,
                                   struct lmcs_related *item, struct lmcs_error *error)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < relation->name_count; i++)
        bytes += strlen(relation->names[i]) + 1;
    char *text = malloc(bytes);
    if (text == NULL ||
        !lmcs_grow(&relations->texts, &relations->text_capacity, relations->text_count, sizeof *relations->texts)) {
        free(text);
        return lmcs_fail_memory(error);
    }
    relations->texts[relations->text_count++] = text;
    for (uint32_t i = 0; i < relation->name_count; i++) {
        size_t n = strlen(relation->names[i]) + 1;
        item->names[i] = memcpy(text, relation->names[i], n);
        text += n;
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_relations_add(struct lmcs_relations *relations, const struct lmcs_relation *relation,
                                    struct lmcs_error *error)
{
    struct lmcs_related item = {.name_count = (uint8_t)relation->name_count};
    enum lmcs_status status = check(relation, error);
    if (status != LMCS_OK)
        return status;
    const struct lmc_link_hints hints = hints_of(relation);
    if (!lmcs_grow(&relations->items, &relations->capacity, relations->count, sizeof item))
        return lmcs_fail_memory(error);
    status = keep_names(relations, relation, &item, error);
    if (status == LMCS_OK)
        status = find_group(relations, &hints, &item.group, error);
    if (status == LMCS_OK)
        relations->items[relations->count++] = item;
    return status;
}

void lmcs_relations_free(struct lmcs_relations *relations)
{
    for (size_t i = 0; i < relations->text_count; i++)
        free(relations->texts[i]);
    free(relations->texts);
    free(relations->items);
    free(relations->groups);
    *relations = (struct lmcs_relations){0};
}

/* ---- As they are stored ---- */

static uint64_t item_bytes(const struct lmcs_related *item)
{
    uint64_t bytes = sizeof(struct lmcs_related_df);
    for (size_t i = 0; i < item->name_count; i++)
        bytes += strlen(item->names[i]);
    return bytes;
}

static unsigned char *put(unsigned char *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return to + bytes;
}

static void encode_items(const struct lmcs_relations *relations, unsigned char *to)
{
    const struct lmcs_relations_df head = {LMCS_RELATIONS_MAGIC, 1, relations->count};
    to = put(to, &head, sizeof head);
    for (size_t k = 0; k < relations->count; k++) {
        const struct lmcs_related *item = &relations->items[k];
        struct lmcs_related_df df = {.group = item->group, .name_count = item->name_count};
        for (size_t i = 0; i < item->name_count; i++)
            df.name_bytes[i] = (uint16_t)strlen(item->names[i]);
        to = put(to, &df, sizeof df);
        for (size_t i = 0; i < item->name_count; i++)
            to = put(to, item->names[i], df.name_bytes[i]);
    }
}

static void encode_groups(const struct lmcs_relations *relations, unsigned char *to)
{
    const struct lmcs_relations_df head = {LMCS_CONSTANTS_MAGIC, 1, relations->group_count};
    to = put(to, &head, sizeof head);
    for (size_t k = 0; k < relations->group_count; k++) {
        const struct lmc_link_hints *hints = &relations->groups[k];
        struct lmcs_constants_df df = {.optimizer = hints->optimizer, .flags = hints->flags};
        constants_of(hints, df.constants);
        to = put(to, &df, sizeof df);
    }
}

enum lmcs_status lmcs_relations_encode(const struct lmcs_relations *relations, void **grouping,
                                       uint64_t *grouping_bytes, void **constants, uint64_t *constants_bytes,
                                       struct lmcs_error *error)
{
    *grouping_bytes = *constants_bytes = sizeof(struct lmcs_relations_df);
    for (size_t i = 0; i < relations->count; i++)
        *grouping_bytes += item_bytes(&relations->items[i]);
    *constants_bytes += relations->group_count * sizeof(struct lmcs_constants_df);
    if (*grouping_bytes > LMCS_RELATIONS_MOST_BYTES || *constants_bytes > LMCS_RELATIONS_MOST_BYTES)
        return lmcs_fail(error, LMCS_INVALID, 0, "the relations of a snapshot take more than a GiB");
    *grouping = malloc(*grouping_bytes);
    *constants = malloc(*constants_bytes);
    if (*grouping == NULL || *constants == NULL) {
        free(*grouping);
        free(*constants);
        *grouping = *constants = NULL;
        return lmcs_fail_memory(error);
    }
    encode_items(relations, *grouping);
    encode_groups(relations, *constants);
    return LMCS_OK;
}

/* ---- Reading them ---- */

static bool decode_head(const void *data, uint64_t bytes, uint32_t magic, uint64_t least, uint64_t *count)
{
    struct lmcs_relations_df head;
    if (bytes < sizeof head)
        return false;
    memcpy(&head, data, sizeof head);
    *count = head.count;
    return head.magic == magic && head.version == 1 && head.count <= (bytes - sizeof head) / least;
}

static bool decode_groups(const unsigned char *data, uint64_t bytes, struct lmcs_relations *relations)
{
    uint64_t count;
    if (!decode_head(data, bytes, LMCS_CONSTANTS_MAGIC, sizeof(struct lmcs_constants_df), &count) ||
        bytes != sizeof(struct lmcs_relations_df) + count * sizeof(struct lmcs_constants_df))
        return false;
    relations->groups = calloc(count + 1, sizeof *relations->groups);
    if (relations->groups == NULL)
        return false;
    for (uint64_t k = 0; k < count; k++) {
        struct lmcs_constants_df df;
        memcpy(&df, data + sizeof(struct lmcs_relations_df) + k * sizeof df, sizeof df);
        relations->groups[relations->group_count++] = (struct lmc_link_hints){
            df.optimizer,    df.flags,        df.constants[0], df.constants[1], df.constants[2], df.constants[3],
            df.constants[4], df.constants[5], df.constants[6], df.constants[7], df.constants[8]};
    }
    return true;
}

/* `text` has room for all bytes of the attachment: names' ends take less. */
static bool decode_items(const unsigned char *data, uint64_t bytes, char *text, struct lmcs_relations *relations)
{
    uint64_t count, at = sizeof(struct lmcs_relations_df);
    if (!decode_head(data, bytes, LMCS_RELATIONS_MAGIC, sizeof(struct lmcs_related_df), &count))
        return false;
    relations->items = calloc(count + 1, sizeof *relations->items);
    if (relations->items == NULL)
        return false;
    for (uint64_t k = 0; k < count; k++) {
        struct lmcs_related *item = &relations->items[relations->count];
        struct lmcs_related_df df;
        if (bytes - at < sizeof df)
            return false;
        memcpy(&df, data + at, sizeof df);
        at += sizeof df;
        if (df.name_count > LMC_MAX_BASES || df.group >= relations->group_count ||
            df.name_count != lmc_link_arrays(relations->groups[df.group].optimizer, relations->groups[df.group].flags))
            return false;
        item->group = df.group;
        item->name_count = df.name_count;
        for (size_t i = 0; i < df.name_count; i++) {
            if (bytes - at < df.name_bytes[i])
                return false;
            memcpy(text, data + at, df.name_bytes[i]);
            text[df.name_bytes[i]] = '\0';
            item->names[i] = text;
            if (strlen(text) != df.name_bytes[i] || !lmcs_name_is_sound(text))
                return false;
            text += df.name_bytes[i] + 1u;
            at += df.name_bytes[i];
        }
        relations->count++;
    }
    return at == bytes;
}

enum lmcs_status lmcs_relations_decode(const void *grouping, uint64_t grouping_bytes, const void *constants,
                                       uint64_t constants_bytes, struct lmcs_relations *relations,
                                       struct lmcs_error *error)
{
    *relations = (struct lmcs_relations){.texts = calloc(1, sizeof(char *))};
    char *text = malloc(grouping_bytes + 1);
    if (relations->texts == NULL || text == NULL) {
        free(relations->texts);
        free(text);
        return lmcs_fail_memory(error);
    }
    relations->texts[0] = text;
    relations->text_count = relations->text_capacity = 1;
    if (decode_groups(constants, constants_bytes, relations) && decode_items(grouping, grouping_bytes, text, relations))
        return LMCS_OK;
    lmcs_relations_free(relations);
    return lmcs_fail(error, LMCS_DAMAGED, 0, "the relations of a snapshot are not what was written");
}
