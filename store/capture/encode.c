/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/encode.c - writes the tensors that a link capture copied to memory, and checks them in its transaction. */
#include <stdlib.h>

#include "base/clock.h"
#include "capture/memory.h"
#include "capture/state.h"
#include "links/line.h"

/* ---- Writing ---- */

/* Writes the rest raw. */
static enum lmcs_status write_raw(struct lmcs_capture *capture, struct lmcs_error *error)
{
    const size_t most = capture->entries.count;
    struct lmcs_source *sources = calloc(most + 1, sizeof *sources);
    struct lmcs_copy *copies = calloc(most + 1, sizeof *copies);
    size_t count = 0;
    for (size_t i = 0; sources != NULL && copies != NULL && i < most; i++) {
        struct lmcs_captured *entry = capture->entries.items[i];
        if (!lmcs_captured_waits(entry))
            continue;
        entry->content = (struct lmcs_content){.id = 0};
        sources[count] = (struct lmcs_source){&entry->tensor, entry->memory, NULL, entry->raw_bytes};
        copies[count] = (struct lmcs_copy){.source = &sources[count], .content = &entry->content};
        count++;
    }
    enum lmcs_status status =
        sources == NULL || copies == NULL
            ? lmcs_fail_memory(error)
            : lmcs_copy_sources(capture->pool, capture->workers, &capture->region, copies, count, error);
    for (size_t i = 0, n = 0; status == LMCS_OK && n < count; i++) {
        struct lmcs_captured *entry = capture->entries.items[i];
        if (!lmcs_captured_waits(entry))
            continue;
        entry->form = LMCS_FORM_RAW;
        capture->written_bytes += entry->raw_bytes;
        n++;
    }
    free(sources);
    free(copies);
    return status;
}

static enum lmcs_status write_all(struct lmcs_capture *capture, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    if (!capture->has_encoded && capture->links == NULL)
        status = lmcs_capture_write_links(capture, error);
    if (status == LMCS_OK)
        status = lmcs_capture_take_lent(capture, true, error);
    if (status == LMCS_OK && !capture->has_encoded)
        status = lmcs_capture_write_frames(capture, error);
    if (status == LMCS_OK)
        status = write_raw(capture, error);
    return status;
}

enum lmcs_status lmcs_capture_encode(struct lmcs_capture *capture, struct lmcs_error *error)
{
    if (capture->memory_bytes == 0)
        return LMCS_OK;
    const uint64_t began = lmcs_steady_ns();
    atomic_fetch_add(&capture->pool->copying, 1); /* the compactor waits */
    enum lmcs_status status = write_all(capture, error);
    atomic_fetch_sub(&capture->pool->copying, 1);
    if (status == LMCS_FULL && lmcs_pool_make_room(capture->pool, capture->busy->name)) {
        if (capture->has_changed_memory)
            lmcs_memory_drop(capture->pool, capture->busy);
        status = write_all(capture, error);
    }
    if (status == LMCS_FULL)
        lmcs_capture_explain_full(capture, error);
    capture->has_encoded = true; /* what the transaction refuses is written raw */
    capture->spent_ns += lmcs_steady_ns() - began;
    return status;
}

/* ---- In the transaction ---- */

static enum lmcs_status check_link(struct lmcs_capture *capture, struct lmcs_txn *txn, struct lmcs_made_link *link,
                                   bool *refused, struct lmcs_error *error)
{
    struct lmcs_content before[LMC_MAX_BASES];
    enum lmcs_links verdict;
    struct lmcs_line_end end = {.place = 0};
    if (link->arrays == 0) /* refused before */
        return LMCS_OK;
    enum lmcs_status status = lmcs_capture_may_link(capture, txn, link->before, link->arrays, link->made.df.raw_bytes,
                                                    before, &end, &verdict, error);
    if (status != LMCS_OK)
        return status;
    link->made.df.place = end.place;
    if (verdict == LMCS_LINKS_MADE)
        return end.breaks ? lmcs_line_break(txn, before, link->arrays, error) : LMCS_OK;
    for (uint32_t i = 0; i < link->arrays; i++)
        link->after[i]->form = LMCS_FORM_NONE;
    link->arrays = 0;
    *refused = true;
    return LMCS_OK;
}

enum lmcs_status lmcs_capture_check_forms(struct lmcs_capture *capture, struct lmcs_txn *txn, bool *refused,
                                          struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    *refused = false;
    for (size_t i = 0; status == LMCS_OK && i < capture->link_count; i++)
        status = check_link(capture, txn, &capture->links[i], refused, error);
    for (size_t i = 0; status == LMCS_OK && i < capture->entries.count; i++) {
        struct lmcs_captured *entry = capture->entries.items[i];
        struct lmcs_content base;
        bool may = true;
        if (entry->form == LMCS_FORM_FRAME && entry->content.df.base_count > 0)
            status = lmcs_delta_may_rest(txn, entry, entry->content.bases[0], &base, &may, error);
        if (status == LMCS_OK && !may) {
            entry->form = LMCS_FORM_NONE;
            *refused = true;
        }
    }
    return status;
}
