"""Makes one process group: settings, the engine's group, and the backend for what the engine does not
serve. Called by torch.distributed on all ranks of the group."""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from torch_mcast._load import extension
from torch_mcast._metrics import write_every_interval


def create(group: Any, options: Any) -> Any:
    """The creator function of the registered backend (extended API)."""
    module = extension()
    if options is None:
        options = module.Options()
    elif not isinstance(options, module.Options):
        raise TypeError(
            f"pg_options of the mcast backend must be torch_mcast.Options, got {type(options).__module__}."
            f"{type(options).__qualname__}"
        )
    else:
        options = copy.deepcopy(options)
    if options.engine_memory == "map":
        module.use_arenas()
    options.timeout = group.timeout
    options.group_name = str(group.group_id)
    options.global_ranks_in_group = list(group.global_ranks_in_group)

    settings = options.resolved()
    backend = module.ProcessGroupMcast(group.store, group.group_rank, group.group_size, options)
    if settings["security"] != "off":
        # The engine has taken it out of the process's environment; this is Python's copy.
        os.environ.pop("MCAST_SECRET", None)
    _attach_fallbacks(backend, group, options)
    if metrics_file := settings["metrics_file"]:
        write_every_interval(metrics_file)
    return backend


def fallback_in_clear(stats: dict[str, Any], environment: Mapping[str, str]) -> bool:
    """Whether a fallback would carry over a network, in clear, what the group guards."""
    return (
        stats["security"]["mode"] != "off"
        and stats["path"] not in ("shared memory", "local")
        and environment.get("GLOO_DEVICE_TRANSPORT") != "TCP_TLS"
    )


def _attach_fallbacks(backend: Any, group: Any, options: Any) -> None:
    if options.fallback == "none":
        return
    stats = backend._stats()
    if fallback_in_clear(stats, os.environ):
        if options.fallback == "auto":
            return
        warnings.warn(
            f"torch_mcast: group {group.group_id} runs with security={stats['security']['mode']}, but "
            f"what its fallback {options.fallback} serves goes over the network in clear. "
            "GLOO_DEVICE_TRANSPORT=TCP_TLS with its certificates encrypts it",
            stacklevel=2,
        )
    store = dist.PrefixStore("mcast_fallback/", group.store)
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or engine_interface(stats["transport"])
    hosted = stats["transport_reason"].startswith("engine of this host")
    gloo = None
    if dist.is_gloo_available():
        gloo = _make_gloo_if_possible(hosted, store, group, interface)
    if gloo is not None:
        backend._set_fallback(gloo, "cpu")
    if not torch.cuda.is_available():
        return
    if options.fallback == "auto" and dist.is_nccl_available():
        backend._set_fallback(_make_nccl(store, group), "cuda")
    elif gloo is not None:
        backend._set_fallback(gloo, "cuda")


def _make_gloo_if_possible(hosted: bool, store: Any, group: Any, interface: str) -> Any:
    """Gloo, or None: a rank whose network is in the engine of its host may have none of its own."""
    if not hosted:
        return _make_gloo(store, group, interface)
    # The engine's interface need not be there for this process.
    try:
        return _make_gloo(store, group, os.environ.get("GLOO_SOCKET_IFNAME", ""))
    except RuntimeError as error:
        warnings.warn(
            f"torch_mcast: group {group.group_id} has no fallback, since this process has no network "
            f"that Gloo can use ({str(error).splitlines()[0]}); calls that need it will fail. "
            'Options(fallback="none") says that this is meant',
            stacklevel=2,
        )
        return None


def engine_interface(transport: str) -> str:
    """The interface in the engine's description of its transport ("udp eth0 10.0.0.1 ..."), or "". Of a
    stripe ("udp eth0+eth1 ...") the first."""
    found = re.match(r"udp ([^\s+]+)\S* ", transport)
    return found.group(1) if found else ""


def _gloo_device(interface: str) -> Any:
    # Lazy: connections are made by the first call that needs them, so a group that never does costs
    # little and nobody waits here. Not shared between groups: a lazy device tells incoming connections
    # apart by the peer's rank alone, and those of two groups would be mixed up (the calls then hang).
    from torch.distributed import ProcessGroupGloo

    if interface:
        return ProcessGroupGloo.create_device(interface=interface, lazy_init=True)
    return ProcessGroupGloo.create_default_device(lazy_init=True)


def _make_gloo(store: Any, group: Any, interface: str) -> Any:
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()
    options._timeout = group.timeout
    # GLOO_SOCKET_IFNAME may be a list: Gloo then spreads calls over several devices.
    options._devices = [_gloo_device(name.strip()) for name in interface.split(",")]
    options.group_name = str(group.group_id)
    options.global_ranks_in_group = list(group.global_ranks_in_group)
    gloo = ProcessGroupGloo(
        dist.PrefixStore("gloo/", store), group.group_rank, group.group_size, options
    )
    gloo._set_sequence_number_for_group()
    return gloo


def _make_nccl(store: Any, group: Any) -> Any:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = group.timeout
    options.group_name = str(group.group_id)
    options.global_ranks_in_group = list(group.global_ranks_in_group)
    return ProcessGroupNCCL(
        dist.PrefixStore("nccl/", store), group.group_rank, group.group_size, options
    )
