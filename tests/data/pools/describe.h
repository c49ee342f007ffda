/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * describe.h - describes a pool or archive as text, one fact a line, by public functions alone.
 *
 * States values (names, shapes, hashes), not sentences of the store. After " | " is the storage, which compaction
 * changes and describe_logical removes.
 */
#ifndef LMCS_TEST_DESCRIBE_H
#define LMCS_TEST_DESCRIBE_H

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lmcstore.h"
#include "lmcstore_live.h"

enum { DESCRIBED_NUMBERS = 1024, DESCRIBED_SHELVES = 64, DESCRIBED_ENTRIES = 4096 };

static inline void describe_hash(FILE *out, struct lmc_hash hash)
{
    fprintf(out, "%016" PRIx64 "%016" PRIx64, hash.high, hash.low);
}

static inline void describe_bytes(FILE *out, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        fprintf(out, "%02x", at[i]);
}

static inline void describe_list(FILE *out, uint32_t count, const uint64_t *numbers)
{
    fputc('[', out);
    for (uint32_t i = 0; i < count; i++)
        fprintf(out, "%s%" PRIu64, i > 0 ? "," : "", numbers[i]);
    fputc(']', out);
}

/* ---- Snapshots ---- */

/* If damaged, which blocks are readable. */
static inline void describe_content(FILE *out, struct lmcs_snapshot *snapshot, const struct lmcs_entry *entry)
{
    struct lmcs_error error;
    uint64_t bytes = entry->raw_bytes, count = lmc_block_count(bytes);
    unsigned char *data = malloc(bytes + 1);
    enum lmcs_status status = lmcs_snapshot_read(snapshot, entry->tensor.kind, entry->tensor.name, data, bytes, &error);
    if (status == LMCS_OK) {
        fprintf(out, "%016" PRIx64, lmc_hash64(data, bytes, 0));
    } else {
        fprintf(out, "%s:", lmcs_status_name(status));
        for (uint64_t i = 0; i < count; i++) {
            uint64_t first = i * LMC_BLOCK_BYTES;
            uint64_t n = bytes - first < LMC_BLOCK_BYTES ? bytes - first : LMC_BLOCK_BYTES;
            bool is_right = lmcs_snapshot_read_range(snapshot, entry->tensor.kind, entry->tensor.name, first, data, n,
                                                     &error) == LMCS_OK;
            fputc(is_right ? 'r' : 'd', out);
        }
    }
    free(data);
}

static inline void describe_entry(FILE *out, struct lmcs_snapshot *snapshot, const struct lmcs_entry *entry)
{
    static const char *const stored[] = {"raw", "keyframe", "delta", "link"};
    const struct lmcs_tensor *tensor = &entry->tensor;
    fprintf(out, "  %s \"%s\" %s", tensor->kind == LMCS_ATTACHMENT ? "attachment" : "tensor", tensor->name,
            lmc_dtype_name(tensor->dtype));
    describe_list(out, tensor->ndim, tensor->shape);
    if (tensor->global_shape != NULL) {
        fprintf(out, " of ");
        describe_list(out, tensor->ndim, tensor->global_shape);
        fprintf(out, " at ");
        describe_list(out, tensor->ndim, tensor->offsets);
    }
    fprintf(out, " bytes %" PRIu64 " digest ", entry->raw_bytes);
    describe_hash(out, entry->digest);
    fprintf(out, " content ");
    describe_content(out, snapshot, entry);
    fprintf(out, " | %s %" PRIu64 " chain %u\n", stored[entry->stored_as], entry->stored_bytes, entry->chain);
}

struct described_entries {
    struct lmcs_entry items[DESCRIBED_ENTRIES];
    size_t count;
};

static inline uint64_t *describe_copy(uint32_t count, const uint64_t *numbers)
{
    uint64_t *copy = numbers != NULL ? calloc(count + 1u, sizeof *copy) : NULL;
    if (copy != NULL && count > 0)
        memcpy(copy, numbers, count * sizeof *copy);
    return copy;
}

