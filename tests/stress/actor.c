/* SPDX-License-Identifier: BSD-3-Clause */
/* actor.c - see actor.h. */
#include "actor.h"
#include "lively.h"
#include "sgd.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool act_chance(struct actor *actor, uint64_t one_in)
{
    return rng_below(&actor->rng, one_in) == 0;
}

/* ---- Recording ---- */

struct event act_begin(enum op op, unsigned shelf)
{
    return (struct event){.op = (uint8_t)op, .shelf = (uint8_t)shelf, .found = true, .begun_ns = monotonic_ns()};
}

void act_write_down(struct actor *actor, const struct event *event)
{
    unsigned count = atomic_load_explicit(&actor->log->count, memory_order_relaxed);
    EXPECT(count < LOG_EVENTS);
    actor->log->events[count] = *event;
    atomic_store_explicit(&actor->log->count, count + 1, memory_order_release);
}

bool act_end(struct actor *actor, struct event *event, enum lmcs_status status)
{
    event->ended_ns = monotonic_ns();
    event->found = status == LMCS_OK;
    if (status == LMCS_FULL && actor->stage->tight) /* of another thread's capture, before its wait: nothing was done */
        return false;
    if (status != LMCS_NOT_FOUND)
        OK(status);
    act_write_down(actor, event);
    return event->found;
}

struct event actor_begin(enum op op, unsigned shelf)
{
    return act_begin(op, shelf);
}

bool actor_ended(struct actor *actor, struct event *event, enum lmcs_status status)
{
    return act_end(actor, event, status);
}

void act_took(struct actor *actor, enum span span, const struct event *event)
{
    spans_add(&actor->log->spans, span, event->ended_ns - event->begun_ns);
}

void act_know(struct actor *actor, unsigned shelf, uint64_t number, uint64_t ticket)
{
    size_t i = rng_below(&actor->rng, KNOWN);
    actor->known[shelf][i].number = number;
    actor->known[shelf][i].ticket = ticket;
}

/* ---- Bytes ---- */

void act_check(struct actor *actor, unsigned shelf, unsigned entry, uint64_t ticket, const void *data)
{
    EXPECT(content_is_right(actor->stage->content, shelf, entry, ticket, data));
    atomic_fetch_add_explicit(&actor->log->bytes_checked, content_bytes(actor->stage->content, entry),
                              memory_order_relaxed);
}

void act_check_entry(struct actor *actor, const struct lmcs_entry *entry, uint64_t ticket)
{
    unsigned e = content_entry(entry->tensor.name);
    EXPECT(e < ENTRIES && content_has(e, ticket));
    EXPECT(entry->raw_bytes == content_bytes(actor->stage->content, e));
    EXPECT(entry->tensor.kind == (e == ATTACHMENT ? LMCS_ATTACHMENT : LMCS_TENSOR));
}

void act_check_view(struct actor *actor, const struct lmcs_view *view, unsigned shelf, uint64_t ticket)
{
    for (size_t i = 0; i < lmcs_view_count(view); i++) {
        const struct lmcs_entry *entry = lmcs_view_entry(view, i);
        act_check_entry(actor, entry, ticket);
        act_check(actor, shelf, content_entry(entry->tensor.name), ticket, lmcs_view_data(view, i));
    }
}

size_t act_entries_of(uint64_t ticket)
{
    size_t count = 0;
    for (unsigned e = 0; e < ENTRIES; e++)
        count += content_has(e, ticket);
    return count;
}

/* ---- Captures ---- */

/* Of the next snapshot of a shelf, so that most follow the one before; changed by the holder of the shelf. */
static atomic_uint next_step[SHELVES];

struct making {
    struct lmcs_capture *capture;
    unsigned shelf;
    uint64_t ticket;
    uint64_t begun_ns;
    bool lends; /* the buffers, until the commit returns */
};

static bool is_full(const struct actor *actor, enum lmcs_status status)
{
    if (status == LMCS_FULL && actor->stage->tight)
        return true;
    OK(status);
    return false;
}

/* By value: buffers that are not lent may be overwritten afterwards. */
static enum lmcs_status put(struct actor *actor, const struct making *making, unsigned entry)
{
    uint64_t shape, bytes = content_bytes(actor->stage->content, entry);
    struct lmcs_tensor tensor = content_tensor(actor->stage->content, entry, &shape);
    const void *data = actor->buffers[entry];
    content_fill(actor->stage->content, making->shelf, entry, making->ticket, actor->buffers[entry]);
    enum lmcs_status status = lmcs_capture_put(making->capture, &tensor, &data, 1, &err);
    if (!making->lends)
        memset(actor->buffers[entry], 0x77, bytes);
    return status;
}

