"""A fault for tools/mutants.py: a single mistake that somebody could make."""

from typing import NamedTuple

# Faults in other files are below csrc/core.
OUTSIDE_CORE = ("torch_mcast/", "csrc/torch/")


class Mutant(NamedTuple):
    """`old`, which stands exactly once in `file`, becomes `new`, and the tests of `program` that match
    `tests` must notice: those of tests/cpp/<program>, or with "pytest" those of tests/python."""

    name: str
    file: str  # from the root of the repository if in OUTSIDE_CORE, else below csrc/core
    old: str
    new: str
    program: str
    tests: str  # a filter of GoogleTest; for pytest its arguments: "tests/python/test_x.py -k foo"
    environment: tuple[tuple[str, str], ...] = ()
    limit: int = 60  # seconds that the tests may take; tests that run longer count as a hang

    @property
    def path(self) -> str:
        """The file, from the root of the repository."""
        return self.file if self.file.startswith(OUTSIDE_CORE) else f"csrc/core/{self.file}"
