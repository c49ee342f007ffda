/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * classes.c - the coded form of a block whose differences were dealt to classes.
 *
 * How many elements each class has follows from the base, but it is stored, too: so the decoder need not go through the
 * base twice, and sees at once that it has the wrong one. It must not be trusted: each element advances one list of
 * each kind by one, so lists that have room for all elements, wherever they begin, are never left.
 */
#include "classes.h"

#include "kernels.h"
#include "memory.h"
#include "plane.h"

#define OUTLIERS_ONE_IN 16 /* more than one outlier in so many elements: another way of coding is smaller */

/* Room for all lists of a block, for the packed nibbles, and for coding planes. */
struct room {
    unsigned char *memory;
    struct lmci_class_lists lists; /* where they begin */
    unsigned char *symbols;
    unsigned char *packed;
    unsigned char *plane; /* of outliers */
    unsigned char *words; /* of outliers */
    unsigned char *scratch;
};

/* How much is in the lists. */
struct amounts {
    size_t symbols[LMCI_MAX_CLASSES];
    size_t low[3];
    size_t nibbles;
};

static size_t aligned(size_t bytes)
{
    return (bytes + 2 * LMCI_CLASS_PAD) & ~(LMCI_CLASS_PAD - 1);
}

/* `symbol_lists`: how many lists of symbols there is to be room for. */
static bool room_init(struct room *room, size_t n, size_t symbol_lists)
{
    size_t outliers = n / OUTLIERS_ONE_IN;
    size_t bytes = aligned(4 * outliers) + (symbol_lists + 7) * aligned(n) + lmci_plane_scratch(n);
    room->memory = lmci_allocate(bytes);
    if (!room->memory)
        return false;
    unsigned char *at = room->memory;
    room->lists.outliers = (uint32_t *)(void *)at;
    room->lists.most_outliers = outliers;
    room->lists.outlier_count = 0;
    room->symbols = at += aligned(4 * outliers);
    at += symbol_lists * aligned(n);
    for (unsigned k = 0; k < 3; k++, at += aligned(n))
        room->lists.low[k] = at;
    room->lists.nibbles = at;
    room->packed = at + aligned(n);
    room->plane = at + 2 * aligned(n);
    room->words = at + 3 * aligned(n);
    room->scratch = at + 4 * aligned(n);
    return true;
}

/* Bytes and half bytes below the symbols. */
static void count_low(const struct lmci_classes *classes, struct amounts *amounts)
{
    memset(amounts->low, 0, sizeof amounts->low);
    amounts->nibbles = 0;
    for (unsigned c = 0; c < classes->count; c++) {
        for (unsigned k = 0; k < 3 && 8 * k + 8 <= classes->shift[c]; k++)
            amounts->low[k] += amounts->symbols[c];
        amounts->nibbles += classes->shift[c] % 8 ? amounts->symbols[c] : 0;
    }
}

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

struct sink {
    unsigned char *at;
    unsigned char *end;
    unsigned char *scratch;
    bool full;
};

static void put_bytes(struct sink *out, const void *bytes, size_t count)
{
    out->full = out->full || (size_t)(out->end - out->at) < count;
    if (out->full)
        return;
    memcpy(out->at, bytes, count);
    out->at += count;
}

static void put_plane(struct sink *out, const unsigned char *plane, size_t count)
{
    if (out->full || count == 0)
        return;
    size_t written = lmci_plane_encode(plane, count, out->scratch, out->at, (size_t)(out->end - out->at));
    out->full = written == 0;
    out->at += written;
}

/* Gaps between places as planes of their three bytes, then the words as planes of theirs. */
static void put_outliers(struct sink *out, const struct lmci_block_shape *shape, const unsigned char *data,
                         struct room *room, size_t outliers)
{
    const uint32_t count = (uint32_t)outliers;
    unsigned char *plane = room->plane;
    put_bytes(out, &count, sizeof count);
    for (unsigned k = 0; k < 3; k++) {
        uint32_t next = 0;
        for (size_t i = 0; i < outliers; i++) {
            plane[i] = (unsigned char)((room->lists.outliers[i] - next) >> 8 * k);
            next = room->lists.outliers[i] + 1;
        }
        put_plane(out, plane, outliers);
    }
    for (unsigned k = 0; k < shape->word; k++) {
        for (size_t i = 0; i < outliers; i++)
            plane[i] = data[(size_t)room->lists.outliers[i] * shape->word + k];
        put_plane(out, plane, outliers);
    }
}

static bool deal_pieces(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                        const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                        struct lmci_class_lists *lists)
{
    bool fine = true;
    for (size_t done = 0; done < shape->bytes; done += LMCI_PIECE_BYTES) {
        size_t bytes = shape->bytes - done < LMCI_PIECE_BYTES ? shape->bytes - done : LMCI_PIECE_BYTES;
        lmc_hasher_update(hasher, data + done, bytes);
        fine = fine && lmci_kernels()->class_deal(shape->word, data, base, done / shape->word, bytes / shape->word,
                                                  classes, lists);
    }
    return fine;
}

