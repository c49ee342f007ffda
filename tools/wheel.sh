#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Makes the wheel for every Linux with glibc 2.28 or newer, lmcstore-*-cp311-abi3-manylinux_2_28_*.whl, on Debian 12 or
# newer, x86-64, without root:
#
#   tools/wheel.sh                    build/wheel/out/*.whl, for x86-64
#   tools/wheel.sh --arch aarch64     also one for arm64, cross-compiled
#   tools/wheel.sh --python PY        builds with this Python, and with its headers
#   tools/wheel.sh --free-threaded D  for free-threaded Python instead: cp314-cp314t with the headers of 3.14 in D
#   tools/wheel.sh --out DIR          writes the wheel there
#   tools/wheel.sh --sources DIR      takes the sources of PMDK, ISA-L and others (tools/sources.txt) from DIR
#   tools/wheel.sh --twice            builds again in another folder, and compares the two wheels
#
# The compiler comes from the Python registry, the sources from Debian's archive (tools/sources.sh). What is inside is
# built once for each processor. tools/wheel/check.py must accept the wheel. Logs: build/wheel/*.log.
set -euo pipefail

cd "$(dirname "$0")/.."
top=$PWD
work=$top/build/wheel
arch=x86_64
python=
out=$work/out
given=()
include=
abi=
twice=0

die() {
    printf 'wheel: %s\n' "$*" >&2
    exit 1
}

while (($#)); do
    case $1 in
        --arch | --python | --out | --sources | --free-threaded)
            (($# > 1)) || die "$1 needs a value (try --help)"
            case $1 in
                --arch) arch=$2 ;;
                --python) python=$2 ;;
                --free-threaded) include=$(realpath "$2") abi=t ;;
                --out) out=$2 ;;
                --sources) given=(--sources "$(realpath "$2")") ;;
            esac
            shift
            ;;
        --twice) twice=1 ;;
        -h | --help) sed -n '4,17s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) die "unknown option '$1' (try --help)" ;;
    esac
    shift
done
[[ $arch == x86_64 || $arch == aarch64 ]] || die "no wheel for '$arch': x86_64 or aarch64"
[ "$(uname -m)" = x86_64 ] || die "wheels are built on x86-64; this is $(uname -m)"
mkdir -p "$work" "$out"
out=$(realpath "$out")
exec 9>"$work/.lock"
flock -n 9 || die "another tools/wheel.sh runs in this checkout"

say() { printf 'wheel: %s\n' "$*"; }

# run WHAT LOG COMMAND...
run() {
    local what=$1 log=$work/$2.log start=$SECONDS
    shift 2
    "$@" >"$log" 2>&1 </dev/null || {
        tail -n 25 "$log" | sed 's/^/    /' >&2
        die "$what failed; all of it is in $log"
    }
    say "$what: $((SECONDS - start)) s"
}

# ---- Tools ---------------------------------------------------------------------------------------------------------

if [ -z "$python" ]; then
    for python in python3.11 python3; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    done
fi
[ -n "$include" ] || include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))') ||
    die "$python does not run"
[ -f "$include/Python.h" ] || die "Python's headers are missing: $include/Python.h (Debian: python3-dev)"
[ -z "$abi" ] || abi=$(awk '$2 ~ /^PY_(MAJOR|MINOR)_VERSION$/ { tag = tag $3 } END { print "cp" tag "t" }' \
    "$include/patchlevel.h")
for tool in make pkg-config patch; do
    command -v "$tool" >/dev/null || die "$tool is missing (Debian: $tool)"
done

# A venv remembers its Python and what is in it.
tools() {
    local stamp
    stamp=$(realpath "$(command -v "$python")"; "$python" -VV; cat tools/wheel/requirements.txt)
    if [ "$(cat "$work/venv/.made" 2>/dev/null || true)" != "$stamp" ]; then
        rm -rf "$work/venv"
        "$python" -m venv "$work/venv" || return 1
        "$work/venv/bin/python" -m pip install --disable-pip-version-check -r tools/wheel/requirements.txt || return 1
        echo "$stamp" >"$work/venv/.made"
    fi
}

# program NAME PACKAGE: $work/bin/NAME starts the program of PATH, or that of Debian's package, unpacked here.
program() {
    local place=$work/debian found
    mkdir -p "$work/bin" "$place"
    if ! found=$(command -v "$1"); then
        found=$place/usr/bin/$1
        if [ ! -x "$found" ]; then
            (cd "$place" && apt-get -o APT::Sandbox::User= download "$2" && dpkg -x "$2"_*.deb .) || return 1
        fi
    fi
    [[ $found == "$work/bin/"* ]] && return
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%q exec %q "$@"\n' "$place/usr/lib/x86_64-linux-gnu" "$found" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

run "compiler and checks" tools tools
export PATH=$work/venv/bin:$work/bin:$PATH
LMCS_WHEEL_ZIG=$("$work/venv/bin/python" -c 'import ziglang; print(ziglang.__path__[0] + "/zig")')
export LMCS_WHEEL_ZIG ZIG_GLOBAL_CACHE_DIR=$work/cache ZIG_LOCAL_CACHE_DIR=$work/cache
unset PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR CFLAGS CPPFLAGS LDFLAGS CPATH LIBRARY_PATH CMAKE_PREFIX_PATH
# ccache knows cc.sh, but not which zig and processor it compiles with, and gave objects for another processor.
unset CMAKE_C_COMPILER_LAUNCHER
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1700000000)}
export SOURCE_DATE_EPOCH

