#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Uses a wheel (use.sh) in bare systems of their own, as a user without root or network:
#
#   tests/install/boxes.sh WHEEL BOX...       BOX: bullseye, bookworm, trixie, sid (Debian 11, 12, 13, unstable), arm64,
#                                             free-threaded
#
# bullseye has a Python 3.11 that is built there. arm64 is Debian 12, emulated by qemu, and wants an aarch64 wheel.
# free-threaded is Debian 12 with a free-threaded Python 3.13 that is built there; its wheel is made, not WHEEL.
# The systems come from the archive that apt uses here. They stay in build/boxes/*.tar; remove one to make it anew.
# Wants root. Exit status 77: it was skipped, and the last line says why.
set -euo pipefail

cd "$(dirname "$0")/../.."
top=$PWD
work=$top/build/boxes
user=65534

# shellcheck source=tests/install/bare.sh
. tests/install/bare.sh

(($# >= 2)) || { sed -n '4,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
wheel=$(readlink -f "$1")
shift

# Lets the kernel run programs for arm64 by qemu, until this script ends.
emulate() {
    local formats=/proc/sys/fs/binfmt_misc any='\x00\x00\x00\x00\x00\x00\x00' all='\xff\xff\xff\xff\xff\xff\xff'
    mountpoint -q $formats || mount -t binfmt_misc none $formats || skip "arm64 wants the kernel's binfmt_misc"
    ! compgen -G "$formats/qemu-aarch64*" >/dev/null || return 0
    # Magic and mask of an ELF header: 64 bits, little-endian, a program or a shared object, of machine 0xb7.
    printf '%s\n' ":qemu-aarch64-boxes:M::\x7fELF\x02\x01\x01\x00\x00$any\x02\x00\xb7\x00:\
$all\x00\xff$all\xfe\xff\xff\xff:$(command -v qemu-aarch64-static):F" >$formats/register ||
        skip "arm64 wants the kernel's binfmt_misc"
    trap 'echo -1 >/proc/sys/fs/binfmt_misc/qemu-aarch64-boxes' EXIT
}

suite_of() { case $1 in arm64 | free-threaded) echo bookworm ;; *) echo "$1" ;; esac; }

python_of() { case $1 in bullseye | free-threaded) echo /opt/python/bin/python3 ;; *) echo /usr/bin/python3 ;; esac; }

# build_python ROOT SOURCE [OPTION]: a Python that the system's archive lacks, below /opt/python.
build_python() {
    tools/sources.sh build/sources "$2" || return 1
    cp -r "build/sources/$2" "$1/opt/source"
    # shellcheck disable=SC2016  # the inner shell expands it
    enter "$1" --userspec=0:0 sh -euc 'cd /opt/source
        ./configure -q --prefix=/opt/python --without-static-libpython --disable-test-modules "$@"
        make -s -j"$(nproc)"
        make -s install' build "${@:3}" || return 1
    rm -rf "$1/opt/source"
}

make_box() {
    local box=$1 root=$work/$1.new include=python3-venv options=() source=()
    [ ! -s "$work/$box.tar" ] || return 0
    echo "making $box ..."
    case $box in
        bullseye) source=(python3.11) ;;
        free-threaded) source=(python3.13 --disable-gil) ;;
        arm64) options=(--arch=arm64) ;;
    esac
    ((!${#source[@]})) || include=gcc,make,libc6-dev,zlib1g-dev,libffi-dev,libssl-dev
    bootstrap "$(suite_of "$box")" "$root" "$include" "${options[@]}" >"$work/$box.log" 2>&1 ||
        { tail -n 5 "$work/$box.log"; return 1; }
    if ((${#source[@]})); then
        build_python "$root" "${source[@]}" >>"$work/$box.log" 2>&1 || { tail -n 20 "$work/$box.log"; return 1; }
    fi
    tar -C "$root" -cf "$work/$box.tar.new" . && mv "$work/$box.tar.new" "$work/$box.tar"
    rm -rf --one-file-system "$root"
}

# numpy_for BOX ROOT: fetches NumPy's wheel for the box's Python.
numpy_for() {
    local version arch=x86_64 folder
    [ "$1" != arm64 ] || arch=aarch64
    version=$(enter "$2" --userspec=$user:$user "$(python_of "$1")" -c \
        'import sys; print("%d.%d" % sys.version_info[:2] + sys.abiflags)')
    folder=$work/numpy-$arch-$version
    mkdir -p "$folder"
    compgen -G "$folder/*.whl" >/dev/null ||
        "$top/.venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: \
            --python-version "${version%t}" --abi "cp${version/./}" --platform "manylinux_2_28_$arch" \
            --platform "manylinux_2_27_$arch" -d "$folder" numpy
    cp "$folder/"*.whl "$2/given/numpy/"
}

use_box() {
    local box=$1 root status=0 options=() given=$wheel
    root=$(mktemp -d "$work/$box.XXXXXX")
    chmod 755 "$root"
    tar -C "$root" -xf "$work/$box.tar"
    mkdir -p "$root/given/numpy" "$root/small"
    if [ "$box" = free-threaded ]; then
        tools/wheel.sh --free-threaded "$(echo "$root"/opt/python/include/*t)" --out "$root/made" || status=$?
        given=$(echo "$root/made/"*.whl)
    fi
    cp "$given" tests/install/use.sh tests/install/use.py "$root/given/" || status=$?
    install -d -o $user -g $user "$root/home"
    numpy_for "$box" "$root" || status=$?
    [ "$box" = arm64 ] || options=(--full /small)
    # A free-threaded Python is slower, and here built without PGO.
    [[ $box != arm64 && $box != free-threaded ]] || options+=(--slow)
    ((status)) || enter "$root" --userspec=$user:$user bash /given/use.sh "/given/${given##*/}" "$(python_of "$box")" \
        /home/use --numpy /given/numpy "${options[@]}" || status=$?
    rm -rf --one-file-system "$root"
    return "$status"
}

failed=()
if [[ " $* " == *" arm64 "* ]]; then
    want_bare debootstrap qemu-user-static
    emulate
else
    want_bare debootstrap
fi
for box; do
    echo "== $box"
    begin=$SECONDS
    { make_box "$box" && use_box "$box"; } || failed+=("$box")
    echo "-- $box: $((SECONDS - begin)) s"
done
((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}"; exit 1; }
