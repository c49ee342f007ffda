/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/policy.c - the text of a policy: its keys, parsing and printing. Pure functions.
 *
 * Parsing, printing, errors, the help of lmc-store policy and Python's docstring derive from the table `keys`; to add
 * one, see README.md. The text is stored, so the order of rows must not change.
 */
#include "records/policy.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- Words ---- */

#define MOST_KEYS 16

struct reader {
    const char *at;
    const char *word;             /* begin of the current word, for messages */
    const char *words[MOST_KEYS]; /* of the keys that were read; NULL: not yet */
    size_t key_count;             /* without hidden ones, unless the text is a shelf's */
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

/* False: no digits, or more than 64 bits. */
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

/* Of names that begin alike, the longer comes first. */
static const struct unit sizes[] = {{"KiB", 1024}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", (uint64_t)1 << 40},
                                    {"K", 1024},   {"M", 1 << 20},   {"G", 1 << 30},   {"T", (uint64_t)1 << 40},
                                    {NULL, 0}};
static const struct unit durations[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}, {"w", 604800}, {NULL, 0}};

static bool take_duration(struct reader *reader, uint64_t *seconds)
{
    return take_number(reader, seconds) && !at_end(reader) && *reader->at != '/' && *reader->at != ',' &&
           take_unit(reader, durations, seconds) && *seconds > 0 && *seconds <= UINT64_MAX / 1000000000;
}

struct writer;

struct key {
    struct lmcs_policy_key is;
    enum lmcs_status (*read)(struct reader *reader, const struct key *key, struct lmcs_policy *policy);
    void (*write)(struct writer *writer, const struct key *key, const struct lmcs_policy *policy);
    size_t field; /* of struct lmcs_policy: uint32_t for counts, uint64_t for sizes and durations */
    uint64_t least, most;
    const char *none; /* the word for 0; NULL: 0 is a number like others */
    bool always;      /* printed even with its initial value */
};

static enum lmcs_status fail_value(const struct reader *reader, const struct key *key)
{
    return lmcs_fail(reader->error, LMCS_INVALID, 0, "policy \"%.*s\": %s is %s", (int)strcspn(reader->word, " "),
                     reader->word, key->is.name, key->is.values);
}

/* ---- Rules ---- */

