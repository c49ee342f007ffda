/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/read.c - the bytes of a content, however it is stored.
 *
 * A chain is undone block by block: a block of the last link (raw, or a keyframe) is decoded, then each delta above
 * it turns it into its own, in two small buffers that change roles; only the topmost writes to the caller's memory.
 * Blocks are independent, so threads share them. Nothing is believed before its checksum: the digest in a content's
 * record vouches for the hashes of its blocks, and those for the bytes. Of a chain, the topmost block's checksum
 * vouches for all below it; where it does not match, the chain is undone again with every link's own, which names the
 * culprit.
 *
 * A line of links is undone for all arrays of its state together, from blocks of those that it begins with: that is one
 * call of the codec, which vouches for the state at the end. The array that is wanted goes to the caller's memory. To
 * verify, what it begins with is compared with its own checksums too: a link that was made from damaged bytes leads
 * from these to the right state, and from the right ones to another.
 */
#include "payload/read.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "records/safety.h"

#define HEADER_AT_ONCE ((uint64_t)4 << 10) /* of a frame: with few blocks it has no more */
#define BROUGHT_BLOCKS 8u /* of a payload of which all blocks are looked at: each question takes its time */

struct link {
    const struct lmcs_content *content;
    unsigned char *header; /* of a frame; or the hashes of a raw payload with more than one block */
    struct lmc_frame frame;
};

struct scratch {
    struct scratch *next;
    unsigned char *coded;
    unsigned char *blocks[LMC_MAX_BASES]; /* two, or of a line as many as there are arrays */
    unsigned char *line;                  /* coded blocks of all links of a line */
    size_t line_bytes;
};

struct reading {
    struct lmcs_pool *pool;
    const struct lmcs_chain *chain;
    struct link links[LMCS_CHAIN_MOST];
    size_t newest; /* of a line: place of its newest link */
    size_t arrays; /* of its state; 0: there is no line */
    uint64_t raw_bytes;
    uint32_t dtype, ndim;
    const uint64_t *shape;
    unsigned char *buffer;                              /* NULL: only verify */
    unsigned char *buffers[LMC_MAX_BASES];              /* of a line: for each array ... */
    const struct lmcs_content *contents[LMC_MAX_BASES]; /* ... and what is stored as it; NULL: that is not known */
    bool in_place;        /* bytes of the pool are used where they are mapped: a guard would hold */
    bool only_stored;     /* nothing is decoded: what is stored is held against its checksums ... */
    size_t stored_links;  /* ... of so many links of a line, the newest; and of what it begins with, when of all */
    pthread_mutex_t lock; /* guards what follows */
    struct scratch *free;
    bool failed;
    bool go_on;          /* to the end, telling of each damage */
    unsigned char *lost; /* 1 for each damaged block, when nobody is told of each; NULL: none yet */
    const struct lmcs_bad_range *bad;
    struct lmcs_error error;
};

/* ---- Chains ---- */

static enum lmcs_status fail_chain(const struct lmcs_txn *txn, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: %s", txn->pool->path, why);
}

/* Adds a link, the arrays that it leads from, when they are where the line begins; *next: the link before, or 0. */
static enum lmcs_status add_link(struct lmcs_txn *txn, uint64_t id, struct lmcs_chain *chain, uint64_t *next,
                                 struct lmcs_error *error)
{
    struct lmcs_content *link = &chain->links[chain->length], base;
    if (chain->line == LMCS_LINK_BOUND)
        return fail_chain(txn, "a line of links is too long", error);
    enum lmcs_status status = lmcs_content_get(txn, id, link, error);
    if (status != LMCS_OK)
        return status;
    if (link->df.payload != LMCS_PAYLOAD_LINK || link->df.raw_bytes != chain->links[0].df.raw_bytes)
        return fail_chain(txn, "what should be a link is none", error);
    chain->length++;
    chain->line++;
    *next = 0;
    for (size_t i = 0; status == LMCS_OK && *next == 0 && i < link->df.base_count; i++) {
        /* Of arrays that one link leads to, some may have got a payload of their own since. */
        status = lmcs_content_get(txn, link->bases[i], &base, error);
        if (status == LMCS_OK && base.df.payload == LMCS_PAYLOAD_LINKED)
            *next = base.link;
    }
    for (size_t i = 0; status == LMCS_OK && *next == 0 && i < link->df.base_count; i++) {
        struct lmcs_content *start = &chain->links[chain->length++];
        status = lmcs_content_get(txn, link->bases[i], start, error);
        if (status == LMCS_OK && (start->df.payload > LMCS_PAYLOAD_FRAME || start->df.base_count > 0 ||
                                  start->df.raw_bytes != link->df.raw_bytes))
            return fail_chain(txn, "a line of links begins with what is neither raw nor a keyframe", error);
    }
    return status;
}

static enum lmcs_status load_line(struct lmcs_txn *txn, struct lmcs_chain *chain, struct lmcs_error *error)
{
    const struct lmcs_content *top = &chain->links[0];
    uint64_t next = top->link;
    enum lmcs_status status = LMCS_OK;
    if (top->df.payload == LMCS_PAYLOAD_LINK) {
        next = top->id;
        chain->length = 0;
    }
    while (status == LMCS_OK && next != 0)
        status = add_link(txn, next, chain, &next, error);
    return status;
}

enum lmcs_status lmcs_chain_load(struct lmcs_txn *txn, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error)
{
    chain->serial = chain->is_new = false;
    chain->line = 0;
    for (chain->length = 0;; content = chain->links[chain->length - 1].bases[0]) {
        if (chain->length > LMCS_CHAIN_BOUND)
            return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a chain of deltas is longer than %u",
                             txn->pool->path, LMCS_CHAIN_BOUND);
        struct lmcs_content *link = &chain->links[chain->length++];
        enum lmcs_status status = lmcs_content_get(txn, content, link, error);
        if (status != LMCS_OK)
            return status;
        if (link->df.payload >= LMCS_PAYLOAD_LINK)
            return chain->length == 1 ? load_line(txn, chain, error)
                                      : fail_chain(txn, "a delta rests on what a link leads to", error);
        if (link->df.raw_bytes != chain->links[0].df.raw_bytes)
            return fail_chain(txn, "a base has another size than its delta", error);
        if (link->df.base_count == 0)
            return LMCS_OK;
    }
}

