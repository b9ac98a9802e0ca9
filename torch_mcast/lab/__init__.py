"""A switched cluster of network namespaces on one Linux machine.

    from torch_mcast.lab import Lab, LabSpec, Loss

    with Lab(LabSpec(hosts=4, rate="1gbit", faults=[Loss("1%", hosts=["h2"])])) as lab:
        lab.run("h1", ["ping", "-c1", lab.host("h2").address])

Needs root or user namespaces, iproute2, nftables, ethtool. Never imports torch.
"""

from torch_mcast.lab.counters import Counters, Port
from torch_mcast.lab.network import Lab
from torch_mcast.lab.spec import BitErrors, Fault, LabSpec, Loss
from torch_mcast.lab.system import LabError, LabRightsError
from torch_mcast.lab.topology import Host

__all__ = [
    "BitErrors",
    "Counters",
    "Fault",
    "Host",
    "Lab",
    "LabError",
    "LabRightsError",
    "LabSpec",
    "Loss",
    "Port",
]
