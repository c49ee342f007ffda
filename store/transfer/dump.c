/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/dump.c - lmcs_dump: sends snapshots of a pool as an archive (store/ARCHIVE.md, 11).
 *
 * One transaction plans the snapshots. Each is sent under a lease on its epoch, which keeps its pages and payloads: no
 * lock is held while a pipe is slow. A snapshot is sent as a whole list of entries or as changes to the snapshot
 * before, a content with the first snapshot that needs it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"
#include "records/annotation.h"
#include "transfer/dump.h"
#include "transfer/warn.h"

struct tag {
    const uint64_t *number; /* of the plan; 0: its snapshot was removed meanwhile */
    char *text;
};

struct tags {
    struct tag *items;
    size_t count;
    size_t capacity;
    const uint64_t *number;
    bool failed;
};

static bool add_tag(void *context, const char *text)
{
    struct tags *tags = context;
    tags->failed = !lmcs_grow(&tags->items, &tags->capacity, tags->count, sizeof *tags->items);
    if (tags->failed)
        return false;
    char *copy = strdup(text);
    tags->failed = copy == NULL;
    if (copy != NULL)
        tags->items[tags->count++] = (struct tag){tags->number, copy};
    return copy != NULL;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct tag *)a)->text, ((const struct tag *)b)->text);
}

/* A damaged page takes only its tags from the archive, after which those of older archives stay. */
static enum lmcs_status collect_tags(struct lmcs_dump *dump, struct lmcs_dump_shelf *plan, struct tags *tags,
                                     struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_passed passed = {.any = false};
    struct lmcs_error why = {.status = LMCS_OK};
    bool found = false;
    enum lmcs_status status = lmcs_annotated_hold(dump->pool, &dump->txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&dump->txn, plan->df.id, &shelf, &found, &why);
    bool any = status == LMCS_OK && found && lmcs_shelf_tree(&shelf, LMCS_TREE_TAGGED)->count > 0;
    for (size_t i = 0; any && status == LMCS_OK && i < plan->count + plan->older_count; i++) {
        tags->number = i < plan->count ? &plan->numbers[i] : &plan->older[i - plan->count];
        status = lmcs_tags_of(&dump->txn, &shelf, *tags->number, add_tag, tags, &why);
        if (tags->failed)
            status = lmcs_fail_memory(&why);
        if (!plan->says_all_tags)
            status = lmcs_pass_over(&passed, status, &why);
    }
    lmcs_txn_end(&dump->txn);
    if (status != LMCS_OK && error != NULL)
        *error = why;
    if (passed.any)
        lmcs_transfer_warn(&dump->warned, "shelf \"%.200s\": not all of its tags are in the archive: %.500s",
                           plan->name, passed.first.message);
    plan->has_all_tags = plan->has_all_tags && !passed.any;
    if (tags->count > 1)
        qsort(tags->items, tags->count, sizeof *tags->items, by_text);
    return status;
}

static enum lmcs_status send_tags(struct lmcs_dump *dump, const struct tags *tags, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < tags->count; i++) {
        const struct tag *tag = &tags->items[i];
        struct lmcs_archive_tag_df df = {*tag->number, (uint32_t)strlen(tag->text), 0};
        if (df.number == 0)
            continue;
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_TAG, &df, sizeof df, tag->text, df.tag_bytes, error);
        dump->end.tags++;
    }
    return status;
}

static void free_tags(struct tags *tags)
{
    for (size_t i = 0; i < tags->count; i++)
        free(tags->items[i].text);
    free(tags->items);
}

static enum lmcs_status send_origin(struct lmcs_dump *dump, const struct lmcs_origin *origin, struct lmcs_error *error)
{
    struct lmcs_archive_origin_df df = {
        .number = origin->df.number, .time_ns = origin->df.time_ns, .name_bytes = (uint32_t)strlen(origin->name)};
    return lmcs_dump_record(dump, LMCS_ARCHIVE_ORIGIN, &df, sizeof df, origin->name, df.name_bytes, error);
}

/* Sends the identity. A canonical archive does not depend on it. */
static enum lmcs_status send_id(struct lmcs_dump *dump, const struct lmcs_dump_shelf *plan, struct lmcs_error *error)
{
    struct lmcs_archive_shelf_id_df df = {.flags = plan->has_all_tags ? LMCS_ARCHIVE_ALL_TAGS : 0};
    if (plan->has_id || dump->options->canonical || !lmcs_shelf_is_known(plan->df.identity))
        return LMCS_OK;
    memcpy(df.identity, plan->df.identity, sizeof df.identity);
    return lmcs_dump_record(dump, LMCS_ARCHIVE_SHELF_ID, &df, sizeof df, NULL, 0, error);
}

