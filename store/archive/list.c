/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive/list.c - lists and verifies archives without a pool.
 *
 * Listing a file skips payloads; verifying it decodes each content. A pipe can't be read twice: only its records are
 * checked.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive/decode.h"
#include "archive/index.h"
#include "base/order.h"
#include "records/meta.h"

#define PROGRESS_SNAPSHOTS 1024u

static bool is_file(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && lseek(fd, 0, SEEK_CUR) >= 0;
}

/* Tags arrive by text; those of a snapshot keep that order. */
static int by_snapshot(const void *a, const void *b)
{
    const struct lmcs_index_tag *x = a, *y = b;
    return x->number != y->number ? LMCS_ORDER(x->number, y->number) : strcmp(x->text, y->text);
}

struct listing {
    bool (*visit)(void *context, const struct lmcs_archived *snapshot);
    void *context;
    const struct lmcs_progress *progress;
    uint64_t done;
    uint64_t total; /* snapshots */
    bool stopped;   /* by the visitor */
};

static enum lmcs_status visit_snapshot(struct listing *listing, const struct lmcs_index_shelf *shelf,
                                       const struct lmcs_index_snapshot *snapshot, const char *const *tags,
                                       size_t tag_count, struct lmcs_error *error)
{
    struct lmcs_meta meta = {0};
    enum lmcs_status status = LMCS_OK;
    if (snapshot->meta != NULL)
        status = lmcs_meta_decode(snapshot->meta, &meta, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_archived archived = {.shelf = shelf->name,
                                     .number = snapshot->df.number,
                                     .step = snapshot->df.step,
                                     .time_ns = snapshot->df.time_ns,
                                     .parent = snapshot->df.parent,
                                     .tensor_count = snapshot->tensors,
                                     .raw_bytes = snapshot->raw_bytes,
                                     .new_contents = snapshot->new_contents,
                                     .new_bytes = snapshot->new_bytes,
                                     .tags = tags,
                                     .tag_count = tag_count,
                                     .metrics = meta.metrics,
                                     .metric_count = meta.metric_count};
    memcpy(archived.group, snapshot->df.group, sizeof archived.group);
    listing->stopped = !listing->visit(listing->context, &archived);
    if (snapshot->meta != NULL)
        lmcs_meta_free(&meta);
    return LMCS_OK;
}

static enum lmcs_status report_progress(struct listing *listing, struct lmcs_error *error)
{
    const struct lmcs_progress *progress = listing->progress;
    if (++listing->done % PROGRESS_SNAPSHOTS != 0 || progress == NULL || progress->call == NULL)
        return LMCS_OK;
    return progress->call(progress->context, "listing", listing->done, listing->total)
               ? LMCS_OK
               : lmcs_fail(error, LMCS_CANCELLED, 0, "listing was stopped");
}

static enum lmcs_status visit_shelf(struct listing *listing, struct lmcs_index_shelf *shelf, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    const char **texts = calloc(shelf->tag_count + 1, sizeof *texts);
    if (texts == NULL)
        return lmcs_fail_memory(error);
    if (shelf->tag_count > 1)
        qsort(shelf->tags, shelf->tag_count, sizeof *shelf->tags, by_snapshot);
    for (size_t i = 0; i < shelf->tag_count; i++)
        texts[i] = shelf->tags[i].text;
    for (size_t i = 0, at = 0; status == LMCS_OK && !listing->stopped && i < shelf->snapshot_count; i++) {
        uint64_t number = shelf->snapshots[i].df.number;
        while (at < shelf->tag_count && shelf->tags[at].number < number) /* a tag of a snapshot in an older archive */
            at++;
        size_t first = at;
        while (at < shelf->tag_count && shelf->tags[at].number == number)
            at++;
        status = visit_snapshot(listing, shelf, &shelf->snapshots[i], texts + first, at - first, error);
        if (status == LMCS_OK)
            status = report_progress(listing, error);
    }
    free(texts);
    return status;
}

static enum lmcs_status visit_all(struct listing *listing, struct lmcs_index *index, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && !listing->stopped && i < index->shelf_count; i++)
        status = visit_shelf(listing, &index->shelves[i], error);
    return status;
}

