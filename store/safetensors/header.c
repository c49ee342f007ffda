/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * safetensors/header.c - reads the header of an untrusted safetensors file.
 *
 * A JSON library would need up to fifty times the size of a hostile header ("[[],[],..."). A scanner that allocates
 * nothing cuts the two outer levels into keys and values; jansson validates one key, string or tensor at a time, each
 * of bounded size. Stricter than the format's library in two points: the header starts with '{', names are unique.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/order.h"
#include "safetensors/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/names.h"

#define MAX_KEY_BYTES    ((size_t)8192)
#define MAX_TENSOR_BYTES ((size_t)65536)

struct span {
    const char *at;
    size_t bytes;
};

struct parse {
    const char *path;
    const char *text;
    const char *end;
    struct lmcs_st_header *header;
    struct lmcs_error *error;
    bool takes_any; /* accept a tensor that this library can't hold, with dtype 0 */
};

static enum lmcs_status damaged(struct parse *parse, const char *at, const char *what)
{
    return lmcs_fail(parse->error, LMCS_DAMAGED, 0, "%s is not a valid safetensors file: %s near byte %zu", parse->path,
                     what, (size_t)(at - parse->text) + 8);
}

/* ---- The scanner: finds keys and values ---- */

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

/* Returns the end of the string whose quote is at `at`; NULL: none. */
static const char *scan_string(const char *at, const char *end)
{
    if (at == end || *at != '"')
        return NULL;
    for (at++; at < end; at++) {
        if (*at == '"')
            return at + 1;
        if (*at == '\\')
            at++;
    }
    return NULL;
}

/* Returns the end of an object, by counting braces outside of strings; NULL: none. */
static const char *scan_object(const char *at, const char *end)
{
    size_t depth = 0;
    while (at != NULL && at < end) {
        if (*at == '"') {
            at = scan_string(at, end);
            continue;
        }
        if (*at == '{')
            depth++;
        if (*at == '}' && --depth == 0)
            return at + 1;
        at++;
    }
    return NULL;
}

/* Returns the end of an object, of a string, or of the text up to the next separator; NULL: none. */
static const char *scan_value(const char *at, const char *end)
{
    if (at < end && *at == '{')
        return scan_object(at, end);
    if (at < end && *at == '"')
        return scan_string(at, end);
    const char *start = at;
    while (at < end && *at != ',' && *at != '}')
        at++;
    while (at > start && skip_space(at - 1, at) == at)
        at--;
    return at > start ? at : NULL;
}

typedef enum lmcs_status (*member_fn)(struct parse *parse, struct span key, struct span value);

/* Scans one `"key": value`; advances `at`. */
static enum lmcs_status scan_member(struct parse *parse, const char **at, const char *end, member_fn visit)
{
    struct span key = {.at = skip_space(*at, end)};
    const char *next = scan_string(key.at, end);
    if (next == NULL)
        return damaged(parse, key.at, "a name in quotes is missing");
    key.bytes = (size_t)(next - key.at);
    next = skip_space(next, end);
    if (next == end || *next != ':')
        return damaged(parse, next, "a colon is missing");
    struct span value = {.at = skip_space(next + 1, end)};
    next = scan_value(value.at, end);
    if (next == NULL)
        return damaged(parse, value.at, "a value is missing or does not end");
    value.bytes = (size_t)(next - value.at);
    *at = skip_space(next, end);
    return visit(parse, key, value);
}

/* Scans all members of an object. Only white space may follow it. */
static enum lmcs_status scan_members(struct parse *parse, struct span object, member_fn visit)
{
    const char *end = object.at + object.bytes;
    if (object.bytes == 0 || *object.at != '{')
        return damaged(parse, object.at, "an object is missing");
    const char *at = skip_space(object.at + 1, end);
    bool is_empty = at < end && *at == '}';
    while (!is_empty) {
        enum lmcs_status status = scan_member(parse, &at, end, visit);
        if (status != LMCS_OK)
            return status;
        if (at == end || *at != ',')
            break;
        at++;
    }
    if (at == end || *at != '}')
        return damaged(parse, at, "a comma or closing brace is missing");
    at = skip_space(at + 1, end);
    return at == end ? LMCS_OK : damaged(parse, at, "something follows the JSON");
}

/* ---- JSON values ---- */

static enum lmcs_status load(struct parse *parse, struct span span, size_t max_bytes, json_t **json)
{
    if (span.bytes > max_bytes)
        return damaged(parse, span.at, "an entry is too long");
    json_error_t error;
    *json = json_loadb(span.at, span.bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (*json)
        return LMCS_OK;
    if (json_error_code(&error) == json_error_out_of_memory)
        return lmcs_fail_memory(parse->error);
    return damaged(parse, span.at, error.text);
}

static enum lmcs_status load_string(struct parse *parse, struct span span, size_t max_bytes, json_t **json)
{
    if (*span.at != '"')
        return damaged(parse, span.at, "the metadata holds something that is not a string,");
    return load(parse, span, max_bytes, json);
}

static enum lmcs_status metadata_member(struct parse *parse, struct span key, struct span value)
{
    json_t *name = NULL;
    json_t *text = NULL;
    json_t *metadata = parse->header->metadata;
    enum lmcs_status status = load_string(parse, key, LMCS_ST_MAX_METADATA_BYTES, &name);
    if (status == LMCS_OK)
        status = load_string(parse, value, LMCS_ST_MAX_METADATA_BYTES, &text);
    if (status != LMCS_OK)
        goto out;
    if (json_object_size(metadata) >= LMCS_ST_MAX_METADATA_ENTRIES)
        status = damaged(parse, key.at, "the metadata has too many entries");
    else if (json_object_get(metadata, json_string_value(name)))
        status = damaged(parse, key.at, "the metadata has the same key twice");
    else if (json_object_set(metadata, json_string_value(name), text))
        status = lmcs_fail_memory(parse->error);
out:
    json_decref(name);
    json_decref(text);
    return status;
}

static enum lmcs_status metadata(struct parse *parse, struct span value)
{
    if (value.bytes > LMCS_ST_MAX_METADATA_BYTES)
        return damaged(parse, value.at, "the metadata is larger than 16 MiB");
    if (parse->header->metadata != NULL)
        return damaged(parse, value.at, "there is \"__metadata__\" twice");
    parse->header->metadata = json_object();
    if (parse->header->metadata == NULL)
        return lmcs_fail_memory(parse->error);
    return scan_members(parse, value, metadata_member);
}

/* ---- Tensors ---- */

static enum lmcs_status bad_tensor(struct parse *parse, enum lmcs_status status, const char *name, const char *what)
{
    return lmcs_fail(parse->error, status, 0, "%s: tensor '%.200s' %s", parse->path, name, what);
}

static bool get_u64(const json_t *json, uint64_t *value)
{
    if (!json_is_integer(json) || json_integer_value(json) < 0)
        return false;
    *value = (uint64_t)json_integer_value(json);
    return true;
}

static enum lmcs_status tensor_dtype(struct parse *parse, const json_t *json, struct lmcs_st_tensor *tensor)
{
    const char *text = json_string_value(json_object_get(json, "dtype"));
    if (text == NULL)
        return bad_tensor(parse, LMCS_DAMAGED, tensor->name, "has no dtype");
    const struct lmcs_st_dtype *dtype = lmcs_st_dtype_by_name(text);
    if (dtype != NULL && dtype->dtype != 0) {
        tensor->dtype = dtype->dtype;
        return LMCS_OK;
    }
    return lmcs_fail(parse->error, LMCS_UNSUPPORTED, 0, "%s: tensor '%.200s' has the dtype '%.32s', which lmc-store %s",
                     parse->path, tensor->name, text, dtype != NULL ? "can't hold" : "does not know");
}

static enum lmcs_status tensor_offsets(struct parse *parse, const json_t *json, struct lmcs_st_tensor *tensor)
{
    const json_t *offsets = json_object_get(json, "data_offsets");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !get_u64(json_array_get(offsets, 0), &tensor->begin) || !get_u64(json_array_get(offsets, 1), &tensor->end))
        return bad_tensor(parse, LMCS_DAMAGED, tensor->name, "has no valid data_offsets");
    if (tensor->begin > tensor->end || tensor->end > parse->header->data_bytes)
        return bad_tensor(parse, LMCS_DAMAGED, tensor->name, "has data_offsets outside of the file");
    return LMCS_OK;
}

/* Converts a count of 4-bit elements into bytes. */
static bool halve_last(struct lmcs_st_tensor *tensor)
{
    if (tensor->ndim == 0 || tensor->shape[tensor->ndim - 1] % 2)
        return false;
    tensor->shape[tensor->ndim - 1] /= 2;
    return true;
}

static enum lmcs_status tensor_shape(struct parse *parse, const json_t *shape, struct lmcs_st_tensor *tensor)
{
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        if (!get_u64(json_array_get(shape, i), &tensor->shape[i]))
            return bad_tensor(parse, LMCS_DAMAGED, tensor->name, "has no valid shape");
    }
    if (tensor->dtype == LMC_F4_E2M1FN_X2 && !halve_last(tensor))
        return bad_tensor(parse, LMCS_UNSUPPORTED, tensor->name, "has 4-bit elements in rows of an odd length");
    uint64_t bytes = lmc_dtype_size(tensor->dtype);
    bool overflows = false;
    for (uint32_t i = 0; i < tensor->ndim; i++)
        overflows |= __builtin_mul_overflow(bytes, tensor->shape[i], &bytes);
    if (overflows || bytes != tensor->end - tensor->begin)
        return bad_tensor(parse, LMCS_DAMAGED, tensor->name, "has data_offsets that do not fit its dtype and shape");
    return LMCS_OK;
}

