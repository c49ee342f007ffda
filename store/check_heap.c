/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * check_heap.c - libpmemobj's map of its heap against the objects that we know.
 *
 * libpmemobj trusts its heap: a flipped bit there can make it hand out room that holds data, without a word. So before
 * it may allocate anything, its map is read (512 KiB for each 16 GiB in use) and compared with our own tree of
 * objects: every object of ours must be a used chunk of its size, and every used chunk must be ours.
 *
 * The map: zones follow one another behind the heap's header. A zone that was ever used begins with a magic number and
 * how many chunks of 256 KiB it has; a header for each chunk follows, and the chunks begin 512 KiB behind the zone's
 * start. One header speaks for `size_idx` chunks. An object of ours lies 16 bytes into its first chunk.
 */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "store.h"
#include "tree.h"

#define HEAP_HEADER_BYTES 1024u
#define ZONE_MAGIC        0xC3F0A2D2u
#define ZONE_HEADER_BYTES 64u
#define ZONE_META_BYTES   ((uint64_t)512 << 10)
#define ZONE_CHUNKS       65528u
#define CHUNK_BYTES       ((uint64_t)256 << 10)
#define ZONE_BYTES        (ZONE_META_BYTES + ZONE_CHUNKS * CHUNK_BYTES)
#define OBJECT_OFFSET     16u /* in its first chunk */

enum chunk_type { CHUNK_UNKNOWN, CHUNK_FOOTER, CHUNK_FREE, CHUNK_USED, CHUNK_RUN, CHUNK_RUN_DATA };

struct chunk_header {
    uint16_t type;
    uint16_t flags;
    uint32_t size_idx;
};

struct object {
    uint64_t offset;
    uint64_t bytes;
};

struct heap_map {
    struct lmcs_pool *pool;
    struct object *objects; /* ours, by offset */
    size_t count;
    size_t capacity;
    size_t met; /* of them, those that the map has shown so far */
    bool superblock_met;
    struct chunk_header *chunks; /* of one zone */
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
    if (bytes != sizeof df)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a record of an extent", map->pool->path);
    memcpy(&df, value, sizeof df);
    if (map->count == map->capacity) {
        size_t wanted = map->capacity == 0 ? 64 : map->capacity * 2;
        struct object *grown = realloc(map->objects, wanted * sizeof *grown);
        if (grown == NULL)
            return lmcs_fail_memory(error);
        map->objects = grown;
        map->capacity = wanted;
    }
    map->objects[map->count++] = (struct object){offset, df.bytes};
    return LMCS_OK;
}

static enum lmcs_status load_objects(struct heap_map *map, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_txn_read(map->pool, &txn, error);
    if (status == LMCS_OK) {
        status = lmcs_cursor_seek(cursor, &txn, LMCS_TREE_OBJECTS, &txn.root.trees[LMCS_TREE_OBJECTS],
                                  (struct lmcs_key_df){0, 0}, error);
        while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
            size_t bytes;
            const void *value = lmcs_cursor_value(cursor, &bytes);
            status = add_object(map, lmcs_cursor_key(cursor).high, value, bytes, error);
            if (status == LMCS_OK)
                status = lmcs_cursor_next(cursor, error);
        }
        lmcs_txn_end(&txn);
    }
    lmcs_cursor_free(cursor);
    return status;
}

/* A used chunk must be the next object of ours, and as large as that needs. */
static enum lmcs_status check_used(struct heap_map *map, uint64_t chunk_at, uint32_t size_idx, struct lmcs_error *error)
{
    uint64_t offset = chunk_at + OBJECT_OFFSET;
    const struct object *object = map->met < map->count ? &map->objects[map->met] : NULL;
    if (object != NULL && object->offset < offset)
        return fail_heap(map, object->offset, "an object of ours is not in its map", error);
    if (object == NULL || object->offset != offset)
        return fail_heap(map, offset, "its map has an object that is not ours", error);
    uint64_t room = size_idx * CHUNK_BYTES - OBJECT_OFFSET;
    if (object->bytes > room || room - object->bytes >= CHUNK_BYTES)
        return fail_heap(map, offset, "its map has an object of ours with a wrong size", error);
    map->met++;
    return LMCS_OK;
}

static enum lmcs_status check_chunks(struct heap_map *map, uint64_t zone_at, uint32_t count, struct lmcs_error *error)
{
    uint64_t superblock = lmcs_media_superblock(map->pool->media);
    enum lmcs_status status = LMCS_OK;
    for (uint32_t i = 0; status == LMCS_OK && i < count;) {
        const struct chunk_header *chunk = &map->chunks[i];
        uint64_t at = zone_at + ZONE_META_BYTES + i * CHUNK_BYTES;
        if (chunk->size_idx == 0 || chunk->size_idx > count - i)
            return fail_heap(map, at, "a chunk of impossible size", error);
        if (chunk->type == CHUNK_USED)
            status = check_used(map, at, chunk->size_idx, error);
        else if (chunk->type == CHUNK_RUN)
            map->superblock_met |= superblock >= at && superblock - at < chunk->size_idx * CHUNK_BYTES;
        else if (chunk->type != CHUNK_FREE)
            return fail_heap(map, at, "a chunk of unknown type", error);
        i += chunk->size_idx;
    }
    return status;
}

static enum lmcs_status check_zone(struct heap_map *map, uint64_t zone_at, struct lmcs_error *error)
{
    uint32_t header[2]; /* magic, chunks */
    const struct lmcs_media *media = map->pool->media;
    enum lmcs_status status = lmcs_media_read(media, zone_at, header, sizeof header, error);
    if (status != LMCS_OK || header[0] == 0)
        return status;
    if (header[0] != ZONE_MAGIC)
        return fail_heap(map, zone_at, "a zone's header", error);
    if (header[1] == 0 || header[1] > ZONE_CHUNKS ||
        header[1] * CHUNK_BYTES > lmcs_media_bytes(media) - zone_at - ZONE_META_BYTES)
        return fail_heap(map, zone_at, "a zone of impossible size", error);
    status = lmcs_media_read(media, zone_at + ZONE_HEADER_BYTES, map->chunks, header[1] * sizeof *map->chunks, error);
    return status == LMCS_OK ? check_chunks(map, zone_at, header[1], error) : status;
}

enum lmcs_status lmcs_check_heap(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct heap_map map = {.pool = pool, .chunks = malloc(ZONE_CHUNKS * sizeof *map.chunks)};
    uint64_t end = lmcs_media_bytes(pool->media);
    enum lmcs_status status = map.chunks == NULL ? lmcs_fail_memory(error) : load_objects(&map, error);
    for (uint64_t at = lmcs_media_heap(pool->media) + HEAP_HEADER_BYTES;
         status == LMCS_OK && at < end && end - at > ZONE_META_BYTES; at += ZONE_BYTES)
        status = check_zone(&map, at, error);
    if (status == LMCS_OK && map.met < map.count)
        status = fail_heap(&map, map.objects[map.met].offset, "an object of ours is not in its map", error);
    if (status == LMCS_OK && !map.superblock_met)
        status = fail_heap(&map, lmcs_media_superblock(pool->media), "its root object is not in its map", error);
    free(map.objects);
    free(map.chunks);
    return status;
}
