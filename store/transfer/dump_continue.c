/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/dump_continue.c - reads older archives and the begun one. */
#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transfer/dump.h"
#include "transfer/warn.h"

/* Records how the archive stores content `index`: known by its digest, or by a link. */
static enum lmcs_status note_form(struct lmcs_dump *dump, const struct lmcs_archive_reader *reader, size_t index,
                                  struct lmcs_error *error)
{
    const struct lmcs_archive_content *content = &reader->contents[index];
    uint64_t form = content->is_known ? LMCS_FORM_KNOWN : 0;
    if (content->payload == LMCS_PAYLOAD_LINKED)
        form = lmcs_form_linked(content->bases[0], reader->contents[content->bases[0] - 1].base_count, content->output);
    return form == 0 ? LMCS_OK : lmcs_id_put(&dump->forms, index + 1, form, error);
}

/* Records the digests of `count` contents. `is_own`: of the continued archive, else of an older one. */
static enum lmcs_status note_digests(struct lmcs_dump *dump, const struct lmcs_archive_reader *reader, size_t count,
                                     bool is_own, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        const struct lmcs_archive_content *content = &reader->contents[i];
        uint8_t depth = content->line > 0 ? (uint8_t)(LMCS_SENT_LINE + content->line) : content->depth;
        const struct lmcs_known known = {
            .digest = content->digest, .sent = is_own ? (i + 1) << LMCS_SENT_BITS | depth : 0, .depth = depth};
        if (is_own || content->payload != LMCS_PAYLOAD_LINK) /* a link is always sent */
            status = lmcs_dump_add_known(dump, &known, error);
        if (status == LMCS_OK && is_own)
            status = note_form(dump, reader, i, error);
    }
    return status;
}

