#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# tools/release.sh in a temporary repository, with a temporary key of ssh, then of gpg. The builds of wheels and of the
# source distribution are replaced by files of a few bytes; tests/run.sh install makes real ones.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
where=$(mktemp -d)
trap 'GNUPGHOME=$where/gnupg gpgconf --kill all 2>/dev/null || true; rm -rf "$where"' EXIT
export HOME=$where GIT_CONFIG_GLOBAL=$where/gitconfig GIT_CONFIG_SYSTEM=/dev/null GNUPGHOME=$where/gnupg
unset SOURCE_DATE_EPOCH

fail() {
    echo "test_release: $*" >&2
    exit 1
}

# says TEXT COMMAND...: the command must fail and say the text.
says() {
    local text=$1 said
    shift
    if said=$("$@" 2>&1); then
        fail "'$*' succeeded"
    fi
    [[ $said == *"$text"* ]] || fail "'$*' does not say '$text' but: $said"
}

repository=$where/repository
mkdir -p "$repository"/{tools,tests/data/abi,store,python} "$where/modules"
cd "$repository"
cp "$top/tools/release.sh" tools/
printf '#define LMCS_VERSION_%s %s\n' MAJOR 0 MINOR 3 PATCH 1 >store/lmcstore.h
printf '# Changelog\n\n## 0.3.1 (unreleased)\n- News.\n' >CHANGELOG.md
echo /build/ >.gitignore
echo interface >tests/data/abi/liblmc.abi
cat >tests/abi.sh <<'STUB'
#!/bin/sh
[ "$1" = --update ] && echo interface >tests/data/abi/liblmc.abi
STUB
cat >tools/wheel.sh <<'STUB'
#!/bin/sh
[ "$1 $3" = "--arch --out" ] && echo "$SOURCE_DATE_EPOCH" >"$4/lmcstore-0.3.1-cp311-abi3-manylinux_2_28_$2.whl"
STUB
chmod +x tests/abi.sh tools/wheel.sh
# In place of the module build.
cat >"$where/modules/build.py" <<'STUB'
import sys
if "--sdist" in sys.argv:
    folder = sys.argv[sys.argv.index("--outdir") + 1]
    open(f"{folder}/lmcstore-0.3.1.tar.gz", "w").write("sources")
STUB
export PYTHONPATH=$where/modules

git init -q -b main
git config user.name "A Tester"
git config user.email tester@example.com
git add -A
git commit -qm "start"

says "git has no key to sign with" tools/release.sh
ssh-keygen -q -t ed25519 -N '' -C '' -f "$where/key"
git config gpg.format ssh
git config user.signingkey "$where/key"
says "CHANGELOG.md has '## 0.3.1 (unreleased)'" tools/release.sh
sed -i 's/^## 0.3.1.*/## 0.3.10 (2026-12-01)/' CHANGELOG.md
says "CHANGELOG.md has no section '## 0.3.1 " tools/release.sh
sed -i 's/^## 0.3.10/## 0.3.1/' CHANGELOG.md
says "the checkout has changes" tools/release.sh
git commit -qam "date the release"
git checkout -q --detach
says "HEAD is on no branch" tools/release.sh
git checkout -q main
chmod -x tools/wheel.sh
says "tools/wheel.sh is missing" tools/release.sh
chmod +x tools/wheel.sh
echo earlier >tests/data/abi/liblmc.abi
git commit -qam "forget the interface"
says "tests/data/abi was behind the code" tools/release.sh
git commit -qam "remember it"

out=build/release-0.3.1
files=(SHA256SUMS lmcstore-0.3.1-cp311-abi3-manylinux_2_28_{aarch64,x86_64}.whl lmcstore-0.3.1.tar.gz)
tools/release.sh --dry-run >/dev/null
[ "$(cd "$out" && echo *)" = "${files[*]}" ] || fail "a dry run made $(cd "$out" && echo *)"
[ -z "$(git tag)" ] || fail "a dry run made a tag"
cp "$out/SHA256SUMS" "$where/dry"

# As the readers of SECURITY.md verify it.
verified() {
    (cd "$out" && sha256sum --check --quiet --strict SHA256SUMS)
    cmp "$out/SHA256SUMS" "$where/dry"
    git verify-tag v0.3.1 2>/dev/null || fail "the signature of the tag is not valid"
}

echo "tester@example.com $(cat "$where/key.pub")" >"$where/signers"
git config gpg.ssh.allowedSignersFile "$where/signers"
tools/release.sh >/dev/null 2>&1
verified
ssh-keygen -Y verify -f "$where/signers" -I tester@example.com -n file -s "$out/SHA256SUMS.sig" <"$out/SHA256SUMS" \
    >/dev/null || fail "the signature of the checksums is not valid"
says "the tag v0.3.1 exists" tools/release.sh

git tag -d v0.3.1 >/dev/null
if command -v gpg >/dev/null; then
    mkdir -m 700 "$GNUPGHOME"
    gpg --batch --quiet --passphrase '' --quick-gen-key tester@example.com ed25519 sign never 2>/dev/null
    git config gpg.format openpgp
    git config user.signingkey tester@example.com
    tools/release.sh >/dev/null
    verified
    gpg --quiet --verify "$out/SHA256SUMS.asc" "$out/SHA256SUMS" 2>/dev/null ||
        fail "the signature of the checksums is not valid"
fi
[ -z "$(git status --porcelain)" ] || fail "a release changed the checkout"
echo "test_release: ok"
