/* SPDX-License-Identifier: BSD-3-Clause */
/* folder_tensors.c - the tensors of a run's snapshot, joined from the boxes that the ranks have stored. */
#include "folder.h"

#include <stdlib.h>
#include <string.h>

/* Opens a part, which stays open. */
static enum lmcs_status open_part(struct cli_joined *joined, size_t part)
{
    struct lmcs_pool *pool;
    if (joined->parts[part] != NULL)
        return LMCS_OK;
    struct lmcs_snapshot **found = &joined->parts[part];
    enum lmcs_status status = cli_part_open(joined->cli, &joined->record, &joined->record.parts[part], &pool, found);
    return status == LMCS_OK ? cli_part_local(joined->cli, joined->record.address, *found) : status;
}

enum lmcs_status cli_joined_open(struct cli *cli, struct lmcs_snapshot *snapshot, struct cli_joined *joined)
{
    *joined = (struct cli_joined){.cli = cli};
    enum lmcs_status status = cli_record_read(cli, snapshot, &joined->record);
    if (status != LMCS_OK)
        return status;
    joined->parts = calloc(joined->record.part_count + 1, sizeof *joined->parts);
    return joined->parts != NULL ? LMCS_OK : cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
}

void cli_joined_close(struct cli_joined *joined)
{
    for (size_t i = 0; joined->parts != NULL && i < joined->record.part_count; i++)
        lmcs_snapshot_close(joined->parts[i]);
    free(joined->parts);
    joined->parts = NULL;
    cli_record_free(&joined->record);
}

/* Copies a box to its place in a tensor: runs of the dimensions that it has whole, one after the other. */
static void copy_box(const struct cli_tensor *tensor, const struct cli_box *box, const unsigned char *data,
                     unsigned char *into)
{
    uint64_t run = lmc_dtype_size(tensor->dtype), at[LMCS_MAX_DIMS] = {0}, strides[LMCS_MAX_DIMS], stride = run;
    uint32_t outer = tensor->ndim;
    for (uint32_t i = tensor->ndim; i-- > 0; stride *= tensor->shape[i])
        strides[i] = stride;
    while (outer > 0 && box->sizes[outer - 1] == tensor->shape[outer - 1])
        run *= box->sizes[--outer];
    if (outer > 0)
        run *= box->sizes[--outer];
    for (uint64_t done = 0; done < box->bytes; done += run) {
        uint64_t to = 0;
        for (uint32_t i = 0; i < tensor->ndim; i++)
            to += (box->offsets[i] + at[i]) * strides[i];
        memcpy(into + to, data + done, run);
        for (uint32_t i = outer; i-- > 0;) {
            if (++at[i] < box->sizes[i])
                break;
            at[i] = 0;
        }
    }
}

static enum lmcs_status fail(const struct cli_joined *joined, const struct cli_tensor *tensor, const char *fault)
{
    return cli_fail(joined->cli, LMCS_DAMAGED, 0, "%.200s: %.400s: %s", joined->record.address, tensor->name, fault);
}

static enum lmcs_status read_box(struct cli_joined *joined, const struct cli_tensor *tensor, const struct cli_box *box,
                                 void *buffer)
{
    struct cli *cli = joined->cli;
    struct lmcs_view *view = NULL;
    enum lmcs_status status = open_part(joined, box->part);
    if (status == LMCS_OK)
        status = lmcs_view_open(joined->parts[box->part], &box->name, NULL, 1, LMCS_VIEW_VERIFY, &view, &cli->error);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_tensor *stored = &lmcs_view_entry(view, 0)->tensor;
    bool fits = stored->dtype == tensor->dtype && stored->ndim == tensor->ndim;
    for (uint32_t i = 0; fits && i < tensor->ndim; i++)
        fits = stored->shape[i] == box->sizes[i];
    if (fits)
        copy_box(tensor, box, lmcs_view_data(view, 0), buffer);
    lmcs_view_close(view);
    return fits ? LMCS_OK : fail(joined, tensor, "a rank has stored it with another dtype or shape");
}

