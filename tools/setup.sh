#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Sets up a checkout on Debian 12 or newer, or Ubuntu 22.04 or newer, as root or with sudo:
#
#   tools/setup.sh                packages; build/release/bin/lmc-store; .venv/ with lmcstore, NumPy and PyTorch
#   tools/setup.sh --dev          also the tools of the tests: clang, its sanitizers, linters
#   tools/setup.sh --no-python    the C library and the command alone
#   tools/setup.sh --cuda         the build of PyTorch that pip takes by itself, with CUDA: several GB
#
# A second run updates only the parts that have changed. PyTorch is a CPU build from pip's own sources (PIP_FIND_LINKS,
# PIP_INDEX_URL, PIP_EXTRA_INDEX_URL). If they have none for this Python, setup continues without PyTorch; lmcstore then
# saves NumPy arrays. The output of each step goes to build/setup.log.
set -euo pipefail

cd "$(dirname "$0")/.."
top=$PWD
log=$top/build/setup.log
venv=$top/.venv

dev=0
python=1
cuda=0
for argument in "$@"; do
    case $argument in
        --dev) dev=1 ;;
        --no-python) python=0 ;;
        --cuda) cuda=1 ;;
        -h | --help) sed -n '4,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "setup: unknown option '$argument' (try --help)" >&2; exit 2 ;;
    esac
done

mkdir -p build
exec 9>build/.setup.lock
if ! flock -n 9; then
    echo "setup: another tools/setup.sh runs in this checkout; waiting for it"
    flock 9
fi
: >"$log"
started=$SECONDS

say() { printf 'setup: %s\n' "$*"; }

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# run WHAT COMMAND...: logs, with a line at the start, one every 20 s, and the log's end on failure.
run() {
    local what=$1 begin=$SECONDS pid status=0
    shift
    say "$what ..."
    printf '\n== %s\n   %s\n' "$what" "$*" >>"$log"
    "$@" >>"$log" 2>&1 9>&- </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        if (((SECONDS - begin) >= 20 && (SECONDS - begin) % 20 == 0)); then
            say "  still at it after $((SECONDS - begin)) s: $(tail -n 1 "$log" | tr -d '\r' | cut -c 1-90)"
            sleep 1
        fi
    done
    wait "$pid" || status=$?
    if ((status != 0)); then
        echo "setup: $what failed (status $status); the end of build/setup.log:" >&2
        tail -n 15 "$log" | sed 's/^/    /' >&2
    fi
    return "$status"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "not root, and there is no sudo" >&2
        return 1
    fi
}

# ---- Packages ------------------------------------------------------------------------------------------------------

apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; }

missing_packages() {
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || echo "$package"
    done
}

has_sanitizers() { echo 'int main(void) {}' | clang -fsanitize=address -x c - -o /dev/null 2>/dev/null; }

# The newest sufficient Python: "python3", "python3.11", ... or nothing.
system_python() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if [ -x "/usr/bin/$name" ] && "/usr/bin/$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "$name"
            return
        fi
    done
}

