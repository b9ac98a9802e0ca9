"""MCAST_* variables: names that the library does not read, refused values, settings for tests left on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, fail, ok, warn

# Read by the project's build and tests, not by the library.
_OTHERS = {
    "MCAST_CI",
    "MCAST_TEST_VERBOSE",
    "MCAST_WERROR",
    "MCAST_EXTENSION_DIR",
    "MCAST_PROGRAMS",
}
_OTHER_PREFIXES = ("MCAST_LAB", "MCAST_TORCH_", "MCAST_BUILD_")


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the known name of which `name` may be a misspelling, or ""."""
    close = difflib.get_close_matches(name.upper(), sorted(known), n=1, cutoff=0.75)
    return close[0] if close else ""


def judge_names(environment: Mapping[str, str], known: set[str]) -> list[Finding]:
    findings = []
    for name in sorted(environment):
        if not name.upper().startswith("MCAST_") or name in known or name in _OTHERS:
            continue
        if name.startswith(_OTHER_PREFIXES):
            continue
        guess = nearest(name, known)
        text = f"{name} is set but is no setting, so it has no effect"
        fix = f"unset {name}"
        if guess:
            text += f"; did you mean {guess}?"
            fix = f'export {guess}="{environment[name]}"; unset {name}'
        findings.append(warn("variables", text, fix, variable=name, nearest=guess))
    return findings


def judge_values(bad: Mapping[str, str]) -> list[Finding]:
    return [
        fail("variables", text, f"unset {name}, or set it to an allowed value", variable=name)
        for name, text in bad.items()
    ]


def judge_faults(faults: str) -> list[Finding]:
    if not faults:
        return []
    text = f'fault injection is on: MCAST_FAULTS="{faults}" damages traffic on purpose'
    return [warn("variables", text, "unset MCAST_FAULTS", variable="MCAST_FAULTS")]


def run(context: Context) -> list[Finding]:
    if not context.rows:
        return [
            fail(
                "variables",
                "names and values of MCAST_* variables not checked: the table of settings is in "
                "the extension, which does not load",
                "see the row torch",
            )
        ]
    known = {row["env"] for row in context.rows}
    findings = [
        *judge_names(context.environment, known),
        *judge_values(context.bad),
        *judge_faults(context.values["faults"]),
    ]
    if findings:
        return findings
    given = {name: context.environment[name] for name in sorted(known & set(context.environment))}
    text = " ".join(f"{name}={value}" for name, value in given.items())
    return [ok("variables", text or "no MCAST_* variable is set: defaults", given=given)]