static enum lmcs_status fill_in_place(struct actor *actor, const struct making *making, unsigned entry)
{
    uint64_t shape;
    void *data;
    struct lmcs_tensor tensor = content_tensor(actor->stage->content, entry, &shape);
    enum lmcs_status status = lmcs_capture_reserve(making->capture, &tensor, &data, &err);
    if (status == LMCS_OK)
        content_fill(actor->stage->content, making->shelf, entry, making->ticket, data);
    return status;
}

/* Tensors filled in place share nothing: most are not. */
static enum lmcs_status put_all(struct actor *actor, const struct making *making)
{
    enum lmcs_status status = LMCS_OK;
    unsigned in_place = (unsigned)rng_below(&actor->rng, 3 * ENTRIES);
    for (unsigned e = 0; status == LMCS_OK && e < ENTRIES; e++) {
        if (!content_has(e, making->ticket) || e == SECOND_NAME)
            continue;
        status = e == in_place ? fill_in_place(actor, making, e) : put(actor, making, e);
    }
    const struct lmcs_relation relation = sgd_relation(content_name(MOMENTUM), content_name(WEIGHT));
    if (status == LMCS_OK)
        status = lmcs_capture_relate(making->capture, &relation, 1, &err);
    uint64_t shape;
    struct lmcs_tensor again = content_tensor(actor->stage->content, SECOND_NAME, &shape);
    return status == LMCS_OK ? lmcs_capture_put_same(making->capture, &again, content_name(TENSOR_TWICE), &err)
                             : status;
}

static void choose_tags(struct actor *actor, struct lmcs_commit_options *options, const char **tags, uint64_t *mask)
{
    *mask = act_chance(actor, 4) ? rng_below(&actor->rng, 1 << TAGS) : 0;
    for (unsigned t = 0; t < TAGS; t++)
        if ((*mask >> t & 1) != 0)
            tags[options->tag_count++] = content_tag(t);
    options->tags = tags;
}

static void commit(struct actor *actor, const struct making *making)
{
    const char *tags[TAGS];
    char meta[64];
    struct lmcs_metric metric = {"ticket", (double)making->ticket};
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    snprintf(meta, sizeof meta, "{\"ticket\":%llu}", (unsigned long long)making->ticket);
    options.step = (int64_t)making->ticket;
    options.metrics = &metric;
    options.metric_count = 1;
    options.meta_json = meta;
    options.asynchronous = act_chance(actor, 2);
    struct event event = act_begin(OP_COMMIT, making->shelf);
    choose_tags(actor, &options, tags, &event.value);
    event.ticket = making->ticket;
    bool promises = options.asynchronous && making->ticket % 2 == 0;
    enum lmcs_status status =
        (promises ? promise_and_commit : lmcs_capture_commit)(making->capture, &options, &event.number, &err);
    event.behind = status == LMCS_OK && options.asynchronous && !actor->stage->tight && act_chance(actor, 2);
    if (event.behind)
        lmcs_capture_detach(making->capture);
    else if (status == LMCS_OK && options.asynchronous)
        status = lmcs_capture_wait(making->capture, &err);
    event.ended_ns = monotonic_ns();
    if (is_full(actor, status))
        return;
    act_write_down(actor, &event);
    if (!event.behind)
        spans_add(&actor->log->spans, SPAN_CAPTURE, event.ended_ns - making->begun_ns);
    if (!options.asynchronous)
        act_took(actor, SPAN_COMMIT, &event);
    act_know(actor, making->shelf, event.number, event.ticket);
}

static void capture(struct actor *actor, unsigned shelf)
{
    struct making making = {.shelf = shelf, .begun_ns = monotonic_ns(), .lends = act_chance(actor, 2)};
    if (is_full(actor, lmcs_capture_begin(actor->pool, content_shelf(shelf), &making.capture, &err)))
        return;
    const unsigned step = atomic_load(&next_step[shelf]) % STEPS;
    atomic_store(&next_step[shelf], step + 1); /* training goes on, also after a failed capture */
    making.ticket = content_ticket(actor->index, ++actor->tickets, step);
    lmcs_capture_lend(making.capture, making.lends);
    enum lmcs_status status = put_all(actor, &making);
    if (is_full(actor, status) || act_chance(actor, 12)) {
        lmcs_capture_abort(making.capture);
        return;
    }
    commit(actor, &making);
}

/* ---- Tags, removal, policy ---- */

