/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive/pieces.c - reads a payload of an archive's file at any offset.
 *
 * A payload is cut into pieces, one in each of adjacent records. The caller checks the bytes by the content's digest.
 */
#include "archive/pieces.h"

#include <errno.h>
#include <unistd.h>

void lmcs_pieces_init(struct lmcs_pieces *pieces, int fd, uint64_t start, const struct lmcs_archive_content *content)
{
    *pieces = (struct lmcs_pieces){
        .fd = fd, .first = start + content->at, .total = content->stored_bytes, .header = start + content->at};
}

static enum lmcs_status read_at(int fd, void *to, size_t count, uint64_t at, struct lmcs_error *error)
{
    for (char *next = to; count > 0;) {
        ssize_t n = pread(fd, next, count, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return lmcs_fail_errno(error, errno, "the archive can't be read");
        if (n == 0)
            return lmcs_fail(error, LMCS_DAMAGED, 0, "the archive is damaged: it ends at byte %llu, in a payload",
                             (unsigned long long)at);
        next += n;
        at += (uint64_t)n;
        count -= (size_t)n;
    }
    return LMCS_OK;
}

/* Reads the header at pieces->header; steps over an ignorable record. */
static enum lmcs_status look(struct lmcs_pieces *pieces, struct lmcs_error *error)
{
    struct lmcs_archive_record_df header;
    enum lmcs_status status = read_at(pieces->fd, &header, sizeof header, pieces->header, error);
    if (status != LMCS_OK)
        return status;
    uint64_t left = pieces->total - pieces->at;
    if (header.type >= LMCS_ARCHIVE_IGNORABLE && header.bytes <= LMCS_ARCHIVE_PIECE_BYTES) {
        pieces->header += sizeof header + header.bytes;
        return LMCS_OK;
    }
    if (header.type != LMCS_ARCHIVE_DATA || header.bytes == 0 || header.bytes > left)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "the archive was changed while it was read, at byte %llu",
                         (unsigned long long)pieces->header);
    pieces->bytes = header.bytes;
    return LMCS_OK;
}

/* Finds the piece that contains offset `at`. */
static enum lmcs_status find(struct lmcs_pieces *pieces, uint64_t at, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    if (at < pieces->at) {
        pieces->at = 0;
        pieces->header = pieces->first;
        pieces->bytes = 0;
    }
    while (status == LMCS_OK && (pieces->bytes == 0 || at - pieces->at >= pieces->bytes)) {
        if (pieces->bytes > 0) {
            pieces->at += pieces->bytes;
            pieces->header += sizeof(struct lmcs_archive_record_df) + pieces->bytes;
            pieces->bytes = 0;
        }
        status = look(pieces, error);
    }
    return status;
}

enum lmcs_status lmcs_pieces_read(struct lmcs_pieces *pieces, uint64_t at, void *to, size_t count,
                                  struct lmcs_error *error)
{
    if (at > pieces->total || count > pieces->total - at)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "the archive is damaged: a frame is longer than its payload");
    for (char *next = to; count > 0;) {
        enum lmcs_status status = find(pieces, at, error);
        if (status != LMCS_OK)
            return status;
        uint64_t skip = at - pieces->at, left = pieces->bytes - skip;
        size_t n = left < count ? (size_t)left : count;
        status = read_at(pieces->fd, next, n, pieces->header + sizeof(struct lmcs_archive_record_df) + skip, error);
        if (status != LMCS_OK)
            return status;
        next += n;
        at += n;
        count -= n;
    }
    return LMCS_OK;
}
