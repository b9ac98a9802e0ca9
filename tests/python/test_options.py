"""Options, environment, defaults; the lazy loader; the command line."""

from __future__ import annotations

import copy
import os
import pickle
import struct
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

import torch_mcast
from torch_mcast import _load, cli, settings
from torch_mcast._fallback import engine_interface
from torch_mcast._load import extension
from torch_mcast._stats import backend_of


def test_values_and_types():
    options = torch_mcast.Options(
        eager=4096, chunk="1K", cutoff=1.5, linger=timedelta(milliseconds=2500, microseconds=125),
        pin=True, faults="drop:rate=0.1,seed=7", timeout=timedelta(seconds=12), fallback="none",
    )  # fmt: skip
    assert (options.eager, options.chunk, options.cutoff, options.pin) == (4096, 1024, 1.5, 1)
    assert options.linger == 2500.125
    options.linger = timedelta(milliseconds=2500, microseconds=5)
    assert options.linger == 2500.005
    assert options.faults == "drop:rate=0.1,seed=7"
    assert options.timeout == options._timeout == timedelta(seconds=12)
    assert options.fallback == "none" and options.backend == "mcast"
    assert "eager" in options.settings and "window" not in options.settings
    options.eager = "64K"
    assert options.eager == 65536
    options.eager = None  # back to environment or default
    assert "eager" not in options.settings


def test_defaults_are_the_tables(monkeypatch):
    for row in extension().settings():
        monkeypatch.delenv(row["env"], raising=False)
        assert str(torch_mcast.Options().resolved()[row["name"]]) == row["default"]


