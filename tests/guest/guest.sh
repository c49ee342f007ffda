#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A machine with persistent memory, by emulation: see README.md beside this file.
#
#   tests/guest/guest.sh test            one boot with the tests of the deep run
#   tests/guest/guest.sh core            one boot, and in it all tests of pools: an hour or less
#   tests/guest/guest.sh kills [N]       a training loop, whose machine is killed N times (100)
#   tests/guest/guest.sh turns COMMAND   another build's lmc-store and ours write to one pool in turn
#   tests/guest/guest.sh job FILE        one boot that runs a shell script
#
# apt-get fetches missing kernel and packages. Everything is made in build/guest, and can be
# removed at any time. Exit status 77: it was skipped, and the last line says why.
set -euo pipefail

cd "$(dirname "$0")/../.."
here=$PWD/tests/guest
work=$PWD/build/guest
bin=$PWD/build/release/bin
boot_seconds=${GUEST_SECONDS:-300} # after which a guest is given up
other=                             # another build of lmc-store, for turns

skip() {
    echo "skipped: $*"
    exit 77
}

have() { command -v "$1" >/dev/null; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# ---- Parts --------------------------------------------------------------------------------------------------------

# In load order; a kernel may have some built in.
modules=(libnvdimm nd_btt nd_pmem nfit device_dax dax_pmem qemu_fw_cfg
    crc16 crc32c_generic libcrc32c mbcache jbd2 ext4 mce-inject)
programs=(test_archive test_capture test_compact test_concurrency test_layout test_pool test_snapshot
    test_topology test_tree test_verify test_view guest_devdax guest_medium guest_train lmc-store)

install_packages() {
    local wanted=()
    have qemu-system-x86_64 || wanted+=(qemu-system-x86)
    have ndctl || wanted+=(ndctl)
    have cpio || wanted+=(cpio)
    have pmempool || wanted+=(pmdk-tools)
    have mkfs.ext4 || [ -x /sbin/mkfs.ext4 ] || wanted+=(e2fsprogs)
    ((${#wanted[@]})) || return 0
    have apt-get || skip "there is no apt-get to install ${wanted[*]} with"
    echo "installing ${wanted[*]} ..."
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${wanted[@]}" \
        >"$work/apt.log" 2>&1 || skip "could not install ${wanted[*]} (build/guest/apt.log)"
}

# fetch TO PATTERNS NAME...: downloads the first available package, and unpacks the files whose paths match a pattern.
fetch() {
    local to=$1 patterns name
    read -r -a patterns <<<"$2"
    shift 2
    rm -rf "$work/fetch" "$to"
    mkdir -p "$work/fetch" "$to"
    for name in "$@"; do
        (cd "$work/fetch" && apt-get download "$name" >>"$work/apt.log" 2>&1) || continue
        # tar reports patterns without a match, such as built-in modules.
        dpkg-deb --fsys-tarfile "$work/fetch/"*.deb | tar -x -C "$to" --wildcards "${patterns[@]}" 2>>"$work/apt.log" ||
            true
        rm -rf "$work/fetch"
        return
    done
    return 1
}

# The kernel for clouds does not support failed memory.
fetch_kernel() {
    local name
    [ -e "$work/kernel/.complete" ] && return
    have apt-get || skip "there is no apt-get to fetch a kernel with"
    echo "fetching a kernel ..."
    name=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ { print $2; exit }')
    [ -n "$name" ] || skip "apt-get knows no package linux-image-amd64 (is this Debian, and was apt-get update run?)"
    fetch "$work/kernel" "./boot/vmlinuz-* $(printf '*/%s.ko* ' "${modules[@]}")" "$name" || true
    compgen -G "$work/kernel/boot/vmlinuz-*" >/dev/null || skip "could not fetch $name (build/guest/apt.log)"
    fetch "$work/busybox" "./bin/busybox ./usr/bin/busybox" busybox-static || true
    [ -n "$(busybox)" ] || skip "could not fetch busybox-static (build/guest/apt.log)"
    touch "$work/kernel/.complete"
}

busybox() { find "$work/busybox" -name busybox -type f | head -n 1; }

copy_programs() {
    local tree=$1 program library
    shift
    for program in "$@"; do
        cp -L "$program" "$tree/bin/"
        ldd "$program" | awk '/=> \// { print $3 } $1 ~ /^\/.*ld-linux/ { print $1 }'
    done | sort -u | while read -r library; do
        mkdir -p "$tree/lib"
        [ -e "$tree/lib/${library##*/}" ] || cp -L "$library" "$tree/lib/"
    done
}

pack() { (cd "$1" && find . -print0 | cpio -0 -o -H newc -R 0:0 --quiet) >"$2"; }

# Independent of the project: kernel modules, busybox, tools, libraries.
make_base() {
    local tree=$work/base module file
    [ -e "$work/base.cpio" ] && [ "$work/base.cpio" -nt "$here/init" ] && [ "$work/base.cpio" -nt "$here/guest.sh" ] &&
        return
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,lib,lib64,modules,proc,sys,dev,tmp,etc,root}
    cp "$(busybox)" "$tree/bin/"
    for module in "${modules[@]}"; do
        file=$(find "$work/kernel" -name "$module.ko*" | head -n 1)
        case $file in
            '') continue ;;
            *.xz) xz -dc "$file" >"$tree/modules/$module.ko" ;;
            *.zst) zstd -qdc "$file" >"$tree/modules/$module.ko" ;;
            *) cp "$file" "$tree/modules/" ;;
        esac
        echo "$module" >>"$tree/modules/order"
    done
    copy_programs "$tree" "$(command -v ndctl)" "$(command -v pmempool)" "$(PATH=$PATH:/sbin command -v mkfs.ext4)"
    # Opened by the C library and libnuma, or listed by ldd.
    copy_programs "$tree" "$bin/lmc-store" "$bin/test_pool" && rm "$tree/bin/lmc-store" "$tree/bin/test_pool"
    mv "$tree/lib/"ld-linux* "$tree/lib64/"
    cp "$here/init" "$tree/init"
    chmod 755 "$tree/init"
    strip --strip-debug "$tree/modules/"*.ko 2>/dev/null || true
    pack "$tree" "$work/base.cpio"
}

