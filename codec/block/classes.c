/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * classes.c - the coded form of a block dealt to classes.
 *
 * The sizes of classes are stored, though they follow from the base: so the decoder reads the base only once, and
 * detects a wrong base. It does not trust them: an element advances each kind of list by at most one entry, so lists
 * with room for all elements are never left.
 */
#include "block/classes.h"

#include "base/memory.h"
#include "block/codes.h"
#include "kernels/kernels.h"

#define OUTLIERS_ONE_IN 8 /* most outliers; with more, another method is smaller */

struct room {
    unsigned char *memory;
    struct lmci_class_lists lists;
    unsigned char *symbols;
    unsigned char *packed;
    unsigned char *plane; /* of outliers, one for each byte of a word */
    unsigned char *piece; /* LMCI_OUT_BYTES of rotated words, and as many equal to the center */
    unsigned char *scratch;
};

/* Entries of lists: at most the words of the block. */
struct amounts {
    size_t symbols[LMCI_MAX_CLASSES];
    size_t low[3];
    size_t nibbles;
    size_t outliers;
};

static size_t aligned(size_t bytes)
{
    return (bytes + 2 * LMCI_CLASS_PAD) & ~(LMCI_CLASS_PAD - 1);
}

static size_t outlier_room(unsigned word, size_t n)
{
    return word * (n / OUTLIERS_ONE_IN + LMCI_PLANE_PAD);
}

static bool room_init(struct room *room, unsigned word, size_t n, size_t symbol_lists)
{
    size_t bytes = aligned(word * n) + (symbol_lists + 5) * aligned(n) + aligned(outlier_room(word, n)) +
                   2 * LMCI_OUT_BYTES + lmci_plane_scratch(n);
    room->memory = lmci_allocate(bytes);
    if (room->memory == NULL)
        return false;
    unsigned char *at = room->memory;
    room->lists.outliers = at;
    room->symbols = at += aligned(word * n);
    at += symbol_lists * aligned(n);
    for (unsigned k = 0; k < 3; k++, at += aligned(n))
        room->lists.low[k] = at;
    room->lists.nibbles = at;
    room->packed = at + aligned(n);
    room->plane = at + 2 * aligned(n);
    room->piece = room->plane + aligned(outlier_room(word, n));
    room->scratch = room->piece + 2 * LMCI_OUT_BYTES;
    return true;
}

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

struct sink {
    unsigned char *at;
    unsigned char *end;
    struct lmci_plane_coder coder;
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
    size_t written = lmci_plane_encode(plane, count, &out->coder, out->at, (size_t)(out->end - out->at));
    out->full = written == 0;
    out->at += written;
}

/* Writes a plane that is often noise, and may be in its place already. Otherwise it is moved to `list` first. */
static void put_low(struct sink *out, const unsigned char *plane, size_t count, unsigned char *list)
{
    const unsigned char kind = LMCI_PLANE_RAW;
    if (out->full || count == 0)
        return;
    if (lmci_plane_is_noise(plane, count)) {
        put_bytes(out, &kind, 1);
        if (plane == out->at)
            out->at += count;
        else
            put_bytes(out, plane, count);
        return;
    }
    if (plane != list)
        memcpy(list, plane, count);
    put_plane(out, list, count);
}

#define AMOUNT_BYTES 3

/* Where the first low list will be in the block as noise; NULL without room to deal words there. */
static unsigned char *low_place(const struct sink *out, const struct lmci_classes *classes, size_t n)
{
    const size_t before = AMOUNT_BYTES * (classes->count + 5) + 1;
    return !out->full && (size_t)(out->end - out->at) >= before + aligned(n) ? out->at + before : NULL;
}

/* Writes the symbols of a class, by shared codes if they fit. */
static void put_symbols(struct sink *out, const unsigned char *symbols, size_t count,
                        const struct lmci_classes *classes, unsigned class, const struct lmci_codes *codes)
{
    const size_t room = (size_t)(out->end - out->at);
    size_t written = 0;
    if (out->full || count == 0)
        return;
    if (codes != NULL && codes->count == classes->count && codes->shift[class] == classes->shift[class])
        written = lmci_plane_encode_shared(symbols, count, &codes->shared[class], &out->coder, out->at, room);
    if (written == 0 && out->coder.contexts)
        written = lmci_plane_encode(symbols, count, &out->coder, out->at, room);
    else if (written == 0)
        written = lmci_plane_encode_symbols(symbols, count, &out->coder, out->at, room);
    out->full = written == 0;
    out->at += written;
}

/* Fills the planes of outliers' bytes, the lowest first. */
static void outlier_planes(const struct room *room, unsigned word, size_t outliers, unsigned char *planes[4])
{
    for (unsigned k = 0; k < word; k++)
        planes[k] = room->plane + k * (outliers + LMCI_PLANE_PAD);
}

