#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Measures, as ratios within one run:
#
#   tools/bench.sh store                 the store, beside memcpy, pwrite, torch.save, safetensors and DCP
#   tools/bench.sh store --quick         smaller and fewer: minutes instead of a quarter of an hour
#   tools/bench.sh store --only NAME     one section (can be given again): see --help
#   tools/bench.sh store --json          one JSON object on standard output instead of Markdown tables
#   tools/bench.sh store --dir DIR       on that file system (default: build/bench)
#   tools/bench.sh history               long histories: bytes a step beside others', topologies, restores by age, the
#                                        compactor beside a trainer, slow media, finding snapshots, forks, differences
#   tools/bench.sh links                 an optimizer's state from the one before, trained in several ways
#   tools/bench.sh train                 a trainer that saves every step or every tenth, in lmc-store and by others
#   tools/bench.sh trainers              torch.distributed.checkpoint on several ranks, by StoreWriter and by its own;
#                                        Lightning and transformers with a checkpoint after every step
#   tools/bench.sh remote                a run in an object store, over 1 Gbit/s and unlimited: bytes, lag, restores,
#                                        speed, requests, beside others
#   tools/bench.sh parity                the cost of parity, in bytes and time; and a scrub
#   tools/bench.sh python                the Python packages: captures, views, variables that live in the pool
#   tools/bench.sh workloads             the examples whose data may be larger than memory, with and without enough
#   tools/bench.sh codec                 the codec, beside memcpy, entropies and other codecs (which it installs)
#   tools/bench.sh builds CHECKOUT       this build beside the one of another checkout, in turn;
#                                        --small: only small snapshots, with and without wait
#   tools/bench.sh wheel WHEEL           the codec of tools/wheel.sh's compiler beside that of the system's
#   tools/bench.sh codec FILE...         the same on the tensors of safetensors files; --pair NEW BASE for deltas
#   tools/bench.sh codec --only beside --beside CHECKOUT    this codec beside that of another checkout, in turns
#   tools/bench.sh codec --quick, --only NAME, --json, --dir DIR    as above; --no-peers, --row TEXT: see --help
#
# Needs tools/setup.sh to have run. Progress goes to standard error.
set -euo pipefail

export BENCH_FROM=$PWD # files on the command line are named from there
cd "$(dirname "$0")/.."
case ${1:-} in
    store | codec | history | links | train | trainers | remote | parity | python | workloads | builds | wheel)
        suite=$1
        shift
        ;;
    -h | --help | "") sed -n '4,30s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *)
        echo "bench: no suite '$1' (store codec history links train trainers remote parity python workloads builds" \
            "wheel)" >&2
        exit 2
        ;;
esac
cmake=cmake
if ! cmake --version 2>/dev/null | awk 'NR == 1 { split($3, v, "."); exit !(v[1] > 3 || v[2] >= 25) }'; then
    cmake=.venv/bin/cmake
fi
mkdir -p build
[[ $suite == python || $suite == train || $suite == trainers || $suite == remote || $suite == wheel ]] || {
    "$cmake" --preset release &&
        "$cmake" --build --preset release --target bench_store bench_codec bench_links lmc-store
} >build/bench.log 2>&1 || {
    tail -n 20 build/bench.log >&2
    exit 1
}
exec .venv/bin/python "tools/bench/$suite.py" "$@"