# ---- What is inside ------------------------------------------------------------------------------------------------

# libraries ARCH: into build/wheel/ARCH/prefix, where the build of the wheel finds them.
libraries() {
    local stamp objcopy=objcopy
    export LMCS_ARCH=$1 LMCS_WHEEL_PREFIX=$work/$1/prefix
    export PKG_CONFIG_LIBDIR=$LMCS_WHEEL_PREFIX/lib/pkgconfig
    if [ "$1" = x86_64 ]; then
        run "nasm" nasm program nasm nasm
    else
        run "objcopy for $1" objcopy program "$1-linux-gnu-objcopy" "binutils-$1-linux-gnu"
        objcopy=$work/bin/$1-linux-gnu-objcopy
    fi
    stamp=$(cat tools/{sources.txt,prefix.sh} tools/wheel/{requirements.txt,*.sh,*.cmake} | sha256sum)
    if [ "$(cat "$work/$1/.made" 2>/dev/null || true)" != "$stamp" ]; then
        rm -rf "${work:?}/$1"
        run "PMDK, ISA-L, jansson for $1" "libraries-$1" env CC="$top/tools/wheel/cc.sh" AR="$top/tools/wheel/ar.sh" \
            LD="$LMCS_WHEEL_ZIG ld.lld" OBJCOPY="$objcopy" CMAKE_TOOLCHAIN_FILE="$top/tools/wheel/toolchain.cmake" \
            tools/prefix.sh "${given[@]}" "$LMCS_WHEEL_PREFIX" libpmemobj libisal jansson numa libxxhash
        echo "$stamp" >"$work/$1/.made"
    fi
}

# ---- The wheel -----------------------------------------------------------------------------------------------------

# copy FOLDER: the files of the checkout, without what builds left in it.
copy() {
    rm -rf "$1"
    mkdir -p "$1"
    git ls-files -z --cached --others --exclude-standard CMakeLists.txt LICENSE README.md codec python store tools |
        xargs -0 cp --parents -t "$1"
}

# Debian's pyconfig.h includes one of another folder, where zig does not look.
headers() {
    local other=${include%/*}/x86_64-linux-gnu/${include##*/}/pyconfig.h
    rm -rf "$work/python"
    cp -rL "$include" "$work/python"
    [ ! -f "$other" ] || cp "$other" "$work/python/pyconfig.h"
}

# build ARCH FOLDER: the wheel of a copy of the checkout, in FOLDER/made.
build() {
    local settings="-DCMAKE_TOOLCHAIN_FILE=$top/tools/wheel/toolchain.cmake -DLMCS_LOAD_LIBRARIES=ON"
    # The command prints its manual page and its completions.
    [ "$1" = x86_64 ] || settings+=" -DLMCS_NATIVE_COMMAND=$work/lmc-store"
    copy "$2" &&
        CMAKE_GENERATOR=Ninja CFLAGS="-ffile-prefix-map=$2=. -ffile-prefix-map=$LMCS_WHEEL_PREFIX=." \
            LMCS_CMAKE_ARGS=$settings LMCS_PYTHON_INCLUDE=$work/python LMCS_PYTHON_ABI=$abi \
            _PYTHON_HOST_PLATFORM=linux-$1 \
            "$work/venv/bin/python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps \
            -w "$2/raw" "$2/python" &&
        "$work/venv/bin/python" tools/wheel/finish.py --sources build/sources --out "$2/made" "$2"/raw/*.whl ||
        return 1
    [ "$1" != x86_64 ] || cp "$2"/python/build/temp.*/command/bin/lmc-store "$work/"
}

# wheel ARCH
wheel() {
    local tree=$work/$1/tree made
    libraries "$1"
    run "wheel for $1" "wheel-$1" build "$1" "$tree"
    made=("$tree/made"/*.whl)
    if ((twice)); then
        run "the same in another folder" "again-$1" build "$1" "$work/$1/another"
        cmp "${made[0]}" "$work/$1/another/made/${made[0]##*/}" ||
            die "two builds differ: ${made[0]} and $work/$1/another/made"
    fi
    "$work/venv/bin/python" tools/wheel/check.py "${made[0]}"
    cp "${made[0]}" "$out/"
    say "done: $out/${made[0]##*/} ($(($(stat -c %s "${made[0]}") / 1024)) KiB)"
}

run "sources" sources tools/sources.sh "${given[@]}" build/sources jansson libisal ndctl numactl pmdk xxhash
headers
wheel x86_64
[ "$arch" = x86_64 ] || wheel "$arch"
