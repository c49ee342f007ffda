#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs the tests. Each job is a function below:
#
#   tests/run.sh           the ordinary run: at most 12 minutes on two cores
#                            setup format lint release python install quickstart crash
#   tests/run.sh deep      at most 45 minutes more, after the ordinary run
#                            asan tsan guest arm abi boxes mutants models ceph slow docs trainers bench
#   tests/run.sh long      hours
#                            alignment crash_long mutants_long stress_long soak kills fuzz prefix deb boxes_long turns
#                            wheel_python trainers_long ceph_long compilers
#   tests/run.sh JOB...    jobs by name, also: tidy coverage instructions bare_python
#
# FUZZ_SECONDS (60) and FUZZ_TARGETS (all) limit fuzz, SOAK_HOURS (2) soak. Builds are in build/<preset>/, logs in
# build/logs/. The last line counts the cases of cmocka, pytest and fuzz corpora, and one for each check of other jobs.
# Exits with 0 when none failed.
set -euo pipefail

cd "$(dirname "$0")/.."
top=$PWD
logs=$top/build/logs
jobs=$(nproc)
ordinary=(setup format lint release python install quickstart crash)
deep=(asan tsan guest arm abi boxes mutants models ceph slow docs trainers bench)
long=(alignment crash_long mutants_long stress_long soak kills fuzz prefix deb boxes_long turns wheel_python
    trainers_long ceph_long compilers)
others=(tidy coverage instructions bare_python)

passed=0
failed=0
skipped=0
failures=()

say() { printf '\n== %s\n' "$*"; }

# count PASSED FAILED SKIPPED
count() {
    passed=$((passed + $1))
    failed=$((failed + $2))
    skipped=$((skipped + $3))
}

# ticking NAME COMMAND...: prints a line every 20 s while the command runs.
ticking() {
    local name=$1 begin=$SECONDS status=0 ticker
    shift
    while sleep 20 >/dev/null 2>&1; do printf '    ... %s: %d s\n' "$name" "$((SECONDS - begin))"; done &
    ticker=$!
    "$@" || status=$?
    { kill "$ticker" && wait "$ticker"; } 2>/dev/null || true
    return "$status"
}

# check NAME COMMAND...: one case; prints the command's output, indented.
check() {
    local name=$1 status=0 begin=$SECONDS
    shift
    printf '%s ...\n' "$name"
    ticking "$name" "$@" </dev/null 2>&1 | sed -u 's/^/    /' || status=$?
    if ((status == 0)); then
        printf '    ok: %s (%d s)\n' "$name" "$((SECONDS - begin))"
        count 1 0 0
    else
        printf '    FAILED (status %s): %s\n' "$status" "$name"
        failures+=("$name")
        count 0 1 0
    fi
    return "$status"
}

skip() {
    printf 'skipped: %s\n' "$*"
    count 0 0 1
}

# The compiler is one of Debian 12's: only its warnings are errors.
strict() { [[ $("$1" -dumpversion) =~ ^(12|14\.0\..*)$ ]]; }
export -f strict

