/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * piece_decode.c - decodes one piece of a link in place.
 *
 * All checks come first. Then chunks that fit the first-level cache get gradients, moments, the differences of these,
 * and weights, which depend on the corrected moments.
 */
#include "block/block.h"
#include "block/plane.h"
#include "kernels/kernels.h"
#include "link/link.h"

#define PLANE_ROOM (LMCI_PIECE_ELEMENTS + LMCI_PLANE_PAD)

struct rest {
    enum lmci_rest_kind kind;
    size_t count;                /* of a list */
    const unsigned char *places; /* u16 each */
    const unsigned char *rest;   /* of a list, or a plane */
    const unsigned char *words;  /* of escapes */
    unsigned char *own;          /* the array, if it is a delta */
};

struct piece {
    const struct lmc_link_rule *rule;
    unsigned arrays;
    size_t elements;
    enum lmci_gradient_mode mode;
    int kappa;
    const unsigned char *symbols;
    const unsigned char *bytes;   /* SHORT */
    const unsigned char *lengths; /* VARIABLE */
    const unsigned char *raw;     /* gradients as they are */
    bool any_raw;
    struct rest rests[LMC_MAX_BASES];
    struct lmci_reader in;
    unsigned char *plane_scratch;
};

struct room {
    unsigned char symbols[PLANE_ROOM + LMCI_PIECE_ELEMENTS], bytes[PLANE_ROOM], spread[PLANE_ROOM];
    unsigned char rests[LMC_MAX_BASES][PLANE_ROOM];
    unsigned char deltas[LMC_MAX_BASES][4 * LMCI_PIECE_ELEMENTS];
    float values[LMCI_CHUNK_ELEMENTS];
    uint32_t bits[LMCI_CHUNK_ELEMENTS];
    unsigned char stored[LMCI_CHUNK_ELEMENTS], nothing[LMCI_CHUNK_ELEMENTS];
    unsigned char flags[LMCI_PIECE_ELEMENTS / 8];
};

size_t lmci_link_decoder_bytes(void)
{
    return sizeof(struct room) + 64 + lmci_plane_scratch(2 * LMCI_PIECE_ELEMENTS);
}

/* ---- Parsing --------------------------------------------------------------------------------------------------- */

static size_t count_of(const unsigned char *bytes, size_t count, unsigned char wanted)
{
    size_t found = 0;
    const unsigned char *end = bytes + count;
    for (const unsigned char *at = bytes; at < end && (at = memchr(at, wanted, (size_t)(end - at))) != NULL; at++)
        found++;
    return found;
}

static enum lmc_status get_plane(struct piece *piece, size_t count, unsigned char *own, const unsigned char **plane,
                                 const char **message)
{
    *plane = own;
    return count != 0 ? lmci_plane_decode(&piece->in, count, piece->plane_scratch, own, plane, message) : LMC_OK;
}

static enum lmc_status get_bytes(struct piece *piece, struct room *room, const char **message)
{
    const struct lmci_kernels *kernels = lmci_kernels();
    const bool zeros = memchr(piece->symbols, LMCI_SYMBOL_ZERO, piece->elements) != NULL;
    size_t count = piece->elements;
    if (zeros)
        count = kernels->tree_bits(piece->symbols, piece->elements, 1, room->flags);
    enum lmc_status status = get_plane(piece, count, room->bytes, &piece->bytes, message);
    if (status != LMC_OK || !zeros)
        return status;
    if (piece->bytes != room->bytes)
        memcpy(room->bytes, piece->bytes, count);
    const struct lmci_side sides[2] = {{NULL, 0}, {room->bytes, 0}};
    kernels->tree_merge(room->flags, piece->elements, sides, room->spread);
    piece->bytes = room->spread;
    return LMC_OK;
}

/* Reads symbols; in VARIABLE, also lengths. */
static enum lmc_status get_symbols(struct piece *piece, struct room *room, const char **message)
{
    const bool both = piece->mode == LMCI_GRADIENT_VARIABLE;
    const size_t count = both ? 2 * piece->elements : piece->elements;
    enum lmc_status status = get_plane(piece, count, room->symbols, &piece->symbols, message);
    if (status != LMC_OK)
        return status;
    if (piece->symbols != room->symbols) /* kernels read past the end */
        memcpy(room->symbols, piece->symbols, count);
    piece->symbols = room->symbols;
    piece->lengths = both ? room->symbols + piece->elements : NULL;
    unsigned char longest = 0;
    for (size_t i = piece->elements; i < count; i++)
        longest = room->symbols[i] > longest ? room->symbols[i] : longest;
    return longest <= 23 ? LMC_OK : lmci_damaged(message, "a gradient of a link is longer than it can be");
}

