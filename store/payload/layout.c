/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/layout.c - stored bytes of a content. */
#include "payload/layout.h"

#include <string.h>

uint64_t lmcs_raw_table_at(uint64_t raw_bytes)
{
    return (raw_bytes + 15) & ~(uint64_t)15;
}

uint64_t lmcs_raw_stored_bytes(uint64_t raw_bytes)
{
    uint64_t blocks = lmc_block_count(raw_bytes);
    return blocks > 1 ? lmcs_raw_table_at(raw_bytes) + blocks * sizeof(struct lmc_hash) : raw_bytes;
}

enum lmcs_status lmcs_payload_take(struct lmcs_region *region, uint64_t bytes, struct lmcs_content *content,
                                   struct lmcs_error *error)
{
    uint64_t most = region->pool->part_bytes;
    content->df.part_count = 0;
    content->df.stored_bytes = bytes;
    while (bytes > 0) {
        uint64_t n = bytes < most ? bytes : most;
        if (bytes > most && bytes - most < LMCS_ALIGNED_BYTES)
            n = most - LMC_BLOCK_BYTES; /* else the small last part would not begin on a page: it could not be mapped */
        if (content->df.part_count == LMCS_MAX_PARTS)
            return lmcs_fail(error, LMCS_UNSUPPORTED, 0, "%s: a tensor may have at most %llu bytes", region->pool->path,
                             (unsigned long long)(LMCS_MAX_PARTS * most));
        struct lmcs_part_df *part = &content->parts[content->df.part_count];
        enum lmcs_status status = lmcs_region_take(region, n, &part->offset, error);
        if (status != LMCS_OK)
            return status;
        part->bytes = n;
        content->df.part_count++;
        bytes -= n;
    }
    return LMCS_OK;
}

/* Finds the bytes at `at` of the payload: *offset in the pool, and how many of `bytes` are adjacent there; 0: past the
 * end. */
static uint64_t locate(const struct lmcs_content *content, uint64_t at, uint64_t bytes, uint64_t *offset)
{
    for (size_t i = 0; i < content->df.part_count; i++) {
        const struct lmcs_part_df *part = &content->parts[i];
        if (at < part->bytes) {
            *offset = part->offset + at;
            return bytes < part->bytes - at ? bytes : part->bytes - at;
        }
        at -= part->bytes;
    }
    return 0;
}

enum lmcs_status lmcs_payload_write(struct lmcs_heap *heap, const struct lmcs_content *content, uint64_t at,
                                    const void *data, uint64_t bytes, struct lmcs_error *error)
{
    const char *from = data;
    while (bytes > 0) {
        uint64_t offset, n = locate(content, at, bytes, &offset);
        if (n == 0)
            return lmcs_fail(error, LMCS_INVALID, 0, "a write goes past the end of a payload");
        enum lmcs_status status = lmcs_heap_write(heap, offset, from, n, error);
        if (status != LMCS_OK)
            return status;
        from += n;
        at += n;
        bytes -= n;
    }
    return LMCS_OK;
}

void lmcs_payload_start_writeback(struct lmcs_heap *heap, const struct lmcs_content *content, uint64_t at,
                                  uint64_t bytes)
{
    uint64_t offset, n;
    for (; bytes > 0 && (n = locate(content, at, bytes, &offset)) > 0; at += n, bytes -= n) {
        uint64_t rest = (offset + n) % LMCS_PAGE_BYTES;
        if (rest < n)
            lmcs_heap_start_writeback(heap, offset, n - rest);
    }
}

enum lmcs_status lmcs_raw_write_table(struct lmcs_heap *heap, const struct lmcs_content *content,
                                      const struct lmc_hash *hashes, struct lmcs_error *error)
{
    static const unsigned char zeros[16];
    uint64_t raw_bytes = content->df.raw_bytes, blocks = lmc_block_count(raw_bytes);
    uint64_t at = lmcs_raw_table_at(raw_bytes);
    if (blocks <= 1)
        return LMCS_OK;
    enum lmcs_status status = lmcs_payload_write(heap, content, raw_bytes, zeros, at - raw_bytes, error);
    return status == LMCS_OK ? lmcs_payload_write(heap, content, at, hashes, blocks * sizeof *hashes, error) : status;
}

