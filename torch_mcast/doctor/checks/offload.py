"""UDP segmentation (UDP_SEGMENT) and receive offload (UDP_GRO): both are tested with multicast on
loopback, where only the kernel decides; segmentation is also tested on the chosen interface, whose
driver may refuse it."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from torch_mcast.doctor import udp
from torch_mcast.doctor.checks.multicast import not_tried
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, ok, warn
from torch_mcast.doctor.fixes import link
from torch_mcast.doctor.netif import Interface

_SEGMENT, _COUNT = 512, 8


@dataclass(frozen=True)
class Result:
    datagrams: int = 0  # received of _COUNT sent in one call
    merged: bool = False  # several of them in one receive call
    problem: str = ""


def measure(interface: Interface, gro: bool, limit: float = 1.0) -> Result:
    group = udp.random_group(interface.ipv6)
    payload = b"".join(bytes([i]) * _SEGMENT for i in range(_COUNT))
    try:
        with udp.open_receiver(interface, group) as receiver, udp.open_sender(interface) as sender:
            if gro:
                receiver.setsockopt(socket.IPPROTO_UDP, udp.UDP_GRO, 1)
            udp.send_segments(sender, payload, _SEGMENT, (group, receiver.getsockname()[1]))
            got, merged = b"", False
            for part, segment in udp.receive(receiver, time.monotonic() + limit):
                merged |= segment == _SEGMENT and len(part) > _SEGMENT
                # Without GRO each datagram must arrive alone, with the requested size.
                if len(part) > _SEGMENT and segment == 0:
                    return Result(problem=f"{len(part)} bytes arrived as one datagram")
                got += part
                if len(got) >= len(payload):
                    break
    except OSError as error:
        return Result(problem=str(error.strerror))
    if got != payload:
        return Result(len(got) // _SEGMENT, merged, "not all datagrams arrived whole and in order")
    return Result(_COUNT, merged)


def judge_gso(interface: str, result: Result) -> Finding:
    name = f"gso on {interface}"
    data = {"interface": interface, "works": not result.problem}
    if result.problem:
        text = f"{result.problem}: datagrams are sent one by one, at several times the CPU cost"
        cost = "the NIC then computes the checksums of all programs' packets"
        fix = link(f"ethtool -K {interface} tx-checksum-ip-generic on", cost)
        return warn(name, text, fix, **data)
    return ok(name, f"{_COUNT} datagrams in one send", **data)


def judge_gro(result: Result) -> Finding:
    data = {"works": result.merged}
    if result.problem or not result.merged:
        text = result.problem or "datagrams arrive one by one, at several times the CPU cost"
        return warn("gro on loopback", text, "use a kernel from 5.0 on", **data)
    return ok("gro on loopback", f"{_COUNT} datagrams in one receive", **data)


def run(context: Context) -> list[Finding]:
    findings = [
        not_tried(f"gso on {i.name}", i)
        if i.name in context.unreached
        else judge_gso(i.name, measure(i, gro=False))
        for i in context.paths
    ]
    loopback = context.loopback
    if loopback is not None and loopback.name not in context.unreached:
        findings.append(judge_gro(measure(loopback, gro=True)))
    elif loopback is not None:
        findings.append(not_tried("gro on loopback", loopback))
    return findings
