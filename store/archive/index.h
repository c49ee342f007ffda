/* SPDX-License-Identifier: BSD-3-Clause */
/* archive/index.h - shelves, snapshots and tags of an archive, and the part that addresses select. */
#ifndef LMCS_ARCHIVE_INDEX_H
#define LMCS_ARCHIVE_INDEX_H

#include "archive/read.h"

struct lmcs_index_snapshot {
    struct lmcs_archive_snapshot_df df;
    char *meta;          /* NULL unless wanted, or if an attachment */
    uint64_t meta_check; /* hash64 of the metadata, seed 0; of an attachment: of no bytes */
    uint64_t entries;
    uint64_t tensors;
    uint64_t raw_bytes;
    uint64_t new_contents; /* contents that arrived with it */
    uint64_t new_bytes;    /* stored bytes of these contents */
};

struct lmcs_index_tag {
    uint64_t number;
    char *text;
};

struct lmcs_index_shelf {
    char *name;
    struct lmcs_archive_shelf_df df;
    bool has_origin;
    bool has_id;
    struct lmcs_archive_shelf_id_df id;    /* without has_id: zeros */
    struct lmcs_index_snapshot *snapshots; /* by number */
    size_t snapshot_count;
    size_t snapshot_capacity;
    struct lmcs_index_tag *tags;
    size_t tag_count;
    size_t tag_capacity;
};

struct lmcs_index {
    const struct lmcs_archive_reader *reader; /* while the index is filled */
    bool with_meta;
    struct lmcs_index_shelf *shelves;
    size_t shelf_count;
    size_t shelf_capacity;
    struct lmc_hash *since; /* hashes of the older archives that it needs */
    size_t since_count;
    size_t since_capacity;
};

extern const struct lmcs_archive_visitor lmcs_index_visitor; /* its context: a struct lmcs_index */
void lmcs_index_free(struct lmcs_index *index);
const struct lmcs_index_shelf *lmcs_index_find(const struct lmcs_index *index, const char *shelf);
/* NULL: no such number. */
const struct lmcs_index_snapshot *lmcs_index_number(const struct lmcs_index_shelf *shelf, uint64_t number);

/* Snapshot numbers of a shelf. */
struct lmcs_part {
    char *shelf;
    uint64_t first;
    uint64_t last;
};

struct lmcs_parts {
    struct lmcs_part *items; /* no items: everything */
    size_t count;
};
/* Resolves "run", "run@7", "run@5..9". LMCS_NOT_FOUND, LMCS_INVALID. */
enum lmcs_status lmcs_index_parts(const struct lmcs_index *index, const char *const *addresses, size_t count,
                                  struct lmcs_parts *parts, struct lmcs_error *error);
bool lmcs_parts_have_shelf(const struct lmcs_parts *parts, const char *shelf);
bool lmcs_parts_have(const struct lmcs_parts *parts, const char *shelf, uint64_t number);
void lmcs_parts_free(struct lmcs_parts *parts);
/* Cuts a range "A..B" in two; either end may be empty. False: not a range. The caller frees *first. */
bool lmcs_range_cut(const char *range, char **first, const char **last);

/* Whether a name matches one of `only`: names, or patterns with * and ?. NULL: any does. */
bool lmcs_only_has(const char *const *only, size_t count, const char *name);

#endif
