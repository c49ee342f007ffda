#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Writes the packed pools of one later program, and their texts:
#
#   tests/data/pools/make_later.sh CHECKOUT NAME
#
# CHECKOUT is a checkout of the commit that README.md names for NAME, built with the preset release. /tmp must be on a
# disk. A make_NAME.py needs that commit's Python package in CHECKOUT/build/package, NumPy and torch (PYTHON: which
# python3), and writes no text: its test has the content.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "${1:?a checkout}" && pwd)
name=${2:?the name of the pools}
out=$(mktemp -d /tmp/make-pools.XXXXXX)
trap 'rm -rf "$out"' EXIT

if [ -e "$here/make_$name.py" ]; then
    PYTHONPATH="$checkout/build/package" "${PYTHON:-python3}" "$here/make_$name.py" "$out/pools"
else
    cc -std=c17 -O2 -D_GNU_SOURCE -I"$here" -I"$checkout/tests" -I"$checkout/store" -I"$checkout/codec" \
        "$here/make_$name.c" "$checkout/tests/support.c" "$checkout/build/release/lib/liblmcstore.a" \
        "$checkout/build/release/lib/liblmc.a" -lpmemobj -lpmem -lndctl -ldaxctl -lisal -ljansson -lnuma -lcmocka \
        -lpthread -lm -o "$out/make"
    "$out/make" "$out/pools"
fi
cd "$out/pools"
find "$name" -type f -exec fallocate --dig-holes {} \;
tar --sparse --sort=name --owner=0 --group=0 --numeric-owner -C "$name" -cf - . | xz -9e >"$here/$name.tar.xz"
[ ! -e "$name.txt" ] || mv "$name.txt" "$here/$name.txt"
ls -l "$here/$name.tar.xz"
