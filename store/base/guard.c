/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/guard.c - the handler of SIGBUS.
 *
 * The first guard installs a handler of SIGBUS; removing it could remove an application's later one. It jumps back to
 * its thread's guard if the address is in the guard's ranges, and forwards other signals to the previous handler.
 * Opening a pool makes it the first again. An application's later handler must forward its three arguments. The kernel
 * ends a thread that blocks SIGBUS, with or without guards.
 */
#include "base/guard.h"

#include <fenv.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define SMALLEST_PAGE 4096u /* of all processors; mapped bytes fail by pages or more */

struct guard {
    sigjmp_buf back;
    const struct lmcs_guarded *ranges;
    size_t count;
};

/* The handler must not call the dynamic linker, even if the library was loaded late. */
static _Thread_local struct guard *volatile innermost __attribute__((tls_model("initial-exec")));
static _Thread_local volatile sig_atomic_t passing __attribute__((tls_model("initial-exec")));
static pthread_once_t installed = PTHREAD_ONCE_INIT;
static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous;

/* The kernel reports the page and the size of a failed piece of memory. */
static bool expects(const struct guard *guard, const siginfo_t *info)
{
    uintptr_t piece = SMALLEST_PAGE, at = (uintptr_t)info->si_addr;
    if ((info->si_code == BUS_MCEERR_AR || info->si_code == BUS_MCEERR_AO) && info->si_addr_lsb > 12 &&
        info->si_addr_lsb < 48)
        piece = (uintptr_t)1 << info->si_addr_lsb;
    at &= ~(piece - 1);
    for (size_t i = 0; i < guard->count; i++) {
        uintptr_t from = (uintptr_t)guard->ranges[i].at;
        if (at < from + guard->ranges[i].bytes && from < at + piece)
            return true;
    }
    return false;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    bool none =
        (previous.sa_flags & SA_SIGINFO) == 0 && (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN);
    /* The previous handler may itself forward to ours. */
    if (none || passing) {
        /* A repeated access ends the process; a signal that was sent is sent again. */
        signal(number, SIG_DFL);
        if (info->si_code <= 0)
            raise(number);
        return;
    }
    passing = 1;
    if ((previous.sa_flags & SA_SIGINFO) != 0)
        previous.sa_sigaction(number, info, context);
    else
        previous.sa_handler(number);
    passing = 0;
}

static void handle(int number, siginfo_t *info, void *context)
{
    struct guard *guard = innermost;
    /* > 0: sent by the kernel, with an address */
    if (guard != NULL && info->si_code > 0 && expects(guard, info)) {
        /* A handler that forwards may have blocked SIGBUS, which the jump would leave blocked. */
        const ucontext_t *interrupted = context;
        pthread_sigmask(SIG_SETMASK, &interrupted->uc_sigmask, NULL);
        siglongjmp(guard->back, 1);
    }
    pass_on(number, info, context);
}

static bool is_on_top(struct sigaction *now)
{
    return sigaction(SIGBUS, NULL, now) == 0 && (now->sa_flags & SA_SIGINFO) != 0 && now->sa_sigaction == handle;
}

void lmcs_guard_install(void)
{
    /* SA_NODEFER: a previous handler may leave by a jump, too */
    struct sigaction now, action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    pthread_mutex_lock(&install_lock);
    if (!is_on_top(&now)) {
        previous = now;
        sigaction(SIGBUS, &action, NULL);
    }
    pthread_mutex_unlock(&install_lock);
}

bool lmcs_guard_holds(void)
{
    struct sigaction now;
    sigset_t blocked;
    return is_on_top(&now) && pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0 && sigismember(&blocked, SIGBUS) == 0;
}

bool lmcs_guard(const struct lmcs_guarded *ranges, size_t count, void (*work)(void *context), void *context)
{
    struct guard guard = {.ranges = ranges, .count = count};
    struct guard *volatile outer = innermost;
    volatile bool done = false;
    fenv_t arithmetic; /* a signal's handler has the default one, and keeps it when it jumps */
    pthread_once(&installed, lmcs_guard_install);
    fegetenv(&arithmetic);
    if (sigsetjmp(guard.back, 0) == 0) {
        innermost = &guard;
        work(context);
        done = true;
    } else {
        fesetenv(&arithmetic);
    }
    innermost = outer;
    return done;
}

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

static void copy(void *context)
{
    const struct copy *c = context;
    memcpy(c->to, c->from, c->bytes);
}

bool lmcs_guard_copy(void *to, const void *from, size_t bytes)
{
    struct copy c = {to, from, bytes};
    struct lmcs_guarded range = {from, bytes};
    return lmcs_guard(&range, 1, copy, &c);
}

struct comparing {
    const void *one, *other;
    size_t bytes;
    bool equal;
};

static void compare(void *context)
{
    struct comparing *c = context;
    c->equal = memcmp(c->one, c->other, c->bytes) == 0;
}

bool lmcs_guard_equal(const void *one, const void *other, size_t bytes, size_t guarded)
{
    struct comparing c = {one, other, bytes, false};
    struct lmcs_guarded ranges[] = {{one, bytes}, {other, bytes}};
    return lmcs_guard(ranges, guarded, compare, &c) && c.equal;
}

static void touch_and_store(void *context)
{
    const struct copy *c = context;
    const uintptr_t end = (uintptr_t)c->to + c->bytes;
    for (uintptr_t at = (uintptr_t)c->to; at < end; at = (at | (SMALLEST_PAGE - 1)) + 1)
        (void)*(const volatile char *)at;
    if (c->from != NULL)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, 0, c->bytes);
}

bool lmcs_guard_store(void *to, const void *from, size_t bytes)
{
    struct copy c = {to, from, bytes};
    struct lmcs_guarded range = {to, bytes};
    return lmcs_guard(&range, 1, touch_and_store, &c);
}

void lmcs_guard_signals(sigset_t *blocked)
{
    sigfillset(blocked);
    sigdelset(blocked, SIGBUS);
}
