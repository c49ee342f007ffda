/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_links_damage.c - damaged and forged archives of links. */
/* ctest: timeout=900 labels=slow,no-tsan */
#include "test_archive_links_files.h"

static const size_t tiny[PARAMETERS] = {300, 1100, 1400};

static void expect_refused(struct lmcs_pool *pool, int fd, uint64_t contents)
{
    rewind_to_start(fd);
    enum lmcs_status status = lmcs_restore(pool, fd, NULL, NULL, &err);
    EXPECT(status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED);
    EXPECT(strlen(err.message) > 20);
    EXPECT(pool_info(pool).snapshot_count == 0 && pool_info(pool).content_count == contents);
    rewind_to_start(fd);
    status = lmcs_archive_verify(fd, NULL, NULL, &err);
    EXPECT(status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED);
}

static void damage_to_each_line(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct rng rng = {77};
    size_t bytes, taken = 0, tried = 0;
    struct lmcs_pool *pool = make_run(place, &run, tiny, "keep_raw=1 links=3", 7), *other = new_pool(place, "to.pool");
    int fd = dump_run(place, pool, "a"), bad = new_file(place, "b");
    unsigned char *data = bytes_of(fd, &bytes), *copy = malloc(bytes);
    const size_t stride = UNDER_SANITIZER ? 3 : 1;
    EXPECT(copy != NULL && forms_of(fd).of[LMCS_PAYLOAD_LINK] == 4 * PARAMETERS);
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        memcpy(&record, data + at, sizeof record);
        memcpy(copy, data, bytes);
        copy[at + rng_below(&rng, sizeof record + record.bytes)] ^= (unsigned char)(1u << rng_below(&rng, 8));
        set_bytes(bad, copy, bytes);
        expect_refused(other, bad, 0);
        at += sizeof record;
        size_t most = record.type == LMCS_ARCHIVE_CONTENT ? record.bytes : record.type == LMCS_ARCHIVE_DATA ? 200 : 0;
        for (size_t i = 0; i < most && i < record.bytes; i += record.type == LMCS_ARCHIVE_DATA ? 23 : stride, tried++) {
            memcpy(copy, data, bytes);
            copy[at + i] ^= (unsigned char)(1u << rng_below(&rng, 3));
            seal(copy, bytes);
            set_bytes(bad, copy, bytes);
            enum lmcs_status status = lmcs_restore(other, bad, NULL, NULL, &err), verdict;
            EXPECT(status == LMCS_OK || status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED || status == LMCS_FULL);
            rewind_to_start(bad);
            verdict = lmcs_archive_verify(bad, NULL, NULL, &err);
            EXPECT((verdict == LMCS_OK) == (status == LMCS_OK));
            EXPECT(status == LMCS_OK || pool_info(other).content_count == 0);
            if (status == LMCS_OK) {
                taken++;
                check_pool(other);
                verify_pool(other);
                close_pool(other);
                other = new_pool(place, "to.pool");
            }
        }
        at += record.bytes;
    }
    print_message("%zu forged archives, of which %zu were sound\n", tried, taken);
    EXPECT(taken < tried / 10);
    check_pool(other);
    restore(other, fd);
    expect_run(&run, other, "run");
    verify_pool(other);
    free(copy);
    free(data);
    close(fd);
    close(bad);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

/* The record and number of the n-th content stored this way. */
static unsigned char *find_numbered(unsigned char *data, size_t bytes, unsigned payload, size_t n, uint64_t *number)
{
    *number = 0;
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        struct lmcs_archive_content_df df;
        memcpy(&record, data + at, sizeof record);
        if (record.type == LMCS_ARCHIVE_CONTENT) {
            memcpy(&df, data + at + sizeof record, sizeof df);
            ++*number;
            if (df.payload == payload && n-- == 0)
                return data + at + sizeof record;
        }
        at += sizeof record + record.bytes;
    }
    fail_msg("there is no such content");
    return NULL;
}

static unsigned char *find_content(unsigned char *data, size_t bytes, unsigned payload, size_t n)
{
    uint64_t number;
    return find_numbered(data, bytes, payload, n, &number);
}

