/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/heap_check.c - libpmemobj's heap, checked against our objects.
 *
 * The map (512 KiB for each 16 GiB in use; FORMAT.md, section 2) is compared before libpmemobj opens the pool. With
 * both sides' checksums this verifies every word that an allocation relies on. The slabs found are remembered: a
 * written page must be in one. Free space may have file space of an uncommitted transaction: a writer gives it back
 * here.
 *
 * Only the first header of a range of chunks counts (libpmemobj rewrites the last before it reads it).
 */
#include "pages/heap_check.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "media/pmemobj_layout.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"

#define MOST_BITMAP_WORDS (LMCS_PAGE_BYTES / sizeof(uint64_t))

struct object {
    uint64_t offset;
    uint64_t bytes;
};

struct heap_map {
    struct lmcs_pool *pool;
    struct object *objects; /* ascending by offset */
    size_t count;
    size_t capacity;
    size_t met;
    bool superblock_met;
    uint64_t slab_bytes;
    struct lmcs_root_df root;
    uint64_t heap_bytes;
    uint64_t more_bytes; /* of the file after the heap */
    struct lmcs_chunk_df *chunks;
    struct object *gaps; /* ascending by offset */
    size_t gap_count;
    size_t gap_capacity;
};

static enum lmcs_status fail_heap(const struct heap_map *map, uint64_t offset, const char *what,
                                  struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0,
                     "%s: libpmemobj's heap is damaged (%s, at offset %llu), so nothing may be written to it; mode r "
                     "still reads it, and 'lmc-store dump' saves what it holds",
                     map->pool->path, what, (unsigned long long)offset);
}

static enum lmcs_status add_object(struct heap_map *map, uint64_t offset, const void *value, size_t bytes,
                                   struct lmcs_error *error)
{
    struct lmcs_object_df df;
    enum lmcs_status status = lmcs_object_read(map->pool, offset, value, bytes, &df, error);
    if (status != LMCS_OK)
        return status;
    bool is_slab = df.kind == LMCS_OBJECT_SLAB;
    if (!lmcs_grow(&map->objects, &map->capacity, map->count, sizeof *map->objects) ||
        (is_slab && !lmcs_slabs_add(map->pool, offset, df.bytes)))
        return lmcs_fail_memory(error);
    map->objects[map->count++] = (struct object){offset, df.bytes};
    map->slab_bytes += is_slab ? df.bytes : 0;
    return LMCS_OK;
}

