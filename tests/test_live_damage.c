/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_live_damage.c - flipped and swapped bits of values, of their cells and of pending journals.
 *
 * A value is right, or reads report damage and verify names it. A pending journal is applied completely or not at all,
 * or writing is refused, also when a sealed journal leads outside of live variables. (Tensors have no checksum:
 * lmcstore_live.h.)
 */
/* ctest: timeout=600 */
#include "test_live_support.h"

#include <fcntl.h>
#include <unistd.h>

#include "live/change.h"
#include "live/journal.h"
#include "pages/tree.h"

static const char *const values[] = {"short", "other", "number"};
enum { VALUES = sizeof values / sizeof values[0] };
static const char *const texts[VALUES] = {"as it is now", "as other is!", "42"};

static void file_io(const char *path, uint64_t at, void *data, size_t bytes, bool writes)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0);
    EXPECT((writes ? pwrite(fd, data, bytes, (off_t)at) : pread(fd, data, bytes, (off_t)at)) == (ssize_t)bytes);
    close(fd);
}

static void flip(const char *path, uint64_t at, unsigned bit)
{
    unsigned char byte;
    file_io(path, at, &byte, 1, false);
    byte ^= (unsigned char)(1u << bit % 8);
    file_io(path, at, &byte, 1, true);
}

struct cells {
    uint64_t at[VALUES];
    uint64_t bytes[VALUES];
    uint64_t tensor;
};

static enum lmcs_status note_cell(void *context, struct lmcs_live_record *record, struct lmcs_error *error)
{
    struct cells *cells = context;
    (void)error;
    for (size_t i = 0; i < VALUES; i++)
        if (strcmp(record->name, values[i]) == 0) {
            cells->at[i] = record->df.cell;
            cells->bytes[i] = record->df.cell_bytes;
        }
    if (record->df.form == LMCS_LIVE_TENSOR)
        cells->tensor = record->parts[0].offset;
    free(record);
    return LMCS_OK;
}

static struct lmcs_pool *make(struct place *place, struct cells *cells)
{
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *tensor = new_tensor(pool, "weights", 5000);
    struct lmcs_txn txn;
    fill(tensor, 1);
    lmcs_live_close(tensor);
    for (size_t i = 0; i < VALUES; i++) {
        put_text(pool, values[i], "what it was.");
        put_text(pool, values[i], texts[i]);
    }
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_live_record_each(&txn, 0, note_cell, cells, &err));
    lmcs_txn_end(&txn);
    EXPECT(cells->tensor != 0 && cells->at[0] != 0 && cells->at[1] != 0 && cells->at[2] != 0);
    return pool;
}

struct told {
    const char *name;
    size_t damages, named;
};

static void note_damage(void *context, const struct lmcs_damage *damage)
{
    struct told *told = context;
    told->damages++;
    told->named += strcmp(damage->shelf, "run") == 0 && strcmp(damage->tensor, told->name) == 0;
}

static bool value_is_right(struct lmcs_pool *pool, size_t i, enum lmcs_status *status)
{
    struct lmcs_live *live;
    char got[100];
    uint64_t bytes = 0;
    *status = lmcs_live_open(pool, "run", values[i], &live, &err);
    if (*status != LMCS_OK)
        return false;
    *status = lmcs_live_get(live, got, sizeof got, &bytes, &err);
    lmcs_live_close(live);
    return *status == LMCS_OK && bytes == strlen(texts[i]) && memcmp(got, texts[i], bytes) == 0;
}

static bool count_listed(void *context, const struct lmcs_live_info *info)
{
    unsigned *counts = context;
    counts[info->is_damaged]++;
    return true;
}

