/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pool/maintain.c - the public lmcs_verify and lmcs_scrub. The work is in repair/; both need pools opened by path,
 * which only this room can do.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive/format.h"
#include "pool/open.h"
#include "repair/scrub.h"
#include "repair/sources.h"
#include "repair/verify.h"

enum lmcs_status lmcs_verify(struct lmcs_pool *pool, const char *address,
                             void (*visit)(void *context, const struct lmcs_damage *damage), void *context,
                             const struct lmcs_progress *progress, struct lmcs_verify_report *report,
                             struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    return status == LMCS_OK ? lmcs_verify_run(pool, address, lmcs_pool_look, visit, context, progress, report, error)
                             : status;
}

void lmcs_scrub_options_init(struct lmcs_scrub_options *options)
{
    *options = (struct lmcs_scrub_options){.address_count = 0};
}

/* Paths that could not be used as repair sources. */
struct unread {
    size_t count;
    struct lmcs_error error; /* status of the first, messages of all that fit */
};

static void add_unread(struct unread *unread, const struct lmcs_error *error)
{
    if (unread->count++ == 0)
        unread->error = *error;
    else
        lmcs_error_append(&unread->error, "; %s", error->message);
}

/* *is_own: the path is that of `repaired` itself: wrong use, not the fault of a source. */
static enum lmcs_status add_source(struct lmcs_sources *sources, const struct lmcs_pool *repaired, const char *path,
                                   bool *is_own, struct lmcs_error *error)
{
    char magic[8] = "";
    struct stat info;
    struct lmcs_pool *pool = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no such pool or archive", path);
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && pread(fd, magic, 8, 0) == 8 &&
        memcmp(magic, LMCS_ARCHIVE_MAGIC, 8) == 0)
        return lmcs_sources_add_archive(sources, path, fd, error);
    close(fd);
    enum lmcs_status status = lmcs_pool_open(path, LMCS_OPEN_READ, NULL, &pool, error);
    *is_own = pool == repaired;
    return status == LMCS_OK ? lmcs_sources_add_pool(sources, path, pool, error) : status;
}

/* Collects unreadable sources, because the others may suffice. Fails if all are unreadable. */
static enum lmcs_status open_sources(struct lmcs_pool *pool, const struct lmcs_scrub_options *options,
                                     struct lmcs_sources **sources, struct unread *unread, struct lmcs_error *error)
{
    struct lmcs_error local;
    enum lmcs_status status = lmcs_sources_new(pool, options->from_count, sources, error);
    for (size_t i = 0; status == LMCS_OK && i < options->from_count; i++) {
        bool is_own = false;
        status = add_source(*sources, pool, options->from[i], &is_own, &local);
        if (status != LMCS_OK && !is_own && status != LMCS_NO_MEMORY && status != LMCS_CANCELLED) {
            add_unread(unread, &local);
            status = LMCS_OK;
        } else if (status != LMCS_OK) {
            *error = local;
        }
    }
    if (status == LMCS_OK && unread->count > 0 && unread->count == options->from_count) {
        *error = unread->error;
        status = error->status;
    }
    return status;
}

static enum lmcs_status report_unread(const struct unread *unread, const struct lmcs_scrub_report *report,
                                      enum lmcs_status status, struct lmcs_error *error)
{
    if (unread->count == 0)
        return status;
    if (status != LMCS_OK && !lmcs_is_unusable(status)) {
        lmcs_error_append(error, "; %s", unread->error.message);
        return status;
    }
    *error = unread->error;
    lmcs_error_append(error, "; without %s: %llu damage%s found, %llu repaired", unread->count == 1 ? "it" : "them",
                      (unsigned long long)report->damages, report->damages == 1 ? "" : "s",
                      (unsigned long long)report->repaired);
    return error->status;
}

static enum lmcs_status check_options(struct lmcs_pool *pool, const struct lmcs_scrub_options *options,
                                      struct lmcs_error *error)
{
    if (!(options->sample_share >= 0 && options->sample_share <= 1))
        return lmcs_fail(error, LMCS_INVALID, 0, "sample_share must be from 0 to 1");
    if (options->from_count > 0 && !options->repair)
        return lmcs_fail(error, LMCS_INVALID, 0, "repair sources need `repair`");
    return lmcs_pool_check(pool, options->repair, error);
}

enum lmcs_status lmcs_scrub(struct lmcs_pool *pool, const struct lmcs_scrub_options *options,
                            void (*visit)(void *context, const struct lmcs_scrub_damage *damage), void *context,
                            const struct lmcs_progress *progress, struct lmcs_scrub_report *report,
                            struct lmcs_error *error)
{
    struct lmcs_scrub_options defaults;
    struct lmcs_scrub_report found = {0};
    struct lmcs_sources *sources = NULL;
    struct unread unread = {.count = 0};
    struct lmcs_error local;
    lmcs_scrub_options_init(&defaults);
    options = options != NULL ? options : &defaults;
    enum lmcs_status status = check_options(pool, options, &local);
    if (status == LMCS_OK && options->repair)
        status = open_sources(pool, options, &sources, &unread, &local);
    if (status == LMCS_OK) {
        status = lmcs_scrub_run(pool, options, sources, lmcs_pool_look, visit, context, progress, &found, &local);
        status = report_unread(&unread, &found, status, &local);
    }
    found.sources_unread = unread.count;
    lmcs_sources_close(sources);
    if (report != NULL)
        *report = found;
    if (status != LMCS_OK && error != NULL)
        *error = local;
    return status;
}
