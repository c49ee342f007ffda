/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_info.c - lmc-store info: medium, contents and free space of a pool. */
#include "folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lmcstore_live.h"

static const char *medium_name(enum lmcs_medium medium)
{
    switch (medium) {
    case LMCS_MEDIUM_FILE:
        return "file";
    case LMCS_MEDIUM_MEMORY_FILE:
        return "memory file";
    case LMCS_MEDIUM_FSDAX:
        return "fsdax";
    case LMCS_MEDIUM_DEVDAX:
        return "devdax";
    }
    return "unknown";
}

static const char *health_name(int32_t health)
{
    static const char *const names[] = {"ok", "non-critical", "critical", "fatal"};
    return health >= 0 && health < 4 ? names[health] : "unknown";
}

static const char *background(const struct lmcs_pool_info *info)
{
    return info->compaction_error[0] != '\0' ? "stopped by an error"
           : info->compaction_paused         ? "paused"
           : info->compaction_running        ? "running"
                                             : "not running";
}

/* ---- For people ----------------------------------------------------------------------------------------------- */

static void label(const char *text)
{
    printf("%-13s", text);
}

static void print_medium(const struct lmcs_pool_info *info)
{
    label("medium");
    printf("%s on %s, ", medium_name(info->medium), info->file_system);
    if (info->is_persistent_memory && !info->forced)
        printf("persistent memory, persistence domain %s\n", info->persistence_domain);
    else
        printf("not persistent memory\n");
    if (info->forced) {
        label("");
        printf("PMEM_IS_PMEM_FORCE is set: data survives a kill, but not a power failure\n");
    }
    if (info->nvdimm_namespace[0] != '\0') {
        label("device");
        printf("namespace %s, health %s, %" PRIu64 " bad blocks, %" PRIu64 " unsafe shutdowns\n",
               info->nvdimm_namespace, health_name(info->device_health), info->bad_blocks, info->unsafe_shutdowns);
    }
    if (info->numa_node >= 0) {
        label("NUMA node");
        printf("%" PRId32 "\n", info->numa_node);
    }
}

/* A sparse file: ls -l shows a size that surprises. */
static void print_file(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= (off_t)info.st_blocks * 512)
        return;
    label("file");
    printf("%s on disk (du); the size in ls -l, %s, is address space of a sparse file\n",
           cli_bytes((uint64_t)info.st_blocks * 512).text, cli_bytes((uint64_t)info.st_size).text);
}

static void print_space(const struct lmcs_pool_info *info)
{
    label("used");
    printf("%s (%s live", cli_bytes(info->used_bytes).text, cli_bytes(info->live_bytes).text);
    printf(", %s of it metadata", cli_bytes(info->metadata_bytes).text);
    printf(" with %s reusable)\n", cli_bytes(info->metadata_free_bytes).text);
    print_file(info->path);
    label("free");
    printf("%s", cli_bytes(info->free_bytes).text);
    if (info->limit_bytes != 0)
        printf(" (limit %s)\n", cli_bytes(info->limit_bytes).text);
    else
        printf(" (as the disk allows)\n");
}

/* `is_folder`: the pool has records only, whose size tells nothing. */
static void print_contents(const struct lmcs_pool_info *info, const struct lmcs_live_usage *live, bool is_folder)
{
    label("holds");
    printf("%" PRIu64 " snapshot%s on %" PRIu64 " shel%s, %" PRIu64 " tensor contents%s\n", info->snapshot_count,
           cli_s(info->snapshot_count), info->shelf_count, info->shelf_count == 1 ? "f" : "ves", info->content_count,
           cli_remote(info->remote_count).text);
    if (info->damaged_shelves != 0) {
        label("");
        printf("%" PRIu64 " more shel%s, damaged\n", info->damaged_shelves, info->damaged_shelves == 1 ? "f" : "ves");
    }
    if (info->unsupported_shelves != 0) {
        label("");
        printf("%" PRIu64 " more shel%s, of a newer version\n", info->unsupported_shelves,
               info->unsupported_shelves == 1 ? "f" : "ves");
    }
    if (live->variables != 0) {
        label("");
        printf("%" PRIu64 " live variable%s of %s\n", live->variables, cli_s(live->variables),
               cli_bytes(live->bytes).text);
    }
    if (is_folder)
        return;
    label("a snapshot");
    if (info->last_snapshot_bytes != 0)
        printf("the newest took %s", cli_bytes(info->last_snapshot_bytes).text);
    else
        printf("size not known yet");
    if (info->snapshots_that_fit != UINT64_MAX)
        printf("; %" PRIu64 " more like it fit, before compaction", info->snapshots_that_fit);
    putchar('\n');
}

