#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Builds libraries from their sources, static and without root:
#
#   tools/prefix.sh [--sources DIR] PREFIX NAME...    NAME: as pkg-config calls the library
#
# PREFIX gets include/, lib/ and lib/pkgconfig/. The sources come from DIR or Debian's archive. Of libndctl,
# libdaxctl and numa only the headers: the store loads them at run time (LMCS_LOAD_LIBRARIES). Needs a C compiler, make,
# CMake, Ninja and pkg-config; on x86-64 nasm, which it builds where it is missing. tools/wheel.sh sets other tools by
# CC, AR, LD, OBJCOPY and CMAKE_TOOLCHAIN_FILE, and another processor by LMCS_ARCH.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
given=()
if [ "${1:-}" = --sources ]; then
    given=(--sources "${2:?--sources needs a folder}")
    shift 2
fi
[ $# -ge 2 ] || { sed -n '4,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1/lib/pkgconfig" "$1/include" "$1/building"
prefix=$(cd "$1" && pwd)
work=$prefix/building
shift
arch=${LMCS_ARCH:-$(uname -m)}
cc=${CC:-cc}
tools=(CC="$cc" ${AR:+AR="$AR"} ${LD:+LD="$LD"} ${OBJCOPY:+OBJCOPY="$OBJCOPY"})
flags="-O2 -g0 -fPIC -ffile-prefix-map=$work=."
jobs=$(nproc)
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}

# source_of NAME: a copy in $work/NAME, by the name of Debian's source package.
source_of() {
    "$top/tools/sources.sh" "${given[@]}" "$top/build/sources" "$1"
    rm -rf "${work:?}/$1"
    # The times, too: make would run autotools where configure.ac is the newer file.
    cp -r --preserve=timestamps "$top/build/sources/$1" "$work/$1"
    version=$(awk -v name="$1" '$1 == name { print $2; exit }' "$top/tools/sources.txt")
}

# pc NAME [LIBRARY...]: how pkg-config finds the library.
pc() {
    local name=$1
    shift
    cat >"$prefix/lib/pkgconfig/$name.pc" <<END
Name: $name
Description: built by lmc-store's tools/prefix.sh
Version: $version
Cflags: -I$prefix/include
Libs: $([ $# = 0 ] || echo "-L$prefix/lib") $*
END
}

# by_cmake NAME OPTION...
by_cmake() {
    local name=$1
    shift
    # Their least versions of CMake are older than CMake 4 accepts.
    cmake -G Ninja -S "$work/$name" -B "$work/$name/build" -DCMAKE_POLICY_VERSION_MINIMUM=3.5 -DBUILD_SHARED_LIBS=OFF \
        -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS="$flags" -DCMAKE_INSTALL_PREFIX="$prefix" \
        -DCMAKE_INSTALL_LIBDIR=lib "$@"
    cmake --build "$work/$name/build"
    cmake --install "$work/$name/build"
}

build_jansson() {
    source_of jansson
    by_cmake jansson -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
}

build_cmocka() {
    source_of cmocka
    by_cmake cmocka -DWITH_EXAMPLES=OFF -DUNIT_TESTING=OFF
    pc cmocka -lcmocka
}

build_libxxhash() {
    source_of xxhash
    cp "$work/xxhash/xxhash.h" "$prefix/include/"
    pc libxxhash
}

build_numa() {
    source_of numactl
    cp "$work/numactl/numa.h" "$work/numactl/numaif.h" "$work/numactl/numacompat1.h" "$prefix/include/"
    pc numa
}

build_libndctl() {
    source_of ndctl
    mkdir -p "$prefix/include/ndctl" "$prefix/include/daxctl"
    cp "$work/ndctl/ndctl/libndctl.h" "$work/ndctl/ndctl/ndctl.h" "$prefix/include/ndctl/"
    cp "$work/ndctl/daxctl/libdaxctl.h" "$prefix/include/daxctl/"
    pc libndctl
    pc libdaxctl
}

build_libdaxctl() { build_libndctl; }

# Only the part that codes parity, which is what the store calls.
build_libisal() {
    local of_processor=(arch= DEFINES=)
    if [ "$arch" != x86_64 ]; then
        of_processor=(arch="$arch" DEFINES="$flags")
    elif ! command -v nasm >/dev/null; then
        source_of nasm
        (cd "$work/nasm" && ./configure CC="$cc" CFLAGS=-O1)
        make -C "$work/nasm" -j "$jobs" nasm
        PATH=$work/nasm:$PATH
    fi
    source_of libisal
    # In a shared object, code can't contain the address of a table.
    sed -i 's/ldr\tx_const, =const_tbl/adrp x_const, const_tbl\n\tadd x_const, x_const, :lo12:const_tbl/' \
        "$work/libisal/erasure_code/aarch64"/*.S
    make -C "$work/libisal" -f Makefile.unx -j "$jobs" units=erasure_code have_threads=n host_cpu="$arch" \
        "${of_processor[@]}" "${tools[@]}" CFLAGS_="-Wall $flags" lib
    mkdir -p "$prefix/include/isa-l"
    cp "$work/libisal/include/erasure_code.h" "$work/libisal/include/gf_vect_mul.h" "$prefix/include/isa-l/"
    cp "$work/libisal/bin/isa-l.a" "$prefix/lib/libisal.a"
    pc libisal -lisal
}

# With ndctl, or it could not write the pools of other builds.
build_libpmemobj() {
    local library object
    # Where OS_KERNEL_NAME is not Linux, the Makefiles leave these out: no pool could be made on fsdax.
    local linux_parts=(os_deep_linux.o auto_flush_linux.o deep_flush_linux.o pmem2_utils_linux.o)
    pkg-config --exists libndctl libdaxctl || build_libndctl
    source_of pmdk
    for library in libpmem libpmemobj; do
        make -C "$work/pmdk/src/$library" -j "$jobs" "${tools[@]}" OS_KERNEL_NAME=Linux NDCTL_ENABLE=y OS_DIMM=ndctl \
            USE_LIBUNWIND=n SRCVERSION="$version" EXTRA_CFLAGS="$flags -Wno-error" \
            "../nondebug/$library" "../nondebug/$library/../$library.a"
        for object in "${linux_parts[@]}"; do
            [ -e "$work/pmdk/src/nondebug/$library/$object" ] ||
                { echo "prefix: PMDK's $library was built without $object" >&2; exit 1; }
        done
        cp "$work/pmdk/src/nondebug/$library.a" "$prefix/lib/"
    done
    cp "$work/pmdk/src/include"/*.h "$prefix/include/"
    cp -r "$work/pmdk/src/include/libpmemobj" "$prefix/include/"
    pc libpmem -lpmem
    pc libpmemobj -lpmemobj -lpmem
}

build_libpmem() { build_libpmemobj; }

for name; do
    declare -F "build_$name" >/dev/null || { echo "prefix: it can't build $name" >&2; exit 1; }
    # One source may make two of them.
    [ -e "$prefix/lib/pkgconfig/$name.pc" ] || { echo "== $name"; "build_$name"; }
done
rm -rf "$work"
