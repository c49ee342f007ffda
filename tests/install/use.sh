#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Installs a wheel as an ordinary user does, without a network, and uses it:
#
#   tests/install/use.sh WHEEL PYTHON FOLDER [--numpy FOLDER] [--slow] [--full FOLDER]
#
# FOLDER becomes the place of a virtual environment and of pools. --numpy: where NumPy's wheel is; without it, only
# what needs no NumPy is tried. --slow and --full: see use.py.
set -euo pipefail

wheel=$(readlink -f "$1") python=$2 folder=$3
shift 3
numpy='' slow=() full=()
while (($#)); do
    case $1 in
        --numpy) numpy=$(readlink -f "$2") && shift 2 ;;
        --slow) slow=(--slow) && shift ;;
        --full) full=(--full "$2") && shift 2 ;;
        *) echo "use.sh: unknown option $1" >&2 && exit 2 ;;
    esac
done
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
cd "$folder"
# Only the wheel that was given may be found.
unset PYTHONPATH LMC_STORE_BIN "${!PIP_@}"
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INDEX=1

"$python" -m venv venv
# Of the processor's time: what else the machine does has less of a part in it.
TIMEFORMAT='%U + %S'
took=$({ time venv/bin/python -m pip install -q --no-cache-dir "$wheel" >pip.log 2>&1; } 2>&1) ||
    { cat pip.log && exit 1; }
echo "pip install ${wheel##*/} ($(stat -c %s "$wheel") bytes): $took s of the processor's time"
((${#slow[@]})) || awk "BEGIN { exit $took > 10 }" || { echo "use.sh: pip takes more than 10 s" && exit 1; }
mkdir -p bare
venv/bin/python -P "$here/use.py" bare bare "${slow[@]}"
if [ -n "$numpy" ]; then
    venv/bin/python -m pip install -q --no-cache-dir --find-links "$numpy" numpy
    mkdir -p all
    venv/bin/python -P "$here/use.py" all all "${slow[@]}" "${full[@]}"
fi
