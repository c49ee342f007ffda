/* SPDX-License-Identifier: BSD-3-Clause */
/* transform_neon.h - transforms and groups words in registers. */
#include "kernels/neon_impl.h"

/* Shifts d left by one, inverted where negative; and back. */
static inline uint8x16_t zigzag_vector(unsigned word, uint8x16_t d)
{
    return word == 2 ? vreinterpretq_u8_s16(veorq_s16(vshlq_n_s16(S16(d), 1), vshrq_n_s16(S16(d), 15)))
                     : vreinterpretq_u8_s32(veorq_s32(vshlq_n_s32(S32(d), 1), vshrq_n_s32(S32(d), 31)));
}

static inline uint8x16_t unzigzag_vector(unsigned word, uint8x16_t y)
{
    if (word == 2)
        return veorq_u8(vreinterpretq_u8_u16(vshrq_n_u16(U16(y), 1)),
                        vreinterpretq_u8_s16(vshrq_n_s16(vshlq_n_s16(S16(y), 15), 15)));
    return veorq_u8(vreinterpretq_u8_u32(vshrq_n_u32(U32(y), 1)),
                    vreinterpretq_u8_s32(vshrq_n_s32(vshlq_n_s32(S32(y), 31), 31)));
}

static inline __attribute__((always_inline)) uint8x16_t forward_vector(enum lmci_transform transform, unsigned word,
                                                                       uint8x16_t x, const unsigned char *b)
{
    if (transform == LMCI_KEEP)
        return x;
    if (transform == LMCI_ROTATE)
        return word == 2 ? vreinterpretq_u8_u16(vsriq_n_u16(vshlq_n_u16(U16(x), 1), U16(x), 15))
                         : vreinterpretq_u8_u32(vsriq_n_u32(vshlq_n_u32(U32(x), 1), U32(x), 31));
    const uint8x16_t base = vld1q_u8(b);
    if (transform == LMCI_XOR)
        return veorq_u8(x, base);
    const uint8x16_t d = word_sub(word, x, base);
    return transform == LMCI_SUBTRACT ? d : zigzag_vector(word, d);
}

static inline __attribute__((always_inline)) uint8x16_t backward_vector(enum lmci_transform transform, unsigned word,
                                                                        uint8x16_t y, const unsigned char *b)
{
    if (transform == LMCI_KEEP)
        return y;
    if (transform == LMCI_ROTATE)
        return word == 2 ? vreinterpretq_u8_u16(vsliq_n_u16(vshrq_n_u16(U16(y), 1), U16(y), 15))
                         : vreinterpretq_u8_u32(vsliq_n_u32(vshrq_n_u32(U32(y), 1), U32(y), 31));
    const uint8x16_t base = vld1q_u8(b);
    if (transform == LMCI_XOR)
        return veorq_u8(y, base);
    return word_add(word, transform == LMCI_SUBTRACT ? y : unzigzag_vector(word, y), base);
}

/* Callers pass constants for `transform` and `word`. */
static inline __attribute__((always_inline)) void split_whole(enum lmci_transform transform, unsigned word,
                                                              const unsigned char *data, const unsigned char *base,
                                                              size_t count, unsigned char *const *planes)
{
    unsigned char *to[4];
    for (unsigned p = 0; p < word; p++)
        to[p] = planes[p];
    for (size_t at = 0; at < count; at += 16) {
        uint8x16_t y[4], bytes[4];
        for (unsigned k = 0; k < word; k++) {
            const size_t from = at * word + 16 * k;
            y[k] = forward_vector(transform, word, vld1q_u8(data + from), base ? base + from : NULL);
        }
        word_split(word, y, bytes);
        for (unsigned p = 0; p < word; p++)
            vst1q_u8(to[p] + at, bytes[p]);
    }
}

static inline __attribute__((always_inline)) void merge_whole(enum lmci_transform transform, unsigned word,
                                                              const unsigned char *const *planes,
                                                              const unsigned char *base, size_t count,
                                                              unsigned char *data)
{
    const unsigned char *from[4];
    for (unsigned p = 0; p < word; p++)
        from[p] = planes[p];
    for (size_t at = 0; at < count; at += 16) {
        uint8x16_t bytes[4], y[4];
        for (unsigned p = 0; p < word; p++)
            bytes[p] = vld1q_u8(from[p] + at);
        word_weave(word, bytes, y);
        for (unsigned k = 0; k < word; k++) {
            const size_t to = at * word + 16 * k;
            vst1q_u8(data + to, backward_vector(transform, word, y[k], base != NULL ? base + to : NULL));
        }
    }
}
