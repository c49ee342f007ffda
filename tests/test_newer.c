/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_newer.c - records and payloads of a newer version are LMCS_UNSUPPORTED, never damage, and unchanged; with a
 * wrong checksum they are damage. The store's own transactions forge them.
 */
/* ctest: timeout=600 */
#include "test_live_support.h"
#include "test_scrub_support.h"

#include "data/codec/seal.h"
#include "live/journal.h"
#include "live/live.h"
#include "media/media.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "payload/layout.h"
#include "records/manifest.h"
#include "records/shelf.h"

struct record {
    uint8_t kind;
    struct lmcs_key_df key;
    bool of_shelf;
    unsigned char value[LMCS_MAX_VALUE];
    size_t bytes;
};

static struct lmcs_root_tree_df *tree_of(struct lmcs_txn *txn, const struct record *record, struct lmcs_shelf *shelf)
{
    if (!record->of_shelf)
        return &txn->root.trees[record->kind];
    OK(lmcs_shelf_get(txn, "run", shelf, &err));
    return lmcs_shelf_tree(shelf, record->kind);
}

static void get_record(struct lmcs_pool *pool, struct record *record)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    bool found;
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_tree_get(&txn, record->kind, tree_of(&txn, record, &shelf), record->key, record->value, 0,
                     sizeof record->value, &record->bytes, &found, &err));
    lmcs_txn_end(&txn);
    EXPECT(found);
}

static void put_record(struct lmcs_pool *pool, const struct record *record)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    OK(lmcs_txn_write(pool, &txn, &err));
    struct lmcs_root_tree_df *tree = tree_of(&txn, record, &shelf);
    OK(lmcs_tree_put(&txn, record->kind, tree, record->key, record->value, record->bytes, &err));
    if (record->of_shelf)
        OK(lmcs_shelf_save(&txn, &shelf, &err));
    OK(lmcs_txn_commit(&txn, &err));
}

/* A newer record may be longer: `more` bytes follow. */
static void set_bytes(struct lmcs_pool *pool, struct record *record, size_t at, const void *data, size_t bytes,
                      size_t more)
{
    get_record(pool, record);
    memcpy(record->value + at, data, bytes);
    memset(record->value + record->bytes, 0x5a, more);
    record->bytes += more;
    put_record(pool, record);
}

static struct record content_key(struct lmcs_pool *pool, uint64_t number, const char *tensor)
{
    return (struct record){.kind = LMCS_TREE_CONTENTS, .key = {content_of(pool, "run", number, tensor), 0}};
}

static struct record identity_key(struct lmcs_pool *pool)
{
    struct lmcs_content content = record_of(pool, "run", 2, "only2");
    return (struct record){.kind = LMCS_TREE_IDENTITIES, .key = {content.df.identity, 0}};
}

static struct record live_key(struct lmcs_pool *pool)
{
    struct lmcs_live *live;
    OK(lmcs_live_open(pool, "live", "b", &live, &err));
    struct record record = {.kind = LMCS_TREE_LIVE, .key = {live->body->record->shelf, live->body->record->id}};
    lmcs_live_close(live);
    return record;
}

#define SET(record, type, field, number, more)                                               \
    do {                                                                                     \
        type##_##field##_t value_ = (number);                                                \
        set_bytes(pool, record, offsetof(struct type, field), &value_, sizeof value_, more); \
    } while (0)

typedef uint8_t lmcs_content_df_payload_t;
typedef uint8_t lmcs_content_df_flags_t;
typedef uint8_t lmcs_content_df_base_count_t;
typedef uint8_t lmcs_identity_df_kind_t;
typedef uint8_t lmcs_identity_df_dtype_t;
typedef uint32_t lmcs_shelf_df_flags_t;
typedef uint32_t lmcs_snapshot_df_state_t;
typedef uint8_t lmcs_live_df_form_t;
typedef uint8_t lmcs_live_df_dtype_t;

