/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * operations.c - a run of random operations.
 *
 * An operation is a function in the table at the end of this file, with a weight. It picks what to do by the run's
 * random numbers, says begin() with its name in words, calls the store, and after success makes with next_version()
 * what each shelf must now be, and says acknowledged(). Nothing else needs to know of it.
 */
#include "operations.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "pages/tree.h"
#include "recorder.h"
#include "records/content.h"

#define LIMIT        ((uint64_t)64 << 20)
#define TIGHT        ((uint64_t)8 << 20)

#define below        driver_below
#define chance       driver_chance
#define begin        driver_begin
#define acknowledged driver_acknowledged
#define next_version driver_next_version
#define worked       driver_worked

static const char *const shelf_names[SHELVES] = {"run", "eval", "ema"};

uint64_t driver_below(struct driver *d, uint64_t bound)
{
    return rng_below(&d->rng, bound);
}
bool driver_chance(struct driver *d, uint64_t percent)
{
    return below(d, 100) < percent;
}

/* ---- What an operation says ---- */

uint64_t driver_begin(struct driver *d, const char *words)
{
    uint64_t operation = expected_operation(d->expected, "%s", words);
    recorder_mark(MARK_BEGIN, operation);
    return operation;
}

void driver_acknowledged(uint64_t operation)
{
    recorder_mark(MARK_ACKNOWLEDGED, operation);
}

/* What the store counts by itself is believed while it runs; that it is durable is what is to be seen. */
struct shelf_version *driver_next_version(struct driver *d, const char *shelf, uint64_t operation)
{
    struct shelf_version *version = expected_next(d->expected, shelf, operation);
    struct lmcs_shelf_info info;
    OK(lmcs_shelf_info(d->pool, shelf, &info, &err));
    version->next_number = info.next_number;
    version->keep_raw = info.keep_raw;
    version->origin_number = info.origin_number;
    snprintf(version->origin_shelf, sizeof version->origin_shelf, "%.15s", info.origin_shelf);
    return version;
}

bool driver_worked(struct driver *d, enum lmcs_status status)
{
    if (status != LMCS_OK && status != LMCS_FULL) {
        fprintf(stderr, "an operation failed, %s: %s\n",
                d->expected->operations[d->expected->operation_count - 1].words, d->error.message);
        abort();
    }
    return status == LMCS_OK;
}

static bool is_busy(const struct driver *d, const char *shelf)
{
    for (size_t i = 0; i < MOST_LATER; i++)
        if (d->later[i].capture != NULL && strcmp(d->later[i].shelf, shelf) == 0)
            return true;
    return expected_newest(d->expected, shelf)->prepared != NULL;
}

/* A shelf that nothing is under way on; NULL: there is none, or fate was against it. */
static const char *some_shelf(struct driver *d)
{
    const char *shelf = shelf_names[chance(d, 55) ? 0 : below(d, SHELVES)];
    return is_busy(d, shelf) ? NULL : shelf;
}

static const struct expected_snapshot *some_snapshot(struct driver *d, const char *shelf)
{
    const struct shelf_version *version = expected_newest(d->expected, shelf);
    return version->snapshot_count > 0 ? version->snapshots[below(d, version->snapshot_count)] : NULL;
}

/* ---- Tensors ---- */

static uint64_t some_size(struct driver *d)
{
    static const uint64_t sizes[] = {0, 8, 120, 1000, 4096, 9000, 30000, 65536, 81920, 120000};
    if (d->run->large && (d->wants_large || chance(d, 15))) {
        d->wants_large = false;
        return (1 << 20) + 8 * below(d, 9000);
    }
    return sizes[below(d, sizeof sizes / sizeof *sizes)] / 8 * 8;
}

static unsigned char *some_bytes(struct driver *d, uint64_t bytes)
{
    unsigned char *data = malloc(bytes + 8);
    EXPECT(data != NULL);
    if (chance(d, 20)) {
        rng_fill(&d->rng, data, bytes);
        return data;
    }
    for (uint64_t i = 0; i + 4 <= bytes; i += 4) {
        float value = (float)((double)(rng_next(&d->rng) >> 40) / (double)(1 << 24) - 0.5);
        memcpy(data + i, &value, sizeof value);
    }
    return data;
}

static void make_tensor(struct driver *d, struct expected_tensor *tensor)
{
    static const uint32_t dtypes[] = {LMC_F32, LMC_F32, LMC_F32, LMC_BF16, LMC_U8};
    bool attachment = chance(d, 10);
    memset(tensor, 0, sizeof *tensor);
    tensor->kind = attachment ? LMCS_ATTACHMENT : LMCS_TENSOR;
    tensor->dtype = attachment ? LMC_U8 : dtypes[below(d, 5)];
    tensor->bytes = some_size(d);
    tensor->ndim = attachment || chance(d, 50) ? 1 : 2;
    tensor->shape[0] = tensor->bytes / lmc_dtype_size(tensor->dtype);
    if (tensor->ndim == 2) {
        tensor->shape[0] /= 2;
        tensor->shape[1] = 2;
    }
    snprintf(tensor->name, sizeof tensor->name, "layer.%llu", (unsigned long long)d->serial++);
    tensor->data = some_bytes(d, tensor->bytes);
    expected_digest(tensor);
}

/* As training does it: every element a little. */
static void step_tensor(struct driver *d, struct expected_tensor *tensor)
{
    unsigned char *data = malloc(tensor->bytes + 8);
    EXPECT(data != NULL);
    memcpy(data, tensor->data, tensor->bytes);
    for (uint64_t i = 0; i + 4 <= tensor->bytes; i += 4) {
        uint32_t word;
        memcpy(&word, data + i, sizeof word);
        word += (uint32_t)below(d, 16);
        memcpy(data + i, &word, sizeof word);
    }
    if (tensor->bytes > 0 && tensor->bytes < 4)
        data[0]++;
    tensor->data = data;
    expected_digest(tensor);
}

