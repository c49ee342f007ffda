/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * history.c - see history.h.
 *
 * A state of the search is a position in each lane of consecutive events, and the model's state. The next event is a
 * head that began before any other head ended. Fitting events without a change are taken at once; others branch.
 */
#include "history.h"

#include <inttypes.h>

enum { MOST_LANES = 64 };

/* ---- The model ---- */

void model_init(struct model *model)
{
    memset(model, 0, sizeof *model);
    model->next = 1;
    model->keep_raw = DEFAULT_KEEP_RAW;
}

static uint64_t model_hash(const struct model *model)
{
    uint64_t hash = lmc_hash64(model->present, model->count * sizeof model->present[0], model->next);
    hash = lmc_hash64(model->tags, sizeof model->tags, hash);
    hash = lmc_hash64(&model->live, sizeof model->live, hash);
    return hash ^ (uint64_t)model->keep_raw << 1 ^ model->exists;
}

static size_t place_of(const struct model *model, uint64_t number, bool *there)
{
    size_t i = model->count;
    while (i > 0 && model->present[i - 1].number >= number)
        i--;
    *there = i < model->count && model->present[i].number == number;
    return i;
}

static uint64_t tags_on(const struct model *model, uint64_t number)
{
    uint64_t mask = 0;
    for (unsigned t = 0; t < TAGS; t++)
        if (model->tags[t] == number)
            mask |= (uint64_t)1 << t;
    return mask;
}

uint64_t list_hash(const uint64_t *numbers, size_t count)
{
    return lmc_hash64(numbers, count * sizeof *numbers, count);
}

static uint64_t listed(const struct model *model, uint64_t first, size_t most)
{
    uint64_t numbers[MOST_PRESENT];
    size_t count = 0;
    for (size_t i = 0; i < model->count && count < most; i++)
        if (model->present[i].number >= first)
            numbers[count++] = model->present[i].number;
    return list_hash(numbers, count);
}

/* Whether the one `back` before index i (count: none) was found. */
static bool fits(const struct model *model, const struct event *event, size_t i, uint64_t back)
{
    bool there = i < model->count && back <= i;
    if (!there || !event->found)
        return there == event->found;
    return model->present[i - back].number == event->number && model->present[i - back].ticket == event->ticket;
}

static bool fits_step(const struct model *model, const struct event *event)
{
    size_t i = 0;
    while (i < model->count && model->present[i].ticket != event->ticket)
        i++;
    return fits(model, event, i, 0);
}

static bool fits_info(const struct model *model, const struct event *event)
{
    if (!model->exists || !event->found)
        return model->exists == event->found;
    uint64_t latest = model->count == 0 ? 0 : model->present[model->count - 1].number;
    return event->number == latest && event->ticket == model->next && event->arg == model->keep_raw &&
           event->value == model->count;
}

static bool changes(const struct event *event)
{
    switch (event->op) {
    case OP_COMMIT:
    case OP_KEEP_RAW:
    case OP_LIVE_SET:
    case OP_LIVE_ADD:
        return true;
    case OP_LIVE_SWAP:
        return event->value == event->number;
    case OP_REMOVE:
        return event->found && event->arg == 0;
    case OP_TAG_SET:
    case OP_TAG_REMOVE:
        return event->found;
    default:
        return false;
    }
}

static unsigned bits(uint64_t mask)
{
    return (unsigned)__builtin_popcountll(mask);
}

static bool allows(const struct model *model, const struct event *event)
{
    bool there;
    size_t i = place_of(model, event->number, &there);
    switch (event->op) {
    case OP_COMMIT:
        return event->number == model->next && model->count < MOST_PRESENT;
    case OP_REMOVE:
        return event->found == there && (!there || event->value == bits(tags_on(model, event->number)));
    case OP_TAG_SET:
        return event->found == there;
    case OP_TAG_REMOVE:
        return event->found == (model->tags[event->arg] != 0);
    case OP_KEEP_RAW:
        return true;
    case OP_FIND_LATEST:
        return fits(model, event, model->count - 1, event->arg);
    case OP_FIND_NUMBER:
        return fits(model, event, there ? i : model->count, 0);
    case OP_FIND_TAG:
        i = place_of(model, model->tags[event->arg], &there);
        return fits(model, event, there ? i : model->count, event->value);
    case OP_FIND_STEP:
        return fits_step(model, event);
    case OP_LOOK:
        return event->found == there;
    case OP_TAGS:
        return event->found == there && (!there || event->value == tags_on(model, event->number));
    case OP_LIST:
        return event->found == model->exists &&
               (!event->found || event->value == listed(model, event->number, event->arg));
    case OP_INFO:
        return fits_info(model, event);
    case OP_LIVE_SET:
        return true;
    case OP_LIVE_GET:
    case OP_LIVE_ADD:
    case OP_LIVE_SWAP:
        return event->value == model->live;
    default:
        return false;
    }
}

