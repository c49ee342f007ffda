/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/policy.c - what a shelf's policy says, and which snapshots it keeps: pure functions.
 *
 * A rule picks snapshots by itself, and what any rule picks is kept. Rules that keep one of many pick the first of each
 * stretch of steps or time: it stays the first however many come after it, so pruning and pruning again agree.
 */
#include "records/policy.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Words ---- */

/* A cursor over a policy's text. */
struct reader {
    const char *at;
    const char *word; /* the word that is read, for messages */
    struct lmcs_error *error;
};

static enum lmcs_status fail_word(const struct reader *reader, const char *why)
{
    return lmcs_fail(reader->error, LMCS_INVALID, 0, "policy \"%.*s\": %s", (int)strcspn(reader->word, " "),
                     reader->word, why);
}

static bool take(struct reader *reader, const char *text)
{
    size_t length = strlen(text);
    if (strncmp(reader->at, text, length) != 0)
        return false;
    reader->at += length;
    return true;
}

static bool at_end(const struct reader *reader)
{
    return *reader->at == '\0' || *reader->at == ' ';
}

/* Digits; false when there are none, or they don't fit. */
static bool take_number(struct reader *reader, uint64_t *number)
{
    if (!isdigit((unsigned char)*reader->at))
        return false;
    for (*number = 0; isdigit((unsigned char)*reader->at); reader->at++)
        if (__builtin_mul_overflow(*number, 10, number) || __builtin_add_overflow(*number, *reader->at - '0', number))
            return false;
    return true;
}

struct unit {
    const char *name;
    uint64_t factor;
};

static bool take_unit(struct reader *reader, const struct unit *units, uint64_t *number)
{
    for (; units->name != NULL; units++)
        if (take(reader, units->name))
            return !__builtin_mul_overflow(*number, units->factor, number);
    return true;
}

/* The longer name of two that begin alike comes first. */
static const struct unit sizes[] = {{"KiB", 1024}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", (uint64_t)1 << 40},
                                    {"K", 1024},   {"M", 1 << 20},   {"G", 1 << 30},   {"T", (uint64_t)1 << 40},
                                    {NULL, 0}};
static const struct unit durations[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}, {"w", 604800}, {NULL, 0}};

static bool take_duration(struct reader *reader, uint64_t *seconds)
{
    return take_number(reader, seconds) && !at_end(reader) && *reader->at != '/' && *reader->at != ',' &&
           take_unit(reader, durations, seconds) && *seconds > 0 && *seconds <= UINT64_MAX / 1000000000;
}

/* ---- Rules ---- */

static enum lmcs_status read_best(struct reader *reader, struct lmcs_rule *rule)
{
    size_t length = strcspn(reader->at, ":, ");
    rule->kind = LMCS_RULE_BEST;
    rule->count = 1;
    if (length == 0 || length > LMCS_MAX_METRIC)
        return fail_word(reader, "after best: stands a metric's name of at most 64 bytes, without spaces, : and ,");
    memcpy(rule->metric, reader->at, length);
    reader->at += length;
    bool more = take(reader, ":");
    if (more && isdigit((unsigned char)*reader->at)) {
        if (!take_number(reader, &rule->count) || rule->count == 0)
            return fail_word(reader, "best:METRIC:N keeps N snapshots, 1 or more");
        more = take(reader, ":");
    }
    if (more) {
        rule->greatest = take(reader, "max");
        if (!rule->greatest && !take(reader, "min"))
            return fail_word(reader, "write best:METRIC:N:max or :min");
    }
    return LMCS_OK;
}

static enum lmcs_status read_rule(struct reader *reader, struct lmcs_rule *rule)
{
    *rule = (struct lmcs_rule){.kind = LMCS_RULE_LAST};
    if (take(reader, "best:"))
        return read_best(reader, rule);
    if (take(reader, "last:"))
        return take_number(reader, &rule->count) && rule->count > 0 ? LMCS_OK
                                                                    : fail_word(reader, "after last: stands 1 or more");
    if (take(reader, "every:")) {
        rule->kind = LMCS_RULE_EVERY;
        bool sound = take_number(reader, &rule->count) && rule->count > 0 && rule->count <= INT64_MAX;
        if (sound && take(reader, "/"))
            sound = take_number(reader, &rule->within) && rule->within > 0;
        return sound ? LMCS_OK
                     : fail_word(reader, "write every:K (steps), or every:K/M (among the newest M snapshots)");
    }
    if (take(reader, "each:")) {
        rule->kind = LMCS_RULE_EACH;
        bool sound = take_duration(reader, &rule->count);
        if (sound && take(reader, "/"))
            sound = take_duration(reader, &rule->within);
        return sound ? LMCS_OK : fail_word(reader, "write each:1h, or each:1h/7d (s, m, h, d, w)");
    }
    return fail_word(reader,
                     "a rule is last:N, every:K, every:K/M, each:T, each:T/U or best:METRIC:N:max; or keep=all");
}