static void print_compaction(const struct lmcs_pool_info *info)
{
    label("compaction");
    printf("%" PRIu64 " snapshot%s wait%s for it", info->compaction_backlog, cli_s(info->compaction_backlog),
           info->compaction_backlog == 1 ? "s" : "");
    if (info->writable)
        printf("; %s", background(info));
    putchar('\n');
    if (info->compaction_error[0] != '\0') {
        label("");
        cli_print(stdout, info->compaction_error);
        putchar('\n');
    }
}

static void print_scrub(const struct lmcs_pool_info *info)
{
    label("scrub");
    if (info->scrubbed_ns != 0)
        printf("last whole pass ended at %s", cli_time(info->scrubbed_ns).text);
    else
        printf("no whole pass yet");
    if (info->scrub_share > 0)
        printf("; %.0f %% of the next one done", 100 * info->scrub_share);
    if (info->scrub_found > 0)
        printf("; %" PRIu64 " damage%s, %" PRIu64 " repaired", info->scrub_found, cli_s(info->scrub_found),
               info->scrub_repaired);
    putchar('\n');
    if (info->lost_contents > 0) {
        label("");
        printf("%" PRIu64 " tensor content%s lost in part; see 'lmc-store scrub --help'\n", info->lost_contents,
               cli_s(info->lost_contents));
    }
    if (info->parity_bytes > 0) {
        label("parity");
        printf("%s of the used space\n", cli_bytes(info->parity_bytes).text);
    }
}

static void print_info(const struct lmcs_pool_info *info, const struct lmcs_live_usage *live, bool is_folder)
{
    label("pool");
    cli_print(stdout, info->path);
    printf("\n");
    label("created");
    printf("%s, format %" PRIu32 "%s\n", cli_time(info->created_ns).text, info->format_version,
           info->writable ? "" : ", open for reading");
    print_medium(info);
    print_space(info);
    print_contents(info, live, is_folder);
    print_compaction(info);
    print_scrub(info);
    if (info->memory_bytes > 0) {
        label("memory");
        printf("%s for the newest states, from which captures make links\n", cli_bytes(info->memory_bytes).text);
    }
}

/* ---- For scripts ---------------------------------------------------------------------------------------------- */

static json_t *uuid_json(const unsigned char uuid[16])
{
    char text[33];
    for (size_t i = 0; i < 16; i++)
        snprintf(text + 2 * i, sizeof text - 2 * i, "%02x", uuid[i]);
    return json_string(text);
}

static json_t *medium_json(const struct lmcs_pool_info *info)
{
    json_t *json = json_object();
    cli_json_set(json, "kind", cli_json_text(medium_name(info->medium)));
    cli_json_set(json, "file_system", cli_json_text(info->file_system));
    cli_json_set(json, "persistence_domain", cli_json_text(info->persistence_domain));
    cli_json_set(json, "is_persistent_memory", json_boolean(info->is_persistent_memory));
    cli_json_set(json, "forced", json_boolean(info->forced));
    cli_json_set(json, "namespace", info->nvdimm_namespace[0] != '\0' ? cli_json_text(info->nvdimm_namespace) : NULL);
    cli_json_set(json, "numa_node", info->numa_node >= 0 ? json_integer(info->numa_node) : NULL);
    cli_json_set(json, "health", cli_json_text(health_name(info->device_health)));
    cli_json_set(json, "bad_blocks", cli_json_u64(info->bad_blocks));
    cli_json_set(json, "unsafe_shutdowns", cli_json_u64(info->unsafe_shutdowns));
    return json;
}

static json_t *compaction_json(const struct lmcs_pool_info *info)
{
    json_t *json = json_object();
    cli_json_set(json, "backlog", cli_json_u64(info->compaction_backlog));
    cli_json_set(json, "running", json_boolean(info->compaction_running));
    cli_json_set(json, "paused", json_boolean(info->compaction_paused));
    cli_json_set(json, "error", info->compaction_error[0] != '\0' ? cli_json_text(info->compaction_error) : NULL);
    return json;
}

