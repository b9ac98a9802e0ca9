"""The rows of mutant_list.py that the swarm must find by itself: by seeds, without a test
that was written for the fault (docs/simulator.md has what found each, and when)."""

from mutant import Mutant

_BY = "Swarm.FreshSeeds*"
# Seeds 1, 2, ... for a minute; then what was found is made smaller.
_ENVIRONMENT = (("MCAST_SWARM_BASE", "1"), ("MCAST_SWARM_SECONDS", "60"))


def _planted(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(f"swarm-{name}", file, old, new, "sim", _BY, _ENVIRONMENT, 240)


SWARM = [
    _planted(
        "placed-before-verified",
        "wire/datagram.cpp",
        "return load<uint32_t>(datagram.data()) == crc32c(datagram.subspan(4));",
        "return datagram.size() >= kDatagramHeader;",
    ),
    _planted(
        "news-for-a-busy-thread-forgotten",
        "sim/world/sim_lane.cpp",
        "plan(now < free_at_ ? free_at_ : now + costs_.wake);",
        "if (now >= free_at_) plan(now + costs_.wake);",
    ),
    _planted(
        "command-for-a-busy-thread-forgotten",
        "sim/world/sim_lane.cpp",
        "plan(at < free_at_ ? free_at_ : at + costs_.wake);",
        "if (at >= free_at_) plan(at + costs_.wake);",
    ),
    _planted(
        "cutoff-never-armed",
        "collective/movements/multicast_streams.cpp",
        "    next = std::min(next, op.receivers[stream].deadline());\n",
        "    next = std::min(next, stream == UINT32_MAX ? next : kNever);\n",
    ),
    _planted(
        "announcement-never-armed",
        "protocol/block_sender.cpp",
        "return stopped() && unknown() ? next_position_ : kNever; }",
        "return kNever; }",
    ),
    _planted(
        "deadline-of-a-fetch-never-armed",
        "protocol/fetch_client.cpp",
        "  for (const Outstanding& o : outstanding_) next = std::min(next, o.deadline);\n",
        "",
    ),
    _planted(
        "liveness-off",
        "collective/membership.cpp",
        "  if (drained && liveness_.active()) miss_silent(now);\n",
        "  if (drained && liveness_.active() && now < 0) miss_silent(now);\n",
    ),
    _planted(
        "lowest-bit-of-the-sequence-ignored",
        "collective/reception.cpp",
        "  Operation* op = g_.find(header.sequence);\n",
        "  Operation* op = g_.find(header.sequence & ~1u);\n",
    ),
    _planted(
        "another-chunk-as-repair",
        "collective/movements/repair_donor.cpp",
        "source.subspan(static_cast<size_t>(at) * op.plan.chunk, bytes)",
        "source.first(bytes)",
    ),
    _planted(
        "operations-end-before-the-release",
        "protocol/completion.cpp",
        "  for (const Sequence c : child_) least = std::min(least, c);\n",
        "",
    ),
    _planted(
        "credit-ignored-by-the-sender",
        "protocol/block_sender.cpp",
        "std::min<uint64_t>({own, limit_, params_.chunks})",
        "std::min<uint64_t>({own + params_.chunks, params_.chunks})",
    ),
    _planted(
        "connections-that-end-unheard",
        "collective/group_core.cpp",
        "    membership_.on_peer_down(peer, why, graceful, now);\n",
        "    if (graceful) membership_.on_peer_down(peer, why, graceful, now);\n",
    ),
    _planted(
        "exchanged-to-the-wrong-offset",
        "collective/movements/exchanges.cpp",
        "run.destination(header.member) + data.offset",
        "run.destination(header.member)",
    ),
    _planted(
        "exchange-ends-before-the-last-block",
        "collective/movements/exchanges.h",
        "return op.exchange->complete(); }",
        "return op.exchange->machine.all_sent(); }",
    ),
    _planted(
        "granted-bytes-never-here",
        "protocol/block_exchange.cpp",
        "  outstanding_ -= before - block.outstanding(params_.unasked);\n",
        "  outstanding_ -= 0 * (before - block.outstanding(params_.unasked));\n",
    ),
    _planted(
        "account-of-unasked-blocks-ignored",
        "collective/movements/exchanges.cpp",
        "return !piece.unasked || unasked_.room(piece.to, op.post.sequence, cost_of(piece), oldest);",
        "return !piece.unasked || cost_of(piece) > 0 || oldest;",
    ),
    _planted(
        "cut-over-by-the-top-s-own-count",
        "collective/cutover.cpp",
        "  most_ = std::max(most_, header.argument);\n",
        "",
    ),
]
