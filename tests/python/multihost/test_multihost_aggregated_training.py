"""Training through aggregators: losses and parameters are bitwise equal to those of the ranks alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import aggregated
import pytest
import torch
from contents import assert_same

from torch_mcast.lab.system import package_root

SCRIPT = Path(__file__).parents[3] / "examples" / "train_fsdp.py"
WIDTH, STEPS = 640, 4  # a layer is 1.6 MB


def trained(ctx, kind, order, aggregate):
    """Returns losses, parameters and stats; imports late, as FSDP takes a second."""
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import torch_mcast

    aggregated.join(ctx, fold=order, aggregate=aggregate)
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2 * WIDTH))
    if kind == "ddp":
        net = DistributedDataParallel(net)
    else:
        keywords = {"mesh": init_device_mesh("cpu", (ctx.world_size,))}
        if kind == "fsdp2_bf16":
            half = torch.bfloat16
            keywords["mp_policy"] = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half)
        for layer in (net[0], net[2]):
            fully_shard(layer, **keywords)
            layer._set_unshard_async_op(True)
        fully_shard(net, **keywords)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    torch.manual_seed(100 + ctx.rank)
    inputs, targets = torch.randn(8, WIDTH), torch.randn(8, 2 * WIDTH)
    losses = []
    for _ in range(STEPS):
        loss = (net(inputs).float() - targets).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    full = [p.full_tensor() if kind != "ddp" else p for p in net.parameters()]
    stats = torch_mcast.stats()
    torch.distributed.barrier()
    return losses, [p.detach().clone() for p in full], stats


@pytest.mark.parametrize("order", ["rank", "turn"])
@pytest.mark.parametrize("kind", ["fsdp2", "fsdp2_bf16", "ddp"])
def test_the_same_bits_as_on_the_ranks_alone(served, kind, order):
    cluster = served(4, 2)
    through = cluster.run(trained, kind, order, "both")
    alone = cluster.run(trained, kind, order, "off")
    for (losses, weights, stats), (reference, other, plain) in zip(through, alone, strict=True):
        assert losses == reference and losses[-1] < losses[0]
        for number, (mine, theirs) in enumerate(zip(weights, other, strict=True)):
            assert_same(mine, theirs, number)
        assert stats["counters"]["agg_operations"] >= STEPS and not stats["failure"]
        assert stats["counters"]["agg_results"] > 0 and stats["counters"]["agg_diverted"] == 0
        assert plain["counters"]["agg_operations"] == 0
        for calls in stats["calls"].values():
            assert calls["fallback"] == 0


def example(folder, aggregate):
    """Runs examples/train_fsdp.py as a user does. Returns its output."""
    out = folder / f"{aggregate}.json"
    settings = {"MCAST_AGGREGATE": aggregate, "MCAST_FOLD": "turn", "MCAST_INCAST": "64K"}
    paths = [package_root(), str(SCRIPT.parent), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-m", "torch_mcast", "lab", "run", "--hosts", "4", "--aggregators", "2",
         "--rate", "1gbit", "--multicast", "snooping", "--", sys.executable, str(SCRIPT),
         "--steps", "3", "--batch", "2", "--context", "32", "--width", "240", "--json", str(out)],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, **settings, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.all_tier
def test_the_example_has_the_same_losses(lab_rights, tmp_path):
    through, alone = example(tmp_path, "both"), example(tmp_path, "off")
    assert through["losses"] == alone["losses"] and len(alone["losses"]) == 3
    assert through["losses"][-1] < through["losses"][0]
    for stats, plain in zip(through["stats"], alone["stats"], strict=True):
        assert stats["counters"]["agg_results"] > 0 and plain["counters"]["agg_results"] == 0
