"""Ray, with workers on this host: `ray_jobs.py FOLDER`. Two workers of Ray Train over mcast and over Gloo write
FOLDER/BACKEND.RANK as train.py does; two actors of ray.util.collective write FOLDER/groups.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy
import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from ray.util import collective
from ray.util.collective.types import ReduceOp
from torch.utils.data import DataLoader
from train import BATCH, EPOCHS, RATE, data, network, report

import torch_mcast
from torch_mcast.adapters import ray_collective


def worker(told: dict[str, Any]) -> None:
    model = prepare_model(network())  # DDP
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = prepare_data_loader(DataLoader(data(), batch_size=BATCH))
    losses = []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    ray.train.report({"loss": losses[-1]})
    report(told["file"], losses)


def train(backend: str, folder: Path) -> None:
    TorchTrainer(
        worker,
        train_loop_config={"file": str(folder / backend)},
        torch_config=TorchConfig(backend=backend),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder / "storage"), name=backend),
    ).fit()


@ray.remote(num_cpus=0)
class Member:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        ray_collective.register()
        ray_collective.register()  # once more does nothing

    def join(self, size: int, name: str) -> None:
        collective.init_collective_group(size, self.rank, backend="MCAST", group_name=name)

    def leave(self, name: str) -> None:
        collective.destroy_collective_group(name)

    def call(self, name: str) -> dict[str, Any]:
        """What each operation gives in a group of two, on tensors and arrays of this rank."""
        mine = torch.arange(4.0) + 10 * self.rank
        results: dict[str, Any] = {}
        for title, op in (("sum", ReduceOp.SUM), ("max", ReduceOp.MAX)):
            tensor = mine.clone()
            collective.allreduce(tensor, name, op)
            results[title] = tensor
        array = mine.numpy().copy()
        collective.allreduce(array, name)
        results["array"] = torch.from_numpy(array)
        results["reduced"] = mine.clone()
        collective.reduce(results["reduced"], 1, name)
        results["sent to all"] = mine.clone()
        collective.broadcast(results["sent to all"], 1, name)
        parts = [torch.empty(4) for _ in range(2)]
        collective.allgather(parts, mine, name)
        results["gathered"] = torch.cat(parts)
        results["scattered"] = torch.empty(2)
        collective.reducescatter(results["scattered"], [mine[:2].clone(), mine[2:].clone()], name)
        results["received"] = mine.clone()
        if self.rank == 0:
            collective.send(mine, 1, name)
        else:
            collective.recv(results["received"], 0, name)
        collective.barrier(name)
        told = {title: tensor.tolist() for title, tensor in results.items()}
        return {**told, "calls": self.calls(name)}

    def calls(self, name: str) -> dict[str, int]:
        group = collective.get_group_handle(name).process_group
        return {call: row["engine"] for call, row in torch_mcast.stats(group)["calls"].items()}

    def wrong(self, name: str) -> str:
        try:
            collective.get_group_handle(name).allreduce([numpy.zeros(1), numpy.zeros(1)])
        except ValueError as error:
            return str(error)
        return ""

    def outlive(self, name: str) -> str:
        """The error of a call that the other rank has not survived."""
        try:
            collective.allreduce(torch.zeros(1), name)
        except RuntimeError as error:
            return str(error)
        return ""


def groups() -> dict[str, Any]:
    ray_collective.register()
    members = [Member.remote(rank) for rank in range(2)]
    told: dict[str, Any] = {}
    # Two groups at once, then one of a name that has been used; one declared by the driver.
    for step, name in enumerate(("a", "b", "a")):
        ray.get([member.join.remote(2, name) for member in members])
        told[f"{step} {name}"] = ray.get([member.call.remote(name) for member in members])
        if step == 1:
            ray.get([member.leave.remote("a") for member in members])
    collective.create_collective_group(members, 2, [0, 1], backend="MCAST", group_name="declared")
    told["declared"] = ray.get([member.call.remote("declared") for member in members])
    told["wrong"] = ray.get(members[0].wrong.remote("b"))
    ray.kill(members[1])
    told["outlived"] = ray.get(members[0].outlive.remote("b"))
    return told


def main() -> None:
    folder = Path(sys.argv[1])
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
    (folder / "groups.json").write_text(json.dumps(groups()))
    for backend in ("mcast", "gloo"):
        train(backend, folder)
    ray.shutdown()


if __name__ == "__main__":
    main()
