"""Effects that an attacker with access to the store of a guarded job can have once the group exists."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from test_citizen import backend_of

from torch_mcast.secret import new

MARK = re.compile(rb"/([ -~]*mcast_monitored/[ -~]*?)(\d+)/1(?![ -~])")


def marks_of_an_absent_rank() -> str:
    """Rank 1 does not call the second monitored_barrier(); an attacker writes its mark to the store.
    Only the attacker reads the store's file, which then holds the forged marks too."""
    backend = backend_of()
    dist.barrier()
    backend.monitored_barrier()
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if dist.get_rank() == 1:
        prefix, number = MARK.findall(Path(store.path).read_bytes())[-1]
        for more in range(1, 5):
            store.set(f"{prefix.decode()}{int(number) + more}/1", "here")
        store.set("forged", "all")
        return ""
    store.wait(["forged"])
    with pytest.raises(RuntimeError) as refused:
        backend.monitored_barrier(timedelta(seconds=3))
    return str(refused.value)


def test_a_forged_mark_lets_no_rank_pass_a_monitored_barrier(ranks, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(new())
    secret.chmod(0o600)
    env = {"MCAST_SECURITY": "sealed", "MCAST_SECRET_FILE": str(secret), "MCAST_JOB": "marks"}
    told, _ = ranks(2, marks_of_an_absent_rank, env=env)
    assert "barrier" in told and ("has left" in told or "rank 1" in told), told


def everybody() -> int:
    backend_of().monitored_barrier()
    total = torch.ones(3)
    dist.all_reduce(total)
    backend_of().monitored_barrier()
    return int(total.sum())


def test_a_guarded_group_passes_monitored_barriers(ranks, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(new())
    secret.chmod(0o600)
    env = {"MCAST_SECURITY": "sealed", "MCAST_SECRET_FILE": str(secret), "MCAST_JOB": "marks"}
    assert ranks(3, everybody, env=env) == [9, 9, 9]
