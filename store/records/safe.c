/* SPDX-License-Identifier: BSD-3-Clause */
/* records/safe.c - requests to let snapshots go. */
#include "records/safe.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "records/shelf.h"

#define MOST_REQUESTS 1024u

bool lmcs_safe_parse(const char *text, struct lmcs_safe *safe)
{
    int at = 0;
    if (!isdigit((unsigned char)*text) ||
        sscanf(text, "%" SCNu64 " %" SCNu64 " %n", &safe->first, &safe->epoch, &at) != 2 ||
        !lmcs_url_is_sound(text + at))
        return false;
    memcpy(safe->url, text + at, strlen(text + at) + 1);
    return true;
}

enum lmcs_status lmcs_safe_add(struct lmcs_pool *pool, const struct lmcs_safe *safe, struct lmcs_error *error)
{
    struct lmcs_safe *copy = malloc(sizeof *copy), *oldest = NULL, **end;
    size_t count = 0;
    if (copy == NULL)
        return lmcs_fail_memory(error);
    *copy = *safe;
    copy->next = NULL;
    pthread_mutex_lock(&pool->captures);
    for (end = &pool->safe; *end != NULL; end = &(*end)->next)
        count++;
    *end = copy;
    if (count >= MOST_REQUESTS) {
        oldest = pool->safe;
        pool->safe = oldest->next;
    }
    pthread_mutex_unlock(&pool->captures);
    free(oldest);
    return LMCS_OK;
}

struct lmcs_safe *lmcs_safe_take(struct lmcs_pool *pool)
{
    pthread_mutex_lock(&pool->captures);
    struct lmcs_safe *list = pool->safe;
    pool->safe = NULL;
    pthread_mutex_unlock(&pool->captures);
    return list;
}

void lmcs_safe_free(struct lmcs_safe *list)
{
    while (list != NULL) {
        struct lmcs_safe *next = list->next;
        free(list);
        list = next;
    }
}
