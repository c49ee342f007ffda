/* SPDX-License-Identifier: BSD-3-Clause */
/* damage.h - a case of damage, and the ways to damage a pool. */
#ifndef LMCS_DAMAGE_H
#define LMCS_DAMAGE_H

#include "subject.h"

#define LINE            64u

#define RUN_BITMAP_END  128u /* the header of a run, before its units */

#define LINES_OF_CHUNKS 64u /* of chunk headers: those in use and some behind */

enum outcome {
    REFUSED,  /* it could not be opened or restored, with a reason */
    REPORTED, /* it was opened, and verify or a read reported the damage */
    UNSEEN,   /* no report, and everything is right */
    WRONG,    /* something is wrong without a report, or for ever */
    UNNAMED,  /* reported without the name of the damaged thing, or refused without a reason */
    CRASHED,
    HUNG,
    OUTCOMES
};

/* The state of all cases and of the current one; children inherit it by fork. */
struct bench {
    struct subject *subject;
    char folder[300];
    char whole[400]; /* the original pool */
    char work[400];  /* the writer's copy */
    char set[400];   /* a poolset of two parts, and its parts as they were made */
    char parts[2][400];
    char whole_parts[2][420];
    struct state *set_state;
    char pending[400]; /* the pool, killed after the log of its last commit and before the log is applied */
    uint64_t pending_log, pending_log_bytes, pending_epoch;
    unsigned char *archive;
    size_t archive_bytes;
    char restored[400]; /* a pool to restore into */
    uint64_t seed;
    bool verbose;
    struct shared *shared;
};

/* Between a case's child and us. */
struct shared {
    enum outcome outcome;
    char what[512]; /* the damage and the report */
};

struct damage {
    struct bench *bench;
    struct rng rng;
    uint64_t turn;       /* of its kind */
    const char *tensor;  /* damaged, if known; NULL */
    const char *tensor2; /* or this one */
    bool has_byte;       /* the reported damage must cover ... */
    uint64_t byte;       /* ... this byte of the tensor */
    uint8_t tree;        /* enum lmcs_tree_kind of the page that it hits; 0: of the pool, or none */
};

void describe(struct damage *damage, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define ULL(n) ((unsigned long long)(n))

/* Picks another line each turn, in an order that follows from the seed; enough turns pick every line. */
uint64_t spread(const struct damage *damage, uint64_t count);
void flip_superblock(struct damage *damage, const char *path);
void flip_root(struct damage *damage, const char *path);
void flip_tree(struct damage *damage, const char *path);
void flip_payload(struct damage *damage, const char *path);
void overwrite_page(struct damage *damage, const char *path);
void overwrite_payload(struct damage *damage, const char *path);
void swap_pages(struct damage *damage, const char *path);
/* Swaps ranges of equal size if there are two, else as much as the smaller one has. */
void swap_payloads(struct damage *damage, const char *path);
/* Cuts somewhere in the used part, or anywhere in the sparse rest. */
void cut_file(struct damage *damage, const char *path);
void flip_header(struct damage *damage, const char *path);
/* Half of them are in lanes in use: the first ones, and those of some thread. */
void flip_log(struct damage *damage, const char *path);
void flip_heap(struct damage *damage, const char *path);
void flip_chunk(struct damage *damage, const char *path);
void flip_object(struct damage *damage, const char *path);
/* Zeroes or fills sectors and pages of all of libpmemobj's data. */
void overwrite_heap(struct damage *damage, const char *path);

#endif
