/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * vbmi2_impl.h - compresses and expands 64 bytes; splits 64 words into bytes and back.
 *
 * On Zen 4, compress and expand wait for their destination's previous value even when zeroing it: five cycles each
 * instead of two. A freshly zeroed register breaks this; empty assembly keeps compilers from the zeroing form.
 */
#ifndef LMC_VBMI2_IMPL_H
#define LMC_VBMI2_IMPL_H

#if defined(__AVX512VBMI2__)

#include <immintrin.h>

static inline __m512i fresh_zero(void)
{
    __m512i zero = _mm512_setzero_si512();
    __asm__("" : "+v"(zero));
    return zero;
}

/* Packs bytes whose bit is set, followed by zeros. */
static inline __m512i compress_bytes(uint64_t mask, __m512i bytes)
{
    return _mm512_mask_compress_epi8(fresh_zero(), mask, bytes);
}

/* Moves the first bytes to set bits, zeros between. */
static inline __m512i expand_bytes(uint64_t mask, __m512i bytes)
{
    return _mm512_mask_expand_epi8(fresh_zero(), mask, bytes);
}

static inline __m512i word_bytes(unsigned word, const __m512i *v, unsigned which)
{
    const __m512i count =
        _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41, 40,
                        39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
                        15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    if (word == 2) {
        const __m512i index = _mm512_add_epi8(_mm512_add_epi8(count, count), _mm512_set1_epi8((char)which));
        return _mm512_permutex2var_epi8(v[0], index, v[1]);
    }
    const __m512i twice = _mm512_add_epi8(count, count);
    const __m512i index = _mm512_add_epi8(_mm512_add_epi8(twice, twice), _mm512_set1_epi8((char)which));
    __m512i low = _mm512_permutex2var_epi8(v[0], index, v[1]);
    __m512i high = _mm512_permutex2var_epi8(v[2], index, v[3]);
    return _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
}

/* planes[0] has the lowest byte of each word. */
static inline void word_weave(unsigned word, const __m512i *planes, __m512i *v)
{
    const __m512i bytes0 =
        _mm512_set_epi8(95, 31, 94, 30, 93, 29, 92, 28, 91, 27, 90, 26, 89, 25, 88, 24, 87, 23, 86, 22, 85, 21, 84, 20,
                        83, 19, 82, 18, 81, 17, 80, 16, 79, 15, 78, 14, 77, 13, 76, 12, 75, 11, 74, 10, 73, 9, 72, 8,
                        71, 7, 70, 6, 69, 5, 68, 4, 67, 3, 66, 2, 65, 1, 64, 0);
    const __m512i bytes1 = _mm512_add_epi8(bytes0, _mm512_set1_epi8(32));
    __m512i low[2] = {_mm512_permutex2var_epi8(planes[0], bytes0, planes[1]),
                      _mm512_permutex2var_epi8(planes[0], bytes1, planes[1])};
    if (word == 2) {
        v[0] = low[0];
        v[1] = low[1];
        return;
    }
    const __m512i words0 = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                            37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i words1 = _mm512_add_epi16(words0, _mm512_set1_epi16(16));
    for (unsigned k = 0; k < 2; k++) {
        __m512i high = _mm512_permutex2var_epi8(planes[2], k != 0 ? bytes1 : bytes0, planes[3]);
        v[2 * k] = _mm512_permutex2var_epi16(low[k], words0, high);
        v[2 * k + 1] = _mm512_permutex2var_epi16(low[k], words1, high);
    }
}

#endif

#endif
