"""NCCL as the fallback of CUDA tensors, with stand-ins for torch's class: the arguments that a
group passes to it, and the error if torch has none."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d

import torch_mcast
from torch_mcast import _fallback
from torch_mcast._stats import backend_of

LIMIT = timedelta(seconds=37)


class PlainOptions(Backend.Options):
    """Defined as in every torch from 2.11 to 2.15. Has the fields of NCCL's options, and accepts
    nothing else."""

    __slots__ = ("config", "is_high_priority_stream", "split_color", "split_from")

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__("nccl", timedelta(seconds=600))
        self.is_high_priority_stream = is_high_priority_stream
        self.config, self.split_color, self.split_from = 0, 0, None


class NotThis:
    """The class that "nccl" means from torch 2.15 on."""

    def __init__(self, *args: Any) -> None:
        raise AssertionError(f"made with {args}: it would wait for ranks that do not make the call")


def options_of_nccl() -> Any:
    """Returns torch's own class if it exists: its names are then checked even without a GPU."""
    there = getattr(distributed_c10d, "ProcessGroupNCCL", None)
    return PlainOptions if there is None else there.Options


def stand_in(made: list[tuple[Any, ...]]) -> Any:
    """Returns a substitute for NCCL's class, which creates Gloo backends and records its arguments."""

    class Nccl:
        Options = options_of_nccl()

        def __new__(cls, store: Any, rank: int, size: int, options: Any) -> Any:
            made.append((store, rank, size, options))
            gloo = dist.ProcessGroupGloo._Options()
            gloo._timeout = options._timeout
            gloo._devices = [dist.ProcessGroupGloo.create_default_device(lazy_init=True)]
            return dist.ProcessGroupGloo(store, rank, size, gloo)

    return Nccl


def with_nccl(patch: pytest.MonkeyPatch, newest: bool) -> list[tuple[Any, ...]]:
    """Sets up torch's two layouts of classes: up to 2.13, and with a second class next to the first."""
    made: list[tuple[Any, ...]] = []
    patch.setattr(dist, "ProcessGroupNCCL", stand_in(made), raising=False)
    if newest:
        patch.setattr(dist, "ProcessGroupNCCL2", NotThis, raising=False)
        patch.setattr(dist.Backend, "_plugins", {**dist.Backend._plugins, "NCCL": NotThis})
    return made


def check_made(made: list[tuple[Any, ...]], group: dist.ProcessGroup, members: list[int]) -> None:
    """Checks that one backend was created, for this group."""
    backend = backend_of(group)
    ((store, rank, size, options),) = made
    assert (rank, size) == (members.index(dist.get_rank()), len(members))
    assert isinstance(store, dist.PrefixStore)
    # Its keys have their own prefix in the store of the group's fallbacks.
    store.set(f"of {rank}", "here")
    assert dist.PrefixStore("nccl/", backend._fallback_store()).check([f"of {rank}"])
    assert options._timeout == LIMIT
    assert options.group_name == backend.options.group_name == group.group_name
    assert list(options.global_ranks_in_group) == members


def what_it_is_given(newest: bool) -> None:
    members = [0, 2]
    group = dist.new_group(members, timeout=LIMIT)
    if dist.get_rank() not in members:
        return
    with pytest.MonkeyPatch.context() as patch:
        made = with_nccl(patch, newest)
        _fallback.make(backend_of(group), "nccl")
        check_made(made, group, members)


@pytest.mark.parametrize("newest", [False, True], ids=["one class", "two classes"])
def test_nccl_is_made_as_part_of_the_group(ranks, newest):
    ranks(3, what_it_is_given, newest)


def given_options() -> Any:
    options = options_of_nccl()(is_high_priority_stream=True)
    options.split_color = 7
    if isinstance(options, PlainOptions):
        options.config = 11
    else:
        options.config.min_ctas = 11
    return options


def what_was_given(options: Any) -> tuple[bool, int, int]:
    config = options.config if isinstance(options, PlainOptions) else options.config.min_ctas
    return options.is_high_priority_stream, options.split_color, config


def options_of(kind: str) -> Any:
    given = given_options()
    ours = torch_mcast.Options(eager="16K")
    if kind == "nccl":
        return given
    if kind == "both":
        return torch_mcast.options_by_backend({"mcast": ours, "nccl": given})
    return torch_mcast.Options(eager="16K", nccl=given)


