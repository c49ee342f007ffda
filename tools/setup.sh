#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Sets up a checkout: build/release/bin/lmc-store, and .venv/ with lmcstore, NumPy and PyTorch.
#
#   tools/setup.sh                installs missing Debian packages, as root or with sudo
#   tools/setup.sh --prefix DIR   without root: builds missing libraries from Debian's sources into DIR
#   ... --prefix DIR --sources D  the same, with the files of tools/sources.txt in D
#   tools/setup.sh --python PY    builds .venv/ with this Python, of 3.11 or newer
#   tools/setup.sh --dev          also the tools of the tests: clang, its sanitizers, linters
#   tools/setup.sh --no-python    the C library and the command alone
#   tools/setup.sh --cuda         the build of PyTorch that pip takes by itself, with CUDA: several GB
#
# Packages are installed only for libraries that pkg-config (PKG_CONFIG_PATH) does not find, and for commands that PATH
# does not have. Without --python it takes the Python of an active environment (VIRTUAL_ENV, CONDA_PREFIX), else one in
# /usr/bin, else one on PATH.
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
asked_python=
prefix=
sources=
while (($#)); do
    case $1 in
        --dev) dev=1 ;;
        --no-python) python=0 ;;
        --cuda) cuda=1 ;;
        --python | --prefix | --sources)
            (($# > 1)) || { echo "setup: $1 needs a value (try --help)" >&2; exit 2; }
            case $1 in
                --python) asked_python=$2 ;;
                --prefix) prefix=$(realpath -m "$2") ;;
                --sources) sources=$(realpath -m "$2") ;;
            esac
            shift
            ;;
        -h | --help) sed -n '4,20s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "setup: unknown option '$1' (try --help)" >&2; exit 2 ;;
    esac
    shift
done
[ -z "$sources" ] || [ -n "$prefix" ] || { echo "setup: --sources goes with --prefix (try --help)" >&2; exit 2; }

if ! { mkdir -p build && : >>"$log"; } 2>/dev/null; then
    echo "setup: $top/build can't be written to: free space there, or take a checkout of your own" >&2
    exit 1
fi
exec 9>build/.setup.lock
if ! flock -n 9; then
    echo "setup: another tools/setup.sh runs in this checkout; waiting for it"
    flock 9
fi
: >"$log"
started=$SECONDS
ready= # end of a failure's message

say() { printf 'setup: %s\n' "$*"; }

# known_cause: of the last step's failure, by the free space and the step's part of the log.
known_cause() {
    local part
    part=$(awk '/^== / { part = "" } { part = part $0 "\n" } END { printf "%s", part }' "$log")
    if (($(df -Pk build | awk 'NR == 2 { print $4 }') < 1024)) || [[ $part == *'No space left on device'* ]]; then
        echo "no space left on the disk of $top or of ${TMPDIR:-/tmp}: free some"
    elif grep -q '^sources: ' <<<"$part"; then # tools/sources.sh names the file and the remedy
        grep '^sources: ' <<<"$part" | tail -n 1
    elif grep -qE 'Temporary failure|Name or service not known|NewConnectionError|Network is unreachable|'\
'Connection refused|ConnectTimeout|Could not (connect|resolve)' <<<"$part"; then
        echo "no network: set https_proxy, PIP_INDEX_URL, or PIP_FIND_LINKS to a folder of wheels"
    fi
}

die() {
    printf 'setup: %s\n' "$*$ready" >&2
    exit 1
}

