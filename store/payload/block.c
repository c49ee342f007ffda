/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/block.c - one block of a content, however it is stored.
 *
 * A chain is undone upwards in two small buffers in turn; only the topmost delta writes to the caller's memory. The
 * record's digest covers the block hashes, and the hashes cover the bytes. The topmost checksum covers all links below;
 * on a mismatch the chain is undone again with every link's checksums, to name the damaged one.
 *
 * A line is undone for all arrays of its state in one call of the codec, which checks the final state. Verification
 * also checks the arrays at its beginning: a link made from damaged bytes leads from the damaged bytes to the right
 * state, and from the right bytes to a wrong one.
 */
#include "payload/reading.h"

#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "payload/speed.h"

#define BROUGHT_BLOCKS 8u /* blocks asked for in one system call */

static bool raw_block_is_right(const struct lmcs_reading *r, const struct lmcs_reading_link *link, uint64_t block,
                               const void *data, uint64_t bytes)
{
    struct lmc_hash hash = lmc_hash128(data, bytes), expected;
    if (link->header != NULL) {
        memcpy(&expected, link->header + block * sizeof expected, sizeof expected);
        return hash.low == expected.low && hash.high == expected.high;
    }
    struct lmc_hash digest = lmc_digest(r->tensor.dtype, r->tensor.ndim, r->tensor.shape, &hash, 1);
    return digest.low == link->content->df.digest_low && digest.high == link->content->df.digest_high;
}

struct undoing {
    struct lmcs_reading *r;
    uint64_t block;
    uint64_t bytes;
    void *target; /* NULL: only verify */
    struct lmcs_scratch *scratch;
    bool in_place;       /* read payloads in the mapping */
    bool is_brought;     /* ... and the system was asked for them */
    bool is_unreadable;  /* the medium failed */
    const void *decoded; /* base of the next link; NULL: none yet */
    bool is_mapped;      /* `decoded` is in the pool */
    const char *why;     /* reason of damage; NULL: `error` has it */
    struct lmcs_error *error;
};

struct step {
    struct undoing *u;
    const struct lmcs_reading_link *link;
    bool checked; /* by this link's checksums */
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
    const bool timed = u->r->chain->is_timed && u->r->chain->length == 1;
    const uint64_t since = timed ? lmcs_speed_ns() : 0;
    s->decoded =
        (s->checked ? lmc_decode_block : lmc_decode_base)(&s->link->frame, u->block, s->stored, s->stored_bytes,
                                                          u->decoded != NULL ? bases : NULL, s->to, u->bytes, &u->why);
    if (timed && s->decoded == LMC_OK)
        lmcs_speed_add(u->r->pool, LMCS_DECODED_KEYFRAME, u->bytes, since);
}

static void check_step(void *context)
{
    struct step *s = context;
    s->is_right = raw_block_is_right(s->u->r, s->link, s->u->block, s->stored, s->stored_bytes);
}

/* Returns stored bytes in the mapping; NULL: copy them, which is faster for few bytes. */
static const void *stored_at(const struct undoing *u, const struct lmcs_reading_link *link, uint64_t at, uint64_t bytes)
{
    bool in_place = u->in_place && bytes >= LMCS_ALIGNED_BYTES && !lmcs_reading_is_new(u->r, link);
    const void *mapped = in_place ? lmcs_payload_at(u->r->pool->media, link->content, at, bytes) : NULL;
    if (mapped != NULL && !(u->is_brought && link->content->df.part_count == 1))
        lmcs_media_bring(mapped, bytes);
    return mapped;
}

/* Decodes in the mapping, or from a copy in `room`. If the medium fails under the mapping, copies are decoded: reading
 * the file gives the error. (The codec's memory leaks then.) */
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
        enum lmcs_status status = lmcs_reading_copy(u->r, s->link, at, room, s->stored_bytes, u->error);
        if (status != LMCS_OK)
            return status;
        s->stored = room;
    }
    u->is_unreadable = !lmcs_guard(mapped, count, decode_step, s);
    return u->is_unreadable ? LMCS_DAMAGED : LMCS_OK;
}

/* Reads a raw block into `to` if that is the target; else leaves the block mapped. */
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
        status = lmcs_reading_copy(u->r, s->link, at, to, u->bytes, u->error);
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
    struct lmcs_reading *r = u->r;
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

/* Makes room for the coded blocks of a line. False: no memory. */
static bool make_room(struct lmcs_scratch *scratch, uint64_t bytes)
{
    if (scratch->line_bytes > bytes)
        return true;
    free(scratch->line);
    scratch->line = malloc(bytes + bytes / 4 + 1);
    scratch->line_bytes = scratch->line != NULL ? bytes + bytes / 4 + 1 : 0;
    return scratch->line != NULL;
}

