/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/busy.c - holders of shelves.
 *
 * A thread that would close a circle of waits (LOCKS.md) gets an error, so every chain ends at a thread that runs.
 * Captures may also wait for another thread's live transaction.
 */
#include "records/busy.h"

#include <stdlib.h>
#include <string.h>

#include "base/idle.h"
#include "records/safe.h"

struct lmcs_busy_shelf *lmcs_busy_find(struct lmcs_pool *pool, const char *name, struct lmcs_error *error)
{
    struct lmcs_busy_shelf *busy = pool->busy;
    while (busy != NULL && strcmp(busy->name, name) != 0)
        busy = busy->next;
    if (busy != NULL)
        return busy;
    busy = calloc(1, sizeof *busy);
    if (busy == NULL || (busy->name = strdup(name)) == NULL) {
        free(busy);
        lmcs_fail_memory(error);
        return NULL;
    }
    busy->pace = pool->pace;
    busy->next = pool->busy;
    pool->busy = busy;
    return busy;
}

/* ---- Holding a shelf ---- */

struct lmcs_shelf_waiter {
    struct lmcs_shelf_waiter *next;
    pthread_t thread;
    const struct lmcs_busy_shelf *wanted;
};

static void wait_for(struct lmcs_pool *pool, const struct lmcs_busy_shelf *wanted)
{
    struct lmcs_shelf_waiter self = {pool->waiters, pthread_self(), wanted}, **at = &pool->waiters;
    pool->waiters = &self;
    pthread_cond_wait(&pool->captures_changed, &pool->captures);
    while (*at != &self)
        at = &(*at)->next;
    *at = self.next;
}

static bool holds_live(const struct lmcs_pool *pool, const char *shelf)
{
    for (const struct lmcs_live_holder *holder = pool->live_holders; holder != NULL; holder = holder->next)
        if (pthread_equal(holder->thread, pthread_self()) && strcmp(holder->shelf, shelf) == 0)
            return true;
    return false;
}

/* The shelf on which `thread` waits for a live transaction of this thread; or NULL. */
static const struct lmcs_busy_shelf *waits_for_live(const struct lmcs_pool *pool, pthread_t thread)
{
    for (const struct lmcs_busy_shelf *shelf = pool->busy; shelf != NULL; shelf = shelf->next)
        if (shelf->busy && shelf->has_owner && shelf->waits && pthread_equal(shelf->owner, thread) &&
            holds_live(pool, shelf->name))
            return shelf;
    return NULL;
}

/*
 * Follows owners and the shelves that they wait for, from `wanted` on. Returns the last one if this thread owns it or
 * its owner waits for a live transaction of this thread; else NULL.
 */
static const struct lmcs_busy_shelf *find_deadlock(const struct lmcs_pool *pool, const struct lmcs_busy_shelf *wanted)
{
    while (wanted != NULL && wanted->busy && wanted->has_owner && !pthread_equal(wanted->owner, pthread_self())) {
        const struct lmcs_shelf_waiter *waiter = pool->waiters;
        while (waiter != NULL && !pthread_equal(waiter->thread, wanted->owner))
            waiter = waiter->next;
        if (waiter == NULL)
            return waits_for_live(pool, wanted->owner);
        wanted = waiter->wanted;
    }
    return wanted != NULL && wanted->busy && wanted->has_owner ? wanted : NULL;
}

static enum lmcs_status fail_deadlock(const struct lmcs_pool *pool, const struct lmcs_busy_shelf *wanted,
                                      const struct lmcs_busy_shelf *mine, struct lmcs_error *error)
{
    if (mine->waits && !pthread_equal(mine->owner, pthread_self()))
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%s: shelf \"%s\" is in use until a capture of shelf \"%s\" has ended, which waits for "
                         "the transaction that this thread has there: commit or abort that first",
                         pool->path, wanted->name, mine->name);
    if (mine == wanted)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%s: this thread has a capture on shelf \"%s\" that is neither committed nor aborted",
                         pool->path, wanted->name);
    return lmcs_fail(error, LMCS_IN_USE, 0,
                     "%s: shelf \"%s\" is in use in a thread that waits for shelf \"%s\", which this thread "
                     "has, so neither would end: commit or abort the capture on that one first, or restore "
                     "once more",
                     pool->path, wanted->name, mine->name);
}

