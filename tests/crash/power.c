/* SPDX-License-Identifier: BSD-3-Clause */
/* power.c - see power.h. */
#include "power.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lmc.h"

#define PAGE       4096u
#define PAGE_LINES (PAGE / RECORD_LINE)
#define SECTOR     512u
#define LINES      (RECORD_SPAN / RECORD_LINE)
#define PAGES      (RECORD_SPAN / PAGE)

/* After the store of `event`. */
struct version {
    uint64_t event;
    const unsigned char *bytes;
};

struct dirty {
    uint64_t line;
    struct version *versions;
    size_t count;
    size_t capacity;
};

struct flushed {
    uint64_t line;
    uint64_t event;
    uint32_t thread;
};

/* Lines that arrive together, as places in the sorted list. */
struct unit {
    size_t first;
    size_t count;
};

enum image_kind { NONE, ALL, ONE, ALL_BUT_ONE, SUBSET, MIXTURE };
struct image {
    enum image_kind kind;
    uint64_t unit; /* ONE, ALL_BUT_ONE; SUBSET: a bit for each unit */
    uint64_t seed;
};

struct change {
    uint64_t line;
    unsigned char bytes[RECORD_LINE];
};

struct power {
    const struct record *record;
    enum record_medium medium;
    int file;
    unsigned char *mapped;
    unsigned char *durable;
    uint64_t hash;
    uint64_t event;
    uint64_t points;
    bool shown;
    bool stopped;
    uint32_t *index; /* 1 + place among the dirty lines */
    struct dirty *dirty;
    size_t dirty_count;
    size_t dirty_capacity;
    struct flushed *flushed;
    size_t flushed_count;
    size_t flushed_capacity;
    unsigned char *backed; /* with file space */
    uint64_t pages;        /* none from here on */
    /* the point */
    struct unit *units;
    size_t unit_count;
    size_t unit_capacity;
    size_t *runs; /* starts of adjacent runs, and the end */
    size_t run_count;
    struct image *images;
    size_t image_count;
    size_t image_capacity;
    struct change *changes;
    size_t change_count;
    size_t change_capacity;
    char words[128];
};

static void *reserve(uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(at != MAP_FAILED);
    return at;
}

static void *grown(void *array, size_t *capacity, size_t count, size_t item)
{
    if (count < *capacity)
        return array;
    *capacity = *capacity == 0 ? 64 : *capacity * 2;
    array = realloc(array, *capacity * item);
    EXPECT(array != NULL);
    return array;
}

static uint64_t line_hash(uint64_t line, const void *bytes)
{
    return lmc_hash64(bytes, RECORD_LINE, line);
}

/* ---- The file ---- */

static void set_backed(struct power *power, uint64_t offset, uint64_t bytes, bool yes)
{
    uint64_t end = (offset + bytes + PAGE - 1) / PAGE;
    memset(power->backed + offset / PAGE, yes, end - offset / PAGE);
    power->pages = power->pages < end ? end : power->pages;
}

static void load(struct power *power)
{
    for (off_t at = 0, end; (at = lseek(power->file, at, SEEK_DATA)) >= 0; at = end) {
        end = lseek(power->file, at, SEEK_HOLE);
        EXPECT(end > at);
        set_backed(power, (uint64_t)at, (uint64_t)(end - at), true);
        memcpy(power->durable + at, power->mapped + at, (size_t)(end - at));
    }
}

