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

void lmcs_meta_free(struct lmcs_meta *meta)
{
    for (size_t i = 0; i < meta->metric_count; i++)
        free((char *)meta->metrics[i].name);
    free(meta->metrics);
    free(meta->json);
    *meta = (struct lmcs_meta){0};
}