static enum lmcs_status read_rules(struct reader *reader, struct lmcs_policy *policy)
{
    policy->rule_count = 0;
    if (take(reader, "all"))
        return LMCS_OK;
    do {
        if (policy->rule_count == LMCS_MAX_RULES)
            return fail_word(reader, "these are too many rules: at most 12");
        enum lmcs_status status = read_rule(reader, &policy->rules[policy->rule_count]);
        if (status != LMCS_OK)
            return status;
        policy->rule_count++;
    } while (take(reader, ","));
    return LMCS_OK;
}

/* ---- Texts ---- */

static enum lmcs_status read_budget(struct reader *reader, struct lmcs_policy *policy)
{
    uint64_t number;
    policy->budget_bytes = policy->budget_percent = 0;
    if (take(reader, "none"))
        return LMCS_OK;
    if (!take_number(reader, &number))
        return fail_word(reader, "a budget is a size (200G), a share of the pool (50%), or none");
    if (!take(reader, "%")) {
        if (!take_unit(reader, sizes, &number) || number == 0)
            return fail_word(reader, "a size is 1 or more, and fits in 64 bits");
        policy->budget_bytes = number;
        return LMCS_OK;
    }
    if (number == 0 || number > 100)
        return fail_word(reader, "a share is 1 to 100 %");
    policy->budget_percent = (uint32_t)number;
    return LMCS_OK;
}

static enum lmcs_status read_encode(struct reader *reader, struct lmcs_policy *policy)
{
    static const char *const names[] = {"never", "auto", "always"};
    for (int i = 0; i < 3; i++)
        if (take(reader, names[i])) {
            policy->encode = (enum lmcs_encode_on_capture)i;
            return LMCS_OK;
        }
    return fail_word(reader, "encode is never, auto or always");
}

static enum lmcs_status read_scrub(struct reader *reader, struct lmcs_policy *policy)
{
    uint64_t number;
    policy->scrub_seconds = 0;
    if (take(reader, "none"))
        return LMCS_OK;
    if (!take_duration(reader, &number))
        return fail_word(reader, "scrub is the time in which everything is to be read once (30d), or none");
    policy->scrub_seconds = number;
    return LMCS_OK;
}

static enum lmcs_status read_parity(struct reader *reader, struct lmcs_policy *policy)
{
    uint64_t data = 0, parity = 0;
    policy->parity_data = policy->parity = 0;
    if (take(reader, "none"))
        return LMCS_OK;
    if (!take_number(reader, &data) || !take(reader, "+") || !take_number(reader, &parity) || data == 0 ||
        data > LMCS_MAX_PARITY_DATA || parity == 0 || parity > LMCS_MAX_PARITY)
        return fail_word(reader, "parity is K+M (16+2): M columns, 1 to 16, for each K of data, 1 to 128; or none");
    policy->parity_data = (uint32_t)data;
    policy->parity = (uint32_t)parity;
    return LMCS_OK;
}

static enum lmcs_status read_links(struct reader *reader, struct lmcs_policy *policy)
{
    uint64_t number = 0;
    if (!take(reader, "off") && (!take_number(reader, &number) || number > LMCS_LINK_BOUND))
        return fail_word(reader, "a line has 0 to 64 links; or off");
    policy->links = (uint32_t)number;
    return LMCS_OK;
}

static enum lmcs_status read_word(struct reader *reader, struct lmcs_policy *policy)
{
    uint64_t number;
    if (take(reader, "keep="))
        return read_rules(reader, policy);
    if (take(reader, "budget="))
        return read_budget(reader, policy);
    if (take(reader, "encode="))
        return read_encode(reader, policy);
    if (take(reader, "keep_raw=")) {
        if (!take_number(reader, &number) || number == 0 || number > UINT32_MAX)
            return fail_word(reader, "at least the newest snapshot stays raw: keep_raw is 1 or more");
        policy->keep_raw = (uint32_t)number;
        return LMCS_OK;
    }
    if (take(reader, "chain=")) {
        if (!take_number(reader, &number) || number > LMCS_CHAIN_BOUND)
            return fail_word(reader, "a chain has 0 to 7 deltas");
        policy->chain = (uint32_t)number;
        return LMCS_OK;
    }
    if (take(reader, "links="))
        return read_links(reader, policy);
    if (take(reader, "rate=")) {
        if (take(reader, "none")) {
            policy->rate_bytes = 0;
            return LMCS_OK;
        }
        if (!take_number(reader, &number) || !take_unit(reader, sizes, &number) || number == 0)
            return fail_word(reader, "a rate is a size (100M), for a second, or none");
        policy->rate_bytes = number;
        return LMCS_OK;
    }
    if (take(reader, "scrub="))
        return read_scrub(reader, policy);
    if (take(reader, "parity="))
        return read_parity(reader, policy);
    return fail_word(reader, "there is keep_raw=, chain=, links=, keep=, budget=, rate=, encode=, scrub= and parity=");
}

