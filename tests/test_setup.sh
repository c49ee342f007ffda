#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Checks tools/setup.sh where something is missing: it takes what is there, or ends with one line that names the fault
# and a remedy.
#
#   tests/test_setup.sh [CASE...]     the functions below that begin with case_
#
# As root it runs set-up as the user nobody, with mounts that only its own processes see, where the system allows both
# (a chroot may allow neither). Needs /usr/bin/python3 and the libraries. A copy of tools/ is set up, with an imitation
# of CMake, so that nothing is compiled; the job `prefix` of tests/run.sh compiles.
# shellcheck disable=SC2317 # the cases are called by name
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
if [ "$(id -u)" = 0 ] && [ -z "${TEST_SETUP_INSIDE:-}" ] && unshare -m true 2>/dev/null; then
    exec env TEST_SETUP_INSIDE=1 unshare -m --propagation private "$0" "$@"
fi

work=$(mktemp -d /var/tmp/test_setup.XXXXXX)
mounted=()
leave() {
    local place
    for place in "${mounted[@]}"; do umount "$place"; done
    rm -rf "$work"
}
trap leave EXIT
chmod 755 "$work"
said=$work/said
status=0

# As this user set-up runs.
as=()
if [ "$(id -u)" = 0 ] && setpriv --reuid=nobody --regid=nogroup --clear-groups true 2>/dev/null; then
    as=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
