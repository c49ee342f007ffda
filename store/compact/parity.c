/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/parity.c - makes, checks and uses the parity of a payload's stored bytes (store/REPAIR.md; layout:
 * store/FORMAT.md, 10).
 *
 * Parity changes only with the end or replacement of its content.
 */
#include "compact/parity_batch.h"

#include <isa-l/erasure_code.h>
#include <stdlib.h>
#include <string.h>

#include "base/idle.h"
#include "pages/tree.h"
#include "payload/layout.h"
#include "payload/scan.h"
#include "records/manifest.h"
#include "records/policy.h"
#include "records/shelf.h"

#define PIECE_BYTES ((uint64_t)256 << 10) /* of each column, encoded together */
#define BATCH_BYTES ((uint64_t)64 << 20)
#define WHOLE_BYTES ((uint64_t)16 << 20) /* largest payload that is checked and encoded in memory, read once */
#define MOST_ROWS   (LMCS_MAX_PARITY_DATA + LMCS_MAX_PARITY)

struct shape {
    uint64_t stored_bytes;
    uint32_t data;
    uint32_t parity;
    uint64_t unit;    /* bytes */
    uint64_t units;   /* of data */
    uint64_t stripes; /* units of a column */
    uint64_t table;   /* bytes */
    uint64_t total;   /* of parity's payload */
};

static struct shape shape_of(uint64_t stored_bytes, uint32_t data, uint32_t parity)
{
    struct shape shape = {.stored_bytes = stored_bytes, .data = data, .parity = parity};
    uint64_t share = ((stored_bytes + data - 1) / data + 63) & ~(uint64_t)63;
    shape.unit = share > LMCS_PAGE_BYTES ? LMCS_PAGE_BYTES : share;
    if (shape.unit == 0)
        shape.unit = 64;
    shape.units = (stored_bytes + shape.unit - 1) / shape.unit;
    shape.stripes = (shape.units + data - 1) / data;
    shape.table = (shape.units + parity * shape.stripes) * sizeof(uint64_t);
    shape.total = 2 * shape.table + parity * shape.stripes * shape.unit;
    return shape;
}

uint64_t lmcs_parity_bytes(const struct lmcs_parity_record *parity)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < parity->df.part_count; i++)
        sum += parity->parts[i].bytes;
    return sum;
}

/* Returns the parity's parts as a content, to read and write them like a payload. */
static struct lmcs_content as_content(const struct lmcs_parity_record *parity)
{
    struct lmcs_content content = {.df = {.part_count = parity->df.part_count}};
    memcpy(content.parts, parity->parts, sizeof content.parts);
    content.df.stored_bytes = lmcs_parity_bytes(parity);
    return content;
}

enum lmcs_status lmcs_parity_pin(struct lmcs_pool *pool, const struct lmcs_parity_record *parity,
                                 struct lmcs_error *error)
{
    struct lmcs_content content = as_content(parity);
    return lmcs_payload_pin(pool->lease, &content, error);
}

void lmcs_parity_unpin(struct lmcs_pool *pool, const struct lmcs_parity_record *parity)
{
    struct lmcs_content content = as_content(parity);
    lmcs_payload_unpin(pool->lease, &content);
}

struct columns {
    unsigned char *memory;
    unsigned char *at[MOST_ROWS];
};

static bool columns_new(struct columns *columns, const struct shape *shape)
{
    size_t rows = shape->data + shape->parity;
    uint64_t bytes = shape->stripes * shape->unit; /* units are multiples of 64 */
    bytes = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    columns->memory = aligned_alloc(64, rows * bytes);
    for (size_t i = 0; i < rows && columns->memory != NULL; i++)
        columns->at[i] = columns->memory + i * bytes;
    return columns->memory != NULL;
}

/* Stripes in the piece that begins at stripe `first`. */
static uint64_t stripes_at(const struct shape *shape, uint64_t first)
{
    uint64_t most = PIECE_BYTES / shape->unit, left = shape->stripes - first;
    return left < most ? left : most;
}

/* Returns the payload's bytes in a piece of a column, and their offset *at; zeros fill the rest. */
static uint64_t data_at(const struct shape *shape, uint64_t column, uint64_t first, uint64_t count, uint64_t *at)
{
    *at = (column * shape->stripes + first) * shape->unit;
    uint64_t bytes = count * shape->unit;
    if (*at >= shape->stored_bytes)
        return 0;
    return bytes < shape->stored_bytes - *at ? bytes : shape->stored_bytes - *at;
}

