"""Makes the rows about GPUs out of plain data: from sysfs, the driver and torch's build."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_mcast.doctor import fixes
from torch_mcast.doctor.findings import Finding, Verdict, ok
from torch_mcast.doctor.gpu import sysfs
from torch_mcast.doctor.gpu.sysfs import Machine, Nic, PciDevice
from torch_mcast.doctor.job.ranks import spans

_NOT_READY, _MISMATCH, _NO_DEVICE, _UNKNOWN = 802, 803, 100, 999  # CUresult
_HOST_PATH = "CUDA tensors of groups inside this host take NCCL or pinned memory"
_EXCLUSIVE = {1: "exclusive thread", 3: "exclusive process"}
_PROHIBITED = 2


@dataclass(frozen=True)
class Torch:
    """version: "" if torch is not installed; cuda, hip: what it was built for, "" if not; nccl: its
    version, "" if it has none."""

    version: str = ""
    cuda: str = ""
    hip: str = ""
    nccl: str = ""


@dataclass(frozen=True)
class Facts:
    """environment: of the process; usable: interfaces that are up and have an address; chosen: the one
    that groups use; pid_namespace: "" for the host's own; required: GPUs are a must (--gpu)."""

    machine: Machine
    driver: Mapping[str, Any]
    torch: Torch
    environment: Mapping[str, str] = field(default_factory=dict)
    usable: Sequence[str] = ()
    chosen: str = ""
    pid_namespace: str = ""
    required: bool = False

    @property
    def devices(self) -> list[dict[str, Any]]:
        return list(self.driver["devices"])

    @property
    def bad(self) -> Verdict:
        """Verdict of a fault that makes GPUs useless. Without --gpu the job may use CPU tensors only."""
        return Verdict.FAIL if self.required else Verdict.WARN

    @property
    def ranks(self) -> int:
        """Ranks of this host; 0 without a launcher."""
        text = self.environment.get("LOCAL_WORLD_SIZE", "")
        return int(text) if text.isascii() and text.isdigit() else 0

    @property
    def visible(self) -> str:
        return self.environment.get("CUDA_VISIBLE_DEVICES", "")

    def pci(self, ordinal: int) -> PciDevice | None:
        return self.machine.device(self.devices[ordinal]["pci"])


def grouped(values: Mapping[int, str]) -> str:
    """ "GPU 0-3: x; GPU 4-7: y" """
    groups: dict[str, list[int]] = {}
    for number, value in values.items():
        groups.setdefault(value, []).append(number)
    return "; ".join(f"GPU {spans(numbers)}: {value}" for value, numbers in groups.items())


def version_text(cuda: int) -> str:
    """ "13.0" of 13000."""
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def _cause(facts: Facts) -> tuple[str, str]:
    """(why the driver gives no GPU, what to do about it)."""
    problem, code = facts.driver["problem"], facts.driver["code"]
    nvidia = [gpu for gpu in facts.machine.gpus if gpu.vendor == sysfs.NVIDIA]
    inside = "in a container: docker run --gpus all ... (NVIDIA Container Toolkit)"
    if code == _NOT_READY:
        return problem, (
            "systemctl start nvidia-fabricmanager  (GPUs behind NVSwitches need it; "
            "its version must be the driver's)"
        )
    if code == _MISMATCH:
        return problem, "reboot, or reload the modules: libcuda is newer or older than the kernel's"
    if facts.visible.strip() in ("-1", "NoDevFiles") or (
        "CUDA_VISIBLE_DEVICES" in facts.environment and not facts.visible.strip()
    ):
        return f"CUDA_VISIBLE_DEVICES={facts.visible} hides all GPUs", "unset CUDA_VISIBLE_DEVICES"
    if not facts.machine.nodes and (nvidia or problem):
        return f"{problem or 'no GPU'}; /dev has no nvidia device", (
            f"nvidia-smi; without the driver: install it; {inside}"
        )
    if code == _UNKNOWN and "nvidia-uvm" not in facts.machine.nodes:
        return f"{problem}; /dev/nvidia-uvm is missing", "nvidia-modprobe -u -c 0"
    return problem or "the driver sees no GPU", f"nvidia-smi; dmesg | grep -i NVRM; {inside}"


