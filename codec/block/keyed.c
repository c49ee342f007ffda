/* SPDX-License-Identifier: BSD-3-Clause */
/* keyed.c - the coded form of deltas of words of 1 or 8 bytes. */
#include "block/keyed.h"

#include "base/memory.h"
#include "block/classes.h"
#include "block/plane.h"
#include "block/shifts.h"
#include "kernels/kernels.h"

struct room {
    struct lmci_block_shape shape;
    unsigned char *memory;
    unsigned char *words;
    unsigned char *against;
    unsigned char *planes[LMCI_KEYED_PLANES];
    unsigned char *scratch;
    unsigned plane_count;
    size_t count;
};

static bool room_init(struct room *room, const struct lmci_block_shape *shape)
{
    room->count = shape->bytes / shape->word;
    room->shape = *shape;
    room->shape.word = lmci_keyed_word(shape->word);
    room->shape.bytes = room->count * room->shape.word;
    room->shape.stream = false;
    room->plane_count = shape->word == 8 ? LMCI_KEYED_PLANES : 0;
    const size_t stride = room->count + LMCI_PLANE_PAD;
    const size_t scratch = room->plane_count != 0 ? lmci_plane_scratch(room->count) : 0;
    room->memory = lmci_allocate(2 * room->shape.bytes + room->plane_count * stride + scratch);
    if (room->memory == NULL)
        return false;
    room->words = room->memory;
    room->against = room->words + room->shape.bytes;
    for (unsigned p = 0; p < room->plane_count; p++)
        room->planes[p] = room->against + room->shape.bytes + p * stride;
    room->scratch = room->against + room->shape.bytes + room->plane_count * stride;
    return true;
}

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

/* Writes the number of planes below the differences, then the planes. Returns 0 if there is no room. */
static size_t put_planes(const struct room *room, bool dense, unsigned low, unsigned char *dst, size_t capacity)
{
    const struct lmci_plane_coder coder = {room->scratch, dense, false, room->shape.pairs};
    size_t used = 1;
    if (capacity < used)
        return 0;
    dst[0] = (unsigned char)low;
    for (unsigned p = 0; p < room->plane_count; p++) {
        size_t written = lmci_plane_encode(room->planes[p], room->count, &coder, dst + used, capacity - used);
        if (written == 0)
            return 0;
        used += written;
    }
    return used;
}

enum lmc_status lmci_keyed_encode(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                  unsigned low, const unsigned char *data, const unsigned char *base,
                                  unsigned char *dst, size_t capacity, size_t *written)
{
    struct room room;
    struct lmci_classes own = *classes;
    if (!room_init(&room, shape))
        return LMC_NO_MEMORY;
    lmci_kernels()->keyed_base(shape->word, base, room.count, room.against);
    lmci_kernels()->keyed_split(shape->word, low, data, base, room.against, room.count, room.planes, room.words);
    if (!own.fitted)
        lmci_plan_shifts(room.shape.word, room.words, room.against, room.shape.bytes, &own);
    const size_t planes = put_planes(&room, shape->dense, low, dst, capacity);
    enum lmc_status status = LMC_OK;
    *written = 0;
    if (planes != 0)
        status = lmci_classes_encode(&room.shape, &own, room.words, room.against, NULL, dst + planes, capacity - planes,
                                     written);
    *written += *written != 0 ? planes : 0;
    lmci_release(room.memory);
    return status;
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

static enum lmc_status get_planes(struct lmci_reader *in, const struct room *room,
                                  const unsigned char *planes[LMCI_KEYED_PLANES], const char **message)
{
    enum lmc_status status = LMC_OK;
    for (unsigned p = 0; status == LMC_OK && p < room->plane_count; p++)
        status = lmci_plane_decode(in, room->count, room->scratch, room->planes[p], &planes[p], message);
    return status;
}

enum lmc_status lmci_keyed_decode(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                  const unsigned char *base, unsigned char *dst, const char **message)
{
    struct room room;
    const unsigned char *planes[LMCI_KEYED_PLANES];
    const unsigned char *low = lmci_take(in, 1);
    if (low == NULL || *low > (shape->word == 8 ? LMCI_KEYED_LOW_MOST : 0))
        return lmci_damaged(message, "a block has an impossible number of planes below its differences");
    if (!room_init(&room, shape))
        return lmci_fail(LMC_NO_MEMORY, message, "no memory to decode a block");
    lmci_kernels()->keyed_base(shape->word, base, room.count, room.against);
    enum lmc_status status = get_planes(in, &room, planes, message);
    if (status == LMC_OK)
        status = lmci_classes_decode(&room.shape, in, room.against, room.words, NULL, message);
    if (status == LMC_OK)
        lmci_kernels()->keyed_join(shape->word, *low, planes, room.words, room.against, base, room.count, dst);
    lmci_release(room.memory);
    return status;
}
