/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * folder_decode.c - decodes a state that Python wrote (skeleton.py and scalars.py in python/lmcstore/_state).
 *
 * The skeleton is JSON; the leaves follow in its order, packed. Everything may be hostile: each length is compared with
 * what is left, and an attachment is read once.
 */
#include "folder.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define NEWEST         2 /* version of skeletons */
#define LEAVES_AT_ONCE 4096
#define MOST_LEVELS    204 /* of containers in a state, 200, and some in the skeleton */

struct decoder {
    struct cli *cli;
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *chunk; /* of leaves; NULL: none yet */
    const unsigned char *at;
    const unsigned char *end;
    uint64_t leaves; /* that were read */
    uint32_t large;  /* that were read of these */
    const char *fault;
};

static bool fail(struct decoder *decoder, const char *fault)
{
    if (decoder->fault == NULL)
        decoder->fault = fault;
    return false;
}

/* ---- Packed values -------------------------------------------------------------------------------------------- */

/* Bytes that are left to read. */
struct bytes {
    const unsigned char *at;
    const unsigned char *end;
};

static const unsigned char *take(struct bytes *from, uint64_t count)
{
    const unsigned char *at = from->at;
    if (count > (uint64_t)(from->end - from->at))
        return NULL;
    from->at += count;
    return at;
}

static bool take_u32(struct bytes *from, uint32_t *value)
{
    const unsigned char *at = take(from, 4);
    if (at == NULL)
        return false;
    memcpy(value, at, 4);
    return true;
}

static bool take_text(struct bytes *from, const unsigned char **text, uint32_t *count)
{
    return take_u32(from, count) && (*text = take(from, *count)) != NULL;
}

/* An integer in two's complement; null beyond 64 bits. */
static json_t *integer(const unsigned char *at, uint32_t count)
{
    uint64_t value = count > 0 && at[count - 1] >= 0x80 ? UINT64_MAX : 0;
    if (count > sizeof value)
        return json_null();
    memcpy(&value, at, count);
    return json_integer((json_int_t)value);
}

static json_t *real(const unsigned char *at)
{
    double value;
    memcpy(&value, at, sizeof value);
    return isfinite(value) ? json_real(value) : json_null();
}

/* Takes `count` numbers of 8 bytes; `made` NULL: skips them. */
static bool take_numbers(struct bytes *from, unsigned char tag, json_t **made)
{
    uint32_t count;
    const unsigned char *at = take_u32(from, &count) ? take(from, (uint64_t)count * 8) : NULL;
    if (at == NULL || made == NULL)
        return at != NULL;
    *made = json_array();
    for (uint32_t i = 0; i < count; i++, at += 8)
        json_array_append_new(*made, tag == 'd' || tag == 'D' ? real(at) : integer(at, 8));
    return true;
}

/* Takes a value of another type than JSON has. */
static bool take_other(struct bytes *from, unsigned char tag)
{
    static const char chars[] = "?bBhHeiIflLqQdFD", sizes[] = "\1\1\1\2\2\2\4\4\4\10\10\10\10\10\10\20";
    const unsigned char *at = take(from, tag == 'c' ? 16 : 1);
    if (at == NULL || tag == 'c')
        return at != NULL;
    if (tag == 'y' || tag == 'v')
        return take(from, *at + (tag == 'v' ? 4u : 0u)) != NULL;
    const char *found = tag == 'n' && *at != 0 ? strchr(chars, *at) : NULL;
    return found != NULL && take(from, (uint64_t)sizes[found - chars]) != NULL;
}

static bool take_value(struct bytes *from, unsigned depth, json_t **made);

static bool take_items(struct bytes *from, unsigned depth, json_t **made)
{
    uint32_t count;
    bool is_good = depth < MOST_LEVELS && take_u32(from, &count) && count <= (uint64_t)(from->end - from->at);
    if (is_good && made != NULL)
        *made = json_array();
    for (uint32_t i = 0; is_good && i < count; i++) {
        json_t *item = NULL;
        is_good = take_value(from, depth + 1, made != NULL ? &item : NULL);
        if (made != NULL)
            json_array_append_new(*made, item != NULL ? item : json_null());
    }
    return is_good;
}

/* `made` NULL: skips the value. After a failure *made may be set. */
static bool take_value(struct bytes *from, unsigned depth, json_t **made)
{
    const unsigned char *tag = take(from, 1), *at = NULL;
    uint32_t count = 0;
    if (tag == NULL)
        return false;
    switch (*tag) {
    case 'N':
    case 'T':
    case 'F':
        if (made != NULL)
            *made = *tag == 'N' ? json_null() : json_boolean(*tag == 'T');
        return true;
    case 'i':
    case 's':
    case 'b':
    case 'a':
        if (!take_text(from, &at, &count))
            return false;
        if (made != NULL)
            *made = *tag == 'i' ? integer(at, count) : json_stringn_nocheck((const char *)at, count);
        return true;
    case 'f':
        at = take(from, 8);
        if (at != NULL && made != NULL)
            *made = real(at);
        return at != NULL;
    case 't':
    case 'l':
    case 'S':
    case 'z':
        return take_items(from, depth, made);
    case 'q':
    case 'Q':
    case 'd':
    case 'D':
    case 'Z':
        return take_numbers(from, *tag, made);
    default:
        return take_other(from, *tag);
    }
}