static enum lmcs_status check_name(struct parse *parse, const char *name)
{
    size_t bytes = strlen(name);
    if (bytes == 0 || bytes > LMCS_MAX_NAME)
        return bad_tensor(parse, LMCS_UNSUPPORTED, name, "has a name that is empty or longer than 1024 bytes");
    if (!lmcs_name_is_sound(name))
        return bad_tensor(parse, LMCS_UNSUPPORTED, name, "has control characters in its name");
    return LMCS_OK;
}

/* Rejects, like a capture, an empty tensor whose other dimensions are impossibly large. */
static enum lmcs_status check_possible(struct parse *parse, const struct lmcs_st_tensor *tensor)
{
    const struct lmcs_tensor like = {
        .name = tensor->name, .dtype = tensor->dtype, .ndim = tensor->ndim, .shape = tensor->shape};
    uint64_t bytes;
    return lmcs_tensor_check_put(&like, &bytes, NULL) == LMCS_OK
               ? LMCS_OK
               : bad_tensor(parse, LMCS_UNSUPPORTED, tensor->name, "has a shape that is impossibly large");
}

static enum lmcs_status append(struct parse *parse, struct lmcs_st_tensor *tensor)
{
    struct lmcs_st_header *header = parse->header;
    if (!lmcs_grow(&header->tensors, &header->capacity, header->count, sizeof(void *)))
        return lmcs_fail_memory(parse->error);
    header->tensors[header->count++] = tensor;
    return LMCS_OK;
}