def judge_gpus(facts: Facts) -> Finding:
    """Reports the GPUs of this process. The other rows need some."""
    devices, machine = facts.devices, facts.machine
    present = [gpu for gpu in machine.gpus if gpu.vendor == sysfs.NVIDIA]
    data = {
        "devices": devices,
        "on_pci": [gpu.address for gpu in present],
        "problem": facts.driver["problem"],
    }
    if not devices:
        problem, fix = _cause(facts)
        found = f"{len(present)} NVIDIA GPU(s) on PCI, none usable" if present else "no usable GPU"
        return Finding("gpus", f"{found}: {problem}", facts.bad, fix, data)
    names = grouped({n: _described(device) for n, device in enumerate(devices)})
    modes = {n: device["compute_mode"] for n, device in enumerate(devices)}
    if prohibited := [n for n, mode in modes.items() if mode == _PROHIBITED]:
        text = f"{names}; GPU {spans(prohibited)}: compute mode Prohibited"
        return Finding("gpus", text, facts.bad, "nvidia-smi -c DEFAULT", data)
    exclusive = [n for n, mode in modes.items() if mode in _EXCLUSIVE]
    if exclusive and facts.ranks > len(devices):
        text = f"{names}; {facts.ranks} ranks cannot share them: compute mode Exclusive"
        return Finding("gpus", text, facts.bad, "nvidia-smi -c DEFAULT", data)
    hidden = len(present) - len({device["pci"] for device in devices})
    if hidden > 0:
        why = f" (CUDA_VISIBLE_DEVICES={facts.visible})" if facts.visible else ""
        names += f"; {hidden} more on PCI are not visible to this process{why}"
    return ok("gpus", names, **data)


def _described(device: Mapping[str, Any]) -> str:
    text = f"{device['name']}, {device['memory'] / (1 << 30):.0f} GiB"
    if device["major"] is not None:
        text += f", compute {device['major']}.{device['minor']}"
    return text + (", MIG instance" if device.get("mig") else "")


def judge_driver(facts: Facts) -> Finding:
    """Compares the driver's CUDA with the one that torch was built for."""
    driver, torch = facts.driver, facts.torch
    release = driver["driver"] or facts.machine.driver or "of unknown version"
    text = f"driver {release}, CUDA {version_text(driver['cuda'])}"
    data = {"driver": release, "cuda": driver["cuda"], "torch": torch.version, "built": torch.cuda}
    if not torch.version:
        return Finding("gpu driver", f"{text}; torch is not installed", Verdict.WARN, "", data)
    if not torch.cuda:
        text += f"; torch {torch.version} was built without CUDA and cannot use the GPUs"
        public = torch.version.partition("+")[0]
        return Finding(
            "gpu driver", text, facts.bad, fixes.torch(public, "--force-reinstall"), data
        )
    text += f"; torch {torch.version} was built for CUDA {torch.cuda}"
    needed = int(torch.cuda.partition(".")[0])
    if (
        driver["cuda"] // 1000 < needed
    ):  # within a major version older drivers serve newer libraries
        text += f", which needs a driver with CUDA {needed}"
        fix = f"install a newer driver, or a torch for CUDA {version_text(driver['cuda'])}"
        return Finding("gpu driver", text, facts.bad, f"{fix}: {fixes.TORCH_INDEX}", data)
    return ok("gpu driver", text, **data)


def judge_nccl(facts: Facts) -> Finding:
    """Reports NCCL, which reduces CUDA tensors and needs a GPU per rank."""
    torch, count = facts.torch, len(facts.devices)
    data = {"nccl": torch.nccl, "gpus": count, "ranks": facts.ranks}
    if not torch.nccl:
        text = f"torch {torch.version} has no NCCL: reductions of CUDA tensors pass pinned memory"
        return Finding("nccl", text, Verdict.WARN, "", data)
    text = f"NCCL {torch.nccl} of torch"
    if facts.ranks > count:
        text += f"; {facts.ranks} ranks share {count} GPU(s), which it refuses"
        fix = 'Options(fallback="none") on all ranks, or a GPU per rank'
        return Finding("nccl", text, Verdict.WARN, fix, data)
    return ok("nccl", f"{text}: the fallback for CUDA tensors, reduces them", **data)


def _link(facts: Facts, one: int, other: int, nvlink: bool | None) -> str:
    """How two GPUs are connected."""
    if nvlink:
        return "NVLink"
    first, second = facts.pci(one), facts.pci(other)
    if first is None or second is None:
        return "an unknown path"
    path = sysfs.NAMES[sysfs.level(first, second)]
    return f"PCIe through {path}" + ("" if nvlink is False else ", or NVLink")


