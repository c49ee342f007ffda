/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * folder_dump.c - the dump of a run: a folder with an archive of the records, and one for each rank's pool that has
 * parts of them. The records' archive is named last, so a dump that was cut short lacks it. Until then its folder looks
 * empty, so it is locked.
 */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/grow.h"
#include "base/order.h"

struct wanted {
    size_t file; /* of a part */
    const char *shelf;
    uint64_t number;
    bool is_older; /* of a record: it was there before the records' archive, which may lack it */
};

struct wanted_list {
    struct wanted *items;
    size_t count;
    size_t capacity;
};

/* A part in an archive of an older dump. Its file and its number may since be those of another part. */
struct older_part {
    const char *shelf;
    unsigned char group[16];
};

struct dump {
    struct cli *cli;
    struct lmcs_progress progress;
    char **shelves; /* names, for the lists */
    size_t shelf_count;
    bool is_out_of_memory;
    struct wanted_list records;
    struct wanted_list parts;
    struct older_part *older; /* the parts that older dumps have, sorted */
    size_t older_count;
    size_t older_capacity;
    char **made; /* paths of archives */
    size_t made_count;
    char missing[900]; /* files */
    uint64_t missing_parts;
    struct lmcs_transfer_report report; /* of the records, with the bytes and contents of all */
    struct lmcs_outfile output;         /* of the records */
    int folder;                         /* locked; -1: none */
};

static void add(struct dump *dump, struct wanted_list *list, struct wanted wanted)
{
    if (lmcs_grow(&list->items, &list->capacity, list->count, sizeof *list->items))
        list->items[list->count++] = wanted;
    else
        dump->is_out_of_memory = true;
}

/* ---- Which parts ---------------------------------------------------------------------------------------------- */

/* Keeps the name of a shelf. NULL: out of memory. */
static const char *keep_shelf(struct dump *dump, const char *shelf)
{
    if (dump->shelf_count > 0 && strcmp(dump->shelves[dump->shelf_count - 1], shelf) == 0)
        return dump->shelves[dump->shelf_count - 1];
    if (lmcs_add_text(&dump->shelves, &dump->shelf_count, shelf))
        return dump->shelves[dump->shelf_count - 1];
    dump->is_out_of_memory = true;
    return NULL;
}

static bool note_record(void *context, const struct lmcs_archived *snapshot)
{
    struct dump *dump = context;
    const char *shelf = keep_shelf(dump, snapshot->shelf);
    if (shelf != NULL)
        add(dump, &dump->records, (struct wanted){.shelf = shelf, .number = snapshot->number});
    return !dump->is_out_of_memory;
}

/* ---- Older dumps ---- */

static bool note_shelf(void *context, const struct lmcs_shelf_info *info)
{
    return keep_shelf(context, info->name) != NULL;
}

/* Notes the records of a shelf, or of a range of it. */
static enum lmcs_status note_older_of(struct dump *dump, const char *shelf, const char *range)
{
    enum { SOME = 256 };
    struct cli *cli = dump->cli;
    uint64_t numbers[SOME], first = 1, last = UINT64_MAX;
    enum lmcs_status status = LMCS_OK;
    if (range != NULL)
        status = lmcs_snapshot_range(cli->pool, shelf, range, &first, &last, &cli->error);
    for (size_t got = SOME; status == LMCS_OK && got == SOME && first <= last;) {
        status = lmcs_snapshot_numbers(cli->pool, shelf, first, numbers, SOME, &got, &cli->error);
        for (size_t i = 0; status == LMCS_OK && i < got && numbers[i] <= last; i++)
            add(dump, &dump->records, (struct wanted){.shelf = shelf, .number = numbers[i], .is_older = true});
        first = got > 0 ? numbers[got - 1] + 1 : first;
    }
    return status;
}