def what_options_give(kind: str) -> None:
    """Uses one object for two groups, as meshes do: each group sets its own fields."""
    given = options_of(kind)
    for members in ([0, 1], [1, 0]):
        with pytest.MonkeyPatch.context() as patch:
            made = with_nccl(patch, newest=False)
            patch.setattr(_fallback, "kind", lambda backend, device: "nccl")
            group = dist.new_group(members, timeout=LIMIT, pg_options=given, sort_ranks=False)
            backend = backend_of(group)
            assert backend.options.resolved()["eager"] == ("32768" if kind == "nccl" else "16384")
            rank = dist.get_rank()
            dist.all_reduce(torch.sparse_coo_tensor([[rank]], [1.0], (2,)), group=group)
            check_made(made, group, members)
            assert what_was_given(made[0][-1]) == (True, 7, 11)
            assert made[0][-1] is not given
            dist.destroy_process_group(group)


@pytest.mark.parametrize("kind", ["nccl", "nccl= of ours", "both"])
def test_nccl_gets_the_options_that_were_given(ranks, kind):
    ranks(2, what_options_give, kind)


def test_options_that_no_backend_takes_are_refused():
    with pytest.raises(
        TypeError, match=r"nccl: expected torch\.distributed\.ProcessGroupNCCL\.Options"
    ):
        torch_mcast.Options(nccl=3)
    assert torch_mcast.Options(nccl=None).nccl is None
    given = PlainOptions()
    ours = torch_mcast.Options(nccl=given)
    assert ours.nccl is given and copy.deepcopy(ours).nccl is given
    by_backend = torch_mcast.options_by_backend
    for wrong in (
        {},
        {"mcast": ours},
        {"nccl": given},
        {"mcast": ours, "nccl": given, "gloo": given},
    ):
        with pytest.raises(ValueError, match='expected "mcast" and one other backend'):
            by_backend(wrong)
    with pytest.raises(TypeError, match=r'"mcast": expected torch_mcast\.Options, got'):
        by_backend({"mcast": given, "nccl": given})


def at_the_first_call() -> None:
    """The extension creates it once, in the call that needs it, and it serves that call."""
    rank, world = dist.get_rank(), dist.get_world_size()
    with pytest.MonkeyPatch.context() as patch:
        made = with_nccl(patch, newest=True)
        patch.setattr(_fallback, "kind", lambda backend, device: "nccl")
        group = dist.new_group(timeout=LIMIT)
        assert not made
        for _ in range(2):
            tensor = torch.sparse_coo_tensor([[rank]], [1.0], (world,))
            dist.all_reduce(tensor, group=group)
            assert tensor.to_dense().tolist() == [1.0] * world
        check_made(made, group, list(range(world)))


@pytest.mark.parametrize("ranks", ["network", "host"], indirect=True)
def test_nccl_is_made_once_at_the_first_call(ranks):
    ranks(3, at_the_first_call)


def lacking() -> None:
    """A torch without the class: a CPU build, or one from which it was removed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(dist, "ProcessGroupNCCL", raising=False)
        patch.setattr(_fallback, "kind", lambda backend, device: "nccl")
        group = dist.new_group()
        tensor = torch.sparse_coo_tensor([[0]], [1.0], (4,))
        expected = (
            f"group {group.group_name} has no fallback for cuda tensors, since this torch has no NCCL; "
            r'install a torch that has it, or use Options\(fallback="gloo"\) on all ranks'
        )
        with pytest.raises(NotImplementedError, match=expected):
            dist.all_reduce(tensor, group=group)
    # The failed call sent no data: the group still works.
    total = torch.ones(4)
    dist.all_reduce(total, group=group)
    assert total.tolist() == [float(dist.get_world_size())] * 4


def test_torch_without_nccl_is_named(ranks):
    ranks(2, lacking)


def choice() -> None:
    """Chooses the fallback of CUDA tensors by the backends that this torch has."""
    backend = backend_of()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        for nccl, gloo, kind in (
            (True, True, "nccl"),
            (True, False, "nccl"),
            (False, True, "gloo"),
            (False, False, ""),
        ):
            patch.setattr(dist, "is_nccl_available", lambda there=nccl: there)
            patch.setattr(dist, "is_gloo_available", lambda there=gloo: there)
            assert _fallback.kind(backend, "cuda") == kind
            assert _fallback.kind(backend, "cpu") == ("gloo" if gloo else "")
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(dist, "is_nccl_available", lambda: True)
        assert _fallback.kind(backend, "cuda") == ""


def test_nccl_is_chosen_where_torch_has_it(ranks):
    ranks(1, choice)