/* True: all calls report the damage, with the value's name. */
static bool look_for_damage(const char *path, size_t i, enum lmcs_open_mode mode)
{
    struct lmcs_pool *pool = open_pool(path, mode, LMCS_NO_BACKGROUND);
    struct told told = {.name = values[i]};
    enum lmcs_status status, verified = lmcs_verify(pool, NULL, note_damage, &told, NULL, NULL, &err);
    bool right = value_is_right(pool, i, &status);
    EXPECT(right || status == LMCS_DAMAGED);
    EXPECT((verified == LMCS_DAMAGED) == !right && (verified == LMCS_OK) == right);
    EXPECT(right || (told.damages == told.named && told.named == 1));
    EXPECT(right || strstr(err.message, values[i]) != NULL || mode == LMCS_OPEN_READ);
    unsigned counts[2] = {0, 0};
    OK(lmcs_live_list(pool, "run", NULL, count_listed, counts, &err));
    EXPECT(counts[0] == (right ? VALUES + 1 : VALUES) && counts[1] == (right ? 0 : 1));
    close_pool(pool);
    return !right;
}

static void each_byte_of_a_value(void **state)
{
    struct place *place = *state;
    struct cells cells = {.tensor = 0};
    struct rng rng = {1};
    size_t seen = 0, cases = 0;
    close_pool(make(place, &cells));
    for (size_t i = 0; i < VALUES; i++)
        for (uint64_t at = i; at < cells.bytes[i]; at += i == 0 ? 1 : 3, cases++) {
            unsigned bit = (unsigned)rng_below(&rng, 8);
            flip(place->pool, cells.at[i] + at, bit);
            seen += look_for_damage(place->pool, i, cases % 16 == 0 ? LMCS_OPEN_WRITE : LMCS_OPEN_READ);
            flip(place->pool, cells.at[i] + at, bit);
        }
    EXPECT(seen >= 8 + 24 + 12 && seen < cases);
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (size_t i = 0; i < VALUES; i++)
        expect_text(pool, values[i], texts[i]);
    verify_pool(pool);
    close_pool(pool);
}

static void two_values_swapped(void **state)
{
    struct place *place = *state;
    struct cells cells = {.tensor = 0};
    unsigned char cell[2][512];
    enum lmcs_status status;
    close_pool(make(place, &cells));
    EXPECT(cells.bytes[0] == cells.bytes[1] && cells.bytes[0] <= sizeof cell[0]);
    for (size_t i = 0; i < 2; i++)
        file_io(place->pool, cells.at[i], cell[i], cells.bytes[i], false);
    for (size_t i = 0; i < 2; i++)
        file_io(place->pool, cells.at[i], cell[!i], cells.bytes[i], true);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct told told = {.name = values[0]};
    FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, note_damage, &told, NULL, NULL, &err));
    EXPECT(told.damages == 2 && told.named == 1);
    for (size_t i = 0; i < 2; i++)
        EXPECT(!value_is_right(pool, i, &status) && status == LMCS_DAMAGED);
    EXPECT(value_is_right(pool, 2, &status));
    FAILS(LMCS_DAMAGED, lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    OK(lmcs_live_erase(pool, "run", values[0], &err));
    put_text(pool, values[0], texts[0]);
    put_text(pool, values[1], texts[1]);
    for (size_t i = 0; i < VALUES; i++)
        expect_text(pool, values[i], texts[i]);
    verify_pool(pool);
    close_pool(pool);
}

enum { JOURNALED = 3000, ALL = JOURNALED + 64 };

/* As after a kill with a sealed journal, whose entry is for the tensor's beginning. */
static uint64_t make_pending(struct place *place, const char *pending, unsigned char then[JOURNALED])
{
    struct cells cells = {.tensor = 0};
    struct rng rng = {9};
    uint64_t sequence = 0;
    struct lmcs_pool *pool = make(place, &cells);
    rng_fill(&rng, then, JOURNALED);
    struct lmcs_journaled entries[] = {{cells.tensor, 1000, then},
                                       {cells.tensor + 1000, JOURNALED - 1000, then + 1000}};
    pthread_mutex_lock(&pool->live->lock);
    OK(lmcs_journal_write(pool, entries, 2, false, &sequence, &err));
    uint64_t at = pool->live->journals[LMCS_JOURNAL_REDO].next;
    copy_file(place->pool, pending);
    OK(lmcs_journal_clear(pool, LMCS_JOURNAL_REDO, &err));
    pthread_mutex_unlock(&pool->live->lock);
    close_pool(pool);
    return at;
}