static void put_lists(struct sink *out, const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                      const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                      struct room *room)
{
    struct lmci_class_lists lists = room->lists;
    struct amounts amounts = {{0}, {0}, 0};
    if (!deal_pieces(shape, classes, data, base, hasher, &lists)) {
        out->full = true;
        return;
    }
    for (unsigned c = 0; c < classes->count; c++) {
        const uint32_t count = (uint32_t)(amounts.symbols[c] = (size_t)(lists.symbols[c] - room->lists.symbols[c]));
        put_bytes(out, &count, 3);
    }
    count_low(classes, &amounts);
    for (unsigned k = 0; k < 3; k++)
        put_plane(out, room->lists.low[k], amounts.low[k]);
    lmci_kernels()->pack_nibbles(room->lists.nibbles, amounts.nibbles, room->packed);
    put_plane(out, room->packed, (amounts.nibbles + 1) / 2);
    for (unsigned c = 0; c < classes->count; c++)
        put_plane(out, room->lists.symbols[c], amounts.symbols[c]);
    put_outliers(out, shape, data, room, lists.outlier_count);
}

enum lmc_status lmci_classes_encode(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                    const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                                    unsigned char *dst, size_t capacity, size_t *written)
{
    struct room room;
    unsigned char count = (unsigned char)classes->count;
    size_t n = shape->bytes / shape->word;
    if (!room_init(&room, n, classes->count))
        return LMC_NO_MEMORY;
    for (unsigned c = 0; c < LMCI_MAX_CLASSES; c++)
        room.lists.symbols[c] = c < classes->count ? room.symbols + c * aligned(n) : room.scratch;
    struct sink out = {dst, dst + capacity, room.scratch, false};
    put_bytes(&out, &count, 1);
    put_bytes(&out, classes->first + 1, classes->count - 1);
    put_bytes(&out, classes->shift, classes->count);
    put_lists(&out, shape, classes, data, base, hasher, &room);
    *written = out.full ? 0 : (size_t)(out.at - dst);
    lmci_release(room.memory);
    return LMC_OK;
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

static enum lmc_status get_classes(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                   struct lmci_classes *classes, const char **message)
{
    const unsigned char *count = lmci_take(in, 1);
    if (!count || *count == 0 || *count > LMCI_MAX_CLASSES)
        return lmci_damaged(message, "a block has an impossible number of classes");
    const unsigned char *first = lmci_take(in, *count - 1u);
    const unsigned char *shift = lmci_take(in, *count);
    if (!first || !shift)
        return lmci_damaged(message, "a block ends inside its classes");
    classes->count = *count;
    classes->first[0] = 0;
    memcpy(classes->first + 1, first, *count - 1u);
    memcpy(classes->shift, shift, *count);
    for (unsigned c = 0; c < classes->count; c++)
        if ((c > 0 && classes->first[c] <= classes->first[c - 1]) || classes->shift[c] % 4 ||
            classes->shift[c] > 8 * shape->word - 8)
            return lmci_damaged(message, "a block's classes are not well formed");
    return LMC_OK;
}

/* How many elements each class has, by what is stored: as many as the block in all. */
static enum lmc_status get_amounts(struct lmci_reader *in, const struct lmci_classes *classes, size_t n,
                                   struct amounts *amounts, const char **message)
{
    size_t all = 0;
    for (unsigned c = 0; c < classes->count; c++) {
        const unsigned char *bytes = lmci_take(in, 3);
        if (!bytes)
            return lmci_damaged(message, "a block ends inside its classes");
        amounts->symbols[c] = bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16;
        all += amounts->symbols[c];
    }
    if (all != n)
        return lmci_damaged(message, "a block's classes have more or fewer elements than it");
    count_low(classes, amounts);
    return LMC_OK;
}

/* A plane, left where it is in the input if `reach` bytes may be read from there on. */
static enum lmc_status get_plane(struct lmci_reader *in, size_t count, size_t reach, struct room *room,
                                 unsigned char **own, const char **message)
{
    const unsigned char *plane;
    if (count == 0)
        return LMC_OK;
    enum lmc_status status = lmci_plane_decode(in, count, room->scratch, *own, &plane, message);
    if (status != LMC_OK || plane == *own)
        return status;
    if ((size_t)(in->end - plane) >= reach)
        *own = (unsigned char *)(uintptr_t)plane; /* only read from here on */
    else
        memcpy(*own, plane, count);
    return LMC_OK;
}

static enum lmc_status get_lists(struct lmci_reader *in, const struct lmci_classes *classes,
                                 const struct amounts *amounts, size_t n, struct room *room, const char **message)
{
    enum lmc_status status = LMC_OK;
    const size_t reach = n + LMCI_CLASS_PAD; /* with another base, all elements may ask for the same list */
    size_t packed_bytes = (amounts->nibbles + 1) / 2;
    unsigned char *packed = room->packed;
    unsigned char *at = room->symbols;
    for (unsigned k = 0; status == LMC_OK && k < 3; k++)
        status = get_plane(in, amounts->low[k], reach, room, &room->lists.low[k], message);
    if (status == LMC_OK)
        status = get_plane(in, packed_bytes, packed_bytes, room, &packed, message);
    if (status == LMC_OK && amounts->nibbles % 2 && packed[packed_bytes - 1] >> 4)
        status = lmci_damaged(message, "half a byte that is left over is not zero");
    if (status == LMC_OK)
        lmci_kernels()->unpack_nibbles(packed, amounts->nibbles, room->lists.nibbles);
    for (unsigned c = 0; c < LMCI_MAX_CLASSES; c++) {
        room->lists.symbols[c] = at;
        if (status != LMC_OK || c >= classes->count)
            continue;
        status = get_plane(in, amounts->symbols[c], reach, room, &room->lists.symbols[c], message);
        at += amounts->symbols[c];
    }
    return status;
}

/* Places, and the words that belong there. */
static enum lmc_status get_outliers(const struct lmci_block_shape *shape, struct lmci_reader *in, struct room *room,
                                    const char **message)
{
    uint32_t *place = room->lists.outliers;
    const unsigned char *said = lmci_take(in, 4);
    size_t n = shape->bytes / shape->word;
    size_t count = said ? lmci_load32(said) : SIZE_MAX;
    if (count > room->lists.most_outliers)
        return lmci_damaged(message, "a block has an impossible number of outliers");
    memset(place, 0, count * sizeof *place);
    for (unsigned k = 0; k < 3 + shape->word; k++) {
        unsigned char *plane = room->plane;
        enum lmc_status status = get_plane(in, count, count, room, &plane, message);
        if (status != LMC_OK)
            return status;
        for (size_t i = 0; i < count; i++) {
            if (k < 3)
                place[i] |= (uint32_t)plane[i] << 8 * k;
            else
                room->words[i * shape->word + k - 3] = plane[i];
        }
    }
    for (size_t i = 0, next = 0; i < count; i++) {
        if (place[i] >= n - next)
            return lmci_damaged(message, "an outlier lies past the end of its block");
        place[i] += (uint32_t)next;
        next = place[i] + 1;
    }
    room->lists.outlier_count = count;
    return LMC_OK;
}

/* Joins the lists, which must come out even: whether they do is up to the base. */
static enum lmc_status join_pieces(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                   const struct amounts *amounts, const struct room *room, const unsigned char *base,
                                   unsigned char *dst, struct lmc_hasher *hasher, const char **message)
{
    struct lmci_class_lists lists = room->lists;
    size_t outlier = 0;
    for (size_t done = 0; done < shape->bytes; done += LMCI_PIECE_BYTES) {
        size_t bytes = shape->bytes - done < LMCI_PIECE_BYTES ? shape->bytes - done : LMCI_PIECE_BYTES;
        size_t end = (done + bytes) / shape->word;
        lmci_kernels()->class_join(shape->word, base + done, bytes / shape->word, classes, &lists, dst + done);
        for (; outlier < lists.outlier_count && lists.outliers[outlier] < end; outlier++)
            memcpy(dst + (size_t)lists.outliers[outlier] * shape->word, room->words + outlier * shape->word,
                   shape->word);
        lmc_hasher_update(hasher, dst + done, bytes);
    }
    for (unsigned c = 0; c < classes->count; c++)
        if (lists.symbols[c] != room->lists.symbols[c] + amounts->symbols[c])
            return lmci_damaged(message, "a block was coded against another base");
    return LMC_OK;
}

enum lmc_status lmci_classes_decode(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                    const unsigned char *base, unsigned char *dst, struct lmc_hasher *hasher,
                                    const char **message)
{
    struct lmci_classes classes;
    struct amounts amounts;
    struct room room;
    size_t n = shape->bytes / shape->word;
    enum lmc_status status = get_classes(shape, in, &classes, message);
    if (status == LMC_OK)
        status = get_amounts(in, &classes, n, &amounts, message);
    if (status != LMC_OK)
        return status;
    if (!room_init(&room, n, 2)) {
        *message = "no memory to decode a block";
        return LMC_NO_MEMORY;
    }
    status = get_lists(in, &classes, &amounts, n, &room, message);
    if (status == LMC_OK)
        status = get_outliers(shape, in, &room, message);
    if (status == LMC_OK)
        status = join_pieces(shape, &classes, &amounts, &room, base, dst, hasher, message);
    lmci_release(room.memory);
    return status;
}
