/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * operations_live.c - operations on live variables, and their expected state.
 *
 * An operation changes the pool and a *model*, the next version if acknowledged. A store through an address is two
 * operations: after the stores each word is old or new, after persist new.
 */
#include "driver.h"
#include "lmcstore_live.h"

#define MOST_FLOATS 6000u

struct model {
    struct expected_live live[MOST_LIVE];
    size_t count;
};

static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};

static struct model model_of(struct driver *d)
{
    const struct shelf_version *version = expected_newest(d->expected, LIVE_STATE);
    struct model model = {.count = version->live_count};
    memcpy(model.live, version->live, sizeof model.live);
    return model;
}

static void becomes(struct driver *d, uint64_t operation, const struct model *model)
{
    struct shelf_version *version = expected_next(d->expected, LIVE_STATE, operation);
    memcpy(version->live, model->live, sizeof model->live);
    version->live_count = model->count;
}

static unsigned char *bytes_of(struct driver *d, uint64_t bytes)
{
    unsigned char *data = calloc(1, bytes + 8);
    EXPECT(data != NULL);
    if (d != NULL)
        rng_fill(&d->rng, data, bytes);
    return data;
}

static unsigned char *copy_of(const struct expected_live *live, uint64_t bytes)
{
    unsigned char *data = bytes_of(NULL, bytes);
    memcpy(data, live->data, live->bytes < bytes ? live->bytes : bytes);
    return data;
}

static struct expected_live *find(struct model *model, const char *name)
{
    for (size_t i = 0; i < model->count; i++)
        if (strcmp(model->live[i].name, name) == 0)
            return &model->live[i];
    return NULL;
}

static struct expected_live *add(struct model *model, const char *name)
{
    struct expected_live *live = find(model, name), fresh = {.is_value = false};
    snprintf(fresh.name, sizeof fresh.name, "%s", name); /* possibly of the replaced one */
    if (live == NULL)
        live = &model->live[model->count++];
    *live = fresh;
    return live;
}

static struct expected_live *some(struct driver *d, struct model *model, bool tensor)
{
    if (model->count == 0)
        return NULL;
    struct expected_live *live = &model->live[driver_below(d, model->count)];
    return tensor && (live->is_value || live->bytes == 0) ? NULL : live;
}

/* NULL: none, by chance. */
static const char *free_name(struct driver *d, struct model *model)
{
    const char *name = names[driver_below(d, sizeof names / sizeof *names)];
    return model->count == MOST_LIVE || find(model, name) != NULL ? NULL : name;
}

static struct lmcs_live *open_live(struct driver *d, const char *name)
{
    struct lmcs_live *live;
    OK(lmcs_live_open(d->pool, LIVE_SHELF, name, &live, &err));
    return live;
}

/* ---- One change of pool and model; false: it failed, and nothing changed ---- */

static bool make(struct driver *d, struct model *model)
{
    const char *name = free_name(d, model);
    uint64_t floats = driver_below(d, driver_chance(d, 30) ? 16 : MOST_FLOATS);
    struct lmcs_tensor tensor = {.name = name, .dtype = LMC_F32, .ndim = 1, .shape = &floats};
    struct lmcs_live_options options;
    lmcs_live_options_init(&options);
    options.reserve_bytes = driver_chance(d, 50) ? MOST_FLOATS * sizeof(float) : 0;
    if (name == NULL || !driver_worked(d, lmcs_live_create(d->pool, LIVE_SHELF, &tensor, &options, NULL, &d->error)))
        return false;
    struct expected_live *live = add(model, name);
    live->bytes = floats * sizeof(float);
    live->data = bytes_of(NULL, live->bytes);
    return true;
}

static bool make_value(struct driver *d, struct model *model)
{
    const char *name = free_name(d, model);
    uint64_t words = driver_below(d, 40);
    struct lmcs_tensor tensor = {.name = name, .dtype = LMC_I64, .ndim = 1, .shape = &words};
    struct lmcs_live_options options;
    lmcs_live_options_init(&options);
    options.form = LMCS_LIVE_VALUE;
    options.value_bytes = words * sizeof(uint64_t);
    unsigned char *data = bytes_of(d, options.value_bytes);
    options.value = data;
    if (name == NULL || !driver_worked(d, lmcs_live_create(d->pool, LIVE_SHELF, &tensor, &options, NULL, &d->error)))
        return false;
    struct expected_live *live = add(model, name);
    live->is_value = true;
    live->bytes = options.value_bytes;
    live->data = data;
    return true;
}

