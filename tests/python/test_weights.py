"""torch_mcast.weights between ranks of one group: bytes, memory, checksums, roles, failures."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from torch_mcast import weights
from torch_mcast.weights import _content, _memory

NAME = "memfd:torch-mcast-weights"


def state(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    bits = torch.randint(0, 256, (40_000,), dtype=torch.uint8, generator=generator)
    return {
        "large": torch.randn(300, 200, generator=generator),
        "after": torch.arange(7) + version,
        "half": torch.randn(5, generator=generator).to(torch.bfloat16),
        "float8": bits[:17].view(torch.float8_e4m3fn),
        "words": bits[:64].view(torch.uint16),
        "complex": torch.randn(3, 2, dtype=torch.complex64, generator=generator).conj(),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.5 + version, dtype=torch.float64),
        "transposed": torch.randn(30, 20, generator=generator).t(),
        "flags": torch.tensor([True, False, True]),
        "ünïcode name": bits[100:103],
    }


def same(got: dict[str, torch.Tensor], version: int) -> None:
    wanted = state(version)
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype and got[name].shape == value.shape, name
        assert torch.equal(got[name].flatten().view(torch.uint8), flat(value)), name


def flat(value: torch.Tensor) -> torch.Tensor:
    return value.resolve_conj().contiguous().flatten().view(torch.uint8)


def mappings() -> set[str]:
    """Inodes of the memory of versions that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if NAME in line}


def descriptors() -> int:
    targets = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(NAME in target for target in targets)


def every_dtype() -> object:
    if dist.get_rank() == 0:
        assert [weights.send(state(1)), weights.send(iter(state(2).items()))] == [1, 2]
        return None
    for version in (1, 2):
        received = weights.receive()
        assert received.version == version
        same(dict(received), version)
    return None


@pytest.mark.parametrize("ranks", ["network", "host"], indirect=True)
def test_every_dtype_arrives(ranks):
    ranks(3, every_dtype)


@pytest.mark.parametrize("bucket", [1, 7, 64, 1000, 4096, 1 << 20])
def test_content_is_cut_anywhere(bucket):
    tensors = {f"t{n}": torch.randn(n * 3) for n in range(12)}
    sent = _content.Outgoing(tensors)
    got = _content.Incoming(sent.key, 1, sent.layout.total, len(sent.index))
    while got.done < sent.layout.total:
        piece = torch.empty(min(bucket, sent.layout.total - got.done), dtype=torch.uint8)
        sent.fill(piece, got.done)
        got.take(piece)
    assert got.verify(0) is None
    got.memory.seal()
    found = dict(_content.tensors_of(got.memory, len(sent.index)))
    assert list(found) == list(tensors)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert all(value.data_ptr() % 64 == 0 for value in found.values() if value.numel())


