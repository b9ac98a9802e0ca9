"""A small GPT (Radford et al. 2019) over bytes, and batches of real text. The text is the source of Python's
standard library, which exists on every machine that can run this."""

import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 256  # bytes


class Block(nn.Module):
    """Attention and MLP with pre-normalisation; [batch, time, width] in and out."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).unbind(2)
        a = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(a.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Next-byte predictor: [batch, time] int64 -> [batch, time, 256] logits."""

    def __init__(self, width: int, layers: int, heads: int, context: int):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.token(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def standard_library_text(limit: int = 8 << 20) -> torch.Tensor:
    """Returns the bytes of the standard library's .py files in name order, at most `limit`, as uint8."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"\n".join(f.read_bytes() for f in files)[:limit]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batch(text: torch.Tensor, step: int, rank: int, size: int, context: int):
    """Returns inputs and targets of batch `step` of this rank, [size, context] int64. They are the same
    for every backend."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    starts = torch.randint(len(text) - context - 1, (size,), generator=generator)
    rows = torch.stack([text[s : s + context + 1] for s in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]
