/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/meta.c - a snapshot's metrics and metadata as one JSON text: {"metrics":{...},"meta":{...}}.
 *
 * The user's object is kept letter by letter. Metrics without JSON numbers are "NaN", "Infinity" and "-Infinity".
 */
#include "records/meta.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *metric_value(double value)
{
    if (isnan(value))
        return json_string("NaN");
    if (isinf(value))
        return json_string(value > 0 ? "Infinity" : "-Infinity");
    return json_real(value);
}

static bool metric_number(const json_t *value, double *number)
{
    const char *text = json_string_value(value);
    if (json_is_number(value))
        *number = json_number_value(value);
    else if (text != NULL && strcmp(text, "NaN") == 0)
        *number = NAN;
    else if (text != NULL && strcmp(text, "Infinity") == 0)
        *number = INFINITY;
    else if (text != NULL && strcmp(text, "-Infinity") == 0)
        *number = -INFINITY;
    else
        return false;
    return true;
}

static bool is_deeper(json_t *value, unsigned levels)
{
    const char *key;
    json_t *child;
    size_t i;
    if (!json_is_object(value) && !json_is_array(value))
        return false;
    if (levels == 0)
        return true;
    json_object_foreach(value, key, child)
    {
        if (is_deeper(child, levels - 1))
            return true;
    }
    json_array_foreach(value, i, child)
    {
        if (is_deeper(child, levels - 1))
            return true;
    }
    return false;
}

/* Deeply nested JSON overflows the stack of other readers, such as Python's. */
static enum lmcs_status check_meta(const char *text, struct lmcs_error *error)
{
    json_error_t why;
    json_t *meta = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    bool is_object = json_is_object(meta), is_deep = is_deeper(meta, LMCS_MAX_META_LEVELS);
    json_decref(meta);
    if (meta == NULL)
        return lmcs_fail(error, LMCS_INVALID, 0, "the metadata is not JSON: %.160s (at byte %d)", why.text,
                         why.position);
    if (is_deep)
        return lmcs_fail(error, LMCS_INVALID, 0, "the metadata is nested too deeply: %d levels are possible",
                         LMCS_MAX_META_LEVELS);
    return is_object ? LMCS_OK : lmcs_fail(error, LMCS_INVALID, 0, "the metadata must be a JSON object");
}

enum lmcs_status lmcs_meta_encode(const struct lmcs_commit_options *options, char **text, struct lmcs_error *error)
{
    const char *meta = options->meta_json == NULL ? "{}" : options->meta_json;
    enum lmcs_status status = check_meta(meta, error);
    if (status != LMCS_OK)
        return status;
    json_t *metrics = json_object();
    char *dumped = NULL;
    status = metrics == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < options->metric_count; i++) {
        const struct lmcs_metric *metric = &options->metrics[i];
        if (!lmcs_name_is_sound(metric->name) || json_object_get(metrics, metric->name) != NULL)
            status = lmcs_fail(error, LMCS_INVALID, 0, "metric \"%.64s\": its name is not valid, or given twice",
                               metric->name == NULL ? "" : metric->name);
        else if (json_object_set_new(metrics, metric->name, metric_value(metric->value)) != 0)
            status = lmcs_fail_memory(error);
    }
    if (status == LMCS_OK && (dumped = json_dumps(metrics, JSON_COMPACT | JSON_REAL_PRECISION(17))) == NULL)
        status = lmcs_fail_memory(error);
    if (status == LMCS_OK) {
        size_t bytes = strlen(dumped) + strlen(meta) + 32;
        *text = bytes > LMCS_META_MOST ? NULL : malloc(bytes);
        if (bytes > LMCS_META_MOST)
            status = lmcs_fail(error, LMCS_INVALID, 0,
                               "metrics and metadata take more than 64 MiB: put what is large "
                               "into tensors or attachments");
        else if (*text == NULL)
            status = lmcs_fail_memory(error);
        else
            snprintf(*text, bytes, "{\"metrics\":%s,\"meta\":%s}", dumped, meta);
    }
    free(dumped);
    json_decref(metrics);
    return status;
}

