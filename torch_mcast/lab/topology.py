"""Derives names, addresses and links from a LabSpec, and the batch lines that build them.

A host is a network namespace with one NIC, eth0. All switches live in one further namespace as
bridges: `br0` alone, or one per rack (`br1`...) joined to the spine `br0` by an uplink. Names
inside namespaces are the same in every lab: only the namespaces carry the lab's prefix, so labs
never collide, and neither do their addresses."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mcast.lab.spec import LabSpec

NETWORK, NETWORK6 = "10.99.0", "fd99::"
NIC = "eth0"
# The kernel's neighbour table holds 1,024 entries (net.ipv4.neigh.default.gc_thresh3), and all network
# namespaces share it. In labs with more hosts than this, hosts get each other's link addresses, as
# entries that do not count.
MOST_RESOLVING = 16


@dataclass(frozen=True)
class Host:
    """A host. number: position from 0 (workers first); bridge/port: where it is connected; rack:
    the name that ranks get for it, "" without LabSpec.aggregator_racks."""

    name: str
    number: int
    role: str
    address: str
    namespace: str
    bridge: str
    port: str
    rack: str = ""

    @property
    def link_address(self) -> str:
        return f"02:99:00:00:{(self.number + 1) >> 8:02x}:{(self.number + 1) & 255:02x}"

    def endpoint(self, port: int) -> str:
        """The host's address with a port, as settings and options take it."""
        return f"[{self.address}]:{port}" if ":" in self.address else f"{self.address}:{port}"


@dataclass(frozen=True)
class Uplink:
    """A rack's link to the spine: `lower` is a port of the rack's bridge, `upper` of the spine."""

    rack: int
    bridge: str
    lower: str
    upper: str


def prefix(lab: str) -> str:
    return f"mcast-{lab}-"


def switch_namespace(lab: str) -> str:
    return prefix(lab) + "switch"


def plan_hosts(lab: str, spec: LabSpec) -> list[Host]:
    """Returns the lab's hosts in order of number."""
    rack_of = [r + 1 for r, size in enumerate(spec.racks) for _ in range(size)]
    rack_of += spec.aggregator_racks
    return [
        Host(
            name=name,
            number=i,
            role="worker" if i < spec.hosts else "aggregator",
            address=f"{NETWORK6}{i + 1:x}" if spec.ipv6 else f"{NETWORK}.{i + 1}",
            namespace=prefix(lab) + name,
            bridge=f"br{rack_of[i]}" if rack_of else "br0",
            port=f"port-{name}",
            rack=(f"rack{rack_of[i]}" if rack_of[i] else "top") if spec.aggregator_racks else "",
        )
        for i, name in enumerate(spec.host_names)
    ]


def plan_uplinks(spec: LabSpec) -> list[Uplink]:
    return [
        Uplink(r + 1, f"br{r + 1}", f"up{r + 1}", f"rack{r + 1}") for r in range(len(spec.racks))
    ]


def bridges(spec: LabSpec) -> list[str]:
    return ["br0"] + [uplink.bridge for uplink in plan_uplinks(spec)]


def switch_lines(lab: str, spec: LabSpec) -> list[str]:
    """Returns ip lines, run in the switch's namespace, that create bridges and links and connect them."""
    lines = ["link set lo up"]
    for bridge in bridges(spec):
        # Without a spanning tree a port forwards as soon as it has a carrier.
        lines.append(f"link add {bridge} type bridge stp_state 0 mcast_snooping 0")
    for uplink in plan_uplinks(spec):
        lines += [
            f"link add {uplink.lower} mtu {spec.mtu} type veth peer name {uplink.upper}",
            f"link set {uplink.upper} mtu {spec.mtu} master br0 up",
            f"link set {uplink.lower} master {uplink.bridge} up",
        ]
    queues = f"numtxqueues {spec.tx_queues} numrxqueues {spec.tx_queues}"
    for host in plan_hosts(lab, spec):
        lines += [
            f"link add {host.port} mtu {spec.mtu} {queues} type veth "
            f"peer name {NIC} address {host.link_address} netns {host.namespace} mtu {spec.mtu} {queues}",
            f"link set {host.port} master {host.bridge} up",
        ]
    lines += [f"link set {bridge} mtu {spec.mtu} up" for bridge in bridges(spec)]
    return lines


def host_lines(host: Host) -> list[str]:
    """Returns ip lines, run in the host's namespace once its NIC is there."""
    if ":" in host.address:
        return [
            "link set lo up",
            f"addr add {host.address}/64 dev {NIC} nodad",
            f"link set {NIC} up",
        ]
    return [
        "link set lo up",
        f"addr add {host.address}/24 brd + dev {NIC}",
        f"link set {NIC} up",
        f"route add 224.0.0.0/4 dev {NIC}",
    ]


def neighbour_lines(host: Host, hosts: list[Host]) -> list[str]:
    """Returns ip lines that tell a host of a large lab the link addresses of the others. The kernel
    still notices when one of them is gone."""
    if len(hosts) <= MOST_RESOLVING:
        return []
    return [
        f"neigh add {other.address} lladdr {other.link_address} dev {NIC} nud stale extern_learn"
        for other in hosts
        if other != host
    ]


def shaper_lines(device: str, rate: int | None, spec: LabSpec, queues: int) -> list[str]:
    """Returns tc lines that give a device its rate. Unshaped devices get a plain queue, which
    counts bytes as framed on the wire (a device's own counter includes a super-packet's headers
    only once)."""

    def leaf(where: str) -> str:
        if rate is None:
            return f"qdisc replace dev {device} {where} pfifo limit 10000"
        return (
            f"qdisc replace dev {device} {where} tbf rate {rate}bit "
            f"burst {spec.burst}b limit {spec.queue}b"
        )

    if queues == 1:
        return [leaf("root")]
    return [f"qdisc replace dev {device} root handle 1: mq"] + [
        leaf(f"parent 1:{queue + 1:x}") for queue in range(queues)
    ]


def multicast_lines(mode: str, spec: LabSpec, ports: list[str]) -> tuple[list[str], list[str]]:
    """Returns (ip lines, bridge lines) that make the switches treat multicast as `mode` says."""
    snoop = mode == "snooping"
    ip_lines = []
    for bridge in bridges(spec):
        # A short response interval, set before the querier: a bridge floods until one interval has
        # passed, as it was when its querier was switched on (by default 10 s). IGMP version 3,
        # which a bridge does not request by default: with version 2 a host that receives another's
        # report, as all do while the bridge floods, suppresses its own, and its port is forgotten
        # soon after.
        ip_lines += [
            f"link set {bridge} type bridge mcast_query_response_interval 100 "
            f"mcast_startup_query_interval 100 mcast_igmp_version 3"
            + (" mcast_mld_version 2" if spec.ipv6 else ""),
            f"link set {bridge} type bridge mcast_snooping {int(snoop)} mcast_querier {int(snoop)}",
        ]
    flood = "off" if mode == "blocked" else "on"
    return ip_lines, [f"link set dev {port} mcast_flood {flood}" for port in ports]