/* Gives the first failure to a caller, with the number of all. */
static enum lmcs_status take_failures(struct lmcs_busy_shelf *busy, struct lmcs_error *error)
{
    enum lmcs_status status = busy->failures != NULL ? busy->failures->error.status : LMCS_OK;
    size_t count = 0;
    if (status != LMCS_OK && error != NULL)
        *error = busy->failures->error;
    for (; busy->failures != NULL; count++)
        lmcs_failure_take(busy, busy->failures->id);
    if (count == 1)
        lmcs_error_prefix(error, "the snapshot before this one was not saved: ");
    else if (count > 1)
        lmcs_error_prefix(error, "%zu snapshots before this one were not saved, the first because: ", count);
    return status;
}

static bool is_full(const struct lmcs_busy_shelf *busy)
{
    uint64_t count = 0, bytes = 0;
    for (const struct lmcs_ticket *ticket = busy->tickets; ticket != NULL; ticket = ticket->next, count++)
        bytes += ticket->bytes;
    return count >= LMCS_MOST_IN_FLIGHT || bytes >= LMCS_MOST_BYTES_IN_FLIGHT;
}

/* `ticket` NULL: not for a capture. Holds the shelf while it waits for captures in flight, so that no other begins. */
static enum lmcs_status take(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy, struct lmcs_ticket *ticket,
                             struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && busy->busy) {
        const struct lmcs_busy_shelf *mine = find_deadlock(pool, busy);
        if (mine != NULL)
            status = fail_deadlock(pool, busy, mine, error);
        else
            wait_for(pool, busy);
    }
    if (status != LMCS_OK)
        return status;
    busy->busy = true;
    busy->has_owner = true;
    busy->owner = pthread_self();
    while (ticket != NULL ? is_full(busy) : busy->tickets != NULL)
        pthread_cond_wait(&pool->captures_changed, &pool->captures);
    status = take_failures(busy, error);
    if (status != LMCS_OK) {
        busy->busy = busy->has_owner = false;
        pthread_cond_broadcast(&pool->captures_changed);
    } else if (ticket != NULL) {
        struct lmcs_ticket **last = &busy->tickets;
        while (*last != NULL)
            last = &(*last)->next;
        *last = ticket;
    }
    return status;
}

enum lmcs_status lmcs_shelf_take_for(struct lmcs_pool *pool, const char *name, struct lmcs_ticket *ticket,
                                     struct lmcs_busy_shelf **taken, struct lmcs_error *error)
{
    pthread_mutex_lock(&pool->captures);
    struct lmcs_busy_shelf *busy = lmcs_busy_find(pool, name, error);
    enum lmcs_status status = busy != NULL ? take(pool, busy, ticket, error) : LMCS_NO_MEMORY;
    if (status == LMCS_OK)
        *taken = busy;
    pthread_mutex_unlock(&pool->captures);
    return status;
}

enum lmcs_status lmcs_shelf_take(struct lmcs_pool *pool, const char *name, struct lmcs_busy_shelf **taken,
                                 struct lmcs_error *error)
{
    return lmcs_shelf_take_for(pool, name, NULL, taken, error);
}

bool lmcs_shelf_is_full(struct lmcs_pool *pool, const char *name)
{
    pthread_mutex_lock(&pool->captures);
    const struct lmcs_busy_shelf *busy = lmcs_busy_find(pool, name, NULL);
    bool full = busy != NULL && (busy->busy || is_full(busy));
    pthread_mutex_unlock(&pool->captures);
    return full;
}

bool lmcs_shelf_try(struct lmcs_pool *pool, const char *name, struct lmcs_busy_shelf **taken)
{
    pthread_mutex_lock(&pool->captures);
    struct lmcs_busy_shelf *busy = lmcs_busy_find(pool, name, NULL);
    bool free = busy != NULL && !busy->busy;
    if (free) {
        busy->busy = true;
        busy->has_owner = false;
        *taken = busy;
    }
    pthread_mutex_unlock(&pool->captures);
    return free;
}