/* One allocation: the struct, its shape, its name. */
static struct lmcs_st_tensor *tensor_new(const char *name, size_t ndim)
{
    struct lmcs_st_tensor *tensor = NULL;
    size_t head_bytes = sizeof *tensor + ndim * sizeof tensor->shape[0];
    size_t name_bytes = strlen(name) + 1;
    tensor = calloc(1, head_bytes + name_bytes);
    if (tensor == NULL)
        return NULL;
    tensor->ndim = (uint32_t)ndim;
    tensor->name = memcpy((char *)tensor + head_bytes, name, name_bytes);
    return tensor;
}

/* Reads the offsets first: a tensor that the library can't hold has only those. */
static enum lmcs_status describe(struct parse *parse, const json_t *json, const json_t *shape,
                                 struct lmcs_st_tensor *tensor)
{
    enum lmcs_status status = tensor_offsets(parse, json, tensor);
    if (status != LMCS_OK)
        return status;
    status = check_name(parse, tensor->name);
    if (status == LMCS_OK && json_array_size(shape) > LMCS_MAX_DIMS)
        status = bad_tensor(parse, LMCS_UNSUPPORTED, tensor->name, "has more than 32 dimensions");
    if (status == LMCS_OK)
        status = tensor_dtype(parse, json, tensor);
    if (status == LMCS_OK)
        status = tensor_shape(parse, shape, tensor);
    if (status == LMCS_OK)
        status = check_possible(parse, tensor);
    if (status != LMCS_UNSUPPORTED || !parse->takes_any)
        return status;
    tensor->dtype = 0;
    tensor->ndim = 0;
    return LMCS_OK;
}

