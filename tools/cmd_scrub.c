/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_scrub.c - lmc-store scrub: reads stored bytes, reports damage and its effects, and repairs it. */
#include "folder.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *state_name(enum lmcs_damage_state state)
{
    static const char *const names[] = {[LMCS_DAMAGE_FOUND] = "damaged",
                                        [LMCS_DAMAGE_REPAIRED] = "repaired",
                                        [LMCS_DAMAGE_LOST] = "lost",
                                        [LMCS_DAMAGE_UNSUPPORTED] = "newer version"};
    return names[state];
}

/* ---- For scripts ---------------------------------------------------------------------------------------------- */

static json_t *holder_json(const struct lmcs_holder *holder)
{
    json_t *json = json_object();
    cli_json_set(json, "shelf", cli_json_text(holder->shelf));
    cli_json_set(json, "tensor", holder->tensor[0] != '\0' ? cli_json_text(holder->tensor) : NULL);
    cli_json_set(json, "first", cli_json_u64(holder->first));
    cli_json_set(json, "last", cli_json_u64(holder->last));
    cli_json_set(json, "count", cli_json_u64(holder->count));
    return json;
}

static json_t *damage_json(const struct lmcs_scrub_damage *damage)
{
    json_t *json = json_object(), *in = json_array();
    cli_json_set(json, "state", cli_json_text(state_name(damage->state)));
    cli_json_set(json, "what", cli_json_text(damage->what));
    cli_json_set(json, "source", damage->source[0] != '\0' ? cli_json_text(damage->source) : NULL);
    cli_json_set(json, "tensor", damage->tensor != NULL ? cli_json_text(damage->tensor->name) : NULL);
    cli_json_set(json, "first_byte", cli_json_u64(damage->first_byte));
    cli_json_set(json, "byte_count", cli_json_u64(damage->byte_count));
    cli_json_set(json, "first_element", cli_json_u64(damage->first_element));
    cli_json_set(json, "element_count", cli_json_u64(damage->element_count));
    cli_json_set(json, "first_row", cli_json_u64(damage->first_row));
    cli_json_set(json, "row_count", cli_json_u64(damage->row_count));
    for (size_t i = 0; i < damage->holder_count; i++)
        json_array_append_new(in, holder_json(&damage->holders[i]));
    cli_json_set(json, "in", in);
    return json;
}

static void report_json(struct cli *cli, enum lmcs_status status, const struct lmcs_scrub_report *report)
{
    cli_json_set(cli->json, "ok", json_boolean(status == LMCS_OK));
    cli_json_set(cli->json, "remote", cli_json_u64(report->remote));
    cli_json_set(cli->json, "contents", cli_json_u64(report->contents));
    cli_json_set(cli->json, "bytes_read", cli_json_u64(report->bytes_read));
    cli_json_set(cli->json, "bytes_total", cli_json_u64(report->bytes_total));
    cli_json_set(cli->json, "found", cli_json_u64(report->damages));
    cli_json_set(cli->json, "repaired", cli_json_u64(report->repaired));
    cli_json_set(cli->json, "lost", cli_json_u64(report->lost));
    cli_json_set(cli->json, "whole", json_boolean(report->is_whole));
    cli_json_set(cli->json, "sources_unread", cli_json_u64(report->sources_unread));
}

/* ---- For people ----------------------------------------------------------------------------------------------- */

static void print_holder(const struct lmcs_holder *holder)
{
    cli_print(stdout, holder->shelf);
    printf("@%" PRIu64, holder->first);
    if (holder->count > 1)
        printf("..%" PRIu64, holder->last);
}

/* Prints a range like "rows 256 to 511 (elements 262144 to 524287)". */
static void print_range(const struct lmcs_scrub_damage *damage)
{
    uint64_t last = damage->first_element + damage->element_count - (damage->element_count > 0);
    if (damage->tensor->ndim > 1 && damage->row_count > 0)
        printf(", rows %" PRIu64 " to %" PRIu64 " (elements %" PRIu64 " to %" PRIu64 ")", damage->first_row,
               damage->first_row + damage->row_count - 1, damage->first_element, last);
    else if (damage->element_count > 0)
        printf(", elements %" PRIu64 " to %" PRIu64, damage->first_element, last);
}

