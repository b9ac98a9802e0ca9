"""Checks before a run that its results can be written, so that they are not lost afterwards."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path


def check_file(path: Path) -> None:
    """Creates the folder of an output file. Raises ValueError if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_fifo():  # opening it may block
            return
        existed = path.exists()
        with path.open("ab"):  # mode bits are not enough: read-only file system, folder /proc
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def check_folder(path: Path) -> None:
    """Creates a folder for output files. Raises ValueError if they cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(f"{path} is no folder to write to: {error.strerror}") from None


def check_plots(option: str) -> None:
    """Raises ValueError if the plotting package is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"{option} needs matplotlib: pip install matplotlib")
