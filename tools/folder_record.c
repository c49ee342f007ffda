/* SPDX-License-Identifier: BSD-3-Clause */
/* folder_record.c - reads and checks the record of a run's snapshot (python/lmcstore/_folder/record.py). */
#include "folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"

#define HEAD       "lmcstore_run"
#define VERSION    1
#define MOST_COUNT ((json_int_t)1 << 62)

static enum lmcs_status damaged(struct cli *cli, const struct cli_record *record, const char *what)
{
    return cli_fail(cli, LMCS_DAMAGED, 0, "%.400s: the record of a run's snapshot is damaged (%s)", record->address,
                    what);
}

static bool is_count(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) < MOST_COUNT;
}

/* A text without NUL; NULL: it is none. */
static const char *text_of(const json_t *value)
{
    const char *text = json_string_value(value);
    return text != NULL && strlen(text) == json_string_length(value) ? text : NULL;
}

static bool take_bytes(const json_t *value, unsigned char *bytes, size_t count)
{
    if (!json_is_string(value) || json_string_length(value) != count)
        return false;
    memcpy(bytes, json_string_value(value), count);
    return true;
}

/* ---- Parts ---------------------------------------------------------------------------------------------------- */

static bool take_part(const char *rank, const json_t *value, struct cli_part *part)
{
    char *end = NULL;
    part->rank = strtoull(rank, &end, 10);
    if (*rank < '0' || *rank > '9' || *end != '\0' || part->rank >= (uint64_t)MOST_COUNT || json_array_size(value) != 4)
        return false;
    const char *file = part->file = text_of(json_array_get(value, 1));
    const json_t *number = json_array_get(value, 2);
    if (file == NULL || *file == '\0' || strchr(file, '/') != NULL || strcmp(file, ".") == 0 || strcmp(file, "..") == 0)
        return false;
    if (!is_count(number) || json_integer_value(number) == 0)
        return false;
    part->number = (uint64_t)json_integer_value(number);
    return take_bytes(json_array_get(value, 0), part->uuid, sizeof part->uuid) &&
           take_bytes(json_array_get(value, 3), part->group, sizeof part->group);
}

static int by_rank(const void *left, const void *right)
{
    uint64_t l = ((const struct cli_part *)left)->rank, r = ((const struct cli_part *)right)->rank;
    return l < r ? -1 : l > r;
}

