/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * piece_encode.c - encodes one piece of a link, and plans how from a sample.
 *
 * For each chunk, the encoder finds gradients, performs the step with them, and stores the differences. In a SHORT
 * piece, gradients that are no bf16 are searched among all floats and stored as they are; with many, another mode is
 * used.
 */
#include "base/memory.h"
#include "block/block.h"
#include "block/huffman.h"
#include "block/plan.h"
#include "block/plane.h"
#include "kernels/kernels.h"
#include "link/link.h"

#define PLANE_ROOM (LMCI_PIECE_ELEMENTS + LMCI_PLANE_PAD)

/* In SHORT, at most one gradient in so many is no bf16. */
#define RAW_MOST 32
/* A search begins where guesses miss more than one moment in so many elements, and ends in a piece where it does not
 * halve them. If it does with so many, it replaces guesses. */
#define SEARCH_MISSES 256
#define GUESS_MISSES  4
/* Up to one in so many differences are a list. */
#define LIST_MOST 512
/* From one in so many escapes on, a delta may be smaller. */
#define ESCAPES_MOST 32

struct room {
    unsigned char symbols[PLANE_ROOM], bytes[PLANE_ROOM], lengths[PLANE_ROOM];
    unsigned char halves[PLANE_ROOM + LMCI_PIECE_ELEMENTS];
    unsigned char rests[LMC_MAX_BASES][PLANE_ROOM];
    unsigned char packed[4 * LMCI_PIECE_ELEMENTS]; /* at most 24 bits, and some bytes a chunk */
    float values[LMCI_CHUNK_ELEMENTS];
    uint32_t raw[LMCI_PIECE_ELEMENTS];
    uint32_t bits[LMCI_CHUNK_ELEMENTS];
    unsigned char stored[LMCI_CHUNK_ELEMENTS];
    /* Elements encoded a second time. */
    uint16_t again[LMCI_CHUNK_ELEMENTS];
    uint32_t gathered[2][LMC_MAX_BASES][LMCI_CHUNK_ELEMENTS];
    unsigned char symbols_again[LMCI_CHUNK_ELEMENTS], lengths_again[LMCI_CHUNK_ELEMENTS];
    unsigned char rests_again[LMC_MAX_BASES][LMCI_CHUNK_ELEMENTS];
    unsigned char stored_again[LMCI_CHUNK_ELEMENTS];
    uint32_t bits_again[LMCI_CHUNK_ELEMENTS];
    float values_again[LMCI_CHUNK_ELEMENTS];
};

struct piece {
    const struct lmc_link_rule *rule;
    const struct lmci_link_view *view;
    unsigned arrays;
    size_t elements;
    enum lmci_gradient_mode mode;
    int kappa;
    struct room *room;
    unsigned char *plane_scratch;
    bool guess;  /* FULL: gradients are guessed first */
    bool search; /* where guesses miss */
    bool no_search;
    size_t raw_count;
    size_t packed_bytes;
    size_t missed[LMC_MAX_BASES]; /* elements with a difference */
    unsigned char *at, *end;
};

size_t lmci_link_encoder_bytes(void)
{
    return sizeof(struct room) + 64 + lmci_plane_scratch(2 * LMCI_PIECE_ELEMENTS);
}

size_t lmci_link_piece_bound(uint32_t array_count, size_t elements)
{
    return 64 + (1 + 2 + 4 + 4) * elements + array_count * (16 + 5 * elements);
}

/* ---- The step -------------------------------------------------------------------------------------------------- */

static const lmci_f32 *floats(const unsigned char *array)
{
    return (const lmci_f32 *)(const void *)array;
}

static struct lmci_link_view view_at(const struct piece *piece, size_t at)
{
    struct lmci_link_view view = {{NULL}, {NULL}};
    for (unsigned k = 0; k < piece->arrays; k++) {
        view.before[k] = piece->view->before[k] + 4 * at;
        view.after[k] = piece->view->after[k] + 4 * at;
    }
    return view;
}

