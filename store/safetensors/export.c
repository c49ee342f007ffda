/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * safetensors/export.c - writes a snapshot as a safetensors file, and verifies all checksums.
 *
 * Tensors are ordered as the library orders them, by descending rank of their dtype, then by name; so each is aligned
 * to its element. The header is padded to 8 bytes. Small tensors are gathered in one buffer, large ones viewed one at a
 * time, so the largest tensor stored as a delta bounds the memory. Skipped and reported: attachments, c32 and c128,
 * parts of larger tensors (a file with a local shape would pass for the whole).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/order.h"
#include "safetensors/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/names.h"
#include "base/outfile.h"

#define SMALL_BYTES ((uint64_t)1 << 20)

struct item {
    const struct lmcs_st_dtype *dtype;
    const char *full_name;
    const char *name; /* full_name without the prefix of the part */
    uint64_t bytes;
    uint32_t ndim;
    uint64_t shape[]; /* in the format's order */
};

struct exporter {
    struct lmcs_snapshot *snapshot; /* NULL: of the source */
    const struct lmcs_st_source *source;
    const struct lmcs_snapshot_info *info;
    const char *part;
    size_t part_bytes; /* without a trailing dot */
    const struct lmcs_progress *progress;
    struct lmcs_error *error;
    struct item **items;
    size_t count;
    size_t capacity;
    uint64_t data_bytes;
    uint64_t done_bytes;
    struct lmcs_outfile file;
    char *buffer; /* LMCS_ST_PIECE_BYTES for small tensors */
    size_t buffered;
    struct lmcs_transfer_report report;
    enum lmcs_status status; /* of the visit */
    /* First components of names for a message, each with its NUL. */
    char parts[512];
    size_t part_count;
    bool has_more_parts;
};

/* ---- The tensors to write ---- */

/* Returns the name without the prefix of the part; NULL: not in the part. */
static const char *name_in_part(const struct exporter *exporter, const char *name)
{
    if (exporter->part == NULL)
        return name;
    if (strncmp(name, exporter->part, exporter->part_bytes) != 0 || name[exporter->part_bytes] != '.')
        return NULL;
    return name + exporter->part_bytes + 1;
}

static void leave_out(struct exporter *exporter, const char *name)
{
    struct lmcs_transfer_report *report = &exporter->report;
    size_t used = strlen(report->left_out_names);
    exporter->report.left_out++;
    if (used + strlen(name) + 8 <= sizeof report->left_out_names)
        snprintf(report->left_out_names + used, sizeof report->left_out_names - used, "%s%s", used > 0 ? ", " : "",
                 name);
    else if (used + 6 <= sizeof report->left_out_names && strstr(report->left_out_names, ", ...") == NULL)
        snprintf(report->left_out_names + used, sizeof report->left_out_names - used, ", ...");
}

static bool is_part_of_larger(const struct lmcs_tensor *tensor)
{
    for (uint32_t i = 0; tensor->global_shape && i < tensor->ndim; i++) {
        if (tensor->global_shape[i] != tensor->shape[i])
            return true;
    }
    return false;
}

static bool can_hold(const struct lmcs_tensor *tensor, const char *name)
{
    bool is_4_bits = tensor->dtype == LMC_F4_E2M1FN_X2;
    return tensor->kind == LMCS_TENSOR && lmcs_st_dtype_of(tensor->dtype) != NULL && !is_part_of_larger(tensor) &&
           *name != '\0' && strcmp(name, "__metadata__") != 0 && !(is_4_bits && tensor->ndim == 0) &&
           !(is_4_bits && tensor->shape[tensor->ndim - 1] > UINT64_MAX / 2);
}