static json_t *scrub_json(const struct lmcs_pool_info *info)
{
    json_t *json = json_object();
    cli_json_set(json, "last", info->scrubbed_ns != 0 ? json_real((double)info->scrubbed_ns / 1e9) : NULL);
    cli_json_set(json, "share", json_real(info->scrub_share));
    cli_json_set(json, "found", cli_json_u64(info->scrub_found));
    cli_json_set(json, "repaired", cli_json_u64(info->scrub_repaired));
    cli_json_set(json, "lost_contents", cli_json_u64(info->lost_contents));
    return json;
}

static json_t *info_json(const struct lmcs_pool_info *info, const struct lmcs_live_usage *live)
{
    json_t *json = json_object(), *variables = json_object();
    cli_json_set(variables, "count", cli_json_u64(live->variables));
    cli_json_set(variables, "bytes", cli_json_u64(live->bytes));
    cli_json_set(json, "pool", cli_json_text(info->path));
    cli_json_set(json, "uuid", uuid_json(info->uuid));
    cli_json_set(json, "format_version", cli_json_u64(info->format_version));
    cli_json_set(json, "created", json_real((double)info->created_ns / 1e9));
    cli_json_set(json, "writable", json_boolean(info->writable));
    cli_json_set(json, "medium", medium_json(info));
    cli_json_set(json, "limit_bytes", info->limit_bytes != 0 ? cli_json_u64(info->limit_bytes) : NULL);
    cli_json_set(json, "used_bytes", cli_json_u64(info->used_bytes));
    cli_json_set(json, "live_bytes", cli_json_u64(info->live_bytes));
    cli_json_set(json, "metadata_bytes", cli_json_u64(info->metadata_bytes));
    cli_json_set(json, "metadata_free_bytes", cli_json_u64(info->metadata_free_bytes));
    cli_json_set(json, "free_bytes", cli_json_u64(info->free_bytes));
    cli_json_set(json, "epoch", cli_json_u64(info->epoch));
    cli_json_set(json, "shelf_count", cli_json_u64(info->shelf_count));
    cli_json_set(json, "damaged_shelves", cli_json_u64(info->damaged_shelves));
    cli_json_set(json, "unsupported_shelves", cli_json_u64(info->unsupported_shelves));
    cli_json_set(json, "memory_bytes", cli_json_u64(info->memory_bytes));
    cli_json_set(json, "snapshot_count", cli_json_u64(info->snapshot_count));
    cli_json_set(json, "remote_count", cli_json_u64(info->remote_count));
    cli_json_set(json, "content_count", cli_json_u64(info->content_count));
    cli_json_set(json, "live_variables", variables);
    cli_json_set(json, "last_snapshot_bytes", cli_json_u64(info->last_snapshot_bytes));
    cli_json_set(json, "snapshots_that_fit", cli_json_u64(info->snapshots_that_fit));
    cli_json_set(json, "compaction", compaction_json(info));
    cli_json_set(json, "parity_bytes", cli_json_u64(info->parity_bytes));
    cli_json_set(json, "scrub", scrub_json(info));
    return json;
}

/* Adds up the live variables of all readable shelves. Poolsets have none; other commands report damage. */
static enum lmcs_status count_live(struct cli *cli, struct lmcs_live_usage *live)
{
    struct cli_shelves shelves;
    enum lmcs_status status = cli_shelves(cli, &shelves);
    status = status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED ? LMCS_OK : status;
    for (size_t i = 0; i < shelves.count && status == LMCS_OK; i++) {
        struct lmcs_live_usage usage = {0};
        status = lmcs_live_usage(cli->pool, shelves.infos[i].name, &usage, &cli->error);
        if (status == LMCS_UNSUPPORTED || status == LMCS_DAMAGED)
            status = LMCS_OK;
        live->variables += usage.variables;
        live->bytes += usage.bytes;
    }
    free(shelves.infos);
    return status;
}

/* ---- Shelves -------------------------------------------------------------------------------------------------- */

struct lists {
    json_t *warnings, *due, *raw; /* for scripts; NULL: prints */
};

static void add_shelf(json_t *list, json_t *object, const struct lmcs_shelf_info *shelf)
{
    cli_json_set(object, "shelf", cli_json_text(shelf->name));
    json_array_append_new(list, object);
}

