#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Ceph's object gateway on 127.0.0.1, for tests: a monitor, three OSDs in memory, two copies of each object.
#
#   tests/remote/ceph.sh trial             starts it, runs trial.py, stops it
#   tests/remote/ceph.sh start FOLDER      the last line is its URL; access key k, secret key s, a bucket "runs"
#   tests/remote/ceph.sh stop FOLDER
#   tests/remote/ceph.sh stop-osd FOLDER N, start-osd FOLDER N     N: 0 to 2; a stopped one keeps its objects
#
# Installs Debian's packages where they are missing. Exit status 77: it was skipped, and the last line says why.
set -euo pipefail

top=$(cd "$(dirname "$0")/../.." && pwd)
osds=3

skip() {
    echo "skipped: $*"
    exit 77
}

want_packages() {
    local missing=() program packages=(ceph-mon ceph-osd radosgw ceph-common curl)
    for program in ceph-mon ceph-osd radosgw radosgw-admin ceph curl; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    ((${#missing[@]})) || return 0
    { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; } || skip "Ceph wants ${missing[*]}, or root to install them"
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}" \
        >"$folder/apt.log" 2>&1 || skip "could not install ${packages[*]} ($folder/apt.log)"
}

free_ports() {
    python3 -c 'import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))'
}

quiet() { "$@" >>"$folder/log/commands" 2>&1 </dev/null; }

write_settings() {
    cat >"$CEPH_CONF" <<END
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
keyring = $folder/keyring
mon host = v2:127.0.0.1:$1
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth allow insecure global id reclaim = false
osd crush chooseleaf type = 0
osd pool default size = 2
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
run dir = $folder/run
log file = $folder/log/\$name.log
pid file = $folder/run/\$name.pid
admin socket = $folder/run/\$name.asok
[mon]
mon data = $folder/mon
mon data avail crit = 0
[osd]
osd data = $folder/osd.\$id
osd objectstore = memstore
memstore device bytes = 2147483648
osd class load list = *
osd class default list = *
[client.rgw.gate]
rgw frontends = beast endpoint=127.0.0.1:$2
END
}

# add_key NAME CAPABILITY...
add_key() {
    local name=$1 options=()
    shift
    for capability; do options+=(--cap "${capability%% *}" "${capability#* }"); done
    quiet ceph-authtool "$folder/keyring" --gen-key --name "$name" "${options[@]}"
}

start() {
    local ports osd url
    mkdir -p "$folder"
    want_packages
    stop
    rm -rf "${folder:?}"/{log,run,mon,osd.*,keyring,url}
    mkdir -p "$folder"/{log,run,mon}
    read -r -a ports < <(free_ports)
    write_settings "${ports[@]}"
    quiet ceph-authtool --create-keyring "$folder/keyring"
    add_key mon. "mon allow *"
    add_key client.admin "mon allow *" "osd allow *"
    add_key client.rgw.gate "mon allow rw" "osd allow rwx"
    for ((osd = 0; osd < osds; osd++)); do add_key "osd.$osd" "mon allow *" "osd allow *"; done
    quiet ceph-mon --id a --mkfs --keyring "$folder/keyring" --public-addr "v2:127.0.0.1:${ports[0]}"
    quiet ceph-mon --id a --public-addr "v2:127.0.0.1:${ports[0]}"
    quiet ceph auth import -i "$folder/keyring"
    for ((osd = 0; osd < osds; osd++)); do
        mkdir "$folder/osd.$osd"
        quiet ceph osd create
        quiet ceph osd crush add "osd.$osd" 1 root=default
        quiet ceph-osd --id "$osd" --mkfs
        quiet ceph-osd --id "$osd"
    done
    quiet radosgw -n client.rgw.gate
    quiet radosgw-admin user create --uid tests --display-name tests --access-key k --secret-key s
    url=http://127.0.0.1:${ports[1]}
    quiet curl --retry 60 --retry-delay 1 --retry-connrefused -fsS -m 60 -X PUT --user k:s \
        --aws-sigv4 aws:amz:us-east-1:s3 --header "x-amz-content-sha256: UNSIGNED-PAYLOAD" "$url/runs"
    echo "$url" | tee "$folder/url"
}

# end PIDFILE: by SIGTERM, so that an OSD writes its objects.
end() {
    local pid tries
    [ -s "$1" ] || return 0
    pid=$(<"$1")
    [[ $(cat "/proc/$pid/comm" 2>/dev/null) =~ ^(ceph-|radosgw) ]] || return 0
    kill "$pid" 2>/dev/null || true
    for ((tries = 0; tries < 200; tries++)); do
        [ -d "/proc/$pid" ] || break
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    rm -f "$1"
}

stop() {
    local file
    for file in "$folder"/run/client.*.pid "$folder"/run/osd.*.pid "$folder"/run/mon.*.pid; do end "$file"; done
}

trial() {
    local status=0
    "$top/.venv/bin/python" -c 'import obstore' 2>/dev/null || skip "obstore is not installed"
    trap stop EXIT
    start
    "$top/.venv/bin/python" "$top/tests/remote/trial.py" "$folder" || status=$?
    stop
    trap - EXIT
    return "$status"
}

command=${1:-}
if [ "$command" = trial ]; then
    folder=${2:-$top/build/ceph}
else
    folder=${2:-}
fi
[ -n "$folder" ] || { sed -n '4,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
folder=$(realpath -m "$folder")
export CEPH_CONF=$folder/ceph.conf
case $command in
    trial | start | stop) "$command" ;;
    stop-osd) end "$folder/run/osd.$3.pid" ;;
    start-osd) quiet ceph-osd --id "$3" ;;
    *) sed -n '4,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
