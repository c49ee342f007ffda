/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_safetensors.c - import and export: round trips, hostile files, parts, omissions, cancelling.
 *
 * Uses public functions only.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lmcstore.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture {
    char directory[64];
    char pool_path[96];
    char in[96];
    char out[96];
    struct lmcs_pool *pool;
    struct lmcs_error error;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->directory, sizeof f->directory, "/tmp/test-safetensors-XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    snprintf(f->pool_path, sizeof f->pool_path, "%s/pool", f->directory);
    snprintf(f->in, sizeof f->in, "%s/in.safetensors", f->directory);
    snprintf(f->out, sizeof f->out, "%s/out.safetensors", f->directory);
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    options.limit_bytes = (uint64_t)256 << 20;
    enum lmcs_status status = lmcs_pool_open(f->pool_path, LMCS_OPEN_CREATE, &options, &f->pool, &f->error);
    if (status != LMCS_OK)
        fail_msg("%s", f->error.message);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char path[512];
    assert_int_equal(lmcs_pool_close(f->pool, &f->error), LMCS_OK);
    DIR *directory = opendir(f->directory);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        snprintf(path, sizeof path, "%s/%s", f->directory, entry->d_name);
        if (entry->d_name[0] != '.' && unlink(path))
            rmdir(path);
        else if (strncmp(entry->d_name, ".lmc", 4) == 0)
            fail_msg("a temporary file was left behind: %s", entry->d_name);
    }
    closedir(directory);
    assert_int_equal(rmdir(f->directory), 0);
    free(f);
    return 0;
}

#define SAME UINT64_MAX

