#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Builds the Debian packages, checks them with lintian, and uses them in a bare system of this machine's release: the
# command, both Python packages, and programs built with the libraries. Afterwards a purge must leave no file.
#
#   tests/install/deb.sh [--no-build]    as root; --no-build takes the packages of the last tools/deb.sh
#
# Needs debootstrap and lintian, and Debian's archive as apt reaches it. The bare system is kept as a tar file in
# build/install/.
set -euo pipefail

cd "$(dirname "$0")/../.."
top=$PWD
here=$top/build/install
mkdir -p "$here"

die() {
    echo "deb: $*" >&2
    exit 1
}

# inside ROOT: the part that runs in the bare system, in a mount namespace of its own.
inside() {
    local node
    mount --bind /proc "$1/proc"
    # Single devices: an installation can remove none of this machine's.
    for node in null zero full random urandom tty; do
        touch "$1/dev/$node"
        mount --bind "/dev/$node" "$1/dev/$node"
    done
    mkdir -p "$1/dev/shm"
    chmod 1777 "$1/dev/shm"
    exec env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        chroot "$1" /bin/bash /packages/use.sh
}
if [ "${1:-}" = --inside ]; then
    inside "$2"
fi

[ "$(id -u)" = 0 ] || die "must run as root, for chroot"
[ "${1:-}" = --no-build ] || tools/deb.sh --install >"$here/deb.log" 2>&1 || { tail -n 30 "$here/deb.log"; exit 1; }
lintian --allow-root --fail-on error build/deb/*.changes

# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
bare=$here/bare-$release.tar
if [ ! -s "$bare" ]; then
    # shellcheck disable=SC2016  # apt-get expands it
    archive=$(apt-get indextargets 'Created-By: Packages' 'Label: Debian' --format '$(REPO_URI)' | sed -n 1p)
    [ -n "$archive" ] || die "apt has no list of Debian's packages; run apt-get update"
    seed=$(mktemp -d "$here/seed.XXXXXX")
    debootstrap --variant=minbase --include=ca-certificates "$release" "$seed" "$archive" \
        >"$here/debootstrap.log" 2>&1 ||
        { tail -n 5 "$here/debootstrap.log"; rm -rf "$seed"; exit 1; }
    tar -C "$seed" --exclude='./dev/*' -cf "$bare.part" .
    mv "$bare.part" "$bare"
    rm -rf "$seed"
fi

root=$(mktemp -d "$here/root.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
tar -C "$root" -xf "$bare"
chmod 755 "$root"
# The way to the archive is this machine's.
for file in /etc/apt/apt.conf.d/. /etc/ssl/certs/ca-certificates.crt /etc/resolv.conf /etc/hosts; do
    [ ! -e "$file" ] || cp -aL "$file" "$root$file"
done
mkdir "$root/packages"
find build/deb -maxdepth 1 -name '*.deb' ! -name '*-dbgsym_*' -exec cp {} "$root/packages" \;

cat >"$root/packages/main.c" <<'C'
#include <lmcstore.h>
#include <lmcstore_live.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    struct lmcs_pool *pool = NULL;
    struct lmcs_error error;
    if (argc != 2 || lmcs_pool_open(argv[1], LMCS_OPEN_CREATE, NULL, &pool, &error) != LMCS_OK)
        return printf("failed: %s\n", argc == 2 ? error.message : "usage"), 1;
    return lmcs_pool_close(pool, &error) == LMCS_OK && lmc_block_count(1) == 1 ? 0 : 1;
}
C
cat >"$root/packages/CMakeLists.txt" <<'C'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(lmcstore REQUIRED)
add_executable(user main.c)
target_link_libraries(user lmcstore::lmcstore)
C
cat >"$root/packages/use.py" <<'PYTHON'
import lmcstore, numpy, pymm

with lmcstore.open("run.pool", "x", size="64MiB") as store:
    for step in range(3):
        store["run"].snapshot({"w": numpy.full(1000, step)}, step=step)
    store["run"].live["v"] = numpy.arange(10)
with lmcstore.open("run.pool", "r") as store:
    assert store["run"].at(step=1).state_dict()["w"].tolist() == [1] * 1000
assert pymm.shelf
PYTHON
cat >"$root/packages/use.sh" <<'SHELL'
set -euo pipefail
cd /packages
find / -xdev ! -path '/proc/*' ! -path '/packages/*' | sort >before
get() { apt-get install -qq --no-install-recommends "$@" >apt.log 2>&1 || { cat apt.log; exit 1; }; }
say() { echo "deb: $*"; }
as_user() { su user -s /bin/bash -c "cd ~ && $*"; }
useradd --create-home user
apt-get update -qq
get ./liblmc0_*.deb ./lmc-store_*.deb
as_user lmc-store create one.pool --size 64MiB
as_user lmc-store info one.pool >/dev/null
say "the command works with liblmc0 alone: $(as_user lmc-store --version | head -n 1)"

get ./python3-lmcstore_*.deb python3-numpy
as_user python3 /packages/use.py
as_user lmc-store verify run.pool
as_user lmc-store report run.pool -o report.html
say "Python works"

get ./liblmcstore*.deb gcc libc6-dev pkgconf cmake make
gcc main.c -o /usr/local/bin/by-pkg-config $(pkg-config --cflags --libs lmcstore)
ldd /usr/local/bin/by-pkg-config >libraries
grep -q 'liblmcstore.so.0 => /' libraries
cmake -S . -B build >cmake.log
cmake --build build >>cmake.log
install build/user /usr/local/bin/by-cmake
as_user /usr/local/bin/by-pkg-config three.pool
as_user /usr/local/bin/by-cmake four.pool
say "programs built by pkg-config and CMake work"
rm /usr/local/bin/by-*

apt-get purge -qq liblmc0 liblmcstore0 liblmcstore-dev lmc-store python3-lmcstore >apt.log 2>&1
left=$(find / -xdev ! -path '/proc/*' ! -path '/packages/*' ! -path '/home/*' | sort | comm -13 before - |
    grep -E '/(lib|_)?lmc|pymm' || true)
[ -z "$left" ] || { say "left behind: $left"; exit 1; }
say "nothing is left after a purge"
SHELL

unshare --mount --propagation private "$top/tests/install/deb.sh" --inside "$root"
