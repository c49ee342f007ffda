/* SPDX-License-Identifier: BSD-3-Clause */
/* wait.c - long waits cut into slices, between which signals are checked. */
#include "core.h"

#include <errno.h>
#include <time.h>

#define WAIT_SLICE_MS 100

uint64_t core_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

bool core_next_slice(uint32_t wait_ms, uint64_t start_ms, uint32_t *slice_ms)
{
    if (PyErr_CheckSignals() != 0)
        return false;
    uint64_t waited = core_now_ms() - start_ms;
    if (wait_ms != UINT32_MAX && waited >= wait_ms)
        return false;
    uint64_t left = wait_ms == UINT32_MAX ? WAIT_SLICE_MS : wait_ms - waited;
    *slice_ms = left < WAIT_SLICE_MS ? (uint32_t)left : WAIT_SLICE_MS;
    return true;
}

bool core_waits_on(enum lmcs_status status, const struct lmcs_error *error, uint32_t *slice_ms)
{
    return status == LMCS_IN_USE && error->system_errno == ETIMEDOUT && core_next_slice(UINT32_MAX, 0, slice_ms);
}
