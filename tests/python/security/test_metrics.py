"""Prometheus' text format, and the file that is replaced."""

from __future__ import annotations

import os
import re

from forked import Forked

from torch_mcast import _metrics
from torch_mcast._load import extension

LINE = re.compile(r'^[a-z_]+(\{([a-z_]+="(?:[^"\\\n]|\\.)*",?)*\})? \d+$')


def group(name="default_pg", sources=()):
    counters = dict.fromkeys(extension().counters(), 3)
    causes = dict.fromkeys(extension().causes(), 0) | {"foreign": 7}
    return {
        "group": name, "rank": 1, "size": 4, "path": "multicast", "failure": "",
        "counters": counters,
        "security": {"mode": "off", "causes": causes, "sources": list(sources)},
    }  # fmt: skip


def test_every_line_is_a_sample_or_a_comment():
    source = {"address": "10.1.0.9", "causes": {"foreign": 5, "damaged": 0}}
    text = _metrics._render([group(), group('odd "name"\\ and\nmore', [source])])
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples and all(LINE.match(line) for line in samples), text
    own = 'group="default_pg",rank="1"'
    assert f'torch_mcast_refused_total{{{own},cause="foreign"}} 7' in samples
    assert f"torch_mcast_chunks_placed_total{{{own}}} 3" in samples
    assert text.count('source="10.1.0.9",cause="foreign"} 5') == 1
    assert 'cause="damaged"' not in text.partition("by_source")[2].partition("# TYPE")[2]
    for name in extension().counters():
        assert text.count(f"# TYPE torch_mcast_{name}_total counter\n") == 1


def test_a_group_that_failed_is_1():
    text = _metrics._render([group("good"), {**group("bad"), "failure": "rank 2 was lost"}])
    for name, failed in (("good", 0), ("bad", 1)):
        assert f'torch_mcast_group_failed{{group="{name}",rank="1"}} {failed}\n' in text


def test_without_groups_there_is_something_to_read():
    samples = [line for line in _metrics._render([]).splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"torch_mcast_device_[a-z_]+ \d+", line) for line in samples), samples


def test_the_file_is_replaced_whole(tmp_path, monkeypatch):
    rows = [group()]
    monkeypatch.setattr(_metrics, "metrics", lambda: _metrics._render(rows))
    path = tmp_path / "m.prom"
    _metrics.write(str(path))
    first = path.stat().st_ino
    rows.append(group("second"))
    _metrics.write(str(path))
    assert path.stat().st_ino != first and 'group="second"' in path.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["m.prom"]
    _metrics.write(str(tmp_path / "%p.prom"))
    assert (tmp_path / f"{os.getpid()}.prom").exists()


def test_the_file_is_written_through_no_link(tmp_path, monkeypatch):
    """If others can write to the folder, they can create links under any name that they can predict."""
    monkeypatch.setattr(_metrics, "metrics", lambda: "text")
    mine = tmp_path / "mine"
    mine.write_text("mine")
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in (f".m.prom.{os.getpid()}", "m.prom"):
        (folder / name).symlink_to(mine)
    _metrics.write(str(folder / "m.prom"))
    assert mine.read_text() == "mine"
    assert (folder / "m.prom").read_text() == "text" and not (folder / "m.prom").is_symlink()


JOB = r"""
import re, sys
from pathlib import Path
import torch, torch.distributed as dist, torch_mcast
from torch_mcast import _metrics
_metrics.INTERVAL = 0.1
rank, store, path = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3] + sys.argv[1])
options = torch_mcast.Options(metrics_file=str(path))
dist.init_process_group("mcast", init_method="file://" + store, rank=rank, world_size=2, pg_options=options)
def told():
    found = re.search(r"^torch_mcast_ops_completed_total\{.*\} (\d+)$", path.read_text(), re.M)
    return int(found[1]) if found else 0
assert path.exists()
seen = told()
tensor, go_on = torch.ones(1000), torch.ones(1)
while go_on:  # until the files of both have grown
    dist.all_reduce(tensor)
    go_on.fill_(told() <= seen)
    dist.all_reduce(go_on)
    tensor.fill_(1)
print("grew", flush=True)
dist.destroy_process_group()
"""


def test_the_file_of_a_job_grows(tmp_path):
    env = {**os.environ, "MCAST_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        Forked(
            ["-c", JOB, str(rank), str(tmp_path / "store"), str(tmp_path / "m")],
            {**env, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=90)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert said == ["grew\n"] * 2
    assert {p.name for p in tmp_path.iterdir()} >= {"m0", "m1"}
