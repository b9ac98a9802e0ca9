"""`torch-mcast secret new`, the doctor's checks of a secret, and the packets that `doctor watch` reads."""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import stat
import struct
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest

from torch_mcast import cli, secret
from torch_mcast.doctor import watch
from torch_mcast.doctor.checks import security
from torch_mcast.doctor.findings import Verdict

MADE = secret.text_of(b"\x5a" * 32)


def bytes_of(text: str) -> bytes:
    begin, name, digits, _ = text.strip().split("-")
    assert f"{begin}-{name}-" == secret.PREFIX
    return bytes.fromhex(digits)


def test_a_secret_is_32_bytes_and_every_one_another(capsys):
    assert cli.main(["secret", "new"]) == 0
    assert cli.main(["secret", "new"]) == 0
    first, second = capsys.readouterr().out.split()
    assert first != second and len(bytes_of(first)) == len(bytes_of(second)) == 32
    assert secret.text_of(bytes_of(first)) == first
    # Formatted as the library expects it (tests/cpp/security/secret_test.cpp).
    known = secret.text_of(b"0123456789abcdef0123456789ABCDEF")
    assert known.endswith("-abdb1f00")


def test_the_secret_of_aggregators_is_derived_from_that_of_ranks(tmp_path, capsys):
    vectors = json.loads((Path(__file__).parents[2] / "data" / "security_vectors.json").read_text())
    text = secret.text_of(bytes.fromhex(vectors["secret"]))
    assert bytes_of(secret.role(text, 1, "rack 7")).hex() == vectors["role_key"]
    job, other = tmp_path / "job", tmp_path / "other"
    job.write_text(text + "\n")
    assert secret.main(["aggregator", str(job)]) == 0
    printed = capsys.readouterr().out.strip()
    assert len(bytes_of(printed)) == 32 and bytes_of(printed).hex() not in vectors.values()
    assert secret.main(["aggregator", str(job), str(other)]) == 0
    assert other.read_text().strip() == printed and stat.S_IMODE(other.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text",
    ["passwordpasswordpassword", "ab" * 32, base64.b64encode(bytes(32)).decode(), "hunter2", ""],
)
def test_secrets_that_the_command_did_not_make_are_refused(tmp_path, capsys, text):
    job = tmp_path / "job"
    job.write_text(text)
    assert secret.main(["aggregator", str(job)]) == 1
    assert "torch-mcast did not make it" in capsys.readouterr().err
    job.chmod(0o600)
    judged = security.judge_file(str(job), 0o100600, 0, 0)
    assert judged.verdict is Verdict.FAIL and "did not make it" in judged.finding
    if text:
        assert verdict(security.judge_secret("auth", "", text, False), "secret") is Verdict.FAIL
    command = ["-m", "torch_mcast.engine", "run", "--socket", str(tmp_path / "engine.sock")]
    refused = forked.run([*command, "--secret-file", str(job)])
    assert refused.returncode == 1
    assert f"setting secret_file: {job}: the secret does not begin with" in refused.stderr
    assert not text or text not in refused.stderr


def test_damaged_secrets_are_refused(tmp_path, capsys):
    good = secret.new()
    job = tmp_path / "job"
    last = "0" if good[-1] != "0" else "1"
    for text in (good[:-1], good[:-1] + last, good + "0", good[:40] + good[41:], secret.PREFIX):
        job.write_text(text)
        assert secret.main(["aggregator", str(job)]) == 1
        assert "its text is damaged" in capsys.readouterr().err
    job.write_text(good)
    assert secret.main(["aggregator", str(job)]) == 0


def test_a_file_is_its_owners_alone_and_never_overwritten(tmp_path, capsys):
    path = tmp_path / "secret"
    old = os.umask(0)
    try:
        assert secret.main(["new", str(path)]) == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert len(bytes_of(text)) == 32
    assert capsys.readouterr().out == ""
    assert secret.main(["new", str(path)]) == 1
    assert "File exists" in capsys.readouterr().err
    assert path.read_text() == text


def verdict(findings, check):
    (row,) = [f for f in findings if f.check == check]
    return row.verdict


