"""Settings of a group's network: which interface, how large a segment."""

from __future__ import annotations

import contextlib
import os
import socket

import torch
import torch.distributed as dist
from named_errors import raises_error

import torch_mcast


def segments() -> list[int]:
    """Returns the largest segment of each TCP connection that this process has opened or accepted."""
    before = {name for name in os.listdir("/proc/self/fd")}
    group = dist.new_group(pg_options=torch_mcast.Options(max_mtu=1400, algorithm="ring"))
    dist.all_reduce(torch.ones(1 << 16), group=group)
    largest = []
    for name in {name for name in os.listdir("/proc/self/fd")} - before:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family == socket.AF_INET and one.type == socket.SOCK_STREAM:
                one.getpeername()  # raises for a listening socket
                largest.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
    dist.destroy_process_group(group)
    return largest


def test_segments_of_tcp_keep_to_the_largest_mtu(ranks):
    """A switch may carry smaller packets than the interfaces (here loopback, of 65536) report."""
    for largest in ranks(2, segments):
        assert largest and all(0 < one <= 1360 for one in largest), largest


def by_network() -> None:
    """Selects the interface by any network that contains loopback's address; the second group uses
    the same lanes."""
    used = []
    for _ in range(2):
        group = dist.new_group(pg_options=torch_mcast.Options(interface="127.0.0.0/8"))
        dist.all_reduce(torch.ones(1), group=group)
        used.append(torch_mcast.stats(group)["transport"])
        dist.destroy_process_group(group)
    assert used[0] == used[1] and used[0].startswith("udp lo 127."), used
    with raises_error(dist.DistBackendError, "no_interface", pattern="240.1.0.0/16"):
        dist.new_group(pg_options=torch_mcast.Options(interface="240.1.0.0/16"))


def test_the_interface_may_be_a_network(ranks):
    ranks(2, by_network)