static uint64_t unit_hash(const struct shape *shape, const unsigned char *unit, uint64_t index)
{
    return lmc_hash64(unit, shape->unit, index);
}

/* Finds a unit's index in the table of hashes. False: the unit is beyond the payload, always zeros. */
static bool index_of(const struct shape *shape, uint64_t row, uint64_t stripe, uint64_t *index)
{
    if (row >= shape->data) {
        *index = shape->units + (row - shape->data) * shape->stripes + stripe;
        return true;
    }
    *index = row * shape->stripes + stripe;
    return *index < shape->units;
}

/* ---- Making ---- */

struct coder {
    unsigned char matrix[MOST_ROWS * LMCS_MAX_PARITY_DATA];
    unsigned char tables[32 * LMCS_MAX_PARITY_DATA * LMCS_MAX_PARITY];
};

static void coder_init(struct coder *coder, const struct shape *shape)
{
    gf_gen_cauchy1_matrix(coder->matrix, (int)(shape->data + shape->parity), (int)shape->data);
    ec_init_tables((int)shape->data, (int)shape->parity, coder->matrix + (size_t)shape->data * shape->data,
                   coder->tables);
}

struct making {
    struct lmcs_pool *pool;
    struct lmcs_region *region;
    struct lmcs_content of;
    struct lmcs_identity identity;
    struct shape shape;
    unsigned char *payload; /* as all columns, zeros at the end; NULL: it is too large */
    struct lmcs_content made;
    uint64_t table_check;
    uint64_t read_bytes;
    bool worthwhile;
    bool is_damaged;  /* the content stays wanted until it is repaired */
    bool has_no_room; /* the content stays wanted until there is room */
};

/* One piece of all columns. */
struct piece {
    const struct making *m;
    const struct coder *coder;
    struct columns *columns;
    uint64_t *table;
    uint64_t first, count; /* stripes */
    enum lmcs_status status;
    struct lmcs_error *error;
};

/* Reads, encodes and hashes a piece. A job of the idle thread. */
static void encode_piece(void *context, uint64_t unused)
{
    struct piece *piece = context;
    const struct making *m = piece->m;
    const struct shape *shape = &m->shape;
    struct columns *columns = piece->columns;
    uint64_t bytes = piece->count * shape->unit, index;
    (void)unused;
    for (uint32_t i = 0; piece->status == LMCS_OK && i < shape->data; i++) {
        uint64_t at, n = data_at(shape, i, piece->first, piece->count, &at);
        if (m->payload != NULL) {
            columns->at[i] = m->payload + at;
            continue;
        }
        if (n > 0)
            piece->status = lmcs_payload_read(m->pool->media, &m->of, at, columns->at[i], n, piece->error);
        memset(columns->at[i] + n, 0, bytes - n);
    }
    if (piece->status != LMCS_OK)
        return;
    ec_encode_data((int)bytes, (int)shape->data, (int)shape->parity, (unsigned char *)piece->coder->tables, columns->at,
                   columns->at + shape->data);
    for (uint64_t row = 0; row < shape->data + shape->parity; row++)
        for (uint64_t s = 0; s < piece->count; s++)
            if (index_of(shape, row, piece->first + s, &index))
                piece->table[index] = unit_hash(shape, columns->at[row] + s * shape->unit, index);
}

/* Makes a piece, and writes its parity: here, since a write locks the file. */
static enum lmcs_status make_piece(struct making *m, const struct coder *coder, struct columns *columns,
                                   uint64_t *table, uint64_t first, struct lmcs_error *error)
{
    const struct shape *shape = &m->shape;
    const uint64_t count = stripes_at(shape, first);
    struct piece piece = {m, coder, columns, table, first, count, LMCS_OK, error};
    lmcs_idle_run(encode_piece, &piece, 1);
    for (uint32_t i = 0; piece.status == LMCS_OK && i < shape->parity; i++)
        piece.status =
            lmcs_payload_write(m->pool->heap, &m->made, shape->table + (i * shape->stripes + first) * shape->unit,
                               columns->at[shape->data + i], count * shape->unit, error);
    return piece.status;
}