static struct record forge_payload(struct lmcs_pool *pool)
{
    struct record record = content_key(pool, 2, "only2");
    SET(&record, lmcs_content_df, payload, 9, 400);
    return record;
}

static struct record forge_content_flag(struct lmcs_pool *pool)
{
    struct record record = content_key(pool, 2, "only2");
    SET(&record, lmcs_content_df, flags, 64, 0);
    return record;
}

static struct record forge_bases(struct lmcs_pool *pool)
{
    struct record record = content_key(pool, 1, "t0");
    EXPECT(record_of(pool, "run", 1, "t0").df.payload == LMCS_PAYLOAD_FRAME);
    SET(&record, lmcs_content_df, base_count, 3, 16);
    return record;
}

static struct record forge_kind(struct lmcs_pool *pool)
{
    struct record record = identity_key(pool);
    SET(&record, lmcs_identity_df, kind, 7, 30);
    return record;
}

static struct record forge_dtype(struct lmcs_pool *pool)
{
    struct record record = identity_key(pool);
    SET(&record, lmcs_identity_df, dtype, 99, 0);
    return record;
}

static struct record forge_shelf(struct lmcs_pool *pool)
{
    struct record record = {.kind = LMCS_TREE_SHELVES, .key = {1, 0}};
    SET(&record, lmcs_shelf_df, flags, 16, 40);
    return record;
}

static struct record forge_state(struct lmcs_pool *pool)
{
    struct record record = {.kind = LMCS_TREE_NUMBERS, .key = {2, 0}, .of_shelf = true};
    SET(&record, lmcs_snapshot_df, state, 5, 25);
    return record;
}

static struct record forge_form(struct lmcs_pool *pool)
{
    struct record record = live_key(pool);
    SET(&record, lmcs_live_df, form, 3, 60);
    return record;
}

static struct record forge_live_dtype(struct lmcs_pool *pool)
{
    struct record record = live_key(pool);
    SET(&record, lmcs_live_df, dtype, 99, 0);
    return record;
}

static struct record forge_object(struct lmcs_pool *pool)
{
    const struct lmcs_object_df df = {.kind = 5, .bytes = 4096, .first = (uint64_t)1 << 30};
    struct record record = {.kind = LMCS_TREE_OBJECTS, .key = {(uint64_t)1 << 30, 0}, .bytes = sizeof df};
    memcpy(record.value, &df, sizeof df);
    put_record(pool, &record);
    return record;
}

struct forgery {
    const char *name;
    struct record (*forge)(struct lmcs_pool *pool);
    const char *message;
    const char *affected; /* unreadable address; NULL: none */
    const char *tensor;
    bool keeps_writers_out;
};

static const struct forgery forgeries[] = {
    {"payload kind", forge_payload, "payload kind 9 is unknown to this version", "run@2", "only2", false},
    {"flag of a content", forge_content_flag, "flag 64 is unknown to this version", "run@2", "only2", false},
    {"bases of a frame", forge_bases, "a frame against 3 bases is unknown to this version", "run@1", "t0", false},
    {"kind of a name", forge_kind, "kind 7 is unknown to this version", "run@2", "only2", false},
    {"dtype", forge_dtype, "\"only2\": dtype 99 is unknown to this version", "run@2", "only2", false},
    {"flag of a shelf", forge_shelf, "flag 16 is unknown to this version", "run@2", "only2", false},
    {"state of a snapshot", forge_state, "run@2: state 5 is unknown to this version", "run@2", "only2", false},
    {"form of a live variable", forge_form, "form 3 is unknown to this version", NULL, NULL, true},
    {"dtype of a live variable", forge_live_dtype, "dtype 99 is unknown to this version", NULL, NULL, true},
    {"kind of an object", forge_object, "kind 5 is unknown to this version", NULL, NULL, true},
};
enum { FORGERIES = sizeof forgeries / sizeof forgeries[0] };