def judge_peers(facts: Facts) -> Finding:
    """Reports which GPUs can read each other's memory, and by which path."""
    pairs = facts.driver["peers"]
    rows = [
        {"gpus": [a, b], "reach": reach, "nvlink": nvlink, "path": _link(facts, a, b, nvlink)}
        for a, b, reach, nvlink in pairs
    ]
    data = {"pairs": rows}
    if not rows:
        also = f" (CUDA_VISIBLE_DEVICES={facts.visible})" if facts.visible else ""
        return ok("gpu peers", f"one GPU is visible{also}: no peers to try", **data)
    apart = [row for row in rows if not row["reach"]]
    links: dict[str, int] = {}
    for row in rows:
        links[row["path"]] = links.get(row["path"], 0) + 1
    paths = ", ".join(f"{count} by {path}" for path, count in links.items())
    if not apart and len(rows) == 1:
        return ok("gpu peers", f"both GPUs reach each other: by {rows[0]['path']}", **data)
    if not apart:
        return ok("gpu peers", f"all {len(rows)} pairs reach each other: {paths}", **data)
    named = ", ".join("-".join(map(str, row["gpus"])) for row in apart[:6])
    named += ", ..." if len(apart) > 6 else ""
    text = f"{len(apart)} of {len(rows)} pairs do not reach each other (GPU {named}; {paths})"
    if any(device.get("mig") for device in facts.devices):
        text += ": MIG instances have no peers"
        fix = "nvidia-smi -mig 0 -i GPU  (root; ends what runs on the GPU)"
    else:
        fix = (
            "nvidia-smi topo -p2p r names the reason. Consumer cards have no peers over PCIe; in virtual "
            "machines and with ACS or an IOMMU the host must allow them"
        )
    return Finding("gpu peers", f"{text}. {_HOST_PATH}", Verdict.WARN, fix, data)


def judge_export(facts: Facts) -> Finding:
    """Reports whether another process of this host can map memory of the GPUs."""
    lacking = {
        n: device
        for n, device in enumerate(facts.devices)
        if not (device["vmm"] and device["posix_fd"])
    }
    data = {
        "vmm": [device["vmm"] for device in facts.devices],
        "posix_fd": [device["posix_fd"] for device in facts.devices],
        "pid_namespace": facts.pid_namespace,
    }
    if lacking:
        text = f"GPU {spans(list(lacking))} cannot export memory as a file descriptor"
        if "dxg" in facts.machine.nodes:
            text += " (WSL)"
        elif any(device["integrated"] for device in lacking.values()):
            text += " (integrated GPU)"
        return Finding("gpu memory export", f"{text}. {_HOST_PATH}", Verdict.WARN, "", data)
    text = "memory can be exported to other processes (VMM, POSIX descriptors)"
    if facts.pid_namespace:
        text += "; in a container: only its own processes share memory, so run all ranks of a host in one"
    return ok("gpu memory export", text, **data)


def judge_pcie(facts: Facts) -> list[Finding]:
    """Reports NUMA nodes and narrow links. No row where sysfs does not show the GPUs."""
    found = {n: pci for n in range(len(facts.devices)) if (pci := facts.pci(n))}
    if not found:
        return []
    nodes = grouped(
        {
            n: f"NUMA node {pci.numa}" if pci.numa >= 0 else "no NUMA node"
            for n, pci in found.items()
        }
    )
    data = {
        "gpus": {
            n: {"pci": p.address, "numa": p.numa, "cpus": p.cpus, "width": p.width}
            for n, p in found.items()
        }
    }
    slow = {n: p for n, p in found.items() if 0 < p.width < p.most_width}
    if slow:
        widths = grouped({n: f"x{p.width} of x{p.most_width}" for n, p in slow.items()})
        return [
            Finding(
                "gpu pcie",
                f"links narrower than the GPU's: {widths}",
                Verdict.WARN,
                "see the slot and the BIOS's bifurcation; the column copies of "
                "torch-mcast bench --device cuda shows the speed",
                data,
            )
        ]
    return [ok("gpu pcie", nodes, **data)]


