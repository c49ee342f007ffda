/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_seal.h - forged archives. */
#ifndef LMCS_TEST_ARCHIVE_SEAL_H
#define LMCS_TEST_ARCHIVE_SEAL_H

#include "archive/format.h"
#include "support.h"

/* Recomputes all checksums. */
static inline void seal(unsigned char *data, size_t bytes)
{
    struct lmcs_archive_head_df head;
    struct lmc_hasher headers;
    lmc_hasher_init(&headers);
    memcpy(&head, data, sizeof head);
    head.check = lmc_hash64(&head, offsetof(struct lmcs_archive_head_df, check), 0);
    memcpy(data, &head, sizeof head);
    lmc_hasher_update(&headers, data, sizeof head);
    size_t at = sizeof head;
    for (uint64_t number = 0; at < bytes; number++) {
        struct lmcs_archive_record_df record;
        memcpy(&record, data + at, sizeof record);
        EXPECT(record.bytes <= bytes - at - sizeof record);
        unsigned char *payload = data + at + sizeof record;
        if (record.type == LMCS_ARCHIVE_END && record.bytes == sizeof(struct lmcs_archive_end_df)) {
            struct lmc_hash hash = lmc_hasher_final(&headers);
            memcpy(payload + offsetof(struct lmcs_archive_end_df, hash_low), &hash, sizeof hash);
        }
        record.payload_check = lmc_hash64(payload, record.bytes, number);
        record.check = lmc_hash64(&record, offsetof(struct lmcs_archive_record_df, check), number);
        memcpy(data + at, &record, sizeof record);
        lmc_hasher_update(&headers, &record, sizeof record);
        at += sizeof record + record.bytes;
    }
}

#endif