static void fill_info(const struct lmcs_archive_reader *reader, const struct lmcs_index *index,
                      struct lmcs_archive_info *info)
{
    *info = (struct lmcs_archive_info){.id = reader->hash,
                                       .bytes = reader->source.offset,
                                       .shelves = reader->shelf_count,
                                       .snapshots = reader->snapshot_count,
                                       .tags = reader->tag_count,
                                       .contents = reader->content_count,
                                       .since_count = index->since_count};
    for (size_t i = 0; i < index->since_count && i < LMCS_MAX_SINCE; i++)
        info->since[i] = index->since[i];
    for (size_t i = 0; i < reader->content_count; i++)
        info->known_contents += reader->contents[i].is_known;
}

enum lmcs_status lmcs_archive_list(int fd, bool (*visit)(void *context, const struct lmcs_archived *snapshot),
                                   void *context, const struct lmcs_progress *progress, struct lmcs_archive_info *info,
                                   struct lmcs_error *error)
{
    struct lmcs_archive_reader reader;
    struct lmcs_index index = {.reader = &reader, .with_meta = true};
    const struct lmcs_archive_input input = {.fd = fd, .progress = progress};
    enum lmcs_status status = lmcs_archive_reader_init_from(&reader, &input, error);
    if (status != LMCS_OK)
        return status;
    reader.source.passes_data = is_file(fd);
    reader.visitor = &lmcs_index_visitor;
    reader.context = &index;
    status = lmcs_archive_reader_run(&reader, error);
    if (status == LMCS_OK && info != NULL)
        fill_info(&reader, &index, info);
    struct listing listing = {.visit = visit, .context = context, .progress = progress, .total = reader.snapshot_count};
    if (status == LMCS_OK && visit != NULL)
        status = visit_all(&listing, &index, error);
    lmcs_index_free(&index);
    lmcs_archive_reader_fini(&reader);
    return status;
}

/* Decodes a content to verify it. Decoding the last link of a line checks the other links and their outputs. */
static enum lmcs_status decode_content(struct lmcs_decoding *d, const struct lmcs_archive_content *content, bool *done,
                                       struct lmcs_error *error)
{
    const void *data;
    bool comes_with = content->payload == LMCS_PAYLOAD_LINKED || content->is_gone_from;
    enum lmcs_status status =
        comes_with ? lmcs_decoding_open_newest(d, content, done, error) : lmcs_decoding_open(d, content, done, error);
    for (uint64_t i = 0; status == LMCS_OK && *done && !comes_with && i < lmc_block_count(d->raw_bytes); i++)
        status = lmcs_decoding_block(d, i, &data, error);
    lmcs_decoding_close(d);
    if (status == LMCS_OK && !*done) {
        status = lmcs_decoding_look(d, content, error);
        lmcs_decoding_close(d);
    }
    return status;
}

static enum lmcs_status decode_all(struct lmcs_decoding *d, const struct lmcs_progress *progress, uint64_t *decoded,
                                   struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < d->reader->content_count; i++) {
        bool done;
        status = decode_content(d, &d->reader->contents[i], &done, error);
        *decoded += status == LMCS_OK && done;
        if (status == LMCS_OK && progress != NULL && progress->call != NULL &&
            !progress->call(progress->context, "decoding", i + 1, d->reader->content_count))
            status = lmcs_fail(error, LMCS_CANCELLED, 0, "verifying was stopped");
    }
    return status;
}

enum lmcs_status lmcs_archive_verify(int fd, const struct lmcs_progress *progress, struct lmcs_archive_info *info,
                                     struct lmcs_error *error)
{
    struct lmcs_archive_reader reader;
    struct lmcs_index index = {.reader = &reader};
    bool decodes = is_file(fd);
    off_t start = decodes ? lseek(fd, 0, SEEK_CUR) : 0;
    const struct lmcs_archive_input input = {.fd = fd, .progress = progress, .doing = "verifying"};
    enum lmcs_status status = lmcs_archive_reader_init_from(&reader, &input, error);
    if (status != LMCS_OK)
        return status;
    reader.visitor = &lmcs_index_visitor;
    reader.context = &index;
    struct lmcs_decoding decoding = {.length = 0};
    uint64_t decoded = 0;
    status = lmcs_archive_reader_run(&reader, error);
    if (status == LMCS_OK && decodes)
        status = lmcs_decoding_init(&decoding, &reader, fd, (uint64_t)start, error);
    if (status == LMCS_OK && decodes)
        status = decode_all(&decoding, progress, &decoded, error);
    lmcs_decoding_fini(&decoding);
    if (status == LMCS_OK && info != NULL) {
        fill_info(&reader, &index, info);
        info->decoded_contents = decoded;
    }
    lmcs_index_free(&index);
    lmcs_archive_reader_fini(&reader);
    return status;
}
