"""A fault for tools/mutants.py: a single mistake that somebody could make."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old`, which stands exactly once in `file`, becomes `new`, and the tests of `program`
    (tests/cpp/<program>) that match `tests` must notice."""

    name: str
    file: str  # below csrc/core
    old: str
    new: str
    program: str
    tests: str  # a filter of GoogleTest
    environment: tuple[tuple[str, str], ...] = ()
    limit: int = 60  # seconds that the tests may take; who does not end is caught, too
