"""FSDP2, FSDP1 and DDP between hosts: parameters bit for bit those that Gloo gives."""

import programs
import pytest
from contents import assert_same

all_tier = pytest.mark.all_tier
USED = {"fsdp2": "all_gather_into_tensor", "fsdp1": "all_gather", "ddp": "broadcast"}


def trained(ctx, backend, case):
    """Parameters after a few steps; imports late, as FSDP costs a second."""
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
            assert_same(mine[name], reference[name], name)
        assert stats["path"] == "multicast"
        assert stats["calls"][USED[case.split("_")[0]]]["engine"] > 0


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
