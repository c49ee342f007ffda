/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/attachment.h - reads the store's own attachments: long metadata and relations. */
#ifndef LMCS_PAYLOAD_ATTACHMENT_H
#define LMCS_PAYLOAD_ATTACHMENT_H

#include "records/relations.h"
#include "records/shelf.h"

/* Reads an attachment of the store. The caller frees *data; a NUL follows its bytes. LMCS_DAMAGED: above `most` bytes.
 * *found false: the snapshot lacks it. */
enum lmcs_status lmcs_attachment_read(struct lmcs_txn *txn, const struct lmcs_record *record, const char *name,
                                      uint64_t most, void **data, uint64_t *bytes, bool *found,
                                      struct lmcs_error *error);
/* Reads metadata too long for the record. The caller frees *text. */
enum lmcs_status lmcs_record_long_meta(struct lmcs_txn *txn, const struct lmcs_record *record, char **text,
                                       struct lmcs_error *error);
/* Reads the relations of a snapshot. *found false: it has none. */
enum lmcs_status lmcs_relations_load(struct lmcs_txn *txn, const struct lmcs_record *record,
                                     struct lmcs_relations *relations, bool *found, struct lmcs_error *error);

#endif
