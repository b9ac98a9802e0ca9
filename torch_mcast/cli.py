"""The command `torch-mcast`. Each subcommand is a module torch_mcast.<module> with a function
main(arguments: list[str]) -> int | None. It is imported only when the subcommand is called."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback

# name: (module, one line of help). A command whose module is missing is not listed.
COMMANDS = {
    "doctor": (
        "torch_mcast.doctor",
        "check this host or job: interfaces, multicast, buffers, torch",
    ),
    "bench": ("torch_mcast.bench", "compare the speed of collectives with other backends"),
    "estimate": (
        "torch_mcast.cost_model",
        "compute bytes and lower bounds of the time of operations, also between GPUs",
    ),
    "simulate": (
        "torch_mcast.simulate",
        "simulate collectives on up to thousands of hosts in virtual time",
    ),
    "aggregator": (
        "torch_mcast.aggregator",
        "fold reductions for groups of other hosts; show the status",
    ),
    "engine": (
        "torch_mcast.engine",
        "run the network of this host's training processes; show the status",
    ),
    "lab": ("torch_mcast.lab", "run a cluster of network namespaces on this machine"),
    "settings": ("torch_mcast.settings", "print the table of settings"),
    "secret": ("torch_mcast.secret", "create a secret for a job"),
}

# Old names of commands, which still work and are not listed.
DEPRECATED = {"model": "estimate"}

DOCTOR = "run torch-mcast doctor for details"


def _available() -> dict[str, tuple[str, str]]:
    return {
        name: row for name, row in COMMANDS.items() if importlib.util.find_spec(row[0]) is not None
    }


def _usage() -> str:
    lines = ["usage: torch-mcast COMMAND [ARGUMENTS]", "", "commands:"]
    lines += [f"  {name:<12}{text}" for name, (_, text) in _available().items()]
    lines += ["", "Run `torch-mcast COMMAND --help` for the options of a command."]
    return "\n".join(lines)


def _cannot_be_loaded(error: Exception) -> bool:
    """Returns whether torch or our extension failed to load: torch's own import may raise any exception."""
    return isinstance(error, ImportError) or any(
        frame.f_code.co_name == "<module>"
        and str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _not_loaded(command: str, error: Exception) -> int:
    """Prints in one line what a command lacks; raises the error again if it is a bug of this package."""
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
        if name in ("", "torch_mcast"):
            raise error
        text = f"needs {name}, which is not installed: pip install {name}"
    elif _cannot_be_loaded(error):
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        text = f"{kind}{' '.join(str(error).split())} ({DOCTOR})"
    else:
        raise error
    print(f"torch-mcast {command}: {text}", file=sys.stderr)
    return 1


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from torch_mcast import __version__

        print(f"torch-mcast {__version__}")
        return 0
    command = arguments[0]
    if command in DEPRECATED:
        command = DEPRECATED[command]
        print(
            f"torch-mcast {arguments[0]} is deprecated and will be removed in the next release; "
            f"use torch-mcast {command}",
            file=sys.stderr,
        )
    row = _available().get(command)
    if row is None:
        print(f"torch-mcast: no command {arguments[0]!r}\n\n{_usage()}", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(row[0])
        if not hasattr(module, "main"):  # the command line of a package is in its module cli
            module = importlib.import_module(f"{row[0]}.cli")
        return module.main(arguments[1:]) or 0
    except BrokenPipeError:  # "torch-mcast settings | head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - errors that do not concern loading are raised again
        return _not_loaded(command, error)


if __name__ == "__main__":
    sys.exit(main())