static void show_policy(const struct lists *lists, const struct lmcs_shelf_info *shelf, const struct cli_due *due,
                        const char *warning)
{
    if (lists->due == NULL && !cli_due_is_empty(due)) {
        label("policy");
        cli_print(stdout, shelf->name);
        printf(": %s\n", shelf->policy);
        cli_due_print(due, "             ");
    } else if (!cli_due_is_empty(due)) {
        add_shelf(lists->due, cli_due_json(due), shelf);
    }
    if (*warning == '\0')
        return;
    if (lists->warnings == NULL) {
        label("warning");
        cli_print(stdout, shelf->name);
        printf(": ");
        cli_print(stdout, warning);
        putchar('\n');
    } else {
        json_t *object = json_object();
        cli_json_set(object, "warning", cli_json_text(warning));
        add_shelf(lists->warnings, object, shelf);
    }
}

/* Shows the raw bytes of the newest snapshots, which the shelf's policy keeps raw. */
static enum lmcs_status show_raw(struct cli *cli, const struct lists *lists, const struct lmcs_shelf_info *shelf)
{
    uint64_t raw_bytes = 0;
    enum lmcs_status status = lmcs_shelf_raw_bytes(cli->pool, shelf->name, &raw_bytes, &cli->error);
    if (status != LMCS_OK || raw_bytes == 0)
        return status;
    if (lists->raw != NULL) {
        json_t *object = json_object();
        cli_json_set(object, "raw_bytes", cli_json_u64(raw_bytes));
        add_shelf(lists->raw, object, shelf);
        return LMCS_OK;
    }
    label("raw");
    cli_print(stdout, shelf->name);
    printf(": %s; if the run is finished, 'compact --finished' makes that smaller\n", cli_bytes(raw_bytes).text);
    return LMCS_OK;
}

static enum lmcs_status show_shelf(struct cli *cli, const struct lists *lists, const struct lmcs_shelf_info *shelf)
{
    struct lmcs_prune_report report = {0};
    enum lmcs_status status = cli->folder == NULL ? show_raw(cli, lists, shelf) : LMCS_OK;
    if (status != LMCS_OK || strstr(shelf->policy, " keep=all") != NULL)
        return status;
    struct cli_due due = cli_due_new(shelf);
    status = lmcs_prune(cli->pool, shelf->name, NULL, true, cli_due_note, &due, NULL, &report, &cli->error);
    if (status == LMCS_OK)
        show_policy(lists, shelf, &due, report.warning);
    cli_due_free(&due);
    return status;
}

/* Shows raw bytes, snapshots that the policies of readable shelves remove soon, and warnings about them. */
static enum lmcs_status show_shelves(struct cli *cli, const struct lists *lists)
{
    struct cli_shelves shelves;
    enum lmcs_status status = cli_shelves(cli, &shelves);
    status = status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED ? LMCS_OK : status;
    for (size_t i = 0; i < shelves.count && status == LMCS_OK; i++) {
        status = show_shelf(cli, lists, &shelves.infos[i]);
        if (status == LMCS_UNSUPPORTED || status == LMCS_DAMAGED || status == LMCS_NOT_FOUND)
            status = LMCS_OK;
    }
    free(shelves.infos);
    return status;
}

/* ---- Folders -------------------------------------------------------------------------------------------------- */

static void show_rank(struct cli *cli, const char *file, const struct lmcs_pool_info *info)
{
    if (cli->options.json) {
        struct lmcs_live_usage none = {0};
        cli_json_set(json_object_get(cli->json, "ranks"), file, info_json(info, &none));
        return;
    }
    label("rank");
    cli_print(stdout, file);
    printf(": %s used, %" PRIu64 " snapshot%s, %" PRIu64 " tensor contents%s\n", cli_bytes(info->used_bytes).text,
           info->snapshot_count, cli_s(info->snapshot_count), info->content_count, cli_remote(info->remote_count).text);
}

/* Shows the ranks' pools, and adds their bytes to `sum`. Unusable ones are reported at the end. */
static enum lmcs_status show_ranks(struct cli *cli, struct cli_passed *passed, struct lmcs_pool_info *sum)
{
    struct lmcs_pool *pool;
    struct lmcs_pool_info info;
    const char *file;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && (file = cli_folder_file(cli->folder, i)) != NULL; i++) {
        status = cli_folder_pool(cli, i, &pool);
        if (status == LMCS_OK)
            status = lmcs_pool_info(pool, &info, &cli->error);
        if (status == LMCS_OK) {
            show_rank(cli, file, &info);
            sum->used_bytes += info.used_bytes;
            sum->live_bytes += info.live_bytes;
            sum->remote_count = info.remote_count > sum->remote_count ? info.remote_count : sum->remote_count;
        }
        status = cli_pass(cli, passed, status);
    }
    return status;
}

