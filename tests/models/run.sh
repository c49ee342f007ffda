#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Checks the models beside it with Spin: each must hold, and fail without each step of its protocol. One check runs on
# each processor; the lines appear in the order of the checks.
# Usage: tests/models/run.sh [FOLDER for the verifiers]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-$(mktemp -d)}
status=0
names=()

# check holds|fails MODEL NAME OPTIONS-OF-PAN MACROS...: writes its line to NAME/line.
check() {
    local expected=$1 model=$2 name=$3 options=$4 result=fails states
    shift 4
    cd "$work/$model-$name"
    spin -a "$@" "$here/$model.pml" >spin.log
    "${CC:-cc}" -O2 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -o pan pan.c
    # shellcheck disable=SC2086 # none or one
    ./pan -m200000 -w24 $options >pan.log 2>&1
    if grep -q 'errors: 0' pan.log && ! grep -q 'max search depth' pan.log; then
        result=holds
    fi
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
    printf '%s, %s: %s (%s; %s states)\n' "$model" "$name" "$result" "$*" "$states" >line
    if [ "$result" != "$expected" ]; then
        echo "  WRONG: see $work/$model-$name" >>line
    fi
}

# verify ...: begins a check when a processor is free.
verify() {
    local folder=$work/$2-$3
    while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n || true; done
    rm -rf "${folder:?}" && mkdir -p "$folder"
    names+=("$2-$3")
    check "$@" &
}