static void give_room_back(struct making *m)
{
    while (m->made.df.part_count > 0)
        lmcs_region_shrink(m->region, m->made.parts[--m->made.df.part_count].offset, 0);
}

static enum lmcs_status write_parity(struct making *m, struct lmcs_error *error)
{
    const struct shape *shape = &m->shape;
    struct columns columns = {.memory = NULL};
    struct coder *coder = malloc(sizeof *coder);
    uint64_t *table = malloc(shape->table);
    enum lmcs_status status =
        coder == NULL || table == NULL || !columns_new(&columns, shape) ? lmcs_fail_memory(error) : LMCS_OK;
    if (status == LMCS_OK)
        coder_init(coder, shape);
    for (uint64_t first = 0; status == LMCS_OK && first < shape->stripes; first += PIECE_BYTES / shape->unit)
        status = make_piece(m, coder, &columns, table, first, error);
    if (status == LMCS_OK) {
        m->table_check = lmc_hash64(table, shape->table, m->of.id);
        status = lmcs_payload_write(m->pool->heap, &m->made, 0, table, shape->table, error);
    }
    if (status == LMCS_OK)
        status = lmcs_payload_write(m->pool->heap, &m->made, shape->total - shape->table, table, shape->table, error);
    lmcs_heap_drain(m->pool->heap);
    free(columns.memory);
    free(coder);
    free(table);
    return status;
}

struct reading {
    struct making *m;
    enum lmcs_status status;
    struct lmcs_error *error;
};

/* A job of the idle thread. */
static void read_payload(void *context, uint64_t unused)
{
    struct reading *reading = context;
    struct making *m = reading->m;
    const struct shape *shape = &m->shape;
    const uint64_t stored = m->of.df.stored_bytes, all = shape->data * shape->stripes * shape->unit;
    (void)unused;
    m->payload = aligned_alloc(64, all); /* units are multiples of 64 */
    if (m->payload == NULL) {
        reading->status = lmcs_fail_memory(reading->error);
        return;
    }
    reading->status = lmcs_payload_read(m->pool->media, &m->of, 0, m->payload, stored, reading->error);
    memset(m->payload + stored, 0, all - stored);
}

/* Scans the pinned payload first: parity of damaged bytes would preserve the damage. */
static enum lmcs_status scan_and_write(struct making *m, struct lmcs_error *error)
{
    struct lmcs_scan scan = {.blocks = 0};
    struct lmcs_bytes bytes = lmcs_bytes_of_pool(m->pool->media, &m->of);
    struct reading reading = {m, LMCS_OK, error};
    m->read_bytes = m->of.df.stored_bytes;
    if (m->of.df.stored_bytes <= WHOLE_BYTES) {
        lmcs_idle_run(read_payload, &reading, 1);
        bytes = lmcs_bytes_of_memory(m->payload);
    }
    enum lmcs_status status = reading.status;
    if (status == LMCS_OK)
        status = lmcs_scan(&bytes, &m->of, &m->identity, NULL, &scan, error);
    else if (status == LMCS_IO)
        status = LMCS_DAMAGED; /* of this content alone, as for the scan */
    m->is_damaged = status == LMCS_OK && !lmcs_scan_is_clean(&scan);
    if (status == LMCS_OK && !m->is_damaged) {
        status = write_parity(m, error);
        m->worthwhile = status == LMCS_OK;
    }
    lmcs_scan_free(&scan);
    free(m->payload);
    m->payload = NULL;
    return status;
}

static bool share_page(const struct lmcs_content *one, const struct lmcs_content *other)
{
    for (size_t i = 0; i < one->df.part_count; i++)
        for (size_t k = 0; k < other->df.part_count; k++) {
            const struct lmcs_part_df *a = &one->parts[i], *b = &other->parts[k];
            if (a->offset / LMCS_PAGE_BYTES <= (b->offset + b->bytes - 1) / LMCS_PAGE_BYTES &&
                b->offset / LMCS_PAGE_BYTES <= (a->offset + a->bytes - 1) / LMCS_PAGE_BYTES)
                return true;
        }
    return false;
}