static enum lmc_status get_gradients(struct piece *piece, struct room *room, const char **message)
{
    const unsigned char *kappa;
    enum lmc_status status = LMC_OK;
    if (piece->mode == LMCI_GRADIENT_FULL) {
        if ((kappa = lmci_take(&piece->in, 1)) == NULL)
            return lmci_damaged(message, "a piece of a link ends inside its head");
        piece->kappa = (int8_t)*kappa;
        if (piece->kappa > LMCI_MOST_KAPPA || piece->kappa < -LMCI_MOST_KAPPA)
            return lmci_damaged(message, "a piece of a link drops an impossible number of bits");
    }
    status = get_symbols(piece, room, message);
    if (status == LMC_OK && piece->mode == LMCI_GRADIENT_SHORT)
        status = get_bytes(piece, room, message);
    if (status != LMC_OK)
        return status;
    const size_t raw = count_of(piece->symbols, piece->elements, LMCI_SYMBOL_RAW);
    piece->any_raw = raw != 0;
    piece->raw = lmci_take(&piece->in, 4 * raw);
    return piece->raw != NULL ? LMC_OK : lmci_damaged(message, "a piece of a link ends inside its gradients");
}

static enum lmc_status get_list(struct piece *piece, struct rest *rest, const char **message)
{
    const unsigned char *count = lmci_take(&piece->in, 2);
    rest->count = count != NULL ? lmci_load16(count) : 0;
    rest->places = lmci_take(&piece->in, 2 * rest->count);
    rest->rest = lmci_take(&piece->in, rest->count);
    if (count == NULL || rest->places == NULL || rest->rest == NULL)
        return lmci_damaged(message, "a piece of a link ends inside a list");
    for (size_t i = 0; i < rest->count; i++) {
        const unsigned place = lmci_load16(rest->places + 2 * i);
        if (place >= piece->elements || (i != 0 && place <= lmci_load16(rest->places + 2 * i - 2)))
            return lmci_damaged(message, "a list of a link has impossible indexes");
    }
    rest->words = lmci_take(&piece->in, 4 * count_of(rest->rest, rest->count, LMCI_REST_ESCAPE));
    return rest->words != NULL ? LMC_OK : lmci_damaged(message, "a piece of a link ends inside a list");
}

static enum lmc_status get_delta(struct piece *piece, const unsigned char *base, struct rest *rest,
                                 const char **message)
{
    const struct lmci_block_shape shape = {.word = 4, .bytes = 4 * piece->elements};
    const unsigned char *size = lmci_take(&piece->in, 3);
    const size_t bytes = size != NULL ? size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 : 0;
    const unsigned char *coded = size != NULL ? lmci_take(&piece->in, bytes) : NULL;
    if (coded == NULL)
        return lmci_damaged(message, "a piece of a link ends inside a delta");
    return lmci_block_decode(&shape, coded, bytes, base, rest->own, NULL, message);
}

static enum lmc_status get_rest(struct piece *piece, unsigned array, unsigned char *const *state, struct room *room,
                                const char **message)
{
    struct rest *rest = &piece->rests[array];
    rest->own = room->deltas[array];
    if (rest->kind == LMCI_REST_LIST)
        return get_list(piece, rest, message);
    if (rest->kind == LMCI_REST_DELTA)
        return get_delta(piece, state[array], rest, message);
    if (rest->kind != LMCI_REST_PLANE)
        return LMC_OK;
    enum lmc_status status = get_plane(piece, piece->elements, room->rests[array], &rest->rest, message);
    if (status != LMC_OK)
        return status;
    rest->words = lmci_take(&piece->in, 4 * count_of(rest->rest, piece->elements, LMCI_REST_ESCAPE));
    return rest->words != NULL ? LMC_OK : lmci_damaged(message, "a piece of a link ends inside its differences");
}

/* ---- The arithmetic -------------------------------------------------------------------------------------------- */

static const unsigned char *next_word(struct rest *rest)
{
    rest->words += 4;
    return rest->words - 4;
}

static void apply_list(struct rest *rest, size_t at, size_t n, unsigned char *words)
{
    for (; rest->count != 0 && lmci_load16(rest->places) < at + n; rest->count--, rest->places += 2, rest->rest++) {
        unsigned char *word = words + 4 * (lmci_load16(rest->places) - at);
        const int32_t more = (int8_t)*rest->rest;
        if (*rest->rest == LMCI_REST_ESCAPE)
            memcpy(word, next_word(rest), 4);
        else
            lmci_store32(word, lmci_load32(word) + (uint32_t)more);
    }
}

