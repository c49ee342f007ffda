/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_live.c - fuzz target for live variables whose records, values and journals were changed.
 *
 * A byte of flags, then changes as in image.h. Checksums of pages and journal headers are corrected unless excluded;
 * those of values and journal entries are not. Calls may be refused, but must not crash, hang or read out of bounds.
 * Half of the inputs are also opened for writing, which applies pending journals.
 */
#include "image.h"
#include "lmcstore_live.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

enum { WRITE = 1, LEAVE = 2, SNAPSHOT = 4, CHECK_OUT = 8, TRANSACTION = 16, DECLARED = 32 };
#define HEADER_BYTES 1u

static bool is_fine(enum lmcs_status status, const struct lmcs_error *error)
{
    REQUIRE(status != LMCS_IO && status != LMCS_CANCELLED && status <= LMCS_CANCELLED, error);
    REQUIRE(status == LMCS_OK || strnlen(error->message, sizeof error->message) - 1 < sizeof error->message - 1, error);
    return status == LMCS_OK;
}

/* ---- The pool ---- */

static const char *const names[] = {"tensor", "value", "number", "empty"};

static void fill(struct lmcs_pool *pool)
{
    const uint64_t shape = 3000, none = 0;
    struct lmcs_tensor tensor = {.name = "tensor", .dtype = LMC_F32, .ndim = 1, .shape = &shape};
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction;
    struct lmcs_live *live;
    struct lmcs_error error;
    static const unsigned char data[5000] = {1, 2, 3};
    REQUIRE(lmcs_live_create(pool, "run", &tensor, NULL, &live, &error) == LMCS_OK, &error);
    tensor.name = "empty";
    tensor.shape = &none;
    REQUIRE(lmcs_live_create(pool, "run", &tensor, NULL, NULL, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_live_put(pool, "run", "value", "some bytes", 10, "str", 3, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_live_put(pool, "run", "number", "12345678", 8, NULL, 0, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_live_write(live, 3, data, sizeof data, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_live_snapshot(pool, "run", NULL, NULL, &error) == LMCS_OK, &error);
    lmcs_transaction_options_init(&options);
    options.flags = LMCS_TRANSACTION_DECLARED;
    REQUIRE(lmcs_transaction_begin(pool, "run", NULL, 0, &options, &transaction, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_live_write(live, 5, data, 100, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_live_put(pool, "run", "value", "others, and more", 16, "str", 3, &error) == LMCS_OK, &error);
    REQUIRE(lmcs_transaction_commit(transaction, &error) == LMCS_OK, &error);
    lmcs_live_close(live);
}

/* ---- Reading and writing ---- */

static bool visit(void *context, const struct lmcs_live_info *info)
{
    return ++*(size_t *)context < 100 && strlen(info->name) < sizeof info->name;
}

static void read_one(struct lmcs_pool *pool, const char *name)
{
    static unsigned char buffer[1 << 20];
    struct lmcs_live_info info;
    struct lmcs_live *live;
    struct lmcs_error error;
    uint64_t bytes;
    if (!is_fine(lmcs_live_open(pool, "run", name, &live, &error), &error))
        return;
    is_fine(lmcs_live_info(live, &info, &error), &error);
    is_fine(lmcs_live_get(live, buffer, sizeof buffer, &bytes, &error), &error);
    is_fine(lmcs_live_read(live, 1, buffer, 7, &error), &error);
    lmcs_live_close(live);
}

static void read_all(struct lmcs_pool *pool)
{
    struct lmcs_error error;
    struct lmcs_live_usage usage;
    size_t count = 0;
    is_fine(lmcs_live_list(pool, "run", NULL, visit, &count, &error), &error);
    is_fine(lmcs_live_usage(pool, "run", &usage, &error), &error);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        read_one(pool, names[i]);
    is_fine(lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &error), &error);
}

static void change_one(struct lmcs_pool *pool, const char *name)
{
    struct lmcs_live *live;
    struct lmcs_error error;
    if (!is_fine(lmcs_live_open(pool, "run", name, &live, &error), &error))
        return;
    is_fine(lmcs_live_write(live, 0, "12345678", 8, &error), &error);
    is_fine(lmcs_live_write(live, 1, "1234567890", 10, &error), &error);
    is_fine(lmcs_live_resize(live, 1, &(uint64_t){4000}, &error), &error);
    lmcs_live_close(live);
}

static void change_all(struct lmcs_pool *pool)
{
    struct lmcs_error error;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        change_one(pool, names[i]);
    is_fine(lmcs_live_put(pool, "run", "value", "yet another value, and longer", 29, NULL, 0, &error), &error);
    is_fine(lmcs_live_swap(pool, "run", "value", "number", &error), &error);
    is_fine(lmcs_live_erase(pool, "run", "number", &error), &error);
}

static void write_pool(struct lmcs_pool *pool, unsigned flags)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction = NULL;
    struct lmcs_error error;
    lmcs_transaction_options_init(&options);
    options.flags = flags & DECLARED ? LMCS_TRANSACTION_DECLARED : 0;
    if ((flags & TRANSACTION) &&
        !is_fine(lmcs_transaction_begin(pool, "run", NULL, 0, &options, &transaction, &error), &error))
        transaction = NULL;
    change_all(pool);
    if (transaction != NULL && !is_fine(lmcs_transaction_commit(transaction, &error), &error))
        lmcs_transaction_abort(transaction);
    if (flags & SNAPSHOT)
        is_fine(lmcs_live_snapshot(pool, "run", NULL, NULL, &error), &error);
    if (flags & CHECK_OUT)
        is_fine(lmcs_live_checkout(pool, "run", "5", &error), &error);
    read_all(pool);
}

static bool try_open(enum lmcs_open_mode mode, struct lmcs_pool **pool)
{
    struct lmcs_open_options options;
    struct lmcs_error error;
    lmcs_open_options_init(&options);
    options.threads = 1;
    options.flags = LMCS_NO_BACKGROUND;
    return is_fine(lmcs_pool_open(fuzz_place.pool, mode, &options, pool, &error), &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct lmcs_pool *pool;
    if (image.map == NULL) {
        image.fill = fill;
        image_make();
    }
    unsigned flags = count > 0 ? bytes[0] : 0;
    for (size_t at = HEADER_BYTES; at + IMAGE_CHANGE_BYTES <= count; at += IMAGE_CHANGE_BYTES)
        image_change(bytes + at);
    if ((flags & LEAVE) == 0)
        image_seal();
    if (try_open(LMCS_OPEN_READ, &pool)) {
        read_all(pool);
        fuzz_close(pool);
    }
    if ((flags & WRITE) == 0) {
        image_restore_pages();
        return 0;
    }
    if (try_open(LMCS_OPEN_WRITE, &pool)) {
        write_pool(pool, flags);
        lmcs_pool_close(pool, NULL);
    }
    image_restore_all();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed)
{
    return image_mutate(bytes, count, most, HEADER_BYTES, seed);
}