static bool put(struct driver *d, struct model *model)
{
    struct expected_live *live = driver_chance(d, 70) ? some(d, model, false) : NULL;
    const char *name = live != NULL ? live->name : free_name(d, model);
    static const uint64_t sizes[] = {8, 8, 8, 5, 0, 100, 300, 3000};
    uint64_t bytes = sizes[driver_below(d, 8)];
    unsigned char *data = bytes_of(d, bytes);
    if (name == NULL || !driver_worked(d, lmcs_live_put(d->pool, LIVE_SHELF, name, data, bytes, "str", 3, &d->error)))
        return false;
    live = add(model, name);
    live->is_value = true;
    live->bytes = bytes;
    live->data = data;
    return true;
}

static bool write_some(struct driver *d, struct model *model)
{
    struct expected_live *live = some(d, model, false);
    static const uint64_t sizes[] = {8, 8, 4, 1, 16, 40, 700, 5000};
    uint64_t bytes = sizes[driver_below(d, 8)];
    if (live == NULL || live->bytes < bytes)
        return false;
    uint64_t offset = driver_below(d, live->bytes - bytes + 1);
    offset = driver_chance(d, 70) ? offset / 8 * 8 : offset;
    unsigned char *data = copy_of(live, live->bytes);
    rng_fill(&d->rng, data + offset, bytes);
    struct lmcs_live *handle = open_live(d, live->name);
    bool worked = driver_worked(d, lmcs_live_write(handle, offset, data + offset, bytes, &d->error));
    lmcs_live_close(handle);
    if (worked)
        live->data = data;
    return worked;
}

static bool add_some(struct driver *d, struct model *model)
{
    struct expected_live *live = some(d, model, false);
    uint64_t sum, operand = driver_below(d, UINT64_MAX);
    if (live == NULL || live->bytes < 8)
        return false;
    uint64_t offset = driver_below(d, live->bytes / 8) * 8;
    unsigned char *data = copy_of(live, live->bytes);
    memcpy(&sum, data + offset, 8);
    sum += operand;
    memcpy(data + offset, &sum, 8);
    struct lmcs_live *handle = open_live(d, live->name);
    bool worked = driver_worked(d, lmcs_live_add(handle, offset, 8, &operand, NULL, &d->error));
    lmcs_live_close(handle);
    if (worked)
        live->data = data;
    return worked;
}

static bool erase(struct driver *d, struct model *model)
{
    struct expected_live *live = some(d, model, false);
    if (live == NULL || !driver_worked(d, lmcs_live_erase(d->pool, LIVE_SHELF, live->name, &d->error)))
        return false;
    *live = model->live[--model->count];
    return true;
}

static bool swap(struct driver *d, struct model *model)
{
    struct expected_live *one = some(d, model, false), *two = some(d, model, false), held;
    if (one == NULL || two == one ||
        !driver_worked(d, lmcs_live_swap(d->pool, LIVE_SHELF, one->name, two->name, &d->error)))
        return false;
    held = *one;
    *one = *two;
    memcpy(one->name, held.name, sizeof held.name);
    memcpy(held.name, two->name, sizeof held.name);
    *two = held;
    return true;
}

static bool rename_one(struct driver *d, struct model *model)
{
    struct expected_live *live = some(d, model, false);
    const char *name = free_name(d, model);
    if (live == NULL || name == NULL ||
        !driver_worked(d, lmcs_live_rename(d->pool, LIVE_SHELF, live->name, name, &d->error)))
        return false;
    snprintf(live->name, sizeof live->name, "%s", name);
    return true;
}

static bool resize(struct driver *d, struct model *model)
{
    struct expected_live *live = some(d, model, false);
    uint64_t floats = driver_below(d, MOST_FLOATS);
    if (live == NULL || live->is_value)
        return false;
    struct lmcs_live *handle = open_live(d, live->name);
    enum lmcs_status status = lmcs_live_resize(handle, 1, &floats, &d->error);
    lmcs_live_close(handle);
    if (status == LMCS_UNSUPPORTED || !driver_worked(d, status)) /* another address, within a transaction */
        return false;
    live->data = copy_of(live, floats * sizeof(float));
    live->bytes = floats * sizeof(float);
    return true;
}

