/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive_decode.c - contents of an archive's file, decoded without a pool.
 *
 * Block by block along the chain, from where the payloads lie in the file. Nothing is believed before its checksum.
 */
#include "archive_decode.h"

#include <stdlib.h>
#include <string.h>

#include "payload.h"

static enum lmcs_status fail_content(const struct lmcs_decoding *d, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "the archive is damaged: content %zu, tensor \"%.64s\": %s",
                     (size_t)(d->links[0].content - d->reader->contents) + 1, d->tensor->name, why);
}

static enum lmcs_status open_frame(struct lmcs_decoding *d, struct lmcs_archive_link *link, struct lmcs_error *error)
{
    unsigned char prefix[LMC_FRAME_PREFIX_BYTES];
    const struct lmcs_tensor *tensor = &d->reader->identities[link->content->identity]->tensor;
    uint64_t header_bytes = 0, most = 65536 + 64 * lmc_block_count(d->raw_bytes);
    const char *why = "its frame's header is impossibly long";
    struct lmc_hash digest;
    enum lmcs_status status = lmcs_pieces_read(&link->pieces, 0, prefix, sizeof prefix, error);
    if (status != LMCS_OK)
        return status;
    if (lmc_frame_header_bytes(prefix, sizeof prefix, &header_bytes, &why) != LMC_OK || header_bytes > most)
        return fail_content(d, why, error);
    if ((link->header = malloc(header_bytes)) == NULL)
        return lmcs_fail_memory(error);
    status = lmcs_pieces_read(&link->pieces, 0, link->header, header_bytes, error);
    if (status != LMCS_OK)
        return status;
    if (lmc_frame_parse(link->header, header_bytes, &link->frame, &why) != LMC_OK)
        return fail_content(d, why, error);
    const struct lmc_frame *frame = &link->frame;
    if (frame->raw_bytes != d->raw_bytes || frame->frame_bytes != link->content->stored_bytes ||
        frame->base_count != (link->content->base != 0) || frame->output_count != 1 ||
        lmc_frame_digest(frame, tensor->dtype, tensor->ndim, tensor->shape, &digest) != LMC_OK ||
        digest.low != link->content->digest.low || digest.high != link->content->digest.high)
        return fail_content(d, "its frame is not the one that its record describes", error);
    if (frame->base_count == 1) {
        const struct lmc_hash *base = &link[1].content->digest;
        if (frame->base_digest[0].low != base->low || frame->base_digest[0].high != base->high)
            return fail_content(d, "its frame was coded against another base", error);
    }
    return LMCS_OK;
}

static enum lmcs_status open_raw(struct lmcs_decoding *d, struct lmcs_archive_link *link, struct lmcs_error *error)
{
    uint64_t blocks = lmc_block_count(d->raw_bytes);
    if (blocks <= 1)
        return LMCS_OK;
    if ((link->header = malloc(blocks * sizeof(struct lmc_hash))) == NULL)
        return lmcs_fail_memory(error);
    return lmcs_pieces_read(&link->pieces, lmcs_raw_table_at(d->raw_bytes), link->header,
                            blocks * sizeof(struct lmc_hash), error);
}

/* A block of a raw payload is right when its hash is that of the table, and the table when the digest says so. */
static bool raw_is_right(const struct lmcs_decoding *d, const struct lmcs_archive_link *link, uint64_t block,
                         const void *data, uint64_t bytes)
{
    const struct lmcs_tensor *tensor = &d->reader->identities[link->content->identity]->tensor;
    const struct lmc_hash hash = lmc_hash128(data, bytes), *table = (const struct lmc_hash *)link->header;
    if (table != NULL && (table[block].low != hash.low || table[block].high != hash.high))
        return false;
    if (block > 0)
        return true;
    struct lmc_hash digest = lmc_digest(tensor->dtype, tensor->ndim, tensor->shape, table != NULL ? table : &hash,
                                        lmc_block_count(d->raw_bytes));
    return digest.low == link->content->digest.low && digest.high == link->content->digest.high;
}

