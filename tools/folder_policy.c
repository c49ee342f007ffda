/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * folder_policy.c - the policy of a run: the rules that choose snapshots are of its records, all other words are of the
 * ranks' pools.
 */
#include "folder.h"

#include <stdlib.h>
#include <string.h>

static bool has_key(const char *word, const char *key)
{
    size_t length = strlen(key);
    return strncmp(word, key, length) == 0 && word[length] == '=';
}

static bool is_of_records(const char *word)
{
    return has_key(word, "keep") || has_key(word, "budget") || has_key(word, "grace");
}

/* Appends the words of the records, or the others, to a text. */
static void add_words(const char *words, bool of_records, char *text)
{
    for (size_t length; *words != '\0'; words += length + strspn(words + length, " ")) {
        length = strcspn(words, " ");
        if (length == 0 || is_of_records(words) != of_records)
            continue;
        strcat(text, *text != '\0' ? " " : "");
        strncat(text, words, length);
    }
}

/* ---- The pools of the ranks ----------------------------------------------------------------------------------- */

/* Sets the words in each pool that has the shelf. */
static enum lmcs_status set_in_ranks(struct cli *cli, const char *shelf, const char *words)
{
    struct cli_writers writers;
    struct lmcs_shelf_info info;
    enum lmcs_status status = cli_writers_open(cli, &writers);
    for (size_t i = 0; status == LMCS_OK && i < writers.count; i++) {
        status = lmcs_shelf_info(writers.pools[i], shelf, &info, &cli->error);
        if (status == LMCS_OK)
            status = lmcs_shelf_set_policy(writers.pools[i], shelf, words, &cli->error);
        else if (status == LMCS_NOT_FOUND)
            status = LMCS_OK;
    }
    return cli_writers_close(cli, &writers, status);
}

enum lmcs_status cli_run_policy_set(struct cli *cli, const char *shelf, const char *words)
{
    struct lmcs_shelf_info info;
    struct lmcs_prune_report report;
    char *own = calloc(1, strlen(words) + 2), *others = calloc(1, strlen(words) + 2);
    enum lmcs_status status = own != NULL && others != NULL ? lmcs_shelf_info(cli->pool, shelf, &info, &cli->error)
                                                            : cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_OK) {
        add_words(words, true, own);
        add_words(words, false, others);
        /* all words are checked before the first change */
        status = lmcs_prune(cli->pool, shelf, words, true, NULL, NULL, NULL, &report, &cli->error);
    }
    if (status == LMCS_OK && *others != '\0')
        status = set_in_ranks(cli, shelf, others);
    if (status == LMCS_OK && *own != '\0')
        status = lmcs_shelf_set_policy(cli->pool, shelf, own, &cli->error);
    free(own);
    free(others);
    return status;
}

void cli_run_policy_show(struct cli *cli, struct lmcs_shelf_info *info)
{
    struct lmcs_shelf_info of_rank;
    struct lmcs_pool *pool;
    struct lmcs_error kept = cli->error;
    char text[2 * sizeof info->policy + 1] = "";
    for (size_t i = 0; *text == '\0' && cli_folder_file(cli->folder, i) != NULL; i++)
        if (cli_folder_pool(cli, i, &pool) == LMCS_OK &&
            lmcs_shelf_info(pool, info->name, &of_rank, &cli->error) == LMCS_OK)
            add_words(of_rank.policy, false, text);
    cli->error = kept;
    if (*text == '\0')
        return;
    add_words(info->policy, true, text);
    if (strlen(text) < sizeof info->policy)
        memcpy(info->policy, text, strlen(text) + 1);
}
