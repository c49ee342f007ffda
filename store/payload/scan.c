/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/scan.c - checks the stored bytes of a content.
 *
 * The record's digest covers the block hashes. If the stored hashes of a raw payload do not match it, the hashes of the
 * stored blocks, or a mixture of both, replace them if the digest matches.
 */
#include "payload/scan.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/workers.h"
#include "payload/layout.h"
#include "payload/read.h"

#define MOST_MIXED 10u /* most blocks with two candidate hashes: 1,024 digests to try */

static enum lmcs_status read_pool(const struct lmcs_bytes *bytes, uint64_t at, void *to, uint64_t count,
                                  struct lmcs_error *error)
{
    return lmcs_payload_read(bytes->media, bytes->content, at, to, count, error);
}

static enum lmcs_status read_memory(const struct lmcs_bytes *bytes, uint64_t at, void *to, uint64_t count,
                                    struct lmcs_error *error)
{
    (void)error;
    memcpy(to, bytes->memory + at, count);
    return LMCS_OK;
}

struct lmcs_bytes lmcs_bytes_of_pool(const struct lmcs_media *media, const struct lmcs_content *content)
{
    return (struct lmcs_bytes){.read = read_pool, .media = media, .content = content};
}

struct lmcs_bytes lmcs_bytes_of_memory(const unsigned char *memory)
{
    return (struct lmcs_bytes){.read = read_memory, .memory = memory};
}

uint64_t lmcs_block_bytes(uint64_t raw_bytes, uint64_t block)
{
    uint64_t left = raw_bytes - block * LMC_BLOCK_BYTES;
    return left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
}

static bool same_hash(const struct lmc_hash *a, const struct lmc_hash *b)
{
    return a->low == b->low && a->high == b->high;
}

struct scanning {
    const struct lmcs_bytes *bytes;
    const struct lmcs_content *content;
    const struct lmcs_identity *identity;
    struct lmcs_scan *scan;
    struct lmc_hash *found; /* raw: hashes of the stored blocks */
    _Atomic uint64_t bad;
    _Atomic bool unreadable;
};

static void note_bad(struct scanning *s, uint64_t block)
{
    s->scan->bad[block] = 1;
    s->bad++;
}

static bool fits_digest(const struct scanning *s, const struct lmc_hash *hashes)
{
    const struct lmcs_identity *identity = s->identity;
    struct lmc_hash digest =
        lmc_digest(identity->df.dtype, identity->df.ndim, identity->shape, hashes, s->scan->blocks);
    return digest.low == s->content->df.digest_low && digest.high == s->content->df.digest_high;
}

/* Reads stored bytes into new memory. *data NULL: unreadable. */
static enum lmcs_status fetch(struct scanning *s, uint64_t at, uint64_t count, unsigned char **data,
                              struct lmcs_error *error)
{
    *data = NULL;
    if (s->bytes->go_on != NULL && !s->bytes->go_on(s->bytes->context, count))
        return LMCS_CANCELLED;
    *data = malloc(count + 1);
    if (*data == NULL)
        return LMCS_NO_MEMORY;
    enum lmcs_status status = s->bytes->read(s->bytes, at, *data, count, error);
    if (status == LMCS_OK)
        return LMCS_OK;
    free(*data);
    *data = NULL;
    s->unreadable = true;
    return status == LMCS_DAMAGED || status == LMCS_IO ? LMCS_OK : status;
}

/* Likewise; bytes in memory are not copied. The caller frees *room. */
static enum lmcs_status find(struct scanning *s, uint64_t at, uint64_t count, const unsigned char **data,
                             unsigned char **room, struct lmcs_error *error)
{
    *room = NULL;
    enum lmcs_status status = s->bytes->memory == NULL ? fetch(s, at, count, room, error) : LMCS_OK;
    *data = s->bytes->memory == NULL ? *room : s->bytes->memory + at;
    return status;
}

/* ---- Raw ---- */

