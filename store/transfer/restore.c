/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/restore.c - lmcs_restore: brings archives into the pool.
 *
 * The reader checks records, and staging verifies payloads (stage.c). All snapshots become visible at once, after the
 * last archive. Contents of the pool are found by digest (found.c), so an interrupted restore can be continued.
 *
 * To restore a part, a file (not a pipe) is read twice without payloads: for the list of snapshots, then for the
 * selected snapshots. At the end of each of these, its payloads are read by offset, bases first.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive/index.h"
#include "archive/pieces.h"
#include "base/grow.h"
#include "base/order.h"
#include "pages/pool.h"
#include "payload/layout.h"
#include "records/meta.h"
#include "records/relations.h"
#include "shelves/shelves.h"
#include "transfer/arrive.h"
#include "transfer/bases.h"
#include "transfer/stage.h"

struct restore {
    struct lmcs_pool *pool;
    const struct lmcs_restore_options *options;
    const struct lmcs_progress *progress;
    struct lmcs_archive_reader *reader;
    struct lmcs_stage stage;
    struct lmcs_arrivals *arrivals;
    struct lmcs_parts parts;
    bool selects; /* only a part is wanted */
    bool shares;  /* do not write contents of the pool again */
    bool copies_known;
    const struct lmcs_archive_input *inputs;
    size_t input_count;
    int fd;
    uint64_t start; /* of the archive */
    unsigned char *piece;
    uint32_t *wanted; /* contents to fetch */
    size_t wanted_count;
    size_t wanted_capacity;
    /* of a part: the selected entries of the list after the last snapshot read: */
    size_t *listed; /* indices of identities */
    size_t listed_count;
    size_t listed_capacity;
    uint64_t listed_tensors;
    uint64_t listed_bytes;
    bool skips_shelf;
    bool skips_snapshot;
    bool skips_data;
    bool has_list; /* the last staged snapshot has the list that changes refer to */
    struct lmc_hash since;
    struct lmcs_transfer_report report;
};

/* ---- Selecting a part ---- */

/* With only some tensors, of the attachments only the store's own are wanted. */
static bool is_wanted(const struct restore *restore, const struct lmcs_tensor *tensor)
{
    if (restore->options->only_count == 0)
        return true;
    if (tensor->kind == LMCS_ATTACHMENT)
        return lmcs_is_own(tensor->kind, tensor->name);
    return lmcs_only_has(restore->options->only, restore->options->only_count, tensor->name);
}

static enum lmcs_status rewind_file(int fd, off_t start, struct lmcs_error *error)
{
    return lseek(fd, start, SEEK_SET) == start ? LMCS_OK : lmcs_fail_errno(error, errno, "the archive can't be read");
}

/* Reads the whole archive without payloads. */
static enum lmcs_status look_through(struct lmcs_archive_reader *reader, int fd, off_t start,
                                     const struct lmcs_archive_visitor *visitor, void *context,
                                     struct lmcs_error *error)
{
    enum lmcs_status status = rewind_file(fd, start, error);
    if (status == LMCS_OK)
        status = lmcs_archive_reader_init(reader, fd, error);
    if (status != LMCS_OK)
        return status;
    reader->source.passes_data = true;
    reader->visitor = visitor;
    reader->context = context;
    return lmcs_archive_reader_run(reader, error);
}

static bool has_wanted(const struct restore *restore, const struct lmcs_archive_reader *reader)
{
    bool any = restore->options->only_count == 0;
    for (size_t i = 0; !any && i < reader->identity_count; i++)
        any = reader->identities[i]->tensor.kind == LMCS_TENSOR && is_wanted(restore, &reader->identities[i]->tensor);
    return any;
}

static enum lmcs_status find_parts(struct restore *restore, int fd, off_t start, struct lmcs_error *error)
{
    struct lmcs_archive_reader reader = {.shelf_count = 0};
    struct lmcs_index index = {.reader = &reader};
    enum lmcs_status status = look_through(&reader, fd, start, &lmcs_index_visitor, &index, error);
    if (status == LMCS_OK)
        status = lmcs_index_parts(&index, restore->options->addresses, restore->options->address_count, &restore->parts,
                                  error);
    if (status == LMCS_OK && !has_wanted(restore, &reader))
        status = lmcs_fail(error, LMCS_NOT_FOUND, 0, "the archive has no tensor \"%.200s\"", restore->options->only[0]);
    lmcs_index_free(&index);
    lmcs_archive_reader_fini(&reader);
    return status;
}