/* ---- A parameter under an optimizer ---- */

#define SGD_BUFFER   "sgd.momentum_buffer"
#define SGD_WEIGHT   "sgd.weight"
#define SGD_LR       0.05
#define SGD_MOMENTUM 0.9

static struct expected_tensor *find_tensor(struct expected_snapshot *snapshot, const char *name)
{
    for (size_t i = 0; i < snapshot->count; i++)
        if (strcmp(snapshot->tensors[i].name, name) == 0)
            return &snapshot->tensors[i];
    return NULL;
}

static void make_parameter(struct driver *d, struct expected_snapshot *snapshot)
{
    static const char *const names[] = {SGD_BUFFER, SGD_WEIGHT};
    uint64_t elements = 300 + below(d, 12000);
    for (int i = 0; i < 2; i++) {
        struct expected_tensor *tensor = &snapshot->tensors[snapshot->count++];
        *tensor = (struct expected_tensor){
            .kind = LMCS_TENSOR, .dtype = LMC_F32, .ndim = 1, .shape = {elements}, .bytes = 4 * elements};
        snprintf(tensor->name, sizeof tensor->name, "%s", names[i]);
        float *data = calloc(elements + 1, sizeof *data);
        EXPECT(data != NULL);
        for (uint64_t e = 0; i == 1 && e < elements; e++)
            data[e] = (float)((double)below(d, 1 << 20) / (1 << 20) - 0.5);
        tensor->data = (unsigned char *)data;
        expected_digest(tensor);
    }
}

/* One step of SGD with momentum, of gradients that have few bits, as bf16 has. */
static void step_parameter(struct driver *d, struct expected_tensor *buffer, struct expected_tensor *weight)
{
    float *m = malloc(buffer->bytes + 8), *w = malloc(weight->bytes + 8);
    EXPECT(m != NULL && w != NULL);
    memcpy(m, buffer->data, buffer->bytes);
    memcpy(w, weight->data, weight->bytes);
    for (uint64_t i = 0; 4 * i < buffer->bytes && 4 * i < weight->bytes; i++) {
        float gradient = ((float)below(d, 256) - 128.0F) / 4096.0F, kept = m[i] * (float)SGD_MOMENTUM;
        m[i] = kept + gradient;
        w[i] = fmaf((float)-SGD_LR, m[i], w[i]);
    }
    buffer->data = (unsigned char *)m;
    weight->data = (unsigned char *)w;
    expected_digest(buffer);
    expected_digest(weight);
}

static enum lmcs_status relate(struct driver *d, struct lmcs_capture *capture, struct expected_snapshot *snapshot)
{
    const struct lmcs_relation relation = {.names = {SGD_BUFFER, SGD_WEIGHT},
                                           .name_count = 2,
                                           .optimizer = LMC_SGD,
                                           .lr = SGD_LR,
                                           .momentum = SGD_MOMENTUM};
    return find_tensor(snapshot, SGD_WEIGHT) != NULL ? lmcs_capture_relate(capture, &relation, 1, &d->error) : LMCS_OK;
}

static bool is_of_parameter(const struct expected_tensor *tensor)
{
    return strncmp(tensor->name, "sgd.", 4) == 0;
}

/* The next state of a shelf: of its tensors some are as before, most have changed, few are new or gone. */
static void next_state(struct driver *d, const char *shelf, struct expected_snapshot *snapshot)
{
    const struct shelf_version *version = expected_newest(d->expected, shelf);
    if (version->snapshot_count > 0) {
        const struct expected_snapshot *last = version->snapshots[version->snapshot_count - 1];
        memcpy(snapshot->tensors, last->tensors, sizeof snapshot->tensors);
        snapshot->count = last->count;
    }
    struct expected_tensor *buffer = find_tensor(snapshot, SGD_BUFFER), *weight = find_tensor(snapshot, SGD_WEIGHT);
    if (buffer != NULL && weight != NULL && chance(d, 90))
        step_parameter(d, buffer, weight);
    else if (buffer == NULL && weight == NULL && snapshot->count + 4 < MOST_TENSORS && chance(d, 60))
        make_parameter(d, snapshot);
    for (size_t i = 0; i < snapshot->count; i++) {
        if (chance(d, is_of_parameter(&snapshot->tensors[i]) ? 3 : 60))
            step_tensor(d, &snapshot->tensors[i]);
        else if (chance(d, 8))
            snapshot->tensors[i] = snapshot->tensors[--snapshot->count];
    }
    while (snapshot->count < MOST_TENSORS - 2 && (snapshot->count == 0 || chance(d, snapshot->count < 4 ? 60 : 10)))
        make_tensor(d, &snapshot->tensors[snapshot->count++]);
}

static void describe(const struct expected_tensor *tensor, struct lmcs_tensor *described)
{
    *described = (struct lmcs_tensor){.name = tensor->name,
                                      .kind = tensor->kind,
                                      .dtype = tensor->dtype,
                                      .ndim = tensor->ndim,
                                      .shape = tensor->shape};
}

/* ---- Captures ---- */