/* Notes the addressed records before their archive is made, which lacks those that older dumps have. */
static enum lmcs_status note_older(struct dump *dump)
{
    struct cli *cli = dump->cli;
    enum lmcs_status status = LMCS_OK;
    if (cli->options.since.count == 0)
        return LMCS_OK;
    if (cli->options.argument_count == 1)
        status = lmcs_shelf_list(cli->pool, note_shelf, dump, &cli->error);
    for (size_t i = 0; status == LMCS_OK && cli->options.argument_count == 1 && i < dump->shelf_count; i++)
        status = note_older_of(dump, dump->shelves[i], NULL);
    for (size_t i = 1; status == LMCS_OK && i < cli->options.argument_count; i++) {
        char name[LMCS_MAX_NAME + 1];
        const char *address = cli->options.arguments[i], *at = strchr(address, '@');
        snprintf(name, sizeof name, "%.*s", at != NULL ? (int)(at - address) : LMCS_MAX_NAME, address);
        const char *shelf = keep_shelf(dump, name);
        if (shelf != NULL)
            status = note_older_of(dump, shelf, at != NULL ? at + 1 : NULL);
    }
    return status;
}

static bool note_older_part(void *context, const struct lmcs_archived *snapshot)
{
    struct dump *dump = context;
    const char *shelf = keep_shelf(dump, snapshot->shelf);
    if (shelf != NULL && lmcs_grow(&dump->older, &dump->older_capacity, dump->older_count, sizeof *dump->older)) {
        struct older_part *part = &dump->older[dump->older_count++];
        part->shelf = shelf;
        memcpy(part->group, snapshot->group, sizeof part->group);
        return true;
    }
    dump->is_out_of_memory = true;
    return false;
}

static enum lmcs_status list_older_archive(struct dump *dump, const char *folder, const char *name)
{
    struct cli *cli = dump->cli;
    int fd = -1;
    char *path = cli_folder_path(folder, name);
    enum lmcs_status status =
        path != NULL ? cli_archive_open(cli, path, &fd) : cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_OK)
        status = lmcs_archive_list(fd, note_older_part, dump, &dump->progress, NULL, &cli->error);
    if (status != LMCS_OK && fd >= 0)
        cli_archive_name(cli, path);
    cli_archive_close(fd);
    free(path);
    return status;
}

static int by_group(const void *left, const void *right)
{
    const struct older_part *l = left, *r = right;
    int groups = memcmp(l->group, r->group, sizeof l->group);
    return groups != 0 ? groups : strcmp(l->shelf, r->shelf);
}

static enum lmcs_status list_older_parts(struct dump *dump)
{
    struct cli *cli = dump->cli;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < cli->options.since.count; i++) {
        const char *folder = cli->options.since.items[i];
        DIR *listing = opendir(folder);
        if (listing == NULL)
            return cli_fail(cli, LMCS_IO, errno, "%s can't be read", folder);
        for (struct dirent *entry; status == LMCS_OK && (entry = readdir(listing)) != NULL;) {
            const char *end = strrchr(entry->d_name, '.');
            if (strncmp(entry->d_name, "rank-", 5) == 0 && end != NULL && strcmp(end, CLI_ARCHIVE) == 0)
                status = list_older_archive(dump, folder, entry->d_name);
        }
        closedir(listing);
    }
    if (dump->older_count > 0)
        qsort(dump->older, dump->older_count, sizeof *dump->older, by_group);
    return status;
}

static bool is_in_older(const struct dump *dump, const char *shelf, const struct cli_part *part)
{
    struct older_part key = {.shelf = shelf};
    memcpy(key.group, part->group, sizeof key.group);
    return dump->older_count > 0 &&
           bsearch(&key, dump->older, dump->older_count, sizeof *dump->older, by_group) != NULL;
}

/* ---- The parts of records ---- */

static enum lmcs_status resolve(struct cli *cli, size_t file, const struct cli_part *part)
{
    struct lmcs_pool *pool = NULL;
    struct lmcs_error error;
    enum lmcs_status status = cli_folder_writable(cli, file, &pool);
    if (status == LMCS_OK)
        status = lmcs_group_resolve(pool, part->group, true, &cli->error);
    if (status == LMCS_NOT_FOUND)
        status = LMCS_OK; /* its rank did it meanwhile */
    if (pool != NULL && lmcs_pool_close(pool, &error) != LMCS_OK && status == LMCS_OK) {
        cli->error = error;
        status = error.status;
    }
    return status;
}

