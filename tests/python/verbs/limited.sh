#!/bin/sh
# Two ranks of the driver on this machine, some of them in a memory cgroup (v2), for each case in turn:
#   limited.sh DRIVER MIB:RANKS...    memory.max of the cgroup, and the ranks in it: "01", "0" or "1"
# Prints for each case "CASE MIB:RANKS", then the output of each rank, each line behind its number, and
# the lines code0=, code1= (124: it had to be killed after a minute) and oom_kills=.
driver=$1
shift
top=/sys/fs/cgroup
mount -t cgroup2 none $top && echo +memory >$top/cgroup.subtree_control || exit 97
# Puts the program's pages into the cache without charging the cgroup, else a rank might reread them forever.
MCAST_VM_SHARE=/tmp/warm RANK=0 WORLD_SIZE=1 "$driver" check 4000000 >/dev/null || exit 96
export WORLD_SIZE=2 MCAST_SHARED_MEMORY=auto DRIVER_TIMEOUT=10

rank() {
  procs=/dev/null
  case $ranks in *$1*) procs=$cgroup/cgroup.procs ;; esac
  RANK=$1 exec timeout -k 5 60 sh -c 'echo 0 >"$1" && exec "$2" check 4000000' sh "$procs" "$driver"
}

for it in "$@"; do
  mib=${it%:*} ranks=${it#*:} cgroup=$top/mcast-$it
  export MCAST_VM_SHARE=/tmp/mcast-$it
  mkdir "$cgroup" "$MCAST_VM_SHARE" && echo $((mib << 20)) >"$cgroup/memory.max" || exit 95
  (rank 0) >"$MCAST_VM_SHARE/0" 2>&1 &
  first=$!
  (rank 1) >"$MCAST_VM_SHARE/1" 2>&1
  code1=$?
  wait $first
  code0=$?
  echo "CASE $it"
  sed 's/^/0 /' "$MCAST_VM_SHARE/0"
  sed 's/^/1 /' "$MCAST_VM_SHARE/1"
  echo "code0=$code0"
  echo "code1=$code1"
  echo "oom_kills=$(sed -n 's/^oom_kill //p' "$cgroup/memory.events")"
done
