/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_policy.c - lmc-store policy: shows, changes or applies the policy of a shelf. */
#include "folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

/* Joins the words of a policy by spaces; NULL: no memory. */
static char *join_words(const struct cli *cli)
{
    size_t bytes = 1;
    for (int i = 2; i < CLI_MAX_ARGUMENTS && cli->options.arguments[i] != NULL; i++)
        bytes += strlen(cli->options.arguments[i]) + 1;
    char *words = calloc(1, bytes);
    for (int i = 2; words != NULL && i < CLI_MAX_ARGUMENTS && cli->options.arguments[i] != NULL; i++) {
        strcat(words, *words != '\0' ? " " : "");
        strcat(words, cli->options.arguments[i]);
    }
    return words;
}

struct listing {
    struct cli *cli;
    json_t *removed;
    uint64_t shown;
    bool shows;     /* lists removed snapshots */
    bool has_bytes; /* the space is known: only a writer can compute it */
    struct cli_due due;
};

static bool list_one(void *context, const struct lmcs_pruned *snapshot)
{
    struct listing *listing = context;
    cli_due_note(&listing->due, snapshot);
    if (snapshot->why != NULL || !listing->shows)
        return true;
    if (listing->removed != NULL) {
        json_array_append_new(listing->removed, cli_json_u64(snapshot->number));
        return true;
    }
    if (listing->shown++ == 0)
        printf("%10s  %10s\n", "snapshot", "step");
    printf("%10" PRIu64 "  %10s\n", snapshot->number, cli_step(snapshot->step).text);
    return true;
}

/* `is_tried`: by words that are not set. */
static void report(struct cli *cli, const struct lmcs_shelf_info *info, const struct lmcs_prune_report *prune,
                   const struct listing *listing, bool is_tried)
{
    bool pruned = cli->options.prune && !cli->options.dry_run;
    if (cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "shelf", cli_json_text(info->name));
        cli_json_set(cli->json, "policy", cli_json_text(info->policy));
        cli_json_set(cli->json, "kept", cli_json_u64(prune->kept));
        cli_json_set(cli->json, pruned ? "removed" : "would_remove", listing->removed);
        cli_json_set(cli->json, "freed_bytes", listing->has_bytes ? cli_json_u64(prune->removal.freed_bytes) : NULL);
        cli_json_set(cli->json, "later_bytes", listing->has_bytes ? cli_json_u64(prune->removal.later_bytes) : NULL);
        cli_json_set(cli->json, "due", pruned || is_tried ? NULL : cli_due_json(&listing->due));
        cli_json_set(cli->json, "warning", *prune->warning != '\0' ? cli_json_text(prune->warning) : NULL);
        return;
    }
    cli_print(stdout, info->name);
    printf(": %s%s\n", info->policy, is_tried ? " (not set)" : "");
    printf("%s %" PRIu64 " snapshot%s, %s %" PRIu64, pruned ? "kept" : "keeps", prune->kept, cli_s(prune->kept),
           pruned ? "removed" : "would remove", prune->removed);
    if (prune->removed > 0 && listing->has_bytes)
        printf(": %s freed", cli_bytes(prune->removal.freed_bytes).text);
    if (prune->removal.later_bytes > 0)
        printf(", %s more after compaction", cli_bytes(prune->removal.later_bytes).text);
    putchar('\n');
    if (!pruned && !is_tried)
        cli_due_print(&listing->due, "");
    if (*prune->warning != '\0') {
        printf("warning: ");
        cli_print(stdout, prune->warning);
        putchar('\n');
    }
}

/* A missing shelf is created, which is reported: its name may be mistyped. */
static enum lmcs_status set_policy(struct cli *cli, const char *shelf, const char *words)
{
    struct lmcs_shelf_info info;
    struct lmcs_error missing;
    bool is_new = lmcs_shelf_info(cli->pool, shelf, &info, &missing) == LMCS_NOT_FOUND;
    enum lmcs_status status = lmcs_shelf_set_policy(cli->pool, shelf, words, &cli->error);
    if (status == LMCS_OK && is_new) {
        fputs("lmc-store: ", stderr);
        cli_print(stderr, missing.message);
        fputs(". The policy created it\n", stderr);
    }
    return status;
}

/* ---- Folders -------------------------------------------------------------------------------------------------- */

struct parts {
    struct cli *cli;
    uint64_t *numbers;
    size_t count;
    size_t capacity;
    bool is_full; /* no memory */
    struct cli_named_list named;
};

static bool note_number(void *context, const struct lmcs_pruned *snapshot)
{
    struct parts *parts = context;
    if (snapshot->why != NULL)
        return true;
    parts->is_full |= !lmcs_grow(&parts->numbers, &parts->capacity, parts->count, sizeof *parts->numbers);
    if (!parts->is_full)
        parts->numbers[parts->count++] = snapshot->number;
    return !parts->is_full;
}

/* Notes the snapshots that the rules do not keep, and their parts, before their records go. */
static enum lmcs_status note_parts(struct cli *cli, const char *shelf, const char *words, struct parts *parts)
{
    struct lmcs_prune_report prune;
    enum lmcs_status status = lmcs_prune(cli->pool, shelf, words, true, note_number, parts, NULL, &prune, &cli->error);
    if (parts->is_full)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    for (size_t i = 0; status == LMCS_OK && i < parts->count; i++) {
        status = cli_named_add(cli, &parts->named, shelf, parts->numbers[i]);
        if (status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED || status == LMCS_NOT_FOUND)
            status = LMCS_OK;
    }
    return status;
}

