/* SPDX-License-Identifier: BSD-3-Clause */
/* stacks.c - see stacks.h. A signal handler writes the stack. */
#include "stacks.h"

#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ASKED = SIGUSR2, MOST_CALLS = 48, ANSWER_US = 50000 };

static void say_stack(int signal)
{
    void *calls[MOST_CALLS];
    char title[48];
    (void)signal;
    int length = snprintf(title, sizeof title, "-- thread %ld\n", (long)syscall(SYS_gettid));
    int count = backtrace(calls, MOST_CALLS);
    if (write(STDERR_FILENO, title, (size_t)length) == length)
        backtrace_symbols_fd(calls, count, STDERR_FILENO);
}

void stacks_can_be_asked(void)
{
    struct sigaction action;
    void *first;
    memset(&action, 0, sizeof action);
    backtrace(&first, 1); /* loads a library, which no handler may */
    action.sa_handler = say_stack;
    action.sa_flags = SA_RESTART;
    sigaction(ASKED, &action, NULL);
}

void stacks_say(pid_t process)
{
    char tasks[64];
    struct dirent *entry;
    snprintf(tasks, sizeof tasks, "/proc/%d/task", (int)process);
    DIR *folder = opendir(tasks);
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        long task = strtol(entry->d_name, NULL, 10);
        if (task == 0 || syscall(SYS_tgkill, (long)process, task, ASKED) != 0)
            continue;
        usleep(ANSWER_US); /* one after the other */
    }
    if (folder != NULL)
        closedir(folder);
}
