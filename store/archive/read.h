/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive/read.h - what an archive says, checked record by record, without a pool.
 *
 * A reader calls its visitor for what has been checked; restoring, listing and verifying are visitors. Ids of
 * identities and contents are indices + 1 into its arrays.
 */
#ifndef LMCS_ARCHIVE_READ_H
#define LMCS_ARCHIVE_READ_H

#include "archive/source.h"
#include "records/meta.h"

struct lmcs_archive_identity {
    struct lmcs_tensor tensor; /* its own copy; strides NULL */
    uint64_t raw_bytes;
    uint64_t content;    /* id of what it has in the list at work, while it is present there */
    size_t leader;       /* index of the first one of this kind and name */
    uint64_t present;    /* the list of entries that has it */
    uint64_t touched;    /* the snapshot that last named it */
    uint64_t name_list;  /* of a leader: the list of entries that the next field speaks of ... */
    uint64_t name_count; /* ... and how many of this name it has */
    /* for the visitor that restores */
    uint64_t pool_id; /* 0: the pool has none yet, as far as is known */
    uint64_t attempt; /* the transaction that gave it its pool_id */
    uint64_t listed;  /* the list of entries in which that visitor has it ... */
    size_t place;     /* ... and where */
};

struct lmcs_archive_content {
    struct lmc_hash digest;
    uint64_t stored_bytes;
    uint64_t at;                   /* in the stream: where its first piece's header is */
    uint32_t identity;             /* index */
    uint32_t bases[LMC_MAX_BASES]; /* ids; of what is linked: its link */
    uint8_t base_count;
    uint8_t payload; /* enum lmcs_payload_kind */
    uint8_t flags;
    uint8_t output;    /* of what is linked: which of the link's arrays it is */
    uint8_t depth;     /* deltas to undo to read it, as far as this archive goes ... */
    uint8_t line;      /* ... or links */
    bool is_known;     /* an older archive has it */
    bool is_used;      /* by an entry, or as a base */
    bool is_gone_from; /* a link: another one leads on from what it leads to */
    bool is_wanted;    /* for visitors that select */
    /* for the visitor that restores */
    bool has_run;  /* some snapshot has it */
    bool is_found; /* the pool had it */
    uint64_t pool_id;
};

struct lmcs_archive_reader;

/* What is not NULL is called, in the order of the archive, after the record has been checked and taken in. */
struct lmcs_archive_visitor {
    enum lmcs_status (*since)(void *context, const struct lmcs_archive_since_df *since, struct lmcs_error *error);
    enum lmcs_status (*shelf)(void *context, struct lmcs_error *error);
    enum lmcs_status (*origin)(void *context, const struct lmcs_archive_origin_df *origin, const char *name,
                               struct lmcs_error *error);
    enum lmcs_status (*snapshot)(void *context, struct lmcs_error *error);
    enum lmcs_status (*content)(void *context, struct lmcs_error *error); /* the newest one; its data follow */
    enum lmcs_status (*data)(void *context, const void *bytes, size_t count, struct lmcs_error *error);
    enum lmcs_status (*snapshot_end)(void *context, struct lmcs_error *error);
    enum lmcs_status (*tag)(void *context, uint64_t number, const char *text, struct lmcs_error *error);
};

enum lmcs_archive_place {
    LMCS_ARCHIVE_AT_START,
    LMCS_ARCHIVE_IN_SHELF,
    LMCS_ARCHIVE_IN_TAGS,
    LMCS_ARCHIVE_IN_SNAPSHOT,
    LMCS_ARCHIVE_IN_CONTENT,
    LMCS_ARCHIVE_AT_END
};

struct lmcs_archive_reader {
    struct lmcs_archive_source source;
    const struct lmcs_archive_visitor *visitor;
    void *context;
    const struct lmcs_progress *progress;
    const char *doing; /* for progress: "restoring" */
    uint64_t reported;
    enum lmcs_archive_place place;
    struct lmc_hash hash; /* of the whole, once the end has been read */
    uint64_t shelf_count;
    uint64_t snapshot_count;
    uint64_t tag_count;
    uint64_t since_count;
    struct lmcs_archive_identity **identities;
    size_t identity_count;
    size_t identity_capacity;
    struct lmcs_archive_content *contents;
    size_t content_count;
    size_t content_capacity;
    size_t *names; /* of leaders, open addressing: index + 1 */
    size_t name_capacity;
    /* the shelf at work */
    char *shelf;
    struct lmcs_archive_shelf_df shelf_df;
    bool has_origin;
    char *tag;         /* the last one */
    uint64_t *numbers; /* of its snapshots, ascending */
    size_t number_count;
    size_t number_capacity;
    /* the snapshot at work */
    struct lmcs_archive_snapshot_df snapshot;
    char meta[LMCS_META_INLINE + 1];
    size_t first_content; /* that came with it */
    struct lmcs_archive_entry_df *entries;
    size_t entry_count;
    size_t entry_capacity;
    uint64_t list;    /* number of the list of entries: one of changes keeps that of the list it changes */
    uint64_t serial;  /* of the snapshot */
    uint64_t present; /* entries of the list, with all that it inherited */
    uint64_t tensors;
    uint64_t raw_bytes;
    uint64_t data_at; /* of the content at work: bytes that have come */
};

/* Reads the head. On failure there is nothing to end. */
enum lmcs_status lmcs_archive_reader_init(struct lmcs_archive_reader *reader, int fd, struct lmcs_error *error);
void lmcs_archive_reader_fini(struct lmcs_archive_reader *reader);
/* Reads one record. */
enum lmcs_status lmcs_archive_reader_next(struct lmcs_archive_reader *reader, struct lmcs_error *error);
/* Reads to the end. */
enum lmcs_status lmcs_archive_reader_run(struct lmcs_archive_reader *reader, struct lmcs_error *error);
/* The link that leads to the arrays from which a link leads; NULL: none of this archive does. */
const struct lmcs_archive_content *lmcs_archive_link_before(const struct lmcs_archive_reader *reader,
                                                            const struct lmcs_archive_content *link);
/* Whether two tensors can have one content. */
bool lmcs_archive_same_form(const struct lmcs_tensor *a, const struct lmcs_tensor *b);

#define LMCS_ARCHIVE_DAMAGED(reader, error, ...) lmcs_archive_fail(&(reader)->source, LMCS_DAMAGED, error, __VA_ARGS__)
#define LMCS_ARCHIVE_UNSUPPORTED(reader, error, ...) \
    lmcs_archive_fail(&(reader)->source, LMCS_UNSUPPORTED, error, __VA_ARGS__)

#endif
