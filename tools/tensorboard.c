/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tensorboard.c - writes the metrics of a shelf as an event file of TensorBoard.
 *
 * The file is a TFRecord file: each record is its length (u64), a checksum of that, the data, and a checksum of these;
 * all little-endian. The data is a message Event of protobuf: wall_time 1, step 2, file_version 3, summary 5, of values
 * 1 with tag 1 and simple_value 2.
 */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* protobuf's wire types */

struct events {
    struct cli *cli;
    struct lmcs_shelf_info info;
    FILE *out; /* to `text` */
    char *text;
    size_t bytes;
    uint64_t snapshots; /* with metrics */
    uint64_t values;
    struct cli_passed passed;
};

/* ---- Records -------------------------------------------------------------------------------------------------- */

/* The CRC-32C of bytes, rotated and shifted as TFRecord does. */
static uint32_t masked_crc(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82f63b78 & -(crc & 1));
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static void put_record(FILE *out, const char *data, size_t bytes)
{
    uint64_t length = bytes;
    uint32_t crc = masked_crc(&length, sizeof length);
    fwrite(&length, sizeof length, 1, out);
    fwrite(&crc, sizeof crc, 1, out);
    fwrite(data, 1, bytes, out);
    crc = masked_crc(data, bytes);
    fwrite(&crc, sizeof crc, 1, out);
}

/* ---- Messages ------------------------------------------------------------------------------------------------- */

static void put_varint(FILE *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        fputc((int)(value & 0x7f) | 0x80, out);
    fputc((int)value, out);
}

static void put_key(FILE *out, unsigned field, unsigned type)
{
    put_varint(out, field << 3 | type);
}

static void put_bytes(FILE *out, unsigned field, const char *bytes, size_t count)
{
    put_key(out, field, BYTES);
    put_varint(out, count);
    fwrite(bytes, 1, count, out);
}

static void put_wall_time(FILE *out, uint64_t time_ns)
{
    double seconds = (double)time_ns / 1e9;
    put_key(out, 1, FIXED64);
    fwrite(&seconds, sizeof seconds, 1, out);
}

/* A message that is written to memory. */
struct message {
    FILE *out; /* NULL: no memory */
    char *text;
    size_t bytes;
};

static struct message *begin(struct message *message)
{
    *message = (struct message){.text = NULL};
    message->out = open_memstream(&message->text, &message->bytes);
    return message->out != NULL ? message : NULL;
}

/* Ends the writing; false: no memory. The caller frees `text`. */
static bool end(struct message *message)
{
    bool is_good = ferror(message->out) == 0;
    return fclose(message->out) == 0 && is_good;
}

static bool put_value(FILE *summary, const struct lmcs_metric *metric)
{
    struct message value;
    float number = (float)metric->value;
    if (begin(&value) == NULL)
        return false;
    put_bytes(value.out, 1, metric->name, strlen(metric->name));
    put_key(value.out, 2, FIXED32);
    fwrite(&number, sizeof number, 1, value.out);
    bool is_good = end(&value);
    if (is_good)
        put_bytes(summary, 1, value.text, value.bytes);
    free(value.text);
    return is_good;
}

static bool put_summary(FILE *event, const struct lmcs_snapshot_info *info)
{
    struct message summary;
    if (begin(&summary) == NULL)
        return false;
    bool is_good = true;
    for (size_t i = 0; is_good && i < info->metric_count; i++)
        is_good = put_value(summary.out, &info->metrics[i]);
    is_good = end(&summary) && is_good;
    if (is_good)
        put_bytes(event, 5, summary.text, summary.bytes);
    free(summary.text);
    return is_good;
}

/* `info` NULL: the first event, which has the version. */
static bool put_event(FILE *out, uint64_t time_ns, const struct lmcs_snapshot_info *info)
{
    static const char version[] = "brain.Event:2";
    struct message event;
    if (begin(&event) == NULL)
        return false;
    put_wall_time(event.out, time_ns);
    bool is_good = true;
    if (info == NULL) {
        put_bytes(event.out, 3, version, sizeof version - 1);
    } else {
        put_key(event.out, 2, VARINT);
        put_varint(event.out, info->step != LMCS_NO_STEP ? (uint64_t)info->step : info->number);
        is_good = put_summary(event.out, info);
    }
    is_good = end(&event) && is_good;
    if (is_good)
        put_record(out, event.text, event.bytes);
    free(event.text);
    return is_good;
}

/* ---- The snapshots -------------------------------------------------------------------------------------------- */

static enum lmcs_status add_snapshot(struct events *events, uint64_t number)
{
    struct cli *cli = events->cli;
    struct lmcs_snapshot *snapshot = NULL;
    char which[24];
    snprintf(which, sizeof which, "%" PRIu64, number);
    enum lmcs_status status = lmcs_snapshot_find(cli->pool, events->info.name, which, &snapshot, &cli->error);
    if (status != LMCS_OK) /* it was removed meanwhile, or is damaged */
        return status == LMCS_NOT_FOUND ? LMCS_OK : cli_pass(cli, &events->passed, status);
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    if (info->metric_count > 0) {
        events->snapshots++;
        events->values += info->metric_count;
        if (!put_event(events->out, info->time_ns, info))
            status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    }
    lmcs_snapshot_close(snapshot);
    return status;
}