static enum lmcs_status take_metrics(const json_t *object, struct lmcs_meta *meta, struct lmcs_error *error)
{
    const char *key;
    json_t *value;
    meta->metrics = calloc(json_object_size(object) + 1, sizeof *meta->metrics);
    if (meta->metrics == NULL)
        return lmcs_fail_memory(error);
    json_object_foreach((json_t *)object, key, value)
    {
        struct lmcs_metric *metric = &meta->metrics[meta->metric_count];
        if (!metric_number(value, &metric->value))
            return lmcs_fail(error, LMCS_DAMAGED, 0, "a snapshot's metric is not a number");
        metric->name = strdup(key);
        if (metric->name == NULL)
            return lmcs_fail_memory(error);
        meta->metric_count++;
    }
    return LMCS_OK;
}

/* The user's object as given, if the text has lmcs_meta_encode's form; else NULL. */
static char *original_meta(const char *text)
{
    static const char head[] = "{\"metrics\":", middle[] = ",\"meta\":";
    json_error_t where;
    if (strncmp(text, head, sizeof head - 1) != 0)
        return NULL;
    const char *at = text + sizeof head - 1;
    json_t *metrics = json_loads(at, JSON_DISABLE_EOF_CHECK, &where);
    json_decref(metrics);
    if (metrics == NULL || strncmp(at + where.position, middle, sizeof middle - 1) != 0)
        return NULL;
    const char *meta = at + where.position + sizeof middle - 1;
    size_t length = strlen(meta);
    return length > 0 && meta[length - 1] == '}' ? strndup(meta, length - 1) : NULL;
}

enum lmcs_status lmcs_meta_decode(const char *text, struct lmcs_meta *meta, struct lmcs_error *error)
{
    *meta = (struct lmcs_meta){0};
    json_t *whole = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const json_t *metrics = json_object_get(whole, "metrics"), *user = json_object_get(whole, "meta");
    enum lmcs_status status = LMCS_OK;
    if (!json_is_object(metrics) || !json_is_object(user) || json_object_size(whole) != 2)
        status = lmcs_fail(error, LMCS_DAMAGED, 0, "a snapshot's metadata is not what was written");
    if (status == LMCS_OK)
        status = take_metrics(metrics, meta, error);
    if (status == LMCS_OK) {
        meta->json = original_meta(text);
        if (meta->json == NULL)
            meta->json = json_dumps(user, JSON_COMPACT | JSON_REAL_PRECISION(17));
        if (meta->json == NULL)
            status = lmcs_fail_memory(error);
    }
    json_decref(whole);
    if (status != LMCS_OK)
        lmcs_meta_free(meta);
    return status;
}

/* `meta->metrics` has room for one more. */
static enum lmcs_status set_metric(struct lmcs_meta *meta, const char *name, double value, struct lmcs_error *error)
{
    size_t i = 0;
    while (i < meta->metric_count && strcmp(meta->metrics[i].name, name) != 0)
        i++;
    if (i == meta->metric_count) {
        meta->metrics[i].name = strdup(name);
        if (meta->metrics[i].name == NULL)
            return lmcs_fail_memory(error);
        meta->metric_count++;
    }
    meta->metrics[i].value = value;
    return LMCS_OK;
}

static enum lmcs_status set_note(struct lmcs_meta *meta, const char *note, struct lmcs_error *error)
{
    json_t *user = json_loads(meta->json, 0, NULL), *text = json_string(note);
    enum lmcs_status status = LMCS_OK;
    if (text == NULL)
        status = lmcs_fail(error, LMCS_INVALID, 0, "the note is not valid UTF-8");
    else if (*note == '\0')
        json_object_del(user, "message");
    else if (json_object_set(user, "message", text) != 0)
        status = lmcs_fail_memory(error);
    json_decref(text);
    if (status == LMCS_OK) {
        free(meta->json);
        meta->json = json_dumps(user, JSON_COMPACT | JSON_REAL_PRECISION(17));
        if (meta->json == NULL)
            status = lmcs_fail_memory(error);
    }
    json_decref(user);
    return status;
}