/* Undoes a change. */
struct undo {
    bool exists;
    uint32_t keep_raw;
    uint64_t next;
    uint64_t tags[TAGS];
    size_t removed_at;
    uint64_t removed_ticket;
    uint64_t live;
};

static void insert(struct model *model, size_t i, uint64_t number, uint64_t ticket)
{
    memmove(&model->present[i + 1], &model->present[i], (model->count - i) * sizeof model->present[0]);
    model->present[i].number = number;
    model->present[i].ticket = ticket;
    model->count++;
}

static void take_out(struct model *model, size_t i)
{
    model->count--;
    memmove(&model->present[i], &model->present[i + 1], (model->count - i) * sizeof model->present[0]);
}

static void commit(struct model *model, const struct event *event)
{
    insert(model, model->count, event->number, event->ticket);
    model->next = event->number + 1;
    model->exists = true;
    for (unsigned t = 0; t < TAGS; t++)
        if ((event->value >> t & 1) != 0)
            model->tags[t] = event->number;
}

static void remove_snapshot(struct model *model, const struct event *event, struct undo *undo)
{
    bool there;
    undo->removed_at = place_of(model, event->number, &there);
    undo->removed_ticket = model->present[undo->removed_at].ticket;
    take_out(model, undo->removed_at);
    for (unsigned t = 0; t < TAGS; t++)
        if (model->tags[t] == event->number)
            model->tags[t] = 0;
}

static void apply(struct model *model, const struct event *event, struct undo *undo)
{
    *undo = (struct undo){.exists = model->exists, .keep_raw = model->keep_raw, .next = model->next};
    memcpy(undo->tags, model->tags, sizeof undo->tags);
    undo->live = model->live;
    if (event->op >= OP_LIVE_GET) {
        model->live = event->op == OP_LIVE_SET   ? event->value
                      : event->op == OP_LIVE_ADD ? model->live + event->number
                                                 : event->ticket;
    } else if (event->op == OP_COMMIT) {
        commit(model, event);
    } else if (event->op == OP_REMOVE) {
        remove_snapshot(model, event, undo);
    } else if (event->op == OP_KEEP_RAW) {
        model->exists = true;
        model->keep_raw = (uint32_t)event->value;
    } else {
        model->tags[event->arg] = event->op == OP_TAG_SET ? event->number : 0;
    }
}

static void take_back(struct model *model, const struct event *event, const struct undo *undo)
{
    if (event->op == OP_COMMIT)
        take_out(model, model->count - 1);
    if (event->op == OP_REMOVE)
        insert(model, undo->removed_at, event->number, undo->removed_ticket);
    model->exists = undo->exists;
    model->keep_raw = undo->keep_raw;
    model->next = undo->next;
    memcpy(model->tags, undo->tags, sizeof undo->tags);
    model->live = undo->live;
}

/* ---- The search ---- */

struct lane {
    const struct event **events;
    uint32_t count;
    uint32_t capacity;
};

/* A state, and the change by which the search leaves it. */
struct frame {
    uint32_t at[MOST_LANES];
    size_t done;
    bool entered;
    uint64_t tried; /* lanes tried as the next change */
    unsigned lane;
    struct undo undo;
};

struct search {
    struct model *model;
    struct lane lanes[MOST_LANES];
    unsigned lane_count;
    size_t event_count;
    struct frame *frames;
    size_t depth;
    size_t capacity;
    uint64_t *seen; /* open addressing; 0: empty */
    size_t seen_count;
    size_t seen_capacity; /* a power of two */
    struct frame deepest;
    struct model deepest_model;
};

static int by_begin(const void *a, const void *b)
{
    const struct event *const *x = a, *const *y = b;
    return ((*x)->begun_ns > (*y)->begun_ns) - ((*x)->begun_ns < (*y)->begun_ns);
}

static void lane_add(struct lane *lane, const struct event *event)
{
    if (lane->count == lane->capacity) {
        lane->capacity = lane->capacity == 0 ? 256 : lane->capacity * 2;
        lane->events = realloc(lane->events, lane->capacity * sizeof(struct event *));
        EXPECT(lane->events != NULL);
    }
    lane->events[lane->count++] = event;
}

static bool is_free_at(const struct lane *lane, uint64_t ns)
{
    return lane->count == 0 || lane->events[lane->count - 1]->ended_ns < ns;
}

