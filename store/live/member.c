/* SPDX-License-Identifier: BSD-3-Clause */
/* live/member.c - members of transactions, and bytes saved by declared ones. */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/guard.h"
#include "live/journal.h"
#include "live/map.h"
#include "live/txn.h"

#define DECLARE_AT_ONCE ((uint64_t)1 << 20) /* bytes of an undo entry */

enum lmcs_status lmcs_transaction_enter(struct lmcs_transaction *transaction, struct lmcs_live_body *body, bool made,
                                        struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    if (body->transaction != NULL)
        return LMCS_OK;
    pthread_mutex_lock(&body->lock);
    if (!made && !transaction->is_declared) {
        status = lmcs_live_remap(body, body->record, true, error);
        if (status != LMCS_OK)
            (void)lmcs_live_share(body, body->record);
        else
            body->is_private = body->mappings != NULL;
    }
    if (status == LMCS_OK)
        body->transaction = transaction;
    pthread_mutex_unlock(&body->lock);
    if (status != LMCS_OK)
        return status;
    body->references++;
    body->next_in = transaction->bodies;
    transaction->bodies = body;
    return LMCS_OK;
}

enum lmcs_status lmcs_transaction_join(struct lmcs_live_body *body, struct lmcs_transaction *transaction, bool made,
                                       struct lmcs_error *error)
{
    if (transaction == NULL || (!transaction->all && !made))
        return LMCS_OK;
    return lmcs_transaction_enter(transaction, body, made, error);
}

bool lmcs_transaction_gave_up(const struct lmcs_transaction *transaction, const char *name)
{
    const struct lmcs_live_body *body = transaction != NULL ? transaction->bodies : NULL;
    for (; body != NULL; body = body->next_in)
        if (body->before != NULL && strcmp(body->before->name, name) == 0 &&
            strcmp(body->record->name, body->before->name) != 0)
            return true;
    return false;
}

static enum lmcs_status note_declared(struct lmcs_transaction *transaction, struct lmcs_live_body *body,
                                      uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    if (!lmcs_grow(&transaction->declared, &transaction->declared_capacity, transaction->declared_count,
                   sizeof *transaction->declared))
        return lmcs_fail_memory(error);
    transaction->declared[transaction->declared_count++] = (struct lmcs_declared){body, offset, bytes};
    return LMCS_OK;
}

enum lmcs_status lmcs_transaction_will_store(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes,
                                             struct lmcs_error *error)
{
    struct lmcs_transaction *transaction = body->transaction;
    if (transaction == NULL || !transaction->is_declared || !body->stored || bytes == 0)
        return LMCS_OK;
    void *copy = malloc(bytes < DECLARE_AT_ONCE ? bytes : DECLARE_AT_ONCE);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = note_declared(transaction, body, offset, bytes, error);
    for (uint64_t n; status == LMCS_OK && bytes > 0; offset += n, bytes -= n) {
        n = bytes < DECLARE_AT_ONCE ? bytes : DECLARE_AT_ONCE;
        struct lmcs_journaled entry = {.data = copy};
        entry.place = lmcs_live_place(body->record, offset, &n);
        entry.bytes = n;
        status = lmcs_guard_copy(copy, body->data + offset, n)
                     ? lmcs_undo_add(body->pool, transaction->sequence, &entry, &transaction->undo_at, error)
                     : lmcs_fail(error, LMCS_DAMAGED, 0, "%s: live tensor \"%.200s\": the medium can't be read",
                                 body->pool->path, body->record->name);
    }
    free(copy);
    return status;
}
