"""Creates one process group: its settings, the engine's group, and the group that torch.distributed
keeps. torch.distributed calls this on all ranks of the group."""

from __future__ import annotations

import copy
import os
import sys
import warnings
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d

from torch_mcast import _fallback  # (now: a process without free descriptors cannot import later)
from torch_mcast._load import end_with_process, extension
from torch_mcast._metrics import write_every_interval
from torch_mcast._names import BACKEND
from torch_mcast._options import ours_of

# True if this process has created a guarded group.
_guarded = False


def _refuse_clear(backend: Any, name: str) -> None:
    """Refuses an unguarded group beside a guarded one. Options belong to one group: if only the
    first group of a job was created with security, the groups that new_group() or a DeviceMesh
    creates later would be sent unencrypted."""
    modes = {group["security"]["mode"] for group in extension().groups()} if _guarded else set()
    _, path = backend._mode_and_path()
    for mode in sorted(modes - {"off"})[:1]:
        if _fallback.in_clear(BACKEND, mode, path, {}):
            backend.abort()
            raise RuntimeError(
                f"torch_mcast: group '{name}' has security=off, but another group has security={mode}: "
                "its traffic would be unencrypted. Options are for one group; set MCAST_SECURITY and "
                "MCAST_SECRET_FILE for all groups of the process, or allow it by MCAST_SECURITY_MIXED=1"
            )


def create(group: Any, options: Any) -> Any:
    """Creates the backend of one group: the creator function that is registered (extended API)."""
    module = extension()
    end_with_process()
    given = options
    if (ours := ours_of(options)) is not None:
        options = copy.deepcopy(ours)
    elif options is None or isinstance(options, Backend.Options):
        # c10d passes the one pg_options of a group to each of its backends: options of NCCL are for
        # our fallback.
        options = module.Options()
    else:
        raise TypeError(
            f"pg_options of the mcast backend must be torch_mcast.Options, got {type(options).__module__}."
            f"{type(options).__qualname__}"
        )
    if options.nccl is None and hasattr(given, "is_high_priority_stream"):
        options.nccl = given
    if options.engine_memory == "map_all":
        module.replace_cpu_allocator()
    options.timeout = group.timeout
    options.group_name = str(group.group_id)
    options.global_ranks_in_group = list(group.global_ranks_in_group)
    if getattr(group, "enable_reconfigure", False):  # torch 2.14
        options.enable_reconfigure = True
    settings = options.resolved()
    backend = module.ProcessGroupMcast(group.store, group.group_rank, group.group_size, options)
    if settings["security"] != "off":
        # The engine has removed it from the process's environment; this removes Python's copy.
        os.environ.pop("MCAST_SECRET", None)
        global _guarded
        _guarded = True
    elif settings["security_mixed"] != "1":
        _refuse_clear(backend, options.group_name)
    if metrics_file := settings["metrics_file"]:
        write_every_interval(metrics_file)
    return backend


def create_on(
    store: Any,
    rank: int,
    ranks: list[int],
    name: str,
    timeout: timedelta,
    options: Any,
    enable_reconfigure: bool = False,
) -> Any:
    """Creates the backend of a group that torch.distributed does not know: this process is number `rank`
    of `ranks`, which is what errors call them. `options`: as for create()."""
    group = SimpleNamespace(
        store=store,
        group_rank=rank,
        group_size=len(ranks),
        timeout=timeout,
        group_id=name,
        global_ranks_in_group=ranks,
        enable_reconfigure=enable_reconfigure,
    )
    return create(group, options)


def in_its_group(backend: Any, group: Any, options: Any, caller: Any) -> Any:
    """Returns `backend`, or the ProcessGroup that c10d shall keep instead of the one it is about to
    put the backend into. `caller` is the frame that called the creator.

    c10d names groups of third-party backends "custom", gives groups that were requested by device
    ("cpu:mcast") no default backend, and takes two third-party backends for the same one. A creator
    is told neither the group (before torch 2.14) nor the requested devices, so this function reads
    the caller's variables. If they differ from those of torch 2.11 to 2.15, the group keeps what
    c10d gives it."""
    there = caller.f_locals if caller.f_code.co_name == "_new_process_group_helper" else {}
    try:
        devices = there["backend_config"].get_device_backend_map()
        prefix_store, device, plain = there["prefix_store"], there["device_id"], there["pg"]
    except (KeyError, AttributeError):
        return backend
    others = set(devices.values()) - {BACKEND}
    if others and _CUSTOM not in map(_type_of, others):
        if plain._get_backend_name() == "undefined":
            plain._set_default_backend(_CUSTOM)
        return backend
    if others:
        mixed = dist.ProcessGroup(prefix_store, group.group_rank, group.group_size)
        _fill(mixed, plain, devices, _checked(backend, group), group, options)
        return mixed
    named = extension().named_group(prefix_store, group.group_rank, group.group_size)
    named._set_default_backend(_CUSTOM)
    if device is not None:
        named.bound_device_id = device
    checked = _checked(backend, group)
    for name in devices:
        named._register_backend(torch.device(name), _CUSTOM, checked)
    return named