static struct item *item_new(const struct lmcs_entry *entry, size_t prefix_bytes)
{
    const struct lmcs_tensor *tensor = &entry->tensor;
    struct item *item = NULL;
    size_t head_bytes = sizeof *item + tensor->ndim * sizeof item->shape[0];
    size_t name_bytes = strlen(tensor->name) + 1;
    item = malloc(head_bytes + name_bytes);
    if (item == NULL)
        return NULL;
    item->dtype = lmcs_st_dtype_of(tensor->dtype);
    item->full_name = memcpy((char *)item + head_bytes, tensor->name, name_bytes);
    item->name = item->full_name + prefix_bytes;
    item->bytes = entry->raw_bytes;
    item->ndim = tensor->ndim;
    for (uint32_t i = 0; i < tensor->ndim; i++)
        item->shape[i] = tensor->shape[i];
    if (tensor->dtype == LMC_F4_E2M1FN_X2)
        item->shape[tensor->ndim - 1] *= 2;
    return item;
}

static bool append(struct exporter *exporter, struct item *item)
{
    if (item == NULL || !lmcs_grow(&exporter->items, &exporter->capacity, exporter->count, sizeof(void *))) {
        free(item);
        exporter->status = lmcs_fail_memory(exporter->error);
        return false;
    }
    exporter->items[exporter->count++] = item;
    exporter->data_bytes += item->bytes;
    return true;
}

/* Records the first component of a name, unless an earlier name has the same. */
static void note_part(struct exporter *exporter, const char *name)
{
    size_t bytes = strcspn(name, "."), used = 0;
    if (name[bytes] != '.')
        return;
    for (size_t i = 0; i < exporter->part_count; i++) {
        if (strlen(exporter->parts + used) == bytes && memcmp(exporter->parts + used, name, bytes) == 0)
            return;
        used += strlen(exporter->parts + used) + 1;
    }
    if (used + bytes + 1 > sizeof exporter->parts) {
        exporter->has_more_parts = true;
        return;
    }
    memcpy(exporter->parts + used, name, bytes);
    exporter->parts[used + bytes] = '\0';
    exporter->part_count++;
}

/* Fails with the parts that there are, and the nearest. */
static enum lmcs_status fail_part(const struct exporter *exporter)
{
    const struct lmcs_snapshot_info *info = exporter->info;
    const char *names[sizeof exporter->parts], *near = NULL;
    char wanted[64];
    snprintf(wanted, sizeof wanted, "%.*s", (int)exporter->part_bytes, exporter->part);
    enum lmcs_status status = lmcs_fail(
        exporter->error, LMCS_NOT_FOUND, 0, "%s@%" PRIu64 " has no tensors in the part '%.*s'; it has %s", info->shelf,
        info->number, (int)exporter->part_bytes, exporter->part, exporter->part_count == 0 ? "no parts" : "the parts ");
    if (exporter->error == NULL)
        return status;
    const char *part = exporter->parts;
    for (size_t i = 0; i < exporter->part_count; i++, part += strlen(part) + 1) {
        lmcs_error_append(exporter->error, "%s%s", i > 0 ? ", " : "", part);
        names[i] = part;
    }
    near = lmcs_nearest(wanted, names, exporter->part_count);
    lmcs_error_append(exporter->error, "%s%s%s%s", exporter->has_more_parts ? " and more" : "",
                      near != NULL ? "; did you mean '" : "", near != NULL ? near : "", near != NULL ? "'?" : "");
    return status;
}

static bool visit_entry(void *context, const struct lmcs_entry *entry)
{
    struct exporter *exporter = context;
    const char *name = name_in_part(exporter, entry->tensor.name);
    if (entry->tensor.kind == LMCS_TENSOR)
        note_part(exporter, entry->tensor.name);
    if (name == NULL)
        return true;
    if (can_hold(&entry->tensor, name))
        return append(exporter, item_new(entry, (size_t)(name - entry->tensor.name)));
    leave_out(exporter, entry->tensor.name);
    return true;
}

static int by_rank_and_name(const void *left, const void *right)
{
    const struct item *l = *(const struct item *const *)left;
    const struct item *r = *(const struct item *const *)right;
    if (l->dtype->rank != r->dtype->rank)
        return LMCS_ORDER(r->dtype->rank, l->dtype->rank);
    return strcmp(l->name, r->name);
}