have() { command -v "$1" >/dev/null; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

cmake_build() {
    local preset=$1
    cmake --preset "$preset" >"$logs/configure-$preset.log" 2>&1 || { cat "$logs/configure-$preset.log"; return 1; }
    cmake --build --preset "$preset" -j "$jobs" 2>&1 | tee "$logs/build-$preset.log" |
        awk '/error|warning|FAILED|undefined reference/ { print; fflush(); next }
             /^\[[0-9]+\/[0-9]+\]/ { if (++n % 20 == 1) { print $1, "..."; fflush() } }'
}

# Reads `ctest --verbose`. Prints a line for each test, and the output of failed ones; writes "PASSED FAILED SKIPPED" to
# the file. A test that fails without naming a case (a crash, a timeout) counts as one failed case, one without cases as
# one.
ctest_report() {
    awk -v result="$1" '
        /^    \.\.\. / { print; fflush(); next }
        match($0, /^[0-9]+: /) {
            id = substr($0, 1, RLENGTH - 2); line = substr($0, RLENGTH + 1)
            kept[id] = kept[id] "        " line "\n"
            # cmocka repeats failed and skipped cases in its summary.
            if (line ~ /^\[       OK \]/) { ok[id]++ }
            else if (line ~ /^\[  SKIPPED \] [^0-9]/ && !seen[id, line]++) { skip[id]++ }
            else if (line ~ /^\[  FAILED  \] [^0-9]/ && !seen[id, line]++) { bad[id]++ }
            next
        }
        match($0, /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /) {
            id = $0; sub(/^[^#]*#/, "", id); sub(/:.*/, "", id)
            good = $0 ~ / Passed /
            if (!good && !bad[id]) { bad[id] = 1 }
            if (good && !ok[id] && !bad[id] && !skip[id]) { ok[id] = 1 }
            printf "    %s (%d ok, %d failed, %d skipped)\n", $0, ok[id], bad[id], skip[id]
            if (!good) { printf "%s", kept[id] }
            delete kept[id]
            fflush()
            passed += ok[id]; failed += bad[id]; skipped += skip[id]
        }
        END { print passed + 0, failed + 0, skipped + 0 >result }'
}

run_ctest() {
    local preset=$1 status=0 numbers wrap=()
    shift
    # Sanitizers of older compilers can't cope with the address randomization of newer kernels.
    if [ "$preset" != release ] && have setarch && setarch -R true 2>/dev/null; then
        wrap=(setarch -R)
    fi
    ticking "ctest $preset" "${wrap[@]}" ctest --preset "$preset" --verbose -j "$jobs" "$@" 2>&1 |
        tee "$logs/ctest-$preset.log" | ctest_report "$logs/ctest-$preset.count" || status=$?
    read -r -a numbers <"$logs/ctest-$preset.count"
    # ctest also fails without tests, or when one can't start.
    if ((status != 0 && numbers[1] == 0)); then
        numbers[1]=1
    fi
    count "${numbers[@]}"
    if ((numbers[1] != 0)); then
        failures+=("ctest $preset (build/logs/ctest-$preset.log)")
    fi
    ((status == 0))
}

build_and_test() {
    check "build $1" cmake_build "$1" && run_ctest "$@"
}

setup() {
    local status=0
    check "tools/setup.sh --dev" tools/setup.sh --dev || status=1
    check "tools/setup.sh where something is missing" tests/test_setup.sh || status=1
    check "missing libraries are named" tests/test_libraries.sh || status=1
    return "$status"
}

prefix() {
    if unshare -m true 2>/dev/null; then
        check "tools/setup.sh --prefix, without root and libraries" tests/test_prefix.sh
    else
        skip "tools/setup.sh --prefix: no mounts of its own here (not root, or in a chroot)"
    fi
}

c_sources() { git ls-files -co --exclude-standard -- '*.c' '*.h' | while read -r f; do [ -f "$f" ] && echo "$f"; done; }

check_line_length() {
    local long
    long=$(git ls-files -co --exclude-standard -- '*.c' '*.h' '*.py' '*.sh' '*.cmake' '*CMakeLists.txt' .ci/run |
        while read -r f; do [ -f "$f" ] && awk -v f="$f" 'length($0) > 120 { print f ":" FNR }' "$f"; done)
    [ -z "$long" ] || { echo "lines above 120 columns:"; echo "$long"; return 1; }
}

format() {
    local status=0 scripts sources
    if [[ $(clang-format --version 2>/dev/null) == *"version 14."* ]]; then
        mapfile -t sources < <(c_sources)
        check "clang-format 14" clang-format --dry-run --Werror "${sources[@]}" || status=1
    else
        skip "clang-format 14 is not installed; others lay out some lines in another way"
    fi
    check "no line above 120 columns" check_line_length || status=1
    if have shellcheck; then
        mapfile -t scripts < <(git ls-files -co --exclude-standard -- '*.sh' .ci/run)
        check "shellcheck" shellcheck "${scripts[@]}" || status=1
    else
        skip "shellcheck is not installed"
    fi
    return "$status"
}

# All deliberate bugs, not only the quick ones: a fragment that moved would be noticed late.
fit_mutants() {
    local place
    for place in crash stress; do
        python3 "tests/$place/mutants.py" --list >/dev/null || return 1
    done
}

lint() {
    local status=0
    check "ruff" .venv/bin/ruff check --config python/pyproject.toml --no-cache python tools tests || status=1
    if .venv/bin/python -c 'import torch' 2>/dev/null; then
        check "mypy" bash -c 'cd python && ../.venv/bin/mypy --cache-dir ../build/mypy' || status=1
    else
        skip "mypy: it reads types of PyTorch, which is not in .venv"
    fi
    check "plain words" python3 tests/test_words.py || status=1
    check "deliberate bugs fit the code" bash_function fit_mutants || status=1
    return "$status"
}

release() {
    local status=0
    check "build release" cmake_build release || return 1
    check "rooms, circles, sizes and dialect" python3 tests/test_rooms.py || status=1
    run_ctest release || status=1
    return "$status"
}

# crash_run IMAGES SECONDS [OPTION...]: explores power failures.
crash_run() {
    local images=$1 seconds=$2
    shift 2
    check "build release" cmake_build release || return 1
    check "$images images of power failures, or those of $seconds s" \
        build/release/bin/crash --images "$images" --seconds "$seconds" "$@"
}

crash() { crash_run 5000 45; }
crash_long() { crash_run 300000 86400 --of-a-seed 600; }

# find_bugs [OPTION]: crash and stress must find all mutants.
find_bugs() {
    local status=0
    check "build release" cmake_build release || return 1
    check "deliberate bugs are found by crash" .venv/bin/python tests/crash/mutants.py "$@" || status=1
    check "deliberate bugs are found by stress" .venv/bin/python tests/stress/mutants.py "$@" || status=1
    return "$status"
}

mutants() { find_bugs --quick; }
mutants_long() { find_bugs; }

stress_long() {
    local status=0 place
    check "build release" cmake_build release || return 1
    for place in /tmp /dev/shm; do
        check "ten minutes of everything at once in $place" \
            build/release/bin/stress --seconds 600 --threads 8 --readers 3 --in "$place" || status=1
    done
    return "$status"
}

soak() {
    check "build release" cmake_build release || return 1
    check "${SOAK_HOURS:-2} hours of mixed load" .venv/bin/python tests/stress/soak.py --hours "${SOAK_HOURS:-2}"
}

kills() {
    local status=0 place
    check "build release" cmake_build release || return 1
    for place in /tmp /dev/shm; do
        check "5,000 kills in $place" build/release/bin/kill --kills 5000 --in "$place" || status=1
    done
    check "10,000 cases of damage" build/release/bin/damage --count 10000 || status=1
    check "100 kills of a machine" tests/guest/guest.sh kills 100 || status=1
    return "$status"
}

# run_pytest NAME OPTION...: the tests in PYTEST_TESTS (tests/python) by PYTEST_PYTHON (.venv's). Passed tests keep no
# files, which would be gigabytes.
run_pytest() {
    local name=$1 status=0 numbers python=${PYTEST_PYTHON:-.venv/bin/python} tests=() several=()
    shift
    read -r -a tests <<<"${PYTEST_TESTS:-tests/python}"
    say "pytest ${tests[*]} ($name)"
    "$python" -c 'import xdist' 2>/dev/null && several=(-n "$jobs" --dist worksteal)
    ticking pytest "$python" -m pytest "${tests[@]}" -q -ra -p no:cacheprovider "${several[@]}" \
        -o tmp_path_retention_policy=failed -o tmp_path_retention_count=1 --junitxml "$logs/pytest-$name.xml" \
        --durations 5 "$@" </dev/null 2>&1 | tee "$logs/pytest-$name.log" || status=$?
    read -r -a numbers < <(.venv/bin/python - "$logs/pytest-$name.xml" "$status" <<'PYTHON'
import sys, xml.etree.ElementTree as tree
try:
    suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
    total, bad, skips = (int(suite.get(k)) for k in ("tests", "failures", "skipped"))
    bad += int(suite.get("errors"))
except (OSError, tree.ParseError):
    total, bad, skips = 1, 1, 0
if sys.argv[2] != "0" and not bad:
    total, bad = total + 1, 1
print(total - bad - skips, bad, skips)
PYTHON
    )
    count "${numbers[@]}"
    if ((numbers[1] != 0)); then
        failures+=("pytest (build/logs/pytest-$name.log)")
    fi
    return "$status"
}

python() {
    .venv/bin/python -c 'import torch' 2>/dev/null || say "no PyTorch in .venv: tests that need it are skipped"
    run_pytest ordinary -m "not deep"
}

slow() { run_pytest deep -m deep; }

# test_trainers MOST OPTION...: tests/trainers/test_*.py, each file in at most so many environments of the same name,
# the last ones; test_NAME_PART.py in those of NAME if it has none of its own.
test_trainers() {
    local file name environment python status=0 most=$1
    shift
    for file in tests/trainers/test_*.py; do
        name=$(basename "$file" .py)
        name=${name#test_}
        compgen -G "tests/trainers/requirements/$name*.txt" >/dev/null || name=${name%_*}
        for environment in $(printf '%s\n' "tests/trainers/requirements/$name"*.txt | tail -n "$most"); do
            environment=$(basename "$environment" .txt)
            check "packages of $environment" tests/trainers/environment.sh "$environment" || { status=1; continue; }
            python=$(tests/trainers/environment.sh "$environment")
            PYTEST_PYTHON=$python PYTEST_TESTS=$file run_pytest "$environment" "$@" || status=1
        done
    done
    return "$status"
}

trainers() { test_trainers 1 -m "not deep"; }
trainers_long() { test_trainers 9; }

docs() { check "tools/docs.sh" tools/docs.sh; }

models() { check "tests/models/run.sh" tests/models/run.sh "$top/build/models"; }

# Without the tests that repeat operations with each call refused in turn: they would take a third of the time.
alignment() { build_and_test clang -E '^test_(failures|failures_live|fault|archive_faults)$'; }
asan() { build_and_test asan-ubsan -LE no-asan; }
tsan() { build_and_test tsan; }

# Builds a program against the installed library, by pkg-config and by CMake.
install_and_use() {
    local where
    where=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$where'" RETURN
    cmake --install build/release --prefix "$where/usr" >"$logs/install.log"
    cat >"$where/main.c" <<'C'
#include <lmcstore.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    struct lmcs_pool *pool = NULL;
    struct lmcs_error error;
    if (argc != 2 || lmcs_pool_open(argv[1], LMCS_OPEN_CREATE, NULL, &pool, &error) != LMCS_OK)
        return printf("failed: %s\n", argc == 2 ? error.message : "usage"), 1;
    return lmcs_pool_close(pool, &error) == LMCS_OK ? 0 : 1;
}
C
    cat >"$where/CMakeLists.txt" <<'C'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(lmcstore REQUIRED)
add_executable(user main.c)
target_link_libraries(user lmcstore::lmcstore)
C
    local pkgconfig
    pkgconfig=$(dirname "$(find "$where/usr" -name lmcstore.pc)")
    # shellcheck disable=SC2046
    cc -std=c17 "$where/main.c" -o "$where/by-pkg-config" \
        $(PKG_CONFIG_PATH="$pkgconfig" pkg-config --define-prefix --static --cflags --libs lmcstore)
    LD_LIBRARY_PATH=$(dirname "$pkgconfig") "$where/by-pkg-config" "$where/one.pool"
    cmake -S "$where" -B "$where/build" -DCMAKE_PREFIX_PATH="$where/usr" >"$logs/install-cmake.log"
    cmake --build "$where/build" >>"$logs/install-cmake.log"
    "$where/build/user" "$where/two.pool"
    "$where/usr/bin/lmc-store" info "$where/two.pool" >/dev/null
}

# The codec's README example: linked statically and dynamically, by pkg-config and by CMake.
codec_install_and_use() {
    local where flags
    where=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$where'" RETURN
    local werror=()
    strict cc && werror=(-Werror)
    cmake -S codec -B "$where/lmc" -DLMC_BUILD_TESTS=OFF -DLMC_WERROR="${#werror[@]}" >"$logs/install-codec.log"
    cmake --build "$where/lmc" -j "$jobs" >>"$logs/install-codec.log"
    cmake --install "$where/lmc" --prefix "$where/usr" >>"$logs/install-codec.log"
    awk '/^```c$/ { if (!seen++) { inside = 1; next } } /^```$/ { inside = 0 } inside' codec/README.md >"$where/main.c"
    cat >"$where/CMakeLists.txt" <<'C'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(lmc 0.1 REQUIRED)
foreach(library lmc lmc_shared)
  add_executable(with_${library} main.c)
  target_link_libraries(with_${library} lmc::${library})
endforeach()
C
    PKG_CONFIG_PATH=$(dirname "$(find "$where/usr" -name lmc.pc)")
    export PKG_CONFIG_PATH
    read -r -a flags < <(pkg-config --cflags --libs lmc)
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir lmc)
    export LD_LIBRARY_PATH
    cc -std=c11 -Wall -Wextra "${werror[@]}" "$where/main.c" -o "$where/shared" "${flags[@]}"
    # No pipe: grep would close it early and break ldd.
    [[ $(ldd "$where/shared") == *'liblmc.so.0 => /'* ]] || { echo "not linked with liblmc.so.0"; return 1; }
    cc -std=c11 "$where/main.c" -o "$where/static" -I"$where/usr/include" "$LD_LIBRARY_PATH/liblmc.a"
    cmake -S "$where" -B "$where/build" -DCMAKE_PREFIX_PATH="$where/usr" >>"$logs/install-codec.log"
    cmake --build "$where/build" >>"$logs/install-codec.log"
    for program in shared static build/with_lmc build/with_lmc_shared; do
        "$where/$program" | tee "$where/said"
        grep -q 'bytes in .*, back without loss' "$where/said"
    done
    echo '#include <lmc.h>' | c++ -std=c++11 -Wall -Wextra "${werror[@]}" -I"$where/usr/include" -fsyntax-only -x c++ -
}

# one_wheel FOLDER: that it has one wheel, of the right name.
one_wheel() {
    [[ $(ls "$1") == lmcstore-*-cp311-abi3-linux_*.whl ]] || { ls "$1"; echo "not one abi3 wheel"; return 1; }
}
export -f one_wheel

# plain_wheel FOLDER: the one wheel that pip builds from the checkout.
plain_wheel() {
    .venv/bin/python -m pip wheel -q --disable-pip-version-check --no-deps -w "$1" ./python \
        >"$logs/wheel.log" 2>&1 || { cat "$logs/wheel.log"; return 1; }
    one_wheel "$1"
}
export -f plain_wheel

# numpy_wheel FOLDER PYTHON
numpy_wheel() {
    "$2" -m pip download -q --disable-pip-version-check --only-binary :all: --no-deps -d "$1" numpy
}
export -f numpy_wheel

# The sdist, a wheel built from it alone, and that wheel in a virtual environment of its own.
wheel_and_use() {
    local where
    where=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$where'" RETURN
    mkdir "$where/sdist" "$where/wheel" "$where/numpy"
    env -C python PYTHONPATH=backend "$top/.venv/bin/python" -c \
        'import lmcstore_backend, sys; lmcstore_backend.build_sdist(sys.argv[1])' "$where/sdist" >"$logs/sdist.log"
    env -C "$where" "$top/.venv/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps -w wheel \
        "$where"/sdist/*.tar.gz >"$logs/wheel.log" 2>&1 || { cat "$logs/wheel.log"; return 1; }
    one_wheel "$where/wheel"
    numpy_wheel "$where/numpy" .venv/bin/python
    tests/install/use.sh "$where"/wheel/*.whl "$top/.venv/bin/python" "$where/use" --numpy "$where/numpy"
    "$where/use/venv/bin/python" -m pip install -q --disable-pip-version-check --no-index \
        --target "$where/use/folder/target" "$where"/wheel/*.whl
    env -C "$where" PYTHONPATH= "$where/use/venv/bin/python" "$top/tests/install/contents.py" "$where/use" "$top"
}

# make_bare FOLDER WHEEL: an environment with the wheel, NumPy and pytest.
make_bare() {
    rm -rf "$1"
    .venv/bin/python -m venv "$1"
    "$1/bin/python" -m pip install -q --disable-pip-version-check numpy pytest "$2"
}

# Only NumPy and pytest: tests that need more are skipped.
bare_python() {
    local where=build/bare
    check "build release" cmake_build release || return 1
    rm -rf "$where" && mkdir -p "$where"
    check "pip wheel ./python" plain_wheel "$where/wheel" || return 1
    check "NumPy, pytest and the wheel" make_bare "$where/venv" "$(echo "$where"/wheel/*.whl)" || return 1
    PYTEST_PYTHON=$where/venv/bin/python run_pytest bare -m "not deep"
}

# portable_wheel [ARCHITECTURE]: the newest wheel for every Linux with glibc.
portable_wheel() {
    find build/wheel/out -name "*-cp311-abi3-manylinux_*_${1:-x86_64}.whl" -printf '%T@ %p\n' | sort -n |
        sed -n '$s/.* //p'
}

# run_or_skip NAME CASES COMMAND...: a script that says why it skips itself.
run_or_skip() {
    local name=$1 cases=$2 status=0
    shift 2
    ticking "$name" "$@" </dev/null 2>&1 | tee "$logs/$name.log" | sed -u 's/^/    /' || status=$?
    if ((status == 77)); then
        skip "$name: $(sed -n 's/^skipped: //p' "$logs/$name.log")"
    elif ((status == 0)); then
        count "$cases" 0 0
    else
        count 0 1 0
        failures+=("$name (build/logs/$name.log)")
    fi
}

# use_boxes WHEEL BOX...
use_boxes() { run_or_skip boxes $(($# - 1)) tests/install/boxes.sh "$@"; }

boxes() {
    check "tools/wheel.sh" tools/wheel.sh || return 1
    use_boxes "$(portable_wheel)" bookworm
}

boxes_long() {
    check "tools/wheel.sh" tools/wheel.sh || return 1
    use_boxes "$(portable_wheel)" bullseye bookworm trixie sid free-threaded
    check "tools/wheel.sh --arch aarch64" tools/wheel.sh --arch aarch64 || return 1
    use_boxes "$(portable_wheel aarch64)" arm64
}

ceph() { run_or_skip ceph 6 tests/remote/ceph.sh trial; }

ceph_long() { LMC_STORE_TRIAL_STEPS=5000 run_or_skip ceph_long 6 tests/remote/ceph.sh trial; }

compilers() { run_or_skip compilers 1 tests/install/compilers.sh; }

guest_turns() { tests/guest/guest.sh turns "$1" || [ $? = 77 ]; } # 77: it says why it was skipped

# The wheel for every Linux and the system's build, also on emulated persistent memory.
turns() {
    local where=$top/build/turns status=0
    check "build release" cmake_build release || return 1
    check "tools/wheel.sh" tools/wheel.sh || return 1
    rm -rf "$where" && mkdir -p "$where"
    check "pip wheel ./python" plain_wheel "$where/wheel" || return 1
    check "NumPy, pytest and our wheel" make_bare "$where/ours" "$(echo "$where"/wheel/*.whl)" || return 1
    check "NumPy, pytest and the portable wheel" make_bare "$where/portable" "$(portable_wheel)" || return 1
    check "two builds write to a pool in turn" .venv/bin/python tests/install/turns.py "$where" \
        "$where/ours/bin/python" "$where/portable/bin/python" || status=1
    check "two builds on persistent memory in turn" guest_turns "$where/portable/bin/lmc-store" || status=1
    return "$status"
}

# The Python tests against the wheel for every Linux, with PyTorch and without.
wheel_python() {
    local where=$top/build/wheel_python status=0
    check "tools/wheel.sh" tools/wheel.sh || return 1
    rm -rf "$where" && mkdir -p "$where"
    check "pip install --target" .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps \
        --target "$where/package" "$(portable_wheel)" || return 1
    PYTHONPATH=$where/package LMC_STORE_BIN=$where/package/bin/lmc-store run_pytest wheel -m "not deep" || status=1
    check "NumPy, pytest and the wheel" make_bare "$where/venv" "$(portable_wheel)" || return 1
    PYTEST_PYTHON=$where/venv/bin/python LMC_STORE_BIN=$where/venv/bin/lmc-store run_pytest wheel-bare \
        -m "not deep" || status=1
    return "$status"
}

install() {
    check "the sdist, its wheel, and the wheel in a virtual environment of its own" bash_function wheel_and_use
    check "cmake --install, then a program built with it" bash_function install_and_use
    check "the codec by itself, and its README's example" bash_function codec_install_and_use
    check "tools/release.sh in a temporary repository" tests/test_release.sh
}

arm_library() {
    local here=$top/build/arm
    mkdir -p "$here/include"
    cp /usr/include/xxhash.h "$here/include"
    cmake -S codec -B "$here/lib" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
        -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_C_FLAGS="-I$here/include" -DLMC_BUILD_TESTS=OFF \
        -DLMC_WERROR="$(strict aarch64-linux-gnu-gcc && echo ON || echo OFF)"
    cmake --build "$here/lib"
}
export -f arm_library

# Under emulation the codec must make the frames of tests/data/codec, pass all corpora, and stay within its buffers.
arm_codec() {
    local here=$top/build/arm cc=aarch64-linux-gnu-gcc kernels what
    arm_library
    $cc -static -Icodec tests/data/codec/*.c "$here/lib/liblmc.a" -o "$here/make_corpus"
    for what in frame kernels each link; do
        $cc -static -Icodec "tests/fuzz/fuzz_$what.c" tests/fuzz/replay.c "$here/lib/liblmc.a" -o "$here/$what"
    done
    qemu-aarch64 "$here/kernels" tests/fuzz/corpus/kernels/*
    qemu-aarch64 "$here/each" tests/fuzz/corpus/each/*
    qemu-aarch64 "$here/link" tests/fuzz/corpus/link/*
    for kernels in neon portable; do
        rm -rf "$here/data"
        cp -r tests/data/codec "$here/data"
        LMC_KERNELS=$kernels qemu-aarch64 "$here/make_corpus" "$here/data"
        diff -r tests/data/codec "$here/data"
        LMC_KERNELS=$kernels qemu-aarch64 "$here/frame" tests/fuzz/corpus/frame/*
    done
}

# Instructions for 64 elements: those of each translated block times its executions.
arm_instructions() {
    local here=$top/build/arm kernel elements table mode
    local -A took
    arm_library >"$logs/instructions.log"
    aarch64-linux-gnu-gcc -static -Icodec tests/count_instructions.c "$here/lib/liblmc.a" -o "$here/count_instructions"
    printf '%-20s %10s %10s\n' "for 64 elements" portable neon
    qemu-aarch64 "$here/count_instructions" | while read -r kernel elements; do
        for table in portable neon; do
            for mode in run skip; do
                took[$mode]=$(LMC_KERNELS=$table qemu-aarch64 -d in_asm,exec,nochain -D /dev/stdout \
                    "$here/count_instructions" "$kernel" "$mode" </dev/null | awk '
                        /^IN:/ { at = "" }
                        /^0x/ { if (at == "") { at = $1; gsub(/^0x0*|:/, "", at); long[at] = 0 } long[at]++ }
                        /^Trace/ { split($0, part, "/"); sub(/^0*/, "", part[2]); all += long[part[2]] }
                        END { print all }')
            done
            took[$table]=$(((took[run] - took[skip]) * 64 / elements))
        done
        printf '%-20s %10d %10d\n' "$kernel" "${took[portable]}" "${took[neon]}"
    done
}