static enum lmcs_status hash_job(void *context, uint64_t block, struct lmcs_error *error)
{
    struct scanning *s = context;
    uint64_t bytes = lmcs_block_bytes(s->content->df.raw_bytes, block);
    const unsigned char *data;
    unsigned char *room;
    enum lmcs_status status = find(s, block * LMC_BLOCK_BYTES, bytes, &data, &room, error);
    if (data != NULL)
        s->found[block] = lmc_hash128(data, bytes);
    else
        s->scan->bad[block] = 2; /* unreadable: the hash is unknown */
    free(room);
    return status;
}

/* Tries each mixture of stored and computed hashes. True: the digest matches scan->hashes. */
static bool mix(struct scanning *s)
{
    struct lmcs_scan *scan = s->scan;
    uint64_t doubtful[MOST_MIXED];
    size_t count = 0;
    for (uint64_t i = 0; i < scan->blocks; i++) {
        if (scan->bad[i] == 2 || same_hash(&scan->hashes[i], &s->found[i]))
            continue;
        if (count == MOST_MIXED)
            return false;
        doubtful[count++] = i;
    }
    struct lmc_hash *stored = malloc((count + 1) * sizeof *stored);
    if (stored == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        stored[i] = scan->hashes[doubtful[i]];
    bool fits = false;
    for (uint32_t choice = 0; !fits && choice < 1u << count; choice++) {
        for (size_t i = 0; i < count; i++)
            scan->hashes[doubtful[i]] = (choice >> i & 1) != 0 ? s->found[doubtful[i]] : stored[i];
        fits = fits_digest(s, scan->hashes);
    }
    free(stored);
    return fits;
}

/* Finds the block hashes of a raw payload. */
static enum lmcs_status find_hashes(struct scanning *s)
{
    struct lmcs_scan *scan = s->scan;
    struct lmcs_error error;
    uint64_t bytes = scan->blocks * sizeof *scan->hashes;
    if (scan->blocks == 1) { /* no table: the digest covers this one hash */
        scan->hashes[0] = s->found[0];
        scan->knows_hashes = scan->bad[0] == 0 && fits_digest(s, scan->hashes);
        return LMCS_OK;
    }
    uint64_t at = lmcs_raw_table_at(s->content->df.raw_bytes);
    enum lmcs_status status = s->bytes->read(s->bytes, at, scan->hashes, bytes, &error);
    if (status != LMCS_OK && status != LMCS_DAMAGED && status != LMCS_IO)
        return status;
    if (status != LMCS_OK)
        memset(scan->hashes, 0, bytes);
    scan->knows_hashes = status == LMCS_OK && fits_digest(s, scan->hashes);
    scan->head_is_bad = !scan->knows_hashes;
    if (scan->head_is_bad) {
        struct lmc_hash *stored = malloc(bytes);
        if (stored == NULL)
            return LMCS_NO_MEMORY;
        memcpy(stored, scan->hashes, bytes);
        bool all_there = true;
        for (uint64_t i = 0; i < scan->blocks; i++)
            all_there &= scan->bad[i] == 0;
        scan->knows_hashes = all_there && fits_digest(s, s->found);
        memcpy(scan->hashes, scan->knows_hashes ? s->found : stored, bytes);
        free(stored);
        scan->knows_hashes = scan->knows_hashes || mix(s);
    }
    return LMCS_OK;
}

static enum lmcs_status scan_raw(struct scanning *s, struct lmcs_workers *workers)
{
    struct lmcs_scan *scan = s->scan;
    s->found = calloc(scan->blocks + 1, sizeof *s->found);
    if (s->found == NULL)
        return LMCS_NO_MEMORY;
    enum lmcs_status status = lmcs_workers_try(workers, hash_job, NULL, s, scan->blocks, NULL);
    if (status == LMCS_OK)
        status = find_hashes(s);
    for (uint64_t i = 0; status == LMCS_OK && i < scan->blocks; i++) {
        bool bad = scan->bad[i] != 0 || !scan->knows_hashes || !same_hash(&scan->hashes[i], &s->found[i]);
        scan->bad[i] = 0;
        if (bad)
            note_bad(s, i);
    }
    return status;
}

/* ---- Frames ---- */

/* LMCS_UNSUPPORTED: the header is sound, but of a newer version. */
static enum lmcs_status status_of_header(enum lmc_status coded)
{
    return coded == LMC_UNSUPPORTED ? LMCS_UNSUPPORTED : LMCS_OK;
}

static bool read_digest(const struct scanning *s, struct lmc_hash *digest)
{
    const struct lmc_frame *frame = &s->scan->frame;
    const struct lmcs_identity_df *df = &s->identity->df;
    if (s->content->df.payload == LMCS_PAYLOAD_LINK)
        return frame->predictor != 0 && frame->output_count == frame->base_count &&
               lmcs_link_digest(frame, df->ndim, s->identity->shape, digest);
    return frame->predictor == 0 && frame->output_count == 1 &&
           lmc_frame_digest(frame, df->dtype, df->ndim, s->identity->shape, digest) == LMC_OK;
}

static enum lmcs_status read_header(struct scanning *s, bool *sound)
{
    const struct lmcs_content_df *df = &s->content->df;
    struct lmcs_scan *scan = s->scan;
    unsigned char prefix[LMC_FRAME_PREFIX_BYTES];
    uint64_t header_bytes = 0, most = 65536 + 128 * scan->blocks;
    uint64_t n = df->stored_bytes < sizeof prefix ? df->stored_bytes : sizeof prefix;
    const char *why = "";
    struct lmcs_error error;
    struct lmc_hash digest;
    *sound = false;
    enum lmcs_status status = s->bytes->read(s->bytes, 0, prefix, n, &error);
    if (status != LMCS_OK)
        return status == LMCS_DAMAGED || status == LMCS_IO ? LMCS_OK : status;
    enum lmc_status coded = lmc_frame_header_bytes(prefix, n, &header_bytes, &why);
    if (coded != LMC_OK || header_bytes > df->stored_bytes || header_bytes > most)
        return status_of_header(coded);
    status = fetch(s, 0, header_bytes, &scan->header, &error);
    if (status != LMCS_OK || scan->header == NULL)
        return status;
    coded = lmc_frame_parse(scan->header, header_bytes, &scan->frame, &why);
    *sound = coded == LMC_OK && scan->frame.raw_bytes == df->raw_bytes && scan->frame.frame_bytes == df->stored_bytes &&
             scan->frame.base_count == df->base_count && read_digest(s, &digest) && digest.low == df->digest_low &&
             digest.high == df->digest_high;
    if (!*sound) {
        free(scan->header);
        scan->header = NULL;
    }
    return status_of_header(coded);
}

static enum lmcs_status frame_job(void *context, uint64_t block, struct lmcs_error *error)
{
    struct scanning *s = context;
    uint64_t at;
    struct lmc_block coded = lmc_frame_block(&s->scan->frame, block, &at);
    const unsigned char *data;
    unsigned char *room;
    enum lmcs_status status = find(s, at, coded.coded_bytes, &data, &room, error);
    s->scan->hashes[block] = coded.raw_hash;
    if (status == LMCS_OK && (data == NULL || lmc_hash64(data, coded.coded_bytes, block) != coded.coded_hash))
        note_bad(s, block);
    free(room);
    return status;
}

static enum lmcs_status scan_frame(struct scanning *s, struct lmcs_workers *workers)
{
    struct lmcs_scan *scan = s->scan;
    bool sound;
    enum lmcs_status status = read_header(s, &sound);
    if (status != LMCS_OK)
        return status;
    scan->head_is_bad = !sound;
    scan->knows_hashes = sound;
    for (uint64_t i = 0; !sound && i < scan->blocks; i++)
        note_bad(s, i);
    return sound ? lmcs_workers_try(workers, frame_job, NULL, s, scan->blocks, NULL) : LMCS_OK;
}

/* ---- Both ---- */

static enum lmcs_status begin(const struct lmcs_content *content, const struct lmcs_identity *identity,
                              struct lmcs_scan *scan, struct lmcs_error *error)
{
    uint64_t raw_bytes;
    *scan = (struct lmcs_scan){.blocks = lmc_block_count(content->df.raw_bytes), .why = ""};
    if (!lmcs_shape_bytes(identity->df.dtype, identity->df.ndim, identity->shape, &raw_bytes) ||
        raw_bytes != content->df.raw_bytes)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "damaged metadata: tensor \"%s\" has not the size of its shape",
                         identity->name);
    scan->bad = calloc(scan->blocks + 1, 1);
    scan->hashes = calloc(scan->blocks + 1, sizeof *scan->hashes);
    return scan->bad == NULL || scan->hashes == NULL ? lmcs_fail_memory(error) : LMCS_OK;
}

