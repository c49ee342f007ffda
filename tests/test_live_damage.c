/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_live_damage.c - damage to live variables: bits of what a value and what describes its place is made of, of a
 * journal that is still to be applied, and two of either swapped.
 *
 * A value is right, or reading it says that it is damaged, and verify says so by its name. A pending journal is applied
 * as a whole, or nothing of it, or nobody is let in to write. (Bytes of tensors have no checksum: lmcstore_live.h.)
 */
/* ctest: timeout=600 */
#include "test_live_support.h"

#include <fcntl.h>
#include <unistd.h>

#include "live.h"

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
    uint64_t tensor; /* its first byte */
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

/* Values that have been written twice, so that both slots hold one, and a tensor. */
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

/* Gives whether the damage was seen: then by all, and by the name of the value. */
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
    /* Of the first one: whose it is, and the newer slot, its header and its data. */
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
    /* What is damaged can be replaced, and the others go on. */
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

/* ---- A journal that has not been applied ---- */

enum { JOURNALED = 3000, ALL = JOURNALED + 64 };

/* The pool as a kill leaves it after a journal was sealed; what it says is to be where the tensor begins. */
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

/* Gives whether it was applied; 2: nobody is let in. */
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
        close_pool(open_pool(path, LMCS_OPEN_READ, LMCS_NO_BACKGROUND)); /* as it says */
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
    EXPECT(apply_pending(work, then) == 1); /* and stays so */
    uint64_t places[] = {at, at + LMCS_PAGE_BYTES, at + 2 * (uint64_t)LMCS_PAGE_BYTES};
    uint64_t bytes[] = {sizeof(struct lmcs_journal_df), 2 * sizeof(struct lmcs_journal_entry_df), ALL};
    for (size_t i = 0; i < 3; i++)
        for (uint64_t k = 0; k < bytes[i]; k += i == 2 ? 97 : 3) {
            copy_file(pending, work);
            flip(work, places[i] + k, (unsigned)rng_below(&rng, 8));
            came_of[apply_pending(work, then)]++;
        }
    EXPECT(came_of[0] > 0 && came_of[2] > 20); /* a header that is torn has sealed nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(each_byte_of_a_value),
        IN_MEMORY(two_values_swapped),
        IN_MEMORY(each_part_of_a_pending_journal),
    };
    return cmocka_run_group_tests_name("damage to live variables", tests, NULL, NULL);
}
