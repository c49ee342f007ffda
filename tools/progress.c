/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * progress.c - a progress bar on a terminal, and signals that stop long work cleanly.
 *
 * Handlers record the signal, the next call of the progress function cancels, the library undoes its work, and main
 * exits with 128 plus the signal's number.
 */
#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL

/* The only global; a signal handler needs it. */
static volatile sig_atomic_t signal_number;

static void note_signal(int number)
{
    signal_number = number;
}

int cli_signal(void)
{
    return signal_number;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS + now.tv_nsec;
}

static int bar_width(void)
{
    struct winsize size;
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0 ? size.ws_col : 80;
    int width = columns - 54;
    return width < 0 ? 0 : width > 50 ? 50 : width;
}

/* Prints text like "  1:05 left", once it can be estimated. */
static void print_time_left(int64_t elapsed_ns, double fraction)
{
    double left = fraction > 0.01 ? (double)elapsed_ns / NS * (1 - fraction) / fraction : -1;
    if (left >= 0 && left < 360000)
        fprintf(stderr, "  %d:%02d left", (int)left / 60, (int)left % 60);
}

static void draw(struct cli_progress *progress, const char *what, uint64_t done, uint64_t total)
{
    double fraction = total != 0 ? (double)done / (double)total : 0;
    fraction = fraction > 1 ? 1 : fraction;
    fprintf(stderr, "\r\033[K%-12.20s", what);
    if (total != 0) {
        int width = bar_width();
        int full = (int)(fraction * width);
        fputc('[', stderr);
        for (int i = 0; i < width; i++)
            fputc(i < full ? '#' : '.', stderr);
        fprintf(stderr, "] %3d%%", (int)(fraction * 100));
        print_time_left(now_ns() - progress->started_ns, fraction);
    } else {
        fprintf(stderr, "%s", cli_bytes(done).text);
    }
    int64_t elapsed_ns = now_ns() - progress->started_ns;
    if (progress->is_bytes && elapsed_ns > 0)
        fprintf(stderr, "  %s/s", cli_bytes((uint64_t)((double)done / (double)elapsed_ns * NS)).text);
    fflush(stderr);
    progress->is_drawn = true;
}

/* Draws the bar at most ten times a second, after the first half second. */
static bool on_progress(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct cli_progress *progress = context;
    if (signal_number != 0)
        return false;
    if (!progress->is_shown)
        return true;
    int64_t now = now_ns();
    if (now - progress->started_ns > NS / 2 && now - progress->drawn_ns > NS / 10) {
        progress->drawn_ns = now;
        draw(progress, what, done, total);
    }
    return true;
}

void cli_catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    struct sigaction before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; signal_number == 0 && i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(signals[i], &action, NULL);
}

struct lmcs_progress cli_progress_start(struct cli *cli)
{
    cli_catch_signals();
    const char *terminal = getenv("TERM");
    cli->progress.is_shown = isatty(STDERR_FILENO) != 0 && !(terminal != NULL && strcmp(terminal, "dumb") == 0);
    cli->progress.started_ns = now_ns();
    return (struct lmcs_progress){on_progress, &cli->progress};
}

void cli_progress_wipe(struct cli_progress *progress)
{
    if (progress->is_drawn)
        fputs("\r\033[K", stderr);
    progress->is_drawn = false;
}
