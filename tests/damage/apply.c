/* SPDX-License-Identifier: BSD-3-Clause */
/* apply.c - damages a pool: flips, overwrites, exchanges and cuts. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "damage.h"
#include "media/pmemobj_layout.h"

/* ---- Damaging ---- */

void describe(struct damage *damage, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(damage->bench->shared->what, sizeof damage->bench->shared->what, format, arguments);
    va_end(arguments);
}

uint64_t spread(const struct damage *damage, uint64_t count)
{
    struct rng rng = {damage->bench->seed ^ damage->turn / count};
    uint64_t step = 1 + rng_below(&rng, count);
    while (true) {
        uint64_t a = step, b = count;
        while (b != 0) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            break;
        step++;
    }
    return (rng_below(&rng, count) + damage->turn % count * step) % count;
}

static void flip_in_line(struct damage *damage, const char *path, uint64_t line_at, const char *of)
{
    uint64_t at = line_at + rng_below(&damage->rng, LINE);
    unsigned bit = (unsigned)rng_below(&damage->rng, 8);
    file_flip(path, at, bit);
    describe(damage, "bit %u of byte %llu, in %s", bit, ULL(at), of);
}

void flip_superblock(struct damage *damage, const char *path)
{
    uint64_t at = damage->bench->subject->superblock + spread(damage, sizeof(struct lmcs_superblock_df));
    file_flip(path, at, (unsigned)rng_next(&damage->rng));
    describe(damage, "a bit of byte %llu, in the superblock", ULL(at));
}

void flip_root(struct damage *damage, const char *path)
{
    uint64_t line = spread(damage, (sizeof(struct lmcs_root_df) + LINE - 1) / LINE);
    flip_in_line(damage, path, damage->bench->subject->root + line * LINE, "the root page");
}

void flip_tree(struct damage *damage, const char *path)
{
    const struct subject *subject = damage->bench->subject;
    uint64_t line = spread(damage, subject->page_count * (LMCS_PAGE_BYTES / LINE));
    char of[64];
    damage->tree = subject->kinds[line / (LMCS_PAGE_BYTES / LINE)];
    snprintf(of, sizeof of, "a page of tree %u", damage->tree);
    flip_in_line(damage, path, subject->pages[line / (LMCS_PAGE_BYTES / LINE)] + line % (LMCS_PAGE_BYTES / LINE) * LINE,
                 of);
}

static const struct payload *some_payload(struct damage *damage)
{
    const struct subject *subject = damage->bench->subject;
    const struct payload *payload = &subject->payloads[spread(damage, subject->payload_count)];
    damage->tensor = payload->tensor;
    return payload;
}

void flip_payload(struct damage *damage, const char *path)
{
    const struct payload *payload = some_payload(damage);
    uint64_t places[3] = {0, payload->bytes - 1, rng_below(&damage->rng, payload->bytes)};
    uint64_t at = places[rng_below(&damage->rng, 8) % 3];
    file_flip(path, payload->offset + at, (unsigned)rng_next(&damage->rng));
    damage->byte = payload->at + at;
    damage->has_byte = payload->is_raw && damage->byte < payload->raw_bytes;
    describe(damage, "a bit of byte %llu of a payload of \"%s\" (%s, %llu bytes)", ULL(at), payload->tensor,
             payload->is_raw ? "raw" : "a frame", ULL(payload->bytes));
}

/* At most LMCS_PAGE_BYTES, to zeros or random bytes. */
static void overwrite(struct damage *damage, const char *path, uint64_t at, uint64_t bytes)
{
    unsigned char page[LMCS_PAGE_BYTES] = {0}, before[LMCS_PAGE_BYTES];
    file_read(path, at, before, bytes);
    if (rng_below(&damage->rng, 3) == 0 || memcmp(page, before, bytes) == 0)
        rng_fill(&damage->rng, page, bytes);
    file_write(path, at, page, bytes);
}

void overwrite_page(struct damage *damage, const char *path)
{
    const struct subject *subject = damage->bench->subject;
    uint64_t i = spread(damage, subject->page_count + 1);
    uint64_t at = i < subject->page_count ? subject->pages[i] : subject->root;
    overwrite(damage, path, at, LMCS_PAGE_BYTES);
    describe(damage, "the page at %llu", ULL(at));
}

void overwrite_payload(struct damage *damage, const char *path)
{
    const struct payload *payload = some_payload(damage);
    uint64_t bytes = payload->bytes < 512 ? payload->bytes : UINT64_C(512) << rng_below(&damage->rng, 4);
    if (bytes > payload->bytes)
        bytes = payload->bytes;
    uint64_t at = rng_below(&damage->rng, payload->bytes - bytes + 1);
    overwrite(damage, path, payload->offset + at, bytes);
    describe(damage, "%llu bytes from byte %llu of a payload of \"%s\"", ULL(bytes), ULL(at), payload->tensor);
}

/* False: they are equal. */
static bool exchange(const char *path, uint64_t a, uint64_t b, uint64_t bytes)
{
    unsigned char *at_a = malloc(bytes), *at_b = malloc(bytes);
    EXPECT(at_a != NULL && at_b != NULL);
    file_read(path, a, at_a, bytes);
    file_read(path, b, at_b, bytes);
    file_write(path, a, at_b, bytes);
    file_write(path, b, at_a, bytes);
    bool differ = memcmp(at_a, at_b, bytes) != 0;
    free(at_a);
    free(at_b);
    return differ;
}

