/* SPDX-License-Identifier: BSD-3-Clause */
/* test_live_txn_support.h - transactions in both modes. */
#ifndef LMCS_TEST_LIVE_TXN_SUPPORT_H
#define LMCS_TEST_LIVE_TXN_SUPPORT_H

#include "test_live_support.h"
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static inline struct lmcs_transaction *begin_with(struct lmcs_pool *pool, uint32_t flags, uint64_t limit_bytes)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction = NULL;
    lmcs_transaction_options_init(&options);
    options.flags = flags;
    options.limit_bytes = limit_bytes;
    OK(lmcs_transaction_begin(pool, "run", NULL, 0, &options, &transaction, &err));
    return transaction;
}

static inline struct lmcs_live *open_live(struct lmcs_pool *pool, const char *name)
{
    struct lmcs_live *live;
    OK(lmcs_live_open(pool, "run", name, &live, &err));
    return live;
}

static inline void store(struct lmcs_transaction *transaction, struct lmcs_live *live, uint64_t i, float value)
{
    OK(lmcs_transaction_declare(transaction, live, i * sizeof(float), sizeof(float), &err));
    ((float *)lmcs_live_data(live))[i] = value;
}

#endif
