"""The reference pages agree with the sources; tools/reference.py writes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import torch_mcast
from torch_mcast.cli import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference():
    sys.path.append(str(ROOT / "tools"))
    import reference

    return reference


def test_pages_are_what_the_sources_say(reference):
    assert reference.differing() == []


def test_every_command_has_a_section(reference):
    page = (ROOT / "docs/cli.md").read_text()
    for name in COMMANDS:
        assert f"\n## torch-mcast {name}\n" in page
    for option in (
        "--timeout SECONDS",
        "--quota-per-job BYTES",
        "--guardian on\\|off",
        "--limit SECONDS",
    ):
        assert f"| `{option}` |" in page


def test_api_page_has_every_public_name():
    page = (ROOT / "docs/api.md").read_text()
    absent = [
        n
        for n in torch_mcast.__all__
        if f"::: torch_mcast.{n}\n" not in page and f"`torch_mcast.{n}`" not in page
    ]
    assert not absent


def test_a_row_that_differs_is_written_again(reference):
    page = (ROOT / "docs/counters.md").read_text()
    row = "| `gaps` | chunks found missing behind later ones |"
    assert row in page
    assert reference.counter_page(page.replace(row, "| `gaps` | something else |")) == page
    assert reference.counter_page(page.replace(f"{row}\n", "")) == page


def test_a_page_without_the_place_of_a_table_is_an_error(reference):
    with pytest.raises(ValueError, match=r"docs/counters\.md has no lines <!-- Made by"):
        reference.counter_page("# Counters\n")
