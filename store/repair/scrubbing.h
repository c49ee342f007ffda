/* SPDX-License-Identifier: BSD-3-Clause */
/* repair/scrubbing.h - the state of a scrub (private to repair/). */
#ifndef LMCS_REPAIR_SCRUBBING_H
#define LMCS_REPAIR_SCRUBBING_H

#include "pages/pool.h"
#include "payload/scan.h"
#include "repair/repair.h"
#include "repair/scrub.h"

#define ULL(n) ((unsigned long long)(n))

/* A range of damaged blocks. */
struct lmcs_scrub_finding {
    uint64_t content;
    uint64_t identity;
    uint64_t first_byte;
    uint64_t byte_count;
    enum lmcs_damage_state state;
    const char *what; /* a constant string */
    char source[LMCS_SOURCE_TEXT];
};

struct lmcs_scrubbing {
    struct lmcs_pool *pool;
    const struct lmcs_scrub_options *options;
    struct lmcs_sources *sources; /* NULL: no repair */
    lmcs_check_look *look;        /* NULL: a background scrub */
    void (*visit)(void *context, const struct lmcs_scrub_damage *damage);
    void *context;
    const struct lmcs_progress *progress;
    struct lmcs_scrub_report report;
    uint64_t left; /* not repaired */
    struct lmcs_scrub_finding *findings;
    size_t finding_count;
    size_t finding_capacity;
    uint64_t *ids; /* of addresses, ascending */
    size_t id_count;
    size_t id_capacity;
    uint64_t started_ns;
    uint64_t shown_bytes;
    bool stopped;
    bool serial;
    bool is_full; /* a repair lacked room, with this error: */
    struct lmcs_error full;
    bool (*go_on)(void *context, uint64_t bytes); /* of the background scrub */
    void *go_on_context;
};

/* ---- scrub_content.c, scrub_scope.c, scrub_pass.c ---- */

/* Scrubs one content; reports damaged and newer records. */
enum lmcs_status lmcs_scrub_content(struct lmcs_scrubbing *s, uint64_t id, struct lmcs_error *error);
enum lmcs_status lmcs_scrub_addresses(struct lmcs_scrubbing *s, struct lmcs_error *error);
/* Runs a whole pass, or a sample. */
enum lmcs_status lmcs_scrub_pass(struct lmcs_scrubbing *s, struct lmcs_error *error);

/* ---- scrub_report.c ---- */

/* False: the callback asked to stop. */
bool lmcs_scrub_show(struct lmcs_scrubbing *s);
/* Counts bytes read and waits for the rate; false: stop. Called per content, and per block if only one thread reads. */
bool lmcs_scrub_pace(void *context, uint64_t bytes);

enum lmcs_status lmcs_scrub_add_damage(struct lmcs_scrubbing *s, const struct lmcs_scrub_finding *finding,
                                       struct lmcs_error *error);
/* Adds each range of bad blocks. `repaired` NULL: no repair was tried. */
enum lmcs_status lmcs_scrub_add_ranges(struct lmcs_scrubbing *s, const struct lmcs_content *content,
                                       const struct lmcs_scan *scan, bool known_lost,
                                       const struct lmcs_repaired *repaired, struct lmcs_error *error);
/* Reports at once: damage outside of tensors (LMCS_DAMAGED), or a newer record or payload (LMCS_UNSUPPORTED). `shelf`
 * "", `number` 0: none. */
void lmcs_scrub_report_metadata(struct lmcs_scrubbing *s, enum lmcs_status status, const char *what, const char *shelf,
                                uint64_t number);
enum lmcs_status lmcs_scrub_report_all(struct lmcs_scrubbing *s, struct lmcs_error *error);

#endif