static enum lmcs_status find_committed(struct cli *cli, size_t file, const char *shelf, uint64_t number)
{
    struct lmcs_pool *pool = NULL;
    struct lmcs_snapshot *snapshot = NULL;
    char which[24];
    snprintf(which, sizeof which, "%" PRIu64, number);
    enum lmcs_status status = cli_folder_pool(cli, file, &pool);
    if (status == LMCS_OK)
        status = lmcs_snapshot_find(pool, shelf, which, &snapshot, &cli->error);
    lmcs_snapshot_close(snapshot);
    return status;
}

/* Commits a part whose record is there, or waits a moment for its rank, which does so after the record. */
static enum lmcs_status commit_part(struct cli *cli, const struct wanted *wanted, const struct cli_record *record,
                                    const struct cli_part *part)
{
    enum { WAIT_S = 2 };
    const struct timespec moment = {.tv_nsec = 20000000};
    enum lmcs_status status = LMCS_IN_USE;
    for (time_t begun = time(NULL); status == LMCS_IN_USE && cli_signal() == 0 && time(NULL) - begun <= WAIT_S;) {
        nanosleep(&moment, NULL);
        status = find_committed(cli, wanted->file, wanted->shelf, wanted->number);
        if (status == LMCS_NOT_FOUND)
            status = resolve(cli, wanted->file, part);
    }
    if (status == LMCS_OK)
        return LMCS_OK;
    struct lmcs_error error = cli->error;
    return cli_fail(cli, status, 0,
                    "%.200s is not committed in %.200s yet, and can't be: %.400s. Repeat this when the save has ended",
                    record->address, cli_folder_file(cli->folder, wanted->file), error.message);
}

static enum lmcs_status add_part(struct dump *dump, const struct cli_record *record, const struct wanted *of,
                                 const struct cli_part *part)
{
    struct cli *cli = dump->cli;
    const char *shelf = of->shelf;
    struct lmcs_pool *pool = NULL;
    struct lmcs_snapshot *snapshot = NULL;
    struct wanted wanted = {.shelf = shelf};
    if (of->is_older && is_in_older(dump, shelf, part)) /* its pool may be away */
        return LMCS_OK;
    enum lmcs_status status = cli_part_find(cli, shelf, part, &wanted.file);
    if (status == LMCS_OK)
        status = cli_folder_pool(cli, wanted.file, &pool);
    if (status == LMCS_OK)
        status = lmcs_group_open(pool, shelf, part->group, &snapshot, &cli->error);
    if (status == LMCS_NOT_FOUND) {
        cli_missing_add(dump->missing, sizeof dump->missing, part->file);
        dump->missing_parts++;
        return LMCS_OK;
    }
    if (status != LMCS_OK)
        return status;
    wanted.number = lmcs_snapshot_info(snapshot)->number;
    status = cli_part_local(cli, record->address, snapshot);
    lmcs_snapshot_close(snapshot);
    if (status != LMCS_OK)
        return status;
    status = find_committed(cli, wanted.file, shelf, wanted.number);
    if (status == LMCS_NOT_FOUND) /* it is prepared */
        status = commit_part(cli, &wanted, record, part);
    add(dump, &dump->parts, wanted);
    return status;
}

static int by_file(const void *left, const void *right)
{
    const struct wanted *l = left, *r = right;
    int shelves = strcmp(l->shelf, r->shelf);
    return l->file != r->file       ? LMCS_ORDER(l->file, r->file)
           : shelves != 0           ? shelves
           : l->number != r->number ? LMCS_ORDER(l->number, r->number)
                                    : LMCS_ORDER(l->is_older, r->is_older);
}

static enum lmcs_status add_parts(struct dump *dump, const struct wanted *one)
{
    struct cli *cli = dump->cli;
    struct cli_record record = {.parts = NULL};
    enum lmcs_status status = cli_record_at(cli, one->shelf, one->number, &record);
    if (status == LMCS_NOT_FOUND && one->is_older)
        status = LMCS_OK; /* removed meanwhile */
    if (lmcs_is_unusable(status) && one->is_older) {
        char line[LMCS_MAX_NAME + sizeof cli->error.message + 100];
        snprintf(line, sizeof line, "%s@%" PRIu64 ": %s. Whether the older dumps have all its parts is unknown\n",
                 one->shelf, one->number, cli->error.message);
        cli_progress_wipe(&cli->progress);
        cli_warn_lines(line);
        cli_record_free(&record);
        return LMCS_OK;
    }
    for (size_t i = 0; status == LMCS_OK && i < record.part_count; i++)
        status = add_part(dump, &record, one, &record.parts[i]);
    cli_record_free(&record);
    return status;
}

