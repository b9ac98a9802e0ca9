"""Faults that tools/mutants.py plants into the adapter, csrc/torch: calls and their tensors."""

from mutant import Mutant
from mutant_list_torch_device import TORCH_DEVICE
from mutant_list_torch_works import TORCH_WORKS

TORCH = [
    Mutant(
        "broadcast-always-from-rank-0",
        "csrc/torch/backend.cpp",
        "std::move(data), static_cast<Member>(opts.rootRank),",
        "std::move(data), static_cast<Member>(0),",
        "pytest",
        "tests/python/test_ops.py::test_broadcast[network-2]",
    ),
    Mutant(
        "broadcast-root-beyond-the-group-accepted",
        "csrc/torch/backend.cpp",
        """TORCH_CHECK_VALUE(opts.rootRank >= 0 && opts.rootRank < size_,
""",
        """TORCH_CHECK_VALUE(opts.rootRank >= 0,
""",
        "pytest",
        "tests/python/test_work.py::test_errors_of_arguments[network]",
    ),
    Mutant(
        "all-gather-into-a-shorter-output-accepted",
        "csrc/torch/backend.cpp",
        'output.numel() == input.numel() * size, op, ": expected an output',
        'output.numel() <= input.numel() * size, op, ": expected an output',
        "pytest",
        "tests/python/test_work.py::test_errors_of_arguments[network]",
    ),
    Mutant(
        "all-gather-outputs-of-another-shape-accepted",
        "csrc/torch/backend.cpp",
        "TORCH_CHECK_VALUE(outputs[i].sizes() == input.sizes(), op",
        "TORCH_CHECK_VALUE(outputs[i].numel() == input.numel(), op",
        "pytest",
        "tests/python/test_work.py::test_errors_of_arguments[network]",
    ),
    Mutant(
        "messages-take-sequence-numbers",
        "csrc/torch/backend.cpp",
        "point_to_point(op) ? ++messages_ : ++sequence_;",
        "++sequence_;",
        "pytest",
        "tests/python/test_fallback.py -k 'test_movement and network'",
    ),
    Mutant(
        "timeout-of-a-call-ignored",
        "csrc/torch/backend.cpp",
        "options.timeout = limit(call.timeout);",
        "options.timeout = limit(c10d::kUnsetTimeout);",
        "pytest",
        "tests/python/test_work.py::test_timeout_of_a_call_replaces_that_of_the_group[network]",
    ),
    Mutant(
        "set-timeout-not-in-the-options",
        "csrc/torch/backend.cpp",
        """  options_->timeout = timeout;
""",
        "",
        "pytest",
        "tests/python/test_citizen.py -k test_set_pg_timeout",
    ),
    Mutant(
        "mismatch-not-a-remote-error",
        "csrc/torch/backend.cpp",
        """    case Code::kPeerLost:
    case Code::kMismatch:
""",
        """    case Code::kPeerLost:
""",
        "pytest",
        "tests/python/test_work.py::test_mismatch[network]",
    ),
    Mutant(
        "abort-leaves-calls-of-the-fallback",
        "csrc/torch/backend.cpp",
        """  fallbacks_->works().fail_all(reason);
""",
        "",
        "pytest",
        "tests/python/test_citizen.py -k 'test_abort_reaches_the_fallback and host'",
    ),
    Mutant(
        "barrier-does-not-wait",
        "csrc/torch/backend.cpp",
        """  auto posted = engine_group->post_barrier(post_options(op, *work, call_options(opts), at::kByte));
  if (!posted.ok()) throw_status(posted.status(), context(op_name(op), sequence_));
  return""",
        """  work->end_part(nullptr);
  return""",
        "pytest",
        "tests/python/test_work.py::test_interrupt[network]",
    ),
    Mutant(
        "bytes-of-calls-not-counted",
        "csrc/torch/backend.cpp",
        "observer_->calls().engine(op, bytes);",
        "observer_->calls().engine(op, 0);",
        "pytest",
        "tests/python/test_reduce.py::test_coalesced[network]",
    ),
    Mutant(
        "calls-of-a-batch-not-collected",
        "csrc/torch/backend.cpp",
        """  coalescing_.add(work);
""",
        "",
        "pytest",
        "tests/python/test_citizen.py -k test_coalescing_manager_with_a_device",
    ),
    Mutant(
        "coalesced-gathers-all-to-the-first-outputs",
        "csrc/torch/backend.cpp",
        "plans.push_back(plan_gather(inputs[i], columns[i], rank_, *back));",
        "plans.push_back(plan_gather(inputs[i], columns[0], rank_, *back));",
        "pytest",
        "tests/python/test_ops.py::test_coalesced[network]",
    ),
    Mutant(
        "work-over-with-its-first-part",
        "csrc/torch/backend.cpp",
        "work->expect(parts);",
        "work->expect(1);",
        "pytest",
        "tests/python/test_citizen_lists.py -k different_sizes",
    ),
    Mutant(
        "split-of-a-split-forgets-global-ranks",
        "csrc/torch/regroup.cpp",
        """    options->global_ranks_in_group.push_back(global.empty() ? index : global[index]);
  }
  // A connection""",
        """    options->global_ranks_in_group.push_back(index);
  }
  // A connection""",
        "pytest",
        "tests/python/test_citizen.py -k test_split_groups_work_and_know_their_global_ranks",
    ),
    Mutant(
        "shrink-never-aborts",
        "csrc/torch/regroup.cpp",
        """  if ((flags & kShrinkAbort) != 0) abort();
""",
        "",
        "pytest",
        "tests/python/test_citizen.py -k test_a_shrunk_group_goes_on_in_the_old_order",
    ),
    Mutant(
        "shrink-keeps-old-ranks",
        "csrc/torch/regroup.cpp",
        "if (r == rank_) rank = size;",
        "if (r == rank_) rank = r;",
        "pytest",
        "tests/python/test_citizen.py -k 'test_a_shrunk_group_goes_on_in_the_old_order and 0'",
    ),
    Mutant(
        "average-is-a-sum",
        "csrc/torch/reduce.cpp",
        "      return Reduction::kAvg;",
        "      return Reduction::kSum;",
        "pytest",
        "tests/python/test_reduce.py::test_floats[network-2]",
    ),
    Mutant(
        "premul-factor-ignored",
        "csrc/torch/reduce.cpp",
        "how.factor = factor_of(op, reduce);",
        "how.factor = 1;",
        "pytest",
        "tests/python/test_reduce.py::test_strided_and_scaled[network]",
    ),
    Mutant(
        "averages-of-integers-not-divided",
        "csrc/torch/reduce.cpp",
        """      back->divide(tensors[i]);
""",
        "",
        "pytest",
        "tests/python/test_citizen_lists.py::test_averages_of_integers[2]",
    ),
    Mutant(
        "reduce-always-to-rank-0",
        "csrc/torch/reduce.cpp",
        "std::move(from), std::move(to), static_cast<Member>(opts.rootRank), how,",
        "std::move(from), std::move(to), static_cast<Member>(0), how,",
        "pytest",
        "tests/python/test_reduce.py::test_float32_sum[network-2]",
    ),
    Mutant(
        "order-of-unsigned-taken-for-signed",
        "csrc/torch/reduce.cpp",
        "return Element::kUInt64;",
        "return Element::kInt64;",
        "pytest",
        "tests/python/test_reduce.py::test_integers[network]",
    ),
    Mutant(
        "products-of-complex-numbers-as-of-real-ones",
        "csrc/torch/reduce.cpp",
        "return reduction == Reduction::kSum || reduction == Reduction::kAvg ||",
        "return reduction == Reduction::kSum || reduction == Reduction::kProduct ||",
        "pytest",
        "tests/python/test_reduce.py::test_unsupported_calls_are_refused_without_a_sequence_number[network]",
    ),
    Mutant(
        "reduce-scatter-output-may-overlap-its-input",
        "csrc/torch/reduce.cpp",
        "if (!shared || out == in + from) return input;",
        "if (!shared || out != in + from) return input;",
        "pytest",
        "tests/python/test_reduce.py::test_strided_and_scaled[network]",
    ),
    Mutant(
        "reduce-scatter-output-may-be-an-input-of-another-rank",
        "csrc/torch/reduce.cpp",
        "apart(part, to, own ? 0 : SIZE_MAX)",
        "apart(part, to, 0)",
        "pytest",
        "tests/python/test_reduce.py -k 'test_strided_and_scaled or test_tensors_that_share_memory'",
    ),
    Mutant(
        "tensors-of-a-list-share-memory-unnoticed",
        "csrc/torch/tensors.cpp",
        "const bool shared = any_overlap(places);",
        "const bool shared = false;",
        "pytest",
        "tests/python/test_reduce.py::test_tensors_that_share_memory[network]",
    ),
    Mutant(
        "making-over-for-this-rank-joined-again",
        "csrc/torch/making.cpp",
        " || store_->check({keys_of(n) + own_over()});",
        ";",
        "pytest",
        "tests/python/test_making.py",
    ),
    Mutant(
        "conflict-of-members-told-to-one-group",
        "csrc/torch/making.cpp",
        """    store_->set(theirs + kConflict, bytes_of_text(why));
""",
        "",
        "pytest",
        "tests/python/test_making.py::test_ranks_that_name_different_members_are_told",
    ),
    *TORCH_WORKS,
    *TORCH_DEVICE,
]
