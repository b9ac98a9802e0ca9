"""Tensors whose bytes every rank can compute for every other rank, and their comparison."""

from __future__ import annotations

import torch

# All types that c10d moves; Gloo supports the first group only.
GLOO_DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
OTHER_DTYPES = [
    torch.bool,
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
DTYPES = GLOO_DTYPES + OTHER_DTYPES


def content(
    rank: int, shape: int | tuple[int, ...], dtype: torch.dtype, salt: int = 0
) -> torch.Tensor:
    """Returns a tensor of random bits, NaNs included."""
    shape = (shape,) if isinstance(shape, int) else shape
    count = 1
    for extent in shape:
        count *= extent
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    # Storage of this size: of a slice, an engine does not map the page that it shares.
    raw = torch.empty(count * dtype.itemsize, dtype=torch.uint8)
    # Drawing bytes would take six times as long.
    words = raw.numel() // 8 * 8
    raw[:words].view(torch.int64).random_(-(1 << 63), None, generator=generator)
    raw[words:].random_(0, 256, generator=generator)
    if dtype == torch.bool:
        raw &= 1
    return raw.view(dtype).view(shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def close(
    got: torch.Tensor, expected: torch.Tensor, what: object = "", rtol: float = 0, atol: float = 0
) -> None:
    """Compares as torch.testing.assert_close does, whose first call imports
    torch.distributed.tensor: a second of CPU time in each rank."""
    assert got.dtype == expected.dtype and got.shape == expected.shape, f"{what}: {got.dtype}"
    if not torch.allclose(got, expected, rtol, atol):
        wrong = ((got - expected).abs() > atol + rtol * expected.abs()).nonzero()
        raise AssertionError(f"{what}: {len(wrong)} of {got.numel()} differ, first at {wrong[:1]}")


def compare(got: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Compares two flat tensors of one type, in full."""
    if not torch.equal(got, expected):
        wrong = (got != expected).nonzero().flatten()
        raise AssertionError(
            f"{what}: {len(wrong)} of {len(got)} {got.dtype} differ, first at {wrong[0]}, last at {wrong[-1]}"
        )


def assert_same(got: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
    assert got.dtype == expected.dtype and got.shape == expected.shape, what
    compare(bits(got), bits(expected), what)