have_arm() {
    local wanted=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user) log=$logs/arm-install.log
    if [ "$(uname -m)" != x86_64 ]; then
        skip "the codec under emulation of arm64: this machine is $(uname -m)"
        return 1
    fi
    if ! have aarch64-linux-gnu-gcc || ! have qemu-aarch64; then
        printf 'installing %s ...\n' "${wanted[*]}"
        if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${wanted[@]}" \
            >"$log" 2>&1; then
            skip "the codec under emulation of arm64: could not install ${wanted[*]} ($log)"
            return 1
        fi
    fi
}

arm() {
    have_arm || return 0
    check "the codec under emulation of arm64" bash_function arm_codec
}

instructions() {
    have_arm || return 0
    check "instructions of the kernels on arm64" bash_function arm_instructions
}

abi() {
    local wanted=(abigail-tools) log=$logs/abi-install.log
    if [ "$(uname -m)" != x86_64 ]; then
        skip "the interfaces of the libraries: tests/data/abi has those of x86-64"
        return
    fi
    if ! have abidiff &&
        ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y "${wanted[@]}" >"$log" 2>&1; then
        skip "the interfaces of the libraries: could not install ${wanted[*]} ($log)"
        return
    fi
    check "the interfaces of the libraries only grow" tests/abi.sh
}

