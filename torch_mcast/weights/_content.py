"""Content of a version: the index, the bytes of the tensors, and their checksums.

    index                JSON: name, dtype, shape, offset and bytes of each tensor
    tensors              in the order in which they were given, each at a multiple of 64 bytes
    checksums            CRC-32 of each tensor's bytes, little-endian, in the same order

The content is cut into buckets of one size, without regard to tensors: a bucket holds many small tensors or a
part of a large one. The checksums come last, so that the sender needs no pass over the data before it sends.

CRC-32 is zlib's: it is part of Python, releases the interpreter's lock, runs faster than memory is copied
(3.8 GB/s on one core of the machine in benchmarks/README.md), and notices pages that were swapped, which
torch.hash_tensor, a sum by XOR, does not. The network path has checksums of its own. These find what goes
wrong beside it: in the staging, in the memory of a host, in this package.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from torch_mcast.weights._errors import ChecksumError, WeightsError
from torch_mcast.weights._memory import Memory

ALIGNMENT = 64  # bytes: of tensors within the content, enough for views of every dtype
CHECKSUM = 4  # bytes

NamedTensors = Iterable[tuple[str, torch.Tensor]] | Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Entry:
    """A tensor of the content. `offset` counts bytes from the beginning of the content."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def aligned(value: int) -> int:
    return -(-value // ALIGNMENT) * ALIGNMENT


def on_host(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in host memory, as one row. Contiguous CPU tensors are not copied."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"weights: {name!r}: expected a torch.Tensor, got {type(tensor).__name__}")
    whole = getattr(tensor, "full_tensor", None)  # DTensor: a collective of its mesh
    if callable(whole):
        tensor = whole()
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(
            f"weights: {name!r}: expected a dense tensor, got {tensor.layout}, {tensor.dtype}"
        )
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return (
        tensor.view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    )


class Layout:
    """Places of tensors in a content of `total` bytes."""

    def __init__(self, entries: list[Entry], total: int) -> None:
        self.entries = entries
        self.total = total
        self.checksums_at = total - CHECKSUM * len(entries)
        self._offsets = [entry.offset for entry in entries]

    def overlaps(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Number of each tensor with bytes in [begin, end), and which bytes of the content those are."""
        for number in range(max(bisect_right(self._offsets, begin) - 1, 0), len(self.entries)):
            entry = self.entries[number]
            if entry.offset >= end:
                return
            low, high = max(begin, entry.offset), min(end, entry.offset + entry.nbytes)
            if low < high:
                yield number, low, high


def crc_of(part: torch.Tensor, before: int) -> int:
    return zlib.crc32(memoryview(part.numpy()), before)


class Outgoing:
    """Content at the sender. Holds references to the tensors: their values must not change until it is
    sent."""

    def __init__(self, named_tensors: NamedTensors) -> None:
        pairs = named_tensors.items() if isinstance(named_tensors, Mapping) else named_tensors
        self.key = uuid.uuid4().hex  # a version that failed is sent again under the same number
        rows, described, seen, offset = [], [], set[str](), 0
        for name, tensor in pairs:
            if name in seen:
                raise ValueError(f"weights: two tensors are named {name!r}")
            seen.add(name)
            row = on_host(name, tensor)
            dtype = str(tensor.dtype).removeprefix("torch.")
            described.append([name, dtype, list(tensor.shape), offset, row.numel()])
            rows.append(row)
            offset = aligned(offset + row.numel())
        self.index = json.dumps(described).encode()
        data = aligned(len(self.index))
        entries = entries_of(self.index, data)
        self.layout = Layout(entries, data + offset + CHECKSUM * len(entries))
        self._rows = rows
        self._crcs = [0] * len(rows)
        self._summed = 0  # bytes of the content whose checksums are in _crcs

    def fill(self, bucket: torch.Tensor, begin: int) -> None:
        """Writes the content from byte `begin` on into the bucket (uint8, CPU)."""
        end = begin + bucket.numel()
        bucket.zero_()
        if begin < len(self.index):
            head = bytearray(self.index[begin:end])
            bucket[: len(head)] = torch.frombuffer(head, dtype=torch.uint8)
        for number, low, high in self.layout.overlaps(begin, end):
            offset = self.layout.entries[number].offset
            part = bucket[low - begin : high - begin]
            part.copy_(self._rows[number][low - offset : high - offset])
            if low >= self._summed:  # not in an attempt that repeats buckets
                self._crcs[number] = crc_of(part, self._crcs[number])
        self._summed = max(self._summed, end)
        low = max(begin, self.layout.checksums_at)
        if low < end:
            all_crcs = struct.pack(f"<{len(self._crcs)}I", *self._crcs)
            first = low - self.layout.checksums_at
            tail = bytearray(all_crcs[first : first + end - low])
            bucket[low - begin :] = torch.frombuffer(tail, dtype=torch.uint8)


def entries_of(index: bytes, data: int) -> list[Entry]:
    """Reads an index. `data` is where the tensors begin in the content."""
    entries = []
    for name, dtype, shape, offset, nbytes in json.loads(index):
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype):
            raise WeightsError(
                f"weights: {name!r}: this torch ({torch.__version__}) has no {dtype}"
            )
        entries.append(Entry(name, kind, tuple(shape), data + offset, nbytes))
    return entries


class Incoming:
    """Content at the receiver of a host, written into sealed memory as buckets arrive in order.

    Attributes:
        key: The sender's key of the content.
        done: Bytes that have arrived.
    """

    def __init__(self, key: str, version: int, total: int, index: int) -> None:
        self.key = key
        self.version = version
        self.done = 0
        self.memory = Memory.create(total)
        self._index = index  # bytes
        self._layout: Layout | None = None
        self._crcs: list[int] = []

    def take(self, bucket: torch.Tensor) -> None:
        begin, end = self.done, self.done + bucket.numel()
        self.memory.write(begin, memoryview(bucket.numpy()))
        self.done = end
        if self._layout is None and end >= self._index:
            entries = entries_of(self.memory.read(0, self._index), aligned(self._index))
            self._layout = Layout(entries, self.memory.size)
            self._crcs = [0] * len(entries)
        if self._layout is not None:
            for number, low, high in self._layout.overlaps(begin, end):
                part = bucket[low - begin : high - begin]
                self._crcs[number] = crc_of(part, self._crcs[number])

    def verify(self, sender: int) -> ChecksumError | None:
        """Returns the error of the first tensor whose bytes are not those of the sender."""
        assert self._layout is not None
        count = len(self._crcs)
        sent = self.memory.read(self._layout.checksums_at, CHECKSUM * count)
        for entry, ours, theirs in zip(
            self._layout.entries, self._crcs, struct.unpack(f"<{count}I", sent), strict=True
        ):
            if ours != theirs:
                return ChecksumError(
                    f"weights: tensor {entry.name!r} of version {self.version} from rank {sender} has "
                    f"CRC-32 {ours:#010x}, but the sender had {theirs:#010x} ({entry.nbytes} bytes, "
                    f"{entry.dtype}). Hint: the memory of a host is faulty, or the tensor changed while "
                    "it was sent",
                    self.version,
                    entry.name,
                    sender,
                )
        return None


def tensors_of(memory: Memory, index: int) -> list[tuple[str, torch.Tensor]]:
    """Views of the tensors in sealed memory."""
    content = memory.map()
    named = []
    for entry in entries_of(bytes(memoryview(content[:index].numpy())), aligned(index)):
        if entry.nbytes:
            part = content[entry.offset : entry.offset + entry.nbytes]
            named.append((entry.name, part.view(entry.dtype).view(entry.shape)))
        else:
            named.append((entry.name, torch.empty(entry.shape, dtype=entry.dtype)))
    return named