enum lmcs_status lmcs_chain_pin(struct lmcs_pool *pool, const struct lmcs_chain *chain, struct lmcs_error *error)
{
    for (size_t i = 0; i < chain->length; i++) {
        enum lmcs_status status = lmcs_payload_pin(pool->lease, &chain->links[i], error);
        if (status != LMCS_OK) {
            while (i-- > 0)
                lmcs_payload_unpin(pool->lease, &chain->links[i]);
            return status;
        }
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_chain_hold(struct lmcs_pool *pool, uint64_t content, struct lmcs_chain *chain,
                                 struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_chain_load(&txn, content, chain, error);
    if (status == LMCS_OK)
        status = lmcs_chain_pin(pool, chain, error);
    lmcs_txn_end(&txn);
    return status;
}

void lmcs_chain_unpin(struct lmcs_pool *pool, const struct lmcs_chain *chain)
{
    for (size_t i = 0; i < chain->length; i++)
        lmcs_payload_unpin(pool->lease, &chain->links[i]);
}

/* ---- Headers ---- */

static bool is_new(const struct reading *r, const struct link *link)
{
    return r->chain->is_new && link == &r->links[0];
}

/* Copies stored bytes of one of the links. */
static enum lmcs_status copy_stored(const struct reading *r, const struct link *link, uint64_t at, void *to,
                                    uint64_t bytes, struct lmcs_error *error)
{
    return (is_new(r, link) ? lmcs_payload_read_back : lmcs_payload_read)(r->pool->media, link->content, at, to, bytes,
                                                                          error);
}

static enum lmcs_status fail_link(const struct reading *r, const char *name, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: tensor \"%s\" is damaged: %s", r->pool->path, name, why);
}

/* A frame whose checksum is right, and of which the codec does not know a feature. */
static enum lmcs_status fail_newer(const struct reading *r, const char *name, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                     "%s: tensor \"%s\": %s; a newer lmc-store wrote it; upgrade to read it", r->pool->path, name, why);
}

