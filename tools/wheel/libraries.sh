#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Builds what is inside the wheel, static, into $LMCS_WHEEL_PREFIX: PMDK's libpmem and libpmemobj, ISA-L, jansson; and
# copies the headers of what is loaded at run time. tools/wheel.sh sets the variables and calls it:
#
#   tools/wheel/libraries.sh SOURCES WORK      the folder of tools/sources.sh, and one for the build
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
sources=$1
work=$2
prefix=$LMCS_WHEEL_PREFIX
flags="-O2 -g0 -fPIC -ffile-prefix-map=$work=. -ffile-prefix-map=$sources=."

die() {
    printf 'wheel: %s\n' "$*" >&2
    exit 1
}

version() { awk -v name="$1" '$1 == name { print $2; exit }' "$here/../sources.txt"; }

# pc NAME SOURCE LIBS...: how pkg-config finds the library.
pc() {
    local name=$1 source=$2
    shift 2
    cat >"$prefix/lib/pkgconfig/$name.pc" <<END
Name: $name
Description: of Debian's source package $source
Version: $(version "$source")
Cflags: -I$prefix/include
Libs: $([ $# = 0 ] || echo "-L$prefix/lib") $*
END
}

# Without a library: what uses them defines the functions itself (LMCS_LOAD_LIBRARIES).
headers() {
    mkdir -p "$prefix/include/ndctl" "$prefix/include/daxctl" "$prefix/lib/pkgconfig"
    cp "$sources/ndctl/ndctl/libndctl.h" "$sources/ndctl/ndctl/ndctl.h" "$prefix/include/ndctl/"
    cp "$sources/ndctl/daxctl/libdaxctl.h" "$prefix/include/daxctl/"
    cp "$sources/numactl/numa.h" "$sources/numactl/numaif.h" "$sources/numactl/numacompat1.h" "$prefix/include/"
    cp "$sources/xxhash/xxhash.h" "$prefix/include/"
    pc libndctl ndctl
    pc libdaxctl ndctl
    pc numa numactl
    pc libxxhash xxhash
}

jansson() {
    # Its version of CMake is older than the newest CMake accepts.
    cmake -G Ninja -S "$sources/jansson" -B "$work/jansson" -DCMAKE_TOOLCHAIN_FILE="$here/toolchain.cmake" \
        -DCMAKE_POLICY_VERSION_MINIMUM=3.5 -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS="$flags" \
        -DCMAKE_INSTALL_PREFIX="$prefix" -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
    cmake --build "$work/jansson" --parallel 2
    cmake --install "$work/jansson"
}

# Its part that codes parity. Others are not called, and zig can't assemble igzip for aarch64.
isal() {
    rm -rf "$work/libisal"
    cp -r "$sources/libisal" "$work/libisal"
    # In a shared object, code can't contain the address of a table.
    sed -i 's/ldr\tx_const, =const_tbl/adrp x_const, const_tbl\n\tadd x_const, x_const, :lo12:const_tbl/' \
        "$work/libisal/erasure_code/aarch64"/*.S
    make -C "$work/libisal" -f Makefile.unx -j2 units=erasure_code host_cpu="$LMCS_WHEEL_ARCH" \
        arch="$([ "$LMCS_WHEEL_ARCH" = x86_64 ] || echo "$LMCS_WHEEL_ARCH")" have_threads=n CC="$here/cc.sh" \
        AR="$here/ar.sh" DEFINES="$([ "$LMCS_WHEEL_ARCH" = x86_64 ] || echo "$flags")" CFLAGS_="-Wall $flags" lib
    mkdir -p "$prefix/include/isa-l"
    cp "$work/libisal/include/erasure_code.h" "$work/libisal/include/gf_vect_mul.h" "$prefix/include/isa-l/"
    cp "$work/libisal/bin/isa-l.a" "$prefix/lib/libisal.a"
    pc libisal libisal -lisal
}

# With ndctl, or it could not write the pools of other builds.
pmdk() {
    local library archive object
    # Where OS_KERNEL_NAME is not Linux, the Makefiles leave these out: no pool could be made on fsdax.
    local linux_parts=(os_deep_linux.o auto_flush_linux.o deep_flush_linux.o pmem2_utils_linux.o)
    rm -rf "$work/pmdk"
    cp -r "$sources/pmdk" "$work/pmdk"
    for library in libpmem libpmemobj; do
        archive=../nondebug/$library/../$library.a
        make -C "$work/pmdk/src/$library" -j2 CC="$here/cc.sh" AR="$here/ar.sh" LD="$LMCS_WHEEL_ZIG ld.lld" \
            OBJCOPY="$LMCS_WHEEL_OBJCOPY" OS_KERNEL_NAME=Linux NDCTL_ENABLE=y OS_DIMM=ndctl USE_LIBUNWIND=n \
            SRCVERSION="$(version pmdk)" EXTRA_CFLAGS="$flags -Wno-error" \
            "../nondebug/$library" "$archive"
        for object in "${linux_parts[@]}"; do
            [ -e "$work/pmdk/src/nondebug/$library/$object" ] || die "PMDK's $library was built without $object"
        done
        cp "$work/pmdk/src/nondebug/$library.a" "$prefix/lib/"
    done
    cp "$work/pmdk/src/include"/*.h "$prefix/include/"
    cp -r "$work/pmdk/src/include/libpmemobj" "$prefix/include/"
    pc libpmem pmdk -lpmem
    pc libpmemobj pmdk -lpmemobj -lpmem
}

mkdir -p "$prefix/lib/pkgconfig" "$prefix/include" "$work"
headers
jansson
isal
pmdk