enum lmcs_status lmcs_scan_head(const struct lmcs_bytes *bytes, const struct lmcs_content *content,
                                const struct lmcs_identity *identity, struct lmcs_scan *scan, struct lmcs_error *error)
{
    struct scanning s = {.bytes = bytes, .content = content, .identity = identity, .scan = scan};
    enum lmcs_status status = begin(content, identity, scan, error);
    bool sound = false;
    uint64_t at = lmcs_raw_table_at(content->df.raw_bytes);
    if (status != LMCS_OK || scan->blocks == 0)
        return status;
    if (content->df.payload >= LMCS_PAYLOAD_LINK) /* a link's header has the hashes of several arrays */
        return LMCS_OK;
    if (content->df.payload == LMCS_PAYLOAD_FRAME) {
        status = read_header(&s, &sound);
        for (uint64_t i = 0; sound && i < scan->blocks; i++)
            scan->hashes[i] = lmc_frame_block(&scan->frame, i, &at).raw_hash;
    } else if (scan->blocks > 1) {
        sound = bytes->read(bytes, at, scan->hashes, scan->blocks * sizeof *scan->hashes, error) == LMCS_OK &&
                fits_digest(&s, scan->hashes);
    }
    scan->knows_hashes = sound;
    return status == LMCS_OK ? LMCS_OK : lmcs_fail(error, status, 0, "tensor \"%s\" can't be read", identity->name);
}