/* Takes room for parity, not in a page of its payload: a bad page must not damage both. */
static enum lmcs_status take_room(struct making *m, struct lmcs_error *error)
{
    uint64_t left;
    enum lmcs_status status = lmcs_payload_take(m->region, m->shape.total, &m->made, error);
    if (status != LMCS_OK || !share_page(&m->of, &m->made))
        return status;
    const uint64_t at = m->made.parts[0].offset;
    give_room_back(m);
    status = lmcs_region_take(m->region, lmcs_page_up(at + 1) - at, &left, error); /* the rest of the page is lost */
    return status == LMCS_OK ? lmcs_payload_take(m->region, m->shape.total, &m->made, error) : status;
}

/* Makes the parity of one content; skips it if it has `too_large` bytes or more. Allocates before it reads. */
static enum lmcs_status make_one(struct making *m, uint64_t content, struct lmcs_wanted_df wanted, uint64_t too_large,
                                 struct lmcs_error *error)
{
    struct lmcs_txn txn;
    bool found = false;
    enum lmcs_status status = lmcs_txn_read(m->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_content_find(&txn, content, &m->of, &found, error);
    found = found && m->of.df.stored_bytes > 0;
    if (status == LMCS_OK && found)
        status = lmcs_identity_get(&txn, m->of.df.identity, &m->identity, error);
    if (status == LMCS_OK && found)
        status = lmcs_payload_pin(m->pool->lease, &m->of, error);
    lmcs_txn_end(&txn);
    if (status != LMCS_OK || !found)
        return status;
    m->shape = shape_of(m->of.df.stored_bytes, wanted.data, wanted.parity);
    status = m->shape.total < too_large ? take_room(m, error)
                                        : lmcs_fail(error, LMCS_FULL, 0, "no room for %llu bytes of parity",
                                                    (unsigned long long)m->shape.total);
    m->has_no_room = status == LMCS_FULL;
    if (status == LMCS_OK)
        status = scan_and_write(m, error);
    if (!m->worthwhile)
        give_room_back(m);
    lmcs_payload_unpin(m->pool->lease, &m->of);
    return status;
}

/* Enters the parity if the content is still stored as it was read. */
static enum lmcs_status enter(struct lmcs_txn *txn, const struct making *m, bool *entered, struct lmcs_error *error)
{
    struct lmcs_content now;
    bool found;
    *entered = false;
    enum lmcs_status status = lmcs_content_find(txn, m->of.id, &now, &found, error);
    if (status != LMCS_OK || !found || now.df.part_count != m->of.df.part_count ||
        memcmp(now.parts, m->of.parts, now.df.part_count * sizeof now.parts[0]) != 0)
        return status;
    struct lmcs_parity_record record = {.df = {.stored_bytes = m->shape.stored_bytes,
                                               .table_check = m->table_check,
                                               .unit_bytes = (uint32_t)m->shape.unit,
                                               .data = (uint8_t)m->shape.data,
                                               .parity = (uint8_t)m->shape.parity,
                                               .part_count = m->made.df.part_count}};
    memcpy(record.parts, m->made.parts, sizeof record.parts);
    *entered = true;
    return lmcs_parity_put(txn, m->of.id, &record, error);
}

/* Whether the content stays wanted. */
static bool is_left(const struct making *item)
{
    return item->is_damaged || item->has_no_room;
}

/* Enters all parity in one transaction. LMCS_DAMAGED, LMCS_UNSUPPORTED: *bad is the item with unusable records, or
 * SIZE_MAX. */
static enum lmcs_status try_commit(struct lmcs_pool *pool, struct lmcs_region *region, const struct making *items,
                                   const uint64_t *contents, size_t count, size_t *entered, size_t *bad,
                                   struct lmcs_error *error)
{
    struct lmcs_txn txn;
    *entered = 0;
    *bad = SIZE_MAX;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        bool done = false;
        if (is_left(&items[i]))
            continue;
        if (items[i].worthwhile)
            status = enter(&txn, &items[i], &done, error);
        *entered += done;
        if (status == LMCS_OK && done == items[i].worthwhile)
            status = lmcs_parity_want(&txn, contents[i], 0, 0, error);
        if (lmcs_is_unusable(status))
            *bad = i;
    }
    if (status == LMCS_OK)
        status = lmcs_region_commit(&txn, region, error);
    return lmcs_txn_finish(&txn, status, error);
}

/* Commits a batch without the items that have unusable records. A content that is gone or has no bytes of its own is no
 * longer wanted; one that is damaged, lacks room or was replaced meanwhile stays wanted. */
