"""docs/compatibility.md describes the actual behaviour of every operator and dtype."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, _make_nccl_premul_sum

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
COLUMNS = [
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
    [
        *(torch.int64, torch.int32, torch.int16, torch.int8),
        *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    ],
    [torch.bool],
    [torch.complex64, torch.complex128],
]


def served(operator: str, dtype: torch.dtype) -> bool:
    op = _make_nccl_premul_sum(0.5) if operator == "PREMUL_SUM" else getattr(ReduceOp, operator)
    tensor = torch.ones(8).to(dtype)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    options = dist.AllreduceOptions()  # dist.all_reduce() first makes complex tensors real
    options.reduceOp = op
    try:
        backend.allreduce([tensor], options).wait()
    except TypeError:
        return False
    return True


def all_of_them() -> dict[tuple[str, str], bool]:
    operators = ["SUM", "AVG", "PREMUL_SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
    return {
        (operator, str(dtype)): served(operator, dtype)
        for operator in operators
        for column in COLUMNS
        for dtype in column
    }


def test_the_table_of_operators(ranks):
    rows = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"^[A-Z_, ]+$", cells[0]):
            if len(cells) == 5:
                rows.update(dict.fromkeys(name.split(", "), cells[1:]))
    found = ranks(2, all_of_them)[0]
    assert set(rows) == {operator for operator, _ in found}
    for operator, cells in rows.items():
        for cell, column in zip(cells, COLUMNS, strict=True):
            for dtype in column:
                assert found[operator, str(dtype)] == (cell != "error"), (operator, dtype)
