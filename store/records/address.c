/* SPDX-License-Identifier: BSD-3-Clause */
/* records/address.c - resolves the part of an address after the @ to a snapshot or a range. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pages/pool.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/shelf.h"

#define SECOND_NS  ((uint64_t)1000000000)
#define MOST_NAMES 5u /* existing tags in the error for a missing one */

/* The use of a point. The ends of a clipped range need not exist: the nearest snapshot inside the range counts. */
enum use { EXACT, CLIPPED_FIRST, CLIPPED_LAST };

static bool all_digits(const char *text)
{
    return *text != '\0' && strspn(text, "0123456789") == strlen(text);
}

/* ---- Failures ---- */

static enum lmcs_status fail_address(struct lmcs_txn *txn, const struct lmcs_shelf *shelf, const char *which,
                                     const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no snapshot %s@%s%s", txn->pool->path, shelf->name, which,
                     why);
}

/* `count` snapshots exist up to the one of the name. */
static enum lmcs_status fail_back(struct lmcs_txn *txn, const struct lmcs_shelf *shelf, const char *which,
                                  const char *name, uint64_t count, struct lmcs_error *error)
{
    bool all = *name == '\0' || strcmp(name, "latest") == 0;
    (void)fail_address(txn, shelf, which, ": only ", error);
    lmcs_error_append(error, "%llu snapshot%s exist%s%s%.100s", (unsigned long long)count, count == 1 ? "" : "s",
                      count == 1 ? "s" : "", all ? "" : " up to ", all ? "" : name);
    return LMCS_NOT_FOUND;
}

static enum lmcs_status fail_empty(struct lmcs_txn *txn, const struct lmcs_shelf *shelf, const char *which,
                                   struct lmcs_error *error)
{
    (void)fail_address(txn, shelf, which, ": the shelf is empty", error);
    (void)lmcs_shelf_append_similar(txn, shelf->name, error);
    return LMCS_NOT_FOUND;
}

struct tag_list {
    char sentence[400];
    unsigned count;
};

static bool append_tag(void *context, const char *tag)
{
    struct tag_list *listed = context;
    size_t used = strlen(listed->sentence);
    if (!lmcs_name_is_sound(tag))
        return true;
    snprintf(listed->sentence + used, sizeof listed->sentence - used, "%s\"%.60s\"", listed->count == 0 ? "" : ", ",
             tag);
    return ++listed->count < MOST_NAMES;
}

/* Appends the steps next to a missing one. Errors are ignored: the call fails with the missing step anyway. */
static void append_steps(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *text, struct lmcs_error *error)
{
    struct lmcs_root_tree_df *tree = lmcs_shelf_tree(shelf, LMCS_TREE_STEPS);
    struct lmcs_key_df before, end = {lmcs_step_key(strtoll(text, NULL, 10)), UINT64_MAX};
    struct lmcs_cursor *cursor = NULL;
    bool is_before = false;
    bool is_read = lmcs_tree_before(txn, LMCS_TREE_STEPS, tree, end, &before, &is_before, NULL) == LMCS_OK &&
                   lmcs_cursor_open(&cursor, txn, LMCS_TREE_STEPS, tree, end, NULL) == LMCS_OK;
    bool is_after = is_read && lmcs_cursor_valid(cursor);
    if (is_read && !is_before && !is_after)
        lmcs_error_append(error, "; no snapshot has a step");
    if (is_read && (is_before || is_after))
        lmcs_error_append(error, "; the nearest %s ", is_before && is_after ? "are" : "is");
    if (is_read && is_before)
        lmcs_error_append(error, "%lld%s", (long long)lmcs_key_step(before.high), is_after ? " and " : "");
    if (is_after)
        lmcs_error_append(error, "%lld", (long long)lmcs_key_step(lmcs_cursor_key(cursor).high));
    lmcs_cursor_free(cursor);
}