fi
is_root() { [ "$(id -u)" = 0 ] && ((${#as[@]} == 0)); }

can_mount() { [ -n "${TEST_SETUP_INSIDE:-}" ]; }

# The commands of the system but for those that a case may lack.
mkdir "$work/system"
ln -s /usr/bin/* "$work/system/"
rm -f "$work/system/"{sudo,apt-get,cmake,ninja,cc,gcc,clang}

# place: a checkout and commands in bin/, anew for each case.
place() {
    rm -rf "${work:?}/bin" "${work:?}/checkout" "${work:?}/home"
    mkdir -p "$work/bin" "$work/checkout" "$work/home"
    ln -s "$(command -v cc)" "$work/bin/cc"
    check_out
    imitate cmake 'echo "cmake version 3.25.1"'
    imitate ninja true
    own "$work/checkout" "$work/home"
}

check_out() {
    mkdir "$work/checkout/"{tools,python,codec,store}
    cp "$top/tools/"{setup.sh,prefix.sh,sources.sh,sources.txt} "$work/checkout/tools/"
    [ ! -e "$top/store/libraries.cmake" ] || cp "$top/store/libraries.cmake" "$work/checkout/store/"
}

own() { ((${#as[@]} == 0)) || chown -R nobody "$@"; }

# imitate NAME COMMAND
imitate() {
    printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"
    chmod 755 "$work/bin/$1"
}

# set_up [NAME=VALUE...] OPTION...
set_up() {
    local variables=()
    while [[ ${1:-} == [A-Z]*=* ]]; do
        variables+=("$1")
        shift
    done
    (cd / && env -i HOME="$work/home" PATH="$work/bin:$work/system" LC_ALL=C.UTF-8 PIP_CONFIG_FILE=/dev/null \
        "${variables[@]}" "${as[@]}" "$work/checkout/tools/setup.sh" "$@") >"$said" 2>&1
}

fail() {
    printf '    FAILED: %s\n' "$*"
    sed 's/^/        /' "$said"
    return 1
}

# says PATTERN: a line does.
says() { grep -qE "$1" "$said" || fail "no line has '$1'"; }

# ends OK|BAD PATTERN OPTION...: set_up succeeds or fails, its last line has the pattern, and no line is not its own.
ends() {
    local good=$1 pattern=$2
    shift 2
    if set_up "$@"; then
        [ "$good" = OK ] || { fail "it succeeded"; return; }
    else
        [ "$good" = BAD ] || { fail "it failed"; return; }
    fi
    ! grep -v '^setup: ' "$said" >/dev/null || { fail "lines of others"; return; }
    tail -n 1 "$said" | grep -qE "$pattern" || fail "the last line has no '$pattern'"
}

case_all_is_there() {
    ends OK 'done in .*: build/release/bin/lmc-store$' --no-python
}

case_libraries_are_missing() {
    local package
    ends BAD 'missing libraries: .*--prefix DIR, or install .*\(Debian\), .*libpmem-devel.*\(Fedora\)$' \
        PKG_CONFIG_LIBDIR=/nonexistent --no-python || return
    for package in libpmemobj-dev libpmem-dev libnuma-dev libndctl-dev libdaxctl-dev libcmocka-dev libxxhash-dev \
        libjansson-dev libisal-dev; do
        says "missing libraries: .*$package" || return
    done
}

case_sources_are_missing() {
    ends BAD "failed: sources: $work/home has no .* \(SHA-256 .*\); Debian's source package" \
        PKG_CONFIG_LIBDIR=/nonexistent --no-python --prefix "$work/home/libraries" --sources "$work/home"
}

case_cmake_is_missing() {
    rm "$work/bin/cmake"
    ends BAD 'missing: cmake>=3.25\. Install' --no-python
}

case_cmake_is_old() {
    imitate cmake 'echo "cmake version 3.18.4"'
    ends BAD 'missing: cmake>=3.25\. Install' --no-python
}

case_compiler_is_missing() {
    rm "$work/bin/cc"
    ends BAD 'no C compiler .*: install gcc or clang' --no-python
}

case_network_is_missing() {
    ends BAD 'pip install .* no network: .*PIP_FIND_LINKS.*lmc-store are ready' \
        PIP_INDEX_URL=http://127.0.0.1:9/simple PIP_RETRIES=0
}

case_disk_is_full() {
    can_mount || return 77
    rm -rf "$work/checkout/"*
    mount -t tmpfs -o size=2m tmpfs "$work/checkout"
    mounted+=("$work/checkout")
    check_out
    own "$work/checkout"
    local result=0
    ends BAD 'failed: no space left on the disk' || result=1
    umount "$work/checkout"
    mounted=()
    return "$result"
}

case_checkout_is_noexec() {
    can_mount || return 77
    mkdir "$work/checkout/build"
    mount -t tmpfs -o noexec,mode=1777 tmpfs "$work/checkout/build"
    mounted+=("$work/checkout/build")
    local result=0
    ends BAD "programs don't run in .*noexec.*move the checkout" --no-python || result=1
    umount "$work/checkout/build"
    mounted=()
    return "$result"
}

case_checkout_is_read_only() {
    ! is_root || return 77
    ((${#as[@]} == 0)) || chown -R root "$work/checkout"
    chmod -R a-w "$work/checkout"
    local result=0
    ends BAD "can't be written to" --no-python || result=1
    chmod -R u+w "$work/checkout"
    return "$result"
}

# A Python that is 3.10 by its own account. Set-up ends at the compiler that is missing.
imitate_3.10() {
    imitate python3.10 'shift
        exec /usr/bin/python3 -c "import sys; sys.version_info = (3, 10, 13); exec(sys.argv[1])" "$@"'
    rm "$work/bin/cc"
}

case_python_is_old() {
    imitate_3.10
    ends BAD "python3.10 can't be used: it is Python 3.10; 3.11 or newer is needed" --python "$work/bin/python3.10"
}

case_python_does_not_exist() {
    ends BAD "can't be used: there is no such program" --python "$work/python4"
}

case_active_python_is_old() {
    imitate_3.10
    mkdir -p "$work/home/env/bin"
    ln -s "$work/bin/python3.10" "$work/home/env/bin/python"
    ends BAD 'no C compiler' VIRTUAL_ENV="$work/home/env" &&
        says "env/bin/python is not taken: it is Python 3.10; 3.11 or newer is needed" &&
        says 'Python 3\.[0-9.]+ of /usr/bin/python3'
}

case_active_python_is_taken() {
    rm "$work/bin/cc"
    /usr/bin/python3 -m venv --without-pip "$work/home/env"
    ends BAD 'no C compiler' CONDA_PREFIX="$work/home/env" && says "Python 3\.[0-9.]+ of $work/home/env/bin/python"
}

if [ $# = 0 ]; then
    mapfile -t names < <(declare -F | sed -n 's/^declare -f case_//p')
    set -- "${names[@]}"
fi
for name; do
    place
    result=0
    "case_$name" || result=$?
    case $result in
        0) echo "    ok: ${name//_/ }" ;;
        77) echo "    skipped: ${name//_/ }: only root can do it, outside a chroot" ;;
        *) status=1 ;;
    esac
done
exit "$status"
