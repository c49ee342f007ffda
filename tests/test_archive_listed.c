/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_listed.c - archives of many records, listed and verified without a pool. */
/* ctest: timeout=600 labels=slow,no-tsan */
#include "test_archive_parts_support.h"

struct forged {
    unsigned char *data;
    size_t bytes;
    size_t capacity;
};

static void add_record(struct forged *forged, uint32_t type, const void *df, size_t df_bytes, const char *text)
{
    struct lmcs_archive_record_df record = {.type = type, .bytes = (uint32_t)(df_bytes + strlen(text))};
    while (forged->capacity - forged->bytes < sizeof record + record.bytes) {
        forged->capacity = forged->capacity == 0 ? 4096 : 2 * forged->capacity;
        forged->data = realloc(forged->data, forged->capacity);
        EXPECT(forged->data != NULL);
    }
    memcpy(forged->data + forged->bytes, &record, sizeof record);
    memcpy(forged->data + forged->bytes + sizeof record, df, df_bytes);
    memcpy(forged->data + forged->bytes + sizeof record + df_bytes, text, strlen(text));
    forged->bytes += sizeof record + record.bytes;
}

/* Snapshots that are empty, or repeat the `entries` of the one before. */
static void add_snapshots(struct forged *forged, uint64_t first, uint64_t last, uint64_t entries)
{
    static const char meta[] = "{\"metrics\":{},\"meta\":{}}";
    for (uint64_t number = first; number <= last; number++) {
        const struct lmcs_archive_snapshot_df snapshot = {.number = number,
                                                          .step = (int64_t)number,
                                                          .time_ns = number,
                                                          .flags = number == 1 ? 0 : LMCS_ARCHIVE_CHANGES,
                                                          .meta_bytes = sizeof meta - 1};
        const struct lmcs_archive_snapshot_end_df end = {entries};
        add_record(forged, LMCS_ARCHIVE_SNAPSHOT, &snapshot, sizeof snapshot, meta);
        add_record(forged, LMCS_ARCHIVE_SNAPSHOT_END, &end, sizeof end, "");
    }
}

static int seal_to(const struct place *place, struct forged *forged)
{
    int fd = new_file(place, "forged.archive");
    seal(forged->data, forged->bytes);
    set_bytes(fd, forged->data, forged->bytes);
    free(forged->data);
    return fd;
}

static uint64_t number_of_tag(uint64_t k, uint64_t count)
{
    return 1 + k * 7919 % count / 2;
}

struct many {
    uint64_t count;
    uint64_t seen;
    uint64_t calls;
    bool stops;
};

static bool see_one_of_many(void *context, const struct lmcs_archived *snapshot)
{
    struct many *many = context;
    EXPECT(snapshot->number == ++many->seen && snapshot->tag_count == (snapshot->number <= many->count / 2 ? 2 : 0));
    for (size_t i = 0; i < snapshot->tag_count; i++)
        EXPECT(number_of_tag(strtoull(snapshot->tags[i] + 1, NULL, 10), many->count) == snapshot->number);
    EXPECT(snapshot->tag_count == 0 || strcmp(snapshot->tags[0], snapshot->tags[1]) < 0);
    return true;
}

static bool count_calls(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct many *many = context;
    if (strcmp(what, "listing") != 0)
        return true;
    EXPECT(done == many->seen && total == many->count);
    many->calls++;
    return !many->stops;
}