def test_doctor_judges_a_file_as_the_library_does(tmp_path):
    path = tmp_path / "secret"
    secret.write(str(path))
    for mode, expected in [
        (0o600, Verdict.OK), (0o400, Verdict.OK), (0o640, Verdict.WARN), (0o604, Verdict.WARN),
        (0o620, Verdict.FAIL), (0o602, Verdict.FAIL),
    ]:  # fmt: skip
        path.chmod(mode)
        assert verdict(security.judge_secret("auth", str(path), "", False), "secret") is expected
    nobody = security.judge_file("x", stat.S_IFREG | 0o600, 4711, 1)
    assert nobody.verdict is Verdict.FAIL and "belongs to user 4711" in nobody.finding
    assert security.judge_file("x", stat.S_IFREG | 0o600, 1, 1).verdict is Verdict.OK
    assert security.judge_file("x", stat.S_IFREG | 0o600, 0, 1).verdict is Verdict.OK, "root's"
    missing = security.judge_secret("auth", str(tmp_path / "none"), "", False)
    assert verdict(missing, "secret") is Verdict.FAIL
    (_, held) = security.judge_secret("auth", "/dev/fd/12", "", False)
    assert (held.verdict, held.finding) == (Verdict.OK, "from descriptor 12")
    assert verdict(security.judge_secret("auth", "", "", False), "secret") is Verdict.FAIL
    assert verdict(security.judge_secret("auth", "", MADE, False), "secret") is Verdict.WARN
    assert verdict(security.judge_secret("auth", "", "", True), "secret") is Verdict.WARN
    either = security.judge_secret("auth", "", "", False, "auto")
    assert verdict(either, "secret") is Verdict.WARN, "an engine may have one"
    hosted = security.judge_secret("auth", "", "", False, "host")
    assert verdict(hosted, "secret") is Verdict.OK, "a rank needs none"
    hosted = security.judge_secret("auth", "", MADE, False, "host")
    assert verdict(hosted, "secret") is Verdict.WARN
    assert verdict(security.judge_secret("off", "", MADE, False), "security") is Verdict.WARN
    assert verdict(security.judge_secret("off", "", "", False), "security") is Verdict.OK


def test_doctor_compares_secrets_of_one_run_only(tmp_path):
    one, two = secret.new(), secret.new()
    path = tmp_path / "secret"
    path.write_text(one + "\n")

    def told(run: str, **environment: str) -> str:
        file = "" if "MCAST_SECRET" in environment else str(path)
        values = {"security": "sealed", "secret_file": file}
        named = {"TORCHELASTIC_RUN_ID": run, **environment}
        return security.secret_check(SimpleNamespace(values=values, environment=named))

    assert told("a") == told("a") == told("a", MCAST_SECRET=one) != ""
    assert told("a") != told("b") and told("a") != told("a", MCAST_SECRET=two)
    path.write_text("no secret")
    assert told("a") == ""


def test_doctor_knows_what_ciphers_need():
    assert security.judge_cpu({"aes", "pclmulqdq", "sse2"}).verdict is Verdict.OK
    assert security.judge_cpu({"aes", "pmull"}).verdict is Verdict.OK
    assert security.judge_cpu({"aes"}).verdict is Verdict.WARN


def test_doctor_knows_whether_keys_can_be_locked():
    assert security.judge_locked(-1, False).verdict is Verdict.OK
    assert security.judge_locked(8 << 20, False).verdict is Verdict.OK
    assert security.judge_locked(0, True).verdict is Verdict.OK
    short = security.judge_locked(64 << 10, False)
    assert short.verdict is Verdict.WARN and "64 KiB may be locked" in short.finding


def test_doctor_measures_what_a_core_seals():
    found = security.measured("sealed", "chacha20poly1305", 0)
    assert found.verdict is Verdict.OK and "a core seals" in found.finding
    assert found.data["bits_per_second"] > 1e6 and found.data["suite"] == "chacha20poly1305"
    assert security.measured("auth", "auto", 0).data["suite"] in ("aes128gcm", "chacha20poly1305")
    slow = security.judge_rate("sealed", "aes128gcm", 1408, 1e9, 25_000_000_000)
    assert slow.verdict is Verdict.WARN and "MCAST_SUBGROUPS" in slow.fix
    for link, expected in ((4, Verdict.OK), (8, Verdict.OK), (9, Verdict.WARN)):  # for 8 Gbit/s
        rated = security.judge_rate("sealed", "aes128gcm", 1408, 1e9, link * 1_000_000_000)
        assert rated.verdict is expected
    assert security.measured("sealed", "rot13", 0).verdict is Verdict.WARN


def ip(igmp: bytes, source: str = "10.1.0.9", protocol: int = 2) -> bytes:
    options = b"\x94\x04\x00\x00"  # router alert, as in IGMP
    return (
        struct.pack("!BBHHHBBH", 0x46, 0xC0, 24 + len(igmp), 0, 0, 1, protocol, 0)
        + socket.inet_aton(source)
        + socket.inet_aton("224.0.0.22")
        + options
        + igmp
    )


def v3(*records: tuple[int, str, int]) -> bytes:
    out = struct.pack("!BBHHH", 0x22, 0, 0, 0, len(records))
    for mode, group, sources in records:
        out += struct.pack("!BBH", mode, 0, sources) + socket.inet_aton(group)
        out += socket.inet_aton("10.9.9.9") * sources
    return out