static enum lmcs_status commit_batch(struct lmcs_pool *pool, struct lmcs_region *region, struct making *items,
                                     const uint64_t *contents, size_t count, size_t *entered, struct lmcs_error *error)
{
    size_t bad;
    *entered = 0;
    for (;;) {
        size_t left = 0;
        while (left < count && is_left(&items[left]))
            left++;
        if (left == count)
            return LMCS_OK;
        enum lmcs_status status = lmcs_heap_sync(pool->heap, error);
        if (status == LMCS_OK)
            status = try_commit(pool, region, items, contents, count, entered, &bad, error);
        if (!lmcs_is_unusable(status) || bad == SIZE_MAX)
            return status;
        items[bad].is_damaged = true;
    }
}

enum lmcs_status lmcs_parity_make_batch(struct lmcs_pool *pool, struct lmcs_parity_batch *batch,
                                        bool (*go_on)(void *context, uint64_t bytes), void *context,
                                        struct lmcs_error *error)
{
    const uint64_t *contents = batch->contents;
    const struct lmcs_wanted_df *wanted = batch->wanted;
    struct lmcs_region region;
    struct making *items = calloc(batch->count, sizeof *items);
    uint64_t bytes = 0;
    enum lmcs_status status = items == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    lmcs_region_init(&region, pool, 1);
    if (batch->leaves_share)
        lmcs_region_leave_share(&region);
    batch->done = batch->entered = 0;
    batch->is_stopped = false;
    for (size_t i = 0; status == LMCS_OK && !batch->is_stopped && i < batch->count && bytes < BATCH_BYTES; i++) {
        items[i] = (struct making){.pool = pool, .region = &region};
        items[i].of.id = contents[i];
        status = make_one(&items[i], contents[i], wanted[i], batch->too_large, error);
        items[i].is_damaged |= lmcs_is_unusable(status);
        if (items[i].has_no_room && items[i].shape.total < batch->too_large) {
            if (error != NULL && batch->too_large == UINT64_MAX)
                batch->full = *error;
            batch->too_large = items[i].shape.total;
        }
        if (lmcs_is_unusable(status) || status == LMCS_NOT_FOUND || items[i].has_no_room) /* of this content alone */
            status = LMCS_OK;
        if (status == LMCS_OK) {
            bytes += items[i].read_bytes;
            batch->done++;
        }
        batch->is_stopped = go_on != NULL && !go_on(context, items[i].read_bytes);
    }
    if (status == LMCS_OK)
        status = commit_batch(pool, &region, items, contents, batch->done, &batch->entered, error);
    for (size_t i = 0; i < batch->done; i++) {
        batch->is_damaged[i] = items[i].is_damaged;
        batch->has_no_room[i] = items[i].has_no_room;
    }
    lmcs_region_end(&region);
    free(items);
    return status;
}

enum lmcs_status lmcs_parity_unless_full(const struct lmcs_parity_batch *batch, enum lmcs_status status,
                                         struct lmcs_error *error)
{
    if (status != LMCS_OK || batch->too_large == UINT64_MAX)
        return status;
    if (error != NULL)
        *error = batch->full;
    return LMCS_FULL;
}

enum lmcs_status lmcs_parity_make(struct lmcs_pool *pool, uint64_t content, uint32_t data, uint32_t parity, bool *made,
                                  struct lmcs_error *error)
{
    struct lmcs_parity_batch batch = {
        .contents = {content}, .wanted = {{data, parity}}, .count = 1, .too_large = UINT64_MAX};
    enum lmcs_status status =
        lmcs_parity_unless_full(&batch, lmcs_parity_make_batch(pool, &batch, NULL, NULL, error), error);
    *made = status == LMCS_OK && batch.entered == 1;
    return status;
}

enum lmcs_status lmcs_parity_move(struct lmcs_pool *pool, uint64_t content, uint64_t first, uint64_t end, size_t *moved,
                                  struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_parity_record parity;
    bool found, made = false;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_parity_find(&txn, content, &parity, &found, error);
    lmcs_txn_end(&txn);
    /* moving parity of several parts would leave other extents sparse */
    if (status != LMCS_OK || !found || parity.df.part_count != 1 || parity.parts[0].offset < first ||
        parity.parts[0].offset >= end)
        return status;
    status = lmcs_parity_make(pool, content, parity.df.data, parity.df.parity, &made, error);
    *moved += made;
    return status;
}