/* "run" (the first shelf) has deltas, and a unique tensor in its second snapshot; "other" is like it. */
static struct lmcs_pool *make_pool(const char *path)
{
    const uint64_t bytes = 300;
    unlink(path);
    struct lmcs_pool *pool = open_quiet(path);
    for (int s = 0; s < 2; s++) {
        struct rng rng = {5};
        struct state *state = state_weights(&rng, 2, 3000);
        for (int i = 1; i <= 5; i++) {
            state_step(state, &rng, 0, 1);
            if (s == 0 && i == 2)
                rng_fill(&rng, state_add(state, "only2", LMC_U8, 1, &bytes)->data, bytes);
            take_snapshot(pool, s == 0 ? "run" : "other", state, i);
            if (s == 0 && i == 2)
                free(state->tensors[--state->count].data);
        }
        OK(lmcs_shelf_set_policy(pool, s == 0 ? "run" : "other", "keep_raw=1", &err));
        state_free(state);
    }
    OK(lmcs_live_put(pool, "live", "a", "text", 4, NULL, 0, &err));
    struct lmcs_tensor tensor = {.name = "b", .dtype = LMC_F32, .ndim = 1, .shape = &bytes};
    OK(lmcs_live_create(pool, "live", &tensor, NULL, NULL, &err));
    OK(lmcs_live_snapshot(pool, "live", NULL, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    return pool;
}

struct seen {
    uint64_t unsupported, damages;
    bool as_expected;
    const char *message;
};

static void see_damage(void *context, const struct lmcs_damage *damage)
{
    struct seen *seen = context;
    seen->unsupported += damage->is_unsupported;
    seen->damages += !damage->is_unsupported;
    seen->as_expected |= strstr(damage->what, seen->message) != NULL;
    if (!damage->is_unsupported)
        fprintf(stderr, "damage: %s@%d %s: %s\n", damage->shelf, (int)damage->number, damage->tensor, damage->what);
}

static void see_scrubbed(void *context, const struct lmcs_scrub_damage *damage)
{
    struct seen *seen = context;
    bool is_unsupported = damage->state == LMCS_DAMAGE_UNSUPPORTED;
    seen->unsupported += is_unsupported;
    seen->damages += !is_unsupported;
    seen->as_expected |= strstr(damage->what, seen->message) != NULL;
    if (!is_unsupported)
        fprintf(stderr, "damage: %s\n", damage->what);
}

static void expect_listed(struct lmcs_pool *pool, const char *message)
{
    struct seen seen = {.message = message};
    struct lmcs_verify_report report;
    FAILS(LMCS_UNSUPPORTED, lmcs_verify(pool, NULL, see_damage, &seen, NULL, &report, &err));
    EXPECT(strstr(err.message, "newer version") != NULL);
    EXPECT(report.damages == 0 && seen.damages == 0 && seen.as_expected);
    EXPECT(report.unsupported > 0 && report.unsupported == seen.unsupported);
}

static void expect_scrubbed(struct lmcs_pool *pool, bool repair, const char *message)
{
    struct seen seen = {.message = message};
    struct lmcs_scrub_report report;
    struct lmcs_scrub_options options;
    lmcs_scrub_options_init(&options);
    options.repair = repair;
    FAILS(LMCS_UNSUPPORTED, lmcs_scrub(pool, &options, see_scrubbed, &seen, NULL, &report, &err));
    EXPECT(report.damages == 0 && report.repaired == 0 && report.lost == 0 && seen.damages == 0 && seen.as_expected);
    EXPECT(report.unsupported > 0 && report.unsupported == seen.unsupported);
}

static enum lmcs_status read_one(struct lmcs_pool *pool, const char *address, const char *name)
{
    static unsigned char buffer[12000];
    struct lmcs_snapshot *snapshot;
    enum lmcs_status status = lmcs_snapshot_open(pool, address, &snapshot, &err);
    if (status != LMCS_OK)
        return status;
    status = lmcs_snapshot_read(snapshot, LMCS_TENSOR, name, buffer, strcmp(name, "only2") == 0 ? 300 : 12000, &err);
    lmcs_snapshot_close(snapshot);
    return status;
}

static enum lmcs_status view_all(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    enum lmcs_status status = lmcs_snapshot_open(pool, address, &snapshot, &err);
    if (status != LMCS_OK)
        return status;
    status = lmcs_view_open(snapshot, NULL, NULL, 0, 0, &view, &err);
    if (status == LMCS_OK)
        lmcs_view_close(view);
    lmcs_snapshot_close(snapshot);
    return status;
}

static void expect_message(const char *message)
{
    if (strstr(err.message, message) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", err.message, message);
}

static void expect_unread(struct lmcs_pool *pool, const struct forgery *forgery)
{
    if (forgery->affected == NULL)
        return;
    FAILS(LMCS_UNSUPPORTED, read_one(pool, forgery->affected, forgery->tensor));
    expect_message(forgery->message);
    expect_message("upgrade to read it");
    FAILS(LMCS_UNSUPPORTED, view_all(pool, forgery->affected));
    expect_message(forgery->message);
}

static void expect_others_read(struct lmcs_pool *pool)
{
    struct lmcs_live *live;
    char text[8];
    uint64_t bytes;
    for (int i = 1; i <= 5; i++) {
        char address[32];
        snprintf(address, sizeof address, "other@%d", i);
        OK(read_one(pool, address, "t0"));
        OK(view_all(pool, address));
    }
    OK(lmcs_live_open(pool, "live", "a", &live, &err));
    OK(lmcs_live_get(live, text, sizeof text, &bytes, &err));
    lmcs_live_close(live);
}

static enum lmcs_status dump_to(const char *path, struct lmcs_pool *pool, const char *shelf)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    enum lmcs_status status = lmcs_dump(pool, shelf, fd, NULL, NULL, &err);
    close(fd);
    return status;
}

static void expect_as_it_was(struct lmcs_pool *pool, const struct record *forged)
{
    struct record now = *forged;
    get_record(pool, &now);
    EXPECT(now.bytes == forged->bytes && memcmp(now.value, forged->value, now.bytes) == 0);
}

static void readers_report_it(void **state)
{
    struct place *place = *state;
    char archive[512];
    place_path(place, "archive", archive);
    for (size_t i = 0; i < FORGERIES; i++) {
        const struct forgery *forgery = &forgeries[i];
        struct lmcs_pool *pool = make_pool(place->pool);
        forgery->forge(pool);
        close_pool(pool);
        pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        expect_unread(pool, forgery);
        if (strncmp(forgery->name, "form of a live", 14) != 0)
            expect_others_read(pool);
        expect_listed(pool, forgery->message);
        expect_scrubbed(pool, false, forgery->message);
        OK(dump_to(archive, pool, "other"));
        FAILS(forgery->affected != NULL ? LMCS_UNSUPPORTED : LMCS_OK, dump_to(archive, pool, "run"));
        struct lmcs_pool_info info = pool_info(pool);
        EXPECT(info.damaged_shelves == 0);
        EXPECT((info.unsupported_shelves == 1) == (strcmp(forgery->name, "flag of a shelf") == 0));
        close_pool(pool);
    }
}

static void work_around(struct lmcs_pool *pool, const struct forgery *forgery)
{
    struct rng rng = {9};
    struct state *state = state_weights(&rng, 3, 3000);
    enum lmcs_status status = try_snapshot(pool, "run", state, 6, NULL, &err);
    EXPECT(status == LMCS_OK || status == LMCS_UNSUPPORTED);
    take_snapshot(pool, "other", state, 6);
    state_free(state);
    status = lmcs_compact(pool, NULL, &err);
    EXPECT(status == LMCS_OK || status == LMCS_UNSUPPORTED);
    FAILS(LMCS_UNSUPPORTED, lmcs_snapshot_remove(pool, "run", (uint64_t)forgery->affected[4] - '0', false, NULL, &err));
    expect_message(forgery->message);
    status = lmcs_prune(pool, "run", "keep=last:1", false, NULL, NULL, NULL, NULL, &err);
    FAILS(LMCS_UNSUPPORTED, status);
    OK(lmcs_prune(pool, "other", "keep=last:2", false, NULL, NULL, NULL, NULL, &err));
    expect_scrubbed(pool, true, forgery->message);
    OK(lmcs_shelf_set_policy(pool, "other", "parity=4+1", &err));
    status = lmcs_compact(pool, NULL, &err);
    EXPECT(status == LMCS_OK || status == LMCS_UNSUPPORTED);
}

static void writers_leave_it_alone(void **state)
{
    struct place *place = *state;
    for (size_t i = 0; i < FORGERIES; i++) {
        const struct forgery *forgery = &forgeries[i];
        struct lmcs_pool *pool = make_pool(place->pool);
        if (forgery->keeps_writers_out) {
            close_pool(pool);
            continue;
        }
        struct record forged = forgery->forge(pool);
        close_pool(pool);
        pool = open_quiet(place->pool);
        work_around(pool, forgery);
        expect_as_it_was(pool, &forged);
        close_pool(pool);
        pool = open_pool(place->pool, LMCS_OPEN_WRITE, 0);
        expect_unread(pool, forgery);
        expect_listed(pool, forgery->message);
        expect_as_it_was(pool, &forged);
        close_pool(pool);
    }
}

/* A dropped shelf is gone. A newer version removes the rest; until then, the pool is writable. */
static void a_shelf_that_has_it_is_dropped(void **state)
{
    struct place *place = *state;
    for (size_t i = 0; i < FORGERIES; i++) {
        if (forgeries[i].keeps_writers_out)
            continue;
        struct lmcs_pool *pool = make_pool(place->pool);
        struct record forged = forgeries[i].forge(pool);
        FAILS(LMCS_UNSUPPORTED, lmcs_shelf_drop(pool, "run", true, NULL, &err));
        FAILS(LMCS_UNSUPPORTED, lmcs_shelf_drop(pool, "run", false, NULL, &err));
        expect_message(forgeries[i].message);
        close_pool(pool);
        pool = open_pool(place->pool, LMCS_OPEN_WRITE, 0);
        expect_others_read(pool);
        expect_listed(pool, forgeries[i].message);
        if (!forged.of_shelf)
            expect_as_it_was(pool, &forged);
        close_pool(pool);
    }
}

static void writers_are_kept_out(void **state)
{
    struct place *place = *state;
    for (size_t i = 0; i < FORGERIES; i++) {
        const struct forgery *forgery = &forgeries[i];
        struct lmcs_pool *pool = make_pool(place->pool), *opened;
        if (forgery->keeps_writers_out)
            forgery->forge(pool);
        close_pool(pool);
        if (!forgery->keeps_writers_out)
            continue;
        FAILS(LMCS_UNSUPPORTED, lmcs_pool_open(place->pool, LMCS_OPEN_WRITE, NULL, &opened, &err));
        expect_message(forgery->message);
        pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        expect_listed(pool, forgery->message);
        close_pool(pool);
    }
}

static size_t spoil(const char *path, const unsigned char *bytes, size_t count)
{
    static unsigned char page[LMCS_PAGE_BYTES];
    size_t found = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0);
    for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0;) {
        off_t end = lseek(fd, at, SEEK_HOLE);
        for (at &= ~(off_t)(LMCS_PAGE_BYTES - 1); at < end; at += LMCS_PAGE_BYTES) {
            ssize_t n = pread(fd, page, sizeof page, at);
            unsigned char *here = n > 0 ? memmem(page, (size_t)n, bytes, count) : NULL;
            if (here == NULL)
                continue;
            here[count - 1] ^= 1;
            EXPECT(pwrite(fd, page, (size_t)n, at) == n);
            found++;
        }
    }
    close(fd);
    return found;
}

