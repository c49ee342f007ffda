/* SPDX-License-Identifier: BSD-3-Clause */
/* folder_sizes.c - the sizes of a snapshot; of a run's, the sums of its parts. */
#include "folder.h"

#include <string.h>

static void add_storage(struct lmcs_snapshot_storage *sum, const struct lmcs_snapshot_storage *part)
{
    sum->stored_bytes += part->stored_bytes;
    sum->raw_contents += part->raw_contents;
    sum->delta_contents += part->delta_contents;
    sum->keyframe_contents += part->keyframe_contents;
    sum->link_contents += part->link_contents;
    if (part->longest_chain > sum->longest_chain)
        sum->longest_chain = part->longest_chain;
    if (part->longest_line > sum->longest_line)
        sum->longest_line = part->longest_line;
    if (sum->links_note == NULL)
        sum->links_note = part->links_note;
}

static enum lmcs_status add_part(struct cli *cli, const struct cli_record *record, const struct cli_part *part,
                                 struct cli_sizes *sizes)
{
    struct lmcs_pool *pool = NULL;
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_snapshot_storage storage;
    enum lmcs_status status = cli_part_open(cli, record, part, &pool, &snapshot);
    if (status == LMCS_OK)
        status = lmcs_snapshot_storage(snapshot, &storage, &cli->error);
    if (status == LMCS_OK) {
        uint64_t added = 0, number = lmcs_snapshot_info(snapshot)->number;
        if (*sizes->remote == '\0')
            cli_part_url(snapshot, sizes->remote);
        add_storage(&sizes->storage, &storage);
        status = lmcs_snapshot_new_bytes(pool, record->shelf, &number, 1, &added, &cli->error);
        sizes->new_bytes = added == LMCS_BYTES_UNKNOWN || sizes->new_bytes == LMCS_BYTES_UNKNOWN
                               ? LMCS_BYTES_UNKNOWN
                               : sizes->new_bytes + added;
    }
    lmcs_snapshot_close(snapshot);
    if (status != LMCS_NOT_FOUND)
        return status;
    if (*sizes->lacks == '\0')
        snprintf(sizes->lacks, sizeof sizes->lacks, "%s", cli->error.message);
    sizes->new_bytes = LMCS_BYTES_UNKNOWN;
    return LMCS_OK;
}

static enum lmcs_status add_parts(struct cli *cli, struct lmcs_snapshot *snapshot, struct cli_sizes *sizes)
{
    struct cli_record record;
    enum lmcs_status status = cli_record_read(cli, snapshot, &record);
    *sizes = (struct cli_sizes){.tensor_count = record.tensor_count, .raw_bytes = record.raw_bytes};
    for (size_t i = 0; status == LMCS_OK && i < record.part_count; i++)
        status = add_part(cli, &record, &record.parts[i], sizes);
    cli_record_free(&record);
    return status;
}

enum lmcs_status cli_sizes_head(struct cli *cli, struct lmcs_snapshot *snapshot, uint64_t new_bytes,
                                struct cli_sizes *sizes)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    if (cli->folder != NULL)
        return add_parts(cli, snapshot, sizes);
    *sizes = (struct cli_sizes){info->tensor_count, info->raw_bytes, new_bytes, .lacks = ""};
    snprintf(sizes->remote, sizeof sizes->remote, "%s", info->remote != NULL ? info->remote : "");
    return LMCS_OK;
}

enum lmcs_status cli_sizes(struct cli *cli, struct lmcs_snapshot *snapshot, uint64_t new_bytes, struct cli_sizes *sizes)
{
    enum lmcs_status status = cli_sizes_head(cli, snapshot, new_bytes, sizes);
    if (status != LMCS_OK || cli->folder != NULL)
        return status;
    return lmcs_snapshot_storage(snapshot, &sizes->storage, &cli->error);
}