static void print_damage(const struct lmcs_scrub_damage *damage)
{
    printf("%s: ", state_name(damage->state));
    if (damage->tensor != NULL) {
        cli_print(stdout, damage->tensor->name);
        print_range(damage);
        fputs(": ", stdout);
    }
    cli_print(stdout, damage->what);
    if (damage->source[0] != '\0') {
        fputs("; repaired from ", stdout);
        cli_print(stdout, damage->source);
    }
    putchar('\n');
    for (size_t i = 0; i < damage->holder_count; i++) {
        const struct lmcs_holder *holder = &damage->holders[i];
        bool other_name = damage->tensor != NULL && strcmp(holder->tensor, damage->tensor->name) != 0;
        fputs(i == 0 ? "  in " : ", ", stdout);
        print_holder(holder);
        if (other_name) {
            fputs(" as ", stdout);
            cli_print(stdout, holder->tensor);
        }
    }
    if (damage->holder_count > 0)
        putchar('\n');
}

static void print_report(const struct lmcs_scrub_report *report)
{
    if (report->damages == 0)
        printf("no damage: ");
    else
        printf("%" PRIu64 " damage%s, %" PRIu64 " repaired: ", report->damages, cli_s(report->damages),
               report->repaired);
    printf("%" PRIu64 " contents, %s read%s", report->contents, cli_bytes(report->bytes_read).text,
           cli_remote(report->remote).text);
    puts(report->is_whole ? "; everything was checked" : "");
    if (report->lost > 0)
        printf("%" PRIu64 " content%s lost in part; use --repair --from an archive or a pool that has them\n",
               report->lost, cli_s(report->lost));
}

/* ---- The command ---------------------------------------------------------------------------------------------- */

/* A pool that is scrubbed; `file` NULL: the only one, or the records of a run. */
struct scrubbed {
    struct cli *cli;
    const char *file;
    struct lmcs_scrub_options options;
    struct lmcs_scrub_report sum;
    struct cli_passed passed;
    struct cli_places places; /* of a run's addresses */
};

static void visit(void *context, const struct lmcs_scrub_damage *damage)
{
    const struct scrubbed *scrubbed = context;
    struct cli *cli = scrubbed->cli;
    cli_progress_wipe(&cli->progress);
    if (cli->options.json) {
        json_t *json = damage_json(damage);
        if (cli->folder != NULL)
            cli_json_set(json, "file", scrubbed->file != NULL ? cli_json_text(scrubbed->file) : NULL);
        json_array_append_new(
            json_object_get(cli->json, damage->state == LMCS_DAMAGE_UNSUPPORTED ? "newer" : "damages"), json);
        return;
    }
    if (scrubbed->file != NULL) {
        cli_print(stdout, scrubbed->file);
        fputs(", ", stdout);
    }
    print_damage(damage);
}

/* Opens the pool for writing, to record the results; for reading if another process writes. */
static enum lmcs_status open_pool(struct cli *cli)
{
    return cli->options.repair ? cli_open(cli, LMCS_OPEN_WRITE) : cli_open_any(cli);
}

/* Keeps a pool's failure, and goes on to the next pool. One of a source or file outweighs damage, which is printed. */
static enum lmcs_status pass(struct scrubbed *scrubbed, enum lmcs_status status)
{
    struct cli_passed *passed = &scrubbed->passed;
    if (status == LMCS_OK || status == LMCS_CANCELLED || status == LMCS_NO_MEMORY || status == LMCS_INVALID)
        return status;
    if (passed->status != LMCS_DAMAGED && passed->status != LMCS_UNSUPPORTED && passed->status != LMCS_OK)
        return LMCS_OK;
    if (passed->status == LMCS_OK || (status != LMCS_DAMAGED && status != LMCS_UNSUPPORTED))
        *passed = (struct cli_passed){status, scrubbed->cli->error};
    return LMCS_OK;
}

/* Scrubs a pool, and adds its report. Failures are reported after all pools. */
static enum lmcs_status scrub(struct scrubbed *scrubbed, struct lmcs_pool *pool, const char *file)
{
    struct cli *cli = scrubbed->cli;
    struct lmcs_scrub_report report = {0}, *sum = &scrubbed->sum;
    scrubbed->file = file;
    struct lmcs_progress progress = cli_progress_start(cli);
    enum lmcs_status status = lmcs_scrub(pool, &scrubbed->options, visit, scrubbed, &progress, &report, &cli->error);
    cli_progress_wipe(&cli->progress);
    sum->remote = report.remote > sum->remote ? report.remote : sum->remote; /* of a run's pools: the most */
    sum->contents += report.contents;
    sum->bytes_read += report.bytes_read;
    sum->bytes_total += report.bytes_total;
    sum->damages += report.damages;
    sum->repaired += report.repaired;
    sum->lost += report.lost;
    sum->is_whole = report.is_whole && (file == NULL || sum->is_whole);
    sum->sources_unread += report.sources_unread;
    return pass(scrubbed, status);
}