static unsigned char *find_entry(unsigned char *data, size_t bytes, uint64_t number)
{
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        struct lmcs_archive_entry_df entry;
        memcpy(&record, data + at, sizeof record);
        at += sizeof record;
        for (size_t i = 0; record.type == LMCS_ARCHIVE_ENTRIES && i < record.bytes; i += sizeof entry) {
            memcpy(&entry, data + at + i, sizeof entry);
            if (entry.content == number)
                return data + at + i + offsetof(struct lmcs_archive_entry_df, content);
        }
        at += record.bytes;
    }
    fail_msg("there is no such entry");
    return NULL;
}

static void put64(unsigned char *to, uint64_t value)
{
    memcpy(to, &value, sizeof value);
}

static uint64_t get64(const unsigned char *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static void damage_links(struct lmcs_pool *pool, const char *path)
{
    static const struct {
        uint64_t number, at;
        const char *name;
    } damages[] = {{3, 5, "p1.weight"}, {4, 20000, "p1.weight"}, {4, 20000, "p2.exp_avg"}};
    for (size_t i = 0; i < 3; i++) {
        struct lmcs_content link =
            content_record(pool, record_of(pool, "run", damages[i].number, damages[i].name).link);
        EXPECT(link.df.payload == LMCS_PAYLOAD_LINK);
        damage_content(path, &link, damages[i].at, 9);
    }
}

static void links_repaired_from_links(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct telling telling;
    char path[512], from[512], twin[512];
    place_path(place, "from.pool", path);
    place_path(place, "a", from);
    place_path(place, "twin.pool", twin);
    struct lmcs_pool *pool = make_run(place, &run, large, "keep_raw=1 parity=none", 6);
    int fd = dump_run(place, pool, "a");
    struct lmcs_pool *copy = new_pool(place, "twin.pool");
    OK(lmcs_restore(copy, fd, NULL, NULL, &err));
    close_pool(copy);
    damage_links(pool, path);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    size_t bytes, forged = 0;
    unsigned char *data = bytes_of(fd, &bytes), *good = bytes_of(fd, &bytes);
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        memcpy(&record, data + at, sizeof record);
        at += sizeof record;
        bool is_frame = record.type == LMCS_ARCHIVE_DATA && record.bytes > 100 && memcmp(data + at, "LMCF", 4) == 0;
        if (is_frame && seal_get(data + at + 34, 2) != 0 && seal_get(data + at + 24, 8) == record.bytes) {
            data[at + record.bytes - 9] ^= 4;
            seal_frame(data + at, record.bytes);
            forged++;
        }
        at += record.bytes;
    }
    EXPECT(forged >= 8);
    seal(data, bytes);
    set_bytes(fd, data, bytes);
    FAILS(LMCS_DAMAGED, lmcs_archive_verify(fd, NULL, NULL, &err));
    FAILS(LMCS_DAMAGED, repair_from(pool, from, &telling));
    check_pool(pool);
    EXPECT(telling.report.repaired == 0);
    set_bytes(fd, good, bytes);
    free(data);
    free(good);
    OK(repair_from(pool, from, &telling));
    EXPECT(telling.report.repaired == telling.report.damages && telling.count == 3);
    damage_links(pool, path);
    OK(repair_from(pool, twin, &telling));
    EXPECT(telling.report.repaired == telling.report.damages && telling.count == 3);
    EXPECT(strstr(telling.items[0].source, twin) != NULL);
    check_pool(pool);
    expect_run(&run, pool, "run");
    expect_clean(pool);
    close(fd);
    close_pool(pool);
    run_end(&run);
}