# run WHAT COMMAND...: logs, with a line at the start, one every 20 s, and the log's end on failure.
run() {
    local what=$1 begin=$SECONDS pid status=0 cause
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
        cause=$(known_cause)
        [ -z "$cause" ] || die "$what failed: $cause"
        echo "setup: $what failed (status $status); the end of build/setup.log:" >&2
        tail -n 15 "$log" | sed 's/^/    /' >&2
    fi
    return "$status"
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

have() { command -v "$1" >/dev/null; }

# On PATH or in .venv.
have_tool() { have "$1" || [ -x "$venv/bin/$1" ]; }

can_install() { [ -z "$prefix" ] && have apt-get && have dpkg-query && { [ "$(id -u)" = 0 ] || have sudo; }; }

# ---- Python --------------------------------------------------------------------------------------------------------

# python_fault PYTHON: why it can't be used, or nothing.
python_fault() {
    [ -x "$(command -v "$1")" ] || { echo "there is no such program"; return; }
    "$1" -c 'if True:
        import os, sys
        if sys.version_info < (3, 11):
            print("it is Python %d.%d; 3.11 or newer is needed" % sys.version_info[:2])
            sys.exit()
        import importlib.util, sysconfig
        missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
        header = os.path.join(sysconfig.get_path("include"), "Python.h")
        if sys.implementation.name != "cpython":
            print("it is %s; CPython is needed" % sys.implementation.name)
        elif missing:
            print("it has no module %s (Debian: python3-venv)" % missing[0])
        elif not os.path.exists(header):
            print("it has no header %s (Debian: python3-dev)" % header)' 2>>"$log" || echo "it does not run"
}

# real_python PYTHON: the program behind a link or a shim.
real_python() { "$1" -c 'import sys; print(sys.executable)'; }

# The newest sufficient Python in /usr/bin, also without its parts that packages can add.
system_python() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if [ -x "/usr/bin/$name" ] && "/usr/bin/$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "/usr/bin/$name"
            return
        fi
    done
}

# choose_python: sets base to the Python of .venv, or to nothing where packages must bring one.
base=
choose_python() {
    local candidate fault folder refused=()
    if [ -n "$asked_python" ]; then
        fault=$(python_fault "$asked_python")
        [ -z "$fault" ] || die "--python $asked_python can't be used: $fault"
        base=$(real_python "$asked_python")
        return
    fi
    local candidates=()
    for folder in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
        [ -z "$folder" ] || [ "$folder" -ef "$venv" ] || candidates+=("$folder/bin/python")
    done
    candidate=$(system_python)
    if [ -n "$candidate" ]; then
        candidates+=("$candidate")
    fi
    can_install || mapfile -t -O "${#candidates[@]}" candidates < <(type -ap python3 python3.{14,13,12,11} || true)
    for candidate in "${candidates[@]}"; do
        fault=$(python_fault "$candidate")
        if [ -z "$fault" ]; then
            base=$(real_python "$candidate")
            break
        fi
        # Packages add these parts; another Python would ignore an up-to-date system.
        if [ "$candidate" = "$(system_python)" ] && can_install; then
            base=$candidate
            return
        fi
        [[ " ${refused[*]-} " == *" $candidate "* ]] || say "$candidate is not taken: $fault"
        refused+=("$candidate")
    done
}

# ---- Packages ------------------------------------------------------------------------------------------------------

apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; }

# pkg-config's name, the least version, Debian's and Fedora's package; of the table in store/libraries.cmake.
mapfile -t libraries < <(awk '/^set\(LMCS_LIBRARIES/ { on = 1; next } /^\]\]/ { on = 0 } on { print $1, $2, $5, $6 }' \
    store/libraries.cmake)

# compiler_fault: nothing, or why no program can be made here.
compiler_fault() {
    local compiler
    for compiler in ${CC:+"$CC"} cc gcc clang; do
        have "$compiler" || continue
        printf '#include <stdio.h>\nint main(void) { return 0; }\n' |
            "$compiler" -x c - -o build/.compiled >>"$log" 2>&1 || continue
        build/.compiled 2>>"$log" || echo "programs don't run in $top (mounted with noexec?): move the checkout"
        rm build/.compiled
        return
    done
    echo "no C compiler that makes a program: install gcc or clang, with the headers of libc"
}

has_sanitizers() { echo 'int main(void) {}' | clang -fsanitize=address -x c - -o /dev/null 2>/dev/null; }

# missing_libraries FIELD: 1: names, 3: Debian's packages, 4: Fedora's.
missing_libraries() {
    local fields
    while read -r -a fields; do
        pkg-config --exists "${fields[0]} >= ${fields[1]}" 2>/dev/null || echo "${fields[$1 - 1]}"
    done < <(printf '%s\n' "${libraries[@]}")
}