/* Writes outliers, rotated to separate signs from exponents. */
static void put_outliers(struct sink *out, unsigned word, const struct room *room, size_t outliers)
{
    unsigned char *planes[4];
    if (out->full)
        return;
    outlier_planes(room, word, outliers, planes);
    lmci_kernels()->split(LMCI_ROTATE, word, room->lists.outliers, NULL, outliers, planes);
    for (unsigned k = 0; k < word; k++)
        put_plane(out, planes[k], outliers);
}

static void fill_base(unsigned word, uint32_t center, unsigned char *base)
{
    for (size_t i = 0; i < LMCI_OUT_BYTES; i += word) {
        if (word == 2)
            lmci_store16(base + i, (uint16_t)center);
        else
            lmci_store32(base + i, center);
    }
}

/* Deals words without a base: all against the center. */
static void deal_alone(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                       const unsigned char *data, const struct room *room, struct lmc_hasher *hasher,
                       struct lmci_class_lists *lists)
{
    unsigned char *base = room->piece + LMCI_OUT_BYTES;
    fill_base(shape->word, classes->center, base);
    for (size_t done = 0; done < shape->bytes; done += LMCI_OUT_BYTES) {
        size_t bytes = shape->bytes - done < LMCI_OUT_BYTES ? shape->bytes - done : LMCI_OUT_BYTES;
        const unsigned char *words = data + done;
        lmc_hasher_update(hasher, words, bytes);
        if (classes->rotate) {
            lmci_kernels()->class_rotate(shape->word, true, words, bytes / shape->word, room->piece);
            words = room->piece;
        }
        lmci_kernels()->class_deal(shape->word, words, base, bytes / shape->word, classes, NULL, lists);
    }
}

/* Writes the number of a list's entries, in three bytes. */
static void put_amount(struct sink *out, size_t amount)
{
    unsigned char bytes[4];
    lmci_store32(bytes, (uint32_t)amount);
    put_bytes(out, bytes, AMOUNT_BYTES);
}

static void put_amounts(struct sink *out, const struct lmci_classes *classes, const struct lmci_class_lists *begin,
                        const struct lmci_class_lists *end, unsigned word, struct amounts *amounts)
{
    for (unsigned c = 0; c < classes->count; c++)
        put_amount(out, amounts->symbols[c] = (size_t)(end->symbols[c] - begin->symbols[c]));
    for (unsigned k = 0; k < 3; k++)
        put_amount(out, amounts->low[k] = (size_t)(end->low[k] - begin->low[k]));
    put_amount(out, amounts->nibbles = (size_t)(end->nibbles - begin->nibbles));
    put_amount(out, amounts->outliers = (size_t)(end->outliers - begin->outliers) / word);
}

static void put_lists(struct sink *out, const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                      const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                      struct room *room)
{
    unsigned char *const own[3] = {room->lists.low[0], room->lists.low[1], room->lists.low[2]};
    unsigned char *place = low_place(out, classes, shape->bytes / shape->word);
    struct amounts amounts;
    room->lists.low[0] = place != NULL ? place : own[0];
    struct lmci_class_lists lists = room->lists;
    if (base != NULL)
        lmci_kernels()->class_deal(shape->word, data, base, shape->bytes / shape->word, classes,
                                   hasher != NULL ? hasher->opaque : NULL, &lists);
    else
        deal_alone(shape, classes, data, room, hasher, &lists);
    put_amounts(out, classes, &room->lists, &lists, shape->word, &amounts);
    out->full = out->full || amounts.outliers > shape->bytes / shape->word / OUTLIERS_ONE_IN;
    for (unsigned k = 0; k < 3; k++)
        put_low(out, room->lists.low[k], amounts.low[k], own[k]);
    lmci_kernels()->pack_nibbles(room->lists.nibbles, amounts.nibbles, room->packed);
    put_plane(out, room->packed, (amounts.nibbles + 1) / 2);
    for (unsigned c = 0; c < classes->count; c++)
        put_symbols(out, room->lists.symbols[c], amounts.symbols[c], classes, c, base != NULL ? shape->codes : NULL);
    put_outliers(out, shape->word, room, amounts.outliers);
}