static void test_many_tags(void **state)
{
    enum { COUNT = 60000 };
    const struct place *place = *state;
    struct lmcs_archive_head_df head = {.version = LMCS_ARCHIVE_VERSION};
    const struct lmcs_archive_shelf_df shelf = {.next_number = COUNT + 1, .keep_raw = 4, .name_bytes = 3};
    const struct lmcs_archive_end_df last = {
        .shelves = 1, .snapshots = COUNT, .tags = COUNT, .records = 1 + 3 * (uint64_t)COUNT};
    struct forged forged = {malloc(sizeof head), sizeof head, sizeof head};
    struct many many = {.count = COUNT};
    const struct lmcs_progress progress = {count_calls, &many};
    EXPECT(forged.data != NULL);
    memcpy(head.magic, LMCS_ARCHIVE_MAGIC, sizeof head.magic);
    memcpy(forged.data, &head, sizeof head);
    add_record(&forged, LMCS_ARCHIVE_SHELF, &shelf, sizeof shelf, "run");
    add_snapshots(&forged, 1, COUNT, 0);
    for (uint64_t k = 0; k < COUNT; k++) {
        char text[16];
        const struct lmcs_archive_tag_df tag = {number_of_tag(k, COUNT), 10, 0};
        snprintf(text, sizeof text, "t%09llu", (unsigned long long)k);
        add_record(&forged, LMCS_ARCHIVE_TAG, &tag, sizeof tag, text);
    }
    add_record(&forged, LMCS_ARCHIVE_END, &last, sizeof last, "");
    int fd = seal_to(place, &forged);
    OK(lmcs_archive_list(fd, NULL, NULL, NULL, NULL, &err));
    rewind_to_start(fd);
    OK(lmcs_archive_list(fd, see_one_of_many, &many, &progress, NULL, &err));
    EXPECT(many.seen == COUNT && many.calls == COUNT / 1024);
    many = (struct many){.count = COUNT, .stops = true};
    rewind_to_start(fd);
    FAILS(LMCS_CANCELLED, lmcs_archive_list(fd, see_one_of_many, &many, &progress, NULL, &err));
    EXPECT(many.calls == 1 && many.seen < COUNT);
    close(fd);
}

static void test_one_of_many_names(void **state)
{
    enum { NAMES = 20000, COUNT = UNDER_SANITIZER ? 2000 : 10000 };
    const struct place *place = *state;
    const struct lmcs_dump_options everything = {.address_count = 0};
    struct lmcs_transfer_report report;
    struct rng rng = {2};
    struct state *weights = state_weights(&rng, NAMES, 1);
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to;
    take_snapshot(from, "run", weights, 1);
    int fd = dump_to(place, from, &everything, "one.archive", &report);
    struct forged forged = {.bytes = 0};
    forged.data = bytes_of(fd, &forged.bytes);
    forged.capacity = forged.bytes;
    close(fd);
    struct lmcs_archive_end_df last;
    struct lmcs_archive_shelf_df shelf;
    unsigned char *shelf_at = forged.data + sizeof(struct lmcs_archive_head_df) + sizeof(struct lmcs_archive_record_df);
    memcpy(&shelf, shelf_at, sizeof shelf);
    shelf.next_number = COUNT + 1;
    memcpy(shelf_at, &shelf, sizeof shelf);
    memcpy(&last, forged.data + forged.bytes - sizeof last, sizeof last);
    last.snapshots = COUNT;
    last.records += 2 * (COUNT - 1);
    forged.bytes -= sizeof last + sizeof(struct lmcs_archive_record_df);
    add_snapshots(&forged, 2, COUNT, NAMES);
    add_record(&forged, LMCS_ARCHIVE_END, &last, sizeof last, "");
    fd = seal_to(place, &forged);
    to = new_pool(place, "to.pool");
    OK(lmcs_restore(to, fd, NULL, &report, &err));
    EXPECT(report.snapshots == COUNT);
    close_pool(to);
    to = new_pool(place, "to.pool");
    OK(restore_part(to, fd, NULL, "t77*", NULL, &report));
    EXPECT(report.snapshots == COUNT && pool_info(to).content_count == 111);
    close_pool(to);
    close(fd);
    close_pool(from);
    state_free(weights);
}

struct seen {
    uint64_t count;
    uint64_t raw_bytes;
    uint64_t new_bytes;
    bool has_tag;
};

static bool see(void *context, const struct lmcs_archived *snapshot)
{
    struct seen *seen = context;
    if (strcmp(snapshot->shelf, "run") != 0)
        return true;
    seen->count++;
    seen->raw_bytes += snapshot->raw_bytes;
    seen->new_bytes += snapshot->new_bytes;
    EXPECT(snapshot->number == seen->count && snapshot->step == (int64_t)seen->count - 1);
    EXPECT(snapshot->tensor_count == 5);
    if (snapshot->tag_count == 1)
        seen->has_tag = snapshot->number == 4 && strcmp(snapshot->tags[0], "best") == 0;
    return true;
}