deb() {
    local wanted=(build-essential debootstrap lintian) log=$logs/deb-install.log
    if [ "$(id -u)" != 0 ] || ! have dpkg; then
        skip "the Debian packages: their test needs Debian and root"
    elif ! have debootstrap || ! have lintian &&
        ! env DEBIAN_FRONTEND=noninteractive apt-get install -y "${wanted[@]}" >"$log" 2>&1; then
        skip "the Debian packages: could not install ${wanted[*]} ($log)"
    else
        check "the Debian packages in a bare system" tests/install/deb.sh
    fi
}

guest() {
    local status=0 numbers
    check "build release" cmake_build release || return 1
    GUEST_SECONDS=${GUEST_SECONDS:-900} tests/guest/guest.sh test </dev/null 2>&1 | tee "$logs/guest.log" |
        sed -u 's/^/    /' || status=$?
    if ((status == 77)); then
        skip "the guest: $(sed -n 's/^skipped: //p' "$logs/guest.log")"
        return
    fi
    read -r -a numbers <build/guest/test.count || numbers=(0 1 0)
    ((status == 0 || numbers[1] > 0)) || numbers[1]=1
    count "${numbers[@]}"
    ((numbers[1] == 0)) || failures+=("the guest (build/logs/guest.log)")
    return "$status"
}

