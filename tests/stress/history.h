/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * history.h - recorded calls with their answers, and the check that they are linearisable.
 *
 * An event is a call: the times around it, its arguments and answer. A history is linearisable (Herlihy and Wing) if
 * each call can be assigned one moment between its times such that a sequential model, in the order of these moments,
 * gives all recorded answers. The model is a shelf (snapshots, tags, next number, keep_raw) and its register. The
 * search is Wing and Gong's with Lowe's memory of visited states. A fitting call without a change is taken at once, so
 * only changes branch. Shelves are independent and checked one by one.
 */
#ifndef LMCS_STRESS_HISTORY_H
#define LMCS_STRESS_HISTORY_H

#include "content.h"

enum op {
    OP_COMMIT,      /* number, ticket; value: mask of the tags that it took */
    OP_REMOVE,      /* number; value: tags removed with it; arg 1: a dry run */
    OP_TAG_SET,     /* number; arg: tag */
    OP_TAG_REMOVE,  /* arg: tag */
    OP_KEEP_RAW,    /* value */
    OP_FIND_LATEST, /* arg: how many before it; gives number, ticket */
    OP_FIND_NUMBER, /* number; gives ticket */
    OP_FIND_TAG,    /* arg: tag; value: how many before it; gives number, ticket */
    OP_FIND_STEP,   /* ticket; gives number */
    OP_LOOK,        /* number: any read of a snapshot; value: its digest, or 0 */
    OP_TAGS,        /* number; value: mask of its tags */
    OP_LIST,        /* number: the first; arg: at most; value: list_hash of the answer */
    OP_INFO,        /* number: the latest; ticket: the next; arg: keep_raw; value: count */
    OP_LIVE_GET,    /* of the shelf's live register; value: the read one */
    OP_LIVE_SET,    /* value */
    OP_LIVE_ADD,    /* number: the addend; value: the old one */
    OP_LIVE_SWAP,   /* number: the expected value; ticket: the new one; value: the old one */
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
    bool behind; /* a detached commit: ends no later than the shelf's next capture begins */
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
 * Checks whether the events of one shelf, in any order, can follow from `model`, which becomes the final state.
 * UNDECIDED: needs more than `most_states` states.
 */
enum verdict history_check(struct model *model, const struct event *events, size_t count, uint64_t most_states,
                           struct verdict_report *report);

void event_print(const struct event *event, uint64_t start_ns, char *line, size_t bytes);

#endif
