"""A rank that creates a group per interface pattern and prints the interfaces that engine and
doctor each took."""

import os
import sys
from datetime import timedelta

import torch.distributed as dist

import torch_mcast
from torch_mcast.doctor import netif

os.environ["MCAST_SHARED_MEMORY"] = "off"  # both ranks are on one host
port = int(os.environ["MASTER_PORT"])
for number, pattern in enumerate(sys.argv[1:]):
    os.environ["MCAST_SOCKET_IFNAME"] = pattern
    os.environ["MASTER_PORT"] = str(port + number)
    dist.init_process_group("mcast", timeout=timedelta(seconds=60))
    transport = torch_mcast.stats()["transport"]
    dist.destroy_process_group()
    chosen, _ = netif.choose_interface(netif.list_interfaces(), pattern)
    print(f"{pattern}|{chosen.name} {chosen.address}|{transport}", flush=True)