uint64_t act_some_number(struct actor *actor, unsigned shelf)
{
    uint64_t known = actor->known[shelf][rng_below(&actor->rng, KNOWN)].number;
    return known == 0 || act_chance(actor, 10) ? 1 + rng_below(&actor->rng, 100) : known;
}

static void act_tag(struct actor *actor, unsigned shelf)
{
    unsigned tag = (unsigned)rng_below(&actor->rng, TAGS);
    bool set = !act_chance(actor, 3);
    uint64_t number = set ? act_some_number(actor, shelf) : 0;
    struct event event = act_begin(set ? OP_TAG_SET : OP_TAG_REMOVE, shelf);
    event.arg = tag;
    event.number = number;
    enum lmcs_status status = set ? lmcs_tag_set(actor->pool, content_shelf(shelf), content_tag(tag), number, &err)
                                  : lmcs_tag_remove(actor->pool, content_shelf(shelf), content_tag(tag), &err);
    act_end(actor, &event, status);
}

/* Keeps long chains; sometimes removes the newest, whose number is not reused. */
static uint64_t number_to_remove(struct actor *actor, unsigned shelf)
{
    uint64_t numbers[MOST_PRESENT];
    size_t count;
    enum lmcs_status status =
        lmcs_snapshot_numbers(actor->pool, content_shelf(shelf), 0, numbers, MOST_PRESENT, &count, &err);
    if (status == LMCS_NOT_FOUND || count == 0)
        return 1;
    OK(status);
    if (count > KEEP_AT_MOST || (count > KEEP_ABOUT && act_chance(actor, 2)))
        return numbers[rng_below(&actor->rng, count - KEEP_ABOUT / 2)];
    return act_chance(actor, 8) ? numbers[rng_below(&actor->rng, count)] : act_some_number(actor, shelf);
}

static void remove_one(struct actor *actor, unsigned shelf)
{
    struct lmcs_removal removal = {0};
    uint64_t number = number_to_remove(actor, shelf);
    struct event event = act_begin(OP_REMOVE, shelf);
    event.number = number;
    event.arg = act_chance(actor, 6);
    enum lmcs_status status =
        lmcs_snapshot_remove(actor->pool, content_shelf(shelf), number, event.arg != 0, &removal, &err);
    event.value = removal.removed_tags;
    act_end(actor, &event, status);
}

static void set_keep_raw(struct actor *actor, unsigned shelf)
{
    struct event event = act_begin(OP_KEEP_RAW, shelf);
    char words[64];
    event.value = 1 + rng_below(&actor->rng, 6);
    snprintf(words, sizeof words, "keep_raw=%u links=%u parity=%s %s", (unsigned)event.value,
             (unsigned)rng_below(&actor->rng, 8), act_chance(actor, 2) ? "4+1" : "none",
             act_chance(actor, 2) ? WRITE_LINKS : WRITE_RAW);
    act_end(actor, &event, lmcs_shelf_set_policy(actor->pool, content_shelf(shelf), words, &err));
}

/* ---- Questions ---- */

static void list(struct actor *actor, unsigned shelf)
{
    uint64_t numbers[LIST_MOST];
    size_t count = 0;
    struct event event = act_begin(OP_LIST, shelf);
    event.number = act_chance(actor, 2) ? 0 : act_some_number(actor, shelf);
    event.arg = 1 + (uint32_t)rng_below(&actor->rng, LIST_MOST);
    enum lmcs_status status =
        lmcs_snapshot_numbers(actor->pool, content_shelf(shelf), event.number, numbers, event.arg, &count, &err);
    event.value = list_hash(numbers, count);
    act_end(actor, &event, status);
}

static void note_info(struct event *event, const struct lmcs_shelf_info *info)
{
    event->number = info->latest;
    event->ticket = info->next_number;
    event->arg = info->keep_raw;
    event->value = info->snapshot_count;
}

static void ask_shelf(struct actor *actor, unsigned shelf)
{
    struct lmcs_shelf_info info = {.latest = 0};
    struct event event = act_begin(OP_INFO, shelf);
    enum lmcs_status status = lmcs_shelf_info(actor->pool, content_shelf(shelf), &info, &err);
    note_info(&event, &info);
    act_end(actor, &event, status);
}

static bool note_listed(void *context, const struct lmcs_shelf_info *info)
{
    struct event *events = context;
    for (unsigned s = 0; s < SHELVES; s++) {
        if (strcmp(info->name, content_shelf(s)) != 0)
            continue;
        note_info(&events[s], info);
        events[s].found = true;
    }
    return true;
}