/* Finds the block in all links: mapped, or copied into one buffer. */
static enum lmcs_status read_line(struct lmcs_reading *r, uint64_t block, uint64_t bytes, bool in_place,
                                  struct lmcs_scratch *scratch, struct lmc_link_step *steps, const char **why,
                                  struct lmcs_error *error)
{
    uint64_t places[LMCS_LINK_BOUND], total = 0, at = 0;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; i < r->chain->line; i++) { /* oldest first */
        const struct lmcs_reading_link *link = &r->links[r->newest + r->chain->line - 1 - i];
        struct lmc_block coded = lmc_frame_block(&link->frame, block, &places[i]);
        steps[i] = (struct lmc_link_step){.frame = &link->frame, .coded_bytes = coded.coded_bytes};
        if (coded.coded_bytes > lmc_link_block_bound((uint32_t)r->arrays, bytes)) {
            *why = "a coded block is impossibly long";
            return LMCS_DAMAGED;
        }
        if (in_place && coded.coded_bytes >= LMCS_ALIGNED_BYTES && !lmcs_reading_is_new(r, link))
            steps[i].coded = lmcs_payload_at(r->pool->media, link->content, places[i], coded.coded_bytes);
        if (steps[i].coded != NULL)
            lmcs_media_bring(steps[i].coded, coded.coded_bytes);
        else
            total += coded.coded_bytes;
    }
    if (!make_room(scratch, total))
        return lmcs_fail_memory(error);
    for (size_t i = 0; status == LMCS_OK && i < r->chain->line; i++) {
        const struct lmcs_reading_link *link = &r->links[r->newest + r->chain->line - 1 - i];
        if (steps[i].coded != NULL)
            continue;
        steps[i].coded = scratch->line + at;
        status = lmcs_reading_copy(r, link, places[i], scratch->line + at, steps[i].coded_bytes, error);
        at += steps[i].coded_bytes;
    }
    return status;
}

/* Copies a block of an array with which the line begins; reads it from the file if the mapping fails. */
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

struct line_run {
    const struct lmc_link_step *steps;
    size_t count, at_once;
    uint64_t block, bytes;
    void *const *state;
    enum lmc_status result;
    const char *why;
    struct lmcs_pool *timed_for; /* NULL: do not count the time */
    size_t arrays;
};

static void run_line(void *context)
{
    struct line_run *run = context;
    const uint64_t since = run->timed_for != NULL ? lmcs_speed_ns() : 0;
    for (size_t i = 0; run->result == LMC_OK && i < run->count; i += run->at_once)
        run->result =
            lmc_link_decode_block(run->steps + i, run->at_once, run->block, run->state, run->bytes, NULL, &run->why);
    if (run->timed_for != NULL && run->result == LMC_OK)
        lmcs_speed_add(run->timed_for, LMCS_DECODED_LINK, run->bytes * run->arrays * run->count, since);
}

struct line_way {
    bool from_sound; /* compare the line's first arrays with their checksums */
    bool checked;    /* also each link alone, to name the damaged one */
    bool in_place;
    bool failed; /* the medium failed */
};

static enum lmcs_status undo_line(struct lmcs_reading *r, uint64_t block, struct line_way *way, void *const *state,
                                  struct lmcs_scratch *scratch, const char **why, struct lmcs_error *error)
{
    bool checked = way->checked;
    uint64_t at = block * LMC_BLOCK_BYTES, left = r->raw_bytes - at;
    uint64_t bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    struct lmc_link_step steps[LMCS_LINK_BOUND];
    struct lmcs_guarded mapped[LMCS_LINK_BOUND];
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < r->arrays; i++) {
        const struct lmcs_reading_link *start = &r->links[r->newest + r->chain->line + i];
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
                           .state = state,
                           .timed_for = r->chain->is_timed ? r->pool : NULL,
                           .arrays = r->arrays};
    for (size_t i = 0; i < run.count; i++)
        mapped[i] = (struct lmcs_guarded){steps[i].coded, steps[i].coded_bytes};
    way->failed = !lmcs_guard(mapped, way->in_place ? run.count : 0, run_line, &run);
    *why = run.why;
    if (run.result == LMC_NO_MEMORY)
        return lmcs_fail_memory(error);
    if (run.result == LMC_UNSUPPORTED) /* the block is sound, but newer */
        return LMCS_UNSUPPORTED;
    return run.result == LMC_OK && !way->failed ? LMCS_OK : LMCS_DAMAGED;
}

enum lmcs_status lmcs_reading_arrays(struct lmcs_reading *r, uint64_t block, void *const *targets,
                                     struct lmcs_scratch *scratch, const char **why, struct lmcs_error *error)
{
    void *state[LMC_MAX_BASES] = {NULL};
    bool is_wanted = false;
    for (size_t i = 0; i < r->arrays; i++) {
        is_wanted |= targets[i] != NULL;
        state[i] = targets[i] != NULL ? targets[i] : scratch->blocks[i];
    }
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
        status = lmcs_reading_copy(u->r, s->link, at, u->scratch->line, s->stored_bytes, u->error);
        if (status == LMCS_OK)
            check_coded(s);
    }
    if (status == LMCS_OK && !s->is_right) {
        u->why = "the checksum of a coded block does not match";
        return LMCS_DAMAGED;
    }
    return status;
}

/* Asks the system for the next blocks of a link, so that they are in memory when they are checked. */
static void bring_blocks(const struct undoing *u, const struct lmcs_reading_link *link)
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

/* Checks stored bytes of the newest links of a line; if these are all, also of the arrays at its beginning. */
static enum lmcs_status check_stored(struct undoing *u)
{
    struct lmcs_reading *r = u->r;
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

static enum lmcs_status check_stored_block(struct lmcs_reading *r, uint64_t block, struct lmcs_scratch *scratch,
                                           const char **why, struct lmcs_error *error)
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

/* ---- A block ---- */

/* Undoes the chain; again with copies if the medium fails under the mapping. `checked`: with the checksums of all
 * links, not only the topmost. */
static enum lmcs_status undo_links(struct undoing *u, bool checked)
{
    enum lmcs_status status = undo_once(u, checked);
    if (!u->is_unreadable)
        return status;
    u->in_place = false;
    return undo_once(u, checked);
}

enum lmcs_status lmcs_reading_block(struct lmcs_reading *r, uint64_t block, void *target, struct lmcs_scratch *scratch,
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
        return lmcs_reading_arrays(r, block, targets, scratch, why, error);
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
