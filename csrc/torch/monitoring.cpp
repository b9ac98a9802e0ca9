// Groups' reports as plain dictionaries: refusals, counters, last operations. All causes are listed
// by name, including those that have not occurred, so that readers need no check.
#include "bindings.h"

#include <memory>
#include <stdexcept>
#include <vector>

#include "crypto/ipsec_mb.h"
#include "gil.h"
#include "runtime/engine.h"
#include "runtime/security.h"

namespace py = pybind11;

namespace mcast::pg {
namespace {

py::dict by_cause(const std::array<uint64_t, kCauses>& counts) {
  py::dict causes;
  for (size_t i = 0; i < kCauses; ++i) causes[cause_name(static_cast<Cause>(i))] = counts[i];
  return causes;
}

py::list trace_list() {
  const auto nanoseconds = [](Nanos t) -> py::object {
    return t == kNever ? py::none().cast<py::object>() : py::int_(t).cast<py::object>();
  };
  std::vector<TraceEvent> trace;
  {
    const WithoutGil nogil;
    trace = Engine::instance().trace();
  }
  py::list events;
  for (const TraceEvent& event : trace) {
    py::dict row;
    row["name"] = event.name;
    row["group"] = event.group;
    row["rank"] = event.rank;
    row["lane"] = event.lane == 0 ? "multicast" : "reduce";
    row["sequence"] = event.sequence;
    row["bytes"] = event.bytes;
    row["posted"] = nanoseconds(event.posted);
    row["first_byte"] = nanoseconds(event.first_byte);
    row["last_byte"] = nanoseconds(event.last_byte);
    row["done"] = nanoseconds(event.done);
    row["ok"] = event.ok;
    events.append(row);
  }
  return events;
}

py::dict causes_dict() {
  py::dict help;
  for (size_t i = 0; i < kCauses; ++i) {
    help[cause_name(static_cast<Cause>(i))] = cause_help(static_cast<Cause>(i));
  }
  return help;
}

// Payload bytes per second that a core seals; raises an error if there is no library or no such
// mode or suite.
double seal_rate_here(const std::string& mode, const std::string& suite, size_t chunk,
                      const std::string& library) {
  const auto m = crypto::parse_mode(mode);
  const auto s = crypto::parse_suite(suite);
  if (!m || *m == crypto::Mode::kOff || !s) throw py::value_error("no such mode or suite");
  if (library == "libcrypto") crypto::use_libcrypto_only();
  const py::gil_scoped_release released;
  const Result<double> rate = seal_rate(*m, *s, chunk, 50 * kMilli);
  if (!rate.ok()) throw std::runtime_error(rate.status().to_string());
  return *rate;
}

// For metrics: name, rank, size, path, failure, counters, security of every group of this process.
py::list groups_list() {
  const std::vector<std::shared_ptr<Group>> groups = Engine::instance().groups();
  std::vector<GroupStats> all;
  {
    const py::gil_scoped_release released;
    for (const auto& group : groups) all.push_back(group->stats());
  }
  py::list rows;
  for (size_t i = 0; i < all.size(); ++i) {
    const GroupStats& stats = all[i];
    py::dict counters;
    for (const auto& [name, value] : stats.counters) counters[name] = value;
    py::dict row;
    row["group"] = stats.name;
    row["rank"] = groups[i]->rank();
    row["size"] = groups[i]->size();
    row["path"] = stats.path;
    row["failure"] = stats.failure;
    row["counters"] = counters;
    row["security"] = security_dict(stats.security);
    rows.append(row);
  }
  return rows;
}

}  // namespace

py::dict security_dict(const SecurityStats& stats) {
  py::list sources;
  for (const SecurityStats::SourceRow& row : stats.sources) {
    py::dict source;
    source["address"] = row.address;
    source["refused"] = row.refused;
    source["inherited"] = row.inherited;
    source["causes"] = by_cause(row.causes);
    sources.append(source);
  }
  py::dict result;
  result["mode"] = stats.mode;
  result["sources_watched"] = stats.sources_watched;
  result["suite"] = stats.suite;
  result["library"] = stats.library;
  result["trust_store"] = stats.trust_store;
  result["keys_locked"] = stats.keys_locked;
  result["sealed"] = stats.sealed;
  result["opened"] = stats.opened;
  result["untried"] = stats.untried;
  result["epoch"] = stats.epoch;
  result["causes"] = by_cause(stats.causes);
  result["sources"] = sources;
  return result;
}

void bind_monitoring(py::module_& module) {
  module.def("trace", &trace_list, "The last operations of this process, oldest first.");
  module.def(
      "seal_rate", &seal_rate_here, py::arg("mode"), py::arg("suite"), py::arg("chunk"),
      py::arg("library") = "auto",
      "Bytes per second that a core seals; library: a value of the setting security_library.");
  module.def("causes", &causes_dict, "Causes of refusals, and what each of them counts.");
  module.def("groups", &groups_list, "Counters and facts of every group of this process.");
}

}  // namespace mcast::pg
