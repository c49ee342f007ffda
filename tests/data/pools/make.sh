#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Writes the packed pools of this folder and their texts:
#
#   tests/data/pools/make.sh CHECKOUT
#
# CHECKOUT is a checkout of commit a088696, built with the preset release. The pools here must stay; a later version
# adds its own (README.md). /tmp must be on a disk.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "${1:?the checkout of a088696}" && pwd)
out=$(mktemp -d /tmp/make-pools.XXXXXX)
trap 'rm -rf "$out"' EXIT

[ "$(git -C "$checkout" rev-parse --short=7 HEAD)" = a088696 ] || { echo "$checkout is not at a088696" >&2; exit 1; }
for program in make_pools make_killed; do
    cc -std=c17 -O2 -D_GNU_SOURCE -I"$here" -I"$checkout/tests" -I"$checkout/store" -I"$checkout/codec" \
        "$here/$program.c" "$checkout/tests/support.c" "$checkout/build/release/lib/liblmcstore.a" \
        "$checkout/build/release/lib/liblmc.a" -lpmemobj -lpmem -lndctl -ldaxctl -lisal -ljansson -lnuma -lcmocka \
        -lpthread -lm -o "$out/$program"
    "$out/$program" "$out/pools"
done

cd "$out/pools"
"$checkout/build/release/bin/lmc-store" compress history/one.safetensors -o history/one.lmc
"$checkout/build/release/bin/lmc-store" compress history/two.safetensors --base history/one.safetensors \
    -o history/two.lmc
for name in history links live safety prepared killed poolset; do
    find "$name" -type f -exec fallocate --dig-holes {} \;
    tar --sparse --sort=name --owner=0 --group=0 --numeric-owner -C "$name" -cf - . | xz -9e >"$here/$name.tar.xz"
    mv "$name.txt" "$here/$name.txt"
done
ls -l "$here"/*.tar.xz
