"""Result of a check, and the summary of a list of results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Verdict(Enum):
    OK = "ok"
    WARN = "warn"  # works, but slower, or only in part
    FAIL = "fail"  # a process group cannot be created, or not with these settings

    @property
    def rank(self) -> int:
        return ("ok", "warn", "fail").index(self.value)


@dataclass(frozen=True)
class Finding:
    """One row of the report. `fix` is an exact command or edit, "" if nothing has to be done."""

    check: str
    finding: str
    verdict: Verdict = Verdict.OK
    fix: str = ""
    data: dict[str, Any] = field(default_factory=dict)  # figures, for --json

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "finding": self.finding,
            "verdict": self.verdict.value,
            "fix": self.fix,
            "data": self.data,
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Finding:
        return cls(row["check"], row["finding"], Verdict(row["verdict"]), row["fix"], row["data"])


def ok(check: str, finding: str, fix: str = "", /, **data: Any) -> Finding:
    return Finding(check, finding, Verdict.OK, fix, data)


def warn(check: str, finding: str, fix: str = "", /, **data: Any) -> Finding:
    return Finding(check, finding, Verdict.WARN, fix, data)


def fail(check: str, finding: str, fix: str = "", /, **data: Any) -> Finding:
    return Finding(check, finding, Verdict.FAIL, fix, data)


def worst(findings: Iterable[Finding]) -> Verdict:
    return max((f.verdict for f in findings), key=lambda v: v.rank, default=Verdict.OK)


def exit_code(verdict: Verdict) -> int:
    """Returns 0 for ok and for warnings, 1 for a failure."""
    return 1 if verdict is Verdict.FAIL else 0