static void test_list(void **state)
{
    const struct place *place = *state;
    const struct lmcs_dump_options everything = {.address_count = 0};
    struct lmcs_transfer_report report;
    struct lmcs_archive_info info, other;
    struct seen seen = {0};
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 400000);
    int fd = dump_to(place, from, &everything, "a.archive", &report);
    OK(lmcs_archive_list(fd, see, &seen, NULL, &info, &err));
    EXPECT(seen.count == SNAPSHOTS && seen.has_tag && seen.raw_bytes == SNAPSHOTS * 5 * 400000 * 4);
    EXPECT(seen.new_bytes > report.bytes / 2 && seen.new_bytes < report.bytes);
    EXPECT(info.snapshots == report.snapshots && info.contents == report.contents && info.bytes == report.bytes);
    EXPECT(info.shelves == 2 && info.tags == 2 && info.since_count == 0);
    rewind_to_start(fd);
    OK(lmcs_archive_verify(fd, NULL, &other, &err));
    EXPECT(other.decoded_contents == report.contents && other.id.low == info.id.low && other.id.high == info.id.high);
    rewind_to_start(fd);
    int since = dump_since(place, from, &fd, 1, "b.archive", &report);
    OK(lmcs_archive_list(since, NULL, NULL, NULL, &other, &err));
    EXPECT(other.since_count == 1 && other.since[0].low == info.id.low && other.snapshots == 0);
    close(fd);
    close(since);
    close_pool(from);
    free_run(&run);
}

static void flip_and_seal(unsigned char *data)
{
    struct lmcs_archive_record_df record;
    size_t at = sizeof(struct lmcs_archive_head_df);
    uint64_t number = 0;
    for (;; at += sizeof record + record.bytes, number++) {
        memcpy(&record, data + at, sizeof record);
        if (record.type == LMCS_ARCHIVE_DATA)
            break;
    }
    data[at + sizeof record] ^= 1;
    record.payload_check = lmc_hash64(data + at + sizeof record, record.bytes, number);
    record.check = lmc_hash64(&record, offsetof(struct lmcs_archive_record_df, check), number);
    memcpy(data + at, &record, sizeof record);
    struct lmc_hasher headers;
    lmc_hasher_init(&headers);
    lmc_hasher_update(&headers, data, sizeof(struct lmcs_archive_head_df));
    for (at = sizeof(struct lmcs_archive_head_df), number = 0;; at += sizeof record + record.bytes, number++) {
        memcpy(&record, data + at, sizeof record);
        if (record.type == LMCS_ARCHIVE_END)
            break;
        lmc_hasher_update(&headers, &record, sizeof record);
    }
    struct lmc_hash hash = lmc_hasher_final(&headers);
    memcpy(data + at + sizeof record + offsetof(struct lmcs_archive_end_df, hash_low), &hash, sizeof hash);
    record.payload_check = lmc_hash64(data + at + sizeof record, record.bytes, number);
    record.check = lmc_hash64(&record, offsetof(struct lmcs_archive_record_df, check), number);
    memcpy(data + at, &record, sizeof record);
}

