/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/repair.c - restores the bytes of a damaged content (order and reasons: store/REPAIR.md).
 *
 * Stored bytes (the image) are repaired in memory, written to new room and read back; a commit switches to them and
 * records the blocks that remain lost. If blocks of a frame are still bad, the tensor is decoded with the help of other
 * sources and coded again.
 */
#include "repair/repair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "compact/parity.h"
#include "payload/encode.h"
#include "payload/layout.h"
#include "payload/read.h"
#include "records/safety.h"
#include "repair/sources.h"

#define READ_PIECE 4096u /* read at once around unreadable bytes */

struct repairing {
    struct lmcs_pool *pool;
    struct lmcs_sources *sources;
    struct lmcs_chain chain; /* as stored now, pinned */
    struct lmcs_identity identity;
    struct lmcs_parity_record parity;
    bool has_parity;
    bool was_lost; /* has recorded lost blocks */
    struct lmcs_scan scan;
    bool is_another; /* the image is another link between the same states */
    unsigned char *image;
    size_t image_bytes;
    char source[LMCS_SOURCE_TEXT];
};

static const struct lmcs_content *stored(const struct repairing *m)
{
    return &m->chain.links[0];
}

static void *map_memory(uint64_t bytes, struct lmcs_error *error)
{
    void *map = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        (void)lmcs_fail_map(error, bytes, "can't map %llu bytes", (unsigned long long)bytes);
        return NULL;
    }
    return map;
}

/* Adds a source to the text that the report shows. */
static void note_source(struct repairing *m, const char *source)
{
    if (strstr(m->source, source) != NULL)
        return;
    size_t used = strlen(m->source);
    snprintf(m->source + used, sizeof m->source - used, "%s%s", used > 0 ? ", " : "", source);
}

/* ---- Loading ---- */