enum lmcs_status lmcs_dump_read_older(struct lmcs_dump *dump, int fd, struct lmcs_index *index,
                                      struct lmcs_archive_since_df *since, struct lmcs_error *error)
{
    struct lmcs_archive_reader reader;
    struct stat info;
    off_t start = lseek(fd, 0, SEEK_CUR);
    if (start < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return lmcs_fail(error, LMCS_INVALID, 0, "an older archive must be a file, because its payloads are skipped");
    enum lmcs_status status = lmcs_archive_reader_init(&reader, fd, error);
    if (status == LMCS_OK) {
        reader.source.passes_data = true;
        reader.visitor = &lmcs_index_visitor;
        reader.context = index;
        index->reader = &reader;
        status = lmcs_archive_reader_run(&reader, error);
        if (status == LMCS_OK)
            status = note_digests(dump, &reader, reader.content_count, false, error);
        *since = (struct lmcs_archive_since_df){reader.hash.low, reader.hash.high};
        lmcs_archive_reader_fini(&reader);
    }
    if (lseek(fd, start, SEEK_SET) < 0 && status == LMCS_OK)
        status = lmcs_fail_errno(error, errno, "an older archive can't be read");
    if (status != LMCS_OK)
        lmcs_error_prefix(error, "the older archive: ");
    return status;
}

/* The last place up to which the archive is complete: the end of a snapshot or of a shelf's record. */
struct checkpoint {
    struct lmc_hasher headers;
    uint64_t offset; /* 0: none yet */
    uint64_t records;
    uint64_t shelves, snapshots, identities, contents, tags;
};

static void note_checkpoint(const struct lmcs_archive_reader *reader, struct checkpoint *point)
{
    *point =
        (struct checkpoint){reader->source.headers, reader->source.offset,  reader->source.number, reader->shelf_count,
                            reader->snapshot_count, reader->identity_count, reader->content_count, reader->tag_count};
}

/* Whether the file ends with a sound end record: the archive was complete once. */
static bool has_end(int fd, off_t bytes)
{
    struct {
        struct lmcs_archive_record_df header;
        struct lmcs_archive_end_df end;
    } last;
    const off_t at = bytes - (off_t)sizeof last;
    if (at < 0 || pread(fd, &last, sizeof last, at) != (ssize_t)sizeof last)
        return false;
    const size_t checked = offsetof(struct lmcs_archive_record_df, check);
    return last.header.type == LMCS_ARCHIVE_END && last.header.bytes == sizeof last.end &&
           last.header.check == lmc_hash64(&last.header, checked, last.end.records) &&
           last.header.payload_check == lmc_hash64(&last.end, sizeof last.end, last.end.records);
}

/*
 * A record that the end of the file cuts short is no damage, and unsynced bytes may be lost before a crash, so the dump
 * goes on before them. A complete archive that is damaged may have snapshots that the pool no longer has: it stays.
 */
static enum lmcs_status go_on_before(struct lmcs_dump *dump, const struct lmcs_archive_reader *reader,
                                     const struct checkpoint *point, off_t bytes, const struct lmcs_error *why,
                                     struct lmcs_error *error)
{
    if (has_end(dump->fd, bytes))
        return lmcs_fail(error, LMCS_DAMAGED, 0,
                         "%.400s. The archive is complete, and what follows the damage would be lost: it is not "
                         "continued; write a new one beside it",
                         why->message);
    if (!reader->source.is_short && (uint64_t)bytes > reader->source.offset) {
        dump->damaged_bytes = (uint64_t)bytes - point->offset;
        lmcs_transfer_warn(&dump->warned,
                           "%.400s. The %llu bytes from byte %llu on were cut off: snapshots there that the pool no "
                           "longer has are gone",
                           why->message, (unsigned long long)dump->damaged_bytes, (unsigned long long)point->offset);
    }
    return LMCS_OK;
}

static enum lmcs_status read_begun(struct lmcs_dump *dump, struct lmcs_archive_reader *reader, off_t bytes,
                                   struct checkpoint *point, struct lmcs_error *error)
{
    struct lmcs_error why;
    enum lmcs_status status = LMCS_OK;
    note_checkpoint(reader, point);
    while (status == LMCS_OK && reader->place != LMCS_ARCHIVE_AT_END) {
        status = lmcs_archive_reader_next(reader, &why);
        if (status == LMCS_OK && (reader->place == LMCS_ARCHIVE_IN_SHELF || reader->place == LMCS_ARCHIVE_AT_START))
            note_checkpoint(reader, point);
    }
    if (status == LMCS_DAMAGED)
        return reader->place == LMCS_ARCHIVE_AT_END ? LMCS_OK : go_on_before(dump, reader, point, bytes, &why, error);
    if (status != LMCS_OK && error != NULL)
        *error = why;
    return status;
}

/* Maps identities of the pool to those that the archive contains. */
static enum lmcs_status map_identities(struct lmcs_dump *dump, const struct lmcs_archive_reader *reader, size_t count,
                                       struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        uint64_t id;
        status = lmcs_identity_find(&dump->txn, &reader->identities[i]->tensor, &id, error);
        if (status == LMCS_OK && id != 0)
            status = lmcs_id_put(&dump->identities, id, i + 1, error);
    }
    return status;
}

/* Restores the state of the dump at the checkpoint. */
static enum lmcs_status go_on_at(struct lmcs_dump *dump, const struct lmcs_archive_reader *reader,
                                 const struct checkpoint *point, struct lmcs_error *error)
{
    dump->end.shelves = point->shelves;
    dump->end.snapshots = point->snapshots;
    dump->end.identities = point->identities;
    dump->end.contents = point->contents;
    dump->end.tags = point->tags;
    dump->end.records = point->records;
    dump->headers = point->headers;
    dump->bytes = point->offset;
    enum lmcs_status status = note_digests(dump, reader, point->contents, true, error);
    if (status == LMCS_OK)
        status = map_identities(dump, reader, point->identities, error);
    return status;
}

static enum lmcs_status fail_other(const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_INVALID, 0, "the incomplete archive can't be continued: %s", why);
}

