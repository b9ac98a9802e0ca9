"""Trains a small network with DDP on backend "mcast". DDP broadcasts the initial weights and averages
gradients by all_reduce. The script needs only torch:

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--backend", default="mcast", help="backend of torch.distributed [mcast]")
    p.add_argument("--steps", type=int, default=20, metavar="N", help="training steps [20]")
    p.add_argument("--width", type=int, default=256, metavar="N", help="hidden units [256]")
    args = p.parse_args()
    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # weights differ until DDP broadcasts those of rank 0
    layers = torch.nn.Sequential(
        torch.nn.Linear(32, args.width), torch.nn.Tanh(), torch.nn.Linear(args.width, 1)
    )
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(1000 + rank)  # each rank has its own data
    for step in range(args.steps):
        x = torch.randn(64, 32, generator=data)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0 and step in (0, args.steps - 1):
            print(f"step {step}: loss {mean.item() / world:.6f}")
    # DDP must leave the same weights on all ranks.
    total = torch.stack([w.detach().double().sum() for w in model.parameters()])
    mine = total.clone()
    dist.broadcast(total, src=0)
    if not torch.equal(mine, total):
        raise SystemExit(f"rank {rank} has other weights than rank 0")
    if rank == 0:
        print(f"{world} ranks have the same weights")
        if args.backend == "mcast":
            import torch_mcast

            print(f"path: {torch_mcast.stats()['path']}: {torch_mcast.stats()['reason']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