static inline bool describe_keep_entry(void *context, const struct lmcs_entry *entry)
{
    struct described_entries *entries = context;
    if (entries->count == DESCRIBED_ENTRIES)
        abort();
    struct lmcs_entry *kept = &entries->items[entries->count++];
    *kept = *entry;
    kept->tensor.name = strdup(entry->tensor.name);
    kept->tensor.shape = describe_copy(entry->tensor.ndim, entry->tensor.shape);
    kept->tensor.global_shape = describe_copy(entry->tensor.ndim, entry->tensor.global_shape);
    kept->tensor.offsets = describe_copy(entry->tensor.ndim, entry->tensor.offsets);
    return true;
}

static inline void free_entries(struct described_entries *entries)
{
    for (size_t i = 0; i < entries->count; i++) {
        const struct lmcs_tensor *tensor = &entries->items[i].tensor;
        free((void *)tensor->name);
        free((void *)tensor->shape);
        free((void *)tensor->global_shape);
        free((void *)tensor->offsets);
    }
    free(entries);
}

static inline enum lmcs_status describe_entries(FILE *out, struct lmcs_snapshot *snapshot, struct lmcs_error *error)
{
    struct described_entries *entries = calloc(1, sizeof *entries);
    enum lmcs_status status = lmcs_snapshot_entries(snapshot, describe_keep_entry, entries, error);
    for (size_t i = 0; i < entries->count; i++)
        describe_entry(out, snapshot, &entries->items[i]);
    free_entries(entries);
    return status;
}

static inline void describe_metric(FILE *out, const struct lmcs_metric *metric)
{
    if (isnan(metric->value))
        fprintf(out, "  metric %s nan\n", metric->name);
    else
        fprintf(out, "  metric %s %a\n", metric->name, metric->value);
}

static inline bool describe_tag(void *out, const char *tag)
{
    fprintf(out, "  tag %s\n", tag);
    return true;
}

static inline enum lmcs_status describe_snapshot(FILE *out, struct lmcs_pool *pool, const char *shelf, uint64_t number,
                                                 struct lmcs_error *error)
{
    char which[32];
    struct lmcs_snapshot *snapshot;
    struct lmcs_snapshot_storage storage = {0};
    struct lmc_hash digest = {0, 0};
    snprintf(which, sizeof which, "%" PRIu64, number);
    enum lmcs_status status = lmcs_snapshot_find(pool, shelf, which, &snapshot, error);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    if (info->remote == NULL)
        status = lmcs_snapshot_digest(snapshot, &digest, error);
    else
        fprintf(out, "remote at %s: ", info->remote);
    if (status == LMCS_OK)
        status = lmcs_snapshot_storage(snapshot, &storage, error);
    fprintf(out,
            "snapshot %s@%" PRIu64 " step %" PRId64 " time %" PRIu64 " parent %" PRIu64 " tensors %" PRIu64
            " bytes %" PRIu64,
            shelf, info->number, info->step, info->time_ns, info->parent, info->tensor_count, info->raw_bytes);
    if (memcmp(info->group, (unsigned char[16]){0}, sizeof info->group) != 0) {
        fprintf(out, " group ");
        describe_bytes(out, info->group, sizeof info->group);
    }
    fprintf(out, " digest ");
    describe_hash(out, digest);
    fprintf(out, " | raw %" PRIu64 " keyframes %" PRIu64 " deltas %" PRIu64 " links %" PRIu64 " chain %u line %u\n",
            storage.raw_contents, storage.keyframe_contents, storage.delta_contents, storage.link_contents,
            storage.longest_chain, storage.longest_line);
    for (size_t i = 0; i < info->metric_count; i++)
        describe_metric(out, &info->metrics[i]);
    fprintf(out, "  meta %s\n", info->meta_json);
    if (status == LMCS_OK)
        status = lmcs_snapshot_tags(snapshot, describe_tag, out, error);
    if (status == LMCS_OK && info->remote == NULL)
        status = describe_entries(out, snapshot, error);
    lmcs_snapshot_close(snapshot);
    return status;
}

/* ---- Live variables ---- */

struct described_lives {
    FILE *out;
    struct lmcs_pool *pool;
    const char *shelf;
};