/* Reads and parses the header of a frame; what is in it has to be compared with what is known otherwise. */
static enum lmcs_status read_header(struct reading *r, size_t i, const char *name, struct lmcs_error *error)
{
    struct link *link = &r->links[i];
    const struct lmcs_content *content = link->content;
    const char *why = "";
    uint64_t header_bytes = 0;
    uint64_t n = content->df.stored_bytes < HEADER_AT_ONCE ? content->df.stored_bytes : HEADER_AT_ONCE;
    link->header = malloc(n);
    if (link->header == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = copy_stored(r, link, 0, link->header, n, error);
    if (status == LMCS_DAMAGED && n > LMC_FRAME_PREFIX_BYTES) { /* what can't be read may lie behind the header */
        n = LMC_FRAME_PREFIX_BYTES;
        status = copy_stored(r, link, 0, link->header, n, error);
    }
    if (status != LMCS_OK)
        return status;
    enum lmc_status coded = lmc_frame_header_bytes(link->header, n, &header_bytes, &why);
    uint64_t most = 65536 + 128 * lmc_block_count(content->df.raw_bytes);
    if (coded == LMC_OK && (header_bytes > content->df.stored_bytes || header_bytes > most))
        return fail_link(r, name, "its frame's header is impossibly long", error);
    if (coded == LMC_OK && header_bytes > n) {
        unsigned char *whole = realloc(link->header, header_bytes);
        if (whole == NULL)
            return lmcs_fail_memory(error);
        link->header = whole;
        status = copy_stored(r, link, n, whole + n, header_bytes - n, error);
        if (status != LMCS_OK)
            return status;
    }
    if (coded == LMC_OK)
        coded = lmc_frame_parse(link->header, header_bytes, &link->frame, &why);
    if (coded == LMC_UNSUPPORTED)
        return fail_newer(r, name, why, error);
    if (coded != LMC_OK)
        return fail_link(r, name, why, error);
    const struct lmc_frame *frame = &link->frame;
    if (frame->raw_bytes != content->df.raw_bytes || frame->frame_bytes != content->df.stored_bytes ||
        frame->base_count != content->df.base_count ||
        (frame->predictor != 0) != (content->df.payload == LMCS_PAYLOAD_LINK))
        return fail_link(r, name, "its frame is not the one that its record describes", error);
    return LMCS_OK;
}

static enum lmcs_status open_frame(struct reading *r, size_t i, const char *name, struct lmcs_error *error)
{
    const struct lmcs_content *content = r->links[i].content;
    const struct lmc_frame *frame = &r->links[i].frame;
    struct lmc_hash digest;
    enum lmcs_status status = read_header(r, i, name, error);
    if (status != LMCS_OK)
        return status;
    if (frame->output_count != 1)
        return fail_link(r, name, "its frame is not the one that its record describes", error);
    if (lmc_frame_digest(frame, r->dtype, r->ndim, r->shape, &digest) != LMC_OK ||
        digest.low != content->df.digest_low || digest.high != content->df.digest_high)
        return fail_link(r, name, "its frame's digest is not the one in its record", error);
    if (frame->base_count == 1) {
        const struct lmcs_content *base = r->links[i + 1].content;
        if (frame->base_digest[0].low != base->df.digest_low || frame->base_digest[0].high != base->df.digest_high)
            return fail_link(r, name, "its frame was coded against another base", error);
    }
    return LMCS_OK;
}

bool lmcs_link_digest(const struct lmc_frame *frame, uint32_t ndim, const uint64_t *shape, struct lmc_hash *digest)
{
    struct lmc_hash all[2 * LMC_MAX_BASES];
    uint32_t n = frame->base_count;
    for (uint32_t i = 0; i < n; i++) {
        if (lmc_link_digest(frame, i, ndim, shape, &all[i]) != LMC_OK)
            return false;
        all[n + i] = frame->base_digest[i];
    }
    *digest = lmc_hash128(all, 2 * n * sizeof all[0]);
    return true;
}

static bool is_digest_of(const struct lmc_hash *digest, const struct lmcs_content *content)
{
    return digest->low == content->df.digest_low && digest->high == content->df.digest_high;
}

/* The arrays before link `i`: those that the link before it leads to, or those that the line begins with. */
static bool leads_from(const struct reading *r, size_t i)
{
    const struct lmc_frame *frame = &r->links[i].frame;
    bool oldest = i + 1 == r->newest + r->chain->line, sound = true;
    for (uint32_t k = 0; k < r->arrays && sound; k++) {
        struct lmc_hash digest;
        sound = oldest ? is_digest_of(&frame->base_digest[k], &r->chain->links[i + 1 + k])
                       : lmc_link_digest(&r->links[i + 1].frame, k, r->ndim, r->shape, &digest) == LMC_OK &&
                             digest.low == frame->base_digest[k].low && digest.high == frame->base_digest[k].high;
    }
    return sound;
}

/* Reads the header of a link, and compares it with its record. */
static enum lmcs_status open_one_link(struct reading *r, size_t i, const char *name, struct lmcs_error *error)
{
    const struct lmc_frame *frame = &r->links[i].frame;
    struct lmc_hash digest;
    enum lmcs_status status = read_header(r, i, name, error);
    if (status == LMCS_OK &&
        (frame->output_count != r->arrays || frame->base_count != r->arrays ||
         !lmcs_link_digest(frame, r->ndim, r->shape, &digest) || !is_digest_of(&digest, r->links[i].content)))
        return fail_link(r, name, "a link is not the one that its record describes", error);
    return status;
}

/* Whether what is stored as array `i` is what the newest link leads to. */
static bool is_led_to(const struct reading *r, size_t i)
{
    struct lmc_hash digest;
    return i < r->arrays && r->dtype == LMC_F32 &&
           lmc_link_digest(&r->links[r->newest].frame, (uint32_t)i, r->ndim, r->shape, &digest) == LMC_OK &&
           is_digest_of(&digest, r->contents[i]);
}

static enum lmcs_status open_line(struct reading *r, const char *name, struct lmcs_error *error)
{
    const struct lmcs_content *top = &r->chain->links[0];
    enum lmcs_status status = LMCS_OK;
    size_t end = r->newest + r->chain->line;
    for (size_t i = r->newest; status == LMCS_OK && i < end; i++)
        status = open_one_link(r, i, name, error);
    for (size_t i = r->newest; status == LMCS_OK && i < end; i++)
        if (!leads_from(r, i))
            return fail_link(r, name, "a link leads from another state than the one before it", error);
    if (top->df.payload == LMCS_PAYLOAD_LINKED && top->df.output < LMC_MAX_BASES)
        r->contents[top->df.output] = top;
    for (size_t i = 0; status == LMCS_OK && i < LMC_MAX_BASES; i++)
        if (r->contents[i] != NULL && !is_led_to(r, i))
            return fail_link(r, name, "its link's digest is not the one in its record", error);
    return status;
}

/* Reads the hashes of a raw payload with several blocks and checks them by the digest. */
static enum lmcs_status open_raw(struct reading *r, size_t i, const char *name, struct lmcs_error *error)
{
    struct link *link = &r->links[i];
    const struct lmcs_content *content = link->content;
    uint64_t blocks = lmc_block_count(content->df.raw_bytes);
    if (blocks <= 1)
        return LMCS_OK;
    link->header = malloc(blocks * sizeof(struct lmc_hash));
    if (link->header == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_payload_read(r->pool->media, content, lmcs_raw_table_at(content->df.raw_bytes),
                                                link->header, blocks * sizeof(struct lmc_hash), error);
    if (status != LMCS_OK)
        return status;
    struct lmc_hash digest = lmc_digest(r->dtype, r->ndim, r->shape, (const struct lmc_hash *)link->header, blocks);
    if (digest.low != content->df.digest_low || digest.high != content->df.digest_high)
        return fail_link(r, name, "the checksums of its blocks are not what was written", error);
    return LMCS_OK;
}

/* ---- Blocks ---- */

static void free_scratch(struct scratch *scratch)
{
    if (scratch == NULL)
        return;
    free(scratch->coded);
    for (size_t i = 0; i < LMC_MAX_BASES; i++)
        free(scratch->blocks[i]);
    free(scratch->line);
    free(scratch);
}

static struct scratch *get_scratch(struct reading *r)
{
    pthread_mutex_lock(&r->lock);
    struct scratch *scratch = r->free;
    if (scratch != NULL)
        r->free = scratch->next;
    pthread_mutex_unlock(&r->lock);
    if (scratch != NULL)
        return scratch;
    size_t block = r->raw_bytes < LMC_BLOCK_BYTES ? (size_t)r->raw_bytes : LMC_BLOCK_BYTES;
    scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL)
        return NULL;
    scratch->coded = aligned_alloc(64, (lmc_block_bound(block) + 63) & ~(size_t)63);
    bool whole = scratch->coded != NULL;
    for (size_t i = 0; i < (r->arrays > 0 ? r->arrays : 2); i++) {
        scratch->blocks[i] = aligned_alloc(64, (block + 63) & ~(size_t)63);
        whole = whole && scratch->blocks[i] != NULL;
    }
    if (whole)
        return scratch;
    free_scratch(scratch);
    return NULL;
}

static void put_scratch(struct reading *r, struct scratch *scratch)
{
    pthread_mutex_lock(&r->lock);
    scratch->next = r->free;
    r->free = scratch;
    pthread_mutex_unlock(&r->lock);
}

static bool raw_block_is_right(const struct reading *r, const struct link *link, uint64_t block, const void *data,
                               uint64_t bytes)
{
    struct lmc_hash hash = lmc_hash128(data, bytes), expected;
    if (link->header != NULL) {
        memcpy(&expected, link->header + block * sizeof expected, sizeof expected);
        return hash.low == expected.low && hash.high == expected.high;
    }
    struct lmc_hash digest = lmc_digest(r->dtype, r->ndim, r->shape, &hash, 1);
    return digest.low == link->content->df.digest_low && digest.high == link->content->df.digest_high;
}

/* A block on its way up the links of a chain. */
struct undoing {
    struct reading *r;
    uint64_t block;
    uint64_t bytes;
    void *target; /* NULL: it is only verified */
    struct scratch *scratch;
    bool in_place;       /* payloads are read where they are mapped, and not copied */
    bool is_brought;     /* ... and have been asked for */
    bool is_unreadable;  /* ... and the medium did not give all of it */
    const void *decoded; /* as far as it has come: what the next link is against; NULL: nothing yet */
    bool is_mapped;      /* that lies in the pool */
    const char *why;     /* it is damaged; NULL: the error says so */
    struct lmcs_error *error;
};

/* What one link does to it, so that it can be done under a guard. */
struct step {
    struct undoing *u;
    const struct link *link;
    bool checked; /* by the link's own checksums */
    const void *stored;
    uint64_t stored_bytes;
    void *to;
    enum lmc_status decoded;
    bool is_right;
};

static void decode_step(void *context)
{
    struct step *s = context;
    struct undoing *u = s->u;
    const void *bases[1] = {u->decoded};
    s->decoded =
        (s->checked ? lmc_decode_block : lmc_decode_base)(&s->link->frame, u->block, s->stored, s->stored_bytes,
                                                          u->decoded != NULL ? bases : NULL, s->to, u->bytes, &u->why);
}

static void check_step(void *context)
{
    struct step *s = context;
    s->is_right = raw_block_is_right(s->u->r, s->link, s->u->block, s->stored, s->stored_bytes);
}

/* Stored bytes where they are mapped, if they lie in one piece; NULL: they are to be copied, as few are sooner. */
static const void *stored_at(const struct undoing *u, const struct link *link, uint64_t at, uint64_t bytes)
{
    bool in_place = u->in_place && bytes >= LMCS_ALIGNED_BYTES && !is_new(u->r, link);
    const void *mapped = in_place ? lmcs_payload_at(u->r->pool->media, link->content, at, bytes) : NULL;
    if (mapped != NULL && !(u->is_brought && link->content->df.part_count == 1))
        lmcs_media_bring(mapped, bytes);
    return mapped;
}

/*
 * Does it with the stored bytes where they are mapped, or copies them to `room`. When the medium does not give what is
 * mapped, all is done again with copies, for reading the file says what is wrong with it. (What the codec had allocated
 * is lost then.)
 */
static enum lmcs_status run_decoding(struct step *s, uint64_t at, void *room)
{
    struct undoing *u = s->u;
    struct lmcs_guarded mapped[2];
    size_t count = 0;
    s->stored = stored_at(u, s->link, at, s->stored_bytes);
    if (s->stored != NULL)
        mapped[count++] = (struct lmcs_guarded){s->stored, s->stored_bytes};
    if (u->is_mapped)
        mapped[count++] = (struct lmcs_guarded){u->decoded, u->bytes};
    if (s->stored == NULL) {
        enum lmcs_status status = copy_stored(u->r, s->link, at, room, s->stored_bytes, u->error);
        if (status != LMCS_OK)
            return status;
        s->stored = room;
    }
    u->is_unreadable = !lmcs_guard(mapped, count, decode_step, s);
    return u->is_unreadable ? LMCS_DAMAGED : LMCS_OK;
}

/* A raw block: read into `to` when that is where it is wanted, else left where it lies. */
static enum lmcs_status read_raw_block(struct step *s, void *to)
{
    struct undoing *u = s->u;
    uint64_t at = u->block * LMC_BLOCK_BYTES;
    enum lmcs_status status = LMCS_OK;
    s->stored_bytes = u->bytes;
    s->stored = to != u->target ? stored_at(u, s->link, at, u->bytes) : NULL;
    s->is_right = true;
    if (s->stored != NULL) {
        struct lmcs_guarded mapped = {s->stored, u->bytes};
        u->is_unreadable = s->checked && !lmcs_guard(&mapped, 1, check_step, s);
        status = u->is_unreadable ? LMCS_DAMAGED : LMCS_OK;
        u->decoded = s->stored;
        u->is_mapped = true;
    } else {
        status = copy_stored(u->r, s->link, at, to, u->bytes, u->error);
        if (status == LMCS_OK && s->checked)
            s->is_right = raw_block_is_right(u->r, s->link, u->block, to, u->bytes);
        u->decoded = to;
    }
    if (status == LMCS_OK && !s->is_right) {
        u->why = "its bytes are not what was written (checksum)";
        return LMCS_DAMAGED;
    }
    return status;
}

static enum lmcs_status decode_block(struct step *s, void *to)
{
    struct undoing *u = s->u;
    uint64_t at;
    struct lmc_block coded = lmc_frame_block(&s->link->frame, u->block, &at);
    if (coded.coded_bytes > lmc_block_bound(u->bytes)) {
        u->why = "a coded block is impossibly long";
        return LMCS_DAMAGED;
    }
    s->stored_bytes = coded.coded_bytes;
    s->to = to;
    enum lmcs_status status = run_decoding(s, at, u->scratch->coded);
    if (status != LMCS_OK)
        return status;
    u->decoded = to;
    u->is_mapped = false;
    if (s->decoded == LMC_NO_MEMORY)
        return lmcs_fail_memory(u->error);
    if (s->decoded == LMC_UNSUPPORTED && s->checked) /* else its bytes may be damaged */
        return LMCS_UNSUPPORTED;
    return s->decoded == LMC_OK ? LMCS_OK : LMCS_DAMAGED;
}

static enum lmcs_status undo_once(struct undoing *u, bool checked)
{
    struct reading *r = u->r;
    enum lmcs_status status = LMCS_OK;
    u->decoded = u->why = NULL;
    u->is_mapped = u->is_unreadable = false;
    for (size_t i = r->chain->length; status == LMCS_OK && i-- > 0;) {
        struct step step = {.u = u, .link = &r->links[i], .checked = checked || i == 0};
        void *to = i == 0 && u->target != NULL ? u->target : u->scratch->blocks[i & 1];
        status =
            step.link->content->df.payload == LMCS_PAYLOAD_RAW ? read_raw_block(&step, to) : decode_block(&step, to);
    }
    return status;
}

/* For coded blocks of a line. False: without memory. */
static bool make_room(struct scratch *scratch, uint64_t bytes)
{
    if (scratch->line_bytes > bytes)
        return true;
    free(scratch->line);
    scratch->line = malloc(bytes + bytes / 4 + 1);
    scratch->line_bytes = scratch->line != NULL ? bytes + bytes / 4 + 1 : 0;
    return scratch->line != NULL;
}

/* Blocks `block` of all links of the line: where they are mapped, or else copied, one behind the other. */
static enum lmcs_status read_line(struct reading *r, uint64_t block, uint64_t bytes, bool in_place,
                                  struct scratch *scratch, struct lmc_link_step *steps, const char **why,
                                  struct lmcs_error *error)
{
    uint64_t places[LMCS_LINK_BOUND], total = 0, at = 0;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; i < r->chain->line; i++) { /* the oldest first */
        const struct link *link = &r->links[r->newest + r->chain->line - 1 - i];
        struct lmc_block coded = lmc_frame_block(&link->frame, block, &places[i]);
        steps[i] = (struct lmc_link_step){.frame = &link->frame, .coded_bytes = coded.coded_bytes};
        if (coded.coded_bytes > lmc_link_block_bound((uint32_t)r->arrays, bytes)) {
            *why = "a coded block is impossibly long";
            return LMCS_DAMAGED;
        }
        if (in_place && coded.coded_bytes >= LMCS_ALIGNED_BYTES && !is_new(r, link))
            steps[i].coded = lmcs_payload_at(r->pool->media, link->content, places[i], coded.coded_bytes);
        if (steps[i].coded != NULL)
            lmcs_media_bring(steps[i].coded, coded.coded_bytes);
        else
            total += coded.coded_bytes;
    }
    if (!make_room(scratch, total))
        return lmcs_fail_memory(error);
    for (size_t i = 0; status == LMCS_OK && i < r->chain->line; i++) {
        const struct link *link = &r->links[r->newest + r->chain->line - 1 - i];
        if (steps[i].coded != NULL)
            continue;
        steps[i].coded = scratch->line + at;
        status = copy_stored(r, link, places[i], scratch->line + at, steps[i].coded_bytes, error);
        at += steps[i].coded_bytes;
    }
    return status;
}