/* `header_size`: the size in the first 8 bytes; SAME: the true one. */
static void write_input(const struct fixture *f, const char *header, size_t header_bytes, uint64_t header_size,
                        size_t data_bytes)
{
    FILE *file = fopen(f->in, "wb");
    assert_non_null(file);
    uint64_t size = header_size == SAME ? header_bytes : header_size;
    assert_int_equal(fwrite(&size, 1, 8, file), 8);
    assert_int_equal(fwrite(header, 1, header_bytes, file), header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        fputc((int)(i * 7 + i / 251) & 0xFF, file);
    assert_int_equal(fclose(file), 0);
}

struct blob {
    unsigned char *bytes;
    size_t size;
    json_t *header;
    size_t data_at;
};

static struct blob read_file(const char *path)
{
    struct blob blob = {0};
    uint64_t header_bytes = 0;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    blob.size = (size_t)ftell(file);
    rewind(file);
    blob.bytes = malloc(blob.size + 1);
    assert_non_null(blob.bytes);
    assert_int_equal(fread(blob.bytes, 1, blob.size, file), blob.size);
    fclose(file);
    memcpy(&header_bytes, blob.bytes, 8);
    assert_true(header_bytes % 8 == 0 && header_bytes + 8 <= blob.size);
    blob.data_at = 8 + (size_t)header_bytes;
    blob.header = json_loadb((char *)blob.bytes + 8, (size_t)header_bytes, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(blob.header);
    return blob;
}

static void blob_free(struct blob *blob)
{
    json_decref(blob->header);
    free(blob->bytes);
}

static const char *metadata(const struct blob *blob, const char *key)
{
    return json_string_value(json_object_get(json_object_get(blob->header, "__metadata__"), key));
}

static uint64_t snapshot_count(struct fixture *f, const char *shelf)
{
    uint64_t numbers[8];
    size_t count = 0;
    enum lmcs_status status = lmcs_snapshot_numbers(f->pool, shelf, 0, numbers, 8, &count, &f->error);
    assert_true(status == LMCS_OK || status == LMCS_NOT_FOUND);
    return status == LMCS_OK ? count : 0;
}

static enum lmcs_status import(struct fixture *f, uint64_t *number)
{
    return lmcs_import_safetensors(f->pool, "run", f->in, NULL, NULL, number, &f->error);
}

static enum lmcs_status export_as(struct fixture *f, const char *address, const char *part,
                                  struct lmcs_transfer_report *report)
{
    struct lmcs_snapshot *snapshot = NULL;
    enum lmcs_status status = lmcs_snapshot_open(f->pool, address, &snapshot, &f->error);
    assert_int_equal(status, LMCS_OK);
    status = lmcs_export_safetensors(snapshot, part, f->out, NULL, report, &f->error);
    lmcs_snapshot_close(snapshot);
    return status;
}

static void expect_ok(const struct fixture *f, enum lmcs_status status)
{
    if (status != LMCS_OK)
        fail_msg("%s: %s", lmcs_status_name(status), f->error.message);
}

/* The safetensors library's layout: every dtype, 0 dimensions, an empty tensor, an escaped name. */
static const char every_dtype[] =
    "{\"__metadata__\":{\"format\":\"np\",\"who\":\"\\u00e9\\n\",\"lmc-store.step\":\"9\"}"
    ",\"u64\":{\"dtype\":\"U64\",\"shape\":[1],\"data_offsets\":[0,8]}"
    ",\"i64\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]}"
    ",\"f64\":{\"dtype\":\"F64\",\"shape\":[1,1],\"data_offsets\":[16,24]}"
    ",\"c64\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[24,32]}"
    ",\"\\\"f32\\\\\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[32,40]}"
    ",\"empty\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[40,40]}"
    ",\"u32\":{\"dtype\":\"U32\",\"shape\":[1],\"data_offsets\":[40,44]}"
    ",\"i32\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[44,48]}"
    ",\"bf16\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[48,52]}"
    ",\"f16\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[52,56]}"
    ",\"u16\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[56,58]}"
    ",\"i16\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[58,60]}"
    ",\"f8a\":{\"dtype\":\"F8_E5M2FNUZ\",\"shape\":[1],\"data_offsets\":[60,61]}"
    ",\"f8b\":{\"dtype\":\"F8_E4M3FNUZ\",\"shape\":[1],\"data_offsets\":[61,62]}"
    ",\"f8c\":{\"dtype\":\"F8_E8M0\",\"shape\":[1],\"data_offsets\":[62,63]}"
    ",\"f8d\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[63,64]}"
    ",\"f8e\":{\"dtype\":\"F8_E5M2\",\"shape\":[1],\"data_offsets\":[64,65]}"
    ",\"i8\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[65,66]}"
    ",\"u8\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[66,67]}"
    ",\"f4\":{\"dtype\":\"F4\",\"shape\":[2,4],\"data_offsets\":[67,71]}"
    ",\"bool\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[71,72]}}";

static void drop_metadata(struct blob *blob)
{
    assert_int_equal(json_object_del(blob->header, "__metadata__"), 0);
}

static void test_every_dtype_survives(void **state)
{
    struct fixture *f = *state;
    uint64_t number = 0;
    struct lmcs_transfer_report report;
    char header[4096];
    snprintf(header, sizeof header, "%-*s", (int)(sizeof every_dtype + 7) / 8 * 8, every_dtype);
    write_input(f, header, strlen(header), SAME, 72);
    expect_ok(f, import(f, &number));
    assert_int_equal(number, 1);
    expect_ok(f, export_as(f, "run@1", NULL, &report));
    struct blob in = read_file(f->in);
    struct blob out = read_file(f->out);
    assert_int_equal(report.contents, 21);
    assert_int_equal(report.bytes, out.size);
    assert_int_equal(report.left_out, 0);
    assert_string_equal(metadata(&out, "format"), "pt");
    assert_string_equal(metadata(&out, "who"), "\xC3\xA9\n");
    assert_string_equal(metadata(&out, "lmc-store.shelf"), "run");
    assert_string_equal(metadata(&out, "lmc-store.number"), "1");
    assert_null(metadata(&out, "lmc-store.step"));
    assert_int_equal(strlen(metadata(&out, "lmc-store.digest")), 32);
    drop_metadata(&in);
    drop_metadata(&out);
    assert_true(json_equal(in.header, out.header));
    assert_int_equal(out.size - out.data_at, 72);
    assert_memory_equal(in.bytes + in.data_at, out.bytes + out.data_at, 72);
    blob_free(&in);
    blob_free(&out);
}

static void test_large_and_small_mixed(void **state)
{
    struct fixture *f = *state;
    struct lmcs_transfer_report report;
    char header[512];
    size_t large = 9 * 1024 * 1024 + 4;
    snprintf(header, sizeof header,
             "{\"z\":{\"dtype\":\"F32\",\"shape\":[%zu],\"data_offsets\":[8,%zu]},"
             "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
             "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[%zu,%zu]}}      ",
             large / 4, large + 8, large + 8, large + 11);
    write_input(f, header, strlen(header) & ~(size_t)7, SAME, large + 11);
    expect_ok(f, import(f, NULL));
    expect_ok(f, export_as(f, "run", NULL, &report));
    struct blob in = read_file(f->in);
    struct blob out = read_file(f->out);
    drop_metadata(&out);
    assert_true(json_equal(in.header, out.header));
    assert_int_equal(in.size - in.data_at, out.size - out.data_at);
    assert_memory_equal(in.bytes + in.data_at, out.bytes + out.data_at, large + 11);
    blob_free(&in);
    blob_free(&out);
}

static void test_options_and_metadata_are_merged(void **state)
{
    struct fixture *f = *state;
    struct lmcs_snapshot *snapshot = NULL;
    const char *tags[] = {"first"};
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.step = 120;
    options.tags = tags;
    options.tag_count = 1;
    options.meta_json = "{\"mine\": 1}";
    const char header[] = "{\"__metadata__\":{\"k\":\"v\"}}";
    write_input(f, header, strlen(header), SAME, 0);
    expect_ok(f, lmcs_import_safetensors(f->pool, "run", f->in, &options, NULL, NULL, &f->error));
    expect_ok(f, lmcs_snapshot_open(f->pool, "run@first", &snapshot, &f->error));
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    assert_int_equal(info->step, 120);
    assert_int_equal(info->tensor_count, 0);
    json_t *meta = json_loads(info->meta_json, 0, NULL);
    json_t *wanted = json_loads("{\"mine\":1,\"safetensors\":{\"k\":\"v\"}}", 0, NULL);
    assert_true(json_equal(meta, wanted));
    json_decref(meta);
    json_decref(wanted);
    lmcs_snapshot_close(snapshot);
    options.meta_json = "[1]";
    assert_int_equal(lmcs_import_safetensors(f->pool, "run", f->in, &options, NULL, NULL, &f->error), LMCS_INVALID);
    assert_int_equal(snapshot_count(f, "run"), 1);
}

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

struct hostile {
    const char *what;
    const char *header;
    uint64_t header_size;
    size_t data_bytes;
    enum lmcs_status status;
};

static const struct hostile hostile_files[] = {
    {"header size past the end", "{}", 3, 0, LMCS_DAMAGED},
    {"header size of 2^63", "{}", (uint64_t)1 << 63, 0, LMCS_DAMAGED},
    {"header size of 2^64-1", "{}", UINT64_MAX - 1, 0, LMCS_DAMAGED},
    {"header above 100 MB", "{}", 100000001, 0, LMCS_DAMAGED},
    {"no header", "", SAME, 0, LMCS_DAMAGED},
    {"not an object", "[]", SAME, 0, LMCS_DAMAGED},
    {"white space before", " {}", SAME, 0, LMCS_DAMAGED},
    {"text behind", "{} x", SAME, 0, LMCS_DAMAGED},
    {"open object", "{", SAME, 0, LMCS_DAMAGED},
    {"trailing comma", "{" T("a", "U8", "[1]", "[0,1]") ",}", SAME, 1, LMCS_DAMAGED},
    {"open string", "{\"a", SAME, 0, LMCS_DAMAGED},
    {"no colon", "{\"a\" 1}", SAME, 0, LMCS_DAMAGED},
    {"no value", "{\"a\":}", SAME, 0, LMCS_DAMAGED},
    {"open value", "{\"a\":{\"dtype\":\"U8\"", SAME, 0, LMCS_DAMAGED},
    {"a number for a tensor", "{\"a\":1}", SAME, 0, LMCS_DAMAGED},
    {"a string for a tensor", "{\"a\":\"b\"}", SAME, 0, LMCS_DAMAGED},
    {"null for a tensor", "{\"a\":null}", SAME, 0, LMCS_DAMAGED},
    {"an empty tensor entry", "{\"a\":{}}", SAME, 0, LMCS_DAMAGED},
    {"bytes behind the data", "{" T("a", "U8", "[1]", "[0,1]") "}", SAME, 2, LMCS_DAMAGED},
    {"data without tensors", "{}", SAME, 4, LMCS_DAMAGED},
    {"data cut off", "{" T("a", "U8", "[2]", "[0,2]") "}", SAME, 1, LMCS_DAMAGED},
    {"overlap", "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", SAME, 3, LMCS_DAMAGED},
    {"same place", "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[0,2]") "}", SAME, 2, LMCS_DAMAGED},
    {"gap", "{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[2,3]") "}", SAME, 3, LMCS_DAMAGED},
    {"gap at the start", "{" T("a", "U8", "[1]", "[1,2]") "}", SAME, 2, LMCS_DAMAGED},
    {"empty one inside", "{" T("a", "U8", "[4]", "[0,4]") "," T("e", "U8", "[0]", "[2,2]") "}", SAME, 4, LMCS_DAMAGED},
    {"end before begin", "{" T("a", "U8", "[1]", "[1,0]") "}", SAME, 1, LMCS_DAMAGED},
    {"negative offset", "{" T("a", "U8", "[1]", "[-1,0]") "}", SAME, 1, LMCS_DAMAGED},
    {"offset above 2^64", "{" T("a", "U8", "[1]", "[0,18446744073709551617]") "}", SAME, 1, LMCS_DAMAGED},
    {"real offset", "{" T("a", "U8", "[1]", "[0,1.0]") "}", SAME, 1, LMCS_DAMAGED},
    {"three offsets", "{" T("a", "U8", "[1]", "[0,1,1]") "}", SAME, 1, LMCS_DAMAGED},
    {"offsets as object", "{" T("a", "U8", "[1]", "{}") "}", SAME, 1, LMCS_DAMAGED},
    {"size does not fit", "{" T("a", "F32", "[2]", "[0,4]") "}", SAME, 4, LMCS_DAMAGED},
    {"shape overflows", "{" T("a", "F32", "[4611686018427387904,4]", "[0,0]") "}", SAME, 0, LMCS_DAMAGED},
    {"shape overflows to fit", "{" T("a", "U8", "[4294967297,4294967296]", "[0,4]") "}", SAME, 4, LMCS_DAMAGED},
    {"negative shape", "{" T("a", "U8", "[-1,-1]", "[0,1]") "}", SAME, 1, LMCS_DAMAGED},
    {"nested shape", "{" T("a", "U8", "[[1]]", "[0,1]") "}", SAME, 1, LMCS_DAMAGED},
    {"shape of text", "{" T("a", "U8", "\"1\"", "[0,1]") "}", SAME, 1, LMCS_DAMAGED},
    {"33 dimensions",
     "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]") "}", SAME, 1,
     LMCS_UNSUPPORTED},
    {"unknown dtype", "{" T("a", "F128", "[1]", "[0,16]") "}", SAME, 16, LMCS_UNSUPPORTED},
    {"dtype that can't be held", "{" T("a", "F6_E2M3", "[4]", "[0,3]") "}", SAME, 3, LMCS_UNSUPPORTED},
    {"odd row of 4-bit elements", "{" T("a", "F4", "[2,3]", "[0,3]") "}", SAME, 3, LMCS_UNSUPPORTED},
    {"a 4-bit scalar", "{" T("a", "F4", "[]", "[0,0]") "}", SAME, 0, LMCS_UNSUPPORTED},
    {"numeric dtype", "{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", SAME, 1, LMCS_DAMAGED},
    {"duplicate name", "{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "}", SAME, 2, LMCS_DAMAGED},
    {"duplicate by escape", "{" T("a", "U8", "[1]", "[0,1]") "," T("\\u0061", "U8", "[1]", "[1,2]") "}", SAME, 2,
     LMCS_DAMAGED},
    {"duplicate key in an entry", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     SAME, 1, LMCS_DAMAGED},
    {"duplicate metadata", "{\"__metadata__\":{},\"__metadata__\":{}}", SAME, 0, LMCS_DAMAGED},
    {"duplicate key in the metadata", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", SAME, 0, LMCS_DAMAGED},
    {"metadata that is no text", "{\"__metadata__\":{\"a\":1}}", SAME, 0, LMCS_DAMAGED},
    {"metadata that is an array", "{\"__metadata__\":[]}", SAME, 0, LMCS_DAMAGED},
    {"nested metadata", "{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", SAME, 0, LMCS_DAMAGED},
    {"invalid UTF-8 in a name", "{" T("\xFF", "U8", "[1]", "[0,1]") "}", SAME, 1, LMCS_DAMAGED},
    {"overlong UTF-8", "{" T("\xC0\x80", "U8", "[1]", "[0,1]") "}", SAME, 1, LMCS_DAMAGED},
    {"a surrogate", "{" T("\\ud800", "U8", "[1]", "[0,1]") "}", SAME, 1, LMCS_DAMAGED},
    {"NUL in a name", "{" T("a\\u0000b", "U8", "[1]", "[0,1]") "}", SAME, 1, LMCS_DAMAGED},
    {"a control character in a name", "{" T("a\\u001b[2J", "U8", "[1]", "[0,1]") "}", SAME, 1, LMCS_UNSUPPORTED},
    {"an empty name", "{" T("", "U8", "[1]", "[0,1]") "}", SAME, 1, LMCS_UNSUPPORTED},
    {"braces in strings", "{\"a}\":{\"dtype\":\"U8}\",\"shape\":[1],\"data_offsets\":[0,1]}}", SAME, 1,
     LMCS_UNSUPPORTED},
};