/* Puts the state: most by value, some in place, some as a second name. */
static enum lmcs_status put_tensors(struct driver *d, struct lmcs_capture *capture, struct expected_snapshot *snapshot)
{
    struct lmcs_tensor tensors[MOST_TENSORS];
    const void *data[MOST_TENSORS];
    size_t put = 0, count = snapshot->count;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; i < count && status == LMCS_OK; i++) {
        struct lmcs_tensor tensor;
        void *room;
        describe(&snapshot->tensors[i], &tensor);
        if (!chance(d, 25)) {
            tensors[put] = tensor;
            data[put++] = snapshot->tensors[i].data;
            continue;
        }
        status = lmcs_capture_reserve(capture, &tensor, &room, &d->error);
        if (status == LMCS_OK)
            memcpy(room, snapshot->tensors[i].data, snapshot->tensors[i].bytes);
    }
    if (status == LMCS_OK)
        status = lmcs_capture_put(capture, tensors, data, put, &d->error);
    if (status == LMCS_OK && count < MOST_TENSORS && chance(d, 15)) {
        struct lmcs_tensor tensor;
        struct expected_tensor *same = &snapshot->tensors[snapshot->count++];
        *same = snapshot->tensors[0];
        snprintf(same->name, sizeof same->name, "tied.%llu", (unsigned long long)d->serial++);
        describe(same, &tensor);
        status = lmcs_capture_put_same(capture, &tensor, snapshot->tensors[0].name, &d->error);
    }
    return status;
}

static struct expected_snapshot *begin_capture(struct driver *d, const char *shelf, struct lmcs_capture **capture)
{
    struct expected_snapshot *snapshot = calloc(1, sizeof *snapshot);
    EXPECT(snapshot != NULL);
    next_state(d, shelf, snapshot);
    snapshot->step = chance(d, 80) ? (int64_t)below(d, 1000) : LMCS_NO_STEP;
    snapshot->time_ns = (uint64_t)1600000000 * 1000000000 + d->serial++;
    snapshot->loss = chance(d, 50) ? (double)below(d, 1000) / 8 : -1;
    if (chance(d, 30)) /* the long ones become attachments */
        snprintf(snapshot->meta, sizeof snapshot->meta, "{\"note\":\"%0*d\"}",
                 1 + (int)below(d, chance(d, 15) ? 1500 : 120), 7);
    else
        snprintf(snapshot->meta, sizeof snapshot->meta, "{}");
    if (!worked(d, lmcs_capture_begin(d->pool, shelf, capture, &d->error)))
        return NULL;
    if (!worked(d, relate(d, *capture, snapshot)) || !worked(d, put_tensors(d, *capture, snapshot))) {
        lmcs_capture_abort(*capture);
        return NULL;
    }
    return snapshot;
}

static void fill_options(const struct expected_snapshot *snapshot, struct lmcs_metric *metric,
                         struct lmcs_commit_options *options)
{
    lmcs_commit_options_init(options);
    *metric = (struct lmcs_metric){"loss", snapshot->loss};
    options->step = snapshot->step;
    options->time_ns = snapshot->time_ns;
    options->meta_json = strcmp(snapshot->meta, "{}") == 0 ? NULL : snapshot->meta;
    options->metrics = snapshot->loss >= 0 ? metric : NULL;
    options->metric_count = snapshot->loss >= 0 ? 1 : 0;
}

static uint64_t parent_of(struct driver *d, const char *shelf, uint64_t number)
{
    struct lmcs_snapshot *snapshot;
    char which[32];
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(d->pool, shelf, which, &snapshot, &err));
    uint64_t parent = lmcs_snapshot_info(snapshot)->parent;
    lmcs_snapshot_close(snapshot);
    return parent;
}

static void committed(struct driver *d, const char *shelf, uint64_t operation, struct expected_snapshot *snapshot,
                      const char *tag)
{
    struct shelf_version *version = next_version(d, shelf, operation);
    EXPECT(version->snapshot_count < MOST_SNAPSHOTS);
    snapshot->parent = parent_of(d, shelf, snapshot->number);
    version->snapshots[version->snapshot_count++] = snapshot;
    if (tag[0] != '\0')
        expected_put_tag(version, tag, snapshot->number);
}

static void some_tag(struct driver *d, char tag[16])
{
    snprintf(tag, 16, "tag%llu", (unsigned long long)below(d, 4)); /* few: most are moved */
}

static bool is_crowded(struct driver *d, const char *shelf)
{
    return expected_newest(d->expected, shelf)->snapshot_count + 4 > MOST_SNAPSHOTS;
}

/* A synchronous capture; `later` not NULL: an asynchronous one. */
static void capture_now_or_later(struct driver *d, const char *shelf, struct later *later)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    struct lmcs_metric metric;
    char words[WORDS], tag[16] = "";
    const char *tags[] = {tag};
    struct expected_snapshot *snapshot = begin_capture(d, shelf, &capture);
    if (snapshot == NULL)
        return;
    fill_options(snapshot, &metric, &options);
    if (chance(d, 25)) {
        some_tag(d, tag);
        options.tags = tags;
        options.tag_count = 1;
    }
    if (chance(d, 10))
        options.parent = UINT64_MAX;
    options.asynchronous = later != NULL;
    snprintf(words, WORDS, "%s a snapshot of %s with %zu tensors%s%s",
             later != NULL ? "commit asynchronously" : "commit", shelf, snapshot->count,
             tag[0] != '\0' ? ", tagged " : "", tag);
    uint64_t operation = begin(d, words);
    enum lmcs_status status = lmcs_capture_commit(capture, &options, &snapshot->number, &d->error);
    if (!worked(d, status))
        return;
    if (later != NULL) {
        *later = (struct later){capture, operation, shelf, snapshot, ""};
        memcpy(later->tag, tag, sizeof tag);
        return;
    }
    acknowledged(operation);
    committed(d, shelf, operation, snapshot, tag);
}

