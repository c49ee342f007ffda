/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * frames_encode.c - encodes tensors to an image of a file of frames.
 *
 * Encoded blocks are adjacent, so a block's place is known once all earlier ones are encoded. If the place is known
 * when encoding starts (always with one thread), the block is encoded there; else into a ring of its thread, which fits
 * the caches, and copied later. A thread waits only when its ring is full.
 */
#include "frames.h"

#include <stdlib.h>
#include <string.h>

#define RING_BYTES  ((size_t)4 << 20)
#define RING_BLOCKS 256
#define BLOCK_ROOM  (LMC_BLOCK_BYTES + 1)

struct waiting {
    uint64_t block;
    size_t at;
    size_t bytes;
};

struct lane {
    unsigned char *ring;
    struct waiting *waiting; /* RING_BLOCKS, used in turn */
    size_t first;
    size_t count;
    size_t head; /* end of the newest block */
};

struct encoding {
    struct frames_work *work;
    struct frames_piece *pieces;
    size_t piece_count;
    enum lmc_level level;
    struct lane *lanes;
    uint32_t lane_count;
    uint64_t block_count;
    uint64_t raw_bytes;
    struct lmc_block *blocks; /* coded_bytes 0: not encoded yet */
    uint64_t *places;         /* places in the image of blocks below `placed` */
    unsigned char *image;
    pthread_mutex_t lock; /* guards the fields below and both arrays */
    pthread_cond_t moved;
    uint64_t taken;  /* blocks below are encoded or in progress */
    uint64_t placed; /* this block and all below have their place */
    size_t opened;   /* pieces below have their place */
    uint64_t end;    /* of block `placed` */
};

uint64_t frames_image_bound(const struct frames_plan *plan)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->count; i++)
        bytes += lmc_frame_bound(plan->pieces[i].bytes);
    return bytes;
}

/* ---- Places --------------------------------------------------------------------------------------------------- */

/* Places the headers of pieces that begin with block `placed`. */
static void open_pieces(struct encoding *e)
{
    while (e->opened < e->piece_count && e->pieces[e->opened].first_block == e->placed) {
        struct frames_piece *piece = &e->pieces[e->opened++];
        piece->at = e->end;
        e->end += lmc_encoder_header_bytes(piece->encoder);
    }
}

/* Places the blocks whose coded size is known. */
static void place_blocks(struct encoding *e)
{
    while (e->placed < e->block_count && e->blocks[e->placed].coded_bytes != 0) {
        e->places[e->placed] = e->end;
        e->end += e->blocks[e->placed].coded_bytes;
        e->placed++;
        open_pieces(e);
    }
}

/* ---- Rings ---------------------------------------------------------------------------------------------------- */

/* Returns where a block of any size fits into the ring; RING_BYTES: nowhere. */
static size_t ring_room(const struct lane *lane)
{
    if (lane->count == 0)
        return 0;
    size_t tail = lane->waiting[lane->first].at;
    if (lane->count == RING_BLOCKS)
        return RING_BYTES;
    if (lane->head <= tail)
        return tail - lane->head >= BLOCK_ROOM ? lane->head : RING_BYTES;
    if (RING_BYTES - lane->head >= BLOCK_ROOM)
        return lane->head;
    return tail >= BLOCK_ROOM ? 0 : RING_BYTES;
}

static void ring_add(struct lane *lane, uint64_t block, size_t at, size_t bytes)
{
    lane->waiting[(lane->first + lane->count++) % RING_BLOCKS] = (struct waiting){block, at, bytes};
    lane->head = at + bytes;
}

/* Copies blocks that have a place to the image. */
static void ring_flush(const struct encoding *e, struct lane *lane, uint64_t placed)
{
    while (lane->count != 0 && lane->waiting[lane->first].block < placed) {
        const struct waiting *waiting = &lane->waiting[lane->first];
        memcpy(e->image + e->places[waiting->block], lane->ring + waiting->at, waiting->bytes);
        lane->first = (lane->first + 1) % RING_BLOCKS;
        lane->count--;
    }
}