static void apply_plane(struct rest *rest, size_t at, size_t n, unsigned char *words)
{
    const unsigned char *from = rest->rest + at;
    lmci_link_kernels()->add_rest(n, from, (lmci_u32 *)(void *)words);
    for (size_t i = 0; i < n; i++) {
        const unsigned char *found = memchr(from + i, LMCI_REST_ESCAPE, n - i);
        if (found == NULL)
            return;
        i = (size_t)(found - from);
        memcpy(words + 4 * i, next_word(rest), 4);
    }
}

static void apply(struct rest *rest, size_t at, size_t n, unsigned char *words)
{
    if (rest->kind == LMCI_REST_LIST)
        apply_list(rest, at, n, words);
    else if (rest->kind == LMCI_REST_PLANE)
        apply_plane(rest, at, n, words);
    else if (rest->kind == LMCI_REST_DELTA)
        memcpy(words, rest->own + 4 * at, 4 * n);
}

/* Takes the bits of a chunk, which start with a new byte. */
static enum lmc_status take_bits(struct piece *piece, size_t bits, const unsigned char **from, const char **message)
{
    *from = lmci_take(&piece->in, (bits + 7) / 8);
    if (*from == NULL)
        return lmci_damaged(message, "a piece of a link ends inside its gradients");
    if (bits % 8 != 0 && (*from)[bits / 8] >> bits % 8 != 0)
        return lmci_damaged(message, "a piece of a link has bits past its end");
    return LMC_OK;
}

static enum lmc_status chunk_bits(struct piece *piece, size_t n, const struct lmci_reference *reference,
                                  const lmci_u32 *first, const struct lmci_gradients *gradients, const char **message)
{
    const struct lmci_link_kernels *kernels = lmci_link_kernels();
    const unsigned char *from;
    const size_t bits = kernels->stored(piece->mode, piece->kappa, n, reference, first, gradients);
    enum lmc_status status = take_bits(piece, bits, &from, message);
    if (status != LMC_OK)
        return status;
    kernels->unpack(n, gradients, from, (bits + 7) / 8);
    kernels->from_bits(piece->rule, piece->mode, n, reference, gradients);
    return LMC_OK;
}

/* Returns the gradients of a chunk. Casts const away: decoding kernels do not write these. */
static struct lmci_gradients gradients_at(const struct piece *piece, size_t at, struct room *room)
{
    return (struct lmci_gradients){
        .value = room->values,
        .symbol = (unsigned char *)(uintptr_t)(piece->symbols + at),
        .byte = (unsigned char *)(uintptr_t)(piece->bytes != NULL ? piece->bytes + at : NULL),
        .length = (unsigned char *)(uintptr_t)(piece->lengths != NULL ? piece->lengths + at : room->nothing),
        .stored = room->stored,
        .bits = room->bits,
    };
}

static enum lmc_status chunk_gradients(struct piece *piece, size_t n, unsigned char *const *now,
                                       const struct lmci_gradients *gradients, const char **message)
{
    const struct lmci_reference reference = lmci_reference_of(piece->rule, (const unsigned char *const *)now);
    enum lmc_status status = LMC_OK;
    if (piece->mode == LMCI_GRADIENT_SHORT)
        lmci_link_kernels()->from_bytes(piece->rule, n, &reference, gradients);
    else
        status = chunk_bits(piece, n, &reference, (const lmci_u32 *)(void *)now[LMCI_FIRST], gradients, message);
    for (size_t i = 0; piece->any_raw && i < n; i++)
        if (gradients->symbol[i] == LMCI_SYMBOL_RAW) {
            memcpy(&gradients->value[i], piece->raw, 4);
            piece->raw += 4;
        }
    return status;
}

static lmci_f32 *floats(unsigned char *array)
{
    return (lmci_f32 *)(void *)array;
}

/* Computes moments without differences; in one pass if all gradients are SHORT, or all of Adam's are FULL. */
static enum lmc_status chunk_moments(struct piece *piece, size_t n, unsigned char *const *now,
                                     const struct lmci_gradients *gradients, const char **message)
{
    const struct lmci_link_kernels *kernels = lmci_link_kernels();
    const struct lmc_link_rule *rule = piece->rule;
    const struct lmci_reference reference = lmci_reference_of(rule, (const unsigned char *const *)now);
    lmci_f32 *first = floats(now[LMCI_FIRST]), *weight = floats(now[lmci_weight_of(rule)]);
    lmci_f32 *second = rule->optimizer == LMC_ADAM ? floats(now[LMCI_SECOND]) : NULL;
    const bool any_raw = piece->any_raw && memchr(gradients->symbol, LMCI_SYMBOL_RAW, n) != NULL;
    if (piece->mode == LMCI_GRADIENT_SHORT && !any_raw) {
        kernels->short_moments(rule, n, &reference, gradients, weight, first, second);
        return LMC_OK;
    }
    if (piece->mode == LMCI_GRADIENT_FULL && rule->optimizer == LMC_ADAM && !any_raw) {
        const unsigned char *from = piece->in.at;
        const size_t bits = kernels->full_moments(rule, piece->kappa, n, &reference, gradients, weight, first, second,
                                                  from, lmci_left(&piece->in));
        return take_bits(piece, bits, &from, message);
    }
    enum lmc_status status = chunk_gradients(piece, n, now, gradients, message);
    if (status == LMC_OK)
        kernels->moments(rule, n, gradients->value, weight, first, second, first, second);
    return status;
}