static enum lmcs_status select_parts(struct restore *restore, struct lmcs_error *error)
{
    struct stat info;
    const int fd = restore->input_count == 1 ? restore->inputs[0].fd : -1;
    off_t start = lseek(fd, 0, SEEK_CUR);
    if (restore->input_count != 1)
        return lmcs_fail(error, LMCS_INVALID, 0, "a part can be restored from one archive at a time");
    if (start < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "to restore a part, the archive must be a file, because it is read more than once: write the "
                         "pipe to a file first");
    restore->piece = malloc(LMCS_ARCHIVE_PIECE_BYTES);
    enum lmcs_status status = restore->piece == NULL ? lmcs_fail_memory(error) : find_parts(restore, fd, start, error);
    return status == LMCS_OK ? rewind_file(fd, start, error) : status;
}

/* ---- The visitor ---- */

static enum lmcs_status take_since(void *context, const struct lmcs_archive_since_df *since, struct lmcs_error *error)
{
    struct restore *restore = context;
    (void)error;
    restore->since = (struct lmc_hash){since->hash_low, since->hash_high};
    return LMCS_OK;
}

static enum lmcs_status take_shelf(void *context, struct lmcs_error *error)
{
    struct restore *restore = context;
    const struct lmcs_archive_reader *reader = restore->reader;
    const char *name = restore->options->as;
    restore->skips_shelf = !lmcs_parts_have_shelf(&restore->parts, reader->shelf);
    restore->has_list = false;
    if (restore->skips_shelf)
        return LMCS_OK;
    if (name != NULL && restore->stage.shelf_count > 0 && strcmp(restore->stage.shelves[0].from, reader->shelf) != 0)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "several shelves (\"%.200s\", \"%.200s\") can't be restored as one: name one of them",
                         restore->stage.shelves[0].from, reader->shelf);
    return lmcs_stage_shelf(&restore->stage, name != NULL ? name : reader->shelf, reader->shelf,
                            reader->shelf_df.next_number, reader->shelf_df.keep_raw, error);
}

static enum lmcs_status take_shelf_id(void *context, const struct lmcs_archive_shelf_id_df *id,
                                      struct lmcs_error *error)
{
    struct restore *restore = context;
    return restore->skips_shelf ? LMCS_OK : lmcs_stage_identify(&restore->stage, id, error);
}

static enum lmcs_status take_origin(void *context, const struct lmcs_archive_origin_df *origin, const char *name,
                                    struct lmcs_error *error)
{
    struct restore *restore = context;
    if (restore->skips_shelf)
        return LMCS_OK;
    struct lmcs_stage_shelf *shelf = &restore->stage.shelves[restore->stage.shelf_count - 1];
    if ((shelf->origin = strdup(name)) == NULL)
        return lmcs_fail_memory(error);
    shelf->origin_number = origin->number;
    shelf->origin_time_ns = origin->time_ns;
    return LMCS_OK;
}

static enum lmcs_status take_snapshot(void *context, struct lmcs_error *error)
{
    struct restore *restore = context;
    const struct lmcs_archive_reader *reader = restore->reader;
    const struct lmcs_archive_snapshot_df *from = &reader->snapshot;
    struct lmcs_record *record = &restore->stage.record;
    (void)error;
    restore->skips_snapshot = restore->skips_shelf || !lmcs_parts_have(&restore->parts, reader->shelf, from->number);
    if (restore->skips_snapshot)
        return LMCS_OK;
    record->df = (struct lmcs_snapshot_df){
        .number = from->number,
        .step = from->step,
        .time_ns = from->time_ns,
        .parent = from->parent,
        .meta_bytes = (from->flags & LMCS_ARCHIVE_META_ATTACHED) != 0 ? UINT32_MAX : from->meta_bytes};
    memcpy(record->df.group, from->group, sizeof record->df.group);
    memcpy(record->meta, reader->meta, from->meta_bytes + 1u);
    return LMCS_OK;
}

static enum lmcs_status fail_missing(struct restore *restore, const struct lmcs_tensor *tensor,
                                     struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_NOT_FOUND, 0,
                     "%s: the archive needs an older one (%016llx%016llx): tensor \"%.64s\" of %s@%llu is neither in "
                     "this archive nor in the pool; restore the older one first, or both together",
                     restore->pool->path, (unsigned long long)restore->since.high,
                     (unsigned long long)restore->since.low, tensor->name, restore->reader->shelf,
                     (unsigned long long)restore->reader->snapshot.number);
}