@pytest.mark.parametrize(
    ("keywords", "kind", "text"),
    [
        ({"eagerness": 1}, TypeError, "unknown option 'eagerness'; there are timeout, fallback"),
        ({"eager": 1.5}, TypeError, 'eager must be an int or a str like "64K", got float'),
        ({"cutoff": []}, TypeError, "cutoff must be milliseconds .* got list"),
        ({"transport": 1}, TypeError, "transport must be a str, got int"),
        ({"eager": -1}, ValueError, "eager"),
        ({"eager": 1 << 40}, ValueError, "eager"),
        ({"chunk": "many"}, ValueError, "many"),
        ({"aggregators": "agg1"}, ValueError, "host:port, each once, separated by commas"),
        ({"aggregators": "a:1,a:1"}, ValueError, "host:port, each once"),
        ({"aggregate": "all"}, ValueError, "careful, both or off"),
        ({"aggregator_patience": 1}, ValueError, "milliseconds from 10 to 600000"),
        ({"link_rate": "fast"}, ValueError, "kbit, mbit or gbit"),
        ({"fallback": "mpi"}, ValueError, "fallback must be 'auto', 'gloo' or 'none', got 'mpi'"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(keywords, kind, text):
    with pytest.raises(kind, match=text):
        torch_mcast.Options(**keywords)


def test_copies():
    options = torch_mcast.Options(eager="8K", timeout=timedelta(seconds=3))
    options.group_name = "g"
    for twin in (copy.copy(options), copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert twin == options and twin is not options
        assert twin.group_name == "g" and twin.eager == 8192
        twin.eager = 1
        assert twin != options and options.eager == 8192
    assert options != "something else"
    assert repr(options) == "torch_mcast.Options(eager='8K', fallback='auto', timeout=3s)"


def made_with() -> dict:
    return torch_mcast.config()


def test_option_wins_over_environment(ranks):
    env = {"MCAST_EAGER": "1024", "MCAST_ARITY": "7"}
    for config in ranks(2, made_with, options={"eager": 2048}, env=env):
        assert config["eager"] == "2048" and config["arity"] == "7"


def group_options() -> None:
    backend = backend_of()
    assert backend.options.eager == 2048
    assert backend.options.group_name == dist.group.WORLD.group_name
    backend.set_timeout(timedelta(seconds=33))
    assert backend.options.timeout == timedelta(seconds=33)
    with pytest.raises(TypeError, match=r"must be torch_mcast.Options, got builtins.object"):
        dist.new_group(backend="mcast", pg_options=object())


def test_group_options(ranks):
    ranks(2, group_options, options={"eager": 2048})


def test_bad_environment(ranks):
    with pytest.raises(AssertionError, match="MCAST_EAGER"):
        ranks(1, made_with, env={"MCAST_EAGER": "lots"})


def disagree() -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        rank = dist.get_rank()
        dist.new_group(backend="mcast", pg_options=torch_mcast.Options(eager=1024 * (1 + rank)))
    return str(caught.value)


def test_settings_that_must_agree(ranks):
    for text in ranks(2, disagree):
        assert "eager" in text


@pytest.mark.parametrize(
    ("built", "present", "good"),
    [("2.13.0+cpu", "2.13.1", True), ("2.13.0", "2.13.0a0+git", True), ("2.12.1", "2.13.0", False),
     ("2.1.0", "2.10.0", False)],
)  # fmt: skip
def test_torch_version(built, present, good):
    if good:
        _load.check_torch(built, present)
    else:
        with pytest.raises(ImportError, match=f"built for torch {built}, but torch {present}"):
            _load.check_torch(built, present)


def python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_wrong_torch_is_seen_before_loading():
    out = python(
        "import sys, torch_mcast._build_info as info; info.TORCH_VERSION = '2.10.0'\n"
        "import torch_mcast\n"
        "try: torch_mcast.Options()\n"
        "except ImportError as error: print(error)\n"
        "print('loaded' if 'torch_mcast._C' in sys.modules else 'not loaded')"
    )
    assert "built for torch 2.10.0" in out and "not loaded" in out


def test_autoload_is_quiet_and_light():
    out = python(
        "import sys\nfrom torch_mcast._autoload import autoload\nautoload(); autoload()\n"
        "import torch.distributed as dist\n"
        "print(dist.is_backend_available('mcast'), 'torch_mcast._C' in sys.modules)"
    )
    assert out.split() == ["True", "False"]


def test_autoload_never_raises():
    out = python(
        "import torch.distributed as dist\n"
        "def other(*a): raise SystemExit\n"
        "dist.Backend.register_backend('mcast', other, devices=['cpu'])\n"
        "import torch\n"
        "torch.__spec__._initializing = True\n"  # as at the end of `import torch`
        "from torch_mcast._autoload import autoload\nautoload()\n"
        "import torch_mcast\n"
        "try: torch_mcast.register()\n"
        "except RuntimeError as error: print(error)"
    )
    assert "already has a backend named 'mcast'" in out


def test_exit_without_destroy(tmp_path):
    """A program that ends without telling torch ends cleanly."""
    python(
        "import torch, torch.distributed as dist, torch_mcast\n"
        f"dist.init_process_group('mcast', store=dist.FileStore({str(tmp_path / 's')!r}, 1), rank=0,"
        " world_size=1)\n"
        "dist.all_gather_into_tensor(torch.zeros(4), torch.ones(4))\n"
        "dist.all_reduce(torch.ones(4))\n"
        "work = dist.all_gather_into_tensor(torch.zeros(4), torch.ones(4), async_op=True)",
        MCAST_SOCKET_IFNAME="lo",
        GLOO_SOCKET_IFNAME="lo",
    )


def debug_wrapper() -> None:
    import torch

    dist.all_gather_into_tensor(torch.zeros(4 * dist.get_world_size()), torch.ones(4))
    dist.all_reduce(torch.ones(3))
    kind = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__
    assert kind == "_ProcessGroupWrapper"
    assert torch_mcast.stats()["calls"]["all_gather_into_tensor"]["engine"] == 1


def test_debug_wrapper(ranks):
    # The level is read when torch.distributed is imported, so this runs in separate processes.
    from ranks import Pool

    fresh = Pool(env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    try:
        fresh.run(2, debug_wrapper)
    finally:
        fresh.close()


def test_a_command_needs_no_torch():
    """No module imports it."""
    out = python(
        "import resource, sys, torch_mcast.cli as cli\n"
        "cli.main(['--version']), cli.main(['--help']), cli.main(['nonsense'])\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print([m for m in sys.modules if m.startswith('torch') and not m.startswith('torch_mcast')])\n"
        "print(len(sys.modules), used.ru_utime + used.ru_stime)"
    )
    lines = out.splitlines()
    assert lines[0].startswith("torch-mcast 0.") and lines[-2] == "[]"
    modules, seconds = lines[-1].split()
    assert int(modules) < 200, seconds  # a fifth of torch's; 0.03 s of CPU


def test_torch_that_comes_later_registers():
    out = python(
        "import torch_mcast, sys\nassert 'torch' not in sys.modules\n"
        "import torch.distributed as dist\nprint(dist.is_backend_available('mcast'))\n"
        "print(any(type(f).__name__ == '_Watch' for f in sys.meta_path))",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out.split() == ["True", "False"]


def test_a_command_that_lacks_a_package_says_which(monkeypatch, capsys):
    def lacking(name):
        raise ModuleNotFoundError("No module named 'rich'", name="rich.console")

    monkeypatch.setattr(cli.importlib, "import_module", lacking)
    assert cli.main(["settings"]) == 1
    assert capsys.readouterr().err == (
        "torch-mcast settings: needs rich, which is not installed: pip install rich\n"
    )


def before_others(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m` with the contents of `folder` before all other packages."""
    path = os.pathsep.join([str(folder), str(Path(cli.__file__).parents[1])])
    return subprocess.run(
        [sys.executable, "-m", *words], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_commands_help_needs_no_package(tmp_path, command):
    """A missing package would raise wherever it is imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('torch', 'rich', 'cloudpickle', 'matplotlib', 'numpy'):\n"
        "    sys.modules[name] = None\n"
    )
    module = Path(cli.__file__).with_name(command) / "__main__.py"
    ways = [["torch_mcast", command], *([[f"torch_mcast.{command}"]] if module.exists() else [])]
    for words in ways:
        done = before_others(tmp_path, *words, "--help")
        assert done.returncode == 0 and "usage" in done.stdout.lower(), done.stderr


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("raise OSError('libcudart.so.13: cannot open shared object file')", "OSError: libcudart.so.13: "),
        ("def load():\n    raise RuntimeError('Failed to load:\\n other')\nload()", "RuntimeError: Failed to load: other"),
        ("__version__ = '9.9.0'", "but torch 9.9.0 is installed. Take the wheel"),
    ],
)  # fmt: skip
def test_a_command_that_torch_stops_says_so_in_one_line(tmp_path, broken, words):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(broken + "\n")
    done = before_others(tmp_path, "torch_mcast", "settings")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and done.stdout == ""
    assert line.startswith("torch-mcast settings: ") and words in line
    assert line.endswith(" (run torch-mcast doctor for details)")


@pytest.mark.parametrize("mistake", [ValueError("ours"), ModuleNotFoundError(name="torch_mcast.x")])
def test_mistakes_of_our_own_keep_their_traceback(monkeypatch, mistake):
    def wrong(_name):
        raise mistake

    monkeypatch.setattr(cli.importlib, "import_module", wrong)
    with pytest.raises(type(mistake)):
        cli.main(["settings"])


def test_command_line(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("torch-mcast 0.")
    assert cli.main([]) == 2
    assert "settings" in capsys.readouterr().out
    assert cli.main(["nonsense"]) == 2
    assert "no command 'nonsense'" in capsys.readouterr().err
    assert cli.main(["settings"]) == 0
    text = capsys.readouterr().out
    for row in extension().settings():
        assert row["env"] in text
    assert cli.main(["settings", "--markdown"]) == 0
    table = capsys.readouterr().out.strip().splitlines()
    assert len(table) == 2 + len(extension().settings())
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "| `eager` | `MCAST_EAGER` | 32K | 0 .. 1M | yes |" in "\n".join(table)
    assert settings._number(0.01, "D") == "0.01"


def test_interface_of_the_fallback():
    assert engine_interface("udp eth0 10.0.0.1 mtu 1500 gso on") == "eth0"
    assert engine_interface("udp lo 127.0.0.1 mtu 65536") == "lo"
    assert engine_interface("udp eth1+eth0 10.1.0.1 mtu 1500") == "eth1"  # the first of a stripe
    assert engine_interface("verbs mlx5_0 10.0.0.1 mtu 4096") == ""
    assert engine_interface("something else") == ""


_COMMA = """
import locale, torch.distributed as dist, torch_mcast
from datetime import timedelta
from torch_mcast._load import extension
assert locale.setlocale(locale.LC_NUMERIC, "comma") == "comma"
assert locale.localeconv()["decimal_point"] == ","
options = torch_mcast.Options(cutoff=2.5)
print(options.cutoff, options.resolved()["cutoff"])
options.timeout = timedelta(seconds=0.5)
try:
    extension().ProcessGroupMcast(dist.HashStore(), 0, 2, options)
except dist.DistBackendError as error:
    print(error)
"""


def test_a_locale_with_a_decimal_comma_changes_no_number(tmp_path):
    """The locale has a decimal comma, as after locale.setlocale(locale.LC_ALL, "de_DE.UTF-8"); it
    consists of this file only."""
    fields = [b",\0", b".\0", b"\3\3\0\0", struct.pack("=I", ord(",")), struct.pack("=I", ord("."))]
    fields.append(b"ANSI_X3.4-1968\0")
    offsets, at = [], 8 + 4 * len(fields)
    for field in fields:
        offsets.append(at)
        at += len(field)
    folder = tmp_path / "comma"
    folder.mkdir()
    (folder / "LC_NUMERIC").write_bytes(
        struct.pack("=II6I", 0x20031115 ^ 1, len(fields), *offsets) + b"".join(fields)
    )
    done = subprocess.run(
        [sys.executable, "-c", _COMMA], capture_output=True, text=True, timeout=120,
        env={**os.environ, "LOCPATH": str(tmp_path), "MCAST_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    numbers, error = done.stdout.split("\n", 1)
    assert numbers == "2.5 2.5"
    assert "(limit 0.5 s)" in error
