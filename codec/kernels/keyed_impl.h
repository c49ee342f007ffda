/* SPDX-License-Identifier: BSD-3-Clause */
/* keyed_impl.h - stand-ins for words of 1 and 8 bytes (block/keyed.h). */

#define KEYED_BIAS 831u /* f64 exponents from 2^-192 to 2^63 have a key each */

static inline word32 keyed_base64(word64 b)
{
    const word32 exponent = (word32)(b >> 52) & 2047;
    const word32 above = exponent > KEYED_BIAS ? exponent - KEYED_BIAS : 0;
    return (above < 255 ? above : 255) << 23;
}

static void keyed_base(unsigned word, const unsigned char *base, size_t count, unsigned char *to)
{
    if (word == 1)
        for (size_t i = 0; i < count; i++)
            put16(to, i, (word16)((base[i] & 127) << 7));
    else
        for (size_t i = 0; i < count; i++)
            put32(to, i, keyed_base64(get64(base, i)));
}

static void keyed_split1(const unsigned char *restrict data, const unsigned char *restrict base,
                         const unsigned char *restrict against, size_t count, unsigned char *restrict to)
{
    for (size_t i = 0; i < count; i++)
        put16(to, i, (word16)(get16(against, i) + (word16)(int8_t)(uint8_t)(data[i] - base[i])));
}

static void keyed_join1(const unsigned char *restrict from, const unsigned char *restrict against,
                        const unsigned char *restrict base, size_t count, unsigned char *restrict data)
{
    for (size_t i = 0; i < count; i++)
        data[i] = (uint8_t)(base[i] + get16(from, i) - get16(against, i));
}

/* Returns a difference without its middle: the four bytes that become planes. */
static inline word32 keyed_rest(word64 y, word32 below)
{
    return ((word32)y & below) | ((word32)(y >> 32) & ~below);
}

static void keyed_split8(unsigned low, const unsigned char *restrict data, const unsigned char *restrict base,
                         const unsigned char *restrict against, size_t count, unsigned char *const *planes,
                         unsigned char *restrict to)
{
    const unsigned shift = 8 * low;
    const word32 below = (word32)(((word64)1 << shift) - 1);
    for (size_t at = 0; at < count; at += CHUNK) {
        const size_t n = count - at < CHUNK ? count - at : CHUNK;
        word32 rest[CHUNK];
        for (size_t i = 0; i < n; i++) {
            const word64 d = get64(data, at + i) - get64(base, at + i);
            const word32 middle = (word32)(d >> shift);
            rest[i] = keyed_rest(d - ((word64)(int64_t)(int32_t)middle << shift), below);
            put32(to, at + i, get32(against, at + i) + middle);
        }
        deal4(rest, n, planes[0] + at, planes[1] + at, planes[2] + at, planes[3] + at);
    }
}

static void keyed_join8(unsigned low, const unsigned char *const *planes, const unsigned char *restrict from,
                        const unsigned char *restrict against, const unsigned char *restrict base, size_t count,
                        unsigned char *restrict data)
{
    const unsigned shift = 8 * low;
    const word32 below = (word32)(((word64)1 << shift) - 1);
    for (size_t at = 0; at < count; at += CHUNK) {
        const size_t n = count - at < CHUNK ? count - at : CHUNK;
        word32 rest[CHUNK];
        gather4(planes[0] + at, planes[1] + at, planes[2] + at, planes[3] + at, n, rest);
        for (size_t i = 0; i < n; i++) {
            const word32 middle = get32(from, at + i) - get32(against, at + i);
            const word64 y = (rest[i] & below) | (word64)(rest[i] & ~below) << 32;
            put64(data, at + i, get64(base, at + i) + y + ((word64)(int64_t)(int32_t)middle << shift));
        }
    }
}

static void keyed_split(unsigned word, unsigned low, const unsigned char *data, const unsigned char *base,
                        const unsigned char *against, size_t count, unsigned char *const *planes, unsigned char *to)
{
    if (word == 1)
        keyed_split1(data, base, against, count, to);
    else
        keyed_split8(low, data, base, against, count, planes, to);
}

static void keyed_join(unsigned word, unsigned low, const unsigned char *const *planes, const unsigned char *from,
                       const unsigned char *against, const unsigned char *base, size_t count, unsigned char *data)
{
    if (word == 1)
        keyed_join1(from, against, base, count, data);
    else
        keyed_join8(low, planes, from, against, base, count, data);
}
