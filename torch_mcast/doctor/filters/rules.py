"""Packet filters as rules that can be asked: would this packet come in?

iptables.py or nft.py reads a ruleset into chains of rules. An expression that a reader does not
understand becomes a condition that may hold or not. So the answer is a set of outcomes: accept,
drop, or both, in which case the doctor reports that it does not know.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

Network = ipaddress.IPv4Network


class Fit(Enum):
    """Whether a condition holds for all packets of a kind, for none, or for some or an unknown part."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"

    def negated(self) -> Fit:
        return {Fit.YES: Fit.NO, Fit.NO: Fit.YES}.get(self, self)


@dataclass(frozen=True)
class Packets:
    """Packets of one kind that come from other hosts of the job."""

    name: str
    protocol: str  # udp, tcp, igmp
    to: Network
    source: Network
    interface: str
    ports: tuple[int, int] = (0, 65535)  # destination
    multicast: bool = False

    def fits_network(self, mine: Network, asked: Network) -> Fit:
        if mine.subnet_of(asked):
            return Fit.YES
        return Fit.MAYBE if asked.overlaps(mine) else Fit.NO

    def fits_ports(self, first: int, last: int) -> Fit:
        if self.protocol == "igmp":
            return Fit.NO
        if first <= self.ports[0] and self.ports[1] <= last:
            return Fit.YES
        return Fit.NO if last < self.ports[0] or self.ports[1] < first else Fit.MAYBE


Condition = Callable[[Packets], Fit]


@dataclass(frozen=True)
class Rule:
    conditions: tuple[Condition, ...]
    # accept, drop, next (goes on), return, jump, goto; unknown: any of accept, drop and next.
    verdict: str
    target: str = ""
    text: str = ""

    def fit(self, packets: Packets) -> Fit:
        fits = [condition(packets) for condition in self.conditions]
        if Fit.NO in fits:
            return Fit.NO
        return Fit.MAYBE if Fit.MAYBE in fits else Fit.YES


@dataclass
class Chain:
    name: str
    rules: list[Rule] = field(default_factory=list)
    policy: str = ""  # of a chain for incoming packets: accept or drop
    label: str = ""  # as a person names it


@dataclass(frozen=True)
class Answer:
    outcomes: frozenset[str]  # a subset of accept, drop
    blame: str = ""  # the rule or policy that drops, or may

    @property
    def accepted(self) -> bool:
        return self.outcomes == {"accept"}

    @property
    def dropped(self) -> bool:
        return self.outcomes == {"drop"}


@dataclass
class _Walk:
    chains: Mapping[str, Chain]
    packets: Packets
    blame: str = ""

    def outcomes(self, chain: Chain, depth: int = 0) -> set[str]:
        """Returns the possible outcomes: accept, drop, and end (passed without a verdict)."""
        if depth > 16:  # the kernel allows no loops
            return {"accept", "drop", "end"}
        possible: set[str] = set()
        for rule in chain.rules:
            fit = rule.fit(self.packets)
            if fit is Fit.NO:
                continue
            found = self._of_rule(rule, depth)
            if fit is Fit.MAYBE:
                found = found | {"next"}
            if "drop" in found and rule.verdict in ("drop", "unknown"):
                self.blame = self.blame or f"{chain.label or chain.name}: {rule.text}"
            if "return" in found:
                possible.add("end")
            possible |= found - {"next", "return"}
            if "next" not in found:
                return possible
        return possible | {"end"}

    def _of_rule(self, rule: Rule, depth: int) -> set[str]:
        if rule.verdict == "unknown":
            return {"accept", "drop", "next"}
        if rule.verdict not in ("jump", "goto"):
            return {rule.verdict}
        target = self.chains.get(rule.target)
        if target is None:  # an extension's own target: its effect is unknown
            return {"accept", "drop", "next"}
        after = "next" if rule.verdict == "jump" else "return"
        return {after if o == "end" else o for o in self.outcomes(target, depth + 1)}


def ask(chains: Mapping[str, Chain], packets: Packets) -> Answer:
    """Evaluates all chains with a policy: each must accept."""
    together: set[str] = set()
    blame = ""
    for chain in chains.values():
        if not chain.policy:
            continue
        walk = _Walk(chains, packets)
        found = walk.outcomes(chain)
        if "end" in found:
            found = (found - {"end"}) | {chain.policy}
            if chain.policy == "drop":
                walk.blame = walk.blame or f"{chain.label or chain.name}: policy drop"
        if "drop" in found:
            blame = blame or walk.blame
        if found == {"drop"}:
            # a certain drop, if another one is only possible
            return Answer(frozenset({"drop"}), walk.blame)
        together |= found
    return Answer(frozenset(together or {"accept"}), blame)