static enum lmcs_status read_best(struct reader *reader, struct lmcs_rule *rule)
{
    size_t length = strcspn(reader->at, ":, ");
    rule->kind = LMCS_RULE_BEST;
    rule->count = 1;
    if (length == 0 || length > LMCS_MAX_METRIC)
        return fail_word(reader, "best: needs a metric's name of at most 64 bytes, without spaces, : and ,");
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
        return take_number(reader, &rule->count) && rule->count > 0
                   ? LMCS_OK
                   : fail_word(reader, "last:N keeps N snapshots, 1 or more");
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

static enum lmcs_status read_list(struct reader *reader, struct lmcs_rule *rules, size_t *count)
{
    *count = 0;
    if (take(reader, "all"))
        return LMCS_OK;
    do {
        if (*count == LMCS_MAX_RULES)
            return fail_word(reader, "too many rules: at most 12");
        enum lmcs_status status = read_rule(reader, &rules[*count]);
        if (status != LMCS_OK)
            return status;
        ++*count;
    } while (take(reader, ","));
    return LMCS_OK;
}

static enum lmcs_status read_rules(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    (void)key;
    return read_list(reader, policy->rules, &policy->rule_count);
}

static enum lmcs_status read_was(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    (void)key;
    return read_list(reader, policy->was, &policy->was_count);
}

/* ---- Values ---- */

static enum lmcs_status read_count(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    uint64_t number = 0;
    bool none = key->none != NULL && take(reader, key->none);
    if (!none && (!take_number(reader, &number) || number < key->least || number > key->most))
        return fail_value(reader, key);
    memcpy((char *)policy + key->field, &(uint32_t){(uint32_t)number}, sizeof(uint32_t));
    return LMCS_OK;
}

static enum lmcs_status read_links(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    if (!take(reader, key->is.initial))
        return read_count(reader, key, policy);
    policy->links = LMCS_LINKS_AUTO;
    return LMCS_OK;
}

/* A size or a duration. */
static enum lmcs_status read_amount(struct reader *reader, const struct key *key, struct lmcs_policy *policy,
                                    bool is_duration)
{
    uint64_t number = 0;
    if (!take(reader, key->none)) {
        bool sound = is_duration ? take_duration(reader, &number)
                                 : take_number(reader, &number) && take_unit(reader, sizes, &number);
        if (!sound || number < key->least || number > key->most)
            return fail_value(reader, key);
    }
    memcpy((char *)policy + key->field, &number, sizeof number);
    return LMCS_OK;
}

static enum lmcs_status read_size(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    return read_amount(reader, key, policy, false);
}

static enum lmcs_status read_duration(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    return read_amount(reader, key, policy, true);
}

/* Seconds since 1970. */
static enum lmcs_status read_since(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    return take_number(reader, &policy->since_seconds) ? LMCS_OK : fail_value(reader, key);
}

static enum lmcs_status read_budget(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    uint64_t number;
    policy->budget_bytes = policy->budget_percent = 0;
    if (take(reader, key->none))
        return LMCS_OK;
    if (!take_number(reader, &number) || number == 0)
        return fail_value(reader, key);
    if (take(reader, "%")) {
        policy->budget_percent = (uint32_t)number;
        return number <= 100 ? LMCS_OK : fail_value(reader, key);
    }
    policy->budget_bytes = take_unit(reader, sizes, &number) ? number : 0;
    return policy->budget_bytes > 0 ? LMCS_OK : fail_value(reader, key);
}

#define FORMS 3
static const char *const forms[FORMS] = {
    [LMCS_WRITE_AS_AUTO] = "auto", [LMCS_WRITE_AS_RAW] = "raw", [LMCS_WRITE_AS_LINK] = "link"};
static const char *const forms_of_encode[FORMS] = {
    [LMCS_WRITE_AS_AUTO] = "auto", [LMCS_WRITE_AS_RAW] = "never", [LMCS_WRITE_AS_LINK] = "always"};

static enum lmcs_status read_form_of(struct reader *reader, const struct key *key, const char *const names[FORMS],
                                     struct lmcs_policy *policy)
{
    for (size_t i = 0; i < FORMS; i++)
        if (take(reader, names[i])) {
            policy->write = (enum lmcs_write_as)i;
            return LMCS_OK;
        }
    return fail_value(reader, key);
}

static enum lmcs_status read_form(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    return read_form_of(reader, key, forms, policy);
}

static enum lmcs_status read_encode(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    return read_form_of(reader, key, forms_of_encode, policy);
}

static enum lmcs_status read_parity(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    uint64_t data = 0, parity = 0;
    bool of_bases = take(reader, key->is.initial);
    if (!of_bases && !take(reader, key->none) &&
        (!take_number(reader, &data) || !take(reader, "+") || !take_number(reader, &parity) || data == 0 ||
         data > LMCS_MAX_PARITY_DATA || parity == 0 || parity > LMCS_MAX_PARITY))
        return fail_value(reader, key);
    policy->parity_of_bases = of_bases;
    policy->parity_data = (uint32_t)data;
    policy->parity = (uint32_t)parity;
    return LMCS_OK;
}

static enum lmcs_status read_local(struct reader *reader, const struct key *key, struct lmcs_policy *policy)
{
    policy->local = 0;
    if (take(reader, key->is.initial))
        return LMCS_OK;
    bool sound = take(reader, "last:") && take_number(reader, &policy->local) && policy->local > 0;
    return sound ? LMCS_OK : fail_value(reader, key);
}

/* ---- Printing ---- */

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

static void write_count(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    uint32_t number;
    memcpy(&number, (const char *)policy + key->field, sizeof number);
    if (number == 0 && key->none != NULL)
        put(writer, "%s", key->none);
    else
        put(writer, "%" PRIu32, number);
}

static void write_links(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    if (policy->links == LMCS_LINKS_AUTO)
        put(writer, "%s", key->is.initial);
    else
        write_count(writer, key, policy);
}

static void put_size(struct writer *writer, uint64_t bytes)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    size_t unit = 0;
    for (; unit < 4 && bytes > 0 && bytes % 1024 == 0; unit++)
        bytes /= 1024;
    put(writer, "%" PRIu64 "%s", bytes, units[unit]);
}

static void put_duration(struct writer *writer, uint64_t seconds)
{
    const struct unit *unit = durations + 4;
    while (seconds % unit->factor != 0)
        unit--;
    put(writer, "%" PRIu64 "%s", seconds / unit->factor, unit->name);
}

static void write_amount(struct writer *writer, const struct key *key, const struct lmcs_policy *policy,
                         void (*put_amount)(struct writer *writer, uint64_t amount))
{
    uint64_t amount;
    memcpy(&amount, (const char *)policy + key->field, sizeof amount);
    if (amount == 0)
        put(writer, "%s", key->none);
    else
        put_amount(writer, amount);
}