/* Finds where gradients miss a moment. */
static size_t find_missed(const struct piece *piece, size_t n, unsigned char *const *rest, uint16_t *places)
{
    const unsigned char *first = rest[LMCI_FIRST];
    const unsigned char *second = piece->rule->optimizer == LMC_ADAM ? rest[LMCI_SECOND] : first;
    size_t count = 0;
    for (size_t at = 0; at < n; at += 8) {
        const bool last = n - at < 8;
        if (!last && (lmci_load64(first + at) | lmci_load64(second + at)) == 0)
            continue;
        for (size_t i = at; i < (last ? n : at + 8); i++)
            if ((first[i] | second[i]) != 0)
                places[count++] = (uint16_t)i;
    }
    return count;
}

static struct lmci_link_view gather(const struct piece *piece, const struct lmci_link_view *view, size_t count)
{
    struct room *room = piece->room;
    struct lmci_link_view gathered = {{NULL}, {NULL}};
    for (unsigned k = 0; k < piece->arrays; k++) {
        for (size_t i = 0; i < count; i++) {
            room->gathered[0][k][i] = lmci_load32(view->before[k] + 4 * (size_t)room->again[i]);
            room->gathered[1][k][i] = lmci_load32(view->after[k] + 4 * (size_t)room->again[i]);
        }
        gathered.before[k] = (const unsigned char *)room->gathered[0][k];
        gathered.after[k] = (const unsigned char *)room->gathered[1][k];
    }
    return gathered;
}

/* Gradients found a second time, and their differences. */
struct again {
    struct lmci_gradients gradients;
    unsigned char *rest[LMC_MAX_BASES];
    size_t count;
};

/* Searches all floats, where a moment is missed, for gradients that lead to both. */
static struct again search_again(struct piece *piece, enum lmci_gradient_mode mode, const struct lmci_link_view *view,
                                 size_t n, unsigned char *const *rest)
{
    struct room *room = piece->room;
    size_t unused[LMC_MAX_BASES] = {0};
    struct again again = {.gradients = {.value = room->values_again,
                                        .symbol = room->symbols_again,
                                        .length = room->lengths_again,
                                        .stored = room->stored_again,
                                        .bits = room->bits_again},
                          .count = find_missed(piece, n, rest, room->again)};
    const struct lmci_link_view some = gather(piece, view, again.count);
    const struct lmci_reference reference = lmci_reference_of(piece->rule, some.before);
    for (unsigned k = 0; k < piece->arrays; k++)
        again.rest[k] = room->rests_again[k];
    lmci_link_kernels()->to_bits(piece->rule, mode, piece->kappa, again.count, &reference, &some, &again.gradients);
    lmci_link_kernels()->step(piece->rule, again.count, room->values_again, &some, again.rest, unused);
    return again;
}

static void take_rest(struct piece *piece, const struct again *again, size_t i, unsigned char *const *rest)
{
    const size_t at = piece->room->again[i];
    for (unsigned k = 0; k < piece->arrays; k++) {
        piece->missed[k] += (size_t)(again->rest[k][i] != 0) - (size_t)(rest[k][at] != 0);
        rest[k][at] = again->rest[k][i];
    }
}

/* Keeps gradients as they are where no bf16 leads to the moments (SHORT). */
static void find_raw(struct piece *piece, const struct lmci_link_view *view, size_t n,
                     const struct lmci_gradients *gradients, unsigned char *const *rest)
{
    const bool adam = piece->rule->optimizer == LMC_ADAM;
    const struct again again = search_again(piece, LMCI_GRADIENT_VARIABLE, view, n, rest);
    for (size_t i = 0; i < again.count; i++) {
        const size_t at = piece->room->again[i];
        if (again.rest[LMCI_FIRST][i] != 0 || (adam && again.rest[LMCI_SECOND][i] != 0))
            continue;
        take_rest(piece, &again, i, rest);
        gradients->symbol[at] = LMCI_SYMBOL_RAW;
        gradients->byte[at] = 0;
        gradients->value[at] = again.gradients.value[i];
    }
}

/* Replaces guesses that miss (FULL). */
static void find_exact(struct piece *piece, const struct lmci_link_view *view, size_t n,
                       const struct lmci_gradients *gradients, unsigned char *const *rest)
{
    const struct again again = search_again(piece, LMCI_GRADIENT_FULL, view, n, rest);
    for (size_t i = 0; i < again.count; i++) {
        const size_t at = piece->room->again[i];
        take_rest(piece, &again, i, rest);
        gradients->symbol[at] = again.gradients.symbol[i];
        gradients->stored[at] = again.gradients.stored[i];
        gradients->bits[at] = again.gradients.bits[i];
        gradients->value[at] = again.gradients.value[i];
    }
}

