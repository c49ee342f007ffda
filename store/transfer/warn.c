/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/warn.c - warnings in the report of a dump or a restore. */
#include "transfer/warn.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void lmcs_transfer_warn(struct lmcs_transfer_report *report, const char *format, ...)
{
    static const char more[] = "there are more warnings\n";
    const size_t room = sizeof report->warnings - sizeof more;
    size_t used = strlen(report->warnings);
    va_list arguments;
    if (strstr(report->warnings, more) != NULL)
        return;
    va_start(arguments, format);
    int length = vsnprintf(report->warnings + used, room - used, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length + 1 >= room - used)
        memcpy(report->warnings + used, more, sizeof more);
    else
        memcpy(report->warnings + used + length, "\n", 2);
}
