"""Builds a lab's namespaces and links, and shapes them: one batch of lines per namespace."""

from __future__ import annotations

import os
from collections.abc import Iterable

from torch_mcast.lab import state, system, topology
from torch_mcast.lab.spec import LabSpec
from torch_mcast.lab.topology import NIC, Host, Uplink

_NO_IPV6 = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 || true\n"
# Link-local addresses are used at once too, by neighbour discovery and MLD.
_NO_DAD = "for f in /proc/sys/net/ipv6/conf/*/accept_dad; do echo 0 > $f; done\n"
# Else bridged frames would pass the hosts' netfilter too, at 13 % of CPU.
_NO_BRIDGE_NETFILTER = (
    "for f in /proc/sys/net/bridge/bridge-nf-call-*tables; do [ ! -e $f ] || echo 0 > $f; done\n"
)


def build(lab: str, spec: LabSpec, hosts: list[Host], uplinks: list[Uplink]) -> None:
    """Creates everything but faults and multicast modes. Undo with state.destroy()."""
    _write_hosts_file(lab, hosts)
    switch = topology.switch_namespace(lab)
    system.ip_batch([f"netns add {name}" for name in [switch, *(h.namespace for h in hosts)]])
    system.shell(switch, _NO_IPV6 + _NO_BRIDGE_NETFILTER)
    system.ip_batch(topology.switch_lines(lab, spec), switch)
    for host in hosts:
        ipv6 = _NO_DAD if spec.ipv6 else _NO_IPV6
        system.shell(host.namespace, ipv6 + "".join(_xps_lines(spec.tx_queues)))
        lines = topology.host_lines(host) + topology.neighbour_lines(host, hosts)
        system.ip_batch(lines, host.namespace)
    shape(switch, spec, hosts)
    system.tc_batch(
        [
            line
            for uplink in uplinks
            for device in (uplink.lower, uplink.upper)
            for line in topology.shaper_lines(device, spec.uplink_rate, spec, 1)
        ],
        switch,
    )


def shape(switch: str, spec: LabSpec, hosts: Iterable[Host]) -> None:
    """Gives the links of these hosts the rates of the spec, both directions."""
    port_lines: list[str] = []
    for host in hosts:
        rate = spec.rate_of(host.name)
        system.tc_batch(topology.shaper_lines(NIC, rate, spec, spec.tx_queues), host.namespace)
        port_lines += topology.shaper_lines(host.port, rate, spec, 1)
    system.tc_batch(port_lines, switch)


def _write_hosts_file(lab: str, hosts: list[Host]) -> None:
    # The second form is the one in which a dual-stack socket asks for the name of an IPv4 peer.
    names = [
        f"{form}{host.address} {host.name}"
        for host in hosts
        for form in ([""] if ":" in host.address else ["", "::ffff:"])
    ]
    state.hosts_file(lab).write_text("\n".join(["127.0.0.1 localhost", *names, ""]))


def _xps_lines(queues: int) -> list[str]:
    """Returns shell lines after which packets of a thread on CPU k leave by queue k modulo the
    number of queues."""
    if queues == 1:
        return []
    masks = [0] * queues
    for cpu in range(os.cpu_count() or 1):
        masks[cpu % queues] |= 1 << cpu
    return [
        f"echo {cpu_mask(mask)} > /sys/class/net/{NIC}/queues/tx-{queue}/xps_cpus\n"
        for queue, mask in enumerate(masks)
    ]


def cpu_mask(mask: int) -> str:
    """Formats a set of CPUs for /sys: hexadecimal groups of 32 bits, highest first."""
    words = []
    while True:
        words.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
        if not mask:
            return ",".join(reversed(words))
