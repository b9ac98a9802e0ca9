"""The setting engine_user: ranks, commands and the doctor accept only that user's process as the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import forked
import pytest
from forked import Forked
from host_engine import end, start

from torch_mcast.doctor.checks.engine import Seen, judge_engine
from torch_mcast.doctor.findings import Verdict
from torch_mcast.engine import read

COMMAND = [sys.executable, "-m", "torch_mcast.engine"]

OTHER_USER = str(os.geteuid() + 7)

TRAIN = """
import sys
import torch, torch.distributed as dist
import torch_mcast
dist.init_process_group("mcast", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[1]), world_size=2)
x = torch.ones(1000)
dist.all_reduce(x)
assert torch.equal(x, torch.full_like(x, 2.0))
dist.destroy_process_group()
"""


@pytest.fixture
def engine(tmp_path):
    path = tmp_path / "engine.sock"
    process = start(path)
    yield path
    end(process)


@pytest.mark.parametrize("user", [str(os.geteuid()), OTHER_USER])
def test_ranks_take_only_the_engine_of_the_user_that_they_name(engine, tmp_path, user):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    settings = {"MCAST_ENGINE": f"host:{engine}", "MCAST_ENGINE_USER": user}
    ranks = [
        Forked([str(script), str(rank), str(tmp_path / "store")], {**os.environ, **settings})
        for rank in range(2)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode == 0) == (user != OTHER_USER), errors
        if user == OTHER_USER:
            assert f"listens at {engine}, the setting engine_user (MCAST_ENGINE_USER)" in errors
            assert f"expects user {OTHER_USER}" in errors


def test_commands_ask_only_the_engine_of_the_user_that_they_name(engine):
    def ask(command: str, *options: str, user: str) -> tuple[int, str]:
        told = subprocess.run(
            [*COMMAND, command, "--socket", str(engine), *options],
            capture_output=True, text=True, env={**os.environ, "MCAST_ENGINE_USER": user},
        )  # fmt: skip
        return told.returncode, told.stdout + told.stderr

    own = str(os.geteuid())
    for user, options in ((own, []), (OTHER_USER, ["--user", own]), ("", ["--user", own])):
        assert ask("status", *options, user=user)[0] == 0
    for user, options in ((OTHER_USER, []), (own, ["--user", OTHER_USER])):
        code, said = ask("status", *options, user=user)
        assert code == 1 and f"listens there, expected user {OTHER_USER}" in said
        code, said = ask("drain", *options, user=user)
        assert code == 1 and f"expects user {OTHER_USER}" in said
    code, said = ask("status", "--user", "no-such-user", user="")
    assert code == 1 and 'this host has no user "no-such-user"' in said
    code, said = ask("drain", "--user", "no-such-user", user="")
    assert code == 2 and "a user of this system, or its number" in said
    assert read(engine)["draining"] is False
    assert ask("drain", "--user", own, user=OTHER_USER)[0] == 0


def test_the_doctor_takes_no_other_users_engine(engine):
    settings = {"MCAST_ENGINE": f"host:{engine}", "MCAST_ENGINE_USER": OTHER_USER}
    asked = forked.run(
        ["-m", "torch_mcast.doctor", "--json", "--local"], {**os.environ, **settings}
    )
    rows = {row["check"]: row for row in json.loads(asked.stdout)["findings"]}
    assert (rows["engine"]["verdict"], asked.returncode) == ("fail", 1)
    assert f"listens there, expected user {OTHER_USER}" in rows["engine"]["finding"]


@pytest.mark.parametrize(
    ("where", "verdict", "takes"),
    [
        ("host", Verdict.FAIL, "none"),
        ("auto", Verdict.WARN, "inproc"),
        ("inproc", Verdict.OK, "inproc"),
    ],
)
def test_the_doctor_judges_an_engine_of_another_user(where, verdict, takes):
    why = "user 7 (eve) listens there, expected user 8 (mcast); --user sets another user"
    finding = judge_engine(
        where, Seen("/run/x/engine.sock", silent="none", untrusted=why), "0.2", False
    )
    assert (finding.verdict, finding.data["takes"]) == (verdict, takes)
    assert (
        "/run/x/engine.sock: user 7 (eve) listens there, expected user 8 (mcast); MCAST"
        in finding.finding
    )
    assert ("MCAST_ENGINE_USER" in finding.fix) == (where != "inproc")