/* ---- Checking and repairing ---- */

/* Loads the table of hashes. *table NULL: both copies are damaged. *both: both are sound. */
static enum lmcs_status load_table(struct lmcs_pool *pool, uint64_t content, const struct lmcs_parity_record *parity,
                                   const struct shape *shape, uint64_t **table, bool *both, struct lmcs_error *error)
{
    struct lmcs_content where = as_content(parity);
    struct lmcs_error ignored;
    const uint64_t places[2] = {shape->total - shape->table, 0};
    bool good = false;
    *both = true;
    *table = NULL;
    if (where.df.stored_bytes != shape->total || parity->df.unit_bytes != shape->unit) {
        *both = false;
        return LMCS_OK;
    }
    uint64_t *found = malloc(shape->table);
    if (found == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < 2; i++) {
        bool right = lmcs_payload_read(pool->media, &where, places[i], found, shape->table, &ignored) == LMCS_OK &&
                     lmc_hash64(found, shape->table, content) == parity->df.table_check;
        *both &= right;
        if (right && !good) {
            *table = found;
            good = true;
            found = malloc(shape->table);
            if (found == NULL) {
                free(*table);
                *table = NULL;
                return lmcs_fail_memory(error);
            }
        }
    }
    free(found);
    return LMCS_OK;
}

/* Unreadable bytes become zeros. */
static void read_parity(struct lmcs_pool *pool, const struct lmcs_content *where, const struct shape *shape,
                        uint64_t column, uint64_t first, uint64_t count, unsigned char *to)
{
    struct lmcs_error ignored;
    for (uint64_t s = 0; s < count; s++) {
        uint64_t at = shape->table + (column * shape->stripes + first + s) * shape->unit;
        if (lmcs_payload_read(pool->media, where, at, to + s * shape->unit, shape->unit, &ignored) != LMCS_OK)
            memset(to + s * shape->unit, 0, shape->unit);
    }
}

enum lmcs_status lmcs_parity_look(struct lmcs_pool *pool, uint64_t content, const struct lmcs_parity_record *parity,
                                  bool *sound, struct lmcs_error *error)
{
    struct shape shape = shape_of(parity->df.stored_bytes, parity->df.data, parity->df.parity);
    struct lmcs_content where = as_content(parity);
    uint64_t *table, index;
    unsigned char *unit = malloc(PIECE_BYTES);
    enum lmcs_status status =
        unit == NULL ? lmcs_fail_memory(error) : load_table(pool, content, parity, &shape, &table, sound, error);
    if (status != LMCS_OK) {
        free(unit);
        return status;
    }
    for (uint32_t i = 0; *sound && i < shape.parity; i++)
        for (uint64_t first = 0; *sound && first < shape.stripes; first += PIECE_BYTES / shape.unit) {
            uint64_t count = stripes_at(&shape, first);
            read_parity(pool, &where, &shape, i, first, count, unit);
            for (uint64_t s = 0; s < count && *sound; s++)
                *sound = index_of(&shape, shape.data + i, first + s, &index) &&
                         unit_hash(&shape, unit + s * shape.unit, index) == table[index];
        }
    free(table);
    free(unit);
    return LMCS_OK;
}

struct repairing {
    struct lmcs_pool *pool;
    struct shape shape;
    struct lmcs_content where;
    const uint64_t *table;
    struct coder *coder;
    struct columns columns;
    unsigned char *stored;
    uint64_t units; /* repaired */
    /* decoding tables for the erasures of the previous stripe */
    bool has_tables;
    uint8_t rows[MOST_ROWS]; /* sound rows, as many as there are columns of data */
    uint8_t erased[LMCS_MAX_PARITY];
    size_t erased_count;
};

