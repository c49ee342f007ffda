/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * history.h - recorded calls with their answers, and the check that they are linearisable.
 *
 * A history is linearisable (Herlihy and Wing) if each call can be assigned one moment between its times such that a
 * sequential model gives all answers in that order. The model is a shelf (snapshots, tags, next number, keep_raw) and
 * its register. The search is Wing and Gong's with Lowe's memory of visited states. Shelves are checked one by one.
 */
#ifndef LMCS_STRESS_HISTORY_H
#define LMCS_STRESS_HISTORY_H

#include "content.h"

enum op {
    OP_COMMIT,      /* number, ticket; value: mask of its tags */
    OP_REMOVE,      /* number; value: tags removed; arg 1: a dry run */
    OP_TAG_SET,     /* number; arg: tag */
    OP_TAG_REMOVE,  /* arg: tag */
    OP_KEEP_RAW,    /* value */
    OP_FIND_LATEST, /* arg: how many before it; gives number, ticket */
    OP_FIND_NUMBER, /* number; gives ticket */
    OP_FIND_TAG,    /* arg: tag; value: how many before it; gives number, ticket */
    OP_FIND_STEP,   /* ticket; gives number */
    OP_LOOK,        /* number: any read; value: digest, or 0 */
    OP_TAGS,        /* number; value: mask of its tags */
    OP_LIST,        /* number: first; arg: at most; value: list_hash */
    OP_INFO,        /* number: latest; ticket: next; arg: keep_raw; value: count */
    OP_LIVE_GET,    /* value (of the shelf's live register) */
    OP_LIVE_SET,    /* value */
    OP_LIVE_ADD,    /* number: addend; value: old */
    OP_LIVE_SWAP,   /* number: expected; ticket: new; value: old */
    OPS
};

struct event {
    uint64_t begun_ns;
    uint64_t ended_ns;
    uint64_t number;
    uint64_t ticket;
    uint64_t value;
    uint32_t arg;
    uint8_t op;
    uint8_t shelf;
    bool found;  /* false: LMCS_NOT_FOUND */
    bool behind; /* ends when the shelf's next capture begins, at the latest */
};

enum { MOST_PRESENT = 512, DEFAULT_KEEP_RAW = 4 };

struct model {
    bool exists;
    uint32_t keep_raw;
    uint64_t next; /* number */
    uint64_t tags[TAGS];
    uint64_t live; /* the register's */
    size_t count;
    struct {
        uint64_t number;
        uint64_t ticket;
    } present[MOST_PRESENT]; /* ascending */
};

void model_init(struct model *model);
uint64_t list_hash(const uint64_t *numbers, size_t count);

enum verdict { LINEARISABLE, NOT_LINEARISABLE, UNDECIDED };

struct verdict_report {
    uint64_t states;
    uint64_t most_at_once; /* calls under way */
    char text[4096];       /* place of failure */
};

/*
 * Whether the events of one shelf, in any order, can follow from `model`, which becomes the final state. UNDECIDED:
 * needs more than `most_states`.
 */
enum verdict history_check(struct model *model, const struct event *events, size_t count, uint64_t most_states,
                           struct verdict_report *report);

void event_print(const struct event *event, uint64_t start_ns, char *line, size_t bytes);

#endif
