/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive/decode.c - decodes contents of an archive's file without a pool.
 *
 * Every byte is checked before it is used. A line is undone link by link, so that each intermediate state is checked.
 */
#include "archive/decode.h"

#include <stdlib.h>
#include <string.h>

#include "payload/layout.h"

static enum lmcs_status fail_at(const struct lmcs_decoding *d, const struct lmcs_archive_content *content,
                                const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "the archive is damaged: content %zu, tensor \"%.64s\": %s",
                     (size_t)(content - d->reader->contents) + 1, d->reader->identities[content->identity]->tensor.name,
                     why);
}

static enum lmcs_status fail_content(const struct lmcs_decoding *d, const char *why, struct lmcs_error *error)
{
    return fail_at(d, d->content, why, error);
}

/* Reads and parses a header. The caller compares it with the record. */
static enum lmcs_status read_header(struct lmcs_decoding *d, struct lmcs_archive_link *link, struct lmcs_error *error)
{
    unsigned char prefix[LMC_FRAME_PREFIX_BYTES];
    const struct lmcs_archive_content *content = link->content;
    uint64_t header_bytes = 0, most = 65536 + 128 * lmc_block_count(d->raw_bytes);
    const char *why = "its frame's header is impossibly long";
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
    bool is_link = content->payload == LMCS_PAYLOAD_LINK;
    if (frame->raw_bytes != d->raw_bytes || frame->frame_bytes != content->stored_bytes ||
        frame->base_count != content->base_count || frame->output_count != (is_link ? content->base_count : 1) ||
        (frame->predictor != 0) != is_link)
        return fail_content(d, "its frame is not the one that its record describes", error);
    return LMCS_OK;
}

static bool same_digest(const struct lmc_hash *a, const struct lmc_hash *b)
{
    return a->low == b->low && a->high == b->high;
}

static enum lmcs_status open_frame(struct lmcs_decoding *d, struct lmcs_archive_link *link, struct lmcs_error *error)
{
    const struct lmcs_tensor *tensor = &d->reader->identities[link->content->identity]->tensor;
    struct lmc_hash digest;
    enum lmcs_status status = read_header(d, link, error);
    if (status != LMCS_OK)
        return status;
    const struct lmc_frame *frame = &link->frame;
    if (lmc_frame_digest(frame, tensor->dtype, tensor->ndim, tensor->shape, &digest) != LMC_OK ||
        !same_digest(&digest, &link->content->digest))
        return fail_content(d, "its frame is not the one that its record describes", error);
    if (frame->base_count == 1 &&
        !same_digest(&frame->base_digest[0], &d->reader->contents[link->content->bases[0] - 1].digest))
        return fail_content(d, "its frame was coded against another base", error);
    return LMCS_OK;
}

static enum lmcs_status open_link(struct lmcs_decoding *d, struct lmcs_archive_link *link, struct lmcs_error *error)
{
    const struct lmcs_tensor *tensor = d->tensor;
    struct lmc_hash digest;
    enum lmcs_status status = read_header(d, link, error);
    if (status != LMCS_OK)
        return status;
    if (!lmcs_link_digest(&link->frame, tensor->ndim, tensor->shape, &digest) ||
        !same_digest(&digest, &link->content->digest))
        return fail_at(d, link->content, "a link is not the one that its record describes", error);
    for (size_t i = 0; i < link->content->base_count; i++)
        if (!same_digest(&link->frame.base_digest[i], &d->reader->contents[link->content->bases[i] - 1].digest))
            return fail_at(d, link->content, "a link leads from another state", error);
    return LMCS_OK;
}