void lmcs_policy_init(struct lmcs_policy *policy)
{
    *policy = (struct lmcs_policy){
        .keep_raw = LMCS_DEFAULT_KEEP_RAW, .chain = LMCS_DEFAULT_CHAIN, .links = LMCS_DEFAULT_LINKS};
}

enum lmcs_status lmcs_policy_parse(const char *text, struct lmcs_policy *policy, struct lmcs_error *error)
{
    struct lmcs_policy changed = *policy;
    struct reader reader = {.at = text == NULL ? "" : text, .error = error};
    for (;;) {
        while (*reader.at == ' ')
            reader.at++;
        if (*reader.at == '\0')
            break;
        reader.word = reader.at;
        enum lmcs_status status = read_word(&reader, &changed);
        if (status == LMCS_OK && !at_end(&reader))
            status = fail_word(&reader, "there is more than belongs there");
        if (status != LMCS_OK)
            return status;
    }
    *policy = changed;
    return LMCS_OK;
}

struct writer {
    char *text;
    size_t used;
    bool full;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *writer, const char *format, ...)
{
    va_list arguments;
    size_t room = LMCS_MAX_POLICY + 1 - writer->used;
    va_start(arguments, format);
    int written = vsnprintf(writer->text + writer->used, room, format, arguments);
    va_end(arguments);
    writer->full |= written < 0 || (size_t)written >= room;
    writer->used = writer->full ? LMCS_MAX_POLICY : writer->used + (size_t)written;
}

static void put_size(struct writer *writer, const char *key, uint64_t bytes)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    size_t unit = 0;
    for (; unit < 4 && bytes > 0 && bytes % 1024 == 0; unit++)
        bytes /= 1024;
    put(writer, " %s%" PRIu64 "%s", key, bytes, units[unit]);
}

static void put_duration(struct writer *writer, uint64_t seconds)
{
    const struct unit *unit = durations + 4;
    while (seconds % unit->factor != 0)
        unit--;
    put(writer, "%" PRIu64 "%s", seconds / unit->factor, unit->name);
}

static void put_rule(struct writer *writer, const struct lmcs_rule *rule)
{
    switch (rule->kind) {
    case LMCS_RULE_LAST:
        put(writer, "last:%" PRIu64, rule->count);
        break;
    case LMCS_RULE_EVERY:
        put(writer, "every:%" PRIu64, rule->count);
        if (rule->within > 0)
            put(writer, "/%" PRIu64, rule->within);
        break;
    case LMCS_RULE_EACH:
        put(writer, "each:");
        put_duration(writer, rule->count);
        if (rule->within > 0) {
            put(writer, "/");
            put_duration(writer, rule->within);
        }
        break;
    case LMCS_RULE_BEST:
        put(writer, "best:%s:%" PRIu64 "%s", rule->metric, rule->count, rule->greatest ? ":max" : "");
        break;
    }
}

enum lmcs_status lmcs_policy_format(const struct lmcs_policy *policy, char text[LMCS_MAX_POLICY + 1],
                                    struct lmcs_error *error)
{
    struct writer writer = {.text = text};
    put(&writer, "keep_raw=%" PRIu32 " chain=%" PRIu32 " keep=%s", policy->keep_raw, policy->chain,
        policy->rule_count == 0 ? "all" : "");
    for (size_t i = 0; i < policy->rule_count; i++) {
        put(&writer, "%s", i > 0 ? "," : "");
        put_rule(&writer, &policy->rules[i]);
    }
    if (policy->links != LMCS_DEFAULT_LINKS)
        put(&writer, policy->links > 0 ? " links=%" PRIu32 : " links=off", policy->links);
    if (policy->budget_bytes > 0)
        put_size(&writer, "budget=", policy->budget_bytes);
    if (policy->budget_percent > 0)
        put(&writer, " budget=%" PRIu32 "%%", policy->budget_percent);
    if (policy->rate_bytes > 0)
        put_size(&writer, "rate=", policy->rate_bytes);
    if (policy->encode != LMCS_ENCODE_NEVER)
        put(&writer, " encode=%s", policy->encode == LMCS_ENCODE_AUTO ? "auto" : "always");
    if (policy->scrub_seconds > 0) {
        put(&writer, " scrub=");
        put_duration(&writer, policy->scrub_seconds);
    }
    if (policy->parity > 0)
        put(&writer, " parity=%" PRIu32 "+%" PRIu32, policy->parity_data, policy->parity);
    return writer.full ? lmcs_fail(error, LMCS_INVALID, 0, "a policy has at most %d bytes of text", LMCS_MAX_POLICY)
                       : LMCS_OK;
}