static void lay_out(struct search *search, const struct event *events, size_t count)
{
    const struct event **sorted = malloc((count + 1) * sizeof(struct event *));
    EXPECT(sorted != NULL);
    for (size_t i = 0; i < count; i++)
        sorted[i] = &events[i];
    qsort(sorted, count, sizeof(struct event *), by_begin);
    for (size_t i = 0; i < count; i++) {
        unsigned lane = 0;
        while (lane < search->lane_count && !is_free_at(&search->lanes[lane], sorted[i]->begun_ns))
            lane++;
        EXPECT(lane < MOST_LANES);
        search->lane_count += lane == search->lane_count;
        lane_add(&search->lanes[lane], sorted[i]);
    }
    free(sorted);
    search->event_count = count;
}

static const struct event *head(const struct search *search, const struct frame *frame, unsigned lane)
{
    uint32_t at = frame->at[lane];
    return at < search->lanes[lane].count ? search->lanes[lane].events[at] : NULL;
}

/* Later events come after some head. */
static uint64_t first_end(const struct search *search, const struct frame *frame)
{
    uint64_t first = UINT64_MAX;
    for (unsigned lane = 0; lane < search->lane_count; lane++) {
        const struct event *event = head(search, frame, lane);
        if (event != NULL && event->ended_ns < first)
            first = event->ended_ns;
    }
    return first;
}

static void take_reads(const struct search *search, struct frame *frame)
{
    for (bool more = true; more;) {
        uint64_t last = first_end(search, frame);
        more = false;
        for (unsigned lane = 0; lane < search->lane_count; lane++) {
            const struct event *event = head(search, frame, lane);
            if (event == NULL || event->begun_ns > last || changes(event) || !allows(search->model, event))
                continue;
            frame->at[lane]++;
            frame->done++;
            more = true;
        }
    }
}

static void widen(struct search *search)
{
    size_t old_capacity = search->seen_capacity;
    uint64_t *old = search->seen;
    search->seen_capacity = old_capacity == 0 ? 4096 : old_capacity * 2;
    search->seen = calloc(search->seen_capacity, sizeof *search->seen);
    EXPECT(search->seen != NULL);
    for (size_t k = 0; k < old_capacity; k++) {
        size_t i = old[k] & (search->seen_capacity - 1);
        while (old[k] != 0 && search->seen[i] != 0)
            i = (i + 1) & (search->seen_capacity - 1);
        if (old[k] != 0)
            search->seen[i] = old[k];
    }
    free(old);
}

static bool remember(struct search *search, const struct frame *frame)
{
    uint64_t key = lmc_hash64(frame->at, search->lane_count * sizeof frame->at[0], model_hash(search->model)) | 1;
    if (search->seen_count * 2 >= search->seen_capacity)
        widen(search);
    size_t i = key & (search->seen_capacity - 1);
    for (; search->seen[i] != 0; i = (i + 1) & (search->seen_capacity - 1))
        if (search->seen[i] == key)
            return false;
    search->seen[i] = key;
    search->seen_count++;
    return true;
}

static struct frame *push(struct search *search)
{
    if (search->depth == search->capacity) {
        search->capacity = search->capacity == 0 ? 256 : search->capacity * 2;
        search->frames = realloc(search->frames, search->capacity * sizeof *search->frames);
        EXPECT(search->frames != NULL);
    }
    return &search->frames[search->depth++];
}

/* The untried change that ended first. MOST_LANES: none. */
static unsigned choose(const struct search *search, const struct frame *frame)
{
    unsigned best = MOST_LANES;
    uint64_t last = first_end(search, frame), best_end = UINT64_MAX;
    for (unsigned lane = 0; lane < search->lane_count; lane++) {
        const struct event *event = head(search, frame, lane);
        if (event == NULL || (frame->tried >> lane & 1) != 0 || event->begun_ns > last || !changes(event) ||
            event->ended_ns >= best_end || !allows(search->model, event))
            continue;
        best = lane;
        best_end = event->ended_ns;
    }
    return best;
}

/* False: searched before. */
static bool enter(struct search *search, struct frame *frame)
{
    take_reads(search, frame);
    frame->entered = true;
    if (frame->done >= search->deepest.done) {
        search->deepest = *frame;
        search->deepest_model = *search->model;
    }
    return remember(search, frame);
}

static void descend(struct search *search, unsigned lane)
{
    struct frame *next = push(search), *frame = next - 1;
    frame->tried |= (uint64_t)1 << lane;
    frame->lane = lane;
    apply(search->model, head(search, frame, lane), &frame->undo);
    memcpy(next->at, frame->at, sizeof next->at);
    next->at[lane]++;
    next->done = frame->done + 1;
    next->entered = false;
    next->tried = 0;
}