/* A raw block that links are undone on: copied from where it is mapped, and read when the medium did not give it. */
static enum lmcs_status begin_line(struct step *s, void *to)
{
    struct undoing *u = s->u;
    const void *mapped = stored_at(u, s->link, u->block * LMC_BLOCK_BYTES, u->bytes);
    if (mapped == NULL || !lmcs_guard_copy(to, mapped, u->bytes))
        return read_raw_block(s, to);
    if (!s->checked || raw_block_is_right(u->r, s->link, u->block, to, u->bytes))
        return LMCS_OK;
    u->why = "its bytes are not what was written (checksum)";
    return LMCS_DAMAGED;
}

/* The links of a line, to be undone under a guard. */
struct line_run {
    const struct lmc_link_step *steps;
    size_t count, at_once;
    uint64_t block, bytes;
    void *const *state;
    enum lmc_status result;
    const char *why;
};

static void run_line(void *context)
{
    struct line_run *run = context;
    for (size_t i = 0; run->result == LMC_OK && i < run->count; i += run->at_once)
        run->result =
            lmc_link_decode_block(run->steps + i, run->at_once, run->block, run->state, run->bytes, NULL, &run->why);
}

/* How a line is undone. */
struct line_way {
    bool from_sound; /* what the line begins with is compared with its own checksums */
    bool checked;    /* so it is then, and what follows link by link, so that the culprit is named */
    bool in_place;   /* coded bytes are used where they are mapped ... */
    bool failed;     /* ... and the medium did not give all of them */
};