/* ---- Folders -------------------------------------------------------------------------------------------------- */

/* Scrubs a rank's pool. */
static enum lmcs_status scrub_rank(struct scrubbed *scrubbed, size_t i, const char *file)
{
    struct cli *cli = scrubbed->cli;
    struct lmcs_pool *pool = NULL, *own = NULL;
    enum lmcs_status status = cli_folder_writable(cli, i, &own);
    pool = own;
    if (status == LMCS_IN_USE && !cli->options.repair)
        status = cli_folder_pool(cli, i, &pool);
    if (status == LMCS_OK) {
        status = scrub(scrubbed, pool, file);
    } else {
        scrubbed->sum.is_whole = false;
        status = pass(scrubbed, status);
    }
    if (own != NULL) {
        struct lmcs_error error;
        enum lmcs_status closed = lmcs_pool_close(own, &error);
        if (status == LMCS_OK && closed != LMCS_OK) {
            cli->error = error;
            status = pass(scrubbed, closed);
        }
    }
    return status;
}

/* Returns the path of a pool in a folder, or of its archive if there is only that. NULL: no memory. */
static char *copy_in(const char *folder, const char *file)
{
    struct stat info;
    char archive[NAME_MAX + 1];
    char *pool = cli_folder_path(folder, file);
    if (pool == NULL || lstat(pool, &info) == 0)
        return pool;
    snprintf(archive, sizeof archive, "%.*s" CLI_ARCHIVE, (int)(strlen(file) - strlen(".pool")), file);
    char *path = cli_folder_path(folder, archive);
    if (path != NULL && lstat(path, &info) == 0) {
        free(pool);
        return path;
    }
    free(path);
    return pool;
}

/* Replaces folders among the sources by their files of a pool. The caller frees these, whose bits are in *owned. */
static enum lmcs_status set_sources(struct scrubbed *scrubbed, const char *file, const char **sources, uint64_t *owned)
{
    struct cli *cli = scrubbed->cli;
    scrubbed->options.from = sources;
    scrubbed->options.from_count = 0;
    *owned = 0;
    for (size_t i = 0; i < cli->options.from.count; i++) {
        const char *source = cli->options.from.items[i];
        struct stat info;
        if (stat(source, &info) == 0 && S_ISDIR(info.st_mode)) {
            source = copy_in(source, file);
            if (source == NULL)
                return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
            *owned |= (uint64_t)1 << scrubbed->options.from_count;
        }
        sources[scrubbed->options.from_count++] = source;
    }
    return LMCS_OK;
}

/* Replaces the addresses by those of a rank's pool, which the caller frees. */
static enum lmcs_status set_addresses(struct scrubbed *scrubbed, size_t i, const char ***addresses)
{
    const struct cli_places *places = &scrubbed->places;
    scrubbed->options.addresses = *addresses = malloc((places->count + 1) * sizeof **addresses);
    scrubbed->options.address_count = 0;
    if (*addresses == NULL)
        return cli_fail(scrubbed->cli, LMCS_NO_MEMORY, 0, "out of memory");
    for (size_t k = 0; k < places->count; k++)
        if (places->items[k].file == i)
            (*addresses)[scrubbed->options.address_count++] = places->items[k].address;
    return LMCS_OK;
}

static enum lmcs_status scrub_file(struct scrubbed *scrubbed, size_t i, const char *file)
{
    const char *sources[CLI_MAX_LIST];
    uint64_t owned;
    enum lmcs_status status = set_sources(scrubbed, file != NULL ? file : CLI_RECORDS, sources, &owned);
    if (status == LMCS_OK)
        status = file != NULL ? scrub_rank(scrubbed, i, file) : scrub(scrubbed, scrubbed->cli->pool, NULL);
    for (size_t k = 0; k < scrubbed->options.from_count; k++)
        if ((owned >> k & 1) != 0)
            free((void *)sources[k]);
    return status;
}

/* Scrubs what a rank's pool has of the addresses. */
static enum lmcs_status scrub_parts(struct scrubbed *scrubbed, size_t i, const char *file)
{
    const char **addresses;
    enum lmcs_status status = set_addresses(scrubbed, i, &addresses);
    if (status == LMCS_OK && scrubbed->options.address_count > 0)
        status = scrub_file(scrubbed, i, file);
    free(addresses);
    return status;
}

