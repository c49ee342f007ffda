#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Makes a virtual environment for the tests of a trainer, and prints the path of its Python:
#
#   tests/trainers/environment.sh NAME
#
# requirements/NAME.txt lists its packages. They lie in build/trainers/NAME, on top of .venv: pip finds the CPU build of
# PyTorch that tools/setup.sh has installed there, and downloads no other.
set -euo pipefail

cd "$(dirname "$0")/../.."
name=${1:?usage: environment.sh NAME}
wanted=tests/trainers/requirements/$name.txt
place=$PWD/build/trainers/$name
[ -f "$wanted" ] || { echo "there is no $wanted" >&2; exit 2; }
.venv/bin/python -c 'import torch' 2>/dev/null || { echo "PyTorch is missing in .venv: tools/setup.sh" >&2; exit 77; }

stamp=$(realpath .venv/bin/python; cat "$wanted")
if [ "$(cat "$place/.made" 2>/dev/null || true)" != "$stamp" ]; then
    rm -rf "$place"
    .venv/bin/python -m venv "$place" >&2
    below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    own=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$below" >"$own/below.pth"
    "$place/bin/python" -m pip install -q --disable-pip-version-check --no-warn-conflicts -r "$wanted" >&2
    echo "$stamp" >"$place/.made"
fi
echo "$place/bin/python"
