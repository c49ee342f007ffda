#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Checks that CMake names every library that is missing or too old, with its packages, in its first run.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
there=$(pkg-config --variable pc_path pkg-config | tr : ' ')

# configure EXPECTED-STATUS OPTION...: only the libraries in $work/found are there.
configure() {
    local expected=$1 status=0
    shift
    PKG_CONFIG_PATH='' PKG_CONFIG_LIBDIR=$work/found \
        cmake -S "$top" -B "$work/build" "$@" >"$work/said" 2>&1 || status=$?
    tr -s '\n ' ' ' <"$work/said" >"$work/line" # CMake breaks long lines
    [ "$((status != 0))" = "$expected" ] || { cat "$work/said"; exit 1; }
}

says() { grep -qF -- "$1" "$work/line" || { echo "expected: $1"; cat "$work/said"; exit 1; }; }

# give NAME VERSION: the system's library, as if it had this version.
give() {
    # shellcheck disable=SC2086 # several folders
    sed "s/^Version:.*/Version: $2/" "$(find $there -name "$1.pc" 2>/dev/null | head -n 1)" >"$work/found/$1.pc"
}

mkdir "$work/found" "$work/old" "$work/other"
printf '#include_next <features.h>\n#undef __GLIBC_MINOR__\n#define __GLIBC_MINOR__ 27\n' >"$work/old/features.h"
touch "$work/other/features.h"
for headers in old other; do
    configure 1 "-DCMAKE_C_FLAGS=-isystem $work/$headers"
    says "glibc 2.28 or newer is needed, and the C compiler has an older one or another C library"
done
configure 1 -DCMAKE_C_FLAGS=
says "Missing or too old: libpmemobj, libpmem, libndctl, libdaxctl, numa, libisal, jansson, cmocka;"
says "Debian: libpmemobj-dev libpmem-dev libndctl-dev libdaxctl-dev libnuma-dev libisal-dev libjansson-dev"
says "Fedora: libpmemobj-devel libpmem-devel ndctl-devel daxctl-devel numactl-devel isa-l-devel jansson-devel"
says "conda-forge: isa-l jansson cmocka"

for name in libpmem libndctl libdaxctl numa libisal; do give "$name" 99; done
give libpmemobj 1.10
configure 1 -DLMCS_BUILD_TESTS=OFF
says "Missing or too old: libpmemobj 1.11 (here: 1.10), jansson; Debian: libpmemobj-dev libjansson-dev; Fedora:"

# Libraries that are loaded need their header alone; what was missing is found by the next run.
rm "$work/found/"{libndctl,libdaxctl,numa}.pc
give libpmemobj 1.11
give jansson 2.13
configure 0 -DLMCS_BUILD_TESTS=OFF -DLMCS_LOAD_LIBRARIES=ON
echo "CMake names all missing libraries"
