/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/scrub.c - reads what is stored and compares it with its checksums, all of it or a little at a time.
 *
 * Contents come in the order of their numbers; the root remembers where a sample ended, so that samples add up to a
 * pass over everything, however often the pool is opened. Each is pinned within a short transaction and looked at
 * outside of it (scan.c), so captures and the compactor go on. What is damaged is repaired at once (repair.c). Who has it
 * is found at the end, for all of them in one walk (holders.c).
 */
#include "repair/scrub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/grow.h"
#include "compact/parity.h"
#include "pages/tree.h"
#include "payload/layout.h"
#include "payload/scan.h"
#include "records/holders.h"
#include "records/policy.h"
#include "records/safety.h"
#include "records/shelf.h"
#include "repair/check.h"
#include "repair/repair.h"
#include "snapshots/snapshot.h"

#define AT_ONCE       256u
#define MOST_DAMAGES  100000u /* that are kept to be told of; all are counted */
#define LEAST_CONTENT 4096u   /* what a content counts for at least, of a budget */
#define SAVE_NS       ((uint64_t)60 * 1000000000)
#define ULL(n)        ((unsigned long long)(n))

struct damage {
    uint64_t content;
    uint64_t identity;
    uint64_t first_byte;
    uint64_t byte_count;
    enum lmcs_damage_state state;
    const char *what; /* constant */
    char source[LMCS_SOURCE_TEXT];
};

struct scrubbing {
    struct lmcs_pool *pool;
    const struct lmcs_scrub_options *options;
    struct lmcs_repairer *repairer; /* NULL: nothing is repaired */
    void (*visit)(void *context, const struct lmcs_scrub_damage *damage);
    void *context;
    const struct lmcs_progress *progress;
    struct lmcs_scrub_report report;
    uint64_t left; /* damages that were not repaired */
    struct damage *damages;
    size_t damage_count;
    size_t damage_capacity;
    uint64_t *ids; /* of addresses: what they need, ascending */
    size_t id_count;
    size_t id_capacity;
    uint64_t started_ns;
    uint64_t shown_bytes;
    bool stopped;
    bool serial;
    bool is_full; /* something could have been repaired, had there been room */
    struct lmcs_error full;
    bool (*go_on)(void *context, uint64_t bytes); /* the background's */
    void *go_on_context;
};

/* ---- Politeness ---- */

static bool show(struct scrubbing *s)
{
    const struct lmcs_progress *progress = s->progress;
    uint64_t done = s->report.bytes_read, total = s->report.bytes_total;
    if (progress != NULL && progress->call != NULL &&
        !progress->call(progress->context, "scrubbing", done < total ? done : total, total))
        s->stopped = true;
    s->shown_bytes = done;
    return !s->stopped;
}

/* Called for every block when this thread alone reads, and for every content. */
static bool pace(void *context, uint64_t bytes)
{
    struct scrubbing *s = context;
    s->report.bytes_read += bytes;
    if (s->go_on != NULL)
        return s->go_on(s->go_on_context, bytes);
    if (s->report.bytes_read - s->shown_bytes >= 16 * LMC_BLOCK_BYTES && !show(s))
        return false;
    double seconds = s->options->rate_bytes > 0 ? (double)s->report.bytes_read / (double)s->options->rate_bytes : 0;
    while (!s->stopped && (double)(lmcs_now_ns() - s->started_ns) / 1e9 < seconds) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        show(s);
    }
    return !s->stopped;
}

/* ---- Damages ---- */

static enum lmcs_status add_damage(struct scrubbing *s, const struct damage *damage, struct lmcs_error *error)
{
    s->report.damages++;
    s->report.repaired += damage->state == LMCS_DAMAGE_REPAIRED;
    s->left += damage->state != LMCS_DAMAGE_REPAIRED;
    if (s->visit == NULL || s->damage_count == MOST_DAMAGES)
        return LMCS_OK;
    if (!lmcs_grow(&s->damages, &s->damage_capacity, s->damage_count, sizeof *s->damages))
        return lmcs_fail_memory(error);
    s->damages[s->damage_count++] = *damage;
    return LMCS_OK;
}

/* Damage that is in no tensor is told at once. */
static void tell_metadata(struct scrubbing *s, const char *what, const char *shelf, uint64_t number)
{
    struct lmcs_holder holder = {.shelf = shelf, .tensor = "", .first = number, .last = number, .count = 1};
    struct lmcs_scrub_damage damage = {
        .what = what, .source = "", .holders = &holder, .holder_count = shelf[0] != '\0' && number != 0};
    s->report.damages++;
    s->left++;
    if (s->visit != NULL)
        s->visit(s->context, &damage);
}

/* What a scan found, and what came of repairing (NULL: it was not tried), one range of blocks of a kind after the other.
 */
