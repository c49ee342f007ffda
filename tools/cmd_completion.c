/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cmd_completion.c - the completions of three shells and the manual page, from the tables of commands and options.
 *
 * The build and the Python wheel install this output, so a new command or option needs no other place.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* Calls `each` for every option of the command; NULL: every option of any command. */
static void each_option(const struct cli_command *command, void (*each)(const struct cli_option *option))
{
    struct cli_option option;
    for (size_t row = 0; cli_next_option(command, &row, &option); row++)
        each(&option);
}

/* Prints within single quotes: `quote` stands for one, and a backslash precedes the characters of `special`. */
static void put(const char *text, const char *quote, const char *special)
{
    for (; *text != '\0'; text++)
        if (*text == '\'')
            fputs(quote, stdout);
        else
            printf("%s%c", strchr(special, *text) != NULL ? "\\" : "", *text);
}

/* ---- bash ------------------------------------------------------------------------------------------------------- */

static void bash_word(const struct cli_option *option)
{
    if (option->name != NULL)
        printf(" --%s", option->name);
    else
        printf(" -%c", option->letter);
}

/* A word before a value that is no file. */
static void bash_value(const struct cli_option *option)
{
    if (option->argument == NULL || option->is_path)
        return;
    if (option->name != NULL)
        printf(" | --%s", option->name);
    if (option->letter != '\0')
        printf(" | -%c", option->letter);
}

static void bash(void)
{
    fputs("# Completion of lmc-store for bash: lmc-store completion bash\n"
          "_lmc_store()\n"
          "{\n"
          "    local words=\n"
          "    case $3 in\n"
          "        no-option",
          stdout);
    each_option(NULL, bash_value);
    fputs(")\n"
          "            COMPREPLY=()\n"
          "            return\n"
          "            ;;\n"
          "    esac\n"
          "    ((COMP_CWORD > 1)) && case ${COMP_WORDS[1]} in\n",
          stdout);
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        const struct cli_command *command = cli_commands[i];
        printf("        %s) words=\"%s", command->name, command->values != NULL ? command->values : "");
        each_option(command, bash_word);
        fputs("\" ;;\n", stdout);
    }
    fputs("    esac\n"
          "    ((COMP_CWORD == 1)) && words=\"--help --version",
          stdout);
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        printf(" %s", cli_commands[i]->name);
    for (size_t i = 0; cli_externals[i].name != NULL; i++)
        printf(" %s", cli_externals[i].name);
    fputs("\"\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$2\")\n"
          "    if ((COMP_CWORD > 1)) && [[ $2 != -* && (${#COMPREPLY[@]} == 0 || $words == \" -\"*) ]]; then\n"
          "        compopt -o filenames\n"
          "        mapfile -t COMPREPLY < <(compgen -f -- \"$2\")\n"
          "    fi\n"
          "}\n"
          "complete -F _lmc_store lmc-store\n",
          stdout);
}

/* ---- zsh -------------------------------------------------------------------------------------------------------- */

static void zsh_words(const char *name, const char *summary)
{
    printf("        '%s:", name);
    put(summary, "'\\''", ":\\");
    fputs("'\n", stdout);
}

static void zsh_option(const struct cli_option *option)
{
    char letter[] = {'-', option->letter, '\0'};
    fputs(" '", stdout);
    if (option->name != NULL && option->letter != '\0')
        printf("(%s --%s)'{%s,--%s%s}'", letter, option->name, letter, option->name,
               option->argument != NULL ? "=" : "");
    else if (option->name != NULL)
        printf("*--%s%s", option->name, option->argument != NULL ? "=" : "");
    else
        fputs(letter, stdout);
    fputs("[", stdout);
    put(option->help, "'\\''", "[]:\\");
    fputs("]", stdout);
    if (option->argument != NULL)
        printf(":%s:%s", option->argument, option->is_path ? "_files" : " ");
    fputs("'", stdout);
}

static void zsh(void)
{
    fputs("#compdef lmc-store\n"
          "# Completion of lmc-store for zsh: lmc-store completion zsh\n"
          "_lmc-store() {\n"
          "    local command=$words[2]\n"
          "    local -a commands=(\n",
          stdout);
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        zsh_words(cli_commands[i]->name, cli_commands[i]->summary);
    for (size_t i = 0; cli_externals[i].name != NULL; i++)
        zsh_words(cli_externals[i].name, cli_externals[i].summary);
    fputs("    )\n"
          "    if ((CURRENT == 2)); then\n"
          "        _describe -t commands command commands\n"
          "        return\n"
          "    fi\n"
          "    shift words\n"
          "    ((CURRENT--))\n"
          "    case $command in\n",
          stdout);
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        printf("        %s) _arguments -s", cli_commands[i]->name);
        each_option(cli_commands[i], zsh_option);
        if (cli_commands[i]->values != NULL)
            printf(" '1:word:(%s)' ;;\n", cli_commands[i]->values);
        else
            fputs(" '*:file:_files' ;;\n", stdout);
    }
    fputs("        *) _files ;;\n"
          "    esac\n"
          "}\n"
          "if [[ $funcstack[1] == _lmc-store ]]; then _lmc-store \"$@\"; else compdef _lmc-store lmc-store; fi\n",
          stdout);
}