void swap_pages(struct damage *damage, const char *path)
{
    const struct subject *subject = damage->bench->subject;
    uint64_t i = spread(damage, subject->page_count);
    uint64_t k = (i + 1 + rng_below(&damage->rng, subject->page_count - 1)) % subject->page_count;
    exchange(path, subject->pages[i], subject->pages[k], LMCS_PAGE_BYTES);
    describe(damage, "the pages at %llu and %llu, swapped", ULL(subject->pages[i]), ULL(subject->pages[k]));
}

void swap_payloads(struct damage *damage, const char *path)
{
    const struct subject *subject = damage->bench->subject;
    const struct payload *a = some_payload(damage), *b = a;
    size_t tries = 0;
    do
        for (b = a; b == a || (tries < 100 && b->bytes != a->bytes); tries++)
            b = &subject->payloads[rng_below(&damage->rng, subject->payload_count)];
    while (!exchange(path, a->offset, b->offset, a->bytes < b->bytes ? a->bytes : b->bytes));
    damage->tensor2 = b->tensor;
    describe(damage, "payloads of \"%s\" and \"%s\", swapped", a->tensor, b->tensor);
}

void cut_file(struct damage *damage, const char *path)
{
    struct stat st;
    EXPECT(stat(path, &st) == 0);
    const struct subject *subject = damage->bench->subject;
    uint64_t used = subject->objects[subject->object_count - 1] + ((uint64_t)2 << 20);
    uint64_t bytes = rng_below(&damage->rng, damage->turn % 4 == 0 ? (uint64_t)st.st_size : used);
    EXPECT(truncate(path, (off_t)bytes) == 0);
    describe(damage, "the file, cut to %llu bytes", ULL(bytes));
}

/* ---- Damaging libpmemobj's data ---- */

void flip_header(struct damage *damage, const char *path)
{
    flip_in_line(damage, path, spread(damage, LMCS_POBJ_END / LINE) * LINE, "libpmemobj's header");
}

void flip_log(struct damage *damage, const char *path)
{
    uint64_t lanes[2];
    file_read(path, LMCS_POBJ_LANES, lanes, sizeof lanes);
    uint64_t lane = damage->turn % 2 == 0 ? rng_below(&damage->rng, 4) : rng_below(&damage->rng, lanes[1]);
    uint64_t line = spread(damage, LMCS_LANE_BYTES / LINE);
    flip_in_line(damage, path, lanes[0] + lane * LMCS_LANE_BYTES + line * LINE, "libpmemobj's log");
}

void flip_heap(struct damage *damage, const char *path)
{
    uint64_t at = damage->bench->subject->heap;
    uint64_t lines = (LMCS_HEAP_HEADER_BYTES + LMCS_ZONE_HEADER_BYTES) / LINE + LINES_OF_CHUNKS;
    flip_in_line(damage, path, at + spread(damage, lines) * LINE, "libpmemobj's heap");
}

void flip_chunk(struct damage *damage, const char *path)
{
    const struct subject *subject = damage->bench->subject;
    uint64_t zone = subject->heap + LMCS_HEAP_HEADER_BYTES, i = spread(damage, 2 * subject->object_count + 1);
    uint64_t at = subject->superblock;
    if (i < 2 * subject->object_count)
        at = subject->objects[i / 2];
    uint64_t chunk = (at - zone - LMCS_ZONE_META_BYTES) / LMCS_CHUNK_BYTES;
    struct lmcs_chunk_df header;
    uint64_t place = zone + LMCS_ZONE_HEADER_BYTES + chunk * sizeof header;
    if (i % 2 == 1) {
        file_read(path, place, &header, sizeof header);
        place += header.chunks * sizeof header;
    }
    uint64_t byte = place + rng_below(&damage->rng, sizeof header);
    file_flip(path, byte, (unsigned)rng_next(&damage->rng));
    describe(damage, "a bit of byte %llu, in the header of a chunk in use or behind one", ULL(byte));
}

void flip_object(struct damage *damage, const char *path)
{
    const struct subject *subject = damage->bench->subject;
    uint64_t run = subject->heap + LMCS_HEAP_HEADER_BYTES + LMCS_ZONE_META_BYTES;
    uint64_t i = spread(damage, subject->object_count + 9), at;
    if (i < subject->object_count)
        at = subject->objects[i] - LMCS_OBJECT_HEADER_BYTES + rng_below(&damage->rng, LMCS_OBJECT_HEADER_BYTES);
    else if (i == subject->object_count)
        at = subject->superblock - LMCS_OBJECT_HEADER_BYTES + rng_below(&damage->rng, LMCS_OBJECT_HEADER_BYTES);
    else
        at = run + rng_below(&damage->rng, RUN_BITMAP_END);
    file_flip(path, at, (unsigned)rng_next(&damage->rng));
    describe(damage, "a bit of byte %llu, in an object's header or the run of the root object", ULL(at));
}

void overwrite_heap(struct damage *damage, const char *path)
{
    const struct subject *subject = damage->bench->subject;
    uint64_t end = subject->heap + LMCS_HEAP_HEADER_BYTES + 4 * LMCS_PAGE_BYTES;
    uint64_t bytes = rng_below(&damage->rng, 2) == 0 ? 512 : LMCS_PAGE_BYTES;
    uint64_t at = damage->turn % 2 == 0 ? rng_below(&damage->rng, end / bytes) * bytes
                                        : (subject->heap - LMCS_PAGE_BYTES) / bytes * bytes +
                                              rng_below(&damage->rng, 6 * LMCS_PAGE_BYTES / bytes) * bytes;
    if (rng_below(&damage->rng, 8) == 0)
        at = bytes * rng_below(&damage->rng, LMCS_POBJ_END / bytes);
    overwrite(damage, path, at, bytes);
    describe(damage, "%llu bytes at %llu, of libpmemobj's metadata", ULL(bytes), ULL(at));
}