/* Shows what the newest snapshot of a shelf lacks. */
static enum lmcs_status show_missing(struct cli *cli, const char *shelf)
{
    struct lmcs_snapshot *snapshot = NULL;
    struct cli_record record;
    enum lmcs_status status = lmcs_snapshot_find(cli->pool, shelf, NULL, &snapshot, &cli->error);
    if (status != LMCS_OK)
        return status == LMCS_NOT_FOUND ? LMCS_OK : status;
    status = cli_record_read(cli, snapshot, &record);
    for (size_t i = 0, file; status == LMCS_OK && i < record.part_count; i++) {
        status = cli_part_find(cli, shelf, &record.parts[i], &file);
        if (status != LMCS_NOT_FOUND)
            continue;
        status = LMCS_OK;
        if (cli->options.json) {
            json_array_append_new(json_object_get(cli->json, "missing"), cli_json_text(cli->error.message));
            continue;
        }
        label("missing");
        cli_print(stdout, cli->error.message);
        putchar('\n');
    }
    cli_record_free(&record);
    lmcs_snapshot_close(snapshot);
    return status;
}

/* `info` is of the records. */
static enum lmcs_status show_folder(struct cli *cli, struct cli_passed *passed, struct lmcs_pool_info *info)
{
    struct cli_shelves shelves = {.count = 0};
    if (cli->options.json) {
        cli_json_set(cli->json, "ranks", json_object());
        cli_json_set(cli->json, "missing", json_array());
    }
    enum lmcs_status status = show_ranks(cli, passed, info);
    if (status == LMCS_OK && cli->options.json) {
        cli_json_set(cli->json, "used_bytes", cli_json_u64(info->used_bytes));
        cli_json_set(cli->json, "live_bytes", cli_json_u64(info->live_bytes));
        cli_json_set(cli->json, "remote_count", cli_json_u64(info->remote_count));
    } else if (status == LMCS_OK) {
        label("all pools");
        printf("%s used", cli_bytes(info->used_bytes).text);
        printf(" (%s live)\n", cli_bytes(info->live_bytes).text);
    }
    if (status == LMCS_OK)
        status = cli_pass(cli, passed, cli_shelves(cli, &shelves));
    for (size_t i = 0; i < shelves.count && status == LMCS_OK; i++)
        status = cli_pass(cli, passed, show_missing(cli, shelves.infos[i].name));
    free(shelves.infos);
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    struct lmcs_pool_info info;
    struct lmcs_live_usage live = {0};
    struct lists lists = {NULL, NULL, NULL};
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_READ);
    if (status == LMCS_OK)
        status = lmcs_pool_info(cli->pool, &info, &cli->error);
    if (status == LMCS_OK)
        status = count_live(cli, &live);
    if (status != LMCS_OK)
        return status;
    if (cli->options.json) {
        cli->json = info_json(&info, &live);
        cli_json_set(cli->json, "warnings", lists.warnings = json_array());
        cli_json_set(cli->json, "due", lists.due = json_array());
        cli_json_set(cli->json, "raw", lists.raw = json_array());
    } else {
        print_info(&info, &live, cli->folder != NULL);
    }
    cli_show_pushed(cli, info.path);
    struct cli_passed passed = {.status = LMCS_OK};
    if (cli->folder != NULL)
        status = show_folder(cli, &passed, &info);
    if (status == LMCS_OK)
        status = show_shelves(cli, &lists);
    status = cli_passed(cli, &passed, status);
    if (status != LMCS_OK)
        return status;
    status = info.damaged_shelves > 0 ? LMCS_DAMAGED : LMCS_UNSUPPORTED;
    return info.damage[0] != '\0' ? cli_fail(cli, status, 0, "%s", info.damage) : LMCS_OK;
}

const struct cli_command cmd_info = {
    .name = "info",
    .synopsis = "POOL [--json]",
    .summary = "Shows the medium, space, and how many more snapshots fit",
    .help = "Works while another process writes to the pool. If a shelf is damaged, fails after printing the rest.\n"
            "\"raw\": payload bytes of the newest snapshots, by shelf, that 'compact --finished' would encode.\n"
            "\"pushed\": up to which snapshot a push brought each shelf to an object store, and how many follow.\n"
            "Of the folder of a run: the pool of its records, then those of its ranks. In JSON, \"used_bytes\" and\n"
            "\"live_bytes\" are of all.",
    .options = "force-network json",
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