static void wait_for(struct driver *d, struct later *later)
{
    if (later->capture == NULL)
        return;
    enum lmcs_status status = lmcs_capture_wait(later->capture, &d->error);
    if (worked(d, status)) {
        acknowledged(later->operation);
        committed(d, later->shelf, later->operation, later->snapshot, later->tag);
    }
    later->capture = NULL;
}

static void wait_for_all(struct driver *d)
{
    for (size_t i = 0; i < MOST_LATER; i++)
        wait_for(d, &d->later[i]);
}

static void do_capture(struct driver *d)
{
    const char *shelf = some_shelf(d);
    if (shelf != NULL && !is_crowded(d, shelf))
        capture_now_or_later(d, shelf, NULL);
}

static void do_capture_later(struct driver *d)
{
    const char *shelf = some_shelf(d);
    struct later *later = &d->later[below(d, MOST_LATER)];
    wait_for(d, later);
    if (shelf != NULL && !is_crowded(d, shelf) && !is_busy(d, shelf))
        capture_now_or_later(d, shelf, later);
    if (chance(d, 50))
        wait_for(d, later);
}

static void do_abort(struct driver *d)
{
    const char *shelf = some_shelf(d);
    struct lmcs_capture *capture;
    if (shelf == NULL)
        return;
    uint64_t operation = begin(d, "abort a capture");
    if (begin_capture(d, shelf, &capture) != NULL)
        lmcs_capture_abort(capture);
    acknowledged(operation);
}

static void do_prepare(struct driver *d)
{
    const char *shelf = some_shelf(d);
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    struct lmcs_metric metric;
    char words[WORDS];
    if (shelf == NULL || is_crowded(d, shelf))
        return;
    struct expected_snapshot *snapshot = begin_capture(d, shelf, &capture);
    if (snapshot == NULL)
        return;
    fill_options(snapshot, &metric, &options);
    rng_fill(&d->rng, snapshot->group, sizeof snapshot->group);
    memcpy(options.group, snapshot->group, sizeof options.group);
    options.prepare = true;
    options.parent = UINT64_MAX;
    snprintf(words, WORDS, "prepare a snapshot of %s", shelf);
    uint64_t operation = begin(d, words);
    if (!worked(d, lmcs_capture_commit(capture, &options, &snapshot->number, &d->error)))
        return;
    acknowledged(operation);
    next_version(d, shelf, operation)->prepared = snapshot;
}

static void do_resolve(struct driver *d)
{
    for (size_t i = 0; i < SHELVES; i++) {
        const struct expected_snapshot *prepared = expected_newest(d->expected, shelf_names[i])->prepared;
        if (prepared == NULL)
            continue;
        bool commit = chance(d, 70);
        char words[WORDS];
        snprintf(words, WORDS, "%s the prepared snapshot of %s", commit ? "commit" : "drop", shelf_names[i]);
        uint64_t operation = begin(d, words);
        if (!worked(d, lmcs_group_resolve(d->pool, prepared->group, commit, &d->error)))
            return;
        acknowledged(operation);
        struct shelf_version *version = next_version(d, shelf_names[i], operation);
        version->prepared = NULL;
        if (commit)
            version->snapshots[version->snapshot_count++] = prepared;
        return;
    }
}

/* ---- Tags, removal, policies ---- */

static void do_tag(struct driver *d)
{
    const char *shelf = some_shelf(d);
    const struct expected_snapshot *snapshot = shelf != NULL ? some_snapshot(d, shelf) : NULL;
    char words[WORDS], tag[16];
    if (snapshot == NULL)
        return;
    some_tag(d, tag);
    snprintf(words, WORDS, "tag %s@%llu %s", shelf, (unsigned long long)snapshot->number, tag);
    uint64_t operation = begin(d, words);
    if (!worked(d, lmcs_tag_set(d->pool, shelf, tag, snapshot->number, &d->error)))
        return;
    acknowledged(operation);
    expected_put_tag(next_version(d, shelf, operation), tag, snapshot->number);
}

static void do_untag(struct driver *d)
{
    const char *shelf = some_shelf(d);
    const struct shelf_version *version = shelf != NULL ? expected_newest(d->expected, shelf) : NULL;
    char words[WORDS], tag[16];
    if (version == NULL || version->tag_count == 0)
        return;
    memcpy(tag, version->tags[below(d, version->tag_count)].tag, sizeof tag);
    snprintf(words, WORDS, "take tag %s off %s", tag, shelf);
    uint64_t operation = begin(d, words);
    if (!worked(d, lmcs_tag_remove(d->pool, shelf, tag, &d->error)))
        return;
    acknowledged(operation);
    expected_drop_tag(next_version(d, shelf, operation), tag);
}

static void remove_snapshot(struct driver *d, const char *shelf, const struct expected_snapshot *snapshot)
{
    char words[WORDS];
    snprintf(words, WORDS, "remove %s@%llu", shelf, (unsigned long long)snapshot->number);
    uint64_t operation = begin(d, words);
    if (!worked(d, lmcs_snapshot_remove(d->pool, shelf, snapshot->number, false, NULL, &d->error)))
        return;
    acknowledged(operation);
    struct shelf_version *version = next_version(d, shelf, operation);
    size_t kept = 0;
    for (size_t i = 0; i < version->snapshot_count; i++)
        if (version->snapshots[i] != snapshot)
            version->snapshots[kept++] = version->snapshots[i];
    version->snapshot_count = kept;
    for (size_t i = version->tag_count; i-- > 0;)
        if (version->tags[i].number == snapshot->number)
            expected_drop_tag(version, version->tags[i].tag);
}

