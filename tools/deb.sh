#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Builds Debian packages of this checkout in build/deb/: liblmc0, liblmcstore0, liblmcstore-dev, lmc-store (the command)
# and python3-lmcstore.
#
#   tools/deb.sh [--install] [OPTION...]
#
#   --install    first installs the packages that the build needs; as root
#   OPTION       of dpkg-buildpackage, such as --host-arch=arm64
#
# Until a version is released, its packages are named after the time of the last commit (0.1.0~202611271200), so that
# apt takes a later one as newer, and the release as newer still.
set -euo pipefail

# Debian's tools and Python, not those of a virtual environment.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
cd "$(dirname "$0")/.."
install=0
case ${1:-} in
    --install) install=1; shift ;;
    -h | --help) sed -n '4,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac

die() {
    echo "deb: $*" >&2
    exit 1
}

command -v dpkg-buildpackage >/dev/null || die "dpkg-buildpackage is missing; install Debian's build-essential"
git rev-parse --git-dir >/dev/null 2>&1 || die "packages are built from a git checkout"

version=$(sed -n 's/^#define LMCS_VERSION_[A-Z]* *//p' store/lmcstore.h | paste -sd.)
time=$(git log -1 --format=%ct)
[ "$(git tag --points-at HEAD "v$version")" ] || version+="~$(date -u -d "@$time" +%Y%m%d%H%M)"

out=$PWD/build/deb
source=$out/lmc-store
rm -rf "$out"
mkdir -p "$source"
git ls-files -z -co --exclude-standard --deduplicate |
    while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
    tar --null -T - -cf - | tar -xf - -C "$source"
mv "$source/tools/debian" "$source/debian"

maintainer=$(git log -1 --format='%an <%ae>')
libraries=$(awk '/^set\(LMCS_LIBRARIES/ { table = 1; next } /^\]\]\)/ { table = 0 }
    table && $3 != "test" { printf "%s%s, ", $5, $2 == 0 ? "" : " (>= " $2 ")" }' store/libraries.cmake)
sed -i "s/@MAINTAINER@/$maintainer/; s/@LIBRARIES@/${libraries% }/" "$source/debian/control"

cat >"$source/debian/changelog" <<CHANGELOG
lmc-store ($version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- $maintainer  $(date -u -R -d "@$time")
CHANGELOG

# The licence, in Debian's format.
{
    echo 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/'
    printf '\nFiles: *\nCopyright: %s\nLicense: BSD-3-Clause\n' "$(sed -n 's/^Copyright (c) //p' LICENSE)"
    sed '1,/^Copyright/d' LICENSE | sed '1d; s/^$/./; s/^/ /'
} >"$source/debian/copyright"

cd "$source"
((!install)) || DEBIAN_FRONTEND=noninteractive apt-get build-dep -y --no-install-recommends "$source"
dpkg-checkbuilddeps || die "install these packages, or run tools/deb.sh --install as root"
dpkg-buildpackage --build=binary --unsigned-source --unsigned-changes "$@"
cd "$out"
for package in *.deb; do
    printf 'deb: build/deb/%s (%d KB)\n' "$package" $(($(stat -c %s "$package") / 1024))
done
