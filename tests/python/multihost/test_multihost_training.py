"""FSDP2, FSDP1 and DDP between hosts: parameters equal Gloo's, bit for bit with two ranks; with
more ranks Gloo adds in another order (the engine's is the order of ranks), so the last bits differ.
"""

import programs
import pytest
import torch
from contents import assert_same

all_tier = pytest.mark.all_tier
USED = {
    "fsdp2": ("all_gather_into_tensor", "reduce_scatter_tensor"),
    "fsdp1": ("all_gather", "reduce_scatter_tensor"),
    "ddp": ("broadcast", "all_reduce"),
}


def trained(ctx, backend, case):
    """Returns the parameters after a few steps; imports late, as FSDP takes a second."""
    import test_training

    import torch_mcast

    if backend == "mcast":
        programs.join(ctx)
    else:
        ctx.init_process_group(backend)
    parameters = {
        "fsdp2": lambda: test_training.fsdp2("fp32", None),
        "fsdp2_bf16": lambda: test_training.fsdp2("bf16", None),
        "fsdp1": test_training.fsdp1,
        "ddp": test_training.ddp,
    }[case]()
    return parameters, torch_mcast.stats() if backend == "mcast" else None


def assert_parity(cluster, case):
    ours = cluster.run(trained, "mcast", case)
    theirs = cluster.run(trained, "gloo", case)
    for (mine, stats), (reference, _) in zip(ours, theirs, strict=True):
        assert mine.keys() == reference.keys() and len(mine) == 5
        for name in mine:
            if len(ours) == 2:
                assert_same(mine[name], reference[name], name)
            elif "bf16" in case:
                # A gradient that rounds to a neighbouring value moves a weight by a step of the
                # optimizer.
                torch.testing.assert_close(mine[name], reference[name], rtol=0.02, atol=0.02)
            else:
                torch.testing.assert_close(mine[name], reference[name], rtol=1e-4, atol=1e-6)
        assert stats["path"] == "multicast"
        for op in USED[case.split("_")[0]]:
            assert stats["calls"][op]["engine"] > 0 and stats["calls"][op]["fallback"] == 0, op


@pytest.mark.parametrize("case", ["fsdp2", "ddp"])
def test_parity_with_gloo(four, case):
    assert_parity(four, case)


@all_tier
@pytest.mark.parametrize("case", ["fsdp2", "fsdp2_bf16", "fsdp1", "ddp"])
@pytest.mark.parametrize("number, per_host", [(2, 1), (3, 1), (4, 2), (8, 1), (4, 1)])
def test_parity_with_gloo_everywhere(hosts, number, per_host, case):
    assert_parity(hosts(number, per_host), case)


@all_tier
def test_parity_under_loss(four):
    from torch_mcast.lab import Loss

    four.lab.set_faults(Loss("2%"))
    assert_parity(four, "fsdp2")