static enum lmcs_status add_ranges(struct scrubbing *s, const struct lmcs_content *content,
                                   const struct lmcs_scan *scan, bool known_lost, const struct lmcs_repaired *repaired,
                                   struct lmcs_error *error)
{
    struct damage damage = {.content = content->id, .identity = content->df.identity, .what = scan->why};
    enum lmcs_status status = LMCS_OK;
    for (uint64_t i = 0, end; status == LMCS_OK && i < scan->blocks; i = end) {
        bool bad = scan->bad[i] != 0 || scan->head_is_bad;
        bool lost = bad && repaired != NULL && repaired->lost != NULL && repaired->lost[i] != 0;
        for (end = i + 1; end < scan->blocks; end++)
            if ((scan->bad[end] != 0 || scan->head_is_bad) != bad ||
                (bad && repaired != NULL && repaired->lost != NULL && (repaired->lost[end] != 0) != lost))
                break;
        if (!bad)
            continue;
        damage.first_byte = i * LMC_BLOCK_BYTES;
        damage.byte_count = (end - i) * LMC_BLOCK_BYTES;
        if (damage.byte_count > content->df.raw_bytes - damage.first_byte)
            damage.byte_count = content->df.raw_bytes - damage.first_byte;
        damage.state = repaired == NULL ? (known_lost ? LMCS_DAMAGE_LOST : LMCS_DAMAGE_FOUND)
                       : lost           ? LMCS_DAMAGE_LOST
                                        : LMCS_DAMAGE_REPAIRED;
        if (scan->head_is_bad && scan->bad_count < scan->blocks)
            damage.what = "the checksums of its blocks are damaged";
        snprintf(damage.source, sizeof damage.source, "%s",
                 damage.state == LMCS_DAMAGE_REPAIRED ? repaired->source : "");
        status = add_damage(s, &damage, error);
    }
    return status;
}

/* ---- One content ---- */

struct held {
    struct lmcs_content content;
    struct lmcs_identity identity;
    struct lmcs_parity_record parity;
    bool has_parity;
    bool is_lost;
};

static void let_go(struct scrubbing *s, const struct held *held)
{
    lmcs_payload_unpin(s->pool->lease, &held->content);
    if (held->has_parity)
        lmcs_parity_unpin(s->pool, &held->parity);
}

