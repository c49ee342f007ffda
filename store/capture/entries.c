/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/entries.c - a capture's tensors in the order of their puts, and a table of names. */
#include <string.h>
#include <sys/mman.h>

#include "base/grow.h"
#include "base/names.h"
#include "capture/stages.h"

static size_t name_slot(const struct lmcs_entries *entries, uint32_t kind, const char *name)
{
    size_t i = (size_t)lmc_hash64(name, strlen(name), kind) & (entries->name_capacity - 1);
    while (entries->names[i] != 0) {
        const struct lmcs_tensor *tensor = &entries->items[entries->names[i] - 1]->tensor;
        if (tensor->kind == kind && strcmp(tensor->name, name) == 0)
            break;
        i = (i + 1) & (entries->name_capacity - 1);
    }
    return i;
}

static bool make_name_room(struct lmcs_entries *entries)
{
    size_t wanted = entries->name_capacity == 0 ? 64 : entries->name_capacity;
    while ((entries->count + 1) * 2 > wanted)
        wanted *= 2;
    if (wanted == entries->name_capacity)
        return true;
    size_t *names = calloc(wanted, sizeof *names);
    if (names == NULL)
        return false;
    free(entries->names);
    entries->names = names;
    entries->name_capacity = wanted;
    for (size_t i = 0; i < entries->count; i++)
        names[name_slot(entries, entries->items[i]->tensor.kind, entries->items[i]->tensor.name)] = i + 1;
    return true;
}

static struct lmcs_captured *new_entry(const struct lmcs_tensor *tensor, uint64_t raw_bytes)
{
    size_t dims = tensor->ndim * sizeof(uint64_t), lists = tensor->global_shape != NULL ? 3 : 1;
    size_t name_bytes = strlen(tensor->name) + 1;
    struct lmcs_captured *entry = calloc(1, sizeof *entry + lists * dims + name_bytes);
    if (entry == NULL)
        return NULL;
    uint64_t *numbers = (uint64_t *)(entry + 1);
    entry->tensor = *tensor;
    entry->tensor.strides = NULL;
    entry->tensor.shape = numbers;
    if (dims > 0)
        memcpy(numbers, tensor->shape, dims);
    if (tensor->global_shape != NULL) {
        entry->tensor.global_shape = numbers + tensor->ndim;
        entry->tensor.offsets = numbers + 2 * (size_t)tensor->ndim;
        if (dims > 0) {
            memcpy(numbers + tensor->ndim, tensor->global_shape, dims);
            memcpy(numbers + 2 * (size_t)tensor->ndim, tensor->offsets, dims);
        }
    }
    char *name = (char *)numbers + lists * dims;
    memcpy(name, tensor->name, name_bytes);
    entry->tensor.name = name;
    entry->raw_bytes = raw_bytes;
    return entry;
}

enum lmcs_status lmcs_entries_add(struct lmcs_entries *entries, const struct lmcs_tensor *tensor,
                                  struct lmcs_captured **added, struct lmcs_error *error)
{
    uint64_t raw_bytes;
    enum lmcs_status status = lmcs_tensor_check_put(tensor, &raw_bytes, error);
    if (status != LMCS_OK)
        return status;
    if (entries->count >= LMCS_MAX_TENSORS)
        return lmcs_fail(error, LMCS_INVALID, 0, "a snapshot may have at most %d tensors", LMCS_MAX_TENSORS);
    if (!make_name_room(entries))
        return lmcs_fail_memory(error);
    size_t slot = name_slot(entries, tensor->kind, tensor->name);
    if (entries->names[slot] != 0)
        return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\" is in the capture twice", tensor->name);
    if (!lmcs_grow(&entries->items, &entries->capacity, entries->count, sizeof *entries->items))
        return lmcs_fail_memory(error);
    struct lmcs_captured *entry = new_entry(tensor, raw_bytes);
    if (entry == NULL)
        return lmcs_fail_memory(error);
    entries->items[entries->count++] = entry;
    entries->names[slot] = entries->count;
    *added = entry;
    return LMCS_OK;
}

size_t lmcs_entries_find(const struct lmcs_entries *entries, uint32_t kind, const char *name)
{
    return entries->count > 0 ? entries->names[name_slot(entries, kind, name)] : 0;
}

void lmcs_entries_free(struct lmcs_entries *entries)
{
    for (size_t i = 0; i < entries->count; i++) {
        struct lmcs_captured *entry = entries->items[i];
        if (entry->reserved.aside)
            munmap(entry->reserved.data, entry->raw_bytes);
        free(entry);
    }
    free(entries->items);
    free(entries->names);
}
