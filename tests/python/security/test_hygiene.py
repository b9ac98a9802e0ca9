"""A secret stays where it belongs: two ranks of one host are in a guarded group (on one host
nothing leaves it), and everything that could hold the secret is searched for it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import guarded
import host_engine
import numpy as np
import pytest
from forked import Forked
from named_errors import by_rank, check_error
from waiting import GUARD_S, until

from torch_mcast import _fallback
from torch_mcast.doctor.checks import security
from torch_mcast.doctor.findings import Verdict
from torch_mcast.engine import read
from torch_mcast.secret import role, text_of

VECTORS = Path(__file__).parents[2] / "data" / "security_vectors.json"

RANK = r"""
import json, os, pathlib, sys, time
import torch, torch.distributed as dist, torch_mcast
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("mcast", init_method="file://" + store, rank=rank, world_size=2)
out = torch.zeros(2 << 16)
dist.all_gather_into_tensor(out, torch.full((1 << 16,), float(rank + 1)))
dist.barrier()
child = os.popen("env").read()
report = json.dumps({
    "sum": float(out.sum()),
    "stats": torch_mcast.stats(),
    "config": torch_mcast.config(),
    "trace": torch_mcast.trace(),
    "metrics": torch_mcast.metrics(),
    "environ": dict(os.environ),
    "proc": open("/proc/self/environ", "rb").read().decode(errors="replace"),
    "child": child,
    "argv": open("/proc/self/cmdline", "rb").read().decode(errors="replace"),
}, default=str)
written = pathlib.Path(store).with_name(f"report{rank}")
written.with_suffix(".new").write_text(report)
written.with_suffix(".new").rename(written)
while not os.path.exists(store + " was looked at"):
    time.sleep(0.01)