static inline void describe_value(const struct described_lives *lives, const char *name)
{
    struct lmcs_error error;
    struct lmcs_live *live;
    struct lmcs_live_info info;
    uint64_t bytes = 0;
    enum lmcs_status status = lmcs_live_open(lives->pool, lives->shelf, name, &live, &error);
    if (status != LMCS_OK) {
        fprintf(lives->out, " %s\n", lmcs_status_name(status));
        return;
    }
    status = lmcs_live_info(live, &info, &error);
    uint64_t capacity = info.bytes > LMCS_LIVE_MAX_VALUE ? info.bytes : LMCS_LIVE_MAX_VALUE;
    unsigned char *data = malloc(capacity);
    if (status == LMCS_OK)
        status = lmcs_live_get(live, data, capacity, &bytes, &error);
    if (status != LMCS_OK)
        fprintf(lives->out, " %s\n", lmcs_status_name(status));
    else
        fprintf(lives->out, " bytes %" PRIu64 " content %016" PRIx64 "\n", bytes, lmc_hash64(data, bytes, 0));
    free(data);
    lmcs_live_close(live);
}

static inline bool describe_live(void *context, const struct lmcs_live_info *info)
{
    const struct described_lives *lives = context;
    fprintf(lives->out, "live %s/%s %s %s", lives->shelf, info->name,
            info->form == LMCS_LIVE_VALUE ? "value" : "tensor", lmc_dtype_name(info->dtype));
    describe_list(lives->out, info->ndim, info->shape);
    fprintf(lives->out, " note ");
    describe_bytes(lives->out, info->note, info->note_bytes);
    fprintf(lives->out, " created %" PRIu64, info->created_ns);
    if (info->is_damaged)
        fprintf(lives->out, " damaged");
    else
        fprintf(lives->out, " written %" PRIu64 " version %" PRIu64, info->written_ns, info->version);
    describe_value(lives, info->name);
    return true;
}

/* ---- Shelves and the pool ---- */

struct described_shelves {
    struct lmcs_shelf_info items[DESCRIBED_SHELVES];
    size_t count;
};

static inline bool describe_keep_shelf(void *context, const struct lmcs_shelf_info *info)
{
    struct described_shelves *shelves = context;
    if (shelves->count == DESCRIBED_SHELVES)
        abort();
    shelves->items[shelves->count++] = *info;
    return true;
}

static inline enum lmcs_status describe_shelf(FILE *out, struct lmcs_pool *pool, const struct lmcs_shelf_info *info,
                                              struct lmcs_error *error)
{
    uint64_t numbers[DESCRIBED_NUMBERS];
    size_t count = 0;
    fprintf(out,
            "shelf %s snapshots %" PRIu64 " latest %" PRIu64 " next %" PRIu64 " created %" PRIu64
            " keep_raw %u policy \"%s\"",
            info->name, info->snapshot_count, info->latest, info->next_number, info->created_ns, info->keep_raw,
            info->policy);
    if (info->origin_number != 0)
        fprintf(out, " origin %s@%" PRIu64 " time %" PRIu64 " %s", info->origin_shelf, info->origin_number,
                info->origin_time_ns, info->origin_is_there ? "there" : "gone");
    fprintf(out, "\n");
    enum lmcs_status status = lmcs_snapshot_numbers(pool, info->name, 1, numbers, DESCRIBED_NUMBERS, &count, error);
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = describe_snapshot(out, pool, info->name, numbers[i], error);
    struct described_lives lives = {out, pool, info->name};
    return status == LMCS_OK ? lmcs_live_list(pool, info->name, NULL, describe_live, &lives, error) : status;
}

static inline enum lmcs_status describe_shelves(FILE *out, struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct described_shelves *shelves = calloc(1, sizeof *shelves);
    enum lmcs_status status = lmcs_shelf_list(pool, describe_keep_shelf, shelves, error);
    for (size_t i = 0; status == LMCS_OK && i < shelves->count; i++)
        status = describe_shelf(out, pool, &shelves->items[i], error);
    free(shelves);
    return status;
}

static inline void describe_damage(void *out, const struct lmcs_damage *damage)
{
    fprintf(out, "damage %s@%" PRIu64 " \"%s\" %" PRIu64 "+%" PRIu64 "\n", damage->shelf, damage->number,
            damage->tensor, damage->first_byte, damage->byte_count);
}

