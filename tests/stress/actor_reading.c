/* SPDX-License-Identifier: BSD-3-Clause */
/* actor_reading.c - an actor's calls on a snapshot. */
#include "actor.h"
#include "lively.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

/* ---- Reading a snapshot ---- */

struct looking {
    struct lmcs_snapshot *snapshot;
    unsigned shelf;
    uint64_t number;
    uint64_t ticket;
    uint64_t age; /* snapshots after it; UINT64_MAX: unknown */
};

static void check_info(const struct lmcs_snapshot_info *info, unsigned shelf)
{
    char meta[64];
    uint64_t ticket = (uint64_t)info->step;
    snprintf(meta, sizeof meta, "{\"ticket\":%llu}", (unsigned long long)ticket);
    EXPECT(strcmp(info->shelf, content_shelf(shelf)) == 0 && strcmp(info->meta_json, meta) == 0);
    EXPECT(info->metric_count == 1 && info->metrics[0].value == (double)ticket);
    EXPECT(info->tensor_count == act_entries_of(ticket) - 1 && info->parent < info->number);
}

static void choose_address(struct actor *actor, unsigned shelf, struct event *event, char which[64])
{
    size_t i = rng_below(&actor->rng, KNOWN);
    event->op = (uint8_t)(OP_FIND_LATEST + rng_below(&actor->rng, 4));
    if (event->op == OP_FIND_STEP && actor->known[shelf][i].ticket == 0)
        event->op = OP_FIND_LATEST;
    switch (event->op) {
    case OP_FIND_NUMBER:
        event->number = act_some_number(actor, shelf);
        snprintf(which, 64, "%llu", (unsigned long long)event->number);
        break;
    case OP_FIND_TAG:
        event->arg = (uint32_t)rng_below(&actor->rng, TAGS);
        event->value = act_chance(actor, 3) ? rng_below(&actor->rng, 4) : 0;
        snprintf(which, 64, event->value == 0 ? "%s" : "%s~%llu", content_tag(event->arg),
                 (unsigned long long)event->value);
        break;
    case OP_FIND_STEP:
        event->ticket = actor->known[shelf][i].ticket;
        snprintf(which, 64, "step:%llu", (unsigned long long)event->ticket);
        break;
    default:
        event->arg = (uint32_t)rng_below(&actor->rng, act_chance(actor, 2) ? 4 : KEEP_AT_MOST);
        snprintf(which, 64, "latest~%u", event->arg);
    }
}

static bool find(struct actor *actor, unsigned shelf, struct looking *looking)
{
    char which[64];
    struct event event = act_begin(OP_FIND_LATEST, shelf);
    choose_address(actor, shelf, &event, which);
    event.begun_ns = monotonic_ns();
    *looking = (struct looking){.shelf = shelf, .age = event.op == OP_FIND_LATEST ? event.arg : UINT64_MAX};
    enum lmcs_status status = lmcs_snapshot_find(actor->pool, content_shelf(shelf), which, &looking->snapshot, &err);
    event.ended_ns = monotonic_ns();
    if (status == LMCS_OK) {
        const struct lmcs_snapshot_info *info = lmcs_snapshot_info(looking->snapshot);
        check_info(info, shelf);
        EXPECT(event.op != OP_FIND_NUMBER || info->number == event.number);
        EXPECT(event.op != OP_FIND_STEP || (uint64_t)info->step == event.ticket);
        looking->number = event.number = info->number;
        looking->ticket = event.ticket = (uint64_t)info->step;
        act_know(actor, shelf, event.number, event.ticket);
    } else if (status != LMCS_NOT_FOUND) {
        OK(status);
    }
    event.found = status == LMCS_OK;
    act_write_down(actor, &event);
    act_took(actor, SPAN_FIND, &event);
    return event.found;
}

static struct event begin_look(enum op op, const struct looking *looking)
{
    struct event event = act_begin(op, looking->shelf);
    event.number = looking->number;
    return event;
}

void act_close_held(struct held_view *held)
{
    lmcs_view_close(held->view);
    held->view = NULL;
}

/* Overwrites private memory first, which must be invisible to others. */
static void keep_or_close(struct actor *actor, struct lmcs_view *view, const struct looking *looking, uint32_t flags)
{
    struct held_view *held = &actor->held[rng_below(&actor->rng, HELD_VIEWS)];
    if (act_chance(actor, 3)) {
        if (held->view != NULL)
            act_check_view(actor, held->view, held->shelf, held->ticket);
        act_close_held(held);
        *held = (struct held_view){view, looking->shelf, looking->ticket};
        return;
    }
    for (size_t i = 0; (flags & LMCS_VIEW_PRIVATE) != 0 && i < lmcs_view_count(view); i++)
        memset(lmcs_view_data(view, i), 0x5a, lmcs_view_entry(view, i)->raw_bytes);
    lmcs_view_close(view);
}

static void note_view(struct actor *actor, const struct looking *looking, uint32_t flags, const struct event *event)
{
    if (flags == 0)
        act_took(actor, SPAN_VIEW, event);
    if (flags == LMCS_VIEW_COPY && looking->age != UINT64_MAX)
        act_took(actor,
                 looking->age < 4    ? SPAN_RESTORE_NEW
                 : looking->age < 12 ? SPAN_RESTORE_AGING
                                     : SPAN_RESTORE_OLD,
                 event);
}