quickstart() {
    check "tools/quickstart.sh --quick" tools/quickstart.sh --no-setup --quick --dir "$top/build/quickstart"
}

bench() {
    local status=0
    check "tools/bench.sh store --smoke" tools/bench.sh store --smoke || status=1
    check "tools/bench.sh codec --smoke" tools/bench.sh codec --smoke || status=1
    check "tools/bench.sh links --smoke" tools/bench.sh links --smoke || status=1
    check "tools/bench.sh train --smoke" tools/bench.sh train --smoke || status=1
    check "tools/bench.sh trainers --smoke" tools/bench.sh trainers --smoke || status=1
    check "tools/bench.sh remote --smoke" tools/bench.sh remote --smoke || status=1
    check "tools/bench.sh history --smoke" tools/bench.sh history --smoke || status=1
    check "tools/bench.sh python --smoke" tools/bench.sh python --smoke || status=1
    check "tools/bench.sh builds . --smoke" tools/bench.sh builds . --smoke || status=1
    return "$status"
}

# fuzz_one TARGET NAME: fuzzes for FUZZ_SECONDS; prints a line every 20 s, then the number of inputs.
fuzz_one() {
    local target=$1 what=$2 log=$logs/fuzz-$2.log status=0
    mkdir -p "build/fuzz/corpus/$what" "tests/fuzz/corpus/$what"
    PMEM_IS_PMEM_FORCE=1 ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
        setarch -R "$target" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=60 -print_final_stats=1 -len_control=0 \
        -artifact_prefix="$top/build/fuzz/$what-" "$top/build/fuzz/corpus/$what" "$top/tests/fuzz/corpus/$what" 2>&1 |
        tee "$log" | awk -v every=20 '
            BEGIN { next_line = systime() + every }
            /^#[0-9]/ && systime() >= next_line { print $1, $2, $3, $4; fflush(); next_line = systime() + every }
            /^stat::(number_of_executed|average_exec)/ { sub(/^stat::/, ""); print; fflush() }
            /ERROR:|SUMMARY:|not so:|Test unit written/ { print; fflush() }' || status=$?
    grep -q '^stat::number_of_executed' "$log" || { echo "it ended before its time"; status=1; }
    return "$status"
}

