/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/stage.h - face of transfer/, the room of dump and restore: stages the snapshots of a restore.
 *
 * Uses base, media, pages, records, payload, snapshots, shelves, archive. The room's functions are public (lmcstore.h):
 * dump.c, restore.c. Each shelf of an archive gets a staging shelf (stage.c), which restore.c fills with checked
 * records. stage_there.c finds shelves and snapshots that are there already, stage_show.c shows the staged ones.
 */
#ifndef LMCS_TRANSFER_STAGE_H
#define LMCS_TRANSFER_STAGE_H

#include "archive/read.h"
#include "pages/space.h"
#include "records/busy.h"
#include "records/content.h"
#include "records/shelf.h"

struct lmcs_stage_pending {
    size_t index;                  /* of the content */
    bool is_copy;                  /* of a content that the pool has in an unsuitable form */
    bool is_verified;              /* before the commit */
    size_t instead[LMC_MAX_BASES]; /* copies as bases: index among the pending + 1; 0: the archive's base */
    struct lmcs_content content;   /* without ids */
};

struct lmcs_stage_wanted {
    struct lmc_hash digest;
    const struct lmcs_tensor *tensor;
    uint32_t depth;  /* most deltas to undo */
    uint32_t arrays; /* of a link; 0: no link */
    uint32_t line;   /* of a link: longest line */
    uint64_t link;   /* link that must lead to it; 0: any form */
    uint8_t output;  /* index among the outputs of `link` */
};

struct lmcs_stage_tag {
    uint64_t number;
    char *text;
};

/* Metadata in an archive of a snapshot that the pool, or an earlier archive, has with other metrics or another note. */
struct lmcs_stage_meta {
    uint64_t number;
    bool wins; /* over an earlier archive's */
    char *text;
};

struct lmcs_stage_shelf {
    char *name;                          /* name once the shelf is visible */
    char *from;                          /* name in the archive */
    struct lmcs_busy_shelf *busy;        /* the acquired shelf; NULL: an earlier archive of this restore has the name */
    size_t archive;                      /* index of its archive */
    uint64_t identity[2];                /* of the shelf, also known from later archives; 0, 0: unknown */
    bool has_all_tags;                   /* the archive has all tags of the shelf */
    bool is_placed;                      /* the fields from here on are set */
    bool by_name;                        /* found among earlier archives without comparing identities */
    size_t first;                        /* index of the first staging shelf that is the same shelf */
    uint64_t there;                      /* id of the same shelf in the pool; 0: none */
    struct lmcs_busy_shelf *also;        /* the acquired shelf `there`, if it has another name */
    bool is_gone;                        /* a later archive has another shelf of that name: it is not shown */
    uint64_t joined;                     /* id of the staging shelf of completed snapshots; 0: none */
    struct lmcs_snapshot_df joined_last; /* its newest; number 0: none */
    uint64_t id;                         /* of the staging shelf; 0: none yet */
    uint64_t lineage;
    uint64_t next_number;
    uint32_t keep_raw;
    char *origin; /* shelf it was forked from; NULL: none */
    uint64_t origin_number;
    uint64_t origin_time_ns;
    struct lmcs_snapshot_df last; /* last staged */
    uint64_t *skipped;            /* numbers that the existing shelf has, ascending */
    size_t skipped_count;
    size_t skipped_capacity;
    size_t dropped; /* entries of `skipped` whose staged copies are removed */
    struct lmcs_stage_tag *tags;
    size_t tag_count;
    size_t tag_capacity;
    struct lmcs_stage_meta *metas;
    size_t meta_count;
    size_t meta_capacity;
};

struct lmcs_stage_known {
    uint64_t identity[2];
    uint64_t id;
};

/* A content of the pool. */
struct lmcs_stage_found {
    struct lmc_hash digest;
    uint64_t id;
};

struct lmcs_stage {
    struct lmcs_pool *pool;
    struct lmcs_transfer_report *report; /* gets warnings */
    size_t archive;                      /* index of the current one */
    bool is_last;                        /* archive of the restore */
    bool is_named;                       /* the caller names the shelf: names alone count */
    struct lmcs_archive_reader *reader;  /* of the current archive */
    bool keeps;                          /* a failure leaves staged snapshots */
    bool moves_tags;
    bool is_overtaken;              /* a found content has changed */
    bool copies_known;              /* known bases that rest on others get raw copies */
    bool is_too_long;               /* a chain or line on a known content is */
    struct lmcs_stage_found *found; /* by digest */
    size_t found_count;
    size_t found_capacity;
    struct lmcs_stage_known *known; /* identities of the pool's shelves, as the restore began */
    size_t known_count;
    size_t known_capacity;
    bool knows_shelves; /* `known` is filled */
    uint64_t *verified; /* ids verified by earlier attempts, ascending */
    size_t verified_count;
    size_t verified_capacity;
    uint64_t *unrun; /* ids of contents that are only bases */
    size_t unrun_count;
    size_t unrun_capacity;
    struct lmcs_region raw;           /* raw payloads, written as by a capture */
    struct lmcs_region coded;         /* encoded payloads, written as by the compactor */
    struct lmcs_stage_shelf *shelves; /* the last is the current one */
    size_t shelf_count;
    size_t shelf_capacity;
    uint64_t attempt;
    uint64_t snapshots; /* staged */
    uint64_t skipped;
    uint64_t shown;
    /* the current snapshot: */
    struct lmcs_record record; /* lmcs_stage_snapshot sets manifest, epoch and lineage */
    bool is_changes;           /* to the snapshot before */
    struct lmcs_stage_pending *pending;
    size_t pending_count;
    size_t pending_capacity;
    uint64_t pending_bytes;
    struct lmcs_archive_entry_df *entries; /* with the archive's ids */
    size_t entry_count;
    size_t entry_capacity;
};