/* Keeps gradients whose exponent has no symbol. */
static void keep_raw(struct piece *piece, size_t n, const struct lmci_gradients *gradients)
{
    const unsigned char *at = gradients->symbol, *end = at + n;
    for (; at < end && (at = memchr(at, LMCI_SYMBOL_RAW, (size_t)(end - at))) != NULL; at++)
        memcpy(&piece->room->raw[piece->raw_count++], &gradients->value[at - gradients->symbol], 4);
}

static size_t missed_moments(const struct piece *piece)
{
    return piece->missed[LMCI_FIRST] + (piece->rule->optimizer == LMC_ADAM ? piece->missed[LMCI_SECOND] : 0);
}

/* In SHORT, the most gradients that are kept as they are, up to the end of a chunk. */
static size_t short_raw(size_t at)
{
    return (at + LMCI_CHUNK_ELEMENTS) / RAW_MOST;
}

/* The most elements of the first array that are missed. From the sum of both on, SHORT fails. */
static size_t short_missed(size_t at)
{
    return short_raw(at) + LMCI_CHUNK_ELEMENTS / 8;
}

static void run_chunk(struct piece *piece, size_t at, size_t n)
{
    const struct lmci_link_kernels *kernels = lmci_link_kernels();
    struct room *room = piece->room;
    const struct lmci_link_view view = view_at(piece, at);
    const struct lmci_reference reference = lmci_reference_of(piece->rule, view.before);
    const struct lmci_gradients gradients = {room->values,       room->symbols + at, room->bytes + at,
                                             room->lengths + at, room->stored,       room->bits};
    const size_t missed = missed_moments(piece);
    unsigned char *rest[LMC_MAX_BASES];
    for (unsigned k = 0; k < piece->arrays; k++)
        rest[k] = room->rests[k] + at;
    if (piece->mode == LMCI_GRADIENT_SHORT)
        kernels->to_bytes(piece->rule, n, &reference, floats(view.before[LMCI_FIRST]), floats(view.after[LMCI_FIRST]),
                          floats(view.before[lmci_weight_of(piece->rule)]), &gradients);
    else if (!piece->guess)
        kernels->to_bits(piece->rule, piece->mode, piece->kappa, n, &reference, &view, &gradients);
    if (piece->guess)
        kernels->guess_step(piece->rule, piece->kappa, n, &reference, &view, &gradients, rest, piece->missed);
    else
        kernels->step(piece->rule, n, gradients.value, &view, rest, piece->missed);
    const size_t some = missed_moments(piece) - missed;
    if (some != 0 && piece->mode == LMCI_GRADIENT_SHORT &&
        piece->missed[LMCI_FIRST] <= short_missed(at) + short_raw(at))
        find_raw(piece, &view, n, &gradients, rest);
    if (some > n / SEARCH_MISSES && piece->search) {
        find_exact(piece, &view, n, &gradients, rest);
        piece->search = 2 * (missed_moments(piece) - missed) < some;
        piece->guess = !piece->search || some <= n / GUESS_MISSES;
    }
    keep_raw(piece, n, &gradients);
    if (piece->mode != LMCI_GRADIENT_SHORT)
        piece->packed_bytes += kernels->pack(n, &gradients, room->packed + piece->packed_bytes);
}