enum lmcs_status lmcs_decoding_block(struct lmcs_decoding *d, uint64_t block, const void **data,
                                     struct lmcs_error *error)
{
    uint64_t at = block * LMC_BLOCK_BYTES, left = d->raw_bytes - at;
    uint64_t bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    const void *base = NULL;
    for (size_t i = d->length; i-- > 0;) {
        struct lmcs_archive_link *link = &d->links[i];
        unsigned char *to = d->blocks[i & 1];
        const void *bases[1] = {base};
        const char *why = "its bytes are not what was written (checksum)";
        if (link->content->payload == LMCS_PAYLOAD_RAW) {
            enum lmcs_status status = lmcs_pieces_read(&link->pieces, at, to, bytes, error);
            if (status != LMCS_OK)
                return status;
            if (!raw_is_right(d, link, block, to, bytes))
                return fail_content(d, why, error);
        } else {
            uint64_t coded_at;
            struct lmc_block coded = lmc_frame_block(&link->frame, block, &coded_at);
            if (coded.coded_bytes > lmc_block_bound(bytes))
                return fail_content(d, "a coded block is impossibly long", error);
            enum lmcs_status status = lmcs_pieces_read(&link->pieces, coded_at, d->coded, coded.coded_bytes, error);
            if (status != LMCS_OK)
                return status;
            enum lmc_status result = lmc_decode_block(&link->frame, block, d->coded, coded.coded_bytes,
                                                      base != NULL ? bases : NULL, to, bytes, &why);
            if (result != LMC_OK)
                return result == LMC_NO_MEMORY ? lmcs_fail_memory(error) : fail_content(d, why, error);
        }
        base = to;
    }
    *data = base;
    return LMCS_OK;
}

enum lmcs_status lmcs_decoding_open(struct lmcs_decoding *d, const struct lmcs_archive_content *content, bool *possible,
                                    struct lmcs_error *error)
{
    const struct lmcs_archive_identity *identity = d->reader->identities[content->identity];
    d->tensor = &identity->tensor;
    d->raw_bytes = identity->raw_bytes;
    *possible = false;
    for (d->length = 0;; content = &d->reader->contents[content->base - 1]) {
        if (content->is_known || d->length > LMCS_CHAIN_BOUND)
            return LMCS_OK;
        struct lmcs_archive_link *link = &d->links[d->length++];
        *link = (struct lmcs_archive_link){.content = content};
        lmcs_pieces_init(&link->pieces, d->fd, d->start, content);
        if (content->base == 0)
            break;
    }
    *possible = true;
    if (d->raw_bytes == 0) {
        struct lmc_hash digest = lmc_digest(d->tensor->dtype, d->tensor->ndim, d->tensor->shape, NULL, 0);
        return digest.low == d->links[0].content->digest.low && digest.high == d->links[0].content->digest.high
                   ? LMCS_OK
                   : fail_content(d, "its digest is not what was written", error);
    }
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < d->length; i++)
        status = d->links[i].content->payload == LMCS_PAYLOAD_RAW ? open_raw(d, &d->links[i], error)
                                                                  : open_frame(d, &d->links[i], error);
    return status;
}

void lmcs_decoding_close(struct lmcs_decoding *d)
{
    for (size_t i = 0; i < d->length; i++)
        free(d->links[i].header);
    d->length = 0;
}

enum lmcs_status lmcs_decoding_init(struct lmcs_decoding *d, const struct lmcs_archive_reader *reader, int fd,
                                    uint64_t start, struct lmcs_error *error)
{
    *d = (struct lmcs_decoding){.reader = reader, .fd = fd, .start = start};
    d->coded = aligned_alloc(64, (lmc_block_bound(LMC_BLOCK_BYTES) + 63) & ~(size_t)63);
    for (int i = 0; i < 2; i++)
        d->blocks[i] = aligned_alloc(64, LMC_BLOCK_BYTES);
    return d->coded == NULL || d->blocks[0] == NULL || d->blocks[1] == NULL ? lmcs_fail_memory(error) : LMCS_OK;
}

void lmcs_decoding_fini(struct lmcs_decoding *d)
{
    lmcs_decoding_close(d);
    free(d->coded);
    free(d->blocks[0]);
    free(d->blocks[1]);
}