static void do_remove(struct driver *d)
{
    const char *shelf = some_shelf(d);
    for (uint64_t i = 1 + below(d, 3); shelf != NULL && i > 0; i--) {
        const struct expected_snapshot *snapshot = some_snapshot(d, shelf);
        if (snapshot != NULL)
            remove_snapshot(d, shelf, snapshot);
    }
}

static void do_policy(struct driver *d)
{
    const char *shelf = some_shelf(d);
    char policy[96], words[WORDS];
    if (shelf == NULL)
        return;
    snprintf(policy, sizeof policy, "keep_raw=%d chain=%d links=%d encode=%s parity=%s", 1 + (int)below(d, 3),
             (int)below(d, 5), (int)below(d, 7), below(d, 4) == 0 ? "always" : "never",
             below(d, 2) == 0 ? "3+1" : "none");
    snprintf(words, WORDS, "set the policy of %s to %s", shelf, policy);
    uint64_t operation = begin(d, words);
    if (!worked(d, lmcs_shelf_set_policy(d->pool, shelf, policy, &d->error)))
        return;
    acknowledged(operation);
    next_version(d, shelf, operation);
}

static void do_limit(struct driver *d)
{
    struct lmcs_pool_info info;
    OK(lmcs_pool_info(d->pool, &info, &err));
    uint64_t limit = info.used_bytes + info.metadata_bytes + ((uint64_t)4 << 20) + 4096 * below(d, 8000);
    uint64_t operation = begin(d, "set the pool's limit");
    enum lmcs_status status = lmcs_pool_set_limit(d->pool, limit, &d->error);
    if (status == LMCS_INVALID || !worked(d, status))
        return;
    acknowledged(operation);
    expected_next(d->expected, "", operation)->limit = limit;
}

/* ---- Whole shelves ---- */

/* One that is not there, nor about to be; NULL: all are. */
static const char *missing_shelf(struct driver *d)
{
    size_t first = below(d, SHELVES);
    for (size_t i = 0; i < SHELVES; i++) {
        const char *shelf = shelf_names[(first + i) % SHELVES];
        if (!expected_newest(d->expected, shelf)->exists && !is_busy(d, shelf))
            return shelf;
    }
    return NULL;
}

static void do_fork(struct driver *d)
{
    const char *shelf = some_shelf(d), *name = missing_shelf(d);
    const struct expected_snapshot *from = shelf != NULL && name != NULL ? some_snapshot(d, shelf) : NULL;
    struct lmcs_snapshot *snapshot;
    struct expected_tag tags[MOST_TAGS];
    size_t tag_count = 0;
    char words[WORDS], which[32];
    if (from == NULL)
        return;
    snprintf(which, sizeof which, "%llu", (unsigned long long)from->number);
    snprintf(words, WORDS, "fork %s@%s as %s", shelf, which, name);
    const struct shelf_version *there = expected_newest(d->expected, shelf);
    for (size_t i = 0; i < there->tag_count; i++)
        if (there->tags[i].number == from->number)
            tags[tag_count++] = there->tags[i];
    OK(lmcs_snapshot_find(d->pool, shelf, which, &snapshot, &err));
    uint64_t operation = begin(d, words);
    bool forked = worked(d, lmcs_shelf_fork(snapshot, name, &d->error));
    lmcs_snapshot_close(snapshot);
    if (!forked)
        return;
    acknowledged(operation);
    struct expected_snapshot *first = malloc(sizeof *first);
    EXPECT(first != NULL);
    *first = *from;
    first->number = 1;
    first->parent = 0;
    memset(first->group, 0, sizeof first->group);
    struct shelf_version *version = next_version(d, name, operation);
    version->snapshots[version->snapshot_count++] = first;
    for (size_t i = 0; i < tag_count; i++)
        expected_put_tag(version, tags[i].tag, 1);
}

/* Those that were forked from it know it under another name, or by the name that it had. */
static void rename_origins(struct driver *d, const char *from, uint64_t operation)
{
    for (size_t i = 0; i < SHELVES; i++) {
        const struct shelf_version *version = expected_newest(d->expected, shelf_names[i]);
        struct lmcs_shelf_info info;
        if (!version->exists || strcmp(version->origin_shelf, from) != 0)
            continue;
        OK(lmcs_shelf_info(d->pool, shelf_names[i], &info, &err));
        if (strcmp(info.origin_shelf, from) != 0)
            next_version(d, shelf_names[i], operation);
    }
}

static void leave_none(struct driver *d, const char *shelf, uint64_t operation)
{
    struct shelf_version *version = expected_next(d->expected, shelf, operation);
    *version = (struct shelf_version){.operation = operation};
}

static void do_rename(struct driver *d)
{
    const char *shelf = some_shelf(d), *name = missing_shelf(d);
    char words[WORDS];
    if (shelf == NULL || name == NULL || !expected_newest(d->expected, shelf)->exists)
        return;
    snprintf(words, WORDS, "rename %s to %s", shelf, name);
    uint64_t operation = begin(d, words);
    if (!worked(d, lmcs_shelf_rename(d->pool, shelf, name, &d->error)))
        return;
    acknowledged(operation);
    struct shelf_version was = *expected_newest(d->expected, shelf),
                         *version = expected_next(d->expected, name, operation);
    *version = was;
    version->operation = operation;
    leave_none(d, shelf, operation);
    rename_origins(d, shelf, operation);
}

static void do_drop(struct driver *d)
{
    const char *shelf = some_shelf(d);
    char words[WORDS];
    if (shelf == NULL || !expected_newest(d->expected, shelf)->exists)
        return;
    snprintf(words, WORDS, "remove shelf %s", shelf);
    uint64_t operation = begin(d, words);
    if (!worked(d, lmcs_shelf_drop(d->pool, shelf, false, NULL, &d->error)))
        return;
    acknowledged(operation);
    leave_none(d, shelf, operation);
}

