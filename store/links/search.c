/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * links/search.c - finds the tensors that an optimizer step changed together.
 *
 * Second moments are never negative and never fall faster than by their beta. With the right first moment, both yield
 * the same gradient. The right parameter's change is the first moment over the root of the second, times one rate.
 * Samples decide nearly all candidates; lmc_link_fit decides the rest.
 */
#include "links/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/grow.h"
#include "base/order.h"
#include "media/layout.h"

#define PLACES       64u
#define ENOUGH       (PLACES * 3 / 4) /* places that must fit: some elements are zero, or lose their digits */
#define MOST_BITS    19.0F            /* for an element of each array; above, a link explains nothing */
#define SEARCH_EVERY 16u              /* a state without steps costs little */

struct sample {
    double before[PLACES], after[PLACES];
    size_t array;
    bool is_taken;
    bool is_second;
    bool is_still; /* fewer than a quarter of the sampled elements changed */
};

struct search {
    const struct lmcs_search_array *arrays;
    struct sample *samples; /* arrays of one size, in their order */
    size_t count;
    /* Distances between the arrays of the last match, tried first: a state repeats its order. */
    size_t first_from_second, weight_from_second;
    struct lmcs_search_match *matches;
    size_t found, capacity;
};

/* ---- Samples ---- */

static double element(const void *array, uint64_t at)
{
    float value;
    memcpy(&value, (const unsigned char *)array + at * sizeof value, sizeof value);
    return value;
}

static void take_sample(const struct lmcs_search_array *array, struct sample *sample)
{
    unsigned not_negative = 0, changed = 0;
    for (unsigned i = 0; i < PLACES; i++) {
        /* an odd stride samples more than one column of a matrix */
        const uint64_t at = (array->elements / PLACES * i + i * 7u) % array->elements;
        const double before = element(array->before, at), after = element(array->after, at);
        sample->before[i] = before;
        sample->after[i] = after;
        not_negative += before >= 0 && after >= 0 && after >= before / 2;
        changed += before != after;
    }
    sample->is_still = changed < PLACES / 4;
    sample->is_second = not_negative == PLACES && !sample->is_still;
}

/* ---- Do they belong together? ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return LMCS_ORDER(x, y);
}

/* Whether v' = beta2 v + (1 - beta2) g^2 holds for one beta2, where g is the gradient that changed m to m' with this
 * beta1. */
static bool moments_fit(const struct sample *m, const struct sample *v, double beta1)
{
    double squares[PLACES], betas[PLACES];
    unsigned usable = 0, fitting = 0;
    for (unsigned i = 0; i < PLACES; i++) {
        const double g = (m->after[i] - beta1 * m->before[i]) / (1 - beta1);
        squares[i] = g * g;
        const double beta2 = (v->after[i] - squares[i]) / (v->before[i] - squares[i]);
        if (beta2 > 0 && beta2 < 1)
            betas[usable++] = beta2;
    }
    if (usable < ENOUGH)
        return false;
    qsort(betas, usable, sizeof *betas, ascending);
    const double beta2 = betas[usable / 2];
    for (unsigned i = 0; i < PLACES; i++)
        fitting +=
            v->after[i] > 0 && fabs(beta2 * v->before[i] + (1 - beta2) * squares[i] - v->after[i]) < 1e-5 * v->after[i];
    return fitting >= ENOUGH;
}

/* Solves v' = beta2 v + k m'^2 - 2 k beta1 m' m + k beta1^2 m^2 for beta1 by least squares relative to v'. */
static double near_beta1(const struct sample *m, const struct sample *v)
{
    enum { TERMS = 4 };
    double a[TERMS][TERMS + 1] = {{0}};
    for (unsigned i = 0; i < PLACES; i++) {
        const double scale = v->after[i] > 1e-30 ? 1 / v->after[i] : 0, x = m->before[i], y = m->after[i];
        const double term[TERMS + 1] = {v->before[i] * scale, y * y * scale, y * x * scale, x * x * scale, scale > 0};
        for (unsigned r = 0; r < TERMS; r++)
            for (unsigned c = 0; c <= TERMS; c++)
                a[r][c] += term[r] * term[c];
    }
    for (unsigned k = 0; k < TERMS; k++)
        for (unsigned r = 0; r < TERMS; r++) {
            const double factor = r != k ? a[r][k] / a[k][k] : 0;
            for (unsigned c = k; c <= TERMS && r != k; c++)
                a[r][c] -= factor * a[k][c];
        }
    return -(a[2][TERMS] / a[2][2]) / (2 * a[1][TERMS] / a[1][1]);
}