static bool run_piece(struct piece *piece, enum lmci_gradient_mode mode)
{
    piece->mode = mode;
    piece->guess = mode == LMCI_GRADIENT_FULL;
    piece->search = piece->guess && !piece->no_search;
    piece->raw_count = 0;
    piece->packed_bytes = 0;
    memset(piece->missed, 0, sizeof piece->missed);
    for (size_t at = 0; at < piece->elements; at += LMCI_CHUNK_ELEMENTS) {
        const size_t left = piece->elements - at;
        run_chunk(piece, at, left < LMCI_CHUNK_ELEMENTS ? left : LMCI_CHUNK_ELEMENTS);
        if (mode == LMCI_GRADIENT_SHORT &&
            (piece->raw_count > short_raw(at) || piece->missed[LMCI_FIRST] > short_missed(at)))
            return false;
    }
    return true;
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

static void put(struct piece *piece, const void *bytes, size_t count)
{
    assert(count <= (size_t)(piece->end - piece->at));
    memcpy(piece->at, bytes, count);
    piece->at += count;
}

static void put_number(struct piece *piece, size_t number, unsigned bytes)
{
    unsigned char own[4];
    lmci_store32(own, (uint32_t)number);
    put(piece, own, bytes);
}

/* Of a long plane, up to one byte in so many is not zero: then it is sparse. */
#define SPARSE_MOST 8
#define SPARSE_LONG ((size_t)1 << 12)

static void put_sparse(struct piece *piece, const unsigned char *plane, size_t count)
{
    const struct lmci_plane_coder coder = {piece->plane_scratch, false, false, false};
    const size_t written = lmci_plane_encode_sparse(plane, count, &coder, piece->at, (size_t)(piece->end - piece->at));
    assert(written != 0);
    piece->at += written;
}

/* There is always room for a raw plane. */
static void put_plane(struct piece *piece, const unsigned char *plane, size_t count)
{
    const struct lmci_plane_coder coder = {piece->plane_scratch, false, false, false};
    if (count != 0) {
        const size_t written = lmci_plane_encode(plane, count, &coder, piece->at, (size_t)(piece->end - piece->at));
        assert(written != 0);
        piece->at += written;
    }
}

static void put_symbols(struct piece *piece)
{
    const struct lmci_plane_coder coder = {piece->plane_scratch, false, false, false};
    const size_t written = lmci_plane_encode_symbols(piece->room->symbols, piece->elements, &coder, piece->at,
                                                     (size_t)(piece->end - piece->at));
    assert(written != 0);
    piece->at += written;
}

/* Writes the bytes of nonzero SHORT gradients. They are mostly noise, which is copied. */
static void put_bytes(struct piece *piece)
{
    struct room *room = piece->room;
    size_t count = piece->elements;
    if (memchr(room->symbols, LMCI_SYMBOL_ZERO, count) != NULL) {
        count = 0;
        for (size_t i = 0; i < piece->elements; i++) {
            room->bytes[count] = room->bytes[i];
            count += room->symbols[i] != LMCI_SYMBOL_ZERO;
        }
    }
    put_plane(piece, room->bytes, count);
}

/* Writes symbols and lengths as two halves. Lengths depend on symbols: a small gradient has few bits above the lowest
 * bit of its addends. */
static void put_halves(struct piece *piece)
{
    struct room *room = piece->room;
    const struct lmci_plane_coder coder = {piece->plane_scratch, false, false, false};
    memcpy(room->halves, room->symbols, piece->elements);
    memcpy(room->halves + piece->elements, room->lengths, piece->elements);
    const size_t written =
        lmci_plane_encode_halves(room->halves, piece->elements, &coder, piece->at, (size_t)(piece->end - piece->at));
    assert(written != 0);
    piece->at += written;
}

/* Writes the words of escapes; returns how many. */
static size_t put_words(struct piece *piece, unsigned array)
{
    const unsigned char *rest = piece->room->rests[array], *end = rest + piece->elements;
    size_t escapes = 0;
    for (const unsigned char *at = rest; at < end && (at = memchr(at, LMCI_REST_ESCAPE, (size_t)(end - at))) != NULL;
         at++, escapes++)
        put(piece, piece->view->after[array] + 4 * (at - rest), 4);
    return escapes;
}

/* Returns the index of the next nonzero byte, which exists. */
static size_t next_missed(const unsigned char *rest, size_t at)
{
    while (lmci_load64(rest + at) == 0)
        at += 8;
    while (rest[at] == 0)
        at++;
    return at;
}

static void put_list(struct piece *piece, unsigned array)
{
    const unsigned char *rest = piece->room->rests[array];
    const size_t count = piece->missed[array];
    unsigned char more[LMCI_PIECE_ELEMENTS / LIST_MOST];
    put_number(piece, count, 2);
    for (size_t k = 0, at = 0; k < count; k++, at++) {
        at = next_missed(rest, at);
        put_number(piece, at, 2);
        more[k] = rest[at];
    }
    put(piece, more, count);
}

/* Encodes an array as a delta, from a copy of its bytes: another thread may change the array. *bytes is 0 without
 * memory. */
static enum lmc_status encode_delta(const struct piece *piece, unsigned array, unsigned char *copy, unsigned char *dst,
                                    size_t *bytes)
{
    const struct lmc_params params = {
        .dtype = LMC_F32, .raw_bytes = 4 * piece->elements, .data = copy, .base = piece->view->before[array]};
    const struct lmci_block_shape shape = {.word = 4, .bytes = 4 * piece->elements};
    struct lmci_scheme scheme;
    struct lmc_hash unused;
    memcpy(copy, piece->view->after[array], 4 * piece->elements);
    enum lmc_status status = lmci_plan(&params, false, &scheme);
    return status == LMC_OK ? lmci_block_encode(&shape, &scheme, params.data, params.base, dst, bytes, &unused)
                            : status;
}

/* Stores a plane or, with many escapes, a delta if smaller. */
static enum lmc_status put_much(struct piece *piece, unsigned array, enum lmci_rest_kind *kind)
{
    unsigned char *start = piece->at;
    enum lmc_status status = LMC_OK;
    size_t bytes = 0;
    *kind = LMCI_REST_PLANE;
    if (piece->elements >= SPARSE_LONG && piece->missed[array] < piece->elements / SPARSE_MOST)
        put_sparse(piece, piece->room->rests[array], piece->elements);
    else
        put_plane(piece, piece->room->rests[array], piece->elements);
    const size_t escapes = put_words(piece, array);
    if (escapes < piece->elements / ESCAPES_MOST && 2 * piece->missed[array] < piece->elements)
        return LMC_OK;
    unsigned char *delta = lmci_allocate(lmc_block_bound(4 * piece->elements) + 4 * piece->elements);
    if (delta == NULL)
        return LMC_NO_MEMORY;
    status = encode_delta(piece, array, delta + lmc_block_bound(4 * piece->elements), delta, &bytes);
    if (status == LMC_OK && bytes + 3 < (size_t)(piece->at - start)) {
        *kind = LMCI_REST_DELTA;
        piece->at = start;
        put_number(piece, bytes, 3);
        put(piece, delta, bytes);
    }
    lmci_release(delta);
    return status;
}

static enum lmc_status put_rest(struct piece *piece, unsigned array, enum lmci_rest_kind *kind)
{
    *kind = LMCI_REST_NONE;
    if (piece->missed[array] == 0)
        return LMC_OK;
    if (piece->missed[array] > piece->elements / LIST_MOST)
        return put_much(piece, array, kind);
    *kind = LMCI_REST_LIST;
    put_list(piece, array);
    (void)put_words(piece, array);
    return LMC_OK;
}

static enum lmc_status write_piece(struct piece *piece)
{
    struct room *room = piece->room;
    unsigned char *head = piece->at;
    enum lmc_status status = LMC_OK;
    put_number(piece, (size_t)piece->mode, 2);
    if (piece->mode == LMCI_GRADIENT_FULL)
        put_number(piece, (size_t)piece->kappa & 255, 1);
    if (piece->mode == LMCI_GRADIENT_VARIABLE)
        put_halves(piece);
    else
        put_symbols(piece);
    if (piece->mode == LMCI_GRADIENT_SHORT)
        put_bytes(piece);
    put(piece, room->raw, 4 * piece->raw_count);
    for (unsigned k = 0; status == LMC_OK && k < piece->arrays; k++) {
        enum lmci_rest_kind kind;
        status = put_rest(piece, k, &kind);
        head[1] |= (unsigned char)(kind << 2 * k);
    }
    put(piece, room->packed, piece->packed_bytes);
    return status;
}

static struct piece piece_of(const struct lmc_link_rule *rule, const struct lmci_link_view *view, size_t elements,
                             unsigned char *scratch, unsigned char *dst)
{
    struct room *room = (struct room *)(void *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    const unsigned arrays = lmc_link_arrays(rule->optimizer, rule->flags);
    return (struct piece){
        .rule = rule,
        .view = view,
        .arrays = arrays,
        .elements = elements,
        .room = room,
        .plane_scratch = (unsigned char *)room + sizeof *room,
        .at = dst,
        .end = dst + lmci_link_piece_bound(arrays, elements),
    };
}

enum lmc_status lmci_link_encode_piece(const struct lmc_link_rule *rule, struct lmci_link_plan *plan,
                                       const struct lmci_link_view *view, size_t elements, unsigned char *scratch,
                                       unsigned char *dst, size_t *coded_bytes)
{
    struct piece piece = piece_of(rule, view, elements, scratch, dst);
    piece.kappa = plan->kappa;
    piece.no_search = plan->no_search;
    if (!run_piece(&piece, plan->mode))
        (void)run_piece(&piece, plan->other);
    plan->no_search = piece.mode == LMCI_GRADIENT_FULL && !piece.search;
    enum lmc_status status = write_piece(&piece);
    *coded_bytes = (size_t)(piece.at - dst);
    return status;
}

/* ---- Planning -------------------------------------------------------------------------------------------------- */

/* Returns the size of the sample in a mode; SIZE_MAX: the mode fails. *raw_count: gradients stored as they are. */
static size_t size_in(const struct piece *from, enum lmci_gradient_mode mode, int kappa, size_t *raw_count,
                      enum lmc_status *status)
{
    struct piece piece = *from;
    piece.kappa = kappa;
    if (*status != LMC_OK || !run_piece(&piece, mode))
        return SIZE_MAX;
    *raw_count = piece.raw_count;
    *status = write_piece(&piece);
    return (size_t)(piece.at - from->at);
}

/* Returns whether FULL is smaller than the plan, which it is then. */
static bool try_full(const struct piece *piece, int kappa, struct lmci_link_plan *plan, size_t *bytes,
                     enum lmc_status *status)
{
    size_t unused;
    const size_t full = size_in(piece, LMCI_GRADIENT_FULL, kappa, &unused, status);
    if (full >= *bytes)
        return false;
    *bytes = full;
    *plan = (struct lmci_link_plan){LMCI_GRADIENT_FULL, LMCI_GRADIENT_FULL, kappa, false};
    return true;
}

/* Sizes have one minimum, mostly at a kappa from 1 to 3. With -24, no bits are dropped. */
static void plan_full(const struct piece *piece, struct lmci_link_plan *plan, size_t *bytes, enum lmc_status *status)
{
    (void)try_full(piece, 2, plan, bytes, status);
    const bool more = try_full(piece, 3, plan, bytes, status);
    const bool less = !more && try_full(piece, 1, plan, bytes, status);
    const bool most = more && try_full(piece, 4, plan, bytes, status);
    const bool none = plan->mode != LMCI_GRADIENT_FULL;
    if (less || none)
        (void)try_full(piece, 0, plan, bytes, status);
    if (most || none)
        (void)try_full(piece, -24, plan, bytes, status);
}

enum lmc_status lmci_link_plan(const struct lmc_link_rule *rule, const struct lmci_link_view *view, size_t elements,
                               const struct lmci_link_plan *like, struct lmci_link_plan *plan, size_t *bytes)
{
    const unsigned arrays = lmc_link_arrays(rule->optimizer, rule->flags);
    unsigned char *memory = lmci_allocate(lmci_link_encoder_bytes() + lmci_link_piece_bound(arrays, elements));
    enum lmc_status status = LMC_OK;
    if (memory == NULL)
        return LMC_NO_MEMORY;
    const struct piece piece = piece_of(rule, view, elements, memory, memory + lmci_link_encoder_bytes());
    size_t raw_count = 0;
    const size_t with_short = size_in(&piece, LMCI_GRADIENT_SHORT, 0, &raw_count, &status);
    /* If bf16 explains all, longer modes are not tried. If it fails, another parameter's plan is not compared. */
    const bool is_short = with_short < 2 * elements && raw_count == 0;
    *bytes = with_short;
    if (is_short) {
        *plan = (struct lmci_link_plan){LMCI_GRADIENT_SHORT, LMCI_GRADIENT_VARIABLE, 0, false};
    } else if (like != NULL) {
        *plan = *like;
        if (with_short != SIZE_MAX)
            *bytes = size_in(&piece, like->mode, like->kappa, &raw_count, &status);
    } else {
        *bytes = size_in(&piece, LMCI_GRADIENT_VARIABLE, 0, &raw_count, &status);
        *plan = (struct lmci_link_plan){LMCI_GRADIENT_VARIABLE, LMCI_GRADIENT_VARIABLE, 0, false};
        plan_full(&piece, plan, bytes, &status);
    }
    if (with_short < *bytes) {
        *bytes = with_short;
        plan->mode = LMCI_GRADIENT_SHORT;
    }
    lmci_release(memory);
    return status;
}
