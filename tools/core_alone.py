#!/usr/bin/env python3
"""Checks a build without products: `tools/core_alone.py BUILD`, as `make test-core` makes it.

No symbol of a product may be in the core's library or in the extension. Two ranks run operations over the
network and over shared memory, and settings that name a product fail by name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCTS = re.compile(
    r"mcast::(?:service|ipc|sim|aggregation)::|mcast::(?:Stations|RosterChange|RegistrarThread|ClientGroup|"
    r"ClientLink|StoreClient|place)\b|mcast::verbs::(?!absent)"
)
RANK = """
import sys, torch, torch.distributed as dist, torch_mcast
store, rank, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("mcast", init_method=f"file://{store}", rank=rank, world_size=2)
for size in (0, 1, 1000, 1 << 20):
    mine = torch.arange(size, dtype=torch.float32) + rank
    parts = torch.empty(2 * size)
    dist.all_gather_into_tensor(parts, mine)
    assert torch.equal(parts, torch.cat([torch.arange(size) + 0.0, torch.arange(size) + 1.0]))
    dist.all_reduce(mine)
    assert torch.equal(mine, 2.0 * torch.arange(size) + 1)
    dist.broadcast(mine, 1)
dist.barrier()
assert torch_mcast.stats()["path"] == path, torch_mcast.stats()["path"]
dist.destroy_process_group()
"""
REFUSED = """
import torch.distributed as dist, torch_mcast, tempfile
try:
    dist.init_process_group("mcast", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=2)
except dist.DistBackendError as error:
    print(error)
"""


def symbols(file: Path) -> list[str]:
    said = subprocess.run(
        ["nm", "-C", "--defined-only", file], capture_output=True, text=True, check=True
    )
    return [line for line in said.stdout.splitlines() if PRODUCTS.search(line)]


def run(package: Path, script: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """In `package`, since Python looks for torch_mcast in the current folder first."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, cwd=package,
        env={**os.environ, "PYTHONPATH": str(package), "MCAST_SOCKET_IFNAME": "=lo", **env},
    )  # fmt: skip


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    wrong = []
    for file in (build / "libmcast_core.a", *(build / "torch_mcast").glob("_C.*.so")):
        wrong += [f"{file.name} has {line}" for line in symbols(file)[:5]]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        names = ["*.so", "_build_info.py", "mcast-*", "__pycache__"]
        shutil.copytree(
            ROOT / "torch_mcast", package / "torch_mcast", ignore=shutil.ignore_patterns(*names)
        )
        shutil.copytree(build / "torch_mcast", package / "torch_mcast", dirs_exist_ok=True)
        for path, setting in (("multicast", "off"), ("shared memory", "auto")):
            store = str(package / path.replace(" ", "-"))
            ranks = [
                run(package, RANK, store, str(r), path, MCAST_SHARED_MEMORY=setting)
                for r in range(2)
            ]
            for rank, process in enumerate(ranks):
                said = process.communicate(timeout=300)[0]
                if process.returncode:
                    wrong.append(f"rank {rank} over {path}: {said}")
        for settings, part in (
            ({"MCAST_ENGINE": "host"}, "this build has no engine of the host"),
            ({"MCAST_AGGREGATORS": "127.0.0.1:7117"}, "this build has no aggregation"),
        ):
            said = run(package, REFUSED, **settings).communicate(timeout=300)[0]
            if part not in said:
                wrong.append(f"{settings}: {said}")
    print("\n".join(wrong) or "the core is alone")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