# Debian's packages of the commands that are not there.
missing_commands() {
    local command
    [ -z "$(compiler_fault)" ] || echo build-essential
    for command in cmake ninja pkg-config; do
        have_tool "$command" || echo "${command/%ninja/ninja-build}"
    done
    if ((dev)); then
        for command in git clang clang-format clang-tidy shellcheck spin; do
            have "$command" || echo "$command"
        done
        have llvm-symbolizer || echo llvm
        have ssh-keygen || echo openssh-client
    fi
}

# Debian's packages of the chosen Python, or of python3, where it lacks a part.
missing_python() {
    local name=python3
    [ -z "$base" ] || [ -n "$(python_fault "$base")" ] || return 0
    [ -z "$base" ] || name=${base##*/}
    printf '%s\n' "$name" "$name-venv" "$name-dev"
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_commands; missing_libraries 3; ((python == 0)) || missing_python)
    if ((${#missing[@]})); then
        if [ "$(id -u)" != 0 ]; then
            say "sudo is needed to install: ${missing[*]}"
            sudo -v || die "no sudo; install these packages by hand, or build libraries with --prefix: ${missing[*]}"
        fi
        run "apt-get update" as_root apt-get update -q || die "apt-get can't be used; install by hand: ${missing[*]}"
        run "installing ${#missing[@]} packages: ${missing[*]}" apt_install "${missing[@]}" ||
            die "packages could not be installed; see above"
    else
        say "packages: all there"
    fi
    # Debian 12's clang includes its sanitizers; later ones are in a package of their own.
    if ((dev)) && ! has_sanitizers; then
        run "installing clang's sanitizers" apt_install libclang-rt-dev || die "clang's sanitizers are missing"
    fi
    if ((python)) && [ -z "$base" ]; then
        # Ubuntu 22.04's python3 is 3.10; it has 3.11 beside it.
        if [ -z "$(system_python)" ]; then
            run "installing Python 3.11" apt_install python3.11 python3.11-venv python3.11-dev ||
                die "Python 3.11 or newer is needed (or use --no-python)"
        fi
        base=$(system_python)
    fi
}

make_venv() {
    local made_with
    made_with="$base $("$base" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')"
    if [ "$(cat "$venv/.made-with" 2>/dev/null || true)" = "$made_with" ] && "$venv/bin/python" -c '' 2>/dev/null; then
        return
    fi
    rm -rf "$venv"
    "$base" -m venv "$venv" && echo "$made_with" >"$venv/.made-with"
}

pip_install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off --retries 2 "$@"
}

new_enough_cmake() {
    have "$1" && "$1" --version | awk 'NR == 1 { split($3, v, "."); exit !(v[1] > 3 || (v[1] == 3 && v[2] >= 25)) }'
}

# Commands that the system lacks, from the Python registry into .venv.
pip_tools() {
    local wanted=()
    new_enough_cmake cmake || new_enough_cmake "$venv/bin/cmake" || wanted+=('cmake>=3.25')
    have_tool ninja || wanted+=(ninja)
    have_tool pkg-config || wanted+=(pkgconf)
    ((${#wanted[@]})) || return 0
    ((python)) || die "missing: ${wanted[*]}. Install them, or let setup do so in .venv (without --no-python)"
    run "pip install ${wanted[*]}" pip_install "${wanted[@]}" || die "missing: ${wanted[*]}. Install them"
}

# build_libraries: those that pkg-config does not find, into $prefix.
build_libraries() {
    local wanted tools=() command
    mapfile -t wanted < <(missing_libraries 1)
    ((${#wanted[@]})) || return 0
    for command in make patch xz; do
        have "$command" || tools+=("$command")
    done
    ((${#tools[@]} == 0)) || die "missing commands, to build libraries from their sources: ${tools[*]}"
    run "building into $prefix: ${wanted[*]}" \
        tools/prefix.sh ${sources:+--sources "$sources"} "$prefix" "${wanted[@]}" ||
        die "the libraries could not be built; see above"
}

# ---- The order -----------------------------------------------------------------------------------------------------

if [ -n "$prefix" ]; then
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
fi
if ((python)); then
    choose_python
fi
if can_install; then
    install_packages
fi
if ((python)); then
    [ -n "$base" ] || die "no Python of 3.11 or newer with its headers: install or name one (--python), or --no-python"
    say "Python $("$base" -c 'import platform; print(platform.python_version())') of $base"
fi
fault=$(compiler_fault)
[ -z "$fault" ] || die "$fault"
if ((python)); then
    run "virtual environment in .venv" make_venv || die "no virtual environment; try --no-python"
fi
PATH=$PATH:$venv/bin
pip_tools
cmake=cmake
new_enough_cmake cmake || cmake=$venv/bin/cmake
if [ -n "$prefix" ]; then
    build_libraries
fi
mapfile -t missing < <(missing_libraries 1)
((${#missing[@]} == 0)) || die "missing libraries: ${missing[*]}. Use --prefix DIR, or install" \
    "$(missing_libraries 3 | xargs) (Debian), $(missing_libraries 4 | xargs) (Fedora)"

# For CMake and for pip's build of the module. Of libraries with headers alone the programs load the system's, if any.
configure=()
if [ -n "$prefix" ]; then
    configure+=("-DCMAKE_PREFIX_PATH=$prefix" "-DCMAKE_C_FLAGS=-I$prefix/include")
    for name in numa libndctl libdaxctl; do
        [ ! -e "$prefix/lib/pkgconfig/$name.pc" ] || configure[2]=-DLMCS_LOAD_LIBRARIES=ON
    done
fi
export LMCS_CMAKE_ARGS="${configure[*]@Q}${LMCS_CMAKE_ARGS:+ $LMCS_CMAKE_ARGS}"

# ---- The C library and the command ---------------------------------------------------------------------------------

# CMake keeps what it found: other libraries need another search.
fresh=()
configured=build/.configured
settings="${PKG_CONFIG_PATH:-} $LMCS_CMAKE_ARGS"
if [ "$(cat "$configured" 2>/dev/null || echo " ")" != "$settings" ]; then
    fresh=(--fresh)
fi
eval "configure=($LMCS_CMAKE_ARGS)"
run "configuring build/release" "$cmake" "${fresh[@]}" --preset release "${configure[@]}" || die "configuring failed"
echo "$settings" >"$configured"
run "building the library and the command" "$cmake" --build --preset release --target lmcs-products ||
    die "the build failed"
ready=" (the C library and build/release/bin/lmc-store are ready)"

# ---- Python packages -----------------------------------------------------------------------------------------------

torch=torch==2.13.0
requirements=(numpy safetensors ml_dtypes pytest hypothesis xxhash setuptools wheel)
((dev)) && requirements+=('ruff~=0.17.6' 'mypy~=2.4.1' matplotlib pytest-xdist scikit-learn
    obstore 'moto[s3]' flask flask-cors)

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
            die "the Python packages could not be installed"
        printf '%s\n' "${requirements[@]}" >"$venv/.requirements"
    fi
    # The state of these folders, with the settings, is the extension's stamp.
    tree=$(find CMakeLists.txt python codec store tools/CMakeLists.txt tools/*.[ch] -type f \
        ! -path '*/build/*' ! -path '*.egg-info/*' ! -name '*.pyc' -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum | { cat; echo "$settings"; } | sha256sum | cut -c 1-64)
    if [ "$(cat "$venv/.lmcstore" 2>/dev/null || true)" = "$tree" ]; then
        say "lmcstore for Python: up to date"
    else
        # setuptools is in .venv, so the build fetches nothing.
        run "pip install ./python" pip_install --no-build-isolation --no-deps --force-reinstall ./python ||
            die "lmcstore for Python could not be built"
        echo "$tree" >"$venv/.lmcstore"
    fi
fi

made=build/release/bin/lmc-store
((python)) && made+=", .venv/bin/python"
[ -z "$prefix" ] || say "for other builds: export PKG_CONFIG_PATH=$PKG_CONFIG_PATH LMCS_CMAKE_ARGS=\"$LMCS_CMAKE_ARGS\""
say "done in $((SECONDS - started)) s: $made"
