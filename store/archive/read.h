/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * archive/read.h - face of archive/, the room of the archive format: reads and checks an archive record by record.
 *
 * Uses base, records, payload; no pool. Ids of identities and contents are indices + 1 into the reader's arrays.
 */
#ifndef LMCS_ARCHIVE_READ_H
#define LMCS_ARCHIVE_READ_H

#include "archive/source.h"
#include "base/map.h"
#include "records/meta.h"

struct lmcs_archive_identity {
    struct lmcs_tensor tensor; /* own copy; strides NULL */
    uint64_t raw_bytes;
    uint64_t content;    /* id in the current list, while present */
    size_t leader;       /* first identity of this kind and name */
    uint64_t present;    /* number of the list that has it */
    uint64_t touched;    /* last snapshot with an entry of it */
    uint64_t name_list;  /* of a leader: list to which name_count applies */
    uint64_t name_count; /* of a leader: identities of the name in that list */
    /* for the restore: */
    uint64_t pool_id; /* 0: not in the pool, as far as known */
    uint64_t attempt; /* transaction that gave pool_id */
    uint64_t listed;  /* list of the restore that has it */
    size_t place;     /* index in that list */
};

struct lmcs_archive_content {
    struct lmc_hash digest;
    uint64_t stored_bytes;
    uint64_t at;                   /* stream offset of its first piece's header */
    uint32_t identity;             /* index */
    uint32_t bases[LMC_MAX_BASES]; /* ids; linked: the link */
    uint8_t base_count;
    uint8_t payload; /* enum lmcs_payload_kind */
    uint8_t flags;
    uint8_t output;    /* linked: index among the link's outputs */
    uint8_t depth;     /* deltas to undo in this archive */
    uint8_t line;      /* links to undo */
    bool is_known;     /* its payload is in an older archive */
    bool is_used;      /* by an entry or as a base */
    bool is_gone_from; /* its outputs are the bases of another link */
    bool is_wanted;    /* for visitors that select */
    /* for the restore: */
    bool has_run;  /* a snapshot contains it */
    bool is_found; /* found in the pool */
    uint64_t pool_id;
};

struct lmcs_archive_reader;

/* Members may be NULL. Called in the archive's order, after a record is checked and applied. */
struct lmcs_archive_visitor {
    enum lmcs_status (*since)(void *context, const struct lmcs_archive_since_df *since, struct lmcs_error *error);
    enum lmcs_status (*shelf)(void *context, struct lmcs_error *error);
    enum lmcs_status (*shelf_id)(void *context, const struct lmcs_archive_shelf_id_df *id, struct lmcs_error *error);
    enum lmcs_status (*origin)(void *context, const struct lmcs_archive_origin_df *origin, const char *name,
                               struct lmcs_error *error);
    enum lmcs_status (*snapshot)(void *context, struct lmcs_error *error);
    enum lmcs_status (*content)(void *context, struct lmcs_error *error); /* the newest content; its data follow */
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
    uint64_t reported; /* to the input's progress */
    enum lmcs_archive_place place;
    struct lmc_hash hash; /* of the whole archive, after its end */
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
    struct lmcs_map names; /* of leaders: index + 1 */
    /* the current shelf: */
    char *shelf;
    struct lmcs_archive_shelf_df shelf_df;
    bool has_origin;
    bool has_id;
    char *tag;         /* last one */
    uint64_t *numbers; /* of its snapshots, ascending */
    size_t number_count;
    size_t number_capacity;
    /* the current snapshot: */
    struct lmcs_archive_snapshot_df snapshot;
    char meta[LMCS_META_INLINE + 1];
    size_t first_content; /* first content that arrived with it */
    struct lmcs_archive_entry_df *entries;
    size_t entry_count;
    size_t entry_capacity;
    uint64_t list;    /* number of its list */
    uint64_t serial;  /* of the snapshot */
    uint64_t present; /* identities in the list */
    uint64_t tensors;
    uint64_t raw_bytes;
    uint64_t data_at; /* arrived bytes of the current content */
};

/* Reads the head. After a failure there is nothing to end. */
enum lmcs_status lmcs_archive_reader_init(struct lmcs_archive_reader *reader, int fd, struct lmcs_error *error);
enum lmcs_status lmcs_archive_reader_init_from(struct lmcs_archive_reader *reader,
                                               const struct lmcs_archive_input *input, struct lmcs_error *error);
void lmcs_archive_reader_fini(struct lmcs_archive_reader *reader);
enum lmcs_status lmcs_archive_reader_next(struct lmcs_archive_reader *reader, struct lmcs_error *error);
enum lmcs_status lmcs_archive_reader_run(struct lmcs_archive_reader *reader, struct lmcs_error *error);
/* The link whose outputs are the bases of `link`; NULL: none in this archive. */
const struct lmcs_archive_content *lmcs_archive_link_before(const struct lmcs_archive_reader *reader,
                                                            const struct lmcs_archive_content *link);
/* Whether two tensors can share a content. */
bool lmcs_archive_same_form(const struct lmcs_tensor *a, const struct lmcs_tensor *b);

#define LMCS_ARCHIVE_DAMAGED(reader, error, ...) lmcs_archive_fail(&(reader)->source, LMCS_DAMAGED, error, __VA_ARGS__)
#define LMCS_ARCHIVE_UNSUPPORTED(reader, error, ...) \
    lmcs_archive_fail(&(reader)->source, LMCS_UNSUPPORTED, error, __VA_ARGS__)

#endif
