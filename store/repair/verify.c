/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/verify.c - verifies the structure, then the bytes of every content.
 *
 * The pool's threads share the blocks of each content. The content is pinned in a short transaction, so captures and
 * the compactor continue.
 */
#include "repair/verify.h"

#include "repair/check.h"

#include <stdio.h>
#include <string.h>

#include "compact/parity.h"
#include "pages/pool.h"
#include "pages/tree.h"
#include "payload/read.h"
#include "records/content.h"
#include "records/safety.h"

struct verifying {
    struct lmcs_pool *pool;
    struct lmcs_structure *structure;
    lmcs_damage_fn visit;
    void *context;
    const struct lmcs_progress *progress;
    uint64_t total_bytes;
    struct lmcs_verify_report *report;
    const struct lmcs_known_content *known;
    char tensor[LMCS_MAX_NAME + 1]; /* name for reports; "" until the identity is read */
    uint64_t reported;
};

static void report_as(struct verifying *v, enum lmcs_status status, const char *what, uint64_t first_byte,
                      uint64_t bytes)
{
    const struct lmcs_known_content *known = v->known;
    struct lmcs_damage damage = {
        .is_unsupported = status == LMCS_UNSUPPORTED,
        .what = what,
        .shelf = known->number != 0 ? v->structure->shelf_names[known->shelf] : "",
        .number = known->number,
        .tensor = v->tensor,
        .first_byte = first_byte,
        .byte_count = bytes,
    };
    v->reported++;
    v->report->damages += !damage.is_unsupported;
    v->report->unsupported += damage.is_unsupported;
    if (v->visit != NULL)
        v->visit(v->context, &damage);
}

static void report(struct verifying *v, const char *what, uint64_t first_byte, uint64_t bytes)
{
    report_as(v, LMCS_DAMAGED, what, first_byte, bytes);
}

static void bad_range(void *context, uint64_t first_byte, uint64_t bytes, const char *why)
{
    report(context, why, first_byte, bytes);
}

struct held {
    struct lmcs_chain chain;
    struct lmcs_identity identity;
    struct lmcs_content link; /* link that may later replace the raw bytes; id 0: none */
};

static void release(struct verifying *v, const struct held *held)
{
    lmcs_chain_unpin(v->pool, &held->chain);
    if (held->link.id != 0)
        lmcs_payload_unpin(v->pool->lease, &held->link);
}

