"""Faults in csrc/torch: works, fallbacks, observers, the store, Python's side."""

from mutant import Mutant

TORCH_WORKS = [
    Mutant(
        "fallback-takes-no-sequence-number",
        "csrc/torch/fallback.cpp",
        "sequence_.load() : ++sequence_;",
        "sequence_.load() : sequence_ + 1;",
        "pytest",
        "tests/python/test_observability.py -k test_completion_hooks",
    ),
    Mutant(
        "fallbacks-of-all-makings-at-one-place",
        "csrc/torch/fallback.cpp",
        '"mcast_fallback/" + members_->incarnation, store_',
        '"mcast_fallback/", store_',
        "pytest",
        "tests/python/test_citizen.py -k test_fallbacks_of_a_group_made_again",
    ),
    Mutant(
        "fallback-error-not-the-groups",
        "csrc/torch/fallback_work.cpp",
        """  if (error && failed_) failed_();
""",
        "",
        "pytest",
        "tests/python/test_citizen.py -k test_an_error_of_the_fallback_is_the_groups",
    ),
    Mutant(
        "gloo-takes-what-the-engine-serves",
        "csrc/torch/fallbacks.cpp",
        'return name.empty() || name == "gloo";  // Gloo',
        "return name.empty();  // Gloo",
        "pytest",
        "tests/python/test_device_reduce.py::test_the_engine_reduces_where_the_fallback_is_gloo[gate]",
    ),
    Mutant(
        "calls-of-the-fallback-alone-not-shown",
        "csrc/torch/bindings.cpp",
        "if (count.engine == 0 && count.fallback == 0) continue;",
        "if (count.engine == 0) continue;",
        "pytest",
        "tests/python/test_fallback.py -k test_sparse",
    ),
    Mutant(
        "microseconds-of-a-timedelta-lose-zeros",
        "csrc/torch/bindings.cpp",
        "std::to_string(1000 + us.count() % 1000).substr(1);",
        "std::to_string(us.count() % 1000);",
        "pytest",
        "tests/python/test_options.py -k test_values_and_types",
    ),
    Mutant(
        "pickled-options-lose-their-timeout",
        "csrc/torch/bindings.cpp",
        """            options->timeout = std::chrono::milliseconds(py::cast<int64_t>(state[2]));
""",
        "",
        "pytest",
        "tests/python/test_options.py -k test_copies",
    ),
    Mutant(
        "options-take-any-value",
        "csrc/torch/options.cpp",
        'TORCH_CHECK_VALUE(checked.ok(), "torch_mcast.Options: "',
        'TORCH_CHECK_VALUE(checked.ok() || !text.empty(), "torch_mcast.Options: "',
        "pytest",
        "tests/python/test_options.py -k test_mistakes",
    ),
    Mutant(
        "flight-recorder-without-bound",
        "csrc/torch/flight.cpp",
        "if (entries_.size() > most_) entries_.pop_front();",
        "if (entries_.size() > SIZE_MAX - most_) entries_.pop_front();",
        "pytest",
        "tests/python/test_observability.py -k test_the_flight_recorder_keeps_as_many_as_it_was_told",
    ),
    Mutant(
        "stride-of-a-group-of-ranks-lost",
        "csrc/torch/observer.cpp",
        """    stride_ = step;
""",
        "",
        "pytest",
        "tests/python/test_observability.py -k test_profiler_events_have_sizes_and_groups",
    ),
    Mutant(
        "pending-works-not-waited-for",
        "csrc/torch/observer.cpp",
        """  idle_.wait(lock, [this] { return in_flight_ == 0; });
""",
        "",
        "pytest",
        "tests/python/test_observability.py -k test_completion_hooks",
    ),
    Mutant(
        "batch-over-with-any-of-its-parts",
        "csrc/torch/coalescing.cpp",
        """    return std::all_of(parts_.begin(), parts_.end(),
                       [](const auto& part) { return part->isCompleted(); });""",
        """    return std::any_of(parts_.begin(), parts_.end(),
                       [](const auto& part) { return part->isCompleted(); });""",
        "pytest",
        "tests/python/test_citizen.py -k test_coalescing_manager_with_a_device",
    ),
    Mutant(
        "batch-hides-a-failed-part",
        "csrc/torch/coalescing.cpp",
        "if (first) std::rethrow_exception(first);",
        "if (first && parts_.empty()) std::rethrow_exception(first);",
        "pytest",
        "tests/python/test_citizen.py tests/python/test_device_coalescing.py -k 'coalescing or batch'",
    ),
    Mutant(
        "future-of-a-failed-work-has-a-value",
        "csrc/torch/work.cpp",
        """  if (error) {
    future->setError(error);""",
        """  if (error && outputs_.empty()) {
    future->setError(error);""",
        "pytest",
        "tests/python/test_work.py::test_abort_from_thread[network]",
    ),
    Mutant(
        "strided-outputs-not-copied-back",
        "csrc/torch/work.cpp",
        "    copies = after_ && !error_;",
        "    copies = after_ && error_;",
        "pytest",
        "tests/python/test_ops.py::test_views[network]",
    ),
]