/* Returns whether it was applied; 2: writing is refused. */
static int apply_pending(const char *path, const unsigned char then[JOURNALED])
{
    struct lmcs_open_options options;
    struct lmcs_pool *pool;
    struct lmcs_live *live;
    unsigned char got[20000], before[20000];
    uint64_t bytes;
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    enum lmcs_status status = lmcs_pool_open(path, LMCS_OPEN_WRITE, &options, &pool, &err);
    if (status != LMCS_OK) {
        EXPECT(status == LMCS_DAMAGED && strstr(err.message, "journal of live variables is damaged") != NULL);
        close_pool(open_pool(path, LMCS_OPEN_READ, LMCS_NO_BACKGROUND));
        return 2;
    }
    OK(lmcs_live_open(pool, "run", "weights", &live, &err));
    OK(lmcs_live_get(live, got, sizeof got, &bytes, &err));
    for (size_t i = 0; i < 5000; i++) {
        float value = 1 + (float)i;
        memcpy(before + i * sizeof value, &value, sizeof value);
    }
    bool applied = memcmp(got, then, JOURNALED) == 0;
    EXPECT(applied || memcmp(got, before, JOURNALED) == 0);
    EXPECT(memcmp(got + JOURNALED, before + JOURNALED, sizeof got - JOURNALED) == 0);
    lmcs_live_close(live);
    verify_pool(pool);
    close_pool(pool);
    return applied;
}

static void each_part_of_a_pending_journal(void **state)
{
    struct place *place = *state;
    static unsigned char then[JOURNALED];
    char pending[512], work[512];
    size_t came_of[3] = {0};
    struct rng rng = {2};
    place_path(place, "pending.pool", pending);
    place_path(place, "work.pool", work);
    uint64_t at = make_pending(place, pending, then);
    copy_file(pending, work);
    EXPECT(apply_pending(work, then) == 1);
    EXPECT(apply_pending(work, then) == 1);
    uint64_t places[] = {at, at + LMCS_PAGE_BYTES, at + 2 * (uint64_t)LMCS_PAGE_BYTES};
    uint64_t bytes[] = {sizeof(struct lmcs_journal_df), 2 * sizeof(struct lmcs_journal_entry_df), ALL};
    for (size_t i = 0; i < 3; i++)
        for (uint64_t k = 0; k < bytes[i]; k += i == 2 ? 97 : 3) {
            copy_file(pending, work);
            flip(work, places[i] + k, (unsigned)rng_below(&rng, 8));
            came_of[apply_pending(work, then)]++;
        }
    EXPECT(came_of[0] > 0 && came_of[2] > 20);
}

struct forging {
    struct place *place;
    char pending[512];
    char work[512];
    struct lmcs_pool *pool;
    struct cells cells;
    uint64_t object, object_end;
    uint64_t extent;
};

static void find_objects(struct forging *f)
{
    struct lmcs_cursor *cursor;
    struct lmcs_txn txn;
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_txn_read(f->pool, &txn, &err));
    OK(lmcs_root_seek(cursor, &txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){0, 0}, &err));
    while (lmcs_cursor_valid(cursor)) {
        struct lmcs_object_df df;
        memcpy(&df, lmcs_cursor_value(cursor, NULL), sizeof df);
        uint64_t offset = lmcs_cursor_key(cursor).high;
        if (df.kind == LMCS_OBJECT_LIVE) {
            f->object = offset;
            f->object_end = (offset + df.bytes) & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
        } else {
            f->extent = df.first;
        }
        OK(lmcs_cursor_next(cursor, &err));
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    EXPECT(f->object < f->cells.tensor && f->cells.tensor < f->object_end && f->extent != 0);
}

