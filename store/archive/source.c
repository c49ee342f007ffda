/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive/source.c - reads the records of an untrusted archive.
 *
 * A header is checked before its length is used, a payload before it is parsed. Listing a file reads 24 bytes of each
 * MiB.
 */
#include "archive/source.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_BYTES ((size_t)256 << 10)
#define WAIT_MS      200

enum lmcs_status lmcs_archive_fail(const struct lmcs_archive_source *source, enum lmcs_status status,
                                   struct lmcs_error *error, const char *format, ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    uint64_t number = source->number > 0 ? source->number - 1 : 0;
    return lmcs_fail(error, status, 0, "the archive %s: record %llu (ends at byte %llu): %s",
                     status == LMCS_DAMAGED ? "is damaged" : "can't be read", (unsigned long long)number,
                     (unsigned long long)source->offset, what);
}

enum lmcs_status lmcs_archive_source_progress(const struct lmcs_archive_source *source, struct lmcs_error *error)
{
    const struct lmcs_progress *progress = source->input.progress;
    const char *doing = source->input.doing != NULL ? source->input.doing : "reading";
    if (progress == NULL || progress->call == NULL ||
        progress->call(progress->context, doing, source->offset, source->total))
        return LMCS_OK;
    return lmcs_fail(error, LMCS_CANCELLED, 0, "%s was stopped", doing);
}

/* Reads at least one byte. *got 0: the end of the stream. */
static enum lmcs_status read_some(const struct lmcs_archive_source *source, void *to, size_t bytes, size_t *got,
                                  struct lmcs_error *error)
{
    const struct lmcs_archive_input *input = &source->input;
    const int fd = input->fd;
    if (input->read != NULL) {
        const bool goes_on = input->read(input->context, to, bytes, got);
        return goes_on && *got <= bytes
                   ? LMCS_OK
                   : lmcs_fail(error, LMCS_CANCELLED, 0, "the archive was not read to its end: its source has stopped");
    }
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, WAIT_MS) > 0) {
            ssize_t n = read(fd, to, bytes);
            if (n >= 0) {
                *got = (size_t)n;
                return LMCS_OK;
            }
            if (errno != EAGAIN && errno != EINTR)
                return lmcs_fail_errno(error, errno, "the archive can't be read");
        }
        enum lmcs_status status = lmcs_archive_source_progress(source, error);
        if (status != LMCS_OK)
            return status;
    }
}

/* Takes bytes through the buffer. *got is less than `bytes` only at the end. */
static enum lmcs_status take(struct lmcs_archive_source *source, void *to, size_t bytes, size_t *got,
                             struct lmcs_error *error)
{
    unsigned char *at = to;
    for (*got = 0; *got < bytes;) {
        size_t ready = source->buffer_end - source->buffer_at, left = bytes - *got, n = 0;
        if (ready > 0) {
            n = ready < left ? ready : left;
            memcpy(at + *got, source->buffer + source->buffer_at, n);
            source->buffer_at += n;
        } else if (left >= BUFFER_BYTES) {
            enum lmcs_status status = read_some(source, at + *got, left, &n, error);
            if (status != LMCS_OK)
                return status;
        } else {
            enum lmcs_status status = read_some(source, source->buffer, BUFFER_BYTES, &n, error);
            if (status != LMCS_OK)
                return status;
            source->buffer_at = 0;
            source->buffer_end = n;
            if (n > 0)
                continue;
        }
        if (n == 0)
            break;
        *got += n;
        source->offset += n;
    }
    return LMCS_OK;
}

static enum lmcs_status check_head(const struct lmcs_archive_head_df *head, size_t got, struct lmcs_error *error)
{
    size_t magic = got < sizeof head->magic ? got : sizeof head->magic;
    if (got == 0)
        return lmcs_fail(error, LMCS_DAMAGED, 0,
                         "the archive is empty: the program that should have written it failed");
    if (memcmp(head->magic, LMCS_ARCHIVE_MAGIC, magic) != 0)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "this is not an archive of lmc-store: its magic is missing");
    if (got < sizeof *head)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "the archive is cut short after %zu bytes, in its head", got);
    if (head->check != lmc_hash64(head, offsetof(struct lmcs_archive_head_df, check), 0))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "the archive is damaged: the checksum of its head is wrong");
    if (head->version != LMCS_ARCHIVE_VERSION || head->incompatible != 0)
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                         "the archive has format version %u (features %llx), this lmc-store knows version %u: use a "
                         "newer one",
                         head->version, (unsigned long long)head->incompatible, LMCS_ARCHIVE_VERSION);
    return LMCS_OK;
}

/* Returns the bytes up to the end of a file; 0: unknown. */
static uint64_t file_bytes(int fd)
{
    struct stat info;
    off_t at;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || (at = lseek(fd, 0, SEEK_CUR)) < 0 || at >= info.st_size)
        return 0;
    return (uint64_t)(info.st_size - at);
}