static void ascend(struct search *search)
{
    if (--search->depth == 0)
        return;
    struct frame *frame = &search->frames[search->depth - 1];
    take_back(search->model, head(search, frame, frame->lane), &frame->undo);
}

static enum verdict run(struct search *search, uint64_t most_states)
{
    memset(push(search), 0, sizeof(struct frame));
    while (search->depth > 0) {
        struct frame *frame = &search->frames[search->depth - 1];
        bool fresh = frame->entered || enter(search, frame);
        if (frame->done == search->event_count)
            return LINEARISABLE;
        if (search->seen_count > most_states)
            return UNDECIDED;
        unsigned lane = fresh ? choose(search, frame) : MOST_LANES;
        if (lane == MOST_LANES)
            ascend(search);
        else
            descend(search, lane);
    }
    return NOT_LINEARISABLE;
}

/* ---- Printing ---- */

static const char *const op_names[OPS] = {"commit",
                                          "remove",
                                          "set tag",
                                          "remove tag",
                                          "keep_raw",
                                          "find latest",
                                          "find",
                                          "find tag",
                                          "find step",
                                          "look at",
                                          "tags of",
                                          "list from",
                                          "shelf info",
                                          "read the register of",
                                          "set the register of",
                                          "add to the register of",
                                          "compare and swap the register of"};

void event_print(const struct event *event, uint64_t start_ns, char *line, size_t bytes)
{
    snprintf(line, bytes,
             "%s of \"%s\", %" PRIu64 ".%03" PRIu64 " to %" PRIu64 ".%03" PRIu64 " us: %s; number %" PRIu64
             ", ticket %" PRIx64 ", arg %" PRIu32 ", value %" PRIx64,
             op_names[event->op], content_shelf(event->shelf), (event->begun_ns - start_ns) / 1000,
             (event->begun_ns - start_ns) % 1000, (event->ended_ns - start_ns) / 1000,
             (event->ended_ns - start_ns) % 1000, event->found ? "found" : "not found", event->number, event->ticket,
             event->arg, event->value);
}

static size_t print_model(const struct model *model, char *text, size_t bytes)
{
    size_t n = (size_t)snprintf(text, bytes, "next number %" PRIu64 ", keep_raw %" PRIu32 ", tags", model->next,
                                model->keep_raw);
    for (unsigned t = 0; t < TAGS && n < bytes; t++)
        n += (size_t)snprintf(text + n, bytes - n, " %s:%" PRIu64, content_tag(t), model->tags[t]);
    n += n < bytes ? (size_t)snprintf(text + n, bytes - n, ", snapshots") : 0;
    n += n < bytes ? (size_t)snprintf(text + n, bytes - n, "; register %" PRIx64 "; ", model->live) : 0;
    for (size_t i = model->count > 40 ? model->count - 40 : 0; i < model->count && n < bytes; i++)
        n += (size_t)snprintf(text + n, bytes - n, " %" PRIu64, model->present[i].number);
    return n < bytes ? n : bytes;
}

static void explain(const struct search *search, uint64_t start_ns, struct verdict_report *report)
{
    const struct frame *frame = &search->deepest;
    size_t n = (size_t)snprintf(report->text, sizeof report->text,
                                "%zu of %zu calls can be put in order; then: ", frame->done, search->event_count);
    n += print_model(&search->deepest_model, report->text + n, sizeof report->text - n);
    uint64_t last = first_end(search, frame);
    for (unsigned lane = 0; lane < search->lane_count; lane++) {
        const struct event *event = head(search, frame, lane);
        char line[300];
        if (event == NULL || event->begun_ns > last)
            continue;
        event_print(event, start_ns, line, sizeof line);
        if (n < sizeof report->text)
            n += (size_t)snprintf(report->text + n, sizeof report->text - n, "\n    next may come: %s", line);
    }
}

enum verdict history_check(struct model *model, const struct event *events, size_t count, uint64_t most_states,
                           struct verdict_report *report)
{
    struct search *search = calloc(1, sizeof *search);
    EXPECT(search != NULL);
    search->model = model;
    lay_out(search, events, count);
    enum verdict verdict = run(search, most_states);
    *report = (struct verdict_report){.states = search->seen_count, .most_at_once = search->lane_count};
    if (verdict != LINEARISABLE)
        explain(search, search->lane_count > 0 ? search->lanes[0].events[0]->begun_ns : 0, report);
    for (unsigned lane = 0; lane < search->lane_count; lane++)
        free(search->lanes[lane].events);
    free(search->frames);
    free(search->seen);
    free(search);
    return verdict;
}
