/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_safetensors.c - fuzz target for importing safetensors files.
 *
 * Imports the input unchanged, and with its header's length corrected (up to the last brace). An accepted file must
 * export, and the export be accepted.
 */
#include "support.h"

#include <fcntl.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void write_file(const uint8_t *bytes, size_t count)
{
    int fd = open(fuzz_place.file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0 && write(fd, bytes, count) == (ssize_t)count, NULL);
    close(fd);
}

static void remove_snapshot(struct lmcs_pool *pool, uint64_t number)
{
    struct lmcs_error error;
    REQUIRE(lmcs_snapshot_remove(pool, "run", number, false, NULL, &error) == LMCS_OK, &error);
}

static void round_trip(struct lmcs_pool *pool, uint64_t number)
{
    struct lmcs_transfer_report report;
    struct lmcs_snapshot *snapshot;
    struct lmcs_error error;
    uint64_t again;
    REQUIRE(lmcs_snapshot_find(pool, "run", NULL, &snapshot, &error) == LMCS_OK, &error);
    uint64_t tensors = lmcs_snapshot_info(snapshot)->tensor_count, raw_bytes = lmcs_snapshot_info(snapshot)->raw_bytes;
    REQUIRE(lmcs_export_safetensors(snapshot, NULL, fuzz_place.file, NULL, &report, &error) == LMCS_OK, &error);
    REQUIRE(report.left_out == 0, NULL);
    lmcs_snapshot_close(snapshot);
    REQUIRE(lmcs_import_safetensors(pool, "run", fuzz_place.file, NULL, NULL, &again, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_snapshot_find(pool, "run", NULL, &snapshot, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_snapshot_info(snapshot)->tensor_count == tensors, NULL);
    /* Long metadata is an attachment and counts. */
    REQUIRE(raw_bytes > 1000 || lmcs_snapshot_info(snapshot)->raw_bytes >= raw_bytes, NULL);
    lmcs_snapshot_close(snapshot);
    remove_snapshot(pool, number);
    remove_snapshot(pool, again);
}

static void try_file(struct lmcs_pool *pool, const uint8_t *bytes, size_t count)
{
    struct lmcs_error error = {.message = ""};
    uint64_t number;
    write_file(bytes, count);
    enum lmcs_status status = lmcs_import_safetensors(pool, "run", fuzz_place.file, NULL, NULL, &number, &error);
    if (status == LMCS_OK)
        round_trip(pool, number);
    else
        REQUIRE(status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED || status == LMCS_FULL, &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static struct lmcs_pool *pool;
    if (pool == NULL)
        pool = fuzz_new_pool();
    try_file(pool, bytes, count);
    const uint8_t *brace = count > 8 ? memrchr(bytes + 8, '}', count - 8) : NULL;
    if (brace == NULL)
        return 0;
    uint64_t header_bytes = (uint64_t)(brace - bytes) + 1 - 8;
    uint8_t *copy = malloc(count);
    REQUIRE(copy != NULL, NULL);
    memcpy(copy, bytes, count);
    memcpy(copy, &header_bytes, sizeof header_bytes);
    if (memcmp(copy, bytes, sizeof header_bytes) != 0)
        try_file(pool, copy, count);
    free(copy);
    return 0;
}