static enum lmcs_status collect(struct exporter *exporter)
{
    const struct lmcs_st_source *source = exporter->source;
    enum lmcs_status status = source != NULL
                                  ? source->entries(source->context, visit_entry, exporter, exporter->error)
                                  : lmcs_snapshot_entries(exporter->snapshot, visit_entry, exporter, exporter->error);
    if (status == LMCS_OK)
        status = exporter->status;
    if (status != LMCS_OK)
        return status;
    if (exporter->count > 0)
        qsort(exporter->items, exporter->count, sizeof(void *), by_rank_and_name);
    if (exporter->count > 0 || exporter->report.left_out > 0 || exporter->part == NULL)
        return LMCS_OK;
    return fail_part(exporter);
}

/* ---- The header ---- */

static int set_text(json_t *object, const char *key, const char *value)
{
    return json_object_set_new(object, key, json_string(value));
}

/* Copies the metadata of an imported file, without an earlier export's own entries. */
static int carry_metadata(json_t *to, const char *meta_json)
{
    json_t *meta = json_loads(meta_json != NULL ? meta_json : "{}", 0, NULL);
    json_t *from = json_object_get(meta, "safetensors");
    int failed = 0;
    for (void *at = json_object_iter(from); at; at = json_object_iter_next(from, at)) {
        const char *key = json_object_iter_key(at);
        json_t *value = json_object_iter_value(at);
        if (json_is_string(value) && strncmp(key, "lmc-store.", 10) != 0)
            failed |= json_object_set(to, key, value);
    }
    json_decref(meta);
    return failed;
}

/* `digest` NULL: unknown. */
static int add_origin(json_t *to, const struct lmcs_snapshot_info *info, const struct lmc_hash *digest)
{
    char text[40];
    int failed = set_text(to, "format", "pt") | set_text(to, "lmc-store.shelf", info->shelf);
    snprintf(text, sizeof text, "%" PRIu64, info->number);
    failed |= set_text(to, "lmc-store.number", text);
    snprintf(text, sizeof text, "%" PRId64, info->step);
    if (info->step != LMCS_NO_STEP)
        failed |= set_text(to, "lmc-store.step", text);
    if (digest == NULL)
        return failed;
    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, digest->high, digest->low);
    return failed | set_text(to, "lmc-store.digest", text);
}

static enum lmcs_status make_metadata(struct exporter *exporter, json_t **metadata)
{
    const struct lmcs_snapshot_info *info = exporter->info;
    struct lmc_hash own, *digest = exporter->snapshot != NULL ? &own : NULL;
    enum lmcs_status status =
        digest != NULL ? lmcs_snapshot_digest(exporter->snapshot, digest, exporter->error) : LMCS_OK;
    if (status != LMCS_OK)
        return status;
    *metadata = json_object();
    if (!*metadata || carry_metadata(*metadata, info->meta_json) || add_origin(*metadata, info, digest))
        return lmcs_fail_memory(exporter->error);
    return LMCS_OK;
}

static int write_item(FILE *out, const struct item *item, uint64_t begin)
{
    json_t *name = json_string(item->name);
    int failed = name == NULL || fputc(',', out) == EOF || json_dumpf(name, out, JSON_ENCODE_ANY | JSON_COMPACT);
    json_decref(name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", item->dtype->name);
    for (uint32_t i = 0; i < item->ndim; i++)
        fprintf(out, "%s%" PRIu64, i > 0 ? "," : "", item->shape[i]);
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + item->bytes);
    return failed;
}

static int write_header(const struct exporter *exporter, const json_t *metadata, FILE *out)
{
    uint64_t begin = 0;
    int failed = fwrite("\0\0\0\0\0\0\0\0{\"__metadata__\":", 1, 24, out) != 24;
    failed |= json_dumpf(metadata, out, JSON_COMPACT);
    for (size_t i = 0; i < exporter->count; i++) {
        failed |= write_item(out, exporter->items[i], begin);
        begin += exporter->items[i]->bytes;
    }
    fputc('}', out);
    while (!failed && ftell(out) % 8 != 0)
        failed = fputc(' ', out) == EOF;
    return failed | ferror(out);
}

