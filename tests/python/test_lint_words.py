"""tools/lint_words.py: the comments and sentences that it reads, its limits, and commit subjects."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.append(str(TOOLS))

import lint_words  # noqa: E402


def read(tmp_path: Path, name: str, text: str) -> list[tuple[int, str]]:
    (tmp_path / name).write_text(textwrap.dedent(text))
    return [tuple(sentence) for sentence in lint_words.sentences_of(tmp_path / name)]


def test_consecutive_comment_lines_of_c_form_one_comment(tmp_path):
    text = """\
        // Sends a block. Returns true if
        // more could be sent: see credit.
        //
        // - a list item of four
        int x;  // bytes of a block
        // Another comment follows here
    """
    assert read(tmp_path, "a.cpp", text) == [
        (1, "Sends a block."),
        (1, "Returns true if more could be sent:"),
        (1, "a list item of four"),
        (5, "bytes of a block"),
        (6, "Another comment follows here"),
    ]


def test_slashes_within_strings_start_no_comment(tmp_path):
    text = """\
        const char* a = "http://b // not a comment here";  // "quoted" words // stay here
        char q = '"';  // after a quote character
    """
    assert read(tmp_path, "a.h", text) == [
        (1, '"quoted" words // stay here'),
        (2, "after a quote character"),
    ]


def test_python_comments_and_docstrings_are_read(tmp_path):
    text = '''\
        """Reads a file.

        Nothing else is done."""

        URL = "https://x # not a comment"  # where it is


        def f():
            """Returns the first line"""
            # Comment of one sentence
            # on two lines.
    '''
    assert sorted(read(tmp_path, "a.py", text)) == [
        (1, "Nothing else is done."),
        (1, "Reads a file."),
        (5, "where it is"),
        (9, "Returns the first line"),
        (10, "Comment of one sentence on two lines."),
    ]


@pytest.mark.parametrize(
    "text", ["What comes by multicast", "Of the transport.", "By rank and lane"]
)
def test_odd_openings_are_found(text):
    assert lint_words.Sentence(1, text).odd


@pytest.mark.parametrize(
    "text", ["Whether it runs", "Whatsoever it is", "Bytes of a block", "Offset in it"]
)
def test_other_openings_are_not_odd(text):
    assert not lint_words.Sentence(1, text).odd


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("csrc/host_engine/ipc/ring.h", "csrc/host_engine"),
        ("csrc/core/transport/udp/udp_transport.h", "csrc/core/transport"),
        ("csrc/torch/device/copy.h", "csrc/torch"),
        ("tests/cpp/host_engine/ring_test.cpp", "tests/cpp"),
        ("torch_mcast/bench/__init__.py", "torch_mcast"),
    ],
)
def test_folder_of_a_file(name, folder):
    assert lint_words.folder_of(name) == folder


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Makes two sentences of csrc/core/wire, one of them odd."""
    (tmp_path / "csrc/core/wire").mkdir(parents=True)
    (tmp_path / "csrc/core/wire/a.h").write_text("// A queue of records. What comes last.\n")
    monkeypatch.setattr(lint_words, "LIMITS", {"csrc/core/wire": 50.0})
    return tmp_path


def test_share_at_the_limit_passes(tree, capsys):
    assert lint_words.check_comments(tree, None) == 0
    assert "csrc/core/wire/a.h:" not in capsys.readouterr().out


def test_share_above_the_limit_fails_and_lists_the_sentence(tree, capsys):
    (tree / "csrc/core/wire/b.h").write_text("// Of no other queue.\n")
    assert lint_words.check_comments(tree, "csrc/core/wire") == 1
    out = capsys.readouterr().out
    assert "csrc/core/wire/b.h:1: Of no other queue." in out
    assert "too many" in out


@pytest.mark.parametrize(
    ("subject", "parents", "fault"),
    [
        ("doctor: check IGMPv3 on snooping hosts", 1, ""),
        ("x" * 72, 1, ""),
        ("x" * 73, 1, "has a subject of 73 characters, limit 72"),
        ("wip", 1, "is unfinished work; squash it"),
        ("WIP: ring", 1, "is unfinished work; squash it"),
        ("fixup! ring: count", 1, "is unfinished work; squash it"),
        ("wipe keys at exit", 1, ""),
        ("Merge branch 'x'", 2, "is a merge commit; rebase instead"),
    ],
)
def test_fault_of_a_commit(subject, parents, fault):
    assert lint_words.fault_of_subject(subject, parents) == fault


def test_only_commits_of_the_span_are_checked(tmp_path, capsys):
    def git(*args: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path, *identity, *args], check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    for subject in ("wip", "add a file", "x" * 80):
        git("commit", "-q", "--allow-empty", "-m", subject)
    assert lint_words.check_commits(tmp_path, "HEAD~2..HEAD~1") == 0
    assert "1 commits checked" in capsys.readouterr().out
    assert lint_words.check_commits(tmp_path, "HEAD~2..HEAD") == 1
    assert "80 characters" in capsys.readouterr().out
    assert lint_words.check_commits(tmp_path, "nobranch..HEAD") == 1