/*
 * Lists the parts of the records that are in the records' archive, and those of older records that no older dump has:
 * these were missing then.
 */
static enum lmcs_status list_parts(struct dump *dump)
{
    struct cli *cli = dump->cli;
    enum lmcs_status status = LMCS_OK;
    if (lseek(dump->output.fd, 0, SEEK_SET) != 0)
        return cli_fail(cli, LMCS_IO, errno, "%s can't be read", dump->output.shown);
    status = lmcs_archive_list(dump->output.fd, note_record, dump, &dump->progress, NULL, &cli->error);
    if (status == LMCS_OK)
        status = list_older_parts(dump);
    if (dump->records.count > 0)
        qsort(dump->records.items, dump->records.count, sizeof *dump->records.items, by_file);
    for (size_t i = 0; status == LMCS_OK && i < dump->records.count; i++) {
        const struct wanted *one = &dump->records.items[i];
        if (i == 0 || one[-1].number != one->number || strcmp(one[-1].shelf, one->shelf) != 0)
            status = add_parts(dump, one);
    }
    if (status == LMCS_OK && dump->is_out_of_memory)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_OK && dump->missing_parts > 0 && !cli->options.allow_missing)
        return cli_fail(cli, LMCS_NOT_FOUND, 0, CLI_MISSING, cli->options.arguments[0], dump->missing_parts,
                        dump->missing);
    if (dump->parts.count > 0)
        qsort(dump->parts.items, dump->parts.count, sizeof *dump->parts.items, by_file);
    return status;
}

/* ---- Archives ------------------------------------------------------------------------------------------------- */

/* Opens the archives of a name in the older dumps that have one. */
static enum lmcs_status open_older(struct cli *cli, const char *name, bool must_be, int *fds, size_t *count)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < cli->options.since.count; i++) {
        char *path = cli_folder_path(cli->options.since.items[i], name);
        if (path == NULL)
            return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
        if (must_be && access(path, F_OK) != 0)
            status = cli_fail(cli, LMCS_NOT_FOUND, 0, CLI_NO_DUMP, cli->options.since.items[i]);
        else if (access(path, F_OK) == 0)
            status = cli_archive_open(cli, path, &fds[(*count)++]);
        free(path);
    }
    return status;
}

/* Writes the addresses of a pool, or what the caller named of the records, into an open archive. */
static enum lmcs_status dump_pool(struct dump *dump, struct lmcs_pool *pool, const char *name,
                                  const char *const *addresses, size_t count, int fd,
                                  struct lmcs_transfer_report *report)
{
    struct cli *cli = dump->cli;
    int since[CLI_MAX_LIST];
    size_t since_count = 0;
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    enum lmcs_status status = open_older(cli, name, pool == cli->pool, since, &since_count);
    options.addresses = addresses;
    options.address_count = count;
    options.since = since;
    options.since_count = since_count;
    if (status == LMCS_OK)
        status = lmcs_dump_with(pool, &options, fd, &dump->progress, report, &cli->error);
    while (since_count > 0)
        cli_archive_close(since[--since_count]);
    cli_progress_wipe(&cli->progress);
    if (status == LMCS_OK)
        cli_warn_lines(report->warnings);
    return status;
}

/* The addresses of some parts of one pool: ranges where numbers follow each other. */
static enum lmcs_status addresses_of(struct cli *cli, const struct wanted *parts, size_t count, char ***addresses,
                                     size_t *address_count)
{
    char text[LMCS_MAX_NAME + 64];
    for (size_t i = 0, last; i < count; i = last + 1) {
        for (last = i; last + 1 < count && strcmp(parts[last + 1].shelf, parts[i].shelf) == 0 &&
                       parts[last + 1].number == parts[last].number + 1;)
            last++;
        snprintf(text, sizeof text, "%s@%" PRIu64 "..%" PRIu64, parts[i].shelf, parts[i].number, parts[last].number);
        if (!lmcs_add_text(addresses, address_count, text))
            return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    }
    return LMCS_OK;
}

