"""Types for type checkers: the stub of the extension compared with the extension, and stats() with
Stats."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conforming import conforms
from named_errors import raises_error

import torch_mcast
from torch_mcast._load import extension

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stub():
    spec = importlib.util.spec_from_file_location("stub", ROOT / "tools" / "stub.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STUB = Path(torch_mcast.__file__).with_name("_C.pyi").read_text()
TREE = ast.parse(STUB)


def names(body: list[ast.stmt]) -> set[str]:
    found = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def members(name: str) -> set[str]:
    (body,) = (
        node.body for node in TREE.body if isinstance(node, ast.ClassDef) and node.name == name
    )
    return names(body)


def test_settings_of_the_stub_are_those_of_the_table(stub):
    assert stub.made(STUB, extension().settings()) == STUB, "tools/stub.py writes them"


def test_a_stub_without_a_place_for_settings_is_refused(stub):
    with pytest.raises(ValueError, match="has no lines"):
        stub.made("class Options: ...\n", [])


def test_the_stub_has_what_the_extension_has():
    here = {name for name in vars(extension()) if not name.startswith("__")}
    typing_only = {"_Milliseconds", "_Count", "_Read", "_Written", "_Setting"}
    assert names(TREE.body) - typing_only - {"__version__"} == here - {"__version__"}
    for kind in (extension().Options, extension().ProcessGroupMcast):
        own = {
            name
            for name in vars(kind)
            if not name.startswith("__") and name != "_pybind11_conduit_v1_"
        }
        assert {name for name in members(kind.__name__) if not name.startswith("__")} == own  # fmt: skip


def test_public_names_have_types():
    """All public names of the package have types for parameters and results; Any only if torch has
    no type for it."""
    for name in torch_mcast.__all__:
        function = getattr(torch_mcast, name)
        if inspect.isfunction(function):
            signature = inspect.signature(function)
            assert signature.return_annotation is not inspect.Signature.empty, name
            for parameter in signature.parameters.values():
                assert parameter.annotation is not inspect.Parameter.empty, (name, parameter)


def counted() -> str:
    dist.all_reduce(torch.ones(1 << 18))
    dist.broadcast(torch.ones(5), 0)
    told = torch_mcast.stats()
    conforms(told, torch_mcast.Stats)
    return told["path"]


@pytest.mark.parametrize(
    ("world", "env", "path"),
    [
        (2, {}, {"multicast", "ring"}),
        (2, {"MCAST_SHARED_MEMORY": "auto"}, {"shared memory"}),
        (1, {}, {"local"}),
    ],
)
def test_stats_are_what_their_type_says(ranks, world, env, path):
    assert set(ranks(world, counted, env=env)) <= path


def disagree() -> None:
    count = dist.get_rank() + 1
    with raises_error(dist.DistBackendError, "operation_differs", sequence=0):
        dist.all_gather_into_tensor(torch.zeros(2 * count), torch.zeros(count))
    told = torch_mcast.stats()
    conforms(told, torch_mcast.Stats)
    assert told["failure"]


def test_stats_of_a_failed_group_are_too(ranks):
    ranks(2, disagree)
