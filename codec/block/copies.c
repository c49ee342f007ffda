/* SPDX-License-Identifier: BSD-3-Clause */
/* copies.c - removes and restores repeated bytes. */
#include "block/copies.h"

#include "base/memory.h"

/* Copies the bytes outside of runs: from the block to the rest (`out`), or back. */
static void pass_rest(const struct lmci_copies *copies, size_t bytes, bool out, unsigned char *rest,
                      unsigned char *block)
{
    size_t at = 0;
    for (size_t i = 0; i <= copies->count; i++) {
        const size_t end = i < copies->count ? copies->runs[i].first : bytes;
        if (out)
            memcpy(rest, block + at, end - at);
        else
            memcpy(block + at, rest, end - at);
        rest += end - at;
        at = i < copies->count ? end + copies->runs[i].bytes : end;
    }
}

static void take_rest(const struct lmci_copies *copies, const unsigned char *block, size_t bytes, unsigned char *rest)
{
    pass_rest(copies, bytes, true, rest, (unsigned char *)(uintptr_t)block); /* only read */
}

/* ---- Stored runs ----------------------------------------------------------------------------------------------- */

/* Bytes of a stored number. */
static size_t number_bytes(unsigned unit)
{
    return unit == LMCI_LINE ? 2 : 3;
}

size_t lmci_copies_bytes(const struct lmci_copies *copies)
{
    return 2 + 3 * number_bytes(copies->unit) * copies->count;
}

static unsigned char *put_number(unsigned char *at, size_t bytes, size_t number)
{
    for (size_t k = 0; k < bytes; k++)
        *at++ = (unsigned char)(number >> 8 * k);
    return at;
}

static size_t get_number(const unsigned char **at, size_t bytes)
{
    size_t number = 0;
    for (size_t k = 0; k < bytes; k++)
        number |= (size_t) * (*at)++ << 8 * k;
    return number;
}

void lmci_copies_put(const struct lmci_copies *copies, unsigned char *dst)
{
    const size_t bytes = number_bytes(copies->unit);
    dst = put_number(dst, 2, copies->count);
    for (size_t i = 0; i < copies->count; i++) {
        dst = put_number(dst, bytes, copies->runs[i].first / copies->unit);
        dst = put_number(dst, bytes, copies->runs[i].bytes / copies->unit);
        dst = put_number(dst, bytes, copies->runs[i].source / copies->unit);
    }
}

enum lmc_status lmci_copies_take(const struct lmci_searched *in, unsigned unit, struct lmci_copies *copies)
{
    const size_t most = lmci_copies_most(in->bytes), runs_bytes = most * sizeof(struct lmci_copy);
    *copies = (struct lmci_copies){.unit = unit};
    copies->memory = lmci_allocate(runs_bytes + (in->base != NULL ? 2 : 1) * in->bytes);
    if (copies->memory == NULL)
        return LMC_NO_MEMORY;
    copies->runs = (void *)copies->memory;
    copies->rest = copies->memory + runs_bytes;
    copies->base = in->base != NULL ? copies->rest + in->bytes : NULL;
    enum lmc_status status = lmci_copies_find(in, unit, copies->runs, &copies->count);
    if (status != LMC_OK || copies->count == 0)
        return status;
    copies->rest_bytes = in->bytes;
    for (size_t i = 0; i < copies->count; i++)
        copies->rest_bytes -= copies->runs[i].bytes;
    take_rest(copies, in->data, in->bytes, copies->rest);
    if (in->base != NULL)
        take_rest(copies, in->base, in->bytes, copies->base);
    return LMC_OK;
}

/* ---- Restoring ------------------------------------------------------------------------------------------------- */

enum lmc_status lmci_copies_get(struct lmci_reader *in, unsigned unit, const unsigned char *base, size_t bytes,
                                struct lmci_copies *copies, const char **message)
{
    const size_t each = number_bytes(unit), units = bytes / unit;
    size_t end = 0, copied = 0;
    const unsigned char *count = lmci_take(in, 2);
    *copies = (struct lmci_copies){.count = count != NULL ? lmci_load16(count) : 0, .unit = unit};
    const unsigned char *runs = lmci_take(in, 3 * each * copies->count);
    if (runs == NULL || copies->count == 0 || copies->count > units)
        return lmci_damaged(message, "a block's copies are not well formed");
    for (const unsigned char *at = runs; at < runs + 3 * each * copies->count;) {
        const size_t first = get_number(&at, each), some = get_number(&at, each), source = get_number(&at, each);
        if (first < end || some == 0 || source >= first || first + some > units)
            return lmci_damaged(message, "a block's copies are not well formed");
        end = first + some;
        copied += some;
    }
    copies->rest_bytes = bytes - copied * unit;
    copies->memory = lmci_allocate(copies->count * sizeof *copies->runs + (base != NULL ? 2 : 1) * copies->rest_bytes);
    if (copies->memory == NULL)
        return lmci_fail(LMC_NO_MEMORY, message, "no memory to decode a block");
    copies->runs = (void *)copies->memory;
    for (size_t i = 0; i < copies->count; i++) {
        struct lmci_copy *run = &copies->runs[i];
        run->first = (uint32_t)(get_number(&runs, each) * unit);
        run->bytes = (uint32_t)(get_number(&runs, each) * unit);
        run->source = (uint32_t)(get_number(&runs, each) * unit);
    }
    copies->rest = copies->memory + copies->count * sizeof *copies->runs;
    copies->base = base != NULL ? copies->rest + copies->rest_bytes : NULL;
    if (base != NULL)
        take_rest(copies, base, bytes, copies->base);
    return LMC_OK;
}

void lmci_copies_fill(const struct lmci_copies *copies, unsigned char *dst, size_t bytes)
{
    pass_rest(copies, bytes, false, copies->rest, dst);
    for (size_t i = 0; i < copies->count; i++) {
        const struct lmci_copy *run = &copies->runs[i];
        const size_t distance = run->first - run->source;
        for (size_t done = 0, some; done < run->bytes; done += some) { /* a run may overlap its source: it doubles */
            some = run->bytes - done < distance + done ? run->bytes - done : distance + done;
            memcpy(dst + run->first + done, dst + run->source, some);
        }
    }
}
