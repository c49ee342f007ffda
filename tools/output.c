/* SPDX-License-Identifier: BSD-3-Clause */
/* output.c - checks and opens the output of -o (base/outfile.h). */
#include "cli.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool cli_output_is_stdout(const struct cli *cli)
{
    return cli->options.output == NULL || strcmp(cli->options.output, "-") == 0;
}

static bool is_same_file(const char *left, const char *right)
{
    struct stat l;
    struct stat r;
    return stat(left, &l) == 0 && stat(right, &r) == 0 && l.st_dev == r.st_dev && l.st_ino == r.st_ino;
}

enum lmcs_status cli_output_check_path(struct cli *cli, const char *option, const char *path, const char *input,
                                       const char *input_is)
{
    const char *command = cli->command->name;
    struct lmcs_error error;
    if (is_same_file(path, input))
        return cli_wrong_use(cli, "%s: %s %s is %s itself", command, option, path, input_is);
    enum lmcs_status status = lmcs_outfile_check(path, &error);
    if (status == LMCS_INVALID)
        return cli_wrong_use(cli, "%s: %s %s", command, option, error.message);
    return status == LMCS_OK ? LMCS_OK : cli_fail(cli, status, 0, "%s: %s %s", command, option, error.message);
}

enum lmcs_status cli_output_check(struct cli *cli, const char *output_is, const char *input, const char *input_is)
{
    const char *command = cli->command->name;
    if (!cli_output_is_stdout(cli))
        return cli_output_check_path(cli, "-o", cli->options.output, input, input_is);
    if (isatty(STDOUT_FILENO) != 0)
        return cli_wrong_use(cli, "%s: refuses to write %s to a terminal; use -o FILE or a pipe", command, output_is);
    if (cli->options.json)
        return cli_wrong_use(cli, "%s: --json needs -o FILE, because %s goes to standard output", command, output_is);
    return LMCS_OK;
}

enum lmcs_status cli_output_check_new(struct cli *cli)
{
    struct stat info;
    if (cli->options.force || cli_output_is_stdout(cli) || stat(cli->options.output, &info) != 0 ||
        !S_ISREG(info.st_mode) || info.st_size == 0)
        return LMCS_OK;
    return cli_fail(cli, LMCS_EXISTS, 0, "%s: -o %s exists: name a new file, or replace it by --force",
                    cli->command->name, cli->options.output);
}

enum lmcs_status cli_output_open(struct cli *cli, struct lmcs_outfile *output)
{
    const char *path = cli_output_is_stdout(cli) ? "-" : cli->options.output;
    struct stat info;
    /* A caught signal removes the temporary file of a regular output. Uncaught, it ends the open of a FIFO, which waits
     * for its reader. */
    if (!cli_output_is_stdout(cli) && (stat(path, &info) != 0 || S_ISREG(info.st_mode)))
        cli_catch_signals();
    return lmcs_outfile_open(path, 0, output, &cli->error);
}
