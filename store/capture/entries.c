/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/entries.c - a capture's tensors in the order of their puts, and a table of names. */
#include <string.h>
#include <sys/mman.h>

#include "base/grow.h"
#include "base/names.h"
#include "capture/stages.h"

static bool has_name(const struct lmcs_captured *entry, uint32_t kind, const char *name)
{
    return entry->tensor.kind == kind && strcmp(entry->tensor.name, name) == 0;
}

/* Returns the key of a name in the map. *found: its index + 1, or 0. */
static uint64_t name_key(const struct lmcs_entries *entries, uint32_t kind, const char *name, uint64_t *found)
{
    uint64_t key = lmc_hash64(name, strlen(name), kind);
    while ((*found = lmcs_map_get(&entries->names, key)) != 0 && !has_name(entries->items[*found - 1], kind, name))
        key++;
    return key;
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
    uint64_t found, key = name_key(entries, tensor->kind, tensor->name, &found);
    if (found != 0)
        return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\" is in the capture twice", tensor->name);
    if (!lmcs_grow(&entries->items, &entries->capacity, entries->count, sizeof *entries->items))
        return lmcs_fail_memory(error);
    struct lmcs_captured *entry = new_entry(tensor, raw_bytes);
    if (entry == NULL || !lmcs_map_put(&entries->names, key, entries->count + 1)) {
        free(entry);
        return lmcs_fail_memory(error);
    }
    entries->items[entries->count++] = entry;
    *added = entry;
    return LMCS_OK;
}

size_t lmcs_entries_find(const struct lmcs_entries *entries, uint32_t kind, const char *name)
{
    uint64_t found;
    name_key(entries, kind, name, &found);
    return (size_t)found;
}

void lmcs_entries_free(struct lmcs_entries *entries)
{
    for (size_t i = 0; i < entries->count; i++) {
        struct lmcs_captured *entry = entries->items[i];
        if (entry->reserved.aside)
            munmap(entry->reserved.data, entry->raw_bytes);
        free(entry->hashes);
        free(entry);
    }
    free(entries->items);
    lmcs_map_free(&entries->names);
}