/* Whether a text like "5-9" or "5:9" may mean a range. */
static bool looks_like_range(const char *name)
{
    size_t digits = strspn(name, "0123456789");
    return digits > 0 && (name[digits] == '-' || name[digits] == ':') && all_digits(name + digits + 1);
}

static void append_range(const char *name, struct lmcs_error *error)
{
    int digits = (int)strspn(name, "0123456789");
    lmcs_error_append(error, ". A range is written %.*s..%s", digits, name, name + digits + 1);
}

/* Fails with the names that exist. */
static enum lmcs_status fail_name(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *which, const char *name,
                                  struct lmcs_error *error)
{
    struct tag_list listed = {"", 0};
    char why[500] = "";
    uint64_t tags = lmcs_shelf_tree(shelf, LMCS_TREE_TAGS)->count;
    if (shelf->df.latest == 0)
        return fail_empty(txn, shelf, which, error);
    if (*name == '{')
        snprintf(why, sizeof why, ": all its snapshots were taken later");
    else if (strncmp(name, "step:", 5) == 0)
        snprintf(why, sizeof why, ": none has that step");
    else if (all_digits(name))
        snprintf(why, sizeof why, "; the newest is %llu", (unsigned long long)shelf->df.latest);
    else if (lmcs_tags_each(txn, shelf, append_tag, &listed, NULL) == LMCS_OK && listed.count > 0)
        snprintf(why, sizeof why, "; its tags are %s%s", listed.sentence, tags > listed.count ? ", and more" : "");
    else
        snprintf(why, sizeof why, "; it has no tags");
    (void)fail_address(txn, shelf, which, why, error);
    if (strncmp(name, "step:", 5) == 0)
        append_steps(txn, shelf, name + 5, error);
    if (looks_like_range(name))
        append_range(name, error);
    return LMCS_NOT_FOUND;
}

static enum lmcs_status fail_spelling(const char *which, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_INVALID, 0, "\"%.64s\" is no address of a snapshot: %s", which, why);
}

/* ---- Times ---- */

static bool take_number(const char **text, unsigned digits, int *value)
{
    *value = 0;
    for (unsigned i = 0; i < digits; i++, ++*text) {
        if (**text < '0' || **text > '9')
            return false;
        *value = *value * 10 + (**text - '0');
    }
    return true;
}

static bool take(const char **text, char character)
{
    bool is_there = **text == character;
    *text += is_there;
    return is_there;
}

/* "Z", "+02:00", "-0130" or nothing: UTC. */
static bool take_zone(const char **text, int *seconds)
{
    int hours, minutes = 0, sign = **text == '-' ? -1 : 1;
    *seconds = 0;
    while (take(text, ' '))
        ;
    if (**text == '\0' || take(text, 'Z'))
        return true;
    if (!take(text, '+') && !take(text, '-'))
        return false;
    if (!take_number(text, 2, &hours))
        return false;
    take(text, ':');
    if (**text != '\0' && !take_number(text, 2, &minutes))
        return false;
    *seconds = sign * (hours * 3600 + minutes * 60);
    return hours <= 14 && minutes < 60;
}

/* "2026-11-20", "2026-11-20 13:00", "2026-11-20T13:00:30Z": the last nanosecond of that day, minute or second. */
static bool parse_date(const char *text, uint64_t *ns)
{
    struct tm when = {.tm_isdst = 0};
    int zone = 0;
    time_t span = 86400;
    if (!take_number(&text, 4, &when.tm_year) || !take(&text, '-') || !take_number(&text, 2, &when.tm_mon) ||
        !take(&text, '-') || !take_number(&text, 2, &when.tm_mday))
        return false;
    if ((*text == 'T' || *text == ' ') && text[1] >= '0' && text[1] <= '9') {
        text++;
        if (!take_number(&text, 2, &when.tm_hour) || !take(&text, ':') || !take_number(&text, 2, &when.tm_min))
            return false;
        span = 60;
        if (take(&text, ':')) {
            span = 1;
            if (!take_number(&text, 2, &when.tm_sec))
                return false;
        }
    }
    struct tm asked = when;
    if (!take_zone(&text, &zone) || *text != '\0' || when.tm_mon < 1 || when.tm_mon > 12 || when.tm_hour > 23 ||
        when.tm_min > 59 || when.tm_sec > 59)
        return false;
    when.tm_mon--;
    when.tm_year -= 1900;
    time_t seconds = timegm(&when);
    /* timegm makes March out of the 30th of February. */
    if (seconds < 0 || when.tm_mday != asked.tm_mday || seconds + span - zone < 0)
        return false;
    if (__builtin_mul_overflow((uint64_t)(seconds + span - zone), SECOND_NS, ns))
        *ns = 0; /* later than every snapshot */
    --*ns;
    return true;
}