static void test_hostile_files_are_refused(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof hostile_files / sizeof *hostile_files; i++) {
        const struct hostile *h = &hostile_files[i];
        write_input(f, h->header, strlen(h->header), h->header_size, h->data_bytes);
        memset(&f->error, 0, sizeof f->error);
        enum lmcs_status status = import(f, NULL);
        if (status != h->status || f->error.status != status || !strstr(f->error.message, f->in))
            fail_msg("%s: '%s' (%s)", h->what, lmcs_status_name(status), f->error.message);
    }
    assert_int_equal(snapshot_count(f, "run"), 0);
}

static void test_odd_names_are_names(void **state)
{
    struct fixture *f = *state;
    struct lmcs_transfer_report report;
    const char header[] = "{" T("../../etc/passwd", "U8", "[1]", "[0,1]") "," T("/abs", "U8", "[1]", "[1,2]") "," T(
        "a@b~c:d..e", "U8", "[1]", "[2,3]") "," T("%s%n", "U8", "[1]", "[3,4]") "}";
    write_input(f, header, strlen(header), SAME, 4);
    expect_ok(f, import(f, NULL));
    expect_ok(f, export_as(f, "run", NULL, &report));
    assert_int_equal(report.contents, 4);
}

/* Like the library, accepts unknown members, null metadata and white space. */
static void test_lenient_where_the_library_is(void **state)
{
    struct fixture *f = *state;
    const char header[] =
        "{ \"__metadata__\" : null ,\n\"a\" : {\"x\":{\"y\":[\"}\"]}, \"dtype\":\"U8\", \"shape\": [ 1 ] "
        ",\"data_offsets\":[0 , 1]}\t}  \r\n";
    write_input(f, header, strlen(header), SAME, 1);
    expect_ok(f, import(f, NULL));
}