static void ask_shelves(struct actor *actor)
{
    struct event events[SHELVES];
    for (unsigned s = 0; s < SHELVES; s++) {
        events[s] = act_begin(OP_INFO, s);
        events[s].found = false;
    }
    OK(lmcs_shelf_list(actor->pool, note_listed, events, &err));
    for (unsigned s = 0; s < SHELVES; s++)
        act_end(actor, &events[s], events[s].found ? LMCS_OK : LMCS_NOT_FOUND);
}

static void ask_pool(struct actor *actor)
{
    struct lmcs_pool_info info;
    OK(lmcs_pool_info(actor->pool, &info, &err));
    EXPECT(info.epoch >= actor->epoch && info.live_bytes <= info.used_bytes);
    if (info.compaction_error[0] != '\0' && !actor->stage->tight) {
        fprintf(stderr, "compaction failed: %s\n", info.compaction_error);
        _exit(99);
    }
    actor->epoch = info.epoch;
}

/* ---- Long work ---- */

static bool go_on_for_a_while(void *context, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    (void)done;
    (void)total;
    return !act_chance(context, 6);
}

static void compact(struct actor *actor)
{
    struct lmcs_progress progress = {go_on_for_a_while, actor};
    const struct lmcs_progress *some = act_chance(actor, 2) ? &progress : NULL;
    enum lmcs_status status = act_chance(actor, 4) ? lmcs_compact_finished(actor->pool, NULL, some, &err)
                                                   : lmcs_compact(actor->pool, some, &err);
    if (status != LMCS_CANCELLED)
        is_full(actor, status);
}

static void disturb_compactor(struct actor *actor)
{
    if (act_chance(actor, 2)) {
        lmcs_compactor_pause(actor->pool);
        usleep(2000);
        lmcs_compactor_resume(actor->pool);
        return;
    }
    lmcs_compactor_stop(actor->pool);
    OK(lmcs_compactor_start(actor->pool, &err));
}

/* Other threads take room, so the limit may become too small. */
static void move_limit(struct actor *actor)
{
    struct lmcs_pool_info info;
    OK(lmcs_pool_info(actor->pool, &info, &err));
    uint64_t room = actor->stage->tight ? rng_below(&actor->rng, 8 << 20) : actor->stage->room_bytes;
    enum lmcs_status status =
        lmcs_pool_set_limit(actor->pool, info.used_bytes + room + rng_below(&actor->rng, room + 1), &err);
    if (status != LMCS_INVALID || !actor->stage->tight)
        OK(status);
}

static void verify(struct actor *actor, unsigned shelf)
{
    char address[64];
    struct lmcs_verify_report report = {.damages = 0};
    snprintf(address, sizeof address, act_chance(actor, 3) ? "%s" : "%s@latest~%u", content_shelf(shelf),
             (unsigned)rng_below(&actor->rng, KEEP_ABOUT));
    enum lmcs_status status =
        lmcs_verify(actor->pool, act_chance(actor, 3) ? NULL : address, NULL, NULL, NULL, &report, &err);
    if (status != LMCS_NOT_FOUND)
        OK(status);
    EXPECT(report.damages == 0);
}

/* A sound pool has no damage, also under load. */
static void scrub(struct actor *actor)
{
    struct lmcs_scrub_options options;
    struct lmcs_scrub_report report = {.damages = 0};
    lmcs_scrub_options_init(&options);
    options.repair = actor->writes && act_chance(actor, 2);
    options.sample_share = act_chance(actor, 3) ? 0 : 0.1;
    enum lmcs_status status = lmcs_scrub(actor->pool, &options, NULL, NULL, NULL, &report, &err);
    if (status != LMCS_FULL || !actor->stage->tight)
        OK(status);
    EXPECT(report.damages == 0);
}

static void dump(struct actor *actor, unsigned shelf)
{
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    EXPECT(fd >= 0);
    enum lmcs_status status =
        lmcs_dump(actor->pool, act_chance(actor, 2) ? NULL : content_shelf(shelf), fd, NULL, NULL, &err);
    if (status != LMCS_NOT_FOUND)
        OK(status);
    close(fd);
}

static void open_again(struct actor *actor)
{
    struct lmcs_pool *pool = open_pool(actor->stage->path, LMCS_OPEN_READ, 0);
    close_pool(actor->pool);
    actor->pool = pool;
}

/* ---- Actions ---- */

void actor_look_at_held(struct actor *actor)
{
    for (size_t i = 0; i < HELD_VIEWS; i++) {
        struct held_view *held = &actor->held[i];
        if (held->view == NULL)
            continue;
        act_check_view(actor, held->view, held->shelf, held->ticket);
        if (act_chance(actor, 4))
            act_close_held(held);
    }
}