static uint64_t unit_seconds(const char *unit)
{
    static const struct {
        const char *name;
        uint64_t seconds;
    } units[] = {{"second", 1}, {"minute", 60}, {"hour", 3600}, {"day", 86400}, {"week", 604800},
                 {"s", 1},      {"min", 60},    {"h", 3600},    {"d", 86400},   {"w", 604800}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t length = strlen(units[i].name);
        if (strncmp(unit, units[i].name, length) == 0 &&
            (unit[length] == '\0' || (length >= 3 && strcmp(unit + length, "s") == 0)))
            return units[i].seconds;
    }
    return 0;
}

/* "2 hours ago", "90 min ago", "yesterday", "now". */
static bool parse_ago(const char *text, uint64_t *ns)
{
    char unit[16], tail[8];
    unsigned long long count;
    uint64_t back, now = lmcs_now_ns();
    int end = 0;
    if (strcmp(text, "now") == 0 || strcmp(text, "yesterday") == 0) {
        *ns = *text == 'n' ? now : now - 86400 * SECOND_NS;
        return true;
    }
    if (*text < '0' || *text > '9' || sscanf(text, "%18llu %15[a-z] %7[a-z]%n", &count, unit, tail, &end) != 3 ||
        text[end] != '\0' || strcmp(tail, "ago") != 0)
        return false;
    if (unit_seconds(unit) == 0)
        return false;
    bool before_all = __builtin_mul_overflow(count, unit_seconds(unit) * SECOND_NS, &back) || back > now;
    *ns = before_all ? 0 : now - back;
    return true;
}

/* "{...}": the newest snapshot taken at that time or before. */
static enum lmcs_status resolve_time(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *text, uint64_t *number,
                                     struct lmcs_error *error)
{
    char time[64];
    size_t length = strlen(text);
    struct lmcs_key_df key;
    uint64_t ns = 0;
    bool found, is_time = length > 2 && length - 2 < sizeof time && text[length - 1] == '}';
    if (is_time) {
        memcpy(time, text + 1, length - 2);
        time[length - 2] = '\0';
        is_time = parse_date(time, &ns) || parse_ago(time, &ns);
    }
    if (!is_time)
        return fail_spelling(text,
                             "a time is {2 hours ago}, {yesterday}, {2026-11-20} or {2026-11-20 13:00}, in UTC unless "
                             "an offset such as +02:00 follows",
                             error);
    enum lmcs_status status = lmcs_tree_before(txn, LMCS_TREE_TIMES, lmcs_shelf_tree(shelf, LMCS_TREE_TIMES),
                                               (struct lmcs_key_df){ns, UINT64_MAX}, &key, &found, error);
    *number = status == LMCS_OK && found ? key.low : 0;
    return status;
}

/* ---- Points ---- */

