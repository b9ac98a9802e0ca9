"""What the model (torch_mcast.cost_model) says of an experiment with aggregators."""

from __future__ import annotations

from typing import Any

from torch_mcast.cost_model import aggregation
from torch_mcast.cost_model.aggregation import Case, Loads, Plan, Servers
from torch_mcast.lab.units import parse_size

# For the experiments' types: the factor by which partial results are longer, and whether the order
# of a fold matters.
_TYPES = {"float32": (1, True), "bfloat16": (2, True), "int32": (1, False)}


def _option(row: dict[str, Any], name: str, default: str) -> str:
    return dict(word.split("=", 1) for word in row["spec"].split()).get(name, default)


def case_of(row: dict[str, Any]) -> Case:
    """Returns the planner's input for the experiment's reduction."""
    hosts, served = row["hosts"], row["aggregators"]
    ratio, ordered = _TYPES[_option(row, "type", "float32")]
    turn = _option(row, "fold", "rank") == "turn"
    incast = parse_size(_option(row, "incast", "2M"))
    return Case(
        scatter=all(op["op"] != "all_reduce" for op in row["ops"]),
        size=row["size"],
        members=hosts * row["ranks"],
        servers=Servers(hosts, served["count"], served["count"] * served["rate"] / row["rate"]),
        segment=aggregation.segment_bytes(hosts, incast, 64),
        ratio=ratio,
        own="kept" if not ordered else "either" if turn else "sent",
        mode=_option(row, "aggregate", "careful"),
    )


def plan_of(row: dict[str, Any]) -> Plan:
    return aggregation.plan(case_of(row))


def loads_of(row: dict[str, Any]) -> Loads:
    """Returns the multiples of the size, in payload, that pass each NIC."""
    case, plan = case_of(row), plan_of(row)
    ops = sorted(op["op"] for op in row["ops"])
    if ops == ["all_gather", "reduce_scatter"]:
        return case.loads("ag_rs", plan.part, plan.kept)
    if len(ops) == 1:
        return case.loads(ops[0], plan.part, plan.kept)
    raise ValueError(f"{'+'.join(ops)}: the model has no such operations")