static enum lmcs_status open_line(struct lmcs_decoding *d, size_t count, struct lmcs_error *error)
{
    struct lmc_hash digest;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = open_link(d, &d->links[i], error);
    if (status != LMCS_OK || d->content->payload != LMCS_PAYLOAD_LINKED)
        return status;
    if (lmc_link_digest(&d->links[0].frame, d->content->output, d->tensor->ndim, d->tensor->shape, &digest) != LMC_OK ||
        !same_digest(&digest, &d->content->digest))
        return fail_content(d, "its link leads to other bytes", error);
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

/* Whether a raw block matches its hash in the table, and the table the digest. */
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

/* Reads a coded block into d->coded, which has `most` bytes. */
static enum lmcs_status read_coded(struct lmcs_decoding *d, struct lmcs_archive_link *link, uint64_t block, size_t most,
                                   size_t *count, struct lmcs_error *error)
{
    uint64_t at;
    struct lmc_block coded = lmc_frame_block(&link->frame, block, &at);
    *count = coded.coded_bytes;
    return coded.coded_bytes > most ? fail_content(d, "a coded block is impossibly long", error)
                                    : lmcs_pieces_read(&link->pieces, at, d->coded, coded.coded_bytes, error);
}

/* Decodes a block of one link of a chain. `base` NULL: no base. */
static enum lmcs_status decode_own(struct lmcs_decoding *d, struct lmcs_archive_link *link, uint64_t block,
                                   uint64_t bytes, const void *base, void *to, struct lmcs_error *error)
{
    const void *bases[1] = {base};
    const char *why = "its bytes are not what was written (checksum)";
    size_t count;
    if (link->content->payload == LMCS_PAYLOAD_RAW) {
        enum lmcs_status status = lmcs_pieces_read(&link->pieces, block * LMC_BLOCK_BYTES, to, bytes, error);
        if (status != LMCS_OK)
            return status;
        return raw_is_right(d, link, block, to, bytes) ? LMCS_OK : fail_content(d, why, error);
    }
    enum lmcs_status status = read_coded(d, link, block, lmc_block_bound(bytes), &count, error);
    if (status != LMCS_OK)
        return status;
    enum lmc_status result =
        lmc_decode_block(&link->frame, block, d->coded, count, base != NULL ? bases : NULL, to, bytes, &why);
    if (result == LMC_NO_MEMORY)
        return lmcs_fail_memory(error);
    return result == LMC_OK ? LMCS_OK : fail_content(d, why, error);
}

static enum lmcs_status decode_line(struct lmcs_decoding *d, uint64_t block, uint64_t bytes, struct lmcs_error *error)
{
    const char *why = "";
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < d->arrays; i++)
        status = decode_own(d, &d->links[d->line + i], block, bytes, NULL, d->blocks[i], error);
    for (size_t i = d->line; status == LMCS_OK && i-- > 0;) {
        struct lmc_link_step step = {.frame = &d->links[i].frame, .coded = d->coded};
        status = read_coded(d, &d->links[i], block, lmc_link_block_bound((uint32_t)d->arrays, bytes), &step.coded_bytes,
                            error);
        if (status != LMCS_OK)
            return status;
        enum lmc_status result = lmc_link_decode_block(&step, 1, block, (void *const *)d->blocks, bytes, NULL, &why);
        if (result != LMC_OK)
            return result == LMC_NO_MEMORY ? lmcs_fail_memory(error) : fail_at(d, d->links[i].content, why, error);
    }
    return status;
}

enum lmcs_status lmcs_decoding_block(struct lmcs_decoding *d, uint64_t block, const void **data,
                                     struct lmcs_error *error)
{
    uint64_t left = d->raw_bytes - block * LMC_BLOCK_BYTES, bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    const void *base = NULL;
    enum lmcs_status status = LMCS_OK;
    if (d->line > 0) {
        *data = d->blocks[d->content->payload == LMCS_PAYLOAD_LINKED ? d->content->output : 0];
        return decode_line(d, block, bytes, error);
    }
    for (size_t i = d->length; status == LMCS_OK && i-- > 0; base = d->blocks[i & 1])
        status = decode_own(d, &d->links[i], block, bytes, base, d->blocks[i & 1], error);
    *data = d->blocks[0];
    return status;
}

static void add_link(struct lmcs_decoding *d, const struct lmcs_archive_content *content)
{
    struct lmcs_archive_link *link = &d->links[d->length++];
    *link = (struct lmcs_archive_link){.content = content};
    lmcs_pieces_init(&link->pieces, d->fd, d->start, content);
}

/* Lists the content and those below it. False: one of these is not in this archive. */
static bool list_links(struct lmcs_decoding *d)
{
    const struct lmcs_archive_content *content = d->content;
    d->length = d->line = d->arrays = 0;
    if (content->payload == LMCS_PAYLOAD_LINKED)
        content = &d->reader->contents[content->bases[0] - 1];
    if (content->payload != LMCS_PAYLOAD_LINK) {
        for (; !content->is_known && d->length <= LMCS_CHAIN_BOUND;
             content = &d->reader->contents[content->bases[0] - 1]) {
            add_link(d, content);
            if (content->base_count == 0)
                return true;
        }
        return false;
    }
    const struct lmcs_archive_content *oldest = content;
    for (; content != NULL && d->line < LMCS_LINK_BOUND; d->line++) {
        add_link(d, content);
        oldest = content;
        content = lmcs_archive_link_before(d->reader, content);
    }
    for (size_t i = 0; i < oldest->base_count; i++, d->arrays++) {
        const struct lmcs_archive_content *start = &d->reader->contents[oldest->bases[i] - 1];
        if (content != NULL || start->is_known)
            return false;
        add_link(d, start);
    }
    return true;
}

