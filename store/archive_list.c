/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive_list.c - archives without a pool: what is in them, and whether it is whole.
 *
 * To list a file, its payloads are passed over. To verify one, it is read as a whole, with the checksums of all its
 * records; then every content is decoded from where it lies, block by block along its chain, and compared with its
 * digest. A pipe can't be gone back in: of what it brings, the records are checked.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_decode.h"
#include "archive_index.h"
#include "meta.h"

static bool is_file(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && lseek(fd, 0, SEEK_CUR) >= 0;
}

/* ---- Listing ---- */

static enum lmcs_status visit_snapshot(const struct lmcs_index_shelf *shelf, const struct lmcs_index_snapshot *snapshot,
                                       bool (*visit)(void *context, const struct lmcs_archived *snapshot),
                                       void *context, bool *stop, struct lmcs_error *error)
{
    struct lmcs_meta meta = {0};
    const char **tags = calloc(shelf->tag_count + 1, sizeof *tags);
    size_t count = 0;
    enum lmcs_status status = tags == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < shelf->tag_count; i++)
        if (shelf->tags[i].number == snapshot->df.number)
            tags[count++] = shelf->tags[i].text;
    if (status == LMCS_OK && snapshot->meta != NULL)
        status = lmcs_meta_decode(snapshot->meta, &meta, error);
    if (status == LMCS_OK) {
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
                                         .tag_count = count,
                                         .metrics = meta.metrics,
                                         .metric_count = meta.metric_count};
        *stop = !visit(context, &archived);
    }
    if (snapshot->meta != NULL && status == LMCS_OK)
        lmcs_meta_free(&meta);
    free(tags);
    return status;
}

static enum lmcs_status visit_all(const struct lmcs_index *index,
                                  bool (*visit)(void *context, const struct lmcs_archived *snapshot), void *context,
                                  struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    bool stop = false;
    for (size_t i = 0; i < index->shelf_count; i++)
        for (size_t k = 0; status == LMCS_OK && !stop && k < index->shelves[i].snapshot_count; k++)
            status = visit_snapshot(&index->shelves[i], &index->shelves[i].snapshots[k], visit, context, &stop, error);
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
    enum lmcs_status status = lmcs_archive_reader_init(&reader, fd, error);
    if (status != LMCS_OK)
        return status;
    reader.source.passes_data = is_file(fd);
    reader.visitor = &lmcs_index_visitor;
    reader.context = &index;
    reader.progress = progress;
    status = lmcs_archive_reader_run(&reader, error);
    if (status == LMCS_OK && info != NULL)
        fill_info(&reader, &index, info);
    if (status == LMCS_OK && visit != NULL)
        status = visit_all(&index, visit, context, error);
    lmcs_index_free(&index);
    lmcs_archive_reader_fini(&reader);
    return status;
}

/* ---- Verifying ---- */

/* Of a line, the last link is decoded, with all before it; of the others and what they lead to, the digests count. */
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
    enum lmcs_status status = lmcs_archive_reader_init(&reader, fd, error);
    if (status != LMCS_OK)
        return status;
    reader.visitor = &lmcs_index_visitor;
    reader.context = &index;
    reader.progress = progress;
    reader.doing = "verifying";
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
