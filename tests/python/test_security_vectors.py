"""The committed vectors of keys and messages equal those that the second implementation makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "data" / "make_security_vectors.py"


def test_vectors_are_those_of_the_script():
    pytest.importorskip("cryptography")
    subprocess.run([sys.executable, str(SCRIPT), "--check"], check=True)