void lmcs_stage_init(struct lmcs_stage *stage, struct lmcs_pool *pool);
/* Begins an archive: lists the contents of the pool. */
enum lmcs_status lmcs_stage_begin(struct lmcs_stage *stage, struct lmcs_archive_reader *reader,
                                  struct lmcs_error *error);
/* Ends an archive that was read completely. The reader may be freed afterwards. */
enum lmcs_status lmcs_stage_end(struct lmcs_stage *stage, struct lmcs_error *error);
/* Finds, reads and verifies a content of the pool. *id 0: none. If it is gone when the snapshot is staged, staging
 * fails. */
enum lmcs_status lmcs_stage_find(struct lmcs_stage *stage, const struct lmcs_stage_wanted *wanted, uint64_t *id,
                                 struct lmcs_error *error);
void lmcs_stage_fini(struct lmcs_stage *stage);
/* Acquires the shelf of that name, so that captures wait. */
enum lmcs_status lmcs_stage_shelf(struct lmcs_stage *stage, const char *name, const char *from, uint64_t next_number,
                                  uint32_t keep_raw, struct lmcs_error *error);
/* Sets the identity of the current shelf. LMCS_EXISTS: the pool has another shelf of its name. */
enum lmcs_status lmcs_stage_identify(struct lmcs_stage *stage, const struct lmcs_archive_shelf_id_df *id,
                                     struct lmcs_error *error);
enum lmcs_status lmcs_stage_tag(struct lmcs_stage *stage, uint64_t number, const char *text, struct lmcs_error *error);
/* Whether a pending content, by index, is verified when it has arrived: it needs no other. */
bool lmcs_stage_stands_alone(const struct lmcs_stage *stage, size_t pending);
const struct lmcs_tensor *lmcs_stage_tensor(const struct lmcs_stage *stage, size_t pending);
/* Records the result of its verification; names the content of a failure. */
enum lmcs_status lmcs_stage_verified(struct lmcs_stage *stage, size_t pending, enum lmcs_status status,
                                     struct lmcs_error *error);
/* Commits the current snapshot, verifies every other content that arrived with it, and compares it with its number in
 * the existing shelf. */
enum lmcs_status lmcs_stage_snapshot(struct lmcs_stage *stage, struct lmcs_error *error);
/* *fits: the metadata of both is equal, except for metrics and the note. */
enum lmcs_status lmcs_stage_compare_meta(const struct lmcs_record *staged, const struct lmcs_record *there, bool *fits,
                                         struct lmcs_error *error);
/* Notes the staged metadata of a snapshot that exists, if it differs; lmcs_stage_put_metas merges it at the end. */
enum lmcs_status lmcs_stage_note_meta(struct lmcs_stage_shelf *shelf, const struct lmcs_record *staged,
                                      const struct lmcs_record *there, bool wins, struct lmcs_error *error);
enum lmcs_status lmcs_stage_put_metas(struct lmcs_txn *txn, const struct lmcs_stage_shelf *from,
                                      struct lmcs_shelf *shelf, struct lmcs_error *error);
/* Finds the shelf in the pool and among those of earlier archives, once its identity is known. */
enum lmcs_status lmcs_stage_place(struct lmcs_stage *stage, size_t index, struct lmcs_error *error);
/* The pool's shelf with this identity. *found false: none. */
enum lmcs_status lmcs_stage_known_shelf(struct lmcs_stage *stage, struct lmcs_txn *txn, const uint64_t identity[2],
                                        struct lmcs_shelf *shelf, bool *found, struct lmcs_error *error);
/* The identity of a copy under another name. Unknown if the original's is. */
void lmcs_stage_copy_identity(const uint64_t identity[2], const char *name, uint64_t copy[2]);
/* LMCS_EXISTS: the pool's shelf of the name is another one. */
enum lmcs_status lmcs_stage_fail_other(const struct lmcs_txn *txn, const char *name, struct lmcs_error *error);
/* Records the snapshot as skipped if its shelf, or an earlier archive of this restore, has it. If the shelf has only
 * other tensors of it, stages both together in `joined`. */
enum lmcs_status lmcs_stage_note_there(struct lmcs_stage *stage, size_t index, const struct lmcs_record *record,
                                       struct lmcs_error *error);
/* Shows all snapshots in one transaction. */
enum lmcs_status lmcs_stage_show(struct lmcs_stage *stage, struct lmcs_error *error);
/* Removes staging shelf *id (0: none) and sets it to 0. */
enum lmcs_status lmcs_stage_drop_id(struct lmcs_stage *stage, uint64_t *id, struct lmcs_error *error);
/* Removes the staging shelves, or only those of completed snapshots; the next open removes the rest. */
void lmcs_stage_drop(struct lmcs_stage *stage, bool only_joined);
/* Reads and verifies content `id`, into `buffer` unless NULL. `knows_link`: the link that leads to it is verified. */
enum lmcs_status lmcs_stage_read(struct lmcs_stage *stage, uint64_t id, const struct lmcs_tensor *tensor,
                                 bool knows_link, void *buffer, struct lmcs_error *error);
/* Records a base without a staged snapshot, for lmcs_stage_show. */
enum lmcs_status lmcs_stage_add_unrun(struct lmcs_stage *stage, uint64_t id, struct lmcs_error *error);

#endif