/* One of twelve ways; returns a part of the expected message. */
static const char *forge_line(unsigned char *copy, size_t bytes, unsigned way)
{
    enum { BASES = sizeof(struct lmcs_archive_content_df), OUTPUT = offsetof(struct lmcs_archive_content_df, output) };
    unsigned char *link = find_content(copy, bytes, LMCS_PAYLOAD_LINK, 4);
    uint64_t number;
    unsigned char *linked = find_numbered(copy, bytes, LMCS_PAYLOAD_LINKED, 4, &number);
    const unsigned char *before = find_content(copy, bytes, LMCS_PAYLOAD_LINK, 0);
    const char *why = "";
    uint64_t first = get64(link + BASES), own = get64(linked + BASES);
    switch (way) {
    case 0: /* itself, or a later content */
        put64(link + BASES, own + 20);
        why = "has not arrived";
        break;
    case 1: /* an array twice */
        put64(link + BASES + 8, first);
        why = "twice";
        break;
    case 2: /* wrong order */
        put64(link + BASES, get64(link + BASES + 8));
        put64(link + BASES + 8, first);
        why = "don't belong together";
        break;
    case 3: /* two lines */
        put64(link + BASES, get64(before + BASES));
        break;
    case 4: /* an array that the link lacks */
        linked[OUTPUT] = 3;
        why = "that its link does not have";
        break;
    case 5: /* another array */
        linked[OUTPUT] = (unsigned char)((linked[OUTPUT] + 1) % 3);
        break;
    case 6: /* output of no link */
        put64(linked + BASES, get64(before + BASES));
        break;
    case 7: /* a link on a link */
        put64(link + BASES, own);
        break;
    case 8: /* an output has no bytes */
        put64(linked + offsetof(struct lmcs_archive_content_df, stored_bytes), 1);
        why = "impossible size";
        break;
    case 9: /* a tensor is a link */
        put64(find_entry(copy, bytes, number), own);
        why = "has a link as its content";
        break;
    case 10: /* arrays of two steps */
        find_numbered(copy, bytes, LMCS_PAYLOAD_LINKED, 3 + 1, &number);
        put64(find_content(copy, bytes, LMCS_PAYLOAD_LINK, 2 * 3 + 1) + BASES + 8, number);
        why = "don't belong together";
        break;
    default: /* another link's digest */
        put64(link + offsetof(struct lmcs_archive_content_df, digest_low), 1);
        why = "";
    }
    return why;
}