enum lmcs_status lmcs_scan(const struct lmcs_bytes *bytes, const struct lmcs_content *content,
                           const struct lmcs_identity *identity, struct lmcs_workers *workers, struct lmcs_scan *scan,
                           struct lmcs_error *error)
{
    struct scanning s = {.bytes = bytes, .content = content, .identity = identity, .scan = scan};
    enum lmcs_status status = begin(content, identity, scan, error);
    if (status != LMCS_OK)
        return status;
    if (scan->blocks > 0 && content->df.payload != LMCS_PAYLOAD_LINKED) /* a linked content has no bytes of its own */
        status = content->df.payload == LMCS_PAYLOAD_RAW ? scan_raw(&s, workers) : scan_frame(&s, workers);
    free(s.found);
    scan->bad_count = s.bad;
    scan->why = s.unreadable ? "the medium can't be read" : "its bytes are not what was written (checksum)";
    if (status == LMCS_NO_MEMORY)
        return lmcs_fail_memory(error);
    if (status == LMCS_UNSUPPORTED)
        return lmcs_fail_newer(error, "content %llu (tensor \"%s\"): its frame", (unsigned long long)content->id,
                               identity->name);
    return status == LMCS_OK ? LMCS_OK : lmcs_fail(error, status, 0, "tensor \"%s\" can't be scanned", identity->name);
}

void lmcs_scan_free(struct lmcs_scan *scan)
{
    free(scan->bad);
    free(scan->hashes);
    free(scan->header);
    *scan = (struct lmcs_scan){0};
}

bool lmcs_scan_place(const struct lmcs_scan *scan, const struct lmcs_content *content, uint64_t block, uint64_t *at,
                     uint64_t *bytes)
{
    if (content->df.payload == LMCS_PAYLOAD_RAW) {
        *at = block * LMC_BLOCK_BYTES;
        *bytes = lmcs_block_bytes(content->df.raw_bytes, block);
        return true;
    }
    if (scan->header == NULL)
        return false;
    *bytes = lmc_frame_block(&scan->frame, block, at).coded_bytes;
    return true;
}