/* "[[],[],..." and many keys: small files that need gigabytes as JSON values. */
static void test_huge_entries_are_refused(void **state)
{
    static const char start_of_array[] = {'{', '"', 'a', '"', ':', '{', '"', 'x', '"', ':', '[', '[', ']'};
    static const char element[] = {',', '[', ']'};
    static const char end_of_array[] = {']', '}', '}'};
    struct fixture *f = *state;
    size_t bytes = 8 << 20;
    size_t end = sizeof start_of_array;
    char *header = malloc(bytes + 64);
    assert_non_null(header);
    memcpy(header, start_of_array, sizeof start_of_array);
    for (; end + sizeof element <= bytes; end += sizeof element)
        memcpy(header + end, element, sizeof element);
    memcpy(header + end, end_of_array, sizeof end_of_array);
    write_input(f, header, end + 3, SAME, 0);
    assert_int_equal(import(f, NULL), LMCS_DAMAGED);
    memset(header, '{', bytes);
    memcpy(header, start_of_array, 5);
    write_input(f, header, bytes, SAME, 0);
    assert_int_equal(import(f, NULL), LMCS_DAMAGED);
    free(header);
}

static void test_a_nul_byte_is_refused(void **state)
{
    struct fixture *f = *state;
    const char header[] = "{" T("a", "U8", "[1]", "[0,1\0]") "}";
    write_input(f, header, sizeof header - 1, SAME, 1);
    assert_int_equal(import(f, NULL), LMCS_DAMAGED);
}

