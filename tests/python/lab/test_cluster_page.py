"""Runs the commands of docs/cluster.md on two hosts of a lab. Parts that need several machines,
clouds or vendors' switches are compared with the code where that is possible."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import slurm
import yaml
from ranks import free_port

from torch_mcast.doctor.fixes import UDP_PORTS, Opening
from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.launch import rank_env
from torch_mcast.lab.topology import bridges

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
BIN = str(Path(sys.executable).parent)
LIMIT_S = 240


def blocks(kind: str) -> list[str]:
    found = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.M | re.S)
    assert found, kind
    return found


# Words that distinguish each block of the page from the others of its kind. A test selects it by
# this word.
WORDS = {
    "sh packages": ["apt-get"],
    "sh install": ["pip install"],
    "sh wheel": ["pip wheel"],
    "sh both": ["torch-mcast doctor", "-m torch_mcast.doctor", "hello.py", "train_ddp.py", "PORT_RANGE"],
    "sh node1": ["ssh"],
    "sh slurm": ["srun"],
    "sh iptables": ["iptables"],
    "sh nft": ["nft"],
    "sh bridge": ["bridge"],
    "yaml": ["hostNetwork"],
    "text": ["ufw", "firewall-cmd", "ip6tables"],
}  # fmt: skip


def block(kind: str, word: str) -> str:
    assert word in WORDS[kind]
    (found,) = (text for text in blocks(kind) if word in text)
    return found


PORTS = re.search(r"^export (MCAST_PORT_RANGE)=(\S+)$", block("sh both", "PORT_RANGE")).groups()


@pytest.fixture(scope="module")
def lab(lab_rights):
    with Lab(LabSpec(hosts=2)) as made:
        yield made


def variables(**more: str) -> dict[str, str]:
    path = os.pathsep.join((BIN, os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    packages = os.pathsep.join(filter(None, sys.path))
    return {"HEAD": "h1", "PATH": path, "VIRTUAL_ENV": sys.prefix, "PYTHONPATH": packages,
            "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}  # fmt: skip


def finish(processes: list[subprocess.Popen]) -> list[str]:
    try:
        texts = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()  # kills one that hangs; has no effect if it has ended
    codes = [process.returncode for process in processes]
    assert not any(codes), f"{codes}\n" + "\n----\n".join(texts)
    return texts


def on_both(lab: Lab, script: str, **more: str) -> list[str]:
    """Returns the output of each host."""
    return finish(
        [
            lab.popen(
                host, ["bash", "-euc", script], variables(**more), cwd=ROOT, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )
            for host in lab.workers
        ]
    )  # fmt: skip


def test_every_block_is_run_or_looked_at():
    """A new block has no word here, and a word that no test uses is not found in this source."""
    assert set(re.findall(r"^```(\S.*)$", PAGE, re.M)) == WORDS.keys()
    source = Path(__file__).read_text()
    for kind, words in WORDS.items():
        for word in words:
            taken = re.search(rf'block\(\s*"{kind}", "{re.escape(word)}"\s*\)', source)
            assert block(kind, word) and taken, (kind, word)
        assert len(blocks(kind)) == len(words), kind


def test_install_is_what_the_makefile_installs():
    setup = (ROOT / "tools" / "setup.sh").read_text()
    run = " ".join(re.findall(r'^(?:NEEDED|RUN)="([^"]*)"', setup, re.M)).split()
    asked = set(block("sh packages", "apt-get").split()) - {"apt-get", "install", "-y", "git"}
    assert asked <= set(run) and asked >= {"g++", "python3-dev", "libhwy-dev", "libisal-dev"}
    install = block("sh install", "pip install")
    assert re.search(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text(), re.M)[1] in install
    assert re.search(r"CPU_INDEX=(\S+)", setup)[1] in install
    assert "\npip install .\n" in install


@pytest.mark.all_tier
@pytest.mark.machine_network
def test_the_install_commands_of_the_page_work(tmp_path):
    """Installs from a clone of this commit, into a new environment, with torch from its index; then
    the wheel."""
    git = ["git", "-C", str(ROOT)]
    subprocess.run([*git, "clone", "-q", "--bare", str(ROOT), str(tmp_path / "bare")], check=True)
    script = block("sh install", "pip install") + block("sh wheel", "pip wheel")
    env = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=3600, check=False,
        env={**env, "HOME": str(tmp_path), "REPOSITORY": str(tmp_path / "bare")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^torch-mcast \d", done.stdout, re.M)
    clone = tmp_path / "torch-mcast"
    (wheel,) = clone.glob("torch_mcast-*.whl")
    # As on another node: it goes into the folder of another environment, and is found there.
    python = tmp_path / "mcast" / "bin" / "python"
    other = tmp_path / "other"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", "--target", other, wheel], check=True
    )
    code = (
        "import torch_mcast; from torch_mcast._load import extension; print(extension().__file__)"
    )
    done = subprocess.run(
        [python, "-c", code], cwd=other, capture_output=True, text=True, timeout=120, check=False,
        env={**env, "PYTHONPATH": str(other)},
    )  # fmt: skip
    assert done.stdout.startswith(str(other)), done.stderr


@pytest.mark.all_tier
def test_the_doctor_on_each_node(lab):
    for text in on_both(lab, block("sh both", "torch-mcast doctor")):
        assert re.search(r"\d+ ok, \d+ warn, 0 fail", text)


def test_the_doctor_on_both(lab):
    text = "".join(on_both(lab, block("sh both", "-m torch_mcast.doctor")))
    assert "sends \\ hears" in text and "trying multicast and TCP between 2 ranks" in text


def shown() -> list[str]:
    """Returns the lines that the page promises for the minimal script."""
    return re.findall(r"^    (2 ranks: .*|path: .*)$", PAGE, re.M)


def test_the_least_script(lab):
    text = on_both(lab, block("sh both", "hello.py"))[0]
    assert text.splitlines()[-2:] == shown()


@pytest.mark.all_tier
def test_training(lab):
    first, second = on_both(lab, block("sh both", "train_ddp.py"))
    text = first + second
    assert "2 ranks have the same weights" in text and text.count("path: multicast") == 2


def start_sshd(lab: Lab, folder: Path) -> list[subprocess.Popen]:
    """Starts a server on each host, for root with a key and a home folder of this test."""
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    key, host_key = folder / "key", folder / "host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    subprocess.run(
        ["dropbearkey", "-t", "ed25519", "-f", host_key], check=True, capture_output=True
    )
    (home / ".ssh" / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    (folder / "passwd").write_text(f"root:x:0:0:root:{home}:/bin/bash\n")
    (folder / "config").write_text(
        f"Host *\n IdentityFile {key}\n User root\n StrictHostKeyChecking no\n"
        f" UserKnownHostsFile /dev/null\n LogLevel ERROR\n ConnectionAttempts 10\n"
    )
    (folder / "bin").mkdir()
    client = folder / "bin" / "ssh"
    client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    client.chmod(0o755)
    script = (
        f"mount --bind {folder}/passwd /etc/passwd\n"
        f"exec dropbear -F -E -s -r {host_key} -p 22 -P {folder}/$(hostname).pid"
    )
    started = [
        lab.popen(host, ["sh", "-ec", script], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for host in lab.workers
    ]
    for process in started:  # it prints this when it listens
        assert b"Not backgrounding" in process.stderr.readline()
    return started


@pytest.mark.all_tier
def test_from_one_node_by_ssh(lab, tmp_path):
    servers = start_sshd(lab, tmp_path)
    try:
        path = f"{tmp_path}/bin{os.pathsep}{variables()['PATH']}"
        process = lab.popen(
            "h1", ["bash", "-euc", block("sh node1", "ssh")], variables(PATH=path, NODES="h1 h2"), cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        (text,) = finish([process])
        assert all(line in text for line in shown()), text
    finally:
        for server in servers:
            server.kill()
            server.communicate()


@pytest.mark.all_tier
def test_a_batch_script_of_slurm(lab, tmp_path):
    """By Slurm itself: its controller on one host, its daemon on both."""
    (tmp_path / "mcast" / "bin").mkdir(parents=True)
    (tmp_path / "mcast" / "bin" / "activate").touch()
    script, output = tmp_path / "job.sh", tmp_path / "output"
    script.write_text(block("sh slurm", "srun"))
    with slurm.cluster(lab, tmp_path / "slurm") as found:
        given = {name: text for name, text in variables(**found).items() if name != "HEAD"}
        batch = lab.popen(
            "h1", ["sbatch", "--wait", "-o", str(output), str(script)], {**given, "HOME": str(tmp_path)},
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        text, _ = batch.communicate(timeout=LIMIT_S)
    text += output.read_text() if output.exists() else ""
    assert batch.returncode == 0, text
    assert "all 2 ranks together" in text  # the doctor used Slurm's variables
    for line in shown():
        assert text.count(line) == 2, text  # by torchrun, and as tasks


def hello(lab: Lab) -> list[str]:
    """Runs the minimal script with the ports of the page. Returns rank 0's last lines."""
    ranks = [
        lab.popen(
            host, ["python", "examples/hello.py"],
            {**variables(), **rank_env(lab, host, 0, 29500), **dict([PORTS])}, cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for host in lab.workers
    ]  # fmt: skip
    return finish(ranks)[0].splitlines()[-2:]


@pytest.mark.all_tier
@pytest.mark.parametrize(
    ("kind", "commands"),
    [("iptables", block("sh iptables", "iptables")), ("nft", block("sh nft", "nft"))],
    ids=["iptables", "nft"],
)
def test_a_firewall_that_lets_a_job_in(lab_rights, kind, commands):
    closed = {
        "iptables": "iptables -A INPUT -i lo -j ACCEPT\niptables -A INPUT -m conntrack --ctstate "
        "ESTABLISHED -j ACCEPT\niptables -A INPUT -p tcp --dport 29500 -j ACCEPT\niptables -P INPUT DROP",
        "nft": "nft -f - <<'END'\ntable inet filter {\n chain input {\n type filter hook input priority 0; "
        'policy drop;\n iifname "lo" accept\n ct state established accept\n tcp dport 29500 accept\n }\n}\nEND',
    }[kind]
    with Lab(LabSpec(hosts=2)) as lab:
        on_both(lab, closed)
        before = diagnose(lab)
        found = [row for row in before["findings"] if row["check"] == "firewall"]
        assert [row["verdict"] for row in found] == ["warn"] * 3
        assert before["rows"]["reach"]["verdict"] == "warn"
        assert before["rows"]["tcp between ranks"]["verdict"] == "fail"
        subnet = lab.workers[0].address.rpartition(".")[0] + ".0/24"
        commands = commands.replace("10.1.0.0/24", subnet)
        # The doctor gives the same commands as the page.
        given = sorted(row["fix"].partition("  (")[0] for row in found)
        assert given == sorted(commands.strip().splitlines())
        on_both(lab, commands)
        after = diagnose(lab)
        assert {row["verdict"] for row in after["rows"].values()} == {"ok"}
        (row,) = (row for row in after["findings"] if row["check"] == "firewall")
        assert row["finding"].startswith("lets in multicast")
        assert hello(lab) == shown()


def test_the_rules_for_ipv6_let_a_job_in(lab_rights):
    closed = (
        "ip6tables -A INPUT -i lo -j ACCEPT\nip6tables -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT\n"
        "ip6tables -A INPUT -p ipv6-icmp -j ACCEPT\nip6tables -A INPUT -p tcp --dport 29500 -j ACCEPT\n"
        "ip6tables -P INPUT DROP\n"
    )
    with Lab(LabSpec(hosts=2, ipv6=True)) as lab:
        subnet = str(ipaddress.ip_network(f"{lab.workers[0].address}/64", strict=False))
        on_both(lab, closed + block("text", "ip6tables").replace("fd00:1::/64", subnet))
        assert hello(lab) == shown()


def diagnose(lab: Lab) -> dict:
    """Returns rank 0's findings, and the job's by name."""
    processes = [
        lab.popen(
            host, [sys.executable, "-m", "torch_mcast.doctor", "--json"],
            {**variables(), **rank_env(lab, host, 0, 29500), **dict([PORTS])},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for host in lab.workers
    ]  # fmt: skip
    texts = [process.communicate(timeout=LIMIT_S) for process in processes]
    assert texts[0][0], texts[0][1]
    document = json.loads(texts[0][0])
    rows = {row["check"]: row for row in document["job"]["findings"]}
    return {"findings": document["findings"], "rows": rows}


def test_the_commands_of_ufw_and_firewalld_are_the_doctors():
    """The test of the doctor used those commands to open the "-open" rulesets."""
    given = {"ufw": block("text", "ufw"), "firewalld": block("text", "firewall-cmd")}
    for manager, text in given.items():
        for protocol, ports in (("udp", UDP_PORTS), ("igmp", (0, 0)), ("tcp", (42000, 42999))):
            opening = Opening(protocol, "10.1.0.0/24", "eth0", ports)
            assert opening.command(manager).partition("  (")[0] in text.splitlines()


def test_a_bridge(lab):
    (bridge,) = bridges(lab.spec)
    script = block("sh bridge", "bridge").replace("br0", bridge)
    done = subprocess.run(
        ["ip", "netns", "exec", lab.switch, "sh", "-euc", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        ["ip", "netns", "exec", lab.switch, "ip", "-d", "-j", "link", "show", bridge],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    (link,) = json.loads(shown.stdout)
    data = link["linkinfo"]["info_data"]
    assert (data["mcast_igmp_version"], data["mcast_snooping"], data["mcast_querier"]) == (3, 1, 1)


def pod() -> dict:
    return yaml.safe_load(block("yaml", "hostNetwork"))["spec"]


def in_namespaces(*words: str, **env: str) -> list[str]:
    """Returns a command that runs in its own process, shared memory and host name namespaces, as in
    a pod."""
    script = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    return ["unshare", "--mount", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
            "sh", "-ec", script, "sh", "env", *(f"{n}={v}" for n, v in env.items()), *words]  # fmt: skip


@pytest.fixture
def container(request, lab_rights):
    """Returns a function from a command and its variables to the command line that runs it in a
    container, whose image is this machine's folders."""
    runtime = request.param
    if runtime == "unshare":
        yield in_namespaces
        return
    try:  # often only the client is installed
        subprocess.run([runtime, "info"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no {runtime} that works: {error}")
    image = f"mcast-test-{os.getpid()}"
    empty = subprocess.run(
        ["tar", "-cf", "-", "-T", os.devnull], capture_output=True, check=True
    ).stdout
    subprocess.run([runtime, "import", "-", image], input=empty, check=True, capture_output=True)
    folders = [
        path
        for path in Path("/").iterdir()
        if path.is_dir() and path.name not in ("proc", "sys", "dev")
    ]
    mounts = [word for path in folders for word in ("-v", f"{path}:{path}")]

    def inside(*words: str, **env: str) -> list[str]:
        variables = [word for name, text in env.items() for word in ("-e", f"{name}={text}")]
        return [runtime, "run", "--rm", "--network", "host", "--cap-add", "IPC_LOCK", "--shm-size", "1g", *mounts,
                *variables, "-w", str(ROOT), image, *words]  # fmt: skip

    try:
        yield inside
    finally:
        subprocess.run([runtime, "rmi", "-f", image], capture_output=True, timeout=60, check=False)


@pytest.mark.all_tier
@pytest.mark.parametrize(
    "container",
    ["unshare", *(pytest.param(name, marks=pytest.mark.not_everywhere) for name in ("docker", "podman"))],
    indirect=True,
)  # fmt: skip
def test_two_pods_of_one_node(container):
    """Runs the pod's command with its variables; both pods use this host's network, but only its
    loopback."""
    (spec,) = pod()["containers"]
    given = {row["name"]: row["value"] for row in spec["env"]} | {"HEAD": "127.0.0.1"}
    words = [
        word.replace("$(HEAD):29500", f"{given['HEAD']}:{free_port()}") for word in spec["command"]
    ]
    local = {"MCAST_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    # torchrun distinguishes nodes by address and process number, and both are equal in the two
    # pods.
    pods = [
        subprocess.Popen(
            container(words[0], f"--local-addr={address}", *words[1:], **variables(**given, **local)), cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for address in ("127.0.0.1", "127.0.0.2")
    ]  # fmt: skip
    text = "".join(finish(pods))
    assert shown()[0] in text and re.search("^path: multicast: ", text, re.M), text


def test_the_pod_has_what_a_job_needs():
    spec = pod()
    assert spec["hostNetwork"] is True
    (container,) = spec["containers"]
    names = {row["name"] for row in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["command"]))) <= names
    assert (ROOT / container["command"][-1]).exists()
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
