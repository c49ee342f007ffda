/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * model.h - the required content of a pool after a kill, computed from the acknowledged calls.
 *
 * Each worker thread has its own shelf, so a kill interrupts at most one call per shelf, which is done or absent.
 */
#ifndef LMCS_TEST_KILL_MODEL_H
#define LMCS_TEST_KILL_MODEL_H

#include "support.h"

enum { WRITERS = 2, ARCHIVED = WRITERS, SHELVES = WRITERS + 1, TAGS = 3, MOST_SNAPSHOTS = 24, ARCHIVE_SNAPSHOTS = 4 };
enum { POLICIES = 4, MOST_LINKS = 6 };

/* Writers' shelves have captures, the last one archive restores. */
struct model {
    uint64_t numbers[MOST_SNAPSHOTS]; /* ascending */
    size_t count;
    uint64_t tags[TAGS]; /* its owner; 0: none */
    uint64_t prepared;   /* 0: none */
    uint32_t policy;     /* index */
};

enum call { CAPTURE, TAG, UNTAG, REMOVE, PREPARE, RESOLVE, RESTORE, SET_POLICY, LIVE, CALLS };
#define LIVELY SHELVES /* instead of a shelf */
enum phase { BEGUN, DONE, FAILED };
#define NO_TAG UINT32_MAX

struct record {
    uint32_t shelf;
    uint32_t call;
    uint32_t phase;
    uint32_t tag;    /* index; SET_POLICY: the policy's */
    uint64_t number; /* RESOLVE: also whether to commit */
    uint32_t commit;
    uint32_t check; /* of the preceding bytes */
};

extern const char *const call_names[CALLS];

void model_apply(struct model *model, const struct record *record);
bool model_has(const struct model *model, uint64_t number);
bool model_same(const struct model *a, const struct model *b);
void model_print(FILE *file, const char *what, const struct model *model);

void shelf_name(uint32_t shelf, char name[16]);
void tag_name(uint32_t tag, char name[16]);
void group_of(uint32_t shelf, uint64_t number, unsigned char group[16]);
struct state *state_of(uint32_t shelf, uint64_t number);
/* The policies of a shelf: most write links, in lines of at most MOST_LINKS. */
extern const char *const policies[POLICIES];
/* Two parameters of `state_of` and their momenta, which change by a step of SGD from one number to the next. */
enum { PARAMETERS = 2 };
void relation_of(unsigned parameter, struct lmcs_relation *relation);

/* `prepared` becomes 0. */
void model_of_pool(struct lmcs_pool *pool, uint32_t shelf, struct model *model);

#endif