/* Whether a file shorter than a head begins with the magic. */
static bool begins_as_archive(int fd, off_t bytes)
{
    unsigned char there[sizeof LMCS_ARCHIVE_MAGIC - 1];
    size_t most = (size_t)bytes < sizeof there ? (size_t)bytes : sizeof there;
    return pread(fd, there, most, 0) == (ssize_t)most && memcmp(there, LMCS_ARCHIVE_MAGIC, most) == 0;
}

enum lmcs_status lmcs_dump_cut_rest(const struct lmcs_dump *dump, struct lmcs_error *error)
{
    struct stat info;
    if (fstat(dump->fd, &info) != 0 ||
        (info.st_size > (off_t)dump->bytes && ftruncate(dump->fd, (off_t)dump->bytes) != 0) ||
        lseek(dump->fd, 0, SEEK_END) != (off_t)dump->bytes)
        return lmcs_fail_errno(error, errno, "the bytes after byte %llu of the archive can't be cut off",
                               (unsigned long long)dump->bytes);
    return LMCS_OK;
}

/* Locks the file against another dump. A file system without such locks is no error. */
static enum lmcs_status lock(struct lmcs_dump *dump, struct lmcs_error *error)
{
    dump->is_locked = flock(dump->fd, LOCK_EX | LOCK_NB) == 0;
    if (!dump->is_locked && errno == EWOULDBLOCK)
        return lmcs_fail(error, LMCS_IN_USE, 0,
                         "another dump writes this archive: wait until it has ended, or write another one");
    return LMCS_OK;
}

void lmcs_dump_unlock(struct lmcs_dump *dump)
{
    if (dump->is_locked) /* the caller's descriptor stays open, also in children */
        (void)flock(dump->fd, LOCK_UN);
    dump->is_locked = false;
}

enum lmcs_status lmcs_dump_continue(struct lmcs_dump *dump, struct lmcs_dump_plans *plans, bool *is_done,
                                    struct lmcs_error *error)
{
    struct lmcs_archive_reader reader;
    struct checkpoint point;
    struct stat info;
    *is_done = false;
    enum lmcs_status status = lock(dump, error);
    if (status != LMCS_OK)
        return status;
    if (fstat(dump->fd, &info) != 0 || !S_ISREG(info.st_mode) || lseek(dump->fd, 0, SEEK_SET) != 0)
        return fail_other("it is not a file", error);
    if (info.st_size < (off_t)sizeof(struct lmcs_archive_head_df) && !begins_as_archive(dump->fd, info.st_size))
        return fail_other("it is no archive", error);
    if (info.st_size < (off_t)sizeof(struct lmcs_archive_head_df))
        return LMCS_OK;
    const struct lmcs_archive_input input = {.fd = dump->fd, .progress = dump->progress, .doing = "checking"};
    status = lmcs_archive_reader_init_from(&reader, &input, error);
    if (status != LMCS_OK)
        return status;
    reader.visitor = &lmcs_index_visitor;
    reader.context = &plans->begun;
    plans->begun.reader = &reader;
    status = read_begun(dump, &reader, info.st_size, &point, error);
    bool same = plans->begun.since_count == dump->options->since_count &&
                (plans->begun.since_count == 0 ||
                 memcmp(plans->begun.since, plans->since, plans->begun.since_count * sizeof *plans->since) == 0);
    *is_done = plans->is_whole = status == LMCS_OK && reader.place == LMCS_ARCHIVE_AT_END;
    if (status == LMCS_OK && point.offset > sizeof(struct lmcs_archive_head_df) && !same)
        status = fail_other("it was made since other archives", error);
    if (status == LMCS_OK && !*is_done)
        status = go_on_at(dump, &reader, &point, error);
    if (*is_done) {
        dump->end = (struct lmcs_archive_end_df){.snapshots = reader.snapshot_count, .contents = reader.content_count};
        dump->bytes = reader.source.offset;
    }
    lmcs_archive_reader_fini(&reader);
    return status;
}
