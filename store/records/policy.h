/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/policy.h - the text of a shelf's policy, and which snapshots it keeps: pure functions.
 *
 * The grammar is in lmcstore.h, the table of keys in policy.c.
 */
#ifndef LMCS_RECORDS_POLICY_H
#define LMCS_RECORDS_POLICY_H

#include "base/error.h"
#include "lmcstore.h"
#include "media/layout.h"

#define LMCS_DEFAULT_KEEP_RAW  4
#define LMCS_DEFAULT_CHAIN     3
#define LMCS_DEFAULT_LINKS     24  /* reads a step of 1 GiB in 4 s on one core: tools/bench.sh links */
#define LMCS_DEFAULT_RESTORE   1   /* seconds */
#define LMCS_DEFAULT_GRACE     600 /* seconds */
#define LMCS_MAX_RULES         12
#define LMCS_MAX_PARITY_DATA   128
#define LMCS_MAX_PARITY        16
#define LMCS_MAX_METRIC        64 /* bytes of a metric's name in a rule */

#define LMCS_DELTA_LEAST_BYTES 1024u /* smaller contents are not encoded: a frame's header would cost too much */
#define LMCS_DELTA_MOST_JUMP   8u    /* contents from a delta to its base */

enum lmcs_rule_kind { LMCS_RULE_LAST, LMCS_RULE_EVERY, LMCS_RULE_EACH, LMCS_RULE_BEST };

struct lmcs_rule {
    enum lmcs_rule_kind kind;
    bool greatest;   /* best */
    uint64_t count;  /* last, best: snapshots; every: steps; each: seconds */
    uint64_t within; /* every: among so many of the newest; each: seconds of age; 0: all */
    char metric[LMCS_MAX_METRIC + 1];
};

static inline bool lmcs_rule_needs_metric(const struct lmcs_rule *rule)
{
    return rule->kind == LMCS_RULE_BEST;
}

enum lmcs_write_as { LMCS_WRITE_AS_AUTO, LMCS_WRITE_AS_RAW, LMCS_WRITE_AS_LINK };

#define LMCS_LINKS_AUTO UINT32_MAX /* links= is not set: above every bound */

struct lmcs_policy {
    uint32_t keep_raw;
    uint32_t chain;
    uint32_t links;          /* most in a line, or LMCS_LINKS_AUTO; 0: no links. Read by the functions below */
    uint64_t budget_bytes;   /* 0: none */
    uint32_t budget_percent; /* of the pool's limit or disk; 0: none */
    uint64_t rate_bytes;     /* a second; 0: no limit */
    enum lmcs_write_as write;
    uint64_t restore_seconds; /* most to restore a GiB of the newest snapshot, on all cores; 0: no limit */
    uint64_t local;           /* newest snapshots that stay in the pool; 0: all */
    uint64_t scrub_seconds;   /* of a full background scrub; 0: none */
    bool parity_of_bases;     /* only of contents that others rest on, with a geometry by size (records/safety.h) */
    uint32_t parity_data;     /* else of all: units of data ... */
    uint32_t parity;          /* ... for this many of parity; 0: none */
    size_t rule_count;        /* 0: keep all */
    struct lmcs_rule rules[LMCS_MAX_RULES];
    uint64_t grace_seconds; /* after a change of rules or budget; 0: none */
    uint64_t since_seconds; /* since 1970: the change; 0: the background needs not wait */
    size_t was_count;       /* rules that also keep snapshots during the grace period; 0: keep all */
    struct lmcs_rule was[LMCS_MAX_RULES];
    char log[LMCS_MAX_POLICY + 1]; /* policy_log.c */
};

/* Most links in a line that the compactor makes. */
static inline uint32_t lmcs_policy_links(const struct lmcs_policy *policy)
{
    return policy->links == LMCS_LINKS_AUTO ? LMCS_DEFAULT_LINKS : policy->links;
}

/* Most links in a line that captures make. */
static inline uint32_t lmcs_policy_line_bound(const struct lmcs_policy *policy)
{
    return policy->links < LMCS_LINK_BOUND ? policy->links : LMCS_LINK_BOUND;
}

static inline bool lmcs_policy_has_parity(const struct lmcs_policy *policy)
{
    return policy->parity > 0 || policy->parity_of_bases;
}

void lmcs_policy_init(struct lmcs_policy *policy);
/* Changes the keys in `text`. LMCS_INVALID: nothing has changed; names the wrong word. */
enum lmcs_status lmcs_policy_parse(const char *text, struct lmcs_policy *policy, struct lmcs_error *error);
/* Leaves out optional keys with initial values. LMCS_INVALID: longer than LMCS_MAX_POLICY. */
enum lmcs_status lmcs_policy_format(const struct lmcs_policy *policy, char text[LMCS_MAX_POLICY + 1],
                                    struct lmcs_error *error);
/*
 * The text of a shelf's record: also has the words since= and was= of a grace period, and log= for each entry of the
 * log, which users can't set. If was= is too long, everything is kept during the period; the log's oldest entries are
 * left out.
 */
enum lmcs_status lmcs_policy_parse_stored(const char *text, struct lmcs_policy *policy, struct lmcs_error *error);
enum lmcs_status lmcs_policy_format_stored(const struct lmcs_policy *policy, char text[LMCS_MAX_POLICY + 1],
                                           struct lmcs_error *error);

/* "keep=" and the rules. LMCS_INVALID: too long. */
enum lmcs_status lmcs_policy_format_rules(const struct lmcs_policy *policy, char text[LMCS_MAX_POLICY + 1],
                                          struct lmcs_error *error);

/* ---- policy_log.c ---- */

/* Reads the entry at *at, and moves *at behind it. False: there is no whole entry. Does not check the rules. */
bool lmcs_policy_log_next(const char **at, struct lmcs_prune_event *event);
/* Records in policy->log that `rules` ("keep=last:10") removed these snapshots. */
void lmcs_policy_log_add(struct lmcs_policy *policy, const char *rules, const uint64_t *numbers, size_t count,
                         uint64_t now_ns);

/* ---- policy_grace.c ---- */

/* Sets since and was of `policy`, to which `before` has been changed. */
void lmcs_policy_begin_grace(const struct lmcs_policy *before, struct lmcs_policy *policy, uint64_t now_ns);
/* The end of the grace period, in ns since 1970; 0: none is running. */
uint64_t lmcs_policy_grace_end(const struct lmcs_policy *policy, uint64_t now_ns);
/* Begins a period now whose change is yet to come: the clock was ahead. False: none is such. */
bool lmcs_policy_renew_grace(struct lmcs_policy *policy, uint64_t now_ns);
/* Adds the rules before the change: those snapshots are kept that either keeps. */
void lmcs_policy_add_was(struct lmcs_policy *policy);

struct lmcs_policy_facts {
    uint64_t number;
    int64_t step; /* LMCS_NO_STEP: none */
    uint64_t time_ns;
    bool held;                      /* tagged, or the latest: always kept */
    bool is_part;                   /* of a group: only removed on request */
    double metrics[LMCS_MAX_RULES]; /* for rules best:, by index of the rule; NaN: none */
};

/*
 * kept[i]: the reason for keeping facts[i], or NULL. `facts` ascend by number. Adding a snapshot, or removing one that
 * is not kept, changes no other's reason, except by rules that compare (newest, best). If no fact has a number for the
 * metric of a rule, all are kept. LMCS_NO_MEMORY.
 */
enum lmcs_status lmcs_policy_keeps(const struct lmcs_policy *policy, const struct lmcs_policy_facts *facts,
                                   size_t count, uint64_t now_ns, const char **kept, struct lmcs_error *error);

#endif
