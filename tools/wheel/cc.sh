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
# zig tunes for no processor unless it gets the name of one: kernels then take up to 1.4 times as long. The names stand
# for more instructions than codec/kernels/cpu.c looks for; these are taken away again.
case " $* " in
    *" -mavx512f "*) set -- -mcpu=x86_64_v4-lzcnt-movbe-avx512cd-cx16-sahf "$@" ;;
    *" -mavx2 "*) set -- -mcpu=x86_64_v3-f16c-lzcnt-movbe-cx16-sahf "$@" ;;
esac
# zig passes -O2 to clang for -O3, and keeps the frame pointer. Only the codec computes much, most of it in kernels; the
# rest may be small. So may portable kernels, which only old processors use.
case " $* " in
    *" -O3 "*"_portable.c "*) set -- "$@" -fomit-frame-pointer -Os ;;
    *" -O3 "*"/codec/kernels/"*) set -- "$@" -fomit-frame-pointer -Xclang -O3 ;;
    *" -O3 "*"/codec/"*) set -- "$@" -fomit-frame-pointer ;;
    *" -O3 "*) set -- "$@" -fomit-frame-pointer -Os ;;
esac
# The command and the module each use a part of the libraries; the linker leaves the other functions out. C needs no
# tables to unwind the stack: they took 5 % of the wheel.
exec "$LMCS_WHEEL_ZIG" cc -target "$target" -ffunction-sections -fdata-sections -fno-unwind-tables \
    -fno-asynchronous-unwind-tables "$@"
