/* SPDX-License-Identifier: BSD-3-Clause */
/* operations_capture.c - captures of a run. */
#include "operations.h"

#include "driver.h"
#include "sgd.h"

/* ---- Tensors ---- */

static uint64_t some_size(struct driver *d)
{
    static const uint64_t sizes[] = {0, 8, 120, 1000, 4096, 9000, 30000, 65536, 81920, 120000};
    if (d->run->large && (d->wants_large || driver_chance(d, 15))) {
        d->wants_large = false;
        return (1 << 20) + 8 * driver_below(d, 9000);
    }
    return sizes[driver_below(d, sizeof sizes / sizeof *sizes)] / 8 * 8;
}

unsigned char *some_bytes(struct driver *d, uint64_t bytes)
{
    unsigned char *data = malloc(bytes + 8);
    EXPECT(data != NULL);
    if (driver_chance(d, 20)) {
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
    bool attachment = driver_chance(d, 10);
    memset(tensor, 0, sizeof *tensor);
    tensor->kind = attachment ? LMCS_ATTACHMENT : LMCS_TENSOR;
    tensor->dtype = attachment ? LMC_U8 : dtypes[driver_below(d, 5)];
    tensor->bytes = some_size(d);
    tensor->ndim = attachment || driver_chance(d, 50) ? 1 : 2;
    tensor->shape[0] = tensor->bytes / lmc_dtype_size(tensor->dtype);
    if (tensor->ndim == 2) {
        tensor->shape[0] /= 2;
        tensor->shape[1] = 2;
    }
    snprintf(tensor->name, sizeof tensor->name, "layer.%llu", (unsigned long long)d->serial++);
    tensor->data = some_bytes(d, tensor->bytes);
    expected_digest(tensor);
}

/* As training does. */
static void step_tensor(struct driver *d, struct expected_tensor *tensor)
{
    unsigned char *data = malloc(tensor->bytes + 8);
    EXPECT(data != NULL);
    memcpy(data, tensor->data, tensor->bytes);
    for (uint64_t i = 0; i + 4 <= tensor->bytes; i += 4) {
        uint32_t word;
        memcpy(&word, data + i, sizeof word);
        word += (uint32_t)driver_below(d, 16);
        memcpy(data + i, &word, sizeof word);
    }
    if (tensor->bytes > 0 && tensor->bytes < 4)
        data[0]++;
    tensor->data = data;
    expected_digest(tensor);
}

/* ---- A parameter under an optimizer ---- */

#define SGD_BUFFER "sgd.momentum_buffer"
#define SGD_WEIGHT "sgd.weight"

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
    uint64_t elements = 300 + driver_below(d, 12000);
    for (int i = 0; i < 2; i++) {
        struct expected_tensor *tensor = &snapshot->tensors[snapshot->count++];
        *tensor = (struct expected_tensor){
            .kind = LMCS_TENSOR, .dtype = LMC_F32, .ndim = 1, .shape = {elements}, .bytes = 4 * elements};
        snprintf(tensor->name, sizeof tensor->name, "%s", names[i]);
        float *data = calloc(elements + 1, sizeof *data);
        EXPECT(data != NULL);
        for (uint64_t e = 0; i == 1 && e < elements; e++)
            data[e] = (float)((double)driver_below(d, 1 << 20) / (1 << 20) - 0.5);
        tensor->data = (unsigned char *)data;
        expected_digest(tensor);
    }
}

static void step_parameter(struct driver *d, struct expected_tensor *buffer, struct expected_tensor *weight)
{
    float *m = malloc(buffer->bytes + 8), *w = malloc(weight->bytes + 8);
    const uint64_t bytes = buffer->bytes < weight->bytes ? buffer->bytes : weight->bytes;
    EXPECT(m != NULL && w != NULL);
    memcpy(m, buffer->data, buffer->bytes);
    memcpy(w, weight->data, weight->bytes);
    sgd_step(&d->rng, m, w, bytes / sizeof *m);
    buffer->data = (unsigned char *)m;
    weight->data = (unsigned char *)w;
    expected_digest(buffer);
    expected_digest(weight);
}