/* Corrects the moments; computes the dependent arrays. */
static void chunk_step(struct piece *piece, size_t at, size_t n, unsigned char *const *now, const float *values)
{
    const struct lmci_link_kernels *kernels = lmci_link_kernels();
    const struct lmc_link_rule *rule = piece->rule;
    const unsigned weight = lmci_weight_of(rule);
    const bool adam = rule->optimizer == LMC_ADAM, greatest = (rule->flags & LMC_LINK_AMSGRAD) != 0 && adam;
    lmci_f32 *second = adam ? floats(now[LMCI_SECOND]) : NULL;
    apply(&piece->rests[LMCI_FIRST], at, n, now[LMCI_FIRST]);
    if (adam)
        apply(&piece->rests[LMCI_SECOND], at, n, now[LMCI_SECOND]);
    if (greatest) {
        lmci_f32 *most = floats(now[LMCI_ADAM_MOST]);
        kernels->most(n, second, most, most);
        apply(&piece->rests[LMCI_ADAM_MOST], at, n, now[LMCI_ADAM_MOST]);
        second = most;
    }
    kernels->weights(rule, n, values, floats(now[LMCI_FIRST]), second, floats(now[weight]), floats(now[weight]));
    apply(&piece->rests[weight], at, n, now[weight]);
}

static enum lmc_status run(struct piece *piece, unsigned char *const *state, struct room *room, const char **message)
{
    enum lmc_status status = LMC_OK;
    unsigned char *now[LMC_MAX_BASES] = {NULL};
    for (size_t at = 0; status == LMC_OK && at < piece->elements; at += LMCI_CHUNK_ELEMENTS) {
        const size_t left = piece->elements - at, n = left < LMCI_CHUNK_ELEMENTS ? left : LMCI_CHUNK_ELEMENTS;
        for (unsigned k = 0; k < piece->arrays; k++)
            now[k] = state[k] + 4 * at;
        const struct lmci_gradients gradients = gradients_at(piece, at, room);
        status = chunk_moments(piece, n, now, &gradients, message);
        if (status == LMC_OK)
            chunk_step(piece, at, n, now, room->values);
    }
    if (status == LMC_OK && lmci_left(&piece->in) != 0)
        return lmci_damaged(message, "bytes follow the end of a link's piece");
    return status;
}

static enum lmc_status get_head(struct piece *piece, const char **message)
{
    const unsigned char *head = lmci_take(&piece->in, 2);
    if (head == NULL)
        return lmci_damaged(message, "a piece of a link ends inside its head");
    if (head[0] < LMCI_GRADIENT_SHORT || head[0] > LMCI_GRADIENT_FULL)
        return lmci_unsupported(message, "a link encodes gradients in a mode unknown to this version");
    if (head[1] >> 2 * piece->arrays != 0 && piece->arrays < 4)
        return lmci_damaged(message, "a piece of a link has differences for a missing array");
    piece->mode = (enum lmci_gradient_mode)head[0];
    for (unsigned k = 0; k < piece->arrays; k++)
        piece->rests[k].kind = (enum lmci_rest_kind)(head[1] >> 2 * k & 3);
    return LMC_OK;
}

enum lmc_status lmci_link_decode_piece(const struct lmc_link_rule *rule, const unsigned char *coded, size_t coded_bytes,
                                       size_t elements, unsigned char *const *state, unsigned char *scratch,
                                       const char **message)
{
    struct room *room = (struct room *)(void *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    struct piece piece = {
        .rule = rule,
        .arrays = lmc_link_arrays(rule->optimizer, rule->flags),
        .elements = elements,
        .in = {coded, coded + coded_bytes},
        .plane_scratch = (unsigned char *)room + sizeof *room,
    };
    enum lmc_status status = get_head(&piece, message);
    if (status == LMC_OK)
        status = get_gradients(&piece, room, message);
    for (unsigned k = 0; status == LMC_OK && k < piece.arrays; k++)
        status = get_rest(&piece, k, state, room, message);
    if (status == LMC_OK && piece.mode == LMCI_GRADIENT_FULL)
        memset(room->nothing, 0, sizeof room->nothing);
    return status == LMC_OK ? run(&piece, state, room, message) : status;
}