enum lmcs_status lmcs_archive_source_init(struct lmcs_archive_source *source, const struct lmcs_archive_input *input,
                                          struct lmcs_error *error)
{
    struct lmcs_archive_head_df head = {0};
    size_t got = 0;
    memset(source, 0, sizeof *source);
    source->input = *input;
    source->total = file_bytes(input->fd);
    source->buffer = malloc(BUFFER_BYTES);
    source->payload = malloc(LMCS_ARCHIVE_PIECE_BYTES + 1);
    enum lmcs_status status = source->buffer == NULL || source->payload == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    if (status == LMCS_OK)
        status = take(source, &head, sizeof head, &got, error);
    if (status == LMCS_OK)
        status = check_head(&head, got, error);
    lmc_hasher_init(&source->headers);
    lmc_hasher_update(&source->headers, &head, sizeof head);
    if (status != LMCS_OK)
        lmcs_archive_source_fini(source);
    return status;
}

void lmcs_archive_source_fini(struct lmcs_archive_source *source)
{
    free(source->buffer);
    free(source->payload);
    source->buffer = source->payload = NULL;
}

/* Skips bytes of a file without reading them. */
static enum lmcs_status pass_over(struct lmcs_archive_source *source, size_t bytes, struct lmcs_error *error)
{
    size_t ready = source->buffer_end - source->buffer_at, now = bytes < ready ? bytes : ready;
    source->buffer_at += now;
    source->offset += bytes;
    source->is_short = source->offset > source->total;
    if (source->is_short)
        return lmcs_archive_fail(source, LMCS_DAMAGED, error, "the archive ends in it: it was cut short");
    if (bytes > now && lseek(source->input.fd, (off_t)(bytes - now), SEEK_CUR) < 0)
        return lmcs_fail_errno(error, errno, "the archive can't be read");
    return LMCS_OK;
}

static enum lmcs_status read_record(struct lmcs_archive_source *source, struct lmcs_error *error)
{
    struct lmcs_archive_record_df header;
    uint64_t number = source->number++;
    size_t got;
    enum lmcs_status status = take(source, &header, sizeof header, &got, error);
    if (status != LMCS_OK)
        return status;
    source->is_short = got < sizeof header;
    if (source->is_short)
        return lmcs_archive_fail(source, LMCS_DAMAGED, error,
                                 "the archive ends here, before its end record: it was "
                                 "cut short");
    if (header.check != lmc_hash64(&header, offsetof(struct lmcs_archive_record_df, check), number))
        return lmcs_archive_fail(source, LMCS_DAMAGED, error, "the checksum of its header is wrong");
    if (header.bytes > LMCS_ARCHIVE_PIECE_BYTES)
        return lmcs_archive_fail(source, LMCS_DAMAGED, error, "it claims to have %u bytes", header.bytes);
    source->hash = lmc_hasher_final(&source->headers);
    lmc_hasher_update(&source->headers, &header, sizeof header);
    source->type = header.type;
    source->bytes = header.bytes;
    if (source->passes_data && header.type == LMCS_ARCHIVE_DATA)
        return pass_over(source, header.bytes, error);
    status = take(source, source->payload, header.bytes, &got, error);
    if (status != LMCS_OK)
        return status;
    source->is_short = got < header.bytes;
    if (source->is_short)
        return lmcs_archive_fail(source, LMCS_DAMAGED, error, "the archive ends in it: it was cut short");
    if (header.payload_check != lmc_hash64(source->payload, header.bytes, number))
        return lmcs_archive_fail(source, LMCS_DAMAGED, error, "its checksum is wrong");
    source->payload[header.bytes] = '\0';
    return LMCS_OK;
}

enum lmcs_status lmcs_archive_source_next(struct lmcs_archive_source *source, struct lmcs_error *error)
{
    enum lmcs_status status;
    do {
        status = read_record(source, error);
    } while (status == LMCS_OK && source->type >= LMCS_ARCHIVE_IGNORABLE && source->type != LMCS_ARCHIVE_SHELF_ID);
    if (status == LMCS_OK && source->type == 0)
        return lmcs_archive_fail(source, LMCS_DAMAGED, error, "it has no type");
    if (status == LMCS_OK && source->type >= LMCS_ARCHIVE_TYPES && source->type < LMCS_ARCHIVE_IGNORABLE)
        return lmcs_archive_fail(source, LMCS_UNSUPPORTED, error,
                                 "it is of a type (%u) that this lmc-store does not "
                                 "know: use a newer one",
                                 source->type);
    return status;
}

enum lmcs_status lmcs_archive_source_finish(struct lmcs_archive_source *source, struct lmcs_error *error)
{
    unsigned char more;
    size_t got;
    enum lmcs_status status = take(source, &more, 1, &got, error);
    if (status != LMCS_OK || got == 0)
        return status;
    source->offset -= got; /* these bytes are no part of the archive */
    return lmcs_archive_fail(source, LMCS_DAMAGED, error, "it is the end record, and something follows it");
}