/* Prunes the records, then the parts in the ranks' pools. */
static enum lmcs_status prune_run(struct cli *cli, const char *shelf, const char *words, struct listing *listing,
                                  const struct lmcs_progress *progress, struct lmcs_prune_report *prune)
{
    bool dry = !cli->options.prune || cli->options.dry_run;
    struct parts parts = {.cli = cli};
    struct cli_swept swept = {.parts = 0};
    enum lmcs_status status = note_parts(cli, shelf, words, &parts);
    if (status == LMCS_OK)
        status = lmcs_prune(cli->pool, shelf, words, dry, list_one, listing, progress, prune, &cli->error);
    const struct cli_sweep_options options = {&parts.named, parts.numbers, parts.count, dry};
    if (status == LMCS_OK && (!dry || (listing->has_bytes && parts.count > 0)))
        status = cli_sweep(cli, shelf, &options, &swept);
    if (dry && swept.left > 0)
        listing->has_bytes = false;
    prune->removal.freed_bytes += swept.sum.freed_bytes;
    prune->removal.later_bytes += swept.sum.later_bytes;
    if (status == LMCS_OK && !dry)
        cli_swept_print(&swept);
    free(parts.numbers);
    free(parts.named.items);
    return status;
}

/* ---- The command ---------------------------------------------------------------------------------------------- */

static bool is_writable(struct cli *cli)
{
    struct lmcs_pool_info info;
    struct lmcs_error error;
    return lmcs_pool_info(cli->pool, &info, &error) == LMCS_OK && info.writable;
}

static enum lmcs_status open_pool(struct cli *cli, bool changes)
{
    if (cli->options.dry_run)
        return cli_open_any(cli);
    return cli_open(cli, changes ? LMCS_OPEN_WRITE : LMCS_OPEN_READ);
}

static enum lmcs_status run(struct cli *cli)
{
    const char *shelf = cli->options.arguments[1];
    bool changes = (cli->options.arguments[2] != NULL || cli->options.prune) && !cli->options.dry_run;
    struct lmcs_shelf_info info;
    struct lmcs_prune_report prune = {0};
    struct listing listing = {.cli = cli,
                              .removed = cli->options.json ? json_array() : NULL,
                              .shows = cli->options.prune || cli->options.dry_run || cli->options.json};
    char *words = join_words(cli);
    enum lmcs_status status = words != NULL ? open_pool(cli, changes) : cli_fail(cli, LMCS_NO_MEMORY, 0, "no memory");
    listing.has_bytes = status == LMCS_OK && is_writable(cli);
    if (status == LMCS_OK && changes && *words != '\0')
        status = cli->folder != NULL ? cli_run_policy_set(cli, shelf, words) : set_policy(cli, shelf, words);
    if (status == LMCS_OK)
        status = lmcs_shelf_info(cli->pool, shelf, &info, &cli->error);
    if (status == LMCS_OK) {
        struct lmcs_progress progress = cli_progress_start(cli);
        listing.due = cli_due_new(&info);
        status = cli->folder != NULL
                     ? prune_run(cli, shelf, changes ? NULL : words, &listing, &progress, &prune)
                     : lmcs_prune(cli->pool, shelf, changes ? NULL : words, !(cli->options.prune && changes), list_one,
                                  &listing, &progress, &prune, &cli->error);
        cli_progress_wipe(&cli->progress);
    }
    if (status == LMCS_OK && cli->folder != NULL)
        cli_run_policy_show(cli, &info);
    bool is_tried = status == LMCS_OK && !changes && *words != '\0';
    if (is_tried)
        status = lmcs_policy_change(info.policy, words, &cli->error);
    if (status == LMCS_OK)
        report(cli, &info, &prune, &listing, is_tried);
    else
        json_decref(listing.removed);
    cli_due_free(&listing.due);
    free(words);
    return status;
}

/* Prints the keys of policies, from the store's table. */
static void print_keys(FILE *out)
{
    const struct lmcs_policy_key *key;
    for (size_t i = 0; (key = lmcs_policy_key(i)) != NULL; i++) {
        int width = 14 - (int)strlen(key->name) - 1;
        fprintf(out, "  %s=%-*s %s\n%17s%s (%s)\n", key->name, width > 0 ? width : 0, key->value, key->help, "",
                key->values, key->initial);
    }
    fprintf(
        out,
        "\nRules:\n"
        "  last:100        the newest 100\n"
        "  every:1000      one of every 1,000 steps\n"
        "  every:10/500    one of every 10 steps, among the newest 500\n"
        "  each:1h/7d      one per hour, not older than 7 days\n"
        "  best:loss:3     the 3 with the lowest loss (best:acc:3:max: the highest); every snapshot, while none has\n"
        "                  the metric\n\n"
        "The latest snapshot and tagged ones are always kept. The background prunes when it frees enough, after\n"
        "a change not before the grace period ends, unless the pool is full; --prune prunes now; --dry-run lists the\n"
        "snapshots that it would remove, and changes nothing; the bytes only while no other process\n"
        "writes. Without --prune, lists what is due, and when. Of the folder of a run, keep, budget and grace are of\n"
        "its records, and other words are set in all pools of its ranks. The budget is of all pools together: rank 0\n"
        "removes snapshots after a save, and so does 'compact'.\n"
        "--prune removes records, then the parts of the ranks, also those that an earlier removal has left.\n\n");
}

const struct cli_command cmd_policy = {
    .name = "policy",
    .synopsis = "POOL SHELF [WORD...] [--prune] [--dry-run] [--json]",
    .summary = "Shows or changes the policy of a shelf",
    .help =
        "Without words, shows the policy and how many snapshots it would remove. Words change it; each key with its\n"
        "values and, in brackets, the value without it:",
    .print_more = print_keys,
    .options = "prune dry-run wait force-network json",
    .min_arguments = 2,
    .max_arguments = CLI_MAX_ARGUMENTS,
    .run = run,
};