static enum lmcs_status load(struct repairing *m, uint64_t content, bool *found, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(m->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    m->has_parity = false;
    status = lmcs_content_find(&txn, content, &m->chain.links[0], found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_identity_get(&txn, m->chain.links[0].df.identity, &m->identity, error);
    if (status == LMCS_OK && *found)
        status = lmcs_chain_load(&txn, content, &m->chain, error);
    if (status == LMCS_OK && *found)
        status = lmcs_lost_any(&txn, content, &m->was_lost, error);
    if (status == LMCS_OK && *found)
        status = lmcs_parity_find(&txn, content, &m->parity, &m->has_parity, error);
    if (status == LMCS_OK && *found)
        status = lmcs_chain_pin(m->pool, &m->chain, error);
    if (status == LMCS_OK && *found && m->has_parity) {
        status = lmcs_parity_pin(m->pool, &m->parity, error);
        if (status != LMCS_OK)
            lmcs_chain_unpin(m->pool, &m->chain);
    }
    lmcs_txn_end(&txn);
    return status;
}

static void unload(struct repairing *m)
{
    if (m->has_parity)
        lmcs_parity_unpin(m->pool, &m->parity);
    lmcs_chain_unpin(m->pool, &m->chain);
    lmcs_scan_free(&m->scan);
    if (m->image != NULL)
        munmap(m->image, m->image_bytes + 1);
    m->image = NULL;
}

/* Reads the stored bytes into the image; unreadable ones become zeros. */
static enum lmcs_status load_image(struct repairing *m, struct lmcs_error *error)
{
    const struct lmcs_content *content = stored(m);
    struct lmcs_error ignored;
    m->image_bytes = content->df.stored_bytes;
    m->image = map_memory(m->image_bytes, error);
    if (m->image == NULL)
        return LMCS_NO_MEMORY;
    for (uint64_t at = 0; at < m->image_bytes; at += LMC_BLOCK_BYTES) {
        uint64_t bytes = lmcs_block_bytes(m->image_bytes, at / LMC_BLOCK_BYTES);
        if (lmcs_payload_read(m->pool->media, content, at, m->image + at, bytes, &ignored) == LMCS_OK)
            continue;
        for (uint64_t k = at; k < at + bytes; k += READ_PIECE) {
            uint64_t n = at + bytes - k < READ_PIECE ? at + bytes - k : READ_PIECE;
            if (lmcs_payload_read(m->pool->media, content, k, m->image + k, n, &ignored) != LMCS_OK)
                memset(m->image + k, 0, n);
        }
    }
    return LMCS_OK;
}

static enum lmcs_status scan_image(struct repairing *m, struct lmcs_error *error)
{
    struct lmcs_bytes bytes = lmcs_bytes_of_memory(m->image);
    lmcs_scan_free(&m->scan);
    return lmcs_scan(&bytes, stored(m), &m->identity, m->pool->workers, &m->scan, error);
}

/* ---- Stored bytes ---- */

static enum lmcs_status try_parity(struct repairing *m, struct lmcs_error *error)
{
    uint64_t units = 0, bad = m->scan.bad_count;
    bool head = m->scan.head_is_bad;
    if (!m->has_parity || m->parity.df.stored_bytes != stored(m)->df.stored_bytes || lmcs_scan_is_clean(&m->scan))
        return LMCS_OK;
    enum lmcs_status status = lmcs_parity_repair(m->pool, stored(m)->id, &m->parity, m->image, &units, error);
    if (status == LMCS_OK && units > 0)
        status = scan_image(m, error);
    if (status == LMCS_OK && (m->scan.bad_count < bad || m->scan.head_is_bad != head))
        note_source(m, "parity");
    return status;
}

/* Replaces bad blocks, and a bad header or table, by those of another replica. */
static enum lmcs_status try_replica(struct repairing *m, const struct lmcs_media *replica, struct lmcs_error *error)
{
    const struct lmcs_content *content = stored(m);
    struct lmcs_scan there = {.blocks = 0};
    struct lmcs_bytes bytes = lmcs_bytes_of_pool(replica, content);
    struct lmcs_error ignored;
    uint64_t at = 0, n = 0, taken = 0;
    enum lmcs_status status = lmcs_scan(&bytes, content, &m->identity, m->pool->workers, &there, &ignored);
    if (status == LMCS_OK && m->scan.head_is_bad && !there.head_is_bad) {
        bool raw = content->df.payload == LMCS_PAYLOAD_RAW;
        at = raw ? lmcs_raw_table_at(content->df.raw_bytes) : 0;
        n = raw ? content->df.stored_bytes - at : there.frame.header_bytes;
        taken += lmcs_payload_read(replica, content, at, m->image + at, n, &ignored) == LMCS_OK;
    }
    for (uint64_t i = 0; status == LMCS_OK && i < there.blocks; i++)
        if (m->scan.bad[i] != 0 && there.bad[i] == 0 && lmcs_scan_place(&there, content, i, &at, &n))
            taken += lmcs_payload_read(replica, content, at, m->image + at, n, &ignored) == LMCS_OK;
    lmcs_scan_free(&there);
    if (taken == 0)
        return LMCS_OK;
    note_source(m, "the other replica");
    return scan_image(m, error);
}

/* Puts a table of hashes into the image. */
static enum lmcs_status write_table(struct repairing *m, const struct lmc_hash *hashes, const char *source,
                                    struct lmcs_error *error)
{
    const struct lmcs_content_df *df = &stored(m)->df;
    memcpy(m->image + lmcs_raw_table_at(df->raw_bytes), hashes, m->scan.blocks * sizeof *hashes);
    note_source(m, source);
    return scan_image(m, error);
}

/* Restores the table of a raw payload from its own blocks or from a source. */
static enum lmcs_status try_table(struct repairing *m, struct lmcs_error *error)
{
    struct lmc_hash *hashes;
    enum lmcs_status status = LMCS_OK;
    if (stored(m)->df.payload != LMCS_PAYLOAD_RAW || !m->scan.head_is_bad)
        return LMCS_OK;
    if (!m->scan.knows_hashes) {
        const struct lmc_hash *known = lmcs_sources_hashes(m->sources);
        return known != NULL ? write_table(m, known, lmcs_sources_name(m->sources), error) : LMCS_OK;
    }
    hashes = m->scan.hashes; /* write_table replaces the scan */
    m->scan.hashes = NULL;
    status = write_table(m, hashes, "its own blocks", error);
    free(hashes);
    return status;
}

static enum lmcs_status try_copies(struct repairing *m, struct lmcs_error *error)
{
    const struct lmcs_content_df *df = &stored(m)->df;
    bool took = false;
    if (df->payload != LMCS_PAYLOAD_RAW)
        return LMCS_OK;
    for (uint64_t i = 0; i < m->scan.blocks; i++) {
        unsigned char *to = m->image + i * LMC_BLOCK_BYTES;
        if (m->scan.bad[i] == 0)
            continue;
        const struct lmc_hash *hash = m->scan.knows_hashes ? &m->scan.hashes[i] : NULL;
        if (!lmcs_sources_block(m->sources, i, hash, to))
            continue;
        note_source(m, lmcs_sources_name(m->sources));
        took = true;
    }
    return took ? scan_image(m, error) : LMCS_OK;
}

/* Replaces a damaged link by another link between the same states: links have no decoded copies. */
static enum lmcs_status try_links(struct repairing *m, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    unsigned char *own = m->image;
    if (stored(m)->df.payload != LMCS_PAYLOAD_LINK)
        return LMCS_OK;
    m->image = map_memory(m->image_bytes, error);
    if (m->image == NULL) {
        m->image = own;
        return LMCS_NO_MEMORY;
    }
    for (size_t i = 0; status == LMCS_OK && !m->is_another; i++) {
        if (!lmcs_sources_link(m->sources, stored(m), i, m->image, m->image_bytes))
            break;
        status = scan_image(m, error);
        m->is_another = status == LMCS_OK && lmcs_scan_is_clean(&m->scan);
    }
    if (m->is_another)
        note_source(m, lmcs_sources_name(m->sources));
    unsigned char *other = m->is_another ? own : m->image;
    m->image = m->is_another ? m->image : own;
    munmap(other, m->image_bytes + 1);
    return status == LMCS_OK && !m->is_another ? scan_image(m, error) : status;
}

/* ---- Committing ---- */

static void fill_lost(const struct lmcs_scan *scan, unsigned char *lost)
{
    for (uint64_t i = 0; i < scan->blocks; i++)
        lost[i] = scan->bad[i] != 0 || scan->head_is_bad;
}

/* Switches to `made` (NULL: keeps the payload) and records the lost blocks of `scan` (NULL: none). *done false: the
 * content was freed or stored again, nothing changed. */
static enum lmcs_status commit(struct repairing *m, const struct lmcs_content *made, bool same_bytes,
                               struct lmcs_region *region, const struct lmcs_scan *scan, bool *done,
                               struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_content now;
    bool found, changed = false;
    unsigned char *lost = calloc(m->scan.blocks + 1, 1);
    *done = false;
    if (lost == NULL)
        return lmcs_fail_memory(error);
    if (scan != NULL)
        fill_lost(scan, lost);
    enum lmcs_status status = lmcs_txn_write(m->pool, &txn, error);
    if (status != LMCS_OK) {
        free(lost);
        return status;
    }
    status = lmcs_content_find(&txn, stored(m)->id, &now, &found, error);
    *done = status == LMCS_OK && found && lmcs_same_payload(&now, stored(m));
    if (*done && made != NULL) {
        struct lmcs_content with = *made;
        with.df.flags = now.df.flags;
        status = lmcs_content_swap(&txn, now.id, &with, same_bytes, error);
    }
    if (*done && status == LMCS_OK)
        status = lmcs_lost_set(&txn, now.id, scan != NULL ? lost : NULL, m->scan.blocks, &changed, error);
    if (*done && status == LMCS_OK && region != NULL)
        status = lmcs_region_commit(&txn, region, error);
    free(lost);
    if (status == LMCS_OK && *done && (made != NULL || changed))
        return lmcs_txn_commit(&txn, error);
    lmcs_txn_end(&txn);
    return status;
}

static enum lmcs_status write_bytes(struct repairing *m, struct lmcs_region *region, const unsigned char *bytes,
                                    uint64_t count, struct lmcs_content *made, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_payload_take(region, count, made, error);
    for (uint64_t at = 0; status == LMCS_OK && at < count; at += LMC_BLOCK_BYTES)
        status = lmcs_payload_write(m->pool->heap, made, at, bytes + at, lmcs_block_bytes(count, at / LMC_BLOCK_BYTES),
                                    error);
    lmcs_heap_drain(m->pool->heap);
    return status == LMCS_OK ? lmcs_heap_sync(m->pool->heap, error) : status;
}

/* Scans the written payload, which must be as good as the scanned image (NULL: whole). */
static enum lmcs_status look_again(struct repairing *m, const struct lmcs_content *made, const struct lmcs_scan *image,
                                   struct lmcs_error *error)
{
    uint64_t most_bad = image == NULL ? 0 : image->bad_count;
    bool head_may_be_bad = image != NULL && image->head_is_bad;
    struct lmcs_scan scan = {.blocks = 0};
    struct lmcs_bytes bytes = lmcs_bytes_of_pool(m->pool->media, made);
    enum lmcs_status status = lmcs_scan(&bytes, made, &m->identity, m->pool->workers, &scan, error);
    if (status == LMCS_OK && (scan.bad_count > most_bad || (scan.head_is_bad && !head_may_be_bad)))
        status = lmcs_fail(error, LMCS_IO, 0, "%s: the repaired bytes of tensor \"%s\" cannot be read back",
                           m->pool->path, m->identity.name);
    lmcs_scan_free(&scan);
    return status;
}

static enum lmcs_status decode_link(struct repairing *m, const struct lmcs_content *made, struct lmcs_error *error)
{
    struct lmcs_chain chain = m->chain;
    chain.links[0] = *made;
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&m->identity);
    return lmcs_chain_read(m->pool, &chain, &tensor, NULL, NULL, error);
}

/* Writes the image to new room and switches to it. */
static enum lmcs_status keep_image(struct repairing *m, bool *done, struct lmcs_error *error)
{
    struct lmcs_region region;
    struct lmcs_content made = *stored(m);
    lmcs_region_init(&region, m->pool, 1);
    enum lmcs_status status = write_bytes(m, &region, m->image, m->image_bytes, &made, error);
    if (status == LMCS_OK)
        status = look_again(m, &made, &m->scan, error);
    if (status == LMCS_OK && m->is_another)
        status = decode_link(m, &made, error);
    if (status == LMCS_OK)
        status = commit(m, &made, !m->is_another, &region, &m->scan, done, error);
    lmcs_region_end(&region);
    return status;
}

/* ---- Decoding and coding again ---- */

/* Decodes the tensor; takes bad blocks from other sources. *whole false: a block has no source. */
static enum lmcs_status decode(struct repairing *m, unsigned char *decoded, bool *whole, struct lmcs_error *error)
{
    const struct lmcs_content_df *df = &stored(m)->df;
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&m->identity);
    struct lmcs_reader *reader = NULL;
    struct lmcs_error ignored;
    (void)error;
    if (m->scan.header != NULL && lmcs_reader_open(m->pool, &m->chain, &tensor, NULL, &reader, &ignored) != LMCS_OK)
        reader = NULL;
    *whole = true;
    for (uint64_t i = 0; *whole && i < m->scan.blocks; i++) {
        unsigned char *to = decoded + i * LMC_BLOCK_BYTES;
        const struct lmc_hash *hash = m->scan.knows_hashes ? &m->scan.hashes[i] : NULL;
        if (m->scan.bad[i] == 0 && reader != NULL && lmcs_reader_block(reader, i, to, &ignored) == LMCS_OK)
            continue;
        *whole = lmcs_sources_block(m->sources, i, hash, to);
        if (*whole)
            note_source(m, lmcs_sources_name(m->sources));
    }
    lmcs_reader_close(reader);
    struct lmc_hash *hashes = *whole ? malloc((m->scan.blocks + 1) * sizeof *hashes) : NULL;
    for (uint64_t i = 0; hashes != NULL && i < m->scan.blocks; i++)
        hashes[i] = lmc_hash128(decoded + i * LMC_BLOCK_BYTES, lmcs_block_bytes(df->raw_bytes, i));
    if (hashes != NULL) {
        struct lmc_hash digest =
            lmc_digest(m->identity.df.dtype, m->identity.df.ndim, m->identity.shape, hashes, m->scan.blocks);
        *whole = digest.low == df->digest_low && digest.high == df->digest_high;
    }
    *whole = *whole && hashes != NULL;
    free(hashes);
    return LMCS_OK;
}

