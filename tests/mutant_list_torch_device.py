"""Faults in csrc/torch/device: operations on device tensors."""

from mutant import Mutant

TORCH_DEVICE = [
    Mutant(
        "device-input-copied-when-overwritten",
        "csrc/torch/device/device_plan.cpp",
        """    plain = plain.clone();
    source = bytes_of(plain);
""",
        "",
        "pytest",
        "tests/python/test_device.py -k 'test_all_gather_list and gate-3'",
    ),
    Mutant(
        "device-all-reduce-loses-the-tail",
        "csrc/torch/device/device_plan.cpp",
        "const size_t share = (count + members - 1) / members * element;",
        "const size_t share = count / members * element;",
        "pytest",
        "tests/python/test_device_reduce.py::test_sizes_that_the_ranks_do_not_divide[gate]",
    ),
    Mutant(
        "device-factor-ignored-in-a-group-of-one",
        "csrc/torch/device/device_plan.cpp",
        "if (how.reduction != Reduction::kPremulSum || input.nbytes() == 0) {",
        "if (how.factor == how.factor || input.nbytes() == 0) {",
        "pytest",
        "tests/python/test_device_reduce.py::test_a_group_of_one_applies_the_factor[gate]",
    ),
    Mutant(
        "device-copy-does-not-wait-for-the-caller",
        "csrc/torch/device/device_copies.cpp",
        """  events_.caller.block(streams_.out);
""",
        "",
        "pytest",
        "tests/python/test_device.py::test_late_source[gate-multicast-100]",
    ),
    Mutant(
        "callers-stream-does-not-wait",
        "csrc/torch/device/device_copies.cpp",
        """  events_.in_end.block(guard.getStream(streams_.in.device()));
""",
        "",
        "pytest",
        "tests/python/test_device.py -k 'test_overlap and gate or test_wait_does_not_block'",
    ),
    Mutant(
        "device-failure-not-told-to-peers",
        "csrc/torch/device/copies_failure.cpp",
        """  listener_.abort("the device failed: " + why);
""",
        "",
        "pytest",
        "tests/python/test_device_limits.py::test_a_device_failure_is_named_and_aborts_the_peers[host]",
    ),
    Mutant(
        "device-barrier-does-not-wait-for-kernels",
        "csrc/torch/device/barrier.cpp",
        """  guard.getStream(device).synchronize();
""",
        "",
        "pytest",
        "tests/python/test_device_groups.py::test_a_barrier_waits_for_its_device[gate]",
    ),
    Mutant(
        "source-of-a-device-message-not-told",
        "csrc/torch/device/message.cpp",
        """  if (receives) call.source = work->sources();
""",
        "",
        "pytest",
        "tests/python/test_device_messages.py::test_a_receive_from_any_source_names_its_sender[gate-off]",
    ),
    Mutant(
        "messages-of-all-streams-in-one-pair",
        "csrc/torch/device/side_streams.cpp",
        "static_cast<int>(callers.size()) % kMessagePairs;",
        "static_cast<int>(callers.size()) % 1;",
        "pytest",
        "tests/python/test_device_messages.py -k 'test_a_late_message_holds_up_no_other'",
    ),
    Mutant(
        "pinned-memory-of-sends-counted-for-good",
        "csrc/torch/device/pinned.cpp",
        "fetch_sub(held->size(), std::memory_order_relaxed);",
        "fetch_sub(0, std::memory_order_relaxed);",
        "pytest",
        "tests/python/test_device_messages.py -k 'bounded_memory or test_wait_does_not_block'",
    ),
    Mutant(
        "gated-works-never-checked",
        "csrc/torch/device/completion_poller.cpp",
        "for (const auto& copies : checked) copies->check();",
        "for (const auto& copies : checked) (void)copies;",
        "pytest",
        "tests/python/test_device_limits.py::test_a_device_failure_is_named_and_aborts_the_peers[gate]",
    ),
    Mutant(
        "capture-mode-not-relaxed",
        "csrc/torch/device/gate.cpp",
        "constexpr int kRelaxed = 2;",
        "constexpr int kRelaxed = 0;",
        "pytest",
        "tests/python/test_device_limits.py -k test_captures_are_left_alone",
    ),
]