static enum lmcs_status add_pending(struct restore *restore, size_t index, struct lmcs_error *error)
{
    struct lmcs_stage *stage = &restore->stage;
    const struct lmcs_archive_content *content = &restore->reader->contents[index];
    struct lmcs_stage_pending pending = {.index = index};
    enum lmcs_status status = lmcs_stage_bases(stage, index, pending.instead, error);
    if (status != LMCS_OK)
        return status;
    pending.content.df =
        (struct lmcs_content_df){.digest_low = content->digest.low,
                                 .digest_high = content->digest.high,
                                 .raw_bytes = restore->reader->identities[content->identity]->raw_bytes,
                                 .payload = content->payload,
                                 .flags = content->flags};
    if (!lmcs_grow(&stage->pending, &stage->pending_capacity, stage->pending_count, sizeof *stage->pending))
        return lmcs_fail_memory(error);
    status = lmcs_stage_room(stage, &pending.content, content->stored_bytes, error);
    if (status != LMCS_OK)
        return status;
    stage->pending[stage->pending_count++] = pending;
    stage->pending_bytes += content->stored_bytes;
    return LMCS_OK;
}

/* Finds the content in the pool. *found false: it must be written. */
static enum lmcs_status find_content(struct restore *restore, size_t index, bool *found, struct lmcs_error *error)
{
    struct lmcs_archive_content *content = &restore->reader->contents[index];
    struct lmcs_stage_wanted wanted = {.digest = content->digest,
                                       .tensor = &restore->reader->identities[content->identity]->tensor,
                                       .depth = content->is_known ? LMCS_CHAIN_BOUND : content->depth,
                                       .arrays = content->payload == LMCS_PAYLOAD_LINK ? content->base_count : 0,
                                       .line = content->line,
                                       .output = content->output};
    if (content->payload == LMCS_PAYLOAD_LINKED)
        wanted.link = restore->reader->contents[content->bases[0] - 1].pool_id;
    enum lmcs_status status = restore->shares || content->is_known
                                  ? lmcs_stage_find(&restore->stage, &wanted, &content->pool_id, error)
                                  : LMCS_OK;
    if (status == LMCS_OK && content->pool_id == 0 && content->is_known)
        return fail_missing(restore, wanted.tensor, error);
    content->is_found = content->pool_id != 0;
    *found = content->is_found;
    restore->report.contents_found += *found && !content->is_known;
    return status;
}

static enum lmcs_status take_content(void *context, struct lmcs_error *error)
{
    struct restore *restore = context;
    const struct lmcs_archive_reader *reader = restore->reader;
    size_t index = reader->content_count - 1;
    restore->skips_data = true;
    if (restore->selects)
        return LMCS_OK; /* its payload is fetched after the snapshot */
    /* A content that rests on a written one is written too: else the written one might remain unused and never be
     * removed. */
    enum lmcs_status status = LMCS_OK;
    bool found = true;
    for (size_t i = 0; i < reader->contents[index].base_count; i++)
        found = found && reader->contents[reader->contents[index].bases[i] - 1].is_found;
    if (found)
        status = find_content(restore, index, &found, error);
    restore->skips_data = found;
    return status != LMCS_OK || found ? status : add_pending(restore, index, error);
}

static enum lmcs_status fetch_payload(struct restore *restore, size_t index, struct lmcs_error *error)
{
    struct lmcs_pieces pieces;
    enum lmcs_status status = add_pending(restore, index, error);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_content *content = &restore->stage.pending[restore->stage.pending_count - 1].content;
    uint64_t left = content->df.stored_bytes;
    lmcs_pieces_init(&pieces, restore->fd, restore->start, &restore->reader->contents[index]);
    for (uint64_t at = 0; status == LMCS_OK && left > 0;) {
        size_t n = left < LMCS_ARCHIVE_PIECE_BYTES ? (size_t)left : LMCS_ARCHIVE_PIECE_BYTES;
        status = lmcs_pieces_read(&pieces, at, restore->piece, n, error);
        if (status == LMCS_OK)
            status = lmcs_payload_write(restore->pool->heap, content, at, restore->piece, n, error);
        at += n;
        left -= n;
    }
    return status;
}