enum lmcs_status cli_joined_read(struct cli_joined *joined, const struct cli_tensor *tensor, void *buffer)
{
    uint64_t bytes = 0;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; i < tensor->box_count && bytes <= tensor->raw_bytes; i++)
        bytes += tensor->boxes[i].bytes;
    if (bytes != tensor->raw_bytes)
        return fail(joined, tensor, "the ranks have stored only parts of it");
    for (size_t i = 0; status == LMCS_OK && i < tensor->box_count; i++)
        if (tensor->boxes[i].bytes > 0)
            status = read_box(joined, tensor, &tensor->boxes[i], buffer);
    return status;
}

/* ---- How they are stored -------------------------------------------------------------------------------------- */

/* The boxes of a part, by the names of stored tensors. */
struct search {
    const struct cli_record *record;
    const struct cli_box **boxes;
    size_t count;
    struct cli_stored *stored;
};

static int by_name(const void *left, const void *right)
{
    return strcmp((*(const struct cli_box *const *)left)->name, (*(const struct cli_box *const *)right)->name);
}

static bool visit_stored(void *context, const struct lmcs_entry *entry)
{
    struct search *search = context;
    size_t low = 0, high = search->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(search->boxes[middle]->name, entry->tensor.name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; entry->tensor.kind == LMCS_TENSOR && low < search->count; low++) {
        if (strcmp(search->boxes[low]->name, entry->tensor.name) != 0)
            break;
        search->stored[search->boxes[low] - search->record->boxes] =
            (struct cli_stored){true, entry->digest, entry->stored_bytes, entry->stored_as, entry->chain};
    }
    return true;
}

static enum lmcs_status add_part(struct cli_joined *joined, size_t part, struct search *search, char lacks[1024])
{
    struct cli *cli = joined->cli;
    search->count = 0;
    for (size_t i = 0; i < joined->record.box_count; i++)
        if (joined->record.boxes[i].part == part)
            search->boxes[search->count++] = &joined->record.boxes[i];
    if (search->count > 0)
        qsort(search->boxes, search->count, sizeof *search->boxes, by_name);
    enum lmcs_status status = open_part(joined, part);
    if (status == LMCS_OK)
        return lmcs_snapshot_entries(joined->parts[part], visit_stored, search, &cli->error);
    if (status == LMCS_NOT_FOUND && *lacks == '\0')
        snprintf(lacks, 1024, "%s", cli->error.message);
    return status == LMCS_NOT_FOUND ? LMCS_OK : status;
}

enum lmcs_status cli_joined_stored(struct cli_joined *joined, struct cli_stored **stored, char lacks[1024])
{
    size_t count = joined->record.box_count;
    struct search search = {.record = &joined->record, .boxes = calloc(count + 1, sizeof *search.boxes)};
    enum lmcs_status status = LMCS_OK;
    *lacks = '\0';
    *stored = search.stored = calloc(count + 1, sizeof **stored);
    if (search.boxes == NULL || *stored == NULL)
        status = cli_fail(joined->cli, LMCS_NO_MEMORY, 0, "out of memory");
    for (size_t i = 0; status == LMCS_OK && i < joined->record.part_count; i++)
        status = add_part(joined, i, &search, lacks);
    free(search.boxes);
    return status;
}

struct lmcs_entry cli_joined_entry(const struct cli_joined *joined, const struct cli_tensor *tensor,
                                   const struct cli_stored *stored)
{
    struct lmcs_entry entry = {
        .tensor = {.name = tensor->name, .dtype = tensor->dtype, .ndim = tensor->ndim, .shape = tensor->shape},
        .raw_bytes = tensor->raw_bytes};
    for (size_t i = 0; i < tensor->box_count; i++) {
        const struct cli_stored *box = &stored[tensor->boxes - joined->record.boxes + (ptrdiff_t)i];
        entry.stored_bytes += box->bytes;
        if (box->as > entry.stored_as)
            entry.stored_as = box->as;
        if (box->chain > entry.chain)
            entry.chain = box->chain;
        if (tensor->box_count == 1 && tensor->boxes[0].bytes == tensor->raw_bytes)
            entry.digest = box->digest;
    }
    return entry;
}
