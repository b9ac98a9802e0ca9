"""Faults of memory that processes of a host share: arenas, links to an engine, stripes."""

from mutant import Mutant

ARENAS = [
    Mutant(
        "arena-that-could-shrink-is-mapped",
        "host/segment.cpp",
        "if (seals < 0 || (seals & kSeals) != kSeals || ",
        "if (seals < 0 || ",
        "host",
        "Segment*",
    ),
    Mutant(
        "withdrawn-memory-is-named-again",
        "host/arena_pool.cpp",
        "if (lost != private_.end() && lost->first < at + bytes) return std::nullopt;",
        "",
        "host",
        "ArenaPool*",
    ),
    Mutant(
        "addresses-of-withdrawn-memory-used-again",
        "host/arena_pool.cpp",
        "if (lost != private_.end() && lost->first < at + bytes) {",
        "if (false && lost != private_.end()) {",
        "host",
        "ArenaPool*",
    ),
    Mutant(
        "child-of-a-fork-shares-its-writes",
        "host/arena_pool.cpp",
        "MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE",
        "MAP_SHARED | MAP_FIXED | MAP_NORESERVE",
        "host",
        "ArenaPool*",
    ),
    Mutant(
        "memory-stays-with-an-engine-that-hangs",
        "engine/client_group.cpp",
        "flight->staging->withdraw();",
        "",
        "engine",
        "ClientGroup.MemoryIs*",
    ),
    Mutant(
        "result-ends-before-all-have-pulled-it",
        "host/plan.h",
        " ||\n           algorithm == HostAlgorithm::kPulledAllReduce;",
        ";",
        "host",
        "HostRounds*:HostSchedules*",
    ),
    Mutant(
        "slice-beside-its-arena-taken",
        "service/tenant_group.cpp",
        "if (run.base + reach > memory->size()) return false;",
        "",
        "engine",
        "EngineLimits.ASlice*",
    ),
    Mutant(
        "reader-s-delay-counted-against-the-path",
        "transport/udp/busy_rate.h",
        "const uint64_t open = busy - blocked;",
        "const uint64_t open = busy;",
        "transport",
        "BusyRate*",
    ),
]
