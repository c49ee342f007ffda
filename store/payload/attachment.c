/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/attachment.c - reads the store's own attachments. */
#include "payload/attachment.h"

#include <stdlib.h>

#include "payload/read.h"
#include "records/manifest.h"
#include "records/meta.h"

enum lmcs_status lmcs_attachment_read(struct lmcs_txn *txn, const struct lmcs_record *record, const char *name,
                                      uint64_t most, void **data, uint64_t *bytes, bool *found,
                                      struct lmcs_error *error)
{
    struct lmcs_identity identity;
    struct lmcs_chain chain;
    uint64_t content;
    enum lmcs_status status =
        lmcs_manifest_find(txn, &record->df, LMCS_ATTACHMENT, name, &identity, &content, found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_chain_load(txn, content, &chain, error);
    if (status != LMCS_OK || !*found)
        return status;
    *bytes = chain.links[0].df.raw_bytes;
    if (*bytes > most)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: attachment \"%s\" is impossibly long", txn->pool->path, name);
    char *text = malloc(*bytes + 1);
    if (text == NULL)
        return lmcs_fail_memory(error);
    text[*bytes] = '\0';
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&identity);
    status = lmcs_chain_read(txn->pool, &chain, &tensor, text, NULL, error);
    if (status != LMCS_OK) {
        free(text);
        return status;
    }
    *data = text;
    return LMCS_OK;
}

enum lmcs_status lmcs_record_long_meta(struct lmcs_txn *txn, const struct lmcs_record *record, char **text,
                                       struct lmcs_error *error)
{
    void *data = NULL;
    uint64_t bytes;
    bool found;
    enum lmcs_status status =
        lmcs_attachment_read(txn, record, LMCS_META_NAME, LMCS_META_MOST, &data, &bytes, &found, error);
    if (status == LMCS_OK && !found)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: a snapshot's metadata is missing", txn->pool->path);
    *text = data;
    return status;
}

enum lmcs_status lmcs_relations_load(struct lmcs_txn *txn, const struct lmcs_record *record,
                                     struct lmcs_relations *relations, bool *found, struct lmcs_error *error)
{
    void *grouping = NULL, *constants = NULL;
    uint64_t grouping_bytes, constants_bytes;
    enum lmcs_status status = lmcs_attachment_read(txn, record, LMCS_RELATIONS_NAME, LMCS_RELATIONS_MOST_BYTES,
                                                   &grouping, &grouping_bytes, found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_attachment_read(txn, record, LMCS_CONSTANTS_NAME, LMCS_RELATIONS_MOST_BYTES, &constants,
                                      &constants_bytes, found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_relations_decode(grouping, grouping_bytes, constants, constants_bytes, relations, error);
    free(grouping);
    free(constants);
    return status;
}
