#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Compares the binary interfaces of liblmc.so and liblmcstore.so with those in tests/data/abi/: exported functions, and
# the public types that they use. A program built with the earlier library must run with this one, so functions may be
# added, and nothing else may change. Constants that no function's type names (flags, macros) are not compared.
#
#   tests/abi.sh             compares; exits with 1 after an incompatible change
#   tests/abi.sh --update    writes the present interfaces to tests/data/abi/. If a version was released (a tag v*), an
#                            interface that is incompatible with its own needs a new SOVERSION, and removed functions
#                            must have been declared there with __attribute__((deprecated("use ... instead"))).
#
# Needs abidw and abidiff (Debian: abigail-tools), and x86-64: sizes differ elsewhere.
set -euo pipefail

cd "$(dirname "$0")/.."
data=tests/data/abi
build=build/abi
update=0
case ${1:-} in
    '') ;;
    --update) update=1 ;;
    -h | --help) sed -n '4,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "abi: unknown option '$1' (try --help)" >&2; exit 2 ;;
esac

die() {
    echo "abi: $*" >&2
    exit 1
}

[ "$(uname -m)" = x86_64 ] || die "the interfaces in $data are those of x86-64; this machine is $(uname -m)"
for tool in abidw abidiff; do
    command -v "$tool" >/dev/null || die "$tool is missing; install Debian's abigail-tools"
done

# Types are read from debug information, which is most exact without optimization.
mkdir -p "$build" "$data"
{
    cmake -S . -B "$build" -G Ninja -DBUILD_SHARED_LIBS=ON -DLMCS_BUILD_TESTS=OFF -DLMCS_BUILD_TOOLS=OFF \
        -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O0 -g" &&
        cmake --build "$build" --target lmc lmcstore
} >"$build.log" 2>&1 || die "the build failed: $(tail -n 20 "$build.log")"

# Types outside of the public headers are private: programs see their names only.
rm -rf "$build/include"
mkdir "$build/include"
cp codec/lmc.h store/lmcstore*.h "$build/include"

# compatible OLD NEW: prints each change but additions.
compatible() { abidiff --no-added-syms "$1" "$2"; }

soname() { sed -n "s/.*soname='\([^']*\)'.*/\1/p;q" "$1"; }

functions() { sed -n "s/.*<elf-symbol name='\([^']*\)'.*/\1/p" "$1" | sort; }

# undeprecated TAG OLD NEW: the functions of OLD that NEW lacks, and that the headers in TAG don't declare deprecated.
undeprecated() {
    local declarations name
    declarations=$(git ls-tree --name-only "$1" codec/lmc.h store/ | grep '\.h$' |
        while read -r file; do git show "$1:$file"; done | tr '\n' ' ' | tr ';' '\n')
    comm -23 <(functions "$2") <(functions "$3") | while read -r name; do
        grep -E "[ *]$name\(" <<<"$declarations" | grep -q 'deprecated(' || echo "$name"
    done
}

# may_replace LIBRARY: stops if its interface may not follow that of the last release.
may_replace() {
    local library=$1 tag released=$build/$1.released removed
    tag=$(git describe --tags --match 'v[0-9]*' --abbrev=0 2>/dev/null) || return 0
    git show "$tag:$data/$library.abi" >"$released" 2>/dev/null || return 0
    removed=$(undeprecated "$tag" "$released" "$build/$library.abi")
    [ -z "$removed" ] || die "removed, but not deprecated in $tag: ${removed//$'\n'/, }"
    [ "$(soname "$released")" != "$(soname "$build/$library.abi")" ] ||
        compatible "$released" "$build/$library.abi" ||
        die "$library is incompatible with $tag: undo the changes above, or raise SOVERSION in its CMakeLists.txt"
}

for library in liblmc liblmcstore; do
    abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --no-parameter-names \
        --exported-interfaces-only --drop-private-types --headers-dir "$build/include" --type-id-style hash \
        --out-file "$build/$library.abi" "$build/lib/$library.so"
    count=$(functions "$build/$library.abi" | wc -l)
    if ((update)); then
        may_replace "$library"
        cp "$build/$library.abi" "$data/"
        echo "abi: $data/$library.abi: $count functions"
    elif compatible "$data/$library.abi" "$build/$library.abi"; then
        added=$(comm -13 <(functions "$data/$library.abi") <(functions "$build/$library.abi") | wc -l)
        echo "$library: $count functions, $added of them new, nothing else changed"
    else
        die "$library: programs built with the earlier interface may fail. Undo the changes above;" \
            "tests/abi.sh --update accepts them where that is allowed (see its head)"
    fi
done
