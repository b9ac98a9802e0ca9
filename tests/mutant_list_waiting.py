"""Faults of waiting among ranks of one host: who looks when, and who is woken."""

from mutant import Mutant

WAITING = [
    Mutant(
        "yields-to-other-programs-brake-nothing",
        "base/patience.h",
        "if (took < kForeign) return;",
        "if (took >= 0) return;",
        "base",
        "PatienceTest*",
    ),
    Mutant(
        "brake-is-never-shorter-again",
        "base/patience.h",
        "brake_ = kFirstBrake;\n      good_ = 0;",
        "good_ = 0;",
        "base",
        "PatienceTest*",
    ),
    Mutant(
        "braked-helper-yields",
        "shm/lane.cpp",
        "patience_.on_yield(after, after - before);",
        "patience_.on_yield(after, 0);",
        "shm",
        "HostLaneTest*",
    ),
    Mutant(
        "other-ranks-of-the-job-need-no-cores",
        "shm/peer_registry.cpp",
        "ranks_ = std::max({ranks_, ranks, launched_ranks()});",
        "ranks_ = ranks;",
        "shm",
        "HostLaneTest*",
    ),
    Mutant(
        "cold-host-thread-is-not-warmed",
        "shm/lane.cpp",
        "} else if (busy) {",
        "} else if (busy && next == Next::kThread) {",
        "shm",
        "HostLaneTest*",
        limit=90,
    ),
    Mutant(
        "awaited-post-that-is-over-wakes-nobody",
        "shm/lane.cpp",
        "awaited && core_.newest() == awaited ? Next::kCaller",
        "awaited ? Next::kCaller",
        "shm",
        "HostLaneTest*",
    ),
    Mutant(
        "mail-beside-an-awaited-post-wakes-nobody",
        "shm/lane.cpp",
        "next = Next::kThread;  // who put it there",
        "// who put it there",
        "shm",
        "HostLaneTest*",
    ),
]