static void write_size(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    write_amount(writer, key, policy, put_size);
}

static void write_duration(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    write_amount(writer, key, policy, put_duration);
}

static void write_budget(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    if (policy->budget_percent > 0)
        put(writer, "%" PRIu32 "%%", policy->budget_percent);
    else
        write_size(writer, key, policy);
}

static void write_local(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    if (policy->local == 0)
        put(writer, "%s", key->is.initial);
    else
        put(writer, "last:%" PRIu64, policy->local);
}

static void write_form(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    (void)key;
    put(writer, "%s", forms[policy->write]);
}

static void write_parity(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    if (policy->parity > 0)
        put(writer, "%" PRIu32 "+%" PRIu32, policy->parity_data, policy->parity);
    else
        put(writer, "%s", policy->parity_of_bases ? key->is.initial : key->none);
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

static void put_list(struct writer *writer, const struct lmcs_rule *rules, size_t count)
{
    put(writer, "%s", count == 0 ? "all" : "");
    for (size_t i = 0; i < count; i++) {
        put(writer, "%s", i > 0 ? "," : "");
        put_rule(writer, &rules[i]);
    }
}

static void write_rules(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    (void)key;
    put_list(writer, policy->rules, policy->rule_count);
}

static void write_was(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    (void)key;
    put_list(writer, policy->was, policy->was_count);
}

static void write_since(struct writer *writer, const struct key *key, const struct lmcs_policy *policy)
{
    (void)key;
    put(writer, "%" PRIu64, policy->since_seconds);
}

/* ---- The keys ---- */

#define TEXT_OF(number) #number
#define TEXT(number)    TEXT_OF(number)
#define FIELD(name)     offsetof(struct lmcs_policy, name)

static const struct key keys[] = {
    {{"keep_raw", "N", "1 or more", TEXT(LMCS_DEFAULT_KEEP_RAW), "the newest N snapshots stay raw"},
     read_count,
     write_count,
     FIELD(keep_raw),
     1,
     UINT32_MAX,
     NULL,
     true},
    {{"chain", "N", "0 to 7", TEXT(LMCS_DEFAULT_CHAIN), "reading a tensor undoes at most N deltas; 0: no deltas"},
     read_count,
     write_count,
     FIELD(chain),
     0,
     LMCS_CHAIN_BOUND,
     NULL,
     true},
    {{"keep", "RULE,...", "rules with commas between them, or all", "all",
      "pruning keeps the snapshots that any rule names; all: nothing is pruned"},
     read_rules,
     write_rules,
     0,
     0,
     0,
     NULL,
     true},
    {{"links", "N", "0 to 64, off, or auto", "auto",
      "reading a tensor undoes at most N links; off: none; auto: 24, or by restore for those of captures"},
     read_links,
     write_links,
     FIELD(links),
     0,
     LMCS_LINK_BOUND,
     "off",
     false},
    {{"budget", "SIZE", "a size (200G), a share of the pool (50%), or none", "none",
      "above this much used space, the compactor prunes by the rules"},
     read_budget,
     write_budget,
     FIELD(budget_bytes),
     1,
     UINT64_MAX,
     "none",
     false},
    {{"rate", "SIZE", "a size (100M), or none", "none", "the background encodes at most this much a second"},
     read_size,
     write_size,
     FIELD(rate_bytes),
     1,
     UINT64_MAX,
     "none",
     false},
    {{"write", "HOW", "auto, raw or link", "auto",
      "captures write raw tensors, or links and deltas; auto: the form that is durable sooner"},
     read_form,
     write_form,
     0,
     0,
     0,
     NULL,
     false},
    {{"scrub", "TIME", "a duration (30d), or none", "none", "the background reads and repairs everything once in TIME"},
     read_duration,
     write_duration,
     FIELD(scrub_seconds),
     1,
     UINT64_MAX,
     "none",
     false},
    {{"parity", "K+M", "bases, K+M (16+2), K 1 to 128 and M 1 to 16, or none", "bases",
      "the background keeps M bytes of parity for K bytes stored; bases: of contents that others need"},
     read_parity,
     write_parity,
     0,
     0,
     0,
     "none",
     false},
    {{"grace", "TIME", "a duration (1h), or none", "10m",
      "after a change of keep or budget, the background removes nothing for TIME that was not due before"},
     read_duration,
     write_duration,
     FIELD(grace_seconds),
     1,
     UINT64_MAX,
     "none",
     false},
    {{"restore", "TIME", "a duration of at most 1h (1s), or none", TEXT(LMCS_DEFAULT_RESTORE) "s",
      "captures write links only as far as the whole newest state is restored in TIME per GiB; none: no limit"},
     read_duration,
     write_duration,
     FIELD(restore_seconds),
     1,
     3600,
     "none",
     false},
    {{"local", "last:N", "last:N, N 1 or more, or all", "all",
      "the newest N snapshots stay in the pool; older ones leave it when a push has confirmed them at a URL"},
     read_local,
     write_local,
     0,
     0,
     0,
     NULL,
     false},
    /* Hidden: of a shelf's record alone. */
    {{"since", "TIME", "seconds", "0", "the change"}, read_since, write_since, 0, 0, 0, NULL, false},
    {{"was", "RULE,...", "rules", "all", "the rules before it"}, read_was, write_was, 0, 0, 0, NULL, false},
    /* Of earlier versions' records: read, never written. */
    {{"encode", "WHEN", "never, auto or always", "auto", "write=raw, auto and link"},
     read_encode,
     NULL,
     0,
     0,
     0,
     NULL,
     false},
};
#define STORED_KEY_COUNT (sizeof keys / sizeof *keys)
#define KEY_COUNT        (STORED_KEY_COUNT - 3)

static_assert(STORED_KEY_COUNT <= MOST_KEYS, "words of a reader");
static_assert(LMCS_CHAIN_BOUND == 7 && LMCS_LINK_BOUND == 64 && LMCS_MAX_PARITY_DATA == 128 && LMCS_MAX_PARITY == 16 &&
                  LMCS_MAX_RULES == 12 && LMCS_MAX_METRIC == 64 && LMCS_DEFAULT_LINKS == 24,
              "texts of the keys");

const struct lmcs_policy_key *lmcs_policy_key(size_t index)
{
    return index < KEY_COUNT ? &keys[index].is : NULL;
}

void lmcs_policy_init(struct lmcs_policy *policy)
{
    *policy = (struct lmcs_policy){.keep_raw = LMCS_DEFAULT_KEEP_RAW,
                                   .chain = LMCS_DEFAULT_CHAIN,
                                   .links = LMCS_LINKS_AUTO,
                                   .restore_seconds = LMCS_DEFAULT_RESTORE,
                                   .parity_of_bases = true,
                                   .grace_seconds = LMCS_DEFAULT_GRACE};
}

static enum lmcs_status fail_key(const struct reader *reader)
{
    if (strncmp(reader->word, "encode=", strlen("encode=")) == 0)
        return fail_word(reader, "the key is now write=. For encode=never give write=raw, for encode=auto write=auto, "
                                 "for encode=always write=link");
    char names[200];
    size_t used = 0;
    for (size_t i = 0; i < KEY_COUNT; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s=",
                                 i == 0              ? ""
                                 : i + 1 < KEY_COUNT ? ", "
                                                     : " and ",
                                 keys[i].is.name);
    return lmcs_fail(reader->error, LMCS_INVALID, 0, "policy \"%.*s\": the keys are %s",
                     (int)strcspn(reader->word, " "), reader->word, names);
}

static int word_bytes(const char *word)
{
    return (int)strcspn(word, " ");
}

/* The second word would silently replace the first: of two lists of rules, that deletes snapshots. */
static enum lmcs_status fail_repeated(const struct reader *reader, const struct key *key, const char *first)
{
    const char *second = reader->word;
    if (key->read != read_rules)
        return lmcs_fail(reader->error, LMCS_INVALID, 0, "policy \"%.*s\": the key %s is there twice; give it once",
                         word_bytes(second), second, key->is.name);
    const char *rules = second + strlen(key->is.name) + 1;
    return lmcs_fail(reader->error, LMCS_INVALID, 0,
                     "policy \"%.*s\": the key keep is there twice; one keep has all rules, with commas between them: "
                     "%.*s,%.*s",
                     word_bytes(second), second, word_bytes(first), first, word_bytes(rules), rules);
}

/* An entry of a shelf's log, the only word that is repeated. */
static enum lmcs_status read_log(struct reader *reader, struct lmcs_policy *policy)
{
    struct lmcs_policy by;
    struct lmcs_prune_event event;
    const char *begin = reader->at;
    size_t used = strlen(policy->log);
    bool sound = lmcs_policy_log_next(&reader->at, &event) && reader->at - begin < LMCS_MAX_POLICY - (ptrdiff_t)used;
    struct reader rules = {.at = event.policy + strlen("keep="), .word = event.policy};
    sound = sound && read_list(&rules, by.rules, &by.rule_count) == LMCS_OK && *rules.at == '\0';
    if (!sound)
        return fail_word(reader, "an entry of the log is not sound");
    snprintf(policy->log + used, sizeof policy->log - used, "%s%.*s", used > 0 ? " " : "", (int)(reader->at - begin),
             begin);
    return LMCS_OK;
}

static enum lmcs_status read_word(struct reader *reader, struct lmcs_policy *policy)
{
    if (reader->key_count == STORED_KEY_COUNT && take(reader, "log="))
        return read_log(reader, policy);
    size_t length = strcspn(reader->at, "= ");
    for (size_t i = 0; i < reader->key_count; i++)
        if (reader->at[length] == '=' && strlen(keys[i].is.name) == length &&
            memcmp(keys[i].is.name, reader->at, length) == 0) {
            if (reader->words[i] != NULL)
                return fail_repeated(reader, &keys[i], reader->words[i]);
            reader->words[i] = reader->word;
            reader->at += length + 1;
            enum lmcs_status status = keys[i].read(reader, &keys[i], policy);
            return status == LMCS_OK && !at_end(reader) ? fail_value(reader, &keys[i]) : status;
        }
    return fail_key(reader);
}

static enum lmcs_status parse(const char *text, size_t key_count, struct lmcs_policy *policy, struct lmcs_error *error)
{
    struct lmcs_policy changed = *policy;
    struct reader reader = {.at = text == NULL ? "" : text, .key_count = key_count, .error = error};
    for (;;) {
        while (*reader.at == ' ')
            reader.at++;
        if (*reader.at == '\0')
            break;
        reader.word = reader.at;
        enum lmcs_status status = read_word(&reader, &changed);
        if (status != LMCS_OK)
            return status;
    }
    *policy = changed;
    return LMCS_OK;
}

enum lmcs_status lmcs_policy_parse(const char *text, struct lmcs_policy *policy, struct lmcs_error *error)
{
    return parse(text, KEY_COUNT, policy, error);
}

enum lmcs_status lmcs_policy_parse_stored(const char *text, struct lmcs_policy *policy, struct lmcs_error *error)
{
    return parse(text, STORED_KEY_COUNT, policy, error);
}

static enum lmcs_status format(const struct lmcs_policy *policy, size_t key_count, char text[LMCS_MAX_POLICY + 1],
                               struct lmcs_error *error)
{
    struct writer writer = {.text = text};
    for (size_t i = 0; i < key_count; i++) {
        if (keys[i].write == NULL)
            continue;
        size_t before = writer.used;
        put(&writer, "%s%s=", i > 0 ? " " : "", keys[i].is.name);
        size_t value = writer.used;
        keys[i].write(&writer, &keys[i], policy);
        if (!writer.full && !keys[i].always && strcmp(text + value, keys[i].is.initial) == 0) {
            writer.used = before;
            text[before] = '\0';
        }
    }
    return writer.full ? lmcs_fail(error, LMCS_INVALID, 0, "a policy has at most %d bytes of text", LMCS_MAX_POLICY)
                       : LMCS_OK;
}

enum lmcs_status lmcs_policy_format(const struct lmcs_policy *policy, char text[LMCS_MAX_POLICY + 1],
                                    struct lmcs_error *error)
{
    return format(policy, KEY_COUNT, text, error);
}

enum lmcs_status lmcs_policy_format_stored(const struct lmcs_policy *policy, char text[LMCS_MAX_POLICY + 1],
                                           struct lmcs_error *error)
{
    struct lmcs_policy shorter = *policy;
    enum lmcs_status status = format(policy, STORED_KEY_COUNT, text, NULL);
    shorter.was_count = 0;
    if (status != LMCS_OK)
        status = format(&shorter, STORED_KEY_COUNT, text, error);
    const char *entry = policy->log;
    while (status == LMCS_OK && *entry != '\0') {
        size_t length = strcspn(entry, " "), used = strlen(text);
        if (used + strlen(" log=") + length > LMCS_MAX_POLICY)
            break;
        snprintf(text + used, LMCS_MAX_POLICY + 1 - used, " log=%.*s", (int)length, entry);
        entry += length + (entry[length] == ' ');
    }
    return status;
}

enum lmcs_status lmcs_policy_format_rules(const struct lmcs_policy *policy, char text[LMCS_MAX_POLICY + 1],
                                          struct lmcs_error *error)
{
    struct writer writer = {.text = text};
    put(&writer, "keep=");
    put_list(&writer, policy->rules, policy->rule_count);
    return writer.full ? lmcs_fail(error, LMCS_INVALID, 0, "the rules are too long") : LMCS_OK;
}