static void wrong_checksums_are_damage(void **state)
{
    struct place *place = *state;
    for (size_t i = 0; i < FORGERIES; i++) {
        const struct forgery *forgery = &forgeries[i];
        struct lmcs_pool *pool = make_pool(place->pool);
        struct record forged = forgery->forge(pool);
        close_pool(pool);
        EXPECT(spoil(place->pool, forged.value, forged.bytes < 40 ? forged.bytes : 40) > 0);
        pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        struct lmcs_verify_report report;
        FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, NULL, NULL, NULL, &report, &err));
        EXPECT(report.damages > 0 && report.unsupported == 0);
        close_pool(pool);
    }
}

static void file_bytes(const char *path, uint64_t at, void *data, size_t bytes, bool write)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0 &&
           (write ? pwrite(fd, data, bytes, (off_t)at) : pread(fd, data, bytes, (off_t)at)) == (ssize_t)bytes);
    close(fd);
}

/* 0: a feature in the frame's header; 1: a method of its block. */
static void forge_frame(const char *path, const struct lmcs_content *content, int which)
{
    static unsigned char frame[1 << 16];
    size_t bytes = content->df.stored_bytes;
    EXPECT(content->df.payload == LMCS_PAYLOAD_FRAME && content->df.part_count == 1 && bytes < sizeof frame);
    file_bytes(path, content->parts[0].offset, frame, bytes, false);
    const uint32_t newer = 0x4000;
    uint64_t table =
        64 + 16 * (uint64_t)frame[36] + seal_get(frame + 40, 4) + seal_get(frame + 44, 4) + seal_get(frame + 48, 4);
    if (which == 0)
        memcpy(frame + 8, &newer, sizeof newer);
    else
        frame[seal_get(frame + table, 8) & (((uint64_t)1 << 56) - 1)] = 250;
    seal_frame(frame, bytes);
    file_bytes(path, content->parts[0].offset, frame, bytes, true);
}

