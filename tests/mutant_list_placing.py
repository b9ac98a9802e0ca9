"""The rows of mutant_list.py about chunks that a device writes into memory."""

from mutant import Mutant

PLACING = [
    Mutant(
        "complete-before-its-slices-are-retired",
        "collective/movements/multicast_streams.cpp",
        "if (!parts_.placing.retired(op) || parts_.repair.reading(op)) return false;",
        "if (parts_.repair.reading(op)) return false;",
        "offload",
        "Offload.*:Shard/Schedules*",
    ),
    Mutant(
        "failed-memory-back-before-its-slices-are-retired",
        "collective/group_core.cpp",
        "if (placing_.hold(post, status)) return;",
        "",
        "offload",
        "Offload.*:Each/Failures*",
    ),
    Mutant(
        "slices-of-a-group-that-goes-forgotten",
        "runtime/lane.cpp",
        "it->second->core_.abandon();",
        "",
        "offload",
        "Offload.*",
    ),
    Mutant(
        "retired-operation-not-visited",
        "collective/movements/placing.cpp",
        "g_.ops.touch(*op);",
        "",
        "offload",
        "LateRank.OperationsThatWait*",
    ),
    Mutant(
        "placed-word-misread",
        "collective/reception.cpp",
        "word * 64 + static_cast<Chunk>(std::countr_zero(bits));",
        "word * 32 + static_cast<Chunk>(std::countr_zero(bits));",
        "offload",
        "Offload.*:Shard/Schedules*",
    ),
    Mutant(
        "device-duplicates-not-counted",
        "collective/group_dispatch.cpp",
        "g_.counters.add(Counter::duplicates, counts.duplicates);",
        "",
        "offload",
        "Offload.*",
    ),
    Mutant(
        "placed-words-believed-before-they-landed",
        "../../tests/cpp/offload/kernel_transport.cpp",
        "!looked_.empty() && landed(looked_.front().horizon);",
        "!looked_.empty();",
        "offload",
        "Offload.*:Shard/Schedules*",
    ),
    Mutant(
        "dpa-hands-on-into-a-full-ring",
        "../dpa/receive.c",
        "if (posted == free || bytes - 1 >= rest->stride) {",
        "if (bytes - 1 >= rest->stride) {",
        "dpa",
        "DpaHandsOn*",
    ),
    Mutant(
        "dpa-hands-on-without-the-header",
        "../dpa/receive.c",
        "(uintptr_t)slot + w->rq.delta + HEADER_AT);",
        "(uintptr_t)slot + w->rq.delta + DPA_PAYLOAD_AT);",
        "dpa",
        "DpaHandsOn*",
    ),
]