static enum lmcs_status add_range(struct events *events, uint64_t first, uint64_t last)
{
    enum { SOME = 256 };
    struct cli *cli = events->cli;
    uint64_t numbers[SOME];
    enum lmcs_status status = LMCS_OK;
    for (size_t got = SOME; status == LMCS_OK && got == SOME && first <= last;) {
        status = lmcs_snapshot_numbers(cli->pool, events->info.name, first, numbers, SOME, &got, &cli->error);
        status = cli_pass(cli, &events->passed, status);
        for (size_t i = 0; status == LMCS_OK && i < got && numbers[i] <= last; i++)
            status = add_snapshot(events, numbers[i]);
        first = got > 0 ? numbers[got - 1] + 1 : first;
    }
    return status;
}

/* Finds the shelf of "run" or "run@5..9", or the pool's only one. */
static enum lmcs_status choose(struct events *events, const char *part, uint64_t *first, uint64_t *last)
{
    struct cli *cli = events->cli;
    char name[LMCS_MAX_NAME + 1];
    size_t length = part != NULL ? strcspn(part, "@") : 0;
    *first = 1;
    *last = UINT64_MAX;
    if (part == NULL) {
        struct cli_shelves shelves;
        enum lmcs_status status = cli_shelves(cli, &shelves);
        if (status == LMCS_OK && shelves.count != 1)
            status = cli_wrong_use(cli, "export: the pool has %zu shelves; name one", shelves.count);
        if (status == LMCS_OK)
            events->info = shelves.infos[0];
        free(shelves.infos);
        return status;
    }
    if (length > LMCS_MAX_NAME)
        return cli_wrong_use(cli, "export: the shelf's name is too long");
    memcpy(name, part, length);
    name[length] = '\0';
    enum lmcs_status status = lmcs_shelf_info(cli->pool, name, &events->info, &cli->error);
    if (status == LMCS_OK && part[length] == '@')
        status = lmcs_snapshot_range_clip(cli->pool, name, part + length + 1, first, last, &cli->error);
    return status;
}

static enum lmcs_status write_file(struct events *events, const char *path)
{
    struct cli *cli = events->cli;
    struct lmcs_outfile file = {.fd = -1};
    enum lmcs_status status = lmcs_outfile_open(path, events->bytes, &file, &cli->error);
    if (status == LMCS_OK)
        status = lmcs_outfile_write(&file, events->text, events->bytes, &cli->error);
    if (status == LMCS_OK)
        status = lmcs_outfile_commit(&file, &cli->error);
    lmcs_outfile_close(&file);
    return status;
}

static void report(const struct events *events, const char *path)
{
    struct cli *cli = events->cli;
    if (!cli->options.json) {
        fputs("wrote ", stdout);
        cli_print(stdout, path);
        printf(": %" PRIu64 " value%s of %" PRIu64 " snapshot%s\n", events->values, cli_s(events->values),
               events->snapshots, cli_s(events->snapshots));
        return;
    }
    cli->json = json_object();
    cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
    cli_json_set(cli->json, "shelf", cli_json_text(events->info.name));
    cli_json_set(cli->json, "file", cli_json_text(path));
    cli_json_set(cli->json, "snapshots", cli_json_u64(events->snapshots));
    cli_json_set(cli->json, "values", cli_json_u64(events->values));
}

/* The name is that of the shelf and its creation, so that a later export replaces the file, and no other shelf's. */
static enum lmcs_status write_events(struct events *events)
{
    struct cli *cli = events->cli;
    const char *folder = cli->options.output;
    struct lmcs_pool_info pool;
    char *path = NULL;
    enum lmcs_status status = lmcs_pool_info(cli->pool, &pool, &cli->error);
    if (status != LMCS_OK)
        return status;
    uint64_t hash = lmc_hash64(pool.uuid, sizeof pool.uuid, 0);
    hash = lmc_hash64(events->info.name, strlen(events->info.name), hash);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return cli_fail(cli, LMCS_IO, errno, "%s can't be created", folder);
    if (asprintf(&path, "%s/events.out.tfevents.%010" PRIu64 ".%016" PRIx64 ".lmc-store", folder,
                 events->info.created_ns / 1000000000, hash) < 0)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    status = write_file(events, path);
    if (status == LMCS_OK)
        report(events, path);
    free(path);
    return status;
}

enum lmcs_status cli_export_tensorboard(struct cli *cli)
{
    uint64_t first, last;
    struct events events = {.cli = cli, .passed = {.status = LMCS_OK}};
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_READ);
    if (status == LMCS_OK)
        status = choose(&events, cli->options.arguments[1], &first, &last);
    if (status != LMCS_OK)
        return status;
    events.out = open_memstream(&events.text, &events.bytes);
    if (events.out == NULL || !put_event(events.out, events.info.created_ns, NULL))
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_OK)
        status = add_range(&events, first, last);
    bool is_bad = events.out != NULL && ferror(events.out) != 0;
    if (events.out != NULL && (fclose(events.out) != 0 || is_bad) && status == LMCS_OK)
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status == LMCS_OK)
        status = write_events(&events);
    free(events.text);
    return cli_passed(cli, &events.passed, status);
}
