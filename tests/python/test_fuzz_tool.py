"""tools/fuzz.py: packed corpora, and the arguments of the programs of a build."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import fuzz  # noqa: E402

# Replaces a target: records the inputs of its folders; -merge=1 copies those that begin with "new".
PROGRAM = """#!/bin/sh
folders=
for word; do case $word in -*) ;; *) folders="$folders $word" ;; esac; done
if [ "$1" = -merge=1 ]; then cp "$3"/new* "$2"; else cat $(find $folders -type f | sort) > "$0.seen"; fi
echo "stat::number_of_executed_units: 7"
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Makes a build with one target, `ipc`, next to a repository with a corpus for it."""
    monkeypatch.setattr(fuzz, "ROOT", tmp_path / "repository")
    fuzz.write_corpus(fuzz.corpus_file("ipc"), {b"\x00\xff": "", b"": "nothing", b"kept": ""})
    folder = tmp_path / "build"
    folder.mkdir()
    (folder / "mcast_fuzz_ipc").write_text(PROGRAM)
    (folder / "mcast_fuzz_ipc").chmod(0o755)
    return folder


def called(monkeypatch, *words) -> int:
    monkeypatch.setattr(sys, "argv", ["fuzz.py", *map(str, words)])
    return fuzz.main()


def test_a_corpus_is_a_sorted_line_per_input(build):
    assert fuzz.corpus_file("ipc").read_text() == "- nothing\n00ff\n6b657074\n"
    every = {bytes([first, second]): "" for first in range(256) for second in (0, 10, 13, 32, 255)}
    fuzz.write_corpus(build / "x.txt", every)
    assert fuzz.read_corpus(build / "x.txt") == every
    assert fuzz.read_corpus(build / "none.txt") == {}
    (build / "x.txt").write_text("00\n0g\n")
    with pytest.raises(ValueError, match=r"x\.txt:2: "):
        fuzz.read_corpus(build / "x.txt")


def test_every_target_has_a_corpus_in_its_one_form(tmp_path):
    files = {file.stem: file for file in (ROOT / "tests/fuzz/corpus").iterdir()}
    assert files.keys() == {source.stem for source in (ROOT / "tests/fuzz").glob("*.cpp")}
    for file in files.values():
        corpus = fuzz.read_corpus(file)
        assert len(corpus) > 10
        fuzz.write_corpus(tmp_path / "again.txt", corpus)
        assert (tmp_path / "again.txt").read_text() == file.read_text()
        names = [name for name in corpus.values() if name]
        assert len(names) == len(set(names))  # they become file names when it is unpacked


def test_a_program_reads_the_unpacked_corpus(build, monkeypatch, capsys):
    assert called(monkeypatch, build, "7x") == 0
    assert "7 inputs  ok" in capsys.readouterr().out
    seen = (build / "mcast_fuzz_ipc.seen").read_bytes()
    assert sorted(seen) == sorted(b"\x00\xffkept")
    found = sorted(file.read_bytes() for file in (build / "committed/ipc").iterdir())
    assert found == [b"", b"\x00\xff", b"kept"] and (build / "committed/ipc/nothing").exists()


def test_merge_adds_what_reaches_more_code(build, monkeypatch, capsys):
    (build / "corpus/ipc").mkdir(parents=True)
    (build / "corpus/ipc/new1").write_bytes(b"more")
    (build / "corpus/ipc/old1").write_bytes(b"known")
    assert called(monkeypatch, build, "merge", "ipc") == 0
    assert " 1 inputs added" in capsys.readouterr().out
    assert fuzz.corpus_file("ipc").read_text() == "- nothing\n00ff\n6b657074\n6d6f7265\n"
    (build / "mcast_fuzz_ipc").write_text("#!/bin/sh\nexit 1\n")
    assert called(monkeypatch, build, "merge") == 1


def test_an_input_that_failed_is_added_by_name(build, monkeypatch):
    (build / "crash").write_bytes(b"\x01")
    assert called(monkeypatch, "add", "ipc", build / "crash", "short_frame") == 0
    assert "01 short_frame\n" in fuzz.corpus_file("ipc").read_text()
    assert called(monkeypatch, "add", "new_target", build / "crash") == 0
    assert fuzz.corpus_file("new_target").read_text() == "01\n"
