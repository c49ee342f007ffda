/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * gate.c - the calls into one open of a pool: their count, the Python code inside them, and the handles to end first.
 *
 * A close waits until no thread is inside a call, then ends all children, as the store requires. A Pool that is
 * collected unclosed closes itself.
 */
#include "core.h"

#include <unistd.h>

#define CLOSE_POLL_US 1000

bool core_pool_is_foreign(const struct pool_object *pool)
{
    return getpid() != pool->owner;
}

bool core_pool_enter(struct pool_object *pool)
{
    if (pool->handle == NULL || pool->closing) {
        core_fail_with(pool, LMCS_INVALID, "the store is closed: open it again");
        return false;
    }
    pool->users++;
    return true;
}

void core_pool_leave(struct pool_object *pool)
{
    pool->users--;
}

void core_callback_begin(struct pool_object *pool, struct core_callback *callback)
{
    callback->thread = PyThread_get_thread_ident();
    callback->next = pool->callbacks;
    pool->callbacks = callback;
}

void core_callback_end(struct pool_object *pool, struct core_callback *callback)
{
    struct core_callback **link = &pool->callbacks;
    while (*link != callback) /* others came and went meanwhile */
        link = &(*link)->next;
    *link = callback->next;
}

bool core_snapshot_enter(struct snapshot_object *self)
{
    if (!core_pool_enter(self->pool))
        return false;
    if (self->handle == NULL) {
        core_pool_leave(self->pool);
        core_fail_with(self, LMCS_INVALID, "the store is closed: open it again");
        return false;
    }
    return true;
}

void core_child_link(struct pool_object *pool, struct core_child *child, const struct core_child_kind *kind)
{
    child->kind = kind;
    child->next = pool->children;
    child->link = &pool->children;
    if (child->next != NULL)
        child->next->link = &child->next;
    pool->children = child;
}

void core_child_unlink(struct core_child *child)
{
    if (child->link == NULL)
        return;
    *child->link = child->next;
    if (child->next != NULL)
        child->next->link = child->link;
    child->link = NULL;
    child->next = NULL;
}

/* ---- Close ---------------------------------------------------------------------------------------------------- */

static bool is_in_callback(const struct pool_object *pool)
{
    const struct core_callback *callback = pool->callbacks;
    while (callback != NULL && callback->thread != PyThread_get_thread_ident())
        callback = callback->next;
    return callback != NULL;
}

/* Ends captures that no thread is inside of. Other threads may wait for their shelves, and the thread that would
 * continue one may be below this call on the stack (in a signal's handler). */
static void end_idle_children(struct pool_object *self)
{
    struct core_child *child = self->children;
    while (child != NULL) { /* an end may change the list */
        bool ended = child->kind->end_idle != NULL && child->kind->end_idle(child);
        child = ended ? self->children : child->next;
    }
}

bool core_pool_wait(struct pool_object *self)
{
    while (self->users > 0) {
        if (is_in_callback(self)) {
            core_fail_with(self, LMCS_INVALID, "a store can't be closed from inside one of its own calls");
            return false;
        }
        end_idle_children(self);
        Py_BEGIN_ALLOW_THREADS
        usleep(CLOSE_POLL_US);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() != 0)
            return false;
    }
    return true;
}

/* True, with `error`, if an asynchronous capture failed unreported. */
static bool end_children(struct pool_object *self, struct lmcs_error *error)
{
    bool failed = false;
    while (self->children != NULL)
        failed = self->children->kind->end(self->children, error) || failed; /* unlinks it */
    return failed;
}

enum lmcs_status core_pool_close_now(struct pool_object *self, struct lmcs_error *error)
{
    struct lmcs_pool *handle = self->handle;
    bool is_foreign = core_pool_is_foreign(self);
    bool failed = is_foreign ? false : end_children(self, error);
    while (!is_foreign && self->users > 0) { /* other threads release captures that are unlinked already */
        Py_BEGIN_ALLOW_THREADS
        usleep(CLOSE_POLL_US);
        Py_END_ALLOW_THREADS
    }
    self->handle = NULL;
    struct lmcs_error close_error = {0};
    enum lmcs_status status;
    Py_BEGIN_ALLOW_THREADS
    status = lmcs_pool_close(handle, &close_error);
    Py_END_ALLOW_THREADS
    if (failed)
        return error->status;
    *error = close_error;
    return status;
}
