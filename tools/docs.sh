#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Makes the reference of the Python packages from their docstrings, as web pages:
#
#   tools/docs.sh [FOLDER]    default: build/docs; open index.html there
#
# Needs tools/setup.sh to have run; installs pdoc into .venv/ if need be.
set -euo pipefail

where=$(realpath -m "${1:-$(dirname "$0")/../build/docs}")
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
"$python" -c 'import pdoc' 2>/dev/null || "$python" -m pip install -q --disable-pip-version-check pdoc
mkdir -p "$where"
cd "$where" # the packages that are installed, not the folder python/
packages=()
for package in lmcstore pymm; do
    if "$python" -c "import $package" 2>/dev/null; then packages+=("$package"); fi
done
"$python" -W ignore::UserWarning -m pdoc --docformat numpy -o "$where" "${packages[@]}"
echo "$where/index.html"