/* Returns the decoded base; NULL: there is none, or it is unreadable. */
static unsigned char *decode_base(struct repairing *m, struct lmcs_chain *base)
{
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&m->identity);
    struct lmcs_error ignored;
    if (m->chain.length < 2)
        return NULL;
    *base = (struct lmcs_chain){.length = m->chain.length - 1};
    memcpy(base->links, m->chain.links + 1, base->length * sizeof base->links[0]);
    unsigned char *bytes = map_memory(base->links[0].df.raw_bytes, &ignored);
    if (bytes != NULL && lmcs_chain_read(m->pool, base, &tensor, bytes, NULL, &ignored) != LMCS_OK) {
        munmap(bytes, base->links[0].df.raw_bytes + 1);
        bytes = NULL;
    }
    return bytes;
}

static enum lmcs_status store_raw(struct repairing *m, struct lmcs_region *region, unsigned char *decoded,
                                  struct lmcs_content *made, struct lmcs_error *error)
{
    uint64_t raw_bytes = stored(m)->df.raw_bytes, count = lmcs_raw_stored_bytes(raw_bytes);
    unsigned char *bytes = map_memory(count, error);
    if (bytes == NULL)
        return LMCS_NO_MEMORY;
    memcpy(bytes, decoded, raw_bytes);
    for (uint64_t i = 0; m->scan.blocks > 1 && i < m->scan.blocks; i++) {
        struct lmc_hash hash = lmc_hash128(decoded + i * LMC_BLOCK_BYTES, lmcs_block_bytes(raw_bytes, i));
        memcpy(bytes + lmcs_raw_table_at(raw_bytes) + i * sizeof hash, &hash, sizeof hash);
    }
    *made = *stored(m);
    made->df.payload = LMCS_PAYLOAD_RAW;
    made->df.base_count = 0;
    enum lmcs_status status = write_bytes(m, region, bytes, count, made, error);
    munmap(bytes, count + 1);
    return status == LMCS_OK ? look_again(m, made, NULL, error) : status;
}

