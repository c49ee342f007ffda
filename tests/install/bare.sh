# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# For scripts with bare systems of Debian, which come from the archive that apt uses here. The script sets `top` and
# `work`, a folder. All of it wants root.
# shellcheck disable=SC2154  # work

skip() {
    echo "skipped: $*"
    exit 77
}

# want_bare PACKAGE...: skips, or installs what is missing of these.
want_bare() {
    local missing=() name
    [ "$(id -u)" = 0 ] || skip "bare systems want root"
    unshare --mount --net true 2>/dev/null || skip "bare systems want namespaces of mounts and networks"
    mkdir -p "$work"
    for name; do
        dpkg-query -W -f '${Status}\n' "$name" 2>/dev/null | grep -q ' installed$' || missing+=("$name")
    done
    ((${#missing[@]})) || return 0
    echo "installing ${missing[*]} ..."
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >"$work/apt.log" 2>&1 ||
        skip "could not install ${missing[*]} (${work#"$top/"}/apt.log)"
}

# bootstrap SUITE ROOT PACKAGES OPTION...: makes a bare system, with nodes of its own in /dev.
bootstrap() {
    local archive
    # shellcheck disable=SC2016  # apt-get expands it
    archive=$(apt-get indextargets 'Created-By: Packages' 'Label: Debian' --format '$(REPO_URI)' | sed -n 1p)
    [ -n "$archive" ] || { echo "apt has no list of Debian's packages; run apt-get update"; return 1; }
    rm -rf --one-file-system "$2"
    unshare --mount debootstrap --variant=minbase --include="$3" "${@:4}" "$1" "$2" "$archive" || return 1
    rm -rf "$2"/var/cache/apt/archives/*.deb "$2"/var/lib/apt/lists/*
}

# enter ROOT COMMAND...: runs chroot's COMMAND with mounts that no other sees, and without network unless `online` is 1.
enter() {
    local net=(--net)
    [ "${online:-0}" = 0 ] || net=()
    # shellcheck disable=SC2016  # the inner shell expands it
    unshare --mount "${net[@]}" --fork bash -euc '
        mount --make-rprivate /
        mount -t proc proc "$1/proc"
        mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
        if [ -d "$1/small" ]; then mount -t tmpfs -o mode=1777,size=24m tmpfs "$1/small"; fi
        if [ "$2" = --net ]; then ip link set lo up 2>/dev/null || true; fi
        exec chroot "${@:3:1}" "$1" env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 HOME=/nonexistent "${@:4}"
    ' enter "$1" "${net[*]}" "${@:2}"
}