/* Adds a content of the archive to those to fetch, unless the pool has it. */
static enum lmcs_status want_content(struct restore *restore, uint32_t id, struct lmcs_error *error)
{
    struct lmcs_archive_content *content = &restore->reader->contents[id - 1];
    enum lmcs_status status = LMCS_OK;
    bool found = true;
    if (content->is_wanted)
        return LMCS_OK;
    content->is_wanted = true;
    if (content->payload == LMCS_PAYLOAD_LINKED) { /* its link comes first; it is found among the outputs */
        status = want_content(restore, content->bases[0], error);
        found = restore->reader->contents[content->bases[0] - 1].is_found;
    }
    if (status == LMCS_OK && found)
        status = find_content(restore, id - 1, &found, error);
    if (status != LMCS_OK || found)
        return status;
    if (!lmcs_grow(&restore->wanted, &restore->wanted_capacity, restore->wanted_count, sizeof id))
        return lmcs_fail_memory(error);
    restore->wanted[restore->wanted_count++] = id;
    return LMCS_OK;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return LMCS_ORDER(x, y);
}

/* Fetches bases first: they have lower ids. */
static enum lmcs_status fetch_content(struct restore *restore, uint64_t id, struct lmcs_error *error)
{
    restore->wanted_count = 0;
    enum lmcs_status status = id != 0 ? want_content(restore, (uint32_t)id, error) : LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < restore->wanted_count; i++) {
        const struct lmcs_archive_content *content = &restore->reader->contents[restore->wanted[i] - 1];
        for (size_t k = 0; status == LMCS_OK && k < content->base_count; k++)
            status = want_content(restore, content->bases[k], error);
    }
    if (restore->wanted_count > 1)
        qsort(restore->wanted, restore->wanted_count, sizeof *restore->wanted, by_id);
    for (size_t i = 0; status == LMCS_OK && i < restore->wanted_count; i++)
        status = fetch_payload(restore, restore->wanted[i] - 1, error);
    return status;
}

static enum lmcs_status take_data(void *context, const void *bytes, size_t count, struct lmcs_error *error)
{
    struct restore *restore = context;
    (void)bytes; /* the source's payload */
    if (restore->skips_data)
        return LMCS_OK;
    const size_t pending = restore->stage.pending_count - 1;
    struct lmcs_arrival arrival = {.pending = pending,
                                   .content = restore->stage.pending[pending].content,
                                   .at = restore->reader->data_at,
                                   .bytes = count};
    arrival.is_last =
        arrival.at + count == arrival.content.df.stored_bytes && lmcs_stage_stands_alone(&restore->stage, pending);
    return lmcs_arrivals_add(restore->arrivals, &restore->stage, &arrival, &restore->reader->source.payload, error);
}

/* ---- The lists of a part ---- */

static enum lmcs_status enter_listed(struct restore *restore, size_t index, struct lmcs_error *error)
{
    struct lmcs_archive_identity *identity = restore->reader->identities[index];
    if (!lmcs_grow(&restore->listed, &restore->listed_capacity, restore->listed_count, sizeof index))
        return lmcs_fail_memory(error);
    identity->listed = restore->reader->list;
    identity->place = restore->listed_count;
    restore->listed[restore->listed_count++] = index;
    restore->listed_tensors += identity->tensor.kind == LMCS_TENSOR;
    restore->listed_bytes += identity->raw_bytes;
    return LMCS_OK;
}

static void leave_listed(struct restore *restore, size_t index)
{
    struct lmcs_archive_identity *identity = restore->reader->identities[index];
    size_t last = restore->listed[--restore->listed_count];
    restore->listed[identity->place] = last;
    restore->reader->identities[last]->place = identity->place;
    identity->listed = 0;
    restore->listed_tensors -= identity->tensor.kind == LMCS_TENSOR;
    restore->listed_bytes -= identity->raw_bytes;
}