static enum lmcs_status code_again(struct repairing *m, unsigned char *decoded, struct lmcs_region *region,
                                   struct lmcs_content *made, struct lmcs_error *error)
{
    struct lmcs_chain *base = malloc(sizeof *base);
    if (base == NULL)
        return lmcs_fail_memory(error);
    unsigned char *base_bytes = decode_base(m, base);
    struct lmcs_encoding encoding = {.pool = m->pool,
                                     .region = region,
                                     .raw_bytes = stored(m)->df.raw_bytes,
                                     .data = decoded,
                                     .base = base_bytes,
                                     .base_chain = base,
                                     .made = *stored(m)};
    encoding.tensor = lmcs_identity_tensor(&m->identity);
    enum lmcs_status status = lmcs_encoding_run(&encoding, error);
    *made = encoding.made;
    if (status == LMCS_OK && !encoding.worthwhile)
        status = store_raw(m, region, decoded, made, error);
    if (base_bytes != NULL)
        munmap(base_bytes, encoding.raw_bytes + 1);
    free(base);
    return status;
}

static enum lmcs_status repair_decoded(struct repairing *m, bool *done, struct lmcs_error *error)
{
    struct lmcs_region region;
    struct lmcs_content made;
    uint64_t raw_bytes = stored(m)->df.raw_bytes;
    bool whole = false;
    unsigned char *decoded = map_memory(raw_bytes, error);
    *done = false;
    if (decoded == NULL)
        return LMCS_NO_MEMORY;
    lmcs_region_init(&region, m->pool, 1);
    enum lmcs_status status = decode(m, decoded, &whole, error);
    if (status == LMCS_OK && whole) {
        status = code_again(m, decoded, &region, &made, error);
        if (status == LMCS_OK)
            status = lmcs_heap_sync(m->pool->heap, error);
        if (status == LMCS_OK)
            status = commit(m, &made, false, &region, NULL, done, error);
    }
    lmcs_region_end(&region);
    munmap(decoded, raw_bytes + 1);
    return status;
}