/* ---- Leaves --------------------------------------------------------------------------------------------------- */

/* Views an attachment. */
static bool view(struct decoder *decoder, const char *name, struct lmcs_view **opened, struct bytes *bytes)
{
    uint32_t kind = LMCS_ATTACHMENT;
    if (lmcs_view_open(decoder->snapshot, &name, &kind, 1, LMCS_VIEW_VERIFY | LMCS_VIEW_COPY, opened,
                       &decoder->cli->error) != LMCS_OK)
        return fail(decoder, decoder->cli->error.status == LMCS_NOT_FOUND ? "an attachment is missing" : "");
    bytes->at = lmcs_view_data(*opened, 0);
    bytes->end = bytes->at + lmcs_view_entry(*opened, 0)->raw_bytes;
    return true;
}

static bool numbered(struct decoder *decoder, const char *prefix, uint64_t number, struct lmcs_view **opened,
                     struct bytes *bytes)
{
    char name[48];
    snprintf(name, sizeof name, "%s%" PRIu64, prefix, number);
    return view(decoder, name, opened, bytes);
}

/* Reads a value that has an attachment of its own. */
static bool take_large(struct decoder *decoder, json_t **made)
{
    struct bytes from = {decoder->at, decoder->end}, value;
    struct lmcs_view *opened = NULL;
    uint32_t number = 0;
    (void)take(&from, 1);
    if (!take_u32(&from, &number) || number != decoder->large++)
        return fail(decoder, "its large values");
    decoder->at = from.at;
    bool is_good = true;
    if (made != NULL) {
        is_good = numbered(decoder, "lmcstore.value.", number, &opened, &value);
        if (is_good && (!take_value(&value, 0, made) || value.at != value.end))
            is_good = fail(decoder, "a large value");
        if (opened != NULL)
            lmcs_view_close(opened);
    }
    return is_good;
}

static bool take_leaf(struct decoder *decoder, json_t **made)
{
    struct bytes from = {decoder->at, decoder->end};
    if (decoder->leaves % LEAVES_AT_ONCE == 0) {
        if (decoder->chunk != NULL)
            lmcs_view_close(decoder->chunk);
        decoder->chunk = NULL;
        if (from.at != from.end)
            return fail(decoder, "its values");
        if (!numbered(decoder, "lmcstore.values.", decoder->leaves / LEAVES_AT_ONCE, &decoder->chunk, &from))
            return false;
        decoder->at = from.at;
        decoder->end = from.end;
    }
    decoder->leaves++;
    if (from.at != from.end && *from.at == 'R')
        return take_large(decoder, made);
    if (!take_value(&from, 0, made))
        return fail(decoder, "its values");
    decoder->at = from.at;
    return true;
}

/* ---- The skeleton --------------------------------------------------------------------------------------------- */

/* A container's node: the index of its keys (0: none), and of its first child. */
struct form {
    const char *tag;
    size_t keys;
    size_t first;
};

static const struct form *form_of(const json_t *node)
{
    static const struct form forms[] = {{"l", 0, 1}, {"t", 0, 1}, {"d", 1, 2}, {"o", 1, 2}, {"C", 1, 2},
                                        {"O", 1, 2}, {"Q", 0, 2}, {"N", 2, 3}, {"c", 2, 3}, {"D", 2, 3}};
    const char *tag = json_string_value(json_array_get(node, 0));
    for (size_t i = 0; tag != NULL && i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].tag, tag) == 0)
            return &forms[i];
    return NULL;
}

/* Adds a dict's item. A key that is neither text nor an integer is left out. */
static void add_item(json_t *object, const json_t *key, json_t *value)
{
    char number[24];
    const char *text = json_string_value(key);
    snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(key));
    if (text != NULL ? strlen(text) == json_string_length(key) : json_is_integer(key))
        json_object_set_new_nocheck(object, text != NULL ? text : number, value != NULL ? value : json_null());
    else
        json_decref(value);
}

static bool walk(struct decoder *decoder, const json_t *node, unsigned depth, json_t **made);

