/* SPDX-License-Identifier: BSD-3-Clause */
/* pairs.c - packs numbers from -7 to 7 into half bytes. */
#include "block/pairs.h"

#include "block/huffman.h"
#include "kernels/kernels.h"

#include <string.h>

#define ESCAPE  8u    /* a half byte */
#define ESCAPED 0xf8u /* its byte before escapes are filled in */
#define PIECE   ((size_t)4 << 10)
#define RARE    128u /* at most one byte in so many may be an escape */
#define TABLE   150u /* bytes of the code's table and of its nodes' last bytes, about */
#define ROUNDED 64u  /* the code exceeds the entropy by one part in so many, about */

static bool is_small(unsigned byte)
{
    return byte < 8 || byte > 256 - 8;
}

size_t lmci_pairs_estimate(const uint32_t counts[256], size_t counted, size_t bytes)
{
    uint32_t small[256];
    uint64_t escapes = 0;
    for (unsigned s = 0; s < 256; s++) {
        small[s] = is_small(s) ? counts[s] : 0;
        escapes += is_small(s) ? 0 : counts[s];
    }
    small[ESCAPED] = (uint32_t)escapes;
    if (escapes * RARE > counted)
        return SIZE_MAX;
    uint64_t bits = lmci_entropy_bits(small, 256, counted) + 8 * escapes;
    bits += bits / ROUNDED;
    return TABLE + (size_t)(bits * bytes / counted / 8);
}

size_t lmci_pairs_pack(const unsigned char *plane, size_t bytes, unsigned char *pairs, unsigned char *escapes,
                       size_t room)
{
    uint8_t half_of[256];
    unsigned char halves[PIECE];
    size_t count = 0;
    for (unsigned s = 0; s < 256; s++)
        half_of[s] = is_small(s) ? s & 15 : ESCAPE;
    for (size_t at = 0; at < bytes; at += PIECE) {
        const size_t some = bytes - at < PIECE ? bytes - at : PIECE;
        lmci_kernels()->rename(half_of, plane + at, some, halves);
        lmci_kernels()->pack_nibbles(halves, some, pairs + at / 2);
        const unsigned char *from = halves;
        while ((from = memchr(from, ESCAPE, (size_t)(halves + some - from))) != NULL) {
            if (count == room)
                return SIZE_MAX;
            escapes[count++] = plane[at + (size_t)(from++ - halves)];
        }
    }
    return count;
}

bool lmci_pairs_unpack(const unsigned char *pairs, size_t bytes, const unsigned char *escapes, size_t count,
                       unsigned char *plane)
{
    uint8_t byte_of[256] = {0};
    unsigned char halves[PIECE];
    size_t used = 0;
    for (unsigned h = 0; h < 16; h++)
        byte_of[h] = (uint8_t)(h < 8 ? h : h + 240);
    for (size_t at = 0; at < bytes; at += PIECE) {
        const size_t some = bytes - at < PIECE ? bytes - at : PIECE;
        lmci_kernels()->unpack_nibbles(pairs + at / 2, some, halves);
        lmci_kernels()->rename(byte_of, halves, some, plane + at);
        unsigned char *to = plane + at;
        while ((to = memchr(to, ESCAPED, (size_t)(plane + at + some - to))) != NULL) {
            if (used == count)
                return false;
            *to++ = escapes[used++];
        }
    }
    return used == count && (bytes % 2 == 0 || pairs[bytes / 2] >> 4 == 0);
}