static bool prepare_tables(struct repairing *m, const uint8_t *rows, const uint8_t *erased, size_t erased_count)
{
    unsigned char square[LMCS_MAX_PARITY_DATA * LMCS_MAX_PARITY_DATA];
    unsigned char inverse[LMCS_MAX_PARITY_DATA * LMCS_MAX_PARITY_DATA];
    unsigned char wanted[LMCS_MAX_PARITY_DATA * LMCS_MAX_PARITY];
    size_t k = m->shape.data;
    if (m->has_tables && m->erased_count == erased_count && memcmp(m->rows, rows, k) == 0 &&
        memcmp(m->erased, erased, erased_count) == 0)
        return true;
    for (size_t i = 0; i < k; i++)
        memcpy(square + i * k, m->coder->matrix + rows[i] * k, k);
    m->has_tables = gf_invert_matrix(square, inverse, (int)k) == 0;
    if (!m->has_tables)
        return false;
    for (size_t i = 0; i < erased_count; i++)
        memcpy(wanted + i * k, inverse + erased[i] * k, k);
    ec_init_tables((int)k, (int)erased_count, wanted, m->coder->tables);
    memcpy(m->rows, rows, k);
    memcpy(m->erased, erased, erased_count);
    m->erased_count = erased_count;
    return true;
}

static void repair_stripe(struct repairing *m, uint64_t first, uint64_t s)
{
    const struct shape *shape = &m->shape;
    uint8_t rows[MOST_ROWS], erased[LMCS_MAX_PARITY];
    unsigned char *in[MOST_ROWS], *out[LMCS_MAX_PARITY], fresh[LMCS_MAX_PARITY][LMCS_PAGE_BYTES];
    size_t whole = 0, missing = 0;
    for (uint32_t row = 0; row < shape->data + shape->parity; row++) {
        unsigned char *unit = m->columns.at[row] + s * shape->unit;
        uint64_t index;
        bool right = !index_of(shape, row, first + s, &index) || unit_hash(shape, unit, index) == m->table[index];
        if (right && whole < shape->data) {
            in[whole] = unit;
            rows[whole++] = (uint8_t)row;
        } else if (!right && row < shape->data) {
            if (missing == shape->parity)
                return;
            erased[missing++] = (uint8_t)row;
        }
    }
    if (missing == 0 || whole < shape->data || !prepare_tables(m, rows, erased, missing))
        return;
    for (size_t i = 0; i < missing; i++)
        out[i] = fresh[i];
    ec_encode_data((int)shape->unit, (int)shape->data, (int)missing, m->coder->tables, in, out);
    for (size_t i = 0; i < missing; i++) {
        uint64_t at, index, n = data_at(shape, erased[i], first + s, 1, &at);
        if (!index_of(shape, erased[i], first + s, &index) || unit_hash(shape, fresh[i], index) != m->table[index])
            continue;
        memcpy(m->stored + at, fresh[i], n);
        m->units++;
    }
}

static void repair_pieces(struct repairing *m)
{
    const struct shape *shape = &m->shape;
    for (uint64_t first = 0; first < shape->stripes; first += PIECE_BYTES / shape->unit) {
        uint64_t count = stripes_at(shape, first), bytes = count * shape->unit;
        for (uint32_t i = 0; i < shape->data; i++) {
            uint64_t at, n = data_at(shape, i, first, count, &at);
            memcpy(m->columns.at[i], m->stored + (n > 0 ? at : 0), n);
            memset(m->columns.at[i] + n, 0, bytes - n);
        }
        for (uint32_t i = 0; i < shape->parity; i++)
            read_parity(m->pool, &m->where, shape, i, first, count, m->columns.at[shape->data + i]);
        for (uint64_t s = 0; s < count; s++)
            repair_stripe(m, first, s);
    }
}

enum lmcs_status lmcs_parity_repair(struct lmcs_pool *pool, uint64_t content, const struct lmcs_parity_record *parity,
                                    unsigned char *stored, uint64_t *units, struct lmcs_error *error)
{
    struct repairing m = {.pool = pool,
                          .shape = shape_of(parity->df.stored_bytes, parity->df.data, parity->df.parity),
                          .where = as_content(parity),
                          .stored = stored};
    uint64_t *table = NULL;
    bool both;
    *units = 0;
    enum lmcs_status status = load_table(pool, content, parity, &m.shape, &table, &both, error);
    if (status != LMCS_OK || table == NULL)
        return status;
    m.table = table;
    m.coder = malloc(sizeof *m.coder);
    if (m.coder == NULL || !columns_new(&m.columns, &m.shape)) {
        status = lmcs_fail_memory(error);
    } else {
        coder_init(m.coder, &m.shape);
        repair_pieces(&m);
    }
    *units = m.units;
    free(m.columns.memory);
    free(m.coder);
    free(table);
    return status;
}
