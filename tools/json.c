/* SPDX-License-Identifier: BSD-3-Clause */
/* json.c - JSON for scripts: snapshots, errors, and values that JSON can't represent. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *cli_json_text(const char *text)
{
    json_t *json = json_string(text);
    if (json != NULL)
        return json;
    char *copy = malloc(3 * strlen(text) + 1);
    char *to = copy;
    for (const char *at = text; copy != NULL && *at != '\0'; at++)
        if ((unsigned char)*at < 0x80) {
            *to++ = *at;
        } else {
            memcpy(to, "\xEF\xBF\xBD", 3);
            to += 3;
        }

    json = copy != NULL ? json_stringn(copy, (size_t)(to - copy)) : NULL;
    free(copy);
    return json;
}

json_t *cli_json_lines(const char *lines)
{
    json_t *list = json_array();
    for (const char *end; (end = strchr(lines, '\n')) != NULL; lines = end + 1) {
        char *line = strndup(lines, (size_t)(end - lines));
        json_array_append_new(list, cli_json_text(line != NULL ? line : ""));
        free(line);
    }
    return list;
}

json_t *cli_json_real(double value)
{
    if (isnan(value))
        return json_string("NaN");
    if (isinf(value))
        return json_string(value > 0 ? "Infinity" : "-Infinity");
    return json_real(value);
}

json_t *cli_json_u64(uint64_t value)
{
    return value > INT64_MAX ? json_null() : json_integer((json_int_t)value);
}

void cli_json_set(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value != NULL ? value : json_null()) != 0) {
        fputs("lmc-store: out of memory\n", stderr);
        exit(CLI_FAILED);
    }
}

json_t *cli_json_error(const struct lmcs_error *error)
{
    json_t *json = json_object();
    cli_json_set(json, "status", cli_json_text(lmcs_status_name(error->status)));
    cli_json_set(json, "message", cli_json_text(error->message));
    cli_json_set(json, "errno", json_integer(error->system_errno));
    if (error->status == LMCS_FULL) {
        cli_json_set(json, "bytes_needed", cli_json_u64(error->bytes_needed));
        cli_json_set(json, "bytes_free", cli_json_u64(error->bytes_free));
    }
    return json;
}

static bool add_tag(void *context, const char *tag)
{
    json_array_append_new(context, cli_json_text(tag));
    return true;
}

static json_t *metrics_json(const struct lmcs_snapshot_info *info)
{
    json_t *json = json_object();
    for (size_t i = 0; i < info->metric_count; i++)
        cli_json_set(json, info->metrics[i].name, cli_json_real(info->metrics[i].value));
    return json;
}

/* Whether the text has more levels than a snapshot accepts: parsers limit them. */
static bool is_deep(const char *text)
{
    unsigned levels = 0;
    bool is_string = false;
    for (; *text != '\0' && levels <= LMCS_MAX_META_LEVELS; text++)
        if (*text == '\\' && is_string && text[1] != '\0')
            text++;
        else if (*text == '"')
            is_string = !is_string;
        else if (!is_string)
            levels += (*text == '{' || *text == '[') - (unsigned)(*text == '}' || *text == ']');

    return levels > LMCS_MAX_META_LEVELS;
}

/* Returns metadata as JSON; as text if it is too deep or unreadable by jansson (integers above 64 bits). */
static json_t *meta_json(const char *text)
{
    json_t *json = is_deep(text) ? NULL : json_loads(text, JSON_DECODE_ANY, NULL);
    return json != NULL ? json : cli_json_text(text);
}

static void set_storage(json_t *json, const struct cli_sizes *sizes)
{
    const struct lmcs_snapshot_storage *storage = &sizes->storage;
    cli_json_set(json, "stored_bytes", cli_json_u64(storage->stored_bytes));
    cli_json_set(json, "ratio",
                 storage->stored_bytes != 0 ? json_real((double)sizes->raw_bytes / (double)storage->stored_bytes)
                                            : NULL);
    cli_json_set(json, "raw_contents", cli_json_u64(storage->raw_contents));
    cli_json_set(json, "delta_contents", cli_json_u64(storage->delta_contents));
    cli_json_set(json, "keyframe_contents", cli_json_u64(storage->keyframe_contents));
    cli_json_set(json, "link_contents", cli_json_u64(storage->link_contents));
    cli_json_set(json, "longest_chain", cli_json_u64(storage->longest_chain));
    cli_json_set(json, "longest_line", cli_json_u64(storage->longest_line));
    cli_json_set(json, "links_note", storage->links_note != NULL ? cli_json_text(storage->links_note) : NULL);
}

/* Describes a snapshot without its sizes. */
static enum lmcs_status head_json(struct cli *cli, struct lmcs_snapshot *snapshot, json_t **json)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    json_t *tags = json_array();
    enum lmcs_status status = lmcs_snapshot_tags(snapshot, add_tag, tags, &cli->error);
    if (status != LMCS_OK) {
        json_decref(tags);
        return status;
    }
    *json = json_object();
    cli_json_set(*json, "shelf", cli_json_text(info->shelf));
    cli_json_set(*json, "number", cli_json_u64(info->number));
    cli_json_set(*json, "step", info->step == LMCS_NO_STEP ? NULL : json_integer(info->step));
    cli_json_set(*json, "time", json_real((double)info->time_ns / 1e9));
    cli_json_set(*json, "time_utc", cli_json_text(cli_time(info->time_ns).text));
    cli_json_set(*json, "parent", info->parent != 0 ? cli_json_u64(info->parent) : NULL);
    cli_json_set(*json, "tags", tags);
    cli_json_set(*json, "metrics", metrics_json(info));
    cli_json_set(*json, "meta", meta_json(info->meta_json));
    return LMCS_OK;
}

/* Adds the sizes; of a run's snapshot also what it lacks. */
static void set_sizes(const struct cli *cli, json_t *json, const struct cli_sizes *sizes)
{
    cli_json_set(json, "tensors", cli_json_u64(sizes->tensor_count));
    cli_json_set(json, "raw_bytes", cli_json_u64(sizes->raw_bytes));
    cli_json_set(json, "remote", *sizes->remote != '\0' ? cli_json_text(sizes->remote) : NULL);
    if (cli->folder != NULL)
        cli_json_set(json, "lacks", *sizes->lacks != '\0' ? cli_json_text(sizes->lacks) : NULL);
}

enum lmcs_status cli_json_snapshot_head(struct cli *cli, struct lmcs_snapshot *snapshot, const struct cli_sizes *sizes,
                                        json_t **json)
{
    enum lmcs_status status = head_json(cli, snapshot, json);
    if (status == LMCS_OK)
        set_sizes(cli, *json, sizes);
    return status;
}

enum lmcs_status cli_json_sized(struct cli *cli, struct lmcs_snapshot *snapshot, const struct cli_sizes *sizes,
                                json_t **json)
{
    enum lmcs_status status = cli_json_snapshot_head(cli, snapshot, sizes, json);
    if (status == LMCS_OK)
        set_storage(*json, sizes);
    return status;
}

enum lmcs_status cli_json_snapshot(struct cli *cli, struct lmcs_snapshot *snapshot, json_t **json)
{
    struct cli_sizes sizes;
    enum lmcs_status status = cli_sizes(cli, snapshot, 0, &sizes);
    return status == LMCS_OK ? cli_json_sized(cli, snapshot, &sizes, json) : status;
}
