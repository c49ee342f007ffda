/* SPDX-License-Identifier: BSD-3-Clause */
/* stream_impl.h - copies past the caches: ordinary stores would read each line first, and evict another. */
#if defined(__AVX512VBMI2__) || defined(__AVX2__)

#include <immintrin.h>

static void stream(unsigned char *dst, const unsigned char *from, size_t bytes)
{
    size_t head = (0 - (uintptr_t)dst) & 63;
    head = head < bytes ? head : bytes;
    memcpy(dst, from, head);
    size_t i = head;
    for (; i + 64 <= bytes; i += 64) {
#if defined(__AVX512VBMI2__)
        _mm512_stream_si512((__m512i *)(void *)(dst + i), _mm512_loadu_si512(from + i));
#else
        _mm256_stream_si256((__m256i *)(void *)(dst + i), _mm256_loadu_si256((const __m256i *)(from + i)));
        _mm256_stream_si256((__m256i *)(void *)(dst + i + 32), _mm256_loadu_si256((const __m256i *)(from + i + 32)));
#endif
    }
    memcpy(dst + i, from + i, bytes - i);
}

static void fence(void)
{
    _mm_sfence();
}

#else

static void stream(unsigned char *dst, const unsigned char *from, size_t bytes)
{
    memcpy(dst, from, bytes);
}

static void fence(void)
{
}

#endif
