/* SPDX-License-Identifier: BSD-3-Clause */
/* operations_archive.c - dumps, restores, exports and imports. */
#include "operations.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "pages/tree.h"
#include "recorder.h"
#include "records/content.h"

/* ---- Archives and files ---- */

static int memory_file(void)
{
    int fd = memfd_create("archive", MFD_CLOEXEC);
    EXPECT(fd >= 0);
    return fd;
}

void forget_archive(struct driver *d)
{
    if (d->archive.fd >= 0)
        close(d->archive.fd);
    d->archive.fd = -1;
}

void do_dump(struct driver *d)
{
    wait_for_all(d);
    bool all = driver_chance(d, 70);
    struct archive archive = {.fd = memory_file()};
    for (size_t i = 0; i < SHELVES; i++) {
        const struct shelf_version *version = expected_newest(d->expected, shelf_names[i]);
        if (!version->exists || (!all && archive.shelf_count == 1))
            continue;
        snprintf(archive.names[archive.shelf_count], 16, "%s", shelf_names[i]);
        archive.shelves[archive.shelf_count++] = *version;
    }
    if (archive.shelf_count == 0) {
        close(archive.fd);
        return;
    }
    uint64_t operation = driver_begin(d, all ? "dump the pool" : "dump a shelf");
    OK(lmcs_dump(d->pool, all ? NULL : archive.names[0], archive.fd, NULL, NULL, &err));
    driver_acknowledged(operation);
    forget_archive(d);
    d->archive = archive;
}

static bool note_tag(void *context, const char *tag)
{
    struct expected_tag *at = context;
    while (at->tag[0] != '\0')
        at++;
    snprintf(at->tag, sizeof at->tag, "%s", tag);
    return true;
}

/* The store decides which tags win. */
static void read_tags(struct driver *d, const char *shelf, struct shelf_version *version)
{
    version->tag_count = 0;
    for (size_t i = 0; i < version->snapshot_count; i++) {
        struct expected_tag tags[MOST_TAGS + 1] = {0};
        struct lmcs_snapshot *snapshot;
        char which[32];
        snprintf(which, sizeof which, "%llu", (unsigned long long)version->snapshots[i]->number);
        OK(lmcs_snapshot_find(d->pool, shelf, which, &snapshot, &err));
        OK(lmcs_snapshot_tags(snapshot, note_tag, tags, &err));
        lmcs_snapshot_close(snapshot);
        for (size_t k = 0; tags[k].tag[0] != '\0'; k++)
            expected_put_tag(version, tags[k].tag, version->snapshots[i]->number);
    }
}

static bool has_tensor(const struct expected_snapshot *snapshot, const struct expected_tensor *tensor)
{
    bool has = false;
    for (size_t i = 0; i < snapshot->count; i++)
        has =
            has || (snapshot->tensors[i].kind == tensor->kind && strcmp(snapshot->tensors[i].name, tensor->name) == 0);
    return has;
}

/* Adds the tensors that match `only` (NULL: all, and attachments) to `there` (NULL: there is none). A snapshot that
 * stays the same is the same pointer. */
static const struct expected_snapshot *complete(const struct expected_snapshot *there,
                                                const struct expected_snapshot *from, const char *only)
{
    struct expected_snapshot *snapshot = malloc(sizeof *snapshot);
    EXPECT(snapshot != NULL);
    *snapshot = there != NULL ? *there : *from;
    snapshot->count = there != NULL ? there->count : 0;
    for (size_t i = 0; i < from->count; i++) {
        const struct expected_tensor *tensor = &from->tensors[i];
        bool wanted = only == NULL || (tensor->kind == LMCS_TENSOR && fnmatch(only, tensor->name, 0) == 0);
        if (!wanted || has_tensor(snapshot, tensor))
            continue;
        EXPECT(snapshot->count < MOST_TENSORS);
        snapshot->tensors[snapshot->count++] = *tensor;
    }
    const struct expected_snapshot *same = there != NULL ? there : from;
    if (snapshot->count != same->count)
        return snapshot;
    free(snapshot);
    return same;
}

static void add_missing(struct shelf_version *version, const struct shelf_version *from, const char *only)
{
    for (size_t i = 0; i < from->snapshot_count; i++) {
        size_t at = 0;
        while (at < version->snapshot_count && version->snapshots[at]->number < from->snapshots[i]->number)
            at++;
        if (at < version->snapshot_count && version->snapshots[at]->number == from->snapshots[i]->number) {
            version->snapshots[at] = complete(version->snapshots[at], from->snapshots[i], only);
            continue;
        }
        EXPECT(version->snapshot_count < MOST_SNAPSHOTS);
        memmove(&version->snapshots[at + 1], &version->snapshots[at],
                (version->snapshot_count - at) * sizeof version->snapshots[0]);
        version->snapshots[at] = complete(NULL, from->snapshots[i], only);
        version->snapshot_count++;
    }
}

