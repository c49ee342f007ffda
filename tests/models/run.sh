#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Checks tests/models/annotations.pml with Spin: it must hold, and fail without each step of the protocol.
# Usage: tests/models/run.sh [FOLDER for the verifiers]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-$(mktemp -d)}
status=0

# verify holds|fails NAME MACROS...
verify() {
    local expected=$1 name=$2 result=fails states
    shift 2
    rm -rf "${work:?}/$name" && mkdir -p "$work/$name" && cd "$work/$name"
    spin -a "$@" "$here/annotations.pml" >spin.log
    "${CC:-cc}" -O2 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -o pan pan.c
    ./pan -m200000 -w24 -E >pan.log 2>&1
    if grep -q 'errors: 0' pan.log && ! grep -q 'max search depth' pan.log; then
        result=holds
    fi
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
    printf '%s: %s (%s; %s states)\n' "$name" "$result" "$*" "$states"
    if [ "$result" != "$expected" ]; then
        echo "  WRONG: see $work/$name"
        status=1
    fi
}

verify holds deaths -DDEATHS=2 -DCRASHES=0 -DNO_READER
verify holds failures -DDEATHS=1 -DCRASHES=1
verify fails no-chain -DBREAK_CHAIN -DDEATHS=1 -DCRASHES=1 -DNO_READER
verify fails no-reread -DBREAK_REREAD -DDEATHS=0 -DCRASHES=0
verify fails no-sync -DBREAK_SYNC -DDEATHS=0 -DCRASHES=1
verify fails no-sync-before-reuse -DBREAK_REUSE -DDEATHS=0 -DCRASHES=1
verify fails no-wait-for-pruning -DBREAK_PRUNING -DDEATHS=0 -DCRASHES=0
exit "$status"