/* Undoes the line for one block of all arrays. */
static enum lmcs_status undo_line(struct reading *r, uint64_t block, struct line_way *way, void *const *state,
                                  struct scratch *scratch, const char **why, struct lmcs_error *error)
{
    bool checked = way->checked;
    uint64_t at = block * LMC_BLOCK_BYTES, left = r->raw_bytes - at;
    uint64_t bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    struct lmc_link_step steps[LMCS_LINK_BOUND];
    struct lmcs_guarded mapped[LMCS_LINK_BOUND];
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < r->arrays; i++) {
        const struct link *start = &r->links[r->newest + r->chain->line + i];
        bool is_raw = start->content->df.payload == LMCS_PAYLOAD_RAW;
        struct undoing u = {.r = r,
                            .block = block,
                            .bytes = bytes,
                            .target = state[i],
                            .scratch = scratch,
                            .in_place = is_raw && way->in_place,
                            .error = error};
        struct step step = {.u = &u, .link = start, .checked = checked || way->from_sound};
        status = is_raw ? begin_line(&step, state[i]) : decode_block(&step, state[i]);
        *why = u.why;
    }
    if (status == LMCS_OK)
        status = read_line(r, block, bytes, way->in_place, scratch, steps, why, error);
    if (status != LMCS_OK)
        return status;
    struct line_run run = {.steps = steps,
                           .count = r->chain->line,
                           .at_once = checked ? 1 : r->chain->line,
                           .block = block,
                           .bytes = bytes,
                           .state = state};
    fenv_t arithmetic; /* the codec has its own, and does not get to putting this back when it is left early */
    for (size_t i = 0; i < run.count; i++)
        mapped[i] = (struct lmcs_guarded){steps[i].coded, steps[i].coded_bytes};
    fegetenv(&arithmetic);
    way->failed = !lmcs_guard(mapped, way->in_place ? run.count : 0, run_line, &run);
    if (way->failed)
        fesetenv(&arithmetic);
    *why = run.why;
    if (run.result == LMC_NO_MEMORY)
        return lmcs_fail_memory(error);
    if (run.result == LMC_UNSUPPORTED) /* after the checksum of the coded block */
        return LMCS_UNSUPPORTED;
    return run.result == LMC_OK && !way->failed ? LMCS_OK : LMCS_DAMAGED;
}