static enum lmcs_status make_room(struct lmcs_decoding *d, struct lmcs_error *error)
{
    size_t most = lmc_block_bound(LMC_BLOCK_BYTES), of_links = lmc_link_block_bound(LMC_MAX_BASES, LMC_BLOCK_BYTES);
    size_t count = d->line > 0 ? LMC_MAX_BASES : 2;
    if (d->line > 0 && d->blocks[LMC_MAX_BASES - 1] == NULL) {
        free(d->coded);
        d->coded = NULL;
    }
    if (d->coded == NULL)
        d->coded = aligned_alloc(64, ((d->line > 0 && of_links > most ? of_links : most) + 63) & ~(size_t)63);
    bool whole = d->coded != NULL;
    for (size_t i = 0; i < count; i++) {
        if (d->blocks[i] == NULL)
            d->blocks[i] = aligned_alloc(64, LMC_BLOCK_BYTES);
        whole = whole && d->blocks[i] != NULL;
    }
    return whole ? LMCS_OK : lmcs_fail_memory(error);
}

/* Sets the content to decode and lists its links; false as list_links. */
static bool take_up(struct lmcs_decoding *d, const struct lmcs_archive_content *content)
{
    const struct lmcs_archive_identity *identity = d->reader->identities[content->identity];
    d->content = content;
    d->tensor = &identity->tensor;
    d->raw_bytes = identity->raw_bytes;
    return list_links(d);
}

enum lmcs_status lmcs_decoding_open(struct lmcs_decoding *d, const struct lmcs_archive_content *content, bool *possible,
                                    struct lmcs_error *error)
{
    *possible = take_up(d, content);
    if (!*possible)
        return LMCS_OK;
    if (d->raw_bytes == 0) {
        struct lmc_hash digest = lmc_digest(d->tensor->dtype, d->tensor->ndim, d->tensor->shape, NULL, 0);
        return same_digest(&digest, &content->digest) ? LMCS_OK
                                                      : fail_content(d, "its digest is not what was written", error);
    }
    enum lmcs_status status = make_room(d, error);
    if (status == LMCS_OK)
        status = open_line(d, d->line, error);
    for (size_t i = d->line; status == LMCS_OK && i < d->length; i++)
        status = d->links[i].content->payload == LMCS_PAYLOAD_RAW ? open_raw(d, &d->links[i], error)
                                                                  : open_frame(d, &d->links[i], error);
    return status;
}

enum lmcs_status lmcs_decoding_open_newest(struct lmcs_decoding *d, const struct lmcs_archive_content *content,
                                           bool *possible, struct lmcs_error *error)
{
    *possible = take_up(d, content);
    return *possible ? open_line(d, 1, error) : LMCS_OK;
}

/* Checks the stored blocks of a frame or link. */
static enum lmcs_status look_at_blocks(struct lmcs_decoding *d, struct lmcs_archive_link *link,
                                       struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint64_t i = 0; status == LMCS_OK && i < lmc_block_count(d->raw_bytes); i++) {
        uint64_t left = d->raw_bytes - i * LMC_BLOCK_BYTES, bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES, at;
        size_t most = d->line > 0 ? lmc_link_block_bound(link->content->base_count, bytes) : lmc_block_bound(bytes);
        size_t count = 0;
        status = read_coded(d, link, i, most, &count, error);
        if (status == LMCS_OK && lmc_hash64(d->coded, count, i) != lmc_frame_block(&link->frame, i, &at).coded_hash)
            status = fail_content(d, "its bytes are not what was written (checksum)", error);
    }
    return status;
}

enum lmcs_status lmcs_decoding_look(struct lmcs_decoding *d, const struct lmcs_archive_content *content,
                                    struct lmcs_error *error)
{
    (void)take_up(d, content);
    if (d->length == 0 || d->raw_bytes == 0)
        return LMCS_OK;
    enum lmcs_status status = make_room(d, error);
    if (status == LMCS_OK)
        status = d->line > 0 ? open_line(d, 1, error) : open_frame(d, &d->links[0], error);
    bool is_own = d->links[0].content == content; /* else the blocks are the link's, which is checked by itself */
    return status == LMCS_OK && is_own ? look_at_blocks(d, &d->links[0], error) : status;
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
    return make_room(d, error);
}

void lmcs_decoding_fini(struct lmcs_decoding *d)
{
    lmcs_decoding_close(d);
    free(d->coded);
    for (size_t i = 0; i < LMC_MAX_BASES; i++)
        free(d->blocks[i]);
}