/* The newest snapshot of the step, or where it would be: of the next step, or of the one before. */
static enum lmcs_status resolve_step(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *text, enum use use,
                                     uint64_t *number, struct lmcs_error *error)
{
    struct lmcs_root_tree_df *tree = lmcs_shelf_tree(shelf, LMCS_TREE_STEPS);
    if (!all_digits(text + (*text == '-')))
        return fail_spelling(text, "step: needs a whole number", error);
    errno = 0;
    long long step = strtoll(text, NULL, 10);
    *number = 0;
    if (use == EXACT && (errno == ERANGE || step == LMCS_NO_STEP))
        return LMCS_OK;
    struct lmcs_key_df key, end = {lmcs_step_key(step), UINT64_MAX};
    struct lmcs_cursor *cursor = NULL;
    bool found;
    enum lmcs_status status = lmcs_tree_before(txn, LMCS_TREE_STEPS, tree, end, &key, &found, error);
    bool is_there = status == LMCS_OK && found && key.high == end.high;
    if (status == LMCS_OK && use == CLIPPED_FIRST && !is_there) {
        status = lmcs_cursor_open(&cursor, txn, LMCS_TREE_STEPS, tree, end, error);
        is_there = status == LMCS_OK && lmcs_cursor_valid(cursor);
        if (is_there) {
            end.high = lmcs_cursor_key(cursor).high;
            status = lmcs_tree_before(txn, LMCS_TREE_STEPS, tree, end, &key, &found, error);
        }
        lmcs_cursor_free(cursor);
    }
    if (status != LMCS_OK)
        return status;
    if (is_there || (use == CLIPPED_LAST && found))
        *number = key.low;
    else if (use == CLIPPED_FIRST)
        *number = UINT64_MAX;
    return LMCS_OK;
}

static bool is_tag(const char *name)
{
    return *name != '\0' && *name != '{' && !all_digits(name) && strcmp(name, "latest") != 0 &&
           strncmp(name, "step:", 5) != 0;
}

/* Resolves the part before any "~". *number 0: none; at an end of a clipped range, none before it. */
static enum lmcs_status resolve_point(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *name, enum use use,
                                      uint64_t *number, struct lmcs_error *error)
{
    *number = 0;
    if (strcmp(name, "latest") == 0 || *name == '\0') {
        *number = shelf->df.latest;
        return LMCS_OK;
    }
    if (*name == '{')
        return resolve_time(txn, shelf, name, number, error);
    if (strncmp(name, "step:", 5) == 0)
        return resolve_step(txn, shelf, name + 5, use, number, error);
    struct lmcs_record record;
    bool found;
    enum lmcs_status status = LMCS_OK;
    if (is_tag(name)) {
        status = lmcs_tag_check(name, error);
        if (status != LMCS_OK && looks_like_range(name))
            append_range(name, error);
        return status == LMCS_OK ? lmcs_tag_find(txn, shelf, name, number, error) : status;
    }
    uint64_t wanted = strlen(name) < 20 ? strtoull(name, NULL, 10) : use == EXACT ? 0 : UINT64_MAX;
    if (use != EXACT) {
        *number = wanted;
        return LMCS_OK;
    }
    status = lmcs_record_get(txn, shelf, wanted, &record, &found, error);
    if (status == LMCS_OK && found && lmcs_record_is_committed(&record))
        *number = wanted;
    return status;
}

/* Goes back by `back` committed snapshots. *number 0: there are fewer, *count with the first one. */
static enum lmcs_status go_back(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t back, uint64_t *number,
                                uint64_t *count, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (*count = 1; status == LMCS_OK && *count <= back;) {
        struct lmcs_record record;
        bool found;
        status = lmcs_record_before(txn, shelf, *number, number, error);
        if (status != LMCS_OK || *number == 0)
            return status;
        status = lmcs_record_get(txn, shelf, *number, &record, &found, error);
        *count += status == LMCS_OK && lmcs_record_is_committed(&record);
    }
    return status;
}

