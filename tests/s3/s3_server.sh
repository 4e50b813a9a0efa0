#!/bin/bash
# A real S3 server for tests: Ceph's object gateway on the loopback interface, with its objects in memory.
#
#   s3_server.sh start DIR   starts it in the empty directory DIR and writes DIR/environment, which a shell reads
#   s3_server.sh stop DIR    stops it
#
# Exits with 77 and one line that says why if the server cannot run here. Needs the Debian packages ceph-mon, ceph-osd, radosgw and
# ceph-common.
set -euo pipefail
action=${1:?start or stop}
mkdir -p "${2:?directory}"
directory=$(readlink -f "$2")

if [ "$action" = stop ]; then
  for file in "$directory"/run/*.pid; do
    [ -e "$file" ] || continue
    process=$(cat "$file")
    kill "$process" 2>/dev/null || true
    # The caller may remove the directory, in which the process still writes.
    while kill -0 "$process" 2>/dev/null; do sleep 0.1; done
  done
  exit 0
fi

for program in ceph-mon ceph-osd ceph radosgw radosgw-admin ceph-authtool monmaptool; do
  command -v "$program" >/dev/null || { echo "skipped: the S3 server $program is not installed (packages ceph-mon, ceph-osd, radosgw, ceph-common)"; exit 77; }
done

cd "$directory"
mkdir -p mon osd rgw run log
read -r mon_port gateway_port < <(python3 -c '
import socket
sockets = [socket.socket() for _ in range(2)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))')
cluster=$(cat /proc/sys/kernel/random/uuid)
disk=$(cat /proc/sys/kernel/random/uuid)
# The clean-up of deleted objects and the cache of bucket information keep their defaults: what is tested is an ordinary gateway.
cat > ceph.conf <<CONFIGURATION
[global]
fsid = $cluster
mon host = v2:127.0.0.1:$mon_port
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
public addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
keyring = $directory/keyring
run dir = $directory/run
log file = $directory/log/\$name.log
admin socket = $directory/run/\$name.asok
pid file = $directory/run/\$name.pid
osd objectstore = memstore
memstore device bytes = 4294967296
[mon.a]
mon data = $directory/mon
[osd.0]
osd data = $directory/osd
[client.rgw.a]
rgw frontends = beast endpoint=127.0.0.1:$gateway_port tcp_nodelay=1
rgw data = $directory/rgw
# Buckets are also reached as <bucket>.localhost.
rgw dns name = localhost
CONFIGURATION
export CEPH_CONF=$directory/ceph.conf

access_key=CAIRNTEST
secret_key=$(cat /proc/sys/kernel/random/uuid)
start() (
  set -e
  ceph-authtool --create-keyring keyring --gen-key -n mon. --cap mon 'allow *'
  ceph-authtool keyring --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
  ceph-authtool keyring --gen-key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
  ceph-authtool keyring --gen-key -n client.rgw.a --cap mon 'allow rwx' --cap osd 'allow rwx'
  monmaptool --create --addv a "[v2:127.0.0.1:$mon_port]" --fsid "$cluster" monmap
  ceph-mon --mkfs -i a --monmap monmap --keyring keyring
  ceph-mon -i a
  timeout 30 ceph osd new "$disk"
  ceph-osd -i 0 --mkfs --osd-uuid "$disk" --keyring keyring
  ceph-osd -i 0
  timeout 60 radosgw -n client.rgw.a --keyring keyring
  timeout 60 radosgw-admin user create --uid=cairn --display-name=cairn --access-key="$access_key" --secret-key="$secret_key"
  timeout 60 radosgw-admin user create --uid=stranger --display-name=stranger --access-key=STRANGER --secret-key="$secret_key"
  for _ in $(seq 60); do
    python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$gateway_port/', timeout=1)" && return
    sleep 0.5
  done
  return 1
)
set +e  # not `if start`, in which a failing step would not end it
start > log/start.log 2>&1
started=$?
set -e
if [ $started -ne 0 ]; then
  "$0" stop "$directory"
  echo "skipped: Ceph's gateway does not start here: $(tail -1 log/start.log)"
  exit 77
fi
cat > environment <<ENVIRONMENT
export AWS_ENDPOINT_URL=http://127.0.0.1:$gateway_port
export AWS_ACCESS_KEY_ID=$access_key
export AWS_SECRET_ACCESS_KEY=$secret_key
export AWS_REGION=us-east-1
export no_proxy=127.0.0.1
export CAIRN_TEST_S3_STRANGER=STRANGER
export CAIRN_TEST_S3_STRANGER_SECRET=$secret_key
ENVIRONMENT