/* ---- One content ---- */

static enum lmcs_status repair_stored(struct repairing *m, struct lmcs_error *error)
{
    enum lmcs_status status = load_image(m, error);
    if (status == LMCS_OK)
        status = scan_image(m, error);
    if (status == LMCS_OK)
        status = try_parity(m, error);
    for (size_t i = 0; status == LMCS_OK && !lmcs_scan_is_clean(&m->scan) && i < lmcs_media_replicas(m->pool->media);
         i++)
        status = try_replica(m, lmcs_media_replica(m->pool->media, i), error);
    if (status == LMCS_OK && !lmcs_scan_is_clean(&m->scan))
        status = lmcs_sources_find(m->sources, stored(m), &m->identity, error);
    if (status == LMCS_OK && !lmcs_scan_is_clean(&m->scan))
        status = try_table(m, error);
    if (status == LMCS_OK && !lmcs_scan_is_clean(&m->scan))
        status = try_copies(m, error);
    if (status == LMCS_OK && !lmcs_scan_is_clean(&m->scan))
        status = try_links(m, error);
    return status;
}

/* Records the bad blocks as lost. */
static enum lmcs_status give_up(struct repairing *m, struct lmcs_repaired *repaired, struct lmcs_error *error)
{
    bool done;
    repaired->blocks = m->scan.blocks;
    repaired->lost = calloc(m->scan.blocks + 1, 1);
    if (repaired->lost == NULL)
        return lmcs_fail_memory(error);
    fill_lost(&m->scan, repaired->lost);
    return commit(m, NULL, true, NULL, &m->scan, &done, error);
}