static enum lmcs_status resolve(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *which, enum use use,
                                uint64_t *number, struct lmcs_error *error)
{
    char name[LMCS_MAX_NAME + 1];
    if (which == NULL || *which == '\0')
        which = "latest";
    if (strstr(which, "..") != NULL)
        return fail_spelling(which, "it is a range, and one snapshot is wanted", error);
    size_t length = strcspn(which, "~");
    const char *digits = which[length] == '\0' ? "" : which + length + 1;
    if (length > LMCS_MAX_NAME)
        return fail_spelling(which, "it is too long", error);
    if (*digits != '\0' && !all_digits(digits))
        return fail_spelling(which, "after ~ stands how many to go back", error);
    memcpy(name, which, length);
    name[length] = '\0';
    enum lmcs_status status = resolve_point(txn, shelf, name, use, number, error);
    if (status != LMCS_OK)
        return status;
    if (*number == 0 && (use == EXACT || is_tag(name)))
        return fail_name(txn, shelf, which, name, error);
    if (*number == 0 || which[length] == '\0')
        return LMCS_OK;
    uint64_t back = *digits == '\0' ? 1 : strlen(digits) < 19 ? strtoull(digits, NULL, 10) : INT64_MAX, count;
    status = go_back(txn, shelf, back, number, &count, error);
    return status == LMCS_OK && *number == 0 && use == EXACT ? fail_back(txn, shelf, which, name, count, error)
                                                             : status;
}

enum lmcs_status lmcs_shelf_resolve(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *which, uint64_t *number,
                                    struct lmcs_error *error)
{
    return resolve(txn, shelf, which, EXACT, number, error);
}

/* ---- Ranges ---- */

/* The first committed snapshot; 0: none. */
static enum lmcs_status find_first(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t *number,
                                   struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    bool prepared = true;
    for (*number = 0; status == LMCS_OK && prepared;) {
        status = lmcs_record_after(txn, shelf, *number, number, error);
        if (status != LMCS_OK || *number == 0)
            break;
        status = lmcs_record_is_prepared(txn, shelf, *number, &prepared, error);
    }
    return status;
}

/* Whether the ends of a clipped range are in the wrong order, rather than without a snapshot between them. */
static enum lmcs_status is_reversed(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *from, const char *to,
                                    bool *reversed, struct lmcs_error *error)
{
    uint64_t number;
    const char *const ends[] = {from, to};
    *reversed = *from != '\0' && *to != '\0' && strcmp(to, "latest") != 0;
    for (size_t i = 0; i < 2 && *reversed; i++) {
        enum lmcs_status status = all_digits(ends[i]) ? LMCS_OK : resolve(txn, shelf, ends[i], EXACT, &number, error);
        if (status != LMCS_OK && status != LMCS_NOT_FOUND)
            return status;
        *reversed = status == LMCS_OK;
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_shelf_resolve_range(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *range, bool clip,
                                          uint64_t *first, uint64_t *last, struct lmcs_error *error)
{
    char from[LMCS_MAX_NAME + 32];
    const char *dots = range == NULL ? NULL : strstr(range, "..");
    enum lmcs_status status;
    if (dots == NULL) {
        status = lmcs_shelf_resolve(txn, shelf, range, first, error);
        *last = *first;
        return status;
    }
    size_t length = (size_t)(dots - range);
    if (length >= sizeof from)
        return fail_spelling(range, "it is too long", error);
    memcpy(from, range, length);
    from[length] = '\0';
    status = length > 0 ? resolve(txn, shelf, from, clip ? CLIPPED_FIRST : EXACT, first, error)
                        : find_first(txn, shelf, first, error);
    if (status == LMCS_OK && *first == 0 && !clip)
        status = fail_empty(txn, shelf, range, error);
    if (status == LMCS_OK)
        status = resolve(txn, shelf, dots + 2, clip ? CLIPPED_LAST : EXACT, last, error);
    bool reversed = true;
    if (status == LMCS_OK && *first > *last && clip)
        status = is_reversed(txn, shelf, from, dots + 2, &reversed, error);
    if (status == LMCS_OK && *first > *last && reversed)
        return lmcs_fail(error, LMCS_INVALID, 0, "the range \"%.64s\" is empty: it goes from %s@%llu back to %llu",
                         range, shelf->name, (unsigned long long)*first, (unsigned long long)*last);
    if (status == LMCS_OK && clip && *last > shelf->df.latest)
        *last = shelf->df.latest;
    if (status == LMCS_OK && shelf->df.latest == 0)
        *first = 1;
    return status;
}