void lmcs_shelf_give(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy)
{
    pthread_mutex_lock(&pool->captures);
    busy->busy = busy->has_owner = false;
    pthread_cond_broadcast(&pool->captures_changed);
    pthread_mutex_unlock(&pool->captures);
}

/* ---- Captures in flight ---- */

bool lmcs_ticket_wait(struct lmcs_pool *pool, const struct lmcs_busy_shelf *busy, const struct lmcs_ticket *ticket)
{
    pthread_mutex_lock(&pool->captures);
    bool waits = busy->tickets != ticket;
    while (busy->tickets != ticket)
        pthread_cond_wait(&pool->captures_changed, &pool->captures);
    pthread_mutex_unlock(&pool->captures);
    return waits;
}

void lmcs_ticket_end(struct lmcs_busy_shelf *busy, struct lmcs_ticket *ticket)
{
    struct lmcs_ticket **at = &busy->tickets;
    while (*at != ticket)
        at = &(*at)->next;
    *at = ticket->next;
}

void lmcs_busy_bases(struct lmcs_pool *pool, const char *name, struct lmcs_bases *bases)
{
    bases->count = 0;
    pthread_mutex_lock(&pool->captures);
    const struct lmcs_busy_shelf *busy = lmcs_busy_find(pool, name, NULL);
    for (const struct lmcs_ticket *ticket = busy != NULL ? busy->tickets : NULL; ticket != NULL; ticket = ticket->next)
        if (ticket->base != 0)
            bases->numbers[bases->count++] = ticket->base;
    pthread_mutex_unlock(&pool->captures);
}

static bool is_base(const struct lmcs_busy_shelf *busy, uint64_t number, bool *is_open)
{
    for (const struct lmcs_ticket *ticket = busy->tickets; ticket != NULL; ticket = ticket->next) {
        *is_open = !ticket->is_queued;
        if (ticket->base == number)
            return true;
    }
    return false;
}