fuzz() {
    local status=0 target what
    check "build fuzz" cmake_build fuzz || return 1
    for target in build/fuzz/bin/fuzz_*; do
        what=$(basename "$target" | sed 's/^fuzz_//')
        [[ " ${FUZZ_TARGETS:-$what} " == *" $what "* ]] || continue
        check "fuzz $what for ${FUZZ_SECONDS:-60} s" fuzz_one "$target" "$what" || status=1
    done
    return "$status"
}

tidy() {
    check "build release" cmake_build release
    # Only files that this processor compiles: not the kernels of others.
    mapfile -t sources < <(grep -oE '"file": "[^"]*/(codec|store|tools)/[^"]*\.c"' build/release/compile_commands.json |
        cut -d'"' -f4 | sort -u)
    check "clang-tidy" clang-tidy -p build/release --quiet "${sources[@]}"
}

# By the tests in C (injected failures, corpora and short drivers among them), and the command's in Python.
coverage() {
    # A kernel's header is compiled once for each instruction set; merge adds them.
    local status=0 gcovr=(.venv/bin/python -m gcovr --root . --filter codec/ --filter store/ build/coverage
        --merge-mode-functions=merge-use-line-min)
    find build/coverage -name '*.gcda' -delete 2>/dev/null || true
    build_and_test coverage || status=1
    LMC_STORE_BIN=$top/build/coverage/bin/lmc-store check "the command's tests" .venv/bin/python -m pytest -q \
        -p no:cacheprovider tests/python/test_cli.py tests/python/test_cli_compress.py \
        tests/python/test_cli_hostile.py ||
        status=1
    .venv/bin/python -m pip install -q gcovr
    "${gcovr[@]}" --json build/coverage/coverage.json --print-summary
    "${gcovr[@]}" --txt-metric branch
    .venv/bin/python tests/coverage.py build/coverage/coverage.json
    return "$status"
}