static enum lmcs_status relate(struct driver *d, struct lmcs_capture *capture, struct expected_snapshot *snapshot)
{
    const struct lmcs_relation relation = sgd_relation(SGD_BUFFER, SGD_WEIGHT);
    return find_tensor(snapshot, SGD_WEIGHT) != NULL ? lmcs_capture_relate(capture, &relation, 1, &d->error) : LMCS_OK;
}

static bool is_of_parameter(const struct expected_tensor *tensor)
{
    return strncmp(tensor->name, "sgd.", 4) == 0;
}

static void next_state(struct driver *d, const char *shelf, struct expected_snapshot *snapshot)
{
    const struct shelf_version *version = expected_newest(d->expected, shelf);
    const struct expected_snapshot *last =
        version->snapshot_count > 0 ? version->snapshots[version->snapshot_count - 1] : NULL;
    const struct expected_snapshot *prepared =
        version->prepared_count > 0 ? version->prepared[version->prepared_count - 1] : NULL;
    if (prepared != NULL && (last == NULL || prepared->number > last->number))
        last = prepared;
    if (last != NULL) {
        memcpy(snapshot->tensors, last->tensors, sizeof snapshot->tensors);
        snapshot->count = last->count;
    }
    struct expected_tensor *buffer = find_tensor(snapshot, SGD_BUFFER), *weight = find_tensor(snapshot, SGD_WEIGHT);
    if (buffer != NULL && weight != NULL && driver_chance(d, 90))
        step_parameter(d, buffer, weight);
    else if (buffer == NULL && weight == NULL && snapshot->count + 4 < MOST_TENSORS && driver_chance(d, 60))
        make_parameter(d, snapshot);
    for (size_t i = 0; i < snapshot->count; i++) {
        const bool of_parameter = is_of_parameter(&snapshot->tensors[i]);
        if (driver_chance(d, of_parameter ? 3 : 60))
            step_tensor(d, &snapshot->tensors[i]);
        else if (driver_chance(d, of_parameter ? 1 : 8) || (of_parameter && (buffer == NULL) != (weight == NULL)))
            snapshot->tensors[i] = snapshot->tensors[--snapshot->count];
    }
    while (snapshot->count < MOST_TENSORS - 2 &&
           (snapshot->count == 0 || driver_chance(d, snapshot->count < 4 ? 60 : 10)))
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

/* By value, lent or not, in place, or as a second name. */
static enum lmcs_status put_tensors(struct driver *d, struct lmcs_capture *capture, struct expected_snapshot *snapshot)
{
    struct lmcs_tensor tensors[MOST_TENSORS];
    const void *data[MOST_TENSORS];
    size_t put = 0, count = snapshot->count;
    enum lmcs_status status = LMCS_OK;
    lmcs_capture_lend(capture, driver_chance(d, 50));
    for (size_t i = 0; i < count && status == LMCS_OK; i++) {
        struct lmcs_tensor tensor;
        void *room;
        describe(&snapshot->tensors[i], &tensor);
        if (!driver_chance(d, 25)) {
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
    if (status == LMCS_OK && count < MOST_TENSORS && driver_chance(d, 15)) {
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
    snapshot->step = driver_chance(d, 80) ? (int64_t)driver_below(d, 1000) : LMCS_NO_STEP;
    snapshot->time_ns = (uint64_t)1600000000 * 1000000000 + d->serial++;
    snapshot->loss = driver_chance(d, 50) ? (double)driver_below(d, 1000) / 8 : -1;
    if (driver_chance(d, 30)) /* long ones become attachments */
        snprintf(snapshot->meta, sizeof snapshot->meta, "{\"note\":\"%0*d\"}",
                 1 + (int)driver_below(d, driver_chance(d, 15) ? 1500 : 120), 7);
    else
        snprintf(snapshot->meta, sizeof snapshot->meta, "{}");
    if (!driver_worked(d, lmcs_capture_begin(d->pool, shelf, capture, &d->error)))
        return NULL;
    if (!driver_worked(d, relate(d, *capture, snapshot)) || !driver_worked(d, put_tensors(d, *capture, snapshot))) {
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

void committed(struct driver *d, const char *shelf, uint64_t operation, struct expected_snapshot *snapshot,
               const char *tag)
{
    struct shelf_version *version = driver_next_version(d, shelf, operation);
    EXPECT(version->snapshot_count < MOST_SNAPSHOTS);
    version->next_number = snapshot->number + 1; /* that of the pool counts later captures in flight */
    snapshot->parent = parent_of(d, shelf, snapshot->number);
    expected_add(version, snapshot);
    if (tag[0] != '\0')
        expected_put_tag(version, tag, snapshot->number);
}

void some_tag(struct driver *d, char tag[16])
{
    snprintf(tag, 16, "tag%llu", (unsigned long long)driver_below(d, 4));
}

bool is_crowded(struct driver *d, const char *shelf)
{
    const struct shelf_version *version = expected_newest(d->expected, shelf);
    return version->snapshot_count + version->prepared_count + 4 > MOST_SNAPSHOTS;
}

void capture_now_or_later(struct driver *d, const char *shelf, struct later *later)
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
    if (driver_chance(d, 25)) {
        some_tag(d, tag);
        options.tags = tags;
        options.tag_count = 1;
    }
    if (driver_chance(d, 10))
        options.parent = UINT64_MAX;
    options.asynchronous = later != NULL;
    snprintf(words, WORDS, "%s a snapshot of %s with %zu tensors%s%s",
             later != NULL ? "commit asynchronously" : "commit", shelf, snapshot->count,
             tag[0] != '\0' ? ", tagged " : "", tag);
    uint64_t operation = driver_begin(d, words);
    bool promises = later != NULL && operation % 2 == 0;
    enum lmcs_status status =
        (promises ? promise_and_commit : lmcs_capture_commit)(capture, &options, &snapshot->number, &d->error);
    if (!driver_worked(d, status))
        return;
    if (later != NULL) {
        *later = (struct later){capture, operation, shelf, snapshot, ""};
        memcpy(later->tag, tag, sizeof tag);
        return;
    }
    driver_acknowledged(operation);
    committed(d, shelf, operation, snapshot, tag);
}

void wait_for(struct driver *d, struct later *later)
{
    if (later->capture == NULL)
        return;
    enum lmcs_status status = lmcs_capture_wait(later->capture, &d->error);
    if (driver_worked(d, status)) {
        driver_acknowledged(later->operation);
        committed(d, later->shelf, later->operation, later->snapshot, later->tag);
    }
    later->capture = NULL;
}

void wait_for_all(struct driver *d)
{
    for (size_t i = 0; i < MOST_LATER; i++)
        wait_for(d, &d->later[i]);
}

void do_capture(struct driver *d)
{
    const char *shelf = some_shelf_behind(d);
    if (shelf != NULL && !is_crowded(d, shelf))
        capture_now_or_later(d, shelf, NULL);
}

void do_capture_later(struct driver *d)
{
    const char *shelf = some_shelf_behind(d);
    struct later *later = &d->later[driver_below(d, MOST_LATER)];
    wait_for(d, later);
    if (shelf != NULL && !is_crowded(d, shelf) && !is_flying(d, shelf))
        capture_now_or_later(d, shelf, later);
    if (driver_chance(d, 50))
        wait_for(d, later);
}

/* Several of one shelf in flight: a power failure loses the last ones. */
void do_in_flight(struct driver *d)
{
    struct later flying[3] = {{.capture = NULL}};
    const char *shelf = some_shelf_behind(d);
    for (size_t i = 0; i < 3 && shelf != NULL && !is_crowded(d, shelf); i++)
        capture_now_or_later(d, shelf, &flying[i]);
    for (size_t i = 0; i < 3; i++)
        wait_for(d, &flying[i]);
}

void abort_capture(struct driver *d, const char *shelf)
{
    struct lmcs_capture *capture;
    uint64_t operation = driver_begin(d, "abort a capture");
    if (begin_capture(d, shelf, &capture) != NULL)
        lmcs_capture_abort(capture);
    driver_acknowledged(operation);
}

void do_abort(struct driver *d)
{
    const char *shelf = some_shelf_behind(d);
    if (shelf != NULL)
        abort_capture(d, shelf);
}

static void prepare(struct driver *d, const char *shelf)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    struct lmcs_metric metric;
    struct shelf_version *version;
    char words[WORDS];
    struct expected_snapshot *snapshot = begin_capture(d, shelf, &capture);
    const char *tags[] = {snapshot != NULL ? snapshot->tag : ""};
    if (snapshot == NULL)
        return;
    fill_options(snapshot, &metric, &options);
    rng_fill(&d->rng, snapshot->group, sizeof snapshot->group);
    memcpy(options.group, snapshot->group, sizeof options.group);
    options.prepare = true;
    options.parent = UINT64_MAX;
    options.asynchronous = driver_chance(d, 50);
    if (driver_chance(d, 50)) {
        some_tag(d, snapshot->tag);
        options.tags = tags;
        options.tag_count = 1;
    }
    snprintf(words, WORDS, "prepare a snapshot of %s", shelf);
    uint64_t operation = driver_begin(d, words);
    const bool promises = options.asynchronous && operation % 2 == 0;
    enum lmcs_status status =
        (promises ? promise_and_commit : lmcs_capture_commit)(capture, &options, &snapshot->number, &d->error);
    if (!driver_worked(d, status))
        return;
    if (options.asynchronous && !driver_worked(d, lmcs_capture_wait(capture, &d->error)))
        return;
    driver_acknowledged(operation);
    version = driver_next_version(d, shelf, operation);
    version->prepared[version->prepared_count++] = snapshot;
}

void do_prepare(struct driver *d)
{
    const char *shelf = some_shelf_behind(d);
    for (uint64_t i = 1 + driver_below(d, 2); shelf != NULL && i > 0; i--)
        if (!is_crowded(d, shelf) && expected_newest(d->expected, shelf)->prepared_count < MOST_PREPARED)
            prepare(d, shelf);
}

static void resolved(struct shelf_version *version, size_t index, bool commit)
{
    const struct expected_snapshot *snapshot = version->prepared[index];
    const struct expected_tag *tag = NULL;
    version->prepared_count--;
    memmove(&version->prepared[index], &version->prepared[index + 1],
            (version->prepared_count - index) * sizeof version->prepared[0]);
    if (!commit)
        return;
    expected_add(version, snapshot);
    for (size_t i = 0; i < version->tag_count; i++)
        if (strcmp(version->tags[i].tag, snapshot->tag) == 0)
            tag = &version->tags[i];
    if (snapshot->tag[0] != '\0' && (tag == NULL || tag->number < snapshot->number))
        expected_put_tag(version, snapshot->tag, snapshot->number);
}

void do_resolve(struct driver *d)
{
    for (size_t i = 0; i < SHELVES; i++) {
        const struct shelf_version *version = expected_newest(d->expected, shelf_names[i]);
        if (version->prepared_count == 0 || is_flying(d, shelf_names[i]))
            continue;
        const size_t index = driver_below(d, version->prepared_count);
        const bool commit = driver_chance(d, 70);
        char words[WORDS];
        snprintf(words, WORDS, "%s the prepared snapshot %s@%llu", commit ? "commit" : "drop", shelf_names[i],
                 (unsigned long long)version->prepared[index]->number);
        uint64_t operation = driver_begin(d, words);
        if (!driver_worked(d, lmcs_group_resolve(d->pool, version->prepared[index]->group, commit, &d->error)))
            return;
        driver_acknowledged(operation);
        resolved(driver_next_version(d, shelf_names[i], operation), index, commit);
        return;
    }
}
