/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/write.h - sends the records of an archive. */
#ifndef LMCS_TRANSFER_WRITE_H
#define LMCS_TRANSFER_WRITE_H

#include "archive/index.h"
#include "base/map.h"
#include "pages/pool.h"
#include "payload/read.h"
#include "records/holders.h"
#include "records/shelf.h"

#define LMCS_DUMP_BUFFER ((size_t)256 << 10) /* small records are gathered */

/* Numbers by ids, in pages found by a hash: a damaged record may have an id of any size. */
struct lmcs_id_page;
struct lmcs_id_map {
    struct lmcs_id_page **pages;
    size_t count;
    size_t capacity;
    struct lmcs_map numbers; /* of pages: index + 1 */
};
uint64_t lmcs_id_get(const struct lmcs_id_map *map, uint64_t id); /* 0: none */
enum lmcs_status lmcs_id_put(struct lmcs_id_map *map, uint64_t id, uint64_t value, struct lmcs_error *error);
/* Lists ids with a number, ascending. Free *ids. */
enum lmcs_status lmcs_id_list(const struct lmcs_id_map *map, uint64_t **ids, size_t *count, struct lmcs_error *error);
void lmcs_id_free(struct lmcs_id_map *map);

/* A sent content: its id in the archive and, in the low byte, the deltas or links to undo. */
#define LMCS_SENT_BITS  8u
#define LMCS_SENT_MASK  0xffu
#define LMCS_SENT_LINE  0x80u /* set: the other bits count links */

#define LMCS_FORM_KNOWN UINT64_MAX /* an older archive has it */
/* The form of a content that a link stores. `arrays`: number of the link's outputs. */
static inline uint64_t lmcs_form_linked(uint64_t link, uint32_t arrays, uint32_t output)
{
    return link << 8 | arrays << 4 | output;
}

/* A content known by its digest: from an older archive, or from this one before it was continued. */
struct lmcs_known {
    struct lmc_hash digest;
    uint64_t sent; /* as above; 0: not named yet */
    uint8_t depth; /* low byte of a sent content, in the older archive */
    bool is_new;   /* no archive has it: it is sent once for all its copies */
};

/* Costs of a base outside of the part. */
struct lmcs_outside {
    uint64_t base_bytes;  /* of the base and the contents below it */
    uint64_t delta_bytes; /* of the deltas against the base */
    uint64_t whole_bytes; /* of these contents sent without the base */
};

struct lmcs_dump {
    struct lmc_hasher headers;
    struct lmcs_pool *pool;
    const struct lmcs_dump_options *options;
    int fd; /* -1: `write` receives the bytes */
    lmcs_archive_write_fn write;
    void *write_context;
    bool is_part; /* bases may be outside */
    const struct lmcs_progress *progress;
    uint64_t total; /* estimate in bytes; 0: unknown */
    uint64_t reported;
    unsigned char *buffer; /* not yet written */
    size_t used;
    unsigned char *piece; /* of a payload */
    uint64_t bytes;
    struct lmcs_archive_end_df end;
    struct lmcs_id_map identities;
    struct lmcs_id_map contents; /* as sent */
    struct lmcs_id_map forms;    /* by ids of the archive: LMCS_FORM_KNOWN, or the link; 0: its own bytes */
    struct lmcs_known *known;    /* by digest */
    size_t known_count;
    size_t known_capacity;
    uint64_t known_sent;      /* contents only named */
    uint64_t name;            /* canonical: identity of the entry, sent with the content */
    struct lmcs_holders lost; /* skip_lost: left-out snapshots */
    uint64_t lost_snapshots;
    struct lmcs_transfer_report warned; /* its warnings */
    bool is_locked;                     /* continued: the file */
    uint64_t damaged_bytes;             /* continued: cut off because of damage before them */
    struct lmcs_id_map inside;
    struct lmcs_id_map outside; /* by base: index + 1 */
    struct lmcs_outside *costs;
    size_t cost_count;
    size_t cost_capacity;
    /* the current snapshot: */
    struct lmcs_txn txn;
    struct lmcs_archive_entry_df pairs[LMCS_ARCHIVE_PAIRS];
    size_t pair_count;
};

enum lmcs_status lmcs_dump_flush(struct lmcs_dump *dump, struct lmcs_error *error);
enum lmcs_status lmcs_dump_head(struct lmcs_dump *dump, struct lmcs_error *error);
/* Sends a record with the payload `first`, `rest`. */
enum lmcs_status lmcs_dump_record(struct lmcs_dump *dump, uint32_t type, const void *first, size_t first_bytes,
                                  const void *rest, size_t rest_bytes, struct lmcs_error *error);
/* Sends a record once, a content after those below it. *sent: its id in the archive. */
enum lmcs_status lmcs_dump_identity(struct lmcs_dump *dump, uint64_t id, uint64_t *sent, struct lmcs_error *error);
enum lmcs_status lmcs_dump_content(struct lmcs_dump *dump, uint64_t id, uint64_t *sent, struct lmcs_error *error);
/* NULL: none. */
struct lmcs_known *lmcs_dump_known(const struct lmcs_dump *dump, const struct lmc_hash *digest);
enum lmcs_status lmcs_dump_add_known(struct lmcs_dump *dump, const struct lmcs_known *known, struct lmcs_error *error);
void lmcs_dump_sort_known(struct lmcs_dump *dump);

#endif
