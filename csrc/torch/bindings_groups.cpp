// Two things around a process group that are Python's. Fallbacks are made by torch_mcast._fallback.
// And the name: c10d::ProcessGroup calls every backend from outside of torch "custom", in
// group.name() and in the logging of DDP, so the creator of the backend may hand over a group that
// knows better. Python sees an ordinary ProcessGroup.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "backend.h"
#include "bindings.h"

namespace py = pybind11;

namespace mcast::pg {
namespace {

class NamedGroup final : public c10d::ProcessGroup {
 public:
  using c10d::ProcessGroup::ProcessGroup;
  const std::string getBackendName() const override { return kBackendName; }
};

py::object call_fallback_module(const char* function, ProcessGroupMcast& group,
                                const std::string& argument) {
  return py::module_::import("torch_mcast._fallback")
      .attr(function)(c10::intrusive_ptr<ProcessGroupMcast>::unsafe_reclaim_from_nonowning(&group),
                      argument);
}

// What Python raises, on its way through threads that do not hold its lock.
[[noreturn]] void throw_python(py::error_already_set& raised) {
  raised.restore();
  python_error error;
  error.persist();
  throw std::move(error);
}

std::string fallback_kind(ProcessGroupMcast& group, const std::string& device) {
  const py::gil_scoped_acquire gil;
  try {
    return py::cast<std::string>(call_fallback_module("kind", group, device));
  } catch (py::error_already_set& raised) {
    throw_python(raised);
  }
}

BackendPtr make_fallback(ProcessGroupMcast& group, const std::string& kind) {
  const py::gil_scoped_acquire gil;
  try {
    return py::cast<BackendPtr>(call_fallback_module("make", group, kind));
  } catch (py::error_already_set& raised) {
    throw_python(raised);
  }
}

}  // namespace

void bind_groups(py::module_& module) {
  module.def(
      "lanes",
      [] {
        py::dict lanes;
        for (size_t i = 0; i < kOpCount; ++i) {
          const bool reduces = lane_of(static_cast<Op>(i)) == LaneId::kReduce;
          lanes[kOpNames[i]] = reduces ? "reduce" : "multicast";
        }
        return lanes;
      },
      "The lane of each operation, on which a thread that waits for one helps.");
  set_fallback_maker({fallback_kind, make_fallback});
  module.def(
      "named_group",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
        return c10::intrusive_ptr<c10d::ProcessGroup>(
            c10::make_intrusive<NamedGroup>(store, rank, size));
      },
      py::arg("store"), py::arg("rank"), py::arg("size"),
      "A ProcessGroup whose name is \"mcast\"; it has no backends yet.");
}

}  // namespace mcast::pg
