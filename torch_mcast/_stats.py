"""What a process group did: public helpers that take an ordinary torch.distributed group."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from torch_mcast import _fallback
from torch_mcast._load import extension


def backend_of(group: Any = None) -> Any:
    """The ProcessGroupMcast behind `group` (None: the default group); ValueError if it has none."""
    if group is None:
        group = dist.group.WORLD
    if group is None:
        raise ValueError(
            "torch_mcast: there is no default process group; call init_process_group()"
        )
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("torch_mcast: this rank is not a member of the group")
    ours, others = split_backends(group)
    if ours:
        return ours[0]
    raise ValueError(f"torch_mcast: the group has no mcast backend (it has {_names(others)})")


def split_backends(group: Any) -> tuple[list[Any], list[Any]]:
    """The backends of `group` (None: the default group): ours, and the others."""
    if group is None:
        group = dist.group.WORLD
    kind = extension().ProcessGroupMcast
    candidates = [group]
    if isinstance(group, dist.ProcessGroup):
        candidates = [group._get_backend(torch.device(d)) for d in _device_types(group)]
    ours: list[Any] = []
    others: list[Any] = []
    for candidate in candidates:
        # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking wrapper around the backend.
        while not isinstance(candidate, kind) and hasattr(candidate, "wrapped_pg"):
            candidate = candidate.wrapped_pg
        found = ours if isinstance(candidate, kind) else others
        if candidate not in found:
            found.append(candidate)
    return ours, others


def _device_types(group: Any) -> list[str]:
    return sorted({device.type for device in group._device_types})


def _names(candidates: list[Any]) -> str:
    return ", ".join(sorted({candidate.name() for candidate in candidates})) or "none"


def stats(group: Any = None) -> dict[str, Any]:
    """Counters and facts of `group` on this rank, since it was made.

    path        "multicast", "ring", "shared memory" or "local", and `reason`: why
    transport   interface, addresses, MTU, buffers, in one line
    transport_reason  why that transport: what was asked for, or which rank has no verbs and why; begins
                with "engine of this host (process N): " where that runs the network
    contributions  to a block of a reduction: "one per rank", or "one per host (4)": those of a host
                   are folded there first
    fold        order of the contributions in a reduction: "rank" or "turn" (setting)
    streams     large broadcasts and all-gathers are received by "every rank", or by
                "one rank per host (4)", of which the others on the host take them
    aggregators  on rank 0, of each address in MCAST_AGGREGATORS: {"address", "state": "asking",
                "admitted", "refused", "unreachable", "lost" or "draining", "reason", "stations",
                "capacity" in links of a rank}; elsewhere, and in groups of one host, empty
    aggregation  what the planner has made of the last large "all_reduce" and "reduce_scatter" (in
                groups of several hosts): {"sequence", "bytes" of a rank's whole input, "reason":
                "placed", or why ranks fold all of it, "part" that aggregators fold, "own"
                contribution of a segment's owner: "kept" or "sent", "stations": [{"address",
                "capacity" in links of a rank, "part", "lost"}], "measured": on rank 0 {"with_ms",
                "without_ms"} aggregators, or None, "planned" and "workers": the same as planned,
                in bytes / rate of a link, "ratio" of these}
    waiting     on rank 0, while aggregators miss contributions: {"sequence" of the operation,
                "ranks", "ms" since the last contribution to that segment}; else None
    partial     reductions that ended without late ranks: {"limit_ms" (setting `partial`),
                "not_served": why none does, or "", "operations", "excused": of these without this
                rank's input, "last": {"sequence", "ranks" whose inputs are missing,
                "contributors"} or None}
    calls       {operation: {"engine": n, "fallback": n}}; `bytes`: of the engine's outputs
    counters    {name: n}, both lanes together, see torch_mcast._C.counters() for their meaning;
                reduce_counters: the reduce lane's part of them
    repairs     {peer rank: {"received_bytes": n, "sent_bytes": n}}
    security    {"mode": setting `security`, "suite" and "library" of a guarded group
                that uses a network, else "", "trust_store": whether the secret came through the store,
                "keys_locked": false: they may be written to swap (`ulimit -l`),
                "sealed" and "opened": datagrams of this rank and of others, "epoch": of this rank's
                latest, "untried": datagrams that its lanes did not try to open, since too many before
                were forged, "clear_fallback_calls": that went over the network in clear, "causes":
                {cause: what the group's lanes have refused for it, see torch_mcast._C.causes()},
                "sources_watched" (setting `monitor`), "sources": [{"address", "refused", "inherited": of
                these at most so many are another source's, "causes"}], the ten with most}
    device      pinned host memory that collectives on device tensors of this process hold: {"pinned_bytes":
                now, "pinned_peak": at most so far, "pinned_waits": calls that waited for earlier ones,
                since together they would have held more than the setting `device_pinned`}
    failure     why the group cannot be used any more, or ""
    """
    told = backend_of(group)._stats()
    # NCCL is no fallback of a group whose traffic it would carry in clear, so these calls are Gloo's.
    clear = _fallback.in_clear("gloo", told["security"]["mode"], told["path"], os.environ)
    calls = sum(row["fallback"] for row in told["calls"].values()) if clear else 0
    told["security"]["clear_fallback_calls"] = calls
    return told


def config(group: Any = None) -> dict[str, str]:
    """The settings `group` was made with, as text (durations in ms)."""
    return backend_of(group)._config()


def contributors(work: Any) -> int:
    """How many ranks' inputs are in the result of a reduction that is complete: the group's size,
    unless the setting `partial` has let it end without late ranks. AVG has divided by as many."""
    return extension().contributors(work)


def abort(group: Any = None) -> None:
    """Fails everything in flight on all ranks of `group`, and every later call. Any thread."""
    backend_of(group).abort()


def clear_failure(device: torch.device | str | int | None = None) -> None:
    """Lets calls on `device` (None: on any) through again after a failure under device_failure=raise.

    Call it when the tensors that were undefined, and what was computed from them, have been restored. A
    number is one of the current accelerator, as for torch.device().
    """
    extension().clear_failure(None if device is None else str(torch.device(device)))