/* Whether the archive's shelves can change; removes some of their snapshots. */
static bool make_gaps(struct driver *d)
{
    const struct archive *archive = &d->archive;
    for (size_t i = 0; i < archive->shelf_count; i++)
        if (is_busy(d, archive->names[i]) || is_crowded(d, archive->names[i]))
            return false;
    for (size_t i = 0; i < archive->shelf_count; i++)
        for (uint64_t k = driver_below(d, 3); k > 0; k--) {
            const struct expected_snapshot *snapshot = some_snapshot(d, archive->names[i]);
            if (snapshot != NULL)
                remove_snapshot(d, archive->names[i], snapshot);
        }
    return true;
}

static void restore(struct driver *d, const char *only)
{
    struct archive *archive = &d->archive;
    char words[WORDS];
    EXPECT(lseek(archive->fd, 0, SEEK_SET) == 0);
    snprintf(words, WORDS, "restore %s of an archive", only != NULL ? only : "all");
    uint64_t operation = driver_begin(d, words);
    const struct lmcs_restore_options options = {
        .resume = rng_below(&d->rng, 2) == 0, .only = &only, .only_count = only != NULL ? 1 : 0};
    enum lmcs_status status = lmcs_restore_with(d->pool, &archive->fd, 1, &options, NULL, NULL, &d->error);
    /* After a power failure a number in the archive may have been reused. No tensor may match. */
    if (status == LMCS_EXISTS || (only != NULL && status == LMCS_NOT_FOUND) || !driver_worked(d, status))
        return;
    driver_acknowledged(operation);
    for (size_t i = 0; i < archive->shelf_count; i++) {
        struct shelf_version *version = driver_next_version(d, archive->names[i], operation);
        add_missing(version, &archive->shelves[i], only);
        read_tags(d, archive->names[i], version);
    }
}

void do_restore(struct driver *d)
{
    if (d->archive.fd < 0)
        do_dump(d);
    if (d->archive.fd < 0)
        return;
    wait_for_all(d);
    if (make_gaps(d))
        restore(d, NULL);
}

/* Restores some tensors of snapshots, then others. */
void do_restore_parts(struct driver *d)
{
    static const char *const parts[] = {"*[02468]", "*[!02468]", NULL};
    do_dump(d);
    if (d->archive.fd < 0 || !make_gaps(d))
        return;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (driver_chance(d, 80))
            restore(d, parts[i]);
}

static void file_path(const struct driver *d, char path[512])
{
    snprintf(path, 512, "%s/one.safetensors", d->run->folder);
}

void do_export(struct driver *d)
{
    const char *shelf = some_shelf(d);
    const struct expected_snapshot *expected = shelf != NULL ? some_snapshot(d, shelf) : NULL;
    struct lmcs_snapshot *snapshot;
    char path[512], which[32];
    if (expected == NULL)
        return;
    file_path(d, path);
    uint64_t operation = driver_begin(d, "export a snapshot");
    snprintf(which, sizeof which, "%llu", (unsigned long long)expected->number);
    OK(lmcs_snapshot_find(d->pool, shelf, which, &snapshot, &err));
    OK(lmcs_export_safetensors(snapshot, NULL, path, NULL, NULL, &err));
    lmcs_snapshot_close(snapshot);
    driver_acknowledged(operation);
}

static void write_safetensors(const char *path, const struct expected_tensor *tensor)
{
    char header[128];
    int n = snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}",
                     tensor->name, (unsigned long long)tensor->shape[0], (unsigned long long)tensor->bytes);
    uint64_t header_bytes = (uint64_t)n;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0 && write(fd, &header_bytes, 8) == 8 && write(fd, header, header_bytes) == n &&
           write(fd, tensor->data, tensor->bytes) == (ssize_t)tensor->bytes);
    close(fd);
}

void do_import(struct driver *d)
{
    const char *shelf = some_shelf(d);
    char path[512], words[WORDS];
    struct lmcs_commit_options options;
    if (shelf == NULL || is_crowded(d, shelf))
        return;
    struct expected_snapshot *snapshot = calloc(1, sizeof *snapshot);
    EXPECT(snapshot != NULL);
    *snapshot = (struct expected_snapshot){.step = 5, .time_ns = 77 + d->serial++, .loss = -1, .meta = "{}"};
    snapshot->tensors[snapshot->count++] =
        (struct expected_tensor){.name = "w", .dtype = LMC_F32, .ndim = 1, .shape = {4000}, .bytes = 16000};
    snapshot->tensors[0].data = some_bytes(d, snapshot->tensors[0].bytes);
    expected_digest(&snapshot->tensors[0]);
    file_path(d, path);
    write_safetensors(path, &snapshot->tensors[0]);
    lmcs_commit_options_init(&options);
    options.step = snapshot->step;
    options.time_ns = snapshot->time_ns;
    snprintf(words, WORDS, "import a file into %s", shelf);
    uint64_t operation = driver_begin(d, words);
    if (!driver_worked(d, lmcs_import_safetensors(d->pool, shelf, path, &options, NULL, &snapshot->number, &d->error)))
        return;
    driver_acknowledged(operation);
    committed(d, shelf, operation, snapshot, "");
}
