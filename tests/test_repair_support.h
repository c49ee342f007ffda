/* SPDX-License-Identifier: BSD-3-Clause */
/* test_repair_support.h - damage and repair. */
#ifndef LMCS_TEST_REPAIR_SUPPORT_H
#define LMCS_TEST_REPAIR_SUPPORT_H

#include "compact/parity.h"
#include "pages/space.h"
#include "test_scrub_support.h"
#include <sys/stat.h>

static inline void expect_repaired(struct lmcs_pool *pool, const char *from, const char *source)
{
    struct telling telling;
    OK(repair_from(pool, from, &telling));
    EXPECT(telling.count >= 1 && telling.report.repaired == telling.count && telling.report.lost == 0);
    for (size_t i = 0; i < telling.count; i++)
        EXPECT(telling.items[i].state == LMCS_DAMAGE_REPAIRED && strstr(telling.items[i].source, source) != NULL);
    check_pool(pool);
    expect_clean(pool);
}

static inline struct lmcs_parity_record parity_of(struct lmcs_pool *pool, uint64_t content, bool *found)
{
    struct lmcs_txn txn;
    struct lmcs_parity_record parity;
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_parity_find(&txn, content, &parity, found, &err));
    lmcs_txn_end(&txn);
    return parity;
}

static inline bool has_parity(struct lmcs_pool *pool, uint64_t content)
{
    bool found;
    parity_of(pool, content, &found);
    return found;
}

#endif