static enum lmcs_status scan_stored(struct repairing *m, struct lmcs_error *error)
{
    struct lmcs_bytes bytes = lmcs_bytes_of_pool(m->pool->media, stored(m));
    lmcs_scan_free(&m->scan);
    return lmcs_scan(&bytes, stored(m), &m->identity, m->pool->workers, &m->scan, error);
}

static enum lmcs_status repair_one(struct repairing *m, struct lmcs_repaired *repaired, struct lmcs_error *error)
{
    uint64_t bad = m->scan.bad_count, id = stored(m)->id;
    bool head = m->scan.head_is_bad, done = true, found = true;
    enum lmcs_status status = repair_stored(m, error);
    if (status != LMCS_OK)
        return status;
    if (m->scan.bad_count < bad || m->scan.head_is_bad != head) {
        status = keep_image(m, &done, error);
        if (status == LMCS_DAMAGED && m->is_another) { /* it yields another state, or its line is unreadable */
            status = scan_stored(m, error);
            return status == LMCS_OK ? give_up(m, repaired, error) : status;
        }
        if (status != LMCS_OK || !done || lmcs_scan_is_clean(&m->scan)) {
            repaired->is_whole = status == LMCS_OK;
            return status;
        }
        unload(m);
        status = load(m, id, &found, error);
        if (status != LMCS_OK || !found) {
            m->chain.length = 0;
            m->has_parity = false;
            repaired->is_whole = status == LMCS_OK;
            return status;
        }
        status = scan_stored(m, error);
    }
    done = false;
    if (status == LMCS_OK && stored(m)->df.payload == LMCS_PAYLOAD_FRAME)
        status = repair_decoded(m, &done, error);
    repaired->is_whole = status == LMCS_OK && done;
    return status == LMCS_OK && !done ? give_up(m, repaired, error) : status;
}

enum lmcs_status lmcs_repair(struct lmcs_pool *pool, struct lmcs_sources *sources, uint64_t content,
                             struct lmcs_repaired *repaired, struct lmcs_error *error)
{
    struct repairing *m = calloc(1, sizeof *m);
    bool found = false, done;
    *repaired = (struct lmcs_repaired){.lost = NULL};
    if (m == NULL)
        return lmcs_fail_memory(error);
    m->pool = pool;
    m->sources = sources;
    enum lmcs_status status = load(m, content, &found, error);
    if (status == LMCS_OK && found) {
        status = scan_stored(m, error);
        if (status == LMCS_OK && !lmcs_scan_is_clean(&m->scan)) {
            status = repair_one(m, repaired, error);
        } else if (status == LMCS_OK) {
            repaired->is_whole = true;
            if (m->was_lost)
                status = commit(m, NULL, true, NULL, NULL, &done, error);
        }
        lmcs_sources_release(sources);
        unload(m);
    } else if (status == LMCS_OK) {
        repaired->is_whole = true;
    }
    snprintf(repaired->source, sizeof repaired->source, "%s", m->source);
    free(m);
    return status;
}