static enum lmcs_status add_tensor(struct parse *parse, const char *name, const json_t *json)
{
    const json_t *shape = json_object_get(json, "shape");
    size_t ndim = json_array_size(shape);
    if (!json_is_array(shape))
        return bad_tensor(parse, LMCS_DAMAGED, name, "has no valid shape");
    struct lmcs_st_tensor *tensor = tensor_new(name, ndim > LMCS_MAX_DIMS ? 0 : ndim);
    if (tensor == NULL)
        return lmcs_fail_memory(parse->error);
    enum lmcs_status status = describe(parse, json, shape, tensor);
    if (status == LMCS_OK)
        status = append(parse, tensor);
    if (status != LMCS_OK)
        free(tensor);
    return status;
}

/* Rejects NUL bytes, which jansson skips in some places. */
static enum lmcs_status check_text(struct parse *parse)
{
    const char *nul = memchr(parse->text, '\0', (size_t)(parse->end - parse->text));
    return nul != NULL ? damaged(parse, nul, "there is a NUL byte") : LMCS_OK;
}

static enum lmcs_status header_member(struct parse *parse, struct span key, struct span value)
{
    json_t *name = NULL;
    json_t *json = NULL;
    enum lmcs_status status = load(parse, key, MAX_KEY_BYTES, &name);
    if (status != LMCS_OK)
        goto out;
    if (strcmp(json_string_value(name), "__metadata__") == 0) {
        bool is_null = value.bytes == 4 && memcmp(value.at, "null", 4) == 0;
        status = is_null ? LMCS_OK : metadata(parse, value);
        goto out;
    }
    if (parse->header->count == LMCS_MAX_TENSORS)
        status = damaged(parse, key.at, "there are too many tensors");
    else if (*value.at != '{')
        status = damaged(parse, value.at, "a tensor's description is not an object,");
    else if ((status = load(parse, value, MAX_TENSOR_BYTES, &json)) == LMCS_OK)
        status = add_tensor(parse, json_string_value(name), json);
out:
    json_decref(name);
    json_decref(json);
    return status;
}

/* ---- All of them together ---- */

static int by_name(const void *left, const void *right)
{
    const struct lmcs_st_tensor *const *l = left;
    const struct lmcs_st_tensor *const *r = right;
    return strcmp((*l)->name, (*r)->name);
}

static int by_offset(const void *left, const void *right)
{
    const struct lmcs_st_tensor *l = *(const struct lmcs_st_tensor *const *)left;
    const struct lmcs_st_tensor *r = *(const struct lmcs_st_tensor *const *)right;
    if (l->begin != r->begin)
        return LMCS_ORDER(l->begin, r->begin);
    if (l->end != r->end)
        return LMCS_ORDER(l->end, r->end);
    return strcmp(l->name, r->name);
}

static enum lmcs_status check_names(struct parse *parse)
{
    struct lmcs_st_header *header = parse->header;
    if (header->count > 0)
        qsort(header->tensors, header->count, sizeof(void *), by_name);
    for (size_t i = 1; i < header->count; i++) {
        const char *name = header->tensors[i]->name;
        if (strcmp(header->tensors[i - 1]->name, name) == 0)
            return bad_tensor(parse, LMCS_DAMAGED, name, "is there twice");
    }
    return LMCS_OK;
}

static enum lmcs_status check_coverage(struct parse *parse)
{
    struct lmcs_st_header *header = parse->header;
    if (header->count > 0)
        qsort(header->tensors, header->count, sizeof(void *), by_offset);
    uint64_t covered = 0;
    for (size_t i = 0; i < header->count; i++) {
        const struct lmcs_st_tensor *tensor = header->tensors[i];
        if (tensor->begin != covered)
            return bad_tensor(parse, LMCS_DAMAGED, tensor->name,
                              tensor->begin < covered ? "overlaps another one" : "has a gap before its data");
        covered = tensor->end;
    }
    if (covered == header->data_bytes)
        return LMCS_OK;
    return lmcs_fail(parse->error, LMCS_DAMAGED, 0,
                     "%s is not a valid safetensors file: %" PRIu64 " bytes at its end belong to no tensor",
                     parse->path, header->data_bytes - covered);
}