static enum lmcs_status scrub_folder(struct scrubbed *scrubbed)
{
    struct cli *cli = scrubbed->cli;
    const char *file = NULL;
    size_t count = scrubbed->options.address_count;
    enum lmcs_status status = scrub_file(scrubbed, 0, NULL);
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = cli_places_add(cli, cli->options.arguments[1 + i], &scrubbed->places, &scrubbed->passed);
    for (size_t i = 0; status == LMCS_OK && (file = cli_folder_file(cli->folder, i)) != NULL; i++)
        status = count > 0 ? scrub_parts(scrubbed, i, file) : scrub_file(scrubbed, i, file);
    free(scrubbed->places.items);
    return status;
}

/* ---- The command ---------------------------------------------------------------------------------------------- */

static void set_options(const struct cli *cli, struct lmcs_scrub_options *options)
{
    lmcs_scrub_options_init(options);
    options->addresses = cli->options.arguments + 1;
    options->address_count = cli->options.argument_count - 1;
    options->sample_share = cli->options.sample_share;
    options->sample_bytes = cli->options.sample_bytes;
    options->rate_bytes = cli->options.rate_bytes;
    options->repair = cli->options.repair;
    options->from = cli->options.from.items;
    options->from_count = cli->options.from.count;
}

static enum lmcs_status run(struct cli *cli)
{
    struct scrubbed scrubbed = {.cli = cli, .passed = {.status = LMCS_OK}};
    const struct lmcs_scrub_options *options = &scrubbed.options;
    const struct lmcs_scrub_report *report = &scrubbed.sum;
    set_options(cli, &scrubbed.options);
    if (options->from_count > 0 && !options->repair)
        return cli_wrong_use(cli, "scrub: --from needs --repair");
    if (options->address_count > 0 && (options->sample_share > 0 || options->sample_bytes > 0))
        return cli_wrong_use(cli, "scrub: --sample is of the whole pool and takes no address");
    enum lmcs_status status = open_pool(cli);
    if (status != LMCS_OK)
        return status;
    if (cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "damages", json_array());
        cli_json_set(cli->json, "newer", json_array());
    }
    status = cli->folder != NULL ? scrub_folder(&scrubbed) : scrub(&scrubbed, cli->pool, NULL);
    status = cli_passed(cli, &scrubbed.passed, status);
    bool done = status == LMCS_OK || status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED || status == LMCS_FULL ||
                report->sources_unread > 0 || cli->folder != NULL;
    if (cli->options.json)
        report_json(cli, status, report);
    else if (done && report->contents > 0)
        print_report(report);
    return status;
}

const struct cli_command cmd_scrub = {
    .name = "scrub",
    .synopsis = "POOL [ADDRESS...] [--sample N%] [--rate SIZE] [--repair] [--from FILE]... [--json]",
    .summary = "Reads stored bytes, reports damage, and repairs it",
    .help =
        "Compares stored bytes with their checksums, without decoding. Prints each damage with its rows and elements\n"
        "and with every snapshot that needs it; the exit code is 1 if damage is left. With ADDRESS (run, run@7,\n"
        "run@5..9), reads only the contents that these need. A sample begins where the last one ended, so samples add\n"
        "up to the whole pool.\n\n"
        "--repair uses other copies: parity (see 'lmc-store policy --help'), the other replica of a poolset, a second\n"
        "copy in the pool, or an archive or pool of --from. It writes only bytes with the checksum that was recorded\n"
        "when they were saved. Contents that it can't repair are recorded as lost: they stay as they are, everything\n"
        "else stays usable, and reads of them report the missing rows. A later --repair that finds a copy removes the\n"
        "record. An unreadable FILE of --from is skipped if there are others; the exit code is then 1 in any case.\n\n"
        "A pool to which another process writes can be scrubbed, but not repaired; a shelf's policy scrub=30d makes\n"
        "the writing process do both, a little at a time.\n\n"
        "Of the folder of a run, all pools are scrubbed, or a sample of each, or their parts of each ADDRESS; FILE\n"
        "may be the folder of a copy or of a dump. A pool whose scrub fails does not keep the others from theirs.",
    .options = "sample rate repair from wait force-network json",
    .min_arguments = 1,
    .max_arguments = CLI_MAX_ARGUMENTS,
    .run = run,
};
