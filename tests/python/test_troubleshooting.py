"""docs/troubleshooting.md lists every error: the fixed parts of the texts in csrc/ are found there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
# What makes an error or a warning out of a text.
RAISES = re.compile(
    r"\b(?:Status(?:::system)?|TORCH_CHECK\w*|TORCH_WARN\w*|C10_THROW_ERROR|throw_status|fail"
    r"|log)\("
)
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
SIMULATOR = "transport/sim"  # its texts are seen by tests only


def fixed_parts(source: str) -> list[str]:
    """Pieces of three words and more, without the advice that follows a semicolon."""
    source = re.sub(r"//[^\n]*", "", source)
    parts = []
    for match in RAISES.finditer(source):
        statement = source[match.start() : source.find(";\n", match.start())]
        for literal in LITERAL.findall(re.sub(r'"\s*\n\s*"', "", statement)):
            for piece in re.split(r"%\w+", re.sub(r"\\(.)", r"\1", literal).split(";")[0]):
                piece = " ".join(piece.split()).strip(" :,.'()\"")
                if len(piece.split()) >= 3:
                    parts.append(piece)
    return parts


def files() -> list[Path]:
    found = [path for path in (ROOT / "csrc").rglob("*.cpp") if SIMULATOR not in str(path)]
    assert len(found) > 30
    return sorted(found)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT / "csrc")))
def test_every_text_is_listed(path):
    page = " ".join(PAGE.read_text().replace("`", " ").split())
    missing = [part for part in fixed_parts(path.read_text()) if part not in page]
    assert not missing


def test_the_search_sees_texts():
    texts = [part for path in files() for part in fixed_parts(path.read_text())]
    assert len(texts) > 100 and "has been silent for" in texts
