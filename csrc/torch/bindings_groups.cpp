// Python functions for process groups. torch_mcast._fallback makes the fallbacks. The name:
// c10d::ProcessGroup calls every backend from outside of torch "custom", in group.name() and in the
// logging of DDP, so the creator of the backend may return a group that has the right name. Python
// sees an ordinary ProcessGroup. The entries of the flight recorder, for torch's tools.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "arena.h"
#include "backend.h"
#include "base/log.h"
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

// Rethrows a Python exception in a form that may pass through threads without Python's lock.
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

std::string offered_fallback_of(const std::string& choice) {
  const py::gil_scoped_acquire gil;
  try {
    return py::cast<std::string>(
        py::module_::import("torch_mcast._fallback").attr("offered")(choice));
  } catch (py::error_already_set& raised) {
    throw_python(raised);
  }
}

BackendPtr make_fallback(ProcessGroupMcast& group, const std::string& kind) {
  const py::gil_scoped_acquire gil;
  try {
    const auto made = py::cast<BackendPtr>(call_fallback_module("make", group, kind));
    // As c10d does with the backends that it makes: NCCL reads it in its barrier and its first
    // call.
    const std::optional<at::Device> bound = group.getBoundDeviceId();
    if (bound && kind == "nccl") made->setBoundDeviceId(bound);
    return made;
  } catch (py::error_already_set& raised) {
    throw_python(raised);
  }
}

// torch's analyser takes neighbours with equal numbers for one batch, even a collective and a
// message: so messages get numbers that no collective has.
constexpr uint64_t kFirstMessage = uint64_t{1} << 32;

// Stacks by entry, the innermost frame first. Frames of equal calls share their Python objects.
std::vector<py::list> frames_of(const std::vector<FlightPtr>& entries) {
  std::vector<torch::CapturedTraceback*> stacks;
  for (const FlightPtr& entry : entries) {
    if (entry->stack) stacks.push_back(entry->stack.get());
  }
  const torch::SymbolizedTracebacks known = torch::symbolize(stacks);
  std::vector<py::dict> rows;
  for (const torch::unwind::Frame& frame : known.all_frames) {
    py::dict row;
    row["name"] = frame.funcname;
    row["filename"] = frame.filename;
    row["line"] = frame.lineno;
    rows.push_back(row);
  }
  std::vector<py::list> frames(entries.size());
  size_t next = 0;
  for (size_t i = 0; i < entries.size(); i++) {
    if (!entries[i]->stack) continue;
    for (const uint64_t at : known.tracebacks[next++]) frames[i].append(rows[at]);
  }
  return frames;
}

// In the format of torch's flight recorder, version 2.10.
py::list flight_entries(const std::string& prefix) {
  py::list rows;
  const std::vector<FlightPtr> entries = FlightRecorder::instance().entries();
  const std::vector<py::list> frames = frames_of(entries);
  for (size_t i = 0; i < entries.size(); i++) {
    const FlightPtr& entry = entries[i];
    const int64_t ended = entry->ended_ns.load();
    const bool completed = ended != 0 && !entry->failed.load();
    const auto types = [](const std::vector<at::ScalarType>& all) {
      py::list names;
      for (const at::ScalarType type : all) names.append(c10::toString(type));
      return names;
    };
    py::dict row;
    row["record_id"] = entry->id;
    row["pg_id"] = 0;
    row["process_group"] = py::make_tuple(entry->place->group, entry->place->description);
    row["collective_seq_id"] = entry->point_to_point ? 0 : entry->sequence;
    row["p2p_seq_id"] = entry->point_to_point ? kFirstMessage + entry->sequence : 0;
    row["op_id"] = entry->op_id;
    row["profiling_name"] = prefix + ":" + entry->name();
    row["time_created_ns"] = entry->created_ns;
    row["input_sizes"] = entry->inputs.sizes();
    row["input_dtypes"] = types(entry->inputs.types());
    row["output_sizes"] = entry->outputs.sizes();
    row["output_dtypes"] = types(entry->outputs.types());
    row["state"] = completed ? "completed" : "started";
    row["time_discovered_started_ns"] = entry->created_ns;
    row["time_discovered_completed_ns"] =
        completed ? py::object(py::int_(ended)) : py::object(py::none());
    if (completed) row["duration_ms"] = static_cast<double>(ended - entry->created_ns) / 1e6;
    row["retired"] = ended != 0;
    row["timeout_ms"] = entry->timeout_ms;
    row["is_p2p"] = entry->point_to_point;
    row["frames"] = frames[i];
    rows.append(row);
  }
  return rows;
}

}  // namespace

void bind_groups(py::module_& module) {
  FlightRecorder::on_failure([] {
    const py::gil_scoped_acquire gil;
    try {
      py::module_::import("torch_mcast._flight").attr("dump_if_asked")();
    } catch (const py::error_already_set& error) {
      log(LogLevel::kError, "the flight recorder could not be written: %s", error.what());
    }
  });
  module.def("flight_entries", &flight_entries, py::arg("prefix"),
             "The last operations of this process, in the form of torch's flight recorder.");
  // Returned by a backend's `mem_allocator`; Python only passes it on.
  py::class_<ArenaAllocator, std::shared_ptr<ArenaAllocator>>(module, "ArenaAllocator");
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
      "The lane of each operation; a thread that waits for the operation helps on it.");
  set_fallback_maker({fallback_kind, make_fallback, offered_fallback_of});
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
