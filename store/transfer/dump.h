/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/dump.h - the parts of a dump (private to transfer/). */
#ifndef LMCS_TRANSFER_DUMP_H
#define LMCS_TRANSFER_DUMP_H

#include "records/origin.h"
#include "snapshots/snapshot.h"
#include "transfer/write.h"

/* ---- dump_snapshot.c: one snapshot ---- */

struct sorted_entry;
/* A walk that visits each new entry and each removed one (content 0). */
struct lmcs_dump_walk {
    struct lmcs_dump *dump;
    enum lmcs_status (*entry)(struct lmcs_dump *dump, uint64_t identity, uint64_t content, struct lmcs_error *error);
};
enum lmcs_status lmcs_dump_walk_manifest(struct lmcs_dump_walk *walk, const struct lmcs_record *record,
                                         const struct lmcs_snapshot_df *previous, bool related,
                                         struct lmcs_error *error);

/* Lists of a canonical archive, ordered by kind and the bytes of the name. */
struct lmcs_dump_order {
    char **names; /* names of identities, each read once */
    size_t name_count;
    size_t name_capacity;
    struct lmcs_id_map by_identity; /* index + 1 */
    struct sorted_entry *now;
    size_t count;
    size_t capacity;
    struct sorted_entry *before; /* entries of the snapshot before */
    size_t before_count;
    size_t before_capacity;
};
void lmcs_dump_order_end(struct lmcs_dump_order *order);

typedef enum lmcs_status (*lmcs_dump_snapshot_fn)(struct lmcs_dump *dump, struct lmcs_dump_order *order,
                                                  const struct lmcs_record *record,
                                                  const struct lmcs_snapshot_df *previous, bool related,
                                                  struct lmcs_error *error);

struct lmcs_dump_shelf {
    struct lmcs_shelf_df df;
    bool was_forked;
    struct lmcs_origin origin;
    char *name;
    uint64_t *numbers; /* of snapshots to send; 0: gone */
    size_t count;
    size_t capacity;
    uint64_t *older; /* since older archives: all other snapshots, whose tags are sent */
    size_t older_count;
    size_t older_capacity;
    size_t matches; /* snapshots that older archives have */
    bool has_all_tags;
    bool has_origin;    /* continued: origin was sent */
    bool has_id;        /* continued: identity was sent, or can't be sent any more */
    bool says_all_tags; /* continued: so does the sent identity */
    bool is_begun;      /* continued: record was sent */
    bool is_sent;       /* continued: all was sent */
    uint64_t last;      /* continued: last snapshot sent; 0: none */
    uint64_t last_time_ns;
    uint64_t end; /* continued: numbers not sent from here on; the sent record of the shelf ends there */
};

/* Calls `visit` for a snapshot. *number becomes 0 if it is gone. *previous: record of the snapshot before, replaced by
 * this one's. */
enum lmcs_status lmcs_dump_visit(struct lmcs_dump *dump, struct lmcs_dump_shelf *plan, struct lmcs_dump_order *order,
                                 uint64_t *number, struct lmcs_snapshot_df *previous, lmcs_dump_snapshot_fn visit,
                                 struct lmcs_error *error);

enum lmcs_status lmcs_dump_send(struct lmcs_dump *dump, struct lmcs_dump_order *order, const struct lmcs_record *record,
                                const struct lmcs_snapshot_df *previous, bool related, struct lmcs_error *error);

/* ---- dump_plan.c: the snapshots to send ---- */

struct lmcs_dump_plans {
    struct lmcs_dump_shelf *items;
    size_t count;
    size_t capacity;
    struct lmcs_parts parts;
    struct lmcs_index *older; /* older archives */
    size_t older_count;
    struct lmcs_archive_since_df *since; /* hashes of the older archives */
    struct lmcs_index begun;             /* of the continued archive */
    bool is_whole;                       /* the continued archive is complete */
};
/* Plans all shelves, by name, with their committed snapshots, as of one moment. */
enum lmcs_status lmcs_dump_plans_make(struct lmcs_dump *dump, struct lmcs_dump_plans *plans, struct lmcs_error *error);
void lmcs_dump_plans_end(struct lmcs_dump_plans *plans);

/* ---- dump_outside.c: bases outside of the part ---- */

enum lmcs_status lmcs_dump_find_outside(struct lmcs_dump *dump, struct lmcs_dump_plans *plans,
                                        struct lmcs_error *error);

/* ---- dump_continue.c ---- */

enum lmcs_status lmcs_dump_read_older(struct lmcs_dump *dump, int fd, struct lmcs_index *index,
                                      struct lmcs_archive_since_df *since, struct lmcs_error *error);
/* Locks the file, and reads what it has. *is_done: the archive is complete. LMCS_IN_USE: another dump writes it. */
enum lmcs_status lmcs_dump_continue(struct lmcs_dump *dump, struct lmcs_dump_plans *plans, bool *is_done,
                                    struct lmcs_error *error);
void lmcs_dump_unlock(struct lmcs_dump *dump);
/* Cuts off the bytes that do not stay. */
enum lmcs_status lmcs_dump_cut_rest(const struct lmcs_dump *dump, struct lmcs_error *error);

#endif