/* One block of all arrays, each into its buffer or, where there is none, to nowhere; without any, it is verified. */
static enum lmcs_status undo_line_block(struct reading *r, uint64_t block, void *const *targets,
                                        struct scratch *scratch, const char **why, struct lmcs_error *error)
{
    void *state[LMC_MAX_BASES] = {NULL};
    bool is_wanted = false;
    for (size_t i = 0; i < r->arrays; i++) {
        is_wanted |= targets[i] != NULL;
        state[i] = targets[i] != NULL ? targets[i] : scratch->blocks[i];
    }
    /* To verify: a link that was made from wrong bytes leads from them, and from no others, to what it should. */
    struct line_way way = {.from_sound = !is_wanted, .in_place = r->in_place};
    enum lmcs_status status = undo_line(r, block, &way, state, scratch, why, error);
    if (status != LMCS_DAMAGED)
        return status;
    *why = NULL;
    way = (struct line_way){.checked = true};
    return undo_line(r, block, &way, state, scratch, why, error);
}

/* ---- Stored bytes alone ---- */

static void check_coded(void *context)
{
    struct step *s = context;
    uint64_t at;
    s->is_right = lmc_hash64(s->stored, s->stored_bytes, s->u->block) ==
                  lmc_frame_block(&s->link->frame, s->u->block, &at).coded_hash;
}

/* A coded block, where it is mapped, or copied. */
static enum lmcs_status check_coded_block(struct step *s)
{
    struct undoing *u = s->u;
    uint64_t at;
    enum lmcs_status status = LMCS_OK;
    s->stored_bytes = lmc_frame_block(&s->link->frame, u->block, &at).coded_bytes;
    s->stored = stored_at(u, s->link, at, s->stored_bytes);
    if (s->stored != NULL) {
        struct lmcs_guarded mapped = {s->stored, s->stored_bytes};
        u->is_unreadable = !lmcs_guard(&mapped, 1, check_coded, s);
        status = u->is_unreadable ? LMCS_DAMAGED : LMCS_OK;
    } else {
        if (!make_room(u->scratch, s->stored_bytes))
            return lmcs_fail_memory(u->error);
        s->stored = u->scratch->line;
        status = copy_stored(u->r, s->link, at, u->scratch->line, s->stored_bytes, u->error);
        if (status == LMCS_OK)
            check_coded(s);
    }
    if (status == LMCS_OK && !s->is_right) {
        u->why = "the checksum of a coded block does not match";
        return LMCS_DAMAGED;
    }
    return status;
}

/* Has the system read some blocks of a payload, from this one on, that are not in memory. */
static void bring_blocks(const struct undoing *u, const struct link *link)
{
    const uint64_t blocks = lmc_block_count(u->r->raw_bytes);
    const uint64_t last = (blocks - u->block < BROUGHT_BLOCKS ? blocks : u->block + BROUGHT_BLOCKS) - 1;
    uint64_t at = u->block * LMC_BLOCK_BYTES, end = link->content->df.raw_bytes;
    if (link->content->df.payload != LMCS_PAYLOAD_RAW) {
        const uint32_t coded_bytes = lmc_frame_block(&link->frame, last, &end).coded_bytes;
        end += coded_bytes;
        (void)lmc_frame_block(&link->frame, u->block, &at);
    } else if (last + 1 < blocks) {
        end = (last + 1) * LMC_BLOCK_BYTES;
    }
    const void *mapped = lmcs_payload_at(u->r->pool->media, link->content, at, end - at);
    if (mapped != NULL)
        lmcs_media_bring(mapped, end - at);
}

/* One block of the newest links of a line, and of what it begins with when these are all. */
static enum lmcs_status check_stored(struct undoing *u)
{
    struct reading *r = u->r;
    bool all = r->stored_links == r->chain->line;
    size_t end = all ? r->chain->length : r->newest + r->stored_links;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = r->newest; u->in_place && u->block % BROUGHT_BLOCKS == 0 && i < end; i++)
        bring_blocks(u, &r->links[i]);
    u->is_brought = true;
    u->why = NULL;
    u->is_unreadable = false;
    for (size_t i = r->newest; status == LMCS_OK && i < end; i++) {
        struct step step = {.u = u, .link = &r->links[i], .checked = true};
        status = step.link->content->df.payload == LMCS_PAYLOAD_RAW ? read_raw_block(&step, u->scratch->blocks[0])
                                                                    : check_coded_block(&step);
    }
    return status;
}

static enum lmcs_status check_stored_block(struct reading *r, uint64_t block, struct scratch *scratch, const char **why,
                                           struct lmcs_error *error)
{
    uint64_t left = r->raw_bytes - block * LMC_BLOCK_BYTES;
    struct undoing u = {.r = r,
                        .block = block,
                        .bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES,
                        .scratch = scratch,
                        .in_place = r->in_place,
                        .error = error};
    enum lmcs_status status = check_stored(&u);
    if (u.is_unreadable) {
        u.in_place = false;
        status = check_stored(&u);
    }
    *why = u.why;
    return status;
}

/* ---- All blocks ---- */

/* Notes a damaged block for the message at the end. False: without memory. */
static bool note_lost(struct reading *r, uint64_t block)
{
    if (r->lost == NULL)
        r->lost = calloc(lmc_block_count(r->raw_bytes), 1);
    if (r->lost != NULL)
        r->lost[block] = 1;
    return r->lost != NULL;
}

/* Undoes the chain for one block; `checked`: with every link's checksums, not the topmost one's alone. */
static enum lmcs_status undo_links(struct undoing *u, bool checked)
{
    enum lmcs_status status = undo_once(u, checked);
    if (!u->is_unreadable)
        return status;
    u->in_place = false;
    return undo_once(u, checked);
}

/*
 * One block, into `target`; NULL: only verify it, and all that it rests on. On LMCS_DAMAGED *why may hold a reason;
 * else the error does.
 */
