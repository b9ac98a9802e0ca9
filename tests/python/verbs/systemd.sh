#!/bin/sh
# Runs systemd as process 1 of separate namespaces, over a root that is made here:
#   systemd.sh UNITS PACKAGE PYTHON PREFIX CHECKS
# UNITS: folder with unit files. PACKAGE: torch_mcast, which appears in /opt/mcast as if it were installed
# there. PYTHON, PREFIX: the interpreter and its installation. CHECKS: a program that runs as a unit once
# the system is up, and ends it. Its output and exit code are this script's; the logs of the other units
# follow.
set -e
units=$1 package=$2 python=$3 prefix=$4 checks=$5
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t cgroup2 none /sys/fs/cgroup
root=/run/root
mkdir $root
mount -t tmpfs tmpfs $root
cd $root
mkdir -p dev etc/systemd/system/service.d old opt/mcast/bin opt/mcast/torch_mcast proc root run sys tmp usr var/tmp
chmod 1777 tmp var/tmp
for folder in bin lib lib32 lib64 sbin; do
  if [ -L /$folder ]; then
    cp -P /$folder .
  elif [ -d /$folder ]; then
    mkdir $folder
    mount --bind /$folder $folder
  fi
done
mount --bind /usr usr
mount --rbind /dev dev
mount --rbind /sys sys
case $prefix in
  /usr | /usr/*) ;;
  *) mkdir -p ".$prefix" && mount --bind "$prefix" ".$prefix" ;;
esac
mount --bind "$package" opt/mcast/torch_mcast
cat >opt/mcast/bin/torch-mcast <<END
#!$python -B
import sys
sys.path.insert(0, "/opt/mcast")
from torch_mcast.cli import main
sys.exit(main())
END
chmod 755 opt/mcast/bin/torch-mcast
cp "$checks" opt/mcast/checks.py

# The users of the units, and two users, of whom one may use the engine.
cat >etc/passwd <<END
root:x:0:0::/root:/bin/sh
mcast:x:901:901::/:/usr/sbin/nologin
alice:x:902:902::/:/bin/sh
bob:x:903:903::/:/bin/sh
nobody:x:65534:65534::/:/usr/sbin/nologin
END
cat >etc/group <<END
root:x:0:
mcast:x:901:alice
alice:x:902:
bob:x:903:
nogroup:x:65534:
END
echo 0123456789abcdef0123456789abcdef >etc/machine-id
[ ! -e /etc/ld.so.cache ] || cp /etc/ld.so.cache etc/

cp "$units"/*.service etc/systemd/system/
# Changes that the units describe for torch-mcast in a virtual environment; and no journal runs.
cat >etc/systemd/system/service.d/all.conf <<END
[Service]
Environment=PATH=/opt/mcast/bin:/usr/bin:/bin
StandardOutput=append:/log
StandardError=append:/log
END
cat >etc/systemd/system/checks.service <<END
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=$python -B /opt/mcast/checks.py
StandardOutput=append:/output
StandardError=append:/output
END
mkdir etc/systemd/system/checks.service.d
sed '/^Standard/d' etc/systemd/system/service.d/all.conf >etc/systemd/system/checks.service.d/all.conf
# Devices, journal, temporary files: not needed here.
for target in sysinit sockets timers local-fs; do
  for unit in usr/lib/systemd/system/$target.target.wants/*; do
    [ ! -e "$unit" ] || ln -sf /dev/null "etc/systemd/system/${unit##*/}"
  done
done

code=0
unshare --mount --pid --cgroup --fork sh -ec '
  mount -t proc proc proc
  pivot_root . old
  umount -l /old
  exec /usr/bin/env -i container=torch-mcast-test PATH="$PATH" \
    /lib/systemd/systemd --unit=checks.service --show-status=no --log-target=console --log-level=warning
' || code=$?
cat output || true
echo LOG
cat log || true
exit $code