static enum lmcs_status dump_shelf(struct lmcs_dump *dump, struct lmcs_dump_shelf *plan, struct lmcs_dump_order *order,
                                   struct lmcs_error *error)
{
    struct lmcs_archive_shelf_df df = {plan->df.next_number, plan->df.keep_raw, (uint32_t)strlen(plan->name)};
    struct lmcs_snapshot_df previous = {0};
    struct tags tags = {0};
    enum lmcs_status status = collect_tags(dump, plan, &tags, error);
    if (status == LMCS_OK && !plan->is_begun) {
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_SHELF, &df, sizeof df, plan->name, df.name_bytes, error);
        dump->end.shelves++;
    }
    if (status == LMCS_OK)
        status = send_id(dump, plan, error);
    if (status == LMCS_OK && plan->was_forked && !plan->has_origin)
        status = send_origin(dump, &plan->origin, error);
    uint64_t last = plan->last; /* the snapshot that changes refer to */
    if (status == LMCS_OK && last != 0)
        status = lmcs_dump_visit(dump, plan, order, &last, &previous, NULL, error);
    if (previous.time_ns != plan->last_time_ns)
        previous = (struct lmcs_snapshot_df){0};
    for (size_t i = 0; status == LMCS_OK && i < plan->count; i++)
        if (plan->numbers[i] > plan->last)
            status = lmcs_dump_visit(dump, plan, order, &plan->numbers[i], &previous, lmcs_dump_send, error);
    if (status == LMCS_OK)
        status = send_tags(dump, &tags, error);
    free_tags(&tags);
    return status;
}

static enum lmcs_status put_end(struct lmcs_dump *dump, struct lmcs_error *error)
{
    struct lmc_hash hash = lmc_hasher_final(&dump->headers);
    struct lmcs_archive_end_df end = dump->end;
    end.hash_low = hash.low;
    end.hash_high = hash.high;
    enum lmcs_status status = lmcs_dump_record(dump, LMCS_ARCHIVE_END, &end, sizeof end, NULL, 0, error);
    return status == LMCS_OK ? lmcs_dump_flush(dump, error) : status;
}

static enum lmcs_status put_beginning(struct lmcs_dump *dump, const struct lmcs_archive_since_df *since,
                                      struct lmcs_error *error)
{
    enum lmcs_status status = dump->bytes > 0 ? LMCS_OK : lmcs_dump_head(dump, error);
    for (size_t i = dump->end.records; status == LMCS_OK && i < dump->options->since_count; i++)
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_SINCE, &since[i], sizeof since[i], NULL, 0, error);
    return status;
}

static enum lmcs_status plan_all(struct lmcs_dump *dump, struct lmcs_dump_plans *plans, bool *is_done,
                                 struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_annotated_hold(dump->pool, &dump->txn, error);
    if (status != LMCS_OK)
        return status;
    if (dump->options->resume)
        status = lmcs_dump_continue(dump, plans, is_done, error);
    if (status == LMCS_OK) /* a complete archive may be of another part */
        status = lmcs_dump_plans_make(dump, plans, error);
    if (dump->options->address_count == 0 && dump->options->since_count == 0 && !dump->options->canonical)
        dump->total = dump->txn.root.live_bytes;
    lmcs_txn_end(&dump->txn);
    dump->is_part = dump->options->since_count > 0;
    for (size_t i = 0; i < dump->options->address_count; i++) /* whole shelves: all deltas are sent as they are */
        dump->is_part = dump->is_part || strchr(dump->options->addresses[i], '@') != NULL;
    dump->is_part = dump->is_part && !dump->options->as_stored && !dump->options->alone;
    lmcs_dump_sort_known(dump);
    if (status == LMCS_OK && !*is_done && (dump->is_part || dump->options->canonical))
        status = lmcs_dump_find_outside(dump, plans, error);
    lmcs_dump_sort_known(dump);
    if (status == LMCS_OK && dump->options->resume)
        status = lmcs_dump_cut_rest(dump, error);
    return status;
}

static enum lmcs_status dump_all(struct lmcs_dump *dump, struct lmcs_dump_plans *plans, struct lmcs_error *error)
{
    struct lmcs_dump_order order = {.count = 0};
    bool is_done = false;
    enum lmcs_status status = LMCS_OK;
    for (; status == LMCS_OK && plans->older_count < dump->options->since_count; plans->older_count++) {
        size_t i = plans->older_count;
        status = lmcs_dump_read_older(dump, dump->options->since[i], &plans->older[i], &plans->since[i], error);
    }
    if (status == LMCS_OK)
        status = plan_all(dump, plans, &is_done, error);
    if (status != LMCS_OK || is_done)
        return status;
    status = put_beginning(dump, plans->since, error);
    for (size_t i = 0; status == LMCS_OK && i < plans->count; i++) {
        order.before_count = 0;
        if (!plans->items[i].is_sent)
            status = dump_shelf(dump, &plans->items[i], &order, error);
    }
    lmcs_dump_order_end(&order);
    if (status == LMCS_OK)
        status = put_end(dump, error);
    if (status != LMCS_OK && dump->damaged_bytes > 0)
        lmcs_error_prefix(error, "%llu bytes of the incomplete archive were cut off, because damage was before them. ",
                          (unsigned long long)dump->damaged_bytes);
    return status;
}

