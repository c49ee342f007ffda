#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Puts the sources of libraries into a folder, unpacked, each file checked against tools/sources.txt:
#
#   tools/sources.sh [--sources DIR] FOLDER NAME...    FOLDER/NAME/ for each NAME of the list's first column
#
# The files come from DIR, or from the archive that apt uses on this system (Debian), without root. They stay in
# FOLDER/files/, where the next run finds them. The patches of a Debian tar file are applied.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
list=$top/tools/sources.txt

die() {
    printf 'sources: %s\n' "$*" >&2
    exit 1
}

given=
if [ "${1:-}" = --sources ]; then
    given=${2:?--sources needs a folder}
    shift 2
fi
[ $# -ge 2 ] || { sed -n '4,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
files=$folder/files
mkdir -p "$files"

# sound FILE SHA256
sound() { [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -c 1-64)" = "$2" ]; }

# apt with the sources of RELEASE, and with lists of its own: the system's stay as they are. The digests are what is
# trusted, so no key of the release is needed.
apt_of() {
    local release=$1 archive apt=$folder/apt/$1
    shift
    if [ ! -s "$apt/sources.list" ]; then
        # shellcheck disable=SC2016  # apt-get expands it
        archive=$(apt-get indextargets 'Created-By: Packages' 'Label: Debian' --format '$(REPO_URI)' | sed -n 1p)
        [ -n "$archive" ] || archive=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
            sed -nE 's/^(URIs:|deb( \[[^]]*\])?) *([a-z]+:[^ ]*debian)\/? *.*/\3/p' | sed -n 1p)
        [ -n "$archive" ] || return 1
        mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
        echo "deb-src [trusted=yes] $archive $release main" >"$apt/sources.new"
    fi
    local options=(-qq -o Dir::Etc::SourceList="$apt/sources.new" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" -o Acquire::Languages=none
        -o APT::Sandbox::User=)
    if [ ! -s "$apt/sources.list" ]; then
        apt-get "${options[@]}" update || return 1
        cp "$apt/sources.new" "$apt/sources.list"
    fi
    apt-get "${options[@]}" "$@"
}

# fetch NAME FILE SHA256 RELEASE: from the archive, into $files.
fetch() {
    local uri
    command -v apt-get >/dev/null || return 1
    uri=$(apt_of "$4" source --print-uris "$1/$4" | sed -nE "s|^'([^']*/$2)' .*|\1|p")
    [ -n "$uri" ] || return 1
    /usr/lib/apt/apt-helper -o APT::Sandbox::User= download-file "$uri" "$files/$2" "SHA256:$3" >&2
}

# provide NAME FILE SHA256 RELEASE
provide() {
    if sound "$files/$2" "$3"; then
        return
    fi
    rm -f "$files/$2"
    if [ -n "$given" ]; then
        [ -f "$given/$2" ] || die "$given has no $2 (SHA-256 $3); Debian's source package $1 of $4 has it"
        cp "$given/$2" "$files/$2"
    else
        fetch "$@" || die "could not download $2 of Debian's source package $1 ($4); give it with --sources DIR"
    fi
    sound "$files/$2" "$3" || die "$2 is not the file of tools/sources.txt: its SHA-256 is not $3"
}

for name; do
    mapfile -t rows < <(awk -v name="$name" '$1 == name { print $3, $4, $5 }' "$list")
    [ "${#rows[@]}" -gt 0 ] || die "tools/sources.txt has no $name"
    digests=$(printf '%s\n' "${rows[@]}")
    for row in "${rows[@]}"; do
        read -r file sha256 release <<<"$row"
        provide "$name" "$file" "$sha256" "$release"
    done
    if [ "$(cat "$folder/$name/.sources" 2>/dev/null || true)" = "$digests" ]; then
        continue
    fi
    rm -rf "${folder:?}/$name"
    mkdir "$folder/$name"
    for row in "${rows[@]}"; do
        file=$files/${row%% *}
        case $file in
            *.debian.tar.*) tar -C "$folder/$name" -xf "$file" ;;
            *) tar -C "$folder/$name" --strip-components=1 -xf "$file" ;;
        esac
    done
    if [ -f "$folder/$name/debian/patches/series" ]; then
        while read -r patch _; do
            case $patch in '' | '#'*) continue ;; esac
            patch -d "$folder/$name" -s -p1 <"$folder/$name/debian/patches/$patch" ||
                die "Debian's patch $patch does not apply to $name"
        done <"$folder/$name/debian/patches/series"
    fi
    echo "$digests" >"$folder/$name/.sources"
done
