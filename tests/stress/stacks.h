/* SPDX-License-Identifier: BSD-3-Clause */
/* stacks.h - the stacks of a process that hangs, without a debugger. */
#ifndef LMCS_TEST_STACKS_H
#define LMCS_TEST_STACKS_H

#include <sys/types.h>

/* Call before threads start. */
void stacks_can_be_asked(void);

/* Writes each thread's stack to stderr, for `addr2line -fpe PROGRAM ADDRESS...`. The process should end afterwards. */
void stacks_say(pid_t process);

#endif