static bool replace(struct driver *d, struct model *model)
{
    struct expected_live *live = driver_chance(d, 80) ? some(d, model, false) : NULL;
    const char *name = live != NULL ? live->name : free_name(d, model);
    uint64_t floats = driver_below(d, MOST_FLOATS);
    struct lmcs_tensor tensor = {.name = NULL, .dtype = LMC_F32, .ndim = 1, .shape = &floats};
    struct lmcs_live_options options;
    struct lmcs_live *handle;
    unsigned char *data = bytes_of(d, floats * sizeof(float));
    lmcs_live_options_init(&options);
    options.flags = LMCS_LIVE_UNNAMED;
    if (name == NULL || !driver_worked(d, lmcs_live_create(d->pool, LIVE_SHELF, &tensor, &options, &handle, &d->error)))
        return false;
    memcpy(lmcs_live_data(handle), data, floats * sizeof(float));
    bool worked = driver_worked(d, lmcs_live_replace(handle, name, &d->error));
    lmcs_live_close(handle);
    if (!worked)
        return false;
    live = add(model, name);
    live->bytes = floats * sizeof(float);
    live->data = data;
    return true;
}

typedef bool change_fn(struct driver *d, struct model *model);
static const struct {
    change_fn *change;
    const char *words;
    unsigned weight;
} changes[] = {
    {make, "make a live tensor", 4},      {put, "put a value", 6},        {write_some, "write to a live variable", 6},
    {add_some, "add to an integer", 3},   {erase, "erase a variable", 2}, {swap, "swap two variables", 2},
    {rename_one, "rename a variable", 1}, {resize, "resize a tensor", 3}, {replace, "replace a variable", 3},
    {make_value, "make a value", 2},
};

static size_t some_change(struct driver *d)
{
    unsigned total = 0;
    size_t i = 0;
    for (size_t k = 0; k < sizeof changes / sizeof *changes; k++)
        total += changes[k].weight;
    uint64_t at = driver_below(d, total);
    for (; at >= changes[i].weight; i++)
        at -= changes[i].weight;
    return i;
}

static void change_one(struct driver *d)
{
    struct model model = model_of(d);
    size_t i = some_change(d);
    uint64_t operation = driver_begin(d, changes[i].words);
    if (!changes[i].change(d, &model))
        return;
    driver_acknowledged(operation);
    becomes(d, operation, &model);
}

/* ---- Stores ---- */

/* `transaction` may be NULL. Returns the new bytes; NULL: too little room. */
static unsigned char *store(struct driver *d, struct lmcs_transaction *transaction, struct lmcs_live *handle,
                            const struct expected_live *live, uint64_t *first, uint64_t *end)
{
    unsigned char *data = copy_of(live, live->bytes), *to = lmcs_live_data(handle);
    uint64_t words = live->bytes / 8, count = driver_chance(d, 30) ? words : driver_below(d, 40);
    *first = words > 0 ? driver_below(d, words) * 8 : 0;
    *end = *first;
    for (; count > 0 && *end + 8 <= live->bytes; count--, *end += 8)
        rng_fill(&d->rng, data + *end, 8);
    if (transaction != NULL &&
        !driver_worked(d, lmcs_transaction_declare(transaction, handle, *first, *end - *first, &d->error)))
        return NULL;
    for (uint64_t at = *first; at < *end; at += 8) {
        uint64_t word;
        memcpy(&word, data + at, 8);
        __atomic_store_n((uint64_t *)(void *)(to + at), word, __ATOMIC_RELAXED);
    }
    return data;
}

static void store_and_persist(struct driver *d)
{
    struct model model = model_of(d);
    struct expected_live *live = some(d, &model, true);
    uint64_t first, end;
    if (live == NULL || live->bytes < 8)
        return;
    uint64_t operation = driver_begin(d, "store to a live tensor");
    struct lmcs_live *handle = open_live(d, live->name);
    unsigned char *data = store(d, NULL, handle, live, &first, &end);
    live->mixed = data;
    becomes(d, operation, &model);
    driver_acknowledged(operation);
    operation = driver_begin(d, "persist what was stored");
    OK(lmcs_live_persist(handle, first, end - first, &err));
    lmcs_live_close(handle);
    driver_acknowledged(operation);
    live->mixed = NULL;
    live->data = data;
    becomes(d, operation, &model);
}