struct power *power_new(const struct record *record, enum record_medium medium, int file)
{
    struct power *power = calloc(1, sizeof *power);
    struct stat st;
    EXPECT(power != NULL && fstat(file, &st) == 0 && (uint64_t)st.st_size <= RECORD_SPAN);
    power->record = record;
    power->medium = medium;
    power->file = file;
    power->mapped = mmap(NULL, RECORD_SPAN, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT(power->mapped != MAP_FAILED);
    power->durable = reserve(RECORD_SPAN);
    power->index = reserve(LINES * sizeof *power->index);
    power->backed = reserve(PAGES);
    load(power);
    power->shown = power->pages > 0;
    return power;
}

void power_free(struct power *power)
{
    munmap(power->mapped, RECORD_SPAN);
    munmap(power->durable, RECORD_SPAN);
    munmap(power->index, LINES * sizeof *power->index);
    munmap(power->backed, PAGES);
    for (size_t i = 0; i < power->dirty_capacity; i++)
        free(power->dirty[i].versions);
    free(power->dirty);
    free(power->flushed);
    free(power->units);
    free(power->runs);
    free(power->images);
    free(power->changes);
    free(power);
}

static bool is_zero(const unsigned char *page)
{
    static const unsigned char zeros[PAGE];
    return memcmp(page, zeros, PAGE) == 0;
}

static void punch(struct power *power, uint64_t page)
{
    EXPECT(fallocate(power->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(page * PAGE), PAGE) == 0);
}

void power_take_back(struct power *power)
{
    /* Reading a page in memory allocates it: punch again. */
    for (uint64_t page = 0; page < power->pages; page++) {
        unsigned char *now = power->mapped + page * PAGE, *then = power->durable + page * PAGE;
        if (power->backed[page] && memcmp(now, then, PAGE) != 0)
            memcpy(now, then, PAGE);
    }
    for (off_t at = 0, end; (at = lseek(power->file, at, SEEK_DATA)) >= 0; at = end) {
        end = lseek(power->file, at, SEEK_HOLE);
        EXPECT(end > at);
        for (uint64_t page = (uint64_t)at / PAGE; page * PAGE < (uint64_t)end; page++) {
            unsigned char *now = power->mapped + page * PAGE, *then = power->durable + page * PAGE;
            if (power->backed[page])
                continue;
            if (is_zero(then))
                punch(power, page);
            else if (memcmp(now, then, PAGE) != 0)
                memcpy(now, then, PAGE);
        }
    }
}

/* ---- Following the record ---- */

static void make_durable(struct power *power, uint64_t line, const unsigned char *bytes)
{
    unsigned char *at = power->durable + line * RECORD_LINE;
    power->hash ^= line_hash(line, at) ^ line_hash(line, bytes);
    memcpy(at, bytes, RECORD_LINE);
    memcpy(power->mapped + line * RECORD_LINE, bytes, RECORD_LINE);
}

static void stored(struct power *power, uint64_t line, const unsigned char *bytes)
{
    if (power->index[line] == 0) {
        size_t before = power->dirty_capacity;
        power->dirty = grown(power->dirty, &power->dirty_capacity, power->dirty_count, sizeof *power->dirty);
        if (power->dirty_capacity > before)
            memset(&power->dirty[before], 0, (power->dirty_capacity - before) * sizeof *power->dirty);
        power->dirty[power->dirty_count].line = line;
        power->dirty[power->dirty_count].count = 0;
        power->index[line] = (uint32_t)++power->dirty_count;
    }
    struct dirty *dirty = &power->dirty[power->index[line] - 1];
    dirty->versions = grown(dirty->versions, &dirty->capacity, dirty->count, sizeof *dirty->versions);
    dirty->versions[dirty->count++] = (struct version){power->event, bytes};
}

static void clean(struct power *power, size_t i)
{
    struct dirty *last = &power->dirty[power->dirty_count - 1], gone = power->dirty[i];
    power->index[gone.line] = 0;
    if (&power->dirty[i] != last) {
        power->dirty[i] = *last;
        power->index[last->line] = (uint32_t)(i + 1);
        *last = gone;
    }
    power->dirty_count--;
}

/* `event` or a later state is durable. */
static void guarantee(struct power *power, uint64_t line, uint64_t event)
{
    if (power->index[line] == 0)
        return;
    struct dirty *dirty = &power->dirty[power->index[line] - 1];
    size_t old = 0;
    while (old < dirty->count && dirty->versions[old].event <= event)
        old++;
    if (old == 0)
        return;
    make_durable(power, line, dirty->versions[old - 1].bytes);
    dirty->count -= old;
    memmove(dirty->versions, dirty->versions + old, dirty->count * sizeof *dirty->versions);
    if (dirty->count == 0)
        clean(power, power->index[line] - 1);
}

static void fence(struct power *power, uint32_t thread)
{
    size_t kept = 0;
    for (size_t i = 0; i < power->flushed_count; i++) {
        if (power->flushed[i].thread == thread)
            guarantee(power, power->flushed[i].line, power->flushed[i].event);
        else
            power->flushed[kept++] = power->flushed[i];
    }
    power->flushed_count = kept;
}

static void flush(struct power *power, const struct record_event *event)
{
    for (uint64_t line = event->offset / RECORD_LINE; line * RECORD_LINE < event->offset + event->bytes; line++) {
        if (power->index[line] == 0)
            continue;
        power->flushed = grown(power->flushed, &power->flushed_capacity, power->flushed_count, sizeof *power->flushed);
        power->flushed[power->flushed_count++] = (struct flushed){line, power->event, event->thread};
    }
}

/* Rounds to whole pages, like msync. */
static void synchronize(struct power *power, uint64_t offset, uint64_t bytes)
{
    uint64_t first = offset / PAGE * PAGE_LINES, end = (offset + bytes + PAGE - 1) / PAGE * PAGE_LINES;
    for (size_t i = power->dirty_count; i-- > 0;)
        if (power->dirty[i].line >= first && power->dirty[i].line < end)
            guarantee(power, power->dirty[i].line, power->event);
}

static void happen(struct power *power, const struct record_event *event)
{
    switch ((enum record_kind)event->kind) {
    case RECORD_STORE:
        set_backed(power, event->offset, event->bytes, true);
        for (uint64_t at = 0; at < event->bytes; at += RECORD_LINE)
            stored(power, (event->offset + at) / RECORD_LINE, power->record->data + event->data + at);
        break;
    case RECORD_FLUSH:
        flush(power, event);
        break;
    case RECORD_FENCE:
        fence(power, event->thread);
        break;
    case RECORD_SYNC:
        synchronize(power, event->offset, event->bytes);
        break;
    case RECORD_BACK:
        set_backed(power, event->offset, event->bytes, true);
        EXPECT(fallocate(power->file, 0, (off_t)event->offset, (off_t)event->bytes) == 0);
        break;
    case RECORD_PUNCH:
        break;
    case RECORD_PUNCHED:
        set_backed(power, event->offset, event->bytes, false);
        if (power->medium == RECORD_DAX)
            synchronize(power, event->offset, event->bytes);
        break;
    case RECORD_SHOWN:
        power->shown = true;
        break;
    case RECORD_MARK:
        break;
    }
}

static const char *name_point(uint32_t kind)
{
    return kind == RECORD_FENCE ? "fence" : kind == RECORD_SYNC ? "sync" : kind == RECORD_PUNCH ? "punch" : NULL;
}

uint64_t power_count(const struct record *record, bool shown)
{
    uint64_t count = 1;
    for (size_t i = 0; i < record->count; i++) {
        shown |= record->events[i].kind == RECORD_SHOWN;
        count += shown && name_point(record->events[i].kind) != NULL;
    }
    return count;
}

bool power_next(struct power *power, struct power_point *point)
{
    for (; power->event < power->record->count; power->event++) {
        const struct record_event *event = &power->record->events[power->event];
        const char *name = name_point(event->kind);
        if (name != NULL && power->shown && !power->stopped) {
            *point = (struct power_point){power->event, power->points++, name};
            power->stopped = true;
            return true;
        }
        power->stopped = false;
        happen(power, event);
    }
    *point = (struct power_point){power->event, power->points++, "end"};
    return power->shown && power->event++ == power->record->count;
}

/* ---- Images ---- */

static int by_line(const void *a, const void *b)
{
    const struct dirty *x = a, *y = b;
    return (x->line > y->line) - (x->line < y->line);
}

static void find_units(struct power *power)
{
    uint64_t lines = power->medium == RECORD_DAX ? 1 : PAGE_LINES;
    if (power->dirty_count > 0)
        qsort(power->dirty, power->dirty_count, sizeof *power->dirty, by_line);
    power->unit_count = power->run_count = 0;
    for (size_t i = 0; i < power->dirty_count; i++) {
        uint64_t name = power->dirty[i].line / lines, before = i > 0 ? power->dirty[i - 1].line / lines : 0;
        power->index[power->dirty[i].line] = (uint32_t)(i + 1);
        if (i > 0 && name == before) {
            power->units[power->unit_count - 1].count++;
            continue;
        }
        size_t capacity = power->unit_capacity;
        power->units = grown(power->units, &power->unit_capacity, power->unit_count, sizeof *power->units);
        if (power->unit_capacity != capacity) {
            power->runs = realloc(power->runs, (power->unit_capacity + 1) * sizeof *power->runs);
            EXPECT(power->runs != NULL);
        }
        if (i == 0 || name != before + 1)
            power->runs[power->run_count++] = power->unit_count;
        power->units[power->unit_count++] = (struct unit){i, 1};
    }
    if (power->unit_count > 0)
        power->runs[power->run_count] = power->unit_count;
}

/* Picks isolated units (metadata) as often as all of a long payload. */
static uint64_t some_unit(const struct power *power, struct rng *rng)
{
    uint64_t run = rng_below(rng, power->run_count), first = power->runs[run];
    return first + rng_below(rng, power->runs[run + 1] - first);
}

static void add_image(struct power *power, enum image_kind kind, uint64_t unit, uint64_t seed)
{
    power->images = grown(power->images, &power->image_capacity, power->image_count, sizeof *power->images);
    power->images[power->image_count++] = (struct image){kind, unit, seed};
}

size_t power_plan(struct power *power, size_t most, uint64_t seed)
{
    struct rng rng = {seed};
    find_units(power);
    power->image_count = 0;
    add_image(power, NONE, 0, 0);
    if (power->unit_count == 0)
        return 1;
    if (power->unit_count > 1)
        add_image(power, ALL, 0, 0);
    size_t left = most > 2 ? most - 2 : 0;
    if (power->unit_count <= 4) {
        uint64_t subsets = ((uint64_t)1 << power->unit_count) - 1;
        for (uint64_t bits = 1; bits < subsets + (power->unit_count == 1); bits++)
            if (subsets <= left || rng_below(&rng, subsets) < left)
                add_image(power, SUBSET, bits, 0);
        left = (left + 3) / 4;
    }
    for (size_t i = 0; i < left; i++) {
        bool few = power->unit_count <= 4;
        switch (few ? 2 : i % 4) {
        case 0:
            add_image(power, ONE, some_unit(power, &rng), 0);
            break;
        case 1:
            add_image(power, ALL_BUT_ONE, some_unit(power, &rng), 0);
            break;
        default:
            add_image(power, MIXTURE, 0, rng_next(&rng));
        }
    }
    return power->image_count;
}

static void change(struct power *power, uint64_t line, const unsigned char *bytes)
{
    if (memcmp(bytes, power->durable + line * RECORD_LINE, RECORD_LINE) == 0)
        return;
    power->changes = grown(power->changes, &power->change_capacity, power->change_count, sizeof *power->changes);
    power->changes[power->change_count].line = line;
    memcpy(power->changes[power->change_count++].bytes, bytes, RECORD_LINE);
}

static const unsigned char *as_of(const struct power *power, const struct dirty *dirty, uint64_t event)
{
    const unsigned char *bytes = power->durable + dirty->line * RECORD_LINE;
    for (size_t i = 0; i < dirty->count && dirty->versions[i].event <= event; i++)
        bytes = dirty->versions[i].bytes;
    return bytes;
}

/* A store to the unit, or before the first. */
static uint64_t some_moment(const struct power *power, const struct unit *unit, struct rng *rng)
{
    const struct dirty *dirty = &power->dirty[unit->first + rng_below(rng, unit->count)];
    uint64_t i = rng_below(rng, dirty->count + 1);
    return i == dirty->count ? UINT64_MAX : dirty->versions[i].event;
}

static void mix_line(struct power *power, const struct unit *unit, bool torn, struct rng *rng)
{
    const struct dirty *dirty = &power->dirty[unit->first];
    unsigned char mixed[RECORD_LINE];
    memcpy(mixed, as_of(power, dirty, some_moment(power, unit, rng)), sizeof mixed);
    const unsigned char *other = as_of(power, dirty, some_moment(power, unit, rng));
    uint64_t words = torn ? rng_next(rng) : 0;
    for (size_t word = 0; word < RECORD_LINE / 8; word++)
        if (words >> word & 1)
            memcpy(mixed + word * 8, other + word * 8, 8);
    change(power, dirty->line, mixed);
}

static void mix_page(struct power *power, const struct unit *unit, bool torn, struct rng *rng)
{
    uint64_t moment = some_moment(power, unit, rng), sector = UINT64_MAX;
    for (size_t i = unit->first; i < unit->first + unit->count; i++) {
        const struct dirty *dirty = &power->dirty[i];
        if (torn && dirty->line * RECORD_LINE / SECTOR != sector) {
            sector = dirty->line * RECORD_LINE / SECTOR;
            moment = rng_below(rng, 3) == 0 ? 0 : some_moment(power, unit, rng);
        }
        change(power, dirty->line, as_of(power, dirty, moment));
    }
}

static void mix(struct power *power, uint64_t seed)
{
    struct rng rng = {seed};
    uint64_t share = (uint64_t[]){8, 50, 92}[rng_below(&rng, 3)];
    uint64_t tears = (uint64_t[]){0, 10, 50}[rng_below(&rng, 3)];
    for (size_t u = 0; u < power->unit_count; u++) {
        if (rng_below(&rng, 100) >= share)
            continue;
        bool torn = rng_below(&rng, 100) < tears;
        if (power->medium == RECORD_DAX)
            mix_line(power, &power->units[u], torn, &rng);
        else
            mix_page(power, &power->units[u], torn, &rng);
    }
}

static bool has_unit(const struct image *image, size_t u)
{
    switch (image->kind) {
    case ALL:
        return true;
    case ONE:
        return u == image->unit;
    case ALL_BUT_ONE:
        return u != image->unit;
    case SUBSET:
        return image->unit >> u & 1;
    default:
        return false;
    }
}

static void find_changes(struct power *power, size_t i)
{
    const struct image *image = &power->images[i];
    power->change_count = 0;
    if (image->kind == MIXTURE) {
        mix(power, image->seed);
        return;
    }
    for (size_t u = 0; u < power->unit_count; u++)
        for (size_t k = 0; has_unit(image, u) && k < power->units[u].count; k++) {
            const struct dirty *dirty = &power->dirty[power->units[u].first + k];
            change(power, dirty->line, as_of(power, dirty, UINT64_MAX));
        }
}

uint64_t power_hash(struct power *power, size_t i)
{
    find_changes(power, i);
    uint64_t hash = power->hash;
    for (size_t k = 0; k < power->change_count; k++) {
        uint64_t line = power->changes[k].line;
        hash ^= line_hash(line, power->durable + line * RECORD_LINE) ^ line_hash(line, power->changes[k].bytes);
    }
    return hash;
}

const char *power_words(struct power *power, size_t i)
{
    static const char *const names[] = {"nothing", "everything", "one", "all but one", "some", "a mixture"};
    const struct image *image = &power->images[i];
    int n = snprintf(power->words, sizeof power->words, "%s of %zu %s that need not be durable", names[image->kind],
                     power->unit_count, power->medium == RECORD_DAX ? "lines" : "pages");
    if (image->kind == ONE || image->kind == ALL_BUT_ONE)
        snprintf(power->words + n, sizeof power->words - (size_t)n, " (the one at offset %llu)",
                 (unsigned long long)(power->dirty[power->units[image->unit].first].line * RECORD_LINE));
    return power->words;
}

void power_put(struct power *power, size_t i)
{
    find_changes(power, i);
    for (size_t k = 0; k < power->change_count; k++)
        memcpy(power->mapped + power->changes[k].line * RECORD_LINE, power->changes[k].bytes, RECORD_LINE);
}