/* Applies the changes of each snapshot, wanted or not, to the selected entries. */
static enum lmcs_status follow_list(struct restore *restore, struct lmcs_error *error)
{
    const struct lmcs_archive_reader *reader = restore->reader;
    enum lmcs_status status = LMCS_OK;
    if ((reader->snapshot.flags & LMCS_ARCHIVE_CHANGES) == 0)
        restore->listed_count = restore->listed_tensors = restore->listed_bytes = 0;
    for (size_t i = 0; status == LMCS_OK && i < reader->entry_count; i++) {
        size_t index = (size_t)reader->entries[i].identity - 1;
        const struct lmcs_archive_identity *identity = reader->identities[index];
        bool was_listed = identity->listed == reader->list, is_listed = reader->entries[i].content != 0;
        if (was_listed && !is_listed)
            leave_listed(restore, index);
        else if (!was_listed && is_listed && is_wanted(restore, &identity->tensor))
            status = enter_listed(restore, index, error);
    }
    return status;
}

static int by_index(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return LMCS_ORDER(x, y);
}

static enum lmcs_status add_entry(struct restore *restore, uint64_t identity, uint64_t content,
                                  struct lmcs_error *error)
{
    struct lmcs_stage *stage = &restore->stage;
    if (!lmcs_grow(&stage->entries, &stage->entry_capacity, stage->entry_count, sizeof *stage->entries))
        return lmcs_fail_memory(error);
    stage->entries[stage->entry_count++] = (struct lmcs_archive_entry_df){identity, content};
    return restore->selects ? fetch_content(restore, content, error) : LMCS_OK;
}

static enum lmcs_status add_changes(struct restore *restore, struct lmcs_error *error)
{
    const struct lmcs_archive_reader *reader = restore->reader;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < reader->entry_count; i++)
        if (is_wanted(restore, &reader->identities[reader->entries[i].identity - 1]->tensor))
            status = add_entry(restore, reader->entries[i].identity, reader->entries[i].content, error);
    return status;
}

static enum lmcs_status add_list(struct restore *restore, struct lmcs_error *error)
{
    const struct lmcs_archive_reader *reader = restore->reader;
    enum lmcs_status status = LMCS_OK;
    if (restore->listed_count > 1)
        qsort(restore->listed, restore->listed_count, sizeof *restore->listed, by_index);
    for (size_t i = 0; status == LMCS_OK && i < restore->listed_count; i++) {
        struct lmcs_archive_identity *identity = reader->identities[restore->listed[i]];
        identity->place = i;
        status = add_entry(restore, restore->listed[i] + 1, identity->content, error);
    }
    return status;
}

static enum lmcs_status list_entries(struct restore *restore, struct lmcs_error *error)
{
    bool is_changes = (restore->reader->snapshot.flags & LMCS_ARCHIVE_CHANGES) != 0;
    restore->stage.is_changes = is_changes && restore->has_list;
    return is_changes && !restore->has_list ? add_list(restore, error) : add_changes(restore, error);
}

/* Counts the entries of the snapshot: of a part, only the selected ones. */
static void count_entries(const struct restore *restore, struct lmcs_snapshot_df *df)
{
    const struct lmcs_archive_reader *reader = restore->reader;
    df->entry_count = restore->selects ? restore->listed_count : reader->present;
    df->tensor_count = restore->selects ? restore->listed_tensors : reader->tensors;
    df->raw_bytes = restore->selects ? restore->listed_bytes : reader->raw_bytes;
}

static enum lmcs_status take_snapshot_end(void *context, struct lmcs_error *error)
{
    struct restore *restore = context;
    enum lmcs_status status = restore->selects && !restore->skips_shelf ? follow_list(restore, error) : LMCS_OK;
    restore->has_list = restore->has_list && !restore->skips_snapshot;
    if (status != LMCS_OK || restore->skips_snapshot)
        return status;
    status = lmcs_arrivals_wait(restore->arrivals, &restore->stage, error);
    if (status == LMCS_OK)
        status = list_entries(restore, error);
    if (status != LMCS_OK)
        return status;
    count_entries(restore, &restore->stage.record.df);
    restore->has_list = true;
    return lmcs_stage_snapshot(&restore->stage, error);
}

static enum lmcs_status take_tag(void *context, uint64_t number, const char *text, struct lmcs_error *error)
{
    struct restore *restore = context;
    if (restore->skips_shelf || !lmcs_parts_have(&restore->parts, restore->reader->shelf, number))
        return LMCS_OK;
    return lmcs_stage_tag(&restore->stage, number, text, error);
}