/* ---- What is kept ---- */

/* A snapshot in the order in which a rule looks at them. */
struct ranked {
    int64_t stretch; /* of steps or time */
    int64_t within;  /* the step or time itself */
    double value;
    size_t index;
};

static int by_stretch(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->stretch != y->stretch)
        return x->stretch < y->stretch ? -1 : 1;
    if (x->within != y->within)
        return x->within < y->within ? -1 : 1;
    return x->index > y->index ? -1 : x->index < y->index; /* of the same step, the newest */
}

static int by_value(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return x->index > y->index ? -1 : x->index < y->index;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static void keep(const char **kept, size_t i, const char *why)
{
    if (kept[i] == NULL)
        kept[i] = why;
}

/* The first of each stretch. */
static void keep_firsts(struct ranked *ranked, size_t count, const char **kept, const char *why)
{
    qsort(ranked, count, sizeof *ranked, by_stretch);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || ranked[i].stretch != ranked[i - 1].stretch)
            keep(kept, ranked[i].index, why);
}

static void keep_every(const struct lmcs_rule *rule, const struct lmcs_policy_facts *facts, size_t count,
                       struct ranked *ranked, const char **kept)
{
    size_t first = rule->within > 0 && rule->within < count ? count - rule->within : 0;
    for (size_t i = first; i < count; i++) {
        int64_t at = facts[i].step != LMCS_NO_STEP ? facts[i].step : (int64_t)facts[i].number;
        ranked[i - first] = (struct ranked){floor_div(at, (int64_t)rule->count), at, 0, i};
    }
    keep_firsts(ranked, count - first, kept, "one of a stretch of steps");
}

static void keep_each(const struct lmcs_rule *rule, const struct lmcs_policy_facts *facts, size_t count,
                      uint64_t now_ns, struct ranked *ranked, const char **kept)
{
    size_t n = 0;
    uint64_t within_ns = rule->within * 1000000000;
    for (size_t i = 0; i < count; i++) {
        uint64_t time = facts[i].time_ns;
        if (rule->within == 0 || time >= now_ns || now_ns - time <= within_ns)
            ranked[n++] = (struct ranked){(int64_t)(time / (rule->count * 1000000000)), (int64_t)(time / 2), 0, i};
    }
    keep_firsts(ranked, n, kept, "one of a stretch of time");
}

static void keep_best(const struct lmcs_rule *rule, size_t rule_index, const struct lmcs_policy_facts *facts,
                      size_t count, struct ranked *ranked, const char **kept)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        double value = facts[i].metrics[rule_index];
        if (!isnan(value))
            ranked[n++] = (struct ranked){.value = rule->greatest ? -value : value, .index = i};
    }
    qsort(ranked, n, sizeof *ranked, by_value);
    for (size_t i = 0; i < n && i < rule->count; i++)
        keep(kept, ranked[i].index, "among the best by a metric");
}

enum lmcs_status lmcs_policy_keeps(const struct lmcs_policy *policy, const struct lmcs_policy_facts *facts,
                                   size_t count, uint64_t now_ns, const char **kept, struct lmcs_error *error)
{
    struct ranked *ranked = malloc((count + 1) * sizeof *ranked);
    if (ranked == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < count; i++)
        kept[i] = facts[i].held             ? "tagged, prepared or the latest"
                  : policy->rule_count == 0 ? "everything is kept"
                                            : NULL;
    for (size_t r = 0; r < policy->rule_count; r++) {
        const struct lmcs_rule *rule = &policy->rules[r];
        if (rule->kind == LMCS_RULE_EVERY)
            keep_every(rule, facts, count, ranked, kept);
        else if (rule->kind == LMCS_RULE_EACH)
            keep_each(rule, facts, count, now_ns, ranked, kept);
        else if (rule->kind == LMCS_RULE_BEST)
            keep_best(rule, r, facts, count, ranked, kept);
        else
            for (size_t i = rule->count < count ? count - rule->count : 0; i < count; i++)
                keep(kept, i, "among the newest");
    }
    free(ranked);
    return LMCS_OK;
}