/* ---- What changes nothing that can be seen ---- */

static void do_compact(struct driver *d)
{
    uint64_t operation = begin(d, "compact");
    if (worked(d, lmcs_compact(d->pool, NULL, &d->error)))
        acknowledged(operation);
}

/* Steps of an optimizer one after the other, so that there are links to make. */
static void do_train(struct driver *d)
{
    const char *shelf = some_shelf(d);
    for (uint64_t i = 0, steps = 3 + below(d, 4); shelf != NULL && i < steps && !is_crowded(d, shelf); i++)
        capture_now_or_later(d, shelf, NULL);
    do_compact(d);
}

static bool stop_after_some(void *context, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    (void)done;
    (void)total;
    return (*(uint64_t *)context)-- > 1;
}

static void do_compact_a_little(struct driver *d)
{
    uint64_t steps = 1 + below(d, 4);
    struct lmcs_progress progress = {stop_after_some, &steps};
    uint64_t operation = begin(d, "compact a little");
    enum lmcs_status status = lmcs_compact(d->pool, &progress, &d->error);
    if (status == LMCS_CANCELLED || worked(d, status))
        acknowledged(operation);
}

static void do_verify(struct driver *d)
{
    uint64_t operation = begin(d, "verify");
    if (worked(d, lmcs_verify(d->pool, NULL, NULL, NULL, NULL, NULL, &d->error)))
        acknowledged(operation);
}

/* A content that has parity, any, and a place in its payload; false: there is none. */
static bool some_protected(struct driver *d, uint64_t *place, uint64_t *bytes)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    struct lmcs_content content;
    uint64_t found = 0, met = 0;
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_txn_read(d->pool, &txn, &err));
    OK(lmcs_cursor_seek(cursor, &txn, LMCS_TREE_SAFETY, &txn.root.trees[LMCS_TREE_SAFETY], (struct lmcs_key_df){1, 0},
                        &err));
    while (lmcs_cursor_valid(cursor)) {
        if (lmcs_cursor_key(cursor).low == 0 && below(d, ++met) == 0)
            found = lmcs_cursor_key(cursor).high;
        OK(lmcs_cursor_next(cursor, &err));
    }
    if (found != 0) {
        OK(lmcs_content_get(&txn, found, &content, &err));
        uint64_t at = below(d, content.df.stored_bytes), unit = at / 64 * 64 + 64;
        *place = content.parts[0].offset + at;
        *bytes = 1 + below(d, (unit < content.df.stored_bytes ? unit : content.df.stored_bytes) - at);
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return found != 0;
}

static void turn_bytes(struct driver *d, uint64_t place, uint64_t bytes)
{
    unsigned char data[64];
    int fd = open(d->run->pool_path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0 && bytes <= sizeof data && pread(fd, data, bytes, (off_t)place) == (ssize_t)bytes);
    for (uint64_t i = 0; i < bytes; i++)
        data[i] ^= 0x5a;
    EXPECT(pwrite(fd, data, bytes, (off_t)place) == (ssize_t)bytes);
    close(fd);
}

/* Parity is made for what policies want it of; then something is damaged, and repaired by it. */
static void do_repair(struct driver *d)
{
    struct lmcs_scrub_options options;
    uint64_t place, bytes;
    lmcs_scrub_options_init(&options);
    options.repair = true;
    if (d->run->tight)
        return;
    uint64_t operation = begin(d, EXPECTED_REPAIR);
    enum lmcs_status status = lmcs_scrub(d->pool, &options, NULL, NULL, NULL, NULL, &d->error);
    if (status == LMCS_OK && some_protected(d, &place, &bytes)) {
        turn_bytes(d, place, bytes);
        status = lmcs_scrub(d->pool, &options, NULL, NULL, NULL, NULL, &d->error);
        if (status == LMCS_FULL) /* then it stays as it is: the bytes are put back */
            turn_bytes(d, place, bytes);
    }
    (void)worked(d, status);
    acknowledged(operation);
}

/* What power failed in may have been a repair: then it is taken up again. */
static void repair_what_is_left(struct driver *d)
{
    struct lmcs_scrub_options options;
    lmcs_scrub_options_init(&options);
    options.repair = true;
    uint64_t operation = begin(d, EXPECTED_REPAIR_LEFT);
    EXPECT(worked(d, lmcs_scrub(d->pool, &options, NULL, NULL, NULL, NULL, &d->error)));
    acknowledged(operation);
}

static void open_again(struct driver *d)
{
    wait_for_all(d);
    uint64_t operation = begin(d, "close and open");
    OK(lmcs_pool_close(d->pool, &err));
    d->pool = run_open(d->run->pool_path, LMCS_OPEN_WRITE, d->run->threaded, 0, &err);
    OK(d->pool != NULL ? LMCS_OK : err.status);
    acknowledged(operation);
}

/* ---- Archives and files ---- */

static int memory_file(void)
{
    int fd = memfd_create("archive", MFD_CLOEXEC);
    EXPECT(fd >= 0);
    return fd;
}

static void do_dump(struct driver *d)
{
    wait_for_all(d);
    bool all = chance(d, 70);
    struct archive archive = {.fd = memory_file()};
    for (size_t i = 0; i < SHELVES; i++) {
        const struct shelf_version *version = expected_newest(d->expected, shelf_names[i]);
        if (!version->exists || (!all && archive.shelf_count == 1))
            continue;
        snprintf(archive.names[archive.shelf_count], 16, "%s", shelf_names[i]);
        archive.shelves[archive.shelf_count++] = *version;
    }
    if (archive.shelf_count == 0) {
        close(archive.fd);
        return;
    }
    uint64_t operation = begin(d, all ? "dump the pool" : "dump a shelf");
    OK(lmcs_dump(d->pool, all ? NULL : archive.names[0], archive.fd, NULL, NULL, &err));
    acknowledged(operation);
    if (d->archive.fd >= 0)
        close(d->archive.fd);
    d->archive = archive;
}