def nearest(gpu: PciDevice, nics: Sequence[Nic], ordinal: int = 0) -> Nic | None:
    """The interface with the longest common path; of several as near, they take turns by the GPU's number."""
    rows = [(far, nic) for nic in nics if (far := sysfs.distance(gpu, nic)) is not None]
    if not rows:
        return None
    best = min(far for far, _ in rows)
    equal = [nic for far, nic in rows if far == best]
    return equal[ordinal % len(equal)]


def _own(facts: Facts) -> list[int]:
    """The GPUs of this rank: its local rank's, or all outside of a job."""
    count, text = len(facts.devices), facts.environment.get("LOCAL_RANK", "")
    return [int(text) % count] if text.isascii() and text.isdigit() else list(range(count))


def judge_nics(facts: Facts) -> list[Finding]:
    """Compares the interface nearest to each GPU with the one that groups use."""
    found = {n: pci for n in _own(facts) if (pci := facts.pci(n))}
    nics = {nic.name: nic for nic in facts.machine.nics}
    usable = [nics[name] for name in facts.usable if name in nics]
    if not found or not any(nic.devices for nic in usable):
        why = "the interfaces that are up are virtual" if facts.usable else "no interface is up"
        why = why if found else "sysfs does not show the GPUs"
        return [
            ok("gpu nics", f"not known which interface is near to which GPU: {why}", nearest={})
        ]
    near: dict[int, Nic] = {}
    paths: dict[int, str] = {}
    better: dict[str, list[int]] = {}  # GPUs to which another interface is nearer, by both paths
    for number, gpu in found.items():
        nic = nearest(gpu, usable, number)
        far = sysfs.distance(gpu, nic) if nic else None
        if nic is None or far is None:
            continue
        near[number], paths[number] = nic, sysfs.NAMES[far[0]]
        mine = sysfs.distance(gpu, nics[facts.chosen]) if facts.chosen in nics else None
        if mine is not None and mine[0] > far[0]:
            both = f"on {paths[number]}; {facts.chosen}: {sysfs.NAMES[mine[0]]}"
            better.setdefault(both, []).append(number)
    data = {
        "nearest": {n: nic.name for n, nic in near.items()},
        "rdma": {n: list(nic.rdma) for n, nic in near.items()},
        "chosen": facts.chosen,
    }
    if not better:
        shown = {n: f"{nic.name} on {paths[n]}" for n, nic in near.items()}
        return [ok("gpu nics", grouped(shown), **data)]
    nearer = "; ".join(
        f"GPU {spans(numbers)}: {', '.join(near[n].name for n in numbers)} ({both})"
        for both, numbers in better.items()
    )
    first = next(iter(better.values()))[0]
    return [
        Finding(
            "gpu nics",
            f"groups use {facts.chosen}, but nearer are {nearer}",
            Verdict.WARN,
            f"MCAST_SOCKET_IFNAME=={near[first].name} for the rank of GPU {first}, and so on, if these "
            "interfaces reach each other's hosts",
            data,
        )
    ]


def judge_rocm(facts: Facts) -> list[Finding]:
    """torch for ROCm: no driver of NVIDIA is asked."""
    count = sum(gpu.vendor == sysfs.AMD for gpu in facts.machine.gpus)
    text = (
        f"torch {facts.torch.version} for ROCm {facts.torch.hip}, {count} AMD GPU(s) on PCI: tensors pass "
        "pinned memory, and wait() blocks the calling thread"
    )
    return [ok("gpus", text, hip=facts.torch.hip, on_pci=count)]


def expected(machine: Machine) -> bool:
    """Returns true if this machine has signs of an NVIDIA GPU. WSL's /dev/dxg serves other GPUs, too."""
    return any(gpu.vendor == sysfs.NVIDIA for gpu in machine.gpus) or any(
        re.fullmatch(r"nvidia\d+|nvidiactl", name) for name in machine.nodes
    )


def judge(facts: Facts) -> list[Finding]:
    """All rows."""
    if facts.torch.hip:
        return judge_rocm(facts)
    if not facts.devices and not facts.required and not expected(facts.machine):
        return []
    gpus = judge_gpus(facts)
    if not facts.devices:
        return [gpus]
    rows: list[Callable[[Facts], Finding]] = [judge_driver, judge_nccl, judge_peers, judge_export]
    return [gpus, *(row(facts) for row in rows), *judge_pcie(facts), *judge_nics(facts)]
