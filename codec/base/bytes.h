/* SPDX-License-Identifier: BSD-3-Clause */
/* bytes.h - little-endian loads and stores at any alignment, and a bounded reader. */
#ifndef LMC_BYTES_H
#define LMC_BYTES_H

#include "lmc.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "liblmc supports little-endian machines only"
#endif

static inline uint16_t lmci_load16(const void *from)
{
    uint16_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline uint32_t lmci_load32(const void *from)
{
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline uint64_t lmci_load64(const void *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void lmci_store16(void *to, uint16_t value)
{
    memcpy(to, &value, sizeof value);
}

static inline void lmci_store32(void *to, uint32_t value)
{
    memcpy(to, &value, sizeof value);
}

static inline void lmci_store64(void *to, uint64_t value)
{
    memcpy(to, &value, sizeof value);
}

static inline enum lmc_status lmci_fail(enum lmc_status status, const char **message, const char *sentence)
{
    *message = sentence;
    return status;
}

static inline enum lmc_status lmci_damaged(const char **message, const char *sentence)
{
    return lmci_fail(LMC_DAMAGED, message, sentence);
}

static inline enum lmc_status lmci_unsupported(const char **message, const char *sentence)
{
    return lmci_fail(LMC_UNSUPPORTED, message, sentence);
}

/* Unread input: `at` never passes `end`. */
struct lmci_reader {
    const unsigned char *at;
    const unsigned char *end;
};

static inline size_t lmci_left(const struct lmci_reader *in)
{
    return (size_t)(in->end - in->at);
}

/* Takes the next `bytes` bytes; NULL if fewer are left. */
static inline const unsigned char *lmci_take(struct lmci_reader *in, size_t bytes)
{
    if (lmci_left(in) < bytes)
        return NULL;
    const unsigned char *taken = in->at;
    in->at += bytes;
    return taken;
}

#endif