static void frames_of_a_newer_codec(void **state)
{
    struct place *place = *state;
    for (int which = 0; which < 2; which++) {
        struct lmcs_pool *pool = make_pool(place->pool);
        struct lmcs_content content = record_of(pool, "run", 1, "t0");
        struct record record = content_key(pool, 1, "t0");
        get_record(pool, &record);
        close_pool(pool);
        forge_frame(place->pool, &content, which);
        pool = open_quiet(place->pool);
        FAILS(LMCS_UNSUPPORTED, read_one(pool, "run@1", "t0"));
        expect_message("upgrade to read it");
        FAILS(LMCS_UNSUPPORTED, view_all(pool, "run@1"));
        expect_others_read(pool);
        expect_listed(pool, "");
        if (which == 0)
            expect_scrubbed(pool, true, "is unknown to this version");
        else {
            struct telling telling;
            OK(repair_from(pool, NULL, &telling));
        }
        OK(lmcs_compact(pool, NULL, &err));
        expect_as_it_was(pool, &record);
        expect_listed(pool, "");
        close_pool(pool);
        turn_bytes(place->pool, content.parts[0].offset + content.df.stored_bytes - 1, 1);
        pool = open_quiet(place->pool);
        FAILS(which == 0 ? LMCS_UNSUPPORTED : LMCS_DAMAGED, read_one(pool, "run@1", "t0"));
        close_pool(pool);
    }
}