def test_a_bucket_that_is_filled_again_is_the_same():
    sent = _content.Outgoing(state(1))
    size = sent.layout.total
    first, again = torch.empty(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
    for begin in range(0, size, 1000):
        sent.fill(first[begin : begin + 1000], begin)
    for begin in range(5000, size, 1000):
        sent.fill(again[begin : begin + 1000], begin)
    assert torch.equal(first[5000:], again[5000:])


def shared_memory_of_a_host() -> object:
    channel = weights.Channel(bucket_bytes=10_000)
    if channel.version == 0 and dist.get_rank() == 0:
        for version in (1, 2):
            channel.send(state(version))
        return None
    got = dict(channel.receive())
    inodes = mappings()
    assert len(inodes) == 1
    if dist.get_rank() == 2:
        got["large"].fill_(7)  # this process's copy of the pages
    second = dict(channel.receive())  # rank 2 has written before it called this
    if dist.get_rank() != 2:
        same(got, 1)
    same(second, 2)
    assert len(mappings()) == 2
    del got, second
    assert not mappings(), "a mapping outlives its tensors"
    channel.close()
    assert descriptors() == 0
    return sorted(inodes)


def test_workers_of_a_host_share_sealed_memory(ranks):
    _, *found = ranks(4, shared_memory_of_a_host)
    assert found[0] == found[1] == found[2]


def test_sealed_memory_cannot_be_written():
    memory = _memory.Memory.create(4096)
    memory.write(0, memoryview(b"abc"))
    memory.seal()
    with pytest.raises(PermissionError):
        memory.write(0, memoryview(b"x"))
    with pytest.raises(PermissionError):
        os.ftruncate(memory._fd, 1)
    other = _memory.Memory.open(memory.place())
    assert bytes(other.map()[:3].tolist()) == b"abc"
    place = memory.place()
    memory.close()
    with pytest.raises(OSError):
        _memory.Memory.open(place)
    open_one = _memory.Memory.create(4096)
    with pytest.raises(OSError, match="has no sealed memory"):
        _memory.Memory.open(open_one.place())


def corrupted() -> object:
    channel = weights.Channel(bucket_bytes=50_000)
    if dist.get_rank() == 0:
        with pytest.raises(
            weights.WeightsError, match=r"rank 1 received other bytes: .* 'large'"
        ) as e:
            channel.send(state(1))
        assert e.value.version == 1 and list(e.value.workers) == [1]
        assert channel.left_out == e.value.workers
        assert channel.send(state(2)) == 1 and channel.left_out == {}
        return None
    if dist.get_rank() == 1:
        take = _content.Incoming.take

        def flip(self, bucket):
            if self.done >= 100_000:
                bucket[70] ^= 1
            take(self, bucket)

        _content.Incoming.take = flip
        try:
            with pytest.raises(weights.ChecksumError) as e:
                channel.receive()
        finally:
            _content.Incoming.take = take
        assert (e.value.tensor, e.value.version, e.value.sender) == ("large", 1, 0)
        assert "tensor 'large' of version 1 from rank 0 has CRC-32 0x" in str(e.value)
    else:
        with pytest.raises(weights.WeightsError, match="rank 1 received other bytes"):
            channel.receive()
    received = channel.receive()
    assert received.version == 1 == channel.version
    same(dict(received), 2)
    return None


def test_a_tensor_with_other_bytes_is_named(ranks):
    ranks(3, corrupted)


def late() -> object:
    channel = weights.Channel(limit=timedelta(seconds=1))
    if dist.get_rank() == 0:
        begin = time.monotonic()
        with pytest.raises(
            weights.WeightsError, match=r"rank 2 has not called receive\(\) within 1 s"
        ) as e:
            channel.send(state(1))
        assert time.monotonic() - begin < 10
        assert list(e.value.workers) == [2]
    elif dist.get_rank() == 1:
        with pytest.raises(weights.WeightsError, match="rank 2 has not called receive"):
            channel.receive()
    dist.barrier()
    if dist.get_rank() == 0:
        assert channel.send(state(1)) == 1
    else:
        same(dict(channel.receive()), 1)
    return None


def test_a_late_worker_is_named(ranks):
    ranks(3, late)


def trainers() -> object:
    """Ranks 0 and 1 are the trainer's: a tensor is sharded over them."""
    rank = dist.get_rank()
    theirs = dist.new_group([0, 1])
    whole = torch.arange(80.0).view(8, 10)
    if rank > 1:
        got = dict(weights.receive())
        assert torch.equal(got["sharded"], whole) and torch.equal(got["plain"], torch.ones(3))
        with pytest.raises(ValueError, match=f"rank {rank} has called receive"):
            weights.send({})
        return None
    mesh = DeviceMesh.from_group(theirs, "cpu")
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert weights.send({"sharded": sharded, "plain": torch.ones(3)}) == 1
    with pytest.raises(ValueError, match=f"rank {rank} belongs to the trainer"):
        weights.receive()
    return None


def test_ranks_of_a_trainer_gather_together(ranks):
    ranks(4, trainers)


def arguments() -> object:
    for wrong, kind, text in (
        ({"a": 1}, TypeError, "'a': expected a torch.Tensor, got int"),
        ({"s": torch.eye(2).to_sparse()}, TypeError, "'s': expected a dense tensor"),
        ([("a", torch.ones(1)), ("a", torch.ones(1))], ValueError, "two tensors are named 'a'"),
    ):
        with pytest.raises(kind, match=text):
            weights.send(wrong)
    with pytest.raises(ValueError, match="expected a bucket of 1 byte or more"):
        weights.Channel(bucket_bytes=0)
    with pytest.raises(ValueError, match="expected a rank from 0 to 1, got 2"):
        weights.Channel.connect("localhost", 1, 2, 2)
    return None


def test_wrong_arguments(ranks):
    ranks(1, arguments)


def no_worker() -> object:
    channel = weights.Channel(limit=timedelta(seconds=0.2))
    with pytest.raises(weights.WeightsError, match="no worker has called receive"):
        channel.send(state(1))
    return None


def test_without_workers_nothing_is_sent(ranks):
    ranks(1, no_worker)


def nobody_sends() -> object:
    if dist.get_rank() == 1:
        with pytest.raises(
            weights.WeightsError, match="got no version after 0 from rank 0 within 1 s"
        ):
            weights.receive()
    return None


def test_a_worker_does_not_wait_longer_than_the_timeout(ranks):
    ranks(2, nobody_sends, timeout_s=1)