static enum lmcs_status take_parts(struct cli *cli, struct cli_record *record, json_t *head)
{
    json_t *version = json_object_get(head, "version"), *ranks = json_object_get(head, "ranks"), *value;
    const char *rank;
    if (json_is_integer(version) && json_integer_value(version) > VERSION)
        return cli_fail(cli, LMCS_UNSUPPORTED, 0,
                        "%.400s: the record has version %" JSON_INTEGER_FORMAT "; this lmc-store reads %d: update it",
                        record->address, json_integer_value(version), VERSION);
    if (!json_is_integer(version) || json_integer_value(version) != VERSION || !json_is_object(ranks) ||
        !is_count(json_object_get(head, "world_size")))
        return damaged(cli, record, "its head");
    record->parts = calloc(json_object_size(ranks) + 1, sizeof *record->parts);
    if (record->parts == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    json_object_foreach(
        ranks, rank,
        value) if (!take_part(rank, value, &record->parts[record->part_count++])) return damaged(cli, record,
                                                                                                 "its ranks");
    qsort(record->parts, record->part_count, sizeof *record->parts, by_rank);
    return LMCS_OK;
}

/* ---- Tensors -------------------------------------------------------------------------------------------------- */

/* The numbers of the layout that are left. */
struct layout {
    const uint64_t *at;
    uint64_t left;
};

static const uint64_t *take(struct layout *layout, uint64_t count)
{
    const uint64_t *at = layout->at;
    if (count > layout->left)
        return NULL;
    layout->at += count;
    layout->left -= count;
    return at;
}

static bool take_box(struct layout *layout, const struct cli_record *record, const struct cli_tensor *tensor,
                     struct cli_box *box)
{
    const uint64_t *numbers = take(layout, 1 + 2 * (uint64_t)tensor->ndim);
    if (numbers == NULL)
        return false;
    struct cli_part wanted = {.rank = numbers[0]};
    const struct cli_part *part = bsearch(&wanted, record->parts, record->part_count, sizeof *record->parts, by_rank);
    *box = (struct cli_box){.name = tensor->name, .offsets = numbers + 1, .sizes = numbers + 1 + tensor->ndim};
    for (uint32_t i = 0; i < tensor->ndim; i++)
        if (box->sizes[i] > tensor->shape[i] || box->offsets[i] > tensor->shape[i] - box->sizes[i])
            return false;
    box->part = part != NULL ? (size_t)(part - record->parts) : 0;
    return part != NULL && lmcs_shape_bytes(tensor->dtype, tensor->ndim, box->sizes, &box->bytes);
}

/* `boxes`: room for as many as the layout may have. */
static bool take_tensor(struct layout *layout, struct cli_record *record, struct cli_tensor *tensor,
                        struct cli_box *boxes)
{
    const uint64_t *ndim = take(layout, 1), *count;
    if (ndim == NULL || *ndim > LMCS_MAX_DIMS)
        return false;
    tensor->ndim = (uint32_t)*ndim;
    tensor->shape = take(layout, *ndim);
    count = tensor->shape != NULL ? take(layout, 1) : NULL;
    if (count == NULL || *count > layout->left)
        return false;
    if (!lmcs_shape_bytes(tensor->dtype, tensor->ndim, tensor->shape, &tensor->raw_bytes))
        return false;
    tensor->boxes = boxes;
    for (; tensor->box_count < *count; tensor->box_count++)
        if (!take_box(layout, record, tensor, &boxes[tensor->box_count]))
            return false;
    return !__builtin_add_overflow(record->raw_bytes, tensor->raw_bytes, &record->raw_bytes);
}

static enum lmcs_status take_layout(struct cli *cli, struct cli_record *record, const json_t *data)
{
    size_t bytes = json_string_length(data), count = 0;
    if (!json_is_string(data) || bytes % sizeof(uint64_t) != 0)
        return damaged(cli, record, "its layout");
    record->layout = malloc(bytes + 1);
    record->boxes = calloc(bytes / sizeof(uint64_t) + 1, sizeof *record->boxes);
    if (record->layout == NULL || record->boxes == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    memcpy(record->layout, json_string_value(data), bytes);
    struct layout layout = {record->layout, bytes / sizeof(uint64_t)};
    for (size_t i = 0; i < record->tensor_count; i++) {
        if (!take_tensor(&layout, record, &record->tensors[i], record->boxes + count))
            return damaged(cli, record, "its layout");
        count += record->tensors[i].box_count;
    }
    record->box_count = count;
    return layout.left == 0 ? LMCS_OK : damaged(cli, record, "its layout");
}

/* Takes the names of boxes that are not stored by their tensor's. */
static enum lmcs_status take_stored(struct cli *cli, struct cli_record *record, json_t *stored)
{
    json_t *one;
    size_t i;
    json_array_foreach(stored, i, one)
    {
        const json_t *tensor = json_array_get(one, 0), *box = json_array_get(one, 1);
        const char *name = text_of(json_array_get(one, 2));
        if (name == NULL || !is_count(tensor) || !is_count(box))
            return damaged(cli, record, "its stored names");
        uint64_t at = (uint64_t)json_integer_value(tensor), which = (uint64_t)json_integer_value(box);
        if (at >= record->tensor_count || which >= record->tensors[at].box_count)
            return damaged(cli, record, "its stored names");
        record->boxes[(size_t)(record->tensors[at].boxes - record->boxes) + which].name = name;
    }
    return json_is_array(stored) ? LMCS_OK : damaged(cli, record, "its stored names");
}

/* The names that are neither opaque objects nor values are tensors. */
static enum lmcs_status take_names(struct cli *cli, struct cli_record *record, json_t *dtypes)
{
    json_t *names = json_object_get(record->state, "names"), *opaque = json_object_get(record->state, "opaque");
    json_t *values = json_object_get(record->state, "values"), *name;
    size_t i;
    if (!json_is_array(names) || !json_is_object(opaque) || !json_is_array(dtypes))
        return damaged(cli, record, "its names");
    record->opaque = json_object_size(opaque);
    record->values = json_object_size(values);
    record->tensors = calloc(json_array_size(names) + 1, sizeof *record->tensors);
    if (record->tensors == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    json_array_foreach(names, i, name)
    {
        const char *text = text_of(name);
        if (text == NULL)
            return damaged(cli, record, "its names");
        if (json_object_get(opaque, text) != NULL || json_object_get(values, text) != NULL)
            continue;
        const char *dtype = text_of(json_array_get(dtypes, record->tensor_count));
        struct cli_tensor *tensor = &record->tensors[record->tensor_count++];
        *tensor = (struct cli_tensor){.name = text, .dtype = dtype != NULL ? lmc_dtype_from_name(dtype) : 0};
        if (tensor->dtype == 0)
            return damaged(cli, record, "its dtypes");
    }
    return json_array_size(dtypes) == record->tensor_count ? LMCS_OK : damaged(cli, record, "its dtypes");
}

static int by_tensor_name(const void *left, const void *right)
{
    return strcmp((*(const struct cli_tensor *const *)left)->name, (*(const struct cli_tensor *const *)right)->name);
}

static enum lmcs_status sort_names(struct cli *cli, struct cli_record *record)
{
    record->by_name = calloc(record->tensor_count + 1, sizeof *record->by_name);
    if (record->by_name == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    for (size_t i = 0; i < record->tensor_count; i++)
        record->by_name[i] = &record->tensors[i];
    qsort(record->by_name, record->tensor_count, sizeof *record->by_name, by_tensor_name);
    for (size_t i = 1; i < record->tensor_count; i++)
        if (strcmp(record->by_name[i - 1]->name, record->by_name[i]->name) == 0)
            return damaged(cli, record, "its names");
    return LMCS_OK;
}

const struct cli_tensor *cli_record_find(const struct cli_record *record, const char *name)
{
    const struct cli_tensor wanted = {.name = name}, *key = &wanted, **found;
    found = bsearch(&key, record->by_name, record->tensor_count, sizeof *record->by_name, by_tensor_name);
    return found != NULL ? *found : NULL;
}

static enum lmcs_status begin(struct cli *cli, struct lmcs_snapshot *snapshot, const char *const *wanted,
                              struct cli_record *record)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    *record = (struct cli_record){.shelf = info->shelf};
    snprintf(record->address, sizeof record->address, "%s@%" PRIu64, info->shelf, info->number);
    enum lmcs_status status = cli_state_decode(cli, snapshot, wanted, &record->state);
    return status == LMCS_OK ? take_parts(cli, record, json_object_get(record->state, wanted[0])) : status;
}

enum lmcs_status cli_record_head(struct cli *cli, struct lmcs_snapshot *snapshot, struct cli_record *record)
{
    static const char *const wanted[] = {HEAD, NULL};
    return begin(cli, snapshot, wanted, record);
}

enum lmcs_status cli_record_read(struct cli *cli, struct lmcs_snapshot *snapshot, struct cli_record *record)
{
    static const char *const wanted[] = {HEAD, "names", "tensors", "opaque", "*values", NULL};
    enum lmcs_status status = begin(cli, snapshot, wanted, record);
    json_t *tensors = json_object_get(record->state, "tensors");
    if (status == LMCS_OK)
        status = take_names(cli, record, json_object_get(tensors, "dtypes"));
    if (status == LMCS_OK)
        status = take_layout(cli, record, json_object_get(tensors, "layout"));
    if (status == LMCS_OK)
        status = take_stored(cli, record, json_object_get(tensors, "stored"));
    return status == LMCS_OK ? sort_names(cli, record) : status;
}

enum lmcs_status cli_record_at(struct cli *cli, const char *shelf, uint64_t number, struct cli_record *record)
{
    struct lmcs_snapshot *snapshot = NULL;
    char which[24];
    snprintf(which, sizeof which, "%" PRIu64, number);
    enum lmcs_status status = lmcs_snapshot_find(cli->pool, shelf, which, &snapshot, &cli->error);
    if (status == LMCS_OK)
        status = cli_record_head(cli, snapshot, record);
    record->shelf = shelf;
    lmcs_snapshot_close(snapshot);
    return status;
}

void cli_record_free(struct cli_record *record)
{
    free(record->parts);
    free(record->tensors);
    free(record->boxes);
    free(record->by_name);
    free(record->layout);
    json_decref(record->state);
    *record = (struct cli_record){.parts = NULL};
}