/* Copies the oldest block once it has a place. Needs the lock; releases it during the copy. */
static void ring_wait(struct encoding *e, struct lane *lane)
{
    uint64_t oldest = lane->waiting[lane->first].block;
    while (e->placed <= oldest && !atomic_load(&e->work->is_over))
        pthread_cond_wait(&e->moved, &e->lock);
    uint64_t placed = e->placed;
    pthread_mutex_unlock(&e->lock);
    ring_flush(e, lane, placed);
    pthread_mutex_lock(&e->lock);
}

/* ---- Threads -------------------------------------------------------------------------------------------------- */

static const struct frames_piece *piece_of(const struct encoding *e, uint64_t block)
{
    size_t low = 0;
    size_t high = e->piece_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (e->pieces[middle].first_block <= block)
            low = middle;
        else
            high = middle;
    }
    return &e->pieces[low];
}

static bool encode_block(struct encoding *e, struct lane *lane, uint64_t i, bool is_in_place, uint64_t end)
{
    const struct frames_piece *piece = piece_of(e, i);
    uint64_t index = i - piece->first_block;
    uint64_t left = piece->bytes - index * LMC_BLOCK_BYTES;
    size_t at = is_in_place ? 0 : ring_room(lane);
    struct lmc_block block;
    enum lmc_status status =
        lmc_encode_block(piece->encoder, index, is_in_place ? e->image + end : lane->ring + at, BLOCK_ROOM, &block);
    pthread_mutex_lock(&e->lock);
    if (status == LMC_OK) {
        e->blocks[i] = block;
        if (!is_in_place)
            ring_add(lane, i, at, block.coded_bytes);
        place_blocks(e);
    } else {
        frames_work_fail(e->work, i, status, "no memory to encode a block");
    }
    uint64_t placed = e->placed;
    pthread_cond_broadcast(&e->moved);
    pthread_mutex_unlock(&e->lock);
    ring_flush(e, lane, placed);
    return status == LMC_OK && frames_work_step(e->work, left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES);
}

static void encode_blocks(struct encoding *e, struct lane *lane)
{
    bool goes_on = true;
    while (goes_on) {
        pthread_mutex_lock(&e->lock);
        while (ring_room(lane) == RING_BYTES && !atomic_load(&e->work->is_over))
            ring_wait(e, lane);
        goes_on = e->taken < e->block_count && !atomic_load(&e->work->is_over);
        uint64_t i = e->taken;
        uint64_t end = e->end;
        bool is_in_place = e->placed == i;
        e->taken += goes_on;
        pthread_mutex_unlock(&e->lock);
        goes_on = goes_on && encode_block(e, lane, i, is_in_place, end);
    }
    pthread_mutex_lock(&e->lock);
    pthread_cond_broadcast(&e->moved);
    while (lane->count != 0 && !atomic_load(&e->work->is_over))
        ring_wait(e, lane);
    pthread_mutex_unlock(&e->lock);
}

static enum lmc_status run_lane(void *context, uint64_t i, uint64_t *bytes, const char **message)
{
    struct encoding *e = context;
    *bytes = 0;
    *message = NULL;
    encode_blocks(e, &e->lanes[i]);
    return LMC_OK;
}

/* ---- Plans and headers ---------------------------------------------------------------------------------------- */

static enum lmc_status plan_piece(void *context, uint64_t i, uint64_t *bytes, const char **message)
{
    struct encoding *e = context;
    struct frames_piece *piece = &e->pieces[i];
    struct lmc_params params = {
        .dtype = piece->dtype,
        .level = e->level,
        .raw_bytes = piece->bytes,
        .data = piece->data,
        .base = piece->base != NULL ? piece->base->data : NULL,
        .flags = i + 1 < e->piece_count ? LMC_FRAME_CONTINUES : 0,
    };
    if (piece->base != NULL)
        params.base_digest = piece->base->digest;
    *bytes = 0;
    return lmc_encoder_new(&params, &piece->encoder, message);
}