/* ---- Transactions ---- */

static void run_transaction(struct driver *d)
{
    struct model model = model_of(d);
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction;
    bool commits = driver_chance(d, 75), declared = driver_chance(d, 40), right = true;
    lmcs_transaction_options_init(&options);
    options.flags = declared ? LMCS_TRANSACTION_DECLARED : 0;
    options.limit_bytes = 256 << 10;
    uint64_t operation =
        driver_begin(d, declared ? (commits ? "a declared transaction" : "abort a declared transaction")
                                 : (commits ? "a transaction" : "abort a transaction"));
    if (!driver_worked(d, lmcs_transaction_begin(d->pool, LIVE_SHELF, NULL, 0, &options, &transaction, &d->error)))
        return;
    for (uint64_t i = driver_below(d, 6); right && i > 0; i--) {
        struct expected_live *live = some(d, &model, true);
        uint64_t first, end;
        if (driver_chance(d, 40)) {
            changes[some_change(d)].change(d, &model);
        } else if (live != NULL && live->bytes >= 8) {
            struct lmcs_live *handle = open_live(d, live->name);
            unsigned char *data = store(d, transaction, handle, live, &first, &end);
            lmcs_live_close(handle);
            if (data != NULL)
                live->data = data;
        }
    }
    if (commits && !driver_worked(d, lmcs_transaction_commit(transaction, &d->error)))
        commits = false;
    else if (commits)
        transaction = NULL;
    lmcs_transaction_abort(transaction);
    driver_acknowledged(operation);
    if (commits)
        becomes(d, operation, &model);
}

/* ---- Snapshots ---- */

static bool note_entry(void *context, const struct lmcs_entry *entry)
{
    struct expected_snapshot *snapshot = context;
    EXPECT(snapshot->count < MOST_TENSORS);
    struct expected_tensor *tensor = &snapshot->tensors[snapshot->count++];
    *tensor = (struct expected_tensor){.kind = entry->tensor.kind,
                                       .dtype = entry->tensor.dtype,
                                       .ndim = entry->tensor.ndim,
                                       .bytes = entry->raw_bytes,
                                       .digest = entry->digest};
    snprintf(tensor->name, sizeof tensor->name, "%.23s", entry->tensor.name);
    memcpy(tensor->shape, entry->tensor.shape, entry->tensor.ndim * sizeof tensor->shape[0]);
    return true;
}

/* Contents are trusted; the explorer checks that they stay. */
static void snapshot_all(struct driver *d)
{
    const struct shelf_version *now = expected_newest(d->expected, LIVE_SHELF);
    struct expected_snapshot *expected = calloc(1, sizeof *expected);
    struct lmcs_snapshot *snapshot;
    char which[32];
    EXPECT(expected != NULL);
    if (now->snapshot_count + 4 > MOST_SNAPSHOTS)
        return;
    *expected = (struct expected_snapshot){.step = LMCS_NO_STEP, .loss = -1, .meta = "{}"};
    uint64_t operation = driver_begin(d, "snapshot the live variables");
    if (!driver_worked(d, lmcs_live_snapshot(d->pool, LIVE_SHELF, NULL, &expected->number, &d->error)))
        return;
    driver_acknowledged(operation);
    snprintf(which, sizeof which, "%llu", (unsigned long long)expected->number);
    OK(lmcs_snapshot_find(d->pool, LIVE_SHELF, which, &snapshot, &err));
    expected->parent = lmcs_snapshot_info(snapshot)->parent;
    expected->time_ns = lmcs_snapshot_info(snapshot)->time_ns;
    OK(lmcs_snapshot_entries(snapshot, note_entry, expected, &err));
    for (size_t i = 0; i < expected->count; i++) {
        struct expected_tensor *tensor = &expected->tensors[i];
        unsigned char *data = bytes_of(NULL, tensor->bytes);
        OK(lmcs_snapshot_read(snapshot, tensor->kind, tensor->name, data, tensor->bytes, &err));
        tensor->data = data;
    }
    lmcs_snapshot_close(snapshot);
    struct shelf_version *version = driver_next_version(d, LIVE_SHELF, operation);
    version->snapshots[version->snapshot_count++] = expected;
}