/* As after a kill, with these entries in a journal and this place of journals in the root. */
static void forge(struct forging *f, enum lmcs_journal_kind kind, const struct lmcs_journaled *entries, size_t count,
                  const struct lmcs_page_range_df *elsewhere)
{
    struct lmcs_txn txn;
    uint64_t sequence = 0, at = 0;
    pthread_mutex_lock(&f->pool->live->lock);
    struct lmcs_page_range_df range = f->pool->live->journals[kind];
    if (kind == LMCS_JOURNAL_REDO)
        OK(lmcs_journal_write(f->pool, entries, count, false, &sequence, &err));
    else
        OK(lmcs_undo_begin(f->pool, 1 << 16, &sequence, &err));
    for (size_t i = 0; kind == LMCS_JOURNAL_UNDO && i < count; i++)
        OK(lmcs_undo_add(f->pool, sequence, &entries[i], &at, &err));
    if (elsewhere != NULL) {
        OK(lmcs_txn_write(f->pool, &txn, &err));
        txn.root.journals[kind] = *elsewhere;
        OK(lmcs_txn_commit(&txn, &err));
    }
    copy_file(f->place->pool, f->pending);
    if (elsewhere != NULL) {
        OK(lmcs_txn_write(f->pool, &txn, &err));
        txn.root.journals[kind] = range;
        OK(lmcs_txn_commit(&txn, &err));
    }
    OK(lmcs_journal_clear(f->pool, kind, &err));
    pthread_mutex_unlock(&f->pool->live->lock);
}

static void note_journal(void *context, const struct lmcs_damage *damage)
{
    *(bool *)context = *(bool *)context || strstr(damage->what, "journal") != NULL;
}

static void expect_refused(struct forging *f, const uint64_t *places, size_t count, const char *why)
{
    enum { LOOKED_AT = 256 };
    unsigned char before[4][LOOKED_AT], now[LOOKED_AT];
    struct lmcs_open_options options;
    struct lmcs_pool *pool;
    bool told = false;
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    close_pool(f->pool); /* libpmemobj can't have both */
    copy_file(f->pending, f->work);
    for (size_t i = 0; i < count; i++)
        file_io(f->work, places[i], before[i], LOOKED_AT, false);
    FAILS(LMCS_DAMAGED, lmcs_pool_open(f->work, LMCS_OPEN_WRITE, &options, &pool, &err));
    EXPECT(strstr(err.message, why) != NULL && strstr(err.message, "journal") != NULL);
    for (size_t i = 0; i < count; i++) {
        file_io(f->work, places[i], now, LOOKED_AT, false);
        EXPECT(memcmp(now, before[i], LOOKED_AT) == 0);
    }
    pool = open_pool(f->work, LMCS_OPEN_READ, LMCS_NO_BACKGROUND);
    FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, note_journal, &told, NULL, NULL, &err));
    EXPECT(told);
    enum lmcs_status status;
    EXPECT(value_is_right(pool, 0, &status));
    close_pool(pool);
    f->pool = open_quiet(f->place->pool);
}

