/* SPDX-License-Identifier: BSD-3-Clause */
/* damage.h - a case of damage, and the ways to damage a pool. */
#ifndef LMCS_DAMAGE_H
#define LMCS_DAMAGE_H

#include "subject.h"

#define LINE            64u

#define RUN_BITMAP_END  128u /* of a run, before its units */

#define LINES_OF_CHUNKS 64u /* headers in use, and some more */

enum outcome {
    REFUSED,  /* with a reason */
    REPORTED, /* by verify or a read */
    UNSEEN,   /* no report, all is right */
    WRONG,    /* unreported, or permanent */
    UNNAMED,  /* reported without a name, or refused without a reason */
    CRASHED,
    HUNG,
    OUTCOMES
};

struct bench {
    struct subject *subject;
    char folder[300];
    char whole[400];
    char work[400]; /* for the writer */
    char set[400];  /* and the parts' original bytes */
    char parts[2][400];
    char whole_parts[2][420];
    struct state *set_state;
    char pending[400]; /* killed before the last commit's log is applied */
    uint64_t pending_log, pending_log_bytes, pending_epoch;
    unsigned char *archive;
    size_t archive_bytes;
    char restored[400]; /* target of restores */
    uint64_t seed;
    bool verbose;
    struct shared *shared;
};

struct shared {
    enum outcome outcome;
    char what[512];
};

struct damage {
    struct bench *bench;
    struct rng rng;
    uint64_t turn;       /* of its kind */
    const char *tensor;  /* damaged, if known; NULL */
    const char *tensor2; /* or this one */
    bool has_byte;       /* the report must cover ... */
    uint64_t byte;       /* ... this byte of the tensor */
    uint8_t tree;        /* enum lmcs_tree_kind of the damaged page; 0: none */
    uint64_t content;    /* damaged, of a line */
};

void describe(struct damage *damage, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define ULL(n) ((unsigned long long)(n))

/* Another line each turn, in an order by seed; enough turns pick all. */
uint64_t spread(const struct damage *damage, uint64_t count);
void flip_superblock(struct damage *damage, const char *path);
void flip_root(struct damage *damage, const char *path);
void flip_tree(struct damage *damage, const char *path);
void flip_payload(struct damage *damage, const char *path);
void overwrite_page(struct damage *damage, const char *path);
void overwrite_payload(struct damage *damage, const char *path);
void swap_pages(struct damage *damage, const char *path);
/* Of equal size if possible, else of the smaller size. */
void swap_payloads(struct damage *damage, const char *path);
/* Cuts the used or the sparse part. */
void cut_file(struct damage *damage, const char *path);
void flip_header(struct damage *damage, const char *path);
/* Half hit lanes in use. */
void flip_log(struct damage *damage, const char *path);
void flip_heap(struct damage *damage, const char *path);
void flip_chunk(struct damage *damage, const char *path);
void flip_object(struct damage *damage, const char *path);
/* Zeroes or fills sectors and pages. */
void overwrite_heap(struct damage *damage, const char *path);

/* lines.c */
void flip_line(struct damage *damage, const char *path);
enum outcome judge_line(struct damage *damage, void (*apply)(struct damage *damage, const char *path));

#endif