static void forged_lines(void **state)
{
    const struct place *place = *state;
    struct run run;
    size_t bytes;
    struct lmcs_pool *pool = make_run(place, &run, tiny, "keep_raw=1", 7), *other = new_pool(place, "to.pool");
    int fd = dump_run(place, pool, "a"), bad = new_file(place, "b");
    unsigned char *data = bytes_of(fd, &bytes), *copy = malloc(bytes);
    EXPECT(copy != NULL);
    for (unsigned way = 0; way < 12; way++) {
        memcpy(copy, data, bytes);
        const char *why = forge_line(copy, bytes, way);
        seal(copy, bytes);
        set_bytes(bad, copy, bytes);
        expect_refused(other, bad, 0);
        if (strstr(err.message, why) == NULL)
            fail_msg("%u: \"%s\" is said, not \"%s\"", way, err.message, why);
    }
    check_pool(other);
    free(copy);
    free(data);
    close(fd);
    close(bad);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

/* At most 64 links. */
static void the_longest_line(void **state)
{
    const struct place *place = *state;
    struct run run;
    size_t bytes;
    uint64_t number;
    struct lmcs_pool *pool = make_run(place, &run, tiny, "keep_raw=1 links=64", 68),
                     *other = new_pool(place, "to.pool");
    int fd = dump_run(place, pool, "a");
    restore(other, fd);
    EXPECT(storage_of(other, "run", 65).longest_line == 64 && storage_of(other, "run", 67).longest_line == 1);
    expect_run(&run, other, "run");
    close_pool(other);
    other = new_pool(place, "to.pool");
    unsigned char *data = bytes_of(fd, &bytes), *link = find_content(data, bytes, LMCS_PAYLOAD_LINK, 64 * PARAMETERS);
    for (size_t i = 0; i < 3; i++) {
        find_numbered(data, bytes, LMCS_PAYLOAD_LINKED, 63 * 3 * PARAMETERS + i, &number);
        memcpy(link + sizeof(struct lmcs_archive_content_df) + i * sizeof number, &number, sizeof number);
    }
    seal(data, bytes);
    set_bytes(fd, data, bytes);
    expect_refused(other, fd, 0);
    EXPECT(strstr(err.message, "longer than 64") != NULL);
    free(data);
    close(fd);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

static void a_link_is_no_tensor(void **state)
{
    const struct place *place = *state;
    struct run run;
    size_t bytes, forged = 0;
    struct lmcs_pool *pool = make_run(place, &run, tiny, "keep_raw=1", 6);
    struct lmcs_pool_info info = pool_info(pool);
    int early = dump_part(place, pool, "run@..4", -1, "a", NULL),
        late = dump_part(place, pool, "run", early, "b", NULL);
    struct lmcs_content array = record_of(pool, "run", 4, "p1.weight"), link = content_record(pool, array.link);
    unsigned char *data = bytes_of(late, &bytes);
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        struct lmcs_archive_known_df df;
        memcpy(&record, data + at, sizeof record);
        memcpy(&df, data + at + sizeof record, sizeof df < bytes - at - sizeof record ? sizeof df : 0);
        if (record.type == LMCS_ARCHIVE_KNOWN && df.digest_low == array.df.digest_low) {
            df.digest_low = link.df.digest_low;
            df.digest_high = link.df.digest_high;
            memcpy(data + at + sizeof record, &df, sizeof df);
            forged++;
        }
        at += sizeof record + record.bytes;
    }
    EXPECT(forged == 1);
    seal(data, bytes);
    set_bytes(late, data, bytes);
    OK(lmcs_snapshot_remove(pool, "run", 6, false, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_restore(pool, late, NULL, NULL, &err));
    check_pool(pool);
    EXPECT(pool_info(pool).snapshot_count == info.snapshot_count - 1);
    free(data);
    close(early);
    close(late);
    close_pool(pool);
    run_end(&run);
}

static void forged_and_taken_up_again(void **state)
{
    const struct place *place = *state;
    struct run run;
    size_t bytes;
    struct lmcs_pool *pool = make_run(place, &run, tiny, "keep_raw=1", 5), *other = new_pool(place, "to.pool");
    static const unsigned kinds[] = {LMCS_PAYLOAD_RAW, LMCS_PAYLOAD_LINK, LMCS_PAYLOAD_LINKED};
    int fd = dump_run(place, pool, "a"), bad = new_file(place, "b");
    for (size_t i = 0; i < 3; i++) {
        unsigned char *data = bytes_of(fd, &bytes), *content = find_content(data, bytes, kinds[i], 3);
        struct lmcs_restore_options how;
        lmcs_restore_options_init(&how);
        how.resume = true;
        content[offsetof(struct lmcs_archive_content_df, digest_low)] ^= 1;
        seal(data, bytes);
        set_bytes(bad, data, bytes);
        for (size_t turn = 0; turn < 3; turn++) {
            rewind_to_start(bad);
            FAILS(LMCS_DAMAGED, lmcs_restore_with(other, &bad, 1, &how, NULL, NULL, &err));
            EXPECT(pool_info(other).snapshot_count == 0);
        }
        free(data);
    }
    restore(other, fd);
    expect_run(&run, other, "run");
    verify_pool(other);
    close(fd);
    close(bad);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

static void damaged_links_are_not_sent(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_transfer_report report;
    char path[512];
    place_path(place, "from.pool", path);
    struct lmcs_pool *pool = make_run(place, &run, large, "keep_raw=1 parity=none", 7);
    struct lmcs_content array = record_of(pool, "run", 4, "p1.weight"), link = content_record(pool, array.link);
    damage_content(path, &link, link.df.stored_bytes - 20, 1);
    int fd = new_file(place, "a");
    FAILS(LMCS_DAMAGED, lmcs_dump(pool, NULL, fd, NULL, NULL, &err));
    EXPECT(strstr(err.message, "can't be dumped") != NULL);
    close(fd);
    close(dump_part(place, pool, "run@1..3", -1, "a", NULL));
    struct telling telling;
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.skip_lost = true;
    fd = new_file(place, "a");
    OK(lmcs_dump_with(pool, &options, fd, NULL, &report, &err));
    EXPECT(report.snapshots_lost == 3 && report.snapshots == 4);
    struct lmcs_pool *other = new_pool(place, "to.pool");
    restore(other, fd);
    for (uint64_t n = 4; n <= 6; n++)
        run.there[n] = false;
    expect_run(&run, other, "run");
    close(fd);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(links_repaired_from_links),  IN_MEMORY(damage_to_each_line), IN_MEMORY(forged_lines),
        IN_MEMORY(the_longest_line),           IN_MEMORY(a_link_is_no_tensor), IN_MEMORY(forged_and_taken_up_again),
        IN_MEMORY(damaged_links_are_not_sent),
    };
    return cmocka_run_group_tests_name("archive links damage", tests, NULL, NULL);
}