void lmcs_raw_digest(struct lmcs_content *content, const struct lmcs_tensor *tensor, const struct lmc_hash *hashes)
{
    struct lmc_hash digest =
        lmc_digest(tensor->dtype, tensor->ndim, tensor->shape, hashes, lmc_block_count(content->df.raw_bytes));
    content->df.digest_low = digest.low;
    content->df.digest_high = digest.high;
}

enum lmcs_status lmcs_raw_finish(struct lmcs_heap *heap, struct lmcs_content *content, const struct lmcs_tensor *tensor,
                                 const struct lmc_hash *hashes, struct lmcs_error *error)
{
    lmcs_raw_digest(content, tensor, hashes);
    return lmcs_raw_write_table(heap, content, hashes, error);
}

bool lmcs_same_payload(const struct lmcs_content *a, const struct lmcs_content *b)
{
    return a->df.part_count == b->df.part_count && a->df.payload == b->df.payload &&
           memcmp(a->parts, b->parts, a->df.part_count * sizeof a->parts[0]) == 0;
}

typedef enum lmcs_status media_read(const struct lmcs_media *media, uint64_t offset, void *buffer, uint64_t bytes,
                                    struct lmcs_error *error);

static enum lmcs_status read_by(media_read *read, const struct lmcs_media *media, const struct lmcs_content *content,
                                uint64_t at, void *buffer, uint64_t bytes, struct lmcs_error *error)
{
    char *to = buffer;
    while (bytes > 0) {
        uint64_t offset, n = locate(content, at, bytes, &offset);
        if (n == 0)
            return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: a payload is shorter than it should be",
                             lmcs_media_path(media));
        enum lmcs_status status = read(media, offset, to, n, error);
        if (status != LMCS_OK)
            return status;
        to += n;
        at += n;
        bytes -= n;
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_payload_read(const struct lmcs_media *media, const struct lmcs_content *content, uint64_t at,
                                   void *buffer, uint64_t bytes, struct lmcs_error *error)
{
    return read_by(lmcs_media_read, media, content, at, buffer, bytes, error);
}

enum lmcs_status lmcs_payload_read_back(const struct lmcs_media *media, const struct lmcs_content *content, uint64_t at,
                                        void *buffer, uint64_t bytes, struct lmcs_error *error)
{
    return read_by(lmcs_media_read_back, media, content, at, buffer, bytes, error);
}

const void *lmcs_payload_at(const struct lmcs_media *media, const struct lmcs_content *content, uint64_t at,
                            uint64_t bytes)
{
    uint64_t offset = 0;
    return locate(content, at, bytes, &offset) == bytes && bytes > 0 ? lmcs_media_at(media, offset, bytes) : NULL;
}

enum lmcs_status lmcs_payload_pin(struct lmcs_lease *lease, const struct lmcs_content *content,
                                  struct lmcs_error *error)
{
    for (size_t i = 0; i < content->df.part_count; i++) {
        enum lmcs_status status = lmcs_lease_pin(lease, content->parts[i].offset, content->parts[i].bytes, error);
        if (status != LMCS_OK) {
            while (i-- > 0)
                lmcs_lease_unpin(lease, content->parts[i].offset, content->parts[i].bytes);
            return status;
        }
    }
    return LMCS_OK;
}

void lmcs_payload_unpin(struct lmcs_lease *lease, const struct lmcs_content *content)
{
    for (size_t i = 0; i < content->df.part_count; i++)
        lmcs_lease_unpin(lease, content->parts[i].offset, content->parts[i].bytes);
}