static void damage_on_a_base_of_a_newer_version(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = make_pool(place->pool);
    struct telling telling;
    struct lmcs_content delta = record_of(pool, "run", 1, "t0");
    EXPECT(delta.df.base_count == 1);
    struct record base = {.kind = LMCS_TREE_CONTENTS, .key = {delta.bases[0], 0}};
    SET(&base, lmcs_content_df, payload, 9, 0);
    close_pool(pool);
    damage_content(place->pool, &delta, delta.df.stored_bytes - 1, 1);
    pool = open_quiet(place->pool);
    struct lmcs_scrub_options options;
    lmcs_scrub_options_init(&options);
    options.repair = true;
    telling.count = 0;
    FAILS(LMCS_DAMAGED, lmcs_scrub(pool, &options, note_told, &telling, NULL, &telling.report, &err));
    EXPECT(telling.report.damages == 1 && telling.report.repaired == 0 && telling.report.lost == 0);
    EXPECT(telling.report.unsupported >= 1 && telling.count == telling.report.damages + telling.report.unsupported);
    expect_as_it_was(pool, &base);
    close_pool(pool);
}

static void a_newer_root(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *opened;
    close_pool(make_pool(place->pool));
    struct lmcs_root_df root = closed_root(place->pool);
    root.version = 2;
    root.check = lmc_hash64(&root, offsetof(struct lmcs_root_df, check), root.self);
    file_bytes(place->pool, root.self, &root, sizeof root, true);
    const enum lmcs_open_mode modes[] = {LMCS_OPEN_READ, LMCS_OPEN_WRITE};
    for (size_t i = 0; i < 2; i++) {
        FAILS(LMCS_UNSUPPORTED, lmcs_pool_open(place->pool, modes[i], NULL, &opened, &err));
        expect_message("version 2 of its root page is unknown to this version");
    }
    root.check ^= 1;
    file_bytes(place->pool, root.self, &root, sizeof root, true);
    FAILS(LMCS_DAMAGED, lmcs_pool_open(place->pool, LMCS_OPEN_READ, NULL, &opened, &err));
}

