"""The doctor's rows about GPUs: drivers and sysfs trees of typical machines as data (machines.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from machines import CudaLibrary, Device, NvmlLibrary, Tree, behind_switch, loader

from torch_mcast.doctor.checks import gpus
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, Verdict
from torch_mcast.doctor.gpu import driver, judge, sysfs
from torch_mcast.doctor.gpu.judge import Facts, Torch
from torch_mcast.doctor.job import gpus as job_gpus

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL
TORCH = Torch("2.13.0", "13.0", "", "2.30.7")
ROWS = ["gpus", "gpu driver", "nccl", "gpu peers", "gpu memory export", "gpu pcie", "gpu nics"]


def dgx(folder: Path) -> Tree:
    """8 GPUs, each behind a switch with a NIC of its own; four host bridges on each of two NUMA nodes. One
    more NIC, for management, on a host bridge of its own."""
    tree = Tree(folder)
    for number in range(8):
        bridge, bus, numa = f"pci0000:{16 * number + 8:02x}", 16 * number + 8, number // 4
        tree.gpu(behind_switch(bridge, bus, 0), numa)
        tree.nic(f"ib{number}", behind_switch(bridge, bus, 1), numa, rdma=f"mlx5_{number}")
    tree.nic("eth0", "pci0000:00/0000:00:1c.0/0000:01:00.0")
    tree.nodes("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(8)))
    return tree


DGX_PCI = [f"0000:{16 * number + 11:02x}:00.0" for number in range(8)]


def dgx_driver(**more) -> dict:
    return driver.answers(
        loader(CudaLibrary([Device(pci=pci) for pci in DGX_PCI], **more), NvmlLibrary(DGX_PCI))
    )


def facts(tree: Tree | None, answers: dict, **more) -> Facts:
    machine = sysfs.read(tree.root, tree.dev) if tree else sysfs.Machine()
    return Facts(machine, answers, more.pop("torch", TORCH), **more)


def rows(facts: Facts) -> dict[str, Finding]:
    found = judge.judge(facts)
    for row in found:
        json.dumps(row.to_json())  # --json has its data
        assert row.finding and (
            row.verdict is OK or row.fix or row.check in ("nccl", "gpu memory export")
        )
    return {row.check: row for row in found}


# Machines.


def test_eight_gpus_with_a_nic_each(tmp_path):
    tree = dgx(tmp_path)
    usable = ["eth0", *(f"ib{number}" for number in range(8))]
    found = rows(facts(tree, dgx_driver(), usable=usable, chosen="ib0"))
    assert list(found) == ROWS
    assert found["gpus"].finding == "GPU 0-7: NVIDIA H100 80GB HBM3, 80 GiB, compute 9.0"
    assert found["gpu driver"].finding == (
        "driver 580.159.04, CUDA 13.0; torch 2.13.0 was built for CUDA 13.0"
    )
    assert "NCCL 2.30.7" in found["nccl"].finding
    assert found["gpu peers"].finding == "all 28 pairs reach each other: 28 by NVLink"
    assert found["gpu pcie"].finding == "GPU 0-3: NUMA node 0; GPU 4-7: NUMA node 1"
    nics = found.pop("gpu nics")
    assert nics.verdict is WARN and all(row.verdict is OK for row in found.values())
    assert nics.data["nearest"] == {number: f"ib{number}" for number in range(8)}
    assert nics.data["rdma"][5] == ["mlx5_5"]
    assert nics.finding == (
        "groups use ib0, but nearer are GPU 1-3: ib1, ib2, ib3 (on the same PCIe switch; ib0: the same NUMA "
        "node); GPU 4-7: ib4, ib5, ib6, ib7 (on the same PCIe switch; ib0: another NUMA node or socket)"
    )
    assert "MCAST_SOCKET_IFNAME==ib1 for the rank of GPU 1" in nics.fix


@pytest.mark.parametrize(("rank", "verdict"), [("0", OK), ("3", WARN), ("8", OK)])
def test_a_rank_looks_at_its_own_gpu(tmp_path, rank, verdict):
    usable = ["ib0", "ib3"]
    environment = {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "8"}
    more = {"usable": usable, "chosen": "ib0", "environment": environment}
    [nics] = judge.judge_nics(facts(dgx(tmp_path), dgx_driver(), **more))
    assert nics.verdict is verdict
    assert list(nics.data["nearest"]) == [int(rank) % 8]


def test_interfaces_without_an_address_are_not_advised(tmp_path):
    """ib1 to ib7 are down: the best that GPU 5 can have is on another NUMA node."""
    more = {"usable": ["eth0", "ib0"], "chosen": "ib0"}
    [nics] = judge.judge_nics(facts(dgx(tmp_path), dgx_driver(), **more))
    assert nics.verdict is OK
    assert nics.finding == (
        "GPU 0: ib0 on the same PCIe switch; GPU 1, 3: ib0 on the same NUMA node; GPU 2: eth0 on the same NUMA "
        "node; GPU 4, 6: eth0 on another NUMA node or socket; GPU 5, 7: ib0 on another NUMA node or socket"
    )


def desktop(folder: Path, width: int = 16) -> Tree:
    tree = Tree(folder)
    tree.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", numa=-1, width=width)
    tree.nic("enp0s31f6", "pci0000:00/0000:00:1f.6", numa=-1)
    tree.nodes("nvidiactl", "nvidia-uvm", "nvidia0")
    return tree


CARD = Device("NVIDIA GeForce RTX 4090", "0000:01:00.0", 24 << 30)


def test_one_gpu(tmp_path):
    """No peers, no NUMA nodes, no NVML."""
    answers = driver.answers(loader(CudaLibrary([CARD])))
    found = rows(facts(desktop(tmp_path), answers, usable=["enp0s31f6"], chosen="enp0s31f6"))
    assert list(found) == ROWS and all(row.verdict is OK for row in found.values())
    assert "driver of unknown version, CUDA 13.0" in found["gpu driver"].finding
    assert "no peers to try" in found["gpu peers"].finding
    assert found["gpu pcie"].finding == "GPU 0: no NUMA node"
    assert found["gpu nics"].finding == "GPU 0: enp0s31f6 on the same PCIe host bridge"


def test_a_narrow_link(tmp_path):
    found = rows(facts(desktop(tmp_path, width=4), driver.answers(loader(CudaLibrary([CARD])))))
    assert found["gpu pcie"].verdict is WARN
    assert found["gpu pcie"].finding == "links narrower than the GPU's: GPU 0: x4 of x16"


def test_cards_without_peers(tmp_path):
    """Four consumer cards: two behind one switch, two on a host bridge each."""
    tree = Tree(tmp_path)
    paths = [
        behind_switch("pci0000:10", 0x10, 0),
        behind_switch("pci0000:10", 0x10, 1),
        "pci0000:80/0000:80:01.0/0000:81:00.0",
        "pci0000:c0/0000:c0:01.0/0000:c1:00.0",
    ]
    for number, path in enumerate(paths):
        tree.gpu(path, numa=number // 2)
    tree.nodes("nvidiactl")
    pci = [path.rpartition("/")[2] for path in paths]
    apart = {(a, b) for a in range(4) for b in range(4) if {a, b} != {0, 1}}
    library = CudaLibrary([replace(CARD, pci=address) for address in pci], apart)
    found = rows(facts(tree, driver.answers(loader(library, NvmlLibrary(pci, nvlink=False)))))
    peers = found["gpu peers"]
    assert peers.verdict is WARN and "nvidia-smi topo -p2p r" in peers.fix
    assert peers.finding == (
        "5 of 6 pairs do not reach each other (GPU 0-2, 0-3, 1-2, 1-3, 2-3; 1 by PCIe through the same PCIe "
        "switch, 4 by PCIe through another NUMA node or socket, 1 by PCIe through the same NUMA node). "
        "CUDA tensors of groups inside this host take NCCL or pinned memory"
    )
    assert [row["reach"] for row in peers.data["pairs"]] == [True] + 5 * [False]


def test_one_direction_is_not_enough():
    library = CudaLibrary([replace(CARD, pci=f"0000:0{n}:00.0") for n in (1, 2)], {(1, 0)})
    assert driver.answers(loader(library))["peers"] == [[0, 1, False, None]]


def test_mig_instances(tmp_path):
    """Two instances of one GPU: the same PCI address, and no peers."""
    tree = desktop(tmp_path)
    pci = "0000:01:00.0"
    instances = [Device("NVIDIA A100-SXM4-40GB MIG 3g.20gb", pci, 20 << 30) for _ in range(2)]
    library = CudaLibrary(instances, {(0, 1), (1, 0)})
    answers = driver.answers(loader(library, NvmlLibrary([pci], mig=(pci,))))
    found = rows(facts(tree, answers, environment={"LOCAL_WORLD_SIZE": "2"}))
    assert found["gpus"].finding.endswith("20 GiB, compute 9.0, MIG instance")
    assert "more on PCI" not in found["gpus"].finding
    assert found["gpu peers"].verdict is WARN
    assert "the same device" in found["gpu peers"].finding and "MIG" in found["gpu peers"].finding
    assert found["gpu peers"].fix.startswith("nvidia-smi -mig 0")


def test_a_container_without_sysfs():
    """The driver works; where GPUs and interfaces are cannot be seen."""
    found = rows(
        facts(None, dgx_driver(), usable=["eth0"], chosen="eth0", pid_namespace="4026532001")
    )
    assert [name for name in ROWS if name != "gpu pcie"] == list(found)
    assert all(row.verdict is OK for row in found.values())
    assert found["gpu nics"].finding.endswith("sysfs does not show the GPUs")
    assert "run all ranks of a host in one" in found["gpu memory export"].finding


def test_without_nvml_the_kind_of_link_is_not_known(tmp_path):
    library = CudaLibrary([Device(pci=pci) for pci in DGX_PCI[:2]])
    found = rows(facts(dgx(tmp_path), driver.answers(loader(library))))
    assert found["gpu peers"].finding == (
        "both GPUs reach each other: by PCIe through the same NUMA node, or NVLink"
    )
    assert "6 more on PCI are not visible" in found["gpus"].finding


def test_virtual_interfaces(tmp_path):
    """virtio between function and interface; a bond of two NICs; a VLAN on it; a bridge of nothing."""
    tree = Tree(tmp_path)
    tree.gpu("pci0000:00/0000:00:05.0", numa=-1)
    tree.nic("eth0", "pci0000:00/0000:00:03.0", numa=-1, below="virtio0")
    tree.nic("eth1", behind_switch("pci0000:40", 0x40, 0))
    tree.nic("eth2", "pci0000:80/0000:80:01.0/0000:81:00.0")
    tree.virtual("bond0", lower=("eth1", "eth2"))
    tree.virtual("bond0.7", lower=("bond0",))
    tree.virtual("docker0")
    tree.virtual("lo")
    machine = sysfs.read(tree.root, tree.dev)
    devices = {nic.name: [device.address for device in nic.devices] for nic in machine.nics}
    both = ["0000:43:00.0", "0000:81:00.0"]
    assert devices == {
        "eth0": ["0000:00:03.0"], "eth1": both[:1], "eth2": both[1:], "bond0": both, "bond0.7": both,
        "docker0": [],
    }  # fmt: skip
    answers = driver.answers(loader(CudaLibrary([replace(CARD, pci="00000000:00:05.0")])))
    [row] = judge.judge_nics(facts(tree, answers, usable=["eth0"], chosen="eth0"))
    assert row.finding == "GPU 0: eth0 on the same PCIe host bridge"
    [row] = judge.judge_nics(facts(tree, answers, usable=["docker0"], chosen="docker0"))
    assert row.finding.endswith("the interfaces that are up are virtual")
    [row] = judge.judge_nics(facts(tree, answers))
    assert row.finding.endswith("no interface is up")


def test_interfaces_that_are_equally_near_take_turns(tmp_path):
    tree = Tree(tmp_path)
    for number in range(4):
        tree.gpu(behind_switch("pci0000:10", 0x10, number))
    for number in range(2):
        tree.nic(f"eth{number}", behind_switch("pci0000:10", 0x10, 8 + number))
    machine = sysfs.read(tree.root, tree.dev)
    taken = [judge.nearest(gpu, machine.nics, n).name for n, gpu in enumerate(machine.gpus)]
    assert taken == ["eth0", "eth1", "eth0", "eth1"]
    assert judge.nearest(machine.gpus[0], []) is None


def test_a_nic_on_the_gpus_switch_is_nearer_than_one_on_its_root_port():
    """The longest common path, not only the level."""
    gpu = sysfs.PciDevice("0000:05:00.0", ("pci0000:00", "a", "b", "c", "0000:05:00.0"))
    near = sysfs.PciDevice("0000:06:00.0", ("pci0000:00", "a", "b", "d", "0000:06:00.0"))
    far = sysfs.PciDevice("0000:07:00.0", ("pci0000:00", "a", "e", "0000:07:00.0"))
    nics = [sysfs.Nic("far", (far,)), sysfs.Nic("near", (near,)), sysfs.Nic("none")]
    assert sysfs.level(gpu, near) == sysfs.level(gpu, far) == sysfs.SWITCH
    assert judge.nearest(gpu, nics).name == "near"
    # The interface need not be changed for it.
    machine = sysfs.Machine(True, (gpu,), tuple(nics))
    answers = driver.answers(loader(CudaLibrary([replace(CARD, pci="0000:05:00.0")])))
    [row] = judge.judge_nics(Facts(machine, answers, TORCH, {}, ["far", "near"], "far"))
    assert row.verdict is OK and row.data["nearest"] == {0: "near"}


def test_host_bridges_below_other_buses(tmp_path):
    """Arm: what two paths have in common above their host bridges says nothing; nor does a missing node."""
    tree = Tree(tmp_path)
    tree.gpu("platform/NVDA:00/pci0002:00/0002:00:00.0/0002:01:00.0", numa=-1)
    tree.nic("eth0", "platform/NVDA:00/pci0004:00/0004:00:00.0/0004:01:00.0", numa=-1)
    tree.nic("eth1", "platform/NVDA:00/pci0002:00/0002:00:01.0/0002:02:00.0", numa=-1)
    machine = sysfs.read(tree.root, tree.dev)
    [gpu], (eth0, eth1) = machine.gpus, machine.nics
    assert gpu.path == ("pci0002:00", "0002:00:00.0", "0002:01:00.0")
    assert sysfs.level(gpu, eth0.devices[0]) == sysfs.SYSTEM
    assert sysfs.level(gpu, eth1.devices[0]) == sysfs.BRIDGE


# No GPU, or one that cannot be used.


def test_a_machine_without_gpus_has_no_rows_unless_they_are_required(tmp_path):
    tree = Tree(tmp_path)
    tree.nic("eth0", "pci0000:00/0000:00:03.0")
    tree.pci("pci0000:00/0000:00:02.0", "0x8086", "0x030000")  # a display, of another maker
    tree.pci("pci0000:00/0000:00:09.0", "0x10de", "0x068000")  # NVIDIA's, but no GPU
    answers = driver.answers(loader())
    assert judge.judge(facts(tree, answers)) == []
    [row] = judge.judge(facts(tree, answers, required=True))
    assert (row.check, row.verdict) == ("gpus", FAIL)
    assert row.finding.startswith("no usable GPU: libcuda.so.1 cannot be loaded: ")
    assert "docker run --gpus all" in row.fix


@pytest.mark.parametrize(
    ("failing", "nodes", "environment", "said", "fix"),
    [
        ({"cuInit": 802}, ("nvidiactl", "nvidia-uvm"), {}, "cuInit: system not yet initialized (error 802)", "nvidia-fabricmanager"),
        ({"cuInit": 803}, ("nvidiactl",), {}, "(error 803)", "reboot, or reload the modules"),
        ({"cuInit": 999}, ("nvidiactl",), {}, "/dev/nvidia-uvm is missing", "nvidia-modprobe -u"),
        ({"cuInit": 999}, ("nvidiactl", "nvidia-uvm"), {}, "cuInit: unknown error (error 999)", "dmesg"),
        ({"cuInit": 100}, (), {}, "/dev has no nvidia device", "--gpus all"),
        ({"cuInit": 100}, ("nvidiactl",), {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= hides all GPUs", "unset"),
        ({"cuInit": 100}, ("nvidiactl",), {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES=-1 hides", "unset"),
        ({"cuDeviceGetName": 46}, ("nvidiactl",), {}, "cuDeviceGetName: unknown error (error 46)", "nvidia-smi"),
    ],
)  # fmt: skip
def test_gpus_that_cannot_be_used(tmp_path, failing, nodes, environment, said, fix):
    tree = Tree(tmp_path)
    tree.gpu("pci0000:00/0000:00:01.0/0000:01:00.0")
    tree.nodes(*nodes)
    answers = driver.answers(loader(CudaLibrary([CARD], failing=failing)))
    assert answers["devices"] == [] == answers["peers"]
    for required, verdict in ((False, WARN), (True, FAIL)):
        [row] = judge.judge(facts(tree, answers, environment=environment, required=required))
        assert (row.check, row.verdict) == ("gpus", verdict)
        assert (
            row.finding.startswith("1 NVIDIA GPU(s) on PCI, none usable: ") and said in row.finding
        )
        assert fix in row.fix


def test_a_library_that_lacks_functions_and_attributes(tmp_path):
    old = Device("Tesla K80", "0000:01:00.0", 12 << 30, {18: 0, 20: 0, 75: 3, 76: 7})
    found = rows(
        facts(desktop(tmp_path), driver.answers(loader(CudaLibrary([old], version=10020))))
    )
    assert found["gpu memory export"].verdict is WARN
    assert "GPU 0 cannot export memory" in found["gpu memory export"].finding
    answers = driver.answers(loader(CudaLibrary([old], missing=("cuDeviceTotalMem_v2",))))
    assert answers["problem"] == "libcuda has no function cuDeviceTotalMem_v2"
    answers = driver.answers(
        loader(CudaLibrary([], failing={"cuInit": 7}, missing=("cuGetErrorString",)))
    )
    assert (answers["problem"], answers["code"]) == ("cuInit: unknown error (error 7)", 7)
    answers = driver.answers(loader(CudaLibrary([CARD]), NvmlLibrary([], broken=True)))
    assert answers["driver"] == "" and answers["devices"][0]["name"] == CARD.name


def test_integrated_gpus_and_wsl(tmp_path):
    orin = Device("Orin", "", 32 << 30, {18: 1, 20: 0, 75: 8, 76: 7, 102: 1, 103: 0})
    tree = Tree(tmp_path)
    tree.nodes("nvidiactl")
    found = rows(facts(tree, driver.answers(loader(CudaLibrary([orin])))))
    assert found["gpu memory export"].finding.startswith(
        "GPU 0 cannot export memory as a file descriptor (integrated GPU)"
    )
    tree.nodes("dxg")
    found = rows(facts(tree, driver.answers(loader(CudaLibrary([orin])))))
    assert "(WSL)" in found["gpu memory export"].finding


@pytest.mark.parametrize(
    ("modes", "ranks", "said"),
    [((0, 2), "2", "GPU 1: compute mode Prohibited"), ((3, 3), "4", "4 ranks cannot share them"), ((3, 3), "2", "")],
)  # fmt: skip
def test_compute_modes(tmp_path, modes, ranks, said):
    devices = [
        replace(CARD, pci=f"0000:0{n + 1}:00.0", attributes={**CARD.attributes, 20: mode})
        for n, mode in enumerate(modes)
    ]
    answers = driver.answers(loader(CudaLibrary(devices)))
    row = judge.judge_gpus(facts(None, answers, environment={"LOCAL_WORLD_SIZE": ranks}))
    assert (row.verdict is WARN) == bool(said) and said in row.finding
    assert row.fix == ("nvidia-smi -c DEFAULT" if said else "")


@pytest.mark.parametrize(
    ("torch", "cuda", "verdict", "said", "fix"),
    [
        (TORCH, 13000, OK, "was built for CUDA 13.0", ""),
        (Torch("2.11.0+cu128", "12.8"), 12040, OK, "CUDA 12.4; torch", ""),  # the same major version
        (TORCH, 12080, WARN, "needs a driver with CUDA 13", "a torch for CUDA 12.8"),
        (Torch("2.13.0+cpu"), 13000, WARN, "built without CUDA", "pip install --force-reinstall torch==2.13.0"),
        (Torch(), 13000, WARN, "torch is not installed", ""),
    ],
)  # fmt: skip
def test_torch_and_the_driver(torch, cuda, verdict, said, fix):
    answers = driver.answers(loader(CudaLibrary([CARD], version=cuda)))
    row = judge.judge_driver(facts(None, answers, torch=torch))
    assert row.verdict is verdict and said in row.finding and fix in row.fix
    if verdict is WARN and torch.version:
        assert judge.judge_driver(facts(None, answers, torch=torch, required=True)).verdict is FAIL


def test_nccl_needs_a_gpu_per_rank():
    answers = driver.answers(loader(CudaLibrary([CARD])))
    for ranks, verdict in (("", OK), ("1", OK), ("2", WARN)):
        row = judge.judge_nccl(facts(None, answers, environment={"LOCAL_WORLD_SIZE": ranks}))
        assert row.verdict is verdict
    assert 'Options(fallback="none")' in row.fix
    row = judge.judge_nccl(facts(None, answers, torch=Torch("2.13.0", "13.0")))
    assert row.verdict is WARN and "has no NCCL" in row.finding


def test_rocm_asks_no_driver_of_nvidia(tmp_path):
    tree = Tree(tmp_path)
    tree.gpu("pci0000:00/0000:00:01.0/0000:03:00.0", vendor="0x1002")
    [row] = judge.judge(facts(tree, driver.answers(loader()), torch=Torch("2.13.0", hip="7.0")))
    assert (row.check, row.verdict) == ("gpus", OK)
    assert "ROCm 7.0, 1 AMD GPU(s)" in row.finding


# The process that asks the driver, and the command.


def test_a_driver_that_crashes_or_hangs_is_a_row(tmp_path):
    program = tmp_path / "driver.py"
    program.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    answers = driver.read(program=str(program))
    assert answers["problem"] == "the query of the driver ended with SIGSEGV"
    program.write_text("raise OSError('no such bus')")
    assert (
        "ended with status 1: OSError: no such bus" in driver.read(program=str(program))["problem"]
    )
    program.write_text("print('not JSON')")
    assert "the driver could not be queried: " in driver.read(program=str(program))["problem"]
    program.write_text("import time; time.sleep(60)")
    answers = driver.read(0.2, str(program))
    assert answers["problem"] == "the driver did not answer within 0.2 s"
    [row] = judge.judge(facts(None, answers, required=True))
    assert row.verdict is FAIL and "did not answer" in row.finding


def test_the_program_prints_what_the_function_returns():
    answers = driver.read()
    assert set(answers) == {"problem", "code", "cuda", "driver", "devices", "peers"}
    assert answers == driver.answers()


def test_the_check_reads_this_machine_without_initializing_cuda():
    script = (
        "import json, torch\n"
        "from torch_mcast.doctor.checks import gpus\n"
        "from torch_mcast.doctor.context import Context\n"
        "rows = gpus.run(Context({}, {}, gpu=True))\n"
        "print(json.dumps([[row.check for row in rows], torch.cuda.is_initialized()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=240, check=True, env=dict(os.environ),
    )  # fmt: skip
    checks, initialized = json.loads(done.stdout)
    assert checks[0] == "gpus" and not initialized


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """The check on a DGX instead of this machine."""
    tree = dgx(tmp_path)
    found = sysfs.read(tree.root, tree.dev)
    monkeypatch.setattr(sysfs, "read", lambda: found)
    monkeypatch.setattr(driver, "read", dgx_driver)
    return found


def test_rows_appear_where_there_are_gpus(machine):
    assert [row.check for row in gpus.run(Context({}, {}))] == ROWS


def test_no_driver_is_asked_where_there_is_no_gpu(machine, monkeypatch):
    monkeypatch.setattr(sysfs, "read", lambda: replace(machine, gpus=(), nodes=()))
    monkeypatch.setattr(driver, "read", lambda: pytest.fail("asked"))
    assert gpus.run(Context({}, {})) == []


# The ranks of a job together.


def of_rank(host_id: str, nccl: str = "2.30.7", devices: int = 8, host: str = "") -> dict:
    rows = [
        {"check": "gpus", "data": {"devices": [{}] * devices}},
        {"check": "nccl", "data": {"nccl": nccl}},
    ]
    return {"host": host or host_id, "host_id": host_id, "findings": rows[: 2 if devices else 1]}


def test_ranks_with_the_same_gpus_are_fine():
    known = {rank: of_rank(f"boot{rank // 2}/net") for rank in range(4)}
    [row] = job_gpus.gpus(known)
    assert (row.verdict, row.finding) == (OK, "4 ranks with GPUs, 2 on each of 2 host(s)")
    assert job_gpus.gpus({0: of_rank("a/n", devices=0), 1: of_rank("b/n", devices=0)}) == []


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([of_rank("a/1"), of_rank("a/2")], "ranks 0-1 are on one machine in 2 network namespaces"),
        ([of_rank("a/1"), of_rank("b/1", devices=0)], "without a usable GPU: rank 1; with one: rank 0"),
        ([of_rank("a/1"), of_rank("b/1", "2.27.5")], "NCCL differs: 2.30.7 on rank 0; 2.27.5 on rank 1"),
        ([of_rank("a/1"), of_rank("a/1"), of_rank("b/1")], "differ in number: 2 on a/1, 1 on b/1"),
    ],
)  # fmt: skip
def test_ranks_whose_gpus_differ(ranks, said):
    [row] = job_gpus.gpus(dict(enumerate(ranks)))
    assert row.verdict is WARN and said in row.finding and row.fix


def test_machines_that_are_not_known_are_not_taken_for_one():
    known = {rank: of_rank(f"unknown/{rank}") for rank in range(2)}
    assert [row.verdict for row in job_gpus.gpus(known)] == [OK]