# bash_function NAME: runs it in another shell, which ends at the first error and prints the command.
bash_function() {
    export top logs jobs
    export -f "${1?}"
    bash -Eeuo pipefail -c 'trap '\''echo "status $?: $BASH_COMMAND" >&2'\'' ERR'"; $1"
}

mkdir -p "$logs"
wanted=()
for word in "${@:-ordinary}"; do
    case $word in
        ordinary) wanted+=("${ordinary[@]}") ;;
        deep) wanted+=("${deep[@]}") ;;
        long) wanted+=("${long[@]}") ;;
        *)
            if [[ " ${ordinary[*]} ${deep[*]} ${long[*]} ${others[*]} " != *" $word "* ]]; then
                sed -n '4,18s/^# \{0,1\}//p' "$0" >&2
                exit 2
            fi
            wanted+=("$word")
            ;;
    esac
done
# On Ubuntu 22.04 tools/setup.sh installs CMake into .venv.
PATH=$PATH:$top/.venv/bin
start=$SECONDS
for job in "${wanted[@]}"; do
    begin=$SECONDS
    say "job $job"
    "$job" || true
    printf -- '-- job %s: %d s\n' "$job" "$((SECONDS - begin))"
done

echo
if ((${#failures[@]})); then
    printf 'failed: %s\n' "${failures[@]}"
fi
printf 'all jobs: %d s\n' "$((SECONDS - start))"
if ((passed + failed == 0)); then
    echo "no test was run" >&2
    exit 1
fi
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