static bool note_tag(void *context, const char *tag)
{
    struct expected_tag *at = context;
    while (at->tag[0] != '\0')
        at++;
    snprintf(at->tag, sizeof at->tag, "%s", tag);
    return true;
}

/* Which tags win is the store's to say; here only that they stay what they are. */
static void read_tags(struct driver *d, const char *shelf, struct shelf_version *version)
{
    version->tag_count = 0;
    for (size_t i = 0; i < version->snapshot_count; i++) {
        struct expected_tag tags[MOST_TAGS + 1] = {0};
        struct lmcs_snapshot *snapshot;
        char which[32];
        snprintf(which, sizeof which, "%llu", (unsigned long long)version->snapshots[i]->number);
        OK(lmcs_snapshot_find(d->pool, shelf, which, &snapshot, &err));
        OK(lmcs_snapshot_tags(snapshot, note_tag, tags, &err));
        lmcs_snapshot_close(snapshot);
        for (size_t k = 0; tags[k].tag[0] != '\0'; k++)
            expected_put_tag(version, tags[k].tag, version->snapshots[i]->number);
    }
}

static void add_missing(struct shelf_version *version, const struct shelf_version *from)
{
    for (size_t i = 0; i < from->snapshot_count; i++) {
        size_t at = 0;
        while (at < version->snapshot_count && version->snapshots[at]->number < from->snapshots[i]->number)
            at++;
        if (at < version->snapshot_count && version->snapshots[at]->number == from->snapshots[i]->number)
            continue;
        EXPECT(version->snapshot_count < MOST_SNAPSHOTS);
        memmove(&version->snapshots[at + 1], &version->snapshots[at],
                (version->snapshot_count - at) * sizeof version->snapshots[0]);
        version->snapshots[at] = from->snapshots[i];
        version->snapshot_count++;
    }
}

/* Into the pool that it came from, some of whose snapshots have been removed meanwhile. */
static void do_restore(struct driver *d)
{
    struct archive *archive = &d->archive;
    if (archive->fd < 0)
        do_dump(d);
    if (archive->fd < 0)
        return;
    wait_for_all(d);
    for (size_t i = 0; i < archive->shelf_count; i++) {
        if (is_busy(d, archive->names[i]) || is_crowded(d, archive->names[i]))
            return;
        const struct expected_snapshot *snapshot = some_snapshot(d, archive->names[i]);
        if (snapshot != NULL && chance(d, 70))
            remove_snapshot(d, archive->names[i], snapshot);
    }
    EXPECT(lseek(archive->fd, 0, SEEK_SET) == 0);
    uint64_t operation = begin(d, "restore an archive");
    const struct lmcs_restore_options options = {.resume = rng_below(&d->rng, 2) == 0};
    enum lmcs_status status = lmcs_restore_with(d->pool, &archive->fd, 1, &options, NULL, NULL, &d->error);
    /* After a power failure a number that the archive has may have been given once more. */
    if (status == LMCS_EXISTS || !worked(d, status))
        return;
    acknowledged(operation);
    for (size_t i = 0; i < archive->shelf_count; i++) {
        struct shelf_version *version = next_version(d, archive->names[i], operation);
        add_missing(version, &archive->shelves[i]);
        read_tags(d, archive->names[i], version);
    }
}

static void file_path(const struct driver *d, char path[512])
{
    snprintf(path, 512, "%s/one.safetensors", d->run->folder);
}

static void do_export(struct driver *d)
{
    const char *shelf = some_shelf(d);
    const struct expected_snapshot *expected = shelf != NULL ? some_snapshot(d, shelf) : NULL;
    struct lmcs_snapshot *snapshot;
    char path[512], which[32];
    if (expected == NULL)
        return;
    file_path(d, path);
    uint64_t operation = begin(d, "export a snapshot");
    snprintf(which, sizeof which, "%llu", (unsigned long long)expected->number);
    OK(lmcs_snapshot_find(d->pool, shelf, which, &snapshot, &err));
    OK(lmcs_export_safetensors(snapshot, NULL, path, NULL, NULL, &err));
    lmcs_snapshot_close(snapshot);
    acknowledged(operation);
}

static void write_safetensors(const char *path, const struct expected_tensor *tensor)
{
    char header[128];
    int n = snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}",
                     tensor->name, (unsigned long long)tensor->shape[0], (unsigned long long)tensor->bytes);
    uint64_t header_bytes = (uint64_t)n;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0 && write(fd, &header_bytes, 8) == 8 && write(fd, header, header_bytes) == n &&
           write(fd, tensor->data, tensor->bytes) == (ssize_t)tensor->bytes);
    close(fd);
}

