/* SPDX-License-Identifier: BSD-3-Clause */
/* sample.h - samples of resources, each a line of a CSV file. */
#ifndef LMCS_STRESS_SAMPLE_H
#define LMCS_STRESS_SAMPLE_H

#include <sys/types.h>

#include "crew.h"

struct sampler;

/* `path` NULL: writes nothing. */
struct sampler *sampler_new(const char *path);
/* At rest. `reader`: 0, or a reading process. Takes the call times since the last sample. */
void sampler_take(struct sampler *sampler, struct crew *crew, struct lmcs_pool *pool, uint64_t rounds, uint64_t calls);
void sampler_end(struct sampler *sampler);

#endif
