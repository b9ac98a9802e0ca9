"""What is found before a run, so that nothing is lost after it: whether its results can be written."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path


def check_file(path: Path) -> None:
    """Makes the folder of a file that is to be written. ValueError: it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_fifo():  # who opens it may wait
            return
        existed = path.exists()
        with path.open("ab"):  # modes say little: a file system may be read-only, a folder /proc
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def check_folder(path: Path) -> None:
    """Makes a folder that files are to be written to. ValueError: they cannot."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(f"{path} is no folder to write to: {error.strerror}") from None


def check_plots(option: str) -> None:
    """ValueError: there is nothing to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"{option} needs matplotlib: pip install matplotlib")
