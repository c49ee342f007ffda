/* SPDX-License-Identifier: BSD-3-Clause */
/* records/meta.h - a snapshot's metrics and metadata as one JSON text. */
#ifndef LMCS_RECORDS_META_H
#define LMCS_RECORDS_META_H

#include "records/content.h"

struct lmcs_meta {
    struct lmcs_metric *metrics;
    size_t metric_count;
    char *json; /* the user's object */
};

/* The caller frees *text. LMCS_INVALID: names or texts that can't be stored. */
enum lmcs_status lmcs_meta_encode(const struct lmcs_commit_options *options, char **text, struct lmcs_error *error);
enum lmcs_status lmcs_meta_decode(const char *text, struct lmcs_meta *meta, struct lmcs_error *error);
/*
 * The text with one metric set or, `metric` NULL, with the note as "message" of the user's object ("": without). The
 * caller frees *changed. LMCS_INVALID: a name or text that can't be stored.
 */
enum lmcs_status lmcs_meta_set(const char *text, const char *metric, double value, const char *note, char **changed,
                               struct lmcs_error *error);
/*
 * Metrics and note of `first`, and those of `second` that it lacks. *merged, for the caller to free; NULL: the texts
 * differ in more than metrics and the note.
 */
enum lmcs_status lmcs_meta_merge(const char *first, const char *second, char **merged, struct lmcs_error *error);
void lmcs_meta_free(struct lmcs_meta *meta);

#endif