static void a_newer_journal(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = make_pool(place->pool), *opened;
    struct lmcs_journal_df header = {.magic = LMCS_JOURNAL_MAGIC, .flags = 4, .sequence = 7, .last = 7};
    uint64_t sequence = 0;
    pthread_mutex_lock(&pool->live->lock);
    OK(lmcs_journal_write(pool, NULL, 0, false, &sequence, &err));
    OK(lmcs_journal_clear(pool, LMCS_JOURNAL_REDO, &err));
    uint64_t at = pool->live->journals[LMCS_JOURNAL_REDO].next;
    pthread_mutex_unlock(&pool->live->lock);
    close_pool(pool);
    header.check = lmc_hash64(&header, offsetof(struct lmcs_journal_df, check), at);
    file_bytes(place->pool, at, &header, sizeof header, true);
    FAILS(LMCS_UNSUPPORTED, lmcs_pool_open(place->pool, LMCS_OPEN_WRITE, NULL, &opened, &err));
    expect_message("flag 4 is unknown to this version");
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    expect_others_read(pool);
    expect_listed(pool, "flag 4 is unknown to this version");
    close_pool(pool);
    header.flags = 5;
    file_bytes(place->pool, at, &header, sizeof header, true);
    pool = open_quiet(place->pool);
    verify_pool(pool);
    close_pool(pool);
}