static void test_long_names(void **state)
{
    struct fixture *f = *state;
    char name[LMCS_MAX_NAME + 2];
    char header[LMCS_MAX_NAME + 128];
    memset(name, 'n', sizeof name);
    name[LMCS_MAX_NAME + 1] = '\0';
    for (int longer = 1; longer >= 0; longer--) {
        name[LMCS_MAX_NAME + longer] = '\0';
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name);
        write_input(f, header, strlen(header), SAME, 1);
        assert_int_equal(import(f, NULL), longer ? LMCS_UNSUPPORTED : LMCS_OK);
    }
}

static void test_what_is_no_file(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(import(f, NULL), LMCS_NOT_FOUND);
    assert_int_equal(mkfifo(f->in, 0600), 0);
    assert_int_equal(import(f, NULL), LMCS_INVALID);
    unlink(f->in);
    assert_int_equal(mkdir(f->in, 0700), 0);
    assert_int_equal(import(f, NULL), LMCS_INVALID);
    rmdir(f->in);
    assert_int_equal(symlink("/dev/zero", f->in), 0);
    assert_int_equal(import(f, NULL), LMCS_INVALID);
    unlink(f->in);
    assert_int_equal(symlink(f->in, f->in), 0);
    assert_int_equal(import(f, NULL), LMCS_IO);
    unlink(f->in);
    assert_int_equal(close(open(f->in, O_CREAT | O_WRONLY, 0600)), 0);
    assert_int_equal(import(f, NULL), LMCS_DAMAGED);
}

