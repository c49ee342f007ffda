/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/warn.h - warnings in the report of a dump or a restore. */
#ifndef LMCS_TRANSFER_WARN_H
#define LMCS_TRANSFER_WARN_H

#include "lmcstore.h"

/* Adds a line to report->warnings. If it does not fit, a last line reports that there are more. */
void lmcs_transfer_warn(struct lmcs_transfer_report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
