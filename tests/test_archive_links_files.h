/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_links_files.h - archives of linked steps: files, pools and their comparison. */
#ifndef LMCS_TEST_ARCHIVE_LINKS_FILES_H
#define LMCS_TEST_ARCHIVE_LINKS_FILES_H

#include "data/codec/seal.h"
#include "pages/txn.h"
#include "records/content.h"
#include "records/shelf.h"
#include "snapshots/snapshot.h"
#include "test_archive_files.h"
#include "test_archive_seal.h"
#include "test_links_support.h"

static inline int new_file(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    return fd;
}

static inline int dump_part(const struct place *place, struct lmcs_pool *pool, const char *address, int since,
                            const char *name, struct lmcs_transfer_report *report)
{
    struct lmcs_dump_options options;
    struct lmcs_archive_info info;
    struct lmcs_transfer_report ignored;
    int fd = new_file(place, name);
    lmcs_dump_options_init(&options);
    options.addresses = &address;
    options.address_count = 1;
    options.since = &since;
    options.since_count = since >= 0;
    OK(lmcs_dump_with(pool, &options, fd, NULL, report != NULL ? report : &ignored, &err));
    rewind_to_start(fd);
    OK(lmcs_archive_verify(fd, NULL, &info, &err));
    EXPECT(since >= 0 || info.decoded_contents == info.contents);
    rewind_to_start(fd);
    return fd;
}

static inline int dump_run(const struct place *place, struct lmcs_pool *pool, const char *name)
{
    return dump_part(place, pool, "run", -1, name, NULL);
}

static inline void restore(struct lmcs_pool *pool, int fd)
{
    rewind_to_start(fd);
    OK(lmcs_restore(pool, fd, NULL, NULL, &err));
    check_pool(pool);
}

static inline struct lmcs_pool *new_pool(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    unlink(path);
    return open_quiet(path);
}

struct forms {
    size_t of[4];
};

static inline struct forms forms_of(int fd)
{
    struct forms forms = {{0}};
    size_t bytes;
    unsigned char *data = bytes_of(fd, &bytes);
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        struct lmcs_archive_content_df df;
        memcpy(&record, data + at, sizeof record);
        memcpy(&df, data + at + sizeof record, sizeof df < bytes - at - sizeof record ? sizeof df : 0);
        if (record.type == LMCS_ARCHIVE_CONTENT)
            forms.of[df.payload]++;
        at += sizeof record + record.bytes;
    }
    free(data);
    return forms;
}

static inline struct lmcs_pool *make_run(const struct place *place, struct run *run, const size_t *sizes,
                                         const char *policy, size_t steps)
{
    struct lmcs_pool *pool = new_pool(place, "from.pool");
    run_begin(run, adamw_hints(), BF16, sizes);
    set_policy(pool, "run", policy);
    run_on(run, pool, "run", steps);
    OK(lmcs_compact(pool, NULL, &err));
    return pool;
}

/* Existing snapshots are unchanged. Returns their number. */
static inline size_t expect_what_is_there(const struct run *run, struct lmcs_pool *pool)
{
    uint64_t numbers[MOST_STEPS];
    size_t count;
    OK(lmcs_snapshot_numbers(pool, "run", 1, numbers, MOST_STEPS, &count, &err));
    EXPECT(count > 0);
    for (size_t i = 0; i < count; i++)
        expect_snapshot(pool, "run", numbers[i], run->states[numbers[i]]);
    verify_pool(pool);
    return count;
}

#endif