static enum lmcs_status make_header(struct exporter *exporter, char **text, size_t *text_bytes)
{
    json_t *metadata = NULL;
    FILE *out = NULL;
    enum lmcs_status status = make_metadata(exporter, &metadata);
    if (status != LMCS_OK)
        goto out;
    out = open_memstream(text, text_bytes);
    if (out == NULL || write_header(exporter, metadata, out) != 0 || fflush(out) != 0)
        status = lmcs_fail_memory(exporter->error);
out:
    if (out != NULL)
        fclose(out);
    json_decref(metadata);
    if (status != LMCS_OK)
        return status;
    uint64_t json_bytes = *text_bytes - 8;
    if (json_bytes > LMCS_ST_MAX_HEADER_BYTES)
        return lmcs_fail(exporter->error, LMCS_UNSUPPORTED, 0,
                         "the names of %zu tensors don't fit into a safetensors header (100 MB); export it in parts",
                         exporter->count);
    for (int i = 0; i < 8; i++)
        (*text)[i] = (char)(json_bytes >> (8 * i));
    return LMCS_OK;
}

/* ---- The data ---- */

static enum lmcs_status call_progress(const struct exporter *exporter)
{
    return lmcs_st_progress(exporter->progress, "export", exporter->done_bytes, exporter->data_bytes, exporter->error);
}

/* Calls progress after each write that was incomplete: a pipe was full, or a signal came. */
static enum lmcs_status write_all(struct exporter *exporter, const void *data, size_t bytes)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t done = 0, written; status == LMCS_OK && done < bytes; done += written) {
        status = lmcs_outfile_write_some(&exporter->file, (const char *)data + done, bytes - done, &written,
                                         exporter->error);
        if (status == LMCS_OK && written < bytes - done)
            status = call_progress(exporter);
    }
    return status;
}

static enum lmcs_status write_piece(struct exporter *exporter, const void *data, size_t bytes)
{
    enum lmcs_status status = write_all(exporter, data, bytes);
    if (status != LMCS_OK)
        return status;
    exporter->done_bytes += bytes;
    return call_progress(exporter);
}

static enum lmcs_status flush(struct exporter *exporter)
{
    size_t bytes = exporter->buffered;
    exporter->buffered = 0;
    return bytes > 0 ? write_piece(exporter, exporter->buffer, bytes) : LMCS_OK;
}

static enum lmcs_status write_small(struct exporter *exporter, const struct item *item)
{
    enum lmcs_status status = LMCS_OK;
    if (item->bytes > LMCS_ST_PIECE_BYTES - exporter->buffered)
        status = flush(exporter);
    if (status != LMCS_OK || item->bytes == 0)
        return status;
    status = lmcs_snapshot_read(exporter->snapshot, LMCS_TENSOR, item->full_name, exporter->buffer + exporter->buffered,
                                item->bytes, exporter->error);
    if (status == LMCS_OK)
        exporter->buffered += (size_t)item->bytes;
    return status;
}

static enum lmcs_status write_pieces(struct exporter *exporter, const char *data, uint64_t bytes)
{
    enum lmcs_status status = LMCS_OK;
    for (uint64_t done = 0; done < bytes && status == LMCS_OK;) {
        uint64_t rest = bytes - done;
        size_t piece = rest < LMCS_ST_PIECE_BYTES ? (size_t)rest : LMCS_ST_PIECE_BYTES;
        status = write_piece(exporter, data + done, piece);
        done += piece;
    }
    return status;
}

static enum lmcs_status write_large(struct exporter *exporter, const struct item *item)
{
    struct lmcs_view *view = NULL;
    enum lmcs_status status = flush(exporter);
    if (status == LMCS_OK)
        status =
            lmcs_view_open(exporter->snapshot, &item->full_name, NULL, 1, LMCS_VIEW_VERIFY, &view, exporter->error);
    if (status == LMCS_OK)
        status = write_pieces(exporter, lmcs_view_data(view, 0), item->bytes);
    if (view != NULL)
        lmcs_view_close(view);
    return status;
}