"""


def start(
    tmp_path: Path, rank: int, env: dict[str, str], anew: bool
) -> Forked | subprocess.Popen[str]:
    """A process whose environment is looked at must be started anew: a forked one has its parent's
    environment in /proc."""
    full = {
        **os.environ,
        "MCAST_DEBUG": "trace",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "MCAST_SOCKET_IFNAME": "lo",
        **env,
    }
    arguments = ["-c", RANK, str(rank), str(tmp_path / "store")]
    if not anew:
        return Forked(arguments, full)
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=full,
        stderr=(tmp_path / f"log{rank}").open("w"),
        text=True,
    )


def run(tmp_path, envs, look=None, anew=False):
    """Returns the ranks' reports, their logs, and the contents of the store. Calls `look(pids)`
    while they run."""
    ranks = [start(tmp_path, rank, env, anew) for rank, env in enumerate(envs)]
    reports = [tmp_path / f"report{rank}" for rank in range(len(ranks))]
    try:
        for rank, report in zip(ranks, reports, strict=True):
            until(
                lambda r=rank, f=report: f.exists() or r.poll() is not None, "nothing is reported"
            )
        told = [json.loads(file.read_text()) if file.exists() else None for file in reports]
        # (The last rank removes it.)
        held = tmp_path / "store"
        store = held.read_bytes() if held.exists() else b""
        if look and all(told):
            look([rank.pid for rank in ranks])
        (tmp_path / "store was looked at").touch()
        logs = [tmp_path / f"log{rank}" for rank in range(len(ranks))]
        for rank, log in zip(ranks, logs, strict=True):
            said = rank.communicate(timeout=GUARD_S)[1]
            if isinstance(rank, Forked):
                log.write_text(said)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return told, "".join(log.read_text() for log in logs), store


def areas(pid: int):
    """Yields (name, flags, bytes) of everything that a process may write to, except memory files
    (tensors, the links between processes), most of whose pages do not exist yet."""
    flags, span = {}, ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            span = line
        elif line.startswith("VmFlags:"):
            flags[span.split()[0]] = ("".join(span.split()[5:]), line.split()[1:])
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for place, (name, found) in flags.items():
            begin, end = (int(text, 16) for text in place.split("-"))
            if "wr" not in found or ("/memfd:" in name and end - begin > 64 << 20):
                continue
            memory.seek(begin)
            try:
                yield name, found, memory.read(end - begin)
            except OSError:
                continue


def check(told, logs, store, secret, paths=("shared memory",)):
    keys = {"secret": bytes.fromhex(secret), **keys_of(secret)}
    for name, key in keys.items():
        assert key.hex() not in (logs + json.dumps(told)).lower(), name
        assert key not in store and key.hex().encode() not in store.lower(), name
    for row in told:
        assert row is not None, logs
        assert row["sum"] == 3 * (1 << 16)
        assert row["stats"]["security"]["mode"] == "sealed"
        assert row["stats"]["path"] in paths
        for name, value in row.items():
            assert secret not in json.dumps(value), name
    assert secret not in logs
    assert secret.encode() not in store and bytes.fromhex(secret) not in store
    assert b"secret_check" in store and b"secret_id" not in store


JOB = "hygiene"


def test_a_secret_in_a_file_is_nowhere_else_not_even_in_memory(tmp_path):
    secret = secrets.token_hex(32)
    path = tmp_path / "secret"
    path.write_text(text_of(bytes.fromhex(secret)) + "\n")
    path.chmod(0o600)
    env = {"MCAST_SECURITY": "sealed", "MCAST_SECRET_FILE": str(path), "MCAST_JOB": JOB}
    seen = []

    def look(pids):
        wanted = keys_of(secret)
        for pid in pids:
            seen.append(0)
            kept = set()
            for name, flags, area in areas(pid):
                seen[-1] += len(area)
                assert secret.encode() not in area, name
                assert bytes.fromhex(secret) not in area, name
                held_here = {key for key, value in wanted.items() if value in area}
                # They are in pages that are excluded from core dumps and children, and nowhere
                # else. (The key for records is removed when the group has been created.)
                assert "dd" in flags or not held_here, (name, held_here)
                kept |= held_here
            assert {"hello", "mix"} <= kept

    check(*run(tmp_path, [env, env], look), secret)
    assert len(seen) == 2 and min(seen) > 1 << 20


def role_of(secret: bytes) -> bytes:
    return bytes.fromhex(role(text_of(secret)).split("-")[2])


def keys_of(secret: str) -> dict[str, bytes]:
    """Returns the keys derived from a secret and the name of a job (docs/security.md, Keys)."""

    def mac(key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, hashlib.sha256).digest()

    root = mac(b"torch-mcast secret 1", bytes.fromhex(secret))
    jobs = mac(root, b"mcast1 jobs\0\1")
    job = mac(jobs, b"mcast1 job\0" + hashlib.sha256(JOB.encode()).digest() + b"\1")
    keys = {
        name: mac(job, b"mcast1 " + name.encode() + b"\0\1") for name in ("record", "hello", "mix")
    }
    return {"root": root, "job": job, **keys}


def held(pid: int, wanted: dict[str, bytes]) -> set[str]:
    """Returns the names of these values that a process has in its memory."""
    return {name for _, _, area in areas(pid) for name, value in wanted.items() if value in area}


SEALED, CHACHA, SIZE = 2, 3, 32  # numbers of modes and suites, and the length of their keys


def derived(key: bytes, label: str, context: bytes = b"") -> bytes:
    """Derives a key as the keys of a guarded group are derived from each other (docs/security.md, Keys)."""
    return hmac.digest(key, b"mcast1 " + label.encode() + b"\0" + context + b"\1", "sha256")


def first_chain(root: bytes, lane: int, member: int) -> bytes:
    kind = bytes([SEALED, CHACHA, lane]) + member.to_bytes(2, "little")
    return derived(root, "datagram", kind)


def blocks(area: bytes) -> set[bytes]:
    """Returns the contents of key slots in pages for secrets."""
    return {area[at : at + SIZE] for at in range(0, len(area), SIZE)} - {bytes(SIZE)}


def random_looking(area: bytes):
    """Yields 32 bytes at every eighth address that are not pointers, small numbers, text or
    repetitions."""
    words = np.frombuffer(area, "<u8", len(area) // 8)
    n = max(0, len(words) - 3)
    top = words >> np.uint64(48)
    odd = (top != 0) & (top != 0xFFFF)
    good, high = np.ones(n, bool), np.zeros(n, np.uint64)
    for i in range(4):
        good &= odd[i : i + n]
        high |= words[i : i + n]
    for i in range(3):
        good &= words[i : i + n] != words[i + 1 : i + 1 + n]
    lanes = high >> np.uint64(7) & np.uint64(0x0101010101010101)
    good &= (lanes * np.uint64(0x0101010101010101)) >> np.uint64(56) >= 4
    for at in np.flatnonzero(good).tolist():
        yield area[8 * at : 8 * at + SIZE]


def test_keys_are_found_where_they_are_looked_for():
    """Validates the two tests below: the derivation is the library's, and a key between other data
    is found."""
    vectors = json.loads(VECTORS.read_text())
    root = bytes.fromhex(vectors["group_root"])
    chain = bytes.fromhex(vectors["chain sealed chacha20poly1305"])
    assert first_chain(root, 1, 5) == chain
    epoch = bytes.fromhex(vectors["epoch 0 sealed chacha20poly1305"])
    assert derived(chain, "key") == epoch[:SIZE]
    rest = b"text " * 800 + bytes(4000) + (0x7F12_3456_7890).to_bytes(8, "little") * 500
    found = set(random_looking(rest + chain + rest))
    assert chain in found and len(found) < 20
    assert chain in blocks(bytes(64) + chain + bytes(4000))


def test_a_group_s_keys_are_in_pages_for_secrets_alone(tmp_path):
    """Two ranks on one host exchange everything over the network, so they have a group's keys, each
    other's, and those of connections. The contents of pages for secrets are in no other place. The
    group's root M, from which every epoch is derived, is nowhere at all, and the key of a
    connection is only in such pages. Data that libcrypto expands is exempt: the keys of epochs in
    use, which identify chains."""
    secret = secrets.token_hex(32)
    path = tmp_path / "secret"
    path.write_text(text_of(bytes.fromhex(secret)))
    path.chmod(0o600)
    env = {"MCAST_SECURITY": "sealed", "MCAST_SECRET_FILE": str(path), "MCAST_JOB": JOB}
    # (libcrypto keeps this suite's keys unchanged, whatever instructions the CPU has.)
    env |= {"MCAST_SECURITY_SUITE": "chacha20poly1305", "MCAST_SHARED_MEMORY": "off"}
    directions = bytes([SEALED, CHACHA])
    chains_of_ranks = []

    def look(pids):
        for pid in pids:
            kept: set[bytes] = set()
            for _, flags, area in areas(pid):
                if "dd" in flags:
                    assert "wf" in flags, "a child has them"
                    kept |= blocks(area)
            assert not [key for key in kept if first_chain(key, 0, 0) in kept], "M is kept"
            epochs, chains = {derived(key, "key"): key for key in kept}, set()
            for name, flags, area in areas(pid):
                if "dd" in flags:
                    continue
                for key in set(random_looking(area)):
                    assert key not in kept, name
                    assert first_chain(key, 0, 0) not in kept, (name, "M")
                    for way in ("c2a", "a2c"):
                        assert derived(key, way, directions) not in kept, (name, "a connection's")
                    if key in epochs:
                        chains.add(epochs[key])
            chains_of_ranks.append(chains)

    # (A forked process has half as much memory again to look at.)
    told, logs, store = run(tmp_path, [env, env], look, anew=True)
    check(told, logs, store, secret, ("multicast", "ring"))
    one, other = chains_of_ranks
    # The keys with which each rank seals on its two lanes, and both directions of a connection,
    # which both ranks have.
    assert min(len(one), len(other)) >= 4
    assert len(one & other) >= 2
    for key in one | other:
        assert key not in store and key.hex() not in logs.lower()


@pytest.mark.parametrize("way", [pytest.param("file", marks=pytest.mark.all_tier), "environment"])
def test_with_an_engine_the_keys_are_in_the_engine_alone(tmp_path, monkeypatch, way):
    """This holds even if the ranks were also given the secret; the process that watches the engine
    has no key either. The engine itself has the keys: they are found there."""
    secret, socket = secrets.token_hex(32), tmp_path / "engine.sock"
    path = tmp_path / "secret"
    path.write_text(text_of(bytes.fromhex(secret)) + "\n")
    path.chmod(0o600)
    wanted = {"text": secret.encode(), "secret": bytes.fromhex(secret), **keys_of(secret)}
    env = {"MCAST_SECURITY": "sealed", "MCAST_ENGINE": f"host:{socket}", "MCAST_JOB": JOB}
    if way == "file":
        unread = text_of(secrets.token_bytes(32))
        monkeypatch.setenv("MCAST_SECRET", unread)
        engine = host_engine.start(socket, "--secret-file", str(path))
        monkeypatch.delenv("MCAST_SECRET")
    else:
        unread = text_of(bytes.fromhex(secret))
        monkeypatch.setenv("MCAST_SECRET", unread)
        engine = host_engine.start(socket)
        env["MCAST_SECRET"] = unread
    seen = []

    def look(pids):
        running = read(socket)
        assert [client["security"] for client in running["clients"]] == [["sealed"]] * 2
        # (The key for records is removed when the group has been created.)
        assert {"hello", "mix"} <= held(running["pid"], wanted)
        assert not {"text", "secret", "root"} & held(running["pid"], wanted)
        seen.append(held(engine.pid, wanted))
        # (Python's own copy of an environment stays in freed memory.)
        theirs = wanted if way == "file" else keys_of(secret)
        seen.extend(held(pid, theirs) for pid in pids)
        for pid in [engine.pid, running["pid"]]:
            assert (
                b"MCAST_SECRET=" + unread.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            )

    try:
        assert guardian_is(engine.pid, read(socket)["pid"])
        told, logs, store = run(tmp_path, [env, env], look, anew="MCAST_SECRET" in env)
    finally:
        logged = host_engine.end(engine)
    check(told, logs + logged, store, secret)
    assert seen == [set()] * 3
    assert ("MCAST_SECRET is ignored" in logs) == (way == "environment")


def guardian_is(watching: int, pid: int) -> bool:
    return f"PPid:\t{watching}\n" in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize("mode", ["sealed", pytest.param("auth", marks=pytest.mark.all_tier)])
def test_hosts_tell_each_other_no_key_through_the_store(lab, tmp_path, mode):
    """Checks everything that the ranks of two hosts write to the job's store, including keys of
    values, and everything that they report about themselves: none of it is the secret, the role's
    secret, or derived from either."""
    secret = secrets.token_hex(32)
    path = tmp_path / "secret"
    path.write_text(text_of(bytes.fromhex(secret)))
    path.chmod(0o600)
    hosts = lab(preload=guarded.PRELOAD, hosts=2, ranks_per_host=2, rate="1gbit")
    call = hosts.start(guarded.noted, {"security": mode, "secret_file": str(path)})
    call.wait("ended", list(range(4)), timeout_s=90)
    call.signal("all have ended")
    rows = call.results(timeout_s=60)
    for rank, row in enumerate(rows):
        assert row["sum"] == 5000 * 4 * (3 if rank < 3 else 1)
        assert row["stats"]["security"]["mode"] == mode
        assert row["stats"]["path"] in ("multicast", "ring")
        # The last group was created without options: it would be unencrypted, and is refused unless
        # that is requested.
        assert f"has security=off, but another group has security={mode}" in row["refused"]
        assert row["mixed"] == 10 * 4
    written = [pair for row in rows for pair in row["written"]]
    store = b"\0".join(key.encode() + b"\0" + value for key, value in written)
    # It is the store of the whole job: every rank's record, of the job and of its part, with a
    # proof.
    for rank in range(4):
        # (Groups of one host, whose traffic does not leave it, have records without a proof.)
        records = [value for key, value in written if key.endswith(f"rank/{rank}")]
        proved = [r for r in records if b"\nmac=" in r and b"\nsecret_check=" in r]
        assert len(proved) >= (2 if rank < 3 else 1), records
    everything = store.lower() + "".join(row["says"] for row in rows).encode().lower()
    known = {"secret": bytes.fromhex(secret), "role": role_of(bytes.fromhex(secret))}
    for name in list(known):
        known |= {f"{name}: {k}": key for k, key in keys_of(known[name].hex()).items()}
    for name, key in known.items():
        assert key not in store, name
        assert key.hex().encode() not in everything, name
        assert base64.b64encode(key).rstrip(b"=").lower() not in everything, name


def test_a_secret_in_the_environment_is_taken_out_of_it(tmp_path):
    secret = secrets.token_hex(32)
    env = {"MCAST_SECURITY": "sealed", "MCAST_SECRET": text_of(bytes.fromhex(secret))}
    told, logs, store = run(tmp_path, [env, env], anew=True)
    check(told, logs, store, secret)
    for row in told:
        assert "MCAST_SECRET" not in row["environ"] and "MCAST_SECRET" not in row["child"]


def test_a_secret_without_a_mode_is_one_warning(tmp_path):
    told, logs, _ = run(tmp_path, [{"MCAST_SECRET": text_of(secrets.token_bytes(32))}] * 2)
    assert all(row["stats"]["security"]["mode"] == "off" for row in told)
    assert logs.count("but security is off") == 2  # one from each process


def test_mixed_modes_and_another_secret_are_named_by_both(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text(text_of(secrets.token_bytes(32)))
        path.chmod(0o600)
    sealed = {"MCAST_SECURITY": "sealed", "MCAST_SECRET_FILE": str(paths[0])}
    other = sealed | {"MCAST_SECRET_FILE": str(paths[1])}
    for envs, name in [([sealed, {}], "security_differs"), ([sealed, other], "secret_differs")]:
        told, _, _ = run(tmp_path, envs)
        assert told == [None, None]
        for rank in range(2):
            fields = check_error((tmp_path / f"log{rank}").read_text(), name)
            assert {fields["rank"], fields["other"]} == {0, 1}
            if name == "security_differs":
                assert by_rank(fields, "security") == {0: "sealed", 1: "off"}
        for left in tmp_path.glob("store*"):
            left.unlink()


@pytest.mark.parametrize("path", ["multicast", "ring"])
def test_no_silent_clear_path_beside_a_guarded_group(path, monkeypatch):
    def group(choice):
        return SimpleNamespace(
            _mode_and_path=lambda: ("sealed", path),
            _fallback_store=lambda: None,
            options=SimpleNamespace(fallback=choice, group_name="g"),
        )

    monkeypatch.setattr(_fallback, "_make_gloo", lambda *a: "gloo")
    monkeypatch.delenv("GLOO_DEVICE_TRANSPORT", raising=False)
    monkeypatch.setattr(_fallback.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(_fallback.dist, "is_nccl_available", lambda: True)
    for device in ("cpu", "cuda"):
        assert _fallback.kind(group("auto"), device) == ""
        assert _fallback.kind(group("gloo"), device) == "gloo"
    with pytest.warns(UserWarning, match="are sent unencrypted"):
        _fallback.make(group("gloo"), "gloo")
    monkeypatch.setenv("GLOO_DEVICE_TRANSPORT", "TCP_TLS")
    # Only Gloo has TLS: NCCL stays unencrypted.
    assert _fallback.kind(group("auto"), "cpu") == "gloo"
    assert _fallback.kind(group("auto"), "cuda") == "gloo"
    for name in ("gloo", "nccl"):
        assert _fallback.in_clear(name, "sealed", path, {})
        for inside in ("shared memory", "local"):
            assert not _fallback.in_clear(name, "sealed", inside, {})
        assert not _fallback.in_clear(name, "off", path, {})
    assert _fallback.in_clear("nccl", "sealed", path, {"GLOO_DEVICE_TRANSPORT": "TCP_TLS"})
    unguarded = SimpleNamespace(
        _mode_and_path=lambda: ("off", path), options=SimpleNamespace(fallback="auto")
    )
    assert _fallback.kind(unguarded, "cuda") == "nccl"


def test_doctor_compares_sealing_with_what_the_interface_says(tmp_path):
    for name, text in [("fast", "100000\n"), ("down", "-1\n"), ("odd", "?\n"), ("veth", "10000\n")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(text)
        if name != "veth":
            (tmp_path / name / "device").mkdir()
    assert security.link_speed("fast", tmp_path) == 100_000_000_000
    for name in ("down", "odd", "none", "veth"):
        assert security.link_speed(name, tmp_path) == 0
    unknown = security.judge_rate("sealed", "aes128gcm", 1408, 3e9, 0)
    assert unknown.verdict is Verdict.OK and "the link's speed is unknown" in unknown.finding
    slow = security.judge_rate("sealed", "aes128gcm", 1408, 3e9, 100_000_000_000)
    assert slow.verdict is Verdict.WARN and "the link takes 100.0" in slow.finding
