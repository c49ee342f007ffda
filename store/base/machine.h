/* SPDX-License-Identifier: BSD-3-Clause */
/* base/machine.h - the memory of the machine. */
#ifndef LMCS_BASE_MACHINE_H
#define LMCS_BASE_MACHINE_H

#include <stdint.h>

/* Bytes of memory that this process may use: the machine's, or fewer if its control group has a limit (cgroups v1 and
 * v2, without limits of parent groups). */
uint64_t lmcs_machine_memory(void);

#endif