verify holds annotations deaths -E -DDEATHS=2 -DCRASHES=0 -DNO_READER
verify holds annotations failures -E -DDEATHS=1 -DCRASHES=1
verify fails annotations no-chain -E -DBREAK_CHAIN -DDEATHS=1 -DCRASHES=1 -DNO_READER
verify fails annotations no-reread -E -DBREAK_REREAD -DDEATHS=0 -DCRASHES=0
verify fails annotations no-sync -E -DBREAK_SYNC -DDEATHS=0 -DCRASHES=1
verify fails annotations no-sync-before-reuse -E -DBREAK_REUSE -DDEATHS=0 -DCRASHES=1
verify fails annotations no-wait-for-pruning -E -DBREAK_PRUNING -DDEATHS=0 -DCRASHES=0
verify holds captures all ''
verify fails captures no-turns '' -DBREAK_ORDER
verify fails captures no-bound '' -DBREAK_BOUND
verify fails captures base-pruned '' -DBREAK_BASE
verify fails captures shared-with-uncommitted '' -DBREAK_SHARING
verify fails captures parent-of-begin '' -DBREAK_PARENT
verify fails captures failure-inherited '' -DBREAK_INHERIT
verify fails captures base-dropped '' -DBREAK_DROP
verify fails captures base-dropped-since-the-look '' -DBREAK_LOOK
verify fails captures close-without-wait '' -DBREAK_CLOSE
verify holds lazy all ''
verify holds lazy rogue '' -DROGUE
verify fails lazy no-hook '' -DBREAK_HOOK
verify fails lazy no-version-check '' -DROGUE -DBREAK_VERSION
verify fails lazy version-read-late '' -DBREAK_LATE
verify fails lazy number-copied-late '' -DBREAK_NUMBER
verify fails lazy two-uncopied '' -DBREAK_ONE
verify fails lazy close-without-wait '' -DBREAK_CLOSE
verify holds links all ''
verify holds links repair '' -DREPAIR -DN=3
verify fails links no-second-check '' -DBREAK_CHECK
verify fails links failed-state-kept '' -DBREAK_FAILED
verify fails links state-of-another-content '' -DBREAK_STALE
verify fails links recorded-place '' -DBREAK_PLACE
verify fails links counted-since-cut '' -DBREAK_COUNT -DN=5
verify fails links line-ends-at-raw '' -DBREAK_RAW
verify fails links base-became-delta '' -DBREAK_FORM
verify fails links delta-on-line '' -DBREAK_DELTA
verify fails links cut-without-check '' -DBREAK_SWAP
verify holds once all ''
verify holds once deaths '' -DDEATHS=2
verify holds once failures '' -DDEATHS=1 -DFAILURES=1
verify holds once failures-alone '' -DFAILURES=2
verify fails once no-turns '' -DBREAK_ORDER
verify fails once overwritten '' -DBREAK_TAKEN
verify fails once no-lock '' -DBREAK_LOCK
verify fails once shown-before-decoded '' -DBREAK_EARLY -DDEATHS=1
verify fails once shown-after-failure '' -DFAILURES=1 -DBREAK_FAILURE
verify fails once taken-before-copied '' -DBREAK_COPY
verify fails once endless-patience '' -DBREAK_PATIENCE -DDEATHS=1
verify holds ranks all -E
verify fails ranks record-before-parts -E -DBREAK_ORDER
verify fails ranks record-without-a-rank -E -DBREAK_ALL
verify fails ranks late-part-left-out -E -DBREAK_WAIT
verify fails ranks looked-before-sending -E -DBREAK_LOOK
verify fails ranks record-below-the-newest -E -DBREAK_NEXT
verify fails ranks parts-in-doubt-swept -E -DBREAK_DOUBT
verify fails ranks parts-removed-first -E -DBREAK_FIRST
verify fails ranks missing-part-believed -E -DBREAK_REREAD
verify holds remote pushers -E -DTIME=2 -DROUNDS=1 -DOBJECTS=3
verify holds remote sleeper -E -DPUSHERS=1
verify holds remote reader -E -DPUSHERS=1 -DTIME=2 -DROUNDS=1 -DREADER
verify fails remote no-condition -E -DPUSHERS=1 -DBREAK_CONDITION
verify fails remote record-before-data -E -DPUSHERS=1 -DBREAK_ORDER
verify fails remote snapshot-appended-twice -E -DPUSHERS=1 -DBREAK_DROP
verify fails remote base-not-checked -E -DPUSHERS=1 -DBREAK_BASE
verify fails remote age-not-checked -E -DPUSHERS=1 -DBREAK_AGE
verify fails remote uploads-pruned-young -E -DPUSHERS=1 -DBREAK_ORPHANS
verify fails remote removed-without-grace -E -DPUSHERS=1 -DBREAK_GRACE
verify fails remote base-removed -E -DPUSHERS=1 -DBREAK_HIDDEN
verify fails remote no-fence -E -DPUSHERS=1 -DBREAK_FENCE
verify fails remote listed-behind-the-fence -E -DPUSHERS=1 -DBREAK_LIST
verify fails remote log-deleted -E -DPUSHERS=1 -DBREAK_STUBS
verify fails remote own-record-taken-as-a-loss -E -DPUSHERS=1 -DBREAK_OWN
verify fails remote stub-without-writer -E -DPUSHERS=1 -DBREAK_STUB_WRITER
verify fails remote writer-of-another-attempt -E -DPUSHERS=1 -DBREAK_ATTEMPT
verify holds remote keys -E -DPUSHERS=1 -DKEYS -DOBJECTS=3
verify fails remote key-without-its-payloads -E -DPUSHERS=1 -DKEYS -DBREAK_KEY -DOBJECTS=3
verify fails remote payloads-of-a-key-removed -E -DPUSHERS=1 -DKEYS -DBREAK_SPARE -DOBJECTS=3
verify fails remote head-believed -E -DPUSHERS=1 -DREADER -DBREAK_HEAD
verify holds remote repair -E -DPUSHERS=1 -DREPAIR -DTIME=2
verify fails remote one-bad-read-repaired -E -DPUSHERS=1 -DREPAIR -DTIME=2 -DBREAK_READS
verify fails remote repaired-from-an-older-state -E -DPUSHERS=1 -DREPAIR -DTIME=2 -DBREAK_NEAREST
verify fails remote writer-of-the-lost-state -E -DPUSHERS=1 -DREPAIR -DTIME=2 -DBREAK_WRITER
verify fails remote lost-snapshots-passed-over -E -DPUSHERS=1 -DREPAIR -DTIME=2 -DBREAK_LATEST
verify fails remote old-state-in-memory-believed -E -DPUSHERS=1 -DREPAIR -DTIME=2 -DBREAK_OLD
verify holds runs saves -E -DREMOVALS=0
verify holds runs removals -E -DSAVES=1
verify fails runs log-without-slots -E -DBREAK_SLOT
verify fails runs doubt-dropped -E -DBREAK_DOUBT -DSAVES=1
verify fails runs recorded-without-a-rank -E -DBREAK_ALL -DSAVES=1
verify fails runs told-before-durable -E -DBREAK_ACK -DSAVES=1
verify fails runs records-out-of-order -E -DBREAK_ORDER
verify fails runs recorded-after-giving-up -E -DBREAK_GIVEN_UP -DSAVES=1
verify fails runs copy-with-holes -E -DBREAK_PREFIX -DSAVES=1
verify fails runs ranks-of-another-attempt -E -DBREAK_RANKS -DSAVES=1
verify fails runs old-copy-believed -E -DBREAK_REREAD -DSAVES=1
verify fails runs removed-before-record -E -DBREAK_REMOVAL -DSAVES=1
verify holds tiers all -E
verify fails tiers removed-elsewhere -E -DBREAK_MARK
verify fails tiers not-compared -E -DBREAK_VERIFY
verify fails tiers another-of-the-number -E -DBREAK_EPOCH
verify fails tiers marked-without-a-commit -E -DBREAK_FENCE
verify fails tiers unmarked-while-a-request-waits -E -DBREAK_UNMARK
verify fails tiers removal-decided-before-a-lost-commit -E -DBREAK_MIRROR
verify holds parts all -E
verify fails parts record-removed-elsewhere -E -DBREAK_RECORD
verify fails parts removed-from-the-sub-run -E -DBREAK_PART
verify fails parts without-the-record-there -E -DBREAK_WHOLE
verify fails parts without-the-record-here -E -DBREAK_OWN
verify fails parts marked-without-a-commit -E -DBREAK_FENCE
verify fails parts another-of-the-number -E -DBREAK_EPOCH
verify fails parts removal-decided-before-a-lost-commit -E -DBREAK_MIRROR

wait
for name in "${names[@]}"; do
    if ! cat "$work/$name/line" 2>/dev/null; then
        echo "$name: WRONG: the check did not end; see $work/$name"
        status=1
    elif grep -q WRONG "$work/$name/line"; then
        status=1
    fi
done
exit "$status"
