#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Sets the checkout up, then shows on a real, small training run the main features: snapshot after every step, crash,
# resume, compaction, rewind, archive, export, and costs beside other tools. After the set-up, under five minutes.
#
#   tools/quickstart.sh                  leaves the pool in quickstart/ to look at
#   tools/quickstart.sh --remove         leaves nothing
#   tools/quickstart.sh --dir DIR        works in DIR/ (made; on the file system to measure)
#   tools/quickstart.sh --steps N        trains N steps (24)
#   tools/quickstart.sh --quick          8 steps, and a shorter comparison
#   tools/quickstart.sh --no-setup       takes .venv/ and build/release/ as they are
set -euo pipefail

cd "$(dirname "$0")/.."
setup=1
arguments=()
for argument in "$@"; do
    case $argument in
        -h | --help) sed -n '4,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
        --no-setup) setup=0 ;;
        *) arguments+=("$argument") ;;
    esac
done
if ((setup)); then
    tools/setup.sh
fi
exec .venv/bin/python tools/quickstart/main.py "${arguments[@]}"