/* Pins a content and its chain. *found false: it was freed meanwhile. */
static enum lmcs_status hold_content(struct verifying *v, struct held *held, bool *found, struct lmcs_error *error)
{
    struct lmcs_chain *chain = &held->chain;
    struct lmcs_identity *identity = &held->identity;
    struct lmcs_txn txn;
    struct lmcs_content content;
    enum lmcs_status status = lmcs_txn_read(v->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_content_find(&txn, v->known->id, &content, found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_identity_get(&txn, content.df.identity, identity, error);
    if (status == LMCS_OK && *found) {
        memcpy(v->tensor, identity->name, sizeof v->tensor);
        status = lmcs_chain_load(&txn, v->known->id, chain, error);
    }
    if (status == LMCS_OK && *found)
        status = lmcs_chain_pin(v->pool, chain, error);
    held->link.id = 0;
    if (status == LMCS_OK && *found && content.df.payload == LMCS_PAYLOAD_RAW && content.link != 0) {
        status = lmcs_content_get(&txn, content.link, &held->link, error);
        if (status == LMCS_OK)
            status = lmcs_payload_pin(v->pool->lease, &held->link, error);
        if (lmcs_is_unusable(status)) { /* the structure check reported the link */
            held->link.id = 0;
            status = LMCS_OK;
        }
        if (status != LMCS_OK)
            lmcs_chain_unpin(v->pool, chain);
    }
    lmcs_txn_end(&txn);
    return status;
}

static struct lmcs_known_content *find_known(const struct verifying *v, uint64_t id)
{
    size_t low = 0, high = v->structure->content_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (v->structure->contents[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < v->structure->content_count && v->structure->contents[low].id == id;
    return found ? &v->structure->contents[low] : NULL;
}

/* Returns link i of the line; 0 is the newest. NULL: unknown, or no line. */
static struct lmcs_known_content *link_of(const struct verifying *v, const struct lmcs_chain *chain, size_t i)
{
    size_t newest = chain->links[0].df.payload == LMCS_PAYLOAD_LINK ? 0 : 1;
    return i < chain->line ? find_known(v, chain->links[newest + i].id) : NULL;
}

/* Reads and verifies a pinned content; of an output of a verified link, only compares the digest. */
static enum lmcs_status read_held(struct verifying *v, const struct held *held, struct lmcs_error *error)
{
    const struct lmcs_chain *chain = &held->chain;
    const struct lmcs_content *top = &chain->links[0];
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&held->identity);
    struct lmcs_bad_range bad = {bad_range, v};
    struct lmcs_known_content *link = link_of(v, chain, 0);
    if (link != NULL && link->is_verified && top->df.payload == LMCS_PAYLOAD_LINKED)
        return lmcs_link_check(v->pool, &chain->links[1], top, &tensor, error);
    if (link != NULL && link->is_verified)
        return LMCS_OK;
    enum lmcs_status status = lmcs_chain_read(v->pool, chain, &tensor, NULL, &bad, error);
    bool sound = status == LMCS_OK && v->reported == 0;
    for (size_t i = 0; sound && (link = link_of(v, chain, i)) != NULL; i++)
        link->is_verified = true;
    link = sound && held->link.id != 0 ? find_known(v, held->link.id) : NULL;
    if (link != NULL && link->is_verified && lmcs_link_check(v->pool, &held->link, top, &tensor, NULL) == LMCS_DAMAGED)
        report(v, "the link that would replace it gives other bytes; the tensor itself is not damaged", 0, 0);
    return status;
}

static enum lmcs_status read_content(struct verifying *v, struct lmcs_error *error)
{
    struct held held;
    bool found = false;
    v->reported = 0;
    v->tensor[0] = '\0';
    enum lmcs_status status = hold_content(v, &held, &found, error);
    if (status == LMCS_OK && found) {
        status = read_held(v, &held, error);
        release(v, &held);
    }
    if (status == LMCS_OK && found) {
        v->report->contents++;
        v->report->bytes_read += held.chain.links[0].df.raw_bytes;
    }
    if (lmcs_is_unusable(status) && v->reported == 0)
        report_as(v, status, error->message, 0, v->known->raw_bytes);
    return lmcs_is_unusable(status) ? LMCS_OK : status;
}

/* Pins the parity of the content or of the link that stores it; each parity is found once. */
static enum lmcs_status find_parity(struct verifying *v, uint64_t *content, struct lmcs_parity_record *parity,
                                    struct lmcs_identity *identity, bool *found, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_content of;
    *found = false;
    enum lmcs_status status = lmcs_txn_read(v->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    if (txn.root.trees[LMCS_TREE_SAFETY].count > 0)
        status = lmcs_content_find(&txn, v->known->id, &of, found, error);
    if (status == LMCS_OK && *found) {
        *content = of.df.payload == LMCS_PAYLOAD_LINKED ? of.link : of.id;
        struct lmcs_known_content *known = find_known(v, *content);
        *found = known != NULL && !known->parity_is_seen;
        if (known != NULL)
            known->parity_is_seen = true;
    }
    if (status == LMCS_OK && *found)
        status = lmcs_parity_find(&txn, *content, parity, found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_identity_get(&txn, of.df.identity, identity, error);
    if (status == LMCS_OK && *found)
        status = lmcs_parity_pin(v->pool, parity, error);
    lmcs_txn_end(&txn);
    return status;
}

/* Checks the parity by its own checksums. */
static enum lmcs_status read_parity(struct verifying *v, struct lmcs_error *error)
{
    struct lmcs_parity_record parity;
    struct lmcs_identity identity;
    uint64_t content = 0;
    bool found, sound = true;
    enum lmcs_status status = find_parity(v, &content, &parity, &identity, &found, error);
    if (status == LMCS_DAMAGED && v->structure->damages == 0) /* else the structure check reported the record */
        report(v, error->message, 0, 0);
    if (status != LMCS_OK || !found)
        return lmcs_is_unusable(status) ? LMCS_OK : status;
    status = lmcs_parity_look(v->pool, content, &parity, &sound, error);
    lmcs_parity_unpin(v->pool, &parity);
    v->report->bytes_read += lmcs_parity_bytes(&parity);
    memcpy(v->tensor, identity.name, sizeof v->tensor);
    if (status == LMCS_OK && !sound)
        report(v, "its parity is damaged; the tensor itself is not", 0, 0);
    return status;
}

static bool go_on(const struct verifying *v, uint64_t done_bytes)
{
    return v->progress == NULL || v->progress->call == NULL ||
           v->progress->call(v->progress->context, "verifying", done_bytes, v->total_bytes);
}

/* Chooses the next content: first those of lines, the newest link first, since a correct end implies a correct line. */
static bool next_content(struct verifying *v, size_t *at)
{
    const struct lmcs_structure *structure = v->structure;
    for (; *at < 2 * structure->content_count; ++*at) {
        bool lines = *at < structure->content_count;
        size_t i = lines ? structure->content_count - 1 - *at : *at - structure->content_count;
        v->known = &structure->contents[i];
        if (v->known->wanted && lines == (v->known->link_arrays > 0 || v->known->has_link))
            return true;
    }
    return false;
}

static enum lmcs_status read_contents(struct verifying *v, struct lmcs_error *error)
{
    struct lmcs_structure *structure = v->structure;
    uint64_t done_bytes = 0, shown_bytes = 0;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; i < structure->content_count; i++)
        v->total_bytes += structure->contents[i].wanted ? structure->contents[i].raw_bytes : 0;
    bool asked_to_stop = !go_on(v, 0);
    for (size_t at = 0; status == LMCS_OK && !asked_to_stop && next_content(v, &at); at++) {
        status = read_content(v, error);
        if (status == LMCS_OK)
            status = read_parity(v, error);
        done_bytes += v->known->raw_bytes;
        if (done_bytes - shown_bytes >= 16 * LMC_BLOCK_BYTES || done_bytes == v->total_bytes) {
            asked_to_stop = !go_on(v, done_bytes);
            shown_bytes = done_bytes;
        }
    }
    if (status == LMCS_OK && asked_to_stop)
        status = lmcs_fail(error, LMCS_CANCELLED, 0, "%s: the check was stopped before its end", v->pool->path);
    return status;
}

enum lmcs_status lmcs_check_as_a_writer(struct lmcs_pool *pool, lmcs_check_look *look, struct lmcs_error *error)
{
    uint64_t missing = lmcs_media_missing(pool->media);
    if (missing > 0)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "the file was cut short while it was open: %llu bytes are missing",
                         (unsigned long long)missing);
    return pool->heap == NULL ? look(pool, error) : LMCS_OK;
}

static enum lmcs_status check_file(struct verifying *v, lmcs_check_look *look, struct lmcs_error *error)
{
    if (v->structure->damages > 0 || v->structure->unsupported > 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_check_as_a_writer(v->pool, look, error);
    if (!lmcs_is_unusable(status))
        return status;
    struct lmcs_damage damage = {
        .what = error->message, .shelf = "", .tensor = "", .is_unsupported = status == LMCS_UNSUPPORTED};
    v->report->damages += !damage.is_unsupported;
    v->report->unsupported += damage.is_unsupported;
    if (v->visit != NULL)
        v->visit(v->context, &damage);
    return LMCS_OK;
}

enum lmcs_status lmcs_verify_run(struct lmcs_pool *pool, const char *address, lmcs_check_look *look,
                                 void (*visit)(void *context, const struct lmcs_damage *damage), void *context,
                                 const struct lmcs_progress *progress, struct lmcs_verify_report *report,
                                 struct lmcs_error *error)
{
    struct lmcs_verify_report counts = {0};
    struct lmcs_structure structure;
    struct lmcs_error local;
    enum lmcs_status status = lmcs_structure_check(pool, address, visit, context, &structure, &local);
    counts.snapshots = structure.snapshots;
    counts.remote = structure.remote;
    counts.damages = structure.damages;
    counts.unsupported = structure.unsupported;
    struct verifying v = {.pool = pool,
                          .structure = &structure,
                          .visit = visit,
                          .context = context,
                          .progress = progress,
                          .report = &counts};
    if (status == LMCS_OK && address == NULL)
        status = check_file(&v, look, &local);
    if (status == LMCS_OK)
        status = read_contents(&v, &local);
    if (status == LMCS_OK && counts.damages > 0)
        status = lmcs_fail(&local, LMCS_DAMAGED, 0, "%s: %llu damage%s found", pool->path,
                           (unsigned long long)counts.damages, counts.damages == 1 ? "" : "s");
    if (status == LMCS_OK && counts.unsupported > 0)
        status = lmcs_fail(&local, LMCS_UNSUPPORTED, 0, "%s: no damage found, but %llu record%s of a newer version",
                           pool->path, (unsigned long long)counts.unsupported, counts.unsupported == 1 ? "" : "s");
    lmcs_structure_free(&structure);
    if (report != NULL)
        *report = counts;
    if (status != LMCS_OK && error != NULL)
        *error = local;
    return status;
}