make_project() {
    local tree=$work/project program
    rm -rf "$tree"
    mkdir -p "$tree/job"
    for program in "${programs[@]}"; do
        [ -x "$bin/$program" ] || { echo "build/release/bin/$program is not built"; exit 1; }
        strip --strip-debug -o "$tree/job/$program" "$bin/$program"
    done
    if [ -n "$other" ]; then
        # The base has libraries of ours only.
        mkdir -p "$tree/bin"
        copy_programs "$tree" "$other"
        rm -f "$tree/lib/"ld-linux*
        mv "$tree/bin/${other##*/}" "$tree/job/other"
    fi
    cat "$work/base.cpio" >"$work/initrd.new"
    pack "$tree" "$work/project.cpio"
    cat "$work/project.cpio" >>"$work/initrd.new"
    mv "$work/initrd.new" "$work/initrd"
}

# ---- The machine ---------------------------------------------------------------------------------------------------

# qemu JOB MEMORY ACKS [ARGUMENT...]: prints the guest's output; ACKS gets acknowledgements. Two NUMA nodes with a
# processor each; node 1 has the persistent memory.
qemu() {
    local job=$1 memory=$2 acks=$3
    shift 3
    exec qemu-system-x86_64 \
        -machine q35,nvdimm=on,nvdimm-persistence=mem-ctrl,smm=off -accel tcg,thread=multi -cpu max \
        -smp 2,sockets=2 -m 1024M,slots=2,maxmem=8G \
        -object memory-backend-ram,id=m0,size=512M -object memory-backend-ram,id=m1,size=512M \
        -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1 -numa dist,src=0,dst=1,val=21 \
        -object "memory-backend-file,id=pmem,share=on,mem-path=$memory,size=1536M,align=2M" \
        -device nvdimm,id=nv0,memdev=pmem,label-size=128K,node=1 \
        -kernel "$(echo "$work"/kernel/boot/vmlinuz-*)" -initrd "$work/initrd" \
        -append "console=ttyS0 panic=-1 quiet mitigations=off nokaslr no_timer_check random.trust_cpu=on" \
        -fw_cfg "name=opt/job,file=$job" "$@" \
        -display none -nodefaults -no-reboot -serial stdio -serial "file:$acks" </dev/null
}

# Made once, by a guest.
make_memory() {
    [ -e "$work/memory.image" ] && [ "$work/memory.image" -nt "$here/init" ] && return
    echo "formatting the persistent memory ..."
    rm -f "$work/memory.new"
    truncate -s 1536M "$work/memory.new"
    echo "exit 0" >"$work/format.sh"
    (qemu "$work/format.sh" "$work/memory.new" "$work/format.acks" -fw_cfg name=opt/format,string=yes) \
        >"$work/format.log" 2>&1 &
    if ! await_guest $! "$work/format.log" >/dev/null; then
        cat "$work/format.log"
        return 1
    fi
    mv "$work/memory.new" "$work/memory.image"
}

