"""A fault for tools/mutants.py: a single mistake that somebody could make."""

from typing import NamedTuple

# Files named from the root of the repository; modules beside the core, below csrc. Others are below
# csrc/core.
OUTSIDE_CORE = ("torch_mcast/", "csrc/torch/")
PRODUCTS = ("aggregation/", "daemon/", "host_engine/", "programs/", "sim/")


class Mutant(NamedTuple):
    """`old`, which stands exactly once in `file`, becomes `new`, and the tests of `program` that match
    `tests` must notice: those of tests/cpp/<program>, or with "pytest" those of tests/python."""

    name: str
    file: str  # see OUTSIDE_CORE
    old: str
    new: str
    program: str
    tests: str  # a filter of GoogleTest; for pytest its arguments: "tests/python/test_x.py -k foo"
    environment: tuple[tuple[str, str], ...] = ()
    limit: int = 60  # seconds that the tests may take; tests that run longer count as a hang

    @property
    def path(self) -> str:
        """The file, from the root of the repository."""
        if self.file.startswith(OUTSIDE_CORE):
            return self.file
        return ("csrc/" if self.file.startswith(PRODUCTS) else "csrc/core/") + self.file
