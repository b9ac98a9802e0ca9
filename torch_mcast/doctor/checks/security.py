"""Requirements of security on this host: a secret that others cannot read, a library, CPU instructions."""

from __future__ import annotations

import ctypes
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

from torch_mcast.doctor import fixes
from torch_mcast.doctor.checks.engine import parse
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, Verdict, fail, ok, warn
from torch_mcast.secret import check

_LIBRARY = "libcrypto.so.3"
_FASTER = "libIPSec_MB.so.1"  # see csrc/core/crypto/ipsec_mb.h
_NEEDED_FLAGS = {"aes", "pclmulqdq"}  # ARM calls them aes and pmull


def _problem(text: str) -> str:
    try:
        check(text, "")
    except ValueError as error:
        return str(error)
    return ""


def secret_check(context: Context) -> str:
    """Returns a value by which ranks of one run can compare their secrets; "" if this rank has no
    readable secret, or its engine has it."""
    if context.values.get("security", "off") == "off":
        return ""
    path = context.values.get("secret_file", "")
    run = ":".join(
        context.environment.get(name, "")
        for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    )
    try:
        if path.startswith("/dev/fd/"):  # can only be read once
            return ""
        return check(
            Path(path).read_text() if path else context.environment.get("MCAST_SECRET", ""), run
        )
    except (OSError, ValueError):
        return ""


def judge_file(path: str, mode: int, owner: int, user: int) -> Finding:
    """Judges a secret's file as the library does (csrc/core/crypto/secret.cpp)."""
    data = {"file": path, "mode": oct(stat.S_IMODE(mode)), "owner": owner}
    fix = f"chmod 600 {path}"
    if not stat.S_ISREG(mode):
        return fail("secret", f"{path} is not a regular file", **data)
    if owner not in (0, user):
        return fail("secret", f"{path} belongs to user {owner}, not to {user} or root", **data)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return fail(
            "secret", f"{path} can be written by others", f"{fix}; make a new secret", **data
        )
    try:
        problem = _problem(Path(path).read_text(errors="replace"))
    except OSError:  # for example another user's: the rank will report it
        problem = ""
    if problem:
        return fail("secret", f"{path}: {problem}", "torch-mcast secret new FILE", **data)
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        return warn("secret", f"{path} can be read by others", fix, **data)
    return ok("secret", f"{path}, for its owner only", **data)


def judge_secret(
    mode: str, path: str, variable: str, trusted: bool, engine: str = "inproc"
) -> list[Finding]:
    """`variable`: of the environment; `engine`: inproc, host or auto, of the setting."""
    if mode == "off":
        if path or variable:
            return [
                warn("security", "off, though there is a secret", "export MCAST_SECURITY=sealed")
            ]
        return [
            ok("security", "off: anybody in the network can forge traffic; see docs/security.md")
        ]
    if engine == "host":
        found = [ok("security", f"{mode}: keys and guards are in the engine of this host")]
        if variable:
            text = "in MCAST_SECRET of a rank, which needs none: the engine has it"
            return [*found, warn("secret", text, "unset MCAST_SECRET")]
        return [*found, ok("secret", "the engine's (torch-mcast engine status)")]
    keeper = "the rank, or of the engine if it serves this mode" if engine == "auto" else "the rank"
    found = [ok("security", f"{mode}: between hosts, keys in the process of {keeper}")]
    if path.startswith("/dev/fd/"):
        return [*found, ok("secret", f"from descriptor {path[8:]}")]
    if path:
        try:
            status = os.stat(path)
        except OSError as error:
            return [*found, fail("secret", f"{path}: {error.strerror}", "torch-mcast secret new")]
        return [*found, judge_file(path, status.st_mode, status.st_uid, os.geteuid())]
    if variable:
        if problem := _problem(variable):
            fix = "torch-mcast secret new FILE; MCAST_SECRET_FILE=FILE"
            return [*found, fail("secret", f"MCAST_SECRET: {problem}", fix)]
        text = "in MCAST_SECRET, which launchers pass on and store"
        return [*found, warn("secret", text, "export MCAST_SECRET_FILE=...")]
    if trusted:
        return [*found, warn("secret", "through the store: whoever reads it has the secret")]
    fix = "torch-mcast secret new FILE; MCAST_SECRET_FILE=FILE"
    if engine == "auto":
        return [
            *found,
            warn("secret", "none: groups can be made only if the engine of the host has one", fix),
        ]
    return [*found, fail("secret", "none", fix)]


