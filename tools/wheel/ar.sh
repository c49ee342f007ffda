#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
exec "$LMCS_WHEEL_ZIG" ar "$@"