static bool walk_children(struct decoder *decoder, const json_t *node, const struct form *form, unsigned depth,
                          json_t **made)
{
    const json_t *keys = form->keys != 0 ? json_array_get(node, form->keys) : NULL;
    size_t metadata = form->tag[0] == 'O', count = json_array_size(node) - form->first;
    if (json_array_size(node) < form->first + metadata ||
        (form->keys != 0 && (!json_is_array(keys) || json_array_size(keys) != count - metadata)))
        return fail(decoder, "its skeleton");
    if (made != NULL)
        *made = form->keys != 0 ? json_object() : json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *child = NULL;
        bool keeps = made != NULL && i >= metadata;
        if (!walk(decoder, json_array_get(node, form->first + i), depth + 1, keeps ? &child : NULL)) {
            json_decref(child);
            return false;
        }
        if (keeps && form->keys != 0)
            add_item(*made, json_array_get(keys, i - metadata), child);
        else if (keeps)
            json_array_append_new(*made, child != NULL ? child : json_null());
    }
    return true;
}

/* `made` NULL: passes over the node's leaves. */
static bool walk(struct decoder *decoder, const json_t *node, unsigned depth, json_t **made)
{
    const struct form *form = form_of(node);
    const char *tag = json_string_value(json_array_get(node, 0));
    if (json_is_integer(node) && json_integer_value(node) == 0)
        return take_leaf(decoder, made);
    if (json_is_integer(node))
        return true; /* a tensor */
    if (form != NULL && depth < MOST_LEVELS)
        return walk_children(decoder, node, form, depth, made);
    if (tag != NULL && (strcmp(tag, "E") == 0 || strcmp(tag, "v") == 0))
        return take_leaf(decoder, NULL);
    if (tag != NULL && (strcmp(tag, "T") == 0 || strcmp(tag, "A") == 0 || strcmp(tag, "V") == 0))
        return true;
    return fail(decoder, "its skeleton");
}

/* Makes a dict's keys, each with null. */
static json_t *keys_of(const json_t *node)
{
    const struct form *form = form_of(node);
    json_t *made = json_object();
    const json_t *keys = form != NULL && form->keys != 0 ? json_array_get(node, form->keys) : NULL;
    for (size_t i = 0; i < json_array_size(keys); i++)
        add_item(made, json_array_get(keys, i), NULL);
    return made;
}

static bool walk_root(struct decoder *decoder, const json_t *root, const char *const *wanted, json_t *state)
{
    const json_t *keys = json_array_get(root, 1);
    const char *tag = json_string_value(json_array_get(root, 0));
    size_t left = 0;
    while (wanted[left] != NULL)
        left++;
    if (tag == NULL || strcmp(tag, "d") != 0 || json_array_size(keys) + 2 != json_array_size(root))
        return fail(decoder, "it is no dict");
    for (size_t i = 0; i < json_array_size(keys) && left > 0; i++) {
        const char *key = json_string_value(json_array_get(keys, i));
        const json_t *node = json_array_get(root, i + 2);
        json_t *made = NULL;
        size_t k = 0;
        while (wanted[k] != NULL && (key == NULL || strcmp(wanted[k] + (wanted[k][0] == '*'), key) != 0))
            k++;
        bool keeps = wanted[k] != NULL && wanted[k][0] != '*';
        bool is_good = walk(decoder, node, 0, keeps ? &made : NULL);
        if (wanted[k] != NULL)
            json_object_set_new(state, key, keeps && made != NULL ? made : keeps ? json_null() : keys_of(node));
        left -= wanted[k] != NULL;
        if (!is_good)
            return false;
    }
    return left == 0 || fail(decoder, "its parts");
}

enum lmcs_status cli_state_decode(struct cli *cli, struct lmcs_snapshot *snapshot, const char *const *wanted,
                                  json_t **state)
{
    struct decoder decoder = {.cli = cli, .snapshot = snapshot};
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    struct lmcs_view *opened = NULL;
    struct bytes text = {NULL, NULL};
    *state = json_object();
    bool is_good = view(&decoder, "lmcstore.skeleton", &opened, &text);
    json_t *skeleton =
        is_good ? json_loadb((const char *)text.at, (size_t)(text.end - text.at), JSON_ALLOW_NUL, NULL) : NULL;
    bool is_newer = json_integer_value(json_object_get(skeleton, "lmcstore")) > NEWEST;
    if (is_good)
        is_good = !is_newer && walk_root(&decoder, json_object_get(skeleton, "root"), wanted, *state);
    json_decref(skeleton);
    if (opened != NULL)
        lmcs_view_close(opened);
    if (decoder.chunk != NULL)
        lmcs_view_close(decoder.chunk);
    if (is_newer)
        return cli_fail(cli, LMCS_UNSUPPORTED, 0,
                        "%.200s@%" PRIu64 ": a newer lmcstore wrote its state: update lmc-store", info->shelf,
                        info->number);
    if (is_good || *decoder.fault == '\0')
        return is_good ? LMCS_OK : cli->error.status;
    return cli_fail(cli, LMCS_DAMAGED, 0,
                    "%.200s@%" PRIu64 ": the record of a run's snapshot is damaged (%s), or this is no run's snapshot",
                    info->shelf, info->number, decoder.fault);
}