enum lmcs_status lmcs_meta_set(const char *text, const char *metric, double value, const char *note, char **changed,
                               struct lmcs_error *error)
{
    struct lmcs_meta meta;
    *changed = NULL;
    enum lmcs_status status = lmcs_meta_decode(text, &meta, error);
    if (status != LMCS_OK)
        return status;
    status = metric != NULL ? set_metric(&meta, metric, value, error) : set_note(&meta, note, error);
    const struct lmcs_commit_options options = {
        .metrics = meta.metrics, .metric_count = meta.metric_count, .meta_json = meta.json};
    if (status == LMCS_OK)
        status = lmcs_meta_encode(&options, changed, error);
    lmcs_meta_free(&meta);
    return status;
}

/* Whether both have the same without the note. Adds the second's note to the first, if that has none. */
static bool merge_users(struct lmcs_meta *to, const struct lmcs_meta *from)
{
    json_t *first = json_loads(to->json, 0, NULL), *second = json_loads(from->json, 0, NULL);
    json_t *own = json_incref(json_object_get(first, "message")),
           *other = json_incref(json_object_get(second, "message"));
    json_object_del(first, "message");
    json_object_del(second, "message");
    bool is_equal = json_is_object(first) && json_is_object(second) && json_equal(first, second) == 1;
    if (is_equal && own == NULL && other != NULL) {
        free(to->json);
        json_object_set(first, "message", other);
        to->json = json_dumps(first, JSON_COMPACT | JSON_REAL_PRECISION(17));
    }
    json_decref(own);
    json_decref(other);
    json_decref(first);
    json_decref(second);
    return is_equal;
}

static enum lmcs_status merge_metrics(struct lmcs_meta *to, const struct lmcs_meta *from, struct lmcs_error *error)
{
    struct lmcs_metric *all = calloc(to->metric_count + from->metric_count + 1, sizeof *all);
    enum lmcs_status status = all == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    if (all == NULL)
        return status;
    memcpy(all, to->metrics, to->metric_count * sizeof *all);
    free(to->metrics);
    to->metrics = all;
    const size_t own = to->metric_count;
    for (size_t i = 0; status == LMCS_OK && i < from->metric_count; i++) {
        size_t k = 0;
        while (k < own && strcmp(to->metrics[k].name, from->metrics[i].name) != 0)
            k++;
        if (k == own)
            status = set_metric(to, from->metrics[i].name, from->metrics[i].value, error);
    }
    return status;
}

enum lmcs_status lmcs_meta_merge(const char *first, const char *second, char **merged, struct lmcs_error *error)
{
    struct lmcs_meta to, from;
    *merged = NULL;
    enum lmcs_status status = lmcs_meta_decode(first, &to, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_meta_decode(second, &from, error);
    if (status != LMCS_OK) {
        lmcs_meta_free(&to);
        return status;
    }
    if (merge_users(&to, &from)) {
        status = to.json == NULL ? lmcs_fail_memory(error) : merge_metrics(&to, &from, error);
        const struct lmcs_commit_options options = {
            .metrics = to.metrics, .metric_count = to.metric_count, .meta_json = to.json};
        if (status == LMCS_OK)
            status = lmcs_meta_encode(&options, merged, error);
    }
    lmcs_meta_free(&to);
    lmcs_meta_free(&from);
    return status;
}

void lmcs_meta_free(struct lmcs_meta *meta)
{
    for (size_t i = 0; i < meta->metric_count; i++)
        free((char *)meta->metrics[i].name);
    free(meta->metrics);
    free(meta->json);
    *meta = (struct lmcs_meta){0};
}