static void do_import(struct driver *d)
{
    const char *shelf = some_shelf(d);
    char path[512], words[WORDS];
    struct lmcs_commit_options options;
    if (shelf == NULL || is_crowded(d, shelf))
        return;
    struct expected_snapshot *snapshot = calloc(1, sizeof *snapshot);
    EXPECT(snapshot != NULL);
    *snapshot = (struct expected_snapshot){.step = 5, .time_ns = 77 + d->serial++, .loss = -1, .meta = "{}"};
    snapshot->tensors[snapshot->count++] =
        (struct expected_tensor){.name = "w", .dtype = LMC_F32, .ndim = 1, .shape = {4000}, .bytes = 16000};
    snapshot->tensors[0].data = some_bytes(d, snapshot->tensors[0].bytes);
    expected_digest(&snapshot->tensors[0]);
    file_path(d, path);
    write_safetensors(path, &snapshot->tensors[0]);
    lmcs_commit_options_init(&options);
    options.step = snapshot->step;
    options.time_ns = snapshot->time_ns;
    snprintf(words, WORDS, "import a file into %s", shelf);
    uint64_t operation = begin(d, words);
    if (!worked(d, lmcs_import_safetensors(d->pool, shelf, path, &options, NULL, &snapshot->number, &d->error)))
        return;
    acknowledged(operation);
    committed(d, shelf, operation, snapshot, "");
}

/* ---- All of them ---- */

static const struct {
    void (*work)(struct driver *d);
    unsigned weight;
} operations[] = {
    {do_capture, 30}, {do_capture_later, 10}, {do_abort, 4},
    {do_prepare, 5},  {do_resolve, 8},        {do_tag, 7},
    {do_untag, 3},    {do_remove, 9},         {do_policy, 4},
    {do_limit, 2},    {do_compact, 10},       {do_compact_a_little, 5},
    {do_verify, 1},   {open_again, 3},        {do_dump, 5},
    {do_restore, 9},  {do_export, 1},         {do_import, 3},
    {do_fork, 6},     {do_rename, 3},         {do_drop, 3},
    {do_repair, 4},   {do_train, 9},          {live_operation, 45},
};

static void do_something(struct driver *d)
{
    unsigned total = 0;
    if (d->run->lively && driver_chance(d, 75)) {
        live_operation(d);
        return;
    }
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        total += operations[i].weight;
    uint64_t at = below(d, total);
    size_t i = 0;
    for (; at >= operations[i].weight; i++)
        at -= operations[i].weight;
    operations[i].work(d);
}

struct lmcs_pool *run_open(const char *path, enum lmcs_open_mode mode, bool threaded, uint64_t limit_bytes,
                           struct lmcs_error *error)
{
    struct lmcs_open_options options;
    struct lmcs_pool *pool = NULL;
    lmcs_open_options_init(&options);
    options.limit_bytes = limit_bytes;
    options.flags = threaded ? 0 : LMCS_NO_BACKGROUND;
    options.threads = threaded ? 3 : 1;
    options.wait_ms = 0;
    return lmcs_pool_open(path, mode, &options, &pool, error) == LMCS_OK ? pool : NULL;
}

void run_operations(const struct run *run, struct expected *expected)
{
    struct driver d = {.run = run, .expected = expected, .rng = {run->seed}, .archive = {.fd = -1}};
    uint64_t limit = run->tight ? TIGHT : LIMIT;
    d.serial = run->seed % 1000 * 1000;
    bool made = access(run->pool_path, F_OK) != 0;
    if (made)
        expected_newest(expected, "")->limit = limit;
    uint64_t operation = begin(&d, made ? "make the pool" : "open the pool after the power failure");
    d.pool = run_open(run->pool_path, made ? LMCS_OPEN_CREATE : LMCS_OPEN_WRITE, run->threaded, limit, &err);
    OK(d.pool != NULL ? LMCS_OK : err.status);
    acknowledged(operation);
    if (!made && !run->tight)
        repair_what_is_left(&d);
    live_begin(&d);
    /* Where power fails only rarely: hashes of blocks, written by a thread that does not commit them. */
    d.wants_large = run->large;
    if (made && run->large)
        capture_now_or_later(&d, shelf_names[0], &d.later[0]);
    for (size_t i = 0; i < run->operations; i++)
        do_something(&d);
    wait_for_all(&d);
    operation = begin(&d, "close the pool");
    OK(lmcs_pool_close(d.pool, &err));
    acknowledged(operation);
    if (d.archive.fd >= 0)
        close(d.archive.fd);
}

/* ---- After a power failure ---- */

static enum lmcs_status take_one(struct lmcs_pool *pool, uint64_t seed, struct lmcs_error *error)
{
    struct rng rng = {seed};
    static unsigned char data[70000];
    static const uint64_t shape = sizeof data, short_shape = 700;
    static const void *const both[] = {data, data + 1};
    static const struct lmcs_tensor tensors[] = {{.name = "after.long", .dtype = LMC_U8, .ndim = 1, .shape = &shape},
                                                 {.name = "after", .dtype = LMC_U8, .ndim = 1, .shape = &short_shape}};
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    rng_fill(&rng, data, sizeof data);
    lmcs_commit_options_init(&options);
    enum lmcs_status status = lmcs_capture_begin(pool, "run", &capture, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_capture_put(capture, tensors, both, 2, error);
    if (status == LMCS_OK)
        return lmcs_capture_commit(capture, &options, NULL, error);
    lmcs_capture_abort(capture);
    return status;
}

bool run_goes_on(struct lmcs_pool *pool, uint64_t seed, char *why, size_t why_bytes)
{
    struct lmcs_error error;
    enum lmcs_status status = LMCS_OK;
    for (uint64_t i = 0; i < 2 && status == LMCS_OK; i++)
        status = take_one(pool, seed + i, &error);
    if (status == LMCS_OK || status == LMCS_FULL)
        status = lmcs_compact(pool, NULL, &error);
    if (status == LMCS_OK)
        status = lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &error);
    if (status != LMCS_OK)
        snprintf(why, why_bytes, "it does not go on: %s", error.message);
    return status == LMCS_OK && expected_space(pool, true, why, why_bytes);
}