static enum lmcs_status undo_block(struct reading *r, uint64_t block, void *target, struct scratch *scratch,
                                   const char **why, struct lmcs_error *error)
{
    if (r->only_stored)
        return check_stored_block(r, block, scratch, why, error);
    if (r->arrays > 0) {
        void *targets[LMC_MAX_BASES] = {NULL};
        for (size_t i = 0; i < r->arrays; i++)
            targets[i] = r->buffers[i] != NULL ? r->buffers[i] + block * LMC_BLOCK_BYTES : NULL;
        if (target != NULL)
            targets[r->chain->links[0].df.output] = target;
        return undo_line_block(r, block, targets, scratch, why, error);
    }
    uint64_t left = r->raw_bytes - block * LMC_BLOCK_BYTES;
    struct undoing u = {.r = r,
                        .block = block,
                        .bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES,
                        .target = target,
                        .scratch = scratch,
                        .in_place = r->in_place,
                        .error = error};
    bool checked = target == NULL || r->chain->length == 1;
    enum lmcs_status status = undo_links(&u, checked);
    if (status == LMCS_DAMAGED && !checked)
        status = undo_links(&u, true);
    *why = u.why;
    return status;
}

/* Damage does not end it: who asked is told of all that is lost. */
static void note_failure(struct reading *r, uint64_t block, enum lmcs_status status, const char *why,
                         const struct lmcs_error *error)
{
    uint64_t first = block * LMC_BLOCK_BYTES, left = r->raw_bytes - first;
    uint64_t bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    pthread_mutex_lock(&r->lock);
    if (!r->failed || (r->error.status == LMCS_DAMAGED && status != LMCS_DAMAGED)) {
        if (why != NULL)
            lmcs_fail(&r->error, status, 0, "%s", why);
        else
            r->error = *error;
        r->error.status = status;
    }
    r->failed = true;
    if (r->bad != NULL && status == LMCS_DAMAGED)
        r->bad->call(r->bad->context, first, bytes, why != NULL ? why : error->message);
    else if (status != LMCS_DAMAGED || !note_lost(r, block))
        r->go_on = false;
    pthread_mutex_unlock(&r->lock);
}

/* "rows 3 to 5 of 100 (elements 768 to 1535): " before the message. */
static void tell_lost(const struct reading *r, struct lmcs_error *error)
{
    enum { MOST_TOLD = 6 };
    struct lmcs_block_range ranges[MOST_TOLD];
    size_t count = 0;
    bool more = false;
    char text[512];
    for (uint64_t i = 0; i < lmc_block_count(r->raw_bytes); i++) {
        if (r->lost[i] == 0)
            continue;
        if (count > 0 && ranges[count - 1].first + ranges[count - 1].count == i)
            ranges[count - 1].count++;
        else if (count < MOST_TOLD)
            ranges[count++] = (struct lmcs_block_range){i, 1};
        else
            more = true;
        if (more)
            break;
    }
    lmcs_describe_blocks(ranges, count, more, r->dtype, r->ndim, r->shape, text, sizeof text);
    lmcs_error_prefix(error, "%s: ", text);
}

static void read_job(void *context, uint64_t block)
{
    struct reading *r = context;
    const char *why = NULL;
    struct lmcs_error error;
    pthread_mutex_lock(&r->lock);
    bool stop = r->failed && !r->go_on;
    pthread_mutex_unlock(&r->lock);
    if (stop)
        return;
    struct scratch *scratch = get_scratch(r);
    void *target = r->buffer != NULL ? r->buffer + block * LMC_BLOCK_BYTES : NULL;
    enum lmcs_status status =
        scratch == NULL ? lmcs_fail_memory(&error) : undo_block(r, block, target, scratch, &why, &error);
    if (status != LMCS_OK)
        note_failure(r, block, status, why, &error);
    if (scratch != NULL)
        put_scratch(r, scratch);
}

static enum lmcs_status check_empty(const struct reading *r, const char *name, struct lmcs_error *error)
{
    struct lmc_hash digest = lmc_digest(r->dtype, r->ndim, r->shape, NULL, 0);
    const struct lmcs_content_df *df = &r->chain->links[0].df;
    return digest.low == df->digest_low && digest.high == df->digest_high
               ? LMCS_OK
               : fail_link(r, name, "its digest is not what was written", error);
}

/* Reads and checks the headers of all links. */
static enum lmcs_status open_links(struct reading *r, const char *name, struct lmcs_error *error)
{
    const struct lmcs_chain *chain = r->chain;
    uint64_t expected;
    if (!lmcs_shape_bytes(r->dtype, r->ndim, r->shape, &expected) || expected != r->raw_bytes)
        return fail_link(r, name, "its size is not that of its shape", error);
    if (r->raw_bytes == 0)
        return check_empty(r, name, error);
    enum lmcs_status status = LMCS_OK;
    r->in_place = lmcs_guard_holds();
    for (size_t i = 0; i < chain->length; i++)
        r->links[i].content = &chain->links[i];
    if (chain->line > 0) {
        r->newest = chain->links[0].df.payload == LMCS_PAYLOAD_LINK ? 0 : 1;
        r->arrays = chain->length - chain->line - r->newest;
        status = open_line(r, name, error);
    }
    for (size_t i = r->newest + chain->line; status == LMCS_OK && i < chain->length; i++)
        status = chain->links[i].df.payload == LMCS_PAYLOAD_RAW ? open_raw(r, i, name, error)
                                                                : open_frame(r, i, name, error);
    return status;
}

static void end_reading(struct reading *r)
{
    for (struct scratch *s = r->free, *next; s != NULL; s = next) {
        next = s->next;
        free_scratch(s);
    }
    for (size_t i = 0; i < r->chain->length; i++)
        free(r->links[i].header);
    free(r->lost);
}

static enum lmcs_status read_all(struct reading *r, const char *name, struct lmcs_error *error)
{
    struct lmcs_pool *pool = r->pool;
    r->go_on = true;
    enum lmcs_status status = open_links(r, name, error);
    if (status == LMCS_DAMAGED && r->bad != NULL)
        r->bad->call(r->bad->context, 0, r->raw_bytes, error != NULL ? error->message : "its header is damaged");
    if (status == LMCS_OK && r->raw_bytes > 0) {
        pthread_mutex_init(&r->lock, NULL);
        for (uint64_t i = 0; r->chain->serial && i < lmc_block_count(r->raw_bytes); i++)
            read_job(r, i);
        if (!r->chain->serial)
            lmcs_workers_run(pool->workers, read_job, NULL, r, lmc_block_count(r->raw_bytes));
        pthread_mutex_destroy(&r->lock);
        if (r->failed) {
            status = r->error.status;
            if (status == LMCS_DAMAGED && r->lost != NULL)
                tell_lost(r, &r->error);
            if (status == LMCS_DAMAGED)
                lmcs_error_prefix(&r->error, "%s: tensor \"%s\" is damaged: ", pool->path, name);
            if (status == LMCS_UNSUPPORTED) {
                const struct lmcs_error why_not = r->error;
                fail_newer(r, name, why_not.message, &r->error);
            }
            if (error != NULL)
                *error = r->error;
        }
    }
    end_reading(r);
    return status;
}