static void a_journal_that_leads_elsewhere(void **state)
{
    struct forging f = {.place = *state};
    static unsigned char data[512];
    struct rng rng = {3};
    rng_fill(&rng, data, sizeof data);
    place_path(f.place, "pending.pool", f.pending);
    place_path(f.place, "work.pool", f.work);
    f.pool = make(f.place, &f.cells);
    uint64_t sequence = 0;
    pthread_mutex_lock(&f.pool->live->lock);
    OK(lmcs_undo_begin(f.pool, 1 << 16, &sequence, &err));
    OK(lmcs_journal_clear(f.pool, LMCS_JOURNAL_UNDO, &err));
    OK(lmcs_journal_write(f.pool, NULL, 0, false, &sequence, &err));
    OK(lmcs_journal_clear(f.pool, LMCS_JOURNAL_REDO, &err));
    pthread_mutex_unlock(&f.pool->live->lock);
    find_objects(&f);
    struct lmcs_page_range_df journals[LMCS_JOURNALS];
    memcpy(journals, f.pool->live->journals, sizeof journals);
    uint64_t zone = lmcs_media_heap(f.pool->media) + 1024, superblock = lmcs_media_superblock(f.pool->media);
    const struct {
        uint64_t place, bytes;
    } wrong[] = {
        {superblock, 128},
        {zone, 8},
        {zone + 64, 64},
        {4096, 64},
        {f.pool->root.self, 64},
        {f.extent, 256},
        {f.object - 16, 8},
        {f.object_end - 64, 128},
        {journals[LMCS_JOURNAL_REDO].next, 64},
        {journals[LMCS_JOURNAL_UNDO].next + LMCS_PAGE_BYTES, 64},
    };
    for (int kind = 0; kind < (int)LMCS_JOURNALS; kind++)
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            struct lmcs_journaled entries[] = {{f.cells.tensor, 256, data},
                                               {wrong[i].place, wrong[i].bytes, data + 256}};
            struct lmcs_journaled turned[] = {entries[1], entries[0]};
            uint64_t places[] = {f.cells.tensor, wrong[i].place, superblock, zone};
            forge(&f, (enum lmcs_journal_kind)kind, kind == LMCS_JOURNAL_REDO ? entries : turned, 2, NULL);
            expect_refused(&f, places, 4, "leads outside of live variables");
        }
    /* Journals in forbidden or overlapping places, where clearing one would write. */
    const struct lmcs_page_range_df elsewhere[] = {
        {superblock & ~(uint64_t)(LMCS_PAGE_BYTES - 1), (superblock & ~(uint64_t)(LMCS_PAGE_BYTES - 1)) + (1 << 20)},
        {f.extent, f.extent + (1 << 16)},
        {f.object_end - LMCS_PAGE_BYTES, f.object_end + (1 << 16)},
        journals[LMCS_JOURNAL_REDO],
    };
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++) {
        uint64_t places[] = {f.cells.tensor, elsewhere[i].next, superblock, zone};
        struct lmcs_journaled entry = {f.cells.tensor, 256, data};
        forge(&f, LMCS_JOURNAL_UNDO, &entry, 1, &elsewhere[i]);
        expect_refused(&f, places, 4, "journal");
    }
    verify_pool(f.pool);
    close_pool(f.pool);
}

static void what_lies_where_something_else_does(void **state)
{
    struct place *place = *state;
    for (int which = 0; which < 2; which++) {
        unlink(place->pool);
        struct lmcs_pool *pool = open_quiet(place->pool), *opened;
        struct lmcs_live *first = new_tensor(pool, "first", 1024), *second = new_tensor(pool, "second", 32768);
        struct cells cells = {.tensor = 0};
        struct lmcs_txn txn;
        struct lmcs_live_record *forged = NULL;
        char copy[512];
        float got[2] = {0, 0};
        fill(first, 1);
        fill(second, 1);
        OK(lmcs_txn_read(pool, &txn, &err));
        OK(lmcs_live_record_each(&txn, 0, note_cell, &cells, &err));
        lmcs_txn_end(&txn);
        if (which == 0) {
            OK(lmcs_txn_write(pool, &txn, &err));
            txn.root.journals[LMCS_JOURNAL_UNDO] = (struct lmcs_page_range_df){cells.tensor, cells.tensor + 131072};
            OK(lmcs_txn_commit(&txn, &err));
        } else {
            struct lmcs_live_record like = *first->body->record;
            struct lmcs_part_df part = {.offset = cells.tensor, .bytes = 131072};
            like.parts = &part;
            forged = lmcs_live_record_new(&like, &err);
            struct lmcs_live_change change = {first->body->record, forged};
            OK(lmcs_live_commit_changes(pool, &change, 1, 0, &err));
        }
        place_path(place, "forged.pool", copy);
        unlink(copy);
        copy_file(place->pool, copy);
        lmcs_live_close(first);
        lmcs_live_close(second);
        close_pool(pool);
        free(forged);
        file_io(copy, cells.tensor + 8192, &got[0], sizeof got[0], false);
        FAILS(LMCS_DAMAGED, lmcs_pool_open(copy, LMCS_OPEN_WRITE, NULL, &opened, &err));
        file_io(copy, cells.tensor + 8192, &got[1], sizeof got[1], false);
        EXPECT(got[0] == 1 + 2048 && got[1] == got[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(each_byte_of_a_value),
        IN_MEMORY(two_values_swapped),
        IN_MEMORY(each_part_of_a_pending_journal),
        IN_MEMORY(a_journal_that_leads_elsewhere),
        IN_MEMORY(what_lies_where_something_else_does),
    };
    return cmocka_run_group_tests_name("damage to live variables", tests, NULL, NULL);
}