enum lmc_status lmci_classes_encode(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                    const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                                    unsigned char *dst, size_t capacity, size_t *written)
{
    struct room room;
    unsigned char head[6] = {classes->rotate};
    unsigned char count = (unsigned char)classes->count;
    size_t n = shape->bytes / shape->word;
    if (!room_init(&room, shape->word, n, classes->count))
        return LMC_NO_MEMORY;
    for (unsigned c = 0; c < LMCI_MAX_CLASSES; c++)
        room.lists.symbols[c] = c < classes->count ? room.symbols + c * aligned(n) : room.scratch;
    struct sink out = {dst, dst + capacity, {room.scratch, shape->dense, base == NULL, shape->pairs}, false};
    lmci_store32(head + 1, classes->center);
    put_bytes(&out, head, base != NULL ? 0 : 1 + shape->word);
    put_bytes(&out, &count, 1);
    put_bytes(&out, classes->first + 1, classes->count - 1);
    put_bytes(&out, classes->shift, classes->count);
    put_lists(&out, shape, classes, data, base, hasher, &room);
    *written = out.full ? 0 : (size_t)(out.at - dst);
    lmci_release(room.memory);
    return LMC_OK;
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

static enum lmc_status get_center(unsigned word, struct lmci_reader *in, struct lmci_classes *classes,
                                  const char **message)
{
    const unsigned char *rotate = lmci_take(in, 1);
    const unsigned char *center = lmci_take(in, word);
    if (rotate == NULL || center == NULL)
        return lmci_damaged(message, "a block ends inside its classes");
    if (*rotate > 1)
        return lmci_unsupported(message, "a block has a transform unknown to this version");
    classes->rotate = *rotate != 0;
    classes->center = word == 2 ? lmci_load16(center) : lmci_load32(center);
    return LMC_OK;
}

static enum lmc_status get_classes(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                   struct lmci_classes *classes, const char **message)
{
    const unsigned char *count = lmci_take(in, 1);
    if (count == NULL || *count == 0 || *count > LMCI_MAX_CLASSES)
        return lmci_damaged(message, "a block has an impossible number of classes");
    const unsigned char *first = lmci_take(in, *count - 1u);
    const unsigned char *shift = lmci_take(in, *count);
    if (first == NULL || shift == NULL)
        return lmci_damaged(message, "a block ends inside its classes");
    classes->count = *count;
    classes->first[0] = 0;
    memcpy(classes->first + 1, first, *count - 1u);
    memcpy(classes->shift, shift, *count);
    for (unsigned c = 0; c < classes->count; c++)
        if ((c > 0 && classes->first[c] <= classes->first[c - 1]) || classes->shift[c] % 4 != 0 ||
            classes->shift[c] > 8 * shape->word - 8)
            return lmci_damaged(message, "a block's classes are not well formed");
    return LMC_OK;
}

static enum lmc_status get_amount(struct lmci_reader *in, size_t most, size_t *amount, const char **message)
{
    const unsigned char *bytes = lmci_take(in, 3);
    if (bytes == NULL)
        return lmci_damaged(message, "a block ends inside its classes");
    *amount = bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16;
    return *amount <= most ? LMC_OK : lmci_damaged(message, "a list of a block is longer than it can be");
}

/* Reads the lengths of all lists. There must be as many symbols as elements. */
static enum lmc_status get_amounts(struct lmci_reader *in, const struct lmci_classes *classes, size_t n,
                                   struct amounts *amounts, const char **message)
{
    enum lmc_status status = LMC_OK;
    size_t all = 0;
    for (unsigned c = 0; status == LMC_OK && c < classes->count; c++) {
        status = get_amount(in, n - all, &amounts->symbols[c], message);
        all += status == LMC_OK ? amounts->symbols[c] : 0;
    }
    for (unsigned k = 0; status == LMC_OK && k < 3; k++)
        status = get_amount(in, n, &amounts->low[k], message);
    if (status == LMC_OK)
        status = get_amount(in, n, &amounts->nibbles, message);
    if (status == LMC_OK)
        status = get_amount(in, n / OUTLIERS_ONE_IN, &amounts->outliers, message);
    if (status == LMC_OK && all != n)
        return lmci_damaged(message, "a block's classes have too few elements");
    return status;
}

/* Reads a plane; a raw one is used in the input if `reach` bytes are readable there. */
static enum lmc_status get_plane(struct lmci_reader *in, size_t count, size_t reach, const struct room *room,
                                 unsigned char **own, const char **message)
{
    const unsigned char *plane;
    if (count == 0)
        return LMC_OK;
    enum lmc_status status = lmci_plane_decode(in, count, room->scratch, *own, &plane, message);
    if (status != LMC_OK || plane == *own)
        return status;
    if ((size_t)(in->end - plane) >= reach)
        *own = (unsigned char *)(uintptr_t)plane; /* only read */
    else
        memcpy(*own, plane, count);
    return LMC_OK;
}

static enum lmc_status get_lists(struct lmci_reader *in, const struct lmci_classes *classes,
                                 const struct amounts *amounts, size_t n, struct room *room, const char **message)
{
    enum lmc_status status = LMC_OK;
    const size_t reach = n + LMCI_CLASS_PAD; /* with a wrong base, all elements may take from one list */
    size_t packed_bytes = (amounts->nibbles + 1) / 2;
    unsigned char *packed = room->packed;
    unsigned char *at = room->symbols;
    for (unsigned k = 0; status == LMC_OK && k < 3; k++)
        status = get_plane(in, amounts->low[k], reach, room, &room->lists.low[k], message);
    if (status == LMC_OK)
        status = get_plane(in, packed_bytes, packed_bytes, room, &packed, message);
    if (status == LMC_OK && amounts->nibbles % 2 != 0 && packed[packed_bytes - 1] >> 4 != 0)
        status = lmci_damaged(message, "an unused half byte is not zero");
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

static enum lmc_status get_outliers(unsigned word, struct lmci_reader *in, size_t outliers, const struct room *room,
                                    const char **message)
{
    unsigned char *planes[4];
    enum lmc_status status = LMC_OK;
    outlier_planes(room, word, outliers, planes);
    for (unsigned k = 0; status == LMC_OK && k < word; k++)
        status = get_plane(in, outliers, outliers, room, &planes[k], message);
    if (status == LMC_OK)
        lmci_kernels()->merge(LMCI_ROTATE, word, (const unsigned char *const *)planes, NULL, outliers,
                              room->lists.outliers);
    return status;
}

/* Whether joining used every list up to its end. */
static bool all_used(unsigned word, const struct lmci_classes *classes, const struct amounts *amounts,
                     const struct lmci_class_lists *begin, const struct lmci_class_lists *end)
{
    bool even = end->outliers == begin->outliers + amounts->outliers * word;
    even = even && end->nibbles == begin->nibbles + amounts->nibbles;
    for (unsigned c = 0; c < classes->count; c++)
        even = even && end->symbols[c] == begin->symbols[c] + amounts->symbols[c];
    for (unsigned k = 0; k < 3; k++)
        even = even && end->low[k] == begin->low[k] + amounts->low[k];
    return even;
}

static void join_alone(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                       const struct room *room, unsigned char *dst, struct lmc_hasher *hasher,
                       struct lmci_class_lists *lists)
{
    unsigned char *base = room->piece + LMCI_OUT_BYTES;
    fill_base(shape->word, classes->center, base);
    for (size_t done = 0; done < shape->bytes; done += LMCI_OUT_BYTES) {
        size_t bytes = shape->bytes - done < LMCI_OUT_BYTES ? shape->bytes - done : LMCI_OUT_BYTES;
        lmci_kernels()->class_join(shape->word, base, bytes / shape->word, classes, NULL, lists, room->piece);
        if (classes->rotate)
            lmci_kernels()->class_rotate(shape->word, false, room->piece, bytes / shape->word, room->piece);
        lmci_deliver(shape, room->piece, bytes, dst + done, hasher);
    }
}

/* Joins all lists. With a base, lists that are not used exactly to their ends show that it is the wrong one. */
static enum lmc_status join_lists(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                  const struct amounts *amounts, const struct room *room, const unsigned char *base,
                                  unsigned char *dst, struct lmc_hasher *hasher, const char **message)
{
    struct lmci_class_lists lists = room->lists;
    if (base != NULL)
        lmci_kernels()->class_join(shape->word, base, shape->bytes / shape->word, classes,
                                   hasher != NULL ? hasher->opaque : NULL, &lists, dst);
    else
        join_alone(shape, classes, room, dst, hasher, &lists);
    if (all_used(shape->word, classes, amounts, &room->lists, &lists))
        return LMC_OK;
    return lmci_damaged(message, base != NULL ? "a block was encoded against another base"
                                              : "a block's lists do not end with its elements");
}

enum lmc_status lmci_classes_decode(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                    const unsigned char *base, unsigned char *dst, struct lmc_hasher *hasher,
                                    const char **message)
{
    struct lmci_classes classes;
    struct amounts amounts;
    struct room room;
    size_t n = shape->bytes / shape->word;
    enum lmc_status status = base != NULL ? LMC_OK : get_center(shape->word, in, &classes, message);
    if (status == LMC_OK)
        status = get_classes(shape, in, &classes, message);
    if (status == LMC_OK)
        status = get_amounts(in, &classes, n, &amounts, message);
    if (status != LMC_OK)
        return status;
    if (!room_init(&room, shape->word, n, 2))
        return lmci_fail(LMC_NO_MEMORY, message, "no memory to decode a block");
    status = get_lists(in, &classes, &amounts, n, &room, message);
    if (status == LMC_OK)
        status = get_outliers(shape->word, in, amounts.outliers, &room, message);
    if (status == LMC_OK)
        status = join_lists(shape, &classes, &amounts, &room, base, dst, hasher, message);
    lmci_release(room.memory);
    return status;
}