enum lmcs_status lmcs_chain_read(struct lmcs_pool *pool, const struct lmcs_chain *chain, const char *name,
                                 uint32_t dtype, uint32_t ndim, const uint64_t *shape, void *buffer,
                                 const struct lmcs_bad_range *bad, struct lmcs_error *error)
{
    struct reading r = {.pool = pool,
                        .chain = chain,
                        .raw_bytes = chain->links[0].df.raw_bytes,
                        .dtype = dtype,
                        .ndim = ndim,
                        .shape = shape,
                        .buffer = buffer,
                        .bad = bad};
    return read_all(&r, name, error);
}

enum lmcs_status lmcs_chain_read_arrays(struct lmcs_pool *pool, const struct lmcs_chain *chain, const char *name,
                                        uint32_t ndim, const uint64_t *shape,
                                        const struct lmcs_content *const *contents, void *const *buffers,
                                        struct lmcs_error *error)
{
    struct reading r = {.pool = pool,
                        .chain = chain,
                        .raw_bytes = chain->links[0].df.raw_bytes,
                        .dtype = LMC_F32,
                        .ndim = ndim,
                        .shape = shape};
    for (size_t i = 0; i < LMC_MAX_BASES; i++) {
        r.contents[i] = contents[i];
        r.buffers[i] = buffers[i];
    }
    return read_all(&r, name, error);
}

enum lmcs_status lmcs_line_check(struct lmcs_pool *pool, const struct lmcs_chain *chain, size_t links, const char *name,
                                 uint32_t dtype, uint32_t ndim, const uint64_t *shape, struct lmcs_error *error)
{
    struct reading r = {.pool = pool,
                        .chain = chain,
                        .raw_bytes = chain->links[0].df.raw_bytes,
                        .dtype = dtype,
                        .ndim = ndim,
                        .shape = shape,
                        .only_stored = true,
                        .stored_links = links};
    return read_all(&r, name, error);
}

enum lmcs_status lmcs_link_check(struct lmcs_pool *pool, const struct lmcs_content *link,
                                 const struct lmcs_content *content, const char *name, uint32_t dtype, uint32_t ndim,
                                 const uint64_t *shape, struct lmcs_error *error)
{
    struct lmcs_chain *chain = calloc(1, sizeof *chain);
    uint64_t expected;
    if (chain == NULL)
        return lmcs_fail_memory(error);
    chain->length = chain->line = 1;
    chain->links[0] = *link;
    struct reading r = {.pool = pool,
                        .chain = chain,
                        .arrays = link->df.base_count,
                        .raw_bytes = link->df.raw_bytes,
                        .dtype = dtype,
                        .ndim = ndim,
                        .shape = shape};
    r.links[0].content = &chain->links[0];
    enum lmcs_status status = LMCS_OK;
    if (!lmcs_shape_bytes(dtype, ndim, shape, &expected) || expected != r.raw_bytes ||
        content->df.raw_bytes != r.raw_bytes)
        status = fail_link(&r, name, "its size is not that of its shape", error);
    else
        status = open_one_link(&r, 0, name, error);
    if (content->df.output < LMC_MAX_BASES)
        r.contents[content->df.output] = content;
    if (status == LMCS_OK && !is_led_to(&r, content->df.output))
        status = fail_link(&r, name, "its link's digest is not the one in its record", error);
    end_reading(&r);
    free(chain);
    return status;
}

/* ---- Block by block ---- */

struct lmcs_reader {
    struct reading r;
    char *name;
};

enum lmcs_status lmcs_reader_open(struct lmcs_pool *pool, const struct lmcs_chain *chain, const char *name,
                                  uint32_t dtype, uint32_t ndim, const uint64_t *shape, struct lmcs_reader **reader,
                                  struct lmcs_error *error)
{
    struct lmcs_reader *made = calloc(1, sizeof *made);
    char *copy = strdup(name);
    if (made == NULL || copy == NULL) {
        free(made);
        free(copy);
        return lmcs_fail_memory(error);
    }
    made->name = copy;
    made->r = (struct reading){.pool = pool,
                               .chain = chain,
                               .raw_bytes = chain->links[0].df.raw_bytes,
                               .dtype = dtype,
                               .ndim = ndim,
                               .shape = shape};
    pthread_mutex_init(&made->r.lock, NULL);
    enum lmcs_status status = open_links(&made->r, name, error);
    if (status == LMCS_OK)
        *reader = made;
    else
        lmcs_reader_close(made);
    return status;
}

void lmcs_reader_close(struct lmcs_reader *reader)
{
    if (reader == NULL)
        return;
    end_reading(&reader->r);
    pthread_mutex_destroy(&reader->r.lock);
    free(reader->name);
    free(reader);
}

enum lmcs_status lmcs_reader_block(struct lmcs_reader *reader, uint64_t block, void *to, struct lmcs_error *error)
{
    struct reading *r = &reader->r;
    const char *why = NULL;
    struct scratch *scratch = get_scratch(r);
    if (scratch == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = undo_block(r, block, to, scratch, &why, error);
    put_scratch(r, scratch);
    if (status == LMCS_UNSUPPORTED && why != NULL)
        return fail_newer(r, reader->name, why, error);
    if (status == LMCS_DAMAGED && why != NULL) {
        const struct lmcs_block_range range = {block, 1};
        char text[256];
        lmcs_describe_blocks(&range, 1, false, r->dtype, r->ndim, r->shape, text, sizeof text);
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: tensor \"%s\" is damaged: %s: %s", r->pool->path, reader->name,
                         text, why);
    }
    return status;
}