static void test_a_symbolic_link_is_followed(void **state)
{
    struct fixture *f = *state;
    const char header[] = "{" T("a", "U8", "[1]", "[0,1]") "}";
    char target[128];
    snprintf(target, sizeof target, "%s/target", f->directory);
    write_input(f, header, strlen(header), SAME, 1);
    assert_int_equal(rename(f->in, target), 0);
    assert_int_equal(symlink(target, f->in), 0);
    expect_ok(f, import(f, NULL));
}

static void test_truncated_anywhere(void **state)
{
    struct fixture *f = *state;
    const char header[] = "{" T("a", "U8", "[3]", "[0,3]") "," T("b", "F32", "[1]", "[3,7]") "}";
    write_input(f, header, strlen(header), SAME, 7);
    for (off_t size = (off_t)(8 + strlen(header) + 6); size >= 0; size--) {
        assert_int_equal(truncate(f->in, size), 0);
        assert_int_equal(import(f, NULL), LMCS_DAMAGED);
    }
    assert_int_equal(snapshot_count(f, "run"), 0);
}

static bool truncate_input(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct fixture *f = context;
    (void)what;
    (void)done;
    (void)total;
    return truncate(f->in, 4096) == 0;
}

static bool count_down(void *context, const char *what, uint64_t done, uint64_t total)
{
    int *calls = context;
    (void)what;
    assert_true(done <= total);
    return (*calls)-- > 0;
}

