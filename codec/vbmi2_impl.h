/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * vbmi2_impl.h - compress and expand of 64 bytes.
 *
 * On Zen 4 both wait for the last value of the register that they write, even when they are told to zero it, so that
 * one after the other they take five cycles where they could take two. A register that was just zeroed makes none wait;
 * the empty statement keeps the compiler from making the zeroing form of it.
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

/* The bytes whose bit is set, side by side, and zeros behind them. */
static inline __m512i compress_bytes(uint64_t mask, __m512i bytes)
{
    return _mm512_mask_compress_epi8(fresh_zero(), mask, bytes);
}

/* The first bytes, each to the place of the next bit that is set, and zeros between them. */
static inline __m512i expand_bytes(uint64_t mask, __m512i bytes)
{
    return _mm512_mask_expand_epi8(fresh_zero(), mask, bytes);
}

#endif

#endif