/* ---- fish ------------------------------------------------------------------------------------------------------- */

static const char *fish_command;

static void fish_option(const struct cli_option *option)
{
    printf("complete -c lmc-store -n '__fish_seen_subcommand_from %s'", fish_command);
    if (option->letter != '\0')
        printf(" -s %c", option->letter);
    if (option->name != NULL)
        printf(" -l %s", option->name);
    printf("%s -d '", option->argument == NULL ? "" : option->is_path ? " -r -F" : " -x");
    put(option->help, "\\'", "\\");
    fputs("'\n", stdout);
}

static void fish_word(const char *name, const char *summary)
{
    printf("complete -c lmc-store -n __fish_use_subcommand -f -a %s -d '", name);
    put(summary, "\\'", "\\");
    fputs("'\n", stdout);
}

static void fish(void)
{
    fputs("# Completion of lmc-store for fish: lmc-store completion fish\n", stdout);
    for (size_t i = 0; cli_externals[i].name != NULL; i++)
        fish_word(cli_externals[i].name, cli_externals[i].summary);
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        fish_command = cli_commands[i]->name;
        fish_word(fish_command, cli_commands[i]->summary);
        each_option(cli_commands[i], fish_option);
        if (cli_commands[i]->values != NULL)
            printf("complete -c lmc-store -n '__fish_seen_subcommand_from %s' -f -a '%s'\n", fish_command,
                   cli_commands[i]->values);
    }
}

/* ---- The manual page -------------------------------------------------------------------------------------------- */

/* Prints text as it is laid out; roff acts on backslashes, on hyphens, and on dots and quotes that begin a line. */
static void man_text(const char *text)
{
    fputs(".EX\n", stdout);
    for (bool begins = true; *text != '\0'; begins = *text++ == '\n') {
        if (begins && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        if (*text == '\\')
            fputs("\\e", stdout);
        else
            printf("%s%c", *text == '-' ? "\\" : "", *text);
    }
    fputs(".EE\n", stdout);
}

static enum lmcs_status man(struct cli *cli)
{
    printf(".TH LMC\\-STORE 1 \"\" \"lmc\\-store %d.%d.%d\"\n"
           ".SH NAME\nlmc\\-store \\- a versioned tensor store for training runs\n"
           ".SH SYNOPSIS\n.B lmc\\-store\n.I COMMAND\n\\&...\n.SH DESCRIPTION\n",
           LMCS_VERSION_MAJOR, LMCS_VERSION_MINOR, LMCS_VERSION_PATCH);
    for (size_t i = 0;; i++) {
        struct cli_held held;
        enum lmcs_status status = cli_hold(cli, &held);
        if (status != LMCS_OK)
            return status;
        i == 0 ? cli_print_usage(held.stream) : cli_print_help(cli_commands[i - 1], held.stream);
        if (fclose(held.stream) != 0)
            status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
        else
            man_text(held.text);
        free(held.text);
        if (status != LMCS_OK || cli_commands[i] == NULL)
            return status;
        printf("%s.SS %s\n", i == 0 ? ".SH COMMANDS\n" : "", cli_commands[i]->name);
    }
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

static enum lmcs_status run_completion(struct cli *cli)
{
    const char *word = cli->options.arguments[0];
    if (strcmp(word, "man") == 0)
        return man(cli);
    if (strcmp(word, "bash") == 0)
        bash();
    else if (strcmp(word, "zsh") == 0)
        zsh();
    else if (strcmp(word, "fish") == 0)
        fish();
    else
        return cli_wrong_use(cli, "completion: '%.100s' is none of %s", word, cmd_completion.values);
    return LMCS_OK;
}

const struct cli_command cmd_completion = {
    .name = "completion",
    .synopsis = "bash|zsh|fish|man",
    .summary = "Prints the completions of a shell, or the manual page",
    .help = "An installed lmc-store has these files in place. Otherwise, for bash in ~/.bashrc:\n"
            "source <(lmc-store completion bash); for zsh after compinit in ~/.zshrc:\n"
            "source <(lmc-store completion zsh); for fish in ~/.config/fish/config.fish:\n"
            "lmc-store completion fish | source. The manual page: lmc-store completion man | man -l -.",
    .options = "",
    .values = "bash zsh fish man",
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run_completion,
};