static enum lmcs_status begin_and_dump(struct lmcs_dump *dump, struct lmcs_error *error)
{
    size_t older = dump->options->since_count;
    struct lmcs_dump_plans plans = {.older = calloc(older + 1, sizeof *plans.older),
                                    .since = calloc(older + 1, sizeof *plans.since)};
    dump->buffer = malloc(LMCS_DUMP_BUFFER);
    dump->piece = aligned_alloc(64, LMCS_ARCHIVE_PIECE_BYTES);
    enum lmcs_status status = LMCS_OK;
    if (plans.older == NULL || plans.since == NULL || dump->buffer == NULL || dump->piece == NULL)
        status = lmcs_fail_memory(error);
    if (status == LMCS_OK)
        status = dump_all(dump, &plans, error);
    lmcs_dump_plans_end(&plans);
    return status;
}

static void free_dump(struct lmcs_dump *dump)
{
    lmcs_id_free(&dump->identities);
    lmcs_id_free(&dump->contents);
    lmcs_id_free(&dump->forms);
    lmcs_id_free(&dump->inside);
    lmcs_id_free(&dump->outside);
    lmcs_holders_free(&dump->lost);
    free(dump->known);
    free(dump->costs);
    free(dump->piece);
    free(dump->buffer);
    free(dump);
}

void lmcs_dump_options_init(struct lmcs_dump_options *options)
{
    memset(options, 0, sizeof *options);
}

static bool is_same_file(int left, int right)
{
    struct stat l, r;
    return fstat(left, &l) == 0 && fstat(right, &r) == 0 && S_ISREG(l.st_mode) && l.st_dev == r.st_dev &&
           l.st_ino == r.st_ino;
}

static enum lmcs_status check_output(const struct lmcs_pool *pool, const struct lmcs_dump_options *options, int fd,
                                     struct lmcs_error *error)
{
    if (is_same_file(fd, lmcs_media_fd(pool->media)))
        return lmcs_fail(error, LMCS_INVALID, 0, "the archive would overwrite the pool");
    for (size_t i = 0; options != NULL && i < options->since_count; i++)
        if (is_same_file(fd, options->since[i]))
            return lmcs_fail(error, LMCS_INVALID, 0,
                             "the archive would overwrite an archive that it is made since and needs");
    return LMCS_OK;
}

/* Where an archive goes: `write`, or else the descriptor. */
struct output {
    int fd;
    lmcs_archive_write_fn write;
    void *context;
};

static enum lmcs_status dump_to(struct lmcs_pool *pool, const struct lmcs_dump_options *options,
                                const struct output *output, const struct lmcs_progress *progress,
                                struct lmcs_transfer_report *report, struct lmcs_error *error)
{
    static const struct lmcs_dump_options defaults;
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status != LMCS_OK)
        return status;
    if (options != NULL && options->canonical && (options->since_count > 0 || options->resume))
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "a canonical archive is complete: it can't be made since others, or be continued");
    if (options != NULL && options->canonical && options->alone)
        return lmcs_fail(error, LMCS_INVALID, 0, "a canonical archive has raw tensors: they can't be coded alone");
    status = check_output(pool, options, output->fd, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_dump *dump = lmcs_calloc_aligned(_Alignof(struct lmcs_dump), 1, sizeof *dump);
    if (dump == NULL)
        return lmcs_fail_memory(error);
    dump->pool = pool;
    dump->options = options != NULL ? options : &defaults;
    dump->fd = output->fd;
    dump->write = output->write;
    dump->write_context = output->context;
    dump->progress = progress;
    status = begin_and_dump(dump, error);
    lmcs_dump_unlock(dump);
    if (status == LMCS_OK && report != NULL) {
        *report = dump->warned;
        report->snapshots = dump->end.snapshots;
        report->snapshots_lost = dump->lost_snapshots;
        report->contents = dump->end.contents;
        report->contents_found = dump->known_sent;
        report->bytes = dump->bytes;
    }
    free_dump(dump);
    return status;
}

enum lmcs_status lmcs_dump_with(struct lmcs_pool *pool, const struct lmcs_dump_options *options, int fd,
                                const struct lmcs_progress *progress, struct lmcs_transfer_report *report,
                                struct lmcs_error *error)
{
    const struct output output = {.fd = fd};
    return dump_to(pool, options, &output, progress, report, error);
}

enum lmcs_status lmcs_dump_to(struct lmcs_pool *pool, const struct lmcs_dump_options *options,
                              lmcs_archive_write_fn write, void *context, const struct lmcs_progress *progress,
                              struct lmcs_transfer_report *report, struct lmcs_error *error)
{
    const struct output output = {-1, write, context};
    if (options != NULL && options->resume)
        return lmcs_fail(error, LMCS_INVALID, 0, "only an archive in a file can be continued");
    return dump_to(pool, options, &output, progress, report, error);
}

enum lmcs_status lmcs_dump(struct lmcs_pool *pool, const char *shelf, int fd, const struct lmcs_progress *progress,
                           struct lmcs_transfer_report *report, struct lmcs_error *error)
{
    const struct lmcs_dump_options options = {.addresses = &shelf, .address_count = shelf != NULL};
    return lmcs_dump_with(pool, &options, fd, progress, report, error);
}
