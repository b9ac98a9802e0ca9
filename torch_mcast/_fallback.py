"""Chooses and creates the backend that serves the calls which the engine does not, by device and
options. The extension calls this at the first call that needs a fallback, which all ranks of the
group make."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from torch_mcast._options import fill, settable


def _candidates(choice: str, device: str) -> list[str]:
    """Returns the names of the possible fallbacks, best first."""
    if choice == "none" or device not in ("cpu", "cuda"):
        return []
    there = ["gloo"] if dist.is_gloo_available() else []
    if choice == "auto" and device == "cuda" and dist.is_nccl_available():
        there.insert(0, "nccl")
    return there


def offered(choice: str) -> str:
    """Returns the fallbacks that a group with this option would create ("cpu=gloo,cuda=nccl").
    Ranks compare this text. It does not query the driver, because a process that creates groups of
    CPU tensors should not wait for it."""
    devices = ["cpu"] + (["cuda"] if torch.backends.cuda.is_built() else [])
    return ",".join(f"{device}={[*_candidates(choice, device), 'none'][0]}" for device in devices)


def kind(backend: Any, device: str) -> str:
    """Returns "gloo", "nccl" or "" (none) for tensors of this device type."""
    choice = backend.options.fallback
    there = _candidates(choice, device)
    if not there or (device == "cuda" and not torch.cuda.is_available()):
        return ""
    if choice == "auto":
        mode, path = backend._mode_and_path()
        there = [name for name in there if not in_clear(name, mode, path, os.environ)]
    return there[0] if there else ""


def in_clear(name: str, mode: str, path: str, environment: Mapping[str, str]) -> bool:
    """Returns whether this fallback would send over a network, unencrypted, the traffic that a
    group of this security mode guards. Only Gloo's connections can be encrypted."""
    return (
        mode != "off"
        and path not in ("shared memory", "local")
        and not (name == "gloo" and environment.get("GLOO_DEVICE_TRANSPORT") == "TCP_TLS")
    )


def make(backend: Any, name: str) -> Any:
    """Creates the fallback. Does not wait for other ranks."""
    store, options = backend._fallback_store(), backend.options
    mode, path = backend._mode_and_path()
    if in_clear(name, mode, path, os.environ):
        warnings.warn(
            f"torch_mcast: group {options.group_name} runs with security={mode}, but the calls that its "
            f"fallback {options.fallback} serves are sent unencrypted. "
            "GLOO_DEVICE_TRANSPORT=TCP_TLS with its certificates encrypts it",
            stacklevel=2,
        )
    return (
        _make_nccl(backend, store, options)
        if name == "nccl"
        else _make_gloo(backend, store, options)
    )


def engine_interface(transport: str) -> str:
    """Returns the interface in the engine's description of its transport ("udp eth0 10.0.0.1 ..."),
    or "". For a stripe ("udp eth0+eth1 ...") it is the first one."""
    found = re.match(r"udp ([^\s+]+)\S* ", transport)
    return found.group(1) if found else ""


def _gloo_device(interface: str) -> Any:
    # Lazy: the first call that needs a connection makes it, so creation does not wait. Not shared
    # between groups: a lazy device distinguishes incoming connections by the peer's rank only, so
    # those of two groups would be mixed up (the calls then hang).
    from torch.distributed import ProcessGroupGloo

    if interface:
        return ProcessGroupGloo.create_device(interface=interface, lazy_init=True)
    return ProcessGroupGloo.create_default_device(lazy_init=True)


def _make_gloo(backend: Any, store: Any, group: Any) -> Any:
    from torch.distributed import ProcessGroupGloo

    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    stats = backend._stats()
    hosted = stats["transport_reason"].startswith("engine of this host")
    if not interface and not hosted:  # this process may not see the engine's interface
        interface = engine_interface(stats["transport"])
    options = ProcessGroupGloo._Options()
    options._timeout = group.timeout
    try:
        # GLOO_SOCKET_IFNAME may be a list: Gloo then spreads calls over several devices.
        options._devices = [_gloo_device(name.strip()) for name in interface.split(",")]
    except RuntimeError as error:
        raise NotImplementedError(
            f"torch_mcast: group {group.group_name} has no fallback, since this process has no network that "
            f'Gloo can use ({str(error).splitlines()[0]}); Options(fallback="none") avoids this warning'
        ) from error
    options.group_name = group.group_name
    options.global_ranks_in_group = list(group.global_ranks_in_group)
    gloo = ProcessGroupGloo(
        dist.PrefixStore("gloo/", store), backend.rank(), backend.size(), options
    )
    gloo._set_sequence_number_for_group()
    return gloo


def _make_nccl(backend: Any, store: Any, group: Any) -> Any:
    # The class stays ProcessGroupNCCL with torch 2.15, where "nccl" is another one
    # (ProcessGroupNCCL2): the new one has to know its device and connects all ranks at once, while
    # only two ranks take part in a send.
    try:
        from torch.distributed import ProcessGroupNCCL
    except ImportError as error:
        raise NotImplementedError(
            f"torch_mcast: group {group.group_name} has no fallback for cuda tensors, since this torch has "
            'no NCCL; install a torch that has it, or use Options(fallback="gloo") on all ranks'
        ) from error

    options = ProcessGroupNCCL.Options()
    if group.nccl is not None:  # a copy: one object may be given to several groups
        fill(options, settable(group.nccl))
    options._timeout = group.timeout
    options.group_name = group.group_name
    options.global_ranks_in_group = list(group.global_ranks_in_group)
    return ProcessGroupNCCL(
        dist.PrefixStore("nccl/", store), backend.rank(), backend.size(), options
    )
