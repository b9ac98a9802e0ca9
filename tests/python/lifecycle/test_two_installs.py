"""Two installations of torch_mcast on this machine, of two versions, and a job whose ranks use one
or the other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from named_errors import by_rank, check_error

import torch_mcast

HERE = Path(torch_mcast.__file__).parent
OURS = torch_mcast.__version__
OTHER = re.sub(r"\d", "9", OURS)  # of equal length
RANKS = 3
SCRIPT = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
import torch_mcast
rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
print("version", torch_mcast.__version__, "of", torch_mcast.__file__, flush=True)

def gather(first, store):
    dist.init_process_group("mcast", store=dist.FileStore(store, world - first), rank=rank - first,
                            world_size=world - first, timeout=timedelta(seconds=60))
    output = torch.zeros(world - first)
    dist.all_gather_into_tensor(output, torch.full((1,), 1.0 + rank))
    print("gathered", output.tolist(), flush=True)
    dist.destroy_process_group()

try:
    gather(0, store)
except dist.DistBackendError as error:
    print(error, flush=True)
if rank > 0:
    gather(1, store + " of 1 and 2")
"""


@pytest.fixture(scope="module")
def other_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a folder with a copy of another version: two modules contain the version, and one
    compiled file, as text."""
    site = tmp_path_factory.mktemp("site")
    copy = site / "torch_mcast"
    shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("__pycache__", "mcast-*"))
    ours, other = f"\0{OURS}\0".encode(), f"\0{OTHER}\0".encode()
    (extension,) = copy.glob("_C.*.so")
    code = extension.read_bytes()
    assert code.count(ours) == 1
    extension.write_bytes(code.replace(ours, other))
    for module in ("_build_info.py", "__init__.py"):
        text = (copy / module).read_text()
        assert text.count(f'"{OURS}"') == 1, module
        (copy / module).write_text(text.replace(OURS, OTHER))
    return site


def job(folder: Path, sites: list[Path]) -> list[str]:
    """Returns the output of each rank; rank i has the package in sites[i]."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(len(sites)), str(folder / "store")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(site), "MCAST_SOCKET_IFNAME": "lo",
                 "GLOO_SOCKET_IFNAME": "lo", "MCAST_SHARED_MEMORY": "off"},
        )
        for rank, site in enumerate(sites)
    ]  # fmt: skip
    try:
        return [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize("other", [pytest.param([0], marks=pytest.mark.all_tier), [1, 2]])
def test_all_ranks_are_told_who_has_which(other_site, tmp_path, other):
    """Ranks 1 and 2, which have the same install, then make a group of their own."""
    sites = [other_site if rank in other else HERE.parent for rank in range(RANKS)]
    for rank, text in enumerate(job(tmp_path, sites)):
        version = OTHER if rank in other else OURS
        assert f"version {version} of {sites[rank]}" in text, text
        assert f"rank {rank} of {RANKS} could not make group '0': mismatch: " in text, text
        said = by_rank(check_error(text, "version_differs"), "version")
        assert set(said.values()) == {OURS, OTHER} and 0 in said, text
        assert all(has == (OTHER if r in other else OURS) for r, has in said.items()), text
        assert ("gathered [2.0, 3.0]" in text) == (rank > 0), text
