/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * safetensors/import.c - makes a snapshot of a safetensors file.
 *
 * The whole header is checked before anything is captured. pread fills space reserved by the capture. A file that
 * shrinks meanwhile is an error (with a mapping, it would be a SIGBUS).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "safetensors/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct importer {
    const char *path;
    int fd;
    struct lmcs_st_header header;
    struct lmcs_capture *capture;
    const struct lmcs_progress *progress;
    struct lmcs_error *error;
    uint64_t done_bytes;
};

/* O_NONBLOCK: opening a FIFO without a writer must not wait for ever. */
static enum lmcs_status open_input(const char *path, int *fd, struct lmcs_error *error)
{
    struct stat info;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return lmcs_fail(error, LMCS_NOT_FOUND, errno, "%s can't be opened", path);
    if (*fd < 0 || fstat(*fd, &info))
        return lmcs_fail_errno(error, errno, "%s can't be opened", path);
    if (!S_ISREG(info.st_mode))
        return lmcs_fail(error, LMCS_INVALID, 0, "%s is not a regular file, so it can't be a safetensors file", path);
    return LMCS_OK;
}

static enum lmcs_status read_piece(struct importer *importer, void *to, size_t bytes, uint64_t offset)
{
    enum lmcs_status status = lmcs_st_read(importer->fd, importer->path, offset, to, bytes, importer->error);
    if (status != LMCS_OK)
        return status;
    importer->done_bytes += bytes;
    return lmcs_st_progress(importer->progress, "import", importer->done_bytes, importer->header.data_bytes,
                            importer->error);
}

static enum lmcs_status import_tensor(struct importer *importer, const struct lmcs_st_tensor *from)
{
    const struct lmcs_tensor tensor = {
        .name = from->name, .kind = LMCS_TENSOR, .dtype = from->dtype, .ndim = from->ndim, .shape = from->shape};
    void *data = NULL;
    enum lmcs_status status = lmcs_capture_reserve(importer->capture, &tensor, &data, importer->error);
    uint64_t bytes = from->end - from->begin;
    for (uint64_t done = 0; done < bytes && status == LMCS_OK;) {
        size_t piece = bytes - done < LMCS_ST_PIECE_BYTES ? (size_t)(bytes - done) : LMCS_ST_PIECE_BYTES;
        status = read_piece(importer, (char *)data + done, piece, importer->header.data_at + from->begin + done);
        done += piece;
    }
    return status;
}

/* Adds the file's metadata to the caller's as {"safetensors": {...}}. The caller frees *text; NULL: there is none. */
static enum lmcs_status merge_metadata(const char *meta_json, json_t *metadata, char **text, struct lmcs_error *error)
{
    json_t *meta = NULL;
    *text = NULL;
    if (meta_json == NULL && metadata == NULL)
        return LMCS_OK;
    meta = meta_json != NULL ? json_loads(meta_json, JSON_REJECT_DUPLICATES, NULL) : json_object();
    if (!json_is_object(meta)) {
        json_decref(meta);
        return lmcs_fail(error, LMCS_INVALID, 0, "the metadata is not a JSON object");
    }
    if (metadata == NULL || json_object_set(meta, "safetensors", metadata) == 0)
        *text = json_dumps(meta, JSON_COMPACT);
    json_decref(meta);
    return *text != NULL ? LMCS_OK : lmcs_fail_memory(error);
}

static enum lmcs_status commit(struct importer *importer, const struct lmcs_commit_options *options, uint64_t *number)
{
    struct lmcs_commit_options with_meta;
    char *meta_json = NULL;
    lmcs_commit_options_init(&with_meta);
    if (options != NULL)
        with_meta = *options;
    with_meta.asynchronous = false;
    enum lmcs_status status =
        merge_metadata(with_meta.meta_json, importer->header.metadata, &meta_json, importer->error);
    if (status == LMCS_OK) {
        with_meta.meta_json = meta_json;
        status = lmcs_capture_commit(importer->capture, &with_meta, number, importer->error);
        importer->capture = NULL;
    }
    free(meta_json);
    return status;
}

enum lmcs_status lmcs_import_safetensors(struct lmcs_pool *pool, const char *shelf, const char *path,
                                         const struct lmcs_commit_options *options,
                                         const struct lmcs_progress *progress, uint64_t *number,
                                         struct lmcs_error *error)
{
    if (pool == NULL || shelf == NULL || path == NULL)
        return lmcs_fail(error, LMCS_INVALID, 0, "import needs a pool, a shelf and a path");
    struct importer importer = {.path = path, .fd = -1, .progress = progress, .error = error};
    enum lmcs_status status = open_input(path, &importer.fd, error);
    if (status == LMCS_OK)
        status = lmcs_st_header_read(importer.fd, path, false, &importer.header, error);
    if (status == LMCS_OK)
        status = lmcs_capture_begin(pool, shelf, &importer.capture, error);
    for (size_t i = 0; i < importer.header.count && status == LMCS_OK; i++)
        status = import_tensor(&importer, importer.header.tensors[i]);
    if (status == LMCS_OK)
        status = commit(&importer, options, number);
    if (importer.capture != NULL)
        lmcs_capture_abort(importer.capture);
    lmcs_st_header_free(&importer.header);
    if (importer.fd >= 0)
        close(importer.fd);
    return status;
}
