/* SPDX-License-Identifier: BSD-3-Clause */
/* content.c - see content.h. */
#include "content.h"
#include "sgd.h"

enum { SOMETIMES = 5 };

static const uint64_t smallest[TENSORS] = {30000, 16384, 9000, 700, 16368, 50, 5000, 5000};
/* Versions; 0: as many as tickets. */
static const uint64_t versions[TENSORS] = {0, 6, 3, 2, 4, 0};

struct content {
    uint64_t elements[TENSORS];
    uint32_t *base[SHELVES][TENSORS]; /* of the parameter: all steps */
};

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 29) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 32) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static bool is_trained(unsigned tensor)
{
    return tensor == MOMENTUM || tensor == WEIGHT;
}

static void train(struct content *content, unsigned shelf)
{
    const struct sgd_run run = sgd_run(shelf + 1, content->elements[MOMENTUM], STEPS);
    content->base[shelf][MOMENTUM] = (uint32_t *)run.momenta;
    content->base[shelf][WEIGHT] = (uint32_t *)run.weights;
}

struct content *content_new(unsigned scale)
{
    struct content *content = calloc(1, sizeof *content);
    EXPECT(content != NULL);
    for (unsigned t = 0; t < TENSORS; t++) {
        content->elements[t] = smallest[t] * (t == 3 || t == 5 ? 1 : scale);
        for (unsigned s = 0; s < SHELVES && !is_trained(t); s++) {
            uint32_t *base = malloc(content->elements[t] * sizeof *base);
            EXPECT(base != NULL);
            for (uint64_t i = 0; i < content->elements[t]; i++)
                base[i] = (uint32_t)(mix((i + 1) * 0x9e3779b97f4a7c15u + s * 1000003 + t * 7919) >> 40);
            content->base[s][t] = base;
        }
    }
    for (unsigned s = 0; s < SHELVES; s++)
        train(content, s);
    return content;
}

void content_free(struct content *content)
{
    for (unsigned s = 0; s < SHELVES; s++)
        for (unsigned t = 0; t < TENSORS; t++)
            free(content->base[s][t]);
    free(content);
}

const char *content_shelf(unsigned shelf)
{
    static const char *const names[SHELVES] = {"left", "right"};
    return names[shelf];
}

const char *content_tag(unsigned tag)
{
    static const char *const names[TAGS] = {"best", "good", "keep", "old"};
    return names[tag];
}

const char *content_name(unsigned entry)
{
    static const char *const names[ENTRIES] = {"t0", "t1", "t2", "t3", "t4", "t5", "m", "w", "again", "note"};
    return names[entry];
}

unsigned content_entry(const char *name)
{
    unsigned entry = 0;
    while (entry < ENTRIES && strcmp(content_name(entry), name) != 0)
        entry++;
    return entry;
}

uint64_t content_ticket(unsigned writer, uint64_t count, unsigned step)
{
    return (uint64_t)(writer + 1) << 40 | (count * STEPS + step);
}

bool content_has(unsigned entry, uint64_t ticket)
{
    return entry != SOMETIMES || ticket % 7 != 0;
}

static unsigned tensor_of(unsigned entry)
{
    return entry == SECOND_NAME ? TENSOR_TWICE : entry;
}

uint64_t content_bytes(const struct content *content, unsigned entry)
{
    return entry == ATTACHMENT ? sizeof(uint64_t) : content->elements[tensor_of(entry)] * sizeof(uint32_t);
}

struct lmcs_tensor content_tensor(const struct content *content, unsigned entry, uint64_t *shape)
{
    bool attached = entry == ATTACHMENT;
    *shape = content_bytes(content, entry) / (attached ? 1 : sizeof(uint32_t));
    return (struct lmcs_tensor){.name = content_name(entry),
                                .kind = attached ? LMCS_ATTACHMENT : LMCS_TENSOR,
                                .dtype = attached            ? LMC_U8
                                         : is_trained(entry) ? LMC_F32
                                                             : LMC_U32,
                                .ndim = 1,
                                .shape = shape};
}

/* Added to each element of version 0. */
static uint32_t step_of(unsigned tensor, uint64_t ticket)
{
    uint64_t version = mix(ticket * TENSORS + tensor);
    return versions[tensor] == 0 ? (uint32_t)version : (uint32_t)(version % versions[tensor] * 3);
}

static const uint32_t *trained(const struct content *content, unsigned shelf, unsigned tensor, uint64_t ticket)
{
    return &content->base[shelf][tensor][ticket % STEPS * content->elements[tensor]];
}

void content_fill(const struct content *content, unsigned shelf, unsigned entry, uint64_t ticket, void *to)
{
    if (entry == ATTACHMENT) {
        memcpy(to, &ticket, sizeof ticket);
        return;
    }
    unsigned tensor = tensor_of(entry);
    if (is_trained(tensor)) {
        memcpy(to, trained(content, shelf, tensor, ticket), content_bytes(content, entry));
        return;
    }
    uint32_t *elements = to, step = step_of(tensor, ticket);
    for (uint64_t i = 0; i < content->elements[tensor]; i++)
        elements[i] = content->base[shelf][tensor][i] + step;
}

bool content_is_right(const struct content *content, unsigned shelf, unsigned entry, uint64_t ticket, const void *data)
{
    if (entry == ATTACHMENT)
        return memcmp(data, &ticket, sizeof ticket) == 0;
    unsigned tensor = tensor_of(entry);
    if (is_trained(tensor))
        return memcmp(data, trained(content, shelf, tensor, ticket), content_bytes(content, entry)) == 0;
    const uint32_t *elements = data, step = step_of(tensor, ticket);
    uint32_t wrong = 0;
    for (uint64_t i = 0; i < content->elements[tensor]; i++)
        wrong |= elements[i] ^ (content->base[shelf][tensor][i] + step);
    return wrong == 0;
}