static const struct lmcs_archive_visitor restore_visitor = {.since = take_since,
                                                            .shelf = take_shelf,
                                                            .shelf_id = take_shelf_id,
                                                            .origin = take_origin,
                                                            .snapshot = take_snapshot,
                                                            .content = take_content,
                                                            .data = take_data,
                                                            .snapshot_end = take_snapshot_end,
                                                            .tag = take_tag};

/* ---- The whole ---- */

static enum lmcs_status read_archive(struct restore *restore, const struct lmcs_archive_input *input,
                                     struct lmcs_error *error)
{
    struct lmcs_archive_reader reader = {.shelf_count = 0};
    off_t start = restore->selects ? lseek(input->fd, 0, SEEK_CUR) : 0;
    struct lmcs_archive_input reported = *input;
    reported.progress = restore->progress;
    reported.doing = "restoring";
    enum lmcs_status status = lmcs_archive_reader_init_from(&reader, &reported, error);
    if (status != LMCS_OK)
        return status;
    restore->reader = &reader;
    restore->fd = input->fd;
    restore->start = (uint64_t)start;
    reader.source.passes_data = restore->selects;
    reader.visitor = &restore_visitor;
    reader.context = restore;
    status = lmcs_stage_begin(&restore->stage, &reader, error);
    if (status == LMCS_OK)
        status = lmcs_arrivals_new(restore->pool, &restore->arrivals, error);
    if (status == LMCS_OK)
        status = lmcs_archive_reader_run(&reader, error);
    for (size_t i = 0; status == LMCS_OK && i < restore->stage.shelf_count; i++)
        status = lmcs_stage_place(&restore->stage, i, error);
    if (status == LMCS_OK)
        status = lmcs_stage_end(&restore->stage, error);
    if (status != LMCS_OK && restore->arrivals != NULL) { /* damage that is found only now matters more */
        struct lmcs_error later;
        const enum lmcs_status found = lmcs_arrivals_wait(restore->arrivals, &restore->stage, &later);
        if (found != LMCS_OK && error != NULL)
            *error = later;
        status = found != LMCS_OK ? found : status;
    }
    lmcs_arrivals_free(restore->arrivals);
    restore->arrivals = NULL;
    restore->report.contents += reader.content_count;
    restore->report.bytes += reader.source.offset;
    restore->stage.reader = NULL;
    lmcs_archive_reader_fini(&reader);
    return status;
}

static enum lmcs_status read_archives(struct restore *restore, struct lmcs_error *error)
{
    enum lmcs_status status = restore->selects ? select_parts(restore, error) : LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < restore->input_count; i++) {
        restore->stage.archive = i;
        restore->stage.is_last = i + 1 == restore->input_count;
        status = read_archive(restore, &restore->inputs[i], error);
    }
    return status == LMCS_OK ? lmcs_stage_show(&restore->stage, error) : status;
}

static enum lmcs_status check_options(const struct lmcs_restore_options *options, struct lmcs_error *error)
{
    const char *as = options->as;
    if (as != NULL && (!lmcs_name_is_sound(as) || strchr(as, '@') != NULL))
        return lmcs_fail(error, LMCS_INVALID, 0, "\"%.64s\" can't be the name of a shelf", as);
    return LMCS_OK;
}

/* A failed restore leaves nothing or, with `resume`, the snapshots that arrived. Kept shelves of earlier attempts are
 * removed after success, or if the archive is damaged. */
static void end_restore(struct restore *restore, enum lmcs_status status)
{
    const struct lmcs_stage *stage = &restore->stage;
    bool has_served = status == LMCS_OK || !stage->keeps;
    if (status != LMCS_OK)
        lmcs_stage_drop(&restore->stage, stage->keeps && stage->snapshots > 0);
    lmcs_stage_fini(&restore->stage);
    if (has_served)
        (void)lmcs_staging_drop_kept(restore->pool, NULL);
    lmcs_parts_free(&restore->parts);
    free(restore->wanted);
    free(restore->listed);
    free(restore->piece);
}

void lmcs_restore_options_init(struct lmcs_restore_options *options)
{
    memset(options, 0, sizeof *options);
}