# await_guest PID LOG: succeeds if the guest's job did.
await_guest() {
    local pid=$1 log=$2 begin=$SECONDS
    while kill -0 "$pid" 2>/dev/null; do
        if ((SECONDS - begin > boot_seconds)); then
            kill -9 "$pid"
            echo "guest: given up after $boot_seconds seconds"
        fi
        sleep 0.1
    done
    wait "$pid" || true
    grep -q '^guest: status 0' "$log"
}

prepare() {
    [ "$(uname -m)" = x86_64 ] || skip "the guest is for x86-64, and this is $(uname -m)"
    mkdir -p "$work"
    install_packages
    fetch_kernel
    make_base
    make_project
    make_memory
}

fresh_memory() { cp --sparse=always "$work/memory.image" "$1"; }

# run_job FILE: one boot on fresh memory.
run_job() {
    local memory=$work/run.memory log=$work/run.log status=0
    fresh_memory "$memory"
    : >"$log"
    (qemu "$1" "$memory" "$work/run.acks") > >(tr -d '\r' | tee "$log") 2>&1 &
    await_guest $! "$log" || status=1
    rm -f "$memory"
    return "$status"
}

# ---- The ordinary run ----------------------------------------------------------------------------------------------

# run_tests NAME SCRIPT: a job that runs test programs with `run`. Counts cases for tests/run.sh: "PASSED FAILED
# SKIPPED"; a failed boot without a failed case counts as one.
run_tests() {
    local job=$work/$1.sh status=0
    {
        cat <<'JOB'
status=0
export TMPDIR=/fsdax
run() {
    echo "== $*"
    begin=$(cut -d . -f 1 /proc/uptime)
    "$@" 2>&1 || status=1
    echo "-- $(($(cut -d . -f 1 /proc/uptime) - begin)) s"
}
only() { export LMCS_TEST_ONLY="$1"; }
JOB
        # shellcheck disable=SC2016
        printf '%s\nexit $status\n' "$2"
    } >"$job"
    run_job "$job" || status=1
    awk -v status=$status '
        /^\[       OK \]/ { ok++ }
        /^\[  SKIPPED \] [^0-9]/ && !seen[$0]++ { skip++ }
        /^\[  FAILED  \] [^0-9]/ && !seen[$0]++ { bad++ }
        END { print ok + 0, bad + (status && !bad), skip + 0 }' "$work/run.log" >"$work/$1.count"
    return "$status"
}

# Some general tests, as time permits; then the guest's own.
ordinary() {
    # shellcheck disable=SC2016
    run_tests test '
only "(disk)"
run /job/test_layout
only limit_is_kept
run /job/test_pool
only "random_changes_against_a_model (disk)"
run /job/test_snapshot
unset LMCS_TEST_ONLY
run /job/guest_medium /fsdax /paged /dax /dev/pmem0
run /job/guest_devdax /dax'
}

core() {
    boot_seconds=${GUEST_SECONDS:-3600}
    # shellcheck disable=SC2016
    run_tests core '
only "(disk)"
for test in test_layout test_topology test_tree test_pool test_snapshot test_capture test_compact test_verify \
    test_archive test_view test_concurrency; do
    run /job/$test
done
unset LMCS_TEST_ONLY
run /job/guest_medium /fsdax /paged /dax /dev/pmem0
run /job/guest_devdax /dax long'
}

# ---- Kills ---------------------------------------------------------------------------------------------------------

# wait_for PID FILE TEXT: fails when the guest ends first.
wait_for() {
    local begin=$SECONDS
    until grep -q "$3" "$2" 2>/dev/null; do
        kill -0 "$1" 2>/dev/null || return 1
        ((SECONDS - begin <= boot_seconds)) || return 1
        sleep 0.05
    done
}

# wait_for_acks PID FILE N: until N snapshots were acknowledged since the check.
wait_for_acks() {
    local begin=$SECONDS
    until (($(awk '/^checked/ { n = 0 } /^ack / { n++ } END { print n + 0 }' "$2") >= $3)); do
        kill -0 "$1" 2>/dev/null || return 1
        ((SECONDS - begin <= boot_seconds)) || return 1
        sleep 0.02
    done
}

# random LEAST MOST: seconds
random() { awk -v n="$RANDOM" -v least="$1" -v most="$2" 'BEGIN { print least + (most - least) * n / 32768 }'; }

