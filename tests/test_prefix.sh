#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Sets a copy of the checkout up with tools/setup.sh --prefix, as a user without root, on a system that has a compiler,
# make and Python alone. The system is this one (Debian), without the packages below, which only the processes of this
# script miss; its /tmp is noexec, and the user's home read-only. Needs root, and the network for sources and pip.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${TEST_PREFIX_INSIDE:-}" ]; then
    work=$(mktemp -d /var/tmp/test_prefix.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    TEST_PREFIX_INSIDE=$work unshare -m --propagation private "$0" "$@"
    exit
fi

work=$TEST_PREFIX_INSIDE
chmod 755 "$work"
# A compiler cache would write to the home.
unset CMAKE_C_COMPILER_LAUNCHER
# Not libjansson4: the linker needs it.
absent=(libpmem-dev libpmemobj-dev libnuma-dev libndctl-dev libdaxctl-dev libcmocka-dev libxxhash-dev libjansson-dev
    libisal-dev libpmem1 libpmemobj1 libnuma1 libndctl6 libdaxctl1 libcmocka0 libisal2 cmake ninja-build pkg-config
    pkgconf pkgconf-bin nasm)

mkdir "$work/overlay"
mount -t tmpfs tmpfs "$work/overlay"
mkdir "$work/overlay/upper" "$work/overlay/work"
mount -t overlay -o "lowerdir=/usr,upperdir=$work/overlay/upper,workdir=$work/overlay/work" overlay /usr
for package in "${absent[@]}"; do
    dpkg-query -L "$package" 2>/dev/null || true
done | sed -n 's|^/lib/|/usr/lib/|; \|^/usr/|p' | while read -r file; do
    if [ ! -d "$file" ] || [ -L "$file" ]; then rm -f "$file"; fi
done
mount -t tmpfs -o noexec,mode=1777 tmpfs /tmp

mkdir "$work/checkout" "$work/home"
(cd "$top" && git ls-files -co --exclude-standard -z | tar --null --ignore-failed-read -T - -c) 2>/dev/null |
    tar -C "$work/checkout" -x
if [ -d ~/.config/pip ]; then
    mkdir "$work/home/.config"
    cp -r ~/.config/pip "$work/home/.config/"
fi
chown -R nobody "$work/checkout"
chmod -R a+rX,a-w "$work/home"

as_user() {
    (cd "$work/checkout" && HOME=$work/home PATH=/usr/local/bin:/usr/bin:/bin \
        setpriv --reuid=nobody --regid=nogroup --clear-groups "$@")
}

fail() {
    echo "FAILED: $*"
    exit 1
}

! as_user sh -c 'command -v cmake || command -v pkg-config || ls /usr/include/libpmemobj.h' 2>/dev/null ||
    fail "the system has more than this test is about"
as_user tools/setup.sh --prefix "$work/checkout/build/libraries" --python /usr/bin/python3

! as_user ldd build/release/bin/lmc-store | grep -E 'pmem|isal|jansson|not found' ||
    fail "the command needs shared libraries of its own"
as_user .venv/bin/python - <<'PYTHON'
import lmcstore, numpy, subprocess

weights = numpy.arange(1000.0)
with lmcstore.open("build/one.pool", "x", size="64MiB") as store:
    store["run"].snapshot({"w": weights}, step=1)
with lmcstore.open("build/one.pool", "r") as store:
    assert (store["run"].latest.state_dict()["w"] == weights).all()
subprocess.run(["build/release/bin/lmc-store", "verify", "build/one.pool"], check=True)
PYTHON

# The same files, given.
as_user env PATH="$work/checkout/.venv/bin:$PATH" tools/prefix.sh --sources build/sources/files build/given libxxhash
cmp "$work/checkout/build/given/include/xxhash.h" "$work/checkout/build/libraries/include/xxhash.h"
as_user tools/setup.sh --prefix "$work/checkout/build/libraries" --python /usr/bin/python3 | tee "$work/again"
! grep -q 'building into\|pip install' "$work/again" || fail "a second run does not find all in its place"