_CUSTOM = dist.ProcessGroup.BackendType.CUSTOM


def _type_of(name: str) -> Any:
    return dist.Backend.backend_type_map.get(name, _CUSTOM)


def _checked(backend: Any, group: Any) -> Any:
    """Wraps the backend as c10d does: with TORCH_DISTRIBUTED_DEBUG=DETAIL in a wrapper that
    compares shapes through Gloo. A guarded group gets no wrapper, since the wrapper's traffic would
    be unencrypted."""
    if dist.get_debug_level() != dist.DebugLevel.DETAIL or not dist.is_gloo_available():
        return backend
    if isinstance(backend, extension().ProcessGroupMcast):
        mode, path = backend._mode_and_path()
        mixed = backend.options.resolved()["security_mixed"] == "1"
        if _fallback.in_clear("gloo", mode, path, os.environ) and not mixed:
            warnings.warn(
                f"torch_mcast: group '{group.group_id}' runs with security={mode}: "
                "TORCH_DISTRIBUTED_DEBUG=DETAIL does not compare its calls, since torch's wrapper would send "
                "unencrypted; MCAST_SECURITY_MIXED=1 allows it",
                stacklevel=2,
            )
            return backend
    return distributed_c10d._create_process_group_wrapper(
        wrapped_pg=backend,
        store_prefix=str(group.group_id),
        store=group.store,
        rank=group.group_rank,
        world_size=group.group_size,
        timeout=group.timeout,
    )


def _fill(
    mixed: Any, plain: Any, devices: dict[str, str], ours: Any, group: Any, options: Any
) -> None:
    """Gives `mixed` the backends of all devices: ours and other third-party ones. A group keeps one
    backend of each type, and all third-party backends have the same type, so c10d would use the
    first for both devices. Ours gets a type that no other backend has. `plain` is c10d's group,
    with the backends of the devices that were named before ours."""
    made = {device.type for device in plain._device_types}
    mixed._set_default_backend(_CUSTOM)
    for name, kind in devices.items():
        device, backend_type = torch.device(name), _type_of(kind)
        if kind == BACKEND:
            backend, backend_type = ours, dist.ProcessGroup.BackendType.UNDEFINED
        elif name in made:
            backend = plain._get_backend(device)
        else:
            # c10d creates these options anew for each backend; ours exists already.
            group.store = dist.PrefixStore(f"{name}/", mixed.get_group_store())
            backend = _other(name, kind, group, options)
        if plain.bound_device_id is not None:  # also a device that a creator has chosen
            mixed.bound_device_id = plain.bound_device_id
        mixed._register_backend(device, backend_type, backend)


def _other(device: str, kind: str, group: Any, options: Any) -> Any:
    """Creates the backend of a device that was named after ours, as c10d would."""
    if hasattr(dist.Backend, "_ensure_backend_registered"):  # torch 2.14
        dist.Backend._ensure_backend_registered(kind)
    plugin = dist.Backend._plugins.get(kind.upper())
    if plugin is None:
        raise ValueError(
            "torch_mcast: if another of several backends is not part of torch either, mcast must be named "
            f"last: name {device}:{kind} before it"
        )
    if plugin.extended_api:
        return _checked(plugin.creator_fn(group, options), group)
    made = plugin.creator_fn(group.store, group.group_rank, group.group_size, group.timeout)
    return _checked(made, group)


def create_in_group(group: Any, options: Any) -> Any:
    # The registered creator calls this function, and c10d calls the creator.
    return in_its_group(create(group, options), group, options, sys._getframe(2))