/* Schedulers set betas of many digits. */
static bool are_moments(const struct sample *m, const struct sample *v)
{
    static const double usual[] = {0.9, 0.95, 0.8, 0.85, 0.92, 0.98, 0.99, 0.7, 0.5};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (moments_fit(m, v, usual[i]))
            return true;
    const double beta1 = near_beta1(m, v);
    return beta1 > 0 && beta1 < 1 && moments_fit(m, v, beta1);
}

/* Whether w' - w = a x + b y at most elements for the best `factors` a and b, within `tolerance` plus rounding. */
static bool change_fits(const struct sample *w, const double *x, const double *y, double tolerance, double factors[2])
{
    double xx = 0, xy = 0, yy = 0, xd = 0, yd = 0;
    unsigned fitting = 0;
    for (unsigned i = 0; i < PLACES; i++) {
        const double change = w->after[i] - w->before[i], size = fabs(x[i]) + fabs(y[i]) + 1e-30;
        const double u = x[i] / size, v = y[i] / size, d = change / size;
        xx += u * u;
        xy += u * v;
        yy += v * v;
        xd += u * d;
        yd += v * d;
    }
    const double determinant = xx * yy - xy * xy;
    if (!(fabs(determinant) > 1e-12 * xx * yy))
        return false;
    const double a = factors[0] = (xd * yy - yd * xy) / determinant;
    const double b = factors[1] = (yd * xx - xd * xy) / determinant;
    for (unsigned i = 0; i < PLACES; i++) {
        const double change = w->after[i] - w->before[i], missed = change - a * x[i] - b * y[i];
        fitting += change != 0 && fabs(missed) <= tolerance * fabs(change) + 0x1p-22 * fabs(w->after[i]);
    }
    return fitting >= ENOUGH;
}

static bool is_adams_weight(const struct sample *m, const struct sample *v, const struct sample *w)
{
    double way[PLACES], factors[2];
    for (unsigned i = 0; i < PLACES; i++)
        way[i] = m->after[i] / (sqrt(v->after[i]) + 1e-30);
    return change_fits(w, way, w->before, 0.02, factors); /* eps bends small gradients */
}

/* The change is -lr times the new buffer, or with Nesterov -lr ((1 + momentum) new - momentum old), which yields both
 * constants: hints for lmc_link_fit. */
static bool is_sgds_weight(const struct sample *buffer, const struct sample *w, struct lmc_link_hints *hints)
{
    double factors[2];
    if (!change_fits(w, buffer->after, buffer->before, 1e-3, factors))
        return false;
    const double lr = -(factors[0] + factors[1]);
    const double momentum = nearbyint(factors[1] / lr * 1e4) / 1e4; /* as a user wrote it */
    if (lr > 0 && momentum > 0.01 && momentum < 1)
        *hints = (struct lmc_link_hints){
            .optimizer = LMC_SGD, .flags = LMC_LINK_NESTEROV, .step = 1, .lr = lr, .momentum = momentum};
    return true;
}

/* ---- The search ---- */

/* Whether the rule fits the samples. Parameters mostly share a rule, and this takes a thousandth of a fit's time. If
 * samples mislead, the link is too large and is not made. */
