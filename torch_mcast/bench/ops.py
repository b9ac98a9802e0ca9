"""The measured operations on one backend's groups: buffers, the call, the check. Imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from torch_mcast.bench.groups import Groups

_LAYERS = 4
_BATCH = 4
_PERIOD = 251
# This name exists since torch 2.13, where the other one warns.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_NOTHING = float("nan")  # equals no result


class Case:
    """One operation of one size, ready to run(). verify() runs it once over outputs filled with
    wrong values, and returns whether the result is right.

    size: bytes, a multiple of 4 x world. Values are small integers, so that sums are exact.
    """

    def __init__(self, op: str, size: int, groups: Groups) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._groups = groups
        self._items = size // 4
        build: dict[str, Callable[[], None]] = {
            "broadcast": self._broadcast,
            "all_gather": self._all_gather,
            "reduce_scatter": self._reduce_scatter,
            "all_reduce": self._all_reduce,
            "all_to_all": self._all_to_all,
            "gather": self._gather,
            "scatter": self._scatter,
            "send_recv": self._send_recv,
            "ag_rs": self._pair,
            "fsdp2": self._fsdp2,
            "fsdp2_async": lambda: self._fsdp2(prefetch=True),
            "barrier": self._barrier,
        }
        self.run: Callable[[], Any]
        self._right: Callable[[], bool]
        self._spoil: Callable[[], Any] = lambda: None
        build[op]()

    def verify(self) -> bool:
        self._spoil()
        self.run()
        return self._right()

    @staticmethod
    def _tile(period: torch.Tensor, count: int) -> torch.Tensor:
        return period.repeat(-(-count // _PERIOD))[:count].contiguous()

    @staticmethod
    def _period(rank: int, first: int) -> torch.Tensor:
        return ((torch.arange(first, first + _PERIOD) * 7 + rank * 13) % _PERIOD).float()

    def _ramp(self, count: int, rank: int, first: int = 0) -> torch.Tensor:
        """Returns values of rank's buffer from position `first`: float32 integers 0..250 that
        differ by position and rank, with a period of which no buffer size or chunk size is a
        multiple."""
        return self._tile(self._period(rank, first), count)

    def _sum(self, first: int, count: int) -> torch.Tensor:
        periods = [self._period(rank, first) for rank in range(self.world)]
        return self._tile(torch.stack(periods).sum(0), count)

    def _broadcast(self) -> None:
        group, tensor = self._groups.first, torch.zeros(self._items)
        if self.rank == 0:
            tensor.copy_(self._ramp(self._items, 0))
        self.run = lambda: dist.broadcast(tensor, 0, group=group)
        self._right = lambda: torch.equal(tensor, self._ramp(self._items, 0))
        if self.rank != 0:
            self._spoil = lambda: tensor.fill_(_NOTHING)

    _Buffers = tuple[torch.Tensor, torch.Tensor, Callable[[], bool]]

    def _gather_buffers(self) -> _Buffers:
        shard = self._items // self.world
        output, part = torch.zeros(self._items), self._ramp(shard, self.rank)

        def right() -> bool:
            return all(
                torch.equal(output[r * shard : (r + 1) * shard], self._ramp(shard, r))
                for r in range(self.world)
            )

        return output, part, right

    def _reduce_buffers(self) -> _Buffers:
        shard = self._items // self.world
        output, whole = torch.zeros(shard), self._ramp(self._items, self.rank)
        return output, whole, lambda: torch.equal(output, self._sum(self.rank * shard, shard))

    def _all_gather(self) -> None:
        output, part, self._right = self._gather_buffers()
        self._spoil = lambda: output.fill_(_NOTHING)
        self.run = lambda: all_gather_single(output, part, group=self._groups.first)

    def _reduce_scatter(self) -> None:
        output, whole, self._right = self._reduce_buffers()
        self._spoil = lambda: output.fill_(_NOTHING)
        self.run = lambda: dist.reduce_scatter_tensor(output, whole, group=self._groups.first)

    def _all_reduce(self) -> None:
        # In place: repeated sums would overflow, so the timed runs sum zeros. For the check, the
        # input is what verify() overwrites.
        tensor = torch.zeros(self._items)

        def run() -> None:
            dist.all_reduce(tensor, group=self._groups.first)

        def right() -> bool:
            good = torch.equal(tensor, self._sum(0, self._items))
            tensor.zero_()
            return good

        self.run, self._right = run, right
        self._spoil = lambda: tensor.copy_(self._ramp(self._items, self.rank))

    def _all_to_all(self) -> None:
        shard = self._items // self.world
        output, whole = torch.zeros(self._items), self._ramp(self._items, self.rank)

        def right() -> bool:
            return all(
                torch.equal(
                    output[r * shard : (r + 1) * shard], self._ramp(shard, r, self.rank * shard)
                )
                for r in range(self.world)
            )

        self._right = right
        self._spoil = lambda: output.fill_(_NOTHING)
        self.run = lambda: dist.all_to_all_single(output, whole, group=self._groups.first)

    def _gather(self) -> None:
        output, part, right = self._gather_buffers()
        rows = list(output.chunk(self.world)) if self.rank == 0 else None
        self._right = right if self.rank == 0 else lambda: True
        self._spoil = lambda: output.fill_(_NOTHING)
        self.run = lambda: dist.gather(part, rows, dst=0, group=self._groups.first)

    def _scatter(self) -> None:
        shard = self._items // self.world
        output = torch.zeros(shard)
        parts = list(self._ramp(self._items, 0).chunk(self.world)) if self.rank == 0 else None
        self._right = lambda: torch.equal(output, self._ramp(shard, 0, self.rank * shard))
        self._spoil = lambda: output.fill_(_NOTHING)
        self.run = lambda: dist.scatter(output, parts, src=0, group=self._groups.first)

    def _send_recv(self) -> None:
        group = self._groups.first
        ahead, behind = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        output, whole = torch.zeros(self._items), self._ramp(self._items, self.rank)

        def run() -> None:
            sent = dist.isend(whole, group=group, group_dst=ahead)
            dist.recv(output, group=group, group_src=behind)
            assert sent is not None
            sent.wait()

        self.run = run
        self._right = lambda: torch.equal(output, self._ramp(self._items, behind))
        self._spoil = lambda: output.fill_(_NOTHING)

    def _pair(self) -> None:
        output, part, gathered = self._gather_buffers()
        shard, whole, reduced = self._reduce_buffers()

        def run() -> None:
            one = all_gather_single(output, part, group=self._groups.first, async_op=True)
            two = dist.reduce_scatter_tensor(shard, whole, group=self._groups.second, async_op=True)
            one.wait()
            two.wait()

        def spoil() -> None:
            output.fill_(_NOTHING)
            shard.fill_(_NOTHING)

        self.run, self._spoil = run, spoil
        self._right = lambda: gathered() and reduced()

    def _barrier(self) -> None:
        self.run = lambda: dist.barrier(group=self._groups.first)
        self._right = lambda: True

    def _fsdp2(self, prefetch: bool = False) -> None:
        """Trains square layers whose parameters have `size` bytes together, with a batch so small
        that communication dominates the step. The check compares the gradient with one computed
        without sharding.

        prefetch: all-gathers are asynchronous and started one layer ahead. CPU tensors have no
        streams, so without prefetch FSDP2 waits for each collective where it calls it."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        width = max(self.world, round((self._items / _LAYERS) ** 0.5))
        generator = torch.Generator().manual_seed(7)
        weights = [
            torch.randn(width, width, generator=generator) / width**0.5 for _ in range(_LAYERS)
        ]
        inputs = torch.randn(self.world, _BATCH, width, generator=generator)

        def model() -> torch.nn.Sequential:
            layers = torch.nn.Sequential(
                *(torch.nn.Linear(width, width, bias=False) for _ in range(_LAYERS))
            )
            with torch.no_grad():
                for layer, weight in zip(layers, weights, strict=True):
                    layer.weight.copy_(weight)
            return layers

        sharded = model()
        mesh = DeviceMesh.from_group(self._groups.first, "cpu")
        for layer in sharded:
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        if prefetch:
            sharded._set_unshard_async_op(True)
            for layer, following in itertools.pairwise(sharded):
                layer.set_modules_to_forward_prefetch([following])
        # With a learning rate of 0 the optimizer does its work and every step has the same
        # gradient.
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.0)

        def run() -> None:
            optimizer.zero_grad()
            sharded(inputs[self.rank]).square().sum().backward()
            optimizer.step()

        def right() -> bool:
            if sharded[0].weight.grad is None:
                return False
            plain = model()
            (plain(inputs.flatten(0, 1)).square().sum() / self.world).backward()
            mine = sharded[0].weight.grad.to_local()
            whole = plain[0].weight.grad.chunk(self.world)
            expected = whole[self.rank] if self.rank < len(whole) else mine
            return torch.allclose(mine[: len(expected)], expected, rtol=1e-3, atol=1e-3)

        def spoil() -> None:
            for parameter in sharded.parameters():
                parameter.grad = None

        self.run, self._right, self._spoil = run, right, spoil