static const struct expected_tensor *find_tensor(const struct expected_snapshot *snapshot, const char *name,
                                                 uint32_t kind)
{
    for (size_t i = 0; i < snapshot->count; i++)
        if (snapshot->tensors[i].kind == kind && strcmp(snapshot->tensors[i].name, name) == 0)
            return &snapshot->tensors[i];
    return NULL;
}

static void check_out(struct driver *d)
{
    const struct shelf_version *now = expected_newest(d->expected, LIVE_SHELF);
    struct model model = {.count = 0};
    char which[32];
    if (now->snapshot_count == 0)
        return;
    const struct expected_snapshot *snapshot = now->snapshots[driver_below(d, now->snapshot_count)];
    snprintf(which, sizeof which, "%llu", (unsigned long long)snapshot->number);
    uint64_t operation = driver_begin(d, "check a snapshot out");
    if (!driver_worked(d, lmcs_live_checkout(d->pool, LIVE_SHELF, which, &d->error)))
        return;
    driver_acknowledged(operation);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (uint32_t kind = LMCS_TENSOR; kind <= LMCS_ATTACHMENT; kind++) {
            const struct expected_tensor *tensor = find_tensor(snapshot, names[i], kind);
            if (tensor == NULL)
                continue;
            struct expected_live *live = add(&model, names[i]);
            live->is_value = kind == LMCS_ATTACHMENT;
            live->bytes = tensor->bytes;
            live->data = tensor->data;
        }
    becomes(d, operation, &model);
}

/* Variables and snapshots together. */
static void drop_all(struct driver *d)
{
    const struct model none = {.count = 0};
    uint64_t operation = driver_begin(d, "remove the shelf of live variables");
    if (!driver_worked(d, lmcs_shelf_drop(d->pool, LIVE_SHELF, false, NULL, &d->error)))
        return;
    driver_acknowledged(operation);
    forget_archive(d); /* of the pool: a restore would bring the snapshots back */
    *expected_next(d->expected, LIVE_SHELF, operation) = (struct shelf_version){.operation = operation};
    if (model_of(d).count > 0)
        becomes(d, operation, &none);
}

/* ---- All of them ---- */

/* Unpersisted values become those found. */
static void settle_stores(struct driver *d)
{
    struct model model = model_of(d);
    bool any = false;
    for (size_t i = 0; i < model.count; i++) {
        struct expected_live *live = &model.live[i];
        uint64_t bytes;
        if (live->mixed == NULL)
            continue;
        unsigned char *data = bytes_of(NULL, live->bytes);
        struct lmcs_live *handle = open_live(d, live->name);
        OK(lmcs_live_get(handle, data, live->bytes, &bytes, &err));
        lmcs_live_close(handle);
        live->data = data;
        live->mixed = NULL;
        any = true;
    }
    if (!any)
        return;
    uint64_t operation = driver_begin(d, "look at what was stored");
    driver_acknowledged(operation);
    becomes(d, operation, &model);
}

void live_begin(struct driver *d)
{
    settle_stores(d);
    if (expected_newest(d->expected, LIVE_SHELF)->exists)
        return;
    uint64_t operation = driver_begin(d, "make the shelf of live variables");
    if (!driver_worked(d, lmcs_shelf_set_keep_raw(d->pool, LIVE_SHELF, 2, &d->error)))
        return;
    driver_acknowledged(operation);
    driver_next_version(d, LIVE_SHELF, operation);
}

void live_operation(struct driver *d)
{
    uint64_t at = driver_below(d, 100);
    if (!expected_newest(d->expected, LIVE_SHELF)->exists)
        live_begin(d);
    else if (at < 45)
        change_one(d);
    else if (at < 57)
        store_and_persist(d);
    else if (at < 81)
        run_transaction(d);
    else if (at < 90)
        snapshot_all(d);
    else if (at < 98)
        check_out(d);
    else
        drop_all(d);
}