def judge_cpu(flags: set[str]) -> Finding:
    arm = {"aes", "pmull"}
    if flags >= _NEEDED_FLAGS or flags >= arm:
        return ok("cipher", "this CPU has AES and carry-less multiply: aes128gcm")
    return warn("cipher", "no AES instructions here: auto takes chacha20poly1305 on all ranks")


_LOCKED = 256 << 10  # bytes of memory for keys of a process with a few groups


def judge_locked(limit: int, privileged: bool) -> Finding:
    """`limit`: RLIMIT_MEMLOCK in bytes, -1: none; `privileged`: it does not count for this user."""
    if privileged or limit < 0 or limit >= _LOCKED:
        return ok("locked", "pages with keys can be locked in memory")
    text = f"{limit >> 10} KiB may be locked: keys may be written to swap"
    cost = "8 MiB of memory that is never swapped"
    return warn("locked", text, fixes.user_limit("memlock", 8192, cost), limit=limit)


def _flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _there(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def judge_library(
    flags: set[str], wanted: str = "auto", there: Callable[[str], bool] = _there
) -> Finding:
    """`wanted`: the setting security_library."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return fail("libcrypto", f"cannot be loaded: {error}", "apt install libssl3")
    library.OpenSSL_version.restype = ctypes.c_char_p
    text = library.OpenSSL_version(0).decode()
    # With AVX-512 the version of OpenSSL determines which one is faster.
    if wanted == "libcrypto" or not flags >= {*_NEEDED_FLAGS, "avx2"} or "avx512f" in flags:
        return ok("libcrypto", text)
    if there(_FASTER):
        return ok("libcrypto", f"{text}; AES-GCM by ipsec-mb")
    return ok("libcrypto", f"{text}; AES-GCM is faster with ipsec-mb (libipsec-mb1)")


def link_speed(interface: str, folder: Path = Path("/sys/class/net")) -> int:
    """Returns the bits per second that an interface reports; 0 if it reports none (links that are
    down), or has no device behind it (a veth reports 10 Gbit/s whatever carries it)."""
    if not (folder / interface / "device").exists():
        return 0
    try:
        return max(0, int((folder / interface / "speed").read_text())) * 1_000_000
    except (OSError, ValueError):
        return 0


def judge_rate(mode: str, suite: str, chunk: int, rate: float, link: int) -> Finding:
    """`rate`: bytes per second that a core seals; `link`: bits per second, 0: not known."""
    gbit = rate * 8 / 1e9
    text = f"a core seals {gbit:.1f} Gbit/s ({mode}, {suite}, datagrams of {chunk} bytes)"
    data = {"bits_per_second": round(rate * 8), "chunk": chunk, "suite": suite, "link": link}
    if link == 0:
        return ok("sealing", f"{text}; the link's speed is unknown (MCAST_LINK_RATE)", **data)
    if 0 < rate * 8 < link:
        fix = "larger MTU, or MCAST_SUBGROUPS=2"
        return warn("sealing", f"{text}, the link takes {link / 1e9:.1f}", fix, **data)
    return ok("sealing", text, **data)


def measured(mode: str, suite: str, link: int, chunk: int = 1408, library: str = "auto") -> Finding:
    if suite == "auto":
        suite = "aes128gcm" if judge_cpu(_flags()).verdict is Verdict.OK else "chacha20poly1305"
    try:
        from torch_mcast._load import extension

        rate = extension().seal_rate(mode, suite, chunk, library)
    except Exception as error:  # noqa: BLE001 - other checks report the fault
        return warn("sealing", f"cannot be measured: {type(error).__name__}: {error}")
    return judge_rate(mode, suite, chunk, rate, link)


def run(context: Context) -> list[Finding]:
    settings = context.values
    mode = settings.get("security", "off")
    findings = judge_secret(
        mode,
        settings.get("secret_file", ""),
        context.environment.get("MCAST_SECRET", ""),
        settings.get("trust_store", "0") == "1",
        parse(settings.get("engine", "inproc"))[0],
    )
    if mode != "off":
        library = settings.get("security_library", "auto")
        link = int(settings.get("link_rate", "0") or 0)
        if link == 0 and context.chosen is not None:
            link = link_speed(context.chosen.name)
        findings += [
            judge_library(_flags(), library),
            judge_cpu(_flags()),
            judge_locked(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], os.geteuid() == 0),
            measured(mode, settings.get("security_suite", "auto"), link, library=library),
        ]
    return findings
