"""torch.compile of DDP and FSDP2 models: losses and parameters equal those of the same model in
eager mode.

Inductor runs in a separate job, as in test_compiled.py."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from contents import close
from test_training_features import SHARDED, Net, sharded, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrun import torchrun
from training_jobs import Tensors, assert_equal, calls

# "blocks": each layer is compiled and then sharded. torch compiles nothing of a model that is
# sharded as a whole (2.13), but scripts do it.
MODELS = ("ddp", "fsdp2", "fsdp2_blocks")


def trained(kind: str, backend: str) -> tuple[Tensors, int]:
    """Returns the result of training and the number of compiled graphs."""
    graphs = 0

    def counting(graph, inputs, **_):
        nonlocal graphs
        graphs += 1
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    net: nn.Module = Net()
    torch._dynamo.reset()
    if backend and kind == "fsdp2_blocks":
        for name in ("first", "last"):
            setattr(net, name, torch.compile(getattr(net, name), backend=counting))
    net = DistributedDataParallel(net) if kind == "ddp" else sharded(net)
    if backend and kind != "fsdp2_blocks":
        net = torch.compile(net, backend=counting)
    results = {name.replace("_orig_mod.", ""): value for name, value in train(net).items()}
    return results, graphs


def compare_with_eager(kind: str, backend: str) -> tuple[Tensors, Tensors]:
    before = calls("engine")
    eager, none = trained(kind, "")
    assert none == 0
    between = calls("engine")
    compiled, graphs = trained(kind, backend)
    assert graphs > 0 or kind == "fsdp2"
    after = calls("engine")
    for name in ("all_reduce",) if kind == "ddp" else SHARDED:
        assert after[name] - between[name] == between[name] - before[name] > 0, name
    assert not calls("fallback").total()
    return eager, compiled


@pytest.mark.parametrize("ranks", ["network", "host"], indirect=True)
@pytest.mark.parametrize("kind", MODELS)
def test_compiled_models_equal_eager_ones(ranks, kind):
    """aot_eager traces forward and backward passes and runs the same kernels: the bits are the same."""
    for eager, compiled in ranks(2, compare_with_eager, kind, "aot_eager", limit_s=120):
        assert_equal(compiled, eager)


def job() -> None:
    """Runs as each rank of the job with inductor."""
    dist.init_process_group("cpu:mcast")
    for kind in MODELS:
        eager, compiled = compare_with_eager(kind, "inductor")
        for name in eager:
            close(compiled[name], eager[name], name, rtol=1e-4, atol=1e-5)
    dist.destroy_process_group()
    print(f"rank {os.environ['RANK']}: equal")


@pytest.mark.all_tier
def test_models_compiled_by_inductor_equal_eager_ones():
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="compiled-") as folder:
        link = Path(folder) / "packages"
        link.symlink_to(Path(torch.__file__).parents[1])
        done = subprocess.run(
            [*torchrun(2), __file__], capture_output=True, text=True, timeout=500, check=False,
            env={**os.environ, "MCAST_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                 "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache", "TMPDIR": folder,
                 "PYTHONPATH": os.pathsep.join([str(link), *filter(None, sys.path)])},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert {f"rank {r}: equal" for r in range(2)} <= set(done.stdout.splitlines())


if __name__ == "__main__":
    job()