/* Rewrites a raw attachment of one block, one of the store's, and its digest. */
static void set_attachment(struct place *place, const char *shelf_name, uint64_t number, const char *name, size_t at,
                           uint32_t value)
{
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    struct lmcs_identity identity;
    struct lmcs_content content;
    uint64_t id = 0;
    bool found;
    unsigned char data[4096];
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, shelf_name, &shelf, &err));
    OK(lmcs_record_get(&txn, &shelf, number, &record, &found, &err));
    OK(lmcs_manifest_find(&txn, &record.df, LMCS_ATTACHMENT, name, &identity, &id, &found, &err));
    EXPECT(found);
    OK(lmcs_content_get(&txn, id, &content, &err));
    const uint64_t bytes = content.df.raw_bytes;
    EXPECT(bytes <= sizeof data && content.df.payload == LMCS_PAYLOAD_RAW);
    file_bytes(place->pool, content.parts[0].offset, data, bytes, false);
    memcpy(data + at, &value, sizeof value);
    struct lmc_hash hash = lmc_hash128(data, bytes), digest = lmc_digest(LMC_U8, 1, &bytes, &hash, 1);
    content.df.digest_low = digest.low;
    content.df.digest_high = digest.high;
    OK(lmcs_content_put(&txn, &content, &err));
    OK(lmcs_txn_commit(&txn, &err));
    close_pool(pool);
    file_bytes(place->pool, content.parts[0].offset, data, bytes, true);
}

static void a_newer_table_of_live_variables(void **state)
{
    struct place *place = *state;
    close_pool(make_pool(place->pool));
    set_attachment(place, "live", 1, LMCS_LIVE_NAME, 4, 2);
    struct lmcs_pool *pool = open_quiet(place->pool);
    FAILS(LMCS_UNSUPPORTED, lmcs_live_checkout(pool, "live", "1", &err));
    expect_message("version 2 of its table of live variables is unknown to this version");
    close_pool(pool);
    set_attachment(place, "live", 1, LMCS_LIVE_NAME, 4, 1);
    set_attachment(place, "live", 1, LMCS_LIVE_NAME, 16 + 8, 0x00016301);
    pool = open_quiet(place->pool);
    FAILS(LMCS_UNSUPPORTED, lmcs_live_checkout(pool, "live", "1", &err));
    expect_message("dtype 99");
    verify_pool(pool);
    close_pool(pool);
}

static void newer_relations(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct state *now = state_weights(&rng, 3, 3000);
    const struct lmcs_relation relation = {.names = {"t0", "t1", "t2"},
                                           .name_count = 3,
                                           .optimizer = LMC_ADAM,
                                           .step = 1,
                                           .lr = 1e-3,
                                           .beta1 = 0.9,
                                           .beta2 = 0.99,
                                           .eps = 1e-8,
                                           .scale = 1};
    close_pool(make_pool(place->pool));
    for (uint64_t number = 1; number <= 4; number++) {
        struct lmcs_pool *pool = open_quiet(place->pool);
        struct lmcs_capture *capture;
        state_step(now, &rng, 0, 3);
        OK(lmcs_capture_begin(pool, "related", &capture, &err));
        OK(lmcs_capture_relate(capture, &relation, 1, &err));
        put_state(capture, now);
        OK(lmcs_capture_commit(capture, NULL, NULL, &err));
        close_pool(pool);
        if (number % 2 == 0)
            set_attachment(place, "related", number, number == 2 ? "lmcstore.constants" : "lmcstore.relations", 4, 2);
    }
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_shelf_set_policy(pool, "related", "keep_raw=1", &err));
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(storage_of(pool, "related", 1).delta_contents + storage_of(pool, "related", 1).keyframe_contents > 0);
    EXPECT(storage_of(pool, "related", 3).raw_contents == 0 || storage_of(pool, "related", 3).delta_contents > 0);
    expect_snapshot(pool, "related", 4, now);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(readers_report_it),
        IN_MEMORY(writers_leave_it_alone),
        IN_MEMORY(writers_are_kept_out),
        IN_MEMORY(a_shelf_that_has_it_is_dropped),
        IN_MEMORY(wrong_checksums_are_damage),
        IN_MEMORY(frames_of_a_newer_codec),
        ON_DISK(a_newer_root),
        ON_DISK(a_newer_journal),
        IN_MEMORY(a_newer_table_of_live_variables),
        IN_MEMORY(newer_relations),
        IN_MEMORY(damage_on_a_base_of_a_newer_version),
    };
    return cmocka_run_group_tests_name("records and payloads of a newer version", tests, NULL, NULL);
}