static void write_16_mib(const struct fixture *f)
{
    const char header[] = "{" T("a", "U8", "[16777216]", "[0,16777216]") "}";
    write_input(f, header, strlen(header), SAME, 16777216);
}

static void test_a_file_that_shrinks(void **state)
{
    struct fixture *f = *state;
    struct lmcs_progress progress = {truncate_input, f};
    write_16_mib(f);
    assert_int_equal(lmcs_import_safetensors(f->pool, "run", f->in, NULL, &progress, NULL, &f->error), LMCS_DAMAGED);
    assert_non_null(strstr(f->error.message, "shortened"));
    assert_int_equal(snapshot_count(f, "run"), 0);
}

static void test_a_cancelled_import_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    int calls = 2;
    struct lmcs_progress progress = {count_down, &calls};
    write_16_mib(f);
    assert_int_equal(lmcs_import_safetensors(f->pool, "run", f->in, NULL, &progress, NULL, &f->error), LMCS_CANCELLED);
    assert_int_equal(snapshot_count(f, "run"), 0);
    expect_ok(f, import(f, NULL));
}

static void test_a_cancelled_export_keeps_the_old_file(void **state)
{
    struct fixture *f = *state;
    int calls = 2;
    struct stat info;
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_progress progress = {count_down, &calls};
    write_16_mib(f);
    expect_ok(f, import(f, NULL));
    FILE *old = fopen(f->out, "w");
    fputs("old", old);
    fclose(old);
    expect_ok(f, lmcs_snapshot_open(f->pool, "run", &snapshot, &f->error));
    assert_int_equal(lmcs_export_safetensors(snapshot, NULL, f->out, &progress, NULL, &f->error), LMCS_CANCELLED);
    assert_int_equal(stat(f->out, &info), 0);
    assert_int_equal(info.st_size, 3);
    expect_ok(f, lmcs_export_safetensors(snapshot, NULL, f->out, NULL, NULL, &f->error));
    assert_int_equal(stat(f->out, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_true(info.st_size > 16777216);
    lmcs_snapshot_close(snapshot);
}

static void test_export_targets(void **state)
{
    struct fixture *f = *state;
    struct lmcs_snapshot *snapshot = NULL;
    struct stat info;
    char link[128];
    const char header[] = "{" T("a", "U8", "[1]", "[0,1]") "}";
    write_input(f, header, strlen(header), SAME, 1);
    expect_ok(f, import(f, NULL));
    expect_ok(f, lmcs_snapshot_open(f->pool, "run", &snapshot, &f->error));
    assert_int_equal(lmcs_export_safetensors(snapshot, NULL, f->directory, NULL, NULL, &f->error), LMCS_INVALID);
    assert_int_equal(lmcs_export_safetensors(snapshot, NULL, "/no/such/place", NULL, NULL, &f->error), LMCS_NOT_FOUND);
    assert_int_equal(lmcs_export_safetensors(snapshot, NULL, "/dev/full", NULL, NULL, &f->error), LMCS_FULL);
    expect_ok(f, lmcs_export_safetensors(snapshot, NULL, "/dev/null", NULL, NULL, &f->error));
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    expect_ok(f, lmcs_export_safetensors(snapshot, NULL, f->out, NULL, NULL, &f->error));
    snprintf(link, sizeof link, "%s/link", f->directory);
    assert_int_equal(symlink(f->out, link), 0);
    expect_ok(f, lmcs_export_safetensors(snapshot, NULL, link, NULL, NULL, &f->error));
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    lmcs_snapshot_close(snapshot);
}

static void capture_mixture(struct fixture *f)
{
    static const uint64_t two[] = {2};
    static const uint64_t four[] = {4};
    static const uint64_t zero[] = {0};
    static const char bytes[32] = "some bytes";
    const struct lmcs_tensor tensors[] = {
        {.name = "model.weight", .dtype = LMC_F32, .ndim = 1, .shape = two},
        {.name = "model.h.0.bias", .dtype = LMC_I8, .ndim = 1, .shape = two},
        {.name = "model.z", .dtype = LMC_C128, .ndim = 1, .shape = two},
        {.name = "modelling", .dtype = LMC_U8, .ndim = 1, .shape = two},
        {.name = "model", .dtype = LMC_U8, .ndim = 1, .shape = two},
        {.name = "optimizer.m", .dtype = LMC_F32, .ndim = 1, .shape = two},
        {.name = "optimizer.part", .dtype = LMC_F32, .ndim = 1, .shape = two, .global_shape = four, .offsets = zero},
        {.name = "structure", .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1, .shape = two},
    };
    const void *data[8];
    struct lmcs_capture *capture = NULL;
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.step = -7;
    for (size_t i = 0; i < 8; i++)
        data[i] = bytes;
    expect_ok(f, lmcs_capture_begin(f->pool, "run", &capture, &f->error));
    expect_ok(f, lmcs_capture_put(capture, tensors, data, 8, &f->error));
    expect_ok(f, lmcs_capture_commit(capture, &options, NULL, &f->error));
}

static void test_parts(void **state)
{
    struct fixture *f = *state;
    struct lmcs_transfer_report report;
    capture_mixture(f);
    for (int dot = 0; dot < 2; dot++) {
        expect_ok(f, export_as(f, "run", dot ? "model." : "model", &report));
        struct blob out = read_file(f->out);
        assert_int_equal(report.contents, 2);
        assert_int_equal(report.left_out, 1);
        assert_string_equal(report.left_out_names, "model.z");
        assert_int_equal(json_object_size(out.header), 3);
        assert_non_null(json_object_get(out.header, "weight"));
        assert_non_null(json_object_get(out.header, "h.0.bias"));
        assert_string_equal(metadata(&out, "lmc-store.step"), "-7");
        blob_free(&out);
    }
    expect_ok(f, export_as(f, "run", "model.h", &report));
    assert_int_equal(report.contents, 1);
    assert_int_equal(export_as(f, "run", "modle", &report), LMCS_NOT_FOUND);
    assert_non_null(strstr(f->error.message, "model, optimizer"));
    assert_int_equal(export_as(f, "run", "", &report), LMCS_INVALID);
}

static void test_the_whole_names_what_it_left_out(void **state)
{
    struct fixture *f = *state;
    struct lmcs_transfer_report report;
    capture_mixture(f);
    expect_ok(f, export_as(f, "run", NULL, &report));
    assert_int_equal(report.contents, 5);
    assert_int_equal(report.left_out, 3);
    assert_string_equal(report.left_out_names, "model.z, optimizer.part, structure");
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_every_dtype_survives),
        TEST(test_large_and_small_mixed),
        TEST(test_options_and_metadata_are_merged),
        TEST(test_hostile_files_are_refused),
        TEST(test_odd_names_are_names),
        TEST(test_lenient_where_the_library_is),
        TEST(test_huge_entries_are_refused),
        TEST(test_a_nul_byte_is_refused),
        TEST(test_long_names),
        TEST(test_what_is_no_file),
        TEST(test_a_symbolic_link_is_followed),
        TEST(test_truncated_anywhere),
        TEST(test_a_file_that_shrinks),
        TEST(test_a_cancelled_import_leaves_nothing),
        TEST(test_a_cancelled_export_keeps_the_old_file),
        TEST(test_export_targets),
        TEST(test_parts),
        TEST(test_the_whole_names_what_it_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