static enum lmcs_status dump_rank(struct dump *dump, const struct wanted *parts, size_t count)
{
    struct cli *cli = dump->cli;
    char name[300], **addresses = NULL, *path;
    size_t address_count = 0;
    struct lmcs_pool *pool = NULL;
    struct lmcs_transfer_report report = {.snapshots = 0};
    struct lmcs_outfile output = {.fd = -1};
    const char *file = cli_folder_file(cli->folder, parts->file);
    snprintf(name, sizeof name, "%.*s" CLI_ARCHIVE, (int)(strlen(file) - strlen(".pool")), file);
    path = cli_folder_path(cli->options.output, name);
    enum lmcs_status status = path != NULL ? addresses_of(cli, parts, count, &addresses, &address_count)
                                           : cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_OK)
        status = cli_folder_pool(cli, parts->file, &pool);
    if (status == LMCS_OK)
        status = lmcs_outfile_open(path, 0, &output, &cli->error);
    if (status == LMCS_OK)
        status = dump_pool(dump, pool, name, (const char *const *)addresses, address_count, output.fd, &report);
    for (size_t i = 0; status == LMCS_OK && report.snapshots != count && i < count; i++) {
        status = find_committed(cli, parts->file, parts[i].shelf, parts[i].number); /* then an older archive has it */
        if (status == LMCS_NOT_FOUND)
            status = cli_fail(cli, status, 0, "%s: snapshots were removed during the dump; repeat it", file);
    }
    if (status == LMCS_OK)
        status = lmcs_outfile_commit(&output, &cli->error);
    if (status == LMCS_OK && !lmcs_add_text(&dump->made, &dump->made_count, path))
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    dump->report.bytes += report.bytes;
    dump->report.contents += report.contents;
    lmcs_outfile_close(&output);
    while (address_count > 0)
        free(addresses[--address_count]);
    free(addresses);
    free(path);
    return status;
}

static enum lmcs_status dump_ranks(struct dump *dump)
{
    enum lmcs_status status = LMCS_OK;
    const struct wanted *parts = dump->parts.items;
    for (size_t i = 0, count; status == LMCS_OK && i < dump->parts.count; i += count) {
        for (count = 1; i + count < dump->parts.count && parts[i + count].file == parts[i].file;)
            count++;
        status = dump_rank(dump, parts + i, count);
    }
    return status;
}

/* ---- The folder ----------------------------------------------------------------------------------------------- */

static enum lmcs_status check_options(struct cli *cli)
{
    if (cli_output_is_stdout(cli))
        return cli_wrong_use(cli, "dump: the dump of a run is a folder of archives: -o FOLDER");
    if (cli->options.canonical || cli->options.force || cli->options.resume || cli->options.skip_lost)
        return cli_wrong_use(cli, "dump: --canonical, --force, --resume and --skip-lost are for a pool, not for a run");
    return LMCS_OK;
}

static bool is_empty_folder(const char *path)
{
    bool is_empty = true;
    DIR *listing = opendir(path);
    if (listing == NULL)
        return false;
    for (struct dirent *entry; is_empty && (entry = readdir(listing)) != NULL;)
        is_empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    closedir(listing);
    return is_empty;
}

/* Locks the folder against another dump. A file system without such locks is no error. */
static enum lmcs_status lock_folder(struct dump *dump, const char *path)
{
    struct stat locked, there;
    dump->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dump->folder < 0)
        return errno == ENOTDIR ? LMCS_OK : cli_fail(dump->cli, LMCS_IO, errno, "%s can't be opened", path);
    bool is_busy = flock(dump->folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!is_busy && fstat(dump->folder, &locked) == 0) /* one that failed may have removed it before the lock */
        is_busy = stat(path, &there) != 0 || locked.st_dev != there.st_dev || locked.st_ino != there.st_ino;
    if (is_busy)
        return cli_fail(dump->cli, LMCS_IN_USE, 0, "another dump writes %s: dump into another folder", path);
    return LMCS_OK;
}

