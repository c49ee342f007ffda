/* SPDX-License-Identifier: BSD-3-Clause */
/* text.c - sizes, times and names for people. Escapes all control characters of names, which are untrusted. */
#include "cli.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

struct cli_text cli_bytes(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct cli_text result;
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    int digits = unit == 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    snprintf(result.text, sizeof result.text, "%.*f %s", digits, value, units[unit]);
    return result;
}

struct cli_text cli_new_bytes(uint64_t bytes)
{
    return bytes != LMCS_BYTES_UNKNOWN ? cli_bytes(bytes) : (struct cli_text){"?"};
}

struct cli_text cli_time(uint64_t ns)
{
    struct cli_text result = {"-"};
    time_t seconds = (time_t)(ns / 1000000000);
    struct tm when;
    if (gmtime_r(&seconds, &when) != NULL)
        strftime(result.text, sizeof result.text, "%Y-%m-%dT%H:%M:%SZ", &when);
    return result;
}

struct cli_text cli_step(int64_t step)
{
    struct cli_text result = {"-"};
    if (step != LMCS_NO_STEP)
        snprintf(result.text, sizeof result.text, "%" PRId64, step);
    return result;
}

struct cli_text cli_remote(uint64_t count)
{
    struct cli_text result = {""};
    if (count != 0)
        snprintf(result.text, sizeof result.text, "; %" PRIu64 " remote", count);
    return result;
}

struct cli_text cli_ratio(uint64_t raw, uint64_t stored)
{
    struct cli_text result = {"-"};
    if (stored != 0)
        snprintf(result.text, sizeof result.text, "%.2fx", (double)raw / (double)stored);
    return result;
}

const char *cli_s(uint64_t count)
{
    return count == 1 ? "" : "s";
}

/* Decodes one UTF-8 character. Returns its bytes; 0: invalid. */
static size_t decode(const unsigned char *text, uint32_t *character)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t bytes = *text < 0x80                    ? 1
                   : *text >= 0xF0 && *text < 0xF5 ? 4
                   : *text >= 0xE0 && *text < 0xF0 ? 3
                   : *text >= 0xC2 && *text < 0xE0 ? 2
                                                   : 0;
    if (bytes < 2) {
        *character = *text;
        return bytes;
    }
    *character = *text & (0xFFu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 0;
        *character = *character << 6 | (text[i] & 0x3Fu);
    }
    bool is_valid =
        *character >= smallest[bytes] && *character <= 0x10FFFF && (*character < 0xD800 || *character > 0xDFFF);
    return is_valid ? bytes : 0;
}

/*
 * Whether a terminal obeys a character or shows nothing for it, so that two names could look alike: control and format
 * characters, line separators, surrogates, private characters (Unicode's Cc, Cf, Zl, Zp, Cs, Co), invisible unassigned
 * ones, noncharacters, and empty planes.
 */
static bool is_unsafe(uint32_t c)
{
    static const uint32_t ranges[][2] = {{0x0000, 0x001F},   {0x007F, 0x009F},   {0x00AD, 0x00AD},   {0x0600, 0x0605},
                                         {0x061C, 0x061C},   {0x06DD, 0x06DD},   {0x070F, 0x070F},   {0x0890, 0x0891},
                                         {0x08E2, 0x08E2},   {0x180E, 0x180E},   {0x200B, 0x200F},   {0x2028, 0x202E},
                                         {0x2060, 0x206F},   {0xD800, 0xF8FF},   {0xFDD0, 0xFDEF},   {0xFEFF, 0xFEFF},
                                         {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD}, {0x110CD, 0x110CD},
                                         {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0x1FFFE, 0x1FFFF},
                                         {0x2FFFE, 0x2FFFF}, {0x3FFFE, 0xE00FF}, {0xE01F0, 0x10FFFF}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && ranges[i][0] <= c; i++)
        if (c <= ranges[i][1])
            return true;
    return false;
}

void cli_print(FILE *out, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != 0) {
        uint32_t character = 0;
        size_t bytes = decode(at, &character);
        if (bytes == 0)
            fprintf(out, "\\x%02x", *at);
        else if (is_unsafe(character))
            fprintf(out,
                    character < 0x100     ? "\\x%02x"
                    : character < 0x10000 ? "\\u%04x"
                                          : "\\U%08x",
                    (unsigned)character);
        else
            fwrite(at, 1, bytes, out);
        at += bytes != 0 ? bytes : 1;
    }
}

enum lmcs_status cli_hold(struct cli *cli, struct cli_held *held)
{
    *held = (struct cli_held){NULL, NULL, 0};
    held->stream = open_memstream(&held->text, &held->bytes);
    return held->stream != NULL ? LMCS_OK : cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
}

enum lmcs_status cli_show(struct cli *cli, struct cli_held *held, enum lmcs_status status)
{
    bool has_all = ferror(held->stream) == 0;
    if ((fclose(held->stream) != 0 || !has_all) && status == LMCS_OK)
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_OK)
        fwrite(held->text, 1, held->bytes, stdout); /* flush_output checks ferror */
    free(held->text);
    return status;
}

void cli_warn_lines(const char *lines)
{
    for (const char *end; (end = strchr(lines, '\n')) != NULL; lines = end + 1) {
        char *line = strndup(lines, (size_t)(end - lines));
        fputs("lmc-store: warning: ", stderr);
        cli_print(stderr, line != NULL ? line : "out of memory");
        fputc('\n', stderr);
        free(line);
    }
}
