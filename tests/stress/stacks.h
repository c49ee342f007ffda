/* SPDX-License-Identifier: BSD-3-Clause */
/* stacks.h - where each thread of a process is, for those that hang where no debugger is. */
#ifndef LMCS_TEST_STACKS_H
#define LMCS_TEST_STACKS_H

#include <sys/types.h>

/* A process whose threads can be asked; to be called before it has any but the first. */
void stacks_can_be_asked(void);

/*
 * Has each thread of such a process write the calls that it is in on its stderr. Addresses in parentheses are for
 * `addr2line -fpe PROGRAM ADDRESS...`. It disturbs what the process is doing, which is to end after it.
 */
void stacks_say(pid_t process);

#endif