static enum lmcs_status load_objects(struct heap_map *map, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_txn_read(map->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_open(&cursor, &txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        status = add_object(map, lmcs_cursor_key(cursor).high, value, bytes, error);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    map->root = txn.root;
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return status;
}

/* Checks the sum of slabs: one recorded as an extent would be filled or punched. */
static enum lmcs_status check_slabs(const struct heap_map *map, struct lmcs_error *error)
{
    if (map->slab_bytes == map->root.slab_bytes)
        return LMCS_OK;
    return lmcs_fail(
        error, LMCS_DAMAGED, 0,
        "%s: damaged metadata: objects for pages have %llu bytes, and %llu are recorded, so nothing may be "
        "written to it; mode r still reads it, and 'lmc-store dump' saves what it holds",
        map->pool->path, (unsigned long long)map->slab_bytes, (unsigned long long)map->root.slab_bytes);
}

/* A used chunk must be our next object. */
static enum lmcs_status check_used(struct heap_map *map, uint64_t chunk_at, const struct lmcs_chunk_df *chunk,
                                   struct lmcs_error *error)
{
    uint64_t offset = chunk_at + LMCS_OBJECT_HEADER_BYTES;
    const struct object *object = map->met < map->count ? &map->objects[map->met] : NULL;
    if (object != NULL && object->offset < offset)
        return fail_heap(map, object->offset, "an object of ours is not in its map", error);
    if (object == NULL || object->offset != offset)
        return fail_heap(map, offset, "its map has an object that is not ours", error);
    if (chunk->flags != LMCS_CHUNK_COMPACT)
        return fail_heap(map, offset, "its map has an object of ours with flags that it never has", error);
    uint64_t room = chunk->chunks * LMCS_CHUNK_BYTES - LMCS_OBJECT_HEADER_BYTES;
    if (object->bytes > room || room - object->bytes >= LMCS_CHUNK_BYTES)
        return fail_heap(map, offset, "its map has an object of ours with a wrong size", error);
    map->met++;
    return LMCS_OK;
}

/* Units of the superblock, or after the last, are used. */
static bool unit_is_used(uint64_t unit, uint64_t units, uint64_t first, uint64_t end)
{
    return unit >= units || (unit >= first && unit < end);
}

/*
 * The run contains the superblock alone. libpmemobj takes an empty run for free chunks, and a full one hides a lost
 * bit. The bitmap fills its header's cache line and more as its units need.
 */
static enum lmcs_status check_bitmap(const struct heap_map *map, uint64_t at, const struct lmcs_run_df *run,
                                     struct lmcs_error *error)
{
    uint64_t superblock = lmcs_media_superblock(map->pool->media);
    uint64_t most_units = (LMCS_CHUNK_BYTES - sizeof *run) / run->unit_bytes;
    uint64_t words = ((sizeof *run + (most_units + 63) / 64 * 8 + 63) / 64 * 64 - sizeof *run) / 8;
    uint64_t data = sizeof *run + words * 8, units = (LMCS_CHUNK_BYTES - data) / run->unit_bytes;
    uint64_t object = superblock - LMCS_OBJECT_HEADER_BYTES - at; /* the header's offset in the run */
    if (words > MOST_BITMAP_WORDS - 2 || object < data || (object - data) % run->unit_bytes != 0)
        return fail_heap(map, at, "the run with its root object", error);
    uint64_t first = (object - data) / run->unit_bytes;
    uint64_t end = first + (LMCS_SUPERBLOCK_BYTES + LMCS_OBJECT_HEADER_BYTES + run->unit_bytes - 1) / run->unit_bytes;
    for (uint64_t unit = 0; unit < words * 64; unit++)
        if ((run->bitmap[unit / 64] >> unit % 64 & 1) != unit_is_used(unit, units, first, end))
            return fail_heap(map, at, "the bitmap of the run with its root object", error);
    return LMCS_OK;
}

static enum lmcs_status check_run(struct heap_map *map, uint64_t at, const struct lmcs_chunk_df *chunk,
                                  struct lmcs_error *error)
{
    uint64_t superblock = lmcs_media_superblock(map->pool->media);
    _Alignas(8) unsigned char page[LMCS_PAGE_BYTES];
    const struct lmcs_run_df *run = (const struct lmcs_run_df *)page;
    struct lmcs_object_header_df header;
    if (superblock < at + sizeof *run + LMCS_OBJECT_HEADER_BYTES || superblock - at >= LMCS_CHUNK_BYTES ||
        map->superblock_met || chunk->chunks != 1 || chunk->flags != (LMCS_CHUNK_COMPACT | LMCS_CHUNK_FLEX))
        return fail_heap(map, at, "its map has a run that is not ours", error);
    enum lmcs_status status = lmcs_media_read(map->pool->media, at, page, sizeof page, error);
    if (status == LMCS_OK)
        status = lmcs_media_read(map->pool->media, superblock - sizeof header, &header, sizeof header, error);
    if (status != LMCS_OK)
        return status;
    header.bytes &= LMCS_OBJECT_BYTES_MASK;
    if (run->unit_bytes < 64 || run->unit_bytes > LMCS_CHUNK_BYTES / 2 || run->alignment != 0 ||
        header.bytes % run->unit_bytes != 0 || header.bytes < LMCS_SUPERBLOCK_BYTES + sizeof header ||
        header.bytes - LMCS_SUPERBLOCK_BYTES - sizeof header >= run->unit_bytes)
        return fail_heap(map, at, "the run with its root object", error);
    map->superblock_met = true;
    return check_bitmap(map, at, run, error);
}

static enum lmcs_status note_gap(struct heap_map *map, uint64_t at, uint64_t bytes, struct lmcs_error *error)
{
    struct object *last = map->gap_count > 0 ? &map->gaps[map->gap_count - 1] : NULL;
    if (last != NULL && last->offset + last->bytes == at) {
        last->bytes += bytes;
        return LMCS_OK;
    }
    if (!lmcs_grow(&map->gaps, &map->gap_capacity, map->gap_count, sizeof *map->gaps))
        return lmcs_fail_memory(error);
    map->gaps[map->gap_count++] = (struct object){at, bytes};
    return LMCS_OK;
}

static enum lmcs_status check_chunks(struct heap_map *map, uint64_t zone_at, uint32_t count, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint32_t i = 0; status == LMCS_OK && i < count; i += map->chunks[i].chunks) {
        const struct lmcs_chunk_df *chunk = &map->chunks[i];
        uint64_t at = zone_at + LMCS_ZONE_META_BYTES + i * LMCS_CHUNK_BYTES;
        if (chunk->chunks == 0 || chunk->chunks > count - i)
            return fail_heap(map, at, "a chunk of impossible size", error);
        if (chunk->type == LMCS_CHUNK_USED)
            status = check_used(map, at, chunk, error);
        else if (chunk->type == LMCS_CHUNK_RUN)
            status = check_run(map, at, chunk, error);
        else if (chunk->type != LMCS_CHUNK_FREE || (chunk->flags & ~LMCS_CHUNK_COMPACT) != 0)
            return fail_heap(map, at, "a chunk of unknown type", error);
        else
            status = note_gap(map, at, chunk->chunks * LMCS_CHUNK_BYTES, error);
    }
    return status;
}

static enum lmcs_status check_zone(struct heap_map *map, uint64_t zone_at, uint64_t left, struct lmcs_error *error)
{
    uint32_t header[2];
    const struct lmcs_media *media = map->pool->media;
    uint64_t chunks = (left - LMCS_ZONE_META_BYTES) / LMCS_CHUNK_BYTES;
    if (chunks > LMCS_ZONE_CHUNKS)
        chunks = LMCS_ZONE_CHUNKS;
    enum lmcs_status status = lmcs_media_read(media, zone_at, header, sizeof header, error);
    if (status != LMCS_OK || header[0] == 0)
        return status;
    if (header[0] != LMCS_ZONE_MAGIC)
        return fail_heap(map, zone_at, "a zone's header", error);
    if (header[1] != chunks)
        return fail_heap(map, zone_at, "a zone of impossible size", error);
    status = lmcs_media_read(media, zone_at + LMCS_ZONE_HEADER_BYTES, map->chunks, chunks * sizeof *map->chunks, error);
    return status == LMCS_OK ? check_chunks(map, zone_at, header[1], error) : status;
}

/* A poolset or a device can't be. */
static bool can_be_longer(const struct heap_map *map)
{
    return !lmcs_media_is_device(map->pool->media) && !lmcs_media_is_poolset(map->pool->media);
}

/* Checks the part without a checksum. */
static enum lmcs_status check_descriptor(struct heap_map *map, struct lmcs_error *error)
{
    struct lmcs_pobj_root_df root;
    enum lmcs_status status = lmcs_media_read(map->pool->media, LMCS_POBJ_ROOT, &root, sizeof root, error);
    if (status != LMCS_OK)
        return status;
    if (root.heap_bytes > map->heap_bytes)
        return lmcs_fail(
            error, LMCS_DAMAGED, 0,
            "%s: its header says %llu bytes more than there are: the file was cut short, so nothing may be "
            "written to it; mode r reads what is left",
            map->pool->path, (unsigned long long)(root.heap_bytes - map->heap_bytes));
    if (root.root_bytes != LMCS_SUPERBLOCK_BYTES || root.conversion != 0 ||
        (root.heap_bytes < map->heap_bytes && !can_be_longer(map)))
        return fail_heap(map, LMCS_POBJ_ROOT, "what its header says of the root object and of its own size", error);
    map->more_bytes = map->heap_bytes - root.heap_bytes;
    map->heap_bytes = root.heap_bytes;
    return LMCS_OK;
}

/* Reports the file's size, if the heap fits the size in its header. */
static enum lmcs_status check_size(const struct heap_map *map, struct lmcs_error *error)
{
    unsigned long long is = lmcs_media_bytes(map->pool->media), was = is - map->more_bytes;
    return map->more_bytes == 0
               ? LMCS_OK
               : lmcs_fail(
                     error, LMCS_DAMAGED, 0,
                     "%s: the file has %llu bytes, and the pool in it %llu: something was appended to it, so "
                     "nothing may be written to it; 'truncate -s %llu' takes that away, and mode r still reads it",
                     map->pool->path, is, was, was);
}

static enum lmcs_status check_zones(struct heap_map *map, struct lmcs_error *error)
{
    uint64_t at = lmcs_media_heap(map->pool->media), left = map->heap_bytes, skip = LMCS_HEAP_HEADER_BYTES;
    enum lmcs_status status = LMCS_OK;
    for (; status == LMCS_OK && left > skip; skip = LMCS_ZONE_BYTES) {
        at += skip;
        left -= skip;
        if (left > LMCS_ZONE_META_BYTES)
            status = check_zone(map, at, left, error);
    }
    return status;
}

enum lmcs_status lmcs_check_heap(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct heap_map map = {.pool = pool, .chunks = malloc(LMCS_ZONE_CHUNKS * sizeof *map.chunks)};
    lmcs_slabs_forget(pool);
    map.heap_bytes = lmcs_media_bytes(pool->media) - lmcs_media_heap(pool->media);
    enum lmcs_status status = map.chunks == NULL ? lmcs_fail_memory(error) : load_objects(&map, error);
    if (status == LMCS_OK)
        status = check_descriptor(&map, error);
    if (status == LMCS_OK)
        status = check_zones(&map, error);
    if (status == LMCS_OK && map.met < map.count)
        status = fail_heap(&map, map.objects[map.met].offset, "an object of ours is not in its map", error);
    if (status == LMCS_OK && !map.superblock_met)
        status = fail_heap(&map, lmcs_media_superblock(pool->media), "its root object is not in its map", error);
    if (status == LMCS_OK)
        status = check_slabs(&map, error);
    if (status == LMCS_OK) /* only now the slabs are known */
        status = lmcs_root_check(pool, &map.root, error);
    if (status == LMCS_OK)
        status = check_size(&map, error);
    for (size_t i = 0; status == LMCS_OK && pool->heap != NULL && i < map.gap_count; i++)
        lmcs_heap_punch(pool->heap, map.gaps[i].offset, map.gaps[i].bytes);
    free(map.gaps);
    free(map.objects);
    free(map.chunks);
    return status;
}