/* Waits until no ticket has the base. The caller holds pool->captures. */
static enum lmcs_status wait_for_base(struct lmcs_pool *pool, const struct lmcs_busy_shelf *busy, uint64_t number,
                                      struct lmcs_error *error)
{
    bool is_open;
    while (is_base(busy, number, &is_open)) {
        const struct lmcs_busy_shelf *mine = is_open ? find_deadlock(pool, busy) : NULL;
        if (mine != NULL)
            return fail_deadlock(pool, busy, mine, error);
        wait_for(pool, busy);
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_base_drop_begin(struct lmcs_pool *pool, const char *name, uint64_t number,
                                      struct lmcs_busy_shelf **taken, struct lmcs_error *error)
{
    pthread_mutex_lock(&pool->captures);
    struct lmcs_busy_shelf *busy = lmcs_busy_find(pool, name, error);
    enum lmcs_status status = busy != NULL ? LMCS_OK : LMCS_NO_MEMORY;
    while (status == LMCS_OK && busy->dropping != 0)
        pthread_cond_wait(&pool->captures_changed, &pool->captures);
    if (status == LMCS_OK) {
        busy->dropping = number;
        busy->drops++;
        status = wait_for_base(pool, busy, number, error);
        if (status != LMCS_OK) {
            busy->dropping = 0;
            pthread_cond_broadcast(&pool->captures_changed);
        }
        *taken = busy;
    }
    pthread_mutex_unlock(&pool->captures);
    return status;
}

void lmcs_base_drop_end(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy)
{
    pthread_mutex_lock(&pool->captures);
    busy->dropping = 0;
    pthread_cond_broadcast(&pool->captures_changed);
    pthread_mutex_unlock(&pool->captures);
}

uint64_t lmcs_base_drops(struct lmcs_pool *pool, const struct lmcs_busy_shelf *busy, struct lmcs_ticket *ticket)
{
    pthread_mutex_lock(&pool->captures);
    ticket->base = 0; /* a drop may wait for it */
    pthread_cond_broadcast(&pool->captures_changed);
    while (busy->dropping != 0)
        pthread_cond_wait(&pool->captures_changed, &pool->captures);
    const uint64_t drops = busy->drops;
    pthread_mutex_unlock(&pool->captures);
    return drops;
}

bool lmcs_base_take(struct lmcs_pool *pool, const struct lmcs_busy_shelf *busy, struct lmcs_ticket *ticket,
                    uint64_t base, uint64_t drops)
{
    pthread_mutex_lock(&pool->captures);
    const bool is_sure = busy->drops == drops;
    if (is_sure)
        ticket->base = base;
    pthread_mutex_unlock(&pool->captures);
    return is_sure;
}

void lmcs_failure_take(struct lmcs_busy_shelf *busy, uint64_t id)
{
    struct lmcs_failure **at = &busy->failures;
    while (*at != NULL && (*at)->id != id)
        at = &(*at)->next;
    struct lmcs_failure *gone = *at;
    if (gone != NULL)
        *at = gone->next;
    free(gone);
}

enum lmcs_status lmcs_busy_settle(struct lmcs_pool *pool, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    pthread_mutex_lock(&pool->captures);
    for (struct lmcs_busy_shelf *busy = pool->busy; busy != NULL; busy = busy->next) {
        while (busy->committing || (busy->busy && !busy->has_owner))
            pthread_cond_wait(&pool->captures_changed, &pool->captures);
        if (busy->failures != NULL && status == LMCS_OK) {
            status = busy->failures->error.status;
            if (error != NULL)
                *error = busy->failures->error;
            lmcs_error_prefix(error, "a snapshot of shelf \"%.100s\" was not saved: ", busy->name);
        }
    }
    pthread_mutex_unlock(&pool->captures);
    return status;
}

void lmcs_busy_free(struct lmcs_pool *pool)
{
    for (struct lmcs_busy_shelf *busy = pool->busy, *next; busy != NULL; busy = next) {
        next = busy->next;
        while (busy->failures != NULL)
            lmcs_failure_take(busy, busy->failures->id);
        free(busy->name);
        free(busy);
    }
    for (struct lmcs_loaded *loaded = pool->loaded, *next; loaded != NULL; loaded = next) {
        next = loaded->next;
        free(loaded);
    }
    lmcs_safe_free(pool->safe);
}

void lmcs_live_holder_enter(struct lmcs_pool *pool, struct lmcs_live_holder *holder)
{
    pthread_mutex_lock(&pool->captures);
    holder->thread = pthread_self();
    holder->next = pool->live_holders;
    pool->live_holders = holder;
    pthread_mutex_unlock(&pool->captures);
}

void lmcs_live_holder_leave(struct lmcs_pool *pool, struct lmcs_live_holder *holder)
{
    pthread_mutex_lock(&pool->captures);
    struct lmcs_live_holder **at = &pool->live_holders;
    while (*at != holder)
        at = &(*at)->next;
    *at = holder->next;
    pthread_mutex_unlock(&pool->captures);
}

/* ---- Loaded snapshots ---- */

struct lmcs_loaded *lmcs_loaded_find(struct lmcs_pool *pool, uint64_t shelf)
{
    struct lmcs_loaded *loaded = pool->loaded;
    while (loaded != NULL && loaded->shelf != shelf)
        loaded = loaded->next;
    if (loaded != NULL || (loaded = calloc(1, sizeof *loaded)) == NULL)
        return loaded;
    loaded->shelf = shelf;
    loaded->next = pool->loaded;
    pool->loaded = loaded;
    return loaded;
}

void lmcs_loaded_forget(struct lmcs_pool *pool, uint64_t shelf)
{
    pthread_mutex_lock(&pool->captures);
    struct lmcs_loaded **at = &pool->loaded;
    while (*at != NULL && (*at)->shelf != shelf)
        at = &(*at)->next;
    struct lmcs_loaded *gone = *at;
    if (gone != NULL)
        *at = gone->next;
    pthread_mutex_unlock(&pool->captures);
    free(gone);
}