static void test_verify(void **state)
{
    const struct place *place = *state;
    const struct lmcs_dump_options everything = {.address_count = 0};
    struct lmcs_transfer_report report;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 40);
    int fd = dump_to(place, from, &everything, "a.archive", &report), bad = new_file(place, "bad.archive");
    size_t bytes;
    unsigned char *data = bytes_of(fd, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        set_bytes(bad, data, n);
        FAILS(LMCS_DAMAGED, lmcs_archive_verify(bad, NULL, NULL, &err));
        rewind_to_start(bad);
        FAILS(LMCS_DAMAGED, lmcs_archive_list(bad, NULL, NULL, NULL, NULL, &err));
    }
    set_bytes(bad, data, bytes);
    for (size_t n = 0; n < bytes; n++) {
        unsigned char byte = data[n] ^ (unsigned char)(1u << n % 8);
        EXPECT(pwrite(bad, &byte, 1, (off_t)n) == 1);
        rewind_to_start(bad);
        FAILS(LMCS_DAMAGED, lmcs_archive_verify(bad, NULL, NULL, &err));
        EXPECT(pwrite(bad, data + n, 1, (off_t)n) == 1);
    }
    /* A payload in a sealed record: only decoding finds the damage. */
    flip_and_seal(data);
    set_bytes(bad, data, bytes);
    OK(lmcs_archive_list(bad, NULL, NULL, NULL, NULL, &err));
    rewind_to_start(bad);
    FAILS(LMCS_DAMAGED, lmcs_archive_verify(bad, NULL, NULL, &err));
    EXPECT(strstr(err.message, "content 1") != NULL);
    free(data);
    close(fd);
    close(bad);
    close_pool(from);
    free_run(&run);
}

struct stopping {
    uint64_t calls;
    uint64_t stop_at; /* the call that cancels; 0: none */
    bool decodes;
};

static bool stop_then(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct stopping *stopping = context;
    (void)total;
    stopping->decodes |= strcmp(what, "decoding") == 0 && done > 0;
    return ++stopping->calls != stopping->stop_at;
}

static void test_verify_can_be_stopped(void **state)
{
    const struct place *place = *state;
    const struct lmcs_dump_options everything = {.address_count = 0};
    struct lmcs_transfer_report report;
    struct stopping stopping = {0};
    const struct lmcs_progress progress = {stop_then, &stopping};
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 40);
    int fd = dump_to(place, from, &everything, "a.archive", &report);
    OK(lmcs_archive_verify(fd, &progress, NULL, &err));
    EXPECT(stopping.decodes && stopping.calls > report.contents / 2);
    for (uint64_t all = stopping.calls, i = 1; i <= all; i++) {
        stopping = (struct stopping){.stop_at = i};
        rewind_to_start(fd);
        FAILS(LMCS_CANCELLED, lmcs_archive_verify(fd, &progress, NULL, &err));
        EXPECT(stopping.calls == i);
    }
    close(fd);
    close_pool(from);
    free_run(&run);
}

/* A pipe as an input that needs several passes fails at once. */
static void test_pipes_where_files_must_be(void **state)
{
    const struct place *place = *state;
    const char *address = "run@3";
    struct lmcs_transfer_report report;
    struct lmcs_dump_options dump;
    struct lmcs_restore_options part;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 40), *to = new_pool(place, "to.pool");
    int file = dump_part(place, from, "run", "a.archive", &report), other = new_file(place, "b.archive"), ends[2];
    EXPECT(pipe2(ends, O_CLOEXEC) == 0);
    lmcs_dump_options_init(&dump);
    dump.since = &ends[0];
    dump.since_count = 1;
    FAILS(LMCS_INVALID, lmcs_dump_with(from, &dump, other, NULL, NULL, &err));
    lmcs_dump_options_init(&dump);
    dump.resume = true;
    FAILS(LMCS_INVALID, lmcs_dump_with(from, &dump, ends[1], NULL, NULL, &err));
    lmcs_restore_options_init(&part);
    part.addresses = &address;
    part.address_count = 1;
    FAILS(LMCS_INVALID, lmcs_restore_with(to, &ends[0], 1, &part, NULL, NULL, &err));
    const int both[] = {file, file};
    FAILS(LMCS_INVALID, lmcs_restore_with(to, both, 2, &part, NULL, NULL, &err));
    EXPECT(lseek(other, 0, SEEK_END) == 0 && pool_info(to).shelf_count == 0);
    rewind_to_start(file);
    OK(lmcs_restore_with(to, &file, 1, &part, NULL, NULL, &err));
    expect_numbers(to, "run", &run, 3, 3);
    close(ends[0]);
    close(ends[1]);
    close(other);
    close(file);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(test_many_tags), IN_MEMORY(test_one_of_many_names),     IN_MEMORY(test_list),
        IN_MEMORY(test_verify),    IN_MEMORY(test_verify_can_be_stopped), IN_MEMORY(test_pipes_where_files_must_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