static enum lmcs_status restore_once(struct restore *restore, struct lmcs_transfer_report *report,
                                     struct lmcs_error *error)
{
    lmcs_stage_init(&restore->stage, restore->pool);
    restore->stage.keeps = restore->options->resume;
    restore->stage.moves_tags = restore->options->move_tags;
    restore->stage.is_named = restore->options->as != NULL;
    restore->stage.copies_known = restore->copies_known;
    restore->stage.report = &restore->report;
    enum lmcs_status status = restore->options->resume ? LMCS_OK : lmcs_staging_drop_kept(restore->pool, error);
    if (status == LMCS_OK)
        status = read_archives(restore, error);
    restore->report.snapshots = restore->stage.shown;
    restore->report.snapshots_skipped = restore->stage.skipped;
    if (status == LMCS_OK && report != NULL)
        *report = restore->report;
    end_restore(restore, status);
    return status;
}

/* Returns the offsets of the archives; NULL: one of them is not a file, so that it can be read only once. */
static off_t *note_starts(const struct lmcs_archive_input *inputs, size_t count)
{
    off_t *starts = malloc((count + 1) * sizeof *starts);
    for (size_t i = 0; starts != NULL && i < count; i++) {
        starts[i] = lseek(inputs[i].fd, 0, SEEK_CUR);
        if (starts[i] < 0) {
            free(starts);
            return NULL;
        }
    }
    return starts;
}

static bool rewind_all(const struct lmcs_archive_input *inputs, const off_t *starts, size_t count)
{
    struct lmcs_error ignored;
    bool rewound = starts != NULL;
    for (size_t i = 0; rewound && i < count; i++)
        rewound = rewind_file(inputs[i].fd, starts[i], &ignored) == LMCS_OK;
    return rewound;
}

/*
 * Restarts: store/ARCHIVE.md, 11.6.
 *
 * Rejected: a set in memory that keeps found contents. A removal would leave a content without a run and without
 * dependents, which verification reports as damage and no writer removes after a crash. The set would also stop
 * compaction of shared contents.
 */
#define ATTEMPTS 4

static enum lmcs_status restore_from(struct lmcs_pool *pool, const struct lmcs_archive_input *inputs, size_t count,
                                     const struct lmcs_restore_options *options, const struct lmcs_progress *progress,
                                     struct lmcs_transfer_report *report, struct lmcs_error *error)
{
    static const struct lmcs_restore_options defaults;
    if (options == NULL)
        options = &defaults;
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = check_options(options, error);
    if (status != LMCS_OK)
        return status;
    off_t *starts = note_starts(inputs, count);
    bool again = true, copies_known = false;
    for (unsigned attempt = 1; again; attempt++) {
        struct restore restore = {.pool = pool,
                                  .options = options,
                                  .progress = progress,
                                  .inputs = inputs,
                                  .input_count = count,
                                  .selects = options->address_count > 0 || options->only_count > 0,
                                  .shares = attempt < ATTEMPTS,
                                  .copies_known = copies_known || attempt == ATTEMPTS};
        status = restore_once(&restore, report, error);
        copies_known = copies_known || restore.stage.is_too_long;
        again = status != LMCS_OK && (restore.stage.is_overtaken || restore.stage.is_too_long) && attempt < ATTEMPTS &&
                rewind_all(inputs, starts, count);
    }
    free(starts);
    if (status == LMCS_FULL)
        lmcs_pool_explain_full(pool, NULL, error);
    return status;
}

enum lmcs_status lmcs_restore_with(struct lmcs_pool *pool, const int *fds, size_t count,
                                   const struct lmcs_restore_options *options, const struct lmcs_progress *progress,
                                   struct lmcs_transfer_report *report, struct lmcs_error *error)
{
    struct lmcs_archive_input *inputs = calloc(count + 1, sizeof *inputs);
    if (inputs == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < count; i++)
        inputs[i].fd = fds[i];
    enum lmcs_status status = restore_from(pool, inputs, count, options, progress, report, error);
    free(inputs);
    return status;
}

enum lmcs_status lmcs_restore_from(struct lmcs_pool *pool, lmcs_archive_read_fn read, void *context,
                                   const struct lmcs_restore_options *options, const struct lmcs_progress *progress,
                                   struct lmcs_transfer_report *report, struct lmcs_error *error)
{
    const struct lmcs_archive_input input = {.fd = -1, .read = read, .context = context};
    return restore_from(pool, &input, 1, options, progress, report, error);
}

enum lmcs_status lmcs_restore(struct lmcs_pool *pool, int fd, const struct lmcs_progress *progress,
                              struct lmcs_transfer_report *report, struct lmcs_error *error)
{
    return lmcs_restore_with(pool, &fd, 1, NULL, progress, report, error);
}