static void view_all(struct actor *actor, const struct looking *looking)
{
    static const uint32_t all_flags[] = {0,
                                         LMCS_VIEW_PRIVATE,
                                         LMCS_VIEW_VERIFY,
                                         LMCS_VIEW_COPY,
                                         LMCS_VIEW_COPY,
                                         LMCS_VIEW_PRIVATE | LMCS_VIEW_VERIFY,
                                         LMCS_VIEW_COPY | LMCS_VIEW_PRIVATE};
    uint32_t flags = all_flags[rng_below(&actor->rng, sizeof all_flags / sizeof all_flags[0])];
    struct lmcs_view *view;
    struct event event = begin_look(OP_LOOK, looking);
    if (!act_end(actor, &event, lmcs_view_open(looking->snapshot, NULL, NULL, 0, flags, &view, &err)))
        return;
    note_view(actor, looking, flags, &event);
    EXPECT(lmcs_view_count(view) == act_entries_of(looking->ticket));
    act_check_view(actor, view, looking->shelf, looking->ticket);
    keep_or_close(actor, view, looking, flags);
}

static void view_some(struct actor *actor, const struct looking *looking)
{
    const char *names[ENTRIES];
    uint32_t kinds[ENTRIES], flags = act_chance(actor, 2) ? 0 : LMCS_VIEW_PRIVATE;
    size_t count = 0;
    for (unsigned e = 0; e < ENTRIES; e++) {
        if (!content_has(e, looking->ticket) || act_chance(actor, 2))
            continue;
        names[count] = content_name(e);
        kinds[count++] = e == ATTACHMENT ? LMCS_ATTACHMENT : LMCS_TENSOR;
    }
    struct lmcs_view *view;
    struct event event = begin_look(OP_LOOK, looking);
    if (!act_end(actor, &event, lmcs_view_open(looking->snapshot, names, kinds, count, flags, &view, &err)))
        return;
    EXPECT(lmcs_view_count(view) == count);
    act_check_view(actor, view, looking->shelf, looking->ticket);
    keep_or_close(actor, view, looking, flags);
}

static void read_one(struct actor *actor, const struct looking *looking)
{
    unsigned e = (unsigned)rng_below(&actor->rng, ENTRIES);
    if (!content_has(e, looking->ticket))
        return;
    uint64_t bytes = content_bytes(actor->stage->content, e);
    struct event event = begin_look(OP_LOOK, looking);
    enum lmcs_status status = lmcs_snapshot_read(looking->snapshot, e == ATTACHMENT ? LMCS_ATTACHMENT : LMCS_TENSOR,
                                                 content_name(e), actor->buffers[e], bytes, &err);
    if (!act_end(actor, &event, status))
        return;
    act_took(actor, SPAN_READ, &event);
    act_check(actor, looking->shelf, e, looking->ticket, actor->buffers[e]);
}

struct visiting {
    struct actor *actor;
    uint64_t ticket;
    size_t count;
};

static bool visit_entry(void *context, const struct lmcs_entry *entry)
{
    struct visiting *visiting = context;
    act_check_entry(visiting->actor, entry, visiting->ticket);
    visiting->count++;
    return true;
}

static void list_entries(struct actor *actor, const struct looking *looking)
{
    struct visiting visiting = {actor, looking->ticket, 0};
    struct event event = begin_look(OP_LOOK, looking);
    if (act_end(actor, &event, lmcs_snapshot_entries(looking->snapshot, visit_entry, &visiting, &err)))
        EXPECT(visiting.count == act_entries_of(looking->ticket));
}

static void ask_digest(struct actor *actor, const struct looking *looking)
{
    struct lmc_hash digest = {0, 0};
    struct event event = begin_look(OP_LOOK, looking);
    enum lmcs_status status = lmcs_snapshot_digest(looking->snapshot, &digest, &err);
    event.value = digest.low ^ digest.high;
    event.ticket = looking->ticket;
    act_end(actor, &event, status);
}

static void ask_storage(struct actor *actor, const struct looking *looking)
{
    struct lmcs_snapshot_storage storage;
    struct event event = begin_look(OP_LOOK, looking);
    if (!act_end(actor, &event, lmcs_snapshot_storage(looking->snapshot, &storage, &err)))
        return;
    uint64_t contents =
        storage.raw_contents + storage.delta_contents + storage.keyframe_contents + storage.link_contents;
    EXPECT(contents > 0 && contents <= ENTRIES + RELATIONS);
    EXPECT((storage.longest_chain > 0) == (storage.delta_contents > 0));
    EXPECT((storage.longest_line > 0) == (storage.link_contents > 0));
}

static bool note_tag(void *context, const char *tag)
{
    for (unsigned t = 0; t < TAGS; t++)
        if (strcmp(tag, content_tag(t)) == 0)
            *(uint64_t *)context |= (uint64_t)1 << t;
    return true;
}

static void ask_tags(struct actor *actor, const struct looking *looking)
{
    struct event event = begin_look(OP_TAGS, looking);
    act_end(actor, &event, lmcs_snapshot_tags(looking->snapshot, note_tag, &event.value, &err));
}

void act_look(struct actor *actor, unsigned shelf)
{
    static void (*const ways[])(struct actor * actor, const struct looking *looking) = {
        view_all, view_all, view_some, read_one, read_one, list_entries, ask_digest, ask_storage, ask_tags, ask_tags};
    struct looking looking;
    if (!find(actor, shelf, &looking))
        return;
    for (uint64_t left = rng_below(&actor->rng, 4); left > 0; left--)
        ways[rng_below(&actor->rng, sizeof ways / sizeof ways[0])](actor, &looking);
    if (act_chance(actor, 8))
        lmcs_snapshot_mark_loaded(looking.snapshot);
    lmcs_snapshot_close(looking.snapshot);
}
