#!/usr/bin/env python3
"""Files of Debian's and Ubuntu's archives, by hash. The list is tools/sources.tsv.

    tools/sources.py mirror debian      address of an archive (debian, ubuntu)

The address is MCAST_DEBIAN_MIRROR or MCAST_UBUNTU_MIRROR, or several of them with spaces between. If it is
unset, the package manager's own sources are taken as far as they are of that archive, then those that
Debian's package python-apt-common names for both.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("sources.tsv")
TEMPLATES = Path("/usr/share/python-apt/templates")
ARCHIVES = ("debian", "ubuntu")


class SourceError(Exception):
    """Says in one line which file could not be had, and why."""


class Source(NamedTuple):
    archive: str
    use: str  # sysroot-x86_64, sysroot-aarch64: unpacked to compile against; link: linked into wheels
    path: str
    sha256: str


def listed(use: str) -> list[Source]:
    with LIST.open() as file:
        rows = csv.reader((line for line in file if not line.startswith("#")), delimiter="\t")
        return [source for source in map(Source._make, rows) if source.use == use]


def own_sources(archive: str) -> list[str]:
    """The addresses that this machine's package manager has for this archive."""
    words = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Identifier: Packages"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:  # not Debian's
        return []
    rows = (line.partition(" ") for line in done.stdout.splitlines())
    return [address for origin, _, address in rows if origin.lower() == archive]


def known_sources(archive: str) -> list[str]:
    """The addresses in python-apt-common's description of the distribution."""
    # Its name begins in upper case before python-apt 3.
    files = [TEMPLATES / f"{name}.info" for name in (archive, archive.capitalize())]
    text = next((file.read_text() for file in files if file.is_file()), "")
    return re.findall(rf"^BaseURI: (\S+/{archive}/?)$", text, re.M)


def mirrors(archive: str) -> list[str]:
    """Addresses with a slash at their end, in the order in which they are tried."""
    setting = f"MCAST_{archive.upper()}_MIRROR"
    found = os.environ.get(setting, "").split() or [
        *own_sources(archive),
        *known_sources(archive),
    ]
    if not found:
        raise SourceError(
            f"no address of {archive}'s archive is known: install python-apt-common, or set {setting}"
        )
    return list(dict.fromkeys(f"{address.rstrip('/')}/" for address in found))


def fetched(source: Source, folder: Path) -> Path:
    """The file, from an earlier run or from the first mirror that has it."""
    file = folder / Path(source.path).name
    if file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == source.sha256:
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for mirror in mirrors(source.archive):
        try:
            with urllib.request.urlopen(mirror + source.path, timeout=60) as answer:
                content = answer.read()
        except OSError as error:
            reasons.append(f"{mirror}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() == source.sha256:
            file.write_bytes(content)
            return file
        reasons.append(f"{mirror}: not the file that is meant (SHA-256)")
    raise SourceError(
        f"cannot fetch {source.path}: {'; '.join(reasons)}. MCAST_{source.archive.upper()}_MIRROR names "
        "another archive"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["mirror"])
    parser.add_argument("archive", choices=ARCHIVES)
    try:
        print(mirrors(parser.parse_args().archive)[0])
    except SourceError as error:
        print(f"tools/sources.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
