"""Starts an engine of the host as an ordinary user: `unprivileged_engine.py FOLDER DENIED PROGRAM OPTIONS...`"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from scenarios_unprivileged import become_user, deny_memory

if __name__ == "__main__":
    folder, denied, *command = sys.argv[1:]
    become_user(Path(folder))
    if denied == "denied":
        deny_memory()
    os.execv(command[0], command)
