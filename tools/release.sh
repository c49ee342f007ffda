#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Makes a release of the version in store/lmcstore.h: files and checksums in build/release-VERSION/, a signature of the
# checksums, and a signed tag. It pushes and uploads nothing; its last lines say how.
#
#   tools/release.sh [--dry-run] [--sources DIR]
#
#   --dry-run        checks and builds, but makes neither a tag nor a signature
#   --sources DIR    for tools/wheel.sh: takes the sources of PMDK and others from DIR
#
# It signs with git's key: user.signingkey, of gpg, or of ssh if gpg.format is ssh. Run tests/run.sh ordinary deep
# first.
set -euo pipefail

cd "$(dirname "$0")/.."
dry=0
given=()
while (($#)); do
    case $1 in
        --dry-run) dry=1 ;;
        --sources) given=(--sources "${2:?--sources needs a folder}"); shift ;;
        -h | --help) sed -n '4,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "release: unknown option '$1' (try --help)" >&2; exit 2 ;;
    esac
    shift
done

say() { printf 'release: %s\n' "$*"; }

die() {
    printf 'release: %s\n' "$*" >&2
    exit 1
}

# ---- The checkout and the tools: everything wrong at once --------------------------------------------------------

version=$(sed -n 's/^#define LMCS_VERSION_[A-Z]* *//p' store/lmcstore.h | paste -sd.)
tag=v$version
out=build/release-$version
wrong=()

[ -z "$(git status --porcelain)" ] || wrong+=("the checkout has changes; commit them (git status lists them)")
git symbolic-ref -q HEAD >/dev/null || wrong+=("HEAD is on no branch; check one out")
[ -z "$(git tag -l "$tag")" ] || wrong+=("the tag $tag exists; raise LMCS_VERSION_* in store/lmcstore.h")
section=$(grep -m 1 -E "^## ${version//./\\.}( |$)" CHANGELOG.md || true)
if [ -z "$section" ]; then
    wrong+=("CHANGELOG.md has no section '## $version (YYYY-MM-DD)'")
elif ! [[ $section =~ ^##\ [0-9.]+\ \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$ ]]; then
    wrong+=("CHANGELOG.md has '$section'; write its day: '## $version (YYYY-MM-DD)'")
fi

format=$(git config gpg.format || echo openpgp)
key=$(git config user.signingkey || true)
signer=gpg
[ "$format" != ssh ] || signer=ssh-keygen
[[ $format == openpgp || $format == ssh ]] || wrong+=("gpg.format is $format; only openpgp and ssh are supported")
[ -n "$key" ] || wrong+=("git has no key to sign with; set user.signingkey, and gpg.format to ssh for a key of ssh")
for tool in "$signer" python3 sha256sum; do
    command -v "$tool" >/dev/null || wrong+=("$tool is missing")
done
python3 -m build --version >/dev/null 2>&1 || wrong+=("python3 has no module build: pip install build")
for script in tests/abi.sh tools/wheel.sh; do
    [ -x "$script" ] || wrong+=("$script is missing; use a complete checkout")
done
if ((${#wrong[@]})); then
    printf 'release: %s\n' "${wrong[@]}" >&2
    exit 1
fi

# ---- The files ---------------------------------------------------------------------------------------------------

# The next version is compared with the interfaces in this one's tag.
say "comparing the libraries' interfaces with tests/data/abi"
tests/abi.sh --update
[ -z "$(git status --porcelain tests/data/abi)" ] || die "tests/data/abi was behind the code; commit its changes"

rm -rf "$out"
mkdir -p "$out"
# Files in the archives get the time of the commit, so that a second run makes the same bytes.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
say "building the source distribution"
python3 -m build --sdist --outdir "$out" python >"$out.log" 2>&1 || { tail -n 20 "$out.log" >&2; die "it failed"; }
for arch in x86_64 aarch64; do
    say "building the wheels for $arch"
    tools/wheel.sh --arch "$arch" --out "$out" "${given[@]}"
done
(cd "$out" && sha256sum -- *.tar.gz *.whl >SHA256SUMS)

# ---- Tag and signature -------------------------------------------------------------------------------------------

if ((dry)); then
    say "dry run: no tag, no signature. Files:"
    cat "$out/SHA256SUMS"
    exit
fi

if [ "$format" = ssh ]; then
    signature=$out/SHA256SUMS.sig
    # git takes a key itself, too.
    file=$out.key
    case $key in
        key::*) echo "${key#key::}" >"$file" ;;
        ssh-*) echo "$key" >"$file" ;;
        *) file=${key/#\~/$HOME} ;;
    esac
    ssh-keygen -Y sign -n file -f "$file" "$out/SHA256SUMS"
else
    signature=$out/SHA256SUMS.asc
    gpg --armor --detach-sign --local-user "$key" --output "$signature" "$out/SHA256SUMS"
fi
git tag --sign --message "lmc-store $version" "$tag"

say "made $tag and $out/. To publish it:"
cat <<TEXT
    git push origin $tag
    upload all files of $out/, SHA256SUMS and $(basename "$signature") among them
    in store/lmcstore.h and CHANGELOG.md begin the next version
TEXT