static enum lmc_status write_header(void *context, uint64_t i, uint64_t *bytes, const char **message)
{
    const struct encoding *e = context;
    const struct frames_piece *piece = &e->pieces[i];
    *bytes = 0;
    *message = "a header can't be written";
    return lmc_encode_header(piece->encoder, e->blocks + piece->first_block, e->image + piece->at,
                             lmc_encoder_header_bytes(piece->encoder));
}

static bool encode_all(struct encoding *e)
{
    struct frames_work *work = e->work;
    if (!frames_work_run(work, "planning", 0, plan_piece, e, e->piece_count))
        return false;
    open_pieces(e);
    return frames_work_run(work, "compressing", e->raw_bytes, run_lane, e, e->lane_count) &&
           frames_work_run(work, "compressing", e->raw_bytes, write_header, e, e->piece_count);
}

/* ---- All of it ------------------------------------------------------------------------------------------------ */

/* A ring takes memory only when used; a single thread never uses one. */
static bool lanes_init(struct encoding *e)
{
    e->lane_count = lmcs_workers_count(e->work->workers);
    e->lanes = calloc(e->lane_count, sizeof *e->lanes);
    for (uint32_t i = 0; e->lanes != NULL && i < e->lane_count; i++) {
        struct lane *lane = &e->lanes[i];
        lane->ring = malloc(RING_BYTES);
        lane->waiting = malloc(RING_BLOCKS * sizeof *lane->waiting);
        if (lane->ring == NULL || lane->waiting == NULL)
            return false;
        if (e->lane_count > 1)
            memset(lane->ring, 0, RING_BYTES);
    }
    return e->lanes != NULL;
}

static bool encoding_init(struct encoding *e)
{
    for (size_t i = 0; i < e->piece_count; i++) {
        e->pieces[i].first_block = e->block_count;
        e->block_count += lmc_block_count(e->pieces[i].bytes);
        e->raw_bytes += e->pieces[i].bytes;
    }
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->moved, NULL);
    e->blocks = calloc(e->block_count + 1, sizeof *e->blocks);
    e->places = malloc((e->block_count + 1) * sizeof *e->places);
    return lanes_init(e) && e->blocks != NULL && e->places != NULL;
}

static void encoding_free(struct encoding *e)
{
    for (size_t i = 0; i < e->piece_count; i++) {
        lmc_encoder_free(e->pieces[i].encoder);
        e->pieces[i].encoder = NULL;
    }
    for (uint32_t i = 0; e->lanes != NULL && i < e->lane_count; i++) {
        free(e->lanes[i].ring);
        free(e->lanes[i].waiting);
    }
    free(e->lanes);
    free(e->blocks);
    free(e->places);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->moved);
}

enum lmcs_status frames_encode(struct frames_work *work, const struct frames_plan *plan, struct frames_memory *image,
                               struct frames_report *report)
{
    struct encoding e = {
        .work = work, .pieces = plan->pieces, .piece_count = plan->count, .level = plan->level, .image = image->data};
    enum lmcs_status status = LMCS_OK;
    if (!encoding_init(&e)) {
        status = cli_fail(work->cli, LMCS_NO_MEMORY, 0, "out of memory");
    } else {
        double start = frames_now();
        if (!encode_all(&e))
            status = frames_work_error(work, work->cli->command->name);
        report->seconds += frames_now() - start;
    }
    image->bytes = (size_t)e.end;
    for (size_t i = 0; status == LMCS_OK && i < plan->count; i++)
        report->delta_count += lmc_encoder_base_count(plan->pieces[i].encoder);
    encoding_free(&e);
    return status;
}
