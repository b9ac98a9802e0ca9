"""Results of a run in virtual machines."""

from __future__ import annotations

import json

from vm import VmResult


class Nodes:
    """Results of a driver run: per node the values of its name=value lines."""

    def __init__(self, result: VmResult, outputs: list[str] | None = None) -> None:
        """outputs: the parts of the nodes' outputs that are used."""
        self.result = result
        self.outputs = outputs or [node.output for node in result.nodes]
        self.values = [
            dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
            for text in self.outputs
        ]

    def before(self, line: str) -> Nodes:
        return Nodes(self.result, [text.partition(f"{line}\n")[0] for text in self.outputs])

    def after(self, line: str) -> Nodes:
        return Nodes(self.result, [text.partition(f"{line}\n")[2] for text in self.outputs])

    def total(self, name: str) -> int:
        return sum(int(values[name]) for values in self.values if name in values)

    def text(self) -> str:
        tails = [
            f"--- node{n.node} ended with {n.code}\n{n.output}\n{n.console[-2000:]}"
            for n in self.result.nodes
        ]
        return "\n".join(tails)


def result_of(output: str) -> dict:
    """Returns the JSON of a job's RESULT line."""
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert len(lines) == 1, output
    return json.loads(lines[0].removeprefix("RESULT "))
