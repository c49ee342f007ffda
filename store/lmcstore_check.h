/* SPDX-License-Identifier: BSD-3-Clause */
/* lmcstore_check.h - verifying and scrubbing a pool. Included by lmcstore.h, which has the conventions. */
#ifndef LMCSTORE_CHECK_H
#define LMCSTORE_CHECK_H

#ifndef LMCSTORE_H
#error "include lmcstore.h, which includes this header"
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct lmcs_damage {
    const char *what;    /* a sentence */
    const char *shelf;   /* "": unknown */
    uint64_t number;     /* a snapshot with it; 0: unknown */
    const char *tensor;  /* "": in no tensor */
    uint64_t first_byte; /* of the tensor */
    uint64_t byte_count;
    bool is_unsupported; /* no damage: written by a newer version, with a right checksum */
};

struct lmcs_verify_report {
    uint64_t snapshots;
    uint64_t remote; /* further ones, not in the pool: skipped */
    uint64_t contents;
    uint64_t bytes_read;
    uint64_t damages;
    uint64_t unsupported; /* records and payloads of a newer version, not checked */
};

/*
 * Verifies all checksums and structures of everything (address NULL), a shelf ("run") or a snapshot ("run@7"). `visit`
 * (may be NULL) is called for each damage, and for each record or payload of a newer version. LMCS_DAMAGED: there was
 * damage. LMCS_UNSUPPORTED: there was none, but something of a newer version.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_verify(struct lmcs_pool *pool, const char *address,
                                                     void (*visit)(void *context, const struct lmcs_damage *damage),
                                                     void *context, const struct lmcs_progress *progress,
                                                     struct lmcs_verify_report *report, struct lmcs_error *error);

/*
 * A scrub compares stored bytes with their checksums. It does not decode, so it costs as much as reading. A damage
 * report lists every snapshot, tensor and row affected. Damage with another copy is repaired; the rest is recorded as
 * lost, and everything else stays in use: other tensors, other rows of the same one, and compaction, which skips it.
 * Reading lost rows fails with their numbers, until a later scrub finds a copy.
 */

/* Consecutive snapshots of a shelf with the damage under one name. */
struct lmcs_holder {
    const char *shelf;
    const char *tensor; /* its name there */
    uint32_t kind;      /* enum lmcs_kind */
    uint64_t first;     /* numbers */
    uint64_t last;
    uint64_t count;
};

enum lmcs_damage_state {
    LMCS_DAMAGE_FOUND,      /* no repair was attempted */
    LMCS_DAMAGE_REPAIRED,   /* the bytes match their checksum again */
    LMCS_DAMAGE_LOST,       /* no other copy was found */
    LMCS_DAMAGE_UNSUPPORTED /* no damage: of a newer version, and left as it is */
};

/* Pointers are valid during the visit. */
struct lmcs_scrub_damage {
    enum lmcs_damage_state state;
    const char *what;                 /* a sentence */
    const char *source;               /* of the repair; "": none */
    const struct lmcs_tensor *tensor; /* one that has it; NULL: metadata */
    uint64_t content;                 /* as in struct lmcs_entry */
    uint64_t first_byte;              /* of the tensor */
    uint64_t byte_count;
    uint64_t first_element;
    uint64_t element_count;
    uint64_t first_row; /* along the first dimension; 0 for a tensor without dimensions */
    uint64_t row_count;
    const struct lmcs_holder *holders; /* all snapshots that need it, also through deltas */
    size_t holder_count;
};

struct lmcs_scrub_options {
    const char *const *addresses; /* only contents that these need: "run", "run@7", "run@5..9". None: everything */
    size_t address_count;
    double sample_share;     /* 0 to 1, from the end of the last sample on; 0: all */
    uint64_t sample_bytes;   /* the same in bytes; a content is read as a whole */
    uint64_t rate_bytes;     /* most bytes a second; 0: no limit */
    bool repair;             /* needs a pool that is open for writing */
    const char *const *from; /* with repair: archives (files) and pools that may have a copy */
    size_t from_count;
};
/* Everything, at full speed, without repair. */
LMCS_API void lmcs_scrub_options_init(struct lmcs_scrub_options *options);

struct lmcs_scrub_report {
    uint64_t contents;
    uint64_t bytes_read; /* stored bytes of payloads and parity */
    uint64_t bytes_total;
    uint64_t damages;
    uint64_t repaired;
    uint64_t lost;           /* contents with lost blocks in the whole pool */
    uint64_t unsupported;    /* of a newer version: not checked, not changed */
    bool is_whole;           /* the pass is complete, with this call or earlier samples */
    uint64_t sources_unread; /* of options->from: unreadable, damaged, or no archive or pool */
    uint64_t remote;         /* snapshots that are not in the pool: skipped; 0 for a sample */
};

/*
 * `visit` (may be NULL) is called for each damage after all has been read; it must not call the store. All metadata is
 * checked unless addresses or a sample are given. A pool open for writing remembers the end of a sample; for reading,
 * samples begin anywhere. Progress is in bytes.
 *
 * Sources of a repair, in this order: parity; the other replica of a poolset; another copy in the pool (the same
 * tensor, or the same block of a neighbour); options->from. Repaired bytes match the checksum recorded when they were
 * saved, are written to new space, and become visible by a commit.
 *
 * LMCS_OK: no damage is left. LMCS_DAMAGED: damage is left. LMCS_UNSUPPORTED: none is left, but there are records or
 * payloads of a newer version, which stay as they are. LMCS_READ_ONLY: repair of a pool that is open for reading.
 * LMCS_FULL: no room for a repair; earlier repairs stay. An unreadable source is skipped if there are others; a scrub
 * that ends OK or DAMAGED then returns the first source's status (NOT_FOUND, DAMAGED, ...; sources_unread > 0). If no
 * source is readable, nothing is done.
 */
LMCS_API LMCS_NODISCARD enum lmcs_status lmcs_scrub(struct lmcs_pool *pool, const struct lmcs_scrub_options *options,
                                                    void (*visit)(void *context,
                                                                  const struct lmcs_scrub_damage *damage),
                                                    void *context, const struct lmcs_progress *progress,
                                                    struct lmcs_scrub_report *report, struct lmcs_error *error);

#ifdef __cplusplus
}
#endif

#endif