install_packages() {
    local wanted=(build-essential ca-certificates cmake git ninja-build pkg-config libpmem-dev libpmemobj-dev
        libnuma-dev libndctl-dev libdaxctl-dev libcmocka-dev libxxhash-dev libjansson-dev libisal-dev)
    local missing base
    ((dev)) && wanted+=(clang clang-format clang-tidy llvm shellcheck spin)
    if ((python)); then
        base=$(system_python)
        wanted+=("${base:-python3}" "${base:-python3}-venv" "${base:-python3}-dev")
    fi
    mapfile -t missing < <(missing_packages "${wanted[@]}")
    local runtime=
    if ((dev)) && ! has_sanitizers; then
        runtime=libclang-rt-dev
    fi
    if [ -z "$runtime" ] && ((${#missing[@]} == 0)); then
        say "packages: all there"
        return
    fi
    if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null; then
        say "sudo is needed to install: ${missing[*]}"
        sudo -v || die "no sudo; install these packages by hand: ${missing[*]}"
    fi
    run "apt-get update" as_root apt-get update -q || die "apt-get can't be used; install by hand: ${missing[*]}"
    # None if clang includes its sanitizers.
    if [ -n "$runtime" ] && apt-cache show "$runtime" >/dev/null 2>&1; then
        missing+=("$runtime")
    fi
    run "installing ${#missing[@]} packages: ${missing[*]}" apt_install "${missing[@]}" ||
        die "packages could not be installed; see above"
    # Ubuntu 22.04's python3 is 3.10; it has 3.11 beside it.
    if ((python)) && [ -z "$(system_python)" ]; then
        run "installing Python 3.11" apt_install python3.11 python3.11-venv python3.11-dev ||
            die "Python 3.11 or newer is needed (or use --no-python)"
    fi
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
    install_packages
else
    say "no apt-get here: taking libpmemobj, libnuma, libndctl, libdaxctl, cmocka, CMake and Ninja as they are"
fi

# ---- The C library and the command ---------------------------------------------------------------------------------

make_venv() {
    local base version
    base=$(system_python)
    [ -n "$base" ] || { echo "no Python 3.11 or newer in /usr/bin" >&2; return 1; }
    version=$("/usr/bin/$base" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
    if [ "$(cat "$venv/.made-with" 2>/dev/null || true)" = "$version" ] && "$venv/bin/python" -c '' 2>/dev/null; then
        return
    fi
    rm -rf "$venv"
    "/usr/bin/$base" -m venv "$venv" && echo "$version" >"$venv/.made-with"
}

pip_install() { "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@"; }

new_enough_cmake() {
    command -v "$1" >/dev/null &&
        "$1" --version | awk 'NR == 1 { split($3, v, "."); exit !(v[1] > 3 || (v[1] == 3 && v[2] >= 25)) }'
}

if ((python)); then
    run "virtual environment in .venv" make_venv || die "no virtual environment; try --no-python"
fi
cmake=cmake
if ! new_enough_cmake cmake; then
    cmake=$venv/bin/cmake
    if ! new_enough_cmake "$cmake"; then
        ((python)) || die "CMake 3.25 or newer is needed"
        run "CMake from the Python registry (the system's is older than 3.25)" pip_install 'cmake>=3.25' ||
            die "CMake 3.25 or newer is needed"
    fi
fi

run "configuring build/release" "$cmake" --preset release || die "configuring failed"
run "building the library and the command" "$cmake" --build --preset release --target lmcs-products ||
    die "the build failed"

# ---- Python --------------------------------------------------------------------------------------------------------

torch=torch==2.13.0
requirements=(numpy safetensors ml_dtypes pytest hypothesis xxhash setuptools wheel)
((dev)) && requirements+=('ruff~=0.17.6' 'mypy~=2.4.1' matplotlib pytest-xdist scikit-learn)

# Whether the last pip install requested all of these.
have_requirements() {
    local requirement
    for requirement in "$@"; do
        grep -qxF "$requirement" "$venv/.requirements" 2>/dev/null || return 1
    done
}

# By the metadata; the wheel stays there.
has_cpu_torch() {
    pip_install --dry-run --quiet --no-deps --ignore-installed --retries 1 --timeout 15 --report - "$torch" \
        2>>"$log" </dev/null | "$venv/bin/python" -c 'if True:
            import json, sys
            needs = json.load(sys.stdin)["install"][0]["metadata"].get("requires_dist", [])
            sys.exit(any(need.startswith(("nvidia", "cuda")) for need in needs))' 2>>"$log"
}

python_failed() {
    echo "setup: the C library and build/release/bin/lmc-store are ready; Python is not: $*" >&2
    exit 1
}

if ((python)); then
    if ((cuda)) || have_requirements "$torch" || has_cpu_torch; then
        requirements+=("$torch")
    else
        say "PyTorch: pip finds no CPU build for this Python; continuing with NumPy alone (--cuda installs pip's build)"
    fi
    if have_requirements "${requirements[@]}"; then
        say "Python packages: up to date"
    else
        run "pip install ${requirements[*]}" pip_install "${requirements[@]}" ||
            python_failed "its packages could not be installed"
        printf '%s\n' "${requirements[@]}" >"$venv/.requirements"
    fi
    # The state of these folders is the extension's stamp.
    sources=$(find python codec store -type f ! -path '*/build/*' ! -path '*.egg-info/*' ! -name '*.pyc' -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-64)
    if [ "$(cat "$venv/.lmcstore" 2>/dev/null || true)" = "$sources" ]; then
        say "lmcstore for Python: up to date"
    else
        # setuptools is in .venv, so the build fetches nothing.
        run "pip install ./python" pip_install --no-build-isolation --no-deps --force-reinstall ./python ||
            python_failed "lmcstore could not be built"
        echo "$sources" >"$venv/.lmcstore"
    fi
fi

made=build/release/bin/lmc-store
((python)) && made+=", .venv/bin/python"
say "done in $((SECONDS - started)) s: $made"