static enum lmcs_status write_from_source(struct exporter *exporter, const struct item *item)
{
    const struct lmcs_st_source *source = exporter->source;
    char *data = calloc(1, item->bytes + 1);
    if (data == NULL)
        return lmcs_fail_memory(exporter->error);
    enum lmcs_status status = source->read(source->context, item->full_name, data, exporter->error);
    if (status == LMCS_OK)
        status = write_pieces(exporter, data, item->bytes);
    free(data);
    return status;
}

static enum lmcs_status write_data(struct exporter *exporter)
{
    enum lmcs_status status = LMCS_OK;
    char *buffer = malloc(LMCS_ST_PIECE_BYTES);
    if (buffer == NULL)
        return lmcs_fail_memory(exporter->error);
    exporter->buffer = buffer;
    for (size_t i = 0; i < exporter->count && status == LMCS_OK; i++) {
        const struct item *item = exporter->items[i];
        status = exporter->source != NULL     ? write_from_source(exporter, item)
                 : item->bytes <= SMALL_BYTES ? write_small(exporter, item)
                                              : write_large(exporter, item);
    }
    if (status == LMCS_OK)
        status = flush(exporter);
    free(buffer);
    return status;
}

static enum lmcs_status write_file(struct exporter *exporter, const char *path)
{
    char *header = NULL;
    size_t header_bytes = 0;
    enum lmcs_status status = make_header(exporter, &header, &header_bytes);
    if (status == LMCS_OK)
        status = lmcs_outfile_open(path, header_bytes + exporter->data_bytes, &exporter->file, exporter->error);
    if (status == LMCS_OK)
        status = write_all(exporter, header, header_bytes);
    if (status == LMCS_OK)
        status = write_data(exporter);
    if (status == LMCS_OK)
        status = lmcs_outfile_commit(&exporter->file, exporter->error);
    free(header);
    exporter->report.snapshots = 1;
    exporter->report.contents = exporter->count;
    exporter->report.bytes = header_bytes + exporter->data_bytes;
    return status;
}

static enum lmcs_status export(struct exporter *exporter, const char *path, struct lmcs_transfer_report *report) {
    const char *part = exporter->part;
    if (path == NULL || (part != NULL && (*part == '\0' || strcmp(part, ".") == 0))) return lmcs_fail(
        exporter->error, LMCS_INVALID, 0, "export needs a snapshot, a path, and a part that is not empty");
    exporter->file.fd = -1;
    exporter->part_bytes = part != NULL ? strlen(part) : 0;
    if (part != NULL && part[exporter->part_bytes - 1] == '.') exporter->part_bytes--;
    enum lmcs_status status = collect(exporter);
    if (status == LMCS_OK) status = write_file(exporter, path);
    if (status == LMCS_OK && report != NULL) *report = exporter->report;
    lmcs_outfile_close(&exporter->file);
    for (size_t i = 0; i < exporter->count; i++) free(exporter->items[i]);
    free(exporter->items);
    return status;
}

enum lmcs_status lmcs_export_safetensors(struct lmcs_snapshot *snapshot, const char *part, const char *path,
                                         const struct lmcs_progress *progress, struct lmcs_transfer_report *report,
                                         struct lmcs_error *error)
{
    if (snapshot == NULL)
        return lmcs_fail(error, LMCS_INVALID, 0, "export needs a snapshot");
    struct exporter exporter = {
        .snapshot = snapshot, .info = lmcs_snapshot_info(snapshot), .part = part, .progress = progress, .error = error};
    return export(&exporter, path, report);
}

enum lmcs_status lmcs_st_export(const struct lmcs_st_source *source, const char *part, const char *path,
                                const struct lmcs_progress *progress, struct lmcs_transfer_report *report,
                                struct lmcs_error *error)
{
    struct exporter exporter = {
        .source = source, .info = source->info, .part = part, .progress = progress, .error = error};
    return export(&exporter, path, report);
}
