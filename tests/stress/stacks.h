/* SPDX-License-Identifier: BSD-3-Clause */
/* stacks.h - the stack of each thread of a process that hangs, without a debugger. */
#ifndef LMCS_TEST_STACKS_H
#define LMCS_TEST_STACKS_H

#include <sys/types.h>

/* Call before the process starts threads. */
void stacks_can_be_asked(void);

/*
 * Makes each thread of such a process write its stack to stderr, for `addr2line -fpe PROGRAM ADDRESS...`. This disturbs
 * the process, which should end afterwards.
 */
void stacks_say(pid_t process);

#endif
