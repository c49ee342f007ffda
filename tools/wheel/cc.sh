#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# A compiler for $LMCS_ARCH that needs no symbol of a glibc newer than 2.28: zig's, with what configure scripts and
# CMake expect of one. tools/wheel.sh sets the variables.
target=$LMCS_ARCH-linux-gnu.2.28
for argument; do
    case $argument in
        -E | -dumpmachine | --version) target=${target%.2.28} ;; # zig accepts the version only where it compiles
    esac
done
case " $* " in
    *" -E "*" -o /dev/null "*) exec >/dev/null ;; # zig writes to stdout all the same
esac
exec "$LMCS_WHEEL_ZIG" cc -target "$target" "$@"