static void close_folder(struct dump *dump)
{
    if (dump->folder >= 0)
        close(dump->folder);
    dump->folder = -1;
}

static enum lmcs_status make_folder(struct dump *dump, const char *path)
{
    struct cli *cli = dump->cli;
    bool is_new = mkdir(path, 0777) == 0;
    if (!is_new && errno != EEXIST)
        return cli_fail(cli, LMCS_IO, errno, "%s can't be created", path);
    enum lmcs_status status = lock_folder(dump, path);
    if (status == LMCS_OK && is_new)
        status = cli_sync_parent(cli, path);
    if (status == LMCS_OK && !is_empty_folder(path))
        status = cli_fail(cli, LMCS_EXISTS, 0,
                          "%s exists: dump into a new folder. If a dump that was cut short left it, remove it", path);
    if (status != LMCS_OK)
        close_folder(dump);
    return status;
}

static void report_done(struct dump *dump)
{
    struct cli *cli = dump->cli;
    if (dump->missing_parts > 0)
        fprintf(stderr, "lmc-store: %" PRIu64 " parts are missing: %s\n", dump->missing_parts, dump->missing);
    if (cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "folder", cli_json_text(cli->options.output));
        cli_json_set(cli->json, "snapshots", cli_json_u64(dump->report.snapshots));
        cli_json_set(cli->json, "archives", cli_json_u64(dump->made_count + 1));
        cli_json_set(cli->json, "contents", cli_json_u64(dump->report.contents));
        cli_json_set(cli->json, "bytes", cli_json_u64(dump->report.bytes));
        cli_json_set(cli->json, "missing_parts", cli_json_u64(dump->missing_parts));
        return;
    }
    fputs("wrote ", stdout);
    cli_print(stdout, cli->options.output);
    printf(": %" PRIu64 " snapshot%s in %zu archives, %" PRIu64 " contents, %s\n", dump->report.snapshots,
           cli_s(dump->report.snapshots), dump->made_count + 1, dump->report.contents,
           cli_bytes(dump->report.bytes).text);
}

/* Frees the lists and unlocks the folder; after a failure also removes what the dump made. */
static void finish(struct dump *dump, const char *folder, bool is_done)
{
    while (dump->made_count > 0) {
        char *path = dump->made[--dump->made_count];
        if (!is_done)
            unlink(path);
        free(path);
    }
    if (!is_done)
        (void)rmdir(folder);
    while (dump->shelf_count > 0)
        free(dump->shelves[--dump->shelf_count]);
    free(dump->older);
    free(dump->made);
    free(dump->shelves);
    free(dump->records.items);
    free(dump->parts.items);
    close_folder(dump);
}

enum lmcs_status cli_folder_dump(struct cli *cli)
{
    struct dump dump = {.cli = cli, .output.fd = -1, .folder = -1};
    const char *folder = cli->options.output;
    char *path = NULL;
    enum lmcs_status status = check_options(cli);
    if (status == LMCS_OK)
        status = cli_open(cli, LMCS_OPEN_READ);
    if (status == LMCS_OK)
        status = make_folder(&dump, folder);
    if (status != LMCS_OK)
        return status;
    dump.progress = cli_progress_start(cli);
    cli->progress.is_bytes = true;
    path = cli_folder_path(folder, CLI_RECORDS_ARCHIVE);
    if (path == NULL)
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_OK)
        status = lmcs_outfile_open(path, 0, &dump.output, &cli->error);
    if (status == LMCS_OK)
        status = note_older(&dump);
    if (status == LMCS_OK)
        status = dump_pool(&dump, cli->pool, CLI_RECORDS_ARCHIVE, cli->options.arguments + 1,
                           cli->options.argument_count - 1, dump.output.fd, &dump.report);
    if (status == LMCS_OK)
        status = list_parts(&dump);
    if (status == LMCS_OK)
        status = dump_ranks(&dump);
    if (status == LMCS_OK)
        status = lmcs_outfile_commit(&dump.output, &cli->error);
    lmcs_outfile_close(&dump.output);
    if (status == LMCS_OK)
        report_done(&dump);
    finish(&dump, folder, status == LMCS_OK);
    free(path);
    return status;
}
