"""Files with which a cluster's administrator runs engines: a systemd unit and a Kubernetes
DaemonSet.

Both start each engine with `--replace on`, so that an upgrade starts one more instance: the new
engine takes the socket, the old one drains and ends by itself."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path, PurePosixPath

from torch_mcast import __version__
from torch_mcast.engine.status import DEFAULT_SOCKET

# Seconds that clients have to end after SIGTERM; a supervisor waits a little longer.
_GOODBYE_S = 600
_STOP_S = _GOODBYE_S + 30

UNIT_NAME = "torch-mcast-engine@.service"
DAEMONSET_NAME = "torch-mcast-engine.yaml"

_UNIT = """\
# An engine of torch-mcast for the training processes of this host (docs/offload.md). As root:
#   useradd --system --no-create-home --shell /usr/sbin/nologin mcast
#   cp {name} /etc/systemd/system/
#   usermod --append --groups mcast ALICE          # who may use it: members of the group
#   systemctl enable --now torch-mcast-engine@a
# Jobs: MCAST_ENGINE=host, and MCAST_ENGINE_USER=mcast where no other user's process may pose as it.
# Upgrade: install the new version, then
#   systemctl enable --now torch-mcast-engine@b    # takes the socket at once; the other one drains
#   systemctl disable torch-mcast-engine@a         # and ends by itself, within {limit} s
# Other options: systemctl edit torch-mcast-engine@.service, [Service], Environment=OPTIONS=...
# Guarded groups (docs/security.md): LoadCredential=secret:/etc/job.secret and
# Environment=MCAST_SECRET_FILE=%d/secret
[Unit]
Description=torch-mcast engine of this host (%i)
Wants=network-online.target
After=network-online.target
# It is restarted without limit: an address or interface may come long after the host is up.
StartLimitIntervalSec=0

[Service]
Type=exec
User=mcast
Group=mcast
# Where torch-mcast is in a virtual environment: Environment=PATH=/opt/mcast/bin:/usr/bin:/bin
Environment=OPTIONS=
ExecStart=/usr/bin/env torch-mcast engine run --socket {socket} --replace on --goodbye {goodbye} $OPTIONS
# Not after a normal end, when it was replaced. The guardian exits with status 3 if the engine hung.
Restart=on-failure
RestartSec=1
# SIGTERM to the guardian, which passes it on; then clients have {goodbye} s to leave.
KillMode=mixed
TimeoutStopSec={stop}

# The folder of the sockets stays when one of two instances ends.
RuntimeDirectory={folder}
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
UMask=0077

NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
# RDMA devices are in /dev/infiniband. (So no ProtectClock either, which allows the clock and no other.)
PrivateDevices=no
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
# It has memfd_create, sendmsg and futex, which is how memory is shared with clients.
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

# A socket and a few descriptors of each client, connections of its groups.
LimitNOFILE=65536
# A dump of it would hold tensors of all clients and, in guarded groups, keys.
LimitCORE=0
# All jobs of the host end with it: other processes are killed first where memory runs out.
OOMScoreAdjust=-500
MemoryMax=90%
# Verbs transports lock memory.
LimitMEMLOCK=infinity

[Install]
WantedBy=multi-user.target
"""

_DAEMONSET = """\
# An engine of torch-mcast on each node (docs/offload.md): kubectl apply -f {name}
# Pods whose processes use it need no network of their own:
#   securityContext: {{supplementalGroups: [{group}]}}
#   env: [{{name: MCAST_ENGINE, value: "host:{socket}"}}]
#   volumeMounts: [{{name: torch-mcast, mountPath: {directory}, readOnly: true}}]
#   volumes: [{{name: torch-mcast, hostPath: {{path: {directory}, type: Directory}}}}]
# An update starts the new engine beside the old one (maxSurge), which drains for {goodbye} s at most.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: torch-mcast-engine
  labels: {{app: torch-mcast-engine}}
spec:
  selector:
    matchLabels: {{app: torch-mcast-engine}}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate: {{maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata:
      labels: {{app: torch-mcast-engine}}
    spec:
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {stop}
      securityContext:
        runAsNonRoot: true
        runAsUser: {group}
        runAsGroup: {group}
        seccompProfile: {{type: RuntimeDefault}}
      initContainers:
        # The kubelet makes the folder for root.
        - name: folder
          image: {image}
          command: ["chown", "{group}:{group}", "{directory}"]
          securityContext:
            runAsNonRoot: false
            runAsUser: 0
            allowPrivilegeEscalation: false
            capabilities: {{drop: [ALL], add: [CHOWN]}}
          volumeMounts: [{{name: sockets, mountPath: {directory}}}]
      containers:
        - name: engine
          image: {image}
          command: [torch-mcast, engine, run, --socket, {socket}, --replace, "on", --goodbye, "{goodbye}"]
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: [ALL]}}
          readinessProbe:
            exec: {{command: [torch-mcast, engine, status, --socket, {socket}]}}
            periodSeconds: 5
            timeoutSeconds: 10
          volumeMounts: [{{name: sockets, mountPath: {directory}}}]
      volumes:
        - name: sockets
          hostPath: {{path: {directory}, type: DirectoryOrCreate}}
"""


def unit(socket: str = DEFAULT_SOCKET) -> str:
    """Returns the systemd unit of an engine at this socket, which is in a folder of its own below /run."""
    folder = PurePosixPath(socket).parent
    if folder.parent != PurePosixPath("/run"):
        raise ValueError(
            f"--socket {socket}: systemd makes folders below /run: /run/FOLDER/engine.sock"
        )
    return _UNIT.format(
        name=UNIT_NAME, socket=socket, folder=folder.name, goodbye=_GOODBYE_S, stop=_STOP_S, limit=600
    )  # fmt: skip


def daemonset(image: str, socket: str = DEFAULT_SOCKET, group: int = 7117) -> str:
    """Returns the DaemonSet. `group` is the numeric user and group of the engine."""
    return _DAEMONSET.format(
        name=DAEMONSET_NAME, image=image, socket=socket, directory=PurePosixPath(socket).parent,
        group=group, goodbye=_GOODBYE_S, stop=_STOP_S,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-mcast engine install",
        description="Prints or writes a systemd unit or a Kubernetes DaemonSet that runs an engine. Does not "
        "install the file: its first lines say how.",
    )
    parser.add_argument("kind", choices=["systemd", "kubernetes"], help="type of the file")
    parser.add_argument(
        "--write", metavar="DIR", help="write the file into DIR instead of printing it"
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        default=DEFAULT_SOCKET,
        help="socket of the engine [%(default)s]",
    )
    parser.add_argument(
        "--image", default=f"torch-mcast:{__version__}", help="image of the DaemonSet [%(default)s]"
    )
    parser.add_argument(
        "--group",
        type=int,
        default=7117,
        metavar="NUMBER",
        help="user and group of the DaemonSet's engine; pods that use it must be in the group [%(default)s]",
    )
    return parser


def main(arguments: list[str]) -> int:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        if parsed.kind == "systemd":
            name, text = UNIT_NAME, unit(parsed.socket)
        else:
            name, text = DAEMONSET_NAME, daemonset(parsed.image, parsed.socket, parsed.group)
    except ValueError as error:
        parser.error(str(error))
    if parsed.write is None:
        print(text, end="")
        return 0
    try:
        (Path(parsed.write) / name).write_text(text)
    except OSError as error:
        print(f"torch-mcast engine install: {error}", file=sys.stderr)
        return 1
    print(Path(parsed.write) / name)
    return 0
