#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Builds with the preset release and runs ctest, by each compiler of Debian in bare systems:
#
#   tests/install/compilers.sh [COMPILER...]    gcc-13, clang-15, ...; without: gcc 13 and clang 15 or newer
#
# A compiler is taken from the first of sid, trixie and bookworm that has it. The tests run as a user without network.
# The systems stay in build/compilers/, and each compiler's output in build/compilers/COMPILER.log. Wants root. Exit
# status 77: it was skipped, and the last line says why.
set -euo pipefail

cd "$(dirname "$0")/../.."
top=$PWD
work=$top/build/compilers
user=65534

# shellcheck source=tests/install/bare.sh
. tests/install/bare.sh

# get ROOT COMMAND...: runs apt-get.
get() {
    online=1 enter "$1" --userspec=0:0 env DEBIAN_FRONTEND=noninteractive \
        apt-get -y --no-install-recommends "${@:2}"
}

# prepare SUITE ROOT: an up-to-date system with the libraries, and the sources.
prepare() {
    local libraries file
    if [ ! -e "$2/ready" ]; then
        bootstrap "$1" "$2" ca-certificates || return 1
        chmod 755 "$2"
        touch "$2/ready"
    fi
    # The way to the archive is this machine's.
    for file in /etc/apt/apt.conf.d/. /etc/ssl/certs/ca-certificates.crt /etc/resolv.conf /etc/hosts; do
        [ ! -e "$file" ] || cp -aL "$file" "$2$file"
    done
    mapfile -t libraries < <(awk '/^set\(LMCS_LIBRARIES/ { on = 1; next } /^\]\]/ { on = 0 } on { print $5 }' \
        store/libraries.cmake)
    get "$2" update || return 1
    get "$2" dist-upgrade || return 1
    get "$2" install cmake libc6-dev ninja-build pkgconf xz-utils "${libraries[@]}" || return 1
    rm -rf "$2/home/source"
    mkdir -p "$2/home/source"
    git ls-files -co --exclude-standard -z | tar -c --null -T - --ignore-failed-read | tar -C "$2/home/source" -x
    install -d -o $user -g $user "$2/home/build"
}

# compilers_of ROOT: what the suite has, newest first.
compilers_of() {
    enter "$1" --userspec=0:0 apt-cache search --names-only '^(gcc|clang)-[0-9]+$' |
        awk -F '[- ]' '$2 >= ($1 == "gcc" ? 13 : 15) { print $1 "-" $2 }' | sort -t - -k 2nr
}

# try ROOT COMPILER
try() {
    local log=$work/$2.log version cmocka status=0 warnings result
    # shellcheck disable=SC2016  # the inner shell expands it
    enter "$1" --userspec=$user:$user bash -euc 'cd /home/source
        cmake --preset release -B "/home/build/$1" -DCMAKE_C_COMPILER="$1"
        cmake --build "/home/build/$1" -j "$(nproc)"
        ctest --test-dir "/home/build/$1" -j "$(nproc)" --output-on-failure --no-tests=error' try "$2" \
        >"$log" 2>&1 </dev/null || status=$?
    version=$(sed -n 's/.*C compiler identification is //p' "$log")
    cmocka=$(enter "$1" --userspec=$user:$user pkg-config --modversion cmocka)
    warnings=$(grep -c ': warning: ' "$log" || true)
    result=$(grep ' tests failed out of ' "$log" || echo "no test was run")
    echo "$2: $version, cmocka $cmocka, $warnings warnings, $result"
    ((status == 0)) || grep -E 'error: |\[  FAILED|\*\*\*(Failed|Timeout|Exception)' "$log" | head -n 20 || true
    rm -rf --one-file-system "$1/home/build/$2"
    return "$status"
}

want_bare debootstrap
failed=()
tried=()
for suite in sid trixie bookworm; do
    if (($# && ${#tried[@]} == $#)); then break; fi
    root=$work/$suite
    prepare "$suite" "$root" >"$work/$suite.log" 2>&1 || { tail -n 5 "$work/$suite.log"; failed+=("$suite"); continue; }
    for compiler in $(compilers_of "$root"); do
        if [[ " ${tried[*]} " == *" $compiler "* ]] || { (($#)) && [[ " $* " != *" $compiler "* ]]; }; then
            continue
        fi
        if ! get "$root" install "$compiler" >>"$work/$suite.log" 2>&1; then
            echo "$compiler: $suite can't install it (build/compilers/$suite.log)"
            continue
        fi
        begin=$SECONDS
        tried+=("$compiler")
        try "$root" "$compiler" || failed+=("$compiler")
        echo "-- $compiler, $suite: $((SECONDS - begin)) s"
    done
done
((${#tried[@]})) || { echo "no compiler was tried"; exit 1; }
((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}"; exit 1; }