acknowledged() { grep -c '^ack ' "$1" || true; }

# Checks all earlier acknowledgements, continues, and is killed at random, mostly in training, else in the check.
kill_once() {
    local memory=$1 all=$2 log=$work/kills.log now=$work/kills.now qemu_pid when=checked steps=$((RANDOM % 12))
    cp "$all" "$work/kills.before"
    : >"$log"
    rm -f "$now"
    (qemu "$work/kills.sh" "$memory" "$now" -fw_cfg "name=opt/acks,file=$work/kills.before") >"$log" 2>&1 &
    qemu_pid=$!
    ((RANDOM % 5)) || { when=begun; steps=0; }
    # The check acknowledges found snapshots again, before "checked".
    if ! wait_for $qemu_pid "$now" "^$when" || ! wait_for_acks $qemu_pid "$now" $steps; then
        kill -9 $qemu_pid 2>/dev/null
        wait $qemu_pid 2>/dev/null
        tail -n 20 "$log" | tr -d '\r'
        return 1
    fi
    sleep "$(random 0 0.5)"
    # Hides the shell's report.
    { kill -9 $qemu_pid && wait $qemu_pid; } 2>/dev/null
    cat "$now" >>"$all"
    ! grep -q '^guest: status' "$log" || { tail -n 20 "$log" | tr -d '\r'; return 1; }
}

kills() {
    local count=$1 memory=$work/kills.memory all=$work/kills.acks i begin=$SECONDS
    cat >"$work/kills.sh" <<'JOB'
exec /job/guest_train /sys/firmware/qemu_fw_cfg/by_name/opt/acks/raw /dev/ttyS1 fsdax=/fsdax/run.pool \
    paged=/paged/run.pool devdax=/dax
JOB
    fresh_memory "$memory"
    # The channel accepts no empty file.
    echo "begun" >"$all"
    for ((i = 1; i <= count; i++)); do
        if ! kill_once "$memory" "$all"; then
            echo "FAILED at kill $i; what is left: $memory, $all, $work/kills.log"
            return 1
        fi
        if ((i % 10 == 0 || i == count)); then
            printf '%d kills, %d s: %d acknowledged snapshots, latest %s; all of them were there\n' "$i" \
                $((SECONDS - begin)) "$(acknowledged "$all")" "$(latest "$all")"
        fi
    done
    rm -f "$memory"
}

# ---- Turns ---------------------------------------------------------------------------------------------------------

# Two builds on each medium, a wheel's and ours for instance. The other one, which loads libndctl, must refuse to write
# without it: it could not see bad blocks.
turns() {
    cat >"$work/turns.sh" <<'JOB'
set -e
bytes=100000
header='{"a":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}}'
for pool in /fsdax/turns.pool /paged/turns.pool; do
    for turn in 1 2 3 4 5 6; do
        it=/job/lmc-store
        [ $((turn % 2)) = 1 ] || it=/job/other
        [ $turn -gt 1 ] || $it create $pool
        printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" >/tmp/$turn
        head -c $bytes /dev/urandom >>/tmp/$turn
        $it import $pool run /tmp/$turn >/tmp/said
        $it verify $pool >/tmp/said
        for earlier in $(seq $turn); do
            rm -f /tmp/back
            $it export $pool run@$earlier -o /tmp/back >/tmp/said
            tail -c $bytes /tmp/back >/tmp/left
            tail -c $bytes /tmp/$earlier >/tmp/right
            cmp /tmp/left /tmp/right
        done
    done
    $it compact $pool
    /job/lmc-store verify $pool
    rm -f /tmp/[0-9]
    echo "turns: 6 of two builds on $pool"
done
rm -f /lib/libndctl*
if /job/other import /fsdax/turns.pool run /tmp/back 2>/tmp/said; then
    echo "turns: without libndctl it is not refused"
    exit 1
fi
cat /tmp/said
grep -q 'libndctl, which knows its bad blocks' /tmp/said
JOB
    run_job "$work/turns.sh"
}

latest() { awk '/^ack / { n[$2] = $3 } END { for (k in n) printf "%s %d  ", k, n[k] }' "$1"; }

case ${1:-} in
    test)
        prepare
        ordinary
        ;;
    core)
        prepare
        core
        ;;
    kills)
        prepare
        kills "${2:-100}"
        ;;
    turns)
        other=${2:?turns needs the lmc-store of another build}
        prepare
        turns
        ;;
    job)
        prepare
        run_job "$2"
        ;;
    *)
        sed -n '4,15s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
esac