enum lmcs_status lmcs_st_read(int fd, const char *path, uint64_t offset, void *buffer, size_t bytes,
                              struct lmcs_error *error)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)buffer + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return lmcs_fail_errno(error, errno, "%s can't be read", path);
        if (n == 0)
            return lmcs_fail(error, LMCS_DAMAGED, 0, "%s was shortened while it was read", path);
        done += (size_t)n;
    }
    return LMCS_OK;
}

static enum lmcs_status too_short(const char *path, uint64_t file_bytes, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s is not a safetensors file: it has %" PRIu64 " bytes", path,
                     file_bytes);
}

static enum lmcs_status find_sections(const unsigned char size[8], uint64_t file_bytes, const char *path,
                                      struct lmcs_st_header *header, size_t *header_bytes, struct lmcs_error *error)
{
    uint64_t bytes = 0;
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | size[i];
    if (bytes > LMCS_ST_MAX_HEADER_BYTES)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s is not a safetensors file: its header would be larger than 100 MB",
                         path);
    if (bytes > file_bytes - 8)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s is truncated: its header has %" PRIu64 " bytes, the file %" PRIu64,
                         path, bytes, file_bytes);
    header->data_at = bytes + 8;
    header->data_bytes = file_bytes - header->data_at;
    *header_bytes = (size_t)bytes;
    return LMCS_OK;
}

static enum lmcs_status read_sizes(int fd, const char *path, struct lmcs_st_header *header, size_t *header_bytes,
                                   struct lmcs_error *error)
{
    struct stat info;
    if (fstat(fd, &info))
        return lmcs_fail_errno(error, errno, "%s can't be read", path);
    if (info.st_size < 8)
        return too_short(path, (uint64_t)info.st_size, error);
    unsigned char size[8];
    enum lmcs_status status = lmcs_st_read(fd, path, 0, size, sizeof size, error);
    if (status != LMCS_OK)
        return status;
    return find_sections(size, (uint64_t)info.st_size, path, header, header_bytes, error);
}

static enum lmcs_status parse_text(struct parse *parse)
{
    struct span all = {parse->text, (size_t)(parse->end - parse->text)};
    enum lmcs_status status = check_text(parse);
    if (status == LMCS_OK)
        status = scan_members(parse, all, header_member);
    if (status == LMCS_OK)
        status = check_names(parse);
    return status == LMCS_OK ? check_coverage(parse) : status;
}

enum lmcs_status lmcs_st_header_read(int fd, const char *path, bool takes_any, struct lmcs_st_header *header,
                                     struct lmcs_error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    memset(header, 0, sizeof *header);
    enum lmcs_status status = read_sizes(fd, path, header, &bytes, error);
    if (status != LMCS_OK)
        goto out;
    text = malloc(bytes + 1);
    if (text == NULL) {
        status = lmcs_fail_memory(error);
        goto out;
    }
    status = lmcs_st_read(fd, path, 8, text, bytes, error);
    struct parse parse = {path, text, text + bytes, header, error, takes_any};
    if (status == LMCS_OK)
        status = parse_text(&parse);
out:
    free(text);
    if (status != LMCS_OK)
        lmcs_st_header_free(header);
    return status;
}

enum lmcs_status lmcs_st_header_parse(const void *file, uint64_t file_bytes, const char *path,
                                      struct lmcs_st_header *header, struct lmcs_error *error)
{
    size_t bytes = 0;
    memset(header, 0, sizeof *header);
    if (file_bytes < 8)
        return too_short(path, file_bytes, error);
    enum lmcs_status status = find_sections(file, file_bytes, path, header, &bytes, error);
    const char *text = (const char *)file + 8;
    struct parse parse = {path, text, text + bytes, header, error, true};
    if (status == LMCS_OK)
        status = parse_text(&parse);
    if (status != LMCS_OK)
        lmcs_st_header_free(header);
    return status;
}

void lmcs_st_header_free(struct lmcs_st_header *header)
{
    for (size_t i = 0; i < header->count; i++)
        free(header->tensors[i]);
    free(header->tensors);
    json_decref(header->metadata);
    memset(header, 0, sizeof *header);
}