static inline enum lmcs_status describe_pool(FILE *out, struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_pool_info info;
    struct lmcs_verify_report report;
    enum lmcs_status status = lmcs_pool_info(pool, &info, error);
    if (status != LMCS_OK)
        return status;
    fprintf(out, "pool ");
    describe_bytes(out, info.uuid, sizeof info.uuid);
    fprintf(out, " format %u created %" PRIu64 " limit %" PRIu64 " shelves %" PRIu64 " snapshots %" PRIu64 "\n",
            info.format_version, info.created_ns, info.limit_bytes, info.shelf_count, info.snapshot_count);
    fprintf(out, "stored | contents %" PRIu64 " parity %" PRIu64 " lost %" PRIu64 " scrubbed %" PRIu64 " share %a\n",
            info.content_count, info.parity_bytes, info.lost_contents, info.scrubbed_ns, info.scrub_share);
    status = lmcs_verify(pool, NULL, describe_damage, out, NULL, &report, error);
    fprintf(out, "verify %s | contents %" PRIu64 "\n", lmcs_status_name(status), report.contents);
    return status == LMCS_OK || status == LMCS_DAMAGED ? describe_shelves(out, pool, error) : status;
}

/* ---- Archives ---- */

static inline bool describe_archived(void *context, const struct lmcs_archived *snapshot)
{
    FILE *out = context;
    fprintf(out,
            "archived %s@%" PRIu64 " step %" PRId64 " time %" PRIu64 " parent %" PRIu64 " tensors %" PRIu64
            " bytes %" PRIu64 " new %" PRIu64 "\n",
            snapshot->shelf, snapshot->number, snapshot->step, snapshot->time_ns, snapshot->parent,
            snapshot->tensor_count, snapshot->raw_bytes, snapshot->new_contents);
    for (size_t i = 0; i < snapshot->metric_count; i++)
        describe_metric(out, &snapshot->metrics[i]);
    for (size_t i = 0; i < snapshot->tag_count; i++)
        describe_tag(out, snapshot->tags[i]);
    return true;
}

/* The list, and the result of verification. `fd` must be at offset 0. */
static inline enum lmcs_status describe_archive(FILE *out, const char *name, int fd, struct lmcs_error *error)
{
    struct lmcs_archive_info info;
    fprintf(out, "archive %s\n", name);
    enum lmcs_status status = lmcs_archive_list(fd, describe_archived, out, NULL, &info, error);
    if (status != LMCS_OK) {
        fprintf(out, "list %s\n", lmcs_status_name(status));
        return status;
    }
    lseek(fd, 0, SEEK_SET);
    status = lmcs_archive_verify(fd, NULL, &info, error);
    fprintf(out, "verify %s id ", lmcs_status_name(status));
    describe_hash(out, info.id);
    fprintf(out,
            " bytes %" PRIu64 " shelves %" PRIu64 " snapshots %" PRIu64 " tags %" PRIu64 " contents %" PRIu64
            " known %" PRIu64 " decoded %" PRIu64 "\n",
            info.bytes, info.shelves, info.snapshots, info.tags, info.contents, info.known_contents,
            info.decoded_contents);
    for (size_t i = 0; i < info.since_count; i++) {
        fprintf(out, "since ");
        describe_hash(out, info.since[i]);
        fprintf(out, "\n");
    }
    return status;
}

/* ---- Texts ---- */

static inline int describe_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Writes one snapshot's `lines`, sorted by bytes. */
static inline char *describe_sorted(char *to, char **lines, size_t count)
{
    qsort(lines, count, sizeof *lines, describe_order);
    for (size_t i = 0; i < count; i++)
        to += sprintf(to, "%s\n", lines[i]);
    return to;
}

/* Removes the parts after " | ", and sorts each snapshot's indented lines. Frees `text`. */
static inline char *describe_logical(char *text)
{
    char *logical = calloc(1, strlen(text) + 2), *to = logical, *lines[DESCRIBED_ENTRIES + 64];
    size_t count = 0;
    for (char *line = text, *end; *line != '\0'; line = end) {
        end = strchrnul(line, '\n');
        if (*end == '\n')
            *end++ = '\0';
        char *bar = strstr(line, " | ");
        if (bar != NULL)
            *bar = '\0';
        if (*line == ' ') {
            lines[count++] = line;
            continue;
        }
        to = describe_sorted(to, lines, count);
        count = 0;
        to += sprintf(to, "%s\n", line);
    }
    describe_sorted(to, lines, count);
    free(text);
    return logical;
}

#endif
