/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * frame.c - writes and reads headers.
 *
 * Reading checks magic, the prefix's checksum, version, features, ranges, the resulting size, the header's checksum,
 * and offsets of blocks (contiguous up to the end), each field as if there were no checksums. Sizes up to 2^56 do not
 * overflow sums of 64 bits.
 */
#include "frame/frame.h"

#include "base/bytes.h"
#include "block/block.h"
#include "frame/rule.h"

static const unsigned char magic[4] = {'L', 'M', 'C', 'F'};

static uint64_t entry_bytes(uint32_t output_count)
{
    return LMCI_AT_RAW_HASH + output_count * (uint64_t)sizeof(struct lmc_hash);
}

uint64_t lmci_header_bytes(uint32_t base_count, uint64_t block_count)
{
    return LMC_FRAME_PREFIX_BYTES + base_count * (uint64_t)sizeof(struct lmc_hash) + block_count * LMCI_ENTRY_BYTES +
           sizeof(uint64_t);
}

uint64_t lmci_link_header_bytes(uint32_t array_count, uint64_t block_count)
{
    return LMC_FRAME_PREFIX_BYTES + array_count * (uint64_t)sizeof(struct lmc_hash) + LMCI_RULE_BYTES +
           block_count * entry_bytes(array_count) + sizeof(uint64_t);
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

static void write_prefix(const struct lmci_header *header, uint64_t frame_bytes, unsigned char *dst)
{
    memset(dst, 0, LMC_FRAME_PREFIX_BYTES);
    memcpy(dst + LMCI_AT_MAGIC, magic, sizeof magic);
    lmci_store32(dst + LMCI_AT_VERSION, header->version);
    lmci_store32(dst + LMCI_AT_COMPATIBLE, header->flags);
    lmci_store64(dst + LMCI_AT_RAW_BYTES, header->raw_bytes);
    lmci_store64(dst + LMCI_AT_FRAME_BYTES, frame_bytes);
    lmci_store16(dst + LMCI_AT_DTYPE, (uint16_t)header->dtype);
    dst[LMCI_AT_BASE_COUNT] = (unsigned char)header->base_count;
    dst[LMCI_AT_OUTPUT_COUNT] = 1;
    dst[LMCI_AT_BLOCK_LOG2] = LMCI_BLOCK_LOG2;
    if (header->rule != NULL) {
        lmci_store16(dst + LMCI_AT_PREDICTOR, (uint16_t)header->rule->optimizer);
        dst[LMCI_AT_OUTPUT_COUNT] = (unsigned char)header->base_count;
        lmci_store32(dst + LMCI_AT_CONSTANTS, LMCI_RULE_BYTES);
    }
    lmci_store64(dst + LMCI_AT_CHECKSUM, lmc_hash64(dst, LMCI_AT_CHECKSUM, 0));
}

static void write_hash(unsigned char *dst, struct lmc_hash hash)
{
    lmci_store64(dst, hash.low);
    lmci_store64(dst + 8, hash.high);
}

static size_t write_entry(unsigned char *at, uint64_t place, uint64_t coded_hash, const struct lmc_hash *raw_hash,
                          uint32_t output_count)
{
    lmci_store64(at + LMCI_AT_PLACE, place);
    lmci_store64(at + LMCI_AT_CODED_HASH, coded_hash);
    for (uint32_t k = 0; k < output_count; k++)
        write_hash(at + LMCI_AT_RAW_HASH + k * sizeof(struct lmc_hash), raw_hash[k]);
    return (size_t)entry_bytes(output_count);
}

void lmci_header_write(const struct lmci_header *header, unsigned char *dst)
{
    uint64_t place = header->rule != NULL ? lmci_link_header_bytes(header->base_count, header->block_count)
                                          : lmci_header_bytes(header->base_count, header->block_count);
    unsigned char *at = dst + LMC_FRAME_PREFIX_BYTES;
    for (uint32_t k = 0; k < header->base_count; k++, at += sizeof(struct lmc_hash))
        write_hash(at, header->base_digest[k]);
    if (header->rule != NULL) {
        lmci_rule_write(header->rule, at);
        at += LMCI_RULE_BYTES;
    }
    for (uint64_t i = 0; header->blocks != NULL && i < header->block_count; i++) {
        const struct lmc_block *block = &header->blocks[i];
        at += write_entry(at, place | (uint64_t)block->mode << 56, block->coded_hash, &block->raw_hash, 1);
        place += block->coded_bytes;
    }
    for (uint64_t i = 0; header->link_blocks != NULL && i < header->block_count; i++) {
        const struct lmc_link_block *block = &header->link_blocks[i];
        at += write_entry(at, place, block->coded_hash, block->raw_hash, header->base_count);
        place += block->coded_bytes;
    }
    write_prefix(header, place, dst);
    lmci_store64(at, lmc_hash64(dst, (size_t)(at - dst), 0));
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

static enum lmc_status check_identity(const unsigned char *prefix, size_t prefix_bytes, const char **message)
{
    if (prefix_bytes < LMC_FRAME_PREFIX_BYTES)
        return lmci_damaged(message, "the frame is shorter than its prefix");
    if (memcmp(prefix + LMCI_AT_MAGIC, magic, sizeof magic) != 0)
        return lmci_damaged(message, "not a frame: the magic is missing");
    if (lmci_load64(prefix + LMCI_AT_CHECKSUM) != lmc_hash64(prefix, LMCI_AT_CHECKSUM, 0))
        return lmci_damaged(message, "the checksum of the frame's prefix does not match");
    if (lmci_load32(prefix + LMCI_AT_VERSION) == 0)
        return lmci_damaged(message, "the frame has version 0");
    if (lmci_load32(prefix + LMCI_AT_VERSION) > LMCI_VERSION)
        return lmci_unsupported(message, "the frame has a newer version");
    if (lmci_load32(prefix + LMCI_AT_INCOMPATIBLE) != 0)
        return lmci_unsupported(message, "the frame needs a feature unknown to this version");
    return LMC_OK;
}

/* Constants are checked after the header's checksum. */
static enum lmc_status check_link(const unsigned char *prefix, const struct lmc_frame *frame, const char **message)
{
    if (frame->predictor > LMC_SGD)
        return lmci_unsupported(message, "the frame has a predictor unknown to this version");
    if (frame->dtype != LMC_F32)
        return lmci_unsupported(message, "the frame is a link of a dtype that this version cannot link");
    if (frame->output_count != frame->base_count || frame->output_count > LMC_MAX_BASES)
        return lmci_damaged(message, "the frame is a link with unequal numbers of outputs and bases");
    if (lmci_load32(prefix + LMCI_AT_CONSTANTS) != LMCI_RULE_BYTES)
        return lmci_damaged(message, "the frame is a link without its constants");
    return LMC_OK;
}

/* Rejects features that this version does not know. */
static enum lmc_status check_features(const unsigned char *prefix, const struct lmc_frame *frame, const char **message)
{
    if (prefix[LMCI_AT_BLOCK_LOG2] != LMCI_BLOCK_LOG2)
        return lmci_unsupported(message, "the frame has blocks of another size");
    if (lmci_load32(prefix + LMCI_AT_TABLES) != 0)
        return lmci_unsupported(message, "the frame has shared tables");
    if (lmc_dtype_size(frame->dtype) == 0)
        return lmci_unsupported(message, "the frame has a dtype unknown to this version");
    if (frame->predictor != 0)
        return check_link(prefix, frame, message);
    if (frame->output_count > 1)
        return lmci_unsupported(message, "the frame has several outputs");
    if (frame->base_count > 1)
        return lmci_unsupported(message, "the frame has several bases");
    if (lmci_load32(prefix + LMCI_AT_CONSTANTS) != 0)
        return lmci_unsupported(message, "the frame has constants of a predictor");
    return LMC_OK;
}

static uint64_t blocks_bound(const struct lmc_frame *frame)
{
    if (frame->predictor != 0)
        return lmci_link_blocks_bound(frame->output_count, frame->raw_bytes);
    return frame->raw_bytes + frame->block_count;
}

static enum lmc_status check_sizes(const unsigned char *prefix, struct lmc_frame *frame, const char **message)
{
    uint64_t extensions = lmci_load32(prefix + LMCI_AT_EXTENSIONS);
    if (frame->raw_bytes > LMCI_MAX_RAW_BYTES / (frame->predictor != 0 ? LMC_MAX_BASES : 1) ||
        frame->frame_bytes > LMCI_MAX_FRAME_BYTES)
        return lmci_damaged(message, "the frame claims an impossible size");
    if (frame->raw_bytes % lmc_dtype_size(frame->dtype) != 0)
        return lmci_damaged(message, "the content's size is not a multiple of its dtype's");
    if (extensions % 8 != 0)
        return lmci_damaged(message, "the size of the extensions is not a multiple of 8");
    frame->block_count = lmc_block_count(frame->raw_bytes);
    frame->header_bytes = (frame->predictor != 0 ? lmci_link_header_bytes(frame->output_count, frame->block_count)
                                                 : lmci_header_bytes(frame->base_count, frame->block_count)) +
                          extensions;
    if (frame->frame_bytes < frame->header_bytes + frame->block_count)
        return lmci_damaged(message, "the frame is too short for its blocks");
    if (frame->frame_bytes > frame->header_bytes + blocks_bound(frame))
        return lmci_damaged(message, "the frame is longer than its blocks can be");
    return LMC_OK;
}

/* Sets all fields but the digests and `header`. */
static enum lmc_status read_prefix(const unsigned char *prefix, size_t prefix_bytes, struct lmc_frame *frame,
                                   const char **message)
{
    enum lmc_status status = check_identity(prefix, prefix_bytes, message);
    if (status != LMC_OK)
        return status;
    memset(frame, 0, sizeof *frame);
    frame->version = lmci_load32(prefix + LMCI_AT_VERSION);
    frame->flags = lmci_load32(prefix + LMCI_AT_COMPATIBLE);
    frame->raw_bytes = lmci_load64(prefix + LMCI_AT_RAW_BYTES);
    frame->frame_bytes = lmci_load64(prefix + LMCI_AT_FRAME_BYTES);
    frame->dtype = lmci_load16(prefix + LMCI_AT_DTYPE);
    frame->predictor = lmci_load16(prefix + LMCI_AT_PREDICTOR);
    frame->base_count = prefix[LMCI_AT_BASE_COUNT];
    frame->output_count = prefix[LMCI_AT_OUTPUT_COUNT];
    if (prefix[LMCI_AT_RESERVED_8] != 0 || lmci_load32(prefix + LMCI_AT_RESERVED_32) != 0)
        return lmci_damaged(message, "a reserved field of the frame is not zero");
    if (frame->output_count == 0 || frame->dtype == 0)
        return lmci_damaged(message, "the frame has no output or no dtype");
    status = check_features(prefix, frame, message);
    return status == LMC_OK ? check_sizes(prefix, frame, message) : status;
}

enum lmc_status lmc_frame_header_bytes(const void *prefix, size_t prefix_bytes, uint64_t *header_bytes,
                                       const char **message)
{
    const char *unused;
    struct lmc_frame frame;
    enum lmc_status status = read_prefix(prefix, prefix_bytes, &frame, message != NULL ? message : &unused);
    *header_bytes = status == LMC_OK ? frame.header_bytes : 0;
    return status;
}

static const unsigned char *entry_at(const struct lmc_frame *frame, uint64_t index)
{
    const uint64_t entry = entry_bytes(frame->output_count);
    return frame->header + (frame->header_bytes - sizeof(uint64_t) - (frame->block_count - index) * entry);
}

static uint64_t place_of(const struct lmc_frame *frame, uint64_t index)
{
    if (index == frame->block_count)
        return frame->frame_bytes;
    return lmci_load64(entry_at(frame, index) + LMCI_AT_PLACE) & (LMCI_MAX_FRAME_BYTES - 1);
}

static size_t block_bound(const struct lmc_frame *frame, uint64_t index)
{
    const size_t raw = lmci_block_bytes(frame->raw_bytes, index);
    return frame->predictor != 0 ? lmc_link_block_bound(frame->output_count, raw) : lmc_block_bound(raw);
}

static enum lmc_status check_blocks(const struct lmc_frame *frame, const char **message)
{
    if (place_of(frame, 0) != frame->header_bytes)
        return lmci_damaged(message, "the blocks do not follow the header");
    for (uint64_t i = 0; i < frame->block_count; i++) {
        uint64_t begin = place_of(frame, i);
        uint64_t end = place_of(frame, i + 1);
        if (lmci_load64(entry_at(frame, i) + LMCI_AT_PLACE) >> 56 != 0)
            return lmci_unsupported(message, "a block has a mode unknown to this version");
        if (end <= begin || end - begin > block_bound(frame, i))
            return lmci_damaged(message, "a block is shorter or longer than it can be");
    }
    return LMC_OK;
}

static struct lmc_hash read_hash(const unsigned char *from)
{
    return (struct lmc_hash){lmci_load64(from), lmci_load64(from + 8)};
}

static enum lmc_status parse(const unsigned char *header, size_t header_bytes, struct lmc_frame *frame,
                             const char **message)
{
    enum lmc_status status = read_prefix(header, header_bytes, frame, message);
    if (status != LMC_OK)
        return status;
    if (header_bytes < frame->header_bytes)
        return lmci_damaged(message, "the frame's header is truncated");
    size_t checked = (size_t)frame->header_bytes - sizeof(uint64_t);
    if (lmci_load64(header + checked) != lmc_hash64(header, checked, 0))
        return lmci_damaged(message, "the checksum of the frame's header does not match");
    frame->header = header;
    for (uint32_t i = 0; i < frame->base_count; i++)
        frame->base_digest[i] = read_hash(header + LMC_FRAME_PREFIX_BYTES + i * sizeof(struct lmc_hash));
    struct lmc_link_rule rule;
    if (frame->predictor != 0)
        status = lmci_rule_read(frame, &rule, message);
    return status == LMC_OK ? check_blocks(frame, message) : status;
}

enum lmc_status lmc_frame_parse(const void *header, size_t header_bytes, struct lmc_frame *frame, const char **message)
{
    const char *unused;
    enum lmc_status status = parse(header, header_bytes, frame, message != NULL ? message : &unused);
    if (status != LMC_OK)
        memset(frame, 0, sizeof *frame);
    return status;
}

struct lmc_hash lmci_frame_raw_hash(const struct lmc_frame *frame, uint64_t index, uint32_t output)
{
    return read_hash(entry_at(frame, index) + LMCI_AT_RAW_HASH + output * sizeof(struct lmc_hash));
}

struct lmc_block lmc_frame_block(const struct lmc_frame *frame, uint64_t index, uint64_t *offset)
{
    const unsigned char *entry = entry_at(frame, index);
    uint64_t place = place_of(frame, index);
    struct lmc_block block = {
        .coded_bytes = (uint32_t)(place_of(frame, index + 1) - place),
        .mode = entry[LMCI_AT_PLACE + 7],
        .coded_hash = lmci_load64(entry + LMCI_AT_CODED_HASH),
        .raw_hash = read_hash(entry + LMCI_AT_RAW_HASH),
    };
    if (offset != NULL)
        *offset = place;
    return block;
}