static void act_as_writer(struct actor *actor, unsigned shelf)
{
    uint64_t dice = rng_below(&actor->rng, 400);
    if (dice < 70)
        capture(actor, shelf);
    else if (dice < 160)
        remove_one(actor, shelf);
    else if (dice < 220)
        act_tag(actor, shelf);
    else if (dice < 226)
        set_keep_raw(actor, shelf);
    else if (dice < 232)
        move_limit(actor);
    else if (dice < 236)
        compact(actor);
    else if (dice < 238)
        disturb_compactor(actor);
    else
        act_look(actor, shelf);
}

static void ask(struct actor *actor, unsigned shelf)
{
    switch (rng_below(&actor->rng, 12)) {
    case 0:
        ask_pool(actor);
        break;
    case 1:
        ask_shelves(actor);
        break;
    case 2:
    case 3:
    case 4:
        ask_shelf(actor, shelf);
        break;
    case 5:
    case 6:
        actor_look_at_held(actor);
        break;
    default:
        list(actor, shelf);
    }
}

void actor_act(struct actor *actor)
{
    unsigned shelf = (unsigned)rng_below(&actor->rng, SHELVES);
    uint64_t dice = rng_below(&actor->rng, 1000);
    if (dice < 1)
        verify(actor, shelf);
    else if (dice < 2)
        scrub(actor);
    else if (dice < 3)
        dump(actor, shelf);
    else if (dice < 5 && !actor->writes)
        open_again(actor);
    else if (dice < 180)
        ask(actor, shelf);
    else if (dice < 210)
        lively_ask(actor, shelf);
    else if (dice < 260 && actor->writes)
        lively_change(actor, shelf);
    else if (dice < 275 && actor->writes)
        lively_transact(actor);
    else if (dice < 280 && actor->writes)
        lively_look(actor);
    else if (actor->writes)
        act_as_writer(actor, shelf);
    else
        act_look(actor, shelf);
}

void actor_init(struct actor *actor, const struct stage *stage, struct log *log, unsigned index, uint64_t seed,
                bool writes)
{
    *actor = (struct actor){.stage = stage, .log = log, .index = index, .writes = writes, .rng = {seed}};
    for (unsigned e = 0; e < ENTRIES; e++) {
        actor->buffers[e] = malloc(content_bytes(stage->content, e));
        EXPECT(actor->buffers[e] != NULL);
    }
}

bool actor_log_is_full(const struct actor *actor)
{
    return atomic_load_explicit(&actor->log->count, memory_order_relaxed) + LOG_SPARE > LOG_EVENTS;
}

void actor_end(struct actor *actor)
{
    actor_look_at_held(actor);
    for (size_t i = 0; i < HELD_VIEWS; i++)
        act_close_held(&actor->held[i]);
    for (unsigned e = 0; e < ENTRIES; e++)
        free(actor->buffers[e]);
}

/* ---- At rest ---- */

static void find_by(struct actor *actor, unsigned shelf, struct event event, const char *which)
{
    struct lmcs_snapshot *snapshot;
    event.begun_ns = monotonic_ns();
    enum lmcs_status status = lmcs_snapshot_find(actor->pool, content_shelf(shelf), which, &snapshot, &err);
    if (status == LMCS_OK) {
        event.number = lmcs_snapshot_info(snapshot)->number;
        event.ticket = (uint64_t)lmcs_snapshot_info(snapshot)->step;
        lmcs_snapshot_close(snapshot);
    }
    act_end(actor, &event, status);
}

void actor_ask_everything(struct actor *actor, unsigned shelf)
{
    uint64_t numbers[MOST_PRESENT];
    size_t count = 0;
    ask_shelf(actor, shelf);
    lively_ask(actor, shelf);
    struct event event = act_begin(OP_LIST, shelf);
    event.arg = MOST_PRESENT;
    enum lmcs_status status =
        lmcs_snapshot_numbers(actor->pool, content_shelf(shelf), 0, numbers, MOST_PRESENT, &count, &err);
    event.value = list_hash(numbers, count);
    act_end(actor, &event, status);
    for (unsigned t = 0; t < TAGS; t++) {
        event = act_begin(OP_FIND_TAG, shelf);
        event.arg = t;
        find_by(actor, shelf, event, content_tag(t));
    }
    for (size_t i = 0; i < count; i++) {
        char which[32];
        snprintf(which, sizeof which, "%llu", (unsigned long long)numbers[i]);
        event = act_begin(OP_FIND_NUMBER, shelf);
        event.number = numbers[i];
        find_by(actor, shelf, event, which);
    }
}