static bool explains(const struct lmc_link_rule *rule, struct sample *const *members, uint32_t count)
{
    const bool adam = rule->optimizer == LMC_ADAM;
    const struct sample *m = members[0], *v = members[1], *w = members[adam ? 2 : 1];
    const struct sample *most = count == 4 ? members[3] : v;
    unsigned fitting = 0;
    for (unsigned i = 0; i < PLACES; i++) {
        double change, missed = 0;
        if (adam) {
            const double gain = (double)rule->gain, g = (m->after[i] - (1 - gain) * m->before[i]) / gain;
            const double second = (double)rule->beta2 * v->before[i] + (double)rule->gain2 * g * g;
            missed = fabs(second - v->after[i]) / (1e-5 * v->after[i]);
            change =
                (double)rule->rate * m->after[i] / (sqrt(most->after[i]) / (double)rule->root + (double)rule->eps) -
                (1 - (double)rule->decay) * w->before[i];
        } else if ((rule->flags & LMC_LINK_NESTEROV) != 0)
            return false;
        else
            change = (double)rule->rate * m->after[i];
        const double tolerance = 1e-4 * fabs(change) + 0x1p-22 * fabs(w->after[i]);
        fitting += missed <= 1 && change != 0 && fabs(w->before[i] + change - w->after[i]) <= tolerance;
    }
    return fitting >= ENOUGH;
}

bool lmcs_optimizer_explains(const struct lmc_link_rule *rule, const struct lmcs_search_array *arrays, uint32_t count)
{
    struct sample samples[LMC_MAX_BASES], *members[LMC_MAX_BASES];
    for (uint32_t k = 0; k < count; k++) {
        take_sample(&arrays[k], &samples[k]);
        members[k] = &samples[k];
    }
    return explains(rule, members, count);
}

static enum lmc_status find_rule(const struct search *search, struct lmcs_search_match *match,
                                 const struct lmc_link_hints *hints)
{
    const void *before[LMC_MAX_BASES], *after[LMC_MAX_BASES];
    struct lmc_link_fit fit;
    const char *why;
    for (uint32_t k = 0; k < match->count; k++) {
        before[k] = search->arrays[match->arrays[k]].before;
        after[k] = search->arrays[match->arrays[k]].after;
    }
    const uint64_t bytes = search->arrays[match->arrays[0]].elements * sizeof(float);
    const enum lmc_status status = lmc_link_fit(hints, match->count, before, after, bytes, &match->rule, &fit, &why);
    return status == LMC_OK && fit.bits > MOST_BITS * (float)match->count ? LMC_UNSUPPORTED : status;
}

/* Adds the match if the last match's rule or a fitted one explains it. *took: it was added. */
static enum lmcs_status confirm(struct search *search, struct sample *const *members, uint32_t count,
                                const struct lmc_link_hints *hints, bool *took, struct lmcs_error *error)
{
    const struct lmcs_search_match *last = search->found > 0 ? &search->matches[search->found - 1] : NULL;
    struct lmcs_search_match match = {.count = count};
    enum lmc_status status = LMC_OK;
    for (uint32_t k = 0; k < count; k++)
        match.arrays[k] = members[k]->array;
    if (last != NULL && last->count == count && explains(&last->rule, members, count))
        match.rule = last->rule;
    else
        status = find_rule(search, &match, hints);
    *took = status == LMC_OK;
    if (status == LMC_NO_MEMORY)
        return lmcs_fail_memory(error);
    if (!*took)
        return LMCS_OK;
    if (!lmcs_grow(&search->matches, &search->capacity, search->found, sizeof *search->matches))
        return lmcs_fail_memory(error);
    search->matches[search->found++] = match;
    for (uint32_t k = 0; k < count; k++)
        members[k]->is_taken = true;
    return LMCS_OK;
}

static enum lmcs_status find_weight(struct search *search, struct sample *m, struct sample *v, struct lmcs_error *error)
{
    const size_t at = (size_t)(v - search->samples);
    for (size_t i = 0; i < search->count && !m->is_taken; i++) {
        const size_t place = (at + search->weight_from_second + i) % search->count;
        struct sample *w = &search->samples[place];
        bool took;
        if (w == m || w == v || w->is_taken || w->is_still || !is_adams_weight(m, v, w))
            continue;
        const enum lmcs_status status = confirm(search, (struct sample *[]){m, v, w}, 3, NULL, &took, error);
        if (status != LMCS_OK)
            return status;
        if (took)
            search->weight_from_second = (place + search->count - at) % search->count;
    }
    return LMCS_OK;
}