def test_reports_of_all_versions_are_read():
    packet = ip(
        v3((4, "239.1.2.3", 0), (3, "239.1.2.4", 0), (1, "239.5.5.5", 2), (6, "239.6.6.6", 1))
    )
    assert list(watch.parse(packet)) == [
        watch.Membership("10.1.0.9", "239.1.2.3", True),
        watch.Membership("10.1.0.9", "239.1.2.4", False),
        watch.Membership("10.1.0.9", "239.5.5.5", True),
    ]
    group = socket.inet_aton("239.7.7.7")
    assert [m.joined for m in watch.parse(ip(b"\x16\0\0\0" + group))] == [True]
    assert [m.joined for m in watch.parse(ip(b"\x17\0\0\0" + group))] == [False]
    assert [m.joined for m in watch.parse(ip(b"\x12\0\0\0" + group))] == [True]


def test_any_bytes_are_read_without_harm():
    whole = ip(v3((4, "239.1.2.3", 3), (2, "239.1.2.4", 0)))
    for size in range(len(whole)):
        list(watch.parse(whole[:size]))
    assert list(watch.parse(ip(v3((4, "239.1.2.3", 0)), protocol=17))) == []
    assert list(watch.parse(b"\x60" + whole[1:])) == []


def test_made_up_reports_are_read_without_harm_and_fill_no_memory(monkeypatch):
    """Fuzzes the parser: true reports, changed, cut, joined, and noise. Each result is one line of
    output, and the remembered state is bounded."""
    monkeypatch.setattr(watch, "_MOST_KNOWN", 50)
    rng, here = random.Random(20), watch.Watch(watch._networks("10.1.0.0/16"))
    whole = [
        ip(v3((4, "239.1.2.3", 3), (2, "239.1.2.4", 0), (3, "239.9.9.9", 0), (5, "239.3.3.3", 1))),
        ip(b"\x16\0\0\0" + socket.inet_aton("239.7.7.7")),
        rng.randbytes(60),
    ]
    lines = 0
    for _ in range(20_000):
        packet = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(6)):
            packet[rng.randrange(len(packet))] = rng.randrange(256)
        packet[12:16] = rng.choice([bytes(packet[12:16]), rng.randbytes(4)])
        for change in watch.parse(bytes(packet[: rng.choice([len(packet), rng.randrange(80)])])):
            line = here.note(change)
            lines += line is not None
            assert line is None or (line.isprintable() and change.group.startswith("239."))
    assert lines > 5000
    assert len(here._known) == len(here.strangers) == 50
    # The oldest is forgotten, and reported again; the newest is not.
    newest = watch.Membership("10.9.0.1", "239.1.1.1", True)
    assert here.note(newest) and here.note(newest) is None


def test_only_strangers_are_called_so():
    here = watch.Watch(watch._networks("10.1.0.0/24, 10.2.0.7"))
    note = lambda source, joined=True, group="239.1.1.1": here.note(  # noqa: E731
        watch.Membership(source, group, joined)
    )
    assert note("10.1.0.9") == "10.1.0.9 has joined 239.1.1.1"
    assert note("10.1.0.9") is None
    assert "STRANGER 10.3.0.1 has joined 239.1.1.1" in note("10.3.0.1")
    assert note("10.2.0.7", group="224.0.0.251") is None
    assert note("10.1.0.9", joined=False) == "10.1.0.9 has left 239.1.1.1"
    assert note("10.1.0.8", joined=False) is None
    assert here.strangers == {"10.3.0.1"}


class Segment:
    """A socket that gets these packets, and then Ctrl-C."""

    def __init__(self, *packets):
        self._packets = list(packets)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def settimeout(self, seconds):
        assert seconds is None

    def recv(self, size):
        if not self._packets:
            raise KeyboardInterrupt
        return self._packets.pop(0)


def test_watch_ends_with_1_after_a_stranger(monkeypatch, capsys):
    report = v3((4, "239.1.2.3", 0))
    for source, code, line in (
        ("10.1.0.9", 0, "10.1.0.9 has joined 239.1.2.3"),
        ("10.7.0.9", 1, "STRANGER 10.7.0.9 has joined 239.1.2.3: it reads what is sent there"),
    ):
        segment = Segment(ip(report, source))
        monkeypatch.setattr(watch, "_open", lambda name, segment=segment: segment)
        assert cli.main(["doctor", "watch", "eth0", "--allow", "10.1.0.0/24"]) == code
        assert capsys.readouterr().out == line + "\n"
    monkeypatch.setenv("MCAST_ALLOW", "10.9.0.0/16")
    monkeypatch.setattr(watch, "_open", lambda name: Segment(ip(report, "10.1.0.9")))
    assert watch.main(["eth0"]) == 1


def test_watch_needs_an_interface_that_is_there(capsys):
    assert cli.main(["doctor", "watch", "nosuch0", "--seconds", "0.1"]) == 2
    assert "torch-mcast doctor watch" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["doctor", "watch"])