static enum lmcs_status hold(struct scrubbing *s, uint64_t id, struct held *held, bool *found, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_content_find(&txn, id, &held->content, found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_identity_get(&txn, held->content.df.identity, &held->identity, error);
    if (status == LMCS_OK && *found)
        status = lmcs_lost_any(&txn, id, &held->is_lost, error);
    if (status == LMCS_OK && *found)
        status = lmcs_parity_find(&txn, id, &held->parity, &held->has_parity, error);
    if (status == LMCS_OK && *found)
        status = lmcs_payload_pin(s->pool->lease, &held->content, error);
    if (status == LMCS_OK && *found && held->has_parity) {
        status = lmcs_parity_pin(s->pool, &held->parity, error);
        if (status != LMCS_OK)
            lmcs_payload_unpin(s->pool->lease, &held->content);
    }
    lmcs_txn_end(&txn);
    return status;
}

/* There may be room for others. */
static enum lmcs_status note_full(struct scrubbing *s, const struct lmcs_error *error)
{
    s->full = *error;
    s->is_full = true;
    return LMCS_OK;
}

static enum lmcs_status repair(struct scrubbing *s, const struct held *held, const struct lmcs_scan *scan,
                               bool *is_whole, struct lmcs_error *error)
{
    struct lmcs_repaired repaired = {.is_whole = false, .lost = NULL};
    enum lmcs_status status = LMCS_OK;
    bool tried = s->repairer != NULL;
    if (tried)
        status = lmcs_repair(s->repairer, held->content.id, &repaired, error);
    if (status == LMCS_FULL) {
        status = note_full(s, error);
        tried = false;
    }
    if (status == LMCS_OK)
        status = add_ranges(s, &held->content, scan, held->is_lost, tried ? &repaired : NULL, error);
    *is_whole = status == LMCS_OK && tried && repaired.is_whole;
    free(repaired.lost);
    return status;
}

/* Parity that is damaged itself is made anew. */
static enum lmcs_status look_at_parity(struct scrubbing *s, const struct held *held, struct lmcs_error *error)
{
    bool sound = true;
    struct damage damage = {.content = held->content.id,
                            .identity = held->content.df.identity,
                            .what = "its parity is damaged; the tensor itself is not"};
    enum lmcs_status status =
        held->has_parity ? lmcs_parity_look(s->pool, held->content.id, &held->parity, &sound, error) : LMCS_OK;
    if (held->has_parity)
        pace(s, lmcs_parity_bytes(&held->parity));
    if (status != LMCS_OK || sound)
        return status;
    if (s->repairer != NULL) {
        bool made = false;
        status =
            lmcs_parity_make(s->pool, held->content.id, held->parity.df.data, held->parity.df.parity, &made, error);
        if (status == LMCS_FULL)
            status = note_full(s, error);
        damage.state = made ? LMCS_DAMAGE_REPAIRED : LMCS_DAMAGE_FOUND;
        snprintf(damage.source, sizeof damage.source, "%s", made ? "the tensor" : "");
    }
    return status == LMCS_OK ? add_damage(s, &damage, error) : status;
}

/* What was repaired from elsewhere may have parity that is damaged as well, and would be of no use the next time. */
static enum lmcs_status look_at_parity_left(struct scrubbing *s, struct held *held, struct lmcs_error *error)
{
    bool found = false;
    enum lmcs_status status = hold(s, held->content.id, held, &found, error);
    if (status != LMCS_OK || !found)
        return status;
    status = look_at_parity(s, held, error);
    let_go(s, held);
    return status;
}

static enum lmcs_status look_at(struct scrubbing *s, uint64_t id, bool *found, struct lmcs_error *error)
{
    struct held *held = malloc(sizeof *held);
    struct lmcs_scan scan = {.blocks = 0};
    if (held == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = hold(s, id, held, found, error);
    if (status != LMCS_OK || !*found) {
        free(held);
        return status;
    }
    struct lmcs_bytes bytes = lmcs_bytes_of_pool(s->pool->media, &held->content);
    bool serial = s->serial || s->options->rate_bytes > 0;
    bytes.go_on = serial ? pace : NULL;
    bytes.context = s;
    status = lmcs_scan(&bytes, &held->content, &held->identity, serial ? NULL : s->pool->workers, &scan, error);
    if (status == LMCS_OK && !serial)
        pace(s, held->content.df.stored_bytes);
    if (status == LMCS_OK && lmcs_scan_is_clean(&scan))
        status = look_at_parity(s, held, error);
    let_go(s, held);
    bool is_whole = false;
    if (status == LMCS_OK && (!lmcs_scan_is_clean(&scan) || (held->is_lost && s->repairer != NULL)))
        status = repair(s, held, &scan, &is_whole, error);
    if (status == LMCS_OK && is_whole && !lmcs_scan_is_clean(&scan))
        status = look_at_parity_left(s, held, error);
    s->report.contents += status == LMCS_OK;
    lmcs_scan_free(&scan);
    free(held);
    return status;
}

/* A record that can't be believed is damage like any other. */
static enum lmcs_status scrub_one(struct scrubbing *s, uint64_t id, struct lmcs_error *error)
{
    bool found = false;
    enum lmcs_status status = look_at(s, id, &found, error);
    if (status == LMCS_DAMAGED) {
        char what[1024];
        snprintf(what, sizeof what, "%s", error->message);
        tell_metadata(s, what, "", 0);
        status = LMCS_OK;
    }
    if (status == LMCS_OK && s->stopped)
        status = lmcs_fail(error, LMCS_CANCELLED, 0, "%s: the scrub was stopped before its end", s->pool->path);
    return status;
}

/* ---- What is to be looked at ---- */

/* Numbers of contents from `first` on; fewer than AT_ONCE at the end. */
static enum lmcs_status list_contents(struct lmcs_pool *pool, uint64_t first, uint64_t ids[AT_ONCE], size_t *count,
                                      struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    *count = 0;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_txn_read(pool, &txn, error);
    if (status == LMCS_OK) {
        status = lmcs_cursor_seek(cursor, &txn, LMCS_TREE_CONTENTS, &txn.root.trees[LMCS_TREE_CONTENTS],
                                  (struct lmcs_key_df){first, 0}, error);
        while (status == LMCS_OK && lmcs_cursor_valid(cursor) && *count < AT_ONCE) {
            ids[(*count)++] = lmcs_cursor_key(cursor).high;
            status = lmcs_cursor_next(cursor, error);
        }
        lmcs_txn_end(&txn);
    }
    lmcs_cursor_free(cursor);
    return status;
}

static enum lmcs_status add_id(struct scrubbing *s, uint64_t id, struct lmcs_error *error)
{
    if (!lmcs_grow(&s->ids, &s->id_capacity, s->id_count, sizeof *s->ids))
        return lmcs_fail_memory(error);
    s->ids[s->id_count++] = id;
    return LMCS_OK;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Ascending, and each once. */
static void sort_ids(struct scrubbing *s)
{
    size_t kept = 0;
    if (s->id_count > 1)
        qsort(s->ids, s->id_count, sizeof *s->ids, by_value);
    for (size_t i = 0; i < s->id_count; i++)
        if (kept == 0 || s->ids[kept - 1] != s->ids[i])
            s->ids[kept++] = s->ids[i];
    s->id_count = kept;
}

static enum lmcs_status add_entry(void *context, uint64_t identity, const struct lmcs_manifest_df *entry, bool *stop,
                                  struct lmcs_error *error)
{
    struct scrubbing *s = context;
    (void)identity;
    (void)stop;
    return add_id(s, entry->content, error);
}

/* What stands in the manifests of a shelf's snapshots. */
static enum lmcs_status add_snapshots(struct scrubbing *s, struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                      uint64_t first, uint64_t last, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint64_t number = first - (first > 0); status == LMCS_OK;) {
        struct lmcs_record record;
        bool found = false;
        status = lmcs_record_after(txn, shelf, number, &number, error);
        if (status != LMCS_OK || number == 0 || number > last)
            break;
        status = lmcs_record_get(txn, shelf, number, &record, &found, error);
        if (status == LMCS_OK && found)
            status = lmcs_manifest_each(txn, &record, add_entry, s, error);
        if (s->id_count > (size_t)1 << 20)
            sort_ids(s);
    }
    return status;
}

static enum lmcs_status add_address(struct scrubbing *s, struct lmcs_txn *txn, const char *address,
                                    struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    uint64_t first = 1, last = UINT64_MAX;
    const char *at = strchr(address, '@');
    char *name = at == NULL ? strdup(address) : strndup(address, (size_t)(at - address));
    if (name == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_shelf_get(txn, name, &shelf, error);
    free(name);
    if (status == LMCS_OK && at != NULL)
        status = lmcs_shelf_resolve_range(txn, &shelf, at + 1, &first, &last, error);
    return status == LMCS_OK ? add_snapshots(s, txn, &shelf, first, last, error) : status;
}

struct ids {
    uint64_t *at;
    size_t count;
    size_t capacity;
};

/* Ids of `found` that are in it once, and not among those of the scrub. */
static void only_new(const struct scrubbing *s, struct ids *found)
{
    size_t kept = 0;
    if (found->count > 1)
        qsort(found->at, found->count, sizeof *found->at, by_value);
    for (size_t i = 0; i < found->count; i++) {
        bool again = kept > 0 && found->at[kept - 1] == found->at[i];
        if (!again && bsearch(&found->at[i], s->ids, s->id_count, sizeof *s->ids, by_value) == NULL)
            found->at[kept++] = found->at[i];
    }
    found->count = kept;
}

/* Adds what a content rests on, directly. */
static enum lmcs_status add_bases_of(struct scrubbing *s, struct lmcs_txn *txn, uint64_t id, struct ids *found,
                                     struct lmcs_error *error)
{
    struct lmcs_content content;
    bool is_there;
    enum lmcs_status status = lmcs_content_find(txn, id, &content, &is_there, error);
    if (status != LMCS_OK || !is_there)
        return status == LMCS_DAMAGED ? LMCS_OK : status; /* told when its turn comes */
    s->report.bytes_total += content.df.stored_bytes;
    uint64_t link = content.df.payload == LMCS_PAYLOAD_LINKED ? content.link : 0;
    for (size_t i = 0; i < content.df.base_count + (size_t)(link != 0); i++) {
        if (!lmcs_grow(&found->at, &found->capacity, found->count, sizeof *found->at))
            return lmcs_fail_memory(error);
        found->at[found->count++] = i < content.df.base_count ? content.bases[i] : link;
    }
    return LMCS_OK;
}

/* What the contents rest on is scrubbed as well: first their bases, then the bases of these. */
static enum lmcs_status add_bases(struct scrubbing *s, struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct ids now = {NULL, 0, 0}, next = {NULL, 0, 0};
    enum lmcs_status status = LMCS_OK;
    sort_ids(s);
    for (size_t i = 0; status == LMCS_OK && i < s->id_count; i++)
        status = add_bases_of(s, txn, s->ids[i], &now, error);
    only_new(s, &now);
    for (unsigned i = 0; status == LMCS_OK && now.count > 0 && i < LMCS_DEEPEST; i++) {
        next.count = 0;
        for (size_t k = 0; status == LMCS_OK && k < now.count; k++) {
            status = add_id(s, now.at[k], error);
            if (status == LMCS_OK)
                status = add_bases_of(s, txn, now.at[k], &next, error);
        }
        sort_ids(s);
        only_new(s, &next);
        struct ids swapped = now;
        now = next;
        next = swapped;
    }
    free(now.at);
    free(next.at);
    return status;
}

static enum lmcs_status scrub_addresses(struct scrubbing *s, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < s->options->address_count; i++)
        status = add_address(s, &txn, s->options->addresses[i], error);
    if (status == LMCS_OK)
        status = add_bases(s, &txn, error);
    lmcs_txn_end(&txn);
    show(s);
    for (size_t i = 0; status == LMCS_OK && i < s->id_count; i++)
        status = scrub_one(s, s->ids[i], error);
    return status;
}

/* ---- Passes ---- */

/* What is remembered of a pass, in the root. */
struct pass {
    uint64_t next;
    uint64_t begun_ns;
    uint64_t bytes;
    uint64_t found;
    uint64_t repaired;
    bool ended;
};

static struct pass pass_of(const struct lmcs_root_df *root)
{
    struct pass pass = {root->scrub_next, root->scrub_begun_ns, root->scrub_bytes, 0, 0, false};
    if (pass.next != 0) {
        pass.found = root->scrub_found;
        pass.repaired = root->scrub_repaired;
    }
    return pass;
}

static enum lmcs_status save_pass(struct lmcs_pool *pool, const struct pass *pass, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    txn.root.scrub_next = pass->next;
    txn.root.scrub_begun_ns = pass->begun_ns;
    txn.root.scrub_bytes = pass->bytes;
    txn.root.scrub_found = pass->found;
    txn.root.scrub_repaired = pass->repaired;
    if (pass->ended)
        txn.root.scrub_done_ns = lmcs_now_ns();
    return lmcs_txn_commit(&txn, error);
}

/* Contents from pass->next on, until so much has been read or all have. */
static enum lmcs_status scrub_from(struct scrubbing *s, struct pass *pass, uint64_t most_bytes,
                                   struct lmcs_error *error)
{
    uint64_t ids[AT_ONCE], read_before = s->report.bytes_read;
    size_t count = AT_ONCE;
    enum lmcs_status status = LMCS_OK;
    pass->ended = false;
    for (bool wraps = false; status == LMCS_OK && count == AT_ONCE && !wraps;) {
        status = list_contents(s->pool, pass->next, ids, &count, error);
        for (size_t i = 0; status == LMCS_OK && i < count; i++) {
            if (s->report.bytes_read - read_before >= most_bytes) {
                pass->next = ids[i];
                return LMCS_OK;
            }
            status = scrub_one(s, ids[i], error);
            if (status == LMCS_OK)
                pass->next = ids[i] + 1;
            wraps = ids[i] == UINT64_MAX;
        }
    }
    pass->ended = status == LMCS_OK;
    return status;
}

static void tell_structure(void *context, const struct lmcs_damage *damage)
{
    tell_metadata(context, damage->what, damage->shelf, damage->number);
}

static enum lmcs_status scrub_metadata(struct scrubbing *s, struct lmcs_error *error)
{
    struct lmcs_structure structure;
    char what[96];
    enum lmcs_status status = s->repairer != NULL
                                  ? lmcs_structure_repair(s->pool, tell_structure, s, &structure, error)
                                  : lmcs_structure_check(s->pool, NULL, tell_structure, s, &structure, error);
    snprintf(what, sizeof what, "%llu page%s of metadata %s damaged", ULL(structure.repaired_pages),
             structure.repaired_pages == 1 ? "" : "s", structure.repaired_pages == 1 ? "was" : "were");
    if (structure.repaired_pages > 0) {
        struct lmcs_scrub_damage damage = {.state = LMCS_DAMAGE_REPAIRED, .what = what, .source = "the other replica"};
        s->report.damages++;
        s->report.repaired++;
        if (s->visit != NULL)
            s->visit(s->context, &damage);
    }
    lmcs_structure_free(&structure);
    return status;
}

static enum lmcs_status scrub_pass(struct scrubbing *s, struct lmcs_error *error)
{
    const struct lmcs_scrub_options *options = s->options;
    struct lmcs_txn txn;
    struct lmcs_error ignored;
    bool whole = options->sample_bytes == 0 && !(options->sample_share > 0 && options->sample_share < 1);
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    struct pass pass = pass_of(&txn.root);
    uint64_t most = UINT64_MAX, contents = txn.root.next_content;
    s->report.bytes_total = txn.root.live_bytes;
    lmcs_txn_end(&txn);
    if (!whole)
        most = options->sample_bytes > 0 ? options->sample_bytes
                                         : (uint64_t)((double)s->report.bytes_total * options->sample_share) + 1;
    if (!whole && most < s->report.bytes_total)
        s->report.bytes_total = most;
    if (whole || pass.next == 0)
        pass = (struct pass){.begun_ns = lmcs_now_ns()};
    if (!whole && s->pool->heap == NULL && contents > 0) { /* nothing can be remembered: anywhere */
        uint64_t now = lmcs_now_ns();
        pass = (struct pass){.next = lmc_hash64(&now, sizeof now, 0) % contents};
    }
    show(s);
    if (whole)
        status = scrub_metadata(s, error);
    if (status == LMCS_OK)
        status = scrub_from(s, &pass, most, error);
    if (status == LMCS_OK)
        show(s);
    pass.bytes += s->report.bytes_read;
    pass.found += s->report.damages;
    pass.repaired += s->report.repaired;
    s->report.is_whole = pass.ended && (whole || s->pool->heap != NULL);
    if (pass.ended)
        pass.next = 0;
    if (s->pool->heap != NULL && (status == LMCS_OK || status == LMCS_CANCELLED)) {
        enum lmcs_status saved = save_pass(s->pool, &pass, status == LMCS_OK ? error : &ignored);
        status = status == LMCS_OK ? saved : status;
    }
    return status;
}

/* ---- Telling ---- */

/* A name for each identity that is among the holders. */
static enum lmcs_status fill_holders(struct scrubbing *s, const struct lmcs_holders *found, size_t first, size_t count,
                                     struct lmcs_holder *holders, char (*names)[LMCS_MAX_NAME + 1],
                                     struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        const struct lmcs_found_holder *item = &found->items[first + i];
        struct lmcs_identity identity;
        struct lmcs_error ignored;
        bool known = lmcs_identity_get(&txn, item->identity, &identity, &ignored) == LMCS_OK;
        snprintf(names[i], sizeof names[i], "%s", known ? identity.name : "");
        holders[i] = (struct lmcs_holder){.shelf = found->shelf_names[item->shelf],
                                          .tensor = names[i],
                                          .kind = known ? identity.df.kind : LMCS_TENSOR,
                                          .first = item->first,
                                          .last = item->last,
                                          .count = item->count};
    }
    lmcs_txn_end(&txn);
    return LMCS_OK;
}

static enum lmcs_status tell(struct scrubbing *s, const struct damage *damage, const struct lmcs_holder *holders,
                             size_t holder_count, struct lmcs_error *error)
{
    struct lmcs_identity identity;
    struct lmcs_tensor tensor;
    struct lmcs_txn txn;
    struct lmcs_error ignored;
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    bool known = lmcs_identity_get(&txn, damage->identity, &identity, &ignored) == LMCS_OK;
    lmcs_txn_end(&txn);
    struct lmcs_scrub_damage told = {.state = damage->state,
                                     .what = damage->what,
                                     .source = damage->source,
                                     .content = damage->content,
                                     .first_byte = damage->first_byte,
                                     .byte_count = damage->byte_count,
                                     .holders = holders,
                                     .holder_count = holder_count};
    if (known) {
        lmcs_identity_tensor(&identity, &tensor);
        uint64_t size = lmc_dtype_size(tensor.dtype), raw = 0, end = damage->first_byte + damage->byte_count;
        lmcs_shape_bytes(tensor.dtype, tensor.ndim, tensor.shape, &raw);
        uint64_t row = tensor.ndim > 0 && tensor.shape[0] > 0 ? raw / tensor.shape[0] : 0;
        told.tensor = &tensor;
        told.first_element = damage->first_byte / size;
        told.element_count = damage->byte_count > 0 ? (end - 1) / size - told.first_element + 1 : 0;
        told.first_row = row > 0 ? damage->first_byte / row : 0;
        told.row_count = row > 0 && damage->byte_count > 0 ? (end - 1) / row - told.first_row + 1 : 0;
    }
    s->visit(s->context, &told);
    return LMCS_OK;
}

static enum lmcs_status tell_all(struct scrubbing *s, struct lmcs_error *error)
{
    struct lmcs_holders found = {0};
    size_t unique = 0;
    bool whole;
    if (s->damage_count == 0)
        return LMCS_OK;
    uint64_t *contents = malloc(s->damage_count * sizeof *contents);
    if (contents == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < s->damage_count; i++)
        if (unique == 0 || contents[unique - 1] != s->damages[i].content) /* those of one content come together */
            contents[unique++] = s->damages[i].content;
    enum lmcs_status status = lmcs_holders_find(s->pool, contents, unique, &found, &whole, error);
    for (size_t i = 0, root = 0, at = 0; status == LMCS_OK && i < s->damage_count; i++) {
        root += contents[root] != s->damages[i].content;
        while (at < found.count && found.items[at].root < root)
            at++;
        size_t count = 0;
        while (at + count < found.count && found.items[at + count].root == root)
            count++;
        struct lmcs_holder *holders = malloc((count + 1) * sizeof *holders);
        char(*names)[LMCS_MAX_NAME + 1] = malloc((count + 1) * sizeof *names);
        status = holders == NULL || names == NULL ? lmcs_fail_memory(error)
                                                  : fill_holders(s, &found, at, count, holders, names, error);
        if (status == LMCS_OK)
            status = tell(s, &s->damages[i], holders, count, error);
        free(holders);
        free(names);
    }
    lmcs_holders_free(&found);
    free(contents);
    return status;
}

/* ---- lmcs_scrub ---- */

void lmcs_scrub_options_init(struct lmcs_scrub_options *options)
{
    *options = (struct lmcs_scrub_options){.address_count = 0};
}

static enum lmcs_status count_lost(struct scrubbing *s, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(s->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    s->report.lost = txn.root.lost_contents;
    lmcs_txn_end(&txn);
    return LMCS_OK;
}

static enum lmcs_status check_options(struct lmcs_pool *pool, const struct lmcs_scrub_options *options,
                                      struct lmcs_error *error)
{
    if (!(options->sample_share >= 0 && options->sample_share <= 1))
        return lmcs_fail(error, LMCS_INVALID, 0, "a sample is a share from 0 to 1");
    if (options->from_count > 0 && !options->repair)
        return lmcs_fail(error, LMCS_INVALID, 0, "sources are for repair");
    return lmcs_pool_check(pool, options->repair, error);
}

static bool show_parity(void *context, uint64_t bytes)
{
    struct scrubbing *s = context;
    (void)bytes;
    return show(s);
}

/* What policies want parity of, the newest snapshots included: nothing else is going on with them now. */
static enum lmcs_status make_parity(struct scrubbing *s, struct lmcs_error *error)
{
    const struct lmcs_parity_turn turn = {.all = true, .go_on = show_parity, .context = s};
    bool worked;
    enum lmcs_status status = lmcs_parity_turn(s->pool, &turn, &worked, error);
    if (status == LMCS_OK && s->stopped)
        status = lmcs_fail(error, LMCS_CANCELLED, 0, "%s: the scrub was stopped before its end", s->pool->path);
    return status;
}

/* Sources that could not be read are said at the end, with what there is to say without them. */
static enum lmcs_status say_unread(struct scrubbing *s, enum lmcs_status status, struct lmcs_error *error)
{
    const struct lmcs_unread *unread = lmcs_repairer_unread(s->repairer);
    s->report.sources_unread = unread->count;
    if (unread->count == 0)
        return status;
    if (status != LMCS_OK && status != LMCS_DAMAGED) {
        lmcs_error_append(error, "; %s", unread->error.message);
        return status;
    }
    *error = unread->error;
    lmcs_error_append(error, "; without %s: %llu damage%s found, %llu repaired", unread->count == 1 ? "it" : "them",
                      ULL(s->report.damages), s->report.damages == 1 ? "" : "s", ULL(s->report.repaired));
    return error->status;
}

enum lmcs_status lmcs_scrub(struct lmcs_pool *pool, const struct lmcs_scrub_options *options,
                            void (*visit)(void *context, const struct lmcs_scrub_damage *damage), void *context,
                            const struct lmcs_progress *progress, struct lmcs_scrub_report *report,
                            struct lmcs_error *error)
{
    struct lmcs_scrub_options defaults;
    struct lmcs_error local;
    lmcs_scrub_options_init(&defaults);
    struct scrubbing s = {.pool = pool,
                          .options = options != NULL ? options : &defaults,
                          .visit = visit,
                          .context = context,
                          .progress = progress,
                          .started_ns = lmcs_now_ns()};
    options = s.options;
    enum lmcs_status status = check_options(pool, options, &local);
    if (status == LMCS_OK && options->repair)
        status = lmcs_repairer_open(pool, options->from, options->from_count, &s.repairer, &local);
    const bool begun = status == LMCS_OK;
    if (begun)
        status = options->address_count > 0 ? scrub_addresses(&s, &local) : scrub_pass(&s, &local);
    if (status == LMCS_OK && options->repair && options->address_count == 0 && s.report.is_whole)
        status = make_parity(&s, &local);
    if (status == LMCS_OK && s.is_full) {
        status = LMCS_FULL;
        local = s.full;
    }
    if (begun) { /* what was found is told, whatever ended it */
        struct lmcs_error later;
        enum lmcs_status told = tell_all(&s, &later);
        if (told == LMCS_OK)
            told = count_lost(&s, &later);
        if (status == LMCS_OK && told != LMCS_OK) {
            status = told;
            local = later;
        }
    }
    if (status == LMCS_OK && s.left > 0)
        status = lmcs_fail(&local, LMCS_DAMAGED, 0, "%s: %llu damage%s found, %llu repaired", pool->path,
                           ULL(s.report.damages), s.report.damages == 1 ? "" : "s", ULL(s.report.repaired));
    if (s.repairer != NULL)
        status = say_unread(&s, status, &local);
    lmcs_repairer_close(s.repairer);
    free(s.damages);
    free(s.ids);
    if (report != NULL)
        *report = s.report;
    if (status != LMCS_OK && error != NULL)
        *error = local;
    return status;
}

/* ---- In the background ---- */

/*
 * The shortest time that a policy gives for all to be read once (0: none does), and what a pass counts for. Of what
 * shelf the policy can't be read is said at the end, LMCS_DAMAGED: what the others' ask for holds.
 */
static enum lmcs_status find_period(struct lmcs_pool *pool, uint64_t *seconds, uint64_t *pass_bytes,
                                    struct lmcs_error *error)
{
    struct lmcs_txn txn;
    uint64_t ids[64], first = 0;
    size_t got = 64;
    struct lmcs_passed passed = {.any = false};
    *seconds = 0;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    *pass_bytes = txn.root.live_bytes + (1 + txn.root.trees[LMCS_TREE_CONTENTS].count) * LEAST_CONTENT;
    while (status == LMCS_OK && got == 64) {
        status = lmcs_shelf_ids(&txn, first, ids, 64, &got, error);
        for (size_t i = 0; status == LMCS_OK && i < got; i++) {
            struct lmcs_shelf shelf;
            struct lmcs_policy policy = {.scrub_seconds = 0};
            status = lmcs_shelf_load(&txn, ids[i], &shelf, error);
            if (status == LMCS_OK)
                lmcs_shelf_policy(&shelf, &policy);
            if (policy.scrub_seconds > 0 && (*seconds == 0 || policy.scrub_seconds < *seconds))
                *seconds = policy.scrub_seconds;
            status = lmcs_pass_over(&passed, status, error);
        }
        first = got > 0 ? ids[got - 1] + 1 : 0;
    }
    lmcs_txn_end(&txn);
    return lmcs_passed_over(&passed, status, error);
}

static void load_turn(struct lmcs_pool *pool, struct lmcs_scrub_turn *turn, uint64_t now)
{
    pthread_rwlock_rdlock(&pool->meta);
    struct pass pass = pass_of(&pool->root);
    pthread_rwlock_unlock(&pool->meta);
    *turn = (struct lmcs_scrub_turn){.is_loaded = true,
                                     .next = pass.next,
                                     .begun_ns = pass.begun_ns,
                                     .bytes = pass.bytes,
                                     .found = pass.found,
                                     .repaired = pass.repaired,
                                     .at_ns = now,
                                     .saved_ns = now};
}

static enum lmcs_status save_turn(struct lmcs_pool *pool, struct lmcs_scrub_turn *turn, bool ended,
                                  struct lmcs_error *error)
{
    struct pass pass = {turn->next, turn->begun_ns, turn->bytes, turn->found, turn->repaired, ended};
    turn->saved_ns = lmcs_now_ns();
    return save_pass(pool, &pass, error);
}

enum lmcs_status lmcs_scrub_turn(struct lmcs_pool *pool, struct lmcs_scrub_turn *turn,
                                 bool (*go_on)(void *context, uint64_t bytes), void *context, struct lmcs_error *error)
{
    struct lmcs_scrub_options options;
    uint64_t seconds, pass_bytes = 0, now = lmcs_now_ns();
    struct lmcs_passed passed = {.any = false};
    enum lmcs_status status = lmcs_pass_over(&passed, find_period(pool, &seconds, &pass_bytes, error), error);
    if (status != LMCS_OK || seconds == 0) {
        turn->is_loaded = false;
        return lmcs_passed_over(&passed, status, error);
    }
    if (!turn->is_loaded)
        load_turn(pool, turn, now);
    if (now < turn->at_ns) /* the clock was set */
        turn->at_ns = now;
    turn->due_bytes += (double)pass_bytes / (double)seconds * ((double)(now - turn->at_ns) / 1e9);
    turn->at_ns = now;
    if (turn->due_bytes <= 0)
        return lmcs_passed_over(&passed, LMCS_OK, error);
    lmcs_scrub_options_init(&options);
    struct scrubbing s = {
        .pool = pool, .options = &options, .serial = true, .go_on = go_on, .go_on_context = context, .started_ns = now};
    struct pass pass = {.next = turn->next};
    uint64_t pieces = turn->next == 0; /* the pass itself, too: one over nothing would be due again at each turn */
    status = lmcs_repairer_open(pool, NULL, 0, &s.repairer, error);
    if (status == LMCS_OK && turn->next == 0) { /* a new pass */
        turn->begun_ns = now;
        turn->bytes = turn->found = turn->repaired = 0;
        status = scrub_metadata(&s, error);
    }
    if (status == LMCS_OK)
        status = scrub_from(&s, &pass, (uint64_t)turn->due_bytes + 1, error);
    lmcs_repairer_close(s.repairer);
    pieces += s.report.contents;
    turn->due_bytes -= (double)(s.report.bytes_read + pieces * LEAST_CONTENT);
    turn->next = pass.ended ? 0 : pass.next;
    turn->bytes += s.report.bytes_read;
    turn->found += s.report.damages;
    turn->repaired += s.report.repaired;
    if (pass.ended && turn->due_bytes > 0)
        turn->due_bytes = 0;
    if (status == LMCS_OK && (pass.ended || s.report.damages > 0 || now - turn->saved_ns >= SAVE_NS))
        status = save_turn(pool, turn, pass.ended, error);
    return lmcs_passed_over(&passed, status, error);
}

enum lmcs_status lmcs_scrub_chain(struct lmcs_pool *pool, uint64_t content, struct lmcs_error *error)
{
    struct lmcs_repairer *repairer = NULL;
    struct lmcs_chain *chain = malloc(sizeof *chain);
    struct lmcs_txn txn;
    struct lmcs_content found_content;
    bool found = false;
    if (chain == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status == LMCS_OK) {
        status = lmcs_content_find(&txn, content, &found_content, &found, error);
        if (status == LMCS_OK && found)
            status = lmcs_chain_load(&txn, content, chain, error);
        lmcs_txn_end(&txn);
    }
    if (status == LMCS_OK && found)
        status = lmcs_repairer_open(pool, NULL, 0, &repairer, error);
    for (size_t i = 0; status == LMCS_OK && found && i < chain->length; i++) {
        struct lmcs_repaired repaired = {.lost = NULL};
        status = lmcs_repair(repairer, chain->links[i].id, &repaired, error);
        free(repaired.lost);
    }
    lmcs_repairer_close(repairer);
    free(chain);
    return status;
}

void lmcs_scrub_state(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_pool_info *info)
{
    (void)pool;
    info->scrubbed_ns = root->scrub_done_ns;
    info->scrub_found = root->scrub_found;
    info->scrub_repaired = root->scrub_repaired;
    info->scrub_share =
        root->scrub_next == 0 || root->live_bytes == 0 ? 0 : (double)root->scrub_bytes / (double)root->live_bytes;
    if (info->scrub_share > 1)
        info->scrub_share = 1;
}