static enum lmcs_status find_adam(struct search *search, struct lmcs_error *error)
{
    for (size_t i = 0; i < search->count; i++) {
        struct sample *v = &search->samples[i];
        const size_t from = search->first_from_second;
        for (size_t k = 0; k < search->count && v->is_second && !v->is_taken; k++) {
            struct sample *m = &search->samples[(i + from + k) % search->count];
            if (m == v || m->is_taken || m->is_still || !are_moments(m, v))
                continue;
            const enum lmcs_status status = find_weight(search, m, v, error);
            if (status != LMCS_OK)
                return status;
            if (m->is_taken)
                search->first_from_second = (from + k) % search->count;
        }
    }
    return LMCS_OK;
}

static enum lmcs_status find_sgd(struct search *search, struct lmcs_error *error)
{
    for (size_t i = 0; i < search->count; i++) {
        struct sample *w = &search->samples[i];
        for (size_t k = 0; k < search->count && !w->is_taken && !w->is_still; k++) {
            struct sample *buffer = &search->samples[k];
            struct lmc_link_hints hints = {.optimizer = 0};
            bool took;
            if (buffer == w || buffer->is_taken || buffer->is_still || !is_sgds_weight(buffer, w, &hints))
                continue;
            const enum lmcs_status status =
                confirm(search, (struct sample *[]){buffer, w}, 2, hints.optimizer != 0 ? &hints : NULL, &took, error);
            if (status != LMCS_OK)
                return status;
        }
    }
    return LMCS_OK;
}

struct place {
    uint64_t elements;
    size_t array;
};

static int by_size(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return LMCS_ORDER2(x->elements, y->elements, x->array, y->array);
}

static enum lmcs_status find_in(struct search *search, const struct place *places, size_t count,
                                struct lmcs_error *error)
{
    search->count = count;
    search->first_from_second = search->weight_from_second = 0;
    search->samples = calloc(search->count, sizeof *search->samples);
    if (search->samples == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < search->count; i++) {
        search->samples[i].array = places[i].array;
        take_sample(&search->arrays[places[i].array], &search->samples[i]);
    }
    enum lmcs_status status = find_adam(search, error);
    if (status == LMCS_OK)
        status = find_sgd(search, error);
    free(search->samples);
    return status;
}

bool lmcs_search_is_due(uint32_t note, uint64_t number)
{
    const bool led_to_nothing = note == LMCS_LINKS_NOT_FOUND || note == LMCS_LINKS_UNEXPLAINED ||
                                note == LMCS_LINKS_UNFIT || note == LMCS_LINKS_LARGE;
    return !led_to_nothing || number % SEARCH_EVERY == 0;
}

enum lmcs_status lmcs_optimizer_search(const struct lmcs_search_array *arrays, size_t count,
                                       struct lmcs_search_match **matches, size_t *found, struct lmcs_error *error)
{
    struct search search = {.arrays = arrays};
    enum lmcs_status status = LMCS_OK;
    *matches = NULL;
    *found = 0;
    struct place *places = calloc(count + 1, sizeof *places);
    if (places == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < count; i++)
        places[i] = (struct place){arrays[i].elements, i};
    qsort(places, count, sizeof *places, by_size);
    for (size_t begin = 0, end; status == LMCS_OK && begin < count; begin = end) {
        end = begin + 1;
        while (end < count && end - begin < LMCS_SEARCH_MOST_ARRAYS && places[end].elements == places[begin].elements)
            end++;
        if (places[begin].elements >= LMCS_SEARCH_LEAST_ELEMENTS && end - begin > 1)
            status = find_in(&search, places + begin, end - begin, error);
    }
    free(places);
    if (status != LMCS_OK) {
        free(search.matches);
        return status;
    }
    *matches = search.matches;
    *found = search.found;
    return LMCS_OK;
}
